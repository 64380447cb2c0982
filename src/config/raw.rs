//! The settings file as it is written: every key optional, every value unchecked and with its place in the text.
//!
//! A key that is not here is refused by serde. What a value may be is decided in `mod.rs`, where the checks are.

use serde::Deserialize;
use toml::{Spanned, Value};

/// A value as found in the file, if it is there at all.
pub(super) type Raw = Option<Spanned<Value>>;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawConfig {
    pub broker: RawBroker,
    pub net: RawNet,
    pub nameserver: RawNameserver,
    pub cores: RawCores,
    pub store: RawStore,
    pub flush: RawFlush,
    pub retention: RawRetention,
    pub disk: RawDisk,
    pub recovery: RawRecovery,
    pub read: RawRead,
    pub limits: RawLimits,
    pub metrics: RawMetrics,
    pub log: RawLog,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawBroker {
    pub name: Raw,
    pub cluster: Raw,
    pub id: Raw,
    pub profile: Raw,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawNet {
    pub listen: Raw,
    pub advertise: Raw,
    pub vip: Raw,
    pub max_connections: Raw,
    pub idle_timeout_ms: Raw,
    pub frame_stall_ms: Raw,
    pub write_stall_ms: Raw,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawNameserver {
    pub embedded: Raw,
    pub register: Raw,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawCores {
    pub writer: Raw,
    pub shards: Raw,
    pub spin_us: Raw,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawStore {
    pub root: Raw,
    pub append: Raw,
    pub commitlog_file_size: Raw,
    pub consumequeue_file_size: Raw,
    pub index_slots: Raw,
    pub index_entries: Raw,
    pub zero_ahead: Raw,
    pub index: Raw,
    pub property_crc: Raw,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawFlush {
    pub mode: Raw,
    pub sync_call: Raw,
    pub interval_ms: Raw,
    pub least_pages: Raw,
    pub thorough_interval_ms: Raw,
    pub sync_timeout_ms: Raw,
    pub consumequeue_interval_ms: Raw,
    pub consumequeue_least_pages: Raw,
    pub consumequeue_thorough_interval_ms: Raw,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawRetention {
    pub hours: Raw,
    pub delete_when: Raw,
    pub check_interval_ms: Raw,
    pub batch_max: Raw,
    pub file_pause_ms: Raw,
    pub consumequeue_pause_ms: Raw,
    pub held_report_ms: Raw,
    pub retry_ms: Raw,
    pub force_when_full: Raw,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawDisk {
    pub max_used_percent: Raw,
    pub clean_percent: Raw,
    pub warning_percent: Raw,
    pub min_free_clean: Raw,
    pub min_free_warning: Raw,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawRecovery {
    pub check_crc: Raw,
    pub verify_property_crc: Raw,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawRead {
    pub memory_bytes_max: Raw,
    pub memory_count_max: Raw,
    pub disk_bytes_max: Raw,
    pub disk_count_max: Raw,
    pub memory_percent: Raw,
    pub filter_bytes_max: Raw,
    pub queue_files_max: Raw,
    pub query_max: Raw,
    pub cold_reads_per_group: Raw,
    pub scan_core_percent: Raw,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawLimits {
    pub max_message_size: Raw,
    pub auto_create_topic: Raw,
    pub auto_create_group: Raw,
    pub default_topic_queue_nums: Raw,
    pub put_inflight_bytes: Raw,
    pub put_inflight_messages: Raw,
    pub put_wait_ms: Raw,
    pub holds_per_shard: Raw,
    pub frame_bytes_in_progress: Raw,
    pub delay_levels: Raw,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawMetrics {
    pub listen: Raw,
    pub series_max: Raw,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawLog {
    pub level: Raw,
    pub format: Raw,
    pub slow_ms: Raw,
}
