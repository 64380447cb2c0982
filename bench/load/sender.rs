//! The sending side of one thread: which message goes out when, on which connection.

use std::io;

use kerolox::wire::code::response;
use kerolox::wire::{Command, FrameBounds};

use super::answer::Answer;
use super::books::Books;
use super::clock::{self, MS};
use super::flight::Flight;
use super::frames::Frames;
use super::line::Line;
use super::plan::{Extent, Pace, Plan};
use super::schedule::Schedule;
use super::tally::Trouble;

/// When behind, so many requests go to one connection by one write.
const BURST: usize = 32;
/// So many writes, and then answers are looked at.
const WRITES_A_TURN: usize = 64;

pub struct Sender {
    frames: Frames,
    /// Of each sending connection.
    flights: Vec<Flight>,
    /// Open loop.
    schedule: Option<Schedule>,
    /// Closed loop: the first requests are out, and each answer is followed by the next request.
    begun: bool,
    budget: Budget,
    /// The connection whose turn it is.
    turn: usize,
    batch: u64,
    timeout: u64,
}

/// How much this thread sends.
#[derive(Clone, Copy)]
enum Budget {
    /// What is to be sent before the measured time is over.
    Time,
    /// So many requests after the warm-up.
    Requests { left: u64 },
}

impl Sender {
    /// For thread `index` with `lines` sending connections.
    pub fn new(plan: &Plan, index: u32, lines: usize, frames: Frames, books: &Books) -> Sender {
        let times = books.times();
        let depth = match plan.pace {
            Pace::Closed { depth } => depth,
            Pace::Open { .. } => plan.in_flight_max,
        };
        let schedule = match plan.pace {
            Pace::Closed { .. } => None,
            Pace::Open { rate } => {
                let warmup = times.measure_from - times.start;
                let measured = times.until.saturating_sub(times.measure_from);
                Some(Schedule::new(rate, warmup, measured, plan.batch, index, plan.threads))
            }
        };
        let budget = match plan.extent {
            Extent::Seconds(_) => Budget::Time,
            Extent::Messages(count) => {
                let requests = count.div_ceil(u64::from(plan.batch));
                let threads = u64::from(plan.threads);
                Budget::Requests { left: (requests + threads - 1 - u64::from(index)) / threads }
            }
        };
        Sender {
            frames,
            flights: (0..lines).map(|_| Flight::new(depth)).collect(),
            schedule,
            begun: false,
            budget,
            turn: 0,
            batch: u64::from(plan.batch),
            timeout: plan.timeout_ms * MS,
        }
    }

    /// Whether a request that is to be sent at this time belongs to the load.
    fn belongs(&self, intended: u64, books: &Books) -> bool {
        match self.budget {
            Budget::Time => intended < books.times().until,
            Budget::Requests { left } => {
                (left > 0 || intended < books.times().measure_from) && intended < books.times().until
            }
        }
    }

    fn spend(&mut self, intended: u64, books: &Books) {
        if let Budget::Requests { left } = &mut self.budget
            && intended >= books.times().measure_from
        {
            *left -= 1;
        }
    }

    /// When the next request is to be sent: `None` if none is, or answers decide.
    pub fn next_at(&self, books: &Books) -> Option<u64> {
        let start = books.times().start;
        let at = match &self.schedule {
            Some(schedule) => start + schedule.peek(),
            None if self.begun => return None,
            None => start,
        };
        self.belongs(at, books).then_some(at)
    }

    /// Whether all was sent that will be. What is due and could not leave has the time-out of an answer for it.
    pub fn is_done(&self, now: u64, books: &Books) -> bool {
        match &self.schedule {
            None => !self.belongs(now, books),
            Some(_) => self.next_at(books).is_none() || now >= books.times().until.saturating_add(self.timeout),
        }
    }

    pub fn under_way(&self) -> usize {
        self.flights.iter().map(Flight::under_way).sum()
    }

    /// Messages that should have left and did not.
    pub fn never_sent(&self, now: u64, books: &Books) -> u64 {
        let times = books.times();
        let Some(schedule) = &self.schedule else { return 0 };
        match self.budget {
            Budget::Time => schedule.left_before(now.min(times.until).saturating_sub(times.start)) * self.batch,
            // It has an end before the last request only if it was stopped.
            Budget::Requests { .. } if times.until < u64::MAX => 0,
            Budget::Requests { left } => left * self.batch,
        }
    }

    /// Sends what is due; false if the connections take no more now. `lines` are those that send.
    pub fn send_due(&mut self, lines: &mut [Line], books: &mut Books) -> bool {
        let start = books.times().start;
        if self.schedule.is_none() {
            if !self.begun && clock::now() >= start {
                self.begun = true;
                (0..lines.len()).for_each(|index| self.fill(index, lines, books));
            }
            return true;
        }
        for _ in 0..WRITES_A_TURN {
            let now = clock::now();
            match self.next_at(books) {
                Some(at) if at <= now => {}
                _ => return true,
            }
            let Some(index) = self.free_line(lines) else { return false };
            let room = self.flights[index].room().min(self.frames.room()).min(BURST);
            let mut count = 0;
            while count < room {
                let schedule = self.schedule.as_mut().expect("an open loop has a schedule");
                let intended = start + schedule.peek();
                if intended > now || !self.belongs(intended, books) {
                    break;
                }
                let Some(opaque) = self.flights[index].start(intended, now) else { break };
                self.frames.patch(count, opaque, intended, now);
                books.left(intended, now, self.batch);
                self.spend(intended, books);
                self.schedule.as_mut().expect("as above").advance();
                count += 1;
            }
            self.write(index, count, lines, books);
        }
        true
    }

    /// The next connection in turn that can take a request.
    fn free_line(&mut self, lines: &[Line]) -> Option<usize> {
        for _ in 0..lines.len() {
            let index = self.turn;
            self.turn = (index + 1) % lines.len();
            if lines[index].can_write() && self.flights[index].room() > 0 {
                return Some(index);
            }
        }
        None
    }

    /// Closed loop: fills the connection up to its depth.
    pub fn fill(&mut self, index: usize, lines: &mut [Line], books: &mut Books) {
        if !self.begun {
            return;
        }
        while lines[index].can_write() && self.flights[index].room() > 0 {
            let now = clock::now();
            let room = self.flights[index].room().min(self.frames.room());
            let mut count = 0;
            while count < room && self.belongs(now, books) {
                let Some(opaque) = self.flights[index].start(now, now) else { break };
                self.frames.patch(count, opaque, now, now);
                self.spend(now, books);
                count += 1;
            }
            if count == 0 {
                return;
            }
            self.write(index, count, lines, books);
        }
    }

    fn write(&mut self, index: usize, count: usize, lines: &mut [Line], books: &mut Books) {
        let written = lines[index].write(self.frames.take(count));
        if let Err(error) = written {
            self.lost(index, &mut lines[index], &error, books);
        }
    }

    /// An answer came on the `index`-th sending connection.
    #[inline]
    pub fn answered(
        &mut self,
        index: usize,
        answer: Answer,
        frame: (&[u8], &FrameBounds),
        now: u64,
        books: &mut Books,
    ) {
        // An answer that comes after its time-out was counted already.
        let Some(intended) = self.flights[index].finish(answer.opaque) else { return };
        if answer.code == response::SUCCESS {
            books.published(intended, now, self.batch);
            return;
        }
        books.failed(intended, Trouble::Code(answer.code), self.batch);
        books.remark(answer.code, || {
            let command = Command::decode(frame.0, frame.1);
            command.ok().and_then(|command| command.remark.map(|remark| remark.into_owned())).unwrap_or_default()
        });
    }

    /// The connection is gone, and so are the requests that were under way on it.
    pub fn lost(&mut self, index: usize, line: &mut Line, error: &io::Error, books: &mut Books) {
        line.lose(error);
        for intended in self.flights[index].expire(u64::MAX) {
            books.failed(intended, Trouble::Connection, self.batch);
        }
    }

    /// Gives up on requests that were sent too long ago.
    pub fn expire(&mut self, now: u64, books: &mut Books) {
        for flight in &mut self.flights {
            for intended in flight.expire(now.saturating_sub(self.timeout)) {
                books.failed(intended, Trouble::Timeout, self.batch);
            }
        }
    }
}
