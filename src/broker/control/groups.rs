//! The table of consumer groups. Source: remoting.md 6.2, 6.3; store.md 1.6.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use crate::broker::names::{self, BadName};
use crate::format::config_files::{DataVersion, GroupConfig, SubscriptionGroupsFile};
use crate::types::Timestamp;

/// Groups there may be: any client can make groups by a heartbeat.
const GROUP_COUNT_MAX: usize = 50_000;

/// Groups of tools and of the broker's own workings, present at start.
const BUILT_IN: [&str; 8] = [
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS",
];

pub(super) struct GroupTable {
    groups: Arc<HashMap<Arc<str>, Arc<GroupConfig>>>,
    forbidden: BTreeMap<String, BTreeMap<String, i32>>,
    data_version: DataVersion,
    auto_create: bool,
}

impl GroupTable {
    /// The built-in groups with those of the file over them.
    pub(super) fn new(file: SubscriptionGroupsFile, auto_create: bool) -> GroupTable {
        let built_in = BUILT_IN.map(|name| (name.to_owned(), GroupConfig::new(name)));
        let mut groups = BTreeMap::from(built_in);
        groups.extend(file.groups);
        let shared = groups.into_iter().map(|(name, config)| (name.into(), Arc::new(config))).collect();
        GroupTable { groups: Arc::new(shared), forbidden: file.forbidden, data_version: file.data_version, auto_create }
    }

    /// The shared table behind [`Directory::groups`](crate::broker::Directory::groups).
    pub(super) fn shared(&self) -> &Arc<HashMap<Arc<str>, Arc<GroupConfig>>> {
        &self.groups
    }

    pub(super) fn get(&self, group: &str) -> Option<&Arc<GroupConfig>> {
        self.groups.get(group)
    }

    /// Makes a group that a client names; false: it exists.
    pub(super) fn ensure(&mut self, now: Timestamp, group: &str) -> Result<bool, NoGroup> {
        if self.groups.contains_key(group) {
            return Ok(false);
        }
        names::check_group(group)?;
        if !self.auto_create {
            return Err(NoGroup::AutoCreateOff { group: group.to_owned() });
        }
        if self.groups.len() >= GROUP_COUNT_MAX {
            return Err(NoGroup::Full { group: group.to_owned() });
        }
        tracing::info!(group, "group made");
        self.data_version = self.data_version.next(now);
        Arc::make_mut(&mut self.groups).insert(group.into(), Arc::new(GroupConfig::new(group)));
        Ok(true)
    }

    /// Content of `subscriptionGroup.json`.
    pub(super) fn encode(&self) -> Vec<u8> {
        let groups = self.groups.iter().map(|(name, config)| (name.to_string(), GroupConfig::clone(config))).collect();
        let file =
            SubscriptionGroupsFile { groups, forbidden: self.forbidden.clone(), data_version: self.data_version };
        file.encode()
    }
}

/// Why a group that a request needs was not made: code 26.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoGroup {
    BadName(BadName),
    /// `limits.auto_create_group` is off.
    AutoCreateOff {
        group: String,
    },
    /// There are as many groups as there may be.
    Full {
        group: String,
    },
}

impl From<BadName> for NoGroup {
    fn from(bad: BadName) -> NoGroup {
        NoGroup::BadName(bad)
    }
}

impl fmt::Display for NoGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoGroup::BadName(bad) => bad.fmt(f),
            NoGroup::AutoCreateOff { group } => {
                write!(f, "consumer group {group} does not exist, and groups are not created by using them here")
            }
            NoGroup::Full { group } => {
                write!(f, "no room for consumer group {group}: {GROUP_COUNT_MAX} are allowed")
            }
        }
    }
}

impl std::error::Error for NoGroup {}
