//! What a put leaves on the disk at the edges of segments, consume queue files and index files: the roles of a store on a
//! real executor and real files, of which every byte is looked at after the stop. Source: store.md 13.2.

use std::cell::RefCell;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;

use bytes::BytesMut;
use glommio::Task;

use super::builder::Builder;
use super::index_builder::IndexBuilder;
use super::open::{Closing, OpenedStore, close, open};
use super::opening::Opening;
use super::queues::QueueView;
use super::reader::{GetStatus, ShardStore};
use super::scans::Reader;
use super::shared::{FlushMode, PutFlush, Shared, StoreSettings};
use super::submit::{Message, PutOutcome, PutRefusal, PutStatus, Submitter, TagsRule};
use super::test_store::TestStore;
use super::writer::{Writer, WriterRings};
use crate::dispatch::ring;
use crate::format::index_file::IndexHeader;
use crate::format::names;
use crate::format::record::{self, RecordView};
use crate::format::unit::{UNIT_LEN, Unit};
use crate::index::IndexFile;
use crate::io::disk::{Answer, Change};
use crate::io::tap::{Tap, Watch};
use crate::io::test_executor::on_executor;
use crate::io::{AppendMode, Blocking, StoreLock};
use crate::types::{PhyOffset, QueueKey, QueueOffset, TagsCode, Timestamp, key_hash, properties};

const MODES: [AppendMode; 3] = [AppendMode::Buffered, AppendMode::Mmap, AppendMode::Dma];
const WAIT: PutFlush = PutFlush { topic: None, may_wait: true };
/// Bytes of a record of topic T without body and properties.
const OVERHEAD: usize = 92;

/// The roles of a store with one queue, T 0.
struct Live {
    shared: Arc<Shared>,
    queue: Arc<QueueView>,
    store: ShardStore,
    index: Rc<IndexBuilder>,
    submit: Task<()>,
    roles: Vec<Task<()>>,
    side: Vec<Task<()>>,
    closing: Closing<'static>,
    lock: StoreLock,
}

impl Live {
    async fn start(settings: &StoreSettings) -> Live {
        let opened = open(settings.clone(), 1 << 30, &Opening::unstopped()).unwrap();
        let OpenedStore { lock, layout, shared, mut queues, index_files, writer_start, checkpoint, .. } = opened;
        let queue = queues.queue(&QueueKey::new("T", 0));
        let blocking = Blocking::new(|job| job());
        let (to_writer, from_shard) = ring(64);
        let (reply_tx, replies) = ring(64);
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
        let index = IndexBuilder::new(
            Arc::clone(&shared),
            layout.clone(),
            blocking.clone(),
            index_files.clone(),
            Arc::new(AtomicI64::new(0)),
            Arc::new(AtomicI64::new(i64::MAX)),
        );
        let submitter = Submitter::new(Arc::clone(&shared));
        let roles = vec![
            glommio::spawn_local(writer.run()),
            glommio::spawn_local(builder.run(dispatch)),
            glommio::spawn_local(Rc::clone(&index).run(keys)),
            glommio::spawn_local(Rc::clone(&submitter).run_replies(replies)),
        ];
        let submit = glommio::spawn_local(Rc::clone(&submitter).run_submit(to_writer));
        let store = ShardStore::new(Arc::clone(&shared), submitter, Some(Rc::clone(&index)), blocking);
        let all: &'static [Arc<QueueView>] = Box::leak(vec![Arc::clone(&queue)].into_boxed_slice());
        let closing = Closing { layout, shared: Arc::clone(&shared), queues: all, index_files, checkpoint };
        Live { shared, queue, store, index, submit, roles, side, closing, lock }
    }

    async fn stop(mut self) {
        drop(self.store);
        self.submit.cancel().await;
        self.roles.remove(0).await;
        // The rings to the other roles close with the last task that holds the writer.
        for task in self.side {
            task.cancel().await;
        }
        for role in self.roles {
            role.await;
        }
        self.closing.index_files = self.index.files();
        close(&self.closing).unwrap();
        drop(self.lock);
    }

    /// A message as a shard makes it of what a client sent; `properties` as they are stored.
    async fn try_put(&self, batch: &[(&[u8], &str)], born_host: SocketAddr) -> Result<PutOutcome, PutRefusal> {
        let messages: Vec<_> = batch
            .iter()
            .map(|(body, text)| Message {
                queue: &self.queue,
                flag: 0,
                sys_flag: 0,
                born_timestamp: 0,
                born_host,
                reconsume_times: 0,
                prepared_transaction_offset: 0,
                body,
                properties: std::slice::from_ref(Box::leak(Box::new(text.as_bytes()))),
                tags: match properties::get(text, properties::DELAY) {
                    Some(ms) => TagsRule::DueAfterMs(ms.parse().unwrap()),
                    None => TagsRule::Code(TagsCode::of(properties::get(text, properties::TAGS))),
                },
                keys: record::key_hashes("T", text),
            })
            .collect();
        self.store.put_and_wait(&messages, WAIT).await
    }

    /// A batch of messages without properties, of records of these lengths; where it went.
    async fn put(&self, record_lens: &[usize]) -> (QueueOffset, PhyOffset) {
        let bodies: Vec<_> = record_lens.iter().map(|len| vec![b'x'; len - OVERHEAD]).collect();
        let batch: Vec<_> = bodies.iter().map(|body| (&body[..], "")).collect();
        let outcome = self.try_put(&batch, self.shared.settings.store_host).await.unwrap();
        assert_eq!(outcome.status, PutStatus::Ok);
        assert!(outcome.record_lens.iter().map(|len| *len as usize).eq(record_lens.iter().copied()));
        (outcome.queue_offset, outcome.phy)
    }

    async fn put_text(&self, text: &str) -> PutOutcome {
        let outcome = self.try_put(&[(b"b", text)], self.shared.settings.store_host).await.unwrap();
        assert_eq!(outcome.status, PutStatus::Ok);
        outcome
    }
}

/// Runs it on a store of small files, in sync mode and each append mode; gives what the clean stop left.
fn in_each_mode(change: impl Fn(&mut StoreSettings), deed: impl AsyncFn(&Live), look: impl Fn(&TestStore)) {
    for mode in MODES {
        let mut store = TestStore::in_memory();
        store.settings.append = mode;
        store.settings.flush = FlushMode::Sync;
        // The machine may be full of other tests; nothing here is to be refused for that.
        (store.settings.sync_timeout_ms, store.settings.put_wait_ms_max) = (60_000, 60_000);
        change(&mut store.settings);
        on_executor(async {
            let live = Live::start(&store.settings).await;
            deed(&live).await;
            live.stop().await;
        });
        look(&store);
        // What it left is what the next start finds, of which it changes nothing (I20).
        let before = store.snapshot();
        let opened = store.open().unwrap();
        store.close(opened);
        let changed = store.changed(&before);
        assert!(changed.iter().all(|path| path.starts_with(store.layout().own())), "{mode:?} {changed:?}");
    }
}

fn at(offset: u64, phy: u64) -> (QueueOffset, PhyOffset) {
    (QueueOffset(offset), PhyOffset(phy))
}

/// The log from `phy` to the end of its segment, as it is on the disk.
fn log_from(store: &TestStore, phy: u64) -> Vec<u8> {
    let len = store.settings.segment_len;
    let bytes = fs::read(store.layout().segment(PhyOffset(phy - phy % len))).unwrap();
    assert_eq!(bytes.len() as u64, len);
    bytes[(phy % len) as usize..].to_vec()
}

fn unit(store: &TestStore, offset: u64) -> Unit {
    let file = fs::read(store.queue_file("T", 0, offset)).unwrap();
    Unit::decode(file[offset as usize * UNIT_LEN % file.len()..].first_chunk().unwrap())
}

#[test]
fn e1_a_record_that_leaves_eight_bytes_fits_and_a_blank_of_eight_follows_it() {
    in_each_mode(
        |_| {},
        async |live| {
            assert_eq!(live.put(&[1000]).await, at(0, 0));
            assert_eq!(live.put(&[3088]).await, at(1, 1000));
            assert_eq!(live.put(&[92]).await, at(2, 4096));
        },
        |store| {
            assert_eq!(log_from(store, 4088), [0, 0, 0, 8, 0xcb, 0xd4, 0x31, 0x94]);
            assert_eq!(RecordView::parse(&log_from(store, 1000)).unwrap().total_len(), 3088);
            assert_eq!(RecordView::parse(&log_from(store, 4096)).unwrap().queue_offset(), QueueOffset(2));
        },
    );
}

#[test]
fn e2_a_record_that_would_leave_seven_bytes_goes_to_the_next_segment_behind_a_blank_of_all_that_was_left() {
    in_each_mode(
        |_| {},
        async |live| {
            assert_eq!(live.put(&[102]).await, at(0, 0));
            assert_eq!(live.put(&[3987]).await, at(1, 4096));
        },
        |store| {
            let blank = log_from(store, 102);
            assert_eq!(blank[..8], [0, 0, 0x0f, 0x9a, 0xcb, 0xd4, 0x31, 0x94], "a blank of 3994");
            assert!(blank[8..].iter().all(|byte| *byte == 0));
            let record = log_from(store, 4096);
            let record = RecordView::parse(&record).unwrap();
            assert_eq!((record.total_len(), record.phy(), record.queue_offset().0), (3987, PhyOffset(4096), 1));
        },
    );
}

#[test]
fn e3_e4_the_longest_record_fits_an_empty_segment_and_one_byte_more_is_refused_before_anything_is_given_out() {
    in_each_mode(
        |_| {},
        async |live| {
            assert_eq!(live.put(&[4088]).await, at(0, 0));
            let host = live.shared.settings.store_host;
            for len in [4089, 4090, 4096, 5000] {
                let refused = live.try_put(&[(&vec![b'x'; len - OVERHEAD], "")], host).await;
                assert!(
                    matches!(&refused, Err(PutRefusal::MessageIllegal(why)) if why.contains("4088")),
                    "{refused:?}"
                );
            }
            // A batch is one piece of the log, whatever its parts are.
            let half = [b'x'; 2045 - OVERHEAD];
            let refused = live.try_put(&[(&half, ""), (&half, "")], host).await;
            assert!(matches!(refused, Err(PutRefusal::MessageIllegal(_))), "{refused:?}");
            assert_eq!(live.put(&[200]).await, at(1, 4096), "neither bytes nor offsets were used");
        },
        |store| {
            assert_eq!(log_from(store, 4088), [0, 0, 0, 8, 0xcb, 0xd4, 0x31, 0x94]);
            let next = log_from(store, 4096);
            assert_eq!(RecordView::parse(&next).unwrap().queue_offset(), QueueOffset(1));
            assert!(next[200..].iter().all(|byte| *byte == 0));
        },
    );
}

#[test]
fn e5_a_batch_goes_to_the_next_segment_as_a_whole() {
    in_each_mode(
        |_| {},
        async |live| {
            assert_eq!(live.put(&[3000]).await, at(0, 0));
            // The first alone would fit.
            assert_eq!(live.put(&[600, 300, 200]).await, at(1, 4096));
            assert_eq!(live.put(&[100]).await, at(4, 4096 + 1100));
        },
        |store| {
            let blank = log_from(store, 3000);
            assert_eq!(blank[..8], [0, 0, 0x04, 0x48, 0xcb, 0xd4, 0x31, 0x94], "a blank of 1096");
            assert!(blank[8..].iter().all(|byte| *byte == 0));
            for (offset, phy, len) in [(1, 4096, 600), (2, 4696, 300), (3, 4996, 200), (4, 5196, 100)] {
                let bytes = log_from(store, phy);
                let record = RecordView::parse(&bytes).unwrap();
                assert_eq!((record.queue_offset(), record.phy()), at(offset, phy));
                assert_eq!(unit(store, offset), Unit { phy: PhyOffset(phy), len, tags: TagsCode(0) });
            }
        },
    );
}

#[test]
fn e6_e9_a_message_may_have_neither_body_nor_properties() {
    in_each_mode(
        |_| {},
        async |live| {
            assert_eq!(live.put(&[92]).await, at(0, 0));
            assert_eq!(live.put(&[93]).await, at(1, 92));
        },
        |store| {
            let bytes = log_from(store, 0);
            assert_eq!(bytes[..4], [0, 0, 0, 92]);
            assert_eq!(bytes[8..12], [0; 4], "the checksum of nothing");
            assert_eq!(bytes[84..92], [0, 0, 0, 0, 1, b'T', 0, 0], "no body, the topic, no properties");
            let next = RecordView::parse(&bytes[92..]).unwrap();
            assert_eq!((next.body(), next.properties(), next.phy()), (&b"x"[..], "", PhyOffset(92)));
        },
    );
}

#[test]
fn e8_properties_that_are_too_long_take_no_queue_offset() {
    in_each_mode(
        |settings| settings.segment_len = 1 << 20,
        async |live| {
            assert_eq!(live.put_text(&"p".repeat(32_767)).await.queue_offset, QueueOffset(0));
            let refused = live.try_put(&[(b"b", &"p".repeat(32_768))], live.shared.settings.store_host).await;
            assert_eq!(refused.map(|outcome| outcome.phy), Err(PutRefusal::PropertiesTooLong { len: 32_768 }));
            // Nor does a batch of which one message has them.
            let long = "p".repeat(32_768);
            let refused = live.try_put(&[(b"b", ""), (b"b", &long)], live.shared.settings.store_host).await;
            assert_eq!(refused.map(|outcome| outcome.phy), Err(PutRefusal::PropertiesTooLong { len: 32_768 }));
            assert_eq!(live.put(&[92]).await, at(1, 92 + 1 + 32_767));
        },
        |store| {
            let bytes = log_from(store, 0);
            assert_eq!(bytes[91..93], [0x7f, 0xff]);
            assert_eq!(RecordView::parse(&bytes[92 + 1 + 32_767..]).unwrap().queue_offset(), QueueOffset(1));
        },
    );
}

#[test]
fn e10_to_e14_a_unit_holds_the_hash_of_the_tag_and_nothing_for_none() {
    let texts = [
        ("TAGS\u{1}polygenelubricants\u{2}", "ffffffff80000000"),
        ("TAGS\u{1}Aa\u{2}", "0000000000000840"),
        ("TAGS\u{1}BB\u{2}", "0000000000000840"),
        ("TAGS\u{1}中文\u{2}", "000000000009dcfa"),
        ("TAGS\u{1}\u{2}", "0000000000000000"),
        ("KEYS\u{1}Aa\u{2}", "0000000000000000"),
    ];
    in_each_mode(
        |_| {},
        async |live| {
            for (text, _) in texts {
                live.put_text(text).await;
            }
        },
        |store| {
            let file = fs::read(store.queue_file("T", 0, 0)).unwrap();
            for (unit, (text, expected)) in file.chunks(UNIT_LEN).zip(texts) {
                let tags = u64::from_be_bytes(unit[12..].try_into().unwrap());
                assert_eq!(format!("{tags:016x}"), expected, "{text:?}");
            }
            assert!(file[texts.len() * UNIT_LEN..].iter().all(|byte| *byte == 0));
        },
    );
}

#[test]
fn e17_hosts_of_ipv6_widen_the_record_and_the_message_id() {
    let v6: SocketAddr = "[2001:db8::1]:10911".parse().unwrap();
    in_each_mode(
        |settings| settings.store_host = v6,
        async |live| {
            let outcome = live.try_put(&[(b"xyz", "")], v6).await.unwrap();
            assert_eq!((outcome.phy, &outcome.record_lens[..]), (PhyOffset(0), &[92 + 3 + 24][..]));
        },
        |store| {
            let bytes = log_from(store, 0);
            assert_eq!(bytes[36..40], [0, 0, 0, 0x30]);
            assert_eq!(bytes[108..115], [0, 0, 0, 3, b'x', b'y', b'z'], "the body begins at 112");
            let record = RecordView::parse(&bytes).unwrap();
            assert_eq!((record.born_host(), record.store_host()), (v6, v6));
            assert_eq!(record::message_id(record.store_host(), record.phy()).len(), 56);
        },
    );
}

#[test]
fn e18_the_eleventh_message_opens_the_second_file_of_a_queue_with_ten_units_a_file() {
    in_each_mode(
        |_| {},
        async |live| {
            for number in 0..11 {
                assert_eq!(live.put(&[100]).await, at(number, number * 100));
            }
        },
        |store| {
            let (first, second) = (store.queue_file("T", 0, 9), store.queue_file("T", 0, 10));
            assert!(first.ends_with("T/0/00000000000000000000") && second.ends_with("T/0/00000000000000000200"));
            let (first, second) = (fs::read(first).unwrap(), fs::read(second).unwrap());
            assert_eq!((first.len(), second.len()), (200, 200));
            assert_eq!(first[180..192], [0, 0, 0, 0, 0, 0, 0x03, 0x84, 0, 0, 0, 100]);
            assert_eq!(second[..12], [0, 0, 0, 0, 0, 0, 0x03, 0xe8, 0, 0, 0, 100]);
            assert!(second[12..].iter().all(|byte| *byte == 0));
        },
    );
}

/// The index files with their headers, oldest first.
fn index_files(store: &TestStore) -> Vec<(PathBuf, Vec<u8>, IndexHeader)> {
    let read = |path: PathBuf| {
        let bytes = fs::read(&path).unwrap();
        let header = IndexHeader::decode(bytes.first_chunk().unwrap());
        (path, bytes, header)
    };
    store.index_files().into_iter().map(read).collect()
}

#[test]
fn e25_j23_an_index_file_of_n_entries_holds_n_less_one_and_the_next_has_a_name_of_its_own() {
    const KEYS: u64 = 21;
    in_each_mode(
        |settings| settings.index_entries = 5,
        async |live| {
            // Files that fill up within a millisecond.
            let texts: Vec<_> = (0..KEYS).map(|n| format!("KEYS\u{1}k{n}\u{2}")).collect();
            let batch: Vec<_> = texts.iter().map(|text| (&b""[..], &text[..])).collect();
            live.try_put(&batch, live.shared.settings.store_host).await.unwrap();
        },
        |store| {
            let files = index_files(store);
            let counts: Vec<_> = files.iter().map(|(_, _, header)| header.next_unit).collect();
            assert_eq!(counts, [5, 5, 5, 5, 5, 2], "the number of the next unit, which begins with 1");
            for (path, _, _) in &files {
                assert!(names::is_index_name(path.file_name().unwrap().to_str().unwrap()), "{}", path.display());
            }
            for n in 0..KEYS {
                let mut found = Vec::new();
                for (_, bytes, _) in &files {
                    let index = IndexFile::open(bytes, 100, 5).unwrap();
                    let key = key_hash("T", &format!("k{n}"));
                    index.find(key, Timestamp(0), Timestamp(i64::MAX), usize::MAX, &mut found);
                }
                assert_eq!(found, [unit(store, n).phy], "k{n}");
            }
        },
    );
}

#[test]
fn e29_a_unit_of_a_delayed_message_holds_when_it_is_due() {
    in_each_mode(
        |_| {},
        async |live| {
            live.put_text("DELAY\u{1}10000\u{2}").await;
            live.put_text("DELAY\u{1}7200000\u{2}").await;
        },
        |store| {
            for (offset, delay_ms) in [(0, 10_000), (1, 7_200_000)] {
                let unit = unit(store, offset);
                let bytes = log_from(store, unit.phy.0);
                let stored_at = RecordView::parse(&bytes).unwrap().store_timestamp().0;
                assert_eq!(unit.tags, TagsCode(stored_at + delay_ms));
            }
        },
    );
}

#[test]
fn j15_a_segment_of_which_much_is_left_is_ended_all_the_same() {
    const LEN: u64 = 10 << 20;
    in_each_mode(
        |settings| (settings.segment_len, settings.inflight_len_max) = (LEN, 64 << 20),
        async |live| {
            assert_eq!(live.put(&[4 << 20]).await, at(0, 0));
            assert_eq!(live.put(&[7 << 20]).await, at(1, LEN), "6 MiB were left");
        },
        |store| {
            let blank = log_from(store, 4 << 20);
            assert_eq!(blank[..8], [0, 0x60, 0, 0, 0xcb, 0xd4, 0x31, 0x94]);
            assert!(blank[8..].iter().all(|byte| *byte == 0));
            assert_eq!(RecordView::parse(&log_from(store, LEN)).unwrap().queue_offset(), QueueOffset(1));
        },
    );
}

/// What is done to the files of the commit log, in order.
#[derive(Default)]
struct Recorder(RefCell<Vec<(&'static str, String)>>);

impl Tap for Recorder {
    fn ask(&self, change: &Change<'_>) -> std::io::Result<Answer> {
        let (what, path) = match change {
            Change::Resize { path, .. } => ("length", path),
            Change::Reserve { path, .. } => ("reserve", path),
            Change::Write { path, .. } | Change::Store { path } => ("write", path),
            Change::Sync { path } => ("sync", path),
            Change::SyncFolder { path } => ("sync folder", path),
            _ => return Ok(Answer::Do),
        };
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.ends_with("commitlog") || path.parent().is_some_and(|dir| dir.ends_with("commitlog")) {
            self.0.borrow_mut().push((what, name.to_owned()));
        }
        Ok(Answer::Do)
    }
}

#[test]
fn r13_a_segment_has_its_blocks_and_its_name_on_stable_storage_before_anything_is_written_to_it() {
    let recorder = Rc::new(Recorder::default());
    let _watch = Watch::start(Rc::clone(&recorder) as _);
    in_each_mode(
        |_| {},
        async |live| {
            for number in 0..9 {
                live.put(&[1500]).await;
                assert_eq!(live.shared.flushed(), live.shared.appended(), "message {number} was answered once flushed");
            }
        },
        |store| {
            let done = recorder.0.take();
            assert!(store.segment(4 * 4096).exists(), "the log has rolled");
            for start in [0, 4096, 8192, 12_288, 16_384] {
                let name = names::segment_name(start);
                let own: Vec<_> = done
                    .iter()
                    .filter(|(_, of)| [&*name, "commitlog"].contains(&&**of))
                    .map(|(what, _)| *what)
                    .collect();
                let first_of = |what| own.iter().position(|done| *done == what);
                let made = first_of("reserve").unwrap_or_else(|| panic!("{name} of {done:?}"));
                let synced = own[made..].iter().position(|done| *done == "sync").map(|at| made + at).unwrap();
                let named = own[synced..].iter().position(|done| *done == "sync folder").map(|at| synced + at).unwrap();
                assert!(first_of("length").is_some_and(|length| length < synced), "{own:?}");
                // In dma mode a first block of zeros follows.
                assert!(first_of("write").is_none_or(|write| write > named), "{name}: {own:?}");
            }
        },
    );
}

/// A record that was damaged after it was stored: a client would take it apart by lengths that are none.
#[test]
fn a_record_whose_lengths_do_not_add_up_is_stepped_over_like_damage() {
    const BODY_LEN_AT: u64 = 84;
    let mut store = TestStore::in_memory();
    store.settings.flush = FlushMode::Sync;
    (store.settings.sync_timeout_ms, store.settings.put_wait_ms_max) = (60_000, 60_000);
    on_executor(async {
        let live = Live::start(&store.settings).await;
        live.put(&[200, 300, 400]).await;
        while live.queue.max() < QueueOffset(3) {
            crate::io::sleep(std::time::Duration::from_millis(1)).await;
        }
        let get = async || {
            let found = live.store.get(&live.queue, 0, 10, 1 << 20, &|_| true);
            assert_eq!((found.status, found.next_offset), (GetStatus::Found, 3));
            let mut copied = BytesMut::new();
            let all_there = found.found.copy_if_resident(&mut copied);
            (all_there, found.found.load(&Reader::Lookup).await.unwrap().records)
        };
        let (all_there, bytes) = get().await;
        assert_eq!((all_there, bytes.len()), (true, 900));
        store.write(PhyOffset(200 + BODY_LEN_AT), &(300 - OVERHEAD as u32 + 1).to_be_bytes());
        let (all_there, bytes) = get().await;
        assert_eq!((all_there, bytes.len()), (false, 600), "the second is left out");
        assert_eq!(RecordView::parse(&bytes[200..]).unwrap().queue_offset(), QueueOffset(2));
        live.stop().await;
    });
}
