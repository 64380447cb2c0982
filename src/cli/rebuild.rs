//! `kerolox rebuild`: consume queues and index from the log.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::text::escaped;
use super::verify::ShapeArgs;
use super::{EXIT_FAILURE, EXIT_USAGE};
use crate::config::{Config, ConfigErrors, LogFormat, Overrides};
use crate::io::AppendMode;
use crate::node;
use crate::store::survey::{Shape, StoreDir, bounds};
use crate::store::{OpenError, RebuildPlan, rebuild};

/// Done, and messages are lost.
const EXIT_LOST: u8 = 3;

/// Build the consume queues and the index of a store anew, from its commit log
///
/// For stores whose derived files are lost, or in doubt (see `kerolox verify`). Recovers the log as a start would, reads
/// all of it, and removes the old files once the new ones are on stable storage. If the log cannot be opened, the old files
/// stay. A rebuild that is killed is completed by the next one, or by the next start. File sizes are told from the files;
/// where there are none, from --config or the defaults.
#[derive(Debug, clap::Args)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  kerolox rebuild /var/lib/kerolox
  kerolox rebuild /var/lib/kerolox --config /etc/kerolox.toml && kerolox verify /var/lib/kerolox

Exit codes:
  0  done
  1  failed on the way (I/O error); a further try may help
  2  the store cannot be opened or is in use, or the settings are wrong
  3  done, but something is lost: the lines say what was cut off the log or is damaged in it"
)]
pub(super) struct Args {
    /// The store's directory: store.root, in Java storePathRootDir
    dir: PathBuf,
    /// Settings in TOML: delay levels, and sizes of files that are not there [default: none]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    shape: ShapeArgs,
    /// Tell on standard error what is being done, even if that is no terminal
    #[arg(long)]
    progress: bool,
}

pub(super) fn run(args: Args) -> ExitCode {
    let found = StoreDir::open(&args.dir).and_then(|dir| {
        let mut plan = RebuildPlan::default();
        for queue in &dir.queues {
            let bounds = bounds(&dir, queue)?;
            plan.queue_count += u64::from(bounds.end > 0);
            if bounds.end == 0 || !bounds.is_empty() {
                plan.queues.push(queue.key.clone());
            }
        }
        Ok((Shape::of(&dir, args.shape.hints()), plan, !dir.index_files.is_empty()))
    });
    let (shape, plan, has_index) = match found {
        Ok(found) => found,
        Err(error) => return refused(&error),
    };
    let hints = args.shape.hints();
    if shape.index.is_none() && (hints.index_slots.is_some() || hints.index_entries.is_some()) {
        let why = match has_index {
            true => "the length of the index files is another with --index-slots and --index-entries; leave them out",
            false => {
                "there is no index file to tell the other number from: give --index-slots and --index-entries both"
            }
        };
        eprintln!("kerolox: {why}");
        return ExitCode::from(EXIT_USAGE);
    }
    let mut config = match settings(args.config.as_deref(), &args.dir, &shape) {
        Ok(config) => config,
        Err(errors) => {
            errors.lines().iter().for_each(|line| eprintln!("kerolox: {line}"));
            return ExitCode::from(EXIT_USAGE);
        }
    };
    if args.progress || std::io::IsTerminal::is_terminal(&std::io::stderr()) {
        config.log.format = LogFormat::Text;
        super::serve::start_log(&config.log);
    }
    let settings = node::store_settings(&config, AppendMode::Buffered, config.net.listen);
    match rebuild(settings, &plan, node::memory_len()) {
        Ok(built) => {
            for region in &built.lost {
                println!(
                    "{}\t{}\t{} bytes\t{}\tcopy: {}",
                    region.kind, region.phy, region.len, region.why, region.copy
                );
            }
            for region in &built.known {
                println!("known damage\t{}\t{} bytes\t{}", region.phy, region.len, region.why);
            }
            for queue in &built.left {
                println!(
                    "left\t{}\tits topic is not in config/topics.json: its queue stays as it was",
                    escaped(&queue.to_string())
                );
            }
            if built.slots_kept > 0 {
                println!("{} slots of lost messages at the ends of queues are kept", built.slots_kept);
            }
            println!(
                "{} units in {} queues, {} index files; the log ends at {}",
                built.units, built.queues, built.index_files, built.log_end
            );
            if built.lost.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_LOST) }
        }
        Err(error) => refused(&error),
    }
}

fn refused(error: &OpenError) -> ExitCode {
    eprintln!("kerolox: {error}");
    let is_of_log = matches!(
        error,
        OpenError::WrongSize { .. }
            | OpenError::Hole { .. }
            | OpenError::Gap { .. }
            | OpenError::Short { .. }
            | OpenError::Foreign { .. }
    );
    if is_of_log {
        eprintln!("kerolox: if the files cannot be brought back, `kerolox salvage` copies what is left of the store");
    }
    ExitCode::from(if matches!(error, OpenError::Io { .. }) { EXIT_FAILURE } else { EXIT_USAGE })
}

/// The settings to open this store with: the file's, but for the sizes that the store has.
pub(super) fn settings(file: Option<&Path>, dir: &Path, shape: &Shape) -> Result<Config, ConfigErrors> {
    const FOUND: &str = "the store's files";
    let mut overrides = Overrides::default();
    let root = dir.to_str().ok_or_else(|| ConfigErrors::one(format!("{}: its name is no UTF-8", dir.display())))?;
    overrides.set("store.root", "DIR", root);
    let mut set = |key, value: u64| overrides.set(key, FOUND, i64::try_from(value).unwrap_or(i64::MAX));
    if let Some(len) = shape.segment_len {
        set("store.commitlog_file_size", len);
        // Nothing is sent, but the two must fit.
        set("limits.max_message_size", (len / 2).clamp(1024, 4 << 20));
    }
    if let Some(len) = shape.queue_file_len {
        set("store.consumequeue_file_size", len);
    }
    if let Some(index) = shape.index {
        set("store.index_slots", index.slots.into());
        set("store.index_entries", index.entries.into());
    }
    Config::load(file, overrides)
}
