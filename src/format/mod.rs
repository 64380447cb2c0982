//! What the bytes on disk mean: every layout and every file name of a RocketMQ store directory, one file each.
//!
//! Floor 1: pure functions over bytes, on any core. Nothing here opens a file, reads a clock or waits; whatever is
//! decoded may come from a damaged disk, so decoding returns errors and never panics. Source: store.md 1 to 4.

pub mod checkpoint;
pub mod config_files;
pub mod index_file;
pub mod names;
pub mod record;
pub mod unit;

/// The `N` bytes of `bytes` that start at `at`; panics if they are not all there, which callers check first.
fn fixed<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("the range has N bytes")
}
