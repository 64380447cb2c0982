//! Topics that are deleted and made again: a new generation, which nothing of an older one comes back to, not after a stop,
//! not after a kill, not by a rebuild (store.md 14, R15).

mod harness;

use std::fs;
use std::process::Command as Program;
use std::time::{Duration, Instant};

use harness::{Answer, Client, HEADER_TYPES, Node, Request};
use kerolox::wire::HeaderType;
use kerolox::wire::code::{request, response};

fn by_key(client: &mut Client, topic: &str, key: &str) -> Answer {
    let asked = Request::new(request::QUERY_MESSAGE).with("topic", topic).with("key", key).with("maxNum", 10);
    client.ask(&asked.with("beginTimestamp", 0).with("endTimestamp", i64::MAX))
}

/// Asks until the index has the message: it is built beside the queues.
fn found_by_key(client: &mut Client, topic: &str, key: &str) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while by_key(client, topic, key).code != response::SUCCESS {
        assert!(Instant::now() < deadline, "{key} is not found");
    }
}

fn put(client: &mut Client, topic: &str, body: &str) -> i64 {
    let asked = Request::send(topic).properties(&format!("KEYS={body};")).body(body);
    client.put(&asked).number("queueOffset")
}

fn delete(client: &mut Client, topic: &str) -> i32 {
    client.ask(&Request::new(request::DELETE_TOPIC_IN_BROKER).with("topic", topic)).code
}

fn offset_of(client: &mut Client, topic: &str) -> Answer {
    let asked = Request::queue(request::QUERY_CONSUMER_OFFSET, topic).with("consumerGroup", "test_group");
    client.ask(&asked.with("setZeroIfNotFound", "false"))
}

fn kerolox(arguments: &[&str]) -> (i32, String) {
    let output =
        Program::new(env!("CARGO_BIN_EXE_kerolox")).args(arguments).output().expect("the built program starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.code().unwrap_or(-1), text)
}

/// What there is of T: the five messages sent to it after it was made again.
fn check(client: &mut Client, when: &str) {
    let bodies: Vec<_> = (0..5).map(|n| format!("new-{n}")).collect();
    assert_eq!(client.pull_until("T", 0, 5).bodies(), bodies, "{when}");
    assert_eq!(client.max_offset("T"), 5, "{when}");
    assert_eq!(client.ask(&Request::queue(request::GET_MIN_OFFSET, "T")).number("offset"), 0, "{when}");
    for key in ["old-0", "old-19"] {
        assert_eq!(by_key(client, "T", key).code, response::QUERY_NOT_FOUND, "{when}");
    }
    found_by_key(client, "T", "new-4");
    found_by_key(client, "Other", "other-0");
    assert_eq!(offset_of(client, "T").code, response::QUERY_NOT_FOUND, "{when}");
    assert_eq!(client.pull_until("Other", 0, 21).bodies()[20], "other-20", "{when}");
}

#[test]
fn a_topic_made_again_has_its_new_messages_alone_whatever_happens_to_the_node() {
    for mode in ["\"sync\"", "\"async\""] {
        let mut node = Node::with(&[("flush.mode", mode)]);
        let mut client = node.client(HeaderType::Json);
        for n in 0..20 {
            assert_eq!(put(&mut client, "T", &format!("old-{n}")), n);
            put(&mut client, "Other", &format!("other-{n}"));
        }
        client.pull_until("T", 0, 20);
        found_by_key(&mut client, "T", "old-19");
        let commit = Request::queue(request::UPDATE_CONSUMER_OFFSET, "T").with("consumerGroup", "test_group");
        assert_eq!(client.ask(&commit.with("commitOffset", 20)).code, response::SUCCESS);
        assert_eq!(offset_of(&mut client, "T").number("offset"), 20);

        let folder = node.root().join("consumequeue/T");
        assert!(folder.exists());
        assert_eq!(delete(&mut client, "T"), response::SUCCESS);
        assert!(!folder.exists());
        assert_eq!(client.ask(&Request::pull("T", 0)).code, response::TOPIC_NOT_EXIST);
        let without_template = Request::send("T").with("c", "NoSuchTemplate");
        assert_eq!(client.ask(&without_template).code, response::TOPIC_NOT_EXIST);
        assert_eq!(client.max_offset("T"), 0);
        assert_eq!(by_key(&mut client, "T", "old-19").code, response::QUERY_NOT_FOUND);
        let topics = fs::read_to_string(node.root().join("config/topics.json")).unwrap();
        assert!(!topics.contains("\"T\"") && topics.contains("\"Other\""), "{topics}");
        assert_eq!(delete(&mut client, "T"), response::SUCCESS, "it is not there any more");

        // Deleted it stays over a kill.
        node.kill();
        node.start_again();
        let mut client = node.client(HeaderType::Json);
        assert_eq!(client.ask(&Request::pull("T", 0)).code, response::TOPIC_NOT_EXIST);
        assert!(!folder.exists());

        put(&mut client, "Other", "other-20");
        for n in 0..5 {
            assert_eq!(put(&mut client, "T", &format!("new-{n}")), n);
        }
        check(&mut client, "made again");
        node.kill();
        node.start_again();
        check(&mut node.client(HeaderType::Json), "after a kill");
        assert!(node.stop().success());
        let root = node.root();
        let root = root.to_str().unwrap();
        let (code, text) = kerolox(&["verify", root]);
        assert_eq!(code, 0, "{text}");
        let (code, text) = kerolox(&["rebuild", root]);
        assert_eq!(code, 0, "{text}");
        let (code, text) = kerolox(&["verify", root]);
        assert_eq!(code, 0, "{text}");
        node.start_again();
        check(&mut node.client(HeaderType::Json), "after a rebuild");
        node.kill();
        fs::remove_dir_all(node.root().join("consumequeue")).unwrap();
        fs::remove_dir_all(node.root().join("index")).unwrap();
        node.start_again();
        check(&mut node.client(HeaderType::Json), "after all derived files were lost");
    }
}

/// Between any two steps the topic is there with all its messages, or gone.
#[test]
fn a_kill_while_a_topic_is_deleted_leaves_all_of_it_or_nothing() {
    let mut node = Node::with(&[("flush.mode", "\"sync\"")]);
    for (round, wait_us) in [0, 200, 500, 1000, 1500, 2000, 3000, 4000, 6000, 9000].into_iter().enumerate() {
        let mut client = node.client(HeaderType::Json);
        let first = client.max_offset("T");
        for n in first..20 {
            assert_eq!(put(&mut client, "T", &format!("round-{round}-{n}")), n);
        }
        let before = client.pull_until("T", 0, 20).bodies();
        client.send(&Request::new(request::DELETE_TOPIC_IN_BROKER).with("topic", "T"));
        std::thread::sleep(Duration::from_micros(wait_us));
        node.kill();
        node.start_again();
        let mut client = node.client(HeaderType::Json);
        match client.ask(&Request::pull("T", 0)) {
            answer if answer.code == response::SUCCESS => {
                assert_eq!(client.pull_until("T", 0, 20).bodies(), before, "{wait_us}");
            }
            answer => {
                assert_eq!(answer.code, response::TOPIC_NOT_EXIST, "{wait_us} {answer:?}");
                assert_eq!(put(&mut client, "T", "again"), 0, "{wait_us}");
                assert_eq!(client.pull_until("T", 0, 1).bodies(), ["again"]);
                assert_eq!(delete(&mut client, "T"), response::SUCCESS);
            }
        }
    }
    assert!(node.stop().success());
    let (code, text) = kerolox(&["verify", node.root().to_str().unwrap()]);
    assert_eq!(code, 0, "{text}");
}

/// What cannot be written is no deletion: asked for again once it can be, it goes on, and a kill before leaves it all.
#[test]
fn a_deletion_that_fails_on_the_way_is_asked_for_again() {
    let mut node = Node::start();
    let mut client = node.client(HeaderType::Json);
    put(&mut client, "T", "old");
    client.pull_until("T", 0, 1);
    let in_the_way = node.root().join("kerolox/births.tmp");
    for killed in [true, false] {
        fs::create_dir(&in_the_way).unwrap();
        assert_eq!(delete(&mut client, "T"), response::SYSTEM_ERROR);
        // Whether it is gone is not settled, so nobody may make another.
        assert_eq!(client.ask(&Request::send("T")).code, response::TOPIC_NOT_EXIST);
        assert_eq!(client.ask(&Request::pull("T", 0)).code, response::TOPIC_NOT_EXIST);
        fs::remove_dir(&in_the_way).unwrap();
        if killed {
            node.kill();
            node.start_again();
            client = node.client(HeaderType::Json);
            assert_eq!(client.pull_until("T", 0, 1).bodies(), ["old"]);
        }
    }
    let in_the_way = node.root().join("kerolox/deleted");
    fs::write(&in_the_way, "").unwrap();
    assert_eq!(delete(&mut client, "T"), response::SYSTEM_ERROR);
    assert_eq!(client.ask(&Request::send("T")).code, response::TOPIC_NOT_EXIST, "its old files are there");
    fs::remove_file(&in_the_way).unwrap();
    assert_eq!(delete(&mut client, "T"), response::SUCCESS);
    assert_eq!(put(&mut client, "T", "new"), 0);
    assert_eq!(client.pull_until("T", 0, 1).bodies(), ["new"]);
    assert!(node.stop().success());
    node.start_again();
    assert_eq!(node.client(HeaderType::Json).pull_until("T", 0, 1).bodies(), ["new"]);
}

#[test]
fn whoever_waits_for_messages_of_a_deleted_topic_is_answered() {
    let node = Node::start();
    for header_type in HEADER_TYPES {
        let topic = format!("{header_type:?}");
        let mut client = node.client(header_type);
        put(&mut client, &topic, "first");
        client.pull_until(&topic, 0, 1);
        let mut waiting: Vec<Client> = (0..8).map(|_| node.client(header_type)).collect();
        for client in &mut waiting {
            client.send(&Request::pull(&topic, 1).with("sysFlag", 6).with("suspendTimeoutMillis", 30_000));
        }
        // A request behind it on the same connection is answered once the pull is held.
        for client in &mut waiting {
            client.send(&Request::queue(request::GET_MAX_OFFSET, &topic));
            assert_eq!(client.read().number("offset"), 1);
        }
        assert_eq!(delete(&mut client, &topic), response::SUCCESS);
        for client in &mut waiting {
            let answer = client.read_within(Duration::from_secs(20)).expect("an answer to the held pull");
            assert_eq!(answer.code, response::TOPIC_NOT_EXIST, "{answer:?}");
        }
    }
}

#[test]
fn topics_deleted_and_made_again_while_many_send_lose_no_message_of_the_last_generation() {
    let node = Node::start();
    let mut client = node.client(HeaderType::Json);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut sender = node.client(HeaderType::Rocketmq);
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let answer = sender.ask(&Request::send("Again").body("x"));
                    let expected = [response::SUCCESS, response::TOPIC_NOT_EXIST, response::SYSTEM_BUSY];
                    assert!(expected.contains(&answer.code), "{answer:?}");
                }
            });
        }
        for _ in 0..20 {
            assert_eq!(delete(&mut client, "Again"), response::SUCCESS);
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert_eq!(delete(&mut client, "Again"), response::SUCCESS);
    for n in 0..3 {
        assert_eq!(put(&mut client, "Again", &format!("last-{n}")), n);
    }
    assert_eq!(client.pull_until("Again", 0, 3).bodies(), ["last-0", "last-1", "last-2"]);
    let mut node = node;
    assert!(node.stop().success());
    let (code, text) = kerolox(&["verify", node.root().to_str().unwrap()]);
    assert_eq!(code, 0, "{text}");
}

#[test]
fn the_command_deletes_a_topic_and_says_if_there_is_none() {
    let node = Node::start();
    let mut client = node.client(HeaderType::Json);
    put(&mut client, "T", "first");
    let namesrv = node.name_server.to_string();
    let (code, text) = kerolox(&["topic", "delete", "T", "--namesrv", &namesrv]);
    assert!(code == 0 && text.starts_with("T\tdeleted\t"), "{code} {text}");
    assert_eq!(client.ask(&Request::pull("T", 0)).code, response::TOPIC_NOT_EXIST);
    let (code, text) = kerolox(&["topic", "delete", "T", "--namesrv", &namesrv]);
    assert!(code == 1 && text.contains("no broker of"), "{code} {text}");
    let (code, text) = kerolox(&["topic", "delete", "TBW102", "--namesrv", &namesrv]);
    assert!(code == 1 && text.contains("belongs to the broker"), "{code} {text}");
}
