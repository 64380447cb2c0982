//! The writer in all append modes, on a real executor and real files: the same bytes whatever the mode, changes of it
//! between starts, reads while the tail is written again and again, and what a failing disk makes of it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;

use bytes::BytesMut;
use glommio::Task;

use super::builder::Builder;
use super::open::{Closing, OpenedStore, close, open};
use super::opening::Opening;
use super::queues::QueueView;
use super::reader::{GetStatus, ShardStore};
use super::scans::Reader;
use super::shared::{FlushMode, PutFlush, Shared, StoreSettings};
use super::submit::{Message, PutOutcome, PutStatus, Submitter, TagsRule};
use super::test_store::{FIRST_STORED_AT, TestStore};
use super::writer::{Writer, WriterRings};
use crate::config::ZeroAhead;
use crate::dispatch::{Receiver, ring};
use crate::format::record::RecordView;
use crate::io::disk::{Answer, Change};
use crate::io::tap::{Tap, Watch};
use crate::io::test_executor::on_executor;
use crate::io::{AppendMode, Blocking, SyncCall};
use crate::types::{PhyOffset, QueueKey, TagsCode};

const MODES: [AppendMode; 3] = [AppendMode::Buffered, AppendMode::Mmap, AppendMode::Dma];
const CALLS: [SyncCall; 2] = [SyncCall::ODsync, SyncCall::Fdatasync];
const QUEUES: u32 = 3;
const READER: Reader = Reader::Lookup;
const EIO: i32 = 5;
const ENOSPC: i32 = 28;

/// Stops the clock, and lets one change of the commit log fail.
#[derive(Default)]
struct Disk {
    /// What fails, after how many more that do not, and how.
    fault: Cell<Option<(Kind, u32, Fault)>>,
    /// Went off.
    met: Cell<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Write,
    Sync,
    Reserve,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Errno(i32),
    Short(usize),
}

impl Disk {
    fn watched() -> (Rc<Disk>, Watch) {
        let disk = Rc::new(Disk::default());
        (Rc::clone(&disk), Watch::start(disk))
    }

    fn fail(&self, kind: Kind, after: u32, fault: Fault) {
        self.met.set(false);
        self.fault.set(Some((kind, after, fault)));
    }
}

impl Tap for Disk {
    fn ask(&self, change: &Change<'_>) -> io::Result<Answer> {
        let (kind, path) = match change {
            Change::Write { path, .. } => (Kind::Write, path),
            Change::Sync { path } => (Kind::Sync, path),
            Change::Reserve { path, .. } => (Kind::Reserve, path),
            _ => return Ok(Answer::Do),
        };
        let Some((wanted, after, fault)) = self.fault.get() else { return Ok(Answer::Do) };
        if kind != wanted || !path.parent().is_some_and(|dir| dir.ends_with("commitlog")) {
            return Ok(Answer::Do);
        }
        if after > 0 {
            self.fault.set(Some((wanted, after - 1, fault)));
            return Ok(Answer::Do);
        }
        self.met.set(true);
        match fault {
            // Space that lacks goes on lacking; the rest fails once, as the kernel tells of lost pages once.
            Fault::Errno(ENOSPC) => Err(io::Error::from_raw_os_error(ENOSPC)),
            Fault::Errno(errno) => {
                self.fault.set(None);
                Err(io::Error::from_raw_os_error(errno))
            }
            Fault::Short(len) => {
                self.fault.set(None);
                Ok(Answer::Short(len))
            }
        }
    }

    fn now_ms(&self) -> Option<i64> {
        Some(FIRST_STORED_AT)
    }
}

/// A store with its roles on the executor that runs the test.
struct Running {
    settings: StoreSettings,
    opened: Option<(Closing<'static>, crate::io::StoreLock)>,
    shared: Arc<Shared>,
    views: Vec<Arc<QueueView>>,
    store: ShardStore,
    submitter: Rc<Submitter>,
    submit: Task<()>,
    roles: Vec<Task<()>>,
    side: Vec<Task<()>>,
}

impl Running {
    async fn start(settings: &StoreSettings) -> Running {
        let opened = open(settings.clone(), 1 << 30, &Opening::unstopped()).unwrap();
        let OpenedStore { lock, layout, shared, mut queues, index_files, writer_start, checkpoint, .. } = opened;
        let views: Vec<_> = (0..QUEUES).map(|id| queues.queue(&QueueKey::new("T", id))).collect();
        let blocking = Blocking::new(|job| job());
        let (to_writer, from_shard) = ring(1024);
        let (reply_tx, replies) = ring(1024);
        let (dispatch_tx, dispatch) = ring(64);
        let (keys_tx, keys) = ring(64);
        let rings = WriterRings {
            from_shards: vec![from_shard],
            replies: vec![reply_tx],
            dispatch: vec![dispatch_tx],
            keys: keys_tx,
        };
        let writer =
            Writer::open(Arc::clone(&shared), layout.clone(), blocking.clone(), rings, writer_start).await.unwrap();
        let side = writer.side_tasks().into_iter().map(glommio::spawn_local).collect();
        let builder = Builder::new(
            Arc::clone(&shared),
            layout.clone(),
            blocking.clone(),
            queues.list(),
            1,
            Box::new(|_, _| {}),
            Arc::new(AtomicI64::new(i64::MAX)),
        );
        let submitter = Submitter::new(Arc::clone(&shared));
        let roles = vec![
            glommio::spawn_local(writer.run()),
            glommio::spawn_local(builder.run(dispatch)),
            glommio::spawn_local(drop_all(keys)),
            glommio::spawn_local(Rc::clone(&submitter).run_replies(replies)),
        ];
        let submit = glommio::spawn_local(Rc::clone(&submitter).run_submit(to_writer));
        let store = ShardStore::new(Arc::clone(&shared), Rc::clone(&submitter), None, blocking);
        let all: &'static [Arc<QueueView>] = Box::leak(views.clone().into_boxed_slice());
        let closing = Closing { layout, shared: Arc::clone(&shared), queues: all, index_files, checkpoint };
        let opened = Some((closing, lock));
        Running { settings: settings.clone(), opened, shared, views, store, submitter, submit, roles, side }
    }

    /// Ends all roles; a clean stop if `clean`, else what a killed process leaves.
    async fn stop(mut self, clean: bool) {
        drop((self.store, self.submitter));
        let writer = self.roles.remove(0);
        if clean {
            self.submit.cancel().await;
            writer.await;
        } else {
            writer.cancel().await;
            self.submit.cancel().await;
        }
        // The rings to the other roles close with the last task that holds the writer.
        for task in self.side {
            task.cancel().await;
        }
        for role in self.roles {
            role.await;
        }
        let (closing, lock) = self.opened.take().unwrap();
        if clean {
            close(&closing).unwrap();
        }
        drop(lock);
    }

    async fn put(&self, sent: &Sent) -> Result<PutOutcome, String> {
        let message = Message {
            queue: &self.views[sent.number as usize % self.views.len()],
            flag: 0,
            sys_flag: 0,
            born_timestamp: FIRST_STORED_AT,
            born_host: self.settings.store_host,
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body: &sent.body,
            properties: &[b"p\x01v\x02"],
            tags: TagsRule::Code(TagsCode(0)),
            keys: Default::default(),
        };
        let flush = PutFlush { topic: None, may_wait: sent.wait };
        self.store.put_and_wait(&[message], flush).await.map_err(|refusal| format!("{refusal:?}"))
    }

    /// Puts them as a client with `in_flight` of them under way would, in their order.
    async fn put_all(&self, sent: &[Sent], in_flight: usize) -> Vec<Result<PutOutcome, String>> {
        let mut outcomes = Vec::new();
        for some in sent.chunks(in_flight) {
            let puts: Vec<_> = some.iter().map(|sent| Box::pin(self.put(sent))).collect();
            outcomes.extend(all(puts).await);
        }
        outcomes
    }

    /// Are these messages found, by position and in their queues?
    async fn check(&self, stored: &BTreeMap<PhyOffset, Sent>) {
        for (phy, sent) in stored {
            let record = self.store.record_at(&READER, *phy).await.unwrap();
            assert_eq!(RecordView::parse(&record).unwrap().body(), sent.body, "{phy}");
        }
        for (id, view) in self.views.iter().enumerate() {
            let expected: Vec<_> =
                stored.values().filter(|sent| sent.number as usize % self.views.len() == id).map(|s| &s.body).collect();
            let (mut offset, mut found) = (0, Vec::new());
            while found.len() < expected.len() {
                let mut got = self.store.get(view, offset, 32, 1 << 20, &|_| true);
                if got.status == GetStatus::UnitsCold {
                    got = self.store.get_cold(&READER, view, offset, 32, 1 << 20, &|_| true).await.unwrap();
                }
                if got.status != GetStatus::Found {
                    // The builder comes behind.
                    crate::io::sleep(std::time::Duration::from_millis(1)).await;
                    continue;
                }
                offset = got.next_offset;
                let mut bytes = BytesMut::new();
                if !got.found.copy_if_resident(&mut bytes) {
                    bytes.extend_from_slice(&got.found.load(&READER).await.unwrap().records);
                }
                let mut rest = &bytes[..];
                while !rest.is_empty() {
                    let view = RecordView::parse(rest).unwrap();
                    assert!(view.check_crc());
                    found.push(view.body().to_vec());
                    rest = &rest[view.total_len() as usize..];
                }
            }
            assert!(found.iter().eq(expected), "queue {id}");
        }
    }
}

async fn drop_all<T: Send>(mut entries: Receiver<Vec<T>>) {
    while poll_fn(|cx| entries.poll_recv(cx)).await.is_ok() {}
}

async fn all<T>(mut running: Vec<std::pin::Pin<Box<impl Future<Output = T>>>>) -> Vec<T> {
    let mut done: Vec<Option<T>> = running.iter().map(|_| None).collect();
    poll_fn(|cx| {
        for (future, done) in running.iter_mut().zip(&mut done) {
            if done.is_none()
                && let std::task::Poll::Ready(value) = future.as_mut().poll(cx)
            {
                *done = Some(value);
            }
        }
        if done.iter().all(Option::is_some) { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    done.into_iter().flatten().collect()
}

#[derive(Clone, Debug)]
struct Sent {
    number: u32,
    body: Vec<u8>,
    wait: bool,
}

/// Messages of lengths as they come, a few of them long.
fn messages(first: u32, count: u32) -> Vec<Sent> {
    let mut random = u64::from(first) + 88_172_645_463_325_252;
    (first..first + count)
        .map(|number| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let len = if random.is_multiple_of(23) { 70_000 } else { 1 + random % 3000 };
            let body = (0..len).map(|at| (at * 31 + u64::from(number)) as u8 | 1).collect();
            Sent { number, body, wait: !random.is_multiple_of(5) }
        })
        .collect()
}

fn note(stored: &mut BTreeMap<PhyOffset, Sent>, sent: &[Sent], outcomes: Vec<Result<PutOutcome, String>>) {
    for (sent, outcome) in sent.iter().zip(outcomes) {
        let outcome = outcome.unwrap();
        assert_eq!(outcome.status, PutStatus::Ok);
        stored.insert(outcome.phy, sent.clone());
    }
}

fn settings(root: &Path, append: AppendMode, flush: FlushMode, sync_call: SyncCall) -> StoreSettings {
    StoreSettings {
        root: root.to_owned(),
        append,
        sync_call: Some(sync_call),
        flush,
        segment_len: 2 << 20,
        flush_interval_ms: 1,
        flush_least_pages: 0,
        put_wait_ms_max: 60_000,
        inflight_len_max: 64 << 20,
        ..TestStore::new().settings
    }
}

fn files_below(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(files_below(&path).into_iter().map(|(name, bytes)| (path.join(name), bytes)));
        } else {
            files.insert(path.clone(), std::fs::read(&path).unwrap());
        }
    }
    files
}

#[test]
fn a_turns_buffer_returns_where_the_write_does_not_keep_it() {
    for (mode, returns) in [(AppendMode::Dma, true), (AppendMode::Mmap, true), (AppendMode::Buffered, false)] {
        let dir = tempfile::tempdir().unwrap();
        let settings = settings(dir.path(), mode, FlushMode::Async, CALLS[0]);
        let (_, _watch) = Disk::watched();
        on_executor(async {
            let running = Running::start(&settings).await;
            running.put_all(&messages(0, 40), 40).await;
            let spare = running.submitter.spare_len();
            assert_eq!(spare > 0, returns, "{mode:?}: {spare} bytes");
            running.stop(true).await;
        });
    }
}

#[test]
fn the_same_puts_leave_the_same_files_in_every_mode() {
    for (flush, call) in [(FlushMode::Sync, CALLS[0]), (FlushMode::Sync, CALLS[1]), (FlushMode::Async, CALLS[0])] {
        let mut seen = Vec::new();
        for mode in MODES {
            let dir = tempfile::tempdir().unwrap();
            let mut settings = settings(dir.path(), mode, flush, call);
            settings.zero_ahead = ZeroAhead::Auto;
            let (_, _watch) = Disk::watched();
            on_executor(async {
                let running = Running::start(&settings).await;
                let (sent, mut stored) = (messages(0, 700), BTreeMap::new());
                let outcomes = running.put_all(&sent, 40).await;
                note(&mut stored, &sent, outcomes);
                running.check(&stored).await;
                running.stop(true).await;
            });
            let name = |path: &Path| path.strip_prefix(dir.path()).unwrap().to_owned();
            let files = ["commitlog", "consumequeue"].map(|folder| files_below(&dir.path().join(folder)));
            seen.push(
                files.map(|files| {
                    files.into_iter().map(|(path, bytes)| (name(&path), bytes)).collect::<BTreeMap<_, _>>()
                }),
            );
        }
        assert!(seen[0][0].len() > 1, "the log has rolled");
        for (mode, files) in MODES.iter().zip(&seen) {
            for (files, first) in files.iter().zip(&seen[0]) {
                assert!(files.keys().eq(first.keys()), "{mode:?} {flush:?}");
                for (name, bytes) in files {
                    assert!(*bytes == first[name], "{} differs in {mode:?} {flush:?}", name.display());
                }
            }
        }
    }
}

#[test]
fn the_mode_may_change_at_every_restart_clean_or_not() {
    let dir = tempfile::tempdir().unwrap();
    let (_, _watch) = Disk::watched();
    let mut stored = BTreeMap::new();
    // Every mode after every other and after itself.
    let order = [0, 0, 1, 1, 2, 2, 0, 2, 1, 0];
    for (step, mode) in order.into_iter().enumerate() {
        let settings = settings(dir.path(), MODES[mode], FlushMode::Sync, CALLS[step % 2]);
        on_executor(async {
            let running = Running::start(&settings).await;
            running.check(&stored).await;
            let mut sent = messages(step as u32 * 60, 60);
            sent.last_mut().unwrap().wait = true;
            let outcomes = running.put_all(&sent, 7).await;
            note(&mut stored, &sent, outcomes);
            running.check(&stored).await;
            running.stop(step % 3 == 0).await;
        });
    }
}

#[test]
fn readers_follow_the_end_of_the_log_in_every_mode() {
    for mode in MODES {
        for flush in [FlushMode::Sync, FlushMode::Async] {
            let dir = tempfile::tempdir().unwrap();
            let settings = settings(dir.path(), mode, flush, SyncCall::ODsync);
            on_executor(async {
                let running = Rc::new(Running::start(&settings).await);
                let stored = Rc::new(RefCell::new(Vec::<(PhyOffset, Vec<u8>)>::new()));
                let over = Rc::new(Cell::new(false));
                let (reads, theirs, until) = (Rc::clone(&running), Rc::clone(&stored), Rc::clone(&over));
                let reader = glommio::spawn_local(async move {
                    let mut count = 0;
                    while !until.get() || count == 0 {
                        crate::io::sleep(std::time::Duration::from_micros(50)).await;
                        let newest = theirs.borrow().iter().rev().take(3).cloned().collect::<Vec<_>>();
                        for (phy, body) in newest {
                            let record = reads.store.record_at(&READER, phy).await.unwrap();
                            assert!(RecordView::parse(&record).unwrap().body() == body);
                            count += 1;
                        }
                    }
                });
                for some in messages(0, 400).chunks(9) {
                    // One of them waits, so that in sync mode all are shown when the last is answered.
                    let some: Vec<_> = some.iter().map(|sent| Sent { wait: true, ..sent.clone() }).collect();
                    for (sent, outcome) in some.iter().zip(running.put_all(&some, 9).await) {
                        stored.borrow_mut().push((outcome.unwrap().phy, sent.body.clone()));
                    }
                }
                over.set(true);
                reader.await;
                let running = Rc::into_inner(running).unwrap();
                if mode == AppendMode::Dma {
                    assert_eq!(running.shared.counters.cold_reads.get(), 0, "the newest are in memory");
                }
                running.stop(true).await;
            });
        }
    }
}

/// Puts until the fault is met, and looks at what everybody is told.
fn poisoned_by(kind: Kind, after: u32, fault: Fault, settings: &StoreSettings) {
    let what =
        format!("{kind:?} {after} {fault:?} {:?} {:?} {:?}", settings.append, settings.flush, settings.sync_call);
    let (disk, watch) = Disk::watched();
    let mut stored = BTreeMap::new();
    on_executor(async {
        let running = Running::start(settings).await;
        let before: Vec<_> = messages(0, 30).into_iter().map(|sent| Sent { wait: true, ..sent }).collect();
        let outcomes = running.put_all(&before, 5).await;
        note(&mut stored, &before, outcomes);
        running.check(&stored).await;
        disk.fail(kind, after, fault);
        let mut number = 30;
        while !running.shared.is_poisoned() {
            assert!(number < 3000, "{what}: never met");
            let some: Vec<_> = messages(number, 6).into_iter().map(|sent| Sent { wait: true, ..sent }).collect();
            number += 6;
            for (sent, outcome) in some.iter().zip(running.put_all(&some, 6).await) {
                if let Ok(PutOutcome { status: PutStatus::Ok, phy, .. }) = outcome {
                    stored.insert(phy, sent.clone());
                } else {
                    assert!(running.shared.is_poisoned(), "{what}: {outcome:?}");
                }
            }
            // A failing flush that nobody waits for is met a moment later.
            crate::io::sleep(std::time::Duration::from_millis(2)).await;
        }
        assert!(disk.met.get(), "{what}");
        for outcome in running.put_all(&messages(number, 3), 3).await {
            assert!(
                outcome.as_ref().is_err_and(|refusal| refusal.contains("NotAvailable"))
                    || outcome.as_ref().is_ok_and(|outcome| outcome.status == PutStatus::ServiceNotAvailable),
                "{what}: {outcome:?}"
            );
        }
        running.check(&stored).await;
        running.stop(true).await;
    });
    drop(watch);
    assert!(settings.root.join("abort").exists(), "{what}: the next start must recover");
    // What was acknowledged is there after a restart.
    on_executor(async {
        let running = Running::start(settings).await;
        for (phy, sent) in &stored {
            let record = running.store.record_at(&READER, *phy).await.unwrap();
            assert_eq!(RecordView::parse(&record).unwrap().body(), sent.body, "{what}: {phy}");
        }
        running.stop(true).await;
    });
}

#[test]
fn a_failed_or_short_write_poisons_the_writer_and_every_sender_is_told() {
    for mode in [AppendMode::Buffered, AppendMode::Dma] {
        for flush in [FlushMode::Sync, FlushMode::Async] {
            for call in CALLS {
                for (after, fault) in [(0, Fault::Errno(EIO)), (2, Fault::Errno(EIO)), (1, Fault::Short(4096))] {
                    let dir = tempfile::tempdir().unwrap();
                    poisoned_by(Kind::Write, after, fault, &settings(dir.path(), mode, flush, call));
                }
            }
        }
    }
}

#[test]
fn a_failed_sync_poisons_the_writer_and_every_sender_is_told() {
    for mode in MODES {
        for flush in [FlushMode::Sync, FlushMode::Async] {
            for after in [0, 2] {
                let dir = tempfile::tempdir().unwrap();
                let settings = settings(dir.path(), mode, flush, SyncCall::Fdatasync);
                poisoned_by(Kind::Sync, after, Fault::Errno(EIO), &settings);
            }
        }
    }
}

#[test]
fn a_segment_without_space_refuses_puts_until_there_is_some_and_poisons_nothing() {
    for mode in MODES {
        let dir = tempfile::tempdir().unwrap();
        let settings = settings(dir.path(), mode, FlushMode::Sync, SyncCall::ODsync);
        let (disk, _watch) = Disk::watched();
        on_executor(async {
            let running = Running::start(&settings).await;
            disk.fail(Kind::Reserve, 0, Fault::Errno(ENOSPC));
            let (mut stored, mut number) = (BTreeMap::new(), 0);
            loop {
                let sent = messages(number, 1);
                let outcome = running.put(&sent[0]).await.unwrap();
                match outcome.status {
                    PutStatus::Ok => stored.insert(outcome.phy, sent[0].clone()),
                    PutStatus::SegmentNotCreated => break,
                    other => panic!("{mode:?}: {other:?}"),
                };
                number += 1;
                assert!(number < 3000, "{mode:?}: the space lacks");
            }
            assert!(disk.met.get() && !running.shared.is_poisoned(), "{mode:?}");
            let health = running.shared.health();
            assert_eq!(health.word(), "no-segment", "{mode:?}");
            let told = health.to_string();
            assert!(told.contains("/commitlog/0000") && told.contains("No space left on device"), "{mode:?}: {told}");
            assert_eq!(running.shared.refusal(), None, "shorter ones may fit");
            // Numbers that were not stored are not in the queues.
            let mut sent = messages(number, 40);
            running.check(&stored).await;
            disk.fault.set(None);
            crate::io::sleep(std::time::Duration::from_millis(600)).await;
            sent.retain(|sent| sent.body.len() < 10_000);
            let outcomes = running.put_all(&sent, 8).await;
            note(&mut stored, &sent, outcomes);
            assert_eq!(running.shared.health().word(), "ok", "{mode:?}");
            running.check(&stored).await;
            running.stop(true).await;
        });
    }
}
