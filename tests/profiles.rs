//! The profiles of `tuning/profiles`: each is known to the node line by line, explained line by line, and starts one that
//! takes a message and gives it back.

mod harness;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use harness::{HEADER_TYPES, Node, Request};
use kerolox::config::{Config, FlushMode, Overrides, Source};
use kerolox::wire::code::request;
use kerolox::wire::lists::KvTable;

const DOCUMENTED: &str = include_str!("../docs/kerolox.toml");

fn profiles() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tuning/profiles");
    let mut paths: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

fn name(path: &Path) -> &str {
    path.file_stem().unwrap().to_str().unwrap()
}

/// Section and key of each line that sets something, in order.
fn keys(text: &str) -> Vec<String> {
    let mut section = "";
    let mut keys = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        match (line.strip_prefix('['), line.split_once(" = ")) {
            (Some(rest), _) => section = rest.trim_end_matches(']'),
            (None, Some((key, _))) => keys.push(format!("{section}.{key}")),
            (None, None) => {}
        }
    }
    keys
}

fn kerolox(args: &[&str]) -> String {
    let told = Command::new(env!("CARGO_BIN_EXE_kerolox")).args(args).output().unwrap();
    let said = String::from_utf8_lossy(&told.stdout).into_owned() + &String::from_utf8_lossy(&told.stderr);
    assert!(told.status.success(), "kerolox {args:?}: {said}");
    said
}

#[test]
fn every_profile_is_there() {
    let paths = profiles();
    let names: Vec<_> = paths.iter().map(|path| name(path)).collect();
    assert_eq!(names, ["async-throughput", "low-latency", "mixed", "small-vm", "sync-durable"]);
}

#[test]
fn check_config_knows_every_line_of_every_profile() {
    for path in profiles() {
        let said = kerolox(&["check-config", path.to_str().unwrap()]);
        let keys = keys(&fs::read_to_string(&path).unwrap());
        let from_file: Vec<_> = said.lines().filter(|line| line.contains(&format!("# {}:", path.display()))).collect();
        assert_eq!(from_file.len(), keys.len(), "{said}");
        assert!(keys.iter().all(|key| from_file.iter().any(|line| line.starts_with(&format!("{key} = ")))), "{said}");
    }
}

#[test]
fn every_line_of_a_profile_has_its_reason_and_stands_in_the_documented_settings() {
    let documented = keys(DOCUMENTED);
    for path in profiles() {
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<_> = text.lines().collect();
        for (at, line) in lines.iter().enumerate().filter(|(_, line)| line.contains(" = ") && !line.starts_with('#')) {
            assert!(lines[at - 1].starts_with("# "), "{}:{}: {line} has no reason above it", path.display(), at + 1);
        }
        for key in keys(&text) {
            assert!(documented.contains(&key), "{}: {key} is not in docs/kerolox.toml", path.display());
        }
    }
}

#[test]
fn profiles_settle_what_their_use_depends_on() {
    for path in profiles() {
        let text = fs::read_to_string(&path).unwrap();
        let config = Config::from_text(&path, &text, Overrides::default()).unwrap();
        let set: BTreeMap<_, _> = config
            .settings()
            .iter()
            .filter(|setting| setting.source != Source::Default)
            .map(|setting| (setting.key, setting.value.as_str()))
            .collect();
        for key in ["store.root", "store.append", "store.zero_ahead", "store.commitlog_file_size", "flush.mode"] {
            assert!(set.contains_key(key), "{}: {key} is left to the default", path.display());
        }
        for section in ["retention.", "disk.", "limits."] {
            assert!(set.keys().any(|key| key.starts_with(section)), "{}: nothing of {section}", path.display());
        }
        let mode = if name(&path) == "sync-durable" { FlushMode::Sync } else { FlushMode::Async };
        assert_eq!(config.flush.mode, mode, "{}", path.display());
        if mode == FlushMode::Async {
            assert!(set.contains_key("flush.interval_ms"), "{}", path.display());
        }
    }
}

#[test]
fn a_node_starts_with_every_profile_and_keeps_a_message() {
    for path in profiles() {
        let node = Node::of_file(&fs::read_to_string(&path).unwrap(), &["--data", "data"]);
        let name_server = node.name_server.to_string();
        let topic = |command: &[&str]| kerolox(&[&["topic"], command, &["--namesrv", &name_server]].concat());
        topic(&["create", "Orders", "--queues", "4"]);
        if name(&path) == "mixed" {
            topic(&["set", "Orders", "--flush", "sync"]);
        }
        for (number, header_type) in HEADER_TYPES.into_iter().enumerate() {
            let body = format!("{} {number}", name(&path));
            let mut client = node.client(header_type);
            client.put(&Request::send("Orders").body(body.as_str()));
            if ["mixed", "sync-durable"].contains(&name(&path)) {
                let answer = client.ask(&Request::new(request::GET_BROKER_RUNTIME_INFO));
                let table = KvTable::decode(&answer.body).unwrap().table;
                assert_eq!(table["keroloxUnflushedBytes"], "0", "{}: answered once on stable storage", path.display());
            }
            assert_eq!(client.pull_until("Orders", number as i64, 1).bodies(), [body]);
        }
    }
}
