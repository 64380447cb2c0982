//! Commit log decisions: where a record goes, when to roll, which queue offset it gets, who waits for which flush,
//! where the log ends after a crash, and when its oldest segments go.
//!
//! Floor 2, pure: events and bytes in, decisions out. The writer core (and recovery) in `store` carries them out.

mod disk_level;
mod flush_rule;
mod group_commit;
mod log_end;
mod retention;
mod scan;

pub use disk_level::{DiskGuard, DiskLevel, DiskRule};
pub use flush_rule::FlushRule;
pub use group_commit::{Action, Event, GroupCommit, WaiterId};
pub use log_end::{LogEnd, Place, QueueCounters, RECORD_ROOM};
pub use retention::{Oldest, Pass, Retention, RetentionRule, Step, Trigger};
pub use scan::{
    Checksums, ScanEnd, Scanned, SegmentScan, find_next, find_record, is_cut_short, last_record, readable_records,
    records_by_length,
};
