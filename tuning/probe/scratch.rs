//! The folder that a probe works in: below the one that was asked for, made for this run, and gone after it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const PREFIX: &str = ".kerolox-probe-";

/// Gone, with all that is in it, when it is dropped.
#[derive(Debug)]
pub(super) struct Scratch {
    path: PathBuf,
}

impl Scratch {
    pub(super) fn make(dir: &Path) -> io::Result<Scratch> {
        // Two runs in one process, as tests make them, get different names.
        let names = (0..).map(|number| format!("{PREFIX}{}-{number}", std::process::id()));
        for name in names {
            let path = dir.join(name);
            match fs::create_dir(&path) {
                Ok(()) => return Ok(Scratch { path }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        unreachable!("a number is always free")
    }

    /// The place of a file in it.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            eprintln!("kerolox-tune: {} cannot be removed: {error}; remove it", self.path.display());
        }
    }
}

/// Folders of runs that were killed, which nobody removes by himself.
pub(super) fn left_over(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let ours = entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let pid = name.strip_prefix(PREFIX)?.split('-').next()?.parse::<u32>().ok()?;
        (!Path::new(&format!("/proc/{pid}")).exists()).then(|| entry.path())
    });
    ours.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scratch_folder_takes_what_is_in_it_along_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("mine"), "kept").unwrap();
        let (one, two) = (Scratch::make(dir.path()).unwrap(), Scratch::make(dir.path()).unwrap());
        assert_ne!(one.path, two.path);
        fs::write(one.file("log"), "gone").unwrap();
        assert!(left_over(dir.path()).is_empty(), "of a process that lives");
        drop((one, two));
        let names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["mine"]);
        let dead = dir.path().join(format!("{PREFIX}4194305-0"));
        fs::create_dir(&dead).unwrap();
        assert_eq!(left_over(dir.path()), [dead]);
    }
}
