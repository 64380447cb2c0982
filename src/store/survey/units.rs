//! Consume queues as files: one look at each by itself, and single units by queue offset.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use super::files::{FileEntry, QueueEntry, StoreDir};
use super::window::Window;
use crate::format::unit::{UNIT_LEN, Unit};
use crate::store::quarantine::Region;
use crate::types::{PhyOffset, TagsCode};

const UNIT: u64 = UNIT_LEN as u64;
/// Bytes of a queue file read at once: most queues are short.
const PIECE_LEN: u64 = 64 * 1024;
/// Units kept by a reader.
const KEPT: u64 = 128;

/// What a queue's files hold.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueueScan {
    /// Queue offset of the first unit in the files.
    pub first: u64,
    /// The first unit of a message that the log still has; `end` if there is none.
    pub min: u64,
    /// Behind the last unit.
    pub end: u64,
    /// The last unit, if there is any that is no filler.
    pub last: Option<Unit>,
    /// Units from `min` on that lead to a quarantined region.
    pub quarantined: u64,
}

/// Is this what may stand in the first slot of a file, behind a unit that leads to a message, for an offset that a Java broker
/// skipped (J22)? Its zeros, or what a recovery puts there: the unit before.
pub fn is_phantom(unit: &Unit, before: Option<&Unit>) -> bool {
    before.is_some_and(|before| unit == before || *unit == Unit { phy: PhyOffset(0), len: 0, tags: TagsCode(0) })
}

/// Reads all units of a queue once. `fault` hears what breaks a rule (I9, I11, I12); `known` the regions that units lead to.
///
/// # Errors
/// A file that cannot be opened.
pub fn scan(
    dir: &StoreDir,
    queue: &QueueEntry,
    file_len: u64,
    regions: &[Region],
    fault: &mut dyn FnMut(&'static str, PathBuf, String),
    known: &mut dyn FnMut(usize),
) -> Result<QueueScan, (PathBuf, io::Error)> {
    let folder = dir.queue_dir(&queue.key);
    let log_min = dir.log_min();
    let mut scan = QueueScan::default();
    let mut expected = None;
    let mut ended = false;
    let mut has_min = false;
    for file in &queue.files {
        let path = file.path(&folder);
        if file.len == 0 && queue.files.last() == Some(file) {
            continue;
        }
        if file.len != file_len || file.start % file_len != 0 {
            let what = format!("{} bytes long, consume queue files of this store have {file_len}", file.len);
            fault("I9", path.clone(), what);
            if file.start % UNIT != 0 {
                continue;
            }
        }
        match expected {
            None => (scan.first, scan.end) = (file.start / UNIT, file.start / UNIT),
            Some(expected) if expected == file.start => {}
            Some(expected) => {
                fault("I9", path.clone(), format!("the file that should start at byte {expected} is missing"));
                if !ended {
                    scan.end = file.start / UNIT;
                }
            }
        }
        expected = Some(file.end());
        let mut window = Window::of_pieces(&path, PIECE_LEN).map_err(|error| (path.clone(), error))?;
        if window.first_nonzero(0).is_none() {
            // Made ahead: nothing in it.
            ended = true;
            continue;
        }
        let mut at = 0;
        while !ended && at + UNIT <= file.len {
            let Some(unit) = window.get(at, UNIT).first_chunk().map(Unit::decode) else { break };
            let offset = (file.start + at) / UNIT;
            let is_phantom = at == 0 && is_phantom(&unit, scan.last.as_ref());
            if !unit.is_written() {
                let next = window.get(UNIT, UNIT).first_chunk().map(Unit::decode);
                if !is_phantom
                    || !next.is_some_and(|next| next.is_written() && scan.last.is_some_and(|last| next.phy > last.phy))
                {
                    ended = true;
                    break;
                }
                scan.end = offset + 1;
                at += UNIT;
                continue;
            }
            let region = region_of(regions, &unit);
            if unit.is_pre_blank() {
                if let Some(last) = scan.last {
                    fault("I9", path.clone(), format!("a filler unit at {offset}, behind the unit of {}", last.phy));
                }
            } else {
                if let Some(last) = scan.last
                    && (unit.phy < last.phy || (unit.phy == last.phy && region.is_none() && !is_phantom))
                {
                    let what = format!("unit {offset} leads to {}, the one before it to {}", unit.phy, last.phy);
                    fault("I11", path.clone(), what);
                }
                scan.last = Some(unit);
                if !has_min && unit.phy.0 >= log_min {
                    (scan.min, has_min) = (offset, true);
                }
                if let Some(region) = region.filter(|_| has_min) {
                    scan.quarantined += 1;
                    known(region);
                }
            }
            scan.end = offset + 1;
            at += UNIT;
        }
        if ended && let Some(stale) = window.first_nonzero(at) {
            let what = format!("bytes that are not zero at {stale}, behind the end of the queue at byte {at}");
            fault("I12", path.clone(), what);
        }
    }
    if !has_min {
        scan.min = scan.end;
    }
    Ok(scan)
}

/// The quarantined region that a unit leads to.
pub fn region_of(regions: &[Region], unit: &Unit) -> Option<usize> {
    let index = regions.partition_point(|region| region.phy < unit.phy.0);
    regions[index..]
        .iter()
        .take_while(|region| region.phy == unit.phy.0)
        .position(|region| region.is_damaged() && region.unit().len == unit.len)
        .map(|found| index + found)
}

/// Single units of one queue, in whatever order; keeps a few and no open file.
#[derive(Debug)]
pub struct UnitReader {
    folder: PathBuf,
    files: Vec<FileEntry>,
    kept_from: u64,
    kept: Vec<u8>,
}

impl UnitReader {
    /// Reads the files of a folder, wherever it is.
    pub fn of_folder(folder: PathBuf, files: Vec<FileEntry>) -> UnitReader {
        UnitReader { folder, files, kept_from: 0, kept: Vec::new() }
    }

    pub fn new(dir: &StoreDir, queue: &QueueEntry) -> UnitReader {
        UnitReader::of_folder(dir.queue_dir(&queue.key), queue.files.clone())
    }

    /// The queue offset of the first unit that the files have room for, and that behind the last written one: found by
    /// bisection, so right for queues that are in order.
    pub fn ends(&mut self) -> io::Result<std::ops::Range<u64>> {
        let Some(first) = self.files.first().map(|file| file.start / UNIT) else { return Ok(0..0) };
        // The newest file that holds anything.
        for file in self.files.clone().iter().rev() {
            let (mut low, mut high) = (file.start / UNIT, file.end() / UNIT);
            if !self.unit(low)?.is_some_and(|unit| unit.is_written()) {
                continue;
            }
            while low < high {
                let middle = low + (high - low) / 2;
                match self.unit(middle)?.filter(Unit::is_written) {
                    Some(_) => low = middle + 1,
                    None => high = middle,
                }
            }
            return Ok(first..low);
        }
        Ok(first..first)
    }

    /// What stands at this queue offset, written or not; nothing if no file reaches there.
    pub fn unit(&mut self, offset: u64) -> io::Result<Option<Unit>> {
        let Some(at) = offset.checked_mul(UNIT) else { return Ok(None) };
        if at < self.kept_from || at + UNIT > self.kept_from + self.kept.len() as u64 {
            let Some(index) = self.files.partition_point(|file| file.start <= at).checked_sub(1) else {
                return Ok(None);
            };
            let file = self.files[index];
            if at + UNIT > file.end() {
                return Ok(None);
            }
            self.kept_from = at;
            self.kept.resize((KEPT * UNIT).min(file.end() - at) as usize, 0);
            File::open(file.path(&self.folder))?.read_exact_at(&mut self.kept, at - file.start)?;
        }
        let from = (at - self.kept_from) as usize;
        Ok(self.kept[from..].first_chunk().map(Unit::decode))
    }
}
