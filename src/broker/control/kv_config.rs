//! The name server's settings for clients and tools: texts by namespace and key. Kept in a file of ours, in the form of
//! Java's `kvConfig.json`: `{"configTable":{"NAMESPACE":{"key":"value"}}}`. Source: remoting.md 3.17 (100, 101, 102, 219).

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Value, json};

use crate::types::json::{self, JsonError};

/// Where mqadmin keeps the queue counts of order topics; brokers get it in the answer to their registration.
pub(super) const ORDER_TOPIC_NAMESPACE: &str = "ORDER_TOPIC_CONFIG";
/// Bytes of all names and values together; a namespace must fit one answer.
const LEN_MAX: usize = 8 * 1024 * 1024;
const TABLE: &str = "configTable";

/// All settings of a name server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KvConfig {
    namespaces: BTreeMap<String, BTreeMap<String, String>>,
    /// Bytes of names and values.
    len: usize,
}

/// A change would make the table too large.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct KvFull;

impl fmt::Display for KvFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the name server keeps at most {LEN_MAX} bytes of settings")
    }
}

impl KvConfig {
    /// # Errors
    /// If the text is no JSON. What is no text in it is left out.
    pub fn decode(text: &[u8]) -> Result<KvConfig, JsonError> {
        let mut config = KvConfig::default();
        let file = json::parse(text)?;
        let namespaces = file.get(TABLE).and_then(Value::as_object).into_iter().flatten();
        for (namespace, entries) in namespaces {
            for (key, value) in entries.as_object().into_iter().flatten() {
                if let Some(value) = json::as_str(value) {
                    config.insert(namespace, key, value);
                }
            }
        }
        Ok(config)
    }

    /// The file's text.
    pub fn encode(&self) -> Vec<u8> {
        json!({ TABLE: self.namespaces }).to_string().into_bytes()
    }

    pub(super) fn get(&self, namespace: &str, key: &str) -> Option<&str> {
        self.namespaces.get(namespace)?.get(key).map(String::as_str)
    }

    pub(super) fn namespace(&self, namespace: &str) -> Option<&BTreeMap<String, String>> {
        self.namespaces.get(namespace)
    }

    /// False: it was so already.
    pub(super) fn put(&mut self, namespace: &str, key: &str, value: &str) -> Result<bool, KvFull> {
        if self.get(namespace, key) == Some(value) {
            return Ok(false);
        }
        if self.len + entry_len(namespace, key, value) > LEN_MAX {
            return Err(KvFull);
        }
        self.insert(namespace, key, value);
        Ok(true)
    }

    /// False: there was none.
    pub(super) fn delete(&mut self, namespace: &str, key: &str) -> bool {
        let Some(entries) = self.namespaces.get_mut(namespace) else { return false };
        let Some(value) = entries.remove(key) else { return false };
        if entries.is_empty() {
            self.namespaces.remove(namespace);
        }
        self.len -= entry_len(namespace, key, &value);
        true
    }

    fn insert(&mut self, namespace: &str, key: &str, value: &str) {
        self.delete(namespace, key);
        self.len += entry_len(namespace, key, value);
        self.namespaces.entry(namespace.to_owned()).or_default().insert(key.to_owned(), value.to_owned());
    }
}

fn entry_len(namespace: &str, key: &str, value: &str) -> usize {
    namespace.len() + key.len() + value.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_kept_until_it_is_deleted() {
        let mut config = KvConfig::default();
        assert_eq!(config.put("N", "k", "v"), Ok(true));
        assert_eq!(config.put("N", "k", "v"), Ok(false));
        assert_eq!(config.put("N", "k", "w"), Ok(true));
        assert_eq!(config.get("N", "k"), Some("w"));
        assert!(config.delete("N", "k") && !config.delete("N", "k"));
        assert_eq!(config, KvConfig::default());
    }

    #[test]
    fn the_file_is_what_java_writes() {
        let mut config = KvConfig::default();
        config.put(ORDER_TOPIC_NAMESPACE, "TopicC", "broker-a:2").unwrap();
        let text = config.encode();
        assert_eq!(text, br#"{"configTable":{"ORDER_TOPIC_CONFIG":{"TopicC":"broker-a:2"}}}"#);
        assert_eq!(KvConfig::decode(&text).unwrap(), config);
        assert_eq!(KvConfig::decode(b"{}").unwrap(), KvConfig::default());
    }

    #[test]
    fn a_change_that_would_not_fit_an_answer_is_refused() {
        let mut config = KvConfig::default();
        let half = "v".repeat(LEN_MAX / 2);
        config.put("N", "a", &half).unwrap();
        assert_eq!(config.put("N", "b", &half), Err(KvFull));
        assert!(config.delete("N", "a"));
        assert_eq!(config.put("N", "b", &half), Ok(true));
    }
}
