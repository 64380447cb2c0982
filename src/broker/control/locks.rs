//! Queue locks: which member of a group may consume a queue in order. Memory only.
//!
//! A lock belongs to a client id, not to a connection: it outlives a lost connection and ends 60 s after its last
//! renewal. Some clients ask for a refused lock thousands of times a second, so asking does nothing but look things up.
//! Source: remoting.md 3.6, 6.5.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use crate::types::Timestamp;
use crate::wire::MessageQueue;

/// How long a lock lasts without renewal.
const LOCK_MS: i64 = 60_000;
/// Locks of all groups together. When full, further ones are refused until some expire.
const LOCK_COUNT_MAX: usize = 1_000_000;

#[derive(Debug, Default)]
pub(super) struct Locks {
    groups: HashMap<Arc<str>, HashMap<MessageQueue, Lock>>,
    count: usize,
    /// See [`Directory::locked_until`](crate::broker::Directory::locked_until).
    until: Arc<HashMap<Arc<str>, Arc<AtomicI64>>>,
}

#[derive(Debug)]
struct Lock {
    client: Arc<str>,
    renewed: Timestamp,
}

impl Lock {
    fn ends(&self) -> Timestamp {
        self.renewed.plus_ms(LOCK_MS)
    }
}

impl Locks {
    /// The shared table behind [`Directory::locked_until`](crate::broker::Directory::locked_until).
    pub(super) fn until(&self) -> &Arc<HashMap<Arc<str>, Arc<AtomicI64>>> {
        &self.until
    }

    /// Locks and renews what is free or already this client's; gives those of `queues` that it now holds.
    pub(super) fn lock(
        &mut self,
        now: Timestamp,
        group: &str,
        client: &str,
        queues: Vec<MessageQueue>,
    ) -> Vec<MessageQueue> {
        let mut held = Vec::with_capacity(queues.len());
        if queues.is_empty() {
            return held;
        }
        if !self.groups.contains_key(group) {
            self.groups.insert(group.into(), HashMap::new());
        }
        let locks = self.groups.get_mut(group).expect("the group has just been put there");
        let mut owner: Option<Arc<str>> = None;
        for queue in queues {
            match locks.get_mut(&queue) {
                Some(lock) if *lock.client == *client => lock.renewed = now,
                Some(lock) if now > lock.ends() => {
                    let client = owner.get_or_insert_with(|| client.into()).clone();
                    *lock = Lock { client, renewed: now };
                }
                Some(_) => continue,
                None if self.count >= LOCK_COUNT_MAX => continue,
                None => {
                    let client = owner.get_or_insert_with(|| client.into()).clone();
                    locks.insert(queue.clone(), Lock { client, renewed: now });
                    self.count += 1;
                }
            }
            held.push(queue);
        }
        if !held.is_empty() {
            self.raise_until(group, now.plus_ms(LOCK_MS));
        }
        held
    }

    /// Frees those of `queues` that this client holds.
    pub(super) fn unlock(&mut self, group: &str, client: &str, queues: &[MessageQueue]) {
        let Some(locks) = self.groups.get_mut(group) else { return };
        for queue in queues {
            if locks.get(queue).is_some_and(|lock| *lock.client == *client) {
                locks.remove(queue);
                self.count -= 1;
            }
        }
        let last_end = locks.values().map(Lock::ends).max().unwrap_or(Timestamp(i64::MIN));
        if let Some(until) = self.until.get(group) {
            until.store(last_end.0, Ordering::Relaxed);
        }
    }

    /// Forgets what has expired.
    pub(super) fn sweep(&mut self, now: Timestamp) {
        let mut count = 0;
        self.groups.retain(|_, locks| {
            locks.retain(|_, lock| now <= lock.ends());
            count += locks.len();
            !locks.is_empty()
        });
        self.count = count;
        if self.until.keys().any(|group| !self.groups.contains_key(group)) {
            Arc::make_mut(&mut self.until).retain(|group, _| self.groups.contains_key(group));
        }
    }

    fn raise_until(&mut self, group: &str, end: Timestamp) {
        match self.until.get(group) {
            Some(until) => {
                until.fetch_max(end.0, Ordering::Relaxed);
            }
            None => {
                Arc::make_mut(&mut self.until).insert(group.into(), Arc::new(AtomicI64::new(end.0)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(queue_id: i32) -> MessageQueue {
        MessageQueue { topic: "T".into(), broker_name: "broker-a".into(), queue_id }
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp(1_000_000 + seconds * 1_000)
    }

    fn is_locked(locks: &Locks, now: Timestamp) -> bool {
        locks.until().get("G").is_some_and(|until| now.0 <= until.load(Ordering::Relaxed))
    }

    #[test]
    fn a_lock_goes_to_another_client_only_after_it_expired_or_was_freed() {
        let mut locks = Locks::default();
        assert_eq!(locks.lock(at(0), "G", "A", vec![queue(0), queue(1)]), [queue(0), queue(1)]);
        assert_eq!(locks.lock(at(1), "G", "B", vec![queue(0), queue(2)]), [queue(2)]);
        assert_eq!(locks.lock(at(60), "G", "B", vec![queue(0)]), []);
        locks.unlock("G", "A", &[queue(1)]);
        assert_eq!(locks.lock(at(60), "G", "B", vec![queue(1)]), [queue(1)]);
        assert_eq!(locks.lock(Timestamp(at(60).0 + 1), "G", "B", vec![queue(0)]), [queue(0)]);
        assert_eq!(locks.lock(at(0), "OTHER", "B", vec![queue(0)]), [queue(0)]);
    }

    #[test]
    fn a_renewed_lock_lasts_from_its_renewal() {
        let mut locks = Locks::default();
        locks.lock(at(0), "G", "A", vec![queue(0)]);
        assert_eq!(locks.lock(at(50), "G", "A", vec![queue(0)]), [queue(0)]);
        assert_eq!(locks.lock(at(110), "G", "B", vec![queue(0)]), []);
        assert_eq!(locks.lock(at(111), "G", "B", vec![queue(0)]), [queue(0)]);
    }

    #[test]
    fn only_the_owner_frees_a_lock() {
        let mut locks = Locks::default();
        locks.lock(at(0), "G", "A", vec![queue(0)]);
        locks.unlock("G", "B", &[queue(0)]);
        locks.unlock("NONE", "B", &[queue(0)]);
        assert_eq!(locks.lock(at(1), "G", "B", vec![queue(0)]), []);
    }

    #[test]
    fn a_group_counts_as_locked_while_any_lock_of_it_lasts() {
        let mut locks = Locks::default();
        locks.lock(at(0), "G", "A", vec![queue(0)]);
        locks.lock(at(10), "G", "B", vec![queue(1)]);
        assert!(is_locked(&locks, at(70)) && !is_locked(&locks, at(71)));
        locks.unlock("G", "B", &[queue(1)]);
        assert!(is_locked(&locks, at(60)) && !is_locked(&locks, at(61)));
        locks.unlock("G", "A", &[queue(0)]);
        assert!(!is_locked(&locks, at(11)));
    }

    #[test]
    fn expired_locks_are_forgotten() {
        let mut locks = Locks::default();
        locks.lock(at(0), "G", "A", vec![queue(0)]);
        locks.lock(at(30), "G", "A", vec![queue(1)]);
        locks.sweep(at(61));
        assert_eq!(locks.count, 1);
        locks.sweep(at(91));
        assert_eq!((locks.count, locks.groups.len(), locks.until().len()), (0, 0, 0));
    }
}
