//! The command line of `kerolox-tune`: one file a subcommand, each with its arguments, its output and its exit codes.

mod apply;
mod check;
mod node_args;
mod output;
mod probe;
mod recommend;
mod undo;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use kerolox::tuning::record::RecordError;

/// Something could not be done.
const EXIT_FAILURE: u8 = 1;
/// The command line, the host or a file is not as needed; trying again without a change cannot help. clap uses the same.
const EXIT_CANNOT: u8 = 2;

/// Looks at the host that a Kerolox node runs on, and sets it right.
#[derive(Parser)]
#[command(
    name = "kerolox-tune",
    version,
    after_help = "\
Examples:
  kerolox-tune check --data /var/lib/kerolox   what this host gives a node there, and what it should
  kerolox-tune apply --data /var/lib/kerolox   sets what can be set until the host restarts
  kerolox-tune undo                            takes that back
  kerolox-tune probe /var/lib/kerolox          measures what the disk can do
  kerolox-tune recommend --p99-ms 5 --rate 20000 --size 1KiB   settings for a node there

Each command has a --help of its own."
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Check(check::Args),
    Apply(apply::Args),
    Undo(undo::Args),
    Probe(probe::Args),
    Recommend(recommend::Args),
}

pub fn run() -> ExitCode {
    match Arguments::parse().command {
        Command::Check(args) => check::run(args),
        Command::Apply(args) => apply::run(args),
        Command::Undo(args) => undo::run(args),
        Command::Probe(args) => probe::run(args),
        Command::Recommend(args) => recommend::run(args),
    }
}

fn exit_code(error: &RecordError) -> ExitCode {
    ExitCode::from(match error {
        RecordError::Wrong { .. } => EXIT_CANNOT,
        RecordError::Io { .. } | RecordError::Busy { .. } => EXIT_FAILURE,
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn every_subcommand_explains_itself_with_an_example_and_its_exit_codes() {
        let mut arguments = Arguments::command();
        arguments.build();
        for command in arguments.get_subcommands_mut().filter(|command| command.get_name() != "help") {
            let help = command.render_long_help().to_string();
            assert!(help.contains("Example"), "{help}");
            assert!(help.contains("Exit codes"), "{help}");
        }
    }
}
