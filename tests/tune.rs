//! `kerolox-tune check`, `apply` and `undo`, and `kerolox serve --strict`: the built programs, on trees of files that look
//! like hosts, and on this host as far as nothing is changed.

#[path = "../tuning/test_tree.rs"]
#[allow(dead_code, reason = "shared with the library's own tests, which use the rest")]
mod test_tree;

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use test_tree::{DATA, Tree};

const SWAPPINESS: &str = "/proc/sys/vm/swappiness";
const SOMAXCONN: &str = "/proc/sys/net/core/somaxconn";
const SCHEDULER: &str = "/sys/block/sda/queue/scheduler";
const NR_REQUESTS: &str = "/sys/block/sda/queue/nr_requests";
const READ_AHEAD: &str = "/sys/block/dm-0/queue/read_ahead_kb";

/// A host on which much is not as wanted: a volume over two disks, one by a partition.
fn host() -> Tree {
    let tree = Tree::new();
    let queue =
        |scheduler| [("scheduler", scheduler), ("nr_requests", "64"), ("rotational", "0"), ("read_ahead_kb", "64")];
    tree.disk("sda", &queue("none [bfq]"));
    tree.disk("nvme0n1", &queue("[none] mq-deadline"));
    tree.partition("nvme0n1", "nvme0n1p2");
    tree.above("dm-0", &["sda", "nvme0n1p2"], &[("read_ahead_kb", "8192")]);
    tree.mounted("dm-0", "ext4", "rw,relatime,discard");
    tree.put(SWAPPINESS, "60\n");
    tree.put("/proc/swaps", "Filename Type Size Used Priority\n/dev/sdb file 1 0 -2\n");
    tree.put(SOMAXCONN, "128\n");
    tree.put("/proc/sys/kernel/random/boot_id", "first\n");
    tree
}

impl Tree {
    fn get(&self, path: &str) -> String {
        fs::read_to_string(self.at(path)).expect("it is there").trim().to_owned()
    }
}

fn state(tree: &Tree) -> PathBuf {
    tree.at("/var/lib/kerolox-tune/applied.json")
}

fn command(tree: &Tree, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kerolox-tune"));
    command.args(arguments).arg("--sysroot").arg(tree.root()).stdin(Stdio::null());
    if arguments[0] != "undo" {
        command.args(["--data", DATA, "--executors", "1", "--writer-core", "0"]);
    }
    if arguments[0] != "check" {
        command.arg("--state").arg(state(tree));
    }
    command
}

fn run(tree: &Tree, arguments: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = command(tree, arguments).output().expect("the built program starts");
    let text = |bytes| String::from_utf8(bytes).expect("it prints UTF-8");
    (status.code(), text(stdout), text(stderr))
}

fn json(tree: &Tree, arguments: &[&str]) -> (Option<i32>, Value) {
    let (code, out, err) = run(tree, &[arguments, &["--json"]].concat());
    (code, serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{err}")))
}

/// Every file and link below, with what it holds.
fn content(dir: &Path) -> BTreeMap<PathBuf, String> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let meta = path.symlink_metadata().unwrap();
        if meta.is_dir() {
            all.extend(content(&path));
        } else if meta.is_symlink() {
            let target = fs::read_link(&path).unwrap().display().to_string();
            all.insert(path, target);
        } else {
            let text = fs::read_to_string(&path).unwrap();
            all.insert(path, text.trim().to_owned());
        }
    }
    all
}

fn of<'a>(list: &'a Value, setting: &str, of: &str) -> &'a Value {
    let mut all = list.as_array().expect("a list").iter();
    let found = all.find(|one| one["setting"] == setting && (of.is_empty() || one["of"] == of));
    found.unwrap_or_else(|| panic!("no {setting} of {of:?} in {list:#}"))
}

#[test]
fn check_tells_of_every_device_and_changes_nothing() {
    let tree = host();
    let before = content(tree.root());
    let (code, out, err) = run(&tree, &["check"]);
    assert_eq!((code, &*err), (Some(0), ""), "{out}");
    for words in [
        "/data/kerolox is on ext4 at /data, devices: dm-0, sda, nvme0n1",
        "WARN     scheduler of sda\n  found:   bfq\n  wanted:  none\n",
        "do:      echo none > /sys/block/sda/queue/scheduler",
        "ok       scheduler of nvme0n1: none",
        "WARN     read_ahead of dm-0",
        "do:      sysctl -w net.core.somaxconn=4096",
        "do:      mount -o remount,nodiscard /data",
    ] {
        assert!(out.contains(words), "{words}: {out}");
    }
    let (_, told) = json(&tree, &["check"]);
    assert_eq!((&told["worst"], &told["place"]["top"]), (&"warning".into(), &"dm-0".into()));
    let finding = of(&told["findings"], "swappiness", "");
    assert_eq!((&finding["severity"], &finding["found"]), (&"warning".into(), &"60".into()));
    assert_eq!(finding["changes"][0]["to"], "10");
    assert_eq!(run(&tree, &["check", "--strict"]).0, Some(2));
    assert_eq!(content(tree.root()), before);
}

#[test]
fn check_on_this_host_changes_nothing_and_does_not_fail() {
    let watched = ["/proc/sys/vm", "/proc/sys/net/core", "/sys/kernel/mm/transparent_hugepage", "/sys/block"];
    let values = || {
        let mut values = BTreeMap::new();
        for dir in watched {
            for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
                let queue = entry.path().join("queue");
                let files = if queue.is_dir() { fs::read_dir(queue).unwrap().flatten().collect() } else { vec![entry] };
                for file in files.into_iter().map(|file| file.path()).filter(|path| path.is_file()) {
                    // Some can only be written, some count.
                    let text = fs::read_to_string(&file).unwrap_or_default();
                    values.insert(file, text);
                }
            }
        }
        values
    };
    let dir = tempfile::tempdir().unwrap();
    let before = values();
    let output = Command::new(env!("CARGO_BIN_EXE_kerolox-tune")).args(["check", "--json"]).current_dir(&dir).output();
    let output = output.expect("the built program starts");
    assert_eq!(values(), before);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stdout));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    let told: Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    let findings = told["findings"].as_array().expect("a list");
    assert!(findings.iter().all(|finding| finding["found"] != "it cannot be told"), "{told:#}");
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
}

#[test]
fn apply_sets_what_can_be_set_and_undo_brings_all_back() {
    let tree = host();
    let before = content(tree.root());
    let (code, rehearsed) = json(&tree, &["apply", "--dry-run"]);
    assert_eq!((code, &rehearsed["dry_run"]), (Some(0), &true.into()));
    assert_eq!(of(&rehearsed["settings"], "scheduler", "sda")["outcome"], "would_apply");
    assert_eq!(content(tree.root()), before, "a rehearsal changes nothing");

    let (code, done) = json(&tree, &["apply"]);
    assert_eq!(code, Some(0), "{done:#}");
    let outcome = |setting, device| of(&done["settings"], setting, device)["outcome"].clone();
    assert_eq!(outcome("scheduler", "sda"), "applied");
    assert_eq!(outcome("scheduler", "nvme0n1"), "as_wanted");
    assert_eq!(outcome("nr_requests", "sda"), "as_wanted", "without a scheduler it is the device's own");
    assert_eq!(outcome("mount_options", ""), "skipped");
    let set = [(SCHEDULER, "none"), (READ_AHEAD, "128"), (SWAPPINESS, "10"), (SOMAXCONN, "4096")];
    set.iter().for_each(|(path, value)| assert_eq!(tree.get(path), *value, "{path}"));
    let (code, told) = json(&tree, &["check"]);
    assert_eq!((code, &told["worst"]), (Some(0), &"hint".into()), "the mount is left: {told:#}");
    // What changing the scheduler does by itself.
    tree.put(NR_REQUESTS, "256\n");

    let (code, undone) = json(&tree, &["undo"]);
    assert_eq!(code, Some(0), "{undone:#}");
    let changes = undone["changes"].as_array().unwrap();
    assert!(changes.iter().all(|change| change["outcome"] == "restored"), "{undone:#}");
    assert_eq!((&changes[0]["path"], &changes[3]["path"]), (&SOMAXCONN.into(), &SCHEDULER.into()), "the last first");
    let mut after = content(tree.root());
    // A tree has no kernel that lists the choices again.
    assert_eq!(tree.get(SCHEDULER), "bfq");
    let real = fs::canonicalize(tree.at(SCHEDULER)).unwrap();
    after.insert(real.clone(), before[&real].clone());
    assert_eq!(after, before, "with the number of requests, and without the record");
    let (code, out, _) = run(&tree, &["undo"]);
    assert_eq!(code, Some(0));
    assert!(out.starts_with("nothing was applied"), "{out}");
}

#[test]
fn applied_twice_the_first_old_value_is_what_undo_brings_back() {
    let tree = host();
    assert_eq!(run(&tree, &["apply"]).0, Some(0));
    tree.put(SWAPPINESS, "40\n");
    assert_eq!(run(&tree, &["apply"]).0, Some(0));
    assert_eq!(tree.get(SWAPPINESS), "10");
    assert_eq!(run(&tree, &["undo"]).0, Some(0));
    assert_eq!(tree.get(SWAPPINESS), "60");
}

#[test]
fn only_what_is_named_is_applied() {
    let tree = host();
    assert_eq!(run(&tree, &["apply", "--only", "somaxconn", "read_ahead"]).0, Some(0));
    let values = [SOMAXCONN, READ_AHEAD, SWAPPINESS].map(|path| tree.get(path));
    assert_eq!(values, ["4096", "128", "60"]);
    let (code, _, err) = run(&tree, &["apply", "--only", "somaxcon"]);
    assert_eq!(code, Some(2));
    assert!(err.contains("'somaxconn'"), "it names those that there are: {err}");
}

#[test]
fn a_setting_that_cannot_be_set_is_told_and_keeps_none_of_the_others_back() {
    let tree = host();
    // A number that not even root may write.
    fs::remove_file(tree.at(SWAPPINESS)).unwrap();
    symlink("/proc/sys/kernel/ngroups_max", tree.at(SWAPPINESS)).unwrap();
    let (code, done) = json(&tree, &["apply"]);
    assert_eq!(code, Some(1));
    let swappiness = of(&done["settings"], "swappiness", "");
    assert_eq!(swappiness["outcome"], "failed");
    assert!(swappiness["why"].as_str().unwrap().contains(SWAPPINESS), "{swappiness:#}");
    assert_eq!((tree.get(SCHEDULER), tree.get(SOMAXCONN)), ("none".into(), "4096".into()));
    let noted = fs::read_to_string(state(&tree)).unwrap();
    assert!(!noted.contains(SWAPPINESS), "what was not changed is not to be undone: {noted}");
    assert_eq!(run(&tree, &["undo"]).0, Some(0));
}

#[test]
fn what_somebody_else_has_set_since_stays_unless_forced() {
    let tree = host();
    assert_eq!(run(&tree, &["apply"]).0, Some(0));
    tree.put(SWAPPINESS, "33\n");
    let (code, undone) = json(&tree, &["undo"]);
    assert_eq!(code, Some(1));
    let kept = of(&undone["changes"], "swappiness", "");
    assert_eq!((&kept["outcome"], &kept["value"]), (&"changed_since".into(), &"33".into()));
    assert_eq!((tree.get(SWAPPINESS), tree.get(SOMAXCONN)), ("33".into(), "128".into()));
    let (code, out, _) = run(&tree, &["undo"]);
    assert_eq!(code, Some(1));
    assert!(out.contains("KEPT     swappiness") && out.contains("1 left to undo"), "{out}");
    assert_eq!(run(&tree, &["undo", "--force"]).0, Some(0));
    assert_eq!(tree.get(SWAPPINESS), "60");
    assert!(!state(&tree).exists());
}

#[test]
fn what_cannot_be_brought_back_stays_noted_and_what_is_gone_does_not() {
    let tree = host();
    assert_eq!(run(&tree, &["apply"]).0, Some(0));
    // The value that was set, in a file that not even root may write.
    let set = fs::read_to_string("/proc/sys/kernel/ngroups_max").unwrap().trim().to_owned();
    let noted =
        fs::read_to_string(state(&tree)).unwrap().replacen("\"new\": \"10\"", &format!("\"new\": \"{set}\""), 1);
    fs::write(state(&tree), noted).unwrap();
    fs::remove_file(tree.at(SWAPPINESS)).unwrap();
    symlink("/proc/sys/kernel/ngroups_max", tree.at(SWAPPINESS)).unwrap();
    fs::remove_file(tree.at(READ_AHEAD)).unwrap();
    let (code, undone) = json(&tree, &["undo"]);
    assert_eq!(code, Some(1));
    assert_eq!(of(&undone["changes"], "swappiness", "")["outcome"], "failed");
    assert_eq!(of(&undone["changes"], "read_ahead", "")["outcome"], "gone");
    fs::remove_file(tree.at(SWAPPINESS)).unwrap();
    tree.put(SWAPPINESS, &set);
    let (code, undone) = json(&tree, &["undo"]);
    assert_eq!((code, undone["changes"].as_array().unwrap().len()), (Some(0), 1), "{undone:#}");
    assert_eq!(tree.get(SWAPPINESS), "60");
}

#[test]
fn a_restart_of_the_host_takes_everything_back_by_itself() {
    let tree = host();
    assert_eq!(run(&tree, &["apply"]).0, Some(0));
    tree.put("/proc/sys/kernel/random/boot_id", "second\n");
    tree.put(SWAPPINESS, "10\n");
    let (code, undone) = json(&tree, &["undo"]);
    assert_eq!((code, &undone["of_earlier_boot"]), (Some(0), &4.into()), "{undone:#}");
    assert_eq!(tree.get(SWAPPINESS), "10", "that is the new boot's own value");
    assert!(!state(&tree).exists());
}

/// The old value is on disk when the file is opened to be changed. The file is a pipe here, and this test its kernel: it
/// looks at the record while the program waits for somebody to read what it writes.
#[test]
fn the_way_back_is_noted_before_anything_is_changed() {
    for killed in [false, true] {
        let tree = host();
        let pipe = tree.at(SOMAXCONN);
        fs::remove_file(&pipe).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
        let mut child = command(&tree, &["apply", "--only", "somaxconn"]).stdout(Stdio::null()).spawn().unwrap();
        // The check reads it; the open waits until it does.
        OpenOptions::new().write(true).open(&pipe).unwrap().write_all(b"128\n").unwrap();
        let noted = loop {
            match fs::read_to_string(state(&tree)) {
                Ok(text) => break text,
                Err(_) => assert!(child.try_wait().unwrap().is_none(), "it ended without a note"),
            }
            std::thread::yield_now();
        };
        let noted: Value = serde_json::from_str(&noted).unwrap();
        assert_eq!((&noted["changes"][0]["old"], &noted["changes"][0]["path"]), (&"128".into(), &SOMAXCONN.into()));
        if killed {
            child.kill().unwrap();
            child.wait().unwrap();
            fs::remove_file(&pipe).unwrap();
            tree.put(SOMAXCONN, "128\n");
            let (code, undone) = json(&tree, &["undo"]);
            assert_eq!((code, &undone["changes"][0]["outcome"]), (Some(0), &"as_before".into()), "{undone:#}");
            continue;
        }
        let mut written = String::new();
        fs::File::open(&pipe).unwrap().read_to_string(&mut written).unwrap();
        assert_eq!(written, "4096\n");
        OpenOptions::new().write(true).open(&pipe).unwrap().write_all(written.as_bytes()).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0));
    }
}

#[test]
fn without_a_place_for_the_way_back_nothing_is_changed() {
    let tree = host();
    tree.put("/var/lib/kerolox-tune", "a file in the way");
    let before = content(tree.root());
    let (code, _, err) = run(&tree, &["apply"]);
    assert_eq!(code, Some(1));
    assert!(err.contains("applied.json") && err.contains("--state"), "{err}");
    assert_eq!(content(tree.root()), before);
}

#[test]
fn a_record_that_is_none_of_ours_is_refused_and_names_only_settings_of_the_kernel() {
    let tree = host();
    assert_eq!(run(&tree, &["apply"]).0, Some(0));
    let good = fs::read_to_string(state(&tree)).unwrap();
    for (bad, word) in [
        ("{}".to_owned(), "no record of changes"),
        (good[..good.len() / 2].to_owned(), "no record of changes"),
        (good.replace("\"version\": 1", "\"version\": 2"), "version 2"),
        (good.replace("\"new\"", "\"newer\""), "newer"),
        (good.replace(SWAPPINESS, "/etc/passwd"), "/etc/passwd"),
        (good.replace(SWAPPINESS, "/proc/sysrq-trigger"), "/proc/sysrq-trigger"),
        (good.replace(SWAPPINESS, "/proc/../etc/passwd"), "/proc/../etc/passwd"),
    ] {
        fs::write(state(&tree), &bad).unwrap();
        let before = content(tree.root());
        for arguments in [["undo"], ["apply"]] {
            let (code, _, err) = run(&tree, &arguments);
            assert_eq!(code, Some(2), "{err}");
            assert!(err.contains("applied.json: ") && err.contains(word) && err.contains("move it away"), "{err}");
        }
        assert_eq!(content(tree.root()), before);
    }
}

#[test]
fn two_at_a_time_are_kept_apart() {
    let tree = host();
    let dir = state(&tree).parent().unwrap().to_owned();
    fs::create_dir_all(&dir).unwrap();
    let held = fs::File::open(dir).unwrap();
    held.lock().unwrap();
    let (code, _, err) = run(&tree, &["apply"]);
    assert_eq!((code, tree.get(SWAPPINESS)), (Some(1), "60".into()));
    assert!(err.contains("another kerolox-tune"), "{err}");
}

#[test]
fn names_that_are_no_text_are_told_as_well_as_can_be() {
    use std::os::unix::ffi::OsStrExt;
    let tree = host();
    for arguments in [&["check", "--json"][..], &["check"], &["apply", "--dry-run", "--json"]] {
        let mut program = Command::new(env!("CARGO_BIN_EXE_kerolox-tune"));
        program.args(arguments).arg("--sysroot").arg(tree.root());
        let output = program.arg("--data").arg(std::ffi::OsStr::from_bytes(b"/data/\xff")).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    }
}

#[test]
fn an_answer_that_cannot_be_written_is_no_success() {
    let tree = host();
    for arguments in [&["check"][..], &["apply", "--dry-run"], &["undo"]] {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = command(&tree, arguments).stdout(full).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("standard output cannot be written"), "{output:?}");
    }
}
