//! What a group wants of one topic. Source: remoting.md 3.4.

use serde_json::{Value, json};

use super::body::{BodyError, flag, long_or, opt_text, text, texts};
use crate::types::java_hash;

/// A topic and a filter expression, as heartbeats, client checks and tools carry it.
///
/// Hashes of the tags (`codeSet`) are not read, since the C++ library sends zeros: they follow from the expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    pub topic: String,
    /// `*`, or tags separated by `||`, or SQL.
    pub expression: String,
    /// Time of the subscription, ms.
    pub version: i64,
    pub tags: Vec<String>,
    /// `TAG` or `SQL92`.
    pub expression_type: String,
    pub class_filter_mode: bool,
}

impl Subscription {
    pub const TAG: &str = "TAG";
    pub const SQL92: &str = "SQL92";

    /// # Errors
    /// [`BodyError`] if the topic is missing or a field has a wrong type.
    pub fn from_json(value: &Value) -> Result<Subscription, BodyError> {
        Ok(Subscription {
            topic: text(value, "topic")?,
            expression: opt_text(value, "subString")?.unwrap_or_else(|| "*".to_owned()),
            version: long_or(value, "subVersion", 0)?,
            tags: texts(value, "tagsSet")?,
            expression_type: opt_text(value, "expressionType")?.unwrap_or_else(|| Self::TAG.to_owned()),
            class_filter_mode: flag(value, "classFilterMode")?,
        })
    }

    pub fn to_json(&self) -> Value {
        let codes: Vec<i32> = self.tags.iter().map(|tag| java_hash(tag)).collect();
        json!({
            "classFilterMode": self.class_filter_mode,
            "codeSet": codes,
            "expressionType": self.expression_type,
            "subString": self.expression,
            "subVersion": self.version,
            "tagsSet": self.tags,
            "topic": self.topic,
        })
    }
}
