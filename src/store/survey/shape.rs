//! Which sizes a store was written with, told from its files.

use std::collections::HashMap;

use super::files::StoreDir;
use super::window::Window;
use crate::format::index_file::{
    HEADER_LEN, IndexHeader, IndexUnit, SLOT_LEN, SLOTS_DEFAULT, UNIT_LEN, UNITS_DEFAULT, file_len, slot_at, slot_of,
    unit_at,
};

/// Units of an index file that are looked at to tell how many slots it has.
const PROBED_UNITS: u32 = 64;

/// Slots and entries of index files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexShape {
    pub slots: u32,
    pub entries: u32,
}

/// What somebody says about sizes that the files do not tell.
#[derive(Clone, Copy, Debug, Default)]
pub struct ShapeHints {
    pub index_slots: Option<u32>,
    pub index_entries: Option<u32>,
}

/// Sizes of a store's files; none where there is no file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    pub segment_len: Option<u64>,
    pub queue_file_len: Option<u64>,
    /// None too if no number of slots makes sense of what the files hold.
    pub index: Option<IndexShape>,
}

impl Shape {
    /// The lengths that most files have, and the numbers of index slots and entries that go with what these hold.
    pub fn of(dir: &StoreDir, hints: ShapeHints) -> Shape {
        let queue_files = dir.queues.iter().flat_map(|queue| &queue.files);
        Shape {
            segment_len: most_frequent(dir.segments.iter().map(|file| file.len)),
            queue_file_len: most_frequent(queue_files.map(|file| file.len)),
            index: index_shape(dir, hints),
        }
    }
}

fn most_frequent(lens: impl Iterator<Item = u64>) -> Option<u64> {
    let mut counts: HashMap<u64, u64> = HashMap::new();
    for len in lens.filter(|len| *len > 0) {
        *counts.entry(len).or_default() += 1;
    }
    counts.into_iter().max_by_key(|(len, count)| (*count, *len)).map(|(len, _)| len)
}

/// A file does not say how many slots it has. The defaults, Java's ratio of one to four, and then every other number of
/// slots that the length allows are held against the entries.
fn index_shape(dir: &StoreDir, hints: ShapeHints) -> Option<IndexShape> {
    let Some(len) = most_frequent(dir.index_files.iter().map(|(_, len)| *len)) else {
        // Nothing to hold them against: both together say how files are to be made.
        return hints.index_slots.zip(hints.index_entries).map(|(slots, entries)| IndexShape { slots, entries });
    };
    let words = len.checked_sub(HEADER_LEN as u64).filter(|rest| rest % SLOT_LEN as u64 == 0)? / SLOT_LEN as u64;
    let words_a_unit = (UNIT_LEN / SLOT_LEN) as u64;
    let of_slots = |slots: u64| {
        let entries = words.checked_sub(slots)? / words_a_unit;
        let shape = IndexShape { slots: u32::try_from(slots).ok()?, entries: u32::try_from(entries).ok()? };
        let fits = shape.slots > 0 && shape.entries > 1 && file_len(shape.slots, shape.entries) == len;
        fits.then_some(shape)
    };
    let of_entries = |entries: u64| of_slots(words.checked_sub(entries.checked_mul(words_a_unit)?)?);
    if let Some(slots) = hints.index_slots {
        return of_slots(slots.into()).filter(|shape| hints.index_entries.is_none_or(|n| n == shape.entries));
    }
    if let Some(entries) = hints.index_entries {
        return of_entries(entries.into());
    }
    let usual: Vec<_> =
        [of_slots(SLOTS_DEFAULT.into()).filter(|shape| shape.entries == UNITS_DEFAULT), of_slots(words / 21)]
            .into_iter()
            .flatten()
            .collect();
    // The file with the most entries tells most; without any entry nothing depends on it.
    let mut probe: Option<Probe> = None;
    for (name, _) in dir.index_files.iter().filter(|(_, found)| *found == len) {
        let Ok(mut window) = Window::open(&dir.layout.index().join(name)) else { continue };
        let Some(header) = window.get(0, HEADER_LEN as u64).first_chunk().map(IndexHeader::decode) else { continue };
        if probe.as_ref().is_none_or(|known| known.header.next_unit < header.next_unit) {
            probe = Some(Probe { window, header });
        }
    }
    let mut probe = probe?;
    if probe.header.next_unit <= 1 {
        return usual.first().copied();
    }
    let fitting = usual.iter().copied().find(|shape| probe.fits(*shape, true));
    fitting
        .or_else(|| (2..=words / words_a_unit).filter_map(of_entries).find(|shape| probe.fits(*shape, true)))
        // The header and the slots may be what is damaged.
        .or_else(|| usual.iter().copied().find(|shape| probe.fits(*shape, false)))
}

struct Probe {
    window: Window,
    header: IndexHeader,
}

impl Probe {
    /// Do the first entries make sense with so many slots, and (`whole`) the last and the slots too?
    fn fits(&mut self, shape: IndexShape, whole: bool) -> bool {
        let last = self.header.next_unit - 1;
        if last >= shape.entries {
            return false;
        }
        // The cheapest first: it rules nearly all numbers out.
        let Some(first) = self.unit(shape, 1) else { return false };
        if (first.phy, first.previous, first.seconds) != (self.header.begin_phy, 0, 0) || first.key.0 < 0 {
            return false;
        }
        if whole && self.unit(shape, last).is_none_or(|unit| unit.phy != self.header.end_phy) {
            return false;
        }
        let mut heads: HashMap<u32, u32> = HashMap::new();
        for number in 1..=last.min(PROBED_UNITS) {
            let Some(unit) = self.unit(shape, number).filter(|unit| unit.key.0 >= 0) else { return false };
            let slot = slot_of(unit.key, shape.slots);
            if unit.previous != heads.insert(slot, number).unwrap_or(0) {
                return false;
            }
        }
        !whole
            || heads.into_iter().all(|(slot, least)| {
                let head =
                    self.window.get(slot_at(slot), SLOT_LEN as u64).first_chunk().map(|b| u32::from_be_bytes(*b));
                head.is_some_and(|head| (least..=last).contains(&head))
            })
    }

    fn unit(&mut self, shape: IndexShape, number: u32) -> Option<IndexUnit> {
        let bytes = self.window.get(unit_at(shape.slots, number), UNIT_LEN as u64);
        bytes.first_chunk().map(IndexUnit::decode)
    }
}
