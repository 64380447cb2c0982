//! Several shards: clients whose connections land on different cores see one broker. Two shards, one of which shares
//! the writer's core, so that a machine with two cores can show it.

mod harness;

use std::collections::HashSet;
use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

use harness::{Client, Node, Request};
use kerolox::wire::code::{request, response};
use kerolox::wire::lock::{LockRequest, LockResponse};
use kerolox::wire::{HeaderType, MessageQueue};
use serde_json::{Value, json};

/// The kernel spreads connections by their ports: that as many all land on one of two shards happens once in 2,000 runs.
const CLIENTS: usize = 12;
const QUEUES: usize = 4;

/// A node with two shards; None, and said so, where there is one core only.
fn two_shards() -> Option<Node> {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    let (Some(first), Some(second)) = (cores.first(), cores.get(1)) else {
        eprintln!("one core only: two shards are not tried");
        return None;
    };
    let shards = format!("[{}, {}]", first.id, second.id);
    Some(Node::with(&[("cores.writer", &first.id.to_string()), ("cores.shards", &shards)]))
}

fn clients(node: &Node) -> Vec<Client> {
    let header_types = [HeaderType::Json, HeaderType::Rocketmq];
    (0..CLIENTS).map(|index| node.client(header_types[index / 2 % 2])).collect()
}

/// A heartbeat of a member of a consumer group.
fn heartbeat(client_id: &str, group: &str, topic: &str) -> Request {
    let body = json!({
        "clientID": client_id,
        "consumerDataSet": [{
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "consumeType": "CONSUME_PASSIVELY",
            "groupName": group,
            "messageModel": "CLUSTERING",
            "subscriptionDataSet": [{
                "classFilterMode": false, "codeSet": [], "expressionType": "TAG", "subString": "*", "subVersion": 1,
                "tagsSet": [], "topic": topic
            }],
            "unitMode": false
        }],
        "producerDataSet": []
    });
    Request::new(request::HEART_BEAT).body(body.to_string())
}

/// Asks, and keeps notices that come meanwhile.
fn done(client: &mut Client, asked: &Request) -> harness::Answer {
    let answer = client.ask(asked);
    assert_eq!(answer.code, response::SUCCESS, "{answer:?}");
    answer
}

/// Forgets the notices of a member that have come, and those that come within this time.
fn forget_notices(client: &mut Client, time: Duration) {
    while client.read_within(time).is_some() {}
    client.pushes.clear();
}

#[test]
fn every_placement_serves_stops_and_starts_again() {
    let cores: Vec<usize> = core_affinity::get_core_ids().unwrap_or_default().iter().map(|core| core.id).collect();
    let (first, last) = (cores[0], cores[cores.len() - 1]);
    for (writer, shards) in [(first, vec![first]), (first, vec![last]), (last, vec![first]), (last, vec![last, first])]
    {
        if shards.len() > 1 && first == last {
            eprintln!("one core only: two shards are not tried");
            continue;
        }
        for mode in ["\"async\"", "\"sync\""] {
            let mut node = Node::with(&[
                ("cores.writer", &writer.to_string()),
                ("cores.shards", &format!("{shards:?}")),
                ("flush.mode", mode),
            ]);
            let mut client = node.client(HeaderType::Json);
            client.put(&Request::send("Placed").body("first"));
            client.pull_until("Placed", 0, 1);
            assert!(node.stop().success(), "writer {writer}, shards {shards:?}");
            node.start_again();
            let mut client = node.client(HeaderType::Json);
            client.put(&Request::send("Placed").body("second"));
            assert_eq!(client.pull_until("Placed", 0, 2).bodies(), ["first", "second"]);
        }
    }
}

#[test]
fn messages_of_every_connection_are_seen_by_every_connection_in_order() {
    let Some(mut node) = two_shards() else { return };
    let mut clients = clients(&node);
    const EACH: usize = 5;
    for (sender, client) in clients.iter_mut().enumerate() {
        for queue in 0..QUEUES {
            for index in 0..EACH {
                client.put(&Request::send("Shared").with("e", queue).body(format!("{sender}/{queue}/{index}")));
            }
        }
    }
    let seen_by = |client: &mut Client| {
        for queue in 0..QUEUES {
            let mut bodies = Vec::new();
            let deadline = Instant::now() + Duration::from_secs(10);
            while bodies.len() < CLIENTS * EACH {
                let answer = client.ask(&Request::pull("Shared", bodies.len() as i64).with("queueId", queue));
                if answer.code == response::SUCCESS {
                    for (index, record) in answer.records().iter().enumerate() {
                        assert_eq!(record.queue_offset().0, (bodies.len() + index) as u64);
                    }
                    bodies.extend(answer.bodies());
                }
                assert!(Instant::now() < deadline, "queue {queue} shows {} messages", bodies.len());
            }
            for sender in 0..CLIENTS {
                let own = format!("{sender}/");
                let of_one: Vec<_> = bodies.iter().filter(|body| body.starts_with(&own)).collect();
                let sent: Vec<_> = (0..EACH).map(|index| format!("{sender}/{queue}/{index}")).collect();
                assert_eq!(of_one, sent.iter().collect::<Vec<_>>());
            }
        }
    };
    clients.iter_mut().for_each(seen_by);
    // And after a clean stop and a kill.
    assert!(node.stop().success());
    node.start_again();
    seen_by(&mut node.client(HeaderType::Json));
    node.kill();
    node.start_again();
    seen_by(&mut node.client(HeaderType::Json));
}

#[test]
fn a_topic_is_there_for_every_connection_before_its_answer_is() {
    let Some(node) = two_shards() else { return };
    let mut clients = clients(&node);
    for maker in 0..CLIENTS {
        let topic = format!("Made{maker}");
        let made = Request::new(request::UPDATE_AND_CREATE_TOPIC)
            .with("topic", &topic)
            .with("defaultTopic", "TBW102")
            .with("readQueueNums", 2)
            .with("writeQueueNums", 2)
            .with("perm", 6)
            .with("topicFilterType", "SINGLE_TAG")
            .with("topicSysFlag", 0)
            .with("order", "false");
        done(&mut clients[maker], &made);
        let by_sending = format!("Sent{maker}");
        clients[maker].put(&Request::send(&by_sending));
        for client in &mut clients {
            assert_eq!(done(client, &Request::queue(request::GET_MAX_OFFSET, &topic)).text("offset"), "0");
            for topic in [&topic, &by_sending] {
                done(client, &Request::new(request::GET_ROUTEINFO_BY_TOPIC).with("topic", topic));
            }
        }
    }
}

#[test]
fn held_pulls_of_all_connections_are_woken_by_a_send_on_any() {
    let Some(node) = two_shards() else { return };
    let mut sender = node.client(HeaderType::Json);
    let mut clients = clients(&node);
    sender.put(&Request::send("Held").with("d", QUEUES).properties("TAGS=B"));
    // Queue 0 has its first message; it is to be seen before anybody waits for the next.
    sender.pull_until("Held", 0, 1);
    let patient = |queue: usize, offset: i64, tags: &str, ms: u64| {
        Request::pull("Held", offset)
            .with("queueId", queue)
            .with("sysFlag", 2 | 4)
            .with("subscription", tags)
            .with("suspendTimeoutMillis", ms)
    };
    for client in &mut clients {
        for queue in 0..QUEUES {
            client.send(&patient(queue, i64::from(queue == 0), "A", 20_000));
        }
    }
    for client in &mut clients {
        client.expect_silence(Duration::from_millis(20));
    }
    let mut slow = Duration::ZERO;
    for queue in 0..QUEUES {
        // Of another tag: nobody is woken.
        sender.put(&Request::send("Held").with("e", queue).properties("TAGS=B").body("other"));
        clients[queue].expect_silence(Duration::from_millis(50));
        let began = Instant::now();
        sender.put(&Request::send("Held").with("e", queue).properties("TAGS=A").body(format!("wanted {queue}")));
        for client in &mut clients {
            let answer = client.read_within(Duration::from_secs(5)).expect("the held pull is woken");
            assert_eq!(answer.code, response::SUCCESS, "{answer:?}");
            assert_eq!(answer.bodies(), [format!("wanted {queue}")]);
        }
        slow = slow.max(began.elapsed());
    }
    eprintln!("a send and the wake-up of {CLIENTS} connections took at most {slow:?}");
    // Time runs out for the others, on their own shards.
    let began = Instant::now();
    for (index, client) in clients.iter_mut().enumerate() {
        // Queue 0 has three messages now, the others two.
        let queue = index % QUEUES;
        client.send(&patient(queue, 2 + i64::from(queue == 0), "C", 1_000));
    }
    for client in &mut clients {
        let answer = client.read_within(Duration::from_secs(5)).expect("a pull is held for its time only");
        assert_eq!(answer.code, response::PULL_NOT_FOUND, "{answer:?}");
        let after = began.elapsed();
        assert!(after > Duration::from_millis(990) && after < Duration::from_secs(3), "{after:?}");
    }
}

#[test]
fn members_on_different_shards_hear_of_each_other() {
    let Some(node) = two_shards() else { return };
    let mut members = clients(&node);
    let group = "Members";
    members[0].put(&Request::send("Watched"));
    for index in 0..CLIENTS {
        done(&mut members[index], &heartbeat(&format!("member{index}"), group, "Watched"));
        for other in &mut members[..index] {
            let notice = other.read_within(Duration::from_secs(2)).expect("a notice of who joined");
            assert_eq!((notice.code, notice.flag), (request::NOTIFY_CONSUMER_IDS_CHANGED, 2), "{notice:?}");
            assert_eq!(notice.text("consumerGroup"), group);
        }
    }
    let ids = |client: &mut Client| -> HashSet<String> {
        let answer = done(client, &Request::new(request::GET_CONSUMER_LIST_BY_GROUP).with("consumerGroup", group));
        let list: Value = serde_json::from_slice(&answer.body).expect("JSON");
        let ids = list["consumerIdList"].as_array().expect("a list").iter();
        ids.map(|id| id.as_str().expect("a text").to_owned()).collect()
    };
    let all: HashSet<String> = (0..CLIENTS).map(|index| format!("member{index}")).collect();
    for member in &mut members {
        assert_eq!(ids(member), all);
        forget_notices(member, Duration::from_millis(5));
    }
    // Each leaves by closing its socket; those that are left hear of it within a second.
    while let Some(gone) = members.pop() {
        let began = Instant::now();
        drop(gone);
        for member in &mut members {
            let notice = member.read_within(Duration::from_secs(3)).expect("a notice of who left");
            assert_eq!(notice.code, request::NOTIFY_CONSUMER_IDS_CHANGED);
        }
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
        if let Some(first) = members.first_mut() {
            let left = ids(first);
            assert_eq!(left.len(), members.len(), "{left:?}");
        }
    }
}

#[test]
fn keys_ids_locks_and_offsets_are_the_same_for_every_connection() {
    let Some(node) = two_shards() else { return };
    let mut clients = clients(&node);
    let sent: Vec<String> = clients
        .iter_mut()
        .enumerate()
        .map(|(index, client)| {
            let asked =
                Request::send("Keyed").with("e", index % QUEUES).properties("KEYS=common").body(index.to_string());
            client.put(&asked).text("msgId").to_owned()
        })
        .collect();
    let by_key = Request::new(request::QUERY_MESSAGE)
        .with("topic", "Keyed")
        .with("key", "common")
        .with("maxNum", 64)
        .with("beginTimestamp", 0)
        .with("endTimestamp", i64::MAX);
    for client in &mut clients {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let answer = client.ask(&by_key);
            let found = if answer.code == response::SUCCESS { answer.bodies() } else { Vec::new() };
            if found.len() == CLIENTS {
                assert_eq!(found.iter().collect::<HashSet<_>>().len(), CLIENTS);
                break;
            }
            assert!(Instant::now() < deadline, "found by key: {found:?}");
            thread::sleep(Duration::from_millis(10));
        }
        for (index, id) in sent.iter().enumerate() {
            let phy = i64::from_str_radix(&id[16..], 16).expect("an id");
            let answer = done(client, &Request::new(request::VIEW_MESSAGE_BY_ID).with("offset", phy));
            assert_eq!(answer.bodies(), [index.to_string()]);
        }
    }
    // One lock, whoever asks where.
    let queue = |queue_id| MessageQueue { topic: "Keyed".into(), broker_name: "broker-a".into(), queue_id };
    let lock = |client: &mut Client, code, id: &str| {
        let asked = LockRequest {
            client_id: id.to_owned(),
            group: "Ordered".into(),
            queues: vec![queue(0), queue(1)],
            only_this_broker: false,
        };
        done(client, &Request::new(code).body(asked.encode()))
    };
    for holder in 0..CLIENTS {
        for (index, client) in clients.iter_mut().enumerate().skip(holder) {
            let answer = lock(client, request::LOCK_BATCH_MQ, &format!("client{index}"));
            let locked = LockResponse::decode(&answer.body).expect("a lock answer").locked.len();
            assert_eq!(locked, if index == holder { 2 } else { 0 }, "client {index} while {holder} holds the lock");
        }
        lock(&mut clients[holder], request::UNLOCK_BATCH_MQ, &format!("client{holder}"));
    }
    // One offset. Its group must exist.
    done(&mut clients[0], &heartbeat("reader", "Reading", "Keyed"));
    for index in 0..CLIENTS {
        let update = Request::new(request::UPDATE_CONSUMER_OFFSET)
            .with("consumerGroup", "Reading")
            .with("topic", "Keyed")
            .with("queueId", 0)
            .with("commitOffset", index % 3);
        done(&mut clients[index], &update);
        for client in &mut clients {
            let query = Request::new(request::QUERY_CONSUMER_OFFSET)
                .with("consumerGroup", "Reading")
                .with("topic", "Keyed")
                .with("queueId", 0);
            assert_eq!(done(client, &query).number("offset"), (index % 3) as i64);
        }
    }
}

#[test]
fn a_flood_of_requests_for_another_shard_waits_with_its_senders() {
    let Some(node) = two_shards() else { return };
    let mut other = node.client(HeaderType::Json);
    other.put(&Request::send("Flooded"));
    let before = node.memory_len();
    let until = Instant::now() + Duration::from_secs(3);
    let mut most = 0;
    thread::scope(|scope| {
        // Enough that some land on the shard that does not serve them. Oneway: no answer slows them down.
        for _ in 0..6 {
            let flooder = node.client(HeaderType::Json);
            let list = Request::new(request::GET_ALL_TOPIC_LIST_FROM_NAMESERVER).oneway();
            let frames = flooder.frame(&list, 1).repeat(1_000);
            scope.spawn(move || {
                flooder.socket().set_write_timeout(Some(Duration::from_millis(500))).unwrap();
                while Instant::now() < until {
                    // A write that is cut short or refused is what the node wants.
                    let _ = flooder.socket().write(&frames);
                }
            });
        }
        while Instant::now() < until {
            other.ask(&Request::queue(request::GET_MAX_OFFSET, "Flooded"));
            most = most.max(node.memory_len());
            thread::sleep(Duration::from_millis(20));
        }
    });
    let grown = most.saturating_sub(before) >> 20;
    eprintln!("six floods: {grown} MiB of memory");
    assert!(grown < 24, "memory grew by {grown} MiB");
}

#[test]
fn what_one_connection_asks_of_another_shard_is_answered_in_full_even_when_it_pipelines() {
    let Some(node) = two_shards() else { return };
    let mut clients = clients(&node);
    clients[0].put(&Request::send("Piped"));
    const ASKED: usize = 3_000;
    for client in &mut clients {
        let frames: Vec<u8> = (0..ASKED)
            .flat_map(|opaque| {
                let asked = Request::new(request::GET_ROUTEINFO_BY_TOPIC).with("topic", "Piped");
                client.frame(&asked, opaque as i32).to_vec()
            })
            .collect();
        client.send_raw(&frames);
    }
    for client in &mut clients {
        let mut seen = HashSet::new();
        while seen.len() < ASKED {
            let answer = client.read();
            assert_eq!(answer.code, response::SUCCESS);
            assert!(seen.insert(answer.opaque), "{} comes twice", answer.opaque);
        }
    }
}

/// A deletion reaches every shard: who waits there is answered, what is built there lets go of its files, and no send that
/// was on its way comes into the next topic of the name.
#[test]
fn a_topic_is_deleted_on_all_shards() {
    let Some(node) = two_shards() else { return };
    let mut clients = clients(&node);
    for round in 0..3 {
        for (index, client) in clients.iter_mut().enumerate() {
            let queue = index % QUEUES;
            for n in 0..2 {
                let answer = client.put(&Request::send("T").with("e", queue));
                let before = (index / QUEUES * 2 + n) as i64;
                assert_eq!((answer.number("queueId"), answer.number("queueOffset")), (queue as i64, before), "{round}");
            }
        }
        for (index, client) in clients.iter_mut().enumerate() {
            let held =
                Request::pull("T", 1_000_000).with("queueId", index % QUEUES).with("suspendTimeoutMillis", 30_000);
            let end = (CLIENTS / QUEUES * 2) as i64;
            let deadline = Instant::now() + Duration::from_secs(20);
            let asked = Request::queue(request::GET_MAX_OFFSET, "T").with("queueId", index % QUEUES);
            while client.ask(&asked).number("offset") < end {
                assert!(Instant::now() < deadline, "all is shown");
            }
            client.send(&held.with("queueOffset", end).with("sysFlag", 6));
        }
        let mut admin = node.client(HeaderType::Json);
        done(&mut admin, &Request::new(request::DELETE_TOPIC_IN_BROKER).with("topic", "T"));
        for client in &mut clients {
            let answer = client.read_within(Duration::from_secs(20)).expect("an answer to the held pull");
            assert_eq!(answer.code, response::TOPIC_NOT_EXIST, "{answer:?}");
        }
        let deadline = Instant::now() + Duration::from_secs(20);
        let maps = || std::fs::read_to_string(format!("/proc/{}/maps", node.pid())).unwrap();
        while maps().lines().any(|line| line.contains("/T/")) {
            assert!(Instant::now() < deadline, "its files are let go of:\n{}", maps());
            thread::sleep(Duration::from_millis(5));
        }
    }
}
