//! Settings of the store that change what a record or the index holds, on a real node.

mod harness;

use harness::{HEADER_TYPES, Node, Request, separated};
use kerolox::format::record::Seal;
use kerolox::types::properties;
use kerolox::wire::batch::{self, BatchEntry};
use kerolox::wire::code::{request, response};

const TOPIC: &str = "Settings";

fn query(key: &str) -> Request {
    Request::new(request::QUERY_MESSAGE)
        .with("topic", TOPIC)
        .with("key", key)
        .with("maxNum", 32)
        .with("beginTimestamp", 0)
        .with("endTimestamp", i64::MAX)
}

#[test]
fn sealed_records_carry_a_checksum_over_all_of_them_and_a_recovery_can_insist_on_it() {
    let mut node = Node::with(&[("store.property_crc", "true"), ("recovery.verify_property_crc", "true")]);
    let mut client = node.client(HEADER_TYPES[0]);
    // The last one's properties are not closed: the seal must not run into its value (J19).
    for properties in ["", "KEYS=k;", "KEYS=k;__CRC32#=0123456789;", "KEYS=k;A=open"] {
        let answer = client.put(&Request::send(TOPIC).properties(properties).body("sealed"));
        assert_eq!(answer.code, response::SUCCESS, "{answer:?}");
    }
    node.kill();
    node.start_again();
    let pulled = node.client(HEADER_TYPES[1]).pull_until(TOPIC, 0, 4);
    let records = pulled.records();
    assert_eq!(records.len(), 4);
    for record in records {
        assert_eq!(record.seal(), Seal::Right);
        assert_eq!(record.properties().matches("__CRC32#").count(), 1, "{:?}", record.properties());
        assert!(!record.properties().contains("0123456789"));
    }
}

#[test]
fn without_an_index_nothing_is_found_by_key_and_everything_else_works() {
    let mut node = Node::with(&[("store.index", "false")]);
    let mut client = node.client(HEADER_TYPES[0]);
    client.put(&Request::send(TOPIC).properties("KEYS=k;").body("one"));
    assert_eq!(client.ask(&query("k")).code, response::QUERY_NOT_FOUND);
    node.kill();
    node.start_again();
    let mut client = node.client(HEADER_TYPES[0]);
    assert_eq!(client.pull_until(TOPIC, 0, 1).bodies(), ["one"]);
    assert_eq!(client.ask(&query("k")).code, response::QUERY_NOT_FOUND);
    let files = std::fs::read_dir(node.root().join("index")).map_or(0, |entries| entries.count());
    assert_eq!(files, 0, "no index file is made");

    node.set("store.index", "true");
    node.stop();
    node.start_again();
    let mut client = node.client(HEADER_TYPES[0]);
    client.put(&Request::send(TOPIC).properties("KEYS=l;").body("two"));
    let mut found = client.ask(&query("l"));
    for _ in 0..100 {
        if found.code == response::SUCCESS {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
        found = client.ask(&query("l"));
    }
    assert_eq!(found.code, response::SUCCESS, "{found:?}");
}

#[test]
fn j19_a_seal_never_runs_into_the_last_value_of_a_message_of_a_batch() {
    let node = Node::with(&[("store.property_crc", "true")]);
    let entry = |properties: &str| {
        let properties = separated(properties);
        batch::encode(&[BatchEntry { flag: 0, body: b"sealed", properties: &properties }])
    };
    let texts = ["A=open", "A=closed;", ""];
    let body: Vec<u8> = texts.iter().flat_map(|text| entry(text)).collect();
    for header_type in HEADER_TYPES {
        let topic = format!("{header_type:?}");
        let mut client = node.client(header_type);
        client.put(&Request::send(&topic).with("m", "true").body(body.clone()));
        let pulled = client.pull_until(&topic, 0, texts.len());
        let values: Vec<_> = pulled
            .records()
            .iter()
            .map(|record| properties::get(record.properties(), "A").map(str::to_owned))
            .collect();
        assert_eq!(values, [Some("open".to_owned()), Some("closed".to_owned()), None]);
        assert!(pulled.records().iter().all(|record| record.seal() == Seal::Right));
    }
}
