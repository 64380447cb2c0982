//! A store that was written before, as a shard reads it.

use std::path::Path;
use std::sync::Arc;

use kerolox::io::{AppendMode, StoreLock};
use kerolox::store::{self, OpenedStore, QueueView, ShardStore, Submitter};
use kerolox::types::QueueKey;

use crate::{stored, workload};

/// Messages that consumers ask for at once.
pub const PULL: u64 = 32;

pub struct Reads {
    pub shard: ShardStore,
    pub queues: Vec<Arc<QueueView>>,
    /// Messages of each queue.
    pub each: u64,
    _lock: StoreLock,
}

impl Reads {
    /// A log of `mib` MiB of messages of 1 KiB that take turns in 8 queues, written to `root` and opened.
    pub fn open(root: &Path, mib: u64) -> Reads {
        let mut settings = workload::settings(root, AppendMode::Buffered);
        settings.segment_len = 256 << 20;
        stored::write_log(&settings, mib << 20, workload::QUEUES, workload::BODY_LEN);
        // The first start builds the queues, and leaves every page mapped that it has read.
        let open = || store::open(settings.clone(), workload::MEMORY_LEN, &store::Opening::unstopped());
        stored::close_store(open().expect("the store opens"));
        let opened = open().expect("the store opens again");
        let OpenedStore { lock, shared, mut queues, .. } = opened;
        let queues: Vec<_> =
            (0..workload::QUEUES).map(|id| queues.queue(&QueueKey::new(workload::TOPIC, id))).collect();
        let shard = ShardStore::new(Arc::clone(&shared), Submitter::new(shared), None, workload::helper());
        let each = queues.iter().map(|queue| queue.max().0).min().expect("there are queues");
        assert!(each > PULL, "the log has messages in each queue");
        Reads { shard, queues, each, _lock: lock }
    }
}
