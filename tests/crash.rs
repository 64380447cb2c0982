//! SIGKILL at any time, SIGTERM under load: what was acknowledged is there after the next start, once and at its place,
//! and what the node leaves agrees with itself.
//!
//! The schedule comes from a seed that each run prints; `KEROLOX_CRASH_SEED` gives it again. The longer loop:
//! `KEROLOX_CRASH_ROUNDS=200 cargo test --test crash many -- --ignored --nocapture`. When a check fails, the store as the kill
//! left it is kept, and its place printed.

mod harness;
#[path = "harness/stored.rs"]
mod stored;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command as Program, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use harness::{Client, Node, Request, append_modes, free_address, layout};
use kerolox::format::checkpoint::Checkpoint;
use kerolox::format::config_files::ConsumerOffsetsFile;
use kerolox::wire::HeaderType;
use kerolox::wire::code::{request, response};
use rustix::process::{Pid, Signal, kill_process};
use stored::{Shape, StoredLog, copy_folder, ends_of_full_index_files, files_below};
use tempfile::TempDir;

/// Files so small that a round rolls all kinds of them.
const SMALL: Shape = Shape { segment_len: 64 << 10, queue_file_len: 1000, index_slots: 50, index_entries: 300 };
/// Long enough to be zeroed ahead, as a sync node does.
const ZEROED: Shape = Shape { segment_len: 2 << 20, ..SMALL };
const ROUNDS: u64 = 10;
const ROUNDS_OF_A_STORE: u64 = 25;
const TOPICS: [&str; 3] = ["CrashA", "CrashB", "CrashC"];
const QUEUES: i32 = 2;
const CONNECTIONS: u64 = 4;
/// Sends on their way on one connection.
const WINDOW: usize = 8;
/// Enough to roll, few enough to look at all of them after each kill.
const SENDS_A_ROUND: u64 = 300;
/// What the issue allows consumer offsets to lag.
const OFFSET_AGE_MAX: Duration = Duration::from_secs(5);

/// Where a message is: topic, queue and offset.
type Place = (String, i32, u64);

/// The place that each number was acknowledged or pulled at; other numbers may be anywhere or nowhere.
type Promised = BTreeMap<u64, Place>;

/// Adds a number, which has one place for all time.
fn promise(promised: &Mutex<Promised>, number: u64, place: Place) {
    let known = promised.lock().unwrap().insert(number, place.clone());
    assert!(known.is_none() || known == Some(place.clone()), "{number} at {place:?}, and before at {known:?}");
}

/// A small generator of numbers that need not be good, only the same each time.
struct Random(u64);

impl Random {
    /// From `KEROLOX_CRASH_SEED`, or the clock; printed, for a failure to be repeated.
    fn seeded(what: &str) -> Random {
        let given = std::env::var("KEROLOX_CRASH_SEED").ok().and_then(|text| text.parse().ok());
        let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
        let seed = given.unwrap_or(clock);
        println!("{what}: KEROLOX_CRASH_SEED={seed}");
        Random(seed)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }
}

fn start(shape: Shape, append: &str, flush: &str) -> Node {
    let number = |number: u64| number.to_string();
    let settings = [
        ("store.commitlog_file_size", number(shape.segment_len)),
        ("store.consumequeue_file_size", number(shape.queue_file_len)),
        ("store.index_slots", number(shape.index_slots.into())),
        ("store.index_entries", number(shape.index_entries.into())),
        ("store.append", format!("{append:?}")),
        ("flush.mode", format!("{flush:?}")),
        // Often enough that kills fall between the syncs and the saved positions.
        ("flush.consumequeue_thorough_interval_ms", number(1000)),
        ("limits.max_message_size", number(32 << 10)),
        ("limits.default_topic_queue_nums", QUEUES.to_string()),
    ];
    let settings: Vec<_> = settings.iter().map(|(key, value)| (*key, value.as_str())).collect();
    let node = Node::with(&settings);
    let mut client = node.client(HeaderType::Json);
    for topic in TOPICS {
        let mut asked = Request::new(request::UPDATE_AND_CREATE_TOPIC).with("topic", topic).with("perm", 6);
        if topic == TOPICS[0] {
            // One with a policy of its own among those that follow the node.
            let other = if flush == "sync" { "async" } else { "sync" };
            asked = asked.with("attributes", format!("+flush={other}"));
        }
        let answer = client.ask(&asked.with("readQueueNums", QUEUES).with("writeQueueNums", QUEUES));
        assert_eq!(answer.code, response::SUCCESS, "{answer:?}");
    }
    node
}

/// Producers and a consumer at work until the node is gone or they are told to stop.
struct Load {
    stop: Arc<AtomicBool>,
    clients: Vec<JoinHandle<()>>,
    promised: Arc<Mutex<Promised>>,
}

impl Load {
    /// `number`: the next message's, over all producers and rounds.
    fn start(address: SocketAddr, number: &Arc<AtomicU64>, promised: &Arc<Mutex<Promised>>, seed: u64) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let last = number.load(Ordering::Relaxed) + SENDS_A_ROUND;
        let producers = (0..CONNECTIONS).map(|producer| {
            let (stop, number, promised) = (Arc::clone(&stop), Arc::clone(number), Arc::clone(promised));
            let random = Random(seed ^ producer << 32);
            thread::spawn(move || produce(address, random, last, &stop, &number, &promised))
        });
        let mut clients: Vec<_> = producers.collect();
        let consumer = (Arc::clone(&stop), Arc::clone(promised));
        clients.push(thread::spawn(move || consume(address, &consumer.0, &consumer.1)));
        Load { stop, clients, promised: Arc::clone(promised) }
    }

    fn wait(self) {
        for client in self.clients {
            client.join().expect("a client ends");
        }
    }

    fn finish(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.wait();
    }

    /// Waits until some more messages are acknowledged.
    fn wait_for_some(&self) {
        let count = || self.promised.lock().unwrap().len();
        let (began, before) = (Instant::now(), count());
        while count() < before + 20 {
            assert!(began.elapsed() < Duration::from_secs(20), "no message is acknowledged");
            thread::sleep(Duration::from_millis(1));
        }
    }
}

fn produce(
    address: SocketAddr,
    mut random: Random,
    last: u64,
    stop: &AtomicBool,
    number: &AtomicU64,
    promised: &Mutex<Promised>,
) {
    let mut client = Client::connect(address, HeaderType::Rocketmq);
    let mut on_their_way = BTreeMap::new();
    let mut next_opaque = 1;
    let mut is_open = true;
    while is_open || !on_their_way.is_empty() {
        while is_open && on_their_way.len() < WINDOW {
            let next = number.fetch_add(1, Ordering::Relaxed);
            if next >= last && random.below(4) > 0 {
                // Go on slowly, so that the node is never idle when it is stopped.
                thread::sleep(Duration::from_millis(5));
            }
            let topic = TOPICS[random.below(TOPICS.len() as u64) as usize];
            let queue_id = random.below(QUEUES as u64) as i32;
            let len = [20, 200, 2000, 20_000][random.below(4) as usize % if next.is_multiple_of(16) { 4 } else { 3 }];
            let body = format!("{next} {}", "x".repeat(random.below(len) as usize));
            let asked = Request::send(topic).with("e", queue_id).body(body).properties(&format!(
                "TAGS=t{};KEYS=k{next} of{};UNIQ_KEY=u{next}",
                next % 5,
                next % 3
            ));
            let frame = client.frame(&asked, next_opaque);
            if stop.load(Ordering::Relaxed) || client.socket().write_all(&frame).is_err() {
                is_open = false;
                break;
            }
            on_their_way.insert(next_opaque, (next, topic, queue_id));
            next_opaque += 1;
        }
        let Some(answer) = client.read_within(Duration::from_secs(20)) else { return };
        let (sent, topic, queue_id) = on_their_way.remove(&answer.opaque).expect("an answer to what was sent");
        match answer.code {
            response::SUCCESS => {
                assert_eq!(answer.number("queueId"), i64::from(queue_id));
                let place = (topic.to_owned(), queue_id, answer.number("queueOffset") as u64);
                promise(promised, sent, place);
            }
            // Stopping, too much at once, or stored but not flushed in time: nothing is promised.
            response::SERVICE_NOT_AVAILABLE | response::SYSTEM_BUSY | response::FLUSH_DISK_TIMEOUT => {}
            _ => panic!("{answer:?}"),
        }
    }
}

/// Pulls what arrives: what a consumer has seen, a crash must not take back.
fn consume(address: SocketAddr, stop: &AtomicBool, promised: &Mutex<Promised>) {
    let mut client = Client::connect(address, HeaderType::Rocketmq);
    let queues: Vec<_> = TOPICS.iter().flat_map(|topic| (0..QUEUES).map(move |queue_id| (*topic, queue_id))).collect();
    let mut ask = |asked: Request| {
        let frame = client.frame(&asked, 1);
        client.socket().write_all(&frame).ok()?;
        client.read_within(Duration::from_secs(20))
    };
    let mut next = BTreeMap::new();
    while !stop.load(Ordering::Relaxed) {
        for (topic, queue_id) in &queues {
            let at = *next.entry((topic, queue_id)).or_insert(-1);
            let asked = match at {
                -1 => Request::queue(request::GET_MAX_OFFSET, topic),
                _ => Request::pull(topic, at),
            };
            let Some(answer) = ask(asked.with("queueId", queue_id)) else { return };
            if at == -1 && answer.code == response::SUCCESS {
                next.insert((topic, queue_id), answer.number("offset"));
            } else if answer.code == response::SUCCESS {
                for record in answer.records() {
                    let place = ((*topic).to_owned(), *queue_id, record.queue_offset().0);
                    promise(promised, number_of(record.body()), place);
                }
                next.insert((topic, queue_id), answer.number("nextBeginOffset"));
            }
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// The number that a body begins with.
fn number_of(body: &[u8]) -> u64 {
    let text = std::str::from_utf8(body).expect("a body of ours");
    text.split(' ').next().and_then(|number| number.parse().ok()).expect("a number")
}

/// Keeps the store as a kill left it, until the checks that follow have passed.
struct Image(Option<TempDir>);

impl Image {
    fn of(root: &Path) -> Image {
        let dir = TempDir::new().expect("room for an image");
        copy_folder(root, dir.path());
        Image(Some(dir))
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        if thread::panicking()
            && let Some(dir) = self.0.take()
        {
            eprintln!("the store as the kill left it: {}", dir.keep().display());
        }
    }
}

/// Is every message where it was acknowledged or pulled, is no number anywhere twice, and has no queue a gap? Asked of
/// the running node.
fn assert_all_there(node: &Node, promised: &Promised) {
    let mut client = node.client(HeaderType::Rocketmq);
    let mut found = Promised::new();
    for topic in TOPICS {
        for queue_id in 0..QUEUES {
            let of_queue = |code| Request::queue(code, topic).with("queueId", queue_id);
            let end = client.ask(&of_queue(request::GET_MAX_OFFSET)).number("offset") as u64;
            let mut at = 0;
            while at < end {
                let answer = client.ask(&Request::pull(topic, at as i64).with("queueId", queue_id));
                assert_eq!(answer.code, response::SUCCESS, "{topic} {queue_id} at {at} of {end}: {answer:?}");
                for record in answer.records() {
                    assert_eq!((record.topic(), record.queue_id(), record.queue_offset().0), (topic, queue_id, at));
                    let number = number_of(record.body());
                    let other = found.insert(number, (topic.to_owned(), queue_id, at));
                    assert_eq!(other, None, "message {number} is there twice, also at {at} of {topic} {queue_id}");
                    at += 1;
                }
            }
        }
    }
    for (number, place) in promised {
        assert_eq!(found.get(number), Some(place), "message {number}");
    }
}

/// The directory after a clean stop.
fn assert_sound(root: &Path, shape: Shape, promised: &Promised) {
    assert!(!root.join("abort").exists(), "a clean stop removes abort");
    harness::assert_verified(root);
    let log = StoredLog::read(root, shape);
    log.check_derived(root, shape, true);
    let places = log
        .queues()
        .into_values()
        .flatten()
        .map(|stored| (number_of(&stored.body), (stored.topic.clone(), stored.queue_id, stored.offset)));
    let found: Promised = places.collect();
    for (number, place) in promised {
        assert_eq!(found.get(number), Some(place), "message {number}");
    }
}

/// Rounds of load and SIGKILL; after each start everything acknowledged or pulled is there, and after each clean stop in
/// between the directory is sound. Each start takes the next of the append modes, and for two rounds the writer shares its
/// executor with the shard, for two it has one of its own.
fn assert_survives(shape: Shape, appends: &[&str], flush: &str, rounds: u64) {
    let what = format!("{}, {flush}", appends.join("+"));
    let mut random = Random::seeded(&what);
    let mut node = start(shape, appends[0], flush);
    let mut appends = appends.iter().cycle();
    let (number, promised) = (Arc::new(AtomicU64::new(0)), Arc::new(Mutex::new(Promised::new())));
    for round in 0..rounds {
        let pid = fs::read_to_string(node.root().join("abort")).expect("abort is there while the node runs");
        assert_eq!(pid, node.pid().to_string());
        let load = Load::start(node.broker, &number, &promised, random.below(u64::MAX));
        load.wait_for_some();
        thread::sleep(Duration::from_millis(50 + random.below(450)));
        node.kill();
        load.wait();
        assert_eq!(fs::read_to_string(node.root().join("abort")).expect("a kill leaves abort"), pid);
        let image = Image::of(&node.root());
        node.set("store.append", &format!("{:?}", appends.next().expect("an endless cycle")));
        layout(round / 2 % 2 == 1).iter().for_each(|(key, value)| node.set(key, value));
        if random.below(3) == 0 {
            // Killed once more, while it recovers or just after.
            let mut child = node.spawn_again();
            thread::sleep(Duration::from_millis(random.below(60)));
            child.kill().expect("it can be killed");
            child.wait().expect("it can be waited for");
        }
        let logged = node.log().len();
        node.start_again();
        assert!(node.log()[logged..].contains("scanning the commit log"), "{}", &node.log()[logged..]);
        let known = promised.lock().unwrap().clone();
        println!("{what}, round {round}: {} known", known.len());
        assert_all_there(&node, &known);
        if round % 2 == 1 || round + 1 == rounds {
            assert_eq!(node.stop().code(), Some(0));
            assert_sound(&node.root(), shape, &known);
            node.set("store.append", &format!("{:?}", appends.next().expect("an endless cycle")));
            node.start_again();
            assert_all_there(&node, &known);
        }
        drop(image);
    }
}

/// Every append mode at once.
fn assert_each_survives(shape: Shape, flush: &str, rounds: u64) {
    thread::scope(|scope| {
        for append in append_modes() {
            scope.spawn(move || assert_survives(shape, &[append], flush, rounds));
        }
    });
}

#[test]
fn kills_lose_nothing_async() {
    assert_each_survives(SMALL, "async", ROUNDS);
}

#[test]
fn kills_lose_nothing_sync() {
    assert_each_survives(ZEROED, "sync", ROUNDS);
}

#[test]
fn kills_between_which_the_append_mode_changes_lose_nothing() {
    // Each to each, and to itself.
    let modes: Vec<_> = append_modes().collect();
    let pairs = modes.iter().flat_map(|from| modes.iter().flat_map(move |to| [*from, *to]));
    let pairs: Vec<_> = pairs.collect();
    thread::scope(|scope| {
        scope.spawn(|| assert_survives(SMALL, &pairs, "async", pairs.len() as u64));
        scope.spawn(|| assert_survives(ZEROED, &pairs, "sync", pairs.len() as u64));
    });
}

#[test]
#[ignore = "takes minutes: KEROLOX_CRASH_ROUNDS=200 cargo test --test crash many -- --ignored --nocapture"]
fn many_kills_lose_nothing() {
    let rounds = std::env::var("KEROLOX_CRASH_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(50);
    // Each round looks at all messages of all rounds before it: a new store now and then keeps that bounded.
    for first in (0..rounds).step_by(ROUNDS_OF_A_STORE as usize) {
        let rounds = ROUNDS_OF_A_STORE.min(rounds - first);
        println!("rounds {first} to {} of each", first + rounds);
        thread::scope(|scope| {
            for (shape, flush) in [(SMALL, "async"), (ZEROED, "sync")] {
                scope.spawn(move || assert_each_survives(shape, flush, rounds));
                scope.spawn(move || assert_survives_killed_stops(shape, flush, rounds));
            }
        });
    }
}

fn checkpoint(node: &Node) -> Checkpoint {
    let bytes = fs::read(node.root().join("checkpoint")).expect("a node saves its checkpoint");
    Checkpoint::decode(&bytes).expect("a checkpoint")
}

#[test]
fn a_stop_under_load_loses_nothing() {
    for (append, flush) in append_modes().zip(["async", "sync"].into_iter().cycle()) {
        let mut random = Random::seeded(&format!("stop, {append}, {flush}"));
        let mut node = start(SMALL, append, flush);
        let (number, promised) = (Arc::new(AtomicU64::new(0)), Arc::new(Mutex::new(Promised::new())));
        for _ in 0..3 {
            let load = Load::start(node.broker, &number, &promised, random.below(u64::MAX));
            load.wait_for_some();
            thread::sleep(Duration::from_millis(random.below(300)));
            // Within 10 s, says the harness.
            assert_eq!(node.stop().code(), Some(0));
            load.finish();
            let known = promised.lock().unwrap().clone();
            assert_sound(&node.root(), SMALL, &known);
            // The checkpoint knows of all, and the next start need not look.
            let newest = StoredLog::read(&node.root(), SMALL).records.last().map(|stored| stored.stored_at);
            let checkpoint = checkpoint(&node);
            assert_eq!((Some(checkpoint.physic.0), Some(checkpoint.logics.0)), (newest, newest));
            let full = ends_of_full_index_files(&node.root(), SMALL);
            assert!(checkpoint.index.0 == 0 || full.contains(&checkpoint.index.0), "I15: {checkpoint:?} {full:?}");
            let logged = node.log().len();
            node.start_again();
            assert!(node.log()[logged..].contains("clean start, no scan needed"), "{}", &node.log()[logged..]);
            assert_all_there(&node, &known);
        }
    }
}

/// Rounds of load and SIGTERM, and SIGKILL at some moment of the stop that this begins, or just after it.
fn assert_survives_killed_stops(shape: Shape, flush: &str, rounds: u64) {
    let mut random = Random::seeded(&format!("killed stops, {flush}"));
    let mut node = start(shape, "buffered", flush);
    let (number, promised) = (Arc::new(AtomicU64::new(0)), Arc::new(Mutex::new(Promised::new())));
    let of_group = |code| Request::queue(code, "CrashA").with("consumerGroup", "crash_group");
    node.client(HeaderType::Json).ask(&Request::pull("CrashA", 0).with("consumerGroup", "crash_group"));
    let (mut stop_took, mut saved_offset, mut offset) = (None, 0, 0);
    for round in 0..rounds {
        let load = Load::start(node.broker, &number, &promised, random.below(u64::MAX));
        load.wait_for_some();
        thread::sleep(Duration::from_millis(random.below(100)));
        let mut client = node.client(HeaderType::Json);
        for _ in 0..3 {
            offset += 1;
            let answer = client.ask(&of_group(request::UPDATE_CONSUMER_OFFSET).with("commitOffset", offset));
            assert_eq!(answer.code, response::SUCCESS, "{answer:?}");
        }
        match stop_took {
            // The first round tells how long a stop takes.
            None => {
                let began = Instant::now();
                assert_eq!(node.stop().code(), Some(0));
                stop_took = Some(began.elapsed());
            }
            Some(took) => {
                let pid = Pid::from_raw(node.pid().cast_signed()).expect("a process id");
                kill_process(pid, Signal::TERM).expect("the node can be signalled");
                thread::sleep(took * random.below(1200) as u32 / 1000);
                node.kill();
            }
        }
        load.finish();
        let image = Image::of(&node.root());
        if let Ok(text) = fs::read(node.root().join("config/consumerOffset.json")) {
            ConsumerOffsetsFile::decode(&text).expect("a file is the old one or the new one, whole");
        }
        let stopped = !node.root().join("abort").exists();
        let known = promised.lock().unwrap().clone();
        println!("{flush}, round {round}: {} known, stopped before the kill: {stopped}", known.len());
        if stopped {
            assert_sound(&node.root(), shape, &known);
        }
        node.start_again();
        assert_all_there(&node, &known);
        // A stop saves the offsets to the last; a stop that was cut off may have saved none since the start.
        let found = node.client(HeaderType::Json).ask(&of_group(request::QUERY_CONSUMER_OFFSET)).number("offset");
        let oldest = if stopped { offset } else { saved_offset };
        assert!((oldest..=offset).contains(&found), "{found} is not in {oldest}..={offset}");
        saved_offset = found;
        drop(image);
    }
}

/// Messages of a sync node that nobody waits for are flushed soon all the same, and a queue that has gone quiet counts as
/// durable, so that a crash after it costs little of a scan.
#[test]
fn unwaited_messages_do_not_hold_the_checkpoint_back() {
    const MESSAGES: usize = 20_000;
    let shape = Shape { segment_len: 4 << 20, queue_file_len: 2000, index_slots: 100, index_entries: 400 };
    let mut node = Node::with(&[
        ("store.commitlog_file_size", "\"4MiB\""),
        ("store.consumequeue_file_size", "2000"),
        ("store.index_slots", "100"),
        ("store.index_entries", "400"),
        ("flush.mode", "\"sync\""),
        ("limits.max_message_size", "\"64KiB\""),
    ]);
    let mut client = node.client(HeaderType::Rocketmq);
    let asked = Request::send("Unwaited").body("x".repeat(1000)).properties("WAIT=false");
    let mut stored = 0;
    while stored < MESSAGES {
        (0..500).for_each(|_| _ = client.send(&asked));
        stored += (0..500).filter(|_| client.read().code == response::SUCCESS).count();
        // A scan begins 3 s before what the checkpoint says: at this pace in the second or third last segment.
        thread::sleep(Duration::from_millis(200));
    }
    let log = StoredLog::read(&node.root(), shape);
    let newest = log.records.last().expect("messages").stored_at;
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        // There is none before the first is due.
        let bytes = fs::read(node.root().join("checkpoint")).unwrap_or_default();
        let checkpoint = Checkpoint::decode(&bytes).unwrap_or_default();
        if newest - checkpoint.physic.0.min(checkpoint.logics.0) <= 5_000 {
            let full = ends_of_full_index_files(&node.root(), shape);
            assert!(full.contains(&checkpoint.index.0), "I15: {checkpoint:?} {full:?}");
            break;
        }
        assert!(Instant::now() < deadline, "{checkpoint:?}, the newest message is of {newest}");
        thread::sleep(Duration::from_millis(100));
    }
    node.kill();
    let logged = node.log().len();
    node.start_again();
    let said = node.log()[logged..].to_owned();
    let line = said.lines().find(|line| line.contains("scanning the commit log")).unwrap_or_else(|| panic!("{said}"));
    let from = line.split("from=").nth(1).and_then(|rest| rest.split(' ').next()).and_then(|from| from.parse().ok());
    let from: u64 = from.unwrap_or_else(|| panic!("{line}"));
    assert!(log.end - from <= 3 * shape.segment_len, "scanned from {from} to {}", log.end);
    assert_eq!(node.client(HeaderType::Json).max_offset("Unwaited"), stored as i64);
}

#[test]
fn a_kill_during_a_stop_loses_nothing_async() {
    assert_survives_killed_stops(SMALL, "async", ROUNDS);
}

#[test]
fn a_kill_during_a_stop_loses_nothing_sync() {
    assert_survives_killed_stops(ZEROED, "sync", ROUNDS);
}

#[test]
fn a_new_topic_is_on_disk_before_a_message_of_it_is_acknowledged() {
    let node = start(SMALL, "buffered", "async");
    let mut client = node.client(HeaderType::Rocketmq);
    for number in 0..20 {
        let topic = format!("New{number}");
        for _ in 0..4 {
            client.send(&Request::send(&topic));
        }
        for _ in 0..4 {
            assert_eq!(client.read().code, response::SUCCESS);
            let saved = fs::read_to_string(node.root().join("config/topics.json")).unwrap_or_default();
            assert!(saved.contains(&format!("{topic:?}")), "{topic} is acknowledged and not saved");
        }
    }
}

#[test]
fn consumer_offsets_are_at_most_five_seconds_old_after_a_kill() {
    let mut node = start(SMALL, "buffered", "async");
    let mut client = node.client(HeaderType::Json);
    client.put(&Request::send("CrashA"));
    let of_group = |code| Request::queue(code, "CrashA").with("consumerGroup", "crash_group");
    // The group comes into being with its first pull.
    client.ask(&Request::pull("CrashA", 0).with("consumerGroup", "crash_group"));
    let began = Instant::now();
    let mut committed = Vec::new();
    while began.elapsed() < OFFSET_AGE_MAX + Duration::from_millis(1500) {
        let offset = committed.len() as i64 + 1;
        let answer = client.ask(&of_group(request::UPDATE_CONSUMER_OFFSET).with("commitOffset", offset));
        assert_eq!(answer.code, response::SUCCESS, "{answer:?}");
        committed.push((Instant::now(), offset));
        thread::sleep(Duration::from_millis(20));
    }
    node.kill();
    let killed = Instant::now();
    node.start_again();
    let found = node.client(HeaderType::Json).ask(&of_group(request::QUERY_CONSUMER_OFFSET)).number("offset");
    let oldest = committed.iter().filter(|(at, _)| killed - *at >= OFFSET_AGE_MAX).map(|(_, offset)| *offset).max();
    let newest = committed.last().unwrap().1;
    assert!((oldest.unwrap()..=newest).contains(&found), "{found} is not in {oldest:?}..={newest}");
    // A clean stop saves them to the last.
    node.client(HeaderType::Json).ask(&of_group(request::UPDATE_CONSUMER_OFFSET).with("commitOffset", 777));
    assert_eq!(node.stop().code(), Some(0));
    node.start_again();
    assert_eq!(node.client(HeaderType::Json).ask(&of_group(request::QUERY_CONSUMER_OFFSET)).number("offset"), 777);
}

#[test]
fn a_second_node_on_the_same_store_is_refused_and_touches_nothing() {
    let node = start(SMALL, "buffered", "async");
    let mut client = node.client(HeaderType::Json);
    for _ in 0..10 {
        client.put(&Request::send("CrashA"));
    }
    // What follows the last message, the saved positions, comes once a second until nothing changes any more.
    let mut before = files_below(&node.root());
    loop {
        thread::sleep(Duration::from_millis(1200));
        let now = files_below(&node.root());
        if now == std::mem::replace(&mut before, now.clone()) {
            break;
        }
    }
    let (listen, name_server) = (free_address(), free_address());
    let config = node.root().with_file_name("kerolox.toml");
    let text = fs::read_to_string(&config).unwrap();
    let text = text.replace(&node.broker.to_string(), &listen.to_string());
    let text = text.replace(&node.name_server.to_string(), &name_server.to_string());
    let second = config.with_file_name("second.toml");
    fs::write(&second, text).unwrap();
    let output = Program::new(env!("CARGO_BIN_EXE_kerolox"))
        .args(["serve", "--config"])
        .arg(&second)
        .stdin(Stdio::null())
        .output()
        .expect("the built node starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(said.contains(&format!("in use by process {}", node.pid())), "{said}");
    let now = files_below(&node.root());
    let changed = now.keys().chain(before.keys()).find(|path| now.get(*path) != before.get(*path));
    assert_eq!(changed, None);
    // The first goes on as before.
    assert_eq!(client.put(&Request::send("CrashA")).number("queueOffset"), 10);
}
