//! All brokers that a name server knows (106). Source: remoting.md 3.17.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::body::{BodyError, map, parse_object};
use super::route::BrokerData;
use crate::types::json::as_str;

/// Brokers by name, and their names by cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterInfo {
    pub brokers: BTreeMap<String, BrokerData>,
    pub clusters: BTreeMap<String, Vec<String>>,
}

impl ClusterInfo {
    /// # Errors
    /// [`BodyError`] if this is no JSON object or an entry is not whole.
    pub fn decode(body: &[u8]) -> Result<ClusterInfo, BodyError> {
        let object = parse_object(body)?;
        let field = "clusterAddrTable";
        let names = |value: &Value| -> Option<Vec<String>> {
            value.as_array()?.iter().map(|name| as_str(name).map(str::to_owned)).collect()
        };
        Ok(ClusterInfo {
            brokers: map(&object, "brokerAddrTable", |name, value| {
                Ok((name.to_owned(), BrokerData::from_json(value)?))
            })?,
            clusters: map(&object, field, |cluster, value| {
                let names = names(value).ok_or(BodyError::Wrong { field, expected: "a table of broker names" })?;
                Ok((cluster.to_owned(), names))
            })?,
        })
    }

    pub fn encode(&self) -> Vec<u8> {
        let brokers: BTreeMap<&str, Value> =
            self.brokers.iter().map(|(name, broker)| (name.as_str(), broker.to_json())).collect();
        json!({"brokerAddrTable": brokers, "clusterAddrTable": self.clusters}).to_string().into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cluster_info_has_quoted_broker_ids_and_comes_back() {
        let broker = BrokerData {
            cluster: "DefaultCluster".to_owned(),
            broker_name: "broker-a".to_owned(),
            addresses: BTreeMap::from([(0, "127.0.0.1:30911".to_owned())]),
        };
        let info = ClusterInfo {
            brokers: BTreeMap::from([("broker-a".to_owned(), broker)]),
            clusters: BTreeMap::from([("DefaultCluster".to_owned(), vec!["broker-a".to_owned()])]),
        };
        let body = r#"{"brokerAddrTable":{"broker-a":{"brokerAddrs":{"0":"127.0.0.1:30911"},"brokerName":"broker-a","cluster":"DefaultCluster"}},"clusterAddrTable":{"DefaultCluster":["broker-a"]}}"#;
        assert_eq!(String::from_utf8(info.encode()).unwrap(), body);
        assert_eq!(ClusterInfo::decode(body.as_bytes()).unwrap(), info);
        let from_java = body.replace(r#"{"0":"#, "{0:");
        assert_eq!(ClusterInfo::decode(from_java.as_bytes()).unwrap(), info);
        assert!(ClusterInfo::decode(br#"{"clusterAddrTable":{"c":[1]}}"#).is_err());
    }
}
