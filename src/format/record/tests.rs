use proptest::prelude::*;

use super::*;

const JAVA_SEGMENTS: [&[u8; 4096]; 3] = [
    include_bytes!("../../../tests/golden/java-clean/commitlog/00000000000000000000"),
    include_bytes!("../../../tests/golden/java-clean/commitlog/00000000000000004096"),
    include_bytes!("../../../tests/golden/java-clean/commitlog/00000000000000008192"),
];

/// store.md 2.13.
const WORKED_EXAMPLE: &str = "
    00 00 00 bb da a3 20 a7 69 c8 65 ed 00 00 00 01
    00 00 00 00 00 00 00 00 00 00 00 05 00 00 00 00
    00 00 10 00 00 00 00 00 00 00 01 8b cf e5 68 00
    0a 00 00 02 00 00 d4 31 00 00 01 8b cf e5 68 7b
    7f 00 00 01 00 00 2a 9f 00 00 00 00 00 00 00 00
    00 00 00 00 00 00 00 0e 48 65 6c 6c 6f 20 52 6f
    63 6b 65 74 4d 51 09 54 6f 70 69 63 54 65 73 74
    00 49 54 41 47 53 01 54 61 67 41 02 4b 45 59 53
    01 6b 31 20 6b 32 02 55 4e 49 51 5f 4b 45 59 01
    37 46 30 30 30 30 30 31 30 30 30 30 32 41 39 46
    30 30 30 30 30 30 30 30 30 30 30 30 30 30 41 41
    02 57 41 49 54 01 74 72 75 65 02";

fn worked_example() -> Vec<u8> {
    let digits = WORKED_EXAMPLE.split_ascii_whitespace();
    digits.map(|byte| u8::from_str_radix(byte, 16).expect("two digits")).collect()
}

fn addr(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

fn spec<'a>(topic: &'a str, body: &'a [u8], properties: &'a [&'a [u8]]) -> RecordSpec<'a> {
    RecordSpec {
        topic,
        queue_id: 1,
        flag: 0,
        sys_flag: 0,
        born_timestamp: 1_700_000_000_000,
        born_host: addr("10.0.0.2:54321"),
        store_host: addr("127.0.0.1:10911"),
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body,
        properties,
    }
}

fn encode(spec: &RecordSpec<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    let placed = spec.encode_into(&mut out).expect("a message that fits");
    assert_eq!(placed.len as usize, out.len());
    assert_eq!(spec.encoded_len(), Ok(out.len()));
    out
}

#[test]
fn the_worked_example_has_javas_bytes() {
    let properties: [&[u8]; 2] =
        [b"TAGS\x01TagA\x02KEYS\x01k1 k2\x02", b"UNIQ_KEY\x017F00000100002A9F00000000000000AA\x02WAIT\x01true\x02"];
    let spec = spec("TopicTest", b"Hello RocketMQ", &properties);
    let mut out = vec![0xee];
    let placed = spec.encode_into(&mut out).expect("a message that fits");
    assert_eq!(placed, Placed { len: 187, store_timestamp_at: 56 });
    number(&mut out[1..], placed.store_timestamp_at, QueueOffset(5), PhyOffset(4096), Timestamp(1_700_000_000_123));
    assert_eq!(out[1..], worked_example());
}

#[test]
fn the_worked_example_reads_back() {
    let mut bytes = worked_example();
    bytes.extend_from_slice(&[0xff; 9]);
    let record = RecordView::parse(&bytes).expect("a record");
    assert!(record.check_crc());
    assert_eq!(record.bytes(), &bytes[..187]);
    assert_eq!((record.total_len(), record.is_v2()), (187, false));
    assert_eq!((record.queue_id(), record.flag(), record.sys_flag()), (1, 0, 0));
    assert_eq!((record.queue_offset(), record.phy()), (QueueOffset(5), PhyOffset(4096)));
    assert_eq!(record.born_timestamp(), 1_700_000_000_000);
    assert_eq!(record.store_timestamp(), Timestamp(1_700_000_000_123));
    assert_eq!((record.born_host(), record.store_host()), (addr("10.0.0.2:54321"), addr("127.0.0.1:10911")));
    assert_eq!((record.reconsume_times(), record.prepared_transaction_offset()), (0, 0));
    assert_eq!(record.body(), b"Hello RocketMQ");
    assert_eq!(record.topic(), "TopicTest");
    assert_eq!(properties::get(record.properties(), "KEYS"), Some("k1 k2"));
    assert_eq!(record.raw_properties(), record.properties().as_bytes());
}

#[test]
fn every_record_that_java_wrote_reads_and_encodes_back() {
    let (mut count, mut at) = (0, 0);
    for segment in JAVA_SEGMENTS {
        let mut left = &segment[..];
        loop {
            match peek_header(left).expect("a record, a blank or zeros") {
                Header::Record { total_len } => {
                    let record = RecordView::parse(left).expect("a record");
                    assert!(record.check_crc());
                    assert_eq!(record.phy(), PhyOffset(at));
                    let properties = [record.raw_properties()];
                    let spec = RecordSpec {
                        topic: record.topic(),
                        queue_id: record.queue_id(),
                        flag: record.flag(),
                        sys_flag: record.sys_flag(),
                        born_timestamp: record.born_timestamp(),
                        born_host: record.born_host(),
                        store_host: record.store_host(),
                        reconsume_times: record.reconsume_times(),
                        prepared_transaction_offset: record.prepared_transaction_offset(),
                        body: record.body(),
                        properties: &properties,
                    };
                    let mut again = Vec::new();
                    let placed = spec.encode_into(&mut again).expect("a message that fits");
                    let place = (record.queue_offset(), record.phy(), record.store_timestamp());
                    number(&mut again, placed.store_timestamp_at, place.0, place.1, place.2);
                    assert_eq!(again, record.bytes());
                    left = &left[total_len as usize..];
                    at += u64::from(total_len);
                    count += 1;
                }
                Header::Blank { total_len } => {
                    assert_eq!(total_len as usize, left.len());
                    assert_eq!(left[..BLANK_LEN], encode_blank(total_len));
                    at += u64::from(total_len);
                    break;
                }
                Header::Zero => break,
            }
        }
    }
    assert_eq!(count, 30);
}

#[test]
fn the_smallest_record_takes_91_bytes_and_a_checksum_of_0() {
    let bytes = encode(&spec("", b"", &[]));
    assert_eq!(bytes.len() as u32, RECORD_LEN_MIN);
    let bytes = encode(&spec("T", b"", &[]));
    assert_eq!(bytes.len(), 92);
    let record = RecordView::parse(&bytes).expect("a record");
    assert_eq!((record.body(), record.properties()), (&b""[..], ""));
    assert_eq!(bytes[8..12], [0; 4]);
    assert!(record.check_crc());
}

#[test]
fn the_checksum_has_no_top_bit() {
    assert_eq!(body_crc(b"123456789"), 0x4bf4_3926);
    assert_eq!(body_crc(b"a"), 1_756_872_259);
    assert_eq!(body_crc(b""), 0);
}

#[test]
fn a_topic_above_127_bytes_makes_a_v2_record() {
    for (len, magic, length_field) in
        [(127, MAGIC_V1, &[0x7f][..]), (128, MAGIC_V2, &[0, 0x80][..]), (255, MAGIC_V2, &[0, 0xff][..])]
    {
        let topic = "t".repeat(len);
        let bytes = encode(&spec(&topic, b"x", &[]));
        assert_eq!(bytes[4..8], magic.to_be_bytes());
        assert_eq!(&bytes[89..89 + length_field.len()], length_field);
        let record = RecordView::parse(&bytes).expect("a record");
        assert_eq!((record.topic(), record.is_v2()), (topic.as_str(), magic == MAGIC_V2));
    }
    let topic = "t".repeat(256);
    let mut out = vec![1];
    assert_eq!(spec(&topic, b"x", &[]).encode_into(&mut out), Err(EncodeError::TopicTooLong { len: 256 }));
    assert_eq!(out, [1]);
}

#[test]
fn properties_of_32767_bytes_fit_and_one_more_does_not() {
    let (most, one) = (vec![b'p'; 32_766], [b'q']);
    let properties: [&[u8]; 3] = [&most, &one, &one];
    let bytes = encode(&spec("T", b"", &properties[..2]));
    assert_eq!(RecordView::parse(&bytes).expect("a record").properties().len(), 32_767);
    let refused = spec("T", b"", &properties).encoded_len();
    assert_eq!(refused, Err(EncodeError::PropertiesTooLong { len: 32_768 }));
}

#[test]
fn the_addresses_alone_decide_the_widths_of_the_hosts() {
    let v6 = addr("[2001:db8::1]:10911");
    let both = RecordSpec { born_host: v6, store_host: v6, ..spec("T", b"x", &[]) };
    let bytes = encode(&both);
    assert_eq!(bytes.len(), 117);
    assert_eq!(bytes[112], b'x');
    let record = RecordView::parse(&bytes).expect("a record");
    assert_eq!((record.sys_flag(), record.born_host(), record.store_host()), (0x30, v6, v6));
    assert_eq!(message_id(record.store_host(), record.phy()).len(), 56);

    let claimed = RecordSpec { sys_flag: 0x731, ..spec("T", b"x", &[]) };
    let bytes = encode(&claimed);
    assert_eq!(RecordView::parse(&bytes).expect("a record").sys_flag(), 0x701);

    let mapped = RecordSpec { born_host: addr("[::ffff:10.0.0.2]:54321"), ..spec("T", b"x", &[]) };
    assert_eq!(encode(&mapped), encode(&spec("T", b"x", &[])));

    let mut out = Vec::new();
    let born_v6 = RecordSpec { born_host: v6, ..spec("T", b"x", &[]) };
    let placed = born_v6.encode_into(&mut out).expect("a message that fits");
    assert_eq!(placed, Placed { len: 105, store_timestamp_at: 68 });
    number(&mut out, 68, QueueOffset(1), PhyOffset(2), Timestamp(3));
    let record = RecordView::parse(&out).expect("a record");
    assert_eq!((record.queue_offset(), record.phy()), (QueueOffset(1), PhyOffset(2)));
    assert_eq!((record.store_timestamp(), record.store_host()), (Timestamp(3), addr("127.0.0.1:10911")));
}

#[test]
fn a_header_tells_record_blank_and_nothing_apart() {
    assert_eq!(peek_header(&worked_example()[..8]), Ok(Header::Record { total_len: 187 }));
    assert_eq!(encode_blank(8), [0, 0, 0, 8, 0xcb, 0xd4, 0x31, 0x94]);
    assert_eq!(peek_header(&encode_blank(3994)), Ok(Header::Blank { total_len: 3994 }));
    assert_eq!(peek_header(&encode_blank(0)), Ok(Header::Blank { total_len: 0 }));
    assert_eq!(peek_header(&[0; 8]), Ok(Header::Zero));
    assert_eq!(peek_header(&[0; 7]), Err(BadRecord::Truncated { need: 8, have: 7 }));
    assert_eq!(peek_header(&[0, 0, 0, 1, 0, 0, 0, 0]), Err(BadRecord::Magic { found: 0 }));
    let with_len = |len: i32| [len.to_be_bytes(), MAGIC_V1.to_be_bytes()].concat();
    assert_eq!(peek_header(&with_len(90)), Err(BadRecord::TotalLen { found: 90 }));
    assert_eq!(peek_header(&with_len(-1)), Err(BadRecord::TotalLen { found: -1 }));
}

#[test]
fn what_is_no_whole_record_is_refused() {
    let good = worked_example();
    for have in 0..good.len() {
        let need = if have < 8 { 8 } else { 187 };
        assert_eq!(RecordView::parse(&good[..have]).err(), Some(BadRecord::Truncated { need, have }));
    }
    let damaged = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        RecordView::parse(&bytes).err()
    };
    assert!(matches!(damaged(3, 0xba), Some(BadRecord::Length { declared: 186, .. })));
    assert!(matches!(damaged(7, 0xab), Some(BadRecord::Length { declared: 187, .. })));
    assert!(matches!(damaged(39, 0x10), Some(BadRecord::Length { .. })));
    assert!(matches!(damaged(84, 0x7f), Some(BadRecord::Length { .. })));
    assert!(matches!(damaged(84, 0xff), Some(BadRecord::Length { .. })));
    assert!(matches!(damaged(102, 0x08), Some(BadRecord::Length { .. })));
    assert!(matches!(damaged(112, 0x80), Some(BadRecord::Length { .. })));
    assert_eq!(damaged(103, 0xff), Some(BadRecord::Topic));
    assert_eq!(RecordView::parse(&encode_blank(8)).err(), Some(BadRecord::Magic { found: MAGIC_BLANK }));
    assert_eq!(RecordView::parse(&[0; 100]).err(), Some(BadRecord::Magic { found: 0 }));
}

#[test]
fn a_v1_record_never_holds_a_topic_above_127_bytes() {
    let topic = "t".repeat(128);
    let mut bytes = encode(&spec(&topic, b"", &[]));
    // The same record with the topic length in one byte.
    bytes[4..8].copy_from_slice(&MAGIC_V1.to_be_bytes());
    bytes.remove(88);
    let len = bytes.len() as u32;
    bytes[..4].copy_from_slice(&len.to_be_bytes());
    assert!(matches!(RecordView::parse(&bytes), Err(BadRecord::Length { .. })));
}

#[test]
fn a_flipped_bit_of_the_body_fails_the_checksum() {
    let mut bytes = worked_example();
    bytes[90] ^= 1;
    assert!(!RecordView::parse(&bytes).expect("lengths still fit").check_crc());
}

#[test]
fn properties_that_are_no_text_end_where_the_text_does() {
    let bytes = encode(&spec("T", b"", &[b"A\x01b\x02C\x01\xff\x02"]));
    let record = RecordView::parse(&bytes).expect("a record");
    assert_eq!(record.properties(), "A\u{1}b\u{2}C\u{1}");
    assert_eq!(record.raw_properties(), b"A\x01b\x02C\x01\xff\x02");
}

#[test]
fn a_message_is_indexed_by_its_unique_key_and_each_of_its_words() {
    let hashes = |properties: &str| {
        let raw = properties.replace('=', "\u{1}").replace(';', "\u{2}");
        key_hashes("TopicTest", &raw).iter().map(|hash| hash.0).collect::<Vec<_>>()
    };
    let unique = 1_471_913_870;
    assert_eq!(hashes("KEYS=k1 k2;UNIQ_KEY=7F00000100002A9F00000000000000AA;"), [unique, 2_746_024, 2_746_025]);
    assert_eq!(hashes("KEYS=k1  k2 ;"), [2_746_024, 2_746_025]);
    assert!(hashes("KEYS= ;TAGS=k1;").is_empty());
    assert!(hashes("").is_empty());
    assert_eq!(hashes("KEYS=tbaekxa"), [0]);
    assert_eq!(hashes("KEYS=Aa BB"), [2_744_770, 2_744_770]);
}

fn any_addr() -> impl Strategy<Value = SocketAddr> {
    (any::<bool>(), any::<u128>(), any::<u16>()).prop_map(|(v6, bits, port)| {
        let ip = if v6 { IpAddr::from(bits.to_be_bytes()) } else { IpAddr::from((bits as u32).to_be_bytes()) };
        SocketAddr::new(ip.to_canonical(), port)
    })
}

proptest! {
    #[test]
    fn what_is_encoded_reads_back(
        topic in "[a-zA-Z0-9%_|-]{0,255}",
        numbers: (i32, i32, i32, i64, i32, i64),
        born_host in any_addr(),
        store_host in any_addr(),
        body in prop::collection::vec(any::<u8>(), 0..200),
        properties in prop::collection::vec("\\PC{0,20}", 0..4),
        place: (u64, u64, i64),
        behind in prop::collection::vec(any::<u8>(), 0..20),
    ) {
        let (queue_id, flag, sys_flag, born_timestamp, reconsume_times, prepared_transaction_offset) = numbers;
        let parts: Vec<&[u8]> = properties.iter().map(|property| property.as_bytes()).collect();
        let spec = RecordSpec {
            topic: &topic, queue_id, flag, sys_flag, born_timestamp, born_host, store_host, reconsume_times,
            prepared_transaction_offset, body: &body, properties: &parts,
        };
        let mut bytes = Vec::new();
        let placed = spec.encode_into(&mut bytes).unwrap();
        let (queue_offset, phy, stored_at) = (QueueOffset(place.0), PhyOffset(place.1), Timestamp(place.2));
        number(&mut bytes, placed.store_timestamp_at, queue_offset, phy, stored_at);
        bytes.extend_from_slice(&behind);

        let record = RecordView::parse(&bytes).unwrap();
        prop_assert!(record.check_crc());
        prop_assert_eq!(record.total_len(), placed.len);
        prop_assert_eq!(record.sys_flag() & !0x30, sys_flag & !0x30);
        prop_assert_eq!((record.queue_id(), record.flag()), (queue_id, flag));
        prop_assert_eq!((record.queue_offset(), record.phy()), (queue_offset, phy));
        prop_assert_eq!((record.born_timestamp(), record.store_timestamp()), (born_timestamp, stored_at));
        prop_assert_eq!((record.born_host(), record.store_host()), (born_host, store_host));
        prop_assert_eq!(record.reconsume_times(), reconsume_times);
        prop_assert_eq!(record.prepared_transaction_offset(), prepared_transaction_offset);
        prop_assert_eq!(record.body(), &body[..]);
        prop_assert_eq!(record.topic(), topic);
        prop_assert_eq!(record.properties(), properties.concat());
    }

    #[test]
    fn no_damage_to_a_record_makes_the_reader_panic(
        flips in prop::collection::vec((0..187_usize, any::<u8>()), 0..8),
        len in 0..187_usize,
    ) {
        let mut bytes = worked_example();
        for (at, value) in flips {
            bytes[at] = value;
        }
        for bytes in [&bytes[..], &bytes[..len]] {
            let _ = peek_header(bytes);
            if let Ok(record) = RecordView::parse(bytes) {
                prop_assert!(record.bytes().len() <= bytes.len());
                let _ = (record.check_crc(), record.born_host(), record.store_host(), record.store_timestamp());
                let _ = (record.reconsume_times(), record.prepared_transaction_offset(), record.body());
                let _ = key_hashes(record.topic(), record.properties());
            }
        }
    }

    #[test]
    fn no_bytes_make_the_reader_panic(
        v2: bool,
        len in 0..300_u32,
        rest in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let magic = if v2 { MAGIC_V2 } else { MAGIC_V1 };
        let bytes = [&len.to_be_bytes()[..], &magic.to_be_bytes(), &rest].concat();
        let _ = RecordView::parse(&bytes);
        let _ = RecordView::parse(&rest);
    }
}

/// `305355157` is the checksum of store.md's example E30, whose digits Java wrote from the least significant on.
#[test]
fn the_digits_of_a_seal_stand_the_wrong_way_round() {
    let mut record = vec![0xa4, 0x0a, 0x70, 0x67];
    assert_eq!(crc32fast::hash(&record), 305_355_157);
    record.extend_from_slice(UNSEALED);
    seal(&mut record);
    assert_eq!(&record[4..], b"__CRC32#\x017515535030\x02");
}

#[test]
fn a_sealed_record_tells_any_flipped_bit_and_an_unsealed_one_that_it_has_no_seal() {
    let sealed_properties: &[&[u8]] = &[b"TAGS\x01a\x02", UNSEALED];
    let mut record = encode(&spec("T", b"body", sealed_properties));
    number(&mut record, 56, QueueOffset(3), PhyOffset(4096), Timestamp(5));
    seal(&mut record);
    assert_eq!(RecordView::parse(&record).unwrap().seal(), Seal::Right);
    for at in [12, 20, 30, 56, 88, 95] {
        let mut flipped = record.clone();
        flipped[at] ^= 1;
        if let Ok(view) = RecordView::parse(&flipped) {
            assert_eq!(view.seal(), Seal::Wrong, "{at}");
        }
    }
    let plain = encode(&spec("T", b"body", &[b"TAGS\x01a\x02"]));
    assert_eq!(RecordView::parse(&plain).unwrap().seal(), Seal::Absent);
    // Twenty bytes that end a body are no property.
    let body = encode(&spec("T", UNSEALED, &[]));
    assert_eq!(RecordView::parse(&body).unwrap().seal(), Seal::Absent);
}
