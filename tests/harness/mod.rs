//! A node of our own for whole-node tests, and a client that speaks to it in single frames.
//!
//! The node is the built `kerolox serve` with a directory and ports that nobody else has; dropping it kills it. The
//! client sends exactly what a test says and shows exactly what came back, so a test can be as rude as it likes.

// Each test file is a crate of its own and uses its own part of this.
#![allow(dead_code, reason = "shared by test crates, none of which uses everything")]

use std::collections::HashMap;
use std::fmt::Display;
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command as Program, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use kerolox::format::record::RecordView;
use kerolox::wire::code::{request, response};
use kerolox::wire::{Command, HeaderType, VERSION_5, encode_request, first_frame};
use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};
use socket2::{Domain, Socket, Type};
use tempfile::TempDir;

/// How long a loaded machine may take to start a node.
const START_MAX: Duration = Duration::from_secs(30);
/// What the node promises for SIGTERM.
const STOP_MAX: Duration = Duration::from_secs(10);
/// After this an answer is taken for missing.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// Both ways to write a header; every row of the tests is run with each.
pub const HEADER_TYPES: [HeaderType; 2] = [HeaderType::Json, HeaderType::Rocketmq];

/// Says that `test` is left out, and why: the machine forbids what it needs. Past the capture of what tests print.
pub fn skipped(test: &str, why: impl Display) {
    let _ = writeln!(std::io::stderr(), "SKIPPED {test}: {why}");
}

/// `kerolox verify` finds nothing in a store that no node uses but what is in quarantine.
pub fn assert_verified(root: &Path) {
    let told = Program::new(env!("CARGO_BIN_EXE_kerolox")).arg("verify").arg(root).output().expect("it runs");
    let said = String::from_utf8_lossy(&told.stdout).into_owned() + &String::from_utf8_lossy(&told.stderr);
    assert_eq!(told.status.code(), Some(0), "{said}");
}

/// The values of `store.append` that whole-node tests run with; the interop suite reads the same file.
pub fn append_modes() -> impl Iterator<Item = &'static str> {
    include_str!("../append-modes").split_whitespace()
}

/// The settings of a layout: all roles in one executor, or the writer apart. With one core there is no second layout; with
/// three and more "auto" means the latter.
pub fn layout(apart: bool) -> [(&'static str, String); 2] {
    let cores: Vec<_> = core_affinity::get_core_ids().unwrap_or_default().iter().map(|core| core.id).collect();
    let (writer, shards) = match (apart, &cores[..]) {
        (true, [first, rest @ ..]) if !rest.is_empty() => (first.to_string(), format!("{rest:?}")),
        (_, [.., last]) => (last.to_string(), format!("[{last}]")),
        (_, []) => ("\"auto\"".into(), "\"auto\"".into()),
    };
    [("cores.writer", writer), ("cores.shards", shards)]
}

/// A running `kerolox serve`.
pub struct Node {
    child: Child,
    dir: TempDir,
    pub broker: SocketAddr,
    pub name_server: SocketAddr,
}

impl Node {
    /// Starts a node with small files, the writer apart, and the default settings otherwise. (What a node of two cores does by
    /// default, all in one executor, is what the crash tests take turns with, and what clients meet in the interop suite.)
    pub fn start() -> Node {
        Node::with(&[])
    }

    /// Starts a node with these settings: `("flush.mode", "\"sync\"")`. Returns when it is ready and both ports answer.
    pub fn with(settings: &[(&str, &str)]) -> Node {
        Node::prepared(settings, |_| {})
    }

    /// As [`Node::with`], with a say in how the program is started, such as with which limits.
    pub fn prepared(settings: &[(&str, &str)], prepare: impl FnOnce(&mut Program)) -> Node {
        let dir = TempDir::new().expect("a directory for the node");
        let (broker, name_server) = (free_address_with_vip(), free_address());
        let root = dir.path().join("data");
        let mut lines = vec![
            format!("net.listen = \"{broker}\""),
            format!("nameserver.embedded = \"{name_server}\""),
            format!("store.root = {root:?}"),
        ];
        let small = [
            ("net.vip", "false"),
            ("metrics.listen", "\"off\""),
            ("store.commitlog_file_size", "\"16MiB\""),
            ("store.consumequeue_file_size", "60000"),
            ("store.index_slots", "5000"),
            ("store.index_entries", "20000"),
        ];
        let apart = layout(true);
        let apart = apart.iter().map(|(key, value)| (*key, value.as_str()));
        let apart = apart.filter(|_| settings.iter().all(|(set, _)| !set.starts_with("cores.")));
        let kept = small.into_iter().filter(|(key, _)| settings.iter().all(|(set, _)| set != key));
        let all = kept.chain(apart).chain(settings.iter().copied());
        lines.extend(all.map(|(key, value)| format!("{key} = {value}")));
        fs::write(dir.path().join("kerolox.toml"), lines.join("\n") + "\n").expect("the node's settings");
        let mut program = program(dir.path());
        prepare(&mut program);
        let child = program.spawn().expect("the built node starts");
        let mut node = Node { child, dir, broker, name_server };
        node.wait_until_ready(0);
        node
    }

    /// Starts a node with a settings file as it is; flags give it addresses of its own, and `flags` say what else they change.
    /// Its directory, unless they change it, is what the file says. Not for tests that start it again.
    pub fn of_file(settings: &str, flags: &[&str]) -> Node {
        let dir = TempDir::new().expect("a directory for the node");
        fs::write(dir.path().join("kerolox.toml"), settings).expect("the node's settings");
        let (broker, name_server) = (free_address_with_vip(), free_address());
        let mut program = program(dir.path());
        program.args(["--listen", &broker.to_string(), "--namesrv", &name_server.to_string()]);
        program.args(["--set", "metrics.listen=off"]).args(flags);
        let child = program.spawn().expect("the built node starts");
        let mut node = Node { child, dir, broker, name_server };
        node.wait_until_ready(0);
        node
    }

    /// Where its data lies.
    pub fn root(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// Process id, for those who look at memory or threads.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Limits the files that it may write to `len` bytes; `None` lifts the limit.
    ///
    /// # Errors
    /// The machine does not let this process set it.
    pub fn limit_files(&self, len: Option<u64>) -> Result<(), String> {
        let pid = Pid::from_raw(self.pid() as i32).expect("the node has a pid");
        // That of the node, too: only who is privileged may raise it.
        let maximum = getrlimit(Resource::Fsize).maximum;
        match prlimit(Some(pid), Resource::Fsize, Rlimit { current: len.or(maximum), maximum }) {
            Ok(_) => Ok(()),
            Err(error @ (Errno::PERM | Errno::NOSYS)) => Err(format!("prlimit of RLIMIT_FSIZE is refused: {error}")),
            Err(error) => panic!("the limit of file sizes can be set: {error}"),
        }
    }

    /// Bytes of memory of its own: the page cache and mapped files do not count.
    pub fn memory_len(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("the node runs");
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("the kernel tells RssAnon");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number of KiB") << 10
    }

    /// Processor time that it has used so far.
    pub fn cpu_time(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).expect("the node runs");
        let after_name = stat.rsplit(')').next().unwrap_or_default();
        let ticks: u64 = after_name.split_whitespace().skip(11).take(2).map(|part| part.parse::<u64>().unwrap()).sum();
        Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second())
    }

    /// What it has written to standard error.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// Stops it by SIGTERM.
    pub fn stop(&mut self) -> ExitStatus {
        kill_process(Pid::from_child(&self.child), Signal::TERM).expect("the node can be signalled");
        let deadline = Instant::now() + STOP_MAX;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().expect("the node can be waited for") {
                return status;
            }
            thread::sleep(Duration::from_millis(10));
        }
        panic!("the node did not stop within {STOP_MAX:?}; its log:\n{}", self.log());
    }

    /// Stops it by SIGKILL.
    pub fn kill(&mut self) {
        self.child.kill().expect("the node can be killed");
        self.child.wait().expect("the node can be waited for");
    }

    /// Starts it again on the same data and ports, after [`Node::stop`] or [`Node::kill`].
    pub fn start_again(&mut self) {
        let log_from = self.log().len();
        self.child = program(self.dir.path()).spawn().expect("the built node starts");
        self.wait_until_ready(log_from);
    }

    /// Changes a setting that it was started with, for its next start.
    pub fn set(&self, key: &str, value: &str) {
        let path = self.dir.path().join("kerolox.toml");
        let text = fs::read_to_string(&path).expect("the node's settings");
        let prefix = format!("{key} = ");
        assert!(text.lines().any(|line| line.starts_with(&prefix)), "{key} was set");
        let lines = text.lines().map(|line| match line.starts_with(&prefix) {
            true => format!("{prefix}{value}\n"),
            false => format!("{line}\n"),
        });
        fs::write(&path, lines.collect::<String>()).expect("the node's settings");
    }

    /// Starts a process on the same data and ports without waiting for it, for tests that kill it while it starts.
    pub fn spawn_again(&self) -> Child {
        self.spawn_prepared(|_| {})
    }

    /// As [`Node::spawn_again`], with a say in how the program is started.
    pub fn spawn_prepared(&self, prepare: impl FnOnce(&mut Program)) -> Child {
        let mut program = program(self.dir.path());
        prepare(&mut program);
        program.spawn().expect("the built node starts")
    }

    /// A client of its broker.
    pub fn client(&self, header_type: HeaderType) -> Client {
        Client::connect(self.broker, header_type)
    }

    /// Waits for what the process that was just started says, and not for a port alone: that of a killed one may answer
    /// for a moment longer.
    fn wait_until_ready(&mut self, log_from: usize) {
        let deadline = Instant::now() + START_MAX;
        while !self.log()[log_from..].contains("kerolox: ready on") {
            let exited = self.child.try_wait().expect("the node can be waited for");
            assert!(exited.is_none(), "the node ended with {exited:?}; its log:\n{}", self.log());
            assert!(Instant::now() < deadline, "the node is not ready after {START_MAX:?}; its log:\n{}", self.log());
            thread::sleep(Duration::from_millis(5));
        }
        for address in [self.broker, self.name_server] {
            TcpStream::connect(address).unwrap_or_else(|error| panic!("nothing listens on {address}: {error}"));
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // It may have ended already; then there is nothing to kill and the wait returns at once.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("the node's log:\n{}", self.log());
        }
    }
}

fn program(dir: &Path) -> Program {
    let log = File::options().create(true).append(true).open(dir.join("log")).expect("a file for the node's log");
    let mut program = Program::new(env!("CARGO_BIN_EXE_kerolox"));
    program
        .arg("serve")
        .arg("--config")
        .arg(dir.join("kerolox.toml"))
        .current_dir(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log);
    program
}

/// As [`free_address`], with the VIP port two below it, which nobody else gets either.
pub fn free_address_with_vip() -> SocketAddr {
    loop {
        let [vip, _, address] = [free_address(), free_address(), free_address()];
        if vip.port() + 2 == address.port() {
            return address;
        }
    }
}

/// A loopback address that was free a moment ago.
///
/// Below the ports that the system gives to clients: there, a connect to a port on which nobody listens yet may come to
/// connect to itself.
pub fn free_address() -> SocketAddr {
    const FIRST: u16 = 12_000;
    const COUNT: u16 = 20_000;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = process::id() as u16;
    loop {
        let port = FIRST + start.wrapping_mul(97).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT;
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        // Without SO_REUSEADDR, which the standard library sets: where connections of an earlier process linger (TIME_WAIT), a
        // listener of another kind than theirs is refused.
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        if socket.bind(&address.into()).is_ok() {
            return address;
        }
    }
}

/// One request, as it will go out.
#[derive(Clone, Debug)]
pub struct Request {
    code: i32,
    flag: i32,
    version: i32,
    ext: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Request {
    pub fn new(code: i32) -> Request {
        Request { code, flag: 0, version: VERSION_5, ext: Vec::new(), body: Vec::new() }
    }

    /// Sets a field, replacing an earlier value.
    pub fn with(mut self, name: &str, value: impl ToString) -> Request {
        self.ext.retain(|(found, _)| found != name);
        self.ext.push((name.to_owned(), value.to_string()));
        self
    }

    pub fn has(&self, name: &str) -> bool {
        self.ext.iter().any(|(found, _)| found == name)
    }

    pub fn without(mut self, name: &str) -> Request {
        self.ext.retain(|(found, _)| found != name);
        self
    }

    /// Gives fields other names.
    pub fn renamed(mut self, names: &[(&str, &str)]) -> Request {
        for (name, _) in &mut self.ext {
            if let Some((_, new)) = names.iter().find(|(old, _)| old == name) {
                *name = (*new).to_owned();
            }
        }
        self
    }

    pub fn code(mut self, code: i32) -> Request {
        self.code = code;
        self
    }

    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Request {
        self.body = body.into();
        self
    }

    pub fn oneway(mut self) -> Request {
        self.flag = 2;
        self
    }

    /// Version of the client that asks.
    pub fn version(mut self, version: i32) -> Request {
        self.version = version;
        self
    }

    /// A send (310) of a small message to queue 0.
    pub fn send(topic: &str) -> Request {
        Request::new(request::SEND_MESSAGE_V2)
            .with("a", "test_producer")
            .with("b", topic)
            .with("c", "TBW102")
            .with("d", 4)
            .with("e", 0)
            .with("f", 0)
            .with("g", 1_700_000_000_000_i64)
            .with("h", 0)
            .with("i", "")
            .with("j", 0)
            .with("k", "false")
            .with("m", "false")
            .body("hello")
    }

    /// Properties of a send, written `name=value;`.
    pub fn properties(self, readable: &str) -> Request {
        self.with("i", separated(readable))
    }

    /// A pull (11) of everything in queue 0 from `offset` on, as tools do it: nothing committed, no waiting.
    pub fn pull(topic: &str, offset: i64) -> Request {
        Request::new(request::PULL_MESSAGE)
            .with("consumerGroup", "test_group")
            .with("topic", topic)
            .with("queueId", 0)
            .with("queueOffset", offset)
            .with("maxMsgNums", 32)
            .with("sysFlag", 4)
            .with("commitOffset", 0)
            .with("suspendTimeoutMillis", 0)
            .with("subscription", "*")
            .with("subVersion", 0)
            .with("expressionType", "TAG")
    }

    /// 30, 31 and the like, for queue 0.
    pub fn queue(code: i32, topic: &str) -> Request {
        Request::new(code).with("topic", topic).with("queueId", 0)
    }
}

/// Properties as they are stored, from `name=value;`.
pub fn separated(readable: &str) -> String {
    readable.replace('=', "\u{1}").replace(';', "\u{2}")
}

/// One answer, or a request of the node's own.
#[derive(Clone, Debug)]
pub struct Answer {
    pub code: i32,
    pub opaque: i32,
    pub flag: i32,
    pub version: i32,
    pub remark: String,
    pub ext: HashMap<String, String>,
    pub body: Vec<u8>,
}

impl Answer {
    /// A field; missing ones are a failure of the test.
    pub fn text(&self, name: &str) -> &str {
        self.ext.get(name).unwrap_or_else(|| panic!("no field {name} in {self:?}"))
    }

    pub fn number(&self, name: &str) -> i64 {
        self.text(name).parse().unwrap_or_else(|_| panic!("{name} is no number in {self:?}"))
    }

    /// The records in the body.
    pub fn records(&self) -> Vec<RecordView<'_>> {
        let mut rest = &self.body[..];
        let mut records = Vec::new();
        while !rest.is_empty() {
            let record = RecordView::parse(rest).expect("the body holds whole records");
            assert!(record.check_crc(), "a record's body is as it was sent");
            rest = &rest[record.total_len() as usize..];
            records.push(record);
        }
        records
    }

    /// Bodies of the records, as text.
    pub fn bodies(&self) -> Vec<String> {
        self.records().iter().map(|record| String::from_utf8_lossy(record.body()).into_owned()).collect()
    }
}

/// One connection, used blocking.
pub struct Client {
    stream: TcpStream,
    header_type: HeaderType,
    read: BytesMut,
    next_opaque: i32,
    /// What the node asked while an answer was awaited.
    pub pushes: Vec<Answer>,
}

impl Client {
    pub fn connect(address: SocketAddr, header_type: HeaderType) -> Client {
        let stream = TcpStream::connect(address).expect("the node accepts");
        stream.set_nodelay(true).expect("a TCP option");
        Client { stream, header_type, read: BytesMut::new(), next_opaque: 1, pushes: Vec::new() }
    }

    /// Sends a request without waiting; gives its opaque.
    pub fn send(&mut self, asked: &Request) -> i32 {
        let opaque = self.next_opaque;
        self.next_opaque += 1;
        let frame = self.frame(asked, opaque);
        self.send_raw(&frame);
        opaque
    }

    /// The socket itself, for options and half-closing.
    pub fn socket(&self) -> &TcpStream {
        &self.stream
    }

    /// The frame of a request with this opaque.
    pub fn frame(&self, asked: &Request, opaque: i32) -> BytesMut {
        let ext: Vec<(&str, &str)> = asked.ext.iter().map(|(name, value)| (&**name, &**value)).collect();
        let mut frame = BytesMut::new();
        let Request { code, flag, version, .. } = *asked;
        encode_request(&mut frame, self.header_type, code, version, opaque, flag, &ext, &asked.body);
        frame
    }

    /// Sends bytes as they are.
    pub fn send_raw(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the node reads");
    }

    /// The next frame; fails the test if none comes.
    pub fn read(&mut self) -> Answer {
        self.read_within(ANSWER_MAX).expect("an answer")
    }

    /// The next frame, if one comes in that time; `None` also if the node has closed the connection.
    pub fn read_within(&mut self, limit: Duration) -> Option<Answer> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(bounds) = first_frame(&self.read).expect("the node sends frames") {
                let frame = self.read.split_to(bounds.total_len);
                let command = Command::decode(&frame, &bounds).expect("the node sends headers");
                return Some(Answer {
                    code: command.code,
                    opaque: command.opaque,
                    flag: command.flag,
                    version: command.version,
                    remark: command.remark.as_deref().unwrap_or_default().to_owned(),
                    ext: command.ext.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
                    body: command.body.to_vec(),
                });
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            self.stream.set_read_timeout(Some(left)).expect("a time-out above zero");
            let mut chunk = [0; 64 * 1024];
            match self.stream.read(&mut chunk) {
                Ok(0) => return None,
                Ok(len) => self.read.extend_from_slice(&chunk[..len]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return None,
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("the connection failed: {error}"),
            }
        }
    }

    /// Sends a request and gives its answer; no other answer may come first.
    pub fn ask(&mut self, asked: &Request) -> Answer {
        let opaque = self.send(asked);
        loop {
            let answer = self.read();
            if answer.flag & 1 == 1 {
                assert_eq!(answer.opaque, opaque, "{answer:?}");
                return answer;
            }
            self.pushes.push(answer);
        }
    }

    /// Sends a message, which must be stored; again if the node is busy, as a machine full of tests may make it.
    pub fn put(&mut self, asked: &Request) -> Answer {
        let deadline = Instant::now() + ANSWER_MAX;
        loop {
            let answer = self.ask(asked);
            if answer.code == response::SUCCESS {
                return answer;
            }
            assert_eq!(answer.code, response::SYSTEM_BUSY, "{answer:?}");
            assert!(Instant::now() < deadline, "{answer:?}");
        }
    }

    /// The queue offset that the next message of queue 0 will have.
    pub fn max_offset(&mut self, topic: &str) -> i64 {
        self.ask(&Request::queue(request::GET_MAX_OFFSET, topic)).number("offset")
    }

    /// Pulls until queue 0 has `count` messages from `offset` on to show; gives the answer that shows them.
    pub fn pull_until(&mut self, topic: &str, offset: i64, count: usize) -> Answer {
        let deadline = Instant::now() + ANSWER_MAX;
        loop {
            let answer = self.ask(&Request::pull(topic, offset));
            if answer.code == response::SUCCESS && answer.records().len() >= count {
                return answer;
            }
            assert!(Instant::now() < deadline, "queue 0 of {topic} shows no {count} messages: {answer:?}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for the node to end the connection and says whether it did; fails if it sends anything before.
    pub fn closed_within(&mut self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            self.stream.set_read_timeout(Some(left)).expect("a time-out above zero");
            match self.stream.read(&mut [0; 256]) {
                Ok(0) => return true,
                Ok(len) => panic!("the node sent {len} bytes instead of closing"),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
    }

    /// Fails if anything comes in that time.
    pub fn expect_silence(&mut self, time: Duration) {
        let answer = self.read_within(time);
        assert!(answer.is_none(), "nothing was to come: {answer:?}");
    }
}
