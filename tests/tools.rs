//! The tools that look at a store from outside, as a shell runs them: what they say of stores of Java and of ours, their
//! exit codes, that reading changes nothing, and that a store in use is refused.

mod harness;
#[path = "harness/stored.rs"]
mod stored;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use harness::{HEADER_TYPES, Node, Request};
use stored::{copy_folder, files_below};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn kerolox(arguments: &[&str], dir: &Path) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_kerolox"));
    program.args(arguments).arg(dir).output().expect("the built program starts")
}

fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// Names, lengths, times of change and contents of all that is below a folder.
fn tree(dir: &Path) -> BTreeMap<PathBuf, (u64, std::time::SystemTime, Vec<u8>)> {
    let time = |path: &Path| fs::metadata(path).unwrap().modified().unwrap();
    files_below(dir).into_iter().map(|(path, bytes)| (path.clone(), (bytes.len() as u64, time(&path), bytes))).collect()
}

/// A stopped node's store with a few hundred messages of two topics, delayed ones among them.
fn written() -> Node {
    let mut node = Node::start();
    for header_type in HEADER_TYPES {
        let mut client = node.client(header_type);
        for number in 0..100 {
            let properties = format!("TAGS=t{number};KEYS=k{number} all;UNIQ_KEY=u{number}");
            client.put(&Request::send("TopicA").body(&*format!("body {number}")).properties(&properties));
            client.put(&Request::send("TopicB").body(&*"b".repeat(number + 1)).properties("KEYS=b"));
        }
        client.put(&Request::send("TopicA").body(&*"later").properties("DELAY=18;KEYS=later"));
    }
    assert_eq!(node.stop().code(), Some(0));
    node
}

#[test]
fn verify_finds_nothing_in_stores_that_java_and_we_stopped() {
    let node = written();
    for (dir, records) in [(golden("java-clean"), 30), (golden("java-crash"), 30), (node.root(), 402)] {
        let before = tree(&dir);
        let output = kerolox(&["verify", "--json", "-"], &dir);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let report = json(&output);
        assert_eq!(report["counts"]["records"], records, "{report:#}");
        assert_eq!((&report["errors"], &report["clean"]), (&0.into(), &true.into()), "{report:#}");
        assert_eq!(report["warnings"], u64::from(dir.join("abort").exists()), "{report:#}");
        assert_eq!(tree(&dir), before, "looking changes nothing");
    }
}

#[test]
fn verify_says_what_is_broken_and_ends_with_code_1() {
    let dir = tempfile::tempdir().unwrap();
    copy_folder(&golden("java-clean"), dir.path());
    let segment = dir.path().join("commitlog/00000000000000000000");
    let mut bytes = fs::read(&segment).unwrap();
    bytes[500] ^= 1;
    fs::write(&segment, bytes).unwrap();
    let beside = tempfile::tempdir().unwrap();
    let report = beside.path().join("report.json");
    let output = kerolox(&["verify", "--json", report.to_str().unwrap()], dir.path());
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("error\tI"), "{text}");
    let written: serde_json::Value = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
    assert_eq!(written["clean"], false);
    assert_eq!(written["counts"]["records"], 29, "{written:#}");
}

#[test]
fn what_is_no_store_is_exit_code_2() {
    let dir = tempfile::tempdir().unwrap();
    for command in ["verify"] {
        let output = kerolox(&[command], dir.path());
        assert_eq!(output.status.code(), Some(2), "{command}: {output:?}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "{command} makes nothing");
    }
}

#[test]
fn a_store_in_use_is_refused_and_free_again_after_the_stop() {
    let mut node = Node::start();
    for command in ["verify"] {
        let output = kerolox(&[command], &node.root());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{command}: {said}");
        assert!(said.contains(&format!("in use by process {}", node.pid())), "{command}: {said}");
    }
    assert_eq!(node.stop().code(), Some(0));
    assert_eq!(kerolox(&["verify"], &node.root()).status.code(), Some(0));
}
