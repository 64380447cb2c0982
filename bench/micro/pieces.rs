//! The pieces of a message's way, each alone on one thread: where the time of the append path and of a connection goes.
//!
//! All figures are processor time of that thread, so other work on the machine disturbs them less (caches, clock rate)
//! than it disturbs a clock.

mod conditions;
mod inputs;
mod reads;
mod stored;
mod turns;
mod workload;

use std::hint::black_box;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::task::Poll;
use std::time::Duration;

use bytes::BytesMut;
use criterion::measurement::{Measurement, ValueFormatter, WallTime};
use criterion::{Criterion, SamplingMode, Throughput, criterion_group, criterion_main};
use futures_lite::future::{block_on, poll_fn};
use inputs::{Keys, SEND_ANSWER, STORED_AT, answer_from_memory, record_of, send_frame, shared};
use kerolox::dispatch::ring;
use kerolox::format::index_file::{self, SLOTS_DEFAULT, UNITS_DEFAULT};
use kerolox::format::record::{self, RecordView};
use kerolox::format::unit::Unit;
use kerolox::index::IndexFileMut;
use kerolox::log::{Event, GroupCommit, WaiterId};
use kerolox::store::{Builder, DispatchUnit, IndexBuilder, KeyEntry, Layout, QueueRegistry, QueueView};
use kerolox::types::{PhyOffset, QueueHandle, QueueKey, QueueOffset, TagsCode};
use kerolox::wire::code::response;
use kerolox::wire::headers::SendHeader;
use kerolox::wire::{Command, HeaderType, VERSION_5, encode_response, first_frame};
use reads::{PULL, Reads};
use rustix::time::{ClockId, clock_gettime};
use turns::{TURN, Turns};
use workload::{BODY_LEN, QUEUES, TOPIC};

/// As the node has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Entries that a builder gets at once.
const BATCH: u64 = 64;

/// Turns in one store, which then takes less than a segment; more get another store.
const TURNS_MAX: u64 = 8_000;

/// Processor time instead of the clock's.
struct ThreadTime(WallTime);

impl Measurement for ThreadTime {
    type Intermediate = Duration;
    type Value = Duration;

    fn start(&self) -> Duration {
        thread_time()
    }

    fn end(&self, began: Duration) -> Duration {
        thread_time() - began
    }

    fn add(&self, one: &Duration, other: &Duration) -> Duration {
        *one + *other
    }

    fn zero(&self) -> Duration {
        Duration::ZERO
    }

    fn to_f64(&self, value: &Duration) -> f64 {
        self.0.to_f64(value)
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        self.0.formatter()
    }
}

/// Processor time of this thread so far.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn records(criterion: &mut Criterion<ThreadTime>) {
    conditions::print(Some(workload::directory().path()));
    let messages = workload::messages();
    let mut group = criterion.benchmark_group("record");
    group.throughput(Throughput::Elements(1));
    let mut next = messages.iter().cycle();
    let mut sent = || next.next().expect("a cycle never ends");

    // Into a buffer that holds a turn and is then used again, as a shard's batch is.
    let mut batch = Vec::new();
    group.bench_function("encode_1KiB", |bencher| {
        bencher.iter(|| {
            if batch.len() > 256 * BODY_LEN {
                batch.clear();
            }
            let sent = black_box(sent());
            record_of(sent, &[sent.properties.as_bytes()]).encode_into(&mut batch).expect("it is a record")
        });
    });
    group.bench_function("crc_1KiB", |bencher| bencher.iter(|| record::body_crc(black_box(&sent().body))));

    let mut encoded = Vec::new();
    let placed =
        record_of(&messages[0], &[messages[0].properties.as_bytes()]).encode_into(&mut encoded).expect("a record");
    let mut number = 0;
    group.bench_function("number", |bencher| {
        bencher.iter(|| {
            number += 1;
            let (queue_offset, phy) = (QueueOffset(number), PhyOffset(number * 1100));
            record::number(black_box(&mut encoded), placed.store_timestamp_at, queue_offset, phy, STORED_AT);
        });
    });
    group.bench_function("parse", |bencher| {
        bencher.iter(|| RecordView::parse(black_box(&encoded)).expect("a record").body().len());
    });
    group.bench_function("key_hashes", |bencher| {
        bencher.iter(|| record::key_hashes(black_box(TOPIC), &sent().properties));
    });
}

fn derive(criterion: &mut Criterion<ThreadTime>) {
    let mut group = criterion.benchmark_group("derive");
    group.throughput(Throughput::Elements(1));
    let mut number = 0;
    group.bench_function("unit_encode", |bencher| {
        bencher.iter(|| {
            number += 1;
            Unit { phy: PhyOffset(number * 1100), len: 1100, tags: TagsCode(2_598_919) }.encode()
        });
    });

    // An index file of the default size in memory: slots are hit at random, as hashes do.
    let mut bytes = vec![0; index_file::file_len(SLOTS_DEFAULT, UNITS_DEFAULT) as usize];
    IndexFileMut::create(&mut bytes, SLOTS_DEFAULT, UNITS_DEFAULT).expect("the length is right");
    let mut keys = Keys(1);
    group.bench_function("index_put", |bencher| bencher.iter_custom(|count| put_keys(&mut bytes, &mut keys, count)));
    drop(bytes);

    group.measurement_time(Duration::from_secs(2)).warm_up_time(Duration::from_secs(1)).sample_size(20);
    group.throughput(Throughput::Elements(BATCH));
    group.bench_function("units_built_64", |bencher| bencher.iter_custom(build_units));
    group.bench_function("keys_built_64", |bencher| bencher.iter_custom(build_keys));
}

fn put_keys(bytes: &mut [u8], keys: &mut Keys, count: u64) -> Duration {
    let began = thread_time();
    let mut put = 0;
    while put < count {
        let mut index = IndexFileMut::open(bytes, SLOTS_DEFAULT, UNITS_DEFAULT).expect("the length is right");
        while put < count && index.put(keys.next_hash(), PhyOffset(put * 1100), STORED_AT).is_ok() {
            put += 1;
        }
        if put < count {
            // Full, once in 20 million: the next entries go over the old ones.
            IndexFileMut::create(bytes, SLOTS_DEFAULT, UNITS_DEFAULT).expect("the length is right");
        }
    }
    thread_time() - began
}

/// The real builder, given `count` batches through its ring. It is polled by hand on this thread: the time of an
/// executor is not in it, nor that of the helper thread, which makes files and reserves their blocks.
fn build_units(count: u64) -> Duration {
    let dir = workload::directory();
    let mut queues = QueueRegistry::new(Vec::new());
    let views: Vec<_> = (0..QUEUES).map(|id| queues.queue(&QueueKey::new(TOPIC, id))).collect();
    let durable = Arc::new(AtomicI64::new(i64::MAX));
    let layout = Layout::new(dir.path());
    let untold = Box::new(|_: &Arc<QueueView>, _| {});
    let builder = Builder::new(shared(dir.path()), layout, workload::helper(), queues.list(), 1, untold, durable);
    let (mut sender, receiver) = ring(BATCH as usize);
    let unit = |number: u64| DispatchUnit {
        queue: QueueHandle(number as u32 % QUEUES),
        queue_offset: QueueOffset(number / u64::from(QUEUES)),
        phy: PhyOffset(number * 1100),
        len: 1100,
        tags: TagsCode(2_598_919),
        stored_at: STORED_AT,
    };
    let mut give = |number: u64| {
        let units = (number * BATCH..(number + 1) * BATCH).map(unit).collect();
        assert!(sender.push(units).is_ok(), "the ring is empty");
    };
    let built = |batches: u64| views.iter().all(|view| view.max().0 == batches * BATCH / u64::from(QUEUES));
    time_polled(builder.run(receiver), count, &mut give, &built)
}

/// As [`build_units`], for the index.
fn build_keys(count: u64) -> Duration {
    let dir = workload::directory();
    let full_up_to = Arc::new(AtomicI64::new(0));
    let layout = Layout::new(dir.path());
    let durable_up_to = Arc::new(std::sync::atomic::AtomicI64::new(i64::MAX));
    let builder =
        IndexBuilder::new(shared(dir.path()), layout, workload::helper(), Vec::new(), full_up_to, durable_up_to);
    let (mut sender, receiver) = ring(BATCH as usize);
    let mut keys = Keys(1);
    let mut give = |number: u64| {
        let entry = |phy| KeyEntry { key: keys.next_hash(), phy: PhyOffset(phy), stored_at: STORED_AT };
        let entries = (number * BATCH..(number + 1) * BATCH).map(entry).collect();
        assert!(sender.push(entries).is_ok(), "the ring is empty");
    };
    let built = |batches: u64| builder.newest().unwrap().1 == PhyOffset(batches * BATCH - 1);
    time_polled(Rc::clone(&builder).run(receiver), count, &mut give, &built)
}

/// Gives a builder one batch after the other and polls it until each is built; the first, which makes the files, is not
/// counted.
fn time_polled(
    builder: impl Future<Output = ()>,
    count: u64,
    give: &mut dyn FnMut(u64),
    built: &dyn Fn(u64) -> bool,
) -> Duration {
    let mut builder = pin!(builder);
    let mut began = thread_time();
    for number in 0..=count {
        if number == 1 {
            began = thread_time();
        }
        give(number);
        block_on(poll_fn(|cx| {
            assert!(builder.as_mut().poll(cx).is_pending(), "it ends only with its ring");
            if built(number + 1) { Poll::Ready(()) } else { Poll::Pending }
        }));
    }
    thread_time() - began
}

fn stage(criterion: &mut Criterion<ThreadTime>) {
    let mut group = criterion.benchmark_group("writer");
    // The write that follows each is not measured, but has to be made: few of them do.
    group.sampling_mode(SamplingMode::Flat).sample_size(10);
    group.measurement_time(Duration::from_millis(200)).warm_up_time(Duration::from_millis(50));
    group.throughput(Throughput::Elements(TURN));
    group.bench_function("stage_64", |bencher| bencher.iter_custom(stage_turns));
}

/// The writer's turn up to where its write has begun.
fn stage_turns(count: u64) -> Duration {
    let mut took = Duration::ZERO;
    let mut left = count;
    while left > 0 {
        let turns = left.min(TURNS_MAX);
        left -= turns;
        took += turns::on_executor(async |mut store: Turns| {
            let mut took = Duration::ZERO;
            for _ in 0..turns {
                store.put();
                turns::once(|cx| store.hand_over(cx)).await;
                took += poll_fn(|cx| {
                    let began = thread_time();
                    store.stage(cx);
                    Poll::Ready(thread_time() - began)
                })
                .await;
                store.write().await;
                turns::once(|cx| store.answer(cx)).await;
            }
            took
        });
    }
    took
}

fn read(criterion: &mut Criterion<ThreadTime>) {
    let mut group = criterion.benchmark_group("read");
    group.throughput(Throughput::Elements(PULL));
    let mut store = None;
    let (mut out, mut number, mut misses) = (BytesMut::new(), 0, 0_u64);
    group.bench_function("pull_answer_32_in_memory", |bencher| {
        let (_, reads) = store.get_or_insert_with(|| {
            let dir = workload::directory();
            let reads = Reads::open(dir.path(), 8);
            (dir, reads)
        });
        bencher.iter(|| {
            number += 1;
            out.clear();
            // The kernel may take a page away at any time: then nothing is copied, and the figure is worth less.
            misses += u64::from(!answer_from_memory(reads, number, &mut out));
        });
    });
    if misses > 0 {
        eprintln!("    {misses} of {number} answers were not in memory: other work took it, and the figure is too low");
    }
}

fn group_commit(criterion: &mut Criterion<ThreadTime>) {
    let mut group = criterion.benchmark_group("group_commit");
    // What a turn costs in sync mode: it is appended with a waiter, flushed and released.
    let mut commit = GroupCommit::starting_at(PhyOffset(0));
    let mut actions = Vec::new();
    let mut number = 0;
    group.bench_function("append_flush_release", |bencher| {
        bencher.iter(|| {
            number += 1;
            let end = PhyOffset(number * 70_000);
            commit.step(
                Event::Appended { end: black_box(end), waiter: Some((WaiterId(number), number)), at_ms: number },
                &mut actions,
            );
            commit.step(Event::Flushed { to: end }, &mut actions);
            let count = black_box(&actions).len();
            actions.clear();
            count
        });
    });
}

fn wire(criterion: &mut Criterion<ThreadTime>) {
    let mut group = criterion.benchmark_group("wire");
    group.throughput(Throughput::Elements(1));
    let frames: Vec<BytesMut> = workload::messages().iter().map(send_frame).collect();
    let mut next = frames.iter().cycle();
    // Cut, decode and read the header, as a connection does with a frame of its read buffer.
    group.bench_function("send_header_decode_json", |bencher| {
        bencher.iter(|| {
            let frame = black_box(next.next().expect("a cycle never ends"));
            let bounds = first_frame(frame).expect("it is a frame").expect("it is whole");
            let command = Command::decode(frame, &bounds).expect("a header");
            let header = SendHeader::read(&command).expect("a send");
            (header.queue_id, header.born_timestamp, header.topic.len(), header.properties.len(), command.body.len())
        });
    });
    // Into an output that a write now and then empties.
    let mut out = BytesMut::new();
    let mut opaque = 0;
    group.bench_function("send_response_encode_json", |bencher| {
        bencher.iter(|| {
            opaque += 1;
            if out.len() > 64 << 10 {
                out.clear();
            }
            encode_response(
                &mut out,
                HeaderType::Json,
                response::SUCCESS,
                VERSION_5,
                opaque,
                None,
                black_box(&SEND_ANSWER),
                &[],
            );
        });
    });
}

criterion_group! {
    name = benches;
    config = Criterion::default().with_measurement(ThreadTime(WallTime));
    targets = records, derive, stage, read, group_commit, wire
}
criterion_main!(benches);
