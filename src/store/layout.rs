//! Where the parts of a store lie below its root. Source: store.md 1.1; ours in `kerolox/` (rule R18).

use std::path::{Path, PathBuf};

use crate::format::names;
use crate::types::PhyOffset;

/// Paths of one store.
#[derive(Clone, Debug)]
pub struct Layout {
    root: PathBuf,
}

impl Layout {
    pub fn new(root: &Path) -> Layout {
        Layout { root: root.to_owned() }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn commitlog(&self) -> PathBuf {
        self.root.join(names::COMMIT_LOG)
    }

    /// Where a salvage writes the log until it is whole.
    pub fn salvage_part(&self) -> PathBuf {
        self.root.join("commitlog.part")
    }

    pub fn segment(&self, start: PhyOffset) -> PathBuf {
        self.commitlog().join(names::segment_name(start.0))
    }

    pub fn consumequeue(&self) -> PathBuf {
        self.root.join(names::CONSUME_QUEUE)
    }

    pub fn index(&self) -> PathBuf {
        self.root.join(names::INDEX)
    }

    pub fn checkpoint(&self) -> PathBuf {
        self.root.join(names::CHECKPOINT)
    }

    pub fn abort(&self) -> PathBuf {
        self.root.join(names::ABORT)
    }

    /// A file of `config/`.
    pub fn config(&self, name: &str) -> PathBuf {
        self.root.join(names::CONFIG).join(name)
    }

    /// Our own files, which Java never sees.
    pub fn own(&self) -> PathBuf {
        self.root.join("kerolox")
    }

    /// How far the log is known to be on stable storage.
    pub fn flushed(&self) -> PathBuf {
        self.own().join("flushed")
    }

    /// How many queues had messages at the last start or stop.
    pub fn queue_count(&self) -> PathBuf {
        self.own().join("queues")
    }

    /// Where the present generations of topics begin that were deleted once.
    pub fn births(&self) -> PathBuf {
        self.own().join("births")
    }

    /// Consume queue folders of deleted topics, on their way out.
    pub fn deleted(&self) -> PathBuf {
        self.own().join("deleted")
    }

    /// Which call brings a batch onto stable storage faster here.
    pub fn sync_call(&self) -> PathBuf {
        self.own().join("sync_call")
    }

    /// The file that is written to find that out, and gone afterwards.
    pub fn sync_probe(&self) -> PathBuf {
        self.own().join("sync_call.probe")
    }

    /// Derived files that the disk did not give, moved away.
    pub fn unreadable(&self) -> PathBuf {
        self.own().join("unreadable")
    }

    /// Copies of what a recovery cut off or found damaged.
    pub fn quarantine(&self) -> PathBuf {
        self.own().join("quarantine")
    }

    /// What each of these copies is.
    pub fn quarantine_list(&self) -> PathBuf {
        self.quarantine().join("list.json")
    }

    /// How far a recovery got that is under way, or was killed.
    pub fn recovery(&self) -> PathBuf {
        self.own().join("recovery")
    }
}
