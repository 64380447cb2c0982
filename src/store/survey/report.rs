//! What a verification says.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::store::quarantine::Region;

/// Findings that are kept with their text; more are counted.
const FINDINGS_MAX: usize = 1000;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// The next start sets it right, or it does no harm.
    Warning,
    /// The store does not agree with itself.
    Error,
}

/// One place where a store breaks a rule.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    pub level: Level,
    /// The invariant, as store.md 13.1 numbers them, or what was read.
    pub rule: &'static str,
    /// File, queue or physical offset.
    pub place: String,
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = match self.level {
            Level::Error => "error",
            Level::Warning => "warning",
        };
        write!(f, "{level}\t{}\t{}\t{}", self.rule, self.place, self.what)
    }
}

/// A quarantined region and what leads there.
#[derive(Clone, Debug, Serialize)]
pub struct Known {
    #[serde(flatten)]
    pub region: Region,
    /// Consume queue units that lead there, in place of lost messages.
    pub units: u64,
    /// Index entries that lead there.
    pub index_entries: u64,
}

/// What was looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    pub segments: u64,
    pub log_start: u64,
    pub log_end: u64,
    pub records: u64,
    pub blanks: u64,
    pub first_stored_at: i64,
    pub last_stored_at: i64,
    pub queues: u64,
    /// Units of messages that the log still has.
    pub units: u64,
    /// Records of topics that were deleted, or deleted and made again: they have no units.
    pub retired_records: u64,
    /// Records of the kinds that have no unit: half and rolled back messages.
    pub unitless_records: u64,
    pub index_files: u64,
    pub index_entries: u64,
    /// Keys that Java put in twice.
    pub repeated_index_entries: u64,
}

/// The whole report.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub root: String,
    /// No finding of level error.
    pub clean: bool,
    /// The last stop was clean.
    pub stopped_cleanly: bool,
    pub errors: u64,
    pub warnings: u64,
    pub errors_by_rule: BTreeMap<&'static str, u64>,
    pub warnings_by_rule: BTreeMap<&'static str, u64>,
    pub counts: Counts,
    pub quarantined: Vec<Known>,
    /// What was not looked at, and why.
    pub not_checked: Vec<String>,
    /// The first of them; `errors` and `warnings` count all.
    pub findings: Vec<Finding>,
}

impl Report {
    pub(super) fn new(root: String, stopped_cleanly: bool) -> Report {
        Report {
            root,
            clean: true,
            stopped_cleanly,
            errors: 0,
            warnings: 0,
            errors_by_rule: BTreeMap::new(),
            warnings_by_rule: BTreeMap::new(),
            counts: Counts::default(),
            quarantined: Vec::new(),
            not_checked: Vec::new(),
            findings: Vec::new(),
        }
    }

    pub(super) fn error(&mut self, rule: &'static str, place: impl fmt::Display, what: impl Into<String>) {
        self.note(Level::Error, rule, place, what);
    }

    pub(super) fn warn(&mut self, rule: &'static str, place: impl fmt::Display, what: impl Into<String>) {
        self.note(Level::Warning, rule, place, what);
    }

    pub(super) fn note(&mut self, level: Level, rule: &'static str, place: impl fmt::Display, what: impl Into<String>) {
        let (count, by_rule) = match level {
            Level::Error => (&mut self.errors, &mut self.errors_by_rule),
            Level::Warning => (&mut self.warnings, &mut self.warnings_by_rule),
        };
        *count += 1;
        *by_rule.entry(rule).or_default() += 1;
        self.clean = self.errors == 0;
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(Finding { level, rule, place: place.to_string(), what: what.into() });
        }
    }
}
