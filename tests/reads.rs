//! Reads of what is not in memory, of what has been cut away under the node, and at the edges of a queue, to a real node.

mod harness;

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use harness::{Answer, Client, HEADER_TYPES, Node, Request};
use kerolox::format::unit::{UNIT_LEN, Unit};
use kerolox::types::TagsCode;
use kerolox::wire::code::{request, response};
use rustix::fs::Advice;

const TOPIC: &str = "Reads";
const WAIT_MAX: Duration = Duration::from_secs(30);
const MIB: u64 = 1 << 20;

fn in_queue(asked: Request, queue_id: usize) -> Request {
    asked.with("queueId", queue_id)
}

/// Queue of a send.
fn send_to(topic: &str, queue_id: usize, body: Vec<u8>) -> Request {
    Request::send(topic).with("e", queue_id).body(body)
}

/// A body that says which it is, and is `len` bytes long.
fn body(number: usize, len: usize) -> Vec<u8> {
    let mut body = format!("{number:08}").into_bytes();
    body.resize(len, b'.');
    body
}

fn wait_for_max(client: &mut Client, topic: &str, queue_id: usize, max: i64) {
    let deadline = Instant::now() + WAIT_MAX;
    while client.ask(&in_queue(Request::queue(request::GET_MAX_OFFSET, topic), queue_id)).number("offset") < max {
        assert!(Instant::now() < deadline, "queue {queue_id} does not reach {max}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn seen(answer: &Answer) -> (i32, i64) {
    (answer.code, answer.number("nextBeginOffset"))
}

fn files_in(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn segments(node: &Node) -> Vec<PathBuf> {
    files_in(&node.root().join("commitlog"))
}

fn queue_file(node: &Node, topic: &str, queue_id: usize, at: u64) -> PathBuf {
    node.root().join(format!("consumequeue/{topic}/{queue_id}/{at:020}"))
}

/// Takes a file out of the page cache as far as nobody maps it; false if the file system keeps its files in memory.
fn evict(path: &Path) -> bool {
    let file = File::open(path).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).unwrap();
    let evicted = cached_pages(&file) == 0;
    if !evicted {
        eprintln!("{} cannot be evicted; nothing is shown", path.display());
    }
    evicted
}

/// Pages of a file in the page cache; 0 where the kernel does not tell.
fn cached_pages(file: &File) -> u64 {
    let (range, mut stat) = ([0_u64, u64::MAX >> 1], [0_u64; 5]);
    // SAFETY: cachestat (451) reads two and fills five 64-bit numbers, which is what it gets.
    let result = unsafe { libc::syscall(451, file.as_raw_fd(), range.as_ptr(), stat.as_mut_ptr(), 0) };
    if result == 0 { stat[0] } else { 0 }
}

/// One of the numbers that the node tells of itself.
fn told(client: &mut Client, name: &str) -> u64 {
    let answer = client.ask(&Request::new(request::GET_BROKER_RUNTIME_INFO));
    let info: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
    info["table"][name].as_str().unwrap_or_else(|| panic!("no {name} in {info}")).parse().unwrap()
}

/// A node whose log has `segments` segments of 4 MiB full of messages in `queues` queues, none of it read yet.
fn filled(segments: u64, queues: usize, len: usize, settings: &[(&str, &str)]) -> (Node, usize) {
    let mut all = vec![("store.commitlog_file_size", "\"4MiB\""), ("limits.max_message_size", "\"1MiB\"")];
    all.extend(settings);
    let node = Node::with(&all);
    let mut client = node.client(HEADER_TYPES[0]);
    let count = (segments * 4 * MIB) as usize / (len + 300);
    for number in 0..count {
        client.put(&send_to(TOPIC, number % queues, body(number, len)));
    }
    for queue in 0..queues {
        wait_for_max(&mut client, TOPIC, queue, (count / queues) as i64);
    }
    (node, count)
}

#[test]
fn messages_that_left_memory_are_read_from_the_disk_whoever_asks_how_often() {
    // One at a time, so that the second of a turn waits however slow the machine is.
    let (node, count) = filled(3, 4, 4000, &[("read.cold_reads_per_group", "1")]);
    let mut evicted = true;
    for file in segments(&node) {
        evicted &= evict(&file);
    }
    // Many at once on one connection: what does not fit the group's share waits. In one piece, and with the group there, so
    // that they are served before the first read ends.
    let mut client = node.client(HEADER_TYPES[1]);
    client.ask(&Request::pull(TOPIC, count as i64));
    let pulls: Vec<(usize, i64)> =
        (0..count / 4).step_by(8).flat_map(|offset| (0..4).map(move |queue| (queue, offset as i64))).collect();
    let asked = pulls.iter().enumerate().flat_map(|(opaque, (queue, offset))| {
        let asked = in_queue(Request::pull(TOPIC, *offset), *queue).with("maxMsgNums", 8);
        client.frame(&asked, opaque as i32)
    });
    let asked: Vec<u8> = asked.collect();
    client.send_raw(&asked);
    for _ in &pulls {
        let answer = client.read();
        let (queue, offset) = pulls[answer.opaque as usize];
        assert_eq!(answer.code, response::SUCCESS, "{answer:?}");
        for (index, text) in answer.bodies().iter().enumerate() {
            let number = (offset as usize + index) * 4 + queue;
            assert!(text.starts_with(&format!("{number:08}")), "queue {queue} offset {offset} gives {}", &text[..8]);
        }
    }
    if evicted {
        assert!(told(&mut client, "keroloxColdReads") > 0);
        assert!(told(&mut client, "keroloxColdReadsQueued") > 0, "there were more than a group may have under way");
    }
}

/// Of pulls that wait for the disk a connection has so many that their answers fit what may wait for it.
#[test]
fn a_connection_that_asks_for_too_much_at_once_is_told_to_slow_down() {
    let (node, count) = filled(4, 1, 16_000, &[]);
    let mut client = node.client(HEADER_TYPES[0]);
    // So that the group is there.
    client.ask(&in_queue(Request::pull(TOPIC, 0), 1));
    if !segments(&node).iter().all(|file| evict(file)) {
        return;
    }
    let asked = 300;
    // In one piece, so that they are served before the first read ends.
    let pulls: Vec<u8> = (0..asked)
        .flat_map(|number| client.frame(&Request::pull(TOPIC, (number * 331 % (count - 16)) as i64), number as i32))
        .collect();
    client.send_raw(&pulls);
    let codes: Vec<i32> = (0..asked).map(|_| client.read().code).collect();
    let count_of = |code| codes.iter().filter(|found| **found == code).count();
    let (served, slowed) = (count_of(response::SUCCESS), count_of(response::FLOW_CONTROL));
    assert_eq!(served + slowed, asked, "{codes:?}");
    assert!(served >= 16 && slowed >= 1, "{codes:?}");
    // Once those are answered, there is room again.
    assert_eq!(client.ask(&Request::pull(TOPIC, 0)).code, response::SUCCESS);
}

#[test]
fn a_scan_of_old_messages_makes_room_for_who_sends_and_still_gets_all() {
    // A small share, so that the scan meets its limit however slow the machine is.
    let (node, count) = filled(6, 1, 4000, &[("read.memory_percent", "0"), ("read.scan_core_percent", "1")]);
    if !segments(&node).iter().all(|file| evict(file)) {
        return;
    }
    let mut scan = node.client(HEADER_TYPES[0]);
    scan.ask(&Request::pull(TOPIC, count as i64));
    let over = AtomicBool::new(false);
    let got = thread::scope(|scope| {
        scope.spawn(|| {
            let mut sender = node.client(HEADER_TYPES[1]);
            while !over.load(Ordering::Relaxed) {
                sender.put(&send_to("Hot", 0, body(0, 10)));
            }
        });
        let (deadline, mut offset, mut got) = (Instant::now() + WAIT_MAX, 0, 0);
        while got < count && Instant::now() < deadline {
            let answer = scan.ask(&Request::pull(TOPIC, offset));
            assert_eq!(answer.code, response::SUCCESS, "{answer:?}");
            for text in answer.bodies() {
                assert!(text.starts_with(&format!("{got:08}")), "message {got} is {}", &text[..8]);
                got += 1;
            }
            offset = answer.number("nextBeginOffset");
        }
        over.store(true, Ordering::Relaxed);
        got
    });
    assert_eq!(got, count);
    assert!(told(&mut scan, "keroloxScanGetsPaced") > 0, "others sent all the time");
}

#[test]
fn a_scan_of_old_messages_leaves_the_page_cache_as_it_found_it() {
    // Nothing counts as in memory, so that everything but the newest segment may be dropped.
    let (node, count) = filled(10, 4, 16_000, &[("read.memory_percent", "0")]);
    let files = segments(&node);
    if !files.iter().all(|file| evict(file)) {
        return;
    }
    let mut client = node.client(HEADER_TYPES[0]);
    let mut next = [0_i64; 4];
    let mut read = 0;
    while read < count / 4 * 4 {
        for (queue, next) in next.iter_mut().enumerate() {
            let answer = client.ask(&in_queue(Request::pull(TOPIC, *next), queue));
            if answer.code == response::SUCCESS {
                read += answer.records().len();
                *next = answer.number("nextBeginOffset");
            }
        }
    }
    assert!(told(&mut client, "keroloxReadAheadKib") > 10 * 4 * 1024 / 2, "most of it was read ahead");
    // All but what lies right behind the scan, and the newest segment, is gone again, soon.
    let old = &files[..files.len() - 3];
    let deadline = Instant::now() + WAIT_MAX;
    loop {
        let cached: u64 = old.iter().map(|file| cached_pages(&File::open(file).unwrap())).sum();
        if cached * 4096 <= old.len() as u64 * MIB {
            break;
        }
        assert!(Instant::now() < deadline, "{cached} pages of {} old segments are still cached", old.len());
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_segment_cut_short_under_readers_fails_their_reads_and_nothing_else() {
    let (mut node, count) = filled(2, 2, 64_000, &[]);
    let mut client = node.client(HEADER_TYPES[0]);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        // Readers in the middle of it, from memory.
        for (queue, header_type) in HEADER_TYPES.into_iter().enumerate() {
            let (node, stop) = (&node, &stop);
            scope.spawn(move || {
                let mut client = node.client(header_type);
                let mut offset = 0;
                while !stop.load(Ordering::Relaxed) {
                    let answer = client.ask(&in_queue(Request::pull(TOPIC, offset), queue));
                    assert!([response::SUCCESS, response::SYSTEM_ERROR].contains(&answer.code), "{answer:?}");
                    offset = (offset + 1) % (count as i64 / 8);
                }
            });
        }
        thread::sleep(Duration::from_millis(200));
        File::options().write(true).open(&segments(&node)[0]).unwrap().set_len(MIB).unwrap();
        thread::sleep(Duration::from_millis(300));
        stop.store(true, Ordering::Relaxed);
    });
    // What was cut away is an error that names the file; what was not, in this file and others, is read.
    let lost = client.ask(&Request::pull(TOPIC, 20));
    assert_eq!(lost.code, response::SYSTEM_ERROR, "{lost:?}");
    assert!(lost.remark.contains("commitlog/00000000000000000000"), "{}", lost.remark);
    let first = client.ask(&Request::pull(TOPIC, 0).with("maxMsgNums", 1));
    assert!(first.bodies()[0].starts_with("00000000"), "{first:?}");
    let last = client.ask(&Request::pull(TOPIC, count as i64 / 2 - 1));
    assert_eq!(last.records().len(), 1);
    client.put(&Request::send(TOPIC));
    assert!(node.stop().success());
}

#[test]
fn a_consume_queue_cut_short_stops_that_queue_alone() {
    let node = Node::start();
    let mut client = node.client(HEADER_TYPES[0]);
    for number in 0..600 {
        client.put(&send_to(TOPIC, 0, body(number, 10)));
        client.put(&send_to(TOPIC, 1, body(number, 10)));
    }
    for queue in 0..2 {
        wait_for_max(&mut client, TOPIC, queue, 600);
    }
    let file = File::options().write(true).open(queue_file(&node, TOPIC, 0, 0)).unwrap();
    file.set_len(4096).unwrap();
    let lost = client.ask(&Request::pull(TOPIC, 400));
    assert_eq!(lost.code, response::SYSTEM_ERROR, "{lost:?}");
    assert!(lost.remark.contains(&format!("consumequeue/{TOPIC}/0")), "{}", lost.remark);
    assert_eq!(client.ask(&in_queue(Request::pull(TOPIC, 400), 1)).code, response::SUCCESS);
    // The next unit goes to a page that is no more.
    for number in 600..610 {
        client.put(&send_to(TOPIC, 0, body(number, 10)));
        client.put(&send_to(TOPIC, 1, body(number, 10)));
    }
    wait_for_max(&mut client, TOPIC, 1, 610);
    assert_eq!(client.max_offset(TOPIC), 600, "the queue shows nothing that it could not build");
    assert!(node.log().contains("the file was cut short under the node"), "{}", node.log());
    // What the cut left is still read, from the file.
    assert_eq!(client.ask(&Request::pull(TOPIC, 0).with("maxMsgNums", 1)).code, response::SYSTEM_ERROR);
}

#[test]
fn an_index_file_cut_short_fails_its_queries_and_takes_no_more_keys() {
    let node = Node::start();
    let mut client = node.client(HEADER_TYPES[0]);
    client.put(&Request::send(TOPIC).properties("KEYS=old"));
    let query = |key: &str| {
        Request::new(request::QUERY_MESSAGE)
            .with("topic", TOPIC)
            .with("key", key)
            .with("maxNum", 10)
            .with("beginTimestamp", 0)
            .with("endTimestamp", i64::MAX)
    };
    until(&mut client, &query("old"), |answer| answer.code == response::SUCCESS);
    let index = files_in(&node.root().join("index"));
    File::options().write(true).open(&index[0]).unwrap().set_len(0).unwrap();
    let lost = client.ask(&query("old"));
    assert_eq!(lost.code, response::SYSTEM_ERROR, "{lost:?}");
    assert!(lost.remark.contains("index/"), "{}", lost.remark);
    client.put(&Request::send(TOPIC).properties("KEYS=new"));
    // The new key is in a new file; the query has to look into the old one only if it asks for that time, as this does.
    let deadline = Instant::now() + WAIT_MAX;
    while files_in(&node.root().join("index")).len() < 2 {
        assert!(Instant::now() < deadline, "no new index file: {}", node.log());
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(client.ask(&query("new")).code, response::SYSTEM_ERROR, "it cannot say that this is all");
    assert_eq!(client.put(&Request::send(TOPIC)).code, response::SUCCESS);
}

fn until(client: &mut Client, asked: &Request, done: impl Fn(&Answer) -> bool) -> Answer {
    let deadline = Instant::now() + WAIT_MAX;
    loop {
        let answer = client.ask(asked);
        if done(&answer) {
            return answer;
        }
        assert!(Instant::now() < deadline, "{answer:?}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// In this mode a store into the mapping is what fails, and the message was never in the log.
#[test]
fn a_segment_cut_short_under_a_mapped_writer_ends_sends_and_not_the_node() {
    let node = Node::with(&[("store.append", "\"mmap\"")]);
    let mut client = node.client(HEADER_TYPES[0]);
    client.put(&Request::send(TOPIC));
    wait_for_max(&mut client, TOPIC, 0, 1);
    File::options().write(true).open(&segments(&node)[0]).unwrap().set_len(0).unwrap();
    let answer = client.ask(&Request::send(TOPIC));
    assert!([response::SYSTEM_ERROR, response::SERVICE_NOT_AVAILABLE].contains(&answer.code), "{answer:?}");
    assert_eq!(client.ask(&Request::send(TOPIC)).code, response::SERVICE_NOT_AVAILABLE);
    assert_eq!(client.ask(&Request::pull(TOPIC, 0)).code, response::SYSTEM_ERROR);
    assert_eq!(client.max_offset(TOPIC), 1, "it answers still");
}

/// A unit that a broker left behind may point to a whole record, of another queue.
#[test]
fn a_unit_that_points_to_the_message_of_another_queue_is_stepped_over() {
    let node = Node::start();
    let mut client = node.client(HEADER_TYPES[0]);
    for text in ["zero", "one", "two"] {
        client.put(&send_to(TOPIC, 0, text.into()));
        client.put(&send_to("Other", 0, text.into()));
        client.put(&send_to(TOPIC, 1, text.into()));
    }
    wait_for_max(&mut client, TOPIC, 0, 3);
    wait_for_max(&mut client, TOPIC, 1, 3);
    let own = fs::read(queue_file(&node, TOPIC, 0, 0)).unwrap();
    let other = fs::read(queue_file(&node, TOPIC, 1, 0)).unwrap();
    let file = File::options().write(true).open(queue_file(&node, TOPIC, 0, 0)).unwrap();
    let unit = |bytes: &[u8], index: usize| bytes[index * UNIT_LEN..][..UNIT_LEN].to_vec();
    // Of another queue, of another offset, and the start of a region that was quarantined.
    let quarantined = Unit { len: 10_000, tags: TagsCode(0), ..Unit::decode(own[UNIT_LEN..].first_chunk().unwrap()) };
    for stale in [unit(&other, 1), unit(&own, 2), unit(&own, 0), quarantined.encode().to_vec()] {
        file.write_all_at(&stale, UNIT_LEN as u64).unwrap();
        let all = client.ask(&Request::pull(TOPIC, 0));
        assert_eq!((all.bodies(), seen(&all)), (vec!["zero".into(), "two".into()], (response::SUCCESS, 3)));
        let alone = client.ask(&Request::pull(TOPIC, 1).with("maxMsgNums", 1));
        let (skipped, beyond) = ((response::PULL_RETRY_IMMEDIATELY, 2), (response::SUCCESS, 3));
        assert!(seen(&alone) == skipped || seen(&alone) == beyond && alone.bodies() == ["two"], "{alone:?}");
    }
    file.write_all_at(&unit(&own, 1), UNIT_LEN as u64).unwrap();
    assert_eq!(client.ask(&Request::pull(TOPIC, 0)).bodies(), ["zero", "one", "two"]);
}

/// A record that is damaged where it lies in the log, as a bad block of the disk or a stray write leaves it.
#[test]
fn a_damaged_record_is_stepped_over_by_pulls_and_searches_and_told_to_who_asks_for_it() {
    let node = Node::start();
    let mut client = node.client(HEADER_TYPES[0]);
    for text in ["zero", "one", "two", "three"] {
        client.put(&Request::send(TOPIC).body(text));
        thread::sleep(Duration::from_millis(3));
    }
    let all = client.pull_until(TOPIC, 0, 4);
    let records = all.records();
    let times: Vec<i64> = records.iter().map(|record| record.store_timestamp().0).collect();
    let damaged = records[1].phy();
    let file = File::options().write(true).open(&segments(&node)[0]).unwrap();
    file.write_all_at(&[0xab; 40], damaged.0).unwrap();
    let answer = client.ask(&Request::pull(TOPIC, 0));
    assert_eq!((answer.bodies(), seen(&answer)), (["zero", "two", "three"].map(str::to_owned).into(), (0, 4)));
    let mut search = |time: i64, boundary: &str| {
        let asked = Request::queue(request::SEARCH_OFFSET_BY_TIMESTAMP, TOPIC).with("timestamp", time);
        client.ask(&asked.with("boundaryType", boundary)).number("offset")
    };
    // Its time is taken to be that of the next.
    assert_eq!((search(times[3], "lower"), search(times[3], "upper")), (3, 3));
    assert_eq!((search(times[2], "lower"), search(times[2], "upper")), (1, 2));
    assert_eq!((search(times[0], "lower"), search(times[0], "upper")), (0, 0));
    let view = client.ask(&Request::new(request::VIEW_MESSAGE_BY_ID).with("offset", damaged.0));
    assert_eq!(view.code, response::SYSTEM_ERROR, "{view:?}");
}

/// Cases T14 and E20, with a queue whose oldest messages have expired.
#[test]
fn t14_a_pull_outside_of_its_queue_is_told_where_that_begins_or_ends() {
    let mut node = Node::with(&[("store.commitlog_file_size", "\"1MiB\""), ("limits.max_message_size", "\"64KiB\"")]);
    let mut client = node.client(HEADER_TYPES[0]);
    for number in 0..100 {
        client.put(&send_to(TOPIC, 0, body(number, 20_000)));
        client.put(&send_to(TOPIC, 1, body(number, 100)));
    }
    wait_for_max(&mut client, TOPIC, 0, 100);
    wait_for_max(&mut client, TOPIC, 1, 100);
    assert!(node.stop().success());
    fs::remove_file(&segments(&node)[0]).unwrap();
    node.start_again();
    let mut client = node.client(HEADER_TYPES[0]);
    for queue in 0..2 {
        let min = client.ask(&in_queue(Request::queue(request::GET_MIN_OFFSET, TOPIC), queue)).number("offset");
        assert!((40..60).contains(&min), "{min}");
        let mut at = |offset| client.ask(&in_queue(Request::pull(TOPIC, offset), queue));
        for (offset, code, next) in [
            (100, response::PULL_NOT_FOUND, 100),
            (101, response::PULL_OFFSET_MOVED, 100),
            (5000, response::PULL_OFFSET_MOVED, 100),
            (0, response::PULL_OFFSET_MOVED, min),
            (min - 1, response::PULL_OFFSET_MOVED, min),
            (-1, response::PULL_OFFSET_MOVED, min),
        ] {
            let answer = at(offset);
            assert_eq!(
                (seen(&answer), answer.number("minOffset"), answer.number("maxOffset")),
                ((code, next), min, 100)
            );
        }
        assert!(at(min).bodies()[0].starts_with(&format!("{min:08}")));
        let time = client.ask(&in_queue(Request::queue(request::GET_EARLIEST_MSG_STORETIME, TOPIC), queue));
        let first = client.ask(&in_queue(Request::pull(TOPIC, min), queue));
        assert_eq!(time.number("timestamp"), first.records()[0].store_timestamp().0);
        let by_time = Request::queue(request::SEARCH_OFFSET_BY_TIMESTAMP, TOPIC).with("timestamp", 0);
        assert_eq!(client.ask(&in_queue(by_time, queue)).number("offset"), min, "not before the first that is left");
    }
    let empty = |offset| in_queue(Request::pull(TOPIC, offset), 2);
    assert_eq!(seen(&client.ask(&empty(0))), (response::PULL_NOT_FOUND, 0));
    assert_eq!(seen(&client.ask(&empty(7))), (response::PULL_OFFSET_MOVED, 0));
    let none = client.ask(&in_queue(Request::queue(request::GET_EARLIEST_MSG_STORETIME, TOPIC), 2));
    assert_eq!(none.number("timestamp"), -1);
    let beyond = client.ask(&in_queue(Request::pull(TOPIC, 0), 99));
    assert_eq!(beyond.code, response::INVALID_PARAMETER);
    assert!(beyond.remark.contains("99"), "{}", beyond.remark);
}

/// Cases E18, E19 and E22; a file has ten units.
#[test]
fn a_pull_looks_at_one_file_and_at_800_units_unless_told_otherwise() {
    let ten = ("store.consumequeue_file_size", "200");
    let node = Node::with(&[ten]);
    let mut client = node.client(HEADER_TYPES[0]);
    fill(&mut client, 25);
    assert!(queue_file(&node, TOPIC, 0, 200).exists() && queue_file(&node, TOPIC, 0, 400).exists());
    let answer = client.ask(&Request::pull(TOPIC, 9));
    assert_eq!((answer.bodies(), seen(&answer)), (vec!["9".into()], (response::SUCCESS, 10)));
    let none = Request::pull(TOPIC, 3).with("subscription", "None");
    assert_eq!(seen(&client.ask(&none)), (response::PULL_RETRY_IMMEDIATELY, 10));

    let node = Node::with(&[ten, ("read.queue_files_max", "2")]);
    let mut client = node.client(HEADER_TYPES[0]);
    fill(&mut client, 25);
    assert_eq!(seen(&client.ask(&none)), (response::PULL_RETRY_IMMEDIATELY, 20), "two files, as nothing was found");
    assert_eq!(seen(&client.ask(&Request::pull(TOPIC, 9))), (response::SUCCESS, 10), "one, as something was");
    assert_eq!(seen(&client.ask(&none.clone().with("queueOffset", 20))), (response::PULL_RETRY_IMMEDIATELY, 25));

    let node = Node::with(&[]);
    let mut client = node.client(HEADER_TYPES[0]);
    fill(&mut client, 2000);
    for (from, to) in [(0, 800), (800, 1600), (1600, 2000)] {
        let asked = none.clone().with("queueOffset", from);
        assert_eq!(seen(&client.ask(&asked)), (response::PULL_RETRY_IMMEDIATELY, to));
    }
    let more = none.clone().with("queueOffset", 0).with("maxMsgNums", 1000);
    assert_eq!(seen(&client.ask(&more)), (response::PULL_RETRY_IMMEDIATELY, 1000));
}

fn fill(client: &mut Client, count: usize) {
    for number in 0..count {
        client.put(&Request::send(TOPIC).properties("TAGS=A").body(number.to_string()));
    }
    wait_for_max(client, TOPIC, 0, count as i64);
}

/// Case E21, and both limits of messages that count as in memory or not.
#[test]
fn a_pull_gives_what_the_limits_of_hot_and_cold_messages_allow_and_one_in_any_case() {
    for (percent, by_count, by_len) in [("40", 32, 2), ("0", 8, 1)] {
        let node = Node::with(&[("read.memory_percent", percent)]);
        let mut client = node.client(HEADER_TYPES[0]);
        fill(&mut client, 40);
        for number in 0..3 {
            client.put(&send_to(TOPIC, 1, body(number, 100 * 1024)));
        }
        client.put(&send_to(TOPIC, 2, body(0, 1024 * 1024)));
        client.put(&send_to(TOPIC, 2, body(1, 10)));
        for (queue, max) in [(1, 3), (2, 2)] {
            wait_for_max(&mut client, TOPIC, queue, max);
        }
        let mut count = |queue| client.ask(&in_queue(Request::pull(TOPIC, 0), queue)).records().len();
        assert_eq!((count(0), count(1), count(2)), (by_count, by_len, 1), "{percent} %");
    }
}

/// Rule R10.
#[test]
fn reads_make_no_queue() {
    let mut node = Node::start();
    let mut client = node.client(HEADER_TYPES[0]);
    client.put(&Request::send(TOPIC));
    wait_for_max(&mut client, TOPIC, 0, 1);
    for topic in [TOPIC, "Unknown"] {
        for queue in [1, 3, 99] {
            client.ask(&in_queue(Request::pull(topic, 5), queue));
            for code in [request::GET_MAX_OFFSET, request::GET_MIN_OFFSET, request::SEARCH_OFFSET_BY_TIMESTAMP] {
                let asked = in_queue(Request::queue(code, topic), queue).with("timestamp", 1);
                assert_eq!(client.ask(&asked).number("offset"), 0);
            }
            client.ask(&in_queue(Request::queue(request::GET_EARLIEST_MSG_STORETIME, topic), queue));
        }
    }
    assert!(node.stop().success());
    assert_eq!(files_in(&node.root().join("consumequeue").join(TOPIC)).len(), 1);
    assert!(!node.root().join("consumequeue/Unknown").exists());
}

/// Cases T16, E23, E24, E26 and E27.
#[test]
fn t16_a_query_finds_its_own_key_among_those_with_the_same_hash() {
    let node = Node::start();
    let mut client = node.client(HEADER_TYPES[0]);
    let query = |topic: &str, key: &str, max: i32, begin: i64| {
        Request::new(request::QUERY_MESSAGE)
            .with("topic", topic)
            .with("key", key)
            .with("maxNum", max)
            .with("beginTimestamp", begin)
            .with("endTimestamp", i64::MAX)
    };
    client.put(&Request::send("AaTopic").properties("KEYS=Aa").body("first"));
    until(&mut client, &query("AaTopic", "Aa", 1, 0), |answer| answer.code == response::SUCCESS);
    assert_eq!(client.ask(&query("AaTopic", "BB", 32, 0)).code, response::QUERY_NOT_FOUND);
    client.put(&Request::send("BBTopic").properties("KEYS=BB").body("second"));
    let found = until(&mut client, &query("BBTopic", "BB", 32, 0), |answer| answer.code == response::SUCCESS);
    assert_eq!((found.bodies(), found.records()[0].topic()), (vec!["second".to_owned()], "BBTopic"));
    // One is asked for, and many newer ones have its hash: more than one look at the index gives.
    for _ in 0..80 {
        client.put(&Request::send("BBTopic").properties("KEYS=Aa").body("other"));
    }
    until(&mut client, &query("BBTopic", "Aa", 64, 0), |answer| answer.records().len() == 64);
    thread::sleep(Duration::from_millis(5));
    client.put(&Request::send("BBTopic").properties("KEYS=last"));
    until(&mut client, &query("BBTopic", "last", 1, 0), |answer| answer.code == response::SUCCESS);
    assert_eq!(client.ask(&query("AaTopic", "Aa", 1, 0)).bodies(), ["first"]);
    assert_eq!(client.ask(&query("BBTopic", "BB", 1, 0)).bodies(), ["second"]);
    // The newest as many as asked for, the oldest of them first.
    for body in ["1", "2", "3"] {
        client.put(&Request::send("BBTopic").properties("KEYS=n  x ").body(body));
    }
    let newest = until(&mut client, &query("BBTopic", "n", 10, 0), |answer| answer.records().len() == 3);
    assert_eq!(newest.bodies(), ["1", "2", "3"]);
    assert_eq!(client.ask(&query("BBTopic", "n", 2, 0)).bodies(), ["2", "3"]);
    assert_eq!(client.ask(&query("BBTopic", "x", 2, 0)).bodies(), ["2", "3"]);
    assert_ne!(client.ask(&query("BBTopic", "", 2, 0)).code, response::SUCCESS);
    // A window that begins in the second of the record still has it.
    let stored_at = newest.records()[2].store_timestamp().0;
    assert!(client.ask(&query("BBTopic", "n", 10, stored_at)).bodies().contains(&"3".to_owned()));
    client.put(&Request::send("TopicTest").properties("KEYS=tbaekxa").body("least"));
    let least = until(&mut client, &query("TopicTest", "tbaekxa", 1, 0), |answer| answer.code == response::SUCCESS);
    assert_eq!(least.bodies(), ["least"]);
}
