use std::fs;

use super::*;
use crate::format::unit::{UNIT_LEN, Unit};
use crate::store::queues::{QueueView, UnitFile};
use crate::store::shared::Poison;
use crate::store::test_store::{QUEUE_FILE_LEN, SEGMENT_LEN, TestStore, dirty_pages};
use crate::types::{QueueOffset, TagsCode};

#[test]
fn other_sizes_are_refused_with_file_sizes_and_key() {
    let mut store = TestStore::of_two_topics();
    store.open_check_close();
    let settings = store.settings.clone();
    type Change = fn(&mut StoreSettings);
    let cases: [(Change, &str, &str, u64, u64); 4] = [
        (|s| s.segment_len = 8192, "store.commitlog_file_size", "commitlog/00000000000000000000", 4096, 8192),
        (
            |s| s.consumequeue_len = 400,
            "store.consumequeue_file_size",
            "consumequeue/A/0/00000000000000000000",
            200,
            400,
        ),
        (|s| s.index_slots = 200, "store.index_slots", "index/20", 8440, 8840),
        (|s| s.index_entries = 500, "store.index_entries", "index/20", 8440, 10440),
    ];
    for killed in [false, true] {
        if killed {
            store.killed(store.end, Timestamp(0));
        }
        for (change, key, file, found, expected) in cases {
            change(&mut store.settings);
            let error = store.refusal();
            for part in [key, file, &format!("{found} bytes"), &format!("{expected} expected")] {
                assert!(error.contains(part), "{part:?} in {error:?}");
            }
            store.settings = settings.clone();
        }
    }
    store.open_check_close();
}

#[test]
fn a_file_cut_short_is_refused() {
    let store = TestStore::of_two_topics();
    store.open_check_close();
    let files = [store.segment(SEGMENT_LEN), store.queue_file("B", 0, 10), store.index_files()[0].clone()];
    for path in files {
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[..100]).unwrap();
        let error = store.refusal();
        assert!(error.contains(path.to_str().unwrap()) && error.contains("100 bytes"), "{error}");
        fs::write(&path, whole).unwrap();
    }
    store.open_check_close();
}

#[test]
fn a_hole_between_segments_is_refused() {
    let store = TestStore::of_two_topics();
    store.open_check_close();
    let (missing, aside) = (store.segment(SEGMENT_LEN), store.root().join("aside"));
    fs::rename(&missing, &aside).unwrap();
    let error = store.refusal();
    assert!(error.contains(&format!("{}: missing", missing.display())), "{error}");
    fs::rename(&aside, &missing).unwrap();
    store.open_check_close();
}

#[test]
fn files_with_digit_names_that_no_such_store_has_are_refused() {
    let store = TestStore::of_two_topics();
    store.open_check_close();
    let strays = [
        store.layout().commitlog().join("00000000000000000100"),
        store.queue_file("A", 0, 0).with_file_name("00000000000000000020"),
    ];
    for stray in strays {
        let len = fs::metadata(stray.with_file_name("00000000000000000000")).unwrap().len();
        fs::write(&stray, vec![0; len as usize]).unwrap();
        let error = store.refusal();
        assert!(error.contains(stray.to_str().unwrap()), "{error}");
        fs::remove_file(&stray).unwrap();
    }
    store.open_check_close();
}

#[test]
fn stray_names_are_left_alone() {
    let store = TestStore::of_two_topics();
    store.open_check_close();
    let layout = store.layout();
    let folders = [
        layout.commitlog().join("00000000000000077777"),
        layout.consumequeue().join("A/0/00000000000000077777"),
        layout.consumequeue().join("A/007"),
        layout.consumequeue().join("A/x"),
        layout.index().join("x"),
    ];
    let files = [
        layout.commitlog().join("00000000000000000000.bak"),
        layout.consumequeue().join("notes"),
        layout.consumequeue().join("A/notes"),
        layout.consumequeue().join("A/0/notes"),
        layout.index().join("notes"),
        layout.root().join("abort.bak"),
    ];
    folders.iter().for_each(|path| fs::create_dir(path).unwrap());
    files.iter().for_each(|path| fs::write(path, "keep me").unwrap());
    for killed in [false, true] {
        if killed {
            store.killed(store.end, Timestamp(0));
        }
        let opened = store.open().unwrap();
        store.check(&opened);
        store.close(opened);
        assert!(folders.iter().all(|path| path.is_dir()));
        assert!(files.iter().all(|path| fs::read(path).unwrap() == b"keep me"));
    }
}

#[test]
fn a_store_of_another_kind_is_refused() {
    let store = TestStore::of_two_topics();
    fs::create_dir_all(store.layout().consumequeue()).unwrap();
    fs::write(store.layout().consumequeue().join("CURRENT"), "MANIFEST-000004\n").unwrap();
    assert!(store.refusal().contains("RocksDB"));
}

#[test]
fn records_that_somebody_else_added_after_a_clean_stop_are_found() {
    let mut store = TestStore::of_two_topics();
    store.open_check_close();
    // A Java broker that lost units of its own (J1): the derived files are as we left them, the log is longer.
    store.put("B", 0, 50);
    store.open_check_close();
    while store.end.0 % SEGMENT_LEN > 500 || store.end.0 % SEGMENT_LEN < 100 {
        store.put("B", 0, 50);
    }
    store.open_check_close();
}

#[test]
fn a_stop_after_a_failed_flush_removes_nothing_and_leaves_the_abort_file() {
    let store = TestStore::of_two_topics();
    let opened = store.open().unwrap();
    // The log went on into later segments, and then a sync failed: only the first segment counts as flushed.
    opened.shared.set_flushed(crate::types::PhyOffset(SEGMENT_LEN / 2));
    opened.shared.set_poison(Poison {
        what: "sync",
        path: store.segment(0),
        why: "no space left on device".into(),
        flushed: opened.shared.flushed(),
    });
    store.close(opened);
    assert!(store.layout().abort().exists());
    store.open_check_close();
    assert!(!store.layout().abort().exists());
}

#[test]
fn abort_holds_the_process_id_while_the_store_is_open_and_goes_at_a_clean_stop() {
    let store = TestStore::of_two_topics();
    let opened = store.open().unwrap();
    assert_eq!(fs::read_to_string(store.layout().abort()).unwrap(), std::process::id().to_string());
    assert_eq!(fs::read(store.root().join("lock")).unwrap(), b"lock");
    store.close(opened);
    assert!(!store.layout().abort().exists());
}

#[test]
fn a_new_store_has_a_checkpoint_before_its_first_message() {
    let store = TestStore::new();
    let _opened = store.open().unwrap();
    assert_eq!(fs::read(store.layout().checkpoint()).unwrap(), [0; 4096]);
}

#[test]
fn dma_becomes_buffered_where_the_file_system_has_no_direct_access() {
    // A new store, and one that has a segment.
    for (count, in_memory) in [(0, true), (3, true), (0, false), (3, false)] {
        let mut store = if in_memory { TestStore::in_memory() } else { TestStore::new() };
        store.settings.append = AppendMode::Dma;
        store.settings.sync_call = None;
        store.settings.flush = FlushMode::Sync;
        for _ in 0..count {
            store.put("Direct", 0, 10);
        }
        let opened = store.open().unwrap();
        let is_direct = knows_direct(store.root()).unwrap();
        let expected = if is_direct { AppendMode::Dma } else { AppendMode::Buffered };
        assert_eq!(opened.shared.settings.flush_policy().append, expected.word());
        assert_eq!(
            opened.shared.tail.is_some(),
            is_direct,
            "the log's end is in memory where the page cache has it not"
        );
        assert!(crate::store::SyncRecord::load(&store.layout(), expected).unwrap().is_some());
        assert!(!store.layout().sync_probe().exists());
    }
    let mut store = TestStore::new();
    store.settings.sync_call = None;
    store.settings.flush = FlushMode::Async;
    assert_eq!(store.open().unwrap().shared.settings.flush_policy().sync_call, "fdatasync");
    assert!(!store.layout().sync_call().exists(), "what is not used is not measured");
    // tmpfs takes the flag and does nothing with it.
    if let Ok(dir) = tempfile::tempdir_in("/dev/shm") {
        assert!(!knows_direct(dir.path()).unwrap());
    }
}

#[test]
fn a_checkpoint_that_is_missing_short_or_zero_costs_time_and_no_message() {
    let damage: [fn(&std::path::Path); 5] = [
        |path| fs::remove_file(path).unwrap(),
        |path| fs::write(path, "").unwrap(),
        |path| fs::write(path, [1; 7]).unwrap(),
        |path| fs::write(path, [0; 4096]).unwrap(),
        |path| fs::write(path, [0xff; 4096]).unwrap(),
    ];
    for damage in damage {
        for killed in [false, true] {
            let mut store = TestStore::of_two_topics();
            store.open_check_close();
            if killed {
                store.put("A", 0, 100);
                store.killed(store.sent[3].unit.phy, Timestamp(0));
            }
            damage(&store.layout().checkpoint());
            store.open_check_close();
            let checkpoint = fs::read(store.layout().checkpoint()).unwrap();
            let newest = store.sent.last().unwrap().stored_at;
            assert_eq!(Checkpoint::decode(&checkpoint).unwrap().physic, newest);
            assert_eq!(checkpoint.len(), 4096);
        }
    }
}

#[test]
fn any_abort_file_makes_a_start_unclean_and_its_by_product_does_not() {
    for (name, content, unclean) in
        [("abort", "4711", true), ("abort", "", true), ("abort", "not a number", true), ("abort.bak", "", false)]
    {
        let store = TestStore::of_two_topics();
        store.open_check_close();
        // What only a recovery looks for: an older use of the file behind the queue's end.
        store.write_unit("B", 0, 28, &Unit { phy: PhyOffset(9), len: 100, tags: TagsCode(1) });
        fs::write(store.root().join(name), content).unwrap();
        let opened = store.open().unwrap();
        store.check(&opened);
        assert_eq!(fs::read_to_string(store.layout().abort()).unwrap(), std::process::id().to_string());
        store.close(opened);
        assert!(!store.layout().abort().exists());
        let behind = &fs::read(store.queue_file("B", 0, 28)).unwrap()[8 * UNIT_LEN..9 * UNIT_LEN];
        assert_eq!(behind.iter().all(|byte| *byte == 0), unclean, "{name} {content:?}");
    }
    let store = TestStore::of_two_topics();
    store.open_check_close();
    fs::create_dir(store.layout().abort()).unwrap();
    let error = store.open().map(drop).unwrap_err().to_string();
    assert!(error.contains("abort"), "{error}");
}

#[test]
fn a_missing_oldest_segment_moves_the_beginnings_of_queues_up() {
    for killed in [false, true] {
        let mut store = TestStore::of_two_topics();
        store.open_check_close();
        if killed {
            store.killed(store.end, Timestamp(0));
        }
        fs::remove_file(store.segment(0)).unwrap();
        store.sent.retain(|sent| sent.unit.phy.0 >= SEGMENT_LEN);
        let opened = store.open().unwrap();
        assert_eq!(opened.shared.segments.min(), PhyOffset(SEGMENT_LEN));
        store.check(&opened);
        store.close(opened);
    }
}

#[test]
fn units_lost_after_a_clean_stop_are_missed_and_written_again() {
    for lost in 0..24 {
        let store = TestStore::of_two_topics();
        store.open_check_close();
        store.write_unit("B", 0, lost, &Unit { phy: PhyOffset(0), len: 0, tags: TagsCode(0) });
        // Nobody looks for units in other files than a queue's last, unless something else is amiss.
        if lost < 20 {
            fs::remove_dir_all(store.layout().index()).unwrap();
        }
        store.open_check_close();
    }
}

/// As the builders do it: units up to `max`, in new files where the last is full.
fn grow(store: &TestStore, queue: &QueueView, max: u64) {
    let units = QUEUE_FILE_LEN / UNIT_LEN as u64;
    for offset in queue.max().0..max {
        if queue.files().last().is_none_or(|last| last.end().0 <= offset) {
            let path = store.queue_file(&queue.key().topic, queue.key().queue_id, offset);
            let map = SharedMap::open(&path, QUEUE_FILE_LEN).unwrap();
            map.reserve(QUEUE_FILE_LEN).unwrap();
            queue.push_file(Arc::new(UnitFile::new(QueueOffset(offset - offset % units), map)));
        }
        let files = queue.files();
        let last = files.last().unwrap();
        last.map().reserve(QUEUE_FILE_LEN).unwrap();
        let unit = Unit { phy: PhyOffset(offset), len: 100, tags: TagsCode(1) };
        // SAFETY: the test has the file to itself.
        unsafe { last.map().write((offset - last.first().0) as usize * UNIT_LEN, &unit.encode()) };
    }
    queue.publish_max(QueueOffset(max));
}

#[test]
fn a_clean_stop_syncs_every_file_that_grew_since_the_start() {
    let store = TestStore::of_two_topics();
    let opened = store.open().unwrap();
    let queues: Vec<_> = opened.queues.list().iter().map(|(_, queue)| Arc::clone(queue)).collect();
    // A rolls three times, B not at all; the file before each has nothing new.
    grow(&store, &queues[0], 45);
    grow(&store, &queues[1], 27);
    let since: Vec<_> = queues.iter().map(|queue| queue.files_since_opened()).collect();
    let firsts: Vec<Vec<_>> = since.iter().map(|files| files.iter().map(|file| file.first().0).collect()).collect();
    assert_eq!(firsts, [vec![10, 20, 30, 40], vec![20]]);
    store.close(opened);
    for path in store.snapshot().into_keys().filter(|path| path.starts_with(store.layout().consumequeue())) {
        assert_eq!(dirty_pages(&path), 0, "dirty pages in {}", path.display());
    }
    // A queue that got nothing costs no sync.
    let opened = store.open().unwrap();
    assert!(opened.queues.list().iter().all(|(_, queue)| queue.files_since_opened().is_empty()));
}

#[test]
fn a_clean_stop_whose_folders_cannot_be_synced_stays_unclean() {
    // What can be seen of a folder's sync: it fails if the folder is gone.
    for gone in ["A/0", "A", "", "index"] {
        let store = TestStore::of_two_topics();
        let opened = store.open().unwrap();
        let queues: Vec<_> = opened.queues.list().iter().map(|(_, queue)| Arc::clone(queue)).collect();
        grow(&store, &queues[0], 45);
        let dir = if gone == "index" { store.layout().index() } else { store.layout().consumequeue().join(gone) };
        fs::rename(&dir, dir.with_extension("aside")).unwrap();
        let closing = Closing {
            layout: opened.layout,
            shared: opened.shared,
            queues: &queues,
            index_files: opened.index_files,
            checkpoint: opened.checkpoint,
        };
        let error = close(&closing).unwrap_err().to_string();
        assert!(error.contains(dir.to_str().unwrap().trim_end_matches('/')), "{error}");
        assert!(store.layout().abort().exists());
    }
}

#[test]
fn a_store_says_how_far_it_is_flushed_from_its_first_moment_on() {
    // A crash in the first second may leave any sectors of what was written: none of them is damage.
    let mut store = TestStore::new();
    let opened = store.open().unwrap();
    drop(opened);
    for _ in 0..3 {
        store.put("A", 0, 200);
    }
    let (torn, behind) = (store.sent[0].unit, store.sent[1].unit);
    store.write(torn.phy, &[0; 100]);
    assert!(behind.phy > torn.phy);
    while !store.sent.is_empty() {
        store.forget_newest();
    }
    store.open_check_close();
    assert_eq!(store.quarantine().len(), 1);
}

#[test]
fn an_index_file_of_another_shape_that_is_as_long_is_refused_with_its_own() {
    let mut store = TestStore::of_two_topics();
    store.open_check_close();
    let settings = store.settings.clone();
    for killed in [false, true] {
        if killed {
            store.killed(store.end, Timestamp(0));
        }
        for further in [-1, 1, 7] {
            store.settings.index_slots = settings.index_slots.checked_add_signed(5 * further).unwrap();
            store.settings.index_entries = settings.index_entries.checked_add_signed(-further).unwrap();
            let error = store.refusal();
            for part in [
                "index/20".to_owned(),
                format!("store.index_slots = {} ", settings.index_slots),
                format!("store.index_entries = {};", settings.index_entries),
            ] {
                assert!(error.contains(&part), "{part:?} in {error:?}");
            }
        }
        store.settings = settings.clone();
    }
    store.open_check_close();
}

#[test]
fn what_a_salvage_left_unfinished_and_linked_segments_are_refused() {
    let store = TestStore::of_two_topics();
    store.open_check_close();
    let part = store.root().join("commitlog.part");
    fs::create_dir(&part).unwrap();
    assert!(store.refusal().contains("commitlog.part: what a salvage left"), "{}", store.refusal());
    fs::remove_dir(part).unwrap();
    let (segment, elsewhere) = (store.segment(0), store.root().join("elsewhere"));
    fs::rename(&segment, &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &segment).unwrap();
    let error = store.refusal();
    assert!(error.contains(segment.to_str().unwrap()) && error.contains("symbolic link"), "{error}");
    let error = crate::store::survey::StoreDir::open(store.root()).err().map(|error| error.to_string());
    assert!(error.as_ref().is_some_and(|error| error.contains("symbolic link")), "{error:?}");
    fs::remove_file(&segment).unwrap();
    fs::rename(elsewhere, segment).unwrap();
    store.open_check_close();
}

#[test]
fn a_stop_with_derived_data_in_doubt_is_unclean_and_the_next_start_completes_it() {
    let mut store = TestStore::new();
    for _ in 0..3 {
        store.put("A", 0, 100);
    }
    store.open_check_close();
    let opened = store.open().unwrap();
    let checkpoint = fs::read(store.layout().checkpoint()).unwrap();
    // The queue was stopped at a gap: the builder dropped what came then.
    opened.shared.set_in_doubt("consume queue A-0".into(), "message 4 came where 3 is next".into());
    for _ in 0..2 {
        store.put("A", 0, 100);
    }
    opened.shared.set_appended(store.end);
    opened.shared.set_confirm(store.end);
    opened.shared.set_flushed(store.end);
    store.close(opened);
    assert!(store.layout().abort().exists());
    assert_eq!(fs::read(store.layout().checkpoint()).unwrap(), checkpoint, "the next start begins before the doubt");
    let progress = Progress::load(&store.layout().flushed()).unwrap().newest.unwrap();
    assert_eq!((progress.flushed(), progress.clean), (store.end, None));
    store.open_check_close();
    assert!(!store.layout().abort().exists());
}

#[test]
fn one_file_of_another_size_among_right_ones_is_damaged_and_the_error_says_what_to_do() {
    for killed in [false, true] {
        let store = TestStore::of_two_topics();
        store.open_check_close();
        if killed {
            store.killed(store.end, Timestamp(0));
        }
        let cases = [
            (store.segment(SEGMENT_LEN), SEGMENT_LEN, "kerolox salvage", "store.commitlog_file_size"),
            (store.queue_file("B", 0, 10), QUEUE_FILE_LEN, "kerolox rebuild", "store.consumequeue_file_size"),
        ];
        for (path, expected, remedy, key) in cases {
            let whole = fs::read(&path).unwrap();
            fs::write(&path, &whole[..100]).unwrap();
            let before = store.snapshot();
            let error = store.refusal();
            let parts = [path.to_str().unwrap(), "damaged", "100 bytes", &format!("{expected} expected"), remedy, key];
            for part in parts {
                assert!(error.contains(part), "{part:?} in {error:?}");
            }
            assert!(!error.contains("set store."), "{error}");
            assert_eq!(store.changed(&before).len(), 0);
            fs::write(&path, whole).unwrap();
        }
        store.open_check_close();
    }
}

#[test]
fn topics_that_an_older_table_does_not_name_are_told() {
    let mut store = TestStore::of_two_topics();
    store.put("%RETRY%g", 0, 20);
    store.put("%LMQ%l", 0, 20);
    store.killed(PhyOffset(0), Timestamp(0));
    let opened = store.open().unwrap();
    let queues: Vec<_> = opened.queues.list().iter().map(|(_, queue)| Arc::clone(queue)).collect();
    let mut tables = ConfigTables::default();
    assert_eq!(lost_topics(&tables, &queues).into_iter().collect::<Vec<_>>(), ["A", "B"]);
    let topic = r#"{"topicConfigTable":{"A":{"topicName":"A","readQueueNums":1,"writeQueueNums":1,"perm":6}},"dataVersion":{"counter":1,"stateVersion":0,"timestamp":0}}"#;
    tables.topics = crate::format::config_files::TopicsFile::decode(topic.as_bytes()).unwrap();
    assert_eq!(lost_topics(&tables, &queues).into_iter().collect::<Vec<_>>(), ["B"]);
}
