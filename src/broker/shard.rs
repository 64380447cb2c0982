//! The data half of the broker on one shard: which request goes to which handler, and what the handlers share.
//!
//! Lives on its shard's core, fed by `node` with the frames of that shard's connections. It reads the published
//! [`Directory`](super::Directory) and puts into and gets from the store; what it wants of the control core it asks
//! through [`NodeLink`]. Handlers answer by writing into the connection's output, at once or when the store calls back.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;

use super::checked_pull::Pull;
use super::delay::DelayLevels;
use super::holds::Holds;
use super::meter::{Asked, Meter};
use super::reply::ReplyTo;
use super::unique_key::UniqueKeys;
use super::verdict::{NodeLink, Verdict};
use super::{Profile, SharedDirectory};
use crate::store::ShardStore;
use crate::types::properties;
use crate::types::{ShardId, Timestamp};
use crate::wire::code::request;
use crate::wire::{Command, ConnId, Peer};

/// When something happens, by both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// What messages are stamped with and locks end by.
    pub wall: Timestamp,
    /// What never goes back: held pulls end by it. Only differences mean something.
    pub steady: Timestamp,
    /// In µs, for how long a request takes: when it arrived, if it is given again.
    pub steady_us: u64,
}

/// Checked settings, as the shards need them.
#[derive(Clone, Debug)]
pub struct ShardSettings {
    pub profile: Profile,
    /// Goes into the CLUSTER property of every message.
    pub cluster: String,
    /// Goes into every send's answer, and in profile 5 into its message: Java clients trace by it.
    pub region: String,
    /// Whether clients may trace; likewise.
    pub trace_on: bool,
    /// Longest body of a message, in bytes.
    pub body_len_max: usize,
    pub delay_levels: DelayLevels,
    /// The most pulls held at a time on this shard.
    pub hold_count_max: usize,
    pub shard: ShardId,
    /// Steady clock in µs, as [`Moment::steady_us`].
    pub clock: fn() -> u64,
    /// A request that takes as long is told, µs; 0: none is.
    pub slow_us: u64,
    /// Differs between runs of the node; the same on all shards.
    pub run: u32,
}

/// One shard's senders and pullers.
pub struct ShardBroker {
    pub(super) store: ShardStore,
    pub(super) directory: SharedDirectory,
    pub(super) link: Rc<dyn NodeLink>,
    pub(super) settings: ShardSettings,
    /// The store host, as it stands in message ids.
    pub(super) store_host: SocketAddr,
    /// Properties that every single message gets.
    pub(super) added_to_single: Box<[u8]>,
    /// Properties that every message of a batch gets.
    pub(super) added_to_batched: Box<[u8]>,
    pub(super) unique_keys: UniqueKeys,
    pub(super) holds: RefCell<Holds<Pull>>,
    /// Bytes that are being read from the disk for pulls of a connection; none of those with nothing.
    pub(super) cold_shares: RefCell<HashMap<ConnId, usize>>,
    /// Message ids are written here on their way into an answer.
    pub(super) id_text: RefCell<String>,
    random: Cell<u64>,
    meter: Rc<Meter>,
    /// When the request came that is handled now.
    arrived_us: Cell<u64>,
}

impl ShardBroker {
    pub fn new(
        store: ShardStore,
        directory: SharedDirectory,
        link: Rc<dyn NodeLink>,
        settings: ShardSettings,
    ) -> Rc<ShardBroker> {
        let store_host = store.store_host();
        let mut added = String::new();
        properties::push(&mut added, properties::CLUSTER, &settings.cluster);
        let added_to_batched = added.clone().into_bytes().into_boxed_slice();
        if settings.profile == Profile::V5 {
            properties::push(&mut added, properties::MSG_REGION, &settings.region);
            properties::push(&mut added, properties::TRACE_ON, trace_text(settings.trace_on));
        }
        let seed = (u64::from(settings.run) << 16 | u64::from(settings.shard.0)) ^ 0x9E37_79B9_7F4A_7C15;
        Rc::new(ShardBroker {
            meter: Rc::new(Meter::new(store.clone(), settings.clock, settings.slow_us)),
            arrived_us: Cell::new(0),
            store,
            directory,
            link,
            store_host,
            added_to_single: added.into_bytes().into_boxed_slice(),
            added_to_batched,
            unique_keys: UniqueKeys::new(store_host.ip(), settings.run, settings.shard),
            holds: RefCell::new(Holds::new(settings.hold_count_max)),
            cold_shares: RefCell::default(),
            id_text: RefCell::new(String::new()),
            random: Cell::new(seed),
            settings,
        })
    }

    /// Serves one request frame. `refused` says that the control core was asked for what this frame needs, and did not
    /// make it.
    pub fn handle(self: &Rc<Self>, peer: &Rc<dyn Peer>, command: &Command<'_>, now: Moment, refused: bool) -> Verdict {
        self.arrived_us.set(now.steady_us);
        match command.code {
            request::SEND_MESSAGE | request::SEND_MESSAGE_V2 | request::SEND_BATCH_MESSAGE => {
                self.send(peer, command, now.wall, refused)
            }
            request::PULL_MESSAGE | request::LITE_PULL_MESSAGE => self.pull(peer, command, now.steady, refused),
            request::QUERY_MESSAGE => self.query(peer, command),
            request::SEARCH_OFFSET_BY_TIMESTAMP => self.search_offset(peer, command),
            request::GET_MAX_OFFSET | request::GET_MIN_OFFSET => self.queue_end(peer, command),
            request::GET_EARLIEST_MSG_STORETIME => self.earliest(peer, command),
            request::VIEW_MESSAGE_BY_ID => self.view(peer, command),
            request::CONSUMER_SEND_MSG_BACK => self.send_back(peer, command, refused),
            _ => Verdict::Control,
        }
    }

    /// The way back to who asked the request that is handled now.
    pub(super) fn reply_to(&self, peer: &Rc<dyn Peer>, command: &Command<'_>) -> ReplyTo {
        let asked = Asked { code: command.code, arrived_us: self.arrived_us.get(), is_held: false };
        ReplyTo::new(peer, command, self.settings.profile.version(), asked, Rc::clone(&self.meter))
    }

    /// Tells how many pulls are held.
    pub(super) fn note_holds(&self) {
        self.store.traffic().holds.set(self.holds.borrow().count() as u64);
    }

    /// Forgets the pulls held for a connection that is gone.
    pub fn connection_closed(&self, conn: ConnId) {
        let dropped = self.holds.borrow_mut().drop_connection(conn);
        for hold in dropped {
            self.stop_holding_if_last(&hold.waiting.queue);
        }
        self.note_holds();
    }

    /// When [`ShardBroker::answer_due`] has something to do next, by the steady clock.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.holds.borrow().next_deadline()
    }

    pub(super) fn trace_text(&self) -> &'static str {
        trace_text(self.settings.trace_on)
    }

    /// An index below `count`, which must not be 0; any, but evenly.
    pub(super) fn pick(&self, count: usize) -> usize {
        // xorshift64*: no more is needed than that producers spread over queues.
        let mut x = self.random.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.random.set(x);
        (x.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32) as usize % count
    }
}

fn trace_text(trace_on: bool) -> &'static str {
    if trace_on { "true" } else { "false" }
}
