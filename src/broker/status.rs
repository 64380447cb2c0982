//! Which response code the store's word becomes, in one place.
//!
//! The remarks of overload begin with tags that operators search logs and graphs for. Source: remoting.md 3.1, 3.2,
//! 6.1; store.md 5.2, 7.1.

use std::borrow::Cow;

use crate::store::{GetStatus, Health, PutRefusal, PutStatus, ReadError};
use crate::types::properties::PROPERTIES_LEN_MAX;
use crate::wire::code::response;

/// A code and a remark that says why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub code: i32,
    pub remark: Cow<'static, str>,
}

impl Refusal {
    pub fn new(code: i32, remark: impl Into<Cow<'static, str>>) -> Refusal {
        Refusal { code, remark: remark.into() }
    }
}

/// The code for a message that is stored, flushed in time or not.
///
/// # Errors
/// What to answer if it is not stored; `health` says why the store took no message.
pub(super) fn of_put(status: &PutStatus, health: &Health<'_>) -> Result<i32, Refusal> {
    Err(match status {
        PutStatus::Ok => return Ok(response::SUCCESS),
        PutStatus::FlushDiskTimeout => return Ok(response::FLUSH_DISK_TIMEOUT),
        PutStatus::ServiceNotAvailable => Refusal::new(
            response::SERVICE_NOT_AVAILABLE,
            match health {
                // The write itself hangs: nothing has failed yet.
                health if health.takes_puts() => "the message could not be written in time".to_owned(),
                health => health.to_string(),
            },
        ),
        // It was on its way when the disk was found too full, or the like: what every send gets from then on.
        PutStatus::SegmentNotCreated if !health.takes_puts() => {
            Refusal::new(response::SERVICE_NOT_AVAILABLE, health.to_string())
        }
        PutStatus::SegmentNotCreated => Refusal::new(
            response::SYSTEM_ERROR,
            match health {
                Health::NoSegment(why) => why.to_string(),
                // It takes too long, or it has just been made.
                _ => "no commit log segment could be made for the message in time".to_owned(),
            },
        ),
        PutStatus::QueueGone => Refusal::new(response::TOPIC_NOT_EXIST, "the topic was deleted"),
        PutStatus::Busy { waited_ms, queued, stages } => Refusal::new(
            response::SYSTEM_BUSY,
            format!(
                "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, \
                 period in queue: {waited_ms}ms, size of queue: {queued}, {stages}"
            ),
        ),
    })
}

/// Why the store did not take a message.
pub(super) fn of_refusal(refusal: PutRefusal, body_len_max: usize) -> Refusal {
    match refusal {
        PutRefusal::MessageIllegal(why) => Refusal::new(response::MESSAGE_ILLEGAL, why),
        PutRefusal::PropertiesTooLong { .. } => Refusal::new(response::MESSAGE_ILLEGAL, too_large(body_len_max)),
        PutRefusal::Overloaded { stages } => Refusal::new(
            response::SYSTEM_BUSY,
            format!("[OVERLOAD]system busy, start flow control for a while, {stages}"),
        ),
        PutRefusal::NotAvailable(why) => Refusal::new(response::SERVICE_NOT_AVAILABLE, why),
    }
}

/// The remark for a message over one of the two limits of its parts.
pub(super) fn too_large(body_len_max: usize) -> String {
    format!(
        "the message is too large: its body may have {body_len_max} bytes, \
         its properties with those that the broker adds {PROPERTIES_LEN_MAX}"
    )
}

/// What to answer to a request whose messages cannot be read. A consumer that is told to slow down pulls again after 20 ms,
/// any other code stops its queue for seconds.
pub(super) fn of_read(error: &ReadError, of_pull: bool) -> Refusal {
    let code = match error {
        ReadError::Busy { .. } if of_pull => response::FLOW_CONTROL,
        ReadError::Busy { .. } => response::SYSTEM_BUSY,
        ReadError::OutOfRange { .. }
        | ReadError::NotFlushed { .. }
        | ReadError::NoRecord { .. }
        | ReadError::Damaged { .. }
        | ReadError::Io { .. } => response::SYSTEM_ERROR,
    };
    Refusal::new(code, error.to_string())
}

/// How a get answers a pull from `offset`, and the name of its status, which goes out as remark.
pub(super) fn of_get(status: &GetStatus, offset: i64) -> (i32, &'static str) {
    match status {
        GetStatus::Found => (response::SUCCESS, "FOUND"),
        GetStatus::NoMatchedMessage => (response::PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE"),
        GetStatus::MessageWasRemoving => (response::PULL_RETRY_IMMEDIATELY, "MESSAGE_WAS_REMOVING"),
        GetStatus::NoMessageInQueue if offset == 0 => (response::PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE"),
        GetStatus::NoMessageInQueue => (response::PULL_OFFSET_MOVED, "NO_MESSAGE_IN_QUEUE"),
        GetStatus::OffsetTooSmall => (response::PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL"),
        GetStatus::OffsetOverflowOne => (response::PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE"),
        GetStatus::OffsetOverflowBadly => (response::PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY"),
        GetStatus::OffsetFoundNull => (response::PULL_NOT_FOUND, "OFFSET_FOUND_NULL"),
        GetStatus::UnitsCold => (response::PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::store::{Poison, StageTimes};
    use crate::types::PhyOffset;

    #[test]
    fn only_what_is_stored_gets_a_stored_code() {
        assert_eq!(of_put(&PutStatus::Ok, &Health::Ok), Ok(0));
        assert_eq!(of_put(&PutStatus::FlushDiskTimeout, &Health::Ok), Ok(10));
        assert_eq!(of_put(&PutStatus::ServiceNotAvailable, &Health::Ok).unwrap_err().code, 14);
        assert_eq!(of_put(&PutStatus::SegmentNotCreated, &Health::Ok).unwrap_err().code, 1);
    }

    #[test]
    fn who_needs_a_segment_that_cannot_be_made_is_told_which_and_why() {
        let health = Health::NoSegment(Arc::new("segment 7 cannot be made: no space".to_owned()));
        let refusal = of_put(&PutStatus::SegmentNotCreated, &health).unwrap_err();
        assert_eq!(refusal, Refusal::new(1, "segment 7 cannot be made: no space"));
    }

    /// The look at the disk may come between a put's arrival and the segment that does not fit.
    #[test]
    fn who_needs_a_segment_of_a_node_that_takes_nothing_any_more_is_told_what_all_others_are() {
        let full = Health::DiskFull(Arc::new("100 % used, the limit is 90 %".to_owned()));
        let refusal = of_put(&PutStatus::SegmentNotCreated, &full).unwrap_err();
        assert_eq!(refusal, Refusal::new(14, "100 % used, the limit is 90 %"));
        for health in [Health::Stopping, Health::BuilderStuck] {
            let refusal = of_put(&PutStatus::SegmentNotCreated, &health).unwrap_err();
            assert_eq!(refusal, Refusal::new(14, health.to_string()));
        }
    }

    #[test]
    fn who_waited_for_a_write_that_failed_is_told_which_and_why() {
        let poison = Poison {
            what: "sync",
            path: "/data/commitlog/00000000000000000000".into(),
            why: "Input/output error (os error 5)".into(),
            flushed: PhyOffset(4096),
        };
        let refusal = of_put(&PutStatus::ServiceNotAvailable, &Health::Poisoned(&poison)).unwrap_err();
        let expected = "a sync of the commit log failed (/data/commitlog/00000000000000000000: Input/output error (os error 5)); \
                        what is on stable storage ends at 4096, and the node takes no messages until it is restarted";
        assert_eq!(refusal, Refusal::new(14, expected));
    }

    #[test]
    fn overload_is_tagged_and_says_how_long_and_how_many() {
        let expected = "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, \
                        period in queue: 201ms, size of queue: 7, last write: 40us, last flush: 9000us";
        let stages = StageTimes { write_us: 40, flush_us: 9000 };
        assert_eq!(
            of_put(&PutStatus::Busy { waited_ms: 201, queued: 7, stages }, &Health::Ok),
            Err(Refusal::new(2, expected))
        );
        let expected = "[OVERLOAD]system busy, start flow control for a while, last write: 40us, last flush: 9000us";
        assert_eq!(of_refusal(PutRefusal::Overloaded { stages }, 10), Refusal::new(2, expected));
    }

    #[test]
    fn who_asks_the_disk_for_too_much_is_slowed_down_and_only_what_is_broken_is_an_error() {
        let busy = ReadError::Busy { waiting: 1024 };
        assert_eq!((of_read(&busy, true).code, of_read(&busy, false).code), (215, 2));
        let lost = ReadError::Io { path: "commitlog/0".into(), source: std::io::ErrorKind::UnexpectedEof.into() };
        let refusal = of_read(&lost, true);
        assert_eq!(refusal.code, response::SYSTEM_ERROR);
        assert!(refusal.remark.starts_with("commitlog/0 cannot be read: "), "{}", refusal.remark);
    }

    #[test]
    fn an_empty_queue_moves_only_those_who_ask_beyond_its_start() {
        assert_eq!(of_get(&GetStatus::NoMessageInQueue, 0).0, response::PULL_NOT_FOUND);
        assert_eq!(of_get(&GetStatus::NoMessageInQueue, 5).0, response::PULL_OFFSET_MOVED);
        assert_eq!(of_get(&GetStatus::OffsetOverflowOne, 5).0, response::PULL_NOT_FOUND);
        assert_eq!(of_get(&GetStatus::OffsetOverflowBadly, 5).0, response::PULL_OFFSET_MOVED);
        assert_eq!(of_get(&GetStatus::OffsetTooSmall, -1).0, response::PULL_OFFSET_MOVED);
        assert_eq!(of_get(&GetStatus::NoMatchedMessage, 5).0, response::PULL_RETRY_IMMEDIATELY);
    }
}
