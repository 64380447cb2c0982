//! Who watches the changes that a test's thread makes to files: fault injection, and the simulated disk.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;

use super::disk::{Answer, Change};

/// Watches the file changes of one thread. All of a simulated store runs on the thread that made it.
pub trait Tap {
    /// Before a change is made.
    ///
    /// # Errors
    /// What the store shall be told instead.
    fn ask(&self, change: &Change<'_>) -> io::Result<Answer>;

    /// After an executor's write went through as far as it did.
    fn written(&self, _path: &std::path::Path, _at: u64, _len: usize, _durable: bool) {}

    /// Does the store run without io_uring and by [`Tap::sleep`]'s clock?
    fn is_simulated(&self) -> bool {
        false
    }

    /// What a write or sync of an executor takes, on a simulated disk.
    fn io_delay(&self) -> Pin<Box<dyn Future<Output = ()>>> {
        Box::pin(std::future::ready(()))
    }

    /// The wall clock, if it shall stand still or be another than the machine's.
    fn now_ms(&self) -> Option<i64> {
        None
    }

    /// Virtual ms since the start of the simulation.
    fn steady_ms(&self) -> u64 {
        0
    }

    fn sleep(&self, _ms: u64) -> Pin<Box<dyn Future<Output = ()>>> {
        Box::pin(std::future::pending())
    }

    /// Other tasks first.
    fn give_way(&self) -> Pin<Box<dyn Future<Output = ()>>> {
        Box::pin(std::future::ready(()))
    }
}

thread_local! {
    static TAP: RefCell<Option<Rc<dyn Tap>>> = const { RefCell::new(None) };
}

/// Watches until dropped.
pub struct Watch(());

impl Watch {
    /// `tap` is asked about every file change that this thread makes from now on.
    pub fn start(tap: Rc<dyn Tap>) -> Watch {
        TAP.set(Some(tap));
        Watch(())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        TAP.set(None);
    }
}

/// The tap of this thread.
pub fn current() -> Option<Rc<dyn Tap>> {
    TAP.with_borrow(|tap| tap.clone())
}

/// The tap of this thread, if it simulates the world.
pub fn simulated() -> Option<Rc<dyn Tap>> {
    current().filter(|tap| tap.is_simulated())
}

/// Asks whoever watches this thread's changes.
pub fn ask(change: &Change<'_>) -> io::Result<Answer> {
    current().map_or(Ok(Answer::Do), |tap| tap.ask(change))
}
