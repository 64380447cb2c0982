//! `kerolox-bench soak`: a steady rate for a long time, judged minute by minute by the share of slow messages.
//!
//! A percentile of an hour hides a bad minute, and a maximum says nothing of how often. So each minute is judged by
//! itself, by how much of it took longer than a few limits, as operators of flash storage judge their devices. What
//! failed or came never was slower than any limit.

use std::fmt;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::cli::{self, BrokerArgs, LoadArgs};
use crate::load::tally::Trouble;
use crate::load::{self, Event, Extent, Interval, Pace, Plan};
use crate::machine::MachineArgs;
use crate::measure::{self, Stop, check_files, measure, say, write_json};
use crate::report::{self, Markup, Run, count, ms, rate};
use crate::result::RunResult;

const MINUTE_SECONDS: f64 = 60.0;
/// An interval's end is a sum of floating-point numbers; so far it may lie beyond a minute's end and belong to it.
const EDGE_SECONDS: f64 = 0.005;

/// Load a broker steadily and judge each minute by its share of slow messages
#[derive(Debug, clap::Args)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Each minute gives one line: how much was answered, and the share that took longer than each limit, from the intended send
time. Messages that failed count as slower than every limit. A message belongs to the minute of its answer. With --act a
minute fails if a share is above its limit or nothing was answered at all, and so does the soak. It fails as well if it is
stopped before its time, or if messages never left, never came, or came damaged or out of order. The default limits are
those that operators of flash storage use for an hour: 5 % above 1 ms, 1 % above 8 ms, 0.1 % above 64 ms.

With --workload e2e or mixed the time to the consumer is judged, else the time to the acknowledgement. --minutes stands in
the place of --duration.

Exit codes:
  0  done; with --act, every minute passed
  1  with --act, a minute failed, or it ended early or messages got lost; or the broker cannot be reached or is gone, or a file cannot be written
  2  wrong usage; trying again without a change cannot help

Examples:
  kerolox-bench soak --broker 127.0.0.1:10911 --rate 12000 --minutes 60 --act
  kerolox-bench soak --broker 127.0.0.1:10911 --rate 12000 --minutes 10 --act --limit 1:0.1 --limit 5:0
  kerolox-bench soak --broker 127.0.0.1:10911 --rate 500 --minutes 480 --workload e2e --json night.json"
)]
pub struct Args {
    #[command(flatten)]
    broker: BrokerArgs,
    /// Judge each minute by the limits, and fail if one does
    #[arg(long)]
    act: bool,
    /// How long; the last minute may be a part of one
    #[arg(long, value_name = "N", default_value_t = 60.0, value_parser = minutes)]
    minutes: f64,
    /// So much of a minute, in percent, may take longer than so many milliseconds
    #[arg(long = "limit", value_name = "MS:PERCENT", default_values = ["1:5", "8:1", "64:0.1"])]
    limits: Vec<Limit>,
    /// Minutes and the whole result, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The result as one page to look at
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    #[command(flatten)]
    machine: MachineArgs,
    #[command(flatten)]
    load: LoadArgs,
}

fn minutes(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|value| (0.001..=525_600.0).contains(value)).ok_or("give minutes, 0.001 to 525600".into())
}

/// So much, in percent, may be slower than this.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Limit {
    ms: f64,
    percent: f64,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.ms, self.percent)
    }
}

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Limit, String> {
        let parsed = text.split_once(':').and_then(|(ms, percent)| {
            Some(Limit { ms: ms.parse().ok()?, percent: percent.trim_end_matches('%').parse().ok()? })
        });
        let fits = |limit: &Limit| (0.0..=86_400_000.0).contains(&limit.ms) && (0.0..=100.0).contains(&limit.percent);
        parsed.filter(fits).ok_or_else(|| format!("{text:?} is no limit; give milliseconds and percent, as 8:1"))
    }
}

/// What a soak gives.
#[derive(Debug, Serialize)]
struct Soak {
    version: &'static str,
    limits: Vec<Limit>,
    /// Whether minutes were judged, and if so whether all passed.
    passed: Option<bool>,
    /// What fails a soak and stands in no minute.
    faults: Vec<String>,
    minutes: Vec<Minute>,
    result: RunResult,
}

/// One minute's shares.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Minute {
    /// From 1.
    number: u32,
    seconds: f64,
    /// Timed with success.
    messages: u64,
    failed: u64,
    /// Percent above each limit, failed ones among them.
    above_percent: Vec<f64>,
    p50_ms: f64,
    max_ms: f64,
    /// Whether no share is above its limit and something was answered.
    passed: bool,
}

impl Minute {
    /// The limits that this minute broke, as `2.31 % above 8 ms`.
    fn broken(&self, limits: &[Limit]) -> Vec<String> {
        if self.messages + self.failed == 0 {
            return vec!["nothing was answered".to_owned()];
        }
        let pairs = limits.iter().zip(&self.above_percent);
        let broken = pairs.filter(|(limit, above)| **above > limit.percent);
        broken.map(|(limit, above)| format!("{} above {} ms", share(*above), limit.ms)).collect()
    }
}

/// Gathers intervals into minutes.
struct Minutes {
    limits: Vec<Limit>,
    done: Vec<Minute>,
    started: f64,
    until: f64,
    latencies: Histogram<u64>,
    failed: u64,
}

impl Minutes {
    fn new(limits: Vec<Limit>) -> Minutes {
        let latencies = load::histogram();
        Minutes { limits, done: Vec::new(), started: 0.0, until: 0.0, latencies, failed: 0 }
    }

    /// Takes an interval that ends `until` seconds after the start; gives the minute that ends with it.
    fn add(&mut self, until: f64, latencies: &Histogram<u64>, failed: u64) -> Option<&Minute> {
        self.latencies.add(latencies).expect("all have the same bounds");
        self.failed += failed;
        self.until = until;
        if until + EDGE_SECONDS < (self.done.len() + 1) as f64 * MINUTE_SECONDS {
            return None;
        }
        Some(self.end())
    }

    /// Ends the last minute, of which only a part may have been.
    fn finish(mut self) -> Vec<Minute> {
        if self.until > self.started + EDGE_SECONDS {
            self.end();
        }
        self.done
    }

    fn end(&mut self) -> &Minute {
        let (messages, failed) = (self.latencies.len(), self.failed);
        let above = |limit: &Limit| {
            let within = self.latencies.count_between(0, (limit.ms * 1e6) as u64);
            let slow = if limit.ms == 0.0 { messages } else { messages - within } + failed;
            slow as f64 / (messages + failed).max(1) as f64 * 100.0
        };
        let above_percent = self.limits.iter().map(above).collect();
        let in_ms = |nanos: u64| nanos as f64 / 1e6;
        let mut minute = Minute {
            number: self.done.len() as u32 + 1,
            seconds: self.until - self.started,
            messages,
            failed,
            above_percent,
            p50_ms: in_ms(self.latencies.value_at_quantile(0.5)),
            max_ms: in_ms(self.latencies.max()),
            passed: true,
        };
        minute.passed = minute.broken(&self.limits).is_empty();
        self.latencies.reset();
        self.failed = 0;
        self.started = self.until;
        self.done.push(minute);
        self.done.last().expect("it was just put there")
    }
}

pub fn run(args: &Args) -> ExitCode {
    let plan = match plan(args) {
        Ok(plan) => plan,
        Err(why) => return cli::usage(&why),
    };
    let soak = check_files(&[&args.json, &args.html]).and_then(|()| soak(args, &plan));
    match soak.and_then(|soak| written(args, soak)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(cli::EXIT_FAILURE),
        Err(stop) => stop.tell(),
    }
}

fn plan(args: &Args) -> Result<Plan, String> {
    if args.load.count.is_some() {
        return Err("a soak lasts for --minutes; leave --count out".into());
    }
    let mut plan = args.broker.plan(&args.load)?;
    if !matches!(plan.pace, Pace::Open { .. }) || !plan.workload.sends() {
        return Err("a soak needs --rate and a workload that sends: a closed loop slows down with its broker".into());
    }
    plan.extent = Extent::Seconds(args.minutes * MINUTE_SECONDS);
    // Minutes are made of whole intervals.
    let intervals = MINUTE_SECONDS / plan.interval_seconds;
    if (intervals - intervals.round()).abs() * plan.interval_seconds > EDGE_SECONDS || intervals < 0.5 {
        return Err(format!("--interval {} does not divide a minute", plan.interval_seconds));
    }
    plan.check().map(|()| plan)
}

fn soak(args: &Args, plan: &Plan) -> Result<Soak, Stop> {
    let mut minutes = Minutes::new(args.limits.clone());
    let tails = plan.workload.tails();
    say(&(head(&args.limits) + "\n"))?;
    let mut observer = |event: Event<'_>| {
        if let Event::Measured(interval) = event {
            let Interval { until_seconds, failed, .. } = *interval;
            let latencies = if tails { interval.end_to_end } else { interval.publish };
            if let Some(minute) = minutes.add(until_seconds, latencies, failed) {
                let text = line(minute, &args.limits, args.act);
                // On a terminal the live line stands where this one goes.
                if io::stderr().is_terminal() {
                    eprint!("\r\x1b[K");
                }
                // The verdict is written there too, and whether it could be is told then.
                _ = say(&(text + "\n"));
            }
        }
    };
    let result = measure(plan, &args.machine, &mut observer)?;
    let told = minutes.done.len();
    let minutes = minutes.finish();
    for minute in &minutes[told..] {
        say(&(line(minute, &args.limits, args.act) + "\n"))?;
    }
    let faults = faults(&result);
    let passed = minutes.iter().all(|minute| minute.passed) && !minutes.is_empty() && faults.is_empty();
    let passed = args.act.then_some(passed);
    Ok(Soak { version: env!("CARGO_PKG_VERSION"), limits: args.limits.clone(), passed, faults, minutes, result })
}

/// What fails a soak besides its minutes: nobody knows to which of them it belongs.
fn faults(result: &RunResult) -> Vec<String> {
    let mut faults = Vec::new();
    if let Some(why) = &result.ended_early {
        faults.push(format!("ended after {:.0} s: {why}", result.seconds));
    }
    // The schedule was lost, and no limit was kept.
    if result.never_sent > 0 {
        faults.push(format!("{} messages never left", count(result.never_sent)));
    }
    for (error, told) in [
        (Trouble::Missing, "messages were acknowledged and never came"),
        (Trouble::Order, "messages came out of their order"),
        (Trouble::Damaged, "messages came damaged"),
    ] {
        if let Some(found) = result.errors.get(&error.to_string()) {
            faults.push(format!("{} {told}", count(*found)));
        }
    }
    faults
}

fn head(limits: &[Limit]) -> String {
    let limits = limits.iter().map(|limit| format!("{:>12}", format!("> {} ms", limit.ms)));
    let limits = limits.collect::<Vec<_>>().join("  ");
    format!(
        "{:>6}  {:>12}  {:>10}  {:>8}  {limits}  {:>8}  {:>8}",
        "minute", "messages", "rate/s", "failed", "p50, ms", "max, ms"
    )
}

fn line(minute: &Minute, limits: &[Limit], judged: bool) -> String {
    let shares = minute.above_percent.iter().map(|above| format!("{:>12}", share(*above)));
    let shares = shares.collect::<Vec<_>>().join("  ");
    let verdict = match minute.broken(limits) {
        _ if !judged => String::new(),
        broken if broken.is_empty() => "  pass".to_owned(),
        broken => format!("  FAIL: {}", broken.join(", ")),
    };
    let Minute { number, seconds, messages, failed, p50_ms, max_ms, .. } = minute;
    let (came, failed) = (rate(*messages as f64 / seconds), count(*failed));
    let (messages, p50, max) = (count(*messages), ms(*p50_ms), ms(*max_ms));
    format!("{number:>6}  {messages:>12}  {came:>10}  {failed:>8}  {shares}  {p50:>8}  {max:>8}{verdict}")
}

/// Percent, with enough digits for a limit of 0.1.
fn share(percent: f64) -> String {
    if percent == 0.0 { "0 %".to_owned() } else { format!("{percent:.4} %") }
}

/// Says how it went and writes what was asked for; `false` if the soak was judged and failed.
fn written(args: &Args, soak: Soak) -> Result<bool, Stop> {
    let failed = soak.minutes.iter().filter(|minute| !minute.passed).count();
    let slow = format!("{failed} of {} minutes were not within their limits", soak.minutes.len());
    let slow = [slow].into_iter().filter(|_| failed > 0 || soak.faults.is_empty());
    let why = slow.chain(soak.faults.clone()).collect::<Vec<_>>().join("; ");
    let verdict = match soak.passed {
        Some(true) => "PASS: every minute was within its limits".to_owned(),
        Some(false) => format!("FAIL: {why}"),
        None => "not judged: that takes --act".to_owned(),
    };
    let said = say(&format!("{verdict}\n"));
    if let Some(path) = &args.json {
        write_json(path, &soak)?;
    }
    let passed = soak.passed != Some(false);
    if let Some(path) = &args.html {
        let first = section(&soak, &verdict);
        let name = if args.broker.label.is_empty() { "soak" } else { &args.broker.label };
        let runs = [Run::new(name.to_owned(), 0, soak.result)?];
        measure::write(path, &report::of_runs(&format!("Soak of {} minutes", args.minutes), first, &runs))?;
    }
    said?;
    Ok(passed)
}

fn section(soak: &Soak, verdict: &str) -> Markup {
    let mut page = Markup::new();
    page.leaf("h2", &[], "Minute by minute").leaf("p", &[], verdict);
    page.open("div", &[("class", "scroll")]).open("table", &[]);
    page.open("thead", &[]).open("tr", &[]).leaf("th", &[], "minute").leaf("th", &[], "messages").leaf(
        "th",
        &[],
        "failed",
    );
    for limit in &soak.limits {
        page.leaf("th", &[], &format!("above {} ms (at most {} %)", limit.ms, limit.percent));
    }
    page.leaf("th", &[], "p50, ms").leaf("th", &[], "max, ms").close().close().open("tbody", &[]);
    for minute in &soak.minutes {
        page.open("tr", &[]).leaf("th", &[], &minute.number.to_string());
        page.leaf("td", &[], &count(minute.messages)).leaf("td", &[], &count(minute.failed));
        for (limit, above) in soak.limits.iter().zip(&minute.above_percent) {
            let class = if *above > limit.percent { "bad" } else { "good" };
            page.open("td", &[]).leaf("span", &[("class", class)], &share(*above)).close();
        }
        page.leaf("td", &[], &ms(minute.p50_ms)).leaf("td", &[], &ms(minute.max_ms)).close();
    }
    page.close().close().close();
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(texts: &[&str]) -> Vec<Limit> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    /// So many messages of so many milliseconds.
    fn latencies(parts: &[(u64, f64)]) -> Histogram<u64> {
        let mut all = load::histogram();
        for &(count, ms) in parts {
            all.record_n((ms * 1e6) as u64, count).unwrap();
        }
        all
    }

    #[test]
    fn limits_are_read_as_milliseconds_and_percent() {
        assert_eq!(limits(&["1:5", "0:0", "0.5:0.1%"]).len(), 3);
        assert_eq!("8:1".parse::<Limit>().unwrap().to_string(), "8:1");
        for text in ["", "8", "8:", "a:1", "1:101", "-1:1", "nan:1", "1:nan"] {
            assert!(text.parse::<Limit>().unwrap_err().contains("as 8:1"), "{text:?}");
        }
    }

    #[test]
    fn intervals_become_minutes_and_the_rest_a_part_of_one() {
        let mut minutes = Minutes::new(limits(&["1:5"]));
        let part = latencies(&[(10, 0.5)]);
        let mut told = Vec::new();
        // Ten intervals of 0.1 give 0.9999999999999999, and minutes must not wait for the next one because of that.
        let mut until = 0.0;
        for _ in 0..1250 {
            until += 0.1;
            told.extend(minutes.add(until, &part, 1).map(|minute| minute.number));
        }
        assert_eq!(told, [1, 2]);
        let minutes = minutes.finish();
        let counts: Vec<(u64, u64)> = minutes.iter().map(|minute| (minute.messages, minute.failed)).collect();
        assert_eq!(counts, [(6000, 600), (6000, 600), (500, 50)]);
        assert!((minutes[2].seconds - 5.0).abs() < 0.01, "{:?}", minutes[2]);
    }

    #[test]
    fn a_soak_that_ends_with_its_minute_has_no_empty_one_after_it() {
        let mut minutes = Minutes::new(limits(&["1:5"]));
        assert!(minutes.add(60.0, &latencies(&[(1, 0.5)]), 0).is_some());
        assert_eq!(minutes.finish().len(), 1);
    }

    #[test]
    fn a_minute_is_judged_by_each_share_and_failures_count_as_slow() {
        let judged = |parts: &[(u64, f64)], failed: u64| {
            let mut minutes = Minutes::new(limits(&["1:5", "8:1", "64:0.1"]));
            minutes.add(60.0, &latencies(parts), failed);
            minutes.finish().remove(0)
        };
        let at_limit = judged(&[(950, 0.9), (40, 7.0), (9, 60.0), (1, 70.0)], 0);
        assert_eq!(at_limit.above_percent, [5.0, 1.0, 0.1]);
        assert!(at_limit.passed);
        let one_more = judged(&[(949, 0.9), (41, 7.0), (9, 60.0), (1, 70.0)], 0);
        assert!(!one_more.passed);
        assert_eq!(one_more.broken(&limits(&["1:5"])), ["5.1000 % above 1 ms"]);
        assert!(!judged(&[(999, 0.1)], 2).passed);
        let silent = judged(&[], 0);
        assert!(!silent.passed && line(&silent, &[], true).ends_with("FAIL: nothing was answered"));
    }

    #[test]
    fn nought_passes_nothing_and_a_hundred_passes_all() {
        let judged = |limit: &str| {
            let mut minutes = Minutes::new(limits(&[limit]));
            minutes.add(1.0, &latencies(&[(5, 0.000_001), (5, 9000.0)]), 5);
            minutes.finish().remove(0).passed
        };
        assert!(!judged("0:0") && judged("0:100") && !judged("64:0"));
    }

    #[test]
    fn what_stands_in_no_minute_fails_a_soak_too() {
        let good = crate::report::tests::result("x", 1.0);
        assert_eq!(faults(&good), [] as [&str; 0]);
        let mut bad = good.clone();
        bad.ended_early = Some("interrupted".to_owned());
        assert_eq!(faults(&bad), ["ended after 3 s: interrupted"]);
        let mut bad = good;
        bad.never_sent = 1200;
        for (name, number) in [("missing", 2), ("order", 3), ("damaged", 4), ("timeout", 5)] {
            bad.errors.insert(name.to_owned(), number);
        }
        let told = faults(&bad);
        assert_eq!(told.len(), 4, "a time-out stands in its minute: {told:?}");
        assert!(told[0] == "1,200 messages never left" && told[1].starts_with("2 messages were ack"), "{told:?}");
    }
}
