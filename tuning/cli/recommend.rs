//! `kerolox-tune recommend`: settings from a probe's figures.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::output::print;
use kerolox::config::parse_size;
use kerolox::tuning::probe::{DEFAULT_FILE, Probe};
use kerolox::tuning::recommend::{P99_MS_DEFAULT, RATE_DEFAULT, Request, SIZE_DEFAULT, recommend, to_toml};

/// Choose settings that give what is asked for, from a probe's figures
///
/// Answers with a settings file: sync or async flush, append mode, sync call, intervals and what follows from them, each
/// line with its reason, and the latency and loss window to expect. Where no setting gives it, says which figure forbids it.
#[derive(clap::Args)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  kerolox-tune recommend --out kerolox.toml && kerolox serve --config kerolox.toml
  kerolox-tune recommend --p99-ms 2 --rate 50000 --size 1KiB --loss-window-ms 0

Exit codes:
  0  settings were printed or written
  1  no setting gives what is asked for
  2  wrong usage: no figures, or the file for the answer is there already"
)]
pub struct Args {
    /// What kerolox-tune probe wrote, or the folder with it
    #[arg(long, value_name = "FILE|DIR", default_value = DEFAULT_FILE)]
    probe: PathBuf,
    /// Milliseconds within which 99 of 100 sends are to be answered
    #[arg(long, value_name = "MS", default_value_t = P99_MS_DEFAULT, value_parser = milliseconds)]
    p99_ms: f64,
    /// Messages a second
    #[arg(long, value_name = "N", default_value_t = RATE_DEFAULT, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    rate: u64,
    /// Bytes of a message's body, such as 1024 or 1KiB
    #[arg(long, value_name = "SIZE", default_value_t = SIZE_DEFAULT, value_parser = size)]
    size: u64,
    /// Milliseconds of acknowledged messages that a loss of power may take, 0 for none [default: sync flush if it meets the
    /// rest, else async]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(..=600_000))]
    loss_window_ms: Option<u64>,
    /// Write the settings there instead of to standard output
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Replace the file if it is there
    #[arg(long, requires = "out")]
    force: bool,
}

fn milliseconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(ms) if ms > 0.0 && ms <= 3_600_000.0 => Ok(ms),
        _ => Err("must be a number above 0, such as 5 or 0.5".into()),
    }
}

/// As long as the longest that a node may be set to take.
fn size(text: &str) -> Result<u64, String> {
    let size = text.parse::<u64>().or_else(|_| parse_size(text))?;
    if (1..=15 << 20).contains(&size) { Ok(size) } else { Err("must be from 1 byte to 15MiB".into()) }
}

pub fn run(args: Args) -> ExitCode {
    let probe = match Probe::load(&args.probe) {
        Ok(probe) => probe,
        Err(error) => {
            eprintln!("kerolox-tune: {error}");
            return ExitCode::from(2);
        }
    };
    let Args { p99_ms, rate, size, loss_window_ms, .. } = args;
    let request = Request { p99_ms, rate, size, loss_window_ms };
    let advice = match recommend(&probe, &request) {
        Ok(advice) => advice,
        Err(refusal) => {
            eprintln!("kerolox-tune: no setting gives what is asked for on {}:", probe.site.dir.display());
            refusal.lines.iter().for_each(|line| eprintln!("- {line}"));
            return ExitCode::FAILURE;
        }
    };
    probe.remarks.iter().for_each(|remark| eprintln!("NOTE: {remark}"));
    let toml = to_toml(&probe, &request, &advice);
    let Some(out) = args.out else {
        return print(&toml).err().unwrap_or(ExitCode::SUCCESS);
    };
    match write(&out, args.force, &toml) {
        Ok(()) => {
            let mode = if advice.mode.is_sync() { "sync" } else { "async" };
            let next = format!("the settings are in {0}; next: kerolox serve --config {0}", out.display());
            print(&format!("{mode} flush. Expected: {}\n{next}\n", advice.expected)).err().unwrap_or(ExitCode::SUCCESS)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            eprintln!("kerolox-tune: {} is there already; name another, or replace it with --force", out.display());
            ExitCode::from(2)
        }
        Err(error) => {
            eprintln!("kerolox-tune: {}: cannot be written: {error}; name another with --out", out.display());
            ExitCode::FAILURE
        }
    }
}

fn write(path: &Path, replace: bool, text: &str) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true);
    if replace {
        options.create(true).truncate(true)
    } else {
        options.create_new(true)
    };
    options.open(path)?.write_all(text.as_bytes())
}
