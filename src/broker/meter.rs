//! What every answer counts: how long its request took, by both codes. A slow one is told in the log, with its stages.

use std::cell::Cell;
use std::net::SocketAddr;

use crate::metrics::{request_name, response_name};
use crate::store::{PutTimes, ShardStore};

/// Slow requests told in a second; of the rest it is told how many there were.
const TOLD_A_SECOND: u32 = 10;
const SECOND_US: u64 = 1_000_000;

/// A request on its way to an answer.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    pub code: i32,
    /// By the steady clock.
    pub arrived_us: u64,
    /// It was kept waiting for messages.
    pub is_held: bool,
}

/// Lives on one shard core.
pub struct Meter {
    store: ShardStore,
    clock: fn() -> u64,
    /// From here on a request is slow.
    slow_us: u64,
    second: Cell<Second>,
}

/// The second in which slow requests are told.
#[derive(Clone, Copy, Debug, Default)]
struct Second {
    began_us: u64,
    told: u32,
    untold: u64,
}

impl Second {
    /// One more at `now_us`: may it be told, and with how many that were not?
    fn next(&mut self, now_us: u64) -> Option<u64> {
        if now_us.saturating_sub(self.began_us) >= SECOND_US {
            *self = Second { began_us: now_us, told: 0, ..*self };
        }
        if self.told == TOLD_A_SECOND {
            self.untold += 1;
            return None;
        }
        self.told += 1;
        Some(std::mem::take(&mut self.untold))
    }
}

impl Meter {
    /// `slow_us` 0: none is slow.
    pub fn new(store: ShardStore, clock: fn() -> u64, slow_us: u64) -> Meter {
        let slow_us = if slow_us == 0 { u64::MAX } else { slow_us };
        Meter { store, clock, slow_us, second: Cell::default() }
    }

    /// A request is answered now.
    pub fn note(&self, asked: &Asked, response: i32, remote: SocketAddr) {
        self.note_at((self.clock)(), asked, response, remote, &PutTimes::default());
    }

    /// A request was answered at `now_us`; `times` are those of its put.
    pub fn note_at(&self, now_us: u64, asked: &Asked, response: i32, remote: SocketAddr, times: &PutTimes) {
        let took_us = now_us.saturating_sub(asked.arrived_us);
        self.store.traffic().request_times.note(asked.code, response, asked.is_held, took_us);
        if took_us >= self.slow_us && !asked.is_held {
            self.slow(now_us, took_us, asked.code, response, remote, times);
        }
    }

    #[cold]
    fn slow(&self, now_us: u64, took_us: u64, code: i32, response: i32, remote: SocketAddr, times: &PutTimes) {
        self.store.traffic().slow_requests.add(1);
        let mut second = self.second.get();
        let told = second.next(now_us);
        self.second.set(second);
        let Some(untold) = told else { return };
        let (request, response) = (request_name(code), response_name(response));
        let PutTimes { socket_us, queue_us, append_us, flush_us, reply_us, .. } = *times;
        if *times == PutTimes::default() {
            tracing::warn!(request, response, %remote, took_us, untold, "slow request");
        } else {
            tracing::warn!(
                request, response, %remote, took_us, socket_us, queue_us, append_us, flush_us, reply_us, untold,
                "slow request"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_a_second_are_told_and_then_how_many_were_not() {
        let mut second = Second::default();
        let told: Vec<_> = (0..15).map(|at| second.next(5 * SECOND_US + at)).collect();
        assert_eq!(told[..10], [Some(0); 10]);
        assert_eq!(told[10..], [None; 5]);
        assert_eq!(second.next(6 * SECOND_US), Some(5));
        assert_eq!(second.next(6 * SECOND_US + 1), Some(0));
    }
}
