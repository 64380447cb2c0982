//! Delay levels: a message with a level waits in a queue of [`SCHEDULE_TOPIC`], and is then put where it was sent to.
//!
//! Each level has its own queue, so each queue falls due in its own order. The unit of a waiting message holds the time
//! it is due instead of a tag hash. [`deliver_level`] moves due messages on, one task a level, on the shard where
//! `node` starts it; it is at-least-once: the position moves only after a put has succeeded, and is saved from time to
//! time. Source: store.md 10.1.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::marks::Marks;
use super::names::SCHEDULE_TOPIC;
use super::{Directory, SharedDirectory};
use crate::format::record::RecordView;
use crate::store::{GetStatus, Message, PutStatus, QueueView, ShardStore, TagsRule};
use crate::types::properties;
use crate::types::{QueueOffset, TagsCode, Timestamp};

/// The levels of a broker that sets none.
pub const DEFAULT_LEVELS: &str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h";

/// The longest pause between two looks at a level.
const LOOK_MS_MAX: u64 = 500;
/// After a put that failed.
const RETRY_MS: u64 = 100;
/// After something that will not mend itself soon.
const BROKEN_RETRY_MS: u64 = 10_000;
const BATCH_COUNT: i32 = 32;
const BATCH_BYTES: u32 = 256 * 1024;

/// The delay of each level, in ms; level 1 is the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DelayLevels(Vec<i64>);

/// A text of levels that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LevelsError {
    /// No level at all.
    None,
    /// Not a whole number above zero with one of the units s, m, h, d.
    Level { found: String },
}

impl fmt::Display for LevelsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LevelsError::None => f.write_str("no delay level given; write them like \"1s 5s 10m 2h\""),
            LevelsError::Level { found } => write!(f, "delay level \"{found}\" is not a number with s, m, h or d"),
        }
    }
}

impl std::error::Error for LevelsError {}

impl Default for DelayLevels {
    fn default() -> DelayLevels {
        DelayLevels::parse(DEFAULT_LEVELS).expect("the default levels are well formed")
    }
}

impl DelayLevels {
    /// Reads levels such as `1s 5s 10m 2h`.
    ///
    /// # Errors
    /// [`LevelsError`] for an empty text, and for a word that is no delay.
    pub fn parse(text: &str) -> Result<DelayLevels, LevelsError> {
        let levels = text.split_whitespace().map(level_ms).collect::<Result<Vec<i64>, LevelsError>>()?;
        if levels.is_empty() { Err(LevelsError::None) } else { Ok(DelayLevels(levels)) }
    }

    /// Levels of these delays, in ms; the settings have checked that there is one at least.
    pub fn from_ms(delays: Vec<i64>) -> DelayLevels {
        DelayLevels(delays)
    }

    /// The highest level.
    pub fn max(&self) -> i32 {
        i32::try_from(self.0.len()).unwrap_or(i32::MAX)
    }

    /// `level` brought down to the highest one there is.
    pub fn clamp(&self, level: i32) -> i32 {
        level.min(self.max())
    }

    /// The delay of a level, in ms; of one that does not exist a second, as Java has it.
    pub fn delay_ms(&self, level: i32) -> i64 {
        let index = usize::try_from(level).unwrap_or(0).wrapping_sub(1);
        self.0.get(index).copied().unwrap_or(1000)
    }
}

fn level_ms(word: &str) -> Result<i64, LevelsError> {
    let bad = || LevelsError::Level { found: word.to_owned() };
    let unit_ms = match word.as_bytes().last() {
        Some(b's') => 1000,
        Some(b'm') => 60_000,
        Some(b'h') => 3_600_000,
        Some(b'd') => 86_400_000,
        _ => return Err(bad()),
    };
    let count: i64 = word[..word.len() - 1].parse().map_err(|_| bad())?;
    count.checked_mul(unit_ms).filter(|ms| *ms > 0).ok_or_else(bad)
}

/// A message's detour through the schedule queue of its level.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Detour {
    /// Queue of [`SCHEDULE_TOPIC`].
    pub queue_index: usize,
    pub delay_ms: i64,
    /// Properties to append to those of the message: where it wanted to go and, if its level was too high, the level it
    /// got.
    pub added: String,
}

/// Where a message of `level` (above 0) to queue `queue_id` of `topic` waits.
pub(super) fn detour(levels: &DelayLevels, level: i32, topic: &str, queue_id: u32) -> Detour {
    let clamped = levels.clamp(level);
    let mut added = String::with_capacity(topic.len() + 48);
    properties::push(&mut added, properties::REAL_TOPIC, topic);
    let mut digits = itoa::Buffer::new();
    properties::push(&mut added, properties::REAL_QID, digits.format(queue_id));
    if clamped != level {
        properties::push(&mut added, properties::DELAY, digits.format(clamped));
    }
    Detour {
        queue_index: usize::try_from(clamped - 1).expect("a delay level is above 0"),
        delay_ms: levels.delay_ms(clamped),
        added,
    }
}

/// Looks along the units of a level's queue, in their order, for those that are due; the first that is not ends the
/// look.
struct DueUnits {
    now: Timestamp,
    /// A unit due later than this is due now: its time was written by another clock or under longer levels.
    due_max: Timestamp,
    due_count: Cell<u64>,
    waits_until: Cell<Option<Timestamp>>,
}

impl DueUnits {
    fn at(now: Timestamp, delay_ms: i64) -> DueUnits {
        DueUnits { now, due_max: now.plus_ms(delay_ms), due_count: Cell::new(0), waits_until: Cell::new(None) }
    }

    fn takes(&self, due: TagsCode) -> bool {
        if self.waits_until.get().is_some() {
            return false;
        }
        let due = Timestamp(due.0);
        if due > self.now && due <= self.due_max {
            self.waits_until.set(Some(due));
            return false;
        }
        self.due_count.set(self.due_count.get() + 1);
        true
    }
}

/// What a look at the queue leads to.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// The records found are due: put them one by one.
    Deliver,
    /// The units are not in memory: read them in first.
    Warm,
    /// Nothing to put: go on from here, at once.
    Continue { from: QueueOffset },
    /// Nothing due before that many ms.
    Wait { ms: u64 },
}

/// What a look from one position found.
struct Look {
    status: GetStatus,
    from: QueueOffset,
    /// Behind the last unit looked at.
    looked_to: QueueOffset,
    /// Ends of the queue.
    min: QueueOffset,
    max: QueueOffset,
}

fn next(look: &Look, units: &DueUnits) -> Next {
    let Look { from, looked_to, min, max, .. } = *look;
    match look.status {
        GetStatus::Found => Next::Deliver,
        GetStatus::UnitsCold => Next::Warm,
        GetStatus::OffsetTooSmall => Next::Continue { from: min },
        GetStatus::OffsetOverflowBadly => Next::Continue { from: max },
        // Units that are due but whose records the log has dropped: nothing is left to deliver of them. If one that is
        // not due was seen behind them, only those that were looked at before it are known to be due.
        GetStatus::MessageWasRemoving if units.waits_until.get().is_none() => Next::Continue { from: looked_to },
        GetStatus::MessageWasRemoving if units.due_count.get() > 0 => {
            Next::Continue { from: from.advance(units.due_count.get()) }
        }
        _ => Next::Wait { ms: wait_ms(units) },
    }
}

/// Until the next look: exactly until the first message is due, but not longer than a clock may be trusted.
fn wait_ms(units: &DueUnits) -> u64 {
    // Of an empty queue the next message will have its whole delay before it, which is a second at least.
    let Some(due) = units.waits_until.get() else { return LOOK_MS_MAX };
    u64::try_from(due.0.saturating_sub(units.now.0)).map_or(LOOK_MS_MAX, |ms| ms.clamp(1, LOOK_MS_MAX))
}

/// Where a waiting message goes: the topic and queue that its properties name.
fn real_target(raw: &str) -> Option<(&str, i32)> {
    let topic = properties::get(raw, properties::REAL_TOPIC)?;
    let queue_id = properties::get(raw, properties::REAL_QID)?.parse().ok()?;
    Some((topic, queue_id))
}

/// The queue for `queue_id`, or, if the topic has fewer queues than when the message was sent, one that it still has.
fn real_queue<'a>(directory: &'a Directory, topic: &str, queue_id: i32) -> Option<&'a Arc<QueueView>> {
    let queues = &directory.topics.get(topic)?.queues;
    let index = usize::try_from(queue_id).unwrap_or(0);
    if queues.is_empty() { None } else { queues.get(index % queues.len()) }
}

/// How far each level has been delivered; read by `node` when it saves `delayOffset.json`.
#[derive(Debug, Default)]
pub struct DelayProgress {
    next: RefCell<Vec<QueueOffset>>,
}

impl DelayProgress {
    /// Starts from the saved positions: `(level, next queue offset)`.
    pub fn starting_at(saved: impl IntoIterator<Item = (i32, i64)>) -> DelayProgress {
        let progress = DelayProgress::default();
        for (level, next) in saved {
            if level > 0 {
                progress.set(level, QueueOffset(u64::try_from(next).unwrap_or(0)));
            }
        }
        progress
    }

    /// The next message of `level` to deliver.
    pub fn next(&self, level: i32) -> QueueOffset {
        let index = usize::try_from(level - 1).unwrap_or(usize::MAX);
        self.next.borrow().get(index).copied().unwrap_or_default()
    }

    /// All levels from 1 on, as they are saved.
    pub fn table(&self) -> Vec<(i32, i64)> {
        let next = self.next.borrow();
        (1..).zip(next.iter().map(|offset| i64::try_from(offset.0).unwrap_or(i64::MAX))).collect()
    }

    fn set(&self, level: i32, to: QueueOffset) {
        let index = usize::try_from(level - 1).expect("a delay level is above 0");
        let mut next = self.next.borrow_mut();
        if next.len() <= index {
            next.resize(index + 1, QueueOffset::default());
        }
        next[index] = to;
    }
}

/// What the delivery of one level needs.
pub struct Delivery {
    pub store: ShardStore,
    pub directory: SharedDirectory,
    pub levels: DelayLevels,
    pub level: i32,
    pub progress: Rc<DelayProgress>,
}

/// Delivers the messages of one level for ever; `node` starts one such task a level, a second after the sockets, and
/// drops it at stop.
///
/// `sleep` waits that many ms; `now` reads the broker's clock.
pub async fn deliver_level<S: Future<Output = ()>>(
    delivery: Delivery,
    now: impl Fn() -> Timestamp,
    sleep: impl Fn(u64) -> S,
) {
    let Delivery { store, directory, levels, level, progress } = delivery;
    let queue_index = usize::try_from(level - 1).expect("a delay level is above 0");
    let mut checked = false;
    loop {
        let queue =
            directory.load().topics.get(SCHEDULE_TOPIC).and_then(|topic| topic.queues.get(queue_index).cloned());
        let Some(queue) = queue else {
            sleep(BROKEN_RETRY_MS).await;
            continue;
        };
        let from = progress.next(level);
        if !checked {
            checked = true;
            let inside = from.clamp(queue.min(), queue.max().max(queue.min()));
            if inside != from {
                tracing::warn!(level, saved = from.0, now = inside.0, "delay position lay outside its queue");
                progress.set(level, inside);
                continue;
            }
        }
        let units = DueUnits::at(now(), levels.delay_ms(level));
        let offset = i64::try_from(from.0).unwrap_or(i64::MAX);
        let got = store.get(&queue, offset, BATCH_COUNT, BATCH_BYTES, &|due| units.takes(due));
        let looked_to = QueueOffset(u64::try_from(got.next_offset).unwrap_or(from.0));
        let look = Look { status: got.status, from, looked_to, min: queue.min(), max: queue.max() };
        match next(&look, &units) {
            Next::Warm => {
                if let Err(error) = store.warm(&queue, offset).await {
                    tracing::error!(level, queue_offset = from.0, %error, "units of delayed messages cannot be read");
                    sleep(BROKEN_RETRY_MS).await;
                }
            }
            Next::Continue { from } => progress.set(level, from),
            Next::Wait { ms } => sleep(ms).await,
            Next::Deliver => {
                let mut resident = BytesMut::with_capacity(got.found.total_len());
                let records = if got.found.copy_if_resident(&mut resident) {
                    Ok(resident.freeze())
                } else {
                    got.found.load().await
                };
                let pause = match records {
                    Ok(records) => put_all(&store, &directory, &progress, level, &records).await,
                    Err(error) => {
                        tracing::error!(level, queue_offset = from.0, %error, "a delayed message cannot be read");
                        Some(BROKEN_RETRY_MS)
                    }
                };
                if let Some(ms) = pause {
                    sleep(ms).await;
                }
            }
        }
    }
}

/// Puts due records where they belong, in their order; `Some(ms)` if one could not be put and is to be tried again
/// after that time.
async fn put_all(
    store: &ShardStore,
    directory: &SharedDirectory,
    progress: &DelayProgress,
    level: i32,
    records: &Bytes,
) -> Option<u64> {
    let mut rest: &[u8] = records;
    while !rest.is_empty() {
        let record = match RecordView::parse(rest) {
            Ok(record) => record,
            Err(error) => {
                // The store checks what it gives out, so this is a fault of ours: stop here, loudly, rather than lose
                // messages.
                tracing::error!(level, %error, "a delayed record is malformed");
                return Some(BROKEN_RETRY_MS);
            }
        };
        rest = &rest[record.total_len() as usize..];
        let queue_offset = record.queue_offset();
        if let Err(why) = put_one(store, directory, &record).await {
            tracing::warn!(
                level,
                queue_offset = queue_offset.0,
                why,
                "a delayed message could not be put; trying again"
            );
            return Some(RETRY_MS);
        }
        progress.set(level, queue_offset.advance(1));
    }
    None
}

async fn put_one(store: &ShardStore, directory: &SharedDirectory, record: &RecordView<'_>) -> Result<(), &'static str> {
    let raw = record.properties();
    let target = real_target(raw).and_then(|(topic, queue_id)| real_queue(&directory.load(), topic, queue_id).cloned());
    let Some(queue) = target else {
        // Its topic was deleted while it waited: nobody can read it any more.
        tracing::warn!(queue_offset = record.queue_offset().0, "a delayed message names no topic that exists; dropped");
        return Ok(());
    };
    let marks = Marks::scan(raw);
    // The stored text goes on as it is, DELAY and REAL_* included: so do Java brokers, and consumers may read them.
    let message = Message {
        queue: &queue,
        flag: record.flag(),
        sys_flag: record.sys_flag(),
        born_timestamp: record.born_timestamp(),
        born_host: record.born_host(),
        reconsume_times: record.reconsume_times(),
        prepared_transaction_offset: record.prepared_transaction_offset(),
        body: record.body(),
        properties: &[record.raw_properties()],
        tags: TagsRule::Code(TagsCode::of(marks.tags)),
        keys: marks.key_hashes(&queue.key().topic),
    };
    let outcome = store.put_and_wait(std::slice::from_ref(&message), false).await;
    match outcome.map(|outcome| outcome.status) {
        Ok(PutStatus::Ok | PutStatus::FlushDiskTimeout) => Ok(()),
        Ok(PutStatus::Busy { .. }) | Err(crate::store::PutRefusal::Overloaded { .. }) => Err("the store is busy"),
        Ok(_) | Err(_) => Err("the store refused it"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looked(now: i64, delay_ms: i64, dues: &[i64]) -> (Vec<bool>, DueUnits) {
        let units = DueUnits::at(Timestamp(now), delay_ms);
        let taken = dues.iter().map(|due| units.takes(TagsCode(*due))).collect();
        (taken, units)
    }

    #[test]
    fn the_default_levels_are_the_eighteen_of_java() {
        let levels = DelayLevels::default();
        assert_eq!(levels.max(), 18);
        assert_eq!(levels.delay_ms(1), 1000);
        assert_eq!(levels.delay_ms(3), 10_000);
        assert_eq!(levels.delay_ms(18), 7_200_000);
        assert_eq!(levels.clamp(99), 18);
        assert_eq!(levels.delay_ms(99), 1000);
        assert_eq!(levels.delay_ms(0), 1000);
    }

    #[test]
    fn levels_that_are_no_delays_are_named() {
        assert_eq!(DelayLevels::parse(" 2d  1s "), Ok(DelayLevels(vec![172_800_000, 1000])));
        assert_eq!(DelayLevels::parse(""), Err(LevelsError::None));
        for bad in ["5", "s", "0s", "-1s", "1x", "9223372036854775807h", "1é"] {
            assert_eq!(DelayLevels::parse(bad), Err(LevelsError::Level { found: bad.to_owned() }), "{bad}");
        }
    }

    #[test]
    fn a_delayed_message_keeps_its_target_in_its_properties() {
        let levels = DelayLevels::default();
        let detour_3 = detour(&levels, 3, "T", 2);
        assert_eq!(
            detour_3,
            Detour { queue_index: 2, delay_ms: 10_000, added: "REAL_TOPIC\u{1}T\u{2}REAL_QID\u{1}2\u{2}".to_owned() }
        );
        assert_eq!(real_target(&detour_3.added), Some(("T", 2)));
    }

    #[test]
    fn a_level_above_the_highest_is_brought_down_and_says_so() {
        let detour = detour(&DelayLevels::default(), 99, "T", 0);
        assert_eq!((detour.queue_index, detour.delay_ms), (17, 7_200_000));
        assert_eq!(properties::get(&format!("DELAY\u{1}99\u{2}{}", detour.added), properties::DELAY), Some("18"));
    }

    #[test]
    fn a_message_detoured_again_goes_to_its_latest_target() {
        let first = detour(&DelayLevels::default(), 1, "T", 2);
        let second = detour(&DelayLevels::default(), 1, "%RETRY%G", 0);
        assert_eq!(real_target(&format!("{}{}", first.added, second.added)), Some(("%RETRY%G", 0)));
    }

    #[test]
    fn units_are_taken_up_to_the_first_that_is_not_due() {
        let (taken, units) = looked(1000, 500, &[900, 1000, 1001, 950]);
        assert_eq!(taken, [true, true, false, false]);
        assert_eq!(units.due_count.get(), 2);
        assert_eq!(wait_ms(&units), 1);
    }

    #[test]
    fn a_unit_due_later_than_its_level_allows_is_due_now() {
        let (taken, _) = looked(1000, 500, &[1501, 1500]);
        assert_eq!(taken, [true, false]);
    }

    #[test]
    fn the_next_look_is_when_the_next_message_is_due_and_not_long_after_this_one() {
        assert_eq!(wait_ms(&looked(1000, 5000, &[]).1), 500);
        assert_eq!(wait_ms(&looked(1000, 5000, &[1030]).1), 30);
        assert_eq!(wait_ms(&looked(1000, 5000, &[5400]).1), 500);
    }

    #[test]
    fn what_is_gone_is_passed_over_and_nothing_else_is() {
        let (min, max, from) = (QueueOffset(40), QueueOffset(100), QueueOffset(50));
        let decided = |status, dues: &[i64]| {
            let look = Look { status, from, looked_to: QueueOffset(90), min, max };
            next(&look, &looked(1000, 500, dues).1)
        };
        assert_eq!(decided(GetStatus::Found, &[900, 1200]), Next::Deliver);
        assert_eq!(decided(GetStatus::UnitsCold, &[]), Next::Warm);
        assert_eq!(decided(GetStatus::NoMatchedMessage, &[1200]), Next::Wait { ms: 200 });
        assert_eq!(decided(GetStatus::OffsetOverflowOne, &[]), Next::Wait { ms: 500 });
        assert_eq!(decided(GetStatus::MessageWasRemoving, &[900, 950]), Next::Continue { from: QueueOffset(90) });
        assert_eq!(decided(GetStatus::MessageWasRemoving, &[900, 950, 1200]), Next::Continue { from: QueueOffset(52) });
        assert_eq!(decided(GetStatus::OffsetTooSmall, &[]), Next::Continue { from: min });
        assert_eq!(decided(GetStatus::OffsetOverflowBadly, &[]), Next::Continue { from: max });
    }

    #[test]
    fn positions_are_kept_by_level() {
        let progress = DelayProgress::starting_at([(3, 100), (1, 2), (0, 9), (4, -1)]);
        progress.set(2, QueueOffset(7));
        assert_eq!(progress.table(), [(1, 2), (2, 7), (3, 100), (4, 0)]);
        assert_eq!(progress.next(3), QueueOffset(100));
        assert_eq!(progress.next(18), QueueOffset(0));
    }
}
