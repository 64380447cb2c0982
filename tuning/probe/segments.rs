//! Whole commit log files: bandwidth, and what making and deleting them costs, also those who flush meanwhile.

use std::fs;
use std::io;
use std::time::{Duration, Instant};

use super::ProbeError;
use super::companion::Companion;
use super::result::{Aside, Bandwidth, Segments, Times, us};
use super::run::{Run, doing, timed};
use crate::io::{AppendMode, ProbeFile, UnlinkedFile, create_full_length};

const BATCH_LEN: u64 = 1 << 20;
/// Written through the page cache, it is synced as often as that.
const SYNC_LEN: u64 = 64 << 20;
/// A deleted file gives its bytes back in pieces of this length, as the node's expiry does it.
const FREE_LEN: u64 = 64 << 20;
const ROLLS: usize = 5;
/// What a companion does alone, before and after the thing that is looked at.
const QUIET: Duration = Duration::from_millis(500);
const AFTER: Duration = Duration::from_millis(200);

/// `len`: of each file. `marks`: at which percent of the run's time this begins, and its three parts end.
pub(super) fn measure(run: &mut Run<'_>, len: u64, direct: bool, marks: [u32; 4]) -> Result<Segments, ProbeError> {
    let mut write = Vec::new();
    let mut read = Vec::new();
    let modes = if direct { [AppendMode::Buffered, AppendMode::Dma] } else { [AppendMode::Buffered; 2] };
    let quiet = quiet_flushes(run)?;
    let mut deleted = Vec::new();
    for (index, append) in modes.into_iter().enumerate() {
        let path = run.scratch.file("segment");
        let mut file = ProbeFile::create(&path, len, append, BATCH_LEN as usize).map_err(doing("making a file"))?;
        let half = run.until((marks[index] + marks[index + 1]) / 2).max(Instant::now() + Duration::from_millis(200));
        write.push(Bandwidth { append, mib_per_s: fill(run, &mut file, append, half)? });
        let until = run.until(marks[index + 1]).max(Instant::now() + Duration::from_millis(200));
        read.push(Bandwidth { append, mib_per_s: read_back(run, &mut file, until)? });
        drop(file);
        let by = if index == 0 { delete_at_once } else { delete_stepwise };
        deleted.push(aside(run, "deleting a file", || by(&path))?);
    }
    write.dedup_by_key(|bandwidth| bandwidth.append);
    read.dedup_by_key(|bandwidth| bandwidth.append);
    run.tell("log files made", 0, ROLLS);
    let roll = rolls(run, len, marks[3])?;
    Ok(Segments { len, write, read, roll, delete_at_once: deleted[0], delete_stepwise: deleted[1], quiet_flush: quiet })
}

/// Writes the file from its start, until it is full or the time is over.
fn fill(run: &mut Run<'_>, file: &mut ProbeFile, append: AppendMode, until: Instant) -> Result<f64, ProbeError> {
    let began = Instant::now();
    let mut at = 0;
    while at < file.len() && Instant::now() < until {
        run.go_on()?;
        run.tell("MiB of a log file written", (at >> 20) as usize, (file.len() >> 20) as usize);
        file.write(at, BATCH_LEN as usize).map_err(doing("writing a file"))?;
        at += BATCH_LEN;
        run.wrote(BATCH_LEN);
        if append == AppendMode::Buffered && at.is_multiple_of(SYNC_LEN) {
            file.sync().map_err(doing("syncing a file"))?;
        }
    }
    file.sync().map_err(doing("syncing a file"))?;
    Ok(mib_per_s(at, began.elapsed()))
}

/// Reads it from its start, none of it from memory if the file system can do without; what was not written is not there.
fn read_back(run: &mut Run<'_>, file: &mut ProbeFile, until: Instant) -> Result<f64, ProbeError> {
    file.drop_cached();
    let began = Instant::now();
    let mut at = 0;
    while at < file.len() && Instant::now() < until {
        run.go_on()?;
        run.tell("MiB of a log file read", (at >> 20) as usize, (file.len() >> 20) as usize);
        let taken = file.read(at, BATCH_LEN as usize).map_err(doing("reading a file"))?;
        if taken == 0 {
            break;
        }
        at += taken as u64;
    }
    Ok(mib_per_s(at, began.elapsed()))
}

fn mib_per_s(len: u64, time: Duration) -> f64 {
    let rate = len as f64 / f64::from(1 << 20) / time.as_secs_f64().max(1e-6);
    (rate * 10.0).round() / 10.0
}

/// Its longest single step.
fn delete_at_once(path: &std::path::Path) -> io::Result<Duration> {
    Ok(timed(|| fs::remove_file(path))?.1)
}

fn delete_stepwise(path: &std::path::Path) -> io::Result<Duration> {
    let (file, mut longest) = timed(|| UnlinkedFile::remove(path))?;
    let Some(mut file) = file else { return Ok(longest) };
    while !file.is_empty() {
        longest = longest.max(timed(|| file.shorten(FREE_LEN))?.1);
    }
    Ok(longest)
}

fn rolls(run: &mut Run<'_>, len: u64, end: u32) -> Result<Aside, ProbeError> {
    let mut times = Vec::new();
    let mut flush_max: Option<f64> = None;
    for number in 0..ROLLS {
        if number > 0 && Instant::now() > run.until(end) {
            break;
        }
        let path = run.scratch.file(&format!("roll-{number}"));
        let one = aside(run, "making a file", || Ok(timed(|| create_full_length(&path, len))?.1))?;
        fs::remove_file(&path).map_err(doing("removing a file"))?;
        times.push(Duration::from_secs_f64(one.times.max_us / 1e6));
        flush_max = flush_max.into_iter().chain(one.flush_max_us).reduce(f64::max);
    }
    let times = Times::of(&times).expect("one is made in any case");
    Ok(Aside { times, step_max_us: times.max_us, flush_max_us: flush_max })
}

/// Does one thing while a companion flushes. `work` tells its longest step.
fn aside(
    run: &mut Run<'_>,
    what: &'static str,
    work: impl FnOnce() -> io::Result<Duration>,
) -> Result<Aside, ProbeError> {
    run.go_on()?;
    let companion = Companion::start(run.scratch).map_err(doing("making a file"))?;
    let began = Instant::now();
    let done = work().map_err(doing(what));
    let took = began.elapsed();
    // Blocks that were given back keep the file system busy for a moment longer.
    std::thread::sleep(AFTER);
    let flushes = companion.end(run, began, Instant::now()).map_err(doing("flushing meanwhile"));
    let (step, flushes) = (done?, flushes?);
    let times = Times::of(&[took]).expect("one sample");
    Ok(Aside { times, step_max_us: us(step), flush_max_us: Times::of(&flushes).map(|times| times.max_us) })
}

fn quiet_flushes(run: &mut Run<'_>) -> Result<Times, ProbeError> {
    let companion = Companion::start(run.scratch).map_err(doing("making a file"))?;
    let began = Instant::now();
    std::thread::sleep(QUIET);
    let flushes = companion.end(run, began, Instant::now()).map_err(doing("flushing"))?;
    Times::of(&flushes).ok_or(ProbeError::TooSlow)
}
