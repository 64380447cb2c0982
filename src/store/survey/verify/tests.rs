//! Stores that are sound, and the same with each rule broken once.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::*;
use crate::format::index_file::{NEXT_UNIT_AT, slot_at, unit_at};
use crate::store::survey::{IndexShape, ShapeHints};
use crate::store::test_store::{QUEUE_FILE_LEN, SEGMENT_LEN, TestStore};
use crate::types::QueueKey;

/// Twelve messages of A, then 24 of B, in four segments; queue files of ten units; an index of 100 slots.
fn sound() -> TestStore {
    let store = TestStore::of_two_topics();
    store.open_check_close();
    store
}

fn report_on(root: &Path) -> Report {
    let dir = StoreDir::open(root).unwrap();
    let asked =
        Verify { shape: Shape::of(&dir, ShapeHints::default()), delays_ms: vec![1000, 5000, 10_000], index: true };
    verify(&dir, &asked, &mut |done, total| assert!(done <= total)).unwrap()
}

/// The report on a store, which must not change by being looked at.
fn report(store: &TestStore) -> Report {
    let before = store.snapshot();
    let report = report_on(store.root());
    assert_eq!(store.changed(&before), Vec::<PathBuf>::new());
    report
}

/// Asserts that exactly these rules are broken.
fn assert_errors(report: &Report, rules: &[&str]) {
    let found: Vec<_> = report.errors_by_rule.keys().copied().collect();
    assert_eq!(found, rules, "{:#?}", report.findings);
    assert_eq!(report.clean, rules.is_empty());
}

/// Changes bytes of a file.
fn patch(path: &Path, at: u64, bytes: &[u8]) {
    let file = fs::File::options().write(true).open(path).unwrap();
    file.write_all_at(bytes, at).unwrap();
}

/// Changes bytes of the log.
fn patch_log(store: &TestStore, phy: u64, bytes: &[u8]) {
    patch(&store.segment(phy), phy % SEGMENT_LEN, bytes);
}

/// Where the parts of a message of [`sound`] lie in its record: queue offset, physical offset, body.
const QUEUE_OFFSET_AT: u64 = 20;
const PHY_AT: u64 = 28;
const STORED_AT: u64 = 56;
const BODY_LEN_AT: u64 = 84;
const BODY_AT: u64 = 88;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

#[test]
fn a_sound_store_of_ours_has_no_findings() {
    let store = sound();
    let found = report(&store);
    assert_eq!((found.errors, found.warnings, found.not_checked.len()), (0, 0, 0), "{found:#?}");
    let counts = found.counts;
    assert_eq!((counts.records, counts.units, counts.queues), (36, 36, 2));
    // Each message has a key of its own, one that all have, and a unique key.
    assert_eq!((counts.index_entries, counts.log_end), (108, store.end.0));
    assert!(found.stopped_cleanly);
}

#[test]
fn an_empty_store_has_no_findings() {
    let store = TestStore::new();
    store.open_check_close();
    let found = report(&store);
    assert_eq!((found.errors, found.counts.records), (0, 0), "{found:#?}");
}

#[test]
fn what_java_closed_is_sound_and_what_it_left_in_a_crash_is_too() {
    for (name, warnings) in [("java-clean", 0), ("java-crash", 1)] {
        let found = report_on(&golden(name));
        assert_eq!((found.errors, found.warnings), (0, warnings), "{found:#?}");
        assert_eq!((found.counts.records, found.counts.units, found.counts.index_entries), (30, 30, 30));
        assert_eq!(found.stopped_cleanly, name == "java-clean");
    }
}

#[test]
fn sizes_are_told_from_the_files() {
    let expected = Shape {
        segment_len: Some(4096),
        queue_file_len: Some(200),
        index: Some(IndexShape { slots: 100, entries: 400 }),
    };
    let dir = StoreDir::open(&golden("java-clean")).unwrap();
    assert_eq!(Shape::of(&dir, ShapeHints::default()), expected);
    // A ratio of its own, and no default.
    let mut store = TestStore::of_two_topics();
    store.settings.index_entries = 383;
    store.settings.index_slots = 100;
    let opened = store.open().unwrap();
    store.close(opened);
    let dir = StoreDir::open(store.root()).unwrap();
    assert_eq!(Shape::of(&dir, ShapeHints::default()).index, Some(IndexShape { slots: 100, entries: 383 }));
    let hints = ShapeHints { index_slots: Some(105), index_entries: None };
    assert_eq!(Shape::of(&dir, hints).index, Some(IndexShape { slots: 105, entries: 382 }), "hints are believed");
    drop(dir);
    assert_errors(&report(&store), &[]);
}

#[test]
fn a_segment_of_another_size_or_a_missing_one_breaks_i1() {
    let store = sound();
    fs::File::options().write(true).open(store.segment(4096)).unwrap().set_len(4000).unwrap();
    let found = report(&store);
    assert!(found.errors_by_rule.contains_key("I1"), "{found:#?}");

    let store = sound();
    fs::remove_file(store.segment(4096)).unwrap();
    let found = report(&store);
    assert!(found.errors_by_rule.contains_key("I1"), "{found:#?}");
    assert!(found.errors_by_rule.contains_key("I9"), "units lead to what is missing: {found:#?}");
}

#[test]
fn bytes_that_are_no_record_break_i2_and_what_leads_there_is_said() {
    let store = sound();
    let sent = &store.sent[5];
    patch_log(&store, sent.unit.phy.0, &[0xFF; 60]);
    let found = report(&store);
    assert_errors(&found, &["I2", "I8", "I9"]);
    assert_eq!(found.errors_by_rule["I2"], 1);
    assert_eq!(found.counts.records, 35, "those behind it are found again");
}

#[test]
fn bytes_behind_the_end_of_a_log_that_was_stopped_cleanly_break_i18() {
    let store = sound();
    patch_log(&store, store.end.0 + 100, b"left over");
    assert_errors(&report(&store), &["I18"]);
    // A torn record, as a crash leaves it, is for the next start.
    let mut store = sound();
    store.put("A", 0, 100);
    let sent = store.forget_newest();
    patch_log(&store, sent.unit.phy.0 + 120, &[0; 100]);
    assert_errors(&report(&store), &["I18"]);
    fs::write(store.layout().abort(), "1").unwrap();
    let found = report(&store);
    assert_errors(&found, &[]);
    assert_eq!(found.warnings_by_rule.keys().copied().collect::<Vec<_>>(), ["I18", "I19"]);
}

#[test]
fn a_blank_that_does_not_reach_the_end_of_its_segment_breaks_i3() {
    let store = sound();
    let last = store.sent.iter().rfind(|sent| sent.unit.phy.0 < SEGMENT_LEN).unwrap();
    let blank = last.unit.phy.0 + u64::from(last.unit.len);
    patch_log(&store, blank, &(SEGMENT_LEN as u32 - blank as u32 - 1).to_be_bytes());
    assert_errors(&report(&store), &["I3"]);
}

#[test]
fn a_record_that_says_it_lies_elsewhere_breaks_i4() {
    let store = sound();
    let phy = store.sent[5].unit.phy.0;
    patch_log(&store, phy + PHY_AT, &(phy + 1).to_be_bytes());
    let found = report(&store);
    assert!(found.errors_by_rule.contains_key("I4"), "{found:#?}");
}

#[test]
fn parts_that_do_not_add_up_break_i5() {
    let store = sound();
    patch_log(&store, store.sent[5].unit.phy.0 + BODY_LEN_AT, &100_u32.to_be_bytes());
    let found = report(&store);
    assert!(found.errors_by_rule.contains_key("I5"), "{found:#?}");
}

#[test]
fn a_flipped_bit_in_a_body_breaks_i6() {
    let store = sound();
    patch_log(&store, store.sent[5].unit.phy.0 + BODY_AT, &[0xAA]);
    let found = report(&store);
    assert!(found.errors_by_rule.contains_key("I6"), "{found:#?}");
}

#[test]
fn a_store_time_that_goes_back_breaks_i7() {
    let store = sound();
    let sent = &store.sent[5];
    patch_log(&store, sent.unit.phy.0 + STORED_AT, &(sent.stored_at.0 - 50_000).to_be_bytes());
    let found = report(&store);
    assert!(found.errors_by_rule.contains_key("I7"), "{found:#?}");
}

#[test]
fn a_queue_offset_that_is_out_of_order_breaks_i8() {
    let store = sound();
    patch_log(&store, store.sent[5].unit.phy.0 + QUEUE_OFFSET_AT, &7_u64.to_be_bytes());
    let found = report(&store);
    assert!(found.errors_by_rule.contains_key("I8"), "{found:#?}");
    assert!(found.errors_by_rule.contains_key("I9"), "{found:#?}");
}

#[test]
fn a_unit_that_does_not_fit_its_message_breaks_i9() {
    let store = sound();
    let sent = store.sent[3].clone();
    let wrong = [
        Unit { tags: TagsCode(sent.unit.tags.0 + 1), ..sent.unit },
        Unit { len: sent.unit.len + 1, ..sent.unit },
        Unit { phy: PhyOffset(sent.unit.phy.0 + 1), ..sent.unit },
    ];
    for unit in wrong {
        store.write_unit("A", 0, 3, &unit);
        assert_errors(&report(&store), &["I9"]);
    }
    store.write_unit("A", 0, 3, &sent.unit);
    assert_errors(&report(&store), &[]);
}

#[test]
fn a_unit_of_no_message_breaks_i9() {
    // One more than there are messages, leading to one of another queue.
    let store = sound();
    let unit = store.sent.iter().rfind(|sent| &*sent.queue.topic == "B").unwrap().unit;
    store.write_unit("A", 0, 12, &unit);
    let found = report(&store);
    assert_errors(&found, &["I9"]);
    assert!(found.findings[0].what.contains("unit 12 leads to"), "{found:#?}");
}

#[test]
fn a_message_without_a_unit_breaks_i10() {
    let store = sound();
    fs::remove_file(store.queue_file("A", 0, 10)).unwrap();
    let found = report(&store);
    assert_errors(&found, &["I10"]);
    assert!(found.findings[0].what.contains("2 messages from 10 on"), "{found:#?}");
    fs::remove_dir_all(store.layout().consumequeue()).unwrap();
    let found = report(&store);
    assert_errors(&found, &["I10"]);
    assert_eq!(found.errors, 2, "one a queue: {found:#?}");
    // After a crash the next start builds them.
    fs::write(store.layout().abort(), "1").unwrap();
    assert_errors(&report(&store), &[]);
}

#[test]
fn units_that_do_not_rise_break_i11() {
    let store = sound();
    let units: Vec<_> = store.sent.iter().map(|sent| sent.unit).collect();
    store.write_unit("A", 0, 3, &units[4]);
    store.write_unit("A", 0, 4, &units[3]);
    let found = report(&store);
    assert_errors(&found, &["I11", "I9"]);
    let store = sound();
    store.write_unit("A", 0, 4, &units[3]);
    let found = report(&store);
    assert_errors(&found, &["I11", "I9"]);
}

#[test]
fn bytes_behind_the_end_of_a_queue_break_i12() {
    let store = sound();
    patch(&store.queue_file("A", 0, 10), QUEUE_FILE_LEN - 5, &[1]);
    assert_errors(&report(&store), &["I12"]);
    // Java leaves such bytes (J4).
    fs::remove_dir_all(store.layout().own()).unwrap();
    let found = report(&store);
    assert_errors(&found, &[]);
    assert_eq!(found.warnings_by_rule["I12"], 1);
}

#[test]
fn an_index_whose_chains_or_slots_are_wrong_breaks_i13() {
    let breaks: [&dyn Fn(&Path); 4] = [
        &|file| patch(file, unit_at(100, 50) + 16, &49_u32.to_be_bytes()),
        &|file| patch(file, unit_at(100, 50) + 12, &7_u32.to_be_bytes()),
        &|file| {
            let slots: Vec<_> =
                (0..100).map(|slot| (slot, fs::read(file).unwrap()[slot_at(slot) as usize + 3])).collect();
            let (used, _) = slots.into_iter().find(|(_, number)| *number > 1).unwrap();
            patch(file, slot_at(used), &1_u32.to_be_bytes());
        },
        &|file| patch(file, 24, &5_u64.to_be_bytes()),
    ];
    for break_it in breaks {
        let store = sound();
        break_it(&store.index_files()[0]);
        let dir = StoreDir::open(store.root()).unwrap();
        let shape =
            Shape { index: Some(IndexShape { slots: 100, entries: 400 }), ..Shape::of(&dir, ShapeHints::default()) };
        let asked = Verify { shape, delays_ms: vec![1000], index: true };
        let found = verify(&dir, &asked, &mut |_, _| {}).unwrap();
        assert_errors(&found, &["I13"]);
    }
}

#[test]
fn keys_that_are_missing_or_of_no_message_break_i14() {
    // The last message's keys are not counted.
    let store = sound();
    patch(&store.index_files()[0], NEXT_UNIT_AT as u64, &106_u32.to_be_bytes());
    let found = report(&store);
    assert!(found.errors_by_rule.contains_key("I14"), "{found:#?}");
    assert!(
        found.findings.iter().any(|finding| finding.what.contains("1 messages from physical offset")),
        "{found:#?}"
    );
    // An entry of another key.
    let store = sound();
    patch(&store.index_files()[0], unit_at(100, 50), &4711_u32.to_be_bytes());
    let found = report(&store);
    assert!(found.errors_by_rule.contains_key("I14"), "{found:#?}");
    // An entry of another place.
    let store = sound();
    patch(&store.index_files()[0], unit_at(100, 50) + 4, &(store.sent[16].unit.phy.0 + 1).to_be_bytes());
    let found = report(&store);
    assert!(found.errors_by_rule.contains_key("I14"), "{found:#?}");
}

#[test]
fn a_checkpoint_ahead_of_the_log_breaks_i15() {
    let newest = sound().sent.last().unwrap().stored_at;
    let good = Checkpoint { physic: newest, logics: newest, ..Checkpoint::default() };
    for checkpoint in [
        Checkpoint { physic: newest.plus_ms(1), ..good },
        Checkpoint { index: newest, ..good },
        Checkpoint { confirm: 1 << 40, ..good },
    ] {
        let store = sound();
        fs::write(store.layout().checkpoint(), checkpoint.encode()).unwrap();
        assert_errors(&report(&store), &["I15"]);
    }
}

#[test]
fn offsets_beyond_their_queue_are_a_warning() {
    let store = sound();
    let config = store.root().join("config");
    fs::create_dir_all(&config).unwrap();
    fs::write(config.join("consumerOffset.json"), r#"{"offsetTable":{"A@g":{0:12},"B@g":{0:25}}}"#).unwrap();
    fs::write(config.join("delayOffset.json"), r#"{"offsetTable":{1:3}}"#).unwrap();
    let found = report(&store);
    assert_errors(&found, &[]);
    assert_eq!(found.warnings_by_rule["I16"], 2, "{found:#?}");
}

#[test]
fn a_log_shorter_than_what_was_flushed_breaks_i18() {
    let store = sound();
    Progress { flushed: store.end.0 + 1, stored_at: 0, clean: None }.save(&store.layout().flushed()).unwrap();
    assert_errors(&report(&store), &["I18"]);
}

#[test]
fn a_queue_and_an_index_ahead_of_the_log_break_i18() {
    let store = sound();
    let last = store.sent.last().unwrap().unit;
    patch_log(&store, last.phy.0, &vec![0; last.len as usize]);
    fs::remove_dir_all(store.layout().own()).unwrap();
    fs::remove_file(store.layout().checkpoint()).unwrap();
    let found = report(&store);
    assert_errors(&found, &["I18"]);
    assert_eq!(found.errors, 4, "a unit and three keys: {found:#?}");
}

#[test]
fn a_table_that_cannot_be_read_is_an_error_unless_its_bak_can() {
    let store = sound();
    let config = store.root().join("config");
    fs::create_dir_all(&config).unwrap();
    fs::write(config.join("topics.json"), "{\"topicConfigTable\":{").unwrap();
    assert_errors(&report(&store), &["config"]);
    fs::write(config.join("topics.json.bak"), "{}").unwrap();
    let found = report(&store);
    assert_errors(&found, &[]);
    assert_eq!(found.warnings_by_rule["config"], 1);
    fs::write(config.join("consumerFilter.json"), "{,").unwrap();
    assert_errors(&report(&store), &["config"]);
}

#[test]
fn what_is_quarantined_is_listed_apart() {
    let store = sound();
    let sent = store.sent[5].clone();
    patch_log(&store, sent.unit.phy.0, &[0xFF; 60]);
    store.write_unit("A", 0, 5, &Unit { tags: TagsCode(0), ..sent.unit });
    fs::create_dir_all(store.layout().quarantine()).unwrap();
    let list = format!(
        r#"[{{"phy":{},"len":{},"why":"zeros","kind":"damaged","copy":"x","at":1}}]"#,
        sent.unit.phy, sent.unit.len
    );
    fs::write(store.layout().quarantine().join("list.json"), list).unwrap();
    let found = report(&store);
    assert_errors(&found, &[]);
    assert_eq!((found.quarantined[0].units, found.quarantined[0].index_entries), (1, 3), "{found:#?}");
}

#[test]
fn topics_that_were_deleted_or_made_again_are_no_findings() {
    // A is deleted: its folder is gone and it is not listed.
    let mut store = sound();
    let config = store.root().join("config");
    fs::create_dir_all(&config).unwrap();
    fs::write(config.join("topics.json"), r#"{"topicConfigTable":{"B":{"topicName":"B"}}}"#).unwrap();
    fs::remove_dir_all(store.layout().consumequeue().join("A")).unwrap();
    let found = report(&store);
    assert_errors(&found, &[]);
    assert_eq!(found.counts.retired_records, 12);
    // And made again: its numbering begins anew.
    let key = QueueKey::new("A", 0);
    let sent: Vec<_> = (0..3).map(|offset| store.put_at(key.clone(), QueueOffset(offset), 100)).collect();
    fs::create_dir_all(store.queue_file("A", 0, 0).parent().unwrap()).unwrap();
    sent.iter().for_each(|sent| store.write_unit("A", 0, sent.offset.0, &sent.unit));
    let dir = StoreDir::open(store.root()).unwrap();
    let asked = Verify { shape: Shape::of(&dir, ShapeHints::default()), delays_ms: vec![1000], index: false };
    let found = verify(&dir, &asked, &mut |_, _| {}).unwrap();
    assert_errors(&found, &[]);
    assert_eq!((found.counts.retired_records, found.counts.units), (12, 27));
    assert_eq!(usize::from(QUEUE_FILE_LEN as u8), 10 * UNIT_LEN);
}

#[test]
fn an_offset_that_java_skipped_is_a_warning_before_and_after_a_recovery() {
    for behind in [1, 3, 12] {
        let mut store = TestStore::new();
        for offset in (0..10).chain(11..11 + behind) {
            store.put_at(QueueKey::new("A", 0), QueueOffset(offset), 100);
        }
        fs::create_dir_all(store.queue_file("A", 0, 0).parent().unwrap()).unwrap();
        store.sent.iter().for_each(|sent| store.write_unit("A", 0, sent.offset.0, &sent.unit));
        fs::write(store.layout().checkpoint(), Checkpoint::default().encode()).unwrap();
        for opened in ["never", "once", "after a kill"] {
            match opened {
                "never" => {}
                "once" => store.open_check_close(),
                _ => {
                    store.killed(store.end, Timestamp(0));
                    store.open_check_close();
                }
            }
            let dir = StoreDir::open(store.root()).unwrap();
            let asked = Verify { shape: Shape::of(&dir, ShapeHints::default()), delays_ms: vec![1000], index: false };
            let found = verify(&dir, &asked, &mut |_, _| {}).unwrap();
            assert_errors(&found, &[]);
            assert_eq!(found.warnings_by_rule.keys().collect::<Vec<_>>(), [&"I8"], "{opened} {behind} {found:#?}");
            assert!(found.findings[0].what.contains("queue offset 10 in A-0"), "{found:#?}");
        }
        // Any other unit there is wrong.
        store.write_unit("A", 0, 10, &store.sent[3].unit);
        let dir = StoreDir::open(store.root()).unwrap();
        let asked = Verify { shape: Shape::of(&dir, ShapeHints::default()), delays_ms: vec![1000], index: false };
        let found = verify(&dir, &asked, &mut |_, _| {}).unwrap();
        assert!(found.errors_by_rule.contains_key("I8") && found.errors_by_rule.contains_key("I11"), "{found:#?}");
    }
}

#[test]
fn a_store_that_begins_in_the_middle_is_sound() {
    let key = QueueKey::new("A", 0);
    let mut store = TestStore::beginning_at(8192, &key, 7);
    for _ in 0..20 {
        store.put("A", 0, 100);
    }
    store.open_check_close();
    let found = report(&store);
    assert_eq!((found.errors, found.warnings), (0, 0), "{found:#?}");
    assert_eq!((found.counts.log_start, found.counts.units), (8192, 20));
}

#[test]
fn what_is_no_store_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let error = StoreDir::open(dir.path()).unwrap_err().to_string();
    assert!(error.contains("no store"), "{error}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}
