//! Queues as every core sees them, and the registry that names and numbers them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;

use crate::format::unit::{UNIT_LEN, Unit};
use crate::io::{BrokenMap, SharedMap};
use crate::metrics::Series;
use crate::queue::first_at_or_after;
use crate::types::{PhyOffset, QueueHandle, QueueKey, QueueOffset, ShardId};

/// One file of a consume queue, mapped.
#[derive(Debug)]
pub struct UnitFile {
    first: QueueOffset,
    map: SharedMap,
}

impl UnitFile {
    pub fn new(first: QueueOffset, map: SharedMap) -> UnitFile {
        UnitFile { first, map }
    }

    /// Queue offset of its first unit.
    pub fn first(&self) -> QueueOffset {
        self.first
    }

    /// Queue offset behind its last unit.
    pub fn end(&self) -> QueueOffset {
        self.first.advance((self.map.len() / UNIT_LEN) as u64)
    }

    pub fn map(&self) -> &SharedMap {
        &self.map
    }

    /// What stands at `offset`; none if that is in another file. The caller stays before the published end, or is the
    /// owner.
    pub fn unit(&self, offset: QueueOffset) -> Option<Unit> {
        let index = offset.0.checked_sub(self.first.0).filter(|_| offset < self.end())?;
        self.map.bytes(index as usize * UNIT_LEN, UNIT_LEN).first_chunk().map(Unit::decode)
    }
}

/// A queue: written by its owner shard, read by all. The owner stores units first and publishes the new end after, so
/// whoever sees an end may read every unit before it.
#[derive(Debug)]
pub struct QueueView {
    key: QueueKey,
    handle: QueueHandle,
    min: AtomicU64,
    max: AtomicU64,
    /// Units before it were on stable storage when the store was opened.
    opened_at: AtomicU64,
    /// Oldest first, without holes.
    files: ArcSwap<Vec<Arc<UnitFile>>>,
    /// Bit `s`: shard `s` holds pulls on this queue and wants to hear of arrivals.
    holding: AtomicU64,
    /// Its topic was deleted: its files are on their way out, and their names may be those of another queue's.
    gone: AtomicBool,
    /// Slot of its topic's counters; [`NO_SLOT`].
    series: AtomicU16,
    readers: OnceLock<Box<QueueReader>>,
}

/// No slot was asked for yet.
const NO_SLOT: u16 = u16::MAX;
/// Groups of which a queue knows where they are.
const READERS_MAX: usize = 64;

/// How far a consumer group has pulled a queue, for those who look at the node; nothing depends on it.
#[derive(Debug)]
pub struct QueueReader {
    group: Arc<str>,
    /// Slot of the counters of topic and group.
    series: u16,
    /// The message that it is given next.
    next: AtomicI64,
    more: OnceLock<Box<QueueReader>>,
}

impl QueueReader {
    pub fn group(&self) -> &Arc<str> {
        &self.group
    }

    /// Slot of the counters of topic and group.
    pub fn series(&self) -> u16 {
        self.series
    }

    /// The message that it is given next.
    pub fn next(&self) -> i64 {
        self.next.load(Ordering::Relaxed)
    }

    pub fn set_next(&self, next: i64) {
        self.next.store(next, Ordering::Relaxed);
    }
}

/// What of a queue leads to records that the log has no longer.
#[derive(Debug)]
pub struct Expired {
    /// The oldest message that is still there; the end of the queue if there is none: its numbers go on (store.md E32).
    pub min: QueueOffset,
    /// Oldest first. Never the last file of a queue, which holds its numbering.
    pub files: Vec<Arc<UnitFile>>,
}

/// Units of one queue that lie in one file.
#[derive(Debug)]
pub struct UnitRun {
    file: Arc<UnitFile>,
    from: u64,
    count: usize,
}

impl UnitRun {
    pub fn len(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The unit `index` places behind the first of the run. Only while the store is opened: a fault ends the process.
    ///
    /// # Panics
    /// If the run is shorter.
    pub fn get(&self, index: usize) -> Unit {
        assert!(index < self.count, "a unit beyond its run");
        self.file.unit(QueueOffset(self.from + index as u64)).expect("a run lies in its file")
    }

    /// Are the first `count` units in memory?
    pub fn is_resident(&self, count: usize) -> bool {
        let at = (self.from - self.file.first.0) as usize * UNIT_LEN;
        self.file.map.is_resident(at, count.min(self.count) * UNIT_LEN)
    }

    /// Copies the units from place `index` on, as they stand in the file and as many as `out` holds. Gives how many, which
    /// are fewer at the run's end.
    ///
    /// # Errors
    /// The mapping is broken: read the file.
    pub fn copy(&self, index: usize, out: &mut [u8]) -> Result<usize, BrokenMap> {
        let count = (out.len() / UNIT_LEN).min(self.count.saturating_sub(index));
        let at = (self.from - self.file.first.0) as usize * UNIT_LEN + index * UNIT_LEN;
        self.file.map.guarded(|| {
            out[..count * UNIT_LEN].copy_from_slice(self.file.map.bytes(at, count * UNIT_LEN));
            count
        })
    }

    /// Its first unit, if the mapping shows it.
    pub fn first(&self) -> Option<Unit> {
        let mut bytes = [0; UNIT_LEN];
        self.copy(0, &mut bytes).ok().filter(|count| *count == 1).map(|_| Unit::decode(&bytes))
    }

    /// The file and the byte position in it: for reading what is not in memory.
    pub fn place(&self) -> (&SharedMap, u64) {
        (&self.file.map, (self.from - self.file.first.0) * UNIT_LEN as u64)
    }
}

impl QueueView {
    /// An empty queue.
    pub fn new(key: QueueKey, handle: QueueHandle) -> Arc<QueueView> {
        QueueView::with_files(key, handle, Vec::new())
    }

    /// A queue with the files that are on disk; [`QueueView::publish`] says what they hold.
    pub fn with_files(key: QueueKey, handle: QueueHandle, files: Vec<Arc<UnitFile>>) -> Arc<QueueView> {
        Arc::new(QueueView {
            key,
            handle,
            min: AtomicU64::new(0),
            max: AtomicU64::new(0),
            opened_at: AtomicU64::new(0),
            files: ArcSwap::from_pointee(files),
            holding: AtomicU64::new(0),
            gone: AtomicBool::new(false),
            series: AtomicU16::new(NO_SLOT),
            readers: OnceLock::new(),
        })
    }

    pub fn key(&self) -> &QueueKey {
        &self.key
    }

    pub fn handle(&self) -> QueueHandle {
        self.handle
    }

    /// The oldest message that is still there.
    pub fn min(&self) -> QueueOffset {
        QueueOffset(self.min.load(Ordering::Acquire))
    }

    /// The offset that the next message will have, as far as readers may know.
    pub fn max(&self) -> QueueOffset {
        QueueOffset(self.max.load(Ordering::Acquire))
    }

    /// Shows readers everything in `[min, max)`. By the owner shard (and recovery) alone.
    pub fn publish(&self, min: QueueOffset, max: QueueOffset) {
        self.min.store(min.0, Ordering::Release);
        self.max.store(max.0, Ordering::Release);
    }

    /// Shows readers the units up to `max`. By the owner shard alone.
    pub fn publish_max(&self, max: QueueOffset) {
        self.max.store(max.0, Ordering::Release);
    }

    /// Hides the messages before `min` from readers. By the owner shard alone.
    pub fn publish_min(&self, min: QueueOffset) {
        self.min.store(min.0, Ordering::Release);
    }

    /// Says that the queue's topic was deleted, for good: its files are neither made nor removed by their names any more.
    /// By the control core, before the helper thread moves them away.
    pub fn set_gone(&self) {
        self.gone.store(true, Ordering::Release);
    }

    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Did it have messages when the store was opened?
    fn is_old(&self) -> bool {
        self.opened_at.load(Ordering::Acquire) > 0
    }

    /// Slot of its topic's counters. From any core.
    pub fn series(&self, all: &Series) -> u16 {
        match self.series.load(Ordering::Relaxed) {
            NO_SLOT => {
                let slot = all.topic(&self.key.topic);
                self.series.store(slot, Ordering::Relaxed);
                slot
            }
            slot => slot,
        }
    }

    /// The group as a reader of this queue; nothing if there are too many already. From any core: a group is added once,
    /// by a store that waits at most for another core's doing the same.
    pub fn reader(&self, group: &Arc<str>, all: &Series) -> Option<&QueueReader> {
        let mut place = &self.readers;
        for _ in 0..READERS_MAX {
            let reader = place.get_or_init(|| {
                let series = all.pair(&self.key.topic, group);
                let (next, more) = (AtomicI64::new(0), OnceLock::new());
                Box::new(QueueReader { group: Arc::clone(group), series, next, more })
            });
            // Nearly always the same allocation: the directory's.
            if Arc::ptr_eq(&reader.group, group) || reader.group == *group {
                return Some(reader);
            }
            place = &reader.more;
        }
        None
    }

    /// The groups that have pulled from it since the start.
    pub fn readers(&self) -> impl Iterator<Item = &QueueReader> {
        std::iter::successors(self.readers.get(), |reader| reader.more.get()).map(|reader| &**reader)
    }

    pub fn files(&self) -> Arc<Vec<Arc<UnitFile>>> {
        self.files.load_full()
    }

    /// Adds the newest file. By the owner shard (and recovery) alone.
    pub fn push_file(&self, file: Arc<UnitFile>) {
        self.files.rcu(|files| {
            let mut files = files.as_ref().clone();
            files.push(Arc::clone(&file));
            files
        });
    }

    /// What the queue has to let go of when the log begins at `log_min`; nothing if its units cannot be read. Waits for the
    /// disk: on the helper thread.
    pub fn expired(&self, log_min: PhyOffset) -> Expired {
        let (max, files) = (self.max(), self.files());
        let first = files.first().map_or(max, |file| file.first);
        let from = self.min().max(first).min(max);
        let unit = |at| self.units_from(at).and_then(|run| run.first()).ok_or(());
        let Ok(min) = first_at_or_after(from..max, log_min, unit) else {
            return Expired { min: self.min(), files: Vec::new() };
        };
        let last = files.len().saturating_sub(1);
        let files = files[..last].iter().take_while(|file| file.end() <= min).cloned().collect();
        Expired { min, files }
    }

    /// Takes the oldest file away, if it is this one. By the helper thread, for the owner shard.
    pub fn remove_oldest_file(&self, oldest: &Arc<UnitFile>) {
        self.files.rcu(|files| match files.first() {
            Some(first) if Arc::ptr_eq(first, oldest) => files[1..].to_vec(),
            _ => files.as_ref().clone(),
        });
    }

    /// Says that all units are on stable storage. When the store is opened, before any core runs.
    pub fn set_opened(&self) {
        self.opened_at.store(self.max().0, Ordering::Release);
    }

    /// The files that got units since the store was opened.
    pub fn files_since_opened(&self) -> Vec<Arc<UnitFile>> {
        let (opened_at, max) = (QueueOffset(self.opened_at.load(Ordering::Acquire)), self.max());
        let files = self.files.load();
        files.iter().filter(|file| file.end() > opened_at && file.first < max && opened_at < max).cloned().collect()
    }

    /// Replaces all files. By recovery alone.
    pub fn set_files(&self, files: Vec<Arc<UnitFile>>) {
        self.files.store(Arc::new(files));
    }

    /// The published units from `offset` to the end of the file that holds it; nothing if `offset` is not in
    /// `[min, max)` or its file is missing.
    pub fn units_from(&self, offset: QueueOffset) -> Option<UnitRun> {
        let max = self.max();
        if offset < self.min() || offset >= max {
            return None;
        }
        let files = self.files.load();
        let index = files.partition_point(|file| file.first <= offset).checked_sub(1)?;
        let file = &files[index];
        let end = file.end().min(max);
        (offset < end).then(|| UnitRun {
            file: Arc::clone(file),
            from: offset.0,
            count: usize::try_from(end.0 - offset.0).unwrap_or(usize::MAX),
        })
    }

    /// Says that `shard` holds pulls on this queue; look at [`QueueView::max`] again after it.
    pub fn start_holding(&self, shard: ShardId) {
        self.holding.fetch_or(1 << (shard.index() % 64), Ordering::SeqCst);
        // Pairs with the fence between the owner's `publish_max` and its look at `holding_shards`. The look at `max` that
        // follows here is a plain acquiring load, which without this fence may be done before the bit is seen by the
        // owner, whose store of the end is not yet seen here: both would miss each other, and the pull would sleep.
        std::sync::atomic::fence(Ordering::SeqCst);
    }

    /// Says that `shard` holds none any more.
    pub fn stop_holding(&self, shard: ShardId) {
        self.holding.fetch_and(!(1 << (shard.index() % 64)), Ordering::SeqCst);
    }

    /// The shards that hold pulls on this queue, as bits. Asked by the owner after it published.
    pub fn holding_shards(&self) -> u64 {
        // Pairs with the fence in `start_holding`, which `max` follows: one of the two sees the other.
        std::sync::atomic::fence(Ordering::SeqCst);
        self.holding.load(Ordering::Relaxed)
    }
}

/// All queues by handle, for the cores that get handles from the rings. It only grows, and is read without a lock.
pub type QueueList = Arc<boxcar::Vec<Arc<QueueView>>>;

/// Names and numbers the queues. Lives on the control core after start, which alone adds to it.
#[derive(Debug)]
pub struct QueueRegistry {
    by_topic: HashMap<Arc<str>, HashMap<u32, Arc<QueueView>>>,
    list: QueueList,
}

impl QueueRegistry {
    /// The queues that were found on disk; element `h` has handle `h`.
    pub fn new(found: Vec<Arc<QueueView>>) -> QueueRegistry {
        let mut by_topic: HashMap<_, HashMap<_, _>> = HashMap::new();
        for queue in &found {
            let key = queue.key();
            by_topic.entry(Arc::clone(&key.topic)).or_default().insert(key.queue_id, Arc::clone(queue));
        }
        QueueRegistry { by_topic, list: Arc::new(found.into_iter().collect()) }
    }

    /// The queue of this name; made, empty, if there is none yet.
    pub fn queue(&mut self, key: &QueueKey) -> Arc<QueueView> {
        if let Some(queue) = self.by_topic.get(&key.topic).and_then(|queues| queues.get(&key.queue_id)) {
            return Arc::clone(queue);
        }
        let handle = QueueHandle(u32::try_from(self.list.count()).expect("fewer than 2^32 queues"));
        let queue = QueueView::new(key.clone(), handle);
        self.list.push(Arc::clone(&queue));
        self.by_topic.entry(Arc::clone(&key.topic)).or_default().insert(key.queue_id, Arc::clone(&queue));
        queue
    }

    /// All queues of a topic, those that it has no more since it was narrowed too.
    pub fn queues_of(&self, topic: &str) -> Vec<Arc<QueueView>> {
        self.by_topic.get(topic).map(|queues| queues.values().cloned().collect()).unwrap_or_default()
    }

    /// Forgets the queues of a topic that was deleted: under their names others are made next.
    pub fn retire(&mut self, topic: &str) {
        self.by_topic.remove(topic).into_iter().flatten().for_each(|(_, queue)| queue.set_gone());
    }

    pub fn list(&self) -> QueueList {
        Arc::clone(&self.list)
    }
}

/// How many queues had messages when the store was opened and are still there. A start that finds fewer looks for those
/// that are missing.
pub fn old_queues(queues: &QueueList) -> u64 {
    queues.iter().filter(|(_, queue)| queue.is_old() && !queue.is_gone()).count() as u64
}

/// Where a queue's files lie: `consumequeue/<topic>/<queueId>`.
pub fn queue_dir(consumequeue: &Path, key: &QueueKey) -> PathBuf {
    consumequeue.join(key.topic.as_ref()).join(key.queue_id.to_string())
}

/// The handle that the next queue gets.
pub fn handle(index: usize) -> QueueHandle {
    QueueHandle(u32::try_from(index).expect("fewer than 2^32 queues"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_that_pull_are_known_by_name_up_to_a_bound() {
        let series = Series::default();
        series.set_max(100);
        let queue = QueueView::new(QueueKey::new("T", 0), QueueHandle(0));
        assert_eq!(queue.readers().count(), 0);
        assert_eq!((queue.series(&series), queue.series(&series)), (1, 1));
        let group = |number: usize| Arc::<str>::from(format!("G{number}"));
        for number in 0..READERS_MAX {
            queue.reader(&group(number), &series).unwrap().set_next(number as i64);
        }
        assert!(queue.reader(&group(READERS_MAX), &series).is_none());
        let again = queue.reader(&group(7), &series).unwrap();
        assert_eq!((again.next(), again.series(), &**again.group()), (7, 8, "G7"));
        assert!(queue.readers().map(QueueReader::next).eq(0..READERS_MAX as i64));
    }
}
