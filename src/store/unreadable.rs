//! Records that the disk does not give: tried a few times over a few seconds, then stepped over as damage is. One bad
//! sector must not hold its queue up for ever, and a disk that is away for a moment must lose nothing.

use std::cell::RefCell;
use std::collections::VecDeque;

use crate::types::PhyOffset;

/// Tries, and ms from the first to the last, before a record is given up.
const TRIES: u32 = 3;
const TRIED_MS: u64 = 2000;
/// Records known; beyond it the oldest has to be tried again.
const KNOWN_MAX: usize = 1024;

/// What one core knows of such records.
#[derive(Debug, Default)]
pub struct Unreadable {
    known: RefCell<VecDeque<Known>>,
}

#[derive(Debug)]
struct Known {
    phy: PhyOffset,
    tries: u32,
    since_ms: u64,
    is_given_up: bool,
}

impl Unreadable {
    /// Is the record stepped over?
    pub fn is_given_up(&self, phy: PhyOffset) -> bool {
        self.known.borrow().iter().any(|known| known.phy == phy && known.is_given_up)
    }

    /// Takes note of a read that failed. Has the record been tried enough?
    pub fn failed(&self, phy: PhyOffset, now_ms: u64) -> bool {
        let mut known = self.known.borrow_mut();
        if let Some(known) = known.iter_mut().find(|known| known.phy == phy) {
            known.tries = known.tries.saturating_add(1);
            return known.tries >= TRIES && now_ms.saturating_sub(known.since_ms) >= TRIED_MS;
        }
        if known.len() >= KNOWN_MAX {
            known.pop_front();
        }
        known.push_back(Known { phy, tries: 1, since_ms: now_ms, is_given_up: false });
        false
    }

    /// Steps over the record from now on. False: that was so already.
    pub fn give_up(&self, phy: PhyOffset) -> bool {
        let mut known = self.known.borrow_mut();
        let known = known.iter_mut().find(|known| known.phy == phy);
        known.is_some_and(|known| !std::mem::replace(&mut known.is_given_up, true))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io;
    use std::ops::Range;
    use std::path::Path;
    use std::rc::Rc;
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::io::Blocking;
    use crate::io::disk::{Answer, Change};
    use crate::io::tap::{Tap, Watch, spoil};
    use crate::io::test_executor::on_executor;
    use crate::store::read_error::ReadError;
    use crate::store::reader::ShardStore;
    use crate::store::scans::Reader;
    use crate::store::submit::Submitter;
    use crate::store::test_store::TestStore;

    /// Bytes of the log that the disk does not give; all of it while it is away.
    struct BadDisk {
        bad: Range<u64>,
        away: Cell<bool>,
    }

    impl Tap for BadDisk {
        fn ask(&self, _: &Change<'_>) -> io::Result<Answer> {
            Ok(Answer::Do)
        }

        fn read(&self, _: &Path, at: u64, len: usize) -> io::Result<()> {
            let is_bad = self.away.get() || (at < self.bad.end && self.bad.start < at + len as u64);
            if is_bad { Err(io::Error::from_raw_os_error(libc::EIO)) } else { Ok(()) }
        }
    }

    #[test]
    fn a_bad_sector_holds_its_queue_up_for_a_few_tries_and_a_disk_that_is_away_loses_nothing() {
        let mut store = TestStore::new();
        let sent: Vec<_> = (0..5).map(|_| store.put("A", 0, 200)).collect();
        let opened = store.open().unwrap();
        let queue = opened.queues.list().iter().next().unwrap().1.clone();
        // Broken, so that reads go to the file.
        let segment = opened.shared.segments.find(PhyOffset(0)).unwrap();
        // SAFETY: the mapping lives as long as the segment, and nobody reads it meanwhile.
        unsafe { spoil(segment.slice(PhyOffset(0), 1).unwrap().as_ptr(), 0) };
        assert_eq!(segment.with(PhyOffset(0), 1, |bytes| bytes[0]), None);
        let bad = sent[2].unit.phy;
        let disk = Rc::new(BadDisk { bad: bad.0..bad.0 + 10, away: Cell::new(false) });
        let _watch = Watch::start(Rc::clone(&disk) as Rc<dyn Tap>);
        on_executor(async {
            let shared = Arc::clone(&opened.shared);
            let blocking = Blocking::new(|job| job());
            let store = ShardStore::new(Arc::clone(&shared), Submitter::new(shared), None, blocking);
            let load = async |from: i64| {
                let mut got = store.get(&queue, from, 32, 1 << 20, &|_| true);
                if got.found.count() == 0 {
                    got = store.get_cold(&Reader::Lookup, &queue, from, 32, 1 << 20, &|_| true).await.unwrap();
                }
                got.found.load(&Reader::Lookup).await
            };
            let len = |messages: &[usize]| messages.iter().map(|n| sent[*n].unit.len as usize).sum::<usize>();
            let before = load(0).await.unwrap();
            assert_eq!((before.records.len(), before.goes_on_at.map(|at| at.0)), (len(&[0, 1]), Some(2)));
            assert_eq!(before.count, 2);
            disk.away.set(true);
            for _ in 0..TRIES {
                assert!(matches!(load(2).await, Err(ReadError::Io { .. })));
            }
            std::thread::sleep(Duration::from_millis(TRIED_MS + 1));
            assert!(matches!(load(2).await, Err(ReadError::Io { .. })), "it gives nothing else either");
            disk.away.set(false);
            let behind = load(2).await.unwrap();
            assert_eq!((behind.records.len(), behind.count, behind.goes_on_at), (len(&[3, 4]), 2, None));
            let whole = load(0).await.unwrap();
            assert_eq!((whole.records.len(), whole.count, whole.goes_on_at), (len(&[0, 1, 3, 4]), 4, None));
            // What delivers delayed messages asks for records one by one.
            assert!(matches!(store.record_at(&Reader::Delivery, bad).await, Err(ReadError::Damaged { .. })));
            assert_eq!(store.counters().records_unreadable.get(), 1);
        });
    }

    #[test]
    fn a_record_is_given_up_after_so_many_tries_in_so_long_a_time() {
        let (unreadable, phy) = (Unreadable::default(), PhyOffset(7));
        assert!(!unreadable.failed(phy, 100));
        assert!(!unreadable.failed(phy, 100 + TRIED_MS), "twice is not enough");
        assert!(unreadable.failed(phy, 100 + TRIED_MS));
        assert!(!unreadable.is_given_up(phy));
        assert!(unreadable.give_up(phy) && !unreadable.give_up(phy), "told once");
        assert!(unreadable.is_given_up(phy) && !unreadable.is_given_up(PhyOffset(8)));
        let other = PhyOffset(8);
        let in_a_moment = (0..100).filter(|_| unreadable.failed(other, 100)).count();
        assert_eq!(in_a_moment, 0, "a disk may be away for a moment");
    }

    #[test]
    fn only_so_many_are_known() {
        let unreadable = Unreadable::default();
        for phy in 0..2 * KNOWN_MAX as u64 {
            unreadable.failed(PhyOffset(phy), 0);
        }
        assert_eq!(unreadable.known.borrow().len(), KNOWN_MAX);
    }
}
