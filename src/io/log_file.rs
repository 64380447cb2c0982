//! Write side of one commit log segment, on the writer core.
//!
//! Three append modes will share this face; two are here. `buffered`: one io_uring write into the page cache.
//! `mmap`: a copy into the mapping. A durable write goes through a second handle opened with O_DSYNC (buffered) or is
//! followed by fdatasync (mmap).

use std::io;
use std::path::{Path, PathBuf};

use super::raw_file::RawFile;
use super::shared_map::SharedMap;
use crate::types::PhyOffset;

/// Length of one write of zeros. Longer ones build large page-cache folios, of which one dirty byte costs megabytes.
pub const ZERO_LEN: usize = 64 * 1024;

/// How bytes get into the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendMode {
    Buffered,
    Mmap,
}

/// One segment, open for appending. Its blocks are reserved, so a write never runs out of space.
pub struct LogFile {
    start: PhyOffset,
    path: PathBuf,
    plain: RawFile,
    kind: Kind,
}

enum Kind {
    /// `durable`: the same file, each write on stable storage before it returns.
    Buffered {
        durable: RawFile,
    },
    Mapped {
        map: SharedMap,
    },
}

impl LogFile {
    /// Opens a segment that exists at full length. On the writer core.
    pub async fn open(path: &Path, start: PhyOffset, len: u64, mode: AppendMode) -> io::Result<LogFile> {
        let plain = RawFile::open(path, false).await?;
        let kind = match mode {
            AppendMode::Buffered => Kind::Buffered { durable: RawFile::open(path, true).await? },
            AppendMode::Mmap => {
                let map = SharedMap::open(path, len)?;
                // The blocks are there since the segment was made; this only notes it.
                map.reserve(len)?;
                Kind::Mapped { map }
            }
        };
        Ok(LogFile { start, path: path.to_owned(), plain, kind })
    }

    pub fn start(&self) -> PhyOffset {
        self.start
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Can [`LogFile::write`] with `durable` do without a sync of its own?
    pub fn writes_durably(&self) -> bool {
        matches!(self.kind, Kind::Buffered { .. })
    }

    /// Puts `bytes` at `at`, where readers see them at once; `durable`: on stable storage when it returns (its own bytes
    /// only, not what lies unflushed below).
    ///
    /// # Errors
    /// A write that fails or stops short; what the file holds from `at` on is then unknown.
    pub async fn write(&self, at: PhyOffset, bytes: Vec<u8>, durable: bool) -> io::Result<()> {
        let position = at.since(self.start);
        match &self.kind {
            Kind::Buffered { durable: through } => {
                let file = if durable { through } else { &self.plain };
                file.write_at(bytes, position).await
            }
            Kind::Mapped { map } => {
                // SAFETY: the writer core is the only one that writes the log, and `at` is its append point: no reader
                // has been shown bytes from there on.
                let store = || unsafe { map.write(position as usize, &bytes) };
                map.guarded(store)?;
                if durable { self.sync().await } else { Ok(()) }
            }
        }
    }

    /// Brings everything written so far onto stable storage.
    pub async fn sync(&self) -> io::Result<()> {
        self.plain.sync().await
    }

    /// Writes zeros ahead of the append point.
    pub async fn write_zeros(&self, at: PhyOffset, len: usize) -> io::Result<()> {
        self.plain.write_at(vec![0; len], at.since(self.start)).await
    }

    /// Drops nothing, closes the handles.
    pub async fn close(self) {
        self.plain.close().await;
        if let Kind::Buffered { durable } = self.kind {
            durable.close().await;
        }
    }
}
