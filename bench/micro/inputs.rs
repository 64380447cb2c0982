//! What the single pieces are given: the same for those that are timed and those of which instructions are counted.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use bytes::BytesMut;
use kerolox::format::record::RecordSpec;
use kerolox::io::{AppendMode, SegmentSet};
use kerolox::store::{GetStatus, Shared};
use kerolox::types::{KeyHash, PhyOffset, Timestamp};
use kerolox::wire::code::{request, response};
use kerolox::wire::{HeaderType, VERSION_5, begin_response, encode_request};

use crate::reads::{PULL, Reads};
use crate::workload::{self, Sent};

pub const STORED_AT: Timestamp = Timestamp(1_700_000_000_000);
/// What the answer to a send says.
pub const SEND_ANSWER: [(&str, &str); 6] = [
    ("MSG_REGION", "DefaultRegion"),
    ("TRACE_ON", "true"),
    ("msgId", "7F00000100002A9F0000000000A1B2C3"),
    ("queueId", "3"),
    ("queueOffset", "1234567"),
    ("transactionId", "7F0000010000000118B4AAC200000007"),
];

/// The record of a message in queue 3, without its place.
pub fn record_of<'a>(sent: &'a Sent, properties: &'a [&'a [u8]]) -> RecordSpec<'a> {
    RecordSpec {
        topic: workload::TOPIC,
        queue_id: 3,
        flag: 0,
        sys_flag: 0,
        born_timestamp: STORED_AT.0,
        born_host: SocketAddr::from(([127, 0, 0, 1], 40_000)),
        store_host: SocketAddr::from(([127, 0, 0, 1], 10911)),
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body: &sent.body,
        properties,
    }
}

/// A send as a Java client's one-letter form has it.
pub fn send_frame(sent: &Sent) -> BytesMut {
    let ext = [
        ("a", "bench_producer"),
        ("b", workload::TOPIC),
        ("c", "TBW102"),
        ("d", "4"),
        ("e", "3"),
        ("f", "0"),
        ("g", "1700000000000"),
        ("h", "0"),
        ("i", &sent.properties),
        ("j", "0"),
        ("k", "false"),
        ("m", "false"),
    ];
    let mut frame = BytesMut::new();
    let code = request::SEND_MESSAGE_V2;
    encode_request(&mut frame, HeaderType::Json, code, VERSION_5, sent.key.0, 0, &ext, &sent.body);
    frame
}

/// Hashes that fall anywhere.
pub struct Keys(pub u32);

impl Keys {
    pub fn next_hash(&mut self) -> KeyHash {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        KeyHash((self.0 >> 1) as i32)
    }
}

/// A store's state without its log, which builders do not touch.
pub fn shared(dir: &Path) -> Arc<Shared> {
    let settings = workload::settings(dir, AppendMode::Buffered);
    let segments = SegmentSet::new(settings.segment_len, Vec::new());
    Arc::new(Shared::new(settings, segments, PhyOffset(0), workload::MEMORY_LEN))
}

/// Answers a pull of the `number`th piece of a queue from memory, as the broker does. Nothing is appended if it is not
/// in memory.
pub fn answer_from_memory(reads: &Reads, number: u64, out: &mut BytesMut) -> bool {
    let queue = &reads.queues[number as usize % reads.queues.len()];
    let offset = number / reads.queues.len() as u64 * PULL % (reads.each - PULL);
    let got = reads.shard.get(queue, offset as i64, PULL as i32, 256 << 10, &|_| true);
    assert_eq!((got.status, got.found.count()), (GetStatus::Found, PULL as usize));
    let mut digits = [itoa::Buffer::new(), itoa::Buffer::new(), itoa::Buffer::new()];
    let [next, min, max] = &mut digits;
    let ext = [
        ("maxOffset", max.format(got.max_offset)),
        ("minOffset", min.format(got.min_offset)),
        ("nextBeginOffset", next.format(got.next_offset)),
        ("suggestWhichBrokerId", "0"),
    ];
    let (json, opaque) = (HeaderType::Json, number as i32);
    begin_response(out, json, response::SUCCESS, VERSION_5, opaque, Some("FOUND"), &ext, got.found.total_len());
    got.found.copy_if_resident(out)
}
