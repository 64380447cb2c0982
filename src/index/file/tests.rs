use proptest::prelude::*;

use super::*;
use crate::format::record::{Header, RecordView, key_hashes, peek_header};
use crate::index::{cut_from, repair};
use crate::types::key_hash;

/// The shape of the golden files.
const SHAPE: (u32, u32) = (100, 400);

fn zeros((slots, units): (u32, u32)) -> Vec<u8> {
    vec![0; file_len(slots, units) as usize]
}

fn create(bytes: &mut [u8], (slots, units): (u32, u32)) -> IndexFileMut<'_> {
    IndexFileMut::create(bytes, slots, units).expect("a whole file")
}

fn open(bytes: &[u8], (slots, units): (u32, u32)) -> IndexFile<&[u8]> {
    IndexFile::open(bytes, slots, units).expect("a whole file")
}

fn find(bytes: &[u8], shape: (u32, u32), key: KeyHash, begin: i64, end: i64) -> Vec<u64> {
    let file = open(bytes, shape);
    let mut found = Vec::new();
    file.find(key, Timestamp(begin), Timestamp(end), 64, &mut found);
    found.into_iter().map(|phy| phy.0).collect()
}

/// Keys, place and store time of every record that Java wrote to the golden store.
fn java_records() -> Vec<(Vec<KeyHash>, PhyOffset, Timestamp)> {
    let segments = [
        &include_bytes!("../../../tests/golden/java-clean/commitlog/00000000000000000000")[..],
        include_bytes!("../../../tests/golden/java-clean/commitlog/00000000000000004096"),
        include_bytes!("../../../tests/golden/java-clean/commitlog/00000000000000008192"),
    ];
    let mut records = Vec::new();
    for segment in segments {
        let mut left = segment;
        while let Ok(Header::Record { total_len }) = peek_header(left) {
            let record = RecordView::parse(left).expect("a record");
            let keys = key_hashes(record.topic(), record.properties()).to_vec();
            records.push((keys, record.phy(), record.store_timestamp()));
            left = &left[total_len as usize..];
        }
    }
    records
}

#[test]
fn the_worked_example_has_javas_bytes() {
    // Slots and units of Java's size make a file of 420 MB, of which four places are touched: a map of zeros.
    let shape = (5_000_000, 20_000_000);
    let mut bytes = zeros(shape);
    let mut file = create(&mut bytes, shape);
    let keys = key_hashes(
        "TopicTest",
        "TAGS\u{1}TagA\u{2}KEYS\u{1}k1 k2\u{2}UNIQ_KEY\u{1}7F00000100002A9F00000000000000AA\u{2}WAIT\u{1}true\u{2}",
    );
    for key in &keys {
        file.put(*key, PhyOffset(4096), Timestamp(1_700_000_000_123)).expect("room");
    }
    let time = [0, 0, 0x01, 0x8b, 0xcf, 0xe5, 0x68, 0x7b];
    let phy = [0, 0, 0, 0, 0, 0, 0x10, 0];
    assert_eq!(bytes[..16], [time, time].concat());
    assert_eq!(bytes[16..32], [phy, phy].concat());
    assert_eq!(bytes[32..40], [0, 0, 0, 3, 0, 0, 0, 4]);
    assert_eq!(bytes[7_655_520..][..4], [0, 0, 0, 1]);
    assert_eq!(bytes[20_000_060..][..12], [0x57, 0xbb, 0x9f, 0x8e, 0, 0, 0, 0, 0, 0, 0x10, 0]);
    assert_eq!(bytes[20_000_072..][..8], [0; 8]);
    assert_eq!(bytes[40 + 4 * 2_746_024..][..8], [0, 0, 0, 2, 0, 0, 0, 3]);
    assert_eq!(find(&bytes, shape, keys[0], 0, i64::MAX), [4096]);
}

#[test]
fn the_records_of_javas_store_make_javas_index_file() {
    let java = include_bytes!("../../../tests/golden/java-clean/index/20261129180023391");
    let mut bytes = zeros(SHAPE);
    let mut file = create(&mut bytes, SHAPE);
    for (keys, phy, stored_at) in java_records() {
        for key in keys {
            file.put(key, phy, stored_at).expect("room");
        }
    }
    assert_eq!(bytes, java);
}

#[test]
fn every_key_of_javas_store_is_found_in_javas_index_file() {
    let java = include_bytes!("../../../tests/golden/java-crash/index/20261129180023391");
    let file = open(java, SHAPE);
    assert_eq!(file.header().next_unit, 31);
    for (keys, phy, stored_at) in java_records() {
        for key in keys {
            assert!(find(java, SHAPE, key, stored_at.0, stored_at.0).contains(&phy.0));
            assert!(file.holds(key, phy));
            assert!(!file.holds(key, phy.advance(1)));
        }
    }
    assert_eq!(find(java, SHAPE, key_hash("A", "none"), 0, i64::MAX), [0; 0]);
}

#[test]
fn a_file_of_n_units_holds_n_less_one_entries() {
    let shape = (3, 5);
    let mut bytes = zeros(shape);
    let mut file = create(&mut bytes, shape);
    for n in 0..4 {
        assert_eq!(file.put(KeyHash(7), PhyOffset(n), Timestamp(1000)), Ok(()));
    }
    assert_eq!(file.put(KeyHash(7), PhyOffset(9), Timestamp(1000)), Err(Full));
    assert_eq!(file.header().end_phy, PhyOffset(3));
    assert_eq!(find(&bytes, shape, KeyHash(7), 0, 2000), [3, 2, 1, 0]);
}

#[test]
fn a_key_whose_hash_has_no_absolute_value_is_found() {
    let mut bytes = zeros(SHAPE);
    let mut file = create(&mut bytes, SHAPE);
    let key = key_hash("TopicTest", "tbaekxa");
    assert_eq!(key, KeyHash(0));
    file.put(key, PhyOffset(50), Timestamp(1000)).expect("room");
    assert_eq!(find(&bytes, SHAPE, key, 0, 2000), [50]);
}

#[test]
fn keys_with_one_hash_find_each_other_and_keys_of_one_slot_do_not() {
    let mut bytes = zeros(SHAPE);
    let mut file = create(&mut bytes, SHAPE);
    let (aa, bb) = (key_hash("TopicTest", "Aa"), key_hash("TopicTest", "BB"));
    let same_slot = KeyHash(aa.0 + 100);
    for (n, key) in [aa, same_slot, bb].into_iter().enumerate() {
        file.put(key, PhyOffset(n as u64 * 10), Timestamp(1000)).expect("room");
    }
    assert_eq!(file.header().slots_used, 1);
    assert_eq!(find(&bytes, SHAPE, aa, 0, 2000), [20, 0]);
    assert_eq!(find(&bytes, SHAPE, bb, 0, 2000), [20, 0]);
    assert_eq!(find(&bytes, SHAPE, same_slot, 0, 2000), [10]);
}

#[test]
fn a_window_finds_what_was_stored_in_it_and_begins_at_a_whole_second() {
    let mut bytes = zeros(SHAPE);
    let mut file = create(&mut bytes, SHAPE);
    for (phy, stored_at) in [(1, 5000), (2, 7999), (3, 9000)] {
        file.put(KeyHash(5), PhyOffset(phy), Timestamp(stored_at)).expect("room");
    }
    let find = |begin, end| find(&bytes, SHAPE, KeyHash(5), begin, end);
    assert_eq!(find(7500, 8000), [2]); // Java misses it
    assert_eq!(find(7000, 8000), [2]);
    assert_eq!(find(8000, 8500), [0; 0]);
    assert_eq!(find(5000, 9000), [3, 2, 1]);
    assert_eq!(find(0, i64::MAX), [3, 2, 1]);
    assert_eq!(find(i64::MIN, i64::MAX), [3, 2, 1]);
    assert_eq!(find(i64::MAX, i64::MAX), [0; 0]);
    assert_eq!(find(9001, 20_000), [0; 0]);
    assert_eq!(find(0, 4999), [0; 0]);
}

#[test]
fn a_find_stops_at_the_number_asked_for() {
    let mut bytes = zeros(SHAPE);
    let mut file = create(&mut bytes, SHAPE);
    for phy in 0..10 {
        file.put(KeyHash(5), PhyOffset(phy), Timestamp(1000)).expect("room");
    }
    let mut found = vec![PhyOffset(77)];
    file.reader().find(KeyHash(5), Timestamp(0), Timestamp(2000), 4, &mut found);
    assert_eq!(found, [77, 9, 8, 7].map(PhyOffset));
}

#[test]
fn an_entry_says_its_time_in_seconds_from_the_files_begin() {
    let header = IndexHeader { begin: Timestamp(5000), next_unit: 2, ..IndexHeader::EMPTY };
    let shape = IndexShape { slots: 100, units: 400 };
    let seconds = |header: &IndexHeader, stored_at| {
        let entry = next_entry(shape, header, 0, KeyHash(1), PhyOffset(0), Timestamp(stored_at)).expect("room");
        entry.unit.seconds
    };
    assert_eq!(seconds(&header, 5999), 0);
    assert_eq!(seconds(&header, 6000), 1);
    assert_eq!(seconds(&header, 0), 0);
    assert_eq!(seconds(&header, i64::MAX), i32::MAX);
    assert_eq!(seconds(&IndexHeader { begin: Timestamp(0), ..header }, 9000), 0);
    assert_eq!(seconds(&IndexHeader::EMPTY, 9000), 0);
}

#[test]
fn a_slot_that_points_to_no_older_entry_counts_as_empty() {
    let shape = IndexShape { slots: 100, units: 400 };
    let header = IndexHeader { next_unit: 5, slots_used: 2, ..IndexHeader::EMPTY };
    for (slot, previous, slots_used) in [(4, 4, 2), (5, 0, 3), (6, 0, 3), (u32::MAX, 0, 3), (0, 0, 3)] {
        let entry = next_entry(shape, &header, slot, KeyHash(1), PhyOffset(0), Timestamp(1)).expect("room");
        assert_eq!((entry.unit.previous, entry.header.slots_used), (previous, slots_used), "{slot}");
    }
}

#[test]
fn a_chain_that_leads_in_a_circle_or_out_of_the_file_ends() {
    for previous in [1, 2, 3, 399, 400, u32::MAX] {
        let mut bytes = zeros(SHAPE);
        let mut file = create(&mut bytes, SHAPE);
        file.put(KeyHash(5), PhyOffset(10), Timestamp(1000)).expect("room");
        file.put(KeyHash(5), PhyOffset(20), Timestamp(1000)).expect("room");
        let unit = file.reader().unit(2);
        file.write_unit(2, &IndexUnit { previous, ..unit });
        let expected: &[u64] = if previous == 1 { &[20, 10] } else { &[20] };
        assert_eq!(find(&bytes, SHAPE, KeyHash(5), 0, 2000), expected, "{previous}");
    }
}

#[test]
fn a_file_of_another_length_is_refused() {
    let wrong = WrongLength { found: 8439, expected: 8440 };
    assert_eq!(IndexFile::open(&[0; 8439], 100, 400).err(), Some(wrong));
    assert_eq!(IndexFileMut::create(&mut [0; 8439], 100, 400).err(), Some(wrong));
    assert_eq!(wrong.to_string(), "index file of 8439 bytes; with the configured slots and units it has 8440");
}

proptest! {
    #[test]
    fn what_was_put_is_found_and_nothing_else(
        slots in 1..20_u32,
        puts in prop::collection::vec((0..30_i32, 0..50_u64, 0..3000_i64), 1..60),
        begin in 0..60_000_i64,
        len in 0..60_000_i64,
    ) {
        let shape = (slots, 100);
        let mut bytes = zeros(shape);
        let mut file = create(&mut bytes, shape);
        let (mut phy, mut time, mut entries) = (0, 1000, Vec::new());
        for (key, phy_step, time_step) in puts {
            (phy, time) = (phy + phy_step, time + time_step);
            file.put(KeyHash(key), PhyOffset(phy), Timestamp(time)).unwrap();
            entries.push((key, phy, time));
        }
        let end = begin + len;
        let whole_second = |time: i64| entries[0].2 + (time - entries[0].2).div_euclid(1000) * 1000;
        let overlaps = end >= entries[0].2 && begin <= time;
        for key in 0..30 {
            let expected: Vec<u64> = entries
                .iter()
                .rev()
                .filter(|entry| overlaps && entry.0 == key)
                .filter(|entry| whole_second(entry.2) >= whole_second(begin) && whole_second(entry.2) <= end)
                .map(|entry| entry.1)
                .collect();
            let found = find(&bytes, shape, KeyHash(key), begin, end);
            for entry in &entries {
                let inside = entry.0 == key && (begin..=end).contains(&entry.2);
                prop_assert!(!inside || found.contains(&entry.1));
            }
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn no_bytes_make_a_file_panic_or_loop(
        bytes in prop::collection::vec(any::<u8>(), 40 + 4 * 5 + 20 * 8),
        small in prop::collection::vec((0..40_usize, 0..10_u8), 0..40),
        key: i32,
        phy: u64,
        times: (i64, i64),
    ) {
        let shape = (5, 8);
        let mut bytes = bytes;
        // Small numbers where slots, chains and counts are, so that they lead somewhere.
        for (at, value) in small {
            let at = 36 + 4 * at;
            if at + 4 <= bytes.len() {
                bytes[at..at + 4].copy_from_slice(&[0, 0, 0, value]);
            }
        }
        let _ = find(&bytes, shape, KeyHash(key), times.0, times.1);
        let mut file = IndexFileMut::open(&mut bytes, shape.0, shape.1).unwrap();
        let _ = file.reader().holds(KeyHash(key), PhyOffset(phy));
        let _ = file.put(KeyHash(key), PhyOffset(phy), Timestamp(times.0));
        let _ = cut_from(&mut bytes, shape.0, shape.1, PhyOffset(phy));
        let first = repair(&mut bytes, shape.0, shape.1);
        prop_assert_eq!(first.kept + 1, open(&bytes, shape).header().next_unit);
        prop_assert!(repair(&mut bytes, shape.0, shape.1).is_clean());
        let _ = cut_from(&mut bytes, shape.0, shape.1, PhyOffset(phy));
        prop_assert!(repair(&mut bytes, shape.0, shape.1).is_clean());
    }
}
