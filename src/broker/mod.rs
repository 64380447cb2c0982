//! The broker: what each request does, and the tables behind it.
//!
//! Two halves that meet only in the words of this file. [`control`] owns what is named (topics, groups, members,
//! consumer offsets, locks, the name server's tables) and lives on the control core alone. The data half, one instance a
//! shard, sends, pulls and looks up. Shards learn what exists from the [`Directory`], an immutable picture that the
//! control core replaces as a whole before it answers the request that changed it; so they read without a hop and
//! without a lock, and a route is visible before the reply of the request that made its topic.
//!
//! Nothing here opens a socket or a file, or reads a clock.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::ops::{BitOr, BitOrAssign};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use arc_swap::ArcSwap;

pub use crate::config::Profile;
use crate::format::config_files::{GroupConfig, TopicConfig};
use crate::store::{Births, FlushMode, QueueView};
use crate::types::{QueueKey, Timestamp};
use crate::wire::code::response;
use crate::wire::{ConnId, Response, VERSION_4_9, VERSION_5};

mod checked_pull;
pub mod control;
pub mod delay;
pub mod holds;
mod lookup;
mod marks;
mod meter;
pub mod names;
mod offsets;
mod pull;
mod reply;
pub mod runtime_info;
mod send;
mod send_back;
pub mod shard;
mod status;
pub mod subscription;
mod unique_key;
pub mod verdict;

pub use meter::{Asked, Meter};
pub use subscription::{Filter, GroupSubscription, Subscription, TagFilter};

/// What the releases differ in, as far as answers show it. Source: remoting.md 10.1, rule 2.
impl Profile {
    /// What the node says its version is, in every answer; clients take it for what it can do.
    pub fn version(self) -> i32 {
        match self {
            Profile::V5 => VERSION_5,
            Profile::V4_9 => VERSION_4_9,
        }
    }

    /// Code for a bad name, a queue id out of range and the like.
    pub fn invalid_parameter(self) -> i32 {
        match self {
            Profile::V5 => response::INVALID_PARAMETER,
            Profile::V4_9 => response::SYSTEM_ERROR,
        }
    }
}

/// What every shard reads without a hop: an immutable picture, replaced as a whole by the control core.
///
/// Each table is shared on its own, so that a change copies only the table that it is in.
#[derive(Clone, Debug, Default)]
pub struct Directory {
    pub topics: Arc<HashMap<Arc<str>, Arc<Topic>>>,
    pub groups: Arc<HashMap<Arc<str>, Arc<GroupConfig>>>,
    /// By group; groups without a live member are not in it.
    pub subscriptions: Arc<HashMap<Arc<str>, Arc<GroupSubscription>>>,
    /// By group: until when (ms) it holds a queue lock if nothing is renewed. The values move without a new picture.
    pub locked_until: Arc<HashMap<Arc<str>, Arc<AtomicI64>>>,
    /// Where the present generation of each topic begins that was deleted once.
    pub births: Arc<Births>,
}

impl Directory {
    /// Whether some member of the group holds an unexpired queue lock: it consumes in order, so its message that is
    /// sent to its retry topic goes to the dead letters (remoting.md 3.1, step 7).
    pub fn holds_locks(&self, group: &str, now: Timestamp) -> bool {
        self.locked_until.get(group).is_some_and(|until| now.0 <= until.load(Ordering::Relaxed))
    }
}

/// The published [`Directory`]; only the control core stores into it.
pub type SharedDirectory = Arc<ArcSwap<Directory>>;

/// A topic as the shards see it.
#[derive(Clone, Debug)]
pub struct Topic {
    pub config: TopicConfig,
    /// Index is the queue id; as many as the larger of read and write queues.
    pub queues: Vec<Arc<QueueView>>,
}

/// The attribute by which a topic says whether its messages must be on stable storage: `sync` or `async`, whatever the
/// node's default is.
pub const FLUSH_ATTRIBUTE: &str = "flush";

impl Topic {
    /// Its own flush policy, if it has one. Request 17 sets known values only; another, that somebody wrote into
    /// topics.json, counts as none.
    pub fn flush(&self) -> Option<FlushMode> {
        match self.config.attributes.get(FLUSH_ATTRIBUTE)?.as_str() {
            "sync" => Some(FlushMode::Sync),
            "async" => Some(FlushMode::Async),
            _ => None,
        }
    }
}

/// Who sent a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    pub conn: ConnId,
    pub remote: SocketAddr,
}

/// A oneway request to a client, on the connection it registered with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Push {
    pub to: ConnId,
    pub code: i32,
    pub ext: Vec<(String, String)>,
}

/// Which tables a request changed. Their files must be on disk before its answer goes out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dirty {
    /// Outside name servers must hear of it, too.
    pub topics: bool,
    pub groups: bool,
    pub kv_config: bool,
}

impl Dirty {
    pub const TOPICS: Dirty = Dirty { topics: true, groups: false, kv_config: false };
    pub const GROUPS: Dirty = Dirty { topics: false, groups: true, kv_config: false };
    pub const KV_CONFIG: Dirty = Dirty { topics: false, groups: false, kv_config: true };

    pub fn any(self) -> bool {
        self != Dirty::default()
    }
}

impl BitOr for Dirty {
    type Output = Dirty;

    fn bitor(self, other: Dirty) -> Dirty {
        Dirty {
            topics: self.topics || other.topics,
            groups: self.groups || other.groups,
            kv_config: self.kv_config || other.kv_config,
        }
    }
}

impl BitOrAssign for Dirty {
    fn bitor_assign(&mut self, other: Dirty) {
        *self = *self | other;
    }
}

/// What became of a request on the control core. The directory shows its effects already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Not to be sent if the request was oneway.
    pub response: Response,
    pub pushes: Vec<Push>,
    /// To be persisted before the answer goes out.
    pub dirty: Dirty,
    /// What the store is asked to do in its own time; the answer does not wait for it.
    pub upkeep: Option<Upkeep>,
    /// A topic to be deleted before the answer goes out, by the steps of [`control::Control::begin_deletion`].
    pub deletes: Option<String>,
}

/// What an admin may ask the store to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upkeep {
    /// 329: delete the segments that have expired, whatever the hour.
    DeleteExpired,
    /// 306: delete the consume queue files that lead to nothing.
    TrimQueues,
}

/// The store's registry of queues, as the control core uses it.
pub trait QueueMaker {
    /// The queue of this name; made if missing. Makes no file before the first message.
    fn queue(&mut self, key: &QueueKey) -> Arc<QueueView>;

    /// All queues of a topic, those that it has no more since it was narrowed too.
    fn queues_of(&self, topic: &str) -> Vec<Arc<QueueView>>;

    /// The topic was deleted: under the names of its queues others are made next.
    fn retire(&mut self, topic: &str);

    /// Whether the record that the queue's unit 0 points to is among the youngest of the log, those taken to be in
    /// memory; also true if there is no such unit. Asked when a new group wants to know where to start.
    fn starts_in_memory(&self, queue: &Arc<QueueView>) -> bool;
}

/// Code 3, for a request that nobody here serves.
pub fn not_supported(code: i32) -> Response {
    Response::fail(response::REQUEST_CODE_NOT_SUPPORTED, format!(" request type {code} not supported"))
}
