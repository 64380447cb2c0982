//! The one index builder: puts message keys into index files, and looks them up. Runs on shard 0's core; queries of
//! other shards come here.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::future::poll_fn;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use super::durable::{DurableMark, DurableUpTo, SyncPace};
use super::layout::Layout;
use super::read_error::ReadError;
use super::shared::Shared;
use super::submit::LocalWake;
use super::writer::KeyEntry;
use crate::dispatch::Receiver;
use crate::format::index_file::{self, IndexHeader};
use crate::format::names;
use crate::index::{Full, IndexBytes, IndexFile, IndexFileMut};
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
    durable: DurableMark,
    /// Since the flusher's last look.
    arrived: Cell<bool>,
    dirtied: LocalWake,
    grown: LocalWake,
    /// Why an expired file could not be deleted: told once.
    expiry_error: RefCell<Option<String>>,
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
            durable: DurableMark::new(durable_up_to),
            arrived: Cell::new(false),
            dirtied: LocalWake::default(),
            grown: LocalWake::default(),
            expiry_error: RefCell::default(),
        })
    }

    /// Builds until the writer is gone and everything it sent is built.
    pub async fn run(self: Rc<Self>, mut from_writer: Receiver<Vec<KeyEntry>>) {
        while let Ok(entries) = poll_fn(|cx| from_writer.poll_recv(cx)).await {
            self.arrived.set(true);
            let mut done = 0;
            self.durable.building(entries.iter().map(|entry| entry.stored_at.0).min());
            while done < entries.len() {
                // Again after each wait for room: a sync may have covered what was put before it.
                if self.durable.stores(entries[done].stored_at.0) {
                    self.dirtied.wake();
                }
                done += self.put(&entries[done..]);
                if done < entries.len() {
                    self.make_room().await;
                }
            }
            self.durable.building(None);
            self.grown.wake();
            crate::io::yield_if_due().await;
        }
    }

    /// Syncs what was put, when [`SyncPace`] says so: what a recovery can rely on (T9). A task of its own.
    pub async fn run_flusher(self: Rc<Self>) {
        let interval = Duration::from_millis(self.shared.settings.consumequeue_flush_interval_ms);
        let mut pace = SyncPace::new(&self.shared);
        loop {
            if self.durable.is_all_synced() {
                self.dirtied.wait().await;
            }
            crate::io::sleep(interval).await;
            if !pace.is_due(&self.shared, self.arrived.replace(false)) {
                continue;
            }
            // Those before it were synced when they were full.
            let Some(file) = self.files.borrow().last().cloned() else { continue };
            self.durable.sync_begins();
            let dir = self.layout.index();
            if let Err(error) = self.blocking.run(move || file.sync().and_then(|()| disk::sync_folder(&dir))).await {
                // Pages may be lost now that a later sync would not miss, so the next recovery must begin before them.
                self.durable.fails();
                self.shared.set_in_doubt("the index".into(), format!("syncing it failed: {error}"));
                return;
            }
            self.durable.sync_ends();
        }
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
            && let Ok(next_unit) = file.guarded(|| index_header(file).next_unit)
            && next_unit < units
        {
            let file = Arc::clone(file);
            let used = index_file::unit_at(slots, next_unit);
            let to = file.reserved().max(used) + RESERVE_LEN;
            return self.blocking.run_for_appends(move || file.reserve_in_memory(used, to)).await;
        }
        if let Some(full) = last {
            // The next one may be on stable storage first otherwise, and nobody would miss the one before it.
            let dir = self.layout.index();
            let path = full.path().display().to_string();
            let synced = self.blocking.run(move || full.sync().and_then(|()| disk::sync_folder(&dir))).await;
            // Not tried again: a second sync proves nothing. Keys to come go into the next file all the same.
            if let Err(error) = synced {
                self.durable.fails();
                self.shared.set_in_doubt(path, format!("syncing the full index file failed: {error}"));
            }
        }
        let dir = self.layout.index();
        let made = self.blocking.run_for_appends(move || make_file(&dir, slots, units)).await?;
        let full = self.files.borrow().last().cloned();
        if let Some(full) = full
            && self.shared.doubt().is_none()
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
                let _ = self.blocking.run_for_appends(move || file.reserve_in_memory(used, to)).await;
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
            for file in &files[..last] {
                // Not through the mapping: it was last used long ago, and the disk may not give it any more.
                match header_on_disk(file) {
                    Ok(header) if header.end_phy < log_min => {}
                    Ok(_) => break,
                    Err(why) => {
                        error = Some(format!("{}: {why}", file.path().display()));
                        break;
                    }
                }
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
        if let Some(error) = error
            && self.expiry_error.replace(Some(error.clone())).as_ref() != Some(&error)
        {
            tracing::warn!(error, "an expired index file cannot be deleted; it is tried again after each segment");
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
    /// A chain leads all over its file, which cannot be tested for being in memory beforehand. So files are looked through
    /// on the helper thread, with a read for each step: nothing faults, and the newest may be put into meanwhile, since a
    /// read sees each field as it is stored and an entry is whole before anything leads to it.
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
        for file in files.iter().rev() {
            let left = count - found.len();
            let look = {
                let file = Arc::clone(file);
                move || hits(&file, shape, key, below, left, begin, end)
            };
            let (hits, goes_on) = self.blocking.run(look).await.map_err(|error| unreadable(file, error))?;
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
        let header = file.guarded(|| index_header(file)).map_err(|broken| unreadable(file, broken.into()))?;
        Ok((header.end, header.end_phy))
    }
}

/// The bytes of an index file, a read each. Blocking.
struct OnDisk {
    file: File,
    /// Why one of them could not be read.
    error: Cell<Option<io::Error>>,
}

impl IndexBytes for &OnDisk {
    fn read<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut field = [0; N];
        if let Err(error) = self.file.read_exact_at(&mut field, at as u64) {
            self.error.set(Some(error));
            return [0; N];
        }
        field
    }
}

/// The slots and units that a file as long as this was made with, if its entries show that these are others. Blocking.
///
/// # Errors
/// It cannot be opened.
pub fn other_shape(file: &SharedMap, slots: u32, units: u32) -> io::Result<Option<(u32, u32)>> {
    let on_disk = OnDisk { file: file.to_read_blocking()?, error: Cell::new(None) };
    let is_linked = IndexFile::over(&on_disk, file.len(), slots, units).is_ok_and(|index| index.is_linked());
    // What cannot be read is for those to tell who need it.
    if is_linked || on_disk.error.take().is_some() {
        return Ok(None);
    }
    let Ok(Ok(Some(last))) = file.guarded(|| file.last_nonzero(0)) else { return Ok(None) };
    Ok(crate::index::other_shape(&on_disk, file.len(), slots, units, last).filter(|_| on_disk.error.take().is_none()))
}

/// What one file has of a key, and whether an older one may have more. Blocking.
fn hits(
    file: &SharedMap,
    (slots, units): (u32, u32),
    key: KeyHash,
    below: PhyOffset,
    count: usize,
    begin: i64,
    end: i64,
) -> io::Result<(Vec<PhyOffset>, bool)> {
    let mut hits = Vec::new();
    if file.is_broken() {
        // Keys that were put in since are lost.
        return Err(BrokenMap.into());
    }
    let opened = match file.to_read_blocking() {
        // It has expired meanwhile, with all that it leads to.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((hits, true)),
        opened => opened?,
    };
    let on_disk = OnDisk { file: opened, error: Cell::new(None) };
    let Ok(index) = IndexFile::over(&on_disk, file.len(), slots, units) else { return Ok((hits, true)) };
    let header = index.header();
    if header.next_unit > 1 && header.begin.0 <= end && header.end.0 >= begin {
        index.find_below(below, key, Timestamp(begin), Timestamp(end), count, &mut hits);
    }
    match on_disk.error.take() {
        Some(error) => Err(error),
        // One that was just made says nothing of those before it.
        None => Ok((hits, header.next_unit <= 1 || header.begin.0 >= begin)),
    }
}

fn unreadable(file: &SharedMap, source: io::Error) -> ReadError {
    ReadError::Io { path: file.path().to_owned(), source }
}

/// The header of an index file, read past its mapping. Blocking.
fn header_on_disk(file: &SharedMap) -> io::Result<IndexHeader> {
    let mut header = [0; index_file::HEADER_LEN];
    file.to_read_blocking()?.read_exact_at(&mut header, 0)?;
    Ok(IndexHeader::decode(&header))
}

/// The header of an index file as its mapping shows it: inside a guard, but for a store that is being opened.
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
    file.reserve_in_memory(0, index_file::unit_at(slots, 0) + RESERVE_LEN)?;
    // SAFETY: nobody else knows the file yet.
    let bytes = unsafe { file.whole_mut() };
    IndexFileMut::create(bytes, slots, units)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
    Ok(file)
}
