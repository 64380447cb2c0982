//! 36, a consumer gives a message back: a copy of it goes to the group's retry topic after a delay, or to its dead
//! letters.
//!
//! Source: remoting.md 3.7; store.md 10.4.

use std::rc::Rc;
use std::sync::Arc;

use super::marks::Marks;
use super::shard::ShardBroker;
use super::verdict::{Verdict, Wanted};
use super::{delay, names, status};
use crate::format::config_files::TopicConfig;
use crate::format::record::{RecordView, message_id};
use crate::store::{Message, PutFlush, QueueView, Reader, TagsRule};
use crate::types::{PhyOffset, TagsCode, properties};
use crate::wire::code::response;
use crate::wire::headers::SendBackHeader;
use crate::wire::{Command, Peer, VERSION_3_4_9};

/// Of the message as it was given back, these do not hold for its copy, or are written anew.
const NOT_KEPT: [&str; 8] = [
    properties::DELAY,
    properties::WAIT,
    properties::REAL_TOPIC,
    properties::REAL_QID,
    properties::POP_CK,
    properties::TIMER_DELIVER_MS,
    properties::TIMER_DELAY_MS,
    properties::TIMER_DELAY_SEC,
];

/// A request whose group, topic and permission have been checked.
struct SendBack {
    group: String,
    phy: PhyOffset,
    delay_level: i32,
    tries_max: i32,
    /// Of the retry topic.
    queue: Arc<QueueView>,
}

/// What becomes of a message that is given back.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    Dead,
    /// Tried again after the delay of this level.
    Retried {
        level: i32,
    },
}

fn fate(reconsume_times: i32, tries_max: i32, delay_level: i32) -> Fate {
    if delay_level < 0 || reconsume_times >= tries_max {
        Fate::Dead
    } else if delay_level == 0 {
        Fate::Retried { level: reconsume_times.max(0).saturating_add(3) }
    } else {
        Fate::Retried { level: delay_level }
    }
}

/// The properties of a message given back, for its copy.
fn copied(raw: &str, marks: &Marks<'_>, topic: &str, message_id: &str, level: i32) -> String {
    let mut text = properties::without(raw, &NOT_KEPT);
    if marks.retry_topic.is_none() {
        properties::push(&mut text, properties::RETRY_TOPIC, topic);
    }
    if marks.origin_message_id.is_none() {
        properties::push(&mut text, properties::ORIGIN_MESSAGE_ID, message_id);
    }
    properties::push(&mut text, properties::WAIT, "false");
    if level > 0 {
        properties::push(&mut text, properties::DELAY, itoa::Buffer::new().format(level));
    }
    text
}

impl ShardBroker {
    pub(super) fn send_back(self: &Rc<Self>, peer: &Rc<dyn Peer>, command: &Command<'_>, refused: bool) -> Verdict {
        let reply = self.reply_to(peer, command);
        let header = match SendBackHeader::read(command) {
            Ok(header) => header,
            Err(error) => {
                reply.fail(response::SYSTEM_ERROR, &error.to_string());
                return Verdict::Done;
            }
        };
        let directory = self.directory.load();
        let wanted = || Verdict::Needs(Wanted::RetryTopic { group: header.group.to_owned() });
        let Some(group) = directory.groups.get(header.group) else {
            if !refused {
                return wanted();
            }
            let remark = format!("there is no consumer group {}", header.group);
            reply.fail(response::SUBSCRIPTION_GROUP_NOT_EXIST, &remark);
            return Verdict::Done;
        };
        if group.retry_queue_nums <= 0 {
            // The group wants no retries: the message is dropped as asked.
            reply.send(response::SUCCESS, None, &[], &[]);
            return Verdict::Done;
        }
        let Some(topic) = directory.topics.get(names::retry_topic(header.group).as_str()) else {
            if !refused {
                return wanted();
            }
            reply.fail(response::SYSTEM_ERROR, &format!("the group {} has no retry topic", header.group));
            return Verdict::Done;
        };
        if topic.config.perm & TopicConfig::PERM_WRITE == 0 {
            reply.fail(response::NO_PERMISSION, &format!("the retry topic of {} may not be written", header.group));
            return Verdict::Done;
        }
        let queue_count = usize::try_from(group.retry_queue_nums).unwrap_or(0).min(topic.queues.len());
        let (Ok(phy), true) = (u64::try_from(header.offset), queue_count > 0) else {
            reply.fail(response::SYSTEM_ERROR, "the request names no message, or the retry topic has no queue");
            return Verdict::Done;
        };
        let asked = header.max_reconsume_times.filter(|_| command.version >= VERSION_3_4_9);
        let send_back = SendBack {
            group: header.group.to_owned(),
            phy: PhyOffset(phy),
            delay_level: header.delay_level,
            tries_max: asked.unwrap_or(group.retry_max_times),
            queue: Arc::clone(&topic.queues[self.pick(queue_count)]),
        };
        let broker = Rc::clone(self);
        Verdict::Later(Box::pin(async move {
            match broker.put_copy(&send_back).await {
                Ok(()) => reply.send(response::SUCCESS, None, &[], &[]),
                Err(remark) => reply.fail(response::SYSTEM_ERROR, &remark),
            }
        }))
    }

    /// Stores the copy; the error is the answer's remark.
    async fn put_copy(&self, send_back: &SendBack) -> Result<(), String> {
        let phy = send_back.phy;
        let reader = Reader::Group(send_back.group.as_str().into());
        let bytes = self.record_by_offset(&reader, phy).await.map_err(|error| error.to_string())?;
        let record = RecordView::parse(&bytes).map_err(|error| format!("no message at {phy}: {error}"))?;
        let raw = record.properties();
        let marks = Marks::scan(raw);
        let id = message_id(record.store_host(), phy);
        let fate = fate(record.reconsume_times(), send_back.tries_max, send_back.delay_level);
        let is_dead = fate == Fate::Dead;
        let (target, queue, text, tags) = match fate {
            Fate::Dead => {
                let queue = self.dead_letter_queue(&send_back.group).await?;
                let text = copied(raw, &marks, record.topic(), &id, 0);
                (names::dlq_topic(&send_back.group), queue, text, TagsRule::Code(TagsCode::of(marks.tags)))
            }
            Fate::Retried { level } => {
                let level = self.settings.delay_levels.clamp(level);
                let key = send_back.queue.key();
                let detour = delay::detour(&self.settings.delay_levels, level, &key.topic, key.queue_id);
                let directory = self.directory.load();
                let schedule = directory.topics.get(names::SCHEDULE_TOPIC);
                let queue = schedule.and_then(|topic| topic.queues.get(detour.queue_index));
                let queue = queue.ok_or_else(|| format!("there is no schedule queue for delay level {level}"))?;
                let text = copied(raw, &marks, record.topic(), &id, level) + &detour.added;
                (key.topic.to_string(), Arc::clone(queue), text, TagsRule::DueAfterMs(detour.delay_ms))
            }
        };
        let message = Message {
            queue: &queue,
            flag: record.flag(),
            sys_flag: record.sys_flag(),
            born_timestamp: record.born_timestamp(),
            born_host: record.born_host(),
            reconsume_times: record.reconsume_times().saturating_add(1),
            prepared_transaction_offset: 0,
            body: record.body(),
            properties: &[text.as_bytes()],
            tags,
            keys: marks.key_hashes(&queue.key().topic),
        };
        // As in Java the copy says WAIT=false; it follows the policy of the topic that it will be read from.
        let topic = self.directory.load().topics.get(target.as_str()).and_then(|topic| topic.flush());
        let flush = PutFlush { topic, may_wait: false };
        let put = self.store.put_and_wait(std::slice::from_ref(&message), flush).await;
        let stored = put
            .map_err(|refusal| status::of_refusal(refusal, self.settings.body_len_max))
            .and_then(|outcome| status::of_put(&outcome.status, &self.store.health()));
        if is_dead && stored.is_ok() {
            self.store.traffic().dead_letters.add(1);
        }
        stored
            .map(|_| ())
            .map_err(|refusal| format!("the copy was not stored, code {}: {}", refusal.code, refusal.remark))
    }

    async fn dead_letter_queue(&self, group: &str) -> Result<Arc<QueueView>, String> {
        let topic = names::dlq_topic(group);
        let first = || self.directory.load().topics.get(topic.as_str()).and_then(|topic| topic.queues.first().cloned());
        if let Some(queue) = first() {
            return Ok(queue);
        }
        self.link.ensure(Wanted::DlqTopic { group: group.to_owned() }).await;
        first().ok_or_else(|| format!("the group {group} has no dead-letter topic"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readable(text: &str) -> String {
        text.replace('\u{1}', "=").replace('\u{2}', ";")
    }

    #[test]
    fn a_message_is_retried_ever_later_until_it_is_dead() {
        assert_eq!(fate(0, 16, 0), Fate::Retried { level: 3 });
        assert_eq!(fate(15, 16, 0), Fate::Retried { level: 18 });
        assert_eq!(fate(16, 16, 0), Fate::Dead);
        assert_eq!(fate(0, 16, 5), Fate::Retried { level: 5 });
        assert_eq!(fate(0, 16, -1), Fate::Dead);
        assert_eq!(fate(0, 0, 0), Fate::Dead);
    }

    #[test]
    fn a_first_copy_remembers_where_it_came_from() {
        let raw =
            "KEYS\u{1}k\u{2}WAIT\u{1}true\u{2}DELAY\u{1}1\u{2}REAL_TOPIC\u{1}T\u{2}REAL_QID\u{1}0\u{2}CLUSTER\u{1}c";
        let text = copied(raw, &Marks::scan(raw), "T", "ID", 3);
        assert_eq!(readable(&text), "KEYS=k;CLUSTER=c;RETRY_TOPIC=T;ORIGIN_MESSAGE_ID=ID;WAIT=false;DELAY=3;");
    }

    #[test]
    fn a_later_copy_keeps_the_first_origin() {
        let raw = "RETRY_TOPIC\u{1}T\u{2}ORIGIN_MESSAGE_ID\u{1}ID\u{2}WAIT\u{1}false\u{2}DELAY\u{1}3\u{2}";
        let text = copied(raw, &Marks::scan(raw), "%RETRY%G", "ID2", 4);
        assert_eq!(readable(&text), "RETRY_TOPIC=T;ORIGIN_MESSAGE_ID=ID;WAIT=false;DELAY=4;");
    }

    #[test]
    fn a_dead_letter_has_no_delay() {
        let raw = "DELAY\u{1}3\u{2}";
        assert!(!copied(raw, &Marks::scan(raw), "T", "ID", 0).contains("DELAY"));
    }
}
