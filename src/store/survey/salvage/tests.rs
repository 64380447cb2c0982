//! Damaged stores, salvaged, opened, and held against what was in them.

use std::os::unix::fs::FileExt;

use proptest::prelude::*;

use super::*;
use crate::store::StoreSettings;
use crate::store::survey::{Report, Shape, ShapeHints, Verify, verify};
use crate::store::test_store::{QUEUE_FILE_LEN, SEGMENT_LEN, Sent, TestStore};
use crate::store::{Opening, RebuildPlan, open, rebuild};
use crate::types::QueueKey;

/// Twelve messages of A, then 24 of B, in three segments.
fn sound() -> TestStore {
    let store = TestStore::of_two_topics();
    store.open_check_close();
    store
}

struct Saved {
    folder: tempfile::TempDir,
    settings: StoreSettings,
    salvaged: Salvaged,
}

impl Saved {
    fn root(&self) -> PathBuf {
        self.folder.path().join("saved")
    }

    fn report(&self) -> Report {
        let dir = StoreDir::open(&self.root()).unwrap();
        let asked = Verify { shape: Shape::of(&dir, ShapeHints::default()), delays_ms: vec![1000, 5000], index: true };
        verify(&dir, &asked, &mut |_, _| {}).unwrap()
    }

    /// Every queue that has messages.
    fn plan(&self) -> RebuildPlan {
        let dir = StoreDir::open(&self.root()).unwrap();
        let queues: Vec<_> = dir.queues.iter().map(|queue| queue.key.clone()).collect();
        RebuildPlan { queue_count: queues.len() as u64, queues }
    }

    /// Starts and stops as after a crash, in which the whole log is scanned again.
    fn crash_and_recover(&self) {
        fs::write(self.root().join("abort"), "1").unwrap();
        rebuild(self.settings.clone(), &self.plan(), 1 << 30).unwrap();
    }
}

/// Salvages a store, which must not change by it, and builds the new one's derived files.
fn save(store: &TestStore) -> Saved {
    let before = store.snapshot();
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("saved");
    let dir = StoreDir::open(store.root()).unwrap();
    let mut salvaged = salvage(&dir, SEGMENT_LEN, &to, &mut |_, done, total| assert!(done <= total)).unwrap();
    drop(dir);
    assert_eq!(store.changed(&before), Vec::<PathBuf>::new());
    let settings = StoreSettings { root: to, ..store.settings.clone() };
    rebuild(settings.clone(), &RebuildPlan::default(), 1 << 30)
        .unwrap_or_else(|error| panic!("{error}: {salvaged:#?}"));
    salvaged.take_back_quarantined(&settings.root).unwrap();
    Saved { folder, settings, salvaged }
}

/// Are exactly these messages there, in their places, and does the store agree with itself, now and after a recovery?
fn check(saved: &Saved, kept: &[&Sent], lost_messages: u64) {
    assert_eq!(saved.salvaged.records, kept.len() as u64, "{:#?}", saved.salvaged);
    assert_eq!(saved.salvaged.lost_messages, lost_messages, "{:#?}", saved.salvaged);
    for recovered in [false, true] {
        if recovered {
            saved.crash_and_recover();
        }
        let report = saved.report();
        assert_eq!((report.errors, report.warnings), (0, 0), "{report:#?}");
        let opened = open(saved.settings.clone(), 1 << 30, &Opening::unstopped()).unwrap();
        for sent in kept {
            let queues = opened.queues.list();
            let queue = queues.iter().map(|(_, queue)| queue).find(|queue| *queue.key() == sent.queue).unwrap();
            assert_eq!(queue.units_from(sent.offset).expect("its unit is there").get(0), sent.unit, "{sent:?}");
        }
        fs::remove_file(saved.root().join("abort")).unwrap();
    }
}

fn overwrite(store: &TestStore, phy: u64, bytes: &[u8]) {
    let file = fs::File::options().write(true).open(store.segment(phy)).unwrap();
    file.write_all_at(bytes, phy % SEGMENT_LEN).unwrap();
}

#[test]
fn a_sound_store_is_copied_byte_for_byte() {
    let store = sound();
    let saved = save(&store);
    assert_eq!((saved.salvaged.lost_bytes, saved.salvaged.tail_bytes), (0, 0));
    for start in [0, 4096, 8192] {
        let name = names::segment_name(start);
        let copy = fs::read(saved.root().join("commitlog").join(&name)).unwrap();
        assert!(copy == fs::read(store.segment(start)).unwrap(), "{name}");
    }
    check(&saved, &store.sent.iter().collect::<Vec<_>>(), 0);
}

#[test]
fn what_is_whole_around_a_destroyed_record_is_saved() {
    for garbage in [&[0xFF; 60][..], &[0; 300]] {
        let store = sound();
        overwrite(&store, store.sent[5].unit.phy.0, garbage);
        let saved = save(&store);
        let kept: Vec<_> =
            store.sent.iter().enumerate().filter(|(number, _)| *number != 5).map(|(_, sent)| sent).collect();
        assert_eq!(saved.salvaged.lost_bytes, u64::from(store.sent[5].unit.len));
        check(&saved, &kept, 1);
        let report = saved.report();
        assert_eq!((report.quarantined.len(), report.quarantined[0].units), (1, 1), "{report:#?}");
    }
}

#[test]
fn a_missing_segment_is_stepped_over() {
    let store = sound();
    fs::remove_file(store.segment(4096)).unwrap();
    let saved = save(&store);
    let kept: Vec<_> = store.sent.iter().filter(|sent| sent.unit.phy.0 / SEGMENT_LEN != 1).collect();
    assert_eq!(saved.salvaged.lost_bytes, SEGMENT_LEN);
    check(&saved, &kept, (store.sent.len() - kept.len()) as u64);
}

#[test]
fn a_log_whose_oldest_segment_is_missing_begins_later() {
    let store = sound();
    fs::remove_file(store.segment(0)).unwrap();
    let saved = save(&store);
    let kept: Vec<_> = store.sent.iter().filter(|sent| sent.unit.phy.0 >= SEGMENT_LEN).collect();
    assert_eq!((saved.salvaged.log_start, saved.salvaged.lost_bytes), (SEGMENT_LEN, 0));
    check(&saved, &kept, 0);
}

#[test]
fn a_segment_that_was_cut_gives_what_it_has() {
    let store = sound();
    let cut = store.sent.iter().find(|sent| sent.unit.phy.0 > 4096 + 1500).unwrap().unit.phy.0;
    fs::File::options().write(true).open(store.segment(4096)).unwrap().set_len(cut - 4096 + 50).unwrap();
    let saved = save(&store);
    let kept: Vec<_> = store.sent.iter().filter(|sent| !(cut..8192).contains(&sent.unit.phy.0)).collect();
    check(&saved, &kept, (store.sent.len() - kept.len()) as u64);
}

#[test]
fn the_end_of_a_segment_and_its_blank_may_be_lost() {
    let store = sound();
    let last = store.sent.iter().rfind(|sent| sent.unit.phy.0 < SEGMENT_LEN).unwrap();
    let blank = last.unit.phy.0 + u64::from(last.unit.len);
    overwrite(&store, blank, &[0xEE; 8]);
    check(&save(&store), &store.sent.iter().collect::<Vec<_>>(), 0);
    let store = sound();
    overwrite(&store, last.unit.phy.0, &vec![0; (SEGMENT_LEN - last.unit.phy.0) as usize]);
    let kept: Vec<_> = store.sent.iter().filter(|sent| sent.unit.phy != last.unit.phy).collect();
    // It was the last of its queue: the log does not know of it, the queue does.
    check(&save(&store), &kept, 1);
}

#[test]
fn a_torn_tail_is_left_behind_and_said() {
    let mut store = sound();
    store.put("A", 0, 200);
    let torn = store.forget_newest();
    overwrite(&store, torn.unit.phy.0 + 150, &[0; 100]);
    let saved = save(&store);
    assert!(saved.salvaged.tail_bytes > 0);
    check(&saved, &store.sent.iter().collect::<Vec<_>>(), 0);
}

#[test]
fn bytes_that_the_log_begins_with_may_be_lost() {
    let store = sound();
    overwrite(&store, 0, &[0xFF; 200]);
    let kept: Vec<_> = store.sent.iter().skip(1).collect();
    check(&save(&store), &kept, 1);
}

#[test]
fn the_tables_are_saved_each_in_the_version_that_can_be_read() {
    let store = sound();
    let config = store.root().join("config");
    fs::create_dir_all(&config).unwrap();
    let topics = r#"{"topicConfigTable":{"A":{"topicName":"A"},"B":{"topicName":"B"}}}"#;
    fs::write(config.join("topics.json"), &topics[..20]).unwrap();
    fs::write(config.join("topics.json.bak"), topics).unwrap();
    fs::write(config.join("consumerOffset.json"), r#"{"offsetTable":{"A@g":{0:5}}}"#).unwrap();
    fs::write(config.join("delayOffset.json"), "{,").unwrap();
    let saved = save(&store);
    assert_eq!(saved.salvaged.config_files, ["consumerOffset.json", "topics.json"]);
    assert_eq!(saved.salvaged.config_lost.len(), 2, "{:?}", saved.salvaged.config_lost);
    assert!(saved.salvaged.config_lost[0].starts_with("delayOffset.json: "));
    assert!(saved.salvaged.config_lost[1].contains("older copy in .bak is taken"), "{:?}", saved.salvaged.config_lost);
    let read = |name: &str| fs::read_to_string(saved.root().join("config").join(name)).unwrap();
    assert_eq!(read("topics.json"), topics);
    assert!(read("consumerOffset.json").contains("A@g"));
}

#[test]
fn offsets_beyond_a_queue_that_lost_its_end_are_lowered_to_it() {
    let store = sound();
    let config = store.root().join("config");
    fs::create_dir_all(&config).unwrap();
    fs::write(config.join("consumerOffset.json"), r#"{"offsetTable":{"A@g":{0:12},"A@h":{0:5},"C@g":{0:7}}}"#).unwrap();
    fs::write(config.join("delayOffset.json"), r#"{"offsetTable":{1:3}}"#).unwrap();
    let last = store.sent.iter().rfind(|sent| &*sent.queue.topic == "A").unwrap();
    overwrite(&store, last.unit.phy.0, &[0xFF; 60]);
    let saved = save(&store);
    assert_eq!(saved.salvaged.offsets_lowered, 3);
    let read = |name: &str| fs::read(saved.root().join("config").join(name)).unwrap();
    let offsets = ConsumerOffsetsFile::decode(&read("consumerOffset.json")).unwrap().table;
    assert_eq!((offsets["A@g"][&0], offsets["A@h"][&0], offsets["C@g"][&0]), (11, 5, 0));
    assert_eq!(DelayOffsetsFile::decode(&read("delayOffset.json")).unwrap().table[&1], 0);
}

#[test]
fn a_queue_whose_messages_have_all_expired_goes_on_counting() {
    let store = sound();
    fs::remove_file(store.segment(0)).unwrap();
    // A start sees that the oldest segment is gone, as after an expiry.
    let opened = store.open().unwrap();
    store.close(opened);
    let saved = save(&store);
    assert_eq!(saved.salvaged.expired_queues, 1);
    let opened = open(saved.settings.clone(), 1 << 30, &Opening::unstopped()).unwrap();
    let queues = opened.queues.list();
    let a = queues.iter().map(|(_, queue)| queue).find(|queue| &*queue.key().topic == "A").unwrap();
    assert_eq!((a.min().0, a.max().0), (12, 12));
}

#[test]
fn a_target_that_is_not_empty_or_lies_in_the_store_is_refused() {
    let store = sound();
    let dir = StoreDir::open(store.root()).unwrap();
    let before = store.snapshot();
    for (to, said) in [(store.root().join("saved/here"), "lies in the store"), (store.root().to_owned(), "not empty")] {
        let error = salvage(&dir, SEGMENT_LEN, &to, &mut |_, _, _| {}).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
    assert_eq!(store.changed(&before), Vec::<PathBuf>::new());
}

#[test]
fn a_salvage_that_was_killed_leaves_no_store() {
    let store = sound();
    let folder = tempfile::tempdir().unwrap();
    let part = Layout::new(folder.path()).salvage_part();
    fs::create_dir_all(&part).unwrap();
    assert!(StoreDir::open(folder.path()).is_err());
    let dir = StoreDir::open(store.root()).unwrap();
    assert!(salvage(&dir, SEGMENT_LEN, folder.path(), &mut |_, _, _| {}).is_err(), "what it left has to go first");
}

#[test]
fn where_nothing_is_whole_nothing_is_made() {
    let store = sound();
    for start in [0, 4096, 8192] {
        overwrite(&store, start, &[0; SEGMENT_LEN as usize]);
    }
    let folder = tempfile::tempdir().unwrap();
    let dir = StoreDir::open(store.root()).unwrap();
    let to = folder.path().join("saved");
    let error = salvage(&dir, SEGMENT_LEN, &to, &mut |_, _, _| {}).unwrap_err().to_string();
    assert!(error.contains("no whole record"), "{error}");
    assert!(!to.exists());
}

#[test]
fn many_lost_messages_of_one_queue_are_explained_by_as_many_fillers() {
    // Short messages in the lost region, and none of any other queue around.
    let mut store = TestStore::new();
    let key = QueueKey::new("A", 0);
    for offset in 0..60 {
        store.put_at(key.clone(), QueueOffset(offset), 1);
    }
    store.open_check_close();
    let (from, to) = (store.sent[3].unit.phy.0, store.sent[20].unit.phy.0);
    overwrite(&store, from, &vec![0xFF; (to - from) as usize]);
    let kept: Vec<_> =
        store.sent.iter().enumerate().filter(|(number, _)| !(3..20).contains(number)).map(|(_, sent)| sent).collect();
    let saved = save(&store);
    check(&saved, &kept, 17);
    assert_eq!(saved.report().quarantined[0].units, 17);
    assert_eq!(QUEUE_FILE_LEN, 200, "the lost units lie in several files");
}

#[test]
fn topics_that_a_damaged_table_lacks_keep_their_queues_and_deleted_ones_do_not_come_back() {
    let (only_a, both) = (
        r#"{"topicConfigTable":{"A":{"topicName":"A"}}}"#,
        r#"{"topicConfigTable":{"A":{"topicName":"A"},"B":{"topicName":"B"}}}"#,
    );
    for (table, bak, has_folder, is_lost) in [
        (&both[..30], Some(only_a), true, true),
        (&both[..30], Some(only_a), false, true),
        (&both[..30], None, false, true),
        ("", Some(only_a), false, true),
        (only_a, None, true, false),
    ] {
        let store = sound();
        let config = store.root().join("config");
        fs::create_dir_all(&config).unwrap();
        fs::write(config.join("topics.json"), table).unwrap();
        bak.iter().for_each(|bak| fs::write(config.join("topics.json.bak"), bak).unwrap());
        if !has_folder {
            fs::remove_dir_all(store.layout().consumequeue()).unwrap();
        }
        let saved = save(&store);
        assert_eq!(saved.salvaged.config_lost.is_empty(), !is_lost, "{:?}", saved.salvaged);
        assert_eq!(saved.salvaged.is_whole(), !is_lost);
        let added = if bak.is_none() && is_lost { vec!["A", "B"] } else { vec!["B"] };
        assert_eq!(saved.salvaged.topics_added, added, "{table} {bak:?}");
        check(&saved, &store.sent.iter().collect::<Vec<_>>(), 0);
        let written = fs::read(saved.root().join("config/topics.json")).unwrap();
        assert_eq!(TopicsFile::decode(&written).unwrap().topics["B"].write_queue_nums, 1);
    }
    let store = sound();
    fs::create_dir_all(store.root().join("config")).unwrap();
    fs::write(store.root().join("config/topics.json"), only_a).unwrap();
    fs::remove_dir_all(store.layout().consumequeue().join("B")).unwrap();
    let saved = save(&store);
    assert_eq!((saved.salvaged.topics_added.len(), saved.salvaged.topics_deleted.len()), (0, 1));
    assert!(saved.salvaged.is_whole() && !saved.root().join("consumequeue/B").exists());
}

#[test]
fn what_the_store_proves_to_be_lost_is_counted() {
    type Damage = fn(&TestStore);
    fn copy(store: &TestStore, from: u64, to: u64) {
        fs::copy(store.segment(from), store.segment(to)).unwrap();
    }
    let in_segment = |store: &TestStore, start: u64| {
        store.sent.iter().filter(|sent| sent.unit.phy.0 / SEGMENT_LEN == start / SEGMENT_LEN).count() as u64
    };
    let cases: [(&str, Damage, u64); 7] = [
        ("the last segment is missing", |store| fs::remove_file(store.segment(8192)).unwrap(), 8192),
        ("the last segment is zeros", |store| overwrite(store, 8192, &[0; SEGMENT_LEN as usize]), 8192),
        ("one of it is left", |store| fs::write(store.segment(8192), [0]).unwrap(), 8192),
        ("the oldest is cut to a byte", |store| fs::write(store.segment(0), [0]).unwrap(), 0),
        ("one in the middle is cut to a byte", |store| fs::write(store.segment(4096), [0]).unwrap(), 4096),
        ("the last is a copy", |store| copy(store, 0, 8192), 8192),
        ("the oldest is a copy", |store| copy(store, 4096, 0), 0),
    ];
    for (what, damage, start) in cases {
        for proof in ["queues", "flushed", "checkpoint"] {
            let store = sound();
            damage(&store);
            // One witness alone.
            if proof != "queues" {
                fs::remove_dir_all(store.layout().consumequeue()).unwrap();
            }
            if proof != "flushed" {
                fs::remove_dir_all(store.layout().own()).unwrap();
            }
            if proof != "checkpoint" {
                fs::remove_file(store.layout().checkpoint()).unwrap();
            }
            let saved = save(&store);
            assert!(!saved.salvaged.is_whole(), "{what}, {proof}: {:#?}", saved.salvaged);
            let lost = in_segment(&store, start);
            assert_eq!(saved.salvaged.records + lost, 36, "{what}");
            if proof == "queues" {
                assert_eq!(saved.salvaged.lost_messages, lost, "{what}: {:#?}", saved.salvaged);
            } else {
                let lost = saved.salvaged.lost.iter().find(|lost| lost.phy / SEGMENT_LEN == start / SEGMENT_LEN);
                assert!(lost.is_some_and(|lost| lost.len > 1000), "{what}, {proof}: {:#?}", saved.salvaged);
            }
        }
    }
}

#[test]
fn a_record_that_the_new_store_sets_aside_is_no_saved_one() {
    for (number, offset) in [(5, 5 ^ (1_u64 << 40)), (5, 4), (11, 11 ^ (1 << 40)), (35, 23 ^ (1 << 30))] {
        let store = sound();
        overwrite(&store, store.sent[number].unit.phy.0 + 20, &offset.to_be_bytes());
        let saved = save(&store);
        let salvaged = &saved.salvaged;
        assert_eq!((salvaged.records, salvaged.lost_messages, salvaged.is_whole()), (35, 1, false), "{salvaged:#?}");
        assert_eq!((salvaged.lost.len(), salvaged.lost[0].phy), (1, store.sent[number].unit.phy.0));
        assert_eq!((saved.report().errors, saved.report().quarantined.len()), (0, 1));
    }
}

proptest! {
    #[test]
    fn fillers_and_blank_cover_a_lost_region_exactly(
        segment in 0..3_u64,
        from in 0..4096_u64,
        len in 91..5000_u64,
        least in 0..100_u64,
    ) {
        let start = segment * 4096 + from;
        let range = start..(start + len).min((segment + 1) * 4096);
        let mut at = range.start;
        let pieces = filler_pieces(&range, 4096, least);
        for piece in &pieces {
            prop_assert_eq!(piece.start, at);
            let bytes = filler(piece, Timestamp(7));
            prop_assert_eq!(bytes.len() as u64, piece.end - piece.start);
            let view = RecordView::parse(&bytes).unwrap();
            prop_assert!(view.check_crc() && view.phy().0 == piece.start);
            at = piece.end;
        }
        let room = range.end - range.start;
        prop_assert!(pieces.len() as u64 >= least.min(room.saturating_sub(BLANK) / RECORD_MIN));
        let blank = blank_behind(&range).filter(|_| range.end % 4096 == 0);
        if let Some(blank) = blank {
            prop_assert_eq!(blank.start, at);
            at = blank.end;
        }
        let least_room = if range.end % 4096 == 0 { BLANK } else { RECORD_MIN };
        prop_assert!(at == range.end || range.end - at < least_room);
    }
}
