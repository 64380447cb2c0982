//! One client connection as the broker sees it; `net` implements it, tests do too.

use core::net::SocketAddr;

use bytes::BytesMut;

use crate::types::ShardId;

/// Identity of a connection: the shard that holds it and a number never reused in this run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId {
    pub shard: ShardId,
    pub seq: u64,
}

/// Where answers and pushes to one client go. Lives on the connection's shard.
pub trait Peer {
    fn id(&self) -> ConnId;

    fn remote(&self) -> SocketAddr;

    /// Lets `fill` append whole frames to the connection's output; they go out with the next write of this turn.
    /// Nothing happens once the connection is closed.
    fn send(&self, fill: &mut dyn FnMut(&mut BytesMut));

    fn is_open(&self) -> bool;
}
