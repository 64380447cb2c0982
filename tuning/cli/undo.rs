//! `kerolox-tune undo`: takes back what `apply` has set.

use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use kerolox::tuning::Host;
use kerolox::tuning::record::{self, Record};
use kerolox::tuning::undo::{Outcome, Undone, undo};
use serde::Serialize;

use super::EXIT_FAILURE;
use super::output::{json, print};

/// Bring back the values that apply has changed, the last change first
///
/// A value that somebody else has set since stays as it is, unless --force is given. What could not be brought back stays
/// noted for the next undo; once nothing is left, the file of old values is removed. A restart of the host brings back
/// everything by itself.
#[derive(clap::Args)]
#[command(after_help = "\
Exit codes:
  0  everything is as it was before apply, or there was nothing to undo
  1  something could not be brought back, or was set by somebody else since, or the answer cannot be written
  2  wrong usage, or the file of old values is not readable as such

Examples:
  kerolox-tune undo
  kerolox-tune undo --force --json")]
pub struct Args {
    /// Also overwrite what somebody else has set since
    #[arg(long)]
    force: bool,
    /// File of the old values
    #[arg(long, value_name = "FILE", default_value = record::DEFAULT_PATH)]
    state: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Look for /proc, /sys and the rest below this directory. For tests
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    sysroot: PathBuf,
}

#[derive(Default, Serialize)]
struct Report {
    state: String,
    /// Changes that a restart of the host has taken back.
    of_earlier_boot: usize,
    /// Why the file of old values does not tell what was done here.
    error: Option<String>,
    changes: Vec<Undone>,
}

pub fn run(args: Args) -> ExitCode {
    let host = Host::of_kernel(&args.sysroot);
    let mut report = Report { state: args.state.display().to_string(), ..Report::default() };
    let error = take_back(&host, &args, &mut report).err();
    report.error = error.as_ref().map(ToString::to_string);
    let printed = print(&if args.json { json(&report) } else { text(&report) });
    if let Some(error) = error {
        eprintln!("kerolox-tune: {error}");
        return super::exit_code(&error);
    }
    let all = report.changes.iter().all(|undone| undone.outcome.is_done());
    match printed {
        Err(code) => code,
        Ok(()) if all => ExitCode::SUCCESS,
        Ok(()) => ExitCode::from(EXIT_FAILURE),
    }
}

fn take_back(host: &Host, args: &Args, report: &mut Report) -> Result<(), record::RecordError> {
    let Some(mut record) = Record::open_if_there(host, &args.state)? else { return Ok(()) };
    report.of_earlier_boot = record.of_earlier_boot();
    undo(host, &mut record, args.force, |undone| report.changes.push(undone))
}

fn text(report: &Report) -> String {
    let mut text = String::new();
    for Undone { setting, path, old, new, outcome } in &report.changes {
        let _ = match outcome {
            Outcome::Restored => writeln!(text, "restored {setting}: {path} from {new} to {old}"),
            Outcome::AsBefore => writeln!(text, "ok       {setting}: {path} had its old value {old} again"),
            Outcome::Gone => writeln!(text, "ok       {setting}: {path} is no longer there"),
            Outcome::ChangedSince { value } => writeln!(
                text,
                "KEPT     {setting}: {path} was set to {value} by somebody else; before apply it was {old} (--force brings it back)"
            ),
            Outcome::Failed { why } => writeln!(text, "FAILED   {setting}: {why}; before apply it was {old}"),
        };
    }
    if report.of_earlier_boot > 0 {
        let _ = writeln!(text, "a restart of the host has taken back {} changes", report.of_earlier_boot);
    }
    let left = report.changes.iter().filter(|undone| !undone.outcome.is_done()).count();
    if left > 0 {
        let _ = writeln!(text, "\n{left} left to undo, noted in {}", report.state);
    } else if report.changes.is_empty() && report.of_earlier_boot == 0 && report.error.is_none() {
        let _ = writeln!(text, "nothing was applied, by {}", report.state);
    }
    text
}
