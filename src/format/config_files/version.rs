//! The version that every table carries, so that two copies of it can be told apart.

use serde_json::Value;

use crate::format::config_files::ConfigFileError;
use crate::format::config_files::java_json::bean;
use crate::format::config_files::read::Fields;
use crate::types::Timestamp;

/// The version of a table. Later is greater: by state version, then counter, then time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DataVersion {
    /// Changes with the controller's epoch; 0 without a controller, and in 4.x files.
    pub state_version: i64,
    /// Rises by one with every change.
    pub counter: i64,
    /// When the last change was made.
    pub timestamp: Timestamp,
}

impl DataVersion {
    /// The version after a change made at `now`.
    #[must_use]
    pub fn next(self, now: Timestamp) -> DataVersion {
        DataVersion { counter: self.counter.wrapping_add(1), timestamp: now, ..self }
    }

    /// As it stands in files and in answers, in the form of 5.x.
    pub fn to_json(&self) -> Value {
        bean([
            ("counter".to_owned(), self.counter.into()),
            ("stateVersion".to_owned(), self.state_version.into()),
            ("timestamp".to_owned(), self.timestamp.0.into()),
        ])
    }

    /// # Errors
    /// If `value` is no object, or a field no integer. Missing fields are 0.
    pub fn from_json(value: Value) -> Result<DataVersion, ConfigFileError> {
        DataVersion::of(Fields::of(NAME.to_owned(), value)?)
    }

    /// The `dataVersion` of a file; 0 throughout if it has none, as those of 4.x.
    pub(super) fn take(file: &mut Fields) -> Result<DataVersion, ConfigFileError> {
        DataVersion::of(file.object(NAME)?)
    }

    fn of(mut fields: Fields) -> Result<DataVersion, ConfigFileError> {
        Ok(DataVersion {
            state_version: fields.long("stateVersion", 0)?,
            counter: fields.long("counter", 0)?,
            timestamp: Timestamp(fields.long("timestamp", 0)?),
        })
    }
}

pub(super) const NAME: &str = "dataVersion";
