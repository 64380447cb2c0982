//! An index file: from the hash of a key to the messages that carry it.
//!
//! | at                     | size       | part                                                        |
//! |-----------------------:|-----------:|-------------------------------------------------------------|
//! | 0                      | 40         | header                                                      |
//! | 40                     | 4 × slots  | slots: number of the newest unit whose key falls here, or 0 |
//! | 40 + 4 × slots         | 20 × units | units, numbered from 0; unit 0 is never used                |
//!
//! Header:
//!
//! | at | size | field       | meaning                                        |
//! |---:|-----:|-------------|------------------------------------------------|
//! |  0 |    8 | begin       | store time of the first entry, ms              |
//! |  8 |    8 | end         | store time of the last entry, ms               |
//! | 16 |    8 | begin phy   | physical offset of the first entry             |
//! | 24 |    8 | end phy     | physical offset of the last entry              |
//! | 32 |    4 | slots used  | slots that are not 0                           |
//! | 36 |    4 | next unit   | number that the next entry gets, from 1        |
//!
//! Unit:
//!
//! | at | size | field    | meaning                                                         |
//! |---:|-----:|----------|-----------------------------------------------------------------|
//! |  0 |    4 | key      | hash of `topic#key`, not negative                               |
//! |  4 |    8 | phy      | physical offset of the record                                   |
//! | 12 |    4 | seconds  | whole seconds from the file's begin to the record's store time  |
//! | 16 |    4 | previous | the unit before in the same slot, or 0                          |
//!
//! Big-endian. Source: store.md 4.1. What is done with these parts is the room `index`.

use crate::format::fixed;
use crate::types::{KeyHash, PhyOffset, Timestamp};

/// Slots of a file, unless configured otherwise.
pub const SLOTS_DEFAULT: u32 = 5_000_000;
/// Units of a file, unless configured otherwise; one less can be used.
pub const UNITS_DEFAULT: u32 = 20_000_000;

pub const HEADER_LEN: usize = 40;
pub const SLOT_LEN: usize = 4;
pub const UNIT_LEN: usize = 20;

pub const BEGIN_AT: usize = 0;
pub const END_AT: usize = 8;
pub const BEGIN_PHY_AT: usize = 16;
pub const END_PHY_AT: usize = 24;
pub const SLOTS_USED_AT: usize = 32;
pub const NEXT_UNIT_AT: usize = 36;
const _: () = assert!(NEXT_UNIT_AT + size_of::<u32>() == HEADER_LEN);

const KEY_AT: usize = 0;
const PHY_AT: usize = 4;
const SECONDS_AT: usize = 12;
const PREVIOUS_AT: usize = 16;
const _: () = assert!(PREVIOUS_AT + size_of::<u32>() == UNIT_LEN);

/// Bytes of a file with so many slots and units.
pub fn file_len(slots: u32, units: u32) -> u64 {
    unit_at(slots, units)
}

/// Byte position of a slot.
#[inline]
pub fn slot_at(slot: u32) -> u64 {
    HEADER_LEN as u64 + SLOT_LEN as u64 * u64::from(slot)
}

/// Byte position of a unit.
#[inline]
pub fn unit_at(slots: u32, unit: u32) -> u64 {
    slot_at(slots) + UNIT_LEN as u64 * u64::from(unit)
}

/// The slot that a key falls into. `slots` is not 0.
#[inline]
pub fn slot_of(key: KeyHash, slots: u32) -> u32 {
    key.0 as u32 % slots
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexHeader {
    /// Store time of the first entry.
    pub begin: Timestamp,
    /// Store time of the last entry.
    pub end: Timestamp,
    pub begin_phy: PhyOffset,
    /// Physical offset of the last entry.
    pub end_phy: PhyOffset,
    /// Slots that are not empty.
    pub slots_used: u32,
    /// Number of the unit that the next entry gets.
    pub next_unit: u32,
}

impl IndexHeader {
    /// The header of a file without entries.
    pub const EMPTY: IndexHeader = IndexHeader {
        begin: Timestamp(0),
        end: Timestamp(0),
        begin_phy: PhyOffset(0),
        end_phy: PhyOffset(0),
        slots_used: 0,
        next_unit: 1,
    };

    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[BEGIN_AT..END_AT].copy_from_slice(&self.begin.0.to_be_bytes());
        bytes[END_AT..BEGIN_PHY_AT].copy_from_slice(&self.end.0.to_be_bytes());
        bytes[BEGIN_PHY_AT..END_PHY_AT].copy_from_slice(&self.begin_phy.0.to_be_bytes());
        bytes[END_PHY_AT..SLOTS_USED_AT].copy_from_slice(&self.end_phy.0.to_be_bytes());
        bytes[SLOTS_USED_AT..NEXT_UNIT_AT].copy_from_slice(&self.slots_used.to_be_bytes());
        bytes[NEXT_UNIT_AT..].copy_from_slice(&self.next_unit.to_be_bytes());
        bytes
    }

    /// As it stands; a file that was only just made has a header of zeros, whose `next_unit` counts as 1.
    pub fn decode(bytes: &[u8; HEADER_LEN]) -> IndexHeader {
        IndexHeader {
            begin: Timestamp(i64::from_be_bytes(fixed(bytes, BEGIN_AT))),
            end: Timestamp(i64::from_be_bytes(fixed(bytes, END_AT))),
            begin_phy: PhyOffset(u64::from_be_bytes(fixed(bytes, BEGIN_PHY_AT))),
            end_phy: PhyOffset(u64::from_be_bytes(fixed(bytes, END_PHY_AT))),
            slots_used: u32::from_be_bytes(fixed(bytes, SLOTS_USED_AT)),
            next_unit: match i32::from_be_bytes(fixed(bytes, NEXT_UNIT_AT)) {
                number if number <= 0 => 1,
                number => number as u32,
            },
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexUnit {
    pub key: KeyHash,
    pub phy: PhyOffset,
    /// Whole seconds from the file's begin to the record's store time.
    pub seconds: i32,
    /// The unit before in the same slot, or 0.
    pub previous: u32,
}

impl IndexUnit {
    #[inline]
    pub fn encode(&self) -> [u8; UNIT_LEN] {
        let mut bytes = [0; UNIT_LEN];
        bytes[KEY_AT..PHY_AT].copy_from_slice(&self.key.0.to_be_bytes());
        bytes[PHY_AT..SECONDS_AT].copy_from_slice(&self.phy.0.to_be_bytes());
        bytes[SECONDS_AT..PREVIOUS_AT].copy_from_slice(&self.seconds.to_be_bytes());
        bytes[PREVIOUS_AT..].copy_from_slice(&self.previous.to_be_bytes());
        bytes
    }

    #[inline]
    pub fn decode(bytes: &[u8; UNIT_LEN]) -> IndexUnit {
        IndexUnit {
            key: KeyHash(i32::from_be_bytes(fixed(bytes, KEY_AT))),
            phy: PhyOffset(u64::from_be_bytes(fixed(bytes, PHY_AT))),
            seconds: i32::from_be_bytes(fixed(bytes, SECONDS_AT)),
            previous: u32::from_be_bytes(fixed(bytes, PREVIOUS_AT)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_file_of_javas_size_has_javas_places() {
        assert_eq!(file_len(SLOTS_DEFAULT, UNITS_DEFAULT), 420_000_040);
        assert_eq!(unit_at(SLOTS_DEFAULT, 1), 20_000_060);
        let unique = KeyHash(1_471_913_870);
        assert_eq!(slot_of(unique, SLOTS_DEFAULT), 1_913_870);
        assert_eq!(slot_at(slot_of(unique, SLOTS_DEFAULT)), 7_655_520);
        assert_eq!(slot_of(KeyHash(2_746_024), SLOTS_DEFAULT), 2_746_024);
        assert_eq!(slot_of(KeyHash(0), SLOTS_DEFAULT), 0);
    }

    #[test]
    fn the_unit_of_the_worked_example_has_javas_bytes() {
        let unit = IndexUnit { key: KeyHash(0x57bb_9f8e), phy: PhyOffset(4096), seconds: 0, previous: 0 };
        let bytes = [0x57, 0xbb, 0x9f, 0x8e, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(unit.encode(), bytes);
        assert_eq!(IndexUnit::decode(&bytes), unit);
    }

    #[test]
    fn a_header_of_zeros_is_that_of_an_empty_file() {
        assert_eq!(IndexHeader::decode(&[0; HEADER_LEN]), IndexHeader::EMPTY);
        let mut negative = [0; HEADER_LEN];
        negative[NEXT_UNIT_AT] = 0x80;
        assert_eq!(IndexHeader::decode(&negative).next_unit, 1);
    }

    proptest! {
        #[test]
        fn any_bytes_decode_and_encode_back(header: [u8; HEADER_LEN], unit: [u8; UNIT_LEN]) {
            prop_assert_eq!(IndexUnit::decode(&unit).encode(), unit);
            let decoded = IndexHeader::decode(&header);
            prop_assert_eq!(IndexHeader::decode(&decoded.encode()), decoded);
        }
    }
}
