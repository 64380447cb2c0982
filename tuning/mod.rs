//! Settings of the host that the node depends on: what is there, what is wanted, why, and how to get it.
//!
//! One file a setting. A library module: the node runs the checks at its start and refuses where it cannot do without;
//! `kerolox-tune` shows them all. Looking changes nothing. Applying and undoing settings, and measuring the device, come
//! with the issue "Measure and tune"; each setting then gets its `apply` and `undo` beside its `check`.

pub mod io_uring;
pub mod locked_memory;
pub mod open_files;
pub mod probe;
pub mod recommend;

use std::fmt;

/// What a setting that is not as wanted costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// As wanted.
    Fine,
    /// The node runs, with less than it could have.
    Warning,
    /// The node does not start.
    Refusal,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Severity::Fine => "ok",
            Severity::Warning => "WARN",
            Severity::Refusal => "REFUSED",
        })
    }
}

/// One setting of the host as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub setting: &'static str,
    pub severity: Severity,
    pub found: String,
    pub wanted: String,
    /// Why the node wants it.
    pub reason: &'static str,
    /// What to do; empty if nothing is to be done.
    pub fix: String,
}

impl Finding {
    fn fine(
        setting: &'static str,
        found: impl Into<String>,
        wanted: impl Into<String>,
        reason: &'static str,
    ) -> Finding {
        let (found, wanted) = (found.into(), wanted.into());
        Finding { setting, severity: Severity::Fine, found, wanted, reason, fix: String::new() }
    }

    fn but(mut self, severity: Severity, fix: impl Into<String>) -> Finding {
        self.severity = severity;
        self.fix = fix.into();
        self
    }
}

/// What is wrong and what to do, on one line.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.setting, self.found, self.fix)
    }
}

/// All checks, for a node with this many executors.
pub fn check(executors: usize) -> Vec<Finding> {
    // Where memory may not be locked, io_uring may say no more than that there is none.
    vec![locked_memory::check(executors), io_uring::check(), open_files::check()]
}
