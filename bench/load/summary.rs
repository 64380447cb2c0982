//! Puts the counts of all threads together, tells the observer of each interval, and makes the result.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use kerolox::cli::text::utc;
use kerolox::types::Timestamp;

use super::books::{End, Phase, Slice};
use super::clock::{MS, SECOND};
use super::plan::{Extent, Pace, Plan, Target};
use super::tally::Tally;
use super::{Event, Interval, process};
use crate::result::{Curve, RunResult, Series, Total};

/// ns.
const MICRO: u64 = 1000;
/// Percentiles that a curve has in any case.
const PERCENTILES: [f64; 9] = [50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99, 99.999, 100.0];
/// Points of a curve between one halving of what is left to 100 % and the next.
const POINTS_A_HALVING: u32 = 5;

pub struct Summary<'a> {
    plan: &'a Plan,
    /// Intervals that some thread has not closed yet.
    open: BTreeMap<usize, Open>,
    /// How many intervals each thread has closed; all of them once it has ended.
    closed: Vec<usize>,
    total: Tally,
    /// In the warm-up too, but not after the measured time.
    acknowledged: u64,
    tailed: u64,
    rates: Rates,
    publish: Series<f64>,
    delay: Series<u64>,
    end_to_end: Series<f64>,
    pull: Series<f64>,
    rss_anon_max_kib: Option<u64>,
}

struct Open {
    slice: Slice,
    tally: Tally,
}

#[derive(Default)]
struct Rates {
    published: Vec<f64>,
    failed: Vec<f64>,
    consumed: Vec<f64>,
    backlog: Vec<u64>,
}

/// What is measured around the counts.
pub struct Around {
    /// Monotonic time in ns.
    pub measure_from: u64,
    /// Wall-clock time at `measure_from`, ns since the epoch.
    pub begin_wall: u64,
    /// Processor time in the measured time, ns.
    pub own_cpu: u64,
    pub broker_cpu: Option<u64>,
    pub ends: Vec<End>,
    /// Why the load did not go on to its end.
    pub ended_early: Option<String>,
}

impl<'a> Summary<'a> {
    pub fn new(plan: &'a Plan, workers: usize) -> Summary<'a> {
        Summary {
            plan,
            open: BTreeMap::new(),
            closed: vec![0; workers],
            total: Tally::new(),
            acknowledged: 0,
            tailed: 0,
            rates: Rates::default(),
            publish: Series::default(),
            delay: Series::default(),
            end_to_end: Series::default(),
            pull: Series::default(),
            rss_anon_max_kib: None,
        }
    }

    /// A thread has closed an interval.
    pub fn add(&mut self, slice: Slice, worker: usize, tally: &Tally, observer: &mut dyn FnMut(Event<'_>)) {
        let open = self.open.entry(slice.number).or_insert_with(|| Open { slice, tally: Tally::new() });
        open.slice.end = open.slice.end.max(slice.end);
        open.tally.add(tally);
        self.closed[worker] = slice.number + 1;
        self.close(observer);
    }

    /// Nothing more comes from a thread.
    pub fn end(&mut self, worker: usize, observer: &mut dyn FnMut(Event<'_>)) {
        self.closed[worker] = usize::MAX;
        self.close(observer);
    }

    /// Takes the intervals that all threads have closed.
    fn close(&mut self, observer: &mut dyn FnMut(Event<'_>)) {
        let closed = self.closed.iter().copied().min().unwrap_or(0);
        while let Some(first) = self.open.first_entry()
            && *first.key() < closed
        {
            let Open { slice, tally } = first.remove();
            self.take(slice, &tally, observer);
        }
    }

    fn take(&mut self, slice: Slice, tally: &Tally, observer: &mut dyn FnMut(Event<'_>)) {
        self.acknowledged += tally.published;
        self.tailed += tally.tailed;
        let seconds = (slice.end - slice.start).max(1) as f64 / SECOND as f64;
        let (phase_start, of_seconds) = match slice.phase {
            Phase::Warmup => (slice.number as f64 * self.plan.interval_seconds, Some(self.plan.warmup_seconds)),
            Phase::Measured => {
                let of = match self.plan.extent {
                    Extent::Seconds(seconds) => Some(seconds),
                    Extent::Messages(_) => None,
                };
                (self.rates.published.len() as f64 * self.plan.interval_seconds, of)
            }
        };
        let interval = Interval {
            until_seconds: phase_start + seconds,
            seconds,
            of_seconds,
            published: tally.published,
            failed: tally.failed,
            consumed: tally.consumed,
            behind_ms: tally.behind_max as f64 / MS as f64,
            publish: &tally.publish,
            end_to_end: &tally.end_to_end,
            pull: &tally.pull,
        };
        if let Some(kib) = self.plan.pid.and_then(process::rss_anon_kib) {
            self.rss_anon_max_kib = self.rss_anon_max_kib.max(Some(kib));
        }
        if slice.phase == Phase::Warmup {
            observer(Event::Warming(&interval));
            return;
        }
        self.total.add(tally);
        let rate = |count: u64| rounded(count as f64 / seconds, 10.0);
        self.rates.published.push(rate(tally.published));
        self.rates.failed.push(rate(tally.failed));
        self.rates.consumed.push(rate(tally.consumed));
        self.rates.backlog.push(self.backlog());
        push(&mut self.publish, &tally.publish, MS, ms);
        push(&mut self.delay, &tally.delay, MICRO, micros);
        push(&mut self.end_to_end, &tally.end_to_end, MS, ms);
        push(&mut self.pull, &tally.pull, MS, ms);
        observer(Event::Measured(&interval));
    }

    fn backlog(&self) -> u64 {
        if self.plan.workload.tails() { self.acknowledged.saturating_sub(self.tailed) } else { 0 }
    }

    /// Whether anything was timed that is measured.
    pub fn is_empty(&self) -> bool {
        self.total.publish.is_empty() && self.total.end_to_end.is_empty() && self.total.pull.is_empty()
    }

    /// The result of the whole run.
    pub fn result(self, around: Around) -> RunResult {
        let plan = self.plan;
        let active_until = around.ends.iter().map(|end| end.active_until).max().unwrap_or(0);
        let active_seconds = active_until.saturating_sub(around.measure_from).max(1) as f64 / SECOND as f64;
        let until = around.ends.iter().map(|end| end.until).max().unwrap_or(0);
        let seconds = match until {
            u64::MAX => active_seconds,
            _ => {
                let planned = until.saturating_sub(around.measure_from).max(1) as f64 / SECOND as f64;
                // A pull may have read all before the time is over.
                if plan.workload.sends() { planned } else { active_seconds.min(planned) }
            }
        };
        let total = &self.total;
        let acknowledged = around.ends.iter().map(|end| end.acknowledged).sum::<u64>();
        let mut errors: BTreeMap<String, u64> =
            total.troubles.iter().map(|(trouble, count)| (trouble.to_string(), *count)).collect();
        let missing = if plan.workload.tails() { acknowledged.saturating_sub(self.tailed) } else { 0 };
        if missing > 0 {
            errors.insert(super::tally::Trouble::Missing.to_string(), missing);
        }
        let handled = total.published.max(total.consumed).max(1) as f64;
        let cpu = |nanos: u64| rounded(nanos as f64 / 1000.0 / handled, 1000.0);
        let readers = if plan.workload == super::Workload::Send { 0 } else { plan.pull_connections };
        RunResult {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            label: plan.label.clone(),
            workload: describe(plan),
            driver: match &plan.target {
                Target::Broker(address) => format!("RocketMQ remoting, broker {address}"),
                Target::NameServer(address) => format!("RocketMQ remoting, name server {address}"),
            },
            begin_time: date(around.begin_wall),
            end_time: date(around.begin_wall + (seconds * SECOND as f64) as u64),
            message_size: plan.sizes.mean().round() as u64,
            topics: plan.topics,
            partitions: plan.queues,
            producers_per_topic: if plan.workload.sends() { plan.connections } else { 0 },
            consumers_per_topic: readers,
            publish_rate: self.rates.published,
            publish_error_rate: self.rates.failed,
            consume_rate: self.rates.consumed,
            backlog: self.rates.backlog,
            publish_latency: self.publish,
            publish_delay: self.delay,
            end_to_end_latency: self.end_to_end,
            pull_latency: self.pull,
            aggregated_publish_latency: all_of(&total.publish, MS, ms),
            aggregated_publish_delay: all_of(&total.delay, MICRO, micros),
            aggregated_end_to_end_latency: all_of(&total.end_to_end, MS, ms),
            aggregated_pull_latency: all_of(&total.pull, MS, ms),
            interval_seconds: plan.interval_seconds,
            seconds: rounded(seconds, 1e6),
            ended_early: around.ended_early,
            rate: rounded(total.published as f64 / seconds, 10.0),
            consumed_rate: rounded(total.consumed as f64 / seconds, 10.0),
            messages: total.publish.len(),
            messages_with_warmup: acknowledged,
            consumed: total.consumed,
            consumed_with_warmup: around.ends.iter().map(|end| end.consumed).sum(),
            errors,
            remarks: total.remarks.iter().map(|(code, remark)| (code.to_string(), remark.clone())).collect(),
            behind_ms_max: ms(total.behind_max),
            never_sent: around.ends.iter().map(|end| end.never_sent).sum(),
            cpu_micros_per_message: around.broker_cpu.map(cpu),
            generator_cpu_micros_per_message: cpu(around.own_cpu),
            rss_anon_max_kib: self.rss_anon_max_kib,
            sink: None,
            plan: plan.clone(),
            machine: serde_json::Value::Null,
        }
    }
}

/// A load in a few words.
fn describe(plan: &Plan) -> String {
    let mut text = format!("{}", plan.workload);
    if plan.workload.sends() {
        text += &match plan.pace {
            Pace::Closed { depth } => format!(", closed loop {} x {depth}", plan.connections),
            Pace::Open { rate } => format!(", open loop {rate}/s over {} connections", plan.connections),
        };
        text += &format!(", {} bytes", plan.sizes);
        if plan.batch > 1 {
            text += &format!(", batches of {}", plan.batch);
        }
    }
    text + &format!(", {} x {} queues", plan.topics, plan.queues)
}

/// `in_unit` gives a value in a unit of `nanos`.
fn push<T>(series: &mut Series<T>, histogram: &Histogram<u64>, nanos: u64, in_unit: fn(u64) -> T) {
    let at = |quantile: f64| in_unit(histogram.value_at_quantile(quantile));
    series.avg.push(rounded(histogram.mean() / nanos as f64, 1e6));
    series.p50.push(at(0.5));
    series.p75.push(at(0.75));
    series.p95.push(at(0.95));
    series.p99.push(at(0.99));
    series.p99_9.push(at(0.999));
    series.p99_99.push(at(0.9999));
    series.p99_999.push(at(0.99999));
    series.max.push(in_unit(histogram.max()));
}

/// As [`push`].
fn all_of<T>(histogram: &Histogram<u64>, nanos: u64, in_unit: fn(u64) -> T) -> Option<Total<T>> {
    if histogram.is_empty() {
        return None;
    }
    let at = |quantile: f64| in_unit(histogram.value_at_quantile(quantile));
    let mut percentiles: Vec<f64> =
        histogram.iter_quantiles(POINTS_A_HALVING).map(|value| value.quantile_iterated_to() * 100.0).collect();
    percentiles.extend(PERCENTILES);
    percentiles.sort_by(f64::total_cmp);
    percentiles.dedup();
    Some(Total {
        avg: rounded(histogram.mean() / nanos as f64, 1e6),
        p50: at(0.5),
        p75: at(0.75),
        p95: at(0.95),
        p99: at(0.99),
        p99_9: at(0.999),
        p99_99: at(0.9999),
        p99_999: at(0.99999),
        max: in_unit(histogram.max()),
        quantiles: Curve(percentiles.into_iter().map(|percentile| (percentile, at(percentile / 100.0))).collect()),
    })
}

/// Milliseconds, to a tenth of a microsecond: histograms are not finer.
fn ms(nanos: u64) -> f64 {
    rounded(nanos as f64 / MS as f64, 1e4)
}

fn micros(nanos: u64) -> u64 {
    (nanos + MICRO / 2) / MICRO
}

/// `value` in steps of 1 / `steps`.
fn rounded(value: f64, steps: f64) -> f64 {
    (value * steps).round() / steps
}

/// Nanoseconds since the epoch as `2026-01-31T12:00:00.000Z`.
fn date(nanos: u64) -> String {
    utc(Timestamp((nanos / MS) as i64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::plan::tests::plan;
    use crate::load::tally::Trouble;

    #[test]
    fn known_latencies_give_known_figures_each_in_its_unit() {
        let plan = plan();
        let mut summary = Summary::new(&plan, 1);
        let slice = |number, phase, start, end| Slice { number, phase, start, end };
        let mut told = Vec::new();
        let mut observer = |event: Event<'_>| {
            if let Event::Measured(interval) = event {
                told.push((interval.until_seconds, interval.published, interval.failed));
            }
        };
        let mut warming = Tally::new();
        warming.publish.saturating_record_n(900 * MS, 77);
        summary.add(slice(0, Phase::Warmup, 0, SECOND), 0, &warming, &mut observer);
        // 10 µs to 10 ms by steps of 10 µs, each sent 3 to 3,000 µs late.
        let mut all = Tally::new();
        for number in 1..=1000 {
            all.publish.saturating_record(number * 10 * MICRO);
            all.delay.saturating_record(number * 3 * MICRO);
        }
        (all.published, all.behind_max) = (1000, 3 * MS);
        summary.add(slice(1, Phase::Measured, SECOND, 2 * SECOND), 0, &all, &mut observer);
        let mut half = Tally::new();
        half.failed = 5;
        half.trouble(Trouble::Code(2), 5);
        summary.add(slice(2, Phase::Measured, 2 * SECOND, 5 * SECOND / 2), 0, &half, &mut observer);
        summary.end(0, &mut observer);
        assert_eq!(told, [(1.0, 1000, 0), (1.5, 0, 5)]);
        let end = End {
            active_until: 2 * SECOND,
            acknowledged: 1077,
            until: 5 * SECOND / 2,
            never_sent: 3,
            ..End::default()
        };
        let (own_cpu, broker_cpu) = (MS, Some(2 * MS));
        let result = summary.result(Around {
            measure_from: SECOND,
            begin_wall: 90 * SECOND,
            own_cpu,
            broker_cpu,
            ends: vec![end],
            ended_early: None,
        });

        let near = |found: f64, wanted: f64| assert!((found / wanted - 1.0).abs() < 0.001, "{found}, not {wanted}");
        let publish = result.aggregated_publish_latency.unwrap();
        for (found, wanted) in [
            (publish.avg, 5.005),
            (publish.p50, 5.0),
            (publish.p75, 7.5),
            (publish.p95, 9.5),
            (publish.p99, 9.9),
            (publish.p99_9, 9.99),
            (publish.p99_99, 10.0),
            (publish.max, 10.0),
            (result.publish_latency.avg[0], 5.005),
            (result.publish_latency.p99[0], 9.9),
        ] {
            near(found, wanted);
        }
        let points: BTreeMap<String, f64> =
            publish.quantiles.0.iter().map(|(percentile, value)| (percentile.to_string(), *value)).collect();
        near(points["90"], 9.0);
        near(points["100"], 10.0);
        let delay = result.aggregated_publish_delay.unwrap();
        for (found, wanted) in [
            (delay.avg, 1501.5),
            (delay.p50 as f64, 1500.0),
            (delay.max as f64, 3000.0),
            (result.publish_delay.avg[0], 1501.5),
            (result.behind_ms_max, 3.0),
        ] {
            near(found, wanted);
        }
        assert_eq!((result.publish_rate, result.publish_error_rate), (vec![1000.0, 0.0], vec![0.0, 10.0]));
        assert_eq!((result.seconds, result.messages, result.messages_with_warmup), (1.5, 1000, 1077));
        near(result.rate, 666.7);
        assert_eq!((result.generator_cpu_micros_per_message, result.cpu_micros_per_message), (1.0, Some(2.0)));
        assert_eq!((result.errors, result.never_sent), ([("2".to_owned(), 5)].into(), 3));
        assert_eq!(result.begin_time, "1970-01-01T00:01:30.000Z");
        assert_eq!(result.end_time, "1970-01-01T00:01:31.500Z");
        assert_eq!((result.aggregated_end_to_end_latency, result.publish_latency.max[1]), (None, 0.0));
    }
}
