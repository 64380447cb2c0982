//! Does a store agree with itself? The invariants of store.md 13.1, told from the bytes alone.
//!
//! One pass over the consume queue files, one over the log with the queues and the index beside it, and a closer look at
//! the queues in which not every unit was met.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use super::files::StoreDir;
use super::keys::KeyCheck;
use super::report::{Known, Level, Report};
use super::shape::Shape;
use super::units::{self, QueueScan, UnitReader, region_of};
use super::walk::{Damage, Event, RecordReader, Walked, walk};
use super::window::Window;
use crate::format::checkpoint::Checkpoint;
use crate::format::config_files::{
    ConfigFileError, ConsumerOffsetsFile, DelayOffsetsFile, SubscriptionGroupsFile, TopicsFile,
    split_consumer_offset_key,
};
use crate::format::names;
use crate::format::record::{self, RecordView, sys_flag};
use crate::format::unit::{UNIT_LEN, Unit};
use crate::io::read_if_present;
use crate::store::layout::Layout;
use crate::store::open_error::{OpenError, io_at};
use crate::store::progress::Progress;
use crate::store::quarantine::{self, Region};
use crate::types::{PhyOffset, QueueKey, QueueOffset, TagsCode, Timestamp, json, properties};

const SCHEDULE_TOPIC: &str = "SCHEDULE_TOPIC_XXXX";
/// Names of topics that brokers make for themselves and for groups begin so; they need not be listed.
const SYSTEM_PREFIXES: [&str; 4] = ["RMQ_SYS_", "rmq_sys_", "%RETRY%", "%DLQ%"];
/// Units of such queues lead to messages of other topics (store.md 3.6).
const LIGHT_QUEUE_PREFIX: &str = "%LMQ%";
/// A tags code at or below it is a place in the extension files (store.md 3.5).
const EXT_ADDRESS_MAX: i64 = i32::MIN as i64 - 1;
/// Damaged places that are remembered to explain what leads there.
const DAMAGES_KEPT: usize = 10_000;

/// What to hold the store against.
#[derive(Clone, Debug)]
pub struct Verify {
    pub shape: Shape,
    /// Delay of each level, ms: what units of delayed messages hold.
    pub delays_ms: Vec<i64>,
    /// Look at the index too.
    pub index: bool,
}

/// Checks everything. Long: it reads the whole log once.
///
/// # Errors
/// What cannot be read at all; what can be read and is wrong is in the report.
pub fn verify(dir: &StoreDir, asked: &Verify, progress: super::Progress<'_>) -> Result<Report, OpenError> {
    let mut report = Report::new(dir.layout.root().display().to_string(), !dir.unclean);
    report.counts.segments = dir.segments.len() as u64;
    report.counts.index_files = dir.index_files.len() as u64;
    report.counts.log_start = dir.log_min();
    let regions = match quarantine::list(&dir.layout) {
        Ok(regions) => regions,
        Err(error) => {
            report.error("quarantine", dir.layout.quarantine().display(), error.to_string());
            Vec::new()
        }
    };
    report.quarantined =
        regions.iter().map(|region| Known { region: region.clone(), units: 0, index_entries: 0 }).collect();
    for stray in &dir.strays {
        report.warn("files", stray.display(), "no file of a store; it is left alone");
    }
    for (folder, what) in [
        ("consumequeue_ext", "filter bitmaps"),
        ("batchconsumequeue", "queues of batch topics"),
        ("timerlog", "timers"),
    ] {
        if dir.layout.root().join(folder).exists() {
            report.not_checked.push(format!("{folder}: {what} are not read by this version"));
        }
    }
    if dir.unclean {
        report.warn("I19", dir.layout.abort().display(), "the last stop was not clean; the next start recovers");
    }
    let tables = Tables::read(&dir.layout, &mut report);
    let mut check = Check {
        dir,
        asked,
        regions: &regions,
        has_ext: dir.layout.root().join("consumequeue_ext").exists(),
        births: births(&dir.layout, &mut report),
        tables,
        queues: Vec::new(),
        by_topic: HashMap::new(),
        records: RecordReader::new(dir),
        keys: None,
        damages: Vec::new(),
        newest: Timestamp(0),
        newest_set_aside: Timestamp(0),
        report,
    };
    check.scan_queues()?;
    check.open_index();
    let segment_len = asked.shape.segment_len.unwrap_or(1);
    let walked = walk(dir, segment_len, progress, &mut |event| check.event(event))?;
    check.finish(&walked)?;
    Ok(check.report)
}

/// `config/*.json`.
#[derive(Default)]
struct Tables {
    topics: Option<TopicsFile>,
    offsets: ConsumerOffsetsFile,
    delays: DelayOffsetsFile,
}

impl Tables {
    fn read(layout: &Layout, report: &mut Report) -> Tables {
        let tables = Tables {
            topics: table(layout, names::TOPICS, TopicsFile::decode, report),
            offsets: table(layout, names::CONSUMER_OFFSETS, ConsumerOffsetsFile::decode, report).unwrap_or_default(),
            delays: table(layout, names::DELAY_OFFSETS, DelayOffsetsFile::decode, report).unwrap_or_default(),
        };
        table(layout, names::SUBSCRIPTION_GROUPS, SubscriptionGroupsFile::decode, report);
        // Others are kept for whoever wrote them: JSON is all that is asked of them.
        let known = [names::TOPICS, names::CONSUMER_OFFSETS, names::DELAY_OFFSETS, names::SUBSCRIPTION_GROUPS];
        let others = std::fs::read_dir(layout.root().join(names::CONFIG)).into_iter().flatten().flatten();
        for name in others.filter_map(|entry| entry.file_name().into_string().ok()) {
            if name.ends_with(".json") && !known.contains(&name.as_str()) {
                let any = |bytes: &[u8]| match json::parse(bytes) {
                    _ if bytes.trim_ascii().is_empty() => Err(ConfigFileError::Empty),
                    parsed => parsed.map_err(ConfigFileError::Json),
                };
                table(layout, &name, any, report);
            }
        }
        tables
    }
}

/// The table that a start would take: the file, or its `.bak` if that is absent, empty or unreadable.
fn table<T>(
    layout: &Layout,
    name: &str,
    decode: impl Fn(&[u8]) -> Result<T, ConfigFileError>,
    report: &mut Report,
) -> Option<T> {
    let path = layout.config(name);
    let mut bak = path.as_os_str().to_owned();
    bak.push(names::BACKUP_SUFFIX);
    let mut unreadable = None;
    for candidate in [path.as_path(), Path::new(&bak)] {
        let decoded = match read_if_present(candidate) {
            Ok(None) => continue,
            Ok(Some(bytes)) => decode(&bytes).map_err(|error| (error == ConfigFileError::Empty, error.to_string())),
            Err(error) => Err((false, error.to_string())),
        };
        match decoded {
            Ok(table) => {
                if let Some(why) = unreadable {
                    report.warn("config", path.display(), format!("{why}; its .bak is good and will be taken"));
                }
                return Some(table);
            }
            Err((true, _)) => {}
            Err((false, why)) => drop(unreadable.get_or_insert(why)),
        }
    }
    if let Some(why) = unreadable {
        report.error("config", path.display(), format!("{why}, and there is no readable .bak beside it"));
    }
    None
}

/// Where the present generation of each topic begins: `kerolox/births` (rule R15).
fn births(layout: &Layout, report: &mut Report) -> HashMap<String, u64> {
    let path = layout.own().join("births");
    let bytes = match read_if_present(&path) {
        Ok(Some(bytes)) => bytes,
        Ok(None) => return HashMap::new(),
        Err(error) => {
            report.error("births", path.display(), error.to_string());
            return HashMap::new();
        }
    };
    match serde_json::from_slice::<BTreeMap<String, serde_json::Value>>(&bytes) {
        Ok(topics) => topics
            .into_iter()
            .filter_map(|(topic, entry)| Some((topic, entry.get("birth").unwrap_or(&entry).as_u64()?)))
            .collect(),
        Err(error) => {
            report.error("births", path.display(), format!("no table of births ({error})"));
            HashMap::new()
        }
    }
}

/// One queue while the log goes by.
struct Queue {
    key: QueueKey,
    scan: QueueScan,
    reader: UnitReader,
    /// Queue offset that its next record must have.
    next: Option<u64>,
    /// Units whose record was met.
    met: u64,
    /// Records whose unit is missing at the end of the queue, and the first of them.
    behind: u64,
    first_behind: u64,
    /// A folder is there.
    has_folder: bool,
}

struct Check<'a> {
    dir: &'a StoreDir,
    asked: &'a Verify,
    regions: &'a [Region],
    has_ext: bool,
    births: HashMap<String, u64>,
    tables: Tables,
    queues: Vec<Queue>,
    by_topic: HashMap<String, HashMap<u32, usize>>,
    records: RecordReader<'a>,
    keys: Option<KeyCheck<'a>>,
    damages: Vec<Damage>,
    newest: Timestamp,
    /// The latest store time of a record that looks whole and is quarantined: a recovery may have learned it too late.
    newest_set_aside: Timestamp,
    report: Report,
}

impl Check<'_> {
    fn scan_queues(&mut self) -> Result<(), OpenError> {
        let file_len = self.asked.shape.queue_file_len.unwrap_or(0);
        for entry in &self.dir.queues {
            let (report, is_ours) = (&mut self.report, self.dir.is_ours);
            let mut hits = Vec::new();
            let scan = units::scan(
                self.dir,
                entry,
                file_len,
                self.regions,
                &mut |rule, path, what| {
                    // Java leaves old units behind the end (J4), and a start of ours clears them.
                    let level = if rule == "I12" && !is_ours { Level::Warning } else { Level::Error };
                    report.note(level, rule, path.display(), what);
                },
                &mut |region| hits.push(region),
            );
            let scan = scan.map_err(|(path, source)| OpenError::Io { path, source })?;
            hits.into_iter().for_each(|region| self.report.quarantined[region].units += 1);
            self.add_queue(entry.key.clone(), scan, UnitReader::new(self.dir, entry), true);
        }
        self.report.counts.queues = self.queues.iter().filter(|queue| queue.scan.end > 0).count() as u64;
        Ok(())
    }

    fn add_queue(&mut self, key: QueueKey, scan: QueueScan, reader: UnitReader, has_folder: bool) -> usize {
        let at = self.queues.len();
        self.by_topic.entry(key.topic.to_string()).or_default().insert(key.queue_id, at);
        let queue = Queue { key, scan, reader, next: None, met: 0, behind: 0, first_behind: 0, has_folder };
        self.queues.push(queue);
        at
    }

    fn open_index(&mut self) {
        if !self.asked.index {
            self.report.not_checked.push("index: left out as asked".into());
            return;
        }
        let dir = self.dir.layout.index();
        match self.asked.shape.index {
            Some(shape) => {
                let keys = KeyCheck::new(self.dir, shape, &mut self.report);
                self.keys = Some(keys);
            }
            None if self.dir.index_files.iter().all(|(_, len)| *len == 0) => {}
            None => {
                let what = "no number of slots makes sense of its entries; give --index-slots if you know it";
                self.report.error("I13", dir.display(), what);
            }
        }
        if self.keys.as_ref().is_none_or(|keys| !keys.has_entries()) {
            self.report.not_checked.push("index: it has no entries, so no message is found by its keys".into());
        }
    }

    fn event(&mut self, event: Event<'_>) {
        match event {
            // What a recovery has set aside may still look whole: it said what could not be.
            Event::Record(view) if self.is_quarantined(view.phy().0, view.phy().0 + 1) => {
                self.newest_set_aside = self.newest_set_aside.max(view.store_timestamp());
            }
            Event::Record(view) => self.record(&view),
            Event::Blank { .. } => self.report.counts.blanks += 1,
            Event::Fault { rule, path, what } => self.report.error(rule, path.display(), what),
            Event::Damage(damage) => self.damage(damage),
        }
    }

    fn damage(&mut self, damage: Damage) {
        if !self.is_quarantined(damage.at, damage.end()) {
            let what = format!("{} ({} bytes until the next whole message)", damage.why, damage.len);
            self.report.error(damage.rule, format!("physical offset {}", damage.at), what);
        }
        if self.damages.len() < DAMAGES_KEPT {
            self.damages.push(damage);
        }
    }

    /// Is all of it in regions that a recovery has set aside?
    fn is_quarantined(&self, from: u64, end: u64) -> bool {
        let mut at = from;
        for region in self.regions.iter().filter(|region| region.is_damaged()) {
            if region.phy <= at && at < region.end().0 {
                at = region.end().0;
            }
        }
        at >= end
    }

    fn record(&mut self, view: &RecordView<'_>) {
        let counts = &mut self.report.counts;
        let stored_at = view.store_timestamp();
        if counts.records == 0 {
            counts.first_stored_at = stored_at.0;
        }
        counts.records += 1;
        counts.last_stored_at = stored_at.0;
        if stored_at < self.newest {
            let what = format!("stored at {stored_at}, a message before it at {}", self.newest);
            self.report.error("I7", format!("physical offset {}", view.phy()), what);
        }
        self.newest = self.newest.max(stored_at);
        let transaction = view.sys_flag() & sys_flag::TRANSACTION_MASK;
        let has_unit = transaction != sys_flag::TRANSACTION_PREPARED && transaction != sys_flag::TRANSACTION_ROLLBACK;
        let mut is_retired = false;
        if !has_unit || view.sys_flag() & sys_flag::INNER_BATCH != 0 {
            self.report.counts.unitless_records += 1;
        } else {
            is_retired = self.unit(view);
        }
        if transaction != sys_flag::TRANSACTION_ROLLBACK {
            self.keys_of(view, is_retired);
        }
    }

    fn keys_of(&mut self, view: &RecordView<'_>, is_retired: bool) {
        let Some(mut keys) = self.keys.take() else { return };
        self.strays_before(&mut keys, view.phy().0);
        let hashes = record::key_hashes(view.topic(), view.properties());
        keys.record(view.phy(), view.store_timestamp(), &hashes, is_retired, &mut self.report);
        self.keys = Some(keys);
    }

    /// Entries of records that were not met: those of damaged ones are no findings of their own.
    fn strays_before(&mut self, keys: &mut KeyCheck<'_>, phy: u64) {
        let (regions, damages) = (self.regions, &self.damages);
        keys.stray_before(phy, &mut self.report, |report, at| {
            if let Some(region) = regions.iter().position(|region| (region.phy..region.end().0).contains(&at.0)) {
                report.quarantined[region].index_entries += 1;
                return true;
            }
            damages.iter().any(|damage| (damage.at..damage.end()).contains(&at.0))
        });
    }

    /// Holds a record against its unit; true if it belongs to a topic, or a generation of one, that is gone.
    fn unit(&mut self, view: &RecordView<'_>) -> bool {
        let (phy, offset) = (view.phy(), view.queue_offset().0);
        let place = format!("physical offset {phy}");
        let Ok(queue_id) = u32::try_from(view.queue_id()) else {
            self.report.error("I8", place, format!("its queue id is {}", view.queue_id()));
            return false;
        };
        let is_old = self.births.get(view.topic()).is_some_and(|birth| phy.0 < *birth);
        let at = self.by_topic.get(view.topic()).and_then(|ids| ids.get(&queue_id)).copied();
        if is_old || (at.is_none_or(|at| !self.queues[at].has_folder) && self.is_deleted(view.topic())) {
            self.report.counts.retired_records += 1;
            return true;
        }
        let at = at.unwrap_or_else(|| {
            let key = QueueKey::new(view.topic(), queue_id);
            let entry = super::files::QueueEntry { key: key.clone(), files: Vec::new() };
            self.add_queue(key, QueueScan::default(), UnitReader::new(self.dir, &entry), false)
        });
        let expected = Unit { phy, len: view.total_len(), tags: self.tags(view) };
        let found = self.queues[at].reader.unit(offset);
        let found = match found {
            Ok(found) => found.filter(|_| offset < self.queues[at].scan.end),
            Err(error) => {
                let dir = self.dir.queue_dir(&self.queues[at].key);
                self.report.error("I9", dir.display(), error.to_string());
                None
            }
        };
        match found {
            Some(found) if (found.phy, found.len) == (phy, expected.len) => {
                self.queues[at].met += 1;
                let is_ext = self.has_ext && found.tags.0 <= EXT_ADDRESS_MAX;
                if found.tags != expected.tags && !is_ext {
                    let what = format!(
                        "the unit of message {offset} of {} holds tags code {}, {} expected",
                        self.queues[at].key, found.tags.0, expected.tags.0
                    );
                    self.report.error("I9", &place, what);
                }
            }
            found => {
                if self.is_superseded(at, found, phy, offset) {
                    self.report.counts.retired_records += 1;
                    return true;
                }
                self.no_unit(at, found, &expected, offset);
            }
        }
        self.follow(at, phy, offset);
        false
    }

    /// Was this record's queue offset given out once more: its topic was deleted and made again, or Java lost count
    /// (J1, J2)? Then the unit there, or the queue's last, leads to a newer message that has it.
    fn is_superseded(&mut self, at: usize, found: Option<Unit>, phy: PhyOffset, offset: u64) -> bool {
        let queue = &self.queues[at];
        let (unit, unit_offset) = match found {
            Some(unit) => (unit, offset),
            None => match queue.scan.last.filter(|_| offset >= queue.scan.end) {
                Some(last) => (last, queue.scan.end - 1),
                None => return false,
            },
        };
        unit.phy > phy && self.leads_to(at, &unit, unit_offset)
    }

    /// Does a unit lead to the message of its queue that has this offset?
    fn leads_to(&mut self, at: usize, unit: &Unit, offset: u64) -> bool {
        let key = &self.queues[at].key;
        self.records.at_unit(unit).ok().flatten().is_some_and(|view| {
            view.topic() == &*key.topic
                && u32::try_from(view.queue_id()) == Ok(key.queue_id)
                && view.queue_offset() == QueueOffset(offset)
        })
    }

    fn no_unit(&mut self, at: usize, found: Option<Unit>, expected: &Unit, offset: u64) {
        let queue = &mut self.queues[at];
        if found.is_none() && offset >= queue.scan.end {
            if queue.behind == 0 {
                queue.first_behind = offset;
            }
            queue.behind += 1;
            return;
        }
        let what = match found {
            Some(found) if found.phy == expected.phy => {
                format!("the unit says {} bytes, the message has {}", found.len, expected.len)
            }
            Some(found) => format!("the unit leads to {}", found.phy),
            None => "it has no unit".into(),
        };
        let place = format!("physical offset {}", expected.phy);
        let rule = if found.is_some() { "I9" } else { "I10" };
        self.report.error(rule, place, format!("message {offset} of {}: {what}", queue.key));
    }

    /// Does the record follow the one before it in its queue (I8)? What was set aside may stand between them.
    fn follow(&mut self, at: usize, phy: PhyOffset, offset: u64) {
        let queue = &mut self.queues[at];
        let next = queue.next.replace(offset.saturating_add(1));
        let Some(next) = next.filter(|next| *next != offset) else { return };
        if offset < next {
            let what = format!("its queue offset in {} is {offset}, {next} is the next", queue.key);
            return self.report.error("I8", format!("physical offset {phy}"), what);
        }
        let missing = (next..offset)
            .filter(|missing| {
                let unit = queue.reader.unit(*missing).ok().flatten();
                unit.is_none_or(|unit| region_of(self.regions, &unit).is_none())
            })
            .take(1000)
            .count();
        if missing == 1 && next + 1 == offset && self.is_phantom(at, next) {
            let what = format!(
                "no message has queue offset {next} in {}: a Java broker skipped it when it counted an empty unit; readers step over it",
                self.queues[at].key
            );
            return self.report.warn("I8", format!("physical offset {phy}"), what);
        }
        if missing > 0 {
            let queue = &self.queues[at];
            let what = format!(
                "its queue offset in {} is {offset}, {next} is the next: {missing} messages are missing",
                queue.key
            );
            self.report.error("I8", format!("physical offset {phy}"), what);
        }
    }

    /// Is this the slot of an offset that a Java broker skipped (J22)?
    fn is_phantom(&mut self, at: usize, offset: u64) -> bool {
        let reader = &mut self.queues[at].reader;
        let before = offset.checked_sub(1).and_then(|before| reader.unit(before).ok().flatten());
        let file_len = self.asked.shape.queue_file_len.unwrap_or(0);
        offset.checked_mul(UNIT_LEN as u64).is_some_and(|start| start.is_multiple_of(file_len))
            && reader.unit(offset).ok().flatten().is_none_or(|unit| units::is_phantom(&unit, before.as_ref()))
    }

    fn is_deleted(&self, topic: &str) -> bool {
        let of_system = topic == SCHEDULE_TOPIC || SYSTEM_PREFIXES.iter().any(|prefix| topic.starts_with(prefix));
        let listed = self.tables.topics.as_ref().map(|file| &file.topics).filter(|topics| !topics.is_empty());
        !of_system && listed.is_some_and(|topics| !topics.contains_key(topic))
    }

    fn tags(&self, view: &RecordView<'_>) -> TagsCode {
        let (text, delays) = (view.properties(), &self.asked.delays_ms);
        if view.topic() == SCHEDULE_TOPIC
            && let Some(level) = properties::get(text, properties::DELAY).and_then(|level| level.parse::<usize>().ok())
            && level > 0
        {
            let delay = delays.get(level.min(delays.len()).wrapping_sub(1)).copied().unwrap_or(1000);
            return TagsCode(view.store_timestamp().plus_ms(delay).0);
        }
        TagsCode::of(properties::get(text, properties::TAGS))
    }

    fn finish(&mut self, walked: &Walked) -> Result<(), OpenError> {
        let end = self.end_behind_quarantine(walked.end);
        self.report.counts.log_end = end;
        self.end_of_log(walked, end)?;
        if let Some(mut keys) = self.keys.take() {
            self.strays_before(&mut keys, end);
            keys.finish(end, &mut self.report);
            self.report.counts.index_entries = keys.entries;
            self.report.counts.repeated_index_entries = keys.repeated;
            if keys.repeated > 0 {
                let what = format!("{} keys are in the index twice, as Java leaves them (J20)", keys.repeated);
                self.report.warn("I14", self.dir.layout.index().display(), what);
            }
            self.keys = Some(keys);
        }
        (0..self.queues.len()).for_each(|at| self.finish_queue(at, end));
        self.checkpoint(end)?;
        self.offsets();
        Ok(())
    }

    /// The end of the log: what a recovery has set aside behind the last whole record is a part of it.
    fn end_behind_quarantine(&self, walked: u64) -> u64 {
        let mut damaged: Vec<_> = self.regions.iter().filter(|region| region.is_damaged()).collect();
        damaged.sort_by_key(|region| region.phy);
        damaged.iter().fold(walked, |end, region| match region.phy <= end {
            true => end.max(region.end().0),
            false => end,
        })
    }

    /// Is there anything but zeros in the log from there on?
    fn is_written_behind(&self, end: u64) -> Result<bool, OpenError> {
        for file in self.dir.segments.iter().filter(|file| file.end() > end) {
            let path = file.path(&self.dir.layout.commitlog());
            let mut window = Window::open(&path).map_err(io_at(&path))?;
            if window.first_nonzero(end.saturating_sub(file.start)).is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// I18, and how far the log is known to have been flushed.
    fn end_of_log(&mut self, walked: &Walked, end: u64) -> Result<(), OpenError> {
        let level = if self.dir.unclean { Level::Warning } else { Level::Error };
        let path = self.dir.layout.flushed();
        let flushed = Progress::load(&path).map_err(io_at(&path))?.at_least.0;
        if flushed > end {
            let what = format!("everything before {flushed} was on stable storage, the log ends at {end}");
            self.report.error("I18", path.display(), what);
        }
        if let Some(tail) = &walked.tail
            && (end == walked.end || self.is_written_behind(end)?)
        {
            let what = format!("{}: the log ends there, and what follows will be cut", tail.why);
            self.report.note(level, "I18", format!("physical offset {}", tail.at.max(end)), what);
        }
        if walked.unreadable_len > 0 {
            let what = format!("the disk does not give {} bytes of the log", walked.unreadable_len);
            self.report.error("read", self.dir.layout.commitlog().display(), what);
        }
        Ok(())
    }

    /// The other direction: does every unit lead to a message?
    fn finish_queue(&mut self, at: usize, log_end: u64) {
        let level = if self.dir.unclean { Level::Warning } else { Level::Error };
        let queue = &self.queues[at];
        let (scan, folder) = (queue.scan, self.dir.queue_dir(&queue.key));
        if queue.behind > 0 {
            let what = format!(
                "{} messages from {} on are in the log and not in the queue, which ends at {}",
                queue.behind, queue.first_behind, scan.end
            );
            self.report.note(level, "I10", folder.display(), what);
        }
        let in_log = scan.end - scan.min.min(scan.end);
        self.report.counts.units += in_log;
        let behind_log = |unit: &Unit| unit.log_end().is_some_and(|end| end.0 > log_end);
        if let Some(last) = scan.last.filter(behind_log) {
            let what = format!("its last unit leads to {}, the log ends at {log_end}", last.phy);
            self.report.note(level, "I18", folder.display(), what);
        }
        let is_light = queue.key.topic.starts_with(LIGHT_QUEUE_PREFIX);
        if is_light || queue.met + scan.quarantined == in_log {
            return;
        }
        for offset in scan.min..scan.end {
            let Ok(Some(unit)) = self.queues[at].reader.unit(offset) else { continue };
            let is_known = region_of(self.regions, &unit).is_some() || behind_log(&unit);
            if is_known || self.leads_to(at, &unit, offset) || self.is_phantom(at, offset) {
                continue;
            }
            let is_damaged = self.damages.iter().any(|damage| (damage.at..damage.end()).contains(&unit.phy.0));
            let what = match is_damaged {
                true => format!("unit {offset} leads to {}, which is damaged", unit.phy),
                false => format!("unit {offset} leads to {}, where no such message is", unit.phy),
            };
            self.report.error("I9", folder.display(), what);
        }
    }

    /// I15.
    fn checkpoint(&mut self, log_end: u64) -> Result<(), OpenError> {
        let path = self.dir.layout.checkpoint();
        let Some(bytes) = read_if_present(&path).map_err(io_at(&path))? else {
            if self.report.counts.records > 0 {
                self.report.warn("I15", path.display(), "there is none: the next start reads the whole log");
            }
            return Ok(());
        };
        let Some(checkpoint) = Checkpoint::decode(&bytes) else {
            self.report.error("I15", path.display(), format!("{} bytes are too few for a checkpoint", bytes.len()));
            return Ok(());
        };
        let newest = self.newest.max(self.newest_set_aside);
        if checkpoint.physic > newest {
            let what = format!("says flushed up to {}, the newest message is of {newest}", checkpoint.physic);
            self.report.error("I15", path.display(), what);
        }
        let is_full_end = self.keys.as_ref().is_none_or(|keys| keys.may_be_full_end(checkpoint.index));
        if checkpoint.index.0 != 0 && !is_full_end {
            let what = format!("says that a full index file ends at {}, none does", checkpoint.index);
            self.report.error("I15", path.display(), what);
        }
        if checkpoint.confirm > log_end {
            let what = format!("says that the log reached {}, it ends at {log_end}", checkpoint.confirm);
            self.report.error("I15", path.display(), what);
        }
        Ok(())
    }

    /// I16.
    fn offsets(&mut self) {
        let ends: HashMap<(&str, u32), u64> =
            self.queues.iter().map(|queue| ((&*queue.key.topic, queue.key.queue_id), queue.scan.end)).collect();
        let mut beyond = Vec::new();
        let mut look = |topic: &str, id: i32, offset: i64, whose: &str| {
            let end = u32::try_from(id).ok().and_then(|id| ends.get(&(topic, id))).copied().unwrap_or(0);
            if u64::try_from(offset).is_ok_and(|offset| offset > end) {
                beyond.push((format!("{topic}-{id}"), format!("{whose} is at {offset}, the queue ends at {end}")));
            }
        };
        for (key, queues) in &self.tables.offsets.table {
            let Some((topic, group)) = split_consumer_offset_key(key) else { continue };
            queues.iter().for_each(|(id, offset)| look(topic, *id, *offset, &format!("group {group}")));
        }
        for (level, offset) in &self.tables.delays.table {
            look(SCHEDULE_TOPIC, level - 1, *offset, &format!("delay level {level}"));
        }
        beyond.into_iter().for_each(|(place, what)| self.report.warn("I16", place, what));
    }
}

#[cfg(test)]
mod tests;
