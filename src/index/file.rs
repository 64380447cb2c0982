//! Put and find.

use std::fmt;
use std::sync::atomic::{Ordering, fence};

use crate::format::index_file::{
    BEGIN_AT, BEGIN_PHY_AT, END_AT, END_PHY_AT, HEADER_LEN, IndexHeader, IndexUnit, NEXT_UNIT_AT, SLOT_LEN,
    SLOTS_USED_AT, UNIT_LEN, file_len, slot_at, slot_of, unit_at,
};
use crate::types::{KeyHash, PhyOffset, Timestamp};

const MS_PER_SECOND: i64 = 1000;

/// How many slots and units a file has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IndexShape {
    slots: u32,
    units: u32,
}

impl IndexShape {
    /// The shape of a file that is `len` bytes long, as it should be with so many slots and units. Panics if those are
    /// none, or more than Java's signed numbers count: no checked configuration has them.
    fn of_file(len: usize, slots: u32, units: u32) -> Result<IndexShape, WrongLength> {
        let most = i32::MAX as u32;
        assert!((1..=most).contains(&slots) && (2..=most).contains(&units), "{slots} slots and {units} units");
        let (found, expected) = (len as u64, file_len(slots, units));
        if found == expected { Ok(IndexShape { slots, units }) } else { Err(WrongLength { found, expected }) }
    }

    pub(super) fn slots(self) -> u32 {
        self.slots
    }

    pub(super) fn slot_of(self, key: KeyHash) -> u32 {
        slot_of(key, self.slots)
    }

    pub(super) fn slot_at(self, slot: u32) -> usize {
        slot_at(slot) as usize
    }

    pub(super) fn unit_at(self, unit: u32) -> usize {
        unit_at(self.slots, unit) as usize
    }
}

/// A file that was made with other numbers of slots and units, or that was cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrongLength {
    pub found: u64,
    pub expected: u64,
}

impl fmt::Display for WrongLength {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "index file of {} bytes; with the configured slots and units it has {}", self.found, self.expected)
    }
}

impl std::error::Error for WrongLength {}

/// The file holds as many entries as it can: go on in a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// What one put writes, in this order: the unit, the number of it in its slot, the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    number: u32,
    unit: IndexUnit,
    header: IndexHeader,
}

/// Works out a put: `header` is that of the file and `slot` what the key's slot holds. A value that no slot of such a
/// file can hold counts as empty.
///
/// # Errors
/// [`Full`] if there is no unit left.
fn next_entry(
    shape: IndexShape,
    header: &IndexHeader,
    slot: u32,
    key: KeyHash,
    phy: PhyOffset,
    stored_at: Timestamp,
) -> Result<Entry, Full> {
    let number = header.next_unit;
    if number >= shape.units {
        return Err(Full);
    }
    let is_first = number <= 1;
    let begin = if is_first { stored_at } else { header.begin };
    // A begin of 0 means that the file has none (Java's rule).
    let seconds = if begin.0 == 0 { 0 } else { stored_at.0.saturating_sub(begin.0) / MS_PER_SECOND };
    let previous = if slot < number { slot } else { 0 };
    Ok(Entry {
        number,
        unit: IndexUnit { key, phy, seconds: seconds.clamp(0, i64::from(i32::MAX)) as i32, previous },
        header: IndexHeader {
            begin,
            end: stored_at,
            begin_phy: if is_first { phy } else { header.begin_phy },
            end_phy: phy,
            slots_used: header.slots_used.saturating_add(u32::from(previous == 0)),
            next_unit: number + 1,
        },
    })
}

/// Where the bytes of an index file come from: memory, or a read of each field.
pub trait IndexBytes {
    /// The `N` bytes at `at`, which lie in the file. Zeros if they cannot be read, which end any search.
    fn read<const N: usize>(&self, at: usize) -> [u8; N];
}

impl IndexBytes for &[u8] {
    fn read<const N: usize>(&self, at: usize) -> [u8; N] {
        *self[at..].first_chunk().expect("fields lie within a file of checked length")
    }
}

/// An index file to look keys up in.
#[derive(Clone, Copy)]
pub struct IndexFile<B> {
    bytes: B,
    shape: IndexShape,
}

impl<'a> IndexFile<&'a [u8]> {
    /// # Errors
    /// [`WrongLength`] if `bytes` are no whole file with so many slots and units.
    pub fn open(bytes: &'a [u8], slots: u32, units: u32) -> Result<IndexFile<&'a [u8]>, WrongLength> {
        IndexFile::over(bytes, bytes.len(), slots, units)
    }
}

impl<B: IndexBytes> IndexFile<B> {
    /// A file of `len` bytes that come from `bytes`.
    ///
    /// # Errors
    /// [`WrongLength`] if that is no whole file with so many slots and units.
    pub fn over(bytes: B, len: usize, slots: u32, units: u32) -> Result<IndexFile<B>, WrongLength> {
        Ok(IndexFile { bytes, shape: IndexShape::of_file(len, slots, units)? })
    }

    pub fn header(&self) -> IndexHeader {
        IndexHeader::decode(&self.bytes.read::<HEADER_LEN>(0))
    }

    /// Do most of the newest entries lie in the slots of their keys? Almost none do in a file of another shape. Also of
    /// a file without entries.
    pub fn is_linked(&self) -> bool {
        const LOOKED_AT: u32 = 32;
        let next = self.next_unit();
        let newest = next.saturating_sub(LOOKED_AT).max(1)..next;
        let linked = newest.clone().filter(|number| {
            let head = self.slot(self.shape.slot_of(self.unit(*number).key));
            (*number..next).contains(&head)
        });
        newest.is_empty() || linked.count() * 2 > newest.len()
    }

    /// Whether the file has entries stored between `begin` and `end`, both included.
    fn overlaps(&self, begin: Timestamp, end: Timestamp) -> bool {
        let header = self.header();
        header.next_unit > 1 && header.begin <= end && header.end >= begin
    }

    /// Appends to `found`, newest first, where records with a key of this hash lie that were stored between `begin`
    /// and `end` (both included), until `found` holds `max`. Other keys of the same hash come with them.
    ///
    /// A unit knows its time only in whole seconds from the file's begin, so `begin` is rounded down to such a second:
    /// a record is never missed, but one stored up to a second too early may come.
    pub fn find(&self, key: KeyHash, begin: Timestamp, end: Timestamp, max: usize, found: &mut Vec<PhyOffset>) {
        self.find_below(PhyOffset(u64::MAX), key, begin, end, max, found);
    }

    /// As [`IndexFile::find`], but only records before `below`: to go on where an earlier search had enough.
    pub fn find_below(
        &self,
        below: PhyOffset,
        key: KeyHash,
        begin: Timestamp,
        end: Timestamp,
        max: usize,
        found: &mut Vec<PhyOffset>,
    ) {
        if !self.overlaps(begin, end) {
            return;
        }
        let file_begin = self.header().begin.0;
        let whole_seconds = begin.0.saturating_sub(file_begin).div_euclid(MS_PER_SECOND);
        let begin = file_begin.saturating_add(whole_seconds.saturating_mul(MS_PER_SECOND));
        for unit in self.chain(key) {
            if found.len() >= max || unit.seconds < 0 {
                return;
            }
            let stored_at = file_begin.saturating_add(i64::from(unit.seconds) * MS_PER_SECOND);
            if stored_at < begin {
                return;
            }
            if unit.key == key && stored_at <= end.0 && unit.phy < below {
                found.push(unit.phy);
            }
        }
    }

    /// Whether a key of this hash points to `phy`: for putting keys in again without doubling them.
    pub fn holds(&self, key: KeyHash, phy: PhyOffset) -> bool {
        // Entries are in the order of the log, so an older place ends the search.
        self.chain(key).take_while(|unit| unit.phy >= phy).any(|unit| unit.key == key && unit.phy == phy)
    }

    /// The units in the slot of `key`, newest first. Ends at whatever does not lead to an older unit of the file, so it
    /// ends in any file.
    fn chain(&self, key: KeyHash) -> impl Iterator<Item = IndexUnit> {
        // A find beside a put may see the slot's new unit before the header counts it; that unit is whole.
        let newest = self.next_unit().min(self.shape.units - 1);
        let head = Some(self.slot(self.shape.slot_of(key))).filter(|number| (1..=newest).contains(number));
        let mut next = head;
        std::iter::from_fn(move || {
            let number = next?;
            let unit = self.unit(number);
            next = Some(unit.previous).filter(|previous| (1..number).contains(previous));
            Some(unit)
        })
    }

    /// The number of the first entry of a place at or behind `phy`: entries are in the order of the log.
    pub fn first_from(&self, phy: PhyOffset) -> u32 {
        let (mut low, mut high) = (1, self.next_unit().max(1));
        while low < high {
            let middle = low + (high - low) / 2;
            if self.unit(middle).phy < phy { low = middle + 1 } else { high = middle }
        }
        low
    }

    /// Key and place of the entries from `number` (1 is the first) on, in the order in which they were put.
    pub fn entries_from(&self, number: u32) -> impl Iterator<Item = (KeyHash, PhyOffset)> {
        (number.max(1)..self.next_unit()).map(|number| self.unit(number)).map(|unit| (unit.key, unit.phy))
    }

    /// The number of the next entry, and never one beyond the file.
    pub(super) fn next_unit(&self) -> u32 {
        self.header().next_unit.min(self.shape.units)
    }

    pub(super) fn slot(&self, slot: u32) -> u32 {
        u32::from_be_bytes(self.bytes.read::<SLOT_LEN>(self.shape.slot_at(slot)))
    }

    pub(super) fn unit(&self, number: u32) -> IndexUnit {
        IndexUnit::decode(&self.bytes.read::<UNIT_LEN>(self.shape.unit_at(number)))
    }
}

/// The slots and units that a file was made with which is as long with these, but has no entries in their slots; none if
/// it is but damaged. `last_written`: position of its last byte that is not zero, in the newest entry.
pub fn other_shape<B: IndexBytes + Copy>(
    bytes: B,
    len: usize,
    slots: u32,
    units: u32,
    last_written: usize,
) -> Option<(u32, u32)> {
    let file = IndexFile::over(bytes, len, slots, units).ok()?;
    if file.is_linked() {
        return None;
    }
    // How many units further on the newest entry lies than it should; as many more slots there are, five a unit.
    let should = file.shape.unit_at(file.next_unit() - 1) as i64;
    let further = (last_written as i64 - should).div_euclid(UNIT_LEN as i64);
    let slots_a_unit = (UNIT_LEN / SLOT_LEN) as i64;
    let slots = u32::try_from(i64::from(slots) + further * slots_a_unit).ok().filter(|slots| *slots > 0)?;
    let units = u32::try_from(i64::from(units) - further).ok()?;
    IndexFile::over(bytes, len, slots, units).ok().filter(IndexFile::is_linked).map(|_| (slots, units))
}

/// An index file to put keys into. Only one at a time, and no [`IndexFile`] of other threads beside it.
pub struct IndexFileMut<'a> {
    bytes: &'a mut [u8],
    shape: IndexShape,
}

impl<'a> IndexFileMut<'a> {
    /// Makes an empty file of `bytes`, which must be zeros (as a new file is).
    ///
    /// # Errors
    /// [`WrongLength`] if `bytes` are no whole file with so many slots and units.
    pub fn create(bytes: &'a mut [u8], slots: u32, units: u32) -> Result<IndexFileMut<'a>, WrongLength> {
        let mut file = IndexFileMut::open(bytes, slots, units)?;
        file.write_header(&IndexHeader::EMPTY);
        Ok(file)
    }

    /// # Errors
    /// [`WrongLength`] if `bytes` are no whole file with so many slots and units.
    pub fn open(bytes: &'a mut [u8], slots: u32, units: u32) -> Result<IndexFileMut<'a>, WrongLength> {
        let shape = IndexShape::of_file(bytes.len(), slots, units)?;
        Ok(IndexFileMut { bytes, shape })
    }

    pub fn header(&self) -> IndexHeader {
        self.reader().header()
    }

    /// The file, to read.
    pub fn reader(&self) -> IndexFile<&[u8]> {
        IndexFile { bytes: self.bytes, shape: self.shape }
    }

    /// Adds a key. Messages come in the order of the log; those below the header's `end_phy` are in already, and the
    /// caller leaves them out.
    ///
    /// # Errors
    /// [`Full`] if there is no unit left; nothing was written.
    #[inline]
    pub fn put(&mut self, key: KeyHash, phy: PhyOffset, stored_at: Timestamp) -> Result<(), Full> {
        let slot = self.shape.slot_of(key);
        let file = self.reader();
        let entry = next_entry(self.shape, &file.header(), file.slot(slot), key, phy, stored_at)?;
        self.write_unit(entry.number, &entry.unit);
        // In a mapped file each store counts at once, even if the process dies at the next: keep them in order.
        fence(Ordering::Release);
        self.write_slot(slot, entry.number);
        fence(Ordering::Release);
        self.write_header(&entry.header);
        Ok(())
    }

    pub(super) fn shape(&self) -> IndexShape {
        self.shape
    }

    /// One write a field, the count last: until then the new entry is not there.
    pub(super) fn write_header(&mut self, header: &IndexHeader) {
        self.write(BEGIN_AT, &header.begin.0.to_be_bytes());
        self.write(BEGIN_PHY_AT, &header.begin_phy.0.to_be_bytes());
        self.write(END_AT, &header.end.0.to_be_bytes());
        self.write(END_PHY_AT, &header.end_phy.0.to_be_bytes());
        self.write(SLOTS_USED_AT, &header.slots_used.to_be_bytes());
        fence(Ordering::Release);
        self.write(NEXT_UNIT_AT, &header.next_unit.to_be_bytes());
    }

    pub(super) fn write_slot(&mut self, slot: u32, number: u32) {
        self.write(self.shape.slot_at(slot), &number.to_be_bytes());
    }

    pub(super) fn write_unit(&mut self, number: u32, unit: &IndexUnit) {
        self.write(self.shape.unit_at(number), &unit.encode());
    }

    fn write(&mut self, at: usize, field: &[u8]) {
        self.bytes[at..at + field.len()].copy_from_slice(field);
    }
}

#[cfg(test)]
mod tests;
