//! The two clocks of a load: one that only counts, for latencies, and one that tells the date.

use rustix::time::{ClockId, clock_gettime};

pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1_000_000_000;

/// Nanoseconds of the monotonic clock; the same for all processes of a host.
#[inline]
pub fn now() -> u64 {
    nanos(ClockId::Monotonic)
}

/// Nanoseconds since the epoch.
pub fn wall() -> u64 {
    nanos(ClockId::Realtime)
}

/// Nanoseconds of processor time that this process has used, all its threads.
pub fn own_cpu() -> u64 {
    nanos(ClockId::ProcessCPUTime)
}

fn nanos(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * SECOND + time.tv_nsec as u64
}
