//! A store directory that nobody has open, read with `kerolox::format` alone and checked against the invariants of
//! store.md 13.1: the log by itself (I1–I8), then consume queues and index against the log (I9–I14, I18).

// Each test file is a crate of its own and uses its own part of this.
#![allow(dead_code, reason = "shared by test crates, none of which uses everything")]

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use kerolox::format::index_file::{self, IndexHeader, IndexUnit};
use kerolox::format::names;
use kerolox::format::record::{self, Header, RecordView, peek_header, sys_flag};
use kerolox::format::unit::{UNIT_LEN, Unit};
use kerolox::types::{KeyHash, TagsCode, properties};

const DELAYS_MS: [i64; 18] = [
    1_000, 5_000, 10_000, 30_000, 60_000, 120_000, 180_000, 240_000, 300_000, 360_000, 420_000, 480_000, 540_000,
    600_000, 1_200_000, 1_800_000, 3_600_000, 7_200_000,
];

/// Lengths that a store was written with.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub segment_len: u64,
    pub queue_file_len: u64,
    pub index_slots: u32,
    pub index_entries: u32,
}

/// One record of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    pub topic: String,
    pub queue_id: i32,
    pub offset: u64,
    pub phy: u64,
    pub len: u32,
    pub stored_at: i64,
    pub body: Vec<u8>,
    pub properties: String,
    pub tags: TagsCode,
    pub keys: Vec<KeyHash>,
    pub transaction: i32,
}

/// The whole log.
#[derive(Clone, Debug)]
pub struct StoredLog {
    pub records: Vec<Stored>,
    pub end: u64,
    /// Topics whose records have no units any more.
    pub deleted: Vec<String>,
}

impl StoredLog {
    /// Reads the log of a store and checks it by itself: I1 to I8.
    pub fn read(root: &Path, shape: Shape) -> StoredLog {
        let files = digit_files(&root.join("commitlog"));
        let start = files.keys().next().copied().unwrap_or(0);
        let mut log = StoredLog { records: Vec::new(), end: start, deleted: Vec::new() };
        let mut next: HashMap<(String, i32), u64> = HashMap::new();
        let mut newest = 0;
        let mut rolled = true;
        for (start, path) in &files {
            let bytes = fs::read(path).expect("a segment can be read");
            assert_eq!(bytes.len() as u64, shape.segment_len, "I1: {}", path.display());
            assert_eq!(start % shape.segment_len, 0, "I1: {}", path.display());
            if !rolled {
                // Made ahead and not used.
                assert!(bytes.iter().all(|byte| *byte == 0), "I3: {} is behind the end", path.display());
                continue;
            }
            assert_eq!(*start, log.end, "I1, I3: {}", path.display());
            rolled = false;
            let mut at = 0;
            loop {
                match peek_header(&bytes[at..]) {
                    Ok(Header::Record { .. }) => {}
                    Ok(Header::Blank { total_len }) => {
                        assert_eq!(at as u64 + u64::from(total_len), shape.segment_len, "I3: {}", path.display());
                        log.end = start + shape.segment_len;
                        rolled = true;
                        break;
                    }
                    Ok(Header::Zero) => {
                        assert!(bytes[at..].iter().all(|byte| *byte == 0), "I2: bytes behind the end");
                        break;
                    }
                    Err(why) => panic!("I2: {} at {at}: {why}", path.display()),
                }
                let view = RecordView::parse(&bytes[at..]).unwrap_or_else(|why| panic!("I2, I5: {at}: {why}"));
                assert_eq!(view.phy().0, start + at as u64, "I4");
                assert!(view.check_crc(), "I6: {}", view.phy());
                let stored = stored(&view);
                assert!(stored.stored_at >= newest, "I7: {stored:?}");
                newest = stored.stored_at;
                if stored.has_unit() {
                    let key = (stored.topic.clone(), stored.queue_id);
                    let expected = next.get(&key).copied().unwrap_or(stored.offset);
                    assert_eq!(stored.offset, expected, "I8: {stored:?}");
                    next.insert(key, stored.offset + 1);
                }
                at += stored.len as usize;
                log.end = start + at as u64;
                log.records.push(stored);
            }
        }
        log
    }

    /// Checks consume queues and index against the log. `exact`: a store of ours, with nothing in it twice.
    pub fn check_derived(&self, root: &Path, shape: Shape, exact: bool) {
        self.check_queues(root, shape);
        self.check_index(root, shape, exact);
    }

    /// The messages of each queue, in order.
    pub fn queues(&self) -> BTreeMap<(&str, i32), Vec<&Stored>> {
        let mut queues: BTreeMap<_, Vec<_>> = BTreeMap::new();
        let is_there = |stored: &&Stored| stored.has_unit() && !self.deleted.contains(&stored.topic);
        for stored in self.records.iter().filter(is_there) {
            queues.entry((stored.topic.as_str(), stored.queue_id)).or_default().push(stored);
        }
        queues
    }

    fn check_queues(&self, root: &Path, shape: Shape) {
        let mut queues: BTreeMap<(String, i32), Vec<&Stored>> =
            self.queues().into_iter().map(|((topic, id), messages)| ((topic.to_owned(), id), messages)).collect();
        for topic in folders(&root.join("consumequeue")) {
            for id in folders(&topic) {
                let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
                let (topic, id_text) = (name(&topic), name(&id));
                let messages = queues.remove(&(topic.clone(), id_text.parse().unwrap())).unwrap_or_default();
                let mut bytes = Vec::new();
                let files = digit_files(&id);
                let start = files.keys().next().copied().unwrap_or(0);
                for (at, path) in &files {
                    let file = fs::read(path).expect("a consume queue file can be read");
                    assert_eq!(file.len() as u64, shape.queue_file_len, "{}", path.display());
                    assert_eq!(*at, start + bytes.len() as u64, "a hole before {}", path.display());
                    bytes.extend(file);
                }
                let unit_at = |offset: u64| {
                    let at = (offset * UNIT_LEN as u64 - start) as usize;
                    Unit::decode(bytes[at..at + UNIT_LEN].try_into().unwrap())
                };
                for message in &messages {
                    let unit = unit_at(message.offset);
                    assert_eq!(
                        (unit.phy.0, unit.len, unit.tags),
                        (message.phy, message.len, message.tags),
                        "I9: {message:?}"
                    );
                    assert!(unit.phy.0 + u64::from(unit.len) <= self.end, "I18: {message:?}");
                }
                let end = messages.last().map_or(start, |last| (last.offset + 1) * UNIT_LEN as u64);
                let behind = &bytes[(end - start) as usize..];
                assert!(
                    behind.iter().all(|byte| *byte == 0),
                    "I11, I12, I18: units behind the end of {topic} {id_text}"
                );
            }
        }
        assert!(queues.is_empty(), "I10: queues without units: {:?}", queues.keys());
    }

    fn check_index(&self, root: &Path, shape: Shape, exact: bool) {
        let mut entries: HashMap<(KeyHash, u64), usize> = HashMap::new();
        let mut begin = None;
        let mut files: Vec<_> = fs::read_dir(root.join("index"))
            .map(|entries| entries.map(|entry| entry.unwrap().path()).collect())
            .unwrap_or_default();
        files.sort();
        let mut phy = 0;
        for path in files {
            let bytes = fs::read(&path).expect("an index file can be read");
            let (slots, units) = (shape.index_slots, shape.index_entries);
            assert_eq!(bytes.len() as u64, index_file::file_len(slots, units), "{}", path.display());
            let header = IndexHeader::decode(bytes.first_chunk().unwrap());
            assert!((1..=units).contains(&header.next_unit), "I13: {header:?}");
            if header.next_unit > 1 {
                begin.get_or_insert(header.begin_phy.0);
            }
            let unit = |number| {
                let at = index_file::unit_at(slots, number) as usize;
                IndexUnit::decode(bytes[at..at + index_file::UNIT_LEN].try_into().unwrap())
            };
            let mut heads = vec![0; slots as usize];
            for number in 1..header.next_unit {
                let unit = unit(number);
                assert!(unit.phy.0 >= phy && unit.phy.0 < self.end, "I13, I18: unit {number} {unit:?} after {phy}");
                phy = unit.phy.0;
                let head = &mut heads[index_file::slot_of(unit.key, slots) as usize];
                assert_eq!(unit.previous, *head, "I13: unit {number} {unit:?}");
                *head = number;
                *entries.entry((unit.key, phy)).or_default() += 1;
            }
            for (slot, head) in (0..).zip(heads) {
                let at = index_file::slot_at(slot) as usize;
                assert_eq!(u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap()), head, "I13: slot {slot}");
            }
            let last = header.next_unit - 1;
            if last > 0 {
                assert_eq!(header.end_phy, unit(last).phy, "{header:?}");
            }
        }
        let mut expected: HashMap<(KeyHash, u64), usize> = HashMap::new();
        for stored in self.records.iter().filter(|s| s.transaction != sys_flag::TRANSACTION_ROLLBACK) {
            for key in stored.keys.iter().filter(|_| begin.is_some_and(|begin| stored.phy >= begin)) {
                *expected.entry((*key, stored.phy)).or_default() += 1;
            }
        }
        for (entry, count) in &expected {
            let found = entries.get(entry).copied().unwrap_or(0);
            assert!(found >= *count && (found == *count || !exact), "I14: {entry:?} is {found} times in the index");
        }
        assert!(begin.is_some() || self.records.iter().all(|stored| stored.keys.is_empty()), "I14: no index");
        if exact {
            let stray: BTreeSet<_> =
                entries.keys().filter(|entry| !expected.contains_key(*entry)).map(|e| e.1).collect();
            assert!(stray.is_empty(), "entries of no key at {stray:?}");
        }
    }
}

impl Stored {
    pub fn has_unit(&self) -> bool {
        ![sys_flag::TRANSACTION_PREPARED, sys_flag::TRANSACTION_ROLLBACK].contains(&self.transaction)
    }
}

fn stored(view: &RecordView<'_>) -> Stored {
    let text = view.properties();
    let level = properties::get(text, properties::DELAY).and_then(|level| level.parse::<usize>().ok()).unwrap_or(0);
    let tags = if view.topic() == "SCHEDULE_TOPIC_XXXX" && level > 0 {
        TagsCode(view.store_timestamp().0 + DELAYS_MS[level.min(DELAYS_MS.len()) - 1])
    } else {
        TagsCode::of(properties::get(text, properties::TAGS))
    };
    Stored {
        topic: view.topic().to_owned(),
        queue_id: view.queue_id(),
        offset: view.queue_offset().0,
        phy: view.phy().0,
        len: view.total_len(),
        stored_at: view.store_timestamp().0,
        body: view.body().to_vec(),
        properties: text.to_owned(),
        tags,
        keys: record::key_hashes(view.topic(), text).to_vec(),
        transaction: view.sys_flag() & sys_flag::TRANSACTION_MASK,
    }
}

/// Store times of the last entries of the index files that are full, oldest first.
pub fn ends_of_full_index_files(root: &Path, shape: Shape) -> Vec<i64> {
    let files = files_below(&root.join("index")).into_values();
    let headers = files.map(|bytes| IndexHeader::decode(bytes.first_chunk().expect("an index file has a header")));
    headers.filter(|header| header.next_unit == shape.index_entries).map(|header| header.end.0).collect()
}

/// Every file below a folder with its content.
pub fn files_below(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let Ok(entries) = fs::read_dir(dir) else { return found };
    for entry in entries {
        let path = entry.expect("a folder can be read").path();
        if path.is_dir() {
            found.extend(files_below(&path));
        } else {
            found.insert(path.clone(), fs::read(&path).expect("a file can be read"));
        }
    }
    found
}

/// Copies a folder with everything in it.
pub fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder can be made");
    for entry in fs::read_dir(from).expect("a folder can be read") {
        let path = entry.expect("a folder can be read").path();
        let copy = to.join(path.file_name().expect("an entry has a name"));
        if path.is_dir() {
            copy_folder(&path, &copy);
        } else {
            fs::copy(&path, &copy).expect("a file can be copied");
        }
    }
}

/// The files whose names are positions.
fn digit_files(dir: &Path) -> BTreeMap<u64, PathBuf> {
    let entries = fs::read_dir(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let paths = entries.map(|entry| entry.expect("a folder can be read").path());
    paths.filter_map(|path| Some((names::parse_segment_name(path.file_name()?.to_str()?)?, path))).collect()
}

fn folders(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    entries.map(|entry| entry.expect("a folder can be read").path()).filter(|path| path.is_dir()).collect()
}
