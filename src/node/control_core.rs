//! The control role on shard 0's core: gives requests to [`Control`], persists what they changed, runs its periodic work.

use std::cell::{Cell, RefCell};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};

use super::mesh::{Mail, Mesh};
use crate::broker::control::{Census, Control};
use crate::broker::delay::DelayProgress;
use crate::broker::names::SCHEDULE_TOPIC;
use crate::broker::runtime_info::{History, LevelState, RuntimeInfo};
use crate::broker::verdict::Wanted;
use crate::broker::{Asked, Caller, Dirty, Meter, Profile, Push, QueueMaker, SharedDirectory, Upkeep};
use crate::format::config_files::DelayOffsetsFile;
use crate::format::names;
use crate::format::record::RecordView;
use crate::io::{self, Blocking};
use crate::metrics::Creations;
use crate::net::{self, Hub};
use crate::store::{
    Expiry, Layout, QueueList, QueueRegistry, QueueView, Reader, ShardStore, Shared, old_queues, remove_deleted,
    take_deleted_away,
};
use crate::types::{PhyOffset, QueueHandle, QueueKey, QueueOffset, ShardId, Timestamp};
use crate::wire::code::{request, response};
use crate::wire::lists::KvTable;
use crate::wire::{Command, ConnId, FLAG_ONEWAY, HeaderType, Response, encode_request};

/// The shard whose core runs control and the index builder.
pub const CONTROL_SHARD: ShardId = ShardId(0);

/// Client and foreign broker liveness is looked at this often (remoting.md 6.4).
const SCAN_INTERVAL: Duration = Duration::from_secs(10);
/// Consumer offsets on disk are never older than 5 s: the write itself takes part of that.
const OFFSETS_INTERVAL: Duration = Duration::from_secs(4);
const DELAY_OFFSETS_INTERVAL: Duration = Duration::from_secs(10);
/// Outside name servers hear from us this often (they forget after 120 s).
const REGISTER_INTERVAL: Duration = Duration::from_secs(30);
/// The counters are noted this often, for rates.
const HISTORY_INTERVAL: Duration = Duration::from_secs(1);
/// Deletions of topics that may wait: each takes a few syncs.
const DELETIONS_MAX: usize = 1024;
/// Pause between two folders of a deleted topic.
const REMOVE_PAUSE: Duration = Duration::from_millis(10);
/// Requests for the node's state that wait for a look; more are told that the node is busy.
const INFO_ASKED_MAX: usize = 1024;
/// Failures to save are told this often, in ms.
const QUIET_MS: u64 = 10_000;
/// The name server's settings; ours, since Java keeps them elsewhere.
pub const KV_CONFIG: &str = "kvConfig.json";

/// Lives on shard 0's core.
pub struct ControlCore {
    control: RefCell<Control>,
    mesh: Rc<Mesh>,
    hub: Rc<Hub>,
    layout: Layout,
    blocking: Blocking,
    profile: Profile,
    name_servers: Vec<String>,
    delays: Rc<DelayProgress>,
    shared: Arc<Shared>,
    store: ShardStore,
    directory: SharedDirectory,
    /// Wall clock and steady ms of the start.
    boot: (Timestamp, u64),
    history: RefCell<History>,
    expiry: Rc<Expiry>,
    next_opaque: Cell<i32>,
    delay_version: RefCell<DelayOffsetsFile>,
    /// Topics to delete, one after the other; one more is refused.
    deletions: (flume::Sender<Deletion>, flume::Receiver<Deletion>),
    queues: QueueList,
    unsaved: RefCell<Unsaved>,
    /// Does [`ControlCore::save_rounds`] run?
    saving: Cell<bool>,
    /// Requests 28 without an answer, at most [`INFO_ASKED_MAX`].
    info_asked: RefCell<Vec<Requester>>,
    /// Does [`ControlCore::tell_info_rounds`] run?
    telling_info: Cell<bool>,
    /// No failure to save is told before this (steady ms).
    quiet_until: Cell<u64>,
    meter: Meter,
    created: Arc<Created>,
    /// Store time of the record that begins the log.
    earliest: Cell<Option<(PhyOffset, Timestamp)>>,
}

/// How long topics and groups took to be made; read by the metrics page.
#[derive(Debug, Default)]
pub struct Created {
    pub topics: Creations,
    pub groups: Creations,
}

/// Asks for a census; the answer goes into the channel.
pub type CensusAsked = flume::Sender<Counted>;

/// What the control core counts for the metrics page.
#[derive(Debug, Default)]
pub struct Counted {
    pub census: Census,
    /// Store time of the oldest message, once it was looked up.
    pub earliest: Option<Timestamp>,
}

/// A request to delete a topic that waits for its turn.
struct Deletion {
    topic: String,
    requester: Requester,
}

/// Who asked, and wants an answer.
#[derive(Clone, Copy)]
struct Requester {
    conn: ConnId,
    remote: SocketAddr,
    oneway: bool,
    opaque: i32,
    header_type: HeaderType,
    asked: Asked,
}

/// Changed tables that are not on disk yet, and who waits for that.
#[derive(Default)]
struct Unsaved {
    tables: Dirty,
    waiting: Vec<flume::Sender<Result<(), String>>>,
}

impl ControlCore {
    #[expect(clippy::too_many_arguments, reason = "built once; each is a part of its own")]
    pub fn new(
        control: Control,
        mesh: Rc<Mesh>,
        hub: Rc<Hub>,
        layout: Layout,
        blocking: Blocking,
        profile: Profile,
        name_servers: Vec<String>,
        delays: Rc<DelayProgress>,
        shared: Arc<Shared>,
        store: ShardStore,
        directory: SharedDirectory,
        expiry: Rc<Expiry>,
        delay_file: DelayOffsetsFile,
        queues: QueueList,
        meter: Meter,
        created: Arc<Created>,
    ) -> Rc<ControlCore> {
        let (now, at_ms) = (io::now(), io::steady_ms());
        Rc::new(ControlCore {
            boot: (now, at_ms),
            meter,
            created,
            earliest: Cell::new(None),
            history: RefCell::new(History::starting_at(at_ms, now, io::utc_offset_s(now))),
            store,
            directory,
            control: RefCell::new(control),
            mesh,
            hub,
            layout,
            blocking,
            profile,
            name_servers,
            delays,
            shared,
            expiry,
            next_opaque: Cell::new(1),
            delay_version: RefCell::new(delay_file),
            deletions: flume::bounded(DELETIONS_MAX),
            queues,
            unsaved: RefCell::default(),
            saving: Cell::new(false),
            info_asked: RefCell::default(),
            telling_info: Cell::new(false),
            quiet_until: Cell::new(0),
        })
    }

    /// Serves one request of a client on this shard or another; the answer goes out once what it changed is on disk.
    pub fn request(self: &Rc<Self>, conn: ConnId, remote: SocketAddr, command: &Command<'_>) {
        let requester = Requester {
            conn,
            remote,
            oneway: command.is_oneway(),
            opaque: command.opaque,
            header_type: command.header_type,
            asked: Asked { code: command.code, arrived_us: io::steady_us(), is_held: false },
        };
        if command.code == request::GET_BROKER_RUNTIME_INFO {
            return self.tell_runtime_info(requester);
        }
        let mut outcome = self.control.borrow_mut().handle(io::now(), &Caller { conn, remote }, command);
        if command.code == request::UPDATE_AND_CREATE_TOPIC {
            // It may have been made by somebody else, and not yet be on disk: wait for that, too.
            outcome.dirty |= self.control.borrow().unshown();
        }
        self.push(outcome.pushes);
        match outcome.upkeep {
            Some(Upkeep::DeleteExpired) => self.expiry.delete_expired(),
            Some(Upkeep::TrimQueues) => {
                glommio::spawn_local(Rc::clone(&self.expiry).trim_queues()).detach();
            }
            None => {}
        }
        if let Some(topic) = outcome.deletes {
            match self.deletions.0.try_send(Deletion { topic, requester }) {
                Ok(()) => return,
                Err(_) => outcome.response = Response::fail(response::SYSTEM_BUSY, "too many topics are being deleted"),
            }
        }
        if !outcome.dirty.any() {
            return self.tell(&requester, &outcome.response);
        }
        let this = Rc::clone(self);
        glommio::spawn_local(async move {
            let saved = this.persist(outcome.dirty).await;
            this.note_created(requester.asked.arrived_us, outcome.dirty, saved.is_ok());
            let answer = match saved {
                Ok(()) => outcome.response,
                Err(why) => Response::fail(response::SYSTEM_ERROR, format!("it cannot be saved, try again: {why}")),
            };
            this.tell(&requester, &answer);
        })
        .detach();
    }

    /// Counts how long it took until what was made was on disk.
    fn note_created(&self, asked_us: u64, dirty: Dirty, is_made: bool) {
        let took_ms = io::steady_us().saturating_sub(asked_us) / 1000;
        if dirty.topics {
            self.created.topics.note(is_made, took_ms);
        }
        if dirty.groups {
            self.created.groups.note(is_made, took_ms);
        }
    }

    /// Counts for the metrics page whenever somebody asks, until nobody can any more; at most so many pairs of topic and
    /// group, and so many groups, by name.
    pub async fn run_census(self: Rc<Self>, asked: flume::Receiver<CensusAsked>, names_max: usize) {
        while let Ok(answer) = asked.recv_async().await {
            let mut census = Census::default();
            let mut from = None;
            loop {
                from = self.control.borrow().count_readings(&mut census, from.as_ref(), names_max);
                if from.is_none() {
                    break;
                }
                io::yield_if_due().await;
            }
            self.control.borrow().count_members(&mut census, names_max);
            census.delayed =
                self.levels().iter().map(|(level, next, end)| (*level, end.saturating_sub(*next))).collect();
            let min = self.shared.segments.min();
            let earliest = self.earliest.get();
            let known = earliest.filter(|(of, _)| *of == min).map(|(_, at)| at);
            // Who does not wait any more needs no answer.
            let _ = answer.try_send(Counted { census, earliest: known });
            if known.is_none() {
                // It may be on a slow disk: for the next one who asks.
                self.earliest.set(self.oldest_stored_at().await.map(|at| (min, at)));
            }
        }
    }

    /// Store time of the record that begins the log.
    async fn oldest_stored_at(&self) -> Option<Timestamp> {
        let oldest = self.store.record_at(&Reader::Lookup, self.shared.segments.min()).await.ok()?;
        Some(RecordView::parse(&oldest).ok()?.store_timestamp())
    }

    /// Answers request 28. It asks the file systems and reads the oldest message, neither of which may hold the core.
    /// Whoever asks meanwhile shares the next look.
    fn tell_runtime_info(self: &Rc<Self>, asked: Requester) {
        if asked.oneway {
            return;
        }
        if self.info_asked.borrow().len() >= INFO_ASKED_MAX {
            let busy = Response::fail(response::SYSTEM_BUSY, "too many ask for the node's state; ask again");
            return self.tell(&asked, &busy);
        }
        self.info_asked.borrow_mut().push(asked);
        if !self.telling_info.replace(true) {
            glommio::spawn_local(Rc::clone(self).tell_info_rounds()).detach();
        }
    }

    /// Answers until nobody asks.
    async fn tell_info_rounds(self: Rc<Self>) {
        loop {
            let asked = self.info_asked.take();
            if asked.is_empty() {
                break;
            }
            let answer = Response::ok().body(KvTable { table: self.runtime_info().await }.encode());
            asked.iter().for_each(|asked| self.tell(asked, &answer));
        }
        self.telling_info.set(false);
    }

    /// Answers, if an answer is wanted.
    fn tell(&self, to: &Requester, answer: &Response) {
        if to.oneway {
            return;
        }
        let version = self.profile.version();
        self.with_output(to.conn, &mut |out| answer.encode(out, to.header_type, to.opaque, version));
        self.meter.note(&to.asked, answer.code, to.remote);
    }

    async fn runtime_info(&self) -> std::collections::BTreeMap<String, String> {
        let (commitlog, queues) = (self.layout.commitlog(), self.layout.consumequeue());
        let asked = commitlog.clone();
        let (log_disk, queue_disk) = self
            .blocking
            .run(move || {
                let log_disk = io::disk_usage(&asked).ok();
                // Until the first message there is no folder for them.
                (log_disk, io::disk_usage(&queues).ok().or(log_disk))
            })
            .await;
        let earliest = self.oldest_stored_at().await;
        let shared = &self.shared;
        let (at_ms, (boot, boot_ms)) = (io::steady_ms(), self.boot);
        RuntimeInfo {
            profile: self.profile,
            flush: shared.settings.flush_policy(),
            health: shared.health(),
            totals: &shared.traffic_totals(),
            history: &self.history.borrow(),
            counters: &shared.counters,
            at_ms,
            up_ms: at_ms.saturating_sub(boot_ms),
            boot,
            log_min: shared.segments.min(),
            appended: shared.appended(),
            flushed: shared.flushed(),
            confirm: shared.confirm(),
            loss_window: shared.loss_window(),
            dispatch_behind: shared.dispatch_behind(),
            turn_ms: shared.turn_ms(),
            head_wait_ms: shared.head_wait_ms(),
            put_count: shared.inflight_count(),
            put_count_max: shared.settings.inflight_count_max,
            earliest,
            commitlog: &commitlog,
            log_disk,
            queue_disk,
            levels: &self.levels(),
        }
        .table()
    }

    fn levels(&self) -> Vec<LevelState> {
        let directory = self.directory.load();
        let Some(schedule) = directory.topics.get(SCHEDULE_TOPIC) else { return Vec::new() };
        let queues = (1..).zip(&schedule.queues).take(self.shared.settings.delays_ms.len());
        queues.map(|(level, queue)| (level, self.delays.next(level).0, queue.max().0)).collect()
    }

    async fn run_history(self: Rc<Self>) {
        loop {
            io::sleep(HISTORY_INTERVAL).await;
            let now = io::now();
            let (totals, behind) = (self.shared.traffic_totals(), self.shared.dispatch_behind());
            self.history.borrow_mut().note(io::steady_ms(), now, io::utc_offset_s(now), &totals, behind);
        }
    }

    /// Deletes topics, one after the other, until the executor ends; `tell` lets every shard know that queues are gone.
    pub async fn run_deletions(self: Rc<Self>, tell: impl Fn(&Arc<[QueueHandle]>)) {
        while let Ok(Deletion { topic, requester }) = self.deletions.1.recv_async().await {
            let answer = match self.delete_topic(&topic, &tell).await {
                Ok(()) => Response::ok(),
                Err(why) => {
                    tracing::error!(topic, why, "a topic is not wholly deleted; it cannot be made again until it is");
                    Response::fail(response::SYSTEM_ERROR, format!("not wholly deleted yet, try again: {why}"))
                }
            };
            self.tell(&requester, &answer);
        }
    }

    /// The steps of a deletion (rule R15). A crash before the births are on disk leaves the topic as it was; after that the
    /// next start completes the deletion. What fails here can be asked for again.
    async fn delete_topic(self: &Rc<Self>, topic: &str, tell: &impl Fn(&Arc<[QueueHandle]>)) -> Result<(), String> {
        // An earlier request of this kind may have done it.
        let Some(queues) = self.control.borrow_mut().begin_deletion(topic) else { return Ok(()) };
        let handles: Arc<[QueueHandle]> = queues.iter().map(|queue| queue.handle()).collect();
        let end = self.store.retire(handles.to_vec()).await;
        let birth = end.ok_or_else(|| "the log takes no messages at the moment".to_owned())?;
        let dirty = self.control.borrow_mut().retired(io::now(), topic, birth, self.shared.segments.min());
        self.persist(dirty).await?;
        self.control.borrow_mut().retire_queues(topic);
        tell(&handles);
        let (layout, name, queues) = (self.layout.clone(), topic.to_owned(), Arc::clone(&self.queues));
        // Where files of queues are made: none behind this.
        let take_away = move || take_deleted_away(&layout, &name, birth, old_queues(&queues));
        let moved = self.blocking.run_for_appends(take_away).await;
        let folder = moved.map_err(|error| format!("its consume queues cannot be moved away: {error}"))?;
        self.control.borrow_mut().end_deletion(topic);
        self.shared.counters.topics_deleted.add(1);
        if let Some(folder) = folder {
            glommio::spawn_local(remove_in_steps(self.blocking.clone(), folder)).detach();
        }
        Ok(())
    }

    /// Makes what a shard wants and persists it; true if it exists then.
    pub async fn ensure(self: Rc<Self>, wanted: Wanted) -> bool {
        let (now, asked_us) = (io::now(), io::steady_us());
        let made = {
            let mut control = self.control.borrow_mut();
            match &wanted {
                Wanted::Topic(topic) => control
                    .ensure_topic_for_send(
                        now,
                        &topic.topic,
                        &topic.default_topic,
                        topic.default_queue_nums,
                        topic.unit_mode,
                    )
                    .ok(),
                Wanted::Group { group } => control.ensure_group(now, group).ok(),
                Wanted::RetryTopic { group } => control
                    .ensure_group(now, group)
                    .ok()
                    .and_then(|dirty| control.ensure_retry_topic(now, group).ok().map(|more| dirty | more)),
                Wanted::DlqTopic { group } => control.ensure_dlq_topic(now, group).ok(),
            }
        };
        match made {
            Some(dirty) => {
                if let Wanted::Group { .. } = wanted {
                    // A disk that takes no table must not keep a new group from reading.
                    let saved = self.persist(dirty).await;
                    self.note_created(asked_us, dirty, saved.is_ok());
                    return true;
                }
                // As above: it may be there and not yet be on disk.
                let unshown = self.control.borrow().unshown();
                let is_saved = self.persist(dirty | unshown).await.is_ok();
                self.note_created(asked_us, dirty, is_saved);
                is_saved
            }
            None => false,
        }
    }

    /// Notes a consumer offset that came with a pull.
    pub fn commit_offset(&self, group: &str, topic: &str, queue_id: i32, offset: i64) {
        self.control.borrow_mut().commit_offset(io::now(), group, topic, queue_id, offset);
    }

    /// A connection of any shard is gone.
    pub fn connection_closed(&self, conn: ConnId) {
        let pushes = self.control.borrow_mut().connection_closed(conn);
        self.push(pushes);
    }

    fn push(&self, pushes: Vec<Push>) {
        for push in pushes {
            let opaque = self.next_opaque.get();
            self.next_opaque.set(opaque.wrapping_add(1));
            let ext: Vec<(&str, &str)> = push.ext.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            self.with_output(push.to, &mut |out| {
                encode_request(
                    out,
                    HeaderType::Json,
                    push.code,
                    self.profile.version(),
                    opaque,
                    FLAG_ONEWAY,
                    &ext,
                    &[],
                );
            });
        }
    }

    /// Writes a frame to a connection wherever it is.
    fn with_output(&self, conn: ConnId, fill: &mut dyn FnMut(&mut BytesMut)) {
        if conn.shard == CONTROL_SHARD {
            if let Some(connection) = self.hub.find(conn) {
                connection.send(fill);
            }
            return;
        }
        let mut frame = BytesMut::new();
        fill(&mut frame);
        self.deliver(conn, frame.freeze());
    }

    fn deliver(&self, conn: ConnId, frame: Bytes) {
        self.mesh.post(conn.shard, Mail::Deliver { conn, frame });
    }

    /// Waits until the tables that changed are on disk. Changes that come while files are written share the next
    /// write: each file holds its whole table, and a burst of new topics must not write (and keep) a copy for each.
    ///
    /// # Errors
    /// The file and what is wrong with it; it is in the log already.
    async fn persist(self: &Rc<Self>, dirty: Dirty) -> Result<(), String> {
        if !dirty.any() {
            return Ok(());
        }
        let (done, saved) = flume::bounded(1);
        self.unsaved.borrow_mut().tables |= dirty;
        self.unsaved.borrow_mut().waiting.push(done);
        if !self.saving.replace(true) {
            glommio::spawn_local(Rc::clone(self).save_rounds()).detach();
        }
        saved.recv_async().await.unwrap_or_else(|_| Err("the node stops".into()))
    }

    /// Saves what is unsaved until nothing is.
    async fn save_rounds(self: Rc<Self>) {
        loop {
            let Unsaved { tables, waiting } = self.unsaved.take();
            if waiting.is_empty() {
                break;
            }
            let saved = self.save(tables).await;
            for waiter in waiting {
                // One that does not wait any more needs no answer.
                let _ = waiter.send(saved.clone());
            }
        }
        self.saving.set(false);
    }

    /// Writes the files of the tables, on the helper thread.
    async fn save(&self, dirty: Dirty) -> Result<(), String> {
        let mut files = Vec::new();
        let (dirty, topics, births) = {
            let control = self.control.borrow();
            let births = control.unsaved_births();
            // Topics that are shown are on disk, those that are not are to be written, whoever asked.
            let dirty = Dirty { topics: control.unshown().topics || births.is_some(), ..dirty };
            if let Some(births) = &births {
                // In this order: what a start finds deleted here it takes out of the two tables that are older.
                files.push((self.layout.births(), births.encode()));
                files.push((self.layout.config(names::CONSUMER_OFFSETS), control.encode_consumer_offsets()));
            }
            if dirty.topics {
                files.push((self.layout.config(names::TOPICS), control.encode_topics()));
            }
            if dirty.groups {
                files.push((self.layout.config(names::SUBSCRIPTION_GROUPS), control.encode_groups()));
            }
            if dirty.kv_config {
                files.push((self.layout.own().join(KV_CONFIG), control.encode_kv_config()));
            }
            (dirty, control.topics(), births)
        };
        if dirty.topics {
            self.register();
        }
        self.write(files).await?;
        let mut control = self.control.borrow_mut();
        control.show(topics);
        if let Some(births) = births {
            control.births_saved(births);
        }
        Ok(())
    }

    async fn write(&self, files: Vec<(std::path::PathBuf, Vec<u8>)>) -> Result<(), String> {
        let done = self
            .blocking
            .run(move || {
                files.iter().try_for_each(|(path, bytes)| {
                    io::replace_keeping_old(path, bytes).map_err(|error| format!("{}: {error}", path.display()))
                })
            })
            .await;
        if let Err(error) = &done {
            // Each request that changes a table tries; a full disk must not fill the log, too.
            let now = io::steady_ms();
            if now >= self.quiet_until.get() {
                self.quiet_until.set(now + QUIET_MS);
                tracing::error!(%error, "a table could not be saved; it is lost if the node stops now (told once in ten seconds)");
            }
        }
        done
    }

    /// Tells outside name servers what this node has; failures are retried by the next round.
    fn register(&self) {
        if self.name_servers.is_empty() {
            return;
        }
        match self.control.borrow().registration() {
            Ok(request) => self.tell_name_servers(&request),
            Err(error) => tracing::error!(%error, "registration with name servers"),
        }
    }

    fn tell_name_servers(&self, request: &crate::broker::control::NameServerRequest) {
        for server in &self.name_servers {
            let mut frame = BytesMut::new();
            request.encode(&mut frame, self.next_opaque.get(), 0);
            let (server, blocking) = (server.clone(), self.blocking.clone());
            glommio::spawn_local(async move {
                let named = server.clone();
                let addr = blocking.run(move || named.to_socket_addrs().map(|mut found| found.next())).await;
                let told = match addr {
                    Ok(Some(addr)) => net::exchange(addr, frame).await.map(|_| ()),
                    Ok(None) => Err(std::io::ErrorKind::NotFound.into()),
                    Err(error) => Err(error),
                };
                if let Err(error) = told {
                    tracing::warn!(server, %error, "name server not reached");
                }
            })
            .detach();
        }
    }

    /// The periodic tasks; each runs until the executor ends.
    pub fn side_tasks(self: &Rc<Self>) -> Vec<std::pin::Pin<Box<dyn Future<Output = ()>>>> {
        vec![
            Box::pin(Rc::clone(self).run_scans()),
            Box::pin(Rc::clone(self).run_offsets()),
            Box::pin(Rc::clone(self).run_delay_offsets()),
            Box::pin(Rc::clone(self).run_registration()),
            Box::pin(Rc::clone(self).run_history()),
        ]
    }

    async fn run_scans(self: Rc<Self>) {
        loop {
            io::sleep(SCAN_INTERVAL).await;
            let (silent, pushes) = self.control.borrow_mut().scan_idle(io::now());
            self.push(pushes);
            for conn in silent {
                if conn.shard != CONTROL_SHARD {
                    self.mesh.post(conn.shard, Mail::Close { conn });
                } else if let Some(connection) = self.hub.find(conn) {
                    connection.close();
                }
            }
        }
    }

    async fn run_offsets(self: Rc<Self>) {
        let mut saved = self.control.borrow().consumer_offset_updates();
        loop {
            io::sleep(OFFSETS_INTERVAL).await;
            let updates = self.control.borrow().consumer_offset_updates();
            if updates != saved {
                let bytes = self.control.borrow().encode_consumer_offsets();
                if self.write(vec![(self.layout.config(names::CONSUMER_OFFSETS), bytes)]).await.is_ok() {
                    saved = updates;
                }
            }
        }
    }

    async fn run_delay_offsets(self: Rc<Self>) {
        let mut saved = self.delays.saved_table(self.shared.flushed());
        loop {
            io::sleep(DELAY_OFFSETS_INTERVAL).await;
            let table = self.delays.saved_table(self.shared.flushed());
            if table != saved {
                let bytes = self.encode_delay_offsets();
                if self.write(vec![(self.layout.config(names::DELAY_OFFSETS), bytes)]).await.is_ok() {
                    saved = table;
                }
            }
        }
    }

    fn encode_delay_offsets(&self) -> Vec<u8> {
        let mut file = self.delay_version.borrow_mut();
        file.table = self.delays.saved_table(self.shared.flushed()).into_iter().collect();
        file.data_version = file.data_version.next(io::now());
        file.encode()
    }

    async fn run_registration(self: Rc<Self>) {
        if self.name_servers.is_empty() {
            return;
        }
        loop {
            self.register();
            io::sleep(REGISTER_INTERVAL).await;
        }
    }

    /// Saves every table; the last thing the role does.
    ///
    /// # Errors
    /// What could not be saved: the stop is not a clean one then.
    pub async fn save_all(&self) -> Result<(), String> {
        if !self.name_servers.is_empty() {
            self.tell_name_servers(&self.control.borrow().unregistration());
            io::sleep(Duration::from_millis(100)).await;
        }
        let files = {
            let control = self.control.borrow();
            let births = control.unsaved_births().map(|births| (self.layout.births(), births.encode()));
            let mut files = Vec::from_iter(births);
            files.extend([
                (self.layout.config(names::CONSUMER_OFFSETS), control.encode_consumer_offsets()),
                (self.layout.config(names::TOPICS), control.encode_topics()),
                (self.layout.config(names::SUBSCRIPTION_GROUPS), control.encode_groups()),
                (self.layout.config(names::DELAY_OFFSETS), self.encode_delay_offsets()),
            ]);
            files
        };
        self.write(files).await
    }
}

/// Removes the folder of a deleted topic; what it does not get to the next start removes.
async fn remove_in_steps(blocking: Blocking, folder: PathBuf) {
    loop {
        let at = folder.clone();
        match blocking.run(move || remove_deleted(&at)).await {
            Ok(true) => io::sleep(REMOVE_PAUSE).await,
            Ok(false) => return,
            Err(error) => {
                let path = folder.display();
                return tracing::warn!(%path, %error, "a deleted topic's consume queues stay until the next start");
            }
        }
    }
}

/// The store's registry, as control uses it.
pub struct Registry {
    pub queues: QueueRegistry,
    pub shared: Arc<Shared>,
}

impl QueueMaker for Registry {
    fn queue(&mut self, key: &QueueKey) -> Arc<QueueView> {
        self.queues.queue(key)
    }

    fn queues_of(&self, topic: &str) -> Vec<Arc<QueueView>> {
        self.queues.queues_of(topic)
    }

    fn retire(&mut self, topic: &str) {
        self.queues.retire(topic);
    }

    fn starts_in_memory(&self, queue: &Arc<QueueView>) -> bool {
        queue.units_from(QueueOffset(0)).and_then(|run| run.first()).is_none_or(|unit| self.shared.in_memory(unit.phy))
    }
}

/// The clock as control and delay delivery want it.
pub fn clock() -> Timestamp {
    io::now()
}
