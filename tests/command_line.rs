//! The program as a shell sees it: what it prints where, and its exit codes.

use std::path::Path;
use std::process::{Command, Output};

fn kerolox(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kerolox")).args(arguments).output().expect("the built program starts")
}

/// Exit code, lines on standard output, lines on standard error.
fn said(output: &Output) -> (Option<i32>, Vec<&str>, Vec<&str>) {
    let lines = |bytes| std::str::from_utf8(bytes).expect("it prints UTF-8").lines().collect();
    (output.status.code(), lines(&output.stdout), lines(&output.stderr))
}

#[test]
fn check_config_prints_every_setting_with_its_source() {
    let output = kerolox(&["check-config", "docs/kerolox.toml"]);
    let (code, out, err) = said(&output);
    assert_eq!((code, err), (Some(0), vec![]));
    let (out, found) = out.split_at(out.len() - 2);
    assert!(found[0].starts_with("# store.append: buffered"), "{found:?}");
    assert!(found[1].starts_with("# flush.sync_call: fdatasync"), "{found:?}");
    assert!(out.iter().all(|line| line.contains(" = ") && line.contains("# docs/kerolox.toml:")), "{out:?}");
    let output = kerolox(&["check-config"]);
    let (code, defaults, _) = said(&output);
    assert_eq!((code, defaults.len()), (Some(0), out.len() + 2));
    assert!(defaults[..out.len()].iter().all(|line| line.ends_with("# default")));
}

#[test]
fn wrong_settings_are_one_line_each_and_exit_code_2() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("k.toml");
    std::fs::write(&file, "[flush]\nmode = \"never\"\ninterval_ms = 0\n").unwrap();
    let name = file.to_str().unwrap();
    let data = dir.path().join("data");
    for arguments in [vec!["check-config", name], vec!["serve", "--config", name, "--data", data.to_str().unwrap()]] {
        let output = kerolox(&arguments);
        let (code, out, err) = said(&output);
        assert_eq!((code, out.len(), err.len()), (Some(2), 0, 2), "{arguments:?}: {err:?}");
        assert!(err[0].contains("k.toml:2: flush.mode = \"never\" "), "{}", err[0]);
        assert!(err[1].contains("k.toml:3: flush.interval_ms = 0 "), "{}", err[1]);
    }
    assert!(!data.exists(), "nothing is made before the settings are right");
}

#[test]
fn check_config_shows_what_a_set_on_the_command_line_comes_to() {
    let output = kerolox(&["check-config", "--set", "flush.mode=sync"]);
    let (code, out, err) = said(&output);
    assert_eq!((code, err.len()), (Some(0), 0), "{err:?}");
    assert!(out.iter().any(|line| line.starts_with("flush.mode = \"sync\"") && line.ends_with("# --set")), "{out:?}");
    assert!(out.last().unwrap().starts_with("# flush.sync_call: not probed yet"), "{out:?}");
    assert_eq!(said(&kerolox(&["check-config", "--set", "flush.mode"])).0, Some(2));
}

#[test]
fn check_config_tells_how_records_are_appended_on_this_host() {
    let appends = |set: &[&str]| {
        let arguments = set.iter().flat_map(|assignment| ["--set", assignment]);
        let output = kerolox(&["check-config"].into_iter().chain(arguments).collect::<Vec<_>>());
        let (code, out, err) = said(&output);
        assert_eq!((code, err.len()), (Some(0), 0), "{err:?}");
        out.into_iter().find_map(|line| Some(line.strip_prefix("# store.append: ")?.split(';').next()?.to_owned()))
    };
    let core = core_affinity::get_core_ids().unwrap_or_default()[0].id;
    let (writer, shards) = (format!("cores.writer={core}"), format!("cores.shards=[{core}]"));
    assert_eq!(
        appends(&["flush.mode=sync", &writer, &shards]).as_deref(),
        Some("dma (buffered where the file system has no direct I/O)")
    );
    assert_eq!(appends(&["flush.mode=async", &writer, &shards]).as_deref(), Some("buffered"));
    assert_eq!(appends(&["store.append=mmap", &writer, &shards]), None, "it says so itself");
}

#[test]
fn wrong_usage_is_exit_code_2_and_a_node_that_is_not_there_exit_code_1() {
    assert_eq!(said(&kerolox(&["serve", "--cores", "all of them"])).0, Some(2));
    assert_eq!(said(&kerolox(&["serve", "--no-such-flag"])).0, Some(2));
    let output = kerolox(&["topic", "list", "--namesrv", "127.0.0.1:1"]);
    let (code, out, err) = said(&output);
    assert_eq!((code, out.len(), err.len()), (Some(1), 0, 1), "{err:?}");
    assert!(err[0].contains("127.0.0.1:1 cannot be reached"), "{}", err[0]);
}

#[test]
fn the_files_that_the_readme_names_are_there() {
    let readme = include_str!("../README.md");
    let links = readme.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    for link in links.filter(|link| !link.contains("://")) {
        assert!(Path::new(env!("CARGO_MANIFEST_DIR")).join(link).exists(), "README.md names {link}");
    }
}
