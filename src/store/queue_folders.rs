//! Making the names of new consume queue files last.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::open_error::{OpenError, io_at};
use crate::io::fsync_dir;

/// Syncs the folders of queues that got new files, and those above them; `step` is done before each. Blocking.
pub fn sync_queue_folders(
    consumequeue: &Path,
    of_queues: &BTreeSet<PathBuf>,
    step: impl Fn() -> Result<(), OpenError>,
) -> Result<(), OpenError> {
    let of_topics: BTreeSet<_> = of_queues.iter().filter_map(|dir| dir.parent()).collect();
    let root = (!of_queues.is_empty()).then_some(consumequeue);
    let mut dirs = of_queues.iter().map(PathBuf::as_path).chain(of_topics).chain(root);
    dirs.try_for_each(|dir| step().and_then(|()| fsync_dir(dir).map_err(io_at(dir))))
}
