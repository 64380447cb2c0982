//! Amounts of bytes as people write them: `1GiB`, `512 KiB`, plain bytes.

const UNITS: [(&str, u64); 4] = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40)];

/// Reads a size; forms that mean different amounts to different people (`4MB`, `4M`) are refused.
///
/// # Errors
/// Says what is wrong with the text and which form is meant.
pub fn parse(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = (&text[..digits], text[digits..].trim_start());
    if number.is_empty() || unit.starts_with(['.', ',', '_']) {
        return Err(
            "is no size; write whole bytes (4194304) or a whole number of KiB, MiB, GiB or TiB (\"4MiB\")".into()
        );
    }
    let scale = match unit {
        "" | "B" => 1,
        _ => match UNITS.iter().find(|(name, _)| *name == unit) {
            Some((_, scale)) => *scale,
            None => return Err(unknown_unit(number, unit)),
        },
    };
    number
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(scale))
        .ok_or_else(|| "is more than 64 bits hold; write a smaller size".into())
}

fn unknown_unit(number: &str, unit: &str) -> String {
    let meant = unit
        .chars()
        .next()
        .and_then(|first| UNITS.iter().find(|(name, _)| name.starts_with(first.to_ascii_uppercase())));
    match meant {
        Some((name, _)) if unit.len() <= 3 => {
            format!("has a unit that may mean powers of 1000 or of 1024; write \"{number}{name}\" or plain bytes")
        }
        _ => "has no unit known here; write whole bytes or KiB, MiB, GiB or TiB".into(),
    }
}

/// The size in TOML: a string with the largest unit that divides it, or plain bytes.
pub(super) fn show(bytes: u64) -> String {
    match UNITS.iter().rev().find(|(_, scale)| bytes != 0 && bytes.is_multiple_of(*scale)) {
        Some((name, scale)) => format!("\"{}{name}\"", bytes / scale),
        None => bytes.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binary_units_and_plain_bytes_are_sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("4194304", 4 << 20),
            ("17B", 17),
            ("512 KiB", 512 << 10),
            ("1GiB", 1 << 30),
            (" 64MiB ", 64 << 20),
            ("2TiB", 2 << 40),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn ambiguous_units_are_refused_with_the_form_that_is_meant() {
        for text in ["4MB", "4M", "4mb", "4mib"] {
            assert!(parse(text).unwrap_err().contains("\"4MiB\""), "{text}");
        }
        assert!(parse("1k").unwrap_err().contains("\"1KiB\""));
        assert!(parse("3 parsecs").unwrap_err().contains("no unit known"));
    }

    #[test]
    fn fractions_signs_and_overflow_are_refused() {
        for text in ["", "GiB", "-1", "1.5GiB", "1_000", "99999999999999999999", "18446744073709551615KiB"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_shown_size_reads_back() {
        for bytes in [0, 1, 1023, 1024, 6_000_000, 1 << 30, 4 << 20, u64::MAX] {
            assert_eq!(parse(show(bytes).trim_matches('"')), Ok(bytes));
        }
        assert_eq!(show(1 << 30), "\"1GiB\"");
        assert_eq!(show(6_000_000), "6000000");
    }
}
