//! How far consumer groups are behind, and who is connected: counted when somebody wants to see it, in slices, so that a
//! large table does not hold the core.

use std::ops::Bound;

use super::Control;
use crate::format::config_files::split_consumer_offset_key;
use crate::store::QueueView;
use crate::wire::heartbeat::ConsumeType;

/// Steps of one slice: each queue of a pair of topic and group is one, and each reader of the queue that is looked at.
const SLICE: usize = 2048;
/// Steps that a pair is besides, for its names.
const PAIR_STEPS: usize = 16;
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
    /// The reading of everything beyond the bound.
    rest: Option<usize>,
}

/// Where a count goes on: at this queue of this pair of topic and group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountsOn {
    key: String,
    queue_id: i32,
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
    /// Counts a slice of the pairs of topic and group, at most `pairs_max` by name: from the first one, or from where the
    /// slice before it ended. Gives where to go on, or nothing once all are counted.
    pub fn count_readings(&self, census: &mut Census, from: Option<&CountsOn>, pairs_max: usize) -> Option<CountsOn> {
        let begin = from.map_or(Bound::Unbounded, |from| Bound::Included(from.key.as_str()));
        let mut steps_left = SLICE;
        for (key, offsets) in self.offsets.table().range::<str, _>((begin, Bound::Unbounded)) {
            let first = from.filter(|from| from.key == *key).map_or(i32::MIN, |from| from.queue_id);
            if steps_left == 0 {
                return Some(CountsOn { key: key.clone(), queue_id: first });
            }
            steps_left = steps_left.saturating_sub(PAIR_STEPS);
            let Some((topic, group)) = split_consumer_offset_key(key) else { continue };
            let Some(topic_state) = self.topics.get(topic) else { continue };
            let mut reading = Reading { topic: topic.to_owned(), group: group.to_owned(), ..Reading::default() };
            let mut goes_on = None;
            for (queue_id, committed) in offsets.range(first..) {
                if steps_left == 0 {
                    goes_on = Some(CountsOn { key: key.clone(), queue_id: *queue_id });
                    break;
                }
                let queue = usize::try_from(*queue_id).ok().and_then(|id| topic_state.queues.get(id));
                let steps = queue.map_or(0, |queue| count_queue(&mut reading, queue, *committed));
                steps_left = steps_left.saturating_sub(1 + steps);
            }
            census.add(reading, pairs_max);
            if goes_on.is_some() {
                return goes_on;
            }
        }
        None
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
            // A group may have that name.
            match census.consumers.iter_mut().find(|(group, mode, _)| group == OTHER_NAME && *mode == "push") {
                Some((.., count)) => *count += rest,
                None => census.consumers.push((OTHER_NAME.to_owned(), "push", rest)),
            }
        }
    }
}

/// Adds one queue to a reading; gives how many of the queue's readers were looked at.
fn count_queue(reading: &mut Reading, queue: &QueueView, committed: i64) -> usize {
    // What has expired is nobody's lag.
    let (min, max) = (queue.min().0, queue.max().0);
    let committed = u64::try_from(committed).unwrap_or(0).clamp(min, max);
    let mut steps = 0;
    let reader = queue.readers().inspect(|_| steps += 1).find(|reader| **reader.group() == reading.group);
    let pulled = u64::try_from(reader.map_or(0, |reader| reader.next())).unwrap_or(0).clamp(committed, max);
    reading.lag += max - committed;
    reading.inflight += pulled - committed;
    reading.ready += max - pulled;
    steps
}

impl Census {
    /// Adds a reading, or the next part of the one before it.
    fn add(&mut self, reading: Reading, pairs_max: usize) {
        let is_same = |last: &Reading| last.topic == reading.topic && last.group == reading.group;
        if let Some(last) = self.readings.last_mut().filter(|last| is_same(last)) {
            return last.add(&reading);
        }
        if self.rest.is_none() && self.readings.len() < pairs_max {
            return self.readings.push(reading);
        }
        let rest = *self.rest.get_or_insert_with(|| {
            // A topic and a group may have that name.
            let is_rest = |known: &Reading| known.topic == OTHER_NAME && known.group == OTHER_NAME;
            self.readings.iter().position(is_rest).unwrap_or_else(|| {
                let (topic, group) = (OTHER_NAME.to_owned(), OTHER_NAME.to_owned());
                self.readings.push(Reading { topic, group, ..Reading::default() });
                self.readings.len() - 1
            })
        });
        self.readings[rest].add(&reading);
    }
}
