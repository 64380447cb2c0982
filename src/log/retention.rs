//! When the oldest segments of the log go. Source: store.md 9.1, CleanCommitLogService.
//!
//! Who runs it asks at intervals whether a pass is due, and in a pass before each segment whether it may go. Consumption
//! is never considered. A pass ends at the first segment that stays, so what is left has no hole.

use super::disk_level::DiskLevel;
use crate::types::Timestamp;

/// How many passes one request to delete expired segments stands for, as in Java.
const MANUAL_PASSES: u32 = 20;

/// Checked settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionRule {
    /// A segment has expired this long (ms) after its newest record was stored.
    pub reserved_ms: i64,
    /// Bit `h`: expired segments go during local hour `h`.
    pub delete_hours: u32,
    /// Most segments of one pass.
    pub batch_max: u32,
    /// May segments that have not expired go when the disk is at [`DiskLevel::Clean`]?
    pub force_when_full: bool,
}

/// What made a pass due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// It is the hour.
    Time,
    /// The disk has too little space left.
    Space,
    /// Somebody asked.
    Manual,
}

/// Decides about passes. Lives on the control core.
#[derive(Clone, Debug)]
pub struct Retention {
    rule: RetentionRule,
    manual_passes: u32,
}

/// One pass.
#[derive(Clone, Debug)]
pub struct Pass {
    rule: RetentionRule,
    trigger: Trigger,
    left: u32,
}

/// The oldest segment of the log.
#[derive(Clone, Copy, Debug)]
pub enum Oldest {
    /// The log needs it still: it is the last, or not all of it is flushed.
    Needed,
    /// It may go.
    Idle {
        /// When its newest record was stored.
        stored_at: Timestamp,
        /// Are all units of its messages on stable storage? If not, they may have to be built from it again.
        is_synced: bool,
    },
}

/// What happens with the oldest segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Delete {
        /// It has not expired; the disk needs the space.
        forced: bool,
    },
    /// It may go as soon as the units of its messages are synced; the pass is over.
    AwaitSync,
    /// It stays, and the pass is over.
    End,
}

impl Retention {
    pub fn new(rule: RetentionRule) -> Retention {
        Retention { rule, manual_passes: 0 }
    }

    /// Somebody asks for expired segments to be deleted: the passes that follow are due whatever the hour.
    pub fn ask(&mut self) {
        self.manual_passes = MANUAL_PASSES;
    }

    /// Asked once an interval: is a pass due? `hour`: the local hour; `level`: of the fullest disk.
    pub fn begin(&mut self, hour: u32, level: DiskLevel) -> Option<Pass> {
        let manual = self.manual_passes > 0;
        let trigger = if manual {
            self.manual_passes -= 1;
            Trigger::Manual
        } else if level > DiskLevel::Fine {
            Trigger::Space
        } else if self.rule.delete_hours >> hour & 1 == 1 {
            Trigger::Time
        } else {
            return None;
        };
        Some(Pass { rule: self.rule, trigger, left: self.rule.batch_max })
    }
}

impl Pass {
    pub fn trigger(&self) -> Trigger {
        self.trigger
    }

    /// May the oldest segment go? `level`: of the fullest disk, with what the pass has freed so far.
    pub fn step(&mut self, oldest: Oldest, now: Timestamp, level: DiskLevel) -> Step {
        let Oldest::Idle { stored_at, is_synced } = oldest else { return Step::End };
        if self.left == 0 {
            return Step::End;
        }
        let expired = now.0 >= stored_at.0.saturating_add(self.rule.reserved_ms);
        let forced = !expired && self.rule.force_when_full && level >= DiskLevel::Clean;
        if !expired && !forced {
            return Step::End;
        }
        if !is_synced {
            return Step::AwaitSync;
        }
        self.left -= 1;
        Step::Delete { forced }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_MS: i64 = 3_600_000;
    const NOW: Timestamp = Timestamp(1_700_000_000_000);

    fn rule() -> RetentionRule {
        RetentionRule { reserved_ms: 72 * HOUR_MS, delete_hours: 1 << 4, batch_max: 10, force_when_full: true }
    }

    fn aged(ms: i64) -> Oldest {
        Oldest::Idle { stored_at: NOW.plus_ms(-ms), is_synced: true }
    }

    fn pass(rule: RetentionRule) -> Pass {
        Retention::new(rule).begin(4, DiskLevel::Fine).expect("it is the hour")
    }

    #[test]
    fn a_pass_is_due_in_its_hours_and_when_space_runs_out() {
        let mut retention = Retention::new(RetentionRule { delete_hours: 1 << 4 | 1 << 23, ..rule() });
        let mut due = |hour, level| retention.begin(hour, level).map(|pass| pass.trigger());
        assert_eq!(due(3, DiskLevel::Fine), None);
        assert_eq!(due(4, DiskLevel::Fine), Some(Trigger::Time));
        assert_eq!(due(23, DiskLevel::Fine), Some(Trigger::Time));
        assert_eq!(due(5, DiskLevel::Used), Some(Trigger::Space));
        assert_eq!(due(5, DiskLevel::Warning), Some(Trigger::Space));
    }

    #[test]
    fn one_request_stands_for_twenty_passes_and_a_second_begins_them_anew() {
        let mut retention = Retention::new(rule());
        retention.ask();
        assert_eq!(retention.begin(5, DiskLevel::Fine).unwrap().trigger(), Trigger::Manual);
        retention.ask();
        for _ in 0..20 {
            assert!(retention.begin(5, DiskLevel::Fine).is_some());
        }
        assert!(retention.begin(5, DiskLevel::Fine).is_none());
    }

    #[test]
    fn a_segment_goes_once_its_newest_record_is_as_old_as_reserved() {
        assert_eq!(pass(rule()).step(aged(72 * HOUR_MS), NOW, DiskLevel::Fine), Step::Delete { forced: false });
        assert_eq!(pass(rule()).step(aged(72 * HOUR_MS - 1), NOW, DiskLevel::Fine), Step::End);
        assert_eq!(pass(rule()).step(aged(-HOUR_MS), NOW, DiskLevel::Fine), Step::End, "a clock that was ahead");
    }

    #[test]
    fn a_pass_takes_at_most_its_batch_and_never_what_is_needed() {
        let mut pass = pass(RetentionRule { batch_max: 2, ..rule() });
        let old = aged(100 * HOUR_MS);
        assert_eq!(pass.clone().step(Oldest::Needed, NOW, DiskLevel::Warning), Step::End);
        assert_eq!(pass.step(old, NOW, DiskLevel::Fine), Step::Delete { forced: false });
        assert_eq!(pass.step(old, NOW, DiskLevel::Fine), Step::Delete { forced: false });
        assert_eq!(pass.step(old, NOW, DiskLevel::Warning), Step::End);
    }

    #[test]
    fn segments_that_have_not_expired_go_while_the_disk_is_too_full_and_no_longer() {
        let mut pass = Retention::new(rule()).begin(5, DiskLevel::Warning).unwrap();
        let young = aged(HOUR_MS);
        assert_eq!(pass.step(young, NOW, DiskLevel::Warning), Step::Delete { forced: true });
        assert_eq!(pass.step(young, NOW, DiskLevel::Clean), Step::Delete { forced: true });
        assert_eq!(pass.step(young, NOW, DiskLevel::Used), Step::End);
    }

    #[test]
    fn only_what_would_go_waits_for_its_units() {
        let unsynced = |ms: i64| Oldest::Idle { stored_at: NOW.plus_ms(-ms), is_synced: false };
        let mut pass = pass(rule());
        assert_eq!(pass.step(unsynced(80 * HOUR_MS), NOW, DiskLevel::Fine), Step::AwaitSync);
        assert_eq!(pass.step(unsynced(HOUR_MS), NOW, DiskLevel::Clean), Step::AwaitSync);
        assert_eq!(pass.step(unsynced(HOUR_MS), NOW, DiskLevel::Fine), Step::End);
    }

    #[test]
    fn without_force_a_full_disk_frees_only_what_has_expired() {
        let mut pass = Retention::new(RetentionRule { force_when_full: false, ..rule() })
            .begin(5, DiskLevel::Warning)
            .expect("space is short");
        assert_eq!(pass.step(aged(80 * HOUR_MS), NOW, DiskLevel::Warning), Step::Delete { forced: false });
        assert_eq!(pass.step(aged(HOUR_MS), NOW, DiskLevel::Warning), Step::End);
    }
}
