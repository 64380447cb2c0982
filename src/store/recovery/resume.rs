//! `kerolox/recovery`: how far a recovery got, so that one that is killed goes on there. Ours alone (rule R18).
//!
//! Saved at a bounded rate, and only what is on stable storage by then: log, units and index entries before the position.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::super::layout::Layout;
use super::super::open_error::{OpenError, io_at};
use super::super::quarantine::nonzero_ranges;
use super::super::queues::QueueView;
use super::store_time::is_credible;
use crate::io::{Segment, SharedMap, read_if_present, remove_if_present, replace_keeping_old};
use crate::log::{Checksums, ScanEnd, Scanned, SegmentScan};
use crate::store::clean_stop::found_at_start;
use crate::store::progress::{CleanStop, Progress};
use crate::types::{PhyOffset, Timestamp};

/// How often a long recovery tells how far it is.
pub const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);
/// Progress is saved no more often, and at most a tenth of the time goes into it.
pub const SAVE_INTERVAL: Duration = Duration::from_secs(5);

/// What a recovery found that says who wrote last. Another broker that ran in between changes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Began {
    /// Content of the abort file, if it was there.
    pub abort: Option<String>,
    /// What we saved last; none in a store that Java wrote.
    pub progress: Option<Progress>,
}

/// Where a recovery may go on.
pub struct Resumable<'a> {
    /// Where it would start otherwise.
    pub start: PhyOffset,
    pub log_end: PhyOffset,
    pub segments: &'a [Arc<Segment>],
    pub checksums: Checksums,
}

impl Resumable<'_> {
    /// Does the log have the beginning of something there: a whole record or blank of that place, or nothing any more to
    /// the end of its segment? Elsewhere a scan would end, or step over good records.
    fn holds(&self, at: PhyOffset) -> io::Result<bool> {
        if !(self.start..=self.log_end).contains(&at) {
            return Ok(false);
        }
        let Some(segment) = self.segments.iter().find(|segment| (segment.start()..segment.end()).contains(&at)) else {
            return Ok(at == self.log_end);
        };
        match SegmentScan::new(segment.bytes(), segment.start(), at, self.checksums).step() {
            Scanned::Record(_) | Scanned::End(ScanEnd::Rolled { .. }) => Ok(true),
            Scanned::End(ScanEnd::Torn { .. }) => Ok(false),
            Scanned::End(ScanEnd::Clean { .. }) => {
                let from = at.since(segment.start());
                Ok(nonzero_ranges(segment, from, segment.bytes().len() as u64)?.is_empty())
            }
        }
    }
}

/// What is known of a recovery that did not come to its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reached {
    pub began: Began,
    /// Where its scan began.
    pub from: u64,
    /// A place of a record, or the end of the log: everything from `from` to here was scanned and is in the derived files.
    pub at: u64,
    /// Newest store time of those records, ms.
    pub stored_at: i64,
    /// What the derived files held.
    pub derived: CleanStop,
}

impl Reached {
    pub fn from(&self) -> PhyOffset {
        PhyOffset(self.from)
    }

    pub fn at(&self) -> PhyOffset {
        PhyOffset(self.at)
    }

    pub fn stored_at(&self) -> Timestamp {
        Timestamp(self.stored_at)
    }

    /// What an earlier recovery reached, if a scan from `start` on may go on there: nothing that it built is missing.
    /// A file that cannot be read, or is of another recovery, costs time, nothing else.
    pub fn load(
        layout: &Layout,
        began: &Began,
        place: &Resumable<'_>,
        queues: &[Arc<QueueView>],
        index: &[Arc<SharedMap>],
    ) -> Result<Option<Reached>, OpenError> {
        let path = layout.recovery();
        let bytes = read_if_present(&path).map_err(io_at(&path))?;
        let reached: Option<Reached> = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let Some(reached) = reached else { return Ok(None) };
        if reached.began != *began {
            tracing::warn!(path = %path.display(), "of an earlier recovery, and another broker has run since; removed");
            Reached::forget(layout)?;
            return Ok(None);
        }
        let is_there = place.holds(reached.at()).map_err(io_at(&layout.commitlog()))?;
        Ok(Some(reached).filter(|reached| {
            let found = found_at_start(queues, index);
            is_there
                && is_credible(reached.stored_at())
                && reached.from() <= place.start
                && found.queues >= reached.derived.queues
                && found.units >= reached.derived.units
                && found.index_end >= reached.derived.index_end
        }))
    }

    pub fn save(&self, layout: &Layout) -> Result<(), OpenError> {
        let path = layout.recovery();
        let bytes = serde_json::to_vec(self).expect("plain numbers serialise");
        replace_keeping_old(&path, &bytes).map_err(io_at(&path))
    }

    /// The recovery is over.
    pub fn forget(layout: &Layout) -> Result<(), OpenError> {
        let path = layout.recovery();
        let mut bak = path.as_os_str().to_owned();
        bak.push(crate::format::names::BACKUP_SUFFIX);
        for path in [path, bak.into()] {
            remove_if_present(&path).map_err(io_at(&path))?;
        }
        Ok(())
    }
}

/// When to save.
#[derive(Debug)]
pub struct Pace {
    interval: Duration,
    next: Instant,
}

impl Pace {
    pub fn new(interval: Duration) -> Pace {
        Pace { interval, next: Instant::now() + interval }
    }

    pub fn is_due(&self) -> bool {
        Instant::now() >= self.next
    }

    /// A save that began then is over. An interval of nothing means each time that it is asked.
    pub fn saved(&mut self, began: Instant) {
        let rest = if self.interval.is_zero() { self.interval } else { self.interval.max(began.elapsed() * 9) };
        self.next = Instant::now() + rest;
    }
}
