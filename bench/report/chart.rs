//! Charts as SVG: lines over two axes, and dots in rows over one.
//!
//! Each chart is drawn twice, for wide and for narrow screens, and the style sheet shows one: a picture that is merely
//! scaled down has letters that nobody can read. Colours, dashes and letters come from the style sheet too, so that one
//! drawing serves light and dark.

use super::figures;
use super::markup::Markup;

/// How many kinds of line the style sheet knows; further ones begin again.
pub const COLOURS: usize = 8;

/// The two sizes, in units that are pixels if the chart has the room.
const SIZES: [Size; 2] = [
    Size { class: "chart wide", width: 920.0, height: 380.0, left: 52.0, right: 18.0, ticks: 11 },
    Size { class: "chart narrow", width: 360.0, height: 300.0, left: 44.0, right: 14.0, ticks: 5 },
];
const TOP: f64 = 26.0;
const BOTTOM: f64 = 44.0;
/// How wide a letter is on the average, on the wide side.
const LETTER: f64 = 6.8;
/// The least value of a logarithmic axis: a thousandth of a nanosecond in ms. Files may say less, for which there are no
/// powers of ten to draw.
const LOG_MIN: f64 = 1e-9;
/// Height of a row of dots.
const ROW: f64 = 34.0;

struct Size {
    class: &'static str,
    width: f64,
    height: f64,
    left: f64,
    right: f64,
    /// How many numbers fit on the horizontal axis.
    ticks: usize,
}

/// How values spread over an axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scale {
    /// From nought.
    Linear,
    Log,
    /// By `1 / (1 - q)`, logarithmically: 90, 99 and 99.9 % are equally far apart. Values are percentiles.
    Percentile,
    /// Seconds, from nought.
    Time,
}

/// An axis that holds the values it was made for.
#[derive(Clone, Debug)]
pub struct Axis {
    title: &'static str,
    scale: Scale,
    low: f64,
    high: f64,
}

impl Axis {
    /// An axis on which all `values` lie. Values that a scale cannot show (nought on a logarithmic one, and next to nought) do not count.
    pub fn holding(title: &'static str, scale: Scale, values: impl Iterator<Item = f64>) -> Axis {
        let shown = values.filter(|value| value.is_finite() && (scale != Scale::Log || *value >= LOG_MIN));
        let (low, high) = shown.fold((f64::MAX, f64::MIN), |(low, high), it| (low.min(it), high.max(it)));
        let (low, high) = if low > high { (1.0, 1.0) } else { (low, high) };
        let (low, high) = match scale {
            Scale::Linear => (0.0, if high > 0.0 { high * 1.08 } else { 1.0 }),
            Scale::Time => (0.0, if high > 0.0 { high } else { 1.0 }),
            Scale::Percentile => (0.0, high.clamp(99.0, 100.0 - 1e-9)),
            Scale::Log => {
                let (low, high) = (step_below(low), step_above(high));
                if low == high { (low / 2.0, high * 2.0) } else { (low, high) }
            }
        };
        Axis { title, scale, low, high }
    }

    /// Makes the axis hold `value` as well.
    pub fn with(mut self, value: f64) -> Axis {
        self.low = self.low.min(value);
        self.high = self.high.max(value);
        self
    }

    /// Where a value lies: 0 at the low end, 1 at the high one. What lies outside is drawn at the end.
    fn place(&self, value: f64) -> f64 {
        let stretch = |value: f64| match self.scale {
            Scale::Linear | Scale::Time => value,
            Scale::Log => value.max(f64::MIN_POSITIVE).log10(),
            Scale::Percentile => -(1.0 - value.min(100.0 - 1e-9) / 100.0).log10(),
        };
        let (low, high) = (stretch(self.low), stretch(self.high));
        ((stretch(value) - low) / (high - low)).clamp(0.0, 1.0)
    }

    /// Places for lines without numbers: every digit of a decade, so that the eye sees that the axis is logarithmic.
    fn minor(&self) -> Vec<f64> {
        let decades = (self.high / self.low).log10();
        if self.scale != Scale::Log || !(1.3..=4.5).contains(&decades) {
            return Vec::new();
        }
        let (first, last) = (self.low.log10().floor() as i32, self.high.log10().ceil() as i32);
        let values = (first..=last).flat_map(|power| (2..10).map(move |digit| f64::from(digit) * 10f64.powi(power)));
        values.filter(|value| (self.low..=self.high).contains(value)).collect()
    }

    /// Values with a line and a number, at most about `room` of them.
    fn ticks(&self, room: usize) -> Vec<(f64, String)> {
        match self.scale {
            Scale::Linear => {
                let step = step_above(self.high / room.min(8) as f64);
                let values = (0..).map(|index| f64::from(index) * step).take_while(|value| *value <= self.high);
                values.map(|value| (value, figures::short(value))).collect()
            }
            Scale::Time => {
                let steps = [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0];
                let hours = [1.0, 2.0, 4.0, 6.0, 12.0, 24.0, 48.0].map(|hours| hours * 3600.0);
                let fits = |step: &f64| self.high / step < room as f64;
                let step = steps.into_iter().chain(hours).find(fits).unwrap_or(self.high);
                let values = (0..=room as u32).map(|index| f64::from(index) * step);
                values.take_while(|value| *value <= self.high).map(|value| (value, time(value, step))).collect()
            }
            Scale::Percentile => {
                let all = [0.0, 50.0, 90.0, 99.0, 99.9, 99.99, 99.999, 99.9999, 99.99999, 99.999999];
                let inside: Vec<f64> = all.into_iter().filter(|value| *value <= self.high).collect();
                // 0 and 50 stand close to each other; on a narrow chart the letters of both would touch.
                let inside = inside.into_iter().filter(|value| room > 6 || ![0.0, 50.0].contains(value));
                inside.map(|value| (value, format!("{value}"))).collect()
            }
            Scale::Log => {
                let decades = (self.high / self.low).log10();
                let factors: &[f64] = match decades {
                    few if few <= 1.3 => &[1.0, 1.5, 2.0, 3.0, 5.0, 7.0],
                    few if few * 3.0 <= room.min(9) as f64 => &[1.0, 2.0, 5.0],
                    _ => &[1.0],
                };
                let (first, last) = (self.low.log10().floor() as i32, self.high.log10().ceil() as i32);
                let powers = (first..=last).map(|power| 10f64.powi(power));
                let values = powers.flat_map(|power| factors.iter().map(move |factor| factor * power));
                let inside = values.filter(|value| *value >= self.low * 0.999 && *value <= self.high * 1.001);
                inside.map(|value| (value, figures::short(value))).collect()
            }
        }
    }
}

/// 1, 2 or 5 of the power of ten, at or below a value.
fn step_below(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    let step = [5.0, 2.0, 1.0].into_iter().find(|step| step * power <= value * 1.000_001);
    step.unwrap_or(1.0) * power
}

/// 1, 2 or 5 of the power of ten, at or above a value.
fn step_above(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    let step = [1.0, 2.0, 5.0].into_iter().find(|step| step * power >= value * 0.999_999);
    step.unwrap_or(10.0) * power
}

fn time(seconds: f64, step: f64) -> String {
    match step {
        _ if seconds == 0.0 => "0".to_owned(),
        step if step < 60.0 => format!("{} s", figures::short(seconds)),
        step if step < 3600.0 => format!("{} min", figures::short(seconds / 60.0)),
        _ => format!("{} h", figures::short(seconds / 3600.0)),
    }
}

/// What a line looks like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Stroke {
    Solid,
    Dashed,
    /// Dots only, without a line.
    Dots,
}

/// Whether marks are there to be seen, or show themselves when the pointer comes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Marks {
    Shown,
    WhenPointedAt,
}

/// One line of a chart.
#[derive(Clone, Debug)]
pub struct Line {
    /// Which colour, from 0.
    pub colour: usize,
    pub stroke: Stroke,
    pub points: Vec<(f64, f64)>,
    /// Places with a mark, and what is told when the pointer rests on it.
    pub marks: Vec<(f64, f64, String)>,
}

/// Lines over two axes.
#[derive(Clone, Debug)]
pub struct LineChart {
    /// For those who cannot see it.
    pub description: String,
    pub x: Axis,
    pub y: Axis,
    pub lines: Vec<Line>,
    pub marks: Marks,
}

impl LineChart {
    pub fn draw(&self, page: &mut Markup) {
        for size in &SIZES {
            self.draw_one(page, size);
        }
    }

    fn draw_one(&self, page: &mut Markup, size: &Size) {
        let (width, height) = (size.width, size.height);
        let x = |value: f64| size.left + self.x.place(value) * (width - size.left - size.right);
        let y = |value: f64| TOP + (1.0 - self.y.place(value)) * (height - TOP - BOTTOM);
        open(page, size.class, width, height, &self.description);
        for value in self.y.minor() {
            line(page, "grid minor", (size.left, y(value)), (width - size.right, y(value)));
        }
        for (value, label) in self.y.ticks(8) {
            line(page, "grid", (size.left, y(value)), (width - size.right, y(value)));
            text(page, "tick end", (size.left - 6.0, y(value) + 4.0), &label);
        }
        for (value, label) in self.x.ticks(size.ticks) {
            line(page, "grid", (x(value), TOP), (x(value), height - BOTTOM));
            // The number of the last line would run out of the picture if it stood below its middle.
            let at_edge = x(value) > width - size.right - 12.0;
            let class = if at_edge { "tick end" } else { "tick middle" };
            let at = if at_edge { width - 2.0 } else { x(value) };
            text(page, class, (at, height - BOTTOM + 17.0), &label);
        }
        line(page, "base", (size.left, height - BOTTOM), (width - size.right, height - BOTTOM));
        text(page, "axis", (2.0, 13.0), self.y.title);
        text(page, "axis end", (width - size.right, height - 7.0), self.x.title);
        for Line { colour, stroke, points, marks } in &self.lines {
            let colour = format!("c{}", colour % COLOURS);
            match stroke {
                Stroke::Dots => {
                    for (at, value) in points {
                        circle(page, &format!("{colour} faint"), (x(*at), y(*value)), 1.6, None);
                    }
                }
                _ => {
                    let dash = if *stroke == Stroke::Dashed { " dashed" } else { "" };
                    let places = points.iter().map(|(at, value)| format!("{:.1},{:.1}", x(*at), y(*value)));
                    let places = places.collect::<Vec<_>>().join(" ");
                    page.empty("polyline", &[("class", &format!("line {colour}{dash}")), ("points", &places)]);
                    // A line of one point is none.
                    if let [(at, value)] = points[..] {
                        circle(page, &colour, (x(at), y(value)), 2.4, None);
                    }
                }
            }
            for (at, value, told) in marks {
                let (class, radius) = match self.marks {
                    Marks::Shown => (colour.clone(), 3.4),
                    Marks::WhenPointedAt => (format!("{colour} hidden"), 5.0),
                };
                circle(page, &class, (x(*at), y(*value)), radius, Some(told));
            }
        }
        page.close();
    }
}

/// One mark in a row of a [`DotChart`].
#[derive(Clone, Debug)]
pub struct Dot {
    pub colour: usize,
    /// Which line of its row, from 0: what lies on different ones cannot hide each other.
    pub lane: usize,
    pub value: f64,
    /// A line from low to high behind the mark.
    pub spread: Option<(f64, f64)>,
    pub told: String,
}

/// Rows of marks over one logarithmic axis.
#[derive(Clone, Debug)]
pub struct DotChart {
    pub description: String,
    pub axis: Axis,
    pub rows: Vec<(String, Vec<Dot>)>,
    /// A value with a line of its own, such as "equal".
    pub reference: Option<f64>,
}

impl DotChart {
    pub fn draw(&self, page: &mut Markup) {
        for size in &SIZES {
            self.draw_one(page, size);
        }
    }

    fn draw_one(&self, page: &mut Markup, size: &Size) {
        let longest = self.rows.iter().map(|(label, _)| label.chars().count()).max().unwrap_or(0);
        let left = (longest as f64 * LETTER + 18.0).min(size.width / 2.0);
        let width = size.width;
        let height = TOP + ROW * self.rows.len() as f64 + BOTTOM;
        let x = |value: f64| left + self.axis.place(value) * (width - left - size.right);
        open(page, size.class, width, height, &self.description);
        for (value, label) in self.axis.ticks(size.ticks) {
            line(page, "grid", (x(value), TOP - 8.0), (x(value), height - BOTTOM));
            text(page, "tick middle", (x(value), height - BOTTOM + 17.0), &label);
        }
        if let Some(value) = self.reference {
            line(page, "reference", (x(value), TOP - 8.0), (x(value), height - BOTTOM));
        }
        text(page, "axis end", (width - size.right, height - 7.0), self.axis.title);
        for (index, (label, dots)) in self.rows.iter().enumerate() {
            let middle = TOP + ROW * (index as f64 + 0.5);
            text(page, "tick end", (left - 10.0, middle + 4.0), label);
            line(page, "grid", (left, middle), (width - size.right, middle));
            let lanes = dots.iter().map(|dot| dot.lane + 1).max().unwrap_or(1) as f64;
            let apart = ((ROW - 14.0) / lanes).min(9.0);
            for dot in dots {
                let at = middle + (dot.lane as f64 - (lanes - 1.0) / 2.0) * apart;
                let colour = format!("c{}", dot.colour % COLOURS);
                if let Some((low, high)) = dot.spread {
                    line(page, &format!("line spread {colour}"), (x(low), at), (x(high), at));
                }
                circle(page, &colour, (x(dot.value), at), 4.5, Some(&dot.told));
            }
        }
        page.close();
    }
}

/// A list of what the lines of a chart mean, each once.
pub fn legend<'a>(page: &mut Markup, entries: impl Iterator<Item = (usize, Stroke, &'a str)>) {
    page.open("ul", &[("class", "legend")]);
    let mut told = Vec::new();
    for (colour, stroke, label) in entries {
        if told.contains(&(colour, stroke, label)) {
            continue;
        }
        told.push((colour, stroke, label));
        page.open("li", &[]);
        page.open("svg", &[("class", "key"), ("viewBox", "0 0 28 12"), ("aria-hidden", "true")]);
        let colour = format!("c{}", colour % COLOURS);
        match stroke {
            Stroke::Solid => line(page, &format!("line {colour}"), (1.0, 6.0), (27.0, 6.0)),
            Stroke::Dashed => line(page, &format!("line {colour} dashed"), (1.0, 6.0), (27.0, 6.0)),
            Stroke::Dots => [5.0, 14.0, 23.0].into_iter().for_each(|at| circle(page, &colour, (at, 6.0), 2.6, None)),
        }
        page.close();
        page.leaf("span", &[], label);
        page.close();
    }
    page.close();
}

fn open(page: &mut Markup, class: &str, width: f64, height: f64, description: &str) {
    let view = format!("0 0 {width} {height}");
    page.open("svg", &[("class", class), ("viewBox", &view), ("role", "img"), ("aria-label", description)]);
}

fn line(page: &mut Markup, class: &str, from: (f64, f64), to: (f64, f64)) {
    let [x1, y1, x2, y2] = [from.0, from.1, to.0, to.1].map(|value| format!("{value:.1}"));
    page.empty("line", &[("class", class), ("x1", &x1), ("y1", &y1), ("x2", &x2), ("y2", &y2)]);
}

fn text(page: &mut Markup, class: &str, at: (f64, f64), text: &str) {
    let [x, y] = [at.0, at.1].map(|value| format!("{value:.1}"));
    page.leaf("text", &[("class", class), ("x", &x), ("y", &y)], text);
}

fn circle(page: &mut Markup, class: &str, at: (f64, f64), radius: f64, told: Option<&str>) {
    let [x, y, radius] = [at.0, at.1, radius].map(|value| format!("{value:.1}"));
    let class = format!("dot {class}");
    let attributes: [(&str, &str); 4] = [("class", &class), ("cx", &x), ("cy", &y), ("r", &radius)];
    match told {
        Some(told) => {
            page.open("circle", &attributes).leaf("title", &[], told).close();
        }
        None => {
            page.empty("circle", &attributes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis, room: usize) -> Vec<String> {
        axis.ticks(room).into_iter().map(|(_, label)| label).collect()
    }

    #[test]
    fn nines_are_equally_far_apart() {
        let axis = Axis::holding("", Scale::Percentile, [0.0, 99.9].into_iter());
        let near = |value: f64, place: f64| assert!((axis.place(value) - place).abs() < 1e-6, "{value}");
        near(0.0, 0.0);
        near(90.0, 1.0 / 3.0);
        near(99.0, 2.0 / 3.0);
        near(99.9, 1.0);
        assert_eq!(labels(&axis, 11), ["0", "50", "90", "99", "99.9"]);
        assert_eq!(labels(&axis, 5), ["90", "99", "99.9"]);
        // The end is at the most that was measured; 100 % itself would be infinitely far away.
        assert_eq!(axis.place(100.0), 1.0);
    }

    #[test]
    fn a_logarithmic_axis_ends_at_round_values_and_ignores_nought() {
        let axis = Axis::holding("", Scale::Log, [0.0, 0.07, 34.0].into_iter());
        assert!((axis.low - 0.05).abs() < 1e-9 && (axis.high - 50.0).abs() < 1e-9, "{axis:?}");
        assert_eq!(axis.place(0.0), 0.0);
        assert_eq!(labels(&axis, 8), ["0.1", "1", "10"]);
        let narrow = Axis::holding("", Scale::Log, [1.2, 3.9].into_iter());
        assert_eq!(labels(&narrow, 8), ["1", "1.5", "2", "3", "5"]);
        let one = Axis::holding("", Scale::Log, [1.0].into_iter());
        assert!(one.low < 1.0 && one.high > 1.0);
    }

    #[test]
    fn linear_and_time_axes_begin_at_nought_with_round_steps() {
        let rates = Axis::holding("", Scale::Linear, [11_800.0, 12_000.0].into_iter());
        assert_eq!(labels(&rates, 8), ["0", "2000", "4000", "6000", "8000", "10k", "12k"]);
        let minutes = Axis::holding("", Scale::Time, [600.0].into_iter());
        assert_eq!(labels(&minutes, 5), ["0", "5 min", "10 min"]);
        let seconds = Axis::holding("", Scale::Time, [3.0].into_iter());
        assert_eq!(labels(&seconds, 5), ["0", "1 s", "2 s", "3 s"]);
        for (scale, values) in [(Scale::Linear, vec![]), (Scale::Linear, vec![0.0]), (Scale::Time, vec![])] {
            assert!(Axis::holding("", scale, values.into_iter()).ticks(8).len() > 1);
        }
    }

    #[test]
    fn values_of_any_size_give_an_axis_that_holds_them() {
        for value in [1e-9, 0.001, 0.999, 1.0, 7.3, 1e3, 9.99e8] {
            assert!(step_below(value) <= value * 1.001 && step_above(value) >= value * 0.999, "{value}");
            assert!(step_below(value) > value / 2.6 && step_above(value) < value * 2.6, "{value}");
            let axis = Axis::holding("", Scale::Log, [value, value * 3.0].into_iter());
            assert!(axis.place(value) < axis.place(value * 3.0), "{axis:?}");
            assert!(!axis.ticks(5).is_empty());
        }
    }

    #[test]
    fn every_chart_is_drawn_for_both_sizes() {
        let x = Axis::holding("seconds", Scale::Time, [0.0, 2.0].into_iter());
        let y = Axis::holding("ms", Scale::Log, [1.0, 2.0].into_iter());
        let points = vec![(0.0, 1.0), (2.0, 2.0)];
        let marks = vec![(2.0, 2.0, "the <end>".to_owned())];
        let lines = vec![Line { colour: 9, stroke: Stroke::Dashed, points, marks }];
        let mut page = Markup::new();
        LineChart { description: "a < b".to_owned(), x, y, lines, marks: Marks::Shown }.draw(&mut page);
        let text = page.finish();
        assert_eq!(text.matches("<svg").count(), 2);
        assert_eq!(text.matches("<polyline class=\"line c1 dashed\"").count(), 2);
        assert_eq!(text.matches("<title>the &lt;end&gt;</title>").count(), 2);
        assert!(text.contains("aria-label=\"a &lt; b\""));
    }

    #[test]
    fn next_to_nought_is_not_shown_on_a_logarithmic_axis() {
        let axis = Axis::holding("x", Scale::Log, [5e-324, 1e-300, 0.5, 2.0].into_iter());
        assert_eq!((axis.low, axis.high), (0.5, 2.0));
        assert_eq!(axis.place(5e-324), 0.0);
        let none = Axis::holding("x", Scale::Log, [5e-324].into_iter());
        assert!(none.ticks(8).len() < 20);
    }

    #[test]
    fn a_line_of_one_point_can_be_seen() {
        let circles = |points: Vec<(f64, f64)>| {
            let axis = || Axis::holding("x", Scale::Linear, [1.0].into_iter());
            let line = Line { colour: 0, stroke: Stroke::Solid, points, marks: vec![] };
            let mut page = Markup::new();
            let marks = Marks::WhenPointedAt;
            LineChart { description: String::new(), x: axis(), y: axis(), lines: vec![line], marks }.draw(&mut page);
            page.finish().matches("<circle").count()
        };
        assert_eq!((circles(vec![(1.0, 1.0)]), circles(vec![(0.0, 1.0), (1.0, 1.0)]), circles(vec![])), (2, 0, 0));
    }
}
