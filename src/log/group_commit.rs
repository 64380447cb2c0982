//! Group commit: one flush runs at a time, and what is appended meanwhile shares the next.

use std::collections::VecDeque;

use crate::types::PhyOffset;

/// Number of one waiter; the writer gives them out in rising order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaiterId(pub u64);

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The log grew to `end` at `at_ms`, and the bytes are written (or will be by the flush that this event leads to).
    /// `waiter`: somebody waits for the flush that covers it, until `deadline_ms`; nobody does if the policy is async, or
    /// for WAIT=false.
    Appended { end: PhyOffset, waiter: Option<(WaiterId, u64)>, at_ms: u64 },
    /// Whatever is appended and not flushed shall be flushed though nobody waits (the flush interval passed).
    FlushDue,
    /// The flush that was asked for is done.
    Flushed { to: PhyOffset },
    /// It failed: the log is poisoned.
    FlushFailed,
    /// Time passes (ms of the clock that the deadlines were made with).
    Tick { now_ms: u64 },
}

/// What the writer shall do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Bring the log up to `to` onto stable storage, then say `Flushed` or `FlushFailed`.
    Flush { to: PhyOffset },
    /// Stored for good: answer it.
    Release(WaiterId),
    /// Will never be known to be stored: answer with an error.
    Fail(WaiterId),
    /// Still not flushed at its deadline: answer that the message is stored but not flushed.
    TimeOut(WaiterId),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flush {
    Idle,
    Running { to: PhyOffset },
    Poisoned,
}

/// The state machine. Lives on the writer core.
#[derive(Debug)]
pub struct GroupCommit {
    appended: PhyOffset,
    flushed: PhyOffset,
    flush: Flush,
    /// A flush is wanted though no waiter asks for it.
    due: bool,
    waiters: VecDeque<Waiter>,
    /// When the oldest byte was appended that is not flushed.
    unflushed_since_ms: Option<u64>,
    /// The same of the bytes that the flush that runs does not cover.
    uncovered_since_ms: Option<u64>,
}

#[derive(Debug)]
struct Waiter {
    end: PhyOffset,
    id: WaiterId,
    deadline_ms: u64,
}

impl GroupCommit {
    /// Everything before `end` is flushed.
    pub fn starting_at(end: PhyOffset) -> GroupCommit {
        GroupCommit {
            appended: end,
            flushed: end,
            flush: Flush::Idle,
            due: false,
            waiters: VecDeque::new(),
            unflushed_since_ms: None,
            uncovered_since_ms: None,
        }
    }

    /// Everything before this is on stable storage.
    pub fn flushed(&self) -> PhyOffset {
        self.flushed
    }

    /// A flush or write failed: the log takes no appends until restart.
    pub fn is_poisoned(&self) -> bool {
        self.flush == Flush::Poisoned
    }

    /// Is a flush running?
    pub fn is_flushing(&self) -> bool {
        matches!(self.flush, Flush::Running { .. })
    }

    /// Somebody waits for a flush.
    pub fn has_waiters(&self) -> bool {
        !self.waiters.is_empty()
    }

    /// When the oldest byte was appended that is not on stable storage (ms of the clock of the events); nothing if all is.
    pub fn unflushed_since_ms(&self) -> Option<u64> {
        self.unflushed_since_ms
    }

    pub fn step(&mut self, event: Event, actions: &mut Vec<Action>) {
        match event {
            Event::Appended { end, waiter, at_ms } => {
                assert_ne!(self.flush, Flush::Poisoned, "a poisoned log takes no appends");
                assert!(end >= self.appended, "the writer appends in order");
                self.appended = end;
                match self.flush {
                    Flush::Running { .. } => self.uncovered_since_ms.get_or_insert(at_ms),
                    Flush::Idle | Flush::Poisoned => self.unflushed_since_ms.get_or_insert(at_ms),
                };
                if let Some((id, deadline_ms)) = waiter {
                    self.waiters.push_back(Waiter { end, id, deadline_ms });
                }
            }
            Event::FlushDue => self.due = true,
            Event::Flushed { to } => {
                assert_eq!(self.flush, Flush::Running { to }, "only the flush that runs can end");
                self.flush = Flush::Idle;
                self.flushed = to;
                self.unflushed_since_ms = self.uncovered_since_ms.take();
                while self.waiters.front().is_some_and(|waiter| waiter.end <= to) {
                    let waiter = self.waiters.pop_front().expect("just looked at");
                    actions.push(Action::Release(waiter.id));
                }
            }
            Event::FlushFailed => {
                // After an error the kernel may have dropped dirty pages, so a retry that succeeds proves nothing.
                self.flush = Flush::Poisoned;
                actions.extend(self.waiters.drain(..).map(|waiter| Action::Fail(waiter.id)));
            }
            Event::Tick { now_ms } => self.waiters.retain(|waiter| {
                let waits = waiter.deadline_ms > now_ms;
                if !waits {
                    actions.push(Action::TimeOut(waiter.id));
                }
                waits
            }),
        }
        if self.flush == Flush::Idle && self.flushed < self.appended && (self.due || !self.waiters.is_empty()) {
            self.due = false;
            self.flush = Flush::Running { to: self.appended };
            actions.push(Action::Flush { to: self.appended });
        } else if self.flushed == self.appended {
            self.due = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl GroupCommit {
        fn on(&mut self, event: Event) -> Vec<Action> {
            let mut actions = Vec::new();
            self.step(event, &mut actions);
            actions
        }
    }
    fn appended(end: u64, id: u64) -> Event {
        Event::Appended { end: PhyOffset(end), waiter: Some((WaiterId(id), 1_000)), at_ms: end }
    }
    fn unwaited(end: u64) -> Event {
        Event::Appended { end: PhyOffset(end), waiter: None, at_ms: end }
    }
    fn flushed(to: u64) -> Event {
        Event::Flushed { to: PhyOffset(to) }
    }
    fn flush(to: u64) -> Action {
        Action::Flush { to: PhyOffset(to) }
    }
    fn release(id: u64) -> Action {
        Action::Release(WaiterId(id))
    }

    #[test]
    fn appends_made_during_a_flush_share_the_next_flush() {
        let mut commit = GroupCommit::starting_at(PhyOffset(0));
        assert_eq!(commit.on(appended(100, 1)), [flush(100)]);
        assert_eq!(commit.on(appended(200, 2)), []);
        assert_eq!(commit.on(appended(300, 3)), []);
        assert_eq!(commit.on(flushed(100)), [release(1), flush(300)]);
        assert_eq!(commit.on(flushed(300)), [release(2), release(3)]);
    }

    #[test]
    fn an_append_that_nobody_waits_for_is_flushed_when_due_or_with_the_next_waiter() {
        let mut commit = GroupCommit::starting_at(PhyOffset(0));
        assert_eq!(commit.on(unwaited(100)), []);
        assert_eq!(commit.on(Event::FlushDue), [flush(100)]);
        assert_eq!(commit.on(flushed(100)), []);
        assert_eq!(commit.on(Event::FlushDue), []);
        assert_eq!(commit.on(unwaited(200)), []);
        assert_eq!(commit.on(appended(300, 1)), [flush(300)]);
        assert_eq!(commit.on(flushed(300)), [release(1)]);
        assert_eq!(commit.flushed(), PhyOffset(300));
    }

    #[test]
    fn a_failed_flush_fails_every_waiter_and_no_flush_starts_again() {
        let mut commit = GroupCommit::starting_at(PhyOffset(0));
        commit.on(appended(100, 1));
        commit.on(appended(200, 2));
        let failed = [Action::Fail(WaiterId(1)), Action::Fail(WaiterId(2))];
        assert_eq!(commit.on(Event::FlushFailed), failed);
        assert!(commit.is_poisoned());
        assert_eq!(commit.on(Event::FlushDue), []);
        assert_eq!(commit.flushed(), PhyOffset(0));
    }

    #[test]
    fn a_waiter_is_answered_once_even_if_its_flush_ends_after_its_deadline() {
        let mut commit = GroupCommit::starting_at(PhyOffset(0));
        commit.on(appended(100, 1));
        assert_eq!(commit.on(Event::Tick { now_ms: 999 }), []);
        assert_eq!(commit.on(Event::Tick { now_ms: 1_000 }), [Action::TimeOut(WaiterId(1))]);
        assert_eq!(commit.on(flushed(100)), []);
        assert_eq!(commit.flushed(), PhyOffset(100));
    }

    #[test]
    fn the_loss_window_is_as_old_as_the_oldest_byte_that_no_flush_has_covered() {
        let mut commit = GroupCommit::starting_at(PhyOffset(0));
        assert_eq!(commit.unflushed_since_ms(), None);
        commit.on(unwaited(100));
        commit.on(unwaited(200));
        assert_eq!(commit.unflushed_since_ms(), Some(100));
        assert_eq!(commit.on(Event::FlushDue), [flush(200)]);
        commit.on(unwaited(300));
        commit.on(unwaited(400));
        assert_eq!(commit.unflushed_since_ms(), Some(100), "nothing is safe before the flush is done");
        commit.on(flushed(200));
        assert_eq!(commit.unflushed_since_ms(), Some(300));
        assert_eq!(commit.on(appended(500, 1)), [flush(500)]);
        commit.on(flushed(500));
        assert_eq!(commit.unflushed_since_ms(), None);
        commit.on(unwaited(600));
        commit.on(Event::FlushFailed);
        assert_eq!(commit.unflushed_since_ms(), Some(600), "a poisoned log keeps saying what it may lose");
    }

    #[test]
    fn whatever_the_order_of_events_each_waiter_is_answered_exactly_once() {
        use proptest::prelude::*;
        proptest!(|(choices in proptest::collection::vec(0u8..6, 1..200))| {
            let mut commit = GroupCommit::starting_at(PhyOffset(0));
            let (mut end, mut made, mut answered, mut running) = (0, 0u64, Vec::new(), None);
            for choice in choices {
                if commit.is_poisoned() { break; }
                let actions = match choice {
                    0 | 1 => { end += 10; made += 1; commit.on(appended(end, made)) }
                    2 => { end += 10; commit.on(unwaited(end)) }
                    3 => commit.on(Event::FlushDue),
                    4 => match running.take() { Some(to) => commit.on(flushed(to)), None => continue },
                    _ => commit.on(Event::Tick { now_ms: 2_000 }),
                };
                for action in actions {
                    match action {
                        Action::Flush { to } => { prop_assert!(running.is_none()); running = Some(to.0); }
                        Action::Release(id) => { prop_assert!(id.0 * 10 <= commit.flushed().0 + 10 * made); answered.push(id.0) }
                        Action::Fail(id) | Action::TimeOut(id) => answered.push(id.0),
                    }
                }
            }
            for action in commit.on(Event::FlushFailed) {
                if let Action::Fail(id) = action { answered.push(id.0) }
            }
            answered.sort_unstable();
            prop_assert_eq!(answered, (1..=made).collect::<Vec<_>>());
        });
    }
}
