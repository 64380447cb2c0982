//! The name server's answers: where topics are, which brokers there are.
//!
//! What this node has is read from its live topic table, so a route is there the moment its topic is. Other brokers that
//! share this name server register and must keep doing so: one that is silent for 120 s, or whose connection closes, is
//! forgotten. Source: remoting.md 3.17.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::broker::control::ControlSettings;
use crate::broker::control::topics::TopicTable;
use crate::types::Timestamp;
use crate::wire::ConnId;
use crate::wire::cluster::ClusterInfo;
use crate::wire::headers::BrokerHeader;
use crate::wire::registration::RegisteredTopic;
use crate::wire::route::{BrokerData, QueueData, RouteData};

/// Silence after which a broker counts as gone, unless it asks for another time.
const BROKER_SILENCE_MS_MAX: i64 = 120_000;
/// Longest silence that a broker may ask for.
const ASKED_SILENCE_MS_MAX: i64 = 24 * 3_600_000;
/// Nodes that may be registered.
const NODE_COUNT_MAX: usize = 1_024;
/// Topics of all registered brokers together.
const TOPIC_COUNT_MAX: usize = 500_000;
const MASTER: i64 = 0;

#[derive(Debug, Default)]
pub(super) struct NameServer {
    /// By broker name. None is without a node.
    brokers: BTreeMap<String, ForeignBroker>,
    node_count: usize,
    topic_count: usize,
}

/// The nodes that go by one broker name, ours excepted.
#[derive(Debug, Default)]
struct ForeignBroker {
    cluster: String,
    nodes: BTreeMap<i64, Node>,
    topics: BTreeMap<String, TopicQueues>,
}

#[derive(Debug)]
struct Node {
    address: String,
    ha_address: String,
    conn: ConnId,
    seen: Timestamp,
    silence_ms_max: i64,
}

#[derive(Debug, PartialEq, Eq)]
struct TopicQueues {
    read_queues: i32,
    write_queues: i32,
    perm: i32,
    sys_flag: i32,
}

/// What a broker is told when it has registered: where its master is, if it is none itself.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Registered {
    pub(super) master_address: Option<String>,
    pub(super) ha_address: Option<String>,
}

/// Why a broker cannot register: code 1.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RegistrationRefused {
    /// It claims to be this node.
    OwnPlace {
        broker_name: String,
        address: String,
    },
    /// It tells of one topic only, which is the form for a change, but is not registered.
    Unknown {
        broker_name: String,
    },
    Full,
}

impl fmt::Display for RegistrationRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RegistrationRefused::OwnPlace { broker_name, address } => {
                write!(f, "id {MASTER} of broker {broker_name} is this node at {address}; choose another broker name")
            }
            RegistrationRefused::Unknown { broker_name } => {
                write!(f, "broker {broker_name} tells of a change but has not registered with all its topics")
            }
            RegistrationRefused::Full => {
                write!(f, "no room: {NODE_COUNT_MAX} brokers with {TOPIC_COUNT_MAX} topics are allowed")
            }
        }
    }
}

impl NameServer {
    /// Where `topic` is; none if nobody has it.
    pub(super) fn route(&self, own: &ControlSettings, topics: &TopicTable, topic: &str) -> Option<RouteData> {
        let mut route = RouteData::default();
        if let Some(found) = topics.get(topic) {
            let config = &found.config;
            route.brokers.push(self.own_broker(own));
            route.queues.push(QueueData {
                broker_name: own.broker_name.clone(),
                read_queues: config.read_queue_nums,
                write_queues: config.write_queue_nums,
                perm: config.perm,
                topic_sys_flag: config.sys_flag,
            });
        }
        for (name, broker) in &self.brokers {
            let Some(queues) = broker.topics.get(topic) else { continue };
            route.brokers.push(broker.data(name));
            route.queues.push(QueueData {
                broker_name: name.clone(),
                read_queues: queues.read_queues,
                write_queues: queues.write_queues,
                perm: queues.perm,
                topic_sys_flag: queues.sys_flag,
            });
        }
        (!route.queues.is_empty()).then_some(route)
    }

    /// All brokers.
    pub(super) fn clusters(&self, own: &ControlSettings) -> ClusterInfo {
        let mut info = ClusterInfo::default();
        let foreign = self.brokers.iter().map(|(name, broker)| broker.data(name));
        for data in foreign.chain([self.own_broker(own)]) {
            let names = info.clusters.entry(data.cluster.clone()).or_default();
            if !names.contains(&data.broker_name) {
                names.push(data.broker_name.clone());
            }
            // Ours comes last and holds the foreign nodes of its name, too.
            info.brokers.insert(data.broker_name.clone(), data);
        }
        info
    }

    /// All topics.
    pub(super) fn topic_names(&self, topics: &TopicTable) -> Vec<String> {
        let own = topics.shared().keys().map(AsRef::as_ref);
        let foreign = self.brokers.values().flat_map(|broker| broker.topics.keys()).map(String::as_str);
        let names: BTreeSet<&str> = own.chain(foreign).collect();
        names.into_iter().map(str::to_owned).collect()
    }

    /// A broker tells that it lives, and which topics it has. Topics it does not name again stay until it is gone, as
    /// in Java: a change is told with the changed topics alone.
    pub(super) fn register(
        &mut self,
        now: Timestamp,
        conn: ConnId,
        own: &ControlSettings,
        header: &BrokerHeader<'_>,
        topics: &BTreeMap<String, RegisteredTopic>,
    ) -> Result<Registered, RegistrationRefused> {
        let own_name = header.broker_name == own.broker_name;
        if own_name && header.broker_id == MASTER {
            if header.broker_addr == own.broker_address {
                return Ok(Registered::default());
            }
            let (broker_name, address) = (own.broker_name.clone(), own.broker_address.clone());
            return Err(RegistrationRefused::OwnPlace { broker_name, address });
        }
        let known = self.brokers.get(header.broker_name);
        let is_new = known.is_none_or(|broker| !broker.nodes.contains_key(&header.broker_id));
        if is_new && topics.len() == 1 {
            return Err(RegistrationRefused::Unknown { broker_name: header.broker_name.to_owned() });
        }
        let fresh = |topic: &&String| known.is_none_or(|broker| !broker.topics.contains_key(*topic));
        // Only a master's word on topics counts; those of our own name are ours to tell.
        let told = header.broker_id == MASTER;
        let fresh_count = if told { topics.keys().filter(fresh).count() } else { 0 };
        if self.node_count + usize::from(is_new) > NODE_COUNT_MAX || self.topic_count + fresh_count > TOPIC_COUNT_MAX {
            return Err(RegistrationRefused::Full);
        }
        self.node_count += usize::from(is_new);
        self.topic_count += fresh_count;
        let broker = self.brokers.entry(header.broker_name.to_owned()).or_default();
        header.cluster.clone_into(&mut broker.cluster);
        if is_new {
            tracing::info!(
                broker = header.broker_name,
                id = header.broker_id,
                address = header.broker_addr,
                "broker registered"
            );
            // A slave that has become master keeps its address: its old id is gone.
            let before = broker.nodes.len();
            broker.nodes.retain(|_, node| node.address != header.broker_addr);
            self.node_count -= before - broker.nodes.len();
        }
        let asked_ms = header.heartbeat_timeout_ms.filter(|ms| *ms > 0);
        let node = Node {
            address: header.broker_addr.to_owned(),
            ha_address: header.ha_server_addr.unwrap_or_default().to_owned(),
            conn,
            seen: now,
            silence_ms_max: asked_ms.unwrap_or(BROKER_SILENCE_MS_MAX).min(ASKED_SILENCE_MS_MAX),
        };
        broker.nodes.insert(header.broker_id, node);
        if told {
            for (name, topic) in topics {
                broker.topics.insert(name.clone(), TopicQueues::from(topic));
            }
            return Ok(Registered::default());
        }
        if own_name {
            let (master_address, ha_address) = (own.broker_address.clone(), own.ha_address.clone());
            return Ok(Registered { master_address: Some(master_address), ha_address: Some(ha_address) });
        }
        let master = broker.nodes.get(&MASTER);
        Ok(Registered {
            master_address: master.map(|node| node.address.clone()),
            ha_address: master.map(|node| node.ha_address.clone()),
        })
    }

    /// Forgets a topic of other brokers (of one cluster, if it is named) until they tell of it again.
    pub(super) fn forget_topic(&mut self, topic: &str, cluster: Option<&str>) {
        for broker in self.brokers.values_mut() {
            if cluster.is_none_or(|cluster| cluster == broker.cluster) && broker.topics.remove(topic).is_some() {
                self.topic_count -= 1;
            }
        }
    }

    /// A broker says that it leaves. One that is registered with another address under its name and id stays.
    pub(super) fn unregister(&mut self, header: &BrokerHeader<'_>) {
        self.retain(|name, id, node| {
            name != header.broker_name || *id != header.broker_id || node.address != header.broker_addr
        });
    }

    /// A broker says that it lives.
    pub(super) fn heartbeat(&mut self, now: Timestamp, header: &BrokerHeader<'_>) {
        let Some(broker) = self.brokers.get_mut(header.broker_name) else { return };
        for node in broker.nodes.values_mut().filter(|node| node.address == header.broker_addr) {
            node.seen = now;
        }
    }

    /// Forgets the brokers that registered on this connection last.
    pub(super) fn connection_closed(&mut self, conn: ConnId) {
        self.retain(|_, _, node| node.conn != conn);
    }

    /// Forgets the brokers that have been silent for too long, and gives their connections.
    pub(super) fn expire(&mut self, now: Timestamp) -> Vec<ConnId> {
        let mut silent = Vec::new();
        self.retain(|_, _, node| {
            let lives = now <= node.seen.plus_ms(node.silence_ms_max);
            if !lives {
                silent.push(node.conn);
            }
            lives
        });
        silent
    }

    /// Forgets nodes, and with its last node a broker and its topics.
    fn retain(&mut self, mut keep: impl FnMut(&str, &i64, &Node) -> bool) {
        let (mut node_count, mut topic_count) = (0, 0);
        self.brokers.retain(|name, broker| {
            broker.nodes.retain(|id, node| {
                let kept = keep(name, id, node);
                if !kept {
                    tracing::info!(broker = name, id, address = node.address, "broker gone");
                }
                kept
            });
            node_count += broker.nodes.len();
            if !broker.nodes.is_empty() {
                topic_count += broker.topics.len();
            }
            !broker.nodes.is_empty()
        });
        (self.node_count, self.topic_count) = (node_count, topic_count);
    }

    fn own_broker(&self, own: &ControlSettings) -> BrokerData {
        let mut data = match self.brokers.get(&own.broker_name) {
            Some(others) => others.data(&own.broker_name),
            None => {
                BrokerData { cluster: String::new(), broker_name: own.broker_name.clone(), addresses: BTreeMap::new() }
            }
        };
        data.cluster.clone_from(&own.cluster);
        data.addresses.insert(MASTER, own.broker_address.clone());
        data
    }
}

impl ForeignBroker {
    fn data(&self, name: &str) -> BrokerData {
        BrokerData {
            cluster: self.cluster.clone(),
            broker_name: name.to_owned(),
            addresses: self.nodes.iter().map(|(id, node)| (*id, node.address.clone())).collect(),
        }
    }
}

impl From<&RegisteredTopic> for TopicQueues {
    fn from(topic: &RegisteredTopic) -> TopicQueues {
        TopicQueues {
            read_queues: topic.read_queues,
            write_queues: topic.write_queues,
            perm: topic.perm,
            sys_flag: topic.sys_flag,
        }
    }
}
