//! The JSON header: one flat object, read in a single pass. Source: remoting.md 1.2.
//!
//! Every frame of nearly every client passes through here, on the core of its connection, so strings without escapes
//! are borrowed, and what all clients write as a rule is looked at once. Values of `extFields` may be strings, numbers,
//! booleans or null, and become texts (null: left out); keys we do not know are skipped with all that is in them.

use std::borrow::Cow;

use super::command::{Command, ExtFields, Language};
use super::frame::FrameError;

/// Fills `command` from the text of a JSON header.
///
/// Bytes that are not UTF-8 are replaced by U+FFFD as Java does it: old C++ clients send properties in local encodings.
pub(super) fn decode_into<'a>(header: &'a [u8], command: &mut Command<'a>) -> Result<(), FrameError> {
    match std::str::from_utf8(header) {
        Ok(text) => Reader::new(text).object_into(command),
        Err(_) => {
            let text = String::from_utf8_lossy(header);
            let mut read = Command { ext: ExtFields::default(), remark: None, ..command.clone() };
            Reader::new(&text).object_into(&mut read)?;
            command.code = read.code;
            command.language = read.language;
            command.version = read.version;
            command.opaque = read.opaque;
            command.flag = read.flag;
            command.remark = read.remark.map(|remark| Cow::Owned(remark.into_owned()));
            command.ext = read.ext.into_owned();
            Ok(())
        }
    }
}

/// What a header has beside what we do not know.
#[derive(Clone, Copy)]
enum Field {
    Code,
    Flag,
    Opaque,
    Version,
    Language,
    Remark,
    Ext,
}

impl Field {
    fn of_key(key: &str) -> Option<Field> {
        Some(match key {
            "code" => Field::Code,
            "flag" => Field::Flag,
            "opaque" => Field::Opaque,
            "version" => Field::Version,
            "language" => Field::Language,
            "remark" => Field::Remark,
            "extFields" => Field::Ext,
            _ => return None,
        })
    }
}

struct Reader<'t> {
    text: &'t str,
    /// The next byte to look at.
    at: usize,
    /// Where the quotes and backslashes are among the [`BLOCK_LEN`] bytes from `block` on, a bit each. Looked for once a
    /// block: a header has dozens of short strings, and a search for the end of each would begin with as much again.
    stops: u64,
    block: usize,
}

impl<'t> Reader<'t> {
    fn new(text: &'t str) -> Reader<'t> {
        Reader { text, at: 0, stops: stops_in(text.as_bytes()), block: 0 }
    }

    fn object_into(mut self, command: &mut Command<'t>) -> Result<(), FrameError> {
        let mut more = self.begin()?;
        while more {
            let field = match self.plain_field() {
                Some(field) => Some(field),
                None => Field::of_key(&self.key()?),
            };
            match field {
                Some(Field::Code) => command.code = self.int()?,
                Some(Field::Flag) => command.flag = self.int()?,
                Some(Field::Opaque) => command.opaque = self.int()?,
                Some(Field::Version) => command.version = self.int()?,
                Some(Field::Language) => {
                    command.language = self.scalar()?.map_or(Language::default(), |name| Language::from_name(&name));
                }
                Some(Field::Remark) => command.remark = self.scalar()?.filter(|remark| !remark.is_empty()),
                Some(Field::Ext) => self.ext_into(&mut command.ext)?,
                None => self.skip_value()?,
            }
            more = self.more()?;
        }
        self.skip_space();
        if self.at < self.text.len() {
            return Err(self.bad("text after the object"));
        }
        Ok(())
    }

    fn ext_into(&mut self, ext: &mut ExtFields<'t>) -> Result<(), FrameError> {
        ext.clear();
        if self.peek() == Some(b'n') {
            return self.word("null");
        }
        let mut more = self.begin()?;
        while more {
            let (name, value) = match self.plain_name() {
                Some(name) => (Cow::Borrowed(name), Some(self.string_body()?)),
                None => (self.key()?, self.scalar()?),
            };
            if !value.is_none_or(|value| ext.push(name, value)) {
                return Err(self.bad("too many ext fields"));
            }
            more = self.more()?;
        }
        Ok(())
    }

    /// Takes the start of an object; whether a member follows.
    #[inline(always)]
    fn begin(&mut self) -> Result<bool, FrameError> {
        self.skip_space();
        self.byte(b'{', "an object must start here")?;
        self.skip_space();
        let empty = self.peek() == Some(b'}');
        self.at += usize::from(empty);
        Ok(!empty)
    }

    /// A member's key and what stands before its value.
    #[inline(always)]
    fn key(&mut self) -> Result<Cow<'t, str>, FrameError> {
        let key = match self.plain_string() {
            Some(key) => Cow::Borrowed(key),
            None => self.string()?,
        };
        self.skip_space();
        self.byte(b':', "a colon must follow the key")?;
        self.skip_space();
        Ok(key)
    }

    /// Takes what stands behind a member's value; whether another member follows.
    #[inline(always)]
    fn more(&mut self) -> Result<bool, FrameError> {
        self.skip_space();
        let more = match self.peek() {
            Some(b',') => true,
            Some(b'}') => false,
            _ => return Err(self.bad("a comma or the object's end must follow the value")),
        };
        self.at += 1;
        if more {
            self.skip_space();
        }
        Ok(more)
    }

    /// A value as text; null and nested values give none.
    fn scalar(&mut self) -> Result<Option<Cow<'t, str>>, FrameError> {
        match self.peek() {
            Some(b'"') => self.string().map(Some),
            Some(b'-' | b'0'..=b'9') => Ok(Some(Cow::Borrowed(self.number()))),
            Some(b't') => self.word("true").map(|()| Some(Cow::Borrowed("true"))),
            Some(b'f') => self.word("false").map(|()| Some(Cow::Borrowed("false"))),
            _ => self.skip_value().map(|()| None),
        }
    }

    /// A 32-bit number, also in quotes; null counts as 0.
    #[inline(always)]
    fn int(&mut self) -> Result<i32, FrameError> {
        match self.small_number() {
            Some(number) => Ok(number),
            None => self.any_int(),
        }
    }

    /// A number of at most nine digits without a sign; none, and nothing taken, if anything else is here.
    #[inline(always)]
    fn small_number(&mut self) -> Option<i32> {
        const DIGITS_MAX: usize = 9;
        let rest = &self.text.as_bytes()[self.at..];
        let mut number = 0;
        for (len, byte) in rest.iter().enumerate() {
            match byte {
                b'0'..=b'9' if len < DIGITS_MAX => number = number * 10 + i32::from(byte - b'0'),
                b',' | b'}' if len > 0 => {
                    self.at += len;
                    return Some(number);
                }
                _ => return None,
            }
        }
        None
    }

    #[inline(never)]
    fn any_int(&mut self) -> Result<i32, FrameError> {
        let at = self.at;
        match self.scalar()? {
            None if self.text.as_bytes()[at] == b'n' => Ok(0),
            Some(text) if let Ok(number) = text.parse() => Ok(number),
            _ => Err(FrameError::BadJson { at, why: "a 32-bit number must start here" }),
        }
    }

    /// The characters of a number; what they are worth is for their reader to say.
    fn number(&mut self) -> &'t str {
        let start = self.at;
        while let Some(b'-' | b'+' | b'.' | b'0'..=b'9' | b'e' | b'E') = self.peek() {
            self.at += 1;
        }
        &self.text[start..self.at]
    }

    /// A string without escapes; none, and nothing taken, if anything else is here.
    #[inline(always)]
    fn plain_string(&mut self) -> Option<&'t str> {
        if self.peek() != Some(b'"') {
            return None;
        }
        let start = self.at + 1;
        let end = self.string_stop(start)?;
        if self.text.as_bytes()[end] != b'"' {
            return None;
        }
        self.at = end + 1;
        Some(&self.text[start..end])
    }

    /// A member's name without escapes and blanks behind it, if a string is its value: that string's quote is taken too. None,
    /// and nothing taken, if anything else is here.
    #[inline(always)]
    fn plain_name(&mut self) -> Option<&'t str> {
        if self.peek() != Some(b'"') {
            return None;
        }
        let start = self.at + 1;
        let end = self.string_stop(start)?;
        if self.text.as_bytes()[end..].first_chunk() != Some(br#"":""#) {
            return None;
        }
        self.at = end + r#"":""#.len();
        Some(&self.text[start..end])
    }

    /// A string whose first quote has been taken.
    #[inline(always)]
    fn string_body(&mut self) -> Result<Cow<'t, str>, FrameError> {
        let start = self.at;
        let stop = self.string_stop(start).ok_or_else(|| self.endless(start))?;
        if self.text.as_bytes()[stop] != b'"' {
            return self.escaped_string(start, stop).map(Cow::Owned);
        }
        self.at = stop + 1;
        Ok(Cow::Borrowed(&self.text[start..stop]))
    }

    /// The key of a member that requests have, with its colon and nothing else before its value; none, and nothing taken, if
    /// anything else is here.
    #[inline(always)]
    fn plain_field(&mut self) -> Option<Field> {
        let rest = &self.text.as_bytes()[self.at..];
        let (field, len) = match rest {
            [b'"', b'c', b'o', b'd', b'e', b'"', b':', ..] => (Field::Code, 7),
            [b'"', b'f', b'l', b'a', b'g', b'"', b':', ..] => (Field::Flag, 7),
            [b'"', b'o', rest @ ..] if rest.starts_with(br#"paque":"#) => (Field::Opaque, 9),
            [b'"', b'v', rest @ ..] if rest.starts_with(br#"ersion":"#) => (Field::Version, 10),
            [b'"', b'l', rest @ ..] if rest.starts_with(br#"anguage":"#) => (Field::Language, 11),
            [b'"', b'e', rest @ ..] if rest.starts_with(br#"xtFields":"#) => (Field::Ext, 12),
            _ => return None,
        };
        if let Some(..=b' ') = rest.get(len) {
            return None;
        }
        self.at += len;
        Some(field)
    }

    /// Any string; apart from its callers, whose usual case stays small by it.
    #[inline(never)]
    fn string(&mut self) -> Result<Cow<'t, str>, FrameError> {
        self.byte(b'"', "a string must start here")?;
        self.string_body()
    }

    /// The first quote or backslash at or after `from`.
    #[inline(always)]
    fn string_stop(&mut self, from: usize) -> Option<usize> {
        if from / BLOCK_LEN == self.block / BLOCK_LEN {
            let stops = self.stops >> (from % BLOCK_LEN);
            if stops != 0 {
                return Some(from + stops.trailing_zeros() as usize);
            }
        }
        self.search_stop(from)
    }

    /// Looks at `from`'s block and at those behind it, and keeps the one that it ends in.
    #[inline(never)]
    fn search_stop(&mut self, from: usize) -> Option<usize> {
        let bytes = self.text.as_bytes();
        let mut behind = from % BLOCK_LEN;
        let mut block = from - behind;
        while block < bytes.len() {
            (self.block, self.stops) = (block, stops_in(&bytes[block..]));
            let stops = self.stops >> behind;
            if stops != 0 {
                return Some(block + behind + stops.trailing_zeros() as usize);
            }
            behind = 0;
            block += BLOCK_LEN;
        }
        None
    }

    #[cold]
    fn endless(&self, start: usize) -> FrameError {
        FrameError::BadJson { at: start, why: "the string that starts here has no end" }
    }

    /// A string with escapes, such as the separators of message properties: from `start`, first backslash at `stop`.
    fn escaped_string(&mut self, start: usize, mut stop: usize) -> Result<String, FrameError> {
        /// What properties of usual size need; a longer text grows by doubling, so that many short ones stay cheap.
        const FIRST_CAPACITY: usize = 256;
        let bytes = self.text.as_bytes();
        let mut text = String::with_capacity((self.text.len() - start).min(FIRST_CAPACITY));
        let mut from = start;
        loop {
            text.push_str(&self.text[from..stop]);
            if bytes[stop] == b'"' {
                self.at = stop + 1;
                return Ok(text);
            }
            self.at = stop + 1;
            match bytes[self.at..].first_chunk::<5>() {
                // The separators of properties, a few in every message.
                Some([b'u', b'0', b'0', b'0', digit @ b'1'..=b'2']) => {
                    text.push(char::from(digit - b'0'));
                    self.at += 5;
                }
                _ => text.push(self.escape()?),
            }
            from = self.at;
            stop = self.string_stop(from).ok_or_else(|| self.endless(start))?;
        }
    }

    /// The character of an escape whose backslash has been taken.
    fn escape(&mut self) -> Result<char, FrameError> {
        let byte = self.peek().ok_or_else(|| self.bad("an escape is cut"))?;
        self.at += 1;
        Ok(match byte {
            b'u' => return self.unicode_escape(),
            b'"' | b'\\' | b'/' => char::from(byte),
            b'n' => '\n',
            b't' => '\t',
            b'r' => '\r',
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            _ => {
                self.at -= 1;
                return Err(self.bad("unknown escape"));
            }
        })
    }

    fn unicode_escape(&mut self) -> Result<char, FrameError> {
        /// Java writes half a surrogate pair as this when it makes bytes of a text.
        const REPLACEMENT: char = '?';
        let unit = self.hex4()?;
        if let 0xd800..=0xdbff = unit
            && self.text.as_bytes()[self.at..].starts_with(b"\\u")
        {
            let after_high = self.at;
            self.at += 2;
            let low = self.hex4()?;
            if let 0xdc00..=0xdfff = low {
                let code_point = 0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00);
                return Ok(char::from_u32(code_point).unwrap_or(REPLACEMENT));
            }
            self.at = after_high;
        }
        Ok(char::from_u32(unit).unwrap_or(REPLACEMENT))
    }

    fn hex4(&mut self) -> Result<u32, FrameError> {
        let digits = self.text.as_bytes()[self.at..].first_chunk::<4>();
        let unit = digits.and_then(|digits| {
            digits.iter().try_fold(0, |unit, digit| Some(unit << 4 | char::from(*digit).to_digit(16)?))
        });
        let unit = unit.ok_or_else(|| self.bad("four hexadecimal digits must start here"))?;
        self.at += 4;
        Ok(unit)
    }

    /// Steps over any value. Inside a nested one only strings and brackets are looked at.
    fn skip_value(&mut self) -> Result<(), FrameError> {
        let start = self.at;
        let mut depth = 0_usize;
        loop {
            match self.peek() {
                None => return Err(FrameError::BadJson { at: start, why: "the value that starts here has no end" }),
                Some(b'"') => self.skip_string()?,
                Some(b'{' | b'[') => {
                    self.at += 1;
                    depth += 1;
                    continue;
                }
                Some(b'}' | b']') if depth > 0 => {
                    self.at += 1;
                    depth -= 1;
                }
                Some(b'-' | b'0'..=b'9') => _ = self.number(),
                Some(b't') => self.word("true")?,
                Some(b'f') => self.word("false")?,
                Some(b'n') => self.word("null")?,
                Some(b',' | b':' | b' ' | b'\t' | b'\r' | b'\n') if depth > 0 => {
                    self.at += 1;
                    continue;
                }
                Some(_) => return Err(self.bad("no value can start here")),
            }
            if depth == 0 {
                return Ok(());
            }
        }
    }

    fn skip_string(&mut self) -> Result<(), FrameError> {
        let start = self.at;
        self.at += 1;
        loop {
            let stop = self.string_stop(self.at).ok_or_else(|| self.endless(start))?;
            self.at = stop + 1;
            if self.text.as_bytes()[stop] == b'"' {
                return Ok(());
            }
            self.escape()?;
        }
    }

    fn word(&mut self, word: &'static str) -> Result<(), FrameError> {
        if !self.text.as_bytes()[self.at..].starts_with(word.as_bytes()) {
            return Err(self.bad("no value can start here"));
        }
        self.at += word.len();
        Ok(())
    }

    #[inline(always)]
    fn byte(&mut self, byte: u8, why: &'static str) -> Result<(), FrameError> {
        if self.peek() != Some(byte) {
            return Err(self.bad(why));
        }
        self.at += 1;
        Ok(())
    }

    /// Nearly every client writes no blanks at all.
    #[inline(always)]
    fn skip_space(&mut self) {
        if let Some(..=b' ') = self.peek() {
            self.skip_blanks();
        }
    }

    #[cold]
    fn skip_blanks(&mut self) {
        while let Some(b' ' | b'\t' | b'\r' | b'\n') = self.peek() {
            self.at += 1;
        }
    }

    #[inline(always)]
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    #[cold]
    fn bad(&self, why: &'static str) -> FrameError {
        FrameError::BadJson { at: self.at, why }
    }
}

/// Bytes of which one look finds all quotes and backslashes.
const BLOCK_LEN: usize = 64;

/// Which of the first [`BLOCK_LEN`] bytes are quotes or backslashes, the first one in the lowest bit.
#[inline]
fn stops_in(bytes: &[u8]) -> u64 {
    match bytes.first_chunk() {
        Some(block) => stops_of(block),
        None => {
            let mut block = [0; BLOCK_LEN];
            block[..bytes.len()].copy_from_slice(bytes);
            stops_of(&block)
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn stops_of(block: &[u8; BLOCK_LEN]) -> u64 {
    // SAFETY: SSE2 is part of every x86-64 processor.
    unsafe { by_sixteen(block) }
}

/// [`one_by_one`], sixteen bytes at a time.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse2")]
#[inline]
fn by_sixteen(block: &[u8; BLOCK_LEN]) -> u64 {
    use std::arch::x86_64::{_mm_cmpeq_epi8, _mm_movemask_epi8, _mm_or_si128, _mm_set_epi64x, _mm_set1_epi8};
    let (quote, backslash) = (_mm_set1_epi8(b'"' as i8), _mm_set1_epi8(b'\\' as i8));
    let (parts, _) = block.as_chunks::<16>();
    let mut stops = 0;
    for (index, part) in parts.iter().enumerate() {
        let half = |at: usize| i64::from_le_bytes(std::array::from_fn(|byte| part[at + byte]));
        let part = _mm_set_epi64x(half(8), half(0));
        let found = _mm_or_si128(_mm_cmpeq_epi8(part, quote), _mm_cmpeq_epi8(part, backslash));
        stops |= u64::from(_mm_movemask_epi8(found) as u32) << (16 * index);
    }
    stops
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn stops_of(block: &[u8; BLOCK_LEN]) -> u64 {
    one_by_one(block)
}

/// What [`stops_of`] has to find, in plain words.
#[cfg(any(test, not(target_arch = "x86_64")))]
fn one_by_one(block: &[u8; BLOCK_LEN]) -> u64 {
    let is_stop = |byte: u8| u64::from(byte == b'"' || byte == b'\\');
    block.iter().enumerate().fold(0, |stops, (index, byte)| stops | is_stop(*byte) << index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::frame::HeaderType;

    fn read(text: &[u8]) -> Result<Command<'_>, FrameError> {
        let mut command = Command {
            header_type: HeaderType::Json,
            code: 0,
            language: Language::Java,
            version: 0,
            opaque: 0,
            flag: 0,
            remark: None,
            ext: ExtFields::default(),
            body: b"",
        };
        decode_into(text, &mut command).map(|()| command)
    }

    fn ext_value(literal: &str) -> Option<String> {
        let text = format!(r#"{{"code":10,"extFields":{{"x":{literal},"y":"after"}},"opaque":5}}"#);
        let command = read(text.as_bytes()).unwrap_or_else(|error| panic!("{literal}: {error}"));
        assert_eq!((command.ext.get("y"), command.opaque), (Some("after"), 5), "{literal}");
        command.ext.get("x").map(str::to_owned)
    }

    #[test]
    fn ext_values_of_any_scalar_type_become_texts_and_others_are_left_out() {
        for (literal, text) in [
            (r#""plain""#, "plain"),
            (r#""""#, ""),
            ("7", "7"),
            ("-9223372036854775808", "-9223372036854775808"),
            ("1.5e3", "1.5e3"),
            ("true", "true"),
            ("false", "false"),
        ] {
            assert_eq!(ext_value(literal).as_deref(), Some(text), "{literal}");
        }
        for literal in ["null", "{}", "[]", r#"{"a":[1,{"b":"}]"}],"c":"\"{"}"#] {
            assert_eq!(ext_value(literal), None, "{literal}");
        }
    }

    #[test]
    fn escapes_in_strings_are_resolved_wherever_they_stand() {
        for (literal, text) in [
            (r#""A\u0001b\u0002""#, "A\u{1}b\u{2}"),
            (r#""\u00e9\u4e2dx""#, "\u{e9}\u{4e2d}x"),
            (r#""\ud83d\ude00""#, "\u{1f600}"),
            (r#""\ud83d|\ude00|\ud83d\u0041""#, "?|?|?A"),
            (r#""\"\\\/\b\f\n\r\t""#, "\"\\/\u{8}\u{c}\n\r\t"),
            (
                r#""a long text that is borrowed in many steps \u0001 and goes on""#,
                "a long text that is borrowed in many steps \u{1} and goes on",
            ),
            ("\"中文 and 😀\"", "中文 and 😀"),
        ] {
            assert_eq!(ext_value(literal).as_deref(), Some(text), "{literal}");
        }
        let command = read(br#"{"c\u006fde":11,"extFields":{"t\u006fpic":"T"}}"#).unwrap();
        assert_eq!((command.code, command.ext.get("topic")), (11, Some("T")));
    }

    #[test]
    fn a_string_of_any_length_ends_at_its_own_quote() {
        for len in 0..80 {
            let text = "x".repeat(len);
            assert_eq!(ext_value(&format!("\"{text}\"")), Some(text.clone()));
            assert_eq!(ext_value(&format!("\"{text}\\n{text}\"")), Some(format!("{text}\n{text}")));
        }
    }

    #[test]
    fn all_quotes_and_backslashes_of_a_block_are_found_and_nothing_else() {
        for byte in 0..=u8::MAX {
            for at in 0..BLOCK_LEN {
                let mut block = [b'a'; BLOCK_LEN];
                (block[at], block[BLOCK_LEN - 1 - at]) = (byte, b'\\');
                assert_eq!(stops_of(&block), one_by_one(&block), "{byte} at {at}");
                // Behind the end of a text nothing is found, though the block there is filled up.
                assert_eq!(stops_in(&block[..at]), one_by_one(&block) & ((1 << at) - 1), "{byte} behind {at}");
            }
        }
    }

    #[test]
    fn a_name_of_any_length_is_read_again_where_its_value_is_no_plain_string() {
        for len in 0..2 * BLOCK_LEN + 3 {
            for filler in ["n", "\u{4e2d}"] {
                let name = filler.repeat(len);
                let literals =
                    [(r#""v""#, Some("v")), (r#" "v""#, Some("v")), ("17", Some("17")), ("null", None), ("[1]", None)];
                for (literal, value) in literals {
                    let text = format!(r#"{{"extFields":{{"{name}":{literal},"z\n{name}":"{name}"}},"opaque":5}}"#);
                    let command = read(text.as_bytes()).unwrap();
                    assert_eq!(command.ext.get(&name), value, "{text}");
                    assert_eq!(command.ext.get(&format!("z\n{name}")), Some(&*name), "{text}");
                    assert_eq!(command.opaque, 5);
                }
            }
        }
    }

    #[test]
    fn strings_without_escapes_are_not_copied() {
        let text = br#"{"extFields":{"topic":"TopicA"},"remark":"why"}"#;
        let command = read(text).unwrap();
        assert!(matches!(command.remark, Some(Cow::Borrowed("why"))));
        let inside = text.as_ptr_range();
        assert!(
            command.ext.iter().all(|(name, value)| inside.contains(&name.as_ptr()) && inside.contains(&value.as_ptr()))
        );
    }

    #[test]
    fn keys_in_any_order_blanks_and_unknown_keys_are_fine() {
        let text = b" {\n \"zone\" : {\"a\" : [ 1 , \"}\" , null ]} , \"version\":\"63\",\"flag\" : 2,\"remark\":\"\",
            \"language\":\"FOO\",\"opaque\":-2147483648,\"code\":-1006, \"extFields\" : null , \"x\":true,\"y\":1.5}\n";
        let command = read(text).unwrap();
        assert_eq!((command.code, command.flag, command.opaque, command.version), (-1006, 2, i32::MIN, 63));
        assert_eq!((command.language, command.remark, command.ext.is_empty()), (Language::Unknown, None, true));
    }

    #[test]
    fn fields_that_are_absent_or_null_count_as_zero_or_none() {
        for text in ["{}", r#"{"code":null,"flag":null,"language":null,"remark":null,"extFields":{}}"#] {
            let command = read(text.as_bytes()).unwrap();
            assert_eq!((command.code, command.flag, command.language), (0, 0, Language::Java));
            assert_eq!((command.remark, command.ext.is_empty()), (None, true));
        }
    }

    #[test]
    fn bytes_that_are_no_utf8_are_replaced_and_spoil_nothing_else() {
        let text =
            b"{\"code\":10,\"extFields\":{\"b\":\"TopicA\",\"i\":\"K\\u0001\xc4\xe3\"},\"opaque\":9,\"remark\":\"r\"}";
        let command = read(text).unwrap();
        assert_eq!((command.code, command.opaque, command.remark.as_deref()), (10, 9, Some("r")));
        assert_eq!(command.ext.get("b"), Some("TopicA"));
        assert_eq!(command.ext.get("i"), Some("K\u{1}\u{fffd}\u{fffd}"));
    }

    #[test]
    fn what_is_no_object_of_the_known_shape_is_refused() {
        for text in [
            "",
            " ",
            "[]",
            "7",
            "null",
            "\"x\"",
            "{",
            "{]",
            "{}}",
            "{} x",
            r#"{"code"}"#,
            r#"{"code":}"#,
            r#"{"code":1,}"#,
            r#"{"code":1 "flag":0}"#,
            r#"{code:1}"#,
            r#"{"code":x}"#,
            r#"{"code":1.5}"#,
            r#"{"code":{}}"#,
            r#"{"code":true}"#,
            r#"{"opaque":2147483648}"#,
            r#"{"extFields":[]}"#,
            r#"{"extFields":"x"}"#,
            r#"{"extFields":{"a":"b"}"#,
            r#"{"x":tru}"#,
            r#"{"x":"\q"}"#,
            r#"{"remark":"\u12g4"}"#,
            r#"{"remark":"\u12"#,
            r#"{"remark":"\"#,
            r#"{"x":[1,2}"#,
        ] {
            assert!(matches!(read(text.as_bytes()), Err(FrameError::BadJson { .. })), "{text}");
        }
    }

    #[test]
    fn a_header_cut_anywhere_is_refused() {
        let text = br#"{"code":310,"extFields":{"a":"PG","i":"A\u0001b\u0002","q":[1]},"flag":0,"x":{"y":null}}"#;
        assert!(read(text).is_ok());
        for len in 0..text.len() {
            assert!(read(&text[..len]).is_err(), "{len}");
        }
    }

    #[test]
    fn a_number_is_the_same_whichever_way_it_is_read() {
        for (literal, number) in [
            ("0", 0),
            ("007", 7),
            ("999999999", 999_999_999),
            ("1000000000", 1_000_000_000),
            ("0000000012", 12),
            ("2147483647", i32::MAX),
            ("-1", -1),
            ("+5", 5),
            ("12 ", 12),
            (" 12\n", 12),
            ("\"12\"", 12),
        ] {
            for text in [format!(r#"{{"opaque":{literal}}}"#), format!(r#"{{"opaque":{literal},"flag":1}}"#)] {
                match read(text.as_bytes()) {
                    Ok(command) => assert_eq!(command.opaque, number, "{text}"),
                    // No JSON value starts so.
                    Err(_) => assert_eq!(literal, "+5"),
                }
            }
        }
        for literal in ["", "9999999999", "12x", "1 2", "12:", "1.0", "1e3", "--1", "\"12 \""] {
            assert!(read(format!(r#"{{"opaque":{literal}}}"#).as_bytes()).is_err(), "{literal}");
        }
    }

    #[test]
    fn nesting_of_any_depth_costs_no_stack() {
        let deep = format!(r#"{{"x":{}{},"code":7}}"#, "[".repeat(1 << 20), "]".repeat(1 << 20));
        assert_eq!(read(deep.as_bytes()).unwrap().code, 7);
    }
}
