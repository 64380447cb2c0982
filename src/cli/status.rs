//! `kerolox status`: what a broker says of itself, for people and for scripts.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::Failure;
use super::client::{BROKER_DEFAULT, Connection};
use crate::wire::code::request;
use crate::wire::lists::KvTable;

/// Show whether a node takes messages, how much a power loss would cost it now, and what it does
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment, after_help = format!("\
The figures are those of request 28, which mqadmin brokerStatus shows too. A node that takes no messages now is a failure:
its reason goes to standard error.

Examples:
  kerolox status
  kerolox status --addr 10.0.0.7:10911 --json

{}", super::EXIT_CODES))]
pub(super) struct Args {
    /// HOST:PORT of the broker
    #[arg(long, value_name = "ADDR", default_value = BROKER_DEFAULT)]
    addr: String,
    /// Print every figure that the broker tells, as one JSON object of texts
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: Args) -> Result<(), Failure> {
    let doing = || "the request for the broker's state".to_owned();
    let mut broker = Connection::open(&args.addr)?;
    let answer = broker.demand(doing, request::GET_BROKER_RUNTIME_INFO, &[], &[])?;
    let KvTable { table } = KvTable::decode(&answer.body).map_err(|why| broker.unreadable(doing(), why))?;
    let mut out = io::stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&table).expect("a table of texts"))?;
    } else {
        for (name, value) in rows(&table) {
            writeln!(out, "{name:<20} {value}")?;
        }
    }
    match (table.get("keroloxHealth").map(String::as_str), table.get("keroloxHealthReason")) {
        (None | Some("ok"), _) => Ok(()),
        (Some(word), reason) => {
            Err(Failure::NotThere(reason.map_or_else(|| format!("the node is {word}"), String::to_owned)))
        }
    }
}

/// The figures that matter most, those that the broker tells: Java's brokers lack ours.
fn rows(table: &BTreeMap<String, String>) -> Vec<(&'static str, String)> {
    let text = |key: &str| table.get(key).map(|value| value.trim().to_owned());
    let both = |one: &str, join: &str, two: &str| Some(format!("{}{join}{}", text(one)?, text(two)?));
    let all = [
        ("health", text("keroloxHealth")),
        ("flush mode", text("keroloxFlushMode")),
        ("at risk", both("keroloxUnflushedBytes", " bytes, oldest ", "keroloxUnflushedMs").map(|text| text + " ms")),
        ("append, sync call", both("keroloxAppendMode", ", ", "keroloxSyncCall")),
        ("version", both("keroloxVersion", ", speaks as ", "brokerVersionDesc").or_else(|| text("brokerVersionDesc"))),
        ("running", text("runtime").map(|text| text.trim_matches(['[', ']']).trim().to_owned())),
        ("log", both("commitLogMinOffset", " to ", "commitLogMaxOffset")),
        ("flushed to", text("keroloxFlushedOffset")),
        ("not yet dispatched", text("dispatchBehindBytes").map(|text| text + " bytes")),
        ("disk", both("commitLogDirCapacity", " Used: ", "commitLogDiskRatio")),
        ("puts / s", text("putTps").map(|text| text + "  (10 s, 60 s, 600 s)")),
        ("gets / s", text("getTransferredTps").map(|text| text + "  (messages; 10 s, 60 s, 600 s)")),
        ("puts", both("putMessageTimesTotal", ", failed ", "putMessageFailedTimes")),
        ("put p99, p99.9", both("putLatency99", " ms, ", "putLatency999").map(|text| text + " ms")),
        ("on their way", both("sendThreadPoolQueueSize", " of ", "sendThreadPoolQueueCapacity")),
        ("refused", both("keroloxPutsOverloaded", " overloaded, ", "keroloxPutsExpired").map(|text| text + " expired")),
        ("flush timeouts", text("keroloxFlushTimeouts")),
    ];
    all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn health_and_what_is_at_risk_come_first() {
        let told = [
            ("keroloxHealth", "ok"),
            ("keroloxFlushMode", "async"),
            ("keroloxAppendMode", "buffered"),
            ("keroloxSyncCall", "fdatasync"),
            ("keroloxUnflushedBytes", "4096"),
            ("keroloxUnflushedMs", "120"),
            ("keroloxVersion", "0.1.0"),
            ("brokerVersionDesc", "V5_3_3"),
        ];
        let expected = [
            ("health", "ok"),
            ("flush mode", "async"),
            ("at risk", "4096 bytes, oldest 120 ms"),
            ("append, sync call", "buffered, fdatasync"),
            ("version", "0.1.0, speaks as V5_3_3"),
        ]
        .map(|(a, b)| (a, b.to_owned()));
        assert_eq!(rows(&table(&told)), expected);
    }

    #[test]
    fn what_another_broker_does_not_tell_is_left_out() {
        let rows = rows(&table(&[
            ("brokerVersionDesc", "V4_9_8"),
            ("runtime", "[ 0 days, 1 hours ]"),
            ("putTps", "1.0 2.0 3.0 "),
        ]));
        let names: Vec<_> = rows.iter().map(|(name, value)| format!("{name}: {value}")).collect();
        assert_eq!(
            names,
            ["version: V4_9_8", "running: 0 days, 1 hours", "puts / s: 1.0 2.0 3.0  (10 s, 60 s, 600 s)"]
        );
    }
}
