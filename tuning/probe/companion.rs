//! A log that is flushed all the time on a thread of its own, while something else happens on the same file system: what
//! senders would feel of it.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::run::Run;
use super::scratch::Scratch;
use crate::io::{AppendMode, ProbeFile, SyncCall};

const LEN: u64 = 1 << 20;
const BATCH_LEN: usize = 4096;
/// Between two flushes, so that they are a load and not the load.
const PAUSE: Duration = Duration::from_micros(500);

/// When each flush began, and how long it took.
type Flushes = Vec<(Instant, Duration)>;

pub(super) struct Companion {
    path: PathBuf,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<io::Result<Flushes>>,
}

impl Companion {
    pub(super) fn start(scratch: &Scratch) -> io::Result<Companion> {
        let path = scratch.file("companion");
        let mut file = ProbeFile::create(&path, LEN, AppendMode::Buffered, BATCH_LEN)?;
        file.write_zeros(0, LEN)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut flushes = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                let at = (flushes.len() * BATCH_LEN) as u64 % LEN;
                let began = Instant::now();
                file.commit(at, BATCH_LEN, SyncCall::Fdatasync)?;
                flushes.push((began, began.elapsed()));
                std::thread::sleep(PAUSE);
            }
            Ok(flushes)
        });
        Ok(Companion { path, stop, thread })
    }

    /// Ends it; what it saw in `[from, to]`, flushes that reach into that time included.
    pub(super) fn end(self, run: &mut Run<'_>, from: Instant, to: Instant) -> io::Result<Vec<Duration>> {
        self.stop.store(true, Ordering::Relaxed);
        let flushes = self.thread.join().expect("a companion only writes")?;
        fs::remove_file(&self.path)?;
        run.wrote(LEN + (flushes.len() * BATCH_LEN) as u64);
        let within = flushes.into_iter().filter(|(began, took)| *began <= to && *began + *took >= from);
        Ok(within.map(|(_, took)| took).collect())
    }
}
