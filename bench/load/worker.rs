//! One thread of a load: its connections, a poll over them, and a loop that sends what is due and takes what comes.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::event::{Timespec, epoll};
use rustix::thread::{CpuSet, sched_setaffinity, set_current_timer_slack};

use super::answer;
use super::books::Books;
use super::clock::{self, MS, SECOND};
use super::line::Line;
use super::plan::Plan;
use super::reader::Reader;
use super::sender::Sender;
use super::stop;

/// How often connections and time-outs are looked after.
const TEND: u64 = 50 * MS;
/// A load gives up when all its connections were down for so long.
const DOWN_MAX: u64 = 10 * SECOND;
/// Events taken from the kernel at once.
const EVENTS: usize = 256;

/// What the threads of a run tell each other.
#[derive(Default)]
pub struct Shared {
    /// Threads that still send or wait for answers.
    pub sending: AtomicU32,
    /// Messages that were answered with success, of the threads that are done with sending.
    pub acknowledged: AtomicU64,
    /// Messages of this run that came to readers at the end.
    pub tailed: AtomicU64,
}

pub struct Worker {
    poll: OwnedFd,
    lines: Lines,
    sender: Option<Sender>,
    tail: Option<Reader>,
    catch_up: Option<Reader>,
    books: Books,
    shared: Arc<Shared>,
    spin: bool,
    timeout: u64,
    /// Since when all connections are down.
    down_since: Option<u64>,
    tend_at: u64,
    /// It still sends, or waits for answers.
    sends: bool,
}

/// The connections of a thread, by what they are for. Their numbers in the poll go on from one list to the next.
pub struct Lines {
    pub send: Vec<Line>,
    pub tail: Vec<Line>,
    pub catch_up: Vec<Line>,
}

enum Role {
    Send(usize),
    Tail(usize),
    CatchUp(usize),
}

impl Lines {
    fn role(&self, number: usize) -> Role {
        let tails_at = self.send.len();
        let catch_ups_at = tails_at + self.tail.len();
        match number {
            _ if number < tails_at => Role::Send(number),
            _ if number < catch_ups_at => Role::Tail(number - tails_at),
            _ => Role::CatchUp(number - catch_ups_at),
        }
    }

    fn all(&mut self) -> impl Iterator<Item = &mut Line> {
        self.send.iter_mut().chain(&mut self.tail).chain(&mut self.catch_up)
    }

    fn line(&mut self, role: &Role) -> &mut Line {
        match *role {
            Role::Send(index) => &mut self.send[index],
            Role::Tail(index) => &mut self.tail[index],
            Role::CatchUp(index) => &mut self.catch_up[index],
        }
    }
}

/// Moves the calling thread to a core and has its sleeps end when they should.
///
/// # Errors
/// If this machine has no such core, or may not use it.
pub fn settle(core: Option<usize>) -> io::Result<()> {
    // The kernel would round the end of a sleep by 50 µs to wake several threads at once.
    set_current_timer_slack(std::num::NonZeroU64::new(1))?;
    if let Some(core) = core {
        let mut cores = CpuSet::new();
        if core >= CpuSet::MAX_CPU {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        cores.set(core);
        sched_setaffinity(None, &cores)?;
    }
    Ok(())
}

impl Worker {
    pub fn new(
        plan: &Plan,
        lines: Lines,
        sender: Option<Sender>,
        [tail, catch_up]: [Option<Reader>; 2],
        books: Books,
        shared: Arc<Shared>,
    ) -> io::Result<Worker> {
        let sends = sender.is_some();
        Ok(Worker {
            poll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            lines,
            sender,
            tail,
            catch_up,
            books,
            shared,
            spin: plan.spin,
            timeout: plan.timeout_ms * MS,
            down_since: None,
            tend_at: 0,
            sends,
        })
    }

    /// Carries out this thread's part of the load.
    pub fn run(mut self) {
        let failure = self.work().err();
        self.stop_sending();
        let now = clock::now();
        if failure.is_some() {
            // Whether there is something to tell is seen where all is put together.
            _ = self.books.stop(now);
        }
        let never_sent = self.sender.as_ref().map_or(0, |sender| sender.never_sent(now, &self.books));
        self.books.finish(now, never_sent, failure);
    }

    /// Ends at once.
    pub fn refuse(mut self, why: String) {
        self.stop_sending();
        self.books.finish(clock::now(), 0, Some(why));
    }

    /// The readers of all threads wait for those who send.
    fn stop_sending(&mut self) {
        if std::mem::take(&mut self.sends) {
            self.shared.acknowledged.fetch_add(self.books.acknowledged, Ordering::Relaxed);
            self.shared.sending.fetch_sub(1, Ordering::Release);
        }
    }

    fn work(&mut self) -> Result<(), String> {
        let mut events = Vec::with_capacity(EVENTS);
        loop {
            let now = clock::now();
            self.books.turn(now);
            if now >= self.tend_at {
                self.tend(now)?;
            }
            let mut due = None;
            if let Some(sender) = &mut self.sender
                && self.sends
            {
                if sender.is_done(now, &self.books) {
                    if sender.under_way() == 0 {
                        self.stop_sending();
                    }
                } else if sender.send_due(&mut self.lines.send, &mut self.books) {
                    due = sender.next_at(&self.books);
                }
            }
            if !self.sends && self.has_read_all(now) {
                return Ok(());
            }
            for (reader, lines) in
                [(&mut self.tail, &mut self.lines.tail), (&mut self.catch_up, &mut self.lines.catch_up)]
            {
                if let Some(reader) = reader {
                    reader.ask_due(lines, now);
                    due = due.into_iter().chain(reader.next_at()).min();
                }
            }
            self.flush();

            let wake = due.unwrap_or(u64::MAX).min(self.books.turn_at()).min(self.tend_at);
            self.wait(wake, &mut events)?;
            for event in &events {
                let (number, flags) = (event.data.u64() as usize, event.flags);
                self.happened(number, flags);
            }
        }
    }

    /// Waits for an event or for the time.
    fn wait(&mut self, wake: u64, events: &mut Vec<epoll::Event>) -> Result<(), String> {
        events.clear();
        let left = if self.spin { 0 } else { wake.saturating_sub(clock::now()) };
        let timeout = Timespec { tv_sec: (left / SECOND) as i64, tv_nsec: (left % SECOND) as i64 };
        match epoll::wait(&self.poll, rustix::buffer::spare_capacity(events), Some(&timeout)) {
            Ok(_) => Ok(()),
            Err(error) if error == rustix::io::Errno::INTR => Ok(()),
            Err(error) => Err(format!("the kernel does not tell of sockets: {error}")),
        }
    }

    fn happened(&mut self, number: usize, flags: epoll::EventFlags) {
        let role = self.lines.role(number);
        let line = self.lines.line(&role);
        if !line.is_up() {
            if line.came_up() {
                let now = clock::now();
                match role {
                    Role::Send(index) => self.fill(index),
                    Role::Tail(index) => {
                        let reader = self.tail.as_mut().expect("a line for reading has a reader");
                        reader.came_up(index, &mut self.lines.tail, now);
                    }
                    Role::CatchUp(index) => {
                        let reader = self.catch_up.as_mut().expect("as above");
                        reader.came_up(index, &mut self.lines.catch_up, now);
                    }
                }
                self.watch(&role);
            }
            return;
        }
        let mut outcome = Ok(());
        if flags.contains(epoll::EventFlags::OUT) {
            outcome = line.link().map_or(Ok(()), |link| link.flush());
        }
        if flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
            outcome = outcome.and_then(|()| self.read(&role));
        }
        if let Err(error) = outcome {
            self.lost(&role, &error);
            return;
        }
        if let Role::Send(index) = role {
            self.fill(index);
        }
        self.watch(&role);
    }

    /// Takes what came on a line.
    fn read(&mut self, role: &Role) -> io::Result<()> {
        let Some(link) = self.lines.line(role).link() else { return Ok(()) };
        if link.read()?.is_none() {
            return Ok(());
        }
        let now = clock::now();
        // Taken out while its frames are looked at: those who look may write to the same line.
        let mut inbox = std::mem::take(&mut link.inbox);
        let taken = loop {
            match inbox.frame() {
                Ok(None) => break Ok(()),
                Ok(Some((bounds, frame))) => {
                    self.take_frame(role, &bounds, frame, now)?;
                    inbox.consume(bounds.total_len);
                }
                Err(error) => break Err(io::Error::other(error)),
            }
        };
        if let Some(link) = self.lines.line(role).link() {
            link.inbox = inbox;
        }
        taken
    }

    #[inline]
    fn take_frame(
        &mut self,
        role: &Role,
        bounds: &kerolox::wire::FrameBounds,
        frame: &[u8],
        now: u64,
    ) -> io::Result<()> {
        let books = &mut self.books;
        match *role {
            Role::Send(index) => {
                let answer = answer::read(frame, bounds).map_err(io::Error::other)?;
                if let (Some(answer), Some(sender)) = (answer, &mut self.sender) {
                    sender.answered(index, answer, (frame, bounds), now, books);
                }
            }
            Role::Tail(_) => {
                if let Some(reader) = &mut self.tail {
                    let ours = reader.answered(frame, bounds, &mut self.lines.tail, now, books);
                    self.shared.tailed.fetch_add(ours, Ordering::Relaxed);
                }
            }
            Role::CatchUp(_) => {
                if let Some(reader) = &mut self.catch_up {
                    reader.answered(frame, bounds, &mut self.lines.catch_up, now, books);
                }
            }
        }
        Ok(())
    }

    fn fill(&mut self, index: usize) {
        if let Some(sender) = &mut self.sender {
            sender.fill(index, &mut self.lines.send, &mut self.books);
        }
    }

    fn lost(&mut self, role: &Role, error: &io::Error) {
        match *role {
            Role::Send(index) => {
                if let Some(sender) = &mut self.sender {
                    sender.lost(index, &mut self.lines.send[index], error, &mut self.books);
                }
            }
            Role::Tail(index) => {
                self.lines.tail[index].lose(error);
                self.books.trouble(super::tally::Trouble::Connection);
                self.tail.iter_mut().for_each(|reader| reader.lost(index));
            }
            Role::CatchUp(index) => {
                self.lines.catch_up[index].lose(error);
                self.books.trouble(super::tally::Trouble::Connection);
                self.catch_up.iter_mut().for_each(|reader| reader.lost(index));
            }
        }
    }

    /// Writes what readers put into outboxes.
    fn flush(&mut self) {
        for number in self.lines.send.len()..self.lines.send.len() + self.lines.tail.len() + self.lines.catch_up.len() {
            let role = self.lines.role(number);
            self.watch(&role);
        }
    }

    /// Writes what waits, and has the kernel say when there is room for the rest.
    fn watch(&mut self, role: &Role) {
        let poll = &self.poll;
        let line = match *role {
            Role::Send(index) => &mut self.lines.send[index],
            Role::Tail(index) => &mut self.lines.tail[index],
            Role::CatchUp(index) => &mut self.lines.catch_up[index],
        };
        let Some(link) = line.link() else { return };
        let outcome = if link.outbox.is_empty() { Ok(()) } else { link.flush() };
        if let Err(error) = outcome.and_then(|()| line.watch(poll)) {
            self.lost(role, &error);
        }
    }

    /// Looks after connections and time-outs.
    fn tend(&mut self, now: u64) -> Result<(), String> {
        self.tend_at = now + TEND;
        if stop::is_wanted() && !self.books.stop(now) {
            return Err(stop::TOO_EARLY.to_owned());
        }
        let poll = &self.poll;
        let refused = |error: io::Error| format!("no more connections can be made: {error}; see `ulimit -n`");
        self.lines.all().try_for_each(|line| line.tend(poll, now)).map_err(refused)?;
        if self.lines.all().any(|line| line.is_up()) {
            self.down_since = None;
        } else if now - *self.down_since.get_or_insert(now) > DOWN_MAX {
            let why = self.lines.all().find_map(|line| line.last_error.clone()).unwrap_or_default();
            return Err(format!("no connection for {} s; the last one was lost: {why}", DOWN_MAX / SECOND));
        }
        if let Some(sender) = &mut self.sender {
            sender.expire(now, &mut self.books);
            for index in 0..self.lines.send.len() {
                sender.fill(index, &mut self.lines.send, &mut self.books);
            }
        }
        for reader in self.tail.iter_mut().chain(&mut self.catch_up) {
            reader.expire(now, &mut self.books);
        }
        for index in 0..self.lines.send.len() {
            self.watch(&Role::Send(index));
        }
        Ok(())
    }

    /// Whether the readers may stop. Asked once this thread is done with sending.
    fn has_read_all(&self, now: u64) -> bool {
        if self.shared.sending.load(Ordering::Acquire) > 0 {
            return false;
        }
        if self.tail.is_some() {
            let all = self.shared.acknowledged.load(Ordering::Relaxed);
            return self.shared.tailed.load(Ordering::Relaxed) >= all || !self.books.is_alive(self.timeout);
        }
        let catches_up_alone = self.sender.is_none() && self.catch_up.is_some();
        !catches_up_alone || now >= self.books.times().until || self.catch_up.as_ref().is_some_and(Reader::is_done)
    }
}
