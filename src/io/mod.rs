//! Touching the world: files direct or mapped, syncs, residency, the clock, work that must leave the core.
//!
//! Floor 1. Bytes have no meaning here. Everything that may wait is async and goes through io_uring, or runs on the
//! helper thread ([`Blocking`]); what recovery needs before the cores start is plain and blocking, and says so. A
//! simulated disk with the same face belongs beside [`LogFile`] (issue "Store").

mod blocking;
mod clock;
mod files;
mod guard;
mod lock;
mod log_file;
mod residency;
mod segment;
mod shared_map;

pub use blocking::{Blocking, Job};
pub use clock::{now, sleep, steady_ms, utc_offset_s, within, yield_if_due};
pub use files::{
    create_full_length, fsync_dir, read_if_present, remove_if_present, replace_keeping_old, written_ranges,
};
pub use guard::BrokenMap;
pub use lock::{LockError, StoreLock};
pub use log_file::{AppendMode, LogFile, ReadFile, ZERO_LEN};
pub use segment::{Segment, SegmentSet};
pub use shared_map::SharedMap;
