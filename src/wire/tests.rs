//! Whole frames: the golden vectors of remoting.md 9, its transport cases 8.1, and arbitrary bytes.

use bytes::BytesMut;
use proptest::prelude::*;

use super::code::{request, response};
use super::headers::{PullHeader, QueueHeader, SendHeader, TopicHeader};
use super::*;

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.chars().filter_map(|c| c.to_digit(16)).map(|digit| digit as u8).collect();
    digits.as_chunks::<2>().0.iter().map(|[high, low]| high << 4 | low).collect()
}

fn decode(frame: &[u8]) -> Result<Command<'_>, FrameError> {
    let bounds = first_frame(frame)?.expect("the frame is whole");
    assert_eq!(bounds.total_len, frame.len());
    Command::decode(frame, &bounds)
}

fn json_frame(header: &str, body: &[u8]) -> Vec<u8> {
    raw_frame(HeaderType::Json, header.as_bytes(), body)
}

fn raw_frame(header_type: HeaderType, header: &[u8], body: &[u8]) -> Vec<u8> {
    let prefix = frame::prefix(header_type, header.len(), body.len()).expect("the frame is short");
    [&prefix, header, body].concat()
}

fn ext_of<'c>(command: &'c Command<'_>) -> Vec<(&'c str, &'c str)> {
    command.ext.iter().collect()
}

// ---- golden vectors, remoting.md 9.1: requests

const A_ROUTE_BINARY: &str = "0000002a 01 000026  0069 00 0199 00000000 00000000 00000000 00000011
    0005 746f706963 00000006 546f70696341";

const B_ROUTE_JSON: &str = "00000084 00 000080
    7b22636f6465223a3130352c226578744669656c6473223a7b22746f706963223a22546f70696341227d2c22666c6167223a302c
    226c616e6775616765223a224a415641222c226f7061717565223a322c2273657269616c697a655479706543757272656e745250
    43223a224a534f4e222c2276657273696f6e223a3437397d";

const C_PULL_BINARY: &str =
    "000000bc010000b8000b0001df000000070000000000000000000000a30007717565756549640000000131000a6d61784d73674e
    756d730000000233320007737973466c61670000000132001473757370656e6454696d656f75744d696c6c697300000005313530
    3030000c636f6d6d69744f666673657400000001300005746f7069630000000154000b71756575654f6666736574000000013200
    0a73756256657273696f6e0000000133000d636f6e73756d657247726f75700000000147";

const D_MAX_OFFSET_CPP: &str =
    "00000078000000747b22636f6465223a33302c226578744669656c6473223a7b2271756575654964223a312c22746f706963223a
    22546f70696341227d2c22666c6167223a302c226c616e6775616765223a22435050222c226f7061717565223a352c2272656d61
    726b223a22222c2276657273696f6e223a36337d";

const E_PUSH_JSON: &str =
    "00000089000000857b22636f6465223a34302c226578744669656c6473223a7b22636f6e73756d657247726f7570223a2243475f
    41227d2c22666c6167223a322c226c616e6775616765223a224a415641222c226f7061717565223a312c2273657269616c697a65
    5479706543757272656e74525043223a224a534f4e222c2276657273696f6e223a3437397d";

#[test]
fn golden_a_and_b_a_route_request_reads_and_writes_the_same_in_both_header_types() {
    for (vector, header_type, version, opaque) in
        [(A_ROUTE_BINARY, HeaderType::Rocketmq, VERSION_4_9, 0), (B_ROUTE_JSON, HeaderType::Json, VERSION_5, 2)]
    {
        let frame = hex(vector);
        let command = decode(&frame).unwrap();
        assert_eq!((command.header_type, command.code), (header_type, request::GET_ROUTEINFO_BY_TOPIC));
        assert_eq!((command.language, command.version, command.opaque), (Language::Java, version, opaque));
        assert_eq!((command.flag, &command.remark, command.body), (0, &None, b"".as_slice()));
        assert!(!command.is_response() && !command.is_oneway());
        assert_eq!(TopicHeader::read(&command), Ok(TopicHeader { topic: "TopicA" }));
        let mut out = BytesMut::new();
        encode_request(&mut out, header_type, command.code, version, opaque, 0, &[("topic", "TopicA")], b"");
        assert_eq!(out, frame);
    }
}

#[test]
fn golden_c_a_binary_pull_gives_all_its_fields() {
    let frame = hex(C_PULL_BINARY);
    let command = decode(&frame).unwrap();
    assert_eq!((command.code, command.version, command.opaque), (request::PULL_MESSAGE, VERSION_5, 7));
    let expected = PullHeader {
        consumer_group: "G",
        topic: "T",
        queue_id: 1,
        queue_offset: 2,
        max_msg_nums: 32,
        sys_flag: PullHeader::SUSPEND,
        commit_offset: 0,
        suspend_timeout_ms: 15_000,
        subscription: None,
        sub_version: 3,
        expression_type: None,
        max_msg_bytes: None,
    };
    assert_eq!(PullHeader::read(&command), Ok(expected));
    let mut out = BytesMut::new();
    encode_request(&mut out, HeaderType::Rocketmq, 11, VERSION_5, 7, 0, &ext_of(&command), b"");
    assert_eq!(out, frame);
}

#[test]
fn golden_d_numbers_in_the_fields_of_a_cpp_client_are_read() {
    let frame = hex(D_MAX_OFFSET_CPP);
    let command = decode(&frame).unwrap();
    assert_eq!((command.code, command.opaque, command.version), (request::GET_MAX_OFFSET, 5, 63));
    assert_eq!((command.language, &command.remark), (Language::Cpp, &None));
    assert_eq!(QueueHeader::read(&command), Ok(QueueHeader { topic: "TopicA", queue_id: 1 }));
}

#[test]
fn golden_e_a_push_is_a_oneway_request() {
    let frame = hex(E_PUSH_JSON);
    assert!(decode(&frame).unwrap().is_oneway());
    let mut out = BytesMut::new();
    let ext = [("consumerGroup", "CG_A")];
    let code = request::NOTIFY_CONSUMER_IDS_CHANGED;
    encode_request(&mut out, HeaderType::Json, code, VERSION_5, 1, FLAG_ONEWAY, &ext, b"");
    assert_eq!(out, frame);
}

// ---- golden vectors, remoting.md 9.2: answers

const F_SEND_OK_JSON: &str =
    "000000bd000000b97b22636f6465223a302c226578744669656c6473223a7b226d73674964223a22374630303030303130303030
    3241394630303030303030303030303030303030222c2271756575654964223a2231222c2271756575654f6666736574223a2234
    32227d2c22666c6167223a312c226c616e6775616765223a224a415641222c226f7061717565223a372c2273657269616c697a65
    5479706543757272656e74525043223a224a534f4e222c2276657273696f6e223a3437397d";

const G_SEND_OK_BINARY: &str =
    "000000650100006100000001df0000000700000001000000000000004c000771756575654964000000013100056d736749640000
    00203746303030303031303030303241394630303030303030303030303030303030000b71756575654f66667365740000000234
    32";

const H_UNSUPPORTED_JSON: &str =
    "0000008f0000008b7b22636f6465223a332c22666c6167223a312c226c616e6775616765223a224a415641222c226f7061717565
    223a372c2272656d61726b223a22207265717565737420747970652039393939206e6f7420737570706f72746564222c22736572
    69616c697a655479706543757272656e74525043223a224a534f4e222c2276657273696f6e223a3437397d";

const I_UNSUPPORTED_BINARY: &str =
    "000000390100003500030001df000000090000000100000020207265717565737420747970652039393939206e6f742073757070
    6f7274656400000000";

const J_MAX_OFFSET_BINARY: &str =
    "000000260100002200000001df0000000900000001000000000000000d00066f66667365740000000138";

const K_PULL_NOT_FOUND_JSON: &str =
    "000000c3000000bf7b22636f6465223a31392c226578744669656c6473223a7b226d61784f6666736574223a2238222c226d696e
    4f6666736574223a2230222c226e657874426567696e4f6666736574223a2238222c2273756767657374576869636842726f6b65
    724964223a2230227d2c22666c6167223a312c226c616e6775616765223a224a415641222c226f7061717565223a372c22736572
    69616c697a655479706543757272656e74525043223a224a534f4e222c2276657273696f6e223a3437397d";

#[test]
fn golden_f_to_k_answers_are_written_byte_for_byte() {
    let (json, binary) = (HeaderType::Json, HeaderType::Rocketmq);
    const ID: (&str, &str) = ("msgId", "7F00000100002A9F0000000000000000");
    let unsupported = Some(" request type 9999 not supported");
    let pull = [("maxOffset", "8"), ("minOffset", "0"), ("nextBeginOffset", "8"), ("suggestWhichBrokerId", "0")];
    let sent_json = [ID, ("queueId", "1"), ("queueOffset", "42")];
    let sent_binary = [("queueId", "1"), ID, ("queueOffset", "42")];
    let not_supported = response::REQUEST_CODE_NOT_SUPPORTED;
    for (vector, header_type, code, opaque, remark, ext) in [
        (F_SEND_OK_JSON, json, response::SUCCESS, 7, None, &sent_json[..]),
        (G_SEND_OK_BINARY, binary, response::SUCCESS, 7, None, &sent_binary[..]),
        (H_UNSUPPORTED_JSON, json, not_supported, 7, unsupported, &[]),
        (I_UNSUPPORTED_BINARY, binary, not_supported, 9, unsupported, &[]),
        (J_MAX_OFFSET_BINARY, binary, response::SUCCESS, 9, None, &[("offset", "8")]),
        (K_PULL_NOT_FOUND_JSON, json, response::PULL_NOT_FOUND, 7, None, &pull),
    ] {
        let frame = hex(vector);
        let mut out = BytesMut::from(&b"earlier"[..]);
        encode_response(&mut out, header_type, code, VERSION_5, opaque, remark, ext, b"");
        assert_eq!(out, [b"earlier", &frame[..]].concat());

        let mut owned = BytesMut::new();
        let mut answer = Response { code, remark: remark.map(str::to_owned), ..Response::default() };
        for (name, value) in ext {
            answer = answer.with(*name, value);
        }
        answer.encode(&mut owned, header_type, opaque, VERSION_5);
        assert_eq!(owned, frame);

        let command = decode(&frame).unwrap();
        assert!(command.is_response());
        assert_eq!((command.code, command.opaque, command.remark.as_deref()), (code, opaque, remark));
        assert_eq!(ext_of(&command), ext);
    }
}

#[test]
fn a_head_written_alone_frames_the_body_that_follows() {
    for header_type in [HeaderType::Json, HeaderType::Rocketmq] {
        let mut whole = BytesMut::new();
        encode_response(&mut whole, header_type, 0, VERSION_5, 3, None, &[("a", "b")], b"records");
        let mut parts = BytesMut::new();
        begin_response(&mut parts, header_type, 0, VERSION_5, 3, None, &[("a", "b")], 7);
        parts.extend_from_slice(b"records");
        assert_eq!(whole, parts);
        assert_eq!(decode(&whole).unwrap().body, b"records");
    }
}

#[test]
fn an_answer_too_long_for_a_frame_becomes_an_error_that_fits() {
    for header_type in [HeaderType::Json, HeaderType::Rocketmq] {
        let body = vec![0; FRAME_LEN_MAX];
        let mut out = BytesMut::new();
        encode_response(&mut out, header_type, 0, VERSION_5, 3, None, &[("a", "b")], &body);
        let command = decode(&out).unwrap();
        assert_eq!((command.code, command.opaque), (response::SYSTEM_ERROR, 3));
        assert!(command.remark.is_some() && command.body.is_empty());
    }
}

#[test]
fn the_longest_frame_is_written_and_read() {
    let mut head = BytesMut::new();
    encode_response(&mut head, HeaderType::Json, 0, VERSION_5, 3, None, &[], b"");
    let body = vec![7; FRAME_LEN_MAX - head.len()];
    let mut out = BytesMut::new();
    encode_response(&mut out, HeaderType::Json, 0, VERSION_5, 3, None, &[], &body);
    assert_eq!((out.len(), decode(&out).unwrap().body.len()), (FRAME_LEN_MAX, body.len()));
}

// ---- transport cases, remoting.md 8.1 (1 to 3 and 6 to 8 are beside `first_frame`)

#[test]
fn case_4_a_json_header_cut_or_not_an_object_is_refused() {
    for header in ["", "{", r#"{"code":10,"extFields":{"a":"b"}"#, "[1]", "10", "null"] {
        assert!(matches!(decode(&json_frame(header, b"body")), Err(FrameError::BadJson { .. })), "{header}");
    }
}

#[test]
fn case_5_a_binary_header_whose_parts_exceed_it_is_refused() {
    let frame = hex(A_ROUTE_BINARY);
    let header = &frame[PREFIX_LEN..];
    for len in 0..header.len() {
        let cut = raw_frame(HeaderType::Rocketmq, &header[..len], b"body");
        assert!(matches!(decode(&cut), Err(FrameError::BadBinary { .. })), "{len}");
    }
    const REMARK_LEN_AT: usize = 13;
    const EXT_LEN_AT: usize = 17;
    const VALUE_LEN_AT: usize = 28;
    for at in [REMARK_LEN_AT, EXT_LEN_AT, VALUE_LEN_AT] {
        for length in [0x12_u32, 0x7fff_ffff, u32::MAX] {
            let mut header = header.to_vec();
            header[at..at + 4].copy_from_slice(&length.to_be_bytes());
            let frame = raw_frame(HeaderType::Rocketmq, &header, b"body");
            assert!(matches!(decode(&frame), Err(FrameError::BadBinary { .. })), "{at} {length}");
        }
    }
}

#[test]
fn case_12_unknown_languages_and_keys_are_served() {
    let frame = json_frame(r#"{"code":9999,"language":"FOO","opaque":1,"x":{"y":[{}]},"z":null}"#, b"");
    let command = decode(&frame).unwrap();
    assert_eq!((command.code, command.language), (9999, Language::Unknown));

    let mut frame = hex(A_ROUTE_BINARY);
    const LANGUAGE_AT: usize = PREFIX_LEN + 2;
    frame[LANGUAGE_AT] = 99;
    let command = decode(&frame).unwrap();
    assert_eq!((command.code, command.language, command.ext.get("topic")), (105, Language::Unknown, Some("TopicA")));
}

#[test]
fn case_13_numbers_booleans_and_null_are_field_values_too() {
    let frame = json_frame(
        r#"{"code":14,"extFields":{"consumerGroup":"G","queueId":3,"topic":"T","setZeroIfNotFound":false,"x":null}}"#,
        b"",
    );
    let command = decode(&frame).unwrap();
    let header = headers::QueryOffsetHeader::read(&command).unwrap();
    assert_eq!((header.queue_id, header.set_zero_if_not_found), (3, Some(false)));
    assert_eq!(command.ext.get("x"), None);
}

#[test]
fn case_14_a_code_above_32767_loses_its_high_bits_in_a_binary_header() {
    let mut out = BytesMut::new();
    encode_request(&mut out, HeaderType::Rocketmq, 200_050, VERSION_5, 1, 0, &[], b"");
    assert_eq!(decode(&out).unwrap().code, 3442);
}

#[test]
fn case_15_requests_in_one_segment_or_byte_by_byte_are_all_found() {
    let mut segment = BytesMut::new();
    for (opaque, header_type) in [(1, HeaderType::Json), (2, HeaderType::Rocketmq), (3, HeaderType::Json)] {
        encode_request(&mut segment, header_type, 30, VERSION_5, opaque, 0, &[("topic", "T")], b"body");
    }
    let mut received = Vec::new();
    let mut opaques = Vec::new();
    for byte in segment {
        received.push(byte);
        if let Some(bounds) = first_frame(&received).unwrap() {
            opaques.push(Command::decode(&received, &bounds).unwrap().opaque);
            received.drain(..bounds.total_len);
        }
    }
    assert_eq!((opaques, received.len()), (vec![1, 2, 3], 0));
}

#[test]
fn case_19_negative_opaques_come_back_as_they_were() {
    for header_type in [HeaderType::Json, HeaderType::Rocketmq] {
        for opaque in [-1, i32::MIN, i32::MAX] {
            let mut out = BytesMut::new();
            encode_request(&mut out, header_type, 30, VERSION_5, opaque, 0, &[], b"");
            assert_eq!(decode(&out).unwrap().opaque, opaque);
        }
    }
}

#[test]
fn flags_tell_answers_and_oneway_requests_apart_in_both_header_types() {
    for header_type in [HeaderType::Json, HeaderType::Rocketmq] {
        for (flag, is_response, is_oneway) in [(0, false, false), (1, true, false), (2, false, true), (3, true, true)] {
            let mut out = BytesMut::new();
            encode_request(&mut out, header_type, 9999, VERSION_5, 1, flag, &[], b"");
            let command = decode(&out).unwrap();
            assert_eq!((command.is_response(), command.is_oneway()), (is_response, is_oneway));
        }
    }
}

#[test]
fn an_empty_key_or_value_of_a_binary_header_counts_as_absent() {
    let mut out = BytesMut::new();
    let ext = [("topic", ""), ("", "x"), ("queueId", "1")];
    encode_request(&mut out, HeaderType::Rocketmq, 30, VERSION_5, 1, 0, &ext, b"");
    assert_eq!(ext_of(&decode(&out).unwrap()), [("queueId", "1")]);
}

#[test]
fn bytes_that_are_no_utf8_in_a_binary_header_are_replaced() {
    let mut out = BytesMut::new();
    encode_request(&mut out, HeaderType::Rocketmq, 10, VERSION_5, 1, 0, &[("topic", "T"), ("k", "##")], b"");
    let at = out.len() - 2;
    out[at..].copy_from_slice(&[0xc4, 0xe3]);
    assert_eq!(ext_of(&decode(&out).unwrap()), [("topic", "T"), ("k", "\u{fffd}\u{fffd}")]);
}

#[test]
fn texts_that_need_escapes_come_back_from_a_json_header() {
    let odd = "quote \" backslash \\ line\n\r\ttab \u{1}\u{2}\u{1f} 中文 😀 /";
    let mut out = BytesMut::new();
    encode_response(&mut out, HeaderType::Json, 1, VERSION_5, 1, Some(odd), &[(odd, odd), ("plain", "x")], b"");
    let command = decode(&out).unwrap();
    assert_eq!((command.remark.as_deref(), command.ext.get(odd)), (Some(odd), Some(odd)));
    let parsed: serde_json::Value = serde_json::from_slice(&out[PREFIX_LEN..]).unwrap();
    assert_eq!((&parsed["remark"], &parsed["extFields"][odd]), (&odd.into(), &odd.into()));
}

#[test]
fn a_header_of_very_many_fields_is_refused() {
    for header_type in [HeaderType::Json, HeaderType::Rocketmq] {
        for (count, fits) in [(command::EXT_COUNT_MAX, true), (command::EXT_COUNT_MAX + 1, false)] {
            let mut out = BytesMut::new();
            encode_request(&mut out, header_type, 10, VERSION_5, 1, 0, &vec![("k", "v"); count], b"");
            assert_eq!(decode(&out).is_ok(), fits);
        }
    }
}

// ---- real frames

/// Header of a 310 as Java clients write it; the fields are those of ../shared/golden/wire/mqadmin-cmds5.txt.gz.
const JAVA_SEND: &str = r#"{"code":310,"extFields":{"a":"1795975251502","b":"TopicB","c":"TBW102","d":"4","e":"2","f":"0","g":"1795975251848","h":"0","i":"KEYS\u0001KK\u0002UNIQ_KEY\u0001FD00000000000000000000000000000257E55FFD2B27940F9F880000\u0002WAIT\u0001true\u0002TAGS\u0001TT","j":"0","k":"false","m":"false","n":"broker-a"},"flag":0,"language":"JAVA","opaque":8,"serializeTypeCurrentRPC":"JSON","version":479}"#;

#[test]
fn a_send_of_a_java_client_is_read_from_its_frame() {
    let frame = json_frame(JAVA_SEND, b"helloB");
    let command = decode(&frame).unwrap();
    assert_eq!((command.code, command.opaque, command.body), (request::SEND_MESSAGE_V2, 8, b"helloB".as_slice()));
    let header = SendHeader::read(&command).unwrap();
    assert_eq!((header.producer_group, header.topic, header.queue_id), ("1795975251502", "TopicB", 2));
    let properties: Vec<_> = crate::types::properties::iter(header.properties).collect();
    let uniq_key = "FD00000000000000000000000000000257E55FFD2B27940F9F880000";
    assert_eq!(properties, [("KEYS", "KK"), ("UNIQ_KEY", uniq_key), ("WAIT", "true"), ("TAGS", "TT")]);
}

/// A send of the C++ 1.x library: numbers beside texts, booleans as digits.
const CPP_SEND: &str = r#"{"code":10,"extFields":{"AccessKey":"","OnsChannel":"ALIYUN","batch":"1","bornTimestamp":"1795975490081","defaultTopic":"TBW102","defaultTopicQueueNums":4,"flag":0,"producerGroup":"PG","properties":"WAIT\u0001true\u0002","queueId":1,"reconsumeTimes":0,"sysFlag":0,"topic":"TopicA","unitMode":"0"},"flag":0,"language":"CPP","opaque":3,"remark":"","version":63}"#;

#[test]
fn a_batch_of_the_cpp_library_is_read_from_its_frame() {
    let body = batch::encode(&[BatchEntry { flag: 0, body: b"1", properties: "TAGS\u{1}A" }]);
    let frame = json_frame(CPP_SEND, &body);
    let command = decode(&frame).unwrap();
    let header = SendHeader::read(&command).unwrap();
    assert_eq!((header.topic, header.queue_id, header.born_timestamp), ("TopicA", 1, 1_795_975_490_081));
    assert_eq!((header.batch, header.unit_mode, header.properties), (true, false, "WAIT\u{1}true\u{2}"));
}

// ---- arbitrary input

/// What any reader of a frame does, on whatever `buf` holds.
fn read_all(buf: &[u8]) {
    if let Ok(Some(bounds)) = first_frame(buf)
        && let Ok(command) = Command::decode(buf, &bounds)
    {
        _ = SendHeader::read(&command);
        _ = PullHeader::read(&command);
        _ = batch::entries(command.body);
        read_body(command.body);
    }
}

fn read_body(body: &[u8]) {
    _ = heartbeat::Heartbeat::decode(body);
    _ = client_config::ClientConfigCheck::decode(body);
    _ = cluster::ClusterInfo::decode(body);
    _ = lists::KvTable::decode(body);
    _ = lock::LockRequest::decode(body);
    _ = registration::BrokerRegistration::decode(body);
    _ = registration::BrokerRegistration::decode_compressed(body);
    _ = route::RouteData::decode(body);
}

fn any_ext() -> impl Strategy<Value = Vec<(String, String)>> {
    prop::collection::vec(("[a-zA-Z\"\\\\\u{1}é]{1,12}", "\\PC{1,60}|[ -~\u{0}-\u{1f}]{1,300}"), 0..30)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), binary: bool) {
        read_all(&bytes);
        let header_type = if binary { HeaderType::Rocketmq } else { HeaderType::Json };
        read_all(&raw_frame(header_type, &bytes, &bytes));
    }

    #[test]
    fn json_like_text_never_panics(text in r#"[{}\[\]",:\\u0-9a-f\u{80}-\u{900} ntr-]{0,200}"#) {
        read_all(&json_frame(&text, b""));
        read_all(&json_frame(&format!(r#"{{"code":1,"extFields":{{{text}"#), b""));
    }

    #[test]
    fn bodies_with_a_value_of_any_kind_anywhere_never_panic(
        key in prop::sample::select(vec![
            "clientID", "consumerDataSet", "producerDataSet", "brokerDatas", "queueDatas", "brokerAddrTable",
            "clusterAddrTable", "mqSet", "table", "topicConfigSerializeWrapper", "subscriptionData",
        ]),
        value in prop::sample::select(vec![
            "null", "7", "-1e400", "\"x\"", "[]", "{}", "[[]]", "[{}]", "[null]", "{\"a\":null}", "{\"a\":{}}",
            "{\"dataVersion\":[]}", "{\"topicConfigTable\":{\"T\":7}}",
        ]),
    ) {
        let names = r#""clientID":"c","clientId":"c","group":"G","consumerGroup":"G""#;
        read_body(format!(r#"{{{names},"{key}":{value}}}"#).as_bytes());
    }

    #[test]
    fn a_damaged_frame_never_panics(
        vector in prop::sample::select(vec![A_ROUTE_BINARY, B_ROUTE_JSON, C_PULL_BINARY, D_MAX_OFFSET_CPP]),
        at: prop::sample::Index,
        byte: u8,
    ) {
        let mut frame = hex(vector);
        let at = at.index(frame.len());
        frame[at] = byte;
        read_all(&frame);
    }

    #[test]
    fn requests_and_answers_survive_the_wire(
        ext in any_ext(), code in 0..=i32::from(i16::MAX), opaque: i32, remark in prop::option::of("\\PC{1,80}"),
        body in prop::collection::vec(any::<u8>(), 0..100), binary: bool,
    ) {
        let header_type = if binary { HeaderType::Rocketmq } else { HeaderType::Json };
        let pairs: Vec<(&str, &str)> = ext.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let mut out = BytesMut::new();
        encode_response(&mut out, header_type, code, VERSION_5, opaque, remark.as_deref(), &pairs, &body);
        let command = decode(&out).unwrap();
        prop_assert_eq!((command.header_type, command.code, command.opaque), (header_type, code, opaque));
        prop_assert_eq!((command.version, command.flag), (VERSION_5, FLAG_RESPONSE));
        prop_assert_eq!(command.remark.as_deref(), remark.as_deref());
        prop_assert_eq!(ext_of(&command), pairs);
        prop_assert_eq!(command.body, &body[..]);
    }

    #[test]
    fn json_headers_read_as_a_general_parser_reads_them(
        ext in any_ext(), code: i32, remark in "\\PC{1,80}", pretty: bool,
    ) {
        let table: serde_json::Map<String, serde_json::Value> =
            ext.iter().map(|(name, value)| (name.clone(), value.as_str().into())).collect();
        let header = serde_json::json!({"extFields": table, "code": code, "remark": remark});
        let text = if pretty { serde_json::to_string_pretty(&header) } else { serde_json::to_string(&header) }.unwrap();
        let frame = json_frame(&text, b"");
        let command = decode(&frame).unwrap();
        prop_assert_eq!((command.code, command.remark.as_deref()), (code, Some(remark.as_str())));
        for (name, value) in &table {
            prop_assert_eq!(command.ext.get(name), value.as_str());
        }
    }
}
