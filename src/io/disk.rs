//! The one way to change a store's files. Every making, writing, syncing, renaming and removing passes here, so that a
//! test can let the n-th of them fail, or record them all and cut the power between any two.
//!
//! Blocking, for the helper thread and for what runs before the cores start; [`RawFile`](super::raw_file) does the same
//! for executors. In a normal build [`ask`] is nothing.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use memmap2::MmapRaw;
use rustix::fs::FallocateFlags;

/// One change of a file or of a folder's names.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    MakeFolder {
        path: &'a Path,
    },
    /// A file that was not there.
    Create {
        path: &'a Path,
    },
    /// The file gets this length.
    Resize {
        path: &'a Path,
        len: u64,
    },
    /// Blocks of the file's first `to` bytes are reserved.
    Reserve {
        path: &'a Path,
        to: u64,
    },
    /// `durable`: on stable storage when it is done.
    Write {
        path: &'a Path,
        at: u64,
        bytes: &'a [u8],
        durable: bool,
    },
    /// Something was stored through a mapping.
    Store {
        path: &'a Path,
    },
    Sync {
        path: &'a Path,
    },
    SyncFolder {
        path: &'a Path,
    },
    Rename {
        from: &'a Path,
        to: &'a Path,
    },
    Link {
        from: &'a Path,
        to: &'a Path,
    },
    Remove {
        path: &'a Path,
    },
}

/// How a change goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Do,
    /// Taken for done: what a simulated disk keeps by itself.
    Skip,
    /// Of a write, only so many bytes.
    Short(usize),
}

/// Asks whoever watches this thread's changes.
#[cfg(not(test))]
#[inline(always)]
pub fn ask(_change: &Change<'_>) -> io::Result<Answer> {
    Ok(Answer::Do)
}

#[cfg(test)]
pub use super::tap::ask;

/// Makes a folder and those above it. Their names are not synced: a power cut may take them with all they hold. For what
/// can be built anew.
pub fn make_folders(path: &Path) -> io::Result<()> {
    make_each_folder(path, &mut |_| Ok(()))
}

/// Makes a folder and those above it, and syncs the folders that name them.
pub fn make_lasting_folders(path: &Path) -> io::Result<()> {
    make_each_folder(path, &mut sync_folder)
}

fn make_each_folder(path: &Path, made_in: &mut dyn FnMut(&Path) -> io::Result<()>) -> io::Result<()> {
    // The parent of a relative path's first part is "", which is the working directory.
    if path.as_os_str().is_empty() || path.is_dir() {
        return Ok(());
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    if let Some(parent) = parent {
        make_each_folder(parent, made_in)?;
    }
    ask(&Change::MakeFolder { path })?;
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }?;
    made_in(parent.unwrap_or(Path::new(".")))
}

/// Opens a file for reading and writing; made, empty, if it is not there.
pub fn open_or_create(path: &Path) -> io::Result<File> {
    match OpenOptions::new().read(true).write(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            ask(&Change::Create { path })?;
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
        }
        opened => opened,
    }
}

/// Makes a file that must not be there.
pub fn create_new(path: &Path) -> io::Result<File> {
    if path.exists() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    ask(&Change::Create { path })?;
    OpenOptions::new().read(true).write(true).create_new(true).open(path)
}

/// Opens a file for writing that must be there.
pub fn open_to_write(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

/// Gives a file a length; what is new reads as zeros.
pub fn resize(file: &File, path: &Path, len: u64) -> io::Result<()> {
    ask(&Change::Resize { path, len })?;
    file.set_len(len)
}

/// Reserves the blocks of `[from, to)`; content stays, and so does a length that is there already.
///
/// # Errors
/// `Unsupported` where the file system cannot.
pub fn reserve(file: &File, path: &Path, from: u64, to: u64) -> io::Result<()> {
    ask(&Change::Reserve { path, to })?;
    match rustix::fs::fallocate(file, FallocateFlags::empty(), from, to - from) {
        Err(rustix::io::Errno::OPNOTSUPP) => Err(io::ErrorKind::Unsupported.into()),
        done => Ok(done?),
    }
}

/// Writes all of `bytes` at `at`.
pub fn write_at(file: &File, path: &Path, bytes: &[u8], at: u64) -> io::Result<()> {
    write(file, &Change::Write { path, at, bytes, durable: false }, bytes, at)
}

/// The same with a file that was opened with O_DSYNC: on stable storage when it is done.
pub fn write_through_at(file: &File, path: &Path, bytes: &[u8], at: u64) -> io::Result<()> {
    write(file, &Change::Write { path, at, bytes, durable: true }, bytes, at)
}

fn write(file: &File, change: &Change<'_>, bytes: &[u8], at: u64) -> io::Result<()> {
    match ask(change)? {
        Answer::Do => file.write_all_at(bytes, at),
        Answer::Skip => Ok(()),
        Answer::Short(len) => {
            file.write_all_at(&bytes[..len.min(bytes.len())], at)?;
            Err(io::ErrorKind::WriteZero.into())
        }
    }
}

/// Brings the data of a file, and what is needed to find it, onto stable storage.
pub fn sync(file: &File, path: &Path) -> io::Result<()> {
    match ask(&Change::Sync { path })? {
        Answer::Skip => Ok(()),
        _ => file.sync_data(),
    }
}

/// The same for what was stored through a shared mapping of the whole file.
pub fn sync_map(map: &MmapRaw, path: &Path) -> io::Result<()> {
    match ask(&Change::Sync { path })? {
        Answer::Skip => Ok(()),
        _ => map.flush(),
    }
}

/// The same for a file that need not be open.
pub fn sync_path(path: &Path) -> io::Result<()> {
    sync(&File::open(path)?, path)
}

/// Has everything written to the file system of `path` go out in one pass. What it leaves undone, and errors of single
/// files, are for the syncs of those files, which stay needed and become cheap. Nothing where `path` is not there.
pub fn write_out(path: &Path) -> io::Result<()> {
    match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        opened => Ok(rustix::fs::syncfs(opened?)?),
    }
}

/// Makes names created, renamed or removed in `dir` durable.
pub fn sync_folder(dir: &Path) -> io::Result<()> {
    match ask(&Change::SyncFolder { path: dir })? {
        Answer::Skip => Ok(()),
        _ => File::open(dir)?.sync_all(),
    }
}

pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    ask(&Change::Rename { from, to })?;
    fs::rename(from, to)
}

/// Gives a file a second name.
pub fn hard_link(from: &Path, to: &Path) -> io::Result<()> {
    ask(&Change::Link { from, to })?;
    fs::hard_link(from, to)
}

/// Removes a file and makes that durable. For files of which one must not come back without the other.
pub fn remove_for_good(path: &Path) -> io::Result<()> {
    if !path.exists() {
        return Ok(());
    }
    remove_if_present(path)?;
    path.parent().map_or(Ok(()), sync_folder)
}

/// Removes a folder with all that is in it, if it is there; the folder above is not synced.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        } else {
            remove_if_present(&entry.path())?;
        }
    }
    match ask(&Change::Remove { path })? {
        Answer::Skip => Ok(()),
        _ => fs::remove_dir(path),
    }
}

/// Removes a file that may not be there.
pub fn remove_if_present(path: &Path) -> io::Result<()> {
    if !path.exists() {
        return Ok(());
    }
    ask(&Change::Remove { path })?;
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
