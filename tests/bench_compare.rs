//! `kerolox-bench report`, `compare`, `ladder` and `soak`, as a user runs them: the built programs, a real node, files.
//!
//! What is measured is not judged here; that every part of an answer is there, and that it is well formed, is.

mod harness;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use harness::{Node, free_address, free_address_with_vip};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// A load that is over soon.
const TINY: [&str; 10] =
    ["--warmup", "0.1", "--duration", "0.4", "--interval", "0.1", "--connections", "2", "--timeout-ms", "60000"];

/// How long a message may wait for its writer and then for a flush; clients give both together 2.9 s.
const PUT_WAIT_MS: &str = "2000";
const SYNC_TIMEOUT_MS: &str = "900";

fn bench(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kerolox-bench")).args(args).output().expect("it runs")
}

/// A node that refuses nothing because this machine has other work.
fn patient_node() -> Node {
    Node::with(&[("limits.put_wait_ms", PUT_WAIT_MS), ("flush.sync_timeout_ms", SYNC_TIMEOUT_MS)])
}

/// Runs a load and gives what was printed. A busy machine may make some messages fail, which has an exit code of its own
/// and is not what these tests are about.
fn measured(args: &[&str]) -> String {
    let output = bench(args);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(matches!(output.status.code(), Some(0 | 3)), "{:?} of {args:?}\n{out}\n{err}", output.status);
    format!("{out}{err}")
}

/// Runs it and gives what it printed, once its exit code is as expected.
fn told(args: &[&str], code: i32) -> String {
    let output = bench(args);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{args:?}\n{out}\n{err}");
    format!("{out}{err}")
}

fn with<'a>(args: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    args.iter().chain(more).copied().collect()
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).expect("it was written")).expect("it is JSON")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path in ASCII")
}

/// Every tag is closed in its order, every attribute quoted and no text a stray bracket; gives the tags seen.
fn well_formed(page: &str) -> Vec<String> {
    let mut rest = page.strip_prefix("<!doctype html>").expect("it is an HTML document");
    let (mut open, mut seen): (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());
    while let Some(start) = rest.find('<') {
        // A style sheet may have brackets of its own.
        let in_style = open.last().is_some_and(|tag| tag == "style");
        assert!(in_style || !rest[..start].contains('>'), "a stray bracket in {:?}", &rest[..start]);
        let end = start + rest[start..].find('>').expect("a tag ends");
        let tag = &rest[start + 1..end];
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(name), "closed out of order");
            continue;
        }
        let (tag, is_empty) = tag.strip_suffix('/').map_or((tag, false), |tag| (tag, true));
        let (name, mut attributes) = tag.split_once(' ').unwrap_or((tag, ""));
        assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{name:?}");
        while !attributes.trim().is_empty() {
            let (key, after) = attributes.split_once("=\"").expect("an attribute has a quoted value");
            assert!(key.trim().bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-'), "{key:?}");
            attributes = after.split_once('"').expect("its quotes are closed").1;
        }
        seen.push(name.to_owned());
        if !is_empty {
            open.push(name.to_owned());
        }
    }
    assert_eq!(open, [] as [String; 0], "not closed");
    seen
}

fn assert_is_page(path: &Path, wanted: &[&str]) {
    let page = fs::read_to_string(path).expect("it was written");
    let seen = well_formed(&page);
    assert!(seen.iter().any(|tag| tag == "polyline") && !seen.iter().any(|tag| tag == "script"), "{seen:?}");
    for wanted in wanted {
        assert!(page.contains(wanted), "{wanted:?} in {}", path.display());
    }
}

#[test]
fn a_run_carries_its_machine_and_two_runs_become_a_page() {
    let node = patient_node();
    let (broker, dir) = (node.broker.to_string(), TempDir::new().unwrap());
    let mut results = Vec::new();
    for (name, label) in [("one", "first <run>"), ("two", "second & last")] {
        let path = dir.path().join(format!("{name}.json"));
        let root = node.root();
        let mut place = vec!["run", "--broker", &broker, "--label", label, "--json", text(&path)];
        if name == "one" {
            place.extend(["--store-dir", text(&root)]);
        }
        measured(&with(&place, &TINY));
        let machine = &json(&path)["machine"];
        assert_eq!(machine["broker"]["flush"], "async", "{machine}");
        // The second time nobody says where.
        assert_eq!(machine["storage"]["dir"], text(&root.canonicalize().unwrap()), "{machine}");
        assert!(machine["storage"]["fileSystem"].is_string(), "{machine}");
        let command_line = machine["broker"]["commandLine"].as_str().expect("it runs here");
        assert!(command_line.contains("serve --config"), "{command_line}");
        assert_eq!(machine["broker"]["settings"]["store.commitlog_file_size"], "16MiB", "{machine}");
        let gaps = machine["notFound"].as_array().expect("a list");
        assert!(gaps.iter().all(|gap| gap.as_str().is_some_and(|gap| gap.contains(": "))), "{machine}");
        results.push(path);
    }
    let page = dir.path().join("page.html");
    told(&["report", text(&results[0]), text(&results[1]), "--out", text(&page), "--title", "<b>Both</b>"], 0);
    assert_is_page(
        &page,
        &[
            "&lt;b&gt;Both&lt;/b&gt;",
            "first &lt;run&gt;",
            "second &amp; last",
            "Send latency",
            "Rate over the time",
            "file system",
        ],
    );

    let mut bare = json(&results[0]);
    bare.as_object_mut().expect("an object").remove("machine");
    let (path, out) = (dir.path().join("bare.json"), dir.path().join("never.html"));
    fs::write(&path, bare.to_string()).unwrap();
    let why = told(&["report", text(&path), "--out", text(&out)], 2);
    assert!(why.contains("machine") && why.contains("bare.json"), "{why}");
    assert!(!out.exists());
}

#[test]
fn a_running_broker_is_compared_with_itself() {
    let node = patient_node();
    let (broker, dir) = (node.broker.to_string(), TempDir::new().unwrap());
    let (a, b) = (format!("left={broker}"), format!("right={broker}"));
    let (data, page) = (dir.path().join("c.json"), dir.path().join("c.html"));
    let args = ["compare", "--a", &a, "--b", &b, "--rounds", "2", "--json", text(&data), "--html", text(&page)];
    let said = measured(&with(&args, &TINY));
    for wanted in ["left / right", "rate, messages/s", "send p99.9, ms", "broker CPU", "2 rounds"] {
        assert!(said.contains(wanted), "{wanted} in {said}");
    }
    let found = json(&data);
    for side in ["a", "b"] {
        let runs = found[side].as_array().expect("its runs");
        assert_eq!(runs.len(), 2);
        // The process behind the address was found without being named.
        assert_eq!(runs[0]["plan"]["pid"], node.pid());
    }
    let row = &found["rows"].as_array().expect("its rows")[0];
    let [low, median, high] = ["low", "median", "high"].map(|key| row["ratio"][key].as_f64().expect("a number"));
    assert!(low <= median && median <= high && low > 0.0, "{row}");
    // The second round begins with the broker that was second in the first.
    let turns: Vec<&str> = said.lines().filter(|line| line.starts_with("round ")).collect();
    let labels: Vec<bool> = turns.iter().map(|line| line.contains("left on")).collect();
    assert_eq!(labels, [true, false, false, true], "{turns:?}");
    assert_is_page(&page, &["left against right", "left, round 2", "Ratios", "Send latency"]);
}

/// Begins a comparison of the node with itself, and interrupts it once a line of its standard error has the text.
fn interrupted(node: &Node, rounds: &[&str], when: &str, json: &Path, page: &Path) -> (Option<i32>, String) {
    let broker = node.broker.to_string();
    let mut program = Command::new(env!("CARGO_BIN_EXE_kerolox-bench"));
    program.args(["compare", "--a", &format!("left={broker}"), "--b", &format!("right={broker}")]).args(rounds);
    program.arg("--json").arg(json).arg("--html").arg(page);
    let mut child = program.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    for line in BufReader::new(child.stderr.take().expect("it was asked for")).lines() {
        let line = line.unwrap();
        if line.contains(when) {
            kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        }
        said += &(line + "\n");
    }
    let output = child.wait_with_output().unwrap();
    (output.status.code(), said + &String::from_utf8(output.stdout).unwrap())
}

#[test]
fn an_interrupted_comparison_gives_the_rounds_that_were_finished() {
    let node = patient_node();
    let dir = TempDir::new().unwrap();
    let (data, page) = (dir.path().join("c.json"), dir.path().join("c.html"));
    let rounds = with(&["--rounds", "500"], &TINY);
    let (code, said) = interrupted(&node, &rounds, "round 2 of 500: left", &data, &page);
    assert_eq!(code, Some(1), "{said}");
    let found = json(&data);
    assert_eq!(found["stoppedOf"], 500);
    // The second, on a machine that is slow to bring a signal about.
    let finished = found["rounds"].as_u64().filter(|finished| (1..500).contains(finished)).expect("some were finished");
    // The second round had begun with the second broker: one turn alone is no round.
    for side in ["a", "b"] {
        assert_eq!(found[side].as_array().map(Vec::len), Some(finished as usize), "{side}");
    }
    let stopped = format!("stopped after {finished} of 500 rounds");
    assert!(said.contains(&format!("of {finished} rounds; {stopped}\n")), "{said}");
    assert!(said.contains(&format!("kerolox-bench: {stopped}: round ")), "{said}");
    assert!(said.contains("left / right") && said.contains("rate, messages/s"), "{said}");
    assert_is_page(&page, &[&stopped, "left, round 1", "Ratios"]);

    let (data, page) = (dir.path().join("none.json"), dir.path().join("none.html"));
    let (code, said) = interrupted(&node, &["--duration", "600"], "round 1 of 5: left", &data, &page);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("no round was finished"), "{said}");
    assert!(!data.exists() && !page.exists());
}

#[test]
fn brokers_are_started_for_their_turns_and_stopped_after_them() {
    let dir = TempDir::new().unwrap();
    let mut sides = Vec::new();
    for flush in ["async", "sync"] {
        let (address, settings) = (free_address_with_vip(), dir.path().join(format!("{flush}.toml")));
        let lines = format!(
            "net.listen = \"{address}\"\nnet.vip = false\nnameserver.embedded = \"{}\"\nmetrics.listen = \"off\"\n\
             store.root = {:?}\nstore.commitlog_file_size = \"16MiB\"\nflush.mode = \"{flush}\"\n\
             limits.put_wait_ms = {PUT_WAIT_MS}\nflush.sync_timeout_ms = {SYNC_TIMEOUT_MS}\n",
            free_address(),
            dir.path().join(flush)
        );
        fs::write(&settings, lines).unwrap();
        let command = format!("exec {} serve --config {}", env!("CARGO_BIN_EXE_kerolox"), settings.display());
        sides.push((format!("{flush}={address}"), command, address));
    }
    let [a, b] = &sides[..] else { unreachable!("two") };
    let data = dir.path().join("c.json");
    let args = ["compare", "--a", &a.0, "--b", &b.0, "--a-command", &a.1, "--b-command", &b.1];
    measured(&with(&with(&args, &["--rounds", "1", "--json", text(&data)]), &TINY));
    let found = json(&data);
    let flush = |side: &str| found[side][0]["machine"]["broker"]["flush"].clone();
    assert_eq!([flush("a"), flush("b")], ["async", "sync"]);
    for (_, _, address) in &sides {
        assert!(std::net::TcpStream::connect(address).is_err(), "{address} still answers");
    }
    // They were stopped in order: a node that was killed leaves its marker.
    for flush in ["async", "sync"] {
        assert!(!dir.path().join(flush).join("abort").exists(), "{flush}");
    }

    let node = patient_node();
    let taken = node.broker.to_string();
    let args = ["compare", "--a", &taken, "--b", &b.0, "--a-command", "true"];
    let why = told(&with(&args, &TINY), 1);
    assert!(why.contains("answers on") && why.contains("already"), "{why}");
}

#[test]
fn a_ladder_finds_a_maximum_and_runs_its_shares() {
    let node = patient_node();
    let (broker, dir) = (node.broker.to_string(), TempDir::new().unwrap());
    let (data, page) = (dir.path().join("l.json"), dir.path().join("l.html"));
    let files = ["--json", text(&data), "--html", text(&page)];
    // With a limit that a busy machine keeps as well; what a rate is held by has tests beside its code.
    let args = ["ladder", "--broker", &broker, "--steps", "10,20", "--held-p99-ms", "60000", "--held-percent", "1"];
    let args = with(
        &with(&args, &files),
        &["--warmup", "0.1", "--duration", "1", "--connections", "2", "--depth", "1", "--timeout-ms", "60000"],
    );
    let said = measured(&args);
    assert!(said.contains("maximum held:") && said.contains("10 %") && said.contains("20 %"), "{said}");
    let found = json(&data);
    let maximum = found["maximum"].as_f64().expect("a rate");
    let steps = found["steps"].as_array().expect("its steps");
    assert_eq!(steps.len(), 2);
    assert!((steps[1]["rate"].as_f64().expect("a rate") - maximum * 0.2).abs() <= 0.5, "{maximum}");
    assert!(found["closed"]["messages"].as_u64().expect("a count") > 0);
    assert_is_page(&page, &["Ladder", "20 %", "Send latency"]);

    let why = told(&["ladder", "--broker", &broker, "--rate", "5"], 2);
    assert!(why.contains("--maximum"), "{why}");
}

#[test]
fn a_soak_passes_and_fails_by_its_limits() {
    let node = patient_node();
    let (broker, dir) = (node.broker.to_string(), TempDir::new().unwrap());
    let (data, page) = (dir.path().join("s.json"), dir.path().join("s.html"));
    let load = ["--rate", "200", "--minutes", "0.01", "--warmup", "0.1", "--interval", "0.2", "--timeout-ms", "60000"];
    let soak = |more: &[&str], code: i32| told(&with(&with(&["soak", "--broker", &broker], &load), more), code);
    let said = soak(&["--act", "--limit", "0:100", "--json", text(&data), "--html", text(&page)], 0);
    assert!(said.contains("PASS"), "{said}");
    let found = json(&data);
    assert_eq!((&found["passed"], found["minutes"].as_array().map(Vec::len)), (&Value::Bool(true), Some(1)));
    assert_is_page(&page, &["Minute by minute", "PASS", "above 0 ms"]);
    let said = soak(&["--act", "--limit", "0:0"], 1);
    assert!(said.contains("FAIL") && said.contains("above 0 ms"), "{said}");
    let said = soak(&["--limit", "0:0"], 0);
    assert!(said.contains("not judged"), "{said}");
    let why = told(&["soak", "--broker", &broker, "--minutes", "0.01"], 2);
    assert!(why.contains("--rate"), "{why}");
}

#[test]
fn a_soak_that_is_stopped_has_not_passed() {
    let node = patient_node();
    let dir = TempDir::new().unwrap();
    let (json_file, html) = (dir.path().join("soak.json"), dir.path().join("soak.html"));
    let mut program = Command::new(env!("CARGO_BIN_EXE_kerolox-bench"));
    program.args(["soak", "--act", "--broker", &node.broker.to_string(), "--rate", "200", "--minutes", "60"]);
    program.args(["--warmup", "0", "--interval", "0.1", "--timeout-ms", "60000", "--limit", "1:100", "--json"]);
    let child = program.arg(&json_file).arg("--html").arg(&html).stdout(Stdio::piped()).spawn().unwrap();
    // Something is measured once messages come in after the topic was made.
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut client = node.client(kerolox::wire::HeaderType::Json);
    let asked = harness::Request::queue(kerolox::wire::code::request::GET_MAX_OFFSET, "kerolox-bench");
    while client.ask(&asked).ext.get("offset").is_none_or(|end| end == "0") {
        assert!(Instant::now() < deadline, "nothing is sent");
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_millis(300));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("FAIL: ended after "), "{output:?}");
    assert_eq!(json(&json_file)["passed"], false);
    assert!(fs::read_to_string(&html).unwrap().contains("FAIL: ended after "));
}

#[test]
fn nobody_who_reads_the_output_is_no_reason_to_lose_a_result() {
    let node = patient_node();
    let broker = node.broker.to_string();
    let dir = TempDir::new().unwrap();
    for (name, options) in [
        ("run", &[][..]),
        ("ladder", &["--maximum", "200"]),
        ("soak", &["--rate", "200", "--minutes", "0.005"]),
        ("compare", &["--rounds", "1", "--rate", "200"]),
    ] {
        let file = dir.path().join(name);
        let target: &[&str] =
            if name == "compare" { &["--a", &broker, "--b", &broker] } else { &["--broker", &broker] };
        let mut program = Command::new(env!("CARGO_BIN_EXE_kerolox-bench"));
        program.arg(name).args(target).args(options).args(TINY).arg("--json").arg(&file);
        let mut child = program.stdout(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let code = child.wait().unwrap().code();
        assert!(matches!(code, Some(0 | 3)), "{name}: {code:?}");
        assert!(json(&file).is_object(), "{name}");
    }
}
