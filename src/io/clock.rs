//! Wall clock, steady clock, and the executor's timers.

use std::future::Future;
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::types::Timestamp;

/// When every simulation begins.
#[cfg(test)]
const SIMULATION_EPOCH_MS: i64 = 1_700_000_000_000;

/// The wall clock in ms since the epoch.
pub fn now() -> Timestamp {
    #[cfg(test)]
    if let Some(ms) = super::tap::current().and_then(|tap| tap.now_ms()) {
        return Timestamp(ms);
    }
    #[cfg(test)]
    if let Some(tap) = super::tap::simulated() {
        return Timestamp(SIMULATION_EPOCH_MS + tap.steady_ms() as i64);
    }
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// Ms of a clock that never goes back, counted from the first call in this process.
pub fn steady_ms() -> u64 {
    #[cfg(test)]
    if let Some(tap) = super::tap::simulated() {
        return tap.steady_ms();
    }
    steady().as_millis() as u64
}

/// The same clock in µs.
pub fn steady_us() -> u64 {
    #[cfg(test)]
    if let Some(tap) = super::tap::simulated() {
        return tap.steady_ms() * 1000;
    }
    steady().as_micros() as u64
}

fn steady() -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}

/// Sleeps on the executor that calls it.
pub async fn sleep(duration: Duration) {
    #[cfg(test)]
    if let Some(tap) = super::tap::simulated() {
        return tap.sleep(duration.as_millis() as u64).await;
    }
    glommio::timer::sleep(duration).await;
}

/// Lets other tasks and completions run if this one has held its core for a whole tick. For loops whose input can be
/// there without end.
pub async fn yield_if_due() {
    #[cfg(test)]
    if let Some(tap) = super::tap::simulated() {
        return tap.give_way().await;
    }
    glommio::executor().yield_if_needed().await;
}

/// The future's value, or nothing if it is not there after `limit`; the future is dropped then.
pub async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    futures_lite::future::or(async { Some(future.await) }, async {
        sleep(limit).await;
        None
    })
    .await
}

/// Seconds that local time is ahead of UTC at `at`.
pub fn utc_offset_s(at: Timestamp) -> i32 {
    let seconds: libc::time_t = at.0.div_euclid(1000);
    let mut parts = std::mem::MaybeUninit::<libc::tm>::zeroed();
    // SAFETY: both pointers are valid; localtime_r fills `parts` or returns null, and all-zero is a valid `tm`.
    let parts = unsafe {
        libc::localtime_r(&seconds, parts.as_mut_ptr());
        parts.assume_init()
    };
    parts.tm_gmtoff as i32
}
