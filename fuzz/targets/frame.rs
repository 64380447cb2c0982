//! Frames as a socket brings them: header in either form, every typed header, every body.

#![no_main]

use bytes::BytesMut;
use kerolox::wire::client_config::ClientConfigCheck;
use kerolox::wire::cluster::ClusterInfo;
use kerolox::wire::headers::*;
use kerolox::wire::heartbeat::Heartbeat;
use kerolox::wire::lists::{ConsumerList, KvTable, TopicList};
use kerolox::wire::lock::{LockRequest, LockResponse};
use kerolox::wire::registration::BrokerRegistration;
use kerolox::wire::route::RouteData;
use kerolox::wire::{Command, HeaderType, encode_request, expected_len, first_frame};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = expected_len(bytes);
    let Ok(Some(bounds)) = first_frame(bytes) else { return bodies(bytes) };
    assert!(bounds.total_len <= bytes.len());
    let frame = &bytes[..bounds.total_len];
    let Ok(command) = Command::decode(frame, &bounds) else { return };
    headers(&command);
    bodies(command.body);
    again(&command);
});

fn headers(command: &Command<'_>) {
    let _ = (command.is_response(), command.is_oneway());
    let _ = SendHeader::read(command);
    let _ = PullHeader::read(command);
    let _ = SendBackHeader::read(command);
    let _ = QueryMessageHeader::read(command);
    let _ = ViewMessageHeader::read(command);
    let _ = QueryOffsetHeader::read(command);
    let _ = UpdateOffsetHeader::read(command);
    let _ = QueueHeader::read(command);
    let _ = SearchOffsetHeader::read(command);
    let _ = CreateTopicHeader::read(command);
    let _ = UnregisterHeader::read(command);
    let _ = GroupHeader::read(command);
    let _ = TopicHeader::read(command);
    let _ = KvHeader::read(command);
    let _ = NamespaceHeader::read(command);
    let _ = BrokerHeader::read(command);
}

fn bodies(body: &[u8]) {
    let _ = Heartbeat::decode(body);
    let _ = LockRequest::decode(body);
    let _ = LockResponse::decode(body);
    let _ = RouteData::decode(body);
    let _ = ClusterInfo::decode(body);
    let _ = TopicList::decode(body);
    let _ = ConsumerList::decode(body);
    let _ = KvTable::decode(body);
    let _ = ClientConfigCheck::decode(body);
    let _ = BrokerRegistration::decode(body);
    let _ = BrokerRegistration::decode_compressed(body);
}

/// What was read can be written in both forms and reads the same.
fn again(command: &Command<'_>) {
    let ext: Vec<_> = command.ext.iter().collect();
    // A field that is empty counts as absent; one whose name comes twice has no one value.
    let plain = ext.iter().all(|(name, value)| !name.is_empty() && !value.is_empty());
    let mut names: Vec<_> = ext.iter().map(|(name, _)| *name).collect();
    names.sort_unstable();
    names.dedup();
    if !plain || names.len() < ext.len() || ext.iter().any(|(name, value)| name.len() + value.len() > 30_000) {
        return;
    }
    for form in [HeaderType::Json, HeaderType::Rocketmq] {
        let mut out = BytesMut::new();
        encode_request(&mut out, form, command.code, command.version, command.opaque, command.flag, &ext, command.body);
        let Ok(Some(bounds)) = first_frame(&out) else { continue };
        // The binary form has two bytes for code and version.
        let narrow = i16::try_from(command.code).is_ok() && i16::try_from(command.version).is_ok();
        let Ok(second) = Command::decode(&out, &bounds) else {
            assert!(form == HeaderType::Rocketmq && !narrow, "what we encode, we read");
            continue;
        };
        if form == HeaderType::Json || narrow {
            assert_eq!((second.code, second.opaque, second.flag), (command.code, command.opaque, command.flag));
            assert_eq!(second.body, command.body);
            for (name, value) in &ext {
                assert_eq!(second.ext.get(name), Some(*value), "{name}");
            }
        }
    }
}
