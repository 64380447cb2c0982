//! What this node tells outside name servers: that it lives and which topics it has (103), or that it leaves (104).
//!
//! `net` sends a registration to each server at start, after 10 s, then every 30 s, and whenever
//! [`Dirty::topics`](crate::broker::Dirty) says that topics have changed. Source: remoting.md 3.17.

use std::fmt;

use bytes::BytesMut;

use crate::broker::control::ControlSettings;
use crate::broker::control::topics::TopicTable;
use crate::format::config_files::TopicConfig;
use crate::format::record::body_crc;
use crate::wire::code::request;
use crate::wire::registration::{BrokerRegistration, RegisteredTopic, RegisteredVersion};
use crate::wire::{FRAME_LEN_MAX, HeaderType, encode_request};

/// Room in a frame for all but the body.
const HEAD_LEN_MAX: usize = 64 * 1024;

/// A request to an outside name server, the same for all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameServerRequest {
    pub code: i32,
    pub ext: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
    version: i32,
}

impl NameServerRequest {
    /// Appends the frame. `flag`: [`FLAG_ONEWAY`](crate::wire::FLAG_ONEWAY) or 0.
    pub fn encode(&self, out: &mut BytesMut, opaque: i32, flag: i32) {
        let ext: Vec<(&str, &str)> = self.ext.iter().map(|(name, value)| (*name, value.as_str())).collect();
        encode_request(out, HeaderType::Json, self.code, self.version, opaque, flag, &ext, &self.body);
    }
}

/// The topics do not fit one frame, so name servers cannot be told of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegistrationTooLong {
    pub len: usize,
}

impl fmt::Display for RegistrationTooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a registration of {} bytes does not fit a frame of {FRAME_LEN_MAX}; delete topics", self.len)
    }
}

impl std::error::Error for RegistrationTooLong {}

pub(super) fn register(
    settings: &ControlSettings,
    topics: &TopicTable,
) -> Result<NameServerRequest, RegistrationTooLong> {
    let version = topics.data_version();
    let registration = BrokerRegistration {
        data_version: RegisteredVersion {
            state_version: version.state_version,
            timestamp: version.timestamp.0,
            counter: version.counter,
        },
        topics: topics.shared().iter().map(|(name, topic)| (name.to_string(), registered(&topic.config))).collect(),
        filter_servers: Vec::new(),
    };
    let body = registration.encode();
    if body.len() > FRAME_LEN_MAX - HEAD_LEN_MAX {
        return Err(RegistrationTooLong { len: body.len() });
    }
    let mut ext = identity(settings);
    ext.push(("haServerAddr", settings.ha_address.clone()));
    ext.push(("bodyCrc32", body_crc(&body).to_string()));
    ext.push(("compressed", "false".to_owned()));
    Ok(NameServerRequest { code: request::REGISTER_BROKER, ext, body, version: settings.profile.version() })
}

pub(super) fn unregister(settings: &ControlSettings) -> NameServerRequest {
    let ext = identity(settings);
    let version = settings.profile.version();
    NameServerRequest { code: request::UNREGISTER_BROKER, ext, body: Vec::new(), version }
}

fn identity(settings: &ControlSettings) -> Vec<(&'static str, String)> {
    vec![
        ("brokerName", settings.broker_name.clone()),
        ("brokerAddr", settings.broker_address.clone()),
        ("clusterName", settings.cluster.clone()),
        ("brokerId", "0".to_owned()),
    ]
}

fn registered(config: &TopicConfig) -> RegisteredTopic {
    RegisteredTopic {
        read_queues: config.read_queue_nums,
        write_queues: config.write_queue_nums,
        perm: config.perm,
        filter_type: config.filter_type.name().to_owned(),
        sys_flag: config.sys_flag,
        order: config.order,
        attributes: config.attributes.clone(),
    }
}
