//! Request 28: what tools show of a broker's state, as a table of texts. Some tools take the texts apart without looking,
//! so their form matters. Source: remoting.md 3.12; keys that begin with `kerolox` are ours.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;

use super::Profile;
use crate::metrics::{Counters, PUT_CLASSES, TrafficTotals};
use crate::store::{FlushPolicy, Health, LossWindow};
use crate::types::{DiskUsage, PhyOffset, Timestamp};

/// Windows of the rates, in ms.
const RATE_WINDOWS_MS: [u64; 3] = [10_000, 60_000, 600_000];
/// Samples kept: as many as one a second needs for the longest window.
const SAMPLES_MAX: usize = 601;
const DAY_S: i64 = 86_400;
/// Names of the classes of put times, in the order of [`TrafficTotals::put_classes`].
const PUT_CLASS_NAMES: [&str; PUT_CLASSES] = [
    "<=0ms",
    "0~10ms",
    "10~50ms",
    "50~100ms",
    "100~200ms",
    "200~500ms",
    "500ms~1s",
    "1~2s",
    "2~3s",
    "3~4s",
    "4~5s",
    "5~10s",
    "10s~",
];

/// What was counted at one moment.
#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    at_ms: u64,
    puts: u64,
    found: u64,
    missed: u64,
    got: u64,
}

impl Sample {
    fn of(at_ms: u64, totals: &TrafficTotals) -> Sample {
        let TrafficTotals { puts, gets_found: found, gets_missed: missed, got, .. } = *totals;
        Sample { at_ms, puts, found, missed, got }
    }
}

/// Messages put and given out until some midnight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Morning {
    puts: u64,
    got: u64,
}

/// The past of the counters: by second for rates, by day for totals. Lives on the control core.
#[derive(Debug)]
pub struct History {
    samples: VecDeque<Sample>,
    day: i64,
    today: Morning,
    yesterday: Morning,
    dispatch_behind_max: u64,
}

impl History {
    /// Begins with nothing counted, at `at_ms` of the steady clock and on the local day of `now`.
    pub fn starting_at(at_ms: u64, now: Timestamp, utc_offset_s: i32) -> History {
        History {
            samples: VecDeque::from([Sample { at_ms, ..Sample::default() }]),
            day: local_day(now, utc_offset_s),
            today: Morning::default(),
            yesterday: Morning::default(),
            dispatch_behind_max: 0,
        }
    }

    /// Notes the counters, once a second.
    pub fn note(
        &mut self,
        at_ms: u64,
        now: Timestamp,
        utc_offset_s: i32,
        totals: &TrafficTotals,
        dispatch_behind: u64,
    ) {
        if self.samples.len() == SAMPLES_MAX {
            self.samples.pop_front();
        }
        self.samples.push_back(Sample::of(at_ms, totals));
        let day = local_day(now, utc_offset_s);
        if day > self.day {
            let morning = Morning { puts: totals.puts, got: totals.got };
            // Of days that nobody saw begin, the last count stands.
            self.yesterday = if day == self.day + 1 { self.today } else { morning };
            self.today = morning;
            self.day = day;
        }
        self.dispatch_behind_max = self.dispatch_behind_max.max(dispatch_behind);
    }

    /// Of each window the rate a second, as three numbers with blanks between; of a window that is older than the node,
    /// the rate since its start.
    fn rates(&self, now: &Sample, count: impl Fn(&Sample) -> u64) -> String {
        let rate = |window_ms: u64| {
            let from = now.at_ms.saturating_sub(window_ms);
            let index = self.samples.partition_point(|sample| sample.at_ms < from).min(self.samples.len() - 1);
            let first = &self.samples[index];
            let ms = now.at_ms.saturating_sub(first.at_ms);
            if ms == 0 { 0.0 } else { count(now).saturating_sub(count(first)) as f64 * 1000.0 / ms as f64 }
        };
        RATE_WINDOWS_MS.map(|window_ms| decimal(rate(window_ms))).join(" ")
    }
}

fn local_day(now: Timestamp, utc_offset_s: i32) -> i64 {
    (now.0.div_euclid(1000) + i64::from(utc_offset_s)).div_euclid(DAY_S)
}

/// How far a delay level has come: `(level, next to deliver, end of its queue)`.
pub type LevelState = (i32, u64, u64);

/// Everything that the table tells, gathered at one moment.
pub struct RuntimeInfo<'a> {
    pub profile: Profile,
    pub flush: FlushPolicy,
    pub health: Health<'a>,
    pub totals: &'a TrafficTotals,
    pub history: &'a History,
    pub counters: &'a Counters,
    /// Steady ms, and how many of them ago the node started; wall clock of that.
    pub at_ms: u64,
    pub up_ms: u64,
    pub boot: Timestamp,
    pub log_min: PhyOffset,
    pub appended: PhyOffset,
    pub flushed: PhyOffset,
    pub confirm: PhyOffset,
    pub loss_window: LossWindow,
    /// Bytes of messages that builders have been told of and have not built.
    pub dispatch_behind: u64,
    /// How long the turn that appends now has been at it, and the oldest of its messages under way; in ms.
    pub turn_ms: u64,
    pub head_wait_ms: u64,
    /// Puts on their way to the writer, and how many may be.
    pub put_count: u64,
    pub put_count_max: u64,
    /// Store time of the oldest message.
    pub earliest: Option<Timestamp>,
    pub commitlog: &'a Path,
    /// Of the file systems that hold the log and the consume queues; nothing if they cannot be asked.
    pub log_disk: Option<DiskUsage>,
    pub queue_disk: Option<DiskUsage>,
    pub levels: &'a [LevelState],
}

impl RuntimeInfo<'_> {
    /// The answer's table.
    pub fn table(&self) -> BTreeMap<String, String> {
        let mut table = BTreeMap::new();
        let mut put = |key: &str, value: String| {
            table.insert(key.to_owned(), value);
        };
        self.put_version(&mut put);
        self.put_traffic(&mut put);
        self.put_log(&mut put);
        self.put_queues(&mut put);
        self.put_own(&mut put);
        for (level, next, end) in self.levels {
            put(&format!("scheduleMessageOffset_{level}"), format!("{next},{end}"));
        }
        table
    }

    fn put_version(&self, put: &mut impl FnMut(&str, String)) {
        let description = match self.profile {
            Profile::V5 => "V5_3_3",
            Profile::V4_9 => "V4_9_8",
        };
        put("brokerVersionDesc", description.into());
        put("brokerVersion", self.profile.version().to_string());
        put("brokerActive", self.health.takes_puts().to_string());
        put("bootTimestamp", self.boot.0.to_string());
        put("startAcceptSendRequestTimeStamp", self.boot.0.to_string());
        let seconds = self.up_ms / 1000;
        let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
        put("runtime", format!("[ {days} days, {hours} hours, {minutes} minutes, {} seconds ]", seconds % 60));
    }

    fn put_traffic(&self, put: &mut impl FnMut(&str, String)) {
        let (totals, history) = (self.totals, self.history);
        let now = Sample::of(self.at_ms, totals);
        put("putTps", history.rates(&now, |sample| sample.puts));
        put("getFoundTps", history.rates(&now, |sample| sample.found));
        put("getMissTps", history.rates(&now, |sample| sample.missed));
        put("getTotalTps", history.rates(&now, |sample| sample.found + sample.missed));
        // Tools of 4.9 read the first spelling, those of 5.x the second.
        for key in ["getTransferedTps", "getTransferredTps"] {
            put(key, history.rates(&now, |sample| sample.got));
        }
        put("msgPutTotalTodayNow", totals.puts.to_string());
        put("msgPutTotalTodayMorning", history.today.puts.to_string());
        put("msgPutTotalYesterdayMorning", history.yesterday.puts.to_string());
        put("msgGetTotalTodayNow", totals.got.to_string());
        put("msgGetTotalTodayMorning", history.today.got.to_string());
        put("msgGetTotalYesterdayMorning", history.yesterday.got.to_string());
        put("putMessageTimesTotal", totals.puts.to_string());
        put("putMessageSizeTotal", totals.put_len.to_string());
        put("putMessageAverageSize", decimal(totals.put_len as f64 / totals.puts.max(1) as f64));
        put("putMessageFailedTimes", totals.puts_failed.to_string());
        put("putMessageEntireTimeMax", (totals.put_us_max / 1000).to_string());
        put("getMessageEntireTimeMax", (totals.get_us_max / 1000).to_string());
        put("putLatency99", format!("{:.2}", totals.put_us_within(0.99) as f64 / 1000.0));
        put("putLatency999", format!("{:.2}", totals.put_us_within(0.999) as f64 / 1000.0));
        let classes = PUT_CLASS_NAMES.iter().zip(totals.put_classes);
        put("putMessageDistributeTime", classes.map(|(name, count)| format!("[{name}]:{count} ")).collect());
    }

    fn put_log(&self, put: &mut impl FnMut(&str, String)) {
        put("commitLogMinOffset", self.log_min.0.to_string());
        put("commitLogMaxOffset", self.appended.0.to_string());
        put("dispatchBehindBytes", self.dispatch_behind.to_string());
        put("dispatchMaxBuffer", self.history.dispatch_behind_max.max(self.dispatch_behind).to_string());
        put("remainHowManyDataToFlush", human_len(self.loss_window.len));
        // There is no pool of buffers from which messages would have to be committed first.
        put("remainHowManyDataToCommit", human_len(0));
        put("remainTransientStoreBufferNumbs", i32::MAX.to_string());
        put("pageCacheLockTimeMills", self.turn_ms.to_string());
        put("earliestMessageTimeStamp", self.earliest.map_or(-1, |at| at.0).to_string());
        let ratio = |disk: Option<DiskUsage>| match disk {
            Some(disk) => decimal(disk.percent() as f64 / 100.0),
            None => "-1".into(),
        };
        put("commitLogDiskRatio", ratio(self.log_disk));
        put(&format!("commitLogDiskRatio_{}", self.commitlog.display()), ratio(self.log_disk));
        put("consumeQueueDiskRatio", ratio(self.queue_disk));
        let DiskUsage { used, available } = self.log_disk.unwrap_or(DiskUsage { used: 0, available: 0 });
        let total = human_len(used.saturating_add(available));
        put("commitLogDirCapacity", format!("Total : {total}, Free : {}.", human_len(available)));
    }

    /// Java's queues of waiting requests. Only sends wait here, for the writer; everything else is carried out in the turn
    /// that reads it.
    fn put_queues(&self, put: &mut impl FnMut(&str, String)) {
        put("sendThreadPoolQueueSize", self.put_count.to_string());
        put("sendThreadPoolQueueCapacity", self.put_count_max.to_string());
        put("sendThreadPoolQueueHeadWaitTimeMills", self.head_wait_ms.to_string());
        for kind in ["pull", "query", "litePull", "ack"] {
            for what in ["Size", "Capacity", "HeadWaitTimeMills"] {
                put(&format!("{kind}ThreadPoolQueue{what}"), "0".into());
            }
        }
        put("EndTransactionQueueSize", "0".into());
        put("EndTransactionThreadPoolQueueCapacity", "0".into());
        // There is no timer store yet; Java says the same then.
        for key in ["timerReadBehind", "timerOffsetBehind", "timerCongestNum"] {
            put(key, "0".into());
        }
        for key in ["timerEnqueueTps", "timerDequeueTps"] {
            put(key, "0.0".into());
        }
    }

    fn put_own(&self, put: &mut impl FnMut(&str, String)) {
        put("keroloxHealth", self.health.word().into());
        put("keroloxHealthReason", self.health.to_string());
        put("keroloxVersion", env!("CARGO_PKG_VERSION").into());
        put("keroloxFlushMode", self.flush.mode.into());
        put("keroloxAppendMode", self.flush.append.into());
        put("keroloxSyncCall", self.flush.sync_call.into());
        put("keroloxFlushedOffset", self.flushed.0.to_string());
        put("keroloxConfirmOffset", self.confirm.0.to_string());
        put("keroloxUnflushedBytes", self.loss_window.len.to_string());
        put("keroloxUnflushedMs", self.loss_window.ms.to_string());
        let counters = self.counters;
        put("keroloxPutsOverloaded", counters.puts_overloaded.get().to_string());
        put("keroloxPutsExpired", counters.puts_expired.get().to_string());
        put("keroloxFlushTimeouts", counters.flush_timeouts.get().to_string());
        put("keroloxUnshownStalls", counters.unshown_stalls.get().to_string());
        put("keroloxDispatchStalls", counters.dispatch_stalls.get().to_string());
        put("keroloxColdReads", counters.cold_reads.get().to_string());
        put("keroloxColdReadsQueued", counters.cold_reads_queued.get().to_string());
        put("keroloxColdReadsRefused", counters.cold_reads_refused.get().to_string());
        put("keroloxScanGetsPaced", counters.scan_gets_paced.get().to_string());
        put("keroloxReadAheadKib", counters.read_ahead_kib.get().to_string());
        put("keroloxDroppedKib", counters.dropped_kib.get().to_string());
        put("keroloxUnitsSkipped", counters.units_skipped.get().to_string());
        put("keroloxRecordsUnreadable", counters.records_unreadable.get().to_string());
    }
}

/// A number as Java shows one: at least one digit behind the point, at most two.
fn decimal(number: f64) -> String {
    format!("{:?}", (number * 100.0).round() / 100.0)
}

/// A length as Java shows one: `0 B`, `77.4 GiB`.
fn human_len(len: u64) -> String {
    if len < 1024 {
        return format!("{len} B");
    }
    let exponent = len.ilog2() / 10;
    let unit = ["K", "M", "G", "T", "P", "E"][exponent as usize - 1];
    format!("{:.1} {unit}iB", len as f64 / (1u64 << (exponent * 10)) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON: Timestamp = Timestamp(43_200_000);

    fn totals(puts: u64, got: u64) -> TrafficTotals {
        let mut totals = TrafficTotals::default();
        (totals.puts, totals.got) = (puts, got);
        totals
    }

    #[test]
    fn lengths_are_told_as_java_tells_them() {
        let shown = [0, 1023, 1024, 1536, (252 << 30) - 1, 252 << 30, u64::MAX].map(human_len);
        assert_eq!(shown, ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "252.0 GiB", "252.0 GiB", "16.0 EiB"]);
    }

    #[test]
    fn rates_cover_their_windows_and_what_there_was_of_them() {
        let mut history = History::starting_at(5_000, NOON, 0);
        let rates = |history: &History, at_ms, puts| {
            history.rates(&Sample { at_ms, puts, ..Sample::default() }, |sample| sample.puts)
        };
        assert_eq!(rates(&history, 5_000, 0), "0.0 0.0 0.0");
        assert_eq!(rates(&history, 7_000, 300), "150.0 150.0 150.0", "two seconds old");
        for second in 1..=100 {
            // A hundred a second, then nothing for the last twenty.
            history.note(5_000 + second * 1000, NOON, 0, &totals(second.min(80) * 100, 0), 0);
        }
        assert_eq!(rates(&history, 105_000, 8_000), "0.0 66.67 80.0");
        for second in 101..=2_000 {
            history.note(5_000 + second * 1000, NOON, 0, &totals(8_000, 0), 0);
        }
        assert_eq!(rates(&history, 2_005_000, 8_000), "0.0 0.0 0.0");
        assert_eq!(history.samples.len(), SAMPLES_MAX);
    }

    #[test]
    fn totals_of_the_morning_are_taken_at_local_midnight() {
        let midnight = Timestamp(86_400_000);
        let mut history = History::starting_at(0, NOON, 3600);
        // An hour east of Greenwich the day is over an hour earlier.
        history.note(1, midnight.plus_ms(-3_600_001), 3600, &totals(10, 1), 0);
        assert_eq!((history.today, history.yesterday), (Morning::default(), Morning::default()));
        history.note(2, midnight.plus_ms(-3_600_000), 3600, &totals(12, 2), 0);
        assert_eq!((history.today, history.yesterday), (Morning { puts: 12, got: 2 }, Morning::default()));
        history.note(3, midnight.plus_ms(86_400_000), 3600, &totals(20, 3), 0);
        assert_eq!((history.today, history.yesterday), (Morning { puts: 20, got: 3 }, Morning { puts: 12, got: 2 }));
        history.note(4, NOON, 3600, &totals(21, 3), 0);
        assert_eq!(history.today, Morning { puts: 20, got: 3 }, "a clock that goes back begins no day");
    }
}
