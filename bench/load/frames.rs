//! Send requests, built once and sent again and again: before each use only the bytes that differ are written anew.
//!
//! The frames lie back to back, so any run of them goes out by one write without being copied. What differs is of fixed
//! width: opaque number, born time, topic number, queue, tag, key and unique key, and the stamp at the start of the
//! body. Brokers read numbers with leading zeros.

use std::ops::Range;

use bytes::BytesMut;
use kerolox::types::properties;
use kerolox::wire::code::request;
use kerolox::wire::{BatchEntry, HeaderType, VERSION_5, batch, encode_request, first_frame};
use memchr::memmem;

use super::clock::MS;
use super::plan::{Header, Plan, STAMP_LEN};
use super::sizes::{Random, Sizes};

const GROUP: &str = "kerolox_bench_producer";
/// The topic that a broker takes for a pattern when it makes one on the way.
const PATTERN_TOPIC: &str = "TBW102";
/// Bytes of frames of one size: enough for one large write, and not much of the processor's cache.
const SAME_BYTES: usize = 128 << 10;
const SAME_COUNT_MAX: usize = 128;
/// Frames of different sizes: enough that their shares are those of the distribution.
const MIXED_COUNT: usize = 2048;
const MIXED_BYTES_MAX: usize = 16 << 20;
/// Decimal digits of a key, hexadecimal digits of a unique key that change.
const KEY_LEN: usize = 12;
const UNIQ_LEN: usize = 12;
/// The rest of a unique key.
const UNIQ_FIXED_LEN: usize = 20;
const BORN_LEN: usize = 13;
const OPAQUE_LEN: usize = 10;
/// Where the ext fields begin in a ROCKETMQ header without a remark.
const BINARY_EXT_AT: usize = 21;
/// Ten digits, as all that come in its place.
pub const OPAQUE_FIRST: i32 = 1_987_654_321;

/// Names of the topics of a plan: one number after all of them has so many digits as the last needs.
pub fn topic_names(plan: &Plan) -> Vec<String> {
    if plan.topics == 1 {
        return vec![plan.topic.clone()];
    }
    numbers(plan.topics).iter().map(|number| format!("{}-{number}", plan.topic)).collect()
}

/// 0 to `count` - 1, all of one width.
fn numbers(count: u32) -> Vec<String> {
    let width = (count - 1).to_string().len();
    (0..count).map(|number| format!("{number:0width$}")).collect()
}

/// See the module.
pub struct Frames {
    bytes: Vec<u8>,
    frames: Vec<Frame>,
    messages: Vec<Message>,
    header_type: HeaderType,
    /// All frames are alike, so the first ones are always used.
    alike: bool,
    next: usize,
    topics: Vec<String>,
    queues: Vec<String>,
    tags: Vec<String>,
    /// Which of topics and queues is next.
    place: usize,
    /// Counts messages, for tags, keys and unique keys.
    count: u64,
    born: Born,
    run: u64,
}

/// Positions in the bytes of all frames.
struct Frame {
    range: Range<usize>,
    opaque_at: usize,
    born_at: usize,
    queue_at: usize,
    /// Where a topic's number is; none if there is one topic.
    topic_at: Option<usize>,
    messages: Range<usize>,
}

struct Message {
    stamp_at: Option<usize>,
    uniq_at: Option<usize>,
    key_at: Option<usize>,
    tag_at: Option<usize>,
}

/// The time in a header: milliseconds since the epoch, as text.
struct Born {
    /// What to add to the monotonic clock.
    ahead: u64,
    ms: u64,
    text: [u8; BORN_LEN],
}

impl Frames {
    /// Frames for thread `index` of a plan. `run` marks the bodies of one run; `ahead` is what the wall clock is ahead
    /// of the monotonic one, in nanoseconds.
    pub fn new(plan: &Plan, index: u32, run: u64, ahead: u64) -> Frames {
        let mut random = Random::new(plan.seed.wrapping_add(u64::from(index) << 32));
        let batch = plan.batch as usize;
        let alike = matches!(plan.sizes, Sizes::Fixed(_));
        let request_len = (plan.sizes.mean() as usize + 200) * batch + 400;
        let count = if alike {
            (SAME_BYTES / request_len).clamp(1, SAME_COUNT_MAX)
        } else {
            (MIXED_BYTES_MAX / request_len).clamp(1, MIXED_COUNT)
        };
        let mut frames = Frames {
            bytes: Vec::new(),
            frames: Vec::with_capacity(count),
            messages: Vec::with_capacity(count * batch),
            header_type: match plan.header {
                Header::Json => HeaderType::Json,
                Header::Rocketmq => HeaderType::Rocketmq,
            },
            alike,
            next: 0,
            topics: numbers(plan.topics),
            queues: numbers(plan.queues),
            tags: if plan.tags == 0 { Vec::new() } else { numbers(plan.tags) },
            // Threads begin at different queues.
            place: index as usize,
            count: u64::from(index) << 40,
            born: Born { ahead, ms: 0, text: [b'0'; BORN_LEN] },
            run,
        };
        for lens in plan.sizes.deal(count * batch, &mut random).chunks(batch) {
            let bodies: Vec<Vec<u8>> = lens.iter().map(|len| body(*len, &mut random)).collect();
            frames.add(plan, &bodies, index);
        }
        frames
    }

    fn add(&mut self, plan: &Plan, bodies: &[Vec<u8>], thread: u32) {
        let properties = self.properties(plan, thread);
        let is_batch = bodies.len() > 1;
        let (code, body, header_properties) = if is_batch {
            let entries: Vec<BatchEntry<'_>> =
                bodies.iter().map(|body| BatchEntry { flag: 0, body, properties: &properties }).collect();
            let mut wait = String::new();
            properties::push(&mut wait, properties::WAIT, "true");
            (request::SEND_BATCH_MESSAGE, batch::encode(&entries), wait)
        } else {
            (request::SEND_MESSAGE_V2, bodies[0].clone(), properties)
        };
        let topic = topic_names(plan).swap_remove(0);
        let born = "0".repeat(BORN_LEN);
        let ext = [
            ("a", GROUP),
            ("b", &topic),
            ("c", PATTERN_TOPIC),
            ("d", "4"),
            ("e", &self.queues[0]),
            ("f", "0"),
            ("g", &born),
            ("h", "0"),
            ("i", &header_properties),
            ("j", "0"),
            ("k", "false"),
            ("m", if is_batch { "true" } else { "false" }),
        ];
        let mut frame = BytesMut::new();
        encode_request(&mut frame, self.header_type, code, VERSION_5, OPAQUE_FIRST, 0, &ext, &body);

        let start = self.bytes.len();
        let bounds = first_frame(&frame).expect("our own frame").expect("it is whole");
        let value = |name: &str| start + value_at(&frame, &bounds.header, self.header_type, name);
        let topic_at = (plan.topics > 1).then(|| value("b") + plan.topic.len() + 1);
        let first_message = self.messages.len();
        if is_batch {
            // Where a part of the frame lies in it.
            let at = |part: &[u8]| part.as_ptr() as usize - frame.as_ptr() as usize;
            for entry in batch::entries(&frame[bounds.body.clone()]).expect("our own batch") {
                let stamp_at = (entry.body.len() >= STAMP_LEN as usize).then(|| start + at(entry.body));
                let properties = entry.properties.as_bytes();
                self.messages.push(Message::within(properties, start + at(properties), stamp_at, 1));
            }
        } else {
            let separator_len = if self.header_type == HeaderType::Json { r"\u0001".len() } else { 1 };
            let at = value("i");
            let stamp_at = (bodies[0].len() >= STAMP_LEN as usize).then_some(start + bounds.body.start);
            self.messages.push(Message::within(&frame[at - start..bounds.header.end], at, stamp_at, separator_len));
        }
        self.frames.push(Frame {
            range: start..start + frame.len(),
            opaque_at: start + opaque_at(&frame, &bounds.header, self.header_type),
            born_at: value("g"),
            queue_at: value("e"),
            topic_at,
            messages: first_message..self.messages.len(),
        });
        self.bytes.extend_from_slice(&frame);
    }

    fn properties(&self, plan: &Plan, thread: u32) -> String {
        let mut text = String::new();
        if plan.keys {
            properties::push(&mut text, properties::KEYS, &"0".repeat(KEY_LEN));
        }
        if plan.uniq_key {
            let fixed = format!("{:016X}{thread:04X}", self.run);
            assert_eq!(fixed.len(), UNIQ_FIXED_LEN);
            properties::push(&mut text, properties::UNIQ_KEY, &(fixed + &"0".repeat(UNIQ_LEN)));
        }
        properties::push(&mut text, properties::WAIT, "true");
        if let Some(tag) = self.tags.first() {
            properties::push(&mut text, properties::TAGS, &format!("tag-{tag}"));
        }
        text
    }

    /// How many frames can be patched and sent from here in one piece.
    pub fn room(&self) -> usize {
        self.frames.len() - self.next
    }

    /// Makes the `index`-th frame from here a new request; `index` is below [`Frames::room`].
    ///
    /// `intended` is the time when it is to be sent, `now` the time (both of the monotonic clock, in ns).
    #[inline]
    pub fn patch(&mut self, index: usize, opaque: i32, intended: u64, now: u64) {
        let frame = &self.frames[self.next + index];
        let bytes = &mut self.bytes;
        match self.header_type {
            HeaderType::Json => put(bytes, frame.opaque_at, itoa::Buffer::new().format(opaque).as_bytes()),
            HeaderType::Rocketmq => put(bytes, frame.opaque_at, &opaque.to_be_bytes()),
        }
        put(bytes, frame.born_at, self.born.at(now));
        let queue = &self.queues[self.place % self.queues.len()];
        put(bytes, frame.queue_at, queue.as_bytes());
        if let Some(at) = frame.topic_at {
            put(bytes, at, self.topics[self.place / self.queues.len()].as_bytes());
        }
        self.place += 1;
        if self.place >= self.queues.len() * self.topics.len() {
            self.place = 0;
        }
        for message in &self.messages[frame.messages.clone()] {
            if let Some(at) = message.stamp_at {
                put(bytes, at, &intended.to_be_bytes());
                put(bytes, at + 8, &self.run.to_be_bytes());
            }
            if let Some(at) = message.uniq_at {
                put(bytes, at, &hex(self.count));
            }
            if let Some(at) = message.key_at {
                put_padded(bytes, at, self.count);
            }
            if let Some(at) = message.tag_at {
                put(bytes, at, self.tags[(self.count % self.tags.len() as u64) as usize].as_bytes());
            }
            self.count += 1;
        }
    }

    /// The bytes of the next `count` frames, which are then used up.
    #[inline]
    pub fn take(&mut self, count: usize) -> &[u8] {
        let first = self.next;
        if !self.alike {
            self.next = (first + count) % self.frames.len();
        }
        &self.bytes[self.frames[first].range.start..self.frames[first + count - 1].range.end]
    }
}

impl Message {
    /// Finds what changes in `properties`, which stand at `start` and whose separators take `separator_len` bytes.
    fn within(properties: &[u8], start: usize, stamp_at: Option<usize>, separator_len: usize) -> Message {
        let value = |name: &str, skip: usize| {
            memmem::find(properties, name.as_bytes()).map(|at| start + at + name.len() + separator_len + skip)
        };
        Message {
            stamp_at,
            uniq_at: value(properties::UNIQ_KEY, UNIQ_FIXED_LEN),
            // UNIQ_KEY does not contain it.
            key_at: value(properties::KEYS, 0),
            tag_at: value(properties::TAGS, "tag-".len()),
        }
    }
}

impl Born {
    fn at(&mut self, now: u64) -> &[u8; BORN_LEN] {
        let ms = (now + self.ahead) / MS;
        if ms != self.ms {
            self.ms = ms;
            let mut buffer = itoa::Buffer::new();
            // Thirteen digits from 2001 to 2286.
            if let Some(text) = buffer.format(ms).as_bytes().first_chunk() {
                self.text = *text;
            }
        }
        &self.text
    }
}

#[inline]
fn put(bytes: &mut [u8], at: usize, new: &[u8]) {
    bytes[at..at + new.len()].copy_from_slice(new);
}

fn put_padded(bytes: &mut [u8], at: usize, mut number: u64) {
    for byte in bytes[at..at + KEY_LEN].iter_mut().rev() {
        *byte = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

/// The low 48 bits in hexadecimal.
#[inline]
fn hex(number: u64) -> [u8; UNIQ_LEN] {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let mut text = [0; UNIQ_LEN];
    for (index, byte) in text.iter_mut().enumerate() {
        *byte = DIGITS[(number >> (4 * (UNIQ_LEN - 1 - index)) & 15) as usize];
    }
    text
}

fn body(len: u32, random: &mut Random) -> Vec<u8> {
    let mut body: Vec<u8> = (0..len.div_ceil(8)).flat_map(|_| random.next().to_le_bytes()).collect();
    body.truncate(len as usize);
    body
}

/// Where the value of an ext field begins in a frame of ours.
///
/// # Panics
/// If there is no such field.
pub fn value_at(frame: &[u8], header: &Range<usize>, header_type: HeaderType, name: &str) -> usize {
    let found = match header_type {
        // No value of ours has a quotation mark in it.
        HeaderType::Json => {
            let before = format!("\"{name}\":\"");
            memmem::find(&frame[header.clone()], before.as_bytes()).map(|at| header.start + at + before.len())
        }
        HeaderType::Rocketmq => {
            let mut at = header.start + BINARY_EXT_AT;
            let number =
                |at: usize, len: usize| frame[at..at + len].iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
            loop {
                if at >= header.end {
                    break None;
                }
                let name_at = at + 2;
                let value_at = name_at + number(at, 2) + 4;
                if &frame[name_at..value_at - 4] == name.as_bytes() {
                    break Some(value_at);
                }
                at = value_at + number(value_at - 4, 4);
            }
        }
    };
    found.unwrap_or_else(|| panic!("no field {name} in our request"))
}

/// Where the opaque number is in a frame of ours.
pub fn opaque_at(frame: &[u8], header: &Range<usize>, header_type: HeaderType) -> usize {
    match header_type {
        HeaderType::Json => {
            let before = b"\"opaque\":";
            header.start + memmem::rfind(&frame[header.clone()], before).expect("each header has it") + before.len()
        }
        // After code, language and version.
        HeaderType::Rocketmq => header.start + 5,
    }
}

/// Writes an opaque number of [`OPAQUE_LEN`] digits at its place.
pub fn put_opaque(frame: &mut [u8], at: usize, header_type: HeaderType, opaque: i32) {
    match header_type {
        HeaderType::Json => {
            let mut buffer = itoa::Buffer::new();
            let text = buffer.format(opaque).as_bytes();
            assert_eq!(text.len(), OPAQUE_LEN, "numbers of requests have ten digits");
            put(frame, at, text);
        }
        HeaderType::Rocketmq => put(frame, at, &opaque.to_be_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use kerolox::wire::Command;
    use kerolox::wire::headers::SendHeader;

    use super::*;
    use crate::load::plan::tests::plan;

    const RUN: u64 = 0x1122_3344_5566_7788;
    const AHEAD: u64 = 1_700_000_000_000 * MS;

    /// Patches `count` frames in one piece and decodes each.
    fn sent(frames: &mut Frames, count: usize, check: impl Fn(usize, &Command<'_>, &SendHeader<'_>)) {
        assert!(count <= frames.room());
        for index in 0..count {
            frames.patch(index, 1_000_000_000 + index as i32, 5 * MS + index as u64, 7 * MS);
        }
        let mut rest = frames.take(count);
        for index in 0..count {
            let bounds = first_frame(rest).unwrap().unwrap();
            let command = Command::decode(rest, &bounds).unwrap();
            assert_eq!(command.opaque, 1_000_000_000 + index as i32);
            let header = SendHeader::read(&command).unwrap();
            assert_eq!(header.born_timestamp, 1_700_000_000_007);
            check(index, &command, &header);
            rest = &rest[bounds.total_len..];
        }
        assert!(rest.is_empty());
    }

    #[test]
    fn a_frame_is_a_send_with_its_own_number_time_queue_and_keys() {
        for header in [Header::Json, Header::Rocketmq] {
            let plan = Plan { header, tags: 12, keys: true, queues: 11, topic: "e".into(), ..plan() };
            let mut frames = Frames::new(&plan, 3, RUN, AHEAD);
            for round in 0..2 {
                sent(&mut frames, 20, |index, command, header| {
                    assert_eq!((command.code, header.batch), (310, false));
                    assert_eq!((header.topic, header.queue_id), ("e", ((3 + round * 20 + index) % 11) as i32));
                    assert_eq!(command.body.len(), 1024);
                    assert_eq!(command.body[..8], (5 * MS + index as u64).to_be_bytes());
                    assert_eq!(command.body[8..16], RUN.to_be_bytes());
                    let count = (3_u64 << 40) + (round * 20 + index) as u64;
                    let property = |name: &str| properties::get(header.properties, name).unwrap().to_owned();
                    assert_eq!(property("UNIQ_KEY"), format!("{RUN:016X}0003{count:012X}"));
                    assert_eq!(property("KEYS"), format!("{:012}", count % 1_000_000_000_000));
                    assert_eq!(property("TAGS"), format!("tag-{:02}", count % 12));
                    assert_eq!(property("WAIT"), "true");
                });
            }
        }
    }

    #[test]
    fn topics_and_queues_are_all_used_alike() {
        for header in [Header::Json, Header::Rocketmq] {
            let plan = Plan { header, topics: 11, queues: 3, uniq_key: false, ..plan() };
            let names = topic_names(&plan);
            assert_eq!((names[0].as_str(), names[10].as_str()), ("T-00", "T-10"));
            let mut frames = Frames::new(&plan, 0, RUN, AHEAD);
            let seen = std::cell::RefCell::new(HashSet::new());
            sent(&mut frames, 33, |_, _, header| {
                assert!(seen.borrow_mut().insert((header.topic.to_owned(), header.queue_id)));
                assert_eq!(properties::get(header.properties, "UNIQ_KEY"), None);
            });
            assert!(seen.borrow().iter().all(|(topic, _)| names.contains(topic)));
            assert_eq!(seen.borrow().len(), 33);
        }
    }

    #[test]
    fn a_batch_has_a_stamp_and_keys_for_each_message() {
        for header in [Header::Json, Header::Rocketmq] {
            let plan = Plan { header, batch: 5, sizes: "16:1,40:1,200:1".parse().unwrap(), ..plan() };
            let mut frames = Frames::new(&plan, 0, RUN, AHEAD);
            let keys = std::cell::RefCell::new(HashSet::new());
            sent(&mut frames, 30, |index, command, header| {
                assert_eq!((command.code, header.batch), (320, true));
                let entries = batch::entries(command.body).unwrap();
                assert_eq!(entries.len(), 5);
                for entry in entries {
                    assert_eq!(entry.body[..8], (5 * MS + index as u64).to_be_bytes());
                    let key = properties::get(entry.properties, "UNIQ_KEY").unwrap();
                    assert!(keys.borrow_mut().insert(key.to_owned()));
                }
            });
        }
    }

    #[test]
    fn sizes_follow_their_distribution_round_after_round() {
        let plan = Plan { sizes: "0:1,15:1,300:2".parse().unwrap(), ..plan() };
        let mut frames = Frames::new(&plan, 0, RUN, AHEAD);
        let total = frames.room();
        let lens = std::cell::RefCell::new(Vec::new());
        for _ in 0..2 * total / 64 {
            sent(&mut frames, 64, |_, command, _| lens.borrow_mut().push(command.body.len()));
        }
        let lens = lens.into_inner();
        let (first, second) = lens.split_at(total);
        assert_eq!(first, second);
        for (len, share) in [(0, 4), (15, 4), (300, 2)] {
            assert_eq!(first.iter().filter(|found| **found == len).count(), total / share);
        }
    }

    #[test]
    fn a_pull_has_a_field_at_its_place_whatever_stands_in_the_others() {
        for header_type in [HeaderType::Json, HeaderType::Rocketmq] {
            let mut frame = BytesMut::new();
            let ext = [("b", "e"), ("c", "e"), ("e", "17"), ("opaque", "3")];
            encode_request(&mut frame, header_type, 11, VERSION_5, OPAQUE_FIRST, 0, &ext, b"\"e\":\"9");
            let bounds = first_frame(&frame).unwrap().unwrap();
            let at = value_at(&frame, &bounds.header, header_type, "e");
            assert_eq!(&frame[at..at + 2], b"17");
            let at = opaque_at(&frame, &bounds.header, header_type);
            put_opaque(&mut frame, at, header_type, 1_234_567_890);
            let command = Command::decode(&frame, &bounds).unwrap();
            assert_eq!((command.opaque, command.ext.get("opaque")), (1_234_567_890, Some("3")));
        }
    }
}
