//! What a queue is called, and the dense number it goes by inside the node.

use std::fmt;
use std::sync::Arc;

/// A queue by name: topic and queue id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueKey {
    pub topic: Arc<str>,
    pub queue_id: u32,
}

impl QueueKey {
    pub fn new(topic: impl Into<Arc<str>>, queue_id: u32) -> QueueKey {
        QueueKey { topic: topic.into(), queue_id }
    }
}

impl fmt::Display for QueueKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.topic, self.queue_id)
    }
}

/// Dense number of a queue in this run of the node, from 0; the owner shard is `handle % shards`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueHandle(pub u32);

impl QueueHandle {
    pub fn index(self) -> usize {
        self.0 as usize
    }

    /// The shard that alone writes this queue's files.
    pub fn owner(self, shard_count: usize) -> ShardId {
        ShardId((self.index() % shard_count) as u16)
    }
}

/// Number of a shard, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId(pub u16);

impl ShardId {
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
