//! The writer role: drains the shards' rings, numbers and writes what they encoded, flushes it, and gives out answers
//! and dispatch entries. One executor runs it; nothing else touches the end of the log.
//!
//! A turn: all batches that wait become one piece of log (two if it rolls), one write, and one flush if somebody waits
//! for it. While a write or flush runs, the next turn gathers in the rings, so load makes batches and no timer is needed.
//!
//! What readers see follows the policies of node and topics. On a sync node it is what is flushed, of every topic. On an
//! async node it is what is written; only puts of sync topics are held until they are flushed, and with them what comes
//! behind them in the same queue, since a queue's units are given out in their order. Other queues do not wait for them:
//! no turn of an async node waits for a flush, a task of its own does.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use super::layout::Layout;
use super::outlet::Outlet;
use super::shared::{FlushMode, Poison, Shared};
use super::submit::{LocalWake, Put, PutReply, PutStatus, RecordMeta, ReplyBatch, SubmitBatch, TagsRule, TurnTimes};
use crate::config::ZeroAhead;
use crate::dispatch::{Receiver, Sender};
use crate::format::record;
use crate::io::{AppendMode, Blocking, LogFile, Segment, SyncCall, TailWriter, ZERO_LEN};
use crate::log::{Action, Event, FlushRule, GroupCommit, LogEnd, Place, QueueCounters, WaiterId};
use crate::metrics::{Stage, Stages};
use crate::types::{KeyHash, PhyOffset, QueueHandle, QueueOffset, TagsCode, Timestamp};

/// Bounds of one turn: enough to amortise a write, small enough to keep its latency low.
const TURN_LEN_MAX: usize = 4 << 20;
const TURN_PUTS_MAX: usize = 8192;
/// How far ahead of the append point the log is zeroed, and how near to it a write of zeros may start.
const ZERO_WINDOW_LEN: u64 = 32 << 20;
const ZERO_LEAD_LEN: u64 = 1 << 20;
/// Zeros are synced in portions of this length.
const ZERO_SYNC_LEN: u64 = 8 << 20;
/// How long messages stay unflushed that are shown once flushed and that nobody waits for, in ms (store.md 5.3).
const UNWAITED_FLUSH_MS: u64 = 10;
/// Units that may wait for a flush before the writer does.
const HELD_UNITS_MAX: usize = 1 << 18;
/// Keys that wait for a flush likewise.
const WAITING_KEYS_MAX: usize = 1 << 20;
/// Pause after a segment could not be made.
const PREPARE_RETRY: Duration = Duration::from_millis(500);
/// A turn waits for a segment that is being made until its oldest put is this old, in ms: below the 3 s after which clients
/// give up.
const PREPARE_LIMIT_MS: u64 = 2500;
/// How often deadlines are looked at while something waits, in ms.
const TICK_MS: u64 = 50;

/// What the owner of a queue needs to know of one stored record.
#[derive(Clone, Copy, Debug)]
pub struct DispatchUnit {
    pub queue: QueueHandle,
    pub queue_offset: QueueOffset,
    pub phy: PhyOffset,
    pub len: u32,
    pub tags: TagsCode,
    pub stored_at: Timestamp,
}

/// What is dispatched to one shard at a time.
#[derive(Debug, Default)]
pub struct DispatchBatch {
    pub units: Vec<DispatchUnit>,
    /// When the writer sent it (steady clock, µs).
    pub sent_us: u64,
}

/// Of a sender that does not tell when: it was always there.
impl FromIterator<DispatchUnit> for DispatchBatch {
    fn from_iter<I: IntoIterator<Item = DispatchUnit>>(units: I) -> DispatchBatch {
        DispatchBatch { units: units.into_iter().collect(), sent_us: 0 }
    }
}

/// What the index builder needs to know of one key of a stored record.
#[derive(Clone, Copy, Debug)]
pub struct KeyEntry {
    pub key: KeyHash,
    pub phy: PhyOffset,
    pub stored_at: Timestamp,
}

/// The writer's ends of all its rings; element `s` belongs to shard `s`.
pub struct WriterRings {
    pub from_shards: Vec<Receiver<SubmitBatch>>,
    pub replies: Vec<Sender<ReplyBatch>>,
    pub dispatch: Vec<Sender<DispatchBatch>>,
    /// To the one index builder.
    pub keys: Sender<Vec<KeyEntry>>,
}

/// Where the log ends at start, as recovery found it.
pub struct WriterStart {
    pub end: PhyOffset,
    pub last_stored_at: Timestamp,
    pub counters: QueueCounters,
}

/// The writer. Lives on the writer core.
pub struct Writer {
    shared: Arc<Shared>,
    layout: Layout,
    blocking: Blocking,
    rings: RefCell<Vec<Receiver<SubmitBatch>>>,
    /// Batches taken out of the rings but not yet into a turn.
    gathered: RefCell<VecDeque<(usize, SubmitBatch)>>,
    replies: Vec<Outlet<ReplyBatch>>,
    dispatch: Vec<Outlet<DispatchBatch>>,
    keys: Outlet<Vec<KeyEntry>>,
    end: RefCell<LogEnd>,
    counters: RefCell<QueueCounters>,
    /// By queue: its topic was deleted, and it takes no puts.
    retired: RefCell<Vec<bool>>,
    commit: RefCell<GroupCommit>,
    /// Appends that are not yet wholly shown to readers or answered, oldest first.
    groups: RefCell<VecDeque<Group>>,
    /// By queue: end of the newest put of a sync topic in it; what comes behind is held until that is flushed.
    held_queues: RefCell<Vec<PhyOffset>>,
    /// The newest of these.
    held_to: Cell<PhyOffset>,
    /// Units in `groups`.
    held_units: Cell<usize>,
    /// Keys that are not yet given out, in the order of the log, and how many.
    waiting_keys: RefCell<VecDeque<WaitingKeys>>,
    waiting_count: Cell<usize>,
    /// Somebody waits for less of them.
    shown: LocalWake,
    /// Is the log zeroed ahead?
    zeroes: Cell<bool>,
    next_waiter: Cell<u64>,
    /// Store time of the newest record that the flush under way (or the last one) covers.
    flush_stored_at: Cell<Timestamp>,
    /// Segments that may hold unflushed bytes; the last is the one being appended to.
    files: RefCell<VecDeque<Rc<LogFile>>>,
    /// Keeps the newest part of the log in memory where the page cache does not.
    tail: RefCell<Option<TailWriter>>,
    ahead: RefCell<Ahead>,
    prepare: LocalWake,
    ahead_changed: LocalWake,
    unflushed: LocalWake,
    busy: LocalWake,
    zero: LocalWake,
    zeroing: Cell<Option<(PhyOffset, PhyOffset)>>,
    zeroing_done: LocalWake,
    /// Where a turn of an async node wants to be flushed to.
    flush_to: Cell<Option<PhyOffset>>,
    flush_now: LocalWake,
    /// A held put has come that no flush is under way for.
    flush_soon: LocalWake,
    stages: RefCell<Stages>,
    /// Puts in the log that no flush has begun to cover.
    unflushed_puts: Cell<u64>,
}

struct Prepared {
    file: Rc<LogFile>,
    segment: Arc<Segment>,
}

/// What there is of the next segment.
#[derive(Default)]
enum Ahead {
    /// Nothing, or it is being made.
    #[default]
    None,
    Ready(Prepared),
    /// It could not be made a moment ago, or takes longer than a turn may wait: puts that need it are refused at once, not
    /// each after a wait.
    Failed,
}

/// What builders are told of messages.
#[derive(Default)]
struct Derived {
    /// By shard.
    units: Vec<Vec<DispatchUnit>>,
}

impl Derived {
    fn new(shards: usize) -> Derived {
        Derived { units: (0..shards).map(|_| Vec::new()).collect() }
    }

    fn count(&self) -> usize {
        self.units.iter().map(Vec::len).sum()
    }

    /// Adds what comes behind.
    fn append(&mut self, behind: Derived) {
        for (units, more) in self.units.iter_mut().zip(behind.units) {
            units.extend(more);
        }
    }
}

/// The keys of one turn on their way to the index builder, which gets them in the order of the log: what is held, holds
/// all that come behind it.
struct WaitingKeys {
    /// Where the turn began.
    turn: PhyOffset,
    /// Given out once this is written, and once that is flushed.
    written: PhyOffset,
    flushed: PhyOffset,
    keys: Vec<KeyEntry>,
}

/// When a put is shown.
#[derive(Clone, Copy)]
enum Shown {
    Written,
    Flushed,
    /// Once written, and what comes before this position in its queue is flushed: an earlier turn's held put.
    Behind(PhyOffset),
}

/// One turn's messages on their way from the write to readers and clients.
struct Group {
    end: PhyOffset,
    waiter: Option<WaiterId>,
    times: TurnTimes,
    /// When who waits gets an answer at the latest (steady ms).
    deadline_ms: u64,
    /// Its write flushes it as well: what is late then is a flush.
    write_flushes: bool,
    written: bool,
    /// Answers that wait for the flush, by shard.
    waiting: Vec<ReplyBatch>,
    /// Shown once written, and what is shown once flushed.
    open: Derived,
    held: Derived,
    /// Goes to the groups that end at or behind these positions, once written.
    behind: Vec<(PhyOffset, Derived)>,
}

impl Group {
    /// Where what is shown then is gathered.
    fn derived(&mut self, shown: Shown, shards: usize) -> &mut Derived {
        let gate = match shown {
            Shown::Written => return &mut self.open,
            Shown::Flushed => return &mut self.held,
            Shown::Behind(gate) => gate,
        };
        let known = self.behind.iter().position(|(at, _)| *at == gate);
        let index = known.unwrap_or_else(|| {
            self.behind.push((gate, Derived::new(shards)));
            self.behind.len() - 1
        });
        &mut self.behind[index].1
    }
}

/// Bytes for one segment.
struct Piece {
    file: Rc<LogFile>,
    at: PhyOffset,
    bytes: Vec<u8>,
}

/// A turn that is numbered but not written.
struct Staged {
    start: PhyOffset,
    end: PhyOffset,
    pieces: Vec<Piece>,
    group: Group,
    /// Puts that got their place.
    puts: u64,
    /// When the turn waits for a segment no longer (steady ms).
    segment_deadline_ms: u64,
    /// Answers that do not wait for a flush, by shard.
    immediate: Vec<ReplyBatch>,
    /// Answers that do not even wait for the write.
    refused: Vec<ReplyBatch>,
}

impl Staged {
    /// Has a put got its place in the log?
    fn is_begun(&self) -> bool {
        self.pieces.iter().any(|piece| !piece.bytes.is_empty())
    }
}

/// Why a put gets no place in the log now.
enum NoRoom {
    Refused(PutStatus),
    /// Its segment is not there yet, and puts before it shall not wait for that: it is the next turn's.
    Later,
}

impl Writer {
    /// Opens the segment that holds the end of the log, made if it is not there. On the writer core.
    ///
    /// # Errors
    /// Whatever the file system says of that segment.
    pub async fn open(
        shared: Arc<Shared>,
        layout: Layout,
        blocking: Blocking,
        rings: WriterRings,
        start: WriterStart,
    ) -> io::Result<Rc<Writer>> {
        let settings = &shared.settings;
        let segment_len = settings.segment_len;
        let first = start.end.segment_start(segment_len);
        let file = match shared.segments.find(first) {
            Some(_) => {
                let (path, is_dma) = (layout.segment(first), settings.append == AppendMode::Dma);
                // A process that was killed may have made it, and not come to reserving its blocks and syncing its name.
                let ready = move || {
                    crate::io::create_full_length(&path, segment_len)?;
                    if is_dma { crate::io::write_first_block(&path) } else { Ok(()) }
                };
                blocking.run(ready).await?;
                open_log_file(&shared, &layout, &blocking, first, start.end).await?
            }
            None => {
                let made = make_segment(&shared, &layout, &blocking, first).await?;
                shared.segments.push(made.segment);
                made.file
            }
        };
        let mut tail = None;
        match (file.rewritten(), &shared.tail) {
            (Some((at, head)), Some(readers)) => {
                let mut writer = readers.writer();
                writer.append(at, &head);
                tail = Some(writer);
                if let Some(segment) = shared.segments.find(at) {
                    // Pages that recovery looked at would be thrown out one by one, in the way of the first writes.
                    blocking.run(move || segment.drop_cached(at, segment.end().since(at))).await;
                }
            }
            // Opening the store could not find that out.
            (None, Some(_)) => tracing::warn!(
                path = %file.path().display(),
                "this file system has no direct I/O: store.append = \"dma\" (or what \"auto\" came to) writes as \"buffered\" does"
            ),
            (_, None) => {}
        }
        Ok(Rc::new(Writer {
            commit: RefCell::new(GroupCommit::starting_at(start.end)),
            end: RefCell::new(LogEnd::new(start.end, segment_len, start.last_stored_at)),
            counters: RefCell::new(start.counters),
            retired: RefCell::default(),
            rings: RefCell::new(rings.from_shards),
            gathered: RefCell::default(),
            replies: rings.replies.into_iter().map(Outlet::new).collect(),
            dispatch: rings.dispatch.into_iter().map(Outlet::new).collect(),
            keys: Outlet::new(rings.keys),
            groups: RefCell::default(),
            held_queues: RefCell::default(),
            held_to: Cell::new(PhyOffset(0)),
            held_units: Cell::new(0),
            waiting_keys: RefCell::default(),
            waiting_count: Cell::new(0),
            shown: LocalWake::default(),
            zeroes: Cell::new(match shared.settings.zero_ahead {
                ZeroAhead::On => true,
                ZeroAhead::Off => false,
                ZeroAhead::Auto => shared.settings.flush == FlushMode::Sync,
            }),
            flush_to: Cell::new(None),
            flush_now: LocalWake::default(),
            flush_soon: LocalWake::default(),
            next_waiter: Cell::new(0),
            flush_stored_at: Cell::new(start.last_stored_at),
            files: RefCell::new(VecDeque::from([file])),
            tail: RefCell::new(tail),
            ahead: RefCell::default(),
            prepare: LocalWake::default(),
            ahead_changed: LocalWake::default(),
            unflushed: LocalWake::default(),
            busy: LocalWake::default(),
            zero: LocalWake::default(),
            zeroing: Cell::new(None),
            zeroing_done: LocalWake::default(),
            stages: RefCell::default(),
            unflushed_puts: Cell::new(0),
            shared,
            layout,
            blocking,
        }))
    }

    /// The tasks that run beside [`Writer::run`]; they end with the executor.
    pub fn side_tasks(self: &Rc<Self>) -> Vec<std::pin::Pin<Box<dyn Future<Output = ()>>>> {
        let mut tasks: Vec<std::pin::Pin<Box<dyn Future<Output = ()>>>> = Vec::new();
        for shard in 0..self.replies.len() {
            let this = Rc::clone(self);
            tasks.push(Box::pin(async move { this.replies[shard].run().await }));
            let this = Rc::clone(self);
            tasks.push(Box::pin(async move { this.dispatch[shard].run().await }));
        }
        let this = Rc::clone(self);
        tasks.push(Box::pin(async move { this.keys.run().await }));
        tasks.push(Box::pin(Rc::clone(self).run_flusher()));
        tasks.push(Box::pin(Rc::clone(self).run_flushes()));
        tasks.push(Box::pin(Rc::clone(self).run_deadlines()));
        tasks.push(Box::pin(Rc::clone(self).run_preparer()));
        if self.shared.settings.zero_ahead != ZeroAhead::Off {
            tasks.push(Box::pin(Rc::clone(self).run_zeroer()));
        }
        tasks
    }

    /// Appends until every shard has closed its ring, then flushes what is left. The main task of the writer core.
    pub async fn run(self: Rc<Self>) {
        self.wake_zeroer();
        self.prepare_if_near();
        while let Some(batches) = self.gather().await {
            self.shared.set_turn_since(crate::io::steady_ms().max(1));
            self.busy.wake();
            self.turn(batches).await;
            // A stalled builder stalls the writer, and so the senders: building is always cheaper than appending.
            if self.keys.is_full() || self.dispatch.iter().any(Outlet::is_full) {
                self.shared.counters.dispatch_stalls.add(1);
                self.dispatched().await;
            }
            self.bound_held().await;
            self.shared.set_turn_since(0);
            self.shared.set_turn_opened(0);
            // In mmap mode a turn need not wait for anything.
            crate::io::yield_if_due().await;
        }
        self.flush_all().await;
        self.dispatched().await;
        for outlet in &self.replies {
            outlet.drained().await;
        }
        tracing::info!(end = %self.end.borrow().at(), stages = %self.stages.borrow(), events = %self.shared.counters, "writer stopped");
    }

    /// Waits for a flush if too much has been written that is shown only then: a device that stalls must not fill the
    /// memory with what nobody waits for.
    async fn bound_held(&self) {
        let is_too_much = || self.held_units.get() > HELD_UNITS_MAX || self.waiting_count.get() > WAITING_KEYS_MAX;
        if is_too_much() {
            self.shared.counters.unshown_stalls.add(1);
            self.flush_soon.wake();
            while is_too_much() && !self.shared.is_poisoned() {
                self.shown.wait().await;
            }
        }
    }

    /// Waits until the builders' rings have taken everything.
    async fn dispatched(&self) {
        for outlet in &self.dispatch {
            outlet.drained().await;
        }
        self.keys.drained().await;
    }

    /// What waits in the rings, at least one batch; nothing once all are closed and empty.
    async fn gather(&self) -> Option<VecDeque<(usize, SubmitBatch)>> {
        poll_fn(|cx| {
            let mut gathered = self.gathered.borrow_mut();
            let mut open = false;
            let mut rings = self.rings.borrow_mut();
            let (mut len, mut puts) = (0, 0);
            for (_, batch) in gathered.iter() {
                len += batch.bytes.len();
                puts += batch.puts.len();
            }
            for (shard, ring) in rings.iter_mut().enumerate() {
                while len < TURN_LEN_MAX && puts < TURN_PUTS_MAX {
                    match ring.poll_recv(cx) {
                        Poll::Ready(Ok(batch)) => {
                            len += batch.bytes.len();
                            puts += batch.puts.len();
                            gathered.push_back((shard, batch));
                        }
                        Poll::Ready(Err(_)) => break,
                        Poll::Pending => {
                            open = true;
                            break;
                        }
                    }
                }
            }
            match (gathered.is_empty(), open) {
                (false, _) => Poll::Ready(Some(std::mem::take(&mut *gathered))),
                (true, true) => Poll::Pending,
                (true, false) => Poll::Ready(None),
            }
        })
        .await
    }

    async fn turn(&self, batches: VecDeque<(usize, SubmitBatch)>) {
        if self.shared.is_poisoned() {
            self.answer_all(batches, PutStatus::ServiceNotAvailable);
            return;
        }
        let Staged { start, end, pieces, mut group, puts, mut immediate, refused, .. } = self.stage(batches).await;
        let mut times = group.times;
        self.send_replies(refused, times);
        if pieces.is_empty() {
            self.send_replies(immediate, times);
            return;
        }
        if self.shared.is_poisoned() {
            // A flush failed while this turn waited for its segment.
            self.send_replies(group.waiting.into_iter().map(failed).collect(), times);
            self.send_replies(immediate.into_iter().map(failed).collect(), times);
            return;
        }
        let waiter = group.waiter.map(|id| (id, group.deadline_ms));
        // Write and flush in one, if somebody waits. A durable write covers only itself, so everything below it must be
        // flushed already, and no other flush may run. Not on an async node, where others would wait with them.
        let durable = {
            let commit = self.commit.borrow();
            self.shared.settings.flush == FlushMode::Sync
                && waiter.is_some()
                && !commit.is_flushing()
                && commit.flushed() == start
                && pieces.iter().all(|piece| piece.file.writes_durably())
        };
        group.write_flushes = durable;
        let began_us = crate::io::steady_us();
        if durable {
            // What the write takes is the flush.
            group.times.written_us = began_us;
        }
        self.groups.borrow_mut().push_back(group);
        let appended = Event::Appended { end, waiter, at_ms: crate::io::steady_ms() };
        let mut flush_to = if durable { self.step(appended) } else { None };
        let written = self.write(pieces, durable).await;
        match written {
            Ok(spent) => give_back(spent, &mut immediate),
            Err(error) => self.poison("write", self.current_file().path(), &error),
        }
        if self.shared.is_poisoned() {
            self.send_replies(immediate.into_iter().map(failed).collect(), times);
            return;
        }
        let written_us = crate::io::steady_us();
        (times.written_us, times.sent_us) = (written_us, written_us);
        let took_us = written_us - began_us;
        self.unflushed_puts.set(self.unflushed_puts.get() + puts);
        if durable {
            self.note_flush(took_us, self.unflushed_puts.take());
        } else {
            let took = Duration::from_micros(took_us);
            self.stages.borrow_mut().record(Stage::Append, took);
            self.shared.note_write(took);
            self.shared.writer_times.append.add(took_us, puts);
        }
        self.shared.set_appended(end);
        self.show_written(end, written_us);
        self.send_replies(immediate, times);
        // Not before the write is done: a flush that begins meanwhile must not count these bytes as covered.
        flush_to = match flush_to {
            Some(to) => self.flushed(to),
            None => self.step(appended),
        };
        match flush_to {
            Some(to) if self.shared.settings.flush == FlushMode::Sync => self.flush(to).await,
            Some(to) => {
                self.flush_to.set(Some(to));
                self.flush_now.wake();
            }
            None => self.unflushed.wake(),
        }
        if self.held_to.get() > self.commit.borrow().flushed() {
            self.flush_soon.wake();
        }
        self.prepare_if_near();
        self.wake_zeroer();
    }

    /// Numbers every put and lays the bytes out by segment. What must wait for a segment behind numbered ones is left to
    /// the next turn.
    async fn stage(&self, mut batches: VecDeque<(usize, SubmitBatch)>) -> Staged {
        let settings = &self.shared.settings;
        let shards = self.replies.len();
        let now_us = crate::io::steady_us();
        let now_ms = now_us / 1000;
        let start = self.end.borrow().at();
        let stored_at = self.end.borrow_mut().stored_at(crate::io::now());
        let oldest_ms = batches.iter().map(|(_, batch)| batch.opened_ms).min().unwrap_or(0);
        let in_time = batches.iter().map(|(_, batch)| batch.opened_ms);
        let in_time = in_time.filter(|opened_ms| now_ms.saturating_sub(*opened_ms) <= settings.put_wait_ms_max);
        // Of those that are not refused for their age. Clients count from when they sent.
        let arrived_ms = in_time.min().unwrap_or(now_ms);
        let mut staged = Staged {
            start,
            end: start,
            pieces: Vec::with_capacity(1),
            segment_deadline_ms: arrived_ms + PREPARE_LIMIT_MS,
            immediate: (0..shards).map(|_| ReplyBatch::default()).collect(),
            refused: (0..shards).map(|_| ReplyBatch::default()).collect(),
            puts: 0,
            group: Group {
                end: start,
                waiter: None,
                times: TurnTimes { staged_us: now_us, written_us: now_us, sent_us: now_us },
                deadline_ms: arrived_ms + settings.sync_timeout_ms,
                write_flushes: false,
                written: false,
                waiting: (0..shards).map(|_| ReplyBatch::default()).collect(),
                open: Derived::new(shards),
                held: Derived::new(shards),
                behind: Vec::new(),
            },
        };
        let queued: usize = batches.iter().map(|(_, batch)| batch.puts.len()).sum();
        self.shared.set_turn_opened(oldest_ms);
        self.stages.borrow_mut().record_count(queued);
        let counts = &self.shared.writer_times;
        counts.turn_puts.add(queued as u64, 1);
        let only = batches.len() == 1;
        'batches: while let Some((shard, mut batch)) = batches.pop_front() {
            let waited_ms = now_ms.saturating_sub(batch.opened_ms);
            counts.queue.add(now_us.saturating_sub(batch.submitted_us), batch.puts.len() as u64);
            let mut records = std::mem::take(&mut batch.records);
            let mut bytes = std::mem::take(&mut batch.bytes);
            let whole = only
                && waited_ms <= settings.put_wait_ms_max
                && self.fits_here(bytes.len())
                && !batch.puts.iter().any(|put| self.is_retired(put.queue));
            let mut at_byte = 0;
            let mut at_record = 0;
            if whole {
                // The usual turn: the shard's buffer itself becomes the write.
                let file = self.current_file();
                for put in &batch.puts {
                    let phy = self.end.borrow().at();
                    let metas = &records[at_record..at_record + put.records as usize];
                    let placed = &mut bytes[at_byte..at_byte + put.len as usize];
                    self.number(shard, put, metas, placed, phy, stored_at, &mut staged);
                    at_record += put.records as usize;
                    at_byte += put.len as usize;
                }
                staged.pieces.push(Piece { file, at: start, bytes });
            } else {
                for (index, put) in batch.puts.iter().enumerate() {
                    let metas = &records[at_record..at_record + put.records as usize];
                    let source = at_byte..at_byte + put.len as usize;
                    let refused = if waited_ms > settings.put_wait_ms_max {
                        Some(PutStatus::Busy {
                            waited_ms: waited_ms as u32,
                            queued: queued as u32,
                            stages: self.shared.stage_times(),
                        })
                    } else if self.is_retired(put.queue) {
                        Some(PutStatus::QueueGone)
                    } else {
                        match self.make_room(u64::from(put.len), &mut staged).await {
                            Ok(()) => None,
                            Err(NoRoom::Refused(status)) => Some(status),
                            Err(NoRoom::Later) => {
                                batch.puts.drain(..index);
                                records.drain(..at_record);
                                bytes.drain(..at_byte);
                                (batch.records, batch.bytes) = (records, bytes);
                                batches.push_front((shard, batch));
                                break 'batches;
                            }
                        }
                    };
                    at_record += put.records as usize;
                    at_byte = source.end;
                    if let Some(PutStatus::Busy { .. }) = refused {
                        self.shared.counters.puts_expired.add(1);
                    }
                    match refused {
                        Some(status) => staged.refused[shard].replies.push(refusal(put, status)),
                        None => {
                            let piece = staged.pieces.last_mut().expect("make_room opened one");
                            let from = piece.bytes.len();
                            piece.bytes.extend_from_slice(&bytes[source]);
                            let mut taken = std::mem::take(&mut piece.bytes);
                            let phy = self.end.borrow().at();
                            self.number(shard, put, metas, &mut taken[from..], phy, stored_at, &mut staged);
                            staged.pieces.last_mut().expect("still there").bytes = taken;
                        }
                    }
                }
                bytes.clear();
                batch.bytes = bytes;
            }
            for retire in batch.retires.drain(..) {
                self.retire(&retire.queues);
                staged.immediate[shard].retired.push((retire.token, Some(self.end.borrow().at())));
            }
            records.clear();
            batch.records = records;
            batch.puts.clear();
            if staged.immediate[shard].spent.is_none() {
                staged.immediate[shard].spent = Some(batch);
            }
        }
        let mut gathered = self.gathered.borrow_mut();
        batches.into_iter().rev().for_each(|batch| gathered.push_front(batch));
        drop(gathered);
        staged.pieces.retain(|piece| !piece.bytes.is_empty());
        staged.end = self.end.borrow().at();
        staged.group.end = staged.end;
        if staged.group.waiting.iter().any(|batch| !batch.replies.is_empty()) {
            let id = self.next_waiter.get();
            self.next_waiter.set(id + 1);
            staged.group.waiter = Some(WaiterId(id));
        }
        staged
    }

    fn is_retired(&self, queue: QueueHandle) -> bool {
        self.retired.borrow().get(queue.index()).is_some_and(|retired| *retired)
    }

    fn retire(&self, queues: &[QueueHandle]) {
        let mut retired = self.retired.borrow_mut();
        let count = queues.iter().map(|queue| queue.index() + 1).max().unwrap_or(0);
        if count > retired.len() {
            retired.resize(count, false);
        }
        queues.iter().for_each(|queue| retired[queue.index()] = true);
    }

    fn fits_here(&self, len: usize) -> bool {
        matches!(self.end.borrow().place(len as u64), Place::Here(_))
    }

    fn current_file(&self) -> Rc<LogFile> {
        Rc::clone(self.files.borrow().back().expect("a segment is always open"))
    }

    /// Sees to it that the last piece can take `len` bytes: rolls to the next segment if it must, and waits for that if
    /// nobody has a place in this turn yet.
    async fn make_room(&self, len: u64, staged: &mut Staged) -> Result<(), NoRoom> {
        let not_created = NoRoom::Refused(PutStatus::SegmentNotCreated);
        let place = self.end.borrow().place(len);
        match place {
            Place::TooLarge { .. } => return Err(not_created),
            Place::Here(at) => {
                if staged.pieces.is_empty() {
                    staged.pieces.push(Piece { file: self.current_file(), at, bytes: Vec::new() });
                }
            }
            Place::NextSegment { blank_at, blank_len, at } => {
                if staged.is_begun() && matches!(*self.ahead.borrow(), Ahead::None) {
                    return Err(NoRoom::Later);
                }
                let Some(next) = self.next_segment(staged.segment_deadline_ms).await else { return Err(not_created) };
                if staged.pieces.is_empty() {
                    staged.pieces.push(Piece { file: self.current_file(), at: blank_at, bytes: Vec::new() });
                }
                let last = staged.pieces.last_mut().expect("one is open");
                last.bytes.extend_from_slice(&record::encode_blank(blank_len));
                tracing::info!(from = %blank_at, to = %at, "commit log rolled");
                self.end.borrow_mut().advance(at, 0);
                self.shared.segments.push(next.segment);
                self.files.borrow_mut().push_back(Rc::clone(&next.file));
                staged.pieces.push(Piece { file: next.file, at, bytes: Vec::new() });
            }
        }
        Ok(())
    }

    /// Gives a put its offsets, patches its records, and notes its answer and dispatch entries.
    #[expect(clippy::too_many_arguments, reason = "one call site a layout; a struct would only rename the arguments")]
    fn number(
        &self,
        shard: usize,
        put: &Put,
        metas: &[RecordMeta],
        bytes: &mut [u8],
        phy: PhyOffset,
        stored_at: Timestamp,
        staged: &mut Staged,
    ) {
        let first = self.counters.borrow_mut().take(put.queue, u64::from(put.records));
        let shards = self.replies.len();
        let shown = self.shown_when(put, phy.advance(u64::from(put.len)), staged.start);
        let end = phy.advance(u64::from(put.len));
        let flushed = match shown {
            Shown::Written => PhyOffset(0),
            Shown::Flushed => end,
            Shown::Behind(gate) => gate,
        };
        let mut waiting = self.waiting_keys.borrow_mut();
        if waiting.back().is_none_or(|last| last.turn != staged.start) {
            waiting.push_back(WaitingKeys { turn: staged.start, written: end, flushed, keys: Vec::new() });
        }
        let last = waiting.back_mut().expect("just seen to");
        (last.written, last.flushed) = (end, last.flushed.max(flushed));
        let keys_before = last.keys.len();
        let derived = staged.group.derived(shown, shards);
        let (mut at, mut queue_offset, mut rest) = (phy, first, bytes);
        for meta in metas {
            let (record, behind) = rest.split_at_mut(meta.len as usize);
            record::number(record, meta.store_timestamp_at, queue_offset, at, stored_at);
            if self.shared.settings.property_crc {
                record::seal(record);
            }
            let tags = match meta.tags {
                TagsRule::Code(code) => code,
                TagsRule::DueAfterMs(ms) => TagsCode(stored_at.plus_ms(ms).0),
            };
            let unit = DispatchUnit { queue: put.queue, queue_offset, phy: at, len: meta.len, tags, stored_at };
            derived.units[put.queue.owner(shards).index()].push(unit);
            last.keys.extend(meta.keys.iter().map(|key| KeyEntry { key: *key, phy: at, stored_at }));
            at = at.advance(u64::from(meta.len));
            queue_offset = queue_offset.advance(1);
            rest = behind;
        }
        self.waiting_count.set(self.waiting_count.get() + last.keys.len() - keys_before);
        self.end.borrow_mut().advance(phy, u64::from(put.len));
        staged.puts += 1;
        let reply = PutReply { token: put.token, status: PutStatus::Ok, queue_offset: first, phy };
        if put.wait {
            staged.group.waiting[shard].replies.push(reply);
        } else {
            staged.immediate[shard].replies.push(reply);
        }
    }

    /// When a put is shown that ends at `end`, in the turn that begins at `start`. On a sync node once it is flushed. On
    /// an async node those of sync topics too, and those behind one in the same queue not before it.
    fn shown_when(&self, put: &Put, end: PhyOffset, start: PhyOffset) -> Shown {
        if put.hold && !self.zeroes.get() {
            // Somebody waits for flushes, as it turns out.
            self.zeroes.set(self.shared.settings.zero_ahead == ZeroAhead::Auto);
        }
        if self.shared.settings.flush == FlushMode::Sync {
            return Shown::Flushed;
        }
        let mut queues = self.held_queues.borrow_mut();
        let index = put.queue.index();
        if put.hold {
            if index >= queues.len() {
                queues.resize(index + 1, PhyOffset(0));
            }
            queues[index] = end;
            self.held_to.set(end);
            return Shown::Flushed;
        }
        match queues.get(index) {
            // Flushes end where turns do: a put of this turn is flushed with all of it.
            Some(gate) if *gate > start => Shown::Flushed,
            Some(gate) if *gate > self.commit.borrow().flushed() => Shown::Behind(*gate),
            _ => Shown::Written,
        }
    }

    fn wake_zeroer(&self) {
        if self.zeroes.get() {
            self.zero.wake();
        }
    }

    /// Gives the last piece's buffer back, if its write does.
    async fn write(&self, pieces: Vec<Piece>, durable: bool) -> io::Result<Vec<u8>> {
        let mut spent = Vec::new();
        for piece in pieces {
            let end = piece.at.advance(piece.bytes.len() as u64);
            while self.zeroing.get().is_some_and(|(from, to)| from < end && piece.at < to) {
                self.zeroing_done.wait().await;
            }
            if let Some(tail) = &mut *self.tail.borrow_mut() {
                tail.append(piece.at, &piece.bytes);
            }
            spent = piece.file.write(piece.at, piece.bytes, durable).await?;
        }
        Ok(spent)
    }

    /// Flushes up to `to`, and on as long as somebody waits for more.
    async fn flush(&self, to: PhyOffset) {
        let mut next = Some(to);
        while let Some(to) = next {
            let covered = |group: &&Group| group.end <= to;
            let all_written = self.groups.borrow().iter().take_while(covered).all(|group| group.written);
            assert!(all_written, "a sync covers only what was written before it");
            let from = self.commit.borrow().flushed();
            let segment_len = self.shared.settings.segment_len;
            let files: Vec<_> = {
                let files = self.files.borrow();
                files.iter().filter(|f| f.start() < to && f.start().advance(segment_len) > from).cloned().collect()
            };
            let began_us = crate::io::steady_us();
            // What is written from here on counts into the next one.
            let puts = self.unflushed_puts.take();
            for file in files {
                if let Err(error) = file.sync().await {
                    self.poison("sync", file.path(), &error);
                    return;
                }
            }
            if self.shared.is_poisoned() {
                return;
            }
            self.note_flush(crate::io::steady_us() - began_us, puts);
            next = self.flushed(to);
        }
    }

    /// Counts a flush that covers so many puts which none before it did.
    fn note_flush(&self, took_us: u64, puts: u64) {
        let took = Duration::from_micros(took_us);
        self.stages.borrow_mut().record(Stage::Flush, took);
        self.shared.note_flush(took);
        let counts = &self.shared.writer_times;
        counts.flush.add(took_us, 1);
        if puts > 0 {
            counts.flush_puts.add(puts, 1);
        }
    }

    /// Everything up to `to` is on stable storage: answers and shows it. Returns where to flush to next.
    fn flushed(&self, to: PhyOffset) -> Option<PhyOffset> {
        let mut actions = Vec::new();
        self.commit.borrow_mut().step(Event::Flushed { to }, &mut actions);
        self.shared.set_flushed(to);
        self.note_loss_window();
        self.shared.flushed_stored_at.store(self.flush_stored_at.get().0 as u64, std::sync::atomic::Ordering::Release);
        self.show_flushed(to);
        self.forget_flushed_files(to);
        // `show_flushed` has answered the waiters that are released.
        self.flush_target(&actions)
    }

    /// Tells the group commit what happened; returns where to flush to, if it says so.
    fn step(&self, event: Event) -> Option<PhyOffset> {
        let mut actions = Vec::new();
        self.commit.borrow_mut().step(event, &mut actions);
        self.note_loss_window();
        self.flush_target(&actions)
    }

    /// Tells the other cores how old the oldest byte is that is not flushed.
    fn note_loss_window(&self) {
        self.shared.set_unflushed_since(self.commit.borrow().unflushed_since_ms());
    }

    /// Where the flush among `actions` leads, if there is one. It covers everything appended so far, and the newest store
    /// time of that is noted for the checkpoint.
    fn flush_target(&self, actions: &[Action]) -> Option<PhyOffset> {
        let to = actions.iter().find_map(|action| match action {
            Action::Flush { to } => Some(*to),
            _ => None,
        })?;
        self.flush_stored_at.set(self.end.borrow().last_stored_at());
        Some(to)
    }

    /// The group that ends at `end` is in the page cache: on an async node readers may see it, but for what it holds.
    fn show_written(&self, end: PhyOffset, now_us: u64) {
        let is_async = self.shared.settings.flush == FlushMode::Async;
        if is_async {
            self.shared.set_confirm(end);
        }
        let mut groups = self.groups.borrow_mut();
        let Some(at) = groups.iter().rposition(|group| group.end == end) else { return };
        let group = &mut groups[at];
        group.written = true;
        if !group.write_flushes {
            group.times.written_us = now_us;
        }
        let mut open = std::mem::take(&mut group.open);
        let mut held_count = group.held.count();
        let needed = held_count > 0 || group.waiter.is_some();
        for (gate, behind) in std::mem::take(&mut group.behind) {
            if gate <= self.commit.borrow().flushed() {
                open.append(behind);
            } else {
                held_count += behind.count();
                let gated = groups.iter_mut().find(|group| group.end >= gate);
                gated.expect("a group stays until what it holds is flushed").held.append(behind);
            }
        }
        self.held_units.set(self.held_units.get() + held_count);
        if !needed {
            groups.remove(at);
        }
        drop(groups);
        self.dispatch(open, now_us);
        self.give_out_keys();
    }

    /// Everything before `to` is on stable storage: readers may see it, and who waited for it is answered.
    fn show_flushed(&self, to: PhyOffset) {
        if self.shared.settings.flush == FlushMode::Sync {
            self.shared.set_confirm(to);
        }
        let sent_us = crate::io::steady_us();
        loop {
            let mut groups = self.groups.borrow_mut();
            let Some(group) = groups.pop_front_if(|group| group.written && group.end <= to) else { break };
            drop(groups);
            self.held_units.set(self.held_units.get() - group.held.count());
            self.dispatch(group.held, sent_us);
            self.send_replies(group.waiting, TurnTimes { sent_us, ..group.times });
        }
        self.give_out_keys();
        self.shown.wake();
    }

    fn dispatch(&self, derived: Derived, sent_us: u64) {
        for (outlet, units) in self.dispatch.iter().zip(derived.units) {
            if !units.is_empty() {
                self.shared.note_dispatched(units.iter().map(|unit| u64::from(unit.len)).sum());
                outlet.send(DispatchBatch { units, sent_us });
            }
        }
    }

    /// Gives the index builder what is shown by now and has nothing before it that is not.
    fn give_out_keys(&self) {
        let (written, flushed) = (self.shared.appended(), self.commit.borrow().flushed());
        let mut waiting = self.waiting_keys.borrow_mut();
        let mut shown = Vec::new();
        while let Some(next) = waiting.pop_front_if(|next| next.written <= written && next.flushed <= flushed) {
            shown.extend(next.keys);
        }
        self.waiting_count.set(self.waiting_count.get() - shown.len());
        if !shown.is_empty() {
            self.keys.send(shown);
        }
    }

    fn send_replies(&self, batches: Vec<ReplyBatch>, times: TurnTimes) {
        for (outlet, mut batch) in self.replies.iter().zip(batches) {
            if !batch.replies.is_empty() || !batch.retired.is_empty() || batch.spent.is_some() {
                batch.times = times;
                outlet.send(batch);
            }
        }
    }

    fn answer_all(&self, batches: VecDeque<(usize, SubmitBatch)>, status: PutStatus) {
        let now_us = crate::io::steady_us();
        let times = TurnTimes { staged_us: now_us, written_us: now_us, sent_us: now_us };
        for (shard, batch) in batches {
            let replies = batch.puts.iter().map(|put| refusal(put, status)).collect();
            let retired = batch.retires.iter().map(|retire| (retire.token, None)).collect();
            self.replies[shard].send(ReplyBatch { replies, retired, spent: Some(batch), times });
        }
    }

    /// A write or sync failed: nothing that is not flushed is promised, nobody is kept waiting, and nothing is written
    /// again before a restart.
    fn poison(&self, what: &'static str, path: &Path, error: &io::Error) {
        if self.shared.is_poisoned() {
            return self.give_up();
        }
        let at = self.commit.borrow().flushed();
        tracing::error!(path = %path.display(), flushed = %at, %error, "commit log {what} failed; the node takes no messages until it is restarted");
        let why = error.to_string();
        self.shared.set_poison(Poison { what, path: path.to_owned(), why, flushed: at });
        self.give_up();
    }

    /// What a poisoned log comes with, whoever poisoned it.
    fn give_up(&self) {
        if self.commit.borrow().is_poisoned() {
            return;
        }
        self.shown.wake();
        let mut actions = Vec::new();
        self.commit.borrow_mut().step(Event::FlushFailed, &mut actions);
        let groups = std::mem::take(&mut *self.groups.borrow_mut());
        self.held_units.set(0);
        // What they are of is shown to nobody any more.
        self.waiting_keys.take();
        self.waiting_count.set(0);
        let sent_us = crate::io::steady_us();
        for group in groups {
            let times = TurnTimes { sent_us, ..group.times };
            self.send_replies(group.waiting.into_iter().map(failed).collect(), times);
        }
    }

    /// Closes segments that are rolled out and flushed.
    fn forget_flushed_files(&self, to: PhyOffset) {
        let segment_len = self.shared.settings.segment_len;
        let mut files = self.files.borrow_mut();
        while files.len() > 1 && files[0].start().advance(segment_len) <= to {
            files.pop_front();
        }
    }

    async fn flush_all(&self) {
        if !self.commit.borrow().is_poisoned()
            && let Some(to) = self.step(Event::FlushDue)
        {
            self.flush(to).await;
        }
        while self.commit.borrow().is_flushing() && !self.shared.is_poisoned() {
            crate::io::sleep(Duration::from_millis(1)).await;
        }
    }

    /// On an async node flushes what somebody waits for, beside the turns.
    async fn run_flushes(self: Rc<Self>) {
        loop {
            self.flush_now.wait().await;
            if let Some(to) = self.flush_to.take() {
                self.flush(to).await;
            }
        }
    }

    /// Flushes what nobody waits for: on an async node by the interval rule, on a sync node soon.
    async fn run_flusher(self: Rc<Self>) {
        let settings = self.shared.settings.clone();
        let mut rule =
            FlushRule::new(settings.flush_least_pages, settings.flush_thorough_interval_ms, crate::io::steady_ms());
        let soon = Duration::from_millis(UNWAITED_FLUSH_MS);
        loop {
            let (flushed, appended) = (self.shared.flushed(), self.shared.appended());
            if flushed >= appended || self.shared.is_poisoned() {
                self.unflushed.wait().await;
            }
            match settings.flush {
                FlushMode::Sync => crate::io::sleep(soon).await,
                FlushMode::Async => {
                    let interval = Duration::from_millis(settings.flush_interval_ms);
                    if crate::io::within(interval, self.flush_soon.wait()).await.is_some() {
                        crate::io::sleep(soon).await;
                    }
                }
            }
            let (flushed, appended) = (self.shared.flushed(), self.shared.appended());
            let due = match settings.flush {
                FlushMode::Async => {
                    rule.due(crate::io::steady_ms(), flushed, appended, settings.segment_len)
                        || self.held_to.get() > flushed
                }
                FlushMode::Sync => flushed < appended,
            };
            if !due || self.shared.is_poisoned() {
                continue;
            }
            if let Some(to) = self.step(Event::FlushDue) {
                self.flush(to).await;
            }
        }
    }

    /// While a turn runs or somebody waits: answers waiters whose time is up, and bounces puts that a stuck device keeps
    /// in the rings.
    async fn run_deadlines(self: Rc<Self>) {
        loop {
            self.busy.wait().await;
            while self.shared.turn_since_ms() != 0 || self.commit.borrow().has_waiters() {
                crate::io::sleep(Duration::from_millis(TICK_MS)).await;
                if self.shared.is_poisoned() {
                    // Also by who found that the store is not in its place.
                    self.give_up();
                }
                let now_ms = crate::io::steady_ms();
                self.answer_overdue(now_ms);
                let limit = self.shared.settings.put_wait_ms_max;
                if self.shared.turn_since_ms() != 0 && now_ms.saturating_sub(self.shared.turn_since_ms()) > limit {
                    self.bounce_expired(now_ms, limit);
                }
            }
        }
    }

    /// Answers who waits longer than allowed: what is written is stored though not flushed, and what is written and flushed
    /// in one will be when the device lets it. Of what only a write holds up nothing is promised.
    fn answer_overdue(&self, now_ms: u64) {
        let mut actions = Vec::new();
        self.commit.borrow_mut().step(Event::Tick { now_ms }, &mut actions);
        let mut overdue = Vec::new();
        for group in self.groups.borrow_mut().iter_mut() {
            if group.waiter.is_none() || group.deadline_ms > now_ms {
                continue;
            }
            let flush_is_late = group.written || group.write_flushes;
            let status = if flush_is_late { PutStatus::FlushDiskTimeout } else { PutStatus::ServiceNotAvailable };
            let mut waiting: Vec<ReplyBatch> = group.waiting.iter_mut().map(std::mem::take).collect();
            for reply in waiting.iter_mut().flat_map(|batch| &mut batch.replies) {
                reply.status = status;
                self.shared.counters.flush_timeouts.add(1);
            }
            overdue.push((waiting, TurnTimes { sent_us: crate::io::steady_us(), ..group.times }));
        }
        overdue.into_iter().for_each(|(waiting, times)| self.send_replies(waiting, times));
    }

    fn bounce_expired(&self, now_ms: u64, limit: u64) {
        let mut gathered = self.gathered.borrow_mut();
        for (shard, ring) in self.rings.borrow_mut().iter_mut().enumerate() {
            while let Some(batch) = ring.pop() {
                gathered.push_back((shard, batch));
            }
        }
        let queued = gathered.iter().map(|(_, batch)| batch.puts.len()).sum::<usize>() as u32;
        let (expired, kept) = std::mem::take(&mut *gathered)
            .into_iter()
            .partition(|(_, batch)| now_ms.saturating_sub(batch.opened_ms) > limit);
        *gathered = kept;
        drop(gathered);
        for (shard, batch) in expired as VecDeque<(usize, SubmitBatch)> {
            let waited_ms = now_ms.saturating_sub(batch.opened_ms) as u32;
            self.shared.counters.puts_expired.add(batch.puts.len() as u64);
            let stages = self.shared.stage_times();
            self.answer_all(VecDeque::from([(shard, batch)]), PutStatus::Busy { waited_ms, queued, stages });
        }
    }

    fn prepare_if_near(&self) {
        let segment_len = self.shared.settings.segment_len;
        if self.end.borrow().at().0 % segment_len > segment_len / 2 && matches!(*self.ahead.borrow(), Ahead::None) {
            self.prepare.wake();
        }
    }

    /// The next segment, waited for if it is not ready; nothing if it cannot be made, or not by `deadline_ms`. Then nobody
    /// waits again until [`Writer::run_preparer`], which is still at it, has it.
    async fn next_segment(&self, deadline_ms: u64) -> Option<Prepared> {
        loop {
            let ahead = self.ahead.take();
            match ahead {
                Ahead::Ready(prepared) => return Some(prepared),
                Ahead::Failed => {
                    *self.ahead.borrow_mut() = Ahead::Failed;
                    return None;
                }
                Ahead::None => self.prepare.wake(),
            }
            let left_ms = deadline_ms.saturating_sub(crate::io::steady_ms());
            let changed = crate::io::within(Duration::from_millis(left_ms), self.ahead_changed.wait()).await;
            if changed.is_none() && matches!(*self.ahead.borrow(), Ahead::None) {
                let start = self.current_file().start().advance(self.shared.settings.segment_len);
                let path = self.layout.segment(start);
                tracing::error!(path = %path.display(), "the next commit log segment is not made in time; what needs it is refused until it is");
                *self.ahead.borrow_mut() = Ahead::Failed;
                return None;
            }
        }
    }

    /// Makes the next segment ahead of its use.
    async fn run_preparer(self: Rc<Self>) {
        loop {
            self.prepare.wait().await;
            if matches!(*self.ahead.borrow(), Ahead::Ready(_)) {
                continue;
            }
            let start = self.current_file().start().advance(self.shared.settings.segment_len);
            let made = make_segment(&self.shared, &self.layout, &self.blocking, start).await;
            match made {
                Ok(prepared) => {
                    self.shared.set_no_segment(None);
                    *self.ahead.borrow_mut() = Ahead::Ready(prepared);
                }
                Err(error) => {
                    let path = self.layout.segment(start);
                    let limit = match error.raw_os_error() {
                        Some(libc::EMFILE) => "; raise the limit of open files (RLIMIT_NOFILE)",
                        Some(libc::EFBIG) => "; raise the limit of file sizes (RLIMIT_FSIZE)",
                        Some(libc::ENOSPC | libc::EDQUOT) => "; free space on its disk",
                        _ => "",
                    };
                    let why = format!("the next commit log segment {} cannot be made: {error}{limit}", path.display());
                    tracing::error!("{why}; tried again while messages need it");
                    self.shared.set_no_segment(Some(why));
                    *self.ahead.borrow_mut() = Ahead::Failed;
                }
            }
            self.ahead_changed.wake();
            if matches!(*self.ahead.borrow(), Ahead::Failed) {
                crate::io::sleep(PREPARE_RETRY).await;
                *self.ahead.borrow_mut() = Ahead::None;
                self.prepare_if_near();
            }
        }
    }

    /// Writes zeros ahead of the append point, so that a flush need not turn unwritten blocks into written ones.
    async fn run_zeroer(self: Rc<Self>) {
        let segment_len = self.shared.settings.segment_len;
        let (mut zeroed_to, mut unsynced) = (PhyOffset(0), 0);
        loop {
            self.zero.wait().await;
            loop {
                let end = self.end.borrow().at();
                let file = self.current_file();
                let segment_end = file.start().advance(segment_len);
                let nearest = PhyOffset(end.advance(ZERO_LEAD_LEN).0.next_multiple_of(ZERO_LEN as u64));
                let at = zeroed_to.max(nearest);
                let farthest = end.advance(ZERO_WINDOW_LEN).min(segment_end);
                if at.advance(ZERO_LEN as u64) > farthest || self.shared.is_poisoned() {
                    break;
                }
                let to = at.advance(ZERO_LEN as u64);
                self.zeroing.set(Some((at, to)));
                let written = file.write_zeros(at, ZERO_LEN).await;
                self.zeroing.set(None);
                self.zeroing_done.wake();
                match written {
                    Ok(()) => {}
                    Err(error) if error.kind() == io::ErrorKind::WriteZero => {
                        tracing::warn!(path = %file.path().display(), %error, "zeroing ahead stops; flushes will be slower");
                        return;
                    }
                    Err(error) => return self.poison("write", file.path(), &error),
                }
                zeroed_to = to;
                unsynced += ZERO_LEN as u64;
                if unsynced >= ZERO_SYNC_LEN || zeroed_to.advance(ZERO_LEN as u64) > farthest {
                    unsynced = 0;
                    // The kernel tells of lost pages once: the next flush of the log would not hear of them.
                    if let Err(error) = file.sync().await {
                        return self.poison("sync", file.path(), &error);
                    }
                }
            }
        }
    }
}

/// The buffer of a write returns with a batch that has none: the one whose bytes it was, where there is but one.
fn give_back(buffer: Vec<u8>, batches: &mut [ReplyBatch]) {
    let mut spent = batches.iter_mut().filter_map(|batch| batch.spent.as_mut());
    if let Some(batch) = spent.find(|batch| batch.bytes.capacity() == 0) {
        batch.bytes = buffer;
    }
}

fn refusal(put: &Put, status: PutStatus) -> PutReply {
    PutReply { token: put.token, status, queue_offset: QueueOffset(0), phy: PhyOffset(0) }
}

/// The same answers, saying that nothing is promised.
fn failed(mut batch: ReplyBatch) -> ReplyBatch {
    for reply in &mut batch.replies {
        if reply.status == PutStatus::Ok {
            reply.status = PutStatus::ServiceNotAvailable;
        }
    }
    batch
}

async fn open_log_file(
    shared: &Shared,
    layout: &Layout,
    blocking: &Blocking,
    start: PhyOffset,
    end: PhyOffset,
) -> io::Result<Rc<LogFile>> {
    let settings = &shared.settings;
    let sync_call = settings.sync_call.unwrap_or(SyncCall::Fdatasync);
    let path = layout.segment(start);
    LogFile::open(blocking, &path, start, settings.segment_len, end, settings.append, sync_call).await.map(Rc::new)
}

async fn make_segment(
    shared: &Arc<Shared>,
    layout: &Layout,
    blocking: &Blocking,
    start: PhyOffset,
) -> io::Result<Prepared> {
    let (path, len) = (layout.segment(start), shared.settings.segment_len);
    let is_dma = shared.settings.append == AppendMode::Dma;
    let segment = blocking
        .run(move || {
            crate::io::create_full_length(&path, len)?;
            if is_dma {
                crate::io::write_first_block(&path)?;
            }
            Segment::open(&path, start)
        })
        .await?;
    let file = open_log_file(shared, layout, blocking, start, start).await?;
    Ok(Prepared { file, segment: Arc::new(segment) })
}

#[cfg(test)]
mod tests;
