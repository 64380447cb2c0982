//! Who watches the changes that a test's thread makes to files: fault injection, and the simulated disk.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;

use super::disk::{Answer, Change};

/// Watches the file changes of one thread. All of a simulated store runs on the thread that made it.
pub trait Tap {
    /// Before a change is made.
    ///
    /// # Errors
    /// What the store shall be told instead.
    fn ask(&self, change: &Change<'_>) -> io::Result<Answer>;

    /// Does the store run without io_uring and by [`Tap::sleep`]'s clock?
    fn is_simulated(&self) -> bool {
        false
    }

    /// An executor's write, on a simulated disk: how many bytes went through.
    fn write_at<'a>(
        &'a self,
        file: &'a File,
        path: &'a Path,
        at: u64,
        mut bytes: Vec<u8>,
        durable: bool,
    ) -> Pin<Box<dyn Future<Output = io::Result<usize>> + 'a>> {
        Box::pin(async move {
            match self.ask(&Change::Write { path, at, bytes: &bytes, durable })? {
                Answer::Do => {}
                Answer::Skip => return Ok(bytes.len()),
                Answer::Short(short) => bytes.truncate(short),
            }
            self.io_delay().await;
            file.write_all_at(&bytes, at)?;
            self.written(path, at, bytes.len(), durable);
            Ok(bytes.len())
        })
    }

    /// An executor's sync, on a simulated disk.
    fn sync<'a>(&'a self, path: &'a Path) -> Pin<Box<dyn Future<Output = io::Result<()>> + 'a>> {
        Box::pin(async move {
            self.ask(&Change::Sync { path })?;
            self.io_delay().await;
            Ok(())
        })
    }

    /// What such a write or sync takes.
    fn io_delay(&self) -> Pin<Box<dyn Future<Output = ()>>> {
        Box::pin(std::future::ready(()))
    }

    /// After such a write went through as far as it did.
    fn written(&self, _path: &Path, _at: u64, _len: usize, _durable: bool) {}

    /// A file was mapped: pages of it can be made ones that the disk does not give, with [`spoil`].
    fn mapped(&self, _path: &Path, _start: *const u8) {}

    /// Before bytes of a mapped file are read past its mapping.
    ///
    /// # Errors
    /// What the store shall be told instead.
    fn read(&self, _path: &Path, _at: u64, _len: usize) -> io::Result<()> {
        Ok(())
    }

    /// The wall clock, if it shall stand still or be another than the machine's.
    fn now_ms(&self) -> Option<i64> {
        None
    }

    /// Virtual ms since the start of the simulation.
    fn steady_ms(&self) -> u64 {
        0
    }

    fn sleep(&self, _ms: u64) -> Pin<Box<dyn Future<Output = ()>>> {
        Box::pin(std::future::pending())
    }

    /// Other tasks first.
    fn give_way(&self) -> Pin<Box<dyn Future<Output = ()>>> {
        Box::pin(std::future::ready(()))
    }
}

thread_local! {
    static TAP: RefCell<Option<Rc<dyn Tap>>> = const { RefCell::new(None) };
}

/// Watches until dropped.
pub struct Watch(());

impl Watch {
    /// `tap` is asked about every file change that this thread makes from now on.
    pub fn start(tap: Rc<dyn Tap>) -> Watch {
        TAP.set(Some(tap));
        Watch(())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        TAP.set(None);
    }
}

/// The tap of this thread.
pub fn current() -> Option<Rc<dyn Tap>> {
    TAP.with_borrow(|tap| tap.clone())
}

/// The tap of this thread, if it simulates the world.
pub fn simulated() -> Option<Rc<dyn Tap>> {
    current().filter(|tap| tap.is_simulated())
}

/// Asks whoever watches this thread's changes.
pub fn ask(change: &Change<'_>) -> io::Result<Answer> {
    current().map_or(Ok(Answer::Do), |tap| tap.ask(change))
}

/// Tells whoever watches this thread that a file was mapped.
pub fn mapped(path: &Path, start: *const u8) {
    if let Some(tap) = current() {
        tap.mapped(path, start);
    }
}

/// Asks whoever watches this thread whether a read may be made.
pub fn read(path: &Path, at: u64, len: usize) -> io::Result<()> {
    current().map_or(Ok(()), |tap| tap.read(path, at, len))
}

/// Makes the page at byte `at` of a mapping one that cannot be brought into memory: touching it is a fault, as with a bad
/// sector.
///
/// # Safety
/// The page lies in a live mapping that begins at `start`, and nobody holds a reference into it.
pub unsafe fn spoil(start: *const u8, at: u64) {
    let empty = tempfile::tempfile().unwrap();
    // SAFETY: the caller's promise; the new page belongs to the mapping from now on, and goes with it.
    let mapped = unsafe {
        let page = start.add(at as usize).cast_mut().cast();
        let shared = rustix::mm::MapFlags::SHARED | rustix::mm::MapFlags::FIXED;
        rustix::mm::mmap(page, 4096, rustix::mm::ProtFlags::READ, shared, &empty, 0)
    };
    mapped.unwrap();
}
