//! When an async flush is due. Source: store.md 5.3, FlushRealTimeService.

use crate::types::PhyOffset;

/// Size of a page as the rule counts them, whatever the machine's is.
const PAGE_LEN: u64 = 4096;

/// Interval, least pages and thorough interval of the async flush. Times are ms of any clock that only moves on.
#[derive(Clone, Debug)]
pub struct FlushRule {
    least_pages: u64,
    thorough_interval_ms: u64,
    last_thorough_ms: u64,
}

impl FlushRule {
    pub fn new(least_pages: u64, thorough_interval_ms: u64, now_ms: u64) -> FlushRule {
        FlushRule { least_pages, thorough_interval_ms, last_thorough_ms: now_ms }
    }

    /// Asked once an interval: is a flush due? At least `least_pages` whole pages must wait, or a segment's end, or the
    /// thorough interval must have passed (then anything at all is enough).
    pub fn due(&mut self, now_ms: u64, flushed: PhyOffset, appended: PhyOffset, segment_len: u64) -> bool {
        let thorough = now_ms.saturating_sub(self.last_thorough_ms) >= self.thorough_interval_ms;
        if thorough {
            self.last_thorough_ms = now_ms;
        }
        if appended <= flushed {
            return false;
        }
        thorough
            || self.least_pages == 0
            || appended.0 / PAGE_LEN - flushed.0 / PAGE_LEN >= self.least_pages
            || appended.segment_start(segment_len) > flushed.segment_start(segment_len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: u64 = 1 << 20;

    #[test]
    fn fewer_than_the_least_pages_wait_for_the_thorough_interval() {
        let mut rule = FlushRule::new(4, 10_000, 0);
        let (flushed, appended) = (PhyOffset(100), PhyOffset(4 * 4096 - 1));
        assert!(!rule.due(500, flushed, appended, SEGMENT));
        assert!(!rule.due(9_999, flushed, appended, SEGMENT));
        assert!(rule.due(10_000, flushed, appended, SEGMENT));
        assert!(!rule.due(10_500, flushed, appended, SEGMENT));
    }

    #[test]
    fn the_least_pages_or_the_end_of_a_segment_make_a_flush_due() {
        let mut rule = FlushRule::new(4, 10_000, 0);
        assert!(rule.due(500, PhyOffset(100), PhyOffset(4 * 4096), SEGMENT));
        assert!(rule.due(500, PhyOffset(SEGMENT - 10), PhyOffset(SEGMENT + 10), SEGMENT));
    }

    #[test]
    fn nothing_appended_means_nothing_due() {
        let mut rule = FlushRule::new(0, 10, 0);
        assert!(!rule.due(100, PhyOffset(5), PhyOffset(5), SEGMENT));
    }
}
