//! The door: what `kerolox` can be told on the command line. One file a subcommand.
//!
//! `serve` starts the node; `check-config` shows its settings; `topic`, `send` and `tail` are a small client for people
//! without a JVM, which speaks to any RocketMQ broker over plain blocking sockets, and `status` asks one how it is;
//! `verify` and its like look at a store that nobody has open. Results go to standard output,
//! progress and complaints to standard error.

mod check_config;
pub mod client;
mod dump;
mod import_config;
mod inspect;
mod progress;
mod rebuild;
mod salvage;
mod send;
mod serve;
mod status;
mod tail;
pub mod text;
mod topic;
mod verify;

use std::fmt;
use std::io;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use client::ClientError;

/// Something failed while running; a restart may help.
const EXIT_FAILURE: u8 = 1;
/// The command line, the settings or the host are not as needed; a restart cannot help. clap uses the same number.
const EXIT_USAGE: u8 = 2;

const EXIT_CODES: &str = "\
Exit codes:
  0  done, or stopped as asked
  1  failed while running (connection lost, request refused, I/O error)
  2  wrong usage or settings; trying again without a change cannot help";

#[derive(Debug, Parser)]
#[command(
    name = "kerolox",
    version,
    about = "An Apache RocketMQ storage node on io_uring, one thread a core",
    after_help = format!("\
Examples:
  kerolox serve                                a node in ./kerolox-data on 127.0.0.1:10911, name server on 127.0.0.1:9876
  kerolox send --topic Hello --body \"first\"    sends one message (the topic is made on the way)
  kerolox tail --topic Hello --from-beginning  prints it, and those that follow

{EXIT_CODES}")
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::Args),
    CheckConfig(check_config::Args),
    Status(status::Args),
    Topic(topic::Args),
    Send(send::Args),
    Tail(tail::Args),
    Inspect(inspect::Args),
    Verify(verify::Args),
    Dump(dump::Args),
    Rebuild(rebuild::Args),
    Salvage(salvage::Args),
    ImportConfig(import_config::Args),
}

/// Reads the command line, does what it says and gives the exit code. Wrong usage ends the process in here.
pub fn run() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Serve(args) => return serve::run(args),
        Command::CheckConfig(args) => return check_config::run(args),
        Command::Status(args) => status::run(args),
        Command::Inspect(args) => return inspect::run(args),
        Command::Rebuild(args) => return rebuild::run(args),
        Command::ImportConfig(args) => return import_config::run(args),
        Command::Salvage(args) => return salvage::run(args),
        Command::Dump(args) => return dump::run(args),
        Command::Verify(args) => return verify::run(args),
        Command::Topic(args) => topic::run(args),
        Command::Send(args) => send::run(args),
        Command::Tail(args) => tail::run(args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("kerolox: {failure}");
            ExitCode::from(EXIT_FAILURE)
        }
    }
}

/// Why a client subcommand gave up.
#[derive(Debug)]
enum Failure {
    Client(ClientError),
    /// What was asked for is not there, or not as it should be; the text says what to do.
    NotThere(String),
    /// Standard output takes no more; a closed pipe (`| head`) is no failure.
    Output(io::Error),
    /// The interrupt signal cannot be caught.
    Signal(io::Error),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Client(error) => error.fmt(f),
            Failure::NotThere(text) => f.write_str(text),
            Failure::Output(error) => write!(f, "standard output cannot be written: {error}"),
            Failure::Signal(error) => write!(f, "the interrupt signal cannot be caught: {error}"),
        }
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Failure {
        Failure::Client(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Output(error)
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_subcommand_explains_itself_with_an_example_and_its_exit_codes() {
        let mut cli = Cli::command();
        cli.build();
        for command in cli.get_subcommands_mut().filter(|command| command.get_name() != "help") {
            let help = command.render_long_help().to_string();
            assert!(help.contains("Example"), "{help}");
            assert!(help.contains("Exit codes"), "{help}");
        }
    }
}
