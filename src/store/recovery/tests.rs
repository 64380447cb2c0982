use std::cell::Cell;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::*;
use crate::format::index_file::{self, IndexHeader};
use crate::format::names;
use crate::format::record;
use crate::format::unit::{UNIT_LEN, Unit};
use crate::index::{IndexFile, IndexFileMut};
use crate::io::disk::{Answer, Change};
use crate::io::tap::{Tap, Watch, spoil};
use crate::store::progress::Progress;
use crate::store::quarantine;
use crate::store::test_store::{FIRST_STORED_AT, QUEUE_FILE_LEN, SEGMENT_LEN, Sent, TestStore, dirty_pages};
use crate::types::{KeyHash, QueueKey, QueueOffset, TagsCode};

/// A safe time that makes a recovery begin with the segment of the newest message.
const ALL_SAFE: Timestamp = Timestamp(FIRST_STORED_AT + 1_000_000_000);

fn flip(path: &Path, at: u64) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at as usize] ^= 1;
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_log_without_derived_files_gets_them_all() {
    let store = TestStore::of_two_topics();
    store.open_check_close();
    let before = store.snapshot();
    // And a clean stop leaves nothing to do: reopening changes no byte (I20).
    store.open_check_close();
    let changed = store.changed(&before);
    assert!(changed.iter().all(|path| path.starts_with(store.layout().own())), "{changed:?}");
}

#[test]
fn a_torn_tail_is_cut_at_every_byte_and_kept_in_quarantine() {
    let mut store = TestStore::in_memory();
    for _ in 0..3 {
        store.put("A", 0, 20);
    }
    let last = store.forget_newest();
    let torn = fs::read(store.segment(0)).unwrap();
    let (from, to) = (last.unit.phy.0 as usize, last.unit.phy.0 as usize + last.unit.len as usize);
    for kept in from..to {
        for ours in [true, false] {
            let _ = fs::remove_dir_all(store.layout().own());
            let mut bytes = torn.clone();
            bytes[kept..].fill(0);
            fs::write(store.segment(0), &bytes).unwrap();
            if ours {
                store.killed(last.unit.phy, ALL_SAFE);
            } else {
                fs::write(store.layout().abort(), "4711").unwrap();
            }
            store.open_check_close();
            let cut: Vec<_> = store.quarantine().into_values().collect();
            if bytes[from..kept].iter().all(|byte| *byte == 0) {
                assert_eq!(cut.len(), 0, "{kept}");
            } else {
                assert_eq!(cut.len(), 1, "{kept}");
                assert_eq!(cut[0][..kept - from], torn[from..kept], "{kept}");
            }
        }
    }
}

#[test]
fn two_cuts_at_one_place_are_both_kept() {
    let mut store = TestStore::new();
    let first = store.put("A", 0, 20);
    for byte in [b'x', b'y'] {
        store.write(store.end, &[byte; 50]);
        store.killed(first.unit.phy.advance(u64::from(first.unit.len)), ALL_SAFE);
        store.open_check_close();
    }
    let kept: Vec<_> = store.quarantine().into_values().map(|bytes| bytes[..50].to_vec()).collect();
    assert_eq!(kept, [[b'x'; 50], [b'y'; 50]]);
}

#[test]
fn a_torn_blank_and_a_torn_first_record_of_a_segment_are_cut() {
    let mut store = TestStore::new();
    while store.end.0 < 3900 {
        store.put("A", 0, 20);
    }
    let end = store.end;
    store.write(end, &record::encode_blank((SEGMENT_LEN - end.0) as u32)[..5]);
    store.write(PhyOffset(SEGMENT_LEN), &[0; 8]);
    store.killed(end, ALL_SAFE);
    store.open_check_close();
    assert!(!store.segment(SEGMENT_LEN).exists(), "a segment made ahead goes");

    store.write(end, &record::encode_blank((SEGMENT_LEN - end.0) as u32));
    store.write(PhyOffset(SEGMENT_LEN), &[0, 0, 0, 90, 0xda, 0xa3, 0x20, 0xa7, 1]);
    store.killed(end, ALL_SAFE);
    let opened = store.open().unwrap();
    assert_eq!(opened.writer_start.end, PhyOffset(SEGMENT_LEN));
    assert_eq!(store.quarantine().len(), 2);
}

#[test]
fn what_is_found_after_a_kill_is_synced_before_it_counts_as_flushed() {
    let store = TestStore::of_two_topics();
    store.killed(PhyOffset(0), Timestamp(0));
    let opened = store.open().unwrap();
    assert_eq!(opened.shared.flushed(), store.end);
    for (path, _) in store.snapshot() {
        if path.starts_with(store.layout().commitlog()) || path.starts_with(store.layout().consumequeue()) {
            assert_eq!(dirty_pages(&path), 0, "dirty pages in {}", path.display());
        }
    }
}

#[test]
fn a_lost_consume_queue_is_rebuilt_even_if_its_messages_are_far_back() {
    for lost in ["A", "B", ""] {
        for killed in [false, true] {
            let store = TestStore::of_two_topics();
            store.open_check_close();
            if killed {
                store.killed(store.end, ALL_SAFE);
            }
            fs::remove_dir_all(store.layout().consumequeue().join(lost)).unwrap();
            store.open_check_close();
        }
    }
}

#[test]
fn a_lost_file_of_a_consume_queue_is_rebuilt_wherever_it_was() {
    for lost in [0, 10, 20] {
        for killed in [false, true] {
            let store = TestStore::of_two_topics();
            store.open_check_close();
            if killed {
                store.killed(store.end, ALL_SAFE);
            }
            fs::remove_file(store.queue_file("B", 0, lost)).unwrap();
            store.open_check_close();
        }
    }
}

#[test]
fn units_and_keys_beyond_the_log_are_cut() {
    let mut store = TestStore::of_two_topics();
    for _ in 0..3 {
        store.put("A", 0, 20);
    }
    store.open_check_close();
    // A power loss: the derived files are ahead of the log.
    let mut first = None;
    for _ in 0..3 {
        first = Some(store.forget_newest());
    }
    let first = first.unwrap();
    store.write(first.unit.phy, &vec![0; (SEGMENT_LEN - first.unit.phy.0 % SEGMENT_LEN) as usize]);
    store.killed(store.sent[10].unit.phy, Timestamp(0));
    store.open_check_close();
}

#[test]
fn units_that_an_old_cut_left_behind_are_not_served() {
    let mut store = TestStore::of_two_topics();
    store.open_check_close();
    // Java leaves units behind a cut, and takes them for valid once the log has grown past them (J4).
    let stray = Unit { phy: store.end.advance(10), len: 100, tags: TagsCode(1) };
    store.write_unit("A", 0, 12, &stray);
    store.write_unit("A", 0, 13, &Unit { phy: store.end.advance(300), ..stray });
    for _ in 0..4 {
        store.put("B", 1, 100);
    }
    store.killed(store.end, Timestamp(FIRST_STORED_AT));
    store.open_check_close();
}

#[test]
fn a_message_takes_the_place_of_a_stray_unit() {
    let mut store = TestStore::of_two_topics();
    store.open_check_close();
    let beyond = store.end.advance(500);
    store.put("A", 0, 20);
    store.write_unit("A", 0, 12, &Unit { phy: beyond, len: 100, tags: TagsCode(1) });
    for _ in 0..6 {
        store.put("B", 0, 100);
    }
    store.killed(store.end, Timestamp(FIRST_STORED_AT));
    store.open_check_close();
}

#[test]
fn a_half_written_unit_is_written_again() {
    let store = TestStore::of_two_topics();
    store.open_check_close();
    let last = store.sent.last().unwrap();
    for half in [Unit { tags: TagsCode(0), ..last.unit }, Unit { len: 0, tags: TagsCode(0), ..last.unit }] {
        store.write_unit("B", 0, last.offset.0, &half);
        store.killed(store.end, ALL_SAFE);
        store.open_check_close();
    }
}

#[test]
fn a_file_left_behind_the_end_of_a_queue_is_not_used_again() {
    let store = TestStore::of_two_topics();
    store.open_check_close();
    // Of a file at the end, the second page got to the disk and the first did not.
    store.write_unit("B", 0, 35, &Unit { phy: store.end.advance(1 << 30), len: 100, tags: TagsCode(1) });
    store.killed(store.end, ALL_SAFE);
    store.open_check_close();
    assert!(!store.queue_file("B", 0, 35).exists());
}

#[test]
fn a_log_that_begins_in_mid_queue_gives_a_queue_that_begins_there() {
    for (first, with_empty_file) in [(17, false), (17, true), (7, false), (7, true)] {
        let queue = QueueKey::new("A", 0);
        let mut store = TestStore::beginning_at(2 * SEGMENT_LEN, &queue, first);
        for _ in 0..9 {
            store.put("A", 0, 300);
        }
        if with_empty_file {
            let path = store.queue_file("A", 0, 0);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, [0; QUEUE_FILE_LEN as usize]).unwrap();
        }
        store.open_check_close();
        let file = fs::read(store.queue_file("A", 0, first)).unwrap();
        assert_eq!(file[..7 * UNIT_LEN], Unit::PRE_BLANK.encode().repeat(7));
        assert_ne!(file[7 * UNIT_LEN..][..UNIT_LEN], Unit::PRE_BLANK.encode());
        store.killed(store.end, ALL_SAFE);
        store.open_check_close();
    }
}

#[test]
fn messages_of_a_topic_that_was_deleted_and_made_again_do_not_replace_newer_ones() {
    let mut store = TestStore::of_two_topics();
    let older = store.sent.iter().filter(|sent| &*sent.queue.topic == "A").count();
    let (queue, again) = (QueueKey::new("A", 0), 5);
    for offset in 0..again {
        store.put_at(queue.clone(), QueueOffset(offset), 20);
    }
    // What Java leaves: units of the newer generation alone.
    let newer: Vec<_> = store.sent.iter().filter(|sent| sent.queue == queue).skip(older).cloned().collect();
    fs::create_dir_all(store.queue_file("A", 0, 0).parent().unwrap()).unwrap();
    for sent in &newer {
        store.write_unit("A", 0, sent.offset.0, &sent.unit);
    }
    let opened = store.open().unwrap();
    let queues = opened.queues.list().iter().map(|(_, queue)| Arc::clone(queue)).collect::<Vec<_>>();
    let view = queues.iter().find(|view| *view.key() == queue).unwrap();
    assert_eq!(view.max(), QueueOffset(again));
    for sent in &newer {
        assert_eq!(view.units_from(sent.offset).unwrap().get(0), sent.unit);
    }
}

#[test]
fn a_topic_that_was_deleted_does_not_come_back() {
    use crate::format::config_files::TopicConfig;
    let store = TestStore::of_two_topics();
    let mut topics = TopicsFile::default();
    topics.topics.insert("B".into(), TopicConfig::new("B", 1));
    fs::create_dir_all(store.layout().config("")).unwrap();
    fs::write(store.layout().config(names::TOPICS), topics.encode()).unwrap();
    let opened = store.open().unwrap();
    let queues: Vec<_> = opened.queues.list().iter().map(|(_, queue)| queue.key().clone()).collect();
    assert_eq!(queues, [QueueKey::new("B", 0)]);
    assert!(!store.layout().consumequeue().join("A").exists());
    // After a kill the list may lack a topic that was only just made, whose messages must not be lost.
    drop(opened);
    store.killed(store.end, Timestamp(0));
    store.open_check_close();
}

#[test]
fn a_missing_or_half_built_index_is_completed_without_doubling_a_key() {
    for killed in [false, true] {
        let mut store = TestStore::of_two_topics();
        store.open_check_close();
        fs::remove_dir_all(store.layout().index()).unwrap();
        if killed {
            store.killed(store.end, ALL_SAFE);
        }
        store.open_check_close();
        // Behind: the newest messages are not in it.
        for _ in 0..5 {
            store.put("A", 0, 100);
        }
        store.killed(store.end, ALL_SAFE);
        store.open_check_close();
    }
}

#[test]
fn keys_divided_between_two_index_files_are_not_doubled() {
    let mut store = TestStore::new();
    // 49 keys a file, three a message: the 17th message's first key fills one, the others begin the next.
    store.settings.index_entries = 50;
    for _ in 0..20 {
        store.put("A", 0, 20);
    }
    store.open_check_close();
    assert_eq!(store.index_files().len(), 2);
    for number in (16..20).rev() {
        // Killed when the index had come just to this message.
        let cut: Vec<_> = store.sent.drain(number + 1..).collect();
        for sent in cut.iter().rev() {
            store.write(sent.unit.phy, &vec![0; sent.unit.len as usize]);
        }
        let last = store.sent.pop().unwrap();
        store.end = last.unit.phy.advance(u64::from(last.unit.len));
        store.sent.push(last.clone());
        store.put_at(last.queue.clone(), last.offset.advance(1), 30);
        store.forget_newest();
        store.write(store.end, &[0; 150]);
        store.killed(store.end, Timestamp(0));
        store.open_check_close();
        store.killed(store.end, Timestamp(0));
        store.open_check_close();
    }
}

#[test]
fn an_index_file_that_was_only_just_made_is_used() {
    let store = TestStore::of_two_topics();
    fs::create_dir_all(store.layout().index()).unwrap();
    fs::write(store.layout().index().join("20260101000000000"), vec![0; 40 + 400 + 8000]).unwrap();
    store.killed(store.end, ALL_SAFE);
    store.open_check_close();
    assert_eq!(store.index_files().len(), 1);
}

#[test]
fn an_index_file_that_was_only_just_made_behind_others_doubles_no_key() {
    for made in [IndexHeader::EMPTY.encode(), [0; 40]] {
        let mut store = TestStore::of_two_topics();
        store.open_check_close();
        let mut file = vec![0; 40 + 400 + 8000];
        file[..40].copy_from_slice(&made);
        fs::write(store.layout().index().join("29990101000000000"), file).unwrap();
        store.killed(store.end, ALL_SAFE);
        store.open_check_close();
        store.put("A", 0, 20);
        store.killed(store.end, ALL_SAFE);
        store.open_check_close();
    }
}

#[test]
fn a_second_scan_after_a_gap_indexes_nothing_twice() {
    let mut store = TestStore::of_two_topics();
    let segment = store.end.0 / SEGMENT_LEN;
    while store.end.0 / SEGMENT_LEN == segment {
        store.put("A", 0, 200);
    }
    store.open_check_close();
    // The first scan begins with this segment, and indexes new messages of A before it meets the gap in B.
    store.put("A", 0, 100);
    store.put("A", 0, 100);
    store.put("B", 0, 100);
    fs::remove_file(store.queue_file("B", 0, 20)).unwrap();
    store.killed(store.end, ALL_SAFE);
    store.open_check_close();
}

#[test]
fn segments_made_ahead_are_dropped_and_an_empty_last_one_too() {
    let store = TestStore::of_two_topics();
    let next = store.end.0 / SEGMENT_LEN * SEGMENT_LEN + SEGMENT_LEN;
    store.write(PhyOffset(next), &[0]);
    fs::write(store.layout().segment(PhyOffset(next + SEGMENT_LEN)), "").unwrap();
    store.killed(store.end, ALL_SAFE);
    store.open_check_close();
    assert!(!store.segment(next).exists() && !store.segment(next + SEGMENT_LEN).exists());
}

/// Where a record's body ends in these stores, or a bit before: flipping a bit there is found by the CRC alone.
const IN_BODY: u64 = 100;

/// Opens, checks and closes; then again after a kill: the damage is known, and nothing about it changes.
fn assert_stays(store: &TestStore) {
    store.open_check_close();
    let (list, copies) = (fs::read(store.layout().quarantine_list()).unwrap(), store.quarantine());
    let before = store.snapshot();
    // A clean start needs no scan because of it.
    let opened = store.open().unwrap();
    assert_eq!(opened.shared.damaged.count(), store.damaged().len());
    assert_eq!(opened.shared.counters.damaged_regions.get() as usize, store.damaged().len());
    store.check(&opened);
    store.close(opened);
    let changed = store.changed(&before);
    assert!(changed.iter().all(|path| path.starts_with(store.layout().own())), "{changed:?}");
    for whole in [false, true] {
        store.killed(store.end, if whole { Timestamp(0) } else { ALL_SAFE });
        store.open_check_close();
        assert_eq!(fs::read(store.layout().quarantine_list()).unwrap(), list);
        assert_eq!(store.quarantine(), copies);
    }
}

/// The same, and the queues can be built again from what can still be read.
fn assert_stays_and_rebuilds(store: &TestStore) {
    assert_stays(store);
    fs::remove_dir_all(store.layout().consumequeue()).unwrap();
    assert_stays(store);
}

#[test]
fn a_flipped_byte_in_a_body_quarantines_that_record_and_keeps_all_others() {
    for (ours, built) in [(false, false), (true, true), (true, false)] {
        for number in 1..35 {
            let mut store = TestStore::of_two_topics();
            if built {
                store.open_check_close();
            }
            if ours {
                store.killed(store.end, Timestamp(0));
            } else {
                fs::write(store.layout().abort(), "4711").unwrap();
            }
            let unit = store.sent[number].unit;
            flip(&store.segment(unit.phy.0), unit.phy.0 % SEGMENT_LEN + IN_BODY);
            store.lose_alone(number);
            assert_stays_and_rebuilds(&store);
            let damaged = store.damaged();
            let [(start, end, why)] = &damaged[..] else { panic!("{damaged:?}") };
            assert_eq!((*start, *end), (unit.phy.0, unit.phy.0 + u64::from(unit.len)));
            assert!(why.contains("does not match its CRC"), "{why}");
        }
    }
}

#[test]
fn several_damaged_records_in_a_row_are_one_region_of_which_every_slot_tells() {
    for built in [true, false] {
        let mut store = TestStore::new();
        for _ in 0..6 {
            for (topic, id) in [("A", 0), ("A", 1), ("B", 0)] {
                store.put(topic, id, 40);
            }
        }
        if built {
            store.open_check_close();
        }
        store.killed(store.end, Timestamp(0));
        for number in 5..10 {
            let phy = store.sent[number].unit.phy.0;
            flip(&store.segment(phy), phy % SEGMENT_LEN + IN_BODY);
        }
        let (from, to) = (store.sent[5].unit.phy, store.sent[10].unit.phy);
        (5..10).for_each(|number| store.lose(number, (from, to)));
        assert_stays_and_rebuilds(&store);
        assert_eq!(store.damaged().len(), 1);
    }
}

#[test]
fn damage_whose_headers_are_gone_too_leaves_slots_to_the_queues_that_lack_messages() {
    for built in [true, false] {
        let mut store = TestStore::new();
        for _ in 0..6 {
            for (topic, id) in [("A", 0), ("A", 1), ("B", 0)] {
                store.put(topic, id, 40);
            }
        }
        if built {
            store.open_check_close();
        }
        store.killed(store.end, Timestamp(0));
        let (from, to) = (store.sent[5].unit.phy, store.sent[10].unit.phy);
        store.write(from, &vec![0xee; to.since(from) as usize]);
        (5..10).for_each(|number| store.lose(number, (from, to)));
        assert_stays_and_rebuilds(&store);
        assert!(store.damaged()[0].2.contains("unknown magic"), "{:?}", store.damaged());
    }
}

#[test]
fn damage_up_to_the_end_of_a_segment_keeps_the_segments_behind_it() {
    for ours in [true, false] {
        let mut store = TestStore::of_two_topics();
        store.open_check_close();
        let first = store.sent.iter().position(|sent| sent.unit.phy.0 > SEGMENT_LEN + 1000).unwrap();
        let behind = store.sent.iter().position(|sent| sent.unit.phy.0 >= 2 * SEGMENT_LEN).unwrap();
        let (from, to) = (store.sent[first].unit.phy, PhyOffset(2 * SEGMENT_LEN));
        store.write(from, &vec![0; to.since(from) as usize]);
        if ours {
            store.killed(store.end, Timestamp(0));
        } else {
            fs::remove_dir_all(store.layout().own()).unwrap();
            fs::write(store.layout().abort(), "4711").unwrap();
        }
        (first..behind).for_each(|number| store.lose(number, (from, to)));
        assert_stays_and_rebuilds(&store);
        assert_eq!(store.damaged()[0].2, "nothing was written there");
    }
}

#[test]
fn a_whole_segment_of_garbage_in_the_middle_is_quarantined_as_one_region() {
    let mut store = TestStore::of_two_topics();
    store.open_check_close();
    let (from, to) = (PhyOffset(SEGMENT_LEN), PhyOffset(2 * SEGMENT_LEN));
    store.write(from, &vec![0xee; SEGMENT_LEN as usize]);
    store.killed(store.end, Timestamp(0));
    for number in 0..store.sent.len() {
        if (from..to).contains(&store.sent[number].unit.phy) {
            store.lose(number, (from, to));
        }
    }
    assert_stays_and_rebuilds(&store);
    assert_eq!(store.damaged().len(), 1);
}

#[test]
fn damage_below_the_flushed_position_is_no_torn_tail_and_the_log_goes_on_behind_it() {
    for (built, zeroed) in [(true, false), (true, true), (false, false)] {
        let mut store = TestStore::of_two_topics();
        if built {
            store.open_check_close();
        }
        let last = store.sent.len() - 1;
        let unit = store.sent[last].unit;
        if zeroed {
            store.write(unit.phy, &vec![0; unit.len as usize]);
        } else {
            flip(&store.segment(unit.phy.0), unit.phy.0 % SEGMENT_LEN + IN_BODY);
        }
        store.killed(store.end, ALL_SAFE);
        store.lose_alone(last);
        assert_stays(&store);
        // The next message follows behind the region, and its offset behind the lost one's.
        let next = store.put("B", 0, 10);
        assert_eq!((next.unit.phy, next.offset), (unit.phy.advance(u64::from(unit.len)), QueueOffset(24)));
        store.killed(unit.phy, ALL_SAFE);
        assert_stays(&store);
    }
}

#[test]
fn a_tail_of_zeros_below_the_flushed_position_is_damage_and_its_slots_stay_taken() {
    // A disk that lost the newest blocks though it said that they were stored.
    let mut store = TestStore::of_two_topics();
    store.open_check_close();
    let first = store.sent.len() - 8;
    let (from, end) = (store.sent[first].unit.phy, store.end);
    let mut at = from;
    while at < end {
        let to = at.segment_start(SEGMENT_LEN).advance(SEGMENT_LEN);
        store.write(at, &vec![0; to.since(at) as usize]);
        at = to;
    }
    store.killed(end, Timestamp(0));
    for number in first..store.sent.len() {
        let phy = store.sent[number].unit.phy;
        let segment = phy.segment_start(SEGMENT_LEN);
        store.lose(number, (from.max(segment), end.min(segment.advance(SEGMENT_LEN))));
    }
    assert_stays(&store);
    assert!(store.quarantine().values().all(|copy| copy.iter().all(|byte| *byte == 0)));
    store.put("B", 0, 50);
    store.killed(end, ALL_SAFE);
    assert_stays(&store);
}

#[test]
fn a_restored_file_is_no_longer_damaged() {
    let mut store = TestStore::of_two_topics();
    store.open_check_close();
    let number = 15;
    let sent = store.sent[number].clone();
    let whole = fs::read(store.segment(sent.unit.phy.0)).unwrap();
    flip(&store.segment(sent.unit.phy.0), sent.unit.phy.0 % SEGMENT_LEN + IN_BODY);
    store.lose_alone(number);
    store.killed(store.end, Timestamp(0));
    assert_stays_and_rebuilds(&store);
    fs::write(store.segment(sent.unit.phy.0), whole).unwrap();
    store.sent[number] = sent;
    store.killed(store.end, Timestamp(0));
    store.open_check_close();
    assert_eq!(store.damaged(), []);
    assert_eq!(store.quarantine().len(), 1, "the copy stays");
}

#[test]
fn more_damage_beside_a_known_region_makes_one_larger_region() {
    let mut store = TestStore::of_two_topics();
    store.open_check_close();
    for numbers in [15..16, 14..17] {
        for number in numbers.clone() {
            let phy = store.sent[number].unit.phy.0;
            if number != 15 || numbers.len() == 1 {
                flip(&store.segment(phy), phy % SEGMENT_LEN + IN_BODY);
            }
        }
        let region = (store.sent[numbers.start].unit.phy, store.sent[numbers.end].unit.phy);
        numbers.for_each(|number| store.lose(number, region));
        store.killed(store.end, Timestamp(0));
        store.open_check_close();
        assert_eq!(
            store.damaged().iter().map(|(start, end, _)| (*start, *end)).collect::<Vec<_>>(),
            [(region.0.0, region.1.0)]
        );
    }
    assert_stays(&store);
}

#[test]
fn a_lost_list_of_damage_costs_a_scan_and_no_message() {
    let mut store = TestStore::of_two_topics();
    store.open_check_close();
    let unit = store.sent[15].unit;
    flip(&store.segment(unit.phy.0), unit.phy.0 % SEGMENT_LEN + IN_BODY);
    store.lose_alone(15);
    store.killed(store.end, Timestamp(0));
    assert_stays_and_rebuilds(&store);
    fs::remove_file(store.layout().quarantine_list()).unwrap();
    store.open_check_close();
    assert_eq!(store.damaged().len(), 1);
}

#[test]
fn messages_that_the_log_itself_lacks_refuse_the_start() {
    let mut store = TestStore::in_memory();
    store.put("B", 0, 1000);
    store.put("A", 0, 20);
    store.put_at(QueueKey::new("A", 0), QueueOffset(3), 20);
    store.put("A", 0, 20);
    store.killed(store.end, Timestamp(0));
    let error = store.open().map(drop).unwrap_err().to_string();
    assert!(error.contains("queue A-0") && error.contains("message 3") && error.contains("1 expected"), "{error}");
    assert!(store.quarantine().is_empty());
}

#[test]
fn damage_explains_no_more_missing_messages_than_it_has_room_for() {
    let mut store = TestStore::in_memory();
    store.put("B", 0, 1000);
    store.put("A", 0, 20);
    let damaged = store.put("A", 0, 20);
    // Two are missing here, but the region holds one record.
    store.put_at(QueueKey::new("A", 0), QueueOffset(4), 20);
    store.put("A", 0, 20);
    flip(&store.segment(0), damaged.unit.phy.0 + IN_BODY);
    store.killed(store.end, Timestamp(0));
    let error = store.open().map(drop).unwrap_err().to_string();
    assert!(error.contains("message 4"), "{error}");
}

#[test]
fn whatever_lies_behind_the_first_bad_record_that_was_never_flushed_is_cut_and_kept() {
    let mut store = TestStore::of_two_topics();
    store.open_check_close();
    // After a power loss records may be missing in any order: the log ends before the first.
    let end = store.end;
    for _ in 0..4 {
        store.put("B", 0, 300);
    }
    let missing = store.sent[store.sent.len() - 3].unit;
    store.write(missing.phy, &vec![0; missing.len as usize]);
    for _ in 0..3 {
        store.forget_newest();
    }
    store.killed(end, ALL_SAFE);
    store.open_check_close();
    assert!(!store.quarantine().is_empty());
}

/// A sector of which only the head came to the disk; no checksum covers properties.
#[test]
fn a_record_never_flushed_whose_properties_end_in_zeros_ends_the_log_though_something_follows() {
    let mut store = TestStore::of_two_topics();
    store.open_check_close();
    let end = store.end;
    for _ in 0..3 {
        store.put("B", 0, 300);
    }
    let torn = store.sent[store.sent.len() - 2].unit;
    store.write(torn.phy.advance(u64::from(torn.len) - 9), &[0; 9]);
    for _ in 0..2 {
        store.forget_newest();
    }
    store.killed(end, ALL_SAFE);
    store.open_check_close();
    assert!(!store.quarantine().is_empty());
}

#[test]
fn a_log_that_lost_its_newest_segment_or_all_is_refused() {
    let store = TestStore::of_two_topics();
    store.open_check_close();
    for killed in [false, true] {
        if killed {
            store.killed(store.end, ALL_SAFE);
        }
        let (last, aside) = (store.segment(store.end.0), store.root().join("aside"));
        fs::rename(&last, &aside).unwrap();
        let error = store.refusal();
        assert!(error.contains(last.to_str().unwrap()) && error.contains("missing"), "{error}");
        fs::rename(&aside, &last).unwrap();

        let log = store.layout().commitlog();
        fs::rename(&log, &aside).unwrap();
        fs::create_dir(&log).unwrap();
        let error = store.refusal();
        assert!(error.contains("commitlog"), "{error}");
        fs::remove_dir_all(store.layout().own()).unwrap();
        let error = store.refusal();
        assert!(error.contains("commitlog"), "{error}");
        fs::remove_dir(&log).unwrap();
        fs::rename(&aside, &log).unwrap();
        fs::remove_file(store.layout().abort()).ok();
        store.open_check_close();
    }
}

#[test]
fn store_time_never_goes_back_over_a_restart() {
    let mut store = TestStore::new();
    let future = store.put("A", 0, 20);
    for killed in [false, true, false] {
        if killed {
            store.killed(store.end, ALL_SAFE);
        }
        let opened = store.open().unwrap();
        let start = &opened.writer_start;
        assert_eq!(start.last_stored_at, future.stored_at);
        let mut end = crate::log::LogEnd::new(start.end, SEGMENT_LEN, start.last_stored_at);
        assert_eq!(end.stored_at(Timestamp(5)), future.stored_at);
        store.close(opened);
    }
}

/// Where a record has its queue id, and where its queue offset.
const QUEUE_ID_AT: u64 = 12;
const QUEUE_OFFSET_AT: u64 = 20;

fn say_offset(store: &TestStore, sent: &Sent, offset: u64) {
    store.write(sent.unit.phy.advance(QUEUE_OFFSET_AT), &offset.to_be_bytes());
}

/// This record is the one damaged region, for what it says; its slot leads there, and everything else is served. And once
/// it says again what it should, it is as if nothing had been.
fn assert_damaged(store: &mut TestStore, number: usize, offset: u64, says: &str) {
    let sent = store.sent[number].clone();
    store.lose_at(number, offset);
    store.open_check_close();
    let damaged = store.damaged();
    let [(start, end, why)] = &damaged[..] else { panic!("{damaged:?}") };
    assert_eq!((*start, *end), (sent.unit.phy.0, sent.unit.phy.0 + u64::from(sent.unit.len)));
    assert!(why.contains(says), "{why}");
    store.sent[number] = sent;
}

#[test]
fn the_first_message_of_a_log_that_says_another_queue_offset_is_damaged() {
    for built in [true, false] {
        for offset in [u64::MAX, 1 << 63, (1 << 61) + 7, i64::MAX as u64 / 20, 1 << 40, 1 << 20, 7, 1] {
            let mut store = TestStore::in_memory();
            let sent = store.put("A", 0, 20);
            if built {
                store.open_check_close();
            }
            store.killed(store.end, ALL_SAFE);
            say_offset(&store, &sent, offset);
            assert_damaged(&mut store, 0, 0, &format!("queue offset in A-0 is {offset}"));
            // And the true one is taken again.
            say_offset(&store, &sent, 0);
            store.killed(store.end, ALL_SAFE);
            store.open_check_close();
            assert_eq!(store.damaged(), []);
        }
    }
}

#[test]
fn a_queue_begins_with_its_first_message_unless_older_segments_have_expired() {
    for start in [0, 4 * SEGMENT_LEN] {
        let mut store = TestStore::in_memory();
        store.end = PhyOffset(start);
        store.put("B", 0, 500);
        store.put_at(QueueKey::new("A", 0), QueueOffset(3), 20);
        store.killed(PhyOffset(start), Timestamp(0));
        if start > 0 {
            store.open_check_close();
        } else {
            assert_damaged(&mut store, 1, 0, "queue offset in A-0 is 3");
        }
    }
}

#[test]
fn a_queue_offset_that_the_unit_contradicts_is_damaged_wherever_the_message_lies() {
    let queue = QueueKey::new("A", 0);
    // In a whole log, and in one whose beginning has expired.
    for mut store in [TestStore::in_memory(), TestStore::beginning_at(4 * SEGMENT_LEN, &queue, 17)] {
        for _ in 0..12 {
            store.put("A", 0, 300);
        }
        store.open_check_close();
        for (number, sent) in store.sent.clone().into_iter().enumerate() {
            for offset in [0, sent.offset.0.wrapping_sub(1), sent.offset.0 + 1, 23, 1 << 40] {
                if offset == sent.offset.0 {
                    continue;
                }
                store.killed(store.end, ALL_SAFE);
                say_offset(&store, &sent, offset);
                // Scans that do not come by it have no business with it.
                if sent.unit.phy >= store.end.segment_start(SEGMENT_LEN) {
                    assert_damaged(&mut store, number, sent.offset.0, &format!("is {offset}"));
                }
                store.killed(store.end, Timestamp(0));
                assert_damaged(&mut store, number, sent.offset.0, &format!("is {offset}"));
                say_offset(&store, &sent, sent.offset.0);
                store.killed(store.end, Timestamp(0));
                store.open_check_close();
                assert_eq!(store.damaged(), []);
            }
        }
    }
}

#[test]
fn a_queue_offset_that_its_neighbours_contradict_is_damaged_without_any_unit() {
    let mut store = TestStore::in_memory();
    for _ in 0..6 {
        store.put("A", 0, 300);
        store.put("B", 0, 20);
    }
    let of_a = |sent: &Sent| &*sent.queue.topic == "A" && sent.offset.0 < 5;
    for (number, sent) in store.sent.clone().into_iter().enumerate().filter(|(_, sent)| of_a(sent)) {
        for offset in (0..7).chain([1 << 40]).filter(|offset| *offset != sent.offset.0) {
            store.killed(store.end, Timestamp(0));
            say_offset(&store, &sent, offset);
            assert_damaged(&mut store, number, sent.offset.0, &format!("queue offset in A-0 is {offset}"));
            say_offset(&store, &sent, sent.offset.0);
            // The index cannot get keys in its middle.
            for derived in [store.layout().consumequeue(), store.layout().index()] {
                let _ = fs::remove_dir_all(derived);
            }
        }
    }
    store.open_check_close();
    assert_eq!(store.damaged(), []);
}

#[test]
fn a_newest_message_that_leaves_offsets_out_is_damaged_and_loses_one_only() {
    let mut store = TestStore::in_memory();
    for _ in 0..12 {
        store.put("A", 0, 300);
    }
    let sent = store.sent[11].clone();
    say_offset(&store, &sent, 14);
    store.killed(store.end, Timestamp(0));
    assert_damaged(&mut store, 11, 11, "queue offset in A-0 is 14, but the one before it has 10");
}

#[test]
fn a_queue_id_or_topic_that_no_folder_can_be_called_after_is_damaged() {
    let assert_lost = |mut store: TestStore, says: &str| {
        let sent = store.sent.remove(0);
        let other = store.put("B", 0, 30);
        store.killed(store.end, ALL_SAFE);
        let opened = store.open().unwrap();
        assert_eq!(opened.writer_start.end, store.end);
        assert_eq!(opened.queues.list().iter().map(|(_, q)| q.key().clone()).collect::<Vec<_>>(), [other.queue]);
        let damaged = store.damaged();
        let [(start, _, why)] = &damaged[..] else { panic!("{damaged:?}") };
        assert!(*start == sent.unit.phy.0 && why.contains(says), "{damaged:?}");
    };
    for id in [-1_i32, i32::MIN] {
        let mut store = TestStore::new();
        let sent = store.put("A", 0, 20);
        store.write(sent.unit.phy.advance(QUEUE_ID_AT), &id.to_be_bytes());
        assert_lost(store, &format!("queue id is {id}"));
    }
    for topic in ["..", "../../x", "a/b", "a\0"] {
        let mut store = TestStore::new();
        store.put(topic, 0, 20);
        assert_lost(store, &format!("topic is {topic:?}"));
    }
}

#[test]
fn folders_of_queue_ids_that_java_cannot_have_are_left_alone() {
    let store = TestStore::of_two_topics();
    store.open_check_close();
    for id in ["4294967295", "2147483648", "-1", "+1", "01"] {
        let dir = store.layout().consumequeue().join("A").join(id);
        fs::create_dir(&dir).unwrap();
        let opened = store.open().unwrap();
        assert_eq!(opened.queues.list().count(), 2, "{id}");
        store.close(opened);
        assert!(dir.exists());
        fs::remove_dir(dir).unwrap();
    }
}

#[test]
fn an_empty_consume_queue_file_of_a_nonsense_place_is_not_where_a_queue_begins() {
    // The last file that 63 bits can name, and what an overflow may have left.
    for name in ["09223372036854775800", "02305843009213694000", "00000000000000200000"] {
        for (topic, queue_id) in [("A", 0), ("A", 1), ("C", 0)] {
            let store = TestStore::of_two_topics();
            store.open_check_close();
            let dir = store.layout().consumequeue().join(topic).join(queue_id.to_string());
            let _ = fs::remove_dir_all(&dir);
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join(name), [0; QUEUE_FILE_LEN as usize]).unwrap();
            for _ in 0..2 {
                store.open_check_close();
            }
            assert!(!dir.join(name).exists(), "{name} of {topic} {queue_id}");
        }
    }
}

#[test]
fn an_offset_that_was_given_out_twice_is_no_damage() {
    // Java lost the last unit of a queue, and gave its offset to the next message (J1); then all units were lost.
    let mut store = TestStore::new();
    let queue = QueueKey::new("A", 0);
    for offset in [0, 1, 2, 3, 3, 4, 5, 0, 1, 2, 2] {
        store.put_at(queue.clone(), QueueOffset(offset), 20);
    }
    for _ in 0..2 {
        let opened = store.open().unwrap();
        let view = opened.queues.list().iter().next().map(|(_, queue)| Arc::clone(queue)).unwrap();
        assert_eq!((view.min(), view.max()), (QueueOffset(0), QueueOffset(3)));
        for (offset, sent) in [(0, 7), (1, 8), (2, 10)] {
            assert_eq!(view.units_from(QueueOffset(offset)).unwrap().get(0), store.sent[sent].unit);
        }
        drop(opened);
        store.killed(store.end, Timestamp(0));
    }
}

#[test]
fn units_that_java_put_one_slot_too_early_are_no_damage_of_the_log() {
    // Java's units from message 20 on stand a slot too early (J3), and the log begins behind where that came from.
    let queue = QueueKey::new("A", 0);
    let mut store = TestStore::beginning_at(4 * SEGMENT_LEN, &queue, 20);
    for _ in 0..9 {
        store.put("A", 0, 300);
    }
    fs::create_dir_all(store.queue_file("A", 0, 10).parent().unwrap()).unwrap();
    for offset in 10..19 {
        store.write_unit("A", 0, offset, &Unit::PRE_BLANK);
    }
    for sent in &store.sent {
        store.write_unit("A", 0, sent.offset.0 - 1, &sent.unit);
    }
    store.open_check_close();
}

#[test]
fn units_that_an_old_cut_left_are_no_damage_of_the_log() {
    // The log was cut behind message 19 of A, whose units 20 and 21 Java left (J4). Then B grew to where 20 had been, and A's
    // new 20 lies where 21 had been.
    let queue = QueueKey::new("A", 0);
    let mut store = TestStore::beginning_at(4 * SEGMENT_LEN, &queue, 20);
    let grown = store.put("B", 0, 300);
    let sent = store.put("A", 0, 300);
    fs::create_dir_all(store.queue_file("A", 0, 20).parent().unwrap()).unwrap();
    store.write_unit("A", 0, 20, &grown.unit);
    store.write_unit("A", 0, 21, &sent.unit);
    store.open_check_close();
}

#[test]
fn a_queue_whose_files_say_that_it_begins_later_does() {
    let queue = QueueKey::new("A", 0);
    for before in [Unit::PRE_BLANK, Unit { phy: PhyOffset(0), len: 0, tags: TagsCode(0) }] {
        let mut store = TestStore::new();
        store.put("B", 0, 500);
        store.put_at(queue.clone(), QueueOffset(2), 20);
        let last = store.put("A", 0, 20);
        fs::create_dir_all(store.queue_file("A", 0, 0).parent().unwrap()).unwrap();
        // A phantom unit of zeros is Java's as well (J22).
        for (offset, unit) in [(0, before), (1, before), (2, store.sent[1].unit), (3, last.unit)] {
            store.write_unit("A", 0, offset, &unit);
        }
        store.open_check_close();
    }
}

/// A store whose recovery has everything to do: no derived files, damage, and a torn tail.
fn all_to_do() -> TestStore {
    let mut store = TestStore::in_memory();
    for _ in 0..12 {
        store.put("A", 0, 200);
        store.put("B", 0, 150);
        store.put("B", 1, 250);
    }
    let torn = store.forget_newest();
    flip(&store.segment(torn.unit.phy.0), torn.unit.phy.0 % SEGMENT_LEN + IN_BODY);
    for number in [5, 20] {
        let phy = store.sent[number].unit.phy.0;
        flip(&store.segment(phy), phy % SEGMENT_LEN + IN_BODY);
        store.lose_alone(number);
    }
    // And one of which only the next tells that it is damaged.
    let sent = store.sent[27].clone();
    say_offset(&store, &sent, 2);
    store.lose_alone(27);
    store.killed(torn.unit.phy, Timestamp(0));
    store
}

#[test]
fn a_recovery_that_is_killed_at_any_step_goes_on_and_ends_as_if_it_had_not() {
    let whole = {
        let store = all_to_do();
        store.open_check_close();
        (files_of(&store), store.damaged())
    };
    let (mut furthest, mut resumed) = (0, 0);
    for n in 0.. {
        let store = all_to_do();
        match store.open_killed_at(n) {
            Ok(opened) => {
                assert!(n > 50, "there is much to do");
                store.check(&opened);
                store.close(opened);
                break;
            }
            Err(error) => assert!(error.to_string().contains("killed"), "{error}"),
        }
        if let Some(bytes) = crate::io::read_if_present(&store.layout().recovery()).unwrap() {
            let reached: Reached = serde_json::from_slice(&bytes).unwrap();
            assert!(reached.at >= furthest, "more changes come as far at least");
            furthest = reached.at;
            resumed += u32::from(reached.at > reached.from);
        }
        // Killed once more on its way, then left to itself.
        let _ = store.open_killed_at(n / 2);
        store.open_check_close();
        assert!(!store.layout().recovery().exists() && !store.layout().recovery().with_extension("bak").exists());
        // What gave it away may differ: a unit that the first attempt wrote, or the next message.
        let places =
            |damaged: Vec<_>| damaged.into_iter().map(|(start, end, _)| (start, end)).collect::<Vec<(u64, u64)>>();
        assert_eq!(places(store.damaged()), places(whole.1.clone()), "killed at change {n}");
        let differ = files_of(&store).into_iter().zip(&whole.0).find(|(found, expected)| found != *expected);
        assert_eq!(differ.map(|(found, _)| found.0), None, "killed at change {n}");
        assert_eq!(files_of(&store).len(), whole.0.len(), "killed at change {n}");
    }
    assert!(furthest >= 2 * SEGMENT_LEN && resumed > 10, "it got to {furthest}, {resumed} times");
}

#[test]
fn a_recovery_that_is_told_to_stop_leaves_what_a_kill_leaves() {
    let whole = {
        let store = all_to_do();
        store.open_check_close();
        (files_of(&store), store.damaged().len())
    };
    let (mut stopped, mut resumed, mut n) = (0, 0, 0);
    loop {
        let store = all_to_do();
        match store.open_stopped_at(n) {
            // Too late: it is open.
            Ok(opened) => {
                store.check(&opened);
                store.close(opened);
                break;
            }
            Err(OpenError::Stopped) => stopped += 1,
            Err(error) => panic!("{error}"),
        }
        assert!(store.layout().abort().exists(), "told at change {n}");
        resumed += u32::from(store.layout().recovery().exists());
        store.open_check_close();
        assert_eq!((files_of(&store), store.damaged().len()), whole, "told at change {n}");
        n += 1;
    }
    assert!(stopped > 20 && resumed > 10, "{stopped} times, {resumed} on its way");
}

#[test]
fn every_queue_is_a_step_of_the_opening_and_of_the_closing() {
    const QUEUES: u64 = 80;
    let mut store = TestStore::new();
    (0..QUEUES).for_each(|id| _ = store.put("A", id as u32, 200));
    let deleted = store.layout().deleted();
    (0..QUEUES).for_each(|id| fs::create_dir_all(deleted.join(format!("7/B/{id}"))).unwrap());
    let opening = Opening::unstopped();
    let opened = crate::store::open(crate::store::test_store::settings(store.root().to_owned()), 1 << 30, &opening);
    let opened = opened.unwrap();
    assert!(!deleted.exists());
    // None was there to be loaded. Each is completed, synced, and so is its folder; each deleted one is removed.
    assert!(opening.steps() >= 4 * QUEUES, "{}", opening.steps());
    assert!(!opening.is_in_long_step(), "writing out was followed by other steps");
    // As if each had got a message since: its file and its folder are synced.
    opened.queues.list().iter().for_each(|(_, queue)| queue.publish_max(QueueOffset(2)));
    let shared = Arc::clone(&opened.shared);
    assert_eq!(shared.closing_steps(), 0);
    store.close(opened);
    assert!(shared.closing_steps() >= 2 * QUEUES, "{}", shared.closing_steps());
}

/// Log and queues, by path below the root.
fn files_of(store: &TestStore) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let (layout, root) = (store.layout(), store.root().to_owned());
    let files = store.snapshot().into_iter();
    let files =
        files.filter(|(path, _)| path.starts_with(layout.commitlog()) || path.starts_with(layout.consumequeue()));
    files.map(|(path, bytes)| (path.strip_prefix(&root).unwrap().to_owned(), bytes)).collect()
}

#[test]
fn a_recovery_goes_on_only_if_nothing_that_it_built_is_missing() {
    for lost in ["consumequeue", "index"] {
        let mut n = 0;
        let store = loop {
            let store = all_to_do();
            assert!(store.open_killed_at(n).is_err(), "it never gets to the third segment");
            let bytes = crate::io::read_if_present(&store.layout().recovery()).unwrap();
            if bytes.is_some_and(|bytes| serde_json::from_slice::<Reached>(&bytes).unwrap().at >= 2 * SEGMENT_LEN) {
                break store;
            }
            n += 1;
        };
        fs::remove_dir_all(store.root().join(lost)).unwrap();
        store.open_check_close();
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(60))]

    /// Whatever a power loss does to derived files that were not synced, they come back from the log.
    #[test]
    fn derived_files_come_back_whatever_happened_to_them(
        damage in proptest::collection::vec((0..5_u8, 0..36_u64, proptest::num::u64::ANY), 1..6),
        queues in proptest::collection::vec((0..3_u8, 1..300_usize), 20..60),
    ) {
        let mut store = TestStore::in_memory();
        for (queue, len) in queues {
            store.put(["A", "B"][usize::from(queue & 1)], u32::from(queue >> 1), len);
        }
        store.open_check_close();
        for (kind, place, value) in damage {
            let sent = store.sent[place as usize % store.sent.len()].clone();
            let (topic, id) = (sent.queue.topic.to_string(), sent.queue.queue_id);
            let file = store.queue_file(&topic, id, sent.offset.0);
            let index = store.index_files().pop();
            match (kind, index) {
                (0, _) if file.exists() => {
                    let unit = Unit { phy: PhyOffset(0), len: 0, tags: TagsCode(0) };
                    store.write_unit(&topic, id, sent.offset.0, &unit);
                }
                (1, _) if file.exists() => {
                    // Of an older use of the blocks.
                    let unit = Unit { phy: PhyOffset(value % (2 * store.end.0)), len: 100, tags: TagsCode(7) };
                    store.write_unit(&topic, id, sent.offset.0, &unit);
                }
                (2, _) if file.exists() => fs::remove_file(file).unwrap(),
                (3, Some(index)) => {
                    let mut bytes = fs::read(&index).unwrap();
                    let at = index_file::unit_at(100, 1 + place as u32 * 3) as usize;
                    bytes[at..at + index_file::UNIT_LEN].fill(0);
                    fs::write(index, bytes).unwrap();
                }
                (4, Some(index)) => {
                    let mut bytes = fs::read(&index).unwrap();
                    let at = index_file::slot_at((value % 100) as u32) as usize;
                    bytes[at..at + 4].copy_from_slice(&(place as u32).to_be_bytes());
                    fs::write(index, bytes).unwrap();
                }
                _ => {}
            }
        }
        store.killed(PhyOffset(0), Timestamp(0));
        store.open_check_close();
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(60))]

    /// Whatever stands in a unit, an index header, or where a message has its queue id and offset: the store opens or says why not, and nothing falls.
    #[test]
    fn any_queue_id_and_offset_is_an_error_or_a_queue(
        start in 0..3_u64,
        place in 0..12_usize,
        id in proptest::option::of(proptest::num::i32::ANY),
        offset in proptest::num::u64::ANY,
        shift in 0..64_u32,
        unit in proptest::option::of((0..12_u64, proptest::num::u64::ANY, proptest::num::u32::ANY)),
        header in proptest::option::of(proptest::array::uniform32(proptest::num::u8::ANY)),
        built in proptest::bool::ANY,
    ) {
        let mut store = TestStore::in_memory();
        store.end = PhyOffset(start * SEGMENT_LEN);
        for _ in 0..12 {
            store.put("A", 0, 300);
        }
        if built {
            store.open_check_close();
            if let Some((at, phy, len)) = unit {
                store.write_unit("A", 0, at, &Unit { phy: PhyOffset(phy), len, tags: TagsCode(1) });
            }
            if let Some(header) = header {
                let path = store.index_files().pop().unwrap();
                let mut bytes = fs::read(&path).unwrap();
                // Its times at first, or how many units it has at last.
                let at = if shift % 2 == 0 { 0 } else { 8 };
                bytes[at..at + 32].copy_from_slice(&header);
                fs::write(path, bytes).unwrap();
            }
        }
        let sent = store.sent[place].clone();
        if let Some(id) = id {
            store.write(sent.unit.phy.advance(QUEUE_ID_AT), &id.to_be_bytes());
        }
        say_offset(&store, &sent, offset >> shift);
        store.killed(PhyOffset(0), Timestamp(0));
        let _ = store.open().map(|opened| store.close(opened));
    }
}

#[test]
fn a_consume_queue_file_whose_length_was_lost_in_mid_queue_is_built_anew() {
    let store = TestStore::of_two_topics();
    store.open_check_close();
    store.killed(store.end, Timestamp(0));
    let file = fs::File::options().write(true).open(store.queue_file("A", 0, 0)).unwrap();
    file.set_len(0).unwrap();
    store.open_check_close();
}

#[test]
fn a_queue_of_which_an_empty_file_alone_is_left_begins_at_zero() {
    let mut store = TestStore::of_two_topics();
    store.open_check_close();
    store.killed(store.end, Timestamp(0));
    // Its messages were never on stable storage, nor was its first file; a later one was.
    let path = store.queue_file("C", 0, 10);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::File::create(&path).unwrap().set_len(QUEUE_FILE_LEN).unwrap();
    let opened = store.open().unwrap();
    let ends: Vec<_> = opened.queues.list().iter().map(|(_, queue)| (queue.key().to_string(), queue.max().0)).collect();
    assert_eq!(ends, [("A-0".into(), 12), ("B-0".into(), 24), ("C-0".into(), 0)]);
    store.close(opened);
    store.put("C", 0, 20);
    store.killed(store.end, Timestamp(0));
    store.open_check_close();
}

#[test]
fn an_index_entry_that_did_not_come_to_the_disk_is_put_in_again_with_those_behind_it() {
    let store = TestStore::of_two_topics();
    store.open_check_close();
    store.killed(store.end, Timestamp(0));
    let path = store.index_files().pop().unwrap();
    let mut bytes = fs::read(&path).unwrap();
    // The key of one entry; what is left of it could have been put there.
    let at = index_file::unit_at(100, 20) as usize;
    bytes[at..at + 4].fill(0);
    fs::write(&path, bytes).unwrap();
    store.open_check_close();
}

/// A torn sector can make an entry of a place that a message has and of a key that it has not.
#[test]
fn an_index_entry_of_no_message_does_not_survive_an_unclean_start() {
    // Behind which message the stray stands, how far from its place it leads to, and whether the index ends there.
    for (stray_behind, away, is_last) in [(0, 0, false), (3, 0, false), (3, 7, false), (9, 0, false), (3, 7, true)] {
        let mut store = TestStore::new();
        for _ in 0..10 {
            store.put("A", 0, 100);
        }
        store.open_check_close();
        let path = store.index_files().pop().unwrap();
        let mut bytes = vec![0; fs::metadata(&path).unwrap().len() as usize];
        let (slots, units) = (store.settings.index_slots, store.settings.index_entries);
        let mut index = IndexFileMut::create(&mut bytes, slots, units).unwrap();
        for (number, sent) in store.sent.iter().enumerate() {
            for key in &sent.keys {
                index.put(*key, sent.unit.phy, sent.stored_at).unwrap();
            }
            if number == stray_behind {
                index.put(KeyHash(4711), sent.unit.phy.advance(away), sent.stored_at).unwrap();
                if is_last {
                    break;
                }
            }
        }
        fs::write(&path, bytes).unwrap();
        store.killed(store.end, ALL_SAFE);
        store.open_check_close();
        let bytes = fs::read(store.index_files().pop().unwrap()).unwrap();
        let index = IndexFile::open(&bytes, slots, units).unwrap();
        let keys: usize = store.sent.iter().map(|sent| sent.keys.len()).sum();
        assert_eq!(index.entries_from(1).count(), keys, "{stray_behind} {away} {is_last}");
    }
}

#[test]
fn what_stands_behind_the_last_index_entry_is_zeroed() {
    let mut store = TestStore::of_two_topics();
    store.open_check_close();
    let last = store.forget_newest();
    fs::File::options()
        .write(true)
        .open(store.segment(last.unit.phy.0))
        .and_then(|file| std::os::unix::fs::FileExt::write_all_at(&file, &[0; 8], last.unit.phy.0 % SEGMENT_LEN))
        .unwrap();
    store.killed(last.unit.phy, Timestamp(0));
    store.open_check_close();
    let path = store.index_files().pop().unwrap();
    let bytes = fs::read(&path).unwrap();
    let header = IndexHeader::decode(bytes[..index_file::HEADER_LEN].try_into().unwrap());
    let used = index_file::unit_at(100, header.next_unit) as usize;
    assert!(header.next_unit > 1 && bytes[used..].iter().all(|byte| *byte == 0));
}

#[test]
fn a_record_behind_the_flushed_position_that_was_stored_before_the_one_ahead_of_it_ends_the_log() {
    let mut store = TestStore::new();
    for _ in 0..3 {
        store.put("A", 0, 20);
    }
    let last = store.forget_newest();
    // The low bytes of its store time are not there; no checksum covers them.
    let path = store.segment(0);
    let mut bytes = fs::read(&path).unwrap();
    let at = last.unit.phy.0 as usize + 56;
    assert_eq!(bytes[at..at + 8], last.stored_at.0.to_be_bytes());
    bytes[at + 4..at + 8].fill(0);
    fs::write(&path, bytes).unwrap();
    store.killed(last.unit.phy, Timestamp(0));
    store.open_check_close();
}

#[test]
fn without_a_readable_flushed_position_damage_is_no_end_of_the_log_whatever_its_predecessor_says() {
    for (content, has_older) in [(None, true), (Some(""), true), (Some("{\"flushed\":"), true), (None, false)] {
        let mut store = TestStore::of_two_topics();
        store.open_check_close();
        store.killed(store.sent[2].unit.phy, ALL_SAFE);
        store.killed(store.end, ALL_SAFE);
        let flushed = store.layout().flushed();
        fs::remove_file(&flushed).unwrap();
        if let Some(content) = content {
            fs::write(&flushed, content).unwrap();
        }
        if !has_older {
            fs::remove_file(flushed.with_extension("bak")).unwrap();
        }
        let Sent { unit, .. } = store.sent[20];
        let zeros = vec![0; unit.len as usize];
        store.write(unit.phy, &zeros);
        store.lose_alone(20);
        store.open_check_close();
        assert_eq!(store.damaged().len(), 1);
    }
}

#[test]
fn what_the_predecessor_of_a_lost_flushed_position_covers_is_no_torn_tail() {
    let mut store = TestStore::new();
    (0..6).for_each(|_| _ = store.put("A", 0, 20));
    store.open_check_close();
    store.killed(store.end, ALL_SAFE);
    store.killed(store.end, ALL_SAFE);
    fs::remove_file(store.layout().flushed()).unwrap();
    let Sent { unit, .. } = store.sent[5];
    store.write(unit.phy, &vec![0; unit.len as usize]);
    store.lose_alone(5);
    store.open_check_close();
    assert_eq!(store.damaged().len(), 1);
}

#[test]
fn a_store_time_far_in_the_future_is_no_time_to_go_on_from() {
    const FUTURE: i64 = 19_381_184_000_000;
    for (number, killed) in [(10, true), (35, true), (10, false), (35, false)] {
        let store = TestStore::of_two_topics();
        store.open_check_close();
        let newest = store.sent[if number == 35 { 34 } else { 35 }].stored_at;
        store.write(store.sent[number].unit.phy.advance(56), &FUTURE.to_be_bytes());
        if killed {
            store.killed(PhyOffset(0), Timestamp(0));
        } else {
            fs::remove_dir_all(store.layout().consumequeue()).unwrap();
        }
        let opened = store.open().unwrap();
        assert_eq!(opened.writer_start.last_stored_at, newest, "{number} {killed}");
        assert_eq!(opened.writer_start.end, store.end);
        store.close(opened);
        assert!(store.damaged().is_empty());
    }
}

#[test]
fn a_noted_store_time_far_in_the_future_is_not_believed() {
    let store = TestStore::of_two_topics();
    store.open_check_close();
    let noted = fs::read_to_string(store.layout().flushed()).unwrap();
    let newest = store.sent[35].stored_at;
    let flipped = noted.replace(&newest.to_string(), "19381184000000");
    assert_ne!(noted, flipped);
    fs::write(store.layout().flushed(), flipped).unwrap();
    let opened = store.open().unwrap();
    assert_eq!(opened.writer_start.last_stored_at, newest);
    store.close(opened);
}

#[test]
fn a_checkpoint_far_in_the_future_makes_nothing_safe() {
    let store = TestStore::of_two_topics();
    store.open_check_close();
    store.killed(store.end, Timestamp(19_381_184_000_000));
    // The queue's last file is gone, and no later record of the queue tells.
    fs::remove_file(store.queue_file("A", 0, 10)).unwrap();
    store.open_check_close();
}

#[test]
fn a_tail_or_a_beginning_of_a_segment_that_is_gone_after_a_clean_stop_is_damage() {
    for is_tail in [true, false] {
        let mut store = TestStore::of_two_topics();
        store.open_check_close();
        let first_of_second = store.sent.iter().position(|sent| sent.unit.phy.0 >= SEGMENT_LEN).unwrap();
        let number = if is_tail { store.sent.len() - 1 } else { first_of_second };
        let Sent { unit, .. } = store.sent[number];
        store.write(unit.phy, &vec![0; unit.len as usize]);
        store.lose_alone(number);
        store.open_check_close();
        let damaged = store.damaged();
        assert_eq!(damaged.len(), 1, "{damaged:?}");
        // Known damage costs no further scan, and is known still.
        store.open_check_close();
        assert_eq!(store.damaged(), damaged);
    }
}

/// Messages in two queues of one topic by turns, and some of a third that has far fewer.
fn of_queues_by_turns() -> TestStore {
    let mut store = TestStore::in_memory();
    for turn in 0..20 {
        store.put("A", 0, 60);
        store.put("A", 1, 60);
        if turn % 5 == 0 {
            store.put("A", 2, 60);
        }
    }
    store
}

#[test]
fn a_message_that_says_another_queue_than_its_own_is_damaged_with_its_units_and_without() {
    for (built, killed) in [(false, true), (false, false), (true, true)] {
        for (queue_id, offset) in [(0, 7), (1, 7), (0, 1), (1, 12), (2, 1), (1, 18)] {
            for says in [0_u32, 1, 2, 5, 6] {
                if says == queue_id {
                    continue;
                }
                let mut store = of_queues_by_turns();
                if built {
                    store.open_check_close();
                }
                if killed {
                    store.killed(store.end, Timestamp(0));
                }
                let is_it = |sent: &Sent| sent.queue.queue_id == queue_id && sent.offset.0 == offset;
                let number = store.sent.iter().position(is_it).unwrap();
                let phy = store.sent[number].unit.phy;
                store.write(phy.advance(QUEUE_ID_AT), &says.to_be_bytes());
                store.lose_alone(number);
                assert_stays_and_rebuilds(&store);
                assert_eq!(store.damaged().len(), 1);
            }
        }
    }
}

/// The page at a byte of a file is one that the disk does not give, where the file is mapped for the first time.
struct BadSector {
    path: PathBuf,
    at: u64,
    mapped: Cell<bool>,
}

impl Tap for BadSector {
    fn ask(&self, _: &Change<'_>) -> io::Result<Answer> {
        Ok(Answer::Do)
    }

    fn mapped(&self, path: &Path, start: *const u8) {
        if path == self.path && !self.mapped.replace(true) {
            // SAFETY: the page is of the mapping that was just made, which nobody has looked at yet.
            unsafe { spoil(start, self.at) };
        }
    }
}

fn with_bad_sector(path: PathBuf, open: impl FnOnce()) {
    let bad = Rc::new(BadSector { path, at: 0, mapped: Cell::new(false) });
    let watch = Watch::start(Rc::clone(&bad) as Rc<dyn Tap>);
    open();
    drop(watch);
    assert!(bad.mapped.get());
}

#[test]
fn a_part_of_the_log_that_the_disk_does_not_give_is_damage_and_the_rest_is_served() {
    for clean in [true, false] {
        for bad in 0..3 {
            let store = TestStore::of_two_topics();
            store.open_check_close();
            if !clean {
                store.killed(store.end, Timestamp(0));
            } else {
                // Nothing of a sound log's middle is looked at after a clean stop.
                fs::remove_file(store.queue_file("A", 0, 0)).unwrap();
            }
            let last = store.end.0 / SEGMENT_LEN;
            let start = PhyOffset([0, 1, last][bad] * SEGMENT_LEN);
            let end = start.advance(SEGMENT_LEN).min(store.end);
            let lost: Vec<_> =
                (0..store.sent.len()).filter(|n| (start..end).contains(&store.sent[*n].unit.phy)).collect();
            assert!(!lost.is_empty());
            with_bad_sector(store.segment(start.0), || {
                let opened = store.open().unwrap();
                assert_eq!(opened.writer_start.end, store.end, "{clean} {bad}");
                let regions = quarantine::list(&store.layout()).unwrap();
                let [region] = &regions[..] else { panic!("{regions:?}") };
                assert_eq!((region.start(), region.end(), region.is_damaged()), (start, end, true));
                assert!(region.why.contains("cannot be read"), "{}", region.why);
                let segment = opened.shared.segments.find(start).unwrap();
                assert!(!segment.is_broken(), "what can be read of it is read as ever");
                for sent in store.sent.iter().filter(|sent| !(start..end).contains(&sent.unit.phy)) {
                    let view =
                        opened.queues.list().iter().find(|(_, view)| *view.key() == sent.queue).unwrap().1.clone();
                    assert_eq!(view.units_from(sent.offset).unwrap().get(0), sent.unit, "{clean} {bad}");
                }
            });
        }
    }
}

/// Twelve messages of ours after a clean stop; then another broker appended and built forty.
fn grown_by_another() -> TestStore {
    let mut store = TestStore::new();
    for _ in 0..12 {
        store.put("A", 0, 200);
    }
    store.open_check_close();
    for _ in 0..40 {
        let sent = store.put("A", 0, 200);
        fs::create_dir_all(store.queue_file("A", 0, sent.offset.0).parent().unwrap()).unwrap();
        store.write_unit("A", 0, sent.offset.0, &sent.unit);
    }
    store
}

#[test]
fn damage_in_what_another_broker_wrote_is_quarantined_and_nothing_behind_it_is_cut() {
    // It stopped; it was killed; and it stopped after a kill of ours, whose start had taken the note away.
    for (noted, abort) in [(true, false), (true, true), (false, false)] {
        let mut store = grown_by_another();
        if !noted {
            let progress = Progress::load(&store.layout().flushed()).unwrap().newest.unwrap();
            Progress { clean: None, ..progress }.save(&store.layout().flushed()).unwrap();
        }
        if abort {
            fs::write(store.layout().abort(), "4711").unwrap();
            let checkpoint = Checkpoint { physic: ALL_SAFE, logics: ALL_SAFE, ..Checkpoint::default() };
            crate::store::open::save_checkpoint(&store.layout(), &checkpoint).unwrap();
        }
        let bad = store.sent[14].unit.phy.0;
        flip(&store.segment(bad), bad % SEGMENT_LEN + IN_BODY);
        store.lose_alone(14);
        store.open_check_close();
        assert_eq!(store.damaged().len(), 1, "{noted} {abort}");
        store.open_check_close();
    }
}

#[test]
fn a_derived_file_that_the_disk_does_not_give_is_moved_away_and_built_anew() {
    for clean in [true, false] {
        for bad in 0..3 {
            let mut store = TestStore::new();
            store.settings.index_entries = 40;
            for _ in 0..120 {
                store.put("A", 0, 20);
            }
            store.open_check_close();
            if !clean {
                store.killed(store.end, ALL_SAFE);
            }
            let index = store.index_files();
            assert!(index.len() > 2);
            let path = [store.queue_file("A", 0, 119), index[index.len() - 1].clone(), index[0].clone()][bad].clone();
            if bad == 2 {
                // Nobody looks at an old index file unless everything is scanned.
                store.killed(PhyOffset(0), Timestamp(0));
            }
            with_bad_sector(path, || store.open_check_close());
            assert!(store.quarantine().is_empty());
            let aside = fs::read_dir(store.layout().unreadable()).unwrap().count();
            assert_eq!(aside, 1, "{clean} {bad}");
            store.open_check_close();
        }
    }
}

#[test]
fn a_kill_in_the_last_moment_of_a_clean_stop_is_no_other_broker() {
    // The note is saved, and `abort` still there.
    let mut store = TestStore::of_two_topics();
    store.open_check_close();
    fs::write(store.layout().abort(), "4711").unwrap();
    // Nothing that lies behind the end was ever flushed; this is no header, so the log ends there all the same.
    store.put("B", 0, 200);
    let torn = store.forget_newest();
    store.write(torn.unit.phy, &[0; 8]);
    store.open_check_close();
    assert_eq!((store.damaged().len(), store.quarantine().len()), (0, 1));
}

#[test]
fn what_a_recovery_reached_is_a_place_to_go_on_only_where_a_record_begins_and_nobody_ran_since() {
    let mut n = 0;
    let store = loop {
        let store = all_to_do();
        assert!(store.open_killed_at(n).is_err(), "it never gets to the third segment");
        let bytes = crate::io::read_if_present(&store.layout().recovery()).unwrap();
        if bytes.is_some_and(|bytes| serde_json::from_slice::<Reached>(&bytes).unwrap().at >= 2 * SEGMENT_LEN) {
            break store;
        }
        n += 1;
    };
    let (layout, settings) = (store.layout(), &store.settings);
    let starts = (0..).map(|index| PhyOffset(index * SEGMENT_LEN)).take_while(|start| store.segment(start.0).exists());
    let segments: Vec<_> = starts.map(|at| Arc::new(Segment::open(&store.segment(at.0), at).unwrap())).collect();
    let queues =
        load_queues(&layout, settings, &Births::load(&layout).unwrap(), Ends::Looked, &Opening::unstopped()).unwrap();
    let index = load_index(&layout, settings, true, &Opening::unstopped()).unwrap();
    let saved: Reached = serde_json::from_slice(&fs::read(layout.recovery()).unwrap()).unwrap();
    let log_end = segments.last().unwrap().end();
    let place = Resumable { start: PhyOffset(0), log_end, segments: &segments, checksums: settings.checksums };
    let goes_on = |reached: &Reached| {
        reached.save(&layout).unwrap();
        Reached::load(&layout, &saved.began, &place, &queues, &index).unwrap().is_some()
    };
    let at = |at: u64| Reached { at, ..saved.clone() };
    let behind = segments.last().unwrap().end().0 - 16;
    for right in [saved.at, behind, log_end.0] {
        assert!(goes_on(&at(right)), "{right}, the log ends at {}, the file at {log_end}", store.end);
    }
    for wrong in [saved.at + 1, store.sent[30].unit.phy.0 + 4, log_end.0 + 1] {
        assert!(!goes_on(&at(wrong)), "{wrong}");
        assert!(layout.recovery().exists());
    }
    let other = |abort: Option<&str>, progress| Began { abort: abort.map(str::to_owned), progress };
    let progress = saved.began.progress;
    for began in [other(None, progress), other(Some("4712"), progress), other(Some("4711"), None)] {
        assert!(!goes_on(&Reached { began, ..saved.clone() }));
        assert!(!layout.recovery().exists());
    }
    store.open_check_close();
}

#[test]
fn a_recovery_after_another_brokers_run_goes_on_where_it_was_killed() {
    let (mut resumed, mut n) = (0, 0);
    loop {
        let mut store = grown_by_another();
        let bad = store.sent[14].unit.phy.0;
        flip(&store.segment(bad), bad % SEGMENT_LEN + IN_BODY);
        store.lose_alone(14);
        let opened = store.open_killed_at(n);
        let Err(_) = opened else { break };
        if let Some(bytes) = crate::io::read_if_present(&store.layout().recovery()).unwrap() {
            let reached: Reached = serde_json::from_slice(&bytes).unwrap();
            resumed += u32::from(reached.at > reached.from);
        }
        let _ = store.open_killed_at(n / 2);
        store.open_check_close();
        n += 1;
    }
    assert!(resumed > 3, "{resumed}");
}
