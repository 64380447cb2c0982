//! Read side of the commit log: its segments as read-only views, shared by all cores.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use memmap2::{Mmap, MmapOptions};

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

    /// Is this range in the page cache?
    pub fn is_resident(&self, at: PhyOffset, len: u64) -> bool {
        residency::is_resident(&self.file, self.map.as_ptr(), at.since(self.start), len)
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
