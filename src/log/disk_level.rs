//! How full a disk may get, and what follows from it. Source: store.md 9.2.

use std::fmt;

use crate::types::DiskUsage;

/// From which usage on what happens; checked settings. Percent as [`DiskUsage::percent`] counts them, free space in
/// bytes; a bound of free space that is 0 is off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskRule {
    /// Above it expired segments go at any hour.
    pub max_used_percent: u64,
    /// Above it segments go although they have not expired.
    pub clean_percent: u64,
    /// Above it no messages are taken.
    pub warning_percent: u64,
    /// Below it as above `clean_percent`.
    pub min_free_clean: u64,
    /// Below it as above `warning_percent`.
    pub min_free_warning: u64,
}

/// What a usage means. Each level includes what those before it bring about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DiskLevel {
    Fine,
    /// Expired segments go at any hour.
    Used,
    /// Segments go at once, expired or not.
    Clean,
    /// No messages are taken.
    Warning,
}

impl DiskRule {
    pub fn level(&self, usage: DiskUsage) -> DiskLevel {
        let percent = usage.percent();
        if percent > self.warning_percent || usage.available < self.min_free_warning {
            DiskLevel::Warning
        } else if percent > self.clean_percent || usage.available < self.min_free_clean {
            DiskLevel::Clean
        } else if percent > self.max_used_percent {
            DiskLevel::Used
        } else {
            DiskLevel::Fine
        }
    }
}

impl fmt::Display for DiskRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "expired segments go at any hour above {} % used, the oldest at once above {} %",
            self.max_used_percent, self.clean_percent
        )?;
        if self.min_free_clean > 0 {
            write!(f, " or below {} bytes free", self.min_free_clean)?;
        }
        write!(f, ", sends are refused above {} %", self.warning_percent)?;
        if self.min_free_warning > 0 {
            write!(f, " or below {} bytes free", self.min_free_warning)?;
        }
        Ok(())
    }
}

/// Watches one file system: full from the warning level on, and until it is below the clean level.
#[derive(Clone, Debug)]
pub struct DiskGuard {
    rule: DiskRule,
    full: bool,
}

impl DiskGuard {
    pub fn new(rule: DiskRule) -> DiskGuard {
        DiskGuard { rule, full: false }
    }

    pub fn is_full(&self) -> bool {
        self.full
    }

    /// Takes note of a look at the file system.
    pub fn note(&mut self, usage: DiskUsage) -> DiskLevel {
        let level = self.rule.level(usage);
        match level {
            DiskLevel::Warning => self.full = true,
            DiskLevel::Clean => {}
            DiskLevel::Used | DiskLevel::Fine => self.full = false,
        }
        level
    }

    /// Why the usage is too high to take messages, for a client's eye; the limit named is the one that was passed, or
    /// the one below which messages are taken again.
    pub fn excess(&self, usage: DiskUsage) -> String {
        let DiskRule { clean_percent, warning_percent, min_free_clean, min_free_warning, .. } = self.rule;
        let (percent, free) = (usage.percent(), usage.available);
        let goes_on = if min_free_clean.max(min_free_warning) == 0 {
            format!("messages are taken again at {clean_percent} %")
        } else {
            let free = min_free_clean.max(min_free_warning);
            format!("messages are taken again at {clean_percent} % with {free} bytes free")
        };
        if percent > warning_percent {
            format!("{percent} % used, the limit is {warning_percent} % (disk.warning_percent); {goes_on}")
        } else if free < min_free_warning {
            format!(
                "{percent} % used, {free} bytes free, the limit is {min_free_warning} bytes (disk.min_free_warning); {goes_on}"
            )
        } else {
            format!("{percent} % used, {free} bytes free; {goes_on}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: DiskRule = DiskRule {
        max_used_percent: 75,
        clean_percent: 85,
        warning_percent: 90,
        min_free_clean: 0,
        min_free_warning: 0,
    };

    fn used(percent: u64) -> DiskUsage {
        DiskUsage { used: percent * 1000, available: (100 - percent) * 1000 }
    }

    #[test]
    fn a_level_begins_above_its_percent() {
        let levels = [75, 76, 85, 86, 90, 91, 100].map(|percent| RULE.level(used(percent)));
        use DiskLevel::{Clean, Fine, Used, Warning};
        assert_eq!(levels, [Fine, Used, Used, Clean, Clean, Warning, Warning]);
        // One byte above 90 % is 91 %, as Java rounds.
        assert_eq!(RULE.level(DiskUsage { used: 90_001, available: 9_999 }), Warning);
    }

    #[test]
    fn free_bytes_bound_the_same_levels() {
        let rule = DiskRule { min_free_clean: 60_000, min_free_warning: 50_000, ..RULE };
        assert_eq!(rule.level(used(40)), DiskLevel::Fine);
        assert_eq!(rule.level(used(41)), DiskLevel::Clean);
        assert_eq!(rule.level(used(50)), DiskLevel::Clean);
        assert_eq!(rule.level(used(51)), DiskLevel::Warning);
    }

    #[test]
    fn a_full_disk_stays_full_until_it_is_below_the_clean_level() {
        let mut guard = DiskGuard::new(RULE);
        let mut full_after = |percent| {
            guard.note(used(percent));
            guard.is_full()
        };
        assert_eq!([90, 91, 90, 86].map(&mut full_after), [false, true, true, true]);
        assert_eq!([85, 86, 90, 99].map(&mut full_after), [false, false, false, true]);
    }

    #[test]
    fn the_reason_names_usage_and_limit() {
        let mut guard = DiskGuard::new(DiskRule { min_free_warning: 20_000, ..RULE });
        guard.note(used(93));
        let text = guard.excess(used(93));
        assert!(text.contains("93 % used") && text.contains("90 %") && text.contains("85 %"), "{text}");
        let text = guard.excess(used(82));
        assert!(text.contains("18000 bytes free") && text.contains("20000 bytes"), "{text}");
    }
}
