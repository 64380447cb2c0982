//! `topics.json`: which topics there are.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::format::config_files::java_json::{Node, bean};
use crate::format::config_files::read::{Fields, wrong};
use crate::format::config_files::{ConfigFileError, DataVersion, version};

const TABLE: &str = "topicConfigTable";

/// How the tags of a topic's messages are compared; it makes no difference to what is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TopicFilterType {
    #[default]
    SingleTag,
    MultiTag,
}

impl TopicFilterType {
    /// Its name in files and requests.
    pub fn name(self) -> &'static str {
        match self {
            TopicFilterType::SingleTag => "SINGLE_TAG",
            TopicFilterType::MultiTag => "MULTI_TAG",
        }
    }

    pub fn of_name(name: &str) -> Option<TopicFilterType> {
        match name {
            "SINGLE_TAG" => Some(TopicFilterType::SingleTag),
            "MULTI_TAG" => Some(TopicFilterType::MultiTag),
            _ => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicConfig {
    pub name: String,
    pub read_queue_nums: i32,
    pub write_queue_nums: i32,
    /// See [`TopicConfig::PERM_READ`] and its like.
    pub perm: i32,
    pub filter_type: TopicFilterType,
    /// Bit 0: unit, bit 1: unit subscription.
    pub sys_flag: i32,
    pub order: bool,
    /// Such as `message.type`, `queue.type`, `cleanup.policy`; 4.x knows none.
    pub attributes: BTreeMap<String, String>,
    /// Fields that we do not know, kept for whoever wrote them.
    pub unknown: Map<String, Value>,
}

impl TopicConfig {
    pub const PERM_INHERIT: i32 = 1;
    pub const PERM_WRITE: i32 = 2;
    pub const PERM_READ: i32 = 4;
    pub const PERM_PRIORITY: i32 = 8;

    /// A readable and writable topic with as many queues to write as to read.
    pub fn new(name: impl Into<String>, queue_nums: i32) -> TopicConfig {
        TopicConfig {
            name: name.into(),
            read_queue_nums: queue_nums,
            write_queue_nums: queue_nums,
            perm: TopicConfig::PERM_READ | TopicConfig::PERM_WRITE,
            filter_type: TopicFilterType::SingleTag,
            sys_flag: 0,
            order: false,
            attributes: BTreeMap::new(),
            unknown: Map::new(),
        }
    }

    /// As it stands in the file and in answers, in the form of 5.x (4.x has no `attributes`, and does not mind them).
    pub fn to_json(&self) -> Value {
        let known = [
            (
                "attributes",
                Value::Object(self.attributes.iter().map(|(k, v)| (k.clone(), v.as_str().into())).collect()),
            ),
            ("order", self.order.into()),
            ("perm", self.perm.into()),
            ("readQueueNums", self.read_queue_nums.into()),
            ("topicFilterType", self.filter_type.name().into()),
            ("topicName", self.name.as_str().into()),
            ("topicSysFlag", self.sys_flag.into()),
            ("writeQueueNums", self.write_queue_nums.into()),
        ];
        let unknown = self.unknown.iter().map(|(name, value)| (name.clone(), value.clone()));
        bean(unknown.chain(known.map(|(name, value)| (name.to_owned(), value))))
    }

    /// Reads a topic that a request carries.
    ///
    /// # Errors
    /// If `value` is no object, has no `topicName`, or a field holds something else than it should. Missing fields
    /// have Java's defaults.
    pub fn from_json(value: Value) -> Result<TopicConfig, ConfigFileError> {
        TopicConfig::read("topic".to_owned(), value, None)
    }

    fn read(path: String, value: Value, key: Option<&str>) -> Result<TopicConfig, ConfigFileError> {
        const QUEUE_NUMS: i32 = 16;
        let name_path = format!("{path}.topicName");
        let mut fields = Fields::of(path, value)?;
        let stated_name = fields.text("topicName")?;
        let filter_type = match fields.any("topicFilterType") {
            None => TopicFilterType::SingleTag,
            Some(Value::String(name)) => TopicFilterType::of_name(&name)
                .ok_or_else(|| wrong(fields.path_of("topicFilterType"), "SINGLE_TAG or MULTI_TAG"))?,
            // fastjson takes an enum's ordinal for its name.
            Some(ordinal) => match crate::types::json::as_i64(&ordinal) {
                Some(0) => TopicFilterType::SingleTag,
                Some(1) => TopicFilterType::MultiTag,
                _ => return Err(wrong(fields.path_of("topicFilterType"), "SINGLE_TAG or MULTI_TAG")),
            },
        };
        Ok(TopicConfig {
            // In a file the key decides, as in Java.
            name: key.map(str::to_owned).or(stated_name).ok_or_else(|| wrong(name_path, "a text"))?,
            read_queue_nums: fields.int("readQueueNums", QUEUE_NUMS)?,
            write_queue_nums: fields.int("writeQueueNums", QUEUE_NUMS)?,
            perm: fields.int("perm", TopicConfig::PERM_READ | TopicConfig::PERM_WRITE)?,
            filter_type,
            sys_flag: fields.int("topicSysFlag", 0)?,
            order: fields.truth("order", false)?,
            attributes: fields.texts("attributes")?,
            unknown: fields.rest(),
        })
    }
}

/// `topics.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicsFile {
    pub topics: BTreeMap<String, TopicConfig>,
    pub data_version: DataVersion,
}

impl TopicsFile {
    /// # Errors
    /// If the text is empty, no JSON, or holds something else than topics.
    pub fn decode(text: &[u8]) -> Result<TopicsFile, ConfigFileError> {
        let mut file = Fields::of_file(text)?;
        Ok(TopicsFile {
            topics: file.entries(TABLE, |path, key, value| TopicConfig::read(path, value, Some(key)))?,
            data_version: DataVersion::take(&mut file)?,
        })
    }

    /// The file's text, as a 5.x broker would write it.
    pub fn encode(&self) -> Vec<u8> {
        Node::Object(vec![
            (version::NAME, Node::Json(self.data_version.to_json())),
            (TABLE, Node::map(&self.topics, |topic| Node::Json(topic.to_json()))),
        ])
        .text()
    }
}
