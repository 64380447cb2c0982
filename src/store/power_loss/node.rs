//! The roles of a store as a node runs them, all on the executor of a simulation, and what its clients do.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;

use bytes::BytesMut;

use super::checks::{BORN_TIMESTAMP, Check, FLAG, RECONSUME_TIMES, ensure, is_whole};
use super::ledger::{Ledger, Place, State};
use crate::dispatch::ring;
use crate::format::checkpoint::Checkpoint;
use crate::format::config_files::ConsumerOffsetsFile;
use crate::format::names;
use crate::format::record::RecordView;
use crate::io::sim::{Dice, Ran, SimDisk, Simulation, TaskId};
use crate::io::{Blocking, Job, StoreLock, replace_keeping_old};
use crate::store::builder::Builder;
use crate::store::index_builder::IndexBuilder;
use crate::store::keeper::Keeper;
use crate::store::layout::Layout;
use crate::store::open::{Closing, OpenedStore, close};
use crate::store::queues::{QueueRegistry, QueueView};
use crate::store::reader::{GetStatus, ShardStore};
use crate::store::scans::Reader;
use crate::store::shared::{FlushMode, PutFlush, Shared};
use crate::store::submit::{LocalWake, Message, PutOutcome, PutStatus, Submitter, TagsRule};
use crate::store::writer::{Writer, WriterRings};
use crate::types::{QueueKey, QueueOffset, TagsCode};

/// More than any run takes; then something waits for what never comes.
const LIMIT_MS: u64 = 600_000;

/// What a simulation keeps over all its processes.
#[derive(Clone)]
pub struct World {
    pub sim: Rc<Simulation>,
    pub disk: Rc<SimDisk>,
    pub dice: Rc<Dice>,
    pub ledger: Rc<RefCell<Ledger>>,
    /// What the consumer offsets file was last saved with, and what was last tried.
    pub config: Rc<Cell<(i64, i64)>>,
    /// The first thing that a client found wrong.
    pub found: Rc<RefCell<Option<String>>>,
    /// What topics say of flushing, for the process that runs.
    pub policies: Rc<RefCell<BTreeMap<Arc<str>, Option<FlushMode>>>>,
}

impl World {
    fn report(&self, outcome: Check) {
        if let Err(found) = outcome
            && !self.disk.is_off()
        {
            self.found.borrow_mut().get_or_insert(found);
        }
    }
}

/// A running process.
pub struct Node {
    world: World,
    pub shared: Arc<Shared>,
    layout: Layout,
    _lock: StoreLock,
    pub queues: Rc<RefCell<QueueRegistry>>,
    pub stores: Vec<ShardStore>,
    submitters: Vec<Rc<Submitter>>,
    index: Rc<IndexBuilder>,
    checkpoint: Checkpoint,
    blocking: Blocking,
    writer: TaskId,
    writer_side: Rc<RefCell<Vec<TaskId>>>,
    submits: Vec<TaskId>,
    derived: Vec<TaskId>,
    side: Vec<TaskId>,
    pub clients: Vec<TaskId>,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    AsPlanned,
    /// The process is gone.
    Crashed,
}

impl Node {
    /// Starts all roles of an opened store on `shards` shards.
    pub fn start(world: &World, opened: OpenedStore, shards: usize) -> Node {
        let OpenedStore { lock, layout, shared, queues, index_files, writer_start, checkpoint, .. } = opened;
        let sim = &world.sim;
        let ring_len = 1 << world.dice.below(4);
        let (helper_thread, appends) = (helper(world), helper(world));
        let list = queues.list();
        let durable_up_to: Vec<_> = (0..shards).map(|_| Arc::new(AtomicI64::new(i64::MAX))).collect();
        let (keys_tx, keys) = ring(ring_len);
        let mut rings = WriterRings { from_shards: vec![], replies: vec![], dispatch: vec![], keys: keys_tx };
        let (mut submits, mut derived, mut side) = (vec![], vec![], vec![helper_thread.1, appends.1]);
        let blocking = helper_thread.0.beside(&appends.0);
        let (mut stores, mut submitters) = (vec![], vec![]);
        let full_up_to = Arc::new(AtomicI64::new(checkpoint.index.0));
        let index_durable_up_to = Arc::new(AtomicI64::new(i64::MAX));
        let index = IndexBuilder::new(
            Arc::clone(&shared),
            layout.clone(),
            blocking.clone(),
            index_files,
            Arc::clone(&full_up_to),
            Arc::clone(&index_durable_up_to),
        );
        derived.push(sim.spawn(Rc::clone(&index).run(keys)));
        side.push(sim.spawn(Rc::clone(&index).run_reserve()));
        side.push(sim.spawn(Rc::clone(&index).run_flusher()));
        for (shard, durable_up_to) in durable_up_to.iter().enumerate() {
            let (to_writer, from_shard) = ring(ring_len);
            let (reply_tx, replies) = ring(ring_len);
            let (dispatch_tx, dispatch) = ring(ring_len);
            rings.from_shards.push(from_shard);
            rings.replies.push(reply_tx);
            rings.dispatch.push(dispatch_tx);
            let submitter = Submitter::new(Arc::clone(&shared));
            let builder = Builder::new(
                Arc::clone(&shared),
                layout.clone(),
                blocking.clone(),
                Arc::clone(&list),
                shards,
                Box::new(|_, _| {}),
                Arc::clone(durable_up_to),
            );
            derived.push(sim.spawn(Rc::clone(&builder).run(dispatch)));
            side.push(sim.spawn(builder.run_flusher(2)));
            submits.push(sim.spawn(Rc::clone(&submitter).run_submit(to_writer)));
            derived.push(sim.spawn(Rc::clone(&submitter).run_replies(replies)));
            let of_shard = (shard == 0).then(|| Rc::clone(&index));
            stores.push(ShardStore::new(Arc::clone(&shared), Rc::clone(&submitter), of_shard, blocking.clone()));
            submitters.push(submitter);
        }
        let keeper = Keeper {
            shared: Arc::clone(&shared),
            layout: layout.clone(),
            place: crate::store::StorePlace::new(&layout),
            blocking: blocking.clone(),
            durable_up_to: durable_up_to.into_iter().chain([index_durable_up_to]).collect(),
            index_full_up_to: full_up_to,
            checkpoint,
        };
        side.push(sim.spawn(keeper.run()));
        let writer_side = Rc::new(RefCell::new(Vec::new()));
        let (shared_too, layout_too, blocking_too) = (Arc::clone(&shared), layout.clone(), appends.0.clone());
        let (world_too, side_too) = (world.clone(), Rc::clone(&writer_side));
        let writer = sim.spawn(async move {
            match Writer::open(shared_too, layout_too, blocking_too, rings, writer_start).await {
                Ok(writer) => {
                    for task in writer.side_tasks() {
                        side_too.borrow_mut().push(world_too.sim.spawn(task));
                    }
                    writer.run().await;
                }
                Err(error) => {
                    // The shards' ends of the rings are closed; the node would not start.
                    if !world_too.disk.has_failed() {
                        world_too.report(Err(format!("the writer cannot be opened: {error}")));
                    }
                }
            }
        });
        Node {
            world: world.clone(),
            shared,
            layout,
            _lock: lock,
            queues: Rc::new(RefCell::new(queues)),
            stores,
            submitters,
            index,
            checkpoint,
            blocking,
            writer,
            writer_side,
            submits,
            derived,
            side,
            clients: Vec::new(),
        }
    }

    /// Runs until `reached`, or the process is gone.
    pub fn run_until(&self, reached: impl Fn() -> bool) -> Result<Ended, String> {
        let World { sim, disk, found, .. } = &self.world;
        let ran = sim.run_until(LIMIT_MS, || disk.is_off() || found.borrow().is_some() || reached());
        if let Some(found) = found.borrow_mut().take() {
            return Err(found);
        }
        match ran {
            Ran::Reached if disk.is_off() => Ok(Ended::Crashed),
            Ran::Reached => Ok(Ended::AsPlanned),
            Ran::Stuck => Err("nothing runs any more, and something waits".into()),
            Ran::TooLong => Err("something takes for ever".into()),
        }
    }

    pub fn all_done(&self, tasks: &[TaskId]) -> bool {
        tasks.iter().all(|task| self.world.sim.is_done(*task))
    }

    /// A clean stop after `ms` without work.
    pub fn stop_after(self, ms: u64) -> Result<Ended, String> {
        let deadline = self.world.sim.now_ms() + ms;
        match self.run_until(|| self.world.sim.now_ms() >= deadline)? {
            Ended::AsPlanned => self.stop(),
            Ended::Crashed => Ok(Ended::Crashed),
        }
    }

    /// A clean stop, in the order of a node.
    pub fn stop(self) -> Result<Ended, String> {
        let sim = &self.world.sim;
        self.shared.stop_puts();
        for client in &self.clients {
            sim.cancel(*client);
        }
        let drained = || self.submitters.iter().all(|submitter| submitter.pending() == 0) || sim.is_done(self.writer);
        if self.run_until(drained)? == Ended::Crashed {
            return Ok(Ended::Crashed);
        }
        self.submits.iter().for_each(|task| sim.cancel(*task));
        if self.run_until(|| sim.is_done(self.writer))? == Ended::Crashed {
            return Ok(Ended::Crashed);
        }
        self.writer_side.borrow().iter().for_each(|task| sim.cancel(*task));
        if self.run_until(|| self.all_done(&self.derived))? == Ended::Crashed {
            return Ok(Ended::Crashed);
        }
        self.side.iter().for_each(|task| sim.cancel(*task));
        let queues: Vec<_> = self.queues.borrow().list().iter().map(|(_, queue)| Arc::clone(queue)).collect();
        let closed = close(&Closing {
            layout: self.layout.clone(),
            shared: Arc::clone(&self.shared),
            queues: &queues,
            index_files: self.index.files(),
            checkpoint: self.checkpoint,
        });
        match closed {
            _ if self.world.disk.is_off() => Ok(Ended::Crashed),
            Err(_) if self.world.disk.has_failed() => Ok(Ended::AsPlanned),
            closed => closed.map(|()| Ended::AsPlanned).map_err(|error| format!("the store cannot be closed: {error}")),
        }
    }

    fn is_sync(&self) -> bool {
        self.shared.settings.flush == FlushMode::Sync
    }

    /// Puts one message whose sender waits; its answer is noted with the ms that it took.
    pub fn put_one(&self, key: &QueueKey, answers: &Rc<RefCell<Vec<(u64, PutStatus)>>>) {
        let queue = self.queues.borrow_mut().queue(key);
        let message = Message {
            queue: &queue,
            flag: FLAG,
            sys_flag: 0,
            born_timestamp: BORN_TIMESTAMP,
            born_host: "127.0.0.1:1234".parse().expect("an address"),
            reconsume_times: RECONSUME_TIMES,
            prepared_transaction_offset: 0,
            body: b"body",
            properties: &[],
            tags: TagsRule::Code(TagsCode::of(None)),
            keys: Default::default(),
        };
        let (sim, answers) = (Rc::clone(&self.world.sim), Rc::clone(answers));
        let began = sim.now_ms();
        let done = move |outcome: PutOutcome| answers.borrow_mut().push((sim.now_ms() - began, outcome.status));
        let flush = PutFlush { topic: None, may_wait: true };
        self.stores[0].put(&[message], flush, Box::new(done)).expect("it is taken");
    }

    /// A client that puts `count` times on one shard, and waits for some of the answers.
    pub fn spawn_producer(&mut self, dice: Dice, shard: usize, keys: Vec<QueueKey>, count: u64, body_max: u64) {
        let (world, store, queues) = (self.world.clone(), self.stores[shard].clone(), Rc::clone(&self.queues));
        let node_default = self.shared.settings.flush;
        let pause_ms = *dice.one_of(&[0, 2, 30, 400, 3000]);
        let waits = *dice.one_of(&[0, 50, 100]);
        let wait = *dice.one_of(&[100, 100, 80, 0]);
        self.clients.push(self.world.sim.spawn(async move {
            for _ in 0..count {
                Rc::clone(&world.sim).sleep(dice.below(pause_ms + 1)).await;
                let key = dice.one_of(&keys);
                let batch = if dice.chance(80) { 1 } else { dice.between(2, 4) };
                let bodies: Vec<_> = (0..batch)
                    .map(|_| if dice.chance(90) { dice.below(300) } else { dice.below(body_max) } as usize)
                    .collect();
                let topic = world.policies.borrow().get(&key.topic).copied().flatten();
                let flush = PutFlush { topic, may_wait: dice.chance(wait) };
                let is_sync = flush.may_wait && topic.unwrap_or(node_default) == FlushMode::Sync;
                let answered = put(&world, &store, &queues, shard, key, &bodies, flush, is_sync);
                if dice.chance(waits) {
                    answered.wait().await;
                }
            }
        }));
    }

    /// A client that reads what is visible and compares it with what was sent.
    pub fn spawn_reader(&mut self, dice: Dice, shard: usize, keys: Vec<QueueKey>) {
        let (world, store, queues) = (self.world.clone(), self.stores[shard].clone(), Rc::clone(&self.queues));
        let is_sync = self.is_sync();
        let pause_ms = *dice.one_of(&[50, 500, 3000]);
        self.side.push(self.world.sim.spawn(async move {
            loop {
                Rc::clone(&world.sim).sleep(dice.between(1, pause_ms)).await;
                let key = dice.one_of(&keys);
                let topic = world.policies.borrow().get(&key.topic).copied().flatten();
                let is_sync = is_sync || topic == Some(FlushMode::Sync);
                let queue = queues.borrow_mut().queue(key);
                let (min, max) = (queue.min().0, queue.max().0);
                let from = if dice.chance(50) { max.saturating_sub(dice.below(4)) } else { dice.below(max + 1) };
                let read = read(&world, &store, &queue, from.max(min), is_sync).await;
                world.report(read);
            }
        }));
    }

    /// Saves a config file now and then, each time with a higher number.
    pub fn spawn_config_saver(&mut self, dice: Dice) {
        let (world, blocking, layout) = (self.world.clone(), self.blocking.clone(), self.layout.clone());
        self.side.push(self.world.sim.spawn(async move {
            loop {
                Rc::clone(&world.sim).sleep(dice.between(1, 700)).await;
                let (saved, tried) = world.config.get();
                world.config.set((saved, tried + 1));
                let path = layout.config(names::CONSUMER_OFFSETS);
                let bytes = config_file(tried + 1).encode();
                if blocking.run(move || replace_keeping_old(&path, &bytes)).await.is_ok() && !world.disk.is_off() {
                    world.config.set((tried + 1, tried + 1));
                }
            }
        }));
    }
}

#[expect(clippy::too_many_arguments, reason = "one call site of a test")]
fn put(
    world: &World,
    store: &ShardStore,
    queues: &RefCell<QueueRegistry>,
    shard: usize,
    key: &QueueKey,
    bodies: &[usize],
    flush: PutFlush,
    is_sync: bool,
) -> Rc<LocalWake> {
    let answered = Rc::new(LocalWake::default());
    let queue = queues.borrow_mut().queue(key);
    let is_schedule = &*key.topic == "SCHEDULE_TOPIC_XXXX";
    let level = is_schedule.then(|| (key.queue_id as usize + 1, [1000, 5000][key.queue_id as usize]));
    let mut ledger = world.ledger.borrow_mut();
    let numbers: Vec<_> = bodies.iter().map(|len| ledger.send(&world.dice, shard, key.clone(), *len, level)).collect();
    let sent: Vec<_> = numbers.iter().map(|number| ledger.sent[*number].clone()).collect();
    drop(ledger);
    let texts: Vec<[&[u8]; 1]> = sent.iter().map(|sent| [sent.properties.as_bytes()]).collect();
    let messages: Vec<_> = sent
        .iter()
        .zip(&texts)
        .map(|(sent, properties)| Message {
            queue: &queue,
            flag: FLAG,
            sys_flag: 0,
            born_timestamp: BORN_TIMESTAMP,
            born_host: "127.0.0.1:1234".parse().expect("an address"),
            reconsume_times: RECONSUME_TIMES,
            prepared_transaction_offset: 0,
            body: &sent.body,
            properties,
            tags: sent.tags,
            keys: sent.keys.clone(),
        })
        .collect();
    let (world_too, numbers_too, wake) = (world.clone(), numbers.clone(), Rc::clone(&answered));
    let done = Box::new(move |outcome| {
        if !world_too.disk.is_off() {
            world_too.ledger.borrow_mut().answered(&numbers_too, &outcome, is_sync);
            wake.wake();
        }
    });
    if store.put(&messages, flush, done).is_err() {
        world.ledger.borrow_mut().refused(&numbers);
        answered.wake();
    }
    answered
}

async fn read(world: &World, store: &ShardStore, queue: &Arc<QueueView>, from: u64, is_sync: bool) -> Check {
    let mut got = store.get(queue, from as i64, 8, 1 << 20, &|_| true);
    let reader = Reader::Group("G".into());
    if got.status == GetStatus::UnitsCold {
        let cold = store.get_cold(&reader, queue, from as i64, 8, 1 << 20, &|_| true).await;
        got = cold.map_err(|error| format!("units of {}: {error}", queue.key()))?;
    }
    if got.status != GetStatus::Found {
        let at_end = matches!(got.status, GetStatus::NoMessageInQueue | GetStatus::OffsetOverflowOne);
        ensure!(at_end && from == got.max_offset as u64, "a get of {from} in {} gives {:?}", queue.key(), got.status);
        return Ok(());
    }
    let mut bytes = BytesMut::new();
    if !got.found.copy_if_resident(&mut bytes) {
        let loaded = got.found.load(&reader).await.map_err(|error| format!("a read in {}: {error}", queue.key()))?;
        bytes.extend_from_slice(&loaded.records);
    }
    if world.disk.is_off() {
        return Ok(());
    }
    let (mut at, mut offset) = (0, from);
    while at < bytes.len() {
        let view = RecordView::parse(&bytes[at..]).map_err(|why| format!("{offset} of {}: {why}", queue.key()))?;
        ensure!(view.check_crc(), "{offset} of {}: the CRC does not match", queue.key());
        let mut ledger = world.ledger.borrow_mut();
        let number = ledger.of_body(view.body()).ok_or_else(|| format!("nobody sent {offset} of {}", queue.key()))?;
        is_whole(&ledger, number, &view)?;
        let place = Place { offset: QueueOffset(offset), phy: view.phy(), len: view.total_len() };
        ensure!(view.queue_offset() == place.offset, "{} is read at {offset}", view.queue_offset());
        match ledger.sent[number].state {
            State::Unknown => {}
            State::Stored(known) => ensure!(known == place, "message {number} was at {known:?}, is read at {place:?}"),
            State::Absent => return Err(format!("message {number} is not stored, but is read at {place:?}")),
        }
        // What was shown in sync mode is on stable storage.
        ledger.stored(number, place, is_sync);
        ledger.read += 1;
        at += view.total_len() as usize;
        offset += 1;
    }
    Ok(())
}

/// The helper thread: one job after another, each a while after it was asked for.
fn helper(world: &World) -> (Blocking, TaskId) {
    let (submit, jobs) = flume::unbounded::<Job>();
    let blocking = Blocking::new(move |job| {
        // Nobody takes it once the process is over.
        let _ = submit.send(job);
    });
    let (world_too, dice) = (world.clone(), world.dice.fork());
    let pause_ms = *dice.one_of(&[0, 0, 5, 50]);
    let task = world.sim.spawn(async move {
        while let Ok(job) = jobs.recv_async().await {
            Rc::clone(&world_too.sim).sleep(dice.below(pause_ms + 1)).await;
            job();
        }
    });
    (blocking, task)
}

const GROUP: &str = "T@G";

fn config_file(number: i64) -> ConsumerOffsetsFile {
    let table = [(GROUP.to_owned(), [(0, number)].into())].into();
    ConsumerOffsetsFile { table, ..ConsumerOffsetsFile::default() }
}

/// The number that was saved last must be there, or one that was tried after it.
pub fn check_config(world: &World, found: &ConsumerOffsetsFile) -> Check {
    let found = found.table.get(GROUP).and_then(|offsets| offsets.get(&0)).copied().unwrap_or(0);
    let (saved, tried) = world.config.get();
    ensure!((saved..=tried).contains(&found), "the config file says {found}; {saved} was saved, {tried} tried");
    world.config.set((found, tried));
    Ok(())
}
