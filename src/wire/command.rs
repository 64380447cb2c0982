//! A decoded frame: what both header types carry, borrowed from the frame wherever it can be.

use std::borrow::Cow;
use std::fmt;

use smallvec::SmallVec;

use super::frame::HeaderType;

/// Version 5.3.3, what a node of profile "5" says it is. Source: remoting.md 1.6.
pub const VERSION_5: i32 = 479;
/// Version 4.9.8, what a node of profile "4.9" says it is.
pub const VERSION_4_9: i32 = 409;
/// Version 3.4.9: from here `maxReconsumeTimes` of a request overrides the group's setting.
pub const VERSION_3_4_9: i32 = 121;

/// Set in [`Command::flag`] of an answer.
pub const FLAG_RESPONSE: i32 = 1;
/// Set in [`Command::flag`] of a request that wants no answer.
pub const FLAG_ONEWAY: i32 = 2;

/// What the sender is written in. Source: remoting.md 1.5.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Language {
    #[default]
    Java,
    Cpp,
    DotNet,
    Python,
    Delphi,
    Erlang,
    Ruby,
    Other,
    Http,
    Go,
    Php,
    Oms,
    Rust,
    NodeJs,
    /// A name or number that is not in the list; served like any other.
    Unknown,
}

/// Position is the number in a binary header.
const LANGUAGES: [(Language, &str); 14] = [
    (Language::Java, "JAVA"),
    (Language::Cpp, "CPP"),
    (Language::DotNet, "DOTNET"),
    (Language::Python, "PYTHON"),
    (Language::Delphi, "DELPHI"),
    (Language::Erlang, "ERLANG"),
    (Language::Ruby, "RUBY"),
    (Language::Other, "OTHER"),
    (Language::Http, "HTTP"),
    (Language::Go, "GO"),
    (Language::Php, "PHP"),
    (Language::Oms, "OMS"),
    (Language::Rust, "RUST"),
    (Language::NodeJs, "NODE_JS"),
];

impl Language {
    pub(super) fn from_name(name: &str) -> Language {
        LANGUAGES.iter().find(|(_, known)| *known == name).map_or(Language::Unknown, |(language, _)| *language)
    }

    pub(super) fn from_byte(byte: u8) -> Language {
        LANGUAGES.get(usize::from(byte)).map_or(Language::Unknown, |(language, _)| *language)
    }

    /// The name in a JSON header; tools show it for a connection.
    pub fn name(self) -> &'static str {
        LANGUAGES.iter().find(|(language, _)| *language == self).map_or("OTHER", |(_, name)| name)
    }
}

/// One request or answer as it came from a peer.
#[derive(Clone, Debug, PartialEq)]
pub struct Command<'a> {
    pub header_type: HeaderType,
    /// Request or response code, by [`Command::is_response`].
    pub code: i32,
    pub language: Language,
    /// Ordinal of the peer's release.
    pub version: i32,
    /// Correlation id chosen by the requester; any value.
    pub opaque: i32,
    pub flag: i32,
    /// Absent if null or empty.
    pub remark: Option<Cow<'a, str>>,
    pub ext: ExtFields<'a>,
    pub body: &'a [u8],
}

impl<'a> Command<'a> {
    pub fn is_response(&self) -> bool {
        self.flag & FLAG_RESPONSE != 0
    }

    /// Nothing may be sent back for such a request, not even an error.
    pub fn is_oneway(&self) -> bool {
        self.flag & FLAG_ONEWAY != 0
    }
}

/// The header fields that belong to a code, as texts; numbers and booleans of a JSON header are texts here too.
///
/// A header has about a dozen, so a lookup is a walk. Of a name that occurs twice the last counts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExtFields<'a> {
    pairs: SmallVec<[(Cow<'a, str>, Cow<'a, str>); 20]>,
}

/// The most ext fields that a header may have; real ones have a dozen. A frame of nothing else would otherwise grow
/// tenfold in memory.
pub(super) const EXT_COUNT_MAX: usize = 1024;

impl<'a> ExtFields<'a> {
    /// False, and nothing added, if there are [`EXT_COUNT_MAX`] already.
    #[inline(always)]
    #[must_use]
    pub(super) fn push(&mut self, name: Cow<'a, str>, value: Cow<'a, str>) -> bool {
        if self.pairs.len() >= EXT_COUNT_MAX {
            return false;
        }
        self.pairs.push((name, value));
        true
    }

    pub(super) fn clear(&mut self) {
        self.pairs.clear();
    }

    /// The same fields, borrowing from nothing, so for any lifetime.
    pub(super) fn into_owned<'o>(self) -> ExtFields<'o> {
        let owned = |text: Cow<'a, str>| Cow::Owned(text.into_owned());
        ExtFields { pairs: self.pairs.into_iter().map(|(name, value)| (owned(name), owned(value))).collect() }
    }

    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Name and value of each, in the order of the header.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.pairs.iter().map(|(name, value)| (&**name, &**value))
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.pairs.iter().rev().find(|(found, _)| found == name).map(|(_, value)| &**value)
    }

    /// # Errors
    /// [`FieldError::Missing`] if absent or empty; so for the other three.
    pub fn text(&self, name: &'static str) -> Result<&str, FieldError> {
        self.opt_text(name).ok_or(FieldError::Missing { name })
    }

    /// # Errors
    /// [`FieldError`] if absent, empty or no decimal 32-bit number.
    pub fn int(&self, name: &'static str) -> Result<i32, FieldError> {
        number(name, self.text(name)?)
    }

    /// # Errors
    /// [`FieldError`] if absent, empty or no decimal 64-bit number.
    pub fn long(&self, name: &'static str) -> Result<i64, FieldError> {
        number(name, self.text(name)?)
    }

    /// True for "true" in any letter case and for nothing else, "1" included.
    ///
    /// # Errors
    /// [`FieldError::Missing`].
    pub fn bool(&self, name: &'static str) -> Result<bool, FieldError> {
        self.text(name).map(is_true)
    }

    /// `None` if absent or empty.
    pub fn opt_text(&self, name: &str) -> Option<&str> {
        self.get(name).filter(|value| !value.is_empty())
    }

    /// `None` also for what is no number: Java leaves such a field unset.
    pub fn opt_int(&self, name: &str) -> Option<i32> {
        self.get(name)?.parse().ok()
    }

    /// `None` also for what is no number.
    pub fn opt_long(&self, name: &str) -> Option<i64> {
        self.get(name)?.parse().ok()
    }

    pub fn opt_bool(&self, name: &str) -> Option<bool> {
        self.opt_text(name).map(is_true)
    }
}

/// A boolean field as Java reads it.
pub(super) fn is_true(value: &str) -> bool {
    value.eq_ignore_ascii_case("true")
}

/// A decimal number, with an optional sign, as Java's `parseInt` and `parseLong` read it.
pub(super) fn number<N: std::str::FromStr>(name: &'static str, value: &str) -> Result<N, FieldError> {
    value.parse().map_err(|_| FieldError::NotANumber { name, bits: size_of::<N>() * 8, value: shown(value) })
}

/// The start of a value, short enough for a remark.
fn shown(value: &str) -> String {
    const SHOWN_MAX: usize = 40;
    value.chars().take(SHOWN_MAX).collect()
}

/// A header field that a code needs and a request does not give; answered with code 1 and this text as remark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldError {
    /// Absent or empty.
    Missing {
        name: &'static str,
    },
    NotANumber {
        name: &'static str,
        bits: usize,
        value: String,
    },
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FieldError::Missing { name } => write!(f, "the request lacks the field {name}"),
            FieldError::NotANumber { name, bits, value } => {
                write!(f, "the field {name} must be a {bits}-bit number, not {value:?}")
            }
        }
    }
}

impl std::error::Error for FieldError {}
