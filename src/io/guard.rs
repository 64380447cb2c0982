//! Access to mapped files that outlives a fault: a page that the file has lost (it was cut short) or the disk cannot give
//! is an error of who asked for it, not the end of the process (spec/store.md, R17).
//!
//! Such a fault is a SIGBUS of the thread that touched the page. While a thread is inside [`Guard::run`], the handler
//! here lays a page of zeros over the lost one, marks the mapping as broken, and lets the thread go on; `run` then says
//! that what was read is worth nothing. A broken mapping stays so: from then on its bytes are read by system calls, which
//! have errors to give. Outside of `run` nothing is mended, so that nobody takes zeros for what a file holds: the signal
//! goes to whoever had it before.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::fmt;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, compiler_fence, fence};

/// A part of a mapped file could not be brought into memory, now or earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrokenMap;

impl fmt::Display for BrokenMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a part of the mapped file is gone or cannot be read; check the file's length and the disk")
    }
}

impl std::error::Error for BrokenMap {}

impl From<BrokenMap> for std::io::Error {
    fn from(broken: BrokenMap) -> std::io::Error {
        std::io::Error::new(std::io::ErrorKind::UnexpectedEof, broken)
    }
}

/// The place of one mapping, and whether it still shows its file. Kept beside the mapping, which outlives every `run`.
#[derive(Debug)]
pub(super) struct Guard {
    start: usize,
    len: usize,
    broken: AtomicBool,
}

/// What the handler may mend for a thread.
#[derive(Clone, Copy)]
pub(super) struct Armed {
    start: usize,
    end: usize,
    broken: *const AtomicBool,
}

/// All that it may mend; they live until the list is put back.
#[derive(Clone, Copy)]
struct ArmedList {
    first: *const Armed,
    count: usize,
}

const NOTHING: ArmedList = ArmedList { first: ptr::null(), count: 0 };

thread_local! {
    // Constant and without a destructor, so that the handler may look at it at any moment.
    static ARMED: Cell<ArmedList> = const { Cell::new(NOTHING) };
}

/// Puts back what was armed before, however the guarded work ends.
pub(super) struct Disarm(ArmedList);

/// Arms this thread for `armed`, which outlives what is given back.
pub(super) fn arm(armed: &[Armed]) -> Disarm {
    let disarm = Disarm(ARMED.replace(ArmedList { first: armed.as_ptr(), count: armed.len() }));
    compiler_fence(Ordering::SeqCst);
    disarm
}

impl Drop for Disarm {
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        ARMED.set(self.0);
    }
}

impl Guard {
    /// For the mapping of `len` bytes at `start`.
    pub(super) fn over(start: *const u8, len: usize) -> Guard {
        install();
        Guard { start: start.addr(), len, broken: AtomicBool::new(false) }
    }

    /// Does the mapping no longer show its file?
    pub(super) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }

    pub(super) fn armed(&self) -> Armed {
        Armed { start: self.start, end: self.start + self.len, broken: &raw const self.broken }
    }

    /// Runs `access`, which touches the mapping, on this thread.
    ///
    /// # Errors
    /// [`BrokenMap`] if the mapping was broken before, or is now: then `access` saw zeros or its stores are lost, and its
    /// result is dropped.
    pub(super) fn run<R>(&self, access: impl FnOnce() -> R) -> Result<R, BrokenMap> {
        if self.is_broken() {
            return Err(BrokenMap);
        }
        let armed = [self.armed()];
        let disarm = arm(&armed);
        let result = access();
        drop(disarm);
        // Another thread may have had the page replaced: the mark is set before the page, and is looked at after it.
        fence(Ordering::Acquire);
        if self.is_broken() { Err(BrokenMap) } else { Ok(result) }
    }
}

static PAGE_LEN: AtomicUsize = AtomicUsize::new(4096);
static INSTALL: Once = Once::new();
/// The disposition of SIGBUS before ours: written once, before the handler can run.
static mut BEFORE: MaybeUninit<libc::sigaction> = MaybeUninit::uninit();

fn install() {
    INSTALL.call_once(|| {
        PAGE_LEN.store(rustix::param::page_size(), Ordering::Relaxed);
        // SAFETY: plain queries and one registration. `BEFORE` is filled before the handler is in place and never written
        // again; the handler keeps to what a signal handler may do.
        unsafe {
            let before = (&raw mut BEFORE).cast::<libc::sigaction>();
            let queried = libc::sigaction(libc::SIGBUS, ptr::null(), before);
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_sigbus as extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigemptyset(&raw mut action.sa_mask);
            let installed = libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut());
            assert!(queried == 0 && installed == 0, "SIGBUS can be handled");
        }
    });
}

/// Runs on the thread that faulted. No lock, no allocation, nothing but system calls.
extern "C" fn on_sigbus(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel gives a filled siginfo; for a fault (a positive code) it holds the address.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
    if code > 0 && mend(address) {
        return;
    }
    // SAFETY: `BEFORE` was filled before this could run. A default disposition is put back and the instruction tried
    // again, which then ends the process as it would have.
    unsafe {
        let before = (&raw const BEFORE).cast::<libc::sigaction>();
        match (*before).sa_sigaction {
            libc::SIG_DFL | libc::SIG_IGN => {
                let mut default: libc::sigaction = std::mem::zeroed();
                default.sa_sigaction = libc::SIG_DFL;
                libc::sigaction(signal, &raw const default, ptr::null_mut());
                if code <= 0 {
                    libc::raise(signal);
                }
            }
            handler if (*before).sa_flags & libc::SA_SIGINFO != 0 => {
                let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = std::mem::transmute(handler);
                handler(signal, info, context);
            }
            handler => {
                let handler: extern "C" fn(c_int) = std::mem::transmute(handler);
                handler(signal);
            }
        }
    }
}

/// Lays a page of zeros over the one at `address`, if that is what this thread is armed for.
fn mend(address: usize) -> bool {
    let list = ARMED.get();
    if list.count == 0 {
        return false;
    }
    // SAFETY: who armed this thread keeps the list alive and unchanged until it is disarmed.
    let list = unsafe { std::slice::from_raw_parts(list.first, list.count) };
    let Some(armed) = list.iter().find(|armed| (armed.start..armed.end).contains(&address)) else { return false };
    let page_len = PAGE_LEN.load(Ordering::Relaxed);
    let page = address - address % page_len;
    // SAFETY: the mark lives in the guard that this thread is inside of. The page belongs to the mapping that the guard
    // stands for, which is alive; stores to the new page go nowhere, as `Guard::run` promises. errno is put back, since
    // the interrupted code may be about to read its own.
    unsafe {
        (*armed.broken).store(true, Ordering::SeqCst);
        let errno = libc::__errno_location();
        let kept = *errno;
        let mapped = libc::mmap(
            ptr::with_exposed_provenance_mut(page),
            page_len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
            -1,
            0,
        );
        *errno = kept;
        mapped != libc::MAP_FAILED
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::process::ExitStatusExt;

    use memmap2::MmapOptions;

    use super::*;

    const PAGES: usize = 4;

    fn mapped(dir: &tempfile::TempDir) -> (File, memmap2::Mmap) {
        let path = dir.path().join("file");
        std::fs::write(&path, vec![7; PAGES * 4096]).unwrap();
        let file = File::options().read(true).write(true).open(path).unwrap();
        // SAFETY: the test shortens the file on purpose, and reads it only inside the guard.
        let map = unsafe { MmapOptions::new().map(&file).unwrap() };
        (file, map)
    }

    #[test]
    fn a_page_that_the_file_has_lost_is_an_error_and_later_reads_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (file, map) = mapped(&dir);
        let guard = Guard::over(map.as_ptr(), map.len());
        assert_eq!(guard.run(|| map.iter().map(|byte| usize::from(*byte)).sum::<usize>()), Ok(7 * PAGES * 4096));
        file.set_len(4096).unwrap();
        assert_eq!(guard.run(|| map[..4096].iter().all(|byte| *byte == 7)), Ok(true), "what is there is read");
        assert_eq!(guard.run(|| map.to_vec()), Err(BrokenMap));
        assert!(guard.is_broken());
        assert_eq!(guard.run(|| map[0]), Err(BrokenMap));
    }

    #[test]
    fn each_thread_hears_of_its_own_fault() {
        let dir = tempfile::tempdir().unwrap();
        let (file, map) = mapped(&dir);
        let guard = Guard::over(map.as_ptr(), map.len());
        file.set_len(0).unwrap();
        std::thread::scope(|scope| {
            let reads: Vec<_> = (0..8).map(|_| scope.spawn(|| guard.run(|| map.to_vec()))).collect();
            assert!(reads.into_iter().all(|read| read.join().unwrap() == Err(BrokenMap)));
        });
    }

    #[test]
    fn a_guard_inside_another_leaves_the_outer_one_armed() {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let [(outer_file, outer_map), (inner_file, inner_map)] = [mapped(&dirs[0]), mapped(&dirs[1])];
        let (outer, inner) =
            (Guard::over(outer_map.as_ptr(), outer_map.len()), Guard::over(inner_map.as_ptr(), inner_map.len()));
        outer_file.set_len(0).unwrap();
        inner_file.set_len(0).unwrap();
        let read = outer.run(|| {
            assert_eq!(inner.run(|| inner_map[0]), Err(BrokenMap));
            outer_map[0]
        });
        assert_eq!(read, Err(BrokenMap));
    }

    /// Runs in a process of its own, which must die.
    #[test]
    fn a_fault_that_nobody_guards_ends_the_process() {
        const CHILD: &str = "KEROLOX_TEST_UNGUARDED_FAULT";
        if std::env::var_os(CHILD).is_some() {
            let dir = tempfile::tempdir().unwrap();
            let (file, map) = mapped(&dir);
            let guard = Guard::over(map.as_ptr(), map.len());
            file.set_len(0).unwrap();
            assert!(guard.run(|| 1).is_ok(), "it touches nothing");
            println!("{}", std::hint::black_box(&map)[0]);
            return;
        }
        let name = "io::guard::tests::a_fault_that_nobody_guards_ends_the_process";
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name])
            .env(CHILD, "1")
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .status()
            .unwrap();
        assert_eq!(child.signal(), Some(libc::SIGBUS));
    }
}
