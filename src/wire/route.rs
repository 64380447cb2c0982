//! A topic's route (105): which brokers have it, and how many queues on each. Source: remoting.md 3.17.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::body::{BodyError, int, int_or, list, map, opt_text, parse_object, text};
use crate::types::json::as_str;

/// Where a topic is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteData {
    pub brokers: Vec<BrokerData>,
    pub queues: Vec<QueueData>,
    /// `broker-a:4;…` of an order topic.
    pub order_topic_conf: Option<String>,
}

/// The nodes that go by one broker name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerData {
    pub cluster: String,
    pub broker_name: String,
    /// `host:port` by broker id; 0 is the master, without which producers find no queue.
    pub addresses: BTreeMap<i64, String>,
}

/// A topic's queues on one broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueData {
    pub broker_name: String,
    pub read_queues: i32,
    pub write_queues: i32,
    /// 4 read, 2 write, 1 inherit.
    pub perm: i32,
    pub topic_sys_flag: i32,
}

impl RouteData {
    /// # Errors
    /// [`BodyError`] if this is no JSON object, or a broker or queue entry is not whole.
    pub fn decode(body: &[u8]) -> Result<RouteData, BodyError> {
        let object = parse_object(body)?;
        Ok(RouteData {
            brokers: list(&object, "brokerDatas", BrokerData::from_json)?,
            queues: list(&object, "queueDatas", QueueData::from_json)?,
            order_topic_conf: opt_text(&object, "orderTopicConf")?,
        })
    }

    /// Compact, with quoted ids in `brokerAddrs`: the one form that all clients read.
    pub fn encode(&self) -> Vec<u8> {
        let brokers: Vec<Value> = self.brokers.iter().map(BrokerData::to_json).collect();
        let queues: Vec<Value> = self.queues.iter().map(QueueData::to_json).collect();
        let mut object = json!({"brokerDatas": brokers, "filterServerTable": {}});
        if let Some(conf) = &self.order_topic_conf {
            object["orderTopicConf"] = json!(conf);
        }
        object["queueDatas"] = json!(queues);
        object.to_string().into_bytes()
    }
}

impl BrokerData {
    pub(super) fn from_json(value: &Value) -> Result<BrokerData, BodyError> {
        let field = "brokerAddrs";
        Ok(BrokerData {
            cluster: opt_text(value, "cluster")?.unwrap_or_default(),
            broker_name: text(value, "brokerName")?,
            addresses: map(value, field, |id, address| {
                let id = id.parse().ok();
                let address = as_str(address).map(str::to_owned);
                id.zip(address).ok_or(BodyError::Wrong { field, expected: "a table of addresses by broker id" })
            })?,
        })
    }

    pub(super) fn to_json(&self) -> Value {
        json!({"brokerAddrs": self.addresses, "brokerName": self.broker_name, "cluster": self.cluster})
    }
}

impl QueueData {
    fn from_json(value: &Value) -> Result<QueueData, BodyError> {
        Ok(QueueData {
            broker_name: text(value, "brokerName")?,
            read_queues: int(value, "readQueueNums")?,
            write_queues: int(value, "writeQueueNums")?,
            perm: int(value, "perm")?,
            topic_sys_flag: int_or(value, "topicSysFlag", 0)?,
        })
    }

    fn to_json(&self) -> Value {
        json!({
            "brokerName": self.broker_name,
            "perm": self.perm,
            "readQueueNums": self.read_queues,
            "topicSysFlag": self.topic_sys_flag,
            "writeQueueNums": self.write_queues,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route() -> RouteData {
        let broker_name = "broker-a".to_owned();
        RouteData {
            brokers: vec![BrokerData {
                cluster: "DefaultCluster".to_owned(),
                broker_name: broker_name.clone(),
                addresses: BTreeMap::from([(0, "127.0.0.1:30911".to_owned())]),
            }],
            queues: vec![QueueData { broker_name, read_queues: 4, write_queues: 4, perm: 6, topic_sys_flag: 0 }],
            order_topic_conf: None,
        }
    }

    /// Golden vector of remoting.md 9.5.
    const GOLDEN: &str = r#"{"brokerDatas":[{"brokerAddrs":{"0":"127.0.0.1:30911"},"brokerName":"broker-a","cluster":"DefaultCluster"}],"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}"#;

    #[test]
    fn the_golden_route_is_read_and_written() {
        assert_eq!(String::from_utf8(route().encode()).unwrap(), GOLDEN);
        assert_eq!(GOLDEN.len(), 235);
        assert_eq!(RouteData::decode(GOLDEN.as_bytes()).unwrap(), route());
    }

    #[test]
    fn broker_ids_without_quotes_are_read() {
        let old = GOLDEN.replace(r#""0":"#, "0:");
        assert_eq!(RouteData::decode(old.as_bytes()).unwrap(), route());
    }

    #[test]
    fn an_order_configuration_travels_along() {
        let ordered = RouteData { order_topic_conf: Some("broker-a:4".to_owned()), ..route() };
        assert_eq!(RouteData::decode(&ordered.encode()).unwrap(), ordered);
    }

    #[test]
    fn a_route_that_is_not_whole_is_refused() {
        assert_eq!(RouteData::decode(b"{}").unwrap(), RouteData::default());
        assert!(RouteData::decode(br#"{"brokerDatas":[{"brokerAddrs":{"x":"a:1"},"brokerName":"b"}]}"#).is_err());
        assert!(RouteData::decode(br#"{"queueDatas":[{"brokerName":"b"}]}"#).is_err());
    }
}
