//! Reading a file in large pieces: what cannot be read is known and reads as zeros.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::io::written_ranges;

/// Bytes read at once.
const WINDOW_LEN: u64 = 4 << 20;
const BLOCK_LEN: u64 = 4096;

/// A file and the piece of it that was read last.
#[derive(Debug)]
pub struct Window {
    path: PathBuf,
    file: File,
    len: u64,
    piece_len: u64,
    at: u64,
    bytes: Vec<u8>,
    /// Blocks that the disk did not give, in order and joined.
    unreadable: Vec<Range<u64>>,
}

impl Window {
    pub fn open(path: &Path) -> io::Result<Window> {
        Window::of_pieces(path, WINDOW_LEN)
    }

    /// As [`Window::open`], reading so many bytes at once.
    pub fn of_pieces(path: &Path, piece_len: u64) -> io::Result<Window> {
        let file = File::open(path)?;
        let len = file.metadata()?.len();
        Ok(Window { path: path.to_owned(), file, len, piece_len, at: 0, bytes: Vec::new(), unreadable: Vec::new() })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn len(&self) -> u64 {
        self.len
    }

    /// The bytes `[at, at + len)`, fewer where the file ends. Memory: the larger of `len`, which callers bound by the
    /// file, and a few MiB.
    pub fn get(&mut self, at: u64, len: u64) -> &[u8] {
        let end = at.saturating_add(len).min(self.len);
        if at >= end {
            return &[];
        }
        if at < self.at || end > self.at + self.bytes.len() as u64 {
            self.fill(at, (end - at).max(self.piece_len).min(self.len - at));
        }
        let from = (at - self.at) as usize;
        &self.bytes[from..from + (end - at) as usize]
    }

    /// As [`Window::get`], and at least one window more of it, as much as the file has.
    pub fn ahead(&mut self, at: u64, least: u64) -> &[u8] {
        self.get(at, least.max(1));
        let from = at.saturating_sub(self.at).min(self.bytes.len() as u64) as usize;
        &self.bytes[from..]
    }

    fn fill(&mut self, at: u64, len: u64) {
        self.at = at;
        self.bytes.clear();
        self.bytes.resize(len as usize, 0);
        if self.file.read_exact_at(&mut self.bytes, at).is_ok() {
            return;
        }
        // Block by block, so that one that is bad costs no other.
        let mut done = 0;
        while done < len {
            let part = (BLOCK_LEN - (at + done) % BLOCK_LEN).min(len - done);
            let block = &mut self.bytes[done as usize..(done + part) as usize];
            if self.file.read_exact_at(block, at + done).is_err() {
                block.fill(0);
                self.note_unreadable(at + done..at + done + part);
            }
            done += part;
        }
    }

    fn note_unreadable(&mut self, block: Range<u64>) {
        if self.unreadable.iter().any(|known| known.contains(&block.start)) {
            return;
        }
        match self.unreadable.last_mut() {
            Some(last) if last.end == block.start => last.end = block.end,
            _ => self.unreadable.push(block),
        }
    }

    /// Blocks that could not be read so far.
    pub fn unreadable(&self) -> &[Range<u64>] {
        &self.unreadable
    }

    /// The parts of `[from, end)` that were ever written; all of it where the file system does not tell.
    pub fn written(&self, from: u64) -> Vec<Range<u64>> {
        let ranges = written_ranges(&self.file, from, self.len).unwrap_or_else(|_| vec![(from, self.len - from)]);
        ranges.into_iter().map(|(at, len)| at..at + len).collect()
    }

    /// The first byte at or behind `from` that is not zero.
    pub fn first_nonzero(&mut self, from: u64) -> Option<u64> {
        for range in self.written(from) {
            let mut at = range.start;
            while at < range.end {
                let part = (range.end - at).min(self.piece_len);
                if let Some(found) = self.get(at, part).iter().position(|byte| *byte != 0) {
                    return Some(at + found as u64);
                }
                at += part;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    fn file(bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, bytes).unwrap();
        (dir, path)
    }

    #[test]
    fn pieces_of_any_place_and_length_are_those_of_the_file() {
        let bytes: Vec<u8> = (0..10_000_u32).map(|at| (at / 7) as u8).collect();
        let (_dir, path) = file(&bytes);
        let mut window = Window::of_pieces(&path, 100).unwrap();
        for (at, len) in
            [(0, 10), (95, 10), (50, 500), (9_990, 10), (9_990, 100), (0, 20_000), (10_000, 5), (20_000, 5)]
        {
            let end = (at + len).min(bytes.len());
            assert_eq!(window.get(at as u64, len as u64), &bytes[at.min(end)..end], "{at} {len}");
        }
        assert!(window.ahead(9_000, 50).len() >= 50);
        assert!(window.unreadable().is_empty());
    }

    #[test]
    fn what_the_disk_does_not_give_is_known_and_reads_as_zeros() {
        let (_dir, path) = file(&[7; 20_000]);
        let mut window = Window::of_pieces(&path, 20_000).unwrap();
        // The file loses its end behind our back, as if blocks had gone bad.
        std::fs::File::options().write(true).open(&path).unwrap().set_len(9_000).unwrap();
        let bytes = window.get(0, 20_000).to_vec();
        assert_eq!((bytes[8_191], bytes[8_192], bytes.len()), (7, 0, 20_000), "block by block");
        let lost = vec![Range { start: 8_192, end: 20_000 }];
        assert_eq!(window.unreadable(), lost);
        window.get(10_000, 100);
        window.get(0, 20_000);
        assert_eq!(window.unreadable(), lost, "each is noted once");
    }

    #[test]
    fn the_first_byte_that_is_not_zero_is_found_over_holes() {
        let (_dir, path) = file(&[]);
        let opened = std::fs::File::options().write(true).open(&path).unwrap();
        opened.set_len(1 << 20).unwrap();
        assert_eq!(Window::open(&path).unwrap().first_nonzero(0), None);
        opened.write_all_at(&[1], 700_001).unwrap();
        let mut window = Window::of_pieces(&path, 4096).unwrap();
        assert_eq!((window.first_nonzero(0), window.first_nonzero(700_001)), (Some(700_001), Some(700_001)));
        assert_eq!(window.first_nonzero(700_002), None);
    }
}
