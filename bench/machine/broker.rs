//! What a broker says of its own settings, asked as RocketMQ's admin tools ask: 26 for settings, 28 for its state.

use std::collections::BTreeMap;

use kerolox::cli::client::{self, Connection};
use kerolox::wire::code::{request, response};
use kerolox::wire::lists::KvTable;

use super::{Broker, Looker, process};
use crate::load::Target;

/// Settings as Java properties. Not among the library's codes: our own node does not answer it.
const GET_BROKER_CONFIG: i32 = 26;

/// Asks the broker of a load for everything that it can tell; `None` if it is not known which that is.
///
/// Of several behind a name server the first by name speaks for all. `pid`: its process, if that is known and here.
pub(super) fn look(looker: &mut Looker, target: &Target, pid: Option<u32>) -> Option<Broker> {
    match target {
        Target::Broker(address) => Some(one(looker, address, pid)),
        Target::NameServer(address) => match masters(address) {
            Ok(masters) => {
                let (first, others) = masters.split_first()?;
                if !others.is_empty() {
                    looker.missed("other brokers", format_args!("{} were not asked", others.join(", ")));
                }
                Some(one(looker, first, pid))
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
    let masters = Connection::open(address).and_then(|mut namesrv| client::masters(&mut namesrv));
    let masters: Vec<String> = masters.map_err(|error| error.to_string())?.into_values().collect();
    if masters.is_empty() { Err(format!("the name server {address} knows no master")) } else { Ok(masters) }
}

/// Whether a broker answers there, whatever it says. Blocks for ten seconds at most.
pub fn answers(address: &str) -> bool {
    Connection::open(address).and_then(|mut broker| broker.ask(request::GET_BROKER_RUNTIME_INFO, &[], &[])).is_ok()
}

fn one(looker: &mut Looker, address: &str, pid: Option<u32>) -> Broker {
    let mut found = Broker { address: address.to_owned(), ..Broker::default() };
    match told(address, request::GET_BROKER_RUNTIME_INFO) {
        Ok(body) => match KvTable::decode(&body) {
            Ok(KvTable { table }) => found.state = table,
            Err(why) => looker.missed("broker's state", format_args!("{address} answered request 28 with {why}")),
        },
        Err(why) => looker.missed("broker's state", why),
    }
    let pid = pid.or_else(|| process::process_at(address));
    found.command_line = pid.and_then(process::command_line);
    found.cores = pid.and_then(process::cores);
    if found.command_line.is_none() {
        looker.missed("broker's command line", "no process of this host that may be looked at listens on its address");
    }
    match told(address, GET_BROKER_CONFIG) {
        Ok(body) => {
            found.settings = process::properties(&String::from_utf8_lossy(&body));
            found.settings_from = Some("its answer to request 26".to_owned());
        }
        Err(why) => {
            looker.missed("broker's own word on its settings", why);
            match pid.and_then(process::settings_file).map(|file| (process::settings_in(&file), file)) {
                Some((Ok(settings), file)) => {
                    found.settings = settings;
                    found.settings_from = Some(format!("{}, all else by default", file.display()));
                }
                Some((Err(why), _)) => looker.missed("broker's settings", why),
                None => looker.missed("broker's settings", "its command line is not known or names no file"),
            }
        }
    }
    hide_secrets(&mut found.settings);
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

/// A result is made to be passed on, and keys are for the broker alone.
fn hide_secrets(settings: &mut BTreeMap<String, String>) {
    for (_, value) in settings.iter_mut().filter(|(key, _)| process::sounds_secret(key)) {
        process::NOT_SHOWN.clone_into(value);
    }
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
    let answer = Connection::open(address).and_then(|mut broker| broker.ask(code, &[], &[]));
    let answer = answer.map_err(|error| format!("request {code}: {error}"))?;
    match (answer.code, answer.remark.as_str()) {
        (response::SUCCESS, _) => Ok(answer.body),
        (response::REQUEST_CODE_NOT_SUPPORTED, _) => {
            Err(format!("{address} does not answer request {code} (code {})", answer.code))
        }
        (code_told, remark) => Err(format!("{address} refused request {code} with code {code_told}: {remark}")),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::path::Path;
    use std::thread;

    use bytes::BytesMut;
    use kerolox::wire::{Command, HeaderType, Response, VERSION_5, first_frame};

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
            GET_BROKER_CONFIG => {
                Response::ok().body("#x\naclSecretKey=abc\nflushDiskType=SYNC_FLUSH\nnamesrvAddr=a\\:1\nempty=\n")
            }
            _ => {
                let table = BTreeMap::from([("brokerVersionDesc".to_owned(), "V5_3_3".to_owned())]);
                Response::ok().body(KvTable { table }.encode())
            }
        });
        let mut looker = Looker::new(Path::new("/"));
        let found = one(&mut looker, &address, None);
        assert_eq!((found.version.as_deref(), found.flush.as_deref()), (Some("V5_3_3"), Some("sync")));
        assert_eq!(found.settings.get("namesrvAddr").map(String::as_str), Some("a:1"));
        assert_eq!(found.settings.get("aclSecretKey").map(String::as_str), Some("(not shown)"));
        assert_eq!(looker.not_found, [] as [&str; 0]);
    }

    #[test]
    fn what_a_broker_refuses_or_does_not_know_is_named() {
        let address = broker(|code| match code {
            GET_BROKER_CONFIG => Response::with_code(response::REQUEST_CODE_NOT_SUPPORTED),
            _ => Response::ok().body("no table"),
        });
        let mut looker = Looker::new(Path::new("/"));
        assert_eq!(one(&mut looker, &address, None).flush, None);
        let named: Vec<&str> = looker.not_found.iter().map(|line| line.split(':').next().unwrap()).collect();
        let expected =
            ["broker's state", "broker's own word on its settings", "broker's settings", "broker's flush mode"];
        assert_eq!(named, expected);
        assert!(looker.not_found[1].contains("request 26"), "{:?}", looker.not_found);
    }

    #[test]
    fn only_somebody_who_speaks_the_protocol_answers() {
        let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        assert!(!answers(&gone));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        thread::spawn(move || listener.accept().unwrap().0.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap());
        assert!(!answers(&address));
        assert!(answers(&broker(|_| Response::with_code(response::SYSTEM_ERROR))));
    }
}
