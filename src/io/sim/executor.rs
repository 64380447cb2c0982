//! Tasks and timers on one thread. Which of the ready tasks runs next is rolled; when none is ready, the clock jumps to
//! the next timer.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use super::dice::Dice;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TaskId(usize);

/// Why [`Simulation::run_until`] came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ran {
    Reached,
    /// No task is ready and no timer set: nothing will ever happen.
    Stuck,
    /// The condition did not come true within the time or the number of steps allowed.
    TooLong,
}

/// The executor and its clock.
pub struct Simulation {
    dice: Dice,
    now_ms: Cell<u64>,
    timers: RefCell<BTreeMap<(u64, u64), Waker>>,
    timer_number: Cell<u64>,
    tasks: RefCell<Vec<Task>>,
    ready: Arc<Ready>,
    /// Hash of everything that happened in order; equal for two runs of one seed.
    trace: Cell<u64>,
}

type Work = Pin<Box<dyn Future<Output = ()>>>;

enum Task {
    Waiting(Work),
    Running,
    Done,
}

/// The tasks that were woken. A lock, because wakers may be sent elsewhere; here they never are.
#[derive(Default)]
struct Ready(Mutex<BTreeSet<TaskId>>);

struct TaskWaker {
    task: TaskId,
    ready: Arc<Ready>,
}

impl Ready {
    fn with<T>(&self, look: impl FnOnce(&mut BTreeSet<TaskId>) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.ready.with(|ready| ready.insert(self.task));
    }
}

impl Simulation {
    pub fn new(dice: Dice) -> Rc<Simulation> {
        Rc::new(Simulation {
            dice,
            now_ms: Cell::new(0),
            timers: RefCell::default(),
            timer_number: Cell::new(0),
            tasks: RefCell::default(),
            ready: Arc::default(),
            trace: Cell::new(0xcbf2_9ce4_8422_2325),
        })
    }

    pub fn now_ms(&self) -> u64 {
        self.now_ms.get()
    }

    /// Time passes while nothing runs.
    pub fn pass(&self, ms: u64) {
        self.now_ms.set(self.now_ms.get() + ms);
    }

    pub fn trace(&self) -> u64 {
        self.trace.get()
    }

    pub fn note(&self, what: u64) {
        self.trace.set((self.trace.get() ^ what).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(17));
    }

    pub fn spawn(&self, work: impl Future<Output = ()> + 'static) -> TaskId {
        let mut tasks = self.tasks.borrow_mut();
        let task = TaskId(tasks.len());
        tasks.push(Task::Waiting(Box::pin(work)));
        self.ready.with(|ready| ready.insert(task));
        task
    }

    pub fn is_done(&self, task: TaskId) -> bool {
        matches!(self.tasks.borrow()[task.0], Task::Done)
    }

    /// Drops the task with all it holds.
    pub fn cancel(&self, task: TaskId) {
        // Not under the borrow: what is dropped may wake others.
        let dropped = std::mem::replace(&mut self.tasks.borrow_mut()[task.0], Task::Done);
        drop(dropped);
    }

    /// The process is gone: no task and no timer of it is left.
    pub fn drop_all(&self) {
        let dropped = std::mem::take(&mut *self.tasks.borrow_mut());
        drop(dropped);
        self.ready.with(BTreeSet::clear);
        self.timers.borrow_mut().clear();
    }

    /// Runs tasks until `reached` says so. It is asked before every step; time moves only between steps.
    pub fn run_until(&self, limit_ms: u64, reached: impl Fn() -> bool) -> Ran {
        let deadline = self.now_ms.get() + limit_ms;
        for _ in 0..2_000_000_u64 {
            if reached() {
                return Ran::Reached;
            }
            let next = self.ready.with(|ready| {
                let chosen = ready.iter().nth(self.dice.below(ready.len() as u64) as usize).copied();
                chosen.inspect(|task| {
                    ready.remove(task);
                })
            });
            match next {
                Some(task) => self.poll(task),
                None if self.now_ms.get() > deadline => return Ran::TooLong,
                None => {
                    if !self.next_timer() {
                        return Ran::Stuck;
                    }
                }
            }
        }
        Ran::TooLong
    }

    fn poll(&self, task: TaskId) {
        let taken = {
            let mut tasks = self.tasks.borrow_mut();
            match &tasks[task.0] {
                Task::Waiting(_) => std::mem::replace(&mut tasks[task.0], Task::Running),
                _ => return,
            }
        };
        let Task::Waiting(mut work) = taken else { return };
        self.note(task.0 as u64);
        let waker = Waker::from(Arc::new(TaskWaker { task, ready: Arc::clone(&self.ready) }));
        let polled = work.as_mut().poll(&mut Context::from_waker(&waker));
        let left = match polled {
            Poll::Pending if matches!(self.tasks.borrow()[task.0], Task::Running) => Task::Waiting(work),
            _ => {
                drop(work);
                Task::Done
            }
        };
        self.tasks.borrow_mut()[task.0] = left;
    }

    fn next_timer(&self) -> bool {
        let Some(((at, _), _)) = self.timers.borrow().first_key_value().map(|(key, waker)| (*key, waker.clone()))
        else {
            return false;
        };
        self.now_ms.set(self.now_ms.get().max(at));
        self.note(at);
        loop {
            let mut timers = self.timers.borrow_mut();
            let Some(first) = timers.first_entry().filter(|first| first.key().0 <= self.now_ms.get()) else { break };
            let waker = first.remove();
            drop(timers);
            waker.wake();
        }
        true
    }

    /// Ends once the clock stands `ms` further; others run first even if that is 0.
    pub async fn sleep(self: Rc<Self>, ms: u64) {
        let number = self.timer_number.get();
        self.timer_number.set(number + 1);
        let key = (self.now_ms.get() + ms, number);
        let timer = Timer { sim: self, key };
        let mut set = false;
        poll_fn(|cx| {
            if set && !timer.sim.timers.borrow().contains_key(&timer.key) {
                return Poll::Ready(());
            }
            set = true;
            timer.sim.timers.borrow_mut().insert(timer.key, cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Lets the other ready tasks have their turn.
    pub async fn give_way(self: Rc<Self>) {
        let mut gave = false;
        poll_fn(|cx| {
            if std::mem::replace(&mut gave, true) {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }
}

/// A timer that is set; unset when nobody waits for it any more.
struct Timer {
    sim: Rc<Simulation>,
    key: (u64, u64),
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.sim.timers.borrow_mut().remove(&self.key);
    }
}
