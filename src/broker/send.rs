//! Sends: 10, 310 and 320. The hottest path of the node: on success nothing is formatted, and the answer is written in
//! place.
//!
//! The checks stand in the order that clients can observe. Source: remoting.md 3.1; store.md 2.10 and 2.12.

use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;

use smallvec::SmallVec;

use super::marks::Marks;
use super::reply::{ReplyTo, ids_fit};
use super::shard::ShardBroker;
use super::status::{self, Refusal, too_large};
use super::verdict::{TopicWanted, Verdict, Wanted};
use super::{Directory, Profile, Topic, delay, names};
use crate::format::config_files::TopicFilterType;
use crate::format::record::{message_id, sys_flag, write_message_id};
use crate::metrics::MessageType;
use crate::store::{FlushMode, Message, PutFlush, PutOutcome, PutStatus, PutTimes, QueueView, TagsRule};
use crate::types::{PhyOffset, TagsCode, Timestamp, properties};
use crate::wire::batch;
use crate::wire::code::response;
use crate::wire::headers::SendHeader;
use crate::wire::{Command, Peer, VERSION_3_4_9};

const VALUE_END: &[u8] = &[properties::VALUE_END];

/// Why a send is not put.
enum Obstacle {
    /// Something must be made first.
    Needs(Wanted),
    Refused(Refusal),
}

fn refuse<T>(code: i32, remark: impl Into<Cow<'static, str>>) -> Result<T, Obstacle> {
    Err(Obstacle::Refused(Refusal::new(code, remark)))
}

/// Where a send goes.
struct Target<'d> {
    queue: &'d Arc<QueueView>,
    queue_id: u32,
    /// Of a message that has been tried too often: no delay any more.
    dead: bool,
    multi_tags: bool,
    /// Policy of the topic that it is sent to, even if it waits in a delay queue first.
    flush: Option<FlushMode>,
}

/// What is counted of a put that is stored.
#[derive(Clone, Copy)]
struct Counted {
    /// Slot of the topic that it was sent to.
    series: u16,
    kind: MessageType,
    is_dead: bool,
}

/// The unique key that a send's answer repeats; in profile 5 clients see it as transaction id.
type UniqueKey = SmallVec<[u8; 64]>;

impl ShardBroker {
    pub(super) fn send(
        self: &Rc<Self>,
        peer: &Rc<dyn Peer>,
        command: &Command<'_>,
        now: Timestamp,
        refused: bool,
    ) -> Verdict {
        let reply = self.reply_to(peer, command);
        let tried = match SendHeader::read(command) {
            Ok(header) => self.try_send(&reply, command, &header, now, refused),
            Err(error) => refuse(response::SYSTEM_ERROR, error.to_string()),
        };
        match tried {
            Ok(()) => {}
            Err(Obstacle::Needs(wanted)) => return Verdict::Needs(wanted),
            Err(Obstacle::Refused(refusal)) => self.refuse_send(&reply, &refusal),
        }
        Verdict::Done
    }

    fn try_send(
        self: &Rc<Self>,
        reply: &ReplyTo,
        command: &Command<'_>,
        header: &SendHeader<'_>,
        now: Timestamp,
        refused: bool,
    ) -> Result<(), Obstacle> {
        let invalid = self.settings.profile.invalid_parameter();
        names::check_topic(header.topic).or_else(|error| refuse(invalid, error.to_string()))?;
        if !names::is_sendable(header.topic) {
            return refuse(response::NO_PERMISSION, format!("the topic {} is the broker's own", header.topic));
        }
        let directory = self.directory.load();
        let topic = find_topic(&directory, header, refused)?;
        let target = self.target(&directory, topic, command, header, now, refused)?;
        if header.batch {
            self.put_batch(reply, command, header, &target)
        } else {
            self.put_single(reply, command, header, &target, &directory, now)
        }
    }

    fn target<'d>(
        &self,
        directory: &'d Directory,
        topic: &'d Topic,
        command: &Command<'_>,
        header: &SendHeader<'_>,
        now: Timestamp,
        refused: bool,
    ) -> Result<Target<'d>, Obstacle> {
        let invalid = self.settings.profile.invalid_parameter();
        let index = match usize::try_from(header.queue_id) {
            Ok(index) => index,
            Err(_) => match usize::try_from(topic.config.write_queue_nums) {
                Ok(count) if count > 0 => self.pick(count),
                _ => return refuse(invalid, format!("the topic {} has no queue to write to", header.topic)),
            },
        };
        let Some(queue) = topic.queues.get(index) else {
            return refuse(
                invalid,
                format!("the topic {} has {} queues, there is no queue {index}", header.topic, topic.queues.len()),
            );
        };
        let multi_tags = topic.config.filter_type == TopicFilterType::MultiTag;
        if let Some(group) = names::group_of_retry_topic(header.topic) {
            if header.batch {
                return refuse(response::MESSAGE_ILLEGAL, "a batch cannot go to a retry topic");
            }
            if self.is_dead(directory, group, command, header, now)? {
                let Some(dlq) = directory.topics.get(names::dlq_topic(group).as_str()) else {
                    if refused {
                        return refuse(response::SYSTEM_ERROR, format!("the group {group} has no dead-letter topic"));
                    }
                    return Err(Obstacle::Needs(Wanted::DlqTopic { group: group.to_owned() }));
                };
                let Some(queue) = dlq.queues.first() else {
                    return refuse(response::SYSTEM_ERROR, format!("the dead-letter topic of {group} has no queue"));
                };
                return Ok(Target { queue, queue_id: 0, dead: true, multi_tags: false, flush: dlq.flush() });
            }
        }
        // An index of a vector of queues, whose ids are 32-bit numbers.
        Ok(Target { queue, queue_id: index as u32, dead: false, multi_tags, flush: topic.flush() })
    }

    /// Whether a message that a consumer sends to its retry topic has been tried often enough.
    fn is_dead(
        &self,
        directory: &Directory,
        group: &str,
        command: &Command<'_>,
        header: &SendHeader<'_>,
        now: Timestamp,
    ) -> Result<bool, Obstacle> {
        let Some(config) = directory.groups.get(group) else {
            return refuse(response::SUBSCRIPTION_GROUP_NOT_EXIST, format!("there is no consumer group {group}"));
        };
        let asked = header.max_reconsume_times.filter(|_| command.version >= VERSION_3_4_9);
        let tries_max = asked.unwrap_or(config.retry_max_times);
        // A group that consumes in order retries in its client, and sends only what it gives up.
        let in_order = self.settings.profile == Profile::V5 && directory.holds_locks(group, now);
        Ok(in_order || header.reconsume_times > tries_max)
    }

    fn put_single(
        self: &Rc<Self>,
        reply: &ReplyTo,
        command: &Command<'_>,
        header: &SendHeader<'_>,
        target: &Target<'_>,
        directory: &Directory,
        now: Timestamp,
    ) -> Result<(), Obstacle> {
        self.check_body(command.body)?;
        let made_key;
        let mut marks = Marks::scan(header.properties);
        let level = delay_level(&marks, target.dead)?;
        check_kind(&marks, header, level)?;
        let text = kept_text(header.properties, &marks, target.dead);
        let detour = (level > 0)
            .then(|| delay::detour(&self.settings.delay_levels, level, &target.queue.key().topic, target.queue_id));

        let mut pieces: SmallVec<[&[u8]; 7]> = SmallVec::new();
        push_closed(&mut pieces, &text);
        pieces.push(&self.added_to_single);
        if marks.unique_key.is_none() {
            made_key = self.unique_keys.next(now);
            let made_key = std::str::from_utf8(&made_key).expect("hex digits are text");
            pieces.extend([properties::UNIQ_KEY.as_bytes(), &[properties::NAME_END], made_key.as_bytes(), VALUE_END]);
            marks.unique_key = Some(made_key);
        }
        let (queue, tags) = match &detour {
            None => (target.queue, TagsRule::Code(TagsCode::of(marks.tags))),
            Some(detour) => {
                pieces.push(detour.added.as_bytes());
                let schedule = directory.topics.get(names::SCHEDULE_TOPIC);
                let Some(queue) = schedule.and_then(|topic| topic.queues.get(detour.queue_index)) else {
                    return refuse(
                        response::SYSTEM_ERROR,
                        format!("there is no schedule queue for delay level {level}"),
                    );
                };
                (queue, TagsRule::DueAfterMs(detour.delay_ms))
            }
        };
        let message = Message {
            queue,
            flag: header.flag,
            sys_flag: header.sys_flag | if target.multi_tags { sys_flag::MULTI_TAGS } else { 0 },
            born_timestamp: header.born_timestamp,
            born_host: reply.peer.remote(),
            reconsume_times: header.reconsume_times,
            prepared_transaction_offset: 0,
            body: command.body,
            properties: &pieces,
            tags,
            keys: marks.key_hashes(&queue.key().topic),
        };
        let unique_key = marks.unique_key.unwrap_or_default().as_bytes().into();
        let flush = PutFlush { topic: target.flush, may_wait: !marks.no_wait };
        let kind = if detour.is_some() { MessageType::Delay } else { MessageType::Normal };
        let counted = self.counted(target, kind);
        self.put(reply, std::slice::from_ref(&message), flush, target.queue_id, unique_key, counted)
    }

    fn put_batch(
        self: &Rc<Self>,
        reply: &ReplyTo,
        command: &Command<'_>,
        header: &SendHeader<'_>,
        target: &Target<'_>,
    ) -> Result<(), Obstacle> {
        let topic = &target.queue.key().topic;
        if topic.len() > names::TOPIC_LEN_MAX {
            return refuse(
                response::MESSAGE_ILLEGAL,
                format!("a batch cannot go to the topic {topic}: its name is too long"),
            );
        }
        self.check_body(command.body)?;
        let outer = Marks::scan(header.properties);
        check_batch(&outer, header.sys_flag)?;
        let entries =
            batch::entries(command.body).or_else(|error| refuse(response::MESSAGE_ILLEGAL, error.to_string()))?;
        let id_len = message_id(self.store_host, PhyOffset::default()).len();
        let texts_len = outer.unique_key.unwrap_or_default().len() + self.settings.region.len();
        // Known before the put: what is stored must not be answered with an error.
        if !reply.oneway && !ids_fit(entries.len(), id_len, texts_len) {
            let remark = format!("a batch of {} messages is too large: their ids do not fit the answer", entries.len());
            return refuse(response::MESSAGE_ILLEGAL, remark);
        }
        let marks: Vec<Marks<'_>> = entries.iter().map(|entry| Marks::scan(entry.properties)).collect();
        for marks in &marks {
            check_batch(marks, 0)?;
        }
        let pieces: Vec<SmallVec<[&[u8]; 3]>> = entries
            .iter()
            .map(|entry| {
                let mut pieces = SmallVec::new();
                push_closed(&mut pieces, entry.properties);
                pieces.push(&*self.added_to_batched);
                pieces
            })
            .collect();
        let messages: Vec<Message<'_>> = entries
            .iter()
            .zip(marks.iter().zip(&pieces))
            .map(|(entry, (marks, pieces))| Message {
                queue: target.queue,
                flag: entry.flag,
                sys_flag: header.sys_flag | if target.multi_tags { sys_flag::MULTI_TAGS } else { 0 },
                born_timestamp: header.born_timestamp,
                born_host: reply.peer.remote(),
                reconsume_times: header.reconsume_times,
                prepared_transaction_offset: 0,
                body: entry.body,
                properties: pieces,
                tags: TagsRule::Code(TagsCode::of(marks.tags)),
                keys: marks.key_hashes(topic),
            })
            .collect();
        let unique_key = outer.unique_key.unwrap_or_default().as_bytes().into();
        let flush = PutFlush { topic: target.flush, may_wait: !outer.no_wait };
        let counted = self.counted(target, MessageType::Normal);
        self.put(reply, &messages, flush, target.queue_id, unique_key, counted)
    }

    fn counted(&self, target: &Target<'_>, kind: MessageType) -> Counted {
        Counted { series: target.queue.series(self.store.series()), kind, is_dead: target.dead }
    }

    fn put(
        self: &Rc<Self>,
        reply: &ReplyTo,
        messages: &[Message<'_>],
        flush: PutFlush,
        queue_id: u32,
        unique_key: UniqueKey,
        counted: Counted,
    ) -> Result<(), Obstacle> {
        let broker = Rc::clone(self);
        let answer = reply.clone();
        let done = Box::new(move |outcome: PutOutcome| {
            broker.count_send(counted, &outcome);
            broker.answer_send(&answer, queue_id, &unique_key, &outcome);
        });
        let put = self.store.put(messages, flush, done);
        put.map_err(|refusal| Obstacle::Refused(status::of_refusal(refusal, self.settings.body_len_max)))
    }

    fn count_send(&self, counted: Counted, outcome: &PutOutcome) {
        if let PutStatus::Ok | PutStatus::FlushDiskTimeout = outcome.status {
            let traffic = self.store.traffic();
            traffic.series.note_in(counted.series, counted.kind, &outcome.record_lens);
            if counted.is_dead {
                traffic.dead_letters.add(1);
            }
        }
    }

    /// Answers a put that the store has carried out, or tried to.
    fn answer_send(&self, reply: &ReplyTo, queue_id: u32, unique_key: &[u8], outcome: &PutOutcome) {
        if reply.oneway {
            return;
        }
        let code = match status::of_put(&outcome.status, &self.store.health()) {
            Ok(code) => code,
            Err(refusal) => return self.refuse_put(reply, &refusal, &outcome.times),
        };
        let mut ids = self.id_text.borrow_mut();
        ids.clear();
        let mut phy = outcome.phy;
        for (index, len) in outcome.record_lens.iter().enumerate() {
            if index > 0 {
                ids.push(',');
            }
            write_message_id(&mut ids, self.store_host, phy);
            phy = phy.advance(u64::from(*len));
        }
        let (mut queue_digits, mut offset_digits) = (itoa::Buffer::new(), itoa::Buffer::new());
        let unique_key = std::str::from_utf8(unique_key).unwrap_or_default();
        let ext = [
            (properties::MSG_REGION, self.settings.region.as_str()),
            (properties::TRACE_ON, self.trace_text()),
            ("msgId", ids.as_str()),
            ("queueId", queue_digits.format(queue_id)),
            ("queueOffset", offset_digits.format(outcome.queue_offset.0)),
            ("transactionId", unique_key),
        ];
        let with_key = self.settings.profile == Profile::V5 && !unique_key.is_empty();
        let ext = if with_key { &ext[..] } else { &ext[..ext.len() - 1] };
        reply.send_put(&outcome.times, code, None, ext);
    }

    fn refuse_send(&self, reply: &ReplyTo, refusal: &Refusal) {
        reply.send(refusal.code, Some(&refusal.remark), &self.refusal_fields(), &[]);
    }

    fn refuse_put(&self, reply: &ReplyTo, refusal: &Refusal, times: &PutTimes) {
        reply.send_put(times, refusal.code, Some(&refusal.remark), &self.refusal_fields());
    }

    fn refusal_fields(&self) -> [(&str, &str); 2] {
        [(properties::MSG_REGION, self.settings.region.as_str()), (properties::TRACE_ON, self.trace_text())]
    }

    fn check_body(&self, body: &[u8]) -> Result<(), Obstacle> {
        if body.is_empty() {
            return refuse(response::MESSAGE_ILLEGAL, "the message has no body");
        }
        if body.len() > self.settings.body_len_max {
            return refuse(response::MESSAGE_ILLEGAL, too_large(self.settings.body_len_max));
        }
        Ok(())
    }
}

fn find_topic<'d>(directory: &'d Directory, header: &SendHeader<'_>, refused: bool) -> Result<&'d Topic, Obstacle> {
    let group = names::group_of_retry_topic(header.topic);
    let found = directory.topics.get(header.topic);
    // A consumer's resend needs its group as well, and both can be made in one go.
    let complete = group.is_none_or(|group| directory.groups.contains_key(group));
    match (found, group) {
        (Some(topic), _) if complete || refused => Ok(topic),
        (_, Some(group)) if !refused => Err(Obstacle::Needs(Wanted::RetryTopic { group: group.to_owned() })),
        (_, None) if !refused => Err(Obstacle::Needs(Wanted::Topic(TopicWanted {
            topic: header.topic.to_owned(),
            default_topic: header.default_topic.to_owned(),
            default_queue_nums: header.default_topic_queue_nums,
            unit_mode: header.unit_mode,
        }))),
        _ => refuse(response::TOPIC_NOT_EXIST, format!("there is no topic {} and it was not made", header.topic)),
    }
}

/// The level that delays a message; 0 if none does.
fn delay_level(marks: &Marks<'_>, dead: bool) -> Result<i32, Obstacle> {
    match marks.delay_level() {
        Ok(level) => Ok(if dead { 0 } else { level }),
        Err(found) => {
            let shown: String = found.chars().take(40).collect();
            refuse(response::MESSAGE_ILLEGAL, format!("the delay level {shown:?} is not a number"))
        }
    }
}

/// Refuses what this version would store but not treat as its sender expects.
fn check_kind(marks: &Marks<'_>, header: &SendHeader<'_>, level: i32) -> Result<(), Obstacle> {
    let retried_with_delay = header.reconsume_times > 0 && level > 0;
    let kind = header.sys_flag & sys_flag::TRANSACTION_MASK;
    let hidden = kind == sys_flag::TRANSACTION_PREPARED || kind == sys_flag::TRANSACTION_ROLLBACK;
    if hidden || marks.half && !retried_with_delay {
        return refuse(response::NO_PERMISSION, "transactional messages are not served by this version");
    }
    if marks.timed && level == 0 {
        return refuse(response::SYSTEM_ERROR, "timer messages are not served by this version; use a delay level");
    }
    if marks.inner_batch || header.sys_flag & sys_flag::INNER_BATCH != 0 {
        return refuse(response::MESSAGE_ILLEGAL, "the topic takes no inner batches");
    }
    Ok(())
}

/// Refuses in a batch, or in one of its messages, what only single messages can have.
fn check_batch(marks: &Marks<'_>, flags: i32) -> Result<(), Obstacle> {
    if marks.half || flags & sys_flag::TRANSACTION_MASK != 0 {
        return refuse(response::MESSAGE_ILLEGAL, "a batch cannot be part of a transaction");
    }
    if marks.timed || delay_level(marks, false)? > 0 {
        return refuse(response::MESSAGE_ILLEGAL, "a batch cannot be delayed");
    }
    if marks.inner_batch || flags & sys_flag::INNER_BATCH != 0 {
        return refuse(response::MESSAGE_ILLEGAL, "the topic takes no inner batches");
    }
    Ok(())
}

/// The client's properties without those that must not be stored.
fn kept_text<'a>(raw: &'a str, marks: &Marks<'_>, dead: bool) -> Cow<'a, str> {
    let undelayed = dead && marks.delay.is_some();
    if !marks.unwanted && !undelayed {
        return Cow::Borrowed(raw);
    }
    let is_wanted = |name: &str| Marks::is_stored(name) && !(undelayed && name == properties::DELAY);
    Cow::Owned(properties::filtered(raw, is_wanted))
}

/// Adds a property text, ended so that more can follow.
fn push_closed<'a, const N: usize>(pieces: &mut SmallVec<[&'a [u8]; N]>, text: &'a str)
where
    [&'a [u8]; N]: smallvec::Array<Item = &'a [u8]>,
{
    if text.is_empty() {
        return;
    }
    pieces.push(text.as_bytes());
    if !text.ends_with(char::from(properties::VALUE_END)) {
        pieces.push(VALUE_END);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::format::config_files::{GroupConfig, TopicConfig};

    const HEADER: SendHeader<'static> = SendHeader {
        producer_group: "P",
        topic: "T",
        default_topic: "TBW102",
        default_topic_queue_nums: 4,
        queue_id: 0,
        sys_flag: 0,
        born_timestamp: 0,
        flag: 0,
        properties: "",
        reconsume_times: 0,
        unit_mode: true,
        max_reconsume_times: None,
        batch: false,
    };

    fn raw(readable: &str) -> String {
        readable.replace('=', "\u{1}").replace(';', "\u{2}")
    }

    fn code<T>(result: Result<T, Obstacle>) -> i32 {
        match result {
            Ok(_) => response::SUCCESS,
            Err(Obstacle::Refused(refusal)) => refusal.code,
            Err(Obstacle::Needs(_)) => panic!("nothing has to be made"),
        }
    }

    fn kind(text: &str, header: SendHeader<'_>) -> i32 {
        let text = raw(text);
        let marks = Marks::scan(&text);
        code(delay_level(&marks, false).and_then(|level| check_kind(&marks, &header, level)))
    }

    fn batch(text: &str, flags: i32) -> i32 {
        code(check_batch(&Marks::scan(&raw(text)), flags))
    }

    fn directory(topics: &[&str], groups: &[&str]) -> Directory {
        let topic =
            |name: &&str| ((*name).into(), Arc::new(Topic { config: TopicConfig::new(*name, 1), queues: vec![] }));
        let group = |name: &&str| ((*name).into(), Arc::new(GroupConfig::new(*name)));
        Directory {
            topics: Arc::new(HashMap::from_iter(topics.iter().map(topic))),
            groups: Arc::new(HashMap::from_iter(groups.iter().map(group))),
            ..Directory::default()
        }
    }

    fn wanted(directory: &Directory, topic: &str) -> Option<Wanted> {
        match find_topic(directory, &SendHeader { topic, ..HEADER }, false) {
            Ok(_) => None,
            Err(Obstacle::Needs(wanted)) => Some(wanted),
            Err(Obstacle::Refused(refusal)) => panic!("refused with {}", refusal.code),
        }
    }

    #[test]
    fn transactions_and_timers_are_refused_rather_than_half_served() {
        assert_eq!(kind("TRAN_MSG=true;", HEADER), response::NO_PERMISSION);
        assert_eq!(kind("", SendHeader { sys_flag: 4, ..HEADER }), response::NO_PERMISSION);
        assert_eq!(kind("", SendHeader { sys_flag: 12, ..HEADER }), response::NO_PERMISSION);
        assert_eq!(kind("TIMER_DELAY_SEC=5;", HEADER), response::SYSTEM_ERROR);
        assert_eq!(kind("INNER_NUM=2;", HEADER), response::MESSAGE_ILLEGAL);
        assert_eq!(kind("", SendHeader { sys_flag: 0x80, ..HEADER }), response::MESSAGE_ILLEGAL);
    }

    #[test]
    fn a_delay_level_beats_timers_and_lets_a_retried_half_message_pass() {
        assert_eq!(kind("TIMER_DELAY_SEC=5;DELAY=3;", HEADER), response::SUCCESS);
        assert_eq!(kind("TRAN_MSG=true;DELAY=3;", SendHeader { reconsume_times: 1, ..HEADER }), response::SUCCESS);
        assert_eq!(kind("TRAN_MSG=true;DELAY=3;", HEADER), response::NO_PERMISSION);
        assert_eq!(kind("DELAY=soon;", HEADER), response::MESSAGE_ILLEGAL);
        assert_eq!(kind("", SendHeader { sys_flag: 0x301, ..HEADER }), response::SUCCESS);
    }

    #[test]
    fn batches_are_neither_delayed_nor_transactional() {
        for (text, flags) in
            [("DELAY=1;", 0), ("TRAN_MSG=true;", 0), ("", 4), ("", 8), ("TIMER_DELAY_MS=1;", 0), ("", 0x80)]
        {
            assert_eq!(batch(text, flags), response::MESSAGE_ILLEGAL, "{text} {flags}");
        }
        assert_eq!(batch("DELAY=0;WAIT=false;UNIQ_KEY=u;", 1), response::SUCCESS);
    }

    #[test]
    fn what_must_not_be_stored_is_taken_out_and_all_else_stays_as_it_is() {
        let kept = |text: &str, dead| kept_text(&raw(text), &Marks::scan(&raw(text)), dead).into_owned();
        assert_eq!(kept("b=2;a=1", false), raw("b=2;a=1"));
        assert_eq!(kept("a=1;POP_CK=x;DELAY=3", false), raw("a=1;DELAY=3;"));
        assert_eq!(kept("a=1;POP_CK=x;DELAY=3", true), raw("a=1;"));
        assert_eq!(kept("DELAY=3;a=1", true), raw("a=1;"));
        assert_eq!(
            kept("__CRC32#=0000000000;__RMQ.TRANSIENT.x=1;__SHARDINGKEY=s;P=p", false),
            raw("__SHARDINGKEY=s;P=p;")
        );
    }

    #[test]
    fn a_text_that_more_follows_is_closed_once() {
        let closed = |text: &str| {
            let mut pieces: SmallVec<[&[u8]; 3]> = SmallVec::new();
            push_closed(&mut pieces, text);
            pieces.concat()
        };
        assert_eq!(closed(""), b"");
        assert_eq!(closed("a\u{1}1"), b"a\x011\x02");
        assert_eq!(closed("a\u{1}1\u{2}"), b"a\x011\x02");
    }

    #[test]
    fn a_missing_topic_is_asked_for_as_the_sender_describes_it() {
        let expected =
            TopicWanted { topic: "T".into(), default_topic: "TBW102".into(), default_queue_nums: 4, unit_mode: true };
        assert_eq!(wanted(&directory(&[], &[]), "T"), Some(Wanted::Topic(expected)));
        assert_eq!(wanted(&directory(&["T"], &[]), "T"), None);
        assert_eq!(code(find_topic(&directory(&[], &[]), &HEADER, true)), response::TOPIC_NOT_EXIST);
    }

    #[test]
    fn a_resend_asks_for_its_group_and_retry_topic_together() {
        let needed = Some(Wanted::RetryTopic { group: "G".into() });
        assert_eq!(wanted(&directory(&[], &[]), "%RETRY%G"), needed);
        assert_eq!(wanted(&directory(&["%RETRY%G"], &[]), "%RETRY%G"), needed);
        assert_eq!(wanted(&directory(&[], &["G"]), "%RETRY%G"), needed);
        assert_eq!(wanted(&directory(&["%RETRY%G"], &["G"]), "%RETRY%G"), None);
    }
}
