//! What a node would do on a device that was probed, worked out from the probe's figures alone.
//!
//! Sync mode is a group commit: while one flush runs, the next batch gathers. So at a rate the batch grows until it holds
//! what arrives during one flush of itself, `batch = rate × flush time of the batch`, or is one message where flushes are
//! quicker than messages come. A message waits for what is left of the flush before its own, and for its own:
//!
//! - p50 = hop + (1 + share / 2) × flush p50, where `share` is the part of the time in which a flush runs;
//! - p99 = hop p99 + 2 × flush p99 (once, where flushes run in less than one percent of the time).
//!
//! Async mode answers once a message is in the page cache: hop and append, both as they are while the log is flushed
//! behind. What a loss of power takes is what arrived in one interval, in the flush before the look and in the flush itself:
//! window = interval + 2 × flush p99 of what an interval gathers.
//!
//! The hop is the probe's round trip over loopback, two wake-ups where the writer has an executor of its own (it and the
//! shard each sleep when idle), and the node's own work, which no probe can measure: [`APART`] and [`SHARED`].

use crate::io::{AppendMode, SyncCall};
use crate::tuning::probe::{FlushCell, Hop, Probe};

/// Bytes that a stored message has beside its body: 91 of the layout, a short topic, its unique key, a few properties.
pub(super) const RECORD_EXTRA_LEN: f64 = 200.0;
/// Bytes that consume queue and index get for a message with one key.
pub(super) const DERIVED_LEN: f64 = 44.0;
/// The part of what the probe could do that a plan may ask for: the rest is for the node's own work, reads and neighbours.
pub(super) const PLANNED_PART: f64 = 0.7;
/// The node's own part of a send, µs: frames and headers, io_uring, rings. What remained of a lone message's time (one
/// connection, one send at a time, 1 KiB, JSON header) on a virtual machine with two cores once loopback, wake-ups and append
/// were taken off: with two executors, and with one. Other machines differ; `kerolox-bench` tells.
pub(super) const APART: Latency = Latency { p50: 100.0, p99: 300.0 };
pub(super) const SHARED: Latency = Latency { p50: 60.0, p99: 300.0 };
/// What the node's writer takes into one batch at most.
const BATCH_COUNT_MAX: f64 = 8192.0;
const BATCH_LEN_MAX: f64 = (4 << 20) as f64;
/// Below this share of the time, less than one message in a hundred finds a flush under way.
const SHARE_MIN: f64 = 0.01;
/// Of two ways of which one is not faster by more, the one that the node has as its default wins: noise moves figures
/// by as much.
const CLEARLY: f64 = 0.85;

/// What is asked of the node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    /// Messages a second.
    pub rate: f64,
    /// Bytes of a stored message.
    pub record_len: f64,
}

impl Load {
    pub(super) fn new(rate: u64, body_len: u64) -> Load {
        Load { rate: rate as f64, record_len: body_len as f64 + RECORD_EXTRA_LEN }
    }

    /// Bytes a second of log, and of all files.
    pub(super) fn log_bytes_per_s(&self) -> f64 {
        self.rate * self.record_len
    }

    pub(super) fn bytes_per_s(&self) -> f64 {
        self.rate * (self.record_len + DERIVED_LEN)
    }
}

/// Times of one kind of thing, µs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    pub mean: f64,
    pub p50: f64,
    pub p99: f64,
    /// Of how many; of fewer than 100 the p99 is the slowest.
    pub samples: u32,
}

/// Flushes of one way by the length of the batch.
#[derive(Clone, Debug)]
pub(super) struct Curve {
    pub append: AppendMode,
    pub sync_call: SyncCall,
    pub zeroed: bool,
    /// By length, growing; never empty.
    points: Vec<(f64, Spread)>,
    /// Bytes a µs beyond the last of them.
    bytes_per_us: f64,
    /// The slowest flush of all lengths.
    pub max_us: f64,
}

impl Curve {
    /// All ways that the probe has figures of.
    pub(super) fn all(probe: &Probe) -> Vec<Curve> {
        let mut curves: Vec<Curve> = Vec::new();
        let mut cells: Vec<&FlushCell> = probe.flush.iter().collect();
        cells.sort_by_key(|cell| cell.len);
        for cell in cells {
            let times = cell.times;
            let point = (
                cell.len as f64,
                Spread { mean: times.mean_us, p50: times.p50_us, p99: times.p99_us, samples: times.samples },
            );
            let same = |curve: &&mut Curve| {
                (curve.append, curve.sync_call, curve.zeroed) == (cell.append, cell.sync_call, cell.zeroed)
            };
            match curves.iter_mut().find(same) {
                Some(curve) => {
                    curve.points.push(point);
                    curve.max_us = curve.max_us.max(times.max_us);
                }
                None => curves.push(Curve {
                    append: cell.append,
                    sync_call: cell.sync_call,
                    zeroed: cell.zeroed,
                    points: vec![point],
                    bytes_per_us: write_mib_per_s(probe) * f64::from(1 << 20) / 1e6,
                    max_us: times.max_us,
                }),
            }
        }
        curves
    }

    /// Flushes of batches of this length: between two that were measured in proportion, beyond the last by bandwidth.
    pub(super) fn at(&self, len: f64) -> Spread {
        let (first, last) = (self.points[0], self.points[self.points.len() - 1]);
        if len <= first.0 {
            return first.1;
        }
        if len >= last.0 {
            let more = (len - last.0) / self.bytes_per_us.max(1e-6);
            let Spread { mean, p50, p99, samples } = last.1;
            return Spread { mean: mean + more, p50: p50 + more, p99: p99 + more, samples };
        }
        let above = self.points.partition_point(|(at, _)| *at <= len);
        let ((low, a), (high, b)) = (self.points[above - 1], self.points[above]);
        let part = (len - low) / (high - low);
        let between = |a: f64, b: f64| a + (b - a) * part;
        Spread {
            mean: between(a.mean, b.mean),
            p50: between(a.p50, b.p50),
            p99: between(a.p99, b.p99),
            samples: a.samples.min(b.samples),
        }
    }

    /// The highest rate that its group commits carry, messages a second.
    pub(super) fn rate_max(&self, record_len: f64) -> f64 {
        let batches = (0..=13).map(|power| f64::from(1 << power)).filter(|count| count * record_len <= BATCH_LEN_MAX);
        batches.chain([1.0]).map(|count| count / self.at(count * record_len).mean * 1e6).fold(0.0, f64::max)
    }
}

/// What the device writes when asked for much at once, by the better way.
pub(super) fn write_mib_per_s(probe: &Probe) -> f64 {
    probe.segments.write.iter().map(|bandwidth| bandwidth.mib_per_s).fold(0.0, f64::max)
}

/// A load's steady state under group commit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    /// Messages that one flush answers.
    pub batch: f64,
    /// Part of the time in which a flush runs, up to 1.
    pub share: f64,
    pub flush: Spread,
}

/// None: batches would grow without end.
pub(super) fn group(load: &Load, curve: &Curve) -> Option<Group> {
    let arriving = |batch: f64| load.rate * curve.at(batch * load.record_len).mean / 1e6;
    let mut batch = 1.0_f64;
    // Grows towards the fixed point from below; flush times grow with their length, or hardly shrink.
    for _ in 0..1000 {
        let next = arriving(batch).max(1.0);
        if next > BATCH_COUNT_MAX || (next > 1.0 && next * load.record_len > BATCH_LEN_MAX) {
            return None;
        }
        if (next - batch).abs() <= 0.001 * batch {
            break;
        }
        batch = next;
    }
    let flush = curve.at(batch * load.record_len);
    Some(Group { batch, share: (arriving(batch) / batch).min(1.0), flush })
}

/// p50 and p99 of one send, µs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Latency {
    pub p50: f64,
    pub p99: f64,
}

impl Latency {
    /// What a message takes besides the disk. `spins`: cores look for work before they sleep, so that there is nobody
    /// to wake.
    pub(super) fn of_hop(probe: &Probe, spins: bool) -> Latency {
        let Hop { echo, wake } = &probe.hop;
        let is_shared = shares_executor(probe.site.cores);
        let node = if is_shared { SHARED } else { APART };
        let (p50, p99) = if spins || is_shared { (0.0, 0.0) } else { (wake.p50_us, wake.p99_us) };
        Latency { p50: echo.p50_us + p50 + node.p50, p99: echo.p99_us + p99 + node.p99 }
    }

    pub(super) fn sync(hop: Latency, group: &Group) -> Latency {
        Latency {
            p50: hop.p50 + (1.0 + group.share / 2.0) * group.flush.p50,
            p99: hop.p99 + group.flushes_waited() * group.flush.p99,
        }
    }
}

impl Group {
    /// How many flushes a message waits for in the bad case.
    pub(super) fn flushes_waited(&self) -> f64 {
        if self.share < SHARE_MIN { 1.0 } else { 2.0 }
    }
}

/// What a loss of power takes at most in async mode, ms.
pub(super) fn loss_window_ms(load: &Load, curve: &Curve, interval_ms: f64) -> f64 {
    let gathered = load.log_bytes_per_s() * interval_ms / 1000.0;
    interval_ms + 2.0 * curve.at(gathered).p99 / 1000.0
}

/// Does one executor have all roles of a node that may use so many cores? The node's placement, as it is by default.
pub(super) fn shares_executor(cores: u32) -> bool {
    cores <= 2
}

/// What the node's "auto" comes to in sync mode: where one executor has all roles writes into the page cache cost more than
/// any probe of single writes shows (docs/PERFORMANCE.md).
pub(super) fn usual_sync_append(cores: u32, has_direct: bool) -> AppendMode {
    if shares_executor(cores) && has_direct { AppendMode::Dma } else { AppendMode::Buffered }
}

/// Is `a`, which the node has as its default, to be taken instead of `b`? Both in the same unit, less is better.
pub(super) fn keeps_default(default: f64, other: f64) -> bool {
    other > CLEARLY * default
}
