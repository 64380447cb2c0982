//! The command line of `kerolox-tune`: one file a subcommand, each with its arguments, its output and its exit codes.

mod check;
mod probe;
mod recommend;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Looks at the host that a Kerolox node runs on.
#[derive(Parser)]
#[command(
    name = "kerolox-tune",
    version,
    after_help = "Example:\n  kerolox-tune check --executors 8\n\nEach command has a --help of its own."
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Check(check::Args),
    Probe(probe::Args),
    Recommend(recommend::Args),
}

pub fn run() -> ExitCode {
    match Arguments::parse().command {
        Command::Check(args) => check::run(args),
        Command::Probe(args) => probe::run(args),
        Command::Recommend(args) => recommend::run(args),
    }
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
