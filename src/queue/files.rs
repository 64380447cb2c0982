//! Which file, and where in it.

use crate::format::unit::{UNIT_LEN, Unit};
use crate::types::QueueOffset;

/// Units of a file, unless configured otherwise.
pub const UNITS_PER_FILE_DEFAULT: u64 = 300_000;

/// How a queue is cut into files of equal length. A file is called by its first byte's position in the whole queue,
/// see `format::names::segment_name`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueFiles {
    units_per_file: u64,
}

impl QueueFiles {
    /// Files that hold so many units; panics on 0, which no checked configuration has.
    pub fn of_units(units_per_file: u64) -> QueueFiles {
        assert!(units_per_file > 0, "a consume queue file holds units");
        QueueFiles { units_per_file }
    }

    /// Files of a configured length in bytes, which is rounded up to whole units, as Java does.
    pub fn of_len(file_len: u64) -> QueueFiles {
        QueueFiles::of_units(file_len.div_ceil(UNIT_LEN as u64))
    }

    /// Bytes of a file.
    pub fn file_len(self) -> u64 {
        self.units_per_file * UNIT_LEN as u64
    }

    pub fn units_per_file(self) -> u64 {
        self.units_per_file
    }

    /// The name, as a number, of the file that holds `offset`.
    pub fn file_start(self, offset: QueueOffset) -> u64 {
        self.first_in_file(offset).0 * UNIT_LEN as u64
    }

    /// Byte position of `offset` in its file.
    pub fn position(self, offset: QueueOffset) -> usize {
        (offset.0 % self.units_per_file) as usize * UNIT_LEN
    }

    /// The first queue offset in the file that holds `offset`.
    pub fn first_in_file(self, offset: QueueOffset) -> QueueOffset {
        QueueOffset(offset.0 - offset.0 % self.units_per_file)
    }

    /// The first queue offset in the file behind the one that holds `offset`.
    pub fn next_file(self, offset: QueueOffset) -> QueueOffset {
        self.first_in_file(offset).advance(self.units_per_file)
    }

    /// The first queue offset in the file of this name; none if no file of such a queue starts there.
    pub fn first_of(self, file_start: u64) -> Option<QueueOffset> {
        file_start.is_multiple_of(self.file_len()).then(|| QueueOffset(file_start / UNIT_LEN as u64))
    }
}

/// The unit at byte `position` of a file; none where the file has no whole unit left.
#[inline]
pub fn unit_at(file: &[u8], position: usize) -> Option<Unit> {
    file.get(position..)?.first_chunk().map(Unit::decode)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_eleventh_unit_of_a_queue_with_ten_a_file_opens_the_second_file() {
        let files = QueueFiles::of_units(10);
        assert_eq!(files.file_len(), 200);
        let at = |offset| (files.file_start(QueueOffset(offset)), files.position(QueueOffset(offset)));
        assert_eq!(at(0), (0, 0));
        assert_eq!(at(9), (0, 180));
        assert_eq!(at(10), (200, 0));
        assert_eq!(files.next_file(QueueOffset(9)), QueueOffset(10));
        assert_eq!(files.next_file(QueueOffset(10)), QueueOffset(20));
        assert_eq!(files.first_of(200), Some(QueueOffset(10)));
        assert_eq!(files.first_of(180), None);
    }

    #[test]
    fn a_configured_length_is_rounded_up_to_whole_units() {
        assert_eq!(QueueFiles::of_len(6_000_000).units_per_file(), UNITS_PER_FILE_DEFAULT);
        assert_eq!(QueueFiles::of_len(181).file_len(), 200);
        assert_eq!(QueueFiles::of_len(1).units_per_file(), 1);
    }

    #[test]
    fn there_is_no_unit_beyond_the_last_whole_one() {
        let file = [Unit::PRE_BLANK.encode(), Unit::PRE_BLANK.encode()].concat();
        assert_eq!(unit_at(&file, 20), Some(Unit::PRE_BLANK));
        assert_eq!(unit_at(&file, 21), None);
        assert_eq!(unit_at(&file, 40), None);
        assert_eq!(unit_at(&file, usize::MAX), None);
    }

    proptest! {
        #[test]
        fn file_and_position_give_back_the_offset(units in 1..1_000_000_u64, offset in 0..u64::MAX / 40) {
            let files = QueueFiles::of_units(units);
            let offset = QueueOffset(offset);
            let first = files.first_of(files.file_start(offset)).expect("a file of the queue starts there");
            prop_assert_eq!(first, files.first_in_file(offset));
            prop_assert_eq!(first.advance((files.position(offset) / UNIT_LEN) as u64), offset);
            prop_assert!(first <= offset && offset < files.next_file(offset));
        }
    }
}
