//! The log's tail: cut off behind its end, and brought onto stable storage before it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use super::super::layout::Layout;
use super::super::open_error::{OpenError, io_at};
use super::super::opening::Opening;
use super::super::quarantine::{self, Kind, Region, nonzero_ranges};
use crate::io::{Segment, disk, written_ranges};
use crate::types::PhyOffset;

/// Zeroes everything behind the log's end (rule R3) and syncs. What is not zero is copied to quarantine first, and put on
/// the list.
pub fn cut_tail(
    layout: &Layout,
    segments: &[Arc<Segment>],
    end: PhyOffset,
    list: &mut Vec<Region>,
    opening: &Opening,
) -> Result<(), OpenError> {
    for segment in segments.iter().filter(|segment| segment.end() > end) {
        opening.step()?;
        let path = segment.path();
        if segment.is_broken() {
            zero_unreadable(segment, end).map_err(io_at(path))?;
        }
        let from = end.max(segment.start()).since(segment.start());
        let stale = nonzero_ranges(segment, from, segment.bytes().len() as u64).map_err(io_at(path))?;
        if stale.is_empty() {
            continue;
        }
        for (at, len) in &stale {
            let phy = segment.start().advance(*at);
            let listed = list.iter().find(|region| (region.kind, region.start(), region.len) == (Kind::Cut, phy, *len));
            if let Some(listed) = listed
                && quarantine::is_as_copied(layout, segments, listed).map_err(io_at(path))?
            {
                // A recovery was killed between the copy and the cut.
                continue;
            }
            let why = format!("behind the end of the log at {end}");
            let region =
                quarantine::copy(layout, segment, (phy, *len), &why, Kind::Cut).map_err(io_at(&layout.quarantine()))?;
            tracing::warn!(path = %path.display(), phy_offset = %phy, len, copy = %region.copy, "cut");
            list.push(region);
        }
        // The copies and the list have to be there for good before the originals go.
        quarantine::save(layout, list)?;
        let file = disk::open_to_write(path).map_err(io_at(path))?;
        let zeros = vec![0u8; 64 * 1024];
        for (at, len) in stale {
            let mut done = 0;
            while done < len {
                let part = (len - done).min(zeros.len() as u64);
                disk::write_at(&file, path, &zeros[..part as usize], at + done).map_err(io_at(path))?;
                done += part;
            }
        }
        disk::sync(&file, path).map_err(io_at(path))?;
    }
    Ok(())
}

/// Writes zeros over the blocks at and behind the log's end that the disk does not give. They read as zeros before this, and
/// a disk takes most of such blocks back once they are written; an append that has to read one first would fail.
fn zero_unreadable(segment: &Segment, end: PhyOffset) -> io::Result<()> {
    const BLOCK: usize = 4096;
    let (path, len) = (segment.path(), segment.bytes().len() as u64);
    let (file, read) = (disk::open_to_write(path)?, File::open(path)?);
    let from = end.max(segment.start()).since(segment.start()) / BLOCK as u64 * BLOCK as u64;
    let mut block = [0; BLOCK];
    for (at, len) in written_ranges(&read, from, len)? {
        for at in (at..at + len).step_by(BLOCK) {
            let part = BLOCK.min((segment.end().since(segment.start()) - at) as usize);
            if read.read_exact_at(&mut block[..part], at).is_err() {
                tracing::warn!(path = %path.display(), at, len = part, "unreadable behind the end of the log; zeroed");
                block.fill(0);
                disk::write_at(&file, path, &block[..part], at)?;
            }
        }
    }
    disk::sync(&file, path)
}

/// Brings what the scan found from `from` on onto stable storage. What a killed process wrote may be in the page cache
/// alone, and from now on it counts as flushed.
pub fn sync_segments(
    segments: &[Arc<Segment>],
    from: PhyOffset,
    end: PhyOffset,
    opening: &Opening,
) -> Result<(), OpenError> {
    for segment in segments.iter().filter(|segment| segment.end() > from && segment.start() < end) {
        opening.step()?;
        let path = segment.path();
        disk::sync_path(path).map_err(io_at(path))?;
    }
    Ok(())
}
