//! The JSON files of `config/`: topics, subscription groups, consumer offsets, delay offsets.
//!
//! Read leniently ([`crate::types::json`]), written in the form that fastjson gives them, so that Java, its tools and
//! `diff` see what they are used to: a tab a level, names in alphabetical order, no blanks, and maps with integer keys
//! without quotes and on one line. Fields that we do not know are kept and written back where an entry belongs to an
//! operator (a topic, a group). Source: store.md 1.5 and 1.6.

mod group;
mod java_json;
mod offsets;
mod read;
mod topic;
mod version;

use std::fmt;

use crate::types::json::JsonError;

pub use group::{GroupConfig, SubscriptionGroupsFile};
pub use offsets::{ConsumerOffsetsFile, DelayOffsetsFile, consumer_offset_key, split_consumer_offset_key};
pub use topic::{TopicConfig, TopicFilterType, TopicsFile};
pub use version::DataVersion;

/// Why a file (or an entry sent by a client) could not be read. The file's name is the caller's to add.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigFileError {
    /// Nothing but white space: Java takes such a file for absent, and so should the caller.
    Empty,
    /// Not JSON, or torn.
    Json(JsonError),
    /// JSON, but a field holds something else than it should.
    Field { path: String, expected: &'static str },
}

impl fmt::Display for ConfigFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigFileError::Empty => f.write_str("the file is empty"),
            ConfigFileError::Json(error) => error.fmt(f),
            ConfigFileError::Field { path, expected } => write!(f, "{path}: expected {expected}"),
        }
    }
}

impl std::error::Error for ConfigFileError {}

#[cfg(test)]
mod tests;
