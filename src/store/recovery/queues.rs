//! Giving scanned records a second chance to be in their consume queues (rules R2 and R4).
//!
//! A unit that is there already is compared, a missing one is written. The records of a queue have to follow each other:
//! one that does not is damaged, or explains itself by what lies between; if what lies between is a damaged region, the
//! slots of the lost messages hold that region's place.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use super::super::births::Births;
use super::super::layout::Layout;
use super::super::open_error::{OpenError, io_at};
use super::super::opening::Opening;
use super::super::queue_folders::sync_queue_folders;
use super::super::queues::{QueueView, UnitFile, handle, queue_dir};
use super::super::shared::StoreSettings;
use super::damage::{Claim, Damage, Damaged};
use super::resume::PROGRESS_INTERVAL;
use super::unit_files::{
    cut_queue, drop_files, invalid, remove_files_behind, rewrite_unit, store_unit, sync_units, unit_in_files,
};
use super::{Gap, ScanError};
use crate::format::config_files::TopicsFile;
use crate::format::names;
use crate::format::record::{self, RecordView, sys_flag};
use crate::format::unit::{UNIT_LEN, Unit};
use crate::io::{Segment, SharedMap, disk};
use crate::log::readable_records;
use crate::types::{PhyOffset, QueueKey, QueueOffset, TagsCode, properties};

/// So many queues are written out by one call before each is synced: then a sync finds little left to do.
const WRITTEN_OUT_TOGETHER: usize = 64;
/// The one topic whose units hold a delivery time instead of a tag hash.
const SCHEDULE_TOPIC: &str = "SCHEDULE_TOPIC_XXXX";
/// Names of topics that brokers make for themselves and for groups begin so.
const SYSTEM_PREFIXES: [&str; 4] = ["RMQ_SYS_", "rmq_sys_", "%RETRY%", "%DLQ%"];
/// Names of light queues begin so; their units lead to messages of other topics (store.md 3.6).
const LIGHT_QUEUE_PREFIX: &str = "%LMQ%";

/// A record as its queue sees it.
#[derive(Clone, Copy, Debug)]
struct Place {
    offset: QueueOffset,
    unit: Unit,
}

/// What a scan has met of one queue.
#[derive(Clone, Debug, Default)]
struct Met {
    /// Its newest record, those in doubt aside; or the slot of a damaged one.
    newest: Option<Place>,
    /// The record behind that, whose queue offset does not follow: goes back and is in no unit, or leaves some out. It was
    /// given out once more (a topic that was deleted and made again, J1, J2), or is damaged. The queue's next record tells.
    doubtful: Option<Place>,
    /// The file that the newest unit was found in.
    file: Option<Arc<UnitFile>>,
}

/// What became of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Or in none, since its topic is in no list: it stays in the index, as after a kill the list counts for nothing.
    InItsQueue,
    /// Of an older generation of its topic: nothing leads to it.
    Retired,
    /// It says what cannot be: a damaged region by itself.
    Damaged,
}

/// Whose record it is.
enum Owner {
    Queue(usize),
    /// Of a topic that is in no list.
    Nobody,
    /// Of an older generation of its topic.
    Retired,
    Nonsense(String),
}

/// Writes the units of what is scanned.
pub struct QueueRebuild<'a> {
    layout: &'a Layout,
    settings: &'a StoreSettings,
    segments: &'a [Arc<Segment>],
    topics: Option<&'a TopicsFile>,
    births: &'a Births,
    queues: &'a mut Vec<Arc<QueueView>>,
    by_topic: HashMap<Arc<str>, Vec<(u32, usize)>>,
    /// Whose the last record was: the next is often of the same topic.
    last: Option<(Arc<str>, u32, usize)>,
    /// Where the scan began.
    from: PhyOffset,
    /// What the scan has met of each queue, by handle.
    met: Vec<Met>,
    pub damage: Damage,
    /// Folders in which it made consume queue files.
    made_in: BTreeSet<PathBuf>,
    /// Files that hold what was met since the last sync.
    touched: Vec<Arc<UnitFile>>,
    pub units_written: u64,
}

impl<'a> QueueRebuild<'a> {
    pub fn new(
        layout: &'a Layout,
        settings: &'a StoreSettings,
        segments: &'a [Arc<Segment>],
        (topics, births): (Option<&'a TopicsFile>, &'a Births),
        queues: &'a mut Vec<Arc<QueueView>>,
    ) -> QueueRebuild<'a> {
        let mut by_topic: HashMap<Arc<str>, Vec<(u32, usize)>> = HashMap::new();
        for (at, queue) in queues.iter().enumerate() {
            by_topic.entry(Arc::clone(&queue.key().topic)).or_default().push((queue.key().queue_id, at));
        }
        QueueRebuild {
            layout,
            settings,
            segments,
            topics,
            births,
            by_topic,
            last: None,
            from: PhyOffset(0),
            met: vec![Met::default(); queues.len()],
            damage: Damage::default(),
            made_in: BTreeSet::new(),
            touched: Vec::new(),
            queues,
            units_written: 0,
        }
    }

    /// Makes ready for a scan that begins at `from`, of which an earlier one did the part up to `at`.
    pub fn start_at(&mut self, from: PhyOffset, at: PhyOffset) {
        self.from = from;
        self.damage.clear();
        self.units_written = 0;
        for (queue, met) in self.queues.iter().zip(&mut self.met) {
            *met = Met::default();
            if at > from {
                met.newest = newest_before(queue, at).filter(|newest| newest.unit.phy >= from);
            }
        }
    }

    pub fn all(&self) -> &[Arc<QueueView>] {
        self.queues
    }

    /// Does the scan cover all there is? Then what a queue lacks before its first record met is not in the log.
    fn is_whole(&self) -> bool {
        self.from == self.segments[0].start()
    }

    /// The first record of which nobody knows yet whether it is damaged.
    pub fn first_in_doubt(&self) -> Option<PhyOffset> {
        self.met.iter().filter_map(|met| met.doubtful).map(|place| place.unit.phy).min()
    }

    /// Sees to it that the record is in its queue.
    pub fn take(&mut self, view: &RecordView<'_>) -> Result<Taken, ScanError> {
        let at = match self.owner(view) {
            Owner::Queue(at) => at,
            Owner::Nobody => return Ok(Taken::InItsQueue),
            Owner::Retired => return Ok(Taken::Retired),
            Owner::Nonsense(why) => {
                self.damaged(view.phy(), view.total_len(), why, None);
                return Ok(Taken::Damaged);
            }
        };
        let unit = Unit { phy: view.phy(), len: view.total_len(), tags: self.tags(view) };
        let place = Place { offset: view.queue_offset(), unit };
        if self.is_confirmed(at, place) {
            return Ok(Taken::InItsQueue);
        }
        self.settle(at, Some(place.offset))?;
        if let Some(why) = self.cannot_be(at, place) {
            self.damaged(unit.phy, unit.len, why, Some(Claim { queue: at, offset: place.offset }));
            return Ok(Taken::Damaged);
        }
        if let Some(other) = self.queue_leading_to(at, place) {
            let (says, unit_of) = (self.queues[at].key(), self.queues[other].key());
            let why = format!("the message says that its queue is {says}, but its unit is in that of {unit_of}");
            self.damaged(unit.phy, unit.len, why, Some(Claim { queue: other, offset: place.offset }));
            return Ok(Taken::Damaged);
        }
        let goes_back = self.met[at].newest.is_some_and(|newest| place.offset <= newest.offset);
        if goes_back && !is_in_files(&self.queues[at], place) {
            self.met[at].doubtful = Some(place);
        } else {
            self.place(at, place)?;
        }
        Ok(Taken::InItsQueue)
    }

    /// The common case: the unit is there, as it should be, and the record follows the queue's newest.
    fn is_confirmed(&mut self, at: usize, place: Place) -> bool {
        let (queue, met) = (&self.queues[at], &mut self.met[at]);
        let follows = met.newest.is_none_or(|newest| newest.offset.0.checked_add(1) == Some(place.offset.0));
        if met.doubtful.is_some() || !follows || place.offset >= queue.max() {
            return false;
        }
        let known = met.file.as_ref().filter(|file| (file.first()..file.end()).contains(&place.offset));
        let file = match known {
            Some(file) => file,
            None => {
                let files = queue.files();
                let Some(index) = files.partition_point(|file| file.first() <= place.offset).checked_sub(1) else {
                    return false;
                };
                self.touched.push(Arc::clone(&files[index]));
                met.file.insert(Arc::clone(&files[index]))
            }
        };
        let is_same = file.unit(place.offset) == Some(place.unit);
        if is_same {
            met.newest = Some(place);
        }
        is_same
    }

    /// Whose record this is, if that can be; a queue that is not there yet is made, empty.
    fn owner(&mut self, view: &RecordView<'_>) -> Owner {
        let Ok(queue_id) = u32::try_from(view.queue_id()) else {
            return Owner::Nonsense(format!("the message says that its queue id is {}", view.queue_id()));
        };
        let topic = view.topic();
        if self.is_old(view) {
            return Owner::Retired;
        }
        if let Some((last_topic, last_id, at)) = &self.last
            && *last_id == queue_id
            && **last_topic == *topic
        {
            return Owner::Queue(*at);
        }
        let known = self.by_topic.get_key_value(topic).and_then(|(topic, ids)| {
            ids.iter().find(|(id, _)| *id == queue_id).map(|(_, at)| (Arc::clone(topic), queue_id, *at))
        });
        if let Some(known) = known {
            let at = known.2;
            self.last = Some(known);
            return Owner::Queue(at);
        }
        if self.is_deleted(topic) {
            return Owner::Nobody;
        }
        if !is_folder_name(topic) {
            return Owner::Nonsense(format!("the message says that its topic is {topic:?}"));
        }
        let key = QueueKey::new(topic, queue_id);
        let at = self.queues.len();
        self.by_topic.entry(Arc::clone(&key.topic)).or_default().push((queue_id, at));
        self.queues.push(QueueView::new(key, handle(at)));
        self.met.push(Met::default());
        Owner::Queue(at)
    }

    /// Is it of an older generation of its topic (rule R15)?
    pub fn is_old(&self, view: &RecordView<'_>) -> bool {
        self.births.is_old(view.topic(), view.phy())
    }

    /// Which message a record of a damaged region says that it is.
    pub fn claim(&mut self, view: &RecordView<'_>) -> Option<Claim> {
        let transaction = view.sys_flag() & sys_flag::TRANSACTION_MASK;
        if transaction == sys_flag::TRANSACTION_PREPARED || transaction == sys_flag::TRANSACTION_ROLLBACK {
            return None;
        }
        match self.owner(view) {
            Owner::Queue(queue) => Some(Claim { queue, offset: view.queue_offset() }),
            Owner::Nobody | Owner::Retired | Owner::Nonsense(_) => None,
        }
    }

    /// Why the record cannot have its queue offset, if so (rule R2): the checksum covers the body alone, so any bytes may
    /// stand there.
    ///
    /// Whatever a unit confirms is right: Java may have lost count, and the consume queue files know.
    fn cannot_be(&self, at: usize, place: Place) -> Option<String> {
        let (queue, Place { offset, unit }) = (&self.queues[at], place);
        if is_in_files(queue, place) {
            return None;
        }
        let says = |why: &str| format!("the message says that its queue offset in {} is {offset}, {why}", queue.key());
        // Whatever passes is far from what a queue can hold, which is i64::MAX / 20.
        if offset.0 > most_messages(unit.phy) {
            return Some(says("but so many messages do not fit in the log before it"));
        }
        let before = offset.0.checked_sub(1).map(QueueOffset);
        let follows = self.met[at].newest.is_some_and(|newest| Some(newest.offset) == before);
        match self.unit_leading_to(queue, &unit) {
            // The units may be wrong instead: a slot too early (J3), or left over from a log that was cut (J4). Then they
            // are written anew.
            Some(told) if told != offset && !follows && self.is_among_sound_units(queue, told) => {
                Some(says(&format!("but its unit in the consume queue is that of {told}")))
            }
            _ => None,
        }
    }

    /// The queue offset whose unit leads to this record.
    fn unit_leading_to(&self, queue: &QueueView, unit: &Unit) -> Option<QueueOffset> {
        let max = queue.max();
        let newest = unit_in_files(queue, QueueOffset(max.0.checked_sub(1)?))?;
        if newest.phy < unit.phy {
            return None;
        }
        let at = first_leading_to(queue, unit.phy);
        unit_in_files(queue, at).filter(|found| (found.phy, found.len) == (unit.phy, unit.len)).map(|_| at)
    }

    /// Do the units beside this one lead to the messages that they are of, as far as the log still has them?
    fn is_among_sound_units(&self, queue: &QueueView, offset: QueueOffset) -> bool {
        let beside = [offset.0.checked_sub(1), offset.0.checked_add(1)].into_iter().flatten().map(QueueOffset);
        beside.filter_map(|at| Some((at, queue.units_from(at)?.get(0)))).all(|(at, unit)| {
            unit.is_pre_blank() || unit.phy < self.segments[0].start() || self.leads_to(queue, at, &unit)
        })
    }

    /// Decides about a record in doubt, knowing the queue's next (`None`: the scan is over).
    fn settle(&mut self, at: usize, next: Option<QueueOffset>) -> Result<(), ScanError> {
        let Some(doubtful) = self.met[at].doubtful.take() else { return Ok(()) };
        let newest = self.met[at].newest.map(|newest| newest.offset);
        let expected = newest.map_or(0, |newest| newest.0.saturating_add(1));
        let leaves_out = doubtful.offset.0 > expected;
        let takes_its_place = next.is_some_and(|next| next.0.checked_sub(1) == Some(expected));
        if leaves_out && !takes_its_place {
            if doubtful.offset.0 - expected == 1 {
                self.find_strayed(at, doubtful)?;
            }
            if self.is_explained(at, doubtful) {
                return self.place(at, doubtful);
            }
        }
        if !takes_its_place && let Some(phantom) = self.phantom_before(at, doubtful) {
            self.close_phantom(at, phantom)?;
            return self.place(at, doubtful);
        }
        if leaves_out && next.is_some_and(|next| doubtful.offset.0.checked_add(1) == Some(next.0)) {
            // The queue goes on behind it: what was left out is not in the log.
            let queue = self.queues[at].key().to_string();
            return Err(ScanError::Gap(Gap { queue, expected, found: doubtful.offset.0, phy: doubtful.unit.phy }));
        }
        // A repeated offset that the queue does not go on from, while it goes on from the one before, is none of its own.
        let is_passed_over =
            next.is_some_and(|next| next.0 == expected) && doubtful.offset.0.saturating_add(1) < expected;
        if !leaves_out && !takes_its_place && !is_passed_over {
            return self.place(at, doubtful);
        }
        let why = match (newest, next) {
            (Some(newest), Some(next)) => format!("but it lies between those of {newest} and {next}"),
            (Some(newest), None) => format!("but the one before it has {newest}"),
            (None, _) => "but it is the first of the queue in a log of which nothing is missing".to_owned(),
        };
        let (queue, offset) = (self.queues[at].key(), doubtful.offset);
        let why = format!("the message says that its queue offset in {queue} is {offset}, {why}");
        self.damaged(doubtful.unit.phy, doubtful.unit.len, why, Some(Claim { queue: at, offset }));
        Ok(())
    }

    pub fn settle_all(&mut self) -> Result<(), ScanError> {
        (0..self.met.len()).try_for_each(|at| self.settle(at, None))
    }

    /// One whole record that says what cannot be.
    fn damaged(&mut self, start: PhyOffset, len: u32, why: String, claim: Option<Claim>) {
        self.damage.add(Damaged {
            start,
            end: start.advance(u64::from(len)),
            why,
            claims: claim.into_iter().collect(),
            messages_max: 1,
            java_steps_over: true,
            is_listed: false,
        });
    }

    /// A topic that is in no list of topics was deleted, and its messages do not come back (rule R15). Without any list,
    /// as in the golden stores, nobody knows. Topics of the system need not be listed.
    fn is_deleted(&self, topic: &str) -> bool {
        let listed = self.topics.map(|file| &file.topics).filter(|topics| !topics.is_empty());
        !is_of_system(topic) && listed.is_some_and(|topics| !topics.contains_key(topic))
    }

    /// Sees to it that a queue has this unit.
    fn place(&mut self, at: usize, place: Place) -> Result<(), ScanError> {
        let (queue, Place { offset, unit }) = (Arc::clone(&self.queues[at]), place);
        let newest = self.met[at].newest.replace(place);
        let failed = || OpenError::from_io(queue_dir(&self.layout.consumequeue(), queue.key()));
        let found = queue.units_from(offset).map(|run| run.get(0));
        match found {
            Some(found) if found == unit => return Ok(()),
            Some(found) if found.phy == unit.phy => {
                // Torn within itself; what comes behind is looked at in its turn.
                rewrite_unit(&queue, offset, &unit).map_err(failed())?;
                self.touch(&queue, offset);
                self.units_written += 1;
                return Ok(());
            }
            // This record's offset was given out once more: its topic was deleted and made again, or Java lost count
            // (J1, J2). The newer message has it.
            Some(found) if found.phy > unit.phy && self.leads_to(&queue, offset, &found) => return Ok(()),
            _ => {}
        }
        if offset >= queue.max()
            && let Some(last) = queue.max().0.checked_sub(1).map(QueueOffset)
            && let Some(unit_of_last) = queue.units_from(last).map(|run| run.get(0))
            && unit_of_last.phy > unit.phy
            && self.leads_to(&queue, last, &unit_of_last)
        {
            // As above, with more messages than the newer count has reached.
            return Ok(());
        }
        if self.leaves_out(&queue, newest, place) && !self.close_gap(at, newest, place)? {
            // The scan met everything between the two, and no damage that explains it.
            self.met[at].newest = newest;
            self.met[at].doubtful = Some(place);
            return Ok(());
        }
        // Its files may change from here on.
        self.met[at].file = None;
        let before = offset.0.checked_sub(1).and_then(|before| unit_in_files(&queue, QueueOffset(before)));
        if newest.is_none() && self.is_whole() && before.is_some_and(|before| before.phy >= unit.phy) {
            // The log has nothing for the units before the queue's first message; these lead behind it (J3).
            drop_files(&queue).map_err(failed())?;
        }
        if offset < queue.max() {
            match found {
                // A unit that the log does not know.
                Some(_) => cut_queue(&queue, offset).map_err(failed())?,
                None if self.is_whole() => drop_files(&queue).map_err(failed())?,
                None => return Err(gap(&queue, place)),
            }
        }
        if offset > queue.max() {
            if !(self.is_whole() && newest.is_none()) {
                return Err(gap(&queue, place));
            }
            // The log begins in the middle of the queue.
            drop_files(&queue).map_err(failed())?;
        }
        self.push_unit(&queue, offset, &unit).map_err(failed())?;
        Ok(())
    }

    /// Does the record leave out messages that have to be in the log, or were damaged?
    fn leaves_out(&self, queue: &QueueView, newest: Option<Place>, place: Place) -> bool {
        let Some(before) = place.offset.0.checked_sub(1).map(QueueOffset) else { return false };
        match newest {
            Some(newest) => newest.offset < before,
            None => {
                let has_all = self.is_whole() && self.from == PhyOffset(0);
                let begins_later = unit_in_files(queue, before).is_some_and(|unit| unit.is_pre_blank());
                has_all && !begins_later && !is_in_files(queue, place)
            }
        }
    }

    /// Closes the slots between a queue's newest record and the next by units of the damaged regions that lie between.
    /// `false`: these do not explain it.
    fn close_gap(&mut self, at: usize, newest: Option<Place>, next: Place) -> Result<bool, OpenError> {
        if !self.is_explained_from(at, newest, next) {
            return Ok(false);
        }
        let (first, low) = gap_of(newest, self.from);
        let regions = self.damage.between(low, next.unit.phy);
        let mut units = Vec::new();
        let mut region = 0;
        for offset in first..next.offset.0 {
            let claimed =
                |region: &Damaged| region.claims.iter().any(|claim| (claim.queue, claim.offset.0) == (at, offset));
            // Units never lead back.
            region += regions[region..].iter().position(claimed).unwrap_or(0);
            units.push((QueueOffset(offset), regions[region].unit()));
        }
        for (offset, unit) in units {
            self.close_slot(at, offset, unit)?;
        }
        Ok(true)
    }

    fn is_explained(&self, at: usize, next: Place) -> bool {
        self.is_explained_from(at, self.met[at].newest, next)
    }

    /// Have the damaged regions between a queue's newest record and the next room for what is missing?
    fn is_explained_from(&self, at: usize, newest: Option<Place>, next: Place) -> bool {
        let (first, low) = gap_of(newest, self.from);
        let regions = self.damage.between(low, next.unit.phy);
        let explained = regions.iter().map(|region| region.messages_max).fold(0, u64::saturating_add);
        next.offset.0 - first <= explained && first <= self.queues[at].max().0
    }

    /// The queue whose unit leads to a record that says it is of queue `at`, where it does not fit.
    fn queue_leading_to(&self, at: usize, place: Place) -> Option<usize> {
        let (queue, newest) = (&self.queues[at], self.met[at].newest);
        let found = unit_in_files(queue, place.offset).filter(|found| !found.is_pre_blank() && found.len > 0);
        let follows = match newest {
            Some(newest) => newest.offset.0.checked_add(1) == Some(place.offset.0),
            None => place.offset.0 == 0,
        };
        if found.is_some_and(|found| found.phy == place.unit.phy) || (follows && found.is_none()) {
            return None;
        }
        let others = self.by_topic.get(&queue.key().topic)?.iter().map(|(_, other)| *other);
        others.filter(|other| *other != at).find(|other| is_in_files(&self.queues[*other], place))
    }

    /// Queue `at` lacks one message before `next`. Looks between its neighbours for the record that has this offset and says
    /// another queue, in which it does not fit; that one is damaged, and the other queue gets back what it took.
    fn find_strayed(&mut self, at: usize, next: Place) -> Result<(), ScanError> {
        let (missing, low) = gap_of(self.met[at].newest, self.from);
        let missing = QueueOffset(missing);
        let mut found: Vec<(usize, Place)> = Vec::new();
        for segment in self.segments.iter().filter(|segment| segment.end() > low && segment.start() < next.unit.phy) {
            let (from, to) = (low.max(segment.start()), next.unit.phy.min(segment.end()));
            for view in readable_records(segment.bytes(), segment.start(), from, to) {
                let is_listed = self.damage.holding(view.phy()).is_some();
                if view.queue_offset() == missing && !is_listed && !self.is_old(&view) {
                    let unit = Unit { phy: view.phy(), len: view.total_len(), tags: self.tags(&view) };
                    let queue = self.queue_said(&view).filter(|queue| *queue != at && self.could_stray(at, *queue));
                    found.extend(queue.map(|queue| (queue, Place { offset: missing, unit })));
                }
            }
        }
        let strayed = found.iter().find_map(|(queue, place)| {
            let others: Vec<Place> = found
                .iter()
                .filter(|(of, other)| of == queue && other.unit.phy != place.unit.phy)
                .map(|(_, other)| *other)
                .collect();
            self.has_strayed(at, *queue, *place, &others).map(|rightful| (*queue, *place, rightful))
        });
        let Some((queue, Place { unit, .. }, rightful)) = strayed else { return Ok(()) };
        let (says, lacks) = (Arc::clone(&self.queues[queue]), self.queues[at].key());
        let why = format!(
            "the message says that it is {missing} of {}, where it does not fit, and {lacks} lacks that one",
            says.key()
        );
        self.damaged(unit.phy, unit.len, why, Some(Claim { queue: at, offset: missing }));
        let failed = || OpenError::from_io(queue_dir(&self.layout.consumequeue(), says.key()));
        self.met[queue].doubtful = self.met[queue].doubtful.filter(|doubtful| doubtful.unit.phy != unit.phy);
        let has_taken = unit_in_files(&says, missing).is_some_and(|found| found.phy == unit.phy);
        match rightful {
            Some(rightful) if has_taken => {
                rewrite_unit(&says, missing, &rightful.unit).map_err(failed())?;
                self.touch(&says, missing);
                let newest = &mut self.met[queue].newest;
                *newest = newest.map(|newest| if newest.offset == missing { rightful } else { newest });
            }
            None if has_taken && says.max() == missing.advance(1) => {
                let newest = newest_before(&says, unit.phy);
                match newest {
                    Some(_) => cut_queue(&says, missing).map_err(failed())?,
                    None => drop_files(&says).map_err(failed())?,
                }
                self.met[queue] = Met { newest, ..Met::default() };
            }
            _ => {}
        }
        Ok(())
    }

    /// The next record behind this one that says that it is of the queue.
    fn next_said(&self, queue: usize, unit: Unit) -> Option<Place> {
        let from = unit.phy.advance(u64::from(unit.len));
        let mut views = self.segments.iter().filter(|segment| segment.end() > from).flat_map(|segment| {
            readable_records(segment.bytes(), segment.start(), from.max(segment.start()), segment.end())
        });
        let next = views.find(|view| is_of(view, &self.queues[queue]))?;
        let unit = Unit { phy: next.phy(), len: next.total_len(), tags: self.tags(&next) };
        Some(Place { offset: next.queue_offset(), unit })
    }

    /// The queue that a record says it is of, if the scan knows it.
    fn queue_said(&self, view: &RecordView<'_>) -> Option<usize> {
        let id = u32::try_from(view.queue_id()).ok()?;
        self.by_topic.get(view.topic())?.iter().find(|(of, _)| *of == id).map(|(_, at)| *at)
    }

    /// Can a message of queue `at` come to say the other? One field of it was damaged, not two.
    fn could_stray(&self, at: usize, other: usize) -> bool {
        let (own, other) = (self.queues[at].key(), self.queues[other].key());
        let differing = || own.topic.bytes().zip(other.topic.bytes()).filter(|(one, other)| one != other).count();
        own.topic == other.topic
            || (own.queue_id == other.queue_id && own.topic.len() == other.topic.len() && differing() == 1)
    }

    /// Does the record not fit in the queue that it says? Then: the one that has its place there, if there is one. `others`
    /// say that they are the same message of it.
    fn has_strayed(&self, at: usize, queue: usize, place: Place, others: &[Place]) -> Option<Option<Place>> {
        let said = &self.queues[queue];
        let unit_at = |offset: Option<u64>| {
            offset
                .and_then(|offset| unit_in_files(said, QueueOffset(offset)))
                .filter(|unit| unit.len > 0 && !unit.is_pre_blank())
        };
        let before = unit_at(place.offset.0.checked_sub(1));
        if let Some(other) = others.first() {
            // Two, of which one is of the queue that lacks it. Senders go round: the queues take turns as they did before.
            let said_was_first = match (before, self.met[at].newest) {
                (Some(before), Some(newest)) => before.phy < newest.unit.phy,
                _ => true,
            };
            let is_second = other.unit.phy < place.unit.phy;
            return (said_was_first == is_second).then_some(Some(*other));
        }
        let own = unit_at(Some(place.offset.0));
        if let Some(own) = own.filter(|own| own.phy != place.unit.phy && self.leads_to(said, place.offset, own)) {
            return Some(Some(Place { offset: place.offset, unit: own }));
        }
        // What the queue goes on with tells whether it has room for this one.
        match self.next_said(queue, place.unit) {
            Some(next) if next.offset == place.offset => Some(Some(next)),
            Some(next) if place.offset.0.checked_add(1) == Some(next.offset.0) => None,
            _ => Some(None),
        }
    }

    /// The slot between a queue's newest record and the next that no message ever had: Java counts a unit of zeros if the log
    /// is cut while a queue's last file is empty, and goes on behind it (J22). Such a slot is the first of a file.
    ///
    /// Its unit is that of the message before: who reads it finds another queue offset there, and steps over it.
    fn phantom_before(&self, at: usize, next: Place) -> Option<Place> {
        let newest = self.met[at].newest?;
        let skipped = newest.offset.advance(1);
        let is_first_of_file = skipped.0.is_multiple_of(self.settings.consumequeue_len / UNIT_LEN as u64);
        let follows = skipped.0.checked_add(1) == Some(next.offset.0) && skipped <= self.queues[at].max();
        (is_first_of_file && follows).then_some(Place { offset: skipped, unit: newest.unit })
    }

    fn close_phantom(&mut self, at: usize, phantom: Place) -> Result<(), OpenError> {
        let Place { offset, unit } = phantom;
        tracing::warn!(queue = %self.queues[at].key(), %offset,
            "the log has no message of this queue offset, which a Java broker skipped when it counted an empty unit; the reader steps over it");
        self.close_slot(at, offset, unit)?;
        self.met[at].newest = Some(phantom);
        Ok(())
    }

    /// Puts a damaged region's unit into a slot, unless one is there that leads into damage as well.
    fn close_slot(&mut self, at: usize, offset: QueueOffset, unit: Unit) -> Result<(), OpenError> {
        let queue = Arc::clone(&self.queues[at]);
        let failed = || OpenError::from_io(queue_dir(&self.layout.consumequeue(), queue.key()));
        if offset >= queue.max() {
            return self.push_unit(&queue, offset, &unit).map_err(failed());
        }
        let found = unit_in_files(&queue, offset).filter(|found| !found.is_pre_blank());
        if found.is_some_and(|found| self.damage.holding(found.phy).is_some()) {
            return Ok(());
        }
        rewrite_unit(&queue, offset, &unit).map_err(failed())?;
        self.touch(&queue, offset);
        self.units_written += 1;
        Ok(())
    }

    /// Gives damaged records behind the newest of their queues their slots, so that no offset is given out again.
    pub fn close_ends(&mut self) -> Result<(), ScanError> {
        let damage = self.damage.all();
        let claims: Vec<(PhyOffset, Unit, u64, Claim)> = damage
            .iter()
            .flat_map(|region| {
                region.claims.iter().map(|claim| (region.end, region.unit(), region.messages_max, *claim))
            })
            .collect();
        for (end, unit, messages_max, claim) in claims {
            let (at, queue) = (claim.queue, Arc::clone(&self.queues[claim.queue]));
            let is_past = self.met[at].newest.is_some_and(|newest| newest.unit.phy >= end);
            if is_past || (messages_max == 1 && self.is_of_another(claim, unit.phy)) {
                continue;
            }
            let (first, low) = match self.met[at].newest {
                Some(newest) => (newest.offset.advance(1), newest.unit.phy),
                None if queue.files().is_empty()
                    && self.from > PhyOffset(0)
                    && claim.offset.0 <= most_messages(end) =>
                {
                    (claim.offset, unit.phy)
                }
                None => (first_leading_to(&queue, unit.phy), unit.phy),
            };
            // Slots whose units lead into damage already.
            let (mut next, mut covered) = (first, 0);
            while next < queue.max()
                && let Some(found) = unit_in_files(&queue, next)
                && self.damage.holding(found.phy).is_some()
            {
                covered += u64::from((unit.phy..end).contains(&found.phy));
                next = next.advance(1);
            }
            if covered >= messages_max || (first..next).contains(&claim.offset) {
                continue;
            }
            let lost: u64 = self.damage.between(low, end).iter().map(|region| region.messages_max).sum();
            let last = if claim.offset >= next && claim.offset.0 - next.0 < lost { claim.offset } else { next };
            for offset in next.0..=last.0 {
                self.close_slot(at, QueueOffset(offset), unit)?;
            }
            self.met[at].newest = Some(Place { offset: last, unit });
        }
        Ok(())
    }

    /// Has another queue the slot of a message that was damaged in its queue's name?
    fn is_of_another(&self, claim: Claim, phy: PhyOffset) -> bool {
        let has_slot = |queue: &QueueView| unit_in_files(queue, claim.offset).is_some_and(|unit| unit.phy == phy);
        let mut others = (0..self.queues.len()).filter(|other| *other != claim.queue);
        others.any(|other| self.could_stray(other, claim.queue) && has_slot(&self.queues[other]))
    }

    /// Does the unit at `offset` lead to the message of this queue that has that offset, or to the damage that took it?
    fn leads_to(&self, queue: &QueueView, offset: QueueOffset, unit: &Unit) -> bool {
        self.record(unit).is_some_and(|view| is_of(&view, queue) && view.queue_offset() == offset)
            || self.damage.holding(unit.phy).is_some()
    }

    /// The record that a unit leads to.
    fn record(&self, unit: &Unit) -> Option<RecordView<'_>> {
        let from = unit.phy.0.checked_sub(self.segments[0].start().0)?;
        let segment = self.segments.get(usize::try_from(from / self.settings.segment_len).ok()?)?;
        let view = RecordView::parse(segment.slice(unit.phy, unit.len as usize)?).ok()?;
        ((view.phy(), view.total_len()) == (unit.phy, unit.len)).then_some(view)
    }

    /// What the unit holds beside place and size (store.md 2.9).
    fn tags(&self, view: &RecordView<'_>) -> TagsCode {
        let text = view.properties();
        if view.topic() == SCHEDULE_TOPIC
            && let Some(level) = properties::get(text, properties::DELAY).and_then(|text| text.parse::<usize>().ok())
            && level > 0
        {
            let delays = &self.settings.delays_ms;
            let delay = delays.get(level.min(delays.len()).wrapping_sub(1)).copied().unwrap_or(1000);
            return TagsCode(view.store_timestamp().plus_ms(delay).0);
        }
        TagsCode::of(properties::get(text, properties::TAGS))
    }

    fn push_unit(&mut self, queue: &Arc<QueueView>, offset: QueueOffset, unit: &Unit) -> io::Result<()> {
        let len = self.settings.consumequeue_len;
        let units = len / UNIT_LEN as u64;
        let last = queue.files().last().cloned().filter(|file| offset < file.end());
        let file = match last {
            Some(file) => file,
            None => {
                let first = QueueOffset(offset.0 - offset.0 % units);
                let dir = queue_dir(&self.layout.consumequeue(), queue.key());
                let start = first.0.checked_mul(UNIT_LEN as u64).filter(|start| i64::try_from(*start).is_ok());
                let start = start.ok_or_else(|| invalid(format!("no consume queue holds a message {offset}")))?;
                let path = dir.join(names::segment_name(start));
                self.made_in.insert(dir);
                let file = Arc::new(UnitFile::new(first, SharedMap::open(&path, len)?));
                let filler = if queue.files().is_empty() { first.0..offset.0 } else { 0..0 };
                file.map().reserve((offset.0 - first.0 + 1) * UNIT_LEN as u64)?;
                for at in filler {
                    store_unit(&file, QueueOffset(at), &Unit::PRE_BLANK);
                }
                queue.push_file(Arc::clone(&file));
                file
            }
        };
        let end = (offset.0 - file.first().0 + 1) * UNIT_LEN as u64;
        if end > file.map().reserved() {
            file.map().reserve((end + 64 * 1024).min(len))?;
        }
        store_unit(&file, offset, unit);
        queue.publish_max(offset.advance(1));
        self.units_written += 1;
        let met = &mut self.met[queue.handle().index()];
        if met.file.as_ref().is_none_or(|known| !Arc::ptr_eq(known, &file)) {
            self.touched.push(Arc::clone(&file));
            met.file = Some(file);
        }
        Ok(())
    }

    /// Notes that the file of this unit changed.
    fn touch(&mut self, queue: &QueueView, offset: QueueOffset) {
        let files = queue.files();
        self.touched.extend(files.iter().find(|file| (file.first()..file.end()).contains(&offset)).cloned());
    }

    /// Brings the units met so far onto stable storage.
    pub fn sync(&mut self, opening: &Opening) -> Result<(), OpenError> {
        self.touched.sort_unstable_by(|one, other| one.map().path().cmp(other.map().path()));
        self.touched.dedup_by(|one, other| Arc::ptr_eq(one, other));
        for file in self.touched.drain(..) {
            opening.step()?;
            // One that was dropped again is gone.
            if file.map().path().exists() {
                file.map().sync().map_err(io_at(file.map().path()))?;
            }
        }
        sync_queue_folders(&self.layout.consumequeue(), &self.made_in, || opening.step())?;
        self.made_in.clear();
        // What comes next counts as untouched.
        self.met.iter_mut().for_each(|met| met.file = None);
        Ok(())
    }

    /// Is the unit at the end of a queue one that leads to no message? Light queues hold messages of other topics.
    fn is_stray(&self, queue: &QueueView, offset: QueueOffset, unit: &Unit, end: PhyOffset) -> bool {
        let is_checked = unit.phy >= self.from && !is_light(&queue.key().topic);
        // Without a length: its sector, or the end of it, did not come to the disk before the one behind it did.
        let is_unwritten = unit.len == 0;
        !unit.is_pre_blank() && (is_unwritten || unit.phy >= end || (is_checked && !self.leads_to(queue, offset, unit)))
    }

    /// Cuts units at or behind the log's end, makes those that lead into damage say so, zeroes stale bytes, syncs.
    pub fn finish(&mut self, end: PhyOffset, opening: &Opening) -> Result<(), OpenError> {
        for queue in self.queues.iter() {
            opening.step()?;
            let dir = queue_dir(&self.layout.consumequeue(), queue.key());
            let mut max = queue.max();
            while let Some(last) = max.0.checked_sub(1).map(QueueOffset)
                && queue.units_from(last).is_some_and(|run| self.is_stray(queue, last, &run.get(0), end))
            {
                max = last;
                queue.publish_max(max);
            }
            let is_light = is_light(&queue.key().topic);
            let is_unmet = self.met[queue.handle().index()].newest.is_none();
            let is_sound = self.from == PhyOffset(0) && self.is_whole() && self.damage.all().is_empty();
            if max.0 > 0 && is_unmet && !is_light && is_sound {
                tracing::warn!(path = %dir.display(), offset = %max,
                    "consume queue files of a queue that has no message in a whole log; the queue begins anew");
                drop_files(queue).map_err(io_at(&dir))?;
                max = QueueOffset(0);
            }
            let before = max.0.checked_sub(1).map(QueueOffset);
            if max.0 > most_messages(end) && before.is_some_and(|before| unit_in_files(queue, before).is_none()) {
                tracing::warn!(path = %dir.display(), offset = %max,
                    "an empty consume queue file of a place that no message can have; the queue begins anew");
                drop_files(queue).map_err(io_at(&dir))?;
                max = QueueOffset(0);
            }
            let cut = cut_queue(queue, max)
                .and_then(|()| point_at_damage(queue, self.damage.all()))
                .and_then(|()| remove_files_behind(&dir, queue));
            cut.map_err(OpenError::from_io(dir.clone()))?;
            // A process that was killed may have made its files, and not come to syncing their names.
            let last = queue.max().0.checked_sub(1).and_then(|last| unit_in_files(queue, QueueOffset(last)));
            if last.is_some_and(|last| last.phy >= self.from) {
                self.made_in.insert(dir);
            }
        }
        self.sync_all(opening)
    }

    /// Brings all units from the scan's begin on, and the folders of their files, onto stable storage.
    fn sync_all(&self, opening: &Opening) -> Result<(), OpenError> {
        let root = self.layout.consumequeue();
        if self.queues.len() >= WRITTEN_OUT_TOGETHER {
            tracing::info!(queues = self.queues.len(), "syncing the consume queues");
            opening.long_step()?;
            disk::write_out(&root).map_err(io_at(&root))?;
        }
        let mut reported = Instant::now();
        for (done, queue) in self.queues.iter().enumerate() {
            opening.step()?;
            sync_units(queue, self.from).map_err(OpenError::from_io(queue_dir(&root, queue.key())))?;
            if reported.elapsed() > PROGRESS_INTERVAL {
                reported = Instant::now();
                tracing::info!("synced {done} of {} consume queues", self.queues.len());
            }
        }
        sync_queue_folders(&root, &self.made_in, || opening.step())
    }
}

/// The newest unit of a queue that leads before `at`.
fn newest_before(queue: &QueueView, at: PhyOffset) -> Option<Place> {
    let offset = QueueOffset(first_leading_to(queue, at).0.checked_sub(1)?);
    let unit = unit_in_files(queue, offset).filter(|unit| !unit.is_pre_blank())?;
    Some(Place { offset, unit })
}

/// The first queue offset whose unit leads to this place or behind it; the end if there is none.
fn first_leading_to(queue: &QueueView, phy: PhyOffset) -> QueueOffset {
    let max = queue.max();
    let first = queue.files().first().map_or(max, |file| file.first());
    let look = |at| Ok::<_, std::convert::Infallible>(unit_in_files(queue, at).unwrap_or(Unit::PRE_BLANK));
    let Ok(at) = crate::queue::first_at_or_after(first..max, phy, look);
    at
}

/// Writes the region's unit over every unit that leads into one: what they lead to is no message.
fn point_at_damage(queue: &QueueView, damage: &[Damaged]) -> io::Result<()> {
    for region in damage {
        let mut at = first_leading_to(queue, region.start);
        while at < queue.max()
            && let Some(found) = unit_in_files(queue, at).filter(|found| region.holds(found.phy))
        {
            if found != region.unit() {
                rewrite_unit(queue, at, &region.unit())?;
            }
            at = at.advance(1);
        }
    }
    Ok(())
}

/// The first queue offset behind a queue's newest record, and where the search for what has it begins.
fn gap_of(newest: Option<Place>, from: PhyOffset) -> (u64, PhyOffset) {
    newest.map_or((0, from), |newest| (newest.offset.0 + 1, newest.unit.phy))
}

fn gap(queue: &QueueView, Place { offset, unit }: Place) -> ScanError {
    let (expected, found) = (queue.max().0, offset.0);
    ScanError::Gap(Gap { queue: queue.key().to_string(), expected, found, phy: unit.phy })
}

/// Is it a topic that a broker makes for itself or for a group?
pub fn is_of_system(topic: &str) -> bool {
    topic == SCHEDULE_TOPIC || SYSTEM_PREFIXES.iter().any(|prefix| topic.starts_with(prefix))
}

/// Is it the name of a light queue, which is in no table of topics?
pub fn is_light(topic: &str) -> bool {
    topic.starts_with(LIGHT_QUEUE_PREFIX)
}

/// Is this record one of this queue?
fn is_of(view: &RecordView<'_>, queue: &QueueView) -> bool {
    let key = queue.key();
    view.topic() == &*key.topic && u32::try_from(view.queue_id()) == Ok(key.queue_id)
}

/// Does a unit say that the record has this queue offset?
fn is_in_files(queue: &QueueView, Place { offset, unit }: Place) -> bool {
    unit_in_files(queue, offset).is_some_and(|found| (found.phy, found.len) == (unit.phy, unit.len))
}

/// How many messages there can be before this place: segments that have expired count too, as physical offsets go on from
/// the log's birth.
fn most_messages(before: PhyOffset) -> u64 {
    before.0 / u64::from(record::RECORD_LEN_MIN)
}

/// Can a folder below the consume queues be called so?
fn is_folder_name(topic: &str) -> bool {
    !matches!(topic, "" | "." | "..") && !topic.contains(['/', '\0'])
}
