//! All connections of one shard: writes what a turn has gathered for them, and closes those that idle or stall.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::os::fd::RawFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::types::ShardId;
use crate::wire::{ConnId, Peer};

const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Bounds that all shards share.
#[derive(Debug)]
pub struct NetLimits {
    /// Bytes of frames that have begun and are not yet whole, over all connections.
    unfinished_len_max: u64,
    unfinished_len: AtomicU64,
    connections_max: usize,
    connections: AtomicUsize,
    /// A connection whose descriptor is not below this is refused: what lies above is for the store's files.
    descriptors_max: RawFd,
    times: StallTimes,
}

/// How long a peer may be silent, in ms.
#[derive(Clone, Copy, Debug)]
pub struct StallTimes {
    /// A connection without a byte in either direction is closed after this (remoting.md 1.7: 120 s).
    pub idle: u64,
    /// A frame that has begun must go on within this.
    pub frame: u64,
    /// A peer must take something of what waits for it within this.
    pub write: u64,
}

impl NetLimits {
    pub fn new(
        unfinished_len_max: u64,
        connections_max: usize,
        descriptors_max: RawFd,
        times: StallTimes,
    ) -> Arc<NetLimits> {
        Arc::new(NetLimits {
            unfinished_len_max,
            unfinished_len: AtomicU64::new(0),
            connections_max,
            connections: AtomicUsize::new(0),
            descriptors_max,
            times,
        })
    }

    /// Open connections.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Bytes of frames that have not arrived whole.
    pub fn unfinished_len(&self) -> u64 {
        self.unfinished_len.load(Ordering::Relaxed)
    }

    /// Takes a place for one more connection.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn enter(&self, descriptor: RawFd) -> Result<(), &'static str> {
        // The lowest free number is given out, so a high one tells that few are left.
        if descriptor >= self.descriptors_max {
            return Err("few file descriptors are left, and the store needs those; raise LimitNOFILE (ulimit -n)");
        }
        if self.connections.fetch_add(1, Ordering::Relaxed) >= self.connections_max {
            self.leave();
            return Err("there are net.max_connections of them");
        }
        Ok(())
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

/// What a write came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteState {
    Done,
    /// The socket takes no more for now.
    Blocked,
}

/// When what happened last, for the sweep (steady ms).
pub struct Stall {
    pub active_ms: u64,
    pub read_ms: u64,
    pub written_ms: u64,
    pub frame_begun: bool,
    pub unsent: bool,
}

/// A connection as its shard keeps it.
pub trait Member: Peer {
    /// Ends the connection; its task notices and cleans up.
    fn close(&self);

    /// Bytes that wait to be written.
    fn unsent(&self) -> usize;

    fn stall(&self) -> Stall;

    /// Writes as much as the socket takes without waiting.
    fn write_now(&self) -> WriteState;

    /// Writes the rest as the socket takes it; meanwhile answers gather behind it.
    fn start_blocked_writer(self: Rc<Self>);
}

/// Lives on one shard core.
pub struct Hub {
    shard: ShardId,
    pub(super) limits: Arc<NetLimits>,
    next_seq: Cell<u64>,
    connections: RefCell<HashMap<u64, Rc<dyn Member>>>,
    /// Connections with answers of this turn.
    dirty: RefCell<Vec<Rc<dyn Member>>>,
    /// The connection that may finish its frame although too many bytes of such are held: without one, all that wait
    /// for each other's room would wait for ever.
    passing: Cell<Option<ConnId>>,
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
            passing: Cell::new(None),
            wake: Default::default(),
            arrived: Default::default(),
        })
    }

    /// The connection of this id, if it is still open.
    pub fn find(&self, id: ConnId) -> Option<Rc<dyn Member>> {
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

    pub(super) fn add(&self, id: ConnId, connection: Rc<dyn Member>) {
        self.connections.borrow_mut().insert(id.seq, connection);
        self.arrived.wake();
    }

    pub(super) fn remove(&self, id: ConnId) {
        self.connections.borrow_mut().remove(&id.seq);
        self.limits.leave();
    }

    /// May this connection be read from although too many bytes of unfinished frames are held? One at a time may.
    pub(super) fn may_pass(&self, id: ConnId) -> bool {
        let passing = self.passing.get().unwrap_or(id);
        self.passing.set(Some(passing));
        passing == id
    }

    /// Its frame is finished, or the connection gone.
    pub(super) fn has_passed(&self, id: ConnId) {
        if self.passing.get() == Some(id) {
            self.passing.set(None);
        }
    }

    pub(super) fn mark_dirty(&self, connection: Rc<dyn Member>) {
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

    /// Closes connections that idle, frames that stall, and peers that take nothing, and tells `note_unsent` how many bytes
    /// of answers wait. Sleeps while there are no connections.
    pub async fn run_sweeps(self: Rc<Self>, note_unsent: impl Fn(u64)) {
        let times = self.limits.times;
        loop {
            note_unsent(self.unsent() as u64);
            if self.count() == 0 {
                self.arrived.wait().await;
            }
            crate::io::sleep(SWEEP_INTERVAL).await;
            let now = crate::io::steady_ms();
            for connection in self.connections.borrow().values() {
                let since = |at: u64| now.saturating_sub(at);
                let why = match connection.stall() {
                    stall if since(stall.active_ms) >= times.idle => "idle",
                    stall if stall.frame_begun && since(stall.read_ms) >= times.frame => "a frame stalls",
                    stall if stall.unsent && since(stall.written_ms) >= times.write => "takes no answers",
                    _ => continue,
                };
                tracing::debug!(remote = %connection.remote(), why, "connection closed");
                connection.close();
            }
        }
    }
}
