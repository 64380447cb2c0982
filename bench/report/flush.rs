//! What a flush before the answer costs: runs of brokers with sync flush against runs of brokers with async flush.

use super::chart::{Axis, Dot, DotChart, Scale, Stroke, legend};
use super::markup::Markup;
use super::{Kind, PERCENTILES, Run, at, figures, percentile, rate_of};

/// Whether there is something to compare: a run of either kind with send latencies.
pub fn applies(runs: &[Run]) -> bool {
    let of = |flush: &str| runs.iter().any(|run| is(run, flush));
    of("sync") && of("async")
}

fn is(run: &Run, flush: &str) -> bool {
    run.flush() == Some(flush) && Kind::Publish.total(&run.result).is_some()
}

/// The chart of all runs of both kinds, each pair joined by a line, and the ratios of the pairs.
pub fn draw(page: &mut Markup, runs: &[Run]) {
    let pairs = pairs(runs);
    let alone = runs.iter().filter(|run| is(run, "async") || is(run, "sync"));
    let alone = alone.filter(|run| {
        !pairs.iter().any(|(sync, r#async)| [sync.name.as_str(), &r#async.name].contains(&run.name.as_str()))
    });
    let lanes: Vec<Vec<&Run>> =
        pairs.iter().map(|(sync, r#async)| vec![*r#async, *sync]).chain(alone.map(|run| vec![run])).collect();
    let row = |label: String, of: &dyn Fn(&Run) -> f64| {
        let mut dots = Vec::new();
        for (lane, runs) in lanes.iter().enumerate() {
            for run in runs {
                // The line is drawn with the second of a pair, from the first.
                let spread = dots.last().filter(|dot: &&Dot| dot.lane == lane).map(|dot| (dot.value, of(run)));
                let told = format!("{}: {label} = {} ms", told(run), figures::ms(of(run)));
                dots.push(Dot { colour: run.colour, lane, value: of(run), spread, told });
            }
        }
        (label, dots)
    };
    let total = |run: &Run| Kind::Publish.total(&run.result).expect("only runs with send latencies are shown").clone();
    let mut rows: Vec<(String, Vec<Dot>)> =
        PERCENTILES.iter().map(|&wanted| row(percentile(wanted), &|run: &Run| at(&total(run), wanted))).collect();
    rows.push(row("max".to_owned(), &|run: &Run| total(run).max));
    let values = rows.iter().flat_map(|(_, dots)| dots.iter().map(|dot| dot.value));
    let axis = Axis::holding("send latency (ms)", Scale::Log, values);
    page.open("figure", &[]);
    let entries: Vec<(usize, String)> = lanes.iter().flatten().map(|run| (run.colour, told(run))).collect();
    legend(page, entries.iter().map(|(colour, label)| (*colour, Stroke::Dots, label.as_str())));
    let description = "Send latency at each percentile, runs with sync flush beside those with async flush".to_owned();
    DotChart { description, axis, rows, reference: None }.draw(page);
    page.close();

    if pairs.is_empty() {
        return;
    }
    page.open("div", &[("class", "scroll")]).open("table", &[]);
    page.open("thead", &[]).open("tr", &[]).leaf("th", &[], "sync against async").leaf("th", &[], "rate");
    for wanted in PERCENTILES {
        page.leaf("th", &[], &percentile(wanted));
    }
    page.leaf("th", &[], "max").close().close();
    page.open("tbody", &[]);
    for (sync, r#async) in pairs {
        page.open("tr", &[]).leaf("th", &[], &format!("{} / {}", sync.name, r#async.name));
        page.leaf("td", &[], &figures::ratio(rate_of(&sync.result) / rate_of(&r#async.result)));
        let (sync, r#async) = (total(sync), total(r#async));
        for wanted in PERCENTILES {
            page.leaf("td", &[], &figures::ratio(at(&sync, wanted) / at(&r#async, wanted)));
        }
        page.leaf("td", &[], &figures::ratio(sync.max / r#async.max)).close();
    }
    page.close().close().close();
}

/// Runs that differ in their flush alone, as their names have it; a single run of either kind makes a pair too.
fn pairs(runs: &[Run]) -> Vec<(&Run, &Run)> {
    let of = |flush: &'static str| runs.iter().filter(move |run| is(run, flush));
    let syncs: Vec<&Run> = of("sync").collect();
    let asyncs: Vec<&Run> = of("async").collect();
    if let ([sync], [r#async]) = (&syncs[..], &asyncs[..]) {
        return vec![(sync, r#async)];
    }
    let partner =
        |sync: &&Run| asyncs.iter().find(|run| without_flush(&run.name) == without_flush(&sync.name)).copied();
    syncs.iter().filter_map(|sync| Some((*sync, partner(sync)?))).collect()
}

/// A run's name with its flush, where the name does not say it.
fn told(run: &Run) -> String {
    let flush = run.flush().unwrap_or_default();
    let said = run.name.split(|letter: char| !letter.is_alphanumeric()).any(|word| word.eq_ignore_ascii_case(flush));
    if said { run.name.clone() } else { format!("{} ({flush})", run.name) }
}

/// A name without the words for its flush: "java sync 12k" and "java async 12k" are alike.
fn without_flush(name: &str) -> String {
    let words = name.split(|letter: char| !letter.is_alphanumeric());
    let kept = words.filter(|word| !word.is_empty() && !["sync", "async"].contains(&word.to_lowercase().as_str()));
    kept.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_alike_but_for_their_flush() {
        assert_eq!(without_flush("java sync, 12k"), without_flush("java async, 12k"));
        assert_eq!(without_flush("Async-8x16"), without_flush("8x16 (SYNC)"));
        assert_ne!(without_flush("java sync"), without_flush("kerolox async"));
    }
}
