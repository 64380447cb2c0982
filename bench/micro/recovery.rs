//! How long a start takes: after a kill, with the log in memory and without; after a clean stop, with many segments and
//! with many queues. `cargo bench --bench recovery`; `-- scan` runs only cases with that text in their name.
//!
//! `KEROLOX_BENCH_MIB` says how long the scanned log is (1,024). Every case opens a store as the node does, and prints the
//! time by the clock and of the processor; the cold ones beside the rate at which the disk gave the same files.

mod cache;
mod conditions;
mod stored;
#[allow(dead_code, reason = "shared by the benches, none of which uses everything")]
mod workload;

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::time::{Duration, Instant};

use cache::{drop_caches, files_below};
use kerolox::format::checkpoint::Checkpoint;
use kerolox::format::names;
use kerolox::io::AppendMode;
use kerolox::store::{Opening, StoreSettings, open};
use stored::{close_store, write_log};

const SEGMENT_LEN: u64 = 256 << 20;

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|part| name.contains(part.as_str()));
    let dir = workload::directory();
    conditions::print(Some(dir.path()));
    let mib = std::env::var("KEROLOX_BENCH_MIB").ok().and_then(|text| text.parse().ok()).unwrap_or(1024_u64);
    let scans = ["scan_in_memory", "scan_cold", "rebuild_in_memory"];
    if scans.iter().any(|name| is_wanted(name)) {
        let mut settings = workload::settings(&dir.path().join("scan"), AppendMode::Buffered);
        settings.segment_len = SEGMENT_LEN;
        let len = write_log(&settings, mib << 20, workload::QUEUES, 1024);
        close_store(open(settings.clone(), workload::MEMORY_LEN, &Opening::unstopped()).expect("the store opens"));
        if is_wanted("scan_in_memory") {
            for _ in 0..3 {
                after_a_kill(&settings.root);
                report("scan_in_memory", len, None, || open_and_drop(&settings));
            }
        }
        if is_wanted("scan_cold") {
            for _ in 0..2 {
                let disk = disk_rate(&settings.root);
                after_a_kill(&settings.root);
                drop_caches(&settings.root);
                report("scan_cold", len, Some(disk), || open_and_drop(&settings));
            }
        }
        if is_wanted("rebuild_in_memory") {
            for part in [names::CONSUME_QUEUE, names::INDEX] {
                fs::remove_dir_all(settings.root.join(part)).expect("derived files can go");
            }
            after_a_kill(&settings.root);
            report("rebuild_in_memory", len, None, || open_and_drop(&settings));
        }
        fs::remove_dir_all(&settings.root).expect("the store can go");
    }
    if is_wanted("clean_1000_segments") {
        let mut settings = workload::settings(&dir.path().join("segments"), AppendMode::Buffered);
        settings.segment_len = 1 << 20;
        write_log(&settings, 1000 << 20, workload::QUEUES, 64 << 10);
        close_store(open(settings.clone(), workload::MEMORY_LEN, &Opening::unstopped()).expect("the store opens"));
        clean("clean_1000_segments", &settings);
    }
    if is_wanted("clean_10000_queues") {
        // A file a queue is open.
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let limit = rustix::process::Rlimit { current: limit.maximum, ..limit };
        if let Err(error) = rustix::process::setrlimit(rustix::process::Resource::Nofile, limit) {
            eprintln!("clean_10000_queues: left out, the limit of open files cannot be raised: {error}");
            return;
        }
        let mut settings = workload::settings(&dir.path().join("queues"), AppendMode::Buffered);
        settings.segment_len = 64 << 20;
        write_log(&settings, 60 << 20, 10_000, 256);
        close_store(open(settings.clone(), workload::MEMORY_LEN, &Opening::unstopped()).expect("the store opens"));
        clean("clean_10000_queues", &settings);
    }
}

/// Makes the next start scan everything: `abort` is there, and nobody knows how far things were flushed and derived.
fn after_a_kill(root: &Path) {
    fs::write(root.join(names::ABORT), "4711").expect("the abort file");
    fs::write(root.join(names::CHECKPOINT), Checkpoint::default().encode()).expect("the checkpoint");
    for name in ["flushed", "flushed.bak"] {
        let _ = fs::remove_file(root.join("kerolox").join(name));
    }
}

fn open_and_drop(settings: &StoreSettings) {
    drop(open(settings.clone(), workload::MEMORY_LEN, &Opening::unstopped()).expect("the store opens"));
}

/// A start after a clean stop, with everything in memory and with nothing.
fn clean(name: &str, settings: &StoreSettings) {
    for cold in [false, false, true] {
        if cold {
            drop_caches(&settings.root);
        }
        let (began, cpu) = (Instant::now(), cpu_time());
        let opened = open(settings.clone(), workload::MEMORY_LEN, &Opening::unstopped()).expect("the store opens");
        let (took, cpu) = (began.elapsed(), cpu_time() - cpu);
        let cold = if cold { "cold" } else { "in memory" };
        println!("{name:<22} {cold:<9} {took:>8.0?} by the clock, {cpu:>8.0?} of processor time");
        close_store(opened);
    }
    fs::remove_dir_all(&settings.root).expect("the store can go");
}

fn report(name: &str, len: u64, disk: Option<f64>, run: impl FnOnce()) {
    let (began, cpu) = (Instant::now(), cpu_time());
    run();
    let (took, cpu) = (began.elapsed(), cpu_time() - cpu);
    let rate = |took: Duration| (len as f64 / took.as_secs_f64()) / f64::from(1 << 20);
    print!("{name:<22} {:>7.0} MiB/s by the clock, {:>7.0} MiB/s of processor time", rate(took), rate(cpu));
    match disk {
        Some(disk) => println!(", the disk read {disk:.0} MiB/s: {:.0} %", 100.0 * rate(took) / disk),
        None => println!(),
    }
}

/// Processor time of this process so far.
fn cpu_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// MiB/s at which the disk gives the whole log, read from its beginning to its end in pieces of 1 MiB.
fn disk_rate(root: &Path) -> f64 {
    drop_caches(root);
    let mut piece = vec![0; 1 << 20];
    let (began, mut len) = (Instant::now(), 0);
    let mut paths = files_below(&root.join(names::COMMIT_LOG));
    paths.sort();
    for path in paths {
        let mut file = File::open(&path).expect("a segment");
        file.seek(SeekFrom::Start(0)).expect("its beginning");
        loop {
            match file.read(&mut piece).expect("it can be read") {
                0 => break,
                read => len += read,
            }
        }
    }
    len as f64 / began.elapsed().as_secs_f64() / f64::from(1 << 20)
}
