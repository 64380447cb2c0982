//! A request decoded whole, as a broker without tricks would: a JSON header by serde_json, a ROCKETMQ one by the
//! library's decoder, and of a send each field as what it is.
//!
//! Not the library's own reader of JSON headers: that is a part of what the sink is a measure for.

use std::borrow::Cow;
use std::fmt;
use std::hint::black_box;
use std::marker::PhantomData;

use kerolox::wire::headers::SendHeader;
use kerolox::wire::{Command, ExtFields, FieldError, FrameBounds, FrameError, HeaderType, Language};
use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, Visitor};

use super::is_send;

/// Why a request cannot be answered.
#[derive(Debug)]
pub enum Unreadable {
    Frame(FrameError),
    Json(serde_json::Error),
    /// A field of a send.
    Field(FieldError),
}

/// Decodes a whole frame, and the fields of a send.
///
/// # Errors
/// [`Unreadable`]: the header is no JSON of the known shape, which a code in quotes is not, or breaks the
/// binary layout; or a send lacks a field, or has one that is no number.
pub fn decode<'a>(frame: &'a [u8], bounds: &FrameBounds) -> Result<Command<'a>, Unreadable> {
    let command = match bounds.header_type {
        HeaderType::Json => {
            let header: JsonHeader<'a> = serde_json::from_slice(&frame[bounds.header.clone()])?;
            header.with_body(&frame[bounds.body.clone()])
        }
        HeaderType::Rocketmq => Command::decode(frame, bounds)?,
    };
    if is_send(command.code) {
        // Nobody stores the message; so that it is read all the same, it must look used.
        black_box(SendHeader::read(&command)?);
    }
    black_box(&command);
    Ok(command)
}

/// What is absent counts as 0 or none.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct JsonHeader<'a> {
    code: i32,
    #[serde(borrow)]
    language: Option<Text<'a>>,
    version: i32,
    opaque: i32,
    flag: i32,
    #[serde(borrow)]
    remark: Option<Text<'a>>,
    #[serde(borrow)]
    ext_fields: Fields<'a>,
}

impl<'a> JsonHeader<'a> {
    fn with_body(self, body: &'a [u8]) -> Command<'a> {
        Command {
            header_type: HeaderType::Json,
            code: self.code,
            language: self.language.map_or(Language::default(), |name| Language::from_name(&name.0)),
            version: self.version,
            opaque: self.opaque,
            flag: self.flag,
            remark: self.remark.map(|remark| remark.0).filter(|remark| !remark.is_empty()),
            ext: self.ext_fields.0,
            body,
        }
    }
}

/// A string, borrowed if it has no escapes; a number or boolean as text.
struct Text<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Text<'a>, D::Error> {
        struct OfText;
        impl<'de> Visitor<'de> for OfText {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, a number or a boolean")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }

            fn visit_bool<E>(self, value: bool) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(if value { "true" } else { "false" })))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(value.to_string())))
            }

            fn visit_u64<E>(self, value: u64) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(value.to_string())))
            }

            fn visit_f64<E>(self, value: f64) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(value.to_string())))
            }
        }
        deserializer.deserialize_any(OfText)
    }
}

#[derive(Default)]
struct Fields<'a>(ExtFields<'a>);

impl<'de: 'a, 'a> Deserialize<'de> for Fields<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Fields<'a>, D::Error> {
        struct OfFields<'a>(PhantomData<&'a str>);
        impl<'de: 'a, 'a> Visitor<'de> for OfFields<'a> {
            type Value = Fields<'a>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object or null")
            }

            fn visit_unit<E>(self) -> Result<Fields<'a>, E> {
                Ok(Fields::default())
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'a>, A::Error> {
                let mut fields = ExtFields::default();
                while let Some((Text(name), value)) = map.next_entry::<Text<'de>, Option<Text<'de>>>()? {
                    if let Some(Text(value)) = value
                        && !fields.push(name, value)
                    {
                        return Err(de::Error::custom("too many ext fields"));
                    }
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_any(OfFields(PhantomData))
    }
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unreadable::Frame(error) => error.fmt(f),
            Unreadable::Json(error) => write!(f, "the JSON header cannot be read: {error}"),
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

impl From<serde_json::Error> for Unreadable {
    fn from(error: serde_json::Error) -> Unreadable {
        Unreadable::Json(error)
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
    use kerolox::wire::{VERSION_5, encode_request, first_frame};
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
    fn both_forms_and_both_header_types_are_what_the_library_reads() {
        for header_type in [HeaderType::Json, HeaderType::Rocketmq] {
            for (code, ext) in [(request::SEND_MESSAGE, LONG_SEND), (request::SEND_MESSAGE_V2, SHORT_SEND)] {
                let frame = encoded(header_type, code, &ext);
                let bounds = first_frame(&frame).unwrap().unwrap();
                assert_eq!(decoded(&frame).unwrap(), Command::decode(&frame, &bounds).unwrap());
            }
        }
        let odd = r#"{"code":30,"language":"CPP","extFields":{"a":1,"b":-2,"c":1.5,"d":true,"e":null,"f":"\u00e9"},
            "remark":"","version":63,"opaque":5,"zone":{"x":[null]}}"#;
        let frame = json_frame(odd, b"");
        assert_eq!(decoded(&frame).unwrap(), Command::decode(&frame, &first_frame(&frame).unwrap().unwrap()).unwrap());
        assert!(decoded(&json_frame(r#"{"code":28,"extFields":null}"#, b"")).unwrap().ext.is_empty());
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
    fn a_header_of_another_shape_is_refused() {
        for header in [
            "",
            "7",
            "{",
            r#"{"code":"310"}"#,
            r#"{"code":1} x"#,
            r#"{"extFields":{"a":{}}}"#,
            r#"{"flag":2147483648}"#,
        ] {
            assert!(matches!(decoded(&json_frame(header, b"")), Err(Unreadable::Json(_))), "{header}");
        }
        let many: Vec<String> = (0..2000).map(|number| format!("\"{number}\":\"\"")).collect();
        let header = format!(r#"{{"code":1,"extFields":{{{}}}}}"#, many.join(","));
        let why = decoded(&json_frame(&header, b"")).unwrap_err().to_string();
        assert!(why.contains("too many ext fields"), "{why}");
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
