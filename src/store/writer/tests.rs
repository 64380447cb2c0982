//! The writer on a disk whose syncs end when the test says so, under a clock that the test moves.

use std::cell::RefCell;
use std::pin::Pin;
use std::task::{Context, Waker};

use smallvec::SmallVec;

use super::*;
use crate::dispatch::ring;
use crate::io::disk::{Answer, Change};
use crate::io::tap::{Tap, Watch};
use crate::store::queues::QueueView;
use crate::store::shared::{Health, LossWindow, PutFlush, StoreSettings};
use crate::store::submit::{Message, PutRefusal, Submitter};
use crate::store::test_store::{HelperThread, TestStore};
use crate::types::{QueueKey, key_hash};

const SYNC: PutFlush = PutFlush { topic: Some(FlushMode::Sync), may_wait: true };
const ASYNC: PutFlush = PutFlush { topic: Some(FlushMode::Async), may_wait: true };
const DEFAULT: PutFlush = PutFlush { topic: None, may_wait: true };

fn no_wait(flush: PutFlush) -> PutFlush {
    PutFlush { may_wait: false, ..flush }
}

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// What the writer did to its files, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Done {
    Write,
    /// Write and flush in one.
    Durable,
    Sync,
}

/// The disk and the clock.
#[derive(Default)]
struct World {
    now_ms: Cell<u64>,
    done: RefCell<Vec<Done>>,
    /// Syncs (and durable writes) that may end; `None`: all.
    allowed: Cell<Option<u64>>,
    /// The next change waits for a place among these.
    waits: Cell<bool>,
    sync_fails: Cell<bool>,
    /// End of what is in the page cache, and of what is on stable storage without a hole below it.
    written: Cell<u64>,
    stable: Cell<u64>,
}

impl World {
    fn let_one_sync_end(&self) {
        self.allowed.set(self.allowed.get().map(|count| count + 1));
    }
}

/// The world as the store's files and timers see it.
struct Seen(Rc<World>);

impl Tap for Seen {
    fn ask(&self, change: &Change<'_>) -> io::Result<Answer> {
        let world = &self.0;
        let (done, answer) = match change {
            Change::Write { durable: true, .. } => (Done::Durable, Answer::Do),
            Change::Write { .. } => (Done::Write, Answer::Do),
            Change::Sync { .. } => (Done::Sync, Answer::Skip),
            _ => return Ok(Answer::Do),
        };
        world.done.borrow_mut().push(done);
        world.waits.set(done != Done::Write);
        match done {
            Done::Sync if world.sync_fails.get() => Err(io::Error::other("the device is gone")),
            _ => Ok(answer),
        }
    }

    fn is_simulated(&self) -> bool {
        true
    }

    fn io_delay(&self) -> Task {
        let world = Rc::clone(&self.0);
        let mut waits = world.waits.replace(false);
        let is_sync = world.done.borrow().last() == Some(&Done::Sync);
        // A sync covers what was written before it began.
        let covers = if is_sync { world.written.get() } else { 0 };
        Box::pin(poll_fn(move |_| {
            if waits && let Some(left) = world.allowed.get() {
                if left == 0 {
                    return Poll::Pending;
                }
                world.allowed.set(Some(left - 1));
                waits = false;
            }
            world.stable.set(world.stable.get().max(covers));
            Poll::Ready(())
        }))
    }

    fn written(&self, _path: &std::path::Path, at: u64, len: usize, durable: bool) {
        let end = at + len as u64;
        self.0.written.set(self.0.written.get().max(end));
        // O_DSYNC covers its own write and nothing else.
        if durable && at <= self.0.stable.get() {
            self.0.stable.set(self.0.stable.get().max(end));
        }
    }

    fn steady_ms(&self) -> u64 {
        self.0.now_ms.get()
    }

    fn sleep(&self, ms: u64) -> Task {
        let world = Rc::clone(&self.0);
        let until = world.now_ms.get() + ms;
        Box::pin(poll_fn(move |_| if world.now_ms.get() >= until { Poll::Ready(()) } else { Poll::Pending }))
    }
}

/// A store's writer with one shard, whose builder is the test.
struct Bench {
    world: Rc<World>,
    helper: HelperThread,
    shared: Arc<Shared>,
    submitter: Rc<Submitter>,
    queues: Vec<Arc<QueueView>>,
    tasks: Vec<Task>,
    units: Receiver<DispatchBatch>,
    keys: Receiver<Vec<KeyEntry>>,
    /// What the index got, in its order.
    indexed: Vec<PhyOffset>,
    /// What was shown so far: (queue, queue offset).
    shown: Vec<(u32, u64)>,
    answers: Rc<RefCell<Vec<(u64, PutStatus)>>>,
    next_put: u64,
    _store: TestStore,
    _watch: Watch,
}

impl Bench {
    fn new(node: FlushMode) -> Bench {
        Bench::with(node, |_| {})
    }

    fn with(node: FlushMode, change: impl FnOnce(&mut StoreSettings)) -> Bench {
        let world = Rc::new(World::default());
        world.allowed.set(Some(0));
        let watch = Watch::start(Rc::new(Seen(Rc::clone(&world))));
        let mut store = TestStore::in_memory();
        store.settings.flush = node;
        store.settings.segment_len = 1 << 20;
        change(&mut store.settings);
        world.allowed.set(None);
        let opened = store.open().unwrap();
        let (to_writer, from_shard) = ring(64);
        let (reply_tx, replies) = ring(64);
        let (dispatch_tx, units) = ring(1 << 12);
        let (keys_tx, keys) = ring(1 << 12);
        let rings = WriterRings {
            from_shards: vec![from_shard],
            replies: vec![reply_tx],
            dispatch: vec![dispatch_tx],
            keys: keys_tx,
        };
        let shared = Arc::clone(&opened.shared);
        let (layout, start) = (opened.layout.clone(), opened.writer_start);
        let helper = HelperThread::default();
        let opening = Writer::open(Arc::clone(&shared), layout, helper.blocking(), rings, start);
        let writer = poll_now(opening).expect("nothing to wait for").unwrap();
        let submitter = Submitter::new(Arc::clone(&shared));
        let mut tasks = writer.side_tasks();
        tasks.push(Box::pin(writer.run()));
        tasks.push(Box::pin(Rc::clone(&submitter).run_submit(to_writer)));
        tasks.push(Box::pin(Rc::clone(&submitter).run_replies(replies)));
        let queues = (0..4).map(|n| QueueView::new(QueueKey::new(format!("Q{n}"), 0), QueueHandle(n))).collect();
        world.allowed.set(Some(0));
        world.done.borrow_mut().clear();
        let mut bench = Bench {
            world,
            helper,
            shared,
            submitter,
            queues,
            tasks,
            units,
            keys,
            indexed: Vec::new(),
            shown: Vec::new(),
            answers: Rc::default(),
            next_put: 0,
            _store: store,
            _watch: watch,
        };
        bench.run();
        bench
    }

    /// Puts a message into a queue; gives its number. It is on its way to the writer after [`Bench::run`].
    fn put(&mut self, queue: usize, flush: PutFlush) -> u64 {
        let number = self.next_put;
        self.try_put(queue, flush).unwrap();
        number
    }

    fn try_put(&mut self, queue: usize, flush: PutFlush) -> Result<(), PutRefusal> {
        let number = self.next_put;
        self.next_put += 1;
        let message = Message {
            queue: &self.queues[queue],
            flag: 0,
            sys_flag: 0,
            born_timestamp: 0,
            born_host: self.shared.settings.store_host,
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body: b"hello",
            properties: &[],
            tags: TagsRule::Code(TagsCode(0)),
            keys: SmallVec::from_iter([key_hash("Q", &number.to_string())]),
        };
        let answers = Rc::clone(&self.answers);
        let done = Box::new(move |outcome: crate::store::PutOutcome| {
            answers.borrow_mut().push((number, outcome.status));
        });
        self.submitter.put(std::slice::from_ref(&message), flush, done)
    }

    /// Lets every task run until nothing moves any more.
    fn run(&mut self) {
        let cx = &mut Context::from_waker(Waker::noop());
        for _ in 0..16 {
            self.tasks.retain_mut(|task| task.as_mut().poll(cx).is_pending());
            while let Some(batch) = self.units.pop() {
                self.shown.extend(batch.units.iter().map(|unit| (unit.queue.0, unit.queue_offset.0)));
            }
            while let Some(keys) = self.keys.pop() {
                self.indexed.extend(keys.iter().map(|entry| entry.phy));
            }
        }
    }

    fn pass_ms(&mut self, ms: u64) {
        for _ in 0..ms {
            self.world.now_ms.set(self.world.now_ms.get() + 1);
            self.run();
        }
    }

    fn let_one_sync_end(&mut self) {
        self.world.let_one_sync_end();
        self.run();
    }

    fn let_all_syncs_end(&mut self) {
        self.world.allowed.set(None);
        self.run();
    }

    /// The answers since the last call.
    fn answers(&mut self) -> Vec<(u64, PutStatus)> {
        self.answers.take()
    }

    /// What was shown since the last call.
    fn shown(&mut self) -> Vec<(u32, u64)> {
        std::mem::take(&mut self.shown)
    }

    fn done(&self) -> Vec<Done> {
        self.world.done.take()
    }
}

fn poll_now<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = std::pin::pin!(future);
    let cx = &mut Context::from_waker(Waker::noop());
    (0..64).find_map(|_| match future.as_mut().poll(cx) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    })
}

fn ok(numbers: impl IntoIterator<Item = u64>) -> Vec<(u64, PutStatus)> {
    numbers.into_iter().map(|number| (number, PutStatus::Ok)).collect()
}

#[test]
fn on_an_async_node_only_messages_of_sync_topics_wait_for_the_flush() {
    let mut bench = Bench::new(FlushMode::Async);
    let sync = bench.put(0, SYNC);
    let open = bench.put(1, DEFAULT);
    bench.run();
    assert_eq!(bench.answers(), ok([open]));
    assert_eq!(bench.shown(), [(1, 0)]);
    bench.put(1, DEFAULT);
    bench.run();
    assert_eq!(bench.answers(), ok([open + 1]), "a flush under way keeps nobody else waiting");
    assert_eq!(bench.shown(), [(1, 1)]);
    bench.let_one_sync_end();
    assert_eq!(bench.answers(), ok([sync]));
    assert_eq!(bench.shown(), [(0, 0)]);
}

#[test]
fn the_index_gets_keys_in_the_order_of_the_log_though_some_messages_are_held() {
    let mut bench = Bench::new(FlushMode::Async);
    bench.put(1, DEFAULT);
    bench.run();
    assert_eq!(bench.indexed.len(), 1, "nothing is held before it");
    bench.put(0, SYNC);
    bench.run();
    bench.put(1, DEFAULT);
    bench.put(2, DEFAULT);
    bench.run();
    assert_eq!(bench.indexed.len(), 1, "a key is not found before its message is shown, nor out of its place");
    bench.let_one_sync_end();
    assert_eq!(bench.indexed.len(), 4);
    assert!(bench.indexed.is_sorted(), "{:?}", bench.indexed);
}

#[test]
fn a_message_behind_one_of_a_sync_topic_in_its_queue_is_answered_at_once_and_shown_after_it() {
    let mut bench = Bench::new(FlushMode::Async);
    bench.put(0, no_wait(SYNC));
    bench.run();
    bench.put(0, DEFAULT);
    bench.put(1, DEFAULT);
    bench.run();
    assert_eq!(bench.answers(), ok([0, 1, 2]), "nobody here waits");
    assert_eq!(bench.shown(), [(1, 0)]);
    // The flush begins without the two messages, ...
    bench.pass_ms(11);
    bench.put(0, DEFAULT);
    bench.put(1, DEFAULT);
    bench.run();
    assert_eq!(bench.shown(), [(1, 1)]);
    // ... and shows those behind what it covers, flushed or not.
    bench.let_one_sync_end();
    assert_eq!(bench.shown(), [(0, 0), (0, 1), (0, 2)]);
    bench.put(0, DEFAULT);
    bench.run();
    assert_eq!(bench.shown(), [(0, 3)], "nothing is held any more");
}

#[test]
fn a_message_of_a_sync_topic_that_nobody_waits_for_is_flushed_soon_and_shown_then() {
    let mut bench = Bench::with(FlushMode::Async, |settings| settings.flush_interval_ms = 60_000);
    bench.put(1, DEFAULT);
    bench.run();
    bench.pass_ms(100);
    bench.put(0, no_wait(SYNC));
    bench.run();
    assert_eq!(bench.answers(), ok([0, 1]));
    assert_eq!(bench.shown(), [(1, 0)]);
    bench.let_all_syncs_end();
    bench.pass_ms(UNWAITED_FLUSH_MS - 1);
    assert_eq!(bench.shown(), []);
    bench.pass_ms(1);
    assert_eq!(bench.shown(), [(0, 0)]);
    assert_eq!(bench.shared.flushed(), bench.shared.appended());
}

#[test]
fn on_a_sync_node_a_message_of_an_async_topic_is_answered_at_once_and_shown_once_flushed() {
    let mut bench = Bench::new(FlushMode::Sync);
    bench.put(0, ASYNC);
    bench.put(1, no_wait(DEFAULT));
    bench.run();
    assert_eq!(bench.answers(), ok([0, 1]));
    assert_eq!((bench.shown(), bench.shared.confirm()), (vec![], PhyOffset(0)));
    bench.pass_ms(UNWAITED_FLUSH_MS);
    assert_eq!(bench.shown(), []);
    bench.let_one_sync_end();
    assert_eq!(bench.shown(), [(0, 0), (1, 0)]);
    assert_eq!(bench.shared.confirm(), bench.shared.appended());
}

#[test]
fn write_and_flush_are_one_only_if_everything_below_is_flushed() {
    let mut bench = Bench::new(FlushMode::Sync);
    bench.let_all_syncs_end();
    bench.put(0, SYNC);
    bench.run();
    assert_eq!(bench.done(), [Done::Durable], "an empty log has nothing below");
    bench.put(0, ASYNC);
    bench.run();
    assert_eq!(bench.done(), [Done::Write]);
    bench.put(0, SYNC);
    bench.run();
    assert_eq!(bench.done(), [Done::Write, Done::Sync], "O_DSYNC would leave the message below unflushed");
    bench.put(0, SYNC);
    bench.run();
    assert_eq!(bench.done(), [Done::Durable]);
    assert_eq!(bench.answers(), ok([0, 1, 2, 3]));
}

#[test]
fn a_sync_topics_message_on_an_async_node_is_answered_in_time_when_the_device_hangs() {
    let mut bench = Bench::new(FlushMode::Async);
    bench.put(1, DEFAULT);
    bench.run();
    bench.put(0, SYNC);
    bench.run();
    assert_eq!(bench.answers(), ok([0]));
    bench.pass_ms(2499);
    assert_eq!(bench.answers(), []);
    bench.pass_ms(TICK_MS + 1);
    assert_eq!(bench.answers(), [(1, PutStatus::FlushDiskTimeout)]);
    assert_eq!(bench.shown(), [(1, 0)], "stored, but not to be seen");
    bench.let_all_syncs_end();
    assert_eq!(bench.shown(), [(0, 0)]);
    assert_eq!(bench.answers(), [], "answered once");
}

#[test]
fn a_failed_sync_fails_who_waits_names_itself_and_refuses_what_comes() {
    for node in [FlushMode::Async, FlushMode::Sync] {
        let mut bench = Bench::new(node);
        bench.put(1, no_wait(DEFAULT));
        bench.run();
        let flushed = bench.shared.flushed();
        bench.world.sync_fails.set(true);
        bench.answers();
        bench.put(0, SYNC);
        bench.put(1, ASYNC);
        bench.run();
        let unheld = (2, PutStatus::Ok);
        assert_eq!(bench.answers(), [unheld, (1, PutStatus::ServiceNotAvailable)], "{node:?}");
        let Health::Poisoned(poison) = bench.shared.health() else { panic!("{:?}", bench.shared.health()) };
        assert_eq!((poison.what, poison.flushed), ("sync", flushed));
        assert!(poison.path.ends_with("commitlog/00000000000000000000"), "{poison:?}");
        let expected = bench.shared.health().to_string();
        assert!(expected.contains("the device is gone"), "{expected}");
        assert_eq!(bench.try_put(1, ASYNC), Err(PutRefusal::NotAvailable(expected)));
        bench.world.sync_fails.set(false);
        bench.let_all_syncs_end();
        bench.pass_ms(100);
        assert!(bench.shown().iter().all(|(queue, _)| node == FlushMode::Async && *queue == 1), "{node:?}");
        assert_eq!(bench.shared.flushed(), flushed, "a later sync proves nothing");
    }
}

/// As who finds that the store is not in its place any more.
#[test]
fn who_waits_is_told_of_a_log_that_another_core_poisons() {
    for node in [FlushMode::Async, FlushMode::Sync] {
        let mut bench = Bench::new(node);
        bench.put(0, SYNC);
        bench.run();
        assert_eq!(bench.answers(), [], "its sync is under way");
        let path = bench.shared.segments.all()[0].path().to_owned();
        bench.shared.set_poison(Poison { what: "check", path, why: "gone".into(), flushed: PhyOffset(0) });
        bench.pass_ms(TICK_MS + 1);
        assert_eq!(bench.answers(), [(0, PutStatus::ServiceNotAvailable)], "{node:?}");
        bench.let_all_syncs_end();
        bench.pass_ms(100);
        assert_eq!((bench.answers(), bench.shown()), (vec![], vec![]), "{node:?}");
    }
}

#[test]
fn the_loss_window_tells_length_and_age_of_what_is_not_flushed() {
    let mut bench = Bench::with(FlushMode::Async, |settings| settings.flush_interval_ms = 60_000);
    assert_eq!(bench.shared.loss_window(), LossWindow::default());
    bench.pass_ms(50);
    bench.put(0, DEFAULT);
    bench.run();
    let one = bench.shared.appended().0;
    assert_eq!(bench.shared.loss_window(), LossWindow { len: one, ms: 0 });
    bench.pass_ms(30);
    bench.put(0, SYNC);
    bench.run();
    bench.pass_ms(20);
    assert_eq!(bench.shared.loss_window(), LossWindow { len: 2 * one, ms: 50 });
    bench.let_one_sync_end();
    assert_eq!(bench.shared.loss_window(), LossWindow::default());
}

#[test]
fn a_device_that_hangs_makes_the_writer_wait_before_what_it_holds_fills_the_memory() {
    let mut bench = Bench::with(FlushMode::Sync, |settings| settings.segment_len = 64 << 20);
    let mut stored = 0;
    while stored <= HELD_UNITS_MAX {
        for _ in 0..1000 {
            bench.put(0, ASYNC);
        }
        bench.pass_ms(1);
        stored += 1000;
        assert_eq!(bench.answers().len(), 1000);
    }
    bench.put(0, ASYNC);
    bench.run();
    assert_eq!(bench.answers(), [], "the writer takes no more");
    assert_eq!(bench.shared.counters.unshown_stalls.get(), 1);
    bench.pass_ms(bench.shared.settings.put_wait_ms_max + TICK_MS + 1);
    assert!(matches!(bench.answers()[..], [(_, PutStatus::Busy { .. })]));
    bench.let_all_syncs_end();
    bench.pass_ms(UNWAITED_FLUSH_MS);
    assert_eq!(bench.shown().len(), stored);
    let next = bench.put(0, ASYNC);
    bench.run();
    assert_eq!(bench.answers(), ok([next]));
}

#[test]
fn zeroing_ahead_by_itself_begins_with_the_first_message_of_a_sync_topic() {
    let mut bench = Bench::with(FlushMode::Async, |settings| {
        settings.zero_ahead = ZeroAhead::Auto;
        settings.segment_len = 4 << 20;
    });
    bench.let_all_syncs_end();
    bench.put(0, DEFAULT);
    bench.run();
    assert_eq!(bench.done(), [Done::Write]);
    bench.put(0, SYNC);
    bench.run();
    let writes = bench.done().iter().filter(|done| **done == Done::Write).count();
    assert!(writes > 2, "{writes} writes");
}

/// Whatever comes in which order: a queue's units are shown in their order, none of a sync topic before it is on stable
/// storage, who waits is not answered before that either, the flushed position is never ahead of the disk, and in the end
/// all is shown and answered.
#[test]
fn policies_mixed_at_random_break_no_order_and_promise_nothing_early() {
    use proptest::prelude::*;
    let step = (0u8..8, 0usize..4, 0u8..4);
    let config = ProptestConfig { cases: 96, ..ProptestConfig::default() };
    proptest!(config, |(steps in proptest::collection::vec(step, 1..60), sync_node: bool)| {
        let node = if sync_node { FlushMode::Sync } else { FlushMode::Async };
        let mut bench = Bench::new(node);
        // By queue: of each message whether it is of a sync topic, and the end of the log when it was put.
        let mut sent: Vec<Vec<bool>> = vec![Vec::new(); 4];
        let mut next = [0u64; 4];
        let record_len = 91 + 5 + 2;
        let (mut total, mut answered) = (0u64, 0u64);
        let mut ends: Vec<Vec<u64>> = vec![Vec::new(); 4];
        // By number: where it ends if its sender waits for the disk.
        let mut waited: Vec<Option<u64>> = Vec::new();
        for (what, queue, flush) in steps {
            match what {
                0..=3 => {
                    let flush = [SYNC, no_wait(SYNC), ASYNC, no_wait(ASYNC)][usize::from(flush)];
                    bench.put(queue, flush);
                    total += record_len;
                    sent[queue].push(flush.topic == Some(FlushMode::Sync));
                    ends[queue].push(total);
                    waited.push((flush == SYNC).then_some(total));
                }
                4 => bench.run(),
                5 => bench.pass_ms(4),
                _ => bench.let_one_sync_end(),
            }
            let flushed = bench.shared.flushed().0;
            prop_assert!(flushed <= bench.world.stable.get());
            for (number, status) in bench.answers() {
                prop_assert_eq!(status, PutStatus::Ok);
                answered += 1;
                prop_assert!(waited[number as usize].is_none_or(|end| end <= bench.world.stable.get()));
            }
            for (queue, offset) in bench.shown() {
                let queue = queue as usize;
                prop_assert_eq!(offset, next[queue]);
                next[queue] += 1;
                if sync_node || sent[queue][offset as usize] {
                    prop_assert!(ends[queue][offset as usize] <= bench.world.stable.get());
                }
            }
        }
        bench.let_all_syncs_end();
        bench.pass_ms(40);
        for (queue, offset) in bench.shown() {
            prop_assert_eq!(offset, next[queue as usize]);
            next[queue as usize] += 1;
        }
        let counts: Vec<u64> = sent.iter().map(|queue| queue.len() as u64).collect();
        prop_assert_eq!(next.to_vec(), counts);
        answered += bench.answers().len() as u64;
        prop_assert_eq!(answered, total / record_len);
        prop_assert_eq!(bench.submitter.pending(), 0);
    });
}

impl Bench {
    /// Has the queues of a deleted topic retired; what is told stands in the cell after [`Bench::run`].
    fn retire(&mut self, queues: &[u32]) -> Rc<Cell<Option<Option<PhyOffset>>>> {
        let (end, submitter) = (Rc::new(Cell::new(None)), Rc::clone(&self.submitter));
        let (told, queues) = (Rc::clone(&end), queues.iter().copied().map(QueueHandle).collect());
        self.tasks.push(Box::pin(async move { told.set(Some(submitter.retire(queues).await)) }));
        end
    }
}

#[test]
fn a_deleted_topics_queues_take_no_more_puts_and_lie_below_the_end_that_is_told() {
    let mut bench = Bench::new(FlushMode::Async);
    let taken = [bench.put(0, DEFAULT), bench.put(2, DEFAULT), bench.put(0, DEFAULT)];
    let end = bench.retire(&[0, 3]);
    bench.run();
    assert_eq!(bench.answers(), ok(taken));
    assert_eq!(end.get(), Some(Some(bench.shared.appended())));
    let refused = [bench.put(0, DEFAULT), bench.put(3, DEFAULT)];
    let other = bench.put(2, DEFAULT);
    bench.run();
    let gone = refused.map(|number| (number, PutStatus::QueueGone));
    assert_eq!(bench.answers(), [&gone[..], &ok([other])].concat());
    assert_eq!(bench.shown(), [(0, 0), (2, 0), (0, 1), (2, 1)]);
    let only = bench.put(0, DEFAULT);
    bench.run();
    assert_eq!(bench.answers(), [(only, PutStatus::QueueGone)]);
}

#[test]
fn a_log_that_takes_no_writes_retires_nothing() {
    let mut bench = Bench::new(FlushMode::Sync);
    bench.world.sync_fails.set(true);
    bench.world.allowed.set(None);
    bench.put(0, no_wait(DEFAULT));
    bench.run();
    bench.pass_ms(100);
    assert!(bench.shared.is_poisoned());
    let end = bench.retire(&[0]);
    bench.run();
    assert_eq!(end.get(), Some(None));
}

#[test]
fn e42_on_a_sync_node_a_message_that_does_not_wait_is_answered_at_once_and_shown_once_flushed() {
    let mut bench = Bench::new(FlushMode::Sync);
    let number = bench.put(0, no_wait(DEFAULT));
    bench.run();
    assert_eq!(bench.answers(), ok([number]), "no flush has ended yet");
    bench.pass_ms(100);
    assert_eq!(bench.shown(), []);
    assert_eq!(bench.shared.flushed(), PhyOffset(0), "nothing counts as flushed before a flush of it has ended (J11)");
    bench.let_one_sync_end();
    assert_eq!(bench.shown(), [(0, 0)]);
    assert_eq!(bench.shared.flushed(), bench.shared.appended());
}

#[test]
fn j18_on_a_full_disk_what_is_stored_is_flushed_all_the_same() {
    for node in [FlushMode::Async, FlushMode::Sync] {
        let mut bench = Bench::new(node);
        bench.put(0, no_wait(DEFAULT));
        bench.run();
        bench.shared.set_disk_full(Some("no space".into()));
        assert!(matches!(bench.try_put(0, DEFAULT), Err(PutRefusal::NotAvailable(why)) if why.contains("no space")));
        let thorough = bench.shared.settings.flush_thorough_interval_ms + bench.shared.settings.flush_interval_ms;
        bench.let_all_syncs_end();
        bench.pass_ms(thorough);
        assert_eq!(bench.shared.flushed(), bench.shared.appended(), "{node:?}");
        assert!(bench.shared.flushed() > PhyOffset(0));
        assert_eq!(bench.shown(), [(0, 0)], "and read");
        bench.shared.set_disk_full(None);
        bench.try_put(0, DEFAULT).unwrap();
    }
}

/// Puts messages until the segment has no room for another one.
fn fill_segment(bench: &mut Bench) {
    let record_len = 91 + 5 + 2;
    // The blank at the end takes at least 8 bytes.
    while bench.shared.appended().0 % 4096 + record_len + 8 <= 4096 {
        let number = bench.put(0, SYNC);
        bench.run();
        assert_eq!(bench.answers(), ok([number]));
    }
}

fn small_segments(settings: &mut StoreSettings) {
    settings.segment_len = 4096;
}

#[test]
fn puts_that_need_a_segment_that_is_not_made_wait_once_and_together() {
    let mut bench = Bench::with(FlushMode::Sync, small_segments);
    bench.let_all_syncs_end();
    bench.helper.hang();
    fill_segment(&mut bench);
    let first = bench.next_put;
    (0..10).for_each(|_| _ = bench.put(0, SYNC));
    bench.pass_ms(PREPARE_LIMIT_MS - 1);
    assert_eq!(bench.answers(), [], "it may still come");
    bench.pass_ms(1);
    let refused = |numbers: std::ops::Range<u64>| -> Vec<_> {
        numbers.map(|number| (number, PutStatus::SegmentNotCreated)).collect()
    };
    assert_eq!(bench.answers(), refused(first..first + 10));
    bench.put(0, SYNC);
    bench.put(0, SYNC);
    bench.run();
    assert_eq!(bench.answers(), refused(first + 10..first + 12), "nor does a later turn wait");
    bench.helper.go_on();
    let next = bench.put(0, SYNC);
    bench.run();
    assert_eq!(bench.answers(), ok([next]), "it was made meanwhile");
}

#[test]
fn puts_with_room_in_the_segment_do_not_wait_for_the_next_one() {
    let mut bench = Bench::with(FlushMode::Sync, small_segments);
    bench.let_all_syncs_end();
    bench.helper.hang();
    let count = 4096 / (91 + 5 + 2);
    (0..count + 3).for_each(|_| _ = bench.put(0, SYNC));
    bench.run();
    assert_eq!(bench.answers(), ok(0..count));
    bench.pass_ms(100);
    bench.helper.go_on();
    bench.run();
    assert_eq!(bench.answers(), ok(count..count + 3));
    let offsets: Vec<_> = bench.shown().into_iter().map(|(_, offset)| offset).collect();
    assert_eq!(offsets, (0..count + 3).collect::<Vec<_>>(), "each once and in its order");
}

#[test]
fn of_a_turn_that_needs_a_segment_that_is_not_made_what_is_retired_is_so_behind_all_of_it() {
    let mut bench = Bench::with(FlushMode::Sync, small_segments);
    bench.let_all_syncs_end();
    bench.helper.hang();
    let count = 4096 / (91 + 5 + 2);
    (0..count + 1).for_each(|_| _ = bench.put(0, SYNC));
    let submitter = Rc::clone(&bench.submitter);
    let mut retiring = Box::pin(submitter.retire(vec![QueueHandle(0)]));
    let cx = &mut Context::from_waker(Waker::noop());
    assert!(retiring.as_mut().poll(cx).is_pending());
    bench.run();
    assert!(retiring.as_mut().poll(cx).is_pending(), "a put before it has no place yet");
    bench.helper.go_on();
    bench.run();
    assert_eq!(bench.answers(), ok(0..count + 1));
    assert_eq!(retiring.as_mut().poll(cx), Poll::Ready(Some(bench.shared.appended())));
}

#[test]
fn a_put_that_waits_for_the_writer_waits_for_the_flush_that_much_shorter() {
    let mut bench = Bench::new(FlushMode::Sync);
    let limit = bench.shared.settings.sync_timeout_ms;
    bench.put(0, SYNC);
    bench.run();
    bench.pass_ms(10);
    let waits = bench.put(0, SYNC);
    bench.pass_ms(150);
    // The writer comes to it now, and the device hangs again.
    bench.let_one_sync_end();
    assert_eq!(bench.answers(), ok([0]));
    bench.pass_ms(limit - 150 - TICK_MS);
    assert_eq!(bench.answers(), []);
    bench.pass_ms(2 * TICK_MS);
    assert_eq!(bench.answers(), [(waits, PutStatus::FlushDiskTimeout)], "{limit} ms after it came");
}
