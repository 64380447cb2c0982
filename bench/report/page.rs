//! The page as a whole: what stands on it, and in which order.

use super::markup::Markup;
use super::{Kind, Run, curves, facts, figures, flush, rate_of, series, table};
use crate::machine::Broker;

/// How late a schedule may be at its worst before a reader should know, ms. Below it lies what a kernel's timer does.
const BEHIND_MS: f64 = 5.0;
/// Tasks that wanted a core before the load began, a core; above it other work disturbs.
const BUSY: f64 = 0.5;

/// A whole HTML document with this body.
fn document(title: &str, body: Markup) -> String {
    let mut page = Markup::new();
    page.open("html", &[("lang", "en")]).open("head", &[]);
    page.empty("meta", &[("charset", "utf-8")]);
    page.empty("meta", &[("name", "viewport"), ("content", "width=device-width, initial-scale=1")]);
    page.empty("meta", &[("name", "generator"), ("content", concat!("kerolox-bench ", env!("CARGO_PKG_VERSION")))]);
    page.leaf("title", &[], title).style(include_str!("style.css")).close();
    page.open("body", &[]).open("main", &[]).piece(body).close().close().close();
    format!("<!doctype html>\n{}", page.finish())
}

/// The report of these runs; `first` comes before all else that is told of them.
pub fn of_runs(title: &str, first: Markup, runs: &[Run]) -> String {
    let mut page = Markup::new();
    page.leaf("h1", &[], title);
    page.leaf("p", &[("class", "soft")], &summary(runs));
    warnings(&mut page, runs);
    page.piece(first);
    page.leaf("h2", &[], "At a glance");
    table::overview(&mut page, runs);
    for kind in Kind::ALL {
        if runs.iter().all(|run| kind.total(&run.result).is_none()) {
            continue;
        }
        page.leaf("h2", &[], kind.title());
        page.leaf("p", &[("class", "soft")], &format!("{} In milliseconds.", kind.explanation()));
        table::latencies(&mut page, kind, runs);
        curves::draw(&mut page, kind, runs);
        if runs.iter().any(|run| !series::series(kind, run).p99.is_empty()) {
            page.leaf("h3", &[], "Over the time");
            series::latencies(&mut page, kind, runs);
        }
    }
    page.leaf("h2", &[], "Rate over the time");
    series::rates(&mut page, runs);
    if flush::applies(runs) {
        page.leaf("h2", &[], "Sync against async flush");
        let text = "With sync flush a message is acknowledged once it lies on stable storage; with async flush before. \
                    The ratios tell what that safety costs here.";
        page.leaf("p", &[("class", "soft")], text);
        flush::draw(&mut page, runs);
    }
    page.leaf("h2", &[], "Errors");
    table::errors(&mut page, runs);
    page.leaf("h2", &[], "Behind schedule");
    behind(&mut page, runs);
    page.leaf("h2", &[], "The load");
    let plan = |run: &Run| facts::rows(&serde_json::to_value(&run.result.plan).unwrap_or_default());
    facts::draw(&mut page, runs, |run| {
        let mut rows = vec![("begin".to_owned(), run.result.begin_time.clone())];
        rows.push(("seconds measured".to_owned(), figures::ms(run.result.seconds)));
        rows.extend(plan(run).into_iter().filter(|(name, _)| name != "label" && name != "pid"));
        rows
    });
    page.leaf("h2", &[], "The machine");
    facts::draw(&mut page, runs, |run| run.machine.rows());
    told_by_brokers(&mut page, runs);
    not_found(&mut page, runs);
    document(title, page)
}

fn summary(runs: &[Run]) -> String {
    let first = runs.iter().map(|run| run.result.begin_time.as_str()).min().unwrap_or_default();
    let last = runs.iter().map(|run| run.result.end_time.as_str()).max().unwrap_or_default();
    let runs = match runs.len() {
        1 => "One run".to_owned(),
        count => format!("{count} runs"),
    };
    format!("{runs}, measured from {first} to {last} by kerolox-bench {}.", env!("CARGO_PKG_VERSION"))
}

/// What a reader must know before believing a figure: each reason once, with the runs that give it.
fn warnings(page: &mut Markup, runs: &[Run]) {
    type Reason = (&'static str, fn(&Run) -> Option<String>);
    let reasons: [Reason; 6] = [
        ("the load came from a debug build, so the figures mean nothing", |run| {
            (run.machine.generator.build == "debug").then(String::new)
        }),
        ("the load ended before its time", |run| run.result.ended_early.clone()),
        ("messages failed", |run| {
            let errors: u64 = run.result.errors.values().sum();
            (errors > 0).then(|| figures::count(errors))
        }),
        ("messages were due and never left, since the rate was more than was possible", |run| {
            (run.result.never_sent > 0).then(|| figures::count(run.result.never_sent))
        }),
        ("the schedule was late; latencies count from the intended time, so they hold that wait", |run| {
            let late = run.result.behind_ms_max;
            (late > BEHIND_MS && run.result.never_sent == 0).then(|| format!("{} ms at worst", figures::ms(late)))
        }),
        ("the host had other work before the load began", |run| busy(run).map(|load| format!("load average {load}"))),
    ];
    let mut texts = Vec::new();
    for (reason, of) in reasons {
        let given: Vec<(&str, String)> = runs.iter().filter_map(|run| Some((run.name.as_str(), of(run)?))).collect();
        let name = |(name, detail): &(&str, String)| match detail.as_str() {
            "" => (*name).to_owned(),
            detail => format!("{name} ({detail})"),
        };
        if given.is_empty() {
            continue;
        }
        let bare = given.iter().all(|(_, detail)| detail.is_empty());
        let names = match bare && given.len() == runs.len() {
            true if runs.len() > 1 => "all runs".to_owned(),
            _ => given.iter().map(name).collect::<Vec<_>>().join(", "),
        };
        texts.push((reason, names));
    }
    for (what, of) in [
        (
            "the runs differ in their CPU: compare with care",
            (|run| run.machine.cpu.model.clone()) as fn(&Run) -> Option<String>,
        ),
        ("the runs differ in their kernel: compare with care", |run| run.machine.kernel.clone()),
        ("the runs differ in the revision that made the load: compare with care", |run| {
            run.machine.generator.revision.clone()
        }),
    ] {
        if runs.windows(2).any(|pair| of(&pair[0]) != of(&pair[1])) {
            texts.push((what, String::new()));
        }
    }
    if texts.is_empty() {
        return;
    }
    page.open("ul", &[("class", "warnings")]);
    for (reason, names) in texts {
        let mut reason = reason.to_owned();
        if let Some(first) = reason.get_mut(..1) {
            first.make_ascii_uppercase();
        }
        page.leaf("li", &[], &if names.is_empty() { format!("{reason}.") } else { format!("{reason}: {names}.") });
    }
    page.close();
}

fn busy(run: &Run) -> Option<&str> {
    let load = run.machine.load_average.as_deref()?;
    let last_minute: f64 = load.split(' ').next()?.parse().ok()?;
    (last_minute > BUSY * f64::from(run.machine.cpu.online?)).then_some(load)
}

fn behind(page: &mut Markup, runs: &[Run]) {
    page.open("ul", &[]);
    for run in runs {
        let result = &run.result;
        let (name, late) = (&run.name, figures::ms(result.behind_ms_max));
        let text = match &result.aggregated_publish_delay {
            _ if !result.plan.workload.sends() => format!("{name}: only reads, so there was no schedule."),
            _ if matches!(result.plan.pace, crate::load::Pace::Closed { .. }) => {
                format!(
                    "{name}: a closed loop, which follows the answers; {} messages/s.",
                    figures::rate(rate_of(result))
                )
            }
            Some(delay) => format!(
                "{name}: messages left {} µs (p50), {} µs (p99), {} µs (p99.9) after their time, {late} ms at the worst; never sent: {}.",
                figures::count(delay.p50),
                figures::count(delay.p99),
                figures::count(delay.p99_9),
                figures::count(result.never_sent)
            ),
            None => format!("{name}: {late} ms at the worst; never sent: {}.", figures::count(result.never_sent)),
        };
        page.leaf("li", &[], &text);
    }
    page.close();
}

/// All that brokers said of themselves; long, and so folded.
fn told_by_brokers(page: &mut Markup, runs: &[Run]) {
    let brokers = || runs.iter().filter_map(|run| run.machine.broker.as_ref());
    if brokers().any(|broker| !broker.settings.is_empty()) {
        page.open("details", &[]).leaf("summary", &[], "The broker's settings");
        facts::draw(page, runs, |run| {
            let from = |broker: &Broker| broker.settings_from.clone().map(|from| ("(from)".to_owned(), from));
            let broker = run.machine.broker.iter();
            broker.flat_map(|broker| from(broker).into_iter().chain(broker.settings.clone())).collect()
        });
        page.close();
    }
    if brokers().any(|broker| !broker.state.is_empty()) {
        page.open("details", &[]).leaf(
            "summary",
            &[],
            "What the broker said of its state before the load (request 28)",
        );
        facts::draw(page, runs, |run| {
            let state = run.machine.broker.iter().flat_map(|broker| broker.state.clone());
            state.collect()
        });
        page.close();
    }
}

/// The gaps of the machine blocks.
fn not_found(page: &mut Markup, runs: &[Run]) {
    let mut gaps: Vec<&str> = Vec::new();
    for gap in runs.iter().flat_map(|run| &run.machine.not_found) {
        if !gaps.contains(&gap.as_str()) {
            gaps.push(gap);
        }
    }
    if gaps.is_empty() {
        return;
    }
    page.leaf("h3", &[], "Not found out").open("ul", &[("class", "soft")]);
    for gap in gaps {
        page.leaf("li", &[], gap);
    }
    page.close();
}
