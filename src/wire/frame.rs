//! Where a frame ends, and where its header and body lie. Nothing here allocates.
//!
//! | at  | size | field         | rule                                                        |
//! |----:|-----:|---------------|-------------------------------------------------------------|
//! |   0 |    4 | length        | bytes after this field: 4 + header + body                   |
//! |   4 |    1 | header type   | 0 JSON, 1 ROCKETMQ (binary); anything else is an error      |
//! |   5 |    3 | header length | H, unsigned                                                 |
//! |   8 |    H | header        | JSON text or the layout of `binary_header`                  |
//! | 8+H |      | body          | opaque; may be empty                                        |
//!
//! Big-endian. A frame that breaks a rule has no answer: the connection is closed. Source: remoting.md 1.1.

use std::fmt;
use std::ops::Range;

/// The most bytes of one frame, its length field included; holds in both directions.
pub const FRAME_LEN_MAX: usize = 16_777_216;
/// Bytes before the header.
pub const PREFIX_LEN: usize = 8;
const LENGTH_LEN: usize = 4;
const TYPE_AT: usize = 4;

/// How a frame's header is written; an answer goes out in the type of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HeaderType {
    Json,
    Rocketmq,
}

impl HeaderType {
    pub(super) fn to_byte(self) -> u8 {
        match self {
            HeaderType::Json => 0,
            HeaderType::Rocketmq => 1,
        }
    }

    fn from_byte(byte: u8) -> Result<HeaderType, FrameError> {
        match byte {
            0 => Ok(HeaderType::Json),
            1 => Ok(HeaderType::Rocketmq),
            found => Err(FrameError::UnknownHeaderType { found }),
        }
    }
}

/// The parts of the first frame of a buffer; the ranges count from the buffer's start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameBounds {
    /// Bytes of the whole frame: the next one starts here.
    pub total_len: usize,
    pub header_type: HeaderType,
    pub header: Range<usize>,
    pub body: Range<usize>,
}

/// Bytes that are no frame. All of these end the connection without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// Negative, below 4, or longer than a frame may be. Of a buffer shorter than the field, the rest counts as zero.
    BadLength {
        length: u32,
    },
    UnknownHeaderType {
        found: u8,
    },
    /// The header would reach beyond the frame.
    HeaderTooLong {
        header_len: u32,
        length: u32,
    },
    /// The header is no JSON object of the known shape; `at` is a byte position in the header.
    BadJson {
        at: usize,
        why: &'static str,
    },
    /// The binary header breaks its layout; `at` is a byte position in the header.
    BadBinary {
        at: usize,
        why: &'static str,
    },
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            FrameError::BadLength { length } => {
                write!(f, "frame length {length} is not in 4..={}", FRAME_LEN_MAX - LENGTH_LEN)
            }
            FrameError::UnknownHeaderType { found } => write!(f, "header type {found} is neither JSON nor ROCKETMQ"),
            FrameError::HeaderTooLong { header_len, length } => {
                write!(f, "a header of {header_len} bytes does not fit a frame of length {length}")
            }
            FrameError::BadJson { at, why } => write!(f, "JSON header, byte {at}: {why}"),
            FrameError::BadBinary { at, why } => write!(f, "binary header, byte {at}: {why}"),
        }
    }
}

impl std::error::Error for FrameError {}

/// Finds the first frame of `buf`; `None` while it is incomplete.
///
/// Each rule is checked as soon as the bytes it needs are there, so a peer that speaks something else (HTTP, TLS, a
/// PROXY line) is refused by its very first byte and no length is trusted before it is checked.
///
/// # Errors
/// [`FrameError`] of the prefix; the header itself is looked at by [`super::Command::decode`].
pub fn first_frame(buf: &[u8]) -> Result<Option<FrameBounds>, FrameError> {
    let Some(total_len) = expected_len(buf)? else { return Ok(None) };
    let Some(&type_byte) = buf.get(TYPE_AT) else { return Ok(None) };
    let header_type = HeaderType::from_byte(type_byte)?;
    let Some(prefix) = buf.first_chunk::<PREFIX_LEN>() else { return Ok(None) };
    let header_len = u32::from_be_bytes([0, prefix[5], prefix[6], prefix[7]]);
    let header_end = PREFIX_LEN + header_len as usize;
    if header_end > total_len {
        return Err(FrameError::HeaderTooLong { header_len, length: (total_len - LENGTH_LEN) as u32 });
    }
    if buf.len() < total_len {
        return Ok(None);
    }
    Ok(Some(FrameBounds { total_len, header_type, header: PREFIX_LEN..header_end, body: header_end..total_len }))
}

/// Bytes of the first frame of `buf`, complete or not; `None` while its length field is not there yet.
///
/// # Errors
/// [`FrameError::BadLength`].
pub fn expected_len(buf: &[u8]) -> Result<Option<usize>, FrameError> {
    let Some(field) = buf.first_chunk::<LENGTH_LEN>() else {
        return match buf.first() {
            // No legal length reaches into its highest byte.
            Some(&first) if first != 0 => Err(FrameError::BadLength { length: u32::from(first) << 24 }),
            _ => Ok(None),
        };
    };
    let length = u32::from_be_bytes(*field);
    let total_len = length as usize + LENGTH_LEN;
    if length < (PREFIX_LEN - LENGTH_LEN) as u32 || total_len > FRAME_LEN_MAX {
        return Err(FrameError::BadLength { length });
    }
    Ok(Some(total_len))
}

/// The eight bytes before a header; none if the frame would be longer than [`FRAME_LEN_MAX`].
pub(super) fn prefix(header_type: HeaderType, header_len: usize, body_len: usize) -> Option<[u8; PREFIX_LEN]> {
    let total_len = PREFIX_LEN + header_len + body_len;
    if total_len > FRAME_LEN_MAX {
        return None;
    }
    let mut prefix = [0; PREFIX_LEN];
    prefix[..LENGTH_LEN].copy_from_slice(&((total_len - LENGTH_LEN) as u32).to_be_bytes());
    prefix[LENGTH_LEN..].copy_from_slice(&(header_len as u32).to_be_bytes());
    prefix[TYPE_AT] = header_type.to_byte();
    Some(prefix)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_length(length: u32, rest: &[u8]) -> Vec<u8> {
        [&length.to_be_bytes()[..], rest].concat()
    }

    #[test]
    fn impossible_lengths_are_refused_before_anything_else_arrives() {
        for length in [0, 2, 3, u32::MAX, 0x8000_0000, 16_777_213] {
            assert_eq!(first_frame(&length.to_be_bytes()), Err(FrameError::BadLength { length }), "{length}");
        }
        assert_eq!(first_frame(&16_777_212_u32.to_be_bytes()), Ok(None));
        assert_eq!(first_frame(&4_u32.to_be_bytes()), Ok(None));
    }

    #[test]
    fn other_protocols_are_refused_by_their_first_byte() {
        let http = b"GET / HTTP/1.1\r\n\r\n".as_slice();
        let tls = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc".as_slice();
        let proxy = b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n".as_slice();
        for bytes in [http, tls, proxy] {
            for len in 1..bytes.len() {
                assert!(matches!(first_frame(&bytes[..len]), Err(FrameError::BadLength { .. })));
            }
        }
        assert_eq!(first_frame(b""), Ok(None));
    }

    #[test]
    fn a_header_longer_than_its_frame_is_refused_before_the_body_arrives() {
        for header_type in [0, 1] {
            let buf = with_length(10, &[header_type, 0, 0, 7]);
            assert_eq!(first_frame(&buf), Err(FrameError::HeaderTooLong { header_len: 7, length: 10 }));
            let buf = with_length(10, &[header_type, 0, 0, 6]);
            assert_eq!(first_frame(&buf), Ok(None));
        }
    }

    #[test]
    fn a_header_type_other_than_json_or_rocketmq_is_refused() {
        assert_eq!(first_frame(&with_length(4, &[2])), Err(FrameError::UnknownHeaderType { found: 2 }));
        assert_eq!(first_frame(&with_length(4, &[0xff])), Err(FrameError::UnknownHeaderType { found: 0xff }));
    }

    #[test]
    fn frames_are_cut_one_by_one_however_they_arrive() {
        let one = with_length(9, &[1, 0, 0, 2, b'h', b'h', b'b', b'b', b'b']);
        let three = [one.as_slice(), &with_length(4, &[0, 0, 0, 0]), &one].concat();
        for len in 0..one.len() {
            assert_eq!(first_frame(&three[..len]), Ok(None));
        }
        let mut rest = three.as_slice();
        let mut seen = Vec::new();
        while let Some(bounds) = first_frame(rest).unwrap() {
            seen.push((bounds.header_type, rest[bounds.header.clone()].to_vec(), rest[bounds.body.clone()].to_vec()));
            rest = &rest[bounds.total_len..];
        }
        let whole = (HeaderType::Rocketmq, b"hh".to_vec(), b"bbb".to_vec());
        assert_eq!(seen, [whole.clone(), (HeaderType::Json, vec![], vec![]), whole]);
        assert!(rest.is_empty());
    }
}
