//! Figures in rows: one run a row.

use super::markup::Markup;
use super::{COLOURS, Kind, PERCENTILES, Run, at, figures, percentile, rate_of};
use crate::result::{Ceiling, RunResult};
use crate::sink;

const NEVER_SENT: &str = "never sent";

/// Rates, errors and cost of all runs.
pub fn overview(page: &mut Markup, runs: &[Run]) {
    let cpu = runs.iter().any(|run| run.result.cpu_micros_per_message.is_some());
    let has_sink = runs.iter().any(|run| run.result.sink.is_some());
    let memory = runs.iter().any(|run| run.result.rss_anon_max_kib.is_some());
    head(page, |page| {
        for title in ["messages/s", "messages", "errors", "behind at most, ms", "never sent"] {
            page.leaf("th", &[], title);
        }
        if cpu {
            page.leaf("th", &[], "broker CPU, µs/msg");
        }
        page.leaf("th", &[], "load CPU, µs/msg");
        if memory {
            page.leaf("th", &[], "broker RSS, MiB");
        }
        if has_sink {
            page.leaf("th", &[], "own sink, messages/s");
        }
    });
    for run in runs {
        let result = &run.result;
        row(page, run);
        let count = if result.plan.workload.sends() { result.messages } else { result.consumed };
        page.leaf("td", &[], &figures::rate(rate_of(result))).leaf("td", &[], &figures::count(count));
        number(page, result.errors.values().sum());
        page.leaf("td", &[], &figures::ms(result.behind_ms_max));
        number(page, result.never_sent);
        let optional = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), figures::ms);
        if cpu {
            page.leaf("td", &[], &optional(result.cpu_micros_per_message));
        }
        page.leaf("td", &[], &figures::ms(result.generator_cpu_micros_per_message));
        if memory {
            page.leaf("td", &[], &optional(result.rss_anon_max_kib.map(|kib| kib as f64 / 1024.0)));
        }
        if has_sink {
            let reached = |sink: &Ceiling| match sink.kind {
                sink::Kind::Bare => figures::rate(sink.rate),
                sink::Kind::Decode => format!("{}, decoding", figures::rate(sink.rate)),
            };
            let reached = result.sink.as_ref().map_or_else(|| "–".to_owned(), reached);
            page.leaf("td", &[], &reached);
        }
        page.close();
    }
    page.close().close().close();
}

/// Percentiles of one kind of latency.
pub fn latencies(page: &mut Markup, kind: Kind, runs: &[Run]) {
    head(page, |page| {
        for wanted in PERCENTILES {
            page.leaf("th", &[], &percentile(wanted));
        }
        page.leaf("th", &[], "max").leaf("th", &[], "mean");
    });
    for run in runs {
        let Some(total) = kind.total(&run.result) else { continue };
        row(page, run);
        for wanted in PERCENTILES {
            page.leaf("td", &[], &figures::ms(at(total, wanted)));
        }
        page.leaf("td", &[], &figures::ms(total.max)).leaf("td", &[], &figures::ms(total.avg)).close();
    }
    page.close().close().close();
}

/// What went wrong, by run and kind; nothing if nothing did.
pub fn errors(page: &mut Markup, runs: &[Run]) {
    let has_failed = |run: &&Run| !run.result.errors.is_empty() || run.result.never_sent > 0;
    let failed: Vec<&Run> = runs.iter().filter(has_failed).collect();
    if failed.is_empty() {
        page.leaf("p", &[], "None: every message was sent, and answered with success.");
        return;
    }
    head(page, |page| {
        page.leaf("th", &[], "error").leaf("th", &[], "messages").leaf("th", &[], "share");
        page.leaf("th", &[("class", "left")], "what the broker said first");
    });
    for run in failed {
        let RunResult { errors, never_sent, messages, remarks, .. } = &run.result;
        let all = messages + errors.values().sum::<u64>() + never_sent;
        let unsent = (*never_sent > 0).then_some((NEVER_SENT, *never_sent));
        for (error, count) in errors.iter().map(|(error, count)| (error.as_str(), *count)).chain(unsent) {
            row(page, run);
            let share = count as f64 / all.max(1) as f64 * 100.0;
            page.leaf("td", &[], error).leaf("td", &[], &figures::count(count));
            page.leaf("td", &[], &format!("{share:.4} %"));
            page.leaf("td", &[("class", "said")], remarks.get(error).map_or("–", String::as_str)).close();
        }
    }
    page.close().close().close();
}

fn head(page: &mut Markup, rest: impl FnOnce(&mut Markup)) {
    page.open("div", &[("class", "scroll")]).open("table", &[]);
    page.open("thead", &[]).open("tr", &[]).leaf("th", &[], "run");
    rest(page);
    page.close().close().open("tbody", &[]);
}

fn row(page: &mut Markup, run: &Run) {
    let ring = if run.colour < COLOURS { "" } else { " ring" };
    page.open("tr", &[]).open("th", &[]);
    page.leaf("span", &[("class", &format!("mark c{}{ring}", run.colour % COLOURS))], "").text(&run.name).close();
}

/// A count that should be nought.
fn number(page: &mut Markup, value: u64) {
    let class = if value > 0 { "bad" } else { "good" };
    page.open("td", &[]).leaf("span", &[("class", class)], &figures::count(value)).close();
}
