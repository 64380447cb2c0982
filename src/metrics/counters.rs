//! Events that operators want to see the number of: where something waited, was refused, or took the slow way.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// One number that only grows; any core adds to it.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The store's events, over all cores.
#[derive(Debug, Default)]
pub struct Counters {
    /// Puts refused because too much was on its way to the writer.
    pub puts_overloaded: Counter,
    /// Puts refused because they waited too long for the writer.
    pub puts_expired: Counter,
    /// Answers "stored, but not flushed in time".
    pub flush_timeouts: Counter,
    /// Times that the writer waited for a builder whose ring was full.
    pub dispatch_stalls: Counter,
    /// Times that the writer waited because too many messages were written and not yet shown.
    pub unshown_stalls: Counter,
    /// Reads that went to the disk through io_uring.
    pub cold_reads: Counter,
    /// Of those, the ones that first waited for a place.
    pub cold_reads_queued: Counter,
    /// And the ones that were refused, since too many of their group waited, or too much was read for their connection.
    pub cold_reads_refused: Counter,
    /// Gets of scans of old messages that waited, so that others find the core free.
    pub scan_gets_paced: Counter,
    /// Regions of the log that are damaged and stepped over; counted once, when the store is opened.
    pub damaged_regions: Counter,
    /// KiB asked of the page cache ahead of groups that scan the log, and dropped from it behind them.
    pub read_ahead_kib: Counter,
    pub dropped_kib: Counter,
    /// Units that a get stepped over: they point to no message of their queue.
    pub units_skipped: Counter,
    /// Records that are stepped over since the disk does not give them.
    pub records_unreadable: Counter,
    /// Segments deleted because they had expired.
    pub segments_expired: Counter,
    /// Segments deleted before their time because the disk was too full.
    pub segments_forced: Counter,
    /// Deleted segments that a reader held for too long.
    pub segments_held: Counter,
    /// Consume queue and index files deleted after the segments that they led to.
    pub derived_expired: Counter,
    /// Topics deleted with their messages.
    pub topics_deleted: Counter,
    /// Metrics pages for which the control core did not count in time.
    pub census_missed: Counter,
}

/// Those that happened, on one line.
impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [
            ("puts_overloaded", &self.puts_overloaded),
            ("puts_expired", &self.puts_expired),
            ("flush_timeouts", &self.flush_timeouts),
            ("dispatch_stalls", &self.dispatch_stalls),
            ("unshown_stalls", &self.unshown_stalls),
            ("cold_reads", &self.cold_reads),
            ("cold_reads_queued", &self.cold_reads_queued),
            ("scan_gets_paced", &self.scan_gets_paced),
            ("damaged_regions", &self.damaged_regions),
            ("cold_reads_refused", &self.cold_reads_refused),
            ("read_ahead_kib", &self.read_ahead_kib),
            ("dropped_kib", &self.dropped_kib),
            ("units_skipped", &self.units_skipped),
            ("records_unreadable", &self.records_unreadable),
            ("segments_expired", &self.segments_expired),
            ("segments_forced", &self.segments_forced),
            ("segments_held", &self.segments_held),
            ("derived_expired", &self.derived_expired),
            ("topics_deleted", &self.topics_deleted),
            ("census_missed", &self.census_missed),
        ];
        let happened: Vec<String> = all
            .iter()
            .filter(|(_, counter)| counter.get() > 0)
            .map(|(name, counter)| format!("{name} {}", counter.get()))
            .collect();
        f.write_str(if happened.is_empty() { "none" } else { "" })?;
        f.write_str(&happened.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_events_that_happened_are_shown() {
        let counters = Counters::default();
        assert_eq!(counters.to_string(), "none");
        counters.cold_reads.add(2);
        counters.puts_expired.add(1);
        assert_eq!(counters.to_string(), "puts_expired 1, cold_reads 2");
    }
}
