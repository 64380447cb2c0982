//! Latency of the stages that one core runs, as histograms.

use std::fmt;
use std::time::Duration;

use hdrhistogram::Histogram;

/// A stage of a message's life on the writer core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// A turn's write into the page cache.
    Append,
    /// A turn's way onto stable storage.
    Flush,
}

/// Histograms of one core: stage times in µs (up to a minute, two digits), puts a turn.
#[derive(Debug)]
pub struct Stages {
    append_us: Histogram<u64>,
    flush_us: Histogram<u64>,
    turn_puts: Histogram<u64>,
}

impl Default for Stages {
    fn default() -> Stages {
        let times = || Histogram::new_with_bounds(1, 60_000_000, 2).expect("the bounds are valid");
        Stages {
            append_us: times(),
            flush_us: times(),
            turn_puts: Histogram::new_with_bounds(1, 1 << 20, 2).expect("the bounds are valid"),
        }
    }
}

impl Stages {
    /// Notes how long a stage took.
    pub fn record(&mut self, stage: Stage, took: Duration) {
        let histogram = match stage {
            Stage::Append => &mut self.append_us,
            Stage::Flush => &mut self.flush_us,
        };
        histogram.saturating_record(took.as_micros() as u64);
    }

    /// Notes how many puts shared a turn.
    pub fn record_count(&mut self, puts: usize) {
        self.turn_puts.saturating_record(puts as u64);
    }
}

/// p50, p99 and maximum of each stage that ran, on one line.
impl fmt::Display for Stages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut first = true;
        for (name, unit, histogram) in
            [("append", "µs", &self.append_us), ("flush", "µs", &self.flush_us), ("turn", " puts", &self.turn_puts)]
        {
            if histogram.is_empty() {
                continue;
            }
            let gap = if std::mem::take(&mut first) { "" } else { ", " };
            let (p50, p99) = (histogram.value_at_quantile(0.5), histogram.value_at_quantile(0.99));
            write!(
                f,
                "{gap}{name} p50 {p50}{unit} p99 {p99}{unit} max {}{unit} ×{}",
                histogram.max(),
                histogram.len()
            )?;
        }
        if first { f.write_str("nothing ran") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_stages_that_ran_are_shown() {
        let mut stages = Stages::default();
        assert_eq!(stages.to_string(), "nothing ran");
        stages.record(Stage::Append, Duration::from_micros(7));
        assert_eq!(stages.to_string(), "append p50 7µs p99 7µs max 7µs ×1");
    }
}
