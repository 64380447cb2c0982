//! Consume queues and index built anew from the log: the old ones are moved aside, the store is opened as after their
//! loss, and they go once the new ones are on stable storage. Blocking, for `kerolox rebuild`. Queues whose messages have
//! all expired stay as they are: nothing but their files knows how far they had counted.
//!
//! Killed at any step it leaves a store that lacks derived files, which the next start, or the next rebuild, completes:
//! the note of a clean stop is taken back before anything is moved.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::clean_stop::forget_clean_stop;
use super::layout::Layout;
use super::open::{Closing, close, open_locked};
use super::open_error::{OpenError, io_at};
use super::opening::Opening;
use super::quarantine::{self, Region};
use super::queues::{QueueView, UnitFile, queue_dir};
use super::recovery::{SAVE_INTERVAL, store_unit};
use super::shared::StoreSettings;
use super::survey::{self, QueueEntry, UnitReader};
use crate::format::names;
use crate::format::unit::{UNIT_LEN, Unit};
use crate::io::{SharedMap, StoreLock, disk, fsync_dir};
use crate::types::{PhyOffset, QueueKey, QueueOffset};

/// What was built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rebuilt {
    pub log_end: PhyOffset,
    /// Queues that ever had a message.
    pub queues: u64,
    /// Units of messages that the log still has.
    pub units: u64,
    pub index_files: u64,
    /// What was newly found damaged in the log, or cut off its end.
    pub lost: Vec<Region>,
    /// Damaged regions that were known before.
    pub known: Vec<Region>,
    /// Slots of lost messages at the ends of queues, that the old files alone knew.
    pub slots_kept: u64,
    /// Queues whose topic is in no table and that are left as they were.
    pub left: Vec<QueueKey>,
}

/// What is known of the derived files before they are built anew.
#[derive(Clone, Debug, Default)]
pub struct RebuildPlan {
    /// How many queues had messages; so many must be there again before a start takes the store for whole.
    pub queue_count: u64,
    /// Queues of which the log has messages, or may have some.
    pub queues: Vec<QueueKey>,
}

/// Builds the derived files of the store anew.
///
/// # Errors
/// The store is in use, or its log cannot be opened: then the old files are back in their place.
pub fn rebuild(settings: StoreSettings, plan: &RebuildPlan, memory_len: u64) -> Result<Rebuilt, OpenError> {
    let layout = Layout::new(&settings.root);
    let aside = Aside::new(&layout, &plan.queues);
    let lock = StoreLock::take(layout.root())?;
    let before = quarantine::list(&layout)?;
    forget_clean_stop(&layout, plan.queue_count)?;
    aside.fill()?;
    let mut opened = match open_locked(settings.clone(), lock, memory_len, SAVE_INTERVAL, &Opening::unstopped()) {
        Ok(opened) => opened,
        Err(error) => {
            let _lock = StoreLock::take(layout.root())?;
            aside.put_back()?;
            return Err(error);
        }
    };
    let log_min = opened.shared.segments.min();
    let (known, lost): (Vec<_>, Vec<_>) =
        quarantine::list(&layout)?.into_iter().partition(|region| before.contains(region));
    let damaged: Vec<_> = known.iter().chain(&lost).filter(|region| region.is_damaged()).cloned().collect();
    let (mut slots_kept, mut left) = (0, Vec::new());
    for old in aside.queues()? {
        let is_listed = opened.tables.topics.topics.contains_key(&*old.key.topic);
        let old_units = OldUnits::of(&aside, &old, log_min)?;
        let queue = opened.queues.queue(&old.key);
        if queue.max().0 == 0 && !is_listed && !opened.tables.topics.topics.is_empty() {
            // A table that was restored from an older copy knows nothing of it: the log's messages are nobody's.
            left.extend((!old_units.range.is_empty()).then_some(old.key));
            continue;
        }
        slots_kept += keep_slots(&settings, &layout, &queue, old_units, &damaged)?;
    }
    let queues: Vec<_> = opened.queues.list().iter().map(|(_, queue)| Arc::clone(queue)).collect();
    let with_messages = queues.iter().filter(|queue| queue.max().0 > 0);
    let rebuilt = Rebuilt {
        log_end: opened.writer_start.end,
        queues: with_messages.clone().count() as u64,
        units: with_messages.map(|queue| queue.max().0 - queue.min().0).sum(),
        index_files: opened.index_files.len() as u64,
        lost,
        known: known.into_iter().filter(|region| region.is_damaged() && region.end() > log_min).collect(),
        slots_kept,
        left,
    };
    close(&Closing {
        layout: opened.layout.clone(),
        shared: Arc::clone(&opened.shared),
        queues: &queues,
        index_files: opened.index_files.clone(),
        checkpoint: opened.checkpoint,
    })?;
    aside.put_back_of(&rebuilt.left)?;
    aside.remove()?;
    Ok(rebuilt)
}

/// What the old files of a queue hold of messages that the log has, or had.
struct OldUnits {
    reader: UnitReader,
    folder: PathBuf,
    range: std::ops::Range<u64>,
}

impl OldUnits {
    fn of(aside: &Aside, old: &QueueEntry, log_min: PhyOffset) -> Result<OldUnits, OpenError> {
        let folder = queue_dir(&aside.folder.join(names::CONSUME_QUEUE), &old.key);
        let mut reader = UnitReader::of_folder(folder.clone(), old.files.clone());
        let mut range = reader.ends().map_err(io_at(&folder))?;
        let mut is_gone = |offset| -> Result<bool, OpenError> {
            let unit = reader.unit(offset).map_err(io_at(&folder))?;
            Ok(unit.is_none_or(|unit| unit.is_pre_blank() || unit.phy < log_min))
        };
        while range.start < range.end && is_gone(range.start)? {
            range.start += 1;
        }
        Ok(OldUnits { reader, folder, range })
    }
}

/// Closes the slots behind the end of a queue whose old units lead into damage: their offsets were given out (rule R4).
/// Units that lead elsewhere prove nothing, and those behind the end of the log were of messages that never were safe.
fn keep_slots(
    settings: &StoreSettings,
    layout: &Layout,
    queue: &Arc<QueueView>,
    mut old: OldUnits,
    damaged: &[Region],
) -> Result<u64, OpenError> {
    let first = if queue.files().is_empty() { old.range.start } else { queue.max().0 };
    let mut kept = 0;
    for offset in first..old.range.end {
        let unit = old.reader.unit(offset).map_err(io_at(&old.folder))?.filter(|unit| !unit.is_pre_blank());
        let leads_into =
            |region: &&Region| unit.is_some_and(|unit| region.start() <= unit.phy && unit.phy < region.end());
        let Some(region) = damaged.iter().find(leads_into) else { break };
        push(settings, layout, queue, QueueOffset(offset), &region.unit())?;
        kept += 1;
    }
    Ok(kept)
}

/// Puts one more unit at the end of a queue.
fn push(
    settings: &StoreSettings,
    layout: &Layout,
    queue: &Arc<QueueView>,
    offset: QueueOffset,
    unit: &Unit,
) -> Result<(), OpenError> {
    let units = settings.consumequeue_len / UNIT_LEN as u64;
    let last = queue.files().last().cloned().filter(|file| offset < file.end());
    let file = match last {
        Some(file) => file,
        None => {
            let first = QueueOffset(offset.0 - offset.0 % units);
            let name = names::segment_name(first.0.saturating_mul(UNIT_LEN as u64));
            let path = queue_dir(&layout.consumequeue(), queue.key()).join(name);
            let map = SharedMap::open(&path, settings.consumequeue_len).map_err(io_at(&path))?;
            let file = Arc::new(UnitFile::new(first, map));
            if queue.files().is_empty() {
                file.map().reserve((offset.0 - first.0 + 1) * UNIT_LEN as u64).map_err(io_at(&path))?;
                (first.0..offset.0).for_each(|at| store_unit(&file, QueueOffset(at), &Unit::PRE_BLANK));
                queue.publish_min(offset);
            }
            queue.push_file(Arc::clone(&file));
            file
        }
    };
    let end = (offset.0 - file.first().0 + 1) * UNIT_LEN as u64;
    file.map().reserve(end).map_err(io_at(file.map().path()))?;
    store_unit(&file, offset, unit);
    queue.publish_max(offset.advance(1));
    Ok(())
}

/// Where the old files wait: below our own folder, which Java never looks into.
struct Aside {
    root: PathBuf,
    own: PathBuf,
    folder: PathBuf,
    /// Folders in their place, and aside: a queue's each, and that of the index.
    parts: Vec<(PathBuf, PathBuf)>,
}

impl Aside {
    fn new(layout: &Layout, queues: &[QueueKey]) -> Aside {
        let folder = layout.own().join("before-rebuild");
        let (queues_in_place, queues_aside) = (layout.consumequeue(), folder.join(names::CONSUME_QUEUE));
        let of_queue = |key| (queue_dir(&queues_in_place, key), queue_dir(&queues_aside, key));
        let mut parts: Vec<_> = queues.iter().map(of_queue).collect();
        parts.push((layout.index(), folder.join("index")));
        Aside { root: layout.root().to_owned(), own: layout.own(), folder, parts }
    }

    /// The queues whose old files wait here, those of a rebuild that was killed too.
    fn queues(&self) -> Result<Vec<QueueEntry>, OpenError> {
        survey::queues(&self.folder.join(names::CONSUME_QUEUE), &mut Vec::new())
    }

    /// Moves the old files of these queues back: nothing was built in their place.
    fn put_back_of(&self, queues: &[QueueKey]) -> Result<(), OpenError> {
        for key in queues {
            let (root, aside) = (self.root.join(names::CONSUME_QUEUE), self.folder.join(names::CONSUME_QUEUE));
            let place = queue_dir(&root, key);
            disk::remove_tree(&place).map_err(io_at(&place))?;
            self.move_folder(&queue_dir(&aside, key), &place)?;
        }
        Ok(())
    }

    /// Moves the old files aside. Those of a rebuild that was killed are there already, and what it had made goes.
    fn fill(&self) -> Result<(), OpenError> {
        disk::make_folders(&self.folder).map_err(io_at(&self.folder))?;
        for (place, aside) in self.parts.iter().filter(|(place, _)| place.exists()) {
            if aside.exists() {
                disk::remove_tree(place).map_err(io_at(place))?;
            } else {
                self.move_folder(place, aside)?;
            }
        }
        self.sync()
    }

    /// Gives up what was built and moves the old files back.
    fn put_back(&self) -> Result<(), OpenError> {
        for (place, aside) in self.parts.iter().filter(|(_, aside)| aside.exists()) {
            disk::remove_tree(place).map_err(io_at(place))?;
            self.move_folder(aside, place)?;
        }
        self.sync()?;
        self.remove()
    }

    fn move_folder(&self, from: &Path, to: &Path) -> Result<(), OpenError> {
        for dir in [to, from].into_iter().filter_map(Path::parent) {
            disk::make_folders(dir).map_err(io_at(dir))?;
        }
        disk::rename(from, to).map_err(io_at(from))?;
        // The new name first: a folder with two names is found, one with none is not.
        for dir in [to, from].into_iter().filter_map(Path::parent) {
            fsync_dir(dir).map_err(io_at(dir))?;
        }
        Ok(())
    }

    fn remove(&self) -> Result<(), OpenError> {
        disk::remove_tree(&self.folder).map_err(io_at(&self.folder))?;
        fsync_dir(&self.own).map_err(io_at(&self.own))
    }

    fn sync(&self) -> Result<(), OpenError> {
        let sync = |dir: &Path| fsync_dir(dir).map_err(io_at(dir));
        sync(&self.folder)?;
        sync(&self.own)?;
        sync(&self.root)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::store::test_store::TestStore;

    fn sound() -> TestStore {
        let store = TestStore::of_two_topics();
        store.open_check_close();
        store
    }

    fn plan() -> RebuildPlan {
        RebuildPlan { queue_count: 2, queues: vec![QueueKey::new("A", 0), QueueKey::new("B", 0)] }
    }

    fn rebuild_store(store: &TestStore) -> Result<Rebuilt, OpenError> {
        rebuild(store.settings.clone(), &plan(), 1 << 30)
    }

    /// The derived files by name, but for those of the index, whose names are times.
    fn derived(store: &TestStore) -> Vec<(PathBuf, Vec<u8>)> {
        let queues = store.layout().consumequeue();
        let mut files: Vec<_> = store.snapshot().into_iter().filter(|(path, _)| path.starts_with(&queues)).collect();
        files.extend(store.index_files().into_iter().map(|path| (PathBuf::new(), fs::read(path).unwrap())));
        files
    }

    #[test]
    fn what_is_rebuilt_has_the_bytes_of_what_was_there() {
        let store = sound();
        let before = derived(&store);
        let rebuilt = rebuild_store(&store).unwrap();
        assert_eq!((rebuilt.queues, rebuilt.units, rebuilt.log_end), (2, 36, store.end));
        assert_eq!(derived(&store), before);
        assert!(!store.layout().own().join("before-rebuild").exists());
        store.open_check_close();
    }

    #[test]
    fn offsets_of_messages_that_were_lost_at_the_end_are_not_given_out_again_and_said() {
        // The last messages of both queues, some in one segment; then all that a queue ever had.
        for (from, topics) in [(30, &["B"][..]), (10, &["A", "B"]), (0, &["A", "B"])] {
            let store = sound();
            let at = store.sent[from].unit.phy;
            let last = store.sent[35].unit;
            for sent in &store.sent[from..] {
                store.write(sent.unit.phy, &vec![0xEE; sent.unit.len as usize]);
            }
            let rebuilt = rebuild_store(&store).unwrap();
            assert_eq!(rebuilt.log_end, store.end);
            assert_eq!(rebuilt.lost.first().map(|region| region.phy), Some(at.0), "{rebuilt:?}");
            assert!(rebuilt.slots_kept > 0 && rebuilt.known.is_empty(), "{rebuilt:?}");
            let opened = store.open().unwrap();
            for topic in topics {
                let key = QueueKey::new(*topic, 0);
                let queues = opened.queues.list();
                let queue = queues.iter().map(|(_, queue)| queue).find(|queue| *queue.key() == key).unwrap();
                assert_eq!(queue.max().0, store.counters[&key], "{topic} from {from}");
                let unit = queue.units_from(QueueOffset(queue.max().0 - 1)).unwrap().get(0);
                assert!(rebuilt.lost.iter().any(|region| region.unit() == unit), "{topic} from {from}");
            }
            store.close(opened);
            assert!(last.phy < store.end);
            // Nobody tells the second one any news.
            let again = rebuild_store(&store).unwrap();
            assert_eq!((again.lost.len(), again.known.len()), (0, rebuilt.lost.len()));
            assert_eq!((again.log_end, again.queues, again.units), (rebuilt.log_end, rebuilt.queues, rebuilt.units));
        }
    }

    #[test]
    fn what_a_rebuild_leaves_with_damage_at_the_end_is_no_finding_of_verify() {
        let store = sound();
        for sent in &store.sent[30..] {
            store.write(sent.unit.phy, &vec![0; sent.unit.len as usize]);
        }
        rebuild_store(&store).unwrap();
        let dir = survey::StoreDir::open(store.root()).unwrap();
        let shape = survey::Shape::of(&dir, survey::ShapeHints::default());
        let asked = survey::Verify { shape, delays_ms: vec![1000], index: true };
        let report = survey::verify(&dir, &asked, &mut |_, _| {}).unwrap();
        assert_eq!((report.errors, report.quarantined.len()), (0, 1), "{report:#?}");
        assert_eq!((report.counts.log_end, report.quarantined[0].units), (store.end.0, 6));
        drop(dir);
        // Bytes behind it are none that anybody knows.
        store.write(store.end.advance(100), &[7; 50]);
        let dir = survey::StoreDir::open(store.root()).unwrap();
        let report = survey::verify(&dir, &asked, &mut |_, _| {}).unwrap();
        assert_eq!(report.errors_by_rule.get("I18"), Some(&1), "{report:#?}");
    }

    #[test]
    fn queues_of_a_topic_that_the_table_lacks_stay_as_they_were() {
        let store = sound();
        let before = derived(&store);
        fs::create_dir_all(store.root().join("config")).unwrap();
        fs::write(store.root().join("config/topics.json"), r#"{"topicConfigTable":{"A":{"topicName":"A"}}}"#).unwrap();
        let rebuilt = rebuild_store(&store).unwrap();
        assert_eq!(rebuilt.left, [QueueKey::new("B", 0)]);
        let units = |files: Vec<(PathBuf, Vec<u8>)>| files.into_iter().filter(|(path, _)| path.as_os_str() != "");
        assert!(units(derived(&store)).eq(units(before)));
    }

    #[test]
    fn wrong_units_and_entries_are_made_right() {
        let store = sound();
        let before = derived(&store);
        store.write_unit("A", 0, 3, &store.sent[4].unit);
        fs::write(&store.index_files()[0], [0xAB; 100]).unwrap();
        rebuild_store(&store).unwrap();
        assert_eq!(derived(&store), before);
        store.open_check_close();
    }

    #[test]
    fn a_rebuild_that_was_killed_is_completed_by_a_start_and_by_a_rebuild() {
        for finish in [
            |store: &TestStore| store.open_check_close(),
            |store: &TestStore| assert_eq!(rebuild_store(store).unwrap().units, 36),
        ] {
            for unclean in [false, true] {
                for part in 0..4 {
                    let store = sound();
                    let before = derived(&store);
                    if unclean {
                        fs::write(store.layout().abort(), "1").unwrap();
                    }
                    let aside = Aside::new(&store.layout(), &plan().queues);
                    forget_clean_stop(&store.layout(), 2).unwrap();
                    if part < 3 {
                        fs::create_dir_all(&aside.folder).unwrap();
                        for (place, aside_of_it) in &aside.parts[..part] {
                            aside.move_folder(place, aside_of_it).unwrap();
                        }
                    } else {
                        aside.fill().unwrap();
                        // It had got so far as to build one file.
                        fs::create_dir_all(store.queue_file("A", 0, 0).parent().unwrap()).unwrap();
                        store.write_unit("A", 0, 0, &store.sent[0].unit);
                    }
                    finish(&store);
                    assert_eq!(derived(&store), before, "unclean: {unclean}, part {part}");
                    store.open_check_close();
                }
            }
        }
    }

    #[test]
    fn if_the_log_cannot_be_opened_the_old_files_are_back() {
        let store = sound();
        fs::remove_file(store.segment(4096)).unwrap();
        let before = derived(&store);
        let error = rebuild_store(&store).unwrap_err().to_string();
        assert!(error.contains("missing"), "{error}");
        assert_eq!(derived(&store), before);
        assert!(!store.layout().own().join("before-rebuild").exists());
    }

    #[test]
    fn a_queue_whose_messages_have_all_expired_keeps_its_count() {
        let key = QueueKey::new("Old", 0);
        let mut store = TestStore::new();
        for _ in 0..12 {
            store.put("Old", 0, 200);
        }
        for _ in 0..24 {
            store.put("B", 0, 200);
        }
        store.open_check_close();
        fs::remove_file(store.segment(0)).unwrap();
        let plan = RebuildPlan { queue_count: 2, queues: vec![QueueKey::new("B", 0)] };
        let rebuilt = rebuild(store.settings.clone(), &plan, 1 << 30).unwrap();
        assert_eq!((rebuilt.queues, rebuilt.units), (2, 24));
        let opened = store.open().unwrap();
        let queues = opened.queues.list();
        let old = queues.iter().map(|(_, queue)| queue).find(|queue| *queue.key() == key).unwrap();
        assert_eq!((old.min().0, old.max().0), (12, 12));
    }
}
