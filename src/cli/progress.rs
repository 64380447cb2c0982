//! How far a long command has got, on standard error: a line a second at most, and only for people or if asked for.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

const INTERVAL: Duration = Duration::from_secs(1);

/// Prints how much is done.
pub(super) struct Meter {
    what: &'static str,
    /// What is counted; bytes of the log if that is not said.
    counted: Option<&'static str>,
    /// When it first heard how far it is, and how far that was.
    began: Option<(Instant, u64)>,
    /// None: nobody wants to see it.
    last: Option<Instant>,
}

impl Meter {
    /// `forced`: also where standard error is no terminal.
    pub(super) fn new(what: &'static str, forced: bool) -> Meter {
        Meter { what, counted: None, began: None, last: (forced || io::stderr().is_terminal()).then(Instant::now) }
    }

    /// The same for what is told in pieces of this name.
    pub(super) fn counting(what: &'static str, counted: &'static str, forced: bool) -> Meter {
        Meter { counted: Some(counted), ..Meter::new(what, forced) }
    }

    pub(super) fn tell(&mut self, done: u64, total: u64) {
        let Some(last) = &mut self.last else { return };
        let Some((began, before)) = self.began else {
            let now = Instant::now();
            self.began = Some((now, done));
            *last = now;
            return;
        };
        if last.elapsed() < INTERVAL {
            return;
        }
        *last = Instant::now();
        let rate = done.saturating_sub(before) as f64 / began.elapsed().as_secs_f64().max(0.001);
        let left_s = (total.saturating_sub(done)) as f64 / rate.max(1.0);
        let line = match self.counted {
            Some(counted) => {
                format!("{}: {done} of at most {total} {counted}, {rate:.0} a second, {left_s:.0} s left", self.what)
            }
            None => format!(
                "{}: {} of at most {} MiB, {:.0} MiB/s, {left_s:.0} s left",
                self.what,
                done >> 20,
                total >> 20,
                rate / f64::from(1 << 20)
            ),
        };
        // If nobody takes it, nobody misses it.
        let _ = writeln!(io::stderr(), "{line}");
    }
}
