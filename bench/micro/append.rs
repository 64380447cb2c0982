//! The append path on one core: encode, hand over, number, stage, write.
//!
//! One glommio executor, pinned, runs the store's own roles: a [`Submitter`] encodes each message as it does for a
//! connection and hands batches through the ring to the [`Writer`], which numbers, stages and writes them to a real
//! segment and answers through the other ring. In the cases `append` the dispatch entries are taken out of their rings
//! and dropped; in `append_and_build` the real builders write consume queue units and index entries on the same core.
//!
//! `plain_pwrite` is the floor: the same bytes by pwrite, half of what is in flight at a time, from a thread that does
//! nothing else. What a fresh page of the page cache costs is in it and in every other case, and on a virtual machine
//! that gives free memory back to its host it may be twenty times what it is elsewhere. So each case writes less than
//! 1 GiB or so, and touches that much memory before.
//!
//! io_uring may finish a write on a kernel thread of the process, which may run on another core. So besides the rate by
//! the clock each case prints the processor time a message over all threads: its inverse is what one core alone would do.

mod conditions;
mod workload;

use std::cell::Cell;
use std::fs::File;
use std::future::poll_fn;
use std::hint::black_box;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, SamplingMode, Throughput, criterion_group, criterion_main};
use glommio::{ExecutorJoinHandle, LocalExecutorBuilder, Placement};
use kerolox::config::ZeroAhead;
use kerolox::dispatch::{Receiver, ring};
use kerolox::io::{AppendMode, SyncCall};
use kerolox::store::{
    self, Builder, FlushMode, IndexBuilder, LocalWake, Message, OpenedStore, PutFlush, PutStatus, QueueView, Submitter,
    TagsRule, Writer, WriterRings,
};
use kerolox::types::{QueueKey, TagsCode};
use rustix::time::{ClockId, clock_gettime};
use smallvec::smallvec;
use tempfile::TempDir;
use workload::{Sent, TOPIC};

/// As the node has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Messages of one iteration: some hundred turns with few in flight, one with many.
const ITERATION: u64 = 4096;
/// Messages in flight: what 8 connections make with 16, 64 and 512 each.
const IN_FLIGHT: [u64; 3] = [128, 512, 4096];
/// The same for senders that wait for the disk: a flush for every few messages, and for many.
const IN_FLIGHT_SYNC: [u64; 3] = [8, 128, 4096];
/// Bytes of one of the records, about.
const RECORD_LEN: usize = 1190;
/// Lengths of the node's rings (`node/run.rs`).
const SUBMIT_RING_LEN: usize = 1024;
const DISPATCH_RING_LEN: usize = 64;

/// Memory that a case touches before it begins, so that the page cache finds pages which the machine really has.
const TOUCHED_LEN: usize = 3 << 29;

/// What is done with a turn's dispatch entries.
#[derive(Clone, Copy)]
enum Derive {
    /// Taken out of the ring and dropped.
    Drop,
    /// Built into consume queues and index.
    Build,
}

/// How the log is written and flushed.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    append: AppendMode,
    flush: FlushMode,
    sync_call: SyncCall,
}

impl Case {
    const fn of(name: &'static str, append: AppendMode, flush: FlushMode, sync_call: SyncCall) -> Case {
        Case { name, append, flush, sync_call }
    }
}

/// Nobody waits for a flush.
const ASYNC: [Case; 3] = [
    Case::of("buffered", AppendMode::Buffered, FlushMode::Async, SyncCall::Fdatasync),
    Case::of("mmap", AppendMode::Mmap, FlushMode::Async, SyncCall::Fdatasync),
    Case::of("dma", AppendMode::Dma, FlushMode::Async, SyncCall::Fdatasync),
];
/// Everybody does.
const SYNC: [Case; 5] = [
    Case::of("buffered_o_dsync", AppendMode::Buffered, FlushMode::Sync, SyncCall::ODsync),
    Case::of("buffered_fdatasync", AppendMode::Buffered, FlushMode::Sync, SyncCall::Fdatasync),
    Case::of("mmap_fdatasync", AppendMode::Mmap, FlushMode::Sync, SyncCall::Fdatasync),
    Case::of("dma_o_dsync", AppendMode::Dma, FlushMode::Sync, SyncCall::ODsync),
    Case::of("dma_fdatasync", AppendMode::Dma, FlushMode::Sync, SyncCall::Fdatasync),
];

/// How long some messages took, by the clock and in processor time of all threads.
struct Took {
    clock: Duration,
    cpu: Duration,
}

/// A store with its roles on an executor of its own, which appends as many messages as it is told.
struct Appender {
    orders: flume::Sender<u64>,
    results: flume::Receiver<Took>,
    executor: ExecutorJoinHandle<()>,
    dir: TempDir,
}

impl Appender {
    fn start(case: Case, derive: Derive, in_flight: u64) -> Appender {
        let dir = workload::directory();
        touch_memory();
        let mut settings = workload::settings(dir.path(), case.append);
        (settings.flush, settings.sync_call) = (case.flush, Some(case.sync_call));
        settings.zero_ahead = ZeroAhead::Auto;
        let opened = store::open(settings, workload::MEMORY_LEN, &store::Opening::unstopped()).expect("an empty store");
        let (orders, order) = flume::bounded(1);
        let (result, results) = flume::bounded(1);
        let core = core_affinity::get_core_ids().and_then(|cores| cores.last().copied()).expect("a core");
        let executor = LocalExecutorBuilder::new(Placement::Fixed(core.id))
            .io_memory(1 << 20)
            .spawn(move || append_as_ordered(opened, derive, in_flight, order, result))
            .expect("an executor");
        Appender { orders, results, executor, dir }
    }

    fn append(&self, count: u64) -> Took {
        self.orders.send(count).expect("the executor waits for orders");
        self.results.recv().expect("the executor appends")
    }

    fn stop(self) {
        drop(self.orders);
        self.executor.join().expect("the executor ends");
        drop(self.dir);
    }
}

async fn append_as_ordered(
    opened: OpenedStore,
    derive: Derive,
    in_flight: u64,
    orders: flume::Receiver<u64>,
    results: flume::Sender<Took>,
) {
    let OpenedStore { lock, layout, shared, mut queues, writer_start, .. } = opened;
    let views: Vec<_> = (0..workload::QUEUES).map(|id| queues.queue(&QueueKey::new(TOPIC, id))).collect();
    let blocking = workload::helper();
    let (to_writer, from_shard) = ring(SUBMIT_RING_LEN);
    let (reply_tx, replies) = ring(SUBMIT_RING_LEN);
    let (dispatch_tx, dispatch) = ring(DISPATCH_RING_LEN);
    let (keys_tx, keys) = ring(DISPATCH_RING_LEN);
    let rings = WriterRings {
        from_shards: vec![from_shard],
        replies: vec![reply_tx],
        dispatch: vec![dispatch_tx],
        keys: keys_tx,
    };
    let writer = Writer::open(Arc::clone(&shared), layout.clone(), blocking.clone(), rings, writer_start)
        .await
        .expect("a segment can be made");
    let mut side: Vec<_> = writer.side_tasks().into_iter().map(glommio::spawn_local).collect();
    let mut roles = vec![glommio::spawn_local(writer.run())];
    match derive {
        Derive::Drop => {
            roles.push(glommio::spawn_local(drop_all(dispatch)));
            roles.push(glommio::spawn_local(drop_all(keys)));
        }
        Derive::Build => {
            let durable = Arc::new(AtomicI64::new(i64::MAX));
            let list = queues.list();
            let untold = Box::new(|_: &Arc<QueueView>, _| {});
            let units = Builder::new(
                Arc::clone(&shared),
                layout.clone(),
                blocking.clone(),
                list,
                1,
                untold,
                Arc::clone(&durable),
            );
            let full = Arc::new(AtomicI64::new(0));
            let index = IndexBuilder::new(Arc::clone(&shared), layout, blocking.clone(), Vec::new(), full, durable);
            side.push(glommio::spawn_local(Rc::clone(&index).run_reserve()));
            roles.push(glommio::spawn_local(units.run(dispatch)));
            roles.push(glommio::spawn_local(index.run(keys)));
        }
    }
    let submitter = Submitter::new(shared);
    let submit = glommio::spawn_local(Rc::clone(&submitter).run_submit(to_writer));
    roles.push(glommio::spawn_local(Rc::clone(&submitter).run_replies(replies)));

    let producer = Producer { submitter, views, in_flight, sent: workload::messages(), flight: Rc::default() };
    while let Ok(count) = orders.recv_async().await {
        let (clock, cpu) = (Instant::now(), cpu_time());
        producer.append(count).await;
        let took = Took { clock: clock.elapsed(), cpu: cpu_time() - cpu };
        results.send(took).expect("somebody waits for the result");
    }
    // The writer ends when the ring to it closes, and then everybody that it sends to.
    drop(producer);
    submit.cancel().await;
    let writer = roles.remove(0);
    writer.await;
    for task in side {
        task.cancel().await;
    }
    for role in roles {
        role.await;
    }
    drop(lock);
}

async fn drop_all<T: Send>(mut entries: Receiver<T>) {
    while let Ok(batch) = poll_fn(|cx| entries.poll_recv(cx)).await {
        black_box(batch);
    }
}

/// Puts messages as the connections of a shard do: while half of those in flight are with the writer, the other half is
/// encoded in one turn.
struct Producer {
    submitter: Rc<Submitter>,
    views: Vec<Arc<QueueView>>,
    sent: Vec<Sent>,
    in_flight: u64,
    flight: Rc<Flight>,
}

#[derive(Default)]
struct Flight {
    unanswered: Cell<u64>,
    answered: LocalWake,
}

impl Producer {
    async fn append(&self, count: u64) {
        let turn = self.in_flight / 2;
        let mut number = 0;
        while number < count {
            self.at_most(self.in_flight - turn).await;
            for _ in 0..turn.min(count - number) {
                self.put(number as usize);
                number += 1;
            }
            // The turn ends here: what was put goes to the writer as one batch.
            futures_lite::future::yield_now().await;
        }
        self.at_most(0).await;
    }

    async fn at_most(&self, unanswered: u64) {
        while self.flight.unanswered.get() > unanswered {
            self.flight.answered.wait().await;
        }
    }

    fn put(&self, number: usize) {
        let sent = &self.sent[number % self.sent.len()];
        let message = Message {
            queue: &self.views[number % self.views.len()],
            flag: 0,
            sys_flag: 0,
            born_timestamp: 1_700_000_000_000 + number as i64,
            born_host: SocketAddr::from(([127, 0, 0, 1], 40_000)),
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body: black_box(&sent.body),
            properties: &[sent.properties.as_bytes()],
            tags: TagsRule::Code(TagsCode::of(Some("TagA"))),
            keys: smallvec![sent.key],
        };
        let flight = Rc::clone(&self.flight);
        flight.unanswered.set(flight.unanswered.get() + 1);
        let done = Box::new(move |outcome: store::PutOutcome| {
            assert_eq!(outcome.status, PutStatus::Ok);
            flight.unanswered.set(flight.unanswered.get() - 1);
            flight.answered.wake();
        });
        let flush = PutFlush { topic: None, may_wait: true };
        self.submitter.put(std::slice::from_ref(&message), flush, done).expect("the store takes it");
    }
}

fn touch_memory() {
    let mut memory = vec![0u8; TOUCHED_LEN];
    memory.iter_mut().step_by(4096).for_each(|byte| *byte = black_box(1));
}

/// The floor: writes of `len` bytes to a preallocated file.
struct PlainWriter {
    file: File,
    bytes: Vec<u8>,
    at: u64,
    _dir: TempDir,
}

impl PlainWriter {
    fn start(len: usize) -> PlainWriter {
        let dir = workload::directory();
        touch_memory();
        let path = dir.path().join("plain");
        kerolox::io::create_full_length(&path, 1 << 30).expect("a file can be made");
        let file = File::options().write(true).open(path).expect("it is there");
        let bytes = workload::messages().iter().flat_map(|sent| sent.body.clone()).cycle().take(len).collect();
        PlainWriter { file, bytes, at: 0, _dir: dir }
    }

    fn write(&mut self, count: u64) -> Took {
        let (clock, cpu) = (Instant::now(), cpu_time());
        for _ in 0..count {
            if self.at + self.bytes.len() as u64 > 1 << 30 {
                self.at = 0;
            }
            self.file.write_all_at(&self.bytes, self.at).expect("the file takes it");
            self.at += self.bytes.len() as u64;
        }
        Took { clock: clock.elapsed(), cpu: cpu_time() - cpu }
    }
}

/// Processor time of this process, all its threads and those of io_uring in the kernel.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// What criterion does not show of a case: processor time, and the best sample.
struct Sums {
    messages: u64,
    clock: Duration,
    cpu: Duration,
    /// Seconds of processor time a message.
    best: f64,
}

impl Sums {
    fn new() -> Sums {
        Sums { messages: 0, clock: Duration::ZERO, cpu: Duration::ZERO, best: f64::MAX }
    }

    /// Adds some messages; returns the time by the clock, which is what criterion wants.
    fn add(&mut self, messages: u64, took: Took) -> Duration {
        self.messages += messages;
        self.clock += took.clock;
        self.cpu += took.cpu;
        self.best = self.best.min(took.cpu.as_secs_f64() / messages as f64);
        took.clock
    }

    fn print(&self) {
        let each = self.cpu.as_secs_f64() / self.messages as f64;
        eprintln!(
            "    processor time over all threads {:.3} µs a message ({:.2} cores busy), best sample {:.3} µs:",
            each * 1e6,
            self.cpu.as_secs_f64() / self.clock.as_secs_f64(),
            self.best * 1e6
        );
        eprintln!("    one core alone does {:.2} M msg/s, best sample {:.2}\n", 1e-6 / each, 1e-6 / self.best);
    }
}

fn append(criterion: &mut Criterion) {
    let dir = workload::directory();
    conditions::print(Some(dir.path()));
    let mut group = group(criterion, "plain_pwrite");
    for in_flight in IN_FLIGHT {
        let (mut sums, mut writer) = (Sums::new(), None);
        group.bench_function(format!("{in_flight}_in_flight"), |bencher| {
            let turn = in_flight / 2;
            let writer = writer.get_or_insert_with(|| PlainWriter::start(turn as usize * RECORD_LEN));
            bencher.iter_custom(|iterations| {
                let count = iterations * ITERATION;
                sums.add(count, writer.write(count / turn))
            });
        });
        if writer.is_some() {
            sums.print();
        }
    }
    group.finish();
    let groups = [
        ("append", Derive::Drop, &ASYNC[..], &IN_FLIGHT[..]),
        ("append_and_build", Derive::Build, &ASYNC, &IN_FLIGHT),
        ("append_sync", Derive::Drop, &SYNC, &IN_FLIGHT_SYNC),
    ];
    for (name, derive, cases, in_flights) in groups {
        let mut group = self::group(criterion, name);
        for case in cases {
            for &in_flight in in_flights {
                let id = BenchmarkId::new(case.name, format!("{in_flight}_in_flight"));
                let (mut sums, mut appender) = (Sums::new(), None);
                group.bench_function(id, |bencher| {
                    // Made here, so that a case that is filtered out costs nothing.
                    let appender = appender.get_or_insert_with(|| Appender::start(*case, derive, in_flight));
                    bencher.iter_custom(|iterations| {
                        let count = iterations * ITERATION;
                        sums.add(count, appender.append(count))
                    });
                });
                if let Some(appender) = appender {
                    appender.stop();
                    sums.print();
                }
            }
        }
        group.finish();
    }
}

fn group<'c>(criterion: &'c mut Criterion, name: &str) -> BenchmarkGroup<'c, WallTime> {
    let mut group = criterion.benchmark_group(name);
    group.sampling_mode(SamplingMode::Flat).sample_size(10);
    group.warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_millis(500));
    group.throughput(Throughput::Elements(ITERATION));
    group
}

criterion_group!(benches, append);
criterion_main!(benches);
