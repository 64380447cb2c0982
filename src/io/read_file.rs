//! Reads of mapped files that do not go through their mapping: what is not in memory, and what a broken mapping cannot
//! show. Through io_uring, on the shard that reads.

use std::fs::File;
use std::io;
use std::path::Path;

use super::raw_file::RawFile;

/// A file open for reading. Stays on its core.
pub struct ReadFile {
    file: RawFile,
    #[cfg(test)]
    path: std::path::PathBuf,
}

impl ReadFile {
    /// Longest single read: larger ones have been seen to hang, and would hold the device for long.
    pub const READ_LEN_MAX: usize = 1 << 20;

    /// The file that is mapped, even if its name is gone. Only what reads keeps it open: one that expiry unlinked frees
    /// its blocks with its last reader.
    pub(super) fn of(file: &File, path: &Path) -> io::Result<ReadFile> {
        Ok(ReadFile {
            file: RawFile::same_to_read(file, path)?,
            #[cfg(test)]
            path: path.to_owned(),
        })
    }

    /// The bytes `[at, at + len)`, read in pieces of at most [`ReadFile::READ_LEN_MAX`].
    ///
    /// # Errors
    /// `UnexpectedEof` if the file ends before; what the disk says.
    pub async fn read(&self, at: u64, len: usize) -> io::Result<Vec<u8>> {
        #[cfg(test)]
        super::tap::read(&self.path, at, len)?;
        let mut out = Vec::with_capacity(len);
        while out.len() < len {
            let part = (len - out.len()).min(Self::READ_LEN_MAX);
            let taken = self.file.read_at(at + out.len() as u64, part, &mut out).await?;
            if taken == 0 {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    format!("the file ends at {}, where a message is expected", at + out.len() as u64),
                ));
            }
        }
        Ok(out)
    }
}
