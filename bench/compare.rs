//! `kerolox-bench compare`: two brokers in turn under the same load, several rounds, and their ratios with the spread.
//!
//! One run of each says little: a machine's other work, a cache that is warm by now, a disk that is tidying up. So the
//! brokers take turns, the order changes every round, and each round gives one ratio; what is told is their median and
//! the lowest and the highest. Brokers that would share cores or a disk are started and stopped by commands, so that
//! only the one whose turn it is runs.

mod ratios;
mod side;

use std::fmt::Display;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;

use crate::cli::{self, LoadArgs};
use crate::load::{Failure, Target, stop};
use crate::machine::{MachineArgs, process_at};
use crate::measure::{self, Stop, check_files, is_clean, measure, say, to_its_end, write_json};
use crate::report::{self, Axis, Dot, DotChart, Markup, Run, Scale, Stroke, count, legend, ratio};
use crate::result::RunResult;
use ratios::Row;
use side::{Named, Side};

pub use side::stop_on_signals;

/// Load two brokers in turn and tell how they compare
#[derive(Debug, clap::Args)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Each round loads both brokers, one after the other, in changing order, and gives one ratio A / B of every figure. Told are
the median of the rounds and, in brackets, the lowest and the highest. Latencies below ×1 are better for A, rates above.

With --a-command and --b-command only the broker whose turn it is runs: the command is given to `sh -c`, is waited for
until the broker answers, and gets SIGTERM, with all that it started, after the turn. It decides what store its broker
gets; `rm -rf` of the last one in front makes the rounds alike.

Ctrl-C, and a broker that fails, end the comparison: it tells what the rounds gave that were finished, and that there
should have been more. A second Ctrl-C ends the program.

Exit codes:
  0  done, every message answered with success
  1  failed: a broker cannot be started or reached, a file cannot be written; or stopped
  2  wrong usage; trying again without a change cannot help
  3  done, but some messages failed or could not be sent in time

Examples:
  kerolox-bench compare --a 127.0.0.1:10911 --b 127.0.0.1:20911 --rate 12000
  kerolox-bench compare --a async=127.0.0.1:10911 --a-command 'exec kerolox serve --config async.toml' \\
      --b sync=127.0.0.1:10911 --b-command 'exec kerolox serve --config sync.toml' --rounds 5 --html compare.html"
)]
pub struct Args {
    /// The first broker: HOST:PORT, or a name for it and HOST:PORT
    #[arg(long, value_name = "[LABEL=]ADDR")]
    a: Named,
    /// The second broker
    #[arg(long, value_name = "[LABEL=]ADDR")]
    b: Named,
    /// How often each is loaded
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Starts the first broker before each of its turns
    #[arg(long, value_name = "COMMAND")]
    a_command: Option<String>,
    /// Starts the second broker before each of its turns
    #[arg(long, value_name = "COMMAND")]
    b_command: Option<String>,
    /// How long a command's broker may take until it answers
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    start_timeout: u64,
    /// Rest before each turn, for a disk that still writes
    #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=3600))]
    rest: u64,
    /// All results and ratios, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The same as one page to look at
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    #[command(flatten)]
    machine: MachineArgs,
    #[command(flatten)]
    load: LoadArgs,
}

/// What a comparison gives.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Comparison {
    version: &'static str,
    /// Those that were finished.
    rounds: u32,
    /// How many there should have been, if there are fewer.
    #[serde(skip_serializing_if = "Option::is_none")]
    stopped_of: Option<u32>,
    /// Why there are no more.
    #[serde(skip)]
    cut: Option<Stop>,
    /// Ratios are A / B, of the two runs of a round.
    rows: Vec<Row>,
    a: Vec<RunResult>,
    b: Vec<RunResult>,
}

pub fn run(args: &Args) -> ExitCode {
    let (mut a, mut b) = (args.a.clone(), args.b.clone());
    a.name_apart_from(&mut b);
    let timeout = Duration::from_secs(args.start_timeout);
    let a = Side::new(a, args.a_command.clone(), timeout);
    let b = Side::new(b, args.b_command.clone(), timeout);
    if let Err(why) = args.load.plan(Target::Broker(a.address().to_owned()), a.label(), None) {
        return cli::usage(&why);
    }
    let comparison = check_files(&[&args.json, &args.html]).and_then(|()| rounds(args, &a, &b));
    match comparison.and_then(|comparison| written(args, a.label(), b.label(), comparison)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(cli::EXIT_ERRORS),
        Err(stop) => stop.tell(),
    }
}

fn rounds(args: &Args, a: &Side, b: &Side) -> Result<Comparison, Stop> {
    let (mut of_a, mut of_b) = (Vec::new(), Vec::new());
    let mut cut = None;
    'rounds: for round in 1..=args.rounds {
        let mut turns = [(a, &mut of_a), (b, &mut of_b)];
        // Whoever is second finds the machine as the first one left it; so they change places.
        if round % 2 == 0 {
            turns.reverse();
        }
        for (side, results) in turns {
            match turn(args, side, round) {
                Ok(result) => results.push(result),
                Err(stop) => {
                    cut = Some(stop.during(format_args!("round {round}, {}", side.label())));
                    break 'rounds;
                }
            }
        }
    }
    // One broker's turn is no round.
    let finished = of_a.len().min(of_b.len());
    of_a.truncate(finished);
    of_b.truncate(finished);
    match cut {
        Some(cut) if finished == 0 => Err(cut.during("no round was finished, so there is nothing to compare")),
        // The rounds before it took their time, and are as good as ever.
        cut => Ok(Comparison {
            version: env!("CARGO_PKG_VERSION"),
            rounds: u32::try_from(finished).expect("no more than there should be"),
            stopped_of: cut.is_some().then_some(args.rounds),
            cut: cut.map(|cut| cut.during(stopped(finished, args.rounds))),
            rows: ratios::rows(&of_a, &of_b),
            a: of_a,
            b: of_b,
        }),
    }
}

fn stopped(finished: impl Display, of: u32) -> String {
    format!("stopped after {finished} of {of} rounds")
}

/// One broker's turn, after a rest: started, if there is a command for it, loaded, and stopped.
fn turn(args: &Args, side: &Side, round: u32) -> Result<RunResult, Stop> {
    stop::sleep(Duration::from_secs(args.rest));
    if stop::is_wanted() {
        return Err(Stop::from(stop::INTERRUPTED.to_owned()));
    }
    eprintln!("round {round} of {}: {} on {}", args.rounds, side.label(), side.address());
    let started = side.start()?;
    let target = Target::Broker(side.address().to_owned());
    let plan = args.load.plan(target, side.label(), process_at(side.address()));
    let result = plan.map_err(Failure::Plan).and_then(|plan| measure(&plan, &args.machine, &mut |_| {}));
    // It is stopped even if its load failed; but then that is what the user must hear of.
    let stopped = started.map_or(Ok(()), |broker| broker.stop());
    let result = to_its_end(result?)?;
    stopped?;
    Ok(result)
}

/// Prints the table and writes what was asked for; whether every message was sent and answered with success.
fn written(args: &Args, a: &str, b: &str, mut comparison: Comparison) -> Result<bool, Stop> {
    let said = say(&table(a, b, &comparison));
    if let Some(path) = &args.json {
        write_json(path, &comparison)?;
    }
    let cut = comparison.cut.take();
    let clean = comparison.a.iter().chain(&comparison.b).all(is_clean);
    if let Some(path) = &args.html {
        measure::write(path, &page(a, b, comparison)?)?;
    }
    said?;
    cut.map_or(Ok(clean), Err)
}

/// The comparison as text in columns.
fn table(a: &str, b: &str, comparison: &Comparison) -> String {
    let mut lines = vec![[String::new(), a.to_owned(), b.to_owned(), format!("{a} / {b}")]];
    for row in &comparison.rows {
        let figure = |value| row.figure(value);
        lines.push([row.name.clone(), row.a.told(figure), row.b.told(figure), row.ratio.told(ratio)]);
    }
    let failed = |results: &[RunResult]| count(results.iter().flat_map(|it| it.errors.values()).sum());
    lines.push(["errors".to_owned(), failed(&comparison.a), failed(&comparison.b), String::new()]);
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths = [0, 1, 2, 3].map(width);
    let line = |line: &[String; 4]| {
        let [name, a, b, ratio] = line;
        let text = format!("{name:<0$}  {a:>1$}  {b:>2$}  {ratio:>3$}", widths[0], widths[1], widths[2], widths[3]);
        text.trim_end().to_owned() + "\n"
    };
    let mut rounds = format!("median (lowest – highest) of {} rounds", comparison.rounds);
    if let Some(of) = comparison.stopped_of {
        rounds += &format!("; {}", stopped(comparison.rounds, of));
    }
    rounds += "\n";
    rounds + &lines.iter().map(line).collect::<String>()
}

fn page(a: &str, b: &str, comparison: Comparison) -> Result<String, String> {
    let mut first = Markup::new();
    first.leaf("h2", &[], "Ratios");
    if let Some(of) = comparison.stopped_of {
        first.leaf("p", &[], &format!("This comparison was {}.", stopped(comparison.rounds, of)));
    }
    let text = format!(
        "{a} divided by {b}: the median of {} rounds, and a line from the lowest to the highest. Below ×1 a latency of {a} \
         is the better one; for the rate it is above.",
        comparison.rounds
    );
    first.leaf("p", &[("class", "soft")], &text);
    let values = comparison.rows.iter().flat_map(|row| [row.ratio.low, row.ratio.high]);
    let axis = Axis::holding("ratio, logarithmic", Scale::Log, values).with(0.9).with(1.1);
    let rows = comparison.rows.iter().map(|row| {
        let told = format!("{}: {}", row.name, row.ratio.told(ratio));
        let spread = Some((row.ratio.low, row.ratio.high));
        (row.short_name().to_owned(), vec![Dot { colour: 6, lane: 0, value: row.ratio.median, spread, told }])
    });
    first.open("figure", &[]);
    let title = format!("{a} / {b}");
    legend(&mut first, [(6, Stroke::Solid, title.as_str())].into_iter());
    let description = format!("Ratios of {a} to {b}");
    DotChart { description, axis, rows: rows.collect(), reference: Some(1.0) }.draw(&mut first);
    first.close();
    first.open("div", &[("class", "scroll")]).open("table", &[]);
    first.open("thead", &[]).open("tr", &[]);
    for title in ["figure", &title, a, b] {
        first.leaf("th", &[], title);
    }
    first.close().close().open("tbody", &[]);
    for row in &comparison.rows {
        let figure = |value| row.figure(value);
        first.open("tr", &[]).leaf("th", &[], &row.name);
        first.leaf("td", &[], &row.ratio.told(ratio));
        first.leaf("td", &[], &row.a.told(figure)).leaf("td", &[], &row.b.told(figure)).close();
    }
    first.close().close().close();

    let mut runs = Vec::new();
    for (colour, label, results) in [(0, a, comparison.a), (1, b, comparison.b)] {
        for (index, result) in results.into_iter().enumerate() {
            let name = format!("{label}, round {}", index + 1);
            runs.push(Run::new(name, colour, result)?.of_group(label));
        }
    }
    Ok(report::of_runs(&format!("{a} against {b}"), first, &runs))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::result;

    fn comparison() -> Comparison {
        let (a, b) = (vec![result("a", 1.0), result("a", 3.0)], vec![result("b", 2.0), result("b", 2.0)]);
        Comparison { version: "0", rounds: 2, stopped_of: None, cut: None, rows: ratios::rows(&a, &b), a, b }
    }

    #[test]
    fn the_table_has_a_line_for_each_figure_and_the_spread_of_the_rounds() {
        let text = table("left", "right", &comparison());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "median (lowest – highest) of 2 rounds");
        assert!(lines[1].trim_start().starts_with("left") && lines[1].ends_with("left / right"), "{text}");
        let p50 = lines.iter().find(|line| line.starts_with("send p50")).expect("a line for p50");
        assert!(p50.ends_with("×1.00 (×0.50 – ×1.50)"), "{text}");
        assert!(lines.iter().any(|line| line.starts_with("errors")), "{text}");
    }

    #[test]
    fn what_was_stopped_says_after_how_many_rounds() {
        let stopped = || Comparison { stopped_of: Some(7), ..comparison() };
        for text in [table("a", "b", &stopped()), page("a", "b", stopped()).unwrap()] {
            assert!(text.contains("stopped after 2 of 7 rounds"), "{text}");
        }
    }

    #[test]
    fn the_page_shows_both_sides_in_two_colours_however_many_rounds() {
        let text = page("<left>", "right", comparison()).unwrap();
        assert!(text.contains("&lt;left&gt;, round 2") && !text.contains("<left>"));
        assert!(text.contains("line c0") && text.contains("line c1") && !text.contains("line c2"));
    }
}
