//! The one index builder: puts message keys into index files, and looks them up. Runs on shard 0's core; queries of
//! other shards come here.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use super::builder::{DurableUpTo, SyncPace};
use super::layout::Layout;
use super::reader::ReadError;
use super::shared::Shared;
use super::submit::LocalWake;
use super::writer::KeyEntry;
use crate::dispatch::Receiver;
use crate::format::index_file::{self, IndexHeader};
use crate::format::names;
use crate::index::{Full, IndexFile, IndexFileMut};
use crate::io::{Blocking, BrokenMap, SharedMap, disk, fsync_dir, remove_if_present};
use crate::types::{KeyHash, PhyOffset, Timestamp};

/// Blocks of the unit area are reserved in portions of this length.
const RESERVE_LEN: u64 = 1 << 20;
/// When this few units are reserved ahead, more are asked for.
const RESERVE_AHEAD_LEN: u64 = RESERVE_LEN / 2;
const RETRY: Duration = Duration::from_secs(1);
/// Most hits of one query (store.md 4.5).
pub const QUERY_COUNT_MAX: usize = 64;

/// Lives on shard 0's core.
pub struct IndexBuilder {
    shared: Arc<Shared>,
    layout: Layout,
    blocking: Blocking,
    /// Oldest first; the last is written to.
    files: RefCell<Vec<Arc<SharedMap>>>,
    /// End time of the newest full file that is synced: `indexMsgTimestamp` of the checkpoint.
    full_up_to: Arc<AtomicI64>,
    /// As of the consume queues: entries of every record stored before it are on stable storage.
    durable_up_to: DurableUpTo,
    /// Store time of the first record whose entries are not synced; `None`: all are.
    unsynced_since: Cell<Option<i64>>,
    /// Store time of the oldest of what was taken from the ring last and may not be built yet; none while the ring is empty.
    /// What waits behind it in the ring counts as durable no sooner.
    building: Cell<Option<i64>>,
    /// Entries came since the flusher last looked.
    arrived: Cell<bool>,
    /// A sync failed, or a file was given up: what counts as durable does not move any more.
    in_doubt: Cell<bool>,
    dirtied: LocalWake,
    grown: LocalWake,
}

impl IndexBuilder {
    /// `files`: those found at start, oldest first, repaired.
    pub fn new(
        shared: Arc<Shared>,
        layout: Layout,
        blocking: Blocking,
        files: Vec<Arc<SharedMap>>,
        full_up_to: Arc<AtomicI64>,
        durable_up_to: DurableUpTo,
    ) -> Rc<IndexBuilder> {
        Rc::new(IndexBuilder {
            shared,
            layout,
            blocking,
            files: RefCell::new(files),
            full_up_to,
            durable_up_to,
            unsynced_since: Cell::new(None),
            building: Cell::new(None),
            arrived: Cell::new(false),
            in_doubt: Cell::new(false),
            dirtied: LocalWake::default(),
            grown: LocalWake::default(),
        })
    }

    /// Builds until the writer is gone and everything it sent is built.
    pub async fn run(self: Rc<Self>, mut from_writer: Receiver<Vec<KeyEntry>>) {
        let mut recv = async || {
            poll_fn(|cx| {
                let came = from_writer.poll_recv(cx);
                if came.is_pending() {
                    self.building.set(None);
                }
                came
            })
            .await
        };
        while let Ok(entries) = recv().await {
            self.building.set(entries.iter().map(|entry| entry.stored_at.0).min());
            self.arrived.set(true);
            let mut done = 0;
            while done < entries.len() {
                // Again after each wait for room: a sync may have covered what was put before it.
                if self.unsynced_since.get().is_none() {
                    let first = entries[done].stored_at.0;
                    self.unsynced_since.set(Some(first));
                    // What a sync under way covers, or what is in doubt, does not count yet.
                    self.durable_up_to.fetch_min(first, Ordering::AcqRel);
                    self.dirtied.wake();
                }
                done += self.put(&entries[done..]);
                if done < entries.len() {
                    self.make_room().await;
                }
            }
            self.grown.wake();
            crate::io::yield_if_due().await;
        }
    }

    /// Syncs what was put, when [`SyncPace`] says so: what a recovery can rely on. A task of its own.
    pub async fn run_flusher(self: Rc<Self>) {
        let interval = Duration::from_millis(self.shared.settings.consumequeue_flush_interval_ms);
        let mut pace = SyncPace::new(&self.shared);
        loop {
            if self.unsynced_since.get().is_none() {
                self.dirtied.wait().await;
            }
            crate::io::sleep(interval).await;
            if pace.is_due(&self.shared, self.arrived.replace(false)) {
                self.sync().await;
            }
        }
    }

    async fn sync(&self) {
        // Those before it were synced when they were full.
        let Some(file) = self.files.borrow().last().cloned() else { return };
        self.unsynced_since.set(None);
        let dir = self.layout.index();
        match self.blocking.run(move || sync_file(&file, &dir)).await {
            Ok(()) if !self.in_doubt.get() => {
                self.durable_up_to.store(self.durable_after_sync(), Ordering::Release);
            }
            Ok(()) => {}
            Err((what, why)) => self.doubt(what, why),
        }
    }

    /// What counts as durable when all that was built has been synced, but what came since.
    fn durable_after_sync(&self) -> i64 {
        self.unsynced_since.get().into_iter().chain(self.building.get()).min().unwrap_or(i64::MAX)
    }

    /// From here on nothing more counts as durable: pages may be lost that a later sync would not miss, so the next recovery
    /// must begin before them.
    fn doubt(&self, what: String, why: String) {
        self.in_doubt.set(true);
        self.shared.set_in_doubt(what, why);
    }

    /// The index files, for the last sync at stop.
    pub fn files(&self) -> Vec<Arc<SharedMap>> {
        self.files.borrow().clone()
    }

    /// Puts as many entries as the current file takes: none if it is broken, so that all go into the next.
    fn put(&self, entries: &[KeyEntry]) -> usize {
        let files = self.files.borrow();
        let Some(file) = files.last() else { return 0 };
        file.guarded(|| self.put_into(file, entries)).unwrap_or(0)
    }

    fn put_into(&self, file: &SharedMap, entries: &[KeyEntry]) -> usize {
        let (slots, units) = (self.shared.settings.index_slots, self.shared.settings.index_entries);
        // SAFETY: only this core touches index files, and no other borrow of them is alive in this call.
        let bytes = unsafe { file.whole_mut() };
        let Ok(mut index) = IndexFileMut::open(bytes, slots, units) else { return 0 };
        for (done, entry) in entries.iter().enumerate() {
            let unit = index.header().next_unit;
            if index_file::unit_at(slots, unit) + index_file::UNIT_LEN as u64 > file.reserved() && unit < units {
                return done;
            }
            if let Err(Full) = index.put(entry.key, entry.phy, entry.stored_at) {
                return done;
            }
        }
        entries.len()
    }

    /// Extends the current file, or makes the next one, as often as it takes.
    async fn make_room(&self) {
        let mut stuck = false;
        while let Err(error) = self.try_make_room().await {
            tracing::error!(%error, "an index file cannot be extended; no messages are taken until it can");
            if !std::mem::replace(&mut stuck, true) {
                self.shared.builder_stuck();
            }
            crate::io::sleep(RETRY).await;
        }
        if stuck {
            self.shared.builder_goes_on();
        }
    }

    async fn try_make_room(&self) -> io::Result<()> {
        let (slots, units) = (self.shared.settings.index_slots, self.shared.settings.index_entries);
        let last = self.files.borrow().last().cloned();
        if let Some(file) = &last
            && file.guarded(|| index_header(file).next_unit < units) == Ok(true)
        {
            let file = Arc::clone(file);
            let to = file.reserved().max(index_file::unit_at(slots, 0)) + RESERVE_LEN;
            return self.blocking.run(move || file.reserve(to)).await;
        }
        if let Some(full) = last {
            // The next one may be on stable storage first otherwise, and nobody would miss the one before it.
            let dir = self.layout.index();
            if let Err((what, why)) = self.blocking.run(move || sync_file(&full, &dir)).await {
                // Once more would prove nothing. Keys to come go into the next file.
                self.doubt(what, why);
            }
        }
        let dir = self.layout.index();
        let made = self.blocking.run(move || make_file(&dir, slots, units)).await?;
        let full = self.files.borrow().last().cloned();
        if let Some(full) = full.filter(|_| !self.in_doubt.get())
            && let Ok(end) = full.guarded(|| index_header(&full).end.0)
        {
            self.full_up_to.store(end, Ordering::Release);
        }
        self.files.borrow_mut().push(Arc::new(made));
        Ok(())
    }

    /// Reserves ahead of the current file's end, so that building rarely waits. A task of its own; a failure shows when
    /// the room is needed.
    pub async fn run_reserve(self: Rc<Self>) {
        let slots = self.shared.settings.index_slots;
        loop {
            self.grown.wait().await;
            let Some(file) = self.files.borrow().last().cloned() else { continue };
            let Ok(next_unit) = file.guarded(|| index_header(&file).next_unit) else { continue };
            let used = index_file::unit_at(slots, next_unit);
            if used + RESERVE_AHEAD_LEN > file.reserved() && file.reserved() < file.len() as u64 {
                let to = file.reserved() + RESERVE_LEN;
                let _ = self.blocking.run(move || file.reserve(to)).await;
            }
        }
    }

    /// Deletes the files that lead only to records which the log has no longer; never the last.
    pub async fn expire(&self, log_min: PhyOffset) {
        let files = self.files.borrow().clone();
        let shared = Arc::clone(&self.shared);
        let work = move || {
            let (mut removed, mut error) = (0, None);
            let last = files.len().saturating_sub(1);
            for file in files[..last].iter().take_while(|file| index_header(file).end_phy < log_min) {
                if let Err(why) = remove_if_present(file.path()) {
                    error = Some(format!("{}: {why}", file.path().display()));
                    break;
                }
                removed += 1;
                shared.counters.derived_expired.add(1);
            }
            if let Some(dir) = files.first().and_then(|file| file.path().parent()).filter(|_| removed > 0)
                && let Err(why) = fsync_dir(dir)
            {
                error = Some(format!("{}: {why}", dir.display()));
            }
            (removed, error)
        };
        let (removed, error) = self.blocking.run(work).await;
        if let Some(error) = error {
            tracing::warn!(error, "an expired index file cannot be deleted; it is tried again after the next segment");
        }
        // Files are only added behind, and only here taken away.
        let gone: Vec<_> = self.files.borrow_mut().drain(..removed).collect();
        if !gone.is_empty() {
            // Hundreds of megabytes to unmap and free.
            self.blocking.start(move || drop(gone));
        }
    }

    /// Where messages with this key hash lie before `below`, ascending; the newest `count`. The key's text is not looked at.
    ///
    /// A chain leads all over its file, which cannot be tested for being in memory beforehand. So full files, which do not
    /// change and are seldom asked for, are looked through on the helper thread; the one that is written to here.
    ///
    /// # Errors
    /// A file cannot be read.
    pub async fn find(
        &self,
        key: KeyHash,
        below: PhyOffset,
        count: usize,
        begin: i64,
        end: i64,
    ) -> Result<Vec<PhyOffset>, ReadError> {
        let shape = (self.shared.settings.index_slots, self.shared.settings.index_entries);
        let count = count.min(QUERY_COUNT_MAX);
        let mut found = Vec::new();
        let files = self.files();
        for (age, file) in files.iter().rev().enumerate() {
            let left = count - found.len();
            let look = {
                let file = Arc::clone(file);
                move || file.guarded(|| hits(&file, shape, key, below, left, begin, end))
            };
            let looked = if age == 0 { look() } else { self.blocking.run(look).await };
            let (hits, goes_on) = looked.map_err(|broken| unreadable(file, broken))?;
            found.extend(hits);
            if found.len() >= count || !goes_on {
                break;
            }
        }
        found.sort_unstable();
        Ok(found)
    }

    /// Store time and position of the newest indexed message.
    ///
    /// # Errors
    /// The newest file cannot be read.
    pub fn newest(&self) -> Result<(Timestamp, PhyOffset), ReadError> {
        let files = self.files.borrow();
        let Some(file) = files.last() else { return Ok((Timestamp(0), PhyOffset(0))) };
        let header = file.guarded(|| index_header(file)).map_err(|broken| unreadable(file, broken))?;
        Ok((header.end, header.end_phy))
    }
}

/// What one file has of a key, and whether an older one may have more.
fn hits(
    file: &SharedMap,
    (slots, units): (u32, u32),
    key: KeyHash,
    below: PhyOffset,
    count: usize,
    begin: i64,
    end: i64,
) -> (Vec<PhyOffset>, bool) {
    let mut hits = Vec::new();
    let Ok(index) = IndexFile::open(file.bytes(0, file.len()), slots, units) else { return (hits, true) };
    let header = index.header();
    if header.next_unit <= 1 {
        return (hits, true); // just made
    }
    if header.begin.0 <= end && header.end.0 >= begin {
        index.find_below(below, key, Timestamp(begin), Timestamp(end), count, &mut hits);
    }
    (hits, header.begin.0 >= begin)
}

/// Brings a file and its name onto stable storage; the error says which of both, and why.
fn sync_file(file: &SharedMap, dir: &Path) -> Result<(), (String, String)> {
    file.sync().map_err(|error| (file.path().display().to_string(), format!("syncing it failed: {error}")))?;
    disk::sync_folder(dir).map_err(|error| (dir.display().to_string(), format!("syncing the folder failed: {error}")))
}

fn unreadable(file: &SharedMap, broken: BrokenMap) -> ReadError {
    ReadError::Io { path: file.path().to_owned(), source: broken.into() }
}

/// The header of an index file as it is now.
pub fn index_header(file: &SharedMap) -> IndexHeader {
    IndexHeader::decode(file.bytes(0, index_file::HEADER_LEN).try_into().expect("the header has its length"))
}

/// A new, empty index file named after the local time. Blocking.
pub fn make_file(dir: &Path, slots: u32, units: u32) -> io::Result<SharedMap> {
    disk::make_folders(dir)?;
    let mut created = crate::io::now();
    let path = loop {
        let path = dir.join(names::index_name(created, crate::io::utc_offset_s(created)));
        // Two files of one millisecond must not share a name.
        if !path.exists() {
            break path;
        }
        created = created.plus_ms(1);
    };
    let file = SharedMap::open(&path, index_file::file_len(slots, units))?;
    file.reserve(index_file::unit_at(slots, 0) + RESERVE_LEN)?;
    // SAFETY: nobody else knows the file yet.
    let bytes = unsafe { file.whole_mut() };
    IndexFileMut::create(bytes, slots, units)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::dispatch::ring;
    use crate::io::disk::{Answer, Change};
    use crate::io::tap::{Tap, Watch};
    use crate::store::test_store::TestStore;

    /// Whose syncs fail when told to.
    #[derive(Default)]
    struct World {
        syncs_fail: Cell<bool>,
    }

    impl Tap for World {
        fn ask(&self, change: &Change<'_>) -> io::Result<Answer> {
            match change {
                Change::Sync { .. } if self.syncs_fail.get() => Err(io::Error::other("the device is gone")),
                _ => Ok(Answer::Do),
            }
        }

        fn is_simulated(&self) -> bool {
            true
        }
    }

    fn now_or_never<T>(task: impl Future<Output = T>) -> Option<T> {
        match std::pin::pin!(task).as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(done) => Some(done),
            Poll::Pending => None,
        }
    }

    #[test]
    fn after_a_failed_sync_no_entry_counts_as_durable_that_did_not_before_nor_does_the_file_count_as_full() {
        // Failing while a file is synced, and while a full one is, before the next is made.
        for full in [false, true] {
            let world = Rc::new(World::default());
            let _watch = Watch::start(Rc::clone(&world) as _);
            let mut store = TestStore::in_memory();
            store.settings.index_entries = 4;
            let opened = store.open().unwrap();
            let (shared, blocking) = (Arc::clone(&opened.shared), Blocking::new(|job| job()));
            let durable: DurableUpTo = Arc::new(AtomicI64::new(i64::MAX));
            let full_up_to = Arc::new(AtomicI64::new(0));
            let told = (Arc::clone(&full_up_to), Arc::clone(&durable));
            let index = IndexBuilder::new(opened.shared, opened.layout, blocking, Vec::new(), told.0, told.1);
            let (mut to_builder, from_writer) = ring(16);
            let mut running = Box::pin(Rc::clone(&index).run(from_writer));
            let put = |stored_at: i64| KeyEntry {
                key: KeyHash(stored_at as i32),
                phy: PhyOffset(stored_at as u64),
                stored_at: Timestamp(stored_at),
            };
            let mut build = |entries: &[i64]| {
                to_builder.push(entries.iter().map(|at| put(*at)).collect()).unwrap();
                assert!(running.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
                durable.load(Ordering::Acquire)
            };
            let sync = || now_or_never(index.sync()).map(|()| durable.load(Ordering::Acquire));
            assert_eq!(build(&[100]), 100);
            assert_eq!(sync(), Some(i64::MAX));
            assert_eq!(build(&[200]), 200);
            world.syncs_fail.set(true);
            if full {
                assert_eq!(build(&[300, 400, 500]), 200);
            } else {
                assert_eq!(sync(), Some(200));
            }
            world.syncs_fail.set(false);
            assert_eq!(build(&[600, 700, 800, 900]), 200);
            assert_eq!(sync(), Some(200), "a later sync proves nothing");
            assert!(index.files().len() > 1, "it goes on in the next file");
            assert_eq!(full_up_to.load(Ordering::Acquire), 0);
            let why = shared.health().to_string();
            assert!(why.contains("/index/") && why.contains("the device is gone"), "{why}");
            assert_eq!(shared.refusal(), None);
        }
    }
}
