//! How a load goes on, on standard error: a line that is written over on a terminal, one every ten seconds elsewhere.

use std::io::{self, IsTerminal, Write};

use crate::load::{Event, Interval};

/// Where there is no terminal, a line for each so many seconds.
const SECONDS_A_LINE: f64 = 10.0;

pub struct Live {
    terminal: bool,
    /// The line on the terminal is to be ended before anything else is printed.
    open: bool,
    since_line: f64,
    failed: u64,
}

impl Live {
    pub fn new() -> Live {
        Live { terminal: io::stderr().is_terminal(), open: false, since_line: 0.0, failed: 0 }
    }

    pub fn hear(&mut self, event: &Event<'_>) {
        match event {
            Event::Preparing(what) => self.show(&format!("preparing {what}"), false),
            Event::Warming(interval) => {
                self.failed = 0;
                self.tell("warm-up", interval);
            }
            Event::Measured(interval) => {
                self.failed += interval.failed;
                self.tell("measuring", interval);
            }
        }
    }

    /// Ends the line on a terminal.
    pub fn finish(&mut self) {
        if self.open {
            // Whoever closed standard error wants to see nothing.
            _ = writeln!(io::stderr());
            self.open = false;
        }
    }

    fn tell(&mut self, phase: &str, interval: &Interval<'_>) {
        self.since_line += interval.seconds;
        let due = self.since_line + 1e-6 >= SECONDS_A_LINE;
        if self.terminal || due {
            self.since_line = 0.0;
            self.show(&line(phase, interval, self.failed), true);
        }
    }

    fn show(&mut self, text: &str, over: bool) {
        if self.terminal {
            _ = write!(io::stderr(), "\r\x1b[K{text}");
            self.open = true;
        } else if over {
            _ = writeln!(io::stderr(), "{text}");
        }
    }
}

fn line(phase: &str, interval: &Interval<'_>, failed: u64) -> String {
    let mut text = format!("{phase} {:.0} s", interval.until_seconds);
    if let Some(of) = interval.of_seconds {
        text += &format!(" of {of:.0}");
    }
    let rate = |count: u64| count as f64 / interval.seconds;
    if interval.published + interval.failed > 0 || interval.consumed == 0 {
        text += &format!("  {:.0} sent/s", rate(interval.published));
    }
    if interval.consumed > 0 {
        text += &format!("  {:.0} read/s", rate(interval.consumed));
    }
    for (name, histogram) in [("send", interval.publish), ("end to end", interval.end_to_end)] {
        if !histogram.is_empty() {
            let ms = |nanos: u64| nanos as f64 / 1e6;
            let at = |quantile: f64| ms(histogram.value_at_quantile(quantile));
            text += &format!("  {name} p50 {:.3} p99 {:.3} max {:.3} ms", at(0.5), at(0.99), ms(histogram.max()));
        }
    }
    if interval.behind_ms > 0.0 {
        text += &format!("  behind {:.3} ms", interval.behind_ms);
    }
    if failed > 0 {
        text += &format!("  FAILED {failed}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::histogram;

    #[test]
    fn a_line_tells_progress_rate_latency_and_failures() {
        let mut publish = histogram();
        publish.saturating_record(1_500_000);
        let interval = Interval {
            until_seconds: 3.0,
            seconds: 0.5,
            of_seconds: Some(20.0),
            published: 6000,
            failed: 1,
            consumed: 0,
            behind_ms: 0.25,
            publish: &publish,
            end_to_end: &histogram(),
            pull: &histogram(),
        };
        let text = line("measuring", &interval, 4);
        for part in ["measuring 3 s of 20", "12000 sent/s", "p99 1.50", "behind 0.250 ms", "FAILED 4"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("read/s"));
    }
}
