//! Every metric that the node shows: name, kind, unit, labels and meaning. `docs/METRICS.md` is made of this table, and a
//! test keeps it so.
//!
//! Names that begin with `rocketmq_` are those that Apache RocketMQ 5.3's broker shows on its own Prometheus page, with
//! their labels as far as this node knows them; `process_` is what Prometheus' client libraries agree on; the rest is ours.
//! Beside its own labels each sample has `cluster`, `node_id` (the broker's name) and `node_type` (`broker`).

/// What a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows, from the start of the node on.
    Counter,
    Gauge,
    Histogram,
}

/// One metric.
#[derive(Debug)]
pub struct Metric {
    pub name: &'static str,
    pub kind: Kind,
    pub unit: &'static str,
    pub labels: &'static [&'static str],
    pub help: &'static str,
}

type Labels = &'static [&'static str];

impl Metric {
    pub(super) const fn counter(name: &'static str, unit: &'static str, labels: Labels, help: &'static str) -> Metric {
        Metric { name, kind: Kind::Counter, unit, labels, help }
    }

    pub(super) const fn gauge(name: &'static str, unit: &'static str, labels: Labels, help: &'static str) -> Metric {
        Metric { name, kind: Kind::Gauge, unit, labels, help }
    }

    pub(super) const fn histogram(
        name: &'static str,
        unit: &'static str,
        labels: Labels,
        help: &'static str,
    ) -> Metric {
        Metric { name, kind: Kind::Histogram, unit, labels, help }
    }
}

/// Declares the metrics and the list of them.
macro_rules! metrics {
    ($($item:ident = $kind:ident($name:literal, $unit:literal, $labels:expr, $help:literal);)*) => {
        $(pub static $item: Metric = Metric::$kind($name, $unit, $labels, $help);)*
        /// All of them, in the order of the documentation.
        pub static ALL: &[&Metric] = &[$(&$item),*];
    };
}

const STORAGE: Labels = &["storage_type", "storage_medium"];
const READERS: Labels = &["topic", "consumer_group", "is_retry", "is_system"];
const THREAD: Labels = &["thread"];
const EXECUTOR: Labels = &["executor", "core"];

metrics! {
    MESSAGES_IN = counter("rocketmq_messages_in_total", "messages", &["topic", "message_type", "is_system"],
        "Messages that producers sent and that were stored; type is normal or delay.");
    THROUGHPUT_IN = counter("rocketmq_throughput_in_total", "bytes", &["topic", "message_type", "is_system"],
        "Bytes of them in the commit log.");
    MESSAGE_SIZE = histogram("rocketmq_message_size", "bytes", &["topic", "message_type", "is_system"],
        "Sizes of them in the commit log.");
    MESSAGES_OUT = counter("rocketmq_messages_out_total", "messages", &["topic", "consumer_group", "is_system"],
        "Messages that pulls gave out.");
    THROUGHPUT_OUT = counter("rocketmq_throughput_out_total", "bytes", &["topic", "consumer_group", "is_system"],
        "Bytes of them.");
    SENT_TO_DLQ = counter("rocketmq_send_to_dlq_messages_total", "messages", &[],
        "Messages that became dead letters, of all groups.");
    CONSUMER_LAG = gauge("rocketmq_consumer_lag_messages", "messages", READERS,
        "Messages behind the group's consumer offset: not consumed, or not said to be.");
    CONSUMER_INFLIGHT = gauge("rocketmq_consumer_inflight_messages", "messages", READERS,
        "Of these, the ones that a pull has given out.");
    CONSUMER_READY = gauge("rocketmq_consumer_ready_messages", "messages", READERS,
        "Of these, the ones that no pull has given out.");
    PRODUCER_CONNECTIONS = gauge("rocketmq_producer_connections", "connections", &["protocol_type"],
        "Connections in producer groups, once for each group.");
    CONSUMER_CONNECTIONS = gauge("rocketmq_consumer_connections", "connections",
        &["consumer_group", "consume_mode", "protocol_type", "is_system"],
        "Connections in consumer groups.");
    RPC_LATENCY = histogram("rocketmq_rpc_latency_milliseconds", "milliseconds",
        &["protocol_type", "request_code", "response_code", "is_long_polling", "result"],
        "From the arrival of a request to its answer. Long polling: the pull was held for messages to come.");
    TOPIC_CREATE_TIME = histogram("rocketmq_topic_create_execution_time_milliseconds", "milliseconds",
        &["invocation_status"],
        "From the wish for a topic to its being on disk; of requests to make or change one, too.");
    GROUP_CREATE_TIME = histogram("rocketmq_consumer_group_create_execution_time_milliseconds", "milliseconds",
        &["invocation_status"],
        "From the wish for a consumer group to its being on disk.");
    TOPIC_NUMBER = gauge("rocketmq_topic_number", "topics", &[], "Topics, the broker's own included.");
    GROUP_NUMBER = gauge("rocketmq_consumer_group_number", "groups", &[],
        "Consumer groups, the broker's own included.");
    BROKER_PERMISSION = gauge("rocketmq_broker_permission", "bits", &[],
        "4: reads, 2: writes. Without 2 the node takes no messages.");
    PROCESSOR_WATERMARK = gauge("rocketmq_processor_watermark", "requests", &["processor"],
        "Requests that wait. Only sends do: for the writer core and their flush.");
    STORAGE_SIZE = gauge("rocketmq_storage_size_bytes", "bytes", STORAGE,
        "Bytes in use on the file system of the commit log.");
    STORAGE_FLUSH_BEHIND = gauge("rocketmq_storage_flush_behind_bytes", "bytes", STORAGE,
        "Bytes of the log that are not on stable storage.");
    STORAGE_DISPATCH_BEHIND = gauge("rocketmq_storage_dispatch_behind_bytes", "bytes", STORAGE,
        "Bytes of messages that consume queues do not show yet.");
    STORAGE_RESERVE_TIME = gauge("rocketmq_storage_message_reserve_time_milliseconds", "milliseconds", STORAGE,
        "Age of the oldest message.");

    READY = gauge("kerolox_ready", "", &[], "1 while /readyz says 200.");
    HEALTH = gauge("kerolox_health", "", &["state"], "1 for the state that the node is in, as kerolox status names it.");
    UPTIME = gauge("kerolox_uptime_seconds", "seconds", &[], "Since the start.");
    BUILD_INFO = gauge("kerolox_build_info", "", &["version"], "1; the version is a label.");
    FLUSH_POLICY = gauge("kerolox_flush_policy_info", "", &["mode", "append", "sync_call"],
        "1; how messages reach stable storage (flush.mode, store.append, flush.sync_call) is in the labels.");

    PUT_DURATION = histogram("kerolox_put_duration_seconds", "seconds", &[],
        "From a message's (or batch's) arrival to its answer, if it was stored.");
    STAGE_DURATION = histogram("kerolox_stage_duration_seconds", "seconds", &["stage"],
        "Time of a stage, each put counted. socket: from the first message of a turn to its being handed over. queue: the wait for the writer core. append: into the log. flush: the wait for stable storage, of who waits for it. dispatch: from the log into the consume queue, each message counted. reply: the way back to the connection's core.");
    FLUSH_DURATION = histogram("kerolox_flush_duration_seconds", "seconds", &[],
        "Time of a flush, each flush counted.");
    TURN_PUTS = histogram("kerolox_turn_puts", "puts", &[], "Puts that share a turn of the writer core.");
    FLUSH_PUTS = histogram("kerolox_flush_puts", "puts", &[], "Puts that share a flush.");
    PUTS_FAILED = counter("kerolox_puts_failed_total", "puts", &[], "Puts that were not stored.");
    GETS_FOUND = counter("kerolox_gets_found_total", "gets", &[], "Pulls that found messages.");
    GETS_MISSED = counter("kerolox_gets_missed_total", "gets", &[], "Pulls that found none.");
    SLOW_REQUESTS = counter("kerolox_slow_requests_total", "requests", &[],
        "Requests that took log.slow_ms or longer.");

    LOG_OFFSET = gauge("kerolox_log_offset_bytes", "bytes", &["position"],
        "Physical offsets: min, confirm (shown to readers), flushed, appended.");
    LOSS_WINDOW_LEN = gauge("kerolox_loss_window_bytes", "bytes", &[], "What a loss of power would take now.");
    LOSS_WINDOW_AGE = gauge("kerolox_loss_window_seconds", "seconds", &[], "Age of the oldest such byte.");
    INFLIGHT_PUTS = gauge("kerolox_inflight_puts", "puts", &[], "Puts between their arrival and their answer.");
    INFLIGHT_LEN = gauge("kerolox_inflight_put_bytes", "bytes", &[], "Bytes of them.");
    INFLIGHT_PUTS_MAX = gauge("kerolox_inflight_puts_max", "puts", &[], "How many there may be.");
    TURN_AGE = gauge("kerolox_turn_seconds", "seconds", &[], "How long the writer's present turn has been at it.");
    HEAD_WAIT = gauge("kerolox_put_head_wait_seconds", "seconds", &[],
        "How long the oldest put of that turn has waited.");
    RING_DEPTH = gauge("kerolox_ring_depth", "batches", &["ring", "shard"],
        "Batches in a ring between cores: submit (to the writer), reply (back), dispatch (to the builder), keys (to the index).");
    RING_CAPACITY = gauge("kerolox_ring_capacity", "batches", &["ring"], "How many such a ring holds.");

    PUTS_OVERLOADED = counter("kerolox_puts_overloaded_total", "puts", &[],
        "Puts refused because too many were on their way ([OVERLOAD]).");
    PUTS_EXPIRED = counter("kerolox_puts_expired_total", "puts", &[],
        "Puts refused because they waited too long for the writer ([TIMEOUT_CLEAN_QUEUE]).");
    FLUSH_TIMEOUTS = counter("kerolox_flush_timeouts_total", "puts", &[],
        "Answers FLUSH_DISK_TIMEOUT, or not written in time.");
    DISPATCH_STALLS = counter("kerolox_dispatch_stalls_total", "turns", &[],
        "Times that the writer waited for a builder whose ring was full.");
    UNSHOWN_STALLS = counter("kerolox_unshown_stalls_total", "turns", &[],
        "Times that the writer waited because too much was written and not shown.");
    COLD_READS = counter("kerolox_cold_reads_total", "reads", &[], "Reads that went to the disk.");
    COLD_READS_QUEUED = counter("kerolox_cold_reads_queued_total", "reads", &[], "Of these, the ones that waited for a place.");
    COLD_READS_REFUSED = counter("kerolox_cold_reads_refused_total", "reads", &[], "And the ones that were refused.");
    SCAN_GETS_PACED = counter(
        "kerolox_scan_gets_paced_total", "gets", &[],
        "Pulls of groups that scan old messages which waited, so that others find the core free."
    );
    READ_AHEAD = counter("kerolox_read_ahead_bytes_total", "bytes", &[], "Read ahead of groups that scan the log.");
    CACHE_DROPPED = counter("kerolox_cache_dropped_bytes_total", "bytes", &[],
        "Dropped from the page cache behind them.");
    UNITS_SKIPPED = counter("kerolox_units_skipped_total", "units", &[], "Units that lead to no message of their queue.");
    RECORDS_UNREADABLE = counter("kerolox_records_unreadable_total", "records", &[], "Records that the disk does not give.");
    SEGMENTS_EXPIRED = counter("kerolox_segments_expired_total", "segments", &[], "Segments deleted because they had expired.");
    SEGMENTS_FORCED = counter("kerolox_segments_forced_total", "segments", &[],
        "Segments deleted before their time because the disk was too full.");
    SEGMENTS_HELD = counter("kerolox_segments_held_total", "segments", &[], "Deleted segments that a reader held for too long.");
    DERIVED_EXPIRED = counter("kerolox_derived_files_expired_total", "files", &[],
        "Consume queue and index files deleted after their segments.");
    TOPICS_DELETED = counter("kerolox_topics_deleted_total", "topics", &[], "Topics deleted with their messages.");
    QUARANTINED_REGIONS = gauge("kerolox_quarantined_regions", "regions", &[],
        "Damaged regions of the log that are stepped over.");
    QUARANTINED_LEN = gauge("kerolox_quarantined_bytes", "bytes", &[], "Bytes of them.");

    HOLDS = gauge("kerolox_holds", "pulls", &["shard"], "Pulls held for messages to come.");
    CONNECTIONS = gauge("kerolox_connections", "connections", &[], "Open connections of clients.");
    UNFINISHED_LEN = gauge("kerolox_unfinished_frame_bytes", "bytes", &[], "Bytes of frames that have not arrived whole.");
    UNSENT_LEN = gauge("kerolox_unsent_bytes", "bytes", &["shard"],
        "Bytes of answers that wait for slow peers, as of the last second.");
    DELAYED = gauge("kerolox_delayed_messages", "messages", &["level"], "Messages that wait for their delay to end.");

    EXECUTOR_BEAT_AGE = gauge("kerolox_executor_beat_age_seconds", "seconds", EXECUTOR,
        "Since the executor's last heartbeat, which is due every 0.1 s.");
    EXECUTOR_GAP = gauge("kerolox_executor_beat_gap_max_seconds", "seconds", EXECUTOR,
        "The longest time between two heartbeats: a stall, or the host gave no time.");
    THREAD_CPU = counter("kerolox_thread_cpu_seconds_total", "seconds", THREAD,
        "Processor time of each thread, executors by their role (writer, shard 0); its rate is the busy share.");
    THREAD_WAIT = counter("kerolox_thread_wait_seconds_total", "seconds", THREAD,
        "Time that the thread was ready to run and the host ran others.");
    DISK_USED = gauge("kerolox_disk_used_bytes", "bytes", &["disk"],
        "In use on the file system of commitlog or consumequeue.");
    DISK_AVAILABLE = gauge("kerolox_disk_available_bytes", "bytes", &["disk"], "Available on it.");
    DISK_FULL = gauge("kerolox_disk_full", "", &[], "1 while the disk is too full to take messages.");
    MEMORY = gauge("kerolox_memory_bytes", "bytes", &["kind"],
        "Resident memory: anon is the node's own, file is mapped files.");
    CENSUS_MISSED = counter("kerolox_census_missed_total", "pages", &[],
        "Pages without consumer lag, connections and delays, since the control core did not answer in time.");
    RESIDENT_MEMORY = gauge("process_resident_memory_bytes", "bytes", &[], "Resident memory, mapped files included.");
    OPEN_FDS = gauge("process_open_fds", "descriptors", &[], "Open file descriptors.");
    MAX_FDS = gauge("process_max_fds", "descriptors", &[], "How many there may be.");
    PROCESS_CPU = counter("process_cpu_seconds_total", "seconds", &[], "Processor time of the process.");
    START_TIME = gauge("process_start_time_seconds", "seconds", &[], "Start of the process, since the epoch.");
}

/// The part of `docs/METRICS.md` that is this table.
#[cfg(test)]
fn documented() -> String {
    let mut text = String::from("| metric | kind | unit | labels | meaning |\n|---|---|---|---|---|\n");
    for Metric { name, kind, unit, labels, help } in ALL {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
        text.push_str(&format!("| `{name}` | {kind} | {unit} | {} | {help} |\n", labels.join(", ")));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_of_the_form_that_prometheus_wants() {
        let names: BTreeSet<_> = ALL.iter().map(|metric| metric.name).collect();
        assert_eq!(names.len(), ALL.len());
        for Metric { name, kind, labels, help, .. } in ALL {
            let is_plain = |text: &str| text.chars().all(|c| c.is_ascii_lowercase() || c == '_');
            assert!(is_plain(name) && labels.iter().all(|label| is_plain(label)), "{name}");
            assert!(name.starts_with("kerolox_") || name.starts_with("rocketmq_") || name.starts_with("process_"));
            assert_eq!(name.ends_with("_total"), *kind == Kind::Counter, "{name}");
            assert!(help.ends_with('.') && !help.contains('|'), "{name}: {help}");
        }
    }

    #[test]
    fn the_documentation_has_this_table() {
        let documentation = include_str!("../../docs/METRICS.md");
        let table = documented();
        assert!(documentation.contains(&table), "docs/METRICS.md must have this table:\n{table}");
    }
}
