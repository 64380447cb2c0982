use std::fs;

use super::*;
use crate::format::index_file::IndexHeader;
use crate::store::test_store::{FIRST_STORED_AT, QUEUE_FILE_LEN, SEGMENT_LEN, Sent, TestStore, dirty_pages};

/// A safe time that makes a recovery begin with the segment of the newest message.
const ALL_SAFE: Timestamp = Timestamp(i64::MAX / 2);

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
    for with_empty_file in [false, true] {
        let queue = QueueKey::new("A", 0);
        let mut store = TestStore::beginning_at(2 * SEGMENT_LEN, &queue, 17);
        for _ in 0..9 {
            store.put("A", 0, 300);
        }
        if with_empty_file {
            let path = store.queue_file("A", 0, 0);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, [0; QUEUE_FILE_LEN as usize]).unwrap();
        }
        store.open_check_close();
        let file = fs::read(store.queue_file("A", 0, 17)).unwrap();
        assert_eq!(file[..7 * UNIT_LEN], Unit::PRE_BLANK.encode().repeat(7));
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

#[test]
fn a_flipped_byte_in_mid_log_refuses_the_start_and_nothing_is_cut() {
    for killed in [false, true] {
        let store = TestStore::of_two_topics();
        if killed {
            store.open_check_close();
            store.killed(store.end, Timestamp(0));
        }
        // The last byte of a body, in the middle of the second segment.
        let damaged = store.sent.iter().filter(|sent| sent.unit.phy.0 > SEGMENT_LEN).nth(4).unwrap().unit;
        flip(&store.segment(damaged.phy.0), damaged.phy.0 % SEGMENT_LEN + 100);
        let before = store.snapshot();
        let error = store.open().map(drop).unwrap_err().to_string();
        assert!(error.contains(&format!("damaged at physical offset {}", damaged.phy)), "{error}");
        assert!(error.contains("does not match its CRC") && error.contains("00000000000000004096"), "{error}");
        assert!(error.contains("whole messages follow at"), "{error}");
        let cut = store.changed(&before).into_iter().filter(|path| path.starts_with(store.layout().commitlog()));
        assert_eq!(cut.count(), 0);
        assert!(store.quarantine().is_empty());
    }
}

#[test]
fn damage_in_the_last_flushed_record_is_not_taken_for_a_torn_tail() {
    let store = TestStore::of_two_topics();
    store.open_check_close();
    let last = store.sent.last().unwrap().unit;
    flip(&store.segment(last.phy.0), last.phy.0 % SEGMENT_LEN + 100);
    store.killed(store.end, ALL_SAFE);
    let error = store.refusal();
    assert!(error.contains("was on stable storage"), "{error}");
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

/// Refused as damage at this record, with what it says, before any byte was changed.
fn assert_damaged(store: &TestStore, sent: &Sent, says: &str) {
    let error = store.refusal();
    let place = format!("{}: damaged at physical offset {}", store.segment(sent.unit.phy.0).display(), sent.unit.phy);
    assert!(error.contains(&place) && error.contains(says) && error.contains("Restore the file"), "{error}");
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
            assert_damaged(&store, &sent, &format!("queue offset in A-0 is {offset}"));
            // And the true one is taken again.
            say_offset(&store, &sent, 0);
            store.open_check_close();
        }
    }
}

#[test]
fn a_queue_begins_with_its_first_message_unless_older_segments_have_expired() {
    for start in [0, 4 * SEGMENT_LEN] {
        let mut store = TestStore::in_memory();
        store.end = PhyOffset(start);
        store.put("B", 0, 500);
        let sent = store.put_at(QueueKey::new("A", 0), QueueOffset(3), 20);
        store.killed(PhyOffset(start), Timestamp(0));
        if start > 0 {
            store.open_check_close();
        } else {
            let error = store.open().map(drop).unwrap_err().to_string();
            let place = format!("damaged at physical offset {}", sent.unit.phy);
            assert!(error.contains(&place) && error.contains("queue offset in A-0 is 3"), "{error}");
            assert!(!store.layout().consumequeue().join("A").exists());
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
        for sent in store.sent.clone() {
            for offset in [0, sent.offset.0.wrapping_sub(1), sent.offset.0 + 1, 23, 1 << 40] {
                if offset == sent.offset.0 {
                    continue;
                }
                store.killed(store.end, ALL_SAFE);
                say_offset(&store, &sent, offset);
                // Scans that do not come by it have no business with it.
                if sent.unit.phy >= store.end.segment_start(SEGMENT_LEN) {
                    assert_damaged(&store, &sent, &format!("is {offset}"));
                }
                store.killed(store.end, Timestamp(0));
                assert_damaged(&store, &sent, &format!("is {offset}"));
                say_offset(&store, &sent, sent.offset.0);
            }
        }
        store.open_check_close();
    }
}

#[test]
fn a_queue_offset_that_its_neighbours_contradict_is_damaged_without_any_unit() {
    let mut store = TestStore::in_memory();
    for _ in 0..6 {
        store.put("A", 0, 300);
        store.put("B", 0, 20);
    }
    for sent in store.sent.clone().into_iter().filter(|sent| &*sent.queue.topic == "A" && sent.offset.0 < 5) {
        for offset in (0..7).chain([1 << 40]).filter(|offset| *offset != sent.offset.0) {
            store.killed(store.end, Timestamp(0));
            say_offset(&store, &sent, offset);
            let error = store.open().map(drop).unwrap_err().to_string();
            assert!(error.contains(&format!("damaged at physical offset {}", sent.unit.phy)), "{offset}: {error}");
            say_offset(&store, &sent, sent.offset.0);
            let _ = fs::remove_dir_all(store.layout().consumequeue());
        }
    }
    store.open_check_close();
}

#[test]
fn a_queue_id_or_topic_that_no_folder_can_be_called_after_is_damaged() {
    let mut store = TestStore::new();
    let sent = store.put("A", 0, 20);
    for id in [-1_i32, i32::MIN] {
        store.write(sent.unit.phy.advance(QUEUE_ID_AT), &id.to_be_bytes());
        store.killed(store.end, ALL_SAFE);
        assert_damaged(&store, &sent, &format!("queue id is {id}"));
    }
    for topic in ["..", "../../x", "a/b", "a\0"] {
        let mut store = TestStore::new();
        let sent = store.put(topic, 0, 20);
        store.killed(store.end, ALL_SAFE);
        assert_damaged(&store, &sent, &format!("topic is {topic:?}"));
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
