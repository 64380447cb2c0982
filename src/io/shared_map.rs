//! A mapped file that one core writes and every core may read: consume queues, index files, log segments in mmap mode.
//!
//! No descriptor is kept: a store has a file for every queue, and the mapping is enough for all but what is rare.
//!
//! Who writes which byte when is settled above: the owner writes behind a published end, readers stay before it.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{Advice, MmapOptions, MmapRaw};

use super::disk::{self, Change};
use super::guard::{BrokenMap, Guard};
use super::read_file::ReadFile;
use super::{files, residency};

const PAGE_LEN: u64 = 4096;

/// The file, its mapping, and how far its blocks are reserved. Stores never go beyond that, so a full disk shows as an
/// error of [`SharedMap::reserve`] and never as SIGBUS.
#[derive(Debug)]
pub struct SharedMap {
    path: PathBuf,
    /// Device and inode of what is mapped.
    id: (u64, u64),
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
        let meta = file.metadata()?;
        let (found, id) = (meta.len(), (meta.dev(), meta.ino()));
        if found == 0 {
            disk::resize(&file, path, len)?;
        } else if found != len {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{} is {found} bytes long, {len} expected", path.display()),
            ));
        }
        let map = MmapOptions::new().map_raw(&file)?;
        // A fault is to bring in its own page and not all that the device reads ahead: in these files, most of which are
        // mostly holes, that is megabytes of zeros for each. Only a hint.
        let _ = map.advise(Advice::Random);
        #[cfg(test)]
        super::tap::mapped(path, map.as_ptr());
        let guard = Guard::over(map.as_ptr(), map.len());
        Ok(SharedMap { path: path.to_owned(), id, map, guard, reserved: AtomicU64::new(0) })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the mapped file once more. The mapping keeps its inode and the names above it in memory, so this waits for
    /// no disk.
    ///
    /// # Errors
    /// `NotFound` if its path does not name it any more.
    fn reopen(&self, open: impl FnOnce(&Path) -> io::Result<File>) -> io::Result<File> {
        let file = open(&self.path)?;
        let meta = file.metadata()?;
        if (meta.dev(), meta.ino()) == self.id {
            return Ok(file);
        }
        Err(io::Error::new(io::ErrorKind::NotFound, "the file was replaced by another one"))
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
        let file = self.reopen(disk::open_to_write)?;
        match disk::reserve(&file, &self.path, from, to) {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => self.write_back(&file, from, to)?,
            done => done?,
        }
        self.reserved.store(to, Ordering::Release);
        Ok(())
    }

    /// As [`SharedMap::reserve`], and has what is reserved anew in memory and ready for stores, so that the owner's core does
    /// not stop for it; what lies before `used`, and was stored long ago, is left where it is. Blocking.
    ///
    /// # Errors
    /// The reservation's own.
    pub fn reserve_in_memory(&self, used: u64, to: u64) -> io::Result<()> {
        let before = self.reserved();
        self.reserve(to)?;
        // A hint: where the kernel does not take it, the stores bring the pages in.
        let from = before.max(used) / PAGE_LEN * PAGE_LEN;
        if let Some(len) = self.reserved().checked_sub(from).filter(|len| *len > 0) {
            let _ = self.map.advise_range(Advice::PopulateWrite, from as usize, len as usize);
        }
        Ok(())
    }

    /// Gives a range its blocks on a file system without `fallocate`, by writing what it holds.
    fn write_back(&self, file: &File, from: u64, to: u64) -> io::Result<()> {
        use std::os::unix::fs::FileExt;
        let mut page = [0u8; 4096];
        let mut at = from;
        while at < to {
            let part = (to - at).min(4096) as usize;
            file.read_exact_at(&mut page[..part], at)?;
            disk::write_at(file, &self.path, &page[..part], at)?;
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
        !self.guard.is_broken() && residency::is_filled(self.map.as_ptr(), at as u64, len as u64)
    }

    /// The file, to read what is not in memory.
    ///
    /// # Errors
    /// No descriptor is left, or the file has no name any more.
    pub fn to_read(&self) -> io::Result<ReadFile> {
        Ok(ReadFile::of(self.reopen(|path| File::open(path))?, &self.path))
    }

    /// The file, to read past the mapping on the helper thread: that waits for the disk without a fault, sees what the
    /// owner has stored, and has errors to give. Blocking.
    ///
    /// # Errors
    /// As [`SharedMap::to_read`].
    pub fn to_read_blocking(&self) -> io::Result<File> {
        self.reopen(|path| File::open(path))
    }

    /// The last byte at or behind `from` that is not zero. Blocking; reads only what was ever written.
    pub fn last_nonzero(&self, from: usize) -> io::Result<Option<usize>> {
        let ranges = files::written_ranges(&self.reopen(|path| File::open(path))?, from as u64, self.map.len() as u64)?;
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
        disk::sync_map(&self.map, &self.path)
    }

    /// Tells a watching test; a store through a mapping cannot fail.
    fn note_store(&self) {
        let _ = disk::ask(&Change::Store { path: &self.path });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: u64 = 64 << 10;

    /// Descriptors of this process that are of this file.
    fn descriptors_of(path: &Path) -> usize {
        let entries = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        entries.filter(|entry| std::fs::read_link(entry.path()).is_ok_and(|file| file.starts_with(path))).count()
    }

    #[test]
    fn no_descriptor_is_kept_and_all_that_needs_one_still_works() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("queue").join("00000000000000000000");
        let map = SharedMap::open(&path, LEN).unwrap();
        assert!(!map.is_resident(4090, 4), "never touched");
        map.reserve(8192).unwrap();
        // SAFETY: the test owns the file.
        unsafe { map.write(4090, b"unit") };
        map.sync().unwrap();
        assert!(map.is_resident(4090, 4) && map.is_resident(0, 0));
        assert_eq!(map.last_nonzero(0).unwrap(), Some(4093));
        assert_eq!(descriptors_of(dir.path()), 0);
        assert_eq!(std::fs::read(&path).unwrap()[4090..4094], *b"unit");
    }

    #[test]
    fn what_is_reserved_is_in_memory_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("00000000000000000000");
        let map = SharedMap::open(&path, 6 << 20).unwrap();
        let pages = || (0..map.len()).step_by(4096).filter(|at| map.is_resident(*at, 1)).count();
        map.reserve_in_memory(0, 8192).unwrap();
        assert!(map.is_resident(0, 8192));
        // SAFETY: the test owns the file.
        unsafe { map.write(20, b"unit") };
        assert_eq!(pages(), 2);
        map.reserve_in_memory(24, 10_000).unwrap();
        assert_eq!((map.bytes(20, 4), pages()), (b"unit".as_slice(), 3));
    }

    #[test]
    fn what_was_stored_before_the_file_was_opened_stays_on_the_disk() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("00000000000000000000");
        let used = 20 * 4096 + 24;
        std::fs::write(&path, vec![1; used]).unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        file.set_len(6 << 20).unwrap();
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        let map = SharedMap::open(&path, 6 << 20).unwrap();
        if map.is_resident(0, 1) {
            eprintln!("this file system keeps its files in memory; nothing is shown");
            return;
        }
        map.reserve_in_memory(used as u64, used as u64 + 4096).unwrap();
        assert!(map.is_resident(used, 4096));
        assert!((0..20).all(|page| !map.is_resident(page * 4096, 1)));
    }

    #[test]
    fn another_file_in_its_place_is_not_taken_for_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("00000000000000000000");
        let map = SharedMap::open(&path, LEN).unwrap();
        std::fs::rename(&path, dir.path().join("kept")).unwrap();
        std::fs::write(&path, [1; LEN as usize]).unwrap();
        for refused in [map.reserve(4096).unwrap_err(), map.last_nonzero(0).unwrap_err()] {
            assert_eq!(refused.kind(), io::ErrorKind::NotFound, "{refused}");
        }
        std::fs::remove_file(&path).unwrap();
        assert_eq!(map.reserve(4096).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
