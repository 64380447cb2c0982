//! A pull between its checks and its answer: what is looked up, and what is held while nothing is there.

use std::sync::Arc;

use super::reply::ReplyTo;
use super::status;
use super::subscription::TagFilter;
use crate::store::{QueueView, ReadError, Reader};

/// A pull whose request has been checked.
pub(super) struct Pull {
    pub reply: ReplyTo,
    pub queue: Arc<QueueView>,
    pub offset: i64,
    pub count_max: i32,
    pub len_max: u32,
    pub filter: TagFilter,
    /// The consumer group.
    pub reader: Reader,
}

impl Pull {
    pub fn fail_read(&self, error: &ReadError) {
        // That it has to wait is counted, and no fault.
        if !matches!(error, ReadError::Busy { .. }) {
            tracing::error!(queue = %self.queue.key(), queue_offset = self.offset, %error, "a pull could not be read");
        }
        let refusal = status::of_read(error, true);
        self.reply.fail(refusal.code, &refusal.remark);
    }
}
