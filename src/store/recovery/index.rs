//! Giving scanned records a second chance to be in the index (rule R7).

use std::io;
use std::sync::Arc;

use smallvec::SmallVec;

use super::super::index_builder::{index_header, make_file};
use super::super::layout::Layout;
use super::super::open_error::{OpenError, io_at};
use super::super::shared::StoreSettings;
use super::unit_files::invalid;
use crate::format::index_file;
use crate::format::record::{self, RecordView};
use crate::index::{self, Full, IndexFile, IndexFileMut};
use crate::io::{SharedMap, disk, fsync_dir};
use crate::types::{KeyHash, PhyOffset, Timestamp};

/// Puts keys behind those that are there.
pub struct IndexRebuild<'a> {
    layout: &'a Layout,
    settings: &'a StoreSettings,
    files: &'a mut Vec<Arc<SharedMap>>,
    /// Newest message that the index held before the scan.
    indexed_to: Option<PhyOffset>,
    /// The record that was looked at last.
    scanned_to: Option<PhyOffset>,
    /// The entry that comes next: its file, and its number there. None before the first record.
    next: Option<(usize, u32)>,
    /// A file was made since the folder was synced.
    has_new_file: bool,
}

impl<'a> IndexRebuild<'a> {
    pub fn new(
        layout: &'a Layout,
        settings: &'a StoreSettings,
        files: &'a mut Vec<Arc<SharedMap>>,
    ) -> IndexRebuild<'a> {
        IndexRebuild { layout, settings, files, indexed_to: None, scanned_to: None, next: None, has_new_file: false }
    }

    /// Makes ready for a scan, the first or one more.
    pub fn start(&mut self) {
        self.indexed_to = newest_indexed(self.files);
        self.scanned_to = None;
        self.next = None;
    }

    /// Sees to it that the record's keys lead to it.
    pub fn take(&mut self, view: &RecordView<'_>) -> Result<(), OpenError> {
        if !self.settings.index {
            return Ok(());
        }
        let keys = record::key_hashes(view.topic(), view.properties());
        let before = self.scanned_to.replace(view.phy());
        if let Some(to) = self.indexed_to {
            let found = self.next_entries(view.phy())?;
            let mut wanted: SmallVec<[KeyHash; 3]> = keys.clone();
            wanted.sort_unstable();
            if view.phy() <= to && found.as_ref() == Some(&wanted) {
                return Ok(());
            }
            // Not all of the file came to the disk before the end of it did, or the process ended between two keys. From
            // here on the index is built anew.
            if view.phy() <= to || found.is_none() {
                self.cut(before.map_or(view.phy(), |before| before.advance(1)))?;
            }
            self.indexed_to = None;
        }
        for key in keys {
            let failed = OpenError::from_io(self.layout.index());
            self.put_key(key, view.phy(), view.store_timestamp()).map_err(failed)?;
        }
        Ok(())
    }

    /// The keys, in ascending order, of the entries that lead to this record, the next of the scan; none if entries of no
    /// message stand between those of the record before and its own: what was torn on its way to the disk may look like one.
    ///
    /// Entries are in the order of the log, so each is looked at once; that a search comes to them is seen to once a file. A
    /// search for each key would go through all newer messages of that key: for one that every message has, without end.
    fn next_entries(&mut self, phy: PhyOffset) -> Result<Option<SmallVec<[KeyHash; 3]>>, OpenError> {
        let Some(newest) = self.files.len().checked_sub(1) else { return Ok(None) };
        let (mut at, mut number) = match self.next {
            Some(next) => next,
            // What lies before the scan is not looked at.
            None => {
                let ends_before = |file: &Arc<SharedMap>| index_header(file).end_phy < phy;
                let at = self.files.partition_point(ends_before).min(newest);
                self.link(at)?;
                (at, self.index(at)?.first_from(phy))
            }
        };
        let (mut keys, mut strays) = (SmallVec::<[KeyHash; 3]>::new(), 0);
        loop {
            for (key, place) in self.index(at)?.entries_from(number).take_while(|(_, place)| *place <= phy) {
                number += 1;
                if place == phy { keys.push(key) } else { strays += 1 }
            }
            let is_at_end = number >= index_header(&self.files[at]).next_unit.min(self.settings.index_entries);
            if !is_at_end || at == newest {
                break;
            }
            // A message's keys may be divided between a file that they filled and the next.
            (at, number) = (at + 1, 1);
            self.link(at)?;
        }
        self.next = Some((at, number));
        keys.sort_unstable();
        Ok((strays == 0).then_some(keys))
    }

    fn index(&self, at: usize) -> Result<IndexFile<&[u8]>, OpenError> {
        let (file, settings) = (&self.files[at], self.settings);
        IndexFile::open(file.bytes(0, file.len()), settings.index_slots, settings.index_entries)
            .map_err(|error| io_at(file.path())(invalid(error)))
    }

    /// Sees to it that a search comes to every entry of a file. The newest one was set right when it was opened.
    fn link(&self, at: usize) -> Result<(), OpenError> {
        if at + 1 == self.files.len() {
            return Ok(());
        }
        let (file, settings) = (&self.files[at], self.settings);
        set_right(file, settings.index_slots, settings.index_entries)
    }

    fn put_key(&mut self, key: KeyHash, phy: PhyOffset, stored_at: Timestamp) -> io::Result<()> {
        let (slots, units) = (self.settings.index_slots, self.settings.index_entries);
        loop {
            if let Some(file) = self.files.last() {
                let end = index_file::unit_at(slots, index_header(file).next_unit.saturating_add(1).min(units));
                if end > file.reserved() {
                    file.reserve(end + (1 << 20))?;
                }
                // SAFETY: no core runs yet; nobody else looks at the file.
                let bytes = unsafe { file.whole_mut() };
                let mut index = IndexFileMut::open(bytes, slots, units).map_err(invalid)?;
                match index.put(key, phy, stored_at) {
                    Ok(()) => return Ok(()),
                    Err(Full) => {
                        file.sync()?;
                        fsync_dir(&self.layout.index())?;
                        self.has_new_file = false;
                    }
                }
            }
            self.files.push(Arc::new(make_file(&self.layout.index(), slots, units)?));
            self.has_new_file = true;
        }
    }

    pub fn files(&self) -> &[Arc<SharedMap>] {
        self.files
    }

    /// Brings everything put in so far onto stable storage; files before the last were synced when they were full.
    pub fn sync(&mut self) -> Result<(), OpenError> {
        if let Some(last) = self.files.last() {
            last.sync().map_err(io_at(last.path()))?;
        }
        if std::mem::take(&mut self.has_new_file) {
            let dir = self.layout.index();
            fsync_dir(&dir).map_err(io_at(&dir))?;
        }
        Ok(())
    }

    /// Cuts entries of messages behind the last one and at or behind the log's end, and syncs.
    pub fn finish(&mut self, end: PhyOffset) -> Result<(), OpenError> {
        if !self.files.is_empty() {
            let dir = self.layout.index();
            fsync_dir(&dir).map_err(io_at(&dir))?;
        }
        // Nothing was met behind the last record.
        self.cut(self.scanned_to.map_or(end, |last| last.advance(1).min(end)))
    }

    /// Drops the entries of messages at `from` and behind it, and syncs.
    fn cut(&mut self, from: PhyOffset) -> Result<(), OpenError> {
        let (slots, units) = (self.settings.index_slots, self.settings.index_entries);
        while let Some(last) = self.files.last() {
            let used = index_file::unit_at(slots, index_header(last).next_unit.min(units));
            last.reserve(used).map_err(io_at(last.path()))?;
            // SAFETY: no core runs yet; nobody else looks at the file.
            let bytes = unsafe { last.whole_mut() };
            index::cut_from(bytes, slots, units, from);
            zero_unused_entries(last, slots).map_err(io_at(last.path()))?;
            last.sync().map_err(io_at(last.path()))?;
            if index_header(last).next_unit > 1 || self.files.len() == 1 {
                break;
            }
            // A file that came back would pass for an older one.
            let path = last.path().to_owned();
            self.files.pop();
            disk::remove_for_good(&path).map_err(io_at(&path))?;
        }
        Ok(())
    }
}

/// Makes a file of which not all may have come to the disk such that a search comes to all of its entries, as far as they are
/// whole, and ends it there. Reads every entry.
pub fn set_right(file: &SharedMap, slots: u32, units: u32) -> Result<(), OpenError> {
    let used = index_file::unit_at(slots, index_header(file).next_unit.min(units));
    file.reserve(used).map_err(io_at(file.path()))?;
    // SAFETY: no core runs yet; nobody else looks at the file.
    let bytes = unsafe { file.whole_mut() };
    index::repair(bytes, slots, units);
    zero_unused_entries(file, slots).map_err(io_at(file.path()))
}

/// Zeroes what stands behind an index file's last entry (rule R3): after the next crash it would pass for entries that were
/// put there and did not come to the disk.
pub fn zero_unused_entries(file: &SharedMap, slots: u32) -> io::Result<()> {
    let at = index_file::unit_at(slots, index_header(file).next_unit.max(1)) as usize;
    if at < file.len()
        && let Some(stale) = file.last_nonzero(at)?
    {
        file.reserve((stale + 1) as u64)?;
        // SAFETY: no core runs yet; nobody else looks at the file.
        unsafe { file.write(at, &vec![0; stale + 1 - at]) };
    }
    Ok(())
}

/// The place of the newest indexed message.
pub fn newest_indexed(files: &[Arc<SharedMap>]) -> Option<PhyOffset> {
    indexed_files(files).next().map(|file| index_header(file).end_phy)
}

/// The index files that hold entries, newest first: one that was only just made says nothing.
fn indexed_files(files: &[Arc<SharedMap>]) -> impl Iterator<Item = &Arc<SharedMap>> {
    files.iter().rev().filter(|file| index_header(file).next_unit > 1)
}
