//! The lock-free ring between two cores: shard → writer, writer → shard, shard → shard.
//!
//! Floor 2, pure memory: it never opens a file, reads a clock or names a runtime. Whoever waits does so through a
//! [`std::task::Waker`], and is woken only if it said that it sleeps: a hop to a parked core costs its sender 14 µs.

mod ring;

pub use ring::{Closed, Receiver, RingDepth, Sender, ring};
