//! A small RocketMQ client over one blocking socket: what `topic`, `send` and `tail` share.
//!
//! One thread, one connection, frames in JSON. Several requests may be under way at once; answers are matched by their
//! opaque number. Requests that a broker sends to us are skipped: these commands register with nobody.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use bytes::BytesMut;

use crate::wire::cluster::ClusterInfo;
use crate::wire::code::{request, response};
use crate::wire::lists::TopicList;
use crate::wire::route::{BrokerData, RouteData};
use crate::wire::{BodyError, Command, FRAME_LEN_MAX, FrameError, HeaderType, VERSION_5, encode_request, first_frame};

/// The name server of a node that nobody configured.
pub const NAMESRV_DEFAULT: &str = "127.0.0.1:9876";
/// The broker of a node that nobody configured.
pub const BROKER_DEFAULT: &str = "127.0.0.1:10911";
/// How long to wait for a connection, and for the answer to anything but a held pull.
const ANSWER_WAIT: Duration = Duration::from_secs(5);
/// Of the nodes that share a broker name, the one to write to and read from.
const MASTER_ID: i64 = 0;
/// How much room to make before each read.
const READ_LEN: usize = 64 << 10;

/// An open connection to a broker or a name server.
pub struct Connection {
    peer: String,
    stream: TcpStream,
    inbox: BytesMut,
    next_opaque: i32,
}

/// A peer's answer, with data of its own.
#[derive(Debug)]
pub struct Answer {
    pub opaque: i32,
    pub code: i32,
    pub remark: String,
    pub body: Vec<u8>,
    ext: Vec<(String, String)>,
}

impl Answer {
    /// A number in the answer's header; `None` if it is not there or no number.
    pub fn number(&self, name: &str) -> Option<i64> {
        self.text(name)?.parse().ok()
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        self.ext.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }
}

impl Connection {
    /// Connects to `peer`, which is HOST:PORT.
    pub fn open(peer: &str) -> Result<Connection, ClientError> {
        let failed = |source| ClientError::Unreachable { peer: peer.to_owned(), source };
        let addresses = peer.to_socket_addrs().map_err(failed)?;
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in addresses {
            match TcpStream::connect_timeout(&address, ANSWER_WAIT) {
                Ok(stream) => {
                    stream.set_nodelay(true).map_err(failed)?;
                    stream.set_write_timeout(Some(ANSWER_WAIT)).map_err(failed)?;
                    return Ok(Connection { peer: peer.to_owned(), stream, inbox: BytesMut::new(), next_opaque: 0 });
                }
                Err(error) => last = error,
            }
        }
        Err(failed(last))
    }

    /// Sends a request without waiting; gives the opaque number of the answer to come.
    pub fn send(&mut self, code: i32, ext: &[(&str, &str)], body: &[u8]) -> Result<i32, ClientError> {
        let opaque = self.next_opaque;
        self.next_opaque = self.next_opaque.wrapping_add(1);
        let texts_len: usize = ext.iter().map(|(name, value)| name.len() + value.len()).sum();
        if body.len() + texts_len * 6 + 4096 > FRAME_LEN_MAX {
            return Err(ClientError::TooLong { body_len: body.len() });
        }
        let mut frame = BytesMut::new();
        encode_request(&mut frame, HeaderType::Json, code, VERSION_5, opaque, 0, ext, body);
        self.stream.write_all(&frame).map_err(|source| self.broken(source))?;
        Ok(opaque)
    }

    /// The next answer, whichever request it belongs to; `None` if none has come by `deadline`.
    pub fn receive(&mut self, deadline: Instant) -> Result<Option<Answer>, ClientError> {
        loop {
            if let Some(answer) = self.take_answer()? {
                return Ok(Some(answer));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.stream.set_read_timeout(Some(left)).map_err(|source| self.broken(source))?;
            let start = self.inbox.len();
            self.inbox.resize(start + READ_LEN, 0);
            let read = self.stream.read(&mut self.inbox[start..]);
            self.inbox.truncate(start + *read.as_ref().unwrap_or(&0));
            match read {
                Ok(0) => return Err(ClientError::Closed { peer: self.peer.clone() }),
                Ok(_) => {}
                // A timeout shows as either of the first two.
                Err(error) if is_passing(error.kind()) => {}
                Err(error) => return Err(self.broken(error)),
            }
        }
    }

    /// Asks and waits for the answer, whatever its code.
    pub fn ask(&mut self, code: i32, ext: &[(&str, &str)], body: &[u8]) -> Result<Answer, ClientError> {
        let opaque = self.send(code, ext, body)?;
        let deadline = Instant::now() + ANSWER_WAIT;
        while let Some(answer) = self.receive(deadline)? {
            if answer.opaque == opaque {
                return Ok(answer);
            }
        }
        Err(self.silent(ANSWER_WAIT))
    }

    /// Asks for something that must succeed; `doing` says what in the message if it does not.
    pub fn demand(
        &mut self,
        doing: impl FnOnce() -> String,
        code: i32,
        ext: &[(&str, &str)],
        body: &[u8],
    ) -> Result<Answer, ClientError> {
        let answer = self.ask(code, ext, body)?;
        if answer.code == response::SUCCESS { Ok(answer) } else { Err(self.refused(doing(), &answer)) }
    }

    pub fn refused(&self, doing: String, answer: &Answer) -> ClientError {
        ClientError::Refused { peer: self.peer.clone(), doing, code: answer.code, remark: answer.remark.clone() }
    }

    pub fn silent(&self, waited: Duration) -> ClientError {
        ClientError::Silent { peer: self.peer.clone(), waited }
    }

    pub fn unreadable(&self, doing: String, why: BodyError) -> ClientError {
        ClientError::Unreadable { peer: self.peer.clone(), doing, why }
    }

    fn broken(&self, source: io::Error) -> ClientError {
        ClientError::Broken { peer: self.peer.clone(), source }
    }

    /// Cuts whole frames off the inbox until one is an answer.
    fn take_answer(&mut self) -> Result<Option<Answer>, ClientError> {
        let bad = |source, peer: &str| ClientError::BadFrame { peer: peer.to_owned(), source };
        while let Some(bounds) = first_frame(&self.inbox).map_err(|source| bad(source, &self.peer))? {
            let frame = self.inbox.split_to(bounds.total_len);
            let command = Command::decode(&frame, &bounds).map_err(|source| bad(source, &self.peer))?;
            if command.is_response() {
                return Ok(Some(Answer {
                    opaque: command.opaque,
                    code: command.code,
                    remark: command.remark.as_deref().unwrap_or_default().to_owned(),
                    body: command.body.to_vec(),
                    ext: command.ext.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
                }));
            }
        }
        Ok(None)
    }
}

fn is_passing(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

/// A queue and where its broker is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueuePlace {
    pub broker: String,
    pub address: String,
    pub queue_id: i32,
}

/// What a name server knows of a topic; `None`: no such topic.
pub fn route(namesrv: &mut Connection, topic: &str) -> Result<Option<RouteData>, ClientError> {
    let ext = [("acceptStandardJsonOnly", "true"), ("topic", topic)];
    let answer = namesrv.ask(request::GET_ROUTEINFO_BY_TOPIC, &ext, &[])?;
    let doing = || format!("the request for the route of topic {topic}");
    match answer.code {
        response::SUCCESS => RouteData::decode(&answer.body).map(Some).map_err(|why| namesrv.unreadable(doing(), why)),
        response::TOPIC_NOT_EXIST => Ok(None),
        _ => Err(namesrv.refused(doing(), &answer)),
    }
}

/// The address of the master among the nodes that share a broker name.
pub fn master_of<'a>(route: &'a RouteData, broker: &str) -> Option<&'a str> {
    let nodes = route.brokers.iter().find(|nodes| nodes.broker_name == broker)?;
    nodes.addresses.get(&MASTER_ID).map(String::as_str)
}

/// The masters of all brokers that a name server knows: name → address.
pub fn masters(namesrv: &mut Connection) -> Result<BTreeMap<String, String>, ClientError> {
    let doing = || "the request for the list of brokers".to_owned();
    let answer = namesrv.demand(doing, request::GET_BROKER_CLUSTER_INFO, &[], &[])?;
    let info = ClusterInfo::decode(&answer.body).map_err(|why| namesrv.unreadable(doing(), why))?;
    let master = |(name, mut nodes): (String, BrokerData)| Some((name, nodes.addresses.remove(&MASTER_ID)?));
    Ok(info.brokers.into_iter().filter_map(master).collect())
}

/// All topics that a name server knows, sorted.
pub fn topics(namesrv: &mut Connection) -> Result<Vec<String>, ClientError> {
    let doing = || "the request for the list of topics".to_owned();
    let answer = namesrv.demand(doing, request::GET_ALL_TOPIC_LIST_FROM_NAMESERVER, &[], &[])?;
    let mut list = TopicList::decode(&answer.body).map_err(|why| namesrv.unreadable(doing(), why))?.topics;
    list.sort_unstable();
    Ok(list)
}

/// Why the other side did not do what it was asked.
#[derive(Debug)]
pub enum ClientError {
    Unreachable {
        peer: String,
        source: io::Error,
    },
    Broken {
        peer: String,
        source: io::Error,
    },
    Closed {
        peer: String,
    },
    /// No answer in time.
    Silent {
        peer: String,
        waited: Duration,
    },
    /// Answered with a code that is no success.
    Refused {
        peer: String,
        doing: String,
        code: i32,
        remark: String,
    },
    /// Answered with a body that cannot be understood.
    Unreadable {
        peer: String,
        doing: String,
        why: BodyError,
    },
    BadFrame {
        peer: String,
        source: FrameError,
    },
    /// The request would not fit a frame.
    TooLong {
        body_len: usize,
    },
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClientError::Unreachable { peer, source } => {
                write!(f, "{peer} cannot be reached ({source}); is the node running there? `kerolox serve` starts one")
            }
            ClientError::Broken { peer, source } => write!(f, "the connection to {peer} broke: {source}"),
            ClientError::Closed { peer } => write!(f, "{peer} closed the connection; did the node stop?"),
            ClientError::Silent { peer, waited } => write!(f, "{peer} gave no answer in {} s", waited.as_secs()),
            ClientError::Refused { peer, doing, code, remark } => {
                write!(f, "{peer} refused {doing}: code {code}")?;
                if let Some(meaning) = meaning(*code) {
                    write!(f, " ({meaning})")?;
                }
                if remark.is_empty() { Ok(()) } else { write!(f, ", {remark}") }
            }
            ClientError::Unreadable { peer, doing, why } => {
                write!(f, "{peer} answered {doing} with a body that cannot be read: {why}")
            }
            ClientError::BadFrame { peer, source } => write!(f, "{peer} does not speak RocketMQ remoting: {source}"),
            ClientError::TooLong { body_len } => {
                write!(f, "a body of {body_len} bytes does not fit a frame of {FRAME_LEN_MAX}; send a smaller one")
            }
        }
    }
}

fn meaning(code: i32) -> Option<&'static str> {
    Some(match code {
        response::SYSTEM_ERROR => "error",
        response::SYSTEM_BUSY => "busy, try again",
        response::REQUEST_CODE_NOT_SUPPORTED => "not supported there",
        response::MESSAGE_ILLEGAL => "message illegal or too large",
        response::SERVICE_NOT_AVAILABLE => "the broker takes no messages now",
        response::NO_PERMISSION => "no permission",
        response::TOPIC_NOT_EXIST => "no such topic",
        response::INVALID_PARAMETER => "invalid parameter",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;
    use crate::wire::encode_response;

    /// A peer that takes one connection, hears one request and writes what `answer` makes of its opaque number.
    fn peer(answer: impl FnOnce(i32) -> BytesMut + Send + 'static) -> Connection {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut inbox = Vec::new();
            let opaque = loop {
                if let Some(bounds) = first_frame(&inbox).unwrap() {
                    break Command::decode(&inbox, &bounds).unwrap().opaque;
                }
                let mut piece = [0; 512];
                let len = stream.read(&mut piece).unwrap();
                inbox.extend_from_slice(&piece[..len]);
            };
            stream.write_all(&answer(opaque)).unwrap();
        });
        Connection::open(&address).unwrap()
    }

    #[test]
    fn an_answer_is_found_behind_pushes_and_answers_to_others() {
        let mut connection = peer(|opaque| {
            let mut out = BytesMut::new();
            encode_request(
                &mut out,
                HeaderType::Json,
                request::NOTIFY_CONSUMER_IDS_CHANGED,
                VERSION_5,
                opaque,
                2,
                &[],
                &[],
            );
            encode_response(&mut out, HeaderType::Json, 0, VERSION_5, opaque + 7, None, &[], b"other");
            encode_response(&mut out, HeaderType::Rocketmq, 0, VERSION_5, opaque, None, &[("offset", "42")], b"mine");
            out
        });
        let answer = connection.ask(request::GET_MAX_OFFSET, &[("topic", "T")], &[]).unwrap();
        assert_eq!((answer.number("offset"), answer.body.as_slice()), (Some(42), b"mine".as_slice()));
    }

    #[test]
    fn a_refusal_tells_who_what_and_why() {
        let mut connection = peer(|opaque| {
            let mut out = BytesMut::new();
            encode_response(&mut out, HeaderType::Json, 17, VERSION_5, opaque, Some("topic[T] not exist"), &[], &[]);
            out
        });
        let peer = connection.peer.clone();
        let error = connection.demand(|| "creating topic T".into(), 17, &[], &[]).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("{peer} refused creating topic T: code 17 (no such topic), topic[T] not exist")
        );
    }

    #[test]
    fn a_peer_that_speaks_something_else_or_leaves_is_an_error() {
        let mut connection = peer(|_| BytesMut::from(&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..]));
        assert!(matches!(connection.ask(1, &[], &[]), Err(ClientError::BadFrame { .. })));
        let mut connection = peer(|_| BytesMut::new());
        assert!(matches!(connection.ask(1, &[], &[]), Err(ClientError::Closed { .. } | ClientError::Broken { .. })));
    }

    #[test]
    fn a_node_that_is_not_there_is_named() {
        let Err(error) = Connection::open("127.0.0.1:1") else { panic!("nobody listens on port 1") };
        assert!(error.to_string().starts_with("127.0.0.1:1 cannot be reached"), "{error}");
    }
}
