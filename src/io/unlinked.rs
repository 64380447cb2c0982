//! Files whose name is gone: their blocks are given back piece by piece, since freeing a gibibyte at once holds up the
//! file system's journal, and with it the flushes of the log.

use std::fs::File;
use std::io;
use std::path::Path;

use super::disk;

/// A file that has no name any more. Blocking, for the helper thread.
#[derive(Debug)]
pub struct UnlinkedFile {
    file: File,
    len: u64,
}

impl UnlinkedFile {
    /// Takes the name of a file away and keeps the file open; nothing if there is none.
    ///
    /// # Errors
    /// The name is still there then.
    pub fn remove(path: &Path) -> io::Result<Option<UnlinkedFile>> {
        let file = match disk::open_to_write(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let len = file.metadata()?.len();
        disk::remove_if_present(path)?;
        Ok(Some(UnlinkedFile { file, len }))
    }

    /// Bytes that it still has.
    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Gives back the last `part` bytes. Nobody may have it mapped: touching what is gone would be a fault.
    ///
    /// Not a change of the store, which this file has left; so nobody is asked.
    pub fn shorten(&mut self, part: u64) -> io::Result<()> {
        self.len = self.len.saturating_sub(part);
        self.file.set_len(self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_file_keeps_its_bytes_until_they_are_given_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("segment");
        std::fs::write(&path, [7; 10_000]).unwrap();
        let mut reader = File::open(&path).unwrap();
        let mut removed = UnlinkedFile::remove(&path).unwrap().expect("it was there");
        assert!(!path.exists());
        assert_eq!(io::copy(&mut reader, &mut io::sink()).unwrap(), 10_000);
        removed.shorten(6000).unwrap();
        assert_eq!((removed.len(), reader.metadata().unwrap().len()), (4000, 4000));
        removed.shorten(6000).unwrap();
        assert!(removed.is_empty());
        assert!(UnlinkedFile::remove(&path).unwrap().is_none());
    }
}
