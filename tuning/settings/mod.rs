//! The settings, one file each: what is looked at, what is wanted and why, and the changes that make it so.
//!
//! In the order in which they are applied; undoing goes the other way.

mod clocksource;
mod cpu_governor;
mod cpu_idle;
mod dirty_bytes;
mod fstrim;
mod io_uring;
mod irq_affinity;
mod max_map_count;
pub mod memlock;
mod mount_options;
mod nofile;
mod nr_requests;
mod read_ahead;
mod scheduler;
mod somaxconn;
mod swappiness;
mod transparent_hugepages;
mod write_cache;

use std::fmt;
use std::io;

use super::{Finding, Host, Severity};

/// One setting of the host.
pub struct Setting {
    /// As its file is called.
    pub name: &'static str,
    /// Why the node wants it.
    pub reason: &'static str,
    look: fn(&Host) -> io::Result<Vec<Finding>>,
}

/// All of them.
pub const SETTINGS: [Setting; 18] = [
    // Where memory may not be locked, io_uring may say no more than that there is none.
    memlock::SETTING,
    io_uring::SETTING,
    nofile::SETTING,
    // What loses messages.
    write_cache::SETTING,
    mount_options::SETTING,
    // The devices. Another scheduler brings its own number of requests.
    scheduler::SETTING,
    nr_requests::SETTING,
    read_ahead::SETTING,
    fstrim::SETTING,
    // Memory.
    max_map_count::SETTING,
    swappiness::SETTING,
    dirty_bytes::SETTING,
    transparent_hugepages::SETTING,
    // Cores and network.
    clocksource::SETTING,
    cpu_governor::SETTING,
    cpu_idle::SETTING,
    irq_affinity::SETTING,
    somaxconn::SETTING,
];

impl Setting {
    /// What this host has of it. Changes nothing.
    pub fn check(&self, host: &Host) -> Vec<Finding> {
        (self.look)(host).unwrap_or_else(|error| {
            let unknown = self.fine("", "it cannot be told", "to be known");
            vec![unknown.by_hand(Severity::Hint, format!("look at {error}"))]
        })
    }

    /// As wanted, until something else is said of it.
    fn fine(&self, of: &str, found: impl fmt::Display, wanted: impl fmt::Display) -> Finding {
        Finding {
            setting: self.name,
            of: of.to_owned(),
            severity: Severity::Fine,
            found: found.to_string(),
            wanted: wanted.to_string(),
            reason: self.reason,
            fix: String::new(),
            changes: Vec::new(),
        }
    }

    /// The kernel or the machine has no such setting.
    fn absent(&self, why: impl fmt::Display) -> Vec<Finding> {
        vec![self.fine("", why, "nothing")]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_setting_has_a_name_of_its_own_and_stands_in_the_readme() {
        let readme = include_str!("../README.md");
        let names: HashSet<_> = SETTINGS.iter().map(|setting| setting.name).collect();
        assert_eq!(names.len(), SETTINGS.len());
        for name in names {
            assert!(readme.contains(&format!("| `{name}` |")), "{name}");
        }
    }
}
