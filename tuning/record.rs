//! What was changed on this host and how to get back: a JSON file that `apply` writes before each change, and `undo` reads.
//!
//! The file is replaced as a whole and synced, with its directory, before anything that it tells of is done. It holds for one
//! boot: what it tells of are values of the running kernel, which a restart of the host takes back.

use std::fmt;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{Change, Host};
use crate::io::disk;

/// Where it is unless told otherwise.
pub const DEFAULT_PATH: &str = "/var/lib/kerolox-tune/applied.json";

const VERSION: u32 = 1;
/// Nothing else is ever changed, so nothing else is brought back, whoever wrote the file.
const KERNELS: [&str; 3] = ["/proc/sys/", "/proc/irq/", "/sys/"];
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The record, locked against other writers until dropped.
#[derive(Debug)]
pub struct Record {
    path: PathBuf,
    boot_id: String,
    entries: Vec<Entry>,
    of_earlier_boot: usize,
    /// The directory, open and locked.
    _lock: File,
}

/// One file that was changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    pub setting: String,
    pub path: String,
    /// Before the first change.
    pub old: String,
    /// What was written last.
    pub new: String,
    /// See [`Change::back`].
    pub back: Vec<(String, String)>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    version: u32,
    boot_id: String,
    changes: Vec<Entry>,
}

/// Why the record cannot be used; nothing was changed then.
#[derive(Debug)]
pub enum RecordError {
    /// It cannot be read or written.
    Io { path: PathBuf, source: io::Error },
    /// It is none of ours.
    Wrong { path: PathBuf, why: String },
    /// Another process applies or undoes.
    Busy { path: PathBuf },
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecordError::Io { path, source } => write!(
                f,
                "{}: {source}; what is changed must be noted there first: run as root, or name another file with --state",
                path.display()
            ),
            RecordError::Wrong { path, why } => {
                write!(f, "{}: {why}; mend it, or move it away and give up what it could bring back", path.display())
            }
            RecordError::Busy { path } => {
                write!(f, "{}: another kerolox-tune works with it; try again when it is done", path.display())
            }
        }
    }
}

impl std::error::Error for RecordError {}

impl Record {
    /// Reads the record, makes its directory if that is missing, and keeps others off.
    ///
    /// # Errors
    /// See [`RecordError`].
    pub fn open(host: &Host, path: &Path) -> Result<Record, RecordError> {
        let failed = |source| RecordError::Io { path: path.to_owned(), source };
        let dir = directory(path);
        disk::make_lasting_folders(dir).map_err(failed)?;
        let lock = File::open(dir).map_err(failed)?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => RecordError::Busy { path: path.to_owned() },
            TryLockError::Error(source) => failed(source),
        })?;
        Record::read(host, path, lock)
    }

    /// The same where there may be nothing to read, and nothing is to be made then.
    ///
    /// # Errors
    /// See [`RecordError`].
    pub fn open_if_there(host: &Host, path: &Path) -> Result<Option<Record>, RecordError> {
        match path.symlink_metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(RecordError::Io { path: path.to_owned(), source }),
            Ok(_) => Record::open(host, path).map(Some),
        }
    }

    fn read(host: &Host, path: &Path, lock: File) -> Result<Record, RecordError> {
        let failed = |source| RecordError::Io { path: path.to_owned(), source };
        let wrong = |why: String| RecordError::Wrong { path: path.to_owned(), why };
        let boot_id = host.value(BOOT_ID).map_err(failed)?.unwrap_or_default();
        let mut record =
            Record { path: path.to_owned(), boot_id, entries: Vec::new(), of_earlier_boot: 0, _lock: lock };
        let bytes = match fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(record),
            Err(error) => return Err(failed(error)),
        };
        let written: Written =
            serde_json::from_slice(&bytes).map_err(|error| wrong(format!("this is no record of changes ({error})")))?;
        if written.version != VERSION {
            return Err(wrong(format!("it has version {}, this program writes {VERSION}", written.version)));
        }
        let paths =
            written.changes.iter().flat_map(|entry| entry.back.iter().map(|(path, _)| path).chain([&entry.path]));
        for named in paths {
            let kernels = KERNELS.iter().any(|dir| named.starts_with(dir));
            if !kernels || Path::new(named).components().any(|part| part.as_os_str() == "..") {
                return Err(wrong(format!("it names {named:?}, which is no setting of the kernel")));
            }
        }
        if written.boot_id == record.boot_id {
            record.entries = written.changes;
        } else {
            record.of_earlier_boot = written.changes.len();
        }
        Ok(record)
    }

    /// In the order of their first change.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// How many changes the record held that a restart of the host has taken back.
    pub fn of_earlier_boot(&self) -> usize {
        self.of_earlier_boot
    }

    /// Notes what is about to be changed, on stable storage when it returns. What was noted of a file before stays: the
    /// way back leads to what was there before the first change.
    ///
    /// # Errors
    /// It is not noted; nothing may be changed.
    pub(super) fn note(&mut self, setting: &str, changes: &[Change]) -> Result<(), RecordError> {
        for change in changes {
            match self.entries.iter_mut().find(|entry| entry.path == change.path) {
                Some(entry) => entry.new.clone_from(&change.to),
                None => self.entries.push(Entry {
                    setting: setting.to_owned(),
                    path: change.path.clone(),
                    old: change.from.clone(),
                    new: change.to.clone(),
                    back: change.back.clone(),
                }),
            }
        }
        self.write()
    }

    /// The file has this value now, not the one that was noted. `by_us`: since it was written; else it is as it was, and a
    /// note stays only if an earlier change is to be undone.
    pub(super) fn correct(&mut self, path: &str, value: &str, by_us: bool) -> Result<(), RecordError> {
        for entry in self.entries.iter_mut().filter(|entry| by_us && entry.path == path) {
            value.clone_into(&mut entry.new);
        }
        self.entries.retain(|entry| entry.path != path || entry.old != value);
        self.keep()
    }

    /// Only these are left to undo; a record of none is removed.
    pub(super) fn leave(&mut self, entries: Vec<Entry>) -> Result<(), RecordError> {
        self.entries = entries;
        self.keep()
    }

    fn keep(&self) -> Result<(), RecordError> {
        if !self.entries.is_empty() {
            return self.write();
        }
        let removed = disk::remove_if_present(&self.path).and_then(|()| disk::sync_folder(directory(&self.path)));
        removed.map_err(|source| RecordError::Io { path: self.path.clone(), source })
    }

    fn write(&self) -> Result<(), RecordError> {
        let written = Written { version: VERSION, boot_id: self.boot_id.clone(), changes: self.entries.clone() };
        let mut text = serde_json::to_vec_pretty(&written).expect("texts and numbers are JSON");
        text.push(b'\n');
        let mut name = self.path.as_os_str().to_owned();
        name.push(".tmp");
        replace(&self.path, Path::new(&name), &text)
            .map_err(|source| RecordError::Io { path: self.path.clone(), source })
    }
}

fn directory(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// `by` becomes `path` once it is on stable storage, and so does the name.
fn replace(path: &Path, by: &Path, bytes: &[u8]) -> io::Result<()> {
    disk::remove_if_present(by)?;
    let file = disk::create_new(by)?;
    disk::write_at(&file, by, bytes, 0)?;
    disk::sync(&file, by)?;
    disk::rename(by, path)?;
    disk::sync_folder(directory(path))
}
