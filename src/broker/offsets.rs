//! Offsets of a queue: 29 by time, 30 the end, 31 the start; and 32, the time of the start. An unknown queue is no error: all its offsets are 0.
//!
//! Source: remoting.md 3.3.

use std::rc::Rc;
use std::sync::Arc;

use super::reply::ReplyTo;
use super::shard::ShardBroker;
use super::status;
use super::verdict::Verdict;
use crate::store::QueueView;
use crate::wire::code::{request, response};
use crate::wire::headers::{QueueHeader, SearchOffsetHeader};
use crate::wire::{Command, Peer};

impl ShardBroker {
    pub(super) fn search_offset(&self, peer: &Rc<dyn Peer>, command: &Command<'_>) -> Verdict {
        let reply = self.reply_to(peer, command);
        let header = match SearchOffsetHeader::read(command) {
            Ok(header) => header,
            Err(error) => {
                reply.fail(response::SYSTEM_ERROR, &error.to_string());
                return Verdict::Done;
            }
        };
        let Some(queue) = self.queue(header.topic, header.queue_id) else {
            send_offset(&reply, 0);
            return Verdict::Done;
        };
        let store = self.store.clone();
        let (time, upper) = (header.timestamp, header.upper);
        Verdict::Later(Box::pin(async move {
            match store.offset_by_time(&queue, time, upper).await {
                Ok(offset) => send_offset(&reply, offset),
                Err(error) => reply.refuse(&status::of_read(&error, false)),
            }
        }))
    }

    /// 32: when the oldest message of a queue was stored, −1 if there is none.
    pub(super) fn earliest(&self, peer: &Rc<dyn Peer>, command: &Command<'_>) -> Verdict {
        let reply = self.reply_to(peer, command);
        let queue = match QueueHeader::read(command) {
            Ok(header) => self.queue(header.topic, header.queue_id),
            Err(error) => {
                reply.fail(response::SYSTEM_ERROR, &error.to_string());
                return Verdict::Done;
            }
        };
        let store = self.store.clone();
        Verdict::Later(Box::pin(async move {
            let earliest = match &queue {
                Some(queue) => store.earliest(queue).await,
                None => Ok(None),
            };
            match earliest {
                Ok(stored_at) => {
                    let mut digits = itoa::Buffer::new();
                    let text = digits.format(stored_at.map_or(-1, |stored_at| stored_at.0));
                    reply.send(response::SUCCESS, None, &[("timestamp", text)], &[]);
                }
                Err(error) => reply.refuse(&status::of_read(&error, false)),
            }
        }))
    }

    /// 30 and 31.
    pub(super) fn queue_end(&self, peer: &Rc<dyn Peer>, command: &Command<'_>) -> Verdict {
        let reply = self.reply_to(peer, command);
        match QueueHeader::read(command) {
            Ok(header) => {
                let end = |queue: Arc<QueueView>| match command.code {
                    request::GET_MIN_OFFSET => queue.min(),
                    _ => queue.max(),
                };
                let offset = self.queue(header.topic, header.queue_id).map_or(0, |queue| end(queue).0);
                send_offset(&reply, i64::try_from(offset).unwrap_or(i64::MAX));
            }
            Err(error) => reply.fail(response::SYSTEM_ERROR, &error.to_string()),
        }
        Verdict::Done
    }

    fn queue(&self, topic: &str, queue_id: i32) -> Option<Arc<QueueView>> {
        let directory = self.directory.load();
        let queues = &directory.topics.get(topic)?.queues;
        queues.get(usize::try_from(queue_id).ok()?).cloned()
    }
}

fn send_offset(reply: &ReplyTo, offset: i64) {
    let mut digits = itoa::Buffer::new();
    reply.send(response::SUCCESS, None, &[("offset", digits.format(offset))], &[]);
}
