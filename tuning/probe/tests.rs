use std::path::Path;
use std::sync::atomic::Ordering;

use super::*;

/// As few bytes as there may be, and as much time as it needs on a busy machine.
fn options(dir: &Path) -> Options {
    Options { dir: dir.to_owned(), root: dir.to_owned(), max_bytes: BYTES_MIN, max_time: Duration::from_secs(600) }
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_probe_measures_all_there_is_says_what_is_missing_and_leaves_nothing_behind() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    std::fs::write(dir.path().join("mine"), "untouched").unwrap();
    let mut told = Vec::new();
    let probe = probe(&options(dir.path()), &AtomicBool::new(false), &mut |line| told.push(line.to_owned())).unwrap();
    assert_eq!(names(dir.path()), ["mine"]);
    assert!(probe.written <= BYTES_MIN, "{} bytes were written", probe.written);
    assert_eq!(probe.flush.len(), FLUSHES.len() * curve::ways(probe.site.direct).len() * 2);
    assert_eq!(probe.group_commit.len(), GROUPS.len() * curve::ways(probe.site.direct).len());
    assert!(GROUPS.iter().all(|(waiters, _)| probe.best_group(*waiters as u32).is_some()));
    assert!(told.iter().any(|line| line.starts_with("flush curve: 0 of")), "{told:?}");
    // In memory: said, and not believed.
    assert!(probe.site.is_in_memory() && probe.syncs_are_free());
    assert!(probe.remarks.iter().any(|remark| remark.contains("prove nothing")), "{:?}", probe.remarks);
    let table = probe.table();
    for part in ["256 waiters", "delete stepwise", "1024 KiB", "One record of 4 KiB", "NOTE: tmpfs is in memory"] {
        assert!(table.contains(part), "{part} is missing in\n{table}");
    }
    assert!(!table.contains("not measured"), "{table}");
    // What is written reads back as the same.
    assert_eq!(Probe::parse(probe.to_json().as_bytes()).unwrap(), probe);
    let file = dir.path().join(DEFAULT_FILE);
    std::fs::write(&file, probe.to_json()).unwrap();
    assert_eq!(Probe::load(dir.path()).unwrap(), probe);
}

#[test]
fn a_probe_that_is_stopped_leaves_nothing_behind() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let stop = AtomicBool::new(false);
    let mut lines = 0;
    let stopped = probe(&options(dir.path()), &stop, &mut |_| {
        lines += 1;
        stop.store(true, Ordering::Relaxed);
    });
    assert!(matches!(stopped, Err(ProbeError::Stopped)), "{stopped:?}");
    assert!(lines > 0);
    assert!(names(dir.path()).is_empty());
}

#[test]
fn a_folder_that_is_missing_or_has_no_space_is_refused_before_anything_is_made() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let stop = AtomicBool::new(false);
    let missing = probe(&options(&dir.path().join("none")), &stop, &mut |_| {}).unwrap_err().to_string();
    assert!(missing.contains("none: no folder to measure in"), "{missing}");
    let mut site = Site::look(dir.path()).unwrap();
    site.available = 0;
    let full = ProbeError::NoSpace { dir: site.dir, needed: options(dir.path()).space(), available: 0 }.to_string();
    assert!(full.contains("0 MiB are free and 352 MiB are needed"), "{full}");
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    assert!(matches!(probe(&options(&file), &stop, &mut |_| {}), Err(ProbeError::Dir { .. })));
    assert_eq!(names(dir.path()), ["file"]);
    use std::os::unix::ffi::OsStrExt;
    let odd = dir.path().join(std::ffi::OsStr::from_bytes(b"\xff"));
    std::fs::create_dir(&odd).unwrap();
    let odd = probe(&options(&odd), &stop, &mut |_| {}).unwrap_err().to_string();
    assert!(odd.contains("no UTF-8"), "{odd}");
}

#[test]
fn what_is_no_result_is_refused_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("probe.json");
    assert!(Probe::load(&file).unwrap_err().to_string().contains("no such file; make it with"));
    for (text, why) in
        [("", "no result"), ("{}", "missing field"), ("{\"format\": 1}", "missing field"), ("[", "no result")]
    {
        std::fs::write(&file, text).unwrap();
        let told = Probe::load(&file).unwrap_err().to_string();
        assert!(told.contains("probe.json: ") && told.contains(why) && told.contains("kerolox-tune probe"), "{told}");
    }
}
