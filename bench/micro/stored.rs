//! Stores that lie on the disk before a benchmark begins.

use std::fs::{self, File};
use std::io::Write;
use std::sync::Arc;

use kerolox::format::names;
use kerolox::format::record::{self, RecordSpec};
use kerolox::store::{Closing, OpenedStore, StoreSettings, close};
use kerolox::types::{PhyOffset, QueueOffset, Timestamp};

use crate::workload;

/// A log of about `len` bytes whose messages take turns in so many queues; gives its length.
pub fn write_log(settings: &StoreSettings, len: u64, queues: u32, body_len: usize) -> u64 {
    let messages = workload::messages();
    let dir = settings.root.join(names::COMMIT_LOG);
    fs::create_dir_all(&dir).expect("a folder for the log");
    let (mut end, mut number) = (0_u64, 0_u64);
    let mut segment = Vec::with_capacity(settings.segment_len as usize);
    let mut bytes = Vec::new();
    let body: Vec<u8> =
        messages.iter().flat_map(|message| message.body.iter().copied()).cycle().take(body_len).collect();
    while end < len {
        segment.clear();
        loop {
            let message = &messages[number as usize % messages.len()];
            bytes.clear();
            let spec = RecordSpec {
                topic: workload::TOPIC,
                queue_id: (number % u64::from(queues)) as i32,
                flag: 0,
                sys_flag: 0,
                born_timestamp: 1_700_000_000_000,
                born_host: settings.store_host,
                store_host: settings.store_host,
                reconsume_times: 0,
                prepared_transaction_offset: 0,
                body: &body,
                properties: &[message.properties.as_bytes()],
            };
            let placed = spec.encode_into(&mut bytes).expect("a record");
            let left = settings.segment_len - segment.len() as u64;
            let phy = PhyOffset(end + segment.len() as u64);
            if u64::from(placed.len) + record::BLANK_LEN as u64 > left || phy.0 >= len {
                if phy.0 < len {
                    segment.extend_from_slice(&record::encode_blank(left as u32));
                }
                break;
            }
            let stored_at = Timestamp(1_700_000_000_000 + number as i64 / 100);
            let offset = QueueOffset(number / u64::from(queues));
            record::number(&mut bytes, placed.store_timestamp_at, offset, phy, stored_at);
            segment.extend_from_slice(&bytes);
            number += 1;
        }
        let written = segment.len() as u64;
        let mut file = File::create(dir.join(names::segment_name(end))).expect("a segment");
        file.write_all(&segment).expect("room for the log");
        file.set_len(settings.segment_len).expect("a segment of full length");
        file.sync_all().expect("the log reaches the disk");
        end += if end + written < len { settings.segment_len } else { written };
    }
    eprintln!("a log of {} MiB, {number} messages, {queues} queues", end >> 20);
    end
}

/// A clean stop.
pub fn close_store(opened: OpenedStore) {
    let queues: Vec<_> = opened.queues.list().iter().map(|(_, queue)| Arc::clone(queue)).collect();
    close(&Closing {
        layout: opened.layout,
        shared: opened.shared,
        queues: &queues,
        index_files: opened.index_files,
        checkpoint: opened.checkpoint,
    })
    .expect("the store closes");
}
