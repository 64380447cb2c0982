//! `kerolox-tune check`: every setting as it is found.

use std::fmt::Write;
use std::process::ExitCode;

use kerolox::tuning::place::Place;
use kerolox::tuning::{self, Finding, Severity};
use serde::Serialize;

use super::node_args::NodeArgs;
use super::output::{describe, json, print};

/// Print each host setting: what was found, what is wanted, why, and what to do. Changes nothing
///
/// The limits memlock and nofile are those of this process; a service has its own.
#[derive(clap::Args)]
#[command(after_help = "\
Exit codes:
  0  a node can start here
  1  the answer cannot be written
  2  it cannot, or --strict was given and there is a warning

Examples:
  kerolox-tune check --data /var/lib/kerolox
  kerolox-tune check --data /var/lib/kerolox --executors 8 --json")]
pub struct Args {
    #[command(flatten)]
    node: NodeArgs,
    /// Exit with 2 on a warning too, as kerolox serve --strict does
    #[arg(long)]
    strict: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    data: String,
    /// Mount and devices; none if they cannot be told.
    place: Option<&'a Place>,
    worst: Severity,
    findings: &'a [Finding],
}

pub fn run(args: Args) -> ExitCode {
    let host = args.node.host();
    let findings = tuning::check(&host);
    let worst = findings.iter().map(|finding| finding.severity).max().unwrap_or(Severity::Fine);
    let report =
        Report { data: host.data().display().to_string(), place: host.place().ok(), worst, findings: &findings };
    if let Err(code) = print(&if args.json { json(&report) } else { text(&report) }) {
        return code;
    }
    let refused = worst >= if args.strict { Severity::Warning } else { Severity::Refusal };
    if refused { ExitCode::from(super::EXIT_CANNOT) } else { ExitCode::SUCCESS }
}

fn text(report: &Report) -> String {
    let mut text = String::new();
    if let Some(place) = report.place {
        let devices: Vec<&str> = place.devices.iter().map(|device| &*device.name).collect();
        let _ = writeln!(
            text,
            "{} is on {} at {}, devices: {}\n",
            report.data,
            place.mount.file_system,
            place.mount.point.display(),
            if devices.is_empty() { "none".to_owned() } else { devices.join(", ") }
        );
    }
    for finding in report.findings {
        describe(&mut text, &finding.severity.to_string(), finding);
        if !finding.fix.is_empty() {
            let _ = writeln!(text, "  do:      {}", finding.fix);
        }
    }
    let count = |severity| report.findings.iter().filter(|finding| finding.severity == severity).count();
    let _ = writeln!(
        text,
        "\n{} refused, {} warnings, {} hints, {} as wanted",
        count(Severity::Refusal),
        count(Severity::Warning),
        count(Severity::Hint),
        count(Severity::Fine)
    );
    if report.findings.iter().any(|finding| !finding.changes.is_empty()) {
        text.push_str(
            "kerolox-tune apply sets what can be set until the host restarts, kerolox-tune undo takes it back\n",
        );
    }
    text
}
