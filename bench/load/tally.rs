//! What one thread counted in one interval, and how such counts become a result.

use std::collections::BTreeMap;
use std::fmt;

use hdrhistogram::Histogram;

use super::clock::SECOND;

/// The least and greatest latency that are told apart, ns.
const LATENCY_MIN: u64 = 100;
const LATENCY_MAX: u64 = 3600 * SECOND;
const DIGITS: u8 = 3;

/// A histogram of nanoseconds; what is longer than an hour counts as an hour.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(LATENCY_MIN, LATENCY_MAX, DIGITS).expect("the bounds are in order")
}

/// What can go wrong with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trouble {
    /// Answered with this code.
    Code(i32),
    /// Not answered in time.
    Timeout,
    /// The connection was lost while it was under way.
    Connection,
    /// Acknowledged, and never came to a consumer.
    Missing,
    /// A queue's offsets have a gap or go back here.
    Order,
    /// A record cannot be read, or its checksum is wrong.
    Damaged,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Code(code) => write!(f, "{code}"),
            Trouble::Timeout => f.write_str("timeout"),
            Trouble::Connection => f.write_str("connection"),
            Trouble::Missing => f.write_str("missing"),
            Trouble::Order => f.write_str("order"),
            Trouble::Damaged => f.write_str("damaged"),
        }
    }
}

/// Counts of one interval.
pub struct Tally {
    /// Intended time to answer, of messages that were answered with success.
    pub publish: Histogram<u64>,
    /// Intended time to write.
    pub delay: Histogram<u64>,
    /// Intended time to consumer.
    pub end_to_end: Histogram<u64>,
    /// Pull to answer, of pulls that were not held and brought messages.
    pub pull: Histogram<u64>,
    /// Messages answered with success in this interval, whenever they were sent.
    pub published: u64,
    /// Messages of the sends that failed in it.
    pub failed: u64,
    /// Messages that came to consumers in it.
    pub consumed: u64,
    /// Those of them that came to readers at the end and were sent by this run.
    pub tailed: u64,
    pub troubles: BTreeMap<Trouble, u64>,
    /// What the broker said of a code the first time.
    pub remarks: BTreeMap<i32, String>,
    /// ns.
    pub behind_max: u64,
}

impl Tally {
    pub fn new() -> Tally {
        Tally {
            publish: histogram(),
            delay: histogram(),
            end_to_end: histogram(),
            pull: histogram(),
            published: 0,
            failed: 0,
            consumed: 0,
            tailed: 0,
            troubles: BTreeMap::new(),
            remarks: BTreeMap::new(),
            behind_max: 0,
        }
    }

    pub fn clear(&mut self) {
        for histogram in [&mut self.publish, &mut self.delay, &mut self.end_to_end, &mut self.pull] {
            if !histogram.is_empty() {
                histogram.reset();
            }
        }
        (self.published, self.failed, self.consumed, self.tailed, self.behind_max) = (0, 0, 0, 0, 0);
        self.troubles.clear();
        self.remarks.clear();
    }

    pub fn add(&mut self, other: &Tally) {
        let pairs = [
            (&mut self.publish, &other.publish),
            (&mut self.delay, &other.delay),
            (&mut self.end_to_end, &other.end_to_end),
            (&mut self.pull, &other.pull),
        ];
        for (sum, part) in pairs {
            if !part.is_empty() {
                sum.add(part).expect("all have the same bounds");
            }
        }
        self.published += other.published;
        self.failed += other.failed;
        self.consumed += other.consumed;
        self.tailed += other.tailed;
        self.behind_max = self.behind_max.max(other.behind_max);
        for (trouble, count) in &other.troubles {
            self.trouble(*trouble, *count);
        }
        for (code, remark) in &other.remarks {
            self.remarks.entry(*code).or_insert_with(|| remark.clone());
        }
    }

    pub fn trouble(&mut self, trouble: Trouble, count: u64) {
        *self.troubles.entry(trouble).or_default() += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_threads_add_up_and_can_be_used_again() {
        let mut one = Tally::new();
        one.publish.saturating_record_n(1_000_000, 3);
        (one.published, one.behind_max) = (3, 7);
        one.trouble(Trouble::Code(2), 2);
        one.remarks.insert(2, "first".into());
        let mut other = Tally::new();
        other.publish.saturating_record(9_000_000);
        (other.published, other.behind_max) = (1, 5);
        other.trouble(Trouble::Code(2), 1);
        other.trouble(Trouble::Timeout, 4);
        other.remarks.insert(2, "second".into());

        let mut sum = Tally::new();
        sum.add(&one);
        sum.add(&other);
        assert_eq!((sum.published, sum.publish.len(), sum.behind_max), (4, 4, 7));
        assert_eq!(sum.publish.max() / 1_000_000, 9);
        assert_eq!(sum.troubles, [(Trouble::Code(2), 3), (Trouble::Timeout, 4)].into());
        assert_eq!(sum.remarks[&2], "first");

        sum.clear();
        assert_eq!((sum.published, sum.publish.len(), sum.behind_max, sum.troubles.len()), (0, 0, 0, 0));
    }

    #[test]
    fn latencies_are_told_to_three_digits_and_none_is_lost() {
        let mut histogram = histogram();
        for nanos in [0, 23_456, 2 * LATENCY_MAX] {
            histogram.saturating_record(nanos);
        }
        let middle = histogram.value_at_quantile(0.5);
        assert!(middle.abs_diff(23_456) <= 64, "{middle}");
        assert!(histogram.max() >= LATENCY_MAX);
        assert_eq!(histogram.len(), 3);
    }
}
