//! Latency over the percentile: the whole distribution, with its tail drawn as large as its middle.

use super::chart::{Axis, Line, LineChart, Marks, Scale, legend};
use super::markup::Markup;
use super::{Kind, PERCENTILES, Run, at, figures, percentile};

/// The chart of one kind of latency, over all runs that have it.
pub fn draw(page: &mut Markup, kind: Kind, runs: &[Run]) {
    let shown: Vec<(&Run, Line)> = runs.iter().filter_map(|run| Some((run, line(kind, run)?))).collect();
    let points = || shown.iter().flat_map(|(_, line)| line.points.iter());
    let chart = LineChart {
        description: format!("{} over the percentile, both axes logarithmic", kind.title()),
        x: Axis::holding("percentile of messages (%), by 1 / (1 − q)", Scale::Percentile, points().map(|it| it.0)),
        y: Axis::holding("latency (ms)", Scale::Log, points().map(|it| it.1)),
        lines: shown.iter().map(|(_, line)| line.clone()).collect(),
        marks: Marks::Shown,
    };
    page.open("figure", &[]);
    legend(page, shown.iter().map(|(run, _)| (run.colour, run.stroke(), run.group.as_str())));
    chart.draw(page);
    page.close();
}

fn line(kind: Kind, run: &Run) -> Option<Line> {
    let total = kind.total(&run.result)?;
    // 100 % would be infinitely far right; the greatest of n messages stands at 1 - 1/n.
    let count = match kind {
        Kind::Publish => run.result.messages,
        Kind::EndToEnd | Kind::Pull => run.result.consumed,
    };
    let last = 100.0 * (1.0 - 1.0 / count.max(2) as f64);
    let mut points: Vec<(f64, f64)> = Vec::new();
    for (percentile, value) in total.quantiles.0.iter().map(|(percentile, value)| (percentile.min(last), *value)) {
        match points.last_mut() {
            Some(before) if before.0 == percentile => before.1 = before.1.max(value),
            _ => points.push((percentile, value)),
        }
    }
    let marks = PERCENTILES.iter().copied().filter(|wanted| *wanted <= last).map(|wanted| {
        let value = at(total, wanted);
        (wanted, value, format!("{}: {} = {} ms", run.name, percentile(wanted), figures::ms(value)))
    });
    let greatest = (last, total.max, format!("{}: max = {} ms", run.name, figures::ms(total.max)));
    let marks = marks.chain([greatest]).collect();
    Some(Line { colour: run.colour, stroke: run.stroke(), points, marks })
}
