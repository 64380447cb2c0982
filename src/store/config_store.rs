//! `config/*.json`: read at start with the fallback to `.bak`, written whole. Source: store.md 1.5.

use std::fmt;
use std::fs;
use std::io;
use std::path::Path;

use super::layout::Layout;
use super::open_error::{OpenError, io_at};
use crate::format::config_files::{ConsumerOffsetsFile, DelayOffsetsFile, SubscriptionGroupsFile, TopicsFile};
use crate::format::names;
use crate::io::{disk, fsync_dir, now, read_if_present, remove_if_present};

/// The four tables as they were on disk; a file that was never written gives an empty one.
#[derive(Debug, Default)]
pub struct ConfigTables {
    pub topics: TopicsFile,
    pub groups: SubscriptionGroupsFile,
    pub consumer_offsets: ConsumerOffsetsFile,
    pub delay_offsets: DelayOffsetsFile,
}

/// Reads all four. Blocking, at start.
pub fn load(layout: &Layout) -> Result<ConfigTables, OpenError> {
    let tables = ConfigTables {
        topics: load_table(&layout.config(names::TOPICS), TopicsFile::decode)?,
        groups: load_table(&layout.config(names::SUBSCRIPTION_GROUPS), SubscriptionGroupsFile::decode)?,
        consumer_offsets: load_table(&layout.config(names::CONSUMER_OFFSETS), ConsumerOffsetsFile::decode)?,
        delay_offsets: load_table(&layout.config(names::DELAY_OFFSETS), DelayOffsetsFile::decode)?,
    };
    // What a killed process had written and renamed is read above; now it stays so whatever happens.
    let dir = layout.root().join(names::CONFIG);
    match fsync_dir(&dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        synced => synced.map_err(io_at(&dir))?,
    }
    Ok(tables)
}

/// The file, or its `.bak` if it is absent, empty or unreadable. Never silently nothing: if something was there and
/// nothing can be read, the start is refused. An unreadable file beside a good `.bak` is moved aside, for the next save
/// makes a `.bak` of what is there.
///
/// # Errors
/// [`OpenError::Config`] if something is there and neither can be read; what the file system says.
pub fn load_table<T: Default, E: fmt::Display>(
    path: &Path,
    decode: impl Fn(&[u8]) -> Result<T, E>,
) -> Result<T, OpenError> {
    let mut bak = path.as_os_str().to_owned();
    bak.push(names::BACKUP_SUFFIX);
    let bak = Path::new(&bak);
    let mut unreadable = None;
    for candidate in [path, bak] {
        let Some(bytes) = read_if_present(candidate).map_err(io_at(candidate))? else { continue };
        if bytes.trim_ascii().is_empty() {
            tracing::warn!(path = %candidate.display(), "empty, taken for absent");
            continue;
        }
        match decode(&bytes) {
            Ok(table) => {
                if candidate == bak {
                    tracing::warn!(path = %path.display(), "read from its .bak");
                    set_aside(path).map_err(io_at(path))?;
                }
                return Ok(table);
            }
            Err(error) => {
                tracing::warn!(path = %candidate.display(), %error, "unreadable");
                unreadable.get_or_insert(error.to_string());
            }
        }
    }
    match unreadable {
        Some(why) => Err(OpenError::Config { path: path.to_owned(), why }),
        None => Ok(T::default()),
    }
}

/// Moves a file that cannot be read out of the way, without losing it; an empty one just goes.
fn set_aside(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Ok(meta) if meta.len() == 0 => return remove_if_present(path),
        meta => meta?,
    };
    let mut aside = path.as_os_str().to_owned();
    aside.push(format!(".corrupt-{}", now()));
    tracing::warn!(aside = %Path::new(&aside).display(), "kept aside");
    disk::rename(path, Path::new(&aside))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_files(json: Option<&str>, bak: Option<&str>) -> (tempfile::TempDir, Layout) {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path());
        fs::create_dir_all(dir.path().join("config")).unwrap();
        for (name, text) in [("consumerOffset.json", json), ("consumerOffset.json.bak", bak)] {
            if let Some(text) = text {
                fs::write(dir.path().join("config").join(name), text).unwrap();
            }
        }
        (dir, layout)
    }

    const GOOD: &str = "{\n\t\"offsetTable\":{\n\t\t\"T@g\":{0:5,1:3\n\t\t}\n\t}\n}";

    #[test]
    fn a_torn_or_empty_file_falls_back_to_its_bak_and_is_kept_aside() {
        let (dir, layout) = with_files(Some(&GOOD[..20]), Some(GOOD));
        let tables = load(&layout).unwrap();
        assert_eq!(tables.consumer_offsets.table["T@g"][&1], 3);
        let kept = fs::read_dir(dir.path().join("config")).unwrap().filter(|entry| {
            entry.as_ref().unwrap().file_name().to_string_lossy().starts_with("consumerOffset.json.corrupt-")
        });
        assert_eq!(kept.count(), 1);
        // The next save makes a .bak of what is there: never of a torn file.
        assert!(!layout.config("consumerOffset.json").exists());

        let (_dir, layout) = with_files(Some(""), Some(GOOD));
        assert_eq!(load(&layout).unwrap().consumer_offsets.table["T@g"][&0], 5);
        assert!(!layout.config("consumerOffset.json").exists());
    }

    #[test]
    fn a_torn_file_without_a_readable_bak_refuses_the_start() {
        let (dir, layout) = with_files(Some(&GOOD[..20]), None);
        for _ in 0..2 {
            let error = load(&layout).unwrap_err().to_string();
            assert!(error.contains("consumerOffset.json"), "{error}");
        }
        assert_eq!(fs::read_dir(dir.path().join("config")).unwrap().count(), 1, "nothing is added or moved");
    }

    #[test]
    fn a_bak_alone_is_taken_and_two_bad_files_are_left_as_they_are() {
        let (dir, layout) = with_files(None, Some(GOOD));
        assert_eq!(load(&layout).unwrap().consumer_offsets.table["T@g"][&1], 3);
        assert_eq!(fs::read(dir.path().join("config/consumerOffset.json.bak")).unwrap(), GOOD.as_bytes());

        for (json, bak) in [(&GOOD[..20], &GOOD[..30]), ("", &GOOD[..30]), (&GOOD[..20], ""), ("{,}", "\0\0")] {
            let (dir, layout) = with_files(Some(json), Some(bak));
            let error = load(&layout).unwrap_err().to_string();
            assert!(error.contains("consumerOffset.json") && error.contains("no readable .bak"), "{error}");
            assert_eq!(fs::read(dir.path().join("config/consumerOffset.json")).unwrap(), json.as_bytes());
            assert_eq!(fs::read(dir.path().join("config/consumerOffset.json.bak")).unwrap(), bak.as_bytes());
            assert_eq!(fs::read_dir(dir.path().join("config")).unwrap().count(), 2);
        }
        let (_dir, layout) = with_files(Some(" \n"), Some(""));
        assert!(load(&layout).unwrap().consumer_offsets.table.is_empty(), "empty files say nothing");
    }

    #[test]
    fn absent_files_are_empty_tables() {
        let (_dir, layout) = with_files(None, None);
        assert!(load(&layout).unwrap().consumer_offsets.table.is_empty());
    }
}
