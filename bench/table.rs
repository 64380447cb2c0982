//! A result as text for people.

use std::fmt::Write;

use crate::result::{Ceiling, Curve, RunResult};
use crate::sink::Kind;

const COLUMNS: [(&str, f64); 6] =
    [("p50", 50.0), ("p90", 90.0), ("p99", 99.0), ("p99.9", 99.9), ("p99.99", 99.99), ("max", 100.0)];

/// The result as a table, ending with a line break.
pub fn text(result: &RunResult) -> String {
    let mut out = String::new();
    let label = if result.label.is_empty() { String::new() } else { format!("{}: ", result.label) };
    line(&mut out, &format!("{label}{}; {:.1} s measured", result.workload, result.seconds));
    row(&mut out, "ms", COLUMNS.map(|(name, _)| name.to_owned()));
    let kinds = [
        ("send", result.aggregated_publish_latency.as_ref().map(|total| &total.quantiles)),
        ("end to end", result.aggregated_end_to_end_latency.as_ref().map(|total| &total.quantiles)),
        ("pull", result.aggregated_pull_latency.as_ref().map(|total| &total.quantiles)),
    ];
    for (name, curve) in kinds {
        if let Some(curve) = curve {
            row(&mut out, name, COLUMNS.map(|(_, percentile)| format!("{:.3}", at(curve, percentile))));
        }
    }
    if let Some(delay) = &result.aggregated_publish_delay {
        let late = COLUMNS.map(|(_, percentile)| format!("{:.3}", at(&delay.quantiles, percentile) as f64 / 1000.0));
        row(&mut out, "left late by", late);
    }
    if result.producers_per_topic > 0 {
        let bytes = result.rate * result.message_size as f64 / 1e6;
        line(&mut out, &format!("rate           {:.0} msg/s sent, {bytes:.1} MB/s of bodies", result.rate));
    }
    if result.consumers_per_topic > 0 {
        line(&mut out, &format!("rate           {:.0} msg/s read", result.consumed_rate));
    }
    line(&mut out, &format!("messages       {} acknowledged, {} read", result.messages, result.consumed));
    if let Some(why) = &result.ended_early {
        line(&mut out, &format!("ended early    {why}"));
    }
    if result.never_sent > 0 {
        line(&mut out, &format!("never sent     {}: the schedule could not be kept", result.never_sent));
    }
    let mut cpu = format!("cpu            generator {:.3} us a message", result.generator_cpu_micros_per_message);
    if let Some(broker) = result.cpu_micros_per_message {
        _ = write!(cpu, ", broker {broker:.3} us");
    }
    line(&mut out, &cpu);
    if let Some(kib) = result.rss_anon_max_kib {
        line(&mut out, &format!("memory         broker at most {:.1} MiB of its own (RssAnon)", kib as f64 / 1024.0));
    }
    if let Some(Ceiling { kind, rate, latency_50pct, latency_99pct, .. }) = &result.sink {
        let says = match kind {
            Kind::Bare => "no broker can show more here",
            Kind::Decode => "it decodes its requests as a broker must, and does no more",
        };
        let figures = format!("{rate:.0} msg/s, p50 {latency_50pct:.3} p99 {latency_99pct:.3} ms");
        line(&mut out, &format!("own sink       {figures}: {says}"));
    }
    match result.errors.is_empty() {
        true => line(&mut out, "errors         none"),
        false => {
            for (name, count) in &result.errors {
                let remark = result.remarks.get(name).map(|remark| format!("  {remark}")).unwrap_or_default();
                line(&mut out, &format!("errors         {name}: {count}{remark}"));
            }
        }
    }
    out
}

fn line(out: &mut String, text: &str) {
    out.push_str(text);
    out.push('\n');
}

fn row(out: &mut String, name: &str, cells: [String; 6]) {
    let cells: String = cells.iter().map(|cell| format!("{cell:>12}")).collect();
    line(out, &format!("{name:<13}{cells}"));
}

/// The value of the first point that has at least this percentile.
fn at<T: Copy + Default>(curve: &Curve<T>, percentile: f64) -> T {
    let found = curve.0.iter().find(|(point, _)| *point >= percentile);
    found.or(curve.0.last()).map_or(T::default(), |(_, value)| *value)
}
