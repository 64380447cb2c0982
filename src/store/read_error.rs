//! Why a read gives no record.

use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::format::record::BadRecord;
use crate::types::PhyOffset;

/// Why a read by physical offset gives no record.
#[derive(Debug)]
pub enum ReadError {
    /// The position lies before the oldest or behind the newest message.
    OutOfRange {
        phy: PhyOffset,
        min: PhyOffset,
        max: PhyOffset,
    },
    /// A record is there that may be seen once it is on stable storage.
    NotFlushed {
        phy: PhyOffset,
        flushed: PhyOffset,
    },
    /// There is no record at this position.
    NoRecord {
        phy: PhyOffset,
        why: BadRecord,
    },
    /// A record is there, but it is damaged.
    Damaged {
        phy: PhyOffset,
        path: PathBuf,
    },
    Io {
        path: PathBuf,
        source: io::Error,
    },
    /// So many reads wait for the disk that no more may.
    Busy {
        waiting: usize,
    },
}

impl ReadError {
    /// Does the disk itself say that it cannot give this?
    pub(super) fn is_of_disk(&self) -> bool {
        matches!(self, ReadError::Io { source, .. } if source.raw_os_error() == Some(libc::EIO))
    }

    /// Has the message expired, so that its queue goes on behind it?
    pub fn is_expired(&self) -> bool {
        matches!(self, ReadError::OutOfRange { phy, min, .. } if phy < min)
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::OutOfRange { phy, min, max } => {
                write!(f, "no message at physical offset {phy}: the log holds {min} to {max}")
            }
            ReadError::NotFlushed { phy, flushed } => {
                write!(f, "no message at physical offset {phy} yet: what is on stable storage ends at {flushed}")
            }
            ReadError::NoRecord { phy, why } => write!(f, "no message starts at physical offset {phy}: {why}"),
            ReadError::Damaged { phy, path } => {
                write!(f, "the message at physical offset {phy} in {} is damaged", path.display())
            }
            ReadError::Io { path, source } => write!(f, "{} cannot be read: {source}", path.display()),
            ReadError::Busy { waiting } => {
                write!(f, "too many reads wait for the disk ({waiting} on this core); ask again later")
            }
        }
    }
}

impl std::error::Error for ReadError {}
