//! Who waits for the disk, and who sees what when: the node's policy, a topic's own, and the message's WAIT property.
//!
//! That a sync put is on stable storage is proved where syncs can be held back (`store/writer`); here a node shows by its
//! flushed position that it flushed, on nodes that would not do so by themselves for a minute.

mod harness;

use std::process::Command;

use harness::{Answer, Client, HEADER_TYPES, Node, Request};
use kerolox::wire::code::{request, response};
use kerolox::wire::lists::KvTable;
use serde_json::Value;

/// An async node that flushes nothing by itself while a test runs.
const LAZY: [(&str, &str); 3] =
    [("flush.mode", "\"async\""), ("flush.least_pages", "262144"), ("flush.thorough_interval_ms", "600000")];

fn unflushed(client: &mut Client) -> i64 {
    let answer = client.ask(&Request::new(request::GET_BROKER_RUNTIME_INFO));
    KvTable::decode(&answer.body).unwrap().table["keroloxUnflushedBytes"].parse().unwrap()
}

fn update_topic(client: &mut Client, topic: &str, attributes: &str) -> Answer {
    client.ask(
        &Request::new(request::UPDATE_AND_CREATE_TOPIC)
            .with("topic", topic)
            .with("defaultTopic", "TBW102")
            .with("readQueueNums", 4)
            .with("writeQueueNums", 4)
            .with("perm", 6)
            .with("topicFilterType", "SINGLE_TAG")
            .with("topicSysFlag", 0)
            .with("order", false)
            .with("attributes", attributes),
    )
}

fn attributes(client: &mut Client, topic: &str) -> Value {
    let answer = client.ask(&Request::new(request::GET_TOPIC_CONFIG).with("topic", topic).with("lo", true));
    let config: Value = serde_json::from_slice(&answer.body).unwrap();
    config["attributes"].clone()
}

#[test]
fn a_topic_is_flushed_by_its_own_policy_on_an_async_node() {
    let node = Node::with(&LAZY);
    for (index, header_type) in HEADER_TYPES.into_iter().enumerate() {
        let mut client = node.client(header_type);
        let (sync, open) = (format!("Sync{index}"), format!("Open{index}"));
        assert_eq!(update_topic(&mut client, &sync, "+flush=sync").code, response::SUCCESS);
        client.put(&Request::send(&open));
        assert!(unflushed(&mut client) > 0, "the node's default");
        client.put(&Request::send(&sync).body("safe"));
        assert_eq!(unflushed(&mut client), 0, "and all below it");
        assert_eq!(client.pull_until(&sync, 0, 1).bodies(), ["safe"]);
        // A batch too.
        client.put(&Request::send(&open));
        let batch =
            [[&(4 + 4 + 4 + 4 + 4 + 1 + 2_u32).to_be_bytes()[..], &[0; 12], &1_u32.to_be_bytes(), b"b", &[0; 2]]
                .concat()]
            .concat();
        client.put(&Request::send(&sync).code(request::SEND_BATCH_MESSAGE).body(batch));
        assert_eq!(unflushed(&mut client), 0);
        // And a delayed message, which waits in a topic of the broker's.
        client.put(&Request::send(&open));
        client.put(&Request::send(&sync).properties("DELAY=18").body("late"));
        assert_eq!(unflushed(&mut client), 0);
        // Taken away, the node's default counts again.
        assert_eq!(update_topic(&mut client, &sync, "-flush").code, response::SUCCESS);
        client.put(&Request::send(&sync));
        assert!(unflushed(&mut client) > 0);
        client.pull_until(&sync, 2, 1);
        assert_eq!(update_topic(&mut client, &sync, "+flush=sync").code, response::SUCCESS);
        client.put(&Request::send(&sync));
    }
}

#[test]
fn what_nobody_waits_for_in_a_sync_topic_shows_up_all_the_same_and_is_flushed_then() {
    let node = Node::with(&LAZY);
    let mut client = node.client(HEADER_TYPES[0]);
    update_topic(&mut client, "Sync", "+flush=sync");
    client.put(&Request::send("Sync").properties("WAIT=false").body("soon"));
    assert_eq!(client.pull_until("Sync", 0, 1).bodies(), ["soon"]);
    assert_eq!(unflushed(&mut client), 0, "it was shown, so it is flushed");
}

#[test]
fn a_delayed_message_of_a_sync_topic_is_delivered_flushed() {
    let node = Node::with(&[&LAZY[..], &[("limits.delay_levels", "\"1s 5s\"")]].concat());
    let mut client = node.client(HEADER_TYPES[0]);
    update_topic(&mut client, "Sync", "+flush=sync");
    client.put(&Request::send("Sync").properties("DELAY=1").body("late"));
    assert_eq!(client.pull_until("Sync", 0, 1).bodies(), ["late"]);
    assert_eq!(unflushed(&mut client), 0);
}

#[test]
fn an_async_topic_on_a_sync_node_is_read_once_it_is_flushed() {
    let node = Node::with(&[("flush.mode", "\"sync\"")]);
    let mut client = node.client(HEADER_TYPES[0]);
    update_topic(&mut client, "Fast", "+flush=async");
    for index in 0..20 {
        client.put(&Request::send("Fast").body(index.to_string()));
    }
    let bodies: Vec<_> = (0..20).map(|index| index.to_string()).collect();
    assert_eq!(client.pull_until("Fast", 0, 20).bodies(), bodies);
    assert_eq!(unflushed(&mut client), 0);
}

#[test]
fn unknown_policies_are_refused_and_change_nothing() {
    let mut node = Node::start();
    let mut client = node.client(HEADER_TYPES[0]);
    update_topic(&mut client, "Kept", "+flush=sync,+message.type=FIFO");
    for (text, named) in [
        ("+flush=always", "use sync or async"),
        ("+flush=SYNC", "use sync or async"),
        ("+flush=", "use sync or async"),
        ("flush=async", "unknown"),
        ("+flush=async,-flush", "twice"),
    ] {
        let refused = update_topic(&mut client, "Kept", text);
        assert_eq!(refused.code, response::SYSTEM_ERROR, "{text}");
        assert!(refused.remark.contains("flush") && refused.remark.contains(named), "{text}: {}", refused.remark);
    }
    let expected: Value = serde_json::json!({"flush": "sync", "message.type": "FIFO"});
    assert_eq!(attributes(&mut client, "Kept"), expected);
    node.kill();
    node.start_again();
    assert_eq!(attributes(&mut node.client(HEADER_TYPES[0]), "Kept"), expected, "it is in topics.json");
}

#[test]
fn a_policy_that_somebody_wrote_into_topics_json_counts_if_it_is_one() {
    let mut node = Node::with(&LAZY);
    let mut client = node.client(HEADER_TYPES[0]);
    update_topic(&mut client, "Sync", "+flush=sync");
    update_topic(&mut client, "Odd", "+flush=sync");
    node.stop();
    let path = node.root().join("config").join("topics.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let at = text.find("\"Odd\"").unwrap();
    let (head, tail) = text.split_at(at);
    std::fs::write(&path, format!("{head}{}", tail.replacen("\"sync\"", "\"maybe\"", 1))).unwrap();
    node.start_again();
    let mut client = node.client(HEADER_TYPES[0]);
    client.put(&Request::send("Odd"));
    assert!(unflushed(&mut client) > 0, "the node's default");
    assert!(node.log().contains("neither sync nor async"), "{}", node.log());
    client.put(&Request::send("Sync"));
    assert_eq!(unflushed(&mut client), 0);
}

#[test]
fn the_command_line_sets_and_takes_away_a_policy_and_leaves_the_rest() {
    let node = Node::start();
    let mut client = node.client(HEADER_TYPES[0]);
    let topic = |arguments: &[&str]| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_kerolox"));
        let name_server = node.name_server.to_string();
        program.arg("topic").args(arguments).args(["--namesrv", &name_server]).output().unwrap()
    };
    let done = |arguments: &[&str]| assert!(topic(arguments).status.success(), "{arguments:?}");
    done(&["create", "Orders", "--queues", "3", "--flush", "sync"]);
    assert_eq!(attributes(&mut client, "Orders"), serde_json::json!({"flush": "sync"}));
    done(&["create", "Orders", "--queues", "5"]);
    assert_eq!(attributes(&mut client, "Orders"), serde_json::json!({"flush": "sync"}), "not asked, not changed");
    for _ in 0..2 {
        done(&["set", "Orders", "--flush", "default"]);
        assert_eq!(attributes(&mut client, "Orders"), serde_json::json!({}));
    }
    done(&["set", "Orders", "--flush", "async"]);
    assert_eq!(attributes(&mut client, "Orders"), serde_json::json!({"flush": "async"}));
    let answer = client.ask(&Request::new(request::GET_TOPIC_CONFIG).with("topic", "Orders").with("lo", true));
    let config: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!((&config["readQueueNums"], &config["perm"]), (&5.into(), &6.into()), "{config}");
    let missing = topic(&["set", "Nobody", "--flush", "sync"]);
    assert_eq!(missing.status.code(), Some(1), "{missing:?}");
}
