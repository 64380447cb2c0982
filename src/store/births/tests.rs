use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::rc::Rc;

use super::*;
use crate::format::config_files::{ConsumerOffsetsFile, DataVersion, TopicConfig, TopicsFile, consumer_offset_key};
use crate::format::names;
use crate::io::disk::{Answer, Change};
use crate::io::tap::{Tap, Watch};
use crate::store::deleted::{remove_next, take_away};
use crate::store::rebuild::{RebuildPlan, rebuild};
use crate::store::survey::{self, Shape, ShapeHints, StoreDir, Verify};
use crate::store::test_store::{FIRST_STORED_AT, TestStore};
use crate::types::{QueueKey, Timestamp};

/// Saves births; the deletions are in every topics.json.
fn save_births(store: &TestStore, births: &[(&str, PhyOffset)]) {
    let mut saved = Births::default();
    births.iter().for_each(|(topic, birth)| saved.set(topic, *birth, 0));
    replace_keeping_old(&store.layout().births(), &saved.encode()).unwrap();
}

/// The table as it stood after so many changes.
fn topics_file(topics: &[&str], counter: i64) -> TopicsFile {
    let config = |topic: &&str| ((*topic).to_owned(), TopicConfig::new(*topic, 1));
    let data_version = DataVersion { counter, ..DataVersion::default() };
    TopicsFile { topics: topics.iter().map(config).collect(), data_version }
}

fn save_topics(store: &TestStore, topics: &[&str], counter: i64) {
    let file = topics_file(topics, counter);
    replace_keeping_old(&store.layout().config(names::TOPICS), &file.encode()).unwrap();
}

fn findings(store: &TestStore) -> Vec<String> {
    let dir = StoreDir::open(store.root()).unwrap();
    let asked = Verify { shape: Shape::of(&dir, ShapeHints::default()), delays_ms: vec![1000, 5000], index: true };
    let report = survey::verify(&dir, &asked, &mut |_, _| {}).unwrap();
    report.findings.iter().map(|finding| format!("{finding:?}")).collect()
}

/// A topic that was deleted and made again, with twelve messages before and five after, between those of another.
fn deleted_and_made_again() -> (TestStore, PhyOffset) {
    let mut store = TestStore::new();
    for _ in 0..12 {
        store.put("A", 0, 200);
        store.put("B", 0, 200);
    }
    let birth = store.retire("A");
    for _ in 0..5 {
        store.put("B", 0, 200);
        store.put("A", 0, 200);
    }
    save_births(&store, &[("A", birth)]);
    save_topics(&store, &["A", "B"], 9);
    (store, birth)
}

#[test]
fn a_rebuild_gives_a_topic_that_was_made_again_its_new_messages_alone() {
    for lost in ["consumequeue", "consumequeue/A", "index", "kerolox/flushed"] {
        let (store, _) = deleted_and_made_again();
        store.open_check_close();
        assert_eq!(findings(&store), [""; 0]);
        let path = store.root().join(lost);
        if path.is_dir() {
            fs::remove_dir_all(path).unwrap()
        } else {
            fs::remove_file(path).unwrap()
        }
        let opened = store.open().unwrap();
        store.check(&opened);
        assert_eq!(store.retired_found(&opened), 0, "{lost}");
        store.close(opened);
        store.open_check_close();
        assert_eq!(findings(&store), [""; 0], "{lost}");
    }
}

#[test]
fn after_a_kill_old_messages_stay_away_wherever_the_scan_begins() {
    let (store, birth) = deleted_and_made_again();
    store.open_check_close();
    for safe in [0, 5, 11, 20] {
        store.killed(birth, Timestamp(FIRST_STORED_AT + 200 * safe));
        store.open_check_close();
        store.killed(birth, Timestamp(0));
        fs::remove_dir_all(store.layout().consumequeue()).unwrap();
        store.open_check_close();
    }
}

#[test]
fn the_rebuild_command_knows_generations() {
    let (store, _) = deleted_and_made_again();
    store.open_check_close();
    let plan = RebuildPlan { queue_count: 2, queues: vec![QueueKey::new("A", 0), QueueKey::new("B", 0)] };
    let rebuilt = rebuild(store.settings.clone(), &plan, 1 << 30).unwrap();
    assert_eq!((rebuilt.queues, rebuilt.units), (2, 22));
    let opened = store.open().unwrap();
    store.check(&opened);
    assert_eq!(store.retired_found(&opened), 0);
    store.close(opened);
    assert_eq!(findings(&store), [""; 0]);
}

/// Without topics.json nobody but the births says so; that of a Java broker may list what it likes.
#[test]
fn a_deleted_topic_does_not_come_back_whether_listed_or_not() {
    for listed in [&[][..], &["B"], &["A", "B"]] {
        for killed in [false, true] {
            let mut store = TestStore::of_two_topics();
            let birth = store.retire("A");
            store.put("B", 0, 200);
            save_births(&store, &[("A", birth)]);
            if !listed.is_empty() {
                save_topics(&store, listed, 9);
            }
            if killed {
                store.killed(birth, Timestamp(0));
            }
            let opened = store.open().unwrap();
            store.check(&opened);
            assert_eq!(store.retired_found(&opened), 0);
            assert!(!store.layout().consumequeue().join("A").exists());
            store.close(opened);
            store.open_check_close();
        }
    }
}

/// A store of a Java broker has no births: what topics.json does not list is gone, and without it nothing is.
#[test]
fn without_births_the_list_of_topics_says_what_is_gone() {
    let mut store = TestStore::of_two_topics();
    let whole = TestStore::of_two_topics();
    whole.open_check_close();
    store.retire("A");
    save_topics(&store, &["B"], 3);
    let opened = store.open().unwrap();
    store.check(&opened);
    assert!(!store.layout().consumequeue().join("A").exists());
}

#[test]
fn folders_of_an_older_generation_that_a_crash_left_are_removed() {
    let mut store = TestStore::of_two_topics();
    store.put("A", 3, 200);
    store.open_check_close();
    let birth = store.retire("A");
    save_births(&store, &[("A", birth)]);
    let topic = store.layout().consumequeue().join("A");
    assert!(topic.join("3").exists());
    let leftover = store.layout().deleted().join("1/C/0/00000000000000000000");
    fs::create_dir_all(leftover.parent().unwrap()).unwrap();
    fs::write(&leftover, "units").unwrap();
    let opened = store.open().unwrap();
    assert!(!topic.exists() && !store.layout().deleted().exists());
    assert!(opened.queues.list().iter().all(|(_, queue)| &*queue.key().topic != "A"));
    store.close(opened);
    // The same with a generation that has messages.
    store.put("A", 0, 200);
    store.killed(birth, Timestamp(0));
    store.open_check_close();
}

#[test]
fn a_deletion_that_a_crash_interrupted_is_completed_and_a_topic_made_later_is_kept() {
    let mut store = TestStore::of_two_topics();
    let birth = store.retire("A");
    store.put("B", 0, 200);
    save_topics(&store, &["A", "B"], 7);
    let offsets = consumer_offsets(&["A", "B"]);
    replace_keeping_old(&store.layout().config(names::CONSUMER_OFFSETS), &offsets.encode()).unwrap();
    let mut births = Births::default();
    births.set("A", birth, 8);
    replace_keeping_old(&store.layout().births(), &births.encode()).unwrap();

    let opened = store.open().unwrap();
    assert_eq!(opened.tables.topics.topics.keys().collect::<Vec<_>>(), ["B"]);
    assert_eq!(opened.tables.consumer_offsets.table.keys().collect::<Vec<_>>(), ["B@G"]);
    assert!(opened.tables.topics.data_version.counter >= 8, "what is saved next counts as later");
    store.close(opened);

    save_topics(&store, &["A", "B"], 9);
    let opened = store.open().unwrap();
    assert_eq!(opened.tables.topics.topics.keys().collect::<Vec<_>>(), ["A", "B"]);
    assert_eq!(opened.tables.consumer_offsets.table.len(), 2);
    assert!(opened.births.is_old("A", PhyOffset(0)));
    store.close(opened);
}

/// The log lost its end with the power: what is sent next lies below where it ended before.
#[test]
fn no_birth_is_behind_the_logs_end_and_none_is_kept_for_what_has_expired() {
    let store = TestStore::of_two_topics();
    store.open_check_close();
    save_births(&store, &[("C", store.end.advance(5000))]);
    let opened = store.open().unwrap();
    assert_eq!(opened.births.birth("C"), store.end);
    store.close(opened);
    assert_eq!(Births::load(&store.layout()).unwrap().birth("C"), store.end);

    let mut store = TestStore::beginning_at(8192, &QueueKey::new("B", 0), 7);
    store.put("B", 0, 200);
    save_births(&store, &[("C", PhyOffset(8000)), ("D", PhyOffset(8193))]);
    let opened = store.open().unwrap();
    assert_eq!((opened.births.contains("C"), opened.births.contains("D")), (false, true));
    store.close(opened);
}

#[test]
fn births_that_are_torn_fall_back_to_the_older_ones_or_refuse_the_start() {
    let store = TestStore::of_two_topics();
    store.open_check_close();
    save_births(&store, &[("C", PhyOffset(100))]);
    save_births(&store, &[("C", PhyOffset(200))]);
    let path = store.layout().births();
    fs::write(&path, "{\"C\":").unwrap();
    assert_eq!(Births::load(&store.layout()).unwrap().birth("C"), PhyOffset(100));
    for torn in [path.clone(), path.with_extension("bak")] {
        fs::write(torn, "{\"C\":").unwrap();
    }
    let error = store.refusal();
    assert!(error.contains("kerolox/births"), "{error}");
}

/// Ends a process at its `n`th change of a file.
struct KilledAt {
    left: Cell<u64>,
}

impl Tap for KilledAt {
    fn ask(&self, _: &Change<'_>) -> io::Result<Answer> {
        let left = self.left.get().checked_sub(1).ok_or_else(|| io::Error::other("killed"))?;
        self.left.set(left);
        Ok(Answer::Do)
    }
}

fn consumer_offsets(topics: &[&str]) -> ConsumerOffsetsFile {
    let mut offsets = ConsumerOffsetsFile::default();
    for topic in topics {
        offsets.table.insert(consumer_offset_key(topic, "G"), BTreeMap::from([(0, 5)]));
    }
    offsets
}

/// What the node changes on the disk to delete topic A, in its order.
fn delete_a(store: &TestStore, birth: PhyOffset) -> io::Result<()> {
    let layout = store.layout();
    let mut births = Births::load(&layout).map_err(|error| io::Error::other(error.to_string()))?;
    births.set("A", birth, 8);
    replace_keeping_old(&layout.births(), &births.encode())?;
    replace_keeping_old(&layout.config(names::CONSUMER_OFFSETS), &consumer_offsets(&["B"]).encode())?;
    replace_keeping_old(&layout.config(names::TOPICS), &topics_file(&["B"], 8).encode())?;
    if let Some(folder) = take_away(&layout, "A", birth, 1)? {
        while remove_next(&folder)? {}
    }
    Ok(())
}

#[test]
fn a_kill_at_any_step_of_a_deletion_leaves_the_topic_whole_or_none_of_it() {
    let (mut whole, mut deleted) = (0, 0);
    for n in 0.. {
        let mut store = TestStore::in_memory();
        for _ in 0..12 {
            store.put("A", 0, 200);
            store.put("A", 3, 20);
            store.put("B", 0, 200);
        }
        save_topics(&store, &["A", "B"], 7);
        let offsets = consumer_offsets(&["A", "B"]).encode();
        replace_keeping_old(&store.layout().config(names::CONSUMER_OFFSETS), &offsets).unwrap();
        store.open_check_close();
        let birth = store.end;
        let done = {
            let _watch = Watch::start(Rc::new(KilledAt { left: Cell::new(n) }));
            delete_a(&store, birth)
        };
        store.killed(birth, Timestamp(FIRST_STORED_AT + 1000));
        let is_deleted = Births::load(&store.layout()).unwrap().contains("A");
        if is_deleted {
            store.retire("A");
            deleted += 1;
        } else {
            whole += 1;
        }
        let opened = store.open().unwrap();
        store.check(&opened);
        let tables = &opened.tables;
        let expected: &[&str] = if is_deleted { &["B"] } else { &["A", "B"] };
        assert_eq!(tables.topics.topics.keys().collect::<Vec<_>>(), expected, "killed at {n}");
        assert_eq!(tables.consumer_offsets, consumer_offsets(expected), "killed at {n}");
        let has_queues = opened.queues.list().iter().any(|(_, queue)| &*queue.key().topic == "A");
        assert_eq!(has_queues, !is_deleted, "killed at {n}");
        store.close(opened);
        // Made again, it begins with message 0.
        if is_deleted {
            save_topics(&store, &["A", "B"], 9);
            let offsets = consumer_offsets(&["B"]).encode();
            replace_keeping_old(&store.layout().config(names::CONSUMER_OFFSETS), &offsets).unwrap();
        }
        store.put("A", 0, 200);
        store.put("B", 0, 200);
        store.killed(birth, Timestamp(0));
        store.open_check_close();
        assert_eq!(findings(&store), [""; 0], "killed at {n}");
        if done.is_ok() {
            break;
        }
    }
    assert!(whole > 3 && deleted > 12, "{whole} and {deleted}");
}
