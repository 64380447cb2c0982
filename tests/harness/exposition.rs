//! A strict reader of the Prometheus text format, version 0.0.4: what a scrape would refuse or misunderstand fails the test.

use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
}

type Labels = BTreeMap<String, String>;

#[derive(Debug)]
pub struct Sample {
    /// With the suffix of a histogram's.
    pub name: String,
    pub labels: Labels,
    pub value: f64,
}

#[derive(Debug)]
pub struct Family {
    pub kind: Kind,
    pub samples: Vec<Sample>,
}

/// One page.
#[derive(Debug)]
pub struct Exposition {
    pub families: BTreeMap<String, Family>,
}

/// One histogram.
#[derive(Debug)]
pub struct Histogram {
    /// Upper end, as written, and how many lie within.
    pub classes: Vec<(String, u64)>,
    pub count: u64,
    pub sum: f64,
}

impl Histogram {
    pub fn within(&self, end: &str) -> u64 {
        let found = self.classes.iter().find(|(of, _)| of == end);
        found.unwrap_or_else(|| panic!("no class up to {end} in {:?}", self.classes)).1
    }
}

impl Exposition {
    pub fn parse(text: &str) -> Exposition {
        assert!(text.ends_with('\n'), "the last line ends");
        let mut families: BTreeMap<String, Family> = BTreeMap::new();
        let mut lines = text.lines().peekable();
        while let Some(line) = lines.next() {
            let (name, help) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')).expect(line);
            assert!(is_name(name) && !help.trim().is_empty(), "{line}");
            let typed = lines.next().unwrap_or_default();
            let kind = match typed.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')).expect(typed) {
                (of, "counter") if of == name => Kind::Counter,
                (of, "gauge") if of == name => Kind::Gauge,
                (of, "histogram") if of == name => Kind::Histogram,
                _ => panic!("{typed}"),
            };
            let mut samples = Vec::new();
            while let Some(line) = lines.next_if(|line| !line.starts_with('#')) {
                samples.push(sample(line));
            }
            assert!(!samples.is_empty(), "{name} has samples");
            let family = Family { kind, samples };
            family.check(name);
            assert!(families.insert(name.to_owned(), family).is_none(), "{name} comes twice");
        }
        Exposition { families }
    }

    /// The one sample of a counter or gauge that has these labels, and any others.
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let found = self.find(name, name, labels);
        assert_eq!(found.len(), 1, "{name} {labels:?}: {found:?}");
        found[0].value
    }

    /// The one histogram that has these labels, and any others.
    pub fn histogram(&self, name: &str, labels: &[(&str, &str)]) -> Histogram {
        let one = |suffix: &str| {
            let found = self.find(name, &format!("{name}_{suffix}"), labels);
            assert_eq!(found.len(), 1, "{name} {labels:?}: {found:?}");
            found[0].value
        };
        let buckets = self.find(name, &format!("{name}_bucket"), labels);
        let classes = buckets.iter().map(|bucket| (bucket.labels["le"].clone(), bucket.value as u64)).collect();
        Histogram { classes, count: one("count") as u64, sum: one("sum") }
    }

    fn find(&self, family: &str, name: &str, labels: &[(&str, &str)]) -> Vec<&Sample> {
        let family = self.families.get(family).unwrap_or_else(|| panic!("there is no {family}"));
        let fits = |sample: &&Sample| {
            sample.name == name
                && labels.iter().all(|(name, value)| sample.labels.get(*name).is_some_and(|found| found == value))
        };
        family.samples.iter().filter(fits).collect()
    }

    /// Names as queries use them.
    pub fn sample_names(&self) -> BTreeSet<&str> {
        self.families.values().flat_map(|family| &family.samples).map(|sample| sample.name.as_str()).collect()
    }

    pub fn label_names(&self) -> BTreeSet<&str> {
        let samples = self.families.values().flat_map(|family| &family.samples);
        samples.flat_map(|sample| sample.labels.keys()).map(String::as_str).collect()
    }
}

impl Family {
    fn check(&self, name: &str) {
        let mut seen = BTreeSet::new();
        for sample in &self.samples {
            assert!(seen.insert((&sample.name, &sample.labels)), "twice: {sample:?}");
            if self.kind != Kind::Histogram {
                assert_eq!(sample.name, name);
            }
            if self.kind == Kind::Counter {
                assert!(sample.value >= 0.0 && name.ends_with("_total"), "{sample:?}");
            }
        }
        if self.kind == Kind::Histogram {
            self.check_histograms(name);
        }
    }

    fn check_histograms(&self, name: &str) {
        let mut series: BTreeMap<Labels, Vec<&Sample>> = BTreeMap::new();
        for sample in &self.samples {
            let mut labels = sample.labels.clone();
            labels.remove("le");
            series.entry(labels).or_default().push(sample);
        }
        for (labels, samples) in series {
            let [buckets @ .., sum, count] = &samples[..] else { panic!("{name} {labels:?}") };
            assert_eq!((&*sum.name, &*count.name), (&*format!("{name}_sum"), &*format!("{name}_count")), "{labels:?}");
            let (mut end, mut within) = (f64::NEG_INFINITY, 0.0);
            for bucket in buckets {
                assert_eq!(bucket.name, format!("{name}_bucket"));
                let next = number(&bucket.labels["le"]);
                assert!(next > end && bucket.value >= within, "{name} {labels:?} grows");
                (end, within) = (next, bucket.value);
            }
            assert!(end == f64::INFINITY && within == count.value, "{name} {labels:?} ends with all");
        }
    }
}

fn is_name(text: &str) -> bool {
    let is_letter = |c: char| c.is_ascii_alphabetic() || c == '_';
    text.starts_with(is_letter) && text.chars().all(|c| is_letter(c) || c.is_ascii_digit())
}

fn number(text: &str) -> f64 {
    match text {
        "+Inf" => f64::INFINITY,
        _ => text.parse().unwrap_or_else(|_| panic!("{text:?} is no number")),
    }
}

fn sample(line: &str) -> Sample {
    let at = line.find(['{', ' ']).unwrap_or_else(|| panic!("{line}"));
    let (name, rest) = line.split_at(at);
    assert!(is_name(name), "{line}");
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => read_labels(rest, line),
        None => (Labels::new(), rest),
    };
    let value = rest.strip_prefix(' ').unwrap_or_else(|| panic!("{line}"));
    assert!(!value.contains(' '), "a value without a time: {line}");
    Sample { name: name.to_owned(), labels, value: number(value) }
}

/// Behind the opening brace; gives what follows the closing one.
fn read_labels<'a>(mut rest: &'a str, line: &str) -> (Labels, &'a str) {
    let mut labels = Labels::new();
    loop {
        let (name, behind) = rest.split_once("=\"").unwrap_or_else(|| panic!("{line}"));
        assert!(is_name(name), "{line}");
        let (mut value, mut chars) = (String::new(), behind.chars());
        loop {
            match chars.next() {
                Some('"') => break,
                Some('\\') => value.push(match chars.next() {
                    Some('n') => '\n',
                    Some(c @ ('\\' | '"')) => c,
                    _ => panic!("{line}"),
                }),
                Some(c) => value.push(c),
                None => panic!("{line}"),
            }
        }
        assert!(labels.insert(name.to_owned(), value).is_none(), "{line}");
        match (chars.next(), chars.as_str()) {
            (Some(','), behind) => rest = behind,
            (Some('}'), behind) => return (labels, behind),
            _ => panic!("{line}"),
        }
    }
}

/// What a query asks for.
#[derive(Debug, Default)]
pub struct Used {
    pub metrics: BTreeSet<String>,
    pub labels: BTreeSet<String>,
}

/// Metrics and labels in a query of Prometheus, as far as dashboards use its language.
pub fn names_in(expression: &str) -> Used {
    const WORDS: [&str; 18] = [
        "rate",
        "increase",
        "sum",
        "max",
        "min",
        "avg",
        "count",
        "by",
        "without",
        "on",
        "ignoring",
        "group_left",
        "histogram_quantile",
        "clamp_min",
        "topk",
        "and",
        "or",
        "time",
    ];
    let mut used = Used::default();
    if let Some((of, label)) = expression.strip_prefix("label_values(").and_then(|rest| rest.rsplit_once(',')) {
        used = names_in(of);
        used.labels.insert(label.trim_end_matches(')').trim().to_owned());
        return used;
    }
    let (mut depth_of_labels, mut in_text) = (0, false);
    let mut word = String::new();
    let mut before_labels = String::new();
    for c in expression.chars().chain([' ']) {
        if in_text {
            in_text = c != '"';
            continue;
        }
        if c.is_ascii_alphanumeric() || c == '_' || c == '$' {
            word.push(c);
            continue;
        }
        let ended = std::mem::take(&mut word);
        let is_text = ended.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        if is_text && depth_of_labels > 0 {
            used.labels.insert(ended.clone());
        } else if is_text && !WORDS.contains(&ended.as_str()) {
            used.metrics.insert(ended.clone());
        } else if ["by", "without", "on", "ignoring"].contains(&ended.as_str()) {
            before_labels = ended.clone();
        }
        match c {
            '"' => in_text = true,
            '{' => depth_of_labels += 1,
            '}' => depth_of_labels -= 1,
            '(' if !std::mem::take(&mut before_labels).is_empty() => depth_of_labels += 1,
            ')' if depth_of_labels > 0 => depth_of_labels -= 1,
            _ => {}
        }
    }
    used
}
