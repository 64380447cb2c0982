//! Puts settings right, one after the other: notes the way back, then writes, then reads back what has become of it.

use std::fs::OpenOptions;
use std::io::{self, Write};

use serde::Serialize;

use super::record::{Record, RecordError};
use super::{Change, Finding, Host, SETTINGS, Severity};

/// What has become of a setting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "outcome")]
pub enum Outcome {
    /// It was as wanted.
    AsWanted,
    Applied,
    /// It would be applied, but this is a rehearsal.
    WouldApply,
    /// Not done here, see the finding's fix: what outlives a restart of the host, or belongs to another program.
    Skipped,
    /// At least one of its files did not take the value.
    Failed {
        why: String,
    },
}

/// A setting and what has become of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Applied {
    #[serde(flatten)]
    pub finding: Finding,
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// Applies the settings of these names, or all, and tells of each as it is done. One that fails keeps none of the others
/// back.
///
/// # Errors
/// The way back cannot be noted: nothing is changed from there on.
pub fn apply(
    host: &Host,
    record: &mut Record,
    only: &[String],
    mut tell: impl FnMut(Applied),
) -> Result<(), RecordError> {
    for setting in chosen(only) {
        // Looked at only now: an earlier setting may have changed what this one finds.
        for finding in setting.check(host) {
            let outcome = match still(&finding) {
                Some(outcome) => outcome,
                None => {
                    record.note(finding.setting, &finding.changes)?;
                    make(host, record, &finding.changes)?
                }
            };
            tell(Applied { finding, outcome });
        }
    }
    Ok(())
}

/// What [`apply`] would do, as far as it can be told without doing it.
pub fn rehearse(host: &Host, only: &[String]) -> Vec<Applied> {
    let findings = chosen(only).flat_map(|setting| setting.check(host));
    findings.map(|finding| Applied { outcome: still(&finding).unwrap_or(Outcome::WouldApply), finding }).collect()
}

fn chosen(only: &[String]) -> impl Iterator<Item = &'static super::settings::Setting> {
    SETTINGS.iter().filter(move |setting| only.is_empty() || only.iter().any(|name| name == setting.name))
}

/// The outcome where nothing is to be written.
fn still(finding: &Finding) -> Option<Outcome> {
    match finding.severity {
        Severity::Fine => Some(Outcome::AsWanted),
        _ if finding.changes.is_empty() => Some(Outcome::Skipped),
        _ => None,
    }
}

/// Writes all, and corrects the record by what the files then say.
fn make(host: &Host, record: &mut Record, changes: &[Change]) -> Result<Outcome, RecordError> {
    let mut failures = Vec::new();
    for change in changes {
        let written = write(host, &change.path, &change.to);
        let now = host.value(&change.path).ok().flatten();
        let told = match (&written, &now) {
            (Ok(()), Some(now)) if *now == change.to => continue,
            (Ok(()), Some(now)) => format!("{} was given {:?} and has {now:?}", change.path, change.to),
            (Ok(()), None) => format!("{} was given {:?} and can no longer be read", change.path, change.to),
            (Err(error), _) => format!("{}: {error}", change.path),
        };
        failures.push(told);
        if let Some(now) = now {
            record.correct(&change.path, &now, written.is_ok())?;
        }
    }
    Ok(if failures.is_empty() { Outcome::Applied } else { Outcome::Failed { why: failures.join("; ") } })
}

/// Writes a value as the shell's `echo` does.
pub(super) fn write(host: &Host, path: &str, value: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).truncate(true).open(host.at(path))?;
    file.write_all(format!("{value}\n").as_bytes())
}
