//! What a scan does with each record: its queue first, then the index.

use std::sync::Arc;

use super::super::open_error::OpenError;
use super::super::opening::Opening;
use super::super::queues::QueueView;
use super::ScanError;
use super::index::IndexRebuild;
use super::queues::{QueueRebuild, Taken};
use crate::format::record::{RecordView, sys_flag};
use crate::io::SharedMap;
use crate::store::clean_stop::found_at_start;
use crate::store::progress::CleanStop;
use crate::types::PhyOffset;

/// The derived data of one recovery.
pub struct Rebuild<'a> {
    pub queues: QueueRebuild<'a>,
    pub index: IndexRebuild<'a>,
    /// Records met by the last scan.
    pub records: u64,
}

impl<'a> Rebuild<'a> {
    pub fn new(queues: QueueRebuild<'a>, index: IndexRebuild<'a>) -> Rebuild<'a> {
        Rebuild { queues, index, records: 0 }
    }

    /// Makes ready for a scan from `from`, of which an earlier one did the part up to `at`.
    pub fn start_at(&mut self, from: PhyOffset, at: PhyOffset) {
        self.queues.start_at(from, at);
        self.index.start();
        self.records = 0;
    }

    /// Gives the next record of the log a second chance to be dispatched.
    pub fn take(&mut self, view: &RecordView<'_>) -> Result<Taken, ScanError> {
        self.records += 1;
        let transaction = view.sys_flag() & sys_flag::TRANSACTION_MASK;
        if transaction != sys_flag::TRANSACTION_PREPARED && transaction != sys_flag::TRANSACTION_ROLLBACK {
            // Before the index: a record that turns out to be damaged, or nobody's, leaves no trace there.
            let taken = self.queues.take(view)?;
            if taken != Taken::InItsQueue {
                return Ok(taken);
            }
        } else if self.queues.is_old(view) {
            return Ok(Taken::Retired);
        }
        if transaction != sys_flag::TRANSACTION_ROLLBACK {
            self.index.take(view)?;
        }
        Ok(Taken::InItsQueue)
    }

    /// Brings what was derived so far onto stable storage.
    pub fn sync(&mut self, opening: &Opening) -> Result<(), OpenError> {
        self.queues.sync(opening)?;
        opening.step()?;
        self.index.sync()
    }

    /// What the derived files hold now.
    pub fn derived(&self) -> CleanStop {
        let queues: &[Arc<QueueView>] = self.queues.all();
        let index: &[Arc<SharedMap>] = self.index.files();
        found_at_start(queues, index)
    }

    /// Cuts what leads beyond the log's end, and brings the rest onto stable storage.
    pub fn finish(&mut self, end: PhyOffset, opening: &Opening) -> Result<(), OpenError> {
        self.queues.finish(end, opening)?;
        opening.step()?;
        self.index.finish(end)
    }
}
