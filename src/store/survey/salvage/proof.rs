//! What the store itself proves to be lost beyond the regions between saved records: it says how far its log went, and its
//! queues lead to messages that are not there.

use super::{Lost, Plan, RECORD_MIN, Salvaged, Seen};
use crate::format::checkpoint::Checkpoint;
use crate::io::read_if_present;
use crate::store::open_error::{OpenError, io_at};
use crate::store::progress::Progress;
use crate::store::survey::files::{QueueEntry, StoreDir};
use crate::store::survey::inspect::bounds;
use crate::store::survey::units::UnitReader;
use crate::store::survey::walk::RecordReader;

/// Units of light queues lead to messages of other topics (store.md 3.6).
const LIGHT_QUEUE_PREFIX: &str = "%LMQ%";

/// Adds it to what was saved and lost.
pub(super) fn add(dir: &StoreDir, plan: &Plan, salvaged: &mut Salvaged) -> Result<(), OpenError> {
    let log_min = dir.log_min();
    let mut lose = |phy: u64, end: u64, why: String| {
        if phy < end {
            salvaged.lost.push(Lost { phy, len: end - phy, why, messages_of_one_queue: 0 });
            salvaged.lost_bytes += end - phy;
        }
    };
    lose(log_min, salvaged.log_start, "no whole record is left in the oldest segments".into());
    let flushed = dir.layout.flushed();
    let flushed = Progress::load(&flushed).map_err(io_at(&flushed))?.at_least.0;
    lose(salvaged.log_end, flushed, format!("kerolox/flushed says that the log was on stable storage up to {flushed}"));
    let checkpoint = dir.layout.checkpoint();
    let checkpoint = read_if_present(&checkpoint).map_err(io_at(&checkpoint))?;
    let confirm = checkpoint.and_then(|bytes| Checkpoint::decode(&bytes)).map_or(0, |checkpoint| checkpoint.confirm);
    lose(salvaged.log_end.max(flushed), confirm, format!("the checkpoint says that the log reached {confirm}"));
    let mut records = RecordReader::new(dir);
    for queue in &dir.queues {
        let seen = plan.queues.get(&*queue.key.topic).and_then(|ids| ids.get(&(queue.key.queue_id as i32)));
        salvaged.lost_messages += leading_nowhere(dir, queue, seen.copied(), &mut records)?;
    }
    salvaged.lost.sort_by_key(|lost| lost.phy);
    Ok(())
}

/// Units of a queue outside the numbers that are accounted for, which lead to no message of it.
fn leading_nowhere(
    dir: &StoreDir,
    queue: &QueueEntry,
    seen: Option<Seen>,
    records: &mut RecordReader<'_>,
) -> Result<u64, OpenError> {
    let in_files = bounds(dir, queue)?;
    let accounted = seen.map_or(in_files.end..in_files.end, |seen| seen.first..seen.next);
    let before = in_files.start..accounted.start.min(in_files.end);
    let behind = accounted.end.max(in_files.start)..in_files.end;
    let folder = dir.queue_dir(&queue.key);
    let is_light = queue.key.topic.starts_with(LIGHT_QUEUE_PREFIX);
    let (mut units, mut count) = (UnitReader::new(dir, queue), 0);
    for offset in before.chain(behind) {
        let Some(unit) = units.unit(offset).map_err(io_at(&folder))? else { continue };
        let may_lead = unit.is_written() && !unit.is_pre_blank() && u64::from(unit.len) >= RECORD_MIN;
        if !may_lead || unit.phy.0 < dir.log_min() || i64::try_from(unit.phy.0).is_err() {
            continue;
        }
        // A file that the disk does not give holds nothing that was saved.
        let found = records.at_unit(&unit).ok().flatten();
        let is_its_own = found.is_some_and(|view| {
            view.check_crc()
                && (is_light || (view.topic() == &*queue.key.topic && view.queue_id() == queue.key.queue_id as i32))
        });
        count += u64::from(!is_its_own);
    }
    Ok(count)
}
