//! `kerolox inspect`: what a store holds.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use super::progress::Meter;
use super::text::utc;
use super::verify::{ShapeArgs, write_json};
use super::{EXIT_FAILURE, EXIT_USAGE};
use crate::store::survey::{Inspection, Shape, StoreDir, inspect};
use crate::types::Timestamp;

/// Show what a store that nobody uses holds, changing nothing
///
/// Segments, queues with their offsets, index files, checkpoint, tables, quarantined regions and the sizes that the store
/// was written with, told from a few reads of each file. Whether it is all right is for `kerolox verify` to say.
#[derive(Debug, clap::Args)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  kerolox inspect /var/lib/kerolox
  kerolox inspect ./store --json | jq '.queues[] | select(.topic == \"Orders\")'

Exit codes:
  0  shown
  1  standard output cannot be written
  2  the store cannot be read, or is in use"
)]
pub(super) struct Args {
    /// The store's directory: store.root, in Java storePathRootDir
    dir: PathBuf,
    /// All of it as JSON
    #[arg(long)]
    json: bool,
    /// Tell progress on standard error even if that is no terminal
    #[arg(long)]
    progress: bool,
    #[command(flatten)]
    shape: ShapeArgs,
}

pub(super) fn run(args: Args) -> ExitCode {
    let mut meter = Meter::counting("inspect", "queues", args.progress);
    let found = StoreDir::open(&args.dir).and_then(|dir| {
        inspect(&dir, &Shape::of(&dir, args.shape.hints()), &mut |done, total| meter.tell(done, total))
    });
    let found = match found {
        Ok(found) => found,
        Err(error) => {
            eprintln!("kerolox: {error}");
            return ExitCode::from(EXIT_USAGE);
        }
    };
    let written = if args.json { write_json(&found, "-".as_ref()) } else { print(&found) };
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            eprintln!("kerolox: standard output cannot be written: {error}");
            ExitCode::from(EXIT_FAILURE)
        }
        _ => ExitCode::SUCCESS,
    }
}

fn print(found: &Inspection) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let time = |ms: Option<i64>| ms.map_or_else(|| "-".into(), |ms| utc(Timestamp(ms)));
    let number = |number: Option<u64>| number.map_or_else(|| "-".into(), |number| number.to_string());
    let count = |count: Option<usize>| count.map_or_else(|| "none readable".into(), |count| count.to_string());
    let log = &found.log;
    writeln!(out, "store\t{}", found.root)?;
    writeln!(out, "written by\t{}", if found.is_ours { "Kerolox (and maybe Java)" } else { "Java" })?;
    writeln!(out, "last stop\t{}", if found.stopped_cleanly { "clean" } else { "not clean; the next start recovers" })?;
    writeln!(
        out,
        "sizes\tcommitlog_file_size = {}, consumequeue_file_size = {}, index_slots = {}, index_entries = {}",
        number(log.segment_len),
        number(found.consumequeue_file_len),
        number(found.index_slots.map(u64::from)),
        number(found.index_entries.map(u64::from))
    )?;
    writeln!(
        out,
        "commit log\t{} segments, physical offsets {} to {}, {} MiB on disk, stored {} to {}",
        log.segments,
        log.start,
        log.end,
        log.allocated >> 20,
        time(log.first_stored_at),
        time(log.last_stored_at)
    )?;
    if log.odd_segments > 0 || !log.missing.is_empty() {
        writeln!(out, "commit log\t{} segments of another size; missing: {:?}", log.odd_segments, log.missing)?;
    }
    for queue in &found.queues {
        writeln!(
            out,
            "queue\t{}\t{}\t{} to {}\t{} messages\t{} files",
            queue.topic,
            queue.queue_id,
            queue.min,
            queue.max,
            queue.max - queue.min,
            queue.files
        )?;
    }
    for file in &found.index {
        writeln!(
            out,
            "index\t{}\t{} entries\tphysical offsets {} to {}\tstored {} to {}",
            file.file,
            file.entries,
            file.begin_phy,
            file.end_phy,
            time(Some(file.begin)),
            time(Some(file.end))
        )?;
    }
    if let Some(checkpoint) = &found.checkpoint {
        writeln!(
            out,
            "checkpoint\tflushed {}, built {}, indexed {}, confirm {}",
            time(Some(checkpoint.physic)),
            time(Some(checkpoint.logics)),
            time(Some(checkpoint.index)),
            checkpoint.confirm
        )?;
    }
    let tables = &found.config;
    writeln!(
        out,
        "config\ttopics: {}, groups: {}, consumer offsets: {}, delay levels begun: {}; files: {}",
        count(tables.topics),
        count(tables.groups),
        count(tables.consumer_offsets),
        count(tables.delay_offsets.as_ref().map(|table| table.len())),
        tables.files.join(" ")
    )?;
    for (name, text) in &found.notes {
        writeln!(out, "kerolox/{name}\t{}", super::text::escaped(text.trim()))?;
    }
    for region in &found.quarantined {
        writeln!(out, "quarantined\t{}\t{} bytes, {}: {}", region.phy, region.len, region.kind, region.why)?;
    }
    found.strays.iter().try_for_each(|stray| writeln!(out, "left alone\t{stray}"))
}
