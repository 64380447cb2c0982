//! A store directory that nobody has open, looked at from outside: what is in it, whether it agrees with itself, and
//! what can be saved of a damaged one. For the tools of `cli`, on one plain thread; blocking.
//!
//! Nothing here trusts a setting, a file's length or a byte. Reading changes no byte and no name; files are read and
//! not mapped, so that a bad block is an error and no signal, and a store of any size takes bounded memory: a few
//! hundred bytes and one buffer a queue, never anything a record.

mod files;
mod inspect;
mod keys;
mod report;
mod salvage;
mod shape;
mod units;
mod verify;
mod walk;
mod window;

pub use files::{FileEntry, QueueEntry, StoreDir, queues};
pub use inspect::{Inspection, bounds, inspect};
pub use report::{Counts, Finding, Known, Level, Report};
pub use salvage::{Lost, Salvaged, salvage};
pub use shape::{IndexShape, Shape, ShapeHints};
pub use units::UnitReader;
pub use verify::{Verify, verify};
pub use walk::RecordReader;

/// Told how far a long work has got: bytes of the log read, of how many.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);
