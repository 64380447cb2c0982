//! Index files: looking keys up, repair after a crash, cutting, and putting more in.

#![no_main]

use kerolox::format::index_file;
use kerolox::index::{IndexFile, IndexFileMut, cut_from, repair};
use kerolox::types::{KeyHash, PhyOffset, Timestamp};
use libfuzzer_sys::fuzz_target;

const SLOTS: u32 = 7;
const UNITS: u32 = 12;

fuzz_target!(|bytes: &[u8]| {
    let mut file = bytes.to_vec();
    file.resize(index_file::file_len(SLOTS, UNITS) as usize, 0);
    look(&file);
    let cut_at = PhyOffset(bytes.first().map_or(0, |byte| u64::from(*byte) << 4));

    let repaired = repair(&mut file, SLOTS, UNITS);
    look(&file);
    assert!(repaired.kept < UNITS);
    let mut again = file.clone();
    assert!(repair(&mut again, SLOTS, UNITS).is_clean(), "a second repair finds nothing to do");
    assert_eq!(file, again);

    cut_from(&mut file, SLOTS, UNITS, cut_at);
    look(&file);
    let index = IndexFile::open(&file, SLOTS, UNITS).expect("of the right length");
    for key in 0..=20 {
        for phy in find(&index, KeyHash(key)) {
            assert!(phy < cut_at, "cut entries are not found");
        }
    }
    let header = index.header();
    let mut index = IndexFileMut::open(&mut file, SLOTS, UNITS).expect("of the right length");
    let phy = header.end_phy.max(PhyOffset(1 << 40));
    let stored_at = header.end.max(header.begin).max(Timestamp(1));
    if index.put(KeyHash(5), phy, stored_at).is_ok() {
        assert!(index.reader().holds(KeyHash(5), phy), "what was put is found");
    }
});

fn look(file: &[u8]) {
    let index = IndexFile::open(file, SLOTS, UNITS).expect("of the right length");
    for key in [0, 1, 5, 6, i32::MAX] {
        assert!(find(&index, KeyHash(key)).len() <= UNITS as usize);
        let _ = index.holds(KeyHash(key), PhyOffset(0));
    }
}

fn find(index: &IndexFile<&[u8]>, key: KeyHash) -> Vec<PhyOffset> {
    let mut found = Vec::new();
    index.find(key, Timestamp(0), Timestamp(i64::MAX), 64, &mut found);
    found
}
