//! Stores that were damaged while the node was down, as reports of brokers tell them: torn and zeroed tails, stray, short and
//! missing files, flipped bits. The node starts with all that can be had, or refuses and changes nothing.

mod harness;

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use harness::{Client, HEADER_TYPES, Node, Request};
use kerolox::format::unit::{UNIT_LEN, Unit};
use kerolox::types::PhyOffset;
use kerolox::wire::HeaderType;
use kerolox::wire::code::{request, response};

const TOPIC: &str = "Damaged";
const SEGMENT_LEN: u64 = 1 << 20;
const QUEUE_FILE_LEN: u64 = 2000;
/// A node that refuses to start ends long before.
const ENDS_WITHIN: Duration = Duration::from_secs(30);

fn small_node() -> Node {
    Node::with(&[
        ("store.commitlog_file_size", &SEGMENT_LEN.to_string()),
        ("store.consumequeue_file_size", &QUEUE_FILE_LEN.to_string()),
        ("store.index_slots", "100"),
        ("store.index_entries", "400"),
        ("limits.max_message_size", "500000"),
    ])
}

fn body(number: u64) -> String {
    format!("{number:-<100}")
}

/// Sends messages of 100 bytes, and waits until the queue shows them.
fn send(client: &mut Client, count: u64) {
    let first = client.max_offset(TOPIC) as u64;
    for number in first..first + count {
        let asked = Request::send(TOPIC).body(body(number)).properties(&format!("TAGS=t;KEYS=k{number};"));
        assert_eq!(client.put(&asked).number("queueOffset") as u64, number);
    }
    let deadline = Instant::now() + ENDS_WITHIN;
    while client.max_offset(TOPIC) as u64 != first + count {
        assert!(Instant::now() < deadline, "they do not show");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Sends one message; gives its queue offset and its place in the log.
fn send_one(client: &mut Client, number: u64) -> (u64, u64) {
    let answer = client.put(&Request::send(TOPIC).body(body(number)));
    (answer.number("queueOffset") as u64, u64::from_str_radix(&answer.text("msgId")[16..], 16).unwrap())
}

/// Every file below a folder, with its content.
fn files_below(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.append(&mut files_below(&path));
        } else {
            files.insert(path.clone(), fs::read(&path).unwrap());
        }
    }
    files
}

fn queue_bytes(root: &Path) -> Vec<u8> {
    let files = files_below(&root.join("consumequeue").join(TOPIC).join("0"));
    files.into_values().flatten().collect()
}

fn unit(root: &Path, offset: u64) -> Unit {
    let at = offset as usize * UNIT_LEN;
    Unit::decode(queue_bytes(root)[at..at + UNIT_LEN].try_into().unwrap())
}

fn segment(root: &Path, phy: u64) -> PathBuf {
    root.join(format!("commitlog/{:020}", phy - phy % SEGMENT_LEN))
}

fn zero(root: &Path, from: u64, len: u64) {
    let file = fs::File::options().write(true).open(segment(root, from)).unwrap();
    file.write_all_at(&vec![0; len as usize], from % SEGMENT_LEN).unwrap();
}

/// As if the position had been saved so, or never, as in a store of Java's.
fn say_flushed(root: &Path, flushed: Option<PhyOffset>) {
    for name in ["kerolox/flushed", "kerolox/flushed.bak"] {
        let _ = fs::remove_file(root.join(name));
    }
    if let Some(flushed) = flushed {
        fs::create_dir_all(root.join("kerolox")).unwrap();
        let text = format!("{{\"flushed\":{flushed},\"stored_at\":0,\"clean\":null}}");
        fs::write(root.join("kerolox/flushed"), text).unwrap();
    }
}

fn assert_pulled(client: &mut Client, from: u64, to: u64) {
    let mut at = from;
    while at < to {
        let answer = client.ask(&Request::pull(TOPIC, at as i64));
        assert_eq!(answer.code, response::SUCCESS, "at {at}: {answer:?}");
        for record in answer.records() {
            assert_eq!((record.queue_offset().0, record.body()), (at, body(at).as_bytes()));
            at += 1;
            if at == to {
                break;
            }
        }
    }
}

/// Stops the node; `kerolox verify` finds nothing but what is in quarantine.
fn stop_and_verify(node: &mut Node) {
    assert_eq!(node.stop().code(), Some(0));
    harness::assert_verified(&node.root());
}

/// T1 of the cases: what was never flushed is a torn tail.
#[test]
fn a_torn_tail_is_cut_and_its_offset_and_place_are_given_to_the_next_message() {
    for flushed in ["never", "before", "as Java"] {
        let mut node = small_node();
        send(&mut node.client(HeaderType::Json), 50);
        node.kill();
        let (root, lost) = (node.root(), unit(&node.root(), 49));
        let end = lost.phy.0 + u64::from(lost.len);
        zero(&root, end - 100, 100);
        say_flushed(
            &root,
            match flushed {
                "never" => Some(PhyOffset(0)),
                "before" => Some(lost.phy),
                _ => None,
            },
        );
        node.start_again();
        let mut client = node.client(HeaderType::Rocketmq);
        assert_eq!(client.max_offset(TOPIC), 49, "{flushed}");
        assert_pulled(&mut client, 0, 49);
        assert!(queue_bytes(&root)[49 * UNIT_LEN..].iter().all(|byte| *byte == 0));
        assert_eq!(send_one(&mut client, 49), (49, lost.phy.0));
        assert!(fs::read_to_string(root.join("kerolox/quarantine/list.json")).unwrap().contains("\"cut\""));
        stop_and_verify(&mut node);
    }
}

/// T1 where the message was on stable storage: R2 calls it damage, and its offset is not given out again.
#[test]
fn a_flushed_message_that_is_torn_is_damage_and_the_log_goes_on_behind_it() {
    let mut node = small_node();
    send(&mut node.client(HeaderType::Json), 50);
    node.kill();
    let (root, lost) = (node.root(), unit(&node.root(), 49));
    let end = lost.phy.0 + u64::from(lost.len);
    zero(&root, end - 100, 100);
    say_flushed(&root, Some(PhyOffset(end)));
    let log_from = node.log().len();
    node.start_again();
    assert!(node.log()[log_from..].contains("the log is damaged"), "{}", &node.log()[log_from..]);
    for header_type in HEADER_TYPES {
        let mut client = node.client(header_type);
        assert_eq!(client.max_offset(TOPIC), 50);
        assert_pulled(&mut client, 0, 49);
        let stepped_over = client.ask(&Request::pull(TOPIC, 49));
        assert_eq!(stepped_over.code, response::PULL_RETRY_IMMEDIATELY, "{stepped_over:?}");
        assert_eq!(stepped_over.number("nextBeginOffset"), 50);
        let viewed = client.ask(&Request::new(request::VIEW_MESSAGE_BY_ID).with("offset", lost.phy));
        assert_ne!(viewed.code, response::SUCCESS, "{viewed:?}");
    }
    let mut client = node.client(HeaderType::Json);
    assert_eq!(send_one(&mut client, 50), (50, end));
    client.pull_until(TOPIC, 50, 1);
    let both = client.ask(&Request::pull(TOPIC, 49));
    assert_eq!((both.code, both.number("nextBeginOffset")), (response::SUCCESS, 51), "{both:?}");
    assert_eq!(both.records()[0].queue_offset().0, 50);
    for (time, expected) in [(0, 0), (i64::MAX / 2, 51)] {
        let asked = Request::queue(request::SEARCH_OFFSET_BY_TIMESTAMP, TOPIC).with("timestamp", time);
        assert_eq!(client.ask(&asked).number("offset"), expected);
    }
    // It is known from here on.
    let list = fs::read(root.join("kerolox/quarantine/list.json")).unwrap();
    for killed in [false, true] {
        if killed {
            node.kill();
        } else {
            assert_eq!(node.stop().code(), Some(0));
        }
        let log_from = node.log().len();
        node.start_again();
        let log = node.log()[log_from..].to_owned();
        assert!(!log.contains("the log is damaged") && log.contains("stepped over"), "{log}");
        assert_eq!(log.contains("clean start, no scan needed"), !killed, "{log}");
        assert_eq!(fs::read(root.join("kerolox/quarantine/list.json")).unwrap(), list);
        assert_eq!(node.client(HeaderType::Json).max_offset(TOPIC), 51);
    }
    stop_and_verify(&mut node);
}

/// T4: consume queues ahead of a log whose end is gone, flushed or not.
#[test]
fn units_ahead_of_the_log_are_cut_or_where_it_was_flushed_keep_their_offsets() {
    for covered in [false, true] {
        let mut node = small_node();
        send(&mut node.client(HeaderType::Json), 50);
        assert_eq!(node.stop().code(), Some(0));
        let (root, first) = (node.root(), unit(&node.root(), 40));
        let last = unit(&node.root(), 49);
        zero(&root, first.phy.0, SEGMENT_LEN - first.phy.0);
        fs::write(root.join("abort"), "4711").unwrap();
        if !covered {
            say_flushed(&root, Some(first.phy));
        }
        node.start_again();
        let mut client = node.client(HeaderType::Json);
        let next = if covered { 50 } else { 40 };
        assert_eq!(client.max_offset(TOPIC), next);
        assert_pulled(&mut client, 0, 40);
        let pulled = client.ask(&Request::pull(TOPIC, 40));
        let expected = if covered { response::PULL_RETRY_IMMEDIATELY } else { response::PULL_NOT_FOUND };
        assert_eq!((pulled.code, pulled.number("nextBeginOffset")), (expected, next), "{pulled:?}");
        if !covered {
            assert!(queue_bytes(&root)[40 * UNIT_LEN..].iter().all(|byte| *byte == 0));
        }
        let place = if covered { last.phy.0 + u64::from(last.len) } else { first.phy.0 };
        assert_eq!(send_one(&mut client, next as u64), (next as u64, place));
        stop_and_verify(&mut node);
    }
}

/// T2.
#[test]
fn a_next_segment_without_a_byte_is_no_hindrance() {
    let mut node = small_node();
    send(&mut node.client(HeaderType::Json), 50);
    assert_eq!(node.stop().code(), Some(0));
    let next = segment(&node.root(), SEGMENT_LEN);
    fs::write(&next, "").unwrap();
    node.start_again();
    let mut client = node.client(HeaderType::Json);
    assert_eq!(client.max_offset(TOPIC), 50);
    for number in 50..2050 {
        assert_eq!(send_one(&mut client, number).0, number);
        if number % 8 > 0 {
            continue;
        }
        let large = Request::send(TOPIC).body("x".repeat(4000)).with("e", 1);
        client.put(&large);
    }
    assert_eq!(fs::metadata(&next).unwrap().len(), SEGMENT_LEN);
    client.pull_until(TOPIC, 2040, 1);
    assert_pulled(&mut client, 0, 2040);
}

/// T3 (a).
#[test]
fn stray_files_are_named_and_left_alone() {
    let mut node = small_node();
    send(&mut node.client(HeaderType::Json), 50);
    let root = node.root();
    let files = ["commitlog/README", "commitlog/00000000000000000abc", "index/notes"].map(|name| root.join(name));
    let in_queue = root.join(format!("consumequeue/{TOPIC}/0/.swp"));
    let folder = root.join("commitlog/x");
    for killed in [false, true] {
        if killed {
            node.kill();
        } else {
            assert_eq!(node.stop().code(), Some(0));
        }
        fs::create_dir_all(&folder).unwrap();
        files.iter().chain([&in_queue]).for_each(|path| fs::write(path, "mine").unwrap());
        let log_from = node.log().len();
        node.start_again();
        let log = node.log()[log_from..].to_owned();
        for path in files.iter().chain([&in_queue, &folder]) {
            let lines = log.lines().filter(|line| line.contains("WARN") && line.contains(path.to_str().unwrap()));
            assert_eq!(lines.count(), 1, "{}: {log}", path.display());
        }
        assert!(files.iter().chain([&in_queue]).all(|path| fs::read(path).unwrap() == b"mine") && folder.is_dir());
        assert_pulled(&mut node.client(HeaderType::Json), 0, 50);
    }
}

/// Every file of a store but its lock.
fn tree(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = files_below(root);
    files.remove(&root.join("lock"));
    files
}

/// Starts the node, which must end by itself with what it says, having changed no byte.
fn refusal(node: &Node) -> String {
    let (log_from, before) = (node.log().len(), tree(&node.root()));
    let mut child = node.spawn_again();
    let deadline = Instant::now() + ENDS_WITHIN;
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if Instant::now() > deadline => {
                child.kill().unwrap();
                child.wait().unwrap();
                panic!("it runs: {}", &node.log()[log_from..]);
            }
            None => thread::sleep(Duration::from_millis(10)),
        }
    };
    assert_ne!(status.code(), Some(0));
    let mut said = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        stderr.read_to_string(&mut said).unwrap();
    }
    let after = tree(&node.root());
    let changed = after.keys().chain(before.keys()).find(|path| after.get(*path) != before.get(*path));
    assert_eq!(changed, None);
    said + &node.log()[log_from..]
}

/// T3 (b), and its like.
#[test]
fn files_of_a_wrong_size_and_missing_ones_in_the_middle_are_refused_and_nothing_changes() {
    let mut node = small_node();
    let mut client = node.client(HeaderType::Json);
    send(&mut client, 250);
    for _ in 0..8 {
        client.put(&Request::send(TOPIC).body("x".repeat(400_000)).with("e", 1));
    }
    assert_eq!(node.stop().code(), Some(0));
    let root = node.root();
    let index = files_below(&root.join("index")).into_keys().next().unwrap();
    let queue_file = |start: u64| root.join(format!("consumequeue/{TOPIC}/0/{start:020}"));
    let short = [
        (segment(&root, SEGMENT_LEN), SEGMENT_LEN, "store.commitlog_file_size"),
        (queue_file(0), QUEUE_FILE_LEN, "store.consumequeue_file_size"),
        (queue_file(2 * QUEUE_FILE_LEN), QUEUE_FILE_LEN, "store.consumequeue_file_size"),
        (index.clone(), fs::metadata(&index).unwrap().len(), "store.index_slots"),
    ];
    for killed in [false, true] {
        if killed {
            fs::write(root.join("abort"), "4711").unwrap();
        }
        for (path, expected, key) in &short {
            let whole = fs::read(path).unwrap();
            fs::write(path, &whole[..5]).unwrap();
            let said = refusal(&node);
            let parts = [path.to_str().unwrap(), "5 bytes", &format!("{expected} expected"), key];
            let line = said.lines().find(|line| parts.iter().all(|part| line.contains(part)));
            assert!(line.is_some(), "{said}");
            fs::write(path, whole).unwrap();
        }
        let (missing, aside) = (segment(&root, SEGMENT_LEN), root.join("aside"));
        fs::rename(&missing, &aside).unwrap();
        let said = refusal(&node);
        assert!(said.contains(missing.to_str().unwrap()) && said.contains("missing"), "{said}");
        fs::rename(&aside, &missing).unwrap();
    }
    node.start_again();
    assert_pulled(&mut node.client(HeaderType::Json), 0, 250);
}

/// T5.
#[test]
fn lost_consume_queues_and_index_are_built_again_byte_for_byte() {
    let mut node = small_node();
    let mut client = node.client(HeaderType::Json);
    for number in 0..3000 {
        let (topic, queue) = (["Damaged", "Other"][number % 2], number / 2 % 4);
        let properties = match number % 3 {
            0 => format!("TAGS=t{};KEYS=k{};", number % 7, number % 11),
            1 => format!("UNIQ_KEY=u{number};"),
            _ => String::new(),
        };
        client.put(&Request::send(topic).with("e", queue).body(body(number as u64)).properties(&properties));
    }
    let answers = |client: &mut Client| -> Vec<Vec<u64>> {
        let ask = |key: u64, topic| {
            let asked = Request::new(request::QUERY_MESSAGE).with("topic", topic).with("key", format!("k{key}"));
            let asked = asked.with("maxNum", 64).with("beginTimestamp", 0).with("endTimestamp", i64::MAX);
            client.ask(&asked).records().iter().map(|record| record.phy().0).collect()
        };
        (0..11)
            .flat_map(|key| ["Damaged", "Other"].map(|topic| (key, topic)))
            .map({
                let mut ask = ask;
                move |(key, topic)| ask(key, topic)
            })
            .collect()
    };
    let before = answers(&mut client);
    assert!(before.iter().all(|found| found.len() > 10));
    assert_eq!(node.stop().code(), Some(0));
    let root = node.root();
    let queues = files_below(&root.join("consumequeue"));
    for killed in [false, true] {
        fs::remove_dir_all(root.join("consumequeue")).unwrap();
        fs::remove_dir_all(root.join("index")).unwrap();
        if killed {
            fs::write(root.join("abort"), "4711").unwrap();
        }
        node.start_again();
        assert_eq!(answers(&mut node.client(HeaderType::Json)), before);
        assert_eq!(node.stop().code(), Some(0));
        let now = files_below(&root.join("consumequeue"));
        let differs = now.keys().chain(queues.keys()).find(|path| now.get(*path) != queues.get(*path));
        assert_eq!(differs, None);
    }
}

/// E37, and T6's kind: damage in a segment that is not the last, with everything behind it kept.
#[test]
fn a_flipped_bit_costs_one_message_and_no_segment() {
    let mut node = small_node();
    let mut client = node.client(HeaderType::Json);
    send(&mut client, 100);
    client.put(&Request::send(TOPIC).body("x".repeat(450_000)).with("e", 1));
    client.put(&Request::send(TOPIC).body("x".repeat(450_000)).with("e", 1));
    client.put(&Request::send(TOPIC).body("x".repeat(450_000)).with("e", 1));
    send(&mut client, 100);
    node.kill();
    let root = node.root();
    let lost = unit(&root, 60);
    let path = segment(&root, lost.phy.0);
    let mut bytes = fs::read(&path).unwrap();
    bytes[lost.phy.0 as usize + 100] ^= 4;
    fs::write(&path, bytes).unwrap();
    // Nobody knows any more how far things were derived and flushed.
    let _ = fs::remove_file(root.join("checkpoint"));
    say_flushed(&root, None);
    for damage in ["", "consumequeue"] {
        if !damage.is_empty() {
            node.kill();
            fs::remove_dir_all(root.join(damage)).unwrap();
        }
        node.start_again();
        let mut client = node.client(HeaderType::Json);
        assert_eq!(client.max_offset(TOPIC), 200);
        assert_pulled(&mut client, 0, 60);
        assert_pulled(&mut client, 61, 200);
        let at_lost = client.ask(&Request::pull(TOPIC, 60));
        assert_eq!((at_lost.code, at_lost.records()[0].queue_offset().0), (response::SUCCESS, 61));
        for number in [59, 60, 61] {
            let asked = Request::new(request::QUERY_MESSAGE).with("topic", TOPIC).with("key", format!("k{number}"));
            let asked = asked.with("maxNum", 9).with("beginTimestamp", 0).with("endTimestamp", i64::MAX);
            let expected = if number == 60 { response::QUERY_NOT_FOUND } else { response::SUCCESS };
            assert_eq!(client.ask(&asked).code, expected, "{number}");
        }
    }
    assert_eq!(files_below(&root.join("kerolox/quarantine")).len(), 2, "one copy and the list");
    stop_and_verify(&mut node);
}
