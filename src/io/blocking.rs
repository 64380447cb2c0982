//! Work that would block a core: making files, syncing derived data, writing config. It runs on plain threads: one for what
//! may take its time, one for what appends wait for.

use std::sync::Arc;

/// One piece of work for the helper thread.
pub type Job = Box<dyn FnOnce() + Send>;

/// A way to hand work to the helper threads. The queue behind it is bounded by the number of tasks that wait for one:
/// each awaits its result before it asks again.
#[derive(Clone)]
pub struct Blocking {
    submit: Submit,
    for_appends: Submit,
}

/// Gives a job to a thread.
type Submit = Arc<dyn Fn(Job) + Send + Sync>;

impl Blocking {
    /// `submit` gives a job to the thread, which does everything; it must run every job.
    pub fn new(submit: impl Fn(Job) + Send + Sync + 'static) -> Blocking {
        let submit: Submit = Arc::new(submit);
        Blocking { for_appends: Arc::clone(&submit), submit }
    }

    /// Two threads: the one of `self`, and that of `appends` for [`Blocking::run_for_appends`].
    pub fn beside(&self, appends: &Blocking) -> Blocking {
        Blocking { submit: Arc::clone(&self.submit), for_appends: Arc::clone(&appends.submit) }
    }

    /// Runs `work` on the helper thread and waits for it without holding the core.
    pub async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        run_on(&self.submit, work).await
    }

    /// The same on the thread that makes room: files and blocks that an append or a builder waits for, and no syncs but what
    /// that takes. What makes, moves or removes files of a consume queue runs there as well, one after the other.
    pub async fn run_for_appends<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        run_on(&self.for_appends, work).await
    }

    /// Runs `work` on the helper thread and does not wait.
    pub fn start(&self, work: impl FnOnce() + Send + 'static) {
        (self.submit)(Box::new(work));
    }
}

async fn run_on<T: Send + 'static>(submit: &Submit, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = flume::bounded(1);
    submit(Box::new(move || {
        // Nobody waits any more if the task was dropped; the work itself is done all the same.
        let _ = done.send(work());
    }));
    result.recv_async().await.expect("the helper thread runs every job")
}
