//! One consume queue over byte slices: which file holds a queue offset, how much of it is written, and the searches.
//!
//! The room computes; it opens nothing, waits for nothing and reads no clock. `store` maps or reads the files and runs
//! this on the shard that owns the queue, the searches also on the shard that asks.
//!
//! What it relies on: a queue's units stand in one sequence from file to file, their physical offsets never fall, and
//! the store times of their records never fall either. Source: store.md 3.

mod files;
mod scan;
mod search;

pub use files::{QueueFiles, UNITS_PER_FILE_DEFAULT, unit_at};
pub use scan::{filler_units, log_end, written_units, written_units_by_bisection};
pub use search::{Boundary, Step, TimeSearch, first_at_or_after};
