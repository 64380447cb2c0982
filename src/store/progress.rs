//! `kerolox/flushed`: how far the log is known to be on stable storage, and what a clean stop left behind. Ours alone
//! (rules R2 and R18); Java never looks at it.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::io::{read_if_present, replace_keeping_old};
use crate::types::{PhyOffset, Timestamp};

/// Saved about once a second while the log grows, and at a clean stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Everything before this physical offset is on stable storage.
    pub flushed: u64,
    /// Store time of the newest record before it, in ms.
    pub stored_at: i64,
    /// Only after a clean stop: what the derived files held, so that the next start can tell that all is there.
    pub clean: Option<CleanStop>,
}

/// What is known of the flushed position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Saved {
    /// The newest that was saved; `None` if that cannot be read, or the store was never ours. Its predecessor does not
    /// take its place: what was flushed since then is no torn tail.
    pub newest: Option<Progress>,
    /// So far it was flushed in any case.
    pub at_least: PhyOffset,
}

/// What the derived data held at a clean stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CleanStop {
    /// Queues that ever had a message.
    pub queues: u64,
    /// Units in their files, expired ones not counted.
    pub units: u64,
    /// Position of the newest indexed message; 0: none.
    pub index_end: u64,
}

impl Progress {
    pub fn flushed(&self) -> PhyOffset {
        PhyOffset(self.flushed)
    }

    pub fn stored_at(&self) -> Timestamp {
        Timestamp(self.stored_at)
    }

    /// Reads it and its predecessor. Blocking.
    pub fn load(path: &Path) -> io::Result<Saved> {
        let mut bak = path.as_os_str().to_owned();
        bak.push(".bak");
        let read = |path: &Path| -> io::Result<Option<Progress>> {
            Ok(read_if_present(path)?.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
        };
        let newest = read(path)?;
        let older = if newest.is_none() { read(Path::new(&bak))? } else { None };
        if let Some(older) = older {
            tracing::warn!(path = %path.display(), older = older.flushed,
                "missing or unreadable; how far the log was flushed is not known, but for what its predecessor says");
        }
        Ok(Saved { newest, at_least: newest.or(older).map_or(PhyOffset(0), |progress| progress.flushed()) })
    }

    /// Writes it. Blocking.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        let bytes = serde_json::to_vec(self).expect("plain numbers serialise");
        replace_keeping_old(path, &bytes)
    }
}
