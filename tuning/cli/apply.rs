//! `kerolox-tune apply`: sets what is not as wanted.

use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::PossibleValuesParser;
use kerolox::tuning::apply::{Applied, Outcome, apply, rehearse};
use kerolox::tuning::record::{self, Record};
use kerolox::tuning::{Change, SETTINGS};
use serde::Serialize;

use super::EXIT_FAILURE;
use super::node_args::NodeArgs;
use super::output::{describe, json, print};

/// Set what is not as wanted, until undo or a restart of the host
///
/// Writes to /proc/sys, /proc/irq and /sys only. What outlives a restart (mount options, timers, limits of services) is skipped: its
/// command is printed. The old values are noted in a file before they are changed, so that undo can bring them back; one
/// setting that cannot be applied keeps none of the others back.
#[derive(clap::Args)]
#[command(after_help = "\
Exit codes:
  0  everything that can be set here is as wanted
  1  a setting did not take its value, or the old ones cannot be noted, or the answer cannot be written
  2  wrong usage, or the file of old values is not readable as such

Examples:
  kerolox-tune apply --data /var/lib/kerolox --dry-run
  kerolox-tune apply --data /var/lib/kerolox
  kerolox-tune apply --data /var/lib/kerolox --only scheduler read_ahead")]
pub struct Args {
    #[command(flatten)]
    node: NodeArgs,
    /// Print what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
    /// Only these settings
    #[arg(long, value_name = "NAME", num_args = 1.., value_parser = PossibleValuesParser::new(SETTINGS.iter().map(|s| s.name)))]
    only: Vec<String>,
    /// File of the old values
    #[arg(long, value_name = "FILE", default_value = record::DEFAULT_PATH)]
    state: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    state: String,
    dry_run: bool,
    /// Why the rest was not tried.
    error: Option<String>,
    settings: &'a [Applied],
}

pub fn run(args: Args) -> ExitCode {
    let host = args.node.host();
    let (done, error) = if args.dry_run {
        (rehearse(&host, &args.only), None)
    } else {
        let mut done = Vec::new();
        let error = Record::open(&host, &args.state)
            .and_then(|mut record| apply(&host, &mut record, &args.only, |applied| done.push(applied)))
            .err();
        (done, error)
    };
    let told = error.as_ref().map(ToString::to_string);
    let report =
        Report { state: args.state.display().to_string(), dry_run: args.dry_run, error: told, settings: &done };
    let printed = print(&if args.json { json(&report) } else { text(&report) });
    if let Some(error) = error {
        eprintln!("kerolox-tune: {error}");
        return super::exit_code(&error);
    }
    let failed = done.iter().any(|applied| matches!(applied.outcome, Outcome::Failed { .. }));
    match printed {
        Err(code) => code,
        Ok(()) if failed => ExitCode::from(EXIT_FAILURE),
        Ok(()) => ExitCode::SUCCESS,
    }
}

fn text(report: &Report) -> String {
    let mut text = String::new();
    let mut counts = [0; 5];
    for Applied { finding, outcome } in report.settings {
        let (index, mark) = match outcome {
            Outcome::AsWanted => (0, "ok"),
            Outcome::Applied => (1, "applied"),
            Outcome::WouldApply => (2, "to do"),
            Outcome::Skipped => (3, "skipped"),
            Outcome::Failed { .. } => (4, "FAILED"),
        };
        counts[index] += 1;
        describe(&mut text, mark, finding);
        match outcome {
            Outcome::AsWanted => {}
            Outcome::Skipped => {
                let _ = writeln!(text, "  by hand: {}", finding.fix);
            }
            Outcome::Failed { why } => {
                let _ = writeln!(text, "  failed:  {why}");
            }
            Outcome::Applied | Outcome::WouldApply => {
                for Change { path, from, to, .. } in &finding.changes {
                    let _ = writeln!(text, "  set:     {path} from {from} to {to}");
                }
            }
        }
    }
    let [fine, applied, to_do, skipped, failed] = counts;
    let _ = if report.dry_run {
        writeln!(text, "\n{to_do} to apply, {skipped} to do by hand, {fine} as wanted; nothing was changed")
    } else {
        writeln!(text, "\n{applied} applied, {failed} failed, {skipped} to do by hand, {fine} as wanted")
    };
    if applied > 0 {
        let _ = writeln!(text, "old values: {}", report.state);
    }
    text
}
