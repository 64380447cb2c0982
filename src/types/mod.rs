//! Words of the field as types: positions, queues, time, tags, message properties.
//!
//! Floor 0: everything above may use it, it uses nothing of ours. No I/O, no clock, no runtime.

mod disk_usage;
pub mod json;
mod position;
pub mod properties;
mod queue;
mod tags;

pub use disk_usage::DiskUsage;
pub use position::{PhyOffset, QueueOffset, Timestamp};
pub use queue::{QueueHandle, QueueKey, ShardId};
pub use tags::{KeyHash, TagsCode, java_hash, key_hash};
