//! A file that an executor reads and writes without blocking: through io_uring, by the page cache or past it, or on a
//! test's simulated disk.

use std::fs::File;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{FromRawFd, IntoRawFd};
use std::path::{Path, PathBuf};

use glommio::io::{BufferedFile, DmaBuffer, DmaFile, OpenOptions};

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
    /// Past the page cache (O_DIRECT).
    Direct(DmaFile),
    #[cfg(test)]
    Simulated(File),
}

/// Bytes to write. For a file that is written past the page cache they lie where the device can fetch them: in memory
/// that glommio has registered with the kernel, as long as there is some, else in aligned memory of the allocator.
pub enum Data {
    Plain(Vec<u8>),
    Aligned(DmaBuffer),
}

impl Deref for Data {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Data::Plain(bytes) => bytes,
            Data::Aligned(buffer) => buffer.as_bytes(),
        }
    }
}

impl DerefMut for Data {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Data::Plain(bytes) => bytes,
            Data::Aligned(buffer) => buffer.as_bytes_mut(),
        }
    }
}

impl Data {
    fn truncate(&mut self, len: usize) {
        match self {
            Data::Plain(bytes) => bytes.truncate(len),
            Data::Aligned(buffer) => buffer.trim_to_size(len),
        }
    }
}

/// Blocks of files that are written past the page cache are at least this long, whatever the device says: a page, so that
/// no page of the cache holds parts of two writes.
pub const BLOCK_LEN_MIN: usize = 4096;

impl RawFile {
    /// The very file that is open as `file`, whatever has become of its name: for reading alone.
    pub fn to_read(file: File, path: &Path) -> RawFile {
        #[cfg(test)]
        if super::tap::simulated().is_some() {
            return RawFile { path: path.to_owned(), durable: false, kind: Kind::Simulated(file) };
        }
        // SAFETY: the descriptor is open, and given away here.
        let file = unsafe { BufferedFile::from_raw_fd(file.into_raw_fd()) };
        RawFile { path: path.to_owned(), durable: false, kind: Kind::Buffered(file) }
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

    /// Opens a file that is there for reading and writing past the page cache, in whole blocks; `durable` as in
    /// [`RawFile::open`]. Its first block is a written one ([`write_first_block`](super::write_first_block)).
    ///
    /// # Errors
    /// `Unsupported` where the file system has no such access.
    pub async fn open_direct(path: &Path, durable: bool) -> io::Result<RawFile> {
        #[cfg(test)]
        if super::tap::simulated().is_some() {
            return RawFile::open(path, durable).await;
        }
        if super::files::takes_direct_in_vain(path)? {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        if durable {
            options.custom_flags(libc::O_DSYNC);
        }
        match options.dma_open(path).await.map_err(into_io) {
            Ok(file) => Ok(RawFile { path: path.to_owned(), durable, kind: Kind::Direct(file) }),
            // EINVAL, from the flag.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Err(io::ErrorKind::Unsupported.into()),
            Err(error) => Err(error),
        }
    }

    /// Length of the blocks that [`RawFile::open_direct`] gives access to.
    pub fn block_len(&self) -> usize {
        match &self.kind {
            Kind::Direct(file) => BLOCK_LEN_MIN.max(file.alignment() as usize),
            _ => BLOCK_LEN_MIN,
        }
    }

    /// Room for a write of whole blocks; all of it is to be filled.
    pub fn room(&self, len: usize) -> Data {
        match &self.kind {
            Kind::Direct(file) => Data::Aligned(file.alloc_dma_buffer(len)),
            _ => Data::Plain(vec![0; len]),
        }
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

    /// Writes `data` at `at`; both in whole blocks, and `data` from [`RawFile::room`], if the file is opened past the page
    /// cache.
    ///
    /// # Errors
    /// A write that fails or stops short; what the file holds from `at` on is then unknown.
    pub async fn write_at(&self, mut data: Data, at: u64) -> io::Result<()> {
        let len = data.len();
        #[cfg(test)]
        if let Kind::Simulated(file) = &self.kind {
            let tap = super::tap::simulated().ok_or(io::ErrorKind::BrokenPipe)?;
            let written = tap.write_at(file, &self.path, at, data.to_vec(), self.durable).await?;
            return all_of(written, len);
        }
        match ask(&Change::Write { path: &self.path, at, bytes: &data, durable: self.durable })? {
            Answer::Do => {}
            Answer::Skip => return Ok(()),
            Answer::Short(short) => match &self.kind {
                Kind::Direct(_) => data.truncate(short / BLOCK_LEN_MIN * BLOCK_LEN_MIN),
                _ => data.truncate(short),
            },
        }
        let written = match (&self.kind, data) {
            (_, data) if data.is_empty() => 0,
            (Kind::Buffered(file), Data::Plain(bytes)) => file.write_at(bytes, at).await.map_err(into_io)?,
            (Kind::Direct(file), Data::Aligned(buffer)) => file.write_at(buffer, at).await.map_err(into_io)?,
            _ => panic!("{}: data of another file", self.path.display()),
        };
        all_of(written, len)
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
            Kind::Direct(file) => {
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
        #[cfg(test)]
        if let Kind::Simulated(_) = &self.kind {
            let tap = super::tap::simulated().ok_or(io::ErrorKind::BrokenPipe)?;
            return tap.sync(&self.path).await;
        }
        if ask(&Change::Sync { path: &self.path })? == Answer::Skip {
            return Ok(());
        }
        match &self.kind {
            Kind::Buffered(file) => file.fdatasync().await.map_err(into_io),
            Kind::Direct(file) => file.fdatasync().await.map_err(into_io),
            #[cfg(test)]
            Kind::Simulated(_) => Ok(()),
        }
    }

    pub async fn close(self) {
        match self.kind {
            Kind::Buffered(file) => {
                let _ = file.close().await;
            }
            Kind::Direct(file) => {
                let _ = file.close().await;
            }
            #[cfg(test)]
            Kind::Simulated(_) => {}
        }
    }
}

fn all_of(written: usize, len: usize) -> io::Result<()> {
    if written == len {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::WriteZero, format!("only {written} of {len} bytes written")))
}

fn into_io(error: glommio::GlommioError<()>) -> io::Error {
    match error {
        // As the kernel gave it, so that whoever gets it can tell a bad disk from other ills.
        glommio::GlommioError::EnhancedIoError { source, .. } if source.raw_os_error().is_some() => source,
        other => other.into(),
    }
}
