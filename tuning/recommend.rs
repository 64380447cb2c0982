//! Settings for what somebody asks of a node, from the figures that a probe found on the store's own file system.
//!
//! Called by `kerolox-tune recommend`. Pure: a probe and a request in, settings with their reasons out, or the figures that
//! forbid them. How latency and loss window are worked out stands in `model`.

mod fragment;
mod model;
#[cfg(test)]
mod tests;

use crate::config::FlushMode;
use crate::io::{AppendMode, SyncCall};
use crate::tuning::probe::{AppendCell, Probe, Site};
use model::{Curve, Group, Latency, Load, PLANNED_PART, group};

/// Asked for unless somebody says otherwise.
pub const P99_MS_DEFAULT: f64 = 20.0;
pub const RATE_DEFAULT: u64 = 10_000;
pub const SIZE_DEFAULT: u64 = 1024;

/// Between two looks of an async node, in ms: the node's default, and longer ones for a disk that would do nothing but flush.
const CALM_INTERVALS_MS: [u64; 3] = [100, 250, 500];
/// Those that a loss window may ask for.
const INTERVALS_MS: [u64; 9] = [500, 250, 100, 50, 20, 10, 5, 2, 1];
/// The node's own defaults that a line may have to raise.
const INFLIGHT_MESSAGES: u64 = 65_536;
const INFLIGHT_MESSAGES_MAX: u64 = 16_777_216;
const INFLIGHT_LEN: u64 = 64 << 20;
const INFLIGHT_LEN_MAX: u64 = 16 << 30;
const PUT_WAIT_MS: u64 = 200;
/// With the default of `flush.sync_timeout_ms` the most that both may be together.
const PUT_WAIT_MS_MAX: u64 = 400;
/// The longest body unless the settings say otherwise.
const MESSAGE_LEN_MAX: u64 = 4 << 20;
const SEGMENT_LEN: u64 = 1 << 30;
const SEGMENT_LEN_MIN: u64 = 64 << 20;
const RETENTION_HOURS: u64 = 72;
/// The percent of the disk that messages may take, as `disk.max_used_percent` has it.
const DISK_PERCENT: u64 = 75;
/// A core that spins this long meets the next message if they come as often as that, and only where cores are not needed
/// for something else.
const SPIN_US: u32 = 100;
const SPIN_RATE_MIN: u64 = 5_000;
const SPIN_CORES_MIN: u32 = 4;

/// What is asked of the node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request {
    /// Ms within which 99 of 100 sends are to be answered.
    pub p99_ms: f64,
    /// Messages a second.
    pub rate: u64,
    /// Bytes of a body.
    pub size: u64,
    /// Ms of acknowledged messages that a loss of power may take; 0: none. Without it sync flush is taken where it meets
    /// the rest, else async.
    pub loss_window_ms: Option<u64>,
}

/// What is to be expected of the settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expected {
    pub p50_us: f64,
    pub p99_us: f64,
    pub loss: Loss,
}

/// What a loss of power may take of what was acknowledged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Loss {
    /// Nothing, if the device keeps what it was told to flush.
    Nothing,
    /// The last so many ms.
    WindowMs(f64),
    /// Whatever there is: flushes go nowhere here.
    Everything,
}

/// One setting with its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub section: &'static str,
    pub key: &'static str,
    /// As TOML.
    pub value: String,
    pub reason: String,
}

/// Settings that meet a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Advice {
    pub mode: FlushMode,
    pub append: AppendMode,
    pub expected: Expected,
    pub lines: Vec<Line>,
    /// How the expectation was worked out.
    pub how: Vec<String>,
    /// What the probe cannot know.
    pub unknown: Vec<String>,
}

/// Why no setting meets a request: the figure that forbids each way, and what could be asked for instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub lines: Vec<String>,
}

/// Settings that meet the request, or why there are none.
///
/// # Errors
/// No setting meets it.
pub fn recommend(probe: &Probe, request: &Request) -> Result<Advice, Refusal> {
    let plan = Plan { probe, request, load: Load::new(request.rate, request.size) };
    let mut why = Vec::new();
    let chosen = match plan.bandwidth() {
        Err(line) => {
            why.push(line);
            None
        }
        Ok(()) => match plan.sync() {
            Ok(advice) => Some(advice),
            Err(sync) => {
                why.push(sync);
                plan.asynchronous().map_err(|line| why.push(line)).ok()
            }
        },
    };
    chosen.map_or(Err(Refusal { lines: why.clone() }), |mut advice| {
        // Of sync, if async was taken: why not.
        advice.how.extend(why);
        Ok(advice)
    })
}

/// The settings as a file for `kerolox serve --config`.
pub fn to_toml(probe: &Probe, request: &Request, advice: &Advice) -> String {
    fragment::of(probe, request, advice)
}

struct Plan<'a> {
    probe: &'a Probe,
    request: &'a Request,
    load: Load,
}

/// One way to run in sync mode, and what comes of it.
struct SyncWay {
    curve: Curve,
    group: Group,
    latency: Latency,
    spins: bool,
}

impl Plan<'_> {
    /// Does the device write as much as that at all?
    fn bandwidth(&self) -> Result<(), String> {
        let (asked, can) = (mib(self.load.bytes_per_s()), model::write_mib_per_s(self.probe));
        if asked <= PLANNED_PART * can {
            return Ok(());
        }
        let rate = (self.request.rate as f64 * PLANNED_PART * can / asked).floor();
        let instead = if rate < 1.0 { "no rate".to_owned() } else { format!("--rate {rate:.0}") };
        Err(format!(
            "neither sync nor async: {} messages a second of {} bytes are {asked:.0} MiB/s with their headers, queues and index, and the device writes {can:.0} MiB/s, of which {:.0} % can be planned with; {instead} would do",
            self.request.rate,
            self.request.size,
            100.0 * PLANNED_PART
        ))
    }

    /// Without and, if that is worth a core here, with spinning.
    fn hops(&self) -> Vec<(Latency, bool)> {
        let hop = |spins| (Latency::of_hop(self.probe, spins), spins);
        let Site { cores, quota_cores, .. } = self.probe.site;
        let to_spend = if quota_cores == 0 { cores } else { cores.min(quota_cores) };
        let may_spin = to_spend >= SPIN_CORES_MIN && self.request.rate >= SPIN_RATE_MIN;
        if may_spin { vec![hop(false), hop(true)] } else { vec![hop(false)] }
    }

    /// What a hop is made of.
    fn hop_word(&self, spins: bool) -> &'static str {
        if spins || model::shares_executor(self.probe.site.cores) {
            "loopback and the node's own work"
        } else {
            "loopback, wake-ups and the node's own work"
        }
    }

    fn meets(&self, latency: Latency) -> bool {
        latency.p99 <= self.request.p99_ms * 1000.0
    }

    fn sync(&self) -> Result<Advice, String> {
        if self.probe.syncs_are_free() {
            return Err(
                "not sync: flushes cost nothing here, so they go nowhere, and waiting for them would promise what is not kept".into(),
            );
        }
        let mut ways = Vec::new();
        let mut rate_max = 0.0_f64;
        for curve in Curve::all(self.probe) {
            // Zeros ahead are written as well.
            let written = self.load.bytes_per_s() + if curve.zeroed { self.load.log_bytes_per_s() } else { 0.0 };
            let carries = PLANNED_PART * curve.rate_max(self.load.record_len);
            rate_max = rate_max.max(carries);
            if self.load.rate > carries || mib(written) > PLANNED_PART * model::write_mib_per_s(self.probe) {
                continue;
            }
            let Some(group) = group(&self.load, &curve) else { continue };
            for (hop, spins) in self.hops() {
                ways.push(SyncWay { latency: Latency::sync(hop, &group), curve: curve.clone(), group, spins });
            }
        }
        let Some(nearest) = ways.iter().min_by(|a, b| a.latency.p99.total_cmp(&b.latency.p99)) else {
            return Err(format!(
                "not sync: its group commits carry {rate_max:.0} messages a second of {} bytes here ({:.0} % of the best that the probe's flush curve gives), and {} are asked for",
                self.request.size,
                100.0 * PLANNED_PART,
                self.request.rate
            ));
        };
        let forbids = format!(
            "not sync: its p99 would be {}, and {} are asked for: {:.0} × {} (p99 of a flush of {} by {}) and {} on top; --p99-ms {:.0} would do",
            ms(nearest.latency.p99),
            ms(self.request.p99_ms * 1000.0),
            nearest.group.flushes_waited(),
            ms(nearest.group.flush.p99),
            len_word(nearest.group.batch * self.load.record_len),
            way_word(&nearest.curve),
            ms(Latency::of_hop(self.probe, nearest.spins).p99),
            (nearest.latency.p99 / 1000.0).ceil(),
        );
        // Cores that sleep when idle, unless only spinning meets it.
        let meets = |way: &&SyncWay| self.meets(way.latency);
        let calm = ways.iter().filter(meets).any(|way| !way.spins);
        let meeting: Vec<_> = ways.iter().filter(meets).filter(|way| !(calm && way.spins)).collect();
        let by_mean = |a: &&&SyncWay, b: &&&SyncWay| a.group.flush.mean.total_cmp(&b.group.flush.mean);
        let Some(best) = meeting.iter().min_by(by_mean) else { return Err(forbids) };
        let usual = model::usual_sync_append(self.probe.site.cores, self.probe.site.direct);
        let plain = meeting.iter().filter(|way| way.curve.append == usual).min_by(by_mean);
        let taken = plain.filter(|plain| model::keeps_default(plain.group.flush.mean, best.group.flush.mean));
        Ok(self.sync_advice(taken.unwrap_or(best), best))
    }

    fn sync_advice(&self, way: &SyncWay, best: &SyncWay) -> Advice {
        let SyncWay { curve, group, latency, spins } = way;
        let flush = group.flush;
        let batch_len = group.batch * self.load.record_len;
        let mut lines = vec![self.root()];
        let than = if std::ptr::eq(way, best) {
            "the quickest way here".to_owned()
        } else {
            format!(
                "the default; {} would take {} on average, which is no clear gain",
                way_word(&best.curve),
                ms(best.group.flush.mean)
            )
        };
        lines.push(line(
            "store",
            "append",
            quoted(curve.append.word()),
            format!(
                "a flush of {} takes {} on average, p99 {}: {than}",
                len_word(batch_len),
                ms(flush.mean),
                ms(flush.p99)
            ),
        ));
        let other = Curve::all(self.probe).into_iter().find(|other| {
            (other.append, other.sync_call, other.zeroed) == (curve.append, curve.sync_call, !curve.zeroed)
        });
        let other = other.map_or("was not measured".to_owned(), |other| ms(other.at(batch_len).mean));
        lines.push(if curve.zeroed {
            line(
                "store",
                "zero_ahead",
                quoted("on"),
                format!("into blocks that are only reserved it takes {other}; costs every byte of the log twice"),
            )
        } else {
            line(
                "store",
                "zero_ahead",
                quoted("off"),
                format!("into zeroed blocks it takes {other}, and every byte of the log would be written twice"),
            )
        });
        lines.push(self.segment_len());
        lines.push(line(
            "flush",
            "mode",
            quoted("sync"),
            match self.request.loss_window_ms {
                Some(0) => "nothing that was acknowledged may be lost, and it meets the request".to_owned(),
                _ => "it meets the request, and loses nothing".to_owned(),
            },
        ));
        lines.push(line(
            "flush",
            "sync_call",
            quoted(curve.sync_call.word()),
            match curve.append {
                AppendMode::Mmap => "all that a mapping knows".to_owned(),
                _ => "the quicker one at that length; \"auto\" would measure 4 KiB alone".to_owned(),
            },
        ));
        self.common_lines(&mut lines, curve.max_us, *spins);
        let share = (100.0 * group.share).round();
        let how = vec![
            format!(
                "group commit: {:.1} messages a flush ({}), which runs {share} % of the time",
                group.batch,
                len_word(batch_len)
            ),
            format!(
                "p99 {} = {:.0} × {} (flush, of {} measured) + {} ({})",
                ms(latency.p99),
                group.flushes_waited(),
                ms(flush.p99),
                flush.samples,
                ms(Latency::of_hop(self.probe, *spins).p99),
                self.hop_word(*spins)
            ),
            format!(
                "at most {:.0} messages a second could be planned for this way",
                PLANNED_PART * curve.rate_max(self.load.record_len)
            ),
        ];
        let expected = Expected { p50_us: latency.p50, p99_us: latency.p99, loss: Loss::Nothing };
        self.advice(FlushMode::Sync, curve.append, expected, lines, how)
    }

    fn asynchronous(&self) -> Result<Advice, String> {
        let is_free = self.probe.syncs_are_free();
        if self.request.loss_window_ms == Some(0) {
            return Err("not async: it answers before a message is on stable storage, and nothing may be lost".into());
        }
        if is_free && let Some(window) = self.request.loss_window_ms {
            return Err(format!(
                "not async: nothing here is on stable storage after a flush, so no loss window, let alone {window} ms, can be kept; put the store on a disk"
            ));
        }
        let mut ways = Vec::new();
        for (hop, spins) in self.hops() {
            ways.extend(self.probe.append.iter().map(|cell| {
                let append = Latency { p50: cell.times.p50_us, p99: cell.times.p99_us };
                (Latency { p50: hop.p50 + append.p50, p99: hop.p99 + append.p99 }, cell, spins)
            }));
        }
        let Some((nearest, cell, spins)) = ways.iter().min_by(|a, b| a.0.p99.total_cmp(&b.0.p99)) else {
            return Err("not async: the probe has no figures of appends; give it more time with --max-seconds".into());
        };
        let forbids = format!(
            "not async: its p99 would be {}, and {} are asked for: {} (p99 of an append in {} while the log is flushed) and {} on top; --p99-ms {:.0} would do",
            ms(nearest.p99),
            ms(self.request.p99_ms * 1000.0),
            ms(cell.times.p99_us),
            cell.append.word(),
            ms(Latency::of_hop(self.probe, *spins).p99),
            (nearest.p99 / 1000.0).ceil(),
        );
        let meets = |way: &&(Latency, &AppendCell, bool)| self.meets(way.0);
        let calm = ways.iter().filter(meets).any(|way| !way.2);
        let meeting: Vec<_> = ways.iter().filter(meets).filter(|way| !(calm && way.2)).collect();
        // The writer core's time is what async throughput is made of.
        let cost = |way: &(Latency, &AppendCell, bool)| way.1.times.mean_us;
        let Some(best) = meeting.iter().min_by(|a, b| cost(a).total_cmp(&cost(b))) else { return Err(forbids) };
        let plain = meeting.iter().find(|way| way.1.append == AppendMode::Buffered);
        let taken = plain.filter(|plain| model::keeps_default(cost(plain), cost(best))).unwrap_or(best);
        let curve = Curve::all(self.probe).into_iter().find(|curve| {
            (curve.append, curve.sync_call, curve.zeroed) == (taken.1.append, SyncCall::Fdatasync, false)
        });
        let Some(curve) = curve else {
            return Err(
                "not async: the probe has no figures of its flushes; give it more time with --max-seconds".into()
            );
        };
        let window = |interval: u64| model::loss_window_ms(&self.load, &curve, interval as f64);
        let fits = |interval: &u64| self.request.loss_window_ms.is_none_or(|asked| window(*interval) <= asked as f64);
        let flush_us = |interval: u64| curve.at(self.load.log_bytes_per_s() * interval as f64 / 1000.0).p99;
        let is_calm = |interval: &u64| flush_us(*interval) <= *interval as f64 * 1000.0 / 2.0;
        let calm = CALM_INTERVALS_MS.into_iter().find(is_calm).unwrap_or(INTERVALS_MS[0]);
        let Some(interval) = INTERVALS_MS.into_iter().filter(|interval| *interval <= calm).find(fits) else {
            let least = INTERVALS_MS[INTERVALS_MS.len() - 1];
            return Err(format!(
                "not async: even with a look each ms a loss of power would take up to {:.1} ms, twice the p99 of a flush ({}) and the interval; --loss-window-ms {:.0} would do",
                window(least),
                ms(flush_us(least)),
                window(least).ceil()
            ));
        };
        Ok(self.async_advice(taken, best.1, &curve, interval))
    }

    fn async_advice(
        &self,
        (latency, cell, spins): &(Latency, &AppendCell, bool),
        best: &AppendCell,
        curve: &Curve,
        interval_ms: u64,
    ) -> Advice {
        let window = model::loss_window_ms(&self.load, curve, interval_ms as f64);
        let gathered = self.load.log_bytes_per_s() * interval_ms as f64 / 1000.0;
        let is_free = self.probe.syncs_are_free();
        let loss = if is_free { Loss::Everything } else { Loss::WindowMs(window) };
        let than = if cell.append == best.append {
            "the quickest way here".to_owned()
        } else {
            format!("the default; {} would take {}, which is no clear gain", best.append.word(), ms(best.times.mean_us))
        };
        let mut lines = vec![self.root()];
        lines.push(line(
            "store",
            "append",
            quoted(cell.append.word()),
            format!(
                "an append of {} while the log is flushed takes {} on average, p99 {}: {than}",
                len_word(cell.len as f64),
                ms(cell.times.mean_us),
                ms(cell.times.p99_us)
            ),
        ));
        lines.push(line(
            "store",
            "zero_ahead",
            quoted("auto"),
            "nobody waits for a flush, so zeros ahead would only double what is written; on by itself once a topic has flush = sync".into(),
        ));
        lines.push(self.segment_len());
        lines.push(line(
            "flush",
            "mode",
            quoted("async"),
            "sync flush does not meet the request here; why stands above".into(),
        ));
        lines.push(line(
            "flush",
            "interval_ms",
            interval_ms.to_string(),
            format!(
                "gathers {}, of which a flush takes p99 {}; window = interval + 2 × that",
                len_word(gathered),
                ms(curve.at(gathered).p99)
            ),
        ));
        lines.push(line(
            "flush",
            "least_pages",
            "0".into(),
            "each look flushes whatever there is: else the last few messages wait for thorough_interval_ms".into(),
        ));
        self.common_lines(&mut lines, curve.max_us, *spins);
        let how = vec![format!(
            "p99 {} = {} (append) + {} ({})",
            ms(latency.p99),
            ms(cell.times.p99_us),
            ms(Latency::of_hop(self.probe, *spins).p99),
            self.hop_word(*spins)
        )];
        let expected = Expected { p50_us: latency.p50, p99_us: latency.p99, loss };
        self.advice(FlushMode::Async, cell.append, expected, lines, how)
    }

    fn advice(
        &self,
        mode: FlushMode,
        append: AppendMode,
        expected: Expected,
        lines: Vec<Line>,
        how: Vec<String>,
    ) -> Advice {
        Advice { mode, append, expected, lines, how, unknown: self.unknown(expected.loss) }
    }

    fn root(&self) -> Line {
        let site = &self.probe.site;
        let reason = format!("on the file system that was probed ({} on {})", site.file_system, site.source);
        line("store", "root", quoted(&self.probe.root.to_string_lossy()), reason)
    }

    /// Bytes of disk that messages may take.
    fn capacity(&self) -> u64 {
        let site = &self.probe.site;
        // Divided first: a file may say any number.
        (site.size / 100 * DISK_PERCENT).saturating_sub(site.size - site.available.min(site.size))
    }

    fn segment_len(&self) -> Line {
        let mut len = SEGMENT_LEN;
        while len > SEGMENT_LEN_MIN && len > self.capacity() / 16 {
            len /= 2;
        }
        let lasts = len as f64 / self.load.log_bytes_per_s();
        let roll = &self.probe.segments.roll;
        let size = if len == SEGMENT_LEN {
            "RocketMQ's default"
        } else {
            "messages go by whole files, and of the default few would fit this disk"
        };
        let reason = format!(
            "{size}; lasts {} at this rate, and one of {} is made ahead in {}. Set it before the first start",
            duration_word(lasts),
            size_word(self.probe.segments.len),
            ms(roll.times.p50_us)
        );
        line("store", "commitlog_file_size", quoted(&size_word(len)), reason)
    }

    /// What does not depend on the mode. `stall_us`: the longest that the device was seen to hold a flush up.
    fn common_lines(&self, lines: &mut Vec<Line>, stall_us: f64, spins: bool) {
        let per_s = self.load.bytes_per_s();
        let hours = (self.capacity() as f64 / per_s / 3600.0).floor() as u64;
        let day_gib = per_s * 86_400.0 / f64::from(1 << 30);
        let reason = match hours {
            RETENTION_HOURS.. => {
                format!("RocketMQ's default; a day of this rate is {day_gib:.0} GiB, and {hours} hours of it fit")
            }
            0 => format!(
                "a day of this rate is {day_gib:.0} GiB, and not one hour of it fits {DISK_PERCENT} % of this disk: the oldest messages will go by force"
            ),
            _ => {
                format!("a day of this rate is {day_gib:.0} GiB, and so much of it fits {DISK_PERCENT} % of this disk")
            }
        };
        lines.push(line("retention", "hours", hours.clamp(1, RETENTION_HOURS).to_string(), reason));
        if self.request.size > MESSAGE_LEN_MAX {
            let reason = "the default of 4MiB is less than the size asked for".to_owned();
            lines.push(line("limits", "max_message_size", self.request.size.to_string(), reason));
        }
        // Two stalls one after the other, with what arrives meanwhile.
        let stall_s = 2.0 * stall_us / 1e6;
        let waiting = (self.load.rate * stall_s) as u64;
        if waiting > INFLIGHT_MESSAGES {
            let raised = waiting.min(INFLIGHT_MESSAGES_MAX).next_power_of_two();
            let reason = format!(
                "a flush took up to {}, and twice as long {waiting} messages arrive, which shall wait and not be refused",
                ms(stall_us)
            );
            lines.push(line("limits", "put_inflight_messages", raised.to_string(), reason));
        }
        let waiting_len = (self.load.log_bytes_per_s() * stall_s) as u64;
        if waiting_len > INFLIGHT_LEN {
            let raised = waiting_len.min(INFLIGHT_LEN_MAX).next_power_of_two();
            let reason = "the same in bytes; memory that the node takes only then".to_owned();
            lines.push(line("limits", "put_inflight_bytes", quoted(&size_word(raised)), reason));
        }
        if 2.0 * stall_us / 1000.0 > PUT_WAIT_MS as f64 {
            let reason = format!(
                "a flush took up to {}; with the default of {PUT_WAIT_MS} sends would be refused meanwhile",
                ms(stall_us)
            );
            lines.push(line("limits", "put_wait_ms", PUT_WAIT_MS_MAX.to_string(), reason));
        }
        if spins {
            let wake = ms(self.probe.hop.wake.p99_us);
            let reason = format!(
                "waking cores takes p99 {wake} here, which the request has no room for; cores that spin cost processor time"
            );
            lines.push(line("cores", "spin_us", SPIN_US.to_string(), reason));
        }
    }

    fn unknown(&self, loss: Loss) -> Vec<String> {
        let cache = self.probe.site.write_cache.as_deref().unwrap_or("nothing");
        let mut unknown = Vec::new();
        if loss != Loss::Everything {
            unknown.push(format!(
                "whether the device keeps what it said it has when the power goes (power-loss protection, battery, hypervisor): the kernel says \"{cache}\" of its cache; ask its maker or pull the plug"
            ));
        }
        unknown.push("the processor time that this rate takes of this machine, and what else runs here: measure with kerolox-bench".into());
        unknown.push("other tenants of the device, now and in a month: probe again when tails grow".into());
        unknown.push("the network to your clients: all is over loopback".into());
        unknown.push("reads of old messages beside the writes, and loads that come in bursts".into());
        unknown
    }
}

fn line(section: &'static str, key: &'static str, value: String, reason: String) -> Line {
    Line { section, key, value, reason }
}

fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

/// A multiple of a MiB as the settings have it.
fn size_word(len: u64) -> String {
    if len.is_multiple_of(1 << 30) { format!("{}GiB", len >> 30) } else { format!("{}MiB", len >> 20) }
}

fn mib(bytes: f64) -> f64 {
    bytes / f64::from(1 << 20)
}

/// µs as ms, to three digits.
fn ms(us: f64) -> String {
    let ms = us / 1000.0;
    let digits = if ms >= 100.0 {
        0
    } else if ms >= 10.0 {
        1
    } else if ms >= 1.0 {
        2
    } else {
        3
    };
    format!("{ms:.digits$} ms")
}

fn len_word(len: f64) -> String {
    match len {
        ..10_240.0 => format!("{len:.0} bytes"),
        ..10_485_760.0 => format!("{:.0} KiB", len / 1024.0),
        _ => format!("{:.0} MiB", mib(len)),
    }
}

fn duration_word(seconds: f64) -> String {
    match seconds {
        ..120.0 => format!("{seconds:.0} s"),
        ..7200.0 => format!("{:.0} minutes", seconds / 60.0),
        ..172_800.0 => format!("{:.0} hours", seconds / 3600.0),
        _ => format!("{:.0} days", seconds / 86_400.0),
    }
}

fn way_word(curve: &Curve) -> String {
    let blocks = if curve.zeroed { "zeroed" } else { "unwritten" };
    format!("{} with {} into {blocks} blocks", curve.append.word(), curve.sync_call.word())
}
