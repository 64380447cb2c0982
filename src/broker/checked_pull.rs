//! A pull between its checks and its answer: what is looked up, and what is held while nothing is there.

use std::sync::Arc;

use super::reply::ReplyTo;
use super::subscription::TagFilter;
use crate::store::{QueueView, ReadError};
use crate::wire::code::response;

/// A pull whose request has been checked.
pub(super) struct Pull {
    pub reply: ReplyTo,
    pub queue: Arc<QueueView>,
    pub offset: i64,
    pub count_max: i32,
    pub len_max: u32,
    pub filter: TagFilter,
}

impl Pull {
    pub fn fail_read(&self, error: &ReadError) {
        tracing::error!(queue = %self.queue.key(), queue_offset = self.offset, %error, "a pull could not be read");
        self.reply.fail(response::SYSTEM_ERROR, &error.to_string());
    }
}
