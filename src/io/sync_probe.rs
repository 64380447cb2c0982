//! How long a block takes to stable storage by each of the two calls. Blocking; at a store's first start.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use super::disk;
use super::log_file::{AppendMode, SyncCall};
use super::probe_file::ProbeFile;

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
    let len = (2 * WRITES * BLOCK_LEN) as u64;
    let open = |mode: AppendMode| ProbeFile::create(path, len, mode, BLOCK_LEN);
    let mut file = match open(if direct { AppendMode::Dma } else { AppendMode::Buffered }) {
        Err(error) if error.kind() == io::ErrorKind::Unsupported => open(AppendMode::Buffered)?,
        opened => opened?,
    };
    file.write_zeros(0, len)?;
    let (mut by_write, mut by_call) = (Vec::new(), Vec::new());
    let began = Instant::now();
    while by_call.len() < WRITES && (by_call.is_empty() || began.elapsed() < TIME_MAX) {
        let at = (2 * by_call.len() * BLOCK_LEN) as u64;
        by_write.push(timed(|| file.commit(at, BLOCK_LEN, SyncCall::ODsync))?);
        by_call.push(timed(|| file.commit(at + BLOCK_LEN as u64, BLOCK_LEN, SyncCall::Fdatasync))?);
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
