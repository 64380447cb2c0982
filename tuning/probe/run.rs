//! What bounds one run of a probe: bytes, time, and somebody who wants it to end.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::ProbeError;
use super::scratch::Scratch;

/// Handed through all steps.
pub(super) struct Run<'a> {
    pub scratch: &'a Scratch,
    stop: &'a AtomicBool,
    tell: &'a mut dyn FnMut(&str),
    began: Instant,
    max_time: Duration,
    told: Option<Instant>,
    written: u64,
}

/// No more than one line in this time.
const TELL_INTERVAL: Duration = Duration::from_secs(1);

impl<'a> Run<'a> {
    pub(super) fn new(
        scratch: &'a Scratch,
        stop: &'a AtomicBool,
        tell: &'a mut dyn FnMut(&str),
        max_time: Duration,
    ) -> Run<'a> {
        Run { scratch, stop, tell, began: Instant::now(), max_time, told: None, written: 0 }
    }

    /// # Errors
    /// The run is to end now. Asked before every step that may take long.
    pub(super) fn go_on(&self) -> Result<(), ProbeError> {
        if self.stop.load(Ordering::Relaxed) { Err(ProbeError::Stopped) } else { Ok(()) }
    }

    /// When so much of the time, in percent, will be over.
    pub(super) fn until(&self, percent: u32) -> Instant {
        self.began + self.max_time * percent / 100
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Counts bytes that were written.
    pub(super) fn wrote(&mut self, len: u64) {
        self.written += len;
    }

    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Says how far it is.
    pub(super) fn tell(&mut self, what: &str, done: usize, of: usize) {
        if self.told.is_some_and(|told| told.elapsed() < TELL_INTERVAL) && done > 0 {
            return;
        }
        self.told = Some(Instant::now());
        let (elapsed, max) = (self.began.elapsed().as_secs(), self.max_time.as_secs());
        (self.tell)(&format!("{what}: {done} of {of}; {elapsed} s of at most {max} s"));
    }
}

/// Adds what was being done to an error of the file system.
pub(super) fn doing(what: &'static str) -> impl Fn(io::Error) -> ProbeError {
    move |source| ProbeError::Io { what, source }
}

pub(super) fn timed<T>(work: impl FnOnce() -> io::Result<T>) -> io::Result<(T, Duration)> {
    let began = Instant::now();
    let done = work()?;
    Ok((done, began.elapsed()))
}
