//! Delay levels: a message with a level waits in a queue of [`SCHEDULE_TOPIC`], and is then put where it was sent to.
//!
//! Each level has its own queue, so each queue falls due in its own order. The unit of a waiting message holds the time
//! it is due instead of a tag hash. [`deliver_level`] moves due messages on, one task a level, on the shard where
//! `node` starts it; it is at-least-once: the position moves only after a put has succeeded, and is saved from time to
//! time, as far as the copies are on stable storage. Only what can never be delivered is stepped over. Source: store.md
//! 10.1.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use super::marks::Marks;
use super::names::SCHEDULE_TOPIC;
use super::{Directory, SharedDirectory};
use crate::format::record::RecordView;
use crate::store::{
    GetStatus, Message, PutFlush, PutRefusal, PutStatus, QueueView, ReadError, Reader, ShardStore, TagsRule,
};
use crate::types::properties;
use crate::types::{PhyOffset, QueueOffset, TagsCode, Timestamp};

/// The levels of a broker that sets none.
pub const DEFAULT_LEVELS: &str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h";

/// The longest pause between two looks at a level.
const LOOK_MS_MAX: u64 = 500;
/// After a put that failed.
const RETRY_MS: u64 = 100;
/// While the store takes no messages: its disk is full, or it stops.
const REFUSED_RETRY_MS: u64 = 1000;
/// After something that will not mend itself soon.
const BROKEN_RETRY_MS: u64 = 10_000;
/// After messages of which none had to be waited for, so that other tasks of the core get their turn.
const YIELD_MS: u64 = 1;
/// Messages between two looks at the queue.
const DELIVER_COUNT_MAX: u64 = 256;
/// Copies of one level that are remembered one by one until they are on stable storage.
const MARK_COUNT_MAX: usize = 1024;

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

    /// Looks at the next unit.
    fn note(&self, due: TagsCode) {
        if self.waits_until.get().is_some() {
            return;
        }
        let due = Timestamp(due.0);
        if due > self.now && due <= self.due_max {
            self.waits_until.set(Some(due));
        } else {
            self.due_count.set(self.due_count.get() + 1);
        }
    }
}

/// What a look at the queue leads to.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// So many messages are due: put them one by one.
    Deliver { count: u64 },
    /// Nothing to put: go on from here, at once.
    Continue { from: QueueOffset },
    /// Nothing due before that many ms.
    Wait { ms: u64 },
}

/// What a look from one position found.
struct Look {
    status: GetStatus,
    /// Where the store says that the queue goes on.
    goes_on_at: QueueOffset,
    /// Ends of the queue.
    min: QueueOffset,
    max: QueueOffset,
}

fn next(look: &Look, units: &DueUnits) -> Next {
    match look.status {
        GetStatus::OffsetTooSmall => Next::Continue { from: look.min },
        GetStatus::OffsetOverflowBadly => Next::Continue { from: look.max },
        GetStatus::OffsetFoundNull => Next::Continue { from: look.goes_on_at.min(look.max) },
        _ if units.due_count.get() > 0 => Next::Deliver { count: units.due_count.get().min(DELIVER_COUNT_MAX) },
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
    levels: RefCell<Vec<LevelProgress>>,
}

#[derive(Debug, Default)]
struct LevelProgress {
    /// The next message to deliver.
    next: QueueOffset,
    /// The copies of all messages below it are on stable storage.
    safe: QueueOffset,
    /// How far it may be saved once more of the log is on stable storage; both fields grow from mark to mark. At most
    /// [`MARK_COUNT_MAX`]: then every other one is dropped, which only makes the saved position lag a little more.
    marks: VecDeque<Mark>,
}

#[derive(Debug)]
struct Mark {
    next: QueueOffset,
    /// End in the log of the copy of the message before `next`.
    copy_end: PhyOffset,
}

impl LevelProgress {
    /// `copy_end` is that of the copy last made; nothing if none was needed to get here.
    fn move_to(&mut self, next: QueueOffset, copy_end: Option<PhyOffset>) {
        if next < self.next {
            // The queue has lost its end.
            self.marks.retain(|mark| mark.next <= next);
            self.safe = self.safe.min(next);
        }
        self.next = next;
        match (copy_end, self.marks.back_mut()) {
            (Some(copy_end), _) => self.marks.push_back(Mark { next, copy_end }),
            (None, Some(last)) => last.next = next,
            (None, None) => self.safe = next,
        }
        if self.marks.len() > MARK_COUNT_MAX {
            let mut index = self.marks.len();
            self.marks.retain(|_| {
                index -= 1;
                // Counted from the newest, which stays.
                index.is_multiple_of(2)
            });
        }
    }

    fn safe(&mut self, flushed: PhyOffset) -> QueueOffset {
        while let Some(mark) = self.marks.pop_front_if(|mark| mark.copy_end <= flushed) {
            self.safe = mark.next;
        }
        self.safe
    }
}

impl DelayProgress {
    /// Starts from the saved positions: `(level, next queue offset)`.
    pub fn starting_at(saved: impl IntoIterator<Item = (i32, i64)>) -> DelayProgress {
        let progress = DelayProgress::default();
        for (level, next) in saved {
            if level > 0 {
                progress.step_to(level, QueueOffset(u64::try_from(next).unwrap_or(0)));
            }
        }
        progress
    }

    /// The next message of `level` to deliver.
    pub fn next(&self, level: i32) -> QueueOffset {
        let index = usize::try_from(level - 1).unwrap_or(usize::MAX);
        self.levels.borrow().get(index).map(|level| level.next).unwrap_or_default()
    }

    /// All levels from 1 on, as they may be saved while the log is on stable storage up to `flushed`: a position behind
    /// a copy that a loss of power can still take away would lose the message.
    pub fn saved_table(&self, flushed: PhyOffset) -> Vec<(i32, i64)> {
        let mut levels = self.levels.borrow_mut();
        let saved = levels.iter_mut().map(|level| i64::try_from(level.safe(flushed).0).unwrap_or(i64::MAX));
        (1..).zip(saved).collect()
    }

    /// The message before `next` has been put; its copy ends at `copy_end`.
    fn delivered(&self, level: i32, next: QueueOffset, copy_end: PhyOffset) {
        self.with_level(level, |level| level.move_to(next, Some(copy_end)));
    }

    /// Goes on at `next` without having put anything.
    fn step_to(&self, level: i32, next: QueueOffset) {
        self.with_level(level, |level| level.move_to(next, None));
    }

    fn with_level(&self, level: i32, change: impl FnOnce(&mut LevelProgress)) {
        let index = usize::try_from(level - 1).expect("a delay level is above 0");
        let mut levels = self.levels.borrow_mut();
        if levels.len() <= index {
            levels.resize_with(index + 1, LevelProgress::default);
        }
        change(&mut levels[index]);
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
    let Delivery { store, directory, levels, level, progress } = &delivery;
    let level = *level;
    let queue_index = usize::try_from(level - 1).expect("a delay level is above 0");
    let mut checked = false;
    let told = Cell::new(None);
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
                progress.step_to(level, inside);
                continue;
            }
        }
        let mut units = DueUnits::at(now(), levels.delay_ms(level));
        let offset = i64::try_from(from.0).unwrap_or(i64::MAX);
        // A look at the units alone: the records are read one by one, each at the place that its own unit names.
        let mut got = store.get(&queue, offset, 1, 1, &|due| {
            units.note(due);
            false
        });
        if got.status == GetStatus::UnitsCold {
            units = DueUnits::at(now(), levels.delay_ms(level));
            let note = |due| {
                units.note(due);
                false
            };
            match store.get_cold(&Reader::Delivery, &queue, offset, 1, 1, &note).await {
                Ok(read) => got = read,
                Err(error) => {
                    tracing::error!(level, queue_offset = from.0, %error, "units of delayed messages cannot be read");
                    sleep(BROKEN_RETRY_MS).await;
                    continue;
                }
            }
        }
        let goes_on_at = QueueOffset(u64::try_from(got.next_offset).unwrap_or(from.0));
        let look = Look { status: got.status, goes_on_at, min: queue.min(), max: queue.max() };
        match next(&look, &units) {
            Next::Continue { from: to } => {
                tracing::warn!(level, from = from.0, to = to.0, "a part of a delay queue is gone; stepped over");
                progress.step_to(level, to);
            }
            Next::Wait { ms } => sleep(ms).await,
            Next::Deliver { count } => {
                if let Some(ms) = delivery.deliver(&queue, from, count, &told).await {
                    sleep(ms).await;
                }
            }
        }
    }
}

/// What became of one message that is due.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    /// Put where it belongs; its copy ends there in the log.
    Put { copy_end: PhyOffset },
    /// The log has dropped it.
    Expired,
    /// It can never be delivered.
    Lost { why: String },
    /// To be tried again after that many ms.
    Stays { why: String, retry_ms: u64 },
}

impl Delivery {
    /// Moves `count` due messages from `from` on to where they belong, in their order; `Some(ms)` if the next look is to
    /// be made after that time only. `told`: the message of which it was told that it stays; once is enough.
    async fn deliver(
        &self,
        queue: &Arc<QueueView>,
        from: QueueOffset,
        count: u64,
        told: &Cell<Option<QueueOffset>>,
    ) -> Option<u64> {
        let level = self.level;
        let (mut put_any, mut expired_count) = (false, 0);
        for queue_offset in (from.0..from.0 + count).map(QueueOffset) {
            let next = queue_offset.advance(1);
            match self.move_on(queue, queue_offset).await {
                Fate::Put { copy_end } => {
                    put_any = true;
                    self.progress.delivered(level, next, copy_end);
                }
                Fate::Expired => {
                    expired_count += 1;
                    self.progress.step_to(level, next);
                }
                Fate::Lost { why } => {
                    tracing::error!(
                        level,
                        queue_offset = queue_offset.0,
                        why,
                        "a delayed message can never be delivered; stepped over"
                    );
                    self.progress.step_to(level, next);
                }
                Fate::Stays { why, retry_ms } => {
                    if told.replace(Some(queue_offset)) != Some(queue_offset) {
                        tracing::warn!(
                            level,
                            queue_offset = queue_offset.0,
                            why,
                            "a delayed message could not be put; trying again until it can"
                        );
                    }
                    return Some(retry_ms);
                }
            }
        }
        if expired_count > 0 {
            tracing::warn!(level, expired_count, from = from.0, "delayed messages left the log before they were put");
        }
        (!put_any).then_some(YIELD_MS)
    }

    async fn move_on(&self, queue: &Arc<QueueView>, queue_offset: QueueOffset) -> Fate {
        let phy = match self.store.phy_of(&Reader::Delivery, queue, queue_offset).await {
            Ok(Some(phy)) => phy,
            Ok(None) => return Fate::Expired,
            Err(error) => return unread(&error),
        };
        let record = match self.store.record_at(&Reader::Delivery, phy).await {
            Ok(record) => record,
            Err(error) => return unread(&error),
        };
        match waiting(&record) {
            Ok(record) => self.put(&record).await,
            Err(why) => Fate::Lost { why },
        }
    }

    async fn put(&self, record: &RecordView<'_>) -> Fate {
        let raw = record.properties();
        let Some((topic, queue_id)) = real_target(raw) else {
            return Fate::Lost { why: "it does not say where it was sent to".into() };
        };
        let directory = self.directory.load();
        let Some(queue) = real_queue(&directory, topic, queue_id).cloned() else {
            // It was deleted while the message waited: nobody can read it any more.
            return Fate::Lost { why: format!("there is no topic {topic} any more") };
        };
        if directory.births.is_old(topic, record.phy()) {
            return Fate::Lost { why: format!("the topic {topic} was deleted after it was sent, and made again") };
        }
        // Nobody waits for the copy; that of a sync topic is shown once it is flushed.
        let flush = PutFlush { topic: directory.topics.get(topic).and_then(|topic| topic.flush()), may_wait: false };
        drop(directory);
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
        match self.store.put_and_wait(std::slice::from_ref(&message), flush).await {
            Ok(outcome) => match outcome.status {
                PutStatus::Ok | PutStatus::FlushDiskTimeout => {
                    let len = outcome.record_lens.iter().map(|len| u64::from(*len)).sum();
                    Fate::Put { copy_end: outcome.phy.advance(len) }
                }
                PutStatus::Busy { .. } => stays("the store is busy"),
                // The next try finds no topic.
                PutStatus::QueueGone => stays("its topic was deleted meanwhile"),
                PutStatus::ServiceNotAvailable | PutStatus::SegmentNotCreated => stays("the store takes no messages"),
            },
            Err(refusal) => refused(refusal),
        }
    }
}

fn stays(why: impl Into<String>) -> Fate {
    Fate::Stays { why: why.into(), retry_ms: RETRY_MS }
}

/// Of a message whose record the store does not give out.
fn unread(error: &ReadError) -> Fate {
    match error {
        _ if error.is_expired() => Fate::Expired,
        // Not the record but the disk, or the limit of open files: it may mend. A record that the disk goes on not to give
        // is damaged, says the store after a few tries.
        ReadError::Io { .. } | ReadError::Busy { .. } => {
            Fate::Stays { why: error.to_string(), retry_ms: BROKEN_RETRY_MS }
        }
        ReadError::NotFlushed { .. } => stays(error.to_string()),
        ReadError::OutOfRange { .. } | ReadError::NoRecord { .. } | ReadError::Damaged { .. } => {
            Fate::Lost { why: error.to_string() }
        }
    }
}

/// Of a message that the store does not try to put.
fn refused(refusal: PutRefusal) -> Fate {
    match refusal {
        PutRefusal::MessageIllegal(why) => Fate::Lost { why },
        PutRefusal::PropertiesTooLong { len } => Fate::Lost { why: format!("its properties take {len} bytes") },
        PutRefusal::Overloaded { .. } => stays("the store is busy"),
        PutRefusal::NotAvailable(why) => Fate::Stays { why, retry_ms: REFUSED_RETRY_MS },
    }
}

/// The record that a unit of a schedule queue names, unless that is some other message.
fn waiting(record: &[u8]) -> Result<RecordView<'_>, String> {
    let record = RecordView::parse(record).map_err(|error| error.to_string())?;
    if record.topic() == SCHEDULE_TOPIC {
        Ok(record)
    } else {
        Err(format!("its unit names a message of the topic {}", record.topic()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looked(now: i64, delay_ms: i64, dues: &[i64]) -> DueUnits {
        let units = DueUnits::at(Timestamp(now), delay_ms);
        dues.iter().for_each(|due| units.note(TagsCode(*due)));
        units
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
    fn units_are_due_up_to_the_first_that_is_not() {
        let units = looked(1000, 500, &[900, 1000, 1001, 950]);
        assert_eq!(units.due_count.get(), 2);
        assert_eq!(wait_ms(&units), 1);
    }

    #[test]
    fn a_unit_due_later_than_its_level_allows_is_due_now() {
        assert_eq!(looked(1000, 500, &[1501, 1500]).due_count.get(), 1);
    }

    #[test]
    fn the_next_look_is_when_the_next_message_is_due_and_not_long_after_this_one() {
        assert_eq!(wait_ms(&looked(1000, 5000, &[])), 500);
        assert_eq!(wait_ms(&looked(1000, 5000, &[1030])), 30);
        assert_eq!(wait_ms(&looked(1000, 5000, &[5400])), 500);
    }

    #[test]
    fn what_is_gone_is_passed_over_and_nothing_else_is() {
        let (min, max, goes_on_at) = (QueueOffset(40), QueueOffset(100), QueueOffset(90));
        let decided = |status, dues: &[i64]| next(&Look { status, goes_on_at, min, max }, &looked(1000, 500, dues));
        assert_eq!(decided(GetStatus::NoMatchedMessage, &[900, 950, 1200]), Next::Deliver { count: 2 });
        assert_eq!(decided(GetStatus::NoMatchedMessage, &[900; 800]), Next::Deliver { count: DELIVER_COUNT_MAX });
        assert_eq!(decided(GetStatus::NoMatchedMessage, &[1200]), Next::Wait { ms: 200 });
        assert_eq!(decided(GetStatus::OffsetOverflowOne, &[]), Next::Wait { ms: 500 });
        assert_eq!(decided(GetStatus::NoMessageInQueue, &[]), Next::Wait { ms: 500 });
        assert_eq!(decided(GetStatus::OffsetTooSmall, &[]), Next::Continue { from: min });
        assert_eq!(decided(GetStatus::OffsetOverflowBadly, &[]), Next::Continue { from: max });
        assert_eq!(decided(GetStatus::OffsetFoundNull, &[]), Next::Continue { from: goes_on_at });
    }

    #[test]
    fn what_may_mend_is_tried_again_and_what_cannot_is_given_up() {
        let (phy, min, max) = (PhyOffset(50), PhyOffset(100), PhyOffset(200));
        assert_eq!(unread(&ReadError::OutOfRange { phy, min, max }), Fate::Expired);
        let behind = ReadError::OutOfRange { phy: PhyOffset(200), min, max };
        let damaged = ReadError::Damaged { phy, path: "segment".into() };
        let no_record = ReadError::NoRecord { phy, why: crate::format::record::BadRecord::Topic };
        for error in [behind, damaged, no_record] {
            assert!(matches!(unread(&error), Fate::Lost { .. }), "{error}");
        }
        let io = ReadError::Io { path: "segment".into(), source: std::io::ErrorKind::Other.into() };
        assert!(matches!(unread(&io), Fate::Stays { retry_ms: BROKEN_RETRY_MS, .. }));

        assert!(matches!(refused(PutRefusal::MessageIllegal("too large".into())), Fate::Lost { .. }));
        assert!(matches!(refused(PutRefusal::PropertiesTooLong { len: 40_000 }), Fate::Lost { .. }));
        let stages = crate::store::StageTimes { write_us: 0, flush_us: 0 };
        assert_eq!(refused(PutRefusal::Overloaded { stages }), stays("the store is busy"));
        let stopping = Fate::Stays { why: "stopping".into(), retry_ms: REFUSED_RETRY_MS };
        assert_eq!(refused(PutRefusal::NotAvailable("stopping".into())), stopping);
    }

    #[test]
    fn positions_are_kept_by_level() {
        let progress = DelayProgress::starting_at([(3, 100), (1, 2), (0, 9), (4, -1)]);
        progress.step_to(2, QueueOffset(7));
        assert_eq!(progress.saved_table(PhyOffset(0)), [(1, 2), (2, 7), (3, 100), (4, 0)]);
        assert_eq!(progress.next(3), QueueOffset(100));
        assert_eq!(progress.next(18), QueueOffset(0));
    }

    #[test]
    fn a_position_is_saved_only_once_the_copies_before_it_are_flushed() {
        let progress = DelayProgress::starting_at([(1, 5)]);
        let saved = |flushed| progress.saved_table(PhyOffset(flushed))[0].1;
        progress.delivered(1, QueueOffset(6), PhyOffset(1000));
        progress.delivered(1, QueueOffset(7), PhyOffset(2000));
        // Stepped over: needs no flush of its own, but must not overtake the copies before it.
        progress.step_to(1, QueueOffset(9));
        assert_eq!(progress.next(1), QueueOffset(9));
        assert_eq!(saved(999), 5);
        assert_eq!(saved(1000), 6);
        assert_eq!(saved(1999), 6);
        assert_eq!(saved(2000), 9);
        progress.step_to(1, QueueOffset(10));
        assert_eq!(saved(2000), 10);
    }

    #[test]
    fn many_copies_that_are_not_flushed_take_bounded_memory_and_never_save_too_much() {
        const COUNT: u64 = 100_000;
        let progress = DelayProgress::default();
        for offset in 1..=COUNT {
            progress.delivered(1, QueueOffset(offset), PhyOffset(offset * 100));
            assert!(progress.levels.borrow()[0].marks.len() <= MARK_COUNT_MAX);
        }
        for flushed in (0..=COUNT * 100).step_by(77_777) {
            let saved = progress.saved_table(PhyOffset(flushed))[0].1 as u64;
            assert!(saved * 100 <= flushed, "{saved} saved with {flushed} flushed");
        }
        assert_eq!(progress.saved_table(PhyOffset(COUNT * 100)), [(1, COUNT as i64)]);
    }

    #[test]
    fn a_queue_that_lost_its_end_takes_the_saved_position_back_with_it() {
        let progress = DelayProgress::starting_at([(1, 50)]);
        progress.delivered(1, QueueOffset(51), PhyOffset(100));
        progress.step_to(1, QueueOffset(40));
        assert_eq!(progress.saved_table(PhyOffset(1000)), [(1, 40)]);
    }
}
