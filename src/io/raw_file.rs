//! A file that an executor reads and writes without blocking: through io_uring, or on a test's simulated disk.

use std::fs::File;
use std::io;
use std::os::fd::{FromRawFd, IntoRawFd};
use std::path::{Path, PathBuf};

use glommio::io::{BufferedFile, OpenOptions};

use super::disk::{Answer, Change, ask};

/// Stays on its core.
pub struct RawFile {
    path: PathBuf,
    /// Opened with O_DSYNC: a write is on stable storage when it is done.
    durable: bool,
    kind: Kind,
}

enum Kind {
    Buffered(BufferedFile),
    #[cfg(test)]
    Simulated(File),
}

impl RawFile {
    /// The very file that is open as `file`, whatever has become of its name: for reading alone.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn same_to_read(file: &File, path: &Path) -> io::Result<RawFile> {
        let file = file.try_clone()?;
        #[cfg(test)]
        if super::tap::simulated().is_some() {
            return Ok(RawFile { path: path.to_owned(), durable: false, kind: Kind::Simulated(file) });
        }
        // SAFETY: the descriptor is open, and given away here.
        let file = unsafe { BufferedFile::from_raw_fd(file.into_raw_fd()) };
        Ok(RawFile { path: path.to_owned(), durable: false, kind: Kind::Buffered(file) })
    }

    /// Opens a file that is there for reading and writing through the page cache; `durable`: each write is on stable
    /// storage before it returns.
    pub async fn open(path: &Path, durable: bool) -> io::Result<RawFile> {
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        if durable {
            options.custom_flags(libc::O_DSYNC);
        }
        RawFile::open_with(path, &options, durable).await
    }

    async fn open_with(path: &Path, options: &OpenOptions, durable: bool) -> io::Result<RawFile> {
        #[cfg(test)]
        if super::tap::simulated().is_some() {
            let file = std::fs::OpenOptions::new().read(true).write(true).open(path)?;
            return Ok(RawFile { path: path.to_owned(), durable, kind: Kind::Simulated(file) });
        }
        let file = options.buffered_open(path).await.map_err(into_io)?;
        Ok(RawFile { path: path.to_owned(), durable, kind: Kind::Buffered(file) })
    }

    /// Writes `bytes` at `at`.
    ///
    /// # Errors
    /// A write that fails or stops short; what the file holds from `at` on is then unknown.
    pub async fn write_at(&self, mut bytes: Vec<u8>, at: u64) -> io::Result<()> {
        let len = bytes.len();
        match ask(&Change::Write { path: &self.path, at, bytes: &bytes, durable: self.durable })? {
            Answer::Do => {}
            Answer::Skip => return Ok(()),
            Answer::Short(short) => bytes.truncate(short),
        }
        let written = match &self.kind {
            Kind::Buffered(file) => file.write_at(bytes, at).await.map_err(into_io)?,
            #[cfg(test)]
            Kind::Simulated(file) => {
                use std::os::unix::fs::FileExt;
                let tap = super::tap::simulated().ok_or(io::ErrorKind::BrokenPipe)?;
                tap.io_delay().await;
                file.write_all_at(&bytes, at)?;
                tap.written(&self.path, at, bytes.len(), self.durable);
                bytes.len()
            }
        };
        if written != len {
            return Err(io::Error::new(io::ErrorKind::WriteZero, format!("only {written} of {len} bytes written")));
        }
        Ok(())
    }

    /// At most `len` bytes from `at` on; none at the file's end.
    pub async fn read_at(&self, at: u64, len: usize, out: &mut Vec<u8>) -> io::Result<usize> {
        match &self.kind {
            Kind::Buffered(file) => {
                let read = file.read_at(at, len).await.map_err(into_io)?;
                let taken = read.len().min(len);
                out.extend_from_slice(&read[..taken]);
                Ok(taken)
            }
            #[cfg(test)]
            Kind::Simulated(file) => {
                use std::os::unix::fs::FileExt;
                let mut part = vec![0; len];
                let taken = file.read_at(&mut part, at)?;
                out.extend_from_slice(&part[..taken]);
                Ok(taken)
            }
        }
    }

    /// Brings everything written so far onto stable storage.
    pub async fn sync(&self) -> io::Result<()> {
        if ask(&Change::Sync { path: &self.path })? == Answer::Skip {
            #[cfg(test)]
            if let Some(tap) = super::tap::simulated() {
                tap.io_delay().await;
            }
            return Ok(());
        }
        match &self.kind {
            Kind::Buffered(file) => file.fdatasync().await.map_err(into_io),
            #[cfg(test)]
            Kind::Simulated(_) => Ok(()),
        }
    }

    pub async fn close(self) {
        match self.kind {
            Kind::Buffered(file) => {
                let _ = file.close().await;
            }
            #[cfg(test)]
            Kind::Simulated(_) => {}
        }
    }
}

fn into_io(error: glommio::GlommioError<()>) -> io::Error {
    error.into()
}
