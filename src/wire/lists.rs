//! Bodies that are one list or one table of texts.

use std::collections::BTreeMap;

use serde_json::json;

use super::body::{BodyError, map, parse_object, texts};
use crate::types::json::as_str;

/// Topics, as a name server lists them (206).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicList {
    pub topics: Vec<String>,
}

impl TopicList {
    /// # Errors
    /// [`BodyError`] if this is no JSON object or not a list of texts.
    pub fn decode(body: &[u8]) -> Result<TopicList, BodyError> {
        Ok(TopicList { topics: texts(&parse_object(body)?, "topicList")? })
    }

    pub fn encode(&self) -> Vec<u8> {
        json!({"topicList": self.topics}).to_string().into_bytes()
    }
}

/// The live members of a group (38).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConsumerList {
    pub client_ids: Vec<String>,
}

impl ConsumerList {
    /// # Errors
    /// [`BodyError`] if this is no JSON object or not a list of texts.
    pub fn decode(body: &[u8]) -> Result<ConsumerList, BodyError> {
        Ok(ConsumerList { client_ids: texts(&parse_object(body)?, "consumerIdList")? })
    }

    pub fn encode(&self) -> Vec<u8> {
        json!({"consumerIdList": self.client_ids}).to_string().into_bytes()
    }
}

/// Settings of one namespace (219, and the answer to 103).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KvTable {
    pub table: BTreeMap<String, String>,
}

impl KvTable {
    /// # Errors
    /// [`BodyError`] if this is no JSON object or not a table of texts.
    pub fn decode(body: &[u8]) -> Result<KvTable, BodyError> {
        let table = map(&parse_object(body)?, "table", |key, value| {
            let value = as_str(value).ok_or(BodyError::Wrong { field: "table", expected: "a table of texts" })?;
            Ok((key.to_owned(), value.to_owned()))
        })?;
        Ok(KvTable { table })
    }

    pub fn encode(&self) -> Vec<u8> {
        json!({"table": self.table}).to_string().into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_compact_and_come_back() {
        let topics = TopicList { topics: vec!["TopicA".to_owned(), "%RETRY%CG_A".to_owned()] };
        assert_eq!(topics.encode(), br#"{"topicList":["TopicA","%RETRY%CG_A"]}"#);
        assert_eq!(TopicList::decode(&topics.encode()).unwrap(), topics);

        let members = ConsumerList { client_ids: vec!["192.0.2.2@28101#1431211318348".to_owned()] };
        assert_eq!(members.encode(), br#"{"consumerIdList":["192.0.2.2@28101#1431211318348"]}"#);
        assert_eq!(ConsumerList::decode(&members.encode()).unwrap(), members);

        let table = KvTable { table: BTreeMap::from([("TopicC".to_owned(), "broker-a:2".to_owned())]) };
        assert_eq!(table.encode(), br#"{"table":{"TopicC":"broker-a:2"}}"#);
        assert_eq!(KvTable::decode(&table.encode()).unwrap(), table);
        assert_eq!(KvTable::decode(b"{}").unwrap(), KvTable::default());
    }

    #[test]
    fn lists_of_something_else_are_refused() {
        assert!(TopicList::decode(br#"{"topicList":[1]}"#).is_err());
        assert!(TopicList::decode(br#"{"topicList":"T"}"#).is_err());
        assert!(KvTable::decode(br#"{"table":{"a":{}}}"#).is_err());
    }
}
