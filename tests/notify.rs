//! What a service manager hears of a node: that it is ready, how a recovery gets on, the watchdog's food, its end. The test
//! plays the manager: it owns the socket that `NOTIFY_SOCKET` names.

mod harness;

use std::ffi::OsString;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
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
        Manager { socket, name }
    }

    /// Makes `program` a service of this manager's, with a watchdog of so many microseconds.
    fn manage(&self, program: &mut Program, watchdog_usec: u64) {
        program.env("NOTIFY_SOCKET", &self.name).env("WATCHDOG_USEC", watchdog_usec.to_string());
    }

    /// The lines of the next message.
    fn receive(&self) -> Vec<String> {
        let mut bytes = [0; 4096];
        let len = self.socket.recv(&mut bytes).expect("a message comes");
        String::from_utf8(bytes[..len].to_vec()).unwrap().lines().map(str::to_owned).collect()
    }

    /// All lines up to the first that begins like this.
    fn receive_until(&self, beginning: &str) -> Vec<String> {
        let mut lines = Vec::new();
        while !lines.iter().any(|line: &String| line.starts_with(beginning)) {
            lines.extend(self.receive());
        }
        lines
    }

    /// All lines that are still there.
    fn rest(&self) -> Vec<String> {
        self.socket.set_nonblocking(true).unwrap();
        let mut bytes = [0; 4096];
        let mut lines = Vec::new();
        while let Ok(len) = self.socket.recv(&mut bytes) {
            lines.extend(String::from_utf8(bytes[..len].to_vec()).unwrap().lines().map(str::to_owned));
        }
        lines
    }
}

/// A node, killed, whose next start has a log of 96 MiB to scan.
fn killed_with_a_log() -> Node {
    let mut node = Node::with(&[("recovery.check_crc", "true"), ("store.commitlog_file_size", "\"64MiB\"")]);
    let mut client = node.client(HeaderType::Json);
    let body = vec![b'x'; 1 << 20];
    for _ in 0..96 {
        client.put(&Request::send("Long").body(body.clone()));
    }
    node.kill();
    node
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
    let node = killed_with_a_log();
    let manager = Manager::abstract_one("recovery");
    // A look each 5 ms.
    let child = node.spawn_prepared(|program| manager.manage(program, 10_000));
    let start = manager.receive_until("READY=1");
    let told: Vec<_> = start.iter().filter(|line| line.starts_with("STATUS=recovering: ")).collect();
    assert!(told.iter().any(|line| line.contains(" % of the commit log scanned (")), "{start:?}");
    assert!(told.iter().any(|line| line.ends_with(" s left")), "{start:?}");
    let extended = start.iter().filter(|line| line.starts_with("EXTEND_TIMEOUT_USEC=")).count();
    assert!(extended > 1, "{start:?}");
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(exit_code(child), Some(0));
}

#[test]
fn a_signal_ends_a_recovery_as_a_kill_would_but_with_0() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut node = killed_with_a_log();
        let manager = Manager::abstract_one(&format!("stop-{signal:?}"));
        let child = node.spawn_prepared(|program| manager.manage(program, 10_000));
        manager.receive_until("STATUS=recovering: ");
        kill_process(Pid::from_child(&child), signal).unwrap();
        assert_eq!(exit_code(child), Some(0));
        let lines = manager.rest();
        assert!(!lines.contains(&"READY=1".to_owned()), "{lines:?}");
        assert!(lines.iter().all(|line| !line.contains("failed")), "nothing failed: {lines:?}");
        assert!(node.log().contains("kerolox: stopped before the store was open"), "{}", node.log());
        assert!(node.root().join("abort").exists(), "the next start recovers");
        node.start_again();
        assert_eq!(node.client(HeaderType::Json).max_offset("Long"), 96);
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
