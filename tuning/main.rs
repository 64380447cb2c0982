//! `kerolox-tune`: shows the settings of this host that a node depends on. A thin door over the library's `tuning`.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use kerolox::tuning::{self, Severity};

/// Looks at the host settings that Kerolox depends on. Changes nothing.
#[derive(Parser)]
#[command(
    name = "kerolox-tune",
    version,
    after_help = "Exit codes: 0 a node can start here, 2 it cannot.\n\nExample:\n  kerolox-tune check --executors 8"
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Prints each setting: what was found, what is wanted, why, and what to do.
    Check {
        /// Executors of the node: one a core that it uses.
        #[arg(long, default_value_t = 2)]
        executors: usize,
    },
}

fn main() -> ExitCode {
    let Command::Check { executors } = Arguments::parse().command;
    let findings = tuning::check(executors);
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
