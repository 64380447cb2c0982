//! The counts of one thread, interval by interval, and their way to the thread that puts them together.

use std::sync::mpsc::{Receiver, Sender};

use super::clock;
use super::tally::{Tally, Trouble};

/// Times of a run, all of the monotonic clock in ns.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// The first message of the warm-up.
    pub start: u64,
    /// What is to be sent from here on is measured.
    pub measure_from: u64,
    /// Up to here; `u64::MAX` if a count or the queues' ends end the run.
    pub until: u64,
    pub interval: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Warmup,
    Measured,
}

/// An interval of a run. All threads have the same ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Counted from the start of the warm-up.
    pub number: usize,
    pub phase: Phase,
    pub start: u64,
    pub end: u64,
}

impl Times {
    pub fn first(&self) -> Slice {
        let phase = if self.start < self.measure_from { Phase::Warmup } else { Phase::Measured };
        self.slice(0, phase, self.start)
    }

    /// The one after `slice`; none after the last, which stays open for late answers.
    pub fn after(&self, slice: Slice) -> Option<Slice> {
        if slice.end >= self.until {
            return None;
        }
        let phase = if slice.end < self.measure_from { Phase::Warmup } else { Phase::Measured };
        Some(self.slice(slice.number + 1, phase, slice.end))
    }

    fn slice(&self, number: usize, phase: Phase, start: u64) -> Slice {
        let last = match phase {
            Phase::Warmup => self.measure_from,
            Phase::Measured => self.until,
        };
        Slice { number, phase, start, end: (start + self.interval).min(last) }
    }
}

/// What a thread tells the one that puts counts together.
pub enum Report {
    Interval {
        slice: Slice,
        worker: usize,
        tally: Box<Tally>,
    },
    /// Nothing more comes from it.
    End {
        worker: usize,
        end: End,
    },
}

/// How a thread ended.
#[derive(Debug, Default)]
pub struct End {
    /// When the last message was answered or came.
    pub active_until: u64,
    /// Messages answered with success, and messages that came to readers, from the first one on.
    pub acknowledged: u64,
    pub consumed: u64,
    /// The end of its measured time; `u64::MAX` if a count or the queues' ends ended it.
    pub until: u64,
    pub never_sent: u64,
    pub failure: Option<String>,
}

/// See the module.
pub struct Books {
    worker: usize,
    times: Times,
    slice: Slice,
    tally: Box<Tally>,
    reports: Sender<Report>,
    /// Cleared tallies to use again: making one takes longer than a message may be late.
    cleared: Receiver<Box<Tally>>,
    /// Messages answered with success, from the first one on.
    pub acknowledged: u64,
    consumed: u64,
    pub active_until: u64,
}

impl Books {
    pub fn new(worker: usize, times: Times, reports: Sender<Report>, cleared: Receiver<Box<Tally>>) -> Books {
        Books {
            worker,
            times,
            slice: times.first(),
            tally: Box::new(Tally::new()),
            reports,
            cleared,
            acknowledged: 0,
            consumed: 0,
            active_until: times.start,
        }
    }

    /// When the open interval is to be closed; `u64::MAX` for the last.
    pub fn turn_at(&self) -> u64 {
        if self.times.after(self.slice).is_some() { self.slice.end } else { u64::MAX }
    }

    /// Closes the intervals that are over.
    pub fn turn(&mut self, now: u64) {
        while now >= self.slice.end
            && let Some(next) = self.times.after(self.slice)
        {
            let empty = self.cleared.try_recv().unwrap_or_else(|_| Box::new(Tally::new()));
            self.report(empty);
            self.slice = next;
        }
    }

    /// Someone wants no more: the measured time ends now. False if it had not begun.
    pub fn stop(&mut self, now: u64) -> bool {
        self.times.until = self.times.until.min(now);
        now > self.times.measure_from
    }

    /// Closes the last one, which ends now or with the measured time. Not with the last answer: where there was none at all,
    /// what failed would be divided by no time.
    pub fn finish(mut self, now: u64, never_sent: u64, failure: Option<String>) {
        self.slice.end = self.slice.end.min(self.times.until).min(now).max(self.slice.start);
        self.report(Box::new(Tally::new()));
        let end = End {
            active_until: self.active_until,
            acknowledged: self.acknowledged,
            consumed: self.consumed,
            until: self.times.until,
            never_sent,
            failure,
        };
        // Whoever put the counts together may have given up already.
        _ = self.reports.send(Report::End { worker: self.worker, end });
    }

    fn report(&mut self, empty: Box<Tally>) {
        let tally = std::mem::replace(&mut self.tally, empty);
        _ = self.reports.send(Report::Interval { slice: self.slice, worker: self.worker, tally });
    }

    /// Whether a message that was to be sent then is measured.
    #[inline]
    fn is_measured(&self, intended: u64) -> bool {
        // In the warm-up too there are figures to show, which no result includes.
        self.slice.phase == Phase::Warmup || intended >= self.times.measure_from && intended < self.times.until
    }

    /// A send was answered with success.
    #[inline]
    pub fn published(&mut self, intended: u64, now: u64, count: u64) {
        self.acknowledged += count;
        self.active_until = now;
        if self.is_measured(intended) {
            self.tally.publish.saturating_record_n(now.saturating_sub(intended), count);
        }
        if now < self.times.until {
            self.tally.published += count;
        }
    }

    /// A send was written.
    #[inline]
    pub fn left(&mut self, intended: u64, now: u64, count: u64) {
        let late = now.saturating_sub(intended);
        if self.is_measured(intended) {
            self.tally.delay.saturating_record_n(late, count);
            self.tally.behind_max = self.tally.behind_max.max(late);
        }
    }

    /// A send failed.
    pub fn failed(&mut self, intended: u64, trouble: Trouble, count: u64) {
        if self.is_measured(intended) {
            self.tally.failed += count;
            self.tally.trouble(trouble, count);
        }
    }

    /// Something is wrong on the reading side, or with a connection.
    pub fn trouble(&mut self, trouble: Trouble) {
        self.tally.trouble(trouble, 1);
    }

    /// What a broker says of a code; `text` is called for the first time only.
    pub fn remark(&mut self, code: i32, text: impl FnOnce() -> String) {
        self.tally.remarks.entry(code).or_insert_with(text);
    }

    /// Messages came to a reader.
    pub fn consumed(&mut self, now: u64, count: u64) {
        self.consumed += count;
        self.active_until = now;
        if now < self.times.until {
            self.tally.consumed += count;
        }
    }

    /// A pull that was not held brought messages.
    pub fn pulled(&mut self, asked: u64, now: u64) {
        if now < self.times.until {
            self.tally.pull.saturating_record(now.saturating_sub(asked));
        }
    }

    /// A message of this run came to a reader at the end.
    pub fn tailed(&mut self, intended: u64, now: u64) {
        self.tally.tailed += 1;
        if self.is_measured(intended) {
            self.tally.end_to_end.saturating_record(now.saturating_sub(intended));
        }
    }

    pub fn times(&self) -> Times {
        self.times
    }

    /// Whether anything was answered or came in the last `nanos`.
    pub fn is_alive(&self, nanos: u64) -> bool {
        clock::now().saturating_sub(self.active_until.max(self.times.start)) < nanos
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const TIMES: Times = Times { start: 100, measure_from: 125, until: 160, interval: 10 };

    fn slices(times: Times, count: usize) -> Vec<(Phase, u64, u64)> {
        std::iter::successors(Some(times.first()), |slice| times.after(*slice))
            .take(count)
            .map(|slice| (slice.phase, slice.start, slice.end))
            .collect()
    }

    #[test]
    fn intervals_begin_anew_where_measuring_begins() {
        use Phase::{Measured, Warmup};
        let wanted = [
            (Warmup, 100, 110),
            (Warmup, 110, 120),
            (Warmup, 120, 125),
            (Measured, 125, 135),
            (Measured, 135, 145),
            (Measured, 145, 155),
            (Measured, 155, 160),
        ];
        assert_eq!(slices(TIMES, 100), wanted);
        let endless = Times { measure_from: 100, until: u64::MAX, ..TIMES };
        assert_eq!(slices(endless, 2), [(Measured, 100, 110), (Measured, 110, 120)]);
    }

    #[test]
    fn what_was_to_be_sent_in_the_measured_time_counts_however_late_its_answer() {
        let (reports, received) = mpsc::channel();
        let (_back, cleared) = mpsc::channel();
        let mut books = Books::new(0, TIMES, reports, cleared);
        books.published(101, 105, 1);
        books.turn(130);
        books.published(120, 131, 1);
        books.published(126, 132, 1);
        books.turn(1000);
        books.published(159, 1000, 1);
        books.failed(159, Trouble::Timeout, 1);
        books.failed(160, Trouble::Timeout, 1);
        assert_eq!(books.acknowledged, 4);
        books.finish(1000, 3, None);

        let mut sum = Tally::new();
        let mut last = None;
        for report in received.try_iter() {
            match report {
                Report::Interval { slice, tally, .. } if slice.phase == Phase::Measured => {
                    sum.add(&tally);
                    last = Some(slice.end);
                }
                Report::Interval { slice, tally, .. } => {
                    assert_eq!(tally.publish.len(), u64::from(slice.number == 0));
                }
                Report::End { end, .. } => assert_eq!((end.active_until, end.never_sent), (1000, 3)),
            }
        }
        assert_eq!(sum.publish.len(), 2, "126 and 159");
        assert_eq!(sum.published, 2, "answered in the measured time: 120 and 126");
        assert_eq!((sum.failed, sum.troubles[&Trouble::Timeout]), (1, 1));
        assert_eq!(last, Some(160));
    }

    #[test]
    fn the_last_interval_is_as_long_as_it_was_though_nothing_was_answered_in_it() {
        let last = |times: Times, stopped: Option<u64>, now: u64| {
            let (reports, received) = mpsc::channel();
            let mut books = Books::new(0, times, reports, mpsc::channel().1);
            books.turn(155);
            books.failed(156, Trouble::Timeout, 3);
            if let Some(at) = stopped {
                assert!(books.stop(at));
            }
            books.finish(now, 0, None);
            let slices = received.try_iter().filter_map(|report| match report {
                Report::Interval { slice, tally, .. } => Some((slice.start, slice.end, tally.failed)),
                Report::End { .. } => None,
            });
            slices.last().unwrap()
        };
        assert_eq!(last(TIMES, None, 1000), (155, 160, 3));
        assert_eq!(last(Times { until: u64::MAX, ..TIMES }, None, 157), (155, 157, 3), "a count ended it");
        assert_eq!(last(TIMES, Some(158), 1000), (155, 158, 3), "somebody ended it");
    }
}
