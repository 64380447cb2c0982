//! `kerolox-bench run` against a real node, its own sink, and servers that misbehave: what it counts is what was stored,
//! what went wrong is told by name, and it always ends.

mod harness;

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command as Program, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use harness::{Client, HEADER_TYPES, Node, Request};
use kerolox::types::properties;
use kerolox::wire::code::{request, response};
use kerolox::wire::{Command, HeaderType, VERSION_5, encode_response, first_frame};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// A node that lets sends wait long before it calls itself busy: other tests may take its cores.
fn node() -> Node {
    Node::with(&[("limits.put_wait_ms", "2800"), ("flush.sync_timeout_ms", "100")])
}

/// The result of a run and its exit code. Patient too.
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

/// The topic comes to have so many messages in its queues, and no more.
fn assert_stored(node: &Node, topic: &str, queues: i32, count: u64) {
    let mut client = node.client(HeaderType::Json);
    let mut stored = || (0..queues).map(|queue| max_offset(&mut client, topic, queue)).sum::<u64>();
    let deadline = Instant::now() + Duration::from_secs(30);
    // An acknowledged message is in the log; its queue shows it a moment later.
    while stored() < count && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(stored(), count);
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
    let node = node();
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
        assert_stored(&node, &topic, 3, 500);
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
    let node = node();
    let result = load(&node, "--topic open --rate 2000 --warmup 0.3 --duration 0.5 --interval 0.25 --threads 2");
    assert_eq!((number(&result, "messages"), number(&result, "messagesWithWarmup")), (1000, 1600));
    assert_eq!(number(&result, "neverSent"), 0);
    assert_stored(&node, "open", 8, 1600);
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
    let node = node();
    for (index, header_type) in HEADER_TYPES.into_iter().enumerate() {
        let topic = format!("batch{index}");
        let options = format!("--topic {topic} --batch 7 --warmup 0 --count 100 --header {}", name(header_type));
        let result = load(&node, &options);
        assert_eq!(number(&result, "messages"), 105, "whole batches");
        assert_stored(&node, &topic, 8, 105);
    }
}

#[test]
fn what_was_sent_comes_to_the_reader_at_the_end_and_to_the_one_that_catches_up() {
    let node = node();
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
        assert_eq!(number(&result, "consumed"), 750);
        assert_stored(&node, &topic, 4, 750);
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
    let node = node();
    let target = ["--namesrv", &node.name_server.to_string()];
    let options = "--topic mixed --topics 3 --queues 2 --workload mixed --rate 600 --warmup 0 --duration 1";
    let (result, output) = run(&target, options);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(number(&result, "messages"), 600);
    (0..3).for_each(|number| assert_stored(&node, &format!("mixed-{number}"), 2, 200));
    assert!(number(&result, "consumedWithWarmup") > 600, "one reader at the end, and one that goes round");

    let (again, output) = run(&target, "--topic mixed-0 --queues 2 --no-create --warmup 0 --count 10");
    assert_eq!((output.status.code(), number(&again, "messages")), (Some(0), 10));
}

#[test]
fn the_sink_shows_what_the_generator_can() {
    let node = node();
    for (index, header_type) in HEADER_TYPES.into_iter().enumerate() {
        for (option, kind) in [("--sink", "bare"), ("--sink=decode", "decode")] {
            let topic = format!("sink-{kind}{index}");
            let options = format!("--topic {topic} --warmup 0 --count 300 {option} --header {}", name(header_type));
            let (result, output) = run(&["--broker", &node.broker.to_string()], &options);
            assert_eq!(output.status.code(), Some(0), "{output:?}");
            assert!(result["sink"]["rate"].as_f64().unwrap() > 0.0, "{result}");
            assert_eq!(result["sink"]["kind"], kind);
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(said.contains("own sink") && said.contains("decodes its requests") == (kind == "decode"), "{said}");
            // Nothing of it went to the node.
            assert_stored(&node, &topic, 8, 300);
        }
    }
}

#[test]
fn a_topic_that_has_other_queues_is_left_as_it_is() {
    let node = node();
    load(&node, "--topic taken --queues 3 --warmup 0 --count 1");
    for (options, word) in [("--topic taken --queues 8", "--queues 3"), ("--topic nobody --no-create", "--no-create")] {
        let mut program = Program::new(env!("CARGO_BIN_EXE_kerolox-bench"));
        let output = program.args(["run", "--broker", &node.broker.to_string()]).args(options.split(' ')).output();
        let output = output.unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains(word), "{output:?}");
    }
}

/// Until some message of the load is in the first queue.
fn wait_for_messages(node: &Node, topic: &str) {
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut client = node.client(HeaderType::Json);
    // A topic that is not there yet has no offsets.
    while client.ask(&Request::queue(request::GET_MAX_OFFSET, topic)).ext.get("offset").is_none_or(|end| end == "0") {
        assert!(Instant::now() < deadline, "nothing is sent");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn an_interrupt_ends_the_load_with_what_was_measured() {
    let node = node();
    for (index, pace) in
        ["--rate 500", "--depth 1 --connections 1", "--rate 500 --workload e2e", "--rate 500 --sink"].iter().enumerate()
    {
        let topic = format!("stop{index}");
        let dir = TempDir::new().unwrap();
        let json = dir.path().join("result.json");
        let mut program = Program::new(env!("CARGO_BIN_EXE_kerolox-bench"));
        program.args(["run", "--broker", &node.broker.to_string(), "--topic", &topic, "--json"]).arg(&json);
        program.args(["--warmup", "0", "--duration", "600", "--timeout-ms", "30000"]).args(pace.split(' '));
        let mut child = program.stdout(Stdio::null()).spawn().unwrap();
        wait_for_messages(&node, &topic);
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0), "{pace}");
        let result: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
        assert!(number(&result, "messages") > 0 && result["seconds"].as_f64().unwrap() < 600.0, "{result}");
        assert_eq!(number(&result, "neverSent"), 0);
        assert_stored(&node, &topic, 8, number(&result, "messagesWithWarmup"));
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
fn an_interval_in_which_all_failed_has_a_rate_of_failures_that_can_be() {
    let options = "--connections 1 --rate 50 --warmup 0 --duration 0.4 --interval 0.1 --timeout-ms 500";
    let (result, output) = run(&["--broker", &server(Manners::Silent)], options);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert_eq!(result["errors"], serde_json::json!({ "timeout": 20 }));
    let rates = result["publishErrorRate"].as_array().unwrap();
    assert!(rates.iter().all(|rate| rate.as_f64().unwrap() <= 20.0 / 0.1), "{rates:?}");
}

#[test]
fn a_file_that_cannot_be_written_is_told_before_the_load() {
    let dir = TempDir::new().unwrap();
    for (file, other) in [("--json", "result.json"), ("--hgrm", "curve.hgrm")] {
        let mut program = Program::new(env!("CARGO_BIN_EXE_kerolox-bench"));
        program.args(["run", "--broker", &server(Manners::Silent), "--duration", "600"]);
        let output = program.arg(file).arg(dir.path().join("none").join(other)).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && said.contains("none/"), "{output:?}");
    }
    // Asking leaves nothing behind, and what is there as it was.
    fs::write(dir.path().join("old.json"), "old").unwrap();
    let mut program = Program::new(env!("CARGO_BIN_EXE_kerolox-bench"));
    program.args(["run", "--broker", &harness::free_address().to_string(), "--hgrm"]).arg(dir.path().join("new"));
    assert_eq!(program.arg("--json").arg(dir.path().join("old.json")).output().unwrap().status.code(), Some(1));
    assert_eq!(fs::read_to_string(dir.path().join("old.json")).unwrap(), "old");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn without_a_broker_it_says_where_it_looked() {
    let address = harness::free_address().to_string();
    let mut program = Program::new(env!("CARGO_BIN_EXE_kerolox-bench"));
    let output = program.args(["run", "--broker", &address]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains(&address), "{output:?}");
}

#[test]
fn a_broker_that_goes_for_good_leaves_what_was_measured_before() {
    let mut node = node();
    let dir = TempDir::new().unwrap();
    let json = dir.path().join("result.json");
    let mut program = Program::new(env!("CARGO_BIN_EXE_kerolox-bench"));
    program.args(["run", "--broker", &node.broker.to_string(), "--topic", "gone", "--rate", "200", "--warmup", "0"]);
    program.args(["--duration", "600", "--timeout-ms", "1000", "--json"]).arg(&json);
    let child = program.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for_messages(&node, "gone");
    node.kill();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    for said in [&output.stdout, &output.stderr] {
        assert!(String::from_utf8_lossy(said).contains("no connection for 10 s"), "{output:?}");
    }
    let result: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    assert!(number(&result, "messages") > 0 && result["seconds"].as_f64().unwrap() < 600.0, "{result}");
    assert!(number(&result, "neverSent") > 0, "{result}");
    assert!(result["endedEarly"].as_str().unwrap().contains("no connection for 10 s"), "{result}");
}
