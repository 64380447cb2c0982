//! Is a range of a file in the page cache? A fault in a mapping would stop the whole core, so readers ask first.

use std::fs::File;
use std::os::fd::AsRawFd;
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

/// What the last look at a file found, which decides how the next one asks. Shared by all cores.
#[derive(Debug, Default)]
pub struct LastLook {
    was_cold: AtomicBool,
}

/// Can all of `[at, at + len)` be read without waiting for the disk? `map` is a mapping of the same file that starts at
/// byte 0.
///
/// `mincore` has the word for a yes: it counts no page before it is filled. It costs 1 microsecond where the mapping shows
/// the pages, and 0.2 a page where they are to be mapped yet, which is little beside mapping them but much for a no. So
/// where the last look found something cold `cachestat` is asked before it: that tells of most of what is cold at less
/// than 0.03 a page. It alone would not do: it counts pages that the kernel is only about to fill, as after a read-ahead,
/// and touching one of those waits for the disk.
pub fn is_resident(file: &File, map: *const u8, last: &LastLook, at: u64, len: u64) -> bool {
    if len == 0 {
        return true;
    }
    let whole = pages(at, len) * PAGE_LEN;
    let was_cold = last.was_cold.load(Ordering::Relaxed);
    let may_be = !was_cold || cachestat_len(file, at, len).is_none_or(|cached| cached >= whole);
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

    fn mapped(dir: &tempfile::TempDir, name: &str, write: bool) -> (File, memmap2::Mmap) {
        let path = dir.path().join(name);
        if write {
            std::fs::write(&path, [7; 4 * PAGE_LEN as usize]).unwrap();
        } else {
            File::create(&path).unwrap().set_len(4 * PAGE_LEN).unwrap();
        }
        let file = File::open(path).unwrap();
        // SAFETY: nobody shortens the file.
        let map = unsafe { MmapOptions::new().map(&file).unwrap() };
        (file, map)
    }

    #[test]
    fn what_the_cache_counts_is_resident_only_if_its_pages_are_filled() {
        let dir = tempfile::tempdir().unwrap();
        let (file, map) = mapped(&dir, "cached", true);
        let (_, empty) = mapped(&dir, "never_read", false);
        let last = LastLook::default();
        assert!(is_resident(&file, map.as_ptr(), &last, 100, 3 * PAGE_LEN));
        // Pages under read-ahead are counted and not filled. No test can hold a disk up; the pages of a file that was
        // never read stand for those.
        assert_eq!(filled_len(empty.as_ptr(), 0, 4 * PAGE_LEN), 0);
        assert!(!is_resident(&file, empty.as_ptr(), &last, 100, 3 * PAGE_LEN));
        assert!(
            !is_resident(&file, empty.as_ptr(), &last, 100, 3 * PAGE_LEN),
            "cachestat asked first has no other answer"
        );
        assert!(
            is_resident(&file, map.as_ptr(), &last, 100, 3 * PAGE_LEN),
            "one cold look does not make the next one so"
        );
    }

    #[test]
    fn a_hole_is_not_resident_until_it_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let (file, map) = mapped(&dir, "hole", false);
        let last = LastLook::default();
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
