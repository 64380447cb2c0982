//! The broker's process, if it runs on this host: who listens on its address, and how it was started.

use std::collections::BTreeMap;
use std::fs;
use std::net::ToSocketAddrs;
use std::path::{Path, PathBuf};

use crate::load::Target;

/// The state of a listening socket in `/proc/net/tcp`.
const LISTENING: &str = "0A";

/// A longer word of a command line is a class path, and tells nobody anything.
const WORD_LEN_MAX: usize = 240;

/// Stands in the place of a secret.
pub(super) const NOT_SHOWN: &str = "(not shown)";

/// The process of a load's broker, as [`process_at`] finds it.
pub fn process_of(target: &Target) -> Option<u32> {
    match target {
        Target::Broker(address) => process_at(address),
        // Of several brokers there is no one process.
        Target::NameServer(_) => None,
    }
}

/// The process that listens on `address`, if that is on the loopback and we may look into it. One of them, if several do.
pub fn process_at(address: &str) -> Option<u32> {
    let address = address.to_socket_addrs().ok()?.find(|address| address.ip().is_loopback())?;
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| fs::read_to_string(path).unwrap_or_default());
    let sockets: Vec<String> = tables.iter().flat_map(|table| listening(table, address.port())).collect();
    let links: Vec<String> = sockets.iter().map(|inode| format!("socket:[{inode}]")).collect();
    let processes = fs::read_dir("/proc").ok()?.filter_map(|entry| {
        let entry = entry.ok()?;
        Some((entry.file_name().to_str()?.parse::<u32>().ok()?, entry.path().join("fd")))
    });
    let holds = |link: &str| links.iter().any(|found| found == link);
    let mut holders = processes.filter(|(_, fds)| {
        let fds = fs::read_dir(fds).into_iter().flatten().flatten();
        fds.filter_map(|fd| fs::read_link(fd.path()).ok()).any(|link| link.to_str().is_some_and(holds))
    });
    holders.next().map(|(process, _)| process)
}

/// The inodes of sockets that listen on a port. Source: proc(5), /proc/net/tcp: `sl local remote st … inode`.
fn listening(table: &str, port: u16) -> Vec<String> {
    let of_port = format!(":{port:04X}");
    let line = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let matches = fields.get(1)?.ends_with(&of_port) && *fields.get(3)? == LISTENING;
        matches.then(|| fields.get(9).map(|inode| (*inode).to_owned()))?
    };
    table.lines().filter_map(line).collect()
}

/// The command line of a process, its words apart by blanks; those with blanks in quotes, the longest cut.
pub(super) fn command_line(pid: u32) -> Option<String> {
    Some(words(pid)?.iter().map(|word| shown(word)).collect::<Vec<_>>().join(" "))
}

/// Whether what a setting of this name holds is nobody's business.
pub(super) fn sounds_secret(key: &str) -> bool {
    let key = key.to_lowercase();
    ["secret", "password", "accesskey", "credential"].iter().any(|word| key.contains(word))
}

fn shown(word: &str) -> String {
    if let Some((key, _)) = word.split_once('=').filter(|(key, _)| sounds_secret(key)) {
        return format!("{key}={NOT_SHOWN}");
    }
    let count = word.chars().count();
    match count > WORD_LEN_MAX {
        true => format!("{}…({count} letters)", word.chars().take(WORD_LEN_MAX / 4).collect::<String>()),
        false if word.contains(' ') => format!("{word:?}"),
        false => word.to_owned(),
    }
}

/// The processors that a process may use: `0-1`.
pub(super) fn cores(pid: u32) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    super::value_of(&status, "Cpus_allowed_list", ':').map(str::to_owned)
}

/// The settings file that a process was started with: behind `--config`, or `-c` as Java's broker has it.
pub(super) fn settings_file(pid: u32) -> Option<PathBuf> {
    let dir = fs::read_link(format!("/proc/{pid}/cwd")).ok()?;
    named_file(&words(pid)?).map(|file| dir.join(file))
}

fn words(pid: u32) -> Option<Vec<String>> {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).ok().filter(|bytes| !bytes.is_empty())?;
    let text = String::from_utf8_lossy(&bytes);
    Some(text.trim_end_matches('\0').split('\0').map(str::to_owned).collect())
}

fn named_file(words: &[String]) -> Option<String> {
    let behind = words.windows(2).find(|pair| ["--config", "-c", "--configFile"].contains(&pair[0].as_str()));
    let joined = || words.iter().find_map(|word| word.strip_prefix("--config="));
    behind.map(|pair| pair[1].as_str()).or_else(joined).map(str::to_owned)
}

/// The settings in a file: TOML with nested tables as `outer.inner`, or Java properties.
///
/// # Errors
/// Says why the file cannot be read.
pub(super) fn settings_in(path: &Path) -> Result<BTreeMap<String, String>, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(match text.parse::<toml::Table>() {
        Ok(table) => {
            let mut settings = BTreeMap::new();
            flatten("", table, &mut settings);
            settings
        }
        Err(_) => properties(&text),
    })
}

fn flatten(prefix: &str, table: toml::Table, settings: &mut BTreeMap<String, String>) {
    for (key, value) in table {
        let name = if prefix.is_empty() { key } else { format!("{prefix}.{key}") };
        match value {
            toml::Value::Table(inner) => flatten(&name, inner, settings),
            toml::Value::String(text) => _ = settings.insert(name, text),
            other => _ = settings.insert(name, other.to_string()),
        }
    }
}

/// Settings written as Java's `Properties`: `key=value` lines; `\` before a letter is taken as that letter.
pub(super) fn properties(text: &str) -> BTreeMap<String, String> {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with(['#', '!']));
    let pairs = lines.filter_map(|line| line.split_once('='));
    pairs.map(|(key, value)| (key.trim().to_owned(), value.trim().replace("\\:", ":").replace("\\=", "="))).collect()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn the_process_that_listens_is_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        assert_eq!(process_at(&address), Some(std::process::id()));
        drop(listener);
        assert_eq!(process_at(&address), None);
        assert_eq!(process_at("192.0.2.1:1"), None);
        assert_eq!(process_at("no address"), None);
    }

    #[test]
    fn connected_sockets_of_the_port_do_not_count() {
        let table = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:2A9F 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 111 1 0
   1: 0100007F:2A9F 0100007F:D431 01 00000000:00000000 00:00000000 00000000     0        0 222 1 0
   2: 0100007F:02A9 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 333 1 0
   3: short";
        assert_eq!(listening(table, 0x2A9F), ["111"]);
    }

    #[test]
    fn settings_are_read_from_the_file_that_a_command_line_names() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        for (line, file) in [
            ("kerolox serve --config a.toml", Some("a.toml")),
            ("kerolox serve --config=b.toml", Some("b.toml")),
            ("java -Xmx4g BrokerStartup -c conf/broker.conf", Some("conf/broker.conf")),
            ("java -c", None),
        ] {
            assert_eq!(named_file(&words(line)).as_deref(), file, "{line}");
        }
        let dir = tempfile::tempdir().unwrap();
        let (toml, conf) = (dir.path().join("a.toml"), dir.path().join("broker.conf"));
        fs::write(&toml, "net.listen = \"1.2.3.4:5\"\n[flush]\nmode = \"sync\"\n").unwrap();
        fs::write(&conf, "brokerName=broker a\nmySecretKey = x\n").unwrap();
        let pairs = |path: &Path| settings_in(path).unwrap().into_iter().collect::<Vec<_>>();
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(pairs(&toml), [pair("flush.mode", "sync"), pair("net.listen", "1.2.3.4:5")]);
        assert_eq!(pairs(&conf), [pair("brokerName", "broker a"), pair("mySecretKey", "x")]);
        assert!(settings_in(&dir.path().join("none")).unwrap_err().contains("none"));
    }

    #[test]
    fn a_process_tells_its_command_line() {
        let line = command_line(std::process::id()).unwrap();
        assert!(line.contains("bench"), "{line}");
        assert_eq!(command_line(u32::MAX), None);
        assert!(cores(std::process::id()).is_some_and(|list| super::super::listed(&list).is_some()));
        assert_eq!(shown("-Dx=a b"), "\"-Dx=a b\"");
        assert_eq!(shown("-Djavax.net.ssl.keyStorePassword=x y"), "-Djavax.net.ssl.keyStorePassword=(not shown)");
        assert_eq!(shown(&"ü".repeat(241)), format!("{}…(241 letters)", "ü".repeat(60)));
    }
}
