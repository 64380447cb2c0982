//! `kerolox-tune probe`: measures, prints a table, and keeps the figures for `recommend`.

use std::fs::{self, OpenOptions};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::output::print;
use kerolox::config::parse_size;
use kerolox::tuning::probe::{
    BYTES_MIN, DEFAULT_FILE, MAX_BYTES_DEFAULT, MAX_SECONDS_DEFAULT, Options, ProbeError, QUICK_BYTES, QUICK_SECONDS,
    SECONDS_MIN, default_place, probe,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Measure what the disk below a store can do, and keep the figures for recommend
///
/// Writes files into a folder of its own below DIR, which is gone afterwards, also after Ctrl-C. Run it on an idle machine,
/// and where the store is to lie: figures of another file system say nothing.
#[derive(clap::Args)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  kerolox-tune probe
  kerolox-tune probe /var/lib/kerolox --quick --json /tmp/probe.json

Exit codes:
  0  measured, and the figures are in the file
  1  not measured: stopped, or the file system failed
  2  wrong usage: no such folder, no space in it, or no file for the figures"
)]
pub struct Args {
    /// Folder to measure in [default: ./kerolox-data if it is there, else the working directory]
    dir: Option<PathBuf>,
    /// Where the figures go; an older file is replaced
    #[arg(long, value_name = "FILE", default_value = DEFAULT_FILE)]
    json: PathBuf,
    /// A first look: at most 512 MiB and 12 s
    #[arg(long)]
    quick: bool,
    /// Most bytes to write in all, at most a quarter of them and 256 MiB at a time; at least 384MiB [default: 4GiB]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    max_bytes: Option<u64>,
    /// Most seconds to take, within a second or two; at least 5 [default: 60]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(SECONDS_MIN..=3600))]
    max_seconds: Option<u64>,
}

fn size(text: &str) -> Result<u64, String> {
    match parse_size(text) {
        Ok(len) if len < BYTES_MIN => Err(format!("must be at least {} MiB", BYTES_MIN >> 20)),
        parsed => parsed,
    }
}

pub fn run(args: Args) -> ExitCode {
    let (bytes, seconds) =
        if args.quick { (QUICK_BYTES, QUICK_SECONDS) } else { (MAX_BYTES_DEFAULT, MAX_SECONDS_DEFAULT) };
    let (root, dir) = args.dir.map_or_else(default_place, |dir| (dir.clone(), dir));
    let options = Options {
        dir,
        root,
        max_bytes: args.max_bytes.unwrap_or(bytes),
        max_time: Duration::from_secs(args.max_seconds.unwrap_or(seconds)),
    };
    // A minute of measuring is not to end in a file that cannot be written.
    let is_new = !args.json.exists();
    if let Err(error) = OpenOptions::new().append(true).create(true).open(&args.json) {
        eprintln!("kerolox-tune: {}: cannot be written: {error}; name another with --json", args.json.display());
        return ExitCode::from(2);
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        if let Err(error) = signal_hook::flag::register(signal, Arc::clone(&stop)) {
            eprintln!("kerolox-tune: signals cannot be caught: {error}");
            return ExitCode::FAILURE;
        }
    }
    let probe = match probe(&options, &stop, &mut |line| eprintln!("{line}")) {
        Ok(probe) => probe,
        Err(error) => {
            eprintln!("kerolox-tune: {error}");
            if is_new {
                let _ = fs::remove_file(&args.json);
            }
            let is_usage = matches!(error, ProbeError::Dir { .. } | ProbeError::NoSpace { .. });
            return if is_usage { ExitCode::from(2) } else { ExitCode::FAILURE };
        }
    };
    if let Err(error) = fs::write(&args.json, probe.to_json()) {
        eprintln!("kerolox-tune: {}: cannot be written: {error}; name another with --json", args.json.display());
        return ExitCode::FAILURE;
    }
    let printed = print(&probe.table());
    eprintln!("the figures are in {}; next: kerolox-tune recommend --help", args.json.display());
    printed.err().unwrap_or(ExitCode::SUCCESS)
}
