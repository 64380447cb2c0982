//! A mapped file that one core writes and every core may read: consume queues, index files, log segments in mmap mode.
//!
//! Who writes which byte when is settled above: the owner writes behind a published end, readers stay before it.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};

use super::disk::{self, Change};
use super::guard::{BrokenMap, Guard};
use super::read_file::ReadFile;
use super::{files, residency};

/// The file, its mapping, and how far its blocks are reserved. Stores never go beyond that, so a full disk shows as an
/// error of [`SharedMap::reserve`] and never as SIGBUS.
#[derive(Debug)]
pub struct SharedMap {
    path: PathBuf,
    file: File,
    map: MmapRaw,
    guard: Guard,
    reserved: AtomicU64,
}

impl SharedMap {
    /// Opens or makes the file with exactly `len` bytes (sparse where new) and maps it. Blocking.
    ///
    /// # Errors
    /// `InvalidData` if the file is there with another length.
    pub fn open(path: &Path, len: u64) -> io::Result<SharedMap> {
        if let Some(dir) = path.parent() {
            disk::make_folders(dir)?;
        }
        let file = disk::open_or_create(path)?;
        let found = file.metadata()?.len();
        if found == 0 {
            disk::resize(&file, path, len)?;
        } else if found != len {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{} is {found} bytes long, {len} expected", path.display()),
            ));
        }
        let map = MmapOptions::new().map_raw(&file)?;
        #[cfg(test)]
        super::tap::mapped(path, map.as_ptr());
        let guard = Guard::over(map.as_ptr(), map.len());
        Ok(SharedMap { path: path.to_owned(), file, map, guard, reserved: AtomicU64::new(0) })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn len(&self) -> usize {
        self.map.len()
    }

    pub fn is_empty(&self) -> bool {
        self.map.len() == 0
    }

    /// Bytes from the start whose blocks are reserved.
    pub fn reserved(&self) -> u64 {
        self.reserved.load(Ordering::Acquire)
    }

    /// Reserves the blocks of the first `to` bytes; content stays. Blocking: run it on the helper thread.
    pub fn reserve(&self, to: u64) -> io::Result<()> {
        let from = self.reserved();
        let to = to.min(self.map.len() as u64);
        if to <= from {
            return Ok(());
        }
        match disk::reserve(&self.file, &self.path, from, to) {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => self.write_back(from, to)?,
            done => done?,
        }
        self.reserved.store(to, Ordering::Release);
        Ok(())
    }

    /// Gives a range its blocks on a file system without `fallocate`, by writing what it holds.
    fn write_back(&self, from: u64, to: u64) -> io::Result<()> {
        use std::os::unix::fs::FileExt;
        let mut page = [0u8; 4096];
        let mut at = from;
        while at < to {
            let part = (to - at).min(4096) as usize;
            self.file.read_exact_at(&mut page[..part], at)?;
            disk::write_at(&self.file, &self.path, &page[..part], at)?;
            at += part as u64;
        }
        Ok(())
    }

    /// Does the mapping no longer show its file, since a part of that was lost or could not be read? What was stored after
    /// that is lost, too.
    pub fn is_broken(&self) -> bool {
        self.guard.is_broken()
    }

    pub(super) fn guard(&self) -> &Guard {
        &self.guard
    }

    /// Runs `access`, which reads [`SharedMap::bytes`] or stores. A fault outside of this, and of [`super::over_faults`],
    /// ends the process.
    ///
    /// # Errors
    /// [`BrokenMap`] if the mapping is broken, now or since earlier: `access` may have seen zeros, and its stores are lost.
    pub fn guarded<R>(&self, access: impl FnOnce() -> R) -> Result<R, BrokenMap> {
        self.guard.run(access)
    }

    /// The bytes `[at, at + len)`. The caller stays before what the owner has published, or is the owner.
    ///
    /// # Panics
    /// If the range leaves the file.
    pub fn bytes(&self, at: usize, len: usize) -> &[u8] {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.map.len()), "read beyond {}", self.path.display());
        // SAFETY: in range of the live mapping. Bytes before the published end are never written again while the
        // process runs, and the owner core does not read and write at once.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().add(at), len) }
    }

    /// Stores `bytes` at `at`.
    ///
    /// # Safety
    /// Only the owner calls it, and no reader holds `[at, at + bytes.len())`: it lies at or behind the published end.
    ///
    /// # Panics
    /// If the range leaves the file or lies beyond the reserved blocks.
    pub unsafe fn write(&self, at: usize, bytes: &[u8]) {
        let end = at.checked_add(bytes.len()).expect("an end fits usize");
        assert!(end as u64 <= self.reserved() && end <= self.map.len(), "write beyond {}", self.path.display());
        self.note_store();
        // SAFETY: in range; the caller keeps readers and other writers away.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.map.as_mut_ptr().add(at), bytes.len()) };
    }

    /// The whole mapping, to be written in place.
    ///
    /// # Safety
    /// Only the owner calls it, nobody else reads or writes the file meanwhile, and stores stay within the reserved
    /// blocks.
    #[expect(clippy::mut_from_ref, reason = "the owner core is the only one that holds it; see the safety contract")]
    pub unsafe fn whole_mut(&self) -> &mut [u8] {
        self.note_store();
        // SAFETY: the mapping is live as long as `self`; exclusiveness is the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.map.as_mut_ptr(), self.map.len()) }
    }

    /// Are these bytes in the page cache, so that reading them does not stop the core, and does the mapping show them?
    pub fn is_resident(&self, at: usize, len: usize) -> bool {
        !self.guard.is_broken() && residency::is_resident(&self.file, self.map.as_ptr(), at as u64, len as u64)
    }

    /// The file, to read what is not in memory.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn to_read(&self) -> io::Result<ReadFile> {
        ReadFile::of(&self.file, &self.path)
    }

    /// Fills `out` from the file at `at`, past the mapping: waits for the disk without a fault, sees what the owner has
    /// stored, and has errors to give. Blocking.
    pub fn read_exact_at(&self, out: &mut [u8], at: u64) -> io::Result<()> {
        use std::os::unix::fs::FileExt;
        self.file.read_exact_at(out, at)
    }

    /// The last byte at or behind `from` that is not zero. Blocking; reads only what was ever written.
    pub fn last_nonzero(&self, from: usize) -> io::Result<Option<usize>> {
        let ranges = files::written_ranges(&self.file, from as u64, self.map.len() as u64)?;
        Ok(ranges.into_iter().rev().find_map(|(at, len)| {
            let last = self.bytes(at as usize, len as usize).iter().rposition(|byte| *byte != 0)?;
            Some(at as usize + last)
        }))
    }

    /// Brings all that was stored onto stable storage. Blocking.
    ///
    /// # Errors
    /// The sync's own, and [`BrokenMap`]: stores were lost.
    pub fn sync(&self) -> io::Result<()> {
        if self.guard.is_broken() {
            return Err(BrokenMap.into());
        }
        disk::sync(&self.file, &self.path)
    }

    /// Tells a watching test; a store through a mapping cannot fail.
    fn note_store(&self) {
        let _ = disk::ask(&Change::Store { path: &self.path });
    }
}
