//! One unit of a consume queue: where a message lies in the commit log.
//!
//! | at | size | field           | meaning                                                              |
//! |---:|-----:|-----------------|----------------------------------------------------------------------|
//! |  0 |    8 | physical offset | first byte of the record in the commit log                           |
//! |  8 |    4 | size            | whole stored record, in bytes; 0: unwritten; `i32::MAX`: filler unit |
//! | 12 |    8 | tags code       | hash of the tag, or the delivery time in ms if delayed               |
//!
//! Big-endian. Queue offset `n` is at byte `n * UNIT_LEN` of the queue. Source: store.md 3.1 and 3.2.

use crate::format::fixed;
use crate::types::{PhyOffset, TagsCode};

/// Bytes a unit takes.
pub const UNIT_LEN: usize = 20;
const PHY_AT: usize = 0;
const SIZE_AT: usize = 8;
const TAGS_AT: usize = 12;
const _: () = assert!(TAGS_AT + size_of::<i64>() == UNIT_LEN);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// First byte of the record in the commit log.
    pub phy: PhyOffset,
    /// Bytes of the whole stored record.
    pub len: u32,
    pub tags: TagsCode,
}

impl Unit {
    /// Fills a file up to the first queue offset that a new queue stores, when that is not 0. It points nowhere.
    pub const PRE_BLANK: Unit = Unit { phy: PhyOffset(0), len: i32::MAX as u32, tags: TagsCode(0) };

    #[inline]
    pub fn encode(&self) -> [u8; UNIT_LEN] {
        let mut bytes = [0; UNIT_LEN];
        bytes[PHY_AT..SIZE_AT].copy_from_slice(&self.phy.0.to_be_bytes());
        bytes[SIZE_AT..TAGS_AT].copy_from_slice(&self.len.to_be_bytes());
        bytes[TAGS_AT..].copy_from_slice(&self.tags.0.to_be_bytes());
        bytes
    }

    #[inline]
    pub fn decode(bytes: &[u8; UNIT_LEN]) -> Unit {
        Unit {
            phy: PhyOffset(u64::from_be_bytes(fixed(bytes, PHY_AT))),
            len: u32::from_be_bytes(fixed(bytes, SIZE_AT)),
            tags: TagsCode(i64::from_be_bytes(fixed(bytes, TAGS_AT))),
        }
    }

    /// Whether something was written here: Java's rule, physical offset not negative and size positive. A filler unit
    /// counts as written.
    pub fn is_written(&self) -> bool {
        self.phy.0 <= i64::MAX as u64 && (1..=i32::MAX as u32).contains(&self.len)
    }

    /// Whether this is the filler unit [`Unit::PRE_BLANK`].
    pub fn is_pre_blank(&self) -> bool {
        *self == Unit::PRE_BLANK
    }

    /// The log position behind the record, if there is one: not of an unwritten or a filler unit.
    pub fn log_end(&self) -> Option<PhyOffset> {
        (self.is_written() && !self.is_pre_blank()).then(|| self.phy.advance(u64::from(self.len)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_unit_of_the_worked_example_has_javas_bytes() {
        let unit = Unit { phy: PhyOffset(4096), len: 187, tags: TagsCode::of(Some("TagA")) };
        let bytes = [0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0xbb, 0, 0, 0, 0, 0, 0x27, 0xa8, 0x07];
        assert_eq!(unit.encode(), bytes);
        assert_eq!(Unit::decode(&bytes), unit);
        assert_eq!(unit.log_end(), Some(PhyOffset(4283)));
    }

    #[test]
    fn a_filler_unit_is_written_but_points_nowhere() {
        let bytes = [0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(Unit::PRE_BLANK.encode(), bytes);
        let unit = Unit::decode(&bytes);
        assert!(unit.is_pre_blank() && unit.is_written());
        assert_eq!(unit.log_end(), None);
    }

    #[test]
    fn zeros_and_negative_numbers_are_not_written() {
        for (phy, len) in [(0, 0), (4096, 0), (1 << 63, 187), (0, 1 << 31)] {
            let unit = Unit { phy: PhyOffset(phy), len, tags: TagsCode(0) };
            assert!(!unit.is_written(), "{unit:?}");
            assert_eq!(unit.log_end(), None);
        }
    }

    #[test]
    fn a_tag_hash_of_the_smallest_integer_is_sign_extended() {
        let unit = Unit { phy: PhyOffset(0), len: 1, tags: TagsCode::of(Some("polygenelubricants")) };
        assert_eq!(unit.encode()[12..], [0xff, 0xff, 0xff, 0xff, 0x80, 0, 0, 0]);
    }

    proptest! {
        #[test]
        fn any_twenty_bytes_decode_and_encode_back(bytes: [u8; UNIT_LEN]) {
            let unit = Unit::decode(&bytes);
            let _ = unit.log_end();
            prop_assert_eq!(unit.encode(), bytes);
        }
    }
}
