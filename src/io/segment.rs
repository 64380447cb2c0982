//! Read side of the commit log: its segments as read-only views, shared by all cores.

use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use memmap2::{Mmap, MmapOptions};
use rustix::fs::Advice;

use super::residency;
use crate::types::PhyOffset;

/// One segment of the log, mapped read-only.
#[derive(Debug)]
pub struct Segment {
    start: PhyOffset,
    path: PathBuf,
    file: File,
    map: Mmap,
}

impl Segment {
    /// Maps the segment that starts at `start`. Blocking.
    pub fn open(path: &Path, start: PhyOffset) -> io::Result<Segment> {
        let file = File::open(path)?;
        // SAFETY: nobody shortens a segment while the store's lock is held; bytes before the appended end, the only
        // ones that readers look at, do not change.
        let map = unsafe { MmapOptions::new().map(&file)? };
        Ok(Segment { start, path: path.to_owned(), file, map })
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

    /// All bytes of the segment.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// The bytes `[at, at + len)` of the log, or nothing if they leave the segment.
    pub fn slice(&self, at: PhyOffset, len: usize) -> Option<&[u8]> {
        let from = usize::try_from(at.0.checked_sub(self.start.0)?).ok()?;
        self.map.get(from..from.checked_add(len)?)
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
        // SAFETY: the range lies in the live mapping of a file, shared and read-only.
        unsafe {
            let start = self.map.as_ptr().add(from as usize).cast_mut();
            let _ = rustix::mm::madvise(start.cast(), len as usize, rustix::mm::Advice::LinuxDontNeed);
        }
        let _ = rustix::fs::fadvise(&self.file, from, NonZeroU64::new(len), Advice::DontNeed);
    }

    /// Is this range in the page cache?
    pub fn is_resident(&self, at: PhyOffset, len: u64) -> bool {
        residency::is_resident(&self.file, self.map.as_ptr(), at.since(self.start), len)
    }
}

/// The segments there are, oldest first; the writer core replaces the list when it rolls, any core reads it.
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
        let mut list = self.list.load().as_ref().clone();
        list.push(segment);
        self.list.store(Arc::new(list));
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
