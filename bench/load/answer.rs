//! Reads code, flag and opaque number of a header from their usual places.
//!
//! Brokers and clients write a JSON header in one order of keys, and what follows the ext fields has one form; that form
//! is compared from its end, without a search and without memory. Any other form goes to the library's decoder.

use kerolox::wire::{Command, FLAG_RESPONSE, FrameBounds, FrameError, HeaderType};

/// The fields of a header that every frame has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub code: i32,
    pub flag: i32,
    pub opaque: i32,
}

/// What a load needs of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    pub code: i32,
    pub opaque: i32,
}

/// Reads a whole frame; `None` for a request of the broker's own.
///
/// # Errors
/// [`FrameError`] of a header that cannot be read.
#[inline]
pub fn read(frame: &[u8], bounds: &FrameBounds) -> Result<Option<Answer>, FrameError> {
    let Head { code, flag, opaque } = head(frame, bounds)?;
    Ok((flag & FLAG_RESPONSE != 0).then_some(Answer { code, opaque }))
}

/// Reads the head of a whole frame.
///
/// # Errors
/// [`FrameError`] of a header that cannot be read.
#[inline]
pub fn head(frame: &[u8], bounds: &FrameBounds) -> Result<Head, FrameError> {
    let header = &frame[bounds.header.clone()];
    let quick = match bounds.header_type {
        HeaderType::Json => from_json(header),
        HeaderType::Rocketmq => from_binary(header),
    };
    if let Some(head) = quick {
        return Ok(head);
    }
    let command = Command::decode(frame, bounds)?;
    Ok(Head { code: command.code, flag: command.flag, opaque: command.opaque })
}

/// `{"code":C` … `,"flag":F,"language":"JAVA","opaque":O,"serializeTypeCurrentRPC":"JSON","version":V}`
fn from_json(header: &[u8]) -> Option<Head> {
    let code = header.strip_prefix(br#"{"code":"#)?;
    let (code, _) = leading_number(code)?;
    let rest = header.strip_suffix(b"}")?;
    let (_, rest) = trailing_number(rest)?;
    let rest = rest.strip_suffix(br#","serializeTypeCurrentRPC":"JSON","version":"#)?;
    let (opaque, rest) = trailing_number(rest)?;
    let (flag, rest) = trailing_number(rest.strip_suffix(br#","language":"JAVA","opaque":"#)?)?;
    rest.ends_with(br#","flag":"#).then_some(Head { code, flag, opaque })
}

/// Code, language, version, opaque, flag: the layout that `kerolox::wire` tells of.
fn from_binary(header: &[u8]) -> Option<Head> {
    let fixed = header.first_chunk::<13>()?;
    let code = i32::from(i16::from_be_bytes([fixed[0], fixed[1]]));
    let opaque = i32::from_be_bytes([fixed[5], fixed[6], fixed[7], fixed[8]]);
    let flag = i32::from_be_bytes([fixed[9], fixed[10], fixed[11], fixed[12]]);
    Some(Head { code, flag, opaque })
}

/// The digits at the start and what follows; `None` if there are none or more than an i32 has.
fn leading_number(text: &[u8]) -> Option<(i32, &[u8])> {
    let end = text.iter().take(11).take_while(|byte| byte.is_ascii_digit()).count();
    number(&text[..end]).map(|number| (number, &text[end..]))
}

/// The digits at the end and what stands before.
fn trailing_number(text: &[u8]) -> Option<(i32, &[u8])> {
    let len = text.iter().rev().take(11).take_while(|byte| byte.is_ascii_digit()).count();
    let (rest, digits) = text.split_at(text.len() - len);
    number(digits).map(|number| (number, rest))
}

fn number(digits: &[u8]) -> Option<i32> {
    if digits.is_empty() {
        return None;
    }
    let value = digits.iter().fold(0_u64, |value, digit| value * 10 + u64::from(digit - b'0'));
    i32::try_from(value).ok()
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use kerolox::wire::{VERSION_5, encode_request, encode_response, first_frame};
    use proptest::prelude::*;

    use super::*;

    const TYPES: [HeaderType; 2] = [HeaderType::Json, HeaderType::Rocketmq];

    fn read_whole(frame: &[u8]) -> Option<Answer> {
        let bounds = first_frame(frame).unwrap().unwrap();
        read(frame, &bounds).unwrap()
    }

    fn json_frame(header: &[u8]) -> Vec<u8> {
        [&(header.len() as u32 + 4).to_be_bytes()[..], &(header.len() as u32).to_be_bytes(), header].concat()
    }

    #[test]
    fn the_common_form_of_an_answer_needs_no_decoder() {
        for header_type in TYPES {
            for ext in [&[][..], &[("msgId", "7F"), ("queueOffset", "17")]] {
                let mut out = BytesMut::new();
                encode_response(&mut out, header_type, 0, VERSION_5, 1_234_567_890, None, ext, b"body");
                let header = &out[first_frame(&out).unwrap().unwrap().header];
                let quick = if header_type == HeaderType::Json { from_json(header) } else { from_binary(header) };
                assert_eq!(quick, Some(Head { code: 0, flag: 1, opaque: 1_234_567_890 }));
            }
        }
    }

    #[test]
    fn other_forms_are_read_all_the_same() {
        let wanted = Some(Answer { code: 2, opaque: 77 });
        for header_type in TYPES {
            let mut out = BytesMut::new();
            encode_response(&mut out, header_type, 2, VERSION_5, 77, Some("[x]busy, \"opaque\":5"), &[], b"");
            assert_eq!(read_whole(&out), wanted);
        }
        let spaced = br#"{ "opaque": 77, "flag": 1, "code": 2, "extFields": {"opaque": "9"} }"#;
        assert_eq!(read_whole(&json_frame(spaced)), wanted);
        let other_language = br#"{"code":2,"flag":1,"language":"CPP","opaque":77,"version":1}"#;
        assert_eq!(read_whole(&json_frame(other_language)), wanted);
    }

    #[test]
    fn a_request_of_the_broker_is_no_answer() {
        for header_type in TYPES {
            let mut out = BytesMut::new();
            encode_request(&mut out, header_type, 40, VERSION_5, 5, 2, &[("consumerGroup", "g")], b"");
            assert_eq!(read_whole(&out), None);
        }
    }

    #[test]
    fn numbers_that_do_not_fit_are_not_guessed() {
        assert_eq!(leading_number(b"2147483648,"), None);
        assert_eq!(leading_number(b"99999999999999999999"), None);
        assert_eq!(leading_number(b"2147483647,"), Some((i32::MAX, &b","[..])));
        assert_eq!(trailing_number(b":0"), Some((0, &b":"[..])));
        assert_eq!(trailing_number(b""), None);
    }

    proptest! {
        #[test]
        fn hostile_headers_never_panic(kind in 0..2_u8, header in prop::collection::vec(any::<u8>(), 0..120)) {
            let mut frame = json_frame(&header);
            frame[4] = kind;
            let bounds = first_frame(&frame).unwrap().unwrap();
            _ = read(&frame, &bounds);
        }

        #[test]
        fn cut_and_changed_answers_never_panic(at in 0..300_usize, byte in any::<u8>(), cut in 0..300_usize) {
            for header_type in TYPES {
                let mut out = BytesMut::new();
                let ext = [("msgId", "7F00000100002A9F0000000000000000"), ("queueId", "3"), ("queueOffset", "12")];
                encode_response(&mut out, header_type, 0, VERSION_5, 1_000_000_001, None, &ext, b"");
                let bounds = first_frame(&out).unwrap().unwrap();
                let mut header = out[bounds.header].to_vec();
                let len = header.len();
                header[at % len] = byte;
                header.truncate(cut % (len + 1));
                let mut frame = json_frame(&header);
                frame[4] = u8::from(header_type == HeaderType::Rocketmq);
                let bounds = first_frame(&frame).unwrap().unwrap();
                _ = read(&frame, &bounds);
            }
        }
    }
}
