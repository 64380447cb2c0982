//! Percentile files in the text form of HdrHistogram, which its plotters read.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use hdrhistogram::Histogram;

const POINTS_A_HALVING: u32 = 5;
/// Of a histogram of three digits.
const SUB_BUCKETS: u32 = 2048;
const NANOS_A_MS: f64 = 1e6;

/// The file of one kind of latency: `run.hgrm` becomes `run-publish.hgrm`.
pub fn path(base: &Path, kind: &str) -> PathBuf {
    let stem = base.file_name().unwrap_or_default().to_string_lossy();
    base.with_file_name(format!("{}-{kind}.hgrm", stem.strip_suffix(".hgrm").unwrap_or(&stem)))
}

/// Writes a histogram of nanoseconds as milliseconds.
///
/// # Errors
/// Of the file.
pub fn write_file(path: &Path, histogram: &Histogram<u64>) -> io::Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    write(&mut out, histogram)?;
    out.flush()
}

fn write(out: &mut impl Write, histogram: &Histogram<u64>) -> io::Result<()> {
    let ms = |nanos: f64| nanos / NANOS_A_MS;
    writeln!(out, "{:>12} {:>14} {:>10} {:>14}\n", "Value", "Percentile", "TotalCount", "1/(1-Percentile)")?;
    let mut count = 0;
    for step in histogram.iter_quantiles(POINTS_A_HALVING) {
        count += step.count_since_last_iteration();
        let (value, part) = (ms(step.value_iterated_to() as f64), step.quantile_iterated_to());
        write!(out, "{value:12.3} {part:2.12} {count:10}")?;
        if part < 1.0 {
            write!(out, " {:14.2}", 1.0 / (1.0 - part))?;
        }
        writeln!(out)?;
    }
    writeln!(out, "#[Mean    = {:12.3}, StdDeviation   = {:12.3}]", ms(histogram.mean()), ms(histogram.stdev()))?;
    writeln!(out, "#[Max     = {:12.3}, Total count    = {:12}]", ms(histogram.max() as f64), histogram.len())?;
    writeln!(out, "#[Buckets = {:12}, SubBuckets     = {:12}]", histogram.buckets(), SUB_BUCKETS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_has_the_shape_that_plotters_read() {
        let mut histogram = crate::load::histogram();
        (1..=1000).for_each(|number| histogram.saturating_record(number * 10_000));
        let mut out = Vec::new();
        write(&mut out, &histogram).unwrap();
        let text = String::from_utf8(out).unwrap();
        let mut lines = text.lines();
        assert_eq!(lines.next().unwrap().split_whitespace().count(), 4);
        assert_eq!(lines.next(), Some(""));
        let (rows, comments): (Vec<&str>, Vec<&str>) = lines.partition(|line| !line.starts_with('#'));
        let rows: Vec<Vec<f64>> =
            rows.iter().map(|row| row.split_whitespace().map(|cell| cell.parse().unwrap()).collect()).collect();
        assert!(rows.len() > 20);
        assert!(rows.windows(2).all(|pair| pair[0][0] <= pair[1][0] && pair[0][1] <= pair[1][1]));
        let (last, others) = rows.split_last().unwrap();
        assert!(others.iter().all(|row| row.len() == 4));
        assert_eq!((last.len(), last[1], last[2]), (3, 1.0, 1000.0));
        assert!((last[0] - 10.0).abs() < 0.01, "{last:?}, in ms");
        let half = rows.iter().find(|row| row[1] == 0.5).unwrap();
        assert!((half[0] - 5.0).abs() < 0.01 && half[3] == 2.0, "{half:?}");
        assert!(comments[0].starts_with("#[Mean    =        5.00"), "{}", comments[0]);
        assert!(comments[1].contains("Total count    =         1000]"), "{}", comments[1]);
        assert_eq!(comments.len(), 3);
    }

    #[test]
    fn each_kind_has_a_file_of_its_own() {
        assert_eq!(path(Path::new("/tmp/run.hgrm"), "publish"), Path::new("/tmp/run-publish.hgrm"));
        assert_eq!(path(Path::new("run"), "pull"), Path::new("run-pull.hgrm"));
    }
}
