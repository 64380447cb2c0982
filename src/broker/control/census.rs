//! How far consumer groups are behind, and who is connected: counted when somebody wants to see it, in slices, so that a
//! large table does not hold the core.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::Control;
use crate::format::config_files::split_consumer_offset_key;
use crate::wire::heartbeat::ConsumeType;

/// Pairs of topic and group that one slice looks at.
const SLICE: usize = 128;
/// Name of topic and group of everything beyond the bound.
pub const OTHER_NAME: &str = "other";

/// What there is at one moment.
#[derive(Debug, Default)]
pub struct Census {
    pub readings: Vec<Reading>,
    /// Memberships of connections in producer groups.
    pub producers: u64,
    /// Consumer group, how it consumes, and its connections.
    pub consumers: Vec<(String, &'static str, u64)>,
    /// Delay level, and messages that wait in it.
    pub delayed: Vec<(i32, u64)>,
}

/// Messages of a topic that a group has in front of it, all queues together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    pub topic: String,
    pub group: String,
    /// Behind the consumer offsets; of these: given out, and not given out.
    pub lag: u64,
    pub inflight: u64,
    pub ready: u64,
}

impl Reading {
    fn add(&mut self, other: &Reading) {
        self.lag += other.lag;
        self.inflight += other.inflight;
        self.ready += other.ready;
    }
}

impl Control {
    /// Counts the next pairs of topic and group behind `after`, at most `pairs_max` by name. Gives where to go on, or nothing
    /// once all are counted.
    pub fn count_readings(&self, census: &mut Census, after: Option<&str>, pairs_max: usize) -> Option<String> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut table = self.offsets.table().range::<str, _>((from, Bound::Unbounded));
        let mut last = None;
        for (key, offsets) in table.by_ref().take(SLICE) {
            if let Some(reading) = self.reading(key, offsets) {
                census.add(reading, pairs_max);
            }
            last = Some(key);
        }
        table.next().and(last).cloned()
    }

    fn reading(&self, key: &str, offsets: &BTreeMap<i32, i64>) -> Option<Reading> {
        let (topic, group) = split_consumer_offset_key(key)?;
        let queues = &self.topics.get(topic)?.queues;
        let mut reading = Reading { topic: topic.to_owned(), group: group.to_owned(), ..Reading::default() };
        for (queue_id, committed) in offsets {
            let Some(queue) = usize::try_from(*queue_id).ok().and_then(|id| queues.get(id)) else { continue };
            // What has expired is nobody's lag.
            let (min, max) = (queue.min().0, queue.max().0);
            let committed = u64::try_from(*committed).unwrap_or(0).clamp(min, max);
            let pulled = queue.readers().find(|reader| **reader.group() == *group).map_or(0, |reader| reader.next());
            let pulled = u64::try_from(pulled).unwrap_or(0).clamp(committed, max);
            reading.add(&Reading {
                lag: max - committed,
                inflight: pulled - committed,
                ready: max - pulled,
                ..Reading::default()
            });
        }
        Some(reading)
    }

    /// Counts connections in groups, at most `groups_max` consumer groups by name.
    pub fn count_members(&self, census: &mut Census, groups_max: usize) {
        census.producers = self.members.producer_count();
        let mut rest = 0;
        for (group, count) in self.members.consumer_counts() {
            if census.consumers.len() == groups_max {
                rest += count;
                continue;
            }
            let mode = match self.members.subscriptions().get(group).map(|subscription| subscription.consume_type) {
                Some(ConsumeType::Actively) => "pull",
                Some(ConsumeType::Pop) => "pop",
                Some(ConsumeType::Passively) | None => "push",
            };
            census.consumers.push((group.to_owned(), mode, count));
        }
        if rest > 0 {
            census.consumers.push((OTHER_NAME.to_owned(), "push", rest));
        }
    }
}

impl Census {
    fn add(&mut self, reading: Reading, pairs_max: usize) {
        if self.readings.len() < pairs_max {
            return self.readings.push(reading);
        }
        if self.readings.len() == pairs_max {
            let (topic, group) = (OTHER_NAME.to_owned(), OTHER_NAME.to_owned());
            self.readings.push(Reading { topic, group, ..Reading::default() });
        }
        self.readings.last_mut().expect("just seen to").add(&reading);
    }
}
