//! Which files a store directory has.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::format::names;
use crate::io::StoreLock;
use crate::store::layout::Layout;
use crate::store::open::SYMLINK_SEGMENT;
use crate::store::open_error::{OpenError, io_at};
use crate::types::QueueKey;

/// A file whose name is the position of its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileEntry {
    pub start: u64,
    pub len: u64,
}

impl FileEntry {
    pub fn end(&self) -> u64 {
        self.start.saturating_add(self.len)
    }

    pub fn path(&self, dir: &Path) -> PathBuf {
        dir.join(names::segment_name(self.start))
    }
}

/// A consume queue's folder.
#[derive(Clone, Debug)]
pub struct QueueEntry {
    pub key: QueueKey,
    /// Oldest first; may have holes and odd lengths.
    pub files: Vec<FileEntry>,
}

/// The files of a store, listed once, under a shared lock that keeps brokers out while it lives.
#[derive(Debug)]
pub struct StoreDir {
    pub layout: Layout,
    /// Oldest first; may have holes and odd lengths.
    pub segments: Vec<FileEntry>,
    /// By topic and queue id.
    pub queues: Vec<QueueEntry>,
    /// Name and length, oldest first.
    pub index_files: Vec<(String, u64)>,
    /// What a store's folders hold beside that.
    pub strays: Vec<PathBuf>,
    /// The last stop was not clean.
    pub unclean: bool,
    /// A node of ours has worked here.
    pub is_ours: bool,
    _lock: Option<StoreLock>,
}

impl StoreDir {
    /// Locks the store against brokers and lists it. Changes nothing.
    ///
    /// # Errors
    /// It is in use, is no store, is of a kind that we do not read, or cannot be read.
    pub fn open(root: &Path) -> Result<StoreDir, OpenError> {
        let layout = Layout::new(root);
        if !layout.commitlog().is_dir() {
            return Err(OpenError::Foreign {
                path: root.to_owned(),
                what: "no store: it has no folder commitlog; name the directory that store.root (Java: storePathRootDir) names",
            });
        }
        let lock = StoreLock::take_shared(root)?;
        let rocks = layout.consumequeue().join("CURRENT");
        if rocks.exists() {
            return Err(OpenError::Foreign { path: rocks, what: "consume queues in RocksDB form cannot be read" });
        }
        let mut strays = Vec::new();
        let segments = positions(&layout.commitlog(), &mut strays)?;
        let mut paths = segments.iter().map(|segment| segment.path(&layout.commitlog()));
        if let Some(path) = paths.find(|path| path.is_symlink()) {
            return Err(OpenError::Foreign { path, what: SYMLINK_SEGMENT });
        }
        let queues = queues(&layout.consumequeue(), &mut strays)?;
        let mut index_files = Vec::new();
        for (name, path, meta) in entries(&layout.index())? {
            if names::is_index_name(&name) && meta.is_file() {
                index_files.push((name, meta.len()));
            } else {
                strays.push(path);
            }
        }
        let (unclean, is_ours) = (layout.abort().exists(), layout.own().exists());
        Ok(StoreDir { layout, segments, queues, index_files, strays, unclean, is_ours, _lock: lock })
    }

    pub fn queue_dir(&self, key: &QueueKey) -> PathBuf {
        self.layout.consumequeue().join(&*key.topic).join(key.queue_id.to_string())
    }

    /// First byte of the log that is there; 0 if there is none.
    pub fn log_min(&self) -> u64 {
        self.segments.first().map_or(0, |file| file.start)
    }

    /// Bytes of all segments.
    pub fn log_len(&self) -> u64 {
        self.segments.iter().map(|file| file.len).fold(0, u64::saturating_add)
    }
}

/// The queues below a folder; what is none goes to `strays`.
pub fn queues(consumequeue: &Path, strays: &mut Vec<PathBuf>) -> Result<Vec<QueueEntry>, OpenError> {
    let mut queues = Vec::new();
    for (topic, path, meta) in entries(consumequeue)? {
        if !meta.is_dir() {
            strays.push(path);
            continue;
        }
        for (id, path, meta) in entries(&path)? {
            match id.parse::<i32>().ok().filter(|number| number.to_string() == id).map(u32::try_from) {
                Some(Ok(id)) if meta.is_dir() => {
                    let files = positions(&path, strays)?;
                    queues.push(QueueEntry { key: QueueKey::new(topic.as_str(), id), files });
                }
                _ => strays.push(path),
            }
        }
    }
    queues.sort_unstable_by(|a, b| a.key.cmp(&b.key));
    Ok(queues)
}

/// The files of a folder whose names are positions, in order; the rest goes to `strays`.
fn positions(dir: &Path, strays: &mut Vec<PathBuf>) -> Result<Vec<FileEntry>, OpenError> {
    let mut found = Vec::new();
    for (name, path, meta) in entries(dir)? {
        match names::parse_segment_name(&name) {
            Some(start) if meta.is_file() => found.push(FileEntry { start, len: meta.len() }),
            _ => strays.push(path),
        }
    }
    found.sort_unstable_by_key(|file| file.start);
    Ok(found)
}

/// What is in a folder, by name; nothing if there is no such folder. Names that are no UTF-8 are given as far as they are.
fn entries(dir: &Path) -> Result<Vec<(String, PathBuf, fs::Metadata)>, OpenError> {
    let listed = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        listed => listed.map_err(io_at(dir))?,
    };
    let mut found = Vec::new();
    for entry in listed {
        let path = entry.map_err(io_at(dir))?.path();
        let meta = fs::metadata(&path).map_err(io_at(&path))?;
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        found.push((name, path, meta));
    }
    found.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    Ok(found)
}
