//! The sending end of a ring that may be full for a while: what does not fit waits in order, and the sender is told.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;

use super::submit::LocalWake;
use crate::dispatch::Sender;

/// Lives on one core; bounded by its user, who waits for [`Outlet::drained`] before it makes more.
pub struct Outlet<T> {
    ring: RefCell<Sender<T>>,
    backlog: RefCell<VecDeque<T>>,
    filled: LocalWake,
    emptied: LocalWake,
}

impl<T: Send> Outlet<T> {
    pub fn new(ring: Sender<T>) -> Outlet<T> {
        Outlet {
            ring: RefCell::new(ring),
            backlog: RefCell::default(),
            filled: LocalWake::default(),
            emptied: LocalWake::default(),
        }
    }

    /// Sends `element` now, or behind what waits already.
    pub fn send(&self, element: T) {
        let mut backlog = self.backlog.borrow_mut();
        if backlog.is_empty() {
            match self.ring.borrow_mut().push(element) {
                Ok(()) => return,
                Err(element) => backlog.push_back(element),
            }
        } else {
            backlog.push_back(element);
        }
        self.filled.wake();
    }

    pub fn is_full(&self) -> bool {
        !self.backlog.borrow().is_empty()
    }

    /// Waits until everything is in the ring. By one task.
    pub async fn drained(&self) {
        while self.is_full() {
            self.emptied.wait().await;
        }
    }

    /// Moves what waits into the ring as it gets room, until the receiver is gone. A task of its own.
    pub async fn run(&self) {
        loop {
            self.filled.wait().await;
            while self.is_full() {
                if poll_fn(|cx| self.ring.borrow_mut().poll_ready(cx)).await.is_err() {
                    self.backlog.borrow_mut().clear();
                    break;
                }
                if let Some(element) = self.backlog.borrow_mut().pop_front() {
                    // Room was just seen, and this task alone pushes while something waits.
                    let _ = self.ring.borrow_mut().push(element);
                }
            }
            self.emptied.wake();
        }
    }
}
