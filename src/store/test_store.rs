//! Stores made by hand for the tests of opening and recovery: the log is written record by record with `format` alone,
//! as a broker leaves it, and everything derived is checked against what was written.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tempfile::TempDir;

use super::layout::Layout;
use super::open::{Closing, OpenedStore, close, open, open_saving, save_checkpoint};
use super::open_error::OpenError;
use super::opening::Opening;
use super::progress::Progress;
use super::quarantine::{self, region_unit};
use super::queues::queue_dir;
use super::shared::{FlushMode, ReadSettings, StoreSettings};
use crate::config::ZeroAhead;
use crate::format::checkpoint::Checkpoint;
use crate::format::names;
use crate::format::record::{self, RecordSpec};
use crate::format::unit::{UNIT_LEN, Unit};
use crate::index::IndexFile;
use crate::io::disk::{Answer, Change};
use crate::io::tap::{Tap, Watch};
use crate::io::{AppendMode, SyncCall};
use crate::io::{Blocking, Job};
use crate::log::Checksums;
use crate::types::{KeyHash, PhyOffset, QueueKey, QueueOffset, TagsCode, Timestamp};

pub const SEGMENT_LEN: u64 = 4096;
/// Ten units.
pub const QUEUE_FILE_LEN: u64 = 200;
pub const FIRST_STORED_AT: i64 = 1_700_000_000_000;

/// Pages of a file that were stored and not synced yet; 0 where the kernel does not tell.
pub fn dirty_pages(path: &Path) -> u64 {
    use std::os::fd::AsRawFd;
    let file = fs::File::open(path).unwrap();
    let (range, mut stat) = ([0_u64, u64::MAX >> 1], [0_u64; 5]);
    // SAFETY: cachestat (451) reads two and fills five 64-bit numbers, which is what it gets.
    let result = unsafe { libc::syscall(451, file.as_raw_fd(), range.as_ptr(), stat.as_mut_ptr(), 0) };
    if result == 0 { stat[1] } else { 0 }
}

/// Small files, and a store below `root`.
pub fn settings(root: PathBuf) -> StoreSettings {
    StoreSettings {
        root,
        store_host: "127.0.0.1:10911".parse().unwrap(),
        append: AppendMode::Buffered,
        sync_call: Some(SyncCall::ODsync),
        segment_len: SEGMENT_LEN,
        consumequeue_len: QUEUE_FILE_LEN,
        index_slots: 100,
        index_entries: 400,
        flush: FlushMode::Async,
        flush_interval_ms: 500,
        flush_least_pages: 4,
        flush_thorough_interval_ms: 10_000,
        sync_timeout_ms: 2500,
        consumequeue_flush_interval_ms: 1000,
        consumequeue_thorough_interval_ms: 60_000,
        zero_ahead: ZeroAhead::Off,
        index: true,
        property_crc: false,
        delays_ms: vec![1000, 5000],
        inflight_len_max: 1 << 20,
        inflight_count_max: 1000,
        put_wait_ms_max: 200,
        read: ReadSettings::default(),
        checksums: Checksums::Body,
    }
}

/// A message as it was put into the log.
#[derive(Clone, Debug)]
pub struct Sent {
    pub queue: QueueKey,
    pub offset: QueueOffset,
    pub unit: Unit,
    pub keys: Vec<KeyHash>,
    pub stored_at: Timestamp,
}

/// A store directory and what should be in it.
pub struct TestStore {
    dir: TempDir,
    pub settings: StoreSettings,
    pub sent: Vec<Sent>,
    pub counters: HashMap<QueueKey, u64>,
    pub end: PhyOffset,
    /// Messages that are nobody's any more; numbers go on behind them.
    retired: Vec<Sent>,
}

impl TestStore {
    pub fn new() -> TestStore {
        TestStore::within(tempfile::tempdir().unwrap())
    }

    /// One that costs no syncs, for tests that open very many.
    pub fn in_memory() -> TestStore {
        TestStore::within(tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap())
    }

    fn within(dir: TempDir) -> TestStore {
        let settings = settings(dir.path().join("store"));
        TestStore { dir, settings, sent: Vec::new(), counters: HashMap::new(), end: PhyOffset(0), retired: Vec::new() }
    }

    /// A store whose oldest segments have expired: the log begins at `start`, and `queue` with message `first`.
    pub fn beginning_at(start: u64, queue: &QueueKey, first: u64) -> TestStore {
        let mut store = TestStore::new();
        store.end = PhyOffset(start);
        store.counters.insert(queue.clone(), first);
        store
    }

    pub fn root(&self) -> &Path {
        &self.settings.root
    }

    pub fn layout(&self) -> Layout {
        Layout::new(self.root())
    }

    /// Puts a message at the end of the log, and rolls if it must. Its key is its number.
    pub fn put(&mut self, topic: &str, queue_id: u32, body_len: usize) -> Sent {
        let queue = QueueKey::new(topic, queue_id);
        let offset = QueueOffset(*self.counters.entry(queue.clone()).or_default());
        self.put_at(queue, offset, body_len)
    }

    /// The same with an offset of the caller's choice; the next of the queue follows it.
    pub fn put_at(&mut self, queue: QueueKey, offset: QueueOffset, body_len: usize) -> Sent {
        self.put_flagged(queue, offset, body_len, 0)
    }

    /// The same with a system flag, which makes it a part of a transaction.
    pub fn put_flagged(&mut self, queue: QueueKey, offset: QueueOffset, body_len: usize, sys_flag: i32) -> Sent {
        let number = self.sent.len() + self.retired.len();
        let properties = format!("TAGS\u{1}t{number}\u{2}KEYS\u{1}k{number} all\u{2}UNIQ_KEY\u{1}u{number}\u{2}");
        let stored_at = Timestamp(FIRST_STORED_AT + 100 * number as i64);
        let host = self.settings.store_host;
        let body: Vec<u8> = (0..body_len).map(|at| (at * 7 + number) as u8).collect();
        let spec = RecordSpec {
            topic: &queue.topic,
            queue_id: queue.queue_id as i32,
            flag: 0,
            sys_flag,
            born_timestamp: stored_at.0,
            born_host: host,
            store_host: host,
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body: &body,
            properties: &[properties.as_bytes()],
        };
        let mut bytes = Vec::new();
        let placed = spec.encode_into(&mut bytes).unwrap();
        let left = SEGMENT_LEN - self.end.0 % SEGMENT_LEN;
        if u64::from(placed.len) + record::BLANK_LEN as u64 > left {
            self.write(self.end, &record::encode_blank(left as u32));
            self.end = self.end.advance(left);
        }
        let phy = self.end;
        record::number(&mut bytes, placed.store_timestamp_at, offset, phy, stored_at);
        self.write(phy, &bytes);
        self.end = phy.advance(u64::from(placed.len));
        self.counters.insert(queue.clone(), offset.0 + 1);
        let tags = TagsCode::of(Some(&format!("t{number}")));
        let keys = record::key_hashes(&queue.topic, &properties).to_vec();
        let sent = Sent { queue, offset, unit: Unit { phy, len: placed.len, tags }, keys, stored_at };
        self.sent.push(sent.clone());
        sent
    }

    /// Forgets the newest message, as if it had never been whole.
    pub fn forget_newest(&mut self) -> Sent {
        let sent = self.sent.pop().expect("there is one");
        self.counters.insert(sent.queue.clone(), sent.offset.0);
        self.end = sent.unit.phy;
        sent
    }

    /// The topic is deleted: its messages are nobody's, and the next one sent to it has number 0. Gives its birth.
    pub fn retire(&mut self, topic: &str) -> PhyOffset {
        let (gone, kept) = std::mem::take(&mut self.sent).into_iter().partition(|sent| *sent.queue.topic == *topic);
        self.sent = kept;
        self.retired.extend::<Vec<_>>(gone);
        self.counters.retain(|queue, _| *queue.topic != *topic);
        self.end
    }

    /// How many messages that are nobody's are found by their keys.
    pub fn retired_found(&self, opened: &OpenedStore) -> usize {
        let is_found = |sent: &&Sent| sent.keys.iter().any(|key| self.entries_of(opened, *key, sent.unit.phy) > 0);
        self.retired.iter().filter(is_found).count()
    }

    fn entries_of(&self, opened: &OpenedStore, key: KeyHash, phy: PhyOffset) -> usize {
        let entries = opened.index_files.iter().map(|file| {
            let index = IndexFile::open(file.bytes(0, file.len()), 100, self.settings.index_entries).unwrap();
            let mut found = Vec::new();
            index.find(key, Timestamp(0), Timestamp(i64::MAX), usize::MAX, &mut found);
            found.into_iter().filter(|found| *found == phy).count()
        });
        entries.sum()
    }

    /// The message of this number is lost in a damaged region: its slot leads there, and nobody finds it by a key.
    pub fn lose(&mut self, number: usize, region: (PhyOffset, PhyOffset)) {
        let sent = &mut self.sent[number];
        sent.unit = region_unit(region.0, region.1);
        sent.keys.clear();
    }

    /// The same where the region is the message's record alone.
    pub fn lose_alone(&mut self, number: usize) {
        let Unit { phy, len, .. } = self.sent[number].unit;
        self.lose(number, (phy, phy.advance(u64::from(len))));
    }

    /// The same for a message that said another queue offset than the one it lost.
    pub fn lose_at(&mut self, number: usize, offset: u64) {
        self.lose_alone(number);
        self.sent[number].offset = QueueOffset(offset);
        let queue = self.sent[number].queue.clone();
        let last = self.sent.iter().filter(|sent| sent.queue == queue).map(|sent| sent.offset.0).max();
        self.counters.insert(queue, last.map_or(0, |last| last + 1));
    }

    /// Damaged regions on the list, as (start, end), and what was found there; they and their copies agree.
    pub fn damaged(&self) -> Vec<(u64, u64, String)> {
        let (list, copies) = (quarantine::list(&self.layout()).unwrap(), self.quarantine());
        let mut damaged = Vec::new();
        for region in list {
            assert_eq!(copies[&region.copy].len() as u64, region.len, "{region:?}");
            if region.kind == quarantine::Kind::Damaged {
                let log = fs::read(self.segment(region.phy)).unwrap();
                let at = (region.phy % SEGMENT_LEN) as usize;
                assert_eq!(copies[&region.copy], log[at..at + region.len as usize], "{region:?}");
                damaged.push((region.phy, region.phy + region.len, region.why));
            }
        }
        damaged
    }

    /// Twelve messages of topic A in the oldest segments, then only B in the newer ones, one queue each.
    pub fn of_two_topics() -> TestStore {
        let mut store = TestStore::new();
        for _ in 0..12 {
            store.put("A", 0, 200);
        }
        for _ in 0..24 {
            store.put("B", 0, 200);
        }
        store
    }

    /// Bytes into the log, whose segment is made if it is not there.
    pub fn write(&self, phy: PhyOffset, bytes: &[u8]) {
        let path = self.segment(phy.0);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let file = fs::File::options().write(true).create(true).truncate(false).open(&path).unwrap();
        if file.metadata().unwrap().len() == 0 {
            file.set_len(SEGMENT_LEN).unwrap();
        }
        file.write_all_at(bytes, phy.0 % SEGMENT_LEN).unwrap();
    }

    /// The segment that holds this position.
    pub fn segment(&self, phy: u64) -> PathBuf {
        self.layout().segment(PhyOffset(phy - phy % SEGMENT_LEN))
    }

    /// The consume queue file that holds this message.
    pub fn queue_file(&self, topic: &str, queue_id: u32, offset: u64) -> PathBuf {
        let at = offset * UNIT_LEN as u64;
        let dir = queue_dir(&self.layout().consumequeue(), &QueueKey::new(topic, queue_id));
        dir.join(names::segment_name(at - at % QUEUE_FILE_LEN))
    }

    /// Puts a unit into a consume queue file, as damage or an older broker may have left it.
    pub fn write_unit(&self, topic: &str, queue_id: u32, offset: u64, unit: &Unit) {
        let path = self.queue_file(topic, queue_id, offset);
        let file = fs::File::options().write(true).create(true).truncate(false).open(&path).unwrap();
        if file.metadata().unwrap().len() == 0 {
            file.set_len(QUEUE_FILE_LEN).unwrap();
        }
        file.write_all_at(&unit.encode(), offset * UNIT_LEN as u64 % QUEUE_FILE_LEN).unwrap();
    }

    /// The one index file, if there is one.
    pub fn index_files(&self) -> Vec<PathBuf> {
        let mut files: Vec<_> = fs::read_dir(self.layout().index())
            .map(|entries| entries.map(|entry| entry.unwrap().path()).collect())
            .unwrap_or_default();
        files.sort();
        files
    }

    /// As a killed process of ours leaves it: `abort` is there, the flushed position was saved some time ago, and a
    /// checkpoint says that everything stored before `safe` is flushed and built.
    pub fn killed(&self, flushed: PhyOffset, safe: Timestamp) {
        fs::create_dir_all(self.root()).unwrap();
        fs::write(self.layout().abort(), "4711").unwrap();
        let progress = Progress { flushed: flushed.0, stored_at: safe.0, clean: None };
        progress.save(&self.layout().flushed()).unwrap();
        let safe = safe.plus_ms(3000);
        let checkpoint = Checkpoint { physic: safe, logics: safe, ..Checkpoint::default() };
        save_checkpoint(&self.layout(), &checkpoint).unwrap();
    }

    pub fn open(&self) -> Result<OpenedStore, OpenError> {
        open(self.settings.clone(), 1 << 30, &Opening::unstopped())
    }

    /// The same with a recovery that saves how far it is as often as it can, in a process that is killed at its `n`th
    /// change of a file.
    pub fn open_killed_at(&self, n: u64) -> Result<OpenedStore, OpenError> {
        struct Killed {
            changes: Cell<u64>,
            at: u64,
        }
        impl Tap for Killed {
            fn ask(&self, _: &Change<'_>) -> io::Result<Answer> {
                self.changes.set(self.changes.get() + 1);
                if self.changes.get() > self.at { Err(io::Error::other("killed")) } else { Ok(Answer::Do) }
            }
        }
        let _watch = Watch::start(Rc::new(Killed { changes: Cell::new(0), at: n }));
        open_saving(self.settings.clone(), 1 << 30, Duration::ZERO, &Opening::unstopped())
    }

    /// The same in a process that is told to end at its `n`th change of a file, and that goes on until it looks.
    pub fn open_stopped_at(&self, n: u64) -> Result<OpenedStore, OpenError> {
        struct Told {
            changes: Cell<u64>,
            at: u64,
            stop: Arc<AtomicBool>,
        }
        impl Tap for Told {
            fn ask(&self, _: &Change<'_>) -> io::Result<Answer> {
                self.changes.set(self.changes.get() + 1);
                if self.changes.get() > self.at {
                    self.stop.store(true, Ordering::Relaxed);
                }
                Ok(Answer::Do)
            }
        }
        let stop = Arc::new(AtomicBool::new(n == 0));
        let opening = Opening::new(Arc::clone(&stop));
        let _watch = Watch::start(Rc::new(Told { changes: Cell::new(0), at: n, stop }));
        open_saving(self.settings.clone(), 1 << 30, Duration::ZERO, &opening)
    }

    /// Why it cannot be opened, seeing to it that no byte was changed.
    pub fn refusal(&self) -> String {
        let before = self.snapshot();
        let error = self.open().map(drop).expect_err("not to be opened").to_string();
        assert_eq!(self.changed(&before), Vec::<PathBuf>::new(), "{error}");
        error
    }

    /// Opens it, checks everything in it, and stops cleanly.
    pub fn open_check_close(&self) {
        let opened = self.open().unwrap();
        self.check(&opened);
        self.close(opened);
        self.check_files();
    }

    /// A clean stop.
    pub fn close(&self, opened: OpenedStore) {
        let queues = opened.queues.list().iter().map(|(_, queue)| Arc::clone(queue)).collect::<Vec<_>>();
        close(&Closing {
            layout: opened.layout,
            shared: opened.shared,
            queues: &queues,
            index_files: opened.index_files,
            checkpoint: opened.checkpoint,
        })
        .unwrap();
    }

    /// Are all messages that were put where they should be, and nothing else?
    pub fn check(&self, opened: &OpenedStore) {
        assert_eq!(opened.writer_start.end, self.end);
        // What a damaged record says of its time counts for nothing, unless its damage shows only later.
        let newest = |of: &dyn Fn(&&Sent) -> bool| self.sent.iter().filter(of).map(|sent| sent.stored_at).max();
        let newest = [newest(&|sent| !sent.keys.is_empty()), newest(&|_| true)].map(Option::unwrap_or_default);
        assert!(newest.contains(&opened.writer_start.last_stored_at), "{newest:?}");
        let queues = opened.queues.list().iter().map(|(_, queue)| Arc::clone(queue)).collect::<Vec<_>>();
        let mut counters = opened.writer_start.counters.clone();
        for view in queues.iter() {
            let next = self.counters.get(view.key()).copied().unwrap_or(0);
            assert_eq!(view.max(), QueueOffset(next), "{}", view.key());
            assert_eq!(counters.take(view.handle(), 1), QueueOffset(next), "{}", view.key());
            let first = self.sent.iter().find(|sent| sent.queue == *view.key());
            assert_eq!(view.min(), first.map_or(QueueOffset(next), |sent| sent.offset), "{}", view.key());
        }
        for sent in &self.sent {
            let view = queues.iter().find(|view| *view.key() == sent.queue).expect("a queue of each message");
            let unit = view.units_from(sent.offset).expect("a unit of each message").get(0);
            assert_eq!(unit, sent.unit, "{} of {}", sent.offset, sent.queue);
            for key in &sent.keys {
                let found = self.entries_of(opened, *key, sent.unit.phy);
                assert_eq!(found, 1, "key of message {} of {}", sent.offset, sent.queue);
            }
        }
    }

    /// Is everything behind the ends zero, and no file there that should not be?
    pub fn check_files(&self) {
        let layout = self.layout();
        for (path, bytes) in self.snapshot() {
            if path.starts_with(layout.commitlog()) {
                let start = names::parse_segment_name(path.file_name().unwrap().to_str().unwrap()).unwrap();
                let used = self.end.0.saturating_sub(start).min(SEGMENT_LEN) as usize;
                assert!(bytes[used..].iter().all(|byte| *byte == 0), "{}", path.display());
            }
            if path.starts_with(layout.consumequeue()) {
                let name = path.file_name().unwrap().to_str().unwrap();
                let queue = path.parent().unwrap();
                let id = queue.file_name().unwrap().to_str().unwrap().parse().unwrap();
                let topic = queue.parent().unwrap().file_name().unwrap().to_str().unwrap();
                let next = self.counters.get(&QueueKey::new(topic, id)).copied().unwrap_or(0);
                let start = names::parse_segment_name(name).unwrap();
                let used = (next * UNIT_LEN as u64).saturating_sub(start).min(QUEUE_FILE_LEN) as usize;
                assert!(bytes[used..].iter().all(|byte| *byte == 0), "{}", path.display());
            }
        }
    }

    /// Every file with its content, but the lock.
    pub fn snapshot(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        fn walk(dir: &Path, found: &mut BTreeMap<PathBuf, Vec<u8>>) {
            for entry in fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    walk(&path, found);
                } else if path.file_name().unwrap() != "lock" {
                    found.insert(path.clone(), fs::read(&path).unwrap());
                }
            }
        }
        let mut found = BTreeMap::new();
        walk(self.dir.path(), &mut found);
        found
    }

    /// The files that differ from an earlier snapshot, in content or by being there.
    pub fn changed(&self, before: &BTreeMap<PathBuf, Vec<u8>>) -> Vec<PathBuf> {
        let now = self.snapshot();
        let names: BTreeSet<_> = now.keys().chain(before.keys()).collect();
        names.into_iter().filter(|name| now.get(*name) != before.get(*name)).cloned().collect()
    }

    /// The copies of what was cut from the log or found damaged, by file name.
    pub fn quarantine(&self) -> BTreeMap<String, Vec<u8>> {
        let (dir, list) = (self.layout().quarantine(), self.layout().quarantine_list());
        let is_list = |path: &Path| path.with_extension("json") == list || path.with_extension("") == list;
        let files = self.snapshot().into_iter().filter(|(path, _)| path.starts_with(&dir) && !is_list(path));
        files.map(|(path, bytes)| (path.file_name().unwrap().to_str().unwrap().to_owned(), bytes)).collect()
    }
}

/// A helper thread: does what it is handed at once, or not before the test says so.
#[derive(Clone, Default)]
pub struct HelperThread {
    /// What waits; `None`: nothing has to.
    stuck: Arc<Mutex<Option<Vec<Job>>>>,
}

impl HelperThread {
    pub fn blocking(&self) -> Blocking {
        let this = self.clone();
        Blocking::new(move |job| {
            let mut stuck = this.stuck.lock().unwrap();
            match &mut *stuck {
                Some(waiting) => waiting.push(job),
                None => {
                    drop(stuck);
                    job();
                }
            }
        })
    }

    pub fn hang(&self) {
        *self.stuck.lock().unwrap() = Some(Vec::new());
    }

    pub fn go_on(&self) {
        let waiting = self.stuck.lock().unwrap().take();
        waiting.into_iter().flatten().for_each(|job| job());
    }

    /// Does what waits, and no more; how much that was.
    pub fn do_waiting(&self) -> usize {
        let waiting = self.stuck.lock().unwrap().as_mut().map(std::mem::take).unwrap_or_default();
        let count = waiting.len();
        waiting.into_iter().for_each(|job| job());
        count
    }
}
