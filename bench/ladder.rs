//! `kerolox-bench ladder`: the most that a broker holds, and its latencies at shares of that.
//!
//! Latencies at an arbitrary rate compare badly: 12,000 a second is rest to one broker and overload to another. So the
//! maximum is found first, in a closed loop, which finds the highest throughput and says nothing about a schedule; then
//! by open loops, which show whether a rate can be held. The steps are shares of what was held.

use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;

use crate::cli::{self, BrokerArgs, LoadArgs};
use crate::load::{Pace, Plan, Rate};
use crate::machine::MachineArgs;
use crate::measure::{self, Stop, check_files, is_clean, measure, say, to_its_end, write_json};
use crate::report::{
    self, Axis, Kind, Line, LineChart, Marks, Markup, PERCENTILES, Run, Scale, Stroke, at, count, legend, ms,
    percentile, rate, rate_of,
};
use crate::result::RunResult;

/// How far to go down after a rate that was not held, and by its inverse up after one that was.
const DOWN: f64 = 0.9;

/// Find the most that a broker holds, and its latencies at shares of that
#[derive(Debug, clap::Args)]
#[command(
    verbatim_doc_comment,
    after_help = "\
First a closed loop of --depth requests on each connection finds the highest throughput. Then open loops look for a rate
that is held: no message failed, every message left, --held-percent of the rate came, and p99 stayed in --held-p99-ms.
A rate that was not held is followed by one 10 % lower, one that was by one 11 % higher; between one that was and one that
was not, by the middle.
At last each step runs at its share of the highest rate that was held. Every run takes --warmup and --duration.
Ctrl-C ends it with the steps that are done.

Exit codes:
  0  done, every message of the steps answered with success
  1  failed: the broker cannot be reached or is gone, no rate was held, a file cannot be written; or stopped
  2  wrong usage; trying again without a change cannot help
  3  done, but some messages of a step failed or could not be sent in time

Examples:
  kerolox-bench ladder --broker 127.0.0.1:10911
  kerolox-bench ladder --broker 127.0.0.1:10911 --depth 64 --steps 10,50,90,99 --json ladder.json --html ladder.html
  kerolox-bench ladder --broker 127.0.0.1:10911 --maximum 80000 --duration 60"
)]
pub struct Args {
    #[command(flatten)]
    broker: BrokerArgs,
    /// Shares of the maximum, in percent
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "25,50,80,95", value_parser = percent)]
    steps: Vec<f64>,
    /// Take this for the maximum, messages a second, instead of looking for it
    #[arg(long, value_name = "N", value_parser = positive)]
    maximum: Option<f64>,
    /// How many rates to try for the maximum at most
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=100))]
    tries: u32,
    /// A rate of which less came is not held
    #[arg(long, value_name = "PERCENT", default_value_t = 99.0, value_parser = percent)]
    held_percent: f64,
    /// A rate whose p99 is above this is not held
    #[arg(long, value_name = "MS", default_value_t = 100.0, value_parser = positive)]
    held_p99_ms: f64,
    /// All results, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The steps as one page to look at
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    #[command(flatten)]
    machine: MachineArgs,
    #[command(flatten)]
    load: LoadArgs,
}

/// What a ladder gives.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Ladder {
    version: &'static str,
    /// Messages a second that were held; the steps are shares of it.
    maximum: f64,
    /// The closed loop; `None` if the maximum was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    closed: Option<RunResult>,
    tries: Vec<Try>,
    steps: Vec<Step>,
    /// Why there are no more steps, if there should be.
    #[serde(skip)]
    cut: Option<Stop>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Try {
    rate: f64,
    /// Why the rate was not held; `None` if it was.
    not_held: Option<String>,
    result: RunResult,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Step {
    percent: f64,
    rate: f64,
    result: RunResult,
}

fn percent(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|value| (0.01..=200.0).contains(value)).ok_or("give percent, 0.01 to 200".to_owned())
}

fn positive(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|value| (0.001..=1e9).contains(value)).ok_or("give a number, 0.001 to 1e9".to_owned())
}

pub fn run(args: &Args) -> ExitCode {
    if args.load.rate.is_some() {
        return cli::usage("a ladder finds its rates itself; leave --rate out, or give --maximum");
    }
    let plan = match args.broker.plan(&args.load) {
        Ok(plan) if plan.workload.sends() => plan,
        Ok(plan) => return cli::usage(&format!("--workload {} has no rate; a ladder must send", plan.workload)),
        Err(why) => return cli::usage(&why),
    };
    let ladder = check_files(&[&args.json, &args.html]).and_then(|()| climb(args, &plan));
    match ladder.and_then(|ladder| written(args, ladder)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(cli::EXIT_ERRORS),
        Err(stop) => stop.tell(),
    }
}

fn climb(args: &Args, plan: &Plan) -> Result<Ladder, Stop> {
    let run = |plan: &Plan| to_its_end(measure(plan, &args.machine, &mut |_| {})?);
    let (mut closed, mut tries) = (None, Vec::new());
    let maximum = match args.maximum {
        Some(maximum) => maximum,
        None => {
            eprintln!("closed loop, {} x {} requests under way", plan.connections, args.load.depth);
            let result = run(plan)?;
            let mut search = Search::from(whole(rate_of(&result)), args.tries);
            closed = Some(result);
            while let Some(rate) = search.next() {
                let name = format!("open loop at {}/s", self::rate(rate));
                eprintln!("{name}");
                let result = run(&at_rate(plan, rate, name.clone()))?;
                let not_held = not_held(&result, rate, args.held_percent, args.held_p99_ms);
                eprintln!("{name}: {}", not_held.as_ref().map_or("held".to_owned(), |why| format!("not held, {why}")));
                search.tried(rate, not_held.is_none());
                tries.push(Try { rate, not_held, result });
            }
            let last = tries.last().and_then(|it| it.not_held.as_deref()).unwrap_or("nothing was answered").to_owned();
            search.held.ok_or_else(|| format!("none of {} rates was held; the last: {last}", tries.len()))?
        }
    };
    let mut steps = Vec::new();
    for &percent in &args.steps {
        let rate = whole(maximum * percent / 100.0);
        eprintln!("step {percent} %: {}/s", self::rate(rate));
        let name = if args.broker.label.is_empty() { String::new() } else { format!("{}, ", args.broker.label) };
        match run(&at_rate(plan, rate, format!("{name}{percent} %, {}/s", self::rate(rate)))) {
            Ok(result) => steps.push(Step { percent, rate, result }),
            // The steps before it took their time, and are as good as ever.
            Err(stop) if !steps.is_empty() => {
                let cut = Some(stop.during(format_args!("step {percent} %")));
                return Ok(Ladder { version: env!("CARGO_PKG_VERSION"), maximum, closed, tries, steps, cut });
            }
            Err(stop) => return Err(stop),
        }
    }
    Ok(Ladder { version: env!("CARGO_PKG_VERSION"), maximum, closed, tries, steps, cut: None })
}

/// A rate that can be said and typed, unless it is tiny.
fn whole(rate: f64) -> f64 {
    if rate < 10.0 { rate } else { rate.round() }
}

fn at_rate(plan: &Plan, rate: f64, label: String) -> Plan {
    Plan { label, pace: Pace::Open { rate: Rate { from: rate, to: rate } }, ..plan.clone() }
}

/// Why a result at `rate` says that the broker does not hold it.
fn not_held(result: &RunResult, rate: f64, percent: f64, p99_max: f64) -> Option<String> {
    let failed: u64 = result.errors.values().sum();
    let came = rate_of(result);
    let p99 = Kind::Publish.total(result).map_or(f64::INFINITY, |total| at(total, 99.0));
    if failed > 0 {
        Some(format!("{} messages failed", count(failed)))
    } else if result.never_sent > 0 {
        Some(format!("{} messages never left", count(result.never_sent)))
    } else if came < rate * percent / 100.0 {
        Some(format!("only {}/s came", self::rate(came)))
    } else if p99 > p99_max {
        Some(format!("p99 was {} ms", ms(p99)))
    } else {
        None
    }
}

/// Looks for the highest rate that is held, from that of a closed loop on.
#[derive(Debug)]
struct Search {
    next: f64,
    left: u32,
    held: Option<f64>,
    not_held: Option<f64>,
}

impl Search {
    fn from(rate: f64, tries: u32) -> Search {
        Search { next: rate, left: tries, held: None, not_held: None }
    }

    /// The rate to try now; `None` once there is no more to learn, or no try left.
    fn next(&self) -> Option<f64> {
        let close = matches!((self.held, self.not_held), (Some(held), Some(not)) if not - held < held * 0.02);
        (self.left > 0 && !close && self.next > 0.0).then_some(self.next)
    }

    fn tried(&mut self, rate: f64, held: bool) {
        self.left -= 1;
        *(if held { &mut self.held } else { &mut self.not_held }) = Some(rate);
        self.next = match (self.held, self.not_held) {
            (Some(held), Some(not_held)) => whole(f64::midpoint(held, not_held)),
            // A closed loop has no more than its requests under way; a broker that gathers them may carry more.
            (Some(_), None) => whole(rate / DOWN),
            _ => whole(rate * DOWN),
        };
    }
}

/// Prints the table and writes what was asked for; whether every message of the steps was sent and answered.
fn written(args: &Args, mut ladder: Ladder) -> Result<bool, Stop> {
    let said = say(&table(&ladder));
    let cut = ladder.cut.take();
    if let Some(path) = &args.json {
        write_json(path, &ladder)?;
    }
    let clean = ladder.steps.iter().all(|step| is_clean(&step.result));
    if let Some(path) = &args.html {
        let first = section(&ladder);
        let steps = ladder.steps.into_iter().enumerate();
        let runs: Result<Vec<Run>, String> =
            steps.map(|(colour, step)| Run::new(step.result.label.clone(), colour, step.result)).collect();
        let title = format!("Ladder {}", args.broker.label);
        measure::write(path, &report::of_runs(title.trim(), first, &runs?))?;
    }
    said?;
    cut.map_or(Ok(clean), Err)
}

/// Latency over the rate: where the curves turn up is where the broker has had enough.
fn section(ladder: &Ladder) -> Markup {
    let mut page = Markup::new();
    page.leaf("h2", &[], "Latency over the rate");
    let text = format!("Steps are shares of {} messages/s, the most that was held.", rate(ladder.maximum));
    page.leaf("p", &[("class", "soft")], &text);
    let lines = PERCENTILES.iter().enumerate().map(|(colour, &wanted)| {
        let point = |step: &Step| Some((rate_of(&step.result), at(Kind::Publish.total(&step.result)?, wanted)));
        let mut points: Vec<(f64, f64)> = ladder.steps.iter().filter_map(point).collect();
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
        let told = |&(came, value): &(f64, f64)| {
            (came, value, format!("{}: {} ms at {}/s", percentile(wanted), ms(value), rate(came)))
        };
        Line { colour, stroke: Stroke::Solid, marks: points.iter().map(told).collect(), points }
    });
    let lines: Vec<Line> = lines.collect();
    let points = || lines.iter().flat_map(|line| line.points.iter());
    let x = Axis::holding("messages a second", Scale::Linear, points().map(|point| point.0));
    let y = Axis::holding("send latency (ms)", Scale::Log, points().map(|point| point.1));
    page.open("figure", &[]);
    let names = PERCENTILES.map(percentile);
    let entries = names.iter().enumerate().map(|(colour, name)| (colour, Stroke::Solid, name.as_str()));
    legend(&mut page, entries);
    let description = "Send latency at each percentile over the rate".to_owned();
    LineChart { description, x, y, lines, marks: Marks::Shown }.draw(&mut page);
    page.close();
    page
}

/// The ladder as text in columns.
fn table(ladder: &Ladder) -> String {
    let mut lines = vec![vec!["step".to_owned(), "rate/s".to_owned(), "came/s".to_owned()]];
    lines[0].extend(PERCENTILES.map(percentile));
    lines[0].extend(["max, ms", "errors", "behind, ms"].map(str::to_owned));
    for step in &ladder.steps {
        let result = &step.result;
        let mut line = vec![format!("{} %", step.percent), rate(step.rate), rate(rate_of(result))];
        let total = Kind::Publish.total(result);
        let latency = |of: Option<f64>| of.map_or_else(|| "–".to_owned(), ms);
        line.extend(PERCENTILES.map(|wanted| latency(total.map(|total| at(total, wanted)))));
        line.push(latency(total.map(|total| total.max)));
        line.push(count(result.errors.values().sum()));
        line.push(ms(result.behind_ms_max));
        lines.push(line);
    }
    let columns = lines[0].len();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = format!("maximum held: {} messages/s", rate(ladder.maximum));
    if let Some(closed) = &ladder.closed {
        text += &format!(" (closed loop: {})", rate(rate_of(closed)));
    }
    text.push('\n');
    for line in lines {
        let cells = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}", width = *width));
        text += &(cells.collect::<Vec<_>>().join("  ") + "\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::result;

    /// Searches a broker that holds up to `limit`; gives the rates tried and what came out.
    fn search(closed: f64, limit: f64, tries: u32) -> (Vec<f64>, Option<f64>) {
        let mut search = Search::from(closed, tries);
        let mut tried = Vec::new();
        while let Some(rate) = search.next() {
            tried.push(rate);
            search.tried(rate, rate <= limit);
        }
        (tried, search.held)
    }

    #[test]
    fn a_closed_loops_rate_that_is_held_is_not_yet_the_maximum() {
        let (tried, held) = search(1000.0, 1300.0, 8);
        assert_eq!(tried[..4], [1000.0, 1111.0, 1234.0, 1371.0]);
        assert!(held.unwrap() > 1270.0 && tried.len() <= 8, "{held:?} of {tried:?}");
        assert_eq!(search(1000.0, 1e9, 3), (vec![1000.0, 1111.0, 1234.0], Some(1234.0)));
    }

    #[test]
    fn the_search_goes_down_and_then_halves_the_gap() {
        let (tried, held) = search(1000.0, 850.0, 8);
        assert_eq!(tried[..4], [1000.0, 900.0, 810.0, 855.0]);
        let held = held.unwrap();
        assert!(held <= 850.0 && held > 850.0 * 0.97, "{held} of {tried:?}");
        assert!(tried.len() <= 8, "{tried:?}");
    }

    #[test]
    fn a_broker_that_holds_nothing_ends_the_search() {
        assert_eq!(search(1000.0, 0.0, 5).1, None);
        assert_eq!(search(1000.0, 0.0, 5).0.len(), 5);
        assert_eq!(search(0.0, 0.0, 5), (vec![], None));
    }

    #[test]
    fn each_reason_not_to_hold_a_rate_is_told() {
        let good = result("x", 1.0);
        assert_eq!(not_held(&good, 1000.0, 99.0, 100.0), None);
        assert_eq!(not_held(&good, 2000.0, 50.0, 100.0), None);
        assert!(not_held(&good, 2000.0, 99.0, 100.0).unwrap().contains("only 1,000/s came"));
        assert!(not_held(&good, 1000.0, 99.0, 0.5).unwrap().contains("p99 was 1.00 ms"));
        let mut failed = good.clone();
        failed.errors.insert("2".into(), 3);
        assert!(not_held(&failed, 1000.0, 99.0, 100.0).unwrap().contains("3 messages failed"));
        let mut late = good;
        late.never_sent = 4;
        assert!(not_held(&late, 1000.0, 99.0, 100.0).unwrap().contains("4 messages never left"));
    }

    #[test]
    fn the_table_has_a_line_for_each_step_under_its_maximum() {
        let steps = [25.0, 95.0].map(|percent| Step { percent, rate: percent * 40.0, result: result("x", 1.0) });
        let closed = Some(result("x", 1.0));
        let ladder = Ladder { version: "0", maximum: 4000.0, closed, tries: vec![], steps: steps.into(), cut: None };
        let text = table(&ladder);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(section(&ladder).finish().matches("<polyline").count(), 2 * PERCENTILES.len());
        assert_eq!(lines[0], "maximum held: 4,000 messages/s (closed loop: 1,000)");
        assert_eq!(lines.len(), 4, "{text}");
        assert!(lines[3].trim_start().starts_with("95 %") && lines[3].contains("3,800"), "{text}");
    }
}
