//! Long polling as a step machine: which pulls are held, which arrival wakes them, which have waited long enough.
//!
//! One table a shard, on that shard's core, driven by [`super::shard::ShardBroker`]. Time and arrivals come in as
//! arguments and the holds to answer go out as values; nothing here reads a clock or a queue. Bounded: a full table
//! gives the hold back.
//!
//! Deadlines are times of a steady clock: setting the wall clock must hold no pull beyond its client's patience.
//!
//! Invariant: each hold stands in the table and in all three orders, or in none of them.

use std::collections::BTreeSet;

use slab::Slab;

use crate::types::{QueueHandle, QueueOffset, Timestamp};
use crate::wire::ConnId;

/// The longest hold, whatever its client asks for. Clients ask for 15 to 20 s and give up after 30 s.
pub const HOLD_MS_MAX: i64 = 30_000;

/// A pull that waits for messages.
#[derive(Debug, PartialEq, Eq)]
pub struct Hold<W> {
    pub queue: QueueHandle,
    pub conn: ConnId,
    /// The first message that the pull wants; arrivals below it do not wake.
    pub from: i64,
    /// When it is answered whatever has arrived.
    pub deadline: Timestamp,
    /// What the owner needs to answer it.
    pub waiting: W,
}

/// Names one hold until it is given out again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HoldId(usize);

/// All pulls held on one shard.
pub struct Holds<W> {
    table: Slab<Hold<W>>,
    count_max: usize,
    by_queue: BTreeSet<(QueueHandle, HoldId)>,
    by_deadline: BTreeSet<(Timestamp, HoldId)>,
    by_conn: BTreeSet<(ConnId, HoldId)>,
}

impl<W> Holds<W> {
    /// An empty table for at most `count_max` holds.
    pub fn new(count_max: usize) -> Holds<W> {
        Holds {
            table: Slab::new(),
            count_max,
            by_queue: BTreeSet::new(),
            by_deadline: BTreeSet::new(),
            by_conn: BTreeSet::new(),
        }
    }

    /// Holds a pull.
    ///
    /// # Errors
    /// The hold itself, if the table is full.
    pub fn hold(&mut self, hold: Hold<W>) -> Result<HoldId, Hold<W>> {
        if self.table.len() >= self.count_max {
            return Err(hold);
        }
        let (queue, deadline, conn) = (hold.queue, hold.deadline, hold.conn);
        let id = HoldId(self.table.insert(hold));
        self.by_queue.insert((queue, id));
        self.by_deadline.insert((deadline, id));
        self.by_conn.insert((conn, id));
        Ok(id)
    }

    /// Gives back one hold, if it is still held.
    pub fn take(&mut self, id: HoldId) -> Option<Hold<W>> {
        let hold = self.table.try_remove(id.0)?;
        self.by_queue.remove(&(hold.queue, id));
        self.by_deadline.remove(&(hold.deadline, id));
        self.by_conn.remove(&(hold.conn, id));
        Some(hold)
    }

    /// Gives out the holds on `queue` that a message below `max` may answer and whose filter `accepts` it.
    pub fn on_arrival(&mut self, queue: QueueHandle, max: QueueOffset, accepts: impl Fn(&W) -> bool) -> Vec<Hold<W>> {
        let max = i64::try_from(max.0).unwrap_or(i64::MAX);
        let woken: Vec<HoldId> = self
            .by_queue
            .range((queue, HoldId(0))..=(queue, HoldId(usize::MAX)))
            .map(|(_, id)| *id)
            .filter(|id| self.table[id.0].from < max && accepts(&self.table[id.0].waiting))
            .collect();
        woken.into_iter().filter_map(|id| self.take(id)).collect()
    }

    /// Gives out every hold on `queue`.
    pub fn drop_queue(&mut self, queue: QueueHandle) -> Vec<Hold<W>> {
        let held: Vec<HoldId> =
            self.by_queue.range((queue, HoldId(0))..=(queue, HoldId(usize::MAX))).map(|(_, id)| *id).collect();
        held.into_iter().filter_map(|id| self.take(id)).collect()
    }

    /// Gives out the holds whose deadline has come, earliest first.
    pub fn due(&mut self, now: Timestamp) -> Vec<Hold<W>> {
        let mut due = Vec::new();
        while let Some(&(deadline, id)) = self.by_deadline.first()
            && deadline <= now
        {
            due.extend(self.take(id));
        }
        due
    }

    /// Gives out every hold of a connection that is gone.
    pub fn drop_connection(&mut self, conn: ConnId) -> Vec<Hold<W>> {
        let held: Vec<HoldId> =
            self.by_conn.range((conn, HoldId(0))..=(conn, HoldId(usize::MAX))).map(|(_, id)| *id).collect();
        held.into_iter().filter_map(|id| self.take(id)).collect()
    }

    /// When the next hold falls due.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.by_deadline.first().map(|(deadline, _)| *deadline)
    }

    /// Whether any pull waits for `queue`.
    pub fn waits_for(&self, queue: QueueHandle) -> bool {
        self.by_queue.range((queue, HoldId(0))..=(queue, HoldId(usize::MAX))).next().is_some()
    }

    /// How many pulls are held.
    pub fn count(&self) -> usize {
        self.table.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::ShardId;

    fn conn(seq: u64) -> ConnId {
        ConnId { shard: ShardId(0), seq }
    }

    fn hold(queue: u32, seq: u64, from: i64, deadline: i64, tag: &'static str) -> Hold<&'static str> {
        Hold { queue: QueueHandle(queue), conn: conn(seq), from, deadline: Timestamp(deadline), waiting: tag }
    }

    fn arrival(holds: &mut Holds<&'static str>, queue: u32, max: u64, tag: &str) -> Vec<&'static str> {
        let woken = holds.on_arrival(QueueHandle(queue), QueueOffset(max), |wanted| *wanted == "*" || *wanted == tag);
        woken.into_iter().map(|hold| hold.waiting).collect()
    }

    #[test]
    fn an_arrival_wakes_only_the_holds_of_its_queue_that_want_its_tag() {
        let mut holds = Holds::new(10);
        holds.hold(hold(1, 1, 0, 100, "A")).unwrap();
        holds.hold(hold(1, 2, 0, 100, "B")).unwrap();
        holds.hold(hold(2, 3, 0, 100, "A")).unwrap();
        assert_eq!(arrival(&mut holds, 1, 1, "A"), ["A"]);
        assert_eq!(arrival(&mut holds, 1, 2, "A"), [""; 0]);
        assert_eq!(arrival(&mut holds, 1, 3, "B"), ["B"]);
        assert_eq!(holds.count(), 1);
        assert!(!holds.waits_for(QueueHandle(1)));
        assert!(holds.waits_for(QueueHandle(2)));
    }

    #[test]
    fn an_arrival_below_what_a_pull_wants_does_not_wake_it() {
        let mut holds = Holds::new(10);
        holds.hold(hold(1, 1, 8, 100, "*")).unwrap();
        assert_eq!(arrival(&mut holds, 1, 8, "A"), [""; 0]);
        assert_eq!(arrival(&mut holds, 1, 9, "A"), ["*"]);
    }

    #[test]
    fn holds_fall_due_in_the_order_of_their_deadlines_and_exactly_then() {
        let mut holds = Holds::new(10);
        holds.hold(hold(1, 1, 0, 300, "late")).unwrap();
        holds.hold(hold(1, 1, 0, 100, "early")).unwrap();
        holds.hold(hold(2, 1, 0, 200, "middle")).unwrap();
        assert_eq!(holds.next_deadline(), Some(Timestamp(100)));
        assert!(holds.due(Timestamp(99)).is_empty());
        let due: Vec<_> = holds.due(Timestamp(200)).into_iter().map(|hold| hold.waiting).collect();
        assert_eq!(due, ["early", "middle"]);
        assert_eq!(holds.next_deadline(), Some(Timestamp(300)));
    }

    #[test]
    fn a_closed_connection_takes_its_holds_with_it() {
        let mut holds = Holds::new(10);
        holds.hold(hold(1, 1, 0, 100, "*")).unwrap();
        holds.hold(hold(2, 1, 0, 200, "*")).unwrap();
        holds.hold(hold(1, 2, 0, 300, "other")).unwrap();
        assert_eq!(holds.drop_connection(conn(1)).len(), 2);
        assert_eq!(holds.drop_connection(conn(1)).len(), 0);
        assert_eq!(arrival(&mut holds, 1, 1, "other"), ["other"]);
        assert_eq!(holds.next_deadline(), None);
    }

    #[test]
    fn a_deleted_queue_gives_its_holds_out_whatever_they_wait_for() {
        let mut holds = Holds::new(10);
        holds.hold(hold(1, 1, 0, 100, "A")).unwrap();
        holds.hold(hold(1, 2, 9, 200, "B")).unwrap();
        holds.hold(hold(2, 1, 0, 300, "A")).unwrap();
        let gone: Vec<_> = holds.drop_queue(QueueHandle(1)).into_iter().map(|hold| hold.waiting).collect();
        assert_eq!(gone, ["A", "B"]);
        assert_eq!((holds.count(), holds.next_deadline()), (1, Some(Timestamp(300))));
    }

    #[test]
    fn a_full_table_gives_the_hold_back_and_has_room_again_after_a_wake() {
        let mut holds = Holds::new(1);
        let first = holds.hold(hold(1, 1, 0, 100, "*")).unwrap();
        assert_eq!(holds.hold(hold(1, 2, 0, 100, "*")).unwrap_err().conn, conn(2));
        assert!(holds.take(first).is_some());
        assert!(holds.take(first).is_none());
        assert!(holds.hold(hold(1, 2, 0, 100, "*")).is_ok());
    }
}
