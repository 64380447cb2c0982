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

/// Can all of `[at, at + len)` of a mapping be read without waiting for the disk? Asks `mincore` alone, which needs no
/// descriptor; of a file that this process may write it tells the truth.
pub fn is_filled(map: *const u8, at: u64, len: u64) -> bool {
    let first = at / PAGE_LEN * PAGE_LEN;
    let mut states = smallvec::SmallVec::<[u8; 256]>::from_elem(0, pages(at, len) as usize);
    // SAFETY: `states` has one byte a page; mincore reports unmapped ranges as an error.
    let asked = unsafe {
        libc::mincore(map.add(first as usize) as *mut _, states.len() * PAGE_LEN as usize, states.as_mut_ptr())
    };
    len == 0 || (asked == 0 && states.iter().all(|state| *state & 1 == 1))
}

const SYS_CACHESTAT: libc::c_long = 451;
const PAGE_LEN: u64 = 4096;

/// Set once the kernel (before 6.5, or a sandbox) refuses `cachestat`.
static NO_CACHESTAT: AtomicBool = AtomicBool::new(false);

/// Are all pages of `[at, at + len)` cached? `map` is a mapping of the same file that starts at byte 0.
pub fn is_resident(file: &File, map: *const u8, at: u64, len: u64) -> bool {
    len == 0 || cached_len(file, map, at, len) >= pages(at, len) * PAGE_LEN
}

fn pages(at: u64, len: u64) -> u64 {
    (at + len).div_ceil(PAGE_LEN) - at / PAGE_LEN
}

/// Bytes of the pages of `[at, at + len)` that are cached.
pub fn cached_len(file: &File, map: *const u8, at: u64, len: u64) -> u64 {
    let first = at / PAGE_LEN * PAGE_LEN;
    let pages = pages(at, len);
    if !NO_CACHESTAT.load(Ordering::Relaxed) {
        let range = CachestatRange { off: first, len: pages * PAGE_LEN };
        let mut stat = Cachestat::default();
        // SAFETY: both structs are laid out as the kernel wants them and live through the call.
        let result = unsafe { libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut stat, 0) };
        if result == 0 {
            return stat.nr_cache * PAGE_LEN;
        }
        NO_CACHESTAT.store(true, Ordering::Relaxed);
    }
    let mut states = smallvec::SmallVec::<[u8; 256]>::from_elem(0, pages as usize);
    // SAFETY: `states` has one byte a page; mincore reports unmapped ranges as an error.
    let result =
        unsafe { libc::mincore(map.add(first as usize) as *mut _, (pages * PAGE_LEN) as usize, states.as_mut_ptr()) };
    if result != 0 {
        return 0;
    }
    states.iter().filter(|state| **state & 1 == 1).count() as u64 * PAGE_LEN
}
