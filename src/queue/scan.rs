//! What one file holds, told from its bytes alone: the first step of recovery.

use crate::format::unit::{UNIT_LEN, Unit};
use crate::types::PhyOffset;

/// How many units are written from the start of `file` on.
///
/// The first that is not ends the data (Java's rule), and so does one that points to a lower place in the log than the
/// unit before: what an old truncation left behind, which Java would take for valid (store.md J4). Several units may
/// point to the same place, as those that close a gap do. Filler units count.
pub fn written_units(file: &[u8]) -> usize {
    let mut last = PhyOffset(0);
    units(file)
        .take_while(|unit| {
            let in_order = unit.is_written() && unit.phy >= last;
            last = unit.phy;
            in_order
        })
        .count()
}

/// The same for a file of which it is known that only zeros follow its last unit, as a clean stop of ours leaves it:
/// found by bisection, and by a look at the last of its units, as many as a few pages hold. Bytes before them that rotted
/// meanwhile are not seen.
pub fn written_units_by_bisection(file: &[u8]) -> usize {
    const LOOKED_AT: usize = 4 * 4096 / UNIT_LEN;
    let (units, _torn) = file.as_chunks::<UNIT_LEN>();
    let end = units.partition_point(|unit| Unit::decode(unit).is_written());
    let from = end.saturating_sub(LOOKED_AT);
    from + written_units(&file[from * UNIT_LEN..end * UNIT_LEN])
}

/// How many filler units stand at the start of `file`: where the data of a queue starts that did not start at 0.
pub fn filler_units(file: &[u8]) -> usize {
    units(file).take_while(Unit::is_pre_blank).count()
}

/// The log position behind the newest record that `written` units point to; none if all of them are fillers.
pub fn log_end(written: &[u8]) -> Option<PhyOffset> {
    units(written).next_back()?.log_end()
}

fn units(bytes: &[u8]) -> impl DoubleEndedIterator<Item = Unit> {
    let (units, _torn) = bytes.as_chunks::<UNIT_LEN>();
    units.iter().map(Unit::decode)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::format::record::RecordView;
    use crate::types::{TagsCode, properties};

    fn file(units: &[(u64, u32)]) -> Vec<u8> {
        let encoded =
            units.iter().map(|(phy, len)| Unit { phy: PhyOffset(*phy), len: *len, tags: TagsCode(7) }.encode());
        encoded.collect::<Vec<_>>().concat()
    }

    #[test]
    fn zeros_end_the_data() {
        let bytes = file(&[(0, 10), (10, 10), (0, 0), (30, 10)]);
        assert_eq!(written_units(&bytes), 2);
        assert_eq!(log_end(&bytes[..40]), Some(PhyOffset(20)));
        assert_eq!(written_units(&[0; 200]), 0);
        assert_eq!(written_units(&[]), 0);
        assert_eq!(log_end(&[]), None);
    }

    #[test]
    fn a_unit_that_points_back_ends_the_data_and_one_that_repeats_does_not() {
        assert_eq!(written_units(&file(&[(100, 10), (110, 50), (110, 50), (160, 10)])), 4);
        assert_eq!(written_units(&file(&[(100, 10), (110, 10), (105, 10)])), 2);
    }

    #[test]
    fn a_torn_unit_at_the_end_is_not_counted() {
        let bytes = file(&[(0, 10), (10, 10)]);
        assert_eq!(written_units(&bytes[..39]), 1);
    }

    #[test]
    fn fillers_count_as_written_but_say_nothing_of_the_log() {
        let mut bytes = Unit::PRE_BLANK.encode().repeat(7);
        assert_eq!((written_units(&bytes), filler_units(&bytes), log_end(&bytes)), (7, 7, None));
        bytes.extend(file(&[(0, 10)]));
        assert_eq!((written_units(&bytes), filler_units(&bytes)), (8, 7));
        assert_eq!(log_end(&bytes), Some(PhyOffset(10)));
    }

    #[test]
    fn the_queues_that_java_wrote_hold_one_unit_a_record() {
        let log = [
            &include_bytes!("../../tests/golden/java-crash/commitlog/00000000000000000000")[..],
            include_bytes!("../../tests/golden/java-crash/commitlog/00000000000000004096"),
            include_bytes!("../../tests/golden/java-crash/commitlog/00000000000000008192"),
        ]
        .concat();
        let a = [
            &include_bytes!("../../tests/golden/java-crash/consumequeue/A/0/00000000000000000000")[..],
            include_bytes!("../../tests/golden/java-crash/consumequeue/A/0/00000000000000000200"),
        ]
        .concat();
        let b = include_bytes!("../../tests/golden/java-crash/consumequeue/B/0/00000000000000000000");
        for (topic, file, count) in [("A", &a[..], 20), ("B", b, 10)] {
            assert_eq!(written_units(file), count);
            for (offset, unit) in units(file).take(count).enumerate() {
                let record = RecordView::parse(&log[unit.phy.0 as usize..]).expect("a record");
                assert_eq!((record.topic(), record.queue_offset().0), (topic, offset as u64));
                assert_eq!((record.phy(), record.total_len()), (unit.phy, unit.len));
                assert_eq!(unit.tags, TagsCode::of(properties::get(record.properties(), properties::TAGS)));
            }
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_scan_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let count = written_units(&bytes);
            prop_assert!(filler_units(&bytes) <= bytes.len() / UNIT_LEN);
            let _ = log_end(&bytes[..count * UNIT_LEN]);
        }

        #[test]
        fn what_was_appended_in_order_is_all_found(
            lens in prop::collection::vec(1..1000_u32, 0..30),
            zeros in 0..5_usize,
        ) {
            let mut end = 0;
            let mut bytes = Vec::new();
            for len in &lens {
                bytes.extend(file(&[(end, *len)]));
                end += u64::from(*len);
            }
            let written = bytes.len();
            bytes.resize(written + zeros * UNIT_LEN, 0);
            prop_assert_eq!(written_units(&bytes), lens.len());
            prop_assert_eq!(written_units_by_bisection(&bytes), lens.len());
            prop_assert_eq!(log_end(&bytes[..written]), (!lens.is_empty()).then_some(PhyOffset(end)));
        }
    }
}
