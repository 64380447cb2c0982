//! Read side of the commit log: its segments as read-only views, shared by all cores.

use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use memmap2::{Mmap, MmapOptions};
use rustix::fs::Advice;

use super::guard::Guard;
use super::read_file::ReadFile;
use super::residency::{self, LastLook};
use crate::types::PhyOffset;

/// One segment of the log, mapped read-only.
#[derive(Debug)]
pub struct Segment {
    start: PhyOffset,
    path: PathBuf,
    file: File,
    map: Mmap,
    guard: Guard,
    last_look: LastLook,
}

impl Segment {
    /// Maps the segment that starts at `start`. Blocking.
    pub fn open(path: &Path, start: PhyOffset) -> io::Result<Segment> {
        let file = File::open(path)?;
        // SAFETY: nobody shortens a segment while the store's lock is held; bytes before the appended end, the only
        // ones that readers look at, do not change.
        let map = unsafe { MmapOptions::new().map(&file)? };
        // What is read is what was asked for: the store itself knows who reads on, and has to know what was not in memory.
        let _ = rustix::fs::fadvise(&file, 0, None, Advice::Random);
        #[cfg(test)]
        super::tap::mapped(path, map.as_ptr());
        let guard = Guard::over(map.as_ptr(), map.len());
        Ok(Segment { start, path: path.to_owned(), file, map, guard, last_look: LastLook::none_at(path) })
    }

    pub fn start(&self) -> PhyOffset {
        self.start
    }

    pub fn end(&self) -> PhyOffset {
        self.start.advance(self.map.len() as u64)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Does the path still name the file that is mapped? Blocking.
    ///
    /// # Errors
    /// That cannot be told.
    pub fn is_named(&self) -> io::Result<bool> {
        let open = self.file.metadata()?;
        match self.path.metadata() {
            Ok(named) => Ok((named.dev(), named.ino()) == (open.dev(), open.ino())),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Does the mapping no longer show its file, since a part of that was lost or could not be read?
    pub fn is_broken(&self) -> bool {
        self.guard.is_broken()
    }

    pub(super) fn guard(&self) -> &Guard {
        &self.guard
    }

    /// All bytes of the segment. For the single reader of a store that is being opened, inside [`super::over_faults`]: a
    /// fault outside of it ends the process.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// The bytes `[at, at + len)` of the log, or nothing if they leave the segment. As with [`Segment::bytes`], for a store
    /// that is being opened.
    pub fn slice(&self, at: PhyOffset, len: usize) -> Option<&[u8]> {
        let from = usize::try_from(at.0.checked_sub(self.start.0)?).ok()?;
        self.map.get(from..from.checked_add(len)?)
    }

    /// Do the bytes `[at, at + len)` of the log lie in this segment?
    pub fn holds(&self, at: PhyOffset, len: u64) -> bool {
        at >= self.start && at.0.checked_add(len).is_some_and(|end| end <= self.end().0)
    }

    /// Hands the bytes `[at, at + len)` of the log to `take`. `None`: they leave the segment, or the mapping is broken, now
    /// or since earlier: `take` may have run and seen zeros, and only a read of the file can tell what is wrong.
    pub fn with<R>(&self, at: PhyOffset, len: usize, take: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let bytes = self.slice(at, len)?;
        self.guard.run(|| take(bytes)).ok()
    }

    /// The segment's file, to read what is not in memory.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn to_read(&self) -> io::Result<ReadFile> {
        Ok(ReadFile::of(self.file.try_clone()?, &self.path))
    }

    /// Bytes of this range that are in the page cache, of whole pages. Blocks no longer than a system call.
    pub fn cached_len(&self, at: PhyOffset, len: u64) -> u64 {
        residency::cached_len(&self.file, self.map.as_ptr(), at.since(self.start), len)
    }

    /// Has the kernel read this range into the page cache. Blocking while the device's queue is full.
    pub fn read_ahead(&self, at: PhyOffset, len: u64) {
        /// The kernel reads no more at a time than the device takes at once, and silently leaves out the rest.
        const PART_LEN: u64 = 128 * 1024;
        let (from, end) = (at.since(self.start), at.since(self.start) + len);
        for part in (from..end).step_by(PART_LEN as usize) {
            let len = NonZeroU64::new(PART_LEN.min(end - part));
            // A hint: without it the reader only waits longer.
            let _ = rustix::fs::fadvise(&self.file, part, len, Advice::WillNeed);
        }
    }

    /// Takes this range out of the page cache, but for pages that are being written. Whoever reads them next waits for
    /// the disk. Blocking.
    pub fn drop_cached(&self, at: PhyOffset, len: u64) {
        let from = at.since(self.start);
        if from.saturating_add(len) > self.map.len() as u64 {
            return;
        }
        // Pages that a mapping shows are not dropped. Taking them out of this one loses nothing: they are the file's, and
        // the next access finds them there again.
        if !self.guard.is_broken() {
            // SAFETY: the range lies in the live mapping of a file, shared and read-only.
            unsafe {
                let start = self.map.as_ptr().add(from as usize).cast_mut();
                let _ = rustix::mm::madvise(start.cast(), len as usize, rustix::mm::Advice::LinuxDontNeed);
            }
        }
        let _ = rustix::fs::fadvise(&self.file, from, NonZeroU64::new(len), Advice::DontNeed);
    }

    /// Is this range in the page cache, and does the mapping show it?
    pub fn is_resident(&self, at: PhyOffset, len: u64) -> bool {
        let is = || residency::is_resident(&self.file, self.map.as_ptr(), &self.last_look, at.since(self.start), len);
        !self.guard.is_broken() && is()
    }
}

/// The segments there are, oldest first: the writer core adds the newest when it rolls, expiry takes the oldest, any core
/// reads.
#[derive(Debug)]
pub struct SegmentSet {
    segment_len: u64,
    list: ArcSwap<Vec<Arc<Segment>>>,
}

impl SegmentSet {
    pub fn new(segment_len: u64, segments: Vec<Arc<Segment>>) -> SegmentSet {
        SegmentSet { segment_len, list: ArcSwap::from_pointee(segments) }
    }

    pub fn segment_len(&self) -> u64 {
        self.segment_len
    }

    /// Adds the newest segment. Called by the writer core alone.
    pub fn push(&self, segment: Arc<Segment>) {
        self.list.rcu(|list| {
            let mut list = list.as_ref().clone();
            list.push(Arc::clone(&segment));
            list
        });
    }

    /// Takes the oldest segment away, if it is the one that starts at `start` and not the last. Who has it goes on reading;
    /// nobody finds it any more. Called by the helper thread alone.
    pub fn remove_oldest(&self, start: PhyOffset) -> Option<Arc<Segment>> {
        let oldest = self.list.load().first().filter(|oldest| oldest.start == start).cloned()?;
        let before = self.list.rcu(|list| {
            let kept = if list.len() > 1 { &list[1..] } else { &list[..] };
            kept.to_vec()
        });
        (before.len() > 1).then_some(oldest)
    }

    /// The segment that holds `at`.
    pub fn find(&self, at: PhyOffset) -> Option<Arc<Segment>> {
        let list = self.list.load();
        let first = list.first()?;
        let index = at.0.checked_sub(first.start.0)? / self.segment_len;
        list.get(usize::try_from(index).ok()?).cloned()
    }

    /// First byte of the oldest segment; 0 if there is none.
    pub fn min(&self) -> PhyOffset {
        self.list.load().first().map_or(PhyOffset(0), |segment| segment.start)
    }

    pub fn all(&self) -> Arc<Vec<Arc<Segment>>> {
        self.list.load_full()
    }
}
