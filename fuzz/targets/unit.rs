//! Units of consume queue files, and the scans and searches over them.

#![no_main]

use kerolox::format::unit::{UNIT_LEN, Unit};
use kerolox::queue::{filler_units, first_at_or_after, log_end, written_units};
use kerolox::types::{PhyOffset, QueueOffset};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let written = written_units(bytes);
    assert!(written * UNIT_LEN <= bytes.len());
    assert!(filler_units(bytes) <= bytes.len() / UNIT_LEN);
    let _ = log_end(&bytes[..written * UNIT_LEN]);
    let unit = |at: QueueOffset| -> Result<Unit, ()> {
        let from = at.0 as usize * UNIT_LEN;
        let bytes = bytes.get(from..from + UNIT_LEN).ok_or(())?;
        let unit = Unit::decode(bytes.first_chunk().ok_or(())?);
        assert_eq!(unit.encode(), *bytes);
        let _ = (unit.is_written(), unit.is_pre_blank(), unit.log_end());
        Ok(unit)
    };
    let range = QueueOffset(0)..QueueOffset(written as u64);
    let wanted = PhyOffset(bytes.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte)));
    let found = first_at_or_after(range, wanted, unit).expect("it asks for written units alone");
    assert!(found.0 <= written as u64);
});
