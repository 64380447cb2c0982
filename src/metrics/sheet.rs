//! The page of metrics: samples put in any order, written as Prometheus text.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, prometheus_text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::catalogue::{Kind, Metric};
use super::owned::ClassTotals;

/// Content type of [`Sheet::write`]'s text.
pub const CONTENT_TYPE: &str = prometheus_text::CONTENT_TYPE;

/// One value, or one histogram, with the values of its labels.
#[derive(Debug)]
struct Sample {
    labels: Vec<(&'static str, String)>,
    value: Value,
}

/// What a sample says.
#[derive(Debug)]
pub enum Value {
    Number(f64),
    /// A count, exact beyond 2^53.
    Count(u64),
    /// Classes, and how many of their unit one of the metric's unit is: 1e6 for µs that are shown as seconds.
    Classes(ClassTotals, f64),
}

impl From<u64> for Value {
    fn from(count: u64) -> Value {
        Value::Count(count)
    }
}

impl From<f64> for Value {
    fn from(number: f64) -> Value {
        Value::Number(number)
    }
}

/// The samples of one moment.
#[derive(Debug, Default)]
pub struct Sheet {
    by_name: BTreeMap<&'static str, (&'static Metric, Vec<Sample>)>,
}

impl Sheet {
    /// Puts a value; `labels` are the values of the metric's labels, in their order.
    ///
    /// # Panics
    /// If there are not as many, or a histogram gets a number, or the other way round.
    pub fn put(&mut self, metric: &'static Metric, labels: &[&str], value: impl Into<Value>) {
        let value = value.into();
        assert_eq!(labels.len(), metric.labels.len(), "{} has the labels {:?}", metric.name, metric.labels);
        let is_histogram = matches!(value, Value::Classes(..));
        assert_eq!(is_histogram, metric.kind == Kind::Histogram, "{} is a {:?}", metric.name, metric.kind);
        let labels = metric.labels.iter().copied().zip(labels.iter().map(|label| (*label).to_owned())).collect();
        let (_, samples) = self.by_name.entry(metric.name).or_insert_with(|| (metric, Vec::new()));
        samples.push(Sample { labels, value });
    }

    /// Puts times that are counted in µs, shown in seconds.
    pub fn put_seconds(&mut self, metric: &'static Metric, labels: &[&str], times: ClassTotals) {
        self.put(metric, labels, Value::Classes(times, 1e6));
    }

    /// The page's text, with `common` labels on each sample.
    pub fn write(self, common: &[(&'static str, String)]) -> String {
        let common = common.iter().map(|(name, value)| (Cow::from(*name), Cow::from(value.clone())));
        let mut registry = Registry::with_labels(common);
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        prometheus_text::encode(&mut text, &registry).expect("a String takes all text");
        text
    }
}

impl Collector for Sheet {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for (metric, samples) in self.by_name.values() {
            let (name, kind) = match metric.kind {
                // The encoder says it again.
                Kind::Counter => {
                    (metric.name.strip_suffix("_total").expect("a counter's name ends so"), MetricType::Counter)
                }
                Kind::Gauge => (metric.name, MetricType::Gauge),
                Kind::Histogram => (metric.name, MetricType::Histogram),
            };
            let mut descriptor = encoder.encode_descriptor(name, metric.help, None, kind)?;
            for Sample { labels, value } in samples {
                let mut family = descriptor.encode_family(labels)?;
                match (value, metric.kind) {
                    (Value::Number(number), Kind::Counter) => {
                        family.encode_counter::<[(&str, &str); 0], f64, f64>(number, None)?;
                    }
                    (Value::Number(number), _) => family.encode_gauge(number)?,
                    (Value::Count(count), Kind::Counter) => {
                        family.encode_counter::<[(&str, &str); 0], u64, u64>(count, None)?;
                    }
                    (Value::Count(count), _) => family.encode_gauge(count)?,
                    (Value::Classes(totals, per_unit), _) => {
                        let classes: Vec<(f64, u64)> = totals
                            .ends
                            .iter()
                            .map(|end| *end as f64 / per_unit)
                            .chain([f64::INFINITY])
                            .zip(totals.counts.iter().copied())
                            .collect();
                        let sum = totals.sum as f64 / per_unit;
                        family.encode_histogram::<[(&str, &str); 0]>(sum, totals.count(), &classes, None)?;
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::owned::Times;

    const COUNTER: Metric = Metric::counter("test_things_total", "things", &["topic"], "Things.");
    const GAUGE: Metric = Metric::gauge("test_level", "bytes", &[], "A level.");
    const TIMES: Metric = Metric::histogram("test_duration_seconds", "seconds", &["stage"], "A time.");

    #[test]
    fn samples_are_written_by_metric_with_common_labels_and_escaped_values() {
        let mut sheet = Sheet::default();
        sheet.put(&COUNTER, &["a"], u64::MAX);
        sheet.put(&GAUGE, &[], 0.5);
        sheet.put(&COUNTER, &["b\"\\\n"], 7);
        let text = sheet.write(&[("cluster", "C".to_owned())]);
        let expected = "# HELP test_level A level.\n# TYPE test_level gauge\ntest_level{cluster=\"C\"} 0.5\n\
                        # HELP test_things_total Things.\n# TYPE test_things_total counter\n\
                        test_things_total{cluster=\"C\",topic=\"a\"} 18446744073709551615\n\
                        test_things_total{cluster=\"C\",topic=\"b\\\"\\\\\\n\"} 7\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn times_become_cumulative_classes_of_seconds() {
        let times = Times::default();
        times.add(10, 3);
        times.add(1_500_000, 1);
        times.add(60_000_000, 1);
        let mut sheet = Sheet::default();
        sheet.put_seconds(&TIMES, &["append"], times.totals());
        let text = sheet.write(&[]);
        for line in [
            "test_duration_seconds_bucket{stage=\"append\",le=\"1e-05\"} 3\n",
            "test_duration_seconds_bucket{stage=\"append\",le=\"1\"} 3\n",
            "test_duration_seconds_bucket{stage=\"append\",le=\"2\"} 4\n",
            "test_duration_seconds_bucket{stage=\"append\",le=\"+Inf\"} 5\n",
            "test_duration_seconds_sum{stage=\"append\"} 61.50003\n",
            "test_duration_seconds_count{stage=\"append\"} 5\n",
        ] {
            assert!(text.contains(line), "{line} {text}");
        }
    }

    #[test]
    #[should_panic(expected = "test_things_total has the labels")]
    fn a_value_without_its_labels_is_a_mistake() {
        Sheet::default().put(&COUNTER, &[], 1);
    }
}
