//! `kerolox-tune check`: every setting as it is found.

use std::process::ExitCode;

use kerolox::tuning::{self, Severity};

/// Print each setting: what was found, what is wanted, why, and what to do. Changes nothing
#[derive(clap::Args)]
#[command(
    after_help = "Exit codes: 0 a node can start here, 2 it cannot.\n\nExample:\n  kerolox-tune check --executors 8"
)]
pub struct Args {
    /// Executors of the node: one a core that it uses.
    #[arg(long, default_value_t = 2)]
    executors: usize,
}

pub fn run(args: Args) -> ExitCode {
    let findings = tuning::check(args.executors);
    for finding in &findings {
        println!(
            "{:<8} {:<14} found: {}, wanted: {}",
            finding.severity, finding.setting, finding.found, finding.wanted
        );
        println!("{:<8} {:<14} why: {}", "", "", finding.reason);
        if !finding.fix.is_empty() {
            println!("{:<8} {:<14} do: {}", "", "", finding.fix);
        }
    }
    let refused = findings.iter().any(|finding| finding.severity == Severity::Refusal);
    if refused { ExitCode::from(2) } else { ExitCode::SUCCESS }
}
