//! What a run gives: one JSON object with the keys of OpenMessaging Benchmark's result files, so that their tools read
//! it, and keys of our own beside them.
//!
//! A number that was not measured has no key. All arrays have one value an interval of [`RunResult::interval_seconds`].
//! Publish, end-to-end and pull latencies are milliseconds; the publish *delay* (how late a message left, against its
//! intended time) is whole microseconds, as in OpenMessaging Benchmark.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_with::with_prefix;

use crate::load::plan::Plan;
use crate::sink::Kind;

with_prefix!(publish "publishLatency");
with_prefix!(delay "publishDelayLatency");
with_prefix!(end_to_end "endToEndLatency");
with_prefix!(pull "pullLatency");
with_prefix!(publish_total "aggregatedPublishLatency");
with_prefix!(delay_total "aggregatedPublishDelayLatency");
with_prefix!(end_to_end_total "aggregatedEndToEndLatency");
with_prefix!(pull_total "aggregatedPullLatency");

/// One run of one load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunResult {
    /// Of `kerolox-bench`.
    pub version: String,
    /// Names the broker or the run, as the user said.
    pub label: String,
    /// `send`, `pull`, `e2e` or `mixed`, with its main figures.
    pub workload: String,
    /// How the broker was reached.
    pub driver: String,
    /// UTC, as `2026-01-31T12:00:00.000Z`; the measured part, without warm-up.
    pub begin_time: String,
    pub end_time: String,
    /// Bytes of a body; the mean of the distribution if sizes differ.
    pub message_size: u64,
    pub topics: u32,
    /// Queues of each topic on each broker.
    pub partitions: u32,
    pub producers_per_topic: u32,
    pub consumers_per_topic: u32,

    /// Messages a second that were answered with success.
    pub publish_rate: Vec<f64>,
    /// Messages a second that were not.
    pub publish_error_rate: Vec<f64>,
    /// Messages a second that came to consumers.
    pub consume_rate: Vec<f64>,
    /// Messages that were answered with success and have not come to a consumer yet, at the end of each interval.
    pub backlog: Vec<u64>,
    /// From the intended send time to the answer; in a closed loop from the moment that the request was put together.
    #[serde(flatten, with = "publish")]
    pub publish_latency: Series<f64>,
    /// From the intended send time to the write to the socket, µs.
    #[serde(flatten, with = "delay")]
    pub publish_delay: Series<u64>,
    /// From the intended send time to the consumer.
    #[serde(flatten, with = "end_to_end")]
    pub end_to_end_latency: Series<f64>,
    /// From a pull to its answer, of pulls that brought messages and were not held. Ours.
    #[serde(flatten, with = "pull")]
    pub pull_latency: Series<f64>,
    #[serde(flatten, with = "publish_total")]
    pub aggregated_publish_latency: Option<Total<f64>>,
    #[serde(flatten, with = "delay_total")]
    pub aggregated_publish_delay: Option<Total<u64>>,
    #[serde(flatten, with = "end_to_end_total")]
    pub aggregated_end_to_end_latency: Option<Total<f64>>,
    #[serde(flatten, with = "pull_total")]
    pub aggregated_pull_latency: Option<Total<f64>>,

    /// Length of an interval of the arrays above; the last one may be shorter.
    pub interval_seconds: f64,
    /// How long was measured.
    pub seconds: f64,
    /// Why that is less than was planned.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ended_early: Option<String>,
    /// Messages a second that were answered with success, over the whole measured time.
    pub rate: f64,
    /// Messages a second that came to consumers.
    pub consumed_rate: f64,
    /// Measured messages that were answered with success.
    pub messages: u64,
    /// The same with those of the warm-up: what the broker should have stored.
    pub messages_with_warmup: u64,
    /// Messages that came to consumers while measuring, and in the whole run.
    pub consumed: u64,
    pub consumed_with_warmup: u64,
    /// What went wrong while measuring, and how often: a response code, `timeout` (no answer in time), `connection`
    /// (lost with requests under way, counted in messages), `missing` (acknowledged, and never came to a consumer),
    /// `order` (a gap in a queue's offsets) or `damaged` (a record that cannot be read).
    pub errors: BTreeMap<String, u64>,
    /// For each response code above, what the broker said the first time.
    pub remarks: BTreeMap<String, String>,
    /// The most that a message left after its intended time, ms.
    pub behind_ms_max: f64,
    /// Messages that should have left by the end and had not.
    pub never_sent: u64,
    /// Processor time of the broker (`--pid`) a message: user and system.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cpu_micros_per_message: Option<f64>,
    /// Processor time of this program a message.
    pub generator_cpu_micros_per_message: f64,
    /// The most memory of its own that the broker (`--pid`) had at the end of an interval; page cache and mapped files
    /// do not count.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub rss_anon_max_kib: Option<u64>,
    /// The same load against this program's own sink, if it was asked for.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub sink: Option<Ceiling>,
    /// All settings of the load.
    pub plan: Plan,
    /// The machine: CPU, kernel, mount, build and so on.
    pub machine: serde_json::Value,
}

/// What the generator reaches when the broker costs nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ceiling {
    /// How much the sink reads of a request; results of before there were two kinds have no key.
    #[serde(default)]
    pub kind: Kind,
    /// Messages a second.
    pub rate: f64,
    pub latency_50pct: f64,
    pub latency_99pct: f64,
    pub latency_999pct: f64,
    pub behind_ms_max: f64,
    pub generator_cpu_micros_per_message: f64,
}

/// Latencies of each interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Series<T> {
    #[serde(rename = "Avg")]
    pub avg: Vec<f64>,
    #[serde(rename = "50pct")]
    pub p50: Vec<T>,
    #[serde(rename = "75pct")]
    pub p75: Vec<T>,
    #[serde(rename = "95pct")]
    pub p95: Vec<T>,
    #[serde(rename = "99pct")]
    pub p99: Vec<T>,
    #[serde(rename = "999pct")]
    pub p99_9: Vec<T>,
    #[serde(rename = "9999pct")]
    pub p99_99: Vec<T>,
    #[serde(rename = "99999pct")]
    pub p99_999: Vec<T>,
    #[serde(rename = "Max")]
    pub max: Vec<T>,
}

/// Latencies of all that was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Total<T> {
    #[serde(rename = "Avg")]
    pub avg: f64,
    #[serde(rename = "50pct")]
    pub p50: T,
    #[serde(rename = "75pct")]
    pub p75: T,
    #[serde(rename = "95pct")]
    pub p95: T,
    #[serde(rename = "99pct")]
    pub p99: T,
    #[serde(rename = "999pct")]
    pub p99_9: T,
    #[serde(rename = "9999pct")]
    pub p99_99: T,
    #[serde(rename = "99999pct")]
    pub p99_999: T,
    #[serde(rename = "Max")]
    pub max: T,
    /// The whole curve; 90 is among its percentiles.
    #[serde(rename = "Quantiles")]
    pub quantiles: Curve<T>,
}

/// Percentile (0 to 100, ascending) and value; a JSON object with the percentiles as keys.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Curve<T>(pub Vec<(f64, T)>);

impl<T: Serialize> Serialize for Curve<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (percentile, value) in &self.0 {
            // `{:?}` writes 50.0, as Java does, where `{}` writes 50.
            map.serialize_entry(&format!("{percentile:?}"), value)?;
        }
        map.end()
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Curve<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Curve<T>, D::Error> {
        struct Points<T>(std::marker::PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Points<T> {
            type Value = Curve<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of percentiles and values")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Curve<T>, A::Error> {
                let mut points = Vec::new();
                while let Some((percentile, value)) = map.next_entry::<String, T>()? {
                    let number = percentile.parse::<f64>();
                    points.push((
                        number.map_err(|_| serde::de::Error::custom(format!("{percentile:?} is no percentile")))?,
                        value,
                    ));
                }
                points.sort_by(|one, other| one.0.total_cmp(&other.0));
                Ok(Curve(points))
            }
        }
        deserializer.deserialize_map(Points(std::marker::PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::load::plan::tests::plan;

    fn example() -> RunResult {
        let total = Total {
            avg: 1.5,
            p50: 1.0,
            p75: 1.1,
            p95: 1.2,
            p99: 1.3,
            p99_9: 1.4,
            p99_99: 1.5,
            p99_999: 1.6,
            max: 1.7,
            quantiles: Curve(vec![(0.0, 0.5), (50.0, 1.0), (99.99, 1.5), (100.0, 1.7)]),
        };
        RunResult {
            version: "0.1.0".into(),
            label: "here".into(),
            workload: "send".into(),
            driver: "RocketMQ remoting".into(),
            begin_time: "2026-01-31T12:00:00.000Z".into(),
            end_time: "2026-01-31T12:00:20.000Z".into(),
            message_size: 1024,
            topics: 1,
            partitions: 8,
            producers_per_topic: 8,
            consumers_per_topic: 0,
            publish_rate: vec![1000.0, 1001.0],
            publish_error_rate: vec![0.0, 0.5],
            consume_rate: vec![0.0, 0.0],
            backlog: vec![],
            publish_latency: Series { avg: vec![1.0], p99_9: vec![4.0], ..Series::default() },
            publish_delay: Series { p50: vec![17], ..Series::default() },
            end_to_end_latency: Series::default(),
            pull_latency: Series::default(),
            aggregated_publish_latency: Some(total),
            aggregated_publish_delay: None,
            aggregated_end_to_end_latency: None,
            aggregated_pull_latency: None,
            interval_seconds: 1.0,
            seconds: 2.0,
            ended_early: Some("interrupted".into()),
            rate: 1000.5,
            consumed_rate: 0.0,
            messages: 2001,
            messages_with_warmup: 3000,
            consumed: 0,
            consumed_with_warmup: 0,
            errors: [("2".to_owned(), 1), ("timeout".to_owned(), 3)].into(),
            remarks: [("2".to_owned(), "busy".to_owned())].into(),
            behind_ms_max: 0.25,
            never_sent: 0,
            cpu_micros_per_message: Some(2.5),
            generator_cpu_micros_per_message: 0.5,
            rss_anon_max_kib: None,
            sink: Some(Ceiling {
                kind: Kind::Decode,
                rate: 1e6,
                latency_50pct: 0.1,
                latency_99pct: 0.2,
                latency_999pct: 0.3,
                behind_ms_max: 0.0,
                generator_cpu_micros_per_message: 0.4,
            }),
            plan: Plan { sizes: "256:70,1024:30".parse().unwrap(), ..plan() },
            machine: Value::Null,
        }
    }

    #[test]
    fn its_keys_are_those_of_openmessaging_benchmark() {
        let json = serde_json::to_value(example()).unwrap();
        for key in [
            "workload",
            "driver",
            "messageSize",
            "topics",
            "partitions",
            "producersPerTopic",
            "consumersPerTopic",
            "publishRate",
            "publishErrorRate",
            "consumeRate",
            "backlog",
            "publishLatencyAvg",
            "publishLatency50pct",
            "publishLatency75pct",
            "publishLatency95pct",
            "publishLatency99pct",
            "publishLatency999pct",
            "publishLatency9999pct",
            "publishLatency99999pct",
            "publishLatencyMax",
            "publishDelayLatency50pct",
            "endToEndLatency9999pct",
            "endToEndLatencyMax",
            "aggregatedPublishLatencyAvg",
            "aggregatedPublishLatency50pct",
            "aggregatedPublishLatency99999pct",
            "aggregatedPublishLatencyMax",
            "aggregatedPublishLatencyQuantiles",
            "beginTime",
            "endTime",
            "version",
            "behindMsMax",
            "plan",
            "machine",
        ] {
            assert!(json.get(key).is_some(), "no key {key}");
        }
        assert_eq!(
            json["aggregatedPublishLatencyQuantiles"],
            json!({"0.0": 0.5, "50.0": 1.0, "99.99": 1.5, "100.0": 1.7})
        );
        assert_eq!(json["publishLatency999pct"], json!([4.0]));
        assert_eq!(json.get("aggregatedEndToEndLatencyAvg"), None, "what was not measured has no key");
        assert_eq!(json["plan"]["sizes"], json!("256:70,1024:30"));
        assert_eq!(json["plan"]["pace"], json!({"open": {"rate": "1000"}}));
    }

    #[test]
    fn a_result_survives_its_json() {
        let text = serde_json::to_string(&example()).unwrap();
        assert_eq!(serde_json::from_str::<RunResult>(&text).unwrap(), example());
    }
}
