//! Finding the log's true end and making the derived data agree with it. Source: store.md 8, rules R2, R3, R4, R7.
//!
//! The scan starts at a safe point (checkpoint time, flushed position, end of the index), checks every record, and gives
//! each a second chance to be dispatched: a unit that is there already is compared, a missing one is written. If a queue
//! turns out to lack units from before the scan, the whole log is scanned. Only a torn tail is cut, and what is cut is
//! copied to quarantine first. Everything that was found or written is synced before anybody builds on it: after a kill
//! it may be in the page cache alone.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::index_builder::{index_header, make_file};
use super::layout::Layout;
use super::open_error::{OpenError, io_at};
use super::queues::handle;
use super::queues::{QueueView, UnitFile, queue_dir};
use super::shared::StoreSettings;
use crate::format::checkpoint::Checkpoint;
use crate::format::config_files::TopicsFile;
use crate::format::index_file;
use crate::format::names;
use crate::format::record::{self, RecordView, sys_flag};
use crate::format::unit::{UNIT_LEN, Unit};
use crate::index::{self, Full, IndexFile, IndexFileMut};
use crate::io::{Segment, SharedMap, disk, fsync_dir, remove_if_present, written_ranges};
use crate::log::{ScanEnd, Scanned, SegmentScan, find_record};
use crate::types::{PhyOffset, QueueKey, QueueOffset, TagsCode, Timestamp, properties};

/// The one topic whose units hold a delivery time instead of a tag hash.
const SCHEDULE_TOPIC: &str = "SCHEDULE_TOPIC_XXXX";
/// Names of topics that brokers make for themselves and for groups begin so.
const SYSTEM_PREFIXES: [&str; 4] = ["RMQ_SYS_", "rmq_sys_", "%RETRY%", "%DLQ%"];
/// Names of light queues begin so; their units lead to messages of other topics (store.md 3.6).
const LIGHT_QUEUE_PREFIX: &str = "%LMQ%";
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);

/// What a recovery works on.
pub struct Recovery<'a> {
    pub layout: &'a Layout,
    pub settings: &'a StoreSettings,
    pub segments: &'a [Arc<Segment>],
    pub checkpoint: &'a Checkpoint,
    /// Saved by us; `None` in a store that Java wrote.
    pub flushed: Option<PhyOffset>,
    /// Scan everything: what the derived files lack may be from anywhere in the log.
    pub whole: bool,
    /// All topics there are, if that is sure: after a kill the list may lack the newest.
    pub topics: Option<&'a TopicsFile>,
    pub queues: &'a mut Vec<Arc<QueueView>>,
    pub index: &'a mut Vec<Arc<SharedMap>>,
}

/// Where the log ends.
#[derive(Clone, Copy, Debug)]
pub struct RecoveredLog {
    pub end: PhyOffset,
    pub last_stored_at: Timestamp,
}

/// Opens every consume queue file and counts what it holds.
pub fn load_queues(layout: &Layout, settings: &StoreSettings) -> Result<Vec<Arc<QueueView>>, OpenError> {
    let mut queues = Vec::new();
    let root = layout.consumequeue();
    for topic in sub_dirs(&root)? {
        for id in sub_dirs(&root.join(&topic))? {
            let dir = root.join(&topic).join(&id);
            let Some(queue_id) = queue_id(&id) else {
                tracing::warn!(path = %dir.display(), "not a queue; left alone");
                continue;
            };
            let key = QueueKey::new(topic.as_str(), queue_id);
            let files = load_queue_files(&dir, settings.consumequeue_len)?;
            let (files, max) = written_end(files);
            let view = QueueView::with_files(key, handle(queues.len()), files);
            view.publish(QueueOffset(0), max);
            queues.push(view);
        }
    }
    Ok(queues)
}

fn sub_dirs(dir: &Path) -> Result<Vec<String>, OpenError> {
    let mut found = Vec::new();
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        entries => entries.map_err(io_at(dir))?,
    };
    for entry in entries {
        let entry = entry.map_err(io_at(dir))?;
        let is_dir = entry.file_type().map_err(io_at(dir))?.is_dir();
        match entry.file_name().into_string() {
            Ok(name) if is_dir => found.push(name),
            _ => tracing::warn!(path = %entry.path().display(), "not a folder of a topic or queue; left alone"),
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// The queue that a folder's name says; ids are Java's, which are signed.
fn queue_id(name: &str) -> Option<u32> {
    let id = name.parse::<i32>().ok().filter(|id| id.to_string() == name)?;
    u32::try_from(id).ok()
}

fn load_queue_files(dir: &Path, len: u64) -> Result<Vec<Arc<UnitFile>>, OpenError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).map_err(io_at(dir))? {
        let path = entry.map_err(io_at(dir))?.path();
        let meta = fs::metadata(&path).map_err(io_at(&path))?;
        match segment_start(&path) {
            Some(start) if meta.is_file() => found.push((start, meta.len(), path)),
            _ => tracing::warn!(path = %path.display(), "not a consume queue file; left alone"),
        }
    }
    found.sort_unstable();
    if let Some((_, 0, path)) = found.last() {
        remove_if_present(path).map_err(io_at(path))?;
        found.pop();
    }
    let mut files: Vec<Arc<UnitFile>> = Vec::new();
    for (start, size, path) in found {
        if size != len {
            let key = "store.consumequeue_file_size";
            return Err(OpenError::WrongSize { path, found: size, expected: len, key });
        }
        if start % len != 0 {
            return Err(OpenError::Foreign { path, what: "no consume queue file of this length starts there" });
        }
        let first = QueueOffset(start / UNIT_LEN as u64);
        if files.last().is_some_and(|last| last.end() != first) {
            tracing::warn!(path = %path.display(), "a consume queue file before it is missing; both are built anew");
            break;
        }
        let map = SharedMap::open(&path, len).map_err(io_at(&path))?;
        files.push(Arc::new(UnitFile::new(first, map)));
    }
    Ok(files)
}

/// The position that a segment's or consume queue file's name says.
fn segment_start(path: &Path) -> Option<u64> {
    path.file_name().and_then(|name| name.to_str()).and_then(names::parse_segment_name)
}

/// The files that hold units (later ones are left out), and the queue offset behind the last unit.
fn written_end(mut files: Vec<Arc<UnitFile>>) -> (Vec<Arc<UnitFile>>, QueueOffset) {
    while let Some(last) = files.last() {
        let bytes = last.map().bytes(0, last.map().len());
        let units = crate::queue::written_units(bytes);
        if units > 0 || files.len() == 1 {
            let max = last.first().advance(units as u64);
            return (files, max);
        }
        files.pop();
    }
    (files, QueueOffset(0))
}

/// Opens the index files, oldest first. After an unclean stop the newest is repaired.
pub fn load_index(layout: &Layout, settings: &StoreSettings, unclean: bool) -> Result<Vec<Arc<SharedMap>>, OpenError> {
    let dir = layout.index();
    let (slots, units) = (settings.index_slots, settings.index_entries);
    let expected = index_file::file_len(slots, units);
    let entries = match fs::read_dir(&dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(io_at(&dir))?,
    };
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(io_at(&dir))?.path();
        if path.file_name().and_then(|name| name.to_str()).is_some_and(names::is_index_name) {
            paths.push(path);
        } else {
            tracing::warn!(path = %path.display(), "not an index file; left alone");
        }
    }
    paths.sort_unstable();
    let mut files = Vec::new();
    for path in paths {
        let found = fs::metadata(&path).map_err(io_at(&path))?.len();
        if found == 0 {
            remove_if_present(&path).map_err(io_at(&path))?;
            continue;
        }
        if found != expected {
            return Err(OpenError::WrongSize {
                path,
                found,
                expected,
                key: "store.index_slots and store.index_entries",
            });
        }
        let map = SharedMap::open(&path, expected).map_err(io_at(&path))?;
        files.push(Arc::new(map));
    }
    if let Some(last) = files.last()
        && unclean
    {
        let used = index_file::unit_at(slots, index_header(last).next_unit.min(units));
        last.reserve(used).map_err(io_at(last.path()))?;
        // SAFETY: no core runs yet; nobody else looks at the file.
        let bytes = unsafe { last.whole_mut() };
        index::repair(bytes, slots, units);
    }
    Ok(files)
}

/// Scans the log, cuts a torn tail, and completes consume queues and index.
///
/// # Errors
/// Damage in mid-log, a log that is shorter than what was flushed, a gap in a queue, or what the file system says.
pub fn recover(recovery: Recovery<'_>) -> Result<RecoveredLog, OpenError> {
    let Some(first) = recovery.segments.first() else { return without_segments(&recovery) };
    let oldest = first.start();
    let start = safe_start(&recovery);
    tracing::info!(from = %start, oldest = %oldest, "scanning the commit log");
    let Recovery { layout, settings, segments, flushed, topics, queues, index, .. } = recovery;
    let mut rebuild = Rebuild::new(layout, settings, segments, topics, queues, index);
    rebuild.start_at(start);
    let log = match scan(segments, start, flushed, &mut rebuild) {
        Err(ScanError::Gap(gap)) if start > oldest => {
            tracing::warn!(queue = %gap.queue, expected = gap.expected, found = gap.found,
                "a consume queue lacks units from before the scan; scanning the whole log");
            rebuild.start_at(oldest);
            scan(segments, oldest, flushed, &mut rebuild)
        }
        outcome => outcome,
    };
    let log = log.map_err(|error| match error {
        ScanError::Gap(gap) => {
            OpenError::Gap { queue: gap.queue, expected: gap.expected, found: gap.found, phy: gap.phy }
        }
        ScanError::Open(error) => error,
    })?;
    if let Some(flushed) = flushed.filter(|flushed| *flushed > log.end) {
        return Err(OpenError::Short { missing: layout.segment(log.end), end: log.end, flushed });
    }
    cut_tail(layout, segments, log.end)?;
    sync_segments(segments, flushed.unwrap_or(oldest), log.end)?;
    rebuild.finish(log.end)?;
    tracing::info!(end = %log.end, records = rebuild.records, units_written = rebuild.units_written, "commit log recovered");
    Ok(log)
}

/// No segment at all: right for a new store, and for no other.
fn without_segments(recovery: &Recovery<'_>) -> Result<RecoveredLog, OpenError> {
    let end = PhyOffset(0);
    if let Some(flushed) = recovery.flushed.filter(|flushed| *flushed > end) {
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
    let is_safe = |first: RecordView<'_>| first.store_timestamp() <= safe_time && first.store_timestamp().0 > 0;
    let newest_safe = segments.iter().rev().find(|segment| first_record(segment).is_some_and(is_safe));
    let start = newest_safe.map_or(oldest, |segment| segment.start());
    let indexed = indexed_files(recovery.index).next().map_or(PhyOffset(0), |file| index_header(file).end_phy);
    start.min(flushed.segment_start(segment_len)).min(indexed.segment_start(segment_len)).max(oldest)
}

/// The index files that hold entries, newest first: one that was only just made says nothing.
fn indexed_files(files: &[Arc<SharedMap>]) -> impl Iterator<Item = &Arc<SharedMap>> {
    files.iter().rev().filter(|file| index_header(file).next_unit > 1)
}

fn first_record(segment: &Segment) -> Option<RecordView<'_>> {
    let view = RecordView::parse(segment.bytes()).ok()?;
    (view.phy() == segment.start()).then_some(view)
}

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

fn scan(
    segments: &[Arc<Segment>],
    from: PhyOffset,
    flushed: Option<PhyOffset>,
    rebuild: &mut Rebuild<'_>,
) -> Result<RecoveredLog, ScanError> {
    let mut log = RecoveredLog { end: from, last_stored_at: Timestamp(0) };
    let total = segments.last().map_or(0, |last| last.end().since(from));
    let (began, mut reported) = (Instant::now(), Instant::now());
    for segment in segments.iter().filter(|segment| segment.start() >= from) {
        if segment.start() != log.end {
            break;
        }
        let mut records = SegmentScan::new(segment.bytes(), segment.start(), segment.start());
        let end = loop {
            match records.step() {
                Scanned::Record(view) => {
                    rebuild.dispatch(&view)?;
                    log.end = view.phy().advance(u64::from(view.total_len()));
                    log.last_stored_at = log.last_stored_at.max(view.store_timestamp());
                    if reported.elapsed() > PROGRESS_INTERVAL {
                        reported = Instant::now();
                        let done = log.end.since(from);
                        let rate = done as f64 / began.elapsed().as_secs_f64();
                        let left_s = (total - done) as f64 / rate;
                        tracing::info!(at = %log.end, "scanned {} of at most {} MiB, {left_s:.0} s left", done >> 20, total >> 20);
                    }
                }
                Scanned::End(end) => break end,
            }
        };
        match end {
            ScanEnd::Rolled { next } => log.end = next,
            ScanEnd::Clean { at } => {
                refuse_if_damage(segments, segment, at, "no record", flushed)?;
                break;
            }
            ScanEnd::Torn { at, why } => {
                refuse_if_damage(segments, segment, at, &why.to_string(), flushed)?;
                tracing::warn!(path = %segment.path().display(), phy_offset = %at, %why, "torn tail; the log ends here");
                break;
            }
        }
    }
    rebuild.settle_all()?;
    Ok(log)
}

/// A bad place is the end of the log only if nothing that counts lies behind it (rules R2 and R5): below the saved flushed
/// position it is damage; without one (Java's store) it is if any whole record follows.
fn refuse_if_damage(
    segments: &[Arc<Segment>],
    segment: &Segment,
    at: PhyOffset,
    why: &str,
    flushed: Option<PhyOffset>,
) -> Result<(), OpenError> {
    if flushed.is_some_and(|flushed| at >= flushed) {
        return Ok(());
    }
    let here = std::iter::once(segment);
    let behind = segments.iter().map(Arc::as_ref).filter(|other| other.start() > segment.start());
    let mut next = None;
    for (index, other) in here.chain(behind).enumerate() {
        // The bad place itself is known; a record that starts there would have been taken.
        let from = if index == 0 { at.advance(1) } else { other.start() };
        if data_follows(other, from).map_err(io_at(other.path()))? {
            next = find_record(other.bytes(), other.start(), from);
        }
        if next.is_some() {
            break;
        }
    }
    if next.is_none() && flushed.is_none() {
        return Ok(());
    }
    Err(OpenError::Damaged { path: segment.path().to_owned(), at, why: why.to_owned(), next, flushed })
}

/// Does the file hold written blocks behind `from`? Blocks reserved and never written need not be read.
fn data_follows(segment: &Segment, from: PhyOffset) -> io::Result<bool> {
    let file = fs::File::open(segment.path())?;
    Ok(!written_ranges(&file, from.since(segment.start()), segment.bytes().len() as u64)?.is_empty())
}

/// Zeroes everything behind the log's end (rule R3), after copying what is not zero to quarantine, and syncs.
fn cut_tail(layout: &Layout, segments: &[Arc<Segment>], end: PhyOffset) -> Result<(), OpenError> {
    for segment in segments.iter().filter(|segment| segment.end() > end) {
        let path = segment.path();
        let from = end.max(segment.start()).since(segment.start());
        let stale = stale_ranges(segment, from).map_err(io_at(path))?;
        if stale.is_empty() {
            continue;
        }
        let dir = layout.quarantine();
        disk::make_folders(&dir).map_err(io_at(&dir))?;
        for (at, len) in &stale {
            let phy = segment.start().0 + at;
            let bytes = &segment.bytes()[*at as usize..(at + len) as usize];
            let copy = quarantine_copy(&dir, phy, bytes).map_err(io_at(&dir))?;
            tracing::warn!(path = %path.display(), phy_offset = phy, len, copy = %copy.display(), "cut");
        }
        // The copies have to be there for good before the originals go.
        fsync_dir(&dir).and_then(|()| fsync_dir(&layout.own())).map_err(io_at(&dir))?;
        let file = disk::open_to_write(path).map_err(io_at(path))?;
        let zeros = vec![0u8; 64 * 1024];
        for (at, len) in stale {
            let mut done = 0;
            while done < len {
                let part = (len - done).min(zeros.len() as u64);
                disk::write_at(&file, path, &zeros[..part as usize], at + done).map_err(io_at(path))?;
                done += part;
            }
        }
        disk::sync(&file, path).map_err(io_at(path))?;
    }
    Ok(())
}

/// Keeps bytes of the log that are about to be cut, in a file of their own: an earlier cut at the same place stays.
fn quarantine_copy(dir: &Path, phy: u64, bytes: &[u8]) -> io::Result<std::path::PathBuf> {
    let mut number = 0;
    loop {
        let path = match number {
            0 => dir.join(names::segment_name(phy)),
            _ => dir.join(format!("{}.{number}", names::segment_name(phy))),
        };
        match disk::create_new(&path) {
            Ok(file) => {
                disk::write_at(&file, &path, bytes, 0)?;
                disk::sync(&file, &path)?;
                return Ok(path);
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
            Err(error) => return Err(error),
        }
    }
}

/// Brings what the scan found from `from` on onto stable storage. What a killed process wrote may be in the page cache
/// alone, and from now on it counts as flushed.
fn sync_segments(segments: &[Arc<Segment>], from: PhyOffset, end: PhyOffset) -> Result<(), OpenError> {
    for segment in segments.iter().filter(|segment| segment.end() > from && segment.start() < end) {
        let path = segment.path();
        disk::sync_path(path).map_err(io_at(path))?;
    }
    Ok(())
}

/// The ranges (at, len) behind `from` that hold anything but zeros, as page-sized runs; reserved, unwritten blocks are
/// stepped over.
fn stale_ranges(segment: &Segment, from: u64) -> io::Result<Vec<(u64, u64)>> {
    const PAGE: u64 = 4096;
    let file = fs::File::open(segment.path())?;
    let bytes = segment.bytes();
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for (at, len) in written_ranges(&file, from, bytes.len() as u64)? {
        let (mut at, written_end) = (at, at + len);
        while at < written_end {
            let end = (at / PAGE * PAGE + PAGE).min(written_end);
            if bytes[at as usize..end as usize].iter().any(|byte| *byte != 0) {
                match ranges.last_mut() {
                    Some((start, len)) if *start + *len == at => *len = end - *start,
                    _ => ranges.push((at, end - at)),
                }
            }
            at = end;
        }
    }
    Ok(ranges)
}

/// A record as its queue sees it.
#[derive(Clone, Copy, Debug)]
struct Place {
    offset: QueueOffset,
    unit: Unit,
}

/// What a scan has met of one queue.
#[derive(Clone, Copy, Debug, Default)]
struct Met {
    /// Its newest record, those in doubt aside.
    newest: Option<Place>,
    /// The record behind that, whose queue offset goes back and is in no unit: it was given out once more (a topic that
    /// was deleted and made again, J1, J2), or is damaged. The queue's next record tells.
    doubtful: Option<Place>,
}

/// Gives scanned records a second chance to be in their consume queue and the index.
struct Rebuild<'a> {
    layout: &'a Layout,
    settings: &'a StoreSettings,
    segments: &'a [Arc<Segment>],
    topics: Option<&'a TopicsFile>,
    queues: &'a mut Vec<Arc<QueueView>>,
    by_key: HashMap<QueueKey, usize>,
    index: &'a mut Vec<Arc<SharedMap>>,
    /// Newest message that the index held before.
    indexed_to: Option<PhyOffset>,
    delays_ms: Vec<i64>,
    /// Where the scan began.
    from: PhyOffset,
    /// What the scan has met of each queue, by handle.
    met: Vec<Met>,
    /// Folders in which it made consume queue files.
    made_in: BTreeSet<PathBuf>,
    records: u64,
    units_written: u64,
}

impl<'a> Rebuild<'a> {
    fn new(
        layout: &'a Layout,
        settings: &'a StoreSettings,
        segments: &'a [Arc<Segment>],
        topics: Option<&'a TopicsFile>,
        queues: &'a mut Vec<Arc<QueueView>>,
        index: &'a mut Vec<Arc<SharedMap>>,
    ) -> Rebuild<'a> {
        let by_key = queues.iter().enumerate().map(|(at, queue)| (queue.key().clone(), at)).collect();
        Rebuild {
            layout,
            settings,
            segments,
            topics,
            by_key,
            index,
            indexed_to: None,
            delays_ms: settings.delays_ms.clone(),
            from: PhyOffset(0),
            met: vec![Met::default(); queues.len()],
            made_in: BTreeSet::new(),
            queues,
            records: 0,
            units_written: 0,
        }
    }

    /// Makes ready for a scan that begins there, the first or one more.
    fn start_at(&mut self, from: PhyOffset) {
        self.from = from;
        self.met.fill(Met::default());
        self.indexed_to = indexed_files(self.index).next().map(|file| index_header(file).end_phy);
        (self.records, self.units_written) = (0, 0);
    }

    /// Does the scan cover all there is? Then what a queue lacks before its first record met is not in the log.
    fn is_whole(&self) -> bool {
        self.from == self.segments[0].start()
    }

    fn dispatch(&mut self, view: &RecordView<'_>) -> Result<(), ScanError> {
        self.records += 1;
        let transaction = view.sys_flag() & sys_flag::TRANSACTION_MASK;
        if transaction != sys_flag::TRANSACTION_PREPARED && transaction != sys_flag::TRANSACTION_ROLLBACK {
            // Before the index: a record that turns out to be damaged leaves no trace there.
            self.queue_up(view)?;
        }
        if transaction != sys_flag::TRANSACTION_ROLLBACK {
            self.index(view)?;
        }
        Ok(())
    }

    fn queue_up(&mut self, view: &RecordView<'_>) -> Result<(), ScanError> {
        let Ok(queue_id) = u32::try_from(view.queue_id()) else {
            return Err(self.damaged(view.phy(), format!("the message says that its queue id is {}", view.queue_id())));
        };
        let key = QueueKey::new(view.topic(), queue_id);
        if !self.by_key.contains_key(&key) {
            if self.is_deleted(&key.topic) {
                return Ok(());
            }
            if !is_folder_name(&key.topic) {
                return Err(self.damaged(view.phy(), format!("the message says that its topic is {:?}", key.topic)));
            }
        }
        let at = self.queue(key);
        let unit = Unit { phy: view.phy(), len: view.total_len(), tags: self.tags(view) };
        let place = Place { offset: view.queue_offset(), unit };
        self.settle(at, Some(place.offset))?;
        self.check_offset(at, place)?;
        let goes_back = self.met[at].newest.is_some_and(|newest| place.offset <= newest.offset);
        if goes_back && !is_in_files(&self.queues[at], place) {
            self.met[at].doubtful = Some(place);
            return Ok(());
        }
        self.place(at, place)
    }

    /// Can the record have this queue offset (rule R2)? The checksum covers the body alone, so any bytes may stand there.
    ///
    /// Whatever a unit confirms is right: Java may have lost count, and the consume queue files know.
    fn check_offset(&self, at: usize, place: Place) -> Result<(), ScanError> {
        let (queue, Place { offset, unit }) = (&self.queues[at], place);
        if is_in_files(queue, place) {
            return Ok(());
        }
        let damaged = |why: &str| {
            let why = format!("the message says that its queue offset in {} is {offset}, {why}", queue.key());
            Err(self.damaged(unit.phy, why))
        };
        // Whatever passes is far from what a queue can hold, which is i64::MAX / 20.
        if offset.0 > most_messages(unit.phy) {
            return damaged("but so many messages do not fit in the log before it");
        }
        let newest = self.met[at].newest;
        let starts_complete = newest.is_none() && self.is_whole() && self.from == PhyOffset(0);
        let before = offset.0.checked_sub(1).map(QueueOffset);
        if starts_complete
            && before.is_some_and(|before| !unit_in_files(queue, before).is_some_and(|u| u.is_pre_blank()))
        {
            return damaged("but it is the first of the queue in a log of which nothing is missing");
        }
        let follows = newest.is_some_and(|newest| Some(newest.offset) == before);
        match self.unit_leading_to(queue, &unit) {
            // The units may be wrong instead: a slot too early (J3), or left over from a log that was cut (J4). Then they
            // are written anew.
            Some(told) if told != offset && !follows && self.is_among_sound_units(queue, told) => {
                damaged(&format!("but its unit in the consume queue is that of {told}"))
            }
            _ => Ok(()),
        }
    }

    /// The queue offset whose unit leads to this record.
    fn unit_leading_to(&self, queue: &QueueView, unit: &Unit) -> Option<QueueOffset> {
        let max = queue.max();
        let newest = unit_in_files(queue, QueueOffset(max.0.checked_sub(1)?))?;
        if newest.phy < unit.phy {
            return None;
        }
        let first = queue.files().first()?.first();
        let look = |at| Ok::<_, std::convert::Infallible>(unit_in_files(queue, at).unwrap_or(Unit::PRE_BLANK));
        let Ok(at) = crate::queue::first_at_or_after(first..max, unit.phy, look);
        unit_in_files(queue, at).filter(|found| (found.phy, found.len) == (unit.phy, unit.len)).map(|_| at)
    }

    /// Do the units beside this one lead to the messages that they are of, as far as the log still has them?
    fn is_among_sound_units(&self, queue: &QueueView, offset: QueueOffset) -> bool {
        let beside = [offset.0.checked_sub(1), offset.0.checked_add(1)].into_iter().flatten().map(QueueOffset);
        beside.filter_map(|at| Some((at, queue.units_from(at)?.get(0)))).all(|(at, unit)| {
            unit.is_pre_blank() || unit.phy < self.segments[0].start() || self.leads_to(queue, at, &unit)
        })
    }

    /// Decides about a record in doubt, knowing the queue's next (`None`: the scan is over).
    fn settle(&mut self, at: usize, next: Option<QueueOffset>) -> Result<(), ScanError> {
        let Some(doubtful) = self.met[at].doubtful.take() else { return Ok(()) };
        if let (Some(newest), Some(next)) = (self.met[at].newest, next)
            && next.0.checked_sub(2) == Some(newest.offset.0)
        {
            let (queue, newest) = (self.queues[at].key(), newest.offset);
            let why = format!(
                "the message says that its queue offset in {queue} is {}, but it lies between those of {newest} and {next}",
                doubtful.offset
            );
            return Err(self.damaged(doubtful.unit.phy, why));
        }
        self.place(at, doubtful)
    }

    fn settle_all(&mut self) -> Result<(), ScanError> {
        (0..self.met.len()).try_for_each(|at| self.settle(at, None))
    }

    fn damaged(&self, at: PhyOffset, why: String) -> ScanError {
        let path = self.layout.segment(at.segment_start(self.settings.segment_len));
        ScanError::Open(OpenError::Damaged { path, at, why, next: None, flushed: None })
    }

    /// A topic that is in no list of topics was deleted, and its messages do not come back (rule R15). Without any list,
    /// as in the golden stores, nobody knows. Topics of the system need not be listed.
    fn is_deleted(&self, topic: &str) -> bool {
        let of_system = topic == SCHEDULE_TOPIC || SYSTEM_PREFIXES.iter().any(|prefix| topic.starts_with(prefix));
        let listed = self.topics.map(|file| &file.topics).filter(|topics| !topics.is_empty());
        !of_system && listed.is_some_and(|topics| !topics.contains_key(topic))
    }

    /// Sees to it that a queue has this unit.
    fn place(&mut self, at: usize, place: Place) -> Result<(), ScanError> {
        let (queue, Place { offset, unit }) = (Arc::clone(&self.queues[at]), place);
        let newest = self.met[at].newest.replace(place);
        let failed = || OpenError::from_io(queue_dir(&self.layout.consumequeue(), queue.key()));
        let found = queue.units_from(offset).map(|run| run.get(0));
        match found {
            Some(found) if found == unit => return Ok(()),
            Some(found) if found.phy == unit.phy => {
                // Torn within itself; what comes behind is looked at in its turn.
                rewrite_unit(&queue, offset, &unit).map_err(failed())?;
                self.units_written += 1;
                return Ok(());
            }
            // This record's offset was given out once more: its topic was deleted and made again, or Java lost count
            // (J1, J2). The newer message has it.
            Some(found) if found.phy > unit.phy && self.leads_to(&queue, offset, &found) => return Ok(()),
            _ => {}
        }
        if offset >= queue.max()
            && let Some(last) = queue.max().0.checked_sub(1).map(QueueOffset)
            && let Some(unit_of_last) = queue.units_from(last).map(|run| run.get(0))
            && unit_of_last.phy > unit.phy
            && self.leads_to(&queue, last, &unit_of_last)
        {
            // As above, with more messages than the newer count has reached.
            return Ok(());
        }
        if let Some(newest) = newest
            && Some(newest.offset) < offset.0.checked_sub(1).map(QueueOffset)
        {
            // The scan left nothing out between the two.
            let why = format!(
                "the message says that its queue offset in {} is {offset}, but the one before it, at {}, has {}",
                queue.key(),
                newest.unit.phy,
                newest.offset
            );
            return Err(self.damaged(unit.phy, why));
        }
        let before = offset.0.checked_sub(1).and_then(|before| unit_in_files(&queue, QueueOffset(before)));
        if newest.is_none() && self.is_whole() && before.is_some_and(|before| before.phy >= unit.phy) {
            // The log has nothing for the units before the queue's first message; these lead behind it (J3).
            drop_files(&queue).map_err(failed())?;
        }
        if offset < queue.max() {
            match found {
                // A unit that the log does not know.
                Some(_) => cut_queue(&queue, offset).map_err(failed())?,
                None if self.is_whole() => drop_files(&queue).map_err(failed())?,
                None => return Err(gap(&queue, place)),
            }
        }
        if offset > queue.max() {
            if !(self.is_whole() && newest.is_none()) {
                return Err(gap(&queue, place));
            }
            // The log begins in the middle of the queue.
            drop_files(&queue).map_err(failed())?;
        }
        self.push_unit(&queue, offset, &unit).map_err(failed())?;
        self.units_written += 1;
        Ok(())
    }

    /// Does the unit at `offset` lead to the message of this queue that has that offset?
    fn leads_to(&self, queue: &QueueView, offset: QueueOffset, unit: &Unit) -> bool {
        self.record(unit).is_some_and(|view| is_of(&view, queue) && view.queue_offset() == offset)
    }

    /// The record that a unit leads to.
    fn record(&self, unit: &Unit) -> Option<RecordView<'_>> {
        let from = unit.phy.0.checked_sub(self.segments[0].start().0)?;
        let segment = self.segments.get(usize::try_from(from / self.settings.segment_len).ok()?)?;
        let view = RecordView::parse(segment.slice(unit.phy, unit.len as usize)?).ok()?;
        ((view.phy(), view.total_len()) == (unit.phy, unit.len)).then_some(view)
    }

    /// The queue's place in the list; made, empty, if there is none.
    fn queue(&mut self, key: QueueKey) -> usize {
        if let Some(at) = self.by_key.get(&key) {
            return *at;
        }
        let at = self.queues.len();
        self.queues.push(QueueView::new(key.clone(), handle(at)));
        self.met.push(Met::default());
        self.by_key.insert(key, at);
        at
    }

    /// What the unit holds beside place and size (store.md 2.9).
    fn tags(&self, view: &RecordView<'_>) -> TagsCode {
        let text = view.properties();
        if view.topic() == SCHEDULE_TOPIC
            && let Some(level) = properties::get(text, properties::DELAY).and_then(|text| text.parse::<usize>().ok())
            && level > 0
        {
            let delay = self.delays_ms.get(level.min(self.delays_ms.len()).wrapping_sub(1)).copied().unwrap_or(1000);
            return TagsCode(view.store_timestamp().plus_ms(delay).0);
        }
        TagsCode::of(properties::get(text, properties::TAGS))
    }

    fn push_unit(&mut self, queue: &Arc<QueueView>, offset: QueueOffset, unit: &Unit) -> io::Result<()> {
        let len = self.settings.consumequeue_len;
        let units = len / UNIT_LEN as u64;
        let last = queue.files().last().cloned().filter(|file| offset < file.end());
        let file = match last {
            Some(file) => file,
            None => {
                let first = QueueOffset(offset.0 - offset.0 % units);
                let dir = queue_dir(&self.layout.consumequeue(), queue.key());
                let start = first.0.checked_mul(UNIT_LEN as u64).filter(|start| i64::try_from(*start).is_ok());
                let start = start.ok_or_else(|| invalid(format!("no consume queue holds a message {offset}")))?;
                let path = dir.join(names::segment_name(start));
                self.made_in.insert(dir);
                let file = Arc::new(UnitFile::new(first, SharedMap::open(&path, len)?));
                let filler = if queue.files().is_empty() { first.0..offset.0 } else { 0..0 };
                file.map().reserve((offset.0 - first.0 + 1) * UNIT_LEN as u64)?;
                for at in filler {
                    store_unit(&file, QueueOffset(at), &Unit::PRE_BLANK);
                }
                queue.push_file(Arc::clone(&file));
                file
            }
        };
        let end = (offset.0 - file.first().0 + 1) * UNIT_LEN as u64;
        if end > file.map().reserved() {
            file.map().reserve((end + 64 * 1024).min(len))?;
        }
        store_unit(&file, offset, unit);
        queue.publish_max(offset.advance(1));
        Ok(())
    }

    fn index(&mut self, view: &RecordView<'_>) -> Result<(), OpenError> {
        if self.indexed_to.is_some_and(|to| view.phy() < to) {
            return Ok(());
        }
        for key in record::key_hashes(view.topic(), view.properties()) {
            if self.indexed_to == Some(view.phy()) && self.has_entry(key, view.phy()) {
                continue;
            }
            let failed = OpenError::from_io(self.layout.index());
            self.put_key(key, view.phy(), view.store_timestamp()).map_err(failed)?;
        }
        Ok(())
    }

    fn has_entry(&self, key: crate::types::KeyHash, phy: PhyOffset) -> bool {
        let (slots, units) = (self.settings.index_slots, self.settings.index_entries);
        // A message's keys may be divided between a file that they filled and the next.
        indexed_files(self.index).take(2).any(|file| {
            IndexFile::open(file.bytes(0, file.len()), slots, units).is_ok_and(|index| index.holds(key, phy))
        })
    }

    fn put_key(&mut self, key: crate::types::KeyHash, phy: PhyOffset, stored_at: Timestamp) -> io::Result<()> {
        let (slots, units) = (self.settings.index_slots, self.settings.index_entries);
        loop {
            if let Some(file) = self.index.last() {
                let end = index_file::unit_at(slots, index_header(file).next_unit.saturating_add(1).min(units));
                if end > file.reserved() {
                    file.reserve(end + (1 << 20))?;
                }
                // SAFETY: no core runs yet; nobody else looks at the file.
                let bytes = unsafe { file.whole_mut() };
                let mut index = IndexFileMut::open(bytes, slots, units).map_err(invalid)?;
                match index.put(key, phy, stored_at) {
                    Ok(()) => return Ok(()),
                    Err(Full) => file.sync()?,
                }
            }
            self.index.push(Arc::new(make_file(&self.layout.index(), slots, units)?));
        }
    }

    /// Is the unit at the end of a queue one that leads to no message? Light queues hold messages of other topics.
    fn is_stray(&self, queue: &QueueView, offset: QueueOffset, unit: &Unit, end: PhyOffset) -> bool {
        let is_checked = unit.phy >= self.from && !queue.key().topic.starts_with(LIGHT_QUEUE_PREFIX);
        !unit.is_pre_blank() && (unit.phy >= end || (is_checked && !self.leads_to(queue, offset, unit)))
    }

    /// Cuts units and index entries at or behind the log's end, zeroes stale bytes, syncs.
    fn finish(&mut self, end: PhyOffset) -> Result<(), OpenError> {
        for queue in self.queues.iter() {
            let dir = queue_dir(&self.layout.consumequeue(), queue.key());
            let mut max = queue.max();
            while let Some(last) = max.0.checked_sub(1).map(QueueOffset)
                && queue.units_from(last).is_some_and(|run| self.is_stray(queue, last, &run.get(0), end))
            {
                max = last;
                queue.publish_max(max);
            }
            let before = max.0.checked_sub(1).map(QueueOffset);
            if max.0 > most_messages(end) && before.is_some_and(|before| unit_in_files(queue, before).is_none()) {
                tracing::warn!(path = %dir.display(), offset = %max,
                    "an empty consume queue file of a place that no message can have; the queue begins anew");
                drop_files(queue).map_err(io_at(&dir))?;
                max = QueueOffset(0);
            }
            let cut = cut_queue(queue, max)
                .and_then(|()| remove_files_behind(&dir, queue))
                .and_then(|()| sync_units(queue, self.from));
            cut.map_err(OpenError::from_io(dir))?;
        }
        sync_queue_folders(&self.layout.consumequeue(), &self.made_in)?;
        if !self.index.is_empty() {
            let dir = self.layout.index();
            fsync_dir(&dir).map_err(io_at(&dir))?;
        }
        let (slots, units) = (self.settings.index_slots, self.settings.index_entries);
        while let Some(last) = self.index.last() {
            let used = index_file::unit_at(slots, index_header(last).next_unit.min(units));
            last.reserve(used).map_err(io_at(last.path()))?;
            // SAFETY: no core runs yet; nobody else looks at the file.
            let bytes = unsafe { last.whole_mut() };
            index::cut_from(bytes, slots, units, end);
            last.sync().map_err(io_at(last.path()))?;
            if index_header(last).next_unit > 1 || self.index.len() == 1 {
                break;
            }
            let path = last.path().to_owned();
            self.index.pop();
            remove_if_present(&path).map_err(io_at(&path))?;
        }
        Ok(())
    }
}

/// Removes files that a crash left behind the queue's last: nothing of them was taken, and what they hold would pass for
/// units once the queue has grown to there.
fn remove_files_behind(dir: &Path, queue: &QueueView) -> io::Result<()> {
    let kept_end = queue.files().last().map_or(0, |last| last.end().0 * UNIT_LEN as u64);
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let path = entry?.path();
        if segment_start(&path).is_some_and(|start| start >= kept_end) && path.is_file() {
            tracing::info!(path = %path.display(), "consume queue file without units removed");
            remove_if_present(&path)?;
        }
    }
    Ok(())
}

/// Syncs the files that hold units of what was scanned.
fn sync_units(queue: &QueueView, from: PhyOffset) -> io::Result<()> {
    for file in queue.files().iter().rev() {
        file.map().sync()?;
        let first = queue.units_from(file.first()).map(|run| run.get(0));
        if first.is_some_and(|unit| !unit.is_pre_blank() && unit.phy < from) {
            break;
        }
    }
    Ok(())
}

/// Syncs the folders of queues that got new files, and those above them. Blocking.
pub fn sync_queue_folders(consumequeue: &Path, of_queues: &BTreeSet<PathBuf>) -> Result<(), OpenError> {
    let of_topics: BTreeSet<_> = of_queues.iter().filter_map(|dir| dir.parent()).collect();
    let root = (!of_queues.is_empty()).then_some(consumequeue);
    let mut dirs = of_queues.iter().map(PathBuf::as_path).chain(of_topics).chain(root);
    dirs.try_for_each(|dir| fsync_dir(dir).map_err(io_at(dir)))
}

fn gap(queue: &QueueView, Place { offset, unit }: Place) -> ScanError {
    let (expected, found) = (queue.max().0, offset.0);
    ScanError::Gap(Gap { queue: queue.key().to_string(), expected, found, phy: unit.phy })
}

/// Is this record one of this queue?
fn is_of(view: &RecordView<'_>, queue: &QueueView) -> bool {
    let key = queue.key();
    view.topic() == &*key.topic && u32::try_from(view.queue_id()) == Ok(key.queue_id)
}

/// Whatever stands at `offset` in the queue's files, at or behind its end too.
fn unit_in_files(queue: &QueueView, offset: QueueOffset) -> Option<Unit> {
    let files = queue.files();
    let at = files.partition_point(|file| file.first() <= offset).checked_sub(1)?;
    files[at].unit(offset)
}

/// Does a unit say that the record has this queue offset?
fn is_in_files(queue: &QueueView, Place { offset, unit }: Place) -> bool {
    unit_in_files(queue, offset).is_some_and(|found| (found.phy, found.len) == (unit.phy, unit.len))
}

/// How many messages there can be before this place: segments that have expired count too, as physical offsets go on from
/// the log's birth.
fn most_messages(before: PhyOffset) -> u64 {
    before.0 / u64::from(record::RECORD_LEN_MIN)
}

/// Can a folder below the consume queues be called so?
fn is_folder_name(topic: &str) -> bool {
    !matches!(topic, "" | "." | "..") && !topic.contains(['/', '\0'])
}

fn invalid(error: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}

fn store_unit(file: &UnitFile, offset: QueueOffset, unit: &Unit) {
    let at = (offset.0 - file.first().0) as usize * UNIT_LEN;
    // SAFETY: no core runs yet; nobody else looks at the file.
    unsafe { file.map().write(at, &unit.encode()) };
}

/// Stores a unit over the one that is there.
fn rewrite_unit(queue: &QueueView, offset: QueueOffset, unit: &Unit) -> io::Result<()> {
    let files = queue.files();
    let file = files.iter().find(|file| (file.first()..file.end()).contains(&offset));
    let file = file.ok_or_else(|| invalid(format!("no file holds message {offset}")))?;
    file.map().reserve((offset.0 - file.first().0 + 1) * UNIT_LEN as u64)?;
    store_unit(file, offset, unit);
    Ok(())
}

/// Empties a queue, to be built anew from any offset.
fn drop_files(queue: &QueueView) -> io::Result<()> {
    for file in queue.files().iter() {
        remove_if_present(file.map().path())?;
    }
    queue.set_files(Vec::new());
    queue.publish_max(QueueOffset(0));
    Ok(())
}

/// Ends a queue at `max`: later files go, later bytes of the last file become zeros (rule R3); synced by the caller.
fn cut_queue(queue: &Arc<QueueView>, max: QueueOffset) -> io::Result<()> {
    let mut files = queue.files().as_ref().clone();
    while let Some(last) = files.last()
        && (last.first() > max || (last.first() == max && files.len() > 1))
    {
        remove_if_present(last.map().path())?;
        files.pop();
    }
    if let Some(last) = files.last() {
        let at = (max.0 - last.first().0) as usize * UNIT_LEN;
        if let Some(stale) = last.map().last_nonzero(at)? {
            last.map().reserve((stale + 1) as u64)?;
            // SAFETY: no core runs yet; nobody else looks at the file.
            unsafe { last.map().write(at, &vec![0; stale + 1 - at]) };
        }
    }
    queue.set_files(files);
    queue.publish_max(max);
    Ok(())
}

/// The first message of each queue that the log still holds.
pub fn set_minimums(queues: &[Arc<QueueView>], log_min: PhyOffset) {
    for queue in queues {
        let max = queue.max();
        let first = queue.files().first().map_or(QueueOffset(0), |file| file.first());
        queue.publish(first.min(max), max);
        let unit =
            |at| Ok::<_, std::convert::Infallible>(queue.units_from(at).map_or(Unit::PRE_BLANK, |run| run.get(0)));
        let Ok(min) = crate::queue::first_at_or_after(first.min(max)..max, log_min, unit);
        queue.publish(min, max);
    }
}

#[cfg(test)]
mod tests;
