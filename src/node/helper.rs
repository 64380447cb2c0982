//! Helper threads: what would block a core (files, syncs, the page cache) runs there, one piece after another.

use std::thread::JoinHandle;

use crate::io::{Blocking, Job};

/// Pieces of work that may wait; each awaiting task has at most one, so this is never reached in practice.
const QUEUE_LEN: usize = 4096;

/// How far a thread stands back behind the executor of its core: about a tenth of its share.
const NICE: i32 = 10;

/// Does a thread stand back when its core is busy?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nice {
    /// For what nobody waits for.
    Yes,
    No,
}

/// The thread, to be stopped after the last executor has ended.
pub struct Helper {
    pub blocking: Blocking,
    /// Ends the thread.
    end: flume::Sender<Option<Job>>,
    thread: JoinHandle<()>,
}

/// Keeps the calling thread to `core`.
pub fn settle(core: usize, nice: Nice) {
    // Not pinned is no fault, only slower.
    core_affinity::set_for_current(core_affinity::CoreId { id: core });
    if nice == Nice::Yes {
        // Of this thread alone, on Linux.
        let _ = rustix::process::setpriority_process(None, NICE);
    }
}

impl Helper {
    /// Starts a thread of this name on `core`, which should not be an executor's, least of all the writer's: what it waits for is mostly
    /// the disk, but what it computes must not delay appends.
    pub fn start(name: &str, core: usize, nice: Nice) -> std::io::Result<Helper> {
        let (submit, jobs) = flume::bounded::<Option<Job>>(QUEUE_LEN);
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
            settle(core, nice);
            while let Ok(Some(job)) = jobs.recv() {
                job();
            }
        })?;
        let end = submit.clone();
        let blocking = Blocking::new(move |job| {
            if let Err(flume::TrySendError::Full(Some(job))) = submit.try_send(Some(job)) {
                // Rather on this core than never.
                job();
            }
        });
        Ok(Helper { blocking, end, thread })
    }

    /// Ends the thread once everything handed to it is done. It does not wait for every [`Blocking`] to go: a task that
    /// ends with its executor, in the middle of an I/O, leaks what it holds.
    pub fn stop(self) {
        // Without a thread there is nothing to end, and one that panicked has said so.
        let _ = self.end.send(None);
        let _ = self.thread.join();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::*;

    #[test]
    fn it_ends_after_its_work_though_somebody_could_still_hand_it_some() {
        let helper = Helper::start("helper", 0, Nice::No).unwrap();
        let leaked = helper.blocking.clone();
        let done = Arc::new(AtomicBool::new(false));
        let noted = Arc::clone(&done);
        leaked.start(move || {
            std::thread::sleep(Duration::from_millis(20));
            noted.store(true, Ordering::SeqCst);
        });
        helper.stop();
        assert!(done.load(Ordering::SeqCst));
        drop(leaked);
    }
}
