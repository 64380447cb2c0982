//! The header of a pull. Source: remoting.md 3.2.

use crate::wire::command::{Command, FieldError, number};

/// 11 and 361.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PullHeader<'a> {
    pub consumer_group: &'a str,
    pub topic: &'a str,
    pub queue_id: i32,
    /// First queue offset wanted.
    pub queue_offset: i64,
    pub max_msg_nums: i32,
    /// See the constants.
    pub sys_flag: i32,
    /// Consumer offset to store if [`PullHeader::COMMIT_OFFSET`] is set.
    pub commit_offset: i64,
    /// How long the pull may be held.
    pub suspend_timeout_ms: i64,
    /// The filter expression, if [`PullHeader::SUBSCRIPTION`] is set.
    pub subscription: Option<&'a str>,
    /// Version of the subscription that the client pulls by: its time in ms.
    pub sub_version: i64,
    /// `TAG` or `SQL92`; absent: the former.
    pub expression_type: Option<&'a str>,
    pub max_msg_bytes: Option<i32>,
}

impl<'a> PullHeader<'a> {
    /// Bits of `sys_flag`.
    pub const COMMIT_OFFSET: i32 = 1;
    pub const SUSPEND: i32 = 2;
    pub const SUBSCRIPTION: i32 = 4;
    pub const CLASS_FILTER: i32 = 8;
    pub const LITE_PULL: i32 = 16;

    /// Reads all fields in one pass.
    ///
    /// # Errors
    /// [`FieldError`] of any field that is not an `Option`.
    pub fn read(command: &'a Command<'_>) -> Result<PullHeader<'a>, FieldError> {
        let mut group = None;
        let mut topic = None;
        let mut queue_id = None;
        let mut queue_offset = None;
        let mut max_msg_nums = None;
        let mut sys_flag = None;
        let mut commit_offset = None;
        let mut suspend = None;
        let mut subscription = None;
        let mut sub_version = None;
        let mut expression_type = None;
        let mut max_msg_bytes = None;
        for (name, value) in command.ext.iter() {
            let slot = match name {
                "consumerGroup" => &mut group,
                "topic" => &mut topic,
                "queueId" => &mut queue_id,
                "queueOffset" => &mut queue_offset,
                "maxMsgNums" => &mut max_msg_nums,
                "sysFlag" => &mut sys_flag,
                "commitOffset" => &mut commit_offset,
                "suspendTimeoutMillis" => &mut suspend,
                "subscription" => &mut subscription,
                "subVersion" => &mut sub_version,
                "expressionType" => &mut expression_type,
                "maxMsgBytes" => &mut max_msg_bytes,
                _ => continue,
            };
            *slot = Some(value).filter(|value| !value.is_empty());
        }
        let needed = |name, value: Option<&'a str>| value.ok_or(FieldError::Missing { name });
        let int = |name, value| number::<i32>(name, needed(name, value)?);
        let long = |name, value| number::<i64>(name, needed(name, value)?);
        Ok(PullHeader {
            consumer_group: needed("consumerGroup", group)?,
            topic: needed("topic", topic)?,
            queue_id: int("queueId", queue_id)?,
            queue_offset: long("queueOffset", queue_offset)?,
            max_msg_nums: int("maxMsgNums", max_msg_nums)?,
            sys_flag: int("sysFlag", sys_flag)?,
            commit_offset: long("commitOffset", commit_offset)?,
            suspend_timeout_ms: long("suspendTimeoutMillis", suspend)?,
            subscription,
            sub_version: long("subVersion", sub_version)?,
            expression_type,
            max_msg_bytes: max_msg_bytes.and_then(|value| value.parse().ok()),
        })
    }
}
