//! When each request of an open loop is to be sent. Arithmetic only: the schedule knows nothing of what became of it.

use super::clock::SECOND;
use super::plan::Rate;

/// The intended times of one thread's requests: of all requests, numbered from 0, each `of`-th from `index` on.
///
/// Before `warmup` the rate is `rate.from`; from there it changes evenly to `rate.to` over `measured`, and stays.
#[derive(Clone, Debug)]
pub struct Schedule {
    rate: Rate,
    /// Seconds.
    warmup: f64,
    measured: f64,
    /// Messages a request.
    batch: f64,
    /// Number of the next request of this thread.
    next: u64,
    step: u64,
}

impl Schedule {
    /// `warmup` and `measured` in nanoseconds; `measured` matters for a ramp only.
    pub fn new(rate: Rate, warmup: u64, measured: u64, batch: u32, index: u32, of: u32) -> Schedule {
        let seconds = |nanos: u64| nanos as f64 / SECOND as f64;
        Schedule {
            rate,
            warmup: seconds(warmup),
            measured: seconds(measured),
            batch: f64::from(batch),
            next: u64::from(index),
            step: u64::from(of),
        }
    }

    /// When the next request of this thread is to be sent, in nanoseconds from the start.
    pub fn peek(&self) -> u64 {
        (self.seconds_until(self.next as f64 * self.batch) * SECOND as f64) as u64
    }

    pub fn advance(&mut self) {
        self.next += self.step;
    }

    /// How many requests of this thread are to be sent before `end` (nanoseconds from the start) and are still to come.
    pub fn left_before(&self, end: u64) -> u64 {
        // The count of all requests before `end`: the first guess may be off by one for rounding, so it is corrected
        // by the times that `peek` gives.
        let mut count = (self.messages_until(end as f64 / SECOND as f64) / self.batch).ceil() as u64;
        let at = |number: u64| (self.seconds_until(number as f64 * self.batch) * SECOND as f64) as u64;
        while count > 0 && at(count - 1) >= end {
            count -= 1;
        }
        while at(count) < end {
            count += 1;
        }
        count.saturating_sub(self.next).div_ceil(self.step)
    }

    /// The time at which so many messages have been sent.
    fn seconds_until(&self, messages: f64) -> f64 {
        let Rate { from, to } = self.rate;
        let before = self.warmup * from;
        if messages <= before || from == to {
            return messages / from;
        }
        let messages = messages - before;
        let in_ramp = (from + to) / 2.0 * self.measured;
        if messages >= in_ramp {
            return self.warmup + self.measured + (messages - in_ramp) / to;
        }
        // messages = from · t + slope / 2 · t², solved for t in the form that loses no digits.
        let slope = (to - from) / self.measured;
        self.warmup + 2.0 * messages / (from + (from * from + 2.0 * slope * messages).max(0.0).sqrt())
    }

    fn messages_until(&self, seconds: f64) -> f64 {
        let Rate { from, to } = self.rate;
        if seconds <= self.warmup || from == to {
            return seconds * from;
        }
        let inside = (seconds - self.warmup).min(self.measured);
        let slope = (to - from) / self.measured;
        let after = seconds - self.warmup - inside;
        self.warmup * from + inside * (from + slope * inside / 2.0) + after * to
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::load::clock::MS;

    fn times(mut schedule: Schedule, count: usize) -> Vec<u64> {
        (0..count)
            .map(|_| {
                let at = schedule.peek();
                schedule.advance();
                at
            })
            .collect()
    }

    fn steady(rate: f64, batch: u32, index: u32, of: u32) -> Schedule {
        Schedule::new(Rate { from: rate, to: rate }, 0, SECOND, batch, index, of)
    }

    #[test]
    fn a_steady_rate_has_even_gaps() {
        assert_eq!(times(steady(1000.0, 1, 0, 1), 4), [0, MS, 2 * MS, 3 * MS]);
        assert_eq!(times(steady(1000.0, 10, 0, 1), 3), [0, 10 * MS, 20 * MS], "a batch is one request");
    }

    #[test]
    fn no_time_drifts_away_over_a_day() {
        let mut schedule = steady(12_345.0, 1, 0, 1);
        schedule.next = 12_345 * 86_400;
        assert_eq!(schedule.peek(), 86_400 * SECOND);
    }

    #[test]
    fn threads_share_one_schedule() {
        let mut all: Vec<u64> = (0..3).flat_map(|index| times(steady(12_000.0, 1, index, 3), 100)).collect();
        all.sort_unstable();
        assert_eq!(all, times(steady(12_000.0, 1, 0, 1), 300));
    }

    #[test]
    fn a_ramp_begins_after_the_warm_up_and_ends_with_the_measured_time() {
        let schedule = Schedule::new(Rate { from: 100.0, to: 300.0 }, 2 * SECOND, 10 * SECOND, 1, 0, 1);
        let all = times(schedule.clone(), 3000);
        let between = |from: u64, to: u64| all.iter().filter(|at| (from * SECOND..to * SECOND).contains(at)).count();
        assert_eq!(between(0, 2), 200);
        assert_eq!(between(2, 12), 2000, "the mean of both rates");
        let near = |found: usize, wanted: usize| assert!(found.abs_diff(wanted) <= 1, "{found}, not {wanted}");
        near(between(2, 3), 110);
        near(between(11, 12), 290);
        near(between(12, 13), 300);
        assert!(all.is_sorted());
    }

    proptest! {
        #[test]
        fn what_is_left_is_what_will_come(
            from in 1.0..5000.0_f64, to in 1.0..5000.0_f64, warmup in 0..2000_u64, measured in 1..3000_u64,
            batch in 1..20_u32, index in 0..3_u32, end in 0..6000_u64, done in 0..50_u64,
        ) {
            let mut schedule = Schedule::new(Rate { from, to }, warmup * MS, measured * MS, batch, index, 3);
            for _ in 0..done {
                schedule.advance();
            }
            let left = schedule.left_before(end * MS);
            let mut counted = 0;
            while schedule.peek() < end * MS {
                schedule.advance();
                counted += 1;
            }
            prop_assert_eq!(left, counted);
        }

        #[test]
        fn times_never_go_back(from in 0.1..1e6_f64, to in 0.1..1e6_f64, measured in 1..100_000_u64) {
            let all = times(Schedule::new(Rate { from, to }, MS, measured * MS, 1, 0, 1), 2000);
            prop_assert!(all.is_sorted());
        }
    }
}
