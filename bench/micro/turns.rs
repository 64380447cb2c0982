//! The append path of one shard and the writer, step by step: what `append.rs` lets run, this polls by hand, so that each
//! step can be looked at alone. The roles are the store's own, and so is the file.

use std::cell::Cell;
use std::future::poll_fn;
use std::hint::black_box;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use glommio::{LocalExecutorBuilder, Placement};
use kerolox::dispatch::{Receiver, ring};
use kerolox::io::AppendMode;
use kerolox::store::{
    self, DispatchBatch, KeyEntry, Message, OpenedStore, PutFlush, PutStatus, QueueView, Submitter, TagsRule, Writer,
    WriterRings,
};
use kerolox::types::{QueueKey, TagsCode};
use smallvec::smallvec;
use tempfile::TempDir;

use crate::workload::{self, Sent, TOPIC};

/// Messages of a turn.
pub const TURN: u64 = 64;
const RING_LEN: usize = 64;

type Role = Pin<Box<dyn Future<Output = ()>>>;

/// On an executor, in the order [`Turns::put`], [`Turns::hand_over`], [`Turns::stage`], [`Turns::write`], [`Turns::answer`].
pub struct Turns {
    submitter: Rc<Submitter>,
    submit: Role,
    writer: Role,
    replies: Role,
    dispatch: Receiver<DispatchBatch>,
    keys: Receiver<Vec<KeyEntry>>,
    views: Vec<Arc<QueueView>>,
    sent: Vec<Sent>,
    number: u64,
    answered: Rc<Cell<u64>>,
    /// Kept for their drop, the lock before the folder.
    _kept: (Box<dyn std::any::Any>, TempDir),
}

/// Runs `steps` on an executor of this thread, with a fresh store.
pub fn on_executor<R>(steps: impl AsyncFnOnce(Turns) -> R) -> R {
    let executor = LocalExecutorBuilder::new(Placement::Unbound).io_memory(1 << 20).make().expect("an executor");
    executor.run(async { steps(Turns::open().await).await })
}

impl Turns {
    async fn open() -> Turns {
        let dir = workload::directory();
        let settings = workload::settings(dir.path(), AppendMode::Buffered);
        let opened = store::open(settings, workload::MEMORY_LEN, &store::Opening::unstopped()).expect("an empty store");
        let OpenedStore { lock, layout, shared, mut queues, writer_start, .. } = opened;
        let views = (0..workload::QUEUES).map(|id| queues.queue(&QueueKey::new(TOPIC, id))).collect();
        let (to_writer, from_shard) = ring(RING_LEN);
        let (reply_tx, from_writer) = ring(RING_LEN);
        let (dispatch_tx, dispatch) = ring(RING_LEN);
        let (keys_tx, keys) = ring(RING_LEN);
        let rings = WriterRings {
            from_shards: vec![from_shard],
            replies: vec![reply_tx],
            dispatch: vec![dispatch_tx],
            keys: keys_tx,
        };
        let writer = Writer::open(Arc::clone(&shared), layout, workload::helper(), rings, writer_start)
            .await
            .expect("a segment can be made");
        let submitter = Submitter::new(shared);
        let mut turns = Turns {
            submit: Box::pin(Rc::clone(&submitter).run_submit(to_writer)),
            writer: Box::pin(writer.run()),
            replies: Box::pin(Rc::clone(&submitter).run_replies(from_writer)),
            submitter,
            dispatch,
            keys,
            views,
            sent: workload::messages(),
            number: 0,
            answered: Rc::default(),
            _kept: (Box::new(lock), dir),
        };
        // Buffers that are used again, and code that has run once.
        for _ in 0..4 {
            turns.whole().await;
        }
        turns
    }

    /// Encodes a turn of messages as a shard does for its connections.
    pub fn put(&mut self) {
        for _ in 0..TURN {
            let sent = &self.sent[self.number as usize % self.sent.len()];
            let message = Message {
                queue: &self.views[self.number as usize % self.views.len()],
                flag: 0,
                sys_flag: 0,
                born_timestamp: 1_700_000_000_000,
                born_host: SocketAddr::from(([127, 0, 0, 1], 40_000)),
                reconsume_times: 0,
                prepared_transaction_offset: 0,
                body: black_box(&sent.body),
                properties: &[sent.properties.as_bytes()],
                tags: TagsRule::Code(TagsCode::of(Some("TagA"))),
                keys: smallvec![sent.key],
            };
            let answered = Rc::clone(&self.answered);
            let done = Box::new(move |outcome: store::PutOutcome| {
                assert_eq!(outcome.status, PutStatus::Ok);
                answered.set(answered.get() + 1);
            });
            let flush = PutFlush { topic: None, may_wait: true };
            self.submitter.put(std::slice::from_ref(&message), flush, done).expect("the store takes it");
            self.number += 1;
        }
    }

    /// The batch goes into the ring to the writer.
    pub fn hand_over(&mut self, cx: &mut Context<'_>) {
        assert!(self.submit.as_mut().poll(cx).is_pending());
    }

    /// The writer's turn up to where its write has begun: takes the batch, gives out offsets, patches the records, lays
    /// them out, makes answers and dispatch entries.
    pub fn stage(&mut self, cx: &mut Context<'_>) {
        assert!(self.writer.as_mut().poll(cx).is_pending());
    }

    /// Waits for the write; answers and entries are in their rings then.
    pub async fn write(&mut self) {
        poll_fn(|cx| {
            assert!(self.writer.as_mut().poll(cx).is_pending());
            self.keys.poll_recv(cx).map(drop)
        })
        .await;
        while let Poll::Ready(units) = poll_fn(|cx| Poll::Ready(self.dispatch.poll_recv(cx))).await {
            drop(units);
        }
    }

    /// The shard takes the answers out of their ring and runs what was to be done then.
    pub fn answer(&mut self, cx: &mut Context<'_>) {
        assert!(self.replies.as_mut().poll(cx).is_pending());
    }

    pub async fn whole(&mut self) {
        self.put();
        once(|cx| self.hand_over(cx)).await;
        once(|cx| self.stage(cx)).await;
        self.write().await;
        once(|cx| self.answer(cx)).await;
        assert_eq!(self.answered.get(), self.number, "every message is answered");
    }
}

/// Does something with the context of the task that awaits it.
pub async fn once(mut deed: impl FnMut(&mut Context<'_>)) {
    poll_fn(|cx| {
        deed(cx);
        Poll::Ready(())
    })
    .await;
}
