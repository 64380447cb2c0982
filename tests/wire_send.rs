//! Sends, row by row of remoting.md 8.2, to a real node over real sockets, with both header types.

mod harness;

use std::thread;
use std::time::{Duration, Instant};

use harness::{Answer, Client, HEADER_TYPES, Node, Request, separated};
use kerolox::types::properties;
use kerolox::wire::batch::{self, BatchEntry};
use kerolox::wire::code::{request, response};
use serde_json::json;

const SEND_CODES: [i32; 3] = [request::SEND_MESSAGE, request::SEND_MESSAGE_V2, request::SEND_BATCH_MESSAGE];
const BODY_LEN_MAX: usize = 4_194_304;
const PROPERTIES_LEN_MAX: usize = 32_767;
/// What the node adds to a message with a UNIQ_KEY: its cluster, region and trace flag.
const ADDED_LEN: usize = "CLUSTER=DefaultCluster;MSG_REGION=DefaultRegion;TRACE_ON=true;".len();

/// Runs a test once with each header type, on topics of its own.
fn with_both(node: &Node, test: impl Fn(&mut Client, &str)) {
    for header_type in HEADER_TYPES {
        test(&mut node.client(header_type), &format!("{header_type:?}"));
    }
}

fn batch_of(bodies: &[&str]) -> Vec<u8> {
    let properties = separated("TAGS=A;");
    let entry = |body: &&str| batch::encode(&[BatchEntry { flag: 3, body: body.as_bytes(), properties: &properties }]);
    bodies.iter().flat_map(entry).collect()
}

/// The long names (10) of a request written with letters (310).
fn in_long_form(asked: Request) -> Request {
    asked
        .renamed(&[
            ("a", "producerGroup"),
            ("b", "topic"),
            ("c", "defaultTopic"),
            ("d", "defaultTopicQueueNums"),
            ("e", "queueId"),
            ("f", "sysFlag"),
            ("g", "bornTimestamp"),
            ("h", "flag"),
            ("i", "properties"),
            ("j", "reconsumeTimes"),
            ("k", "unitMode"),
            ("m", "batch"),
        ])
        .code(request::SEND_MESSAGE)
}

fn assert_traced(answer: &Answer) {
    assert_eq!((answer.text("MSG_REGION"), answer.text("TRACE_ON")), ("DefaultRegion", "true"), "{answer:?}");
}

#[test]
fn a_message_is_stored_as_it_was_sent_and_answered_in_full() {
    let node = Node::start();
    with_both(&node, |client, topic| {
        let asked =
            Request::send(topic).properties("TAGS=A;KEYS=k1 k2;UNIQ_KEY=U1").with("e", 2).with("h", 9).with("f", 0x301);
        for (index, asked) in [asked.clone(), in_long_form(asked)].into_iter().enumerate() {
            let answer = client.put(&asked);
            assert_eq!((answer.text("queueId"), answer.number("queueOffset")), ("2", index as i64));
            assert_eq!(answer.text("transactionId"), "U1");
            assert_eq!(answer.version, 479);
            assert_traced(&answer);
            let id = answer.text("msgId").to_owned();
            let phy = i64::from_str_radix(&id[16..], 16).unwrap();
            let viewed = client.ask(&Request::new(request::VIEW_MESSAGE_BY_ID).with("offset", phy));
            assert_eq!(viewed.code, response::SUCCESS, "{viewed:?}");
            let records = viewed.records();
            let [record] = &records[..] else { panic!("one record by id, not {}", records.len()) };
            assert_eq!((record.topic(), record.queue_id(), record.flag()), (topic, 2, 9));
            assert_eq!(
                (record.sys_flag(), record.born_timestamp(), record.body()),
                (0x301, 1_700_000_000_000, &b"hello"[..])
            );
            let text = record.properties();
            for (name, value) in [("TAGS", "A"), ("KEYS", "k1 k2"), ("UNIQ_KEY", "U1"), ("CLUSTER", "DefaultCluster")] {
                assert_eq!(properties::get(text, name), Some(value));
            }
        }
    });
}

#[test]
fn a_message_without_a_unique_key_gets_one_and_pop_checkpoints_are_not_stored() {
    let node = Node::start();
    with_both(&node, |client, topic| {
        let first = client.put(&Request::send(topic).properties("POP_CK=x;TAGS=A")).text("transactionId").to_owned();
        let second = client.put(&Request::send(topic)).text("transactionId").to_owned();
        assert_eq!(first.len(), 32);
        assert_ne!(first, second);
        let pulled = client.pull_until(topic, 0, 2);
        let text = pulled.records()[0].properties().to_owned();
        assert_eq!(properties::get(&text, "UNIQ_KEY"), Some(&*first));
        assert_eq!((properties::get(&text, "POP_CK"), properties::get(&text, "TAGS")), (None, Some("A")));
    });
}

#[test]
fn rows_21_22_missing_and_non_numeric_fields_are_answered_with_a_readable_reason() {
    let node = Node::start();
    with_both(&node, |client, topic| {
        for code in SEND_CODES {
            assert_eq!(client.ask(&Request::new(code).body("x")).code, response::SYSTEM_ERROR);
        }
        let without = client.ask(&Request::send(topic).without("e"));
        assert_eq!(without.code, response::SYSTEM_ERROR);
        assert_traced(&without);
        let wrong = client.ask(&in_long_form(Request::send(topic).with("e", "abc")));
        assert_eq!(wrong.code, response::SYSTEM_ERROR);
        assert!(wrong.remark.contains("queueId") && wrong.remark.contains("abc"), "{}", wrong.remark);
        client.put(&Request::send(topic));
    });
}

#[test]
fn row_23_a_negative_queue_id_means_any_queue() {
    let node = Node::start();
    with_both(&node, |client, topic| {
        let mut counts = [0; 4];
        for _ in 0..60 {
            let answer = client.put(&Request::send(topic).with("e", -1));
            counts[usize::try_from(answer.number("queueId")).unwrap()] += 1;
        }
        assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
    });
}

#[test]
fn rows_24_25_bad_queues_and_topic_names_are_answered_by_profile() {
    for (profile, code) in [("5", response::INVALID_PARAMETER), ("4.9", response::SYSTEM_ERROR)] {
        let node = Node::with(&[("broker.profile", &format!("{profile:?}"))]);
        with_both(&node, |client, topic| {
            let stored = client.put(&Request::send(topic));
            assert_eq!(stored.version, if profile == "5" { 479 } else { 409 });
            assert_eq!(client.ask(&Request::send(topic).with("e", 99)).code, code);
            assert_eq!(client.ask(&Request::send(topic).with("e", 4)).code, code);
            for name in [" ", "a b", "a.b", &"t".repeat(128)] {
                assert_eq!(client.ask(&Request::send(name)).code, code, "{name:?}");
            }
            // An empty value in a binary header is no value.
            let empty = client.ask(&Request::send("")).code;
            assert!(empty == code || empty == response::SYSTEM_ERROR, "{empty}");
            client.put(&Request::send(&"t".repeat(127)));
        });
    }
}

#[test]
fn row_26_topics_of_the_broker_take_no_sends() {
    let node = Node::start();
    with_both(&node, |client, _| {
        for topic in
            ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "OFFSET_MOVED_EVENT"]
        {
            let answer = client.ask(&Request::send(topic));
            assert_eq!(answer.code, response::NO_PERMISSION, "{topic}");
            assert_traced(&answer);
        }
    });
}

#[test]
fn rows_27_28_a_new_topic_is_made_after_its_template_or_not_at_all() {
    let node = Node::start();
    with_both(&node, |client, topic| {
        for (asked, made) in [(4, 4), (100, 8)] {
            let topic = format!("{topic}-{asked}");
            client.put(&Request::send(&topic).with("d", asked).with("e", made - 1));
            assert_eq!(client.ask(&Request::send(&topic).with("e", made)).code, response::INVALID_PARAMETER);
        }
        let unknown = client.ask(&Request::send(&format!("{topic}-not")).with("c", "NoSuchTemplate"));
        assert_eq!(unknown.code, response::TOPIC_NOT_EXIST);
        assert!(unknown.remark.contains(&format!("{topic}-not")), "{}", unknown.remark);
    });
}

#[test]
fn rows_29_30_31_bodies_and_properties_have_limits_and_a_body_is_needed() {
    let node = Node::start();
    with_both(&node, |client, topic| {
        let body = vec![b'x'; BODY_LEN_MAX];
        client.put(&Request::send(topic).body(body.clone()));
        assert_eq!(client.ask(&Request::send(topic).body([&body[..], b"x"].concat())).code, response::MESSAGE_ILLEGAL);
        let pulled = client.pull_until(topic, 0, 1);
        assert_eq!(pulled.records()[0].body(), body);

        // The node's own properties count too, so the largest text of a client is shorter than the limit by theirs.
        let rest = PROPERTIES_LEN_MAX - ADDED_LEN - "UNIQ_KEY=u;a=;".len();
        let text = |len: usize| format!("UNIQ_KEY=u;a={};", "v".repeat(len));
        client.put(&Request::send(topic).properties(&text(rest)));
        assert_eq!(client.ask(&Request::send(topic).properties(&text(rest + 1))).code, response::MESSAGE_ILLEGAL);

        assert_eq!(client.ask(&Request::send(topic).body("")).code, response::MESSAGE_ILLEGAL);
        client.pull_until(topic, 1, 1);
        assert_eq!(client.max_offset(topic), 2);
    });
}

#[test]
fn rows_32_33_the_batch_field_decides_whether_a_body_is_a_batch() {
    let node = Node::start();
    with_both(&node, |client, topic| {
        let asked =
            Request::send(topic).with("m", "true").body(batch_of(&["one", "two"])).properties("UNIQ_KEY=B;WAIT=true");
        let answer = client.put(&asked);
        assert_eq!(answer.number("queueOffset"), 0);
        let ids: Vec<String> = answer.text("msgId").split(',').map(str::to_owned).collect();
        assert_eq!(ids.len(), 2);
        let pulled = client.pull_until(topic, 0, 2);
        assert_eq!(pulled.bodies(), ["one", "two"]);
        for (record, id) in pulled.records().iter().zip(&ids) {
            assert_eq!(format!("{:016X}", record.phy().0), id[16..]);
            assert_eq!(record.flag(), 3);
            let text = record.properties();
            assert_eq!(
                (properties::get(text, "TAGS"), properties::get(text, "CLUSTER")),
                (Some("A"), Some("DefaultCluster"))
            );
            assert_eq!(properties::get(text, "UNIQ_KEY"), None);
        }
        client.put(&asked.clone().code(request::SEND_BATCH_MESSAGE));
        assert_eq!(client.pull_until(topic, 2, 2).bodies(), ["one", "two"]);

        let raw = batch_of(&["three"]);
        client.put(&Request::send(topic).code(request::SEND_BATCH_MESSAGE).body(raw.clone()));
        assert_eq!(client.pull_until(topic, 4, 1).records()[0].body(), raw);
    });
}

#[test]
fn row_34_a_bad_batch_is_refused_as_a_whole() {
    let node = Node::start();
    with_both(&node, |client, topic| {
        client.put(&Request::send(topic));
        let good = batch_of(&["one", "two"]);
        let mut wrong_size = good.clone();
        wrong_size[3] ^= 1;
        for body in [&good[..good.len() - 1], &wrong_size, b"garbage", b""] {
            let answer = client.ask(&Request::send(topic).with("m", "true").body(body));
            assert_eq!(answer.code, response::MESSAGE_ILLEGAL, "{answer:?}");
        }
        let delayed = Request::send(topic).with("m", "true").body(good).properties("DELAY=1");
        assert_eq!(client.ask(&delayed).code, response::MESSAGE_ILLEGAL);
        // Answered before it is shown: the queue's first file may still be made.
        client.pull_until(topic, 0, 1);
        assert_eq!(client.max_offset(topic), 1);
    });
}

#[test]
fn a_batch_whose_ids_do_not_fit_an_answer_is_refused_before_it_is_stored() {
    let settings = [("limits.max_message_size", "\"15MiB\""), ("store.commitlog_file_size", "\"128MiB\"")];
    let node = Node::with(&settings);
    let mut client = node.client(HEADER_TYPES[1]);
    client.put(&Request::send("Ids"));
    let empty = batch::encode(&[BatchEntry { flag: 0, body: b"", properties: "" }]);
    let refused = client.ask(&Request::send("Ids").with("m", "true").body(empty.repeat(600_000)));
    assert_eq!(refused.code, response::MESSAGE_ILLEGAL, "{}", refused.remark);
    assert!(refused.remark.contains("600000 messages"), "{}", refused.remark);
    client.pull_until("Ids", 0, 1);
    assert_eq!(client.max_offset("Ids"), 1);
}

#[test]
fn row_35_a_batch_cannot_go_to_a_retry_topic() {
    let node = Node::start();
    with_both(&node, |client, group| {
        let asked = Request::send(&format!("%RETRY%{group}")).with("m", "true").body(batch_of(&["one"]));
        assert_eq!(client.ask(&asked).code, response::MESSAGE_ILLEGAL);
    });
}

#[test]
fn row_36_a_batch_of_the_old_cpp_library_is_a_batch_if_it_looks_like_one() {
    let node = Node::start();
    let mut client = node.client(HEADER_TYPES[0]);
    let frame = |body: &[u8]| {
        let header = json!({
            "code": 10,
            "extFields": {
                "batch": "1",
                "bornTimestamp": "1700000000000",
                "defaultTopic": "TBW102",
                "defaultTopicQueueNums": 4,
                "flag": 0,
                "producerGroup": "P",
                "properties": "",
                "queueId": 0,
                "reconsumeTimes": 0,
                "sysFlag": 0,
                "topic": "Cpp",
                "unitMode": "0"
            },
            "flag": 0,
            "language": "CPP",
            "opaque": 77,
            "remark": "",
            "version": 63
        })
        .to_string();
        let length = (4 + header.len() + body.len()) as u32;
        [&length.to_be_bytes()[..], &(header.len() as u32).to_be_bytes(), header.as_bytes(), body].concat()
    };
    client.send_raw(&frame(&batch_of(&["one", "two"])));
    let answer = client.read();
    assert_eq!((answer.code, answer.opaque, answer.text("msgId").split(',').count()), (0, 77, 2), "{answer:?}");
    client.send_raw(&frame(b"not a batch"));
    assert_eq!(client.read().code, 0);
    assert_eq!(client.pull_until("Cpp", 0, 3).bodies(), ["one", "two", "not a batch"]);
}

#[test]
fn row_38_a_message_tried_too_often_goes_to_the_dead_letters_without_delay() {
    let node = Node::start();
    with_both(&node, |client, group| {
        let (retry, dead) = (format!("%RETRY%{group}"), format!("%DLQ%{group}"));
        let asked = Request::send(&retry).with("l", 2).properties("DELAY=3;TAGS=A");
        client.put(&asked.clone().with("j", 3));
        let pulled = client.pull_until(&dead, 0, 1);
        assert_eq!(pulled.records()[0].reconsume_times(), 3);
        // At the limit it is tried once more, later.
        client.put(&asked.with("j", 2));
        assert_eq!((client.max_offset(&dead), client.max_offset(&retry)), (1, 0));
        // Clients from before 3.4.9 cannot set the limit: the group's holds.
        client.put(&Request::send(&retry).with("j", 3).with("l", 2).version(63));
        assert_eq!(client.pull_until(&retry, 0, 1).records()[0].reconsume_times(), 3);
    });
}

#[test]
fn row_39_a_oneway_send_is_never_answered_not_even_with_an_error() {
    let node = Node::start();
    with_both(&node, |client, topic| {
        client.send(&Request::send(&format!("{topic}-not")).with("c", "NoSuchTemplate").oneway());
        client.send(&Request::send(topic).without("e").oneway());
        client.send(&Request::send(topic).with("e", 99).oneway());
        client.send(&Request::send(topic).oneway());
        client.expect_silence(Duration::from_millis(300));
        assert_eq!(client.pull_until(topic, 0, 1).bodies(), ["hello"]);
    });
}

#[test]
fn row_40_a_delayed_message_shows_when_it_is_due_and_not_before() {
    let node = Node::start();
    with_both(&node, |client, topic| {
        client.put(&Request::send(topic).with("e", 1));
        let started = Instant::now();
        let answer = client.put(&Request::send(topic).properties("DELAY=2;TAGS=A;UNIQ_KEY=D").body("late"));
        assert_eq!((answer.text("queueId"), answer.text("transactionId")), ("0", "D"));
        assert_eq!(client.max_offset(topic), 0);
        let phy = i64::from_str_radix(&answer.text("msgId")[16..], 16).unwrap();
        let waiting = client.ask(&Request::new(request::VIEW_MESSAGE_BY_ID).with("offset", phy));
        let record = &waiting.records()[0];
        assert_eq!((record.topic(), record.queue_id()), ("SCHEDULE_TOPIC_XXXX", 1));
        let pulled = client.pull_until(topic, 0, 1);
        let took = started.elapsed();
        assert!(took >= Duration::from_millis(4900) && took < Duration::from_secs(8), "{took:?}");
        let records = pulled.records();
        assert_eq!((records[0].body(), records[0].topic(), records[0].queue_id()), (&b"late"[..], topic, 0));
        assert_eq!(properties::get(records[0].properties(), "UNIQ_KEY"), Some("D"));
    });
}

#[test]
fn a_delayed_message_survives_a_kill_while_it_waits() {
    let mut node = Node::with(&[("flush.mode", "\"sync\"")]);
    node.client(HEADER_TYPES[0]).put(&Request::send("Late").properties("DELAY=2"));
    node.kill();
    node.start_again();
    assert_eq!(node.client(HEADER_TYPES[0]).pull_until("Late", 0, 1).bodies(), ["hello"]);
}

#[test]
fn transactions_and_timers_are_refused_with_a_reason() {
    let node = Node::start();
    with_both(&node, |client, topic| {
        let half = client.ask(&Request::send(topic).properties("TRAN_MSG=true;PGROUP=P").with("f", 4));
        assert_eq!(half.code, response::NO_PERMISSION, "{half:?}");
        for name in ["TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"] {
            let timed = client.ask(&Request::send(topic).properties(&format!("{name}=5000")));
            assert_eq!(timed.code, response::SYSTEM_ERROR, "{timed:?}");
        }
        assert_eq!(client.max_offset(topic), 0);
    });
}

#[test]
fn sends_in_one_segment_are_all_answered_and_keep_their_order_in_the_queue() {
    let node = Node::start();
    with_both(&node, |client, topic| {
        client.put(&Request::send(topic).with("e", 3));
        let opaques: Vec<i32> =
            (0..200).map(|index| client.send(&Request::send(topic).body(format!("{index}")))).collect();
        let mut answers: Vec<Answer> = opaques.iter().map(|_| client.read()).collect();
        answers.sort_by_key(|answer| answer.opaque);
        for (index, (answer, opaque)) in answers.iter().zip(&opaques).enumerate() {
            assert_eq!((answer.code, answer.opaque, answer.number("queueOffset")), (0, *opaque, index as i64));
        }
    });
}

#[test]
fn what_was_acknowledged_is_there_after_a_stop_and_after_a_kill_in_sync_mode() {
    let mut node = Node::with(&[("flush.mode", "\"sync\"")]);
    let put = |node: &Node, range: std::ops::Range<u32>| {
        let mut client = node.client(HEADER_TYPES[0]);
        for index in range {
            client.put(&Request::send("Kept").body(index.to_string()));
        }
    };
    put(&node, 0..10);
    assert!(node.stop().success());
    assert!(!node.root().join("abort").exists(), "a clean stop removes the abort file");
    node.start_again();
    put(&node, 10..20);
    node.kill();
    node.start_again();
    let expected: Vec<String> = (0..20).map(|index| index.to_string()).collect();
    assert_eq!(node.client(HEADER_TYPES[0]).pull_until("Kept", 0, 20).bodies(), expected);
}

/// T11 of the cases.
#[test]
fn t11_batches_of_many_connections_to_one_queue_stay_whole_and_in_their_order() {
    const CONNECTIONS: usize = 8;
    const BATCHES: usize = 200;
    const SIZE: usize = 16;
    const TOPIC: &str = "Batches";
    let node = Node::start();
    // Its template gives it four queues; one is used.
    node.client(HEADER_TYPES[0]).put(&Request::send(TOPIC).with("e", 1));
    let mut firsts: Vec<(i64, String)> = thread::scope(|scope| {
        let senders: Vec<_> = (0..CONNECTIONS)
            .map(|sender| {
                let node = &node;
                scope.spawn(move || {
                    let mut client = node.client(HEADER_TYPES[sender % 2]);
                    let send = |number| {
                        let name = format!("{sender} {number}");
                        let bodies: Vec<_> = (0..SIZE).map(|at| format!("{name} {at}")).collect();
                        let body = batch_of(&bodies.iter().map(String::as_str).collect::<Vec<_>>());
                        let asked = Request::send(TOPIC).code(request::SEND_BATCH_MESSAGE).with("m", "true").body(body);
                        (client.put(&asked).number("queueOffset"), name)
                    };
                    (0..BATCHES).map(send).collect::<Vec<_>>()
                })
            })
            .collect();
        senders.into_iter().flat_map(|sender| sender.join().expect("every batch is stored")).collect()
    });
    // The offsets that were answered follow each other by whole batches, ...
    firsts.sort_unstable();
    let expected = (0..CONNECTIONS * BATCHES).map(|batch| (batch * SIZE) as i64);
    assert!(firsts.iter().map(|(first, _)| *first).eq(expected));
    // ... a connection's in the order in which it sent, ...
    for sender in 0..CONNECTIONS {
        let own = firsts.iter().filter(|(_, name)| name.starts_with(&format!("{sender} ")));
        assert!(own.map(|(_, name)| name.clone()).eq((0..BATCHES).map(|number| format!("{sender} {number}"))));
    }
    // ... and at each stands what was sent, further on in the log than what is before it.
    let mut client = node.client(HEADER_TYPES[1]);
    let (mut offset, mut end) = (0, 0);
    while offset < CONNECTIONS * BATCHES * SIZE {
        let pulled = client.pull_until(TOPIC, offset as i64, 1);
        for record in pulled.records() {
            let body = format!("{} {}", firsts[offset / SIZE].1, offset % SIZE);
            assert_eq!((record.queue_offset().0, record.body()), (offset as u64, body.as_bytes()));
            assert!(record.phy().0 >= end);
            end = record.phy().0 + u64::from(record.total_len());
            offset += 1;
        }
    }
    assert_eq!(client.max_offset(TOPIC), (CONNECTIONS * BATCHES * SIZE) as i64);
}

/// T17 of the cases: what is at a limit is stored, what is beyond it is told so, and the connection serves on.
#[test]
fn t17_each_limit_holds_to_the_byte_and_costs_no_connection() {
    let node = Node::start();
    with_both(&node, |client, topic| {
        let rest = PROPERTIES_LEN_MAX - ADDED_LEN - "UNIQ_KEY=u;a=;".len();
        let text = |len: usize| format!("UNIQ_KEY=u;a={};", "v".repeat(len));
        let sized = |len: usize| Request::send(topic).body(vec![b'x'; len]);
        let cases = [
            (sized(4_194_304), response::SUCCESS),
            (sized(4_194_305), response::MESSAGE_ILLEGAL),
            (Request::send(&"t".repeat(127)), response::SUCCESS),
            (Request::send(&"t".repeat(128)), response::INVALID_PARAMETER),
            (Request::send("with.dot"), response::INVALID_PARAMETER),
            // What the node adds counts towards the 32,767.
            (Request::send(topic).properties(&text(rest)), response::SUCCESS),
            (Request::send(topic).properties(&text(rest + 1)), response::MESSAGE_ILLEGAL),
            (Request::send(topic).properties(&text(32_768)), response::MESSAGE_ILLEGAL),
            (Request::send(topic).with("e", 3), response::SUCCESS),
            (Request::send(topic).with("e", 4), response::INVALID_PARAMETER),
            // A group of such a name is never made.
            (Request::pull(topic, 0).with("consumerGroup", "g".repeat(120)), response::SUCCESS),
            (Request::pull(topic, 0).with("consumerGroup", "g".repeat(121)), response::SUBSCRIPTION_GROUP_NOT_EXIST),
        ];
        client.put(&Request::send(topic).body("first"));
        client.pull_until(topic, 0, 1);
        for (number, (asked, code)) in cases.iter().enumerate() {
            let answer =
                if *code == response::SUCCESS && asked.has("b") { client.put(asked) } else { client.ask(asked) };
            assert_eq!(answer.code, *code, "case {number}: {}", answer.remark);
            let next = client.put(&Request::send(topic).with("e", 2));
            assert_eq!(next.number("queueOffset"), number as i64, "the connection serves on");
        }
    });
}
