//! `kerolox dump`: prints stored messages of a store that nobody has open.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueEnum;
use serde_json::{Map, Value, json};

use super::progress::Meter;
use super::text::{base64, escaped, hex, utc};
use super::{EXIT_FAILURE, EXIT_USAGE};
use crate::format::record::{RecordView, message_id};
use crate::store::OpenError;
use crate::store::survey::{RecordReader, StoreDir, UnitReader, bounds};
use crate::types::properties;

/// Print stored messages of a store that nobody uses
///
/// Goes through the topic's queues in their order, each from --from on, and prints a line for each message: queue, queue
/// offset, physical offset, store time (UTC), tag, keys and body, separated by tabs; "-" if there is none. With --json a
/// line is an object with every field. Bodies are shown as they are stored: compressed ones stay so.
#[derive(Debug, clap::Args)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  kerolox dump /var/lib/kerolox --topic Orders
  kerolox dump ./store --topic Orders --queue 3 --from 1000 --count 20 --body base64
  kerolox dump ./store --topic Orders --json --body text | jq -c '[.queue, .offset, .properties.KEYS]'

Exit codes:
  0  printed, even if it was nothing
  1  a unit led to no message (the line says so), or there is no such queue
  2  the store cannot be read, or is in use"
)]
pub(super) struct Args {
    /// The store's directory: store.root, in Java storePathRootDir
    dir: PathBuf,
    /// Which topic
    #[arg(long)]
    topic: String,
    /// Only this queue [default: all]
    #[arg(long, value_name = "N")]
    queue: Option<u32>,
    /// Begin each queue at this queue offset [default: the oldest message]
    #[arg(long, value_name = "N")]
    from: Option<u64>,
    /// At most so many messages of each queue [default: all]
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
    /// How to show bodies; as text what is none is shown in hex
    #[arg(long, value_enum, default_value = "text")]
    body: Body,
    /// Tell progress on standard error even if that is no terminal
    #[arg(long)]
    progress: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Body {
    Text,
    Hex,
    Base64,
    None,
}

/// Why not everything was printed.
enum Failure {
    Store(OpenError),
    Output(io::Error),
    NoQueue,
}

pub(super) fn run(args: Args) -> ExitCode {
    match dump(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(EXIT_FAILURE),
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(Failure::Output(error)) => {
            eprintln!("kerolox: standard output cannot be written: {error}");
            ExitCode::from(EXIT_FAILURE)
        }
        Err(Failure::Store(error)) => {
            eprintln!("kerolox: {error}");
            ExitCode::from(EXIT_USAGE)
        }
        Err(Failure::NoQueue) => {
            let queue = args.queue.map_or_else(String::new, |id| format!(" with id {id}"));
            eprintln!("kerolox: topic {} has no queue{queue} here; see `kerolox inspect`", args.topic);
            ExitCode::from(EXIT_FAILURE)
        }
    }
}

/// Prints; false if a unit led to no message.
fn dump(args: &Args) -> Result<bool, Failure> {
    let dir = StoreDir::open(&args.dir).map_err(Failure::Store)?;
    let is_asked = |id: u32| args.queue.is_none_or(|asked| asked == id);
    let mut queues = dir.queues.iter().filter(|queue| *queue.key.topic == *args.topic && is_asked(queue.key.queue_id));
    let mut out = BufWriter::new(io::stdout().lock());
    let mut records = RecordReader::new(&dir);
    let mut meter = Meter::counting("dump", "messages of a queue", args.progress);
    let (mut is_whole, mut any) = (true, false);
    queues.try_for_each(|queue| {
        any = true;
        let bounds = bounds(&dir, queue).map_err(Failure::Store)?;
        let mut units = UnitReader::new(&dir, queue);
        let from = args.from.map_or(bounds.start, |from| from.max(bounds.start));
        let end = args.count.map_or(bounds.end, |count| bounds.end.min(from.saturating_add(count)));
        for offset in from..end {
            meter.tell(offset - from, end - from);
            let failed = |source| Failure::Store(OpenError::Io { path: dir.queue_dir(&queue.key), source });
            let unit = units.unit(offset).map_err(failed)?;
            let record = match &unit {
                Some(unit) => records.at_unit(unit).map_err(failed)?,
                None => None,
            };
            let id = queue.key.queue_id;
            let line = match (record, unit) {
                (Some(record), _) if args.json => object(id, offset, &record, args.body).to_string(),
                (Some(record), _) => line(id, offset, &record, args.body),
                (None, unit) => {
                    is_whole = false;
                    let phy = unit.map_or(0, |unit| unit.phy.0);
                    match args.json {
                        true => json!({"queue": id, "offset": offset, "phy": phy, "error": "no message is there"})
                            .to_string(),
                        false => format!("{id}\t{offset}\t{phy}\t-\t-\t-\t<no message is there>"),
                    }
                }
            };
            writeln!(out, "{line}").map_err(Failure::Output)?;
        }
        Ok(())
    })?;
    out.flush().map_err(Failure::Output)?;
    if any { Ok(is_whole) } else { Err(Failure::NoQueue) }
}

fn shown(body: &[u8], form: Body) -> Option<String> {
    match form {
        Body::None => None,
        Body::Hex => Some(hex(body)),
        Body::Base64 => Some(base64(body)),
        Body::Text => Some(std::str::from_utf8(body).map_or_else(|_| hex(body), str::to_owned)),
    }
}

fn line(id: u32, offset: u64, record: &RecordView<'_>, form: Body) -> String {
    let property = |name| properties::get(record.properties(), name).map_or_else(|| "-".into(), escaped);
    let body = shown(record.body(), form).map_or_else(|| "-".into(), |body| escaped(&body));
    [
        id.to_string(),
        offset.to_string(),
        record.phy().to_string(),
        utc(record.store_timestamp()),
        property(properties::TAGS),
        property(properties::KEYS),
        body,
    ]
    .join("\t")
}

fn object(id: u32, offset: u64, record: &RecordView<'_>, form: Body) -> Value {
    let texts: Map<String, Value> =
        properties::iter(record.properties()).map(|(name, value)| (name.to_owned(), value.into())).collect();
    let mut object = json!({
        "topic": record.topic(),
        "queue": id,
        "offset": offset,
        "phy": record.phy().0,
        "size": record.total_len(),
        "id": message_id(record.store_host(), record.phy()),
        "stored_at": record.store_timestamp().0,
        "born_at": record.born_timestamp(),
        "born_host": record.born_host().to_string(),
        "store_host": record.store_host().to_string(),
        "flag": record.flag(),
        "sys_flag": record.sys_flag(),
        "reconsume_times": record.reconsume_times(),
        "prepared_transaction_offset": record.prepared_transaction_offset(),
        "crc_matches": record.check_crc(),
        "properties": texts,
        "body_size": record.body().len(),
    });
    if let Some(body) = shown(record.body(), form) {
        object["body"] = body.into();
    }
    object
}
