//! The helper thread: what would block a core (files, syncs) runs there, one piece after another.

use std::thread::JoinHandle;

use crate::io::{Blocking, Job};

/// Pieces of work that may wait; each awaiting task has at most one, so this is never reached in practice.
const QUEUE_LEN: usize = 4096;

/// The thread, to be joined after the last [`Blocking`] is gone.
pub struct Helper {
    pub blocking: Blocking,
    thread: JoinHandle<()>,
}

impl Helper {
    /// Starts the thread on `core`, which should not be the writer's: what it waits for is mostly the disk, but what it
    /// computes must not delay appends.
    pub fn start(core: usize) -> std::io::Result<Helper> {
        let (submit, jobs) = flume::bounded::<Job>(QUEUE_LEN);
        let thread = std::thread::Builder::new().name("kerolox-helper".into()).spawn(move || {
            // Not pinned is no fault, only slower.
            core_affinity::set_for_current(core_affinity::CoreId { id: core });
            while let Ok(job) = jobs.recv() {
                job();
            }
        })?;
        let blocking = Blocking::new(move |job| {
            if let Err(flume::TrySendError::Full(job)) = submit.try_send(job) {
                // Rather on this core than never.
                job();
            }
        });
        Ok(Helper { blocking, thread })
    }

    /// Ends the thread once everything handed to it is done.
    pub fn stop(self) {
        drop(self.blocking);
        let _ = self.thread.join();
    }
}
