//! What a probe found: the numbers, and the JSON file that keeps them.
//!
//! Times are µs, rates MiB/s, lengths bytes. `append` and `sync_call` have the words of the node's settings.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::site::Site;
use crate::io::{AppendMode, SyncCall};

/// Layout of the file. Another number is refused.
const FORMAT: u32 = 1;
/// The file that `probe` writes and `recommend` reads unless told otherwise.
pub const DEFAULT_FILE: &str = "kerolox-probe.json";

/// All that one run found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    pub format: u32,
    /// Version of the program that measured.
    pub version: String,
    /// When it began, ms since the epoch.
    pub at: i64,
    pub seconds: f64,
    /// Bytes that it wrote.
    pub written: u64,
    /// Where a store would lie that the figures are of.
    pub root: PathBuf,
    pub site: Site,
    pub hop: Hop,
    pub flush: Vec<FlushCell>,
    pub group_commit: Vec<GroupCell>,
    pub append: Vec<AppendCell>,
    pub segments: Segments,
    /// What is missing, and what makes the figures worth less.
    pub remarks: Vec<String>,
}

/// Durations of one thing done again and again.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Times {
    pub samples: u32,
    pub mean_us: f64,
    pub p50_us: f64,
    /// Of fewer than 100 samples the slowest.
    pub p99_us: f64,
    pub max_us: f64,
}

/// Ways that a message takes besides the disk: over loopback and back, and to a sleeping core and back.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hop {
    pub echo: Times,
    pub wake: Times,
}

/// A batch of `len` bytes appended and brought onto stable storage.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlushCell {
    #[serde(with = "AppendWord")]
    pub append: AppendMode,
    #[serde(with = "CallWord")]
    pub sync_call: SyncCall,
    /// Into blocks that were filled with zeros before; else into such that are only reserved.
    pub zeroed: bool,
    pub len: u64,
    pub times: Times,
}

/// As many records of 1 KiB as there are waiters, in one batch: the least that a group commit of them takes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupCell {
    pub waiters: u32,
    #[serde(with = "AppendWord")]
    pub append: AppendMode,
    #[serde(with = "CallWord")]
    pub sync_call: SyncCall,
    pub times: Times,
}

/// Appends that nobody waits for, while the file is synced every now and then by somebody else.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AppendCell {
    #[serde(with = "AppendWord")]
    pub append: AppendMode,
    pub len: u64,
    /// Of one append.
    pub times: Times,
    pub cpu_us_per_mib: f64,
}

/// What whole commit log files cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Segments {
    pub len: u64,
    pub write: Vec<Bandwidth>,
    pub read: Vec<Bandwidth>,
    /// Making one of full length: file, blocks, sync of both file and folder.
    pub roll: Aside,
    pub delete_stepwise: Aside,
    pub delete_at_once: Aside,
    /// One flush of 4 KiB after the other, while nothing else happens.
    pub quiet_flush: Times,
}

/// One request at a time through the page cache (`buffered`) or past it (`dma`).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bandwidth {
    #[serde(with = "AppendWord")]
    pub append: AppendMode,
    pub mib_per_s: f64,
}

/// Work beside the log, and what flushes of 4 KiB took meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Aside {
    pub times: Times,
    /// The longest single step of it.
    pub step_max_us: f64,
    /// Slowest flush meanwhile; none if there was none.
    pub flush_max_us: Option<f64>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "AppendMode", rename_all = "snake_case")]
enum AppendWord {
    Buffered,
    Mmap,
    Dma,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "SyncCall", rename_all = "snake_case")]
enum CallWord {
    ODsync,
    Fdatasync,
}

impl Times {
    /// Nothing if there are no samples.
    pub fn of(samples: &[Duration]) -> Option<Times> {
        let mut sorted = samples.to_vec();
        sorted.sort_unstable();
        let max = *sorted.last()?;
        // Nearest rank: a value that was measured.
        let at = |quantile: f64| sorted[((sorted.len() as f64 * quantile).ceil() as usize).clamp(1, sorted.len()) - 1];
        let mean_us = sorted.iter().map(|time| us(*time)).sum::<f64>() / sorted.len() as f64;
        Some(Times {
            samples: u32::try_from(sorted.len()).unwrap_or(u32::MAX),
            mean_us: tenth(mean_us),
            p50_us: us(at(0.5)),
            p99_us: us(at(0.99)),
            max_us: us(max),
        })
    }

    fn is_sound(&self) -> bool {
        let Times { samples, mean_us, p50_us, p99_us, max_us } = *self;
        let all = [mean_us, p50_us, p99_us, max_us];
        samples > 0 && all.iter().all(|us| us.is_finite() && *us > 0.0) && p50_us <= p99_us && p99_us <= max_us
    }
}

/// To a tenth of a µs, of which there is always one.
pub(super) fn us(time: Duration) -> f64 {
    tenth(time.as_nanos() as f64 / 1000.0).max(0.1)
}

fn tenth(us: f64) -> f64 {
    (us * 10.0).round() / 10.0
}

impl FlushCell {
    pub fn mib_per_s(&self) -> f64 {
        self.len as f64 / self.times.mean_us * 1e6 / f64::from(1 << 20)
    }
}

impl GroupCell {
    pub fn messages_per_s(&self) -> f64 {
        f64::from(self.waiters) / self.times.mean_us * 1e6
    }
}

/// Why a file is no probe's result.
#[derive(Debug)]
pub enum LoadError {
    Io { path: PathBuf, source: io::Error },
    NotAProbe { path: PathBuf, why: String },
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadError::Io { path, source } if source.kind() == io::ErrorKind::NotFound => {
                write!(f, "{}: there is no such file; make it with: kerolox-tune probe", path.display())
            }
            LoadError::Io { path, source } => write!(f, "{}: cannot be read: {source}", path.display()),
            LoadError::NotAProbe { path, why } => {
                write!(f, "{}: {why}; make it anew with: kerolox-tune probe", path.display())
            }
        }
    }
}

impl std::error::Error for LoadError {}

impl Probe {
    pub(super) const FORMAT: u32 = FORMAT;

    /// Reads a result; of a folder the file in it that has the usual name.
    ///
    /// # Errors
    /// It cannot be read, or is not what a probe writes.
    pub fn load(path: &Path) -> Result<Probe, LoadError> {
        let path = if path.is_dir() { path.join(DEFAULT_FILE) } else { path.to_owned() };
        match fs::read(&path) {
            Ok(bytes) => Probe::parse(&bytes).map_err(|why| LoadError::NotAProbe { path, why }),
            Err(source) => Err(LoadError::Io { path, source }),
        }
    }

    /// # Errors
    /// Why these bytes are no result.
    pub fn parse(bytes: &[u8]) -> Result<Probe, String> {
        let probe: Probe =
            serde_json::from_slice(bytes).map_err(|error| format!("is no result of a probe ({error})"))?;
        if probe.format != FORMAT {
            return Err(format!("has format {}, and this program knows {FORMAT}", probe.format));
        }
        let cells = probe.flush.iter().map(|cell| (cell.len, &cell.times));
        let groups = probe.group_commit.iter().map(|cell| (u64::from(cell.waiters), &cell.times));
        let appends = probe.append.iter().map(|cell| (cell.len, &cell.times));
        let hops = [(1, &probe.hop.echo), (1, &probe.hop.wake)];
        if cells.chain(groups).chain(appends).chain(hops).any(|(len, times)| len == 0 || !times.is_sound()) {
            return Err("has times or lengths that cannot be".into());
        }
        let rates = probe.segments.write.iter().chain(&probe.segments.read).map(|bandwidth| bandwidth.mib_per_s);
        if rates.chain(probe.append.iter().map(|cell| cell.cpu_us_per_mib)).any(|rate| !rate.is_finite() || rate < 0.0)
        {
            return Err("has rates that cannot be".into());
        }
        if probe.flush.is_empty() || probe.segments.write.is_empty() {
            return Err(
                "has no flushes or no bandwidth: the probe had too little time; give it more with --max-seconds".into(),
            );
        }
        Ok(probe)
    }

    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("plain values serialise") + "\n"
    }

    /// The quickest way to one record of 4 KiB on stable storage, by its p50.
    pub fn one_record(&self) -> Option<&FlushCell> {
        self.flush.iter().filter(|cell| cell.len == 4096).min_by(|a, b| a.times.p50_us.total_cmp(&b.times.p50_us))
    }

    /// The best group commit of so many waiters, by messages a second.
    pub fn best_group(&self, waiters: u32) -> Option<&GroupCell> {
        let same = self.group_commit.iter().filter(|cell| cell.waiters == waiters);
        same.min_by(|a, b| a.times.mean_us.total_cmp(&b.times.mean_us))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let samples: Vec<_> = (1..=200).rev().map(Duration::from_micros).collect();
        let times = Times::of(&samples).unwrap();
        assert_eq!((times.samples, times.p50_us, times.p99_us, times.max_us), (200, 100.0, 198.0, 200.0));
        assert_eq!(times.mean_us, 100.5);
        let few = Times::of(&samples[..3]).unwrap();
        assert_eq!((few.p50_us, few.p99_us), (199.0, 200.0));
        assert!(Times::of(&[]).is_none());
        assert!(Times::of(&[Duration::ZERO]).unwrap().is_sound(), "too quick for the clock is not nothing");
    }
}
