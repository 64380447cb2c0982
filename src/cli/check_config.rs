//! `kerolox check-config`: shows what a settings file means, without starting anything.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use super::{EXIT_FAILURE, EXIT_USAGE};
use crate::config::{AppendMode, Config, ConfigErrors, Overrides, SyncCall};
use crate::io::AppendMode as Appends;
use crate::node::{self, Placement};
use crate::store::{Layout, SyncRecord};

/// Print every setting, its value and where it came from
///
/// Checks what the text can show: keys, kinds, ranges, settings that do not go together. What needs the machine (cores,
/// locked memory, taken ports) is checked by `serve`. The output is TOML again. Last lines tell what "auto" comes to on this
/// host: how records are appended, and what a start has found to be the faster sync call for the store.
#[derive(Debug, clap::Args)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Example:
  kerolox check-config kerolox.toml
  kerolox check-config kerolox.toml --set flush.mode=sync

Exit codes:
  0  the file is fine
  2  it is not: one line for each mistake, on standard error"
)]
pub(super) struct Args {
    /// The settings file (every key is explained in docs/kerolox.toml); without it the defaults are shown
    file: Option<PathBuf>,
    /// Any setting, as with serve; may be given often [default: none]
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

pub(super) fn run(args: Args) -> ExitCode {
    let mut overrides = Overrides::default();
    let set = args.set.iter().try_for_each(|assignment| overrides.set_any("--set", assignment));
    match set.map_err(ConfigErrors::one).and_then(|()| Config::load(args.file.as_deref(), overrides)) {
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
    config.settings().iter().try_for_each(|setting| writeln!(out, "{setting}"))?;
    let placement = Placement::here(&config.cores);
    let is_apart = placement.as_ref().is_ok_and(Placement::writer_has_its_own);
    let append = node::append_mode(config, is_apart);
    match placement {
        _ if config.store.append != AppendMode::Auto => {}
        // Settings for another host's cores.
        Err(why) => return writeln!(out, "# store.append: not known here: {why}"),
        Ok(_) => {
            let executor = if is_apart { "has an executor of its own" } else { "shares its executor with a shard" };
            let mode = append.word();
            let unless =
                if append == Appends::Dma { " (buffered where the file system has no direct I/O)" } else { "" };
            writeln!(
                out,
                "# store.append: {mode}{unless}; the writer {executor} on the cores that this process may use"
            )?;
        }
    }
    match sync_call(config, append) {
        Some(found) => writeln!(out, "# flush.sync_call: {found}"),
        None => Ok(()),
    }
}

/// What "auto" comes to in the store of these settings.
fn sync_call(config: &Config, append: Appends) -> Option<String> {
    match (append, config.flush.sync_call) {
        (_, SyncCall::ODsync | SyncCall::Fdatasync) => return None,
        (_, SyncCall::Auto) if !config.flush.mode.is_sync() => {
            return Some("fdatasync; no write of an async node waits for the device".into());
        }
        (Appends::Mmap, SyncCall::Auto) => return Some("fdatasync, which is all that a mapping knows".into()),
        (Appends::Buffered | Appends::Dma, SyncCall::Auto) => {}
    }
    let layout = Layout::new(&config.store.root);
    let path = layout.sync_call();
    Some(match SyncRecord::load(&layout, append) {
        Ok(Some(record)) => format!("{record}; {}", path.display()),
        Ok(None) => format!("not probed yet; the next start does and notes it in {}", path.display()),
        Err(error) => format!("{} cannot be read: {error}", path.display()),
    })
}
