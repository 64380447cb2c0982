//! `kerolox-bench sink`: a server that stores nothing and answers every send with success.
//!
//! What the generator reaches against it is the most that it can show of any broker here. One thread and a poll; of a
//! send it reads frame lengths, code and opaque number, and answers by bytes that were built before. With `--decode` it
//! reads each header whole first: then it is a measure for brokers, which cannot do without.

mod decode;

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::process::{Child, Command as Program, ExitCode, Stdio};

use bytes::BytesMut;
use kerolox::format::record::{RecordSpec, number};
use kerolox::types::{PhyOffset, QueueOffset, Timestamp};
use kerolox::wire::code::{request, response};
use kerolox::wire::headers::PullHeader;
use kerolox::wire::{Command, FLAG_ONEWAY, FrameBounds, HeaderType, VERSION_5, encode_response, first_frame};
use rustix::event::epoll;
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};
use slab::Slab;

use crate::load::answer::{Head, head};
use crate::load::frames::{OPAQUE_FIRST, opaque_at, put_opaque};
use crate::load::link::{Inbox, Outbox};
use crate::load::worker::settle;
use decode::{Unreadable, decode};

/// Each queue pretends to hold so many messages.
const QUEUE_LEN: u64 = 1_000_000;
/// Of a pull's answer, whatever it asks for.
const MESSAGES_MAX: usize = 32;
const BODY_LEN: usize = 1024;
/// Above this nothing more is read of a connection until it has taken its answers.
const OUTBOX_MAX: usize = 1 << 20;
const EVENTS: usize = 256;
const LISTENER: u64 = u64::MAX;

/// Answer every request with success and store nothing: the generator's own ceiling
#[derive(Debug, clap::Args)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Prints the address that it listens on, and runs until it is killed. `kerolox-bench run --sink` starts one by itself.

Bare, it shows what the generator can; with --decode, what a broker could that did nothing but read its requests.
A request that cannot be read ends its connection.

Examples:
  kerolox-bench sink --listen 127.0.0.1:10999 --core 1
  kerolox-bench sink --listen 127.0.0.1:10999 --decode

Exit codes:
  1  it cannot listen there, or not go on
  2  wrong usage"
)]
pub struct Args {
    /// ADDR:PORT; port 0: any that is free
    #[arg(long, value_name = "ADDR")]
    listen: SocketAddr,
    /// Core to run on [default: any]
    #[arg(long, value_name = "N")]
    core: Option<usize>,
    /// Decode each header whole before it is answered: a send's fields as what they are
    #[arg(long)]
    decode: bool,
    /// End with the process that started it
    #[arg(long, hide = true)]
    with_parent: bool,
}

pub fn run(args: Args) -> ExitCode {
    let Err(error) = serve(&args);
    eprintln!("kerolox-bench: the sink on {} ended: {error}", args.listen);
    ExitCode::FAILURE
}

/// How much a sink reads of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Length, code and opaque number
    #[default]
    Bare,
    /// The whole header, as a broker must
    Decode,
}

/// A sink in a process of its own; it ends when this is dropped.
pub struct Started {
    child: Child,
    pub address: String,
}

impl Started {
    /// # Errors
    /// If this program cannot be started again, or finds no port.
    pub fn on(core: Option<usize>, kind: Kind) -> io::Result<Started> {
        let mut program = Program::new(std::env::current_exe()?);
        program.args(["sink", "--with-parent", "--listen", "127.0.0.1:0"]);
        if let Some(core) = core {
            program.args(["--core", &core.to_string()]);
        }
        if kind == Kind::Decode {
            program.arg("--decode");
        }
        let mut child = program.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let mut address = String::new();
        let out = child.stdout.take().expect("it was asked for");
        let read = BufReader::new(out).read_line(&mut address);
        let started = Started { child, address: address.trim().to_owned() };
        match read {
            Ok(len) if len > 0 => Ok(started),
            Ok(_) => Err(io::Error::other("the sink ended at once")),
            Err(error) => Err(error),
        }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to kill.
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

enum Never {}

fn serve(args: &Args) -> io::Result<Never> {
    if args.with_parent {
        set_parent_process_death_signal(Some(Signal::KILL))?;
    }
    settle(args.core)?;
    let listener = TcpListener::bind(args.listen)?;
    listener.set_nonblocking(true)?;
    writeln!(io::stdout(), "{}", listener.local_addr()?)?;
    let kind = if args.decode { Kind::Decode } else { Kind::Bare };
    let mut sink =
        Sink { poll: epoll::create(epoll::CreateFlags::CLOEXEC)?, peers: Slab::new(), answers: Answers::new(kind) };
    epoll::add(&sink.poll, &listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)?;
    let mut events = Vec::with_capacity(EVENTS);
    loop {
        events.clear();
        match epoll::wait(&sink.poll, rustix::buffer::spare_capacity(&mut events), None) {
            Ok(_) => {}
            Err(error) if error == rustix::io::Errno::INTR => {}
            Err(error) => return Err(error.into()),
        }
        for event in &events {
            match event.data.u64() {
                LISTENER => sink.accept(&listener)?,
                number => sink.happened(number as usize, event.flags),
            }
        }
    }
}

struct Sink {
    poll: OwnedFd,
    peers: Slab<Peer>,
    answers: Answers,
}

struct Peer {
    socket: TcpStream,
    inbox: Inbox,
    outbox: Outbox,
    watched: epoll::EventFlags,
}

impl Sink {
    fn accept(&mut self, listener: &TcpListener) -> io::Result<()> {
        loop {
            let socket = match listener.accept() {
                Ok((socket, _)) => socket,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                // The peer has gone already, or there are no more files: the load will say what it misses.
                Err(error) => {
                    eprintln!("kerolox-bench: a connection to the sink is refused: {error}");
                    return Ok(());
                }
            };
            socket.set_nonblocking(true)?;
            socket.set_nodelay(true)?;
            let watched = epoll::EventFlags::IN;
            let entry = self.peers.vacant_entry();
            epoll::add(&self.poll, &socket, epoll::EventData::new_u64(entry.key() as u64), watched)?;
            entry.insert(Peer { socket, inbox: Inbox::default(), outbox: Outbox::default(), watched });
        }
    }

    fn happened(&mut self, number: usize, flags: epoll::EventFlags) {
        // It may have gone with an earlier event of the same turn.
        let Some(peer) = self.peers.get_mut(number) else { return };
        let outcome = peer.serve(flags, &mut self.answers).and_then(|()| peer.watch(&self.poll, number as u64));
        if let Err(error) = outcome {
            if error.kind() == io::ErrorKind::InvalidData {
                eprintln!("kerolox-bench: the sink ends a connection whose request it cannot read: {error}");
            }
            self.peers.remove(number);
        }
    }
}

impl Peer {
    fn serve(&mut self, flags: epoll::EventFlags, answers: &mut Answers) -> io::Result<()> {
        if flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
            match self.inbox.fill(&self.socket) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(error) => return Err(error),
            }
            let bad = |error: Unreadable| io::Error::new(io::ErrorKind::InvalidData, error);
            while let Some((bounds, frame)) = self.inbox.frame().map_err(|error| bad(error.into()))? {
                answers.answer(frame, &bounds, &mut self.outbox).map_err(bad)?;
                let len = bounds.total_len;
                self.inbox.consume(len);
            }
        }
        self.outbox.flush(&self.socket)
    }

    fn watch(&mut self, poll: &OwnedFd, number: u64) -> io::Result<()> {
        let mut wanted = epoll::EventFlags::empty();
        wanted.set(epoll::EventFlags::OUT, !self.outbox.is_empty());
        wanted.set(epoll::EventFlags::IN, self.outbox.len() < OUTBOX_MAX);
        if wanted != self.watched {
            epoll::modify(poll, &self.socket, epoll::EventData::new_u64(number), wanted)?;
            self.watched = wanted;
        }
        Ok(())
    }
}

/// Answers that are built but for what differs.
struct Answers {
    kind: Kind,
    send: [Template; 2],
    scratch: BytesMut,
    /// Records of each queue.
    records: HashMap<i32, Records>,
}

struct Template {
    frame: BytesMut,
    opaque_at: usize,
}

#[derive(Default)]
struct Records {
    bytes: Vec<u8>,
    /// Of each record: where it is, and where its store time is in it.
    places: Vec<(Range<usize>, u8)>,
}

impl Answers {
    fn new(kind: Kind) -> Answers {
        let send = |header_type| {
            let ext = [
                ("MSG_REGION", "DefaultRegion"),
                ("TRACE_ON", "true"),
                ("msgId", "7F00000100002A9F0000000000000000"),
                ("queueId", "0"),
                ("queueOffset", "0"),
            ];
            let mut frame = BytesMut::new();
            encode_response(&mut frame, header_type, response::SUCCESS, VERSION_5, OPAQUE_FIRST, None, &ext, &[]);
            let bounds = first_frame(&frame).expect("our own frame").expect("it is whole");
            Template { opaque_at: opaque_at(&frame, &bounds.header, header_type), frame }
        };
        Answers {
            kind,
            send: [send(HeaderType::Json), send(HeaderType::Rocketmq)],
            scratch: BytesMut::new(),
            records: HashMap::new(),
        }
    }

    fn answer(&mut self, frame: &[u8], bounds: &FrameBounds, out: &mut Outbox) -> Result<(), Unreadable> {
        let decoded = match self.kind {
            Kind::Bare => None,
            Kind::Decode => Some(decode(frame, bounds)?),
        };
        let Head { code, flag, opaque } = match &decoded {
            Some(command) => Head { code: command.code, flag: command.flag, opaque: command.opaque },
            None => head(frame, bounds)?,
        };
        if flag & FLAG_ONEWAY != 0 {
            return Ok(());
        }
        // Our own numbers have ten digits, for which the built answer has room.
        if is_send(code) && opaque >= OPAQUE_MIN {
            let Template { frame, opaque_at } = &mut self.send[usize::from(bounds.header_type == HeaderType::Rocketmq)];
            put_opaque(frame, *opaque_at, bounds.header_type, opaque);
            out.push(frame);
            return Ok(());
        }
        let command = match decoded {
            Some(command) => command,
            None => Command::decode(frame, bounds)?,
        };
        self.scratch.clear();
        let mut reply = |code: i32, ext: &[(&str, &str)], body: &[u8]| {
            encode_response(&mut self.scratch, bounds.header_type, code, VERSION_5, opaque, None, ext, body);
        };
        let queue_len = QUEUE_LEN.to_string();
        match code {
            request::PULL_MESSAGE | request::LITE_PULL_MESSAGE => match PullHeader::read(&command) {
                Ok(pull) => {
                    let offset = u64::try_from(pull.queue_offset).unwrap_or(0);
                    let records = self.records.entry(pull.queue_id).or_insert_with(|| Records::of(pull.queue_id));
                    let wanted = usize::try_from(pull.max_msg_nums).unwrap_or(0);
                    let (count, body) = records.from(offset, wanted);
                    let next = (offset + count as u64).to_string();
                    let ext = [
                        ("maxOffset", queue_len.as_str()),
                        ("minOffset", "0"),
                        ("nextBeginOffset", &next),
                        ("suggestWhichBrokerId", "0"),
                    ];
                    reply(if count > 0 { response::SUCCESS } else { response::PULL_NOT_FOUND }, &ext, body);
                }
                Err(_) => reply(response::SYSTEM_ERROR, &[], &[]),
            },
            request::GET_MAX_OFFSET => reply(response::SUCCESS, &[("offset", &queue_len)], &[]),
            request::GET_MIN_OFFSET => reply(response::SUCCESS, &[("offset", "0")], &[]),
            // Every topic is there once it was made, with as many queues as one likes.
            request::GET_TOPIC_CONFIG => reply(response::TOPIC_NOT_EXIST, &[], &[]),
            _ => reply(response::SUCCESS, &[], &[]),
        }
        out.push(&self.scratch);
        Ok(())
    }
}

fn is_send(code: i32) -> bool {
    matches!(code, request::SEND_MESSAGE | request::SEND_MESSAGE_V2 | request::SEND_BATCH_MESSAGE)
}

/// The least number of ten digits.
const OPAQUE_MIN: i32 = 1_000_000_000;

impl Records {
    fn of(queue_id: i32) -> Records {
        let host = SocketAddr::from((Ipv4Addr::LOCALHOST, 10911));
        let mut records = Records::default();
        for _ in 0..MESSAGES_MAX {
            let start = records.bytes.len();
            let spec = RecordSpec {
                topic: "sink",
                queue_id,
                flag: 0,
                sys_flag: 0,
                born_timestamp: 0,
                born_host: host,
                store_host: host,
                reconsume_times: 0,
                prepared_transaction_offset: 0,
                body: &[b'x'; BODY_LEN],
                properties: &[b"WAIT\x01true\x02"],
            };
            let placed = spec.encode_into(&mut records.bytes).expect("a short record");
            records.places.push((start..records.bytes.len(), placed.store_timestamp_at));
        }
        records
    }

    /// Up to `wanted` records from a queue offset on.
    fn from(&mut self, offset: u64, wanted: usize) -> (usize, &[u8]) {
        let there = QUEUE_LEN.saturating_sub(offset).min(MESSAGES_MAX as u64) as usize;
        let count = there.min(wanted);
        for (index, (range, store_timestamp_at)) in self.places[..count].iter().enumerate() {
            let queue_offset = QueueOffset(offset + index as u64);
            let record = &mut self.bytes[range.clone()];
            number(record, *store_timestamp_at, queue_offset, PhyOffset(0), Timestamp(0));
        }
        let len = if count == 0 { 0 } else { self.places[count - 1].0.end };
        (count, &self.bytes[..len])
    }
}

#[cfg(test)]
mod tests {
    use kerolox::wire::encode_request;

    use super::*;

    /// As a Java client of 5.x wrote it.
    pub const JAVA_SEND: &str = r#"{"code":310,"extFields":{"a":"1795975251502","b":"TopicB","c":"TBW102","d":"4","e":"2","f":"0","g":"1795975251848","h":"0","i":"KEYS\u0001KK\u0002UNIQ_KEY\u0001FD00000000000000000000000000000257E55FFD2B27940F9F880000\u0002WAIT\u0001true\u0002TAGS\u0001TT","j":"0","k":"false","m":"false","n":"broker-a"},"flag":0,"language":"JAVA","opaque":8,"serializeTypeCurrentRPC":"JSON","version":479}"#;

    pub const LONG_SEND: [(&str, &str); 12] = [
        ("producerGroup", "PG"),
        ("topic", "TopicA"),
        ("defaultTopic", "TBW102"),
        ("defaultTopicQueueNums", "4"),
        ("queueId", "3"),
        ("sysFlag", "0"),
        ("bornTimestamp", "1795975490081"),
        ("flag", "0"),
        ("properties", "WAIT\u{1}true\u{2}"),
        ("reconsumeTimes", "0"),
        ("unitMode", "false"),
        ("batch", "false"),
    ];

    pub const SHORT_SEND: [(&str, &str); 12] = [
        ("a", "PG"),
        ("b", "TopicA"),
        ("c", "TBW102"),
        ("d", "4"),
        ("e", "3"),
        ("f", "0"),
        ("g", "1795975490081"),
        ("h", "0"),
        ("i", "WAIT\u{1}true\u{2}"),
        ("j", "0"),
        ("k", "false"),
        ("m", "false"),
    ];

    pub fn json_frame(header: &str, body: &[u8]) -> Vec<u8> {
        let header_len = header.len() as u32;
        let len = header_len + body.len() as u32 + 4;
        [&len.to_be_bytes()[..], &header_len.to_be_bytes(), header.as_bytes(), body].concat()
    }

    /// What a sink writes for these frames.
    fn answers(kind: Kind, frames: &[Vec<u8>]) -> Vec<u8> {
        let (mut answers, mut out) = (Answers::new(kind), Outbox::default());
        for frame in frames {
            let bounds = first_frame(frame).unwrap().expect("it is whole");
            answers.answer(frame, &bounds, &mut out).unwrap();
        }
        out.waiting().to_vec()
    }

    #[test]
    fn answers_are_the_same_however_much_is_read() {
        let pull = [
            ("consumerGroup", "G"),
            ("topic", "TopicA"),
            ("queueId", "1"),
            ("queueOffset", "5"),
            ("maxMsgNums", "3"),
            ("sysFlag", "0"),
            ("commitOffset", "0"),
            ("suspendTimeoutMillis", "0"),
            ("subVersion", "0"),
        ];
        let mut frames = vec![json_frame(JAVA_SEND, b"hello")];
        for header_type in [HeaderType::Json, HeaderType::Rocketmq] {
            for (code, flag, ext) in [
                (request::SEND_MESSAGE, 0, &LONG_SEND[..]),
                (request::SEND_MESSAGE_V2, 0, &SHORT_SEND),
                (request::SEND_BATCH_MESSAGE, 0, &SHORT_SEND),
                (request::SEND_MESSAGE_V2, FLAG_ONEWAY, &SHORT_SEND),
                (request::PULL_MESSAGE, 0, &pull),
                (request::GET_MAX_OFFSET, 0, &[("topic", "TopicA"), ("queueId", "1")]),
                (request::GET_TOPIC_CONFIG, 0, &[("topic", "TopicA")]),
                (request::HEART_BEAT, 0, &[]),
            ] {
                for opaque in [3, OPAQUE_FIRST] {
                    let mut frame = BytesMut::new();
                    encode_request(&mut frame, header_type, code, VERSION_5, opaque, flag, ext, b"body");
                    frames.push(frame.to_vec());
                }
            }
        }
        let bare = answers(Kind::Bare, &frames);
        assert!(bare == answers(Kind::Decode, &frames));
        let (mut rest, mut count) = (&bare[..], 0);
        while let Some(bounds) = first_frame(rest).unwrap() {
            rest = &rest[bounds.total_len..];
            count += 1;
        }
        assert_eq!((count, rest.len()), (frames.len() - 4, 0), "one for each that wants one");
    }

    #[test]
    fn only_the_sink_that_decodes_refuses_a_bad_number() {
        let frame = json_frame(&JAVA_SEND.replace(r#""e":"2""#, r#""e":"two""#), b"");
        let bounds = first_frame(&frame).unwrap().expect("it is whole");
        let answer = |kind| Answers::new(kind).answer(&frame, &bounds, &mut Outbox::default());
        assert!(answer(Kind::Bare).is_ok());
        let why = answer(Kind::Decode).unwrap_err().to_string();
        assert!(why.contains("field e ") && why.contains("\"two\""), "{why}");
    }
}
