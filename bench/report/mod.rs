//! `kerolox-bench report`: results of runs as one HTML page that needs nothing else.
//!
//! Each result gets a colour, and keeps it through the page: the table, latencies over the percentile, rate and
//! latencies over time, what a flush costs where both kinds of run are there, errors, and the conditions. The page has
//! no script and fetches nothing, so it can be mailed, archived and opened in ten years.

mod chart;
mod curves;
mod facts;
mod figures;
mod flush;
mod markup;
mod page;
mod series;
mod table;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub use chart::{Axis, COLOURS, Dot, DotChart, Line, LineChart, Marks, Scale, Stroke, legend};
pub use figures::{count, ms, rate, ratio};
pub use markup::Markup;
pub use page::of_runs;

use serde_json::Value;

use crate::cli;
use crate::machine::Machine;
use crate::measure::{Stop, say, write};
use crate::result::{RunResult, Total};

/// How far up the percentiles the tables go; the greatest follows.
pub const PERCENTILES: [f64; 5] = [50.0, 90.0, 99.0, 99.9, 99.99];

/// Make one HTML page of the results of several runs
#[derive(Debug, clap::Args)]
#[command(
    verbatim_doc_comment,
    after_help = "\
A result without its machine block is refused: a latency means nothing without the device, kernel and settings behind it.

Exit codes:
  0  the page is written
  1  a file cannot be read or written
  2  a file is no result, or a result without its machine block

Examples:
  kerolox-bench report async.json sync.json --out report.html
  kerolox-bench report compare.json other/*.json --title \"p99 on the new disks\""
)]
pub struct Args {
    /// Results, as `run`, `compare`, `ladder` and `soak` write them with --json
    #[arg(required = true, value_name = "JSON")]
    results: Vec<PathBuf>,
    /// The page
    #[arg(long, value_name = "FILE", default_value = "report.html")]
    out: PathBuf,
    /// Its headline
    #[arg(long, value_name = "TEXT", default_value = "How the broker took its load")]
    title: String,
}

pub fn run(args: &Args) -> ExitCode {
    let mut runs = Vec::new();
    for path in &args.results {
        match read(path, runs.len()) {
            Ok(found) => runs.extend(found),
            Err((code, why)) => {
                eprintln!("kerolox-bench: {}: {why}", path.display());
                return ExitCode::from(code);
            }
        }
    }
    name_apart(&mut runs);
    if let Err(why) = write(&args.out, &of_runs(&args.title, Markup::new(), &runs)) {
        eprintln!("kerolox-bench: {why}");
        return ExitCode::from(cli::EXIT_FAILURE);
    }
    match say(&format!("{}: {} runs; open it in a browser\n", args.out.display(), runs.len())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => Stop::from(why).tell(),
    }
}

/// One result as a page shows it.
pub struct Run {
    /// Unlike that of every other run of the page.
    pub name: String,
    /// What its colour stands for; runs of one group share it.
    pub group: String,
    pub colour: usize,
    pub result: RunResult,
    pub machine: Machine,
}

impl Run {
    /// A run whose machine block is whole, in a group of its own.
    ///
    /// # Errors
    /// Says what is wrong with the block.
    pub fn new(name: String, colour: usize, result: RunResult) -> Result<Run, String> {
        let machine = Machine::of_result(&result.machine)?;
        Ok(Run { group: name.clone(), name, colour, result, machine })
    }

    /// Puts it into a group.
    pub fn of_group(mut self, group: &str) -> Run {
        self.group = group.to_owned();
        self
    }

    /// Lines of the first groups are solid; further ones have the same colours again, and so other lines.
    fn stroke(&self) -> Stroke {
        if self.colour < COLOURS { Stroke::Solid } else { Stroke::Dashed }
    }

    /// "sync" or "async", if the broker said it.
    fn flush(&self) -> Option<&str> {
        self.machine.broker.as_ref()?.flush.as_deref()
    }
}

/// The runs of a file, coloured from `colour` on; or the exit code and what is wrong.
fn read(path: &Path, colour: usize) -> Result<Vec<Run>, (u8, String)> {
    let text = fs::read_to_string(path).map_err(|error| (cli::EXIT_FAILURE, error.to_string()))?;
    let no_result = |error| {
        (cli::EXIT_USAGE, format!("this is no result of kerolox-bench's run, compare, ladder or soak: {error}"))
    };
    let value: Value = serde_json::from_str(&text).map_err(no_result)?;
    let run = |(index, value): (usize, Value)| {
        let result: RunResult = serde_json::from_value(value).map_err(no_result)?;
        let name = match result.label.as_str() {
            "" => path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
            label => label.to_owned(),
        };
        let run = Run::new(name, colour + index, result);
        run.map_err(|why| (cli::EXIT_USAGE, format!("{why}; run the load again with this kerolox-bench")))
    };
    results_in(value).into_iter().enumerate().map(run).collect()
}

/// The results in what a subcommand has written: a comparison's of both brokers, a ladder's steps, a soak's one.
fn results_in(mut value: Value) -> Vec<Value> {
    let mut taken = |key: &str| match value.get_mut(key).map(Value::take) {
        Some(Value::Array(values)) => values,
        _ => Vec::new(),
    };
    let (a, b, steps) = (taken("a"), taken("b"), taken("steps"));
    let of_steps = steps.into_iter().filter_map(|mut step| step.get_mut("result").map(Value::take));
    let several: Vec<Value> = a.into_iter().chain(b).chain(of_steps).collect();
    match value.get_mut("result").map(Value::take) {
        _ if !several.is_empty() => several,
        Some(result) => vec![result],
        None => vec![value],
    }
}

/// Gives runs of one name numbers.
fn name_apart(runs: &mut [Run]) {
    let names: Vec<String> = runs.iter().map(|run| run.name.clone()).collect();
    for (index, name) in names.iter().enumerate() {
        if names.iter().filter(|other| *other == name).count() > 1 {
            let number = names[..index].iter().filter(|other| *other == name).count() + 1;
            runs[index].name = format!("{name} ({number})");
            runs[index].group.clone_from(&runs[index].name);
        }
    }
}

/// What was timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Publish,
    EndToEnd,
    Pull,
}

impl Kind {
    pub const ALL: [Kind; 3] = [Kind::Publish, Kind::EndToEnd, Kind::Pull];

    /// How rows of a table begin.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Publish => "send",
            Kind::EndToEnd => "end to end",
            Kind::Pull => "pull",
        }
    }

    pub fn title(self) -> &'static str {
        match self {
            Kind::Publish => "Send latency",
            Kind::EndToEnd => "End-to-end latency",
            Kind::Pull => "Pull latency",
        }
    }

    fn explanation(self) -> &'static str {
        match self {
            Kind::Publish => {
                "From the time at which a message was meant to leave to its acknowledgement: a broker that stalls is \
                 charged for every message that waited meanwhile. In a closed loop, from the moment it was put together."
            }
            Kind::EndToEnd => {
                "From the time at which a message was meant to leave to its arrival at a consumer that waited for it."
            }
            Kind::Pull => "From a pull to its answer, of pulls that brought messages at once.",
        }
    }

    /// Latencies of the whole run, ms.
    pub fn total(self, result: &RunResult) -> Option<&Total<f64>> {
        match self {
            Kind::Publish => result.aggregated_publish_latency.as_ref(),
            Kind::EndToEnd => result.aggregated_end_to_end_latency.as_ref(),
            Kind::Pull => result.aggregated_pull_latency.as_ref(),
        }
    }
}

/// The latency at a percentile, ms: that of the first point of the curve at or above it.
pub fn at(total: &Total<f64>, percentile: f64) -> f64 {
    let points = &total.quantiles.0;
    let point = points.iter().find(|(found, _)| *found >= percentile - 1e-9);
    point.map_or(total.max, |(_, value)| *value)
}

/// Messages a second over the whole run: of sends, or of a run that only reads what it read.
pub fn rate_of(result: &RunResult) -> f64 {
    if result.plan.workload.sends() { result.rate } else { result.consumed_rate }
}

/// How a percentile is written: `p99.9`.
pub fn percentile(value: f64) -> String {
    format!("p{value}")
}

#[cfg(test)]
pub mod tests;
