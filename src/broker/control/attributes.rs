//! Topic attributes: settings of one topic that a request gives as text and topics.json keeps.
//!
//! The text is a list `+key=value,-key`: plus sets, minus takes away. Known keys only; Java clients and tools use the
//! same rules. Source: remoting.md 3.10, store.md 1.6, ARCHITECTURE.md 12.

use std::collections::BTreeMap;
use std::fmt;

use crate::broker::FLUSH_ATTRIBUTE;

/// A key that topics may carry and what it may be set to.
struct Known {
    key: &'static str,
    accepts: fn(&str) -> bool,
    /// For the remark of a refusal.
    values: &'static str,
    /// Cannot be changed once the topic exists.
    fixed: bool,
}

const KNOWN: [Known; 5] = [
    Known {
        key: "message.type",
        accepts: |value| matches!(value, "UNSPECIFIED" | "NORMAL" | "FIFO" | "DELAY" | "TRANSACTION" | "MIXED"),
        values: "UNSPECIFIED, NORMAL, FIFO, DELAY, TRANSACTION or MIXED",
        fixed: false,
    },
    // The other values that Java knows, BatchCQ and COMPACTION, stand for stores that this node does not offer.
    Known { key: "queue.type", accepts: |value| value == "SimpleCQ", values: "SimpleCQ", fixed: true },
    Known { key: "cleanup.policy", accepts: |value| value == "DELETE", values: "DELETE", fixed: true },
    Known {
        key: "reserve.time",
        accepts: |value| value.parse::<i64>().is_ok_and(|ms| ms >= -1),
        values: "-1 or more",
        fixed: false,
    },
    // Ours: whether sends to the topic wait for the disk, whatever the node's default is.
    Known {
        key: FLUSH_ATTRIBUTE,
        accepts: |value| matches!(value, "sync" | "async"),
        values: "sync or async",
        fixed: false,
    },
];

/// `current` as `text` changes it; `is_new`: the topic is being made.
///
/// # Errors
/// [`BadAttributes`]; nothing is changed then.
pub(super) fn altered(
    current: &BTreeMap<String, String>,
    text: &str,
    is_new: bool,
) -> Result<BTreeMap<String, String>, BadAttributes> {
    let mut result = current.clone();
    let mut seen: Vec<&str> = Vec::new();
    for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
        let name = entry.split('=').next().unwrap_or_default();
        let key = name.get(1..).unwrap_or_default();
        let known = KNOWN.iter().find(|known| known.key == key);
        let known = known.ok_or_else(|| BadAttributes::UnknownKey { entry: entry.to_owned() })?;
        if seen.contains(&key) {
            return Err(BadAttributes::Twice { key: known.key });
        }
        seen.push(key);
        match (entry.as_bytes().first(), entry.split_once('=')) {
            (Some(b'+'), Some((_, value))) => {
                if !(known.accepts)(value) {
                    return Err(BadAttributes::BadValue { entry: entry.to_owned(), values: known.values });
                }
                if known.fixed && !is_new && current.get(key).is_none_or(|before| before != value) {
                    return Err(BadAttributes::Fixed { key: known.key });
                }
                result.insert(key.to_owned(), value.to_owned());
            }
            (Some(b'-'), None) => {
                if known.fixed && !is_new {
                    return Err(BadAttributes::Fixed { key: known.key });
                }
                if result.remove(key).is_none() {
                    return Err(BadAttributes::NotSet { key: known.key });
                }
            }
            _ => return Err(BadAttributes::Form { entry: entry.to_owned() }),
        }
    }
    Ok(result)
}

/// Why an attribute text is refused; the remark of the answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BadAttributes {
    Form { entry: String },
    UnknownKey { entry: String },
    Twice { key: &'static str },
    BadValue { entry: String, values: &'static str },
    Fixed { key: &'static str },
    NotSet { key: &'static str },
}

impl fmt::Display for BadAttributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadAttributes::Form { entry } => write!(f, "attribute {entry:?} is neither +key=value nor -key"),
            BadAttributes::UnknownKey { entry } => {
                write!(f, "attribute {entry:?} is unknown; known are")?;
                KNOWN.iter().try_for_each(|known| write!(f, " {}", known.key))
            }
            BadAttributes::Twice { key } => write!(f, "attribute {key} is given twice"),
            BadAttributes::BadValue { entry, values } => {
                write!(f, "attribute {entry:?} has a value that is not supported; use {values}")
            }
            BadAttributes::Fixed { key } => write!(f, "attribute {key} cannot be changed once the topic exists"),
            BadAttributes::NotSet { key } => write!(f, "attribute {key} is not set, so it cannot be taken away"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn plus_sets_and_minus_takes_away() {
        let set = altered(&map(&[]), "+message.type=FIFO, +flush=sync", true);
        assert_eq!(set, Ok(map(&[("message.type", "FIFO"), ("flush", "sync")])));
        assert_eq!(altered(&set.unwrap(), "-message.type,+flush=async", false), Ok(map(&[("flush", "async")])));
        assert_eq!(altered(&map(&[("flush", "sync")]), "", false), Ok(map(&[("flush", "sync")])));
    }

    #[test]
    fn what_the_node_cannot_keep_is_refused() {
        let refused = |text| altered(&map(&[("flush", "sync")]), text, false).unwrap_err();
        assert!(matches!(refused("flush=sync"), BadAttributes::UnknownKey { .. }));
        assert!(matches!(refused("+colour=red"), BadAttributes::UnknownKey { .. }));
        assert!(matches!(refused("+flush"), BadAttributes::Form { .. }));
        assert!(matches!(refused("-flush=sync"), BadAttributes::Form { .. }));
        assert!(matches!(refused("+é"), BadAttributes::UnknownKey { .. }));
        assert!(matches!(refused("é"), BadAttributes::UnknownKey { .. }));
        assert_eq!(refused("+flush=sync,-flush"), BadAttributes::Twice { key: "flush" });
        assert!(matches!(refused("+flush=maybe"), BadAttributes::BadValue { .. }));
        assert!(matches!(refused("+queue.type=BatchCQ"), BadAttributes::BadValue { .. }));
        assert_eq!(refused("+queue.type=SimpleCQ"), BadAttributes::Fixed { key: "queue.type" });
        assert_eq!(refused("-reserve.time"), BadAttributes::NotSet { key: "reserve.time" });
    }
}
