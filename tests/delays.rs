//! Delayed messages when something is wrong with one of them: the others must come through.

mod harness;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::{Duration, Instant};

use harness::{Client, HEADER_TYPES, Node, Request};
use kerolox::format::config_files::DelayOffsetsFile;
use kerolox::format::unit::{UNIT_LEN, Unit};
use kerolox::types::{PhyOffset, TagsCode};

const TOPIC: &str = "Late";
/// A message of this level is due after five seconds.
const LEVEL: u32 = 2;

/// Sends a message of [`LEVEL`] for this queue; gives its place in the log.
fn put_delayed(client: &mut Client, queue_id: u32, body: &[u8]) -> u64 {
    let asked = Request::send(TOPIC).with("e", queue_id).properties(&format!("DELAY={LEVEL}")).body(body);
    phy_of(client.put(&asked).text("msgId"))
}

fn phy_of(message_id: &str) -> u64 {
    u64::from_str_radix(&message_id[16..], 16).expect("an id ends with a position")
}

/// Waits for a line in the node's log.
fn await_log(node: &Node, line: &str, count: usize) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while node.log().matches(line).count() < count {
        assert!(Instant::now() < deadline, "{line:?} is not {count} times in the log");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_message_larger_than_the_limit_that_was_lowered_meanwhile_is_delivered_like_any_other() {
    let mut node = Node::start();
    let mut client = node.client(HEADER_TYPES[0]);
    put_delayed(&mut client, 1, &vec![b'x'; 1_200_000]);
    put_delayed(&mut client, 0, b"small");
    assert!(node.stop().success());
    let config = node.root().with_file_name("kerolox.toml");
    let mut config = File::options().append(true).open(config).expect("the node's settings");
    config.write_all(b"limits.max_message_size = \"1MiB\"\n").expect("the settings can be changed");
    node.start_again();
    let mut client = node.client(HEADER_TYPES[0]);
    assert_eq!(client.pull_until(TOPIC, 0, 1).bodies(), ["small"]);
    let deadline = Instant::now() + Duration::from_secs(20);
    while client.ask(&Request::pull(TOPIC, 0).with("queueId", 1)).body.len() < 1_200_000 {
        assert!(Instant::now() < deadline, "the large message was accepted and does not arrive");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn damaged_records_and_units_are_stepped_over_once_and_all_others_come_in_order() {
    let node = Node::start();
    let mut client = node.client(HEADER_TYPES[0]);
    let other = phy_of(client.put(&Request::send("Other")).text("msgId"));
    let bodies = ["first", "crc", "magic", "far", "foreign", "inside", "offset", "last"];
    let places: Vec<u64> = bodies.iter().map(|body| put_delayed(&mut client, 0, body.as_bytes())).collect();
    // The end of the log may be written again with what comes next; what is damaged lies well before it.
    client.put(&Request::send("Other").body(vec![b'x'; 100_000]));

    let units = node.root().join(format!("consumequeue/SCHEDULE_TOPIC_XXXX/{}/{:020}", LEVEL - 1, 0));
    let unit_at = |index: usize| (index * UNIT_LEN) as u64;
    let deadline = Instant::now() + Duration::from_secs(3);
    while fs::read(&units).map_or(true, |bytes| bytes.iter().skip(7 * UNIT_LEN).take(UNIT_LEN).all(|byte| *byte == 0)) {
        assert!(Instant::now() < deadline, "the messages have no units");
        thread::sleep(Duration::from_millis(5));
    }
    let units = File::options().read(true).write(true).open(units).expect("the queue's file");
    let unit = |index: usize| {
        let mut bytes = [0; UNIT_LEN];
        units.read_exact_at(&mut bytes, unit_at(index)).expect("the queue's file can be read");
        Unit::decode(&bytes)
    };
    let replace = |index: usize, phy: u64| {
        let unit = Unit { phy: PhyOffset(phy), ..unit(index) };
        assert_ne!(unit.tags, TagsCode(0), "a due time");
        units.write_all_at(&unit.encode(), unit_at(index)).expect("the queue's file can be changed");
    };
    let log = File::options().write(true).open(node.root().join(format!("commitlog/{:020}", 0))).expect("the log");
    let damage = |phy: u64, bytes: &[u8]| log.write_all_at(bytes, phy).expect("the log can be changed");
    const BODY_AT: u64 = 88;
    damage(places[1] + BODY_AT, b"!");
    damage(places[2] + 4, &[0x55; 4]);
    replace(3, 1 << 40);
    replace(4, other);
    replace(5, places[5] + 8);
    // Its own queue offset: nothing that delivery relies on.
    damage(places[6] + 20, &(1_u64 << 40).to_be_bytes());

    assert_eq!(client.pull_until(TOPIC, 0, 3).bodies(), ["first", "offset", "last"]);
    const STEPPED_OVER: &str = "can never be delivered; stepped over";
    await_log(&node, STEPPED_OVER, 5);
    // A later message comes as well, and nothing comes twice.
    put_delayed(&mut client, 0, b"later");
    assert_eq!(client.pull_until(TOPIC, 3, 1).bodies(), ["later"]);
    assert_eq!(client.max_offset(TOPIC), 4);
    assert_eq!(node.log().matches(STEPPED_OVER).count(), 5);
}

/// T18 of the cases.
#[test]
fn t18_a_saved_position_beyond_its_level_comes_back_to_the_end_and_what_follows_is_delivered() {
    let mut node = Node::start();
    let mut client = node.client(HEADER_TYPES[0]);
    let asked = Request::send("Beyond").properties("DELAY=3");
    for _ in 0..74 {
        client.put(&asked);
    }
    assert!(node.stop().success());
    let saved = node.root().join("config/delayOffset.json");
    fs::write(&saved, "{\n\t\"offsetTable\":{3:77\n\t}\n}").expect("the position can be written");
    node.start_again();
    await_log(&node, "delay position lay outside its queue", 1);
    let log = node.log();
    let line = log.lines().find(|line| line.contains("delay position lay outside its queue")).expect("it was there");
    assert!(["level=3", "saved=77", "now=74"].iter().all(|part| line.contains(part)), "{line}");
    let mut client = node.client(HEADER_TYPES[1]);
    let sent = Instant::now();
    client.put(&asked.body("late"));
    let answer = client.pull_until("Beyond", 0, 1);
    assert!(sent.elapsed() >= Duration::from_millis(9_900), "{:?}", sent.elapsed());
    assert_eq!(answer.bodies(), ["late"], "the 74 before it were passed");
    let record = &answer.records()[0];
    let waited = record.store_timestamp().0 - record.born_timestamp();
    assert!(waited > 9_900, "{waited}");
    let deadline = Instant::now() + Duration::from_secs(15);
    let position = || {
        let file = DelayOffsetsFile::decode(&fs::read(&saved).expect("the file is there")).expect("it is whole");
        file.table.get(&3).copied()
    };
    while position() != Some(75) {
        assert!(Instant::now() < deadline, "{:?}", position());
        thread::sleep(Duration::from_millis(50));
    }
}
