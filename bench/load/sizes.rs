//! How long bodies are: all the same, or by a distribution. Drawn with a seed, so that a run can be repeated.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The longest body that a size may ask for; brokers take 4 MiB unless told otherwise.
pub const BODY_LEN_MAX: u32 = 15 << 20;

/// Written as `1024`, `1KiB`, `uniform:100-4000` or `256:70,1024:20,16384:10` (size:weight, …).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Sizes {
    Fixed(u32),
    /// Both ends included.
    Uniform {
        from: u32,
        to: u32,
    },
    /// Sizes and their weights.
    Weighted(Vec<(u32, u32)>),
}

impl Sizes {
    pub fn min(&self) -> u32 {
        match self {
            Sizes::Fixed(len) => *len,
            Sizes::Uniform { from, .. } => *from,
            Sizes::Weighted(parts) => parts.iter().map(|(len, _)| *len).min().unwrap_or(0),
        }
    }

    pub fn max(&self) -> u32 {
        match self {
            Sizes::Fixed(len) => *len,
            Sizes::Uniform { to, .. } => *to,
            Sizes::Weighted(parts) => parts.iter().map(|(len, _)| *len).max().unwrap_or(0),
        }
    }

    /// Of the distribution, bytes.
    pub fn mean(&self) -> f64 {
        match self {
            Sizes::Fixed(len) => f64::from(*len),
            Sizes::Uniform { from, to } => (f64::from(*from) + f64::from(*to)) / 2.0,
            Sizes::Weighted(parts) => {
                let total: f64 = parts.iter().map(|(_, weight)| f64::from(*weight)).sum();
                parts.iter().map(|(len, weight)| f64::from(*len) * f64::from(*weight)).sum::<f64>() / total
            }
        }
    }

    /// `count` sizes whose shares are as near to the distribution as so many can be, in an order that `random` gives.
    ///
    /// Frames are built once and sent again and again, so a plain draw would give the run the chance shares of that one draw.
    pub fn deal(&self, count: usize, random: &mut Random) -> Vec<u32> {
        let mut dealt: Vec<u32> = (0..count)
            .map(|index| {
                // The middle of each of `count` equal parts of the distribution.
                self.at((index as f64 + 0.5) / count as f64)
            })
            .collect();
        for last in (1..dealt.len()).rev() {
            dealt.swap(last, random.below(last as u64 + 1) as usize);
        }
        dealt
    }

    /// The size below which the share `part` (0 to 1) of the distribution lies.
    fn at(&self, part: f64) -> u32 {
        match self {
            Sizes::Fixed(len) => *len,
            Sizes::Uniform { from, to } => from + (part * f64::from(to - from + 1)) as u32,
            Sizes::Weighted(parts) => {
                let total: f64 = parts.iter().map(|(_, weight)| f64::from(*weight)).sum();
                let mut passed = 0.0;
                for (len, weight) in parts {
                    passed += f64::from(*weight);
                    if part * total < passed {
                        return *len;
                    }
                }
                self.max()
            }
        }
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sizes::Fixed(len) => write!(f, "{len}"),
            Sizes::Uniform { from, to } => write!(f, "uniform:{from}-{to}"),
            Sizes::Weighted(parts) => {
                let texts: Vec<String> = parts.iter().map(|(len, weight)| format!("{len}:{weight}")).collect();
                f.write_str(&texts.join(","))
            }
        }
    }
}

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Sizes, String> {
        if let Some(range) = text.strip_prefix("uniform:") {
            let (from, to) = range.split_once('-').ok_or_else(|| bad(text))?;
            let (from, to) = (len(from)?, len(to)?);
            return if from <= to { Ok(Sizes::Uniform { from, to }) } else { Err(bad(text)) };
        }
        if !text.contains(':') {
            return len(text).map(Sizes::Fixed);
        }
        let part = |part: &str| {
            let (size, weight) = part.split_once(':').ok_or_else(|| bad(text))?;
            let weight = weight.parse::<u32>().ok().filter(|weight| (1..=1_000_000).contains(weight));
            Ok((len(size)?, weight.ok_or_else(|| bad(text))?))
        };
        text.split(',').map(part).collect::<Result<Vec<_>, String>>().map(Sizes::Weighted)
    }
}

impl TryFrom<String> for Sizes {
    type Error = String;

    fn try_from(text: String) -> Result<Sizes, String> {
        text.parse()
    }
}

impl From<Sizes> for String {
    fn from(sizes: Sizes) -> String {
        sizes.to_string()
    }
}

fn bad(text: &str) -> String {
    format!("{text:?} is no size; examples: 1024, 1KiB, uniform:100-4000, 256:70,1024:20,16KiB:10 (size:weight)")
}

/// Bytes, with KiB or MiB if wanted.
fn len(text: &str) -> Result<u32, String> {
    let (number, unit) = match text {
        _ if text.ends_with("KiB") => (&text[..text.len() - 3], 1 << 10),
        _ if text.ends_with("MiB") => (&text[..text.len() - 3], 1 << 20),
        _ => (text, 1),
    };
    let bytes = number.parse::<u32>().ok().and_then(|number| number.checked_mul(unit)).ok_or_else(|| bad(text))?;
    if bytes <= BODY_LEN_MAX {
        Ok(bytes)
    } else {
        Err(format!("a body of {bytes} bytes is too long for a frame; at most {BODY_LEN_MAX}"))
    }
}

/// Random numbers that a seed fixes. Not for secrets. Algorithm: SplitMix64.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Below `end`, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_written_and_written_as_read() {
        let read = |text: &str| text.parse::<Sizes>().unwrap();
        assert_eq!(read("1024"), Sizes::Fixed(1024));
        assert_eq!(read("1KiB"), Sizes::Fixed(1024));
        assert_eq!(read("2MiB"), Sizes::Fixed(2 << 20));
        assert_eq!(read("uniform:100-4KiB"), Sizes::Uniform { from: 100, to: 4096 });
        assert_eq!(read("256:70,1KiB:20"), Sizes::Weighted(vec![(256, 70), (1024, 20)]));
        for text in ["0", "17", "uniform:5-5", "256:70,1024:20,16384:10"] {
            assert_eq!(read(text).to_string(), text);
        }
    }

    #[test]
    fn what_is_no_size_is_refused_with_examples() {
        for text in
            ["", "x", "-1", "1KB", "1.5KiB", "uniform:", "uniform:9-3", "uniform:3", "5:0", "5:1,", "5:1,7", ":3"]
        {
            let why = text.parse::<Sizes>().unwrap_err();
            assert!(why.contains("uniform:100-4000"), "{text}: {why}");
        }
        assert!("16MiB".parse::<Sizes>().is_err());
        assert!("5000MiB".parse::<Sizes>().is_err());
    }

    #[test]
    fn dealt_sizes_have_the_shares_of_their_distribution_in_mixed_order() {
        let sizes: Sizes = "256:70,1024:20,16384:10".parse().unwrap();
        let dealt = sizes.deal(1000, &mut Random::new(7));
        for (len, share) in [(256, 700), (1024, 200), (16384, 100)] {
            assert_eq!(dealt.iter().filter(|found| **found == len).count(), share);
        }
        assert!(!dealt.is_sorted());
        let mean = dealt.iter().map(|len| f64::from(*len)).sum::<f64>() / 1000.0;
        assert!((mean - sizes.mean()).abs() < 1e-6, "{mean}");
        assert_eq!(dealt, sizes.deal(1000, &mut Random::new(7)), "a seed repeats it");
        assert_ne!(dealt, sizes.deal(1000, &mut Random::new(8)));
    }

    #[test]
    fn a_uniform_deal_spans_its_range_and_keeps_its_mean() {
        let sizes: Sizes = "uniform:100-4000".parse().unwrap();
        let dealt = sizes.deal(4096, &mut Random::new(1));
        assert_eq!((dealt.iter().min(), dealt.iter().max()), (Some(&100), Some(&4000)));
        let mean = dealt.iter().map(|len| f64::from(*len)).sum::<f64>() / 4096.0;
        assert!((mean - sizes.mean()).abs() < 1.0, "{mean}");
        assert_eq!((sizes.min(), sizes.max(), sizes.mean()), (100, 4000, 2050.0));
    }
}
