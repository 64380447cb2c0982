//! What all cores know of the store: how far the log is appended, flushed and shown, and what is being waited for.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwapOption;

use super::quarantine::DamagedRegions;
use super::scans::ScanPlaces;
use crate::config::ZeroAhead;
use crate::io::{AppendMode, LogTail, SegmentSet, SyncCall};
use crate::log::Checksums;
use crate::metrics::{Counters, Series, Times, Traffic, TrafficTotals, WriterTimes};
use crate::types::PhyOffset;

/// Scans that know of each other, over all cores.
const SCANS_MAX: usize = 1024;

/// Does a put wait for stable storage?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushMode {
    Async,
    Sync,
}

impl FlushMode {
    /// The word that the settings have for it.
    pub fn word(self) -> &'static str {
        match self {
            FlushMode::Async => "async",
            FlushMode::Sync => "sync",
        }
    }
}

/// How messages reach stable storage, in the words of the settings `flush.mode`, `store.append` and `flush.sync_call`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushPolicy {
    pub mode: &'static str,
    pub append: &'static str,
    pub sync_call: &'static str,
}

/// How long the writer's newest turn took, in µs: what a refused client is told, to see where the time goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageTimes {
    pub write_us: u32,
    /// 0 until something was flushed.
    pub flush_us: u32,
}

impl std::fmt::Display for StageTimes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "last write: {}us, last flush: {}us", self.write_us, self.flush_us)
    }
}

/// What a put wants of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PutFlush {
    /// What its topic says, whatever the node's default is.
    pub topic: Option<FlushMode>,
    /// May its sender be kept waiting? Not for WAIT=false.
    pub may_wait: bool,
}

/// What a loss of power would take: what is appended and not on stable storage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LossWindow {
    pub len: u64,
    /// Age of the oldest such byte; 0 if there is none.
    pub ms: u64,
}

/// Whether the store takes messages, and if not, why. Reads go on in every state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health<'a> {
    Ok,
    /// A consume queue or index is not as it should be: messages are taken and read, and the next start mends it.
    InDoubt(&'a Doubt),
    /// A write or sync of the commit log failed; only a restart, which recovers, ends this.
    Poisoned(&'a Poison),
    /// The disk is too full to take messages, with path, usage and limit; ends by itself once there is room.
    DiskFull(Arc<String>),
    /// A consume queue or index file cannot be made or extended; ends by itself once it can.
    BuilderStuck,
    /// The next segment of the log cannot be made, with path and reason; puts that still fit the last one are taken. Ends
    /// by itself once it can.
    NoSegment(Arc<String>),
    Stopping,
}

/// What poisoned the writer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Poison {
    /// `write` or `sync`.
    pub what: &'static str,
    pub path: PathBuf,
    pub why: String,
    /// Nothing at or above this position is promised.
    pub flushed: PhyOffset,
}

/// Why derived data does not count as being on stable storage any more. The log has everything that it was made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doubt {
    /// A file or folder, or a queue.
    pub what: String,
    pub why: String,
}

impl Health<'_> {
    /// Does the node take messages? Without a next segment those that still fit the last.
    pub fn takes_puts(&self) -> bool {
        matches!(self, Health::Ok | Health::InDoubt(_) | Health::NoSegment(_))
    }

    /// One word for machines.
    pub fn word(&self) -> &'static str {
        match self {
            Health::Ok => "ok",
            Health::InDoubt(_) => "in-doubt",
            Health::Poisoned(_) => "poisoned",
            Health::DiskFull(_) => "disk-full",
            Health::BuilderStuck => "builder-stuck",
            Health::NoSegment(_) => "no-segment",
            Health::Stopping => "stopping",
        }
    }
}

/// The whole sentence: what is wrong and what to do.
impl fmt::Display for Health<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Health::Ok => f.write_str("the node takes messages"),
            Health::InDoubt(Doubt { what, why }) => write!(
                f,
                "{what}: {why}; the node takes messages, but what leads to them may be lost, and expired segments may stay: \
                 see to the disk and restart the node, which completes it from the commit log"
            ),
            Health::Poisoned(Poison { what, path, why, flushed }) => write!(
                f,
                "a {what} of the commit log failed ({}: {why}); what is on stable storage ends at {flushed}, and the node \
                 takes no messages until it is restarted",
                path.display()
            ),
            Health::DiskFull(why) | Health::NoSegment(why) => f.write_str(why),
            Health::BuilderStuck => f.write_str(
                "a consume queue or index file cannot be extended (the log says why); free space on the store's disk, or \
                 raise the limit of open files",
            ),
            Health::Stopping => f.write_str("the node is stopping"),
        }
    }
}

/// Checked settings of the store; plain values, as hot code wants them.
#[derive(Clone, Debug)]
pub struct StoreSettings {
    pub root: PathBuf,
    /// Written into every record and message id; what clients dial for a lookup by id.
    pub store_host: SocketAddr,
    /// `dma`: what opening the store makes `buffered` of where the file system has no direct I/O.
    pub append: AppendMode,
    /// None: what a probe finds faster, which opening the store fills in; of an async node it is always fdatasync.
    pub sync_call: Option<SyncCall>,
    /// Bytes of a commit log segment.
    pub segment_len: u64,
    /// Bytes of a consume queue file, a multiple of 20.
    pub consumequeue_len: u64,
    pub index_slots: u32,
    pub index_entries: u32,
    pub flush: FlushMode,
    pub flush_interval_ms: u64,
    pub flush_least_pages: u64,
    pub flush_thorough_interval_ms: u64,
    pub sync_timeout_ms: u64,
    pub consumequeue_flush_interval_ms: u64,
    pub consumequeue_thorough_interval_ms: u64,
    /// Zero the log ahead of the append point; auto: once somebody waits for flushes.
    pub zero_ahead: ZeroAhead,
    /// Messages can be found by key.
    pub index: bool,
    /// Every record is sealed with a checksum over all of it.
    pub property_crc: bool,
    /// Delay of each level, in ms; what recovery needs to know when a delayed message is due.
    pub delays_ms: Vec<i64>,
    /// Bounds of what may be on its way to the writer, over all shards.
    pub inflight_len_max: u64,
    pub inflight_count_max: u64,
    /// A put that waited longer than this for the writer is refused.
    pub put_wait_ms_max: u64,
    pub read: ReadSettings,
    /// What a recovery checks of each record.
    pub checksums: Checksums,
}

impl StoreSettings {
    /// How messages reach stable storage. Of an opened store what really happens, not what was asked for.
    pub fn flush_policy(&self) -> FlushPolicy {
        let sync_call = self.sync_call.unwrap_or(SyncCall::Fdatasync);
        FlushPolicy { mode: self.flush.word(), append: self.append.word(), sync_call: sync_call.word() }
    }
}

/// How much one read gives, and what it may cost. Defaults are Java's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadSettings {
    /// Bytes and messages of one get while the data counts as in memory.
    pub memory_len_max: usize,
    pub memory_count_max: usize,
    /// The same while it does not.
    pub disk_len_max: usize,
    pub disk_count_max: usize,
    /// What counts as in memory: so much of the machine's memory, in percent, from the log's end.
    pub memory_percent: u64,
    /// Bytes of units that one get looks at, unless more messages are asked for.
    pub filter_len_max: usize,
    /// Consume queue files that one get goes through while it finds nothing.
    pub queue_files_max: usize,
    /// Messages of a query by unique key.
    pub query_count_max: usize,
    /// Reads of one consumer group under way on a core, of what is not in memory.
    pub cold_reads_per_group: usize,
    /// What scans of old messages may take of a shard core's time while others use it, %.
    pub scan_core_percent: u64,
}

impl Default for ReadSettings {
    fn default() -> ReadSettings {
        ReadSettings {
            memory_len_max: 262_144,
            memory_count_max: 32,
            disk_len_max: 65_536,
            disk_count_max: 8,
            memory_percent: 40,
            filter_len_max: 16_000,
            queue_files_max: 1,
            query_count_max: 32,
            cold_reads_per_group: 4,
            scan_core_percent: 25,
        }
    }
}

/// State of the log that every core may read. Written by the writer core unless said otherwise.
#[derive(Debug)]
pub struct Shared {
    pub settings: StoreSettings,
    pub segments: SegmentSet,
    /// The newest part of the log where the page cache does not hold it (append mode `dma`).
    pub tail: Option<Arc<LogTail>>,
    /// Where the log is damaged; readers step over it.
    pub damaged: DamagedRegions,
    /// End of the log in the page cache.
    appended: AtomicU64,
    /// End of the log on stable storage.
    flushed: AtomicU64,
    /// End of what dispatch and readers may see.
    confirm: AtomicU64,
    /// When the oldest byte between `flushed` and `appended` was appended (steady ms); `u64::MAX`: there is none.
    unflushed_since_ms: AtomicU64,
    /// When the oldest put of the turn that runs came in (steady ms); 0: none runs.
    turn_opened_ms: AtomicU64,
    /// When the turn that runs began (steady ms); 0: none runs.
    turn_since_ms: AtomicU64,
    /// Bytes of records that builders of consume queues were told of, and of those that they have built.
    dispatched_len: AtomicU64,
    built_len: AtomicU64,
    /// Something that [`Health`] tells has been so since the start; never taken back, so that nobody has to know that all is
    /// over. Until then nobody looks at each, which every put would have to do.
    was_troubled: AtomicBool,
    poison: OnceLock<Poison>,
    doubt: OnceLock<Doubt>,
    /// Builders that cannot go on (their disk is full): no puts until all can.
    builders_stuck: AtomicU32,
    /// Why the disk is too full to take messages, if it is. By the control core.
    disk_full: ArcSwapOption<String>,
    /// Why the next segment cannot be made, if so.
    no_segment: ArcSwapOption<String>,
    /// Grows whenever somebody needs all consume queues on stable storage.
    queue_syncs_asked: AtomicU64,
    stopping: AtomicBool,
    /// Files and folders that the closing of the store has come to.
    closing_steps: AtomicU64,
    write_us: AtomicU32,
    flush_us: AtomicU32,
    /// Puts and bytes between the shards and their answers; added by shards when they submit and taken off by them
    /// when the answer is back.
    inflight_count: AtomicU64,
    inflight_len: AtomicU64,
    /// Store time of the newest flushed record, for the checkpoint.
    pub flushed_stored_at: AtomicU64,
    pub counters: Counters,
    /// What each shard has put and got; one element a [`Submitter`](super::Submitter).
    pub traffic: boxcar::Vec<Arc<Traffic>>,
    /// Which topics and groups are counted by name.
    pub series: Series,
    pub writer_times: WriterTimes,
    /// From the log into the consume queues; one element a [`Builder`](super::Builder).
    pub dispatch_times: boxcar::Vec<Arc<Times>>,
    /// Bytes of physical memory, for what counts as "in memory".
    memory_len: u64,
    pub(super) scan_places: Arc<ScanPlaces>,
}

impl Shared {
    /// A log that ends at `end`, all of it flushed and shown.
    pub fn new(settings: StoreSettings, segments: SegmentSet, end: PhyOffset, memory_len: u64) -> Shared {
        Shared {
            tail: (settings.append == AppendMode::Dma).then(LogTail::new),
            settings,
            segments,
            damaged: DamagedRegions::default(),
            appended: AtomicU64::new(end.0),
            flushed: AtomicU64::new(end.0),
            confirm: AtomicU64::new(end.0),
            unflushed_since_ms: AtomicU64::new(u64::MAX),
            turn_opened_ms: AtomicU64::new(0),
            turn_since_ms: AtomicU64::new(0),
            dispatched_len: AtomicU64::new(0),
            built_len: AtomicU64::new(0),
            was_troubled: AtomicBool::new(false),
            poison: OnceLock::new(),
            doubt: OnceLock::new(),
            builders_stuck: AtomicU32::new(0),
            disk_full: ArcSwapOption::empty(),
            no_segment: ArcSwapOption::empty(),
            queue_syncs_asked: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            closing_steps: AtomicU64::new(0),
            write_us: AtomicU32::new(0),
            flush_us: AtomicU32::new(0),
            inflight_count: AtomicU64::new(0),
            inflight_len: AtomicU64::new(0),
            flushed_stored_at: AtomicU64::new(0),
            counters: Counters::default(),
            traffic: boxcar::Vec::new(),
            series: Series::default(),
            writer_times: WriterTimes::default(),
            dispatch_times: boxcar::Vec::new(),
            memory_len,
            scan_places: Arc::new(ScanPlaces::new(SCANS_MAX)),
        }
    }

    /// Where the part of the log begins that is kept in memory beside the page cache.
    pub fn tail_start(&self) -> Option<PhyOffset> {
        self.tail.as_ref()?.start()
    }

    /// Hands `[at, at + len)` out of that part to `take`; `false`, and nothing is handed out, if it is not there (any more).
    /// The caller stays below what is shown to it.
    pub fn read_tail(&self, at: PhyOffset, len: usize, take: impl FnMut(&[u8])) -> bool {
        len == 0 || self.tail.as_ref().is_some_and(|tail| tail.read(at, len, take))
    }

    pub fn appended(&self) -> PhyOffset {
        PhyOffset(self.appended.load(Ordering::Acquire))
    }

    pub fn set_appended(&self, end: PhyOffset) {
        self.appended.store(end.0, Ordering::Release);
    }

    pub fn flushed(&self) -> PhyOffset {
        PhyOffset(self.flushed.load(Ordering::Acquire))
    }

    pub fn set_flushed(&self, end: PhyOffset) {
        self.flushed.store(end.0, Ordering::Release);
    }

    pub fn confirm(&self) -> PhyOffset {
        PhyOffset(self.confirm.load(Ordering::Acquire))
    }

    pub fn set_confirm(&self, end: PhyOffset) {
        self.confirm.store(end.0, Ordering::Release);
    }

    /// How much, and how old, what a loss of power would take is now.
    pub fn loss_window(&self) -> LossWindow {
        // In this order: what is flushed later was appended before.
        let flushed = self.flushed();
        let since_ms = self.unflushed_since_ms.load(Ordering::Acquire);
        match self.appended().0.saturating_sub(flushed.0) {
            0 => LossWindow::default(),
            len => LossWindow { len, ms: crate::io::steady_ms().saturating_sub(since_ms) },
        }
    }

    pub fn set_unflushed_since(&self, since_ms: Option<u64>) {
        self.unflushed_since_ms.store(since_ms.unwrap_or(u64::MAX), Ordering::Release);
    }

    /// How long the oldest put of the turn that runs has been waiting, in ms; 0 if none runs.
    pub fn head_wait_ms(&self) -> u64 {
        match self.turn_opened_ms.load(Ordering::Relaxed) {
            0 => 0,
            opened_ms => crate::io::steady_ms().saturating_sub(opened_ms),
        }
    }

    /// 0: none runs.
    pub fn turn_since_ms(&self) -> u64 {
        self.turn_since_ms.load(Ordering::Relaxed)
    }

    pub fn set_turn_since(&self, since_ms: u64) {
        self.turn_since_ms.store(since_ms, Ordering::Relaxed);
    }

    /// How long the turn that runs has been at it, in ms; 0 if none runs.
    pub fn turn_ms(&self) -> u64 {
        match self.turn_since_ms() {
            0 => 0,
            since_ms => crate::io::steady_ms().saturating_sub(since_ms),
        }
    }

    /// By the writer core.
    pub fn note_dispatched(&self, len: u64) {
        self.dispatched_len.fetch_add(len, Ordering::Relaxed);
    }

    /// By any shard that builds.
    pub fn note_built(&self, len: u64) {
        self.built_len.fetch_add(len, Ordering::Relaxed);
    }

    /// Bytes of records that builders were told of and have not built.
    pub fn dispatch_behind(&self) -> u64 {
        let built = self.built_len.load(Ordering::Acquire);
        self.dispatched_len.load(Ordering::Relaxed).saturating_sub(built)
    }

    /// Puts on their way to the writer, over all shards.
    pub fn inflight_count(&self) -> u64 {
        self.inflight_count.load(Ordering::Relaxed)
    }

    /// Bytes of them.
    pub fn inflight_len(&self) -> u64 {
        self.inflight_len.load(Ordering::Relaxed)
    }

    /// What all shards have put and got so far.
    pub fn traffic_totals(&self) -> TrafficTotals {
        let mut totals = TrafficTotals::default();
        self.traffic.iter().for_each(|(_, shard)| totals.add(shard));
        totals
    }

    /// 0: no turn runs.
    pub fn set_turn_opened(&self, opened_ms: u64) {
        self.turn_opened_ms.store(opened_ms, Ordering::Relaxed);
    }

    pub fn is_poisoned(&self) -> bool {
        self.poison.get().is_some()
    }

    /// The first reason stays: what fails later follows from it.
    pub fn set_poison(&self, poison: Poison) {
        self.note_trouble();
        let _ = self.poison.set(poison);
    }

    /// Before whatever [`Health`] tells becomes so: who sees that then sees this.
    fn note_trouble(&self) {
        self.was_troubled.store(true, Ordering::Release);
    }

    /// Says that a consume queue or index lacks something that only the next start can give it. The kernel tells of a failed
    /// sync once, so no later one proves anything: this stays to the end, and makes the stop an unclean one. The first
    /// reason stays. By any builder.
    pub fn set_in_doubt(&self, what: String, why: String) {
        let doubt = Doubt { what, why };
        tracing::error!(
            what = doubt.what,
            why = doubt.why,
            "derived data is in doubt; the next start completes it from the log"
        );
        self.note_trouble();
        let _ = self.doubt.set(doubt);
    }

    pub fn doubt(&self) -> Option<&Doubt> {
        self.doubt.get()
    }

    /// One more builder cannot go on.
    pub fn builder_stuck(&self) {
        self.note_trouble();
        self.builders_stuck.fetch_add(1, Ordering::AcqRel);
    }

    /// One that was stuck goes on.
    pub fn builder_goes_on(&self) {
        self.builders_stuck.fetch_sub(1, Ordering::AcqRel);
    }

    /// Says that the disk is too full to take messages, and why; or that it is not. By the control core (and the start)
    /// alone.
    pub fn set_disk_full(&self, why: Option<String>) {
        if why.is_some() {
            self.note_trouble();
        }
        self.disk_full.store(why.map(Arc::new));
    }

    /// Why the disk is too full to take messages, if it is.
    pub fn disk_full(&self) -> Option<Arc<String>> {
        self.disk_full.load_full()
    }

    /// Says why the next segment cannot be made, or that it is. By the writer core alone.
    pub fn set_no_segment(&self, why: Option<String>) {
        if why.is_some() {
            self.note_trouble();
        }
        self.no_segment.store(why.map(Arc::new));
    }

    /// Asks every shard to bring its consume queues onto stable storage at its next look at them.
    pub fn ask_queue_sync(&self) {
        self.queue_syncs_asked.fetch_add(1, Ordering::AcqRel);
    }

    /// How often that was asked.
    pub fn queue_syncs_asked(&self) -> u64 {
        self.queue_syncs_asked.load(Ordering::Acquire)
    }

    pub fn stop_puts(&self) {
        self.note_trouble();
        self.stopping.store(true, Ordering::Release);
    }

    /// While this grows, the closing of the store gets on.
    pub fn closing_steps(&self) -> u64 {
        self.closing_steps.load(Ordering::Relaxed)
    }

    pub(super) fn count_closing_step(&self) {
        self.closing_steps.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether puts are taken now; what cannot mend itself comes first.
    pub fn health(&self) -> Health<'_> {
        if !self.was_troubled.load(Ordering::Acquire) {
            Health::Ok
        } else if let Some(poison) = self.poison.get() {
            Health::Poisoned(poison)
        } else if let Some(why) = self.disk_full() {
            Health::DiskFull(why)
        } else if self.builders_stuck.load(Ordering::Acquire) > 0 {
            Health::BuilderStuck
        } else if self.stopping.load(Ordering::Acquire) {
            Health::Stopping
        } else if let Some(why) = self.no_segment.load_full() {
            Health::NoSegment(why)
        } else if let Some(doubt) = self.doubt.get() {
            Health::InDoubt(doubt)
        } else {
            Health::Ok
        }
    }

    /// Why no put is taken now, if so.
    pub fn refusal(&self) -> Option<String> {
        let health = self.health();
        (!health.takes_puts()).then(|| health.to_string())
    }

    /// The policy of a put: that of its topic, else the node's.
    pub fn flush_mode(&self, topic: Option<FlushMode>) -> FlushMode {
        topic.unwrap_or(self.settings.flush)
    }

    /// How long the newest write and flush took.
    pub fn stage_times(&self) -> StageTimes {
        StageTimes { write_us: self.write_us.load(Ordering::Relaxed), flush_us: self.flush_us.load(Ordering::Relaxed) }
    }

    pub fn note_write(&self, took: Duration) {
        self.write_us.store(u32::try_from(took.as_micros()).unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    pub fn note_flush(&self, took: Duration) {
        self.flush_us.store(u32::try_from(took.as_micros()).unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    /// Lets `count` puts of `len` bytes in, unless too much is on its way already.
    pub fn enter(&self, count: u64, len: u64) -> bool {
        let counted = self.inflight_count.fetch_add(count, Ordering::Relaxed) + count;
        let summed = self.inflight_len.fetch_add(len, Ordering::Relaxed) + len;
        // One put is always let in, however long.
        let fits = counted == count
            || (counted <= self.settings.inflight_count_max && summed <= self.settings.inflight_len_max);
        if !fits {
            self.counters.puts_overloaded.add(count);
            self.leave(count, len);
        }
        fits
    }

    pub fn leave(&self, count: u64, len: u64) {
        self.inflight_count.fetch_sub(count, Ordering::Relaxed);
        self.inflight_len.fetch_sub(len, Ordering::Relaxed);
    }

    /// Does `phy` count as in memory: near enough to the log's end (store.md 7.1)?
    pub fn in_memory(&self, phy: PhyOffset) -> bool {
        self.appended().since(phy) <= self.memory_len / 100 * self.settings.read.memory_percent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::test_store::TestStore;

    fn poison() -> Poison {
        Poison { what: "sync", path: "log".into(), why: "EIO".into(), flushed: PhyOffset(0) }
    }

    #[test]
    fn each_trouble_is_told_from_the_moment_it_is_there() {
        type Deed = fn(&Shared);
        let troubles: [(&str, Deed, Deed); 6] = [
            ("poisoned", |shared| shared.set_poison(poison()), |_| {}),
            ("disk-full", |shared| shared.set_disk_full(Some("full".into())), |shared| shared.set_disk_full(None)),
            ("builder-stuck", Shared::builder_stuck, Shared::builder_goes_on),
            ("no-segment", |shared| shared.set_no_segment(Some("none".into())), |shared| shared.set_no_segment(None)),
            ("in-doubt", |shared| shared.set_in_doubt("index".into(), "EIO".into()), |_| {}),
            ("stopping", Shared::stop_puts, |_| {}),
        ];
        for (word, begin, end) in troubles {
            let store = TestStore::in_memory();
            let shared = store.open().unwrap().shared;
            // What only ends what never was is none.
            end_of_nothing(&shared);
            assert_eq!(shared.health(), Health::Ok, "{word}");
            begin(&shared);
            assert_eq!(shared.health().word(), word);
            end(&shared);
            let lasts = ["poisoned", "in-doubt", "stopping"].contains(&word);
            assert_eq!(shared.health() == Health::Ok, !lasts, "{word}");
        }
    }

    fn end_of_nothing(shared: &Shared) {
        shared.set_disk_full(None);
        shared.set_no_segment(None);
        assert!(!shared.was_troubled.load(Ordering::Acquire), "every put would look at each state");
    }
}
