use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::*;
use crate::io::disk::{Answer, Change};
use crate::io::tap::{Tap, Watch};
use crate::io::test_executor::on_executor;
use crate::io::{Segment, create_full_length, write_first_block};

const MODES: [AppendMode; 3] = [AppendMode::Buffered, AppendMode::Mmap, AppendMode::Dma];

fn run<T>(body: impl Future<Output = T>) -> T {
    on_executor(body)
}

/// Never zero, so that it differs from what was there before.
fn byte_at(at: u64) -> u8 {
    ((at ^ (at >> 9) ^ (at >> 17)) as u8) | 1
}

fn log(at: u64, len: u64) -> Vec<u8> {
    (at..at + len).map(byte_at).collect()
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

async fn open(path: &Path, len: u64, end: u64, mode: AppendMode, call: SyncCall) -> LogFile {
    if mode == AppendMode::Dma {
        write_first_block(path).unwrap();
    }
    let blocking = Blocking::new(|job| job());
    LogFile::open(&blocking, path, PhyOffset(0), len, PhyOffset(end), mode, call).await.unwrap()
}

/// Changes that a file's opening makes, and whether the helper thread makes them.
struct OnHelper {
    works: Arc<AtomicBool>,
    seen: RefCell<Vec<bool>>,
}

impl Tap for OnHelper {
    fn ask(&self, _: &Change<'_>) -> io::Result<Answer> {
        self.seen.borrow_mut().push(self.works.load(Ordering::Relaxed));
        Ok(Answer::Do)
    }
}

#[test]
fn a_segment_is_mapped_on_the_helper_thread() {
    const LEN: u64 = 1 << 20;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("segment");
    create_full_length(&path, LEN).unwrap();
    let works = Arc::new(AtomicBool::new(false));
    let noted = Arc::clone(&works);
    let blocking = Blocking::new(move |job| {
        noted.store(true, Ordering::Relaxed);
        job();
        noted.store(false, Ordering::Relaxed);
    });
    let tap = Rc::new(OnHelper { works, seen: RefCell::default() });
    let watch = Watch::start(Rc::clone(&tap) as _);
    let start = PhyOffset(0);
    let file = run(LogFile::open(&blocking, &path, start, LEN, start, AppendMode::Mmap, SyncCall::Fdatasync)).unwrap();
    assert_eq!(file.mode(), AppendMode::Mmap);
    drop(watch);
    let seen = tap.seen.take();
    assert!(!seen.is_empty() && seen.iter().all(|on_helper| *on_helper), "{seen:?}");
}

#[test]
fn every_mode_and_every_change_between_them_leaves_the_same_bytes() {
    const LEN: u64 = 4 << 20;
    let dir = tempfile::tempdir().unwrap();
    let mut seen = Vec::new();
    for plan in 0..4 {
        let path = dir.path().join(format!("{plan}"));
        create_full_length(&path, LEN).unwrap();
        run(async {
            let mut random = Random(77);
            let mut end = 0;
            'whole: for opening in 0.. {
                // The last plan takes another mode each time.
                let mode = MODES[if plan < 3 { plan } else { opening % 3 }];
                let call = if opening % 2 == 0 { SyncCall::ODsync } else { SyncCall::Fdatasync };
                let file = open(&path, LEN, end, mode, call).await;
                assert_eq!(file.mode(), mode);
                for _ in 0..5 {
                    let most = if random.below(9) == 0 { 1_500_000 } else { 6_000 };
                    let len = 1 + random.below(most);
                    if end + len > LEN - 5000 {
                        break 'whole;
                    }
                    file.write(PhyOffset(end), log(end, len), random.below(2) == 0).await.unwrap();
                    end += len;
                }
                file.close().await;
            }
            let bytes = fs::read(&path).unwrap();
            assert!(bytes[..end as usize] == log(0, end), "plan {plan}");
            assert!(bytes[end as usize..].iter().all(|byte| *byte == 0), "plan {plan}");
            seen.push(end);
        });
    }
    assert_eq!(seen, [seen[0]; 4]);
}

#[test]
fn a_direct_write_is_seen_through_mapping_and_page_cache_even_by_who_looks_too_early() {
    const LEN: u64 = 16 << 20;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("0");
    create_full_length(&path, LEN).unwrap();
    let segment = Arc::new(Segment::open(&path, PhyOffset(0)).unwrap());
    // What was written before the last byte of it was told.
    let written = AtomicU64::new(0);
    let stop = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for seed in 1..=2 {
            let (segment, path, written, stop) = (Arc::clone(&segment), &path, &written, &stop);
            scope.spawn(move || {
                let file = File::open(path).unwrap();
                let mut random = Random(seed * 1_234_567);
                let mut looked = 0u64;
                while stop.load(Ordering::Acquire) == 0 || looked == 0 {
                    let end = written.load(Ordering::Acquire);
                    // Pages at and behind the end come into the page cache, through both ways.
                    let ahead = (end + random.below(20_000)).min(LEN - 1);
                    let mut early = [0];
                    file.read_exact_at(&mut early, ahead).unwrap();
                    let shown = segment.slice(PhyOffset(ahead), 1).unwrap()[0];
                    assert!([0, byte_at(ahead)].contains(&shown) && [0, byte_at(ahead)].contains(&early[0]));
                    let back = random.below(60_000).min(end);
                    let at = end - back;
                    let len = random.below(back + 1);
                    let expected = log(at, len);
                    let mut read = vec![0; len as usize];
                    file.read_exact_at(&mut read, at).unwrap();
                    assert!(read == expected, "read of {len} bytes at {at}, the log ended at {end}");
                    let mapped = segment.slice(PhyOffset(at), len as usize).unwrap();
                    assert!(mapped == expected, "mapping, {len} bytes at {at}, the log ended at {end}");
                    looked += 1;
                }
            });
        }
        run(async {
            let file = open(&path, LEN, 0, AppendMode::Dma, SyncCall::ODsync).await;
            let mut random = Random(99);
            let mut end = 0;
            loop {
                let len = 1 + random.below(30_000);
                if end + len > LEN {
                    break;
                }
                file.write(PhyOffset(end), log(end, len), random.below(3) == 0).await.unwrap();
                end += len;
                written.store(end, Ordering::Release);
            }
        });
        stop.store(1, Ordering::Release);
    });
}

#[test]
fn what_is_written_past_the_page_cache_is_not_kept_in_it() {
    const LEN: u64 = 4 << 20;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("0");
    create_full_length(&path, LEN).unwrap();
    let segment = Segment::open(&path, PhyOffset(0)).unwrap();
    run(async {
        let file = open(&path, LEN, 0, AppendMode::Dma, SyncCall::ODsync).await;
        file.write_zeros(PhyOffset(1 << 20), ZERO_LEN).await.unwrap();
        file.write(PhyOffset(0), log(0, 2 << 20), false).await.unwrap();
        file.sync().await.unwrap();
    });
    assert!(!segment.is_resident(PhyOffset(0), 4096) && !segment.is_resident(PhyOffset(1 << 20), 4096));
    assert_eq!(fs::read(&path).unwrap()[..2 << 20], log(0, 2 << 20));
}

#[test]
fn a_file_system_without_direct_access_is_written_through_the_page_cache() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("0");
    create_full_length(&path, 1 << 20).unwrap();
    run(async {
        let file = open(&path, 1 << 20, 0, AppendMode::Dma, SyncCall::ODsync).await;
        assert_eq!((file.mode(), file.rewritten()), (AppendMode::Buffered, None));
        file.write(PhyOffset(0), log(0, 5000), true).await.unwrap();
    });
    assert_eq!(fs::read(&path).unwrap()[..5000], log(0, 5000));
}
