//! How long a block takes to stable storage by each of the two calls. Blocking; at a store's first start.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use memmap2::MmapMut;

use super::disk;

const BLOCK_LEN: usize = 4096;
/// Writes by each call, and when to be content with fewer. One pair is made in any case.
const WRITES: usize = 32;
const TIME_MAX: Duration = Duration::from_millis(300);

/// Medians, in µs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncTimes {
    pub o_dsync_us: u64,
    pub fdatasync_us: u64,
    /// By each call.
    pub writes: u32,
}

/// Writes blocks into a file at `path`, in turns by a handle opened with O_DSYNC and by a plain one with fdatasync, as a
/// log grows: one behind the other, into blocks that were filled with zeros before. `direct`: past the page cache, where
/// the file system knows that. The file is made and removed.
///
/// # Errors
/// Whatever the file system says; a file may then be left over, which the next call removes.
pub fn time_sync_calls(path: &Path, direct: bool) -> io::Result<SyncTimes> {
    disk::remove_if_present(path)?;
    let file = disk::create_new(path)?;
    disk::write_at(&file, path, &vec![0; 2 * WRITES * BLOCK_LEN], 0)?;
    disk::sync(&file, path)?;
    let open = |flags: i32| OpenOptions::new().read(true).write(true).custom_flags(flags).open(path);
    let open_direct = |flags: i32| match open(flags | if direct { libc::O_DIRECT } else { 0 }) {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => open(flags),
        opened => opened,
    };
    let (plain, durable) = (open_direct(0)?, open_direct(libc::O_DSYNC)?);
    // Of whole pages, as direct access wants it.
    let mut block = MmapMut::map_anon(BLOCK_LEN)?;
    block.fill(b'k');
    let (mut by_write, mut by_call) = (Vec::new(), Vec::new());
    let began = Instant::now();
    while by_call.len() < WRITES && (by_call.is_empty() || began.elapsed() < TIME_MAX) {
        let at = (2 * by_call.len() * BLOCK_LEN) as u64;
        by_write.push(timed(|| disk::write_through_at(&durable, path, &block, at))?);
        by_call.push(timed(|| {
            disk::write_at(&plain, path, &block, at + BLOCK_LEN as u64)?;
            disk::sync(&plain, path)
        })?);
    }
    disk::remove_if_present(path)?;
    Ok(SyncTimes {
        o_dsync_us: median(&mut by_write),
        fdatasync_us: median(&mut by_call),
        writes: by_call.len() as u32,
    })
}

fn timed(work: impl FnOnce() -> io::Result<()>) -> io::Result<Duration> {
    let began = Instant::now();
    work()?;
    Ok(began.elapsed())
}

fn median(times: &mut [Duration]) -> u64 {
    times.sort_unstable();
    times.get(times.len() / 2).map_or(0, |time| time.as_micros() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_calls_are_timed_and_nothing_is_left_over() {
        for (dir, direct) in
            [(tempfile::tempdir(), true), (tempfile::tempdir(), false), (tempfile::tempdir_in("/dev/shm"), true)]
        {
            let dir = dir.unwrap();
            let path = dir.path().join("probe");
            // A file that an earlier start left.
            std::fs::File::create(&path).unwrap();
            let times = time_sync_calls(&path, direct).unwrap();
            assert!((1..=WRITES as u32).contains(&times.writes), "{times:?}");
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        }
    }
}
