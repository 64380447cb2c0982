//! The heartbeat of every executor: a timer on each notes the time, anybody reads when that was.
//!
//! glommio has been seen to park beside runnable tasks; a timer ends that, so every executor has one. That it goes off says
//! that the executor turns: the watchdog and the metrics page read it from other threads. Two atomics an executor,
//! written ten times a second by that executor alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::Duration;

use super::placement::Placement;
use crate::io;

/// Time between two beats.
pub const HEARTBEAT: Duration = Duration::from_millis(100);
/// An executor that has not beaten for longer does not turn: a host that is busy holds it up for a second or two.
pub const LATE: Duration = Duration::from_secs(5);

/// Last beat of an executor that has ended as it should: nobody waits for another one.
const ENDED: u64 = u64::MAX;

/// The beats of all executors, in the order in which they start.
pub struct Heartbeats(Box<[Beats]>);

/// Those of one.
pub struct Beats {
    /// Such as `writer` or `shard 0`.
    pub role: String,
    pub core: usize,
    /// Steady ms of the last one; [`ENDED`].
    last_ms: AtomicU64,
    /// Longest time between two, ms.
    gap_ms_max: AtomicU64,
    /// Number of its thread; 0: it has not begun.
    tid: AtomicI32,
}

impl Heartbeats {
    /// Nothing has beaten yet: until its first beat, an executor's last one is now.
    pub fn new(placement: &Placement) -> Arc<Heartbeats> {
        let now_ms = io::steady_ms();
        let of = |(role, core)| {
            let (last_ms, gap_ms_max, tid) = (AtomicU64::new(now_ms), AtomicU64::new(0), AtomicI32::new(0));
            Beats { role, core, last_ms, gap_ms_max, tid }
        };
        Arc::new(Heartbeats(placement.roles().into_iter().map(of).collect()))
    }

    pub fn all(&self) -> &[Beats] {
        &self.0
    }

    /// The heart of one executor, by its place in [`Placement::roles`].
    pub fn heart(self: &Arc<Self>, executor: usize) -> Heart {
        Heart { all: Arc::clone(self), executor }
    }
}

impl Beats {
    /// Milliseconds since the last beat, at the steady time `now_ms`; nothing once the executor has ended.
    pub fn age_ms(&self, now_ms: u64) -> Option<u64> {
        match self.last_ms.load(Ordering::Relaxed) {
            ENDED => None,
            last_ms => Some(now_ms.saturating_sub(last_ms)),
        }
    }

    /// The longest that this executor has gone without a beat, ms: what is above [`HEARTBEAT`] it was held up, or the
    /// host gave it no time.
    pub fn gap_ms_max(&self) -> u64 {
        self.gap_ms_max.load(Ordering::Relaxed)
    }

    /// Number of its thread, once it runs.
    pub fn tid(&self) -> Option<i32> {
        Some(self.tid.load(Ordering::Relaxed)).filter(|tid| *tid > 0)
    }

    /// Its executor begins, on this thread. How long that took is no gap between beats.
    fn begin(&self, now_ms: u64) {
        self.last_ms.store(now_ms, Ordering::Relaxed);
        self.tid.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::Relaxed);
    }

    pub(super) fn beat(&self, now_ms: u64) {
        let gap_ms = now_ms.saturating_sub(self.last_ms.swap(now_ms, Ordering::Relaxed));
        self.gap_ms_max.fetch_max(gap_ms, Ordering::Relaxed);
    }
}

/// Beats on its executor until it is dropped with it.
pub struct Heart {
    all: Arc<Heartbeats>,
    executor: usize,
}

impl Heart {
    /// Role and core of the executor.
    pub fn of(&self) -> (String, usize) {
        let Beats { role, core, .. } = &self.all.0[self.executor];
        (role.clone(), *core)
    }

    /// Beats for ever. Runs as a task of the executor.
    pub async fn run(self) {
        let mine = &self.all.0[self.executor];
        mine.begin(io::steady_ms());
        loop {
            io::sleep(HEARTBEAT).await;
            mine.beat(io::steady_ms());
        }
    }
}

impl Drop for Heart {
    fn drop(&mut self) {
        self.all.0[self.executor].last_ms.store(ENDED, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_executor_is_as_old_as_its_last_beat_until_it_has_ended() {
        let all = Heartbeats::new(&Placement { writer: 0, shards: vec![1] });
        let roles: Vec<_> = all.all().iter().map(|beats| (beats.role.as_str(), beats.core)).collect();
        assert_eq!(roles, [("writer", 0), ("shard 0", 1)]);
        let shard = &all.all()[1];
        let began = shard.last_ms.load(Ordering::Relaxed);
        assert_eq!(shard.age_ms(began + 3), Some(3));
        shard.begin(began + 9_000);
        assert_eq!((shard.age_ms(began + 9_001), shard.gap_ms_max()), (Some(1), 0), "nothing has beaten before");
        shard.last_ms.store(began + 100, Ordering::Relaxed);
        shard.beat(began + 450);
        shard.beat(began + 550);
        assert_eq!((shard.age_ms(began + 551), shard.gap_ms_max()), (Some(1), 350));
        drop(all.heart(1));
        assert_eq!(shard.age_ms(began + 9_000), None);
        assert_eq!(all.all()[0].age_ms(began + 9_000), Some(9_000));
    }

    #[test]
    fn on_an_executor_it_beats_by_itself() {
        let all = Heartbeats::new(&Placement { writer: 0, shards: vec![0] });
        let (heart, beats) = (all.heart(0), &all.all()[0]);
        std::thread::sleep(Duration::from_millis(20));
        let of_heart = Arc::clone(&all);
        glommio::LocalExecutor::default().run(async move {
            let beats = &of_heart.all()[0];
            let task = glommio::spawn_local(heart.run());
            while beats.tid().is_none() {
                glommio::executor().yield_now().await;
            }
            assert_eq!(beats.gap_ms_max(), 0, "until then nothing has beaten");
            io::sleep(HEARTBEAT * 3).await;
            task.cancel().await;
        });
        assert!(beats.gap_ms_max() > 0);
        assert_eq!(beats.age_ms(io::steady_ms()), None);
    }
}
