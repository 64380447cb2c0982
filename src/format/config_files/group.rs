//! `subscriptionGroup.json`: which consumer groups there are.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::format::config_files::java_json::{Node, bean};
use crate::format::config_files::read::{Fields, wrong};
use crate::format::config_files::{ConfigFileError, DataVersion, version};
use crate::types::json;

const TABLE: &str = "subscriptionGroupTable";
const FORBIDDEN: &str = "forbiddenTable";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupConfig {
    pub group_name: String,
    pub consume_enable: bool,
    pub consume_from_min_enable: bool,
    pub consume_broadcast_enable: bool,
    pub consume_message_orderly: bool,
    pub retry_queue_nums: i32,
    pub retry_max_times: i32,
    /// An object with `type` and what that type needs.
    pub group_retry_policy: Value,
    pub broker_id: i64,
    pub which_broker_when_consume_slowly: i64,
    pub notify_consumer_ids_changed_enable: bool,
    pub group_sys_flag: i32,
    pub consume_timeout_minute: i32,
    /// A list of subscriptions, if the group has fixed ones.
    pub subscription_data_set: Option<Value>,
    pub attributes: BTreeMap<String, String>,
    /// Fields that we do not know, kept for whoever wrote them.
    pub unknown: Map<String, Value>,
}

impl GroupConfig {
    /// A group with Java's defaults.
    pub fn new(group_name: impl Into<String>) -> GroupConfig {
        GroupConfig {
            group_name: group_name.into(),
            consume_enable: true,
            consume_from_min_enable: true,
            consume_broadcast_enable: true,
            consume_message_orderly: false,
            retry_queue_nums: 1,
            retry_max_times: 16,
            group_retry_policy: json!({"type": "CUSTOMIZED"}),
            broker_id: 0,
            which_broker_when_consume_slowly: 1,
            notify_consumer_ids_changed_enable: true,
            group_sys_flag: 0,
            consume_timeout_minute: 15,
            subscription_data_set: None,
            attributes: BTreeMap::new(),
            unknown: Map::new(),
        }
    }

    /// As it stands in the file and in answers, in the form of 5.x.
    pub fn to_json(&self) -> Value {
        let known = [
            (
                "attributes",
                Value::Object(self.attributes.iter().map(|(k, v)| (k.clone(), v.as_str().into())).collect()),
            ),
            ("brokerId", self.broker_id.into()),
            ("consumeBroadcastEnable", self.consume_broadcast_enable.into()),
            ("consumeEnable", self.consume_enable.into()),
            ("consumeFromMinEnable", self.consume_from_min_enable.into()),
            ("consumeMessageOrderly", self.consume_message_orderly.into()),
            ("consumeTimeoutMinute", self.consume_timeout_minute.into()),
            ("groupName", self.group_name.as_str().into()),
            ("groupRetryPolicy", self.group_retry_policy.clone()),
            ("groupSysFlag", self.group_sys_flag.into()),
            ("notifyConsumerIdsChangedEnable", self.notify_consumer_ids_changed_enable.into()),
            ("retryMaxTimes", self.retry_max_times.into()),
            ("retryQueueNums", self.retry_queue_nums.into()),
            ("whichBrokerWhenConsumeSlowly", self.which_broker_when_consume_slowly.into()),
        ];
        let subscriptions = self.subscription_data_set.iter().map(|set| ("subscriptionDataSet", set.clone()));
        let unknown = self.unknown.iter().map(|(name, value)| (name.clone(), value.clone()));
        bean(unknown.chain(known.into_iter().chain(subscriptions).map(|(name, value)| (name.to_owned(), value))))
    }

    /// Reads a group that a request carries.
    ///
    /// # Errors
    /// If `value` is no object, has no `groupName`, or a field holds something else than it should. Missing fields
    /// have Java's defaults.
    pub fn from_json(value: Value) -> Result<GroupConfig, ConfigFileError> {
        GroupConfig::read("group".to_owned(), value, None)
    }

    fn read(path: String, value: Value, key: Option<&str>) -> Result<GroupConfig, ConfigFileError> {
        let name_path = format!("{path}.groupName");
        let mut fields = Fields::of(path, value)?;
        let stated_name = fields.text("groupName")?;
        // In a file the key decides, as in Java.
        let name = key.map(str::to_owned).or(stated_name).ok_or_else(|| wrong(name_path, "a text"))?;
        let default = GroupConfig::new(name);
        Ok(GroupConfig {
            consume_enable: fields.truth("consumeEnable", default.consume_enable)?,
            consume_from_min_enable: fields.truth("consumeFromMinEnable", default.consume_from_min_enable)?,
            consume_broadcast_enable: fields.truth("consumeBroadcastEnable", default.consume_broadcast_enable)?,
            consume_message_orderly: fields.truth("consumeMessageOrderly", default.consume_message_orderly)?,
            retry_queue_nums: fields.int("retryQueueNums", default.retry_queue_nums)?,
            retry_max_times: fields.int("retryMaxTimes", default.retry_max_times)?,
            group_retry_policy: fields.any("groupRetryPolicy").unwrap_or(default.group_retry_policy),
            broker_id: fields.long("brokerId", default.broker_id)?,
            which_broker_when_consume_slowly: fields
                .long("whichBrokerWhenConsumeSlowly", default.which_broker_when_consume_slowly)?,
            notify_consumer_ids_changed_enable: fields
                .truth("notifyConsumerIdsChangedEnable", default.notify_consumer_ids_changed_enable)?,
            group_sys_flag: fields.int("groupSysFlag", default.group_sys_flag)?,
            consume_timeout_minute: fields.int("consumeTimeoutMinute", default.consume_timeout_minute)?,
            subscription_data_set: fields.any("subscriptionDataSet"),
            attributes: fields.texts("attributes")?,
            unknown: fields.rest(),
            group_name: default.group_name,
        })
    }
}

/// `subscriptionGroup.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubscriptionGroupsFile {
    pub groups: BTreeMap<String, GroupConfig>,
    /// Group, topic, bits of what the group may not do there.
    pub forbidden: BTreeMap<String, BTreeMap<String, i32>>,
    pub data_version: DataVersion,
}

impl SubscriptionGroupsFile {
    /// # Errors
    /// If the text is empty, no JSON, or holds something else than groups.
    pub fn decode(text: &[u8]) -> Result<SubscriptionGroupsFile, ConfigFileError> {
        let mut file = Fields::of_file(text)?;
        Ok(SubscriptionGroupsFile {
            groups: file.entries(TABLE, |path, key, value| GroupConfig::read(path, value, Some(key)))?,
            forbidden: file.entries(FORBIDDEN, |path, _, value| {
                Fields::of(path, value)?.into_entries(|path, _, value| {
                    json::as_i32(&value).ok_or_else(|| wrong(path, "an integer of 32 bits"))
                })
            })?,
            data_version: DataVersion::take(&mut file)?,
        })
    }

    /// The file's text, as a 5.x broker would write it.
    pub fn encode(&self) -> Vec<u8> {
        Node::Object(vec![
            (version::NAME, Node::Json(self.data_version.to_json())),
            (FORBIDDEN, Node::map(&self.forbidden, |topics| Node::map(topics, |bits| Node::Json((*bits).into())))),
            (TABLE, Node::map(&self.groups, |group| Node::Json(group.to_json()))),
        ])
        .text()
    }
}
