//! `kerolox topic`: makes topics and lists them.

use std::io::{self, Write};

use clap::{Subcommand, ValueEnum};

use super::Failure;
use super::client::{self, Connection, NAMESRV_DEFAULT};
use crate::broker::names;
use crate::wire::code::request;
use crate::wire::route::RouteData;

/// Create and list topics
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment, after_help = format!("\
Examples:
  kerolox topic create Orders --queues 16
  kerolox topic list

{}", super::EXIT_CODES))]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Create(CreateArgs),
    List(ListArgs),
}

/// Create a topic on every broker of the name server, or change it if it exists
#[derive(Debug, clap::Args)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Example:
  kerolox topic create Orders --queues 16"
)]
struct CreateArgs {
    /// Its name: letters, digits, % | - _, up to 127 characters
    topic: String,
    /// How many queues to read and to write
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(i32).range(1..=1024))]
    queues: i32,
    /// What clients may do
    #[arg(long, value_enum, default_value = "rw")]
    perm: Perm,
    /// HOST:PORT of the name server
    #[arg(long, value_name = "ADDR", default_value = NAMESRV_DEFAULT)]
    namesrv: String,
}

/// Print every topic: name, read queues, write queues, permission and brokers, separated by tabs
#[derive(Debug, clap::Args)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Example:
  kerolox topic list --all"
)]
struct ListArgs {
    /// Also those that belong to the brokers themselves
    #[arg(long)]
    all: bool,
    /// HOST:PORT of the name server
    #[arg(long, value_name = "ADDR", default_value = NAMESRV_DEFAULT)]
    namesrv: String,
}

/// RocketMQ's permission bits: 4 read, 2 write.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Perm {
    R,
    W,
    Rw,
}

impl Perm {
    fn bits(self) -> &'static str {
        match self {
            Perm::R => "4",
            Perm::W => "2",
            Perm::Rw => "6",
        }
    }
}

pub(super) fn run(args: Args) -> Result<(), Failure> {
    match args.command {
        Command::Create(args) => create(&args),
        Command::List(args) => list(&args),
    }
}

fn create(args: &CreateArgs) -> Result<(), Failure> {
    let mut namesrv = Connection::open(&args.namesrv)?;
    let masters = client::masters(&mut namesrv)?;
    if masters.is_empty() {
        return Err(Failure::NotThere(format!("{} knows no broker; start one that registers there", args.namesrv)));
    }
    let queues = args.queues.to_string();
    for (broker, address) in masters {
        let ext = [
            ("defaultTopic", names::DEFAULT_TOPIC),
            ("order", "false"),
            ("perm", args.perm.bits()),
            ("readQueueNums", &queues),
            ("topic", &args.topic),
            ("topicFilterType", "SINGLE_TAG"),
            ("topicSysFlag", "0"),
            ("writeQueueNums", &queues),
        ];
        let doing = || format!("creating topic {}", args.topic);
        Connection::open(&address)?.demand(doing, request::UPDATE_AND_CREATE_TOPIC, &ext, &[])?;
        writeln!(io::stdout(), "{}\t{queues} queues\t{broker}\t{address}", args.topic)?;
    }
    Ok(())
}

fn list(args: &ListArgs) -> Result<(), Failure> {
    let mut namesrv = Connection::open(&args.namesrv)?;
    let mut out = io::stdout().lock();
    for topic in client::topics(&mut namesrv)? {
        // Gone since the list was made, if there is none.
        if let Some(route) = client::route(&mut namesrv, &topic)?
            && (args.all || !belongs_to_brokers(&topic, &route))
        {
            writeln!(out, "{}", row(&topic, &route))?;
        }
    }
    Ok(())
}

/// Topics that no user made: those of the system, and those named like a cluster or a broker.
fn belongs_to_brokers(topic: &str, route: &RouteData) -> bool {
    names::is_system_topic(topic)
        || topic.ends_with("_REPLY_TOPIC")
        || route.brokers.iter().any(|broker| broker.cluster == topic || broker.broker_name == topic)
}

fn row(topic: &str, route: &RouteData) -> String {
    let reads: i32 = route.queues.iter().map(|queues| queues.read_queues).sum();
    let writes: i32 = route.queues.iter().map(|queues| queues.write_queues).sum();
    let perm = route.queues.first().map_or(0, |queues| queues.perm);
    let perm = [(4, 'r'), (2, 'w'), (1, 'x')].map(|(bit, letter)| if perm & bit == 0 { '-' } else { letter });
    let brokers: Vec<_> = route.queues.iter().map(|queues| queues.broker_name.as_str()).collect();
    format!("{topic}\t{reads}\t{writes}\t{}\t{}", String::from_iter(perm), brokers.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::route::{BrokerData, QueueData};

    fn route(broker: &str, cluster: &str) -> RouteData {
        let broker_name = broker.to_owned();
        RouteData {
            brokers: vec![BrokerData { cluster: cluster.into(), broker_name: broker.into(), addresses: [].into() }],
            queues: vec![QueueData { broker_name, read_queues: 8, write_queues: 4, perm: 6, topic_sys_flag: 0 }],
            order_topic_conf: None,
        }
    }

    #[test]
    fn a_row_tells_queues_permission_and_broker() {
        assert_eq!(row("T", &route("broker-a", "C")), "T\t8\t4\trw-\tbroker-a");
    }

    #[test]
    fn topics_that_no_user_made_are_told_apart() {
        let route = route("broker-a", "DefaultCluster");
        for topic in ["TBW102", "rmq_sys_wheel_timer", "DefaultCluster", "broker-a", "DefaultCluster_REPLY_TOPIC"] {
            assert!(belongs_to_brokers(topic, &route), "{topic}");
        }
        for topic in ["Orders", "%RETRY%G", "%DLQ%G"] {
            assert!(!belongs_to_brokers(topic, &route), "{topic}");
        }
    }
}
