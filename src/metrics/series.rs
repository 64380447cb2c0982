//! Which topics, and which pairs of topic and consumer group, are counted by name, and what is counted of them.
//!
//! A name gets a slot when it first shows up, on whatever core, and keeps it; all cores count in slots. There are as many
//! as `metrics.series_max` says; what comes later shares slot 0. Looking for a slot is slow and done once a queue (or queue
//! and group); counting is two or three plain stores.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use super::owned::{ClassTotals, Classes, Owned};

/// Slot of everything that has no series of its own.
pub const OTHER: u16 = 0;
/// Upper ends in bytes, inclusive, of the classes of message sizes, as Java's brokers have them. Source: RocketMQ 5.x
/// `BrokerMetricsManager.java`.
pub const MESSAGE_SIZE_ENDS: [u64; 6] = [1 << 10, 4 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20];

/// What kind of message came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageType {
    Normal,
    /// With a delay level.
    Delay,
}

impl MessageType {
    pub const ALL: [MessageType; 2] = [MessageType::Normal, MessageType::Delay];

    /// As Java's brokers name it.
    pub fn name(self) -> &'static str {
        match self {
            MessageType::Normal => "normal",
            MessageType::Delay => "delay",
        }
    }
}

/// The names of the slots; slot `n + 1` has name `n`.
#[derive(Debug)]
pub struct Series {
    slots_max: AtomicU16,
    topics: boxcar::Vec<Arc<str>>,
    pairs: boxcar::Vec<(Arc<str>, Arc<str>)>,
}

impl Default for Series {
    /// Without a place for any name.
    fn default() -> Series {
        Series { slots_max: AtomicU16::new(0), topics: boxcar::Vec::new(), pairs: boxcar::Vec::new() }
    }
}

impl Series {
    /// Gives places for so many topics and so many pairs; before anything is counted.
    pub fn set_max(&self, slots_max: u16) {
        self.slots_max.store(slots_max, Ordering::Relaxed);
    }

    /// Slots that counters need, [`OTHER`] included.
    pub fn slots(&self) -> usize {
        usize::from(self.slots_max.load(Ordering::Relaxed)) + 1
    }

    /// The slot of a topic, which gets one if there is a place. Looks through all names.
    pub fn topic(&self, topic: &Arc<str>) -> u16 {
        self.slot(&self.topics, topic)
    }

    /// The slot of a topic and a group that reads it, likewise.
    pub fn pair(&self, topic: &Arc<str>, group: &Arc<str>) -> u16 {
        self.slot(&self.pairs, &(Arc::clone(topic), Arc::clone(group)))
    }

    fn slot<N: Clone + PartialEq>(&self, names: &boxcar::Vec<N>, name: &N) -> u16 {
        let places = self.slots() - 1;
        let known = names.iter().take_while(|(index, _)| *index < places).find(|(_, known)| *known == name);
        let index = match known {
            Some((index, _)) => index,
            None if names.count() >= places => return OTHER,
            // Another core may push the same name now: then it has two slots, which are one series on the page.
            None => names.push(name.clone()),
        };
        if index < places { index as u16 + 1 } else { OTHER }
    }

    /// Slots of topics with their names.
    pub fn topics(&self) -> impl Iterator<Item = (u16, &Arc<str>)> {
        self.topics.iter().take(self.slots() - 1).map(|(index, name)| (index as u16 + 1, name))
    }

    /// Slots of pairs of topic and group with their names.
    pub fn pairs(&self) -> impl Iterator<Item = (u16, &(Arc<str>, Arc<str>))> {
        self.pairs.iter().take(self.slots() - 1).map(|(index, names)| (index as u16 + 1, names))
    }
}

/// What one core has stored and given out, by slot.
#[derive(Debug)]
pub struct SeriesCounts {
    topics: Box<[[MessageSizes; MessageType::ALL.len()]]>,
    pairs: Box<[PairCounts]>,
}

/// The sum is bytes.
type MessageSizes = Classes<{ MESSAGE_SIZE_ENDS.len() }>;

#[derive(Debug, Default)]
struct PairCounts {
    messages: Owned,
    len: Owned,
}

impl SeriesCounts {
    pub fn new(slots: usize) -> SeriesCounts {
        SeriesCounts {
            topics: (0..slots).map(|_| MessageType::ALL.map(|_| Classes::new(&MESSAGE_SIZE_ENDS))).collect(),
            pairs: (0..slots).map(|_| PairCounts::default()).collect(),
        }
    }

    /// Messages of these stored lengths in bytes came in.
    pub fn note_in(&self, topic: u16, kind: MessageType, lens: &[u32]) {
        let sizes = &self.topics[usize::from(topic)][kind as usize];
        lens.iter().for_each(|len| sizes.add(u64::from(*len), 1));
    }

    /// So many messages, of `len` bytes together, went out to a group.
    pub fn note_out(&self, pair: u16, messages: u64, len: u64) {
        let counts = &self.pairs[usize::from(pair)];
        counts.messages.add(messages);
        counts.len.add(len);
    }

    /// Sizes of the messages that came in, the sum being bytes.
    pub fn came_in(&self, topic: u16, kind: MessageType) -> ClassTotals {
        self.topics[usize::from(topic)][kind as usize].totals()
    }

    /// Messages and bytes that went out.
    pub fn went_out(&self, pair: u16) -> (u64, u64) {
        let counts = &self.pairs[usize::from(pair)];
        (counts.messages.get(), counts.len.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_get_slots_as_they_come_and_the_rest_share_one() {
        let series = Series::default();
        assert_eq!(series.topic(&"early".into()), OTHER);
        series.set_max(2);
        let slots = ["A", "B", "C", "A", "D"].map(|name| series.topic(&name.into()));
        assert_eq!(slots, [1, 2, OTHER, 1, OTHER]);
        assert_eq!(series.topics().map(|(slot, name)| (slot, &**name)).collect::<Vec<_>>(), [(1, "A"), (2, "B")]);
        assert_eq!(series.pair(&"A".into(), &"G".into()), 1);
        assert_eq!(series.pair(&"A".into(), &"H".into()), 2);
        assert_eq!(series.pair(&"A".into(), &"G".into()), 1);
        assert_eq!(series.pair(&"B".into(), &"G".into()), OTHER);
        assert_eq!(series.pairs().count(), 2);
    }

    #[test]
    fn what_is_counted_in_a_slot_is_found_there() {
        let counts = SeriesCounts::new(3);
        counts.note_in(2, MessageType::Normal, &[1024, 1025]);
        counts.note_in(2, MessageType::Delay, &[5 << 20]);
        counts.note_out(OTHER, 32, 4000);
        counts.note_out(OTHER, 1, 100);
        let normal = counts.came_in(2, MessageType::Normal);
        assert_eq!((normal.counts, normal.sum), (vec![1, 1, 0, 0, 0, 0, 0], 2049));
        assert_eq!(counts.came_in(2, MessageType::Delay).counts[6], 1);
        assert_eq!(counts.came_in(1, MessageType::Normal).count(), 0);
        assert_eq!(counts.went_out(OTHER), (33, 4100));
    }
}
