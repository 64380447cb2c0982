//! What is done before the first message: finding the brokers, making the topics, asking where their queues begin and
//! end. One blocking connection a broker.

use std::net::{SocketAddr, ToSocketAddrs};
use std::thread;
use std::time::{Duration, Instant};

use kerolox::cli::client::{self, ClientError, Connection};
use kerolox::wire::code::{request, response};

use super::frames::topic_names;
use super::plan::{Plan, Target};
use super::{Event, Failure};

/// How long a topic may take until it can be sent to.
const TOPIC_WAIT: Duration = Duration::from_secs(15);
const PAUSE: Duration = Duration::from_millis(20);
/// 4 read and 2 write.
const READ_WRITE: &str = "6";

/// What the load works on.
pub struct Ground {
    pub brokers: Vec<SocketAddr>,
    /// All queues of all topics on all brokers; empty for a load that only sends.
    pub queues: Vec<QueueEnds>,
}

/// A queue, and what it held before the load.
#[derive(Clone, Debug)]
pub struct QueueEnds {
    /// Index of its broker.
    pub broker: usize,
    pub topic: String,
    pub queue_id: u32,
    /// Queue offset of its first message.
    pub begin: u64,
    /// Queue offset of its next message.
    pub end: u64,
}

/// # Errors
/// [`Failure`] if a broker cannot be reached, or a topic is not as the plan needs it.
pub fn prepare(plan: &Plan, observer: &mut dyn FnMut(Event<'_>)) -> Result<Ground, Failure> {
    let names = match &plan.target {
        Target::Broker(address) => vec![address.clone()],
        Target::NameServer(address) => {
            let masters = client::masters(&mut Connection::open(address)?)?;
            if masters.is_empty() {
                return Err(Failure::Peer(format!("{address} knows no broker; start one that registers there")));
            }
            masters.into_values().collect()
        }
    };
    let needed = names.len() as u32;
    for (option, count, used) in [
        ("--connections", plan.connections, plan.workload.sends()),
        ("--pull-connections", plan.pull_connections, !plan.workload.sends() || plan.workload.tails()),
    ] {
        if used && count < needed {
            return Err(Failure::Plan(format!("{needed} brokers need {option} {needed} at least, not {count}")));
        }
    }
    let topics = topic_names(plan);
    let (mut brokers, mut queues) = (Vec::new(), Vec::new());
    for (index, name) in names.iter().enumerate() {
        let mut connection = Connection::open(name)?;
        brokers.push(resolve(name)?);
        observer(Event::Preparing(&format!("{} topics on {name}", topics.len())));
        for topic in &topics {
            make_topic(plan, &mut connection, name, topic)?;
        }
        if plan.workload.tails() || plan.workload.catches_up() {
            observer(Event::Preparing(&format!("the ends of {} queues on {name}", topics.len() as u32 * plan.queues)));
            for topic in &topics {
                for queue_id in 0..plan.queues {
                    let mut end = |code| queue_end(&mut connection, code, topic, queue_id);
                    let (begin, end) = (end(request::GET_MIN_OFFSET)?, end(request::GET_MAX_OFFSET)?);
                    queues.push(QueueEnds { broker: index, topic: topic.clone(), queue_id, begin, end });
                }
            }
        }
    }
    Ok(Ground { brokers, queues })
}

fn resolve(name: &str) -> Result<SocketAddr, Failure> {
    let found = name.to_socket_addrs().map(|mut addresses| addresses.next());
    match found {
        Ok(Some(address)) => Ok(address),
        Ok(None) => Err(Failure::Peer(format!("{name} has no address"))),
        Err(error) => Err(Failure::Peer(format!("{name} has no address: {error}"))),
    }
}

/// Makes the topic if it is not there, and waits until its last queue answers.
fn make_topic(plan: &Plan, connection: &mut Connection, broker: &str, topic: &str) -> Result<(), Failure> {
    match queues_of(connection, topic)? {
        Some(found) if plan.queues > found || plan.create && plan.queues != found => {
            return Err(Failure::Plan(format!(
                "topic {topic} on {broker} has {found} queues; give --queues {found}, or another --topic"
            )));
        }
        Some(_) => {}
        None if plan.create => {
            let queues = plan.queues.to_string();
            let ext = [
                ("attributes", ""),
                ("defaultTopic", "TBW102"),
                ("order", "false"),
                ("perm", READ_WRITE),
                ("readQueueNums", &queues),
                ("topic", topic),
                ("topicFilterType", "SINGLE_TAG"),
                ("topicSysFlag", "0"),
                ("writeQueueNums", &queues),
            ];
            connection.demand(|| format!("making topic {topic}"), request::UPDATE_AND_CREATE_TOPIC, &ext, &[])?;
        }
        None => {
            return Err(Failure::Plan(format!("{broker} has no topic {topic}; leave --no-create out to make it")));
        }
    }
    let deadline = Instant::now() + TOPIC_WAIT;
    loop {
        match queue_end(connection, request::GET_MAX_OFFSET, topic, plan.queues - 1) {
            Ok(_) => return Ok(()),
            Err(ClientError::Refused { .. }) if Instant::now() < deadline => thread::sleep(PAUSE),
            Err(error) => return Err(error.into()),
        }
    }
}

/// How many queues a topic has to write to; `None` if it is not there, or the broker is too old to say.
fn queues_of(connection: &mut Connection, topic: &str) -> Result<Option<u32>, Failure> {
    let answer = connection.ask(request::GET_TOPIC_CONFIG, &[("topic", topic)], &[])?;
    if answer.code != response::SUCCESS {
        return Ok(None);
    }
    let config: serde_json::Value = serde_json::from_slice(&answer.body)
        .map_err(|error| Failure::Peer(format!("the settings of topic {topic} cannot be read: {error}")))?;
    Ok(config["writeQueueNums"].as_u64().and_then(|count| u32::try_from(count).ok()))
}

fn queue_end(connection: &mut Connection, code: i32, topic: &str, queue_id: u32) -> Result<u64, ClientError> {
    let queue = queue_id.to_string();
    let doing = || format!("the offsets of queue {queue_id} of {topic}");
    let answer = connection.demand(doing, code, &[("queueId", &queue), ("topic", topic)], &[])?;
    let offset = answer.number("offset").unwrap_or(0);
    // A queue without a message has no first one: some brokers say -1.
    Ok(u64::try_from(offset).unwrap_or(0))
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Failure {
        Failure::Peer(error.to_string())
    }
}
