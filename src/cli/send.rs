//! `kerolox send`: sends messages one after the other and prints where each was stored.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::{self, Write};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::Failure;
use super::client::{self, Answer, ClientError, Connection, NAMESRV_DEFAULT, QueuePlace};
use crate::broker::names::DEFAULT_TOPIC;
use crate::types::properties;
use crate::wire::code::{request, response};
use crate::wire::route::RouteData;

/// A producer asks for so many queues when its topic is made on the way, as Java's does.
const MADE_QUEUES: i32 = 4;
const WRITE_BIT: i32 = 2;

/// Send messages
///
/// Prints a line for each: the id of the stored message, broker, queue and queue offset, separated by tabs. The messages
/// go over the topic's queues in turn, one at a time. A topic that does not exist is made if the node does that.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment, after_help = format!("\
Examples:
  kerolox send --topic Hello --body \"first message\"
  kerolox send --topic Orders --tag paid --key order-7 --body '{{\"id\":7}}'
  kerolox send --topic Load --count 10000 --size 1024 > /dev/null

{}", super::EXIT_CODES))]
pub(super) struct Args {
    /// Where to
    #[arg(long)]
    topic: String,
    /// A tag, which consumers can filter by
    #[arg(long, value_parser = property_text)]
    tag: Option<String>,
    /// Keys to look the message up by, separated by blanks
    #[arg(long, value_parser = property_text)]
    key: Option<String>,
    /// How many messages
    #[arg(long, default_value_t = 1)]
    count: u64,
    /// The text to send [default: "message N from kerolox"]
    #[arg(long, conflicts_with = "size")]
    body: Option<String>,
    /// Send bodies of so many bytes instead of a text
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=16_000_000))]
    size: Option<u32>,
    /// Send to this queue only [default: all in turn]
    #[arg(long, value_name = "ID")]
    queue: Option<i32>,
    /// HOST:PORT of the name server
    #[arg(long, value_name = "ADDR", default_value = NAMESRV_DEFAULT)]
    namesrv: String,
}

/// Tags and keys stand between the bytes 1 and 2 in a message.
fn property_text(text: &str) -> Result<String, String> {
    match text {
        "" => Err("it is empty".into()),
        _ if text.contains(char::is_control) => Err("control characters have no place in it".into()),
        _ => Ok(text.to_owned()),
    }
}

pub(super) fn run(args: Args) -> Result<(), Failure> {
    let mut namesrv = Connection::open(&args.namesrv)?;
    let places = places(&mut namesrv, &args)?;
    let mut connections = BTreeMap::new();
    let mut ids = UniqueIds::new();
    let mut out = io::stdout().lock();
    let started = Instant::now();
    let mut sent = 0;
    let outcome = (1..=args.count).zip(places.iter().cycle()).try_for_each(|(number, place)| {
        let connection = match connections.entry(&place.address) {
            Entry::Occupied(open) => open.into_mut(),
            Entry::Vacant(free) => free.insert(Connection::open(&place.address)?),
        };
        let answer = send_one(connection, &args, place, &ids.next(), &body(&args, number))?;
        sent += 1;
        let (id, queue) = (answer.text("msgId").unwrap_or("-"), answer.number("queueId").unwrap_or(-1));
        let offset = answer.number("queueOffset").unwrap_or(-1);
        writeln!(out, "{id}\t{}\t{queue}\t{offset}", place.broker)?;
        Ok::<_, Failure>(())
    });
    let seconds = started.elapsed().as_secs_f64();
    eprintln!("{sent} of {} sent in {seconds:.3} s ({:.0} a second)", args.count, sent as f64 / seconds);
    outcome
}

/// The queues to send to.
fn places(namesrv: &mut Connection, args: &Args) -> Result<Vec<QueuePlace>, Failure> {
    let topic = &args.topic;
    let mut places = match client::route(namesrv, topic)? {
        Some(route) => writable(&route, i32::MAX),
        None => match client::route(namesrv, DEFAULT_TOPIC)? {
            Some(template) => writable(&template, MADE_QUEUES),
            None => {
                let missing = format!("topic {topic} does not exist; make it with `kerolox topic create {topic}`");
                return Err(Failure::NotThere(missing));
            }
        },
    };
    if let Some(queue) = args.queue {
        places.retain(|place| place.queue_id == queue);
        if places.is_empty() {
            return Err(Failure::NotThere(format!(
                "topic {topic} has no queue {queue} to write to; leave --queue out"
            )));
        }
    }
    if places.is_empty() {
        return Err(Failure::NotThere(format!("topic {topic} has no queue to write to; see `kerolox topic list`")));
    }
    Ok(places)
}

/// The first `queues_max` writable queues of each broker that has a master.
fn writable(route: &RouteData, queues_max: i32) -> Vec<QueuePlace> {
    let mut places = Vec::new();
    for queues in route.queues.iter().filter(|queues| queues.perm & WRITE_BIT != 0) {
        if let Some(address) = client::master_of(route, &queues.broker_name) {
            places.extend((0..queues.write_queues.min(queues_max)).map(|queue_id| QueuePlace {
                broker: queues.broker_name.clone(),
                address: address.to_owned(),
                queue_id,
            }));
        }
    }
    places
}

fn body(args: &Args, number: u64) -> Vec<u8> {
    match (&args.body, args.size) {
        (Some(text), _) => text.clone().into_bytes(),
        (None, Some(len)) => (b'a'..=b'z').cycle().take(len as usize).collect(),
        (None, None) => format!("message {number} from kerolox").into_bytes(),
    }
}

/// Sends and waits; an answer that says "stored, but the flush is late" passes with a warning.
fn send_one(
    connection: &mut Connection,
    args: &Args,
    place: &QueuePlace,
    unique_id: &str,
    body: &[u8],
) -> Result<Answer, ClientError> {
    let mut text = String::new();
    properties::push(&mut text, properties::UNIQ_KEY, unique_id);
    properties::push(&mut text, properties::WAIT, "true");
    if let Some(tag) = &args.tag {
        properties::push(&mut text, properties::TAGS, tag);
    }
    if let Some(key) = &args.key {
        properties::push(&mut text, properties::KEYS, key);
    }
    let (queue, born, made) = (place.queue_id.to_string(), now_ms().to_string(), MADE_QUEUES.to_string());
    // The one-letter names of remoting.md 3.1: group, topic, template, its queues, queue, system flag, born, flag,
    // properties, reconsume times, unit mode, batch.
    let ext = [
        ("a", "KEROLOX_CLI"),
        ("b", args.topic.as_str()),
        ("c", DEFAULT_TOPIC),
        ("d", &made),
        ("e", &queue),
        ("f", "0"),
        ("g", &born),
        ("h", "0"),
        ("i", &text),
        ("j", "0"),
        ("k", "false"),
        ("m", "false"),
    ];
    let answer = connection.ask(request::SEND_MESSAGE_V2, &ext, body)?;
    match answer.code {
        response::SUCCESS => Ok(answer),
        response::FLUSH_DISK_TIMEOUT | response::FLUSH_SLAVE_TIMEOUT | response::SLAVE_NOT_AVAILABLE => {
            eprintln!("stored, but not yet safe: code {} {}", answer.code, answer.remark);
            Ok(answer)
        }
        _ => Err(connection.refused(format!("a message for topic {}", args.topic), &answer)),
    }
}

fn now_ms() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis())
}

/// Ids of 32 hex characters, as Java's clients make them: unlike those of any other process, and in order.
struct UniqueIds {
    process: u64,
    started_ms: u32,
    count: u32,
}

impl UniqueIds {
    fn new() -> UniqueIds {
        use std::hash::{BuildHasher, RandomState};
        // The seed of a hasher is the standard library's only source of random bits.
        let process = RandomState::new().hash_one(std::process::id());
        UniqueIds { process, started_ms: now_ms() as u32, count: 0 }
    }

    fn next(&mut self) -> String {
        self.count = self.count.wrapping_add(1);
        format!("{:016X}{:08X}{:08X}", self.process, self.started_ms, self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unique_ids_differ_within_a_process_and_between_processes() {
        let (mut one, mut two) = (UniqueIds::new(), UniqueIds::new());
        let ids = [one.next(), one.next(), two.next()];
        assert!(ids.iter().all(|id| id.len() == 32 && id.chars().all(|c| c.is_ascii_hexdigit())));
        assert!(ids[0] < ids[1] && ids[0][..16] != ids[2][..16]);
    }

    #[test]
    fn control_characters_cannot_get_into_the_properties() {
        assert!(property_text("order-7 paid").is_ok());
        assert!(property_text("a\u{1}b").is_err());
        assert!(property_text("").is_err());
    }
}
