//! `kerolox salvage`: what is left of a damaged store, as a new one.

use std::path::PathBuf;
use std::process::ExitCode;

use super::progress::Meter;
use super::rebuild::settings;
use super::text::escaped;
use super::verify::{ShapeArgs, refuse_report_in, write_json};
use super::{EXIT_FAILURE, EXIT_USAGE};
use crate::config;
use crate::io::AppendMode;
use crate::node;
use crate::store::survey::{Salvaged, Shape, StoreDir, salvage};
use crate::store::{OpenError, RebuildPlan, rebuild};

/// Copy all that can be read of a damaged store into a new one
///
/// Takes every whole record out of the commit log's files, whatever is missing, cut or overwritten between them, and the
/// readable tables of config/; then builds consume queues and index. Nothing is written in the store itself. Records keep
/// their physical offsets, so message ids stay valid, and their queue offsets. What is lost between them is filled with
/// records of rolled back transactions, which every broker steps over; each such region is on the new store's list in
/// kerolox/quarantine, and queue slots of lost messages lead there. Says in bytes and messages what is lost.
/// Consumer offsets beyond the end of their queue, whose newest messages are lost, are lowered to it.
#[derive(Debug, clap::Args)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  kerolox salvage /var/lib/kerolox --to /mnt/new/store
  kerolox salvage ./store --to ./saved --json - && kerolox verify ./saved

Exit codes:
  0  all that was there is saved: nothing was lost
  1  saved, but something is lost (the lines say what), or it failed on the way (I/O error)
  2  nothing can be saved, the store is in use, or --to is not empty"
)]
pub(super) struct Args {
    /// The damaged store's directory
    dir: PathBuf,
    /// The new store's directory, which must be missing or empty
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
    /// Settings in TOML: delay levels, and sizes of files that are not there [default: none]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Size of a commit log file, as in store.commitlog_file_size [default: what most files have]
    #[arg(long, value_name = "SIZE", value_parser = segment_len)]
    commitlog_file_size: Option<u64>,
    #[command(flatten)]
    shape: ShapeArgs,
    /// Write what was saved and lost as JSON to this file, or with - to standard output instead of the lines
    #[arg(long, value_name = "FILE|-")]
    json: Option<PathBuf>,
    /// Tell on standard error how far it is, even if that is no terminal
    #[arg(long)]
    progress: bool,
}

pub(super) fn run(args: Args) -> ExitCode {
    match save(&args) {
        Ok(salvaged) => report(&args, &salvaged),
        Err(Refusal::Store(error)) => {
            eprintln!("kerolox: {error}");
            ExitCode::from(if matches!(error, OpenError::Io { .. }) { EXIT_FAILURE } else { EXIT_USAGE })
        }
        Err(Refusal::Settings(lines)) => {
            lines.iter().for_each(|line| eprintln!("kerolox: {line}"));
            ExitCode::from(EXIT_USAGE)
        }
    }
}

fn segment_len(text: &str) -> Result<u64, String> {
    let len = config::parse_size(text)?;
    if len < 4096 { Err("is less than 4096 bytes, the least that a file has".into()) } else { Ok(len) }
}

enum Refusal {
    Store(OpenError),
    Settings(Vec<String>),
}

impl From<OpenError> for Refusal {
    fn from(error: OpenError) -> Refusal {
        Refusal::Store(error)
    }
}

fn save(args: &Args) -> Result<Salvaged, Refusal> {
    if let Some(why) = args.json.as_deref().and_then(|to| refuse_report_in(&args.dir, to)) {
        return Err(Refusal::Settings(vec![why]));
    }
    let dir = StoreDir::open(&args.dir)?;
    let mut shape = Shape::of(&dir, args.shape.hints());
    shape.segment_len = args.commitlog_file_size.or(shape.segment_len);
    let untold = args.config.is_none() && (shape.queue_file_len.is_none() || shape.index.is_none());
    // Before hours of reading: can the new store be opened with these?
    let config = settings(args.config.as_deref(), &args.to, &shape);
    let config = config.map_err(|errors| Refusal::Settings(errors.lines().to_vec()))?;
    if untold {
        let store = &config.store;
        eprintln!(
            "kerolox: the store has no files that tell all sizes, and there is no --config: consume queue files get {} bytes, index files {} slots and {} entries; a broker with other settings will refuse them",
            store.consumequeue_file_size, store.index_slots, store.index_entries
        );
    }
    let mut meters = [Meter::new("reading", args.progress), Meter::new("copying", args.progress)];
    let mut salvaged = salvage(&dir, config.store.commitlog_file_size, &args.to, &mut |what, done, total| {
        meters[usize::from(what == "copying")].tell(done, total);
    })?;
    drop(dir);
    let settings = node::store_settings(&config, AppendMode::Buffered, config.net.listen);
    rebuild(settings, &RebuildPlan::default(), node::memory_len())?;
    salvaged.take_back_quarantined(&args.to)?;
    Ok(salvaged)
}

fn report(args: &Args, salvaged: &Salvaged) -> ExitCode {
    let written = args.json.as_deref().map_or(Ok(()), |to| write_json(salvaged, to));
    if args.json.as_deref() != Some("-".as_ref()) {
        for lost in &salvaged.lost {
            println!("lost\t{}\t{} bytes\t{}", lost.phy, lost.len, lost.why);
        }
        for lost in &salvaged.config_lost {
            println!("lost\tconfig/{lost}");
        }
        for topic in &salvaged.topics_added {
            let topic = escaped(topic);
            println!("topic\t{topic}\twas not in the table, and has messages: added, with the settings of a new topic");
        }
        for topic in &salvaged.topics_deleted {
            let topic = escaped(topic);
            println!(
                "topic\t{topic}\tis not in the table and has no queue: it was deleted, nothing leads to its messages"
            );
        }
        println!(
            "saved {} records of {} bytes, physical offsets {} to {}, and config/ {}",
            salvaged.records,
            salvaged.record_bytes,
            salvaged.log_start,
            salvaged.log_end,
            salvaged.config_files.join(" ")
        );
        if salvaged.offsets_lowered > 0 {
            println!("lowered {} consumer and delay offsets to the ends of their queues", salvaged.offsets_lowered);
        }
        println!(
            "lost {} bytes in {} regions, {} messages by the numbers and units of their queues; {} bytes behind the last record; the disk did not give {} bytes",
            salvaged.lost_bytes,
            salvaged.lost.len(),
            salvaged.lost_messages,
            salvaged.tail_bytes,
            salvaged.unreadable_bytes
        );
    }
    if let Err(error) = written {
        eprintln!("kerolox: the report cannot be written: {error}");
        return ExitCode::from(EXIT_FAILURE);
    }
    if salvaged.is_whole() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_FAILURE) }
}
