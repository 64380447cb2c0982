//! `kerolox check-config`: shows what a settings file means, without starting anything.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use super::{EXIT_FAILURE, EXIT_USAGE};
use crate::config::{Config, Overrides};

/// Print every setting, its value and where it came from
///
/// Checks what the text can show: keys, kinds, ranges, settings that do not go together. What needs the machine (cores,
/// locked memory, taken ports) is checked by `serve`. The output is TOML again.
#[derive(Debug, clap::Args)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Example:
  kerolox check-config kerolox.toml

Exit codes:
  0  the file is fine
  2  it is not: one line for each mistake, on standard error"
)]
pub(super) struct Args {
    /// The settings file (every key is explained in docs/kerolox.toml); without it the defaults are shown
    file: Option<PathBuf>,
}

pub(super) fn run(args: Args) -> ExitCode {
    match Config::load(args.file.as_deref(), Overrides::default()) {
        Ok(config) => match print(&config) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("kerolox: standard output cannot be written: {error}");
                ExitCode::from(EXIT_FAILURE)
            }
        },
        Err(errors) => {
            errors.lines().iter().for_each(|line| eprintln!("kerolox: {line}"));
            ExitCode::from(EXIT_USAGE)
        }
    }
}

fn print(config: &Config) -> io::Result<()> {
    let mut out = io::stdout().lock();
    config.settings().iter().try_for_each(|setting| writeln!(out, "{setting}"))
}
