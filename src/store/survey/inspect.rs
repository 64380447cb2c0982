//! What a store holds, told from a few reads of each file: names, ends, headers and tables, not every record.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;

use serde::Serialize;

use super::Progress;
use super::files::{QueueEntry, StoreDir};
use super::shape::Shape;
use super::units::UnitReader;
use super::walk::ends;
use super::window::Window;
use crate::format::checkpoint::Checkpoint;
use crate::format::config_files::{ConsumerOffsetsFile, DelayOffsetsFile, SubscriptionGroupsFile, TopicsFile};
use crate::format::index_file::{HEADER_LEN, IndexHeader};
use crate::format::names;
use crate::format::unit::Unit;
use crate::io::read_if_present;
use crate::store::layout::Layout;
use crate::store::open_error::{OpenError, io_at};
use crate::store::quarantine::{self, Region};
use crate::types::{PhyOffset, QueueOffset};

/// Notes of ours that are shown only up to so many bytes.
const NOTE_LEN_MAX: usize = 4096;

/// The commit log.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LogPart {
    pub segments: u64,
    pub segment_len: Option<u64>,
    /// Segments of another length.
    pub odd_segments: u64,
    /// Positions of segments that are missing between others.
    pub missing: Vec<u64>,
    pub start: u64,
    /// Behind the newest whole record.
    pub end: u64,
    /// Blocks on disk, in bytes: files are made ahead and sparse.
    pub allocated: u64,
    pub first_stored_at: Option<i64>,
    pub last_stored_at: Option<i64>,
}

#[derive(Clone, Debug, Serialize)]
pub struct QueuePart {
    pub topic: String,
    pub queue_id: u32,
    /// The oldest message that the log still has.
    pub min: u64,
    pub max: u64,
    pub files: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct IndexPart {
    pub file: String,
    pub len: u64,
    pub entries: u32,
    pub begin: i64,
    pub end: i64,
    pub begin_phy: u64,
    pub end_phy: u64,
}

/// `checkpoint`; times in ms.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct CheckpointPart {
    pub physic: i64,
    pub logics: i64,
    pub index: i64,
    pub master_flushed: u64,
    pub confirm: u64,
}

/// How many entries `config/` has; none where a table cannot be read.
#[derive(Clone, Debug, Default, Serialize)]
pub struct TablesPart {
    pub topics: Option<usize>,
    pub groups: Option<usize>,
    /// Pairs of topic and group.
    pub consumer_offsets: Option<usize>,
    /// By delay level.
    pub delay_offsets: Option<BTreeMap<i32, i64>>,
    /// All files there.
    pub files: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Inspection {
    pub root: String,
    /// A node of ours has worked here.
    pub is_ours: bool,
    pub stopped_cleanly: bool,
    pub log: LogPart,
    pub consumequeue_file_len: Option<u64>,
    pub queues: Vec<QueuePart>,
    pub index_slots: Option<u32>,
    pub index_entries: Option<u32>,
    pub index: Vec<IndexPart>,
    pub checkpoint: Option<CheckpointPart>,
    pub config: TablesPart,
    /// Small files below `kerolox/`, by name.
    pub notes: BTreeMap<String, String>,
    pub quarantined: Vec<Region>,
    pub strays: Vec<String>,
}

/// Looks at everything once; `progress` is told of queues.
///
/// # Errors
/// A file or folder that cannot be read.
pub fn inspect(dir: &StoreDir, shape: &Shape, progress: Progress<'_>) -> Result<Inspection, OpenError> {
    let mut queues = Vec::with_capacity(dir.queues.len());
    for (done, queue) in dir.queues.iter().enumerate() {
        progress(done as u64, dir.queues.len() as u64);
        queues.push(queue_part(dir, queue)?);
    }
    Ok(Inspection {
        root: dir.layout.root().display().to_string(),
        is_ours: dir.is_ours,
        stopped_cleanly: !dir.unclean,
        log: log(dir, shape)?,
        consumequeue_file_len: shape.queue_file_len,
        queues,
        index_slots: shape.index.map(|index| index.slots),
        index_entries: shape.index.map(|index| index.entries),
        index: index(dir)?,
        checkpoint: checkpoint(&dir.layout)?,
        config: tables(&dir.layout)?,
        notes: notes(&dir.layout)?,
        quarantined: quarantine::list(&dir.layout)?,
        strays: dir.strays.iter().map(|path| path.display().to_string()).collect(),
    })
}

fn log(dir: &StoreDir, shape: &Shape) -> Result<LogPart, OpenError> {
    let commitlog = dir.layout.commitlog();
    let segment_len = shape.segment_len.unwrap_or(0);
    let mut part = LogPart { segment_len: shape.segment_len, start: dir.log_min(), ..LogPart::default() };
    let mut expected: Option<u64> = None;
    for file in &dir.segments {
        let path = file.path(&commitlog);
        part.segments += 1;
        part.odd_segments += u64::from(file.len != segment_len);
        part.allocated += fs::metadata(&path).map_err(io_at(&path))?.blocks() * 512;
        part.missing.extend(expected.filter(|expected| *expected < file.start));
        expected = Some(file.start.saturating_add(segment_len));
    }
    let ends = ends(dir)?;
    (part.end, part.first_stored_at, part.last_stored_at) = (ends.end, ends.first_stored_at, ends.last_stored_at);
    Ok(part)
}

/// Bounds of a queue, by bisection.
fn queue_part(dir: &StoreDir, queue: &QueueEntry) -> Result<QueuePart, OpenError> {
    let bounds = bounds(dir, queue)?;
    Ok(QueuePart {
        topic: queue.key.topic.to_string(),
        queue_id: queue.key.queue_id,
        min: bounds.start,
        max: bounds.end,
        files: queue.files.len() as u64,
    })
}

/// The queue offsets of messages that the log still has: found by bisection, so right for queues that are in order.
///
/// # Errors
/// A file that cannot be read.
pub fn bounds(dir: &StoreDir, queue: &QueueEntry) -> Result<std::ops::Range<u64>, OpenError> {
    let folder = dir.queue_dir(&queue.key);
    let mut reader = UnitReader::new(dir, queue);
    let std::ops::Range { start: first, end } = reader.ends().map_err(io_at(&folder))?;
    let mut written = |offset: u64| -> Result<Option<Unit>, OpenError> {
        Ok(reader.unit(offset).map_err(io_at(&folder))?.filter(Unit::is_written))
    };
    let range = QueueOffset(first)..QueueOffset(end);
    let min = crate::queue::first_at_or_after(range, PhyOffset(dir.log_min()), |offset| {
        Ok::<_, OpenError>(written(offset.0)?.unwrap_or(Unit::PRE_BLANK))
    })?;
    Ok(min.0..end)
}

fn index(dir: &StoreDir) -> Result<Vec<IndexPart>, OpenError> {
    let mut parts = Vec::new();
    for (name, len) in &dir.index_files {
        let path = dir.layout.index().join(name);
        let mut window = Window::of_pieces(&path, HEADER_LEN as u64).map_err(io_at(&path))?;
        let header = window.get(0, HEADER_LEN as u64).first_chunk().map_or(IndexHeader::EMPTY, IndexHeader::decode);
        parts.push(IndexPart {
            file: name.clone(),
            len: *len,
            entries: header.next_unit - 1,
            begin: header.begin.0,
            end: header.end.0,
            begin_phy: header.begin_phy.0,
            end_phy: header.end_phy.0,
        });
    }
    Ok(parts)
}

fn checkpoint(layout: &Layout) -> Result<Option<CheckpointPart>, OpenError> {
    let path = layout.checkpoint();
    let bytes = read_if_present(&path).map_err(io_at(&path))?;
    Ok(bytes.and_then(|bytes| Checkpoint::decode(&bytes)).map(|checkpoint| CheckpointPart {
        physic: checkpoint.physic.0,
        logics: checkpoint.logics.0,
        index: checkpoint.index.0,
        master_flushed: checkpoint.master_flushed,
        confirm: checkpoint.confirm,
    }))
}

fn tables(layout: &Layout) -> Result<TablesPart, OpenError> {
    let read = |name: &str| {
        let path = layout.config(name);
        read_if_present(&path).map_err(io_at(&path)).map(Option::unwrap_or_default)
    };
    let mut files: Vec<_> = fs::read_dir(layout.root().join(names::CONFIG))
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    files.sort_unstable();
    Ok(TablesPart {
        topics: TopicsFile::decode(&read(names::TOPICS)?).ok().map(|file| file.topics.len()),
        groups: SubscriptionGroupsFile::decode(&read(names::SUBSCRIPTION_GROUPS)?).ok().map(|file| file.groups.len()),
        consumer_offsets: ConsumerOffsetsFile::decode(&read(names::CONSUMER_OFFSETS)?).ok().map(|f| f.table.len()),
        delay_offsets: DelayOffsetsFile::decode(&read(names::DELAY_OFFSETS)?).ok().map(|file| file.table),
        files,
    })
}

fn notes(layout: &Layout) -> Result<BTreeMap<String, String>, OpenError> {
    let mut notes = BTreeMap::new();
    for entry in fs::read_dir(layout.own()).into_iter().flatten().flatten() {
        let path = entry.path();
        if !path.is_file() {
            continue;
        }
        let bytes = fs::read(&path).map_err(io_at(&path))?;
        let text = String::from_utf8_lossy(&bytes[..bytes.len().min(NOTE_LEN_MAX)]).into_owned();
        notes.insert(entry.file_name().to_string_lossy().into_owned(), text);
    }
    Ok(notes)
}
