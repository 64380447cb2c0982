//! How long it takes to make topics and consumer groups. Counted by the control core.

use super::owned::{ClassTotals, Classes};

/// Upper ends in ms, inclusive, as Java's brokers have them. Source: RocketMQ 5.x `BrokerMetricsManager.java`.
const CREATION_ENDS_MS: [u64; 5] = [10, 100, 1_000, 3_000, 5_000];

type CreationTimes = Classes<{ CREATION_ENDS_MS.len() }>;

/// Times of one kind of thing.
#[derive(Debug)]
pub struct Creations {
    made: CreationTimes,
    failed: CreationTimes,
}

impl Default for Creations {
    fn default() -> Creations {
        Creations { made: Classes::new(&CREATION_ENDS_MS), failed: Classes::new(&CREATION_ENDS_MS) }
    }
}

impl Creations {
    pub fn note(&self, is_made: bool, took_ms: u64) {
        let times = if is_made { &self.made } else { &self.failed };
        times.add(took_ms, 1);
    }

    /// Times by outcome, as Java's brokers name it.
    pub fn totals(&self) -> [(&'static str, ClassTotals); 2] {
        [("success", self.made.totals()), ("failure", self.failed.totals())]
    }
}
