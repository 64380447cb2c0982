//! From a shard to the writer: one batch a turn of the shard, encoded where it arrived; and back: one answer a put.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};

use slab::Slab;
use smallvec::SmallVec;

use super::queues::QueueView;
use super::shared::{FlushMode, PutFlush, Shared, StageTimes};
use crate::dispatch::{Receiver, Sender};
use crate::format::record::{EncodeError, RecordSpec, UNSEALED};
use crate::io;
use crate::metrics::Traffic;
use crate::types::properties::VALUE_END;
use crate::types::{KeyHash, PhyOffset, QueueHandle, QueueOffset, TagsCode};

/// Bytes of buffer that a batch may keep when it is used again, and that it is given ahead.
const KEPT_BUFFER_LEN: usize = 1 << 20;
/// Batches that keep their buffers while none needs them, of those that wait to be used again.
const SPARE_BUFFERS: usize = 4;
const SPARE_BATCHES: usize = 16;
/// Records likewise: a batch can have a hundred thousand.
const KEPT_RECORDS: usize = 8192;

/// A message on its way into the log.
pub struct Message<'a> {
    pub queue: &'a Arc<QueueView>,
    pub flag: i32,
    pub sys_flag: i32,
    pub born_timestamp: i64,
    pub born_host: SocketAddr,
    pub reconsume_times: i32,
    pub prepared_transaction_offset: i64,
    pub body: &'a [u8],
    /// Pieces of the property text, stored back to back.
    pub properties: &'a [&'a [u8]],
    pub tags: TagsRule,
    pub keys: SmallVec<[KeyHash; 3]>,
}

/// What the consume queue unit of a message will say beside place and size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagsRule {
    Code(TagsCode),
    /// Of SCHEDULE_TOPIC_XXXX: its delivery time, this many ms after its store time.
    DueAfterMs(i64),
}

/// How a put ended.
#[derive(Clone, Debug)]
pub struct PutOutcome {
    pub status: PutStatus,
    /// Of the first record.
    pub queue_offset: QueueOffset,
    /// Of the first record; that of record `k` is this plus the lengths of those before it.
    pub phy: PhyOffset,
    pub record_lens: SmallVec<[u32; 1]>,
    pub times: PutTimes,
}

/// How long each stage of one put took, in µs; the answer goes out behind them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PutTimes {
    /// When the answer was here (steady clock), and how long before that its turn's first put came in.
    pub answered_us: u64,
    pub took_us: u64,
    /// The first put of the turn came in, to the turn's being handed to the writer.
    pub socket_us: u64,
    /// To the writer's taking it up.
    pub queue_us: u64,
    /// To its being in the log.
    pub append_us: u64,
    /// To its being on stable storage, of who waits for that.
    pub flush_us: u64,
    /// The way back.
    pub reply_us: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutStatus {
    Ok,
    /// Stored, but not on stable storage within the time limit.
    FlushDiskTimeout,
    /// Not stored, or not known to be: the log takes no writes.
    ServiceNotAvailable,
    /// The next segment could not be made; nothing is stored.
    SegmentNotCreated,
    /// Waited too long for the writer; nothing is stored.
    Busy {
        waited_ms: u32,
        queued: u32,
        stages: StageTimes,
    },
    /// The topic of its queue is being deleted, or was; nothing is stored.
    QueueGone,
}

/// Why a put was not even tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PutRefusal {
    MessageIllegal(String),
    PropertiesTooLong {
        len: usize,
    },
    /// Too much is on its way to the writer.
    Overloaded {
        stages: StageTimes,
    },
    NotAvailable(String),
}

/// One put as the writer sees it: `records` records, back to back in the batch's bytes.
#[derive(Debug)]
pub struct Put {
    pub token: u32,
    pub queue: QueueHandle,
    pub records: u32,
    pub len: u32,
    /// Answered once it is on stable storage, and not before.
    pub wait: bool,
    /// Shown to readers once it is on stable storage, and not before; on a sync node everything is.
    pub hold: bool,
}

/// The queues of a topic that is being deleted: the writer takes no puts for them behind this batch.
#[derive(Debug)]
pub struct Retire {
    pub token: u32,
    pub queues: Vec<QueueHandle>,
}

#[derive(Debug)]
pub struct RecordMeta {
    pub len: u32,
    /// Where the store time stands in the record: behind the born host, whose length varies.
    pub store_timestamp_at: u8,
    pub tags: TagsRule,
    pub keys: SmallVec<[KeyHash; 3]>,
}

/// What a shard hands to the writer in one turn.
#[derive(Debug, Default)]
pub struct SubmitBatch {
    pub bytes: Vec<u8>,
    pub puts: Vec<Put>,
    pub records: Vec<RecordMeta>,
    pub retires: Vec<Retire>,
    /// When its first put came in (steady clock, ms).
    pub opened_ms: u64,
    /// When it was handed over (steady clock, µs).
    pub submitted_us: u64,
}

impl SubmitBatch {
    fn is_empty(&self) -> bool {
        self.puts.is_empty() && self.retires.is_empty()
    }

    pub fn clear(&mut self) {
        if self.bytes.capacity() > KEPT_BUFFER_LEN {
            self.bytes = Vec::new();
        }
        if self.records.capacity() > KEPT_RECORDS {
            self.records = Vec::new();
        }
        self.bytes.clear();
        self.puts.clear();
        self.records.clear();
        self.retires.clear();
    }
}

/// The writer's answer to one put.
#[derive(Debug)]
pub struct PutReply {
    pub token: u32,
    pub status: PutStatus,
    pub queue_offset: QueueOffset,
    pub phy: PhyOffset,
}

/// Answers for one shard, and the batch they belong to, for its buffers.
#[derive(Debug, Default)]
pub struct ReplyBatch {
    pub replies: Vec<PutReply>,
    /// Tokens of [`Retire`]s, with the end of the log at that moment; nothing if the writer could not do it.
    pub retired: Vec<(u32, Option<PhyOffset>)>,
    pub spent: Option<SubmitBatch>,
    pub times: TurnTimes,
}

/// When the puts that a [`ReplyBatch`] answers reached each stage (steady clock, µs).
#[derive(Clone, Copy, Debug, Default)]
pub struct TurnTimes {
    /// The writer took their turn up.
    pub staged_us: u64,
    /// They were in the log; the same if they never were.
    pub written_us: u64,
    /// They were answered; later than that only if they waited for a flush.
    pub sent_us: u64,
}

struct Pending {
    done: Box<dyn FnOnce(PutOutcome)>,
    record_lens: SmallVec<[u32; 1]>,
    len: u64,
    /// When its batch was opened (steady clock, µs), and handed over.
    opened_us: u64,
    submitted_us: u64,
}

/// The shard's side of the hand-over. Lives on one shard core.
pub struct Submitter {
    shared: Arc<Shared>,
    batch: RefCell<SubmitBatch>,
    pending: RefCell<Slab<Pending>>,
    retiring: RefCell<Slab<flume::Sender<Option<PhyOffset>>>>,
    spare: RefCell<Vec<SubmitBatch>>,
    wake: LocalWake,
    opened_us: Cell<u64>,
    /// Bytes that a turn takes, of late at most, as far as a buffer is made for that ahead.
    turn_len: Cell<usize>,
    traffic: Arc<Traffic>,
}

impl Submitter {
    pub fn new(shared: Arc<Shared>) -> Rc<Submitter> {
        let traffic = Arc::new(Traffic::new(shared.series.slots()));
        shared.traffic.push(Arc::clone(&traffic));
        Rc::new(Submitter {
            shared,
            opened_us: Cell::new(0),
            turn_len: Cell::new(0),
            traffic,
            batch: RefCell::default(),
            pending: RefCell::default(),
            retiring: RefCell::default(),
            spare: RefCell::default(),
            wake: LocalWake::default(),
        })
    }

    /// Bytes of the buffers that wait to be used again.
    #[cfg(test)]
    pub fn spare_len(&self) -> usize {
        self.spare.borrow().iter().map(|batch| batch.bytes.capacity()).sum()
    }

    /// Puts that wait for an answer on this shard.
    pub fn pending(&self) -> usize {
        self.pending.borrow().len()
    }

    /// What this shard has put and got.
    pub fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// Encodes the messages into this turn's batch; all share one queue and are stored back to back. `done` runs on
    /// this shard exactly once, unless an error is returned.
    pub fn put(
        &self,
        messages: &[Message<'_>],
        flush: PutFlush,
        done: Box<dyn FnOnce(PutOutcome)>,
    ) -> Result<(), PutRefusal> {
        let encoded = self.try_put(messages, flush, done);
        if encoded.is_err() {
            self.traffic.note_failed_put();
        }
        encoded
    }

    fn try_put(
        &self,
        messages: &[Message<'_>],
        flush: PutFlush,
        done: Box<dyn FnOnce(PutOutcome)>,
    ) -> Result<(), PutRefusal> {
        if let Some(why) = self.shared.refusal() {
            return Err(PutRefusal::NotAvailable(why));
        }
        let Some(first) = messages.first() else {
            return Err(PutRefusal::MessageIllegal("a batch without messages".into()));
        };
        let mut batch = self.batch.borrow_mut();
        let start = batch.bytes.len();
        let (puts, records) = (batch.puts.len(), batch.records.len());
        let encoded = self.encode(&mut batch, messages);
        let len = (batch.bytes.len() - start) as u64;
        let checked = encoded.and_then(|lens| {
            if len > self.shared.settings.segment_len - crate::log::RECORD_ROOM {
                let max = self.shared.settings.segment_len - crate::log::RECORD_ROOM;
                return Err(PutRefusal::MessageIllegal(format!(
                    "the message takes {len} bytes in the log; a segment holds at most {max}"
                )));
            }
            if self.shared.enter(1, len) {
                Ok(lens)
            } else {
                Err(PutRefusal::Overloaded { stages: self.shared.stage_times() })
            }
        });
        let record_lens = match checked {
            Ok(lens) => lens,
            Err(refusal) => {
                batch.bytes.truncate(start);
                batch.records.truncate(records);
                return Err(refusal);
            }
        };
        if puts == 0 {
            self.opened(&mut batch);
        }
        let opened_us = self.opened_us.get();
        let token =
            self.pending.borrow_mut().insert(Pending { done, record_lens, len, opened_us, submitted_us: opened_us });
        let is_sync = self.shared.flush_mode(flush.topic) == FlushMode::Sync;
        batch.puts.push(Put {
            token: u32::try_from(token).expect("bounded by what may be on its way"),
            queue: first.queue.handle(),
            records: messages.len() as u32,
            len: len as u32,
            wait: is_sync && flush.may_wait,
            hold: is_sync,
        });
        Ok(())
    }

    /// Notes when a batch gets its first put, and sees to it that it goes to the writer.
    fn opened(&self, batch: &mut SubmitBatch) {
        let now_us = io::steady_us();
        self.opened_us.set(now_us);
        batch.opened_ms = now_us / 1000;
        self.wake.wake();
    }

    /// Has the writer take no more puts for these queues, from any shard. Gives the end of the log at that moment: every
    /// record of them lies below it. Nothing if the writer does not do it: it is stuck, takes no writes, or stops.
    pub async fn retire(&self, queues: Vec<QueueHandle>) -> Option<PhyOffset> {
        let (done, end) = flume::bounded(1);
        let token = self.retiring.borrow_mut().insert(done);
        {
            let mut batch = self.batch.borrow_mut();
            if batch.puts.is_empty() {
                self.opened(&mut batch);
            }
            let token = u32::try_from(token).expect("topics are deleted one by one");
            batch.retires.push(Retire { token, queues });
        }
        end.recv_async().await.ok().flatten()
    }

    fn encode(&self, batch: &mut SubmitBatch, messages: &[Message<'_>]) -> Result<SmallVec<[u32; 1]>, PutRefusal> {
        let settings = &self.shared.settings;
        let mut lens = SmallVec::with_capacity(messages.len());
        let mut pieces = SmallVec::<[&[u8]; 8]>::new();
        for message in messages {
            let spec = RecordSpec {
                topic: &message.queue.key().topic,
                queue_id: message.queue.key().queue_id as i32,
                flag: message.flag,
                sys_flag: message.sys_flag,
                born_timestamp: message.born_timestamp,
                born_host: message.born_host,
                store_host: settings.store_host,
                reconsume_times: message.reconsume_times,
                prepared_transaction_offset: message.prepared_transaction_offset,
                body: message.body,
                properties: if settings.property_crc {
                    sealed_pieces(message.properties, &mut pieces)
                } else {
                    message.properties
                },
            };
            let placed = spec.encode_into(&mut batch.bytes).map_err(|error| match error {
                EncodeError::PropertiesTooLong { len } => PutRefusal::PropertiesTooLong { len },
                other => PutRefusal::MessageIllegal(other.to_string()),
            })?;
            lens.push(placed.len);
            batch.records.push(RecordMeta {
                len: placed.len,
                store_timestamp_at: placed.store_timestamp_at,
                tags: message.tags,
                keys: if settings.index { message.keys.clone() } else { SmallVec::new() },
            });
        }
        Ok(lens)
    }

    /// Hands a batch a turn to the writer until the store stops. Runs on the shard core; woken by the first put of a
    /// turn, it runs after the connections that are ready in the same turn.
    pub async fn run_submit(self: Rc<Self>, mut to_writer: Sender<SubmitBatch>) {
        loop {
            self.wake.wait().await;
            // A full ring: puts keep gathering here, within the bounds of `Shared::enter`.
            if poll_fn(|cx| to_writer.poll_ready(cx)).await.is_err() {
                return;
            }
            let mut next = self.spare.borrow_mut().pop().unwrap_or_default();
            self.make_room(&mut next.bytes);
            std::mem::swap(&mut *self.batch.borrow_mut(), &mut next);
            next.submitted_us = io::steady_us();
            let gathered_us = next.submitted_us.saturating_sub(self.opened_us.get());
            self.traffic.socket.add(gathered_us, next.puts.len() as u64);
            for put in &next.puts {
                self.pending.borrow_mut()[put.token as usize].submitted_us = next.submitted_us;
            }
            if !next.is_empty() && to_writer.push(next).is_err() {
                return;
            }
        }
    }

    /// Gives a buffer room for a turn like the last ones, or [`KEPT_BUFFER_LEN`]: growing on the way would copy all of its
    /// bytes once more. It has none at all where the write keeps the buffer, as through the page cache.
    fn make_room(&self, bytes: &mut Vec<u8>) {
        /// How fast a long turn is forgotten.
        const FADES_BY: usize = 16;
        let faded = self.turn_len.get() - self.turn_len.get() / FADES_BY;
        let turn_len = faded.max(self.batch.borrow().bytes.len().min(KEPT_BUFFER_LEN));
        self.turn_len.set(turn_len);
        if bytes.capacity() < turn_len {
            bytes.reserve_exact(turn_len.next_power_of_two());
        }
    }

    /// Runs the callbacks of answered puts until the writer is gone. Runs on the shard core.
    pub async fn run_replies(self: Rc<Self>, mut from_writer: Receiver<ReplyBatch>) {
        while let Ok(batch) = poll_fn(|cx| from_writer.poll_recv(cx)).await {
            let now_us = io::steady_us();
            let TurnTimes { staged_us, written_us, sent_us } = batch.times;
            let (flush_us, reply_us) = (sent_us.saturating_sub(written_us), now_us.saturating_sub(sent_us));
            let answers = batch.replies.len() as u64;
            if flush_us > 0 {
                self.traffic.flush.add(flush_us, answers);
            }
            self.traffic.reply.add(reply_us, answers);
            for reply in batch.replies {
                let Pending { done, record_lens, len, opened_us, submitted_us } =
                    self.pending.borrow_mut().remove(reply.token as usize);
                self.shared.leave(1, len);
                let took_us = now_us.saturating_sub(opened_us);
                match reply.status {
                    PutStatus::Ok | PutStatus::FlushDiskTimeout => {
                        self.traffic.note_put(record_lens.len() as u64, len, took_us);
                    }
                    _ => self.traffic.note_failed_put(),
                }
                done(PutOutcome {
                    status: reply.status,
                    queue_offset: reply.queue_offset,
                    phy: reply.phy,
                    record_lens,
                    times: PutTimes {
                        answered_us: now_us,
                        took_us,
                        socket_us: submitted_us.saturating_sub(opened_us),
                        queue_us: staged_us.saturating_sub(submitted_us),
                        append_us: written_us.saturating_sub(staged_us),
                        flush_us,
                        reply_us,
                    },
                });
            }
            for (token, end) in batch.retired {
                // One that does not wait any more needs no answer.
                let _ = self.retiring.borrow_mut().remove(token as usize).send(end);
            }
            if let Some(mut spent) = batch.spent {
                spent.clear();
                let mut spare = self.spare.borrow_mut();
                if spare.len() >= SPARE_BUFFERS {
                    spent.bytes = Vec::new();
                }
                if spare.len() < SPARE_BATCHES {
                    spare.push(spent);
                }
            }
        }
    }
}

/// Wakes one task of the same core; a wake before the wait is kept.
#[derive(Default)]
pub struct LocalWake {
    woken: Cell<bool>,
    waiter: RefCell<Option<Waker>>,
}

impl LocalWake {
    pub fn wake(&self) {
        self.woken.set(true);
        if let Some(waker) = self.waiter.borrow_mut().take() {
            waker.wake();
        }
    }

    pub async fn wait(&self) {
        poll_fn(|cx| {
            if self.woken.take() {
                return Poll::Ready(());
            }
            *self.waiter.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}
/// The properties with room for a seal behind them, ended before it: Java lets the seal run into an open last value (J19).
fn sealed_pieces<'a, 'p>(properties: &[&'a [u8]], pieces: &'p mut SmallVec<[&'a [u8]; 8]>) -> &'p [&'a [u8]] {
    pieces.clear();
    pieces.extend(properties.iter().copied().filter(|piece| !piece.is_empty()));
    if pieces.last().is_some_and(|last| last.last() != Some(&VALUE_END)) {
        pieces.push(&[VALUE_END]);
    }
    pieces.push(UNSEALED);
    pieces
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Context;

    use super::*;
    use crate::dispatch::ring;
    use crate::store::queues::QueueRegistry;
    use crate::store::{Opening, open, test_store};
    use crate::types::QueueKey;

    #[test]
    fn a_turns_buffer_has_room_for_a_turn_like_the_last_ones() {
        let dir = tempfile::tempdir().unwrap();
        let opened = open(test_store::settings(dir.path().to_owned()), 1 << 30, &Opening::unstopped()).unwrap();
        let submitter = Submitter::new(Arc::clone(&opened.shared));
        let (to_writer, mut writer) = ring(4);
        let mut submit = pin!(Rc::clone(&submitter).run_submit(to_writer));
        let cx = &mut Context::from_waker(Waker::noop());
        let queue = QueueRegistry::new(Vec::new()).queue(&QueueKey::new("T", 0));
        let mut turn = |messages: usize| {
            let room = submitter.batch.borrow().bytes.capacity();
            for _ in 0..messages {
                let message = Message {
                    queue: &queue,
                    flag: 0,
                    sys_flag: 0,
                    born_timestamp: 0,
                    born_host: ([127, 0, 0, 1], 1).into(),
                    reconsume_times: 0,
                    prepared_transaction_offset: 0,
                    body: &[b'x'; 1000],
                    properties: &[],
                    tags: TagsRule::Code(TagsCode(0)),
                    keys: SmallVec::new(),
                };
                let flush = PutFlush { topic: None, may_wait: true };
                let before = submitter.batch.borrow().bytes.len();
                submitter.put(&[message], flush, Box::new(|_| {})).unwrap();
                // How much may be on its way does not matter here.
                opened.shared.leave(1, (submitter.batch.borrow().bytes.len() - before) as u64);
            }
            assert!(submit.as_mut().poll(cx).is_pending());
            let Poll::Ready(Ok(batch)) = writer.poll_recv(cx) else { panic!("a turn's batch is handed over") };
            // As the write through the page cache does, this keeps the bytes.
            (room, batch.bytes)
        };
        turn(100);
        let (room, bytes) = turn(100);
        assert!(room >= bytes.len(), "{room} bytes of room for {}", bytes.len());
        assert_eq!(bytes.capacity(), room, "it did not grow");
        let (room, _) = turn(2_000);
        assert!(room < 1 << 20, "{room}");
        assert_eq!(turn(1).0, KEPT_BUFFER_LEN, "no turn's room is above what a buffer may keep");
        (0..100).for_each(|_| _ = turn(1));
        assert!(turn(1).0 <= 4096, "a long turn is forgotten");
    }
}
