//! The host that is looked at: this machine, or a tree of files that looks like one.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::finding::value_of;
use super::place::Place;

/// A host and the node that is to run on it.
#[derive(Debug)]
pub struct Host {
    root: PathBuf,
    data: PathBuf,
    executors: usize,
    writer_core: usize,
    /// Why it could not be found, where it could not.
    place: Result<Place, String>,
}

impl Host {
    /// Looks where the node's data would lie. Changes nothing.
    ///
    /// `root`: `/`, or a directory below which `/proc`, `/sys` and the rest are looked for. `data`: the node's directory,
    /// which need not be there yet. `executors`, `writer_core`: how many the node has, and the core that appends.
    pub fn look(root: &Path, data: &Path, executors: usize, writer_core: usize) -> Host {
        let data = std::path::absolute(data).unwrap_or_else(|_| data.to_owned());
        let mut host = Host { data, executors, writer_core, ..Host::of_kernel(root) };
        host.place = Place::find(&host).map_err(|error| error.to_string());
        host
    }

    /// Only the kernel's settings, for what asks for no node.
    pub fn of_kernel(root: &Path) -> Host {
        Host {
            root: root.to_owned(),
            data: PathBuf::from("/"),
            executors: 0,
            writer_core: 0,
            place: Err("it was not looked for".to_owned()),
        }
    }

    pub fn data(&self) -> &Path {
        &self.data
    }

    pub fn executors(&self) -> usize {
        self.executors
    }

    pub fn writer_core(&self) -> usize {
        self.writer_core
    }

    /// Mount and devices of the node's data.
    ///
    /// # Errors
    /// They could not be found; the text says why.
    pub fn place(&self) -> io::Result<&Place> {
        self.place.as_ref().map_err(|why| io::Error::other(why.clone()))
    }

    /// Where the path of the machine lies.
    pub(super) fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// The path of the machine that lies there, with all links followed.
    pub(super) fn real(&self, path: &Path) -> io::Result<PathBuf> {
        let (root, real) = (fs::canonicalize(&self.root)?, fs::canonicalize(self.at(path))?);
        let below = real.strip_prefix(root).map_err(|_| of_path(path, "leads out of the tree"))?;
        Ok(Path::new("/").join(below))
    }

    pub(super) fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.at(path).symlink_metadata().is_ok()
    }

    /// The whole file, or nothing if this host has none.
    ///
    /// # Errors
    /// It is there and cannot be read; the error names it.
    pub(super) fn text(&self, path: impl AsRef<Path>) -> io::Result<Option<String>> {
        let path = path.as_ref();
        match fs::read(self.at(path)) {
            Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(of_path(path, error)),
        }
    }

    /// The value that the file tells, or nothing if this host has none.
    ///
    /// # Errors
    /// As [`Host::text`].
    pub(super) fn value(&self, path: impl AsRef<Path>) -> io::Result<Option<String>> {
        Ok(self.text(path)?.map(|text| value_of(&text).to_owned()))
    }

    /// The same as a number.
    ///
    /// # Errors
    /// As [`Host::text`], and it is no number.
    pub(super) fn number(&self, path: impl AsRef<Path>) -> io::Result<Option<u64>> {
        let path = path.as_ref();
        let parsed = |value: String| value.parse().map_err(|_| of_path(path, format!("{value:?} is no number")));
        self.value(path)?.map(parsed).transpose()
    }

    /// Names in a directory, sorted, numbers in them by their value; none if it is not there.
    ///
    /// # Errors
    /// It is there and cannot be read.
    pub(super) fn names(&self, dir: impl AsRef<Path>) -> io::Result<Vec<String>> {
        let dir = dir.as_ref();
        let entries = match fs::read_dir(self.at(dir)) {
            Ok(entries) => entries,
            Err(error) if is_absent(&error) => return Ok(Vec::new()),
            Err(error) => return Err(of_path(dir, error)),
        };
        let name =
            |entry: io::Result<fs::DirEntry>| entry.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let mut names = entries.map(name).collect::<io::Result<Vec<_>>>().map_err(|error| of_path(dir, error))?;
        names.sort_by_key(|name| (name.len(), name.clone()));
        Ok(names)
    }

    /// How many entries a directory has; 0 if it is not there, or no directory.
    ///
    /// # Errors
    /// It is there and cannot be read.
    pub(super) fn entry_count(&self, dir: &Path) -> io::Result<u64> {
        match fs::read_dir(self.at(dir)) {
            Ok(entries) => Ok(entries.count() as u64),
            Err(error) if is_absent(&error) => Ok(0),
            Err(error) => Err(of_path(dir, error)),
        }
    }

    /// Cores that are in use.
    ///
    /// # Errors
    /// The kernel's list cannot be read.
    pub(super) fn online_cores(&self) -> io::Result<Vec<usize>> {
        Ok(cores(&self.value("/sys/devices/system/cpu/online")?.unwrap_or_default()))
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

fn of_path(path: &Path, what: impl std::fmt::Display) -> io::Error {
    io::Error::other(format!("{}: {what}", path.display()))
}

/// The cores of a list such as `0,2-5`; what is no number is left out.
pub(super) fn cores(list: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (from, to) = part.trim().split_once('-').unwrap_or((part.trim(), part.trim()));
        Some(from.parse().ok()?..=to.parse().ok()?)
    };
    list.split(',').filter_map(range).flatten().collect()
}

/// The list of these cores, ascending, as the kernel writes it.
pub(super) fn core_list(cores: &[usize]) -> String {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for core in cores {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == *core => *last = *core,
            _ => parts.push((*core, *core)),
        }
    }
    let text = |(from, to): &(usize, usize)| if from == to { from.to_string() } else { format!("{from}-{to}") };
    parts.iter().map(text).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cores_are_read_and_written_as_the_kernel_does() {
        assert_eq!(cores("0,2-4,7\n"), [0, 2, 3, 4, 7]);
        assert_eq!(cores(""), [] as [usize; 0]);
        assert_eq!(core_list(&[0, 2, 3, 4, 7]), "0,2-4,7");
        assert_eq!(core_list(&[]), "");
    }
}
