//! Who reads cold parts of the log from one end to the other: a group that catches up. What it will want next is read ahead
//! of it, and what it leaves behind is dropped from the page cache, so that a scan of the whole log costs the newest
//! messages no memory.
//!
//! A step machine, one a shard core: reads come in, orders for the page cache go out, and the clock is not asked. A scan is
//! recognised by cold reads that follow each other in the log; which queues they are of does not matter, since the
//! queues of a topic lie side by side in it. Only what was not in memory before the scan came is dropped, behind the
//! scan by [`LAG_LEN`], and not while another scan comes up right behind.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::types::PhyOffset;

/// On whose behalf messages are read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Reader {
    /// A consumer group.
    Group(Arc<str>),
    /// Whoever looks messages up by key, id or time.
    Lookup,
    /// The delivery of delayed messages.
    Delivery,
}

/// What is read ahead, and dropped, at a time; orders begin and end at multiples of it.
pub(super) const WINDOW_LEN: u64 = 1 << 20;
/// How far is read ahead of a scan, at most.
const AHEAD_LEN_MAX: u64 = 4 << 20;
/// A reader's queues may be as far apart and still be one scan.
pub(super) const LAG_LEN: u64 = 4 << 20;
/// Nothing is dropped that another scan will have reached within this.
const FOLLOW_LEN: u64 = 16 << 20;
/// Reads that follow each other, until a reader counts as scanning.
const READS_MIN: u32 = 3;
/// Scans remembered on one core, and of one reader (whose queues may be far apart); the oldest is forgotten for a new one.
const SCANS_MAX: usize = 64;
const SCANS_OF_READER_MAX: usize = 8;
/// Windows kept because another scan follows; beyond it that one seems to stand still.
const WINDOWS_MAX: usize = 64;
/// Orders that wait, until nothing is read ahead any more, and until nothing is ordered at all.
const READ_AHEAD_ORDERS_MAX: usize = 64;
const ORDERS_MAX: usize = 1024;
/// Windows that wait for the page cache to take orders again; the oldest then stay in it.
const WINDOWS_WAITING_MAX: usize = 1024;
/// After so much in a row that was in memory already, there is nothing to do for a scan.
const WARM_LEN_MAX: u64 = 4 << 20;

/// An order for the page cache.
#[derive(Clone, Debug)]
pub(super) enum CacheOrder {
    /// Read `[from, from + len)`.
    ReadAhead { from: PhyOffset, len: u64 },
    /// Drop it. It may hold what must stay: the caller knows the log's end.
    Drop { from: PhyOffset, len: u64 },
}

/// Where all scans of the node are, so that none drops what another is about to read.
#[derive(Debug)]
pub(super) struct ScanPlaces(Box<[AtomicU64]>);

const FREE: u64 = u64::MAX;

impl ScanPlaces {
    /// Room for `count` scans; one that finds none goes without.
    pub(super) fn new(count: usize) -> ScanPlaces {
        ScanPlaces((0..count).map(|_| AtomicU64::new(FREE)).collect())
    }

    fn take(&self, at: PhyOffset) -> Option<usize> {
        let free = |place: &AtomicU64| place.compare_exchange(FREE, at.0, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        self.0.iter().position(free)
    }

    fn set(&self, place: Option<usize>, at: u64) {
        if let Some(place) = place {
            self.0[place].store(at, Ordering::Release);
        }
    }

    /// Does a scan other than `own` come up to `end` from less than [`FOLLOW_LEN`] before `from`?
    fn is_followed(&self, own: Option<usize>, from: PhyOffset, end: PhyOffset) -> bool {
        let near = from.0.saturating_sub(FOLLOW_LEN)..end.0;
        self.0.iter().enumerate().any(|(index, at)| Some(index) != own && near.contains(&at.load(Ordering::Acquire)))
    }
}

/// What a step needs to know of the world.
pub(super) trait PageCache {
    /// Nothing is read ahead beyond it.
    fn log_end(&self) -> PhyOffset;
    /// Is a part of the log mostly not in memory?
    fn is_cold(&self, from: PhyOffset, len: u64) -> bool;
    /// Orders that are not carried out yet.
    fn orders(&self) -> usize;
}

/// The scans of one core.
pub(super) struct Scans {
    places: Arc<ScanPlaces>,
    by_reader: HashMap<Reader, Vec<Scan>>,
    count: usize,
    /// Counts reads, to tell which scan was longest without one.
    turn: u64,
}

struct Scan {
    /// End of the furthest read.
    at: PhyOffset,
    place: Option<usize>,
    reads: u32,
    /// End of what was ordered to be read ahead; none before the reader counts as scanning.
    ahead_to: Option<PhyOffset>,
    ahead_len: u64,
    /// What is to be dropped once it lies far enough behind, in the order of the log.
    windows: VecDeque<Window>,
    /// How much in a row was in memory already.
    warm_len: u64,
    used: u64,
}

struct Window {
    from: PhyOffset,
    len: u64,
    /// Not in memory before the scan came.
    was_cold: bool,
}

impl Scans {
    pub(super) fn new(places: Arc<ScanPlaces>) -> Scans {
        Scans { places, by_reader: HashMap::new(), count: 0, turn: 0 }
    }

    /// Is nobody scanning? Then reads of what is in memory need not be told.
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// A reader has read messages in `[from, end)` of the log, or is about to; `cold`: they had to come from the disk.
    pub(super) fn on_read(
        &mut self,
        reader: &Reader,
        from: PhyOffset,
        end: PhyOffset,
        cold: bool,
        cache: &dyn PageCache,
        orders: &mut Vec<CacheOrder>,
    ) {
        self.turn += 1;
        let scans = self.by_reader.get_mut(reader);
        let Some((index, scan)) =
            scans.and_then(|scans| scans.iter_mut().enumerate().find(|(_, scan)| scan.continues(from)))
        else {
            if cold {
                self.begin(reader, end, orders);
            }
            return;
        };
        scan.used = self.turn;
        scan.advance(end, cold);
        // Late is too late to read ahead. To drop it is not, and nobody comes by again once the scan has ended.
        let waiting = cache.orders();
        if waiting < READ_AHEAD_ORDERS_MAX {
            scan.read_ahead(cache, orders);
        }
        if waiting < ORDERS_MAX {
            scan.drop_behind(&self.places, orders);
        }
        self.places.set(scan.place, scan.at.0);
        if scan.warm_len >= WARM_LEN_MAX {
            self.end(reader, index, orders);
        }
    }

    /// Is what `reader` reads at `from` a part of a scan of its?
    pub(super) fn is_scanning(&self, reader: &Reader, from: PhyOffset) -> bool {
        let mut scans = self.by_reader.get(reader).into_iter().flatten();
        scans.any(|scan| scan.reads >= READS_MIN && scan.continues(from))
    }

    fn begin(&mut self, reader: &Reader, at: PhyOffset, orders: &mut Vec<CacheOrder>) {
        let of_reader = self.by_reader.get(reader).map_or(0, Vec::len);
        let oldest = if of_reader >= SCANS_OF_READER_MAX {
            self.oldest_of(Some(reader))
        } else if self.count >= SCANS_MAX {
            self.oldest_of(None)
        } else {
            None
        };
        if let Some((reader, index)) = oldest {
            self.end(&reader, index, orders);
        }
        let scan = Scan {
            at,
            place: self.places.take(at),
            reads: 1,
            ahead_to: None,
            ahead_len: WINDOW_LEN,
            windows: VecDeque::new(),
            warm_len: 0,
            used: self.turn,
        };
        self.by_reader.entry(reader.clone()).or_default().push(scan);
        self.count += 1;
    }

    fn oldest_of(&self, reader: Option<&Reader>) -> Option<(Reader, usize)> {
        let all = self.by_reader.iter().filter(|(name, _)| reader.is_none_or(|reader| reader == *name));
        let scans =
            all.flat_map(|(name, scans)| scans.iter().enumerate().map(move |(index, scan)| (name, index, scan)));
        scans.min_by_key(|(_, _, scan)| scan.used).map(|(name, index, _)| (name.clone(), index))
    }

    /// Forgets a scan, and drops what it left.
    fn end(&mut self, reader: &Reader, index: usize, orders: &mut Vec<CacheOrder>) {
        let Some(scans) = self.by_reader.get_mut(reader) else { return };
        let scan = scans.swap_remove(index);
        if scans.is_empty() {
            self.by_reader.remove(reader);
        }
        self.count -= 1;
        self.places.set(scan.place, FREE);
        for window in scan.windows.into_iter().filter(|window| window.was_cold) {
            if !self.places.is_followed(None, window.from, window.end()) {
                orders.push(CacheOrder::Drop { from: window.from, len: window.len });
            }
        }
    }
}

impl Drop for Scans {
    fn drop(&mut self) {
        for scan in self.by_reader.values().flatten() {
            self.places.set(scan.place, FREE);
        }
    }
}

impl Window {
    fn end(&self) -> PhyOffset {
        self.from.advance(self.len)
    }
}

impl Scan {
    /// Is a read from `from` on a part of this scan?
    fn continues(&self, from: PhyOffset) -> bool {
        let ahead = self.ahead_to.map_or(self.at, |ahead_to| ahead_to.max(self.at));
        from.advance(LAG_LEN) >= self.at && from <= ahead.advance(WINDOW_LEN)
    }

    fn advance(&mut self, end: PhyOffset, cold: bool) {
        if end <= self.at {
            return;
        }
        self.at = end;
        self.reads += 1;
        if let Some(ahead_to) = self.ahead_to
            && end > ahead_to
        {
            // It was faster, and read this itself.
            let window = Window { from: ahead_to, len: end.since(ahead_to), was_cold: cold };
            self.windows.push_back(window);
            self.ahead_to = Some(end);
            if self.windows.len() > WINDOWS_WAITING_MAX {
                self.windows.pop_front();
            }
        }
    }

    fn read_ahead(&mut self, cache: &dyn PageCache, orders: &mut Vec<CacheOrder>) {
        if self.reads < READS_MIN {
            return;
        }
        // From the window's start: the first reads of a scan brought in parts of it.
        let mut from = self.ahead_to.unwrap_or(PhyOffset(self.at.0 - self.at.0 % WINDOW_LEN));
        let to = self.at.advance(self.ahead_len).min(cache.log_end());
        while from < to {
            let end = PhyOffset((from.0 / WINDOW_LEN + 1) * WINDOW_LEN);
            let len = end.since(from);
            let was_cold = cache.is_cold(from, len);
            if was_cold {
                orders.push(CacheOrder::ReadAhead { from, len });
            }
            self.windows.push_back(Window { from, len, was_cold });
            from = end;
            self.ahead_len = (self.ahead_len * 2).min(AHEAD_LEN_MAX);
        }
        self.ahead_to = Some(from);
    }

    fn drop_behind(&mut self, places: &ScanPlaces, orders: &mut Vec<CacheOrder>) {
        while let Some(window) = self.windows.front()
            && window.end().advance(LAG_LEN) <= self.at
        {
            let cold = window.was_cold;
            if cold && self.windows.len() <= WINDOWS_MAX && places.is_followed(self.place, window.from, window.end()) {
                return;
            }
            self.warm_len = if cold { 0 } else { self.warm_len + window.len };
            let window = self.windows.pop_front().expect("looked at just now");
            if cold {
                orders.push(CacheOrder::Drop { from: window.from, len: window.len });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ_LEN: u64 = 64 * 1024;

    struct Log {
        scans: Scans,
        cache: Cache,
    }

    struct Cache {
        log_end: PhyOffset,
        /// Is what is read ahead in memory already?
        warm: bool,
        orders: usize,
    }

    impl PageCache for Cache {
        fn log_end(&self) -> PhyOffset {
            self.log_end
        }

        fn is_cold(&self, _from: PhyOffset, _len: u64) -> bool {
            !self.warm
        }

        fn orders(&self) -> usize {
            self.orders
        }
    }

    impl Log {
        fn new(places: &Arc<ScanPlaces>) -> Log {
            let cache = Cache { log_end: PhyOffset(1 << 40), warm: false, orders: 0 };
            Log { scans: Scans::new(Arc::clone(places)), cache }
        }

        /// Reads `[from, to)` in steps; gives the ranges read ahead and those dropped, each as start and end.
        fn read(&mut self, group: &str, from: u64, to: u64, cold: bool) -> (Vec<[u64; 2]>, Vec<[u64; 2]>) {
            let (mut ahead, mut dropped) = (Vec::new(), Vec::new());
            for at in (from..to).step_by(READ_LEN as usize) {
                let (at, end) = (PhyOffset(at), PhyOffset((at + READ_LEN).min(to)));
                let mut orders = Vec::new();
                self.scans.on_read(&Reader::Group(group.into()), at, end, cold, &self.cache, &mut orders);
                for order in orders {
                    match order {
                        CacheOrder::ReadAhead { from, len } => ahead.push([from.0, from.0 + len]),
                        CacheOrder::Drop { from, len } => dropped.push([from.0, from.0 + len]),
                    }
                }
            }
            (ahead, dropped)
        }
    }

    fn places() -> Arc<ScanPlaces> {
        Arc::new(ScanPlaces::new(16))
    }

    /// The ranges follow each other without gap or overlap.
    fn is_one_range(ranges: &[[u64; 2]]) -> bool {
        ranges.windows(2).all(|pair| pair[0][1] == pair[1][0])
    }

    #[test]
    fn cold_reads_in_sequence_are_read_ahead_of_and_never_further_than_the_most() {
        let mut log = Log::new(&places());
        let start = 10 << 20;
        assert_eq!(log.read("G", start, start + 2 * READ_LEN, true), (vec![], vec![]), "two reads are no scan");
        let (ahead, _) = log.read("G", start + 2 * READ_LEN, start + (8 << 20), true);
        assert!(is_one_range(&ahead) && ahead[0][0] == start, "{ahead:?}");
        let end = ahead.last().unwrap()[1];
        assert!(end > start + (11 << 20) && end <= start + (8 << 20) + AHEAD_LEN_MAX + WINDOW_LEN);
    }

    #[test]
    fn what_lies_behind_a_scan_is_dropped_once_and_its_neighbourhood_stays() {
        let mut log = Log::new(&places());
        let (_, dropped) = log.read("G", 0, 32 << 20, true);
        assert!(is_one_range(&dropped), "{dropped:?}");
        assert_eq!([dropped[0][0], dropped.last().unwrap()[1]], [0, (32 << 20) - LAG_LEN]);
    }

    #[test]
    fn what_was_in_memory_before_is_not_dropped_and_ends_the_scan() {
        let mut log = Log::new(&places());
        log.cache.warm = true;
        let (ahead, dropped) = log.read("G", 0, 64 << 20, false);
        assert_eq!((ahead.len(), dropped.len()), (0, 0), "no cold read, no scan");
        log.read("G", 0, READ_LEN, true);
        let (ahead, dropped) = log.read("G", READ_LEN, 64 << 20, false);
        assert!(ahead.is_empty() && dropped.is_empty() && log.scans.is_empty(), "{ahead:?} {dropped:?}");
    }

    #[test]
    fn reads_that_jump_about_are_no_scan() {
        let mut log = Log::new(&places());
        for turn in 0..100_u64 {
            let at = turn * 7919 % 1000 * (100 << 20);
            assert_eq!(log.read("G", at, at + READ_LEN, true), (vec![], vec![]));
        }
        assert!(log.scans.count <= SCANS_OF_READER_MAX);
    }

    #[test]
    fn queues_of_one_topic_read_side_by_side_are_one_scan() {
        let mut log = Log::new(&places());
        let mut ahead = Vec::new();
        for step in 0..64_u64 {
            for queue in 0..8_u64 {
                let at = step * (512 << 10) + queue * READ_LEN + (7 - queue) * 1000;
                ahead.extend(log.read("G", at, at + READ_LEN, true).0);
            }
        }
        assert_eq!(log.scans.count, 1);
        assert!(is_one_range(&ahead) && ahead.len() >= 32, "{ahead:?}");
    }

    #[test]
    fn nothing_is_dropped_that_a_scan_right_behind_has_not_read() {
        let places = places();
        // Of different cores, as groups usually are.
        let (mut first, mut second) = (Log::new(&places), Log::new(&places));
        first.read("A", 0, 4 * READ_LEN, true);
        second.read("B", 0, 4 * READ_LEN, true);
        let (_, dropped) = first.read("A", 4 * READ_LEN, 12 << 20, true);
        assert!(dropped.is_empty(), "{dropped:?}");
        second.read("B", 4 * READ_LEN, 11 << 20, true);
        let (_, dropped) = first.read("A", 12 << 20, 13 << 20, true);
        assert_eq!(dropped.first().map(|range| range[0]), Some(0), "B has read on");
    }

    #[test]
    fn a_scan_that_stands_still_holds_back_only_so_much() {
        let places = places();
        let (mut first, mut second) = (Log::new(&places), Log::new(&places));
        second.read("B", 0, 4 * READ_LEN, true);
        let (_, dropped) = first.read("A", 0, 200 << 20, true);
        assert!(!dropped.is_empty());
        assert!(first.scans.by_reader.values().flatten().all(|scan| scan.windows.len() <= WINDOWS_MAX + 1));
    }

    #[test]
    fn a_forgotten_scan_drops_what_it_read_and_gives_its_place_back() {
        let places = places();
        let mut log = Log::new(&places);
        log.read("G", 0, 1 << 20, true);
        let mut dropped = Vec::new();
        for scan in 1..=SCANS_OF_READER_MAX as u64 {
            dropped.extend(log.read("G", scan << 30, (scan << 30) + READ_LEN, true).1);
        }
        assert_eq!(dropped.first().map(|range| range[0]), Some(0));
        assert_eq!(log.scans.count, SCANS_OF_READER_MAX);
        drop(log);
        assert!(places.0.iter().all(|place| place.load(Ordering::Acquire) == FREE));
    }

    #[test]
    fn what_is_read_while_the_page_cache_takes_no_orders_is_dropped_later() {
        let mut log = Log::new(&places());
        log.read("G", 0, 1 << 20, true);
        log.cache.orders = ORDERS_MAX;
        assert_eq!(log.read("G", 1 << 20, 20 << 20, true), (vec![], vec![]));
        log.cache.orders = 0;
        let (ahead, dropped) = log.read("G", 20 << 20, 21 << 20, true);
        assert!(ahead[0][0] >= 20 << 20 && is_one_range(&dropped), "{ahead:?} {dropped:?}");
        assert_eq!((dropped[0][0], dropped.last().unwrap()[1] >> 20), (0, 17));
    }

    #[test]
    fn a_page_cache_that_lags_behind_is_told_what_to_drop_but_nothing_to_read() {
        let mut log = Log::new(&places());
        log.cache.orders = READ_AHEAD_ORDERS_MAX;
        log.read("G", 0, 1 << 20, true);
        log.cache.orders = 0;
        log.read("G", 1 << 20, 2 << 20, true);
        log.cache.orders = READ_AHEAD_ORDERS_MAX;
        let (ahead, dropped) = log.read("G", 2 << 20, 20 << 20, true);
        assert!(ahead.is_empty() && is_one_range(&dropped), "{ahead:?} {dropped:?}");
        assert_eq!(dropped.last().unwrap()[1] >> 20, 16);
    }

    #[test]
    fn nothing_is_read_ahead_beyond_the_end_of_the_log() {
        let mut log = Log::new(&places());
        log.cache.log_end = PhyOffset(3 << 20);
        let (ahead, _) = log.read("G", 0, 3 << 20, true);
        assert_eq!(ahead.last().unwrap()[1], 3 << 20);
    }
}
