//! A piece of a log for those who time a device: written in the node's append modes and brought onto stable storage by its
//! two calls, but by plain blocking system calls. Holds nothing that anybody reads.

use std::fs::{File, OpenOptions};
use std::io;
use std::num::NonZeroU64;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use memmap2::MmapMut;
use rustix::fs::Advice;

use super::disk;
use super::log_file::{AppendMode, SyncCall, ZERO_LEN};
use super::shared_map::SharedMap;

const BLOCK_LEN: u64 = 4096;
/// Zeros are synced in portions of this length, as the node's writer does it.
const ZERO_SYNC_LEN: u64 = 8 << 20;

/// A file at full length, open in one append mode. Blocking.
pub struct ProbeFile {
    path: PathBuf,
    len: u64,
    plain: File,
    durable: File,
    map: Option<SharedMap>,
    mode: AppendMode,
    /// What is written: whole pages, as direct access wants it, of bytes that do not repeat.
    batch: MmapMut,
    writes: u64,
}

impl ProbeFile {
    /// Makes a file of `len` bytes at `path`, whose blocks are reserved and unwritten, for batches of at most
    /// `batch_len_max` bytes.
    ///
    /// # Errors
    /// `Unsupported`: this file system knows no access past the page cache; the file is there all the same.
    pub fn create(path: &Path, len: u64, mode: AppendMode, batch_len_max: usize) -> io::Result<ProbeFile> {
        drop(super::create_full_length(path, len)?);
        let direct = if mode == AppendMode::Dma { libc::O_DIRECT } else { 0 };
        let open = |flags: i32| match OpenOptions::new().read(true).write(true).custom_flags(flags | direct).open(path)
        {
            Err(error) if direct != 0 && error.kind() == io::ErrorKind::InvalidInput => {
                Err(io::ErrorKind::Unsupported.into())
            }
            opened => opened,
        };
        let (plain, durable) = (open(0)?, open(libc::O_DSYNC)?);
        let map = if mode == AppendMode::Mmap { Some(SharedMap::open(path, len)?) } else { None };
        if let Some(map) = &map {
            map.reserve(len)?;
        }
        let mut batch = MmapMut::map_anon(batch_len_max + 2 * BLOCK_LEN as usize)?;
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        for word in batch.chunks_exact_mut(8) {
            // Xorshift: a device or file system that packs its data must not find anything to pack.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word.copy_from_slice(&state.to_le_bytes());
        }
        Ok(ProbeFile { path: path.to_owned(), len, plain, durable, map, mode, batch, writes: 0 })
    }

    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Fills `[from, to)` with zeros and syncs them, in pieces as the node does ahead of its log. Both are multiples of
    /// 4096.
    pub fn write_zeros(&self, from: u64, to: u64) -> io::Result<()> {
        let zeros = MmapMut::map_anon(ZERO_LEN)?;
        let mut at = from;
        let mut synced = from;
        while at < to {
            let part = (to - at).min(ZERO_LEN as u64);
            disk::write_at(&self.plain, &self.path, &zeros[..part as usize], at)?;
            at += part;
            if at - synced >= ZERO_SYNC_LEN || at == to {
                self.sync()?;
                synced = at;
            }
        }
        Ok(())
    }

    /// Appends the next batch at `at` without waiting for stable storage.
    ///
    /// # Panics
    /// If the batch leaves the file or is longer than was said.
    pub fn write(&mut self, at: u64, len: usize) -> io::Result<()> {
        let (at, range) = self.next_batch(at, len);
        match &self.map {
            // SAFETY: nobody else knows this file.
            Some(map) => Ok(map.guarded(|| unsafe { map.write(at as usize, &self.batch[range]) })?),
            None => disk::write_at(&self.plain, &self.path, &self.batch[range], at),
        }
    }

    /// Appends the next batch at `at`; on stable storage when it returns. In a mapping there is only fdatasync.
    ///
    /// # Panics
    /// As [`ProbeFile::write`].
    pub fn commit(&mut self, at: u64, len: usize, call: SyncCall) -> io::Result<()> {
        if call == SyncCall::ODsync && self.map.is_none() {
            let (at, range) = self.next_batch(at, len);
            return disk::write_through_at(&self.durable, &self.path, &self.batch[range], at);
        }
        self.write(at, len)?;
        self.sync()
    }

    /// Brings all that was written onto stable storage.
    pub fn sync(&self) -> io::Result<()> {
        disk::sync(&self.plain, &self.path)
    }

    /// Reads `len` bytes at `at`, in `dma` both whole blocks; gives how many there were.
    ///
    /// # Panics
    /// If that is more than the longest batch.
    pub fn read(&mut self, at: u64, len: usize) -> io::Result<usize> {
        self.plain.read_at(&mut self.batch[..len], at)
    }

    /// Takes the file's synced pages out of the page cache.
    pub fn drop_cached(&self) {
        let _ = rustix::fs::fadvise(&self.plain, 0, NonZeroU64::new(self.len), Advice::DontNeed);
    }

    /// Where the batch that belongs at `at` is written from, and its bytes: past the page cache the whole blocks that it
    /// lies in, of which the first may be written again.
    fn next_batch(&mut self, at: u64, len: usize) -> (u64, std::ops::Range<usize>) {
        let end = at + len as u64;
        assert!(end <= self.len, "a batch beyond {}", self.path.display());
        let (from, to) = match self.mode {
            AppendMode::Dma => (at / BLOCK_LEN * BLOCK_LEN, end.next_multiple_of(BLOCK_LEN)),
            AppendMode::Buffered | AppendMode::Mmap => (at, end),
        };
        let range = 0..(to - from) as usize;
        // No two batches are the same: some devices would notice.
        self.writes += 1;
        let stamp = self.writes.to_le_bytes();
        for block in self.batch[range.clone()].chunks_mut(BLOCK_LEN as usize) {
            let stamped = stamp.len().min(block.len());
            block[..stamped].copy_from_slice(&stamp[..stamped]);
        }
        (from, range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mode_writes_its_batches_where_they_belong() {
        let dir = tempfile::tempdir().unwrap();
        for mode in [AppendMode::Buffered, AppendMode::Mmap, AppendMode::Dma] {
            let path = dir.path().join(format!("{mode:?}"));
            let mut file = match ProbeFile::create(&path, 1 << 20, mode, 64 << 10) {
                Err(error) if error.kind() == io::ErrorKind::Unsupported && mode == AppendMode::Dma => continue,
                file => file.unwrap(),
            };
            file.write_zeros(0, 128 << 10).unwrap();
            file.commit(4096, 8192, SyncCall::ODsync).unwrap();
            file.commit(64 << 10, 64 << 10, SyncCall::Fdatasync).unwrap();
            let bytes = std::fs::read(&path).unwrap();
            assert_eq!(bytes.len(), 1 << 20);
            assert!(bytes[..4096].iter().all(|byte| *byte == 0), "{mode:?}");
            assert_ne!(bytes[4096..8192], bytes[8192..12288], "{mode:?}");
            assert!(bytes[12288..64 << 10].iter().all(|byte| *byte == 0), "{mode:?}");
            assert!(bytes[64 << 10..128 << 10].chunks(8).all(|word| word != [0; 8]), "{mode:?}");
            assert!(bytes[128 << 10..].iter().all(|byte| *byte == 0), "{mode:?}");
            assert_eq!(file.read(4096, 8192).unwrap(), 8192);
        }
    }

    #[test]
    fn past_the_page_cache_a_batch_is_the_blocks_it_lies_in() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = match ProbeFile::create(&dir.path().join("log"), 64 << 10, AppendMode::Dma, 4096) {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => return,
            file => file.unwrap(),
        };
        assert_eq!(file.next_batch(1024, 1024), (0, 0..4096));
        assert_eq!(file.next_batch(3072, 2048), (0, 0..8192));
        assert_eq!(file.next_batch(8192, 4096), (8192, 0..4096));
    }
}
