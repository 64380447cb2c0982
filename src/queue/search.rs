//! Finding a queue offset by what its record says: by store time, and by place in the log.

use std::ops::Range;

use crate::format::unit::Unit;
use crate::types::{PhyOffset, QueueOffset, Timestamp};

/// Which record a time stands for when none, or several, were stored exactly then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Boundary {
    /// The first stored at or after the time; if there is none, the offset behind the last.
    #[default]
    Lower,
    /// The last stored at or before the time; if there is none, the first.
    Upper,
}

/// What a [`TimeSearch`] needs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The store time of the record at this queue offset, told by [`TimeSearch::tell`].
    Look(QueueOffset),
    /// Nothing more: this is the answer.
    Found(QueueOffset),
}

/// The queue offset for a time, by bisection.
///
/// It asks for one record's store time after the other, since reading one may wait for a disk: the caller reads, tells,
/// and asks again, 24 times for a queue of ten million. Java picks a file first and then searches in it; while store
/// times never fall, which our log sees to, both give the same. Where a unit's record is gone (a quarantined part of
/// the log), the time of any record next to it serves. Source: store.md 3.3.
#[derive(Clone, Copy, Debug)]
pub struct TimeSearch {
    time: Timestamp,
    boundary: Boundary,
    first: QueueOffset,
    open: Bisection,
}

impl TimeSearch {
    /// A search among the offsets of `range`: a queue's minimum and maximum.
    pub fn new(range: Range<QueueOffset>, time: Timestamp, boundary: Boundary) -> TimeSearch {
        TimeSearch { time, boundary, first: range.start, open: Bisection::of(range) }
    }

    pub fn step(&self) -> Step {
        match (self.open.middle(), self.boundary) {
            (Some(middle), _) => Step::Look(middle),
            (None, Boundary::Lower) => Step::Found(self.open.start),
            // What was bisected is the first record stored after the time: the one before it is meant.
            (None, Boundary::Upper) if self.open.start > self.first => Step::Found(QueueOffset(self.open.start.0 - 1)),
            (None, Boundary::Upper) => Step::Found(self.first),
        }
    }

    /// Answers the last [`Step::Look`].
    pub fn tell(&mut self, stored_at: Timestamp) {
        self.open.halve(match self.boundary {
            Boundary::Lower => stored_at >= self.time,
            Boundary::Upper => stored_at > self.time,
        });
    }
}

/// The first queue offset of `range` whose unit points to `phy` or beyond; the end of `range` if none does. Fillers
/// point nowhere, so they stand before everything.
///
/// For the minimum of a queue when the log's start moves up, and for the cut when its end moves down.
///
/// # Errors
/// Those of `unit`, which reads the unit at an offset.
pub fn first_at_or_after<E>(
    range: Range<QueueOffset>,
    phy: PhyOffset,
    mut unit: impl FnMut(QueueOffset) -> Result<Unit, E>,
) -> Result<QueueOffset, E> {
    let mut open = Bisection::of(range);
    while let Some(middle) = open.middle() {
        let unit = unit(middle)?;
        open.halve(unit.phy >= phy && !unit.is_pre_blank());
    }
    Ok(open.start)
}

/// The offsets among which the first that has some property still lies, or the end.
#[derive(Clone, Copy, Debug)]
struct Bisection {
    start: QueueOffset,
    end: QueueOffset,
}

impl Bisection {
    fn of(range: Range<QueueOffset>) -> Bisection {
        Bisection { start: range.start, end: range.end.max(range.start) }
    }

    fn middle(&self) -> Option<QueueOffset> {
        let len = self.end.0 - self.start.0;
        (len > 0).then(|| self.start.advance(len / 2))
    }

    fn halve(&mut self, middle_has_it: bool) {
        if let Some(middle) = self.middle() {
            if middle_has_it {
                self.end = middle;
            } else {
                self.start = middle.advance(1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;
    use crate::types::TagsCode;

    /// `times` are the store times of the records from queue offset `min` on.
    fn search(min: u64, times: &[i64], time: i64, boundary: Boundary) -> u64 {
        let range = QueueOffset(min)..QueueOffset(min + times.len() as u64);
        let mut search = TimeSearch::new(range, Timestamp(time), boundary);
        for _ in 0..=64 {
            match search.step() {
                Step::Look(offset) => search.tell(Timestamp(times[(offset.0 - min) as usize])),
                Step::Found(offset) => return offset.0,
            }
        }
        panic!("a bisection ends after 64 steps");
    }

    #[test]
    fn times_find_the_offsets_that_java_found() {
        let times = [0, 32, 32, 63, 94, 124];
        for (time, lower, upper) in [
            (32, 1, 2),
            (64, 4, 3),
            (125, 6, 5),
            (-1, 0, 0),
            (i64::MAX, 6, 5),
            (i64::MIN, 0, 0),
            (0, 0, 0),
            (124, 5, 5),
        ] {
            assert_eq!(search(0, &times, time, Boundary::Lower), lower, "lower {time}");
            assert_eq!(search(0, &times, time, Boundary::Upper), upper, "upper {time}");
            assert_eq!(search(100, &times, time, Boundary::Lower), 100 + lower, "lower {time}");
            assert_eq!(search(100, &times, time, Boundary::Upper), 100 + upper, "upper {time}");
        }
    }

    /// Case T15.
    #[test]
    fn t15_a_time_between_records_belongs_to_the_one_on_the_side_that_is_asked_for() {
        let times = [1000, 2000, 2000, 2000, 3000];
        for (time, lower, upper) in
            [(500, 0, 0), (1000, 0, 0), (1500, 1, 0), (2000, 1, 3), (2500, 4, 3), (3000, 4, 4), (3500, 5, 4)]
        {
            assert_eq!(search(0, &times, time, Boundary::Lower), lower, "lower {time}");
            assert_eq!(search(0, &times, time, Boundary::Upper), upper, "upper {time}");
            assert_eq!(search(0, &times, time, Boundary::default()), lower, "no boundary {time}");
        }
    }

    #[test]
    fn an_empty_queue_answers_its_minimum() {
        assert_eq!(search(5, &[], 10, Boundary::Lower), 5);
        assert_eq!(search(5, &[], 10, Boundary::Upper), 5);
        let backwards = TimeSearch::new(QueueOffset(5)..QueueOffset(3), Timestamp(0), Boundary::Upper);
        assert_eq!(backwards.step(), Step::Found(QueueOffset(5)));
    }

    #[test]
    fn fillers_stand_before_the_start_of_the_log() {
        let unit = |offset: QueueOffset| {
            Ok::<_, Infallible>(match offset.0 {
                0..7 => Unit::PRE_BLANK,
                n => Unit { phy: PhyOffset((n - 7) * 100), len: 100, tags: TagsCode(0) },
            })
        };
        let first = |phy| first_at_or_after(QueueOffset(0)..QueueOffset(10), PhyOffset(phy), unit);
        assert_eq!(first(0), Ok(QueueOffset(7)));
        assert_eq!(first(100), Ok(QueueOffset(8)));
        assert_eq!(first(101), Ok(QueueOffset(9)));
        assert_eq!(first(201), Ok(QueueOffset(10)));
    }

    #[test]
    fn an_unreadable_unit_ends_the_search() {
        let found = first_at_or_after(QueueOffset(0)..QueueOffset(10), PhyOffset(5), |offset| Err(offset.0));
        assert_eq!(found, Err(5));
    }

    proptest! {
        #[test]
        fn a_search_agrees_with_a_look_at_every_record(
            min in 0..1000_u64,
            mut times in prop::collection::vec(0..50_i64, 0..40),
            time in -1..51_i64,
        ) {
            times.sort_unstable();
            let lower = times.iter().take_while(|stored| **stored < time).count() as u64;
            let upper = (times.iter().take_while(|stored| **stored <= time).count() as u64).saturating_sub(1);
            prop_assert_eq!(search(min, &times, time, Boundary::Lower), min + lower);
            prop_assert_eq!(search(min, &times, time, Boundary::Upper), min + upper);
        }
    }
}
