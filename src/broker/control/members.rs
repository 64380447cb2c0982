//! Who is connected: producers and consumers of each group, by connection, and what each group has subscribed to.
//!
//! A connection is a member from its first heartbeat that names the group until it says otherwise, closes, or has been
//! silent for 120 s. Closing is the only farewell that some clients give, so it must work like a goodbye, at once.
//! Source: remoting.md 3.4, 3.5, 6.4.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::broker::{GroupSubscription, Subscription};
use crate::types::Timestamp;
use crate::wire::ConnId;
use crate::wire::heartbeat::ConsumerEntry;

/// Silence after which a member counts as gone.
const MEMBER_SILENCE_MS_MAX: i64 = 120_000;
/// Groups one connection may be in; a heartbeat that names more has the rest left out.
const GROUPS_PER_CONNECTION_MAX: usize = 4_096;

#[derive(Debug, Default)]
pub(super) struct Members {
    consumers: Roster,
    producers: Roster,
    /// Of the consumer groups with members; shared with the published directory.
    subscriptions: Arc<HashMap<Arc<str>, Arc<GroupSubscription>>>,
}

impl Members {
    /// The shared table behind [`Directory::subscriptions`](crate::broker::Directory::subscriptions).
    pub(super) fn subscriptions(&self) -> &Arc<HashMap<Arc<str>, Arc<GroupSubscription>>> {
        &self.subscriptions
    }

    /// Notes a heartbeat's word on one consumer group. True if the others must hear of it: the connection is new in the
    /// group, or the set of its topics has changed (a newer expression for a topic goes unannounced).
    pub(super) fn consumer_beat(&mut self, now: Timestamp, conn: ConnId, client: &str, entry: &ConsumerEntry) -> bool {
        let &ConsumerEntry { ref group, message_model, consume_type, .. } = entry;
        let joined = match self.consumers.beat(now, conn, client, group) {
            Beat::Joined => true,
            Beat::Renewed => false,
            Beat::Refused => return false,
        };
        let before = self.subscriptions.get(group.as_str());
        let mut topics = HashMap::with_capacity(entry.subscriptions.len());
        let mut differs = before.is_none_or(|b| b.message_model != message_model || b.consume_type != consume_type);
        let mut topics_changed = false;
        for asked in &entry.subscriptions {
            let known = before.and_then(|before| before.topics.get(asked.topic.as_str()));
            let kept = match known {
                Some(known) if asked.version <= known.sub_version => Arc::clone(known),
                _ => {
                    differs |= known.is_some();
                    topics_changed |= known.is_none();
                    Arc::new(Subscription::from(asked))
                }
            };
            topics.insert(Arc::clone(&kept.topic), kept);
        }
        topics_changed |= before.is_some_and(|before| before.topics.keys().any(|topic| !topics.contains_key(topic)));
        if differs || topics_changed {
            let subscription = Arc::new(GroupSubscription { message_model, consume_type, topics });
            Arc::make_mut(&mut self.subscriptions).insert(group.as_str().into(), subscription);
        }
        joined || topics_changed
    }

    /// Notes a heartbeat's word on one producer group.
    pub(super) fn producer_beat(&mut self, now: Timestamp, conn: ConnId, client: &str, group: &str) {
        self.producers.beat(now, conn, client, group);
    }

    /// A consumer says that it leaves. True if it was there.
    pub(super) fn consumer_leaves(&mut self, conn: ConnId, group: &str) -> bool {
        let left = self.consumers.remove(conn, group);
        self.drop_deserted(group);
        left
    }

    pub(super) fn producer_leaves(&mut self, conn: ConnId, group: &str) {
        self.producers.remove(conn, group);
    }

    /// Takes a closed connection out of every group; gives the consumer groups it was in.
    pub(super) fn connection_closed(&mut self, conn: ConnId) -> Vec<Arc<str>> {
        self.producers.remove_all(conn);
        let left = self.consumers.remove_all(conn);
        for group in &left {
            self.drop_deserted(group);
        }
        left
    }

    /// Connections with a membership that was not renewed for too long.
    pub(super) fn silent(&self, now: Timestamp) -> Vec<ConnId> {
        let mut silent: Vec<ConnId> = self.consumers.silent(now).chain(self.producers.silent(now)).collect();
        silent.sort_unstable();
        silent.dedup();
        silent
    }

    /// Connections of a consumer group.
    pub(super) fn consumers(&self, group: &str) -> impl Iterator<Item = ConnId> {
        self.consumers.groups.get(group).into_iter().flat_map(|members| members.keys().copied())
    }

    /// Client ids of a consumer group, each once: two connections may share one.
    pub(super) fn consumer_ids(&self, group: &str) -> Vec<&str> {
        let members = self.consumers.groups.get(group);
        let mut ids: Vec<&str> = members.into_iter().flat_map(|m| m.values()).map(|member| &*member.client).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// Connections of each consumer group, in the order of their names.
    pub(super) fn consumer_counts(&self) -> BTreeMap<&str, u64> {
        self.consumers.groups.iter().map(|(group, members)| (&**group, members.len() as u64)).collect()
    }

    /// Connections in producer groups, once for each group.
    pub(super) fn producer_count(&self) -> u64 {
        self.producers.groups.values().map(|members| members.len() as u64).sum()
    }

    fn drop_deserted(&mut self, group: &str) {
        if !self.consumers.groups.contains_key(group) && self.subscriptions.contains_key(group) {
            Arc::make_mut(&mut self.subscriptions).remove(group);
        }
    }
}

/// Groups and their connections, both ways round.
#[derive(Debug, Default)]
struct Roster {
    /// No group is empty.
    groups: HashMap<Arc<str>, BTreeMap<ConnId, Member>>,
    of_connection: HashMap<ConnId, Vec<Arc<str>>>,
}

#[derive(Debug)]
struct Member {
    client: Arc<str>,
    seen: Timestamp,
}

enum Beat {
    Joined,
    Renewed,
    /// The connection is in too many groups.
    Refused,
}

impl Roster {
    fn beat(&mut self, now: Timestamp, conn: ConnId, client: &str, group: &str) -> Beat {
        if let Some(member) = self.groups.get_mut(group).and_then(|members| members.get_mut(&conn)) {
            member.seen = now;
            if *member.client != *client {
                member.client = client.into();
            }
            return Beat::Renewed;
        }
        let joined = self.of_connection.entry(conn).or_default();
        if joined.len() >= GROUPS_PER_CONNECTION_MAX {
            return Beat::Refused;
        }
        let group = self.groups.get_key_value(group).map_or_else(|| group.into(), |(name, _)| name.clone());
        joined.push(Arc::clone(&group));
        self.groups.entry(group).or_default().insert(conn, Member { client: client.into(), seen: now });
        Beat::Joined
    }

    fn remove(&mut self, conn: ConnId, group: &str) -> bool {
        let Some(joined) = self.of_connection.get_mut(&conn) else { return false };
        let Some(at) = joined.iter().position(|name| **name == *group) else { return false };
        joined.swap_remove(at);
        if joined.is_empty() {
            self.of_connection.remove(&conn);
        }
        self.take_from_group(conn, group);
        true
    }

    fn remove_all(&mut self, conn: ConnId) -> Vec<Arc<str>> {
        let groups = self.of_connection.remove(&conn).unwrap_or_default();
        for group in &groups {
            self.take_from_group(conn, group);
        }
        groups
    }

    fn take_from_group(&mut self, conn: ConnId, group: &str) {
        if let Some(members) = self.groups.get_mut(group) {
            members.remove(&conn);
            if members.is_empty() {
                self.groups.remove(group);
            }
        }
    }

    fn silent(&self, now: Timestamp) -> impl Iterator<Item = ConnId> {
        let is_silent = move |member: &Member| now > member.seen.plus_ms(MEMBER_SILENCE_MS_MAX);
        let members = self.groups.values().flatten();
        members.filter(move |(_, member)| is_silent(member)).map(|(conn, _)| *conn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::ShardId;

    #[test]
    fn a_connection_is_in_a_bounded_number_of_groups_and_leaves_them_all_when_it_closes() {
        let conn = ConnId { shard: ShardId(0), seq: 1 };
        let mut roster = Roster::default();
        for group in 0..GROUPS_PER_CONNECTION_MAX {
            assert!(matches!(roster.beat(Timestamp(0), conn, "A", &group.to_string()), Beat::Joined));
        }
        assert!(matches!(roster.beat(Timestamp(0), conn, "A", "ONE MORE"), Beat::Refused));
        assert!(matches!(roster.beat(Timestamp(0), conn, "A", "0"), Beat::Renewed));
        assert!(roster.remove(conn, "0") && !roster.remove(conn, "0"));
        assert!(matches!(roster.beat(Timestamp(0), conn, "A", "ONE MORE"), Beat::Joined));
        assert_eq!(roster.remove_all(conn).len(), GROUPS_PER_CONNECTION_MAX);
        assert!(roster.groups.is_empty() && roster.of_connection.is_empty());
    }
}
