//! How fast a scan of old messages may go while others use the same core: it gets a share of the core's time, so that who
//! sends and reads new messages finds the core free. While nobody else is there, a scan goes as fast as it can.
//!
//! A step machine, one a shard core; the clock is not asked. What a get takes of the core is reckoned, not measured: most of
//! it is spent in the kernel and on the way to it, for all connections at once.

use std::time::Duration;

/// What one get takes of the core, in µs: a frame in, a look, an answer out.
const GET_US: u64 = 30;
/// Bytes that are copied and sent in a µs.
const LEN_PER_US: u64 = 2 << 10;
/// Others use the core if they made so many requests in a period.
const OTHERS_MIN: u64 = 10;
const PERIOD_US: u64 = 100_000;
/// Unused time is kept for so long.
const KEPT_US: u64 = 2_000;
/// No get waits longer, however many scans there are, since its client waits, too; so of very many each gets one a second.
const WAIT_US_MAX: u64 = 1_000_000;

/// The scans of one core together.
pub(super) struct ScanPace {
    /// Of the core's time, 1 to 100; 100: as fast as it goes.
    percent: u64,
    /// The time of all gets so far is used up at this µs.
    used_to_us: u64,
    period_began_us: u64,
    /// Requests on the core when the period began, but for those of scans.
    others_before: u64,
    others_are_there: bool,
    /// Gets of scans so far.
    gets: u64,
}

impl ScanPace {
    pub(super) fn new(percent: u64) -> ScanPace {
        ScanPace { percent, used_to_us: 0, period_began_us: 0, others_before: 0, others_are_there: false, gets: 0 }
    }

    /// A scan gets `len` bytes at `now_us` of the steady clock, this get not yet being one of the `requests` that the core
    /// has seen: how long it has to wait first.
    pub(super) fn on_get(&mut self, len: u64, requests: u64, now_us: u64) -> Duration {
        let others = requests.saturating_sub(self.gets);
        if now_us.saturating_sub(self.period_began_us) >= PERIOD_US {
            // Over a long time without scans others are few a period, though many in all.
            let periods = now_us.saturating_sub(self.period_began_us) / PERIOD_US;
            self.others_are_there = others.saturating_sub(self.others_before) >= OTHERS_MIN * periods;
            (self.period_began_us, self.others_before) = (now_us, others);
        }
        self.gets += 1;
        if self.percent >= 100 || !self.others_are_there {
            return Duration::ZERO;
        }
        let begins_us = self.used_to_us.clamp(now_us.saturating_sub(KEPT_US), now_us + WAIT_US_MAX);
        self.used_to_us = begins_us + (GET_US + len / LEN_PER_US) * 100 / self.percent;
        Duration::from_micros(begins_us.saturating_sub(now_us))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: u64 = 64 << 10;
    const TAKES_US: u64 = GET_US + LEN / LEN_PER_US;

    /// Gets of a scan for a second, beside `others` requests in each ms: how many there were.
    fn gets_in_a_second(percent: u64, others: u64) -> u64 {
        let mut pace = ScanPace::new(percent);
        let (mut now_us, mut gets) = (0, 0);
        while now_us < 2_000_000 {
            let waits = pace.on_get(LEN, now_us / 1000 * others + gets, now_us);
            now_us += waits.as_micros() as u64 + TAKES_US;
            gets += 1;
        }
        gets / 2
    }

    #[test]
    fn beside_others_scans_get_their_share_of_the_core() {
        let whole = 1_000_000 / TAKES_US;
        for percent in [10, 25, 50] {
            // The first period is free: nobody has been seen yet.
            let share = gets_in_a_second(percent, 5) * 100 / whole;
            assert!((percent..percent + 8).contains(&share), "{percent} % asked for, {share} % got");
        }
    }

    #[test]
    fn alone_a_scan_goes_as_fast_as_it_can() {
        let whole = 1_000_000 / TAKES_US;
        assert!(gets_in_a_second(10, 0) >= whole);
        assert!(gets_in_a_second(100, 5) >= whole);
    }

    #[test]
    fn many_scans_never_wait_longer_than_the_limit() {
        let mut pace = ScanPace::new(1);
        let waits: Vec<u64> = (0..20_000)
            .map(|get| pace.on_get(LEN, 100_000 + get * 2, 1_000_000 + get * 10).as_micros() as u64)
            .collect();
        assert!(waits.iter().all(|wait| *wait <= WAIT_US_MAX));
        // Once there are more than that share serves in a second, each waits as long, and none gets by.
        let first = waits.iter().position(|wait| *wait == WAIT_US_MAX).expect("the limit is reached");
        assert!(waits[first..].iter().all(|wait| *wait >= WAIT_US_MAX * 9 / 10), "{:?}", &waits[first..first + 10]);
    }
}
