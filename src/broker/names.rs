//! Which names topics and groups may have, and the names the broker makes itself.
//!
//! Names become folder names and keys of the form `topic@group`, so nothing that is not checked here reaches a table.
//! Source: remoting.md 3.1 (steps 3 and 4), 3.10, 6.2; store.md 10.5.

use std::fmt;

/// Topic that new topics are modelled on when a client names no other.
pub const DEFAULT_TOPIC: &str = "TBW102";
pub const SCHEDULE_TOPIC: &str = "SCHEDULE_TOPIC_XXXX";
pub const BENCHMARK_TOPIC: &str = "BenchmarkTest";
pub const SELF_TEST_TOPIC: &str = "SELF_TEST_TOPIC";
pub const OFFSET_MOVED_TOPIC: &str = "OFFSET_MOVED_EVENT";
pub const TRACE_TOPIC: &str = "RMQ_SYS_TRACE_TOPIC";
pub const HALF_TOPIC: &str = "RMQ_SYS_TRANS_HALF_TOPIC";
pub const OP_HALF_TOPIC: &str = "RMQ_SYS_TRANS_OP_HALF_TOPIC";
pub const CHECK_MAX_TIME_TOPIC: &str = "TRANS_CHECK_MAX_TIME_TOPIC";
pub const TIMER_TOPIC: &str = "rmq_sys_wheel_timer";
/// Every topic whose name starts so belongs to the broker.
pub const SYSTEM_PREFIX: &str = "rmq_sys_";
pub const RETRY_PREFIX: &str = "%RETRY%";
pub const DLQ_PREFIX: &str = "%DLQ%";

/// Longest name of an ordinary topic, in characters (all of them one byte).
pub const TOPIC_LEN_MAX: usize = 127;
/// Longest name of a retry or dead-letter topic; a record's length byte allows no more in its first version.
pub const GROUP_TOPIC_LEN_MAX: usize = 255;
pub const GROUP_LEN_MAX: usize = 120;

/// Topics that no client may send to: code 16.
const NOT_SENDABLE: [&str; 6] =
    [SCHEDULE_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, CHECK_MAX_TIME_TOPIC, SELF_TEST_TOPIC, OFFSET_MOVED_TOPIC];

/// Topics that no client may create or change, beside those with [`SYSTEM_PREFIX`].
const SYSTEM: [&str; 9] = [
    DEFAULT_TOPIC,
    SCHEDULE_TOPIC,
    BENCHMARK_TOPIC,
    SELF_TEST_TOPIC,
    OFFSET_MOVED_TOPIC,
    TRACE_TOPIC,
    HALF_TOPIC,
    OP_HALF_TOPIC,
    CHECK_MAX_TIME_TOPIC,
];

/// Whether a send names a topic that is the broker's alone.
pub fn is_sendable(topic: &str) -> bool {
    !NOT_SENDABLE.contains(&topic)
}

/// Whether the group is of the broker's own workings. Source: RocketMQ 5.x `MixAll.java`, prefix of system groups.
pub fn is_system_group(group: &str) -> bool {
    const PREFIX: &str = "CID_RMQ_SYS_";
    group.get(..PREFIX.len()).is_some_and(|start| start.eq_ignore_ascii_case(PREFIX))
}

/// Whether the topic belongs to the broker. The topics named like the cluster and the broker are not known here.
pub fn is_system_topic(topic: &str) -> bool {
    topic.starts_with(SYSTEM_PREFIX) || SYSTEM.contains(&topic)
}

/// Where a group's messages go for another try.
pub fn retry_topic(group: &str) -> String {
    [RETRY_PREFIX, group].concat()
}

/// Where a group's messages go after the last try.
pub fn dlq_topic(group: &str) -> String {
    [DLQ_PREFIX, group].concat()
}

/// The group behind a retry topic.
pub fn group_of_retry_topic(topic: &str) -> Option<&str> {
    topic.strip_prefix(RETRY_PREFIX)
}

/// The bytes that a name may have.
const IS_ALLOWED: [bool; 256] = {
    let mut allowed = [false; 256];
    let mut byte = 0;
    while byte < allowed.len() {
        allowed[byte] = (byte as u8).is_ascii_alphanumeric() || matches!(byte as u8, b'%' | b'|' | b'_' | b'-');
        byte += 1;
    }
    allowed
};

/// # Errors
/// [`BadName`]: answered with the code of [`Profile::invalid_parameter`](super::Profile::invalid_parameter).
pub fn check_topic(topic: &str) -> Result<(), BadName> {
    let of_group = topic.starts_with(RETRY_PREFIX) || topic.starts_with(DLQ_PREFIX);
    check("topic", topic, if of_group { GROUP_TOPIC_LEN_MAX } else { TOPIC_LEN_MAX })
}

/// # Errors
/// [`BadName`]: the group cannot exist, so requests that need it get code 26.
pub fn check_group(group: &str) -> Result<(), BadName> {
    check("group", group, GROUP_LEN_MAX)
}

fn check(what: &'static str, name: &str, len_max: usize) -> Result<(), BadName> {
    // Every send comes by here.
    if !name.is_empty() && name.len() <= len_max && name.bytes().all(|byte| IS_ALLOWED[byte as usize]) {
        return Ok(());
    }
    if name.trim().is_empty() {
        return Err(BadName::Blank { what });
    }
    if let Some(found) = name.chars().find(|c| !c.is_ascii() || !IS_ALLOWED[*c as usize]) {
        return Err(BadName::Character { what, found });
    }
    if name.len() > len_max {
        return Err(BadName::TooLong { what, len: name.len(), len_max });
    }
    Ok(())
}

/// Whether a name that an operator wrote (in a settings file, or in the tables of an older broker) can be a folder and
/// part of a `topic@group` key, even if no client could make it.
pub(super) fn is_storable(name: &str) -> bool {
    let reserved = name.is_empty() || name == "." || name == ".." || name.len() > GROUP_TOPIC_LEN_MAX;
    !reserved && !name.chars().any(|c| matches!(c, '/' | '@') || c.is_control())
}

/// Why a topic or group cannot have this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadName {
    Blank { what: &'static str },
    Character { what: &'static str, found: char },
    TooLong { what: &'static str, len: usize, len_max: usize },
}

impl fmt::Display for BadName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            BadName::Blank { what } => write!(f, "the {what} name is blank"),
            BadName::Character { what, found } => {
                write!(f, "the {what} name contains {found:?}; allowed are letters, digits and % | - _")
            }
            BadName::TooLong { what, len, len_max } => {
                write!(f, "the {what} name has {len} characters, {len_max} are allowed")
            }
        }
    }
}

impl std::error::Error for BadName {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topic_names_are_checked_for_blanks_characters_and_length() {
        let of_len = |len: usize| "t".repeat(len);
        assert_eq!(check_topic(""), Err(BadName::Blank { what: "topic" }));
        assert_eq!(check_topic("  "), Err(BadName::Blank { what: "topic" }));
        assert_eq!(check_topic("a b"), Err(BadName::Character { what: "topic", found: ' ' }));
        for name in ["a.b", "a/b", "a@b", "中文", "a\0"] {
            assert!(matches!(check_topic(name), Err(BadName::Character { .. })), "{name:?}");
        }
        assert_eq!(check_topic(&of_len(127)), Ok(()));
        assert_eq!(check_topic(&of_len(128)), Err(BadName::TooLong { what: "topic", len: 128, len_max: 127 }));
        assert_eq!(check_topic("%a|b-C_9"), Ok(()));
    }

    #[test]
    fn retry_and_dead_letter_topics_may_be_longer() {
        for prefix in [RETRY_PREFIX, DLQ_PREFIX] {
            let of_len = |len: usize| format!("{prefix}{}", "g".repeat(len - prefix.len()));
            assert_eq!(check_topic(&of_len(255)), Ok(()));
            assert!(matches!(check_topic(&of_len(256)), Err(BadName::TooLong { .. })));
        }
        assert_eq!(check_group(&"g".repeat(120)), Ok(()));
        assert!(check_group(&"g".repeat(121)).is_err());
    }

    #[test]
    fn names_of_operators_may_hold_dots_but_lead_nowhere_else() {
        assert!(is_storable("broker-a.example.org"));
        for name in ["", ".", "..", "a/b", "a@b", "a\n"] {
            assert!(!is_storable(name), "{name:?}");
        }
    }
}
