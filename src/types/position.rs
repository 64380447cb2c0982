//! Numbers that must not mix: log positions, queue positions, times.

use std::fmt;

/// A byte position in the commit log, counted from its birth; segments that expire do not reset it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PhyOffset(pub u64);

impl PhyOffset {
    /// The position `len` bytes further on; panics past `u64::MAX`, which no log reaches.
    pub fn advance(self, len: u64) -> PhyOffset {
        PhyOffset(self.0.checked_add(len).expect("a log position fits u64"))
    }

    /// Bytes from `start` to here; 0 if `start` lies behind.
    pub fn since(self, start: PhyOffset) -> u64 {
        self.0.saturating_sub(start.0)
    }

    /// First byte of the segment that holds this position.
    pub fn segment_start(self, segment_len: u64) -> PhyOffset {
        PhyOffset(self.0 - self.0 % segment_len)
    }
}

impl fmt::Display for PhyOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A position in one queue, counted in messages, not bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueOffset(pub u64);

impl QueueOffset {
    /// The position `count` messages further on.
    pub fn advance(self, count: u64) -> QueueOffset {
        QueueOffset(self.0.checked_add(count).expect("a queue position fits u64"))
    }
}

impl fmt::Display for QueueOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Milliseconds since the Unix epoch, as RocketMQ stores them (signed).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// This time moved by `ms`, saturating at the ends of the range.
    pub fn plus_ms(self, ms: i64) -> Timestamp {
        Timestamp(self.0.saturating_add(ms))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
