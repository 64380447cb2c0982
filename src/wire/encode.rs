//! Frames written: answers and our own requests, appended whole to an output buffer.
//!
//! JSON is compact, its keys in fastjson's order, all ext values strings: the Go client rejects numbers and cuts some
//! bodies at blanks. The language is JAVA, the least surprise for clients. Source: remoting.md 1.2, 1.3, 10.1.

use bytes::BytesMut;

use super::binary_header::FIXED_LEN;
use super::code::response::SYSTEM_ERROR;
use super::command::FLAG_RESPONSE;
use super::frame::{HeaderType, PREFIX_LEN, prefix};

/// Appends a whole answer. An answer that fits no frame is replaced by a short SYSTEM_ERROR: the requester must hear
/// something, and no peer takes a longer frame.
#[expect(
    clippy::too_many_arguments,
    reason = "these are the fields of a frame; a struct for them would be spelt out by every caller"
)]
pub fn encode_response(
    out: &mut BytesMut,
    header_type: HeaderType,
    code: i32,
    version: i32,
    opaque: i32,
    remark: Option<&str>,
    ext: &[(&str, &str)],
    body: &[u8],
) {
    let head = Head { code, version, opaque, flag: FLAG_RESPONSE, remark, ext };
    if !head.write(out, header_type, body.len()) {
        let remark = Some("the answer is longer than a frame may be");
        let fits = Head { code: SYSTEM_ERROR, remark, ext: &[], ..head }.write(out, header_type, 0);
        assert!(fits, "a header without fields is short");
        return;
    }
    out.extend_from_slice(body);
}

/// Appends all of an answer but its body; the caller appends exactly `body_len` bytes after it.
///
/// # Panics
/// If the frame would be longer than [`super::FRAME_LEN_MAX`].
#[expect(clippy::too_many_arguments, reason = "as for `encode_response`")]
pub fn begin_response(
    out: &mut BytesMut,
    header_type: HeaderType,
    code: i32,
    version: i32,
    opaque: i32,
    remark: Option<&str>,
    ext: &[(&str, &str)],
    body_len: usize,
) {
    let fits = Head { code, version, opaque, flag: FLAG_RESPONSE, remark, ext }.write(out, header_type, body_len);
    assert!(fits, "an answer with a body of {body_len} bytes must not be sent");
}

/// Appends a whole request of ours: a push to a client, or what the built-in client asks.
///
/// # Panics
/// If the frame would be longer than [`super::FRAME_LEN_MAX`].
#[expect(clippy::too_many_arguments, reason = "as for `encode_response`")]
pub fn encode_request(
    out: &mut BytesMut,
    header_type: HeaderType,
    code: i32,
    version: i32,
    opaque: i32,
    flag: i32,
    ext: &[(&str, &str)],
    body: &[u8],
) {
    let fits = Head { code, version, opaque, flag, remark: None, ext }.write(out, header_type, body.len());
    assert!(fits, "a request with a body of {} bytes must not be sent", body.len());
    out.extend_from_slice(body);
}

/// What goes into a header of either type.
struct Head<'a> {
    code: i32,
    version: i32,
    opaque: i32,
    flag: i32,
    remark: Option<&'a str>,
    ext: &'a [(&'a str, &'a str)],
}

/// How a header's texts are written.
#[derive(Clone, Copy)]
enum Form {
    /// No text has a byte to escape.
    PlainJson,
    EscapedJson,
    Binary,
}

const CODE: &[u8] = br#"{"code":"#;
const EXT_FIELDS: &[u8] = br#","extFields":{"#;
const FLAG: &[u8] = br#","flag":"#;
const LANGUAGE_OPAQUE: &[u8] = br#","language":"JAVA","opaque":"#;
const REMARK: &[u8] = br#","remark":""#;
const TYPE_VERSION: &[u8] = br#","serializeTypeCurrentRPC":"JSON","version":"#;
const NUMBER_LEN_MAX: usize = "-2147483648".len();
/// All of a JSON header but remark and ext fields, at its longest.
const JSON_FIXED_LEN_MAX: usize = CODE.len()
    + EXT_FIELDS.len()
    + FLAG.len()
    + LANGUAGE_OPAQUE.len()
    + REMARK.len()
    + TYPE_VERSION.len()
    + 2
    + 4 * NUMBER_LEN_MAX;
/// The longest form of one byte in a JSON string: `\u0001`.
const ESCAPE_LEN: usize = 6;

impl Head<'_> {
    /// Appends prefix and header; false, and nothing appended, if the frame would be longer than a frame may be.
    fn write(&self, out: &mut BytesMut, header_type: HeaderType, body_len: usize) -> bool {
        let start = out.len();
        let form = self.form(header_type);
        // One growth and one zeroing for all, so that the pieces below are plain copies into a slice.
        out.resize(start + PREFIX_LEN + self.len_max(form), 0);
        let mut cursor = Cursor { out: &mut out[start..], at: PREFIX_LEN };
        match form {
            Form::PlainJson => self.write_json(&mut cursor, |cursor, text| cursor.put(text.as_bytes())),
            Form::EscapedJson => self.write_json(&mut cursor, |cursor, text| cursor.put_escaped(text)),
            Form::Binary => self.write_binary(&mut cursor),
        }
        let header_len = cursor.at - PREFIX_LEN;
        let Some(prefix) = prefix(header_type, header_len, body_len) else {
            out.truncate(start);
            return false;
        };
        out[start..start + PREFIX_LEN].copy_from_slice(&prefix);
        out.truncate(start + PREFIX_LEN + header_len);
        true
    }

    /// No header of these fields is longer. Only if some text has bytes to escape do they all count at their worst, so
    /// that a long plain one does not ask for six times its room.
    fn len_max(&self, form: Form) -> usize {
        let texts_len: usize = self.ext.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>()
            + self.remark.map_or(0, str::len);
        const QUOTES_AND_SEPARATORS: usize = r#""":"","#.len();
        match form {
            Form::PlainJson => JSON_FIXED_LEN_MAX + self.ext.len() * QUOTES_AND_SEPARATORS + texts_len,
            Form::EscapedJson => JSON_FIXED_LEN_MAX + self.ext.len() * QUOTES_AND_SEPARATORS + texts_len * ESCAPE_LEN,
            Form::Binary => FIXED_LEN + self.ext.len() * (2 + 4) + texts_len,
        }
    }

    fn form(&self, header_type: HeaderType) -> Form {
        let plain = || {
            self.ext.iter().all(|(name, value)| is_plain(name.as_bytes()) && is_plain(value.as_bytes()))
                && self.remark.is_none_or(|remark| is_plain(remark.as_bytes()))
        };
        match header_type {
            HeaderType::Json if plain() => Form::PlainJson,
            HeaderType::Json => Form::EscapedJson,
            HeaderType::Rocketmq => Form::Binary,
        }
    }

    fn write_json(&self, cursor: &mut Cursor<'_>, put_text: impl Fn(&mut Cursor<'_>, &str)) {
        cursor.put(CODE);
        cursor.put_number(self.code);
        if !self.ext.is_empty() {
            cursor.put(EXT_FIELDS);
            for (index, (name, value)) in self.ext.iter().enumerate() {
                cursor.put(if index == 0 { b"\"" } else { b",\"" });
                put_text(cursor, name);
                cursor.put(br#"":""#);
                put_text(cursor, value);
                cursor.put(b"\"");
            }
            cursor.put(b"}");
        }
        cursor.put(FLAG);
        cursor.put_number(self.flag);
        cursor.put(LANGUAGE_OPAQUE);
        cursor.put_number(self.opaque);
        if let Some(remark) = self.remark {
            cursor.put(REMARK);
            put_text(cursor, remark);
            cursor.put(b"\"");
        }
        cursor.put(TYPE_VERSION);
        cursor.put_number(self.version);
        cursor.put(b"}");
    }

    fn write_binary(&self, cursor: &mut Cursor<'_>) {
        const JAVA: u8 = 0;
        // The two 16-bit fields keep their low bits only, as Java's do.
        cursor.put(&(self.code as i16).to_be_bytes());
        cursor.put(&[JAVA]);
        cursor.put(&(self.version as i16).to_be_bytes());
        cursor.put(&self.opaque.to_be_bytes());
        cursor.put(&self.flag.to_be_bytes());
        let remark = self.remark.unwrap_or_default();
        cursor.put(&(remark.len() as u32).to_be_bytes());
        cursor.put(remark.as_bytes());
        let ext_len: usize = self.ext.iter().map(|(name, value)| 2 + name.len() + 4 + value.len()).sum();
        cursor.put(&(ext_len as u32).to_be_bytes());
        for (name, value) in self.ext {
            let name_len = u16::try_from(name.len()).expect("the names of our fields are short");
            cursor.put(&name_len.to_be_bytes());
            cursor.put(name.as_bytes());
            cursor.put(&(value.len() as u32).to_be_bytes());
            cursor.put(value.as_bytes());
        }
    }
}

struct Cursor<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl Cursor<'_> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.out[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    fn put_number(&mut self, number: i32) {
        self.put(itoa::Buffer::new().format(number).as_bytes());
    }

    fn put_escaped(&mut self, text: &str) {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        for byte in text.bytes() {
            match byte {
                b'"' | b'\\' => self.put(&[b'\\', byte]),
                b'\n' => self.put(b"\\n"),
                b'\r' => self.put(b"\\r"),
                b'\t' => self.put(b"\\t"),
                0..0x20 => {
                    let (high, low) = (HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]);
                    self.put(&[b'\\', b'u', b'0', b'0', high, low]);
                }
                _ => self.put(&[byte]),
            }
        }
    }
}

/// Whether a text goes between JSON quotes as it is.
fn is_plain(text: &[u8]) -> bool {
    let (chunks, rest) = text.as_chunks::<8>();
    let mut marks = chunks.iter().fold(0, |marks, chunk| marks | escape_marks(*chunk));
    match text.last_chunk::<8>() {
        // It overlaps the one before; looking twice costs less than the bytes one by one.
        Some(chunk) if !rest.is_empty() => marks |= escape_marks(*chunk),
        Some(_) => {}
        None => return !rest.iter().any(|&byte| byte < 0x20 || byte == b'"' || byte == b'\\'),
    }
    marks == 0
}

/// Zero if none of eight bytes is one that a JSON string has to escape.
#[inline(always)]
fn escape_marks(chunk: [u8; 8]) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH_BITS: u64 = ONES << 7;
    let word = u64::from_le_bytes(chunk);
    // Sets the high bit of the lowest byte that is below `limit`, and maybe of some above it.
    let below = |word: u64, limit: u64| word.wrapping_sub(ONES * limit) & !word & HIGH_BITS;
    below(word, 0x20) | below(word ^ (ONES * b'"' as u64), 1) | below(word ^ (ONES * b'\\' as u64), 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_to_escape_is_found_wherever_it_stands_and_no_other_is() {
        for len in 1..=40 {
            for at in 0..len {
                for byte in 0..=u8::MAX {
                    // Neighbours that a carry between the bytes of a word would show in.
                    for around in [b'!', b' ', b'#', b'[', b']', 0x7f, 0x80, 0xff] {
                        let mut text = vec![around; len];
                        text[at] = byte;
                        let plain = byte >= 0x20 && byte != b'"' && byte != b'\\';
                        assert_eq!(is_plain(&text), plain, "{byte:#x} at {at} of {len} among {around:#x}");
                    }
                }
            }
        }
        assert!(is_plain(b""));
    }
}
