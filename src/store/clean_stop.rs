//! What a clean stop notes of the derived files, and taking that back. Blocking, while a store is opened or closed.

use std::sync::Arc;

use super::index_builder::index_header;
use super::layout::Layout;
use super::open_error::{OpenError, io_at};
use super::progress::{CleanStop, Progress};
use super::queues::QueueView;
use crate::io::{SharedMap, disk, replace_keeping_old};

/// What the derived files hold, to compare with what a clean stop noted.
pub fn found_at_start(queues: &[Arc<QueueView>], index: &[Arc<SharedMap>]) -> CleanStop {
    let with_messages = queues.iter().filter(|queue| queue.max().0 > 0);
    CleanStop {
        queues: with_messages.clone().count() as u64,
        units: with_messages
            .map(|queue| queue.max().0.saturating_sub(first_in_files(queue)))
            .fold(0, u64::saturating_add),
        index_end: index.last().map_or(0, |file| index_header(file).end_phy.0),
    }
}

/// The oldest message that the queue's files still have a unit of.
pub(super) fn first_in_files(queue: &QueueView) -> u64 {
    queue.files().first().map_or(0, |file| file.first().0)
}

/// From here on a start that finds less than there was scans the whole log.
pub(super) fn forget_clean_stop(layout: &Layout, queue_count: u64) -> Result<(), OpenError> {
    let path = layout.flushed();
    if let Some(progress) = Progress::load(&path).map_err(io_at(&path))?.newest {
        // Twice, so that the older copy does not say it either.
        for _ in 0..2 {
            Progress { clean: None, ..progress }.save(&path).map_err(io_at(&path))?;
        }
    }
    let path = layout.recovery();
    disk::remove_if_present(&path).map_err(io_at(&path))?;
    let path = layout.queue_count();
    replace_keeping_old(&path, queue_count.to_string().as_bytes()).map_err(io_at(&path))
}
