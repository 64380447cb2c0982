//! Walking the log from a safe place to its end, and telling its end from damage (rules R2 and R5).
//!
//! A bad place at or behind the saved flushed position ends the log. Before it, or in a store without that position
//! (Java's) if any whole record follows, it is damage: the region from there to the next whole record, to the segment's
//! end or to the flushed position is stepped over, and later segments are walked as ever.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Instant;

use super::super::layout::Layout;
use super::super::open_error::{OpenError, io_at};
use super::super::opening::Opening;
use super::super::quarantine::{self, Kind, Region};
use super::cut::sync_segments;
use super::damage::Damaged;
use super::queues::Taken;
use super::rebuild::Rebuild;
use super::resume::{Began, PROGRESS_INTERVAL, Pace, Reached};
use super::store_time::NewestTime;
use super::{RecoveredLog, ScanError};
use crate::format::record::RECORD_LEN_MIN;
use crate::io::{Segment, written_ranges};
use crate::log::{
    Checksums, ScanEnd, Scanned, SegmentScan, find_next, find_record, is_cut_short, readable_records, records_by_length,
};
use crate::types::{PhyOffset, Timestamp};

/// The clock is looked at once in so many bytes.
const CLOCK_EVERY: u64 = 1 << 20;
/// So much is read ahead of the scan, in halves.
const READ_AHEAD: u64 = 32 << 20;

/// Of a segment with blocks that read as zeros, since the disk does not give them.
const UNREADABLE: &str = "a part of the file cannot be read, check the disk";

/// The log as it is scanned.
pub struct LogScan<'a> {
    pub layout: &'a Layout,
    pub segments: &'a [Arc<Segment>],
    /// Saved by us; `None` in a store that Java wrote, or if nobody knows. From there on the log may be cut.
    pub flushed: Option<PhyOffset>,
    /// Before it the log is never cut; equal to the above if that is known.
    at_least: PhyOffset,
    began: Began,
    checksums: Checksums,
    /// Everything in quarantine.
    pub list: &'a mut Vec<Region>,
    pub pace: Pace,
    opening: &'a Opening,
    /// Damaged regions that the log still holds as they were copied; ascending.
    known: Vec<Region>,
    /// The list differs from what is saved.
    is_list_changed: bool,
    /// How far the log was synced for the saved progress.
    synced_to: PhyOffset,
}

/// How the walk of one segment ends.
enum Walked {
    /// The log goes on there.
    On(PhyOffset),
    Ended(PhyOffset),
}

/// What a scan has met so far.
struct Walk {
    from: PhyOffset,
    /// Where this process began.
    began_at: PhyOffset,
    newest: NewestTime,
    began: Instant,
    reported: Instant,
    clock_at: PhyOffset,
    ahead_to: PhyOffset,
    read_ahead: Option<ReadAhead>,
}

impl<'a> LogScan<'a> {
    pub fn new(
        layout: &'a Layout,
        segments: &'a [Arc<Segment>],
        (flushed, at_least): (Option<PhyOffset>, PhyOffset),
        checksums: Checksums,
        list: &'a mut Vec<Region>,
        began: Began,
        (pace, opening): (Pace, &'a Opening),
    ) -> LogScan<'a> {
        LogScan {
            layout,
            segments,
            flushed,
            at_least,
            began,
            checksums,
            list,
            pace,
            opening,
            known: Vec::new(),
            is_list_changed: false,
            synced_to: PhyOffset(0),
        }
    }

    /// Scans from `at` on, which is `from` unless an earlier recovery came that far.
    pub fn run(
        &mut self,
        from: PhyOffset,
        at: PhyOffset,
        stored_at: Timestamp,
        rebuild: &mut Rebuild<'_>,
    ) -> Result<RecoveredLog, ScanError> {
        self.find_known(from, at, rebuild)?;
        let now = Instant::now();
        let mut walk = Walk {
            from,
            began_at: at,
            newest: NewestTime::new(stored_at),
            began: now,
            reported: now,
            clock_at: at,
            ahead_to: at,
            read_ahead: None,
        };
        self.synced_to = self.flushed.unwrap_or(from).min(at);
        let mut end = at;
        let segments = self.segments;
        for segment in segments.iter().filter(|segment| segment.end() > at) {
            if segment.start() > end {
                break;
            }
            match self.walk(segment, end, &mut walk, rebuild)? {
                Walked::On(next) => end = next,
                Walked::Ended(at) => {
                    end = at;
                    break;
                }
            }
        }
        rebuild.queues.settle_all()?;
        rebuild.queues.close_ends()?;
        Ok(RecoveredLog { end, last_stored_at: walk.newest.end() })
    }

    /// Which regions on the list need no further look. Those that were passed already are damage of this recovery, too.
    fn find_known(&mut self, from: PhyOffset, at: PhyOffset, rebuild: &mut Rebuild<'_>) -> Result<(), OpenError> {
        self.known.clear();
        for region in self.list.iter().filter(|region| region.is_damaged() && region.start() >= from) {
            if quarantine::is_as_copied(self.layout, self.segments, region).map_err(io_at(&self.layout.quarantine()))? {
                self.known.push(region.clone());
            }
        }
        self.known.sort_by_key(|region| region.phy);
        for region in self.known.iter().filter(|region| region.start() < at) {
            if let Some(segment) = self.segment_of(region.start()) {
                let damaged = self.damaged(segment, region.start(), region.end(), &region.why, rebuild);
                rebuild.queues.damage.add(Damaged { is_listed: true, ..damaged });
            }
        }
        Ok(())
    }

    fn segment_of(&self, at: PhyOffset) -> Option<&'a Arc<Segment>> {
        self.segments.iter().find(|segment| (segment.start()..segment.end()).contains(&at))
    }

    fn walk(
        &mut self,
        segment: &'a Segment,
        from: PhyOffset,
        walk: &mut Walk,
        rebuild: &mut Rebuild<'_>,
    ) -> Result<Walked, ScanError> {
        let mut records = SegmentScan::new(segment.bytes(), segment.start(), from, self.checksums);
        let mut next_known = self.known.partition_point(|region| region.start() < from);
        loop {
            let here = records.at();
            while self.known.get(next_known).is_some_and(|region| region.start() < here) {
                next_known += 1;
            }
            if let Some(region) = self.known.get(next_known).filter(|region| region.start() == here) {
                let damaged = self.damaged(segment, here, region.end(), &region.why, rebuild);
                tracing::info!(phy_offset = %here, len = region.len, copy = %region.copy, "known damage; stepped over");
                records.skip_to(damaged.end);
                let end = damaged.end;
                rebuild.queues.damage.add(Damaged { is_listed: true, ..damaged });
                if end >= segment.end() {
                    return Ok(Walked::On(segment.end()));
                }
                continue;
            }
            if here >= walk.clock_at {
                self.look_at_the_clock(segment, here, walk, rebuild)?;
            }
            let (at, why) = match records.step() {
                Scanned::Record(view) => {
                    let is_flushed = self.flushed.is_none_or(|flushed| here < flushed);
                    // No checksum covers the head of a record. A store of ours never writes an earlier time.
                    if !is_flushed && is_cut_short(&view) {
                        tracing::warn!(path = %segment.path().display(), phy_offset = %here, "properties that end in zeros: not all of the record came to the disk; the log ends here");
                        return Ok(Walked::Ended(here));
                    }
                    if !is_flushed && view.store_timestamp() < walk.newest.at() {
                        tracing::warn!(path = %segment.path().display(), phy_offset = %here, "stored before the message ahead of it: not all of it came to the disk; the log ends here");
                        return Ok(Walked::Ended(here));
                    }
                    if !is_flushed {
                        if rebuild.take(&view)? == Taken::Damaged {
                            tracing::warn!(path = %segment.path().display(), phy_offset = %here, "not all of the record came to the disk; the log ends here");
                            rebuild.queues.damage.forget_from(here);
                            return Ok(Walked::Ended(here));
                        }
                        walk.newest.take(view.store_timestamp(), here);
                        continue;
                    }
                    if rebuild.take(&view)? != Taken::Damaged {
                        walk.newest.take(view.store_timestamp(), here);
                    }
                    continue;
                }
                Scanned::End(ScanEnd::Rolled { next }) => return Ok(Walked::On(next)),
                Scanned::End(ScanEnd::Clean { at }) => (at, "nothing was written there".to_owned()),
                Scanned::End(ScanEnd::Torn { at, why }) => (at, why.to_string()),
            };
            let why = if segment.is_broken() { format!("{why}; {UNREADABLE}") } else { why };
            match self.next_place(segment, at)? {
                None => {
                    if why != "nothing was written there" {
                        tracing::warn!(path = %segment.path().display(), phy_offset = %at, %why, "torn tail; the log ends here");
                    }
                    return Ok(Walked::Ended(at));
                }
                Some(next) => {
                    let damaged = self.damaged(segment, at, next, &why, rebuild);
                    rebuild.queues.damage.add(damaged);
                    if next >= segment.end() {
                        return Ok(Walked::On(segment.end()));
                    }
                    records.skip_to(next);
                }
            }
        }
    }

    /// Where the log goes on behind a bad place; nowhere: it ends there.
    fn next_place(&self, segment: &Segment, at: PhyOffset) -> Result<Option<PhyOffset>, OpenError> {
        match self.flushed {
            Some(flushed) if at >= flushed => Ok(None),
            Some(flushed) => {
                let limit = segment.end().min(flushed);
                let next = find_within(segment, at.advance(1), find_next)?.filter(|next| *next <= limit);
                Ok(Some(next.unwrap_or(limit)))
            }
            None => {
                // A blank alone does not show that the log went on: Java makes files ahead.
                let mut follows = find_within(segment, at.advance(1), find_record)?.is_some();
                for later in self.segments.iter().filter(|later| later.start() > segment.start()) {
                    follows = follows || find_within(later, later.start(), find_record)?.is_some();
                }
                if !follows && at < self.at_least {
                    return Ok(Some(segment.end().min(self.at_least)));
                }
                let next = if follows { find_within(segment, at.advance(1), find_next)? } else { None };
                Ok(follows.then_some(next.unwrap_or(segment.end())))
            }
        }
    }

    fn damaged(
        &self,
        segment: &Segment,
        start: PhyOffset,
        end: PhyOffset,
        why: &str,
        rebuild: &mut Rebuild<'_>,
    ) -> Damaged {
        let (bytes, base) = (segment.bytes(), segment.start());
        let claims = readable_records(bytes, base, start, end);
        let claims = claims.filter_map(|view| rebuild.queues.claim(&view)).collect();
        let counted = records_by_length(bytes, base, start, end);
        Damaged {
            start,
            end,
            why: why.to_owned(),
            claims,
            messages_max: counted.unwrap_or((end.since(start) / u64::from(RECORD_LEN_MIN)).max(1)),
            java_steps_over: counted.is_some(),
            is_listed: false,
        }
    }

    /// Reads ahead, tells how far it is, and saves it, each at its rate.
    fn look_at_the_clock(
        &mut self,
        segment: &Segment,
        at: PhyOffset,
        walk: &mut Walk,
        rebuild: &mut Rebuild<'_>,
    ) -> Result<(), ScanError> {
        walk.clock_at = at.advance(CLOCK_EVERY).min(segment.end());
        while walk.ahead_to < at.advance(READ_AHEAD)
            && let Some(segment) = self.segment_of(walk.ahead_to.max(at))
        {
            let from = walk.ahead_to.max(at);
            let end = from.advance(READ_AHEAD / 2).min(segment.end());
            let thread = walk.read_ahead.get_or_insert_with(ReadAhead::start);
            thread.order(segment, from, end.since(from));
            walk.ahead_to = end;
        }
        let (done, total) = (at.since(walk.from), self.segments.last().map_or(0, |last| last.end().since(walk.from)));
        let rate = at.since(walk.began_at) as f64 / walk.began.elapsed().as_secs_f64();
        let left_s = (total - done) as f64 / rate.max(1.0);
        self.opening.scanned(done >> 20, total >> 20, left_s as u64)?;
        if walk.reported.elapsed() > PROGRESS_INTERVAL {
            walk.reported = Instant::now();
            tracing::info!(%at, "scanned {} of at most {} MiB, {left_s:.0} s left", done >> 20, total >> 20);
        }
        if self.pace.is_due() {
            let began = Instant::now();
            self.save_progress(at, walk, rebuild)?;
            self.pace.saved(began);
        }
        Ok(())
    }

    fn save_progress(&mut self, at: PhyOffset, walk: &Walk, rebuild: &mut Rebuild<'_>) -> Result<(), OpenError> {
        self.keep(rebuild.queues.damage.all_mut())?;
        rebuild.sync(self.opening)?;
        sync_segments(self.segments, self.synced_to, at, self.opening)?;
        self.synced_to = at;
        // A record that is in doubt has to be met again.
        let at = rebuild.queues.first_in_doubt().map_or(at, |doubtful| at.min(doubtful));
        let reached = Reached {
            began: self.began.clone(),
            from: walk.from.0,
            at: at.0,
            stored_at: walk.newest.at().0,
            derived: rebuild.derived(),
        };
        reached.save(self.layout)
    }

    /// Copies the regions that are not on the list, and puts them there.
    pub fn keep(&mut self, damage: &mut [Damaged]) -> Result<(), OpenError> {
        for damaged in damage.iter_mut().filter(|damaged| !damaged.is_listed) {
            let Some(segment) = self.segment_of(damaged.start) else { continue };
            self.opening.step()?;
            let (start, len) = (damaged.start, damaged.end.since(damaged.start));
            let region = quarantine::copy(self.layout, segment, (start, len), &damaged.why, Kind::Damaged)
                .map_err(io_at(&self.layout.quarantine()))?;
            let path = segment.path().display();
            tracing::warn!(%path, phy_offset = %start, len, why = %damaged.why, copy = %region.copy,
                "the log is damaged; the region was copied, stays where it is, and is stepped over");
            if !damaged.java_steps_over {
                tracing::warn!(%path, phy_offset = %start,
                    "a Java broker that recovers this store would cut the log here; keep its messages by staying on this node");
            }
            // What it covers of older ones is part of it.
            let covers =
                |other: &Region| other.is_damaged() && other.start() < region.end() && region.start() < other.end();
            self.list.retain(|other| !covers(other));
            self.list.push(region);
            damaged.is_listed = true;
            self.is_list_changed = true;
        }
        self.save_list()
    }

    /// Takes what a scan of everything from `from` to `end` did not meet any more off the list: the file was restored, or
    /// the place was cut.
    pub fn forget_healed(&mut self, from: PhyOffset, end: PhyOffset, damage: &[Damaged]) -> Result<(), OpenError> {
        let before = self.list.len();
        self.list.retain(|region| {
            let is_met = damage.iter().any(|damaged| damaged.start == region.start() && damaged.end == region.end());
            let stays = region.kind == Kind::Cut || region.start() < from || (is_met && region.start() < end);
            if !stays {
                tracing::info!(phy_offset = region.phy, len = region.len, "no longer damaged");
            }
            stays
        });
        self.is_list_changed |= self.list.len() != before || quarantine::lacks_list(self.layout)?;
        self.save_list()
    }

    fn save_list(&mut self) -> Result<(), OpenError> {
        if std::mem::take(&mut self.is_list_changed) {
            quarantine::save(self.layout, self.list)?;
        }
        Ok(())
    }
}

/// A thread that has the kernel read what the scan comes to next: bringing pages in costs as much as looking at them. It
/// ends with what holds it.
struct ReadAhead {
    orders: SyncSender<(Arc<Segment>, PhyOffset, u64)>,
}

impl ReadAhead {
    fn start() -> ReadAhead {
        let (orders, taken) = sync_channel::<(Arc<Segment>, PhyOffset, u64)>(4);
        let run = move || taken.iter().for_each(|(segment, from, len)| segment.read_ahead(from, len));
        if let Err(error) = std::thread::Builder::new().name("read-ahead".to_owned()).spawn(run) {
            tracing::warn!(%error, "no thread to read ahead; the scan may take longer");
        }
        ReadAhead { orders }
    }

    /// Lost if the thread is behind: the scan then reads for itself.
    fn order(&self, segment: &Arc<Segment>, from: PhyOffset, len: u64) {
        let _ = self.orders.try_send((Arc::clone(segment), from, len));
    }
}

/// What `find` finds at or behind `from`. Blocks reserved and never written are not read.
fn find_within(
    segment: &Segment,
    from: PhyOffset,
    find: impl Fn(&[u8], PhyOffset, PhyOffset) -> Option<PhyOffset>,
) -> Result<Option<PhyOffset>, OpenError> {
    let data_follows = || -> io::Result<bool> {
        let file = fs::File::open(segment.path())?;
        Ok(!written_ranges(&file, from.since(segment.start()), segment.bytes().len() as u64)?.is_empty())
    };
    if from >= segment.end() || !data_follows().map_err(io_at(segment.path()))? {
        return Ok(None);
    }
    Ok(find(segment.bytes(), segment.start(), from))
}
