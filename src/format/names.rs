//! What files and folders of a store directory are called. Source: store.md 1.1, 1.2 and 4.1.

use crate::types::Timestamp;

/// Folder of the commit log's segments.
pub const COMMIT_LOG: &str = "commitlog";
/// Folder of the consume queues: `<topic>/<queue id>/<segment name>`.
pub const CONSUME_QUEUE: &str = "consumequeue";
/// Folder of the index files.
pub const INDEX: &str = "index";
pub const CHECKPOINT: &str = "checkpoint";
/// Exists while a broker runs, and after an unclean stop; holds the process id in decimal.
pub const ABORT: &str = "abort";
/// Its first byte is locked by the broker that owns the store; holds [`LOCK_TEXT`].
pub const LOCK: &str = "lock";
pub const LOCK_TEXT: &[u8; 4] = b"lock";
/// Folder of the JSON files.
pub const CONFIG: &str = "config";
pub const TOPICS: &str = "topics.json";
pub const SUBSCRIPTION_GROUPS: &str = "subscriptionGroup.json";
pub const CONSUMER_OFFSETS: &str = "consumerOffset.json";
pub const DELAY_OFFSETS: &str = "delayOffset.json";
/// Follows the name of a JSON file's previous version.
pub const BACKUP_SUFFIX: &str = ".bak";

const SEGMENT_NAME_LEN: usize = 20;
const INDEX_NAME_LEN: usize = 17;

/// Name of the segment or consume queue file whose first byte is at `offset`: 20 decimal digits.
pub fn segment_name(offset: u64) -> String {
    format!("{offset:0SEGMENT_NAME_LEN$}")
}

/// The offset that a segment's name says; none if it is no such name.
pub fn parse_segment_name(name: &str) -> Option<u64> {
    let is_name = name.len() == SEGMENT_NAME_LEN && name.bytes().all(|byte| byte.is_ascii_digit());
    // 20 digits hold more than an offset may: Java's is signed.
    name.parse().ok().filter(|offset| is_name && *offset <= i64::MAX as u64)
}

/// Name of an index file made at `created`: local time as `yyyyMMddHHmmssSSS`, where local is `utc_offset_s` seconds
/// ahead of UTC. Times before the year 1 or past 9999 are moved to that range, so that names always sort.
pub fn index_name(created: Timestamp, utc_offset_s: i32) -> String {
    const MS_PER_DAY: i64 = 86_400_000;
    const YEAR_1: i64 = -62_135_596_800_000;
    const YEAR_9999_END: i64 = 253_402_300_799_999;
    let local = created.plus_ms(i64::from(utc_offset_s) * 1000).0.clamp(YEAR_1, YEAR_9999_END);
    let (year, month, day) = civil_date((local - YEAR_1) / MS_PER_DAY);
    let ms = local.rem_euclid(MS_PER_DAY);
    let (hour, minute, second, milli) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60, ms % 1000);
    format!("{year:04}{month:02}{day:02}{hour:02}{minute:02}{second:02}{milli:03}")
}

/// Whether a file in the index folder is an index file: 17 digits. Names sort as the files were made.
pub fn is_index_name(name: &str) -> bool {
    name.len() == INDEX_NAME_LEN && name.bytes().all(|byte| byte.is_ascii_digit())
}

/// Year, month and day of a day counted from 0001-01-01, in the Gregorian calendar.
fn civil_date(day: i64) -> (i64, i64, i64) {
    // Periods of 400, 100, 4 and 1 years. The last century of four and the last year of four have a leap day more
    // than their like, which would make a fifth of them.
    let (eras, day) = (day / 146_097, day % 146_097);
    let centuries = (day / 36_524).min(3);
    let day = day - centuries * 36_524;
    let (fours, day) = (day / 1461, day % 1461);
    let years = (day / 365).min(3);
    let mut day = day - years * 365;

    let year = 1 + eras * 400 + centuries * 100 + fours * 4 + years;
    let is_leap = years == 3 && (fours != 24 || centuries == 3);
    let february = if is_leap { 29 } else { 28 };
    let mut month = 1;
    for len in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if day < len {
            break;
        }
        day -= len;
        month += 1;
    }
    (year, month, day + 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_segment_is_called_by_its_first_byte() {
        assert_eq!(segment_name(0), "00000000000000000000");
        assert_eq!(segment_name(1 << 30), "00000000001073741824");
        assert_eq!(parse_segment_name("00000000001073741824"), Some(1 << 30));
    }

    #[test]
    fn other_names_are_no_segments() {
        for name in [
            "",
            "0",
            "000000000000000000000",
            "+0000000000000000000",
            "0000000000000000000a",
            "00000000000000000000.bak",
            "09223372036854775808",
            "99999999999999999999",
        ] {
            assert_eq!(parse_segment_name(name), None, "{name}");
        }
    }

    #[test]
    fn an_index_file_is_called_by_the_local_time_it_was_made() {
        let made = Timestamp(1_700_000_000_123);
        assert_eq!(index_name(made, 0), "20231114221320123");
        assert_eq!(index_name(made, 8 * 3600), "20231115061320123");
        assert_eq!(index_name(made, -(5 * 3600 + 1800)), "20231114164320123");
        assert_eq!(index_name(Timestamp(951_782_400_000), 0), "20000229000000000");
        assert_eq!(index_name(Timestamp(4_107_542_399_999), 0), "21000228235959999");
        assert_eq!(index_name(Timestamp(4_107_542_400_000), 0), "21000301000000000");
        assert_eq!(index_name(Timestamp(-1), 0), "19691231235959999");
        assert_eq!(index_name(Timestamp(i64::MIN), 0), "00010101000000000");
        assert_eq!(index_name(Timestamp(i64::MAX), 3600), "99991231235959999");
        assert!(is_index_name("20261129180023391"));
        assert!(!is_index_name("20261129180023391.bak"));
        assert!(!is_index_name("2026112918002339"));
    }

    proptest! {
        #[test]
        fn every_offset_reads_back(offset in 0..=i64::MAX as u64) {
            prop_assert_eq!(parse_segment_name(&segment_name(offset)), Some(offset));
        }

        #[test]
        fn later_index_files_sort_behind_earlier_ones(a: i64, b: i64, near in 0..10_000_000_i64) {
            for (early, late) in [(a.min(b), a.max(b)), (a % (1 << 44), a % (1 << 44) + near)] {
                let (first, second) = (index_name(Timestamp(early), 0), index_name(Timestamp(late), 0));
                prop_assert!(is_index_name(&first) && is_index_name(&second));
                prop_assert!(first <= second);
            }
        }
    }
}
