//! `consumerOffset.json` and `delayOffset.json`: how far groups, and the delay levels, have got.

use std::collections::BTreeMap;

use crate::format::config_files::java_json::Node;
use crate::format::config_files::read::{Fields, int_map};
use crate::format::config_files::{ConfigFileError, DataVersion, version};

const TABLE: &str = "offsetTable";
/// Stands between topic and group; neither may contain it.
const KEY_SEPARATOR: char = '@';

/// Under which key [`ConsumerOffsetsFile::table`] has the offsets of `group` in `topic`.
pub fn consumer_offset_key(topic: &str, group: &str) -> String {
    format!("{topic}{KEY_SEPARATOR}{group}")
}

/// Topic and group of a [`consumer_offset_key`]; none if it is not of that form.
pub fn split_consumer_offset_key(key: &str) -> Option<(&str, &str)> {
    key.split_once(KEY_SEPARATOR).filter(|(_, group)| !group.contains(KEY_SEPARATOR))
}

/// `consumerOffset.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConsumerOffsetsFile {
    /// By [`consumer_offset_key`], then queue id: the next queue offset to consume.
    pub table: BTreeMap<String, BTreeMap<i32, i64>>,
    pub data_version: DataVersion,
}

impl ConsumerOffsetsFile {
    /// # Errors
    /// If the text is empty, no JSON, or an offset is no integer.
    pub fn decode(text: &[u8]) -> Result<ConsumerOffsetsFile, ConfigFileError> {
        let mut file = Fields::of_file(text)?;
        Ok(ConsumerOffsetsFile {
            table: file.entries(TABLE, |path, _, value| int_map(path, value))?,
            data_version: DataVersion::take(&mut file)?,
        })
    }

    /// The file's text, as a 5.x broker would write it.
    pub fn encode(&self) -> Vec<u8> {
        Node::Object(vec![
            (version::NAME, Node::Json(self.data_version.to_json())),
            (TABLE, Node::map(&self.table, Node::IntMap)),
        ])
        .text()
    }
}

/// `delayOffset.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DelayOffsetsFile {
    /// By delay level, from 1: the next queue offset of that level's queue to deliver.
    pub table: BTreeMap<i32, i64>,
    pub data_version: DataVersion,
}

impl DelayOffsetsFile {
    /// # Errors
    /// If the text is empty, no JSON, or an offset is no integer.
    pub fn decode(text: &[u8]) -> Result<DelayOffsetsFile, ConfigFileError> {
        let mut file = Fields::of_file(text)?;
        Ok(DelayOffsetsFile {
            table: match file.any(TABLE) {
                Some(table) => int_map(TABLE.to_owned(), table)?,
                None => BTreeMap::new(),
            },
            data_version: DataVersion::take(&mut file)?,
        })
    }

    /// The file's text, as a 5.x broker would write it.
    pub fn encode(&self) -> Vec<u8> {
        Node::Object(vec![(version::NAME, Node::Json(self.data_version.to_json())), (TABLE, Node::IntMap(&self.table))])
            .text()
    }
}
