//! A request decoded whole by the node's own decoders, and of a send each field as what it is: what a broker cannot do
//! without. A library for any JSON (serde_json) made the sink half as fast, and so the node twice as good beside it.

use std::fmt;
use std::hint::black_box;

use kerolox::wire::headers::SendHeader;
use kerolox::wire::{Command, FieldError, FrameBounds, FrameError};

use super::is_send;

/// Why a request cannot be answered.
#[derive(Debug)]
pub enum Unreadable {
    Frame(FrameError),
    /// A field of a send.
    Field(FieldError),
}

/// Decodes a whole frame, and the fields of a send.
///
/// # Errors
/// [`Unreadable`]: the header is none, or a send lacks a field, or has one that is no number.
pub fn decode<'a>(frame: &'a [u8], bounds: &FrameBounds) -> Result<Command<'a>, Unreadable> {
    let command = Command::decode(frame, bounds)?;
    if is_send(command.code) {
        // Nobody stores the message; so that it is read all the same, it must look used.
        black_box(SendHeader::read(&command)?);
    }
    black_box(&command);
    Ok(command)
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unreadable::Frame(error) => error.fmt(f),
            Unreadable::Field(error) => write!(f, "the header of a send cannot be read: {error}"),
        }
    }
}

impl std::error::Error for Unreadable {}

impl From<FrameError> for Unreadable {
    fn from(error: FrameError) -> Unreadable {
        Unreadable::Frame(error)
    }
}

impl From<FieldError> for Unreadable {
    fn from(error: FieldError) -> Unreadable {
        Unreadable::Field(error)
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use kerolox::wire::code::request;
    use kerolox::wire::{HeaderType, Language, VERSION_5, encode_request, first_frame};
    use proptest::prelude::*;

    use super::*;
    use crate::sink::tests::{JAVA_SEND, LONG_SEND, SHORT_SEND, json_frame};

    fn decoded(frame: &[u8]) -> Result<Command<'_>, Unreadable> {
        decode(frame, &first_frame(frame).unwrap().expect("it is whole"))
    }

    fn encoded(header_type: HeaderType, code: i32, ext: &[(&str, &str)]) -> BytesMut {
        let mut frame = BytesMut::new();
        encode_request(&mut frame, header_type, code, VERSION_5, 7, 0, ext, b"body");
        frame
    }

    fn changed<'a>(ext: &[(&'a str, &'a str)], name: &str, value: &'a str) -> Vec<(&'a str, &'a str)> {
        ext.iter().map(|pair| if pair.0 == name { (pair.0, value) } else { *pair }).collect()
    }

    #[test]
    fn a_send_of_the_java_client_is_decoded_whole() {
        let frame = json_frame(JAVA_SEND, b"hello");
        let command = decoded(&frame).unwrap();
        assert_eq!((command.code, command.flag, command.opaque, command.version), (310, 0, 8, 479));
        assert_eq!((command.language, &command.remark, command.body), (Language::Java, &None, &b"hello"[..]));
        assert_eq!((command.ext.iter().count(), command.ext.get("n")), (13, Some("broker-a")));
        let send = SendHeader::read(&command).unwrap();
        assert_eq!((send.producer_group, send.topic, send.queue_id), ("1795975251502", "TopicB", 2));
        assert_eq!((send.born_timestamp, send.sys_flag, send.batch), (1_795_975_251_848, 0, false));
        assert!(send.properties.ends_with("\u{2}WAIT\u{1}true\u{2}TAGS\u{1}TT"), "{:?}", send.properties);
        // Of the header only what has escapes is copied.
        let inside = frame.as_ptr_range();
        for (name, value) in command.ext.iter() {
            assert!(inside.contains(&name.as_ptr()), "{name}");
            assert_eq!(inside.contains(&value.as_ptr()), name != "i", "{name}");
        }
    }

    #[test]
    fn a_number_that_is_none_is_refused_by_field_and_value() {
        for header_type in [HeaderType::Json, HeaderType::Rocketmq] {
            for (code, ext, name) in [
                (request::SEND_MESSAGE, LONG_SEND, "queueId"),
                (request::SEND_MESSAGE, LONG_SEND, "bornTimestamp"),
                (request::SEND_MESSAGE_V2, SHORT_SEND, "f"),
                (request::SEND_BATCH_MESSAGE, SHORT_SEND, "g"),
            ] {
                let why = decoded(&encoded(header_type, code, &changed(&ext, name, "3x"))).unwrap_err().to_string();
                assert!(why.contains(&format!("field {name} ")) && why.contains("\"3x\""), "{why}");
            }
            let why = decoded(&encoded(header_type, request::SEND_MESSAGE_V2, &SHORT_SEND[1..])).unwrap_err();
            assert!(why.to_string().contains("lacks the field a"), "{why}");
        }
    }

    #[test]
    fn a_header_that_is_none_is_refused() {
        for header in ["", "7", "{", r#"{"code":1} x"#, r#"{"flag":2147483648}"#] {
            assert!(matches!(decoded(&json_frame(header, b"")), Err(Unreadable::Frame(_))), "{header}");
        }
    }

    proptest! {
        #[test]
        fn hostile_headers_never_panic(kind in 0..2_u8, at in 0..400_usize, byte in any::<u8>(), cut in 0..400_usize) {
            let mut header = JAVA_SEND.as_bytes().to_vec();
            let len = header.len();
            header[at % len] = byte;
            header.truncate(cut % (len + 1));
            let mut frame = [&(header.len() as u32 + 4).to_be_bytes()[..], &(header.len() as u32).to_be_bytes(), &header].concat();
            frame[4] = kind;
            _ = decoded(&frame);
        }
    }
}
