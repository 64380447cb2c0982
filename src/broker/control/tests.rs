//! The control core as clients and shards see it. Numbers of rows are those of remoting.md 8.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;

use bytes::BytesMut;
use serde_json::{Value, json};

use super::*;
use crate::broker::{TagFilter, Topic};
use crate::format::config_files::{DataVersion, TopicConfig};
use crate::format::record::body_crc;
use crate::store::QueueView;
use crate::types::{QueueHandle, QueueKey, QueueOffset, ShardId, TagsCode};
use crate::wire::heartbeat::ConsumeType;
use crate::wire::{FLAG_ONEWAY, HeaderType, MessageQueue, VERSION_4_9, encode_request, first_frame};

const MINUTE_MS: i64 = 60_000;

/// Queues without files; those named in `cold` start with a record that is old.
#[derive(Clone, Default)]
struct TestQueues {
    made: Rc<RefCell<HashMap<QueueKey, Arc<QueueView>>>>,
    cold: Rc<RefCell<Vec<QueueKey>>>,
    count: Rc<Cell<u32>>,
}

impl QueueMaker for TestQueues {
    fn queue(&mut self, key: &QueueKey) -> Arc<QueueView> {
        let mut made = self.made.borrow_mut();
        let handle = QueueHandle(self.count.replace(self.count.get() + 1));
        Arc::clone(made.entry(key.clone()).or_insert_with(|| QueueView::new(key.clone(), handle)))
    }

    fn queues_of(&self, topic: &str) -> Vec<Arc<QueueView>> {
        self.made.borrow().values().filter(|queue| *queue.key().topic == *topic).cloned().collect()
    }

    fn retire(&mut self, topic: &str) {
        self.made.borrow_mut().retain(|key, _| *key.topic != *topic);
    }

    fn starts_in_memory(&self, queue: &Arc<QueueView>) -> bool {
        !self.cold.borrow().contains(queue.key())
    }
}

struct Bench {
    control: Control,
    directory: SharedDirectory,
    queues: TestQueues,
    header_type: HeaderType,
    now: Timestamp,
}

fn settings(profile: Profile) -> ControlSettings {
    ControlSettings {
        profile,
        broker_name: "broker-a".into(),
        cluster: "DefaultCluster".into(),
        broker_address: "127.0.0.1:30911".into(),
        ha_address: "127.0.0.1:30912".into(),
        default_topic_queue_nums: 8,
        auto_create_topic: true,
        auto_create_group: true,
        trace_topic: false,
    }
}

fn conn(seq: u64) -> ConnId {
    ConnId { shard: ShardId(0), seq }
}

impl Bench {
    fn with(settings: ControlSettings, loaded: LoadedTables) -> Bench {
        let directory = SharedDirectory::default();
        let queues = TestQueues::default();
        let control = Control::new(settings, loaded, Box::new(queues.clone()), Arc::clone(&directory));
        Bench { control, directory, queues, header_type: HeaderType::Json, now: Timestamp(1_795_975_000_000) }
    }

    fn new(profile: Profile) -> Bench {
        Bench::with(settings(profile), LoadedTables::default())
    }

    fn pass_ms(&mut self, ms: i64) {
        self.now = self.now.plus_ms(ms);
    }

    /// Sends a request through the bytes of a frame, and saves what it changed.
    fn ask(&mut self, from: u64, code: i32, ext: &[(&str, &str)], body: &[u8]) -> Outcome {
        let outcome = self.ask_unsaved(from, code, ext, body);
        self.save();
        outcome
    }

    /// As the node does it once the files are written.
    fn save(&mut self) {
        let topics = self.control.topics();
        self.control.show(topics);
    }

    fn ask_unsaved(&mut self, from: u64, code: i32, ext: &[(&str, &str)], body: &[u8]) -> Outcome {
        let mut frame = BytesMut::new();
        encode_request(&mut frame, self.header_type, code, VERSION_4_9, 7, 0, ext, body);
        let bounds = first_frame(&frame).unwrap().unwrap();
        let command = Command::decode(&frame, &bounds).unwrap();
        let remote = SocketAddr::from(([127, 0, 0, 1], 40_000));
        self.control.handle(self.now, &Caller { conn: conn(from), remote }, &command)
    }

    fn code_of(&mut self, code: i32, ext: &[(&str, &str)]) -> i32 {
        self.ask(1, code, ext, b"").response.code
    }

    fn body_of(&mut self, code: i32, ext: &[(&str, &str)]) -> String {
        let response = self.ask(1, code, ext, b"").response;
        assert_eq!(response.code, response::SUCCESS, "{:?}", response.remark);
        String::from_utf8(response.body.to_vec()).unwrap()
    }

    fn create_topic(&mut self, topic: &str, queues: i32) -> Outcome {
        self.create_topic_with(topic, queues, &[])
    }

    fn create_topic_with(&mut self, topic: &str, queues: i32, more: &[(&str, &str)]) -> Outcome {
        let queues = queues.to_string();
        let mut ext = vec![
            ("topic", topic),
            ("defaultTopic", "TBW102"),
            ("readQueueNums", queues.as_str()),
            ("writeQueueNums", queues.as_str()),
            ("perm", "6"),
            ("topicFilterType", "SINGLE_TAG"),
            ("topicSysFlag", "0"),
            ("order", "false"),
        ];
        ext.retain(|(name, _)| more.iter().all(|(other, _)| name != other));
        ext.extend(more);
        self.ask(1, 17, &ext, b"")
    }

    fn beat(&mut self, from: u64, client: &str, group: &str, topics: &[&str]) -> Outcome {
        self.beat_as(from, client, group, "CLUSTERING", &topics.iter().map(|t| (*t, "*", 1)).collect::<Vec<_>>())
    }

    fn beat_as(&mut self, from: u64, client: &str, group: &str, model: &str, wanted: &[(&str, &str, i64)]) -> Outcome {
        let wanted: Vec<Value> = wanted
            .iter()
            .map(|(topic, expression, version)| {
                json!({"classFilterMode": false, "codeSet": [0, 0], "expressionType": "TAG", "subString": expression,
                    "subVersion": version, "tagsSet": [], "topic": topic})
            })
            .collect();
        let body = json!({
            "clientID": client,
            "consumerDataSet": [{"consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "consumeType": "CONSUME_PASSIVELY",
                "groupName": group, "messageModel": model, "subscriptionDataSet": wanted, "unitMode": false}],
            "producerDataSet": [{"groupName": "CLIENT_INNER_PRODUCER"}],
        });
        let outcome = self.ask(from, 34, &[], body.to_string().as_bytes());
        assert_eq!(outcome.response.code, response::SUCCESS, "{:?}", outcome.response.remark);
        outcome
    }

    fn members(&mut self, group: &str) -> Vec<String> {
        let response = self.ask(1, 38, &[("consumerGroup", group)], b"").response;
        match response.code {
            response::SUCCESS => ConsumerList::decode(&response.body).unwrap().client_ids,
            _ => Vec::new(),
        }
    }

    fn topic(&mut self, topic: &str) -> Arc<Topic> {
        self.save();
        Arc::clone(self.directory.load().topics.get(topic).unwrap_or_else(|| panic!("{topic} is published")))
    }

    fn lock_request(&mut self, code: i32, client: &str, queue_ids: &[i32]) -> Vec<i32> {
        let queue = |queue_id| MessageQueue { topic: "T".into(), broker_name: "broker-a".into(), queue_id };
        let request = LockRequest {
            client_id: client.into(),
            group: "G".into(),
            queues: queue_ids.iter().map(|id| queue(*id)).collect(),
            only_this_broker: false,
        };
        let response = self.ask(1, code, &[], &request.encode()).response;
        assert_eq!(response.code, response::SUCCESS);
        if code == 42 {
            return Vec::new();
        }
        LockResponse::decode(&response.body).unwrap().locked.into_iter().map(|queue| queue.queue_id).collect()
    }
}

/// Every case with requests in both header types.
fn in_both_header_types(profile: Profile, case: impl Fn(&mut Bench)) {
    for header_type in [HeaderType::Json, HeaderType::Rocketmq] {
        let mut bench = Bench::new(profile);
        bench.header_type = header_type;
        case(&mut bench);
    }
}

fn told(pushes: &[Push]) -> Vec<u64> {
    for push in pushes {
        assert_eq!(push.code, 40);
        assert_eq!(push.ext.len(), 1);
        assert_eq!(push.ext[0].0, "consumerGroup");
    }
    pushes.iter().map(|push| push.to.seq).collect()
}

// 8.1

#[test]
fn an_unknown_code_gets_code_3_with_javas_words() {
    in_both_header_types(Profile::V5, |bench| {
        let response = bench.ask(1, 9999, &[], b"").response;
        assert_eq!(response.code, response::REQUEST_CODE_NOT_SUPPORTED);
        assert_eq!(response.remark.as_deref(), Some(" request type 9999 not supported"));
    });
}

// Topics: rows 25 to 28, 78, 85

#[test]
fn row_25_topic_names_are_refused_by_profile() {
    for (profile, refusal) in [(Profile::V5, 29), (Profile::V4_9, 1)] {
        in_both_header_types(profile, |bench| {
            let longest = "t".repeat(127);
            let too_long = "t".repeat(128);
            for (topic, code) in [("a b", refusal), (&*too_long, refusal), (&*longest, 0), ("a.b", refusal)] {
                assert_eq!(bench.create_topic(topic, 4).response.code, code, "{topic:?}");
            }
            assert!(bench.control.ensure_topic_for_send(bench.now, &too_long, "TBW102", 4, false).is_err());
        });
        let mut bench = Bench::new(profile);
        // A binary header has no empty texts.
        assert_eq!(bench.create_topic("", 4).response.code, refusal);
        assert_eq!(bench.create_topic("  ", 4).response.code, refusal);
    }
}

#[test]
fn row_26_topics_that_clients_may_not_send_to_are_known() {
    for topic in ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "SELF_TEST_TOPIC"] {
        assert!(!names::is_sendable(topic), "{topic}");
    }
    for topic in ["TopicA", "TBW102", "BenchmarkTest", "RMQ_SYS_TRACE_TOPIC", "%RETRY%G"] {
        assert!(names::is_sendable(topic), "{topic}");
    }
}

#[test]
fn row_27_a_new_topic_has_the_smaller_of_the_wanted_and_the_templates_queues() {
    let mut bench = Bench::new(Profile::V5);
    for (topic, template, wanted, queues) in [
        ("D4", "TBW102", 4, 4),
        ("D100", "TBW102", 100, 8),
        ("C100", "DefaultCluster", 100, 16),
        ("B4", "broker-a", 4, 1),
        ("D-1", "TBW102", -1, 0),
    ] {
        let made = bench.control.ensure_topic_for_send(bench.now, topic, template, wanted, false);
        assert_eq!(made, Ok(Dirty::TOPICS), "{topic}");
        let found = bench.topic(topic);
        let config = &found.config;
        assert_eq!((config.read_queue_nums, config.write_queue_nums, config.perm), (queues, queues, 6), "{topic}");
        assert_eq!(found.queues.len(), queues as usize);
        assert_eq!(
            bench.control.ensure_topic_for_send(bench.now, topic, template, wanted, false),
            Ok(Dirty::default())
        );
    }
    bench.control.ensure_topic_for_send(bench.now, "UNIT", "TBW102", 4, true).unwrap();
    assert_eq!(bench.topic("UNIT").config.sys_flag, 1);
}

#[test]
fn row_28_without_a_template_no_topic_is_made() {
    let mut bench = Bench::new(Profile::V5);
    bench.create_topic("PLAIN", 4);
    for template in ["NoSuchTopic", "PLAIN", ""] {
        let refused = bench.control.ensure_topic_for_send(bench.now, "NEW", template, 4, false);
        assert_eq!(refused, Err(NoTopic::NoTemplate { topic: "NEW".into() }));
        assert!(refused.unwrap_err().to_string().contains("NEW"));
    }
    assert_eq!(bench.code_of(105, &[("topic", "NEW")]), 17);
}

#[test]
fn a_send_to_a_retry_topic_needs_no_template() {
    let mut bench = Bench::new(Profile::V5);
    let made = bench.control.ensure_topic_for_send(bench.now, "%RETRY%G", "TBW102", 4, false);
    assert_eq!(made, Ok(Dirty::TOPICS));
    assert_eq!((bench.topic("%RETRY%G").queues.len(), bench.topic("%RETRY%G").config.perm), (1, 6));
}

#[test]
fn with_auto_create_off_the_template_has_no_route_and_sends_make_nothing() {
    let topics =
        TopicsFile { topics: [("TBW102".into(), TopicConfig::new("TBW102", 8))].into(), ..TopicsFile::default() };
    let settings = ControlSettings { auto_create_topic: false, auto_create_group: false, ..settings(Profile::V5) };
    let mut bench = Bench::with(settings, LoadedTables { topics, ..LoadedTables::default() });
    assert_eq!(bench.code_of(105, &[("topic", "TBW102")]), 17);
    let refused = bench.control.ensure_topic_for_send(bench.now, "NEW", "DefaultCluster", 4, false);
    assert_eq!(refused, Err(NoTopic::AutoCreateOff { topic: "NEW".into() }));
    assert!(matches!(bench.control.ensure_group(bench.now, "G"), Err(NoGroup::AutoCreateOff { .. })));
    let outcome = bench.beat(1, "c", "G", &["T"]);
    assert_eq!((outcome.dirty, bench.members("G").len()), (Dirty::default(), 0));
}

#[test]
fn row_78_system_topics_and_impossible_settings_are_refused_by_profile() {
    for (profile, refusal) in [(Profile::V5, 29), (Profile::V4_9, 1)] {
        in_both_header_types(profile, |bench| {
            for topic in [
                "TBW102",
                "SCHEDULE_TOPIC_XXXX",
                "rmq_sys_x",
                "DefaultCluster",
                "broker-a",
                "DefaultCluster_REPLY_TOPIC",
            ] {
                let outcome = bench.create_topic(topic, 4);
                assert_eq!((outcome.response.code, outcome.dirty), (refusal, Dirty::default()), "{topic}");
            }
            for more in [
                ("readQueueNums", "-1"),
                ("writeQueueNums", "2147483647"),
                ("perm", "16"),
                ("perm", "-1"),
                ("topicFilterType", "NO_TAG"),
            ] {
                assert_eq!(bench.create_topic_with("T", 4, &[more]).response.code, refusal, "{more:?}");
            }
            for more in [("readQueueNums", "four"), ("attributes", "colour"), ("attributes", "+queue.type=BatchCQ")] {
                assert_eq!(bench.create_topic_with("T", 4, &[more]).response.code, 1, "{more:?}");
            }
            assert_eq!(bench.code_of(351, &[("topic", "T")]), 17);
        });
    }
}

#[test]
fn row_85_a_topic_is_shown_as_it_was_made_and_making_it_again_changes_nothing() {
    in_both_header_types(Profile::V5, |bench| {
        let more = [("attributes", "+message.type=FIFO"), ("order", "true"), ("perm", "4")];
        let outcome = bench.create_topic_with("T", 4, &more);
        assert_eq!((outcome.response.code, outcome.dirty), (0, Dirty::TOPICS));
        assert_eq!(
            bench.body_of(351, &[("topic", "T"), ("lo", "true")]),
            r#"{"attributes":{"message.type":"FIFO"},"order":true,"perm":4,"readQueueNums":4,"topicFilterType":"SINGLE_TAG","topicName":"T","topicSysFlag":0,"writeQueueNums":4}"#
        );
        assert_eq!(bench.code_of(351, &[("topic", "NONE")]), 17);
        let before = bench.control.encode_topics();
        let again = bench.create_topic_with("T", 4, &[("order", "true"), ("perm", "4")]);
        assert_eq!((again.response.code, again.dirty), (0, Dirty::default()));
        assert_eq!(bench.control.encode_topics(), before);
    });
}

#[test]
fn a_changed_topic_keeps_its_queues_and_the_larger_count_counts() {
    let mut bench = Bench::new(Profile::V5);
    bench.create_topic("T", 4);
    let before = bench.topic("T");
    bench.create_topic_with("T", 2, &[("readQueueNums", "6")]);
    let after = bench.topic("T");
    assert_eq!((after.queues.len(), after.config.write_queue_nums), (6, 2));
    for (queue_id, queue) in before.queues.iter().enumerate() {
        assert!(Arc::ptr_eq(queue, &after.queues[queue_id]));
        assert_eq!(queue.key(), &QueueKey::new("T", queue_id as u32));
    }
    bench.create_topic("T", 1);
    assert_eq!(bench.topic("T").queues.len(), 1);
    assert_eq!(before.queues.len(), 4, "who holds the old picture is not disturbed");
}

#[test]
fn the_topics_and_groups_of_a_broker_are_there_at_start() {
    let mut bench =
        Bench::with(ControlSettings { trace_topic: true, ..settings(Profile::V5) }, LoadedTables::default());
    for (topic, queues, perm) in [
        ("SELF_TEST_TOPIC", 1, 6),
        ("TBW102", 8, 7),
        ("BenchmarkTest", 1024, 6),
        ("DefaultCluster", 16, 7),
        ("broker-a", 1, 7),
        ("OFFSET_MOVED_EVENT", 1, 6),
        ("SCHEDULE_TOPIC_XXXX", 18, 6),
        ("RMQ_SYS_TRACE_TOPIC", 1, 6),
        ("DefaultCluster_REPLY_TOPIC", 1, 6),
        ("rmq_sys_REVIVE_LOG_DefaultCluster", 8, 6),
        ("rmq_sys_SYNC_BROKER_MEMBER_broker-a", 1, 1),
        ("RMQ_SYS_TRANS_HALF_TOPIC", 1, 6),
        ("RMQ_SYS_TRANS_OP_HALF_TOPIC", 1, 6),
        ("rmq_sys_wheel_timer", 1, 6),
    ] {
        let found = bench.topic(topic);
        assert_eq!((found.queues.len(), found.config.perm), (queues, perm), "{topic}");
        let route = crate::wire::route::RouteData::decode(bench.body_of(105, &[("topic", topic)]).as_bytes()).unwrap();
        assert_eq!((route.queues[0].read_queues, route.queues[0].perm), (queues as i32, perm), "{topic}");
    }
    assert_eq!(bench.directory.load().topics.len(), 14);
    for group in
        ["TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "CID_ONS-HTTP-PROXY", "CID_RMQ_SYS_TRANS"]
    {
        assert!(bench.directory.load().groups[group].consume_broadcast_enable, "{group}");
    }
    assert_eq!(bench.directory.load().groups.len(), 8);
}

#[test]
fn tables_of_another_broker_are_taken_over_and_written_back() {
    let topics = br#"{"dataVersion":{"counter":20,"timestamp":5},"topicConfigTable":{
        "TopicA":{"order":false,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG","topicName":"TopicA","topicSysFlag":0,"writeQueueNums":4},
        "SCHEDULE_TOPIC_XXXX":{"perm":6,"readQueueNums":2,"topicName":"SCHEDULE_TOPIC_XXXX","writeQueueNums":2},
        "TBW102":{"perm":7,"readQueueNums":3,"topicName":"TBW102","writeQueueNums":3},
        "../../etc":{"perm":6,"readQueueNums":1,"topicName":"../../etc","writeQueueNums":1},
        "HUGE":{"perm":6,"readQueueNums":2147483647,"topicName":"HUGE","writeQueueNums":-5}}}"#;
    let groups = br#"{"dataVersion":{"counter":11},"subscriptionGroupTable":{"":{"groupName":""},"CG_A":{"groupName":"CG_A","retryQueueNums":3}}}"#;
    let offsets = br#"{"offsetTable":{"TopicA@CG_A":{0:19,1:9,2:3,3:3},"NoSuch@CG_NEW3":{0:5}}}"#;
    let loaded = LoadedTables {
        topics: TopicsFile::decode(topics).unwrap(),
        groups: SubscriptionGroupsFile::decode(groups).unwrap(),
        consumer_offsets: ConsumerOffsetsFile::decode(offsets).unwrap(),
        kv_config: KvConfig::default(),
        births: Births::default(),
    };
    let mut bench = Bench::with(settings(Profile::V5), loaded);
    assert_eq!(bench.topic("TopicA").queues.len(), 4);
    assert_eq!(bench.topic("SCHEDULE_TOPIC_XXXX").queues.len(), 18);
    assert_eq!(bench.topic("TBW102").queues.len(), 3);
    assert_eq!(bench.topic("HUGE").queues.len(), 16_384);
    assert!(!bench.directory.load().topics.contains_key("../../etc"));
    assert!(bench.queues.made.borrow().keys().all(|key| !key.topic.contains('/')));

    bench.control.ensure_retry_topic(bench.now, "CG_A").unwrap();
    assert_eq!(bench.topic("%RETRY%CG_A").queues.len(), 3);
    let written = TopicsFile::decode(&bench.control.encode_topics()).unwrap();
    assert!(written.topics.contains_key("../../etc") && written.topics.contains_key("%RETRY%CG_A"));
    assert_eq!(written.data_version, DataVersion { state_version: 0, counter: 21, timestamp: bench.now });
    let written = SubscriptionGroupsFile::decode(&bench.control.encode_groups()).unwrap();
    assert!(written.groups.contains_key("") && written.groups.contains_key("TOOLS_CONSUMER"));
    assert_eq!(written.data_version.counter, 11);
    let written = ConsumerOffsetsFile::decode(&bench.control.encode_consumer_offsets()).unwrap();
    assert_eq!((written.table["NoSuch@CG_NEW3"][&0], written.table["TopicA@CG_A"][&1]), (5, 9));
    assert_eq!(bench.control.consumer_offset_updates(), 0);
}

#[test]
fn retry_and_dead_letter_topics_are_made_for_groups_that_exist() {
    let mut bench = Bench::new(Profile::V5);
    assert_eq!(bench.control.ensure_dlq_topic(bench.now, "G"), Err(NoTopic::NoGroup { group: "G".into() }));
    assert_eq!(bench.control.ensure_retry_topic(bench.now, "G"), Err(NoTopic::NoGroup { group: "G".into() }));
    assert_eq!(bench.control.ensure_group(bench.now, "G"), Ok(Dirty::GROUPS));
    assert_eq!(bench.control.ensure_group(bench.now, "G"), Ok(Dirty::default()));
    assert_eq!(bench.control.ensure_retry_topic(bench.now, "G"), Ok(Dirty::TOPICS));
    assert_eq!(bench.control.ensure_dlq_topic(bench.now, "G"), Ok(Dirty::TOPICS));
    assert_eq!(bench.control.ensure_dlq_topic(bench.now, "G"), Ok(Dirty::default()));
    for topic in ["%RETRY%G", "%DLQ%G"] {
        assert_eq!((bench.topic(topic).queues.len(), bench.topic(topic).config.perm), (1, 6));
    }
    for group in ["", " ", "a/b", &"g".repeat(121)] {
        assert!(matches!(bench.control.ensure_group(bench.now, group), Err(NoGroup::BadName(_))), "{group:?}");
    }
}

#[test]
fn a_group_is_shown_with_all_its_settings() {
    in_both_header_types(Profile::V5, |bench| {
        bench.control.ensure_group(bench.now, "G").unwrap();
        assert_eq!(
            bench.body_of(352, &[("group", "G")]),
            r#"{"attributes":{},"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,"consumeFromMinEnable":true,"consumeMessageOrderly":false,"consumeTimeoutMinute":15,"groupName":"G","groupRetryPolicy":{"type":"CUSTOMIZED"},"groupSysFlag":0,"notifyConsumerIdsChangedEnable":true,"retryMaxTimes":16,"retryQueueNums":1,"whichBrokerWhenConsumeSlowly":1}"#
        );
        assert_eq!(bench.code_of(352, &[("group", "NONE")]), 26);
        assert_eq!(bench.code_of(352, &[]), 1);
    });
}

// Offsets: rows 60 to 62

fn offset_request(bench: &mut Bench, more: &[(&str, &str)]) -> Response {
    let mut ext = vec![("consumerGroup", "G"), ("topic", "T"), ("queueId", "1")];
    ext.retain(|(name, _)| more.iter().all(|(other, _)| name != other));
    ext.extend(more);
    bench.ask(1, 14, &ext, b"").response
}

fn offset_of(response: &Response) -> (i32, Option<&str>) {
    (response.code, response.ext.iter().find(|(name, _)| name == "offset").map(|(_, value)| value.as_str()))
}

#[test]
fn row_60_a_new_group_starts_a_young_or_unknown_topic_at_0() {
    in_both_header_types(Profile::V5, |bench| {
        bench.create_topic("T", 4);
        assert_eq!(offset_of(&offset_request(bench, &[])), (0, Some("0")));
        assert_eq!(offset_of(&offset_request(bench, &[("topic", "NONE")])), (0, Some("0")));
        assert_eq!(offset_of(&offset_request(bench, &[("queueId", "99")])), (0, Some("0")));
        assert_eq!(offset_of(&offset_request(bench, &[("queueId", "-1")])), (0, Some("0")));

        let queue = Arc::clone(&bench.topic("T").queues[1]);
        queue.publish(QueueOffset(0), QueueOffset(100));
        assert_eq!(offset_of(&offset_request(bench, &[])), (0, Some("0")));
        bench.queues.cold.borrow_mut().push(queue.key().clone());
        assert_eq!(offset_of(&offset_request(bench, &[])), (22, None));
        bench.queues.cold.borrow_mut().clear();
        queue.publish(QueueOffset(40), QueueOffset(100));
        assert_eq!(offset_of(&offset_request(bench, &[])), (22, None));
        assert_eq!(offset_request(bench, &[("queueId", "x")]).code, 1);
    });
}

#[test]
fn row_61_a_client_may_ask_to_hear_that_there_is_no_offset() {
    for profile in [Profile::V5, Profile::V4_9] {
        in_both_header_types(profile, |bench| {
            bench.create_topic("T", 4);
            assert_eq!(offset_of(&offset_request(bench, &[("setZeroIfNotFound", "false")])), (22, None));
            assert_eq!(offset_of(&offset_request(bench, &[("setZeroIfNotFound", "true")])), (0, Some("0")));
            bench.control.commit_offset(bench.now, "G", "T", 1, 7);
            assert_eq!(offset_of(&offset_request(bench, &[("setZeroIfNotFound", "false")])), (0, Some("7")));
        });
    }
}

fn update_request(bench: &mut Bench, group: &str, topic: &str, queue_id: &str, offset: &str) -> i32 {
    let ext = [("consumerGroup", group), ("topic", topic), ("queueId", queue_id), ("commitOffset", offset)];
    bench.code_of(15, &ext)
}

#[test]
fn row_62_offsets_of_unknown_groups_and_topics_are_taken_by_profile_4_9_only() {
    for (profile, unknown_group, unknown_topic, invalid) in [(Profile::V5, 26, 17, 29), (Profile::V4_9, 0, 0, 1)] {
        in_both_header_types(profile, |bench| {
            bench.create_topic("T", 4);
            assert_eq!(update_request(bench, "G", "T", "1", "5"), unknown_group);
            bench.control.ensure_group(bench.now, "G").unwrap();
            assert_eq!(update_request(bench, "G", "NONE", "1", "5"), unknown_topic);
            assert_eq!(update_request(bench, "G", "T", "1", "9"), 0);
            assert_eq!(update_request(bench, "G", "T", "1", "5"), 0, "going back is how a reset is done");
            assert_eq!(offset_of(&offset_request(bench, &[])), (0, Some("5")));
            assert_eq!(update_request(bench, "G", "T", "-1", "5"), invalid);
            assert_eq!(update_request(bench, "G", "T", "1", "-1"), invalid);
            assert_eq!(update_request(bench, "G", "T", "1", "x"), invalid);
            if profile == Profile::V4_9 {
                assert_eq!(update_request(bench, "a@b", "T", "1", "5"), invalid);
            }
            assert_eq!(offset_of(&offset_request(bench, &[])), (0, Some("5")));
        });
    }
}

#[test]
fn consumer_offsets_are_written_with_a_version_that_moves_every_500_updates() {
    let mut bench = Bench::new(Profile::V5);
    bench.create_topic("T", 2);
    bench.control.commit_offset(bench.now, "G", "T", 1, -1);
    assert_eq!(bench.control.consumer_offset_updates(), 0);
    for offset in 0..499 {
        bench.control.commit_offset(bench.now, "G", "T", 1, offset);
    }
    let file = ConsumerOffsetsFile::decode(&bench.control.encode_consumer_offsets()).unwrap();
    assert_eq!((file.table["T@G"][&1], file.data_version.counter), (498, 0));
    bench.control.commit_offset(bench.now, "G", "T", 1, 499);
    let file = ConsumerOffsetsFile::decode(&bench.control.encode_consumer_offsets()).unwrap();
    assert_eq!((file.data_version.counter, file.data_version.timestamp), (1, bench.now));
    assert_eq!(bench.control.consumer_offset_updates(), 500);
}

// Members: rows 67 to 71, 91

#[test]
fn row_67_a_heartbeat_must_be_json_with_a_client_id() {
    in_both_header_types(Profile::V5, |bench| {
        for body in ["", "beat", "[]", "{}", r#"{"clientID":"x","consumerDataSet":[{}]}"#] {
            assert_eq!(bench.ask(1, 34, &[], body.as_bytes()).response.code, 1, "{body:?}");
        }
        let outcome = bench.ask(1, 34, &[], br#"{"clientID":"x@1"}"#);
        assert_eq!(
            outcome,
            Outcome { response: Response::ok(), pushes: vec![], dirty: Dirty::default(), upkeep: None, deletes: None }
        );
        let long = format!(r#"{{"clientID":"{}"}}"#, "x".repeat(1_025));
        assert_eq!(bench.ask(1, 34, &[], long.as_bytes()).response.code, 1);
    });
}

#[test]
fn row_68_heartbeats_of_the_cpp_client_are_understood_and_tags_are_hashed_from_their_text() {
    in_both_header_types(Profile::V5, |bench| {
        let body = concat!(
            r#"{"clientID":"26492-127.0.0.1@DEFAULT","consumerDataSet":[{"consumeFromWhere":0,"consumeType":1,"groupName":"CG_CPP","#,
            r#""messageModel":1,"subscriptionDataSet":[{"codeSet":[0,0],"subString":"TagA || TagB","subVersion":"1795975490081","#,
            r#""tagsSet":["TagA","TagB"],"topic":"TopicA"}]}]}"#,
            "\n"
        );
        let outcome = bench.ask(1, 34, &[], body.as_bytes());
        assert_eq!(outcome.response, Response::ok());
        let group = Arc::clone(&bench.directory.load().subscriptions["CG_CPP"]);
        assert_eq!((group.consume_type, group.message_model), (ConsumeType::Passively, MessageModel::Clustering));
        let subscription = &group.topics["TopicA"];
        assert_eq!(subscription.sub_version, 1_795_975_490_081);
        let Ok(Filter::Tags(TagFilter { all: false, codes })) = &subscription.filter else {
            panic!("{:?}", subscription.filter)
        };
        assert_eq!(codes.as_slice(), [2_598_919, 2_598_920]);
    });
}

#[test]
fn row_69_when_a_socket_is_killed_the_others_are_told_at_once() {
    in_both_header_types(Profile::V5, |bench| {
        assert_eq!(told(&bench.beat(1, "A", "G", &["T"]).pushes), [1]);
        assert_eq!(told(&bench.beat(2, "B", "G", &["T"]).pushes), [1, 2]);
        assert!(told(&bench.beat(2, "B", "G", &["T"]).pushes).is_empty());
        assert_eq!(bench.members("G"), ["A", "B"]);
        let pushes = bench.control.connection_closed(conn(1));
        assert_eq!(told(&pushes), [2]);
        assert_eq!(pushes[0].ext, [("consumerGroup".to_owned(), "G".to_owned())]);
        assert_eq!(bench.members("G"), ["B"]);
        assert_eq!(bench.control.connection_closed(conn(1)), []);
        assert_eq!(bench.control.connection_closed(conn(2)), []);
        assert_eq!(bench.members("G"), [""; 0]);
    });
}

#[test]
fn row_70_a_group_without_members_has_no_list() {
    in_both_header_types(Profile::V5, |bench| {
        let response = bench.ask(1, 38, &[("consumerGroup", "G")], b"").response;
        assert_eq!(response.code, 1);
        assert!(response.remark.unwrap().contains('G'));
        bench.beat(1, "A", "G", &["T"]);
        assert_eq!(bench.body_of(38, &[("consumerGroup", "G")]), r#"{"consumerIdList":["A"]}"#);
    });
}

#[test]
fn row_71_leaving_is_always_granted_and_told_to_those_left() {
    in_both_header_types(Profile::V5, |bench| {
        let leave = [("clientID", "A"), ("producerGroup", "P"), ("consumerGroup", "G")];
        assert_eq!(
            bench.ask(1, 35, &leave, b""),
            Outcome { response: Response::ok(), pushes: vec![], dirty: Dirty::default(), upkeep: None, deletes: None }
        );
        bench.beat(1, "A", "G", &["T"]);
        bench.beat(2, "B", "G", &["T"]);
        assert_eq!(told(&bench.ask(1, 35, &leave, b"").pushes), [2]);
        assert!(told(&bench.ask(1, 35, &leave, b"").pushes).is_empty());
        assert_eq!(bench.members("G"), ["B"]);
        assert_eq!(bench.ask(2, 35, &[("clientID", "B"), ("consumerGroup", "G")], b"").pushes, []);
        assert!(!bench.directory.load().subscriptions.contains_key("G"));
    });
}

#[test]
fn row_91_signature_fields_are_ignored() {
    in_both_header_types(Profile::V5, |bench| {
        let ext = [("topic", "TBW102"), ("AccessKey", "AK"), ("Signature", "UPzMmtpjuIrte35HPWSyfo1Y0/E=")];
        assert_eq!(bench.code_of(105, &ext), 0);
    });
}

#[test]
fn a_heartbeat_makes_the_group_and_its_retry_topic() {
    let mut bench = Bench::new(Profile::V5);
    bench.create_topic_with("ORDERED", 4, &[("order", "true")]);
    let outcome = bench.beat(1, "A", "G", &["T", "ORDERED"]);
    assert_eq!(outcome.dirty, Dirty::TOPICS | Dirty::GROUPS);
    let retry = bench.topic("%RETRY%G");
    assert_eq!((retry.queues.len(), retry.config.perm, retry.config.order), (1, 6, true));
    assert!(bench.directory.load().groups.contains_key("G"));
    assert_eq!(bench.beat(1, "A", "G", &["T", "ORDERED"]).dirty, Dirty::default());
    // What cannot be a group is left out, the rest is served.
    let outcome = bench.beat(1, "A", "a/../b", &["T"]);
    assert_eq!((outcome.dirty, outcome.pushes), (Dirty::default(), vec![]));
    assert!(!bench.directory.load().topics.contains_key("%RETRY%a/../b"));
}

#[test]
fn members_are_told_of_changed_topics_but_not_of_changed_expressions() {
    let mut bench = Bench::new(Profile::V5);
    let wanted = [("T", "*", 1), ("U", "*", 1)];
    bench.beat_as(1, "A", "G", "CLUSTERING", &wanted[..1]);
    assert_eq!(told(&bench.beat_as(1, "A", "G", "CLUSTERING", &wanted).pushes), [1]);
    assert!(told(&bench.beat_as(1, "A", "G", "CLUSTERING", &[("T", "a", 2), ("U", "*", 1)]).pushes).is_empty());
    let subscription = |bench: &Bench| Arc::clone(&bench.directory.load().subscriptions["G"].topics["T"]);
    assert_eq!((subscription(&bench).expression.as_str(), subscription(&bench).sub_version), ("a", 2));
    // An older expression, from a member that has not heard of the change, does not come back.
    bench.beat_as(1, "A", "G", "CLUSTERING", &[("T", "*", 1), ("U", "*", 1)]);
    assert_eq!(subscription(&bench).expression, "a");
    let Ok(Filter::Tags(filter)) = &subscription(&bench).filter else { panic!() };
    assert!(filter.matches(TagsCode(97)) && !filter.matches(TagsCode(98)));
    assert_eq!(told(&bench.beat_as(1, "A", "G", "CLUSTERING", &wanted[1..]).pushes), [1]);
    assert!(!bench.directory.load().subscriptions["G"].topics.contains_key("T"));
}

#[test]
fn broadcasting_groups_and_those_that_want_no_notices_get_none() {
    let groups =
        br#"{"subscriptionGroupTable":{"QUIET":{"groupName":"QUIET","notifyConsumerIdsChangedEnable":false}}}"#;
    let loaded = LoadedTables { groups: SubscriptionGroupsFile::decode(groups).unwrap(), ..LoadedTables::default() };
    let mut bench = Bench::with(settings(Profile::V5), loaded);
    for (group, model) in [("QUIET", "CLUSTERING"), ("B", "BROADCASTING")] {
        assert_eq!(bench.beat_as(1, "A", group, model, &[("T", "*", 1)]).pushes, []);
        assert_eq!(bench.beat_as(2, "B", group, model, &[("T", "*", 1)]).pushes, []);
    }
    assert_eq!(bench.control.connection_closed(conn(1)), []);
    assert_eq!(bench.members("B"), ["B"]);
}

#[test]
fn a_client_on_two_connections_is_listed_once() {
    let mut bench = Bench::new(Profile::V5);
    bench.beat(1, "A", "G", &["T"]);
    bench.beat(2, "A", "G", &["T"]);
    assert_eq!(bench.members("G"), ["A"]);
    assert_eq!(told(&bench.control.connection_closed(conn(1))), [2]);
    assert_eq!(bench.members("G"), ["A"]);
}

#[test]
fn a_member_silent_for_120_s_is_taken_out_and_its_connection_closed() {
    let mut bench = Bench::new(Profile::V5);
    bench.beat(1, "A", "G", &["T"]);
    bench.beat(2, "B", "G", &["T"]);
    bench.pass_ms(MINUTE_MS);
    bench.beat(2, "B", "G", &["T"]);
    bench.pass_ms(MINUTE_MS);
    assert_eq!(bench.control.scan_idle(bench.now), (vec![], vec![]));
    bench.pass_ms(1);
    let (to_close, pushes) = bench.control.scan_idle(bench.now);
    assert_eq!((to_close, told(&pushes)), (vec![conn(1)], vec![2]));
    assert_eq!(bench.members("G"), ["B"]);
    // A producer that was silent, too.
    bench.ask(3, 34, &[], br#"{"clientID":"P","producerDataSet":[{"groupName":"PG"}]}"#);
    bench.pass_ms(2 * MINUTE_MS + 1);
    assert_eq!(bench.control.scan_idle(bench.now), (vec![conn(2), conn(3)], vec![]));
    assert_eq!(bench.control.scan_idle(bench.now), (vec![], vec![]));
}

// Locks: rows 72, 73

#[test]
fn rows_72_and_73_a_lock_is_its_owners_until_it_expires_or_is_freed() {
    in_both_header_types(Profile::V5, |bench| {
        assert_eq!(bench.lock_request(41, "A", &[0, 1]), [0, 1]);
        assert!(bench.lock_request(41, "B", &[0]).is_empty());
        assert!(bench.directory.load().holds_locks("G", bench.now));
        bench.lock_request(42, "B", &[0]);
        assert!(bench.lock_request(41, "B", &[0]).is_empty());
        bench.lock_request(42, "A", &[0]);
        assert_eq!(bench.lock_request(41, "B", &[0, 1]), [0]);
        bench.pass_ms(MINUTE_MS + 1);
        assert!(!bench.directory.load().holds_locks("G", bench.now));
        assert_eq!(bench.lock_request(41, "B", &[1]), [1]);
        // Locks outlive connections.
        bench.control.connection_closed(conn(1));
        assert!(bench.lock_request(41, "A", &[1]).is_empty());
        bench.pass_ms(MINUTE_MS + 1);
        bench.control.scan_idle(bench.now);
        assert!(bench.directory.load().locked_until.is_empty());
        let body =
            br#"{"clientId":"A","consumerGroup":"G","mqSet":[{"brokerName":"broker-a","queueId":3,"topic":"T"}]}"#;
        let response = bench.ask(1, 41, &[], body).response;
        assert_eq!(response.body, r#"{"lockOKMQSet":[{"brokerName":"broker-a","queueId":3,"topic":"T"}]}"#);
        assert_eq!(bench.ask(1, 41, &[], b"lock").response.code, 1);
    });
}

#[test]
fn a_consumer_learns_before_it_starts_whether_its_filter_is_served() {
    in_both_header_types(Profile::V5, |bench| {
        let mut code_for = |expression_type: &str, expression: &str| {
            let body = json!({"clientId": "c", "group": "G", "namespace": null, "subscriptionData": {"codeSet": [],
                "expressionType": expression_type, "subString": expression, "subVersion": 1, "tagsSet": [], "topic": "T"}});
            bench.ask(1, 46, &[], body.to_string().as_bytes()).response.code
        };
        assert_eq!(code_for("TAG", "a || b"), 0);
        assert_eq!(code_for("SQL92", "a > 1"), 1);
        assert_eq!(code_for("XPATH", "a"), 23);
        assert_eq!(code_for("TAG", "||"), 23);
        assert_eq!(bench.code_of(46, &[]), 0);
        assert_eq!(bench.ask(1, 46, &[], b"{").response.code, 1);
    });
}

// Name server: rows 86 to 88

#[test]
fn rows_86_and_87_a_route_is_javas_byte_for_byte_for_every_client() {
    in_both_header_types(Profile::V5, |bench| {
        bench.create_topic("TopicA", 4);
        let route = |perm, queues| {
            format!(
                r#"{{"brokerDatas":[{{"brokerAddrs":{{"0":"127.0.0.1:30911"}},"brokerName":"broker-a","cluster":"DefaultCluster"}}],"filterServerTable":{{}},"queueDatas":[{{"brokerName":"broker-a","perm":{perm},"readQueueNums":{queues},"topicSysFlag":0,"writeQueueNums":{queues}}}]}}"#
            )
        };
        let body = bench.body_of(105, &[("topic", "TopicA")]);
        assert_eq!((body.len(), body.as_str()), (235, route(6, 4).as_str()));
        assert_eq!(bench.body_of(105, &[("topic", "TopicA"), ("acceptStandardJsonOnly", "true")]), route(6, 4));
        assert_eq!(bench.body_of(105, &[("topic", "TBW102")]), route(7, 8));
        let unknown = bench.ask(1, 105, &[("topic", "NONE")], b"").response;
        assert_eq!((unknown.code, unknown.remark.unwrap().contains("NONE")), (17, true));
        assert_eq!(bench.code_of(105, &[]), 1);
    });
}

#[test]
fn clusters_and_topics_are_listed() {
    in_both_header_types(Profile::V5, |bench| {
        bench.create_topic("TopicA", 4);
        assert_eq!(
            bench.body_of(106, &[]),
            r#"{"brokerAddrTable":{"broker-a":{"brokerAddrs":{"0":"127.0.0.1:30911"},"brokerName":"broker-a","cluster":"DefaultCluster"}},"clusterAddrTable":{"DefaultCluster":["broker-a"]}}"#
        );
        let list = TopicList::decode(bench.body_of(206, &[]).as_bytes()).unwrap();
        assert!(list.topics.contains(&"TopicA".to_owned()) && list.topics.contains(&"TBW102".to_owned()));
    });
}

/// Registers broker `name` with two topics.
fn register(bench: &mut Bench, from: u64, name: &str, id: &str, address: &str) -> Response {
    let body = br#"{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":1,"timestamp":2},"topicConfigTable":{"TopicA":{"order":false,"perm":6,"readQueueNums":2,"topicFilterType":"SINGLE_TAG","topicName":"TopicA","topicSysFlag":0,"writeQueueNums":2},"TopicX":{"perm":4,"readQueueNums":3,"topicName":"TopicX","writeQueueNums":1}}}}"#;
    let crc = body_crc(body).to_string();
    register_with(
        bench,
        from,
        &[("brokerName", name), ("brokerId", id), ("brokerAddr", address), ("bodyCrc32", &crc)],
        body,
    )
}

fn register_with(bench: &mut Bench, from: u64, ext: &[(&str, &str)], body: &[u8]) -> Response {
    let mut ext = ext.to_vec();
    ext.extend([("clusterName", "DefaultCluster"), ("haServerAddr", "10.0.0.2:10912")]);
    bench.ask(from, 103, &ext, body).response
}

#[test]
fn row_88_a_registration_is_checked_by_its_crc_and_may_be_compressed() {
    in_both_header_types(Profile::V5, |bench| {
        let ext = [("brokerName", "broker-b"), ("brokerAddr", "10.0.0.2:10911"), ("brokerId", "0"), ("bodyCrc32", "5")];
        let response = register_with(bench, 9, &ext, b"{}");
        assert_eq!((response.code, response.remark.as_deref()), (1, Some("crc32 not match")));

        let mut plain = Vec::new();
        let mut put = |bytes: &[u8]| {
            plain.extend((bytes.len() as u32).to_be_bytes());
            plain.extend(bytes);
        };
        put(br#"{"counter":0,"stateVersion":0,"timestamp":1}"#);
        plain.extend(2_u32.to_be_bytes());
        let mut put = |bytes: &[u8]| {
            plain.extend((bytes.len() as u32).to_be_bytes());
            plain.extend(bytes);
        };
        put(b"T 16 16 6 SINGLE_TAG {}");
        put(b"U 1 2 4 MULTI_TAG {}");
        put(b"[]");
        plain.extend(0_u32.to_be_bytes());
        let body = zlib_stored(&plain);
        let crc = body_crc(&body).to_string();
        let ext = [
            ("brokerName", "broker-b"),
            ("brokerAddr", "10.0.0.2:10911"),
            ("brokerId", "0"),
            ("compressed", "true"),
            ("bodyCrc32", &crc),
        ];
        assert_eq!(register_with(bench, 9, &ext, &body).code, 0);
        let body = bench.body_of(105, &[("topic", "U")]);
        assert!(body.contains(r#""readQueueNums":1,"topicSysFlag":0,"writeQueueNums":2"#), "{body}");
    });
}

/// A zlib stream of one stored block.
fn zlib_stored(plain: &[u8]) -> Vec<u8> {
    let len = u16::try_from(plain.len()).unwrap();
    let (a, b) = plain.iter().fold((1_u32, 0_u32), |(a, b), byte| {
        let a = (a + u32::from(*byte)) % 65_521;
        (a, (b + a) % 65_521)
    });
    let mut out = vec![0x78, 0x01, 0x01];
    out.extend(len.to_le_bytes());
    out.extend((!len).to_le_bytes());
    out.extend(plain);
    out.extend((b << 16 | a).to_be_bytes());
    out
}

#[test]
fn registered_brokers_stand_beside_this_node_until_they_leave() {
    in_both_header_types(Profile::V5, |bench| {
        bench.create_topic("TopicA", 4);
        let response = register(bench, 9, "broker-b", "0", "10.0.0.2:10911");
        assert_eq!((response.code, response.body.is_empty()), (0, true));
        assert_eq!(
            bench.body_of(105, &[("topic", "TopicA")]),
            concat!(
                r#"{"brokerDatas":[{"brokerAddrs":{"0":"127.0.0.1:30911"},"brokerName":"broker-a","cluster":"DefaultCluster"},"#,
                r#"{"brokerAddrs":{"0":"10.0.0.2:10911"},"brokerName":"broker-b","cluster":"DefaultCluster"}],"filterServerTable":{},"#,
                r#""queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4},"#,
                r#"{"brokerName":"broker-b","perm":6,"readQueueNums":2,"topicSysFlag":0,"writeQueueNums":2}]}"#
            )
        );
        assert!(bench.body_of(106, &[]).contains(r#""clusterAddrTable":{"DefaultCluster":["broker-b","broker-a"]}"#));
        assert!(TopicList::decode(bench.body_of(206, &[]).as_bytes()).unwrap().topics.contains(&"TopicX".to_owned()));
        let leave = |address| {
            [("brokerName", "broker-b"), ("brokerAddr", address), ("clusterName", "DefaultCluster"), ("brokerId", "0")]
        };
        assert_eq!(bench.code_of(104, &leave("10.0.0.3:10911")), 0);
        assert_eq!(bench.code_of(105, &[("topic", "TopicX")]), 0);
        assert_eq!(bench.code_of(104, &leave("10.0.0.2:10911")), 0);
        assert_eq!(bench.code_of(105, &[("topic", "TopicX")]), 17);
        assert_eq!(bench.code_of(104, &leave("10.0.0.2:10911")), 0);
    });
}

#[test]
fn a_slave_learns_where_its_master_is() {
    let mut bench = Bench::new(Profile::V5);
    let ext_of = |response: &Response, name: &str| {
        response.ext.iter().find(|(found, _)| found == name).map(|(_, value)| value.clone())
    };
    register(&mut bench, 9, "broker-b", "0", "10.0.0.2:10911");
    let response = register(&mut bench, 8, "broker-b", "1", "10.0.0.3:10911");
    assert_eq!(ext_of(&response, "masterAddr").as_deref(), Some("10.0.0.2:10911"));
    assert_eq!(ext_of(&response, "haServerAddr").as_deref(), Some("10.0.0.2:10912"));
    let response = register(&mut bench, 7, "broker-a", "1", "10.0.0.4:10911");
    assert_eq!(ext_of(&response, "masterAddr").as_deref(), Some("127.0.0.1:30911"));
    let body = bench.body_of(106, &[]);
    assert!(body.contains(r#""broker-a":{"brokerAddrs":{"0":"127.0.0.1:30911","1":"10.0.0.4:10911"}"#), "{body}");
    // The slave becomes the master: its old id goes.
    bench.control.connection_closed(conn(9));
    register(&mut bench, 8, "broker-b", "0", "10.0.0.3:10911");
    let body = bench.body_of(106, &[]);
    assert!(body.contains(r#""broker-b":{"brokerAddrs":{"0":"10.0.0.3:10911"}"#), "{body}");
}

#[test]
fn nobody_takes_this_nodes_place_and_a_change_needs_a_registration() {
    let mut bench = Bench::new(Profile::V5);
    assert_eq!(register(&mut bench, 9, "broker-a", "0", "10.0.0.2:10911").code, 1);
    assert_eq!(register(&mut bench, 9, "broker-a", "0", "127.0.0.1:30911").code, 0);
    assert_eq!(bench.code_of(105, &[("topic", "TopicX")]), 17);
    let one = br#"{"topicConfigSerializeWrapper":{"topicConfigTable":{"Y":{"perm":6,"readQueueNums":1,"topicName":"Y","writeQueueNums":1}}}}"#;
    let ext = [("brokerName", "broker-b"), ("brokerAddr", "10.0.0.2:10911"), ("brokerId", "0")];
    assert_eq!(register_with(&mut bench, 9, &ext, one).code, 1);
    register(&mut bench, 9, "broker-b", "0", "10.0.0.2:10911");
    assert_eq!(register_with(&mut bench, 9, &ext, one).code, 0);
    for topic in ["Y", "TopicX"] {
        assert_eq!(bench.code_of(105, &[("topic", topic)]), 0, "{topic}");
    }
    assert_eq!(register_with(&mut bench, 9, &ext, b"{}").code, 1);
}

#[test]
fn a_broker_is_forgotten_when_it_is_silent_or_its_connection_closes() {
    let mut bench = Bench::new(Profile::V5);
    register(&mut bench, 9, "broker-b", "0", "10.0.0.2:10911");
    let alive = [("brokerName", "broker-b"), ("brokerAddr", "10.0.0.2:10911"), ("clusterName", "DefaultCluster")];
    bench.pass_ms(2 * MINUTE_MS);
    assert_eq!(bench.code_of(904, &alive), 0);
    bench.pass_ms(2 * MINUTE_MS);
    assert_eq!(bench.control.scan_idle(bench.now), (vec![], vec![]));
    bench.pass_ms(1);
    assert_eq!(bench.control.scan_idle(bench.now), (vec![conn(9)], vec![]));
    assert_eq!(bench.code_of(105, &[("topic", "TopicX")]), 17);
    assert_eq!(bench.code_of(904, &alive), 0, "also for one that is not known");

    register(&mut bench, 9, "broker-b", "0", "10.0.0.2:10911");
    register(&mut bench, 10, "broker-b", "0", "10.0.0.2:10911");
    bench.control.connection_closed(conn(9));
    assert_eq!(bench.code_of(105, &[("topic", "TopicX")]), 0, "it has registered again on another connection");
    bench.control.connection_closed(conn(10));
    assert_eq!(bench.code_of(105, &[("topic", "TopicX")]), 17);
}

#[test]
fn settings_are_kept_by_namespace_and_told_to_brokers() {
    in_both_header_types(Profile::V5, |bench| {
        let order = [("namespace", "ORDER_TOPIC_CONFIG"), ("key", "TopicC")];
        assert_eq!(bench.code_of(101, &order), 22);
        assert_eq!(bench.code_of(219, &order[..1]), 22);
        let put = [order[0], order[1], ("value", "broker-a:2")];
        let outcome = bench.ask(1, 100, &put, b"");
        assert_eq!((outcome.response, outcome.dirty), (Response::ok(), Dirty::KV_CONFIG));
        assert_eq!(bench.ask(1, 100, &put, b"").dirty, Dirty::default());
        assert_eq!(bench.ask(1, 101, &order, b"").response, Response::ok().with("value", "broker-a:2"));
        let table = r#"{"table":{"TopicC":"broker-a:2"}}"#;
        assert_eq!(bench.body_of(219, &order[..1]), table);
        assert_eq!(register(bench, 9, "broker-b", "0", "10.0.0.2:10911").body, table);
        assert_eq!(
            KvConfig::decode(&bench.control.encode_kv_config()).unwrap().get("ORDER_TOPIC_CONFIG", "TopicC"),
            Some("broker-a:2")
        );
        assert_eq!(bench.ask(1, 102, &order, b"").dirty, Dirty::KV_CONFIG);
        assert_eq!(
            bench.ask(1, 102, &order, b""),
            Outcome { response: Response::ok(), pushes: vec![], dirty: Dirty::default(), upkeep: None, deletes: None }
        );
        assert_eq!(bench.code_of(100, &order), 1);
        assert_eq!(bench.code_of(101, &[("key", "k")]), 1);
    });
}

#[test]
fn outside_name_servers_are_told_in_a_form_that_we_read_ourselves() {
    let mut bench = Bench::new(Profile::V5);
    bench.create_topic("TopicA", 4);
    let request = bench.control.registration().unwrap();
    let text = String::from_utf8(request.body.clone()).unwrap();
    assert!(
        text.starts_with(r#"{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":1,"#),
        "{text}"
    );
    let told = BrokerRegistration::decode(&request.body).unwrap();
    assert_eq!((told.topics["TopicA"].read_queues, told.topics["TBW102"].perm), (4, 7));

    let mut frame = BytesMut::new();
    request.encode(&mut frame, 3, FLAG_ONEWAY);
    let command = Command::decode(&frame, &first_frame(&frame).unwrap().unwrap()).unwrap();
    assert!(command.is_oneway() && command.version == 479 && command.opaque == 3);
    let header = BrokerHeader::read(&command).unwrap();
    assert_eq!((header.broker_name, header.broker_addr, header.broker_id), ("broker-a", "127.0.0.1:30911", 0));
    assert_eq!((header.cluster, header.ha_server_addr), ("DefaultCluster", Some("127.0.0.1:30912")));
    assert_eq!(header.body_crc as u32, body_crc(command.body));

    let mut other = Bench::with(
        ControlSettings { broker_name: "broker-z".into(), ..settings(Profile::V5) },
        LoadedTables::default(),
    );
    let remote = SocketAddr::from(([127, 0, 0, 1], 40_000));
    let outcome = other.control.handle(other.now, &Caller { conn: conn(5), remote }, &command);
    assert_eq!(outcome.response.code, 0);
    assert!(other.body_of(105, &[("topic", "TopicA")]).contains(r#""0":"127.0.0.1:30911""#));

    let request = bench.control.unregistration();
    let mut frame = BytesMut::new();
    request.encode(&mut frame, 4, 0);
    let command = Command::decode(&frame, &first_frame(&frame).unwrap().unwrap()).unwrap();
    assert_eq!(other.control.handle(other.now, &Caller { conn: conn(5), remote }, &command).response.code, 0);
    assert_eq!(other.code_of(105, &[("topic", "TopicA")]), 17);
}

// Publishing

#[test]
fn the_directory_is_replaced_only_by_changes_and_shows_topics_only_once_they_are_saved() {
    let mut bench = Bench::new(Profile::V5);
    let before = bench.directory.load_full();
    let wanted = bench.control.ensure_topic_for_send(bench.now, "T", "TBW102", 4, false);
    assert_eq!(wanted, Ok(Dirty::TOPICS));
    assert_eq!(bench.control.unshown(), Dirty::TOPICS);
    assert!(!bench.directory.load().topics.contains_key("T"), "a crash would forget it");
    // Members are in no file, and are shown while topics wait.
    bench.ask_unsaved(
        1,
        41,
        &[],
        br#"{"clientId":"A","consumerGroup":"G","mqSet":[{"brokerName":"broker-a","queueId":0,"topic":"T"}]}"#,
    );
    assert!(bench.directory.load().holds_locks("G", bench.now));
    assert!(!bench.directory.load().topics.contains_key("T"));
    bench.save();
    assert_eq!(bench.control.unshown(), Dirty::default());
    let after = bench.directory.load_full();
    assert!(!before.topics.contains_key("T") && after.topics.contains_key("T"));
    assert!(Arc::ptr_eq(&before.groups, &after.groups), "tables that did not change are not copied");

    bench.beat(1, "A", "G", &["T"]);
    let settled = bench.directory.load_full();
    bench.beat(1, "A", "G", &["T"]);
    bench.lock_request(41, "A", &[0]);
    let locked = bench.directory.load_full();
    bench.lock_request(41, "A", &[0, 1]);
    bench.create_topic("T", 4);
    offset_request(&mut bench, &[]);
    update_request(&mut bench, "G", "T", "1", "5");
    bench.body_of(105, &[("topic", "T")]);
    assert!(Arc::ptr_eq(&locked, &bench.directory.load_full()));
    assert!(Arc::ptr_eq(&settled.subscriptions, &locked.subscriptions));
}

// Deleting topics: row 79

#[test]
fn row_79_a_topic_that_is_not_there_is_deleted_with_success_and_the_brokers_own_are_refused() {
    for (profile, refusal) in [(Profile::V5, 29), (Profile::V4_9, 1)] {
        in_both_header_types(profile, |bench| {
            bench.create_topic("T", 2);
            for topic in ["NoSuch", "a b", "%DLQ%G"] {
                let outcome = bench.ask(1, 215, &[("topic", topic)], b"");
                assert_eq!((outcome.response.code, outcome.deletes), (0, None), "{topic}");
            }
            let own = ["TBW102", "SCHEDULE_TOPIC_XXXX", "rmq_sys_x", "DefaultCluster", "broker-a"];
            for topic in own.into_iter().chain(["DefaultCluster_REPLY_TOPIC", "  "]) {
                let outcome = bench.ask(1, 215, &[("topic", topic)], b"");
                assert_eq!((outcome.response.code, outcome.deletes), (refusal, None), "{topic}");
            }
            let outcome = bench.ask(1, 215, &[("topic", "T")], b"");
            assert_eq!((outcome.response.code, outcome.deletes.as_deref()), (0, Some("T")));
        });
    }
}

#[test]
fn a_topic_that_is_deleted_goes_at_once_from_sight_and_from_disk_only_with_its_birth() {
    let mut bench = Bench::new(Profile::V5);
    bench.create_topic("T", 2);
    bench.create_topic("U", 1);
    bench.control.ensure_group(bench.now, "G").unwrap();
    for topic in ["T", "U"] {
        let ext = [("consumerGroup", "G"), ("topic", topic), ("queueId", "0"), ("commitOffset", "7")];
        assert_eq!(bench.code_of(15, &ext), 0);
    }
    let before = bench.topic("T");
    let saving = bench.control.topics();

    let queues = bench.control.begin_deletion("T").unwrap();
    assert_eq!(queues.len(), 2);
    let on_disk = |bench: &Bench| TopicsFile::decode(&bench.control.encode_topics()).unwrap();
    let sees = |bench: &Bench, topic: &str| bench.directory.load().topics.contains_key(topic);
    assert!(!sees(&bench, "T") && sees(&bench, "U"));
    // A save that was under way shows it no more.
    bench.control.show(saving);
    assert!(!sees(&bench, "T") && sees(&bench, "U"));
    assert!(on_disk(&bench).topics.contains_key("T"), "a crash now leaves it whole");
    assert_eq!(bench.code_of(105, &[("topic", "T")]), 17);
    assert_eq!(bench.code_of(351, &[("topic", "T")]), 17);
    assert_eq!(bench.create_topic("T", 2).response.code, 1);
    let wanted = bench.control.ensure_topic_for_send(bench.now, "T", "TBW102", 4, false);
    assert_eq!(wanted, Err(NoTopic::BeingDeleted { topic: "T".into() }));
    assert_eq!(
        bench.ask(1, 215, &[("topic", "T")], b"").deletes.as_deref(),
        Some("T"),
        "what failed can be asked again"
    );
    assert_eq!(bench.control.begin_deletion("T").unwrap().len(), 2);

    let version = on_disk(&bench).data_version.counter;
    bench.control.retired(bench.now, "T", PhyOffset(5000), PhyOffset(0));
    bench.control.commit_offset(bench.now, "G", "T", 0, 9);
    let births = bench.control.unsaved_births().expect("births to save");
    assert!(births.is_old("T", PhyOffset(4999)) && !births.is_old("T", PhyOffset(5000)));
    let text = String::from_utf8(births.encode()).unwrap();
    assert_eq!(text, format!(r#"{{"T":{{"birth":5000,"topics_version":{}}}}}"#, version + 1));
    let file = on_disk(&bench);
    assert!(!file.topics.contains_key("T") && file.topics.contains_key("U"));
    assert_eq!(file.data_version.counter, version + 1);
    let offsets = ConsumerOffsetsFile::decode(&bench.control.encode_consumer_offsets()).unwrap();
    assert_eq!(offsets.table.keys().collect::<Vec<_>>(), ["U@G"]);
    bench.control.births_saved(births);
    assert_eq!(bench.control.unsaved_births(), None);
    assert!(bench.directory.load().births.contains("T"));
    assert!(bench.control.ensure_topic_for_send(bench.now, "T", "TBW102", 4, false).is_err(), "its files are there");

    bench.control.retire_queues("T");
    bench.control.end_deletion("T");
    assert_eq!(bench.ask(1, 215, &[("topic", "T")], b"").deletes, None);
    assert_eq!(bench.create_topic("T", 2).response.code, 0);
    let after = bench.topic("T");
    let handles = |topic: &Topic| topic.queues.iter().map(|queue| queue.handle()).collect::<Vec<_>>();
    assert!(handles(&after).iter().all(|handle| !handles(&before).contains(handle)));
    let ext = [("consumerGroup", "G"), ("topic", "T"), ("queueId", "0")];
    let offset = bench.ask(1, 14, &ext, b"").response.ext;
    assert_eq!(offset, [("offset".into(), "0".to_owned())]);
}

#[test]
fn deleted_queues_are_counted_and_too_many_of_them_end_the_making_of_topics() {
    let mut bench = Bench::new(Profile::V5);
    bench.create_topic("T", 16);
    // Narrowed: all sixteen were made.
    bench.create_topic("T", 2);
    bench.control.begin_deletion("T").unwrap();
    bench.control.retired(bench.now, "T", PhyOffset(5000), PhyOffset(0));
    bench.control.retire_queues("T");
    bench.control.end_deletion("T");
    assert_eq!(bench.control.topics.gone_count, 16);
    bench.control.topics.gone_count = 4_000_000;
    let response = bench.create_topic("U", 1).response;
    assert_eq!(response.code, 1);
    assert!(response.remark.unwrap().contains("restart"));
}

/// A 4.9 broker takes offsets of topics that it does not know; those of a deleted one would be there before the next.
#[test]
fn consumers_of_a_deleted_topic_leave_no_offsets_behind() {
    let mut bench = Bench::new(Profile::V4_9);
    bench.create_topic("T", 2);
    bench.control.begin_deletion("T").unwrap();
    bench.control.retired(bench.now, "T", PhyOffset(5000), PhyOffset(0));
    bench.control.retire_queues("T");
    bench.control.end_deletion("T");
    for topic in ["T", "V"] {
        let ext = [("consumerGroup", "G"), ("topic", topic), ("queueId", "0"), ("commitOffset", "7")];
        assert_eq!(bench.code_of(15, &ext), 0);
    }
    let offsets = ConsumerOffsetsFile::decode(&bench.control.encode_consumer_offsets()).unwrap();
    assert_eq!(offsets.table.keys().collect::<Vec<_>>(), ["V@G"]);
}

#[test]
fn a_deleted_route_of_another_broker_is_gone_until_it_registers_again() {
    in_both_header_types(Profile::V5, |bench| {
        register(bench, 9, "broker-b", "0", "10.0.0.2:10911");
        let route = [("topic", "TopicX")];
        assert_eq!(bench.code_of(216, &[("topic", "TopicX"), ("clusterName", "Other")]), 0);
        assert_eq!(bench.code_of(105, &route), 0);
        assert_eq!(bench.code_of(216, &[("topic", "TopicX"), ("clusterName", "DefaultCluster")]), 0);
        assert_eq!(bench.code_of(105, &route), 17);
        assert_eq!(bench.code_of(216, &route), 0);
        register(bench, 9, "broker-b", "0", "10.0.0.2:10911");
        assert_eq!(bench.code_of(105, &route), 0);
        // What this node has is there as long as it has it.
        bench.create_topic("T", 1);
        assert_eq!(bench.code_of(216, &[("topic", "T")]), 0);
        assert_eq!(bench.code_of(105, &[("topic", "T")]), 0);
    });
}

/// All slices of a census, and how many there were.
fn census(bench: &Bench, pairs_max: usize) -> (Census, usize) {
    let (mut census, mut from, mut slices) = (Census::default(), None, 1);
    while let Some(on) = bench.control.count_readings(&mut census, from.as_ref(), pairs_max) {
        (from, slices) = (Some(on), slices + 1);
    }
    (census, slices)
}

#[test]
fn a_pair_of_many_queues_is_counted_in_slices_and_shown_as_one() {
    let mut bench = Bench::new(Profile::V5);
    let queues = 1024;
    for topic in ["T", "U", "V"] {
        bench.create_topic(topic, queues);
        for queue in &bench.topic(topic).queues {
            queue.publish(QueueOffset(2), QueueOffset(10));
        }
        for queue in 0..queues {
            bench.control.commit_offset(bench.now, "G", topic, queue, 7);
        }
    }
    let (all, slices) = census(&bench, 500);
    let lags: Vec<_> = all.readings.iter().map(|reading| (reading.topic.as_str(), reading.lag)).collect();
    assert_eq!(lags, [("T", 3 * 1024), ("U", 3 * 1024), ("V", 3 * 1024)]);
    assert!(slices > 1, "one slice holds the core for all of them");
}

#[test]
fn pairs_beyond_the_bound_share_a_reading_also_with_a_pair_of_its_name() {
    let mut bench = Bench::new(Profile::V5);
    for topic in ["A", "other", "z"] {
        bench.create_topic(topic, 1);
        bench.topic(topic).queues[0].publish(QueueOffset(0), QueueOffset(5));
        bench.control.commit_offset(bench.now, "other", topic, 0, 1);
    }
    let (all, _) = census(&bench, 2);
    let lags: Vec<_> = all.readings.iter().map(|reading| (reading.topic.as_str(), reading.lag)).collect();
    assert_eq!(lags, [("A", 4), ("other", 8)], "no two readings of one name");
}
