//! The header fields of each request code, typed. Nothing is copied: a header borrows from its [`Command`].
//!
//! A field that is missing or no number is a [`FieldError`], answered with code 1; it never closes a connection.
//! Fields that any request may carry (`bname`, `ns`, `ReqT`, signatures …) are left alone. Source: remoting.md 3.

mod pull;
mod send;

pub use pull::PullHeader;
pub use send::SendHeader;

use super::command::{Command, FieldError};

/// 36, a consumer gives a message back for another try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendBackHeader<'a> {
    /// Where the message lies in the commit log, as the consumer says; not to be trusted.
    pub offset: i64,
    pub group: &'a str,
    /// 0: the broker decides; negative: straight to the dead letters.
    pub delay_level: i32,
    pub origin_msg_id: Option<&'a str>,
    pub origin_topic: Option<&'a str>,
    pub unit_mode: bool,
    pub max_reconsume_times: Option<i32>,
}

impl<'a> SendBackHeader<'a> {
    /// # Errors
    /// [`FieldError`] of offset, group or delayLevel.
    pub fn read(command: &'a Command<'_>) -> Result<SendBackHeader<'a>, FieldError> {
        let ext = &command.ext;
        Ok(SendBackHeader {
            offset: ext.long("offset")?,
            group: ext.text("group")?,
            delay_level: ext.int("delayLevel")?,
            origin_msg_id: ext.opt_text("originMsgId"),
            origin_topic: ext.opt_text("originTopic"),
            unit_mode: ext.opt_bool("unitMode").unwrap_or(false),
            max_reconsume_times: ext.opt_int("maxReconsumeTimes"),
        })
    }
}

/// 12, messages by key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueryMessageHeader<'a> {
    pub topic: &'a str,
    pub key: &'a str,
    pub max_num: i32,
    /// First and last store time asked for, ms.
    pub begin: i64,
    pub end: i64,
    /// The key is a UNIQ_KEY.
    pub unique_key: bool,
}

impl<'a> QueryMessageHeader<'a> {
    /// # Errors
    /// [`FieldError`] of any field but the last.
    pub fn read(command: &'a Command<'_>) -> Result<QueryMessageHeader<'a>, FieldError> {
        let ext = &command.ext;
        Ok(QueryMessageHeader {
            topic: ext.text("topic")?,
            key: ext.text("key")?,
            max_num: ext.int("maxNum")?,
            begin: ext.long("beginTimestamp")?,
            end: ext.long("endTimestamp")?,
            unique_key: ext.opt_bool("_UNIQUE_KEY_QUERY").unwrap_or(false),
        })
    }
}

/// 33, one message by its place in the commit log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViewMessageHeader<'a> {
    /// Not to be trusted to be the start of a record.
    pub offset: i64,
    pub topic: Option<&'a str>,
}

impl<'a> ViewMessageHeader<'a> {
    /// # Errors
    /// [`FieldError`] of offset.
    pub fn read(command: &'a Command<'_>) -> Result<ViewMessageHeader<'a>, FieldError> {
        Ok(ViewMessageHeader { offset: command.ext.long("offset")?, topic: command.ext.opt_text("topic") })
    }
}

/// 14, where a group has got to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueryOffsetHeader<'a> {
    pub group: &'a str,
    pub topic: &'a str,
    pub queue_id: i32,
    /// False: the client wants to hear that there is none (5.x).
    pub set_zero_if_not_found: Option<bool>,
}

impl<'a> QueryOffsetHeader<'a> {
    /// # Errors
    /// [`FieldError`] of group, topic or queue.
    pub fn read(command: &'a Command<'_>) -> Result<QueryOffsetHeader<'a>, FieldError> {
        let ext = &command.ext;
        Ok(QueryOffsetHeader {
            group: ext.text("consumerGroup")?,
            topic: ext.text("topic")?,
            queue_id: ext.int("queueId")?,
            set_zero_if_not_found: ext.opt_bool("setZeroIfNotFound"),
        })
    }
}

/// 15, a group's consumer offset of one queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpdateOffsetHeader<'a> {
    pub group: &'a str,
    pub topic: &'a str,
    pub queue_id: i32,
    pub commit_offset: i64,
}

impl<'a> UpdateOffsetHeader<'a> {
    /// # Errors
    /// [`FieldError`] of any field.
    pub fn read(command: &'a Command<'_>) -> Result<UpdateOffsetHeader<'a>, FieldError> {
        let ext = &command.ext;
        Ok(UpdateOffsetHeader {
            group: ext.text("consumerGroup")?,
            topic: ext.text("topic")?,
            queue_id: ext.int("queueId")?,
            commit_offset: ext.long("commitOffset")?,
        })
    }
}

/// 30 and 31, and the common part of 29.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueHeader<'a> {
    pub topic: &'a str,
    pub queue_id: i32,
}

impl<'a> QueueHeader<'a> {
    /// # Errors
    /// [`FieldError`] of either field.
    pub fn read(command: &'a Command<'_>) -> Result<QueueHeader<'a>, FieldError> {
        Ok(QueueHeader { topic: command.ext.text("topic")?, queue_id: command.ext.int("queueId")? })
    }
}

/// 29, a queue offset by store time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SearchOffsetHeader<'a> {
    pub topic: &'a str,
    pub queue_id: i32,
    /// Store time in ms.
    pub timestamp: i64,
    /// Of several messages of that time the last is wanted; the first by default.
    pub upper: bool,
}

impl<'a> SearchOffsetHeader<'a> {
    /// # Errors
    /// [`FieldError`] of topic, queue or time.
    pub fn read(command: &'a Command<'_>) -> Result<SearchOffsetHeader<'a>, FieldError> {
        let QueueHeader { topic, queue_id } = QueueHeader::read(command)?;
        let boundary = command.ext.opt_text("boundaryType");
        Ok(SearchOffsetHeader {
            topic,
            queue_id,
            timestamp: command.ext.long("timestamp")?,
            upper: boundary.is_some_and(|boundary| boundary.eq_ignore_ascii_case("upper")),
        })
    }
}

/// 17, a topic made or changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateTopicHeader<'a> {
    /// May be empty, which is no topic name but has an answer of its own.
    pub topic: &'a str,
    pub default_topic: Option<&'a str>,
    pub read_queues: i32,
    pub write_queues: i32,
    /// 4 read, 2 write, 1 inherit.
    pub perm: i32,
    /// `SINGLE_TAG` or `MULTI_TAG`; absent: the former.
    pub filter_type: Option<&'a str>,
    pub sys_flag: i32,
    pub order: bool,
    /// `+key=value` and `-key`, separated by commas (5.x).
    pub attributes: Option<&'a str>,
}

impl<'a> CreateTopicHeader<'a> {
    /// # Errors
    /// [`FieldError`] of topic, queue counts or perm.
    pub fn read(command: &'a Command<'_>) -> Result<CreateTopicHeader<'a>, FieldError> {
        let ext = &command.ext;
        Ok(CreateTopicHeader {
            topic: ext.get("topic").ok_or(FieldError::Missing { name: "topic" })?,
            default_topic: ext.opt_text("defaultTopic"),
            read_queues: ext.int("readQueueNums")?,
            write_queues: ext.int("writeQueueNums")?,
            perm: ext.int("perm")?,
            filter_type: ext.opt_text("topicFilterType"),
            sys_flag: ext.opt_int("topicSysFlag").unwrap_or(0),
            order: ext.opt_bool("order").unwrap_or(false),
            attributes: ext.opt_text("attributes"),
        })
    }
}

/// 35, a client leaves its groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnregisterHeader<'a> {
    pub client_id: &'a str,
    pub producer_group: Option<&'a str>,
    pub consumer_group: Option<&'a str>,
}

impl<'a> UnregisterHeader<'a> {
    /// # Errors
    /// [`FieldError`] of the client id.
    pub fn read(command: &'a Command<'_>) -> Result<UnregisterHeader<'a>, FieldError> {
        let ext = &command.ext;
        Ok(UnregisterHeader {
            client_id: ext.text("clientID")?,
            producer_group: ext.opt_text("producerGroup"),
            consumer_group: ext.opt_text("consumerGroup"),
        })
    }
}

/// 38 and 40 (`consumerGroup`), and 352 (`group`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupHeader<'a> {
    pub group: &'a str,
}

impl<'a> GroupHeader<'a> {
    /// # Errors
    /// [`FieldError`] if the group has neither name.
    pub fn read(command: &'a Command<'_>) -> Result<GroupHeader<'a>, FieldError> {
        let group = command.ext.opt_text("group");
        Ok(GroupHeader { group: group.map_or_else(|| command.ext.text("consumerGroup"), Ok)? })
    }
}

/// 105 and 351.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopicHeader<'a> {
    pub topic: &'a str,
}

impl<'a> TopicHeader<'a> {
    /// # Errors
    /// [`FieldError`] of the topic.
    pub fn read(command: &'a Command<'_>) -> Result<TopicHeader<'a>, FieldError> {
        Ok(TopicHeader { topic: command.ext.text("topic")? })
    }
}

/// 100, 101 and 102, one setting kept by a name server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvHeader<'a> {
    pub namespace: &'a str,
    pub key: &'a str,
    /// Given by 100 only.
    pub value: Option<&'a str>,
}

impl<'a> KvHeader<'a> {
    /// # Errors
    /// [`FieldError`] of namespace or key.
    pub fn read(command: &'a Command<'_>) -> Result<KvHeader<'a>, FieldError> {
        let ext = &command.ext;
        Ok(KvHeader { namespace: ext.text("namespace")?, key: ext.text("key")?, value: ext.get("value") })
    }
}

/// 219, all settings of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespaceHeader<'a> {
    pub namespace: &'a str,
}

impl<'a> NamespaceHeader<'a> {
    /// # Errors
    /// [`FieldError`] of the namespace.
    pub fn read(command: &'a Command<'_>) -> Result<NamespaceHeader<'a>, FieldError> {
        Ok(NamespaceHeader { namespace: command.ext.text("namespace")? })
    }
}

/// 103, 104 and 904: another broker tells a name server that it lives, or no longer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrokerHeader<'a> {
    pub broker_name: &'a str,
    pub broker_addr: &'a str,
    pub cluster: &'a str,
    /// 0: the master. 904 need not say it.
    pub broker_id: i64,
    pub ha_server_addr: Option<&'a str>,
    /// CRC-32 of the body as it came, top bit cleared; 0: unchecked.
    pub body_crc: i32,
    /// The body is one zlib stream.
    pub compressed: bool,
    /// After this long without a word the broker counts as gone, ms (5.x).
    pub heartbeat_timeout_ms: Option<i64>,
    pub enable_acting_master: bool,
}

impl<'a> BrokerHeader<'a> {
    /// # Errors
    /// [`FieldError`] of broker name, address or cluster.
    pub fn read(command: &'a Command<'_>) -> Result<BrokerHeader<'a>, FieldError> {
        let ext = &command.ext;
        Ok(BrokerHeader {
            broker_name: ext.text("brokerName")?,
            broker_addr: ext.text("brokerAddr")?,
            cluster: ext.text("clusterName")?,
            broker_id: ext.opt_long("brokerId").unwrap_or(0),
            ha_server_addr: ext.opt_text("haServerAddr"),
            body_crc: ext.opt_int("bodyCrc32").unwrap_or(0),
            compressed: ext.opt_bool("compressed").unwrap_or(false),
            heartbeat_timeout_ms: ext.opt_long("heartbeatTimeoutMillis"),
            enable_acting_master: ext.opt_bool("enableActingMaster").unwrap_or(false),
        })
    }
}

#[cfg(test)]
mod tests;
