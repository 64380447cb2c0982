//! Plain blocking file work: whole-file replacement, full-length creation, folder syncs. Never on an executor.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use rustix::fs::FallocateFlags;

/// Makes a file of exactly `len` bytes whose blocks are all reserved, and syncs it and its folder. An existing file
/// keeps its content. A file system without `fallocate` gets its blocks by writing zeros.
///
/// # Errors
/// `ENOSPC` surfaces here, and never later as a fault under a mapping.
pub fn create_full_length(path: &Path, len: u64) -> io::Result<File> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
    if file.metadata()?.len() != len {
        file.set_len(len)?;
    }
    match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, len) {
        Ok(()) => {}
        Err(rustix::io::Errno::OPNOTSUPP) => write_zeros(&file, len)?,
        Err(errno) => return Err(errno.into()),
    }
    file.sync_all()?;
    if let Some(dir) = path.parent() {
        fsync_dir(dir)?;
    }
    Ok(file)
}

fn write_zeros(mut file: &File, len: u64) -> io::Result<()> {
    let zeros = vec![0u8; 1 << 20];
    let mut left = len;
    while left > 0 {
        let part = left.min(zeros.len() as u64) as usize;
        file.write_all(&zeros[..part])?;
        left -= part as u64;
    }
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

/// Makes names created, renamed or removed in `dir` durable.
pub fn fsync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// The whole file, or nothing if there is none.
pub fn read_if_present(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Removes a file that may not be there.
pub fn remove_if_present(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
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
        fs::create_dir_all(dir)?;
    }
    let mut file = File::create(&tmp)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    // A second name for the old file, so that there is never a moment without `path`.
    remove_if_present(&bak)?;
    match fs::hard_link(path, &bak) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::rename(&tmp, path)?;
    match path.parent() {
        Some(dir) => fsync_dir(dir),
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
        replace_keeping_old(&path, b"one").unwrap();
        replace_keeping_old(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::read(dir.path().join("config/topics.json.bak")).unwrap(), b"one");
        assert!(!dir.path().join("config/topics.json.tmp").exists());
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
}
