//! Write side of one commit log segment, on the writer core.
//!
//! Three append modes share this face, and leave the same bytes on disk. `buffered`: one io_uring write into the page
//! cache. `mmap`: a copy into the mapping. `dma`: io_uring writes of whole blocks past the page cache; the block that holds
//! the end stays in memory and is written again by the next write (see [`TailBlock`]). A durable write goes through a
//! second handle opened with O_DSYNC, or is followed by fdatasync.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::Poll;

use super::blocking::Blocking;
use super::raw_file::{Data, RawFile};
use super::shared_map::SharedMap;
use super::tail_block::TailBlock;
use crate::types::PhyOffset;

/// Length of one write of zeros. Longer ones build large page-cache folios, of which one dirty byte costs megabytes.
pub const ZERO_LEN: usize = 64 * 1024;
/// Longest single write past the page cache, and how many are under way at once. The usual turn fits into the memory that
/// an executor registers with the kernel in any case; the longest ones take the rest from the allocator.
const DIRECT_LEN_MAX: usize = 256 * 1024;
const DIRECT_WRITES_MAX: usize = 8;

/// How bytes get into the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendMode {
    Buffered,
    Mmap,
    Dma,
}

impl AppendMode {
    /// The word that the settings have for it.
    pub fn word(self) -> &'static str {
        match self {
            AppendMode::Buffered => "buffered",
            AppendMode::Mmap => "mmap",
            AppendMode::Dma => "dma",
        }
    }
}

/// Which call brings a batch onto stable storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncCall {
    /// The write itself, through a handle opened with O_DSYNC. What lies unflushed below it needs fdatasync all the same.
    ODsync,
    /// A call of its own behind the write.
    Fdatasync,
}

impl SyncCall {
    /// The word that the settings have for it.
    pub fn word(self) -> &'static str {
        match self {
            SyncCall::ODsync => "o_dsync",
            SyncCall::Fdatasync => "fdatasync",
        }
    }
}

/// One segment, open for appending. Its blocks are reserved, so a write never runs out of space.
pub struct LogFile {
    start: PhyOffset,
    path: PathBuf,
    plain: RawFile,
    kind: Kind,
}

/// `durable`: the same file, each write on stable storage before it returns; only if that is how batches get there.
enum Kind {
    Buffered { durable: Option<RawFile> },
    Mapped { map: SharedMap },
    Direct { durable: Option<RawFile>, tail: RefCell<TailBlock> },
}

impl LogFile {
    /// Opens a segment that exists at full length; the log ends at `end` in it. For `dma` its first block must be a written
    /// one ([`write_first_block`](super::write_first_block)). On the writer core; the mapping of `mmap` is made on the helper thread. Where the file system knows no access past the page cache, `dma` becomes `buffered`.
    pub async fn open(
        blocking: &Blocking,
        path: &Path,
        start: PhyOffset,
        len: u64,
        end: PhyOffset,
        mode: AppendMode,
        sync_call: SyncCall,
    ) -> io::Result<LogFile> {
        let path_buf = path.to_owned();
        let by_o_dsync = sync_call == SyncCall::ODsync;
        if mode == AppendMode::Dma {
            match RawFile::open_direct(path, false).await {
                Ok(plain) => {
                    let durable = if by_o_dsync { Some(RawFile::open_direct(path, true).await?) } else { None };
                    let tail = RefCell::new(read_tail(&plain, end.since(start)).await?);
                    return Ok(LogFile { start, path: path_buf, plain, kind: Kind::Direct { durable, tail } });
                }
                Err(error) if error.kind() == io::ErrorKind::Unsupported => {}
                Err(error) => return Err(error),
            }
        }
        let plain = RawFile::open(path, false).await?;
        let kind = if mode == AppendMode::Mmap {
            let path = path_buf.clone();
            let made = blocking.run(move || {
                let map = SharedMap::open(&path, len)?;
                // The blocks are there since the segment was made; this looks at each, and notes it.
                map.reserve(len)?;
                Ok::<_, io::Error>(map)
            });
            Kind::Mapped { map: made.await? }
        } else {
            Kind::Buffered { durable: if by_o_dsync { Some(RawFile::open(path, true).await?) } else { None } }
        };
        Ok(LogFile { start, path: path_buf, plain, kind })
    }

    pub fn start(&self) -> PhyOffset {
        self.start
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The mode that it was opened in.
    pub fn mode(&self) -> AppendMode {
        match self.kind {
            Kind::Buffered { .. } => AppendMode::Buffered,
            Kind::Mapped { .. } => AppendMode::Mmap,
            Kind::Direct { .. } => AppendMode::Dma,
        }
    }

    /// In `dma`: where the block begins that the next write will write again, and the bytes of the log in it.
    pub fn rewritten(&self) -> Option<(PhyOffset, Vec<u8>)> {
        let Kind::Direct { tail, .. } = &self.kind else { return None };
        let tail = tail.borrow();
        Some((self.start.advance(tail.at()), tail.head().to_vec()))
    }

    /// Can [`LogFile::write`] with `durable` do without a sync of its own?
    pub fn writes_durably(&self) -> bool {
        self.durable().is_some()
    }

    fn durable(&self) -> Option<&RawFile> {
        match &self.kind {
            Kind::Buffered { durable } | Kind::Direct { durable, .. } => durable.as_ref(),
            Kind::Mapped { .. } => None,
        }
    }

    /// Puts `bytes` at `at`, the end of what was written so far; `durable`: on stable storage when it returns (its own bytes
    /// only, not what lies unflushed below). Readers of the file see them at once, but for `dma`: there they must look for
    /// the newest bytes elsewhere. Gives the buffer back, to be used again, but for `buffered`, whose write keeps it.
    ///
    /// # Errors
    /// A write that fails or stops short; what the file holds from `at` on is then unknown.
    pub async fn write(&self, at: PhyOffset, bytes: Vec<u8>, durable: bool) -> io::Result<Vec<u8>> {
        let position = at.since(self.start);
        let file = self.durable().filter(|_| durable).unwrap_or(&self.plain);
        let spent = match &self.kind {
            Kind::Buffered { .. } => {
                file.write_at(Data::Plain(bytes), position).await?;
                Vec::new()
            }
            Kind::Mapped { map } => {
                // SAFETY: the writer core is the only one that writes the log, and `at` is its append point: no reader
                // has been shown bytes from there on.
                let store = || unsafe { map.write(position as usize, &bytes) };
                map.guarded(store)?;
                bytes
            }
            Kind::Direct { tail, .. } => {
                assert_eq!(tail.borrow().end(), position, "the log is written in order");
                write_blocks(file, tail, &bytes).await?;
                bytes
            }
        };
        if durable && !self.writes_durably() {
            self.sync().await?;
        }
        Ok(spent)
    }

    /// Brings everything written so far onto stable storage.
    pub async fn sync(&self) -> io::Result<()> {
        self.plain.sync().await
    }

    /// Writes zeros ahead of the append point.
    pub async fn write_zeros(&self, at: PhyOffset, len: usize) -> io::Result<()> {
        let mut zeros = self.plain.room(len);
        zeros.fill(0);
        self.plain.write_at(zeros, at.since(self.start)).await
    }

    /// Drops nothing, closes the handles.
    pub async fn close(self) {
        self.plain.close().await;
        if let Kind::Buffered { durable: Some(durable) } | Kind::Direct { durable: Some(durable), .. } = self.kind {
            durable.close().await;
        }
    }
}

/// Appends `bytes` by writes of whole blocks, some at a time; no two of them share one.
async fn write_blocks(file: &RawFile, tail: &RefCell<TailBlock>, bytes: &[u8]) -> io::Result<()> {
    let mut rest = bytes;
    while !rest.is_empty() {
        let mut writes: Vec<Pin<Box<dyn Future<Output = io::Result<()>> + '_>>> = Vec::new();
        while !rest.is_empty() && writes.len() < DIRECT_WRITES_MAX {
            let mut tail = tail.borrow_mut();
            let (part, behind) = rest.split_at(tail.portion(rest.len(), DIRECT_LEN_MAX));
            let at = tail.at();
            let mut blocks = file.room(tail.write_len(part.len()));
            tail.append(part, &mut blocks);
            writes.push(Box::pin(file.write_at(blocks, at)));
            rest = behind;
        }
        all(writes).await?;
    }
    Ok(())
}

/// The block of `end` as the file holds it. The only read of a file that is written past the page cache.
async fn read_tail(file: &RawFile, end: u64) -> io::Result<TailBlock> {
    let block_len = file.block_len();
    let at = end / block_len as u64 * block_len as u64;
    let mut block = Vec::with_capacity(block_len);
    while block.len() < block_len {
        let taken = file.read_at(at + block.len() as u64, block_len - block.len(), &mut block).await?;
        if taken == 0 {
            // The file ends here, or within the block: nothing is there to keep.
            block.resize(block_len, 0);
        }
    }
    Ok(TailBlock::new(end, block))
}

/// Waits for all; the first error, if there is one, once all are over.
async fn all(mut running: Vec<Pin<Box<dyn Future<Output = io::Result<()>> + '_>>>) -> io::Result<()> {
    let mut outcome = Ok(());
    poll_fn(|cx| {
        running.retain_mut(|write| match write.as_mut().poll(cx) {
            Poll::Pending => true,
            Poll::Ready(done) => {
                if outcome.is_ok() {
                    outcome = done;
                }
                false
            }
        });
        if running.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    outcome
}

#[cfg(test)]
mod tests;
