//! Transport, row by row of remoting.md 8.1, and what no well-behaved client does: frames that are none, silence,
//! floods, and peers that never read. Real sockets, a real node, both header types.

mod harness;

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use harness::{Client, HEADER_TYPES, Node, Request};
use kerolox::wire::HeaderType;
use kerolox::wire::code::{request, response};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit, setrlimit};
use rustix::thread::disable_transparent_huge_pages;
use socket2::SockRef;

/// Long enough for a busy machine; a close comes at once otherwise.
const CLOSE_MAX: Duration = Duration::from_secs(5);
/// What a connection that does nothing may cost the node's memory, sockets in the kernel not counted.
const IDLE_LEN_MAX: u64 = 8 << 10;

/// Runs a test once with each header type.
fn with_both(node: &Node, test: impl Fn(&mut Client)) {
    for header_type in HEADER_TYPES {
        test(&mut node.client(header_type));
    }
}

/// A frame of any length field, type byte and header.
fn frame(length: u32, kind: u8, header: &[u8]) -> Vec<u8> {
    let mut bytes = length.to_be_bytes().to_vec();
    bytes.push(kind);
    bytes.extend_from_slice(&(header.len() as u32).to_be_bytes()[1..]);
    bytes.extend_from_slice(header);
    bytes
}

/// A frame whose only fault is its header.
fn whole(kind: u8, header: &[u8]) -> Vec<u8> {
    frame(4 + header.len() as u32, kind, header)
}

/// A binary header: code 34, with these lengths of remark and ext fields, and these bytes behind them.
fn binary(remark_len: u32, ext_len: u32, rest: &[u8]) -> Vec<u8> {
    let mut header = vec![0, 34, 0, 1, 0xdf, 0, 0, 0, 1, 0, 0, 0, 0];
    header.extend_from_slice(&remark_len.to_be_bytes());
    header.extend_from_slice(&ext_len.to_be_bytes());
    header.extend_from_slice(rest);
    header
}

fn unsupported(code: i32) -> Request {
    Request::new(code)
}

/// Any request that is served at once.
fn quick() -> Request {
    Request::queue(request::GET_MAX_OFFSET, "TBW102")
}

/// How long the slowest of `count` quick requests took.
fn slowest(client: &mut Client, count: usize) -> Duration {
    let times = (0..count).map(|_| {
        let began = Instant::now();
        assert_eq!(client.ask(&quick()).code, response::SUCCESS);
        thread::sleep(Duration::from_millis(2));
        began.elapsed()
    });
    times.max().unwrap_or_default()
}

#[test]
fn rows_1_to_8_bytes_that_are_no_frame_close_their_connection_and_no_other() {
    let node = Node::start();
    let mut other = node.client(HeaderType::Json);
    let hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("length 0", frame(0, 0, b"")),
        ("length 2", frame(2, 0, b"")),
        ("length 3", frame(3, 0, b"")),
        ("length -1", u32::MAX.to_be_bytes().to_vec()),
        ("length i32::MIN", 0x8000_0000_u32.to_be_bytes().to_vec()),
        ("length one above the limit", frame(16_777_213, 0, b"{}")),
        ("only the first byte of a length beyond the limit", vec![0x7f]),
        ("header longer than the frame", frame(8, 0, b"{\"code\":34}")),
        ("type 2", whole(2, b"{\"code\":34}")),
        ("type 255", whole(255, b"{\"code\":34}")),
        ("no header at all", whole(0, b"")),
        ("no binary header at all", whole(1, b"")),
        ("JSON that is cut", whole(0, b"{\"code\":34,\"opaque\":")),
        ("JSON that is an array", whole(0, b"[34]")),
        ("JSON that is a number", whole(0, b"34")),
        ("JSON without end", whole(0, &b"{\"a\":".repeat(100_000))),
        ("JSON with a code that is no number", whole(0, b"{\"code\":{},\"opaque\":1}")),
        ("bytes that are not UTF-8", whole(0, b"\xff\xfe\x00\x00")),
        ("a binary header that is cut", whole(1, &binary(0, 0, b"")[..20])),
        ("remark beyond the header", whole(1, &binary(100, 0, b"abc"))),
        ("remark of negative length", whole(1, &binary(u32::MAX, 0, b""))),
        ("ext fields beyond the header", whole(1, &binary(0, 100, b"\0\x01a\0\0\0\x01b"))),
        ("ext fields of negative length", whole(1, &binary(0, u32::MAX, b""))),
        ("a value beyond the ext fields", whole(1, &binary(0, 8, b"\0\x01a\0\0\0\x09b"))),
        ("a key that is cut", whole(1, &binary(0, 3, b"\0\x04a"))),
        ("HTTP", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec()),
        ("TLS", hello.to_vec()),
        ("PROXY v1", b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\n".to_vec()),
        ("PROXY v2", b"\x0d\x0a\x0d\x0a\x00\x0d\x0aQUIT\x0a\x21\x11".to_vec()),
    ];
    for address in [node.broker, node.name_server] {
        for (what, bytes) in &cases {
            let mut rude = Client::connect(address, HeaderType::Json);
            rude.send_raw(bytes);
            assert!(rude.closed_within(CLOSE_MAX), "{what}: still open");
            // What was served before does not help it.
            let mut later = Client::connect(address, HeaderType::Json);
            assert_eq!(later.ask(&unsupported(9999)).code, response::REQUEST_CODE_NOT_SUPPORTED);
            later.send_raw(bytes);
            assert!(later.closed_within(CLOSE_MAX), "{what}: still open");
        }
    }
    assert_eq!(other.ask(&quick()).code, response::SUCCESS);
}

#[test]
fn a_frame_that_is_cut_waits_and_ends_with_its_connection() {
    let node = Node::start();
    let mut other = node.client(HeaderType::Json);
    with_both(&node, |client| {
        let asked = client.frame(&Request::send("Cut"), 1);
        for cut in [1, 3, 4, 5, 8, 9, asked.len() / 2, asked.len() - 1] {
            let mut cut_off = node.client(HeaderType::Json);
            cut_off.send_raw(&asked[..cut]);
            cut_off.expect_silence(Duration::from_millis(20));
            cut_off.socket().shutdown(Shutdown::Write).unwrap();
            assert!(cut_off.closed_within(CLOSE_MAX), "cut after {cut} bytes");
        }
        assert_eq!(client.ask(&quick()).code, response::SUCCESS);
    });
    // Nothing of all that was a message.
    assert_eq!(other.ask(&Request::pull("Cut", 0)).code, response::TOPIC_NOT_EXIST);
}

#[test]
fn rows_9_10_14_an_unknown_code_is_answered_if_an_answer_is_wanted() {
    let node = Node::start();
    with_both(&node, |client| {
        let answer = client.ask(&unsupported(9999));
        assert_eq!(answer.code, response::REQUEST_CODE_NOT_SUPPORTED);
        assert_eq!(answer.remark, " request type 9999 not supported");
        assert_eq!((answer.flag, answer.version), (1, 479));
        for code in [9999, request::GET_MAX_OFFSET, request::HEART_BEAT, request::QUERY_MESSAGE] {
            client.send(&unsupported(code).oneway());
        }
        client.expect_silence(Duration::from_millis(50));
        assert_eq!(client.ask(&quick()).code, response::SUCCESS);
    });
    let answer = node.client(HeaderType::Rocketmq).ask(&unsupported(200_050));
    assert_eq!(answer.code, response::REQUEST_CODE_NOT_SUPPORTED);
    assert!(answer.remark.contains("3442"), "{}", answer.remark);
    let answer = node.client(HeaderType::Json).ask(&unsupported(200_050));
    assert_eq!(answer.code, response::REQUEST_CODE_NOT_SUPPORTED);
    assert!(answer.remark.contains("200050"), "{}", answer.remark);
}

#[test]
fn row_11_answers_that_nobody_waits_for_are_ignored() {
    let node = Node::start();
    with_both(&node, |client| {
        let mut header = binary(0, 0, b"");
        header[12] = 1;
        client.send_raw(&whole(1, &header));
        client.send_raw(&whole(0, br#"{"code":0,"flag":1,"opaque":77,"version":479}"#));
        client.send_raw(&whole(0, br#"{"code":11,"flag":3,"opaque":78,"version":479}"#));
        client.expect_silence(Duration::from_millis(50));
        assert_eq!(client.ask(&quick()).code, response::SUCCESS);
    });
}

#[test]
fn rows_12_13_unknown_languages_and_keys_and_values_of_other_kinds_are_served() {
    let node = Node::start();
    let mut client = node.client(HeaderType::Json);
    for text in [
        r#"{"code":30,"language":"FOO","opaque":5,"version":1,"extFields":{"topic":"TBW102","queueId":"0"}}"#,
        r#"{"code":30,"opaque":5,"extFields":{"topic":"TBW102","queueId":0,"other":true,"none":null}}"#,
        r#"{"new":{"a":[1,{"b":"}"}]},"code":"30","opaque":5,"extFields":{"queueId":0,"topic":"TBW102"},"x":null}"#,
        "\n{ \"opaque\" : 5 , \"code\" : 30 ,\t\"extFields\" : { \"topic\" : \"TBW\\u0031\\u00302\", \"queueId\" : 0 } }",
        r#"{"code":30,"opaque":5,"remark":null,"flag":0,"extFields":{"topic":"TBW102","queueId":"0"},"serializeTypeCurrentRPC":"JSON"}"#,
    ] {
        client.send_raw(&whole(0, text.as_bytes()));
        let answer = client.read();
        assert_eq!((answer.code, answer.opaque, answer.text("offset")), (response::SUCCESS, 5, "0"), "{text}");
    }
    let mut header = binary(0, 30, b"\0\x05topic\0\0\0\x06TBW102\0\x07queueId\0\0\0\x010");
    header.truncate(21 + 31);
    header[17..21].copy_from_slice(&31_u32.to_be_bytes());
    (header[1], header[2]) = (30, 99);
    client.send_raw(&whole(1, &header));
    let answer = client.read();
    assert_eq!((answer.code, answer.opaque, answer.text("offset")), (response::SUCCESS, 1, "0"));
}

#[test]
fn row_15_frames_are_cut_wherever_the_segments_end() {
    let node = Node::start();
    with_both(&node, |client| {
        let mut three = Vec::new();
        for opaque in [7, 8, 9] {
            three.extend_from_slice(&client.frame(&quick(), opaque));
        }
        client.send_raw(&three);
        assert_eq!([client.read().opaque, client.read().opaque, client.read().opaque], [7, 8, 9]);
        for (index, byte) in three.iter().enumerate() {
            client.send_raw(&[*byte]);
            if index % 16 == 0 {
                thread::sleep(Duration::from_millis(1));
            }
        }
        assert_eq!([client.read().opaque, client.read().opaque, client.read().opaque], [7, 8, 9]);
        // Three and a half, then the rest.
        let (first, second) = three.split_at(three.len() / 2);
        client.send_raw(first);
        thread::sleep(Duration::from_millis(20));
        client.send_raw(second);
        assert_eq!([client.read().opaque, client.read().opaque, client.read().opaque], [7, 8, 9]);
    });
}

#[test]
fn rows_16_20_pipelined_requests_are_each_answered_in_any_order_in_their_own_type() {
    let node = Node::start();
    with_both(&node, |client| {
        let topic = "Pipelined";
        client.put(&Request::send(topic));
        client.pull_until(topic, 0, 1);
        let next = client.max_offset(topic);
        let held = client.send(&Request::pull(topic, next).with("sysFlag", 2 | 4).with("suspendTimeoutMillis", 20_000));
        let quick_one = client.send(&quick());
        assert_eq!(client.read().opaque, quick_one, "the held pull is answered later");
        let mut sender = node.client(HeaderType::Json);
        sender.put(&Request::send(topic));
        let answer = client.read();
        assert_eq!((answer.opaque, answer.code), (held, response::SUCCESS));
        // Two with one opaque.
        let twice = client.frame(&quick(), 4711);
        client.send_raw(&[&twice[..], &twice[..]].concat());
        assert_eq!([client.read().opaque, client.read().opaque], [4711, 4711]);
        for opaque in [-1, i32::MIN, i32::MAX, 0] {
            let frame = client.frame(&quick(), opaque);
            client.send_raw(&frame);
            assert_eq!(client.read().opaque, opaque);
        }
    });
    // Both types on one connection, frame by frame.
    let mut mixed = TcpStream::connect(node.broker).unwrap();
    let clients = HEADER_TYPES.map(|header_type| node.client(header_type));
    for (index, client) in clients.iter().cycle().take(6).enumerate() {
        mixed.write_all(&client.frame(&quick(), 1)).unwrap();
        let mut prefix = [0; 8];
        mixed.read_exact(&mut prefix).unwrap();
        let left = u32::from_be_bytes([prefix[0], prefix[1], prefix[2], prefix[3]]) as usize - 4;
        assert_eq!(usize::from(prefix[4]), index % 2, "answered in the type of the request");
        mixed.read_exact(&mut vec![0; left]).unwrap();
    }
}

#[test]
fn row_17_a_half_closed_connection_is_let_go() {
    let node = Node::start();
    with_both(&node, |client| {
        let asked = client.frame(&quick(), 1);
        client.send_raw(&asked);
        client.socket().shutdown(Shutdown::Write).unwrap();
        // It may answer first; what counts is that it does not keep the connection.
        while client.read_within(CLOSE_MAX).is_some() {}
        assert!(client.closed_within(CLOSE_MAX));
    });
}

#[test]
fn row_18_silence_ends_a_connection_after_the_idle_time_and_only_silence() {
    let node = Node::with(&[("net.idle_timeout_ms", "3000")]);
    let began = Instant::now();
    let silent: Vec<_> = HEADER_TYPES.map(|header_type| node.client(header_type)).into();
    let mut served_once = node.client(HeaderType::Json);
    served_once.ask(&quick());
    let mut busy = node.client(HeaderType::Json);
    let mut named = Client::connect(node.name_server, HeaderType::Json);
    let closings: Vec<_> = silent
        .into_iter()
        .chain([served_once])
        .map(|mut client| {
            thread::spawn(move || {
                assert!(client.closed_within(Duration::from_secs(8)), "still open");
                began.elapsed()
            })
        })
        .collect();
    while began.elapsed() < Duration::from_secs(5) {
        assert_eq!(busy.ask(&quick()).code, response::SUCCESS);
        thread::sleep(Duration::from_millis(500));
    }
    for closing in closings {
        let after = closing.join().expect("closed in time").as_secs_f64();
        // Up to a second late by design, and the machine may be busy.
        assert!((2.9..4.8).contains(&after), "closed after {after} s");
    }
    assert!(named.closed_within(Duration::from_secs(1)), "the name server's port closes the silent, too");
}

#[test]
fn a_frame_that_stalls_ends_its_connection_and_one_that_drips_does_not() {
    let node = Node::with(&[("net.frame_stall_ms", "1000")]);
    let mut other = node.client(HeaderType::Json);
    let mut stalled = node.client(HeaderType::Json);
    let mut dripping = node.client(HeaderType::Json);
    let asked = stalled.frame(&quick(), 1);
    stalled.send_raw(&asked[..asked.len() / 2]);
    let began = Instant::now();
    for byte in &asked[..20] {
        dripping.send_raw(&[*byte]);
        thread::sleep(Duration::from_millis(150));
        assert!(slowest(&mut other, 1) < Duration::from_secs(1));
    }
    assert!(began.elapsed() > Duration::from_secs(3));
    dripping.send_raw(&asked[20..]);
    assert_eq!(dripping.read().opaque, 1);
    assert!(stalled.closed_within(Duration::from_millis(500)), "the stalled one is still open");
    // Waiting between frames is no stall.
    thread::sleep(Duration::from_millis(2_500));
    assert_eq!(other.ask(&quick()).code, response::SUCCESS);
}

/// Fills queue 0 of a topic with this many messages of 64 KiB and waits until they can be pulled.
fn fill(node: &Node, topic: &str, count: usize) {
    let mut client = node.client(HeaderType::Json);
    for _ in 0..count {
        client.put(&Request::send(topic).body(vec![b'x'; 64 << 10]));
    }
    client.pull_until(topic, count as i64 - 1, 1);
}

/// Connects with a receive buffer of this many bytes.
fn with_receive_buffer(node: &Node, len: usize) -> Client {
    let client = node.client(HeaderType::Json);
    SockRef::from(client.socket()).set_recv_buffer_size(len).unwrap();
    client
}

#[test]
fn peers_that_never_read_cost_bounded_memory_and_no_one_else_and_are_closed() {
    let node = Node::with(&[("net.write_stall_ms", "2000"), ("net.frame_stall_ms", "60000")]);
    fill(&node, "Large", 40);
    let mut other = node.client(HeaderType::Json);
    other.ask(&Request::pull("Large", 0));
    let before = node.memory_len();
    let pulls: Vec<u8> = {
        let client = node.client(HeaderType::Json);
        (0..2_000).flat_map(|opaque| client.frame(&Request::pull("Large", 0), opaque).to_vec()).collect()
    };
    let deaf: Vec<Client> = (0..8)
        .map(|_| {
            let mut client = with_receive_buffer(&node, 4096);
            client.send_raw(&pulls);
            client
        })
        .collect();
    let began = Instant::now();
    let (mut most, mut slow) = (0, Duration::ZERO);
    while began.elapsed() < Duration::from_millis(1_500) {
        slow = slow.max(slowest(&mut other, 5));
        most = most.max(node.memory_len());
    }
    // The answers asked for are some 4 GiB (8 × 2,000 × 256 KiB).
    let grown = most.saturating_sub(before) >> 20;
    eprintln!("8 peers that never read: {grown} MiB of memory, slowest answer to another {slow:?}");
    assert!(grown < 8 * 6, "memory grew by {grown} MiB");
    assert!(slow < Duration::from_secs(2), "another waited {slow:?}");
    thread::sleep(Duration::from_secs(3));
    for client in &deaf {
        // Nothing is read here either: a connection that was closed by the other side says so to a write.
        let broken = (0..200).any(|_| {
            thread::sleep(Duration::from_millis(10));
            client.socket().write_all(&[0]).is_err()
        });
        assert!(broken, "a peer that never reads is still served");
    }
    assert_eq!(other.ask(&quick()).code, response::SUCCESS);
}

#[test]
fn a_peer_that_reads_slowly_gets_all_its_answers() {
    let node = Node::with(&[("net.write_stall_ms", "5000"), ("net.frame_stall_ms", "1000")]);
    fill(&node, "Slow", 16);
    let mut client = with_receive_buffer(&node, 64 << 10);
    const PULLS: usize = 120;
    for _ in 0..PULLS {
        client.send(&Request::pull("Slow", 0));
    }
    let began = Instant::now();
    let mut bytes = 0;
    for answered in 0..PULLS {
        let Some(answer) = client.read_within(Duration::from_secs(5)) else {
            panic!("closed after {answered} answers and {:?}", began.elapsed())
        };
        assert_eq!(answer.code, response::SUCCESS);
        bytes += answer.body.len();
        thread::sleep(Duration::from_millis(40));
    }
    eprintln!("{} MiB read slowly in {:?}", bytes >> 20, began.elapsed());
}

#[test]
fn answers_above_the_soft_limit_that_the_socket_takes_at_once_do_not_end_the_talk() {
    let node = Node::start();
    fill(&node, "Burst", 40);
    with_both(&node, |client| {
        for round in 0..20 {
            let pulls: Vec<u8> =
                (0..9).flat_map(|opaque| client.frame(&Request::pull("Burst", 0), opaque).to_vec()).collect();
            client.send_raw(&pulls);
            for answered in 0..9 {
                assert!(client.read_within(CLOSE_MAX).is_some(), "round {round}: stuck after {answered} answers");
            }
        }
    });
}

#[test]
fn a_flood_of_requests_does_not_starve_other_connections() {
    let node = Node::start();
    let addresses = [node.broker, node.broker, node.name_server];
    let until = Instant::now() + Duration::from_millis(2_500);
    let floods: Vec<_> = addresses
        .into_iter()
        .map(|address| {
            let flooder = Client::connect(address, HeaderType::Json);
            // Oneway and unknown: the cheapest for the sender.
            let frames = flooder.frame(&unsupported(9999).oneway(), 1).repeat(2_000);
            thread::spawn(move || {
                flooder.socket().set_write_timeout(Some(Duration::from_millis(500))).unwrap();
                while Instant::now() < until {
                    let _ = flooder.socket().write(&frames);
                }
            })
        })
        .collect();
    thread::sleep(Duration::from_millis(200));
    let mut other = node.client(HeaderType::Json);
    let mut slow = Duration::ZERO;
    while Instant::now() < until {
        slow = slow.max(slowest(&mut other, 2));
    }
    eprintln!("slowest answer beside three floods: {slow:?}");
    assert!(slow < Duration::from_secs(1), "another waited {slow:?}");
    for flood in floods {
        flood.join().unwrap();
    }
}

#[test]
fn unfinished_frames_beyond_the_limit_wait_and_neither_stop_others_nor_each_other() {
    const LEN: usize = 4_000_000;
    let node = Node::with(&[("limits.frame_bytes_in_progress", "\"16MiB\""), ("net.frame_stall_ms", "2000")]);
    let mut other = node.client(HeaderType::Json);
    slowest(&mut other, 1);
    let before = node.memory_len();
    let asked = Request::send("Unfinished").body(vec![b'y'; LEN]);
    // Sixteen at a time, each with most of its frame on the way before any goes on: 48 MB, of which 16 MiB may be held.
    let first_part = Barrier::new(16);
    let began = Instant::now();
    let mut slow = Duration::ZERO;
    thread::scope(|scope| {
        let senders: Vec<_> = (0..16)
            .map(|_| {
                let mut client = node.client(HeaderType::Json);
                let (asked, first_part) = (&asked, &first_part);
                scope.spawn(move || {
                    let frame = client.frame(asked, 1);
                    SockRef::from(client.socket()).set_send_buffer_size(4 << 20).unwrap();
                    client.socket().set_write_timeout(Some(Duration::from_millis(300))).unwrap();
                    let mut sent = 0;
                    // What the node does not read yet fills the socket at last.
                    while sent < LEN * 3 / 4 {
                        match client.socket().write(&frame[sent..LEN * 3 / 4]) {
                            Ok(len) => sent += len,
                            Err(_) => break,
                        }
                    }
                    first_part.wait();
                    client.socket().set_write_timeout(None).unwrap();
                    client.send_raw(&frame[sent..]);
                    let answer = client.read_within(Duration::from_secs(20)).expect("an answer");
                    assert!([response::SUCCESS, response::SYSTEM_BUSY].contains(&answer.code), "{answer:?}");
                })
            })
            .collect();
        while senders.iter().any(|sender| !sender.is_finished()) {
            slow = slow.max(slowest(&mut other, 2));
            let grown = node.memory_len().saturating_sub(before) >> 20;
            assert!(grown < 140, "memory grew by {grown} MiB");
        }
    });
    eprintln!("16 frames of 4 MB under a limit of 16 MiB: {:?}, slowest answer to another {slow:?}", began.elapsed());
    assert!(slow < Duration::from_secs(2), "another waited {slow:?}");
}

#[test]
fn ten_thousand_idle_connections_cost_little_and_others_are_served_meanwhile() {
    let limit = getrlimit(Resource::Nofile);
    let hard = limit.maximum.unwrap_or(u64::MAX);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).unwrap();
    // Other tests of this program run at the same time.
    let count = hard.saturating_sub(1_000).min(10_000) as usize;
    eprintln!("{count} idle connections (hard limit of open files: {hard})");
    assert!(count > 100, "the hard limit of open files, {hard}, leaves nothing to test with");
    let node = Node::start();
    let mut other = node.client(HeaderType::Json);
    slowest(&mut other, 5);
    let before = node.memory_len();
    let began = Instant::now();
    let mut slow = Duration::ZERO;
    let mut idle = Vec::with_capacity(count);
    while idle.len() < count {
        idle.push(TcpStream::connect(node.broker).expect("the node accepts"));
        if idle.len() % 500 == 0 {
            slow = slow.max(slowest(&mut other, 1));
        }
    }
    slow = slow.max(slowest(&mut other, 20));
    let took = began.elapsed();
    let each = node.memory_len().saturating_sub(before) / count as u64;
    let cpu = node.cpu_time();
    thread::sleep(Duration::from_secs(1));
    let used = node.cpu_time() - cpu;
    eprintln!("connected in {took:?}; {each} bytes each; slowest answer {slow:?}; {used:?} of CPU in an idle second");
    assert!(each < IDLE_LEN_MAX, "{each} bytes of memory for each idle connection");
    assert!(slow < Duration::from_secs(2), "another waited {slow:?}");
    // They all go at once, by reset, and the node goes on.
    for stream in &idle {
        SockRef::from(stream).set_linger(Some(Duration::ZERO)).unwrap();
    }
    let last = node.client(HeaderType::Rocketmq).ask(&quick());
    assert_eq!(last.code, response::SUCCESS);
    drop(idle);
    assert!(slowest(&mut other, 20) < Duration::from_secs(2));
}

#[test]
fn connections_that_come_and_go_leave_nothing_behind() {
    // In huge pages memory grows by 2 MiB or not at all.
    let node = Node::prepared(&[], |program| {
        // SAFETY: prctl is a plain system call, as may be made between fork and exec.
        unsafe { program.pre_exec(|| Ok(disable_transparent_huge_pages(true)?)) };
    });
    let mut other = node.client(HeaderType::Json);
    slowest(&mut other, 5);
    let descriptors = || fs::read_dir(format!("/proc/{}/fd", node.pid())).unwrap().count();
    let half = other.frame(&Request::send("Half").body(vec![b'x'; 20_000]), 1);
    let churn = |count: usize| {
        for index in 0..count {
            let mut client = node.client(HEADER_TYPES[index % 2]);
            match index % 4 {
                0 => client.send_raw(&half[..15_000]),
                1 => drop(client.ask(&quick())),
                2 => {
                    client.send(&Request::pull("TBW102", 0).with("sysFlag", 6).with("suspendTimeoutMillis", 600_000));
                }
                _ => SockRef::from(client.socket()).set_linger(Some(Duration::ZERO)).unwrap(),
            }
        }
        thread::sleep(Duration::from_millis(300));
    };
    churn(500);
    let open = descriptors();
    // The allocator takes memory in steps, and gives some back; what is left behind makes every round grow.
    let (mut grown, first) = (Vec::new(), node.memory_len());
    for _ in 0..5 {
        let before = node.memory_len();
        churn(2_000);
        grown.push(node.memory_len().saturating_sub(before) >> 10);
    }
    eprintln!("each 2000 connections that came and went: {grown:?} KiB of memory");
    assert_eq!(descriptors(), open);
    assert!(grown.iter().min() < Some(&128), "memory grew in every round, by {grown:?} KiB");
    let all = node.memory_len().saturating_sub(first) >> 10;
    assert!(all < 4 << 10, "memory grew by {all} KiB, in rounds by {grown:?}");
}

#[test]
fn a_crowd_leaves_descriptors_for_the_store_and_those_who_are_served() {
    const LIMIT: u64 = 256;
    let limit = Rlimit { current: Some(LIMIT), maximum: Some(LIMIT) };
    let mut node = Node::prepared(&[], |program| {
        // SAFETY: setrlimit is a plain system call, as may be made between fork and exec.
        unsafe { program.pre_exec(move || Ok(setrlimit(Resource::Nofile, limit)?)) };
    });
    let mut other = node.client(HeaderType::Json);
    other.put(&Request::send("Before"));
    let mut crowd: Vec<Client> = (0..2 * LIMIT).map(|_| node.client(HeaderType::Json)).collect();
    // Some leave, and of those that come instead some are served and some are not.
    thread::sleep(Duration::from_millis(200));
    drop(crowd.drain(..3));
    thread::sleep(Duration::from_millis(200));
    crowd.extend((0..12).map(|_| node.client(HeaderType::Json)));
    thread::sleep(Duration::from_millis(300));
    // The open ones get everything, things that need files included.
    for round in 0..10 {
        other.put(&Request::send(&format!("During{round}")).properties("KEYS=k"));
        other.put(&Request::send("Before"));
    }
    other.pull_until("During9", 0, 1);
    assert!(!node.log().contains("could not be saved"), "{}", node.log());
    assert_eq!(node.log().matches("connections are refused").count(), 1, "once, not for each: {}", node.log());
    assert!(crowd.pop().expect("there are many").closed_within(CLOSE_MAX), "one too many is closed");
    drop(crowd);
    wait_until_served(&node);
    assert!(node.stop().success());
}

/// Waits until a new connection is served again.
fn wait_until_served(node: &Node) {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        let mut client = node.client(HeaderType::Json);
        // One that is refused may be gone before it has asked.
        let asked = client.frame(&quick(), 1);
        if client.socket().write_all(&asked).is_ok() && client.read_within(Duration::from_millis(500)).is_some() {
            return;
        }
        assert!(Instant::now() < deadline, "no new connection is served");
    }
}

#[test]
fn with_no_descriptor_left_the_open_connections_are_served_and_accepting_does_not_spin() {
    let node = Node::start();
    let mut other = node.client(HeaderType::Json);
    // What the node opens late, for its first message, is there.
    other.put(&Request::send("Before").properties("KEYS=k"));
    other.pull_until("Before", 0, 1);
    thread::sleep(Duration::from_millis(500));
    let open = fs::read_dir(format!("/proc/{}/fd", node.pid())).unwrap().count() as u64;
    let pid = Pid::from_raw(node.pid() as i32);
    let maximum = getrlimit(Resource::Nofile).maximum;
    let usual = prlimit(pid, Resource::Nofile, Rlimit { current: Some(open), maximum }).unwrap();
    // Two that wait in the backlog, on any shard.
    let waiting: Vec<Client> = (0..8).map(|_| node.client(HeaderType::Json)).collect();
    thread::sleep(Duration::from_millis(200));
    let (cpu, began) = (node.cpu_time(), Instant::now());
    for _ in 0..20 {
        other.put(&Request::send("Before"));
        thread::sleep(Duration::from_millis(100));
    }
    let (used, took) = (node.cpu_time() - cpu, began.elapsed());
    eprintln!("without descriptors: {used:?} of CPU in {took:?}");
    assert!(used.as_secs_f64() < 0.3 * took.as_secs_f64(), "it spins: {used:?} of CPU in {took:?}");
    assert_eq!(node.log().matches("accepting connections fails").count(), 1, "{}", node.log());
    prlimit(pid, Resource::Nofile, usual).unwrap();
    for mut client in waiting {
        assert_eq!(client.ask(&quick()).code, response::SUCCESS, "those that waited are served at last");
    }
}

#[test]
fn a_connection_too_many_is_closed_at_once() {
    let node = Node::with(&[("net.max_connections", "3")]);
    // Those by which the harness saw that it is ready must be gone.
    thread::sleep(Duration::from_millis(200));
    let mut kept: Vec<_> = (0..3).map(|_| node.client(HeaderType::Json)).collect();
    for client in &mut kept {
        client.ask(&quick());
    }
    assert!(node.client(HeaderType::Json).closed_within(CLOSE_MAX));
    drop(kept.pop());
    let deadline = Instant::now() + CLOSE_MAX;
    while node.client(HeaderType::Json).closed_within(Duration::from_millis(100)) {
        assert!(Instant::now() < deadline, "the place that got free is not given again");
    }
}

#[test]
fn the_vip_port_and_the_name_servers_port_serve() {
    let node = Node::with(&[("net.vip", "true")]);
    let vip = SocketAddr::new(node.broker.ip(), node.broker.port() - 2);
    for header_type in HEADER_TYPES {
        for address in [vip, node.broker, node.name_server] {
            let mut client = Client::connect(address, header_type);
            client.put(&Request::send("Everywhere"));
            assert_eq!(client.ask(&quick()).code, response::SUCCESS);
            let route = client.ask(&Request::new(request::GET_ROUTEINFO_BY_TOPIC).with("topic", "Everywhere"));
            assert_eq!(route.code, response::SUCCESS, "{route:?}");
        }
    }
}

#[test]
fn a_burst_of_topics_is_made_without_the_node_growing_by_a_table_each() {
    let node = Node::start();
    let mut client = node.client(HeaderType::Json);
    client.put(&Request::send("First"));
    let before = node.memory_len();
    const TOPICS: usize = 3_000;
    let frames: Vec<u8> = (0..TOPICS)
        .flat_map(|index| {
            let asked = Request::new(request::UPDATE_AND_CREATE_TOPIC)
                .with("topic", format!("A_topic_with_a_rather_long_name_so_that_the_table_gets_large_{index}"))
                .with("defaultTopic", "TBW102")
                .with("readQueueNums", 1)
                .with("writeQueueNums", 1)
                .with("perm", 6)
                .with("topicFilterType", "SINGLE_TAG")
                .with("topicSysFlag", 0)
                .with("order", "false");
            client.frame(&asked, index as i32).to_vec()
        })
        .collect();
    let began = Instant::now();
    client.send_raw(&frames);
    let mut most = 0;
    for answered in 0..TOPICS {
        let answer = client.read_within(Duration::from_secs(20)).unwrap_or_else(|| panic!("{answered} answers"));
        assert_eq!(answer.code, response::SUCCESS, "{answer:?}");
        if answered % 50 == 0 {
            most = most.max(node.memory_len());
        }
    }
    let grown = most.saturating_sub(before) >> 20;
    eprintln!("{TOPICS} topics in {:?}, {grown} MiB of memory", began.elapsed());
    assert!(grown < 100, "memory grew by {grown} MiB");
}

/// Every request code that is served, and some that are not.
const CODES: [i32; 40] = [
    10, 11, 12, 14, 15, 17, 18, 21, 25, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 46, 100, 101, 102, 103,
    104, 105, 106, 200, 206, 219, 310, 320, 351, 352, 361, 904,
];

/// Every field of every request that is served.
const NUMBERS: [&str; 34] = [
    "d",
    "e",
    "f",
    "g",
    "h",
    "j",
    "l",
    "queueId",
    "queueOffset",
    "maxMsgNums",
    "sysFlag",
    "commitOffset",
    "subVersion",
    "offset",
    "timestamp",
    "delayLevel",
    "maxReconsumeTimes",
    "maxNum",
    "beginTimestamp",
    "endTimestamp",
    "readQueueNums",
    "writeQueueNums",
    "perm",
    "topicSysFlag",
    "defaultTopicQueueNums",
    "bornTimestamp",
    "flag",
    "reconsumeTimes",
    "brokerId",
    "bodyCrc32",
    "heartbeatTimeoutMillis",
    "version",
    "maxMsgBytes",
    "unitMode",
];
const TEXTS: [&str; 26] = [
    "a",
    "b",
    "c",
    "i",
    "k",
    "m",
    "topic",
    "consumerGroup",
    "producerGroup",
    "group",
    "defaultTopic",
    "properties",
    "subscription",
    "expressionType",
    "key",
    "originMsgId",
    "originTopic",
    "clientID",
    "topicFilterType",
    "order",
    "attributes",
    "namespace",
    "value",
    "brokerName",
    "brokerAddr",
    "clusterName",
];

#[test]
fn odd_fields_and_bodies_are_answered_on_a_connection_that_stays() {
    let node = Node::start();
    let mut other = node.client(HeaderType::Json);
    other.put(&Request::send("Known"));
    let before = node.memory_len();
    let long = "x".repeat(30_000);
    let deep = "[".repeat(50_000);
    let bodies: Vec<&[u8]> = vec![
        b"",
        b"\0",
        b"null",
        b"[]",
        b"{}",
        b"{\"a\":",
        b"{\"clientID\":7,\"consumerDataSet\":{},\"producerDataSet\":[1],\"mqSet\":[{}],\"clientId\":null}",
        b"{\"clientId\":\"c\",\"consumerGroup\":\"g\",\"mqSet\":[{\"topic\":\"Known\",\"brokerName\":\"b\",\"queueId\":-1}]}",
        b"\x7f\xff\xff\xff\x00\x00\x00\x00\x00\x00\x00\x00\x7f\xff\xff\xff",
        b"\x00\x00\x00\x10\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
        b"\x78\x9c\xff\xff\xff\xff\xff",
        deep.as_bytes(),
    ];
    let numbers =
        ["", "abc", "-1", "0", "1", "2147483647", "-2147483648", "2147483648", "9223372036854775807", "1e3", " 1"];
    let texts =
        ["", "Known", "%RETRY%g", "../../etc/passwd", "a\u{0}b\u{1}c\u{2}d\u{1}", "SCHEDULE_TOPIC_XXXX", long.as_str()];
    with_both(&node, |client| {
        for code in CODES {
            for (index, number) in numbers.iter().enumerate() {
                for (text, body) in texts.iter().zip(bodies.iter().cycle().skip(index)) {
                    let mut request = Request::new(code).with("suspendTimeoutMillis", 0).body(*body);
                    for name in NUMBERS {
                        request = request.with(name, number);
                    }
                    for name in TEXTS {
                        request = request.with(name, text);
                    }
                    let opaque = client.send(&request);
                    loop {
                        let Some(answer) = client.read_within(CLOSE_MAX) else {
                            panic!("no answer to {code} with {number:?}, {:.20}, body {body:?}", text)
                        };
                        // Members come and go meanwhile, which the node tells.
                        if answer.flag & 1 == 1 {
                            assert_eq!(answer.opaque, opaque);
                            break;
                        }
                    }
                }
            }
            for body in &bodies {
                let answer = client.ask(&Request::new(code).body(*body));
                let needed =
                    [10, 11, 12, 14, 15, 17, 29, 30, 31, 33, 35, 36, 38, 100, 101, 105, 310, 320, 351, 352, 361];
                assert!(
                    !needed.contains(&code) || answer.code != response::SUCCESS,
                    "{code} without its fields: {answer:?}"
                );
            }
        }
    });
    // One odd number in a request that is right otherwise.
    let on = |code: i32| Request::new(code).with("topic", "Known").with("queueId", 0).with("consumerGroup", "g");
    let right = [
        Request::send("Known"),
        Request::send("Unknown"),
        Request::pull("Known", 0),
        on(12).with("key", "k").with("maxNum", 32).with("beginTimestamp", 0).with("endTimestamp", i64::MAX),
        on(14),
        on(15).with("commitOffset", 0),
        on(17)
            .with("topic", "Made")
            .with("defaultTopic", "TBW102")
            .with("readQueueNums", 4)
            .with("writeQueueNums", 4)
            .with("perm", 6)
            .with("topicFilterType", "SINGLE_TAG")
            .with("topicSysFlag", 0)
            .with("order", "false"),
        on(29).with("timestamp", 0),
        on(30),
        on(33).with("offset", 0),
        on(36).with("group", "g").with("offset", 0).with("delayLevel", 0).with("maxReconsumeTimes", 1),
    ];
    with_both(&node, |client| {
        for request in &right {
            for name in NUMBERS.iter().filter(|name| request.has(name)) {
                for number in numbers {
                    let asked = request.clone().with(name, number);
                    let opaque = client.send(&asked);
                    let answer = client.read_within(CLOSE_MAX).unwrap_or_else(|| panic!("no answer to {asked:?}"));
                    assert_eq!(answer.opaque, opaque);
                }
            }
        }
    });
    let asked = CODES.len() * numbers.len() * texts.len() * 2;
    let grown = node.memory_len().saturating_sub(before) >> 20;
    eprintln!("{asked} odd requests, {grown} MiB of memory");
    assert!(grown < 100, "memory grew by {grown} MiB");
    assert_eq!(other.ask(&quick()).code, response::SUCCESS);
    other.put(&Request::send("Known"));
    // What was accepted of all that can be read again.
    let mut node = node;
    assert!(node.stop().success());
    node.start_again();
    node.client(HeaderType::Json).put(&Request::send("Known"));
}
