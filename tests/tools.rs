//! The tools that look at a store from outside, as a shell runs them: what they say of stores of Java and of ours, their
//! exit codes, that reading changes nothing, and that a store in use is refused.

mod harness;
#[path = "harness/stored.rs"]
mod stored;
#[path = "harness/unpack.rs"]
mod unpack;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use harness::{HEADER_TYPES, Node, Request};
use stored::{copy_folder, files_below};
use unpack::unpack;

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
        client.put(&Request::send("TopicA").body("later").properties("DELAY=18;KEYS=later"));
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
fn a_whole_store_of_a_java_broker_is_sound_and_can_be_rebuilt_and_salvaged() {
    let folder = tempfile::tempdir().unwrap();
    let (store, saved) = (folder.path().join("store"), folder.path().join("saved"));
    unpack(&golden("java-broker-4.9.8.tar.gz"), &store);
    let verify = |dir: &Path| json(&kerolox(&["verify", "--json", "-"], dir));
    let before = tree(&store);
    let report = verify(&store);
    assert_eq!((&report["errors"], &report["counts"]["records"]), (&0.into(), &385.into()), "{report:#}");
    // One of a topic that was deleted; and a consumer offset of a topic that never was.
    assert_eq!((&report["counts"]["retired_records"], &report["warnings"]), (&1.into(), &1.into()), "{report:#}");
    assert_eq!(tree(&store), before, "looking changes nothing");
    let found = json(&kerolox(&["inspect", "--json"], &store));
    assert_eq!((&found["index_slots"], &found["consumequeue_file_len"]), (&5000.into(), &60_000.into()), "{found:#}");

    let output = kerolox(&["salvage", "--to", saved.to_str().unwrap(), "--json", "-"], &store);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(json(&output)["records"], 385);
    assert_eq!(tree(&store), before, "nothing is written in the store");
    assert_eq!(verify(&saved)["errors"], 0);

    let queues = files_below(&store.join("consumequeue"));
    let output = kerolox(&["rebuild"], &store);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(verify(&store)["errors"], 0);
    let rebuilt = files_below(&store.join("consumequeue"));
    // Folders of queues that never had a message are empty before and gone after.
    let with_units = |files: &BTreeMap<PathBuf, Vec<u8>>| {
        files
            .iter()
            .filter(|(_, bytes)| bytes.iter().any(|byte| *byte != 0))
            .map(|(p, b)| (p.clone(), b.clone()))
            .collect::<Vec<_>>()
    };
    assert!(with_units(&rebuilt) == with_units(&queues), "the same bytes");
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
    for command in [
        &["verify"][..],
        &["inspect"],
        &["rebuild"],
        &["dump", "--topic", "T"],
        &["salvage", "--to", "/tmp/no-such-folder/x"],
    ] {
        let output = kerolox(command, dir.path());
        assert_eq!(output.status.code(), Some(2), "{command:?}: {output:?}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "{command:?} makes nothing");
    }
}

#[test]
fn a_store_in_use_is_refused_and_free_again_after_the_stop() {
    let mut node = Node::start();
    for command in [
        &["verify"][..],
        &["inspect"],
        &["rebuild"],
        &["dump", "--topic", "T"],
        &["salvage", "--to", "/tmp/no-such-folder/x"],
    ] {
        let output = kerolox(command, &node.root());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{command:?}: {said}");
        assert!(said.contains(&format!("in use by process {}", node.pid())), "{command:?}: {said}");
    }
    assert_eq!(node.stop().code(), Some(0));
    assert_eq!(kerolox(&["verify"], &node.root()).status.code(), Some(0));
}

#[test]
fn inspect_tells_what_is_there() {
    let node = written();
    // Messages of TopicB get a unique key, as they come without one.
    for (dir, queues, entries) in [(golden("java-clean"), 2, 30), (node.root(), 3, 1004)] {
        let before = tree(&dir);
        let output = kerolox(&["inspect", "--json"], &dir);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let found = json(&output);
        let counted: u64 = found["queues"].as_array().unwrap().iter().map(|q| q["max"].as_u64().unwrap()).sum();
        assert_eq!(found["queues"].as_array().unwrap().len(), queues, "{found:#}");
        assert_eq!(counted, if queues == 2 { 30 } else { 402 }, "{found:#}");
        assert_eq!(found["index"][0]["entries"], entries, "{found:#}");
        assert_eq!(found["stopped_cleanly"], true);
        let lines = kerolox(&["inspect"], &dir);
        assert_eq!(lines.status.code(), Some(0), "{lines:?}");
        let text = String::from_utf8(lines.stdout).unwrap();
        assert_eq!(text.lines().filter(|line| line.starts_with("queue\t")).count(), queues, "{text}");
        assert_eq!(tree(&dir), before, "looking changes nothing");
    }
    assert_eq!(json(&kerolox(&["inspect", "--json"], &node.root()))["index_slots"], 5000);
}

#[test]
fn dump_prints_the_messages_of_a_queue() {
    let dir = golden("java-clean");
    let before = tree(&dir);
    let output = kerolox(&["dump", "--topic", "A", "--from", "3", "--count", "4", "--json", "--body", "hex"], &dir);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let lines: Vec<serde_json::Value> =
        String::from_utf8(output.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.iter().map(|line| line["offset"].as_u64().unwrap()).collect::<Vec<_>>(), [3, 4, 5, 6]);
    for line in &lines {
        assert_eq!((&line["topic"], &line["crc_matches"]), (&"A".into(), &true.into()), "{line:#}");
        assert_eq!(line["body"].as_str().unwrap().len() as u64, 2 * line["body_size"].as_u64().unwrap(), "{line:#}");
    }
    let lines = kerolox(&["dump", "--topic", "B"], &dir);
    assert_eq!(String::from_utf8(lines.stdout).unwrap().lines().count(), 10);
    assert_eq!(kerolox(&["dump", "--topic", "C"], &dir).status.code(), Some(1));
    assert_eq!(tree(&dir), before, "looking changes nothing");
}

#[test]
fn rebuild_gives_back_the_derived_files_byte_for_byte() {
    let node = written();
    let copy = tempfile::tempdir().unwrap();
    copy_folder(&golden("java-clean"), copy.path());
    for root in [node.root(), copy.path().to_owned()] {
        let derived = |root: &Path| {
            let queues = files_below(&root.join("consumequeue"));
            (queues, files_below(&root.join("index")).into_values().collect::<Vec<_>>())
        };
        let before = derived(&root);
        let output = kerolox(&["rebuild"], &root);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert_eq!(derived(&root), before);
        // Nothing derived is left, and nothing tells how the files were.
        fs::remove_dir_all(root.join("consumequeue")).unwrap();
        fs::remove_dir_all(root.join("index")).unwrap();
        let settings = copy.path().with_extension("toml");
        let sizes = if before.1[0].len() > 10_000 { (60_000, 5000, 20_000) } else { (200, 100, 400) };
        let lines = format!(
            "[store]\nconsumequeue_file_size = {}\nindex_slots = {}\nindex_entries = {}\n",
            sizes.0, sizes.1, sizes.2
        );
        fs::write(&settings, lines).unwrap();
        let output = kerolox(&["rebuild", "--config", settings.to_str().unwrap()], &root);
        fs::remove_file(&settings).unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert_eq!(derived(&root), before);
        let verified = kerolox(&["verify", "--json", "-"], &root);
        assert_eq!(json(&verified)["errors"], 0, "{verified:?}");
    }
}

#[test]
fn salvage_saves_what_is_left_and_a_node_goes_on_with_it() {
    let node = written();
    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().join("saved");
    let to = saved.to_str().unwrap();
    // A page in the middle of the log is overwritten.
    let segment = node.root().join("commitlog/00000000000000000000");
    let mut bytes = fs::read(&segment).unwrap();
    bytes[40_000..44_096].fill(0xEE);
    fs::write(&segment, bytes).unwrap();
    let before = tree(&node.root());
    let output = kerolox(&["salvage", "--to", to, "--json", "-"], &node.root());
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let report = json(&output);
    assert_eq!(tree(&node.root()), before, "nothing is written in the store");
    let (kept, lost) = (report["records"].as_u64().unwrap(), report["lost_messages"].as_u64().unwrap());
    assert_eq!(kept + lost, 402, "{report:#}");
    assert!(lost > 0 && report["lost_bytes"].as_u64().unwrap() >= 4096, "{report:#}");
    let verified = kerolox(&["verify", "--json", "-"], &saved);
    assert_eq!(verified.status.code(), Some(0), "{verified:?}");
    assert_eq!(json(&verified)["quarantined"][0]["units"], lost, "{verified:?}");
    assert_eq!(kerolox(&["salvage", "--to", to], &node.root()).status.code(), Some(2), "it is not empty any more");

    let mut node = Node::prepared(&[], |program| {
        copy_folder(&saved, &program.get_current_dir().unwrap().join("data"));
    });
    let mut client = node.client(HEADER_TYPES[0]);
    let mut pulled = 0;
    for topic in ["TopicA", "TopicB"] {
        let mut at = 0;
        loop {
            let answer = client.ask(&Request::pull(topic, at));
            if answer.code == kerolox::wire::code::response::PULL_NOT_FOUND {
                break;
            }
            if answer.code == 0 {
                pulled += answer.records().len() as u64;
            }
            let next = answer.number("nextBeginOffset");
            assert!(next > at, "{answer:?}");
            at = next;
        }
        assert_eq!(at, 200, "the next message gets the offset that it would have had");
        let sent = client.put(&Request::send(topic).body("goes on"));
        assert_eq!(sent.number("queueOffset"), 200);
    }
    assert_eq!(pulled, kept - 2, "the delayed ones wait");
    assert_eq!(node.stop().code(), Some(0));
    assert_eq!(kerolox(&["verify"], &node.root()).status.code(), Some(0));
}

#[test]
fn a_salvage_of_a_sound_store_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().join("saved");
    let output = kerolox(&["salvage", "--to", saved.to_str().unwrap()], &golden("java-clean"));
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(files_below(&saved.join("commitlog")).into_values().collect::<Vec<_>>(), {
        files_below(&golden("java-clean").join("commitlog")).into_values().collect::<Vec<_>>()
    });
    assert_eq!(kerolox(&["verify"], &saved).status.code(), Some(0));
}

#[test]
fn flags_are_obeyed_or_refused_and_no_report_is_written_into_a_store() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    copy_folder(&golden("java-clean"), &store);
    let before = files_below(&store);
    for to in [store.join("report.json"), store.join("checkpoint")] {
        for command in [&["verify"][..], &["salvage", "--to", "/tmp/no-such-folder/x"]] {
            let output = kerolox(&[command, &["--json", to.to_str().unwrap()]].concat(), &store);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(2), "{said}");
            assert!(said.contains("lies in the store"), "{said}");
        }
    }
    let output = kerolox(&["verify", "--json", "/no-such-folder/report.json"], &store);
    assert!(String::from_utf8_lossy(&output.stderr).contains("/no-such-folder/report.json"), "{output:?}");
    assert!(files_below(&store) == before, "nothing is written");
    let output = kerolox(&["rebuild", "--index-slots", "50", "--index-entries", "90"], &store);
    assert_eq!(output.status.code(), Some(2), "another length than the files have: {output:?}");
    fs::remove_dir_all(store.join("index")).unwrap();
    assert_eq!(kerolox(&["rebuild", "--index-slots", "50"], &store).status.code(), Some(2));
    let saved = folder.path().join("saved");
    let output = kerolox(&["salvage", "--commitlog-file-size", "4KiB", "--to", saved.to_str().unwrap()], &store);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("there is no --config") && said.contains("slots"), "{said}");
    let output = kerolox(&["rebuild", "--index-slots", "100", "--index-entries", "400"], &store);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let index = files_below(&store.join("index"));
    assert!(index.values().all(|bytes| bytes.len() == 40 + 100 * 4 + 400 * 20) && !index.is_empty());
}

#[test]
fn import_config_makes_a_file_that_check_config_accepts() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("broker.conf"), folder.path().join("kerolox.toml"));
    fs::write(
        &from,
        "\u{FEFF}brokerName = broker-b\nlistenPort = 20911\nflushDiskType = SYNC_FLUSH\nsyncFlushTimeout = 5000\n",
    )
    .unwrap();
    let output = kerolox(&["import-config", "-o", to.to_str().unwrap()], &from);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("line 4: syncFlushTimeout = 5000: lowered to 2700"), "{said}");
    let checked = kerolox(&["check-config"], &to);
    assert_eq!(checked.status.code(), Some(0), "{checked:?}");
    let text = String::from_utf8(checked.stdout).unwrap();
    assert!(text.contains("broker.name = \"broker-b\"") && text.contains("net.listen = \"0.0.0.0:20911\""), "{text}");
    let again = kerolox(&["import-config", "-o", to.to_str().unwrap()], &from);
    assert_eq!(again.status.code(), Some(2), "a file that is there is not replaced: {again:?}");
    fs::write(&from, "brokerRole = SLAVE\n").unwrap();
    let refused = kerolox(&["import-config"], &from);
    assert_eq!((refused.status.code(), refused.stdout.len()), (Some(2), 0), "{refused:?}");
}
