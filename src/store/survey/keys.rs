//! The index held against the log, in one pass beside it: entries are in the order of the log, so each record's keys
//! must come next, and each entry must have its record.

use std::collections::HashSet;

use super::files::StoreDir;
use super::report::{Level, Report};
use super::shape::IndexShape;
use super::window::Window;
use crate::format::index_file::{
    HEADER_LEN, IndexHeader, IndexUnit, SLOT_LEN, UNIT_LEN, file_len, slot_at, slot_of, unit_at,
};
use crate::types::{KeyHash, PhyOffset, Timestamp};

/// An index file that is being read.
struct Open {
    name: String,
    window: Window,
    header: IndexHeader,
    /// Number of the entry that was read last.
    number: u32,
    /// What each slot should hold after that entry.
    heads: Vec<u32>,
    last: Option<IndexUnit>,
    is_newest: bool,
}

/// The entries of all index files, in order.
pub struct KeyCheck<'a> {
    dir: &'a StoreDir,
    shape: IndexShape,
    names: std::vec::IntoIter<String>,
    open: Option<Open>,
    /// The next entry that no record has claimed, and its file's begin.
    next: Option<(IndexUnit, Timestamp)>,
    /// Position of the oldest entry: older records are not in the index any more.
    begin: Option<u64>,
    newest_phy: PhyOffset,
    /// Messages behind the last entry, and the first of them.
    behind: u64,
    first_behind: u64,
    full_ends: HashSet<i64>,
    begin_time: Option<Timestamp>,
    pub entries: u64,
    pub repeated: u64,
}

impl<'a> KeyCheck<'a> {
    pub fn new(dir: &'a StoreDir, shape: IndexShape, report: &mut Report) -> KeyCheck<'a> {
        let expected = file_len(shape.slots, shape.entries);
        let mut names = Vec::new();
        for (name, len) in &dir.index_files {
            let path = dir.layout.index().join(name);
            if *len == expected {
                names.push(name.clone());
            } else if *len > 0 {
                report.error("I13", path.display(), format!("{len} bytes long, the others have {expected}"));
            }
        }
        let mut check = KeyCheck {
            dir,
            shape,
            names: names.into_iter(),
            open: None,
            next: None,
            begin: None,
            newest_phy: PhyOffset(0),
            behind: 0,
            first_behind: 0,
            full_ends: HashSet::new(),
            begin_time: None,
            entries: 0,
            repeated: 0,
        };
        check.advance(report);
        check.begin = check.next.map(|(unit, _)| unit.phy.0);
        check
    }

    /// Is there any entry?
    pub fn has_entries(&self) -> bool {
        self.begin.is_some()
    }

    /// May the checkpoint name this time as the end of a full file? Files older than the oldest may have expired.
    pub fn may_be_full_end(&self, time: Timestamp) -> bool {
        self.full_ends.contains(&time.0) || self.begin_time.is_none_or(|begin| time <= begin)
    }

    /// Where an entry whose record is not met leads: for regions that are known to be damaged.
    pub fn stray_before(
        &mut self,
        phy: u64,
        report: &mut Report,
        mut explain: impl FnMut(&mut Report, PhyOffset) -> bool,
    ) {
        while let Some((unit, _)) = self.next.filter(|(unit, _)| unit.phy.0 < phy) {
            let is_expired = unit.phy.0 < self.dir.log_min();
            if !is_expired && !explain(report, unit.phy) {
                let what = format!("an entry leads to {}, where no message with that key is", unit.phy);
                report.error("I14", self.place(), what);
            }
            self.advance(report);
        }
    }

    /// Checks the keys of the next record. `is_retired`: of a topic that was deleted, which need not be in the index.
    pub fn record(
        &mut self,
        phy: PhyOffset,
        stored_at: Timestamp,
        keys: &[KeyHash],
        is_retired: bool,
        report: &mut Report,
    ) {
        let mut missing: Vec<KeyHash> = keys.to_vec();
        while let Some((unit, begin)) = self.next.filter(|(unit, _)| unit.phy == phy) {
            match missing.iter().position(|key| *key == unit.key) {
                Some(found) => drop(missing.swap_remove(found)),
                None if keys.contains(&unit.key) => self.repeated += 1,
                None => {
                    let what = format!("an entry leads to {phy}, whose message does not have that key");
                    report.error("I14", self.place(), what);
                }
            }
            let seconds = if begin.0 == 0 { 0 } else { stored_at.0.saturating_sub(begin.0) / 1000 };
            if i64::from(unit.seconds) != seconds.clamp(0, i32::MAX.into()) {
                let what = format!(
                    "the entry of {phy} says {} s from the file's begin, the message {seconds} s",
                    unit.seconds
                );
                report.error("I13", self.place(), what);
            }
            self.advance(report);
        }
        if missing.is_empty() || is_retired || self.begin.is_none_or(|begin| phy.0 < begin) {
            return;
        }
        if self.next.is_none() {
            if self.behind == 0 {
                self.first_behind = phy.0;
            }
            self.behind += 1;
        } else {
            let what = format!("{} of its {} keys are not in the index", missing.len(), keys.len());
            report.error("I14", format!("physical offset {phy}"), what);
        }
    }

    /// The log is over: whatever entries are left lead behind it, and messages behind the last entry are missing.
    pub fn finish(&mut self, end: u64, report: &mut Report) {
        self.stray_before(end, report, |_, _| false);
        // The next start cuts and completes the end of the index, if it knows that it must.
        let level = if self.dir.unclean { Level::Warning } else { Level::Error };
        while let Some((unit, _)) = self.next {
            let what = format!("an entry leads to {}, the log ends at {end}", unit.phy);
            report.note(level, "I18", self.place(), what);
            self.advance(report);
        }
        if self.behind > 0 {
            let what = format!(
                "{} messages from physical offset {} on are not in the index, which ends at {}",
                self.behind, self.first_behind, self.newest_phy
            );
            report.note(level, "I14", self.dir.layout.index().display(), what);
        }
    }

    fn place(&self) -> String {
        match &self.open {
            Some(open) => format!("{} entry {}", self.dir.layout.index().join(&open.name).display(), open.number),
            None => self.dir.layout.index().display().to_string(),
        }
    }

    /// Reads the next entry, in this file or the next, checking it by itself (I13).
    fn advance(&mut self, report: &mut Report) {
        self.next = None;
        loop {
            if self.open.is_none() {
                match self.names.next() {
                    Some(name) => self.open_file(name, report),
                    None => return,
                }
            }
            let shape = self.shape;
            let Some(open) = &mut self.open else { continue };
            if open.number + 1 < open.header.next_unit.min(shape.entries) {
                open.number += 1;
                let at = unit_at(shape.slots, open.number);
                let Some(unit) = open.window.get(at, UNIT_LEN as u64).first_chunk().map(IndexUnit::decode) else {
                    self.close_file(report);
                    continue;
                };
                self.entries += 1;
                self.check(unit, report);
                let begin = self.open.as_ref().map_or(Timestamp(0), |open| open.header.begin);
                // What goes back would be taken for a stray again and again; it was reported.
                if unit.phy >= self.newest_phy {
                    self.newest_phy = unit.phy;
                    self.next = Some((unit, begin));
                    return;
                }
            } else {
                self.close_file(report);
            }
        }
    }

    fn open_file(&mut self, name: String, report: &mut Report) {
        let path = self.dir.layout.index().join(&name);
        let opened = Window::open(&path).map(|mut window| {
            let header = window.get(0, HEADER_LEN as u64).first_chunk().map(IndexHeader::decode);
            (window, header)
        });
        let (window, header) = match opened {
            Ok((window, Some(header))) => (window, header),
            Ok((_, None)) => return report.error("I13", path.display(), "too short for a header"),
            Err(error) => return report.error("I13", path.display(), error.to_string()),
        };
        if header.next_unit > self.shape.entries {
            let what = format!("counts {} entries, {} fit", header.next_unit - 1, self.shape.entries - 1);
            report.error("I13", path.display(), what);
        }
        if header.next_unit > 1 {
            self.begin_time.get_or_insert(header.begin);
        }
        if header.next_unit >= self.shape.entries {
            self.full_ends.insert(header.end.0);
        }
        let heads = vec![0; self.shape.slots as usize];
        let is_newest = self.names.as_slice().is_empty();
        self.open = Some(Open { name, window, header, number: 0, heads, last: None, is_newest });
    }

    fn check(&mut self, unit: IndexUnit, report: &mut Report) {
        let (slots, newest_phy) = (self.shape.slots, self.newest_phy);
        let place = self.place();
        let level = self.level();
        let open = self.open.as_mut().expect("an entry is of an open file");
        if unit.key.0 < 0 || unit.seconds < 0 {
            report.note(level, "I13", &place, format!("negative key or time: {unit:?}"));
        }
        if unit.phy < newest_phy {
            let what = format!("leads to {}, an entry before it to {newest_phy}", unit.phy);
            report.note(level, "I13", &place, what);
        }
        let head = &mut open.heads[slot_of(KeyHash(unit.key.0.max(0)), slots) as usize];
        if unit.previous != *head {
            let what = format!("says that {} is before it in its slot, that is {head}", unit.previous);
            report.note(level, "I13", &place, what);
        }
        *head = open.number;
        open.last = Some(unit);
    }

    /// How bad it is if this file is wrong in itself: after an unclean stop the next start repairs the newest.
    fn level(&self) -> Level {
        let is_repaired = self.dir.unclean && self.open.as_ref().is_some_and(|open| open.is_newest);
        if is_repaired { Level::Warning } else { Level::Error }
    }

    /// Compares slots and header with what the entries say.
    fn close_file(&mut self, report: &mut Report) {
        let level = self.level();
        let Some(mut open) = self.open.take() else { return };
        let place = self.dir.layout.index().join(&open.name).display().to_string();
        let mut wrong = 0;
        for slot in 0..self.shape.slots {
            let found = open.window.get(slot_at(slot), SLOT_LEN as u64).first_chunk().map(|b| u32::from_be_bytes(*b));
            let expected = open.heads[slot as usize];
            let found = found.unwrap_or(0);
            if found != expected {
                wrong += 1;
                if wrong == 1 {
                    let what = format!("slot {slot} holds entry {found}, its newest is {expected}");
                    report.note(level, "I13", &place, what);
                }
            }
        }
        if wrong > 1 {
            report.note(level, "I13", &place, format!("{wrong} slots hold another entry than their newest"));
        }
        if let Some(last) = open.last.filter(|last| last.phy != open.header.end_phy) {
            let what = format!("its header ends at {}, its last entry leads to {}", open.header.end_phy, last.phy);
            report.note(level, "I13", &place, what);
        }
    }
}
