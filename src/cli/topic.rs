//! `kerolox topic`: makes topics, lists and deletes them.

use std::io::{self, Write};

use clap::{Subcommand, ValueEnum};

use super::Failure;
use super::client::{self, ClientError, Connection, NAMESRV_DEFAULT};
use crate::broker::{FLUSH_ATTRIBUTE, names};
use crate::format::config_files::TopicConfig;
use crate::types::json;
use crate::wire::BodyError;
use crate::wire::code::{request, response};
use crate::wire::route::RouteData;

/// Create, list and delete topics
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment, after_help = format!("\
Examples:
  kerolox topic create Orders --queues 16
  kerolox topic set Orders --flush sync
  kerolox topic list
  kerolox topic delete Orders

{}", super::EXIT_CODES))]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Create(CreateArgs),
    Set(SetArgs),
    List(ListArgs),
    Delete(DeleteArgs),
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
    /// When a send to it is answered; without this option what was set before stays
    #[arg(long, value_enum)]
    flush: Option<Flush>,
    /// HOST:PORT of the name server
    #[arg(long, value_name = "ADDR", default_value = NAMESRV_DEFAULT)]
    namesrv: String,
}

/// Change what is given of a topic and leave the rest, on every broker that has it
#[derive(Debug, clap::Args)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  kerolox topic set Orders --flush sync     answered once on stable storage, whatever the node's flush.mode
  kerolox topic set Orders --flush default  as the node's flush.mode says"
)]
struct SetArgs {
    /// Its name
    topic: String,
    /// When a send to it is answered
    #[arg(long, value_enum)]
    flush: Flush,
    /// HOST:PORT of the name server
    #[arg(long, value_name = "ADDR", default_value = NAMESRV_DEFAULT)]
    namesrv: String,
}

/// A topic's own flush policy.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Flush {
    /// Once the message is on stable storage
    Sync,
    /// Once it is in the page cache
    Async,
    /// As the node's flush.mode says
    Default,
}

impl Flush {
    /// The attribute text that leads from what is set (`current`) to this; empty if nothing is to be done.
    fn change(self, current: Option<&str>) -> String {
        match (self, current) {
            (Flush::Sync, _) => format!("+{FLUSH_ATTRIBUTE}=sync"),
            (Flush::Async, _) => format!("+{FLUSH_ATTRIBUTE}=async"),
            // Brokers refuse to take away what is not there.
            (Flush::Default, None) => String::new(),
            (Flush::Default, Some(_)) => format!("-{FLUSH_ATTRIBUTE}"),
        }
    }
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

/// Delete a topic with its messages and its groups' offsets, on every broker of the name server
///
/// At once and for good: a topic that is made again under this name begins with message 0.
#[derive(Debug, clap::Args)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Example:
  kerolox topic delete Orders"
)]
struct DeleteArgs {
    /// Its name
    topic: String,
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
        Command::Set(args) => set(&args),
        Command::List(args) => list(&args),
        Command::Delete(args) => delete(&args),
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
        let mut connection = Connection::open(&address)?;
        let attributes = match args.flush {
            Some(flush) => flush.change(config(&mut connection, &args.topic)?.as_ref().and_then(own_flush)),
            None => String::new(),
        };
        let ext = [
            ("attributes", attributes.as_str()),
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
        connection.demand(doing, request::UPDATE_AND_CREATE_TOPIC, &ext, &[])?;
        writeln!(io::stdout(), "{}\t{queues} queues\t{broker}\t{address}", args.topic)?;
    }
    Ok(())
}

fn set(args: &SetArgs) -> Result<(), Failure> {
    let mut namesrv = Connection::open(&args.namesrv)?;
    let mut found = false;
    for (broker, address) in client::masters(&mut namesrv)? {
        let mut connection = Connection::open(&address)?;
        let Some(current) = config(&mut connection, &args.topic)? else { continue };
        found = true;
        let attributes = args.flush.change(own_flush(&current));
        let (reads, writes) = (current.read_queue_nums.to_string(), current.write_queue_nums.to_string());
        let (perm, sys_flag) = (current.perm.to_string(), current.sys_flag.to_string());
        let ext = [
            ("attributes", attributes.as_str()),
            ("defaultTopic", names::DEFAULT_TOPIC),
            ("order", if current.order { "true" } else { "false" }),
            ("perm", &perm),
            ("readQueueNums", &reads),
            ("topic", &args.topic),
            ("topicFilterType", current.filter_type.name()),
            ("topicSysFlag", &sys_flag),
            ("writeQueueNums", &writes),
        ];
        let doing = || format!("changing topic {}", args.topic);
        connection.demand(doing, request::UPDATE_AND_CREATE_TOPIC, &ext, &[])?;
        let word = args.flush.to_possible_value().expect("each has a name");
        writeln!(io::stdout(), "{}\tflush {}\t{broker}\t{address}", args.topic, word.get_name())?;
    }
    if found {
        return Ok(());
    }
    let what = format!("no broker of {} has the topic {}; `kerolox topic create` makes it", args.namesrv, args.topic);
    Err(Failure::NotThere(what))
}

fn delete(args: &DeleteArgs) -> Result<(), Failure> {
    let mut namesrv = Connection::open(&args.namesrv)?;
    let ext = [("topic", args.topic.as_str())];
    let mut found = false;
    for (broker, address) in client::masters(&mut namesrv)? {
        let mut connection = Connection::open(&address)?;
        let was_there = config(&mut connection, &args.topic)?.is_some();
        // To a broker that lacks it as well: it may have begun to delete it and failed.
        connection.demand(|| format!("deleting topic {}", args.topic), request::DELETE_TOPIC_IN_BROKER, &ext, &[])?;
        if was_there {
            found = true;
            writeln!(io::stdout(), "{}\tdeleted\t{broker}\t{address}", args.topic)?;
        }
    }
    let doing = || format!("deleting the route of topic {}", args.topic);
    namesrv.demand(doing, request::DELETE_TOPIC_IN_NAMESRV, &ext, &[])?;
    if found {
        return Ok(());
    }
    Err(Failure::NotThere(format!("no broker of {} has the topic {}", args.namesrv, args.topic)))
}

/// A topic's settings on one broker; `None`: it is not there.
fn config(broker: &mut Connection, topic: &str) -> Result<Option<TopicConfig>, ClientError> {
    let doing = || format!("the request for the settings of topic {topic}");
    let answer = broker.ask(request::GET_TOPIC_CONFIG, &[("lo", "true"), ("topic", topic)], &[])?;
    match answer.code {
        response::SUCCESS => {
            let unreadable = BodyError::Wrong { field: "(whole)", expected: "a topic's settings" };
            let read = json::parse(&answer.body).ok().and_then(|value| TopicConfig::from_json(value).ok());
            read.map(Some).ok_or_else(|| broker.unreadable(doing(), unreadable))
        }
        response::TOPIC_NOT_EXIST => Ok(None),
        _ => Err(broker.refused(doing(), &answer)),
    }
}

fn own_flush(config: &TopicConfig) -> Option<&str> {
    config.attributes.get(FLUSH_ATTRIBUTE).map(String::as_str)
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
    fn what_is_not_set_is_not_taken_away() {
        assert_eq!(Flush::Sync.change(None), "+flush=sync");
        assert_eq!(Flush::Async.change(Some("sync")), "+flush=async");
        assert_eq!(Flush::Default.change(Some("sync")), "-flush");
        assert_eq!(Flush::Default.change(None), "");
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
