//! Does a store that was just opened hold what it must, and nothing else? Looks at the bytes, not by way of the readers.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use super::ledger::{Ledger, Place, State};
use crate::format::index_file::{self, IndexUnit};
use crate::format::record::{self, Header, RecordView};
use crate::format::unit::Unit;
use crate::index::IndexFile;
use crate::store::open::OpenedStore;
use crate::store::submit::TagsRule;
use crate::types::{PhyOffset, QueueKey, QueueOffset, TagsCode, Timestamp, properties};

const SECTOR_LEN: usize = 512;
/// What every message says.
pub const FLAG: i32 = 0x0102_0304;
pub const BORN_TIMESTAMP: i64 = 0x0102_0304_0506_0708;
pub const RECONSUME_TIMES: i32 = 0x0a0b_0c0d;

pub type Check = Result<(), String>;

/// Fails with what was found.
macro_rules! ensure {
    ($holds:expr, $($found:tt)+) => {
        if !$holds {
            return Err(format!($($found)+));
        }
    };
}
pub(super) use ensure;

/// What the log holds.
struct Log<'a> {
    records: Vec<(usize, RecordView<'a>)>,
    torn: Vec<usize>,
}

/// Checks everything and tells the ledger what was found.
pub fn opened(ledger: &mut Ledger, opened: &OpenedStore) -> Check {
    let segments = opened.shared.segments.all();
    let log = walk(ledger, opened, &segments)?;
    let found = placed(ledger, &log)?;
    queues(ledger, opened, &log)?;
    keys(opened, &log)?;
    log.torn.iter().for_each(|number| ledger.sent[*number].torn = true);
    ledger.opened(&found);
    Ok(())
}

/// Every record from the log's beginning to its end is whole and one of those sent; behind the end there are zeros.
fn walk<'a>(
    ledger: &Ledger,
    opened: &OpenedStore,
    segments: &'a [std::sync::Arc<crate::io::Segment>],
) -> Result<Log<'a>, String> {
    let end = opened.writer_start.end;
    let mut at = segments.first().map_or(PhyOffset(0), |first| first.start());
    let mut log = Log { records: Vec::new(), torn: Vec::new() };
    let mut newest = Timestamp(0);
    for segment in segments {
        ensure!(segment.start() == at || at == end, "a segment starts at {}, not at {at}", segment.start());
        while at < end && at < segment.end() {
            let rest = &segment.bytes()[at.since(segment.start()) as usize..];
            match record::peek_header(rest).map_err(|why| format!("at {at}: {why}"))? {
                Header::Record { .. } => {
                    let view = RecordView::parse(rest).map_err(|why| format!("record at {at}: {why}"))?;
                    ensure!(view.check_crc(), "the body at {at} does not match its CRC");
                    ensure!(view.phy() == at, "the record at {at} says {}", view.phy());
                    ensure!(view.store_timestamp() >= newest, "store time goes back at {at}");
                    newest = view.store_timestamp();
                    let number =
                        ledger.of_body(view.body()).ok_or_else(|| format!("nobody sent the message at {at}"))?;
                    if let Err(found) = is_whole(ledger, number, &view) {
                        ensure!(can_be_torn(ledger, number, &view), "{found}");
                        log.torn.push(number);
                    }
                    at = at.advance(u64::from(view.total_len()));
                    log.records.push((number, view));
                }
                Header::Blank { .. } => {
                    let len = u32::from_be_bytes(rest[..4].try_into().expect("four bytes"));
                    ensure!(len as usize == rest.len(), "the blank at {at} says {len}, {} are left", rest.len());
                    ensure!(
                        rest[record::BLANK_LEN..].iter().all(|byte| *byte == 0),
                        "the blank at {at} is followed by something"
                    );
                    at = segment.end();
                }
                Header::Zero => return Err(format!("zeros at {at}, before the end at {end}")),
            }
        }
        let used = end.max(segment.start()).min(segment.end()).since(segment.start()) as usize;
        if at >= end {
            let stale = segment.bytes()[used..].iter().position(|byte| *byte != 0);
            ensure!(stale.is_none(), "byte {:?} behind the end {end} is not zero", stale.map(|stale| used + stale));
        }
    }
    ensure!(at == end, "the log is said to end at {end}, but it ends at {at}");
    let last = opened.writer_start.last_stored_at;
    ensure!(last >= newest, "the newest message was stored at {newest}, not at {last}");
    Ok(log)
}

/// Is this what was sent under that number?
pub fn is_whole(ledger: &Ledger, number: usize, view: &RecordView<'_>) -> Check {
    let sent = &ledger.sent[number];
    if sent.torn {
        return Ok(());
    }
    let same = view.topic() == &*sent.queue.topic
        && u32::try_from(view.queue_id()) == Ok(sent.queue.queue_id)
        && view.body() == sent.body
        && view.properties() == sent.properties
        && (view.flag(), view.sys_flag(), view.born_timestamp()) == (FLAG, 0, BORN_TIMESTAMP)
        && view.reconsume_times() == RECONSUME_TIMES;
    ensure!(same, "message {number} at {} is not as it was sent", view.phy());
    Ok(())
}

/// Nobody was promised this message, and zeros at the end of a sector can stand for what did not come to the disk.
fn can_be_torn(ledger: &Ledger, number: usize, view: &RecordView<'_>) -> bool {
    let start = view.phy().0 as usize;
    let mut ends = (start.next_multiple_of(SECTOR_LEN)..start + view.total_len() as usize).step_by(SECTOR_LEN);
    ledger.sent[number].state == State::Unknown && ends.any(|end| end > start && view.bytes()[end - start - 1] == 0)
}

/// What must be there is there, once; what must not is not; the order of each sender is kept.
fn placed(ledger: &Ledger, log: &Log<'_>) -> Result<BTreeMap<usize, Place>, String> {
    let mut found = BTreeMap::new();
    let mut newest_of: HashMap<(QueueKey, usize), usize> = HashMap::new();
    for (number, view) in &log.records {
        let place = Place { offset: view.queue_offset(), phy: view.phy(), len: view.total_len() };
        let twice = found.insert(*number, place);
        ensure!(twice.is_none(), "message {number} is there twice: {twice:?} and {place:?}");
        let sent = &ledger.sent[*number];
        ensure!(sent.state != State::Absent, "message {number} at {place:?} was refused, or lost and comes back");
        let before = newest_of.insert((sent.queue.clone(), sent.shard), *number);
        ensure!(before.is_none_or(|before| before < *number), "message {number} lies behind {before:?} of its sender");
    }
    for (number, sent) in ledger.sent.iter().enumerate() {
        if let State::Stored(place) = sent.state {
            let at = found.get(&number);
            ensure!(at == Some(&place), "message {number} of {} was at {place:?}, now {at:?}", sent.queue);
        }
    }
    Ok(found)
}

/// Consume queues: one unit a record, offsets without a gap, nothing behind the end.
fn queues(ledger: &Ledger, opened: &OpenedStore, log: &Log<'_>) -> Check {
    let mut expected: BTreeMap<QueueKey, Vec<(QueueOffset, Unit)>> = BTreeMap::new();
    for (number, view) in &log.records {
        let sent = &ledger.sent[*number];
        let is_torn = sent.torn || log.torn.contains(number);
        let tags = match sent.tags {
            // As far as it came to the disk.
            _ if is_torn => recovered_tags(opened, view),
            TagsRule::Code(code) => code,
            TagsRule::DueAfterMs(ms) => TagsCode(view.store_timestamp().plus_ms(ms).0),
        };
        let unit = Unit { phy: view.phy(), len: view.total_len(), tags };
        let units = expected.entry(sent.queue.clone()).or_default();
        if let Some((before, _)) = units.last() {
            let offset = view.queue_offset();
            ensure!(before.advance(1) == offset, "in {} {before} is followed by {offset}", sent.queue);
        }
        units.push((view.queue_offset(), unit));
    }
    let mut counters = opened.writer_start.counters.clone();
    for (_, queue) in opened.queues.list().iter() {
        let units = expected.remove(queue.key()).unwrap_or_default();
        let max = units.last().map_or(QueueOffset(0), |(offset, _)| offset.advance(1));
        ensure!(queue.max() == max, "{} ends at {}, not at {max}", queue.key(), queue.max());
        let next = counters.take(queue.handle(), 1);
        ensure!(next == max, "{} goes on with {next}, not with {max}", queue.key());
        let min = units.first().map_or(max, |(offset, _)| *offset);
        ensure!(queue.min() == min, "{} begins at {}, not at {min}", queue.key(), queue.min());
        for (offset, unit) in units {
            let found = queue.units_from(offset).map(|run| run.get(0));
            ensure!(found == Some(unit), "unit {offset} of {} is {found:?}, not {unit:?}", queue.key());
        }
        let files = queue.files();
        for file in files.iter() {
            let used = max.0.saturating_sub(file.first().0) as usize * crate::format::unit::UNIT_LEN;
            let bytes = file.map().bytes(0, file.map().len());
            let stale = bytes.iter().skip(used).any(|byte| *byte != 0);
            ensure!(!stale, "{} holds something behind {max}", file.map().path().display());
        }
    }
    ensure!(expected.is_empty(), "no consume queue for {:?}", expected.keys());
    Ok(())
}

/// What the unit of a message says whose properties may be cut.
fn recovered_tags(opened: &OpenedStore, view: &RecordView<'_>) -> TagsCode {
    let text = view.properties();
    let level = properties::get(text, properties::DELAY).and_then(|level| level.parse::<usize>().ok());
    match level.filter(|_| view.topic() == "SCHEDULE_TOPIC_XXXX") {
        Some(level) => TagsCode(view.store_timestamp().plus_ms(opened.shared.settings.delays_ms[level - 1]).0),
        None => TagsCode::of(properties::get(text, properties::TAGS)),
    }
}

/// Every key of every message is found once, and no entry leads elsewhere.
fn keys(opened: &OpenedStore, log: &Log<'_>) -> Check {
    let settings = &opened.shared.settings;
    let (slots, units) = (settings.index_slots, settings.index_entries);
    let mut entries = HashMap::new();
    for file in &opened.index_files {
        let bytes = file.bytes(0, file.len());
        let index = IndexFile::open(bytes, slots, units).map_err(|error| error.to_string())?;
        for unit in 1..index.header().next_unit {
            let at = index_file::unit_at(slots, unit) as usize;
            let entry = IndexUnit::decode(bytes[at..].first_chunk().expect("a unit's bytes"));
            *entries.entry((entry.key, entry.phy)).or_insert(0) += 1;
        }
        for (number, view) in &log.records {
            for key in &record::key_hashes(view.topic(), view.properties()) {
                let mut found = Vec::new();
                index.find(*key, Timestamp(0), Timestamp(i64::MAX), usize::MAX, &mut found);
                let held = index.holds(*key, view.phy());
                ensure!(found.contains(&view.phy()) == held, "the entry of message {number} is there and not found");
            }
        }
    }
    for (number, view) in &log.records {
        let keys = record::key_hashes(view.topic(), view.properties());
        for key in &keys {
            let count = entries.remove(&(*key, view.phy())).unwrap_or(0);
            let wanted = keys.iter().filter(|other| *other == key).count();
            ensure!(count == wanted, "a key of message {number} at {} has {count} entries", view.phy());
        }
    }
    ensure!(entries.is_empty(), "index entries that lead to no message: {entries:?}");
    Ok(())
}

/// Every file below `root` with its content, but those that say who uses the store and when.
pub fn snapshot(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    fn walk(dir: &Path, found: &mut BTreeMap<PathBuf, Vec<u8>>) {
        let Ok(entries) = fs::read_dir(dir) else { return };
        for entry in entries {
            let path = entry.expect("the folder can be read").path();
            if path.is_dir() {
                walk(&path, found);
            } else {
                let bytes = fs::read(&path).expect("the file can be read");
                // Files made ahead come and go.
                if bytes.iter().any(|byte| *byte != 0) {
                    found.insert(path, bytes);
                }
            }
        }
    }
    let mut found = BTreeMap::new();
    for part in ["commitlog", "consumequeue", "index"] {
        walk(&root.join(part), &mut found);
    }
    found
}

/// Opening and closing must not have changed anything.
pub fn unchanged(what: &str, before: &BTreeMap<PathBuf, Vec<u8>>, after: &BTreeMap<PathBuf, Vec<u8>>) -> Check {
    let names: std::collections::BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let changed = names.into_iter().filter(|name| before.get(*name) != after.get(*name));
    let changed: Vec<_> = changed
        .map(|name| match (before.get(name), after.get(name)) {
            (Some(before), Some(after)) => {
                let at = before.iter().zip(after).position(|(before, after)| before != after);
                format!("{} from byte {at:?} on", name.display())
            }
            (None, _) => format!("{} is new", name.display()),
            (_, None) => format!("{} is gone", name.display()),
        })
        .collect();
    ensure!(changed.is_empty(), "{what} changed {changed:?}");
    Ok(())
}
