//! The load itself: [`run`] carries out a [`Plan`] and gives a [`RunResult`]. All subcommands that load a broker call it.
//!
//! | file | what it does |
//! |---|---|
//! | `plan`, `sizes` | what a load is: settings, checked |
//! | `prepare` | topics, brokers, ends of queues, before the first message |
//! | `schedule`, `frames`, `flight`, `answer` | when a request goes out, its bytes, which are under way, what came back |
//! | `link`, `line` | a socket with its buffers; the same, made again when it is lost |
//! | `sender`, `reader`, `worker` | one thread: what it sends, what it reads, its loop |
//! | `stop` | an end before the end |
//! | `books`, `tally`, `summary`, `process` | counts of one thread, of one interval, of the run; processor time |
//!
//! A thread has a poll of its own and shares nothing with others while it sends; its counts go over a channel once an
//! interval. Nothing waits without an end: a request without an answer is given up after its time-out, a lost
//! connection is made again, and a load whose connections are all down for ten seconds ends.

pub mod answer;
mod books;
mod clock;
mod flight;
pub mod frames;
mod line;
pub mod link;
pub mod plan;
mod prepare;
mod process;
mod reader;
mod schedule;
mod sender;
pub mod sizes;
pub mod stop;
mod summary;
pub mod tally;
pub mod worker;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use hdrhistogram::Histogram;

pub use plan::{Extent, Header, Pace, Plan, Rate, Target, Workload};

use crate::result::RunResult;
use books::{Books, End, Report, Times};
use clock::{MS, SECOND};
use frames::Frames;
use line::Line;
use prepare::{Ground, QueueEnds};
use reader::{Reader, Way};
use sender::Sender;
use summary::{Around, Summary};
use tally::Tally;
use worker::{Lines, Shared, Worker, settle};

/// Time for connections to come up, and for pulls to be held, before the first message.
const LEAD: u64 = 200 * MS;

/// What an observer of a run hears, on the thread that called [`run`].
pub enum Event<'a> {
    /// What is being done before the first message: one short text a step.
    Preparing(&'a str),
    /// An interval of the warm-up is over.
    Warming(&'a Interval<'a>),
    /// An interval of the measured time is over. Their histograms together are those of the result.
    Measured(&'a Interval<'a>),
}

/// One interval of all threads together. Histograms count nanoseconds.
pub struct Interval<'a> {
    /// Its end, seconds from the start of its phase (warm-up or measured).
    pub until_seconds: f64,
    /// Its length.
    pub seconds: f64,
    /// Of the phase in all; unknown if a count ends it.
    pub of_seconds: Option<f64>,
    pub published: u64,
    pub failed: u64,
    pub consumed: u64,
    /// How late the schedule was at its worst, ms.
    pub behind_ms: f64,
    pub publish: &'a Histogram<u64>,
    pub end_to_end: &'a Histogram<u64>,
    pub pull: &'a Histogram<u64>,
}

/// A histogram that those of intervals can be added to.
pub fn histogram() -> Histogram<u64> {
    tally::histogram()
}

/// Carries out `plan`; `observer` is told what happens at each interval's end.
///
/// # Errors
/// [`Failure`] if the load cannot begin, or no connection to a broker is left before anything was measured. What goes wrong
/// with single messages is counted in [`RunResult::errors`]. After an interrupt ([`stop::on_signals`]), or once no connection
/// is left, the result is of what was measured until then, and says so ([`RunResult::ended_early`]); after an interrupt every
/// further run fails.
pub fn run(plan: &Plan, observer: &mut dyn FnMut(Event<'_>)) -> Result<RunResult, Failure> {
    plan.check().map_err(Failure::Plan)?;
    if stop::is_wanted() {
        return Err(Failure::Host(stop::TOO_EARLY.to_owned()));
    }
    let ground = prepare::prepare(plan, observer)?;
    observer(Event::Preparing("the frames"));
    let ahead = clock::wall() - clock::now();
    // Different for each run: it marks the bodies of this one.
    let run = sizes::Random::new(clock::wall() ^ u64::from(std::process::id()) << 40).next();
    let nanos = |seconds: f64| (seconds * SECOND as f64) as u64;
    let start = clock::now() + LEAD;
    let measure_from = start + nanos(plan.warmup_seconds);
    let until = match plan.extent {
        Extent::Seconds(seconds) => measure_from + nanos(seconds),
        Extent::Messages(_) => u64::MAX,
    };
    let times = Times { start, measure_from, until, interval: nanos(plan.interval_seconds) };

    let shared = Arc::new(Shared { sending: AtomicU32::new(0), ..Shared::default() });
    if plan.workload.sends() {
        shared.sending.store(plan.threads, std::sync::atomic::Ordering::Relaxed);
    }
    let (reports, received) = mpsc::channel();
    let mut back = Vec::new();
    let mut workers = Vec::new();
    for index in 0..plan.threads {
        let (cleared, taken) = mpsc::channel();
        // One is in use; two more are made now and not in the middle of the load.
        (0..2).for_each(|_| _ = cleared.send(Box::new(Tally::new())));
        back.push(cleared);
        let books = Books::new(index as usize, times, reports.clone(), taken);
        let worker = hire(plan, &ground, index, run, ahead, books, Arc::clone(&shared));
        workers.push(worker.map_err(|error| Failure::Host(format!("no poll for a thread: {error}")))?);
    }
    drop(reports);

    thread::scope(|scope| {
        for (index, worker) in workers.into_iter().enumerate() {
            let core = plan.cores.get(index % plan.cores.len().max(1)).copied();
            scope.spawn(move || match settle(core) {
                Ok(()) => worker.run(),
                Err(error) => worker.refuse(format!("core {} cannot be used: {error}", core.unwrap_or(0))),
            });
        }
        let mut summary = Summary::new(plan, plan.threads as usize);
        let mut around = follow(plan, times, &received, &back, &mut summary, observer);
        match around.ends.iter().find_map(|end| end.failure.clone()) {
            Some(failure) if summary.is_empty() => return Err(Failure::Peer(failure)),
            None if stop::is_wanted() => around.ended_early = Some(stop::INTERRUPTED.to_owned()),
            failure => around.ended_early = failure,
        }
        Ok(summary.result(around))
    })
}

/// One thread's part of the load.
fn hire(
    plan: &Plan,
    ground: &Ground,
    index: u32,
    run: u64,
    ahead: u64,
    books: Books,
    shared: Arc<Shared>,
) -> std::io::Result<Worker> {
    // Connections go to threads in turn, and to brokers in turn.
    let mine = |count: u32| (0..count).filter(|number| number % plan.threads == index).collect::<Vec<u32>>();
    let broker = |number: u32| ground.brokers[number as usize % ground.brokers.len()];
    let mut next = 0;
    let mut line = |address| {
        next += 1;
        Line::new(address, next - 1)
    };
    let send: Vec<Line> = if plan.workload.sends() {
        mine(plan.connections).into_iter().map(|it| line(broker(it))).collect()
    } else {
        vec![]
    };
    let mut read = |used: bool, way: Way| {
        if !used {
            return (vec![], None);
        }
        let connections = mine(plan.pull_connections);
        let queues = connections_of(plan, ground)
            .filter_map(|(queue, connection)| {
                let position = connections.iter().position(|mine| *mine == connection)?;
                Some((queue.clone(), position))
            })
            .collect();
        let lines = connections.into_iter().map(|it| line(broker(it))).collect();
        (lines, Some(Reader::new(plan, way, queues, run, books.times())))
    };
    let (tail_lines, tail) = read(plan.workload.tails(), Way::Tail);
    let way = if plan.workload == Workload::Mixed { Way::Circle } else { Way::CatchUp { again: plan.again } };
    let (catch_up_lines, catch_up) = read(plan.workload.catches_up(), way);
    let sender = plan
        .workload
        .sends()
        .then(|| Sender::new(plan, index, send.len(), Frames::new(plan, index, run, ahead), &books));
    let lines = Lines { send, tail: tail_lines, catch_up: catch_up_lines };
    Worker::new(plan, lines, sender, [tail, catch_up], books, shared)
}

/// Each queue with the pulling connection that reads it: one to the queue's broker.
fn connections_of<'a>(plan: &'a Plan, ground: &'a Ground) -> impl Iterator<Item = (&'a QueueEnds, u32)> {
    let brokers = ground.brokers.len();
    ground.queues.iter().enumerate().map(move |(number, queue)| {
        let to_broker = (plan.pull_connections as usize - queue.broker).div_ceil(brokers);
        (queue, (queue.broker + number % to_broker * brokers) as u32)
    })
}

/// Puts together what the threads report until all have ended.
fn follow(
    plan: &Plan,
    times: Times,
    received: &Receiver<Report>,
    back: &[mpsc::Sender<Box<Tally>>],
    summary: &mut Summary<'_>,
    observer: &mut dyn FnMut(Event<'_>),
) -> Around {
    let mut meters = Meters::new(plan, times);
    let mut ends: Vec<End> = Vec::new();
    loop {
        meters.look(clock::now());
        let report = match meters.next_at() {
            None => received.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(at) => received.recv_timeout(Duration::from_nanos(at.saturating_sub(clock::now()))),
        };
        match report {
            Ok(Report::Interval { slice, worker, mut tally }) => {
                summary.add(slice, worker, &tally, observer);
                tally.clear();
                // A thread that has ended needs none.
                _ = back[worker].send(tally);
            }
            Ok(Report::End { worker, end }) => {
                ends.push(end);
                if ends.len() == plan.threads as usize {
                    meters.stop();
                }
                summary.end(worker, observer);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    Around {
        measure_from: times.measure_from,
        begin_wall: meters.begin_wall,
        own_cpu: meters.own.map_or(0, |(from, until)| until - from),
        broker_cpu: meters.broker.map(|(from, until)| until - from),
        ends,
        ended_early: None,
    }
}

/// Processor time at the start and at the end of the measured time.
struct Meters {
    pid: Option<u32>,
    times: Times,
    begun: bool,
    ended: bool,
    begin_wall: u64,
    own: Option<(u64, u64)>,
    broker: Option<(u64, u64)>,
}

impl Meters {
    fn new(plan: &Plan, times: Times) -> Meters {
        Meters { pid: plan.pid, times, begun: false, ended: false, begin_wall: 0, own: None, broker: None }
    }

    /// When to look next; `None`: not before the end.
    fn next_at(&self) -> Option<u64> {
        match (self.begun, self.ended) {
            (false, _) => Some(self.times.measure_from),
            (true, false) => Some(self.times.until).filter(|until| *until < u64::MAX),
            (true, true) => None,
        }
    }

    fn look(&mut self, now: u64) {
        if !self.begun && now >= self.times.measure_from {
            self.begun = true;
            self.begin_wall = clock::wall();
            let own = clock::own_cpu();
            self.own = Some((own, own));
            self.broker = self.pid.and_then(process::cpu).map(|cpu| (cpu, cpu));
        }
        if self.begun && !self.ended && now >= self.times.until {
            self.stop();
        }
    }

    /// The measured time is over.
    fn stop(&mut self) {
        if self.ended {
            return;
        }
        self.ended = true;
        if let Some((_, until)) = &mut self.own {
            *until = clock::own_cpu();
        }
        // A broker that is gone has used what it had used before: nothing is known of it.
        self.broker = self.broker.and_then(|(from, _)| Some((from, process::cpu(self.pid?)?)));
    }
}

/// Why there is no result.
#[derive(Debug)]
pub enum Failure {
    /// Settings that do not go together, or not with what is there; the text says what to change.
    Plan(String),
    /// A broker or name server does not do what it must; the text says which and what.
    Peer(String),
    /// The kernel refuses something; the text says what.
    Host(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Plan(text) | Failure::Peer(text) | Failure::Host(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for Failure {}
