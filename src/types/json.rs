//! Lenient JSON reading, for text that fastjson wrote or would have taken: `config/*.json` and request bodies.
//!
//! Beside strict JSON it takes names without quotes (integers, identifiers) or in single quotes, a trailing comma,
//! comments, objects as keys, and white space around the value. Each of those comes from files and peers that exist.
//! Never panics, never recurses deeper than [`DEPTH_MAX`]. Source: store.md 1.5, remoting.md 3.0.

use std::fmt;

use serde_json::{Map, Number, Value};

/// The deepest nesting of objects and arrays that is read; real texts need about six.
pub const DEPTH_MAX: usize = 64;

/// Why a text is no JSON, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JsonError {
    /// Byte position in the text.
    pub at: usize,
    pub why: JsonFault,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JsonFault {
    /// The text ends inside a value: a torn file.
    Truncated,
    /// A whole value, and then more text.
    TrailingText,
    /// Something else stands where this was due.
    Expected(&'static str),
    /// The text is not UTF-8.
    NotUtf8,
    /// Nested deeper than [`DEPTH_MAX`].
    TooDeep,
}

impl fmt::Display for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.why {
            JsonFault::Truncated => write!(f, "the JSON text breaks off at byte {}", self.at),
            JsonFault::TrailingText => write!(f, "text after the JSON value, at byte {}", self.at),
            JsonFault::Expected(what) => write!(f, "JSON: expected {what} at byte {}", self.at),
            JsonFault::NotUtf8 => write!(f, "the JSON text is not UTF-8 at byte {}", self.at),
            JsonFault::TooDeep => write!(f, "JSON nested deeper than {DEPTH_MAX} at byte {}", self.at),
        }
    }
}

impl std::error::Error for JsonError {}

/// Reads one value and nothing after it. Of a name that occurs twice the last value counts. A key that is an object
/// becomes its compact JSON text; an integer stays one as long as 64 bits hold it.
///
/// # Errors
/// [`JsonError`] says at which byte the text stops making sense.
pub fn parse(text: &[u8]) -> Result<Value, JsonError> {
    let text =
        std::str::from_utf8(text).map_err(|error| JsonError { at: error.valid_up_to(), why: JsonFault::NotUtf8 })?;
    let mut parser = Parser { text, bytes: text.as_bytes(), at: 0 };
    if text.starts_with('\u{feff}') {
        parser.at = '\u{feff}'.len_utf8();
    }
    let value = parser.value(0)?;
    parser.skip_blank()?;
    if parser.at < text.len() { Err(parser.fault(JsonFault::TrailingText)) } else { Ok(value) }
}

/// A number, or a text that spells one, as fastjson takes either for an integer field.
pub fn as_i64(value: &Value) -> Option<i64> {
    match value {
        Value::Number(number) => number.as_i64(),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

/// [`as_i64`] for a 32-bit field; out of range is none.
pub fn as_i32(value: &Value) -> Option<i32> {
    as_i64(value).and_then(|number| i32::try_from(number).ok())
}

/// A truth value, or the text of one.
pub fn as_bool(value: &Value) -> Option<bool> {
    match value {
        Value::Bool(truth) => Some(*truth),
        Value::String(text) if text.eq_ignore_ascii_case("true") => Some(true),
        Value::String(text) if text.eq_ignore_ascii_case("false") => Some(false),
        _ => None,
    }
}

/// The text of a string value.
pub fn as_str(value: &Value) -> Option<&str> {
    value.as_str()
}

struct Parser<'a> {
    text: &'a str,
    bytes: &'a [u8],
    /// Always a character boundary of `text`.
    at: usize,
}

impl<'a> Parser<'a> {
    fn value(&mut self, depth: usize) -> Result<Value, JsonError> {
        self.skip_blank()?;
        match self.peek()? {
            b'{' => self.object(depth).map(Value::Object),
            b'[' => self.array(depth),
            quote @ (b'"' | b'\'') => self.string(quote).map(Value::String),
            b'-' | b'0'..=b'9' => self.number(),
            _ => self.word(),
        }
    }

    fn object(&mut self, depth: usize) -> Result<Map<String, Value>, JsonError> {
        if depth >= DEPTH_MAX {
            return Err(self.fault(JsonFault::TooDeep));
        }
        self.at += 1;
        let mut entries = Map::new();
        loop {
            self.skip_blank()?;
            if self.peek()? == b'}' {
                self.at += 1;
                return Ok(entries);
            }
            let name = self.name(depth + 1)?;
            self.skip_blank()?;
            self.take(b':', "':'")?;
            let value = self.value(depth + 1)?;
            entries.insert(name, value);
            self.separator(b'}', "',' or '}'")?;
        }
    }

    fn array(&mut self, depth: usize) -> Result<Value, JsonError> {
        if depth >= DEPTH_MAX {
            return Err(self.fault(JsonFault::TooDeep));
        }
        self.at += 1;
        let mut elements = Vec::new();
        loop {
            self.skip_blank()?;
            if self.peek()? == b']' {
                self.at += 1;
                return Ok(Value::Array(elements));
            }
            elements.push(self.value(depth + 1)?);
            self.separator(b']', "',' or ']'")?;
        }
    }

    /// After an element: passes a comma, or stays before the closing bracket.
    fn separator(&mut self, close: u8, expected: &'static str) -> Result<(), JsonError> {
        self.skip_blank()?;
        match self.peek()? {
            b',' => self.at += 1,
            found if found == close => {}
            _ => return Err(self.fault(JsonFault::Expected(expected))),
        }
        Ok(())
    }

    fn name(&mut self, depth: usize) -> Result<String, JsonError> {
        match self.peek()? {
            quote @ (b'"' | b'\'') => self.string(quote),
            b'{' => self.object(depth).map(|key| Value::Object(key).to_string()),
            _ => {
                let name =
                    self.bare(|byte| byte.is_ascii_alphanumeric() || b"_$-.".contains(&byte) || !byte.is_ascii());
                if name.is_empty() { Err(self.fault(JsonFault::Expected("a name"))) } else { Ok(name.to_owned()) }
            }
        }
    }

    fn string(&mut self, quote: u8) -> Result<String, JsonError> {
        self.at += 1;
        let mut read = String::new();
        loop {
            let rest = &self.bytes[self.at..];
            let Some(plain) = rest.iter().position(|byte| *byte == quote || *byte == b'\\') else {
                self.at = self.bytes.len();
                return Err(self.fault(JsonFault::Truncated));
            };
            read.push_str(&self.text[self.at..self.at + plain]);
            self.at += plain + 1;
            if rest[plain] == quote {
                return Ok(read);
            }
            let escaped = self.escape()?;
            read.push(escaped);
        }
    }

    /// The character that an escape means; the backslash is passed already.
    fn escape(&mut self) -> Result<char, JsonError> {
        let letter = self.peek()?;
        let plain = match letter {
            b'"' | b'\'' | b'\\' | b'/' => char::from(letter),
            b'b' => '\u{8}',
            b'f' | b'F' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'v' => '\u{b}',
            b'0'..=b'7' => char::from(letter - b'0'),
            b'x' => {
                self.at += 1;
                return Ok(char::from(self.hex(2)? as u8));
            }
            b'u' => {
                self.at += 1;
                return self.utf16();
            }
            _ => return Err(self.fault(JsonFault::Expected("an escape"))),
        };
        self.at += 1;
        Ok(plain)
    }

    /// A `\u` escape and, if it is the first half of a pair, the second one. A lone half becomes U+FFFD: Java carries
    /// such text, UTF-8 cannot.
    fn utf16(&mut self) -> Result<char, JsonError> {
        let first = self.hex(4)?;
        if (0xd800..0xdc00).contains(&first) && self.bytes[self.at..].starts_with(b"\\u") {
            let after_first = self.at;
            self.at += 2;
            let second = self.hex(4)?;
            if (0xdc00..0xe000).contains(&second) {
                let code = 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
                return Ok(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            self.at = after_first;
        }
        Ok(char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER))
    }

    fn hex(&mut self, digits: usize) -> Result<u32, JsonError> {
        let mut number = 0;
        for _ in 0..digits {
            let digit = char::from(self.peek()?).to_digit(16);
            number = number * 16 + digit.ok_or(self.fault(JsonFault::Expected("a hexadecimal digit")))?;
            self.at += 1;
        }
        Ok(number)
    }

    fn number(&mut self) -> Result<Value, JsonError> {
        let start = self.at;
        let text = self.bare(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte));
        let number = if let Ok(number) = text.parse::<i64>() {
            Some(Number::from(number))
        } else if let Ok(number) = text.parse::<u64>() {
            Some(Number::from(number))
        } else {
            text.parse().ok().and_then(Number::from_f64)
        };
        number.map(Value::Number).ok_or(JsonError { at: start, why: JsonFault::Expected("a number") })
    }

    fn word(&mut self) -> Result<Value, JsonError> {
        let start = self.at;
        match self.bare(|byte| byte.is_ascii_alphabetic()) {
            "true" => Ok(Value::Bool(true)),
            "false" => Ok(Value::Bool(false)),
            "null" => Ok(Value::Null),
            _ => Err(JsonError { at: start, why: JsonFault::Expected("a value") }),
        }
    }

    /// The longest run of bytes that `of` takes. `of` must take none or all of the bytes beyond ASCII.
    fn bare(&mut self, of: impl Fn(u8) -> bool) -> &'a str {
        let rest = &self.text[self.at..];
        let len = rest.bytes().position(|byte| !of(byte)).unwrap_or(rest.len());
        self.at += len;
        &rest[..len]
    }

    fn skip_blank(&mut self) -> Result<(), JsonError> {
        loop {
            match self.bytes.get(self.at) {
                Some(byte) if byte.is_ascii_whitespace() => self.at += 1,
                Some(b'/') => self.skip_comment()?,
                _ => return Ok(()),
            }
        }
    }

    fn skip_comment(&mut self) -> Result<(), JsonError> {
        let rest = &self.text[self.at..];
        let (opened, close) = match rest.as_bytes().get(1) {
            Some(b'*') => (2, "*/"),
            Some(b'/') => (2, "\n"),
            _ => return Err(self.fault(JsonFault::Expected("a comment"))),
        };
        match rest[opened..].find(close) {
            Some(len) => self.at += opened + len + close.len(),
            None => {
                self.at = self.bytes.len();
                if close == "*/" {
                    return Err(self.fault(JsonFault::Truncated));
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, byte: u8, expected: &'static str) -> Result<(), JsonError> {
        if self.peek()? != byte {
            return Err(self.fault(JsonFault::Expected(expected)));
        }
        self.at += 1;
        Ok(())
    }

    fn peek(&self) -> Result<u8, JsonError> {
        self.bytes.get(self.at).copied().ok_or(self.fault(JsonFault::Truncated))
    }

    fn fault(&self, why: JsonFault) -> JsonError {
        JsonError { at: self.at, why }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> Value {
        parse(text.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn fault(text: &str) -> (usize, JsonFault) {
        let error = parse(text.as_bytes()).expect_err(text);
        (error.at, error.why)
    }

    #[test]
    fn what_fastjson_takes_is_read() {
        for (text, value) in [
            ("{0:5,1:3,2:4,3:5\n}", json!({"0":5,"1":3,"2":4,"3":5})),
            (r#"{"0":5}"#, json!({"0":5})),
            ("{-1:5}", json!({"-1":5})),
            (r"{name:'it\'s'}", json!({"name":"it's"})),
            (r#"{counter:7,'state$x':"7"}"#, json!({"counter":7,"state$x":"7"})),
            (r#"{"a":1,}"#, json!({"a":1})),
            ("[1,2,]", json!([1, 2])),
            ("/* a */{\"a\"/**/:/* b\n*/1// c\n}", json!({"a":1})),
            ("{\"a\":1}\n", json!({"a":1})),
            ("\u{feff} {}\r\n\t ", json!({})),
            (r#"{"a":"x\u00e9\u4e2d\n\/\\\"\x41\ud83d\ude00"}"#, json!({"a":"xé中\n/\\\"A😀"})),
            (r#""\ud83dx""#, json!("\u{fffd}x")),
            ("[true,false,null,-0.5,1e3]", json!([true, false, null, -0.5, 1000.0])),
            ("{\"a\":1,\"a\":2}", json!({"a":2})),
        ] {
            assert_eq!(read(text), value, "{text}");
        }
    }

    #[test]
    fn an_object_as_key_becomes_its_compact_text() {
        let text = r#"{"offsetTable":{{"brokerName":"a", topic:"T","queueId":0}:{"brokerOffset":7}}}"#;
        let key = r#"{"brokerName":"a","topic":"T","queueId":0}"#;
        assert_eq!(read(text)["offsetTable"][key]["brokerOffset"], json!(7));
    }

    #[test]
    fn integers_keep_all_their_digits() {
        assert_eq!(read("9223372036854775807").as_i64(), Some(i64::MAX));
        assert_eq!(read("-9223372036854775808").as_i64(), Some(i64::MIN));
        assert_eq!(read("18446744073709551615").as_u64(), Some(u64::MAX));
        assert_eq!(fault("1e999"), (0, JsonFault::Expected("a number")));
        assert_eq!(fault("1-2"), (0, JsonFault::Expected("a number")));
    }

    #[test]
    fn broken_text_is_an_error_with_its_place() {
        for (text, at) in [("", 0), ("{\"a\":1", 6), ("{\"a", 3), ("[1,", 3), ("\"\\u00", 5), ("{a:1}/* ", 8)] {
            assert_eq!(fault(text), (at, JsonFault::Truncated), "{text}");
        }
        assert_eq!(fault("{} {}"), (3, JsonFault::TrailingText));
        assert_eq!(fault("{\"a\" 1}"), (5, JsonFault::Expected("':'")));
        assert_eq!(fault("[1 2]"), (3, JsonFault::Expected("',' or ']'")));
        assert_eq!(fault("{:1}"), (1, JsonFault::Expected("a name")));
        assert_eq!(fault("nul"), (0, JsonFault::Expected("a value")));
        assert_eq!(fault("\"\\q\""), (2, JsonFault::Expected("an escape")));
        assert_eq!(parse(b"[\"\xff\"]").map_err(|error| error.at), Err(2));
    }

    #[test]
    fn nesting_is_read_to_the_limit_and_no_deeper() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(parse(nested(DEPTH_MAX).as_bytes()).is_ok());
        assert_eq!(fault(&nested(DEPTH_MAX + 1)), (DEPTH_MAX, JsonFault::TooDeep));
        assert_eq!(fault(&"{".repeat(1_000_000)).1, JsonFault::TooDeep);
    }

    #[test]
    fn numbers_and_truths_are_taken_from_text_too() {
        assert_eq!(as_i64(&json!("179")), Some(179));
        assert_eq!(as_i64(&json!(179)), Some(179));
        assert_eq!(as_i64(&json!("x")), None);
        assert_eq!(as_i64(&json!(1.5)), None);
        assert_eq!(as_i32(&json!(1_i64 << 31)), None);
        assert_eq!(as_bool(&json!("true")), Some(true));
        assert_eq!(as_bool(&json!(false)), Some(false));
        assert_eq!(as_bool(&json!(1)), None);
        assert_eq!(as_str(&json!("x")), Some("x"));
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::hash_map(any::<String>(), inner, 0..4)
                    .prop_map(|entries| Value::Object(entries.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn strict_json_reads_as_serde_wrote_it(value in any_value()) {
            prop_assert_eq!(read(&value.to_string()), value.clone());
            prop_assert_eq!(read(&serde_json::to_string_pretty(&value).unwrap()), value);
        }

        #[test]
        fn no_bytes_make_the_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }

        #[test]
        fn no_json_like_text_makes_the_parser_panic(text in r#"[\[\]{}:,"'\\/*ux0-9a-e.+ \n😀é-]{0,60}"#) {
            let _ = parse(text.as_bytes());
        }
    }
}
