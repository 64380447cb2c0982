//! Looking messages up: 12 by key, 33 by their place in the commit log. Source: remoting.md 3.9.

use std::rc::Rc;

use super::reply::{BODY_LEN_MAX, ReplyTo};
use super::shard::ShardBroker;
use super::status;
use super::verdict::Verdict;
use crate::store::Reader;
use crate::types::{PhyOffset, ShardId};
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
        let reply = ReplyTo::new(peer, command, self.settings.profile.version());
        let header = match QueryMessageHeader::read(command) {
            Ok(header) => header,
            Err(error) => {
                reply.fail(response::SYSTEM_ERROR, &error.to_string());
                return Verdict::Done;
            }
        };
        let count_max = count_max(&header, self.store.query_count_max());
        let (topic, key, begin, end) = (header.topic.to_owned(), header.key.to_owned(), header.begin, header.end);
        let store = self.store.clone();
        Verdict::Later(Box::pin(async move {
            let found = match store.query(&topic, &key, count_max, begin, end, BODY_LEN_MAX).await {
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

    pub(super) fn view(&self, peer: &Rc<dyn Peer>, command: &Command<'_>) -> Verdict {
        let reply = ReplyTo::new(peer, command, self.settings.profile.version());
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
        let store = self.store.clone();
        Verdict::Later(Box::pin(async move {
            match store.record_at(&Reader::Lookup, phy).await {
                Ok(record) => reply.send(response::SUCCESS, None, &[], &record),
                Err(error) => reply.refuse(&status::of_read(&error, false)),
            }
        }))
    }
}

/// How many messages a query may find; one by unique key `by_unique_key`, whatever it says.
fn count_max(header: &QueryMessageHeader<'_>, by_unique_key: usize) -> usize {
    if header.unique_key { by_unique_key } else { usize::try_from(header.max_num.min(COUNT_MAX)).unwrap_or(0) }
}

#[cfg(test)]
mod tests {
    use super::*;

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
