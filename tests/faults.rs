//! Faults of the disk under a real node: what cannot be written is refused, what was acknowledged stays, reads go on.
//!
//! A limit on file sizes, set on the running process, makes the next append fail; a folder in a file's place keeps it from
//! being made. Both are taken away again, to see what mends itself and what must not.

mod harness;

use std::fs;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use harness::{Client, HEADER_TYPES, Node, Request, skipped};
use kerolox::format::checkpoint::Checkpoint;
use kerolox::format::unit::UNIT_LEN;
use kerolox::types::Timestamp;
use kerolox::wire::code::{request, response};
use kerolox::wire::lists::KvTable;

const TOPIC: &str = "Faults";
const MENDS_WITHIN: Duration = Duration::from_secs(10);

fn put_until_it_works(client: &mut Client, asked: &Request) {
    let deadline = Instant::now() + MENDS_WITHIN;
    loop {
        let answer = client.ask(asked);
        if answer.code == response::SUCCESS {
            return;
        }
        assert!(Instant::now() < deadline, "still refused: {answer:?}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// Request 28 and `kerolox status` name the state and its reason; the latter fails with it.
fn says_that_it_is_poisoned(node: &Node, reason: &str) {
    let answer = node.client(HEADER_TYPES[1]).ask(&Request::new(request::GET_BROKER_RUNTIME_INFO));
    let table = KvTable::decode(&answer.body).expect("a table of texts").table;
    assert_eq!((table["keroloxHealth"].as_str(), table["brokerActive"].as_str()), ("poisoned", "false"), "{table:?}");
    assert_eq!(table["keroloxHealthReason"], reason);
    let mut program = Command::new(env!("CARGO_BIN_EXE_kerolox"));
    let output = program.args(["status", "--addr", &node.broker.to_string()]).output().expect("it runs");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("health               poisoned"), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains(reason), "{output:?}");
}

#[test]
fn a_failed_append_refuses_every_later_send_until_restart_and_reads_go_on() {
    let modes = ["\"async\"", "\"sync\""].into_iter().flat_map(|mode| [(mode, "\"buffered\""), (mode, "\"dma\"")]);
    for (mode, append) in modes {
        let settings = [("flush.mode", mode), ("store.append", append), ("store.zero_ahead", "\"off\"")];
        let mut node = Node::with(&settings);
        let mut client = node.client(HEADER_TYPES[0]);
        let body = "x".repeat(3000);
        for _ in 0..4 {
            assert_eq!(client.put(&Request::send(TOPIC).body(body.as_str())).code, response::SUCCESS);
        }
        if let Err(why) = node.limit_files(Some(8192)) {
            return skipped("a_failed_append_refuses_every_later_send_until_restart_and_reads_go_on", why);
        }
        let refused = client.ask(&Request::send(TOPIC).body("lost"));
        assert_eq!(refused.code, response::SERVICE_NOT_AVAILABLE, "{mode} {refused:?}");
        assert!(refused.remark.contains("a write of the commit log failed"), "{mode} {refused:?}");
        node.limit_files(None).expect("what was lowered can be lifted");
        let refused = client.ask(&Request::send(TOPIC).body("lost too"));
        assert_eq!(refused.code, response::SERVICE_NOT_AVAILABLE, "poisoned until restart, {mode} {refused:?}");
        let segment = node.root().join("commitlog").join("00000000000000000000");
        for named in ["restart", segment.to_str().unwrap(), "File too large"] {
            assert!(refused.remark.contains(named), "{named} {refused:?}");
        }
        says_that_it_is_poisoned(&node, &refused.remark);
        assert_eq!(client.pull_until(TOPIC, 0, 4).bodies(), vec![body.clone(); 4], "{mode}");
        assert!(node.log().contains("commit log write failed"), "{}", node.log());

        node.kill();
        node.start_again();
        let mut client = node.client(HEADER_TYPES[0]);
        assert_eq!(client.max_offset(TOPIC), 4, "{mode}");
        assert_eq!(client.put(&Request::send(TOPIC).body("after")).number("queueOffset"), 4, "{mode}");
    }
}

#[test]
fn a_poisoned_node_stops_when_asked_and_keeps_abort_so_that_the_next_start_recovers() {
    let mut node = Node::with(&[("store.zero_ahead", "\"off\"")]);
    let mut client = node.client(HEADER_TYPES[0]);
    let body = "x".repeat(9000);
    assert_eq!(client.put(&Request::send(TOPIC).body(body.as_str())).code, response::SUCCESS);
    if let Err(why) = node.limit_files(Some(4096)) {
        return skipped("a_poisoned_node_stops_when_asked_and_keeps_abort_so_that_the_next_start_recovers", why);
    }
    assert_eq!(client.ask(&Request::send(TOPIC)).code, response::SERVICE_NOT_AVAILABLE);
    node.limit_files(None).expect("what was lowered can be lifted");
    node.stop();
    assert!(node.root().join("abort").exists());
    node.start_again();
    assert_eq!(node.client(HEADER_TYPES[0]).pull_until(TOPIC, 0, 1).bodies(), [body]);
}

#[test]
fn a_segment_that_cannot_be_made_refuses_sends_until_it_can() {
    let mut node = Node::with(&[("store.commitlog_file_size", "\"5MiB\"")]);
    let blocked = node.root().join("commitlog").join("00000000000005242880");
    fs::create_dir(&blocked).unwrap();
    fs::write(blocked.join("in the way"), "").unwrap();
    let mut client = node.client(HEADER_TYPES[0]);
    let asked = Request::send(TOPIC).body(vec![b'x'; 1 << 20]);
    let mut stored = 0;
    let refused = loop {
        let answer = client.ask(&asked);
        if answer.code != response::SUCCESS {
            break answer;
        }
        stored += 1;
        assert!(stored < 6, "more fits into a segment than it holds");
    };
    assert_eq!(refused.code, response::SYSTEM_ERROR, "{refused:?}");
    // What still fits goes on meanwhile.
    assert_eq!(client.put(&Request::send(TOPIC).body("small")).number("queueOffset"), stored);
    fs::remove_dir_all(&blocked).unwrap();
    put_until_it_works(&mut client, &asked);
    client.pull_until(TOPIC, stored + 1, 1);
    assert_eq!(client.max_offset(TOPIC), stored + 2);
    assert!(node.stop().success());
    node.start_again();
    assert_eq!(node.client(HEADER_TYPES[0]).max_offset(TOPIC), stored + 2);
}

#[test]
fn a_consume_queue_that_cannot_be_made_stops_sends_and_loses_nothing() {
    let node = Node::start();
    let mut client = node.client(HEADER_TYPES[0]);
    let dir = node.root().join("consumequeue");
    fs::create_dir_all(&dir).unwrap();
    let blocked = dir.join("Blocked");
    fs::write(&blocked, "in the way").unwrap();
    // The first message is in the log before its queue is found to be impossible.
    assert_eq!(client.put(&Request::send("Blocked").body("first")).code, response::SUCCESS);
    let deadline = Instant::now() + MENDS_WITHIN;
    loop {
        let answer = client.ask(&Request::send("Other").body("refused"));
        if answer.code == response::SERVICE_NOT_AVAILABLE {
            break;
        }
        assert!(Instant::now() < deadline, "{answer:?}");
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(client.ask(&Request::queue(request::GET_MAX_OFFSET, "Blocked")).number("offset"), 0);
    fs::remove_file(&blocked).unwrap();
    put_until_it_works(&mut client, &Request::send("Blocked").body("second"));
    assert_eq!(client.pull_until("Blocked", 0, 2).bodies(), ["first", "second"]);
}

/// The checkpoint bounds the next recovery, so it must not wait for a pause in the load.
#[test]
fn the_checkpoint_moves_while_the_load_never_pauses() {
    let node = Node::with(&[("flush.interval_ms", "20"), ("flush.least_pages", "0")]);
    let stop = AtomicBool::new(false);
    let physic = thread::scope(|scope| {
        // Several, so that something is appended during every flush.
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = node.client(HEADER_TYPES[0]);
                let asked = Request::send(TOPIC).body("x");
                for _ in 0..100 {
                    client.send(&asked);
                }
                while !stop.load(Ordering::Relaxed) {
                    client.read();
                    client.send(&asked);
                }
            });
        }
        let deadline = Instant::now() + MENDS_WITHIN;
        let physic = loop {
            let bytes = fs::read(node.root().join("checkpoint")).unwrap_or_default();
            let physic = Checkpoint::decode(&bytes).unwrap_or_default().physic;
            if physic > Timestamp(0) || Instant::now() > deadline {
                break physic;
            }
            thread::sleep(Duration::from_millis(50));
        };
        stop.store(true, Ordering::Relaxed);
        physic
    });
    assert!(physic > Timestamp(0), "still {physic} after {MENDS_WITHIN:?} of load");
}

/// Messages that wait for their flush and such that do not, over several connections: a flush of the second kind must not
/// count bytes of the first that are still being written. The node asserts that itself, and would end.
#[test]
fn waiting_and_unwaiting_sends_of_a_sync_node_mix_without_harm() {
    let mut node = Node::with(&[("flush.mode", "\"sync\"")]);
    let body = "x".repeat(2000);
    let until = Instant::now() + Duration::from_secs(3);
    let stored: i64 = thread::scope(|scope| {
        let senders: Vec<_> = (0..6)
            .map(|sender| {
                let (node, body) = (&node, &body);
                scope.spawn(move || {
                    let mut client = node.client(HEADER_TYPES[0]);
                    let wait = if sender % 2 == 0 { "WAIT=true;" } else { "WAIT=false;" };
                    let asked = Request::send(TOPIC).body(body.as_str()).properties(wait);
                    let mut stored = 0;
                    while Instant::now() < until {
                        stored += i64::from(client.put(&asked).code == response::SUCCESS);
                    }
                    stored
                })
            })
            .collect();
        senders.into_iter().map(|sender| sender.join().expect("the node answers")).sum()
    });
    node.kill();
    node.start_again();
    assert_eq!(node.client(HEADER_TYPES[0]).max_offset(TOPIC), stored);
}

/// Bytes of a consume queue decide how much is read: damaged ones must neither be believed nor stop the queue.
#[test]
fn a_damaged_unit_is_stepped_over() {
    let node = Node::start();
    let mut client = node.client(HEADER_TYPES[0]);
    for body in ["zero", "one", "two"] {
        client.put(&Request::send(TOPIC).body(body));
    }
    assert_eq!(client.pull_until(TOPIC, 0, 3).bodies(), ["zero", "one", "two"]);
    let queue = node.root().join("consumequeue").join(TOPIC).join("0").join("00000000000000000000");
    let file = fs::OpenOptions::new().write(true).open(queue).unwrap();
    for damaged in [[0x7f; 12], [0; 12], *b"\0\0\0\0\0\0\0\x01\x7f\xff\xff\xff"] {
        file.write_all_at(&damaged, UNIT_LEN as u64).unwrap();
        assert_eq!(client.ask(&Request::pull(TOPIC, 0)).bodies()[0], "zero");
        let answer = client.ask(&Request::pull(TOPIC, 1));
        assert_eq!((answer.code, answer.number("nextBeginOffset")), (response::SUCCESS, 3), "{answer:?}");
        assert_eq!(answer.bodies(), ["two"]);
    }
    assert_eq!(client.put(&Request::send(TOPIC).body("three")).number("queueOffset"), 3);
}

/// Each put of a pipeline must not wait anew for a segment that cannot be made, nor make others wait.
#[test]
fn a_segment_that_cannot_be_made_refuses_a_whole_pipeline_at_once() {
    let node = Node::with(&[("store.commitlog_file_size", "\"5MiB\"")]);
    let blocked = node.root().join("commitlog").join("00000000000005242880");
    fs::create_dir(&blocked).unwrap();
    let mut client = node.client(HEADER_TYPES[0]);
    let mut other = node.client(HEADER_TYPES[1]);
    // Leaves room for little more than small messages.
    let asked = Request::send(TOPIC).body(vec![b'x'; 1_300_000]);
    while client.ask(&asked).code == response::SUCCESS {}
    let began = Instant::now();
    for _ in 0..200 {
        client.send(&asked);
    }
    assert_eq!(other.put(&Request::send(TOPIC).body("small")).code, response::SUCCESS);
    let refused = (0..200).filter(|_| client.read().code != response::SUCCESS).count();
    assert_eq!(refused, 200);
    // A wait of half a second for each would take 100 s.
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
}

/// Tables that cannot be saved: what was there goes on, new groups read all the same, and no message is taken into a topic
/// that a restart would not know.
#[test]
fn tables_that_cannot_be_saved_stop_new_topics_and_nothing_else() {
    let mut node = Node::start();
    let mut client = node.client(HEADER_TYPES[0]);
    assert_eq!(client.put(&Request::send(TOPIC).body("there")).code, response::SUCCESS);
    client.pull_until(TOPIC, 0, 1);
    let blocked: Vec<_> =
        ["topics", "subscriptionGroup"].map(|name| node.root().join(format!("config/{name}.json.tmp"))).into();
    blocked.iter().for_each(|path| fs::create_dir(path).unwrap());

    let pull = |offset: i64| Request::pull(TOPIC, offset).with("consumerGroup", "new_group");
    assert_eq!(client.ask(&pull(0)).bodies(), ["there"]);
    assert_eq!(client.put(&Request::send(TOPIC).body("goes on")).code, response::SUCCESS);
    for _ in 0..2 {
        let refused = client.ask(&Request::send("Unsaved").body("x"));
        assert_ne!(refused.code, response::SUCCESS, "{refused:?}");
    }
    let told = node.log().matches("a table could not be saved").count();
    assert!((1..=2).contains(&told), "told {told} times");

    blocked.iter().for_each(|path| fs::remove_dir(path).unwrap());
    put_until_it_works(&mut client, &Request::send("Unsaved").body("saved"));
    node.kill();
    node.start_again();
    let mut client = node.client(HEADER_TYPES[0]);
    assert_eq!(client.pull_until("Unsaved", 0, 1).bodies(), ["saved"]);
    assert_eq!(client.pull_until(TOPIC, 0, 2).bodies(), ["there", "goes on"]);
}
