//! `kerolox tail`: prints a topic's messages as they arrive, from all its queues at once.
//!
//! One thread and one connection a broker; on it one pull is always under way for each queue, held by the broker until
//! something arrives. It belongs to no group, so it takes messages from nobody and leaves no offsets behind.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};

use super::Failure;
use super::client::{self, Answer, ClientError, Connection, NAMESRV_DEFAULT, QueuePlace};
use super::text::{escaped, utc};
use crate::format::record::RecordView;
use crate::types::properties;
use crate::wire::code::{request, response};
use crate::wire::route::RouteData;

/// A group that every broker has and that needs no registration. Source: remoting.md 6.3.
const GROUP: &str = "TOOLS_CONSUMER";
/// Of a pull: the broker may hold it (2), the subscription is in the request (4).
const PULL_FLAGS: &str = "6";
const READ_BIT: i32 = 4;
/// How long the broker may hold a pull.
const HOLD: Duration = Duration::from_secs(15);
/// A pull without an answer for so long will get none: Java brokers look at held pulls every 5 s only.
const SILENCE_MAX: Duration = Duration::from_secs(40);
/// How often to look for Ctrl-C.
const TICK: Duration = Duration::from_millis(200);
/// Wait before a queue is pulled again after the broker could not serve it for now.
const PAUSE: Duration = Duration::from_secs(1);
/// Lines that wait for standard output; then the brokers are asked no more.
const LINES_MAX: usize = 1024;
/// Of a body, so much is printed.
const BODY_CHARS_MAX: usize = 4096;
const COMPRESSED_BIT: i32 = 1;

/// Print a topic's messages as they arrive
///
/// Prints a line for each: broker, queue, queue offset, store time (UTC), tag, keys and body, separated by tabs; "-" if
/// there is none, control characters escaped. Ends on Ctrl-C, or after --count messages. It belongs to no consumer
/// group: it takes no message from anyone, and keeps no position.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment, after_help = format!("\
Examples:
  kerolox tail --topic Hello --from-beginning
  kerolox tail --topic Orders --tag 'paid || shipped' --count 10 | cut -f7

{}", super::EXIT_CODES))]
pub(super) struct Args {
    /// Which topic
    #[arg(long)]
    topic: String,
    /// Print what is stored already, too [default: only what arrives from now on]
    #[arg(long)]
    from_beginning: bool,
    /// Stop after so many messages [default: go on until Ctrl-C]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Only messages with one of these tags, separated by || [default: all]
    #[arg(long, value_name = "TAGS", default_value = "*", hide_default_value = true)]
    tag: String,
    /// HOST:PORT of the name server
    #[arg(long, value_name = "ADDR", default_value = NAMESRV_DEFAULT)]
    namesrv: String,
}

pub(super) fn run(args: Args) -> Result<(), Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, stop.clone()).map_err(Failure::Signal)?;
    }
    let places = places(&args)?;
    eprintln!("reading {} queues of {}; Ctrl-C ends", places.len(), args.topic);
    let (sender, lines) = sync_channel(LINES_MAX);
    let mut by_address: BTreeMap<String, Vec<QueuePlace>> = BTreeMap::new();
    for place in places {
        by_address.entry(place.address.clone()).or_default().push(place);
    }
    for (address, places) in by_address {
        let (sender, stop) = (sender.clone(), stop.clone());
        let follower = Follower::start(&address, &args, places)?;
        thread::spawn(move || follower.run(&sender, &stop));
    }
    drop(sender);
    let (printed, outcome) = print(&lines, args.count, &stop);
    stop.store(true, Ordering::Relaxed);
    eprintln!("{printed} messages");
    outcome
}

/// The queues to read.
fn places(args: &Args) -> Result<Vec<QueuePlace>, Failure> {
    let topic = &args.topic;
    let missing =
        || Failure::NotThere(format!("topic {topic} does not exist; make it with `kerolox topic create {topic}`"));
    let route = client::route(&mut Connection::open(&args.namesrv)?, topic)?.ok_or_else(missing)?;
    let places = readable(&route);
    if places.is_empty() {
        return Err(Failure::NotThere(format!("topic {topic} has no queue to read; see `kerolox topic list`")));
    }
    Ok(places)
}

fn readable(route: &RouteData) -> Vec<QueuePlace> {
    let mut places = Vec::new();
    for queues in route.queues.iter().filter(|queues| queues.perm & READ_BIT != 0) {
        if let Some(address) = client::master_of(route, &queues.broker_name) {
            places.extend((0..queues.read_queues).map(|queue_id| QueuePlace {
                broker: queues.broker_name.clone(),
                address: address.to_owned(),
                queue_id,
            }));
        }
    }
    places
}

/// Prints what the followers find until told to stop; gives how many and why it ended.
fn print(
    lines: &Receiver<Result<String, ClientError>>,
    count: Option<u64>,
    stop: &AtomicBool,
) -> (u64, Result<(), Failure>) {
    let mut out = io::stdout().lock();
    let mut printed = 0;
    while count.is_none_or(|count| printed < count) && !stop.load(Ordering::Relaxed) {
        match lines.recv_timeout(TICK) {
            Ok(Ok(line)) => {
                if let Err(error) = writeln!(out, "{line}") {
                    return (printed, Err(error.into()));
                }
                printed += 1;
            }
            Ok(Err(error)) => return (printed, Err(error.into())),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    (printed, Ok(()))
}

/// Reads the queues of one broker, on a thread of its own.
struct Follower {
    connection: Connection,
    topic: String,
    tags: String,
    queues: Vec<FollowedQueue>,
    /// Opaque number of a pull → its queue, and when it was sent.
    pulls: HashMap<i32, (usize, Instant)>,
}

struct FollowedQueue {
    place: QueuePlace,
    next_offset: i64,
    /// When to pull; `None`: a pull is under way.
    pull_at: Option<Instant>,
}

impl Follower {
    /// Connects and finds where each queue begins or ends.
    fn start(address: &str, args: &Args, places: Vec<QueuePlace>) -> Result<Follower, ClientError> {
        let mut connection = Connection::open(address)?;
        let code = if args.from_beginning { request::GET_MIN_OFFSET } else { request::GET_MAX_OFFSET };
        let mut queues = Vec::new();
        for place in places {
            let queue_id = place.queue_id.to_string();
            let doing = || format!("the request for the offset of queue {queue_id} of {}", args.topic);
            let answer = connection.demand(doing, code, &[("queueId", &queue_id), ("topic", &args.topic)], &[])?;
            let next_offset = answer.number("offset").unwrap_or(0);
            queues.push(FollowedQueue { place, next_offset, pull_at: Some(Instant::now()) });
        }
        Ok(Follower { connection, topic: args.topic.clone(), tags: args.tag.clone(), queues, pulls: HashMap::new() })
    }

    /// Goes on until told to stop, until nobody takes the lines any more, or until something fails.
    fn run(mut self, lines: &SyncSender<Result<String, ClientError>>, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            match self.turn() {
                Ok(found) => {
                    if found.into_iter().any(|line| lines.send(Ok(line)).is_err()) {
                        return;
                    }
                }
                Err(error) => {
                    // If it cannot be told, the printer has stopped and wants to hear nothing.
                    let _ = lines.send(Err(error));
                    return;
                }
            }
        }
    }

    /// Sends the pulls that are due and takes one answer, or none if a tick passes.
    fn turn(&mut self) -> Result<Vec<String>, ClientError> {
        let now = Instant::now();
        for index in 0..self.queues.len() {
            if self.queues[index].pull_at.is_some_and(|at| at <= now) {
                let opaque = self.pull(index)?;
                self.pulls.insert(opaque, (index, now));
                self.queues[index].pull_at = None;
            }
        }
        let Some(answer) = self.connection.receive(now + TICK)? else {
            return match self.pulls.values().any(|(_, sent)| now.duration_since(*sent) > SILENCE_MAX) {
                true => Err(self.connection.silent(SILENCE_MAX)),
                false => Ok(Vec::new()),
            };
        };
        let Some((index, _)) = self.pulls.remove(&answer.opaque) else { return Ok(Vec::new()) };
        self.take(index, &answer)
    }

    fn pull(&mut self, index: usize) -> Result<i32, ClientError> {
        let queue = &self.queues[index];
        let (queue_id, offset) = (queue.place.queue_id.to_string(), queue.next_offset.to_string());
        let hold = HOLD.as_millis().to_string();
        let ext = [
            ("commitOffset", "0"),
            ("consumerGroup", GROUP),
            ("expressionType", "TAG"),
            ("maxMsgNums", "32"),
            ("queueId", &queue_id),
            ("queueOffset", &offset),
            ("subVersion", "0"),
            ("subscription", &self.tags),
            ("suspendTimeoutMillis", &hold),
            ("sysFlag", PULL_FLAGS),
            ("topic", &self.topic),
        ];
        self.connection.send(request::PULL_MESSAGE, &ext, &[])
    }

    /// What an answer to a pull brought; decides when and where the queue is pulled next.
    fn take(&mut self, index: usize, answer: &Answer) -> Result<Vec<String>, ClientError> {
        let queue = &mut self.queues[index];
        queue.pull_at = Some(Instant::now());
        match answer.code {
            response::SUCCESS => {
                let found = lines(&queue.place, &self.tags, &answer.body);
                queue.next_offset = answer.number("nextBeginOffset").unwrap_or(queue.next_offset);
                Ok(found)
            }
            response::PULL_NOT_FOUND | response::PULL_RETRY_IMMEDIATELY | response::PULL_OFFSET_MOVED => {
                queue.next_offset = answer.number("nextBeginOffset").unwrap_or(queue.next_offset);
                Ok(Vec::new())
            }
            response::SYSTEM_BUSY | response::FLOW_CONTROL | response::SERVICE_NOT_AVAILABLE => {
                queue.pull_at = Some(Instant::now() + PAUSE);
                Ok(Vec::new())
            }
            _ => {
                let doing = format!("a pull of queue {} of {}", queue.place.queue_id, self.topic);
                Err(self.connection.refused(doing, answer))
            }
        }
    }
}

/// A line for each record of a pull's body. The broker filters tags by hash, so they are compared again by text.
fn lines(place: &QueuePlace, tags: &str, mut body: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    while !body.is_empty() {
        match RecordView::parse(body) {
            Ok(record) => {
                if wants(tags, properties::get(record.properties(), properties::TAGS)) {
                    found.push(line(place, &record));
                }
                body = &body[record.total_len() as usize..];
            }
            Err(error) => {
                found.push(format!("{}\t{}\t-\t-\t-\t-\t<no record: {error}>", place.broker, place.queue_id));
                break;
            }
        }
    }
    found
}

fn wants(tags: &str, tag: Option<&str>) -> bool {
    let tags = tags.trim();
    tags.is_empty() || tags == "*" || tags.split("||").any(|wanted| Some(wanted.trim()) == tag)
}

fn line(place: &QueuePlace, record: &RecordView<'_>) -> String {
    let property = |name| properties::get(record.properties(), name).map_or_else(|| "-".into(), escaped);
    [
        place.broker.clone(),
        record.queue_id().to_string(),
        record.queue_offset().to_string(),
        utc(record.store_timestamp()),
        property(properties::TAGS),
        property(properties::KEYS),
        body_text(record),
    ]
    .join("\t")
}

fn body_text(record: &RecordView<'_>) -> String {
    let body = record.body();
    if record.sys_flag() & COMPRESSED_BIT != 0 {
        return format!("<{} bytes, compressed>", body.len());
    }
    match std::str::from_utf8(body) {
        Ok(text) => match text.char_indices().nth(BODY_CHARS_MAX) {
            Some((end, _)) => format!("{}… <{} bytes>", escaped(&text[..end]), body.len()),
            None => escaped(text),
        },
        Err(_) => format!("<{} bytes, no text>", body.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::record::RecordSpec;

    fn record(body: &[u8], properties: &str, sys_flag: i32) -> Vec<u8> {
        let mut bytes = Vec::new();
        let spec = RecordSpec {
            topic: "T",
            queue_id: 3,
            flag: 0,
            sys_flag,
            born_timestamp: 0,
            born_host: ([127, 0, 0, 1], 1).into(),
            store_host: ([127, 0, 0, 1], 2).into(),
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body,
            properties: &[properties.as_bytes()],
        };
        spec.encode_into(&mut bytes).unwrap();
        bytes
    }

    fn place() -> QueuePlace {
        QueuePlace { broker: "broker-a".into(), address: "127.0.0.1:10911".into(), queue_id: 3 }
    }

    #[test]
    fn a_message_is_one_line_whatever_is_in_it() {
        let mut body = record(b"a\tb\nc", "TAGS\u{1}red\u{2}KEYS\u{1}k1 k2\u{2}", 0);
        body.extend(record(&[0xFF], "", 0));
        body.extend(record(b"zzz", "", 1));
        let epoch = "1970-01-01T00:00:00.000Z";
        assert_eq!(
            lines(&place(), "*", &body),
            [
                format!("broker-a\t3\t0\t{epoch}\tred\tk1 k2\ta\\tb\\nc"),
                format!("broker-a\t3\t0\t{epoch}\t-\t-\t<1 bytes, no text>"),
                format!("broker-a\t3\t0\t{epoch}\t-\t-\t<3 bytes, compressed>"),
            ]
        );
    }

    #[test]
    fn tags_are_compared_by_text() {
        let mut body = record(b"1", "TAGS\u{1}red\u{2}", 0);
        body.extend(record(b"2", "TAGS\u{1}blue\u{2}", 0));
        body.extend(record(b"3", "", 0));
        assert_eq!(lines(&place(), "red || green", &body).len(), 1);
        assert_eq!(lines(&place(), " * ", &body).len(), 3);
    }

    #[test]
    fn a_broken_body_ends_with_a_line_that_says_so() {
        let mut body = record(b"1", "", 0);
        body.extend([1, 2, 3]);
        let found = lines(&place(), "*", &body);
        assert_eq!(found.len(), 2);
        assert!(found[1].contains("<no record: "), "{}", found[1]);
    }

    #[test]
    fn long_bodies_are_cut_between_characters() {
        let found = lines(&place(), "*", &record("ä".repeat(5_000).as_bytes(), "", 0));
        assert!(found[0].ends_with("ä… <10000 bytes>"));
    }
}
