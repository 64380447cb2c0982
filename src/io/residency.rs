//! Is a range of a file in the page cache? A fault in a mapping would stop the whole core, so readers ask first.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// The kernel's `struct cachestat_range`.
#[repr(C)]
struct CachestatRange {
    off: u64,
    len: u64,
}

/// The kernel's `struct cachestat`, all in pages.
#[repr(C)]
#[derive(Default)]
struct Cachestat {
    nr_cache: u64,
    nr_dirty: u64,
    nr_writeback: u64,
    nr_evicted: u64,
    nr_recently_evicted: u64,
}

const SYS_CACHESTAT: libc::c_long = 451;
const PAGE_LEN: u64 = 4096;

/// Set once the kernel (before 6.5, or a sandbox) refuses `cachestat`.
static NO_CACHESTAT: AtomicBool = AtomicBool::new(false);

/// The longest range whose no may cost a walk over its pages; a get's messages can lie hundreds of megabytes apart.
const MINCORE_FIRST_PAGES: u64 = 256;

/// What the last look at a file found, which decides how the next one asks. Shared by all cores.
#[derive(Debug)]
pub struct LastLook {
    /// `mincore` calls all of a file filled that the process may not write.
    may_write: bool,
    was_cold: AtomicBool,
}

impl LastLook {
    /// Of a file that was not looked at yet. Blocking.
    pub fn none_at(path: &Path) -> LastLook {
        let may_write = rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok();
        LastLook { may_write, was_cold: AtomicBool::new(false) }
    }
}

/// Can all of `[at, at + len)` be read without waiting for the disk? `map` is a mapping of the same file that starts at
/// byte 0.
///
/// `mincore` has the word for a yes: it counts no page before it is filled. It costs 1 microsecond where the mapping shows
/// the pages, and 0.2 a page where they are to be mapped yet, which is little beside mapping them but much for a no. So
/// where the last look found something cold, and of a long range, `cachestat` is asked before it: that tells of most of what
/// is cold at less than 0.03 a page. It alone would not do: it counts pages that the kernel is only about to fill, as after a
/// read-ahead, and touching one of those waits for the disk.
pub fn is_resident(file: &File, map: *const u8, last: &LastLook, at: u64, len: u64) -> bool {
    if len == 0 {
        return true;
    }
    let whole = pages(at, len) * PAGE_LEN;
    let was_cold = last.was_cold.load(Ordering::Relaxed);
    let by_mincore_alone = last.may_write && !was_cold && pages(at, len) <= MINCORE_FIRST_PAGES;
    let may_be = by_mincore_alone || cachestat_len(file, at, len).is_none_or(|cached| cached >= whole);
    let is = may_be && filled_len(map, at, len) >= whole;
    // A line of memory that all cores read is written only where it changes.
    if is == was_cold {
        last.was_cold.store(!is, Ordering::Relaxed);
    }
    is
}

/// The same for a mapping whose file is not open: asks `mincore` alone. Of a file that this process may write it tells the
/// truth.
pub fn is_filled(map: *const u8, at: u64, len: u64) -> bool {
    len == 0 || filled_len(map, at, len) >= pages(at, len) * PAGE_LEN
}

fn pages(at: u64, len: u64) -> u64 {
    (at + len).div_ceil(PAGE_LEN) - at / PAGE_LEN
}

/// Bytes of the pages of `[at, at + len)` that are cached, or are being read into the cache.
pub fn cached_len(file: &File, map: *const u8, at: u64, len: u64) -> u64 {
    cachestat_len(file, at, len).unwrap_or_else(|| filled_len(map, at, len))
}

/// As [`cached_len`]; nothing if the kernel does not say.
fn cachestat_len(file: &File, at: u64, len: u64) -> Option<u64> {
    if NO_CACHESTAT.load(Ordering::Relaxed) {
        return None;
    }
    let range = CachestatRange { off: at / PAGE_LEN * PAGE_LEN, len: pages(at, len) * PAGE_LEN };
    let mut stat = Cachestat::default();
    // SAFETY: both structs are laid out as the kernel wants them and live through the call.
    let result = unsafe { libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut stat, 0) };
    if result != 0 {
        NO_CACHESTAT.store(true, Ordering::Relaxed);
        return None;
    }
    Some(stat.nr_cache * PAGE_LEN)
}

/// Bytes of the pages of `[at, at + len)` that are cached and filled.
fn filled_len(map: *const u8, at: u64, len: u64) -> u64 {
    let first = at / PAGE_LEN * PAGE_LEN;
    let pages = pages(at, len);
    let mut states = smallvec::SmallVec::<[u8; 256]>::from_elem(0, pages as usize);
    // SAFETY: `states` has one byte a page; mincore reports unmapped ranges as an error.
    let result =
        unsafe { libc::mincore(map.add(first as usize) as *mut _, (pages * PAGE_LEN) as usize, states.as_mut_ptr()) };
    if result != 0 {
        return 0;
    }
    states.iter().filter(|state| **state & 1 == 1).count() as u64 * PAGE_LEN
}

#[cfg(test)]
mod tests {
    use memmap2::MmapOptions;

    use super::*;

    const FILE_LEN: u64 = (MINCORE_FIRST_PAGES + 1) * PAGE_LEN;

    fn mapped(dir: &tempfile::TempDir, name: &str, write: bool) -> (File, memmap2::Mmap) {
        let path = dir.path().join(name);
        if write {
            std::fs::write(&path, vec![7; FILE_LEN as usize]).unwrap();
        } else {
            File::create(&path).unwrap().set_len(FILE_LEN).unwrap();
        }
        let file = File::open(path).unwrap();
        // SAFETY: nobody shortens the file.
        let map = unsafe { MmapOptions::new().map(&file).unwrap() };
        (file, map)
    }

    /// Of a file that may be written and was not looked at.
    fn no_look() -> LastLook {
        LastLook { may_write: true, was_cold: AtomicBool::new(false) }
    }

    #[test]
    fn what_the_cache_counts_is_resident_only_if_its_pages_are_filled() {
        let dir = tempfile::tempdir().unwrap();
        let (file, map) = mapped(&dir, "cached", true);
        let (_, empty) = mapped(&dir, "never_read", false);
        let last = no_look();
        assert!(is_resident(&file, map.as_ptr(), &last, 100, 3 * PAGE_LEN));
        // Pages under read-ahead are counted and not filled. No test can hold a disk up; the pages of a file that was
        // never read stand for those.
        assert_eq!(filled_len(empty.as_ptr(), 0, 4 * PAGE_LEN), 0);
        for _ in 0..2 {
            assert!(!is_resident(&file, empty.as_ptr(), &last, 100, 3 * PAGE_LEN));
        }
        assert!(
            is_resident(&file, map.as_ptr(), &last, 100, 3 * PAGE_LEN),
            "a cold look does not make the next one so"
        );
    }

    /// A file of which nothing is cached and the mapping of another one, all of it filled: who is asked first decides.
    #[test]
    fn cachestat_has_a_say_after_a_cold_look_of_a_long_range_and_of_files_that_may_not_be_written() {
        let dir = tempfile::tempdir().unwrap();
        let (empty, _) = mapped(&dir, "never_read", false);
        let (_, filled) = mapped(&dir, "cached", true);
        if cachestat_len(&empty, 0, PAGE_LEN).is_none() {
            eprintln!("this kernel has no cachestat, so there is nobody to ask first");
            return;
        }
        let ask = |last: &LastLook, pages: u64| is_resident(&empty, filled.as_ptr(), last, 0, pages * PAGE_LEN);
        let last = no_look();
        assert!(ask(&last, 1) && ask(&last, 4), "mincore alone");
        last.was_cold.store(true, Ordering::Relaxed);
        assert!(!ask(&last, 1) && !ask(&last, 1));
        assert!(!ask(&no_look(), MINCORE_FIRST_PAGES + 1), "a long range");
        assert!(ask(&no_look(), MINCORE_FIRST_PAGES));
        assert!(!ask(&LastLook { may_write: false, was_cold: AtomicBool::new(false) }, 1));
    }

    #[test]
    fn a_hole_is_not_resident_until_it_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let (file, map) = mapped(&dir, "hole", false);
        let last = no_look();
        for _ in 0..2 {
            assert!(!is_resident(&file, map.as_ptr(), &last, PAGE_LEN, 10));
        }
        let _ = std::hint::black_box(map[PAGE_LEN as usize]);
        for _ in 0..2 {
            assert!(is_resident(&file, map.as_ptr(), &last, PAGE_LEN, 10));
        }
        assert!(is_resident(&file, map.as_ptr(), &last, 0, 0));
    }
}
