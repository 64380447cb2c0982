//! The body by which a broker tells a name server its topics (103). Source: remoting.md 3.17.
//!
//! Either JSON, or one zlib stream of: `n`, data version JSON · topic count, per topic `n`, text
//! `name read write perm filterType attributes` · `n`, JSON array of filter servers · more that is not read.
//! All numbers are big-endian 32-bit integers, `n` the bytes that follow.

use std::collections::BTreeMap;
use std::io::Read;

use serde_json::{Value, json};

use super::body::{BodyError, flag, int, int_or, long_or, map, opt_text, parse_object, present, texts};
use crate::types::json::{self, as_str};

/// The most bytes that a compressed body may grow to.
pub const INFLATED_LEN_MAX: usize = 16 * 1024 * 1024;

/// A broker's topics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BrokerRegistration {
    pub data_version: RegisteredVersion,
    pub topics: BTreeMap<String, RegisteredTopic>,
    pub filter_servers: Vec<String>,
}

/// Which state of its topics a broker tells of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegisteredVersion {
    /// 5.x; 0 from older brokers.
    pub state_version: i64,
    pub timestamp: i64,
    pub counter: i64,
}

/// One topic of a broker; its name is the key it is kept by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisteredTopic {
    pub read_queues: i32,
    pub write_queues: i32,
    /// 4 read, 2 write, 1 inherit.
    pub perm: i32,
    /// `SINGLE_TAG` or `MULTI_TAG`.
    pub filter_type: String,
    /// 0 in a compressed body, which does not carry it.
    pub sys_flag: i32,
    /// False in a compressed body, which does not carry it.
    pub order: bool,
    pub attributes: BTreeMap<String, String>,
}

impl BrokerRegistration {
    /// # Errors
    /// [`BodyError`] if the JSON form is not whole.
    pub fn decode(body: &[u8]) -> Result<BrokerRegistration, BodyError> {
        let object = parse_object(body)?;
        let field = "topicConfigSerializeWrapper";
        let wrapper = present(&object, field).ok_or(BodyError::Missing { field })?;
        Ok(BrokerRegistration {
            data_version: present(wrapper, "dataVersion")
                .map_or(Ok(Default::default()), RegisteredVersion::from_json)?,
            topics: map(wrapper, "topicConfigTable", |name, value| {
                Ok((name.to_owned(), RegisteredTopic::from_json(value)?))
            })?,
            filter_servers: texts(&object, "filterServerList")?,
        })
    }

    /// # Errors
    /// [`BodyError`] if this is no zlib stream, one of more than [`INFLATED_LEN_MAX`] bytes, or what it holds is not
    /// whole.
    pub fn decode_compressed(body: &[u8]) -> Result<BrokerRegistration, BodyError> {
        let inflated = inflate(body)?;
        let mut parts = Parts { rest: &inflated };
        let data_version = RegisteredVersion::from_json(&json::parse(parts.sized()?)?)?;
        let mut topics = BTreeMap::new();
        for _ in 0..parts.count()? {
            let (name, topic) = RegisteredTopic::from_line(parts.sized()?)?;
            topics.insert(name, topic);
        }
        let servers = json::parse(parts.sized()?)?;
        let servers = servers.as_array().map(Vec::as_slice).unwrap_or_default();
        let filter_servers = servers.iter().filter_map(as_str).map(str::to_owned).collect();
        Ok(BrokerRegistration { data_version, topics, filter_servers })
    }

    /// The JSON form.
    pub fn encode(&self) -> Vec<u8> {
        let topics: BTreeMap<&str, Value> =
            self.topics.iter().map(|(name, topic)| (name.as_str(), topic.to_json(name))).collect();
        let object = json!({
            "filterServerList": self.filter_servers,
            "topicConfigSerializeWrapper": {
                "dataVersion": self.data_version.to_json(),
                "topicConfigTable": topics,
            },
        });
        object.to_string().into_bytes()
    }
}

impl RegisteredVersion {
    /// # Errors
    /// [`BodyError`] if a field is no number.
    pub fn from_json(value: &Value) -> Result<RegisteredVersion, BodyError> {
        Ok(RegisteredVersion {
            state_version: long_or(value, "stateVersion", 0)?,
            timestamp: long_or(value, "timestamp", 0)?,
            counter: long_or(value, "counter", 0)?,
        })
    }

    pub fn to_json(self) -> Value {
        json!({"counter": self.counter, "stateVersion": self.state_version, "timestamp": self.timestamp})
    }
}

impl RegisteredTopic {
    fn from_json(value: &Value) -> Result<RegisteredTopic, BodyError> {
        Ok(RegisteredTopic {
            read_queues: int(value, "readQueueNums")?,
            write_queues: int(value, "writeQueueNums")?,
            perm: int(value, "perm")?,
            filter_type: opt_text(value, "topicFilterType")?.unwrap_or_else(|| "SINGLE_TAG".to_owned()),
            sys_flag: int_or(value, "topicSysFlag", 0)?,
            order: flag(value, "order")?,
            attributes: attributes(value, "attributes")?,
        })
    }

    fn to_json(&self, name: &str) -> Value {
        json!({
            "attributes": self.attributes,
            "order": self.order,
            "perm": self.perm,
            "readQueueNums": self.read_queues,
            "topicFilterType": self.filter_type,
            "topicName": name,
            "topicSysFlag": self.sys_flag,
            "writeQueueNums": self.write_queues,
        })
    }

    fn from_line(line: &[u8]) -> Result<(String, RegisteredTopic), BodyError> {
        let wrong = BodyError::Wrong { field: "topic", expected: "name, three numbers, a filter type and attributes" };
        let read = || -> Option<(String, RegisteredTopic)> {
            let mut words = std::str::from_utf8(line).ok()?.splitn(6, ' ');
            let name = words.next()?.to_owned();
            let read_queues = words.next()?.parse().ok()?;
            let write_queues = words.next()?.parse().ok()?;
            let perm = words.next()?.parse().ok()?;
            let filter_type = words.next()?.to_owned();
            let attributes = match words.next() {
                Some(text) => {
                    attributes(&json!({"attributes": json::parse(text.as_bytes()).ok()?}), "attributes").ok()?
                }
                None => BTreeMap::new(),
            };
            let topic =
                RegisteredTopic { read_queues, write_queues, perm, filter_type, sys_flag: 0, order: false, attributes };
            Some((name, topic))
        };
        read().ok_or(wrong)
    }
}

fn attributes(object: &Value, field: &'static str) -> Result<BTreeMap<String, String>, BodyError> {
    map(object, field, |key, value| {
        let value = as_str(value).ok_or(BodyError::Wrong { field, expected: "a table of texts" })?;
        Ok((key.to_owned(), value.to_owned()))
    })
}

fn inflate(body: &[u8]) -> Result<Vec<u8>, BodyError> {
    let mut inflated = Vec::new();
    let limit = INFLATED_LEN_MAX as u64 + 1;
    let read = flate2::read::ZlibDecoder::new(body).take(limit).read_to_end(&mut inflated);
    let too_long = || format!("it grows beyond {INFLATED_LEN_MAX} bytes");
    match read {
        Ok(len) if len <= INFLATED_LEN_MAX => Ok(inflated),
        Ok(_) => Err(BodyError::Inflate { why: too_long() }),
        Err(error) => Err(BodyError::Inflate { why: error.to_string() }),
    }
}

/// What is left of an inflated body.
struct Parts<'a> {
    rest: &'a [u8],
}

impl<'a> Parts<'a> {
    fn count(&mut self) -> Result<u32, BodyError> {
        let (count, rest) = self.rest.split_first_chunk().ok_or_else(Self::cut)?;
        self.rest = rest;
        Ok(u32::from_be_bytes(*count))
    }

    fn sized(&mut self) -> Result<&'a [u8], BodyError> {
        let len = self.count()? as usize;
        let (part, rest) = self.rest.split_at_checked(len).ok_or_else(Self::cut)?;
        self.rest = rest;
        Ok(part)
    }

    fn cut() -> BodyError {
        BodyError::Inflate { why: "its content is cut".to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::ZlibEncoder;

    use super::*;

    fn topic(read_queues: i32, write_queues: i32) -> RegisteredTopic {
        RegisteredTopic {
            read_queues,
            write_queues,
            perm: 6,
            filter_type: "SINGLE_TAG".to_owned(),
            sys_flag: 0,
            order: false,
            attributes: BTreeMap::new(),
        }
    }

    fn compress(parts: &[&[u8]]) -> Vec<u8> {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
        parts.iter().for_each(|part| encoder.write_all(part).unwrap());
        encoder.finish().unwrap()
    }

    /// Golden vector of remoting.md 9.5, inflated.
    const GOLDEN: [&[u8]; 7] = [
        b"\0\0\0\x2c{\"counter\":0,\"stateVersion\":0,\"timestamp\":1}",
        b"\0\0\0\x01",
        b"\0\0\0\x17T 16 16 6 SINGLE_TAG {}",
        b"\0\0\0\x02[]",
        b"\0\0\0\0",
        b"",
        b"",
    ];

    #[test]
    fn the_golden_compressed_body_is_read() {
        let registration = BrokerRegistration::decode_compressed(&compress(&GOLDEN)).unwrap();
        let expected = BrokerRegistration {
            data_version: RegisteredVersion { state_version: 0, timestamp: 1, counter: 0 },
            topics: BTreeMap::from([("T".to_owned(), topic(16, 16))]),
            filter_servers: Vec::new(),
        };
        assert_eq!(registration, expected);
    }

    #[test]
    fn a_plain_body_of_a_java_broker_is_read() {
        let body = r#"{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":11,"timestamp":1795975490115},"topicConfigTable":{"TopicC":{"order":true,"perm":6,"readQueueNums":2,"topicFilterType":"SINGLE_TAG","topicName":"TopicC","topicSysFlag":0,"writeQueueNums":2},"TopicA":{"order":false,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG","topicName":"TopicA","topicSysFlag":0,"writeQueueNums":4}}}}"#;
        let registration = BrokerRegistration::decode(body.as_bytes()).unwrap();
        let version = RegisteredVersion { state_version: 0, timestamp: 1_795_975_490_115, counter: 11 };
        let topics = BTreeMap::from([
            ("TopicA".to_owned(), topic(4, 4)),
            ("TopicC".to_owned(), RegisteredTopic { order: true, ..topic(2, 2) }),
        ]);
        let expected = BrokerRegistration { data_version: version, topics, filter_servers: Vec::new() };
        assert_eq!(registration, expected);
        assert_eq!(BrokerRegistration::decode(&expected.encode()).unwrap(), expected);
    }

    #[test]
    fn attributes_with_blanks_survive_in_a_compressed_body() {
        let line = br#"T 1 2 6 SINGLE_TAG {"+message.type": "FIFO"}"#;
        let (name, read) = RegisteredTopic::from_line(line).unwrap();
        let attributes = BTreeMap::from([("+message.type".to_owned(), "FIFO".to_owned())]);
        assert_eq!((name.as_str(), read), ("T", RegisteredTopic { attributes, ..topic(1, 2) }));
        assert_eq!(RegisteredTopic::from_line(b"T 1 2 6 SINGLE_TAG").unwrap().1, topic(1, 2));
        assert!(RegisteredTopic::from_line(b"T 1 2 6").is_err());
        assert!(RegisteredTopic::from_line(b"T 1 x 6 SINGLE_TAG {}").is_err());
    }

    #[test]
    fn a_compressed_body_that_is_cut_or_lies_about_lengths_is_refused() {
        let whole = GOLDEN.concat();
        let last_part_len = GOLDEN[4].len();
        for len in 0..whole.len() - last_part_len {
            assert!(BrokerRegistration::decode_compressed(&compress(&[&whole[..len]])).is_err(), "{len}");
        }
        let compressed = compress(&GOLDEN);
        for len in 0..compressed.len() - 4 {
            assert!(BrokerRegistration::decode_compressed(&compressed[..len]).is_err(), "{len}");
        }
        let many_topics = compress(&[GOLDEN[0], b"\xff\xff\xff\xff", GOLDEN[2]]);
        assert!(BrokerRegistration::decode_compressed(&many_topics).is_err());
        assert!(BrokerRegistration::decode_compressed(b"no zlib stream").is_err());
    }

    #[test]
    fn a_body_that_inflates_beyond_the_limit_is_refused() {
        let zeros = vec![0; INFLATED_LEN_MAX];
        assert_eq!(inflate(&compress(&[&zeros])).unwrap().len(), INFLATED_LEN_MAX);
        let error = inflate(&compress(&[&zeros, b"x"])).unwrap_err().to_string();
        assert_eq!(error, "the body cannot be inflated: it grows beyond 16777216 bytes");
    }
}
