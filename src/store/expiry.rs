//! Expiry: looks at the disks, and lets go of the oldest segments of the log when `log::Retention` says so; the consume
//! queues and the index follow. A task on the control core; what blocks is done on the helper thread.
//!
//! A segment goes in this order: its name, the folder that named it (synced, so that a loss of power leaves no hole), its
//! place in the list, so that nobody finds it any more, and at last its bytes: once no reader has it, piece by piece.
//! Readers that have it read on; the last of them must not pay for unmapping and freeing a gibibyte on its core, so a
//! share of the segment stays here until it is the only one.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::disk_watch::{DiskWatch, StorePlace};
use super::durable::DurableUpTo;
use super::index_builder::IndexBuilder;
use super::shared::Shared;
use super::submit::LocalWake;
use crate::io::{Blocking, Segment, UnlinkedFile, fsync_dir, read_tail};
use crate::log::{DiskLevel, Oldest, Pass, Retention, RetentionRule, Step, last_record};
use crate::types::{PhyOffset, Timestamp};

/// The first pass that the hour brings about, after the start (store.md 9.1).
const FIRST_PASS_MS: u64 = 60_000;
/// While the disk is too full, or a deleted segment is held, it is looked at as often as that, in ms.
const LOOK_MS: u64 = 1000;
/// Until a pass is tried again that found units of the oldest segment not synced, in ms.
const UNSYNCED_RETRY_MS: u64 = 1500;
/// How much of a deleted segment is given back at a time.
const FREE_LEN: u64 = 64 << 20;
/// How much of a segment's end is searched for its last record, at first and at most: a blank and a record of the longest
/// kind fit the last.
const TAIL_LENS: [u64; 3] = [64 << 10, 1 << 20, 32 << 20];

/// Checked settings, all in ms but the rule.
#[derive(Clone, Copy, Debug)]
pub struct ExpirySettings {
    pub rule: RetentionRule,
    pub check_interval_ms: u64,
    pub file_pause_ms: u64,
    pub held_report_ms: u64,
    pub retry_ms: u64,
}

/// Told when the log has let go of its beginning: every shard is to trim its queues.
pub type OnLogMoved = Box<dyn Fn()>;

/// Lives on the control core.
pub struct Expiry {
    shared: Arc<Shared>,
    blocking: Blocking,
    settings: ExpirySettings,
    /// One a shard.
    durable_up_to: Vec<DurableUpTo>,
    index: Rc<IndexBuilder>,
    on_log_moved: OnLogMoved,
    retention: RefCell<Retention>,
    /// Away on the helper thread while it looks.
    disks: RefCell<Option<DiskWatch>>,
    place: StorePlace,
    held: RefCell<Vec<Held>>,
    /// When the newest record of a segment was stored; the oldest segment is asked about again and again.
    age: Cell<Option<(PhyOffset, Timestamp)>>,
    /// Where the log began when queues and index last followed.
    trimmed_to: Cell<PhyOffset>,
    /// It was said that segments stay since derived data is in doubt.
    told_doubt: Cell<bool>,
    /// Does [`Expiry::trim_queues`] run?
    trimming: Cell<bool>,
    asked: Cell<bool>,
    asked_wake: LocalWake,
}

/// A deleted segment whose bytes are still there.
struct Held {
    segment: Arc<Segment>,
    file: Option<UnlinkedFile>,
    since_ms: u64,
    is_told: bool,
}

impl Expiry {
    pub fn new(
        shared: Arc<Shared>,
        blocking: Blocking,
        settings: ExpirySettings,
        (disks, place): (DiskWatch, StorePlace),
        durable_up_to: Vec<DurableUpTo>,
        index: Rc<IndexBuilder>,
        on_log_moved: OnLogMoved,
    ) -> Rc<Expiry> {
        Rc::new(Expiry {
            shared,
            blocking,
            settings,
            durable_up_to,
            index,
            on_log_moved,
            retention: RefCell::new(Retention::new(settings.rule)),
            disks: RefCell::new(Some(disks)),
            place,
            held: RefCell::default(),
            age: Cell::new(None),
            trimmed_to: Cell::new(PhyOffset(0)),
            told_doubt: Cell::new(false),
            trimming: Cell::new(false),
            asked: Cell::new(false),
            asked_wake: LocalWake::default(),
        })
    }

    /// Somebody asks for expired segments to be deleted: a pass runs at once, and those after it are due whatever the hour.
    pub fn delete_expired(&self) {
        self.retention.borrow_mut().ask();
        self.asked.set(true);
        self.asked_wake.wake();
    }

    /// Somebody asks for consume queue and index files that lead to nothing to be deleted: shards are told, and index files
    /// are gone when this ends.
    pub async fn trim_queues(self: Rc<Self>) {
        // However many ask, one at a time: that one does it for all.
        if self.trimming.replace(true) {
            return;
        }
        (self.on_log_moved)();
        self.index.expire(self.shared.segments.min()).await;
        self.trimming.set(false);
    }

    /// Runs until the executor ends.
    pub async fn run(self: Rc<Self>) {
        let interval = self.settings.check_interval_ms;
        let started = crate::io::steady_ms();
        let mut next_pass = started + FIRST_PASS_MS.max(interval);
        let mut last_pass: Option<u64> = None;
        loop {
            self.look().await;
            let level = self.level();
            let now = crate::io::steady_ms();
            if level >= DiskLevel::Clean {
                // Space cannot wait for the first pass.
                next_pass = next_pass.min(last_pass.map_or(now, |last| last + interval));
            }
            if self.asked.take() || now >= next_pass {
                last_pass = Some(now);
                next_pass = match self.pass_if_due(level).await {
                    Ok(()) => now + interval,
                    Err(Stuck::Failed) => now + self.settings.retry_ms,
                    // What is in doubt is not synced any sooner for being asked again.
                    Err(Stuck::Unsynced) if self.shared.doubt().is_some() => {
                        if !self.told_doubt.replace(true) {
                            tracing::warn!(
                                "expired segments stay: what leads to their messages is in doubt; restart the node"
                            );
                        }
                        now + interval
                    }
                    Err(Stuck::Unsynced) => now + interval.min(UNSYNCED_RETRY_MS),
                };
                self.look().await;
            }
            self.free_held().await;
            let pause = if self.shared.disk_full().is_some() || !self.held.borrow().is_empty() {
                LOOK_MS.min(interval)
            } else {
                interval
            };
            crate::io::within(Duration::from_millis(pause), self.asked_wake.wait()).await;
        }
    }

    /// Looks at the disks, and lets every core know whether messages are taken.
    async fn look(&self) {
        let Some(mut disks) = self.disks.borrow_mut().take() else { return };
        let (place, shared) = (self.place.clone(), Arc::clone(&self.shared));
        let disks = self
            .blocking
            .run(move || {
                place.check(&shared);
                disks.look();
                disks
            })
            .await;
        disks.publish(&self.shared);
        *self.disks.borrow_mut() = Some(disks);
    }

    /// Level of the fullest disk, not counting what will be free once readers let go of it.
    fn level(&self) -> DiskLevel {
        let pending = self.held.borrow().iter().filter_map(|held| held.file.as_ref()).map(UnlinkedFile::len).sum();
        self.disks.borrow().as_ref().map_or(DiskLevel::Fine, |disks| disks.level(pending))
    }

    async fn pass_if_due(&self, level: DiskLevel) -> Result<(), Stuck> {
        let now = crate::io::now();
        let local_s = now.0.div_euclid(1000) + i64::from(crate::io::utc_offset_s(now));
        let hour = (local_s.rem_euclid(86_400) / 3600) as u32;
        let pass = self.retention.borrow_mut().begin(hour, level);
        let done = match pass {
            Some(pass) => self.pass(pass, level).await,
            None => Ok(()),
        };
        // At first also what an earlier run left behind that ended between the two.
        let log_min = self.shared.segments.min();
        if log_min > self.trimmed_to.replace(log_min) {
            (self.on_log_moved)();
            self.index.expire(log_min).await;
        }
        done
    }

    /// Deletes segments from the oldest on until one stays.
    async fn pass(&self, mut pass: Pass, level: DiskLevel) -> Result<(), Stuck> {
        let mut level = level;
        loop {
            let (oldest, is_only) = {
                let segments = self.shared.segments.all();
                let Some(oldest) = segments.first() else { return Ok(()) };
                (Arc::clone(oldest), segments.len() == 1)
            };
            let is_needed = is_only || oldest.end() > self.shared.flushed().min(self.shared.confirm());
            let state = if is_needed {
                Oldest::Needed
            } else {
                let stored_at = self.newest_stored_at(&oldest).await?;
                let durable = self.durable_up_to.iter().map(|up_to| up_to.load(Ordering::Acquire)).min();
                Oldest::Idle { stored_at, is_synced: durable.is_none_or(|durable| stored_at.0 < durable) }
            };
            match pass.step(state, crate::io::now(), level) {
                Step::Delete { forced } => self.delete(oldest, forced, &pass).await?,
                Step::AwaitSync => {
                    self.shared.ask_queue_sync();
                    return Err(Stuck::Unsynced);
                }
                Step::End => return Ok(()),
            }
            self.free_held().await;
            crate::io::sleep(Duration::from_millis(self.settings.file_pause_ms)).await;
            self.look().await;
            level = self.level();
        }
    }

    /// When the newest record of a segment was stored; when the file was changed, if its end is damaged.
    async fn newest_stored_at(&self, segment: &Arc<Segment>) -> Result<Timestamp, Stuck> {
        let start = segment.start();
        if let Some((known, stored_at)) = self.age.get()
            && known == start
        {
            return Ok(stored_at);
        }
        let path = segment.path().to_owned();
        let end = segment.end();
        let found = self.blocking.run(move || {
            let mut changed = Timestamp(0);
            for len in TAIL_LENS {
                let (tail, modified) = read_tail(&path, len)?;
                changed = modified;
                if let Some(last) = last_record(&tail, PhyOffset(end.0 - tail.len() as u64)) {
                    return Ok(last.store_timestamp());
                }
                if (tail.len() as u64) < len {
                    break;
                }
            }
            tracing::warn!(path = %path.display(), "no last record found; the file's own time stands for its age");
            Ok::<_, std::io::Error>(changed)
        });
        let stored_at = found.await.map_err(|error| {
            tracing::error!(path = %segment.path().display(), %error, "the age of a segment cannot be told; it stays");
            Stuck::Failed
        })?;
        self.age.set(Some((start, stored_at)));
        Ok(stored_at)
    }

    async fn delete(&self, segment: Arc<Segment>, forced: bool, pass: &Pass) -> Result<(), Stuck> {
        let start = segment.start();
        let (path, shared) = (segment.path().to_owned(), Arc::clone(&self.shared));
        let deleted = self.blocking.run(move || {
            let file = UnlinkedFile::remove(&path)?;
            // A hole would keep the node from starting: each name is gone for good before the next goes.
            let synced = path.parent().map_or(Ok(()), fsync_dir);
            shared.segments.remove_oldest(start);
            Ok::<_, std::io::Error>((file, synced))
        });
        let path = segment.path().display();
        let (file, synced) = deleted.await.map_err(|error| {
            tracing::error!(%path, %error, retry_ms = self.settings.retry_ms, "an expired segment cannot be deleted");
            Stuck::Failed
        })?;
        let counters = &self.shared.counters;
        if forced { &counters.segments_forced } else { &counters.segments_expired }.add(1);
        tracing::info!(%path, forced, trigger = ?pass.trigger(), "segment deleted");
        let synced = synced.map_err(|error| {
            tracing::error!(%path, %error, "the folder of a deleted segment cannot be synced");
            Stuck::Failed
        });
        self.held.borrow_mut().push(Held { segment, file, since_ms: crate::io::steady_ms(), is_told: false });
        synced
    }

    /// Gives back the bytes of deleted segments that nobody reads any more, and reports those that are held for long.
    async fn free_held(&self) {
        let all = std::mem::take(&mut *self.held.borrow_mut());
        let mut kept = Vec::new();
        for mut held in all {
            // No list names it, so the count cannot grow again.
            if Arc::strong_count(&held.segment) == 1 {
                self.free(held).await;
                continue;
            }
            let held_ms = crate::io::steady_ms().saturating_sub(held.since_ms);
            if held_ms >= self.settings.held_report_ms && !std::mem::replace(&mut held.is_told, true) {
                self.shared.counters.segments_held.add(1);
                let readers = Arc::strong_count(&held.segment) - 1;
                tracing::warn!(path = %held.segment.path().display(), readers, held_ms, "a deleted segment is still being read; its space is not free yet");
            }
            kept.push(held);
        }
        self.held.borrow_mut().append(&mut kept);
    }

    async fn free(&self, held: Held) {
        let Held { segment, file, .. } = held;
        // Unmapped first: what is given back below must not be mapped.
        self.blocking.run(move || drop(segment)).await;
        let Some(mut file) = file else { return };
        while !file.is_empty() {
            let shortened = self.blocking.run(move || {
                let done = file.shorten(FREE_LEN);
                (file, done)
            });
            let (left, done) = shortened.await;
            if let Err(error) = done {
                tracing::warn!(%error, "a deleted segment cannot be shortened; it is freed as a whole");
                self.blocking.run(move || drop(left)).await;
                return;
            }
            file = left;
        }
    }
}

/// Why a pass could not go on, and is to be tried again.
enum Stuck {
    /// Something failed; it is in the log.
    Failed,
    /// Units of the oldest segment's messages are not on stable storage yet; that was asked for.
    Unsynced,
}

#[cfg(test)]
mod tests;
