//! Figures as people read them: three digits that matter, and a separator between thousands.

/// A latency in milliseconds, without its unit.
pub fn ms(value: f64) -> String {
    match value {
        _ if !value.is_finite() => "–".to_owned(),
        _ if value == 0.0 => "0".to_owned(),
        _ if value < 1.0 => format!("{value:.3}"),
        _ if value < 10.0 => format!("{value:.2}"),
        _ if value < 100.0 => format!("{value:.1}"),
        _ => whole(value),
    }
}

/// Messages a second.
pub fn rate(value: f64) -> String {
    if value < 100.0 { format!("{value:.1}") } else { whole(value) }
}

/// A ratio, such as `×0.08` or `×12`.
pub fn ratio(value: f64) -> String {
    match value {
        _ if !value.is_finite() => "–".to_owned(),
        _ if value < 0.095 => format!("×{value:.3}"),
        _ if value < 9.95 => format!("×{value:.2}"),
        _ if value < 99.5 => format!("×{value:.1}"),
        _ => format!("×{}", whole(value)),
    }
}

/// A count.
pub fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A number on an axis: `12k`, `1.5M`, `0.01`.
pub fn short(value: f64) -> String {
    let (value, unit) = match value.abs() {
        size if size >= 1e9 => (value / 1e9, "G"),
        size if size >= 1e6 => (value / 1e6, "M"),
        size if size >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    // Axis steps are 1, 2 or 5 of a power of ten: six decimals hold every one, and the zeros go.
    let text = format!("{value:.6}");
    format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

fn whole(value: f64) -> String {
    count(value.round().max(0.0) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_keep_the_digits_that_matter() {
        let shown = [0.0, 0.0712, 0.5, 1.0, 9.876, 32.14, 1234.5].map(ms);
        assert_eq!(shown, ["0", "0.071", "0.500", "1.00", "9.88", "32.1", "1,235"]);
        assert_eq!([99.94, 12_000.4].map(rate), ["99.9", "12,000"]);
        assert_eq!([0.083, 0.5, 1.0, 12.34, 1234.0].map(ratio), ["×0.083", "×0.50", "×1.00", "×12.3", "×1,234"]);
        assert_eq!([0.01, 5.0, 2000.0, 12_000.0, 1.5e6].map(short), ["0.01", "5", "2000", "12k", "1.5M"]);
        assert_eq!([0, 999, 1000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(ms(f64::NAN), "–");
    }
}
