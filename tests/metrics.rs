//! The metrics page and the probes of a real node: what they say agrees with what was done to it.

#[path = "harness/exposition.rs"]
mod exposition;
mod harness;

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command as Program;
use std::thread;
use std::time::{Duration, Instant};

use exposition::{Exposition, Kind};
use harness::{Client, HEADER_TYPES, Node, Request, free_address, skipped};
use kerolox::wire::code::{request, response};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

const TOPIC: &str = "Counted";
const GROUP: &str = "test_group";
/// Shown from the second page on: the first has it looked up.
const OLDEST: &str = "rocketmq_storage_message_reserve_time_milliseconds";
const WITHIN: Duration = Duration::from_secs(30);

/// A node with a page, and where that is.
struct Watched {
    node: Node,
    page: SocketAddr,
}

impl Watched {
    fn with(settings: &[(&str, &str)]) -> Watched {
        let page = free_address();
        let listen = format!("\"{page}\"");
        let settings: Vec<_> = settings.iter().copied().chain([("metrics.listen", listen.as_str())]).collect();
        Watched { node: Node::with(&settings), page }
    }

    fn scrape(&self) -> Exposition {
        let (status, body) = get(self.page, "/metrics").expect("the page answers");
        assert_eq!(status, 200);
        Exposition::parse(&body)
    }

    /// Status and line of a probe.
    fn probe(&self, path: &str) -> (u16, String) {
        get(self.page, path).expect("the probe answers")
    }

    fn until(&self, what: &str, is_so: impl Fn(&Exposition) -> bool) -> Exposition {
        let deadline = Instant::now() + WITHIN;
        loop {
            let page = self.scrape();
            if is_so(&page) {
                return page;
            }
            assert!(Instant::now() < deadline, "not within {WITHIN:?}: {what}");
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Asks by HTTP; nothing if nobody listens.
fn get(addr: SocketAddr, path: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(addr).ok()?;
    stream.set_read_timeout(Some(WITHIN)).unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: {addr}\r\n\r\n").as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    Some((status, body.to_owned()))
}

/// A probe says this status within a while.
fn becomes(page: SocketAddr, path: &str, status: u16, part: &str) {
    let deadline = Instant::now() + WITHIN;
    loop {
        let found = get(page, path);
        if let Some((found, body)) = &found
            && *found == status
            && body.contains(part)
        {
            assert_eq!(body.lines().count(), 1, "{body:?}");
            return;
        }
        assert!(Instant::now() < deadline, "{path} is not {status} {part:?} but {found:?}");
        thread::sleep(Duration::from_millis(20));
    }
}

fn heartbeat() -> Request {
    let body = json!({
        "clientID": "c1",
        "producerDataSet": [{"groupName": "PG"}],
        "consumerDataSet": [{
            "groupName": GROUP, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "unitMode": false,
            "subscriptionDataSet": [{
                "topic": TOPIC, "subString": "*", "tagsSet": [], "codeSet": [], "subVersion": 1, "expressionType": "TAG",
            }],
        }],
    });
    Request::new(request::HEART_BEAT).body(body.to_string())
}

fn commit(client: &mut Client, group: &str, offset: i64) {
    let asked = Request::queue(request::UPDATE_CONSUMER_OFFSET, TOPIC)
        .with("consumerGroup", group)
        .with("commitOffset", offset);
    assert_eq!(client.ask(&asked).code, response::SUCCESS);
}

/// Sends, pulls and consumes something of every kind that has a series.
fn drive(client: &mut Client) {
    for number in 0..20 {
        client.put(&Request::send(TOPIC).body(format!("message {number}")));
    }
    client.put(&Request::send(TOPIC).body(vec![b'x'; 5000]));
    client.put(&Request::send(TOPIC).body("later").properties("DELAY=18;"));
    client.pull_until(TOPIC, 0, 21);
    assert_eq!(client.ask(&heartbeat()).code, response::SUCCESS);
    assert_eq!(client.ask(&Request::pull(TOPIC, 0).with("maxMsgNums", 8)).records().len(), 8);
    commit(client, GROUP, 5);
    let refused = client.ask(&Request::send("no.topic").body("x"));
    assert_eq!(refused.code, response::INVALID_PARAMETER);
    let held = Request::pull(TOPIC, 21).with("sysFlag", 6).with("suspendTimeoutMillis", 50);
    assert_eq!(client.ask(&held.with("consumerGroup", "held_group")).code, response::PULL_NOT_FOUND);
}

#[test]
fn what_was_sent_and_pulled_is_counted() {
    let watched = Watched::with(&[]);
    let mut client = watched.node.client(HEADER_TYPES[0]);
    drive(&mut client);
    let page = watched.until("the units are built", |page| {
        page.histogram("kerolox_stage_duration_seconds", &[("stage", "dispatch")]).count == 22
    });

    let normal = [("topic", TOPIC), ("message_type", "normal"), ("is_system", "false")];
    assert_eq!(page.value("rocketmq_messages_in_total", &normal), 21.0);
    let delayed = [("topic", TOPIC), ("message_type", "delay")];
    assert_eq!(page.value("rocketmq_messages_in_total", &delayed), 1.0);
    assert_eq!(page.value("kerolox_delayed_messages", &[("level", "18")]), 1.0);
    let sizes = page.histogram("rocketmq_message_size", &normal);
    assert_eq!((sizes.within("1024"), sizes.within("4096"), sizes.within("524288"), sizes.count), (20, 20, 21, 21));
    assert_eq!(page.value("rocketmq_throughput_in_total", &normal), sizes.sum);
    let appended = page.value("kerolox_log_offset_bytes", &[("position", "appended")]);
    let in_log = sizes.sum + page.value("rocketmq_throughput_in_total", &delayed);
    assert!((in_log..in_log + 200.0).contains(&appended), "the delayed one is stored with more: {in_log} {appended}");

    let went_out = [("topic", TOPIC), ("consumer_group", GROUP)];
    let messages_out = page.value("rocketmq_messages_out_total", &went_out);
    assert!(messages_out >= 29.0, "{messages_out}");
    assert!(page.value("rocketmq_throughput_out_total", &went_out) > 8.0 * 100.0);
    assert_eq!(page.value("kerolox_gets_missed_total", &[]), 1.0);
    assert_eq!(page.value("rocketmq_consumer_lag_messages", &went_out), 16.0);
    assert_eq!(page.value("rocketmq_consumer_inflight_messages", &went_out), 3.0);
    assert_eq!(page.value("rocketmq_consumer_ready_messages", &went_out), 13.0);
    assert_eq!(page.value("rocketmq_producer_connections", &[]), 1.0);
    let consumers = [("consumer_group", GROUP), ("consume_mode", "push"), ("protocol_type", "remoting")];
    assert_eq!(page.value("rocketmq_consumer_connections", &consumers), 1.0);

    let of = |request: &'static str, response: &'static str, held: &'static str| {
        page.histogram(
            "rocketmq_rpc_latency_milliseconds",
            &[("request_code", request), ("response_code", response), ("is_long_polling", held)],
        )
    };
    assert_eq!(of("send_message_v2", "success", "false").count, 22);
    assert_eq!(of("send_message_v2", "invalid_parameter", "false").count, 1);
    assert_eq!(of("heart_beat", "success", "false").count, 1);
    assert_eq!(of("update_consumer_offset", "success", "false").count, 1);
    let held = of("pull_message", "pull_not_found", "true");
    assert_eq!(held.count, 1);
    assert!(held.sum >= 49.0, "{} ms", held.sum);

    assert_eq!(page.histogram("kerolox_put_duration_seconds", &[]).count, 22);
    for stage in ["socket", "queue", "append", "reply"] {
        assert_eq!(page.histogram("kerolox_stage_duration_seconds", &[("stage", stage)]).count, 22, "{stage}");
    }
    assert_eq!(page.histogram("kerolox_turn_puts", &[]).sum, 22.0);
    assert!(page.value("rocketmq_topic_number", &[]) > 1.0 && page.value("rocketmq_consumer_group_number", &[]) > 1.0);
    assert_eq!(page.value("kerolox_health", &[("state", "ok")]), 1.0);
    assert_eq!(page.value("kerolox_ready", &[]), 1.0);
    assert_eq!(page.value("kerolox_connections", &[]), 1.0);
    assert_eq!(page.value("rocketmq_broker_permission", &[("cluster", "DefaultCluster")]), 6.0);
}

/// Only what is given is counted: a oneway pull is served and gets nothing.
#[test]
fn a_pull_that_gets_no_answer_counts_no_message() {
    let watched = Watched::with(&[]);
    let mut client = watched.node.client(HEADER_TYPES[0]);
    client.put(&Request::send(TOPIC).body("x"));
    client.pull_until(TOPIC, 0, 1);
    let went_out = || watched.scrape().value("rocketmq_messages_out_total", &[("topic", TOPIC)]);
    let before = went_out();
    client.send(&Request::pull(TOPIC, 0).oneway());
    // Served behind it.
    assert_eq!(client.ask(&Request::queue(request::GET_MAX_OFFSET, TOPIC)).code, response::SUCCESS);
    assert_eq!(went_out(), before);
}

/// Stages of who waits for stable storage, and how many share a flush.
#[test]
fn a_sync_node_counts_the_wait_for_each_flush() {
    let watched = Watched::with(&[("flush.mode", "\"sync\"")]);
    let mut client = watched.node.client(HEADER_TYPES[1]);
    let asked = Request::send(TOPIC).body("x");
    client.put(&asked);
    for _ in 0..30 {
        client.send(&asked);
    }
    (0..30).for_each(|_| assert_eq!(client.read().code, response::SUCCESS));
    let page = watched.scrape();
    let flushes = page.histogram("kerolox_flush_duration_seconds", &[]);
    let shared = page.histogram("kerolox_flush_puts", &[]);
    assert!(shared.sum == 31.0 && shared.count <= flushes.count && flushes.count > 0, "{shared:?} {flushes:?}");
    assert_eq!(page.histogram("kerolox_stage_duration_seconds", &[("stage", "flush")]).count, 31);
    assert_eq!(page.value("kerolox_loss_window_bytes", &[]), 0.0);
    assert_eq!(page.value("kerolox_flush_policy_info", &[("mode", "sync")]), 1.0);
}

const THREAD_WAIT: &str = "kerolox_thread_wait_seconds_total";

/// Why this machine does not tell how long threads wait for a core, if it does not.
fn waits_uncounted() -> Option<String> {
    let path = "/proc/thread-self/schedstat";
    match fs::read_to_string(path) {
        Ok(text) => text.starts_with("0 ").then(|| format!("{path} counts nothing: {text:?}")),
        Err(error) => Some(format!("{path}: {error}")),
    }
}

#[test]
fn the_page_shows_what_is_documented_and_nothing_else() {
    let watched = Watched::with(&[]);
    let mut client = watched.node.client(HEADER_TYPES[0]);
    drive(&mut client);
    let page = watched.until("the oldest message was looked up", |page| page.families.contains_key(OLDEST));
    let documentation = include_str!("../docs/METRICS.md");
    let rows = documentation.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
    let mut documented: BTreeSet<(&str, Kind)> = rows
        .filter_map(|(name, rest)| {
            let kind = match rest.split(" | ").next()? {
                "counter" => Kind::Counter,
                "gauge" => Kind::Gauge,
                "histogram" => Kind::Histogram,
                _ => return None,
            };
            Some((name, kind))
        })
        .collect();
    let shown: BTreeSet<(&str, Kind)> =
        page.families.iter().map(|(name, family)| (name.as_str(), family.kind)).collect();
    if let Some(why) = waits_uncounted() {
        skipped("the_page_shows_what_is_documented_and_nothing_else, of the waits of threads", why);
        documented.remove(&(THREAD_WAIT, Kind::Counter));
    }
    assert_eq!(shown, documented);
}

#[test]
fn the_dashboard_asks_for_metrics_that_there_are() {
    let dashboard: Value = serde_json::from_str(include_str!("../docs/grafana/kerolox.json")).expect("it is JSON");
    let watched = Watched::with(&[("flush.mode", "\"sync\"")]);
    let mut client = watched.node.client(HEADER_TYPES[0]);
    drive(&mut client);
    let page = watched.until("the oldest message was looked up", |page| page.families.contains_key(OLDEST));
    let mut samples = page.sample_names();
    if let Some(why) = waits_uncounted() {
        skipped("the_dashboard_asks_for_metrics_that_there_are, of the waits of threads", why);
        samples.insert(THREAD_WAIT);
    }
    let labels = page.label_names();

    assert!(dashboard["uid"].is_string() && dashboard["title"].is_string() && dashboard["schemaVersion"].is_u64());
    let variables = dashboard["templating"]["list"].as_array().expect("variables");
    assert!(variables.iter().any(|of| of["name"] == "datasource" && of["type"] == "datasource"), "{variables:?}");
    let queried = variables.iter().filter_map(|of| of["query"]["query"].as_str());
    let mut expressions: Vec<&str> = queried.collect();
    let (mut ids, mut places) = (BTreeSet::new(), BTreeSet::new());
    for panel in dashboard["panels"].as_array().expect("panels") {
        let title = panel["title"].as_str().expect("a title");
        assert!(ids.insert(panel["id"].as_u64().expect("an id")), "{title}: its id is another's");
        let place = |key: &str| panel["gridPos"][key].as_u64().expect("a place");
        let (x, y, w, h) = (place("x"), place("y"), place("w"), place("h"));
        assert!(x + w <= 24 && w > 0 && h > 0, "{title}");
        for cell in (y..y + h).flat_map(|row| (x..x + w).map(move |column| (row, column))) {
            assert!(places.insert(cell), "{title} lies over another panel");
        }
        if panel["type"] == "row" {
            continue;
        }
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        let targets = panel["targets"].as_array().expect("targets");
        assert!(!targets.is_empty(), "{title}");
        for target in targets {
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{title}");
            expressions.push(target["expr"].as_str().expect("an expression"));
        }
    }
    assert!(expressions.len() > 20);
    for expression in expressions {
        let used = exposition::names_in(expression);
        assert!(!used.metrics.is_empty(), "{expression} asks for nothing");
        for name in &used.metrics {
            assert!(samples.contains(name.as_str()), "{expression}: there is no {name}");
        }
        for label in &used.labels {
            let is_there = labels.contains(label.as_str()) || ["le", "instance", "job"].contains(&label.as_str());
            assert!(is_there, "{expression}: there is no label {label}");
        }
    }
}

#[test]
fn topics_and_groups_beyond_the_bound_share_a_series() {
    let watched = Watched::with(&[("metrics.series_max", "2")]);
    let mut client = watched.node.client(HEADER_TYPES[0]);
    for (topic, count) in [("A", 1), ("B", 2), ("C", 3), ("D", 4)] {
        for _ in 0..count {
            client.put(&Request::send(topic).body("x"));
        }
        // All at once: what is pulled twice counts twice.
        let deadline = Instant::now() + WITHIN;
        while client.max_offset(topic) < count as i64 {
            assert!(Instant::now() < deadline, "{topic} does not reach {count}");
        }
        client.pull_until(topic, 0, count);
    }
    let page = watched.scrape();
    let counted = |topic: &'static str| page.value("rocketmq_messages_in_total", &[("topic", topic)]);
    assert_eq!((counted("A"), counted("B"), counted("other")), (1.0, 2.0, 7.0));
    let out = |topic: &'static str| page.value("rocketmq_messages_out_total", &[("topic", topic)]);
    assert_eq!((out("A"), out("B")), (1.0, 2.0));
    assert!(out("other") >= 7.0);
    assert_eq!(page.families["rocketmq_messages_in_total"].samples.len(), 3);
}

#[test]
fn a_poisoned_log_is_neither_ready_nor_alive() {
    let watched = Watched::with(&[("store.zero_ahead", "\"off\"")]);
    let mut client = watched.node.client(HEADER_TYPES[0]);
    client.put(&Request::send(TOPIC).body("x".repeat(9000)));
    for path in ["/readyz", "/healthz"] {
        assert_eq!(watched.probe(path), (200, "ok\n".to_owned()));
    }
    if let Err(why) = watched.node.limit_files(Some(4096)) {
        return skipped("a_poisoned_log_is_neither_ready_nor_alive", why);
    }
    let refused = client.ask(&Request::send(TOPIC));
    assert_eq!(refused.code, response::SERVICE_NOT_AVAILABLE);
    watched.node.limit_files(None).expect("what was lowered can be lifted");
    for path in ["/readyz", "/healthz"] {
        assert_eq!(watched.probe(path), (503, refused.remark.clone() + "\n"), "{path}");
    }
    let page = watched.scrape();
    assert_eq!(page.value("kerolox_health", &[("state", "poisoned")]), 1.0);
    assert_eq!(page.value("kerolox_health", &[("state", "ok")]), 0.0);
    assert_eq!(page.value("kerolox_ready", &[]), 0.0);
    assert_eq!(page.value("rocketmq_broker_permission", &[]), 4.0);
    assert!(page.value("kerolox_puts_failed_total", &[]) >= 1.0);
}

#[test]
fn a_disk_that_is_too_full_is_not_ready_and_alive() {
    let watched = Watched::with(&[("disk.min_free_warning", "\"1024TiB\"")]);
    let (status, line) = watched.probe("/readyz");
    assert!(status == 503 && line.contains("is too full") && line.contains("disk.min_free_warning"), "{status} {line}");
    assert_eq!(watched.probe("/healthz"), (200, "ok\n".to_owned()));
    let page = watched.scrape();
    assert_eq!(page.value("kerolox_disk_full", &[]), 1.0);
    assert_eq!(page.value("kerolox_health", &[("state", "disk-full")]), 1.0);
    assert!(page.value("kerolox_disk_available_bytes", &[("disk", "commitlog")]) > 0.0);
}

/// A file of the store that takes its time: a pipe that nobody has written yet.
#[test]
fn a_node_that_opens_its_store_is_alive_and_not_ready_until_clients_are_served() {
    let mut watched = Watched::with(&[]);
    assert!(watched.node.stop().success());
    let offsets = watched.node.root().join("config/consumerOffset.json");
    fs::remove_file(&offsets).expect("a clean stop has saved it");
    let made = Program::new("mkfifo").arg(&offsets).status().expect("coreutils are there");
    assert!(made.success());
    let mut child = watched.node.spawn_again();
    becomes(watched.page, "/readyz", 503, "opening the store");
    assert_eq!(watched.probe("/healthz"), (200, "ok\n".to_owned()));
    assert_eq!(watched.scrape().value("kerolox_ready", &[]), 0.0);
    fs::write(&offsets, "{}").expect("the pipe has a reader");
    becomes(watched.page, "/readyz", 200, "ok");
    let mut client = watched.node.client(HEADER_TYPES[0]);
    client.put(&Request::send(TOPIC).body("served"));
    child.kill().and_then(|()| child.wait().map(drop)).expect("it can be killed");
}

/// Answers that a peer does not take hold up the stop for a while.
#[test]
fn a_node_that_stops_is_not_ready() {
    let watched = Watched::with(&[]);
    let mut client = watched.node.client(HEADER_TYPES[0]);
    client.put(&Request::send(TOPIC).body(vec![b'x'; 200_000]));
    client.pull_until(TOPIC, 0, 1);
    let deadline = Instant::now() + WITHIN;
    // It reads none; some may be told to ask again, where the message is not in memory.
    while watched.scrape().value("kerolox_unsent_bytes", &[("shard", "0")]) == 0.0 {
        assert!(Instant::now() < deadline, "no answers wait");
        for _ in 0..50 {
            client.send(&Request::pull(TOPIC, 0));
        }
        thread::sleep(Duration::from_millis(500));
    }
    let pid = Pid::from_raw(watched.node.pid() as i32).expect("the node has a pid");
    kill_process(pid, Signal::TERM).expect("it can be signalled");
    becomes(watched.page, "/readyz", 503, "the node is stopping");
}

/// One thread of the node is stopped, as a call that never returns would stop it.
#[test]
fn an_executor_that_hangs_ends_life_until_it_goes_on_and_what_it_held_up_is_told() {
    let watched = Watched::with(&[]);
    let mut client = watched.node.client(HEADER_TYPES[0]);
    client.put(&Request::send(TOPIC).body("before"));
    // On one core a shard writes.
    let writer = ["kerolox-writer", "kerolox-shard-0"].iter().find_map(|name| thread_of(watched.node.pid(), name));
    let stopped = match StoppedThread::stop(writer.expect("the node has a thread that writes")) {
        Ok(stopped) => stopped,
        Err(why) => {
            return skipped("an_executor_that_hangs_ends_life_until_it_goes_on_and_what_it_held_up_is_told", why);
        }
    };
    client.send(&Request::send(TOPIC).body("held up"));
    for path in ["/healthz", "/readyz"] {
        becomes(watched.page, path, 503, "has not turned for");
    }
    let page = watched.scrape();
    let ages = &page.families["kerolox_executor_beat_age_seconds"].samples;
    assert!(ages.iter().any(|sample| sample.value > 5.0), "{ages:?}");
    drop(stopped);
    becomes(watched.page, "/healthz", 200, "ok");
    becomes(watched.page, "/readyz", 200, "ok");

    let busy = client.read();
    assert_eq!(busy.code, response::SYSTEM_BUSY, "{busy:?}");
    assert!(busy.remark.starts_with("[TIMEOUT_CLEAN_QUEUE]"), "{}", busy.remark);
    for part in ["period in queue: ", "last write: ", "last flush: "] {
        assert!(busy.remark.contains(part), "{part} {}", busy.remark);
    }
    let page = watched.scrape();
    assert!(page.value("kerolox_puts_expired_total", &[]) >= 1.0);
    assert!(page.value("kerolox_slow_requests_total", &[]) >= 1.0);
    let gaps = &page.families["kerolox_executor_beat_gap_max_seconds"].samples;
    assert!(gaps.iter().any(|sample| sample.value > 5.0), "{gaps:?}");
    let log = watched.node.log();
    let told = log.lines().find(|line| line.contains("slow request")).unwrap_or_else(|| panic!("{log}"));
    for part in ["request=\"send_message_v2\"", "response=\"system_busy\"", "took_us=", "queue_us=", "append_us=0"] {
        assert!(told.contains(part), "{part} {told}");
    }
}

/// A thread of another process that does not run while this lives.
struct StoppedThread {
    tid: i32,
}

/// The first thread of a process whose name begins so.
fn thread_of(pid: u32, name: &str) -> Option<i32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("the node runs");
    tasks.flatten().find_map(|task| {
        let found = fs::read_to_string(task.path().join("comm")).ok()?;
        found.starts_with(name).then(|| task.file_name().to_str()?.parse().ok())?
    })
}

impl StoppedThread {
    /// An error: the machine lets this process trace none.
    fn stop(tid: i32) -> Result<StoppedThread, String> {
        let nothing = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: ptrace of a thread of a child, with no memory of ours given to the kernel but the status of the wait.
        unsafe {
            if libc::ptrace(libc::PTRACE_SEIZE, tid, nothing, nothing) != 0 {
                let error = std::io::Error::last_os_error();
                let is_refusal = matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS));
                assert!(is_refusal, "the thread can be traced: {error}");
                return Err(format!("ptrace is refused: {error}"));
            }
            assert_eq!(libc::ptrace(libc::PTRACE_INTERRUPT, tid, nothing, nothing), 0);
            let mut status = 0;
            assert_eq!(libc::waitpid(tid, &raw mut status, libc::__WALL), tid);
        }
        Ok(StoppedThread { tid })
    }
}

impl Drop for StoppedThread {
    fn drop(&mut self) {
        let nothing = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: as above; it is stopped, so it can be let go.
        unsafe { libc::ptrace(libc::PTRACE_DETACH, self.tid, nothing, nothing) };
    }
}

#[test]
fn a_port_that_is_taken_and_one_that_is_used_twice_are_refused() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (listen, name_server) = (free_address(), free_address());
    let start = |metrics: SocketAddr| {
        let config = format!(
            "net.listen = \"{listen}\"\nnet.vip = false\nnameserver.embedded = \"{name_server}\"\nmetrics.listen = \"{metrics}\"\n"
        );
        fs::write(dir.path().join("k.toml"), config).unwrap();
        let mut program = Program::new(env!("CARGO_BIN_EXE_kerolox"));
        let output = program.args(["serve", "--config", "k.toml"]).current_dir(dir.path()).output().expect("it runs");
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let addr = taken.local_addr().unwrap();
    let said = start(addr);
    assert!(said.contains(&addr.to_string()) && said.contains("metrics.listen"), "{said}");
    let said = start(listen);
    assert!(said.contains("metrics.listen") && said.contains("use one port twice"), "{said}");
}
