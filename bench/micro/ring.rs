//! The ring between cores: entries a second through one hand-over.
//!
//! `within_one_core`: both ends on one thread, as on a host with one core. `between_two_cores`: each end on a pinned
//! thread that never sleeps, so only the ring itself is measured. `between_executors`: each end in a task of a pinned
//! glommio executor that parks when it has nothing to do, as in the node; here the price of waking is in it.
//!
//! An entry is a [`DispatchUnit`]; `single` pushes each for itself, `batches_of_64` pushes vectors of 64, made by the
//! producer and freed by the consumer, as the writer and a builder do.

mod conditions;

use std::future::poll_fn;
use std::hint::{black_box, spin_loop};
use std::time::{Duration, Instant};

use core_affinity::CoreId;
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, SamplingMode, Throughput, criterion_group, criterion_main};
use glommio::{LocalExecutorBuilder, Placement};
use kerolox::dispatch::{Receiver, Sender, ring};
use kerolox::store::DispatchUnit;
use kerolox::types::{PhyOffset, QueueHandle, QueueOffset, TagsCode, Timestamp};
use rustix::time::{ClockId, clock_gettime};

/// As the node has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Lengths of the node's rings: of submits and answers, and of dispatch.
const LONG_RING: usize = 1024;
const SHORT_RING: usize = 64;
const BATCH: u64 = 64;
/// Entries of one iteration.
const ITERATION: u64 = 16_384;

fn entry(number: u64) -> DispatchUnit {
    DispatchUnit {
        queue: QueueHandle(number as u32 % 8),
        queue_offset: QueueOffset(number / 8),
        phy: PhyOffset(number * 1100),
        len: 1100,
        tags: TagsCode(2_598_919),
        stored_at: Timestamp(1_700_000_000_000),
    }
}

fn batch(number: u64) -> Vec<DispatchUnit> {
    (number * BATCH..(number + 1) * BATCH).map(entry).collect()
}

/// Pushes `burst` elements, takes them out, and so on.
fn within_one_core<T: Send>(count: u64, burst: u64, make: impl Fn(u64) -> T) -> Duration {
    let (mut sender, mut receiver) = ring(LONG_RING);
    let began = thread_time();
    let mut number = 0;
    while number < count {
        for _ in 0..burst.min(count - number) {
            assert!(sender.push(make(black_box(number))).is_ok(), "the ring is longer than a burst");
            number += 1;
        }
        while let Some(element) = receiver.pop() {
            black_box(element);
        }
    }
    thread_time() - began
}

/// Processor time of this thread so far: other work on the machine does not count.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn push_waiting<T: Send>(sender: &mut Sender<T>, mut element: T) {
    while let Err(back) = sender.push(element) {
        element = back;
        spin_loop();
    }
}

fn take_waiting<T: Send>(receiver: &mut Receiver<T>) -> T {
    loop {
        match receiver.pop() {
            Some(element) => return element,
            None => spin_loop(),
        }
    }
}

/// Two threads that spin. Counted from the first element to the last.
fn between_two_cores<T: Send>(cores: [CoreId; 2], len: usize, count: u64, make: impl Fn(u64) -> T + Sync) -> Duration {
    let (mut sender, mut receiver) = ring(len);
    std::thread::scope(|scope| {
        let make = &make;
        scope.spawn(move || {
            core_affinity::set_for_current(cores[0]);
            // One more goes ahead, so that both threads run when the clock starts.
            for number in 0..=count {
                push_waiting(&mut sender, make(black_box(number)));
            }
        });
        let consumer = scope.spawn(move || {
            core_affinity::set_for_current(cores[1]);
            black_box(take_waiting(&mut receiver));
            let began = Instant::now();
            for _ in 0..count {
                black_box(take_waiting(&mut receiver));
            }
            began.elapsed()
        });
        consumer.join().expect("the consumer ends")
    })
}

/// Two executors that park.
fn between_executors<T: Send + 'static>(
    cores: [CoreId; 2],
    len: usize,
    count: u64,
    make: impl Fn(u64) -> T + Send + 'static,
) -> Duration {
    let (mut sender, mut receiver) = ring(len);
    let executor = |core: CoreId| LocalExecutorBuilder::new(Placement::Fixed(core.id)).io_memory(64 << 10);
    let producer = executor(cores[0]).spawn(move || async move {
        for number in 0..=count {
            poll_fn(|cx| sender.poll_ready(cx)).await.expect("the consumer is there");
            assert!(sender.push(make(black_box(number))).is_ok(), "room was just seen");
        }
    });
    let consumer = executor(cores[1]).spawn(move || async move {
        black_box(poll_fn(|cx| receiver.poll_recv(cx)).await.is_ok());
        let began = Instant::now();
        while let Ok(element) = poll_fn(|cx| receiver.poll_recv(cx)).await {
            black_box(element);
        }
        began.elapsed()
    });
    producer.expect("an executor").join().expect("the producer ends");
    consumer.expect("an executor").join().expect("the consumer ends")
}

fn group<'c>(criterion: &'c mut Criterion, name: &str) -> BenchmarkGroup<'c, WallTime> {
    let mut group = criterion.benchmark_group(name);
    group.sampling_mode(SamplingMode::Flat).sample_size(20);
    group.warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2));
    group.throughput(Throughput::Elements(ITERATION));
    group
}

/// Times `run`, which is told how many entries to hand over. Prints the best of all samples, too: where other work takes
/// the cores away, the median tells of the machine and the best of the ring.
fn case(group: &mut BenchmarkGroup<'_, WallTime>, name: &str, run: impl Fn(u64) -> Duration) {
    let mut best = f64::MAX;
    group.bench_function(name, |bencher| {
        bencher.iter_custom(|iterations| {
            let entries = iterations * ITERATION;
            let took = run(entries);
            best = best.min(took.as_secs_f64() / entries as f64);
            took
        });
    });
    if best < f64::MAX {
        eprintln!("    best sample {:.1} ns an entry, {:.2} M entries/s\n", best * 1e9, 1e-6 / best);
    }
}

fn rings(criterion: &mut Criterion) {
    conditions::print(None);
    let cores = core_affinity::get_core_ids().unwrap_or_default();

    let mut one = group(criterion, "ring_within_one_core");
    case(&mut one, "single", |entries| within_one_core(entries, BATCH, entry));
    case(&mut one, "batches_of_64", |entries| within_one_core(entries / BATCH, 1, batch));
    one.finish();

    let [.., first, second] = cores[..] else {
        eprintln!("only one core may be used: nothing to measure between two");
        return;
    };
    let cores = [first, second];
    let mut two = group(criterion, "ring_between_two_cores");
    case(&mut two, "single", |entries| between_two_cores(cores, LONG_RING, entries, entry));
    case(&mut two, "batches_of_64", |entries| between_two_cores(cores, SHORT_RING, entries / BATCH, batch));
    two.finish();

    let mut executors = group(criterion, "ring_between_executors");
    case(&mut executors, "single", |entries| between_executors(cores, LONG_RING, entries, entry));
    case(&mut executors, "batches_of_64", |entries| between_executors(cores, SHORT_RING, entries / BATCH, batch));
    executors.finish();
}

criterion_group!(benches, rings);
criterion_main!(benches);
