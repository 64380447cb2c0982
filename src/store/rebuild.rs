//! Consume queues and index built anew from the log: the old ones are moved aside, the store is opened as after their
//! loss, and they go once the new ones are on stable storage. Blocking, for `kerolox rebuild`. Queues whose messages have
//! all expired stay as they are: nothing but their files knows how far they had counted.
//!
//! Killed at any step it leaves a store that lacks derived files, which the next start, or the next rebuild, completes:
//! the note of a clean stop is taken back before anything is moved.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::layout::Layout;
use super::open::{Closing, close, open_locked};
use super::open_error::{OpenError, io_at};
use super::progress::Progress;
use super::queues::queue_dir;
use super::recovery::SAVE_INTERVAL;
use super::shared::StoreSettings;
use crate::io::{StoreLock, disk, fsync_dir, replace_keeping_old};
use crate::types::{PhyOffset, QueueKey};

/// What was built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rebuilt {
    pub log_end: PhyOffset,
    /// Queues that ever had a message.
    pub queues: u64,
    /// Units of messages that the log still has.
    pub units: u64,
    pub index_files: u64,
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
    forget_clean_stop(&layout, plan.queue_count)?;
    aside.fill()?;
    let opened = match open_locked(settings, lock, memory_len, SAVE_INTERVAL) {
        Ok(opened) => opened,
        Err(error) => {
            let _lock = StoreLock::take(layout.root())?;
            aside.put_back()?;
            return Err(error);
        }
    };
    let queues: Vec<_> = opened.queues.list().iter().map(|(_, queue)| Arc::clone(queue)).collect();
    let with_messages = queues.iter().filter(|queue| queue.max().0 > 0);
    let rebuilt = Rebuilt {
        log_end: opened.writer_start.end,
        queues: with_messages.clone().count() as u64,
        units: with_messages.map(|queue| queue.max().0 - queue.min().0).sum(),
        index_files: opened.index_files.len() as u64,
    };
    close(&Closing {
        layout: opened.layout.clone(),
        shared: Arc::clone(&opened.shared),
        queues: &queues,
        index_files: opened.index_files.clone(),
        checkpoint: opened.checkpoint,
    })?;
    aside.remove()?;
    Ok(rebuilt)
}

/// From here on a start that finds less than there was scans the whole log.
pub(super) fn forget_clean_stop(layout: &Layout, queue_count: u64) -> Result<(), OpenError> {
    let path = layout.flushed();
    if let Some(progress) = Progress::load(&path).map_err(io_at(&path))?.newest {
        // Twice, so that the older copy does not say it either.
        for _ in 0..2 {
            Progress { clean: None, ..progress }.save(&path).map_err(io_at(&path))?;
        }
    }
    let path = layout.recovery();
    disk::remove_if_present(&path).map_err(io_at(&path))?;
    let path = layout.queue_count();
    replace_keeping_old(&path, queue_count.to_string().as_bytes()).map_err(io_at(&path))
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
        let (queues_in_place, queues_aside) = (layout.consumequeue(), folder.join("consumequeue"));
        let of_queue = |key| (queue_dir(&queues_in_place, key), queue_dir(&queues_aside, key));
        let mut parts: Vec<_> = queues.iter().map(of_queue).collect();
        parts.push((layout.index(), folder.join("index")));
        Aside { root: layout.root().to_owned(), own: layout.own(), folder, parts }
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
