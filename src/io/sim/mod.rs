//! The world of `io` on one thread, driven by a seed: an executor with a virtual clock, and a disk that can lose power.
//! For tests alone.
//!
//! What the store sees is a real folder, whose content is what the page cache would show; [`SimDisk`] remembers beside it
//! what is on stable storage, and on a power cut makes one of the states that a disk could then be in.

mod content;
mod dice;
mod disk;
mod executor;

pub use dice::Dice;
pub use disk::{Crash, CrashKind, Failure, Fault, Moment, SimDisk};
pub use executor::{Ran, Simulation, TaskId};
