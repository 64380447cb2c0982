//! `kerolox-bench run`: one load, one result.

use std::path::PathBuf;
use std::process::ExitCode;

use hdrhistogram::Histogram;

use crate::cli::{self, BrokerArgs, LoadArgs};
use crate::load::{self, Event, Extent, Failure, Plan, Target, Workload, stop};
use crate::machine::{Machine, MachineArgs};
use crate::measure::{Stop, check_files, is_clean, load_watched, say, write_json};
use crate::result::{Ceiling, RunResult};
use crate::sink::{Kind, Started};
use crate::{hgrm, table};

/// The sink needs no long run: nothing in it changes with time.
const SINK_SECONDS: f64 = 10.0;
const SINK_WARMUP_SECONDS: f64 = 2.0;

/// Run one load and print what it measured
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment, after_help = format!("\
Examples:
  kerolox-bench run --broker 127.0.0.1:10911 --connections 8 --depth 64            the most it can take
  kerolox-bench run --broker 127.0.0.1:10911 --rate 12000 --json a.json            latencies at a fixed rate
  kerolox-bench run --namesrv 127.0.0.1:9876 --workload e2e --rate 12000 --spin    from sender to reader
  kerolox-bench run --broker 127.0.0.1:10911 --workload pull                       how fast all of it is read

Ctrl-C ends the load and prints what was measured until then; a second one ends the program.

{}", cli::EXIT_CODES))]
pub struct Args {
    #[command(flatten)]
    broker: BrokerArgs,
    #[command(flatten)]
    load: LoadArgs,
    /// Run the same load against this program's own sink afterwards. Bare, it shows the most that the generator can show;
    /// decoding, the most that a broker could that did nothing but read its requests
    #[arg(long, value_name = "KIND", value_enum, num_args = 0..=1, require_equals = true, default_missing_value = "bare")]
    sink: Option<Kind>,
    /// Core for the sink: one of the broker's [default: any]
    #[arg(long, value_name = "N", requires = "sink")]
    sink_core: Option<usize>,
    /// Write the result as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write percentiles for HdrHistogram's plotters, a file for each kind of latency: FILE-publish.hgrm and so on
    #[arg(long, value_name = "FILE")]
    hgrm: Option<PathBuf>,
    #[command(flatten)]
    machine: MachineArgs,
}

pub fn run(args: &Args) -> ExitCode {
    let plan = match args.broker.plan(&args.load) {
        Ok(plan) => plan,
        Err(why) => return cli::usage(&why),
    };
    match answer(args, &plan) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(cli::EXIT_ERRORS),
        Err(stop) => stop.tell(),
    }
}

/// Carries it out; whether every message was sent and answered with success.
fn answer(args: &Args, plan: &Plan) -> Result<bool, Stop> {
    let hgrm = args.hgrm.as_ref().map(|base| hgrm::path(base, "publish"));
    check_files(&[&args.json, &hgrm])?;
    let machine = Machine::look(&args.machine, plan);
    let mut sums = Sums::default();
    let mut result = measure(plan, &mut sums)?;
    result.machine = machine.to_json();
    // What was measured is told whatever becomes of the sink.
    let ceiling = match args.sink {
        Some(_) if result.ended_early.is_some() => {
            eprintln!("kerolox-bench: the load ended early, so the sink was not measured");
            Ok(None)
        }
        Some(kind) => ceiling(plan, args.sink_core, kind).map(Some),
        None => Ok(None),
    };
    let ceiling = ceiling.map(|found| result.sink = found);
    let said = say(&table::text(&result));
    if let Some(path) = &args.json {
        write_json(path, &result)?;
    }
    if let Some(base) = &args.hgrm {
        for (kind, histogram) in sums.kinds().into_iter().filter(|(_, histogram)| !histogram.is_empty()) {
            let path = hgrm::path(base, kind);
            hgrm::write_file(&path, histogram)
                .map_err(|error| format!("{} cannot be written: {error}", path.display()))?;
        }
    }
    said?;
    ceiling.map_err(|failure| Stop::from(failure).during("the sink"))?;
    match &result.ended_early {
        // Whoever interrupts a load knows it.
        Some(why) if !stop::is_wanted() => Err(Stop::from(why.clone())),
        _ => Ok(is_clean(&result)),
    }
}

/// The same load against a sink in a process of its own.
///
/// # Errors
/// [`Failure`] if it cannot be started, or as for any load.
fn ceiling(plan: &Plan, core: Option<usize>, kind: Kind) -> Result<Ceiling, Failure> {
    let sink =
        Started::on(core, kind).map_err(|error| Failure::Host(format!("the sink cannot be started: {error}")))?;
    let plan = Plan {
        label: "sink".to_owned(),
        target: Target::Broker(sink.address.clone()),
        // It keeps nothing that a reader could wait for.
        workload: if plan.workload.sends() { Workload::Send } else { Workload::Pull },
        warmup_seconds: plan.warmup_seconds.min(SINK_WARMUP_SECONDS),
        extent: match plan.extent {
            Extent::Seconds(seconds) => Extent::Seconds(seconds.min(SINK_SECONDS)),
            messages => messages,
        },
        pid: None,
        ..plan.clone()
    };
    let result = measure(&plan, &mut Sums::default())?;
    if let Some(why) = result.ended_early {
        return Err(Failure::Peer(why));
    }
    let latency = result.aggregated_publish_latency.or(result.aggregated_pull_latency);
    let latency = latency.ok_or_else(|| Failure::Peer("the sink answered nothing".to_owned()))?;
    Ok(Ceiling {
        kind,
        rate: if plan.workload.sends() { result.rate } else { result.consumed_rate },
        latency_50pct: latency.p50,
        latency_99pct: latency.p99,
        latency_999pct: latency.p99_9,
        behind_ms_max: result.behind_ms_max,
        generator_cpu_micros_per_message: result.generator_cpu_micros_per_message,
    })
}

/// Latencies of the whole measured time.
struct Sums {
    publish: Histogram<u64>,
    end_to_end: Histogram<u64>,
    pull: Histogram<u64>,
}

impl Default for Sums {
    fn default() -> Sums {
        Sums { publish: load::histogram(), end_to_end: load::histogram(), pull: load::histogram() }
    }
}

impl Sums {
    fn kinds(&self) -> [(&'static str, &Histogram<u64>); 3] {
        [("publish", &self.publish), ("end-to-end", &self.end_to_end), ("pull", &self.pull)]
    }
}

fn measure(plan: &Plan, sums: &mut Sums) -> Result<RunResult, Failure> {
    load_watched(plan, &mut |event| {
        if let Event::Measured(interval) = event {
            for (sum, part) in [
                (&mut sums.publish, interval.publish),
                (&mut sums.end_to_end, interval.end_to_end),
                (&mut sums.pull, interval.pull),
            ] {
                sum.add(part).expect("all have the same bounds");
            }
        }
    })
}
