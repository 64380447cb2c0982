//! Plain blocking file work: whole-file replacement, full-length creation, folder syncs. Never on an executor.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use super::disk;
use crate::types::{DiskUsage, Timestamp};

/// Makes a file of exactly `len` bytes whose blocks are all reserved, and syncs it and its folder. An existing file
/// keeps its content. A file system without `fallocate` gets its blocks by writing zeros.
///
/// # Errors
/// `ENOSPC` surfaces here, and never later as a fault under a mapping.
pub fn create_full_length(path: &Path, len: u64) -> io::Result<File> {
    if let Some(dir) = path.parent() {
        disk::make_lasting_folders(dir)?;
    }
    let file = disk::open_or_create(path)?;
    if file.metadata()?.len() != len {
        disk::resize(&file, path, len)?;
    }
    match disk::reserve(&file, path, 0, len) {
        Err(error) if error.kind() == io::ErrorKind::Unsupported => write_zeros(&file, path, len)?,
        done => done?,
    }
    disk::sync(&file, path)?;
    if let Some(dir) = path.parent() {
        disk::sync_folder(dir)?;
    }
    Ok(file)
}

fn write_zeros(file: &File, path: &Path, len: u64) -> io::Result<()> {
    let zeros = vec![0u8; 1 << 20];
    let mut at = 0;
    while at < len {
        let part = (len - at).min(zeros.len() as u64);
        disk::write_at(file, path, &zeros[..part as usize], at)?;
        at += part;
    }
    Ok(())
}

/// Can this file, or one in this folder, be written past the page cache? Blocking.
///
/// # Errors
/// It is not there, or the file system says something else than yes or no; for a folder, it knows no files without names.
pub fn knows_direct(path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::OpenOptionsExt;
    #[cfg(test)]
    if super::tap::simulated().is_some() {
        return Ok(true);
    }
    if takes_direct_in_vain(path)? {
        return Ok(false);
    }
    let is_folder = fs::metadata(path)?.is_dir();
    let flags = libc::O_DIRECT | if is_folder { libc::O_TMPFILE } else { 0 };
    match fs::OpenOptions::new().read(true).write(is_folder).custom_flags(flags).open(path) {
        Ok(_) => Ok(true),
        // EINVAL, from the flag.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(false),
        Err(error) => Err(error),
    }
}

/// Is the file on a tmpfs, which takes O_DIRECT and does nothing with it?
pub(super) fn takes_direct_in_vain(path: &Path) -> io::Result<bool> {
    Ok(rustix::fs::statfs(path)?.f_type == libc::TMPFS_MAGIC)
}

/// Sees to it that the first block of a file is a written one, not only reserved; what it holds stays. Files that are
/// written past the page cache need it: glommio reads that block to find out whether the device can be polled for
/// completions, and believes it can if no device was asked. Reads and writes of the file would then fail.
pub fn write_first_block(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::FileExt;
    let file = disk::open_to_write(path)?;
    let mut block = [0; 4096];
    file.read_exact_at(&mut block, 0)?;
    if block.iter().any(|byte| *byte != 0) {
        return Ok(());
    }
    disk::write_at(&file, path, &block, 0)?;
    disk::sync(&file, path)?;
    rustix::fs::fadvise(&file, 0, std::num::NonZeroU64::new(block.len() as u64), rustix::fs::Advice::DontNeed)?;
    Ok(())
}

/// The parts of `[from, len)` that were ever written, as (at, len); blocks that are only reserved are left out. Looked up
/// before anything is read: reading a reserved block would make it look written.
pub fn written_ranges(file: &File, from: u64, len: u64) -> io::Result<Vec<(u64, u64)>> {
    let mut ranges = Vec::new();
    let mut at = from;
    while at < len {
        at = match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(at)) {
            Ok(data) => data.max(at),
            Err(rustix::io::Errno::NXIO) => break,
            Err(errno) => return Err(errno.into()),
        };
        let hole = rustix::fs::seek(file, rustix::fs::SeekFrom::Hole(at))?.min(len);
        if hole > at {
            ranges.push((at, hole - at));
        }
        at = hole.max(at + 1);
    }
    Ok(ranges)
}

/// The last `len` bytes of a file, or all of them if it is shorter, and when it was last changed.
pub fn read_tail(path: &Path, len: u64) -> io::Result<(Vec<u8>, Timestamp)> {
    let file = File::open(path)?;
    let meta = file.metadata()?;
    let len = len.min(meta.len());
    let mut bytes = vec![0; usize::try_from(len).map_err(|_| io::ErrorKind::OutOfMemory)?];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, meta.len() - len)?;
    let since = meta.modified()?.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Ok((bytes, Timestamp(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))))
}

/// How full the file system is that holds `path`. May wait for a network file system.
pub fn disk_usage(path: &Path) -> io::Result<DiskUsage> {
    let stat = rustix::fs::statvfs(path)?;
    Ok(DiskUsage {
        used: stat.f_blocks.saturating_sub(stat.f_bfree).saturating_mul(stat.f_frsize),
        available: stat.f_bavail.saturating_mul(stat.f_frsize),
    })
}

/// The whole file, or nothing if there is none.
pub fn read_if_present(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Replaces `path` as a whole and keeps what was there as `path.bak`; a crash at any step leaves at least one of the
/// two whole. Order: new bytes into `path.tmp`, sync, old also as `.bak`, `.tmp` → `path`, sync of the folder.
pub fn replace_keeping_old(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let with_suffix = |suffix: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        std::path::PathBuf::from(name)
    };
    let (tmp, bak) = (with_suffix(".tmp"), with_suffix(".bak"));
    if let Some(dir) = path.parent() {
        disk::make_lasting_folders(dir)?;
    }
    disk::remove_if_present(&tmp)?;
    let file = disk::create_new(&tmp)?;
    disk::write_at(&file, &tmp, bytes, 0)?;
    disk::sync(&file, &tmp)?;
    // A second name for the old file, so that there is never a moment without `path`.
    disk::remove_if_present(&bak)?;
    match disk::hard_link(path, &bak) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    disk::rename(&tmp, path)?;
    match path.parent() {
        Some(dir) => disk::sync_folder(dir),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replaced_file_keeps_its_predecessor_as_bak() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config/topics.json");
        replace_keeping_old(&path, b"a long table").unwrap();
        replace_keeping_old(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two", "nothing of the longer one is left");
        assert_eq!(fs::read(dir.path().join("config/topics.json.bak")).unwrap(), b"a long table");
        assert!(!dir.path().join("config/topics.json.tmp").exists());
    }

    /// A process that is killed at its `n`th change of a file.
    struct Killed {
        left: std::cell::Cell<u32>,
    }

    impl crate::io::tap::Tap for Killed {
        fn ask(&self, _: &disk::Change<'_>) -> io::Result<disk::Answer> {
            let left = self.left.get();
            self.left.set(left.saturating_sub(1));
            if left == 0 { Err(io::Error::other("killed")) } else { Ok(disk::Answer::Do) }
        }
    }

    #[test]
    fn t10_a_replacement_that_is_killed_at_any_step_leaves_one_of_the_last_two_values_whole() {
        let mut steps = 0;
        loop {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("consumerOffset.json");
            let values: [&[u8]; 3] = [b"the oldest, which nobody asks for", b"before", b"new and longer"];
            replace_keeping_old(&path, values[0]).unwrap();
            replace_keeping_old(&path, values[1]).unwrap();
            let watch = crate::io::tap::Watch::start(std::rc::Rc::new(Killed { left: steps.into() }));
            let ended = replace_keeping_old(&path, values[2]);
            drop(watch);
            let found = fs::read(&path).unwrap();
            assert!(values[1..].contains(&&found[..]), "{steps}: {found:?}");
            let bak = fs::read(dir.path().join("consumerOffset.json.bak"));
            assert!(bak.is_ok_and(|bak| values.contains(&&bak[..])) || found == values[1], "{steps}");
            // What was left half done is in nobody's way.
            replace_keeping_old(&path, b"next").unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"next");
            if ended.is_ok() {
                break;
            }
            steps += 1;
        }
        assert!(steps >= 5, "{steps} steps were found");
    }

    #[test]
    fn a_full_length_file_has_its_length_and_keeps_what_was_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("commitlog/00000000000000000000");
        create_full_length(&path, 10_000).unwrap();
        fs::write(&path, [7; 100]).unwrap();
        create_full_length(&path, 10_000).unwrap();
        let bytes = fs::read(&path).unwrap();
        assert_eq!((bytes.len(), bytes[99], bytes[100]), (10_000, 7, 0));
    }

    /// The changes that this thread makes, in order.
    struct Recorder(std::cell::RefCell<Vec<String>>);

    impl crate::io::tap::Tap for Recorder {
        fn ask(&self, change: &disk::Change<'_>) -> io::Result<disk::Answer> {
            let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
            match change {
                disk::Change::MakeFolder { path } => self.0.borrow_mut().push(format!("make {}", name(path))),
                disk::Change::SyncFolder { path } => self.0.borrow_mut().push(format!("sync {}", name(path))),
                _ => {}
            }
            Ok(disk::Answer::Do)
        }
    }

    #[test]
    fn a_folder_for_what_must_last_is_named_on_stable_storage_before_it_is_used() {
        let dir = tempfile::tempdir_in("/tmp").unwrap();
        let base = dir.path().join("base");
        fs::create_dir(&base).unwrap();
        let recorder = std::rc::Rc::new(Recorder(std::cell::RefCell::default()));
        let _watch = crate::io::tap::Watch::start(std::rc::Rc::clone(&recorder) as _);
        replace_keeping_old(&base.join("store/config/topics.json"), b"one").unwrap();
        assert_eq!(recorder.0.take(), ["make store", "sync base", "make config", "sync store", "sync config"]);
        disk::make_folders(&base.join("store/consumequeue/T")).unwrap();
        assert_eq!(recorder.0.take(), ["make consumequeue", "make T"], "what can be built anew need not last");
        disk::remove_for_good(&base.join("store/config/topics.json")).unwrap();
        assert_eq!(recorder.0.take(), ["sync config"]);
    }
}
