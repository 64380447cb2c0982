//! The gate that every value passes once: picks flag, file or default, checks it, and remembers where it came from.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;

use toml::Value;

use super::raw::Raw;
use super::{Overrides, size};

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Nobody set it.
    Default,
    /// A line of the settings file, counted from 1.
    File { path: Arc<Path>, line: usize },
    /// A flag of the command line, such as `--listen`.
    Flag(&'static str),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Default => f.write_str("default"),
            Source::File { path, line } => write!(f, "{}:{line}", path.display()),
            Source::Flag(flag) => f.write_str(flag),
        }
    }
}

/// One setting for the eye: `check-config` prints them all, the node logs them at start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Section and key, such as `flush.mode`.
    pub key: &'static str,
    /// The checked value as TOML.
    pub value: String,
    pub source: Source,
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let assignment = format!("{} = {}", self.key, self.value);
        write!(f, "{assignment:<58} # {}", self.source)
    }
}

/// The text of a settings file and what to call it.
pub(super) struct File<'a> {
    pub path: Arc<Path>,
    pub text: &'a str,
}

impl File<'_> {
    /// The line, from 1, that holds byte `at`.
    pub(super) fn line_of(&self, at: usize) -> usize {
        let before = &self.text.as_bytes()[..at.min(self.text.len())];
        before.iter().filter(|byte| **byte == b'\n').count() + 1
    }
}

/// Collects the checked settings and everything that is wrong, so that one run shows all mistakes.
pub(super) struct Gate<'a> {
    file: Option<File<'a>>,
    overrides: BTreeMap<String, (&'static str, Value)>,
    settings: Vec<Setting>,
    problems: Vec<String>,
}

impl<'a> Gate<'a> {
    pub(super) fn new(file: Option<File<'a>>, overrides: Overrides) -> Gate<'a> {
        Gate { file, overrides: overrides.values, settings: Vec::new(), problems: Vec::new() }
    }

    /// What was checked, or every line of complaint.
    pub(super) fn finish(mut self) -> Result<Vec<Setting>, Vec<String>> {
        for (key, (flag, _)) in &self.overrides {
            self.problems.push(format!("{flag}: unknown key \"{key}\"; every key is listed in docs/kerolox.toml"));
        }
        if self.problems.is_empty() { Ok(self.settings) } else { Err(self.problems) }
    }

    /// Reads one setting. `check` turns what was found into a value or says what is wrong and what to write instead.
    pub(super) fn read<T>(
        &mut self,
        key: &'static str,
        raw: Raw,
        default: T,
        check: impl FnOnce(&Value) -> Result<T, String>,
        show: impl FnOnce(&T) -> String,
    ) -> T {
        let (found, source) = self.pick(key, raw);
        let value = match found {
            None => default,
            Some(found) => check(&found).unwrap_or_else(|why| {
                self.problems.push(format!("{source}: {key} = {found} {why}"));
                default
            }),
        };
        self.settings.push(Setting { key, value: show(&value), source });
        value
    }

    /// Refuses settings that are fine alone but not together; the place shown is that of the first that somebody set.
    pub(super) fn refuse(&mut self, keys: &[&'static str], why: &str) {
        let named: Vec<_> = self.settings.iter().filter(|setting| keys.contains(&setting.key)).collect();
        let set = named.iter().find(|setting| setting.source != Source::Default);
        let place = set.or(named.first()).map_or_else(String::new, |setting| setting.source.to_string());
        let values: Vec<_> = named.iter().map(|setting| format!("{} = {}", setting.key, setting.value)).collect();
        self.problems.push(format!("{place}: {} {why}", values.join(" with ")));
    }

    pub(super) fn integer<T>(&mut self, key: &'static str, raw: Raw, default: T, range: RangeInclusive<T>) -> T
    where
        T: TryFrom<i64> + PartialOrd + fmt::Display + Copy,
    {
        let (low, high) = (*range.start(), *range.end());
        let check = |value: &Value| {
            let number = value.as_integer().and_then(|number| T::try_from(number).ok());
            number.filter(|number| range.contains(number)).ok_or_else(|| {
                format!("must be a whole number from {low} to {high}; leave the line out for the default {default}")
            })
        };
        self.read(key, raw, default, check, T::to_string)
    }

    /// A number of bytes; what is not a multiple of `step` is rounded up to one.
    pub(super) fn size(
        &mut self,
        key: &'static str,
        raw: Raw,
        default: u64,
        range: RangeInclusive<u64>,
        step: u64,
    ) -> u64 {
        let check = |value: &Value| {
            let bytes = match value {
                Value::Integer(bytes) => u64::try_from(*bytes).map_err(|_| "is negative; write a size".to_owned())?,
                Value::String(text) => size::parse(text)?,
                _ => return Err("is no size; write whole bytes or \"4MiB\"".into()),
            };
            if range.contains(&bytes) {
                return Ok(bytes.next_multiple_of(step));
            }
            let (low, high) = (size::show(*range.start()), size::show(*range.end()));
            Err(format!("must be from {low} to {high}; leave the line out for the default {}", size::show(default)))
        };
        self.read(key, raw, default, check, |bytes| size::show(*bytes))
    }

    pub(super) fn switch(&mut self, key: &'static str, raw: Raw, default: bool) -> bool {
        let check = |value: &Value| {
            value.as_bool().ok_or_else(|| format!("must be true or false, without quotes; the default is {default}"))
        };
        self.read(key, raw, default, check, bool::to_string)
    }

    /// One of a few words; `refused` names words that are known but not offered, with the reason.
    pub(super) fn choice<T: Copy + PartialEq>(
        &mut self,
        key: &'static str,
        raw: Raw,
        default: T,
        words: &[(&str, T)],
        refused: &[(&str, &str)],
    ) -> T {
        let check = |value: &Value| {
            let text = value.as_str().unwrap_or_default();
            if let Some((_, why)) = refused.iter().find(|(word, _)| *word == text) {
                return Err((*why).to_owned());
            }
            words.iter().find(|(word, _)| *word == text).map(|(_, choice)| *choice).ok_or_else(|| {
                let allowed: Vec<_> = words.iter().map(|(word, _)| quoted(word)).collect();
                format!("must be {}, in quotes", allowed.join(" or "))
            })
        };
        let show = |choice: &T| {
            let (word, _) = words.iter().find(|(_, other)| other == choice).expect("every choice has a word");
            quoted(word)
        };
        self.read(key, raw, default, check, show)
    }

    /// A text that `check` accepts.
    pub(super) fn text(
        &mut self,
        key: &'static str,
        raw: Raw,
        default: &str,
        check: impl FnOnce(&str) -> Result<(), String>,
    ) -> String {
        let check = |value: &Value| {
            let text = value.as_str().ok_or("must be a text in quotes")?;
            check(text).map(|()| text.to_owned())
        };
        self.read(key, raw, default.to_owned(), check, |text| quoted(text))
    }

    fn pick(&mut self, key: &'static str, raw: Raw) -> (Option<Value>, Source) {
        if let Some((flag, value)) = self.overrides.remove(key) {
            return (Some(value), Source::Flag(flag));
        }
        match (raw, &self.file) {
            (Some(raw), Some(file)) => {
                let source = Source::File { path: file.path.clone(), line: file.line_of(raw.span().start) };
                (Some(raw.into_inner()), source)
            }
            _ => (None, Source::Default),
        }
    }
}

pub(super) fn address(value: &Value) -> Result<SocketAddr, String> {
    let text = value.as_str().unwrap_or_default();
    let address = text.parse::<SocketAddr>().map_err(|_| {
        "is no address; write IP:PORT such as \"127.0.0.1:10911\", \"0.0.0.0:10911\" or \"[::1]:10911\"".to_owned()
    })?;
    if address.port() == 0 {
        return Err("has port 0; choose a port, since clients must know it".into());
    }
    Ok(address)
}

pub(super) fn ip(value: &Value) -> Result<IpAddr, String> {
    let text = value.as_str().unwrap_or_default();
    let ip = text
        .parse::<IpAddr>()
        .map_err(|_| "is no IP address; write one that clients can reach, or \"auto\"".to_owned())?;
    if ip.is_unspecified() || ip.is_multicast() {
        return Err("is no address that a client can connect to; write this host's own, or \"auto\"".into());
    }
    Ok(ip)
}

/// A text in TOML's quotes.
pub(super) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}
