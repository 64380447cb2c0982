//! All that can still be read of a damaged store, copied into a new one.
//!
//! Records keep their positions, so message ids, prepared transactions and whatever else holds a physical offset stay
//! right. What is lost between them is filled with records of rolled back transactions: every broker steps over those, for
//! they have no unit and no index entry. Numbering the positions anew would need no filler, but would break each id that
//! a client or a tool has kept. The filled regions are on the new store's quarantine list, so that queue slots of lost
//! messages lead there and readers step over them (rules R4 and R5).
//!
//! The source is read twice: first for what is lost, and how many messages of one queue may lie in it; then to copy. The
//! new log has its name only once all of it is on stable storage.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::files::StoreDir;
use super::inspect::bounds;
use super::walk::{Event, walk};
use crate::format::config_files::{
    ConfigFileError, ConsumerOffsetsFile, DelayOffsetsFile, SubscriptionGroupsFile, TopicConfig, TopicsFile,
    split_consumer_offset_key,
};
use crate::format::names;
use crate::format::record::{self, BLANK_LEN, RECORD_LEN_MIN, RecordSpec, RecordView, sys_flag};
use crate::format::unit::UNIT_LEN;
use crate::io::{create_full_length, disk, fsync_dir, now, read_if_present, replace_keeping_old};
use crate::store::births::Births;
use crate::store::layout::Layout;
use crate::store::open_error::{OpenError, io_at};
use crate::store::progress::Progress;
use crate::store::quarantine::{self, Kind, Region};
use crate::store::recovery::is_of_system;
use crate::types::{PhyOffset, QueueOffset, Timestamp};

/// A filler is not longer: brokers read it as a whole.
const FILLER_LEN_MAX: u64 = 4 << 20;
const RECORD_MIN: u64 = RECORD_LEN_MIN as u64;
const BLANK: u64 = BLANK_LEN as u64;
/// What a filler says of itself, where it is long enough.
const FILLER_TOPIC: &str = "RMQ_SYS_SALVAGE_FILLER";
/// Bytes gathered before they are written.
const BUFFER_LEN: usize = 4 << 20;

/// What was lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Lost {
    pub phy: u64,
    pub len: u64,
    pub why: String,
    /// The most messages of one queue that are missing there.
    pub messages_of_one_queue: u64,
}

/// What was saved, and what was not.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Salvaged {
    pub records: u64,
    pub record_bytes: u64,
    pub log_start: u64,
    pub log_end: u64,
    /// Regions that the store had and that hold no saved record: between others, and at the ends of the log.
    pub lost: Vec<Lost>,
    pub lost_bytes: u64,
    /// Messages that are known to be missing: their queues' numbers leave them out, or their queues' units lead to none.
    pub lost_messages: u64,
    /// Bytes behind the last whole record that are not zero, up to the end of their file.
    pub tail_bytes: u64,
    /// Bytes that the disk did not give.
    pub unreadable_bytes: u64,
    /// Offsets of consumers and delay levels that were beyond the end of their queue.
    pub offsets_lowered: u64,
    /// Queues whose messages have all expired, and which go on counting.
    pub expired_queues: u64,
    pub config_files: Vec<String>,
    /// Files of `config/` that could not be read, and why; of some an older copy is taken.
    pub config_lost: Vec<String>,
    /// Topics that have messages and were not in the table, with as many queues as are known: put into the new one, since
    /// the table was damaged or there are queues of them.
    pub topics_added: Vec<String>,
    /// Topics that have messages and are in no sound table, and of which there are no queues: they were deleted.
    pub topics_deleted: Vec<String>,
}

/// Copies what is whole from `dir` into `to`, which must be missing or empty, with segments of `segment_len` bytes.
/// Consume queues and index are not made: the new store is as after their loss.
///
/// # Errors
/// Nothing to save, a folder that is not empty, or what the file system says of the new store.
pub fn salvage(
    dir: &StoreDir,
    segment_len: u64,
    to: &Path,
    progress: &mut dyn FnMut(&'static str, u64, u64),
) -> Result<Salvaged, OpenError> {
    refuse_target(dir, to)?;
    let mut plan = Plan::new(segment_len);
    let walked = walk(dir, segment_len, &mut |done, total| progress("reading", done, total), &mut |event| {
        plan.event(&event);
    })?;
    if plan.salvaged.records == 0 {
        let what = "no whole record is left in its files; is it the commit log's folder?";
        return Err(OpenError::Foreign { path: dir.layout.commitlog(), what });
    }
    let mut salvaged = std::mem::take(&mut plan.salvaged);
    salvaged.lost = std::mem::take(&mut plan.lost);
    salvaged.lost_bytes = salvaged.lost.iter().map(|lost| lost.len).sum();
    salvaged.tail_bytes = walked.tail.as_ref().map_or(0, |tail| tail.len);
    salvaged.unreadable_bytes = walked.unreadable_len;

    let layout = Layout::new(to);
    let part = layout.salvage_part();
    disk::make_folders(&part).map_err(io_at(&part))?;
    let mut copy = Copy::new(&part, segment_len, &salvaged.lost);
    walk(dir, segment_len, &mut |done, total| progress("copying", done, total), &mut |event| copy.event(&event))?;
    let (end, stored_at) = copy.finish()?;
    salvaged.log_end = end;
    save_regions(&layout, &part, segment_len, &salvaged.lost)?;
    let mut ends = plan.ends();
    copy_expired_queues(dir, &layout, &mut ends, &mut salvaged)?;
    copy_config(dir, &layout, &plan, &ends, &mut salvaged)?;
    let flushed = Progress { flushed: end, stored_at: stored_at.0, clean: None };
    flushed.save(&layout.flushed()).map_err(io_at(&layout.flushed()))?;
    fsync_dir(&part).map_err(io_at(&part))?;
    disk::rename(&part, &layout.commitlog()).map_err(io_at(&part))?;
    fsync_dir(to).map_err(io_at(to))?;
    proof::add(dir, &plan, &mut salvaged)?;
    Ok(salvaged)
}

impl Salvaged {
    /// Is nothing known to be lost?
    pub fn is_whole(&self) -> bool {
        self.lost.is_empty() && self.lost_messages == 0 && self.tail_bytes == 0 && self.config_lost.is_empty()
    }

    /// Takes from what was saved what a recovery of the new store has found to be damaged: records whose bytes are whole
    /// and say what cannot be. Each is one message.
    ///
    /// # Errors
    /// The new store's list cannot be read.
    pub fn take_back_quarantined(&mut self, to: &Path) -> Result<(), OpenError> {
        for region in quarantine::list(&Layout::new(to))? {
            if self.lost.iter().any(|lost| lost.phy == region.phy) {
                continue;
            }
            self.records = self.records.saturating_sub(1);
            self.record_bytes = self.record_bytes.saturating_sub(region.len);
            self.lost_messages += 1;
            self.lost_bytes += region.len;
            self.lost.push(Lost { phy: region.phy, len: region.len, why: region.why, messages_of_one_queue: 1 });
        }
        self.lost.sort_by_key(|lost| lost.phy);
        Ok(())
    }
}

fn refuse_target(dir: &StoreDir, to: &Path) -> Result<(), OpenError> {
    let is_empty = match fs::read_dir(to) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => true,
        entries => entries.map_err(io_at(to))?.next().is_none(),
    };
    if !is_empty {
        let what = "not empty; name a directory that is not there yet, or remove what an earlier salvage left";
        return Err(OpenError::Foreign { path: to.to_owned(), what });
    }
    // The nearest folder above that is there.
    let above = to.ancestors().find_map(|path| {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        fs::canonicalize(path).ok()
    });
    let source = fs::canonicalize(dir.layout.root()).map_err(io_at(dir.layout.root()))?;
    if above.is_some_and(|above| above.starts_with(&source)) {
        let what = "lies in the store that is to be saved, in which nothing is written; name another directory";
        return Err(OpenError::Foreign { path: to.to_owned(), what });
    }
    Ok(())
}

/// Where the new log has got to; the same for both passes.
struct Cursor {
    segment_len: u64,
    at: u64,
    has_begun: bool,
}

impl Cursor {
    /// The regions, each in one segment, that are lost before something whole at `phy`. None: it cannot be kept, since it
    /// lies where something else was kept, leaves its segment, or leaves less before it than a filler takes.
    fn lost_before(&mut self, phy: u64, len: u64) -> Option<Vec<Range<u64>>> {
        let segment = phy - phy % self.segment_len;
        if !self.has_begun {
            self.at = segment;
        }
        let gap = phy.checked_sub(self.at)?;
        let fits = phy.checked_add(len)? <= segment + self.segment_len;
        let before = phy - self.at.max(segment);
        if !fits || (gap > 0 && before > 0 && before < RECORD_MIN) {
            return None;
        }
        let mut lost = Vec::new();
        let mut at = self.at;
        while at < phy {
            let end = (at - at % self.segment_len + self.segment_len).min(phy);
            lost.push(at..end);
            at = end;
        }
        self.has_begun = true;
        self.at = phy + len;
        Some(lost)
    }

    /// The region that is lost before a blank at `phy`, which ends its segment.
    fn roll(&mut self, phy: u64) -> Option<Vec<Range<u64>>> {
        let lost = self.lost_before(phy, 0)?;
        self.at = phy - phy % self.segment_len + self.segment_len;
        Some(lost)
    }
}

/// Behind the newest message of each queue, by topic and queue id.
type QueueEnds = HashMap<(String, i32), u64>;

/// The messages of one queue as they go by.
#[derive(Clone, Copy)]
struct Seen {
    /// From here on every number is a saved message or counted as lost.
    first: u64,
    next: u64,
    phy: u64,
}

/// The first pass: what is lost.
struct Plan {
    cursor: Cursor,
    queues: HashMap<String, HashMap<i32, Seen>>,
    lost: Vec<Lost>,
    why: HashMap<u64, String>,
    salvaged: Salvaged,
}

impl Plan {
    fn new(segment_len: u64) -> Plan {
        Plan {
            cursor: Cursor { segment_len, at: 0, has_begun: false },
            queues: HashMap::new(),
            lost: Vec::new(),
            why: HashMap::new(),
            salvaged: Salvaged::default(),
        }
    }

    fn event(&mut self, event: &Event<'_>) {
        match event {
            Event::Record(view) => {
                let Some(lost) = self.cursor.lost_before(view.phy().0, view.total_len().into()) else { return };
                if self.salvaged.records == 0 {
                    self.salvaged.log_start = view.phy().0 - view.phy().0 % self.cursor.segment_len;
                }
                self.lose(lost);
                self.salvaged.records += 1;
                self.salvaged.record_bytes += u64::from(view.total_len());
                self.count(view);
            }
            Event::Blank { at } => {
                if self.cursor.has_begun
                    && let Some(lost) = self.cursor.roll(*at)
                {
                    self.lose(lost);
                }
            }
            Event::Damage(damage) => drop(self.why.insert(damage.at, damage.why.clone())),
            Event::Fault { .. } => {}
        }
    }

    /// Where each queue ends.
    fn ends(&self) -> QueueEnds {
        let of_topic = |(topic, queues): (&String, &HashMap<i32, Seen>)| {
            queues.iter().map(|(id, seen)| ((topic.clone(), *id), seen.next)).collect::<Vec<_>>()
        };
        self.queues.iter().flat_map(of_topic).collect()
    }

    fn lose(&mut self, lost: Vec<Range<u64>>) {
        for range in lost {
            let why = self.why.remove(&range.start).unwrap_or_else(|| "missing".into());
            let len = range.end - range.start;
            self.lost.push(Lost { phy: range.start, len, why, messages_of_one_queue: 0 });
        }
    }

    /// How many messages of its queue are missing before this one: they were in the first region behind the one before.
    fn count(&mut self, view: &RecordView<'_>) {
        let transaction = view.sys_flag() & sys_flag::TRANSACTION_MASK;
        if transaction == sys_flag::TRANSACTION_PREPARED || transaction == sys_flag::TRANSACTION_ROLLBACK {
            return;
        }
        let (offset, phy) = (view.queue_offset().0, view.phy().0);
        if offset > phy / RECORD_MIN {
            // So many do not fit before it: no checksum covers the number. A recovery of the new store sets it aside.
            return;
        }
        let queues = match self.queues.get_mut(view.topic()) {
            Some(queues) => queues,
            None => self.queues.entry(view.topic().to_owned()).or_default(),
        };
        let seen = queues.entry(view.queue_id()).or_insert(Seen { first: offset, next: offset, phy });
        let is_first = (seen.phy, seen.first) == (phy, offset);
        // A queue that begins later than the log does may have begun in what was lost.
        let before = match is_first {
            true if self.salvaged.log_start > 0 => None,
            true => Some(Seen { first: 0, next: 0, phy: 0 }),
            false => Some(*seen),
        };
        (seen.next, seen.phy) = (offset.saturating_add(1), phy);
        let Some(before) = before else { return };
        let missing = offset.saturating_sub(before.next);
        let first = self.lost.partition_point(|lost| lost.phy < before.phy);
        if missing > 0
            && let Some(lost) = self.lost.get_mut(first)
        {
            lost.messages_of_one_queue = lost.messages_of_one_queue.max(missing);
            self.salvaged.lost_messages += missing;
            seen.first = seen.first.min(before.first);
        }
    }
}

/// The second pass: writes the new log.
struct Copy<'a> {
    cursor: Cursor,
    lost: std::slice::Iter<'a, Lost>,
    writer: LogWriter<'a>,
    stored_at: Timestamp,
    failed: Option<OpenError>,
}

impl<'a> Copy<'a> {
    fn new(folder: &'a Path, segment_len: u64, lost: &'a [Lost]) -> Copy<'a> {
        Copy {
            cursor: Cursor { segment_len, at: 0, has_begun: false },
            lost: lost.iter(),
            writer: LogWriter { folder, segment_len, open: None, buffer: Vec::new(), buffer_at: 0 },
            stored_at: Timestamp(0),
            failed: None,
        }
    }

    fn event(&mut self, event: &Event<'_>) {
        if self.failed.is_none()
            && let Err(error) = self.take(event)
        {
            self.failed = Some(error);
        }
    }

    fn take(&mut self, event: &Event<'_>) -> Result<(), OpenError> {
        match event {
            Event::Record(view) => {
                let Some(lost) = self.cursor.lost_before(view.phy().0, view.total_len().into()) else { return Ok(()) };
                if self.stored_at.0 == 0 {
                    self.stored_at = view.store_timestamp();
                }
                self.fill(lost)?;
                self.stored_at = self.stored_at.max(view.store_timestamp());
                self.writer.write(view.phy().0, view.bytes())
            }
            Event::Blank { at } if self.cursor.has_begun => {
                let Some(lost) = self.cursor.roll(*at) else { return Ok(()) };
                self.fill(lost)?;
                let left = self.cursor.at - at;
                self.writer.write(*at, &record::encode_blank(left as u32))
            }
            _ => Ok(()),
        }
    }

    fn fill(&mut self, lost: Vec<Range<u64>>) -> Result<(), OpenError> {
        for range in lost {
            let known = self.lost.next().expect("both passes meet the same");
            for piece in filler_pieces(&range, self.cursor.segment_len, known.messages_of_one_queue) {
                let filler = filler(&piece, self.stored_at);
                self.writer.write(piece.start, &filler)?;
            }
            if range.end % self.cursor.segment_len == 0 {
                let blank = blank_behind(&range);
                if let Some(blank) = blank {
                    self.writer.write(blank.start, &record::encode_blank((blank.end - blank.start) as u32))?;
                }
            }
        }
        Ok(())
    }

    fn finish(mut self) -> Result<(u64, Timestamp), OpenError> {
        match self.failed.take() {
            Some(error) => Err(error),
            None => {
                self.writer.finish(true)?;
                Ok((self.cursor.at, self.stored_at))
            }
        }
    }
}

/// The blank that ends a region that reaches to the end of its segment; none if not even a blank fits.
fn blank_behind(range: &Range<u64>) -> Option<Range<u64>> {
    let len = range.end - range.start;
    match len {
        0..BLANK => None,
        _ if len < RECORD_MIN + BLANK => Some(range.clone()),
        _ => Some(range.end - BLANK..range.end),
    }
}

/// How a lost region is divided into fillers: at least as many as messages of one queue were in it, for that is what a
/// recovery takes for the most.
fn filler_pieces(range: &Range<u64>, segment_len: u64, least: u64) -> Vec<Range<u64>> {
    let end = match range.end % segment_len {
        0 => blank_behind(range).map_or(range.start, |blank| blank.start),
        _ => range.end,
    };
    let len = end - range.start;
    if len < RECORD_MIN {
        return Vec::new();
    }
    let count = least.max(len.div_ceil(FILLER_LEN_MAX)).min(len / RECORD_MIN);
    let (each, more) = (len / count, len % count);
    let at = |index: u64| range.start + index * each + index.min(more);
    (0..count).map(|index| at(index)..at(index + 1)).collect()
}

/// A record of a rolled back transaction that takes exactly this place.
fn filler(place: &Range<u64>, stored_at: Timestamp) -> Vec<u8> {
    let host: SocketAddr = (Ipv4Addr::LOCALHOST, 0).into();
    let room = (place.end - place.start - RECORD_MIN) as usize;
    let topic = if room >= FILLER_TOPIC.len() { FILLER_TOPIC } else { "" };
    let body = vec![0; room - topic.len()];
    let spec = RecordSpec {
        topic,
        queue_id: 0,
        flag: 0,
        sys_flag: sys_flag::TRANSACTION_ROLLBACK,
        born_timestamp: stored_at.0,
        born_host: host,
        store_host: host,
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body: &body,
        properties: &[],
    };
    let mut bytes = Vec::new();
    let placed = spec.encode_into(&mut bytes).expect("a filler is a small record");
    record::number(&mut bytes, placed.store_timestamp_at, QueueOffset(0), PhyOffset(place.start), stored_at);
    bytes
}

/// Writes segments in their order.
struct LogWriter<'a> {
    folder: &'a Path,
    segment_len: u64,
    open: Option<(u64, PathBuf, fs::File)>,
    buffer: Vec<u8>,
    buffer_at: u64,
}

impl LogWriter<'_> {
    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), OpenError> {
        let start = at - at % self.segment_len;
        if self.open.as_ref().is_none_or(|(open, ..)| *open != start) {
            self.finish(false)?;
            let path = self.folder.join(names::segment_name(start));
            let file = disk::create_new(&path).map_err(io_at(&path))?;
            disk::resize(&file, &path, self.segment_len).map_err(io_at(&path))?;
            self.open = Some((start, path, file));
        }
        if self.buffer_at + self.buffer.len() as u64 != at || self.buffer.len() + bytes.len() > BUFFER_LEN {
            self.flush()?;
            self.buffer_at = at;
        }
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), OpenError> {
        if let Some((start, path, file)) = &self.open {
            disk::write_at(file, path, &self.buffer, self.buffer_at.saturating_sub(*start)).map_err(io_at(path))?;
        }
        self.buffer.clear();
        Ok(())
    }

    /// Ends the open segment; the last one is where the node will append, so its blocks are reserved.
    fn finish(&mut self, is_last: bool) -> Result<(), OpenError> {
        self.flush()?;
        if let Some((_, path, file)) = self.open.take() {
            disk::sync(&file, &path).map_err(io_at(&path))?;
            if is_last {
                create_full_length(&path, self.segment_len).map_err(io_at(&path))?;
            }
        }
        Ok(())
    }
}

/// Puts what was filled onto the new store's quarantine list, with a copy of the fillers: by it a recovery knows that the
/// region is still what the list means.
fn save_regions(layout: &Layout, log: &Path, segment_len: u64, lost: &[Lost]) -> Result<(), OpenError> {
    let mut regions = Vec::new();
    let folder = layout.quarantine();
    disk::make_folders(&folder).map_err(io_at(&folder))?;
    for lost in lost {
        let range = lost.phy..lost.phy + lost.len;
        let pieces = filler_pieces(&range, segment_len, lost.messages_of_one_queue);
        let (Some(first), Some(last)) = (pieces.first(), pieces.last()) else { continue };
        let (start, len) = (first.start, last.end - first.start);
        let copy = names::segment_name(start);
        let (source, path) = (log.join(names::segment_name(start - start % segment_len)), folder.join(&copy));
        copy_range(&source, start % segment_len, len, &path)?;
        let why = format!("lost before the store was salvaged: {}", lost.why);
        regions.push(Region { phy: start, len, why, kind: Kind::Damaged, copy, at: now().0 });
    }
    fsync_dir(&folder).map_err(io_at(&folder))?;
    quarantine::save(layout, &regions)
}

fn copy_range(source: &Path, from: u64, len: u64, to: &Path) -> Result<(), OpenError> {
    let mut window = super::window::Window::open(source).map_err(io_at(source))?;
    let file = disk::create_new(to).map_err(io_at(to))?;
    let mut done = 0;
    while done < len {
        let part = window.get(from + done, (len - done).min(BUFFER_LEN as u64));
        disk::write_at(&file, to, part, done).map_err(io_at(to))?;
        done += part.len() as u64;
    }
    disk::sync(&file, to).map_err(io_at(to))
}

/// Copies the newest file of each queue whose messages have all expired: nothing else knows how far it had counted.
fn copy_expired_queues(
    dir: &StoreDir,
    layout: &Layout,
    ends: &mut QueueEnds,
    salvaged: &mut Salvaged,
) -> Result<(), OpenError> {
    for queue in &dir.queues {
        let id = (queue.key.topic.to_string(), queue.key.queue_id as i32);
        if ends.contains_key(&id) {
            continue;
        }
        let Ok(bounds) = bounds(dir, queue) else { continue };
        let last = bounds.end.checked_sub(1).map(|last| last * UNIT_LEN as u64);
        let file = last.and_then(|at| queue.files.iter().rfind(|file| file.start <= at));
        let is_expired = bounds.is_empty() && dir.log_min() == salvaged.log_start;
        let Some(file) = file.filter(|_| is_expired) else { continue };
        let from = file.path(&dir.queue_dir(&queue.key));
        let folder = layout.consumequeue().join(&*queue.key.topic).join(queue.key.queue_id.to_string());
        let to = file.path(&folder);
        disk::make_folders(&folder).map_err(io_at(&folder))?;
        copy_range(&from, 0, file.len, &to)?;
        fsync_dir(&folder).map_err(io_at(&folder))?;
        ends.insert(id, bounds.end);
        salvaged.expired_queues += 1;
    }
    Ok(())
}

/// Lowers offsets that are beyond the end of their queue: its next messages would be passed over. None: all are fine.
fn lowered(name: &str, bytes: &[u8], ends: &QueueEnds, salvaged: &mut Salvaged) -> Option<Vec<u8>> {
    let mut count = 0;
    let mut lower = |topic: &str, id: i32, offset: &mut i64| {
        let end = ends.get(&(topic.to_owned(), id)).copied().unwrap_or(0);
        if u64::try_from(*offset).is_ok_and(|offset| offset > end) {
            *offset = i64::try_from(end).unwrap_or(i64::MAX);
            count += 1;
        }
    };
    let encoded = match name {
        names::CONSUMER_OFFSETS => {
            let mut file = ConsumerOffsetsFile::decode(bytes).ok()?;
            for (key, queues) in &mut file.table {
                let Some((topic, _)) = split_consumer_offset_key(key) else { continue };
                queues.iter_mut().for_each(|(id, offset)| lower(topic, *id, offset));
            }
            file.encode()
        }
        names::DELAY_OFFSETS => {
            let mut file = DelayOffsetsFile::decode(bytes).ok()?;
            file.table.iter_mut().for_each(|(level, offset)| lower("SCHEDULE_TOPIC_XXXX", level - 1, offset));
            file.encode()
        }
        _ => return None,
    };
    salvaged.offsets_lowered += count;
    (count > 0).then_some(encoded)
}

/// Copies the tables, each in the version that a start would take.
fn copy_config(
    dir: &StoreDir,
    layout: &Layout,
    plan: &Plan,
    ends: &QueueEnds,
    salvaged: &mut Salvaged,
) -> Result<(), OpenError> {
    let folder = dir.layout.root().join(names::CONFIG);
    let to = layout.root().join(names::CONFIG);
    disk::make_folders(&to).map_err(io_at(&to))?;
    let mut files: Vec<_> = fs::read_dir(&folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.path().is_file())
        .filter_map(|entry| entry.file_name().into_string().ok())
        .map(|name| name.strip_suffix(names::BACKUP_SUFFIX).map_or(name.clone(), str::to_owned))
        .filter(|name| !name.contains(".corrupt-") && !name.ends_with(".tmp"))
        .collect();
    files.sort_unstable();
    files.dedup();
    for name in files {
        let (found, why) = newest_readable(&folder, &name);
        if let Some(why) = &why {
            let instead = if found.is_some() { "; its older copy in .bak is taken" } else { "" };
            salvaged.config_lost.push(format!("{name}: {why}{instead}"));
        }
        let bytes = match (found, name.as_str()) {
            (found, names::TOPICS) => topics(dir, plan, found, why.is_some(), salvaged)?,
            (found, _) => found,
        };
        let Some(bytes) = bytes else { continue };
        let bytes = lowered(&name, &bytes, ends, salvaged).unwrap_or(bytes);
        let path = to.join(&name);
        let file = disk::create_new(&path).map_err(io_at(&path))?;
        disk::write_at(&file, &path, &bytes, 0).map_err(io_at(&path))?;
        disk::sync(&file, &path).map_err(io_at(&path))?;
        salvaged.config_files.push(name);
    }
    let births = dir.layout.own().join("births");
    if let Ok(Some(bytes)) = read_if_present(&births) {
        let path = layout.own().join("births");
        replace_keeping_old(&path, &bytes).map_err(io_at(&path))?;
    }
    fsync_dir(&to).map_err(io_at(&to))
}

/// A table's bytes, or those of its `.bak`; and why not the file itself, if it cannot be read.
fn newest_readable(folder: &Path, name: &str) -> (Option<Vec<u8>>, Option<String>) {
    let read = |candidate: &str| match read_if_present(&folder.join(candidate)) {
        Ok(None) => Err("missing".to_owned()),
        Ok(Some(bytes)) if bytes.trim_ascii().is_empty() => Err("empty".to_owned()),
        Ok(Some(bytes)) => check_table(name, &bytes).map(|()| bytes).map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    match read(name) {
        Ok(bytes) => (Some(bytes), None),
        Err(why) => (read(&format!("{name}{}", names::BACKUP_SUFFIX)).ok(), Some(why)),
    }
}

/// The table of topics with those that it lacks: a start builds no queue of a topic that is in no list, and takes it for
/// deleted. It was if the table is sound and no queue of the topic is there.
fn topics(
    dir: &StoreDir,
    plan: &Plan,
    found: Option<Vec<u8>>,
    is_damaged: bool,
    salvaged: &mut Salvaged,
) -> Result<Option<Vec<u8>>, OpenError> {
    let mut table = found.as_deref().and_then(|bytes| TopicsFile::decode(bytes).ok()).unwrap_or_default();
    let births = Births::load(&dir.layout).unwrap_or_default();
    // Queues of each, and whether any of them has a folder.
    let mut lacking: BTreeMap<&str, (i32, bool)> = BTreeMap::new();
    let mut note = |topic, id: i32, has_folder| {
        let (queues, known) = lacking.entry(topic).or_default();
        *queues = id.saturating_add(1).max(*queues);
        *known |= has_folder;
    };
    for (topic, queues) in &plan.queues {
        let lives = queues.iter().filter(|(id, seen)| **id >= 0 && !births.is_old(topic, PhyOffset(seen.phy)));
        lives.for_each(|(id, _)| note(topic, *id, false));
    }
    for queue in &dir.queues {
        if bounds(dir, queue)?.end > 0 {
            note(&queue.key.topic, queue.key.queue_id as i32, true);
        }
    }
    lacking.retain(|topic, _| !is_of_system(topic) && !topic.is_empty() && !table.topics.contains_key(*topic));
    for (topic, (queues, has_folder)) in lacking {
        if is_damaged || has_folder {
            table.topics.insert(topic.to_owned(), TopicConfig::new(topic, queues));
            salvaged.topics_added.push(topic.to_owned());
        } else {
            salvaged.topics_deleted.push(topic.to_owned());
        }
    }
    Ok(if salvaged.topics_added.is_empty() { found } else { Some(table.encode()) })
}

fn check_table(name: &str, bytes: &[u8]) -> Result<(), ConfigFileError> {
    match name {
        names::TOPICS => TopicsFile::decode(bytes).map(drop),
        names::SUBSCRIPTION_GROUPS => SubscriptionGroupsFile::decode(bytes).map(drop),
        names::CONSUMER_OFFSETS => ConsumerOffsetsFile::decode(bytes).map(drop),
        names::DELAY_OFFSETS => DelayOffsetsFile::decode(bytes).map(drop),
        _ if name.ends_with(".json") => crate::types::json::parse(bytes).map(drop).map_err(ConfigFileError::Json),
        _ => Ok(()),
    }
}

mod proof;
#[cfg(test)]
mod tests;
