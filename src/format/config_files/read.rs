//! Taking fields out of parsed JSON, with the path of the one that is wrong.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::format::config_files::ConfigFileError;
use crate::types::json;

/// A JSON object whose fields are taken out one by one; what is left over is unknown to us.
pub(super) struct Fields {
    path: String,
    fields: Map<String, Value>,
}

impl Fields {
    /// The object that a whole file holds.
    pub(super) fn of_file(text: &[u8]) -> Result<Fields, ConfigFileError> {
        if text.trim_ascii().is_empty() {
            return Err(ConfigFileError::Empty);
        }
        let value = json::parse(text).map_err(ConfigFileError::Json)?;
        Fields::of(String::new(), value)
    }

    pub(super) fn of(path: String, value: Value) -> Result<Fields, ConfigFileError> {
        match value {
            Value::Object(fields) => Ok(Fields { path, fields }),
            _ => Err(wrong(if path.is_empty() { "the file".to_owned() } else { path }, "an object")),
        }
    }

    pub(super) fn int(&mut self, name: &str, default: i32) -> Result<i32, ConfigFileError> {
        self.read(name, "an integer of 32 bits", |value| json::as_i32(&value)).map(|found| found.unwrap_or(default))
    }

    pub(super) fn long(&mut self, name: &str, default: i64) -> Result<i64, ConfigFileError> {
        self.read(name, "an integer", |value| json::as_i64(&value)).map(|found| found.unwrap_or(default))
    }

    pub(super) fn truth(&mut self, name: &str, default: bool) -> Result<bool, ConfigFileError> {
        self.read(name, "true or false", |value| json::as_bool(&value)).map(|found| found.unwrap_or(default))
    }

    pub(super) fn text(&mut self, name: &str) -> Result<Option<String>, ConfigFileError> {
        self.read(name, "a text", |value| json::as_str(&value).map(str::to_owned))
    }

    /// A value of any kind.
    pub(super) fn any(&mut self, name: &str) -> Option<Value> {
        self.fields.remove(name).filter(|value| !value.is_null())
    }

    /// A map of texts; absent is empty.
    pub(super) fn texts(&mut self, name: &str) -> Result<BTreeMap<String, String>, ConfigFileError> {
        self.entries(name, |path, _, value| match value {
            Value::String(text) => Ok(text),
            _ => Err(wrong(path, "a text")),
        })
    }

    /// A field that is an object itself; absent is empty.
    pub(super) fn object(&mut self, name: &str) -> Result<Fields, ConfigFileError> {
        let value = self.any(name).unwrap_or_else(|| Value::Object(Map::new()));
        Fields::of(self.path_of(name), value)
    }

    /// A field that is a map; each entry is made by `entry` from its path, key and value. Absent is empty.
    pub(super) fn entries<T>(
        &mut self,
        name: &str,
        entry: impl FnMut(String, &str, Value) -> Result<T, ConfigFileError>,
    ) -> Result<BTreeMap<String, T>, ConfigFileError> {
        self.object(name)?.into_entries(entry)
    }

    /// All fields as a map, as in [`Fields::entries`].
    pub(super) fn into_entries<T>(
        self,
        mut entry: impl FnMut(String, &str, Value) -> Result<T, ConfigFileError>,
    ) -> Result<BTreeMap<String, T>, ConfigFileError> {
        let Fields { path, fields } = self;
        fields
            .into_iter()
            .map(|(key, value)| {
                let made = entry(format!("{path}.{key}"), &key, value)?;
                Ok((key, made))
            })
            .collect()
    }

    /// What was not taken.
    pub(super) fn rest(self) -> Map<String, Value> {
        self.fields
    }

    fn read<T>(
        &mut self,
        name: &str,
        expected: &'static str,
        read: impl FnOnce(Value) -> Option<T>,
    ) -> Result<Option<T>, ConfigFileError> {
        match self.any(name) {
            None => Ok(None),
            Some(value) => read(value).map(Some).ok_or_else(|| wrong(self.path_of(name), expected)),
        }
    }

    pub(super) fn path_of(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }
}

/// An object with integer keys and integer values, as tables of offsets are. A null is an error: it would forget one.
pub(super) fn int_map(path: String, value: Value) -> Result<BTreeMap<i32, i64>, ConfigFileError> {
    let Fields { path, fields } = Fields::of(path, value)?;
    fields
        .into_iter()
        .map(|(key, value)| match (key.trim().parse(), json::as_i64(&value)) {
            (Ok(key), Some(value)) => Ok((key, value)),
            (Err(_), _) => Err(wrong(format!("{path}.{key}"), "an integer of 32 bits as key")),
            (_, None) => Err(wrong(format!("{path}.{key}"), "an integer")),
        })
        .collect()
}

pub(super) fn wrong(path: String, expected: &'static str) -> ConfigFileError {
    ConfigFileError::Field { path, expected }
}
