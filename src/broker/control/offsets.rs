//! Consumer offsets: where each group has got to in each queue. In memory, written to `consumerOffset.json` by the node.
//!
//! Source: remoting.md 3.3, 6.5; store.md 1.5, 1.6.

use std::collections::BTreeMap;

use crate::format::config_files::{ConsumerOffsetsFile, consumer_offset_key};
use crate::types::Timestamp;

/// Updates from one data version to the next.
const UPDATES_PER_VERSION: u64 = 500;
/// Offsets there may be. Profile 4.9 takes them for groups and topics that it does not know, so nothing else bounds them
/// there.
const OFFSET_COUNT_MAX: usize = 1_000_000;

#[derive(Debug)]
pub(super) struct ConsumerOffsets {
    file: ConsumerOffsetsFile,
    /// Updates since the start of the node.
    updates: u64,
    /// Offsets in the table.
    count: usize,
}

/// There is no room for one more offset.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct OffsetsFull;

impl ConsumerOffsets {
    pub(super) fn new(file: ConsumerOffsetsFile) -> ConsumerOffsets {
        let count = file.table.values().map(BTreeMap::len).sum();
        ConsumerOffsets { file, updates: 0, count }
    }

    /// By key of topic and group, then by queue id.
    pub(super) fn table(&self) -> &BTreeMap<String, BTreeMap<i32, i64>> {
        &self.file.table
    }

    /// The queue offset that `group` wants next.
    pub(super) fn get(&self, group: &str, topic: &str, queue_id: i32) -> Option<i64> {
        self.file.table.get(&consumer_offset_key(topic, group))?.get(&queue_id).copied()
    }

    /// Sets where `group` goes on. A smaller offset than before is how a reset is done, so it is taken.
    pub(super) fn update(
        &mut self,
        now: Timestamp,
        group: &str,
        topic: &str,
        queue_id: i32,
        offset: i64,
    ) -> Result<(), OffsetsFull> {
        let key = consumer_offset_key(topic, group);
        let full = self.count >= OFFSET_COUNT_MAX;
        match self.file.table.get_mut(&key) {
            Some(queues) => match queues.get_mut(&queue_id) {
                Some(known) => *known = offset,
                None if full => return Err(OffsetsFull),
                None => {
                    queues.insert(queue_id, offset);
                    self.count += 1;
                }
            },
            None if full => return Err(OffsetsFull),
            None => {
                self.file.table.insert(key, BTreeMap::from([(queue_id, offset)]));
                self.count += 1;
            }
        }
        self.updates += 1;
        if self.updates.is_multiple_of(UPDATES_PER_VERSION) {
            self.file.data_version = self.file.data_version.next(now);
        }
        Ok(())
    }

    /// Forgets where groups have got to in a topic.
    pub(super) fn remove_topic(&mut self, now: Timestamp, topic: &str) {
        let first = consumer_offset_key(topic, "");
        let of_topic = self.file.table.range(first.clone()..).take_while(|(key, _)| key.starts_with(&first));
        let keys: Vec<String> = of_topic.map(|(key, _)| key.clone()).collect();
        for queues in keys.iter().filter_map(|key| self.file.table.remove(key)) {
            self.count -= queues.len();
            self.updates += 1;
        }
        self.file.data_version = self.file.data_version.next(now);
    }

    /// Updates since the start: if the count has grown since the file was written, the file is behind.
    pub(super) fn updates(&self) -> u64 {
        self.updates
    }

    /// Content of `consumerOffset.json`.
    pub(super) fn encode(&self) -> Vec<u8> {
        self.file.encode()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topics_offsets_go_and_those_of_similar_names_stay() {
        let mut offsets = ConsumerOffsets::new(ConsumerOffsetsFile::default());
        let now = Timestamp(1);
        for topic in ["T", "T-2", "S", "TT"] {
            for queue in 0..2 {
                offsets.update(now, "G", topic, queue, 5).unwrap();
            }
        }
        let updates = offsets.updates();
        offsets.remove_topic(now, "T");
        assert!(offsets.updates() > updates, "the file is behind");
        assert_eq!((offsets.get("G", "T", 0), offsets.get("G", "T", 1), offsets.count), (None, None, 6));
        for topic in ["T-2", "S", "TT"] {
            assert_eq!(offsets.get("G", topic, 1), Some(5));
        }
    }

    #[test]
    fn a_full_table_takes_new_values_but_no_new_queues() {
        let mut offsets = ConsumerOffsets::new(ConsumerOffsetsFile::default());
        let now = Timestamp(1);
        assert_eq!(offsets.update(now, "G", "T", 0, 5), Ok(()));
        offsets.count = OFFSET_COUNT_MAX;
        assert_eq!(offsets.update(now, "G", "T", 1, 5), Err(OffsetsFull));
        assert_eq!(offsets.update(now, "G", "U", 0, 5), Err(OffsetsFull));
        assert_eq!(offsets.update(now, "G", "T", 0, 6), Ok(()));
        assert_eq!((offsets.get("G", "T", 0), offsets.get("G", "T", 1)), (Some(6), None));
    }
}
