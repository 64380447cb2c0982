//! How far derived data is on stable storage, as its builder and its flusher know it together.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use super::shared::Shared;

/// Everything derived of a record stored before this time (ms) is on stable storage. `i64::MAX`: all of it.
pub type DurableUpTo = Arc<AtomicI64>;

/// Lives on the core of the builder; what it finds out, others read in `up_to`. Times are store times in ms.
pub struct DurableMark {
    up_to: DurableUpTo,
    /// The oldest of what is being built: some of it may wait for room while a sync begins and ends.
    building: Cell<Option<i64>>,
    /// The oldest of what is stored and not synced.
    unsynced: Cell<Option<i64>>,
    /// The same of what the sync under way covers.
    syncing: Cell<Option<i64>>,
    /// A sync failed: pages may be lost that a later one would not miss, so nothing more counts as durable.
    failed: Cell<bool>,
}

impl DurableMark {
    pub fn new(up_to: DurableUpTo) -> DurableMark {
        let none = || Cell::new(None);
        DurableMark { up_to, building: none(), unsynced: none(), syncing: none(), failed: Cell::new(false) }
    }

    /// Something is to be built whose oldest record was stored then; nothing: it is built.
    pub fn building(&self, oldest: Option<i64>) {
        self.building.set(oldest);
        self.publish();
    }

    /// Something of a record stored at `stored_at` is about to be stored; true: it is older than all that is not synced.
    pub fn stores(&self, stored_at: i64) -> bool {
        let is_oldest = self.unsynced.get().is_none_or(|oldest| stored_at < oldest);
        if is_oldest {
            self.unsynced.set(Some(stored_at));
            self.publish();
        }
        is_oldest
    }

    pub fn is_all_synced(&self) -> bool {
        self.unsynced.get().is_none()
    }

    /// A sync of all that is stored begins. One at a time.
    pub fn sync_begins(&self) {
        if !self.failed.get() {
            self.syncing.set(self.unsynced.take());
        }
    }

    /// It is done.
    pub fn sync_ends(&self) {
        if !self.failed.get() {
            self.syncing.set(None);
            self.publish();
        }
    }

    /// It failed, or something stored was lost.
    pub fn fails(&self) {
        self.failed.set(true);
    }

    fn publish(&self) {
        let oldest = [&self.building, &self.unsynced, &self.syncing].into_iter().filter_map(Cell::get).min();
        let most = if self.failed.get() { self.up_to.load(Ordering::Acquire) } else { i64::MAX };
        self.up_to.store(oldest.unwrap_or(i64::MAX).min(most), Ordering::Release);
    }
}

/// Looks of a flusher without anything new after which it syncs all.
const QUIET_LOOKS: u32 = 3;

/// When all that was built is to be synced: each thorough interval, when somebody asks, and once nothing has come for a few
/// looks, so that a crash of a node that has gone quiet costs no long scan.
pub struct SyncPace {
    last_ms: u64,
    asked: u64,
    quiet_looks: u32,
}

impl SyncPace {
    pub fn new(shared: &Shared) -> SyncPace {
        SyncPace { last_ms: crate::io::steady_ms(), asked: shared.queue_syncs_asked(), quiet_looks: 0 }
    }

    /// Asked once a look; `arrived`: something was built since the last.
    pub fn is_due(&mut self, shared: &Shared, arrived: bool) -> bool {
        self.quiet_looks = if arrived { 0 } else { self.quiet_looks + 1 };
        let asked_before = std::mem::replace(&mut self.asked, shared.queue_syncs_asked());
        let now_ms = crate::io::steady_ms();
        let is_due = self.asked > asked_before
            || self.quiet_looks >= QUIET_LOOKS
            || now_ms.saturating_sub(self.last_ms) >= shared.settings.consumequeue_thorough_interval_ms;
        if is_due {
            self.last_ms = now_ms;
        }
        is_due
    }
}
