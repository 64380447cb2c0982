//! Numbers that one core counts and any other reads: no lock, no locked instruction.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that one core writes: a plain load and store.
#[derive(Debug, Default)]
pub struct Owned(AtomicU64);

impl Owned {
    pub fn add(&self, count: u64) {
        self.0.store(self.get().wrapping_add(count), Ordering::Relaxed);
    }

    pub fn set(&self, to: u64) {
        self.0.store(to, Ordering::Relaxed);
    }

    pub fn raise(&self, to: u64) {
        if to > self.get() {
            self.set(to);
        }
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Upper ends of the classes of stage times, inclusive, in µs: 10 µs to 10 s.
pub const STAGE_ENDS_US: [u64; 19] = [
    10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000,
    2_000_000, 5_000_000, 10_000_000,
];
/// Of how many share a turn or a flush.
pub const BATCH_ENDS: [u64; 14] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192];

/// Times of one stage.
pub type Times = Classes<{ STAGE_ENDS_US.len() }>;
/// How many share a turn or a flush.
pub type BatchSizes = Classes<{ BATCH_ENDS.len() }>;

/// A histogram with fixed classes, counted by one core.
#[derive(Debug)]
pub struct Classes<const N: usize> {
    /// Inclusive; what is above the last has a class of its own.
    ends: &'static [u64; N],
    counts: [Owned; N],
    above: Owned,
    sum: Owned,
}

impl<const N: usize> Classes<N> {
    pub fn new(ends: &'static [u64; N]) -> Classes<N> {
        Classes {
            ends,
            counts: std::array::from_fn(|_| Owned::default()),
            above: Owned::default(),
            sum: Owned::default(),
        }
    }

    /// Notes `count` things of this value each.
    pub fn add(&self, value: u64, count: u64) {
        let class = self.ends.partition_point(|end| *end < value);
        self.counts.get(class).unwrap_or(&self.above).add(count);
        self.sum.add(value.wrapping_mul(count));
    }

    /// Was nothing noted yet?
    pub fn is_empty(&self) -> bool {
        self.counts.iter().chain([&self.above]).all(|count| count.get() == 0)
    }

    pub fn totals(&self) -> ClassTotals {
        let counts = self.counts.iter().chain([&self.above]).map(Owned::get).collect();
        ClassTotals { ends: self.ends, counts, sum: self.sum.get() }
    }
}

impl Default for Times {
    fn default() -> Times {
        Classes::new(&STAGE_ENDS_US)
    }
}

impl Default for BatchSizes {
    fn default() -> BatchSizes {
        Classes::new(&BATCH_ENDS)
    }
}

/// What several cores' [`Classes`] of the same ends come to at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassTotals {
    pub ends: &'static [u64],
    /// One more than `ends`: the last is of what lies above.
    pub counts: Vec<u64>,
    pub sum: u64,
}

impl ClassTotals {
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// # Panics
    /// If the other one's classes differ.
    pub fn add(&mut self, other: &ClassTotals) {
        assert_eq!(self.ends, other.ends, "only the same classes add up");
        self.counts.iter_mut().zip(&other.counts).for_each(|(sum, count)| *sum += count);
        self.sum = self.sum.wrapping_add(other.sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_holds_what_lies_above_the_one_before_up_to_its_end() {
        let times = Times::default();
        for us in [0, 10, 11, 20, 10_000_000, 10_000_001, u64::from(u32::MAX)] {
            times.add(us, 2);
        }
        let totals = times.totals();
        assert_eq!((totals.counts[0], totals.counts[1], totals.counts[18], totals.counts[19]), (4, 4, 2, 4));
        assert_eq!((totals.count(), totals.sum), (14, 2 * (41 + 20_000_001 + u64::from(u32::MAX))));
    }

    #[test]
    fn cores_add_up() {
        let (one, two) = (BatchSizes::default(), BatchSizes::default());
        one.add(8, 1);
        two.add(9, 3);
        let mut totals = one.totals();
        totals.add(&two.totals());
        assert_eq!((totals.counts[3], totals.counts[4], totals.sum), (1, 3, 35));
    }
}
