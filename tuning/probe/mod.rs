//! Measures what a store's own file system can do: how long batches take to stable storage by every way that the node
//! knows, how fast it reads and writes, and what making and deleting whole log files costs those who flush meanwhile.
//!
//! Called by `kerolox-tune probe`; blocking. Works in a folder of its own, which is gone afterwards however the run ends
//! (a kill excepted), and touches no other file. Plain system calls of one thread, so nothing of the node's own work is in
//! the figures: they are the least that a node can need there.

mod append;
mod companion;
mod curve;
mod hop;
mod result;
mod run;
mod scratch;
mod segments;
mod site;
mod table;

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::io::{AppendMode, LockError, ProbeFile, StoreLock, now};
use curve::Kind;

pub use result::{
    AppendCell, Aside, Bandwidth, DEFAULT_FILE, FlushCell, GroupCell, Hop, LoadError, Probe, Segments, Times,
};
use run::{Run, doing};
use scratch::Scratch;
pub use site::Site;

/// Bytes that a run writes in all, and time that it takes, unless somebody says otherwise.
pub const MAX_BYTES_DEFAULT: u64 = 4 << 30;
pub const MAX_SECONDS_DEFAULT: u64 = 60;
/// The same of a quick run.
pub const QUICK_BYTES: u64 = 512 << 20;
pub const QUICK_SECONDS: u64 = 12;
/// Less makes figures that say nothing.
pub const BYTES_MIN: u64 = 384 << 20;
pub const SECONDS_MIN: u64 = 5;

/// Lengths of the flush curve, and how many batches of each give a p99 that is worth the time.
const FLUSHES: [(u64, u64); 5] = [(4 << 10, 600), (16 << 10, 300), (64 << 10, 150), (256 << 10, 60), (1 << 20, 24)];
/// Waiters of the group commits, and batches of each.
const GROUPS: [(u64, u64); 4] = [(1, 300), (16, 300), (64, 150), (256, 60)];
const GROUP_RECORD_LEN: u64 = 1024;
/// The longest file, as long as the node's own.
const SEGMENT_LEN_MAX: u64 = 1 << 30;
/// Space that must be left beside what the probe takes.
const SPACE_LEFT: u64 = 256 << 20;
/// A flush that is quicker than this, in µs, went nowhere: a device's own cache, over its bus, takes longer.
const FREE_FLUSH_US: f64 = 5.0;
/// The load, in percent of the cores, above which figures are not to be trusted.
const LOAD_PERCENT_MAX: u32 = 50;

/// What to measure, and how much that may cost.
#[derive(Clone, Debug)]
pub struct Options {
    pub dir: PathBuf,
    /// Where the store lies or will lie that the figures are for.
    pub root: PathBuf,
    /// Bytes written in all; at least [`BYTES_MIN`].
    pub max_bytes: u64,
    /// At least [`SECONDS_MIN`].
    pub max_time: Duration,
}

/// Why there is no result. Nothing is left behind.
#[derive(Debug)]
pub enum ProbeError {
    Dir {
        dir: PathBuf,
        source: io::Error,
    },
    NoSpace {
        dir: PathBuf,
        needed: u64,
        available: u64,
    },
    Io {
        what: &'static str,
        source: io::Error,
    },
    /// Not a single flush within the time.
    TooSlow,
    /// Somebody asked it to.
    Stopped,
}

impl fmt::Display for ProbeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProbeError::Dir { dir, source } => {
                write!(f, "{}: no folder to measure in: {source}; make it, or name another", dir.display())
            }
            ProbeError::NoSpace { dir, needed, available } => write!(
                f,
                "{}: {} MiB are free and {} MiB are needed for a while; make room, or lower --max-bytes",
                dir.display(),
                available >> 20,
                needed >> 20
            ),
            ProbeError::Io { what, source } => write!(f, "{what} failed: {source}"),
            ProbeError::TooSlow => f.write_str("not a single flush ended in half a second; look at the device"),
            ProbeError::Stopped => f.write_str("stopped; nothing is left behind"),
        }
    }
}

impl std::error::Error for ProbeError {}

impl Options {
    fn segment_len(&self) -> u64 {
        // Two of them are written.
        (self.max_bytes / 4).min(SEGMENT_LEN_MAX) >> 20 << 20
    }

    /// Bytes that are taken at a time: a file and its companion, or all files of the flush curve.
    fn space(&self) -> u64 {
        self.segment_len() + SPACE_LEFT
    }
}

/// Measures. `stop` set ends it soon; `tell` gets a line a second at most.
///
/// # Errors
/// See [`ProbeError`].
pub fn probe(options: &Options, stop: &AtomicBool, tell: &mut dyn FnMut(&str)) -> Result<Probe, ProbeError> {
    let dir_failed = |source| ProbeError::Dir { dir: options.dir.clone(), source };
    let mut site = Site::look(&options.dir).map_err(dir_failed)?;
    if site.available < options.space() {
        let (needed, available) = (options.space(), site.available);
        return Err(ProbeError::NoSpace { dir: site.dir, needed, available });
    }
    let root = std::path::absolute(&options.root).map_err(dir_failed)?;
    // Asked before a minute of measuring ends in a file that cannot name its place.
    if [&root, &site.dir, &site.mounted_at].iter().any(|path| path.to_str().is_none()) {
        return Err(dir_failed(io::Error::other("its name is no UTF-8, so no settings file can hold it")));
    }
    let mut remarks = remarks_before(&site);
    let at = now().0;
    let scratch = Scratch::make(&site.dir).map_err(dir_failed)?;
    let mut run = Run::new(&scratch, stop, tell, options.max_time);
    site.direct = knows_direct(&scratch).map_err(doing("making a file"))?;
    let hop = hop::measure().map_err(doing("an echo over loopback"))?;
    let ways = curve::ways(site.direct);

    let mut kinds = Vec::new();
    for (len, count) in FLUSHES {
        for (append, call) in &ways {
            kinds.extend([true, false].map(|zeroed| Kind { append: *append, call: *call, zeroed, len, count }));
        }
    }
    let until = run.until(42);
    let flush = flush_cells(&mut run, &mut kinds, options.max_bytes / 5, until)?;

    let mut kinds = Vec::new();
    for (waiters, count) in GROUPS {
        let len = waiters * GROUP_RECORD_LEN;
        kinds.extend(ways.iter().map(|(append, call)| Kind { append: *append, call: *call, zeroed: true, len, count }));
    }
    curve::within(&mut kinds, options.max_bytes / 10);
    let until = run.until(54);
    let times = curve::time_all(&mut run, "group commits", &kinds, until)?;
    let group_commit = kinds.iter().zip(&times).filter_map(|(kind, times)| {
        let waiters = (kind.len / GROUP_RECORD_LEN) as u32;
        Some(GroupCell { waiters, append: kind.append, sync_call: kind.call, times: Times::of(times)? })
    });
    let group_commit = group_commit.collect();

    let modes: Vec<_> = [AppendMode::Buffered, AppendMode::Mmap, AppendMode::Dma].into();
    let modes: Vec<_> = modes.into_iter().filter(|mode| *mode != AppendMode::Dma || site.direct).collect();
    let until = run.until(66);
    let append = append::measure(&mut run, &modes, options.max_bytes / 20, until)?;
    let segments = segments::measure(&mut run, options.segment_len(), site.direct, [66, 80, 94, 100])?;
    let (seconds, written) = ((run.elapsed().as_secs_f64() * 10.0).round() / 10.0, run.written());

    let mut probe = Probe {
        format: Probe::FORMAT,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        at,
        seconds,
        written,
        root,
        site,
        hop,
        flush,
        group_commit,
        append,
        segments,
        remarks: Vec::new(),
    };
    remarks.extend(remarks_after(&probe));
    probe.remarks = remarks;
    Ok(probe)
}

fn flush_cells(
    run: &mut Run<'_>,
    kinds: &mut [Kind],
    allowance: u64,
    until: std::time::Instant,
) -> Result<Vec<FlushCell>, ProbeError> {
    curve::within(kinds, allowance);
    let times = curve::time_all(run, "flush curve", kinds, until)?;
    let cells = kinds.iter().zip(&times).filter_map(|(kind, times)| {
        let Kind { append, call, zeroed, len, .. } = *kind;
        Some(FlushCell { append, sync_call: call, zeroed, len, times: Times::of(times)? })
    });
    Ok(cells.collect())
}

fn knows_direct(scratch: &Scratch) -> io::Result<bool> {
    let path = scratch.file("direct");
    drop(ProbeFile::create(&path, 4096, AppendMode::Buffered, 4096)?);
    let known = crate::io::knows_direct(&path);
    std::fs::remove_file(&path)?;
    known
}

/// What can be told of the site before anything is measured.
fn remarks_before(site: &Site) -> Vec<String> {
    let mut remarks = Vec::new();
    if site.is_in_memory() {
        remarks.push(format!(
            "{} is in memory: nothing on it is ever on stable storage, and syncs cost nothing. The figures prove nothing for a store.",
            site.file_system
        ));
    }
    if site.is_remote() {
        remarks
            .push(format!("{} is not a local disk: the network and its server are in every figure.", site.file_system));
    }
    if site.file_system == "overlay" {
        remarks.push(
            "this folder belongs to a container's own layers and goes with it: keep the store on a volume.".into(),
        );
    }
    if site.load_percent > site.cores * LOAD_PERCENT_MAX {
        remarks.push(format!(
            "the machine was busy (load {:.1} on {} cores): run it again on an idle one.",
            f64::from(site.load_percent) / 100.0,
            site.cores
        ));
    }
    match StoreLock::take_shared(&site.dir) {
        Err(LockError::Held { pid, .. }) => {
            let pid = pid.map_or_else(String::new, |pid| format!(" (process {pid})"));
            remarks.push(format!("a broker{pid} works on this store: it felt the probe, and the figures feel it."));
        }
        // No store, or one that nobody has open: given back at once.
        Ok(_) | Err(LockError::Io { .. }) => {}
    }
    for path in scratch::left_over(&site.dir) {
        remarks.push(format!("{} is left over from a probe that was killed: remove it.", path.display()));
    }
    remarks
}

/// What the figures show to be missing.
fn remarks_after(probe: &Probe) -> Vec<String> {
    let mut remarks = Vec::new();
    if !probe.site.direct {
        remarks.push(format!(
            "{} has no access past the page cache (O_DIRECT): append mode \"dma\" would write as \"buffered\" does.",
            probe.site.file_system
        ));
    }
    if probe.syncs_are_free() && !probe.site.is_in_memory() {
        let best = probe.one_record().map_or(0.0, |cell| cell.times.p50_us);
        remarks.push(format!(
            "a flush takes {best} µs, which no device can do: syncs are swallowed somewhere (a hypervisor, eatmydata, a mount option), and nothing here is on stable storage."
        ));
    }
    let expected = FLUSHES.len() * curve::ways(probe.site.direct).len() * 2;
    if probe.flush.len() < expected {
        remarks.push(format!(
            "the time sufficed for {} of {expected} kinds of flush: give it more with --max-seconds.",
            probe.flush.len()
        ));
    }
    remarks
}

impl Probe {
    /// Do flushes cost nothing here? Then they prove nothing.
    pub fn syncs_are_free(&self) -> bool {
        self.site.is_in_memory() || self.one_record().is_some_and(|cell| cell.times.p50_us < FREE_FLUSH_US)
    }

    /// The figures for the eye.
    pub fn table(&self) -> String {
        table::of(self)
    }
}

/// The store to measure for when nobody names a folder, the node's own default; and the folder: itself if it is there, else
/// that in which it would be made.
pub fn default_place() -> (PathBuf, PathBuf) {
    let root = PathBuf::from("kerolox-data");
    let dir = if root.is_dir() { root.clone() } else { PathBuf::from(".") };
    (root, dir)
}

#[cfg(test)]
mod tests;
