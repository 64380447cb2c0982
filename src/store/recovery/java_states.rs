//! Stores as a Java broker leaves them: its known defects (store.md 14) are in what it wrote, and each such store opens
//! here with every message at its offset, whether that broker stopped or was killed.

use std::fs;
use std::sync::Arc;

use crate::format::checkpoint::Checkpoint;
use crate::format::record::sys_flag;
use crate::format::unit::{UNIT_LEN, Unit};
use crate::index::{IndexFile, IndexFileMut};
use crate::store::open::{OpenedStore, save_checkpoint};
use crate::store::queues::QueueView;
use crate::store::test_store::{SEGMENT_LEN, TestStore};
use crate::types::{PhyOffset, QueueKey, QueueOffset, TagsCode, Timestamp};

const ZEROS: Unit = Unit { phy: PhyOffset(0), len: 0, tags: TagsCode(0) };

/// How a Java broker ended.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Java {
    Stopped,
    Killed,
}

const ENDS: [Java; 2] = [Java::Stopped, Java::Killed];

/// Makes it a store of Java's, which keeps nothing but a checkpoint and `abort`.
fn left_by_java(store: &TestStore, end: Java, stored_at: Timestamp) {
    let _ = fs::remove_dir_all(store.layout().own());
    let checkpoint = Checkpoint { physic: stored_at, logics: stored_at, ..Checkpoint::default() };
    fs::create_dir_all(store.root()).unwrap();
    save_checkpoint(&store.layout(), &checkpoint).unwrap();
    match end {
        Java::Stopped => _ = fs::remove_file(store.layout().abort()),
        Java::Killed => fs::write(store.layout().abort(), "4711").unwrap(),
    }
}

fn newest(store: &TestStore) -> Timestamp {
    store.sent.iter().map(|sent| sent.stored_at).max().unwrap_or_default()
}

fn write_unit(store: &TestStore, topic: &str, offset: u64, unit: &Unit) {
    fs::create_dir_all(store.queue_file(topic, 0, offset).parent().unwrap()).unwrap();
    store.write_unit(topic, 0, offset, unit);
}

fn view(opened: &OpenedStore, topic: &str) -> Arc<QueueView> {
    let queues = opened.queues.list().iter().map(|(_, queue)| Arc::clone(queue)).collect::<Vec<_>>();
    queues.into_iter().find(|view| *view.key() == QueueKey::new(topic, 0)).expect("the queue is there")
}

/// Opens it twice: what is right the first time is found so the second.
fn opens_rightly(store: &TestStore) {
    store.open_check_close();
    store.open_check_close();
}

#[test]
fn j1_the_record_at_the_greatest_unit_end_is_not_left_out() {
    // Its unit and keys were lost; a restart of Java's begins behind it.
    for end in ENDS {
        let mut store = TestStore::of_two_topics();
        store.open_check_close();
        store.put("B", 0, 50);
        left_by_java(&store, end, newest(&store));
        opens_rightly(&store);
    }
}

#[test]
fn j1_of_two_messages_with_one_queue_offset_the_later_has_the_unit_as_java_served_it() {
    for end in ENDS {
        let mut store = TestStore::of_two_topics();
        store.open_check_close();
        let lost = store.put("B", 0, 50);
        let later = store.put_at(lost.queue.clone(), lost.offset, 60);
        write_unit(&store, "B", later.offset.0, &later.unit);
        left_by_java(&store, end, newest(&store));
        store.sent.retain(|sent| sent.unit.phy != lost.unit.phy);
        opens_rightly(&store);
    }
}

#[test]
fn j2_a_queue_that_is_behind_all_others_gets_what_it_lacks() {
    for end in ENDS {
        for (topic, lost) in [("A", vec![10, 11]), ("A", vec![11]), ("B", vec![23]), ("B", vec![22, 23])] {
            let store = TestStore::of_two_topics();
            store.open_check_close();
            lost.iter().for_each(|offset| store.write_unit(topic, 0, *offset, &ZEROS));
            left_by_java(&store, end, newest(&store));
            opens_rightly(&store);
        }
        for topic in ["A", "B"] {
            let store = TestStore::of_two_topics();
            store.open_check_close();
            fs::remove_dir_all(store.layout().consumequeue().join(topic)).unwrap();
            left_by_java(&store, end, newest(&store));
            opens_rightly(&store);
        }
    }
}

#[test]
fn j3_units_behind_a_gap_are_moved_to_their_own_offsets() {
    for end in ENDS {
        // Of A, 9 was left out, so that 10 and 11 stand a slot too early.
        let store = TestStore::of_two_topics();
        store.open_check_close();
        for (slot, number) in [(9, 10), (10, 11)] {
            store.write_unit("A", 0, slot, &store.sent[number].unit);
        }
        store.write_unit("A", 0, 11, &ZEROS);
        left_by_java(&store, end, newest(&store));
        opens_rightly(&store);
    }
}

#[test]
fn j4_units_that_a_cut_left_behind_lead_nobody_to_the_messages_of_others() {
    for end in ENDS {
        let mut store = TestStore::of_two_topics();
        store.open_check_close();
        let stray = [store.end, store.end.advance(137)];
        for _ in 0..6 {
            store.put("B", 0, 100);
        }
        for (slot, phy) in (12..).zip(stray) {
            store.write_unit("A", 0, slot, &Unit { phy, len: 137, tags: TagsCode(1) });
        }
        for sent in &store.sent[36..] {
            store.write_unit("B", 0, sent.offset.0, &sent.unit);
        }
        left_by_java(&store, end, newest(&store));
        opens_rightly(&store);
        // Not in the way of the next message either.
        store.put("A", 0, 20);
        store.killed(store.end, Timestamp(0));
        opens_rightly(&store);
    }
}

#[test]
fn j14_r11_a_queue_of_fillers_alone_begins_behind_them_and_takes_messages_of_any_place() {
    for end in ENDS {
        for messages in [0, 3] {
            let queue = QueueKey::new("A", 0);
            let mut store = TestStore::beginning_at(2 * SEGMENT_LEN, &queue, 7);
            store.put("B", 0, 100);
            for _ in 0..messages {
                store.put("A", 0, 100);
            }
            (0..7).for_each(|slot| write_unit(&store, "A", slot, &Unit::PRE_BLANK));
            left_by_java(&store, end, newest(&store));
            for _ in 0..2 {
                let opened = store.open().unwrap();
                store.check(&opened);
                let view = view(&opened, "A");
                assert_eq!((view.min(), view.max()), (QueueOffset(7), QueueOffset(7 + messages)));
                store.close(opened);
            }
            // 2147483647 is above all of this log, and no place in it.
            store.put("A", 0, 100);
            store.killed(store.end, Timestamp(0));
            opens_rightly(&store);
        }
    }
}

#[test]
fn j20_a_message_that_java_indexed_twice_is_no_hindrance_and_none_of_ours_is() {
    for end in ENDS {
        let mut store = TestStore::of_two_topics();
        store.open_check_close();
        let path = &store.index_files()[0];
        let mut bytes = fs::read(path).unwrap();
        let last = store.sent.last().unwrap().clone();
        let mut index = IndexFileMut::open(&mut bytes, 100, 400).unwrap();
        for key in &last.keys {
            index.put(*key, last.unit.phy, last.stored_at).unwrap();
        }
        fs::write(path, &bytes).unwrap();
        left_by_java(&store, end, newest(&store));
        let opened = store.open().unwrap();
        let count = |key| {
            let mut found = Vec::new();
            for file in &opened.index_files {
                let index = IndexFile::open(file.bytes(0, file.len()), 100, 400).unwrap();
                index.find(key, Timestamp(0), Timestamp(i64::MAX), usize::MAX, &mut found);
            }
            found.iter().filter(|phy| **phy == last.unit.phy).count()
        };
        for key in &last.keys {
            assert!((1..=2).contains(&count(*key)), "{end:?}");
        }
        store.close(opened);
        // The newest record lies just where the index ends, which is where a new look at the log begins.
        fs::remove_dir_all(store.layout().index()).unwrap();
        opens_rightly(&store);
        store.put("B", 0, 20);
        store.killed(store.end, Timestamp(0));
        opens_rightly(&store);
    }
}

#[test]
fn j22_an_offset_that_java_skipped_for_a_phantom_unit_holds_no_message() {
    // A's second file was empty when the log was cut: Java counted a unit of zeros there, and went on behind it.
    for (end, behind) in ENDS.into_iter().flat_map(|end| [1, 3, 12].map(|behind| (end, behind))) {
        let mut store = TestStore::new();
        for offset in (0..10).chain(11..11 + behind) {
            store.put_at(QueueKey::new("A", 0), QueueOffset(offset), 100);
            store.put("B", 0, 20);
        }
        for sent in &store.sent {
            write_unit(&store, &sent.queue.topic, sent.offset.0, &sent.unit);
        }
        left_by_java(&store, end, newest(&store));
        for lost in [None, Some(store.layout().consumequeue())] {
            if let Some(lost) = lost {
                fs::remove_dir_all(lost).unwrap();
            }
            opens_rightly(&store);
            let opened = store.open().unwrap();
            // Java's zeros if nothing else was amiss, or the unit of a message that says another offset: nobody is given either.
            let skipped = view(&opened, "A").units_from(QueueOffset(10)).unwrap().get(0);
            assert!(skipped == ZEROS || skipped == store.sent[18].unit, "{skipped:?}");
            assert_eq!(store.sent[18].offset, QueueOffset(9));
            store.close(opened);
            assert_eq!(store.damaged(), []);
        }
        store.put("A", 0, 20);
        store.killed(store.end, Timestamp(0));
        opens_rightly(&store);
    }
}

#[test]
fn a_first_message_of_a_file_that_says_the_next_offset_is_damaged_and_makes_no_phantom() {
    let mut store = TestStore::new();
    for offset in (0..10).chain([11, 11, 12]) {
        store.put_at(QueueKey::new("A", 0), QueueOffset(offset), 100);
    }
    left_by_java(&store, Java::Killed, newest(&store));
    store.lose_at(10, 10);
    opens_rightly(&store);
    let damaged = store.damaged();
    assert!(damaged.len() == 1 && damaged[0].2.contains("queue offset in A-0 is 11"), "{damaged:?}");
}

#[test]
fn an_offset_that_is_missing_elsewhere_is_no_phantom() {
    for missing in [9, 11] {
        let mut store = TestStore::new();
        for offset in (0..15).filter(|offset| *offset != missing) {
            store.put_at(QueueKey::new("A", 0), QueueOffset(offset), 100);
        }
        left_by_java(&store, Java::Killed, newest(&store));
        let error = store.open().map(drop).unwrap_err().to_string();
        assert!(error.contains(&format!("message {}", missing + 1)), "{error}");
    }
}

#[test]
fn e28_a_prepared_message_has_keys_and_no_unit_and_one_that_is_rolled_back_has_neither() {
    for end in ENDS {
        for built in [false, true] {
            let mut store = TestStore::of_two_topics();
            if built {
                store.open_check_close();
            }
            let counted = store.counters.clone();
            let prepared = store.put_flagged(QueueKey::new("A", 0), QueueOffset(0), 50, sys_flag::TRANSACTION_PREPARED);
            let undone = store.put_flagged(QueueKey::new("A", 0), QueueOffset(0), 50, sys_flag::TRANSACTION_ROLLBACK);
            let only = store.put_flagged(QueueKey::new("Half", 0), QueueOffset(0), 50, sys_flag::TRANSACTION_PREPARED);
            store.counters = counted;
            // A commit is a message like any other.
            let sent = store.put_flagged(QueueKey::new("A", 0), QueueOffset(12), 50, sys_flag::TRANSACTION_COMMIT);
            assert_eq!(sys_flag::TRANSACTION_COMMIT, 8);
            store.sent.retain(|sent| ![prepared.unit.phy, undone.unit.phy, only.unit.phy].contains(&sent.unit.phy));
            left_by_java(&store, end, newest(&store));
            for _ in 0..2 {
                let opened = store.open().unwrap();
                store.check(&opened);
                assert_eq!(view(&opened, "A").max(), sent.offset.advance(1));
                let places = |key| {
                    let mut found = Vec::new();
                    for file in &opened.index_files {
                        let index = IndexFile::open(file.bytes(0, file.len()), 100, 400).unwrap();
                        index.find(key, Timestamp(0), Timestamp(i64::MAX), usize::MAX, &mut found);
                    }
                    found
                };
                for part in [&prepared, &only] {
                    for key in &part.keys {
                        assert!(places(*key).contains(&part.unit.phy), "{end:?} {part:?}");
                    }
                }
                for key in &undone.keys {
                    assert!(!places(*key).contains(&undone.unit.phy), "{end:?}");
                }
                assert!(!store.layout().consumequeue().join("Half").exists());
                store.close(opened);
            }
            assert_eq!(fs::read(store.queue_file("A", 0, 12)).unwrap()[3 * UNIT_LEN..], [0; 7 * UNIT_LEN]);
        }
    }
}

#[test]
fn t6_what_was_not_dispatched_of_the_segment_before_the_last_is_found() {
    for end in ENDS {
        for ours in [false, true] {
            // Two segments; units and checkpoint reach to the middle of the first.
            let mut store = TestStore::new();
            while store.end.0 < 2 * SEGMENT_LEN - 400 {
                store.put(["A", "B", "C"][store.sent.len() % 3], 0, 150);
            }
            assert!(store.segment(SEGMENT_LEN).exists() && !store.segment(2 * SEGMENT_LEN).exists());
            let half = store.sent.iter().filter(|sent| sent.unit.phy.0 < SEGMENT_LEN / 2).cloned().collect::<Vec<_>>();
            assert!(half.len() > 6);
            for sent in &half {
                write_unit(&store, &sent.queue.topic, sent.offset.0, &sent.unit);
            }
            let safe = half.last().unwrap();
            left_by_java(&store, end, safe.stored_at);
            if ours {
                store.killed(safe.unit.phy, safe.stored_at);
            }
            opens_rightly(&store);
        }
    }
}
