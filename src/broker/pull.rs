//! Pulls: 11 and 361, at once or held until a message comes. A hot path, as sends are.
//!
//! A pull that finds nothing may be held: [`ShardBroker::wake`] answers it when a message comes that its filter takes,
//! and [`ShardBroker::answer_due`] when it has waited as long as its client allows. A hold is registered before the
//! queue's end is looked at once more, so an arrival in between is seen by one side or the other. Source: remoting.md
//! 3.2.

use std::borrow::Cow;
use std::collections::hash_map::Entry;
use std::rc::Rc;
use std::sync::Arc;

use super::checked_pull::Pull;
use super::holds::{HOLD_MS_MAX, Hold, HoldId};
use super::reply::{BODY_LEN_MAX, ReplyTo};
use super::shard::ShardBroker;
use super::subscription::{ALL, Filter, TagFilter};
use super::verdict::{Later, Verdict, Wanted};
use super::{Directory, Profile, status};
use crate::format::config_files::{GroupConfig, TopicConfig};
use crate::metrics::OTHER;
use crate::store::{Found, GetResult, GetStatus, QueueReader, QueueView, Reader};
use crate::types::{QueueHandle, QueueOffset, TagsCode, Timestamp};
use crate::wire::code::response;
use crate::wire::headers::PullHeader;
use crate::wire::heartbeat::MessageModel;
use crate::wire::{Command, ConnId, Peer};

/// Why a pull gets no look at its queue.
enum Obstacle {
    Needs(Wanted),
    Refused { code: i32, remark: Cow<'static, str>, forbidden: Option<Forbidden> },
}

/// What a pull may not read, as 5.x clients are told by number.
#[derive(Clone, Copy)]
enum Forbidden {
    Group = 2,
    Topic = 3,
    Broadcast = 4,
}

fn refuse<T>(code: i32, remark: impl Into<Cow<'static, str>>) -> Result<T, Obstacle> {
    Err(Obstacle::Refused { code, remark: remark.into(), forbidden: None })
}

fn forbid<T>(what: Forbidden, remark: String) -> Result<T, Obstacle> {
    Err(Obstacle::Refused { code: response::NO_PERMISSION, remark: remark.into(), forbidden: Some(what) })
}

impl ShardBroker {
    pub(super) fn pull(
        self: &Rc<Self>,
        peer: &Rc<dyn Peer>,
        command: &Command<'_>,
        now: Timestamp,
        refused: bool,
    ) -> Verdict {
        let reply = self.reply_to(peer, command);
        let header = match PullHeader::read(command) {
            Ok(header) => header,
            Err(error) => {
                reply.fail(response::SYSTEM_ERROR, &error.to_string());
                return Verdict::Done;
            }
        };
        match self.checked(reply.clone(), &header, refused) {
            Ok(pull) => self.first_pass(pull, &header, now),
            Err(Obstacle::Needs(wanted)) => Verdict::Needs(wanted),
            Err(Obstacle::Refused { code, remark, forbidden }) => {
                let mut digits = itoa::Buffer::new();
                let forbidden = forbidden.filter(|_| self.settings.profile == Profile::V5);
                match forbidden {
                    Some(what) => {
                        reply.send(code, Some(&remark), &[("forbiddenType", digits.format(what as i32))], &[]);
                    }
                    None => reply.fail(code, &remark),
                }
                Verdict::Done
            }
        }
    }

    /// All checks, in the order that clients can observe; then the offset that comes with the pull is committed, once.
    fn checked(&self, reply: ReplyTo, header: &PullHeader<'_>, refused: bool) -> Result<Pull, Obstacle> {
        let directory = self.directory.load();
        let Some((group_name, group)) = directory.groups.get_key_value(header.consumer_group) else {
            if refused {
                let remark = format!("there is no consumer group {}", header.consumer_group);
                return refuse(response::SUBSCRIPTION_GROUP_NOT_EXIST, remark);
            }
            return Err(Obstacle::Needs(Wanted::Group { group: header.consumer_group.to_owned() }));
        };
        if !group.consume_enable {
            return forbid(Forbidden::Group, format!("the group {group_name} may not consume"));
        }
        let Some(topic) = directory.topics.get(header.topic) else {
            return refuse(response::TOPIC_NOT_EXIST, format!("there is no topic {}", header.topic));
        };
        if topic.config.perm & TopicConfig::PERM_READ == 0 {
            return forbid(Forbidden::Topic, format!("the topic {} may not be read", header.topic));
        }
        let readable = usize::try_from(topic.config.read_queue_nums).unwrap_or(0).min(topic.queues.len());
        let index = usize::try_from(header.queue_id).ok().filter(|index| *index < readable);
        let Some(queue) = index.and_then(|index| topic.queues.get(index)) else {
            return refuse(
                self.settings.profile.invalid_parameter(),
                format!(
                    "the topic {} has {readable} queues to read, there is no queue {}",
                    header.topic, header.queue_id
                ),
            );
        };
        let filter = filter_of(&directory, group, header)?;
        if header.sys_flag & PullHeader::COMMIT_OFFSET != 0 {
            self.link.commit_offset(group_name, &queue.key().topic, header.queue_id, header.commit_offset);
        }
        Ok(Pull {
            reply,
            queue: Arc::clone(queue),
            offset: header.queue_offset,
            count_max: header.max_msg_nums,
            len_max: header.max_msg_bytes.and_then(|len| u32::try_from(len).ok()).unwrap_or(i32::MAX as u32),
            filter,
            reader: Reader::Group(Arc::clone(group_name)),
        })
    }

    fn first_pass(self: &Rc<Self>, pull: Pull, header: &PullHeader<'_>, now: Timestamp) -> Verdict {
        let got = self.look(&pull);
        let may_wait = header.sys_flag & PullHeader::SUSPEND != 0 && header.suspend_timeout_ms > 0;
        // Where a file of the queue is missing, the way on is the next file's start and not a message to come.
        if !may_wait || pull.reply.oneway || !waits(&pull, &got) {
            return verdict(self.answer(pull, got));
        }
        verdict(self.park(pull, deadline(now, header)))
    }

    /// Answers the pulls held for `queue` that a message with `tags` is for, now that its messages below `max` can be
    /// read.
    ///
    /// What is given back must be run: those pulls read from the disk.
    #[must_use]
    pub fn wake(self: &Rc<Self>, queue: QueueHandle, max: QueueOffset, tags: TagsCode) -> Vec<Later> {
        let woken = self.holds.borrow_mut().on_arrival(queue, max, |pull| pull.filter.matches(tags));
        self.note_holds();
        let mut later = Vec::new();
        for hold in woken {
            let queue = Arc::clone(&hold.waiting.queue);
            let got = self.look(&hold.waiting);
            later.extend(if waits(&hold.waiting, &got) {
                // Not to be seen yet after all.
                self.park(hold.waiting, hold.deadline)
            } else {
                self.answer(hold.waiting, got)
            });
            self.stop_holding_if_last(&queue);
        }
        later
    }

    /// Answers the held pulls that have waited long enough by `now` of the steady clock.
    ///
    /// What is given back must be run, as with [`ShardBroker::wake`].
    #[must_use]
    pub fn answer_due(self: &Rc<Self>, now: Timestamp) -> Vec<Later> {
        let due = self.holds.borrow_mut().due(now);
        self.note_holds();
        let mut later = Vec::new();
        for hold in due {
            self.stop_holding_if_last(&hold.waiting.queue);
            let got = self.look(&hold.waiting);
            later.extend(self.answer(hold.waiting, got));
        }
        later
    }

    /// Answers the pulls held on queues whose topics were deleted.
    pub fn queues_gone(&self, queues: &[QueueHandle]) {
        for queue in queues {
            let gone = self.holds.borrow_mut().drop_queue(*queue);
            self.note_holds();
            for hold in gone {
                let topic = &hold.waiting.queue.key().topic;
                hold.waiting.reply.fail(response::TOPIC_NOT_EXIST, &format!("there is no topic {topic} any more"));
            }
        }
    }

    /// Holds a pull, unless a message has come since it was looked for.
    fn park(self: &Rc<Self>, pull: Pull, deadline: Timestamp) -> Option<Later> {
        let (queue, from, was_held) = (Arc::clone(&pull.queue), pull.offset, pull.reply.asked.is_held);
        let held = self.hold(pull, deadline);
        let arrived = i64::try_from(queue.max().0).unwrap_or(i64::MAX) > from;
        let mut hold = held.filter(|_| arrived).and_then(|id| self.holds.borrow_mut().take(id))?;
        hold.waiting.reply.asked.is_held = was_held;
        self.note_holds();
        self.stop_holding_if_last(&queue);
        let got = self.look(&hold.waiting);
        self.answer(hold.waiting, got)
    }

    /// Registers a hold; if the table is full, the client hears so at once.
    fn hold(&self, mut pull: Pull, deadline: Timestamp) -> Option<HoldId> {
        let was_held = std::mem::replace(&mut pull.reply.asked.is_held, true);
        let (queue, conn, from) = (Arc::clone(&pull.queue), pull.reply.peer.id(), pull.offset);
        queue.start_holding(self.settings.shard);
        let hold = Hold { queue: queue.handle(), conn, from, deadline, waiting: pull };
        let held = self.holds.borrow_mut().hold(hold);
        self.note_holds();
        held.map_err(|mut hold| {
            self.stop_holding_if_last(&queue);
            hold.waiting.reply.asked.is_held = was_held;
            hold.waiting.reply.fail(response::FLOW_CONTROL, "too many pulls are held on this node");
        })
        .ok()
    }

    pub(super) fn stop_holding_if_last(&self, queue: &Arc<QueueView>) {
        if !self.holds.borrow().waits_for(queue.handle()) {
            queue.stop_holding(self.settings.shard);
        }
    }

    fn look(&self, pull: &Pull) -> GetResult {
        self.store.get(&pull.queue, pull.offset, pull.count_max, pull.len_max, &|tags| pull.filter.matches(tags))
    }

    /// Answers with what was found; what has to be read from the disk first is left to the future that comes back.
    fn answer(self: &Rc<Self>, pull: Pull, got: GetResult) -> Option<Later> {
        if got.status != GetStatus::UnitsCold {
            return self.answer_warm(pull, got);
        }
        let broker = Rc::clone(self);
        Some(Box::pin(async move {
            let matches = |tags| pull.filter.matches(tags);
            let look =
                broker.store.get_cold(&pull.reader, &pull.queue, pull.offset, pull.count_max, pull.len_max, &matches);
            match look.await {
                Ok(got) => {
                    if let Some(later) = broker.answer_warm(pull, got) {
                        later.await;
                    }
                }
                Err(error) => pull.fail_read(&error),
            }
        }))
    }

    /// An answer with so many messages, of `len` bytes together, was written: counts them, and notes that the group goes
    /// on at `next`. One that refuses the pull is no get.
    fn count_get(&self, pull: &Pull, next: i64, messages: u64, len: u64) {
        if pull.reply.oneway {
            return;
        }
        let traffic = self.store.traffic();
        traffic.note_get(messages);
        let Reader::Group(group) = &pull.reader else { return };
        let reader = pull.queue.reader(group, self.store.series());
        if let Some(reader) = reader {
            reader.set_next(next);
        }
        if messages > 0 {
            traffic.series.note_out(reader.map_or(OTHER, QueueReader::series), messages, len);
        }
    }

    fn answer_warm(self: &Rc<Self>, pull: Pull, got: GetResult) -> Option<Later> {
        let (code, name) = status::of_get(&got.status, pull.offset);
        let head = Head { next: got.next_offset, min: got.min_offset, max: got.max_offset };
        let pause = got.found.pause(&pull.reader);
        if code != response::SUCCESS {
            head.write(|ext| pull.reply.send(code, Some(name), ext, &[]));
            self.count_get(&pull, pull.offset, 0, 0);
            return None;
        }
        let found = got.found;
        let body_len = found.total_len();
        if body_len > BODY_LEN_MAX {
            pull.reply.fail(response::SYSTEM_ERROR, "the message is longer than an answer may be");
            return None;
        }
        // What pauses has its share of what may be on the way for a connection; beyond it there is no pause.
        let pause = pause.and_then(|pause| Some((pause, ColdShare::take(self, pull.reply.peer.id(), body_len)?)));
        let (pause, share) = match pause {
            Some((pause, share)) => (Some(pause), share),
            None if head.answer_from_memory(self, &pull, code, name, &found) => return None,
            None => {
                let Some(share) = ColdShare::take(self, pull.reply.peer.id(), body_len) else {
                    self.store.counters().cold_reads_refused.add(1);
                    pull.reply.fail(response::FLOW_CONTROL, "too much is being read from the disk for this connection");
                    return None;
                };
                (None, share)
            }
        };
        let mut pull = pull;
        Some(Box::pin(async move {
            let broker = &share.broker;
            if let Some(pause) = pause {
                // It is no time that the request took.
                pull.reply.asked.arrived_us += pause.await;
                if head.answer_from_memory(broker, &pull, code, name, &found) {
                    return;
                }
            }
            match found.load(&pull.reader).await {
                Ok(loaded) if loaded.records.is_empty() => {
                    // Units that led to no message of this queue: it goes on behind them.
                    let (code, name) = status::of_get(&GetStatus::MessageWasRemoving, pull.offset);
                    head.write(|ext| pull.reply.send(code, Some(name), ext, &[]));
                    broker.count_get(&pull, pull.offset, 0, 0);
                }
                Ok(loaded) => {
                    let goes_on_at = loaded.goes_on_at.map(|offset| offset.0 as i64);
                    let head = Head { next: goes_on_at.unwrap_or(head.next), ..head };
                    head.write(|ext| pull.reply.send(code, Some(name), ext, &loaded.records));
                    broker.count_get(&pull, head.next, loaded.count as u64, loaded.records.len() as u64);
                }
                // It expired between the look and the read: asked again, the queue says where it goes on.
                Err(error) if error.is_expired() => {
                    let (code, name) = status::of_get(&GetStatus::MessageWasRemoving, pull.offset);
                    let head = Head { next: pull.offset, ..head };
                    head.write(|ext| pull.reply.send(code, Some(name), ext, &[]));
                    broker.count_get(&pull, pull.offset, 0, 0);
                }
                Err(error) => pull.fail_read(&error),
            }
        }))
    }
}

/// What is being read from the disk for one connection, or waits for its turn; given back when dropped. A connection is not read from while its
/// answers wait, but answers that are still being read come on top of those.
struct ColdShare {
    broker: Rc<ShardBroker>,
    conn: ConnId,
    len: usize,
}

impl ColdShare {
    /// With what may wait already it stays below what ends a connection.
    const LEN_MAX: usize = 16 << 20;

    /// `None`: too much is being read already. One read is always let through.
    fn take(broker: &Rc<ShardBroker>, conn: ConnId, len: usize) -> Option<ColdShare> {
        let mut all = broker.cold_shares.borrow_mut();
        let taken = all.entry(conn).or_default();
        if *taken > 0 && *taken + len > Self::LEN_MAX {
            return None;
        }
        *taken += len;
        Some(ColdShare { broker: Rc::clone(broker), conn, len })
    }
}

impl Drop for ColdShare {
    fn drop(&mut self) {
        let mut all = self.broker.cold_shares.borrow_mut();
        if let Entry::Occupied(mut taken) = all.entry(self.conn) {
            *taken.get_mut() -= self.len;
            if *taken.get() == 0 {
                taken.remove();
            }
        }
    }
}

fn verdict(later: Option<Later>) -> Verdict {
    later.map_or(Verdict::Done, Verdict::Later)
}

/// When a pull that comes `now` is answered at the latest.
fn deadline(now: Timestamp, header: &PullHeader<'_>) -> Timestamp {
    now.plus_ms(header.suspend_timeout_ms.min(HOLD_MS_MAX))
}

/// Whether the pull stands at its queue's end, so that only a message to come can answer it.
fn waits(pull: &Pull, got: &GetResult) -> bool {
    status::of_get(&got.status, pull.offset).0 == response::PULL_NOT_FOUND && got.next_offset == pull.offset
}

/// The filter that the pull carries, or that its group has registered by heartbeat.
fn filter_of(directory: &Directory, group: &GroupConfig, header: &PullHeader<'_>) -> Result<TagFilter, Obstacle> {
    if header.sys_flag & PullHeader::SUBSCRIPTION != 0 {
        return match Filter::parse(header.expression_type, header.subscription.unwrap_or(ALL)) {
            Ok(Filter::Tags(filter)) => Ok(filter),
            Ok(Filter::Sql92) => {
                refuse(response::SUBSCRIPTION_PARSE_FAILED, "this version cannot evaluate SQL92 expressions")
            }
            Err(error) => refuse(response::SUBSCRIPTION_PARSE_FAILED, error.to_string()),
        };
    }
    let name = header.consumer_group;
    let Some(registered) = directory.subscriptions.get(name) else {
        return refuse(response::SUBSCRIPTION_NOT_EXIST, format!("no member of the group {name} is registered"));
    };
    if registered.message_model == MessageModel::Broadcasting && !group.consume_broadcast_enable {
        return forbid(Forbidden::Broadcast, format!("the group {name} may not consume by broadcast"));
    }
    let Some(subscription) = registered.topics.get(header.topic) else {
        let remark = format!("the group {name} has not subscribed to {}", header.topic);
        return refuse(response::SUBSCRIPTION_NOT_EXIST, remark);
    };
    if subscription.sub_version < header.sub_version {
        let remark =
            format!("the subscription of the group {name} to {} is newer than its last heartbeat", header.topic);
        return refuse(response::SUBSCRIPTION_NOT_LATEST, remark);
    }
    match &subscription.filter {
        Ok(Filter::Tags(filter)) => Ok(filter.clone()),
        Ok(Filter::Sql92) => refuse(response::SYSTEM_ERROR, "this version cannot evaluate SQL92 expressions"),
        Err(error) => refuse(response::SUBSCRIPTION_PARSE_FAILED, error.to_string()),
    }
}

/// The answer's four offsets; Java clients read all of them unasked, whatever the code.
struct Head {
    next: i64,
    min: i64,
    max: i64,
}

impl Head {
    /// Answers if all is in memory.
    fn answer_from_memory(&self, broker: &ShardBroker, pull: &Pull, code: i32, name: &str, found: &Found) -> bool {
        let copied = self.write(|ext| {
            pull.reply.send_with(code, Some(name), ext, found.total_len(), &|out| found.copy_if_resident(out))
        });
        if copied {
            found.note_read(&pull.reader);
            broker.count_get(pull, self.next, found.count() as u64, found.total_len() as u64);
        }
        copied
    }

    fn write<R>(&self, send: impl FnOnce(&[(&str, &str)]) -> R) -> R {
        let mut digits = [itoa::Buffer::new(), itoa::Buffer::new(), itoa::Buffer::new()];
        let [next, min, max] = &mut digits;
        send(&[
            ("maxOffset", max.format(self.max)),
            ("minOffset", min.format(self.min)),
            ("nextBeginOffset", next.format(self.next)),
            ("suggestWhichBrokerId", "0"),
        ])
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::broker::subscription::{GroupSubscription, Subscription};
    use crate::wire::heartbeat::ConsumeType;

    const HEADER: PullHeader<'static> = PullHeader {
        consumer_group: "G",
        topic: "T",
        queue_id: 0,
        queue_offset: 0,
        max_msg_nums: 32,
        sys_flag: 0,
        commit_offset: 0,
        suspend_timeout_ms: 0,
        subscription: None,
        sub_version: 5,
        expression_type: None,
        max_msg_bytes: None,
    };

    fn registered(message_model: MessageModel, expression_type: &str, expression: &str) -> Directory {
        let subscription = Subscription {
            topic: "T".into(),
            expression: expression.to_owned(),
            expression_type: expression_type.to_owned(),
            filter: Filter::parse(Some(expression_type), expression),
            sub_version: 5,
        };
        let topics = HashMap::from([("T".into(), Arc::new(subscription))]);
        let group = GroupSubscription { message_model, consume_type: ConsumeType::Passively, topics };
        Directory { subscriptions: Arc::new(HashMap::from([("G".into(), Arc::new(group))])), ..Directory::default() }
    }

    fn code(directory: &Directory, header: &PullHeader<'_>) -> i32 {
        match filter_of(directory, &GroupConfig::new("G"), header) {
            Ok(_) => response::SUCCESS,
            Err(Obstacle::Refused { code, .. }) => code,
            Err(Obstacle::Needs(_)) => panic!("a filter needs nothing"),
        }
    }

    #[test]
    fn a_pull_is_held_as_long_as_it_asks_but_not_beyond_the_patience_of_any_client() {
        let held_ms =
            |suspend_timeout_ms| deadline(Timestamp(100), &PullHeader { suspend_timeout_ms, ..HEADER }).0 - 100;
        assert_eq!(held_ms(20_000), 20_000);
        assert_eq!(held_ms(600_000), 30_000);
        assert_eq!(held_ms(i64::MAX), 30_000);
    }

    #[test]
    fn a_pull_without_an_expression_is_filtered_as_its_group_registered() {
        let directory = registered(MessageModel::Clustering, "TAG", "A");
        let filter = filter_of(&directory, &GroupConfig::new("G"), &HEADER).ok().unwrap();
        assert!(filter.matches(TagsCode(65)) && !filter.matches(TagsCode(66)));
    }

    #[test]
    fn a_pull_that_its_group_has_not_registered_is_refused() {
        let directory = registered(MessageModel::Clustering, "TAG", "A");
        assert_eq!(code(&Directory::default(), &HEADER), response::SUBSCRIPTION_NOT_EXIST);
        assert_eq!(code(&directory, &PullHeader { topic: "U", ..HEADER }), response::SUBSCRIPTION_NOT_EXIST);
        assert_eq!(code(&directory, &PullHeader { sub_version: 6, ..HEADER }), response::SUBSCRIPTION_NOT_LATEST);
        assert_eq!(code(&directory, &PullHeader { sub_version: 0, ..HEADER }), response::SUCCESS);
    }

    #[test]
    fn broadcasting_needs_a_group_that_allows_it() {
        let directory = registered(MessageModel::Broadcasting, "TAG", "*");
        let group = GroupConfig { consume_broadcast_enable: false, ..GroupConfig::new("G") };
        let refused = filter_of(&directory, &group, &HEADER);
        assert!(matches!(refused, Err(Obstacle::Refused { code: 16, forbidden: Some(Forbidden::Broadcast), .. })));
        let group = GroupConfig { consume_broadcast_enable: true, ..group };
        assert!(filter_of(&directory, &group, &HEADER).is_ok());
    }

    #[test]
    fn an_expression_in_the_pull_beats_the_registered_one_and_needs_no_heartbeat() {
        let inline = PullHeader { sys_flag: PullHeader::SUBSCRIPTION, subscription: Some("A || B"), ..HEADER };
        let filter = filter_of(&Directory::default(), &GroupConfig::new("G"), &inline).ok().unwrap();
        assert!(filter.matches(TagsCode(66)));
        let everything = PullHeader { subscription: None, ..inline };
        assert!(filter_of(&Directory::default(), &GroupConfig::new("G"), &everything).ok().unwrap().all);
    }

    #[test]
    fn expressions_that_cannot_be_evaluated_are_refused() {
        let inline = PullHeader { sys_flag: PullHeader::SUBSCRIPTION, subscription: Some("a >"), ..HEADER };
        let sql = PullHeader { expression_type: Some("SQL92"), ..inline };
        assert_eq!(code(&Directory::default(), &sql), response::SUBSCRIPTION_PARSE_FAILED);
        let unknown = PullHeader { expression_type: Some("XPATH"), ..inline };
        assert_eq!(code(&Directory::default(), &unknown), response::SUBSCRIPTION_PARSE_FAILED);
        assert_eq!(code(&registered(MessageModel::Clustering, "SQL92", "a > 1"), &HEADER), response::SYSTEM_ERROR);
    }
}
