//! The end of the log: where the next record goes, and which queue offset it gets. Source: store.md 2.8, 2.9, R9, R16.

use crate::types::{PhyOffset, QueueHandle, QueueOffset, Timestamp};

/// Bytes that must stay free behind a record in its segment: room for the blank that ends it.
pub const RECORD_ROOM: u64 = 8;

/// Where something of a given length goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// At the end of the current segment.
    Here(PhyOffset),
    /// The current segment is ended by a blank of `blank_len` bytes at `blank_at`; it goes to the start of the next.
    NextSegment { blank_at: PhyOffset, blank_len: u32, at: PhyOffset },
    /// No segment can hold it (rule R9); nothing is given out.
    TooLarge { max: u64 },
}

/// The append point of the log. Lives on the writer core.
#[derive(Clone, Debug)]
pub struct LogEnd {
    at: PhyOffset,
    segment_len: u64,
    last_stored_at: Timestamp,
}

impl LogEnd {
    /// The log ends at `at`; the newest record was stored at `last_stored_at`.
    pub fn new(at: PhyOffset, segment_len: u64, last_stored_at: Timestamp) -> LogEnd {
        assert!(segment_len > RECORD_ROOM, "a segment must hold more than a blank");
        LogEnd { at, segment_len, last_stored_at }
    }

    /// The first byte that is not yet given out.
    pub fn at(&self) -> PhyOffset {
        self.at
    }

    /// Where a record (or a whole client batch, which never crosses a segment) of `len` bytes goes.
    pub fn place(&self, len: u64) -> Place {
        let max = self.segment_len - RECORD_ROOM;
        if len > max {
            return Place::TooLarge { max };
        }
        let used = self.at.0 % self.segment_len;
        let left = self.segment_len - used;
        if len + RECORD_ROOM <= left {
            return Place::Here(self.at);
        }
        let blank_len = u32::try_from(left).expect("a segment is at most 2 GiB");
        Place::NextSegment { blank_at: self.at, blank_len, at: self.at.advance(left) }
    }

    /// Moves the end behind what was placed at `at`.
    pub fn advance(&mut self, at: PhyOffset, len: u64) {
        assert!(at >= self.at, "the log only grows");
        self.at = at.advance(len);
    }

    /// The store time of the newest record.
    pub fn last_stored_at(&self) -> Timestamp {
        self.last_stored_at
    }

    /// The store time of the next record: the clock, but never before the record ahead of it (rule R16).
    pub fn stored_at(&mut self, clock: Timestamp) -> Timestamp {
        self.last_stored_at = self.last_stored_at.max(clock);
        self.last_stored_at
    }
}

/// The next queue offset of every queue, by handle. Lives on the writer core.
#[derive(Clone, Debug, Default)]
pub struct QueueCounters(Vec<u64>);

impl QueueCounters {
    /// `next[h]` is what the queue with handle `h` gives out next; a handle beyond starts at 0.
    pub fn new(next: Vec<u64>) -> QueueCounters {
        QueueCounters(next)
    }

    /// Gives out `count` offsets of a queue and returns the first.
    pub fn take(&mut self, queue: QueueHandle, count: u64) -> QueueOffset {
        if queue.index() >= self.0.len() {
            self.0.resize(queue.index() + 1, 0);
        }
        let next = &mut self.0[queue.index()];
        let first = *next;
        *next += count;
        QueueOffset(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(at: u64) -> LogEnd {
        LogEnd::new(PhyOffset(at), 4096, Timestamp(0))
    }

    #[test]
    fn a_record_that_leaves_exactly_eight_bytes_fits() {
        assert_eq!(end(1000).place(3088), Place::Here(PhyOffset(1000)));
    }

    #[test]
    fn a_record_that_would_leave_seven_bytes_goes_to_the_next_segment() {
        let next = Place::NextSegment { blank_at: PhyOffset(102), blank_len: 3994, at: PhyOffset(4096) };
        assert_eq!(end(102).place(3987), next);
    }

    #[test]
    fn the_smallest_blank_is_eight_bytes() {
        let next = Place::NextSegment { blank_at: PhyOffset(4088), blank_len: 8, at: PhyOffset(4096) };
        assert_eq!(end(4088).place(92), next);
    }

    #[test]
    fn a_record_as_long_as_a_segment_allows_fits_and_one_byte_more_never_does() {
        assert_eq!(end(0).place(4088), Place::Here(PhyOffset(0)));
        assert_eq!(end(0).place(4089), Place::TooLarge { max: 4088 });
        assert_eq!(end(500).place(4089), Place::TooLarge { max: 4088 });
    }

    #[test]
    fn store_time_never_goes_back() {
        let mut end = end(0);
        assert_eq!(end.stored_at(Timestamp(50)), Timestamp(50));
        assert_eq!(end.stored_at(Timestamp(40)), Timestamp(50));
        assert_eq!(end.stored_at(Timestamp(60)), Timestamp(60));
    }

    #[test]
    fn queue_offsets_are_consecutive_within_a_queue() {
        let mut counters = QueueCounters::new(vec![7]);
        assert_eq!(counters.take(QueueHandle(0), 2), QueueOffset(7));
        assert_eq!(counters.take(QueueHandle(0), 1), QueueOffset(9));
        assert_eq!(counters.take(QueueHandle(5), 1), QueueOffset(0));
    }
}
