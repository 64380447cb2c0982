//! The way of a new user: `kerolox-tune probe`, `kerolox-tune recommend`, a node with the answer. And what stands in it.

mod harness;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use harness::{HEADER_TYPES, Node, Request};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Runs in this folder.
fn tune(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kerolox-tune")).args(args).current_dir(dir).output().unwrap()
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// As few bytes as a probe may be asked for, and as much time as it needs on a busy machine.
const SMALL: [&str; 5] = ["probe", "--max-bytes", "384MiB", "--max-seconds", "600"];

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_probe_a_recommendation_and_a_node_that_starts_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let probed = tune(dir.path(), &SMALL);
    assert_eq!(probed.status.code(), Some(0), "{}", said(&probed));
    assert_eq!(names(dir.path()), ["kerolox-probe.json"], "nothing else is left");
    let table = String::from_utf8(probed.stdout).unwrap();
    assert!(table.contains("256 waiters") && table.contains("One record of 4 KiB"), "{table}");
    let json: Value = serde_json::from_slice(&fs::read(dir.path().join("kerolox-probe.json")).unwrap()).unwrap();
    assert!(json["flush"].as_array().unwrap().len() > 5 && json["group_commit"][0]["times"]["p50_us"].is_number());

    // Whatever this machine's disk is: an hour of p99 can be kept, so there is an answer.
    let recommend = ["recommend", "--p99-ms", "3600000", "--rate", "100", "--out", "kerolox.toml"];
    let recommended = tune(dir.path(), &recommend);
    assert_eq!(recommended.status.code(), Some(0), "{}", said(&recommended));
    assert!(said(&recommended).contains("next: kerolox serve --config kerolox.toml"), "{}", said(&recommended));
    let checked = Command::new(env!("CARGO_BIN_EXE_kerolox"))
        .args(["check-config", "kerolox.toml"])
        .current_dir(dir.path())
        .output()
        .unwrap();
    assert_eq!(checked.status.code(), Some(0), "{}", said(&checked));
    // An answer that is there already is not lost by asking again.
    let again = tune(dir.path(), &recommend);
    assert_eq!(again.status.code(), Some(2), "{}", said(&again));
    assert!(said(&again).contains("--force"), "{}", said(&again));
    assert_eq!(tune(dir.path(), &[&recommend[..], &["--force"]].concat()).status.code(), Some(0));

    let settings = fs::read_to_string(dir.path().join("kerolox.toml")).unwrap();
    let mut node = Node::of_file(&settings, &[]);
    for (number, header_type) in HEADER_TYPES.into_iter().enumerate() {
        let mut client = node.client(header_type);
        client.put(&Request::send("Orders").body(format!("{number}")));
        assert_eq!(client.pull_until("Orders", number as i64, 1).bodies(), [number.to_string()]);
    }
    assert!(dir.path().join("kerolox-data/commitlog").is_dir(), "the store lies where the probe looked");
    assert!(node.stop().success());
    // From now on the store's own folder is what a probe measures, beside what it holds.
    let before = names(&dir.path().join("kerolox-data"));
    let probed = tune(dir.path(), &SMALL);
    assert_eq!(probed.status.code(), Some(0), "{}", said(&probed));
    assert!(said(&probed).contains("/kerolox-data\n"), "{}", said(&probed));
    assert_eq!(names(&dir.path().join("kerolox-data")), before);
}

#[test]
fn ctrl_c_ends_a_probe_and_leaves_nothing_behind() {
    for signal in [Signal::INT, Signal::TERM] {
        let dir = tempfile::tempdir().unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_kerolox-tune"))
            .args(["probe", ".", "--json", "none.json"])
            .current_dir(dir.path())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let first = lines.next().unwrap().unwrap();
        assert!(first.starts_with("flush curve: 0 of "), "{first}");
        assert!(names(dir.path())[0].starts_with(".kerolox-probe-"), "{:?}", names(dir.path()));
        kill_process(Pid::from_child(&child), signal).unwrap();
        let last = lines.last().unwrap().unwrap();
        assert_eq!(last, "kerolox-tune: stopped; nothing is left behind");
        assert_eq!(child.wait().unwrap().code(), Some(1));
        assert!(names(dir.path()).is_empty());
    }
}

#[test]
fn what_stands_in_the_way_is_one_line_and_exit_code_2() {
    let dir = tempfile::tempdir().unwrap();
    for (args, line) in [
        (&["recommend"][..], "kerolox-probe.json: there is no such file; make it with: kerolox-tune probe"),
        (&["recommend", "--probe", "."], "kerolox-probe.json: there is no such file"),
        (&["probe", "none"], "none: no folder to measure in"),
        (&["probe", ".", "--json", "none/probe.json"], "none/probe.json: cannot be written"),
        (&["probe", ".", "--max-bytes", "1MiB"], "must be at least 384 MiB"),
        (&["recommend", "--p99-ms", "0"], "must be a number above 0"),
        (&["recommend", "--size", "1GiB"], "must be from 1 byte to 15MiB"),
    ] {
        let output = tune(dir.path(), args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", said(&output));
        assert!(said(&output).contains(line), "{args:?}: {}", said(&output));
    }
    assert!(names(dir.path()).is_empty());
    fs::write(dir.path().join("kerolox-probe.json"), "{").unwrap();
    let output = tune(dir.path(), &["recommend"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("kerolox-probe.json: is no result of a probe"), "{}", said(&output));
}

#[test]
fn a_request_that_nothing_meets_is_refused_with_exit_code_1_and_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let probes = Path::new(env!("CARGO_MANIFEST_DIR")).join("tuning/recommend/probes");
    let slow = probes.join("slow-disk.json");
    let ask = |more: &[&str]| {
        let args = [&["recommend", "--probe", slow.to_str().unwrap(), "--out", "kerolox.toml"], more].concat();
        tune(dir.path(), &args)
    };
    let refused = ask(&["--p99-ms", "5", "--loss-window-ms", "0"]);
    assert_eq!(refused.status.code(), Some(1), "{}", said(&refused));
    assert!(said(&refused).contains("no setting gives what is asked for"), "{}", said(&refused));
    assert!(said(&refused).contains("not sync: its p99 would be"), "{}", said(&refused));
    assert!(names(dir.path()).is_empty());
    assert_eq!(ask(&["--p99-ms", "5"]).status.code(), Some(0));
    assert_eq!(names(dir.path()), ["kerolox.toml"]);
}
