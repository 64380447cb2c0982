//! Pulls, offsets and lookups, row by row of remoting.md 8.3, to a real node over real sockets, with both header types.

mod harness;

use std::thread;
use std::time::{Duration, Instant};

use harness::{Answer, Client, HEADER_TYPES, Node, Request};
use kerolox::types::properties;
use kerolox::wire::HeaderType;
use kerolox::wire::code::{request, response};
use serde_json::json;

const COMMIT: i32 = 1;
const SUSPEND: i32 = 2;
const SUBSCRIPTION: i32 = 4;

/// Runs a test once with each header type, on topics and groups of its own.
fn with_both(node: &Node, test: impl Fn(&mut Client, &str)) {
    for header_type in HEADER_TYPES {
        test(&mut node.client(header_type), &format!("{header_type:?}"));
    }
}

/// Puts `count` messages with tag A into queue 0 and waits until they can be pulled.
fn fill(client: &mut Client, topic: &str, count: usize) {
    for index in 0..count {
        client.put(&Request::send(topic).properties("TAGS=A").body(index.to_string()));
    }
    client.pull_until(topic, 0, count.min(32));
    while client.max_offset(topic) < count as i64 {
        thread::sleep(Duration::from_millis(1));
    }
}

/// A pull that may be held for `ms`.
fn patient(topic: &str, offset: i64, ms: i64) -> Request {
    Request::pull(topic, offset).with("sysFlag", SUSPEND | SUBSCRIPTION).with("suspendTimeoutMillis", ms)
}

/// Code, next, min and max offset.
fn seen(answer: &Answer) -> (i32, i64, i64, i64) {
    assert_eq!(answer.text("suggestWhichBrokerId"), "0");
    (answer.code, answer.number("nextBeginOffset"), answer.number("minOffset"), answer.number("maxOffset"))
}

fn heartbeat(client: &mut Client, group: &str, topic: &str, model: &str, sub_version: i64) {
    let body = json!({
        "clientID": format!("127.0.0.1@{group}"),
        "consumerDataSet": [{
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "consumeType": "CONSUME_PASSIVELY",
            "groupName": group,
            "messageModel": model,
            "subscriptionDataSet": [{
                "classFilterMode": false,
                // As the C++ library has it: codes are to be computed from the expression.
                "codeSet": [0],
                "expressionType": "TAG",
                "subString": "A",
                "subVersion": sub_version,
                "tagsSet": ["A"],
                "topic": topic
            }],
            "unitMode": false
        }],
        "producerDataSet": []
    })
    .to_string();
    let answer = client.ask(&Request::new(request::HEART_BEAT).body(body));
    assert_eq!(answer.code, response::SUCCESS, "{answer:?}");
}

#[test]
fn row_43_an_unknown_topic_is_code_17() {
    let node = Node::start();
    with_both(&node, |client, topic| {
        assert_eq!(client.ask(&Request::pull(topic, 0)).code, response::TOPIC_NOT_EXIST);
    });
}

#[test]
fn row_44_queues_out_of_range_are_answered_by_profile() {
    for (profile, code) in [("5", response::INVALID_PARAMETER), ("4.9", response::SYSTEM_ERROR)] {
        let node = Node::with(&[("broker.profile", &format!("{profile:?}"))]);
        with_both(&node, |client, topic| {
            fill(client, topic, 1);
            for queue_id in [99, 4, -1] {
                let answer = client.ask(&Request::pull(topic, 0).with("queueId", queue_id));
                assert_eq!(answer.code, code);
                assert!(answer.remark.contains(&queue_id.to_string()), "{}", answer.remark);
            }
        });
    }
}

#[test]
fn rows_45_46_47_48_offsets_outside_the_queue_move_the_reader_and_its_end_does_not() {
    let node = Node::start();
    with_both(&node, |client, topic| {
        fill(client, topic, 8);
        let mut code = |asked: &Request| seen(&client.ask(asked));
        assert_eq!(code(&patient(topic, 13, 5000)), (response::PULL_OFFSET_MOVED, 8, 0, 8));
        assert_eq!(code(&patient(topic, -1, 5000)), (response::PULL_OFFSET_MOVED, 0, 0, 8));
        assert_eq!(code(&Request::pull(topic, 8)), (response::PULL_NOT_FOUND, 8, 0, 8));
        let empty = |offset| Request::pull(topic, offset).with("queueId", 1);
        assert_eq!(code(&empty(0)), (response::PULL_NOT_FOUND, 0, 0, 0));
        assert_eq!(code(&empty(5)), (response::PULL_OFFSET_MOVED, 0, 0, 0));
        // Without a time to wait there is no waiting, whatever the flag says.
        assert_eq!(code(&patient(topic, 8, 0)), (response::PULL_NOT_FOUND, 8, 0, 8));
    });
}

#[test]
fn rows_49_50_without_an_expression_in_the_pull_a_heartbeat_must_have_brought_one() {
    let node = Node::start();
    with_both(&node, |client, topic| {
        fill(client, topic, 2);
        client.put(&Request::send(topic).properties("TAGS=B").body("b"));
        let group = format!("G{topic}");
        let pull = Request::pull(topic, 0).with("consumerGroup", &group).with("sysFlag", 0).with("subVersion", 5);
        assert_eq!(client.ask(&pull).code, response::SUBSCRIPTION_NOT_EXIST);
        assert_eq!(client.ask(&pull.clone().with("sysFlag", SUBSCRIPTION)).code, response::SUCCESS);
        heartbeat(client, &group, topic, "CLUSTERING", 5);
        assert_eq!(client.ask(&pull).bodies(), ["0", "1"]);
        assert_eq!(client.ask(&pull.clone().with("subVersion", 6)).code, response::SUBSCRIPTION_NOT_LATEST);
        assert_eq!(client.ask(&pull.with("topic", "TBW102")).code, response::SUBSCRIPTION_NOT_EXIST);
    });
}

#[test]
fn row_51_what_the_filter_holds_back_is_passed_over() {
    let node = Node::start();
    with_both(&node, |client, topic| {
        fill(client, topic, 17);
        let none = client.ask(&Request::pull(topic, 0).with("subscription", "B || C"));
        assert_eq!(seen(&none), (response::PULL_RETRY_IMMEDIATELY, 17, 0, 17));
        let all = client.ask(&Request::pull(topic, 0).with("subscription", "A || C"));
        assert_eq!((seen(&all), all.records().len()), ((response::SUCCESS, 17, 0, 17), 17));
    });
}

#[test]
fn row_52_at_least_one_and_at_most_as_many_messages_as_asked_for_are_given() {
    let node = Node::start();
    with_both(&node, |client, topic| {
        fill(client, topic, 40);
        for (asked, given) in [(0, 1), (1, 1), (7, 7), (32, 32), (1000, 32)] {
            let answer = client.ask(&Request::pull(topic, 0).with("maxMsgNums", asked));
            assert_eq!((answer.records().len(), answer.number("nextBeginOffset")), (given, given as i64));
        }
        let bytes = client.ask(&Request::pull(topic, 0).with("maxMsgBytes", 1));
        assert_eq!(bytes.records().len(), 1);
        let lite = Request::pull(topic, 38).code(request::LITE_PULL_MESSAGE).with("sysFlag", SUBSCRIPTION | 16);
        assert_eq!(client.ask(&lite).bodies(), ["38", "39"]);
    });
}

#[test]
fn row_53_an_expression_that_cannot_be_read_is_refused() {
    let node = Node::start();
    with_both(&node, |client, topic| {
        fill(client, topic, 1);
        let sql = Request::pull(topic, 0).with("expressionType", "SQL92").with("subscription", "a > ");
        assert_eq!(client.ask(&sql).code, response::SUBSCRIPTION_PARSE_FAILED);
        // The C++ library names no type: a tag expression.
        assert_eq!(client.ask(&Request::pull(topic, 0).without("expressionType")).code, response::SUCCESS);
    });
}

#[test]
fn row_54_a_held_pull_is_answered_when_its_time_is_over() {
    let node = Node::start();
    with_both(&node, |client, topic| {
        fill(client, topic, 3);
        let started = Instant::now();
        let answer = client.ask(&patient(topic, 3, 1000));
        let took = started.elapsed();
        assert_eq!(seen(&answer), (response::PULL_NOT_FOUND, 3, 0, 3));
        assert!(took >= Duration::from_millis(990) && took < Duration::from_millis(2500), "{took:?}");
    });
}

#[test]
fn row_55_a_matching_message_wakes_a_held_pull_at_once_wherever_it_is_held() {
    let node = Node::start();
    with_both(&node, |client, topic| {
        fill(client, topic, 1);
        // Several connections, so that they lie on all shards.
        let mut waiting: Vec<Client> = (0..8).map(|_| node.client(HeaderType::Json)).collect();
        for waiter in &mut waiting {
            waiter.send(&patient(topic, 1, 15_000).with("subscription", "A"));
        }
        thread::sleep(Duration::from_millis(200));
        let started = Instant::now();
        client.put(&Request::send(topic).properties("TAGS=A").body("woken"));
        for waiter in &mut waiting {
            let answer = waiter.read();
            assert_eq!((answer.code, answer.bodies()), (response::SUCCESS, vec!["woken".to_owned()]));
        }
        let took = started.elapsed();
        assert!(took < Duration::from_secs(1), "{took:?}");
    });
}

#[test]
fn a_pull_of_an_empty_queue_is_woken_by_its_first_message() {
    let node = Node::start();
    with_both(&node, |client, topic| {
        fill(client, topic, 1);
        let mut waiter = node.client(HeaderType::Rocketmq);
        waiter.send(&patient(topic, 0, 15_000).with("queueId", 3));
        thread::sleep(Duration::from_millis(100));
        client.put(&Request::send(topic).with("e", 3).body("first"));
        assert_eq!(waiter.read().bodies(), ["first"]);
    });
}

#[test]
fn row_56_a_message_that_does_not_match_leaves_a_pull_held_and_moves_it_on_at_the_end() {
    let node = Node::start();
    with_both(&node, |client, topic| {
        fill(client, topic, 1);
        let mut waiter = node.client(HeaderType::Json);
        let started = Instant::now();
        waiter.send(&patient(topic, 1, 1500).with("subscription", "B"));
        thread::sleep(Duration::from_millis(100));
        client.put(&Request::send(topic).properties("TAGS=A"));
        let answer = waiter.read();
        assert!(started.elapsed() >= Duration::from_millis(1490), "{:?}", started.elapsed());
        assert_eq!(seen(&answer), (response::PULL_RETRY_IMMEDIATELY, 2, 0, 2));
    });
}

#[test]
fn rows_57_58_an_offset_is_committed_once_whatever_becomes_of_the_pull() {
    let node = Node::start();
    with_both(&node, |client, topic| {
        fill(client, topic, 3);
        let group = format!("G{topic}");
        let stored = Request::queue(request::QUERY_CONSUMER_OFFSET, topic).with("consumerGroup", &group);
        let commit = Request::queue(request::UPDATE_CONSUMER_OFFSET, topic).with("consumerGroup", &group);
        let flags = COMMIT | SUSPEND | SUBSCRIPTION;
        let asked = |offset| patient(topic, offset, 3000).with("consumerGroup", &group).with("sysFlag", flags);
        let mut holder = node.client(HeaderType::Json);

        // Found, moved, and held: each commits.
        for (offset, committed) in [(0, 7), (99, 8)] {
            holder.ask(&asked(offset).with("commitOffset", committed));
            wait_for_offset(client, &stored, committed);
        }
        holder.send(&asked(3).with("commitOffset", 2));
        wait_for_offset(client, &stored, 2);
        // Held by a connection that goes away: dropped, and the offset of another commit stays.
        assert_eq!(client.ask(&commit.with("commitOffset", 1)).code, response::SUCCESS);
        drop(holder);
        thread::sleep(Duration::from_millis(100));
        client.put(&Request::send(topic).properties("TAGS=A"));
        thread::sleep(Duration::from_millis(100));
        assert_eq!(client.ask(&stored).number("offset"), 1);
    });
}

fn wait_for_offset(client: &mut Client, stored: &Request, expected: i64) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while client.ask(stored).number("offset") != expected {
        assert!(Instant::now() < deadline, "the offset {expected} was not committed");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn row_59_a_message_longer_than_an_answer_usually_is_comes_alone() {
    let node = Node::start();
    with_both(&node, |client, topic| {
        for _ in 0..2 {
            client.put(&Request::send(topic).body(vec![b'x'; 300 * 1024]));
        }
        client.put(&Request::send(topic));
        while client.max_offset(topic) < 3 {
            thread::sleep(Duration::from_millis(1));
        }
        let answer = client.ask(&Request::pull(topic, 0));
        assert_eq!((answer.records().len(), answer.number("nextBeginOffset")), (1, 1));
    });
}

#[test]
fn rows_60_61_a_new_group_starts_at_the_beginning_of_a_young_topic() {
    let node = Node::start();
    with_both(&node, |client, topic| {
        fill(client, topic, 3);
        for topic in [topic, "NoSuchTopic"] {
            let asked = Request::queue(request::QUERY_CONSUMER_OFFSET, topic).with("consumerGroup", "new");
            let answer = client.ask(&asked);
            assert_eq!((answer.code, answer.number("offset")), (response::SUCCESS, 0), "{topic}");
            assert_eq!(client.ask(&asked.with("setZeroIfNotFound", "false")).code, response::QUERY_NOT_FOUND);
        }
    });
}

#[test]
fn row_62_commits_of_unknown_groups_and_topics_are_answered_as_5_x_does() {
    let node = Node::start();
    with_both(&node, |client, topic| {
        fill(client, topic, 1);
        let commit = Request::queue(request::UPDATE_CONSUMER_OFFSET, topic).with("commitOffset", 1);
        let by = |group: &str| commit.clone().with("consumerGroup", group);
        assert_eq!(client.ask(&by("NoSuchGroup")).code, response::SUBSCRIPTION_GROUP_NOT_EXIST);
        assert_eq!(client.ask(&by("test_group").with("topic", "NoSuchTopic")).code, response::TOPIC_NOT_EXIST);
        assert_eq!(client.ask(&by("test_group")).code, response::SUCCESS);
        let stored = Request::queue(request::QUERY_CONSUMER_OFFSET, topic).with("consumerGroup", "test_group");
        assert_eq!(client.ask(&stored).number("offset"), 1);
    });
}

#[test]
fn row_63_offsets_of_unknown_topics_and_queues_are_0() {
    let node = Node::start();
    with_both(&node, |client, topic| {
        fill(client, topic, 3);
        let codes = [request::SEARCH_OFFSET_BY_TIMESTAMP, request::GET_MAX_OFFSET, request::GET_MIN_OFFSET];
        for code in codes {
            for asked in [Request::queue(code, "NoSuchTopic"), Request::queue(code, topic).with("queueId", 99)] {
                let answer = client.ask(&asked.with("timestamp", 0));
                assert_eq!((answer.code, answer.number("offset")), (response::SUCCESS, 0));
            }
            assert_eq!(client.ask(&Request::new(code)).code, response::SYSTEM_ERROR);
        }
    });
}

#[test]
fn offsets_are_found_by_store_time() {
    let node = Node::start();
    with_both(&node, |client, topic| {
        fill(client, topic, 3);
        let stored: Vec<i64> =
            client.ask(&Request::pull(topic, 0)).records().iter().map(|record| record.store_timestamp().0).collect();
        let mut at = |time: i64, boundary: Option<&str>| {
            let asked = Request::queue(request::SEARCH_OFFSET_BY_TIMESTAMP, topic).with("timestamp", time);
            let asked = boundary.map_or(asked.clone(), |boundary| asked.with("boundaryType", boundary));
            client.ask(&asked).number("offset")
        };
        assert_eq!(at(0, None), 0);
        assert_eq!(at(stored[2] + 10_000, None), 3);
        assert_eq!(at(stored[2] + 10_000, Some("upper")), 2);
        let first_of_last = stored.iter().position(|time| *time == stored[2]).unwrap() as i64;
        assert_eq!((at(stored[2], Some("lower")), at(stored[2], Some("upper"))), (first_of_last, 2));
    });
}

#[test]
fn row_65_only_the_start_of_a_record_is_viewed() {
    let node = Node::start();
    with_both(&node, |client, topic| {
        let id = client.put(&Request::send(topic)).text("msgId").to_owned();
        let phy = i64::from_str_radix(&id[16..], 16).unwrap();
        let mut view = |offset: i64| client.ask(&Request::new(request::VIEW_MESSAGE_BY_ID).with("offset", offset));
        assert_eq!(view(phy).bodies(), ["hello"]);
        for offset in [phy + 1, phy + 100_000_000, -1, i64::MAX] {
            assert_eq!(view(offset).code, response::SYSTEM_ERROR, "{offset}");
        }
    });
}

#[test]
fn row_66_messages_are_found_by_their_keys_and_only_by_their_own() {
    let node = Node::start();
    // Several connections: the index is on one shard, the question must get there from any.
    with_both(&node, |_, topic| {
        for _ in 0..4 {
            let mut client = node.client(HEADER_TYPES[0]);
            client.put(&Request::send(topic).properties("KEYS=k1 Aa;UNIQ_KEY=U1"));
            let query = |key: &str, unique: bool| {
                Request::new(request::QUERY_MESSAGE)
                    .with("topic", topic)
                    .with("key", key)
                    .with("maxNum", 10)
                    .with("beginTimestamp", 0)
                    .with("endTimestamp", i64::MAX)
                    .with("_UNIQUE_KEY_QUERY", unique)
            };
            for (key, unique) in [("k1", false), ("Aa", false), ("U1", true)] {
                let answer = until(&mut client, &query(key, unique), |answer| answer.code == response::SUCCESS);
                let records = answer.records();
                assert_eq!(properties::get(records[0].properties(), "UNIQ_KEY"), Some("U1"));
                assert!(answer.ext.contains_key("indexLastUpdateTimestamp"));
                assert!(answer.ext.contains_key("indexLastUpdatePhyoffset"));
            }
            // "BB" has the hash of "Aa".
            for key in ["BB", "none"] {
                let answer = client.ask(&query(key, false));
                assert_eq!(answer.code, response::QUERY_NOT_FOUND, "{key}");
                answer.number("indexLastUpdateTimestamp");
            }
        }
    });
}

fn until(client: &mut Client, asked: &Request, done: impl Fn(&Answer) -> bool) -> Answer {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        let answer = client.ask(asked);
        if done(&answer) {
            return answer;
        }
        assert!(Instant::now() < deadline, "{answer:?}");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn row_16_a_held_pull_does_not_hold_up_the_requests_behind_it() {
    let node = Node::start();
    with_both(&node, |client, topic| {
        fill(client, topic, 1);
        let held = client.send(&patient(topic, 1, 700));
        let asked = client.send(&Request::queue(request::GET_MAX_OFFSET, topic));
        let (first, second) = (client.read(), client.read());
        assert_eq!((first.opaque, second.opaque), (asked, held));
        assert_eq!(second.code, response::PULL_NOT_FOUND);
    });
}

#[test]
fn a_message_given_back_is_tried_again_later_and_buried_at_the_limit() {
    let node = Node::with(&[("limits.delay_levels", "\"1s 1s 1s 1s\"")]);
    with_both(&node, |client, topic| {
        let group = format!("G{topic}");
        let (retry, dead) = (format!("%RETRY%{group}"), format!("%DLQ%{group}"));
        client.put(&Request::send(topic).properties("TAGS=A;KEYS=k").body("bad"));
        let back = |offset: i64| {
            Request::new(request::CONSUMER_SEND_MSG_BACK)
                .with("offset", offset)
                .with("group", &group)
                .with("delayLevel", 0)
                .with("originTopic", topic)
                .with("maxReconsumeTimes", 1)
        };
        let place = |answer: &Answer| answer.records()[0].phy().0 as i64;
        let first = client.pull_until(topic, 0, 1);
        assert_eq!(client.ask(&back(place(&first))).code, response::SUCCESS);
        let again = client.pull_until(&retry, 0, 1);
        {
            let records = again.records();
            let record = &records[0];
            assert_eq!((record.body(), record.reconsume_times()), (&b"bad"[..], 1));
            let text = record.properties();
            assert_eq!(properties::get(text, "RETRY_TOPIC"), Some(topic));
            let origin = properties::get(text, "ORIGIN_MESSAGE_ID").unwrap();
            assert_eq!(i64::from_str_radix(&origin[16..], 16).unwrap(), place(&first));
        }
        assert_eq!(client.ask(&back(place(&again))).code, response::SUCCESS);
        let buried = client.pull_until(&dead, 0, 1);
        assert_eq!((buried.bodies(), buried.records()[0].reconsume_times()), (vec!["bad".to_owned()], 2));
        // Straight to the dead letters, by level.
        assert_eq!(client.ask(&back(place(&first)).with("delayLevel", -1)).code, response::SUCCESS);
        client.pull_until(&dead, 0, 2);
        // What is no record is no message.
        assert_eq!(client.ask(&back(place(&first) + 1)).code, response::SYSTEM_ERROR);
    });
}

/// E11 and E13 of the edge cases: the node compares hashes, and the client texts.
#[test]
fn e11_e13_tags_with_one_hash_come_together_and_a_message_without_a_tag_only_to_who_takes_all() {
    let node = Node::start();
    with_both(&node, |client, topic| {
        for (body, properties) in [
            ("Aa", "TAGS=Aa"),
            ("none", ""),
            ("BB", "TAGS=BB"),
            ("polygenelubricants", "TAGS=polygenelubricants"),
            ("中文", "TAGS=中文"),
        ] {
            client.put(&Request::send(topic).properties(properties).body(body));
        }
        client.pull_until(topic, 0, 5);
        for (expression, bodies) in [
            ("Aa", &["Aa", "BB"][..]),
            ("BB", &["Aa", "BB"]),
            ("polygenelubricants", &["polygenelubricants"]),
            ("中文", &["中文"]),
            ("Aa || 中文", &["Aa", "BB", "中文"]),
            ("*", &["Aa", "none", "BB", "polygenelubricants", "中文"]),
        ] {
            let answer = client.ask(&Request::pull(topic, 0).with("subscription", expression));
            assert_eq!(
                (answer.code, answer.bodies()),
                (response::SUCCESS, bodies.iter().map(|b| b.to_string()).collect())
            );
        }
    });
}
