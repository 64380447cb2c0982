//! Walking all records of a log that may be damaged anywhere: what is whole is found again behind what is not.
//!
//! A record is whole if its form, its checksum and its own position are right; so bytes that were left over, or that a
//! message carries, are never taken for one.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use super::files::{FileEntry, StoreDir};
use super::window::Window;
use crate::format::record::{self, BadRecord, Header, RecordView, peek_header};
use crate::format::unit::Unit;
use crate::store::open_error::{OpenError, io_at};
use crate::types::PhyOffset;

/// What a walk meets, in the order of the log.
pub enum Event<'a> {
    /// A whole record.
    Record(RecordView<'a>),
    /// The filler at the end of a segment.
    Blank { at: u64 },
    /// No record, where one should be: more of the log lies behind.
    Damage(Damage),
    /// A rule that a file breaks.
    Fault { rule: &'static str, path: PathBuf, what: String },
}

/// Bytes of the log that are no whole record.
#[derive(Clone, Debug)]
pub struct Damage {
    pub at: u64,
    pub len: u64,
    /// Which invariant the bytes break.
    pub rule: &'static str,
    pub why: String,
}

impl Damage {
    pub fn end(&self) -> u64 {
        self.at.saturating_add(self.len)
    }
}

/// What a walk has found out.
#[derive(Debug, Default)]
pub struct Walked {
    /// Behind the last whole record, or the start of the segment behind the last blank.
    pub end: u64,
    /// What stands behind the end, up to the last byte that is not zero.
    pub tail: Option<Damage>,
    /// Bytes that the disk did not give.
    pub unreadable_len: u64,
}

enum Bad {
    Form(BadRecord),
    Crc,
    Elsewhere(PhyOffset),
}

impl Bad {
    fn rule(&self) -> &'static str {
        match self {
            Bad::Form(BadRecord::Length { .. }) => "I5",
            Bad::Form(_) => "I2",
            Bad::Crc => "I6",
            Bad::Elsewhere(_) => "I4",
        }
    }
}

impl fmt::Display for Bad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bad::Form(BadRecord::Magic { found: 0 }) => f.write_str("zeros"),
            Bad::Form(why) => why.fmt(f),
            Bad::Crc => f.write_str("the body does not match its CRC"),
            Bad::Elsewhere(says) => write!(f, "the record says that it lies at {says}"),
        }
    }
}

/// Walks the log from its oldest segment to its end. `progress` is told the bytes done, of how many.
///
/// # Errors
/// A file that cannot be opened; what cannot be read in it is damage.
pub fn walk(
    dir: &StoreDir,
    segment_len: u64,
    progress: &mut dyn FnMut(u64, u64),
    on: &mut dyn FnMut(Event<'_>),
) -> Result<Walked, OpenError> {
    let commitlog = dir.layout.commitlog();
    let total = dir.log_len();
    let mut walked = Walked { end: dir.log_min(), ..Walked::default() };
    let last = last_with_records(dir)?;
    let (mut done, mut expected) = (0, None);
    for (index, file) in dir.segments.iter().enumerate() {
        let path = file.path(&commitlog);
        let mut fault = |rule, what: String| on(Event::Fault { rule, path: path.clone(), what });
        if let Some(expected) = expected.filter(|expected| *expected != file.start) {
            fault("I1", format!("the segment that should start at {expected} is missing"));
        }
        if file.len != segment_len && !(file.len == 0 && index + 1 == dir.segments.len()) {
            fault("I1", format!("{} bytes long, the others have {segment_len}", file.len));
        }
        if file.start % segment_len != 0 {
            fault("I1", format!("no segment of {segment_len} bytes starts there"));
        }
        expected = Some(file.start.saturating_add(segment_len));
        let mut window = Window::open(&path).map_err(io_at(&path))?;
        if last.is_none_or(|last| index > last) {
            // Made ahead and not used, or all that it held is gone.
            if let Some(at) = window.first_nonzero(0) {
                let tail = walked.tail.get_or_insert(Damage {
                    at: file.start + at,
                    len: 0,
                    rule: "I2",
                    why: "bytes behind the end of the log".into(),
                });
                tail.len = file.end() - tail.at;
            }
        } else {
            let mut at = 0;
            let is_last = last == Some(index);
            while let Some(next) = step(&mut window, file, at, is_last, &mut walked, on) {
                at = next;
                progress(done + at, total);
            }
        }
        walked.unreadable_len += window.unreadable().iter().map(|range| range.end - range.start).sum::<u64>();
        done += file.len;
        progress(done, total);
    }
    Ok(walked)
}

/// Takes what stands at `at`; gives where to go on in this segment.
fn step(
    window: &mut Window,
    file: &FileEntry,
    at: u64,
    is_last: bool,
    walked: &mut Walked,
    on: &mut dyn FnMut(Event<'_>),
) -> Option<u64> {
    let left = file.len - at;
    let here = file.start + at;
    let path = window.path().to_owned();
    let fault = |what: String| Event::Fault { rule: "I3", path, what };
    if left < record::BLANK_LEN as u64 {
        on(fault(format!("its records leave {left} bytes at the end, no blank fits there")));
        walked.end = file.end();
        return None;
    }
    if let Ok(Header::Blank { total_len }) = peek_header(window.get(at, record::BLANK_LEN as u64)) {
        if u64::from(total_len) != left {
            on(fault(format!("the blank at physical offset {here} says {total_len} bytes, {left} are left")));
        }
        on(Event::Blank { at: here });
        walked.end = file.end();
        return None;
    }
    let bad = match whole_at(window, file.start, at) {
        Ok(view) => {
            let next = at + u64::from(view.total_len());
            on(Event::Record(view));
            walked.end = file.start + next;
            return Some(next);
        }
        Err(bad) => bad,
    };
    let damage = |len| Damage { at: here, len, rule: bad.rule(), why: bad.to_string() };
    if let Some(next) = find(window, file, at + 1) {
        on(Event::Damage(damage(next - at)));
        return Some(next);
    }
    if !is_last {
        on(Event::Damage(damage(left)));
        walked.end = file.end();
        return None;
    }
    walked.end = here;
    if window.first_nonzero(at).is_some() {
        walked.tail = Some(damage(left));
    }
    None
}

/// The record at `at`, if it is whole and belongs there.
fn whole_at(window: &mut Window, start: u64, at: u64) -> Result<RecordView<'_>, Bad> {
    let left = window.len().saturating_sub(at);
    let len = match peek_header(window.get(at, record::BLANK_LEN as u64)).map_err(Bad::Form)? {
        Header::Record { total_len } if u64::from(total_len) <= left => total_len,
        Header::Record { total_len } => {
            return Err(Bad::Form(BadRecord::Truncated { need: total_len, have: left as usize }));
        }
        Header::Blank { .. } => return Err(Bad::Form(BadRecord::Magic { found: record::MAGIC_BLANK })),
        Header::Zero => return Err(Bad::Form(BadRecord::Magic { found: 0 })),
    };
    // First of all: what is no record here may claim any length, and is not read to that.
    match record::peek_phy(window.get(at, u64::from(record::RECORD_LEN_MIN))) {
        Some(phy) if phy.0 != start + at => return Err(Bad::Elsewhere(phy)),
        _ => {}
    }
    let view = RecordView::parse(window.get(at, u64::from(len))).map_err(Bad::Form)?;
    if !view.check_crc() {
        return Err(Bad::Crc);
    }
    Ok(view)
}

/// The first whole record, or the segment's blank, at or behind `from`.
fn find(window: &mut Window, file: &FileEntry, from: u64) -> Option<u64> {
    const MAGIC_AT: u64 = 4;
    const BLANK: [u8; 4] = record::MAGIC_BLANK.to_be_bytes();
    const RECORDS: [[u8; 4]; 2] = [record::MAGIC_V1.to_be_bytes(), record::MAGIC_V2.to_be_bytes()];
    for range in window.written(from) {
        // The first bytes of a record's length are zeros: they may lie in a block that was never written.
        let mut at = range.start.saturating_sub(MAGIC_AT).max(from);
        while at < range.end {
            let ahead = window.ahead(at, record::BLANK_LEN as u64);
            let Some(found) = ahead.get(MAGIC_AT as usize..).and_then(|b| memchr::memchr2(RECORDS[0][0], BLANK[0], b))
            else {
                at += (ahead.len() as u64).saturating_sub(MAGIC_AT).max(1);
                continue;
            };
            at += found as u64;
            let head = window.get(at, record::BLANK_LEN as u64);
            if let Some((len, magic)) = head.first_chunk::<4>().zip(head.get(4..8)) {
                let left = file.len - at;
                let is_blank = magic == BLANK && u64::from(u32::from_be_bytes(*len)) == left;
                let is_record = RECORDS.iter().any(|known| magic == known);
                if is_blank || (is_record && whole_at(window, file.start, at).is_ok()) {
                    return Some(at);
                }
            }
            at += 1;
        }
    }
    None
}

/// The newest segment in which anything whole is left.
fn last_with_records(dir: &StoreDir) -> Result<Option<usize>, OpenError> {
    let commitlog = dir.layout.commitlog();
    for (index, file) in dir.segments.iter().enumerate().rev() {
        let path = file.path(&commitlog);
        let mut window = Window::open(&path).map_err(io_at(&path))?;
        if find(&mut window, file, 0).is_some() {
            return Ok(Some(index));
        }
    }
    Ok(None)
}

/// Where a log begins and ends.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ends {
    /// Behind the newest whole record.
    pub end: u64,
    pub first_stored_at: Option<i64>,
    pub last_stored_at: Option<i64>,
}

/// Reads the first record and those of the newest segment that has any.
///
/// # Errors
/// A file that cannot be opened.
pub fn ends(dir: &StoreDir) -> Result<Ends, OpenError> {
    let commitlog = dir.layout.commitlog();
    let mut ends = Ends { end: dir.log_min(), ..Ends::default() };
    let Some(last) = last_with_records(dir)? else { return Ok(ends) };
    for file in &dir.segments {
        let path = file.path(&commitlog);
        let mut window = Window::open(&path).map_err(io_at(&path))?;
        if let Some(at) = find(&mut window, file, 0)
            && let Ok(view) = whole_at(&mut window, file.start, at)
        {
            ends.first_stored_at = Some(view.store_timestamp().0);
            break;
        }
    }
    let file = &dir.segments[last];
    let path = file.path(&commitlog);
    let mut window = Window::open(&path).map_err(io_at(&path))?;
    let (mut at, mut walked) = (0, Walked { end: file.start, ..Walked::default() });
    let mut on = |event: Event<'_>| {
        if let Event::Record(view) = event {
            ends.last_stored_at = Some(view.store_timestamp().0);
        }
    };
    while let Some(next) = step(&mut window, file, at, true, &mut walked, &mut on) {
        at = next;
    }
    ends.end = walked.end;
    Ok(ends)
}

/// Single records, anywhere in the log.
pub struct RecordReader<'a> {
    dir: &'a StoreDir,
    /// The segment that was read last.
    open: Option<(FileEntry, File)>,
    bytes: Vec<u8>,
}

impl<'a> RecordReader<'a> {
    pub fn new(dir: &'a StoreDir) -> RecordReader<'a> {
        RecordReader { dir, open: None, bytes: Vec::new() }
    }

    /// The record that a unit leads to, if one of that size stands there; its checksum is not looked at.
    pub fn at_unit(&mut self, unit: &Unit) -> io::Result<Option<RecordView<'_>>> {
        self.at(unit.phy.0, u64::from(unit.len)).map(|view| view.filter(|view| view.total_len() == unit.len))
    }

    fn at(&mut self, phy: u64, len: u64) -> io::Result<Option<RecordView<'_>>> {
        let segments = &self.dir.segments;
        let Some(index) = segments.partition_point(|file| file.start <= phy).checked_sub(1) else { return Ok(None) };
        let file = segments[index];
        if phy.checked_add(len).is_none_or(|end| end > file.end()) {
            return Ok(None);
        }
        if self.open.as_ref().is_none_or(|(known, _)| *known != file) {
            self.open = Some((file, File::open(file.path(&self.dir.layout.commitlog()))?));
        }
        let (_, open) = self.open.as_ref().expect("it was just opened");
        // At most a segment, as was checked.
        self.bytes.resize(len as usize, 0);
        open.read_exact_at(&mut self.bytes, phy - file.start)?;
        Ok(RecordView::parse(&self.bytes).ok().filter(|view| view.phy().0 == phy))
    }
}
