//! The reader role, on every shard core: messages by queue offset, by physical offset, by time and by key.
//!
//! Hot reads come straight from read-only views, after a look whether the pages are in memory. Cold ones go through
//! io_uring, at most [`COLD_READS_MAX`] at a time on a core, so that no fault stops it.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};

use bytes::{Bytes, BytesMut};
use smallvec::SmallVec;

use super::index_builder::{IndexBuilder, QUERY_COUNT_MAX};
use super::queues::{QueueView, UnitRun};
use super::shared::Shared;
use super::submit::{LocalWake, Message, PutOutcome, PutRefusal, Submitter};
use crate::format::record::{self, BadRecord, Header, RecordView};
use crate::io::{ReadFile, Segment};
use crate::metrics::Counters;
use crate::queue::{Boundary, Step, TimeSearch};
use crate::types::{PhyOffset, QueueOffset, TagsCode, Timestamp, key_hash, properties};

/// Cold reads under way on one core; more wait in order.
const COLD_READS_MAX: usize = 64;
/// Queries by key under way; each may hold an answer of a whole frame.
const QUERIES_MAX: usize = 4;
/// Open files kept for cold reads on one core.
const COLD_FILES_MAX: usize = 32;
/// Units looked at in one get, at least (store.md 7.1: 16,000 bytes of them).
const SCAN_UNITS: usize = 800;
/// Bytes and messages of one get while the data counts as in memory, and while it does not.
const HOT_LEN_MAX: usize = 262_144;
const HOT_COUNT_MAX: usize = 32;
const COLD_LEN_MAX: usize = 65_536;
const COLD_COUNT_MAX: usize = 8;
/// First read of a record whose length is not known.
const PEEK_LEN: usize = 4096;

/// Why a read by physical offset gives no record.
#[derive(Debug)]
pub enum ReadError {
    /// The position lies before the oldest or behind the newest message.
    OutOfRange {
        phy: PhyOffset,
        min: PhyOffset,
        max: PhyOffset,
    },
    /// There is no record at this position.
    NoRecord {
        phy: PhyOffset,
        why: BadRecord,
    },
    /// A record is there, but it is damaged.
    Damaged {
        phy: PhyOffset,
        path: PathBuf,
    },
    Io {
        path: PathBuf,
        source: io::Error,
    },
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::OutOfRange { phy, min, max } => {
                write!(f, "no message at physical offset {phy}: the log holds {min} to {max}")
            }
            ReadError::NoRecord { phy, why } => write!(f, "no message starts at physical offset {phy}: {why}"),
            ReadError::Damaged { phy, path } => {
                write!(f, "the message at physical offset {phy} in {} is damaged", path.display())
            }
            ReadError::Io { path, source } => write!(f, "{}: {source}", path.display()),
        }
    }
}

impl std::error::Error for ReadError {}

/// Outcome of [`ShardStore::get`], as store.md 7.1 names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GetStatus {
    Found,
    NoMatchedMessage,
    MessageWasRemoving,
    NoMessageInQueue,
    OffsetTooSmall,
    OffsetOverflowOne,
    OffsetOverflowBadly,
    OffsetFoundNull,
    /// The units themselves are not in memory: call [`ShardStore::warm`], then get again.
    UnitsCold,
}

pub struct GetResult {
    pub status: GetStatus,
    pub next_offset: i64,
    pub min_offset: i64,
    pub max_offset: i64,
    pub found: Found,
}

/// Records that were found, not yet copied.
pub struct Found {
    inner: Rc<Inner>,
    pieces: SmallVec<[(PhyOffset, u32); 32]>,
    len: usize,
}

/// Outcome of a lookup by key.
#[derive(Debug)]
pub struct QueryResult {
    pub records: Vec<Vec<u8>>,
    /// Store time and position of the newest indexed message.
    pub last_update: Timestamp,
    pub last_phy: PhyOffset,
}

/// The store as one shard uses it. Cheap to clone; stays on its core.
#[derive(Clone)]
pub struct ShardStore {
    inner: Rc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    submitter: Rc<Submitter>,
    /// On shard 0 only.
    index: Option<Rc<IndexBuilder>>,
    cold: ColdReads,
    queries: Places,
}

impl ShardStore {
    pub fn new(shared: Arc<Shared>, submitter: Rc<Submitter>, index: Option<Rc<IndexBuilder>>) -> ShardStore {
        ShardStore {
            inner: Rc::new(Inner {
                shared,
                submitter,
                index,
                cold: ColdReads::default(),
                queries: Places::new(QUERIES_MAX),
            }),
        }
    }

    /// Hands messages to the writer; see [`Submitter::put`].
    pub fn put(
        &self,
        messages: &[Message<'_>],
        wait: bool,
        done: Box<dyn FnOnce(PutOutcome)>,
    ) -> Result<(), PutRefusal> {
        self.inner.submitter.put(messages, wait, done)
    }

    /// As [`ShardStore::put`], for who can wait.
    pub async fn put_and_wait(&self, messages: &[Message<'_>], wait: bool) -> Result<PutOutcome, PutRefusal> {
        let slot = Rc::new(RefCell::new(None));
        let answered = Rc::new(LocalWake::default());
        let (filled, wake) = (Rc::clone(&slot), Rc::clone(&answered));
        self.put(
            messages,
            wait,
            Box::new(move |outcome| {
                *filled.borrow_mut() = Some(outcome);
                wake.wake();
            }),
        )?;
        answered.wait().await;
        Ok(slot.take().expect("filled before the wake"))
    }

    /// Where this node can be reached, as stored in its records.
    pub fn store_host(&self) -> SocketAddr {
        self.inner.shared.settings.store_host
    }

    /// Does this position count as in memory?
    pub fn in_memory(&self, phy: PhyOffset) -> bool {
        self.inner.shared.in_memory(phy)
    }

    /// Where the message at `offset` lies, if its unit is there.
    pub fn first_phy(&self, queue: &Arc<QueueView>, offset: QueueOffset) -> Option<PhyOffset> {
        queue.units_from(offset).map(|run| run.get(0).phy)
    }

    /// Looks up messages from `offset` on (store.md 7.1); `matches` filters by tags code. Looks at published units in
    /// memory only, and never waits.
    pub fn get(
        &self,
        queue: &Arc<QueueView>,
        offset: i64,
        max_count: i32,
        max_bytes: u32,
        matches: &dyn Fn(TagsCode) -> bool,
    ) -> GetResult {
        let (min, max) = (queue.min().0 as i64, queue.max().0 as i64);
        let mut result = GetResult {
            status: GetStatus::NoMatchedMessage,
            next_offset: offset,
            min_offset: min,
            max_offset: max,
            found: Found { inner: Rc::clone(&self.inner), pieces: SmallVec::new(), len: 0 },
        };
        let bound = |status, next| (status, next);
        let (status, next) = match offset {
            _ if max == 0 => bound(GetStatus::NoMessageInQueue, 0),
            _ if offset < min => bound(GetStatus::OffsetTooSmall, min),
            _ if offset == max => bound(GetStatus::OffsetOverflowOne, offset),
            _ if offset > max => bound(GetStatus::OffsetOverflowBadly, max),
            _ => match queue.units_from(QueueOffset(offset as u64)) {
                Some(run) => return self.scan(&run, offset, max_count, max_bytes, matches, result),
                None => bound(GetStatus::OffsetFoundNull, self.next_file(offset)),
            },
        };
        result.status = status;
        result.next_offset = next;
        result
    }

    fn next_file(&self, offset: i64) -> i64 {
        let units = (self.inner.shared.settings.consumequeue_len / crate::format::unit::UNIT_LEN as u64) as i64;
        offset + units - offset % units
    }

    fn scan(
        &self,
        run: &UnitRun,
        offset: i64,
        max_count: i32,
        max_bytes: u32,
        matches: &dyn Fn(TagsCode) -> bool,
        mut result: GetResult,
    ) -> GetResult {
        let shared = &self.inner.shared;
        let wanted = usize::try_from(max_count).unwrap_or(0).max(1);
        let looked_at = SCAN_UNITS.max(wanted).min(run.len());
        if !run.is_resident(looked_at) {
            result.status = GetStatus::UnitsCold;
            return result;
        }
        let (log_min, confirm) = (shared.segments.min(), shared.confirm());
        let max_bytes = (max_bytes as usize).max(100);
        let mut skip_to: Option<PhyOffset> = None;
        let mut next = offset;
        for index in 0..looked_at {
            let unit = run.get(index);
            let len = unit.len as usize;
            let found = &mut result.found;
            if !found.pieces.is_empty() {
                let (len_max, count_max) = if shared.in_memory(unit.phy) {
                    (HOT_LEN_MAX, HOT_COUNT_MAX)
                } else {
                    (COLD_LEN_MAX, COLD_COUNT_MAX)
                };
                let full = found.pieces.len() >= wanted
                    || found.pieces.len() >= count_max
                    || found.len + len > max_bytes
                    || found.len + len > len_max;
                if full {
                    break;
                }
            }
            next = offset + index as i64 + 1;
            if skip_to.is_some_and(|to| unit.phy < to) {
                continue;
            }
            if !matches(unit.tags) {
                continue;
            }
            if unit.phy < log_min {
                if found.pieces.is_empty() {
                    result.status = GetStatus::MessageWasRemoving;
                }
                let segment_len = shared.segments.segment_len();
                skip_to = Some(unit.phy.segment_start(segment_len).advance(segment_len));
                continue;
            }
            let readable = shared.segments.find(unit.phy).is_some_and(|segment| {
                segment.slice(unit.phy, len).is_some() && unit.phy.advance(u64::from(unit.len)) <= confirm
            });
            if !readable {
                // A damaged unit, or one of a quarantined region: nothing to read there, and the queue goes on behind it.
                tracing::warn!(queue_offset = next - 1, phy_offset = %unit.phy, len, "a unit points to no message; skipped");
                if found.pieces.is_empty() {
                    result.status = GetStatus::MessageWasRemoving;
                }
                continue;
            }
            found.pieces.push((unit.phy, unit.len));
            found.len += len;
            result.status = GetStatus::Found;
        }
        result.next_offset = next;
        result
    }

    /// Brings the units from `offset` on into memory, after [`GetStatus::UnitsCold`].
    pub async fn warm(&self, queue: &Arc<QueueView>, offset: i64) -> Result<(), ReadError> {
        let Some(run) = u64::try_from(offset).ok().and_then(|at| queue.units_from(QueueOffset(at))) else {
            return Ok(());
        };
        let (path, at) = run.place();
        let len = run.len().min(SCAN_UNITS * 4) * crate::format::unit::UNIT_LEN;
        // Reading them through io_uring puts them into the page cache, which the mapping shows.
        self.inner.cold.read(&self.inner.shared.counters, &path.to_owned(), at, len).await.map(|_| ())
    }

    /// The whole, checked record at `phy`.
    pub async fn record_at(&self, phy: PhyOffset) -> Result<Vec<u8>, ReadError> {
        self.inner.record_at(phy).await
    }

    /// Messages with this key, oldest first, as many as `len_max` bytes hold. Only shard 0 has the index; elsewhere nothing
    /// is found. A few queries run at a time, so that their answers take bounded memory; more wait in order.
    pub async fn query(&self, topic: &str, key: &str, max: usize, begin: i64, end: i64, len_max: usize) -> QueryResult {
        let Some(index) = &self.inner.index else {
            return QueryResult { records: Vec::new(), last_update: Default::default(), last_phy: Default::default() };
        };
        let _place = self.inner.queries.enter().await;
        let places = index.find(key_hash(topic, key), max.min(QUERY_COUNT_MAX), begin, end);
        let (last_update, last_phy) = index.newest();
        let (mut records, mut len) = (Vec::new(), 0);
        for phy in places {
            if let Ok(record) = self.record_at(phy).await
                && has_key(&record, topic, key)
            {
                len += record.len();
                if len > len_max {
                    break;
                }
                records.push(record);
            }
            // Records in memory cost no wait, and a CRC each.
            crate::io::yield_if_due().await;
        }
        QueryResult { records, last_update, last_phy }
    }

    /// Queue offset by store time: `upper` false: the first message stored at or after `time`, else the end; true: the
    /// last one stored at or before it, else the begin. Source: store.md 3.3.
    pub async fn offset_by_time(&self, queue: &Arc<QueueView>, time: i64, upper: bool) -> Result<i64, ReadError> {
        let boundary = if upper { Boundary::Upper } else { Boundary::Lower };
        let mut search = TimeSearch::new(queue.min()..queue.max(), Timestamp(time), boundary);
        loop {
            match search.step() {
                Step::Look(offset) => search.tell(self.stored_at(queue, offset).await?),
                Step::Found(offset) => return Ok(offset.0 as i64),
            }
        }
    }

    async fn stored_at(&self, queue: &Arc<QueueView>, offset: QueueOffset) -> Result<Timestamp, ReadError> {
        if queue.units_from(offset).is_some_and(|run| !run.is_resident(1)) {
            self.warm(queue, offset.0 as i64).await?;
        }
        let Some(run) = queue.units_from(offset) else { return Ok(Timestamp(i64::MIN)) };
        let record = self.inner.record_at(run.get(0).phy).await?;
        let view = RecordView::parse(&record).map_err(|why| ReadError::NoRecord { phy: run.get(0).phy, why })?;
        Ok(view.store_timestamp())
    }
}

fn has_key(record: &[u8], topic: &str, key: &str) -> bool {
    let Ok(view) = RecordView::parse(record) else { return false };
    let text = view.properties();
    view.topic() == topic
        && (properties::get(text, properties::UNIQ_KEY) == Some(key)
            || properties::get(text, properties::KEYS).is_some_and(|keys| keys.split(' ').any(|word| word == key)))
}

impl Found {
    pub fn count(&self) -> usize {
        self.pieces.len()
    }

    pub fn total_len(&self) -> usize {
        self.len
    }

    /// Are all records in memory, so that [`Found::copy_to`] does not stop the core? What lies at or behind `tail` is.
    fn is_resident(&self, tail: Option<PhyOffset>) -> bool {
        let segments = &self.inner.shared.segments;
        let mut index = 0;
        while index < self.pieces.len() {
            let first = self.pieces[index].0;
            let Some(segment) = segments.find(first) else { return false };
            let mut end = first;
            while index < self.pieces.len() && self.pieces[index].0 < segment.end() {
                let (phy, len) = self.pieces[index];
                end = phy.advance(u64::from(len));
                index += 1;
            }
            let len = len_in_file(tail, first, end.since(first) as usize);
            if len > 0 && !segment.is_resident(first, len as u64) {
                return false;
            }
        }
        true
    }

    /// Appends the records if all are in memory. `false`: nothing was appended; use [`Found::load`].
    pub fn copy_if_resident(&self, out: &mut BytesMut) -> bool {
        let shared = &self.inner.shared;
        // Looked at once: what leaves the tail meanwhile may not be in the page cache.
        let tail = shared.tail_start();
        if !self.is_resident(tail) {
            return false;
        }
        let start = out.len();
        out.reserve(self.len);
        let mut segment: Option<Arc<Segment>> = None;
        for (phy, len) in &self.pieces {
            if segment.as_ref().is_none_or(|s| *phy < s.start() || *phy >= s.end()) {
                segment = self.inner.shared.segments.find(*phy);
            }
            let in_file = len_in_file(tail, *phy, *len as usize);
            let copied = segment.as_ref().and_then(|s| s.slice(*phy, in_file)).is_some_and(|bytes| {
                out.extend_from_slice(bytes);
                let rest = *len as usize - in_file;
                shared.read_tail(phy.advance(in_file as u64), rest, |bytes| out.extend_from_slice(bytes))
            });
            if !copied {
                out.truncate(start);
                return false;
            }
        }
        true
    }

    /// Reads the records from the disk.
    pub async fn load(self) -> Result<Bytes, ReadError> {
        let shared = &self.inner.shared;
        let mut out = Vec::with_capacity(self.len);
        let mut index = 0;
        while index < self.pieces.len() {
            // Neighbours that one read of at most its maximum covers are read together.
            let first = self.pieces[index].0;
            let Some(segment) = shared.segments.find(first) else {
                let (min, max) = (shared.segments.min(), shared.confirm());
                return Err(ReadError::OutOfRange { phy: first, min, max });
            };
            let mut end = first.advance(u64::from(self.pieces[index].1));
            let mut count = 1;
            while let Some((phy, len)) = self.pieces.get(index + count) {
                let next_end = phy.advance(u64::from(*len));
                if *phy < end || next_end > segment.end() || next_end.since(first) > ReadFile::READ_LEN_MAX as u64 {
                    break;
                }
                end = next_end;
                count += 1;
            }
            let block = self.inner.bytes(&segment, first, end.since(first) as usize).await?;
            for (phy, len) in &self.pieces[index..index + count] {
                let from = phy.since(first) as usize;
                out.extend_from_slice(&block[from..from + *len as usize]);
            }
            index += count;
        }
        Ok(Bytes::from(out))
    }
}

impl Inner {
    async fn record_at(&self, phy: PhyOffset) -> Result<Vec<u8>, ReadError> {
        let (min, max) = (self.shared.segments.min(), self.shared.confirm());
        let segment = match self.shared.segments.find(phy) {
            Some(segment) if phy >= min && phy < max => segment,
            _ => return Err(ReadError::OutOfRange { phy, min, max }),
        };
        // Never look behind what is shown: the bytes there may still change.
        let end = segment.end().min(max);
        let peek_len = PEEK_LEN.min(end.since(phy) as usize);
        let head = self.bytes(&segment, phy, peek_len).await?;
        let no_record = |why| ReadError::NoRecord { phy, why };
        let len = match record::peek_header(&head).map_err(no_record)? {
            Header::Record { total_len } if u64::from(total_len) <= end.since(phy) => total_len as usize,
            Header::Record { total_len } => {
                return Err(no_record(BadRecord::Truncated { need: total_len, have: end.since(phy) as usize }));
            }
            Header::Blank { .. } | Header::Zero => return Err(no_record(BadRecord::TotalLen { found: 0 })),
        };
        let bytes = if len <= head.len() { head[..len].to_vec() } else { self.bytes(&segment, phy, len).await? };
        let view = RecordView::parse(&bytes).map_err(no_record)?;
        if view.phy() != phy || !view.check_crc() {
            return Err(ReadError::Damaged { phy, path: segment.path().to_owned() });
        }
        Ok(bytes)
    }

    /// Bytes of the log that are shown, from memory or from the disk.
    async fn bytes(&self, segment: &Arc<Segment>, at: PhyOffset, len: usize) -> Result<Vec<u8>, ReadError> {
        let in_file = len_in_file(self.shared.tail_start(), at, len);
        let mut out = self.file_bytes(segment, at, in_file).await?;
        let (at, rest) = (at.advance(in_file as u64), len - in_file);
        if !self.shared.read_tail(at, rest, |bytes| out.extend_from_slice(bytes)) {
            // It has left the tail meanwhile, so its blocks are complete.
            out.extend_from_slice(&self.file_bytes(segment, at, rest).await?);
        }
        Ok(out)
    }

    async fn file_bytes(&self, segment: &Arc<Segment>, at: PhyOffset, len: usize) -> Result<Vec<u8>, ReadError> {
        if segment.is_resident(at, len as u64)
            && let Some(bytes) = segment.slice(at, len)
        {
            return Ok(bytes.to_vec());
        }
        self.cold.read(&self.shared.counters, &segment.path().to_owned(), at.since(segment.start()), len).await
    }
}

/// How many of the bytes `[at, at + len)` of the log are to be looked for in its file; the rest lies in the part that is
/// kept in memory, which begins at `tail`. Blocks that may be written again are among that rest.
fn len_in_file(tail: Option<PhyOffset>, at: PhyOffset, len: usize) -> usize {
    match tail {
        Some(tail) if tail < at.advance(len as u64) => tail.0.saturating_sub(at.0) as usize,
        _ => len,
    }
}

/// A bounded number of places; who finds none waits in order. Stays on its core.
struct Places {
    free: Cell<usize>,
    waiting: RefCell<VecDeque<Waker>>,
}

/// One taken place.
struct Place<'a>(&'a Places);

impl Places {
    fn new(count: usize) -> Places {
        Places { free: Cell::new(count), waiting: RefCell::default() }
    }

    fn are_taken(&self) -> bool {
        self.free.get() == 0
    }

    async fn enter(&self) -> Place<'_> {
        poll_fn(|cx| {
            if self.free.get() > 0 {
                self.free.set(self.free.get() - 1);
                return Poll::Ready(Place(self));
            }
            self.waiting.borrow_mut().push_back(cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.free.set(self.0.free.get() + 1);
        if let Some(waker) = self.0.waiting.borrow_mut().pop_front() {
            waker.wake();
        }
    }
}

/// Reads through io_uring, bounded, with the files kept open.
struct ColdReads {
    files: RefCell<VecDeque<(PathBuf, Rc<ReadFile>)>>,
    places: Places,
}

impl Default for ColdReads {
    fn default() -> ColdReads {
        ColdReads { files: RefCell::default(), places: Places::new(COLD_READS_MAX) }
    }
}

impl ColdReads {
    async fn read(&self, counters: &Counters, path: &PathBuf, at: u64, len: usize) -> Result<Vec<u8>, ReadError> {
        let failed = |source| ReadError::Io { path: path.clone(), source };
        counters.cold_reads.add(1);
        if self.places.are_taken() {
            counters.cold_reads_queued.add(1);
        }
        let _place = self.places.enter().await;
        let file = self.open(path).await.map_err(failed)?;
        let mut out = Vec::with_capacity(len);
        file.read_into(at, len, &mut out).await.map_err(failed)?;
        Ok(out)
    }

    async fn open(&self, path: &PathBuf) -> io::Result<Rc<ReadFile>> {
        if let Some((_, file)) = self.files.borrow().iter().find(|(known, _)| known == path) {
            return Ok(Rc::clone(file));
        }
        let file = Rc::new(ReadFile::open(path).await?);
        let mut files = self.files.borrow_mut();
        files.push_back((path.clone(), Rc::clone(&file)));
        if files.len() > COLD_FILES_MAX {
            files.pop_front();
        }
        Ok(file)
    }
}
