//! Setting a file right: after a crash, and when the log's end moves down.

use crate::format::index_file::{IndexHeader, IndexUnit, UNIT_LEN};
use crate::index::file::IndexFileMut;
use crate::types::{PhyOffset, Timestamp};

/// What a repair found and did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repaired {
    /// Entries that are in the file now.
    pub kept: u32,
    /// Entries that the header counted but that were not whole, or came behind such a one.
    pub dropped: u32,
    /// Slots that pointed elsewhere than to their newest entry.
    pub slots_rewritten: u32,
}

impl Repaired {
    /// Whether the file was found in order.
    pub fn is_clean(&self) -> bool {
        Repaired { kept: 0, ..*self } == Repaired::default()
    }
}

/// Builds the slots of the file anew from its units, after a stop that was not clean.
///
/// Units are trusted in their order up to the first that cannot have been written whole; it and all behind it are
/// dropped, for the caller to put in again from the log. What it cannot tell is a unit that lies across two pages
/// of which one never reached the disk, if what is left happens to fit: that one key is not found. Takes memory for
/// one number a slot, and reads every unit; writes only what is wrong. Killed in the middle, it can be run again.
///
/// Panics if `bytes` are no whole file with so many slots and units, which the caller has seen to.
pub fn repair(bytes: &mut [u8], slots: u32, units: u32) -> Repaired {
    let mut file = IndexFileMut::open(bytes, slots, units).expect("an index file of the configured length");
    let shape = file.shape();
    let next_unit = file.reader().next_unit();
    let mut repaired = Repaired::default();
    let mut heads = vec![0_u32; shape.slots() as usize];
    let mut last: Option<IndexUnit> = None;
    for number in 1..next_unit {
        let unit = file.reader().unit(number);
        let least_phy = last.map_or(file.reader().header().begin_phy, |last| last.phy);
        if !could_be_put(&unit, least_phy) {
            break;
        }
        let head = &mut heads[shape.slot_of(unit.key) as usize];
        if unit.previous != *head {
            break;
        }
        *head = number;
        last = Some(unit);
        repaired.kept = number;
    }
    repaired.dropped = next_unit - 1 - repaired.kept;

    let slots_used = heads.iter().filter(|head| **head != 0).count() as u32;
    file.end_with(last, repaired.kept, slots_used);
    for (slot, head) in (0..).zip(heads) {
        if file.reader().slot(slot) != head {
            file.write_slot(slot, head);
            repaired.slots_rewritten += 1;
        }
    }
    repaired
}

/// Drops the entries of records at `phy` and behind it, since the log ends there now; gives back how many. The file
/// must be in order: after a crash, [`repair`] comes first.
///
/// Panics if `bytes` are no whole file with so many slots and units, which the caller has seen to.
pub fn cut_from(bytes: &mut [u8], slots: u32, units: u32, phy: PhyOffset) -> u32 {
    let mut file = IndexFileMut::open(bytes, slots, units).expect("an index file of the configured length");
    let next_unit = file.reader().next_unit();
    let kept = file.entries_below(phy, next_unit);
    let dropped = next_unit - 1 - kept;
    if dropped == 0 {
        return 0;
    }
    let last = (kept > 0).then(|| file.reader().unit(kept));
    let mut slots_used = file.reader().header().slots_used;
    // From the newest on, so that each slot ends up at the newest of those that stay.
    for number in (kept + 1..next_unit).rev() {
        let unit = file.reader().unit(number);
        let previous = if unit.previous < number { unit.previous } else { 0 };
        file.write_slot(file.shape().slot_of(unit.key), previous);
        slots_used = slots_used.saturating_sub(u32::from(previous == 0));
    }
    file.end_with(last, kept, slots_used);
    dropped
}

impl IndexFileMut<'_> {
    /// How many entries, from the first, are of records before `phy`.
    fn entries_below(&self, phy: PhyOffset, next_unit: u32) -> u32 {
        let (mut below, mut beyond) = (0, next_unit);
        while beyond - below > 1 {
            let middle = below + (beyond - below) / 2;
            if self.reader().unit(middle).phy < phy {
                below = middle;
            } else {
                beyond = middle;
            }
        }
        below
    }

    /// Writes the header of a file whose last entry is `last`, of this number. Where entries were dropped, the end time
    /// is taken from that entry, which knows it to the second only: rounded up, so that no search passes the file by.
    fn end_with(&mut self, last: Option<IndexUnit>, kept: u32, slots_used: u32) {
        let header = self.reader().header();
        let ended = match last {
            None => IndexHeader::EMPTY,
            Some(last) => {
                let latest = header.begin.plus_ms(i64::from(last.seconds) * 1000 + 999);
                let is_last = kept + 1 == header.next_unit && last.phy == header.end_phy;
                let end: Timestamp = if is_last { header.end } else { header.end.min(latest) };
                IndexHeader { end, end_phy: last.phy, slots_used, next_unit: kept + 1, ..header }
            }
        };
        if ended != header {
            self.write_header(&ended);
        }
    }
}

/// Whether a unit, by itself, can be what a put wrote; `least_phy` is that of the unit before.
fn could_be_put(unit: &IndexUnit, least_phy: PhyOffset) -> bool {
    // A unit of zeros is one that never reached the disk; as an entry it would stand for a record at the very start of
    // the log with a key hash of 0, which putting it in again makes good.
    *unit != IndexUnit::decode(&[0; UNIT_LEN])
        && unit.key.0 >= 0
        && unit.seconds >= 0
        && (least_phy..=PhyOffset(i64::MAX as u64)).contains(&unit.phy)
}

#[cfg(test)]
mod tests;
