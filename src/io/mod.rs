//! Touching the world: files direct or mapped, syncs, residency, the clock, work that must leave the core.
//!
//! Floor 1. Bytes have no meaning here. Everything that may wait is async and goes through io_uring, or runs on the
//! helper thread ([`Blocking`]); what recovery needs before the cores start is plain and blocking, and says so. Every
//! change of a file passes [`disk`], where tests watch.

mod blocking;
mod clock;
pub mod disk;
mod files;
mod guard;
mod kernel_workers;
mod lock;
mod log_file;
mod log_tail;
mod over_faults;
mod probe_file;
mod raw_file;
mod read_file;
mod residency;
mod segment;
mod shared_map;
#[cfg(test)]
pub mod sim;
mod sync_probe;
mod tail_block;
#[cfg(test)]
pub mod tap;
#[cfg(test)]
pub mod test_executor;
mod unlinked;

pub use blocking::{Blocking, Job};
pub use clock::{now, sleep, steady_ms, steady_us, utc_offset_s, within, yield_if_due};
pub use disk::{remove_if_present, sync_folder as fsync_dir};
pub use files::{
    create_full_length, disk_usage, knows_direct, read_if_present, read_tail, replace_keeping_old, write_first_block,
    written_ranges,
};
pub use guard::BrokenMap;
pub use kernel_workers::keep_kernel_workers_to;
pub use lock::{LockError, StoreLock};
pub use log_file::{AppendMode, LogFile, SyncCall, ZERO_LEN};
pub use log_tail::{LOG_TAIL_LEN, LogTail, TailWriter};
pub use over_faults::over_faults;
pub use probe_file::ProbeFile;
pub use read_file::ReadFile;
pub use segment::{Segment, SegmentSet};
pub use shared_map::SharedMap;
pub use sync_probe::{SyncTimes, time_sync_calls};
pub use unlinked::UnlinkedFile;
