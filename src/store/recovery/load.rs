//! What is on the disk before anything is recovered: consume queue files and how much of them is written, index files.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use super::super::births::Births;
use super::super::index_builder::other_shape;
use super::super::layout::Layout;
use super::super::open_error::{OpenError, Remedy, io_at};
use super::super::opening::Opening;
use super::super::queues::{QueueView, UnitFile, handle};
use super::super::shared::StoreSettings;
use super::index::set_right;
use super::unit_files::segment_start;
use crate::format::index_file;
use crate::format::names;
use crate::format::unit::{UNIT_LEN, Unit};
use crate::io::{SharedMap, disk, remove_if_present};
use crate::types::{PhyOffset, QueueKey, QueueOffset};

/// How the end of a queue's last file is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// By bisection: behind the last unit of a file that a clean stop left, all is zero. What is found has to be compared
    /// with what that stop noted.
    Noted,
    /// By a look at every unit of the file: the first that is none, or that leads back, ends the data.
    Looked,
}

/// Opens every consume queue file and counts what it holds. Queues of older generations of their topics go (rule R15).
pub fn load_queues(
    layout: &Layout,
    settings: &StoreSettings,
    births: &Births,
    ends: Ends,
    opening: &Opening,
) -> Result<Vec<Arc<QueueView>>, OpenError> {
    let mut queues = Vec::new();
    let root = layout.consumequeue();
    for topic in sub_dirs(&root)? {
        for id in sub_dirs(&root.join(&topic))? {
            opening.step()?;
            let dir = root.join(&topic).join(&id);
            let Some(queue_id) = queue_id(&id) else {
                tracing::warn!(path = %dir.display(), "not a queue; left alone");
                continue;
            };
            let key = QueueKey::new(topic.as_str(), queue_id);
            let mut files = load_queue_files(&root, &dir, settings.consumequeue_len)?;
            let (max, newest) = written_end(&mut files, ends)?;
            if newest.is_some_and(|newest| births.is_old(&topic, newest.phy)) {
                drop(files);
                remove_old(&root.join(&topic), &dir)?;
                continue;
            }
            let view = QueueView::with_files(key, handle(queues.len()), files);
            view.publish(QueueOffset(0), max);
            queues.push(view);
        }
    }
    Ok(queues)
}

/// Removes the folder of a queue whose topic was deleted before its present messages were sent: a crash came before it was
/// moved away. The topic's own folder goes with its last queue.
fn remove_old(of_topic: &Path, of_queue: &Path) -> Result<(), OpenError> {
    tracing::info!(path = %of_queue.display(), "consume queue of a deleted topic removed");
    disk::remove_tree(of_queue).map_err(io_at(of_queue))?;
    if fs::read_dir(of_topic).map_err(io_at(of_topic))?.next().is_none() {
        disk::remove_tree(of_topic).map_err(io_at(of_topic))?;
    }
    Ok(())
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

/// Is there a file of this length in the folder, or in those so many levels below it?
fn has_file_of(dir: &Path, len: u64, levels: u32) -> Result<bool, OpenError> {
    for entry in fs::read_dir(dir).map_err(io_at(dir))? {
        let path = entry.map_err(io_at(dir))?.path();
        let meta = fs::metadata(&path).map_err(io_at(&path))?;
        if (meta.is_file() && meta.len() == len)
            || (meta.is_dir() && levels > 0 && has_file_of(&path, len, levels - 1)?)
        {
            return Ok(true);
        }
    }
    Ok(false)
}

fn load_queue_files(consumequeue: &Path, dir: &Path, len: u64) -> Result<Vec<Arc<UnitFile>>, OpenError> {
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
    // A crash can leave files of which the length was lost: they hold nothing, and those behind them are built anew.
    if let Some(empty) = found.iter().position(|(_, size, _)| *size == 0) {
        found.truncate(empty);
    }
    let mut files: Vec<Arc<UnitFile>> = Vec::new();
    for (start, size, path) in found {
        if size != len {
            let key = "store.consumequeue_file_size";
            let remedy = has_file_of(consumequeue, len, 2)?.then_some(Remedy::Rebuild);
            return Err(OpenError::WrongSize { path, found: size, expected: len, key, remedy });
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

/// The queue offset behind the last unit, and that unit; files behind it are taken out.
///
/// # Errors
/// [`OpenError::Unreadable`].
fn written_end(files: &mut Vec<Arc<UnitFile>>, ends: Ends) -> Result<(QueueOffset, Option<Unit>), OpenError> {
    while let Some(last) = files.last() {
        let look = || {
            let bytes = last.map().bytes(0, last.map().len());
            let units = match ends {
                Ends::Noted => crate::queue::written_units_by_bisection(bytes),
                Ends::Looked => crate::queue::written_units(bytes),
            };
            let max = last.first().advance(units as u64);
            (units, max, max.0.checked_sub(1).and_then(|newest| last.unit(QueueOffset(newest))))
        };
        let (units, max, newest) = last.map().guarded(look).map_err(|_| unreadable(last.map()))?;
        if units > 0 || files.len() == 1 {
            return Ok((max, newest));
        }
        files.pop();
    }
    Ok((QueueOffset(0), None))
}

fn unreadable(map: &SharedMap) -> OpenError {
    OpenError::Unreadable { path: map.path().to_owned() }
}

/// Opens the index files, oldest first. After an unclean stop the newest is repaired.
pub fn load_index(
    layout: &Layout,
    settings: &StoreSettings,
    unclean: bool,
    opening: &Opening,
) -> Result<Vec<Arc<SharedMap>>, OpenError> {
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
        opening.step()?;
        let found = fs::metadata(&path).map_err(io_at(&path))?.len();
        if found == 0 {
            remove_if_present(&path).map_err(io_at(&path))?;
            continue;
        }
        if found != expected {
            let remedy = has_file_of(&dir, expected, 0)?.then_some(Remedy::Rebuild);
            return Err(OpenError::WrongSize {
                path,
                found,
                expected,
                key: "store.index_slots and store.index_entries",
                remedy,
            });
        }
        let map = SharedMap::open(&path, expected).map_err(io_at(&path))?;
        if let Some((slots, units)) = other_shape(&map, slots, units).map_err(io_at(&path))? {
            return Err(OpenError::WrongShape { path, slots, units });
        }
        files.push(Arc::new(map));
    }
    if let Some(last) = files.last()
        && unclean
    {
        opening.step()?;
        last.guarded(|| set_right(last, slots, units)).map_err(|_| unreadable(last))??;
    }
    Ok(files)
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
