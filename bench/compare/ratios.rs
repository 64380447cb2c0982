//! What the rounds of two brokers come to: each figure's median and spread, and that of the ratio.

use serde::Serialize;

use crate::report::{Kind, PERCENTILES, at, ms, percentile, rate, rate_of};
use crate::result::RunResult;

/// The middle, the lowest and the highest of several values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    pub median: f64,
    pub low: f64,
    pub high: f64,
}

impl Spread {
    /// Of at least one value.
    pub fn of(values: &[f64]) -> Spread {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (low, high) = (sorted[0], sorted[sorted.len() - 1]);
        let middle = sorted.len() / 2;
        let even = sorted.len().is_multiple_of(2);
        let median = if even { f64::midpoint(sorted[middle - 1], sorted[middle]) } else { sorted[middle] };
        Spread { median, low, high }
    }

    /// `median (low – high)`, each as `figure` writes it.
    pub fn told(&self, figure: impl Fn(f64) -> String) -> String {
        format!("{} ({} – {})", figure(self.median), figure(self.low), figure(self.high))
    }
}

/// One figure of both brokers, and their ratio.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// With its unit, as `send p99, ms`.
    pub name: String,
    pub a: Spread,
    pub b: Spread,
    /// Of the ratios of each round, not the ratio of the medians.
    pub ratio: Spread,
    #[serde(skip)]
    is_rate: bool,
}

impl Row {
    /// Without its unit, which a ratio has not.
    pub fn short_name(&self) -> &str {
        self.name.split(',').next().unwrap_or_default()
    }

    /// A value of this figure as people read it.
    pub fn figure(&self, value: f64) -> String {
        if self.is_rate { rate(value) } else { ms(value) }
    }
}

/// All figures that every run of both has. Runs with the same index belong to one round.
pub fn rows(a: &[RunResult], b: &[RunResult]) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut add = |name: String, is_rate: bool, of: &dyn Fn(&RunResult) -> Option<f64>| {
        let pairs: Vec<(f64, f64)> = a.iter().zip(b).filter_map(|(a, b)| Some((of(a)?, of(b)?))).collect();
        // A ratio to nought says nothing.
        if pairs.len() < a.len() || pairs.is_empty() || pairs.iter().any(|(_, b)| *b <= 0.0) {
            return;
        }
        let (of_a, of_b): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
        let ratios: Vec<f64> = pairs.iter().map(|(a, b)| a / b).collect();
        rows.push(Row { name, a: Spread::of(&of_a), b: Spread::of(&of_b), ratio: Spread::of(&ratios), is_rate });
    };
    add("rate, messages/s".to_owned(), true, &|result| Some(rate_of(result)));
    for kind in Kind::ALL {
        for wanted in PERCENTILES {
            let name = format!("{} {}, ms", kind.word(), percentile(wanted));
            add(name, false, &|result| Some(at(kind.total(result)?, wanted)));
        }
        add(format!("{} max, ms", kind.word()), false, &|result| Some(kind.total(result)?.max));
    }
    add("broker CPU, µs/message".to_owned(), false, &|result| result.cpu_micros_per_message);
    add("broker RSS, MiB".to_owned(), false, &|result| result.rss_anon_max_kib.map(|kib| kib as f64 / 1024.0));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::result;

    #[test]
    fn a_spread_has_the_middle_and_both_ends() {
        assert_eq!(Spread::of(&[3.0, 1.0, 2.0]), Spread { median: 2.0, low: 1.0, high: 3.0 });
        assert_eq!(Spread::of(&[4.0, 1.0, 2.0, 3.0]), Spread { median: 2.5, low: 1.0, high: 4.0 });
        assert_eq!(Spread::of(&[7.0]), Spread { median: 7.0, low: 7.0, high: 7.0 });
    }

    #[test]
    fn ratios_are_taken_round_by_round() {
        let (a, b) = ([result("a", 1.0), result("a", 8.0)], [result("b", 2.0), result("b", 4.0)]);
        let rows = rows(&a, &b);
        let p99 = rows.iter().find(|row| row.name == "send p99, ms").expect("it was measured");
        assert_eq!(p99.ratio, Spread { median: 1.25, low: 0.5, high: 2.0 });
        assert!(rows.iter().any(|row| row.name == "rate, messages/s" && row.ratio.median == 1.0));
    }

    #[test]
    fn a_figure_that_a_run_lacks_or_that_is_nought_has_no_row() {
        let (mut a, b) = (result("a", 1.0), result("b", 2.0));
        a.cpu_micros_per_message = None;
        let names: Vec<String> = rows(&[a.clone()], std::slice::from_ref(&b)).into_iter().map(|row| row.name).collect();
        assert!(!names.iter().any(|name| name.contains("CPU") || name.contains("end to end")), "{names:?}");
        let mut still = b;
        still.rate = 0.0;
        assert!(!rows(&[a], &[still]).iter().any(|row| row.name.starts_with("rate")));
    }
}
