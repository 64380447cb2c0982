//! Mail between shards: requests for the control core, their answers, and arrivals for held pulls.
//!
//! One lock-free ring a pair of shards and direction. A shard's mail to itself takes no ring: it is handled in place.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;

use crate::broker::verdict::Wanted;
use crate::dispatch::{Receiver, Sender, ring};
use crate::store::Outlet;
use crate::types::{QueueHandle, QueueOffset, ShardId, TagsCode};
use crate::wire::ConnId;

/// Letters between two shards on their way; beyond that the sender's letters wait in order.
const RING_LEN: usize = 8192;

/// One letter.
pub enum Mail {
    /// A frame that shard 0 serves, because control or the index lives there.
    Request {
        conn: ConnId,
        remote: SocketAddr,
        frame: Vec<u8>,
    },
    /// A frame for a client, from shard 0.
    Deliver {
        conn: ConnId,
        frame: Bytes,
    },
    /// Close a connection: its client has not been heard of for too long.
    Close {
        conn: ConnId,
    },
    /// A connection is gone.
    Closed {
        conn: ConnId,
    },
    /// A consumer offset that came with a pull.
    CommitOffset {
        group: Arc<str>,
        topic: Arc<str>,
        queue_id: i32,
        offset: i64,
    },
    /// Make what a request needs; `ticket` is the asker's.
    Ensure {
        from: ShardId,
        ticket: usize,
        wanted: Wanted,
    },
    Ensured {
        ticket: usize,
        made: bool,
    },
    /// The topics of these queues were deleted.
    QueuesGone {
        queues: Arc<[QueueHandle]>,
    },
    /// The log has let go of its beginning: trim the queues.
    LogMoved,
    /// A message for held pulls became visible.
    Arrival {
        queue: QueueHandle,
        max: QueueOffset,
        tags: TagsCode,
    },
}

/// The rings of one shard: element `s` leads to or from shard `s`; none to itself.
pub struct MailRings {
    to: Vec<Option<Sender<Mail>>>,
    from: Vec<Option<Receiver<Mail>>>,
}

/// Rings for all pairs; element `s` is for shard `s`.
pub fn rings(shards: usize) -> Vec<MailRings> {
    let mut all: Vec<MailRings> =
        (0..shards).map(|_| MailRings { to: Vec::new(), from: (0..shards).map(|_| None).collect() }).collect();
    for from in 0..shards {
        for to in 0..shards {
            if from == to {
                all[from].to.push(None);
                continue;
            }
            let (sender, receiver) = ring(RING_LEN);
            all[from].to.push(Some(sender));
            all[to].from[from] = Some(receiver);
        }
    }
    all
}

/// A shard's post office. Lives on its core.
pub struct Mesh {
    to: Vec<Option<Outlet<Mail>>>,
}

/// The incoming side, for [`receive`].
pub type Incoming = Vec<Receiver<Mail>>;

impl Mesh {
    pub fn new(rings: MailRings) -> (Rc<Mesh>, Incoming) {
        let to = rings.to.into_iter().map(|sender| sender.map(Outlet::new)).collect();
        (Rc::new(Mesh { to }), rings.from.into_iter().flatten().collect())
    }

    /// Posts a letter to another shard.
    ///
    /// # Panics
    /// If it is to this shard itself.
    pub fn post(&self, to: ShardId, mail: Mail) {
        self.to[to.index()].as_ref().expect("mail to oneself is handled in place").send(mail);
    }

    /// Do letters to that shard wait for room in its ring?
    ///
    /// # Panics
    /// If it is this shard itself.
    pub fn is_full(&self, to: ShardId) -> bool {
        self.to[to.index()].as_ref().expect("mail to oneself is handled in place").is_full()
    }

    /// Number of shards.
    pub fn shards(&self) -> usize {
        self.to.len()
    }

    /// Moves waiting letters on; a task a destination.
    pub async fn run(self: Rc<Self>, to: usize) {
        if let Some(outlet) = &self.to[to] {
            outlet.run().await;
        }
    }
}

/// Handles the letters of one sender until it is gone. A task a sender.
pub async fn receive(mut from: Receiver<Mail>, mut handle: impl FnMut(Mail)) {
    while let Ok(mail) = poll_fn(|cx| from.poll_recv(cx)).await {
        handle(mail);
    }
}
