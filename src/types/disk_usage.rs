//! How full a file system is.

/// Bytes of one file system. What is kept for root is in neither.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskUsage {
    pub used: u64,
    pub available: u64,
}

impl DiskUsage {
    /// Whole percent used, of what is used or available, rounded up. Source: store.md 9.2.
    pub fn percent(self) -> u64 {
        let whole = u128::from(self.used) + u128::from(self.available);
        if whole == 0 {
            return 100;
        }
        (u128::from(self.used) * 100).div_ceil(whole) as u64
    }

    /// The same after `len` bytes have been freed.
    pub fn freed(self, len: u64) -> DiskUsage {
        let freed = len.min(self.used);
        DiskUsage { used: self.used - freed, available: self.available.saturating_add(freed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percent_that_has_begun_counts_whole() {
        let percent = |used, available| DiskUsage { used, available }.percent();
        assert_eq!(percent(0, 100), 0);
        assert_eq!(percent(1, 999), 1);
        assert_eq!(percent(90, 10), 90);
        assert_eq!(percent(9001, 999), 91);
        assert_eq!(percent(100, 0), 100);
        assert_eq!(percent(0, 0), 100);
        assert_eq!(percent(u64::MAX, u64::MAX), 50);
    }

    #[test]
    fn freed_bytes_become_available() {
        assert_eq!(DiskUsage { used: 90, available: 10 }.freed(30), DiskUsage { used: 60, available: 40 });
        assert_eq!(DiskUsage { used: 90, available: 10 }.freed(300), DiskUsage { used: 0, available: 100 });
    }
}
