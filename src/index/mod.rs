//! One index file over byte slices: putting keys in, finding them, and setting a file right after a crash.
//!
//! The room computes on bytes that `store` maps; it opens nothing and reads no clock. Puts, repair and cut run on the
//! one core that builds the index and have the file to themselves; a find only reads. Whatever a file holds, none of
//! these panics, loops or reads beyond it. Several files in a row, and which of them to ask, are for `store`.
//!
//! A put writes the unit, then the slot, then the header, so that a process killed in between leaves at worst a slot
//! that points to the unit after the last: [`repair`] builds the slots anew. Source: store.md 4.

mod file;
mod repair;

pub use file::{Full, IndexBytes, IndexFile, IndexFileMut, WrongLength};
pub use repair::{Repaired, cut_from, repair};
