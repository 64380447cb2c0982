//! The builder role: writes the consume queue units of the queues that a shard owns, publishes them, and tells who
//! waits for them. Runs on every shard core; the queues of other shards are never touched.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::future::poll_fn;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::durable::{DurableMark, DurableUpTo, SyncPace};
use super::layout::Layout;
use super::queue_folders::sync_queue_folders;
use super::queues::{Expired, QueueList, QueueView, UnitFile, queue_dir};
use super::shared::Shared;
use super::submit::LocalWake;
use super::writer::{DispatchBatch, DispatchUnit};
use crate::dispatch::Receiver;
use crate::format::names;
use crate::format::unit::{UNIT_LEN, Unit};
use crate::io::{Blocking, SharedMap, fsync_dir, remove_if_present};
use crate::metrics::Times;
use crate::types::{QueueHandle, QueueOffset, ShardId, TagsCode, Timestamp};

/// Blocks of a consume queue file are reserved in portions that double up to this, so that ten thousand small queues
/// stay small.
const RESERVE_LEN_MIN: u64 = 4096;
const RESERVE_LEN_MAX: u64 = 64 * 1024;
/// Pause after a file could not be made or extended.
const RETRY: Duration = Duration::from_secs(1);

/// Files synced in one piece of work for the helper thread, and how long one goes on, in ms: others wait behind it.
const SYNC_FILES_MAX: usize = 64;
const SYNC_MS_MAX: u64 = 50;

/// Queues looked at in one piece of work for the helper thread when the log has moved.
const TRIM_QUEUES_MAX: usize = 64;

/// Told of every message that became visible in a queue on which some shard holds pulls.
pub type OnArrival = Box<dyn Fn(&Arc<QueueView>, TagsCode)>;

/// Lives on one shard core.
pub struct Builder {
    shared: Arc<Shared>,
    layout: Layout,
    blocking: Blocking,
    queues: QueueList,
    shard_count: usize,
    states: RefCell<Vec<Option<QueueState>>>,
    on_arrival: OnArrival,
    dirty: RefCell<Vec<Dirty>>,
    /// Folders in which files were made whose names are not synced.
    made_in: RefCell<BTreeSet<PathBuf>>,
    dirtied: LocalWake,
    durable: DurableMark,
    /// Units came since the flusher last looked.
    arrived: Cell<bool>,
    /// From the log to here.
    times: Arc<Times>,
}

struct QueueState {
    view: Arc<QueueView>,
    file: Option<Arc<UnitFile>>,
    next: u64,
    /// A gap was met: units cannot be placed rightly until a restart rebuilds the queue (rule R4).
    stopped: bool,
    dirty: bool,
}

struct Dirty {
    slot: usize,
    file: Arc<UnitFile>,
    /// Units when it became dirty.
    since: u64,
}

impl Builder {
    pub fn new(
        shared: Arc<Shared>,
        layout: Layout,
        blocking: Blocking,
        queues: QueueList,
        shard_count: usize,
        on_arrival: OnArrival,
        durable_up_to: DurableUpTo,
    ) -> Rc<Builder> {
        let times = Arc::new(Times::default());
        shared.dispatch_times.push(Arc::clone(&times));
        Rc::new(Builder {
            shared,
            times,
            layout,
            blocking,
            queues,
            shard_count,
            states: RefCell::default(),
            on_arrival,
            dirty: RefCell::default(),
            made_in: RefCell::default(),
            dirtied: LocalWake::default(),
            durable: DurableMark::new(durable_up_to),
            arrived: Cell::new(false),
        })
    }

    /// Builds until the writer is gone and everything it sent is built.
    pub async fn run(self: Rc<Self>, mut from_writer: Receiver<DispatchBatch>) {
        let mut touched: Vec<usize> = Vec::new();
        while let Ok(DispatchBatch { units, sent_us }) = poll_fn(|cx| from_writer.poll_recv(cx)).await {
            self.arrived.set(true);
            self.durable.building(units.iter().map(|unit| unit.stored_at.0).min());
            for unit in &units {
                let slot = unit.queue.index() / self.shard_count;
                self.note_unsynced(unit.stored_at);
                if !self.store(slot, unit) {
                    self.store_with_room(slot, unit).await;
                }
                if touched.last() != Some(&slot) {
                    touched.push(slot);
                }
            }
            self.durable.building(None);
            self.publish(&mut touched);
            self.times.add(crate::io::steady_us().saturating_sub(sent_us), units.len() as u64);
            self.shared.note_built(units.iter().map(|unit| u64::from(unit.len)).sum());
            self.tell(&units);
            crate::io::yield_if_due().await;
        }
    }

    /// A unit is about to be stored. Asked for each: while one waits for room, a sync may cover all those before it.
    fn note_unsynced(&self, stored_at: Timestamp) {
        // What was held back comes after newer ones.
        if self.durable.stores(stored_at.0) {
            self.dirtied.wake();
        }
    }

    /// Writes one unit if its file has room; false: the file must be made or extended first.
    fn store(&self, slot: usize, unit: &DispatchUnit) -> bool {
        let mut states = self.states.borrow_mut();
        if slot >= states.len() {
            states.resize_with(slot + 1, || None);
        }
        let state = states[slot].get_or_insert_with(|| {
            let view = Arc::clone(&self.queues[unit.queue.index()]);
            let file = view.files().last().cloned();
            QueueState { next: view.max().0, file, view, stopped: false, dirty: false }
        });
        if state.stopped || unit.queue_offset.0 < state.next {
            return true; // stopped, or built already
        }
        if state.view.is_gone() {
            // Nobody reads it any more, and its files are on their way out.
            state.stopped = true;
            state.file = None;
            return true;
        }
        if unit.queue_offset.0 > state.next {
            let why = format!("message {} came where {} is next; the queue is stopped", unit.queue_offset, state.next);
            self.doubt(format!("consume queue {}", state.view.key()), why);
            state.stopped = true;
            return true;
        }
        let Some(file) = state.file.as_ref().filter(|file| unit.queue_offset < file.end()) else { return false };
        let at = (unit.queue_offset.0 - file.first().0) as usize * UNIT_LEN;
        if (at + UNIT_LEN) as u64 > file.map().reserved() {
            return false;
        }
        let bytes = Unit { phy: unit.phy, len: unit.len, tags: unit.tags }.encode();
        // SAFETY: this shard owns the queue, and the unit lies behind the published end.
        let write = || unsafe { file.map().write(at, &bytes) };
        if let Err(error) = file.map().guarded(write) {
            let why = format!("the file was cut short under the node, and its queue is stopped: {error}");
            self.doubt(file.map().path().display().to_string(), why);
            state.stopped = true;
            return true;
        }
        state.next += 1;
        if !state.dirty {
            state.dirty = true;
            let file = Arc::clone(file);
            self.dirty.borrow_mut().push(Dirty { slot, file, since: unit.queue_offset.0 });
        }
        true
    }

    /// Makes or extends the file first, as often as it takes: while it cannot, the store takes no puts.
    async fn store_with_room(&self, slot: usize, unit: &DispatchUnit) {
        let mut stuck = false;
        loop {
            match self.make_room(slot).await {
                Ok(()) => {
                    self.note_unsynced(unit.stored_at);
                    if self.store(slot, unit) {
                        break;
                    }
                }
                Err(error) => {
                    let queue = self.states.borrow()[slot].as_ref().map(|state| state.view.key().to_string());
                    tracing::error!(?queue, %error, "a consume queue file cannot be extended; no messages are taken until it can");
                    if !std::mem::replace(&mut stuck, true) {
                        self.shared.builder_stuck();
                    }
                    crate::io::sleep(RETRY).await;
                }
            }
        }
        if stuck {
            self.shared.builder_goes_on();
        }
    }

    async fn make_room(&self, slot: usize) -> io::Result<()> {
        let (view, file, next) = {
            let states = self.states.borrow();
            let state = states[slot].as_ref().expect("made by store");
            (Arc::clone(&state.view), state.file.clone(), QueueOffset(state.next))
        };
        if let Some(file) = file.filter(|file| next < file.end()) {
            let reserved = file.map().reserved();
            let used = ((next.0 - file.first().0) as usize * UNIT_LEN) as u64;
            let more = reserved.clamp(RESERVE_LEN_MIN, RESERVE_LEN_MAX);
            let to = reserved.max(used) + more;
            // The folder of a deleted topic is moved away on this thread.
            let reserve = move || {
                if view.is_gone() {
                    return Ok(());
                }
                file.map().reserve_in_memory(used, to)
            };
            return self.blocking.run_for_appends(reserve).await;
        }
        let len = self.shared.settings.consumequeue_len;
        let units = len / UNIT_LEN as u64;
        let first = QueueOffset(next.0 - next.0 % units);
        let dir = queue_dir(&self.layout.consumequeue(), view.key());
        let path = dir.join(names::segment_name(first.0 * UNIT_LEN as u64));
        let owner = Arc::clone(&view);
        let file = self
            .blocking
            .run_for_appends(move || {
                // The folder of a deleted topic is moved away on this thread: not to be made again after that.
                if owner.is_gone() {
                    return Ok(None);
                }
                let map = SharedMap::open(&path, len)?;
                let used = (next.0 - first.0) * UNIT_LEN as u64;
                map.reserve_in_memory(used, used + RESERVE_LEN_MIN)?;
                Ok::<_, io::Error>(Some(Arc::new(UnitFile::new(first, map))))
            })
            .await?;
        let Some(file) = file.filter(|_| !view.is_gone()) else { return Ok(()) };
        view.push_file(Arc::clone(&file));
        self.made_in.borrow_mut().insert(dir);
        let mut states = self.states.borrow_mut();
        let state = states[slot].as_mut().expect("still there");
        state.file = Some(file);
        state.dirty = false;
        Ok(())
    }

    /// Lets go of the files of queues whose topics were deleted, as far as they are of this shard.
    pub fn forget(&self, queues: &[QueueHandle], shard: ShardId) {
        let mut states = self.states.borrow_mut();
        for queue in queues.iter().filter(|queue| queue.owner(self.shard_count) == shard) {
            let slot = queue.index() / self.shard_count;
            self.queues[queue.index()].set_files(Vec::new());
            self.dirty.borrow_mut().retain(|dirty| dirty.slot != slot);
            if let Some(Some(state)) = states.get_mut(slot) {
                state.stopped = true;
                state.file = None;
                state.dirty = false;
            }
        }
    }

    fn publish(&self, touched: &mut Vec<usize>) {
        let states = self.states.borrow();
        for slot in touched.drain(..) {
            if let Some(state) = &states[slot] {
                state.view.publish_max(QueueOffset(state.next));
            }
        }
    }

    /// Tells of arrivals where somebody holds pulls.
    fn tell(&self, units: &[DispatchUnit]) {
        let states = self.states.borrow();
        std::sync::atomic::fence(Ordering::SeqCst);
        for unit in units {
            if let Some(state) = &states[unit.queue.index() / self.shard_count]
                && state.view.holding_shards() != 0
            {
                (self.on_arrival)(&state.view, unit.tags);
            }
        }
    }

    /// Lets go of what leads to records that the log has no longer, whenever `trims` is woken: hides the messages, then
    /// deletes the files. A task of its own.
    pub async fn run_trims(self: Rc<Self>, shard: ShardId, trims: Rc<LocalWake>, pause: Duration) {
        loop {
            trims.wait().await;
            let log_min = self.shared.segments.min();
            let mut handle = shard.index();
            while handle < self.queues.count() {
                let handles = (handle..self.queues.count()).step_by(self.shard_count).take(TRIM_QUEUES_MAX);
                let queues: Vec<_> = handles.map(|handle| Arc::clone(&self.queues[handle])).collect();
                handle += queues.len() * self.shard_count;
                let looked_at = self.blocking.run(move || {
                    let found = queues.into_iter().filter(|queue| !queue.is_gone()).map(|queue| {
                        let expired = queue.expired(log_min);
                        (queue, expired)
                    });
                    found.filter(|(queue, expired)| expired.min > queue.min() || !expired.files.is_empty()).collect()
                });
                let expired: Vec<(Arc<QueueView>, Expired)> = looked_at.await;
                for (queue, expired) in expired {
                    queue.publish_min(expired.min);
                    if !expired.files.is_empty() {
                        self.remove_files(queue, expired.files).await;
                        crate::io::sleep(pause).await;
                    }
                }
                crate::io::yield_if_due().await;
            }
        }
    }

    async fn remove_files(&self, queue: Arc<QueueView>, files: Vec<Arc<UnitFile>>) {
        for file in files {
            if let Err(error) = self.remove_file(Arc::clone(&queue), file).await {
                tracing::warn!(
                    error,
                    "an expired consume queue file cannot be deleted; it is tried again after the next segment"
                );
                return;
            }
        }
    }

    async fn remove_file(&self, queue: Arc<QueueView>, file: Arc<UnitFile>) -> Result<(), String> {
        let dir = file.map().path().parent().map(PathBuf::from);
        let shared = Arc::clone(&self.shared);
        let removed = self.blocking.run_for_appends(move || {
            if queue.is_gone() {
                return Ok(false); // the name may be another file's by now
            }
            // Gone from the list only with its name: what a clean stop notes must be what the next start finds.
            let path = file.map().path();
            remove_if_present(path).map_err(|error| format!("{}: {error}", path.display()))?;
            queue.remove_oldest_file(&file);
            shared.counters.derived_expired.add(1);
            Ok::<_, String>(true)
        });
        match dir {
            Some(dir) if removed.await? => {
                let sync = move || fsync_dir(&dir).map_err(|error| format!("{}: {error}", dir.display()));
                self.blocking.run(sync).await
            }
            _ => Ok(()),
        }
    }

    /// Syncs what was built: by least pages each interval, wholly when [`SyncPace`] says so.
    pub async fn run_flusher(self: Rc<Self>, least_pages: u64) {
        let interval = Duration::from_millis(self.shared.settings.consumequeue_flush_interval_ms);
        let mut pace = SyncPace::new(&self.shared);
        loop {
            if self.durable.is_all_synced() {
                self.dirtied.wait().await;
            }
            crate::io::sleep(interval).await;
            let thorough = pace.is_due(&self.shared, self.arrived.replace(false));
            self.sync(if thorough { 0 } else { least_pages }).await;
        }
    }

    /// Syncs the files with at least `least_pages` new pages; 0: all, and moves what counts as durable.
    async fn sync(&self, least_pages: u64) {
        let units_min = least_pages * 4096 / UNIT_LEN as u64;
        if least_pages == 0 {
            self.durable.sync_begins();
        }
        let due: Vec<Dirty> = {
            let mut states = self.states.borrow_mut();
            let mut dirty = self.dirty.borrow_mut();
            let grown = |d: &Dirty, states: &Vec<Option<QueueState>>| {
                states[d.slot].as_ref().map_or(u64::MAX, |state| state.next.saturating_sub(d.since))
            };
            let (due, kept) = dirty.drain(..).partition(|d| grown(d, &states) >= units_min);
            *dirty = kept;
            for d in &due as &Vec<Dirty> {
                if let Some(state) = &mut states[d.slot]
                    && state.file.as_ref().is_some_and(|file| Arc::ptr_eq(file, &d.file))
                {
                    state.dirty = false;
                }
            }
            due
        };
        // Units are no more durable than the names of the files that they are in.
        let made_in = if least_pages == 0 { self.made_in.take() } else { BTreeSet::new() };
        match self.sync_in_steps(due, made_in).await {
            Ok(()) if least_pages == 0 => self.durable.sync_ends(),
            Ok(()) => {}
            // Derived data: the log has it. But pages may be lost now that a later sync would not miss, so the next
            // recovery must begin before them.
            Err(error) => self.doubt("consume queues".into(), format!("syncing them failed: {error}")),
        }
    }

    /// Something is missing, or may be, that only the next start can give.
    fn doubt(&self, what: String, why: String) {
        self.durable.fails();
        self.shared.set_in_doubt(what, why);
    }

    /// Syncs files, then folders, so many at once that nobody waits long behind it for the helper thread.
    async fn sync_in_steps(&self, mut due: Vec<Dirty>, made_in: BTreeSet<PathBuf>) -> Result<(), String> {
        while !due.is_empty() {
            let step = move || {
                let began_ms = crate::io::steady_ms();
                for _ in 0..SYNC_FILES_MAX {
                    let Some(dirty) = due.pop() else { break };
                    dirty.file.map().sync().map_err(|error| error.to_string())?;
                    if crate::io::steady_ms().saturating_sub(began_ms) >= SYNC_MS_MAX {
                        break;
                    }
                }
                Ok::<_, String>(due)
            };
            due = self.blocking.run(step).await?;
        }
        let mut made_in = made_in.into_iter();
        loop {
            let folders: BTreeSet<_> = made_in.by_ref().take(SYNC_FILES_MAX).collect();
            if folders.is_empty() {
                return Ok(());
            }
            let consumequeue = self.layout.consumequeue();
            let step = move || {
                // One that is gone was moved away with its topic, which was deleted.
                let mut there = folders;
                while let Err(error) = sync_queue_folders(&consumequeue, &there, || Ok(())) {
                    let count = there.len();
                    there.retain(|folder| folder.is_dir());
                    if there.len() == count {
                        return Err(error.to_string());
                    }
                }
                Ok(())
            };
            self.blocking.run(step).await?;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicI64;
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::dispatch::{Sender, ring};
    use crate::io::disk::{Answer, Change};
    use crate::io::tap::{Tap, Watch};
    use crate::store::test_store::{HelperThread, TestStore};
    use crate::types::{PhyOffset, QueueHandle, QueueKey, Timestamp};

    /// A world without an executor, whose syncs of mapped files fail when told to.
    #[derive(Default)]
    struct World {
        syncs_fail: Cell<bool>,
        syncs: Cell<usize>,
    }

    impl Tap for World {
        fn ask(&self, change: &Change<'_>) -> io::Result<Answer> {
            match change {
                Change::Sync { .. } if self.syncs_fail.get() => Err(io::Error::other("the device is gone")),
                Change::Sync { .. } => {
                    self.syncs.set(self.syncs.get() + 1);
                    Ok(Answer::Skip)
                }
                _ => Ok(Answer::Do),
            }
        }

        fn is_simulated(&self) -> bool {
            true
        }
    }

    struct Bench {
        world: Rc<World>,
        helper: HelperThread,
        appends: HelperThread,
        builder: Rc<Builder>,
        running: std::pin::Pin<Box<dyn Future<Output = ()>>>,
        to_builder: Sender<DispatchBatch>,
        durable_up_to: DurableUpTo,
        _watch: Watch,
        _store: TestStore,
    }

    impl Bench {
        fn new() -> Bench {
            Bench::with_queues(2)
        }

        fn with_queues(count: u32) -> Bench {
            let world = Rc::new(World::default());
            let watch = Watch::start(Rc::clone(&world) as _);
            let store = TestStore::in_memory();
            let mut opened = store.open().unwrap();
            for id in 0..count {
                opened.queues.queue(&QueueKey::new(if id == 0 { "A" } else { "B" }, id));
            }
            let (helper, appends) = (HelperThread::default(), HelperThread::default());
            let blocking = helper.blocking().beside(&appends.blocking());
            let durable_up_to: DurableUpTo = Arc::new(AtomicI64::new(i64::MAX));
            let (to_builder, from_writer) = ring(16);
            let builder = Builder::new(
                opened.shared,
                opened.layout,
                blocking,
                opened.queues.list(),
                1,
                Box::new(|_, _| {}),
                Arc::clone(&durable_up_to),
            );
            let running = Box::pin(Rc::clone(&builder).run(from_writer));
            Bench { world, helper, appends, builder, running, to_builder, durable_up_to, _watch: watch, _store: store }
        }

        /// Builds a unit of `queue`; gives up to when units count as durable then.
        fn build(&mut self, queue: u32, queue_offset: u64, stored_at: i64) -> i64 {
            let unit = DispatchUnit {
                queue: QueueHandle(queue),
                queue_offset: QueueOffset(queue_offset),
                phy: PhyOffset(0),
                len: 100,
                tags: TagsCode(0),
                stored_at: Timestamp(stored_at),
            };
            assert!(self.to_builder.push([unit].into_iter().collect()).is_ok());
            let cx = &mut Context::from_waker(Waker::noop());
            assert!(self.running.as_mut().poll(cx).is_pending());
            self.durable_up_to.load(Ordering::Acquire)
        }

        fn sync(&self) -> i64 {
            let mut sync = std::pin::pin!(self.builder.sync(0));
            assert_eq!(sync.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(()));
            self.durable_up_to.load(Ordering::Acquire)
        }
    }

    /// Units of a sync topic's messages come when those are flushed, after units of messages that were stored later.
    #[test]
    fn a_unit_that_comes_late_brings_back_what_counts_as_durable() {
        let mut bench = Bench::new();
        assert_eq!(bench.build(0, 0, 300), 300);
        assert_eq!(bench.build(1, 0, 200), 200);
        assert_eq!(bench.build(0, 1, 400), 200);
        assert_eq!(bench.sync(), i64::MAX);
        assert_eq!(bench.build(1, 1, 350), 350);
    }

    #[test]
    fn what_a_sync_under_way_covers_does_not_count_as_durable_before_its_end() {
        let mut bench = Bench::new();
        bench.build(0, 0, 300);
        bench.helper.hang();
        let builder = Rc::clone(&bench.builder);
        let mut sync = std::pin::pin!(builder.sync(0));
        let cx = &mut Context::from_waker(Waker::noop());
        assert!(sync.as_mut().poll(cx).is_pending());
        assert_eq!(bench.build(1, 0, 500), 300);
        bench.helper.go_on();
        while sync.as_mut().poll(cx).is_pending() {}
        assert_eq!(bench.durable_up_to.load(Ordering::Acquire), 500);
    }

    #[test]
    fn a_unit_that_waits_for_room_is_not_durable_by_a_sync_meanwhile() {
        let mut bench = Bench::new();
        bench.appends.hang();
        assert_eq!(bench.build(0, 0, 300), 300);
        assert_eq!(bench.sync(), 300, "it is stored nowhere yet");
        bench.appends.go_on();
        assert_eq!(bench.build(1, 0, 400), 300);
        assert_eq!(bench.sync(), i64::MAX);
    }

    #[test]
    fn room_for_units_is_made_while_a_sync_hangs() {
        let mut bench = Bench::new();
        bench.build(0, 0, 300);
        bench.helper.hang();
        let builder = Rc::clone(&bench.builder);
        let mut sync = std::pin::pin!(builder.sync(0));
        assert!(sync.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        // The first needs a file, those of the other queue need more blocks at last.
        bench.build(1, 0, 300);
        let in_first_blocks = RESERVE_LEN_MIN / UNIT_LEN as u64;
        (1..=in_first_blocks).for_each(|offset| _ = bench.build(0, offset, 300));
        let built: Vec<_> = bench.builder.queues.iter().map(|(_, queue)| queue.max().0).collect();
        assert_eq!(built, [in_first_blocks + 1, 1]);
    }

    #[test]
    fn others_get_a_turn_while_many_files_are_synced() {
        let count = 2 * SYNC_FILES_MAX + 1;
        let mut bench = Bench::with_queues(count as u32);
        (0..count as u32).for_each(|queue| _ = bench.build(queue, 0, 300));
        bench.helper.hang();
        let builder = Rc::clone(&bench.builder);
        let mut sync = std::pin::pin!(builder.sync(0));
        let cx = &mut Context::from_waker(Waker::noop());
        let mut steps = Vec::new();
        while sync.as_mut().poll(cx).is_pending() {
            let before = bench.world.syncs.get();
            assert_eq!(bench.helper.do_waiting(), 1);
            steps.push(bench.world.syncs.get() - before);
        }
        assert_eq!(steps[..3], [SYNC_FILES_MAX, SYNC_FILES_MAX, 1]);
        assert_eq!(steps[3..].len(), 3, "and so of their folders");
        assert_eq!(bench.durable_up_to.load(Ordering::Acquire), i64::MAX);
    }

    #[test]
    fn a_deleted_topics_folder_is_missed_by_no_sync_and_not_made_again() {
        let mut bench = Bench::new();
        bench.build(0, 0, 300);
        bench.build(1, 0, 300);
        bench.builder.queues[0].set_gone();
        let folder = bench.builder.layout.consumequeue().join("A");
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(bench.sync(), i64::MAX);
        bench.builder.forget(&[QueueHandle(0)], ShardId(0));
        assert!(bench.builder.queues[0].files().is_empty());
        assert_eq!(bench.build(0, 1, 400), 400, "on its way when the topic was deleted");
        assert_eq!(bench.build(1, 1, 500), 400);
        assert_eq!(bench.sync(), i64::MAX);
        assert!(!folder.exists());
        assert_eq!(bench.builder.queues[1].max(), QueueOffset(2));
    }

    #[test]
    fn a_queue_that_is_gone_before_its_first_unit_gets_no_file() {
        let mut bench = Bench::new();
        bench.builder.queues[0].set_gone();
        bench.build(0, 0, 300);
        assert!(!bench.builder.layout.consumequeue().join("A").exists());
    }

    #[test]
    fn after_a_failed_sync_nothing_counts_as_durable_that_did_not_before() {
        let mut bench = Bench::new();
        bench.build(0, 0, 300);
        bench.world.syncs_fail.set(true);
        assert_eq!(bench.sync(), 300);
        bench.world.syncs_fail.set(false);
        assert_eq!(bench.build(0, 1, 400), 300);
        assert_eq!(bench.sync(), 300, "a later sync proves nothing");
    }
}
