//! The shard role on its executor: connections, the data half of the broker, the builder of its queues; on shard 0 also
//! control, the index builder and the delivery of delayed messages.

use std::cell::{Cell, OnceCell, RefCell};
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use bytes::BytesMut;
use slab::Slab;

use super::control_core::{CONTROL_SHARD, CensusAsked, ControlCore, Created, Registry, clock};
use super::mesh::{self, Mail, MailRings, Mesh};
use crate::broker::control::{Control, ControlSettings, LoadedTables};
use crate::broker::delay::{DelayProgress, Delivery, deliver_level};
use crate::broker::shard::{Moment, ShardBroker, ShardSettings};
use crate::broker::verdict::{NodeLink, Verdict, Wanted};
use crate::broker::{Meter, SharedDirectory};
use crate::dispatch::{Receiver, Sender};
use crate::format::config_files::DelayOffsetsFile;
use crate::io::{self, Blocking, SharedMap};
use crate::net::{self, Connection, Hub, Member, NetLimits, Room, Service};
use crate::store::{
    Builder, DiskWatch, DispatchBatch, DurableUpTo, Expiry, ExpirySettings, IndexBuilder, Keeper, KeyEntry, Layout,
    LocalWake, QueueList, QueueView, ReplyBatch, ShardStore, Shared, StorePlace, SubmitBatch, Submitter,
};
use crate::types::{QueueHandle, ShardId, TagsCode, Timestamp};
use crate::wire::{Command, ConnId, FrameBounds, Peer, first_frame};

/// At stop: how long answers and slow peers are waited for.
const DRAIN_LIMIT: Duration = Duration::from_secs(3);
/// A frame may be given again after what it needs was made; a group, its retry topic and the topic are the most.
const NEEDS_MAX: usize = 4;

/// What every shard needs, handed to the thread that will run it.
pub struct ShardParts {
    pub shard: ShardId,
    pub shard_count: usize,
    pub shared: Arc<Shared>,
    pub layout: Layout,
    pub blocking: Blocking,
    /// Tells the page cache what is read next and what no more.
    pub cache_thread: Blocking,
    pub directory: SharedDirectory,
    pub queues: QueueList,
    pub settings: ShardSettings,
    pub listen: Vec<SocketAddr>,
    pub limits: Arc<NetLimits>,
    pub consumequeue_least_pages: u64,
    /// Pause after a queue of which files were deleted.
    pub trim_pause: Duration,
    pub to_writer: Sender<SubmitBatch>,
    pub replies: Receiver<ReplyBatch>,
    pub dispatch: Receiver<DispatchBatch>,
    pub mail: MailRings,
    pub durable_up_to: DurableUpTo,
    pub control: Option<ControlParts>,
    pub stop: flume::Receiver<()>,
}

/// What shard 0 needs besides.
pub struct ControlParts {
    pub settings: ControlSettings,
    pub tables: LoadedTables,
    pub delay_offsets: DelayOffsetsFile,
    pub registry: Registry,
    pub keys: Receiver<Vec<KeyEntry>>,
    pub index_files: Vec<Arc<SharedMap>>,
    pub index_full_up_to: Arc<AtomicI64>,
    pub name_servers: Vec<String>,
    pub durable_up_to: Vec<DurableUpTo>,
    pub index_durable_up_to: DurableUpTo,
    pub checkpoint: crate::format::checkpoint::Checkpoint,
    pub expiry: ExpirySettings,
    pub disks: DiskWatch,
    pub place: StorePlace,
    pub census: flume::Receiver<CensusAsked>,
    pub created: Arc<Created>,
    /// Topics and groups that the census counts by name.
    pub names_max: usize,
}

/// Runs the role until it is told to stop, and finishes what is in flight. `ready` is called once the ports answer.
/// Returns the index files (of shard 0), to be synced by the main thread.
///
/// # Errors
/// A port cannot be listened on.
pub async fn run(parts: ShardParts, ready: impl FnOnce()) -> Result<Vec<Arc<SharedMap>>, String> {
    let ShardParts { shard, shared, layout, blocking, directory, settings, .. } = parts;
    let (mesh, incoming) = Mesh::new(parts.mail);
    let hub = Hub::new(shard, parts.limits);
    let submitter = Submitter::new(Arc::clone(&shared));
    let delays = Rc::new(DelayProgress::starting_at(
        parts.control.iter().flat_map(|c| c.delay_offsets.table.iter().map(|(level, next)| (*level, *next))),
    ));
    let with_index =
        |index| ShardStore::new(Arc::clone(&shared), Rc::clone(&submitter), index, parts.cache_thread.clone());
    let mut store = with_index(None);
    let mut side: Vec<glommio::Task<()>> = Vec::new();
    let mut derived: Vec<glommio::Task<()>> = Vec::new();
    let trims = Rc::new(LocalWake::default());
    let mut control = None;
    let mut index = None;
    if let Some(c) = parts.control {
        let builder = IndexBuilder::new(
            Arc::clone(&shared),
            layout.clone(),
            blocking.clone(),
            c.index_files,
            Arc::clone(&c.index_full_up_to),
            Arc::clone(&c.index_durable_up_to),
        );
        derived.push(glommio::spawn_local(Rc::clone(&builder).run(c.keys)));
        side.push(glommio::spawn_local(Rc::clone(&builder).run_reserve()));
        side.push(glommio::spawn_local(Rc::clone(&builder).run_flusher()));
        store = with_index(Some(Rc::clone(&builder)));
        let (mail, own) = (Rc::clone(&mesh), Rc::clone(&trims));
        let on_log_moved = move || {
            own.wake();
            for other in (0..mail.shards()).filter(|other| *other != shard.index()) {
                mail.post(ShardId(other as u16), Mail::LogMoved);
            }
        };
        let expiry = Expiry::new(
            Arc::clone(&shared),
            blocking.clone(),
            c.expiry,
            (c.disks, c.place.clone()),
            c.durable_up_to.clone(),
            Rc::clone(&builder),
            Box::new(on_log_moved),
        );
        side.push(glommio::spawn_local(Rc::clone(&expiry).run()));
        index = Some(builder);
        let tables = Control::new(c.settings, c.tables, Box::new(c.registry), Arc::clone(&directory));
        let core = ControlCore::new(
            tables,
            Rc::clone(&mesh),
            Rc::clone(&hub),
            layout.clone(),
            blocking.clone(),
            settings.profile,
            c.name_servers,
            Rc::clone(&delays),
            Arc::clone(&shared),
            store.clone(),
            Arc::clone(&directory),
            expiry,
            c.delay_offsets,
            Arc::clone(&parts.queues),
            Meter::new(store.clone(), settings.clock, settings.slow_us),
            c.created,
        );
        side.push(glommio::spawn_local(Rc::clone(&core).run_census(c.census, c.names_max)));
        side.extend(core.side_tasks().into_iter().map(glommio::spawn_local));
        let keeper = Keeper {
            shared: Arc::clone(&shared),
            layout: layout.clone(),
            place: c.place,
            blocking: blocking.clone(),
            durable_up_to: c.durable_up_to.into_iter().chain([c.index_durable_up_to]).collect(),
            index_full_up_to: c.index_full_up_to,
            checkpoint: c.checkpoint,
        };
        side.push(glommio::spawn_local(keeper.run()));
        control = Some(core);
    }
    let link = Rc::new(Link { shard, mesh: Rc::clone(&mesh), control: control.clone(), tickets: RefCell::default() });
    let levels = settings.delay_levels.clone();
    let broker = ShardBroker::new(store.clone(), Arc::clone(&directory), Rc::clone(&link) as _, settings);
    let core = Rc::new_cyclic(|me| ShardCore {
        me: me.clone(),
        shard,
        mesh: Rc::clone(&mesh),
        hub: Rc::clone(&hub),
        link,
        control: control.clone(),
        broker,
        builder: OnceCell::new(),
        frames_came: Cell::new(moment()),
        armed: Cell::new(None),
        hold_changed: LocalWake::default(),
        trims: Rc::clone(&trims),
    });

    let arrivals = Rc::clone(&core);
    let builder = Builder::new(
        Arc::clone(&shared),
        layout,
        blocking,
        Arc::clone(&parts.queues),
        parts.shard_count,
        Box::new(move |queue, tags| arrivals.arrived(queue, tags)),
        parts.durable_up_to,
    );
    let _ = core.builder.set(Rc::clone(&builder));
    if let Some(control) = &control {
        let core = Rc::downgrade(&core);
        let tell = move |queues: &Arc<[QueueHandle]>| {
            let Some(core) = core.upgrade() else { return };
            core.queues_gone(queues);
            for other in (0..core.mesh.shards()).filter(|other| *other != shard.index()) {
                core.mesh.post(ShardId(other as u16), Mail::QueuesGone { queues: Arc::clone(queues) });
            }
        };
        side.push(glommio::spawn_local(Rc::clone(control).run_deletions(tell)));
    }
    derived.push(glommio::spawn_local(Rc::clone(&builder).run(parts.dispatch)));
    side.push(glommio::spawn_local(Rc::clone(&builder).run_trims(shard, trims, parts.trim_pause)));
    side.push(glommio::spawn_local(builder.run_flusher(parts.consumequeue_least_pages)));
    let submit = glommio::spawn_local(Rc::clone(&submitter).run_submit(parts.to_writer));
    derived.push(glommio::spawn_local(Rc::clone(&submitter).run_replies(parts.replies)));
    for to in 0..mesh.shards() {
        side.push(glommio::spawn_local(Rc::clone(&mesh).run(to)));
    }
    for from in incoming {
        let core = Rc::clone(&core);
        side.push(glommio::spawn_local(mesh::receive(from, move |mail| core.mail(mail))));
    }
    side.push(glommio::spawn_local(Rc::clone(&hub).run_writes()));
    let counts = store.clone();
    let note_unsent = move |len| counts.traffic().unsent_len.set(len);
    side.push(glommio::spawn_local(Rc::clone(&hub).run_sweeps(note_unsent)));
    side.push(glommio::spawn_local(Rc::clone(&core).run_holds()));
    if control.is_some() {
        for level in 1..=levels.max() {
            let delivery = Delivery {
                store: store.clone(),
                directory: Arc::clone(&directory),
                levels: levels.clone(),
                level,
                progress: Rc::clone(&delays),
            };
            let sleep = |ms| io::sleep(Duration::from_millis(ms));
            side.push(glommio::spawn_local(deliver_level(delivery, clock, sleep)));
        }
    }

    let mut accepting = Vec::new();
    for addr in parts.listen {
        let listener = net::listen(addr).map_err(|error| format!("cannot listen on {addr}: {error}"))?;
        let service = Rc::clone(&core) as Rc<dyn Service>;
        accepting.push(glommio::spawn_local(net::serve(listener, Rc::clone(&hub), service)));
    }
    ready();

    // An error means that the main thread is gone; stopping is right then, too.
    let _ = parts.stop.recv_async().await;
    for task in accepting {
        task.cancel().await;
    }
    let drained = async {
        while submitter.pending() > 0 || hub.unsent() > 0 {
            io::sleep(Duration::from_millis(5)).await;
        }
    };
    if io::within(DRAIN_LIMIT, drained).await.is_none() {
        tracing::warn!(
            shard = shard.0,
            puts = submitter.pending(),
            unsent = hub.unsent(),
            "stopping with answers unsent"
        );
    }
    hub.close_all();
    // The writer ends once every shard has closed its ring, then closes those to here.
    submit.cancel().await;
    for task in derived {
        task.await;
    }
    if let Some(control) = &control {
        control.save_all().await?;
    }
    for task in side {
        task.cancel().await;
    }
    Ok(index.map(|index| index.files()).unwrap_or_default())
}

/// One shard's frames and letters. Lives on its core.
struct ShardCore {
    me: Weak<ShardCore>,
    shard: ShardId,
    mesh: Rc<Mesh>,
    hub: Rc<Hub>,
    link: Rc<Link>,
    control: Option<Rc<ControlCore>>,
    broker: Rc<ShardBroker>,
    builder: OnceCell<Rc<Builder>>,
    /// When the frames that are served now came.
    frames_came: Cell<Moment>,
    /// When the timer of held pulls is set for.
    armed: Cell<Option<Timestamp>>,
    hold_changed: LocalWake,
    /// Woken when the queues of this shard are to be trimmed.
    trims: Rc<LocalWake>,
}

impl Service for ShardCore {
    fn arriving(&self) {
        self.frames_came.set(moment());
    }

    fn frame(&self, connection: &Rc<Connection>, frame: &[u8], bounds: &FrameBounds) -> Room {
        let command = match Command::decode(frame, bounds) {
            Ok(command) => command,
            Err(error) => {
                tracing::debug!(remote = %connection.remote_addr(), %error, "connection closed on an undecodable header");
                connection.close();
                return Room::Left;
            }
        };
        // Answers to what we pushed: pushes are oneway, so nobody waits for one.
        if command.is_response() {
            return Room::Left;
        }
        let peer: Rc<dyn Peer> = Rc::clone(connection) as _;
        self.serve(&peer, frame, &command)
    }

    fn has_room(&self) -> bool {
        self.control.is_some() || !self.mesh.is_full(CONTROL_SHARD)
    }

    fn closed(&self, connection: &Rc<Connection>) {
        let conn = connection.id();
        self.broker.connection_closed(conn);
        match &self.control {
            Some(control) => control.connection_closed(conn),
            None => self.mesh.post(CONTROL_SHARD, Mail::Closed { conn }),
        }
    }
}

impl ShardCore {
    fn serve(&self, peer: &Rc<dyn Peer>, frame: &[u8], command: &Command<'_>) -> Room {
        let now = self.frames_came.get();
        match self.broker.handle(peer, command, now, false) {
            Verdict::Done => self.arm(),
            Verdict::Later(work) => spawn_all(vec![work]),
            Verdict::FirstShard => return self.forward(peer, frame),
            Verdict::Control => match &self.control {
                Some(control) => control.request(peer.id(), peer.remote(), command),
                None => return self.forward(peer, frame),
            },
            Verdict::Needs(wanted) => {
                let core = self.me.upgrade().expect("alive while it serves");
                glommio::spawn_local(core.serve_again(Rc::clone(peer), frame.to_vec(), wanted, now.steady_us)).detach();
            }
        }
        Room::Left
    }

    /// Sends a frame to the first shard. A peer that asks faster than that serves is not read from meanwhile: what waits
    /// for the ring is then at most a letter a connection.
    fn forward(&self, peer: &Rc<dyn Peer>, frame: &[u8]) -> Room {
        let mail = Mail::Request { conn: peer.id(), remote: peer.remote(), frame: frame.to_vec() };
        self.mesh.post(CONTROL_SHARD, mail);
        if self.has_room() { Room::Left } else { Room::Full }
    }

    /// Has what a frame needs made, then gives it again. How long it takes counts from its arrival.
    async fn serve_again(self: Rc<Self>, peer: Rc<dyn Peer>, frame: Vec<u8>, wanted: Wanted, arrived_us: u64) {
        let mut wanted = wanted;
        for _ in 0..NEEDS_MAX {
            let made = self.link.ensure(wanted).await;
            let Ok(Some(bounds)) = first_frame(&frame) else { return };
            let Ok(command) = Command::decode(&frame, &bounds) else { return };
            let now = Moment { steady_us: arrived_us, ..moment() };
            let verdict = self.broker.handle(&peer, &command, now, !made);
            match verdict {
                Verdict::Needs(next) => wanted = next,
                Verdict::Later(work) => return work.await,
                Verdict::Done => return self.arm(),
                Verdict::Control | Verdict::FirstShard => {
                    self.forward(&peer, &frame);
                    return;
                }
            }
        }
        tracing::error!("a request needs ever more to be made; dropped");
    }

    fn mail(self: &Rc<Self>, mail: Mail) {
        match mail {
            Mail::Request { conn, remote, frame } => self.request_of_another_shard(conn, remote, &frame),
            Mail::Deliver { conn, frame } => {
                if let Some(connection) = self.hub.find(conn) {
                    connection.send(&mut |out| out.extend_from_slice(&frame));
                }
            }
            Mail::Close { conn } => {
                if let Some(connection) = self.hub.find(conn) {
                    connection.close();
                }
            }
            Mail::Closed { conn } => self.control().connection_closed(conn),
            Mail::CommitOffset { group, topic, queue_id, offset } => {
                self.control().commit_offset(&group, &topic, queue_id, offset);
            }
            Mail::Ensure { from, ticket, wanted } => {
                let (control, mesh) = (Rc::clone(self.control()), Rc::clone(&self.mesh));
                glommio::spawn_local(async move {
                    let made = control.ensure(wanted).await;
                    mesh.post(from, Mail::Ensured { ticket, made });
                })
                .detach();
            }
            Mail::Ensured { ticket, made } => self.link.ensured(ticket, made),
            Mail::QueuesGone { queues } => self.queues_gone(&queues),
            Mail::LogMoved => self.trims.wake(),
            Mail::Arrival { queue, max, tags } => spawn_all(self.broker.wake(queue, max, tags)),
        }
    }

    /// Answers who waits on queues of deleted topics, and lets go of their files.
    fn queues_gone(&self, queues: &[QueueHandle]) {
        self.broker.queues_gone(queues);
        if let Some(builder) = self.builder.get() {
            builder.forget(queues, self.shard);
        }
    }

    fn control(&self) -> &Rc<ControlCore> {
        self.control.as_ref().expect("letters for control go to shard 0")
    }

    fn request_of_another_shard(self: &Rc<Self>, conn: ConnId, remote: SocketAddr, frame: &[u8]) {
        let Ok(Some(bounds)) = first_frame(frame) else { return };
        let Ok(command) = Command::decode(frame, &bounds) else { return };
        let peer: Rc<dyn Peer> = Rc::new(RemotePeer { conn, remote, mesh: Rc::clone(&self.mesh) });
        match self.broker.handle(&peer, &command, moment(), false) {
            Verdict::Later(work) => spawn_all(vec![work]),
            Verdict::Control => self.control().request(conn, remote, &command),
            // Only what this shard alone can serve is sent here, and none of it needs more than it finds.
            Verdict::Done | Verdict::Needs(_) | Verdict::FirstShard => {}
        }
    }

    /// A message became visible in a queue of this shard on which some shard holds pulls.
    fn arrived(&self, queue: &Arc<QueueView>, tags: TagsCode) {
        let holding = queue.holding_shards();
        let (handle, max) = (queue.handle(), queue.max());
        for shard in (0..self.mesh.shards()).filter(|shard| holding >> shard & 1 == 1) {
            if shard == self.shard.index() {
                spawn_all(self.broker.wake(handle, max, tags));
            } else {
                self.mesh.post(ShardId(shard as u16), Mail::Arrival { queue: handle, max, tags });
            }
        }
    }

    /// Sets the timer anew if a pull is now held that ends before it.
    fn arm(&self) {
        let next = self.broker.next_deadline();
        if let Some(next) = next
            && self.armed.get().is_none_or(|armed| next < armed)
        {
            self.hold_changed.wake();
        }
    }

    /// Answers held pulls exactly when their time is up.
    async fn run_holds(self: Rc<Self>) {
        loop {
            let next = self.broker.next_deadline();
            self.armed.set(next);
            match next {
                None => self.hold_changed.wait().await,
                Some(deadline) => {
                    let ms = u64::try_from(deadline.0 - steady().0).unwrap_or(0);
                    futures_lite::future::or(io::sleep(Duration::from_millis(ms)), self.hold_changed.wait()).await;
                }
            }
            spawn_all(self.broker.answer_due(steady()));
        }
    }
}

/// The steady clock as held pulls want it.
fn steady() -> Timestamp {
    Timestamp(i64::try_from(io::steady_ms()).unwrap_or(i64::MAX))
}

fn moment() -> Moment {
    let steady_us = io::steady_us();
    let steady = Timestamp(i64::try_from(steady_us / 1000).unwrap_or(i64::MAX));
    Moment { wall: io::now(), steady, steady_us }
}

fn spawn_all(work: Vec<Pin<Box<dyn Future<Output = ()>>>>) {
    for later in work {
        glommio::spawn_local(later).detach();
    }
}

/// How this shard's broker reaches control.
struct Link {
    shard: ShardId,
    mesh: Rc<Mesh>,
    control: Option<Rc<ControlCore>>,
    tickets: RefCell<Slab<flume::Sender<bool>>>,
}

impl Link {
    fn ensured(&self, ticket: usize, made: bool) {
        if let Some(waiting) = self.tickets.borrow_mut().try_remove(ticket) {
            let _ = waiting.send(made);
        }
    }
}

impl NodeLink for Link {
    fn commit_offset(&self, group: &Arc<str>, topic: &Arc<str>, queue_id: i32, offset: i64) {
        match &self.control {
            Some(control) => control.commit_offset(group, topic, queue_id, offset),
            None => {
                let (group, topic) = (Arc::clone(group), Arc::clone(topic));
                self.mesh.post(CONTROL_SHARD, Mail::CommitOffset { group, topic, queue_id, offset });
            }
        }
    }

    fn ensure(&self, wanted: Wanted) -> Pin<Box<dyn Future<Output = bool>>> {
        if let Some(control) = &self.control {
            return Box::pin(Rc::clone(control).ensure(wanted));
        }
        let (made, answer) = flume::bounded(1);
        let ticket = self.tickets.borrow_mut().insert(made);
        self.mesh.post(CONTROL_SHARD, Mail::Ensure { from: self.shard, ticket, wanted });
        Box::pin(async move { answer.recv_async().await.unwrap_or(false) })
    }
}

/// A client on another shard, for requests that only shard 0 can serve.
struct RemotePeer {
    conn: ConnId,
    remote: SocketAddr,
    mesh: Rc<Mesh>,
}

impl Peer for RemotePeer {
    fn id(&self) -> ConnId {
        self.conn
    }

    fn remote(&self) -> SocketAddr {
        self.remote
    }

    fn send(&self, fill: &mut dyn FnMut(&mut BytesMut)) {
        let mut frame = BytesMut::new();
        fill(&mut frame);
        self.mesh.post(self.conn.shard, Mail::Deliver { conn: self.conn, frame: frame.freeze() });
    }

    fn is_open(&self) -> bool {
        true
    }
}
