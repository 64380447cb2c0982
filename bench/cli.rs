//! The options that describe a load, shared by all subcommands that run one.

use std::process::ExitCode;

use clap::Args;

use crate::load::sizes::Sizes;
use crate::load::{Extent, Header, Pace, Plan, Rate, Target, Workload};
use crate::machine::process_of;

pub const EXIT_CODES: &str = "\
Exit codes:
  0  done, every message answered with success
  1  failed: the broker cannot be reached or is gone, a file cannot be written
  2  wrong usage; trying again without a change cannot help
  3  done, but some messages failed (see the table's errors)";

/// The broker cannot be reached or is gone, or a file cannot be written.
pub const EXIT_FAILURE: u8 = 1;
/// The options or the topics are not as needed; clap uses the same number.
pub const EXIT_USAGE: u8 = 2;
/// Measured, but some messages failed.
pub const EXIT_ERRORS: u8 = 3;

/// Says why the options do not fit.
pub fn usage(why: &str) -> ExitCode {
    eprintln!("kerolox-bench: {why}");
    ExitCode::from(EXIT_USAGE)
}

const WARMUP_SECONDS: f64 = 5.0;

/// Where to; one of the two.
#[derive(Clone, Debug, Args)]
#[group(required = true, multiple = false)]
struct TargetArgs {
    /// HOST:PORT of a broker
    #[arg(long, value_name = "ADDR")]
    broker: Option<String>,
    /// HOST:PORT of a name server; the load goes to all masters that it knows
    #[arg(long, value_name = "ADDR")]
    namesrv: Option<String>,
}

impl TargetArgs {
    fn target(&self) -> Target {
        match (&self.broker, &self.namesrv) {
            (Some(broker), _) => Target::Broker(broker.clone()),
            (None, Some(namesrv)) => Target::NameServer(namesrv.clone()),
            (None, None) => unreachable!("clap demands one of the two"),
        }
    }
}

/// The broker of a load.
#[derive(Clone, Debug, Args)]
pub struct BrokerArgs {
    #[command(flatten)]
    target: TargetArgs,
    /// Names the broker in the results
    #[arg(long, default_value = "")]
    pub label: String,
    /// The broker's process: its processor time a message and its memory are measured [default: on the loopback, whoever listens there]
    #[arg(long)]
    pid: Option<u32>,
}

impl BrokerArgs {
    /// What `load` is with this broker.
    ///
    /// # Errors
    /// Says which options do not go together.
    pub fn plan(&self, load: &LoadArgs) -> Result<Plan, String> {
        let target = self.target.target();
        let pid = self.pid.or_else(|| process_of(&target));
        load.plan(target, &self.label, pid)
    }
}

/// What to do to it.
#[derive(Clone, Debug, Args)]
pub struct LoadArgs {
    /// What to do
    #[arg(long, value_enum, default_value = "send")]
    pub workload: Workload,
    /// Open loop: messages a second (12000), or a ramp over the measured time (1000-20000) [default: closed loop]
    #[arg(long, value_name = "N[-N]", conflicts_with = "depth")]
    pub rate: Option<Rate>,
    /// Closed loop: requests under way on each connection
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub depth: u32,
    /// Bytes of a body: 1KiB, uniform:100-4000, or 256:70,1024:20,16KiB:10 (size:weight)
    #[arg(long, value_name = "SIZES", default_value = "1KiB")]
    pub size: Sizes,
    /// Connections that send
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=16_384))]
    pub connections: u32,
    /// Connections that pull
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16_384))]
    pub pull_connections: u32,
    /// Name of the topic; with --topics, "-0", "-1" and so on follow
    #[arg(long, default_value = "kerolox-bench")]
    pub topic: String,
    /// How many topics
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub topics: u32,
    /// Queues of each topic on each broker
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub queues: u32,
    /// Do not make the topics; they are there
    #[arg(long)]
    pub no_create: bool,
    /// Give messages one of so many tags
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub tags: u32,
    /// Give each message a key of its own
    #[arg(long)]
    pub keys: bool,
    /// Leave out the UNIQ_KEY that clients give each message
    #[arg(long)]
    pub no_uniq_key: bool,
    /// Messages in a request; above 1 they go as a batch
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub batch: u32,
    /// How headers are written
    #[arg(long, value_enum, default_value = "json")]
    pub header: Header,
    /// Seconds before measuring starts [default: 5; workload pull without --again: 0]
    #[arg(long, value_name = "SECONDS")]
    pub warmup: Option<f64>,
    /// Seconds to measure
    #[arg(long, value_name = "SECONDS", default_value_t = 20.0, conflicts_with = "count")]
    pub duration: f64,
    /// Measure so many messages instead
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Threads of the generator
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub threads: u32,
    /// Cores for the threads, in turn: 0,2 [default: any]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub cores: Vec<usize>,
    /// Poll instead of sleeping until the next send: the most precise, at the price of a whole core a thread
    #[arg(long)]
    pub spin: bool,
    /// Seconds of an interval of the time series and of the live line
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    pub interval: f64,
    /// A request without an answer for so long counts as failed
    #[arg(long, value_name = "MS", default_value_t = 3000, value_parser = clap::value_parser!(u64).range(1..=600_000))]
    pub timeout_ms: u64,
    /// Open loop: the most requests under way on a connection; beyond it the schedule waits, and falls behind
    #[arg(long, value_name = "N", default_value_t = 8192, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub in_flight_max: u32,
    /// The most messages that a pull asks for
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub pull_messages: u32,
    /// Workload pull: start at the oldest message again once all are read, until the time is over
    #[arg(long)]
    pub again: bool,
    /// Look at the checksum of each message that comes to a consumer
    #[arg(long)]
    pub check: bool,
    /// Of the bytes in bodies and the order of sizes
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

impl LoadArgs {
    /// The load as a plan. `label` names it in results; `pid` is the broker's process.
    ///
    /// # Errors
    /// A text that says which options do not go together.
    pub fn plan(&self, target: Target, label: &str, pid: Option<u32>) -> Result<Plan, String> {
        let plan = Plan {
            label: label.to_owned(),
            target,
            workload: self.workload,
            pace: match self.rate {
                Some(rate) => Pace::Open { rate },
                None => Pace::Closed { depth: self.depth },
            },
            sizes: self.size.clone(),
            topic: self.topic.clone(),
            topics: self.topics,
            queues: self.queues,
            create: !self.no_create,
            connections: self.connections,
            pull_connections: self.pull_connections,
            tags: self.tags,
            keys: self.keys,
            uniq_key: !self.no_uniq_key,
            batch: self.batch,
            header: self.header,
            warmup_seconds: self.warmup.unwrap_or(match self.workload {
                Workload::Pull if !self.again => 0.0,
                _ => WARMUP_SECONDS,
            }),
            extent: self.count.map_or(Extent::Seconds(self.duration), Extent::Messages),
            threads: self.threads,
            cores: self.cores.clone(),
            spin: self.spin,
            interval_seconds: self.interval,
            timeout_ms: self.timeout_ms,
            in_flight_max: self.in_flight_max,
            pull_messages: self.pull_messages,
            again: self.again,
            check: self.check,
            pid,
            seed: self.seed,
        };
        plan.check().map(|()| plan)
    }
}
