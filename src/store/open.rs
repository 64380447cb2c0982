//! Opening a store, in the order that keeps it safe: lock, config files, abort file, checkpoint, file lists, consume
//! queue ends, log scan with dispatch, index. Blocking, on the main thread, before any core starts.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::births::Births;
use super::clean_stop::{first_in_files, forget_clean_stop, found_at_start};
use super::config_store::{self, ConfigTables};
use super::layout::Layout;
use super::open_error::{OpenError, Remedy, io_at};
use super::opening::Opening;
use super::progress::{Progress, Saved};
use super::quarantine::{self, DamagedRegions, Region};
use super::queue_folders::sync_queue_folders;
use super::queues::{QueueRegistry, UnitFile, queue_dir};
use super::recovery::{self, Began, Ends, RecoveredLog};
use super::shared::{FlushMode, Shared, StoreSettings};
use super::sync_call;
use super::whole_ends;
use super::writer::WriterStart;
use crate::format::checkpoint::Checkpoint;
use crate::format::config_files::TopicsFile;
use crate::format::{names, record};
use crate::io::{
    AppendMode, Segment, SegmentSet, SharedMap, StoreLock, SyncCall, disk, fsync_dir, knows_direct, over_faults,
    read_if_present, remove_if_present, replace_keeping_old,
};
use crate::log::QueueCounters;
use crate::types::{PhyOffset, Timestamp};

/// A store ready for the cores.
pub struct OpenedStore {
    pub lock: StoreLock,
    pub layout: Layout,
    pub shared: Arc<Shared>,
    pub queues: QueueRegistry,
    pub index_files: Vec<Arc<SharedMap>>,
    pub writer_start: WriterStart,
    pub tables: ConfigTables,
    pub births: Births,
    pub checkpoint: Checkpoint,
}

/// Opens the store that `settings` names, recovering it if the last stop was not clean.
///
/// # Errors
/// See [`OpenError`].
pub fn open(settings: StoreSettings, memory_len: u64, opening: &Opening) -> Result<OpenedStore, OpenError> {
    open_saving(settings, memory_len, recovery::SAVE_INTERVAL, opening)
}

/// The same; a recovery saves how far it got each `save_interval`.
pub(super) fn open_saving(
    settings: StoreSettings,
    memory_len: u64,
    save_interval: Duration,
    opening: &Opening,
) -> Result<OpenedStore, OpenError> {
    let lock = StoreLock::take(&settings.root)?;
    open_locked(settings, lock, memory_len, save_interval, opening)
}

/// The same for who has the lock.
pub(super) fn open_locked(
    settings: StoreSettings,
    lock: StoreLock,
    memory_len: u64,
    save_interval: Duration,
    opening: &Opening,
) -> Result<OpenedStore, OpenError> {
    let layout = Layout::new(&settings.root);
    refuse_foreign(&layout)?;
    let mut tables = config_store::load(&layout)?;
    let mut births = Births::load(&layout)?;
    let topics_version = tables.topics.data_version.counter;
    births.complete_deletions(&mut tables);
    let abort = read_abort(&layout)?;
    let unclean = abort.is_some();
    let checkpoint = load_checkpoint(&layout)?;
    let saved = Progress::load(&layout.flushed()).map_err(io_at(&layout.flushed()))?;
    let progress = saved.newest;
    let segments = list_segments(&layout, settings.segment_len)?;
    let mut quarantined = quarantine::list(&layout)?;
    let lacks_list = quarantine::lacks_list(&layout)?;
    let mut aside = BTreeSet::new();
    let Found { queues, index, segments, recovered } = loop {
        // A clean stop of ours leaves nothing but zeros behind the ends of queues, and says how many units there are.
        let stopped =
            progress.filter(|progress| !unclean && progress.clean.is_some() && !lacks_list && aside.is_empty());
        let start = Start { unclean, stopped, is_whole_wanted: !unclean || lacks_list || !aside.is_empty() };
        let recovery = Before {
            layout: &layout,
            settings: &settings,
            checkpoint: &checkpoint,
            saved,
            abort: &abort,
            save_interval,
            opening,
        };
        let topics = (!unclean).then_some(&tables.topics);
        match recovery.find(&start, segments.clone(), topics, &births, &mut quarantined) {
            // Once each: the new file has other blocks of the disk.
            Err(OpenError::Unreadable { path }) if aside.insert(path.clone()) => set_aside(&layout, &path)?,
            found => break found?,
        }
    };
    let segments = drop_unused_segments(segments, recovered.end)?;
    let set = SegmentSet::new(settings.segment_len, segments);
    Maps::of(&queues, &index).read(&[], || recovery::set_minimums(&queues, set.min()))?;
    births.fit(&layout, set.min(), recovered.end, topics_version)?;
    remove_deleted(&layout, opening)?;
    // A clean stop or the recovery has synced them.
    queues.iter().for_each(|queue| queue.set_opened());
    warn_of_lost_topics(&tables, &queues);
    let counters = queues.iter().map(|queue| queue.max().0).collect();
    save_queue_count(&layout, &queues)?;
    // Java and its tools find one from the start on; it says nothing yet.
    if !layout.checkpoint().exists() {
        save_checkpoint(&layout, &checkpoint)?;
    }
    // The abort file says that the store is in use: from here on a stop that does not remove it is unclean.
    let abort = layout.abort();
    write_abort(&abort).map_err(io_at(&abort))?;
    fsync_dir(layout.root()).map_err(io_at(layout.root()))?;
    // From the first message on it must be known that this is a store of ours and how far it was flushed: what a crash
    // leaves behind that is a tail, in whatever order its sectors came to the disk (rule R2).
    let progress = Progress { flushed: recovered.end.0, stored_at: recovered.last_stored_at.0, clean: None };
    progress.save(&layout.flushed()).map_err(io_at(&layout.flushed()))?;
    let append = append_mode_here(&layout, settings.append, &set);
    let sync_call = match settings.flush {
        FlushMode::Sync => sync_call::choose(&layout, append, settings.sync_call),
        // No write of an async node waits for the device.
        FlushMode::Async => SyncCall::Fdatasync,
    };
    let settings = StoreSettings { append, sync_call: Some(sync_call), ..settings };
    let mut shared = Shared::new(settings, set, recovered.end, memory_len);
    shared.damaged = DamagedRegions::new(&quarantined, shared.segments.min());
    shared.counters.damaged_regions.add(shared.damaged.count() as u64);
    if !shared.damaged.is_empty() {
        let (regions, bytes) = (shared.damaged.count(), shared.damaged.len());
        tracing::info!(regions, bytes, list = %layout.quarantine_list().display(), "damaged regions of the log are stepped over");
    }
    let shared = Arc::new(shared);
    shared.flushed_stored_at.store(recovered.last_stored_at.0 as u64, std::sync::atomic::Ordering::Release);
    Ok(OpenedStore {
        lock,
        layout,
        shared,
        queues: QueueRegistry::new(queues),
        index_files: index,
        writer_start: WriterStart {
            end: recovered.end,
            last_stored_at: recovered.last_stored_at,
            counters: QueueCounters::new(counters),
        },
        tables,
        births,
        checkpoint,
    })
}

/// The append mode that was asked for, but `buffered` for `dma` where the file system knows no access past the page cache.
fn append_mode_here(layout: &Layout, asked: AppendMode, segments: &SegmentSet) -> AppendMode {
    if asked != AppendMode::Dma {
        return asked;
    }
    // A new store has no segment yet, and maybe no folder for them, which may be a mount of its own.
    let path = match segments.all().last() {
        Some(newest) => newest.path().to_owned(),
        None => [layout.commitlog(), layout.root().to_owned()].into_iter().find(|dir| dir.exists()).unwrap_or_default(),
    };
    match knows_direct(&path) {
        Ok(true) => AppendMode::Dma,
        Ok(false) => {
            tracing::warn!(
                path = %path.display(),
                "this file system has no direct I/O: store.append = \"dma\" (or what \"auto\" came to) becomes \"buffered\""
            );
            AppendMode::Buffered
        }
        // Whoever opens the log for the writer finds out.
        Err(error) => {
            tracing::info!(path = %path.display(), %error, "whether this file system has direct I/O is not known yet");
            AppendMode::Dma
        }
    }
}

/// What is known before anything of the store is looked at.
struct Before<'a> {
    layout: &'a Layout,
    settings: &'a StoreSettings,
    checkpoint: &'a Checkpoint,
    saved: Saved,
    abort: &'a Option<String>,
    save_interval: Duration,
    opening: &'a Opening,
}

/// How the store was left.
struct Start {
    unclean: bool,
    /// What a clean stop noted, if nothing speaks against it.
    stopped: Option<Progress>,
    /// Unless that holds, everything has to be scanned.
    is_whole_wanted: bool,
}

/// The store as it can be used.
struct Found {
    queues: Vec<Arc<super::queues::QueueView>>,
    index: Vec<Arc<SharedMap>>,
    segments: Vec<Arc<Segment>>,
    recovered: RecoveredLog,
}

impl Before<'_> {
    /// Looks at the derived files, and recovers what a clean stop did not leave.
    ///
    /// # Errors
    /// [`OpenError::Unreadable`] if the disk does not give a derived file; see [`OpenError`] for others.
    fn find(
        &self,
        start: &Start,
        segments: Vec<Arc<Segment>>,
        topics: Option<&TopicsFile>,
        births: &Births,
        quarantined: &mut Vec<Region>,
    ) -> Result<Found, OpenError> {
        let Before { layout, settings, opening, .. } = self;
        let ends = if start.stopped.is_some() { Ends::Noted } else { Ends::Looked };
        let mut queues = recovery::load_queues(layout, settings, births, ends, opening)?;
        let mut index = recovery::load_index(layout, settings, start.unclean, opening)?;
        let is_as_left = |stopped: &Progress| {
            stopped.clean == Some(found_at_start(&queues, &index))
                && ends_at(&segments, stopped.flushed())
                && whole_ends::are_whole(&segments, stopped.flushed(), quarantined)
        };
        let (is_as_noted, clean) = Maps::of(&queues, &index).read(&segments, || {
            let is_as_noted = self.saved.newest.as_ref().is_some_and(is_as_left);
            let stopped = start.stopped.filter(|_| is_as_noted);
            let clean = stopped.map(|stopped| {
                let last_stored_at = whole_ends::newest_time(&segments, stopped.flushed(), stopped.stored_at());
                RecoveredLog { end: stopped.flushed(), last_stored_at }
            });
            (is_as_noted, clean)
        })?;
        // What the disk does not give of the log's end reads as zeros.
        let clean = clean.filter(|_| !segments.iter().any(|segment| segment.is_broken()));
        if clean.is_none() && ends == Ends::Noted {
            queues = recovery::load_queues(layout, settings, births, Ends::Looked, opening)?;
        }
        // After a clean stop whose derived files are not as it left them, nobody knows what is missing. After a crash the
        // saved positions bound it, unless whole queues are gone, or the beginning of one: a log from which nothing has
        // expired has all messages of a queue.
        let queue_count = queues.iter().filter(|queue| queue.max().0 > 0).count() as u64;
        let is_complete = segments.first().is_some_and(|oldest| oldest.start().0 == 0);
        let lacks = queue_count < load_queue_count(layout)?
            || (is_complete && queues.iter().any(|queue| first_in_files(queue) > 0));
        // A start of ours takes the note of a clean stop away. So if it is there beside an `abort`, or nothing is noted and no
        // `abort` is there, or the note is wrong: another broker wrote here since, and what it brought to the disk nobody
        // noted.
        let foreign = match &self.saved.newest {
            Some(progress) if start.unclean => progress.clean.is_some() && !is_as_noted,
            Some(_) => clean.is_none(),
            None => false,
        };
        if foreign {
            let noted = self.saved.at_least;
            tracing::warn!(%noted, "another broker has written to this store since the node last did");
        }
        let recovered = match clean {
            Some(recovered) => {
                tracing::info!(end = %recovered.end, "clean start, no scan needed");
                recovered
            }
            None => Maps::of(&queues, &index).read(&segments, || {
                recovery::recover(recovery::Recovery {
                    layout,
                    settings,
                    segments: &segments,
                    checkpoint: self.checkpoint,
                    began: Began { abort: self.abort.clone(), progress: self.saved.newest },
                    flushed: self.saved.newest.filter(|_| !foreign).map(|progress| progress.flushed()),
                    flushed_at_least: self.saved.at_least,
                    whole: start.is_whole_wanted || foreign || lacks,
                    topics,
                    births,
                    queues: &mut queues,
                    index: &mut index,
                    quarantined,
                    save_interval: self.save_interval,
                    opening,
                })
            })??,
        };
        // Their unreadable places are known now, and the rest of them is to be read as ever.
        let again = segments.into_iter().map(|segment| match segment.is_broken() {
            true => Segment::open(segment.path(), segment.start()).map(Arc::new).map_err(io_at(segment.path())),
            false => Ok(segment),
        });
        let segments = again.collect::<Result<_, _>>()?;
        Ok(Found { queues, index, segments, recovered })
    }
}

/// The derived files that were found, kept mapped for as long as they are read.
struct Maps {
    units: Vec<Arc<UnitFile>>,
    index: Vec<Arc<SharedMap>>,
}

impl Maps {
    fn of(queues: &[Arc<super::queues::QueueView>], index: &[Arc<SharedMap>]) -> Maps {
        let units = queues.iter().flat_map(|queue| queue.files().as_ref().clone()).collect();
        Maps { units, index: index.to_vec() }
    }

    /// Runs `access`, which reads these files and the segments. What the disk does not give of the log reads as zeros.
    ///
    /// # Errors
    /// [`OpenError::Unreadable`] if the disk does not give all of a derived file, whatever came of `access`.
    fn read<R>(&self, segments: &[Arc<Segment>], access: impl FnOnce() -> R) -> Result<R, OpenError> {
        let units = self.units.iter().map(|file| file.map());
        let maps: Vec<&SharedMap> = units.chain(self.index.iter().map(Arc::as_ref)).collect();
        let outcome = over_faults(segments, &maps, access);
        match maps.iter().find(|map| map.is_broken()) {
            Some(broken) => Err(OpenError::Unreadable { path: broken.path().to_owned() }),
            None => Ok(outcome),
        }
    }
}

/// Moves a derived file that the disk does not give out of the way, to where Java never looks. Until a start has built it
/// anew, every start scans the whole log.
fn set_aside(layout: &Layout, path: &Path) -> Result<(), OpenError> {
    forget_clean_stop(layout, u64::MAX)?;
    let folder = layout.unreadable();
    let name = path.strip_prefix(layout.root()).unwrap_or(path).to_string_lossy().replace('/', "-");
    let to = folder.join(name);
    tracing::error!(path = %path.display(), to = %to.display(),
        "the disk does not give all of this file; it is moved away and built anew from the log: check the disk");
    let moved = disk::make_lasting_folders(&folder).and_then(|()| disk::rename(path, &to));
    moved.and_then(|()| fsync_dir(path.parent().unwrap_or(layout.root()))).map_err(io_at(path))
}

/// What an earlier run did not get to: folders of deleted topics.
fn remove_deleted(layout: &Layout, opening: &Opening) -> Result<(), OpenError> {
    // In it: of each deletion a folder, in that the topic's, in that the queues'.
    remove_by_steps(&layout.deleted(), 3, opening)
}

/// Removes a folder, those so many levels below it one by one.
fn remove_by_steps(dir: &Path, levels: u32, opening: &Opening) -> Result<(), OpenError> {
    opening.step()?;
    if levels > 0 && dir.is_dir() {
        for entry in fs::read_dir(dir).map_err(io_at(dir))? {
            let entry = entry.map_err(io_at(dir))?;
            if entry.file_type().map_err(io_at(dir))?.is_dir() {
                remove_by_steps(&entry.path(), levels - 1, opening)?;
            }
        }
    }
    disk::remove_tree(dir).map_err(io_at(dir))
}

/// What the abort file says, if it is there.
fn read_abort(layout: &Layout) -> Result<Option<String>, OpenError> {
    let path = layout.abort();
    let bytes = read_if_present(&path).map_err(io_at(&path))?;
    Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
}

/// Writes this process's id as the whole of the abort file, as Java does.
fn write_abort(path: &Path) -> io::Result<()> {
    remove_if_present(path)?;
    let file = disk::create_new(path)?;
    disk::write_at(&file, path, std::process::id().to_string().as_bytes(), 0)
}

/// Topics of users that have queues with messages and are in no table. Without the table none of their messages is gone, but
/// nobody can ask for them.
fn lost_topics<'a>(tables: &ConfigTables, queues: &'a [Arc<super::queues::QueueView>]) -> BTreeSet<&'a str> {
    let with_messages = queues.iter().filter(|queue| queue.max().0 > 0).map(|queue| &*queue.key().topic);
    let of_users = with_messages.filter(|topic| !recovery::is_of_system(topic) && !recovery::is_light(topic));
    of_users.filter(|topic| !tables.topics.topics.contains_key(*topic)).collect()
}

fn warn_of_lost_topics(tables: &ConfigTables, queues: &[Arc<super::queues::QueueView>]) {
    let topics = lost_topics(tables, queues);
    if topics.is_empty() {
        return;
    }
    let (count, some) = (topics.len(), topics.iter().take(10).collect::<Vec<_>>());
    let what = match tables.topics.topics.is_empty() {
        true => "there is no table of topics, though there are queues of topics",
        false => "there are queues with messages of topics that are not in the table of topics",
    };
    tracing::warn!(count, ?some, "{what}; create them again, and their messages are served");
}

/// Does the log end at `end`: is its segment there, and nothing written from there on?
fn ends_at(segments: &[Arc<Segment>], end: PhyOffset) -> bool {
    let Some(last) = segments.last() else { return end.0 == 0 };
    let unused = |segment: &Segment| {
        let at = end.max(segment.start());
        segment.slice(at, record::BLANK_LEN).is_none_or(|header| header.iter().all(|byte| *byte == 0))
    };
    last.end() >= end && segments.iter().filter(|segment| segment.end() > end).all(|segment| unused(segment))
}

/// How many queues had messages when this was last noted, at a start or stop; 0 if never.
fn load_queue_count(layout: &Layout) -> Result<u64, OpenError> {
    let path = layout.queue_count();
    let text = read_if_present(&path).map_err(io_at(&path))?.and_then(|bytes| String::from_utf8(bytes).ok());
    Ok(text.and_then(|text| text.trim().parse().ok()).unwrap_or(0))
}

fn save_queue_count(layout: &Layout, queues: &[Arc<super::queues::QueueView>]) -> Result<(), OpenError> {
    let path = layout.queue_count();
    let count = queues.iter().filter(|queue| queue.max().0 > 0).count() as u64;
    if count == load_queue_count(layout)? {
        return Ok(());
    }
    replace_keeping_old(&path, count.to_string().as_bytes()).map_err(io_at(&path))
}

fn refuse_foreign(layout: &Layout) -> Result<(), OpenError> {
    let rocks = layout.consumequeue().join("CURRENT");
    if rocks.exists() {
        return Err(OpenError::Foreign {
            path: rocks,
            what: "consume queues in RocksDB form cannot be read; choose another --data",
        });
    }
    let part = layout.salvage_part();
    if part.exists() {
        return Err(OpenError::Foreign {
            path: part,
            what: "what a salvage left that did not come to its end; remove this store and salvage again",
        });
    }
    Ok(())
}

fn load_checkpoint(layout: &Layout) -> Result<Checkpoint, OpenError> {
    let path = layout.checkpoint();
    let bytes = read_if_present(&path).map_err(io_at(&path))?;
    Ok(bytes.and_then(|bytes| Checkpoint::decode(&bytes)).unwrap_or_default())
}

/// Expiry would remove the link and leave the file.
pub const SYMLINK_SEGMENT: &str =
    "a commit log segment that is a symbolic link; put the file itself in its place, or link the whole folder";

/// The segments on disk, oldest first, checked for size and holes. An empty last one is removed, as Java does.
fn list_segments(layout: &Layout, segment_len: u64) -> Result<Vec<Arc<Segment>>, OpenError> {
    let dir = layout.commitlog();
    disk::make_lasting_folders(&dir).map_err(io_at(&dir))?;
    let mut starts = Vec::new();
    for entry in fs::read_dir(&dir).map_err(io_at(&dir))? {
        let entry = entry.map_err(io_at(&dir))?;
        let path = entry.path();
        let meta = entry.metadata().map_err(io_at(&path))?;
        match entry.file_name().to_str().and_then(names::parse_segment_name) {
            Some(start) if meta.is_file() => starts.push((start, meta.len(), path)),
            Some(_) if meta.is_symlink() => return Err(OpenError::Foreign { path, what: SYMLINK_SEGMENT }),
            _ => tracing::warn!(path = %path.display(), "not a commit log segment; left alone"),
        }
    }
    starts.sort_unstable();
    if let Some((_, 0, path)) = starts.last() {
        tracing::warn!(path = %path.display(), "empty last segment removed");
        remove_if_present(path).map_err(io_at(path))?;
        starts.pop();
    }
    let mut segments: Vec<Arc<Segment>> = Vec::new();
    let remedy = starts.iter().any(|(_, found, _)| *found == segment_len).then_some(Remedy::Salvage);
    for (start, found, path) in starts {
        if found != segment_len {
            let key = "store.commitlog_file_size";
            return Err(OpenError::WrongSize { path, found, expected: segment_len, key, remedy });
        }
        if start % segment_len != 0 {
            return Err(OpenError::Foreign { path, what: "no commit log segment of this length starts there" });
        }
        let start = PhyOffset(start);
        if let Some(last) = segments.last()
            && last.end() != start
        {
            let missing = layout.segment(last.end());
            return Err(OpenError::Hole { before: path, missing });
        }
        segments.push(Arc::new(Segment::open(&path, start).map_err(io_at(&path))?));
    }
    Ok(segments)
}

/// Segments made ahead and never used go: the writer makes the next one itself.
fn drop_unused_segments(mut segments: Vec<Arc<Segment>>, end: PhyOffset) -> Result<Vec<Arc<Segment>>, OpenError> {
    while let Some(last) = segments.last()
        && last.start() >= end
        && last.start().0 > 0
        && segments.len() > 1
    {
        tracing::info!(path = %last.path().display(), "unused segment removed");
        // One after the other: if a power cut brought one back and not the one before it, there would be a hole.
        disk::remove_for_good(last.path()).map_err(io_at(last.path()))?;
        segments.pop();
    }
    Ok(segments)
}

/// Finishes a clean stop, after every executor has ended: syncs what is derived, notes what is there, removes `abort`.
/// Blocking, on the main thread.
/// If the writer was poisoned, or derived data is in doubt, `abort` stays.
///
/// # Errors
/// A file that cannot be synced or written: `abort` then stays, and the next start recovers.
pub fn close(opened: &Closing) -> Result<(), OpenError> {
    let (layout, shared) = (&opened.layout, &opened.shared);
    sync_derived(opened)?;
    save_queue_count(layout, opened.queues)?;
    if shared.is_poisoned() || shared.flushed() < shared.appended() {
        // What was appended and not flushed is for the next start to find: nothing is removed, and `abort` stays.
        tracing::error!(flushed = %shared.flushed(), appended = %shared.appended(), "stopped without a flush; the next start recovers");
        return Ok(());
    }
    let stored_at = shared.flushed_stored_at.load(std::sync::atomic::Ordering::Acquire) as i64;
    if let Some(doubt) = shared.doubt() {
        // The checkpoint stays as it was last saved, which is before what is in doubt: there the next start begins.
        tracing::error!(
            what = doubt.what,
            why = doubt.why,
            "stopped with derived data in doubt; the next start completes it"
        );
        let progress = Progress { flushed: shared.flushed().0, stored_at, clean: None };
        return progress.save(&layout.flushed()).map_err(io_at(&layout.flushed()));
    }
    let checkpoint = Checkpoint {
        physic: Timestamp(stored_at),
        logics: Timestamp(stored_at),
        confirm: shared.flushed().0,
        ..opened.checkpoint
    };
    save_checkpoint(layout, &checkpoint)?;
    let found = || found_at_start(opened.queues, &opened.index_files);
    let clean = Some(Maps::of(opened.queues, &opened.index_files).read(&[], found)?);
    let progress = Progress { flushed: shared.flushed().0, stored_at, clean };
    progress.save(&layout.flushed()).map_err(io_at(&layout.flushed()))?;
    let end = shared.flushed();
    // A segment made ahead that no roll reached is in no list.
    let next = layout.segment(end.segment_start(shared.settings.segment_len).advance(shared.settings.segment_len));
    let segments = shared.segments.all();
    let unused = segments.iter().filter(|segment| segment.start() > end).map(|segment| segment.path());
    // The newest first, as at a start.
    for path in unused.chain([next.as_path()]).collect::<BTreeSet<_>>().into_iter().rev() {
        disk::remove_for_good(path).map_err(io_at(path))?;
    }
    remove_if_present(&layout.abort()).map_err(io_at(&layout.abort()))?;
    fsync_dir(layout.root()).map_err(io_at(layout.root()))
}

/// Brings what the builders made since the store was opened onto stable storage: the files, then the folders that name
/// them. After a clean stop nobody looks for units in the log again, so not one may be missing.
///
/// Not the last file of a queue alone: what rolled since the builders' last flush has not been synced either, and with
/// small files that can be several.
fn sync_derived(opened: &Closing<'_>) -> Result<(), OpenError> {
    let consumequeue = opened.layout.consumequeue();
    let mut folders = BTreeSet::new();
    for queue in opened.queues {
        let files = queue.files_since_opened();
        for file in &files {
            opened.shared.count_closing_step();
            file.map().sync().map_err(io_at(file.map().path()))?;
        }
        if !files.is_empty() {
            folders.insert(queue_dir(&consumequeue, queue.key()));
        }
    }
    let step = || {
        opened.shared.count_closing_step();
        Ok(())
    };
    sync_queue_folders(&consumequeue, &folders, step)?;
    for file in &opened.index_files {
        opened.shared.count_closing_step();
        file.sync().map_err(io_at(file.path()))?;
    }
    if !opened.index_files.is_empty() {
        let dir = opened.layout.index();
        fsync_dir(&dir).map_err(io_at(&dir))?;
    }
    Ok(())
}

/// What [`close`] needs.
pub struct Closing<'a> {
    pub layout: Layout,
    pub shared: Arc<Shared>,
    pub queues: &'a [Arc<super::queues::QueueView>],
    pub index_files: Vec<Arc<SharedMap>>,
    pub checkpoint: Checkpoint,
}

/// Writes the checkpoint in place, as Java's mapped page is. Blocking.
pub fn save_checkpoint(layout: &Layout, checkpoint: &Checkpoint) -> Result<(), OpenError> {
    let path = layout.checkpoint();
    let write = || {
        let file = disk::open_or_create(&path)?;
        disk::write_at(&file, &path, &checkpoint.encode(), 0)?;
        disk::sync(&file, &path)
    };
    write().map_err(io_at(&path))
}

#[cfg(test)]
mod tests;
