//! Why a store cannot be opened: each kind says which file, what was found, what was expected, and what to do.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::io::LockError;
use crate::types::PhyOffset;

/// Why a store cannot be opened. Nothing was changed then, but for what the message says.
#[derive(Debug)]
pub enum OpenError {
    Lock(LockError),
    Io {
        path: PathBuf,
        source: io::Error,
    },
    /// A file has not the size that the settings say.
    WrongSize {
        path: PathBuf,
        found: u64,
        expected: u64,
        key: &'static str,
        /// What brings a store of which some files have the right size back.
        remedy: Option<Remedy>,
    },
    /// An index file was written with other settings, which make it as long.
    WrongShape {
        path: PathBuf,
        slots: u32,
        units: u32,
    },
    /// A segment is missing between others.
    Hole {
        before: PathBuf,
        missing: PathBuf,
    },
    /// A queue's messages are not consecutive in the log, and no damage of it explains that.
    Gap {
        queue: String,
        expected: u64,
        found: u64,
        phy: PhyOffset,
    },
    /// The log ends before what was on stable storage: its newest segments are gone.
    Short {
        missing: PathBuf,
        end: PhyOffset,
        flushed: PhyOffset,
    },
    /// Not a store that we read.
    Foreign {
        path: PathBuf,
        what: &'static str,
    },
    /// The disk does not give all of a derived file: it is to be set aside, and built anew.
    Unreadable {
        path: PathBuf,
    },
    /// A config file and its predecessor are both unreadable.
    Config {
        path: PathBuf,
        why: String,
    },
    /// It was told to end before the store was open; everything is as after a kill at that moment.
    Stopped,
}

/// What to do about a damaged file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// It is derived: it can be built anew from the log.
    Rebuild,
    /// It is a part of the log itself.
    Salvage,
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Lock(error) => error.fmt(f),
            OpenError::Io { path, source } if source.kind() == io::ErrorKind::StorageFull => {
                write!(
                    f,
                    "{}: {source}; the store needs some to recover: free space on that disk and start again",
                    path.display()
                )
            }
            OpenError::Io { path, source } => write!(f, "{}: {source}", path.display()),
            OpenError::WrongSize { path, found, expected, key, remedy: Some(remedy) } => {
                let advice = match remedy {
                    Remedy::Rebuild => "build it anew from the log with kerolox rebuild DIR",
                    Remedy::Salvage => {
                        "bring the file back, or copy what can be read into a new store with kerolox salvage DIR --to NEW"
                    }
                };
                write!(
                    f,
                    "{}: this file is damaged: {found} bytes long, {expected} expected from {key}, which others of this store have; {advice}",
                    path.display()
                )
            }
            OpenError::WrongSize { path, found, expected, key, remedy: None } => write!(
                f,
                "{}: {found} bytes long, {expected} expected from {key}; set {key} to the size that this store was written with",
                path.display()
            ),
            OpenError::WrongShape { path, slots, units } => write!(
                f,
                "{}: written with store.index_slots = {slots} and store.index_entries = {units}; set them to that",
                path.display()
            ),
            OpenError::Hole { before, missing } => write!(
                f,
                "{}: missing, though {} is there; bring the file back before starting",
                missing.display(),
                before.display()
            ),
            OpenError::Gap { queue, expected, found, phy } => write!(
                f,
                "queue {queue}: the log goes on with message {found} at physical offset {phy}, {expected} expected, and no damaged region lies between that could have held the others; nothing was cut. Bring back the log with which the store was last used"
            ),
            OpenError::Short { missing, end, flushed } => write!(
                f,
                "{}: missing; the log ends at physical offset {end}, though everything before {flushed} was on stable storage; bring the file back before starting",
                missing.display()
            ),
            OpenError::Foreign { path, what } => write!(f, "{}: {what}", path.display()),
            OpenError::Unreadable { path } => {
                write!(
                    f,
                    "{}: the disk does not give all of it; check the disk, and move the file away",
                    path.display()
                )
            }
            OpenError::Config { path, why } => {
                write!(f, "{}: {why}, and no readable .bak beside it; repair or remove the file", path.display())
            }
            OpenError::Stopped => f.write_str("stopped before the store was open; the next start goes on from there"),
        }
    }
}

impl std::error::Error for OpenError {}

impl From<LockError> for OpenError {
    fn from(error: LockError) -> OpenError {
        OpenError::Lock(error)
    }
}

pub(super) fn io_at(path: &Path) -> impl FnOnce(io::Error) -> OpenError + '_ {
    move |source| OpenError::Io { path: path.to_owned(), source }
}

impl OpenError {
    pub(super) fn from_io(path: std::path::PathBuf) -> impl FnOnce(io::Error) -> OpenError {
        move |source| OpenError::Io { path, source }
    }
}
