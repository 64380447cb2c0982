//! The file systems that a store lies on, and how full they are.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use super::layout::Layout;
use super::shared::{Poison, Shared};
use crate::io::disk_usage;
use crate::log::{DiskGuard, DiskLevel, DiskRule};
use crate::types::{DiskUsage, PhyOffset};

/// Those of the commit log and of the consume queues, once if they are the same. Its looks block: they are for the helper
/// thread, and for the start.
#[derive(Debug)]
pub struct DiskWatch {
    rule: DiskRule,
    /// The commit log's is the first.
    disks: Vec<Disk>,
}

#[derive(Debug)]
struct Disk {
    path: PathBuf,
    guard: DiskGuard,
    usage: Option<DiskUsage>,
    /// It could not be looked at, and that was told.
    failed: bool,
}

impl DiskWatch {
    /// Finds the file systems; nothing is looked at yet.
    pub fn new(layout: &Layout, rule: DiskRule) -> DiskWatch {
        let mut disks: Vec<Disk> = Vec::new();
        let mut devices = Vec::new();
        for path in [layout.commitlog(), layout.consumequeue()] {
            // Made with the first message: until then it is where its parent is.
            let path = if path.exists() { path } else { layout.root().to_owned() };
            let device = path.metadata().map(|meta| meta.dev()).ok();
            if device.is_none() || !devices.contains(&device) {
                devices.push(device);
                disks.push(Disk { path, guard: DiskGuard::new(rule), usage: None, failed: false });
            }
        }
        DiskWatch { rule, disks }
    }

    /// Looks at every disk, and tells the log when one gets too full, or is not any more.
    pub fn look(&mut self) {
        for disk in &mut self.disks {
            match disk_usage(&disk.path) {
                Ok(usage) => disk.note(usage),
                Err(error) => {
                    if !std::mem::replace(&mut disk.failed, true) {
                        tracing::error!(path = %disk.path.display(), %error, "how full the disk is cannot be told; it counts as before");
                    }
                }
            }
        }
    }

    /// Says in the log what is in force.
    pub fn tell(&self) {
        for Disk { path, usage, .. } in &self.disks {
            let used_percent = usage.map(DiskUsage::percent);
            tracing::info!(path = %path.display(), used_percent, levels = %self.rule, "disk levels");
        }
    }

    /// Level of the fullest disk, if `pending` bytes of the commit log's were given back.
    pub fn level(&self, pending: u64) -> DiskLevel {
        let level = |(index, disk): (usize, &Disk)| {
            disk.usage.map(|usage| self.rule.level(if index == 0 { usage.freed(pending) } else { usage }))
        };
        self.disks.iter().enumerate().filter_map(level).max().unwrap_or(DiskLevel::Fine)
    }

    /// Why no messages may be taken, if so.
    pub fn refusal(&self) -> Option<String> {
        let full = self.disks.iter().find(|disk| disk.guard.is_full())?;
        let excess = full.guard.excess(full.usage?);
        Some(format!("the disk of {} is too full: {excess}", full.path.display()))
    }

    /// Lets every core know whether messages are taken.
    pub fn publish(&self, shared: &Shared) {
        let refusal = self.refusal();
        if refusal.is_some() || shared.disk_full().is_some() {
            shared.set_disk_full(refusal);
        }
    }
}

impl Disk {
    fn note(&mut self, usage: DiskUsage) {
        self.failed = false;
        self.usage = Some(usage);
        let was_full = self.guard.is_full();
        self.guard.note(usage);
        let (path, used_percent, free) = (self.path.display(), usage.percent(), usage.available);
        match (was_full, self.guard.is_full()) {
            (false, true) => {
                let why = self.guard.excess(usage);
                tracing::error!(%path, used_percent, free, why, "the disk is too full; no messages are taken, reads go on");
            }
            (true, false) => tracing::info!(%path, used_percent, free, "the disk has space again; messages are taken"),
            _ => {}
        }
    }
}

/// Knows which folder the store was opened in, to find out when somebody takes the store away from under the node: what
/// is appended to a file without a name is lost, and no write or sync of it fails.
#[derive(Clone, Debug)]
pub struct StorePlace {
    root: PathBuf,
    /// Device and inode; none if they could not be told.
    id: Option<(u64, u64)>,
}

impl StorePlace {
    pub fn new(layout: &Layout) -> StorePlace {
        let root = layout.root().to_owned();
        let id = root.metadata().map(|meta| (meta.dev(), meta.ino())).ok();
        StorePlace { root, id }
    }

    /// Poisons the log if the root or the segment that is appended to is not what its path names any more. A few looks
    /// at names; blocking, for the helper thread.
    pub fn check(&self, shared: &Shared) {
        if shared.is_poisoned() {
            return;
        }
        let Some((path, flushed)) = self.lost(shared) else { return };
        let why = "it was removed, renamed or replaced while the node runs: its path does not name what the node has open, \
                   so what is stored is lost; put it back, or restart the node with what is there";
        tracing::error!(path = %path.display(), %flushed, why, "the store is not where it was; the node takes no messages until it is restarted");
        shared.set_poison(Poison { what: "check", path, why: why.to_owned(), flushed });
    }

    /// What is not in its place, and how far the log is that still is.
    fn lost(&self, shared: &Shared) -> Option<(PathBuf, PhyOffset)> {
        let is_root = match self.root.metadata() {
            Ok(meta) => self.id.is_none_or(|id| id == (meta.dev(), meta.ino())),
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        };
        if !is_root {
            return Some((self.root.clone(), PhyOffset(0)));
        }
        let segments = shared.segments.all();
        let active = segments.last()?;
        // What cannot be told now is asked again at the next look.
        let is_named = active.is_named().unwrap_or(true);
        (!is_named).then(|| (active.path().to_owned(), active.start().min(shared.flushed())))
    }
}
