//! The ROCKETMQ header: fixed fields, then remark and pairs of texts.
//!
//! | size | field         | meaning                                                                           |
//! |-----:|---------------|-----------------------------------------------------------------------------------|
//! |    2 | code          | signed: codes above 32 767 lose their high bits                                   |
//! |    1 | language      | number; unknown ones are fine                                                     |
//! |    2 | version       | signed                                                                            |
//! |    4 | opaque        |                                                                                   |
//! |    4 | flag          |                                                                                   |
//! |    4 | remark length | 0: none; the remark follows                                                       |
//! |    4 | ext length    | 0: none; then entries: 2-byte key length, key, 4-byte value length, value         |
//!
//! Big-endian. An entry with an empty key or value counts as absent. Source: remoting.md 1.3.

use std::borrow::Cow;

use super::command::{Command, Language};
use super::frame::FrameError;

/// Bytes of a header without remark and ext fields.
pub(super) const FIXED_LEN: usize = 21;

/// Fills `command` from a binary header; what follows the ext fields is ignored, as in Java, and bytes that are not
/// UTF-8 are replaced by U+FFFD.
pub(super) fn decode_into<'a>(header: &'a [u8], command: &mut Command<'a>) -> Result<(), FrameError> {
    let mut reader = Reader { bytes: header, at: 0 };
    command.code = i32::from(i16::from_be_bytes(reader.array("the code is cut")?));
    let [language] = reader.array("the language is cut")?;
    command.language = Language::from_byte(language);
    command.version = i32::from(i16::from_be_bytes(reader.array("the version is cut")?));
    command.opaque = i32::from_be_bytes(reader.array("the opaque is cut")?);
    command.flag = i32::from_be_bytes(reader.array("the flag is cut")?);
    let remark_len = u32::from_be_bytes(reader.array("the remark's length is cut")?);
    let remark = reader.take(remark_len, "the remark reaches beyond the header")?;
    command.remark = Some(String::from_utf8_lossy(remark)).filter(|remark| !remark.is_empty());
    let ext_len = u32::from_be_bytes(reader.array("the length of the ext fields is cut")?);
    let ext_at = reader.at;
    let mut ext = Reader { bytes: reader.take(ext_len, "the ext fields reach beyond the header")?, at: 0 };
    while ext.at < ext.bytes.len() {
        let within = |error| offset_by(ext_at, error);
        let name_len = u16::from_be_bytes(ext.array("a key's length is cut").map_err(within)?);
        let name = ext.take(u32::from(name_len), "a key reaches beyond the ext fields").map_err(within)?;
        let value_len = u32::from_be_bytes(ext.array("a value's length is cut").map_err(within)?);
        let value = ext.take(value_len, "a value reaches beyond the ext fields").map_err(within)?;
        // The usual case by itself: kept in registers, it costs a third of passing the texts on as `Cow`s.
        let fits = match (std::str::from_utf8(name), std::str::from_utf8(value)) {
            _ if name.is_empty() || value.is_empty() => true,
            (Ok(name), Ok(value)) => command.ext.push(Cow::Borrowed(name), Cow::Borrowed(value)),
            _ => command.ext.push(String::from_utf8_lossy(name), String::from_utf8_lossy(value)),
        };
        if !fits {
            return Err(FrameError::BadBinary { at: ext_at + ext.at, why: "too many ext fields" });
        }
    }
    Ok(())
}

fn offset_by(start: usize, error: FrameError) -> FrameError {
    match error {
        FrameError::BadBinary { at, why } => FrameError::BadBinary { at: start + at, why },
        other => other,
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn array<const N: usize>(&mut self, why: &'static str) -> Result<[u8; N], FrameError> {
        let array = self.bytes[self.at..].first_chunk().ok_or(FrameError::BadBinary { at: self.at, why })?;
        self.at += N;
        Ok(*array)
    }

    fn take(&mut self, len: u32, why: &'static str) -> Result<&'a [u8], FrameError> {
        let taken = self.bytes[self.at..].get(..len as usize).ok_or(FrameError::BadBinary { at: self.at, why })?;
        self.at += taken.len();
        Ok(taken)
    }
}
