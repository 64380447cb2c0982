//! Old messages under a real node: what goes, what stays, what readers are told before, while and after; and a disk that
//! is too full.

mod harness;
#[path = "harness/stored.rs"]
mod stored;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command as Program;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use harness::{Answer, Client, HEADER_TYPES, Node, Request};
use kerolox::format::config_files::{TopicConfig, TopicsFile};
use kerolox::format::names;
use kerolox::format::record::{self, RecordSpec};
use kerolox::types::{PhyOffset, QueueOffset, Timestamp};
use kerolox::wire::code::{request, response};
use stored::{Shape, StoredLog};

const TOPIC: &str = "Old";
const SHAPE: Shape = Shape { segment_len: 4096, queue_file_len: 200, index_slots: 100, index_entries: 60 };
/// Messages of one segment.
const PER_SEGMENT: usize = 4;
const HOUR_MS: i64 = 3_600_000;
const WITHIN: Duration = Duration::from_secs(30);

fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64
}

fn body(number: usize) -> String {
    format!("{number:<900}")
}

/// A commit log of full segments, each of [`PER_SEGMENT`] messages of `queue` (and a topic of one queue each), stored
/// that many hours ago; the node builds the rest.
fn old_log(root: &Path, segments: &[(&str, i64)]) {
    let (dir, host) = (root.join(names::COMMIT_LOG), "127.0.0.1:10911".parse().unwrap());
    fs::create_dir_all(&dir).unwrap();
    let mut counters = std::collections::BTreeMap::<&str, u64>::new();
    let mut number = 0;
    let now = now_ms();
    for (index, (topic, hours)) in segments.iter().enumerate() {
        let mut bytes = Vec::new();
        let start = index as u64 * SHAPE.segment_len;
        for at in 0..PER_SEGMENT {
            let (from, stored_at) = (bytes.len(), Timestamp(now - hours * HOUR_MS + (index * 100 + at) as i64));
            let (body, keys) = (body(number), format!("KEYS\u{1}k{number}\u{2}"));
            let spec = RecordSpec {
                topic,
                queue_id: 0,
                flag: 0,
                sys_flag: 0,
                born_timestamp: stored_at.0,
                born_host: host,
                store_host: host,
                reconsume_times: 0,
                prepared_transaction_offset: 0,
                body: body.as_bytes(),
                properties: &[keys.as_bytes()],
            };
            let placed = spec.encode_into(&mut bytes).unwrap();
            let offset = counters.entry(topic).or_default();
            let phy = PhyOffset(start + from as u64);
            record::number(&mut bytes[from..], placed.store_timestamp_at, QueueOffset(*offset), phy, stored_at);
            *offset += 1;
            number += 1;
        }
        if index + 1 < segments.len() {
            bytes.extend(record::encode_blank((SHAPE.segment_len - bytes.len() as u64) as u32));
        }
        let file = fs::File::create(dir.join(names::segment_name(start))).unwrap();
        file.set_len(SHAPE.segment_len).unwrap();
        file.write_all_at(&bytes, 0).unwrap();
    }
    let mut topics = TopicsFile::default();
    for topic in counters.keys().copied() {
        topics.topics.insert(topic.into(), TopicConfig::new(topic, 1));
    }
    fs::create_dir_all(root.join("config")).unwrap();
    fs::write(root.join("config/topics.json"), topics.encode()).unwrap();
}

/// A node on such a log. It deletes nothing by itself: one request is one pass.
fn node_on(segments: &[(&str, i64)], more: &[(&str, &str)]) -> Node {
    let number = |number: u64| number.to_string();
    let settings = [
        ("store.commitlog_file_size", number(SHAPE.segment_len)),
        ("store.consumequeue_file_size", number(SHAPE.queue_file_len)),
        ("store.index_slots", number(SHAPE.index_slots.into())),
        ("store.index_entries", number(SHAPE.index_entries.into())),
        ("limits.max_message_size", number(3000)),
        ("retention.check_interval_ms", number(3_600_000)),
        ("retention.file_pause_ms", number(0)),
    ];
    let kept = settings.iter().filter(|(key, _)| more.iter().all(|(set, _)| set != key));
    let settings: Vec<_> = kept.map(|(key, value)| (*key, value.as_str())).chain(more.iter().copied()).collect();
    Node::prepared(&settings, |program| {
        old_log(&program.get_current_dir().expect("the harness sets it").join("data"), segments);
    })
}

fn old_segments(count: usize) -> Vec<(&'static str, i64)> {
    vec![(TOPIC, 100); count]
}

/// Names of the segments that hold messages, as their numbers.
fn segments(node: &Node) -> Vec<u64> {
    let dir = node.root().join(names::COMMIT_LOG);
    let mut starts = digit_names(&dir);
    // The one that is made ahead may be there, or not yet.
    let newest = fs::read(dir.join(names::segment_name(*starts.last().unwrap()))).unwrap();
    if newest.iter().all(|byte| *byte == 0) {
        starts.pop();
    }
    starts.into_iter().map(|start| start / SHAPE.segment_len).collect()
}

fn queue_files(node: &Node, topic: &str) -> Vec<u64> {
    let starts = digit_names(&node.root().join(names::CONSUME_QUEUE).join(topic).join("0"));
    starts.into_iter().map(|start| start / SHAPE.queue_file_len).collect()
}

fn digit_names(dir: &Path) -> Vec<u64> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    let mut found: Vec<u64> = entries.filter_map(|name| names::parse_segment_name(name.to_str()?)).collect();
    found.sort_unstable();
    found
}

fn index_files(node: &Node) -> Vec<PathBuf> {
    let mut found: Vec<_> =
        fs::read_dir(node.root().join("index")).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.sort();
    found
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + WITHIN;
    while !is_so() {
        assert!(Instant::now() < deadline, "not within {WITHIN:?}: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

fn number_of(client: &mut Client, code: i32, topic: &str, field: &str) -> i64 {
    client.ask(&Request::queue(code, topic)).number(field)
}

fn min_offset(client: &mut Client, topic: &str) -> i64 {
    number_of(client, request::GET_MIN_OFFSET, topic, "offset")
}

fn earliest(client: &mut Client, topic: &str) -> i64 {
    number_of(client, request::GET_EARLIEST_MSG_STORETIME, topic, "timestamp")
}

fn delete_expired(client: &mut Client) {
    let answer = client.ask(&Request::new(request::DELETE_EXPIRED_COMMITLOG));
    assert_eq!(answer.code, response::SUCCESS, "{answer:?}");
}

fn code_and_next(answer: &Answer) -> (i32, i64) {
    (answer.code, answer.number("nextBeginOffset"))
}

#[test]
fn expired_segments_go_ten_a_pass_under_a_puller_and_the_last_stays() {
    let node = node_on(&old_segments(25), &[]);
    let mut client = node.client(HEADER_TYPES[0]);
    assert_eq!((min_offset(&mut client, TOPIC), client.max_offset(TOPIC)), (0, 100));
    let first_stored_at = earliest(&mut client, TOPIC);
    assert!(first_stored_at <= now_ms() - 99 * HOUR_MS, "{first_stored_at}");
    // Reads segment 1 for as long as it is there, and is told when it is not.
    let (node, over) = (&node, AtomicBool::new(false));
    thread::scope(|scope| {
        let puller = scope.spawn(|| {
            let mut client = node.client(HEADER_TYPES[1]);
            let (mut offset, mut pulls) = (PER_SEGMENT as i64, 0);
            while !over.load(Ordering::Relaxed) {
                let answer = client.ask(&Request::pull(TOPIC, offset).with("maxMsgNums", 3));
                pulls += 1;
                match answer.code {
                    response::SUCCESS => {
                        // What is gone is stepped over, by whole segments.
                        let first = answer.records()[0].queue_offset().0 as usize;
                        assert!(first as i64 == offset || first.is_multiple_of(PER_SEGMENT) && first as i64 > offset);
                        let numbers = first..first + answer.records().len();
                        assert_eq!(answer.bodies(), numbers.map(body).collect::<Vec<_>>(), "{offset}");
                    }
                    response::PULL_OFFSET_MOVED | response::PULL_RETRY_IMMEDIATELY => {
                        let next = answer.number("nextBeginOffset");
                        assert!(next >= offset, "{answer:?}");
                        offset = next.min(99);
                    }
                    _ => panic!("{answer:?}"),
                }
            }
            pulls
        });
        for (left, min) in [(10..25, 40), (20..25, 80), (24..25, 96)] {
            delete_expired(&mut client);
            until("a pass is done", || min_offset(&mut client, TOPIC) == min);
            assert_eq!(segments(node), left.collect::<Vec<_>>());
            let stored_at = earliest(&mut client, TOPIC);
            assert!(stored_at > first_stored_at && stored_at < now_ms() - 99 * HOUR_MS, "{stored_at}");
        }
        delete_expired(&mut client);
        thread::sleep(Duration::from_millis(300));
        assert_eq!(segments(node), [24], "never the last");
        over.store(true, Ordering::Relaxed);
        assert!(puller.join().expect("every answer was right") > 3);
    });
    assert_eq!(client.max_offset(TOPIC), 100);
    until("the files of the queue go", || queue_files(node, TOPIC) == [9]);
    assert_eq!(client.pull_until(TOPIC, 96, 4).bodies(), (96..100).map(body).collect::<Vec<_>>());
}

/// Case T14: the edges of a queue of which a part has expired, beside a whole one and an empty one.
#[test]
fn the_edges_of_an_expired_queue_are_told_as_java_tells_them() {
    let mut ages = vec![(TOPIC, 100); 10];
    ages.extend([(TOPIC, 1); 15]);
    ages.extend([("Whole", 1); 25]);
    let node = node_on(&ages, &[]);
    let mut client = node.client(HEADER_TYPES[0]);
    let made = Request::new(request::UPDATE_AND_CREATE_TOPIC)
        .with("topic", "Empty")
        .with("defaultTopic", "TBW102")
        .with("readQueueNums", 1)
        .with("writeQueueNums", 1)
        .with("perm", 6)
        .with("topicFilterType", "SINGLE_TAG")
        .with("topicSysFlag", 0)
        .with("order", false);
    assert_eq!(client.ask(&made).code, response::SUCCESS);
    delete_expired(&mut client);
    until("ten segments go", || min_offset(&mut client, TOPIC) == 40);
    for (topic, offset, code, next) in [
        ("Whole", 100, 19, 100),
        ("Whole", 101, 21, 100),
        ("Whole", 5000, 21, 100),
        ("Whole", -1, 21, 0),
        ("Empty", 0, 19, 0),
        ("Empty", 7, 21, 0),
        (TOPIC, 0, 21, 40),
        (TOPIC, 39, 21, 40),
        (TOPIC, -1, 21, 40),
        (TOPIC, 100, 19, 100),
        (TOPIC, 101, 21, 100),
    ] {
        let answer = client.ask(&Request::pull(topic, offset).with("sysFlag", 4));
        assert_eq!(code_and_next(&answer), (code, next), "{topic} {offset} {answer:?}");
    }
    let answer = client.ask(&Request::pull(TOPIC, 40).with("subscription", "none"));
    assert_eq!(answer.code, 20, "{answer:?}");
    assert!(answer.number("nextBeginOffset") > 40, "{answer:?}");
    assert_eq!(client.pull_until(TOPIC, 40, 4).bodies()[0], body(40));
    // What leads to the messages that are gone: by time, by key, by place.
    let by_time = |time: i64| Request::queue(request::SEARCH_OFFSET_BY_TIMESTAMP, TOPIC).with("timestamp", time);
    assert_eq!(client.ask(&by_time(0)).number("offset"), 40);
    assert_eq!(client.ask(&by_time(now_ms())).number("offset"), 100);
    let by_key = |key: &str| {
        Request::new(request::QUERY_MESSAGE)
            .with("topic", TOPIC)
            .with("key", key)
            .with("maxNum", 32)
            .with("beginTimestamp", 0)
            .with("endTimestamp", i64::MAX)
    };
    assert_eq!(client.ask(&by_key("k39")).code, response::QUERY_NOT_FOUND);
    assert_eq!(client.ask(&by_key("k40")).bodies(), [body(40)]);
    let by_place = client.ask(&Request::new(request::VIEW_MESSAGE_BY_ID).with("offset", 0));
    assert_eq!(by_place.code, response::SYSTEM_ERROR);
    assert!(by_place.remark.contains("40960"), "where the log begins: {}", by_place.remark);
    assert_eq!(earliest(&mut client, "Empty"), -1);
    assert_eq!(earliest(&mut client, "Unknown"), -1);
    // The tool that reads a topic from its beginning starts where it begins now.
    let tail = Program::new(env!("CARGO_BIN_EXE_kerolox"))
        .args([
            "tail",
            "--topic",
            TOPIC,
            "--from-beginning",
            "--count",
            "60",
            "--namesrv",
            &node.name_server.to_string(),
        ])
        .output()
        .expect("the program runs");
    let lines = String::from_utf8_lossy(&tail.stdout).lines().count();
    assert_eq!((tail.status.success(), lines), (true, 60), "{}", String::from_utf8_lossy(&tail.stderr));
}

/// Rule E32, and that a stop after deletions is as clean as any.
#[test]
fn a_queue_that_has_wholly_expired_goes_on_numbering_even_across_restarts() {
    let mut ages = vec![("Gone", 100); 9];
    ages.extend([(TOPIC, 100); 3]);
    let mut node = node_on(&ages, &[]);
    let mut client = node.client(HEADER_TYPES[0]);
    until("the index is built", || index_files(&node).len() == 1);
    delete_expired(&mut client);
    until("the queue is empty", || min_offset(&mut client, "Gone") == 36);
    assert_eq!((client.max_offset("Gone"), earliest(&mut client, "Gone")), (36, -1));
    until("its last file stays", || queue_files(&node, "Gone") == [3]);
    assert_eq!(code_and_next(&client.ask(&Request::pull("Gone", 35))), (21, 36));
    assert_eq!(code_and_next(&client.ask(&Request::pull("Gone", 36))), (19, 36));
    // Nothing more is done for it than is done already: its numbers must not begin anew.
    assert_eq!(client.ask(&Request::new(request::CLEAN_EXPIRED_CONSUMEQUEUE)).code, response::SUCCESS);
    for restart in 0..3 {
        assert!(node.stop().success());
        let log_from = node.log().len();
        node.start_again();
        assert!(node.log()[log_from..].contains("clean start, no scan needed"), "{}", &node.log()[log_from..]);
        client = node.client(HEADER_TYPES[0]);
        let edges = (min_offset(&mut client, "Gone"), client.max_offset("Gone"));
        assert_eq!(edges, if restart == 2 { (36, 37) } else { (36, 36) });
        if restart == 1 {
            assert_eq!(client.put(&Request::send("Gone").body("next")).number("queueOffset"), 36);
            assert_eq!(client.pull_until("Gone", 36, 1).bodies(), ["next"]);
        }
    }
    node.kill();
    node.start_again();
    let mut client = node.client(HEADER_TYPES[0]);
    assert_eq!((min_offset(&mut client, "Gone"), client.max_offset("Gone")), (36, 37));
    assert_eq!(client.put(&Request::send("Gone").body("again")).number("queueOffset"), 37);
}

/// Between two deletions of a pass, when the log has moved and nothing has followed yet.
#[test]
fn in_the_middle_of_a_pass_readers_are_told_and_neither_a_stop_nor_a_kill_harms() {
    // A queue file holds what a segment holds, so that a pull, which looks at one file, meets nothing else.
    let shape = Shape { queue_file_len: 80, ..SHAPE };
    let settings = [("retention.file_pause_ms", "60000"), ("store.consumequeue_file_size", "80")];
    for end in ["stop", "kill"] {
        let mut node = node_on(&old_segments(12), &settings);
        let mut client = node.client(HEADER_TYPES[0]);
        delete_expired(&mut client);
        until("the first segment goes", || segments(&node).len() == 11);
        let removing = client.ask(&Request::pull(TOPIC, 1));
        assert_eq!((code_and_next(&removing), removing.remark.as_str()), ((20, 4), "MESSAGE_WAS_REMOVING"));
        assert_eq!(client.pull_until(TOPIC, 4, 4).bodies(), (4..8).map(body).collect::<Vec<_>>());
        assert_eq!(earliest(&mut client, TOPIC), stored_at_of(&mut client, 4));
        let by_time = Request::queue(request::SEARCH_OFFSET_BY_TIMESTAMP, TOPIC).with("timestamp", 0);
        assert_eq!(client.ask(&by_time).code, response::SUCCESS);
        if end == "stop" {
            assert!(node.stop().success());
        } else {
            node.kill();
        }
        let log = StoredLog::read(&node.root(), shape);
        assert_eq!(log.records.len(), 44);
        node.start_again();
        assert_eq!(node.log().contains("clean start, no scan needed"), end == "stop", "{}", node.log());
        let mut client = node.client(HEADER_TYPES[0]);
        assert_eq!((min_offset(&mut client, TOPIC), client.max_offset(TOPIC)), (4, 48));
        assert_eq!(code_and_next(&client.ask(&Request::pull(TOPIC, 1))), (21, 4));
        assert_eq!(client.put(&Request::send(TOPIC).body("next")).number("queueOffset"), 48);
        assert!(node.stop().success());
        StoredLog::read(&node.root(), shape).check_derived(&node.root(), shape, false);
    }
}

fn stored_at_of(client: &mut Client, offset: i64) -> i64 {
    client.pull_until(TOPIC, offset, 1).records()[0].store_timestamp().0
}

#[test]
fn what_a_kill_left_of_queue_files_goes_on_request() {
    let mut node = node_on(&old_segments(12), &[("retention.file_pause_ms", "60000")]);
    let mut client = node.client(HEADER_TYPES[0]);
    for left in [11, 10, 9] {
        delete_expired(&mut client);
        until("a segment goes", || segments(&node).len() == left);
        node.kill();
        node.start_again();
        client = node.client(HEADER_TYPES[0]);
    }
    assert_eq!((min_offset(&mut client, TOPIC), queue_files(&node, TOPIC)), (12, vec![0, 1, 2, 3, 4]));
    assert_eq!(client.ask(&Request::new(request::CLEAN_EXPIRED_CONSUMEQUEUE)).code, response::SUCCESS);
    until("the file below the minimum goes", || queue_files(&node, TOPIC) == [1, 2, 3, 4]);
    assert_eq!(client.pull_until(TOPIC, 12, 4).bodies()[..4], (12..16).map(body).collect::<Vec<_>>());
    assert!(node.stop().success());
    node.start_again();
    assert!(node.log().contains("clean start, no scan needed"), "{}", node.log());
}

/// Sets a setting of a node that does not run.
fn set(node: &Node, line: &str) {
    let path = node.root().parent().unwrap().join("kerolox.toml");
    let key = line.split('=').next().unwrap();
    let text = fs::read_to_string(&path).unwrap();
    let kept: Vec<_> = text.lines().filter(|old| !old.starts_with(key)).chain([line]).collect();
    fs::write(&path, kept.join("\n") + "\n").unwrap();
}

#[test]
fn a_disk_that_is_too_full_refuses_sends_serves_pulls_and_delays_what_is_due() {
    let free = "disk.min_free_warning = 0";
    let full = "disk.min_free_warning = \"1024TiB\"";
    let mut node = Node::with(&[("retention.check_interval_ms", "200"), ("disk.min_free_warning", "0")]);
    let mut client = node.client(HEADER_TYPES[0]);
    assert!(node.log().contains("disk levels") && node.log().contains("above 90 %"), "{}", node.log());
    assert_eq!(client.put(&Request::send("Full").body("early")).code, response::SUCCESS);
    assert_eq!(client.put(&Request::send("Full").body("late").properties("DELAY=1;")).code, response::SUCCESS);
    assert!(node.stop().success());
    set(&node, full);
    node.start_again();
    let mut client = node.client(HEADER_TYPES[0]);
    for header in HEADER_TYPES {
        let refused = node.client(header).ask(&Request::send("Full").body("refused"));
        assert_eq!(refused.code, response::SERVICE_NOT_AVAILABLE, "{refused:?}");
        let root = node.root().display().to_string();
        for part in [root.as_str(), "% used", "disk.min_free_warning", "1125899906842624"] {
            assert!(refused.remark.contains(part), "{part}: {}", refused.remark);
        }
    }
    assert_eq!(client.pull_until("Full", 0, 1).bodies(), ["early"]);
    // The delayed message is due, cannot be put, and is told of once.
    until("it was tried", || node.log().contains("a delayed message could not be put"));
    thread::sleep(Duration::from_millis(2500));
    assert_eq!(node.log().matches("a delayed message could not be put").count(), 1, "{}", node.log());
    assert_eq!(client.max_offset("Full"), 1);
    // A pull that may wait is held all the same.
    let held = Request::pull("Full", 1).with("sysFlag", 6).with("suspendTimeoutMillis", 300);
    assert_eq!(client.ask(&held).code, response::PULL_NOT_FOUND);
    assert!(node.stop().success());
    set(&node, free);
    node.start_again();
    let mut client = node.client(HEADER_TYPES[0]);
    assert_eq!(client.pull_until("Full", 0, 2).bodies(), ["early", "late"]);
    assert_eq!(client.put(&Request::send("Full").body("more")).number("queueOffset"), 2);
}

/// Young messages have units that are not on stable storage, and a busy node syncs all of them once a minute only: a disk
/// that needs space now must not wait for that.
#[test]
fn segments_that_must_go_at_once_do_not_wait_for_the_next_thorough_flush_of_the_queues() {
    let settings = [
        ("retention.check_interval_ms", "200"),
        ("disk.min_free_clean", "\"1024TiB\""),
        ("flush.consumequeue_thorough_interval_ms", "3600000"),
    ];
    let node = node_on(&[], &settings);
    let mut client = node.client(HEADER_TYPES[0]);
    let asked = Request::send(TOPIC).body(body(0));
    until("the oldest goes while more comes", || {
        client.put(&asked);
        min_offset(&mut client, TOPIC) > 0
    });
    assert!(node.log().contains("segment deleted") && node.log().contains("forced=true"), "{}", node.log());
    let (min, max) = (min_offset(&mut client, TOPIC), client.max_offset(TOPIC));
    assert!(min < max, "never all: {min} {max}");
}

#[test]
fn levels_that_java_would_change_silently_are_refused_at_start() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("k.toml");
    fs::write(&config, "[disk]\nwarning_percent = 98\n").unwrap();
    let run = Program::new(env!("CARGO_BIN_EXE_kerolox"))
        .args(["serve", "--config"])
        .arg(&config)
        .current_dir(dir.path())
        .output()
        .expect("the program runs");
    let told = String::from_utf8_lossy(&run.stderr);
    assert!(!run.status.success() && told.contains("warning_percent = 98") && told.contains("35 to 90"), "{told}");
}

/// Defect J21: nothing stumbles over a queue whose last file is full to the last unit.
#[test]
fn j21_a_queue_that_has_expired_with_its_last_file_exactly_full_hinders_nothing() {
    let mut ages = vec![("Full", 100); 10];
    ages.extend([(TOPIC, 100); 8]);
    let mut node = node_on(&ages, &[]);
    let mut client = node.client(HEADER_TYPES[0]);
    delete_expired(&mut client);
    until("ten segments go", || min_offset(&mut client, "Full") == 40);
    for restart in [false, true] {
        if restart {
            assert!(node.stop().success());
            node.start_again();
            client = node.client(HEADER_TYPES[0]);
        }
        assert_eq!(client.ask(&Request::new(request::CLEAN_EXPIRED_CONSUMEQUEUE)).code, response::SUCCESS);
        assert_eq!((min_offset(&mut client, "Full"), client.max_offset("Full")), (40, 40));
        assert_eq!(code_and_next(&client.ask(&Request::pull("Full", 40))), (19, 40));
        assert_eq!(queue_files(&node, "Full"), [3], "the last file stays");
    }
    // Those that come behind it in a pass are cleaned as well.
    delete_expired(&mut client);
    until("the other's segments go", || min_offset(&mut client, TOPIC) == 28);
    until("its files go", || queue_files(&node, TOPIC) == [2, 3]);
    assert_eq!(client.put(&Request::send("Full").body("next")).number("queueOffset"), 40);
    assert_eq!(client.pull_until("Full", 40, 1).bodies(), ["next"]);
    until("it has a file of its own", || queue_files(&node, "Full").contains(&4));
}
