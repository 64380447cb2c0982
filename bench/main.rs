//! `kerolox-bench`: loads any RocketMQ broker and tells how it took it. One file a subcommand.

mod cli;
mod hgrm;
mod live;
mod load;
mod result;
mod run;
mod sink;
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
    Sink(sink::Args),
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Run(args) => run::run(&args),
        Command::Sink(args) => sink::run(args),
    }
}
