//! `kerolox/births`: where in the log the present generation of a topic begins (rule R15). Ours alone (rule R18).
//!
//! A topic that is deleted gets a birth: the log's end at the moment from which on no message of it was taken. Every record
//! of it below is of an older generation, and nobody's: it is not dispatched, by no rebuild either, and no key leads to it.
//! The birth stays when the topic is made again, and goes once the log has nothing below it.
//!
//! The file is on stable storage before `topics.json` lacks the topic. It says which version of that table is the first
//! without it, so that an older one that a crash, or its `.bak`, brings back does not bring back the topic.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::config_store::{self, ConfigTables};
use super::layout::Layout;
use super::open_error::{OpenError, io_at};
use crate::format::config_files::split_consumer_offset_key;
use crate::io::replace_keeping_old;
use crate::types::PhyOffset;

/// All births, by topic.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Births {
    topics: BTreeMap<String, Birth>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Birth {
    /// Records of the topic before this physical offset are of older generations.
    birth: u64,
    /// Counter of the data version of topics.json from which on what it says of the topic is of this generation.
    #[serde(default)]
    topics_version: i64,
}

impl Births {
    /// Reads them, or their predecessor if they are torn. Blocking.
    ///
    /// # Errors
    /// They are there and cannot be read: without them deleted topics would come back.
    pub fn load(layout: &Layout) -> Result<Births, OpenError> {
        config_store::load_table(&layout.births(), |bytes| serde_json::from_slice::<Births>(bytes))
    }

    /// Content of the file.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("names and numbers serialise")
    }

    pub fn is_empty(&self) -> bool {
        self.topics.is_empty()
    }

    /// Where the topic's present generation begins: the log's birth for one that was never deleted.
    pub fn birth(&self, topic: &str) -> PhyOffset {
        PhyOffset(self.topics.get(topic).map_or(0, |birth| birth.birth))
    }

    /// How many topics have one.
    pub fn count(&self) -> usize {
        self.topics.len()
    }

    /// Forgets those that say nothing, since the log begins behind them. Not before the tables without the topics are saved.
    pub fn forget_before(&mut self, log_min: PhyOffset) {
        self.topics.retain(|_, birth| birth.birth > log_min.0);
    }

    /// Was the topic deleted, as far as is still known? It may have been made again.
    pub fn contains(&self, topic: &str) -> bool {
        self.topics.contains_key(topic)
    }

    /// Is a record of the topic at `phy` one of an older generation?
    pub fn is_old(&self, topic: &str, phy: PhyOffset) -> bool {
        !self.is_empty() && phy < self.birth(topic)
    }

    /// The topic was deleted: every record of it lies below `birth`, and topics.json lacks it from this version on.
    pub fn set(&mut self, topic: &str, birth: PhyOffset, topics_version: i64) {
        self.topics.insert(topic.to_owned(), Birth { birth: birth.0, topics_version });
    }

    /// Takes out of the tables what is of a deleted topic: those that were on disk may be older than its deletion. Versions
    /// given out from now on are later than it.
    pub(super) fn complete_deletions(&self, tables: &mut ConfigTables) {
        let version = tables.topics.data_version.counter;
        for (topic, birth) in self.topics.iter().filter(|(_, birth)| version < birth.topics_version) {
            if tables.topics.topics.remove(topic).is_some() {
                tracing::info!(topic, "a deletion is completed");
            }
            let of_topic = |key: &String| split_consumer_offset_key(key).is_some_and(|(name, _)| name == topic);
            tables.consumer_offsets.table.retain(|key, _| !of_topic(key));
            let counter = &mut tables.topics.data_version.counter;
            *counter = (*counter).max(birth.topics_version);
        }
    }

    /// Saves them again if some of what they say does not hold for the log as it is: none is behind its end, where the next
    /// message will be, and below its beginning they mean nothing. `topics_version`: that of topics.json on disk.
    pub(super) fn fit(
        &mut self,
        layout: &Layout,
        min: PhyOffset,
        end: PhyOffset,
        topics_version: i64,
    ) -> Result<(), OpenError> {
        let before = self.clone();
        self.topics.retain(|_, birth| birth.birth > min.0 || topics_version < birth.topics_version);
        self.topics.values_mut().for_each(|birth| birth.birth = birth.birth.min(end.0));
        if *self == before {
            return Ok(());
        }
        let path = layout.births();
        // Twice, so that the older copy does not say it either.
        (0..2).try_for_each(|_| replace_keeping_old(&path, &self.encode())).map_err(io_at(&path))
    }
}

#[cfg(test)]
mod tests;
