//! Appends that nobody waits for, as in async mode: what one of them takes of the writer's time while the log is flushed
//! behind it, for each append mode.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use super::ProbeError;
use super::result::{AppendCell, Times};
use super::run::{Run, doing, timed};
use crate::io::{AppendMode, ProbeFile};

/// Not a multiple of a page: as in a log, each append goes on in a page that the one before has begun, and that may be on
/// its way to the device.
const BATCH_LEN: u64 = 33_000;
/// One append each ms: 31 MiB/s, which is no load for a device that is worth it.
const PACE: Duration = Duration::from_millis(1);
const FLUSH_INTERVAL: Duration = Duration::from_millis(100);

/// `allowance` bytes in all, each mode its share of the time until `until`.
pub(super) fn measure(
    run: &mut Run<'_>,
    modes: &[AppendMode],
    allowance: u64,
    until: Instant,
) -> Result<Vec<AppendCell>, ProbeError> {
    let mut cells = Vec::new();
    for (index, append) in modes.iter().copied().enumerate() {
        run.go_on()?;
        run.tell("appends", index, modes.len());
        let left = until.saturating_duration_since(Instant::now()) / (modes.len() - index) as u32;
        let count = (allowance / modes.len() as u64 / BATCH_LEN).clamp(50, 2000);
        let path = run.scratch.file("appends");
        let mut file = ProbeFile::create(&path, (count * BATCH_LEN).next_multiple_of(4096), append, BATCH_LEN as usize)
            .map_err(doing("making a file"))?;
        let stop = AtomicBool::new(false);
        let done = std::thread::scope(|scope| {
            let flusher = scope.spawn(|| flush_now_and_then(&path, &stop));
            let done = append_paced(run, &mut file, count, Instant::now() + left);
            stop.store(true, Ordering::Relaxed);
            flusher.thread().unpark();
            let flushed = flusher.join().expect("it only syncs").map_err(doing("syncing a file"));
            flushed.and(done)
        });
        let (samples, cpu) = done?;
        run.wrote(samples.len() as u64 * BATCH_LEN);
        fs::remove_file(&path).map_err(doing("removing a file"))?;
        if let Some(times) = Times::of(&samples) {
            let mib = samples.len() as f64 * BATCH_LEN as f64 / f64::from(1 << 20);
            let cpu_us_per_mib = (cpu.as_secs_f64() * 1e7 / mib).round() / 10.0;
            cells.push(AppendCell { append, len: BATCH_LEN, times, cpu_us_per_mib });
        }
    }
    Ok(cells)
}

/// Times of the appends, and the processor time that they took.
fn append_paced(
    run: &Run<'_>,
    file: &mut ProbeFile,
    count: u64,
    until: Instant,
) -> Result<(Vec<Duration>, Duration), ProbeError> {
    let mut samples = Vec::new();
    let mut cpu = Duration::ZERO;
    let began = Instant::now();
    for number in 0..count {
        run.go_on()?;
        let due = began + PACE * number as u32;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let cpu_before = thread_cpu();
        let ((), time) = timed(|| file.write(number * BATCH_LEN, BATCH_LEN as usize)).map_err(doing("appending"))?;
        cpu += thread_cpu().saturating_sub(cpu_before);
        samples.push(time);
        if Instant::now() > until {
            break;
        }
    }
    Ok((samples, cpu))
}

fn flush_now_and_then(path: &Path, stop: &AtomicBool) -> io::Result<()> {
    while !stop.load(Ordering::Relaxed) {
        std::thread::park_timeout(FLUSH_INTERVAL);
        crate::io::disk::sync_path(path)?;
    }
    Ok(())
}

fn thread_cpu() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}
