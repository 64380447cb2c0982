//! What others may ask about the node by HTTP: `/metrics`, `/healthz` and `/readyz`. Answered on the threads of the HTTP
//! server, from what all cores share; for `/metrics` alone the control core is asked, and not waited for beyond a moment.
//!
//! The two probes tell the truth, with one line that says why not. Alive: every executor turns, and the log takes writes or
//! may again; else a restart is what helps. Ready: messages are taken.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::control_core::{CensusAsked, Counted, Created};
use super::heartbeat::{Heartbeats, LATE};
use super::notify::{one_line, stuck};
use super::process::{self, ThreadTimes};
use crate::broker::SharedDirectory;
use crate::broker::control::{OTHER_NAME, Reading};
use crate::broker::names;
use crate::config::Config;
use crate::dispatch::RingDepth;
use crate::io;
use crate::metrics::catalogue as m;
use crate::metrics::{CONTENT_TYPE, ClassTotals, Counters, MessageType, OTHER, Requests, Sheet, Traffic, Value};
use crate::net::{NetLimits, Page};
use crate::store::{FlushPolicy, Health, Layout, Opening, Shared};

/// How long a page waits for the control core.
const CENSUS_WAIT: Duration = Duration::from_millis(250);
/// Every word of [`Health::word`].
const STATES: [&str; 7] = ["ok", "in-doubt", "poisoned", "disk-full", "builder-stuck", "no-segment", "stopping"];
const TEXT: &str = "text/plain; charset=utf-8";

/// The node as those see it who ask. Made first of all, so that they get an answer while the store is opened.
pub struct Pages {
    /// Labels of every sample.
    labels: [(&'static str, String); 3],
    opening: Arc<Opening>,
    began_ms: u64,
    running: OnceLock<Running>,
    ready: AtomicBool,
    stopping: AtomicBool,
}

/// What there is to look at once the store is open.
pub struct Running {
    pub shared: Arc<Shared>,
    pub layout: Layout,
    pub directory: SharedDirectory,
    pub limits: Arc<NetLimits>,
    pub heartbeats: Arc<Heartbeats>,
    /// Name of a ring, its shard, how full it is; the same name has the same capacity.
    pub rings: Vec<(&'static str, usize, RingDepth)>,
    pub ring_capacities: Vec<(&'static str, usize)>,
    pub census: flume::Sender<CensusAsked>,
    pub created: Arc<Created>,
}

/// Paths of pages that wait for no executor.
pub const PROBES: [&str; 2] = ["/healthz", "/readyz"];

impl Pages {
    pub fn new(config: &Config, opening: Arc<Opening>) -> Arc<Pages> {
        let labels = [
            ("cluster", config.broker.cluster.clone()),
            ("node_type", "broker".to_owned()),
            ("node_id", config.broker.name.clone()),
        ];
        let (ready, stopping) = (AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(Pages { labels, opening, began_ms: io::steady_ms(), running: OnceLock::new(), ready, stopping })
    }

    /// The store is open, and executors start.
    pub fn running(&self, running: Running) {
        let first = self.running.set(running).is_ok();
        debug_assert!(first, "the store is opened once");
    }

    /// Clients are served.
    pub fn ready(&self) {
        self.ready.store(true, Ordering::Release);
    }

    pub fn stopping(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    /// The page of a path, if there is one.
    pub fn answer(&self, path: &str) -> Option<Page> {
        match path {
            "/metrics" => Some(Page { is_fine: true, content_type: CONTENT_TYPE, body: self.metrics() }),
            "/healthz" => Some(told(self.lives())),
            "/readyz" => Some(told(self.is_ready())),
            _ => None,
        }
    }

    /// Is this a node that a restart would not help?
    fn lives(&self) -> Result<(), String> {
        let Some(running) = self.running.get() else { return Ok(()) };
        if self.ready.load(Ordering::Acquire) {
            running.turns()?;
        }
        match running.shared.health() {
            poisoned @ Health::Poisoned(_) => Err(poisoned.to_string()),
            _ => Ok(()),
        }
    }

    /// Does it take messages?
    fn is_ready(&self) -> Result<(), String> {
        let Some(running) = self.running.get() else { return Err(self.opening.to_string()) };
        if self.stopping.load(Ordering::Acquire) {
            return Err(Health::Stopping.to_string());
        }
        if !self.ready.load(Ordering::Acquire) {
            return Err("the store is open, executors start".to_owned());
        }
        running.turns()?;
        running.shared.refusal().map_or(Ok(()), Err)
    }

    fn metrics(&self) -> String {
        let mut sheet = Sheet::default();
        sheet.put(&m::READY, &[], u64::from(self.is_ready().is_ok()));
        let up_ms = io::steady_ms().saturating_sub(self.began_ms);
        sheet.put(&m::UPTIME, &[], up_ms as f64 / 1e3);
        sheet.put(&m::START_TIME, &[], (io::now().0 as f64 - up_ms as f64) / 1e3);
        sheet.put(&m::BUILD_INFO, &[env!("CARGO_PKG_VERSION")], 1);
        put_process(&mut sheet);
        if let Some(running) = self.running.get() {
            running.put(&mut sheet);
        }
        sheet.write(&self.labels)
    }
}

fn told(outcome: Result<(), String>) -> Page {
    let (is_fine, line) = match outcome {
        Ok(()) => (true, "ok".to_owned()),
        Err(why) => (false, one_line(&why)),
    };
    Page { is_fine, content_type: TEXT, body: line + "\n" }
}

fn put_process(sheet: &mut Sheet) {
    if let Some(memory) = process::Memory::read() {
        sheet.put(&m::RESIDENT_MEMORY, &[], memory.total());
        for (kind, len) in [("anon", memory.anon), ("file", memory.file), ("shmem", memory.shmem)] {
            sheet.put(&m::MEMORY, &[kind], len);
        }
    }
    if let Some((open, limit)) = process::descriptors() {
        sheet.put(&m::OPEN_FDS, &[], open);
        sheet.put(&m::MAX_FDS, &[], limit);
    }
    sheet.put(&m::PROCESS_CPU, &[], process::cpu_s());
}

impl Running {
    /// Does every executor turn?
    fn turns(&self) -> Result<(), String> {
        match stuck(self.heartbeats.all(), io::steady_ms(), LATE.as_millis() as u64) {
            Some((beats, age_ms)) => Err(format!(
                "executor \"{}\" on core {} has not turned for {:.1} s",
                beats.role,
                beats.core,
                age_ms as f64 / 1e3
            )),
            None => Ok(()),
        }
    }

    fn put(&self, sheet: &mut Sheet) {
        self.put_state(sheet);
        self.put_times(sheet);
        self.put_series(sheet);
        self.put_log(sheet);
        self.put_waiting(sheet);
        self.put_executors(sheet);
        self.put_disks(sheet);
        self.put_census(sheet);
        // Last: whether the census came is among them.
        put_counters(sheet, &self.shared.counters);
    }

    fn traffic(&self) -> impl Iterator<Item = &Arc<Traffic>> + Clone {
        self.shared.traffic.iter().map(|(_, traffic)| traffic)
    }

    fn put_state(&self, sheet: &mut Sheet) {
        let shared = &self.shared;
        let health = shared.health();
        for state in STATES {
            sheet.put(&m::HEALTH, &[state], u64::from(state == health.word()));
        }
        sheet.put(&m::BROKER_PERMISSION, &[], if health.takes_puts() { 6 } else { 4 });
        sheet.put(&m::DISK_FULL, &[], u64::from(shared.disk_full().is_some()));
        let FlushPolicy { mode, append, sync_call } = shared.settings.flush_policy();
        sheet.put(&m::FLUSH_POLICY, &[mode, append, sync_call], 1);
        let directory = self.directory.load();
        sheet.put(&m::TOPIC_NUMBER, &[], directory.topics.len() as u64);
        sheet.put(&m::GROUP_NUMBER, &[], directory.groups.len() as u64);
        sheet.put(&m::QUARANTINED_REGIONS, &[], shared.damaged.count() as u64);
        sheet.put(&m::QUARANTINED_LEN, &[], shared.damaged.len());
    }

    fn put_times(&self, sheet: &mut Sheet) {
        let writer = &self.shared.writer_times;
        let sum = |of: &dyn Fn(&Traffic) -> ClassTotals| sum_of(self.traffic().map(|traffic| of(traffic)));
        let dispatch = sum_of(self.shared.dispatch_times.iter().map(|(_, times)| times.totals()));
        let stages = [
            ("socket", sum(&|traffic| traffic.socket.totals())),
            ("queue", Some(writer.queue.totals())),
            ("append", Some(writer.append.totals())),
            ("flush", sum(&|traffic| traffic.flush.totals())),
            ("dispatch", dispatch),
            ("reply", sum(&|traffic| traffic.reply.totals())),
        ];
        for (stage, times) in stages {
            if let Some(times) = times {
                sheet.put_seconds(&m::STAGE_DURATION, &[stage], times);
            }
        }
        if let Some(times) = sum(&Traffic::put_times) {
            sheet.put_seconds(&m::PUT_DURATION, &[], times);
        }
        sheet.put_seconds(&m::FLUSH_DURATION, &[], writer.flush.totals());
        sheet.put(&m::TURN_PUTS, &[], Value::Classes(writer.turn_puts.totals(), 1.0));
        sheet.put(&m::FLUSH_PUTS, &[], Value::Classes(writer.flush_puts.totals(), 1.0));
        for of in Requests::totals(self.traffic().map(|traffic| &traffic.request_times)) {
            let held = if of.is_held { "true" } else { "false" };
            let labels = ["remoting", of.request, of.response, held, "success"];
            sheet.put(&m::RPC_LATENCY, &labels, Value::Classes(of.times, 1e3));
        }
        for (created, metric) in
            [(&self.created.topics, &m::TOPIC_CREATE_TIME), (&self.created.groups, &m::GROUP_CREATE_TIME)]
        {
            for (outcome, times) in created.totals() {
                sheet.put(metric, &[outcome], Value::Classes(times, 1.0));
            }
        }
        let totals = self.shared.traffic_totals();
        sheet.put(&m::PUTS_FAILED, &[], totals.puts_failed);
        sheet.put(&m::GETS_FOUND, &[], totals.gets_found);
        sheet.put(&m::GETS_MISSED, &[], totals.gets_missed);
        sheet.put(&m::SLOW_REQUESTS, &[], self.traffic().map(|traffic| traffic.slow_requests.get()).sum::<u64>());
        sheet.put(&m::SENT_TO_DLQ, &[], self.traffic().map(|traffic| traffic.dead_letters.get()).sum::<u64>());
    }

    /// What came in and went out, by topic and group.
    fn put_series(&self, sheet: &mut Sheet) {
        let series = &self.shared.series;
        // Two slots of one name, which two cores made at once, are one series.
        let mut topics = BTreeMap::from([(OTHER_NAME, vec![OTHER])]);
        series.topics().for_each(|(slot, topic)| topics.entry(&**topic).or_default().push(slot));
        for (topic, slots) in &topics {
            for kind in MessageType::ALL {
                let came_in = slots.iter().flat_map(|slot| self.traffic().map(|of| of.series.came_in(*slot, kind)));
                let Some(sizes) = sum_of(came_in).filter(|sizes| sizes.count() > 0) else { continue };
                let labels = [*topic, kind.name(), truth(names::is_system_topic(topic))];
                sheet.put(&m::MESSAGES_IN, &labels, sizes.count());
                sheet.put(&m::THROUGHPUT_IN, &labels, sizes.sum);
                sheet.put(&m::MESSAGE_SIZE, &labels, Value::Classes(sizes, 1.0));
            }
        }
        let mut pairs = BTreeMap::from([((OTHER_NAME, OTHER_NAME), vec![OTHER])]);
        series.pairs().for_each(|(slot, (topic, group))| pairs.entry((&**topic, &**group)).or_default().push(slot));
        for ((topic, group), slots) in &pairs {
            let went_out = slots.iter().flat_map(|slot| self.traffic().map(|of| of.series.went_out(*slot)));
            let (messages, len) = went_out.fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1));
            if messages > 0 {
                let labels = [*topic, *group, truth(is_system(topic, group))];
                sheet.put(&m::MESSAGES_OUT, &labels, messages);
                sheet.put(&m::THROUGHPUT_OUT, &labels, len);
            }
        }
    }

    fn put_log(&self, sheet: &mut Sheet) {
        let shared = &self.shared;
        let (min, confirm) = (shared.segments.min(), shared.confirm());
        let (flushed, appended) = (shared.flushed(), shared.appended());
        for (position, at) in [("min", min), ("confirm", confirm), ("flushed", flushed), ("appended", appended)] {
            sheet.put(&m::LOG_OFFSET, &[position], at.0);
        }
        let window = shared.loss_window();
        sheet.put(&m::LOSS_WINDOW_LEN, &[], window.len);
        sheet.put(&m::LOSS_WINDOW_AGE, &[], window.ms as f64 / 1e3);
        sheet.put(&m::STORAGE_FLUSH_BEHIND, &STORAGE, window.len);
        sheet.put(&m::STORAGE_DISPATCH_BEHIND, &STORAGE, shared.dispatch_behind());
    }

    fn put_waiting(&self, sheet: &mut Sheet) {
        let shared = &self.shared;
        sheet.put(&m::PROCESSOR_WATERMARK, &["send"], shared.inflight_count());
        sheet.put(&m::INFLIGHT_PUTS, &[], shared.inflight_count());
        sheet.put(&m::INFLIGHT_LEN, &[], shared.inflight_len());
        sheet.put(&m::INFLIGHT_PUTS_MAX, &[], shared.settings.inflight_count_max);
        sheet.put(&m::TURN_AGE, &[], shared.turn_ms() as f64 / 1e3);
        sheet.put(&m::HEAD_WAIT, &[], shared.head_wait_ms() as f64 / 1e3);
        for (ring, shard, depth) in &self.rings {
            sheet.put(&m::RING_DEPTH, &[ring, &shard.to_string()], depth.get() as u64);
        }
        for (ring, capacity) in &self.ring_capacities {
            sheet.put(&m::RING_CAPACITY, &[ring], *capacity as u64);
        }
        for (shard, traffic) in self.traffic().enumerate() {
            sheet.put(&m::HOLDS, &[&shard.to_string()], traffic.holds.get());
            sheet.put(&m::UNSENT_LEN, &[&shard.to_string()], traffic.unsent_len.get());
        }
        sheet.put(&m::CONNECTIONS, &[], self.limits.connections() as u64);
        sheet.put(&m::UNFINISHED_LEN, &[], self.limits.unfinished_len());
    }

    fn put_executors(&self, sheet: &mut Sheet) {
        let now_ms = io::steady_ms();
        for beats in self.heartbeats.all() {
            let core = beats.core.to_string();
            if let Some(age_ms) = beats.age_ms(now_ms) {
                sheet.put(&m::EXECUTOR_BEAT_AGE, &[&beats.role, &core], age_ms as f64 / 1e3);
            }
            sheet.put(&m::EXECUTOR_GAP, &[&beats.role, &core], beats.gap_ms_max() as f64 / 1e3);
        }
        // Executors by their role: the kernel cuts names off.
        let role = |tid| self.heartbeats.all().iter().find(|beats| beats.tid() == Some(tid)).map(|beats| &beats.role);
        let threads = process::thread_times();
        let named = threads.iter().map(|thread| (role(thread.tid).unwrap_or(&thread.name).as_str(), thread));
        for (name, (cpu_s, wait_s)) in summed(named) {
            sheet.put(&m::THREAD_CPU, &[name], cpu_s);
            if let Some(wait_s) = wait_s {
                sheet.put(&m::THREAD_WAIT, &[name], wait_s);
            }
        }
    }

    fn put_disks(&self, sheet: &mut Sheet) {
        for (disk, path) in [("commitlog", self.layout.commitlog()), ("consumequeue", self.layout.consumequeue())] {
            // Until the first message there is no folder for consume queues.
            let Ok(usage) = io::disk_usage(&path) else { continue };
            sheet.put(&m::DISK_USED, &[disk], usage.used);
            sheet.put(&m::DISK_AVAILABLE, &[disk], usage.available);
            if disk == "commitlog" {
                sheet.put(&m::STORAGE_SIZE, &STORAGE, usage.used);
            }
        }
    }

    /// What only the control core knows.
    fn put_census(&self, sheet: &mut Sheet) {
        let (answer, counted) = flume::bounded(1);
        let asked = self.census.try_send(answer).is_ok();
        let Some(Counted { census, earliest }) = counted.recv_timeout(CENSUS_WAIT).ok().filter(|_| asked) else {
            return self.shared.counters.census_missed.add(1);
        };
        for Reading { topic, group, lag, inflight, ready } in &census.readings {
            let is_retry = names::group_of_retry_topic(topic).is_some();
            let labels = [topic, group, truth(is_retry), truth(is_system(topic, group))];
            sheet.put(&m::CONSUMER_LAG, &labels, *lag);
            sheet.put(&m::CONSUMER_INFLIGHT, &labels, *inflight);
            sheet.put(&m::CONSUMER_READY, &labels, *ready);
        }
        sheet.put(&m::PRODUCER_CONNECTIONS, &["remoting"], census.producers);
        for (group, mode, count) in &census.consumers {
            sheet.put(
                &m::CONSUMER_CONNECTIONS,
                &[group, mode, "remoting", truth(names::is_system_group(group))],
                *count,
            );
        }
        for (level, count) in &census.delayed {
            sheet.put(&m::DELAYED, &[&level.to_string()], *count);
        }
        if let Some(earliest) = earliest {
            let age_ms = u64::try_from(io::now().0 - earliest.0).unwrap_or(0);
            sheet.put(&m::STORAGE_RESERVE_TIME, &STORAGE, age_ms);
        }
    }
}

const STORAGE: [&str; 2] = ["local", "disk"];

/// Taken apart, so that one that is new has to be shown.
fn put_counters(sheet: &mut Sheet, counters: &Counters) {
    let Counters {
        puts_overloaded,
        puts_expired,
        flush_timeouts,
        dispatch_stalls,
        unshown_stalls,
        cold_reads,
        cold_reads_queued,
        cold_reads_refused,
        scan_gets_paced,
        // Shown as they are now, in `put_state`.
        damaged_regions: _,
        read_ahead_kib,
        dropped_kib,
        units_skipped,
        records_unreadable,
        segments_expired,
        segments_forced,
        segments_held,
        derived_expired,
        topics_deleted,
        census_missed,
    } = counters;
    for (metric, counter) in [
        (&m::PUTS_OVERLOADED, puts_overloaded),
        (&m::PUTS_EXPIRED, puts_expired),
        (&m::FLUSH_TIMEOUTS, flush_timeouts),
        (&m::DISPATCH_STALLS, dispatch_stalls),
        (&m::UNSHOWN_STALLS, unshown_stalls),
        (&m::COLD_READS, cold_reads),
        (&m::COLD_READS_QUEUED, cold_reads_queued),
        (&m::COLD_READS_REFUSED, cold_reads_refused),
        (&m::SCAN_GETS_PACED, scan_gets_paced),
        (&m::UNITS_SKIPPED, units_skipped),
        (&m::RECORDS_UNREADABLE, records_unreadable),
        (&m::SEGMENTS_EXPIRED, segments_expired),
        (&m::SEGMENTS_FORCED, segments_forced),
        (&m::SEGMENTS_HELD, segments_held),
        (&m::DERIVED_EXPIRED, derived_expired),
        (&m::TOPICS_DELETED, topics_deleted),
        (&m::CENSUS_MISSED, census_missed),
    ] {
        sheet.put(metric, &[], counter.get());
    }
    sheet.put(&m::READ_AHEAD, &[], read_ahead_kib.get() << 10);
    sheet.put(&m::CACHE_DROPPED, &[], dropped_kib.get() << 10);
}

/// Seconds running and waiting, by name: several threads may have one.
fn summed<'a>(threads: impl Iterator<Item = (&'a str, &'a ThreadTimes)>) -> BTreeMap<&'a str, (f64, Option<f64>)> {
    let mut sums = BTreeMap::new();
    for (name, thread) in threads {
        let (cpu_s, wait_s): &mut (f64, Option<f64>) = sums.entry(name).or_default();
        *cpu_s += thread.cpu_s;
        if let Some(more_s) = thread.wait_s {
            *wait_s = Some(wait_s.unwrap_or(0.0) + more_s);
        }
    }
    sums
}

fn sum_of(all: impl Iterator<Item = ClassTotals>) -> Option<ClassTotals> {
    all.reduce(|mut sum, of| {
        sum.add(&of);
        sum
    })
}

/// Is either the broker's own?
fn is_system(topic: &str, group: &str) -> bool {
    names::is_system_topic(topic) || names::is_system_group(group)
}

fn truth(is_so: bool) -> &'static str {
    if is_so { "true" } else { "false" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_one_name_are_one_sum() {
        let thread = |tid, cpu_s, wait_s| ThreadTimes { tid, name: String::new(), cpu_s, wait_s };
        let threads = [thread(1, 1.0, Some(0.25)), thread(2, 2.0, None), thread(3, 4.0, Some(0.5))];
        let sums = summed(["two", "one", "two"].into_iter().zip(&threads));
        assert_eq!(sums, BTreeMap::from([("one", (2.0, None)), ("two", (5.0, Some(0.75)))]));
    }
}
