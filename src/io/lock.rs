//! The store's lock: an exclusive fcntl lock on byte 0 of `lock`, as Java takes it. Source: store.md 1.4, rule R1.
//!
//! The folder itself is locked beside it, with `flock`: a `lock` file that somebody deletes under a running node takes Java's
//! lock with it, and must not let another node of ours in.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::disk;

/// Why the store cannot be locked.
#[derive(Debug)]
pub enum LockError {
    /// Another process (Kerolox or a Java broker) works on this store; its pid if the kernel tells.
    Held {
        path: PathBuf,
        pid: Option<i32>,
    },
    Io {
        path: PathBuf,
        source: io::Error,
    },
}

impl std::fmt::Display for LockError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LockError::Held { path, pid: Some(pid) } => {
                write!(
                    f,
                    "{}: the store is in use by process {pid}; stop it or choose another directory",
                    path.display()
                )
            }
            LockError::Held { path, pid: None } => {
                write!(
                    f,
                    "{}: the store is in use by another process; stop it or choose another directory",
                    path.display()
                )
            }
            LockError::Io { path, source } => write!(f, "{}: cannot lock the store: {source}", path.display()),
        }
    }
}

impl std::error::Error for LockError {}

/// The lock, held until dropped. The file must be opened once in a process: closing any descriptor of it gives the
/// lock up.
#[derive(Debug)]
pub struct StoreLock {
    _file: File,
    _folder: File,
}

impl StoreLock {
    /// Takes the lock of the store in `root` before anything in it is read or changed. Blocking; at start only.
    pub fn take(root: &Path) -> Result<StoreLock, LockError> {
        let path = root.join("lock");
        let failed = |source| LockError::Io { path: path.clone(), source };
        disk::make_lasting_folders(root).map_err(failed)?;
        // A process that was killed may have made the folder and not come to syncing its name.
        if let Some(above) = root.parent().filter(|above| !above.as_os_str().is_empty()) {
            match disk::sync_folder(above) {
                // Not ours to look into, so not we have made the folder in it.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
                synced => synced.map_err(failed)?,
            }
        }
        let file = disk::open_or_create(&path).map_err(failed)?;
        set(&file, &path, libc::F_WRLCK)?;
        let folder = lock_folder(root, &path, FlockOperation::NonBlockingLockExclusive)?;
        if file.metadata().map_err(failed)?.len() == 0 {
            disk::write_at(&file, &path, b"lock", 0).map_err(failed)?;
        }
        Ok(StoreLock { _file: file, _folder: folder })
    }

    /// Takes a shared lock on a store that is only to be read: no broker starts on it meanwhile, other readers may.
    /// Changes nothing and makes nothing; `None`: there is no file to lock, so no broker ever ran here. Blocking.
    pub fn take_shared(root: &Path) -> Result<Option<StoreLock>, LockError> {
        let path = root.join("lock");
        let file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if root.is_dir() {
                    lock_folder(root, &path, FlockOperation::NonBlockingLockShared)?;
                }
                return Ok(None);
            }
            Err(source) => return Err(LockError::Io { path, source }),
            Ok(file) => file,
        };
        set(&file, &path, libc::F_RDLCK)?;
        let folder = lock_folder(root, &path, FlockOperation::NonBlockingLockShared)?;
        Ok(Some(StoreLock { _file: file, _folder: folder }))
    }
}

/// Takes the folder's lock; `path` names the store's lock in errors. Not every file system locks folders (NFS does not): there
/// the lock on the file has to do.
fn lock_folder(root: &Path, path: &Path, kind: FlockOperation) -> Result<File, LockError> {
    let folder = File::open(root).map_err(|source| LockError::Io { path: root.to_owned(), source })?;
    match flock(&folder, kind) {
        Err(Errno::WOULDBLOCK) => Err(LockError::Held { path: path.to_owned(), pid: None }),
        _ => Ok(folder),
    }
}

/// Takes a lock of this kind on byte 0, or says who holds one that is in the way.
fn set(file: &File, path: &Path, kind: libc::c_int) -> Result<(), LockError> {
    let mut request = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 1,
        l_pid: 0,
    };
    // SAFETY: the descriptor is open and `request` is a valid flock that outlives the call.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &request) } == 0 {
        return Ok(());
    }
    let source = io::Error::last_os_error();
    let path = path.to_owned();
    Err(match source.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => {
            // SAFETY: as above; F_GETLK fills `request` with the lock that is in the way.
            let asked = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &mut request) };
            LockError::Held { path, pid: (asked == 0 && request.l_pid > 0).then_some(request.l_pid) }
        }
        _ => LockError::Io { path, source },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_whose_lock_file_was_deleted_is_still_in_use() {
        let root = tempfile::tempdir().unwrap();
        let held = StoreLock::take(root.path()).unwrap();
        std::fs::remove_file(root.path().join("lock")).unwrap();
        assert!(matches!(StoreLock::take_shared(root.path()), Err(LockError::Held { .. })));
        assert!(matches!(StoreLock::take(root.path()), Err(LockError::Held { .. })));
        drop(held);
        drop(StoreLock::take(root.path()).unwrap());
        // Who only reads shares it.
        let first = StoreLock::take_shared(root.path()).unwrap();
        assert!(first.is_some() && StoreLock::take_shared(root.path()).unwrap().is_some());
        assert!(matches!(StoreLock::take(root.path()), Err(LockError::Held { .. })));
    }
}
