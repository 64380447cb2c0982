use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;
use crate::types::Timestamp;
use crate::types::json::JsonFault;

const JAVA_TOPICS: &[u8] = include_bytes!("../../../tests/golden/config-4.9.8/topics.json");
const JAVA_GROUPS: &[u8] = include_bytes!("../../../tests/golden/config-4.9.8/subscriptionGroup.json");
const JAVA_CONSUMER_OFFSETS: &[u8] = include_bytes!("../../../tests/golden/config-4.9.8/consumerOffset.json");
const JAVA_DELAY_OFFSETS: &[u8] = include_bytes!("../../../tests/golden/config-4.9.8/delayOffset.json");

/// The lines of a file in one order, without the commas that only the last of a block lacks, and without the fields
/// that 5.x adds: Java writes maps in hash order.
fn lines(text: &[u8]) -> Vec<String> {
    const OF_5X: [&str; 6] = [
        "\"stateVersion\"",
        "\"attributes\":{}",
        "\"consumeMessageOrderly\":false",
        "\"consumeTimeoutMinute\":15",
        "\"groupSysFlag\":0",
        "\"forbiddenTable\":{}",
    ];
    let policy = "\t\t\t\"groupRetryPolicy\":{\n\t\t\t\t\"type\":\"CUSTOMIZED\"\n\t\t\t},\n";
    let text = std::str::from_utf8(text).expect("text").replace(policy, "");
    let mut lines: Vec<String> = text
        .lines()
        .filter(|line| !OF_5X.iter().any(|field| line.trim().starts_with(field)))
        .map(|line| line.trim_end_matches(',').to_owned())
        .collect();
    lines.sort();
    lines
}

fn without_version(text: Vec<u8>) -> String {
    let text = String::from_utf8(text).expect("text");
    let version = "\n\t\"dataVersion\":{\n\t\t\"counter\":0,\n\t\t\"stateVersion\":0,\n\t\t\"timestamp\":0\n\t},";
    assert!(text.contains(version));
    text.replace(version, "")
}

#[test]
fn the_topics_that_java_wrote_read_and_write_back() {
    let file = TopicsFile::decode(JAVA_TOPICS).expect("a good file");
    assert_eq!(file.data_version, DataVersion { state_version: 0, counter: 20, timestamp: Timestamp(1795976461976) });
    let topic = &file.topics["TopicC"];
    assert_eq!((topic.read_queue_nums, topic.write_queue_nums, topic.perm, topic.order), (2, 2, 6, true));
    assert_eq!(file.topics["TBW102"].perm, 7);
    assert_eq!(lines(&file.encode()), lines(JAVA_TOPICS));
    assert_eq!(TopicsFile::decode(&file.encode()), Ok(file));
}

#[test]
fn the_groups_that_java_wrote_read_and_write_back() {
    let file = SubscriptionGroupsFile::decode(JAVA_GROUPS).expect("a good file");
    assert_eq!(file.data_version.counter, 11);
    assert!(file.groups.contains_key(""), "a group without a name is in this file");
    let group = &file.groups["CG_N5"];
    assert!(!group.consume_broadcast_enable && !group.consume_from_min_enable && group.consume_enable);
    assert_eq!(lines(&file.encode()), lines(JAVA_GROUPS));
    assert_eq!(SubscriptionGroupsFile::decode(&file.encode()), Ok(file));
}

#[test]
fn the_offsets_that_java_wrote_read_and_write_back() {
    let file = ConsumerOffsetsFile::decode(JAVA_CONSUMER_OFFSETS).expect("a good file");
    assert_eq!(file.data_version, DataVersion::default());
    assert_eq!(file.table["TopicA@CG_A"], BTreeMap::from([(0, 19), (1, 9), (2, 3), (3, 3)]));
    assert_eq!(lines(without_version(file.encode()).as_bytes()), lines(JAVA_CONSUMER_OFFSETS));

    let file = DelayOffsetsFile::decode(JAVA_DELAY_OFFSETS).expect("a good file");
    assert_eq!(file.table, BTreeMap::from([(1, 3), (3, 3)]));
    assert_eq!(without_version(file.encode()).as_bytes(), JAVA_DELAY_OFFSETS);
}

#[test]
fn a_file_of_offsets_has_javas_bytes() {
    let file = ConsumerOffsetsFile {
        table: BTreeMap::from([("TopicTest@g".to_owned(), BTreeMap::from([(0, 5), (1, 3), (2, 4), (3, 5)]))]),
        data_version: DataVersion { state_version: 0, counter: 7, timestamp: Timestamp(1_700_000_000_000) },
    };
    let text = "{\n\t\"dataVersion\":{\n\t\t\"counter\":7,\n\t\t\"stateVersion\":0,\n\
                \t\t\"timestamp\":1700000000000\n\t},\n\
                \t\"offsetTable\":{\n\t\t\"TopicTest@g\":{0:5,1:3,2:4,3:5\n\t\t}\n\t}\n}";
    assert_eq!(String::from_utf8(file.encode()).expect("text"), text);
    assert_eq!(ConsumerOffsetsFile::decode(text.as_bytes()), Ok(file));
}

#[test]
fn a_topic_has_javas_compact_text() {
    let text = [
        r#"{"attributes":{},"order":false,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG","#,
        r#""topicName":"TopicTest","topicSysFlag":0,"writeQueueNums":4}"#,
    ]
    .concat();
    assert_eq!(TopicConfig::new("TopicTest", 4).to_json().to_string(), text);
    let read = TopicConfig::from_json(serde_json::from_str(&text).expect("JSON"));
    assert_eq!(read, Ok(TopicConfig::new("TopicTest", 4)));
}

#[test]
fn every_lenient_form_of_offsets_is_read() {
    let table = BTreeMap::from([
        ("T@g".to_owned(), BTreeMap::from([(0, 5), (1, 3), (2, 4), (3, 5)])),
        ("%RETRY%g@g".to_owned(), BTreeMap::from([(0, 20)])),
    ]);
    for text in [
        "{\"offsetTable\":{\"T@g\":{0:5,1:3,2:4,3:5\n\t\t},\"%RETRY%g@g\":{0:20\n\t\t}}}",
        "{\"offsetTable\":{\"T@g\":{\"0\":5,\"1\":\"3\",2:'4','3':5},\"%RETRY%g@g\":{0:20,},},}\n",
        "/* x */{offsetTable:{'T@g':{0:5,1:3,2:4,3:5},'%RETRY%g@g':{0:20}},dataVersion:{},unknown:[1]}",
    ] {
        let file = ConsumerOffsetsFile::decode(text.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(file.table, table, "{text}");
    }
}

#[test]
fn a_torn_or_empty_file_and_a_null_offset_are_errors() {
    for len in 1..JAVA_CONSUMER_OFFSETS.len() {
        let torn = ConsumerOffsetsFile::decode(&JAVA_CONSUMER_OFFSETS[..len]);
        assert!(
            matches!(torn, Err(ConfigFileError::Json(error)) if error.why == JsonFault::Truncated),
            "{len} bytes: {torn:?}"
        );
    }
    assert_eq!(ConsumerOffsetsFile::decode(b""), Err(ConfigFileError::Empty));
    assert_eq!(TopicsFile::decode(b" \n"), Err(ConfigFileError::Empty));
    let error = ConsumerOffsetsFile::decode(b"{offsetTable:{\"T@g\":{0:null}}}").expect_err("a null");
    assert_eq!(error.to_string(), "offsetTable.T@g.0: expected an integer");
}

#[test]
fn a_field_of_the_wrong_kind_is_named() {
    for (text, said) in [
        ("[]", "the file: expected an object"),
        ("{topicConfigTable:{T:{perm:'x'}}}", "topicConfigTable.T.perm: expected an integer of 32 bits"),
        ("{topicConfigTable:{T:{perm:2147483648}}}", "topicConfigTable.T.perm: expected an integer of 32 bits"),
        ("{topicConfigTable:{T:{order:1}}}", "topicConfigTable.T.order: expected true or false"),
        ("{topicConfigTable:{T:{attributes:{a:1}}}}", "topicConfigTable.T.attributes.a: expected a text"),
        (
            "{topicConfigTable:{T:{topicFilterType:'X'}}}",
            "topicConfigTable.T.topicFilterType: expected SINGLE_TAG or MULTI_TAG",
        ),
        ("{topicConfigTable:{T:5}}", "topicConfigTable.T: expected an object"),
        ("{dataVersion:{counter:[]}}", "dataVersion.counter: expected an integer"),
    ] {
        assert_eq!(TopicsFile::decode(text.as_bytes()).expect_err(text).to_string(), said);
    }
    assert_eq!(TopicConfig::from_json(json!({})).expect_err("no name").to_string(), "topic.topicName: expected a text");
    assert_eq!(GroupConfig::from_json(json!({})).expect_err("no name").to_string(), "group.groupName: expected a text");
}

#[test]
fn missing_fields_have_javas_defaults() {
    let file = TopicsFile::decode(b"{topicConfigTable:{T:{order:null}}}").expect("a good file");
    assert_eq!(file.topics["T"], TopicConfig::new("T", 16));
    assert_eq!(file.data_version, DataVersion::default());
    let file = SubscriptionGroupsFile::decode(b"{subscriptionGroupTable:{g:{}}}").expect("a good file");
    assert_eq!(file.groups["g"], GroupConfig::new("g"));
    assert_eq!(TopicsFile::decode(b"{}"), Ok(TopicsFile::default()));
    assert_eq!(SubscriptionGroupsFile::decode(b"{}"), Ok(SubscriptionGroupsFile::default()));
    assert_eq!(DelayOffsetsFile::decode(b"{}"), Ok(DelayOffsetsFile::default()));
}

#[test]
fn an_enum_may_be_given_by_its_ordinal() {
    let topic = TopicConfig::from_json(json!({"topicName": "T", "topicFilterType": 1})).expect("a topic");
    assert_eq!(topic.filter_type, TopicFilterType::MultiTag);
}

#[test]
fn unknown_fields_of_an_entry_are_written_back() {
    let topic = TopicConfig::from_json(json!({"topicName": "T", "later": {"a": [1]}})).expect("a topic");
    assert_eq!(topic.unknown, Map::from_iter([("later".to_owned(), json!({"a": [1]}))]));
    assert_eq!(TopicConfig::from_json(topic.to_json()), Ok(topic));
    let group = GroupConfig::from_json(json!({"groupName": "g", "zone": "x", "subscriptionDataSet": [{"topic": "T"}]}));
    let group = group.expect("a group");
    let names: Vec<String> = group.to_json().as_object().expect("an object").keys().cloned().collect();
    assert!(names.is_sorted() && names.contains(&"zone".to_owned()));
    assert_eq!(GroupConfig::from_json(group.to_json()), Ok(group));
}

#[test]
fn forbidden_topics_of_a_group_read_and_write_back() {
    let text = b"{forbiddenTable:{g:{T:3}}}";
    let file = SubscriptionGroupsFile::decode(text).expect("a good file");
    assert_eq!(file.forbidden["g"]["T"], 3);
    assert_eq!(SubscriptionGroupsFile::decode(&file.encode()), Ok(file));
}

#[test]
fn versions_compare_by_state_then_counter_then_time() {
    let version =
        |state_version, counter, timestamp| DataVersion { state_version, counter, timestamp: Timestamp(timestamp) };
    assert!(version(1, 0, 0) > version(0, 9, 9));
    assert!(version(0, 2, 0) > version(0, 1, 9));
    assert!(version(0, 1, 2) > version(0, 1, 1));
    assert_eq!(version(3, 1, 1).next(Timestamp(7)), version(3, 2, 7));
    assert_eq!(DataVersion::from_json(version(1, 2, 3).to_json()), Ok(version(1, 2, 3)));
}

#[test]
fn an_offset_key_is_topic_and_group() {
    assert_eq!(consumer_offset_key("%RETRY%g", "g"), "%RETRY%g@g");
    assert_eq!(split_consumer_offset_key("%RETRY%g@g"), Some(("%RETRY%g", "g")));
    assert_eq!(split_consumer_offset_key("T"), None);
    assert_eq!(split_consumer_offset_key("T@g@x"), None);
}

fn any_int_map() -> impl Strategy<Value = BTreeMap<i32, i64>> {
    prop::collection::btree_map(any::<i32>(), any::<i64>(), 0..5)
}

proptest! {
    #[test]
    fn tables_of_offsets_read_back(
        table in prop::collection::btree_map(any::<String>(), any_int_map(), 0..5),
        levels in any_int_map(),
        numbers: (i64, i64, i64),
    ) {
        let data_version =
            DataVersion { state_version: numbers.0, counter: numbers.1, timestamp: Timestamp(numbers.2) };
        let file = ConsumerOffsetsFile { table, data_version };
        prop_assert_eq!(ConsumerOffsetsFile::decode(&file.encode()), Ok(file));
        let file = DelayOffsetsFile { table: levels, data_version };
        prop_assert_eq!(DelayOffsetsFile::decode(&file.encode()), Ok(file));
    }

    #[test]
    fn topics_and_groups_read_back(
        name: String,
        numbers: (i32, i32, i32, i32),
        order: bool,
        attributes in prop::collection::btree_map(any::<String>(), any::<String>(), 0..3),
    ) {
        let topic = TopicConfig {
            write_queue_nums: numbers.1, perm: numbers.2, sys_flag: numbers.3, order,
            attributes: attributes.clone(), ..TopicConfig::new(name.clone(), numbers.0)
        };
        let file = TopicsFile { topics: BTreeMap::from([(name.clone(), topic)]), ..TopicsFile::default() };
        prop_assert_eq!(TopicsFile::decode(&file.encode()), Ok(file));
        let group = GroupConfig {
            retry_max_times: numbers.1, group_sys_flag: numbers.2, broker_id: i64::from(numbers.3),
            consume_enable: order, attributes, ..GroupConfig::new(name.clone())
        };
        let file = SubscriptionGroupsFile { groups: BTreeMap::from([(name, group)]), ..Default::default() };
        prop_assert_eq!(SubscriptionGroupsFile::decode(&file.encode()), Ok(file));
    }

    #[test]
    fn no_damage_to_a_file_makes_the_reader_panic(
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        for text in [JAVA_TOPICS, JAVA_GROUPS, JAVA_CONSUMER_OFFSETS, JAVA_DELAY_OFFSETS] {
            let mut text = text.to_vec();
            for (at, byte) in &flips {
                let at = at.index(text.len());
                text[at] = *byte;
            }
            let _ = TopicsFile::decode(&text);
            let _ = SubscriptionGroupsFile::decode(&text);
            let _ = ConsumerOffsetsFile::decode(&text);
            let _ = DelayOffsetsFile::decode(&text);
        }
    }

    #[test]
    fn a_value_of_any_kind_is_read_or_refused(value in prop_oneof![
        Just(Value::Null),
        any::<i64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
    ]) {
        for name in ["perm", "order", "topicFilterType", "attributes", "topicName"] {
            let _ = TopicConfig::from_json(json!({ name: value }));
        }
        for name in ["brokerId", "consumeEnable", "groupRetryPolicy", "subscriptionDataSet", "groupName"] {
            let _ = GroupConfig::from_json(json!({ name: value }));
        }
    }
}
