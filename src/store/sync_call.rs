//! `kerolox/sync_call`: which call brings a batch onto stable storage faster here, as a probe found it at the first start
//! in each append mode: a JSON list of records, the newest last. Ours alone (rule R18); delete it to have it measured again.

use std::fmt;
use std::io;

use serde::{Deserialize, Serialize};

use super::layout::Layout;
use crate::format::names;
use crate::io::{AppendMode, SyncCall, now, read_if_present, replace_keeping_old, time_sync_calls};
use crate::types::Timestamp;

/// What was found, and when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncRecord {
    /// The append mode that it was found for: `buffered` or `dma`.
    append: String,
    /// `o_dsync` or `fdatasync`.
    sync_call: String,
    /// Median of a write of 4 KiB through a handle opened with O_DSYNC, in µs.
    o_dsync_us: u64,
    /// The same of a write with fdatasync behind it.
    fdatasync_us: u64,
    /// Writes by each call.
    writes: u32,
    /// Ms since the epoch.
    at: i64,
}

impl SyncRecord {
    /// What was found for this append mode; nothing if that was never looked at. Blocking.
    ///
    /// # Errors
    /// The file is there and cannot be read.
    pub fn load(layout: &Layout, append: AppendMode) -> io::Result<Option<SyncRecord>> {
        let known = SyncRecord::load_all(layout)?;
        Ok(known.into_iter().rev().find(|record| record.append == append.word() && record.call().is_some()))
    }

    /// Those that can be read.
    fn load_all(layout: &Layout) -> io::Result<Vec<SyncRecord>> {
        let Some(bytes) = read_if_present(&layout.sync_call())? else { return Ok(Vec::new()) };
        let records = match serde_json::from_slice(&bytes) {
            Ok(serde_json::Value::Array(records)) => records,
            // Before there was a list it was the one record of the append mode last used.
            Ok(one) => vec![one],
            Err(_) => Vec::new(),
        };
        Ok(records.into_iter().filter_map(|record| serde_json::from_value(record).ok()).collect())
    }

    fn call(&self) -> Option<SyncCall> {
        [SyncCall::ODsync, SyncCall::Fdatasync].into_iter().find(|call| call.word() == self.sync_call)
    }
}

impl fmt::Display for SyncRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SyncRecord { append, sync_call, o_dsync_us, fdatasync_us, writes, at } = self;
        let date = names::index_name(Timestamp(*at), 0);
        let (year, month, day) = (&date[..4], &date[4..6], &date[6..8]);
        write!(
            f,
            "{sync_call} for {append} writes, as measured on {year}-{month}-{day} (UTC): a block took {o_dsync_us} µs by o_dsync, \
             {fdatasync_us} µs by fdatasync (medians of {writes})"
        )
    }
}

/// The call to use: as set, or the only one that there is, or the faster one. Looks at the record, and makes it if there is
/// none for this append mode. Blocking, at start, with the store's lock taken.
pub fn choose(layout: &Layout, append: AppendMode, set: Option<SyncCall>) -> SyncCall {
    match (append, set) {
        // O_DSYNC is about writes, and a mapping has none.
        (AppendMode::Mmap, _) => SyncCall::Fdatasync,
        (_, Some(call)) => call,
        (_, None) => find(layout, append).unwrap_or_else(|error| {
            let path = layout.sync_call();
            tracing::warn!(path = %path.display(), %error, "which sync call is faster cannot be found out; fdatasync is used");
            SyncCall::Fdatasync
        }),
    }
}

fn find(layout: &Layout, append: AppendMode) -> io::Result<SyncCall> {
    let path = layout.sync_call();
    if let Some(record) = SyncRecord::load(layout, append)?
        && let Some(call) = record.call()
    {
        tracing::info!(path = %path.display(), "sync call: {record}");
        return Ok(call);
    }
    crate::io::disk::make_folders(&layout.own())?;
    let times = time_sync_calls(&layout.sync_probe(), append == AppendMode::Dma)?;
    let call = if times.o_dsync_us <= times.fdatasync_us { SyncCall::ODsync } else { SyncCall::Fdatasync };
    let record = SyncRecord {
        append: append.word().to_owned(),
        sync_call: call.word().to_owned(),
        o_dsync_us: times.o_dsync_us,
        fdatasync_us: times.fdatasync_us,
        writes: times.writes,
        at: now().0,
    };
    tracing::info!(path = %path.display(), "sync call measured: {record}");
    let mut all = SyncRecord::load_all(layout)?;
    all.retain(|known| known.append != record.append);
    all.push(record);
    replace_keeping_old(&path, &serde_json::to_vec_pretty(&all).expect("plain values serialise"))?;
    Ok(call)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_first_start_measures_and_later_ones_believe_it() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path());
        assert_eq!(SyncRecord::load(&layout, AppendMode::Buffered).unwrap(), None);
        let first = choose(&layout, AppendMode::Buffered, None);
        let record = SyncRecord::load(&layout, AppendMode::Buffered).unwrap().unwrap();
        assert_eq!(record.call(), Some(first));
        assert!(record.writes > 0 && record.to_string().contains(&format!("medians of {}", record.writes)), "{record}");
        // What stands there is taken, whatever a new look would find.
        let slower = SyncRecord { sync_call: "fdatasync".into(), o_dsync_us: 1, ..record.clone() };
        let faster = SyncRecord { sync_call: "o_dsync".into(), ..slower.clone() };
        for (written, call) in [(slower, SyncCall::Fdatasync), (faster, SyncCall::ODsync)] {
            fs::write(layout.sync_call(), serde_json::to_vec(&written).unwrap()).unwrap();
            assert_eq!(choose(&layout, AppendMode::Buffered, None), call);
        }
    }

    #[test]
    fn each_append_mode_is_measured_once() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path());
        choose(&layout, AppendMode::Buffered, None);
        let buffered = SyncRecord::load(&layout, AppendMode::Buffered).unwrap();
        assert_eq!(SyncRecord::load(&layout, AppendMode::Dma).unwrap(), None);
        choose(&layout, AppendMode::Dma, None);
        let dma = SyncRecord::load(&layout, AppendMode::Dma).unwrap();
        assert_eq!(dma.as_ref().unwrap().append, "dma");
        let bytes = fs::read(layout.sync_call()).unwrap();
        // Back and forth: neither is looked for again, whose times might be others.
        for (append, record) in [(AppendMode::Buffered, &buffered), (AppendMode::Dma, &dma)] {
            choose(&layout, append, None);
            assert_eq!(SyncRecord::load(&layout, append).unwrap(), *record);
        }
        assert_eq!(fs::read(layout.sync_call()).unwrap(), bytes);
        // The form of earlier versions: one record, of the mode that was used last.
        fs::write(layout.sync_call(), serde_json::to_vec(&dma).unwrap()).unwrap();
        assert_eq!(SyncRecord::load(&layout, AppendMode::Dma).unwrap(), dma);
        choose(&layout, AppendMode::Buffered, None);
        assert_eq!(SyncRecord::load(&layout, AppendMode::Dma).unwrap(), dma);
        assert!(SyncRecord::load(&layout, AppendMode::Buffered).unwrap().is_some());
    }

    #[test]
    fn an_unreadable_record_is_measured_again() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path());
        choose(&layout, AppendMode::Buffered, None);
        let buffered = SyncRecord::load(&layout, AppendMode::Buffered).unwrap().unwrap();
        let beside =
            serde_json::to_string(&[serde_json::json!({"append": "dma"}), serde_json::json!(buffered)]).unwrap();
        fs::write(layout.sync_call(), beside).unwrap();
        choose(&layout, AppendMode::Dma, None);
        assert_eq!(SyncRecord::load(&layout, AppendMode::Buffered).unwrap(), Some(buffered), "the good one stays");
        for broken in [
            "",
            "{",
            "[]",
            "7",
            "{\"append\": \"dma\", \"sync_call\": \"hope\", \"o_dsync_us\": 1, \"fdatasync_us\": 1, \"writes\": 1, \"at\": 1}",
        ] {
            fs::write(layout.sync_call(), broken).unwrap();
            choose(&layout, AppendMode::Dma, None);
            assert!(SyncRecord::load(&layout, AppendMode::Dma).unwrap().is_some(), "{broken}");
        }
    }

    #[test]
    fn what_is_set_or_without_choice_is_not_measured() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path());
        for call in [SyncCall::ODsync, SyncCall::Fdatasync] {
            assert_eq!(choose(&layout, AppendMode::Dma, Some(call)), call);
        }
        assert_eq!(choose(&layout, AppendMode::Mmap, None), SyncCall::Fdatasync);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
