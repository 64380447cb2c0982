//! The newest part of the log in memory, for readers on every core: where blocks are written past the page cache, the
//! cache does not hold them, and the last one may be written again at any time.
//!
//! Bytes lie in chunks that the writer core fills from front to back; how far is an atomic. Readers copy out of what is
//! filled, so there is no lock and nothing that is read ever changes. A chunk that falls out of the list is filled anew
//! only once no reader holds it; until then its place is taken by fresh memory, so a slow reader costs memory for the
//! time of one copy, and never sees foreign bytes.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use smallvec::SmallVec;

use crate::types::PhyOffset;

/// Bytes of a chunk, and how many are kept: 64 MiB, what a log of 1 GB a second grows by in 64 ms and most grow by in
/// seconds. A consumer that is further behind reads from the device.
const CHUNK_LEN: usize = 4 << 20;
const CHUNKS: usize = 16;
/// Bytes that are kept in all.
pub const LOG_TAIL_LEN: u64 = (CHUNK_LEN * CHUNKS) as u64;

/// What readers look at.
#[derive(Debug)]
pub struct LogTail {
    /// Oldest first. Each begins where the one before ends, unless the log left something out there (the rest of a
    /// segment).
    chunks: ArcSwap<Vec<Arc<Chunk>>>,
    chunk_len: usize,
    chunk_count: usize,
    has_writer: AtomicBool,
}

/// Fills it. Of each there is one, on the writer core.
#[derive(Debug)]
pub struct TailWriter {
    tail: Arc<LogTail>,
    newest: Option<Arc<Chunk>>,
    /// Fallen out of the list; some reader may still hold them.
    spare: Vec<Arc<Chunk>>,
}

#[derive(Debug)]
struct Chunk {
    start: PhyOffset,
    /// Bytes from the start that are there and will not change while anybody holds the chunk.
    filled: AtomicUsize,
    memory: Memory,
}

/// Plain memory that one core writes and others read, each only where the other does not.
#[derive(Debug)]
struct Memory {
    bytes: NonNull<u8>,
    len: usize,
}

// SAFETY: bytes are reached through `Chunk` alone, which keeps who writes and who reads apart.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    fn new(len: usize) -> Memory {
        let layout = Memory::layout(len);
        // SAFETY: the layout is not empty.
        let bytes = unsafe { alloc_zeroed(layout) };
        let bytes = NonNull::new(bytes).unwrap_or_else(|| handle_alloc_error(layout));
        Memory { bytes, len }
    }

    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len.max(1), 64).expect("a chunk is small")
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and nobody holds the chunk any more.
        unsafe { dealloc(self.bytes.as_ptr(), Memory::layout(self.len)) };
    }
}

impl Chunk {
    fn filled_end(&self) -> PhyOffset {
        self.start.advance(self.filled.load(Ordering::Acquire) as u64)
    }

    fn filled(&self) -> &[u8] {
        let len = self.filled.load(Ordering::Acquire);
        // SAFETY: the first `len` bytes were written before `len` was published, and are not written again while a
        // reference to the chunk exists (`TailWriter::empty_chunk` wants the only one, mutable).
        unsafe { std::slice::from_raw_parts(self.memory.bytes.as_ptr(), len) }
    }

    /// Adds as much of `bytes` as there is room for. Called by the one [`TailWriter`] alone.
    fn fill(&self, bytes: &[u8]) -> usize {
        let from = self.filled.load(Ordering::Relaxed);
        let len = bytes.len().min(self.memory.len - from);
        // SAFETY: in range of the allocation, behind what readers look at, and nobody else writes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.memory.bytes.as_ptr().add(from), len) };
        self.filled.store(from + len, Ordering::Release);
        len
    }
}

impl LogTail {
    pub fn new() -> Arc<LogTail> {
        LogTail::with(CHUNK_LEN, CHUNKS)
    }

    fn with(chunk_len: usize, chunk_count: usize) -> Arc<LogTail> {
        let (chunks, has_writer) = (ArcSwap::default(), AtomicBool::new(false));
        Arc::new(LogTail { chunks, chunk_len, chunk_count, has_writer })
    }

    /// The one who fills it.
    ///
    /// # Panics
    /// If there is one already.
    pub fn writer(self: &Arc<Self>) -> TailWriter {
        assert!(!self.has_writer.swap(true, Ordering::AcqRel), "one writer fills a tail");
        TailWriter { tail: Arc::clone(self), newest: None, spare: Vec::new() }
    }

    /// The oldest position that is here; nothing if none is.
    pub fn start(&self) -> Option<PhyOffset> {
        self.chunks.load().first().map(|chunk| chunk.start)
    }

    /// Hands `[at, at + len)` to `take`, in order and in one or a few pieces; `false`, and nothing is handed out, if not
    /// all of it is here.
    pub fn read(&self, at: PhyOffset, len: usize, mut take: impl FnMut(&[u8])) -> bool {
        let chunks = self.chunks.load();
        let end = at.advance(len as u64);
        let mut pieces = SmallVec::<[&[u8]; 8]>::new();
        let (mut at, first) = (at, chunks.partition_point(|chunk| chunk.filled_end() <= at));
        for chunk in &chunks[first..] {
            if at >= end {
                break;
            }
            if chunk.start > at {
                return false;
            }
            let filled = chunk.filled();
            let from = at.since(chunk.start) as usize;
            let to = filled.len().min(end.since(chunk.start) as usize);
            pieces.push(&filled[from..to]);
            at = chunk.start.advance(to as u64);
        }
        if at < end {
            return false;
        }
        pieces.into_iter().for_each(&mut take);
        true
    }
}

impl TailWriter {
    /// Adds what the log holds from `at` on. Readers find it at once, so they must stop at what they are shown.
    ///
    /// # Panics
    /// If `at` lies before what was added last.
    pub fn append(&mut self, at: PhyOffset, bytes: &[u8]) {
        let (mut at, mut rest) = (at, bytes);
        while !rest.is_empty() {
            let taken = match &self.newest {
                Some(chunk) if chunk.filled_end() == at => chunk.fill(rest),
                Some(chunk) => {
                    assert!(chunk.filled_end() < at, "the log grows at its end");
                    0
                }
                None => 0,
            };
            if taken == 0 {
                self.begin(at);
            }
            at = at.advance(taken as u64);
            rest = &rest[taken..];
        }
    }

    /// An empty chunk at the end of the list; the oldest goes if there are enough.
    fn begin(&mut self, at: PhyOffset) {
        let chunk = Arc::new(self.empty_chunk(at));
        let mut chunks = self.tail.chunks.load().as_ref().clone();
        if chunks.len() == self.tail.chunk_count {
            self.spare.push(chunks.remove(0));
        }
        chunks.push(Arc::clone(&chunk));
        self.tail.chunks.store(Arc::new(chunks));
        self.newest = Some(chunk);
    }

    fn empty_chunk(&mut self, start: PhyOffset) -> Chunk {
        let free = self.spare.iter_mut().position(|chunk| Arc::get_mut(chunk).is_some());
        let memory = match free.map(|index| self.spare.swap_remove(index)).and_then(Arc::into_inner) {
            Some(chunk) => chunk.memory,
            None => Memory::new(self.tail.chunk_len),
        };
        Chunk { start, filled: AtomicUsize::new(0), memory }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn byte_at(at: u64) -> u8 {
        (at ^ (at >> 8) ^ (at >> 16)).wrapping_mul(31) as u8
    }

    fn log(at: u64, len: usize) -> Vec<u8> {
        (at..at + len as u64).map(byte_at).collect()
    }

    fn read(tail: &LogTail, at: u64, len: usize) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        tail.read(PhyOffset(at), len, |piece| out.extend_from_slice(piece)).then_some(out)
    }

    #[test]
    fn what_was_appended_is_read_across_chunks_until_it_falls_out() {
        let tail = LogTail::with(100, 3);
        let mut writer = tail.writer();
        assert_eq!((tail.start(), read(&tail, 0, 1)), (None, None));
        writer.append(PhyOffset(1000), &log(1000, 250));
        assert_eq!(read(&tail, 1000, 250), Some(log(1000, 250)));
        assert_eq!(read(&tail, 1095, 110), Some(log(1095, 110)));
        assert_eq!((read(&tail, 999, 2), read(&tail, 1249, 2)), (None, None));
        writer.append(PhyOffset(1250), &log(1250, 51));
        assert_eq!(tail.start(), Some(PhyOffset(1100)));
        assert_eq!(read(&tail, 1099, 2), None);
        assert_eq!(read(&tail, 1100, 201), Some(log(1100, 201)));
    }

    #[test]
    fn nothing_is_read_across_a_gap_that_the_log_left() {
        let tail = LogTail::with(100, 3);
        let mut writer = tail.writer();
        writer.append(PhyOffset(0), &log(0, 50));
        writer.append(PhyOffset(60), &log(60, 10));
        assert_eq!(read(&tail, 40, 10), Some(log(40, 10)));
        assert_eq!(read(&tail, 60, 10), Some(log(60, 10)));
        assert_eq!((read(&tail, 40, 25), read(&tail, 50, 5), read(&tail, 55, 10)), (None, None, None));
    }

    #[test]
    fn a_chunk_that_a_reader_holds_is_not_filled_anew() {
        let tail = LogTail::with(100, 2);
        let mut writer = tail.writer();
        writer.append(PhyOffset(0), &log(0, 100));
        let held = Arc::clone(&tail.chunks.load()[0]);
        writer.append(PhyOffset(100), &log(100, 900));
        assert_eq!(held.filled(), log(0, 100));
        assert_eq!(writer.spare.len(), 2, "the held one, and the one that fell out last");
        drop(held);
        writer.append(PhyOffset(1000), &log(1000, 300));
        assert!(writer.spare.len() <= 2, "memory is used again");
    }

    #[test]
    fn readers_on_other_cores_see_whole_bytes_while_the_writer_laps_them() {
        const END: u64 = 4_000_000;
        let tail = LogTail::with(4096, 4);
        let shown = std::sync::atomic::AtomicU64::new(0);
        std::thread::scope(|scope| {
            for seed in 0..2u64 {
                let (tail, shown) = (&tail, &shown);
                scope.spawn(move || {
                    let (mut random, mut found) = (seed + 1, 0u64);
                    while shown.load(Ordering::Acquire) < END || found == 0 {
                        random ^= random << 13;
                        random ^= random >> 7;
                        random ^= random << 17;
                        let end = shown.load(Ordering::Acquire);
                        let back = random % 20_000;
                        let len = (random >> 32) % 6000;
                        let Some(at) = end.checked_sub(back) else { continue };
                        let len = len.min(end - at) as usize;
                        if let Some(bytes) = read(tail, at, len) {
                            assert_eq!(bytes, log(at, len));
                            found += 1;
                        }
                    }
                });
            }
            let mut writer = tail.writer();
            let mut at = 0;
            while at < END {
                let len = (1 + at % 1789).min(END - at);
                writer.append(PhyOffset(at), &log(at, len as usize));
                at += len;
                shown.store(at, Ordering::Release);
            }
            // A reader that has lost its core in the middle holds a list of four; one more fell out last.
            assert!(writer.spare.len() <= 2 * 4 + 1, "memory stays bounded: {}", writer.spare.len());
        });
    }
}
