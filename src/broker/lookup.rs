//! Looking messages up: 12 by key, 33 by their place in the commit log. Source: remoting.md 3.9.

use std::rc::Rc;

use super::reply::BODY_LEN_MAX;
use super::shard::ShardBroker;
use super::status;
use super::verdict::Verdict;
use super::{Directory, names};
use crate::format::record::RecordView;
use crate::store::{FlushMode, ReadError, Reader};
use crate::types::{PhyOffset, ShardId, properties};
use crate::wire::code::response;
use crate::wire::headers::{QueryMessageHeader, ViewMessageHeader};
use crate::wire::{Command, Peer};

/// The shard that has the index.
const INDEX_SHARD: ShardId = ShardId(0);
/// How many messages any query may find.
const COUNT_MAX: i32 = 64;

impl ShardBroker {
    pub(super) fn query(&self, peer: &Rc<dyn Peer>, command: &Command<'_>) -> Verdict {
        if self.settings.shard != INDEX_SHARD {
            return Verdict::FirstShard;
        }
        let reply = self.reply_to(peer, command);
        let header = match QueryMessageHeader::read(command) {
            Ok(header) => header,
            Err(error) => {
                reply.fail(response::SYSTEM_ERROR, &error.to_string());
                return Verdict::Done;
            }
        };
        let count_max = count_max(&header, self.store.query_count_max());
        let (topic, key, begin, end) = (header.topic.to_owned(), header.key.to_owned(), header.begin, header.end);
        let birth = self.directory.load().births.birth(&topic);
        let store = self.store.clone();
        Verdict::Later(Box::pin(async move {
            let found = match store.query((&topic, birth), &key, count_max, begin, end, BODY_LEN_MAX).await {
                Ok(found) => found,
                Err(error) => return reply.refuse(&status::of_read(&error, false)),
            };
            let (mut time_digits, mut phy_digits) = (itoa::Buffer::new(), itoa::Buffer::new());
            let ext = [
                ("indexLastUpdateTimestamp", time_digits.format(found.last_update.0)),
                ("indexLastUpdatePhyoffset", phy_digits.format(found.last_phy.0)),
            ];
            let body = found.records.concat();
            if body.is_empty() {
                reply.send(response::QUERY_NOT_FOUND, Some("no message has this key in this time"), &ext, &[]);
            } else {
                reply.send(response::SUCCESS, None, &ext, &body);
            }
        }))
    }

    pub(super) fn view(self: &Rc<Self>, peer: &Rc<dyn Peer>, command: &Command<'_>) -> Verdict {
        let reply = self.reply_to(peer, command);
        let phy = match ViewMessageHeader::read(command) {
            Ok(header) => u64::try_from(header.offset).map(PhyOffset),
            Err(error) => {
                reply.fail(response::SYSTEM_ERROR, &error.to_string());
                return Verdict::Done;
            }
        };
        let Ok(phy) = phy else {
            reply.fail(response::SYSTEM_ERROR, "a commit log offset is not negative");
            return Verdict::Done;
        };
        let broker = Rc::clone(self);
        Verdict::Later(Box::pin(async move {
            match broker.record_by_offset(&Reader::Lookup, phy).await {
                Ok(record) => reply.send(response::SUCCESS, None, &[], &record),
                Err(error) => reply.refuse(&status::of_read(&error, false)),
            }
        }))
    }

    /// The record at an offset that a client names.
    ///
    /// On an async node the page cache is shown before it is flushed; a message of a sync topic is not, whoever knows
    /// where it lies. Below the flushed position (on a sync node nothing else is shown) every message may be seen.
    pub(super) async fn record_by_offset(&self, reader: &Reader, phy: PhyOffset) -> Result<Vec<u8>, ReadError> {
        let bytes = self.store.record_at(reader, phy).await?;
        let flushed = self.store.flushed();
        if phy.advance(bytes.len() as u64) > flushed && is_of_sync_topic(&bytes, &self.directory.load()) {
            return Err(ReadError::NotFlushed { phy, flushed });
        }
        Ok(bytes)
    }
}

/// Does the topic that the message is in, or finally will be, say that its messages wait for the disk?
fn is_of_sync_topic(record: &[u8], directory: &Directory) -> bool {
    let Ok(record) = RecordView::parse(record) else { return false };
    let topic = match record.topic() {
        names::SCHEDULE_TOPIC => properties::get(record.properties(), properties::REAL_TOPIC),
        topic => Some(topic),
    };
    let topic = topic.and_then(|topic| directory.topics.get(topic));
    topic.is_some_and(|topic| topic.flush() == Some(FlushMode::Sync))
}

/// How many messages a query may find; one by unique key `by_unique_key`, whatever it says.
fn count_max(header: &QueryMessageHeader<'_>, by_unique_key: usize) -> usize {
    if header.unique_key { by_unique_key } else { usize::try_from(header.max_num.min(COUNT_MAX)).unwrap_or(0) }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Arc;

    use super::*;
    use crate::broker::{FLUSH_ATTRIBUTE, Topic};
    use crate::format::config_files::TopicConfig;
    use crate::format::record::RecordSpec;

    fn record(topic: &str, properties: &str) -> Vec<u8> {
        let host = "127.0.0.1:10911".parse().unwrap();
        let mut bytes = Vec::new();
        RecordSpec {
            topic,
            queue_id: 0,
            flag: 0,
            sys_flag: 0,
            born_timestamp: 0,
            born_host: host,
            store_host: host,
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body: b"body",
            properties: &[properties.as_bytes()],
        }
        .encode_into(&mut bytes)
        .unwrap();
        bytes
    }

    #[test]
    fn a_message_is_of_the_topic_that_it_was_sent_to_even_while_it_is_delayed() {
        let topic = |name: &str, flush: Option<&str>| {
            let mut config = TopicConfig::new(name, 1);
            config.attributes.extend(flush.map(|flush| (FLUSH_ATTRIBUTE.to_owned(), flush.to_owned())));
            (Arc::from(name), Arc::new(Topic { config, queues: vec![] }))
        };
        let topics = [topic("S", Some("sync")), topic("A", Some("async")), topic("N", None), topic("O", Some("odd"))];
        let directory = Directory { topics: Arc::new(HashMap::from(topics)), ..Directory::default() };
        let is_sync = |topic, properties| is_of_sync_topic(&record(topic, properties), &directory);
        assert!(is_sync("S", ""));
        assert!(is_sync(names::SCHEDULE_TOPIC, "REAL_TOPIC\u{1}S\u{2}REAL_QID\u{1}0\u{2}"));
        for topic in ["A", "N", "O", "gone", names::SCHEDULE_TOPIC] {
            assert!(!is_sync(topic, "REAL_TOPIC\u{1}A\u{2}"), "{topic}");
        }
    }

    #[test]
    fn a_query_finds_at_most_64_messages_and_by_unique_key_as_many_as_set() {
        let header =
            |max_num, unique_key| QueryMessageHeader { topic: "T", key: "k", max_num, begin: 0, end: 0, unique_key };
        assert_eq!(count_max(&header(10, false), 32), 10);
        assert_eq!(count_max(&header(1000, false), 32), 64);
        assert_eq!(count_max(&header(-1, false), 32), 0);
        assert_eq!(count_max(&header(1, true), 32), 32);
    }
}
