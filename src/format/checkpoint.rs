//! The `checkpoint` file: up to which times the parts of the store were on disk.
//!
//! | at | size | field          | meaning                                                       |
//! |---:|-----:|----------------|---------------------------------------------------------------|
//! |  0 |    8 | physic         | store time up to which the commit log was flushed             |
//! |  8 |    8 | logics         | store time up to which the consume queues were built          |
//! | 16 |    8 | index          | end time of the newest index file that was full and flushed   |
//! | 24 |    8 | master flushed | flushed offset of the master, on a slave only                 |
//! | 32 |    8 | confirm        | where the last recovery ended                                 |
//! | 40 | 4056 | –              | zero                                                          |
//!
//! Big-endian, one page. Source: store.md 1.3.

use crate::format::fixed;
use crate::types::Timestamp;

/// Bytes of the file.
pub const CHECKPOINT_LEN: usize = 4096;
const PHYSIC_AT: usize = 0;
const LOGICS_AT: usize = 8;
const INDEX_AT: usize = 16;
const MASTER_FLUSHED_AT: usize = 24;
const CONFIRM_AT: usize = 32;
const USED_LEN: usize = 40;
const _: () = assert!(CONFIRM_AT + size_of::<u64>() == USED_LEN);

/// How far before the saved times a scan starts: a margin for times that were saved ahead of their data.
const MARGIN_MS: i64 = 3000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// Store time up to which the commit log was flushed. 0 after a short run; that is normal.
    pub physic: Timestamp,
    /// Store time up to which the consume queues were built; in a Java store it may run ahead of them.
    pub logics: Timestamp,
    /// End time of the newest index file that was full and flushed; 0 until there is one.
    pub index: Timestamp,
    /// Flushed offset of the master, on a slave only.
    pub master_flushed: u64,
    /// Where the last recovery ended.
    pub confirm: u64,
}

impl Checkpoint {
    pub fn encode(&self) -> [u8; CHECKPOINT_LEN] {
        let mut page = [0; CHECKPOINT_LEN];
        page[PHYSIC_AT..LOGICS_AT].copy_from_slice(&self.physic.0.to_be_bytes());
        page[LOGICS_AT..INDEX_AT].copy_from_slice(&self.logics.0.to_be_bytes());
        page[INDEX_AT..MASTER_FLUSHED_AT].copy_from_slice(&self.index.0.to_be_bytes());
        page[MASTER_FLUSHED_AT..CONFIRM_AT].copy_from_slice(&self.master_flushed.to_be_bytes());
        page[CONFIRM_AT..USED_LEN].copy_from_slice(&self.confirm.to_be_bytes());
        page
    }

    /// None if `bytes` are too few to hold the fields; a longer or shorter rest does not matter.
    pub fn decode(bytes: &[u8]) -> Option<Checkpoint> {
        let bytes = bytes.get(..USED_LEN)?;
        Some(Checkpoint {
            physic: Timestamp(i64::from_be_bytes(fixed(bytes, PHYSIC_AT))),
            logics: Timestamp(i64::from_be_bytes(fixed(bytes, LOGICS_AT))),
            index: Timestamp(i64::from_be_bytes(fixed(bytes, INDEX_AT))),
            master_flushed: u64::from_be_bytes(fixed(bytes, MASTER_FLUSHED_AT)),
            confirm: u64::from_be_bytes(fixed(bytes, CONFIRM_AT)),
        })
    }

    /// Records stored up to here were flushed and built when the file was written: where a scan after a crash starts.
    pub fn min_timestamp(&self) -> Timestamp {
        Timestamp(self.physic.min(self.logics).plus_ms(-MARGIN_MS).0.max(0))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_example_has_javas_bytes() {
        let time = Timestamp(1_700_000_000_123);
        let checkpoint = Checkpoint { physic: time, logics: time, confirm: 4096, ..Checkpoint::default() };
        let page = checkpoint.encode();
        assert_eq!(page[..8], [0, 0, 0x01, 0x8b, 0xcf, 0xe5, 0x68, 0x7b]);
        assert_eq!(page[8..16], page[..8]);
        assert_eq!(page[32..40], [0, 0, 0, 0, 0, 0, 0x10, 0]);
        assert!(page[16..32].iter().chain(&page[40..]).all(|byte| *byte == 0));
        assert_eq!(Checkpoint::decode(&page), Some(checkpoint));
        assert_eq!(checkpoint.min_timestamp(), Timestamp(1_699_999_997_123));
    }

    #[test]
    fn the_smaller_time_less_a_margin_bounds_the_scan_and_is_never_negative() {
        let at = |physic, logics| {
            let times = Checkpoint { physic: Timestamp(physic), logics: Timestamp(logics), ..Checkpoint::default() };
            times.min_timestamp().0
        };
        assert_eq!(at(10_000, 50_000), 7_000);
        assert_eq!(at(50_000, 10_000), 7_000);
        assert_eq!(at(0, 50_000), 0);
        assert_eq!(at(i64::MIN, 1), 0);
    }

    #[test]
    fn a_page_that_java_wrote_decodes_and_encodes_back() {
        let page = include_bytes!("../../tests/golden/java-clean/checkpoint");
        let checkpoint = Checkpoint::decode(page).expect("a whole page");
        assert_eq!(checkpoint.physic, Timestamp(0));
        assert_eq!(checkpoint.logics, Timestamp(0x1a2_2877_187a));
        assert_eq!(checkpoint.encode(), *page);
    }

    #[test]
    fn a_torn_page_is_no_checkpoint() {
        assert_eq!(Checkpoint::decode(&[1; 39]), None);
        assert_eq!(Checkpoint::decode(&[]), None);
    }

    proptest! {
        #[test]
        fn any_page_start_decodes_and_encodes_back(bytes: [u8; USED_LEN]) {
            let checkpoint = Checkpoint::decode(&bytes).expect("enough bytes");
            let _ = checkpoint.min_timestamp();
            prop_assert_eq!(&checkpoint.encode()[..USED_LEN], &bytes[..]);
        }
    }
}
