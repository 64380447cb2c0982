//! `kerolox/quarantine/`: copies of what a recovery found damaged or cut off, and `list.json`, which says what each is
//! (rules R2, R5 and R18). Java never looks at it.
//!
//! A damaged region stays in the log as it is and is stepped over: by the next recovery, and by readers, whose units of
//! lost messages hold the region's place and length (rule R4). What was cut is in the copy alone.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::layout::Layout;
use super::open_error::{OpenError, io_at};
use crate::format::names;
use crate::format::unit::Unit;
use crate::io::{Segment, disk, fsync_dir, now, read_if_present, replace_keeping_old, written_ranges};
use crate::types::{PhyOffset, TagsCode};

/// What became of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A tail that was zeroed in the log.
    Cut,
    /// Still in the log, and stepped over.
    Damaged,
}

/// One copied region of the log; it lies in one segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Region {
    /// Physical offset of its first byte.
    pub phy: u64,
    /// Bytes.
    pub len: u64,
    /// What was found there.
    pub why: String,
    pub kind: Kind,
    /// Name of the copy in the folder.
    pub copy: String,
    /// When it was copied, ms since the epoch.
    pub at: i64,
}

impl Region {
    pub fn start(&self) -> PhyOffset {
        PhyOffset(self.phy)
    }

    pub fn end(&self) -> PhyOffset {
        PhyOffset(self.phy.saturating_add(self.len))
    }

    pub fn is_damaged(&self) -> bool {
        self.kind == Kind::Damaged
    }

    /// What the queue slot of a message holds that was lost here.
    pub fn unit(&self) -> Unit {
        region_unit(self.start(), self.end())
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Cut => "cut",
            Kind::Damaged => "damaged",
        })
    }
}

/// What the queue slot of a message holds that was lost in this region.
pub fn region_unit(start: PhyOffset, end: PhyOffset) -> Unit {
    // One less than a filler unit has, which would be taken for one at the start of the log.
    let len = end.since(start).min(i32::MAX as u64 - 1) as u32;
    Unit { phy: start, len, tags: TagsCode(0) }
}

/// Every region on the list, in the order of the log; none if there is no list. Blocking.
///
/// # Errors
/// A list that cannot be read, beside a predecessor that cannot be read either.
pub fn list(layout: &Layout) -> Result<Vec<Region>, OpenError> {
    let path = layout.quarantine_list();
    let mut bak = path.as_os_str().to_owned();
    bak.push(names::BACKUP_SUFFIX);
    let mut unreadable = None;
    for candidate in [path.clone(), PathBuf::from(bak)] {
        let Some(bytes) = read_if_present(&candidate).map_err(io_at(&candidate))? else { continue };
        match serde_json::from_slice::<Vec<Region>>(&bytes) {
            Ok(mut regions) => {
                regions.sort_by_key(|region| region.phy);
                return Ok(regions);
            }
            Err(error) => {
                tracing::warn!(path = %candidate.display(), %error, "unreadable");
                unreadable.get_or_insert(error.to_string());
            }
        }
    }
    match unreadable {
        Some(why) => Err(OpenError::Config { path, why }),
        None => Ok(Vec::new()),
    }
}

/// Writes the list. Blocking.
pub fn save(layout: &Layout, regions: &[Region]) -> Result<(), OpenError> {
    let path = layout.quarantine_list();
    let bytes = serde_json::to_vec_pretty(regions).expect("numbers and text serialise");
    replace_keeping_old(&path, &bytes).map_err(io_at(&path))
}

/// Are there copies, and no list that says what they are?
pub fn lacks_list(layout: &Layout) -> Result<bool, OpenError> {
    let dir = layout.quarantine();
    let has_copies = match std::fs::read_dir(&dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => false,
        entries => entries.map_err(io_at(&dir))?.next().is_some(),
    };
    Ok(has_copies && !layout.quarantine_list().exists())
}

/// Copies the region's bytes into a file of their own, which is on stable storage with its name when this returns: an
/// earlier copy of the same place stays. Blocking.
pub fn copy(layout: &Layout, segment: &Segment, region: (PhyOffset, u64), why: &str, kind: Kind) -> io::Result<Region> {
    let (start, len) = region;
    let dir = layout.quarantine();
    disk::make_folders(&dir)?;
    let mut number = 0;
    let (name, path, file) = loop {
        let name = match number {
            0 => names::segment_name(start.0),
            _ => format!("{}.{number}", names::segment_name(start.0)),
        };
        let path = dir.join(&name);
        match disk::create_new(&path) {
            Ok(file) => break (name, path, file),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
            Err(error) => return Err(error),
        }
    };
    // As sparse as the log is there: whole segments of zeros may be damaged.
    disk::resize(&file, &path, len)?;
    let from = start.since(segment.start());
    for (at, len) in nonzero_ranges(segment, from, from + len)? {
        disk::write_at(&file, &path, &segment.bytes()[at as usize..(at + len) as usize], at - from)?;
    }
    disk::sync(&file, &path)?;
    fsync_dir(&dir)?;
    fsync_dir(&layout.own())?;
    Ok(Region { phy: start.0, len, why: why.to_owned(), kind, copy: name, at: now().0 })
}

/// Does the log still hold at this region what was copied? Not if somebody restored the file. Blocking.
pub fn is_as_copied(layout: &Layout, segments: &[Arc<Segment>], region: &Region) -> io::Result<bool> {
    let segment = segments.iter().find(|segment| segment.start() <= region.start() && region.end() <= segment.end());
    let (Some(segment), Ok(len)) = (segment, usize::try_from(region.len)) else { return Ok(false) };
    let Some(bytes) = segment.slice(region.start(), len) else { return Ok(false) };
    // The list is ours, but what stands in it names a file: never one elsewhere.
    if region.copy.contains('/') {
        return Ok(false);
    }
    let copy = match File::open(layout.quarantine().join(&region.copy)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        opened => opened?,
    };
    if copy.metadata()?.len() != region.len {
        return Ok(false);
    }
    let mut part = vec![0; len.min(1 << 20)];
    for (number, bytes) in bytes.chunks(1 << 20).enumerate() {
        copy.read_exact_at(&mut part[..bytes.len()], (number as u64) << 20)?;
        if part[..bytes.len()] != *bytes {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The ranges (at, len) of the segment between two of its bytes that hold anything but zeros, as page-sized runs;
/// reserved, unwritten blocks are stepped over.
pub fn nonzero_ranges(segment: &Segment, from: u64, to: u64) -> io::Result<Vec<(u64, u64)>> {
    const PAGE: u64 = 4096;
    let file = File::open(segment.path())?;
    let bytes = segment.bytes();
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for (at, len) in written_ranges(&file, from, to.min(bytes.len() as u64))? {
        let (mut at, written_end) = (at, at + len);
        while at < written_end {
            let end = (at / PAGE * PAGE + PAGE).min(written_end);
            if bytes[at as usize..end as usize].iter().any(|byte| *byte != 0) {
                match ranges.last_mut() {
                    Some((start, len)) if *start + *len == at => *len = end - *start,
                    _ => ranges.push((at, end - at)),
                }
            }
            at = end;
        }
    }
    Ok(ranges)
}

/// Where the log is damaged, for readers. Found when the store is opened; it does not change while the node runs.
#[derive(Debug, Default)]
pub struct DamagedRegions {
    /// Start and end, ascending.
    regions: Vec<(PhyOffset, PhyOffset)>,
}

impl DamagedRegions {
    /// Those of the list that lie at or behind `log_min`.
    pub fn new(listed: &[Region], log_min: PhyOffset) -> DamagedRegions {
        let damaged = listed.iter().filter(|region| region.is_damaged() && region.end() > log_min);
        let mut regions: Vec<_> = damaged.map(|region| (region.start(), region.end())).collect();
        regions.sort_unstable();
        DamagedRegions { regions }
    }

    /// The end of the region that holds this position, if one does.
    pub fn end_behind(&self, phy: PhyOffset) -> Option<PhyOffset> {
        if self.regions.is_empty() {
            return None;
        }
        let at = self.regions.partition_point(|(start, _)| *start <= phy).checked_sub(1)?;
        Some(self.regions[at].1).filter(|end| phy < *end)
    }

    pub fn count(&self) -> usize {
        self.regions.len()
    }

    /// Bytes of all of them.
    pub fn len(&self) -> u64 {
        self.regions.iter().map(|(start, end)| end.since(*start)).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(phy: u64, len: u64, kind: Kind) -> Region {
        Region { phy, len, why: "torn".to_owned(), kind, copy: names::segment_name(phy), at: 7 }
    }

    #[test]
    fn the_list_reads_back_and_falls_back_to_its_predecessor() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path());
        assert_eq!(list(&layout).unwrap(), []);
        assert!(!lacks_list(&layout).unwrap());
        let first = vec![region(4096, 100, Kind::Damaged)];
        save(&layout, &first).unwrap();
        let text = std::fs::read_to_string(layout.quarantine_list()).unwrap();
        for field in ["\"phy\": 4096", "\"len\": 100", "\"kind\": \"damaged\"", "\"copy\": \"00000000000000004096\""] {
            assert!(text.contains(field), "{text}");
        }
        save(&layout, &[]).unwrap();
        assert_eq!(list(&layout).unwrap(), []);
        std::fs::write(layout.quarantine_list(), "[{").unwrap();
        assert_eq!(list(&layout).unwrap(), first);
        std::fs::write(layout.quarantine().join("list.json.bak"), "[{").unwrap();
        let error = list(&layout).unwrap_err().to_string();
        assert!(error.contains("list.json") && error.contains("no readable .bak"), "{error}");
    }

    #[test]
    fn readers_are_told_the_end_of_the_region_that_they_are_in() {
        let listed = [
            region(500, 100, Kind::Damaged),
            region(100, 50, Kind::Damaged),
            region(0, 10, Kind::Damaged),
            region(300, 100, Kind::Cut),
        ];
        let damaged = DamagedRegions::new(&listed, PhyOffset(50));
        assert_eq!((damaged.count(), damaged.len()), (2, 150));
        for (phy, end) in [(5, None), (99, None), (100, Some(150)), (149, Some(150)), (150, None), (350, None)] {
            assert_eq!(damaged.end_behind(PhyOffset(phy)), end.map(PhyOffset), "{phy}");
        }
        assert_eq!(damaged.end_behind(PhyOffset(599)), Some(PhyOffset(600)));
        assert_eq!(damaged.end_behind(PhyOffset(600)), None);
    }

    #[test]
    fn a_unit_of_a_region_is_never_a_filler() {
        assert!(!region_unit(PhyOffset(0), PhyOffset(1 << 40)).is_pre_blank());
        assert!(region_unit(PhyOffset(0), PhyOffset(1 << 40)).is_written());
    }
}
