//! `kerolox-bench`: loads any RocketMQ broker and tells how it took it. One file a subcommand.

mod cli;
mod compare;
mod hgrm;
mod ladder;
mod live;
mod load;
mod machine;
mod measure;
mod report;
mod result;
mod run;
mod sink;
mod soak;
mod table;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Loads a RocketMQ broker, Kerolox or Java, and measures rate and latency
#[derive(Debug, Parser)]
#[command(name = "kerolox-bench", version, verbatim_doc_comment, after_help = format!("\
Examples:
  kerolox-bench run --broker 127.0.0.1:10911 --connections 8 --depth 64   the most that a broker takes
  kerolox-bench run --broker 127.0.0.1:10911 --rate 12000                 its latencies at a fixed rate

{}", cli::EXIT_CODES))]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(Box<run::Args>),
    Compare(Box<compare::Args>),
    Ladder(Box<ladder::Args>),
    Soak(Box<soak::Args>),
    Report(report::Args),
    Sink(sink::Args),
}

fn main() -> ExitCode {
    let command = Arguments::parse().command;
    let signals = match command {
        Command::Report(_) | Command::Sink(_) => Ok(()),
        Command::Compare(_) => compare::stop_on_signals(),
        Command::Run(_) | Command::Ladder(_) | Command::Soak(_) => load::stop::on_signals(),
    };
    if let Err(error) = signals {
        return measure::Stop::from(format!("signals cannot be caught: {error}")).tell();
    }
    match command {
        Command::Run(args) => run::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Ladder(args) => ladder::run(&args),
        Command::Soak(args) => soak::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Sink(args) => sink::run(args),
    }
}
