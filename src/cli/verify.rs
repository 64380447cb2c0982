//! `kerolox verify`: does a store agree with itself?

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Serialize;

use super::progress::Meter;
use super::{EXIT_FAILURE, EXIT_USAGE};
use crate::config;
use crate::store::survey::{self, Report, Shape, ShapeHints, StoreDir, Verify};

/// Check a store that nobody uses, changing nothing
///
/// Reads every record of the commit log, every unit of the consume queues, every entry of the index, the checkpoint and
/// the tables in config/, of a store that Kerolox or a Java broker wrote, and says where they do not agree. File sizes are
/// told from the files. Prints a line for each finding: level, rule, place, what; separated by tabs. Errors are what
/// no start sets right by itself. Regions that a recovery has quarantined are listed apart: they are known.
#[derive(Debug, clap::Args)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  kerolox verify /var/lib/kerolox
  kerolox verify ./store --json report.json
  kerolox verify ./store --json - | jq .errors_by_rule

Exit codes:
  0  no errors (there may be warnings)
  1  errors were found
  2  the store cannot be read, or is in use"
)]
pub(super) struct Args {
    /// The store's directory: store.root, in Java storePathRootDir
    dir: PathBuf,
    /// Write the report as JSON to this file, or with - to standard output instead of the lines
    #[arg(long, value_name = "FILE|-")]
    json: Option<PathBuf>,
    /// Leave the index out, for brokers with messageIndexEnable=false
    #[arg(long)]
    no_index: bool,
    #[command(flatten)]
    shape: ShapeArgs,
    /// The delays of levels 1, 2, 3 … that the store was written with (limits.delay_levels, messageDelayLevel)
    #[arg(long, value_name = "LEVELS", default_value = config::DELAY_LEVELS_DEFAULT, value_parser = levels)]
    delay_levels: Levels,
    /// Tell on standard error how far it is, even if that is no terminal
    #[arg(long)]
    progress: bool,
}

/// What an index file does not say of itself.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct ShapeArgs {
    /// Hash slots of an index file [default: told from what is in the files]
    #[arg(long, value_name = "N")]
    index_slots: Option<u32>,
    /// Entries of an index file, the unused one included [default: told from what is in the files]
    #[arg(long, value_name = "N")]
    index_entries: Option<u32>,
}

impl ShapeArgs {
    pub(super) fn hints(self) -> ShapeHints {
        ShapeHints { index_slots: self.index_slots, index_entries: self.index_entries }
    }
}

#[derive(Clone, Debug)]
struct Levels(Vec<i64>);

fn levels(text: &str) -> Result<Levels, String> {
    config::delay_levels(text).map(Levels)
}

pub(super) fn run(args: Args) -> ExitCode {
    if let Some(why) = args.json.as_deref().and_then(|to| refuse_report_in(&args.dir, to)) {
        eprintln!("kerolox: {why}");
        return ExitCode::from(EXIT_USAGE);
    }
    let mut meter = Meter::new("verify", args.progress);
    let report = StoreDir::open(&args.dir).and_then(|dir| {
        let asked = Verify {
            shape: Shape::of(&dir, args.shape.hints()),
            delays_ms: args.delay_levels.0,
            index: !args.no_index,
        };
        survey::verify(&dir, &asked, &mut |done, total| meter.tell(done, total))
    });
    let report = match report {
        Ok(report) => report,
        Err(error) => {
            eprintln!("kerolox: {error}");
            return ExitCode::from(EXIT_USAGE);
        }
    };
    let is_on_stdout = args.json.as_deref() == Some(Path::new("-"));
    let mut written = args.json.as_deref().map_or(Ok(()), |to| write_json(&report, to));
    if !is_on_stdout {
        written = written.and_then(|()| print(&report));
    }
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            eprintln!("kerolox: the report cannot be written: {error}");
            ExitCode::from(EXIT_USAGE)
        }
        _ if report.clean => ExitCode::SUCCESS,
        _ => ExitCode::from(EXIT_FAILURE),
    }
}

/// Why a report may not be written there: into a store that is looked at, nothing is.
pub(super) fn refuse_report_in(store: &Path, to: &Path) -> Option<String> {
    if to == Path::new("-") {
        return None;
    }
    let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folders = [Some(folder.canonicalize().ok()?), to.canonicalize().ok()];
    let store = store.canonicalize().ok()?;
    let is_in_store = folders.iter().flatten().any(|path| path.starts_with(&store));
    is_in_store.then(|| format!("{}: lies in the store, in which nothing is written; name another file", to.display()))
}

/// Writes a report to a file, or for `-` to standard output.
pub(super) fn write_json(report: &impl Serialize, to: &Path) -> io::Result<()> {
    let mut text = serde_json::to_vec_pretty(report)?;
    text.push(b'\n');
    if to == Path::new("-") {
        return io::stdout().lock().write_all(&text);
    }
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", to.display()));
    File::create(to).and_then(|mut file| file.write_all(&text)).map_err(named)
}

fn print(report: &Report) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for finding in &report.findings {
        writeln!(out, "{finding}")?;
    }
    let unlisted = report.errors + report.warnings - report.findings.len() as u64;
    if unlisted > 0 {
        writeln!(out, "{unlisted} more findings are counted and not listed")?;
    }
    for known in &report.quarantined {
        let region = &known.region;
        let (units, entries) = (known.units, known.index_entries);
        writeln!(
            out,
            "quarantined\t{}\t{} bytes, {}: {}\t{units} units and {entries} index entries lead there",
            region.phy, region.len, region.kind, region.why
        )?;
    }
    for left_out in &report.not_checked {
        writeln!(out, "not checked\t{left_out}")?;
    }
    let counts = &report.counts;
    writeln!(
        out,
        "{} records from {} to {} in {} segments, {} units in {} queues, {} index entries in {} files",
        counts.records,
        counts.log_start,
        counts.log_end,
        counts.segments,
        counts.units,
        counts.queues,
        counts.index_entries,
        counts.index_files
    )?;
    writeln!(out, "{} errors, {} warnings", report.errors, report.warnings)
}
