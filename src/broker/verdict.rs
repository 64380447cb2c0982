//! What a shard's broker says of a frame to the node that gave it, and what it asks of the node.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

/// Work that goes on after the frame is done with; `node` spawns it on the shard's executor.
pub type Later = Pin<Box<dyn Future<Output = ()>>>;

/// What the shard's node code does next with a frame.
pub enum Verdict {
    /// Answered, or it will be by a callback of the store or a wake.
    Done,
    /// Run this; it answers.
    Later(Later),
    /// Ask the control core for this, then give the same frame again.
    Needs(Wanted),
    /// Only the broker of shard 0 can serve it, since the index is there: give the frame to that one, with a peer that
    /// leads back.
    FirstShard,
    /// Belongs to the control core: carry the frame there.
    Control,
}

/// Something that must exist before a request can be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// A topic that a send may create.
    Topic(TopicWanted),
    /// A consumer group that a pull may create.
    Group { group: String },
    /// A group and its retry topic.
    RetryTopic { group: String },
    /// A group's dead-letter topic.
    DlqTopic { group: String },
}

/// What a send says about the topic it needs. Source: remoting.md 6.2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicWanted {
    pub topic: String,
    /// Template of the new topic.
    pub default_topic: String,
    pub default_queue_nums: i32,
    pub unit_mode: bool,
}

/// What a shard asks of the control core, wherever it runs.
pub trait NodeLink {
    /// Stores a consumer offset that came with a pull; nobody waits for it.
    fn commit_offset(&self, group: &Arc<str>, topic: &Arc<str>, queue_id: i32, offset: i64);

    /// Makes what is wanted; true once it is in the published directory, false if it may not or cannot be.
    fn ensure(&self, wanted: Wanted) -> Pin<Box<dyn Future<Output = bool>>>;
}
