//! Saves what bounds a recovery: the checkpoint and the flushed position, about once a second while they move. A task
//! on the control core; the writing is done on the helper thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use super::builder::DurableUpTo;
use super::disk_watch::StorePlace;
use super::layout::Layout;
use super::open::save_checkpoint;
use super::progress::Progress;
use super::shared::Shared;
use crate::format::checkpoint::Checkpoint;
use crate::io::Blocking;
use crate::types::Timestamp;

const INTERVAL: Duration = Duration::from_secs(1);
/// Failures to save are told this often, in ms.
const QUIET_MS: u64 = 10_000;

/// Lives on the control core.
pub struct Keeper {
    pub shared: Arc<Shared>,
    pub layout: Layout,
    pub place: StorePlace,
    pub blocking: Blocking,
    /// One a shard, and one of the index.
    pub durable_up_to: Vec<DurableUpTo>,
    pub index_full_up_to: Arc<AtomicI64>,
    pub checkpoint: Checkpoint,
}

impl Keeper {
    /// Runs until the executor ends.
    pub async fn run(mut self) {
        let (mut saved, mut quiet_until) = (None, 0);
        loop {
            crate::io::sleep(INTERVAL).await;
            let flushed = self.shared.flushed();
            let physic = self.shared.flushed_stored_at.load(Ordering::Acquire) as i64;
            // Units of records stored before this are synced, on every shard.
            let logics = self.durable_up_to.iter().map(|up_to| up_to.load(Ordering::Acquire)).min();
            let next = Checkpoint {
                physic: Timestamp(physic),
                logics: Timestamp(logics.unwrap_or(i64::MAX).min(physic)),
                index: Timestamp(self.index_full_up_to.load(Ordering::Acquire)),
                confirm: flushed.0,
                ..self.checkpoint
            };
            if saved == Some((flushed, next)) {
                continue;
            }
            self.checkpoint = next;
            let (layout, place, shared) = (self.layout.clone(), self.place.clone(), Arc::clone(&self.shared));
            let progress = Progress { flushed: flushed.0, stored_at: physic, clean: None };
            let done = self
                .blocking
                .run(move || {
                    // Messages came: a store that is not in its place takes no more of them.
                    place.check(&shared);
                    save_checkpoint(&layout, &next).map_err(|error| error.to_string())?;
                    progress.save(&layout.flushed()).map_err(|error| error.to_string())
                })
                .await;
            match done {
                Ok(()) => saved = Some((flushed, next)),
                // Tried again each second, also when nothing moves any more: the disk may have been full.
                Err(error) if crate::io::steady_ms() >= quiet_until => {
                    quiet_until = crate::io::steady_ms() + QUIET_MS;
                    tracing::error!(%error, "saving the checkpoint failed; a recovery would start further back (told once in ten seconds)");
                }
                Err(_) => {}
            }
        }
    }
}
