//! The table of topics: those the broker brings along, those it was told to make, and those that sends call for.
//!
//! Source: remoting.md 3.10, 6.2, 6.3; store.md 1.6, 10.6.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use crate::broker::control::ControlSettings;
use crate::broker::control::attributes;
use crate::broker::names::{self, BadName};
use crate::broker::{FLUSH_ATTRIBUTE, QueueMaker, Topic};
use crate::format::config_files::{DataVersion, TopicConfig, TopicFilterType, TopicsFile};
use crate::store::QueueView;
use crate::types::{QueueKey, Timestamp};
use crate::wire::Response;
use crate::wire::code::response::SYSTEM_ERROR;
use crate::wire::headers::CreateTopicHeader;

/// Queues one topic may have. Each costs memory as soon as the topic exists, so a request must not choose freely.
const QUEUES_PER_TOPIC_MAX: i32 = 16_384;
/// Topics there may be. Any client can make topics by sending, and outside name servers are told all of them at once.
const TOPIC_COUNT_MAX: usize = 50_000;
/// Queues of all topics together.
const QUEUE_COUNT_MAX: usize = 1_000_000;
/// Queues that may be deleted while the node runs: a few hundred bytes of each stay until it ends.
const GONE_COUNT_MAX: usize = 4_000_000;
/// All permission bits that there are.
const PERM_MAX: i32 =
    TopicConfig::PERM_INHERIT | TopicConfig::PERM_WRITE | TopicConfig::PERM_READ | TopicConfig::PERM_PRIORITY;
const READ_WRITE: i32 = TopicConfig::PERM_READ | TopicConfig::PERM_WRITE;
/// One queue for each delay level.
const SCHEDULE_QUEUES: i32 = 18;
/// Set in the flags of a topic that was made for unit mode, and of a retry topic of such a group.
const UNIT: i32 = 1;
const UNIT_SUBSCRIPTION: i32 = 2;

pub(super) struct TopicTable {
    topics: Arc<HashMap<Arc<str>, Arc<Topic>>>,
    /// Found in topics.json under names that cannot be used; kept only to be written back.
    set_aside: BTreeMap<String, TopicConfig>,
    /// Topics that are being deleted; with their settings those that topics.json still has.
    leaving: BTreeMap<String, Option<TopicConfig>>,
    data_version: DataVersion,
    queue_count: usize,
    /// Queues deleted since the start.
    pub(super) gone_count: usize,
    queues: Box<dyn QueueMaker>,
}

impl TopicTable {
    /// The built-in topics with those of the file over them.
    pub(super) fn new(settings: &ControlSettings, file: TopicsFile, queues: Box<dyn QueueMaker>) -> TopicTable {
        let mut table = TopicTable {
            topics: Arc::default(),
            set_aside: BTreeMap::new(),
            leaving: BTreeMap::new(),
            data_version: file.data_version,
            queue_count: 0,
            gone_count: 0,
            queues,
        };
        let mut all = built_in(settings);
        all.extend(file.topics);
        if !settings.auto_create_topic {
            // Name servers must answer that it is unknown: then clients fail at once instead of asking to create.
            all.remove(names::DEFAULT_TOPIC);
        }
        for (name, mut config) in all {
            if !names::is_storable(&name) {
                tracing::warn!(
                    topic = name,
                    "the topic's name cannot be a folder; it is kept in topics.json, not served"
                );
                table.set_aside.insert(name, config);
                continue;
            }
            if name == names::SCHEDULE_TOPIC {
                config.read_queue_nums = config.read_queue_nums.max(SCHEDULE_QUEUES);
                config.write_queue_nums = config.write_queue_nums.max(SCHEDULE_QUEUES);
            }
            if let Some(value) =
                config.attributes.get(FLUSH_ATTRIBUTE).filter(|value| !matches!(value.as_str(), "sync" | "async"))
            {
                tracing::warn!(
                    topic = name,
                    value,
                    "topics.json: the topic's attribute flush is neither sync nor async; the node's default counts"
                );
            }
            table.put(config);
        }
        table
    }

    /// The shared table behind [`Directory::topics`](crate::broker::Directory::topics).
    pub(super) fn shared(&self) -> &Arc<HashMap<Arc<str>, Arc<Topic>>> {
        &self.topics
    }

    pub(super) fn get(&self, topic: &str) -> Option<&Arc<Topic>> {
        self.topics.get(topic)
    }

    pub(super) fn contains(&self, topic: &str) -> bool {
        self.topics.contains_key(topic)
    }

    pub(super) fn data_version(&self) -> DataVersion {
        self.data_version
    }

    /// See [`QueueMaker::starts_in_memory`].
    pub(super) fn starts_in_memory(&self, queue: &Arc<QueueView>) -> bool {
        self.queues.starts_in_memory(queue)
    }

    /// Content of `topics.json`.
    pub(super) fn encode(&self) -> Vec<u8> {
        let served = self.topics.iter().map(|(name, topic)| (name.to_string(), topic.config.clone()));
        let set_aside = self.set_aside.iter().map(|(name, config)| (name.clone(), config.clone()));
        let leaving = self.leaving.iter().filter_map(|(name, config)| Some((name.clone(), config.clone()?)));
        TopicsFile { topics: served.chain(set_aside).chain(leaving).collect(), data_version: self.data_version }
            .encode()
    }

    /// Carries out request 17; false: all was so already.
    ///
    /// # Errors
    /// The answer that says why not.
    pub(super) fn update(
        &mut self,
        now: Timestamp,
        settings: &ControlSettings,
        header: &CreateTopicHeader<'_>,
    ) -> Result<bool, Response> {
        let invalid = |why: String| Response::fail(settings.profile.invalid_parameter(), why);
        let name = header.topic;
        names::check_topic(name).map_err(|bad| invalid(bad.to_string()))?;
        if names::is_system_topic(name) || settings.named_topics().iter().any(|own| own == name) {
            return Err(invalid(format!("the topic {name} belongs to the broker")));
        }
        let filter_type = match header.filter_type {
            None => TopicFilterType::SingleTag,
            Some(text) => TopicFilterType::of_name(text)
                .ok_or_else(|| invalid(format!("topicFilterType {text:?} is neither SINGLE_TAG nor MULTI_TAG")))?,
        };
        for (field, count) in [("readQueueNums", header.read_queues), ("writeQueueNums", header.write_queues)] {
            if !(0..=QUEUES_PER_TOPIC_MAX).contains(&count) {
                return Err(invalid(format!("{field} {count} is not in 0..={QUEUES_PER_TOPIC_MAX}")));
            }
        }
        if !(0..=PERM_MAX).contains(&header.perm) {
            return Err(invalid(format!("perm {} is not in 0..={PERM_MAX}", header.perm)));
        }
        let before = self.topics.get(name).map(|topic| &topic.config);
        let mut config = before.cloned().unwrap_or_else(|| TopicConfig::new(name, 0));
        config.read_queue_nums = header.read_queues;
        config.write_queue_nums = header.write_queues;
        config.perm = header.perm;
        config.filter_type = filter_type;
        config.sys_flag = header.sys_flag;
        config.order = header.order;
        if let Some(text) = header.attributes {
            config.attributes = attributes::altered(&config.attributes, text, before.is_none())
                .map_err(|bad| Response::fail(SYSTEM_ERROR, bad.to_string()))?;
        }
        if before == Some(&config) {
            return Ok(false);
        }
        self.check_room(&config).map_err(|full| Response::fail(SYSTEM_ERROR, full.to_string()))?;
        self.change(now, config);
        Ok(true)
    }

    /// Makes a topic that a send names, after its template; false: it exists.
    pub(super) fn ensure_for_send(
        &mut self,
        now: Timestamp,
        settings: &ControlSettings,
        topic: &str,
        template: &str,
        queue_nums: i32,
        unit_mode: bool,
    ) -> Result<bool, NoTopic> {
        if self.contains(topic) {
            return Ok(false);
        }
        names::check_topic(topic)?;
        if names::group_of_retry_topic(topic).is_some() {
            // A client that could not send back (36) sends to its retry topic itself; there is no template for those.
            return self.ensure_of_group(now, topic, 1, false, unit_mode);
        }
        if !settings.auto_create_topic {
            return Err(NoTopic::AutoCreateOff { topic: topic.to_owned() });
        }
        let template = self.topics.get(template).map(|template| &template.config);
        let template = template.filter(|config| config.perm & TopicConfig::PERM_INHERIT != 0);
        let template = template.ok_or_else(|| NoTopic::NoTemplate { topic: topic.to_owned() })?;
        let mut config = TopicConfig::new(topic, queue_nums.min(template.write_queue_nums).max(0));
        config.perm = template.perm & !TopicConfig::PERM_INHERIT;
        config.filter_type = template.filter_type;
        config.sys_flag = if unit_mode { UNIT } else { 0 };
        self.check_room(&config)?;
        self.change(now, config);
        Ok(true)
    }

    /// Makes a group's retry or dead-letter topic; false: it exists.
    pub(super) fn ensure_of_group(
        &mut self,
        now: Timestamp,
        topic: &str,
        queue_nums: i32,
        order: bool,
        unit_mode: bool,
    ) -> Result<bool, NoTopic> {
        if self.contains(topic) {
            return Ok(false);
        }
        names::check_topic(topic)?;
        let mut config = TopicConfig::new(topic, queue_nums.clamp(0, QUEUES_PER_TOPIC_MAX));
        config.order = order;
        config.sys_flag = if unit_mode { UNIT_SUBSCRIPTION } else { 0 };
        self.check_room(&config)?;
        self.change(now, config);
        Ok(true)
    }

    /// Is the topic there, or not yet wholly deleted?
    pub(super) fn can_be_deleted(&self, topic: &str) -> bool {
        self.contains(topic) || self.leaving.contains_key(topic)
    }

    /// Takes a topic out of the table, though not yet out of the file; gives its queues. It cannot be made again until
    /// [`TopicTable::end_deletion`]. `None`: it is not there.
    pub(super) fn begin_deletion(&mut self, topic: &str) -> Option<Vec<Arc<QueueView>>> {
        if self.contains(topic) {
            let removed = Arc::make_mut(&mut self.topics).remove(topic)?;
            self.queue_count -= removed.queues.len();
            self.leaving.insert(topic.to_owned(), Some(removed.config.clone()));
        }
        self.leaving.contains_key(topic).then(|| self.queues.queues_of(topic))
    }

    /// Takes it out of the file; gives the version of that.
    pub(super) fn leave(&mut self, now: Timestamp, topic: &str) -> DataVersion {
        self.leaving.insert(topic.to_owned(), None);
        self.data_version = self.data_version.next(now);
        self.data_version
    }

    /// Forgets its queues: the next ones of these names are others.
    pub(super) fn retire_queues(&mut self, topic: &str) {
        self.gone_count += self.queues.queues_of(topic).len();
        self.queues.retire(topic);
    }

    pub(super) fn end_deletion(&mut self, topic: &str) {
        self.leaving.remove(topic);
    }

    /// Topics that are being deleted.
    pub(super) fn leaving(&self) -> impl Iterator<Item = &str> {
        self.leaving.keys().map(String::as_str)
    }

    fn check_room(&self, config: &TopicConfig) -> Result<(), NoTopic> {
        if self.leaving.contains_key(&config.name) {
            return Err(NoTopic::BeingDeleted { topic: config.name.clone() });
        }
        let before = self.topics.get(config.name.as_str());
        if self.gone_count >= GONE_COUNT_MAX && queue_count(config) > before.map_or(0, |topic| topic.queues.len()) {
            return Err(NoTopic::WornOut { topic: config.name.clone() });
        }
        let topic_count = self.topics.len() + usize::from(before.is_none());
        let queue_count = self.queue_count - before.map_or(0, |topic| topic.queues.len()) + queue_count(config);
        if topic_count > TOPIC_COUNT_MAX || queue_count > QUEUE_COUNT_MAX {
            return Err(NoTopic::Full { topic: config.name.clone() });
        }
        Ok(())
    }

    fn change(&mut self, now: Timestamp, config: TopicConfig) {
        tracing::info!(
            topic = config.name,
            read_queues = config.read_queue_nums,
            write_queues = config.write_queue_nums,
            perm = config.perm,
            "topic made or changed"
        );
        self.data_version = self.data_version.next(now);
        self.put(config);
    }

    fn put(&mut self, config: TopicConfig) {
        let known = self.topics.get_key_value(config.name.as_str());
        let name = known.map_or_else(|| config.name.as_str().into(), |(name, _)| Arc::clone(name));
        let mut queues = known.map_or_else(Vec::new, |(_, topic)| topic.queues.clone());
        let count = queue_count(&config);
        self.queue_count = self.queue_count - queues.len() + count;
        queues.truncate(count);
        for queue_id in queues.len()..count {
            queues.push(self.queues.queue(&QueueKey { topic: Arc::clone(&name), queue_id: queue_id as u32 }));
        }
        Arc::make_mut(&mut self.topics).insert(name, Arc::new(Topic { config, queues }));
    }
}

/// Queues that a topic needs: what can be written must be readable later, even if writing has been narrowed since.
fn queue_count(config: &TopicConfig) -> usize {
    config.read_queue_nums.max(config.write_queue_nums).clamp(0, QUEUES_PER_TOPIC_MAX) as usize
}

/// Topics present at start. Those for timers, transactions and pop are there so that nobody takes their names.
fn built_in(settings: &ControlSettings) -> BTreeMap<String, TopicConfig> {
    let inherit = READ_WRITE | TopicConfig::PERM_INHERIT;
    let [cluster_topic, broker_topic, reply_topic] = settings.named_topics();
    let revive_topic = format!("{}REVIVE_LOG_{}", names::SYSTEM_PREFIX, settings.cluster);
    let members_topic = format!("{}SYNC_BROKER_MEMBER_{}", names::SYSTEM_PREFIX, settings.broker_name);
    let mut topics = vec![
        (names::SELF_TEST_TOPIC, 1, READ_WRITE),
        (names::DEFAULT_TOPIC, settings.default_topic_queue_nums, inherit),
        (names::BENCHMARK_TOPIC, 1024, READ_WRITE),
        (&cluster_topic, 16, inherit),
        (&broker_topic, 1, inherit),
        (names::OFFSET_MOVED_TOPIC, 1, READ_WRITE),
        (names::SCHEDULE_TOPIC, SCHEDULE_QUEUES, READ_WRITE),
        (&reply_topic, 1, READ_WRITE),
        (&revive_topic, 8, READ_WRITE),
        (&members_topic, 1, TopicConfig::PERM_INHERIT),
        (names::HALF_TOPIC, 1, READ_WRITE),
        (names::OP_HALF_TOPIC, 1, READ_WRITE),
        (names::TIMER_TOPIC, 1, READ_WRITE),
    ];
    if settings.trace_topic {
        topics.push((names::TRACE_TOPIC, 1, READ_WRITE));
    }
    let config = |(name, queue_nums, perm): (&str, i32, i32)| {
        let mut config = TopicConfig::new(name, queue_nums);
        config.perm = perm;
        (name.to_owned(), config)
    };
    topics.into_iter().map(config).collect()
}

/// Why a topic that a send needs was not made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoTopic {
    /// Code by [`Profile::invalid_parameter`](crate::broker::Profile::invalid_parameter).
    BadName(BadName),
    /// The template is unknown, or is none: code 17.
    NoTemplate { topic: String },
    /// `limits.auto_create_topic` is off: code 17.
    AutoCreateOff { topic: String },
    /// A retry or dead-letter topic of a group that does not exist: code 26.
    NoGroup { group: String },
    /// There are as many topics or queues as there may be: code 1.
    Full { topic: String },
    /// So many queues were deleted that no more are made before a restart: code 1.
    WornOut { topic: String },
    /// It is being deleted: code 17 to a send, else 1.
    BeingDeleted { topic: String },
}

impl From<BadName> for NoTopic {
    fn from(bad: BadName) -> NoTopic {
        NoTopic::BadName(bad)
    }
}

impl fmt::Display for NoTopic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoTopic::BadName(bad) => bad.fmt(f),
            NoTopic::NoTemplate { topic } => {
                write!(f, "topic {topic} does not exist, and the request's defaultTopic is none to create it from")
            }
            NoTopic::AutoCreateOff { topic } => {
                write!(f, "topic {topic} does not exist, and topics are not created by sending to them here")
            }
            NoTopic::WornOut { topic } => write!(
                f,
                "no room for topic {topic}: {GONE_COUNT_MAX} queues were deleted since the node's start; restart it"
            ),
            NoTopic::BeingDeleted { topic } => write!(f, "the topic {topic} is being deleted; try again"),
            NoTopic::NoGroup { group } => write!(f, "consumer group {group} does not exist"),
            NoTopic::Full { topic } => write!(
                f,
                "no room for topic {topic}: {TOPIC_COUNT_MAX} topics and {QUEUE_COUNT_MAX} queues are allowed"
            ),
        }
    }
}

impl std::error::Error for NoTopic {}
