//! Changing the files of one queue, before any core runs: units put in, written over, cut off.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use super::super::queues::{QueueView, UnitFile};
use crate::format::names;
use crate::format::unit::{UNIT_LEN, Unit};
use crate::io::disk;
use crate::types::{PhyOffset, QueueOffset};

/// The position that a segment's or consume queue file's name says.
pub(super) fn segment_start(path: &Path) -> Option<u64> {
    path.file_name().and_then(|name| name.to_str()).and_then(names::parse_segment_name)
}

/// Removes files that a crash left behind the queue's last: nothing of them was taken, and what they hold would pass for
/// units once the queue has grown to there.
pub fn remove_files_behind(dir: &Path, queue: &QueueView) -> io::Result<()> {
    let kept_end = queue.files().last().map_or(0, |last| last.end().0 * UNIT_LEN as u64);
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let path = entry?.path();
        if segment_start(&path).is_some_and(|start| start >= kept_end) && path.is_file() {
            tracing::info!(path = %path.display(), "consume queue file without units removed");
            disk::remove_for_good(&path)?;
        }
    }
    Ok(())
}

/// Syncs the files that hold units of what was scanned.
pub fn sync_units(queue: &QueueView, from: PhyOffset) -> io::Result<()> {
    for file in queue.files().iter().rev() {
        file.map().sync()?;
        let first = queue.units_from(file.first()).map(|run| run.get(0));
        if first.is_some_and(|unit| !unit.is_pre_blank() && unit.phy < from) {
            break;
        }
    }
    Ok(())
}

/// Whatever stands at `offset` in the queue's files, at or behind its end too.
pub fn unit_in_files(queue: &QueueView, offset: QueueOffset) -> Option<Unit> {
    let files = queue.files();
    let at = files.partition_point(|file| file.first() <= offset).checked_sub(1)?;
    files[at].unit(offset)
}
pub fn invalid(error: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}

pub fn store_unit(file: &UnitFile, offset: QueueOffset, unit: &Unit) {
    let at = (offset.0 - file.first().0) as usize * UNIT_LEN;
    // SAFETY: no core runs yet; nobody else looks at the file.
    unsafe { file.map().write(at, &unit.encode()) };
}

/// Stores a unit over the one that is there.
pub fn rewrite_unit(queue: &QueueView, offset: QueueOffset, unit: &Unit) -> io::Result<()> {
    let files = queue.files();
    let file = files.iter().find(|file| (file.first()..file.end()).contains(&offset));
    let file = file.ok_or_else(|| invalid(format!("no file holds message {offset}")))?;
    file.map().reserve((offset.0 - file.first().0 + 1) * UNIT_LEN as u64)?;
    store_unit(file, offset, unit);
    Ok(())
}

/// Empties a queue, to be built anew from any offset.
pub fn drop_files(queue: &QueueView) -> io::Result<()> {
    for file in queue.files().iter() {
        disk::remove_for_good(file.map().path())?;
    }
    queue.set_files(Vec::new());
    queue.publish_max(QueueOffset(0));
    Ok(())
}

/// Ends a queue at `max`: later files go, later bytes of the last file become zeros (rule R3); synced by the caller.
pub fn cut_queue(queue: &Arc<QueueView>, max: QueueOffset) -> io::Result<()> {
    let mut files = queue.files().as_ref().clone();
    while let Some(last) = files.last()
        && (last.first() > max || (last.first() == max && files.len() > 1))
    {
        disk::remove_for_good(last.map().path())?;
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
