//! A pull of 32 messages that are on the disk only, through io_uring: what it takes, and what it costs who uses the same core.
//!
//! `cargo bench --bench cold_read`. One executor reads at random places of a log that was taken out of the page cache, with
//! one read under way and with several; beside it a task wakes every 200 µs and notes how late it is. The same with the log
//! in memory is what the work alone costs. `KEROLOX_BENCH_MIB` says how long the log is (512).

mod cache;
mod conditions;
mod reads;
mod stored;
#[allow(dead_code, reason = "shared by the benches, none of which uses everything")]
mod workload;

use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use glommio::{LocalExecutorBuilder, Placement};
use hdrhistogram::Histogram;
use kerolox::format::names;
use kerolox::store::{GetStatus, Reader};
use reads::{PULL, Reads};

/// As the node has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const READS: u64 = 400;
const CADENCE: Duration = Duration::from_micros(200);

fn main() {
    let mib = std::env::var("KEROLOX_BENCH_MIB").ok().and_then(|text| text.parse().ok()).unwrap_or(512_u64);
    let dir = workload::directory();
    conditions::print(Some(dir.path()));
    let reads = Rc::new(Reads::open(dir.path(), mib));
    let log = dir.path().join(names::COMMIT_LOG);
    println!(
        "{:<22} {:>9} {:>9} {:>9} {:>10}   a task beside it was late, µs: p50, p99, max",
        "pulls of 32 messages", "p50 µs", "p99 µs", "max µs", "msg/s"
    );
    for (name, under_way, cold) in
        [("cold, 1 under way", 1, true), ("cold, 4 under way", 4, true), ("in memory, 1 under way", 1, false)]
    {
        let reads = Rc::clone(&reads);
        let executor = LocalExecutorBuilder::new(Placement::Unbound).io_memory(1 << 20).make().expect("an executor");
        executor.run(measure(name, reads, &log, under_way, cold));
    }
}

async fn measure(name: &str, reads: Rc<Reads>, log: &Path, under_way: u64, cold: bool) {
    if cold {
        cache::drop_caches(log);
    } else {
        for path in cache::files_below(log) {
            std::io::copy(&mut std::fs::File::open(path).expect("a segment"), &mut std::io::sink())
                .expect("it is read");
        }
    }
    let done = Rc::new(Cell::new(false));
    let beside = glommio::spawn_local(lateness(Rc::clone(&done)));
    let began = Instant::now();
    let tasks: Vec<_> =
        (0..under_way).map(|task| glommio::spawn_local(read(Rc::clone(&reads), task, under_way))).collect();
    let mut took = histogram();
    for task in tasks {
        took.add(task.await).expect("the same digits");
    }
    let rate = (took.len() * PULL) as f64 / began.elapsed().as_secs_f64();
    done.set(true);
    let late = beside.await;
    println!(
        "{name:<22} {:>9} {:>9} {:>9} {rate:>10.0}   {}, {}, {}",
        took.value_at_quantile(0.5),
        took.value_at_quantile(0.99),
        took.max(),
        late.value_at_quantile(0.5),
        late.value_at_quantile(0.99),
        late.max(),
    );
}

/// Reads its share of places that lie apart, none of them twice.
async fn read(reads: Rc<Reads>, task: u64, tasks: u64) -> Histogram<u64> {
    let mut took = histogram();
    let reader = Reader::Group(format!("group-{task}").into());
    // Far enough apart that no read brings another's records into memory.
    let stride = (reads.each - PULL) / READS;
    assert!(stride > PULL, "the log is too short: set KEROLOX_BENCH_MIB to 256 or more");
    let queue = &reads.queues[0];
    // Up and down, so that nothing looks like a scan.
    for number in (task..READS).step_by(tasks as usize) {
        let place = if number % 2 == 0 { number } else { READS - number };
        let began = Instant::now();
        let got = reads.shard.get(queue, (place * stride) as i64, PULL as i32, 256 << 10, &|_| true);
        assert_eq!((got.status, got.found.count()), (GetStatus::Found, PULL as usize));
        let loaded = got.found.load(&reader).await.expect("the disk gives it");
        assert_eq!(loaded.goes_on_at, None, "all of it was read");
        took.record(began.elapsed().as_micros() as u64).expect("a time that fits");
        kerolox::io::yield_if_due().await;
    }
    took
}

/// How late a task of the same core wakes, in µs.
async fn lateness(done: Rc<Cell<bool>>) -> Histogram<u64> {
    let mut late = histogram();
    while !done.get() {
        let began = Instant::now();
        kerolox::io::sleep(CADENCE).await;
        late.record(began.elapsed().saturating_sub(CADENCE).as_micros() as u64).expect("a time that fits");
    }
    late
}

fn histogram() -> Histogram<u64> {
    Histogram::new(3).expect("three digits")
}
