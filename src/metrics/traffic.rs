//! What one shard has put and got since the node started, and how long its puts took.

use super::owned::{ClassTotals, Owned, Times};
use super::requests::Requests;
use super::series::SeriesCounts;

/// Upper ends in ms, exclusive, of the classes that Java's brokers count put times in; the first class is below a
/// millisecond, the last has no end. Source: RocketMQ 5.x `StoreStatsService.java`.
pub const PUT_CLASS_ENDS_MS: [u64; 12] = [1, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10_000];
/// Number of those classes.
pub const PUT_CLASSES: usize = PUT_CLASS_ENDS_MS.len() + 1;

/// Steps of one doubling of time in the fine histogram: each is at most an eighth wide.
const STEPS: u64 = 8;
/// Values below this have a bucket each, in µs.
const EXACT_END: u64 = 16;
const BUCKETS: usize = 8 * 36;

/// Counted by one shard core alone, read by any.
#[derive(Debug)]
pub struct Traffic {
    puts: Owned,
    put_len: Owned,
    puts_failed: Owned,
    put_us_max: Owned,
    put_classes: [Owned; PUT_CLASSES],
    put_us: [Owned; BUCKETS],
    gets_found: Owned,
    gets_missed: Owned,
    got: Owned,
    get_us_max: Owned,
    put_times: Times,
    /// The first put of a turn comes in, to the turn's being handed to the writer.
    pub socket: Times,
    /// A put is written, to its being flushed; of who waits for that.
    pub flush: Times,
    /// The writer answers, to the answer's being here.
    pub reply: Times,
    /// What came in and went out, by topic and group.
    pub series: SeriesCounts,
    pub request_times: Requests,
    pub slow_requests: Owned,
    pub dead_letters: Owned,
    /// Pulls that are held now.
    pub holds: Owned,
    /// Bytes of answers that waited for their peers when that was last looked at.
    pub unsent_len: Owned,
}

impl Traffic {
    /// With counters for so many series.
    pub fn new(slots: usize) -> Traffic {
        Traffic {
            put_times: Times::default(),
            socket: Times::default(),
            flush: Times::default(),
            reply: Times::default(),
            series: SeriesCounts::new(slots),
            request_times: Requests::default(),
            slow_requests: Owned::default(),
            dead_letters: Owned::default(),
            holds: Owned::default(),
            unsent_len: Owned::default(),
            puts: Owned::default(),
            put_len: Owned::default(),
            puts_failed: Owned::default(),
            put_us_max: Owned::default(),
            put_classes: std::array::from_fn(|_| Owned::default()),
            put_us: std::array::from_fn(|_| Owned::default()),
            gets_found: Owned::default(),
            gets_missed: Owned::default(),
            got: Owned::default(),
            get_us_max: Owned::default(),
        }
    }

    /// A put of `messages` messages, `len` bytes in the log, was answered as stored after `took_us`.
    pub fn note_put(&self, messages: u64, len: u64, took_us: u64) {
        self.puts.add(messages);
        self.put_len.add(len);
        self.put_us_max.raise(took_us);
        let class = PUT_CLASS_ENDS_MS.partition_point(|end| *end <= took_us / 1000);
        self.put_classes[class].add(1);
        self.put_us[bucket(took_us)].add(1);
        self.put_times.add(took_us, 1);
    }

    /// How long puts took until they were answered as stored.
    pub fn put_times(&self) -> ClassTotals {
        self.put_times.totals()
    }

    /// A put was answered as not stored.
    pub fn note_failed_put(&self) {
        self.puts_failed.add(1);
    }

    /// A get was answered with so many messages; 0: it found none.
    pub fn note_get(&self, messages: u64) {
        if messages == 0 {
            self.gets_missed.add(1);
        } else {
            self.gets_found.add(1);
            self.got.add(messages);
        }
    }

    /// Puts that were stored and gets so far.
    pub fn requests(&self) -> u64 {
        self.puts.get() + self.gets_found.get() + self.gets_missed.get()
    }

    /// A get that had to read from the disk took so long.
    pub fn note_get_time(&self, took_us: u64) {
        self.get_us_max.raise(took_us);
    }
}

/// The sum of several shards' [`Traffic`] at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrafficTotals {
    /// Messages stored.
    pub puts: u64,
    /// Their bytes in the log.
    pub put_len: u64,
    /// Requests to store that failed.
    pub puts_failed: u64,
    pub put_us_max: u64,
    /// Puts (a batch is one) by [`PUT_CLASS_ENDS_MS`].
    pub put_classes: [u64; PUT_CLASSES],
    put_us: Vec<u64>,
    /// Gets that found something, and those that did not.
    pub gets_found: u64,
    pub gets_missed: u64,
    /// Messages that gets gave out.
    pub got: u64,
    pub get_us_max: u64,
}

impl Default for TrafficTotals {
    fn default() -> TrafficTotals {
        TrafficTotals {
            puts: 0,
            put_len: 0,
            puts_failed: 0,
            put_us_max: 0,
            put_classes: [0; PUT_CLASSES],
            put_us: vec![0; BUCKETS],
            gets_found: 0,
            gets_missed: 0,
            got: 0,
            get_us_max: 0,
        }
    }
}

impl TrafficTotals {
    pub fn add(&mut self, shard: &Traffic) {
        self.puts += shard.puts.get();
        self.put_len += shard.put_len.get();
        self.puts_failed += shard.puts_failed.get();
        self.put_us_max = self.put_us_max.max(shard.put_us_max.get());
        self.put_classes.iter_mut().zip(&shard.put_classes).for_each(|(sum, class)| *sum += class.get());
        self.put_us.iter_mut().zip(&shard.put_us).for_each(|(sum, bucket)| *sum += bucket.get());
        self.gets_found += shard.gets_found.get();
        self.gets_missed += shard.gets_missed.get();
        self.got += shard.got.get();
        self.get_us_max = self.get_us_max.max(shard.get_us_max.get());
    }

    /// The time in µs within which that share (0 to 1) of all puts was answered, rounded up to its bucket, at most an
    /// eighth too much; 0 if there was none.
    pub fn put_us_within(&self, share: f64) -> u64 {
        let count: u64 = self.put_us.iter().sum();
        let wanted = (count as f64 * share).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (index, of_bucket) in self.put_us.iter().enumerate() {
            seen += of_bucket;
            if seen >= wanted {
                return bucket_last(index).min(self.put_us_max);
            }
        }
        0
    }
}

/// Bucket of a time: one each below [`EXACT_END`], then [`STEPS`] a doubling.
fn bucket(us: u64) -> usize {
    if us < EXACT_END {
        return us as usize;
    }
    let doublings = us.ilog2() - EXACT_END.ilog2();
    let step = (us >> (doublings + 1)) - STEPS;
    (EXACT_END as usize + doublings as usize * STEPS as usize + step as usize).min(BUCKETS - 1)
}

/// The longest time of a bucket.
fn bucket_last(index: usize) -> u64 {
    let index = index as u64;
    if index < EXACT_END {
        return index;
    }
    let (doublings, step) = ((index - EXACT_END) / STEPS, (index - EXACT_END) % STEPS);
    ((STEPS + step + 1) << (doublings + 1)) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(shards: &[&Traffic]) -> TrafficTotals {
        let mut totals = TrafficTotals::default();
        shards.iter().for_each(|shard| totals.add(shard));
        totals
    }

    #[test]
    fn every_time_lies_in_its_bucket_and_buckets_follow_each_other() {
        let mut last = None;
        for us in (0..100_000).chain((17..40).map(|bits| 1 << bits)).chain((17..36).map(|bits| (1 << bits) - 1)) {
            let index = bucket(us);
            assert!(index == BUCKETS - 1 || bucket_last(index) >= us, "{us}");
            assert!(index == 0 || bucket_last(index - 1) < us, "{us}");
            if us < 100_000 {
                assert!(last.is_none_or(|last| index == last || index == last + 1), "{us}");
                last = Some(index);
            }
        }
    }

    #[test]
    fn put_times_fall_into_javas_classes() {
        let traffic = Traffic::new(1);
        for us in [0, 999, 1000, 9_999, 10_000, 49_999, 999_999, 1_000_000, 9_999_999, 10_000_000] {
            traffic.note_put(1, 100, us);
        }
        assert_eq!(totals(&[&traffic]).put_classes, [2, 2, 2, 0, 0, 0, 1, 1, 0, 0, 0, 1, 1]);
    }

    #[test]
    fn shards_add_up_and_the_slowest_put_of_any_is_the_maximum() {
        let (one, two) = (Traffic::new(1), Traffic::new(1));
        for _ in 0..99 {
            one.note_put(2, 300, 200);
        }
        two.note_put(1, 100, 70_000);
        two.note_failed_put();
        one.note_get(32);
        two.note_get(0);
        two.note_get_time(1500);
        let sum = totals(&[&one, &two]);
        assert_eq!((sum.puts, sum.put_len, sum.puts_failed), (199, 29_800, 1));
        assert_eq!((sum.gets_found, sum.gets_missed, sum.got, sum.get_us_max), (1, 1, 32, 1500));
        assert!((200..225).contains(&sum.put_us_within(0.99)), "{}", sum.put_us_within(0.99));
        assert_eq!(sum.put_us_within(0.999), 70_000);
    }

    #[test]
    fn without_a_put_there_is_no_time() {
        assert_eq!(TrafficTotals::default().put_us_within(0.99), 0);
    }
}
