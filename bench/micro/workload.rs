//! What the benchmarks of the store share: a directory on disk, the node's default settings, and messages as a Java
//! client sends them.

use std::net::SocketAddr;
use std::path::Path;

use kerolox::config::ZeroAhead;
use kerolox::io::{AppendMode, Blocking, Job, SyncCall};
use kerolox::log::Checksums;
use kerolox::store::{FlushMode, ReadSettings, StoreSettings};
use kerolox::types::{KeyHash, key_hash};
use tempfile::TempDir;

pub const TOPIC: &str = "BenchTopic";
pub const QUEUES: u32 = 8;
pub const BODY_LEN: usize = 1024;
/// Different messages that take turns. Together they fit a core's L2 cache, as what a socket was just read into does.
pub const MESSAGES: usize = 256;
/// Physical memory of the imagined machine; no benchmark reads cold data.
pub const MEMORY_LEN: u64 = 16 << 30;

/// A message's parts that differ from one to the next.
pub struct Sent {
    pub body: Vec<u8>,
    pub properties: String,
    pub key: KeyHash,
}

/// [`MESSAGES`] messages with bodies that do not compress, and the properties of an ordinary send.
pub fn messages() -> Vec<Sent> {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut byte = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random as u8
    };
    (0..MESSAGES)
        .map(|number| {
            let unique = format!("7F000001{number:08X}18B4AAC2{:08X}", number * 7);
            Sent {
                body: (0..BODY_LEN).map(|_| byte()).collect(),
                properties: format!("UNIQ_KEY\u{1}{unique}\u{2}WAIT\u{1}true\u{2}TAGS\u{1}TagA\u{2}"),
                key: key_hash(TOPIC, &unique),
            }
        })
        .collect()
}

/// A directory for a store's files: in `KEROLOX_BENCH_DIR` if that is set, else below cargo's target directory, which is
/// on a disk more often than `/tmp`.
pub fn directory() -> TempDir {
    let parent = std::env::var_os("KEROLOX_BENCH_DIR").unwrap_or_else(|| env!("CARGO_TARGET_TMPDIR").into());
    std::fs::create_dir_all(&parent).expect("the benchmarks' directory can be made");
    TempDir::with_prefix_in("kerolox-bench-", parent).expect("a directory for the store")
}

/// The node's defaults, in async mode (docs/kerolox.toml); but no put is refused for having waited, since other work may
/// stop the machine for long and a benchmark only wants to know how long.
pub fn settings(root: &Path, append: AppendMode) -> StoreSettings {
    StoreSettings {
        root: root.to_owned(),
        store_host: SocketAddr::from(([127, 0, 0, 1], 10911)),
        append,
        sync_call: Some(SyncCall::ODsync),
        segment_len: 1 << 30,
        consumequeue_len: 6_000_000,
        index_slots: 5_000_000,
        index_entries: 20_000_000,
        flush: FlushMode::Async,
        flush_interval_ms: 100,
        flush_least_pages: 4,
        flush_thorough_interval_ms: 10_000,
        sync_timeout_ms: 2_500,
        consumequeue_flush_interval_ms: 1_000,
        consumequeue_thorough_interval_ms: 60_000,
        zero_ahead: ZeroAhead::Off,
        index: true,
        property_crc: false,
        delays_ms: vec![1_000, 5_000],
        inflight_len_max: 64 << 20,
        inflight_count_max: 65_536,
        put_wait_ms_max: 60_000,
        read: ReadSettings::default(),
        checksums: Checksums::Body,
    }
}

/// The helper thread, as a node has one; it ends with the last copy of what is returned.
pub fn helper() -> Blocking {
    let (submit, jobs) = flume::unbounded::<Job>();
    std::thread::spawn(move || jobs.iter().for_each(|job| job()));
    Blocking::new(move |job| submit.send(job).expect("the helper thread lives as long as this"))
}
