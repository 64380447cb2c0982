//! The reading side of one thread: one pull is always under way for each of its queues.
//!
//! A reader either stays at the end, where brokers hold its pulls until something arrives, or catches up from the
//! oldest message. It belongs to no group, so it takes messages from nobody and leaves no offsets behind.

use std::collections::BTreeSet;

use bytes::BytesMut;
use kerolox::format::record::{RecordView, peek_place};
use kerolox::wire::code::{request, response};
use kerolox::wire::headers::PullHeader;
use kerolox::wire::{Command, FrameBounds, HeaderType, VERSION_5, encode_request, first_frame};

use super::books::{Books, Times};
use super::clock::MS;
use super::flight::Opaques;
use super::frames::{opaque_at, put_opaque, value_at};
use super::line::Line;
use super::plan::{Header, Plan, STAMP_LEN};
use super::prepare::QueueEnds;
use super::tally::Trouble;

/// A group that every broker has and that needs no registration. Source: remoting.md 6.3.
const GROUP: &str = "TOOLS_CONSUMER";
/// How long a broker may hold a pull.
const HOLD_MS: u64 = 15_000;
/// Before a queue is asked again that had nothing, though it was not held.
const PAUSE_EMPTY: u64 = 5 * MS;
/// The same after a refusal.
const PAUSE_REFUSED: u64 = 20 * MS;
/// Digits of a queue offset in a request; brokers read leading zeros.
const OFFSET_LEN: usize = 19;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Stays at the end.
    Tail,
    /// From the oldest message to what was the newest before the load; then, if `again`, from the oldest again.
    CatchUp { again: bool },
    /// From the oldest message to the newest, and from the oldest again, beside a load that sends.
    Circle,
}

pub struct Reader {
    way: Way,
    queues: Vec<Queue>,
    opaques: Opaques,
    header_type: HeaderType,
    /// When to ask which queue again.
    waiting: BTreeSet<(u64, usize)>,
    /// Queues that are not read to their end.
    left: usize,
    /// Readers that catch up are measured from the first pull on, so it waits for the start.
    not_before: u64,
    check: bool,
    run: u64,
    timeout: u64,
}

struct Queue {
    /// Index among the lines of this reader.
    line: usize,
    queue_id: u32,
    frame: BytesMut,
    opaque_at: usize,
    offset_at: usize,
    begin: u64,
    end: u64,
    /// Queue offset to ask for next.
    offset: u64,
    /// The next record may have any offset from there on: the broker has just said where to go on.
    jumps: bool,
    /// Of the pull that is under way; 0: none is.
    opaque: i32,
    round: u32,
    asked: u64,
    done: bool,
}

impl Reader {
    /// Reads `queues`, each over the line that stands beside it.
    pub fn new(plan: &Plan, way: Way, queues: Vec<(QueueEnds, usize)>, run: u64, times: Times) -> Reader {
        let header_type = match plan.header {
            Header::Json => HeaderType::Json,
            Header::Rocketmq => HeaderType::Rocketmq,
        };
        let opaques = Opaques::of((queues.len() as u32).max(1));
        let queues: Vec<Queue> =
            queues.into_iter().map(|(ends, line)| Queue::new(plan, way, header_type, &ends, line)).collect();
        let left = queues.iter().filter(|queue| !queue.done).count();
        let held = if way == Way::Tail { HOLD_MS } else { 0 };
        Reader {
            way,
            queues,
            opaques,
            header_type,
            waiting: BTreeSet::new(),
            left,
            not_before: if way == Way::Tail { 0 } else { times.start },
            check: plan.check,
            run,
            timeout: (plan.timeout_ms + held) * MS,
        }
    }

    /// Whether all was read that was to be.
    pub fn is_done(&self) -> bool {
        self.left == 0
    }

    pub fn next_at(&self) -> Option<u64> {
        self.waiting.first().map(|(at, _)| *at)
    }

    /// Asks the queues whose pause is over.
    pub fn ask_due(&mut self, lines: &mut [Line], now: u64) {
        while let Some((at, index)) = self.waiting.first().copied()
            && at <= now
        {
            self.waiting.pop_first();
            self.ask(index, lines, now);
        }
    }

    /// A line has come up: its queues are asked.
    pub fn came_up(&mut self, line: usize, lines: &mut [Line], now: u64) {
        for index in 0..self.queues.len() {
            if self.queues[index].line == line {
                if now < self.not_before {
                    self.waiting.insert((self.not_before, index));
                } else {
                    self.ask(index, lines, now);
                }
            }
        }
    }

    /// A line is gone, and with it the pulls on it.
    pub fn lost(&mut self, line: usize) {
        for queue in self.queues.iter_mut().filter(|queue| queue.line == line) {
            queue.opaque = 0;
        }
        let queues = &self.queues;
        self.waiting.retain(|(_, index)| queues[*index].line != line);
    }

    /// Gives up on pulls that were asked too long ago, and asks again.
    pub fn expire(&mut self, now: u64, books: &mut Books) {
        for (index, queue) in self.queues.iter_mut().enumerate() {
            if queue.opaque != 0 && now.saturating_sub(queue.asked) > self.timeout {
                queue.opaque = 0;
                books.trouble(Trouble::Timeout);
                self.waiting.insert((now, index));
            }
        }
    }

    /// Puts a pull into the line's outbox, to be written with others.
    fn ask(&mut self, index: usize, lines: &mut [Line], now: u64) {
        let queue = &mut self.queues[index];
        if queue.done || queue.opaque != 0 {
            return;
        }
        // A line that is down asks all its queues once it is up.
        let Some(link) = lines[queue.line].link() else { return };
        queue.round = queue.round.wrapping_add(1);
        queue.opaque = self.opaques.join(index as u32, queue.round);
        queue.asked = now;
        put_opaque(&mut queue.frame, queue.opaque_at, self.header_type, queue.opaque);
        let digits = &mut queue.frame[queue.offset_at..queue.offset_at + OFFSET_LEN];
        let mut rest = queue.offset;
        for byte in digits.iter_mut().rev() {
            *byte = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        link.outbox.push(&queue.frame);
    }

    /// An answer came; the messages in it are counted and the queue is asked again. Gives how many messages of this run
    /// came to a reader at the end.
    pub fn answered(
        &mut self,
        frame: &[u8],
        bounds: &FrameBounds,
        lines: &mut [Line],
        now: u64,
        books: &mut Books,
    ) -> u64 {
        let Ok(command) = Command::decode(frame, bounds) else {
            books.trouble(Trouble::Damaged);
            return 0;
        };
        let found = self.opaques.slot(command.opaque).filter(|index| {
            command.is_response() && self.queues.get(*index).is_some_and(|queue| queue.opaque == command.opaque)
        });
        // A request of the broker's own, or an answer that comes after its time-out.
        let Some(index) = found else { return 0 };
        let queue = &mut self.queues[index];
        queue.opaque = 0;
        let asked = queue.asked;
        let next = command.ext.opt_long("nextBeginOffset").and_then(|next| u64::try_from(next).ok());
        let mut pause = 0;
        let mut ours = 0;
        match command.code {
            response::SUCCESS => {
                let count = match self.way {
                    Way::Tail => queue.read_at_end(command.body, self.check, self.run, now, books, &mut ours),
                    Way::CatchUp { .. } | Way::Circle => queue.read_by_heads(command.body, self.check, books),
                };
                books.consumed(now, count);
                if self.way != Way::Tail && count > 0 {
                    books.pulled(asked, now);
                }
                match next {
                    Some(next) if next > queue.offset => queue.offset = next,
                    // It would give the same messages for ever.
                    _ => {
                        books.trouble(Trouble::Order);
                        pause = PAUSE_REFUSED;
                    }
                }
            }
            response::PULL_NOT_FOUND | response::PULL_RETRY_IMMEDIATELY => {
                if self.way == Way::Circle && command.code == response::PULL_NOT_FOUND {
                    queue.offset = queue.begin;
                    queue.jumps = true;
                } else if let Some(next) = next
                    && next != queue.offset
                {
                    queue.offset = next;
                    queue.jumps = true;
                }
                if now.saturating_sub(asked) < PAUSE_EMPTY {
                    pause = PAUSE_EMPTY;
                }
            }
            code => {
                books.trouble(Trouble::Code(code));
                books.remark(code, || command.remark.as_deref().unwrap_or_default().to_owned());
                if let (response::PULL_OFFSET_MOVED, Some(next)) = (code, next) {
                    queue.offset = next;
                    queue.begin = queue.begin.max(next);
                    queue.jumps = true;
                }
                pause = PAUSE_REFUSED;
            }
        }
        if let Way::CatchUp { again } = self.way
            && queue.offset >= queue.end
        {
            if again {
                queue.offset = queue.begin;
                queue.jumps = true;
            } else {
                queue.done = true;
                self.left -= 1;
                return ours;
            }
        }
        if pause == 0 {
            self.ask(index, lines, now);
        } else {
            self.waiting.insert((now + pause, index));
        }
        ours
    }
}

impl Queue {
    fn new(plan: &Plan, way: Way, header_type: HeaderType, ends: &QueueEnds, line: usize) -> Queue {
        let (flags, hold) = match way {
            Way::Tail => (PullHeader::SUBSCRIPTION | PullHeader::SUSPEND, HOLD_MS),
            Way::CatchUp { .. } | Way::Circle => (PullHeader::SUBSCRIPTION, 0),
        };
        let [flags, queue_id] = [flags.to_string(), ends.queue_id.to_string()];
        let [messages, hold] = [plan.pull_messages.to_string(), hold.to_string()];
        let offset = "0".repeat(OFFSET_LEN);
        let ext = [
            ("commitOffset", "0"),
            ("consumerGroup", GROUP),
            ("expressionType", "TAG"),
            ("maxMsgNums", &messages),
            ("queueId", &queue_id),
            ("queueOffset", &offset),
            ("subVersion", "0"),
            ("subscription", "*"),
            ("suspendTimeoutMillis", &hold),
            ("sysFlag", &flags),
            ("topic", &ends.topic),
        ];
        let mut frame = BytesMut::new();
        let opaque = Opaques::of(1).join(0, 0);
        encode_request(&mut frame, header_type, request::PULL_MESSAGE, VERSION_5, opaque, 0, &ext, &[]);
        let bounds = first_frame(&frame).expect("our own frame").expect("it is whole");
        Queue {
            line,
            queue_id: ends.queue_id,
            opaque_at: opaque_at(&frame, &bounds.header, header_type),
            offset_at: value_at(&frame, &bounds.header, header_type, "queueOffset"),
            frame,
            begin: ends.begin,
            end: ends.end,
            offset: if way == Way::Tail { ends.end } else { ends.begin },
            jumps: true,
            opaque: 0,
            round: 0,
            asked: 0,
            done: matches!(way, Way::CatchUp { .. }) && ends.begin >= ends.end,
        }
    }

    /// Counts the records of an answer by their first fields; looks into them only if `check`.
    fn read_by_heads(&mut self, mut body: &[u8], check: bool, books: &mut Books) -> u64 {
        let mut expected = self.offset;
        let mut count = 0;
        while !body.is_empty() {
            let place = peek_place(body).filter(|place| place.total_len as usize <= body.len());
            let Some(place) = place else {
                books.trouble(Trouble::Damaged);
                break;
            };
            if check && !RecordView::parse(body).is_ok_and(|record| record.check_crc()) {
                books.trouble(Trouble::Damaged);
            }
            self.follow(place.queue_id, place.queue_offset.0, &mut expected, books);
            count += 1;
            body = &body[place.total_len as usize..];
        }
        count
    }

    /// Counts the records of an answer and notes how long each of this run was on its way.
    fn read_at_end(
        &mut self,
        mut body: &[u8],
        check: bool,
        run: u64,
        now: u64,
        books: &mut Books,
        ours: &mut u64,
    ) -> u64 {
        let mut expected = self.offset;
        let mut count = 0;
        while !body.is_empty() {
            let Ok(record) = RecordView::parse(body) else {
                books.trouble(Trouble::Damaged);
                break;
            };
            if check && !record.check_crc() {
                books.trouble(Trouble::Damaged);
            }
            self.follow(record.queue_id(), record.queue_offset().0, &mut expected, books);
            if let Some(stamp) = record.body().first_chunk::<{ STAMP_LEN as usize }>() {
                let [intended, of_run] = [0, 8]
                    .map(|at| u64::from_be_bytes(*stamp[at..].first_chunk().expect("the stamp holds two numbers")));
                if of_run == run {
                    books.tailed(intended, now);
                    *ours += 1;
                }
            }
            count += 1;
            body = &body[record.total_len() as usize..];
        }
        count
    }

    /// Each record must follow the one before.
    fn follow(&mut self, queue_id: i32, offset: u64, expected: &mut u64, books: &mut Books) {
        let follows = if self.jumps { offset >= *expected } else { offset == *expected };
        if !follows || queue_id != self.queue_id as i32 {
            books.trouble(Trouble::Order);
        }
        self.jumps = false;
        // A peer may say any number.
        *expected = offset.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};
    use std::sync::mpsc;

    use kerolox::format::record::{RecordSpec, number};
    use kerolox::types::{PhyOffset, QueueOffset, Timestamp};
    use kerolox::wire::{Command, first_frame};
    use proptest::prelude::*;

    use super::*;
    use crate::load::books::Report;
    use crate::load::plan::tests::plan;
    use crate::load::tally::Tally;

    const RUN: u64 = 77;

    fn books() -> (Books, mpsc::Receiver<Report>) {
        let (reports, received) = mpsc::channel();
        let times = Times { start: 0, measure_from: 0, until: u64::MAX, interval: 1 << 60 };
        (Books::new(0, times, reports, mpsc::channel().1), received)
    }

    /// What was counted.
    fn tally((books, received): (Books, mpsc::Receiver<Report>)) -> Box<Tally> {
        books.finish(1 << 60, 0, None);
        match received.recv().unwrap() {
            Report::Interval { tally, .. } => tally,
            Report::End { .. } => panic!("an interval comes first"),
        }
    }

    fn queue(offset: u64) -> Queue {
        let ends = QueueEnds { broker: 0, topic: "T".into(), queue_id: 3, begin: 0, end: offset };
        Queue { jumps: false, ..Queue::new(&plan(), Way::Tail, HeaderType::Json, &ends, 0) }
    }

    fn record(queue_id: i32, offset: u64, body: &[u8]) -> Vec<u8> {
        let host = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let spec = RecordSpec {
            topic: "T",
            queue_id,
            flag: 0,
            sys_flag: 0,
            born_timestamp: 0,
            born_host: host,
            store_host: host,
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body,
            properties: &[],
        };
        let mut bytes = Vec::new();
        let placed = spec.encode_into(&mut bytes).unwrap();
        number(&mut bytes, placed.store_timestamp_at, QueueOffset(offset), PhyOffset(0), Timestamp(0));
        bytes
    }

    fn stamped(intended: u64, run: u64) -> Vec<u8> {
        [intended.to_be_bytes(), run.to_be_bytes()].concat()
    }

    #[test]
    fn messages_of_this_run_have_a_latency_and_others_are_counted() {
        let body = [record(3, 5, &stamped(100, RUN)), record(3, 6, &stamped(1, 1)), record(3, 7, b"short")].concat();
        let mut kept = books();
        let mut ours = 0;
        let count = queue(5).read_at_end(&body, true, RUN, 1_000_100, &mut kept.0, &mut ours);
        assert_eq!((count, ours), (3, 1));
        let tally = tally(kept);
        assert_eq!((tally.end_to_end.len(), tally.end_to_end.max() / 1000), (1, 1000));
        assert!(tally.troubles.is_empty());
    }

    #[test]
    fn gaps_other_queues_and_damage_are_found_by_both_readers() {
        let mut damaged = record(3, 5, &stamped(0, RUN));
        damaged[90] ^= 1;
        let cut = record(3, 5, &[0; 50])[..60].to_vec();
        for (body, trouble) in [
            ([record(3, 5, &[]), record(3, 7, &[])].concat(), Trouble::Order),
            ([record(3, 5, &[]), record(3, 5, &[])].concat(), Trouble::Order),
            (record(3, 6, &[]), Trouble::Order),
            (record(2, 5, &[]), Trouble::Order),
            (record(3, u64::MAX, &[]), Trouble::Order),
            (damaged, Trouble::Damaged),
            (cut, Trouble::Damaged),
            (b"no record at all".to_vec(), Trouble::Damaged),
        ] {
            let mut kept = books();
            queue(5).read_at_end(&body, true, RUN, 1, &mut kept.0, &mut 0);
            assert_eq!(tally(kept).troubles, [(trouble, 1)].into());
            let mut kept = books();
            queue(5).read_by_heads(&body, true, &mut kept.0);
            assert_eq!(tally(kept).troubles, [(trouble, 1)].into());
        }
    }

    #[test]
    fn a_pull_asks_as_a_client_does() {
        for header_type in [HeaderType::Json, HeaderType::Rocketmq] {
            let ends = QueueEnds { broker: 0, topic: "T".into(), queue_id: 3, begin: 1, end: 9 };
            let queue = Queue::new(&plan(), Way::Tail, header_type, &ends, 0);
            let bounds = first_frame(&queue.frame).unwrap().unwrap();
            let command = Command::decode(&queue.frame, &bounds).unwrap();
            let header = PullHeader::read(&command).unwrap();
            assert_eq!((header.topic, header.queue_id, header.max_msg_nums), ("T", 3, 32));
            assert_eq!((header.sys_flag, header.suspend_timeout_ms), (6, 15_000));
            assert_eq!(&queue.frame[queue.offset_at..queue.offset_at + OFFSET_LEN], &[b'0'; OFFSET_LEN]);
        }
    }

    proptest! {
        #[test]
        fn hostile_records_never_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..200), at in 0..400_usize, byte in any::<u8>(),
        ) {
            let mut changed = [record(3, 5, &stamped(1, RUN)), record(3, 6, &bytes)].concat();
            let at = at % changed.len();
            changed[at] = byte;
            for body in [&bytes, &changed] {
                let mut kept = books();
                queue(5).read_at_end(body, true, RUN, 1, &mut kept.0, &mut 0);
                queue(5).read_by_heads(body, true, &mut kept.0);
            }
        }
    }
}
