//! What the writer core counts for others to read.

use super::owned::{BatchSizes, Times};

/// Written by the writer core alone.
#[derive(Debug, Default)]
pub struct WriterTimes {
    /// A batch is handed over, to its turn; each put counted.
    pub queue: Times,
    /// A turn's way into the log; each put counted.
    pub append: Times,
    /// A flush of the device; each flush counted.
    pub flush: Times,
    /// Puts that share a turn, and a flush.
    pub turn_puts: BatchSizes,
    pub flush_puts: BatchSizes,
}
