//! What the JSON bodies share: how a field is looked up, and what is said of one that is not as it must be.
//!
//! Collections that are absent or null are empty, numbers may be texts, enums may be ordinals, unknown keys are
//! ignored. Source: remoting.md 3.0.

use std::fmt;

use serde_json::Value;

use crate::types::json::{self, JsonError};

/// A body that cannot be read; answered with code 1 and this text as remark.
#[derive(Debug)]
pub enum BodyError {
    Json(JsonError),
    /// A field that must be there is absent or null. An object that fastjson wrote as a reference to an earlier one
    /// (`$ref`) ends here too: it has none of its fields.
    Missing {
        field: &'static str,
    },
    /// A field is there, but is not what it must be.
    Wrong {
        field: &'static str,
        expected: &'static str,
    },
    /// A compressed body that is no zlib stream, is cut, or grows beyond its limit.
    Inflate {
        why: String,
    },
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BodyError::Json(error) => write!(f, "the body is no JSON: {error}"),
            BodyError::Missing { field } => write!(f, "the body lacks the field {field}"),
            BodyError::Wrong { field, expected } => write!(f, "the field {field} of the body must be {expected}"),
            BodyError::Inflate { why } => write!(f, "the body cannot be inflated: {why}"),
        }
    }
}

impl std::error::Error for BodyError {}

impl From<JsonError> for BodyError {
    fn from(error: JsonError) -> BodyError {
        BodyError::Json(error)
    }
}

/// The object that a body is.
pub(super) fn parse_object(body: &[u8]) -> Result<Value, BodyError> {
    let value = json::parse(body)?;
    if value.is_object() { Ok(value) } else { Err(BodyError::Wrong { field: "(whole)", expected: "an object" }) }
}

/// A field that is neither absent nor null.
pub(super) fn present<'v>(object: &'v Value, field: &str) -> Option<&'v Value> {
    object.get(field).filter(|value| !value.is_null())
}

/// A text that must be there.
pub(super) fn text(object: &Value, field: &'static str) -> Result<String, BodyError> {
    opt_text(object, field)?.ok_or(BodyError::Missing { field })
}

pub(super) fn opt_text(object: &Value, field: &'static str) -> Result<Option<String>, BodyError> {
    let Some(value) = present(object, field) else { return Ok(None) };
    let text = json::as_str(value).ok_or(BodyError::Wrong { field, expected: "a text" })?;
    Ok(Some(text.to_owned()))
}

/// A number, or `default` if absent.
pub(super) fn long_or(object: &Value, field: &'static str, default: i64) -> Result<i64, BodyError> {
    let Some(value) = present(object, field) else { return Ok(default) };
    json::as_i64(value).ok_or(BodyError::Wrong { field, expected: "a 64-bit number" })
}

/// A number, or `default` if absent.
pub(super) fn int_or(object: &Value, field: &'static str, default: i32) -> Result<i32, BodyError> {
    let Some(value) = present(object, field) else { return Ok(default) };
    json::as_i32(value).ok_or(BodyError::Wrong { field, expected: "a 32-bit number" })
}

/// A number that must be there.
pub(super) fn int(object: &Value, field: &'static str) -> Result<i32, BodyError> {
    let value = present(object, field).ok_or(BodyError::Missing { field })?;
    json::as_i32(value).ok_or(BodyError::Wrong { field, expected: "a 32-bit number" })
}

/// False if absent.
pub(super) fn flag(object: &Value, field: &'static str) -> Result<bool, BodyError> {
    let Some(value) = present(object, field) else { return Ok(false) };
    json::as_bool(value).ok_or(BodyError::Wrong { field, expected: "true or false" })
}

/// The elements of an array, each read by `element`; none if absent.
pub(super) fn list<T>(
    object: &Value,
    field: &'static str,
    element: impl FnMut(&Value) -> Result<T, BodyError>,
) -> Result<Vec<T>, BodyError> {
    let Some(value) = present(object, field) else { return Ok(Vec::new()) };
    value.as_array().ok_or(BodyError::Wrong { field, expected: "an array" })?.iter().map(element).collect()
}

/// The elements of an array of texts; none if absent.
pub(super) fn texts(object: &Value, field: &'static str) -> Result<Vec<String>, BodyError> {
    list(object, field, |element| {
        let text = json::as_str(element).ok_or(BodyError::Wrong { field, expected: "an array of texts" })?;
        Ok(text.to_owned())
    })
}

/// The members of an object, each read by `member`; none if absent.
pub(super) fn map<K: Ord, V>(
    object: &Value,
    field: &'static str,
    mut member: impl FnMut(&str, &Value) -> Result<(K, V), BodyError>,
) -> Result<std::collections::BTreeMap<K, V>, BodyError> {
    let Some(value) = present(object, field) else { return Ok(Default::default()) };
    let members = value.as_object().ok_or(BodyError::Wrong { field, expected: "an object" })?;
    members.iter().map(|(key, value)| member(key, value)).collect()
}
