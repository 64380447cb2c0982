//! What a broker says of its own settings, asked as RocketMQ's admin tools ask: 26 for settings, 28 for its state.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use kerolox::wire::cluster::ClusterInfo;
use kerolox::wire::code::{request, response};
use kerolox::wire::lists::KvTable;
use kerolox::wire::{Command, FrameError, HeaderType, VERSION_5, encode_request, first_frame};

use super::{Broker, Looker};
use crate::load::Target;

/// Settings as Java properties. Not among the library's codes: our own node does not answer it.
const GET_BROKER_CONFIG: i32 = 26;
/// How long to wait for a connection, and again for an answer.
const ANSWER_WAIT: Duration = Duration::from_secs(5);

/// Asks the broker of a load for everything that it can tell; `None` if it is not known which that is.
///
/// Of several behind a name server the first by name speaks for all.
pub(super) fn look(looker: &mut Looker, target: &Target) -> Option<Broker> {
    match target {
        Target::Broker(address) => Some(one(looker, address)),
        Target::NameServer(address) => match masters(address) {
            Ok(masters) => {
                let (first, others) = masters.split_first()?;
                if !others.is_empty() {
                    looker.missed("other brokers", format_args!("{} were not asked", others.join(", ")));
                }
                Some(one(looker, first))
            }
            Err(why) => {
                looker.missed("broker", why);
                None
            }
        },
    }
}

/// Addresses of the masters that a name server knows, by broker name.
fn masters(address: &str) -> Result<Vec<String>, String> {
    let body = told(address, request::GET_BROKER_CLUSTER_INFO)?;
    let info = ClusterInfo::decode(&body).map_err(|why| format!("{address} answered request 106 with {why}"))?;
    let masters: Vec<String> = info.brokers.into_values().filter_map(|mut it| it.addresses.remove(&0)).collect();
    if masters.is_empty() { Err(format!("the name server {address} knows no master")) } else { Ok(masters) }
}

fn one(looker: &mut Looker, address: &str) -> Broker {
    let mut found = Broker { address: address.to_owned(), ..Broker::default() };
    match told(address, request::GET_BROKER_RUNTIME_INFO) {
        Ok(body) => match KvTable::decode(&body) {
            Ok(KvTable { table }) => found.state = table,
            Err(why) => looker.missed("broker's state", format_args!("{address} answered request 28 with {why}")),
        },
        Err(why) => looker.missed("broker's state", why),
    }
    match told(address, GET_BROKER_CONFIG) {
        Ok(body) => found.settings = properties(&String::from_utf8_lossy(&body)),
        Err(why) => looker.missed("broker's settings", why),
    }
    found.version = found.state.get("brokerVersionDesc").cloned();
    if found.version.is_none() && !found.state.is_empty() {
        looker.missed("broker's version", "the answer to request 28 has no brokerVersionDesc");
    }
    found.flush = flush_of(&found);
    if found.flush.is_none() {
        looker.missed("broker's flush mode", "told neither as keroloxFlushMode (28) nor as flushDiskType (26)");
    }
    found
}

/// "sync" or "async", as the node says in its state or a Java broker in its settings.
fn flush_of(broker: &Broker) -> Option<String> {
    let ours = broker.state.get("keroloxFlushMode").cloned();
    ours.or_else(|| match broker.settings.get("flushDiskType")?.as_str() {
        "SYNC_FLUSH" => Some("sync".to_owned()),
        "ASYNC_FLUSH" => Some("async".to_owned()),
        other => Some(other.to_owned()),
    })
}

fn told(address: &str, code: i32) -> Result<Vec<u8>, String> {
    let answer = ask(address, code).map_err(|error| format!("request {code}: {error}"))?;
    match (answer.code, answer.remark.as_str()) {
        (response::SUCCESS, _) => Ok(answer.body),
        (response::REQUEST_CODE_NOT_SUPPORTED, _) => {
            Err(format!("{address} does not answer request {code} (code {})", answer.code))
        }
        (code_told, remark) => Err(format!("{address} refused request {code} with code {code_told}: {remark}")),
    }
}

/// Settings written as Java's `Properties`: `key=value` lines; `\` before a letter is taken as that letter.
fn properties(text: &str) -> BTreeMap<String, String> {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with(['#', '!']));
    let pairs = lines.filter_map(|line| line.split_once('='));
    pairs.map(|(key, value)| (key.trim().to_owned(), value.trim().replace("\\:", ":").replace("\\=", "="))).collect()
}

/// A peer's answer to one request.
#[derive(Debug)]
pub struct Answer {
    pub code: i32,
    pub remark: String,
    pub body: Vec<u8>,
}

/// Sends one request without fields to HOST:PORT on a connection of its own and waits at most ten seconds for its
/// answer, whatever that says. Blocks the thread.
///
/// # Errors
/// [`AskError`] if no answer came; that a broker refuses is an answer.
pub fn ask(address: &str, code: i32) -> Result<Answer, AskError> {
    let failed = |source| AskError::Unreachable { peer: address.to_owned(), source };
    let mut stream = None;
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for candidate in address.to_socket_addrs().map_err(failed)? {
        match TcpStream::connect_timeout(&candidate, ANSWER_WAIT) {
            Ok(open) => stream = Some(open),
            Err(error) => last = error,
        }
        if stream.is_some() {
            break;
        }
    }
    let mut stream = stream.ok_or_else(|| failed(last))?;
    let broken = |source| AskError::Broken { peer: address.to_owned(), source };
    stream.set_write_timeout(Some(ANSWER_WAIT)).map_err(broken)?;
    let mut frame = BytesMut::new();
    encode_request(&mut frame, HeaderType::Json, code, VERSION_5, 0, 0, &[], &[]);
    stream.write_all(&frame).map_err(broken)?;

    let deadline = Instant::now() + ANSWER_WAIT;
    let mut inbox = BytesMut::new();
    let mut piece = [0; 16 << 10];
    let bad = |source| AskError::NoRemoting { peer: address.to_owned(), source };
    loop {
        while let Some(bounds) = first_frame(&inbox).map_err(bad)? {
            let frame = inbox.split_to(bounds.total_len);
            let command = Command::decode(&frame, &bounds).map_err(bad)?;
            if command.is_response() {
                let remark = command.remark.as_deref().unwrap_or_default().to_owned();
                return Ok(Answer { code: command.code, remark, body: command.body.to_vec() });
            }
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(AskError::Silent { peer: address.to_owned() });
        }
        stream.set_read_timeout(Some(left)).map_err(broken)?;
        match stream.read(&mut piece) {
            Ok(0) => return Err(broken(io::ErrorKind::UnexpectedEof.into())),
            Ok(len) => inbox.extend_from_slice(&piece[..len]),
            // A timeout shows as either of the first two.
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(broken(error)),
        }
    }
}

/// Why there is no answer.
#[derive(Debug)]
pub enum AskError {
    Unreachable { peer: String, source: io::Error },
    Broken { peer: String, source: io::Error },
    Silent { peer: String },
    NoRemoting { peer: String, source: FrameError },
}

impl fmt::Display for AskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AskError::Unreachable { peer, source } => write!(f, "{peer} cannot be reached ({source})"),
            AskError::Broken { peer, source } => write!(f, "the connection to {peer} broke: {source}"),
            AskError::Silent { peer } => write!(f, "{peer} gave no answer in {} s", ANSWER_WAIT.as_secs()),
            AskError::NoRemoting { peer, source } => write!(f, "{peer} does not speak RocketMQ remoting: {source}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::path::Path;
    use std::thread;

    use kerolox::wire::Response;

    use super::*;

    /// A broker that answers each connection's one request by what `answer` makes of its code.
    fn broker(answer: impl Fn(i32) -> Response + Send + 'static) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut inbox = Vec::new();
                let mut piece = [0; 512];
                let code = loop {
                    let len = stream.read(&mut piece).unwrap();
                    inbox.extend_from_slice(&piece[..len]);
                    if let Some(bounds) = first_frame(&inbox).unwrap() {
                        break Command::decode(&inbox, &bounds).unwrap().code;
                    }
                };
                let mut out = BytesMut::new();
                answer(code).encode(&mut out, HeaderType::Json, 0, VERSION_5);
                stream.write_all(&out).unwrap();
            }
        });
        address
    }

    #[test]
    fn a_java_brokers_settings_and_state_are_taken() {
        let address = broker(|code| match code {
            GET_BROKER_CONFIG => Response::ok().body("#x\nflushDiskType=SYNC_FLUSH\nnamesrvAddr=a\\:1\nempty=\n"),
            _ => {
                let table = BTreeMap::from([("brokerVersionDesc".to_owned(), "V5_3_3".to_owned())]);
                Response::ok().body(KvTable { table }.encode())
            }
        });
        let mut looker = Looker::new(Path::new("/"));
        let found = one(&mut looker, &address);
        assert_eq!((found.version.as_deref(), found.flush.as_deref()), (Some("V5_3_3"), Some("sync")));
        assert_eq!(found.settings.get("namesrvAddr").map(String::as_str), Some("a:1"));
        assert_eq!(looker.not_found, [] as [&str; 0]);
    }

    #[test]
    fn what_a_broker_refuses_or_does_not_know_is_named() {
        let address = broker(|code| match code {
            GET_BROKER_CONFIG => Response::with_code(response::REQUEST_CODE_NOT_SUPPORTED),
            _ => Response::ok().body("no table"),
        });
        let mut looker = Looker::new(Path::new("/"));
        assert_eq!(one(&mut looker, &address).flush, None);
        let named: Vec<&str> = looker.not_found.iter().map(|line| line.split(':').next().unwrap()).collect();
        assert_eq!(named, ["broker's state", "broker's settings", "broker's flush mode"]);
        assert!(looker.not_found[1].contains("request 26"), "{:?}", looker.not_found);
    }

    #[test]
    fn nobody_there_and_somebody_else_there_are_told_apart() {
        let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        assert!(matches!(ask(&gone, 28), Err(AskError::Unreachable { .. })));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        thread::spawn(move || listener.accept().unwrap().0.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap());
        assert!(matches!(ask(&address, 28), Err(AskError::NoRemoting { .. } | AskError::Broken { .. })));
    }
}
