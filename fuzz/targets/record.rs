//! Records of the commit log, and the scan that walks a segment of them.

#![no_main]

use kerolox::format::record::{self, RecordSpec, RecordView, sys_flag};
use kerolox::log::{Checksums, Scanned, SegmentScan, find_record};
use kerolox::types::{PhyOffset, properties};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = record::peek_header(bytes);
    if let Ok(view) = RecordView::parse(bytes) {
        look_at(&view);
    }
    walk(bytes);
});

/// Every accessor stays within the record, and what can be encoded again gives the same length.
fn look_at(view: &RecordView<'_>) {
    assert_eq!(view.bytes().len(), view.total_len() as usize);
    let _ = (view.check_crc(), view.seal(), view.queue_id(), view.flag(), view.queue_offset(), view.phy(), view.store_timestamp());
    let _ = (view.prepared_transaction_offset(), view.reconsume_times(), view.is_v2());
    let _ = record::key_hashes(view.topic(), view.properties());
    for (name, value) in properties::iter(view.properties()) {
        assert!(!name.is_empty() && !value.is_empty(), "empty names and values are dropped");
    }
    let spec = RecordSpec {
        topic: view.topic(),
        queue_id: view.queue_id(),
        flag: view.flag(),
        sys_flag: view.sys_flag() & !(sys_flag::BORN_HOST_V6 | sys_flag::STORE_HOST_V6),
        born_timestamp: view.born_timestamp(),
        born_host: view.born_host(),
        store_host: view.store_host(),
        reconsume_times: view.reconsume_times(),
        prepared_transaction_offset: view.prepared_transaction_offset(),
        body: view.body(),
        properties: &[view.raw_properties()],
    };
    let mut again = Vec::new();
    if spec.encode_into(&mut again).is_ok() {
        let second = RecordView::parse(&again).expect("what we encode, we read");
        assert_eq!((second.topic(), second.body()), (view.topic(), view.body()));
        assert_eq!(second.raw_properties(), view.raw_properties());
        assert!(second.check_crc());
    }
}

/// A scan ends, goes on only, and finds no record that it then cannot read.
fn walk(bytes: &[u8]) {
    let start = PhyOffset(0);
    let mut scan = SegmentScan::new(bytes, start, start, Checksums::Body);
    let mut at = 0;
    while let Scanned::Record(view) = scan.step() {
        assert_eq!(view.phy().0, at);
        at += u64::from(view.total_len());
    }
    if let Some(found) = find_record(bytes, start, start) {
        let view = RecordView::parse(&bytes[found.0 as usize..]).expect("a record is there");
        assert_eq!(view.phy(), found);
    }
}
