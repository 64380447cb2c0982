//! The opening of a store as seen from another thread: how far it is, and whether it shall end.
//!
//! A recovery can take minutes. Whoever started it may want to tell somebody how it goes on, and may be told to stop
//! meanwhile: what a recovery has done so far, the next one need not do again, so it may end at any of its steps.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use super::open_error::OpenError;

/// What is being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Phase {
    /// Tables, file lists, ends of queues.
    Looking,
    /// The commit log, record by record.
    Scanning,
    /// What was found goes to stable storage.
    Completing,
}

/// Made by who opens a store, before it does; read from any thread.
#[derive(Debug)]
pub struct Opening {
    /// Set (by a signal handler, for one): end.
    stop: Arc<AtomicBool>,
    steps: AtomicU64,
    in_long_step: AtomicBool,
    phase: AtomicU8,
    scanned_mib: AtomicU64,
    /// At most so much is to be scanned: nobody knows yet where the log ends.
    total_mib: AtomicU64,
    left_s: AtomicU64,
}

impl Opening {
    /// One that ends with [`OpenError::Stopped`] soon after `stop` is set.
    pub fn new(stop: Arc<AtomicBool>) -> Opening {
        Opening {
            stop,
            steps: AtomicU64::new(0),
            in_long_step: AtomicBool::new(false),
            phase: AtomicU8::new(Phase::Looking as u8),
            scanned_mib: AtomicU64::new(0),
            total_mib: AtomicU64::new(0),
            left_s: AtomicU64::new(0),
        }
    }

    /// One that nobody stops.
    pub fn unstopped() -> Opening {
        Opening::new(Arc::default())
    }

    /// How many steps were done: while this grows, the opening gets on. A step is a file or a MiB.
    pub fn steps(&self) -> u64 {
        self.steps.load(Ordering::Acquire)
    }

    /// Is the present step one that may take as long as the disk needs for all that waits to be written?
    pub fn is_in_long_step(&self) -> bool {
        self.in_long_step.load(Ordering::Relaxed)
    }

    /// One more step is done.
    ///
    /// # Errors
    /// [`OpenError::Stopped`] if it was the last.
    pub(super) fn step(&self) -> Result<(), OpenError> {
        self.count_step(false)
    }

    /// As [`Opening::step`], and the next one will be long.
    pub fn long_step(&self) -> Result<(), OpenError> {
        self.count_step(true)
    }

    fn count_step(&self, is_next_long: bool) -> Result<(), OpenError> {
        self.in_long_step.store(is_next_long, Ordering::Relaxed);
        self.steps.fetch_add(1, Ordering::Release);
        if self.stop.load(Ordering::Relaxed) { Err(OpenError::Stopped) } else { Ok(()) }
    }

    /// As [`Opening::step`], within a scan: MiB done, of at most how many, and the seconds that the rest will take.
    pub fn scanned(&self, done_mib: u64, total_mib: u64, left_s: u64) -> Result<(), OpenError> {
        self.scanned_mib.store(done_mib, Ordering::Relaxed);
        self.total_mib.store(total_mib, Ordering::Relaxed);
        self.left_s.store(left_s, Ordering::Relaxed);
        self.phase.store(Phase::Scanning as u8, Ordering::Relaxed);
        self.step()
    }

    /// The scan is over.
    pub(super) fn completing(&self) -> Result<(), OpenError> {
        self.phase.store(Phase::Completing as u8, Ordering::Relaxed);
        self.step()
    }
}

/// For people, on one line.
impl fmt::Display for Opening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let phase = self.phase.load(Ordering::Relaxed);
        if phase == Phase::Looking as u8 {
            return f.write_str("opening the store");
        }
        if phase == Phase::Completing as u8 {
            return f.write_str("recovering: the commit log is scanned; consume queues and index are completed");
        }
        let (done, total) = (self.scanned_mib.load(Ordering::Relaxed), self.total_mib.load(Ordering::Relaxed));
        let (percent, left_s) = (done * 100 / total.max(1), self.left_s.load(Ordering::Relaxed));
        write!(f, "recovering: {percent} % of the commit log scanned ({done} of at most {total} MiB), {left_s} s left")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_what_is_done_and_ends_once_told() {
        let stop = Arc::new(AtomicBool::new(false));
        let opening = Opening::new(Arc::clone(&stop));
        assert_eq!(opening.to_string(), "opening the store");
        opening.step().unwrap();
        opening.scanned(300, 1024, 7).unwrap();
        let said = opening.to_string();
        assert!(
            said.contains("29 %") && said.contains("300 of at most 1024 MiB") && said.contains("7 s left"),
            "{said}"
        );
        opening.completing().unwrap();
        assert!(opening.to_string().contains("completed"));
        assert_eq!(opening.steps(), 3);
        opening.long_step().unwrap();
        assert!(opening.is_in_long_step());
        opening.step().unwrap();
        assert!(!opening.is_in_long_step());
        stop.store(true, Ordering::Relaxed);
        assert!(matches!(opening.scanned(0, 0, 0), Err(OpenError::Stopped)));
        assert!(opening.to_string().contains("0 %"));
    }
}
