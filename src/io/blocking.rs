//! Work that would block a core: making files, syncing derived data, writing config. It runs on one plain thread.

use std::sync::Arc;

/// One piece of work for the helper thread.
pub type Job = Box<dyn FnOnce() + Send>;

/// A way to hand work to the helper thread. The queue behind it is bounded by the number of tasks that wait for one:
/// each awaits its result before it asks again.
#[derive(Clone)]
pub struct Blocking {
    submit: Arc<dyn Fn(Job) + Send + Sync>,
}

impl Blocking {
    /// `submit` gives a job to the thread; it must run every job.
    pub fn new(submit: impl Fn(Job) + Send + Sync + 'static) -> Blocking {
        Blocking { submit: Arc::new(submit) }
    }

    /// Runs `work` on the helper thread and waits for it without holding the core.
    pub async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = flume::bounded(1);
        (self.submit)(Box::new(move || {
            // Nobody waits any more if the task was dropped; the work itself is done all the same.
            let _ = done.send(work());
        }));
        result.recv_async().await.expect("the helper thread runs every job")
    }

    /// Runs `work` on the helper thread and does not wait.
    pub fn start(&self, work: impl FnOnce() + Send + 'static) {
        (self.submit)(Box::new(work));
    }
}
