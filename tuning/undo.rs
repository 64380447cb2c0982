//! Takes back what was applied, the last change first.

use serde::Serialize;

use super::Host;
use super::apply::write;
use super::record::{Entry, Record, RecordError};

/// What has become of a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "outcome")]
pub enum Outcome {
    Restored,
    /// The file had its old value again.
    AsBefore,
    /// The file is no longer there: its device is gone, and the value with it.
    Gone,
    /// Somebody has set another value since. It stays, and so does the note of the change.
    ChangedSince {
        value: String,
    },
    /// It could not be restored; the note of the change stays.
    Failed {
        why: String,
    },
}

impl Outcome {
    /// Is there nothing left to do?
    pub fn is_done(&self) -> bool {
        matches!(self, Outcome::Restored | Outcome::AsBefore | Outcome::Gone)
    }
}

/// A change and what has become of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Undone {
    pub setting: String,
    pub path: String,
    /// Before the change.
    pub old: String,
    /// By the change.
    pub new: String,
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// Undoes all that is recorded, and tells of each as it is done. One that fails keeps none of the others back. `force`: also
/// what somebody else has changed since.
///
/// # Errors
/// The record cannot be written: all was tried, and what is done will be found done the next time.
pub fn undo(host: &Host, record: &mut Record, force: bool, mut tell: impl FnMut(Undone)) -> Result<(), RecordError> {
    let mut left = Vec::new();
    for entry in record.entries().iter().rev() {
        let outcome = restore(host, entry, force);
        if !outcome.is_done() {
            left.insert(0, entry.clone());
        }
        let Entry { setting, path, old, new, .. } = entry.clone();
        tell(Undone { setting, path, old, new, outcome });
    }
    record.leave(left)
}

fn restore(host: &Host, entry: &Entry, force: bool) -> Outcome {
    let failed = |why: String| Outcome::Failed { why };
    match host.value(&entry.path) {
        Ok(None) => return Outcome::Gone,
        Err(error) => return failed(error.to_string()),
        Ok(Some(now)) if now == entry.old => return Outcome::AsBefore,
        Ok(Some(now)) if now != entry.new && !force => return Outcome::ChangedSince { value: now },
        Ok(Some(_)) => {}
    }
    for (path, value) in &entry.back {
        if let Err(error) = write(host, path, value) {
            return failed(format!("{path}: {error}"));
        }
    }
    match host.value(&entry.path) {
        Ok(Some(now)) if now == entry.old => Outcome::Restored,
        Ok(now) => failed(format!("it was given {:?} and has {:?}", entry.old, now.unwrap_or_default())),
        Err(error) => failed(error.to_string()),
    }
}
