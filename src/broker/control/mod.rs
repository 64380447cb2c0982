//! What is named: topics, groups, their members, consumer offsets, locks, and the name server's tables.
//!
//! [`Control`] is the single owner of all of it and lives on the control core. Shards carry requests here, and everything
//! is decided at once, in order, from tables in memory: no I/O, no clock, no await. What must be on disk is said by
//! [`Dirty`]; the node writes it, lets the shards see it in the [`Directory`] ([`Control::show`]), and then answers.

use std::collections::BTreeSet;
use std::collections::HashMap;
use std::sync::Arc;

use crate::broker::{
    Caller, Directory, Dirty, Filter, Outcome, Profile, Push, QueueMaker, SharedDirectory, Topic, Upkeep, not_supported,
};
use crate::broker::{names, subscription};
use crate::format::config_files::{ConsumerOffsetsFile, GroupConfig, SubscriptionGroupsFile, TopicsFile};
use crate::store::{Births, QueueView};
use crate::types::{PhyOffset, Timestamp};
use crate::wire::client_config::ClientConfigCheck;
use crate::wire::code::{request, response};
use crate::wire::headers::{
    BrokerHeader, CreateTopicHeader, GroupHeader, KvHeader, NamespaceHeader, QueryOffsetHeader, TopicHeader,
    UnregisterHeader, UpdateOffsetHeader,
};
use crate::wire::heartbeat::{ConsumerEntry, Heartbeat, MessageModel};
use crate::wire::lists::{ConsumerList, KvTable, TopicList};
use crate::wire::lock::{LockRequest, LockResponse};
use crate::wire::registration::BrokerRegistration;
use crate::wire::{BodyError, Command, ConnId, FieldError, Response};

mod attributes;
mod census;
mod groups;
mod kv_config;
mod locks;
mod members;
mod name_server;
mod offsets;
mod registration;
mod topics;

pub use census::{Census, CountsOn, OTHER_NAME, Reading};
pub use groups::NoGroup;
pub use kv_config::KvConfig;
pub use registration::{NameServerRequest, RegistrationTooLong};
pub use topics::NoTopic;

use groups::GroupTable;
use locks::Locks;
use members::Members;
use name_server::NameServer;
use offsets::ConsumerOffsets;
use topics::TopicTable;

/// Longest client id, and longest name of a producer group (which becomes neither file nor folder).
const CLIENT_TEXT_LEN_MAX: usize = 1_024;

/// Deleted topics to remember: each as long as the log has older records than its deletion.
const BIRTH_COUNT_MAX: usize = 100_000;

/// Checked settings; plain values.
#[derive(Clone, Debug)]
pub struct ControlSettings {
    pub profile: Profile,
    pub broker_name: String,
    pub cluster: String,
    /// `host:port` that clients dial.
    pub broker_address: String,
    /// `host:port` that slaves dial.
    pub ha_address: String,
    /// Queues of the topic that new topics are modelled on.
    pub default_topic_queue_nums: i32,
    pub auto_create_topic: bool,
    pub auto_create_group: bool,
    /// Make the topic for message traces at start, and not when the first trace is sent.
    pub trace_topic: bool,
}

impl ControlSettings {
    /// The broker's own topics whose names follow from the settings: of the cluster, the broker, and for replies.
    fn named_topics(&self) -> [String; 3] {
        [self.cluster.clone(), self.broker_name.clone(), format!("{}_REPLY_TOPIC", self.cluster)]
    }
}

/// The tables as the files of `config/` hold them; empty where there is no file.
#[derive(Clone, Debug, Default)]
pub struct LoadedTables {
    pub topics: TopicsFile,
    pub groups: SubscriptionGroupsFile,
    pub consumer_offsets: ConsumerOffsetsFile,
    pub kv_config: KvConfig,
    pub births: Births,
}

/// See the module.
pub struct Control {
    settings: ControlSettings,
    topics: TopicTable,
    groups: GroupTable,
    members: Members,
    offsets: ConsumerOffsets,
    locks: Locks,
    name_server: NameServer,
    kv_config: KvConfig,
    births: Arc<Births>,
    /// Those on disk.
    saved_births: Arc<Births>,
    directory: SharedDirectory,
    /// The topics that the directory shows: those that are on disk.
    shown: Topics,
}

/// The topics at one moment: what a save wrote, and what the directory may show once it has.
pub type Topics = Arc<HashMap<Arc<str>, Arc<Topic>>>;

/// The answer to a request that was not carried out.
struct Refused(Response);

impl From<Response> for Refused {
    fn from(response: Response) -> Refused {
        Refused(response)
    }
}

impl From<FieldError> for Refused {
    fn from(error: FieldError) -> Refused {
        Refused(Response::fail(response::SYSTEM_ERROR, error.to_string()))
    }
}

impl From<BodyError> for Refused {
    fn from(error: BodyError) -> Refused {
        Refused(Response::fail(response::SYSTEM_ERROR, error.to_string()))
    }
}

/// What a request does beside its answer.
#[derive(Default)]
struct Effects {
    pushes: Vec<Push>,
    dirty: Dirty,
    upkeep: Option<Upkeep>,
    deletes: Option<String>,
}

type Answer = Result<Response, Refused>;

fn fail(code: i32, remark: impl Into<String>) -> Refused {
    Refused(Response::fail(code, remark))
}

impl Control {
    /// The tables as loaded, with what the broker brings along; `directory` holds them when this returns.
    pub fn new(
        settings: ControlSettings,
        loaded: LoadedTables,
        queues: Box<dyn QueueMaker>,
        directory: SharedDirectory,
    ) -> Control {
        let topics = TopicTable::new(&settings, loaded.topics, queues);
        let groups = GroupTable::new(loaded.groups, settings.auto_create_group);
        let births = Arc::new(loaded.births);
        let control = Control {
            shown: Arc::clone(topics.shared()),
            topics,
            groups,
            members: Members::default(),
            offsets: ConsumerOffsets::new(loaded.consumer_offsets),
            locks: Locks::default(),
            name_server: NameServer::default(),
            kv_config: loaded.kv_config,
            saved_births: Arc::clone(&births),
            births,
            settings,
            directory,
        };
        control.publish();
        control
    }

    /// Carries out a request of the broker role (14, 15, 17, 34, 35, 38, 41, 42, 46, 215, 306, 329, 351, 352) or the name server role
    /// (100 to 106, 206, 216, 219, 904); any other gets code 3. To a oneway request the caller sends no answer.
    pub fn handle(&mut self, now: Timestamp, from: &Caller, command: &Command<'_>) -> Outcome {
        let mut effects = Effects::default();
        let answer = match command.code {
            request::QUERY_CONSUMER_OFFSET => self.query_offset(command),
            request::UPDATE_CONSUMER_OFFSET => self.update_offset(now, command),
            request::UPDATE_AND_CREATE_TOPIC => self.update_topic(now, command, &mut effects),
            request::DELETE_TOPIC_IN_BROKER => self.delete_topic(command, &mut effects),
            request::DELETE_TOPIC_IN_NAMESRV => self.delete_route(command),
            request::HEART_BEAT => self.heartbeat(now, from, command, &mut effects),
            request::UNREGISTER_CLIENT => self.unregister_client(from, command, &mut effects),
            request::GET_CONSUMER_LIST_BY_GROUP => self.consumer_list(command),
            request::LOCK_BATCH_MQ => self.lock(now, command),
            request::UNLOCK_BATCH_MQ => self.unlock(command),
            request::CHECK_CLIENT_CONFIG => check_client_config(command),
            request::GET_TOPIC_CONFIG => self.topic_config(command),
            request::GET_SUBSCRIPTIONGROUP_CONFIG => self.group_config(command),
            request::DELETE_EXPIRED_COMMITLOG => {
                effects.upkeep = Some(Upkeep::DeleteExpired);
                Ok(Response::ok())
            }
            request::CLEAN_EXPIRED_CONSUMEQUEUE => {
                effects.upkeep = Some(Upkeep::TrimQueues);
                Ok(Response::ok())
            }
            request::PUT_KV_CONFIG => self.put_kv(command, &mut effects),
            request::GET_KV_CONFIG => self.get_kv(command),
            request::DELETE_KV_CONFIG => self.delete_kv(command, &mut effects),
            request::REGISTER_BROKER => self.register_broker(now, from, command),
            request::UNREGISTER_BROKER => self.unregister_broker(command),
            request::BROKER_HEARTBEAT => self.broker_heartbeat(now, command),
            request::GET_ROUTEINFO_BY_TOPIC => self.route(command),
            request::GET_BROKER_CLUSTER_INFO => {
                Ok(Response::ok().body(self.name_server.clusters(&self.settings).encode()))
            }
            request::GET_ALL_TOPIC_LIST_FROM_NAMESERVER => {
                let list = TopicList { topics: self.name_server.topic_names(&self.topics) };
                Ok(Response::ok().body(list.encode()))
            }
            request::GET_KVLIST_BY_NAMESPACE => self.kv_namespace(command),
            code => Err(Refused(not_supported(code))),
        };
        let response = answer.unwrap_or_else(|Refused(response)| response);
        self.publish();
        let Effects { pushes, dirty, upkeep, deletes } = effects;
        Outcome { response, pushes, dirty, upkeep, deletes }
    }

    /// Makes the topic that a send names, if there is a template for it (remoting.md 6.2). The node calls this when a
    /// shard wants the topic, persists what is dirty, and gives the shard the frame again.
    ///
    /// # Errors
    /// [`NoTopic`]; the shard then answers as for a topic that does not exist.
    pub fn ensure_topic_for_send(
        &mut self,
        now: Timestamp,
        topic: &str,
        default_topic: &str,
        default_queue_nums: i32,
        unit_mode: bool,
    ) -> Result<Dirty, NoTopic> {
        let made =
            self.topics.ensure_for_send(now, &self.settings, topic, default_topic, default_queue_nums, unit_mode)?;
        self.publish();
        Ok(if made { Dirty::TOPICS } else { Dirty::default() })
    }

    /// Makes the retry topic of a group that exists, with as many queues as the group says.
    ///
    /// # Errors
    /// [`NoTopic`].
    pub fn ensure_retry_topic(&mut self, now: Timestamp, group: &str) -> Result<Dirty, NoTopic> {
        let config = self.existing_group(group)?;
        let made = self.ensure_retry_topic_of(now, &config, false, false)?;
        self.publish();
        Ok(made)
    }

    /// Makes the dead-letter topic of a group that exists.
    ///
    /// # Errors
    /// [`NoTopic`].
    pub fn ensure_dlq_topic(&mut self, now: Timestamp, group: &str) -> Result<Dirty, NoTopic> {
        const DLQ_QUEUES: i32 = 1;
        self.existing_group(group)?;
        let made = self.topics.ensure_of_group(now, &names::dlq_topic(group), DLQ_QUEUES, false, false)?;
        self.publish();
        Ok(if made { Dirty::TOPICS } else { Dirty::default() })
    }

    /// Makes a group that a pull or a send back names.
    ///
    /// # Errors
    /// [`NoGroup`]: the request gets code 26.
    pub fn ensure_group(&mut self, now: Timestamp, group: &str) -> Result<Dirty, NoGroup> {
        let made = self.groups.ensure(now, group)?;
        self.publish();
        Ok(if made { Dirty::GROUPS } else { Dirty::default() })
    }

    /// Sets a consumer offset that came with a pull, whose group, topic and queue the shard has checked. A negative one
    /// stands for "none yet" and is ignored, and so is one for which the table has no room.
    pub fn commit_offset(&mut self, now: Timestamp, group: &str, topic: &str, queue_id: i32, offset: i64) {
        // It may have been on its way while its topic was deleted.
        if !self.topics.contains(topic) {
            return;
        }
        if offset >= 0 && self.offsets.update(now, group, topic, queue_id, offset).is_err() {
            tracing::warn!(group, topic, queue_id, "no room for one more consumer offset");
        }
    }

    /// Takes a closed connection out of all groups and forgets the brokers that registered on it. Must be called at
    /// once: for some clients this is the only way to leave.
    pub fn connection_closed(&mut self, conn: ConnId) -> Vec<Push> {
        self.name_server.connection_closed(conn);
        let mut pushes = Vec::new();
        for group in self.members.connection_closed(conn) {
            self.notify_left(&group, &mut pushes);
        }
        self.publish();
        pushes
    }

    /// To be called every 10 s: gives the connections to close, of clients and brokers not heard of for too long (they
    /// are out of the tables already), and what to send to those left. Also forgets expired locks.
    pub fn scan_idle(&mut self, now: Timestamp) -> (Vec<ConnId>, Vec<Push>) {
        let mut to_close = self.members.silent(now);
        let mut left = BTreeSet::new();
        for conn in &to_close {
            tracing::info!(shard = conn.shard.0, connection = conn.seq, "no heartbeat for too long");
            left.extend(self.members.connection_closed(*conn));
        }
        let mut pushes = Vec::new();
        left.iter().for_each(|group| self.notify_left(group, &mut pushes));
        to_close.extend(self.name_server.expire(now));
        to_close.sort_unstable();
        to_close.dedup();
        self.locks.sweep(now);
        self.publish();
        (to_close, pushes)
    }

    /// Content of `topics.json`.
    pub fn encode_topics(&self) -> Vec<u8> {
        self.topics.encode()
    }

    /// Content of `subscriptionGroup.json`.
    pub fn encode_groups(&self) -> Vec<u8> {
        self.groups.encode()
    }

    /// Content of `consumerOffset.json`.
    pub fn encode_consumer_offsets(&self) -> Vec<u8> {
        self.offsets.encode()
    }

    /// Consumer offsets set since the start: `consumerOffset.json` is behind if the count has grown since it was written.
    pub fn consumer_offset_updates(&self) -> u64 {
        self.offsets.updates()
    }

    /// Content of the name server's settings file.
    pub fn encode_kv_config(&self) -> Vec<u8> {
        self.kv_config.encode()
    }

    /// What outside name servers are to be told now.
    ///
    /// # Errors
    /// [`RegistrationTooLong`].
    pub fn registration(&self) -> Result<NameServerRequest, RegistrationTooLong> {
        registration::register(&self.settings, &self.topics)
    }

    /// What outside name servers are to be told when the node stops.
    pub fn unregistration(&self) -> NameServerRequest {
        registration::unregister(&self.settings)
    }

    // Consumer offsets

    fn query_offset(&self, command: &Command<'_>) -> Answer {
        let header = QueryOffsetHeader::read(command)?;
        let stored = self.offsets.get(header.group, header.topic, header.queue_id);
        if let Some(offset) = stored.filter(|offset| *offset >= 0) {
            return Ok(Response::ok().with("offset", offset));
        }
        if header.set_zero_if_not_found == Some(false) || !self.starts_at_zero(header.topic, header.queue_id) {
            let remark = "the group has no offset in this queue; it may start where its settings say";
            return Err(fail(response::QUERY_NOT_FOUND, remark));
        }
        Ok(Response::ok().with("offset", 0))
    }

    /// Whether a new group starts a queue at its first message whatever its own settings say: as long as that message
    /// is there and young, or there is none. All clients rely on this (remoting.md 3.3, rule b).
    fn starts_at_zero(&self, topic: &str, queue_id: i32) -> bool {
        let Some(topic) = self.topics.get(topic) else { return true };
        let Some(queue) = usize::try_from(queue_id).ok().and_then(|id| topic.queues.get(id)) else { return true };
        queue.min().0 == 0 && (queue.max().0 == 0 || self.topics.starts_in_memory(queue))
    }

    fn update_offset(&mut self, now: Timestamp, command: &Command<'_>) -> Answer {
        let invalid = self.settings.profile.invalid_parameter();
        let header = UpdateOffsetHeader::read(command).map_err(|error| fail(invalid, error.to_string()))?;
        let UpdateOffsetHeader { group, topic, queue_id, commit_offset } = header;
        match self.settings.profile {
            Profile::V5 => {
                if self.groups.get(group).is_none() {
                    let remark = format!("consumer group {group} does not exist");
                    return Err(fail(response::SUBSCRIPTION_GROUP_NOT_EXIST, remark));
                }
                let Some(found) = self.topics.get(topic) else { return Err(no_topic(topic)) };
                if !usize::try_from(queue_id).is_ok_and(|id| id < found.queues.len()) {
                    return Err(fail(invalid, format!("topic {topic} has no queue {queue_id}")));
                }
            }
            // 4.9 takes offsets of groups and topics that it does not know; of names that cannot be, not even that.
            Profile::V4_9 => {
                if self.births.contains(topic) && !self.topics.contains(topic) {
                    // Its consumers go on for a while; a new topic of that name is none of theirs.
                    return Ok(Response::ok());
                }
                let bad = names::check_group(group).and_then(|()| names::check_topic(topic)).err();
                if let Some(bad) = bad.filter(|_| self.groups.get(group).is_none() || !self.topics.contains(topic)) {
                    return Err(fail(invalid, bad.to_string()));
                }
                if queue_id < 0 {
                    return Err(fail(invalid, format!("queue {queue_id} cannot be")));
                }
            }
        }
        if commit_offset < 0 {
            return Err(fail(invalid, format!("the offset {commit_offset} is negative")));
        }
        self.offsets
            .update(now, group, topic, queue_id, commit_offset)
            .map_err(|offsets::OffsetsFull| fail(response::SYSTEM_ERROR, "no room for one more consumer offset"))?;
        Ok(Response::ok())
    }

    // Topics and groups

    fn update_topic(&mut self, now: Timestamp, command: &Command<'_>, effects: &mut Effects) -> Answer {
        let header = CreateTopicHeader::read(command)?;
        effects.dirty.topics |= self.topics.update(now, &self.settings, &header)?;
        Ok(Response::ok())
    }

    fn delete_topic(&mut self, command: &Command<'_>, effects: &mut Effects) -> Answer {
        let TopicHeader { topic } = TopicHeader::read(command)?;
        let invalid = self.settings.profile.invalid_parameter();
        if topic.trim().is_empty() {
            return Err(fail(invalid, "the topic name is blank"));
        }
        if names::is_system_topic(topic) || self.settings.named_topics().iter().any(|own| own == topic) {
            return Err(fail(invalid, format!("the topic {topic} belongs to the broker")));
        }
        if self.topics.can_be_deleted(topic) {
            if self.births.count() >= BIRTH_COUNT_MAX && !self.births.contains(topic) {
                let remark = format!("{BIRTH_COUNT_MAX} topics were deleted whose messages the log still has");
                return Err(fail(response::SYSTEM_ERROR, remark));
            }
            effects.deletes = Some(topic.to_owned());
        }
        Ok(Response::ok())
    }

    /// Where a topic is on other brokers is forgotten until they tell of it again; what this node has, its own table says.
    fn delete_route(&mut self, command: &Command<'_>) -> Answer {
        let TopicHeader { topic } = TopicHeader::read(command)?;
        self.name_server.forget_topic(topic, command.ext.opt_text("clusterName"));
        Ok(Response::ok())
    }

    fn topic_config(&self, command: &Command<'_>) -> Answer {
        let TopicHeader { topic } = TopicHeader::read(command)?;
        let Some(found) = self.topics.get(topic) else { return Err(no_topic(topic)) };
        Ok(Response::ok().body(found.config.to_json().to_string()))
    }

    fn group_config(&self, command: &Command<'_>) -> Answer {
        let GroupHeader { group } = GroupHeader::read(command)?;
        let Some(config) = self.groups.get(group) else {
            let remark = format!("consumer group {group} does not exist");
            return Err(fail(response::SUBSCRIPTION_GROUP_NOT_EXIST, remark));
        };
        Ok(Response::ok().body(config.to_json().to_string()))
    }

    fn existing_group(&self, group: &str) -> Result<Arc<GroupConfig>, NoTopic> {
        self.groups.get(group).cloned().ok_or_else(|| NoTopic::NoGroup { group: group.to_owned() })
    }

    /// Groups that want no retry topic (no queues for it) get none.
    fn ensure_retry_topic_of(
        &mut self,
        now: Timestamp,
        group: &GroupConfig,
        order: bool,
        unit_mode: bool,
    ) -> Result<Dirty, NoTopic> {
        if group.retry_queue_nums <= 0 {
            return Ok(Dirty::default());
        }
        let topic = names::retry_topic(&group.group_name);
        let made = self.topics.ensure_of_group(now, &topic, group.retry_queue_nums, order, unit_mode)?;
        Ok(if made { Dirty::TOPICS } else { Dirty::default() })
    }

    // Members

    fn heartbeat(&mut self, now: Timestamp, from: &Caller, command: &Command<'_>, effects: &mut Effects) -> Answer {
        let beat = Heartbeat::decode(command.body)?;
        let client = beat.client_id.as_str();
        if client.len() > CLIENT_TEXT_LEN_MAX {
            let remark = format!("the client id has {} bytes, {CLIENT_TEXT_LEN_MAX} are allowed", client.len());
            return Err(fail(response::SYSTEM_ERROR, remark));
        }
        for group in beat.producers.iter().filter(|group| group.len() <= CLIENT_TEXT_LEN_MAX) {
            self.members.producer_beat(now, from.conn, client, group);
        }
        for entry in &beat.consumers {
            self.consumer_beat(now, from.conn, client, entry, effects);
        }
        Ok(Response::ok())
    }

    /// One group of a heartbeat. A group that cannot be is left out and the others are served: the client would not
    /// know what to make of an error.
    fn consumer_beat(
        &mut self,
        now: Timestamp,
        conn: ConnId,
        client: &str,
        entry: &ConsumerEntry,
        effects: &mut Effects,
    ) {
        match self.groups.ensure(now, &entry.group) {
            Ok(made) => effects.dirty.groups |= made,
            Err(why) => {
                tracing::debug!(group = entry.group, %why, "group of a heartbeat left out");
                return;
            }
        }
        let Some(config) = self.groups.get(&entry.group).cloned() else { return };
        let is_order = |topic: &str| self.topics.get(topic).is_some_and(|topic| topic.config.order);
        let order = entry.subscriptions.iter().any(|asked| is_order(&asked.topic));
        match self.ensure_retry_topic_of(now, &config, order, entry.unit_mode) {
            Ok(made) => effects.dirty |= made,
            Err(why) => tracing::debug!(group = entry.group, %why, "no retry topic"),
        }
        if self.members.consumer_beat(now, conn, client, entry) {
            self.notify(&entry.group, entry.message_model, &mut effects.pushes);
        }
    }

    fn unregister_client(&mut self, from: &Caller, command: &Command<'_>, effects: &mut Effects) -> Answer {
        let header = UnregisterHeader::read(command)?;
        if let Some(group) = header.producer_group {
            self.members.producer_leaves(from.conn, group);
        }
        if let Some(group) = header.consumer_group
            && self.members.consumer_leaves(from.conn, group)
        {
            self.notify_left(group, &mut effects.pushes);
        }
        Ok(Response::ok())
    }

    fn consumer_list(&self, command: &Command<'_>) -> Answer {
        let GroupHeader { group } = GroupHeader::read(command)?;
        let client_ids: Vec<String> = self.members.consumer_ids(group).into_iter().map(str::to_owned).collect();
        if client_ids.is_empty() {
            return Err(fail(response::SYSTEM_ERROR, format!("no consumer of group {group} is online")));
        }
        Ok(Response::ok().body(ConsumerList { client_ids }.encode()))
    }

    /// Tells those left in a group that somebody has gone.
    fn notify_left(&self, group: &str, pushes: &mut Vec<Push>) {
        if let Some(subscription) = self.members.subscriptions().get(group) {
            self.notify(group, subscription.message_model, pushes);
        }
    }

    /// Tells all members of a group to share the queues out again. Members of a broadcasting group share nothing.
    fn notify(&self, group: &str, message_model: MessageModel, pushes: &mut Vec<Push>) {
        let wanted = self.groups.get(group).is_none_or(|config| config.notify_consumer_ids_changed_enable);
        if message_model == MessageModel::Broadcasting || !wanted {
            return;
        }
        let ext = vec![("consumerGroup".to_owned(), group.to_owned())];
        let code = request::NOTIFY_CONSUMER_IDS_CHANGED;
        pushes.extend(self.members.consumers(group).map(|to| Push { to, code, ext: ext.clone() }));
    }

    // Locks

    fn lock(&mut self, now: Timestamp, command: &Command<'_>) -> Answer {
        let LockRequest { client_id, group, queues, .. } = LockRequest::decode(command.body)?;
        let locked = self.locks.lock(now, &group, &client_id, queues);
        Ok(Response::ok().body(LockResponse { locked }.encode()))
    }

    fn unlock(&mut self, command: &Command<'_>) -> Answer {
        let LockRequest { client_id, group, queues, .. } = LockRequest::decode(command.body)?;
        self.locks.unlock(&group, &client_id, &queues);
        Ok(Response::ok())
    }

    // Name server

    fn route(&self, command: &Command<'_>) -> Answer {
        let TopicHeader { topic } = TopicHeader::read(command)?;
        let Some(route) = self.name_server.route(&self.settings, &self.topics, topic) else {
            return Err(fail(response::TOPIC_NOT_EXIST, format!("no broker has the topic {topic}")));
        };
        Ok(Response::ok().body(route.encode()))
    }

    fn register_broker(&mut self, now: Timestamp, from: &Caller, command: &Command<'_>) -> Answer {
        let header = BrokerHeader::read(command)?;
        if header.body_crc != 0 && header.body_crc as u32 != crate::format::record::body_crc(command.body) {
            return Err(fail(response::SYSTEM_ERROR, "crc32 not match"));
        }
        let told = match command.body {
            [] => BrokerRegistration::default(),
            body if header.compressed => BrokerRegistration::decode_compressed(body)?,
            body => BrokerRegistration::decode(body)?,
        };
        let registered = self
            .name_server
            .register(now, from.conn, &self.settings, &header, &told.topics)
            .map_err(|why| fail(response::SYSTEM_ERROR, why.to_string()))?;
        let mut response = Response::ok();
        if let Some(address) = registered.ha_address {
            response = response.with("haServerAddr", address);
        }
        if let Some(address) = registered.master_address {
            response = response.with("masterAddr", address);
        }
        if let Some(table) = self.kv_config.namespace(kv_config::ORDER_TOPIC_NAMESPACE) {
            response = response.body(KvTable { table: table.clone() }.encode());
        }
        Ok(response)
    }

    fn unregister_broker(&mut self, command: &Command<'_>) -> Answer {
        self.name_server.unregister(&BrokerHeader::read(command)?);
        Ok(Response::ok())
    }

    fn broker_heartbeat(&mut self, now: Timestamp, command: &Command<'_>) -> Answer {
        self.name_server.heartbeat(now, &BrokerHeader::read(command)?);
        Ok(Response::ok())
    }

    fn put_kv(&mut self, command: &Command<'_>, effects: &mut Effects) -> Answer {
        let KvHeader { namespace, key, value } = KvHeader::read(command)?;
        let value = value.ok_or(FieldError::Missing { name: "value" })?;
        let changed = self.kv_config.put(namespace, key, value);
        effects.dirty.kv_config |= changed.map_err(|full| fail(response::SYSTEM_ERROR, full.to_string()))?;
        Ok(Response::ok())
    }

    fn get_kv(&self, command: &Command<'_>) -> Answer {
        let KvHeader { namespace, key, .. } = KvHeader::read(command)?;
        match self.kv_config.get(namespace, key) {
            Some(value) => Ok(Response::ok().with("value", value)),
            None => Err(fail(response::QUERY_NOT_FOUND, format!("namespace {namespace} has no {key}"))),
        }
    }

    fn delete_kv(&mut self, command: &Command<'_>, effects: &mut Effects) -> Answer {
        let KvHeader { namespace, key, .. } = KvHeader::read(command)?;
        effects.dirty.kv_config |= self.kv_config.delete(namespace, key);
        Ok(Response::ok())
    }

    fn kv_namespace(&self, command: &Command<'_>) -> Answer {
        let NamespaceHeader { namespace } = NamespaceHeader::read(command)?;
        match self.kv_config.namespace(namespace) {
            Some(table) => Ok(Response::ok().body(KvTable { table: table.clone() }.encode())),
            None => Err(fail(response::QUERY_NOT_FOUND, format!("there is no namespace {namespace}"))),
        }
    }

    /// The topics as they are now, for who saves them: once they are on disk, [`Control::show`] them.
    pub fn topics(&self) -> Topics {
        Arc::clone(self.topics.shared())
    }

    /// Begins to delete a topic: shards and clients see it no more, and it cannot be made again until
    /// [`Control::end_deletion`]. Gives its queues, which the store is to take no more messages for; then
    /// [`Control::retired`]. What has failed on the way may begin again. `None`: there is no such topic.
    pub fn begin_deletion(&mut self, topic: &str) -> Option<Vec<Arc<QueueView>>> {
        let queues = self.topics.begin_deletion(topic)?;
        if self.shown.contains_key(topic) {
            Arc::make_mut(&mut self.shown).remove(topic);
        }
        self.publish();
        Some(queues)
    }

    /// The store takes no more messages of a topic that is being deleted, and all it has lie below `birth`; the log begins
    /// at `log_min`. Its settings and its groups' offsets go, which is to be saved; then [`Control::retire_queues`].
    pub fn retired(&mut self, now: Timestamp, topic: &str, birth: PhyOffset, log_min: PhyOffset) -> Dirty {
        let version = self.topics.leave(now, topic);
        let births = Arc::make_mut(&mut self.births);
        births.forget_before(log_min);
        births.set(topic, birth, version.counter);
        self.offsets.remove_topic(now, topic);
        tracing::info!(topic, %birth, "topic deleted");
        self.publish();
        Dirty::TOPICS
    }

    /// The deletion is on disk: the next queues of these names are others.
    pub fn retire_queues(&mut self, topic: &str) {
        self.topics.retire_queues(topic);
    }

    /// Nothing is left of the topic where a new one of its name would find it.
    pub fn end_deletion(&mut self, topic: &str) {
        self.topics.end_deletion(topic);
    }

    /// Births that are not on disk. They have to be before topics.json is written.
    pub fn unsaved_births(&self) -> Option<Arc<Births>> {
        (!Arc::ptr_eq(&self.births, &self.saved_births)).then(|| Arc::clone(&self.births))
    }

    /// These are on disk.
    pub fn births_saved(&mut self, saved: Arc<Births>) {
        self.saved_births = saved;
    }

    /// Lets the shards see topics that are on disk. Not before: a message in a topic that a crash forgets would be
    /// acknowledged and out of sight. Groups are seen at once: one that is forgotten comes back with its next pull.
    pub fn show(&mut self, saved: Topics) {
        self.shown = saved;
        // Deleted since.
        for topic in self.topics.leaving() {
            if self.shown.contains_key(topic) {
                Arc::make_mut(&mut self.shown).remove(topic);
            }
        }
        self.publish();
    }

    /// Topics that were made or changed and are not shown: a save of them is still to come, under way, or has failed.
    pub fn unshown(&self) -> Dirty {
        if Arc::ptr_eq(&self.shown, self.topics.shared()) { Dirty::default() } else { Dirty::TOPICS }
    }

    /// Replaces the published picture if a table in it has changed. A changed table is always another allocation, since
    /// the published picture holds on to the one before.
    fn publish(&self) {
        let published = self.directory.load();
        let same = Arc::ptr_eq(&published.topics, &self.shown)
            && Arc::ptr_eq(&published.groups, self.groups.shared())
            && Arc::ptr_eq(&published.subscriptions, self.members.subscriptions())
            && Arc::ptr_eq(&published.locked_until, self.locks.until())
            && Arc::ptr_eq(&published.births, &self.births);
        if !same {
            self.directory.store(Arc::new(Directory {
                topics: Arc::clone(&self.shown),
                groups: Arc::clone(self.groups.shared()),
                subscriptions: Arc::clone(self.members.subscriptions()),
                locked_until: Arc::clone(self.locks.until()),
                births: Arc::clone(&self.births),
            }));
        }
    }
}

fn no_topic(topic: &str) -> Refused {
    fail(response::TOPIC_NOT_EXIST, format!("topic {topic} does not exist"))
}

/// A consumer whose filter is no tag asks before its first heartbeat, and does not start on anything but success.
fn check_client_config(command: &Command<'_>) -> Answer {
    if command.body.is_empty() {
        return Ok(Response::ok());
    }
    let asked = ClientConfigCheck::decode(command.body)?.subscription;
    match Filter::parse(Some(&asked.expression_type), &asked.expression) {
        Ok(Filter::Tags(_)) => Ok(Response::ok()),
        Ok(Filter::Sql92) => Err(fail(response::SYSTEM_ERROR, subscription::SQL92_UNSUPPORTED)),
        Err(bad) => Err(fail(response::SUBSCRIPTION_PARSE_FAILED, bad.to_string())),
    }
}

#[cfg(test)]
mod tests;
