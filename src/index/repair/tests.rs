use proptest::prelude::*;

use super::*;
use crate::format::index_file::{NEXT_UNIT_AT, file_len, slot_at, unit_at};
use crate::index::IndexFile;
use crate::types::KeyHash;

const SLOTS: u32 = 7;
const UNITS: u32 = 200;
const BEGIN: i64 = 1000;

fn empty() -> Vec<u8> {
    let mut bytes = vec![0; file_len(SLOTS, UNITS) as usize];
    IndexFileMut::create(&mut bytes, SLOTS, UNITS).expect("a whole file");
    bytes
}

/// `count` entries; entry `n`, from 0, has key `3 * n`, lies at `100 + 10 * n` and was stored `700 * n` ms after the
/// first.
fn filled(count: u32) -> Vec<u8> {
    let mut bytes = empty();
    put(&mut bytes, 0..count);
    bytes
}

fn put(bytes: &mut [u8], entries: std::ops::Range<u32>) {
    let mut file = IndexFileMut::open(bytes, SLOTS, UNITS).expect("a whole file");
    for n in entries {
        let phy = PhyOffset(100 + 10 * u64::from(n));
        file.put(KeyHash(3 * n as i32), phy, Timestamp(BEGIN + 700 * i64::from(n))).expect("room");
    }
}

fn repair(bytes: &mut [u8]) -> Repaired {
    super::repair(bytes, SLOTS, UNITS)
}

fn cut_from(bytes: &mut [u8], phy: u64) -> u32 {
    super::cut_from(bytes, SLOTS, UNITS, PhyOffset(phy))
}

fn header(bytes: &[u8]) -> IndexHeader {
    IndexFile::open(bytes, SLOTS, UNITS).expect("a whole file").header()
}

fn set_slot(bytes: &mut [u8], slot: u32, number: u32) {
    bytes[slot_at(slot) as usize..][..4].copy_from_slice(&number.to_be_bytes());
}

fn zero_unit(bytes: &mut [u8], number: u32) {
    bytes[unit_at(SLOTS, number) as usize..][..UNIT_LEN].fill(0);
}

#[test]
fn a_file_in_order_is_left_as_it_is() {
    for count in [0, 1, 30] {
        let mut bytes = filled(count);
        let repaired = repair(&mut bytes);
        assert_eq!(repaired, Repaired { kept: count, ..Repaired::default() });
        assert!(repaired.is_clean());
        assert_eq!(bytes, filled(count));
    }
    let mut java = *include_bytes!("../../../tests/golden/java-crash/index/20261129180023391");
    let as_java_wrote_it = java;
    assert_eq!(super::repair(&mut java, 100, 400), Repaired { kept: 30, ..Repaired::default() });
    assert_eq!(java, as_java_wrote_it);
}

#[test]
fn a_kill_at_any_write_of_a_put_is_set_right() {
    let (before, after) = (filled(30), filled(31));
    // Slot 6 takes entry 30, whose key is 90.
    let slot = 90 % SLOTS;
    let unit_only = {
        let mut bytes = before.clone();
        let at = unit_at(SLOTS, 31) as usize;
        bytes[at..at + UNIT_LEN].copy_from_slice(&after[at..at + UNIT_LEN]);
        bytes
    };
    let mut unit_and_slot = unit_only.clone();
    set_slot(&mut unit_and_slot, slot, 31);
    let mut all_but_the_count = after.clone();
    all_but_the_count[NEXT_UNIT_AT..NEXT_UNIT_AT + 4].copy_from_slice(&31_u32.to_be_bytes());

    for mut bytes in [unit_only, unit_and_slot, all_but_the_count] {
        assert_eq!(repair(&mut bytes).kept, 30);
        let header = header(&bytes);
        assert_eq!((header.next_unit, header.end_phy, header.slots_used), (31, PhyOffset(390), 7));
        put(&mut bytes, 30..31);
        assert_eq!(bytes, after);
    }
}

#[test]
fn units_that_never_reached_the_disk_end_the_file() {
    let mut bytes = filled(30);
    zero_unit(&mut bytes, 21);
    zero_unit(&mut bytes, 22);
    let repaired = repair(&mut bytes);
    assert_eq!((repaired.kept, repaired.dropped), (20, 10));
    let end = header(&bytes);
    assert_eq!((end.next_unit, end.end_phy), (21, PhyOffset(290)));
    // Entry 19 was stored at 14300, which its unit knows as 13 s after 1000.
    assert_eq!(end.end, Timestamp(BEGIN + 13_999));
    put(&mut bytes, 20..30);
    assert_eq!(bytes, filled(30));
}

#[test]
fn a_file_whose_first_unit_is_lost_is_empty_again() {
    let mut bytes = filled(30);
    zero_unit(&mut bytes, 1);
    assert_eq!(repair(&mut bytes).kept, 0);
    assert_eq!(header(&bytes), IndexHeader::EMPTY);
    put(&mut bytes, 0..30);
    assert_eq!(bytes, filled(30));
}

#[test]
fn a_unit_that_no_put_writes_ends_the_file() {
    let good = IndexFile::open(&filled(30), SLOTS, UNITS).expect("a whole file").unit(21);
    assert_eq!(good.previous, 14);
    for bad in [
        IndexUnit { key: KeyHash(-1), ..good },
        IndexUnit { seconds: -1, ..good },
        IndexUnit { phy: PhyOffset(289), ..good },
        IndexUnit { phy: PhyOffset(1 << 63), ..good },
        IndexUnit { previous: 21, ..good },
        IndexUnit { previous: 20, ..good },
        IndexUnit { previous: 7, ..good },
        IndexUnit { previous: 0, ..good },
        IndexUnit { key: KeyHash(0), ..good },
    ] {
        let mut bytes = filled(30);
        IndexFileMut::open(&mut bytes, SLOTS, UNITS).expect("a whole file").write_unit(21, &bad);
        assert_eq!(repair(&mut bytes).kept, 20, "{bad:?}");
    }
}

#[test]
fn lost_slots_are_made_again_from_the_units() {
    let mut bytes = filled(30);
    for slot in 0..SLOTS {
        set_slot(&mut bytes, slot, slot * 40);
    }
    assert_eq!(repair(&mut bytes), Repaired { kept: 30, dropped: 0, slots_rewritten: SLOTS });
    assert_eq!(bytes, filled(30));
}

#[test]
fn a_count_beyond_the_file_is_taken_as_a_full_one() {
    let mut bytes = filled(30);
    bytes[NEXT_UNIT_AT..NEXT_UNIT_AT + 4].copy_from_slice(&i32::MAX.to_be_bytes());
    assert_eq!(repair(&mut bytes), Repaired { kept: 30, dropped: 169, ..Repaired::default() });
    put(&mut bytes, 30..31);
    assert_eq!(header(&bytes).next_unit, 32);
}

#[test]
fn a_cut_leaves_the_entries_below_it() {
    for kept in [0, 1, 7, 8, 29, 30] {
        let mut bytes = filled(30);
        let phy = 100 + 10 * u64::from(kept);
        assert_eq!(cut_from(&mut bytes, phy), 30 - kept, "{kept}");
        assert!(repair(&mut bytes).is_clean());
        let end = header(&bytes);
        assert_eq!(end.next_unit, kept + 1);
        assert_eq!(end.slots_used, kept.min(SLOTS));
        assert_eq!(cut_from(&mut bytes, phy), 0);
        put(&mut bytes, kept..30);
        assert_eq!(bytes, filled(30), "{kept}");
    }
    let mut bytes = filled(30);
    assert_eq!(cut_from(&mut bytes, 0), 30);
    assert_eq!(header(&bytes), IndexHeader::EMPTY);
}

#[test]
fn a_message_goes_with_all_its_keys() {
    let mut bytes = empty();
    let mut file = IndexFileMut::open(&mut bytes, SLOTS, UNITS).expect("a whole file");
    for (key, phy) in [(1, 100), (2, 200), (3, 200), (4, 200), (5, 300)] {
        file.put(KeyHash(key), PhyOffset(phy), Timestamp(BEGIN)).expect("room");
    }
    assert_eq!(cut_from(&mut bytes, 200), 4);
    assert_eq!(header(&bytes).next_unit, 2);
}

proptest! {
    #[test]
    fn after_a_power_loss_the_file_is_made_whole_from_the_log(
        count in 1..60_u32,
        lost in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        header_of in any::<prop::sample::Index>(),
    ) {
        // Any parts of the file may be older than the others: header, slots, or three units.
        let mut bytes = filled(count);
        let older = filled(header_of.index(count as usize) as u32);
        let parts: Vec<_> = [0, slot_at(0) as usize]
            .into_iter()
            .chain((unit_at(SLOTS, 0) as usize..=bytes.len()).step_by(3 * UNIT_LEN))
            .collect();
        for part in lost {
            let part = part.index(parts.len() - 1);
            let part = parts[part]..parts[part + 1];
            bytes[part.clone()].copy_from_slice(&older[part]);
        }
        let repaired = repair(&mut bytes);
        prop_assert!(repair(&mut bytes).is_clean());
        put(&mut bytes, repaired.kept..count);
        let whole = filled(count);
        prop_assert_eq!(header(&bytes), header(&whole));
        prop_assert!(bytes == whole);
    }
}
