//! What a load is: every setting of it, checked, so that a result can carry it and another run can repeat it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::sizes::Sizes;

/// All settings of one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    pub label: String,
    pub target: Target,
    pub workload: Workload,
    pub pace: Pace,
    pub sizes: Sizes,
    /// Name of the topic; with several a number follows: `T-0`, `T-1` …
    pub topic: String,
    pub topics: u32,
    /// Queues of each topic on each broker.
    pub queues: u32,
    /// Make the topics; else they must be there.
    pub create: bool,
    /// Connections that send.
    pub connections: u32,
    /// Connections that pull.
    pub pull_connections: u32,
    /// So many different tags; 0: none.
    pub tags: u32,
    /// Each message has a key of its own (`KEYS`).
    pub keys: bool,
    /// Each message has a `UNIQ_KEY`, as clients give it.
    pub uniq_key: bool,
    /// Messages in a request; above 1 by SEND_BATCH_MESSAGE.
    pub batch: u32,
    pub header: Header,
    pub warmup_seconds: f64,
    pub extent: Extent,
    pub threads: u32,
    /// Cores for the threads, in turn; empty: wherever the kernel puts them.
    pub cores: Vec<usize>,
    /// Poll instead of sleeping until the next send.
    pub spin: bool,
    pub interval_seconds: f64,
    /// A request without an answer for so long counts as failed.
    pub timeout_ms: u64,
    /// Open loop: the most requests under way on a connection; the schedule waits beyond it.
    pub in_flight_max: u32,
    /// The most messages that a pull asks for.
    pub pull_messages: u32,
    /// Workload `pull`: start again at the oldest message once all were read, until the time is over.
    pub again: bool,
    /// Look at the checksum of each message that comes to a consumer.
    pub check: bool,
    /// The broker's process, for its processor time and memory.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pid: Option<u32>,
    /// Of the bytes in bodies and of the order of sizes.
    pub seed: u64,
}

/// Where the load goes; `HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Target {
    Broker(String),
    /// All masters that this name server knows.
    NameServer(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Workload {
    /// Send only
    Send,
    /// Read what is there from the oldest message on, as fast as it comes
    Pull,
    /// Send, and read at the end by long polling; latency from the intended send time to the reader
    E2e,
    /// e2e, and beside it a reader that begins at the oldest message again and again
    Mixed,
}

impl Workload {
    pub fn sends(self) -> bool {
        self != Workload::Pull
    }

    /// Reads at the end of the queues, by long polling.
    pub fn tails(self) -> bool {
        matches!(self, Workload::E2e | Workload::Mixed)
    }

    /// Reads from the oldest message on.
    pub fn catches_up(self) -> bool {
        matches!(self, Workload::Pull | Workload::Mixed)
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Workload::Send => "send",
            Workload::Pull => "pull",
            Workload::E2e => "e2e",
            Workload::Mixed => "mixed",
        })
    }
}

/// When requests are sent.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Pace {
    /// So many requests under way on each connection: the next goes out when one is answered. Finds the maximum.
    Closed { depth: u32 },
    /// By a fixed schedule, whatever the answers do. Finds the latencies.
    Open { rate: Rate },
}

/// Messages a second; rising or falling evenly over the measured time if `to` is another number.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Rate {
    pub from: f64,
    pub to: f64,
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.from == self.to { write!(f, "{}", self.from) } else { write!(f, "{}-{}", self.from, self.to) }
    }
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Rate, String> {
        let number = |text: &str| {
            text.parse::<f64>().ok().filter(|rate| (0.001..=1e9).contains(rate)).ok_or_else(|| {
                format!("{text:?} is no rate; give messages a second (12000), or a ramp of two (1000-20000)")
            })
        };
        match text.split_once('-') {
            None => number(text).map(|rate| Rate { from: rate, to: rate }),
            Some((from, to)) => Ok(Rate { from: number(from)?, to: number(to)? }),
        }
    }
}

impl TryFrom<String> for Rate {
    type Error = String;

    fn try_from(text: String) -> Result<Rate, String> {
        text.parse()
    }
}

impl From<Rate> for String {
    fn from(rate: Rate) -> String {
        rate.to_string()
    }
}

/// How headers are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Header {
    Json,
    Rocketmq,
}

/// How much is measured, after the warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Extent {
    Seconds(f64),
    Messages(u64),
}

/// Bytes at the start of a body that say when it was to be sent and by which run.
pub const STAMP_LEN: u32 = 16;
/// The most messages of a rate that a run can be held to, for a schedule in nanoseconds.
const SECONDS_MAX: f64 = 31_536_000.0;

impl Plan {
    /// Whether the settings go together.
    ///
    /// # Errors
    /// A text that says which do not, and what to change.
    pub fn check(&self) -> Result<(), String> {
        let within = |name: &str, seconds: f64, least: f64| {
            let fits = (least..=SECONDS_MAX).contains(&seconds);
            if fits { Ok(()) } else { Err(format!("--{name} must be {least} to {SECONDS_MAX} seconds, not {seconds}")) }
        };
        within("warmup", self.warmup_seconds, 0.0)?;
        within("interval", self.interval_seconds, 0.01)?;
        if let Extent::Seconds(seconds) = self.extent {
            within("duration", seconds, 0.01)?;
        }
        if self.workload.tails() && self.sizes.min() < STAMP_LEN {
            return Err(format!("--size must be at least {STAMP_LEN} bytes here: bodies carry their send time"));
        }
        if let (Pace::Open { rate: Rate { from, to } }, Extent::Messages(_)) = (self.pace, self.extent)
            && from != to
        {
            return Err("--rate N-N rises over the measured time, so give --duration and not --count".into());
        }
        let longest = u64::from(self.sizes.max()) * u64::from(self.batch);
        if longest > u64::from(super::sizes::BODY_LEN_MAX) {
            return Err(format!("a batch of {} messages of {} bytes fits no frame", self.batch, self.sizes.max()));
        }
        if self.threads > self.connections.max(if self.workload.sends() { 0 } else { self.pull_connections }) {
            return Err(format!("--threads {} needs at least as many connections", self.threads));
        }
        if self.workload == Workload::Pull {
            if let Extent::Messages(_) = self.extent {
                return Err("--count is for sends: a pull ends when all is read, or after --duration".into());
            }
            if self.warmup_seconds > 0.0 && !self.again {
                return Err("--warmup needs --again here: it would read what is to be measured".into());
            }
        }
        if self.topic.is_empty()
            || self.topic.len() > 100
            || self.topic.chars().any(|c| c == '"' || c == '\\' || c <= ' ')
        {
            return Err(format!("{:?} is no topic name", self.topic));
        }
        Ok(())
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A plan that needs no broker, for tests to vary.
    pub fn plan() -> Plan {
        Plan {
            label: "here".into(),
            target: Target::Broker("127.0.0.1:10911".into()),
            workload: Workload::Send,
            pace: Pace::Open { rate: Rate { from: 1000.0, to: 1000.0 } },
            sizes: Sizes::Fixed(1024),
            topic: "T".into(),
            topics: 1,
            queues: 8,
            create: true,
            connections: 8,
            pull_connections: 1,
            tags: 0,
            keys: false,
            uniq_key: true,
            batch: 1,
            header: Header::Json,
            warmup_seconds: 1.0,
            extent: Extent::Seconds(2.0),
            threads: 1,
            cores: vec![],
            spin: false,
            interval_seconds: 1.0,
            timeout_ms: 3000,
            in_flight_max: 8192,
            pull_messages: 32,
            again: false,
            check: false,
            pid: None,
            seed: 1,
        }
    }

    #[test]
    fn a_plan_survives_its_json() {
        for plan in [
            plan(),
            Plan {
                target: Target::NameServer("localhost:9876".into()),
                workload: Workload::Mixed,
                pace: Pace::Closed { depth: 16 },
                sizes: "uniform:100-4000".parse().unwrap(),
                extent: Extent::Messages(7),
                header: Header::Rocketmq,
                cores: vec![1, 3],
                pid: Some(4),
                ..plan()
            },
        ] {
            let text = serde_json::to_string(&plan).unwrap();
            assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), plan, "{text}");
        }
    }

    #[test]
    fn rates_are_numbers_or_ramps() {
        assert_eq!("12000".parse::<Rate>().unwrap(), Rate { from: 12_000.0, to: 12_000.0 });
        assert_eq!("1000-20000".parse::<Rate>().unwrap(), Rate { from: 1000.0, to: 20_000.0 });
        for text in ["", "0", "-5", "1-", "nan", "inf", "1e99", "5-0"] {
            assert!(text.parse::<Rate>().unwrap_err().contains("ramp"), "{text}");
        }
    }

    #[test]
    fn settings_that_do_not_go_together_are_refused() {
        assert_eq!(plan().check(), Ok(()));
        let refused = |plan: Plan, word: &str| {
            let why = plan.check().unwrap_err();
            assert!(why.contains(word), "{why}");
        };
        refused(Plan { workload: Workload::E2e, sizes: Sizes::Fixed(15), ..plan() }, "--size");
        refused(Plan { threads: 9, ..plan() }, "--threads");
        refused(Plan { warmup_seconds: f64::NAN, ..plan() }, "--warmup");
        refused(Plan { interval_seconds: 0.0, ..plan() }, "--interval");
        refused(Plan { extent: Extent::Seconds(f64::INFINITY), ..plan() }, "--duration");
        refused(Plan { batch: 1024, sizes: Sizes::Fixed(1 << 20), ..plan() }, "batch");
        refused(Plan { topic: "a b".into(), ..plan() }, "topic");
        let ramp = Pace::Open { rate: "1-2".parse().unwrap() };
        refused(Plan { pace: ramp, extent: Extent::Messages(5), ..plan() }, "--duration");
        let pull = Plan { workload: Workload::Pull, ..plan() };
        refused(Plan { extent: Extent::Messages(5), ..pull.clone() }, "--count");
        refused(pull, "--warmup");
    }
}
