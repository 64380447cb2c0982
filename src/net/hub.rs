//! All connections of one shard: writes what a turn has gathered for them, and closes those that idle or stall.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use super::connection::{Connection, WriteState};
use crate::types::ShardId;
use crate::wire::ConnId;

/// A frame that has begun must go on within this.
const FRAME_STALL_MS_MAX: u64 = 30_000;
/// A peer must take something of what waits for it within this.
const WRITE_STALL_MS_MAX: u64 = 60_000;
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Bounds that all shards share.
#[derive(Debug)]
pub struct NetLimits {
    /// Bytes of frames that have begun and are not yet whole, over all connections.
    unfinished_len_max: u64,
    unfinished_len: AtomicU64,
    connections_max: usize,
    connections: AtomicUsize,
    /// A connection without a byte in either direction is closed after this, in ms (remoting.md 1.7: 120 s).
    idle_ms_max: u64,
}

impl NetLimits {
    pub fn new(unfinished_len_max: u64, connections_max: usize, idle_ms_max: u64) -> Arc<NetLimits> {
        Arc::new(NetLimits {
            unfinished_len_max,
            unfinished_len: AtomicU64::new(0),
            connections_max,
            connections: AtomicUsize::new(0),
            idle_ms_max,
        })
    }

    /// Takes a place for one more connection; false: there are too many.
    pub(super) fn enter(&self) -> bool {
        let fits = self.connections.fetch_add(1, Ordering::Relaxed) < self.connections_max;
        if !fits {
            self.leave();
        }
        fits
    }

    pub(super) fn leave(&self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn add(&self, len: u64) {
        self.unfinished_len.fetch_add(len, Ordering::Relaxed);
    }

    pub(super) fn sub(&self, len: u64) {
        self.unfinished_len.fetch_sub(len, Ordering::Relaxed);
    }

    pub(super) fn is_over(&self) -> bool {
        self.unfinished_len.load(Ordering::Relaxed) > self.unfinished_len_max
    }
}

/// Lives on one shard core.
pub struct Hub {
    shard: ShardId,
    pub(super) limits: Arc<NetLimits>,
    next_seq: Cell<u64>,
    connections: RefCell<HashMap<u64, Rc<Connection>>>,
    /// Connections with answers of this turn.
    dirty: RefCell<Vec<Rc<Connection>>>,
    wake: crate::store::LocalWake,
    arrived: crate::store::LocalWake,
}

impl Hub {
    pub fn new(shard: ShardId, limits: Arc<NetLimits>) -> Rc<Hub> {
        Rc::new(Hub {
            shard,
            limits,
            next_seq: Cell::new(1),
            connections: RefCell::default(),
            dirty: RefCell::default(),
            wake: Default::default(),
            arrived: Default::default(),
        })
    }

    /// The connection of this id, if it is still open.
    pub fn find(&self, id: ConnId) -> Option<Rc<Connection>> {
        self.connections.borrow().get(&id.seq).cloned()
    }

    pub fn count(&self) -> usize {
        self.connections.borrow().len()
    }

    /// Bytes that wait for slow peers or for the end of the turn.
    pub fn unsent(&self) -> usize {
        self.connections.borrow().values().map(|connection| connection.unsent()).sum()
    }

    pub(super) fn next_id(&self) -> ConnId {
        let seq = self.next_seq.get();
        self.next_seq.set(seq + 1);
        ConnId { shard: self.shard, seq }
    }

    pub(super) fn add(&self, id: ConnId, connection: &Rc<Connection>) {
        self.connections.borrow_mut().insert(id.seq, Rc::clone(connection));
        self.arrived.wake();
    }

    pub(super) fn remove(&self, id: ConnId) {
        self.connections.borrow_mut().remove(&id.seq);
        self.limits.leave();
    }

    pub(super) fn mark_dirty(&self, connection: Rc<Connection>) {
        let mut dirty = self.dirty.borrow_mut();
        dirty.push(connection);
        if dirty.len() == 1 {
            self.wake.wake();
        }
    }

    /// Closes every connection.
    pub fn close_all(&self) {
        for connection in self.connections.borrow().values() {
            connection.close();
        }
    }

    /// Writes each turn's answers, one write a connection. Woken by the first answer of a turn, it runs after whatever
    /// else is ready in that turn.
    pub async fn run_writes(self: Rc<Self>) {
        let mut turn = Vec::new();
        loop {
            self.wake.wait().await;
            std::mem::swap(&mut turn, &mut *self.dirty.borrow_mut());
            for connection in turn.drain(..) {
                if connection.write_now() == WriteState::Blocked {
                    connection.start_blocked_writer();
                }
            }
        }
    }

    /// Closes connections that idle, frames that stall, and peers that take nothing. Sleeps while there are none.
    pub async fn run_sweeps(self: Rc<Self>) {
        loop {
            if self.count() == 0 {
                self.arrived.wait().await;
            }
            crate::io::sleep(SWEEP_INTERVAL).await;
            let now = crate::io::steady_ms();
            for connection in self.connections.borrow().values() {
                let since = |at: u64| now.saturating_sub(at);
                let why = match connection.stall() {
                    stall if since(stall.active_ms) >= self.limits.idle_ms_max => "idle",
                    stall if stall.frame_begun && since(stall.read_ms) >= FRAME_STALL_MS_MAX => "a frame stalls",
                    stall if stall.unsent && since(stall.written_ms) >= WRITE_STALL_MS_MAX => "takes no answers",
                    _ => continue,
                };
                tracing::debug!(remote = %connection.remote_addr(), why, "connection closed");
                connection.close();
            }
        }
    }
}
