//! Finding the log's true end and making the derived data agree with it. Source: store.md 8, rules R2 to R7.
//!
//! [`load`] says what is on the disk. The [`scan`] starts at a safe point (checkpoint time, flushed position, end of the
//! index), checks every record, and gives each a second chance to be dispatched ([`queues`], [`index`]): a unit that is
//! there already is compared, a missing one is written. If a queue turns out to lack units from before the scan, the whole
//! log is scanned. Bad places with good ones behind them, or below what was flushed, are [`damage`]: copied to quarantine
//! and stepped over. Only a torn tail is [`cut`], and what is cut is copied first. Everything that was found or written is
//! synced before anybody builds on it: after a kill it may be in the page cache alone. How far a long recovery got is saved,
//! so that one that is killed can [`resume`].

mod cut;
mod damage;
mod index;
mod load;
mod queues;
mod rebuild;
mod resume;
mod scan;
mod store_time;
mod unit_files;

use std::sync::Arc;
use std::time::Duration;

use super::births::Births;
use super::layout::Layout;
use super::open_error::OpenError;
use super::opening::Opening;
use super::quarantine::Region;
use super::queues::QueueView;
use super::shared::StoreSettings;
use crate::format::checkpoint::Checkpoint;
use crate::format::config_files::TopicsFile;
use crate::format::record::RecordView;
use crate::io::{Segment, SharedMap};
use crate::types::{PhyOffset, Timestamp};

use cut::{cut_tail, sync_segments};
use index::{IndexRebuild, newest_indexed};
use queues::QueueRebuild;
use rebuild::Rebuild;
use resume::{Pace, Reached, Resumable};
use scan::LogScan;

pub use load::{Ends, load_index, load_queues, set_minimums};
pub use queues::{is_light, is_of_system};
pub use resume::{Began, SAVE_INTERVAL};
pub use store_time::is_credible;
pub use unit_files::store_unit;

/// What a recovery works on.
pub struct Recovery<'a> {
    pub layout: &'a Layout,
    pub settings: &'a StoreSettings,
    pub segments: &'a [Arc<Segment>],
    pub checkpoint: &'a Checkpoint,
    /// What was found: a resumed recovery must have found the same.
    pub began: Began,
    /// Saved by us; `None` in a store that Java wrote, in one that another broker has written to since, or if nobody knows.
    pub flushed: Option<PhyOffset>,
    /// Before it nothing can be a torn tail.
    pub flushed_at_least: PhyOffset,
    /// Scan everything: what the derived files lack may be from anywhere in the log.
    pub whole: bool,
    /// All topics there are, if that is sure: after a kill the list may lack the newest.
    pub topics: Option<&'a TopicsFile>,
    pub births: &'a Births,
    pub queues: &'a mut Vec<Arc<QueueView>>,
    pub index: &'a mut Vec<Arc<SharedMap>>,
    /// What is in quarantine.
    pub quarantined: &'a mut Vec<Region>,
    /// How often to save how far it is.
    pub save_interval: Duration,
    /// Told of every step.
    pub opening: &'a Opening,
}

/// Where the log ends.
#[derive(Clone, Copy, Debug)]
pub struct RecoveredLog {
    pub end: PhyOffset,
    pub last_stored_at: Timestamp,
}

/// A queue's messages are not consecutive, and no damage explains it.
struct Gap {
    queue: String,
    expected: u64,
    found: u64,
    phy: PhyOffset,
}

enum ScanError {
    Gap(Gap),
    Open(OpenError),
}

impl From<OpenError> for ScanError {
    fn from(error: OpenError) -> ScanError {
        ScanError::Open(error)
    }
}

/// Scans the log, quarantines what is damaged, cuts a torn tail, and completes consume queues and index.
///
/// # Errors
/// A log that is shorter than what was flushed, a gap in a queue that no damage explains, or what the file system says.
pub fn recover(recovery: Recovery<'_>) -> Result<RecoveredLog, OpenError> {
    let Some(first) = recovery.segments.first() else { return without_segments(&recovery) };
    let (oldest, newest_end) = (first.start(), recovery.segments[recovery.segments.len() - 1].end());
    let start = safe_start(&recovery);
    let Recovery { layout, settings, segments, began, flushed, flushed_at_least, topics, births, .. } = recovery;
    let Recovery { queues, index, quarantined, opening, .. } = recovery;
    let place = Resumable { log_end: newest_end, start, segments, checksums: settings.checksums };
    let reached = Reached::load(layout, &began, &place, queues, index)?;
    let (mut from, at, stored_at) = match reached {
        Some(reached) => (reached.from().max(oldest), reached.at(), reached.stored_at()),
        None => (start, start, Timestamp(0)),
    };
    if at > from {
        tracing::info!(%from, %at, oldest = %oldest, "scanning the commit log from where the last recovery got to");
    } else {
        tracing::info!(%from, oldest = %oldest, "scanning the commit log");
    }
    let mut rebuild = Rebuild::new(
        QueueRebuild::new(layout, settings, segments, (topics, births), queues),
        IndexRebuild::new(layout, settings, index),
    );
    let mut scan = LogScan::new(
        layout,
        segments,
        (flushed, flushed_at_least),
        settings.checksums,
        quarantined,
        began,
        (Pace::new(recovery.save_interval), opening),
    );
    rebuild.start_at(from, at);
    let log = match scan.run(from, at, stored_at, &mut rebuild) {
        Err(ScanError::Gap(gap)) if at > oldest => {
            tracing::warn!(queue = %gap.queue, expected = gap.expected, found = gap.found,
                "a consume queue lacks units from before the scan; scanning the whole log");
            from = oldest;
            rebuild.start_at(oldest, oldest);
            scan.run(oldest, oldest, Timestamp(0), &mut rebuild)
        }
        outcome => outcome,
    };
    let log = log.map_err(|error| match error {
        ScanError::Gap(gap) => {
            OpenError::Gap { queue: gap.queue, expected: gap.expected, found: gap.found, phy: gap.phy }
        }
        ScanError::Open(error) => error,
    })?;
    if flushed_at_least > log.end {
        let (missing, end) = (layout.segment(log.end), log.end);
        return Err(OpenError::Short { missing, end, flushed: flushed_at_least });
    }
    opening.completing()?;
    scan.keep(rebuild.queues.damage.all_mut())?;
    scan.forget_healed(from, log.end, rebuild.queues.damage.all())?;
    cut_tail(layout, segments, log.end, quarantined, opening)?;
    sync_segments(segments, flushed.unwrap_or(oldest), log.end, opening)?;
    rebuild.finish(log.end, opening)?;
    Reached::forget(layout)?;
    let units_written = rebuild.queues.units_written;
    tracing::info!(end = %log.end, records = rebuild.records, units_written, "commit log recovered");
    Ok(log)
}

/// No segment at all: right for a new store, and for no other.
fn without_segments(recovery: &Recovery<'_>) -> Result<RecoveredLog, OpenError> {
    let end = PhyOffset(0);
    if recovery.flushed_at_least > end {
        let flushed = recovery.flushed_at_least;
        return Err(OpenError::Short { missing: recovery.layout.commitlog(), end, flushed });
    }
    if recovery.queues.iter().any(|queue| queue.max().0 > 0) {
        let what = "empty, though there are consume queues; bring the commit log back, or remove the whole store";
        return Err(OpenError::Foreign { path: recovery.layout.commitlog(), what });
    }
    Ok(RecoveredLog { end, last_stored_at: Timestamp(0) })
}

/// The start of a segment from which a scan meets everything that may be unflushed, undispatched or unindexed.
fn safe_start(recovery: &Recovery<'_>) -> PhyOffset {
    let segments = recovery.segments;
    let segment_len = recovery.settings.segment_len;
    let oldest = segments[0].start();
    // Only a store of ours says how far it was flushed; of Java's, the checkpoint may run ahead of the data (J9).
    let Some(flushed) = recovery.flushed.filter(|_| !recovery.whole) else { return oldest };
    let safe_time = recovery.checkpoint.min_timestamp();
    if !is_credible(safe_time) {
        tracing::warn!(
            safe_time = safe_time.0,
            "the checkpoint says that all is safe up to a time far in the future; everything is scanned"
        );
        return oldest;
    }
    let is_safe = |first: RecordView<'_>| first.store_timestamp() <= safe_time && first.store_timestamp().0 > 0;
    let newest_safe = segments.iter().rev().find(|segment| first_record(segment).is_some_and(is_safe));
    let start = newest_safe.map_or(oldest, |segment| segment.start());
    let indexed = match recovery.settings.index {
        true => newest_indexed(recovery.index).unwrap_or(PhyOffset(0)),
        false => PhyOffset(u64::MAX),
    };
    start.min(flushed.segment_start(segment_len)).min(indexed.segment_start(segment_len)).max(oldest)
}

fn first_record(segment: &Segment) -> Option<RecordView<'_>> {
    let view = RecordView::parse(segment.bytes()).ok()?;
    (view.phy() == segment.start()).then_some(view)
}

#[cfg(test)]
mod java_states;
#[cfg(test)]
mod tests;
