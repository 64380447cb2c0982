//! Stores that Java wrote, opened by the built node: every message, key, topic, group and offset is there, the node goes
//! on where Java stopped, and what it leaves agrees with itself.

mod harness;
#[path = "harness/stored.rs"]
mod stored;
#[path = "harness/unpack.rs"]
mod unpack;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use harness::{Client, HEADER_TYPES, Node, Request};
use kerolox::format::config_files::{
    ConsumerOffsetsFile, DelayOffsetsFile, SubscriptionGroupsFile, TopicConfig, TopicsFile,
};
use kerolox::format::record::RecordView;
use kerolox::types::properties;
use kerolox::wire::HeaderType;
use kerolox::wire::code::{request, response};
use kerolox::wire::lists::TopicList;
use stored::{Shape, Stored, StoredLog, copy_folder, files_below};
use unpack::unpack;

/// Of `java-clean` and `java-crash`.
const SMALL: Shape = Shape { segment_len: 4096, queue_file_len: 200, index_slots: 100, index_entries: 400 };
/// Of the 4.9.8 broker.
const BROKER: Shape = Shape { segment_len: 16 << 20, queue_file_len: 60_000, index_slots: 5000, index_entries: 20_000 };

/// A query finds no more than this, says store.md 4.5.
const FOUND_MAX: usize = 64;
/// Topics that were deleted while the 4.9.8 broker ran: their records are in the log and nowhere else.
const DELETED: [&str; 1] = ["TopicB"];

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// A node whose store is prepared before it starts, and the log that it found.
fn node_on(shape: Shape, more: &[(&str, &str)], prepare: impl FnOnce(&Path)) -> (Node, StoredLog) {
    let number = |number: u64| number.to_string();
    let sizes = [
        ("store.commitlog_file_size", number(shape.segment_len)),
        ("store.consumequeue_file_size", number(shape.queue_file_len)),
        ("store.index_slots", number(shape.index_slots.into())),
        ("store.index_entries", number(shape.index_entries.into())),
    ];
    let settings: Vec<_> =
        sizes.iter().map(|(key, value)| (*key, value.as_str())).chain(more.iter().copied()).collect();
    let mut log = None;
    let node = Node::prepared(&settings, |program| {
        let root = program.get_current_dir().expect("the harness sets it").join("data");
        prepare(&root);
        log = Some(StoredLog::read(&root, shape));
    });
    let mut log = log.expect("it was prepared");
    log.deleted = DELETED.map(str::to_owned).to_vec();
    (node, log)
}

/// A node on one of the small stores, with the topics that these lack.
fn node_on_small(name: &str) -> (Node, StoredLog) {
    node_on(SMALL, &[("limits.max_message_size", "3000")], |root| {
        copy_folder(&golden(name), root);
        let mut topics = TopicsFile::default();
        for topic in ["A", "B"] {
            topics.topics.insert(topic.into(), TopicConfig::new(topic, 1));
        }
        fs::create_dir_all(root.join("config")).unwrap();
        fs::write(root.join("config/topics.json"), topics.encode()).unwrap();
    })
}

fn node_on_broker() -> (Node, StoredLog) {
    node_on(BROKER, &[], |root| unpack(&golden("java-broker-4.9.8.tar.gz"), root))
}

/// Pulls every message of every queue and compares it with what is in the log.
fn assert_all_pulled(client: &mut Client, log: &StoredLog) {
    for ((topic, queue_id), messages) in log.queues() {
        let of_queue = |code| Request::queue(code, topic).with("queueId", queue_id);
        let (first, end) = (messages[0].offset as i64, messages[messages.len() - 1].offset as i64 + 1);
        assert_eq!(client.ask(&of_queue(request::GET_MIN_OFFSET)).number("offset"), first, "{topic} {queue_id}");
        assert_eq!(client.ask(&of_queue(request::GET_MAX_OFFSET)).number("offset"), end, "{topic} {queue_id}");
        let mut at = first;
        while at < end {
            let answer = client.ask(&Request::pull(topic, at).with("queueId", queue_id));
            assert_eq!(answer.code, response::SUCCESS, "{topic} {queue_id} at {at}: {answer:?}");
            let records = answer.records();
            assert!(!records.is_empty());
            for record in &records {
                assert_same(record, messages[(at - first) as usize]);
                at += 1;
            }
            assert_eq!(answer.number("nextBeginOffset"), at);
        }
    }
}

fn assert_same(record: &RecordView<'_>, expected: &Stored) {
    assert_eq!((record.topic(), record.queue_id()), (&*expected.topic, expected.queue_id));
    assert_eq!((record.queue_offset().0, record.phy().0), (expected.offset, expected.phy));
    assert_eq!((record.body(), record.properties()), (&*expected.body, &*expected.properties));
    assert_eq!(record.store_timestamp().0, expected.stored_at);
}

/// Looks up every message by each of its keys, by its place, and by its store time.
fn assert_all_looked_up(client: &mut Client, log: &StoredLog) {
    for stored in &log.records {
        let keys = properties::get(&stored.properties, properties::UNIQ_KEY).into_iter();
        let keys = keys.chain(properties::get(&stored.properties, properties::KEYS).unwrap_or_default().split(' '));
        for key in keys.filter(|key| !key.is_empty()) {
            let asked = Request::new(request::QUERY_MESSAGE)
                .with("topic", &stored.topic)
                .with("key", key)
                .with("maxNum", FOUND_MAX)
                .with("beginTimestamp", stored.stored_at)
                .with("endTimestamp", stored.stored_at);
            let answer = client.ask(&asked);
            assert_eq!(answer.code, response::SUCCESS, "{key} of {stored:?}: {answer:?}");
            let records = answer.records();
            match records.iter().find(|record| record.phy().0 == stored.phy) {
                Some(found) => assert_same(found, stored),
                // Of a key that very many messages have, the newest are found.
                None => {
                    assert_eq!(records.len(), FOUND_MAX, "{key} does not find {stored:?}");
                    assert!(records.iter().all(|record| record.phy().0 > stored.phy));
                }
            }
        }
        let answer = client.ask(&Request::new(request::VIEW_MESSAGE_BY_ID).with("offset", stored.phy));
        assert_same(&answer.records()[0], stored);
    }
    for ((topic, queue_id), messages) in log.queues() {
        for message in &messages {
            let asked = Request::queue(request::SEARCH_OFFSET_BY_TIMESTAMP, topic)
                .with("queueId", queue_id)
                .with("timestamp", message.stored_at);
            let first = messages.iter().find(|other| other.stored_at >= message.stored_at).unwrap();
            assert_eq!(client.ask(&asked).number("offset") as u64, first.offset, "{message:?}");
        }
    }
}

/// Commit log and consume queues, without the files of zeros that were made ahead.
fn kept_bytes(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = files_below(&root.join("commitlog"));
    files.extend(files_below(&root.join("consumequeue")));
    files.retain(|_, bytes| bytes.iter().any(|byte| *byte != 0));
    files
}

/// Reads and checks what a stopped node left. Java may have put the keys of its last record in twice (J20).
fn check(node: &Node, shape: Shape) -> StoredLog {
    let mut log = StoredLog::read(&node.root(), shape);
    log.deleted = DELETED.map(str::to_owned).to_vec();
    log.check_derived(&node.root(), shape, false);
    log
}

/// Stops and starts the node on Java's store, and sees that nothing in it changes (I20); then sends, and sees that Java's
/// messages stay and ours follow.
fn assert_goes_on(
    node: &mut Node,
    shape: Shape,
    log: &StoredLog,
    before: &BTreeMap<PathBuf, Vec<u8>>,
    topics: &[&str],
) {
    for _ in 0..2 {
        assert_eq!(node.stop().code(), Some(0));
        assert!(!node.root().join("abort").exists());
        let now = kept_bytes(&node.root());
        let changed = now.keys().chain(before.keys()).find(|path| now.get(*path) != before.get(*path));
        assert_eq!(changed, None, "changed by opening and closing");
        check(node, shape);
        node.start_again();
    }
    let mut expected = log.records.clone();
    for header_type in HEADER_TYPES {
        let mut client = node.client(header_type);
        for round in 0..7 {
            for topic in topics {
                let next = expected.iter().filter(|s| s.topic == *topic && s.queue_id == 0).map(|s| s.offset + 1).max();
                let body = format!("{header_type:?} {round}").repeat(30);
                let asked =
                    Request::send(topic).body(&*body).properties(&format!("TAGS=new;KEYS=n{round};UNIQ_KEY=u{round}"));
                let answer = client.put(&asked);
                assert_eq!(answer.number("queueOffset") as u64, next.unwrap_or(0));
                let phy = u64::from_str_radix(&answer.text("msgId")[16..], 16).unwrap();
                let shown = client.ask(&Request::new(request::VIEW_MESSAGE_BY_ID).with("offset", phy));
                let records = shown.records();
                assert_eq!(records[0].body(), body.as_bytes());
                let mut stored = log.records[0].clone();
                (stored.topic, stored.queue_id, stored.offset) = ((*topic).to_owned(), 0, next.unwrap_or(0));
                (stored.phy, stored.body) = (phy, body.into_bytes());
                expected.push(stored);
            }
        }
    }
    assert_eq!(node.stop().code(), Some(0));
    assert!(!node.root().join("abort").exists());
    let after = check(node, shape);
    assert_eq!(after.records[..log.records.len()], log.records);
    for (found, expected) in after.records.iter().zip(&expected) {
        let parts = |s: &Stored| (s.topic.clone(), s.queue_id, s.offset, s.phy, s.body.clone());
        assert_eq!(parts(found), parts(expected));
    }
    assert_eq!(after.records.len(), expected.len());
    node.start_again();
    let mut client = node.client(HeaderType::Json);
    assert_all_pulled(&mut client, &after);
    assert_all_looked_up(&mut client, &after);
}

fn assert_small_store_is_served(name: &str) {
    let before: BTreeMap<_, _> = kept_bytes(&golden(name));
    let (mut node, log) = node_on_small(name);
    assert_eq!(log.records.len(), 30);
    assert_eq!(log.queues().values().map(Vec::len).collect::<Vec<_>>(), [20, 10]);
    let moved = before
        .into_iter()
        .map(|(path, bytes)| (node.root().join(path.strip_prefix(golden(name)).expect("it is in there")), bytes));
    let before = moved.collect();
    for header_type in HEADER_TYPES {
        let mut client = node.client(header_type);
        assert_all_pulled(&mut client, &log);
        assert_all_looked_up(&mut client, &log);
    }
    assert_goes_on(&mut node, SMALL, &log, &before, &["A", "B"]);
}

#[test]
fn a_store_that_java_closed_is_served_and_goes_on() {
    assert_small_store_is_served("java-clean");
}

#[test]
fn a_store_that_java_left_in_a_crash_is_served_and_goes_on() {
    assert_small_store_is_served("java-crash");
}

#[test]
fn the_messages_of_a_java_broker_are_served_and_go_on() {
    let (mut node, log) = node_on_broker();
    assert_eq!(log.records.len(), 385);
    let aside = tempfile::tempdir().unwrap();
    unpack(&golden("java-broker-4.9.8.tar.gz"), aside.path());
    let moved = kept_bytes(aside.path())
        .into_iter()
        .map(|(path, bytes)| (node.root().join(path.strip_prefix(aside.path()).expect("it is in there")), bytes));
    let before = moved.collect();
    let mut client = node.client(HeaderType::Rocketmq);
    assert_all_pulled(&mut client, &log);
    assert_all_looked_up(&mut client, &log);
    assert_goes_on(&mut node, BROKER, &log, &before, &["TopicA", "TopicC"]);
}

#[test]
fn topics_groups_and_offsets_of_a_java_broker_are_kept() {
    let (mut node, _) = node_on_broker();
    let config = |name: &str| fs::read(golden("config-4.9.8").join(name)).unwrap();
    let topics = TopicsFile::decode(&config("topics.json")).unwrap();
    let groups = SubscriptionGroupsFile::decode(&config("subscriptionGroup.json")).unwrap();
    let offsets = ConsumerOffsetsFile::decode(&config("consumerOffset.json")).unwrap();
    let delays = DelayOffsetsFile::decode(&config("delayOffset.json")).unwrap();
    for restarted in [false, true] {
        let mut client = node.client(HeaderType::Json);
        let mut name_server = Client::connect(node.name_server, HeaderType::Json);
        let listed = name_server.ask(&Request::new(request::GET_ALL_TOPIC_LIST_FROM_NAMESERVER));
        let listed = TopicList::decode(&listed.body).unwrap();
        for (name, topic) in &topics.topics {
            assert!(listed.topics.contains(name), "{name} is in the list of topics");
            let asked = client.ask(&Request::new(request::GET_TOPIC_CONFIG).with("topic", name));
            assert_eq!(asked.code, response::SUCCESS, "{name}: {asked:?}");
            let found: serde_json::Value = serde_json::from_slice(&asked.body).unwrap();
            assert_eq!(found["readQueueNums"], topic.read_queue_nums, "{name}");
            assert_eq!(found["writeQueueNums"], topic.write_queue_nums, "{name}");
            assert_eq!(found["perm"], topic.perm, "{name}");
        }
        // One has an empty name, which no request can ask for.
        for (name, group) in groups.groups.iter().filter(|(name, _)| !name.is_empty()) {
            let asked = client.ask(&Request::new(request::GET_SUBSCRIPTIONGROUP_CONFIG).with("group", name));
            assert_eq!(asked.code, response::SUCCESS, "{name}: {asked:?}");
            let found: serde_json::Value = serde_json::from_slice(&asked.body).unwrap();
            assert_eq!(found["retryMaxTimes"], group.retry_max_times, "{name}");
            assert_eq!(found["consumeEnable"], group.consume_enable, "{name}");
        }
        for (key, queues) in &offsets.table {
            let (topic, group) = key.split_once('@').unwrap();
            for (queue_id, offset) in queues {
                let asked = Request::queue(request::QUERY_CONSUMER_OFFSET, topic)
                    .with("queueId", queue_id)
                    .with("consumerGroup", group);
                let answer = client.ask(&asked);
                assert_eq!(answer.code, response::SUCCESS, "{key} {queue_id}: {answer:?}");
                assert_eq!(answer.number("offset"), *offset, "{key} {queue_id}");
            }
        }
        assert_eq!(node.stop().code(), Some(0));
        let kept = |name: &str| fs::read(node.root().join("config").join(name)).unwrap();
        let kept_topics = TopicsFile::decode(&kept("topics.json")).unwrap();
        for (name, topic) in &topics.topics {
            assert_eq!(kept_topics.topics.get(name), Some(topic), "{name}");
        }
        let kept_groups = SubscriptionGroupsFile::decode(&kept("subscriptionGroup.json")).unwrap();
        for (name, group) in &groups.groups {
            assert_eq!(kept_groups.groups.get(name), Some(group), "{name}");
        }
        assert_eq!(ConsumerOffsetsFile::decode(&kept("consumerOffset.json")).unwrap().table, offsets.table);
        let mut kept_delays = DelayOffsetsFile::decode(&kept("delayOffset.json")).unwrap();
        // Not to have begun is the same as not to be in the file.
        kept_delays.table.retain(|_, offset| *offset > 0);
        assert_eq!(kept_delays.table, delays.table);
        assert_eq!(kept("consumerFilter.json"), config("consumerFilter.json"));
        if !restarted {
            node.start_again();
        }
    }
}

#[test]
fn a_delayed_message_that_java_took_is_delivered_by_us_once() {
    // Java's progress is set back by one message of level 3, as if it had stopped before the delivery.
    let (mut node, log) = node_on(BROKER, &[], |root| {
        unpack(&golden("java-broker-4.9.8.tar.gz"), root);
        let path = root.join("config/delayOffset.json");
        let mut file = DelayOffsetsFile::decode(&fs::read(&path).unwrap()).unwrap();
        *file.table.get_mut(&3).unwrap() -= 1;
        fs::write(path, file.encode()).unwrap();
    });
    let queues = log.queues();
    let scheduled = queues[&("SCHEDULE_TOPIC_XXXX", 2)].last().copied().unwrap();
    let (topic, queue) = (
        properties::get(&scheduled.properties, "REAL_TOPIC").unwrap(),
        properties::get(&scheduled.properties, "REAL_QID").unwrap(),
    );
    let next = queues.get(&(topic, queue.parse().unwrap())).map_or(0, |messages| messages.last().unwrap().offset + 1);
    let mut client = node.client(HeaderType::Json);
    let deadline = Instant::now() + Duration::from_secs(10);
    let asked = Request::queue(request::GET_MAX_OFFSET, topic).with("queueId", queue);
    while client.ask(&asked).number("offset") as u64 == next {
        assert!(Instant::now() < deadline, "it is overdue");
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(node.stop().code(), Some(0));
    let after = check(&node, BROKER);
    let [delivered] = &after.records[log.records.len()..] else { panic!("one message more") };
    assert_eq!((&*delivered.topic, delivered.offset, &delivered.body), (topic, next, &scheduled.body));
}
