//! Pieces of a message's way of which callgrind counts the instructions: a number that no other work on the machine moves.
//!
//! Run by `bench/counted`, which names a piece; callgrind collects only while [`counted_section`] runs. What is before it is
//! warm-up: buffers have grown, lazy statics are there. The kernel's part is not counted.

mod inputs;
mod reads;
mod stored;
#[allow(dead_code, reason = "shared by the benches, none of which uses everything")]
mod workload;

use std::future::poll_fn;
use std::hint::black_box;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::task::{Context, Poll, Waker};

use bytes::BytesMut;
use inputs::{Keys, SEND_ANSWER, STORED_AT};
use kerolox::dispatch::ring;
use kerolox::format::{index_file, record};
use kerolox::index::IndexFileMut;
use kerolox::log::{LogEnd, Place, QueueCounters};
use kerolox::store::{
    Builder, DispatchUnit, IndexBuilder, KeyEntry, Layout, Message, PutFlush, QueueRegistry, QueueView, Submitter,
    TagsRule,
};
use kerolox::types::{PhyOffset, QueueHandle, QueueKey, QueueOffset, TagsCode};
use kerolox::wire::code::response;
use kerolox::wire::headers::SendHeader;
use kerolox::wire::{Command, HeaderType, VERSION_5, encode_response, first_frame};
use reads::{PULL, Reads};
use smallvec::smallvec;

/// As the node has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Messages counted, of the pieces that take single ones.
const COUNT: u64 = 1024;
/// Batches counted, of the others, and messages in each.
const BATCHES: u64 = 32;
const BATCH: u64 = 64;

/// Runs a piece and gives the number of messages counted.
type Run = fn() -> u64;

const PIECES: [(&str, Run); 10] = [
    ("decode_send", decode_send),
    ("encode_record", encode_record),
    ("body_crc", body_crc),
    ("shard_put", shard_put),
    ("number_record", number_record),
    ("encode_send_answer", encode_send_answer),
    ("unit_build", unit_build),
    ("index_put", index_put),
    ("index_build", index_build),
    ("pull_answer_32", pull_answer),
];

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    if let Some(unknown) = wanted.iter().find(|name| PIECES.iter().all(|piece| piece.0 != **name)) {
        eprintln!("there is no piece {unknown}");
        std::process::exit(2);
    }
    for (name, run) in PIECES {
        if wanted.is_empty() || wanted.iter().any(|one| one == name) {
            println!("{name} {}", run());
        }
    }
}

/// What callgrind counts.
#[inline(never)]
fn counted_section<R>(piece: impl FnOnce() -> R) -> R {
    black_box(piece())
}

fn decode_send() -> u64 {
    let frames: Vec<BytesMut> = workload::messages().iter().map(inputs::send_frame).collect();
    let decode = |frame: &BytesMut| {
        let frame = black_box(frame);
        let bounds = first_frame(frame).expect("it is a frame").expect("it is whole");
        let command = Command::decode(frame, &bounds).expect("a header");
        let header = SendHeader::read(&command).expect("a send");
        black_box((header.queue_id, header.born_timestamp, header.topic.len(), header.properties.len()));
    };
    frames.iter().for_each(decode);
    counted_section(|| frames.iter().cycle().take(COUNT as usize).for_each(decode));
    COUNT
}

fn encode_record() -> u64 {
    let messages = workload::messages();
    let mut batch = Vec::with_capacity(2 * COUNT as usize * workload::BODY_LEN);
    let mut encode = |count: u64| {
        batch.clear();
        for sent in messages.iter().cycle().take(count as usize) {
            let properties = [sent.properties.as_bytes()];
            inputs::record_of(black_box(sent), &properties).encode_into(&mut batch).expect("it is a record");
        }
    };
    encode(64);
    counted_section(|| encode(COUNT));
    COUNT
}

fn body_crc() -> u64 {
    let messages = workload::messages();
    let crc = |sent: &workload::Sent| {
        black_box(record::body_crc(black_box(&sent.body)));
    };
    messages.iter().for_each(crc);
    counted_section(|| messages.iter().cycle().take(COUNT as usize).for_each(crc));
    COUNT
}

/// A shard takes a message, encodes it into its batch for the writer, and hands a batch over every 64.
fn shard_put() -> u64 {
    let dir = workload::directory();
    let submitter = Submitter::new(inputs::shared(dir.path()));
    let (to_writer, mut writer) = ring(BATCHES as usize + 1);
    let mut submit = pin!(Rc::clone(&submitter).run_submit(to_writer));
    let mut queues = QueueRegistry::new(Vec::new());
    let views: Vec<_> = (0..workload::QUEUES).map(|id| queues.queue(&QueueKey::new(workload::TOPIC, id))).collect();
    let messages = workload::messages();
    let cx = &mut Context::from_waker(Waker::noop());
    let mut put = |batches: u64| {
        for number in 0..batches * BATCH {
            let sent = &messages[number as usize % messages.len()];
            let message = Message {
                queue: &views[number as usize % views.len()],
                flag: 0,
                sys_flag: 0,
                born_timestamp: STORED_AT.0,
                born_host: SocketAddr::from(([127, 0, 0, 1], 40_000)),
                reconsume_times: 0,
                prepared_transaction_offset: 0,
                body: black_box(&sent.body),
                properties: &[sent.properties.as_bytes()],
                tags: TagsRule::Code(TagsCode::of(Some("TagA"))),
                keys: smallvec![sent.key],
            };
            let flush = PutFlush { topic: None, may_wait: true };
            submitter.put(std::slice::from_ref(&message), flush, Box::new(|_| {})).expect("the store takes it");
            if number % BATCH == BATCH - 1 {
                assert!(submit.as_mut().poll(cx).is_pending(), "it ends only with its ring");
            }
        }
    };
    put(1);
    counted_section(|| put(BATCHES));
    let batches = std::iter::from_fn(|| match writer.poll_recv(&Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(batch)) => Some(batch),
        Poll::Ready(Err(_)) | Poll::Pending => None,
    });
    assert_eq!(batches.count() as u64, BATCHES + 1, "every batch is in the ring");
    BATCHES * BATCH
}

/// What the writer does to a record: its place, its queue offset, and the fields that say so.
fn number_record() -> u64 {
    let (mut bytes, mut placed) = (Vec::new(), Vec::new());
    for sent in workload::messages().iter().cycle().take(COUNT as usize) {
        let properties = [sent.properties.as_bytes()];
        placed.push(inputs::record_of(sent, &properties).encode_into(&mut bytes).expect("it is a record"));
    }
    let mut counters = QueueCounters::new(vec![0; workload::QUEUES as usize]);
    let mut end = LogEnd::new(PhyOffset(0), 1 << 30, STORED_AT);
    let mut number = |count: usize| {
        let mut rest = &mut bytes[..];
        for (number, placed) in placed.iter().enumerate().take(count) {
            let (record, behind) = std::mem::take(&mut rest).split_at_mut(placed.len as usize);
            let Place::Here(at) = end.place(u64::from(placed.len)) else { panic!("a segment holds all of them") };
            let queue_offset = counters.take(QueueHandle(number as u32 % workload::QUEUES), 1);
            record::number(black_box(record), placed.store_timestamp_at, queue_offset, at, STORED_AT);
            end.advance(at, u64::from(placed.len));
            rest = behind;
        }
    };
    number(64);
    counted_section(|| number(COUNT as usize));
    COUNT
}

fn encode_send_answer() -> u64 {
    let mut out = BytesMut::with_capacity(1 << 20);
    let mut encode = |count: u64| {
        out.clear();
        for opaque in 0..count as i32 {
            let (json, ext) = (HeaderType::Json, black_box(&SEND_ANSWER));
            encode_response(&mut out, json, response::SUCCESS, VERSION_5, opaque, None, ext, &[]);
        }
    };
    encode(64);
    counted_section(|| encode(COUNT));
    COUNT
}

/// The real builder of consume queues, from its ring to the published end.
fn unit_build() -> u64 {
    let dir = workload::directory();
    let mut queues = QueueRegistry::new(Vec::new());
    let views: Vec<_> = (0..workload::QUEUES).map(|id| queues.queue(&QueueKey::new(workload::TOPIC, id))).collect();
    let durable = Arc::new(AtomicI64::new(i64::MAX));
    let layout = Layout::new(dir.path());
    let untold = Box::new(|_: &Arc<QueueView>, _| {});
    let shared = inputs::shared(dir.path());
    let builder = Builder::new(shared, layout, workload::helper(), queues.list(), 1, untold, durable);
    let (mut sender, receiver) = ring(BATCH as usize);
    let unit = |number: u64| DispatchUnit {
        queue: QueueHandle(number as u32 % workload::QUEUES),
        queue_offset: QueueOffset(number / u64::from(workload::QUEUES)),
        phy: PhyOffset(number * 1100),
        len: 1100,
        tags: TagsCode(2_598_919),
        stored_at: STORED_AT,
    };
    let mut give = |number: u64| {
        let units = (number * BATCH..(number + 1) * BATCH).map(unit).collect();
        assert!(sender.push(units).is_ok(), "the ring is empty");
    };
    let built = |batches: u64| views.iter().all(|view| view.max().0 == batches * BATCH / u64::from(workload::QUEUES));
    count_polled(builder.run(receiver), &mut give, &built)
}

/// One key into an index file, which lies in memory here.
fn index_put() -> u64 {
    const SLOTS: u32 = 50_000;
    let mut bytes = vec![0; index_file::file_len(SLOTS, SLOTS) as usize];
    let mut file = IndexFileMut::create(&mut bytes, SLOTS, SLOTS).expect("the length is right");
    let mut keys = Keys(1);
    let mut put = |count: u64| {
        for number in 0..count {
            assert!(file.put(keys.next_hash(), PhyOffset(number * 1100), STORED_AT).is_ok(), "it is not full");
        }
    };
    put(COUNT);
    counted_section(|| put(COUNT));
    COUNT
}

/// The real builder of the index, from its ring to the newest entry.
fn index_build() -> u64 {
    let dir = workload::directory();
    let (full_up_to, durable) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicI64::new(i64::MAX)));
    let layout = Layout::new(dir.path());
    let shared = inputs::shared(dir.path());
    let builder = IndexBuilder::new(shared, layout, workload::helper(), Vec::new(), full_up_to, durable);
    let (mut sender, receiver) = ring(BATCH as usize);
    let mut keys = Keys(1);
    let mut give = |number: u64| {
        let entry = |phy| KeyEntry { key: keys.next_hash(), phy: PhyOffset(phy), stored_at: STORED_AT };
        let entries = (number * BATCH..(number + 1) * BATCH).map(entry).collect();
        assert!(sender.push(entries).is_ok(), "the ring is empty");
    };
    let built = |batches: u64| builder.newest().unwrap().1 == PhyOffset(batches * BATCH - 1);
    count_polled(Rc::clone(&builder).run(receiver), &mut give, &built)
}

/// Gives a builder one batch after the other. Those of the warm-up make the files, and enough of them that the blocks
/// which are reserved then last for the others, each of which one poll builds.
fn count_polled(builder: impl Future<Output = ()>, give: &mut dyn FnMut(u64), built: &dyn Fn(u64) -> bool) -> u64 {
    const WARM_UP: u64 = 56;
    let mut builder = pin!(builder);
    let mut poll = |cx: &mut Context<'_>| assert!(builder.as_mut().poll(cx).is_pending(), "it ends only with its ring");
    for number in 0..WARM_UP + BATCHES {
        give(number);
        if number < WARM_UP {
            futures_lite::future::block_on(poll_fn(|cx| {
                poll(cx);
                if built(number + 1) { Poll::Ready(()) } else { Poll::Pending }
            }));
        } else {
            counted_section(|| poll(&mut Context::from_waker(Waker::noop())));
            assert!(built(number + 1), "one poll builds a batch");
        }
    }
    BATCHES * BATCH
}

/// From a pull's offset to the whole answer: units, records from the page cache, header.
fn pull_answer() -> u64 {
    let dir = workload::directory();
    let reads = Reads::open(dir.path(), 16);
    let mut out = BytesMut::with_capacity(1 << 20);
    let mut answer = |number| {
        out.clear();
        assert!(inputs::answer_from_memory(&reads, number, &mut out), "what was just written is in memory");
    };
    (0..8).for_each(&mut answer);
    counted_section(|| (8..8 + BATCHES).for_each(&mut answer));
    BATCHES * PULL
}
