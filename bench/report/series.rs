//! How a run went over its time: rate, and latencies of each interval.

use super::chart::{Axis, Line, LineChart, Marks, Scale, Stroke, legend};
use super::markup::Markup;
use super::{Kind, Run, figures};
use crate::result::Series;

/// The most points of a line: one for each pixel of a phone, and enough for a wide screen.
const POINTS_MAX: usize = 360;
/// With more runs than this, each part of the latencies has a chart of its own.
const TOGETHER_MAX: usize = 2;
/// Beyond so many, marks with a text to show would only make the page heavy.
const MARKS_MAX: usize = 120;

/// Messages a second over the time, sent and consumed.
pub fn rates(page: &mut Markup, runs: &[Run]) {
    let mut lines = Vec::new();
    let mut entries = Vec::new();
    for run in runs {
        let result = &run.result;
        let sends = result.plan.workload.sends();
        let consumes = result.consumed > 0;
        if sends {
            entries.push((run.colour, run.stroke(), format!("{}: sent", run.group)));
            lines.push(rate_line(run.stroke(), run, "sent", &result.publish_rate));
        }
        if consumes {
            // Beside sends the consumer's line lies on theirs, so it is told apart by its dashes.
            let stroke = if sends { Stroke::Dashed } else { run.stroke() };
            entries.push((run.colour, stroke, format!("{}: consumed", run.group)));
            lines.push(rate_line(stroke, run, "consumed", &result.consume_rate));
        }
    }
    let values = lines.iter().flat_map(|line| line.points.iter()).map(|point| point.1);
    let y = Axis::holding("messages a second", Scale::Linear, values);
    draw(page, "Messages a second over the time", &entries, lines, y);
}

/// Latencies of each interval over the time.
pub fn latencies(page: &mut Markup, kind: Kind, runs: &[Run]) {
    let parts = [(Stroke::Solid, "p99"), (Stroke::Dashed, "p50"), (Stroke::Dots, "max")];
    if runs.len() <= TOGETHER_MAX {
        return latency_chart(page, kind, runs, &parts);
    }
    // Three lines a run would cover each other: a chart for each part, and all runs in it.
    for (_, part) in parts {
        latency_chart(page, kind, runs, &[(Stroke::Solid, part)]);
    }
}

fn latency_chart(page: &mut Markup, kind: Kind, runs: &[Run], parts: &[(Stroke, &'static str)]) {
    let mut lines = Vec::new();
    let mut entries = Vec::new();
    for run in runs {
        let series = series(kind, run);
        for &(stroke, part) in parts {
            let values = match part {
                "p50" => &series.p50,
                "p99" => &series.p99,
                _ => &series.max,
            };
            if values.is_empty() {
                continue;
            }
            let (stroke, label) = match parts.len() {
                1 => (run.stroke(), run.group.clone()),
                _ => (stroke, format!("{}: {part}", run.group)),
            };
            let line = latency_line(stroke, run, part, values);
            // What has nothing to show has no place in the legend.
            if !line.points.is_empty() {
                entries.push((run.colour, stroke, label));
                lines.push(line);
            }
        }
    }
    let title = match parts {
        [(_, "p50")] => "p50 of each interval (ms)",
        [(_, "p99")] => "p99 of each interval (ms)",
        [(_, "max")] => "max of each interval (ms)",
        _ => "latency of each interval (ms)",
    };
    let values = lines.iter().flat_map(|line| line.points.iter()).map(|point| point.1);
    let y = Axis::holding(title, Scale::Log, values);
    draw(page, &format!("{}, {title}, over the time", kind.title()), &entries, lines, y);
}

/// The latencies of a kind by interval.
pub fn series(kind: Kind, run: &Run) -> &Series<f64> {
    match kind {
        Kind::Publish => &run.result.publish_latency,
        Kind::EndToEnd => &run.result.end_to_end_latency,
        Kind::Pull => &run.result.pull_latency,
    }
}

fn draw(page: &mut Markup, what: &str, entries: &[(usize, Stroke, String)], lines: Vec<Line>, y: Axis) {
    let times = lines.iter().flat_map(|line| line.points.iter()).map(|point| point.0);
    let x = Axis::holding("time of the run", Scale::Time, times);
    page.open("figure", &[]);
    legend(page, entries.iter().map(|(index, stroke, label)| (*index, *stroke, label.as_str())));
    LineChart { description: what.to_owned(), x, y, lines, marks: Marks::WhenPointedAt }.draw(page);
    page.close();
}

fn rate_line(stroke: Stroke, run: &Run, what: &str, values: &[f64]) -> Line {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let points = thinned(&timed(run, values), mean);
    let told = |value: f64| format!("{} {what}/s", figures::rate(value));
    Line { colour: run.colour, stroke, marks: marks(run, &points, told), points }
}

fn latency_line(stroke: Stroke, run: &Run, what: &str, values: &[f64]) -> Line {
    // A stall must not vanish between two pixels: of intervals drawn as one the worst counts.
    let worst = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
    let points = thinned(&timed(run, values), worst);
    // An interval in which nothing was answered has no latency.
    let points: Vec<(f64, f64)> = points.into_iter().filter(|point| point.1 > 0.0).collect();
    let marks = match stroke {
        Stroke::Dots => Vec::new(),
        _ => marks(run, &points, |value| format!("{what} {} ms", figures::ms(value))),
    };
    Line { colour: run.colour, stroke, points, marks }
}

/// Each value at the end of its interval.
fn timed(run: &Run, values: &[f64]) -> Vec<(f64, f64)> {
    let end = |index: usize| ((index + 1) as f64 * run.result.interval_seconds).min(run.result.seconds);
    values.iter().enumerate().map(|(index, value)| (end(index), *value)).collect()
}

fn marks(run: &Run, points: &[(f64, f64)], told: impl Fn(f64) -> String) -> Vec<(f64, f64, String)> {
    if points.len() > MARKS_MAX {
        return Vec::new();
    }
    let mark = |&(at, value): &(f64, f64)| (at, value, format!("{}, {} s: {}", run.name, figures::ms(at), told(value)));
    points.iter().map(mark).collect()
}

/// At most [`POINTS_MAX`] points, each of as many neighbours as needed.
fn thinned(points: &[(f64, f64)], together: impl Fn(&[f64]) -> f64) -> Vec<(f64, f64)> {
    let each = points.len().div_ceil(POINTS_MAX).max(1);
    let group = |group: &[(f64, f64)]| {
        let values: Vec<f64> = group.iter().map(|point| point.1).collect();
        (group.last().expect("a chunk has an element").0, together(&values))
    };
    points.chunks(each).map(group).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_run_is_thinned_without_losing_its_worst_moment() {
        let mut points: Vec<(f64, f64)> = (0..10_000).map(|at| (f64::from(at), 1.0)).collect();
        points[7_777].1 = 99.0;
        let worst = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
        let drawn = thinned(&points, worst);
        assert!(drawn.len() <= POINTS_MAX, "{}", drawn.len());
        assert_eq!(drawn.iter().filter(|point| point.1 == 99.0).count(), 1);
        assert_eq!(drawn.last(), Some(&(9_999.0, 1.0)));
        assert_eq!(thinned(&points[..5], worst), points[..5]);
        assert_eq!(thinned(&[], worst), []);
    }
}
