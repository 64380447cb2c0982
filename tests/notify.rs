//! What a service manager hears of a node: that it is ready, how a recovery gets on, the watchdog's food, its end. The test
//! plays the manager: it owns the socket that `NOTIFY_SOCKET` names.

mod harness;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::process::{Child, Command as Program};
use std::time::Duration;

use harness::{Node, Request, assert_verified};
use kerolox::wire::HeaderType;
use rustix::process::{Pid, Signal, kill_process};

/// After this a message is taken for missing.
const MESSAGE_MAX: Duration = Duration::from_secs(30);

/// The manager's end.
struct Manager {
    socket: UnixDatagram,
    name: OsString,
    /// Lines of messages that came, and nobody has taken yet.
    lines: RefCell<VecDeque<String>>,
}

impl Manager {
    /// One that listens on an abstract name, which needs no place in a file system.
    fn abstract_one(name: &str) -> Manager {
        let name = format!("kerolox-test-{}-{name}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        Manager::on(UnixDatagram::bind_addr(&address).unwrap(), format!("@{name}").into())
    }

    fn on(socket: UnixDatagram, name: OsString) -> Manager {
        socket.set_read_timeout(Some(MESSAGE_MAX)).unwrap();
        Manager { socket, name, lines: RefCell::default() }
    }

    /// Makes `program` a service of this manager's, with a watchdog of so many microseconds.
    fn manage(&self, program: &mut Program, watchdog_usec: u64) {
        program.env("NOTIFY_SOCKET", &self.name).env("WATCHDOG_USEC", watchdog_usec.to_string());
    }

    /// Takes the lines of the next message in; false: none came.
    fn receive(&self) -> bool {
        let mut bytes = [0; 4096];
        let Ok(len) = self.socket.recv(&mut bytes) else { return false };
        let message = String::from_utf8(bytes[..len].to_vec()).unwrap();
        self.lines.borrow_mut().extend(message.lines().map(str::to_owned));
        true
    }

    /// All lines up to the first that begins like this.
    fn receive_until(&self, beginning: &str) -> Vec<String> {
        let mut lines = Vec::new();
        while !lines.last().is_some_and(|line: &String| line.starts_with(beginning)) {
            while self.lines.borrow().is_empty() {
                assert!(self.receive(), "no {beginning} comes behind {lines:?}");
            }
            lines.extend(self.lines.borrow_mut().pop_front());
        }
        lines
    }

    /// All lines that are still there.
    fn rest(&self) -> Vec<String> {
        self.socket.set_nonblocking(true).unwrap();
        while self.receive() {}
        self.lines.borrow_mut().drain(..).collect()
    }
}

/// A node, killed, whose next start has to scan a log of some MiB, and comes to a consume queue file in the midst of it
/// whose length was lost with the crash. Whoever opens that one waits until the lease is let go.
fn killed_with_a_log() -> (Node, Lease) {
    // Two units a file.
    let mut node = Node::with(&[("recovery.check_crc", "true"), ("store.consumequeue_file_size", "40")]);
    let mut client = node.client(HeaderType::Json);
    let body = vec![b'x'; 1 << 20];
    for _ in 0..MESSAGES {
        client.put(&Request::send("Long").body(body.clone()));
    }
    client.pull_until("Long", MESSAGES - 1, 1);
    node.kill();
    let path = node.root().join("consumequeue/Long/0/00000000000000000120");
    File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
    (node, Lease::take(&path))
}

/// Messages of 1 MiB in that log.
const MESSAGES: i64 = 12;

/// Keeps others from opening a file to write, for the time that the kernel grants (`fs.lease-break-time`, 45 s by default).
struct Lease(File);

impl Lease {
    fn take(path: &Path) -> Lease {
        let file = File::open(path).unwrap();
        // SAFETY: ignoring a signal installs no handler (that somebody waits is told by this one, which else ends the process);
        // the lease is a property of an open file.
        let taken = unsafe {
            libc::signal(libc::SIGIO, libc::SIG_IGN);
            libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_RDLCK)
        };
        assert_eq!(taken, 0, "a lease of {}: {}", path.display(), std::io::Error::last_os_error());
        Lease(file)
    }

    /// Closing the file gives it back.
    fn let_go(self) {
        drop(self.0);
    }
}

/// What is told while the log is scanned.
const SCANNING: &str = "STATUS=recovering: ";

/// All lines up to one that says how far the scan is.
fn receive_scanning(manager: &Manager) -> Vec<String> {
    let mut lines = manager.receive_until(SCANNING);
    while !lines.last().unwrap().contains(" % of the commit log scanned (") {
        lines.extend(manager.receive_until(SCANNING));
    }
    lines
}

fn exit_code(mut child: Child) -> Option<i32> {
    child.wait().unwrap().code()
}

#[test]
fn ready_the_watchdogs_food_and_the_end_are_told_on_both_kinds_of_sockets() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let with_path = Manager::on(UnixDatagram::bind(&path).unwrap(), path.into());
    for manager in [Manager::abstract_one("life"), with_path] {
        let mut node = Node::prepared(&[], |program| manager.manage(program, 600_000));
        let start = manager.receive_until("READY=1");
        assert!(start[0].starts_with("EXTEND_TIMEOUT_USEC="), "{start:?}");
        assert_eq!(start[1], "STATUS=opening the store");
        assert!(!start.contains(&"WATCHDOG=1".to_owned()), "nothing is watched before it is ready: {start:?}");
        let at_work = manager.receive_until("STATUS=ready on ");
        assert!(at_work.last().unwrap().contains(&node.broker.to_string()), "{at_work:?}");
        for _ in 0..5 {
            manager.receive_until("WATCHDOG=1");
        }
        assert_eq!(node.stop().code(), Some(0));
        let end = manager.rest();
        assert!(end.contains(&"STOPPING=1".to_owned()), "{end:?}");
        assert!(end.iter().all(|line| !line.starts_with("READY") && !line.contains("failed")), "{end:?}");
    }
}

#[test]
fn why_it_takes_no_messages_is_the_status() {
    let manager = Manager::abstract_one("full");
    let full = [("disk.min_free_clean", "\"1000000GiB\""), ("disk.min_free_warning", "\"1000000GiB\"")];
    let mut node = Node::prepared(&full, |program| manager.manage(program, 600_000));
    let lines = manager.receive_until("READY=1");
    assert!(lines.iter().all(|line| !line.starts_with("STATUS=ready")), "{lines:?}");
    let status = manager.receive_until("STATUS=");
    let status = status.last().unwrap();
    assert!(status.contains("disk") && status.contains(node.root().to_str().unwrap()), "{status}");
    manager.receive_until("WATCHDOG=1");
    assert_eq!(node.stop().code(), Some(0));
}

#[test]
fn a_manager_that_reads_nothing_holds_up_neither_clients_nor_the_stop() {
    let manager = Manager::abstract_one("deaf");
    let mut node = Node::prepared(&[], |program| manager.manage(program, 2_000));
    // Its queue is full after some messages; the watchdog's come each millisecond.
    while !node.log().contains("the service manager cannot be told") {
        node.client(HeaderType::Json).put(&Request::send("Heard"));
    }
    assert_eq!(node.stop().code(), Some(0));
    assert!(manager.rest().contains(&"READY=1".to_owned()));
}

#[test]
fn a_watchdog_of_another_process_is_not_fed() {
    let manager = Manager::abstract_one("other");
    let mut node = Node::prepared(&[], |program| {
        manager.manage(program, 100_000);
        program.env("WATCHDOG_PID", "1");
    });
    manager.receive_until("STATUS=ready on ");
    // What a pull waits for takes long enough for many looks.
    let held = Request::pull("Quiet", 0).with("sysFlag", 2 | 4).with("suspendTimeoutMillis", 1_500);
    let mut client = node.client(HeaderType::Json);
    client.put(&Request::send("Quiet"));
    client.pull_until("Quiet", 0, 1);
    client.ask(&held.with("queueOffset", 1));
    assert_eq!(node.stop().code(), Some(0));
    let lines = manager.rest();
    assert!(lines.contains(&"STOPPING=1".to_owned()) && !lines.contains(&"WATCHDOG=1".to_owned()), "{lines:?}");
}

#[test]
fn a_recovery_says_how_far_it_is_and_has_its_time_extended_until_it_is_ready() {
    let (node, lease) = killed_with_a_log();
    let manager = Manager::abstract_one("recovery");
    // A look each 5 ms.
    let child = node.spawn_prepared(|program| manager.manage(program, 10_000));
    let scanning = receive_scanning(&manager);
    assert!(scanning.last().unwrap().ends_with(" s left"), "{scanning:?}");
    let extended = |lines: &[String]| lines.iter().any(|line| line.starts_with("EXTEND_TIMEOUT_USEC="));
    assert!(extended(&scanning), "{scanning:?}");
    lease.let_go();
    let start = manager.receive_until("READY=1");
    assert!(extended(&start), "it got on: {start:?}");
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(exit_code(child), Some(0));
}

#[test]
fn a_signal_ends_a_recovery_as_a_kill_would_but_with_0() {
    for signal in [Signal::TERM, Signal::INT] {
        let (mut node, lease) = killed_with_a_log();
        let manager = Manager::abstract_one(&format!("stop-{signal:?}"));
        let child = node.spawn_prepared(|program| manager.manage(program, 10_000));
        receive_scanning(&manager);
        kill_process(Pid::from_child(&child), signal).unwrap();
        lease.let_go();
        assert_eq!(exit_code(child), Some(0));
        let lines = manager.rest();
        assert!(!lines.contains(&"READY=1".to_owned()), "{lines:?}");
        assert!(lines.iter().all(|line| !line.contains("failed")), "nothing failed: {lines:?}");
        assert!(node.log().contains("kerolox: stopped before the store was open"), "{}", node.log());
        assert!(node.root().join("abort").exists(), "the next start recovers");
        node.start_again();
        assert_eq!(node.client(HeaderType::Json).max_offset("Long"), MESSAGES);
        assert_eq!(node.stop().code(), Some(0));
        assert_verified(&node.root());
    }
}

#[test]
fn why_it_does_not_start_is_the_last_status_and_a_socket_that_is_none_is_refused() {
    let mut node = Node::with(&[]);
    let manager = Manager::abstract_one("failure");
    let child = node.spawn_prepared(|program| manager.manage(program, 1_000_000));
    assert_eq!(exit_code(child), Some(2));
    let lines = manager.rest();
    let last = lines.last().unwrap();
    assert!(last.starts_with("STATUS=failed: ") && last.contains(&node.broker.to_string()), "{lines:?}");
    assert_eq!(node.stop().code(), Some(0));
    let log_from = node.log().len();
    let child = node.spawn_prepared(|program| {
        program.env("NOTIFY_SOCKET", "no/path");
    });
    assert_eq!(exit_code(child), Some(2));
    assert!(node.log()[log_from..].contains("kerolox: NOTIFY_SOCKET=no/path: "), "{}", node.log());
}

#[test]
fn a_manager_of_another_kind_is_told_nothing_and_the_node_serves() {
    for name in ["", "vsock:2:1"] {
        let mut node = Node::prepared(&[], |program| {
            program.env("NOTIFY_SOCKET", name);
        });
        let log = node.log();
        assert!(log.lines().any(|line| line.contains("WARN") && line.contains("NOTIFY_SOCKET=")), "{log}");
        assert_eq!(node.stop().code(), Some(0));
    }
}
