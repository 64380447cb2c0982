//! `kerolox-bench run` against a real node, its own sink, and servers that misbehave: what it counts is what was stored,
//! what went wrong is told by name, and it always ends.

mod harness;

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command as Program, Output};
use std::thread;

use bytes::BytesMut;
use harness::{Client, HEADER_TYPES, Node, Request};
use kerolox::types::properties;
use kerolox::wire::code::{request, response};
use kerolox::wire::{Command, HeaderType, VERSION_5, encode_response, first_frame};
use serde_json::Value;
use tempfile::TempDir;

/// The result of a run and its exit code. Patient with the node: other tests may take its cores.
fn run(target: &[&str], options: &str) -> (Value, Output) {
    let dir = TempDir::new().unwrap();
    let json = dir.path().join("result.json");
    let mut program = Program::new(env!("CARGO_BIN_EXE_kerolox-bench"));
    program.arg("run").args(target).args(options.split_whitespace()).arg("--json").arg(&json);
    if !options.contains("--timeout-ms") {
        program.args(["--timeout-ms", "30000"]);
    }
    let output = program.output().expect("the built program starts");
    let text = fs::read_to_string(&json).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    (serde_json::from_str(&text).unwrap(), output)
}

/// The same against a node, without any error.
fn load(node: &Node, options: &str) -> Value {
    let (result, output) = run(&["--broker", &node.broker.to_string()], options);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(result["errors"], serde_json::json!({}), "{options}");
    result
}

/// Messages in all queues of a topic.
fn stored(node: &Node, topic: &str, queues: i32) -> u64 {
    let mut client = node.client(HeaderType::Json);
    (0..queues).map(|queue| max_offset(&mut client, topic, queue)).sum()
}

fn max_offset(client: &mut Client, topic: &str, queue: i32) -> u64 {
    let asked = Request::queue(request::GET_MAX_OFFSET, topic).with("queueId", queue);
    client.ask(&asked).number("offset") as u64
}

fn number(result: &Value, key: &str) -> u64 {
    result[key].as_u64().unwrap_or_else(|| panic!("{key} is {} in {result}", result[key]))
}

fn name(header_type: HeaderType) -> &'static str {
    if header_type == HeaderType::Json { "json" } else { "rocketmq" }
}

#[test]
fn a_closed_loop_stores_what_it_counts() {
    let node = Node::start();
    for (index, header_type) in HEADER_TYPES.into_iter().enumerate() {
        let topic = format!("closed{index}");
        let options = format!(
            "--topic {topic} --queues 3 --connections 3 --depth 4 --warmup 0 --count 500 --tags 2 --keys --size 100:1,300:1 \
             --header {} --pid {}",
            name(header_type),
            node.pid()
        );
        let result = load(&node, &options);
        assert_eq!((number(&result, "messages"), number(&result, "messagesWithWarmup")), (500, 500));
        assert_eq!(stored(&node, &topic, 3), 500);
        assert!(result["aggregatedPublishLatency99pct"].as_f64().unwrap() > 0.0);
        assert!(result["cpuMicrosPerMessage"].is_number() && number(&result, "rssAnonMaxKib") > 0);
        assert_eq!(result["plan"]["topic"], topic.as_str());

        let shown = node.client(header_type).pull_until(&topic, 0, 2);
        for record in shown.records() {
            let property = |name| properties::get(record.properties(), name).unwrap_or_default().to_owned();
            assert_eq!(property("UNIQ_KEY").len(), 32);
            assert_eq!(property("KEYS").len(), 12);
            assert!(["tag-0", "tag-1"].contains(&&*property("TAGS")));
            assert!([100, 300].contains(&record.body().len()));
        }
    }
}

#[test]
fn an_open_loop_sends_its_whole_schedule() {
    let node = Node::start();
    let result = load(&node, "--topic open --rate 2000 --warmup 0.3 --duration 0.5 --interval 0.25 --threads 2");
    assert_eq!((number(&result, "messages"), number(&result, "messagesWithWarmup")), (1000, 1600));
    assert_eq!((number(&result, "neverSent"), stored(&node, "open", 8)), (0, 1600));
    for key in ["publishRate", "publishErrorRate", "publishLatency99pct", "publishDelayLatencyMax"] {
        assert_eq!(result[key].as_array().map(Vec::len), Some(2), "{key}");
    }
    let curve = result["aggregatedPublishLatencyQuantiles"].as_object().unwrap();
    assert!(["50.0", "99.9", "99.99", "100.0"].iter().all(|point| curve.contains_key(*point)), "{curve:?}");
    let ramp = load(&node, "--topic ramp --rate 1000-3000 --warmup 0.2 --duration 0.5");
    let sent = number(&ramp, "messages");
    assert!(sent.abs_diff(1000) <= 1, "{sent}: the mean of both rates, half a second long");
}

#[test]
fn batches_count_their_messages() {
    let node = Node::start();
    for (index, header_type) in HEADER_TYPES.into_iter().enumerate() {
        let topic = format!("batch{index}");
        let options = format!("--topic {topic} --batch 7 --warmup 0 --count 100 --header {}", name(header_type));
        let result = load(&node, &options);
        assert_eq!(number(&result, "messages"), 105, "whole batches");
        assert_eq!(stored(&node, &topic, 8), 105);
    }
}

#[test]
fn what_was_sent_comes_to_the_reader_at_the_end_and_to_the_one_that_catches_up() {
    let node = Node::start();
    for (index, header_type) in HEADER_TYPES.into_iter().enumerate() {
        let topic = format!("e2e{index}");
        let header = name(header_type);
        // What is there before is no message of the load.
        load(&node, &format!("--topic {topic} --queues 4 --warmup 0 --count 50 --depth 1"));
        let options = format!(
            "--topic {topic} --queues 4 --workload e2e --rate 1000 --warmup 0.2 --duration 0.5 --header {header} --check \
             --pull-connections 2 --threads 2"
        );
        let result = load(&node, &options);
        assert_eq!((number(&result, "messages"), number(&result, "messagesWithWarmup")), (500, 700));
        assert_eq!(number(&result, "consumedWithWarmup"), 700);
        for key in ["aggregatedEndToEndLatency50pct", "aggregatedEndToEndLatencyMax"] {
            assert!(result[key].as_f64().unwrap() > 0.0, "{key}");
        }

        let options = format!("--topic {topic} --queues 4 --workload pull --duration 60 --header {header} --check");
        let result = load(&node, &options);
        assert_eq!((number(&result, "consumed"), stored(&node, &topic, 4)), (750, 750));
        assert!(result["aggregatedPullLatency99pct"].as_f64().unwrap() > 0.0);
        assert!(result["seconds"].as_f64().unwrap() < 60.0, "it ends when all is read");
        let options =
            format!("--topic {topic} --queues 4 --workload pull --again --duration 0.3 --warmup 0 --sink --check");
        let again = load(&node, &options);
        assert!(number(&again, "consumed") > 750, "round and round");
        assert!(again["sink"]["rate"].as_f64().unwrap() > 0.0);
    }
}

#[test]
fn a_mixed_load_over_several_topics_goes_through_a_name_server() {
    let node = Node::start();
    let target = ["--namesrv", &node.name_server.to_string()];
    let options = "--topic mixed --topics 3 --queues 2 --workload mixed --rate 600 --warmup 0 --duration 1";
    let (result, output) = run(&target, options);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let total: u64 = (0..3).map(|number| stored(&node, &format!("mixed-{number}"), 2)).sum();
    assert_eq!((number(&result, "messages"), total), (600, 600));
    assert!(number(&result, "consumedWithWarmup") > 600, "one reader at the end, and one that goes round");

    let (again, output) = run(&target, "--topic mixed-0 --queues 2 --no-create --warmup 0 --count 10");
    assert_eq!((output.status.code(), number(&again, "messages")), (Some(0), 10));
}

#[test]
fn the_sink_shows_what_the_generator_can() {
    let node = Node::start();
    let (result, output) =
        run(&["--broker", &node.broker.to_string()], "--topic sink --warmup 0 --count 300 --sink --header rocketmq");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(result["sink"]["rate"].as_f64().unwrap() > 0.0, "{result}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("own sink"), "{output:?}");
    assert_eq!(stored(&node, "sink", 8), 300, "nothing of it went to the node");
}

#[test]
fn a_topic_that_has_other_queues_is_left_as_it_is() {
    let node = Node::start();
    load(&node, "--topic taken --queues 3 --warmup 0 --count 1");
    for (options, word) in [("--topic taken --queues 8", "--queues 3"), ("--topic nobody --no-create", "--no-create")] {
        let mut program = Program::new(env!("CARGO_BIN_EXE_kerolox-bench"));
        let output = program.args(["run", "--broker", &node.broker.to_string()]).args(options.split(' ')).output();
        let output = output.unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains(word), "{output:?}");
    }
}

/// What a server does with a send.
#[derive(Clone, Copy)]
enum Manners {
    Silent,
    Refuses,
    HangsUp,
    Babbles,
}

/// A server that answers everything but sends as a broker would. It lives as long as the test.
fn server(manners: Manners) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || serve(stream.unwrap(), manners));
        }
    });
    address
}

fn serve(mut stream: TcpStream, manners: Manners) {
    let mut inbox = Vec::new();
    let mut piece = [0; 4096];
    loop {
        while let Some(bounds) = first_frame(&inbox).unwrap() {
            let frame: Vec<u8> = inbox.drain(..bounds.total_len).collect();
            let command = Command::decode(&frame, &bounds).unwrap();
            let mut out = BytesMut::new();
            let mut reply = |code, remark, ext: &[(&str, &str)]| {
                encode_response(&mut out, HeaderType::Json, code, VERSION_5, command.opaque, remark, ext, &[]);
            };
            match (command.code, manners) {
                (request::GET_TOPIC_CONFIG, _) => reply(response::TOPIC_NOT_EXIST, None, &[]),
                (request::SEND_MESSAGE_V2, Manners::Silent) => {}
                (request::SEND_MESSAGE_V2, Manners::Refuses) => reply(response::SYSTEM_BUSY, Some("[full]busy"), &[]),
                (request::SEND_MESSAGE_V2, Manners::HangsUp) => return,
                (request::SEND_MESSAGE_V2, Manners::Babbles) => {
                    out.extend_from_slice(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                }
                _ => reply(response::SUCCESS, None, &[("offset", "0")]),
            }
            // The load may have gone.
            let Ok(()) = stream.write_all(&out) else { return };
        }
        match stream.read(&mut piece) {
            Ok(len) if len > 0 => inbox.extend_from_slice(&piece[..len]),
            _ => return,
        }
    }
}

#[test]
fn what_goes_wrong_is_counted_by_name() {
    for (manners, name) in [
        (Manners::Silent, "timeout"),
        (Manners::Refuses, "2"),
        (Manners::HangsUp, "connection"),
        (Manners::Babbles, "connection"),
    ] {
        let options = "--connections 1 --depth 1 --warmup 0 --count 4 --timeout-ms 200";
        let (result, output) = run(&["--broker", &server(manners)], options);
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        assert_eq!(result["errors"], serde_json::json!({ name: 4 }), "{output:?}");
        assert_eq!(number(&result, "messages"), 0);
        assert_eq!(result.get("aggregatedPublishLatencyMax"), None, "failures have no latency");
        if name == "2" {
            assert_eq!(result["remarks"]["2"], "[full]busy");
        }
    }
}

#[test]
fn without_a_broker_it_says_where_it_looked() {
    let address = harness::free_address().to_string();
    let mut program = Program::new(env!("CARGO_BIN_EXE_kerolox-bench"));
    let output = program.args(["run", "--broker", &address]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains(&address), "{output:?}");
}
