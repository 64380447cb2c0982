use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::AtomicI64;
use std::time::Instant;

use super::super::open::OpenedStore;
use super::super::test_store::{SEGMENT_LEN, TestStore};
use super::*;
use crate::io::Job;
use crate::io::test_executor::on_executor;
use crate::log::DiskRule;

const RULE: RetentionRule =
    RetentionRule { reserved_ms: 3_600_000, delete_hours: 0, batch_max: 10, force_when_full: true };
const LEVELS: DiskRule = DiskRule {
    max_used_percent: 100,
    clean_percent: 100,
    warning_percent: 100,
    min_free_clean: 0,
    min_free_warning: 0,
};
const SETTINGS: ExpirySettings =
    ExpirySettings { rule: RULE, check_interval_ms: 100, file_pause_ms: 0, held_report_ms: 100, retry_ms: 100 };
/// Patience with a busy machine.
const LIMIT: Duration = Duration::from_secs(20);

/// A thread in place of the node's helper.
fn blocking() -> Blocking {
    let (submit, jobs) = flume::unbounded::<Job>();
    std::thread::spawn(move || jobs.iter().for_each(|job| job()));
    Blocking::new(move |job| submit.send(job).expect("the thread takes all work"))
}

/// Expiry at work on an opened store.
struct Running {
    expiry: Rc<Expiry>,
    moved: Rc<Cell<u32>>,
    task: glommio::Task<()>,
}

fn start(opened: &OpenedStore, settings: ExpirySettings, levels: DiskRule, durable_up_to: i64) -> Running {
    let (shared, blocking) = (Arc::clone(&opened.shared), blocking());
    let index = IndexBuilder::new(
        Arc::clone(&shared),
        opened.layout.clone(),
        blocking.clone(),
        opened.index_files.clone(),
        Arc::default(),
        Arc::default(),
    );
    let moved = Rc::new(Cell::new(0));
    let told = Rc::clone(&moved);
    let disks = DiskWatch::new(&opened.layout, levels);
    let durable = vec![Arc::new(AtomicI64::new(i64::MAX)), Arc::new(AtomicI64::new(durable_up_to))];
    let on_moved = Box::new(move || told.set(told.get() + 1));
    let expiry =
        Expiry::new(shared, blocking, settings, (disks, StorePlace::new(&opened.layout)), durable, index, on_moved);
    let task = glommio::spawn_local(Rc::clone(&expiry).run());
    Running { expiry, moved, task }
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < deadline, "not within {LIMIT:?}: {what}");
        crate::io::sleep(Duration::from_millis(5)).await;
    }
}

fn names(store: &TestStore) -> Vec<u64> {
    let entries = fs::read_dir(store.layout().commitlog()).unwrap();
    let mut names: Vec<u64> = entries
        .map(|entry| entry.unwrap().file_name().to_str().unwrap().parse::<u64>().unwrap() / SEGMENT_LEN)
        .collect();
    names.sort_unstable();
    names
}

/// Thirteen segments.
fn filled() -> TestStore {
    let mut store = TestStore::new();
    for _ in 0..13 * 7 {
        store.put("A", 0, 400);
    }
    assert_eq!(names(&store), (0..13).collect::<Vec<_>>());
    store
}

#[test]
fn a_request_deletes_a_batch_a_pass_and_never_the_last_segment() {
    let store = filled();
    let opened = store.open().unwrap();
    on_executor(async {
        let settings = ExpirySettings { rule: RetentionRule { batch_max: 5, ..RULE }, ..SETTINGS };
        let Running { expiry, moved, task } = start(&opened, settings, LEVELS, i64::MAX);
        // A look or two, and nobody asked.
        crate::io::sleep(Duration::from_millis(250)).await;
        assert_eq!(names(&store).len(), 13);
        expiry.delete_expired();
        until("three passes", || names(&store) == [12]).await;
        until("three passes told", || moved.get() == 3).await;
        assert_eq!(opened.shared.segments.min(), PhyOffset(12 * SEGMENT_LEN));
        assert_eq!(opened.shared.counters.segments_expired.get(), 12);
        assert_eq!(opened.shared.counters.segments_forced.get(), 0);
        task.cancel().await;
    });
}

#[test]
fn what_is_not_flushed_or_whose_units_are_not_durable_stays() {
    let store = filled();
    let opened = store.open().unwrap();
    opened.shared.set_flushed(PhyOffset(3 * SEGMENT_LEN + 10));
    on_executor(async {
        let running = start(&opened, SETTINGS, LEVELS, i64::MAX);
        running.expiry.delete_expired();
        until("what is flushed goes", || names(&store) == (3..13).collect::<Vec<_>>()).await;
        running.task.cancel().await;
        // The last record of segment 5 is not durable in its queue; that of segment 4 is.
        let last_of_5 = store.sent.iter().rfind(|sent| sent.unit.phy.0 < 6 * SEGMENT_LEN).unwrap().stored_at;
        opened.shared.set_flushed(store.end);
        let running = start(&opened, SETTINGS, LEVELS, last_of_5.0);
        running.expiry.delete_expired();
        until("what is durable goes", || names(&store) == (5..13).collect::<Vec<_>>()).await;
        running.expiry.delete_expired();
        crate::io::sleep(Duration::from_millis(300)).await;
        assert_eq!(names(&store), (5..13).collect::<Vec<_>>());
        let asked = opened.shared.queue_syncs_asked();
        assert!(asked > 0);
        until("asked again, as it may be synced by now", || opened.shared.queue_syncs_asked() > asked).await;
        running.task.cancel().await;
        // In doubt, it will not be synced before the next start: nobody is told to hurry.
        opened.shared.set_in_doubt("a file".into(), "syncing it failed".into());
        let running = start(&opened, ExpirySettings { check_interval_ms: 3_600_000, ..SETTINGS }, LEVELS, last_of_5.0);
        let asked = opened.shared.queue_syncs_asked();
        running.expiry.delete_expired();
        until("told", || running.expiry.told_doubt.get()).await;
        crate::io::sleep(Duration::from_millis(1000 + UNSYNCED_RETRY_MS)).await;
        assert_eq!(opened.shared.queue_syncs_asked(), asked + 1);
        running.task.cancel().await;
    });
}

#[test]
fn a_reader_of_a_deleted_segment_reads_on_is_reported_and_its_bytes_go_after_it() {
    let store = filled();
    let opened = store.open().unwrap();
    let content = fs::read(store.segment(0)).unwrap();
    let descriptor = File::open(store.segment(0)).unwrap();
    let reader = opened.shared.segments.find(PhyOffset(100)).unwrap();
    on_executor(async {
        let Running { expiry, task, .. } = start(&opened, SETTINGS, LEVELS, i64::MAX);
        expiry.delete_expired();
        until("all but the last go", || names(&store) == [12]).await;
        assert!(opened.shared.segments.find(PhyOffset(100)).is_none(), "nobody finds it any more");
        until("the reader is reported", || opened.shared.counters.segments_held.get() == 1).await;
        assert_eq!(reader.bytes(), content);
        assert_eq!(descriptor.metadata().unwrap().len(), SEGMENT_LEN, "its bytes are there as long as they are mapped");
        drop(reader);
        until("its bytes are given back", || descriptor.metadata().unwrap().len() == 0).await;
        until("nothing is held", || expiry.held.borrow().is_empty()).await;
        assert_eq!(opened.shared.counters.segments_held.get(), 1, "reported once");
        task.cancel().await;
    });
}

#[test]
fn a_disk_that_is_too_full_takes_segments_before_their_time_and_sends_wait() {
    let store = filled();
    let opened = store.open().unwrap();
    // No disk has so much space: it stays full whatever goes.
    let levels = DiskRule { min_free_clean: u64::MAX, min_free_warning: u64::MAX, ..LEVELS };
    let kept_for_ever = RetentionRule { reserved_ms: i64::MAX / 2, batch_max: 4, ..RULE };
    on_executor(async {
        let settings = ExpirySettings { rule: kept_for_ever, check_interval_ms: 3_600_000, ..SETTINGS };
        let Running { task, .. } = start(&opened, settings, levels, i64::MAX);
        until("one pass, without waiting for the first minute", || names(&store) == (4..13).collect::<Vec<_>>()).await;
        until("sends are refused", || opened.shared.refusal().is_some()).await;
        let why = opened.shared.refusal().unwrap();
        assert!(why.contains("commitlog") && why.contains("% used") && why.contains(&u64::MAX.to_string()), "{why}");
        until("four are counted", || opened.shared.counters.segments_forced.get() == 4).await;
        task.cancel().await;
        let settings = ExpirySettings { rule: RetentionRule { force_when_full: false, ..kept_for_ever }, ..settings };
        let Running { task, expiry, .. } = start(&opened, settings, levels, i64::MAX);
        expiry.delete_expired();
        until("the pass is over", || !expiry.asked.get() && expiry.disks.borrow().is_some()).await;
        crate::io::sleep(Duration::from_millis(100)).await;
        assert_eq!(names(&store), (4..13).collect::<Vec<_>>());
        task.cancel().await;
    });
}

#[test]
fn a_segment_that_cannot_be_deleted_stays_readable_and_is_tried_again() {
    let store = filled();
    let opened = store.open().unwrap();
    // A folder in its place cannot be opened for writing, whoever asks.
    let (path, aside) = (store.segment(0), store.root().join("aside"));
    fs::rename(&path, &aside).unwrap();
    fs::create_dir(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    on_executor(async {
        let Running { expiry, moved, task } = start(&opened, SETTINGS, LEVELS, i64::MAX);
        expiry.age.set(Some((PhyOffset(0), Timestamp(0))));
        expiry.delete_expired();
        until("the pass is over", || !expiry.asked.get() && expiry.disks.borrow().is_some()).await;
        crate::io::sleep(Duration::from_millis(200)).await;
        assert_eq!(opened.shared.segments.min(), PhyOffset(0));
        assert_eq!((names(&store).len(), moved.get()), (13, 0));
        fs::remove_dir(&path).unwrap();
        fs::rename(&aside, &path).unwrap();
        until("tried again", || names(&store) == [12]).await;
        task.cancel().await;
    });
}

#[test]
fn the_age_of_a_segment_is_that_of_its_last_record_and_of_the_file_if_there_is_none() {
    let store = filled();
    let opened = store.open().unwrap();
    on_executor(async {
        let Running { expiry, task, .. } = start(&opened, SETTINGS, LEVELS, i64::MAX);
        for start in [0, 5, 11].map(|index| PhyOffset(index * SEGMENT_LEN)) {
            let segment = opened.shared.segments.find(start).unwrap();
            let last = store.sent.iter().rfind(|sent| sent.unit.phy < segment.end()).unwrap().stored_at;
            assert_eq!(expiry.newest_stored_at(&segment).await.ok(), Some(last));
        }
        let segment = opened.shared.segments.find(PhyOffset(SEGMENT_LEN)).unwrap();
        fs::write(segment.path(), vec![0; SEGMENT_LEN as usize]).unwrap();
        let changed = fs::metadata(segment.path()).unwrap().modified().unwrap();
        let changed = changed.duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as i64;
        expiry.age.set(None);
        assert_eq!(expiry.newest_stored_at(&segment).await.ok(), Some(Timestamp(changed)));
        task.cancel().await;
    });
}

#[test]
fn index_files_go_with_the_segments_that_they_lead_to_and_the_last_stays() {
    let mut store = TestStore::new();
    store.settings.index_entries = 40;
    for _ in 0..13 * 7 {
        store.put("A", 0, 400);
    }
    let opened = store.open().unwrap();
    let before = store.index_files();
    assert!(before.len() > 3, "{before:?}");
    on_executor(async {
        let Running { expiry, task, .. } = start(&opened, SETTINGS, LEVELS, i64::MAX);
        opened.shared.set_flushed(PhyOffset(6 * SEGMENT_LEN));
        expiry.delete_expired();
        let log_min = PhyOffset(6 * SEGMENT_LEN);
        until("six segments go", || opened.shared.segments.min() == log_min).await;
        let kept: Vec<_> = opened
            .index_files
            .iter()
            .filter(|file| super::super::index_builder::index_header(file).end_phy >= log_min)
            .map(|file| file.path().to_owned())
            .collect();
        assert!(kept.len() < before.len() && kept.len() > 1, "{kept:?}");
        until("their index files go", || store.index_files() == kept).await;
        until("the builder forgets them", || expiry.index.files().len() == kept.len()).await;
        opened.shared.set_flushed(store.end);
        expiry.delete_expired();
        until("the last stays", || store.index_files() == before[before.len() - 1..]).await;
        task.cancel().await;
    });
}

#[test]
fn an_index_file_that_the_disk_does_not_give_stays_and_fails_the_queries_that_need_it() {
    let mut store = TestStore::new();
    store.settings.index_entries = 40;
    for _ in 0..13 * 7 {
        store.put("A", 0, 400);
    }
    let opened = store.open().unwrap();
    let before = store.index_files();
    // Behind the mappings: touching the first byte of either is a fault now.
    for path in [&before[0], &before[before.len() - 1]] {
        std::fs::File::options().write(true).open(path).unwrap().set_len(0).unwrap();
    }
    on_executor(async {
        let Running { expiry, task, .. } = start(&opened, SETTINGS, LEVELS, i64::MAX);
        for _ in 0..2 {
            expiry.index.expire(store.end).await;
            assert_eq!((store.index_files(), expiry.index.files().len()), (before.clone(), before.len()));
        }
        let key = store.sent[0].keys[0];
        let error = expiry.index.find(key, PhyOffset(u64::MAX), 10, 0, i64::MAX).await.unwrap_err().to_string();
        assert!(error.contains(before[before.len() - 1].to_str().unwrap()), "{error}");
        task.cancel().await;
    });
}

/// What is appended to a file without a name is lost, and no write or sync fails.
#[test]
fn a_store_that_is_taken_away_under_the_node_takes_no_more_messages() {
    type TakeAway = fn(&TestStore);
    let cases: [(bool, TakeAway); 4] = [
        (true, |store| fs::remove_file(store.segment(12 * SEGMENT_LEN)).unwrap()),
        (true, |store| {
            let copy = store.root().join("copy");
            fs::copy(store.segment(12 * SEGMENT_LEN), &copy).unwrap();
            fs::rename(copy, store.segment(12 * SEGMENT_LEN)).unwrap();
        }),
        (false, |store| fs::remove_dir_all(store.root()).unwrap()),
        (false, |store| {
            let moved = store.root().with_extension("moved");
            fs::rename(store.root(), &moved).unwrap();
            fs::create_dir(store.root()).unwrap();
            fs::remove_dir_all(moved).unwrap();
        }),
    ];
    for (is_segment, take_away) in cases {
        let store = filled();
        let opened = store.open().unwrap();
        on_executor(async {
            let running = start(&opened, SETTINGS, LEVELS, i64::MAX);
            crate::io::sleep(Duration::from_millis(150)).await;
            assert_eq!(opened.shared.refusal(), None, "it is in its place");
            take_away(&store);
            until("it is missed", || opened.shared.is_poisoned()).await;
            let refusal = opened.shared.refusal().unwrap();
            let path = if is_segment { store.segment(12 * SEGMENT_LEN) } else { store.root().to_owned() };
            assert!(refusal.contains(&format!("({}:", path.display())), "{refusal}");
            running.task.cancel().await;
        });
    }
}
