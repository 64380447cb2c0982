//! Reads from the disk on one core, through io_uring: bounded in all and for each reader, so that a group that scans a whole
//! log neither fills the disk's queue nor makes the others wait behind it.
//!
//! Who finds no place waits. Readers take turns, each reader's own reads are in order. What waits is bounded, too: a
//! reader with too many is refused, and its client asks again a moment later.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};

use super::read_error::ReadError;
use super::scans::Reader;
use super::shared::Shared;
use crate::io::ReadFile;

/// Reads under way on one core.
const UNDER_WAY_MAX: usize = 64;
/// Reads of one reader that wait.
const WAITING_MAX: usize = 1024;
/// Reads that wait in all; beyond it a reader may only have one.
const WAITING_IN_ALL_MAX: usize = 4096;

/// Lives on one shard core.
pub(super) struct ColdReads {
    shared: Arc<Shared>,
    turns: Turns,
}

impl ColdReads {
    pub(super) fn new(shared: Arc<Shared>) -> ColdReads {
        let each_max = shared.settings.read.cold_reads_per_group;
        ColdReads { shared, turns: Turns::new(UNDER_WAY_MAX, each_max, WAITING_MAX, WAITING_IN_ALL_MAX) }
    }

    /// The bytes `[at, at + len)` of a file, which `open` gives; `path` names it in errors.
    pub(super) async fn read(
        &self,
        reader: &Reader,
        path: &Path,
        open: impl FnOnce() -> io::Result<ReadFile>,
        at: u64,
        len: usize,
    ) -> Result<Vec<u8>, ReadError> {
        let counters = &self.shared.counters;
        counters.cold_reads.add(1);
        if !self.turns.has_place(reader) {
            counters.cold_reads_queued.add(1);
        }
        let Some(turn) = self.turns.ask(reader) else {
            counters.cold_reads_refused.add(1);
            return Err(ReadError::Busy { waiting: self.turns.waiting() });
        };
        let _place = turn.await_place().await;
        let failed = |source| ReadError::Io { path: path.to_owned(), source };
        open().map_err(failed)?.read(at, len).await.map_err(failed)
    }
}

/// A bounded number of places that readers take in turn.
#[derive(Clone)]
struct Turns(Rc<RefCell<State>>);

struct State {
    free: usize,
    each_max: usize,
    waiting: usize,
    waiting_max: usize,
    waiting_in_all_max: usize,
    /// Those with a read under way or waiting.
    readers: HashMap<Reader, Reads>,
    /// Those with a read waiting that may have one more under way, in the order of their turns.
    order: VecDeque<Reader>,
}

#[derive(Default)]
struct Reads {
    under_way: usize,
    waiting: VecDeque<Rc<Ticket>>,
    in_order: bool,
}

#[derive(Default)]
struct Ticket {
    has_place: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

/// A place, or the wait for one; it is given up when this is dropped.
struct Turn {
    turns: Turns,
    reader: Reader,
    ticket: Rc<Ticket>,
}

impl Turns {
    fn new(places: usize, each_max: usize, waiting_max: usize, waiting_in_all_max: usize) -> Turns {
        Turns(Rc::new(RefCell::new(State {
            free: places,
            each_max,
            waiting: 0,
            waiting_max,
            waiting_in_all_max,
            readers: HashMap::new(),
            order: VecDeque::new(),
        })))
    }

    fn waiting(&self) -> usize {
        self.0.borrow().waiting
    }

    /// Would a read begin at once?
    fn has_place(&self, reader: &Reader) -> bool {
        let state = self.0.borrow();
        let own = state.readers.get(reader);
        state.free > 0 && own.is_none_or(|own| own.under_way < state.each_max && own.waiting.is_empty())
    }

    /// `None`: too many wait.
    fn ask(&self, reader: &Reader) -> Option<Turn> {
        let mut state = self.0.borrow_mut();
        let state = &mut *state;
        let own_waiting = state.readers.get(reader).map_or(0, |own| own.waiting.len());
        let full = own_waiting >= state.waiting_max || (own_waiting > 0 && state.waiting >= state.waiting_in_all_max);
        if full {
            return None;
        }
        let ticket = Rc::new(Ticket::default());
        state.readers.entry(reader.clone()).or_default().waiting.push_back(Rc::clone(&ticket));
        state.waiting += 1;
        state.line_up(reader);
        state.give_out();
        Some(Turn { turns: self.clone(), reader: reader.clone(), ticket })
    }
}

impl State {
    /// Puts a reader into the order, if it waits and may have one more under way.
    fn line_up(&mut self, reader: &Reader) {
        let Some(own) = self.readers.get_mut(reader) else { return };
        if !own.in_order && !own.waiting.is_empty() && own.under_way < self.each_max {
            own.in_order = true;
            self.order.push_back(reader.clone());
        }
    }

    fn give_out(&mut self) {
        while self.free > 0
            && let Some(reader) = self.order.pop_front()
        {
            let own = self.readers.get_mut(&reader).expect("readers in the order have reads");
            own.in_order = false;
            // None: it has been given up.
            if let Some(ticket) = own.waiting.pop_front() {
                own.under_way += 1;
                self.free -= 1;
                self.waiting -= 1;
                ticket.has_place.set(true);
                if let Some(waker) = ticket.waker.take() {
                    waker.wake();
                }
            }
            self.line_up(&reader);
            self.forget_if_idle(&reader);
        }
    }

    fn forget_if_idle(&mut self, reader: &Reader) {
        if self.readers.get(reader).is_some_and(|own| own.under_way == 0 && own.waiting.is_empty() && !own.in_order) {
            self.readers.remove(reader);
        }
    }
}

impl Turn {
    async fn await_place(self) -> Turn {
        poll_fn(|cx| {
            if self.ticket.has_place.get() {
                return Poll::Ready(());
            }
            *self.ticket.waker.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
        self
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.turns.0.borrow_mut();
        let state = &mut *state;
        let Some(own) = state.readers.get_mut(&self.reader) else { return };
        if self.ticket.has_place.get() {
            own.under_way -= 1;
            state.free += 1;
        } else if let Some(at) = own.waiting.iter().position(|ticket| Rc::ptr_eq(ticket, &self.ticket)) {
            own.waiting.remove(at);
            state.waiting -= 1;
        }
        state.line_up(&self.reader);
        state.give_out();
        state.forget_if_idle(&self.reader);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(name: &str) -> Reader {
        Reader::Group(name.into())
    }

    fn begun(turn: &Turn) -> bool {
        turn.ticket.has_place.get()
    }

    #[test]
    fn a_reader_has_so_many_reads_under_way_and_the_next_begins_when_one_ends() {
        let turns = Turns::new(64, 4, 100, 100);
        let mut scan: Vec<Turn> = (0..6).map(|_| turns.ask(&group("scan")).unwrap()).collect();
        assert_eq!(scan.iter().map(begun).collect::<Vec<_>>(), [true, true, true, true, false, false]);
        assert!(!turns.has_place(&group("scan")) && turns.has_place(&group("other")));
        drop(scan.remove(1));
        assert_eq!(scan.iter().map(begun).collect::<Vec<_>>(), [true, true, true, true, false]);
    }

    #[test]
    fn readers_take_turns_however_many_reads_one_of_them_has_waiting() {
        let turns = Turns::new(2, 2, 100, 100);
        let mut scan: VecDeque<Turn> = (0..10).map(|_| turns.ask(&group("scan")).unwrap()).collect();
        let others: Vec<Turn> = ["a", "b"].map(|name| turns.ask(&group(name)).unwrap()).into();
        assert!(others.iter().all(|turn| !begun(turn)), "both places are taken");
        drop(scan.pop_front());
        assert_eq!(others.iter().filter(|turn| begun(turn)).count(), 1, "the next turn is another's");
        drop(scan.pop_front());
        assert!(others.iter().all(begun));
        assert_eq!(scan.iter().filter(|turn| begun(turn)).count(), 0);
        drop(others);
        assert_eq!(scan.iter().map(begun).take(3).collect::<Vec<_>>(), [true, true, false], "in its own order");
    }

    #[test]
    fn who_has_too_many_waiting_is_refused_and_who_has_none_never() {
        let turns = Turns::new(1, 1, 3, 4);
        let scan: Vec<Option<Turn>> = (0..5).map(|_| turns.ask(&group("scan"))).collect();
        assert_eq!(scan.iter().map(Option::is_some).collect::<Vec<_>>(), [true, true, true, true, false]);
        let other = turns.ask(&group("other"));
        assert!(other.is_some());
        assert_eq!(turns.waiting(), 4);
        assert!(turns.ask(&group("other")).is_none(), "in all too many wait");
        assert!(turns.ask(&group("third")).is_some());
    }

    #[test]
    fn a_wait_that_is_given_up_leaves_its_turn_to_the_next() {
        let turns = Turns::new(1, 4, 100, 100);
        let first = turns.ask(&group("a")).unwrap();
        let (given_up, next) = (turns.ask(&group("b")).unwrap(), turns.ask(&group("c")).unwrap());
        drop(given_up);
        assert_eq!(turns.waiting(), 1);
        drop(first);
        assert!(begun(&next));
        drop(next);
        let state = turns.0.borrow();
        assert!(state.readers.is_empty() && state.order.is_empty() && state.free == 1 && state.waiting == 0);
    }
}
