//! `kerolox/deleted/`: consume queue folders of deleted topics on their way out (rule R15).
//!
//! A folder is moved away as a whole, so that a topic of the same name finds nothing there, and then removed queue by queue.
//! What a run leaves here the next start removes. Blocking: on the helper thread where consume queue files are made too,
//! so that none of a deleted topic is made behind the move.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::layout::Layout;
use crate::io::{disk, fsync_dir, replace_keeping_old};
use crate::types::PhyOffset;

/// Moves the folder of a topic away whose births are saved; `queue_count`: how many queues with messages a start may miss
/// from now on. Gives where the folder is now; nothing if there was none.
pub fn take_away(layout: &Layout, topic: &str, birth: PhyOffset, queue_count: u64) -> io::Result<Option<PathBuf>> {
    // First: a start that finds fewer queues than this reads the whole log.
    replace_keeping_old(&layout.queue_count(), queue_count.to_string().as_bytes())?;
    let (queues, folder) = (layout.consumequeue(), layout.deleted().join(birth.0.to_string()));
    let (from, to) = (queues.join(topic), folder.join(topic));
    if from.is_dir() {
        disk::make_folders(&folder)?;
        match disk::rename(&from, &to) {
            // Consume queues on a file system of their own.
            Err(error) if error.kind() == io::ErrorKind::CrossesDevices => disk::remove_tree(&from)?,
            renamed => renamed?,
        }
        fsync_dir(&queues)?;
    }
    Ok(to.is_dir().then_some(to))
}

/// Removes the next queue of a folder that [`take_away`] gave, and at last the folder; false: nothing is left.
pub fn remove_next(folder: &Path) -> io::Result<bool> {
    if let Some(entry) = fs::read_dir(folder)?.next() {
        let path = entry?.path();
        if path.is_dir() {
            disk::remove_tree(&path)?
        } else {
            disk::remove_if_present(&path)?
        }
        return Ok(true);
    }
    disk::remove_tree(folder)?;
    match folder.parent() {
        Some(parent) if fs::read_dir(parent)?.next().is_none() => disk::remove_tree(parent)?,
        _ => {}
    }
    Ok(false)
}
