//! Header fields as real clients send them (../shared/golden/wire) and as they should not.

use std::borrow::Cow;

use super::*;
use crate::wire::batch::{self, BatchEntry};
use crate::wire::code::request;
use crate::wire::command::{ExtFields, Language};
use crate::wire::frame::HeaderType;

fn command<'a>(code: i32, ext: &[(&'a str, &'a str)]) -> Command<'a> {
    let mut fields = ExtFields::default();
    for (name, value) in ext {
        assert!(fields.push(Cow::Borrowed(name), Cow::Borrowed(value)));
    }
    Command {
        header_type: HeaderType::Json,
        code,
        language: Language::Java,
        version: 479,
        opaque: 1,
        flag: 0,
        remark: None,
        ext: fields,
        body: b"",
    }
}

/// `ext` with one field given another value, or left out.
fn changed<'a>(ext: &[(&'a str, &'a str)], name: &str, value: Option<&'a str>) -> Vec<(&'a str, &'a str)> {
    let replaced = |pair: &(&'a str, &'a str)| match value {
        _ if pair.0 != name => Some(*pair),
        Some(value) => Some((pair.0, value)),
        None => None,
    };
    ext.iter().filter_map(replaced).collect()
}

const PROPERTIES: &str = "KEYS\u{1}KK\u{2}UNIQ_KEY\u{1}FD00000000000000000000000000000257E55FFD2B27940F9F880000\u{2}WAIT\u{1}true\u{2}TAGS\u{1}TT";

/// What mqadmin 5.x sendMessage sent.
const SEND_V2: [(&str, &str); 13] = [
    ("a", "1795975251502"),
    ("b", "TopicB"),
    ("c", "TBW102"),
    ("d", "4"),
    ("e", "2"),
    ("f", "0"),
    ("g", "1795975251848"),
    ("h", "0"),
    ("i", PROPERTIES),
    ("j", "0"),
    ("k", "false"),
    ("m", "false"),
    ("n", "broker-a"),
];

/// The same message in the long form.
const SEND_V1: [(&str, &str); 13] = [
    ("producerGroup", "1795975251502"),
    ("topic", "TopicB"),
    ("defaultTopic", "TBW102"),
    ("defaultTopicQueueNums", "4"),
    ("queueId", "2"),
    ("sysFlag", "0"),
    ("bornTimestamp", "1795975251848"),
    ("flag", "0"),
    ("properties", PROPERTIES),
    ("reconsumeTimes", "0"),
    ("unitMode", "false"),
    ("batch", "false"),
    ("bname", "broker-a"),
];

const SENT: SendHeader<'static> = SendHeader {
    producer_group: "1795975251502",
    topic: "TopicB",
    default_topic: "TBW102",
    default_topic_queue_nums: 4,
    queue_id: 2,
    sys_flag: 0,
    born_timestamp: 1_795_975_251_848,
    flag: 0,
    properties: PROPERTIES,
    reconsume_times: 0,
    unit_mode: false,
    max_reconsume_times: None,
    batch: false,
};

#[test]
fn both_forms_of_a_send_header_read_alike() {
    for (code, ext) in
        [(request::SEND_MESSAGE, SEND_V1), (request::SEND_MESSAGE_V2, SEND_V2), (request::SEND_BATCH_MESSAGE, SEND_V2)]
    {
        assert_eq!(SendHeader::read(&command(code, &ext)), Ok(SENT));
    }
}

#[test]
fn optional_fields_of_a_send_are_read_when_they_are_there() {
    let mut ext = SEND_V2.to_vec();
    ext = changed(&ext, "j", Some("3"));
    ext = changed(&ext, "k", Some("TRUE"));
    ext = changed(&ext, "m", Some("true"));
    ext.push(("l", "16"));
    let command = command(request::SEND_MESSAGE_V2, &ext);
    let expected =
        SendHeader { reconsume_times: 3, unit_mode: true, max_reconsume_times: Some(16), batch: true, ..SENT };
    assert_eq!(SendHeader::read(&command), Ok(expected));
}

#[test]
fn a_send_without_its_optional_fields_has_their_defaults() {
    let ext: Vec<_> = SEND_V2[..8].to_vec();
    let command = command(request::SEND_MESSAGE_V2, &ext);
    assert_eq!(SendHeader::read(&command), Ok(SendHeader { properties: "", ..SENT }));
}

#[test]
fn a_send_lacking_a_field_or_with_a_wrong_number_is_answered_with_its_name() {
    let read = |code, ext: &[(&str, &str)]| SendHeader::read(&command(code, ext)).map(|_| ()).unwrap_err().to_string();
    assert_eq!(read(request::SEND_MESSAGE_V2, &[]), "the request lacks the field a");
    for name in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        let text = read(request::SEND_MESSAGE_V2, &changed(&SEND_V2, name, None));
        assert_eq!(text, format!("the request lacks the field {name}"));
    }
    let text = read(request::SEND_MESSAGE_V2, &changed(&SEND_V2, "e", Some("abc")));
    assert_eq!(text, "the field e must be a 32-bit number, not \"abc\"");
    let text = read(request::SEND_MESSAGE, &changed(&SEND_V1, "bornTimestamp", Some("9223372036854775808")));
    assert_eq!(text, "the field bornTimestamp must be a 64-bit number, not \"9223372036854775808\"");
    let long = "9".repeat(5000);
    assert!(read(request::SEND_MESSAGE, &changed(&SEND_V1, "queueId", Some(&long))).len() < 150);
}

#[test]
fn an_empty_topic_is_left_to_the_topic_check() {
    let ext = changed(&SEND_V2, "b", Some(""));
    assert_eq!(SendHeader::read(&command(request::SEND_MESSAGE_V2, &ext)).map(|header| header.topic), Ok(""));
}

#[test]
fn a_batch_marked_by_1_counts_from_cpp_in_the_long_form_with_a_batch_body() {
    let body = batch::encode(&[BatchEntry { flag: 0, body: b"1", properties: "" }]);
    let ext = changed(&SEND_V1, "batch", Some("1"));
    let is_batch = |code, ext: &[(&'static str, &'static str)], language, body: &[u8]| {
        let command = Command { language, body, ..command(code, ext) };
        SendHeader::read(&command).map(|header| header.batch)
    };
    assert_eq!(is_batch(request::SEND_MESSAGE, &ext, Language::Cpp, &body), Ok(true));
    assert_eq!(is_batch(request::SEND_MESSAGE, &ext, Language::Java, &body), Ok(false));
    assert_eq!(is_batch(request::SEND_MESSAGE, &ext, Language::Cpp, b"an ordinary body"), Ok(false));
    assert_eq!(is_batch(request::SEND_MESSAGE, &SEND_V1, Language::Cpp, &body), Ok(false));
    let short = changed(&SEND_V2, "m", Some("1"));
    assert_eq!(is_batch(request::SEND_MESSAGE_V2, &short, Language::Cpp, &body), Ok(false));
}

/// What a 5.x lite pull consumer sent.
const LITE_PULL: [(&str, &str); 14] = [
    ("queueId", "3"),
    ("commitOffset", "0"),
    ("subscription", "*"),
    ("suspendTimeoutMillis", "20000"),
    ("bname", "broker-a"),
    ("sysFlag", "22"),
    ("expressionType", "TAG"),
    ("ReqT", "0"),
    ("topic", "TopicA"),
    ("consumerGroup", "CG_LITE"),
    ("maxMsgNums", "10"),
    ("queueOffset", "0"),
    ("subVersion", "0"),
    ("maxMsgBytes", "2147483647"),
];

#[test]
fn a_lite_pull_gives_all_its_fields() {
    let expected = PullHeader {
        consumer_group: "CG_LITE",
        topic: "TopicA",
        queue_id: 3,
        queue_offset: 0,
        max_msg_nums: 10,
        sys_flag: PullHeader::LITE_PULL | PullHeader::SUBSCRIPTION | PullHeader::SUSPEND,
        commit_offset: 0,
        suspend_timeout_ms: 20_000,
        subscription: Some("*"),
        sub_version: 0,
        expression_type: Some("TAG"),
        max_msg_bytes: Some(i32::MAX),
    };
    assert_eq!(PullHeader::read(&command(request::LITE_PULL_MESSAGE, &LITE_PULL)), Ok(expected));
}

#[test]
fn a_pull_needs_every_field_but_the_filter_and_the_byte_limit() {
    let optional = ["subscription", "expressionType", "maxMsgBytes", "bname", "ReqT"];
    for (name, _) in LITE_PULL {
        for value in [None, Some("")] {
            let ext = changed(&LITE_PULL, name, value);
            let command = command(request::PULL_MESSAGE, &ext);
            let read = PullHeader::read(&command);
            if optional.contains(&name) {
                assert!(read.is_ok(), "{name}");
            } else {
                assert_eq!(read.unwrap_err().to_string(), format!("the request lacks the field {name}"));
            }
        }
    }
}

#[test]
fn a_query_by_key_reads_what_mqadmin_sends() {
    let ext = [
        ("_UNIQUE_KEY_QUERY", "false"),
        ("beginTimestamp", "0"),
        ("topic", "TopicA"),
        ("maxNum", "64"),
        ("endTimestamp", "9223372036854775807"),
        ("key", "K1"),
    ];
    let expected =
        QueryMessageHeader { topic: "TopicA", key: "K1", max_num: 64, begin: 0, end: i64::MAX, unique_key: false };
    assert_eq!(QueryMessageHeader::read(&command(request::QUERY_MESSAGE, &ext)), Ok(expected));
    let unique = changed(&ext, "_UNIQUE_KEY_QUERY", Some("true"));
    let command = command(request::QUERY_MESSAGE, &unique);
    assert_eq!(QueryMessageHeader::read(&command), Ok(QueryMessageHeader { unique_key: true, ..expected }));
}

#[test]
fn offsets_are_asked_for_and_stored_by_group_topic_and_queue() {
    let ext = [("queueId", "3"), ("bname", "broker-a"), ("topic", "TopicA"), ("consumerGroup", "CG_A")];
    let query = QueryOffsetHeader { group: "CG_A", topic: "TopicA", queue_id: 3, set_zero_if_not_found: None };
    assert_eq!(QueryOffsetHeader::read(&command(request::QUERY_CONSUMER_OFFSET, &ext)), Ok(query));
    let with_commit = [&ext[..], &[("commitOffset", "-1")]].concat();
    let update = UpdateOffsetHeader { group: "CG_A", topic: "TopicA", queue_id: 3, commit_offset: -1 };
    assert_eq!(UpdateOffsetHeader::read(&command(request::UPDATE_CONSUMER_OFFSET, &with_commit)), Ok(update));
    assert!(UpdateOffsetHeader::read(&command(request::UPDATE_CONSUMER_OFFSET, &ext)).is_err());
}

#[test]
fn a_search_by_time_takes_the_first_message_of_a_time_unless_told() {
    let ext = [("topic", "T"), ("queueId", "0"), ("timestamp", "1795975655746")];
    let expected = SearchOffsetHeader { topic: "T", queue_id: 0, timestamp: 1_795_975_655_746, upper: false };
    assert_eq!(SearchOffsetHeader::read(&command(request::SEARCH_OFFSET_BY_TIMESTAMP, &ext)), Ok(expected));
    for (boundary, upper) in [("lower", false), ("upper", true), ("UPPER", true)] {
        let ext = [&ext[..], &[("boundaryType", boundary)]].concat();
        let command = command(request::SEARCH_OFFSET_BY_TIMESTAMP, &ext);
        assert_eq!(SearchOffsetHeader::read(&command), Ok(SearchOffsetHeader { upper, ..expected }));
    }
}

#[test]
fn a_topic_is_made_by_what_mqadmin_sends() {
    let ext = [
        ("readQueueNums", "2"),
        ("perm", "6"),
        ("writeQueueNums", "4"),
        ("topicFilterType", "SINGLE_TAG"),
        ("topic", "TopicC"),
        ("defaultTopic", "TBW102"),
        ("topicSysFlag", "0"),
        ("order", "true"),
    ];
    let expected = CreateTopicHeader {
        topic: "TopicC",
        default_topic: Some("TBW102"),
        read_queues: 2,
        write_queues: 4,
        perm: 6,
        filter_type: Some("SINGLE_TAG"),
        sys_flag: 0,
        order: true,
        attributes: None,
    };
    assert_eq!(CreateTopicHeader::read(&command(request::UPDATE_AND_CREATE_TOPIC, &ext)), Ok(expected));
}

#[test]
fn an_empty_group_counts_as_none_when_a_client_leaves() {
    let ext = [("clientID", "26492-127.0.0.1@DEFAULT"), ("producerGroup", ""), ("consumerGroup", "CG")];
    let expected =
        UnregisterHeader { client_id: "26492-127.0.0.1@DEFAULT", producer_group: None, consumer_group: Some("CG") };
    assert_eq!(UnregisterHeader::read(&command(request::UNREGISTER_CLIENT, &ext)), Ok(expected));
}

#[test]
fn a_group_is_found_under_either_of_its_names() {
    for name in ["consumerGroup", "group"] {
        let ext = [(name, "G")];
        assert_eq!(GroupHeader::read(&command(38, &ext)), Ok(GroupHeader { group: "G" }));
    }
    assert_eq!(GroupHeader::read(&command(38, &[])), Err(FieldError::Missing { name: "consumerGroup" }));
}

#[test]
fn a_message_given_back_says_where_it_lies_and_when_to_try_again() {
    let ext = [
        ("offset", "1366"),
        ("group", "G"),
        ("delayLevel", "-1"),
        ("originMsgId", "7F00"),
        ("originTopic", "T"),
        ("unitMode", "false"),
        ("maxReconsumeTimes", "16"),
    ];
    let expected = SendBackHeader {
        offset: 1366,
        group: "G",
        delay_level: -1,
        origin_msg_id: Some("7F00"),
        origin_topic: Some("T"),
        unit_mode: false,
        max_reconsume_times: Some(16),
    };
    assert_eq!(SendBackHeader::read(&command(request::CONSUMER_SEND_MSG_BACK, &ext)), Ok(expected));
}

#[test]
fn a_broker_registers_with_what_a_java_broker_sends() {
    let ext = [
        ("brokerId", "0"),
        ("bodyCrc32", "1483043465"),
        ("clusterName", "DefaultCluster"),
        ("brokerAddr", "127.0.0.1:30911"),
        ("haServerAddr", "192.0.2.2:30912"),
        ("compressed", "false"),
        ("brokerName", "broker-a"),
    ];
    let expected = BrokerHeader {
        broker_name: "broker-a",
        broker_addr: "127.0.0.1:30911",
        cluster: "DefaultCluster",
        broker_id: 0,
        ha_server_addr: Some("192.0.2.2:30912"),
        body_crc: 1_483_043_465,
        compressed: false,
        heartbeat_timeout_ms: None,
        enable_acting_master: false,
    };
    assert_eq!(BrokerHeader::read(&command(request::REGISTER_BROKER, &ext)), Ok(expected));
}

#[test]
fn settings_of_a_name_server_go_by_namespace_and_key() {
    let ext = [("namespace", "ORDER_TOPIC_CONFIG"), ("value", "broker-a:2"), ("key", "TopicC")];
    let expected = KvHeader { namespace: "ORDER_TOPIC_CONFIG", key: "TopicC", value: Some("broker-a:2") };
    assert_eq!(KvHeader::read(&command(request::PUT_KV_CONFIG, &ext)), Ok(expected));
    let expected = NamespaceHeader { namespace: "ORDER_TOPIC_CONFIG" };
    assert_eq!(NamespaceHeader::read(&command(request::GET_KVLIST_BY_NAMESPACE, &ext)), Ok(expected));
    assert_eq!(ViewMessageHeader::read(&command(33, &[("offset", "0")])).map(|header| header.offset), Ok(0));
}

#[test]
fn booleans_are_true_for_true_in_any_case_and_for_nothing_else() {
    for (text, value) in
        [("true", true), ("TRUE", true), ("True", true), ("1", false), ("yes", false), ("false", false)]
    {
        let ext = [("x", text)];
        let command = command(1, &ext);
        assert_eq!((command.ext.bool("x"), command.ext.opt_bool("x")), (Ok(value), Some(value)), "{text}");
    }
    let command = command(1, &[("x", "")]);
    assert_eq!((command.ext.bool("x"), command.ext.opt_bool("x")), (Err(FieldError::Missing { name: "x" }), None));
}

#[test]
fn of_a_field_given_twice_the_last_counts() {
    let command = command(1, &[("x", "1"), ("x", "2")]);
    assert_eq!((command.ext.int("x"), command.ext.long("x")), (Ok(2), Ok(2)));
}
