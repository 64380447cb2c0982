//! Appending to a file that is written in whole blocks only: which blocks a write takes, and what stands in them.
//!
//! Pure. The block that holds the end is kept in memory and written again, longer, by the next write, so nothing is ever
//! read back. What it held before the end stays byte for byte what it was: a write that is cut short harms nothing that
//! was written earlier.

/// The end of what was appended to one file, and the block that it lies in.
#[derive(Debug)]
pub struct TailBlock {
    /// Where that block begins in the file.
    at: u64,
    /// The first byte that is not yet appended, counted from `at`.
    filled: usize,
    /// The block as the file holds it: what was appended, then what was there before, as a rule zeros.
    block: Vec<u8>,
}

impl TailBlock {
    /// `block` is what the file holds in the block of `end`; its length is that of every block.
    ///
    /// # Panics
    /// If it has none.
    pub fn new(end: u64, block: Vec<u8>) -> TailBlock {
        let filled = end % block.len() as u64;
        TailBlock { at: end - filled, filled: filled as usize, block }
    }

    /// The first byte that is not yet appended.
    pub fn end(&self) -> u64 {
        self.at + self.filled as u64
    }

    /// Where the next write begins; always the start of a block.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// What was appended to the block that holds the end.
    pub fn head(&self) -> &[u8] {
        &self.block[..self.filled]
    }

    /// Length of the write that appends `len` bytes.
    pub fn write_len(&self, len: usize) -> usize {
        (self.filled + len).next_multiple_of(self.block.len())
    }

    /// How much of `len` bytes a write of at most `limit` bytes appends, so that the next one begins at a block of its
    /// own: then the two may be under way at once.
    ///
    /// # Panics
    /// If `limit` is no multiple of the block length.
    pub fn portion(&self, len: usize, limit: usize) -> usize {
        assert!(limit > 0 && limit.is_multiple_of(self.block.len()), "a write is made of whole blocks");
        len.min(limit - self.filled)
    }

    /// Lays out the write that appends `bytes`, to be made at [`TailBlock::at`] as it was before, and moves the end.
    ///
    /// # Panics
    /// If `out` is not [`TailBlock::write_len`] bytes long.
    pub fn append(&mut self, bytes: &[u8], out: &mut [u8]) {
        assert_eq!(out.len(), self.write_len(bytes.len()), "a write is made of whole blocks");
        let block_len = self.block.len();
        let end = self.filled + bytes.len();
        out[..self.filled].copy_from_slice(&self.block[..self.filled]);
        out[self.filled..end].copy_from_slice(bytes);
        if end < block_len {
            // Still the same block: what stands behind the end stays.
            out[end..].copy_from_slice(&self.block[end..]);
            self.block[self.filled..end].copy_from_slice(bytes);
            self.filled = end;
            return;
        }
        out[end..].fill(0);
        let whole = end / block_len * block_len;
        self.block.fill(0);
        self.block[..end - whole].copy_from_slice(&out[whole..end]);
        self.at += whole as u64;
        self.filled = end - whole;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BLOCK: usize = 16;

    fn append(tail: &mut TailBlock, bytes: &[u8]) -> (u64, Vec<u8>) {
        let at = tail.at();
        let mut out = vec![0xEE; tail.write_len(bytes.len())];
        tail.append(bytes, &mut out);
        (at, out)
    }

    #[test]
    fn a_write_begins_with_what_its_first_block_held_already() {
        let mut tail = TailBlock::new(0, vec![0; BLOCK]);
        assert_eq!(append(&mut tail, b"abc"), (0, b"abc\0\0\0\0\0\0\0\0\0\0\0\0\0".to_vec()));
        assert_eq!(append(&mut tail, b"def"), (0, b"abcdef\0\0\0\0\0\0\0\0\0\0".to_vec()));
        assert_eq!(tail.head(), b"abcdef");
        let (at, out) = append(&mut tail, b"0123456789XY");
        assert_eq!((at, out.len()), (0, 2 * BLOCK));
        assert_eq!(&out[..18], b"abcdef0123456789XY");
        assert_eq!((tail.at(), tail.end(), tail.head()), (16, 18, b"XY".as_slice()));
    }

    #[test]
    fn a_write_that_ends_a_block_leaves_nothing_to_write_again() {
        let mut tail = TailBlock::new(0, vec![0; BLOCK]);
        append(&mut tail, &[7; BLOCK]);
        assert_eq!((tail.at(), tail.end(), tail.head()), (16, 16, b"".as_slice()));
        assert_eq!(append(&mut tail, b"x").0, 16);
    }

    #[test]
    fn what_stands_behind_the_end_of_the_opened_block_stays() {
        let mut tail = TailBlock::new(35, b"abcold bytes....".to_vec());
        assert_eq!((tail.at(), tail.end()), (32, 35));
        assert_eq!(append(&mut tail, b"NEW"), (32, b"abcNEW bytes....".to_vec()));
    }

    proptest! {
        #[test]
        fn the_file_holds_what_plain_writes_would_have_left(
            start in 0usize..64,
            lens in prop::collection::vec(0usize..70, 1..40),
            limit in 1usize..4,
        ) {
            let mut plain: Vec<u8> = (0..start).map(|at| at as u8 | 1).collect();
            plain.resize(4096, 0);
            let mut file = plain.clone();
            let block_at = start / BLOCK * BLOCK;
            let mut tail = TailBlock::new(start as u64, file[block_at..block_at + BLOCK].to_vec());
            let mut end = start;
            for (number, len) in lens.into_iter().enumerate() {
                let bytes = vec![number as u8 + 100; len];
                plain[end..end + len].copy_from_slice(&bytes);
                let mut rest = bytes.as_slice();
                let mut written_to = 0;
                while !rest.is_empty() {
                    let (part, behind) = rest.split_at(tail.portion(rest.len(), limit * BLOCK));
                    rest = behind;
                    let before = file.clone();
                    let flushed = tail.end() as usize;
                    let (at, out) = append(&mut tail, part);
                    prop_assert!(at >= written_to, "two writes of one append share a block");
                    prop_assert!(out.len() <= limit * BLOCK);
                    written_to = at + out.len() as u64;
                    file[at as usize..at as usize + out.len()].copy_from_slice(&out);
                    prop_assert_eq!(&file[..flushed], &before[..flushed]);
                }
                end += len;
                prop_assert_eq!(tail.end(), end as u64);
                prop_assert_eq!(tail.head(), &plain[end / BLOCK * BLOCK..end]);
            }
            prop_assert_eq!(file, plain);
        }
    }
}
