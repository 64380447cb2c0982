//! The reader role, on every shard core: messages by queue offset, by physical offset, by time and by key.
//!
//! Hot reads come straight from read-only views, after a look whether the pages are in memory. Cold ones go through
//! io_uring, bounded by [`ColdReads`], so that no fault stops the core. A view that turns out not to show its file any more
//! (R17) is read from like a cold one: the file itself has errors to give.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Poll, Waker};

use bytes::{Bytes, BytesMut};
use smallvec::SmallVec;

use super::cold_reads::ColdReads;
use super::index_builder::{IndexBuilder, QUERY_COUNT_MAX};
use super::queues::{QueueView, UnitRun};
use super::read_error::ReadError;
use super::scan_pace::ScanPace;
use super::scans::{CacheOrder, LAG_LEN, PageCache, Reader, Scans};
use super::shared::{Health, PutFlush, Shared};
use super::submit::{LocalWake, Message, PutOutcome, PutRefusal, Submitter};
use super::unreadable::Unreadable;
use crate::format::record::{self, BadRecord, Header, RecordView};
use crate::format::unit::{UNIT_LEN, Unit};
use crate::io::{Blocking, ReadFile, Segment};
use crate::metrics::{Counters, Series, Traffic};
use crate::queue::{Boundary, Step, TimeSearch};
use crate::types::{PhyOffset, QueueHandle, QueueOffset, TagsCode, Timestamp, key_hash, properties};

/// Queries by key under way; each may hold an answer of a whole frame.
const QUERIES_MAX: usize = 4;
/// Units that one get looks at, whatever it is asked for.
const LOOKED_AT_MAX: usize = 16_384;
/// Units that are copied out of a mapping at a time.
const UNITS_AT_A_TIME: usize = 64;
/// Units looked at in either direction for one whose record can be read, when a search by time meets one that cannot.
const NEIGHBOURS_MAX: u64 = 800;
/// Disks fail by blocks of this length, and the page cache reads no less.
const BLOCK_LEN: usize = 4096;
/// Read to see whether the disk gives anything.
const PROBE_LEN: usize = 8;
/// First read of a record whose length is not known.
const PEEK_LEN: usize = 4096;
/// Looks at the index for one query, if all that the earlier ones found are others with the same hash.
const QUERY_ROUNDS_MAX: usize = 3;

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
    /// The units themselves are not in memory: use [`ShardStore::get_cold`].
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
    pieces: SmallVec<[Piece; 32]>,
    queue_id: i32,
    len: usize,
}

/// Records that were read.
#[derive(Debug)]
pub struct Loaded {
    pub records: Bytes,
    /// How many they are.
    pub count: usize,
    /// The first that could not be read, where the next get has to begin; `None`: behind all that were found.
    pub goes_on_at: Option<QueueOffset>,
}

/// Where a message lies, as its unit says.
#[derive(Clone, Copy, Debug)]
struct Piece {
    queue_offset: QueueOffset,
    phy: PhyOffset,
    len: u32,
}

impl Piece {
    fn end(&self) -> PhyOffset {
        self.phy.advance(u64::from(self.len))
    }
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
    unreadable: Unreadable,
    queries: Places,
    scans: RefCell<Scans>,
    pace: RefCell<ScanPace>,
    /// Carries out what the page cache is told.
    cache_thread: Blocking,
    cache_orders: Arc<AtomicUsize>,
}

impl ShardStore {
    /// `cache_thread` may take its time: a read never waits for it.
    pub fn new(
        shared: Arc<Shared>,
        submitter: Rc<Submitter>,
        index: Option<Rc<IndexBuilder>>,
        cache_thread: Blocking,
    ) -> ShardStore {
        ShardStore {
            inner: Rc::new(Inner {
                cold: ColdReads::new(Arc::clone(&shared)),
                unreadable: Unreadable::default(),
                scans: RefCell::new(Scans::new(Arc::clone(&shared.scan_places))),
                pace: RefCell::new(ScanPace::new(shared.settings.read.scan_core_percent)),
                queries: Places::new(QUERIES_MAX),
                cache_orders: Arc::default(),
                shared,
                submitter,
                index,
                cache_thread,
            }),
        }
    }

    /// Hands messages to the writer; see [`Submitter::put`].
    pub fn put(
        &self,
        messages: &[Message<'_>],
        flush: PutFlush,
        done: Box<dyn FnOnce(PutOutcome)>,
    ) -> Result<(), PutRefusal> {
        self.inner.submitter.put(messages, flush, done)
    }

    /// As [`ShardStore::put`], for who can wait.
    pub async fn put_and_wait(&self, messages: &[Message<'_>], flush: PutFlush) -> Result<PutOutcome, PutRefusal> {
        let slot = Rc::new(RefCell::new(None));
        let answered = Rc::new(LocalWake::default());
        let (filled, wake) = (Rc::clone(&slot), Rc::clone(&answered));
        self.put(
            messages,
            flush,
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

    /// Whether puts are taken now.
    pub fn health(&self) -> Health<'_> {
        self.inner.shared.health()
    }

    /// Everything before this is on stable storage.
    pub fn flushed(&self) -> PhyOffset {
        self.inner.shared.flushed()
    }

    /// What this shard has put and got.
    pub fn traffic(&self) -> &Traffic {
        self.inner.submitter.traffic()
    }

    /// Which topics and groups are counted by name.
    pub fn series(&self) -> &Series {
        &self.inner.shared.series
    }

    pub fn counters(&self) -> &Counters {
        &self.inner.shared.counters
    }

    /// How many messages a query by unique key finds.
    pub fn query_count_max(&self) -> usize {
        self.inner.shared.settings.read.query_count_max
    }

    /// Where the message at `offset` lies; nothing if the queue has no such unit any more.
    ///
    /// # Errors
    /// The unit cannot be read.
    pub async fn phy_of(
        &self,
        reader: &Reader,
        queue: &QueueView,
        offset: QueueOffset,
    ) -> Result<Option<PhyOffset>, ReadError> {
        let Some(run) = queue.units_from(offset) else { return Ok(None) };
        if run.is_resident(1)
            && let Some(unit) = run.first()
        {
            return Ok(Some(unit.phy));
        }
        let bytes = self.inner.units(reader, &run, 1).await?;
        Ok(bytes.first_chunk().map(|unit| Unit::decode(unit).phy))
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
        let mut scan = match self.begin(queue, offset, max_count, max_bytes) {
            Begun::Scan(scan) => scan,
            Begun::Outside(result) => return result,
        };
        while let Some(run) = scan.next_run(queue) {
            let looked_at = scan.looked_at(&run);
            if !run.is_resident(looked_at) {
                return scan.units_cold();
            }
            let mut units = [0; UNITS_AT_A_TIME * UNIT_LEN];
            for index in (0..looked_at).step_by(UNITS_AT_A_TIME) {
                let part = (looked_at - index).min(UNITS_AT_A_TIME) * UNIT_LEN;
                if run.copy(index, &mut units[..part]).is_err() {
                    return scan.units_cold();
                }
                if !scan.take(&units[..part], matches) {
                    return scan.finish();
                }
            }
        }
        scan.finish()
    }

    /// As [`ShardStore::get`], with units that have to be read from the disk.
    ///
    /// # Errors
    /// They cannot be read.
    pub async fn get_cold(
        &self,
        reader: &Reader,
        queue: &Arc<QueueView>,
        offset: i64,
        max_count: i32,
        max_bytes: u32,
        matches: &dyn Fn(TagsCode) -> bool,
    ) -> Result<GetResult, ReadError> {
        let mut scan = match self.begin(queue, offset, max_count, max_bytes) {
            Begun::Scan(scan) => scan,
            Begun::Outside(result) => return Ok(result),
        };
        while let Some(run) = scan.next_run(queue) {
            let units = self.inner.units(reader, &run, scan.looked_at(&run)).await?;
            if !scan.take(&units, matches) {
                break;
            }
        }
        Ok(scan.finish())
    }

    fn begin(&self, queue: &Arc<QueueView>, offset: i64, max_count: i32, max_bytes: u32) -> Begun {
        let (min, max) = (queue.min().0 as i64, queue.max().0 as i64);
        let result = |status, next_offset| GetResult {
            status,
            next_offset,
            min_offset: min,
            max_offset: max,
            found: Found {
                inner: Rc::clone(&self.inner),
                pieces: SmallVec::new(),
                queue_id: queue.key().queue_id as i32,
                len: 0,
            },
        };
        let outside = |status, next| Begun::Outside(result(status, next));
        match offset {
            _ if max == 0 => outside(GetStatus::NoMessageInQueue, 0),
            _ if offset < min => outside(GetStatus::OffsetTooSmall, min),
            _ if offset == max => outside(GetStatus::OffsetOverflowOne, offset),
            _ if offset > max => outside(GetStatus::OffsetOverflowBadly, max),
            _ => {
                let shared = &self.inner.shared;
                let read = &shared.settings.read;
                let wanted = usize::try_from(max_count).unwrap_or(0).max(1);
                Begun::Scan(Scan {
                    wanted,
                    looked_at_left: read.filter_len_max.div_ceil(UNIT_LEN).max(wanted).min(LOOKED_AT_MAX),
                    files_left: read.queue_files_max,
                    max_bytes: (max_bytes as usize).max(100),
                    confirm: shared.confirm(),
                    log_min: shared.segments.min(),
                    skip_to: None,
                    segment: None,
                    result: result(GetStatus::NoMatchedMessage, offset),
                })
            }
        }
    }

    /// The whole, checked record at `phy`.
    pub async fn record_at(&self, reader: &Reader, phy: PhyOffset) -> Result<Vec<u8>, ReadError> {
        self.inner.record_at(reader, phy).await
    }

    /// Messages of a topic's generation from `birth` on with this key, oldest first, the newest `max` of them or as many as `len_max` bytes hold. Only shard 0 has
    /// the index; elsewhere nothing is found. A few queries run at a time, so that their answers take bounded memory; more
    /// wait in order. Records that are gone, or have only the key's hash, are left out. Source: store.md 4.5.
    ///
    /// # Errors
    /// An index file cannot be read.
    pub async fn query(
        &self,
        (topic, birth): (&str, PhyOffset),
        key: &str,
        max: usize,
        begin: i64,
        end: i64,
        len_max: usize,
    ) -> Result<QueryResult, ReadError> {
        let Some(index) = &self.inner.index else {
            return Ok(QueryResult {
                records: Vec::new(),
                last_update: Default::default(),
                last_phy: Default::default(),
            });
        };
        let _place = self.inner.queries.enter().await;
        let (last_update, last_phy) = index.newest()?;
        let (mut records, mut len) = (VecDeque::new(), 0);
        let mut below = PhyOffset(u64::MAX);
        for _ in 0..QUERY_ROUNDS_MAX {
            let places = index.find(key_hash(topic, key), below, QUERY_COUNT_MAX, begin, end).await?;
            // The newest first, since those are wanted if not all are.
            for phy in places.iter().rev().filter(|phy| **phy >= birth) {
                if records.len() >= max || len > len_max {
                    break;
                }
                match self.record_at(&Reader::Lookup, *phy).await {
                    Ok(record) => {
                        if has_key(&record, topic, key) {
                            len += record.len();
                            records.push_front(record);
                        }
                    }
                    Err(error @ ReadError::Busy { .. }) => return Err(error),
                    Err(_) => {}
                }
                // Records in memory cost no wait, and a CRC each.
                crate::io::yield_if_due().await;
            }
            match places.first() {
                // Others of this hash took the place of some that are asked for.
                Some(first) if records.len() < max && len <= len_max && places.len() >= QUERY_COUNT_MAX => {
                    below = *first
                }
                _ => break,
            }
        }
        if len > len_max {
            records.pop_front();
        }
        Ok(QueryResult { records: records.into(), last_update, last_phy })
    }

    /// See [`Submitter::retire`].
    pub async fn retire(&self, queues: Vec<QueueHandle>) -> Option<PhyOffset> {
        self.inner.submitter.retire(queues).await
    }

    /// Queue offset by store time: `upper` false: the first message stored at or after `time`, else the end; true: the
    /// last one stored at or before it, else the begin. Source: store.md 3.3.
    pub async fn offset_by_time(&self, queue: &Arc<QueueView>, time: i64, upper: bool) -> Result<i64, ReadError> {
        let boundary = if upper { Boundary::Upper } else { Boundary::Lower };
        let range = queue.min()..queue.max();
        let mut search = TimeSearch::new(range.clone(), Timestamp(time), boundary);
        loop {
            match search.step() {
                Step::Look(offset) => search.tell(self.stored_at(queue, &range, offset).await?),
                Step::Found(offset) => return Ok(offset.0 as i64),
            }
        }
    }

    /// When the oldest message of a queue that can be read was stored; nothing if it has none.
    ///
    /// # Errors
    /// The disk's.
    pub async fn earliest(&self, queue: &Arc<QueueView>) -> Result<Option<Timestamp>, ReadError> {
        let (min, max) = (queue.min(), queue.max());
        if min >= max {
            return Ok(None);
        }
        let range = min..max;
        let mut stored_at = self.stored_at(queue, &range, min).await?;
        if stored_at == Timestamp(i64::MIN) {
            // It has just gone, and the queue has not followed yet: the first that is still there.
            let mut search = TimeSearch::new(range.clone(), Timestamp(i64::MIN + 1), Boundary::Lower);
            let first = loop {
                match search.step() {
                    Step::Look(offset) => search.tell(self.stored_at(queue, &range, offset).await?),
                    Step::Found(offset) => break offset,
                }
            };
            if first < max {
                stored_at = self.stored_at(queue, &range, first).await?;
            }
        }
        Ok(Some(stored_at).filter(|at| at.0 != i64::MIN && at.0 != i64::MAX))
    }

    /// Store time of the message at `offset`. If its record cannot be read, being damaged, that of the next one in `range`,
    /// or of the one before; times rise along a queue, so a search by them goes on rightly. Before everything, if the
    /// record has expired.
    async fn stored_at(
        &self,
        queue: &Arc<QueueView>,
        range: &Range<QueueOffset>,
        offset: QueueOffset,
    ) -> Result<Timestamp, ReadError> {
        let after = offset.0..range.end.0.min(offset.0.saturating_add(NEIGHBOURS_MAX));
        let before = range.start.0.max(offset.0.saturating_sub(NEIGHBOURS_MAX))..offset.0;
        let mut bad = None;
        for at in after.chain(before.rev()) {
            let Some(phy) = self.phy_of(&Reader::Lookup, queue, QueueOffset(at)).await? else {
                return Ok(Timestamp(i64::MIN));
            };
            // A message that was stored behind a damaged region stands for those lost in it.
            let phy = self.inner.behind_damage(phy);
            if bad == Some(phy) {
                continue;
            }
            match self.inner.record_at(&Reader::Lookup, phy).await {
                Ok(record) => {
                    let view = RecordView::parse(&record).map_err(|why| ReadError::NoRecord { phy, why })?;
                    return Ok(view.store_timestamp());
                }
                Err(error) if error.is_expired() => return Ok(Timestamp(i64::MIN)),
                Err(ReadError::NoRecord { .. } | ReadError::Damaged { .. } | ReadError::OutOfRange { .. }) => {
                    bad = Some(phy);
                }
                Err(error @ (ReadError::Io { .. } | ReadError::Busy { .. } | ReadError::NotFlushed { .. })) => {
                    return Err(error);
                }
            }
            crate::io::yield_if_due().await;
        }
        Ok(Timestamp(i64::MAX))
    }
}

/// A get before its first unit.
enum Begun {
    Scan(Scan),
    /// Nothing to be looked at.
    Outside(GetResult),
}

/// A get on its way through the units.
struct Scan {
    wanted: usize,
    looked_at_left: usize,
    files_left: usize,
    max_bytes: usize,
    log_min: PhyOffset,
    confirm: PhyOffset,
    /// Behind a segment that has expired.
    skip_to: Option<PhyOffset>,
    segment: Option<Arc<Segment>>,
    /// Its next offset is the next unit's.
    result: GetResult,
}

impl Scan {
    /// The units of the next file, while nothing is found and another file may be looked at.
    fn next_run(&mut self, queue: &QueueView) -> Option<UnitRun> {
        let next = self.result.next_offset;
        if self.files_left == 0 || self.looked_at_left == 0 || next >= self.result.max_offset || self.found_any() {
            return None;
        }
        self.files_left -= 1;
        self.skip_to = None;
        let run = queue.units_from(QueueOffset(next as u64));
        if run.is_none() {
            self.result.status = GetStatus::OffsetFoundNull;
            let shared = &self.result.found.inner.shared;
            let units = (shared.settings.consumequeue_len / UNIT_LEN as u64) as i64;
            self.result.next_offset = next + units - next % units;
        }
        run
    }

    /// How many units of it may be looked at.
    fn looked_at(&self, run: &UnitRun) -> usize {
        run.len().min(self.looked_at_left)
    }

    fn found_any(&self) -> bool {
        !self.result.found.pieces.is_empty()
    }

    /// Goes through units as they stand in the file. False: no more are wanted.
    fn take(&mut self, units: &[u8], matches: &dyn Fn(TagsCode) -> bool) -> bool {
        let inner = Rc::clone(&self.result.found.inner);
        let shared = &*inner.shared;
        let (segment_len, read) = (shared.segments.segment_len(), &shared.settings.read);
        for unit in units.as_chunks::<UNIT_LEN>().0.iter().map(Unit::decode) {
            let len = unit.len as usize;
            let found = &self.result.found;
            if !found.pieces.is_empty() {
                let (len_max, count_max) = if shared.in_memory(unit.phy) {
                    (read.memory_len_max, read.memory_count_max)
                } else {
                    (read.disk_len_max, read.disk_count_max)
                };
                let full = found.pieces.len() >= self.wanted
                    || found.pieces.len() >= count_max
                    || found.len + len > self.max_bytes
                    || found.len + len > len_max;
                if full {
                    return false;
                }
            }
            let queue_offset = QueueOffset(self.result.next_offset as u64);
            self.result.next_offset += 1;
            self.looked_at_left -= 1;
            if self.skip_to.is_some_and(|to| unit.phy < to) {
                continue;
            }
            if shared.damaged.end_behind(unit.phy).is_some() || !matches(unit.tags) {
                // The queue goes on behind a message that was lost in a damaged region.
                self.nothing_here(GetStatus::NoMatchedMessage);
                continue;
            }
            if unit.phy < self.log_min {
                self.nothing_here(GetStatus::MessageWasRemoving);
                self.skip_to = Some(unit.phy.segment_start(segment_len).advance(segment_len));
                continue;
            }
            if !self.is_readable(shared, &unit) {
                // A damaged unit: nothing to read there, and the queue goes on behind it.
                shared.counters.units_skipped.add(1);
                tracing::warn!(%queue_offset, phy_offset = %unit.phy, len, "a unit points to no message; skipped");
                self.nothing_here(GetStatus::MessageWasRemoving);
                continue;
            }
            self.result.found.pieces.push(Piece { queue_offset, phy: unit.phy, len: unit.len });
            self.result.found.len += len;
            self.result.status = GetStatus::Found;
        }
        true
    }

    fn nothing_here(&mut self, status: GetStatus) {
        if !self.found_any() {
            self.result.status = status;
        }
    }

    /// May there be a record where the unit says, of which all is shown?
    fn is_readable(&mut self, shared: &Shared, unit: &Unit) -> bool {
        let len = u64::from(unit.len);
        if unit.len < record::RECORD_LEN_MIN || unit.phy.0.checked_add(len).is_none_or(|end| end > self.confirm.0) {
            return false;
        }
        if self.segment.as_ref().is_none_or(|segment| !segment.holds(unit.phy, len)) {
            self.segment = shared.segments.find(unit.phy);
        }
        self.segment.as_ref().is_some_and(|segment| segment.holds(unit.phy, len))
    }

    fn units_cold(mut self) -> GetResult {
        self.result.status = GetStatus::UnitsCold;
        self.result.found.pieces.clear();
        self.result.found.len = 0;
        self.result
    }

    fn finish(self) -> GetResult {
        self.result
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

    /// Appends the records if all are in memory. `false`: nothing was appended; use [`Found::load`].
    pub fn copy_if_resident(&self, out: &mut BytesMut) -> bool {
        let start = out.len();
        out.reserve(self.len);
        let copied = self.inner.hot(&self.pieces, &mut |piece, bytes| {
            out.extend_from_slice(bytes);
            self.is_record(piece, bytes)
        });
        if !copied {
            out.truncate(start);
        }
        copied
    }

    /// A pause that `reader` has to make before it gets these records, since it scans old messages and others use the core.
    /// To be asked once a get, before that is counted. Gives how many µs it was.
    pub fn pause(&self, reader: &Reader) -> Option<impl Future<Output = u64> + use<>> {
        let inner = &self.inner;
        let first = self.pieces.first()?;
        // Who has come up with the log's end scans no more, though nobody has said so yet.
        let is_near = inner.shared.confirm().0.saturating_sub(first.phy.0) < LAG_LEN;
        if is_near || inner.scans.borrow().is_empty() || !inner.scans.borrow().is_scanning(reader, first.phy) {
            return None;
        }
        let (requests, now_us) = (inner.submitter.traffic().requests(), crate::io::steady_us());
        let wait = inner.pace.borrow_mut().on_get(self.len as u64, requests, now_us);
        if wait.is_zero() {
            return None;
        }
        inner.shared.counters.scan_gets_paced.add(1);
        Some(async move {
            crate::io::sleep(wait).await;
            crate::io::steady_us() - now_us
        })
    }

    /// Tells that `reader` got these records from memory: it may be one that scans the log.
    pub fn note_read(&self, reader: &Reader) {
        if !self.inner.scans.borrow().is_empty()
            && let (Some(first), Some(last)) = (self.pieces.first(), self.pieces.last())
        {
            self.inner.note_read(reader, first.phy, last.end(), false);
        }
    }

    /// Reads the records, from the disk where they are not in memory. What has expired meanwhile, or turns out to be no message
    /// of the queue, is left out, so there may be none. So is what the disk does not give, after a few tries.
    ///
    /// # Errors
    /// The first of them cannot be read; where a later one cannot, those before it are given.
    pub async fn load(self, reader: &Reader) -> Result<Loaded, ReadError> {
        let (inner, began_us) = (Rc::clone(&self.inner), crate::io::steady_us());
        let loaded = self.read(reader).await;
        inner.submitter.traffic().note_get_time(crate::io::steady_us().saturating_sub(began_us));
        loaded
    }

    async fn read(self, reader: &Reader) -> Result<Loaded, ReadError> {
        let shared = &self.inner.shared;
        let mut out = Vec::with_capacity(self.len);
        let mut given = 0;
        let mut index = 0;
        // Those before it are read one by one: all at once failed.
        let mut alone_to = 0;
        while index < self.pieces.len() {
            // Neighbours that one read of at most its maximum covers are read together.
            let first = self.pieces[index];
            let Some(segment) = shared.segments.find(first.phy) else {
                // Expired since it was found.
                index += 1;
                continue;
            };
            if self.inner.unreadable.is_given_up(first.phy) {
                index += 1;
                continue;
            }
            let mut end = first.end();
            let mut count = 1;
            while let Some(next) = self.pieces.get(index + count) {
                let together = next.end().since(first.phy);
                let too_long = next.end() > segment.end() || together > ReadFile::READ_LEN_MAX as u64;
                if next.phy < end || too_long || index < alone_to {
                    break;
                }
                end = next.end();
                count += 1;
            }
            self.inner.note_read(reader, first.phy, end, true);
            let block = match self.inner.bytes(reader, &segment, first.phy, end.since(first.phy) as usize).await {
                Ok(block) => block,
                Err(ReadError::Io { .. }) if count > 1 => {
                    alone_to = index + count;
                    continue;
                }
                Err(error) if error.is_of_disk() && out.is_empty() => {
                    if !self.inner.give_up(reader, &segment, first.phy, &error).await {
                        return Err(error);
                    }
                    index += 1;
                    continue;
                }
                // It is the first of the next get.
                Err(_) if !out.is_empty() => {
                    return Ok(Loaded {
                        records: Bytes::from(out),
                        count: given,
                        goes_on_at: Some(first.queue_offset),
                    });
                }
                Err(error) => return Err(error),
            };
            for piece in &self.pieces[index..index + count] {
                let from = piece.phy.since(first.phy) as usize;
                let bytes = &block[from..from + piece.len as usize];
                if self.is_record(piece, bytes) {
                    out.extend_from_slice(bytes);
                    given += 1;
                } else {
                    shared.counters.units_skipped.add(1);
                    tracing::warn!(queue_offset = %piece.queue_offset, phy_offset = %piece.phy, len = piece.len,
                        "a unit points to what is no message of its queue; skipped");
                }
            }
            index += count;
        }
        Ok(Loaded { records: Bytes::from(out), count: given, goes_on_at: None })
    }

    /// Do these bytes begin as the record that a piece stands for, and do its parts fit together? A stale unit must never
    /// show another queue's message, and a client takes a record apart by the same lengths.
    fn is_record(&self, piece: &Piece, bytes: &[u8]) -> bool {
        let Some(place) = record::peek_place(bytes) else { return false };
        let itself = place.total_len == piece.len && place.phy == piece.phy;
        let of_queue = place.queue_offset == piece.queue_offset && place.queue_id == self.queue_id;
        // Java can dispatch one record to several queues, of which it knows only the first.
        itself && record::lengths_add_up(bytes) && (of_queue || is_dispatched_to_many(bytes))
    }
}

fn is_dispatched_to_many(bytes: &[u8]) -> bool {
    RecordView::parse(bytes)
        .is_ok_and(|view| properties::get(view.properties(), properties::INNER_MULTI_DISPATCH).is_some())
}

impl Inner {
    /// Hands over the bytes of these parts of the log, each to `take`, if all are in memory and `take` agrees to all. The
    /// one place where the log's bytes in memory are looked for. `false`: what was taken is worth nothing.
    fn hot(&self, pieces: &[Piece], take: &mut dyn FnMut(&Piece, &[u8]) -> bool) -> bool {
        let segments = &self.shared.segments;
        // Looked at once: what leaves the tail meanwhile may not be in the page cache.
        let tail = self.shared.tail_start();
        let mut index = 0;
        while index < pieces.len() {
            let first = &pieces[index];
            let Some(segment) = segments.find(first.phy) else { return false };
            // Those that follow in the same segment are tested at once, with what lies between them.
            let mut end = first.end();
            let mut count = 1;
            while let Some(next) = pieces.get(index + count)
                && next.phy >= end
                && next.end() <= segment.end()
            {
                end = next.end();
                count += 1;
            }
            let in_file = len_in_file(tail, first.phy, end.since(first.phy) as usize);
            if in_file > 0 && !segment.is_resident(first.phy, in_file as u64) {
                return false;
            }
            for piece in &pieces[index..index + count] {
                let len = piece.len as usize;
                let agreed = match len_in_file(tail, piece.phy, len) {
                    in_file if in_file == len => segment.with(piece.phy, len, |bytes| take(piece, bytes)),
                    in_file => self.with_tail(&segment, piece, in_file, take),
                };
                if agreed != Some(true) {
                    return false;
                }
            }
            index += count;
        }
        true
    }

    /// Hands over a piece of which all but the first `in_file` bytes lie in the part of the log that is kept in memory.
    /// `None`: not (any more).
    fn with_tail(
        &self,
        segment: &Segment,
        piece: &Piece,
        in_file: usize,
        take: &mut dyn FnMut(&Piece, &[u8]) -> bool,
    ) -> Option<bool> {
        // Filled only if the piece comes in parts.
        let mut whole = Vec::new();
        if in_file > 0 {
            segment.with(piece.phy, in_file, |bytes| whole.extend_from_slice(bytes))?;
        }
        let mut agreed = None;
        let there = self.shared.read_tail(piece.phy.advance(in_file as u64), piece.len as usize - in_file, |bytes| {
            if bytes.len() == piece.len as usize {
                agreed = Some(take(piece, bytes));
            } else {
                whole.extend_from_slice(bytes);
            }
        });
        if !there {
            return None;
        }
        agreed.or_else(|| Some(take(piece, &whole)))
    }

    /// The bytes `[at, at + len)` of the log, which lie in `segment`; from the disk if they are not in memory.
    async fn bytes(
        &self,
        reader: &Reader,
        segment: &Arc<Segment>,
        at: PhyOffset,
        len: usize,
    ) -> Result<Vec<u8>, ReadError> {
        let mut out = Vec::new();
        if let Ok(piece_len) = u32::try_from(len) {
            let piece = Piece { queue_offset: QueueOffset(0), phy: at, len: piece_len };
            let take = &mut |_: &Piece, bytes: &[u8]| {
                out.extend_from_slice(bytes);
                true
            };
            if self.hot(&[piece], take) {
                return Ok(out);
            }
        }
        let cold = |at: PhyOffset, len| {
            self.cold.read(reader, segment.path(), || segment.to_read(), at.since(segment.start()), len)
        };
        let in_file = len_in_file(self.shared.tail_start(), at, len);
        if in_file == 0 {
            out.clear();
        } else {
            out = cold(at, in_file).await?;
        }
        let (at, rest) = (at.advance(in_file as u64), len - in_file);
        if rest > 0 && !self.shared.read_tail(at, rest, |bytes| out.extend_from_slice(bytes)) {
            // It has left the tail meanwhile, so its blocks are not written again.
            out.extend_from_slice(&cold(at, rest).await?);
        }
        Ok(out)
    }

    /// The first `count` units of a run, from its file.
    async fn units(&self, reader: &Reader, run: &UnitRun, count: usize) -> Result<Vec<u8>, ReadError> {
        let (file, at) = run.place();
        self.cold.read(reader, file.path(), || file.to_read(), at, count * UNIT_LEN).await
    }

    /// Where the log goes on if it is damaged at `phy`; else `phy` itself.
    fn behind_damage(&self, mut phy: PhyOffset) -> PhyOffset {
        while let Some(end) = self.shared.damaged.end_behind(phy) {
            phy = end;
        }
        phy
    }

    async fn record_at(&self, reader: &Reader, phy: PhyOffset) -> Result<Vec<u8>, ReadError> {
        let (min, max) = (self.shared.segments.min(), self.shared.confirm());
        let segment = match self.shared.segments.find(phy) {
            Some(segment) if phy >= min && phy < max => segment,
            _ => return Err(ReadError::OutOfRange { phy, min, max }),
        };
        if self.shared.damaged.end_behind(phy).is_some() {
            return Err(ReadError::Damaged { phy, path: segment.path().to_owned() });
        }
        let damaged = || ReadError::Damaged { phy, path: segment.path().to_owned() };
        if self.unreadable.is_given_up(phy) {
            return Err(damaged());
        }
        match self.read_record_at(reader, &segment, phy, max).await {
            Err(error) if error.is_of_disk() && self.give_up(reader, &segment, phy, &error).await => Err(damaged()),
            read => read,
        }
    }

    async fn read_record_at(
        &self,
        reader: &Reader,
        segment: &Arc<Segment>,
        phy: PhyOffset,
        max: PhyOffset,
    ) -> Result<Vec<u8>, ReadError> {
        // Never look behind what is shown: the bytes there may still change.
        let end = segment.end().min(max);
        let peek_len = PEEK_LEN.min(end.since(phy) as usize);
        // What follows the record may be what the disk does not give: then no more than the block in which it begins.
        let in_block = BLOCK_LEN - (phy.0 % BLOCK_LEN as u64) as usize;
        let head = match self.bytes(reader, segment, phy, peek_len).await {
            Err(error) if error.is_of_disk() && in_block < peek_len => {
                self.bytes(reader, segment, phy, in_block).await?
            }
            head => head?,
        };
        let no_record = |why| ReadError::NoRecord { phy, why };
        let len = match record::peek_header(&head).map_err(no_record)? {
            Header::Record { total_len } if u64::from(total_len) <= end.since(phy) => total_len as usize,
            Header::Record { total_len } => {
                return Err(no_record(BadRecord::Truncated { need: total_len, have: end.since(phy) as usize }));
            }
            Header::Blank { .. } | Header::Zero => return Err(no_record(BadRecord::TotalLen { found: 0 })),
        };
        let bytes =
            if len <= head.len() { head[..len].to_vec() } else { self.bytes(reader, segment, phy, len).await? };
        let view = RecordView::parse(&bytes).map_err(no_record)?;
        if view.phy() != phy || !view.check_crc() {
            return Err(ReadError::Damaged { phy, path: segment.path().to_owned() });
        }
        Ok(bytes)
    }

    /// The disk did not give this record. True: it has been tried often enough, and is stepped over from now on.
    ///
    /// Not while the disk gives nothing else of the file either: then it is the disk that is away, and not one sector.
    async fn give_up(&self, reader: &Reader, segment: &Arc<Segment>, phy: PhyOffset, error: &ReadError) -> bool {
        if !self.unreadable.failed(phy, crate::io::steady_ms()) {
            return false;
        }
        let last_block = segment.end().since(segment.start()).saturating_sub(BLOCK_LEN as u64);
        let mut gives_others = false;
        for at in [0, last_block] {
            let read = self.cold.read(reader, segment.path(), || segment.to_read(), at, PROBE_LEN).await;
            gives_others |= read.is_ok();
        }
        if gives_others && self.unreadable.give_up(phy) {
            self.shared.counters.records_unreadable.add(1);
            tracing::error!(path = %segment.path().display(), phy_offset = %phy, %error,
                "the disk does not give this message; it is stepped over: check the disk");
        }
        gives_others
    }

    /// Tells the scans of a read, and has the page cache told what they want of it.
    fn note_read(&self, reader: &Reader, from: PhyOffset, end: PhyOffset, cold: bool) {
        let mut orders = Vec::new();
        self.scans.borrow_mut().on_read(reader, from, end, cold, self, &mut orders);
        for order in orders {
            self.carry_out(order);
        }
    }

    fn carry_out(&self, order: CacheOrder) {
        let counters = &self.shared.counters;
        let (from, len) = match &order {
            CacheOrder::ReadAhead { from, len } | CacheOrder::Drop { from, len } => (*from, *len),
        };
        let Some(segment) = self.shared.segments.find(from) else { return };
        // Blocks that are still to be written past the page cache stay out of it.
        let end = self.shared.tail_start().unwrap_or(segment.end()).min(segment.end());
        let len = len.min(end.0.saturating_sub(from.0));
        if len == 0 {
            return;
        }
        let is_drop = matches!(order, CacheOrder::Drop { .. });
        // The newest messages stay: everybody reads those, and what is appended to may be dirty.
        let newest = segment.end() >= self.shared.appended() || self.shared.in_memory(from);
        if is_drop && newest {
            return;
        }
        self.cache_orders.fetch_add(1, Ordering::Relaxed);
        let counter = if is_drop { &counters.dropped_kib } else { &counters.read_ahead_kib };
        counter.add(len >> 10);
        let waiting = Arc::clone(&self.cache_orders);
        self.cache_thread.start(move || {
            match order {
                CacheOrder::ReadAhead { .. } => segment.read_ahead(from, len),
                CacheOrder::Drop { .. } => segment.drop_cached(from, len),
            }
            waiting.fetch_sub(1, Ordering::Relaxed);
        });
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

impl PageCache for Inner {
    fn log_end(&self) -> PhyOffset {
        self.shared.confirm()
    }

    fn is_cold(&self, from: PhyOffset, len: u64) -> bool {
        self.shared.segments.find(from).is_some_and(|segment| {
            let len = len.min(segment.end().since(from));
            segment.cached_len(from, len) < len / 2
        })
    }

    fn orders(&self) -> usize {
        self.cache_orders.load(Ordering::Relaxed)
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
