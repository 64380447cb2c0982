//! Starting and stopping: what stands in the way is one clear line on standard error and the exit code that `kerolox
//! serve --help` names; a node that is told to stop stops with 0.

mod harness;

use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command as Program, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use harness::{Client, Node, Request, free_address, free_address_with_vip};
use kerolox::wire::HeaderType;
use kerolox::wire::code::{request, response};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use tempfile::TempDir;

/// Wrong settings or a host that lacks something: the same start would fail again.
const CANNOT: i32 = 2;
/// What `nobody` has everywhere.
const NOBODY: u32 = 65_534;
/// A start that is to fail has failed by then.
const REFUSAL_MAX: Duration = Duration::from_secs(10);

/// A directory, settings that start a small node in it, and how to start it.
struct Attempt {
    dir: TempDir,
    listen: SocketAddr,
    name_server: SocketAddr,
    more: String,
}

impl Attempt {
    fn new(more: &str) -> Attempt {
        let dir = TempDir::new().expect("a directory for the node");
        Attempt { dir, listen: free_address(), name_server: free_address(), more: more.to_owned() }
    }

    fn program(&self) -> Program {
        let (listen, name_server) = (self.listen, self.name_server);
        let settings = format!(
            "net.listen = \"{listen}\"\nnet.vip = false\nnameserver.embedded = \"{name_server}\"\nmetrics.listen = \"off\"\n{}\n{}\n",
            "store.commitlog_file_size = \"16MiB\"\nstore.index_slots = 5000\nstore.index_entries = 20000", self.more
        );
        // A key that comes twice is an error of its own.
        let mut lines: Vec<&str> = Vec::new();
        for line in settings.lines() {
            lines.retain(|other| line.split('=').next() != other.split('=').next() || line.is_empty());
            lines.push(line);
        }
        fs::write(self.dir.path().join("k.toml"), lines.join("\n")).expect("the node's settings");
        let mut program = Program::new(env!("CARGO_BIN_EXE_kerolox"));
        program.args(["serve", "--config", "k.toml", "--data", "data"]).current_dir(self.dir.path());
        program.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        program
    }

    fn data(&self) -> std::path::PathBuf {
        self.dir.path().join("data")
    }

    /// The same ports with another directory.
    fn refused_beside(&self) -> String {
        let mut other = Attempt::new("");
        (other.listen, other.name_server) = (self.listen, self.name_server);
        other.refused()
    }

    /// Starts it and gives the line that says why it does not run.
    fn refused(&self) -> String {
        refused(&mut self.program())
    }
}

/// Runs a node that must not start: exit code 2, nothing on standard output, one line beside the log's.
fn refused(program: &mut Program) -> String {
    let mut child = program.spawn().expect("the built node starts");
    let began = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("it can be waited for") {
            break status;
        }
        if began.elapsed() > REFUSAL_MAX {
            let _ = child.kill();
            panic!("it runs");
        }
        thread::sleep(Duration::from_millis(10));
    };
    let (mut out, mut err) = (String::new(), String::new());
    child.stdout.take().expect("piped").read_to_string(&mut out).expect("it prints UTF-8");
    child.stderr.take().expect("piped").read_to_string(&mut err).expect("it prints UTF-8");
    assert_eq!(out, "");
    assert_eq!(status.code(), Some(CANNOT), "{err}");
    let (lines, log): (Vec<&str>, Vec<&str>) = err.lines().partition(|line| line.starts_with("kerolox: "));
    let expected = |line: &&str| line.contains("INFO") || line.contains("host warning");
    assert!(log.iter().all(expected), "only the log stands beside it: {err}");
    let [line] = lines[..] else { panic!("one line says why, not {}: {err}", lines.len()) };
    line.to_owned()
}

/// A running node that is not the harness's, killed when dropped.
struct Running(std::process::Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts an attempt that is to succeed.
fn runs(attempt: &Attempt, program: &mut Program) -> Running {
    let log = fs::File::create(attempt.dir.path().join("log")).unwrap();
    let mut child = program.stdout(Stdio::null()).stderr(log).spawn().expect("the built node starts");
    let began = Instant::now();
    loop {
        let log = fs::read_to_string(attempt.dir.path().join("log")).unwrap();
        if log.lines().any(|line| line.starts_with("kerolox: ready on ")) {
            return Running(child);
        }
        assert!(child.try_wait().unwrap().is_none(), "it ended: {log}");
        assert!(began.elapsed() < Duration::from_secs(30), "not ready: {log}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn as_nobody(program: &mut Program, memlock: u64) {
    // Nobody may not raise it, and the closure runs as nobody already.
    let most = getrlimit(Resource::Memlock).maximum.unwrap_or(u64::MAX).min(memlock);
    let limit = Rlimit { current: Some(most), maximum: Some(most) };
    program.uid(NOBODY).gid(NOBODY);
    // SAFETY: setrlimit is a plain system call, as may be made between fork and exec.
    unsafe { program.pre_exec(move || Ok(setrlimit(Resource::Memlock, limit)?)) };
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Opens a directory and all that leads to it for everybody.
fn open_to_nobody(dir: &Path) {
    fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).unwrap();
    chown(dir, Some(NOBODY), Some(NOBODY)).unwrap();
}

#[test]
fn wrong_settings_are_refused_with_their_place() {
    for (settings, named) in [
        ("flsh.mode = \"sync\"", "flsh"),
        ("flush.mod = \"sync\"", "mod"),
        ("[flush]\nmode = \"sometimes\"", "flush.mode"),
        ("flush.interval_ms = -5", "flush.interval_ms"),
        ("store.commitlog_file_size = \"5 parsecs\"", "store.commitlog_file_size"),
        ("store.commitlog_file_size = 16777217", "store.commitlog_file_size"),
        ("net.max_connections = 0", "net.max_connections"),
        ("net.listen = \"localhost\"", "net.listen"),
        ("cores.shards = []", "cores.shards"),
        ("cores.shards = [0, 0]", "cores.shards"),
        ("cores.writer = \"none\"", "cores.writer"),
        ("broker.id = 1", "broker.id"),
        ("net.vip = ", "k.toml"),
    ] {
        let attempt = Attempt::new(settings);
        let line = attempt.refused();
        assert!(line.contains(named) && line.contains("k.toml"), "{settings}: {line}");
        assert!(!attempt.data().exists(), "nothing is made before the settings are right");
    }
    let output = Program::new(env!("CARGO_BIN_EXE_kerolox")).args(["serve", "--config", "none.toml"]).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), text.lines().count()), (Some(CANNOT), 1), "{text}");
    assert!(text.contains("none.toml"), "{text}");
}

#[test]
fn cores_that_the_process_may_not_use_are_refused() {
    for (settings, named) in [
        ("cores.writer = 1000", "cores.writer"),
        ("cores.shards = [1001]", "cores.shards"),
        ("cores.writer = 0\ncores.shards = [1002, 1003]", "cores.shards"),
    ] {
        let line = Attempt::new(settings).refused();
        assert!(line.contains(named) && line.contains("100"), "{line}");
    }
    // The affinity that it was started with counts, not what the machine has.
    let attempt = Attempt::new("cores.writer = 1");
    let mut program = attempt.program();
    // SAFETY: sched_setaffinity is a plain system call, as may be made between fork and exec; the set is on its stack.
    unsafe {
        program.pre_exec(|| {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(0, &mut set);
            match libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        })
    };
    let line = refused(&mut program);
    assert!(line.contains("cores.writer") && line.contains("may use 0"), "{line}");
}

#[test]
fn a_taken_port_is_refused_whoever_has_it() {
    let vip = |addr: SocketAddr| SocketAddr::new(addr.ip(), addr.port() - 2);
    // A stranger's.
    for which in 0..3 {
        let mut attempt = Attempt::new("net.vip = true");
        attempt.listen = free_address_with_vip();
        let (taken, key) = [
            (attempt.listen, "net.listen"),
            (attempt.name_server, "nameserver.embedded"),
            (vip(attempt.listen), "net.vip"),
        ][which];
        let stranger = TcpListener::bind(taken).unwrap();
        let line = attempt.refused();
        assert!(line.contains(&taken.to_string()) && line.contains(key), "{line}");
        assert!(!attempt.data().exists(), "nothing is made before the ports are free");
        drop(stranger);
    }
    // Another Kerolox's, which shares its ports between its own shards.
    let other = Node::with(&[("net.vip", "true")]);
    type Case = (fn(&mut Attempt, &Node), &'static str);
    let cases: [Case; 4] = [
        (|attempt, other| attempt.listen = other.broker, "net.listen"),
        (|attempt, other| attempt.name_server = other.name_server, "nameserver.embedded"),
        (|attempt, other| attempt.listen.set_port(other.broker.port() - 2), "net.listen"),
        (
            |attempt, other| attempt.listen = SocketAddr::new(IpAddr::from([0, 0, 0, 0]), other.broker.port()),
            "net.listen",
        ),
    ];
    for (meet, key) in cases {
        let mut attempt = Attempt::new("");
        meet(&mut attempt, &other);
        let line = attempt.refused();
        assert!(line.contains(key) && line.contains("in use"), "{line}");
    }
    assert_eq!(other.client(HeaderType::Json).ask(&Request::queue(request::GET_MAX_OFFSET, "TBW102")).code, 0);
}

#[test]
fn of_two_nodes_started_at_once_on_one_port_one_runs() {
    for _ in 0..3 {
        let first = Attempt::new("");
        let mut second = Attempt::new("");
        (second.listen, second.name_server) = (first.listen, first.name_server);
        let mut both = [&first, &second].map(|attempt| attempt.program().spawn().unwrap());
        let deadline = Instant::now() + Duration::from_secs(5);
        let ended = loop {
            let ended = both.iter_mut().filter_map(|child| child.try_wait().unwrap()).collect::<Vec<_>>();
            if !ended.is_empty() || Instant::now() > deadline {
                break ended;
            }
            thread::sleep(Duration::from_millis(10));
        };
        thread::sleep(Duration::from_millis(100));
        let still = both.iter_mut().map(|child| child.try_wait().unwrap()).filter(Option::is_none).count();
        for child in &mut both {
            let _ = child.kill();
            let _ = child.wait();
        }
        assert_eq!((ended.len(), still), (1, 1), "one of the two must give way");
        assert_eq!(ended[0].code(), Some(CANNOT));
    }
}

#[test]
fn a_store_that_is_in_use_is_refused() {
    let node = Node::start();
    let attempt = Attempt::new("");
    attempt.program();
    let root = node.root();
    let mut program = Program::new(env!("CARGO_BIN_EXE_kerolox"));
    program.args(["serve", "--config", "k.toml", "--data"]).arg(&root).current_dir(attempt.dir.path());
    program.stdout(Stdio::piped()).stderr(Stdio::piped());
    let line = refused(&mut program);
    assert!(line.contains("in use") && line.contains(&node.pid().to_string()), "{line}");
    node.client(HeaderType::Json).put(&Request::send("Unharmed"));
}

#[test]
fn a_data_directory_that_cannot_be_written_is_refused() {
    let file_in_the_way = Attempt::new("");
    fs::write(file_in_the_way.data(), "a file").unwrap();
    let line = file_in_the_way.refused();
    assert!(line.contains("data"), "{line}");
    let part_in_the_way = Attempt::new("");
    fs::create_dir(part_in_the_way.data()).unwrap();
    fs::write(part_in_the_way.data().join("commitlog"), "a file").unwrap();
    let line = part_in_the_way.refused();
    assert!(line.contains("commitlog"), "{line}");
    if !is_root() {
        eprintln!("not root: a directory of somebody else's is not tried");
        return;
    }
    for inner in ["", "config", "commitlog"] {
        let attempt = Attempt::new("");
        fs::set_permissions(attempt.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::create_dir(attempt.data()).unwrap();
        if !inner.is_empty() {
            open_to_nobody(&attempt.data());
            fs::create_dir(attempt.data().join(inner)).unwrap();
            fs::set_permissions(attempt.data().join(inner), fs::Permissions::from_mode(0o700)).unwrap();
        }
        let mut program = attempt.program();
        as_nobody(&mut program, 1 << 30);
        let line = refused(&mut program);
        assert!(line.contains("data") && line.to_lowercase().contains("permission denied"), "{line}");
    }
}

#[test]
fn too_little_lockable_memory_is_refused_and_enough_is_enough() {
    if !is_root() {
        eprintln!("not root: nobody else can be started as");
        return;
    }
    let attempt = Attempt::new("");
    open_to_nobody(attempt.dir.path());
    let mut program = attempt.program();
    as_nobody(&mut program, 64 << 10);
    let line = refused(&mut program);
    assert!(line.contains("locked memory") && line.contains("65536") && line.contains("ulimit -l"), "{line}");
    assert!(!attempt.data().exists(), "nothing is made before the host is right");
    // What the line asks for must do.
    let kib: u64 = line.split("ulimit -l ").nth(1).unwrap().split(')').next().unwrap().parse().unwrap();
    let mut program = attempt.program();
    as_nobody(&mut program, kib << 10);
    let running = runs(&attempt, &mut program);
    Client::connect(attempt.listen, HeaderType::Json).put(&Request::send("Enough"));
    drop(running);
}

#[test]
fn what_the_host_could_do_better_is_logged_and_refused_only_when_strict() {
    let attempt = Attempt::new("");
    let few_files = |program: &mut Program| {
        let limit = Some(4096);
        // SAFETY: a plain system call.
        unsafe {
            program.pre_exec(move || Ok(setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit })?))
        };
    };
    let mut strict = attempt.program();
    few_files(strict.arg("--strict"));
    let line = refused(&mut strict);
    assert!(line.contains("--strict") && line.contains("nofile") && line.contains("kerolox-tune check"), "{line}");
    assert!(!attempt.data().exists(), "nothing is made before the host is right");
    let mut program = attempt.program();
    few_files(&mut program);
    drop(runs(&attempt, &mut program));
    let log = fs::read_to_string(attempt.dir.path().join("log")).unwrap();
    let told: Vec<&str> = log.lines().filter(|line| line.contains("setting=\"nofile\"")).collect();
    let [told] = told[..] else { panic!("one line a finding: {log}") };
    for words in ["WARN", "host warning", "found=\"4096 open files allowed\"", "LimitNOFILE="] {
        assert!(told.contains(words), "{words}: {told}");
    }
}

/// Makes every later `io_uring_setup` of the process fail with this error.
fn forbid_io_uring(program: &mut Program, error: i32) {
    const IO_URING_SETUP: u32 = 425;
    let number_at = 0;
    // SAFETY: plain system calls; the filter lives on this stack until the kernel has copied it.
    unsafe {
        program.pre_exec(move || {
            let code = |parts: u32| parts as u16;
            let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
            let mut steps = [
                step(code(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS), 0, 0, number_at),
                step(code(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K), 0, 1, IO_URING_SETUP),
                step(code(libc::BPF_RET | libc::BPF_K), 0, 0, libc::SECCOMP_RET_ERRNO | error as u32),
                step(code(libc::BPF_RET | libc::BPF_K), 0, 0, libc::SECCOMP_RET_ALLOW),
            ];
            let filter = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
            if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
                || libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) != 0
            {
                return Err(std::io::Error::last_os_error());
            }
            Ok(())
        })
    };
}

#[test]
fn a_host_without_io_uring_is_refused_with_the_reason() {
    for (error, reason) in
        [(libc::EPERM, "a sandbox forbids it"), (libc::ENOSYS, "this kernel has none"), (libc::ENOMEM, "memory")]
    {
        let attempt = Attempt::new("");
        let mut program = attempt.program();
        forbid_io_uring(&mut program, error);
        let line = refused(&mut program);
        assert!(line.contains("io_uring") && line.contains(reason), "{line}");
        assert!(!attempt.data().exists(), "nothing is made before the host is right");
    }
}

#[test]
fn an_empty_directory_is_ready_soon_and_an_idle_node_uses_next_to_nothing() {
    // With the default sizes: no whole segment is waited for.
    let attempt = Attempt::new(
        "store.commitlog_file_size = \"1GiB\"\nstore.index_slots = 5000000\nstore.index_entries = 20000000",
    );
    let began = Instant::now();
    let running = runs(&attempt, &mut attempt.program());
    let ready = began.elapsed();
    let mut client = Client::connect(attempt.listen, HeaderType::Json);
    let answer = client.ask(&Request::send("First"));
    let first = began.elapsed();
    thread::sleep(Duration::from_secs(1));
    let cpu = || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", running.0.id())).unwrap();
        let ticks = stat.rsplit(')').next().unwrap().split_whitespace().skip(11).take(2);
        ticks.map(|part| part.parse::<u64>().unwrap()).sum::<u64>() as f64
            / rustix::param::clock_ticks_per_second() as f64
    };
    let before = cpu();
    thread::sleep(Duration::from_secs(4));
    let idle = (cpu() - before) / 4.0 * 100.0;
    eprintln!("ready after {ready:?}, first message ({}) after {first:?}; idle: {idle:.2} % of a core", answer.code);
    // Figures are no tests; these bounds only catch what is broken.
    assert!(ready < Duration::from_secs(10), "{ready:?}");
    assert!(idle < 20.0, "{idle} %");
}

#[test]
fn both_signals_end_it_with_0_and_what_was_acknowledged_is_there() {
    for signal in [Signal::TERM, Signal::INT] {
        let attempt = Attempt::new("");
        let mut running = runs(&attempt, &mut attempt.program());
        let mut client = Client::connect(attempt.listen, HeaderType::Json);
        for index in 0..20 {
            client.put(&Request::send("Kept").body(index.to_string()));
        }
        // One that is held, and one that has begun a frame, do not hold up the stop.
        let mut holding = Client::connect(attempt.listen, HeaderType::Json);
        holding.send(&Request::pull("Kept", 20).with("sysFlag", 2 | 4).with("suspendTimeoutMillis", 60_000));
        let mut begun = Client::connect(attempt.listen, HeaderType::Json);
        begun.send_raw(&[0, 0, 1]);
        let began = Instant::now();
        kill_process(Pid::from_child(&running.0), signal).unwrap();
        let status = running.0.wait().unwrap();
        eprintln!("{signal:?}: stopped after {:?}", began.elapsed());
        assert_eq!(status.code(), Some(0));
        assert!(began.elapsed() < Duration::from_secs(10));
        assert!(!attempt.data().join("abort").exists(), "a clean stop leaves no abort file");
        let running = runs(&attempt, &mut attempt.program());
        let answer = Client::connect(attempt.listen, HeaderType::Json).pull_until("Kept", 0, 20);
        assert_eq!(answer.bodies(), (0..20).map(|index| index.to_string()).collect::<Vec<_>>());
        drop(running);
    }
}

#[test]
fn a_stop_is_not_held_up_by_floods_and_by_peers_that_never_read() {
    let mut node = Node::start();
    let mut client = node.client(HeaderType::Json);
    for _ in 0..20 {
        client.put(&Request::send("Large").body(vec![b'x'; 64 << 10]));
    }
    client.pull_until("Large", 19, 1);
    let deaf = node.client(HeaderType::Json);
    let pulls = deaf.frame(&Request::pull("Large", 0), 1).repeat(200);
    deaf.socket().write_all(&pulls).unwrap();
    let floods: Vec<_> = [Request::send("Flood").oneway(), Request::send("Flood"), Request::new(9999)]
        .into_iter()
        .map(|asked| {
            let flooder = node.client(HeaderType::Json);
            flooder.socket().set_write_timeout(Some(Duration::from_secs(1))).unwrap();
            let frames = flooder.frame(&asked, 1).repeat(500);
            // Until the node closes the connection.
            thread::spawn(move || while flooder.socket().write(&frames).is_ok_and(|len| len > 0) {})
        })
        .collect();
    thread::sleep(Duration::from_millis(300));
    let began = Instant::now();
    assert!(node.stop().success());
    eprintln!("stopped under load after {:?}", began.elapsed());
    for flood in floods {
        flood.join().unwrap();
    }
    assert!(!node.root().join("abort").exists(), "a clean stop leaves no abort file");
    node.start_again();
    node.client(HeaderType::Json).pull_until("Large", 0, 1);
}

#[test]
fn it_listens_on_ipv6_too() {
    let mut attempt = Attempt::new("");
    for address in [&mut attempt.listen, &mut attempt.name_server] {
        address.set_ip(IpAddr::from(std::net::Ipv6Addr::LOCALHOST));
        if TcpListener::bind(*address).is_err() {
            eprintln!("no IPv6 on this host: not tried");
            return;
        }
    }
    let running = runs(&attempt, &mut attempt.program());
    let mut client = Client::connect(attempt.listen, HeaderType::Json);
    let id = client.put(&Request::send("Six")).text("msgId").to_owned();
    assert_eq!(id.len(), 56, "an id of an IPv6 host: {id}");
    let answer = client.pull_until("Six", 0, 1);
    assert_eq!(answer.records()[0].store_host(), attempt.listen);
    assert!(attempt.refused_beside().contains("in use"));
    drop(running);
}

#[test]
fn a_second_signal_and_a_signal_during_the_start_still_end_it() {
    let attempt = Attempt::new("");
    let mut running = runs(&attempt, &mut attempt.program());
    for _ in 0..3 {
        let _ = kill_process(Pid::from_child(&running.0), Signal::TERM);
    }
    assert_eq!(running.0.wait().unwrap().code(), Some(0));
    for ms in [5, 20, 60] {
        let mut child = attempt.program().spawn().unwrap();
        thread::sleep(Duration::from_millis(ms));
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        let began = Instant::now();
        while child.try_wait().unwrap().is_none() {
            if began.elapsed() > Duration::from_secs(10) {
                let _ = child.kill();
                panic!("a signal {ms} ms after the start is lost");
            }
            thread::sleep(Duration::from_millis(10));
        }
        // Either the signal's own death, before it was caught, or the end of a stop.
        let status = child.wait().unwrap();
        assert!(status.code().is_none_or(|code| code == 0), "{status:?}");
    }
}

#[test]
fn a_node_starts_again_at_once_after_a_kill_with_connections_in_time_wait() {
    let mut node = Node::with(&[("net.max_connections", "40")]);
    for how in ["killed", "stopped", "killed again"] {
        let mut clients: Vec<Client> = (0..30).map(|_| node.client(HeaderType::Json)).collect();
        clients.extend((0..5).map(|_| Client::connect(node.name_server, HeaderType::Json)));
        for client in &mut clients {
            client.ask(&Request::queue(request::GET_MAX_OFFSET, "TBW102"));
        }
        // Those that are too many are closed by the node, which so gets their TIME_WAIT.
        let refused: Vec<Client> = (0..20).map(|_| node.client(HeaderType::Json)).collect();
        thread::sleep(Duration::from_millis(100));
        if how == "stopped" {
            assert!(node.stop().success());
        } else {
            node.kill();
        }
        // The node closed first; only now do the clients.
        drop((clients, refused));
        node.start_again();
        let answer = node.client(HeaderType::Json).ask(&Request::queue(request::GET_MAX_OFFSET, "TBW102"));
        assert_eq!(answer.code, response::SUCCESS, "{how}");
    }
    drop(TcpStream::connect(node.broker));
}

/// Rule R18, and what an older broker or a tool of Java's may rely on.
#[test]
fn r18_nothing_of_ours_lies_in_a_folder_of_javas() {
    let mut node = Node::with(&[("flush.mode", "\"sync\"")]);
    for killed in [false, true, true, false] {
        let mut client = node.client(HeaderType::Json);
        for properties in ["KEYS=k;", "DELAY=1;"] {
            client.put(&Request::send("Ours").properties(properties));
        }
        client.pull_until("Ours", 0, 1);
        if killed {
            node.kill();
        } else {
            assert!(node.stop().success());
        }
        let names = |dir: &str| -> Vec<String> {
            let entries = fs::read_dir(node.root().join(dir)).expect("the folder is there");
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
        };
        for name in names("") {
            let known = ["abort", "checkpoint", "commitlog", "config", "consumequeue", "index", "kerolox", "lock"];
            assert!(known.contains(&&*name), "{name}");
        }
        let is_number = |name: &String, len| name.len() == len && name.bytes().all(|byte| byte.is_ascii_digit());
        assert!(names("commitlog").iter().all(|name| is_number(name, 20)), "{:?}", names("commitlog"));
        assert!(names("index").iter().all(|name| is_number(name, 17)), "{:?}", names("index"));
        for topic in names("consumequeue") {
            for queue in names(&format!("consumequeue/{topic}")) {
                let files = names(&format!("consumequeue/{topic}/{queue}"));
                assert!(is_number(&queue, queue.len()) && files.iter().all(|name| is_number(name, 20)), "{files:?}");
            }
        }
        for name in names("config") {
            let known = ["topics", "subscriptionGroup", "consumerOffset", "consumerFilter", "delayOffset"];
            let table = name.trim_end_matches(".bak").trim_end_matches(".tmp").trim_end_matches(".json");
            assert!(known.contains(&table), "{name}");
        }
        node.start_again();
    }
}

/// T10 (a) of the cases, and E40.
#[test]
fn t10_a_torn_or_empty_table_of_offsets_is_taken_from_its_predecessor_which_is_told() {
    let mut node = Node::start();
    let mut client = node.client(HeaderType::Json);
    client.put(&Request::send("Kept"));
    client.pull_until("Kept", 0, 1);
    let of_group = |code| Request::queue(code, "Kept").with("consumerGroup", "test_group");
    let commit = |client: &mut Client, offset: u32| {
        let answer = client.ask(&of_group(request::UPDATE_CONSUMER_OFFSET).with("commitOffset", offset));
        assert_eq!(answer.code, response::SUCCESS, "{answer:?}");
    };
    commit(&mut client, 7);
    assert!(node.stop().success());
    let path = node.root().join("config/consumerOffset.json");
    let whole = fs::read(&path).unwrap();
    for kept in [0, whole.len() / 2, whole.len() - 1] {
        fs::write(path.with_extension("json.bak"), &whole).unwrap();
        fs::write(&path, &whole[..kept]).unwrap();
        let logged = node.log().len();
        node.start_again();
        let log = node.log()[logged..].to_owned();
        let told = |line: &&str| line.contains("WARN") && line.contains("consumerOffset.json");
        assert!(log.lines().any(|line| told(&line)), "{kept}: {log}");
        let found = node.client(HeaderType::Json).ask(&of_group(request::QUERY_CONSUMER_OFFSET));
        assert_eq!(found.number("offset"), 7, "{kept}");
        let aside = fs::read_dir(path.parent().unwrap()).unwrap().map(|entry| entry.unwrap().path());
        let aside: Vec<_> =
            aside.filter(|path| path.to_str().unwrap().contains("consumerOffset.json.corrupt-")).collect();
        // Of an empty one there is nothing to keep.
        assert_eq!(aside.len(), usize::from(kept > 0), "{aside:?}");
        for path in aside {
            assert_eq!(fs::read(&path).unwrap(), whole[..kept]);
            fs::remove_file(path).unwrap();
        }
        assert!(node.stop().success());
        assert_eq!(fs::read(&path).unwrap(), whole, "saved anew");
    }
}
