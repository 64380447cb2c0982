//! `kerolox import-config`: a Java broker's properties as our TOML.

mod keys;
mod properties;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use toml::Value;

use self::keys::{Fate, Form, fate};
use self::properties::Property;
use super::{EXIT_FAILURE, EXIT_USAGE};
use crate::config::{ANSWER_MS_MAX, Config, Overrides, PUT_WAIT_MS_DEFAULT, SYNC_TIMEOUT_MS_DEFAULT};

/// Turn a Java broker's broker.conf into settings of ours
///
/// Every key that means something here becomes a setting, with the line it comes from beside it. All others are listed at
/// the end as comments, and on standard error: those that have no meaning here and why, those that we do not support yet,
/// those that Java itself ignores, and those that are unknown. Says where it changes a value. A file that stands for
/// something that cannot be served (a replica, DLedger, RocksDB, several commit log paths) is refused.
#[derive(Debug, clap::Args)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  kerolox import-config broker.conf
  kerolox import-config /opt/rocketmq/conf/broker.conf -o kerolox.toml && kerolox check-config kerolox.toml

Exit codes:
  0  written, and `kerolox check-config` accepts it
  1  written, but check-config does not accept it: the lines on standard error say why
  2  the file cannot be read, or stands for something that cannot be served; nothing was written"
)]
pub(super) struct Args {
    /// The broker's properties
    file: PathBuf,
    /// Write to this file, which must not be there [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Sections in the order of docs/kerolox.toml.
const SECTIONS: [&str; 11] =
    ["broker", "net", "nameserver", "cores", "store", "flush", "retention", "disk", "recovery", "read", "limits"];

pub(super) fn run(args: Args) -> ExitCode {
    let name = args.file.display();
    let read = fs::read(&args.file).map_err(|error| format!("{name}: cannot be read: {error}"));
    let imported = read.and_then(|bytes| {
        let properties = properties::parse(&bytes).map_err(|why| format!("{name}: {why}"))?;
        Import::of(&properties)
            .map_err(|lines| lines.iter().map(|line| format!("{name}: {line}")).collect::<Vec<_>>().join("\nkerolox: "))
    });
    let imported = match imported {
        Ok(imported) => imported,
        Err(why) => {
            eprintln!("kerolox: {why}");
            return ExitCode::from(EXIT_USAGE);
        }
    };
    let text = imported.text(&args.file);
    let written = match &args.output {
        Some(path) => fs::File::create_new(path).and_then(|mut file| file.write_all(text.as_bytes())),
        None => io::stdout().lock().write_all(text.as_bytes()),
    };
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return ExitCode::SUCCESS,
        Err(error) => {
            let to = args.output.as_deref().unwrap_or(Path::new("standard output"));
            eprintln!("kerolox: {}: cannot be written: {error}", to.display());
            return ExitCode::from(EXIT_USAGE);
        }
        Ok(()) => {}
    }
    imported.notes.iter().for_each(|note| eprintln!("{name}: {note}"));
    match Config::from_text(args.output.as_deref().unwrap_or(Path::new("output")), &text, Overrides::default()) {
        Ok(_) => ExitCode::SUCCESS,
        Err(errors) => {
            errors.lines().iter().for_each(|line| eprintln!("kerolox: {line}"));
            ExitCode::from(EXIT_FAILURE)
        }
    }
}

/// A setting of ours, and where it comes from.
struct Setting {
    value: Value,
    from: String,
}

/// What a file says, in our words.
#[derive(Default)]
struct Import {
    /// By our key.
    settings: BTreeMap<&'static str, Setting>,
    /// What was left out or changed, in the order of the file.
    notes: Vec<String>,
    refusals: Vec<String>,
}

impl Import {
    /// # Errors
    /// What the file stands for cannot be served: a line each.
    fn of(properties: &[Property]) -> Result<Import, Vec<String>> {
        let mut import = Import::default();
        for (index, property) in properties.iter().enumerate() {
            let is_replaced = properties[index + 1..].iter().any(|later| later.key == property.key);
            if is_replaced {
                import.note(property, "replaced by a later line, as in Java");
            } else {
                import.take(property, properties);
            }
        }
        import.fit_waits(properties);
        if import.refusals.is_empty() { Ok(import) } else { Err(import.refusals) }
    }

    /// Lowers the waits of a send until they end together before clients give up: Java does not look at that.
    fn fit_waits(&mut self, properties: &[Property]) {
        const WAIT: &str = "limits.put_wait_ms";
        const FLUSH: &str = "flush.sync_timeout_ms";
        let most = ANSWER_MS_MAX as i64;
        let of = |import: &Import, key, default: u64| match import.settings.get(key) {
            Some(setting) => setting.value.as_integer().unwrap_or_default(),
            None => default as i64,
        };
        let wait = of(self, WAIT, PUT_WAIT_MS_DEFAULT);
        let flush = of(self, FLUSH, SYNC_TIMEOUT_MS_DEFAULT);
        if wait < 1 || flush < 1 || wait.saturating_add(flush) <= most {
            return;
        }
        // The wait for the core is short unless a disk stalls; the flush is what takes its time.
        let lower_wait = wait.min(most.saturating_sub(flush).max(PUT_WAIT_MS_DEFAULT as i64));
        for (key, value, lower) in [(WAIT, wait, lower_wait), (FLUSH, flush, flush.min(most - lower_wait))] {
            if lower == value {
                continue;
            }
            let java =
                |property: &&Property| matches!(fate(&property.key), Some(Fate::Becomes(found, _)) if found == key);
            if let (Some(setting), Some(property)) = (self.settings.get_mut(key), properties.iter().rfind(java)) {
                setting.value = Value::from(lower);
                let why = format!(
                    "lowered to {lower}: {WAIT} and {FLUSH} may be {most} together, since clients give up after 3 s"
                );
                self.note(property, &why);
            }
        }
    }

    fn take(&mut self, property: &Property, all: &[Property]) {
        match fate(&property.key) {
            None => self.note(property, "unknown: no key of a RocketMQ broker that we know of"),
            Some(Fate::Dead) => self.note(property, "ignored by Java itself"),
            Some(Fate::NoMeaning(why)) => self.note(property, &format!("no meaning here: {why}")),
            Some(Fate::Lacks(why)) => self.note(property, why),
            Some(Fate::LacksIfTrue(why)) => match truth(&property.value) {
                true => self.note(property, why),
                false => self.note(property, "off, as it always is here"),
            },
            Some(Fate::Becomes(key, form)) => self.becomes(property, key, form),
            Some(Fate::Special) => self.special(property, all),
        }
    }

    fn becomes(&mut self, property: &Property, key: &'static str, form: Form) {
        let text = property.value.trim();
        let number = || text.parse::<i64>().ok();
        let value = match form {
            Form::Text if text.is_empty() => None,
            Form::Text => Some(Value::from(text)),
            Form::Switch => Some(Value::from(truth(text))),
            Form::Number => number().map(Value::from),
            Form::Times(factor) => number().and_then(|number| number.checked_mul(factor)).map(Value::from),
            Form::AtMost(most) => {
                if number().is_some_and(|number| number > most) {
                    self.note(property, &format!("lowered to {most}, the most that {key} takes"));
                }
                number().map(|number| Value::from(number.min(most)))
            }
            Form::FlushMode => match text {
                "ASYNC_FLUSH" => Some(Value::from("async")),
                "SYNC_FLUSH" => Some(Value::from("sync")),
                _ => None,
            },
        };
        match value {
            Some(value) => self.set(property, key, value),
            None => self.note(property, "not a value of this key; Java ignores it too, and takes the default"),
        }
    }

    fn special(&mut self, property: &Property, all: &[Property]) {
        let last = |key: &str| all.iter().rfind(|other| other.key == key).map(|other| other.value.trim());
        let value = property.value.trim();
        match property.key.as_str() {
            "brokerId" if value == "0" => self.set(property, "broker.id", Value::from(0)),
            "brokerId" => self.refuse(property, "a replica, which comes with replication"),
            "brokerRole" => match value {
                "ASYNC_MASTER" => self.note(property, "what a node is"),
                "SYNC_MASTER" => {
                    self.note(property, "not supported, comes with replication; until then nobody waits for replicas");
                }
                "SLAVE" => self.refuse(property, "a replica, which comes with replication"),
                _ => self.note(property, "not a value of this key; Java ignores it too, and takes the default"),
            },
            "listenPort" | "bindAddress" => {
                let host = last("bindAddress").filter(|host| !host.is_empty()).unwrap_or("0.0.0.0");
                let port = last("listenPort").unwrap_or("10911");
                let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
                self.set(property, "net.listen", Value::from(format!("{host}:{port}")));
            }
            "namesrvAddr" => {
                let list = value.split([';', ',']).map(str::trim).filter(|address| !address.is_empty());
                let list: Vec<Value> = list.map(Value::from).collect();
                self.set(property, "nameserver.register", Value::Array(list));
                self.set(property, "nameserver.embedded", Value::from("off"));
            }
            "storePathRootDir" => self.set(property, "store.root", Value::from(value)),
            "storePathCommitLog" => self.commitlog_path(property, value, last("storePathRootDir")),
            "readOnlyCommitLogStorePaths" if value.is_empty() => self.note(property, "empty, as it always is here"),
            "readOnlyCommitLogStorePaths" => {
                self.refuse(
                    property,
                    "the commit log lies in one folder; move all its files into <storePathRootDir>/commitlog",
                );
            }
            "storeType" if value == "default" => self.note(property, "the one type there is here"),
            "storeType" => self.refuse(property, "stores in RocksDB form cannot be read"),
            "configManagerVersion" if value.eq_ignore_ascii_case("v1") => {
                self.note(property, "the one version there is here")
            }
            "configManagerVersion" => {
                self.refuse(property, "tables in RocksDB form cannot be read; go back to v1 first")
            }
            "enableDLegerCommitLog" if truth(value) => self.refuse(property, "a DLedger log cannot be read"),
            "enableDLegerCommitLog" => self.note(property, "off, as it always is here"),
            "brokerPermission" if value == "6" => self.note(property, "read and write, as it always is here"),
            "brokerPermission" => self
                .note(property, "not supported: a node may always be read and written; set the permission of topics"),
            "longPollingEnable" if truth(value) => self.note(property, "on, as it always is here"),
            "longPollingEnable" => self.note(property, "no meaning here: pulls that clients let hold are always held"),
            "totalReplicas" | "inSyncReplicas" | "minInSyncReplicas" if value == "1" => {
                self.note(property, "one copy, as it always is here");
            }
            _ => self.note(property, "not supported, comes with replication"),
        }
    }

    fn commitlog_path(&mut self, property: &Property, value: &str, root: Option<&str>) {
        if value.contains(',') {
            return self.refuse(
                property,
                "several commit log paths are not supported; move all files into <storePathRootDir>/commitlog",
            );
        }
        let usual = root.map(|root| Path::new(root).join("commitlog"));
        match usual {
            Some(usual) if usual == Path::new(value) => self.note(property, "where it always is here"),
            Some(usual) => self.refuse(
                property,
                &format!("the commit log always lies in {}; move it there, or link or mount it there", usual.display()),
            ),
            None if Path::new(value).file_name().is_some_and(|name| name == "commitlog") => {
                let root = Path::new(value).parent().and_then(Path::to_str).unwrap_or_default();
                self.refuse(
                    property,
                    &format!("the commit log always lies below the root; add storePathRootDir = {root} if the rest is there too"),
                );
            }
            None => self.refuse(property, "the commit log always lies in <storePathRootDir>/commitlog; move it there"),
        }
    }

    fn set(&mut self, property: &Property, key: &'static str, value: Value) {
        let from = format!("{}, line {}", property.key, property.line);
        if let Some(known) = self.settings.insert(key, Setting { value, from })
            && !known.from.starts_with("listenPort")
            && !known.from.starts_with("bindAddress")
        {
            self.note(property, &format!("{key} was set by {}, too; this later line is taken", known.from));
        }
    }

    fn note(&mut self, property: &Property, why: &str) {
        self.notes.push(format!("line {}: {} = {}: {why}", property.line, property.key, shown(&property.value)));
    }

    fn refuse(&mut self, property: &Property, why: &str) {
        self.refusals.push(format!("line {}: {} = {}: {why}", property.line, property.key, shown(&property.value)));
    }

    /// The settings file.
    fn text(&self, from: &Path) -> String {
        let mut text = format!(
            "# Made by `kerolox import-config` from {}. What is not here has its default; docs/kerolox.toml explains\n\
             # every key.\n",
            shown(&from.display().to_string())
        );
        for section in SECTIONS {
            let of_section = self.settings.iter().filter_map(|(key, setting)| {
                key.split_once('.').filter(|(found, _)| *found == section).map(|(_, name)| (name, setting))
            });
            for (index, (name, setting)) in of_section.enumerate() {
                if index == 0 {
                    text.push_str(&format!("\n[{section}]\n"));
                }
                text.push_str(&format!("{name} = {}  # {}\n", setting.value, setting.from));
            }
        }
        if !self.settings.contains_key("net.listen") {
            text.push_str(
                "\n# A Java broker listens on all addresses, this node on 127.0.0.1:10911 unless told otherwise:\n\
                 # net.listen = \"0.0.0.0:10911\"\n",
            );
        }
        if !self.notes.is_empty() {
            text.push_str("\n# Left out or changed:\n");
            self.notes.iter().for_each(|note| text.push_str(&format!("#   {note}\n")));
        }
        text
    }
}

/// As Java reads a boolean.
fn truth(text: &str) -> bool {
    text.trim().eq_ignore_ascii_case("true")
}

/// On one line, whatever is in it.
fn shown(text: &str) -> String {
    super::text::escaped(text)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::keys::KEYS;
    use super::*;

    /// The file that RocketMQ ships, without its licence.
    const SHIPPED: &str = "# comment\n\nbrokerClusterName = DefaultCluster\nbrokerName = broker-a\nbrokerId = 0\n\
        deleteWhen = 04\nfileReservedTime = 48\nbrokerRole = ASYNC_MASTER\nflushDiskType = ASYNC_FLUSH\n";

    fn import(text: &str) -> Result<Import, Vec<String>> {
        Import::of(&properties::parse(text.as_bytes()).unwrap())
    }

    fn imported(text: &str) -> String {
        import(text).unwrap_or_else(|lines| panic!("{lines:?}")).text("broker.conf".as_ref())
    }

    fn refused(text: &str) -> String {
        import(text).err().unwrap_or_else(|| panic!("{text} is not refused")).join("\n")
    }

    #[test]
    fn the_file_that_rocketmq_ships_becomes_this() {
        assert_eq!(
            imported(SHIPPED),
            "# Made by `kerolox import-config` from broker.conf. What is not here has its default; docs/kerolox.toml explains\n\
             # every key.\n\
             \n[broker]\n\
             cluster = \"DefaultCluster\"  # brokerClusterName, line 3\n\
             id = 0  # brokerId, line 5\n\
             name = \"broker-a\"  # brokerName, line 4\n\
             \n[flush]\n\
             mode = \"async\"  # flushDiskType, line 9\n\
             \n[retention]\n\
             delete_when = \"04\"  # deleteWhen, line 6\n\
             hours = 48  # fileReservedTime, line 7\n\
             \n# A Java broker listens on all addresses, this node on 127.0.0.1:10911 unless told otherwise:\n\
             # net.listen = \"0.0.0.0:10911\"\n\
             \n# Left out or changed:\n\
             #   line 8: brokerRole = ASYNC_MASTER: what a node is\n"
        );
    }

    #[test]
    fn what_it_makes_are_settings_of_ours() {
        let text = "brokerName=b\nlistenPort=20911\nnamesrvAddr=10.0.0.1:9876;10.0.0.2:9876\nbrokerIP1=10.0.0.7\n\
            storePathRootDir=/data/rmq\nstorePathCommitLog=/data/rmq/commitlog\nmapedFileSizeCommitLog=536870912\n\
            mappedFileSizeConsumeQueue=6000000\nmaxHashSlotNum=5000000\nmaxIndexNum=20000000\nmaxMessageSize=4194304\n\
            flushDiskType=SYNC_FLUSH\nflushIntervalCommitLog=200\nflushCommitLogLeastPages=2\n\
            flushCommitLogThoroughInterval=5000\nsyncFlushTimeout=5000\nflushIntervalConsumeQueue=500\n\
            flushConsumeQueueLeastPages=4\nflushConsumeQueueThoroughInterval=30000\ndefaultTopicQueueNums=4\n\
            autoCreateTopicEnable=false\nautoCreateSubscriptionGroup=false\nwaitTimeMillsInSendQueue=5000\n\
            messageDelayLevel=1s 5s 2h\nserverChannelMaxIdleTimeSeconds=90\n";
        let text = imported(text);
        let config = Config::from_text("k.toml".as_ref(), &text, Overrides::default())
            .unwrap_or_else(|errors| panic!("{errors}\n{text}"));
        assert_eq!(config.broker.name, "b");
        assert_eq!(config.net.listen.to_string(), "0.0.0.0:20911");
        assert_eq!(config.net.advertise.unwrap().to_string(), "10.0.0.7");
        assert_eq!(config.net.idle_timeout_ms, 90_000);
        assert_eq!(config.nameserver.register, ["10.0.0.1:9876", "10.0.0.2:9876"]);
        assert_eq!(config.nameserver.embedded, None);
        assert_eq!((config.store.root.to_str(), config.store.commitlog_file_size), (Some("/data/rmq"), 512 << 20));
        assert!(config.flush.mode.is_sync());
        assert_eq!((config.flush.sync_timeout_ms, config.limits.put_wait_ms), (2700, 200));
        assert_eq!(config.limits.delay_levels_ms, [1000, 5000, 7_200_000]);
        assert!(!config.limits.auto_create_topic && !config.limits.auto_create_group);
        for changed in ["syncFlushTimeout = 5000: lowered to 2700", "waitTimeMillsInSendQueue = 5000: lowered to 200"] {
            assert!(text.contains(changed), "{text}");
        }
    }

    #[test]
    fn waits_that_are_too_long_together_are_lowered_until_they_fit() {
        for (text, waits, notes) in [
            ("waitTimeMillsInSendQueue=5000", (400, 2500), 1),
            ("syncFlushTimeout=5000", (200, 2700), 1),
            ("syncFlushTimeout=9223372036854775807\nwaitTimeMillsInSendQueue=9223372036854775807", (200, 2700), 2),
            ("syncFlushTimeout=5000\nwaitTimeMillsInSendQueue=50", (50, 2850), 1),
            ("syncFlushTimeout=1000\nwaitTimeMillsInSendQueue=5000", (1900, 1000), 1),
            ("syncFlushTimeout=2000\nwaitTimeMillsInSendQueue=900", (900, 2000), 0),
        ] {
            let made = imported(text);
            let config = Config::from_text("k.toml".as_ref(), &made, Overrides::default())
                .unwrap_or_else(|errors| panic!("{errors}\n{made}"));
            assert_eq!((config.limits.put_wait_ms, config.flush.sync_timeout_ms), waits, "{made}");
            assert_eq!(made.matches("lowered to").count(), notes, "{made}");
        }
    }

    #[test]
    fn every_mapped_key_is_a_setting_of_ours() {
        let config = Config::defaults();
        let known: HashSet<_> = config.settings().iter().map(|setting| setting.key).collect();
        let unknown: Vec<_> = KEYS
            .iter()
            .filter_map(|(java, fate)| match fate {
                Fate::Becomes(key, _) if !known.contains(key) => Some((*java, *key)),
                _ => None,
            })
            .collect();
        assert_eq!(unknown, []);
    }

    #[test]
    fn every_section_of_a_mapped_key_is_written() {
        for (java, fate) in KEYS {
            if let Fate::Becomes(key, _) = fate {
                let (section, _) = key.split_once('.').unwrap();
                assert!(SECTIONS.contains(&section), "{java} becomes {key}");
            }
        }
    }

    #[test]
    fn no_key_is_listed_twice() {
        let mut seen = HashSet::new();
        for (key, _) in KEYS {
            assert!(seen.insert(*key), "{key}");
        }
    }

    #[test]
    fn what_is_left_out_is_said_with_the_reason() {
        let text = imported(
            "useReentrantLockWhenPutMessage=true\nputMessageTimeout=1\nhaListenPort=10912\naclEnable=true\ntlsEnable=false\n\
             nonsense=1\nflushDiskType=MAYBE\nfileReservedTime=long\nbrokerRole=SYNC_MASTER\n",
        );
        for said in [
            "line 1: useReentrantLockWhenPutMessage = true: no meaning here: one core appends",
            "line 2: putMessageTimeout = 1: ignored by Java itself",
            "line 3: haListenPort = 10912: not supported, comes with replication",
            "line 4: aclEnable = true: not supported, access control",
            "line 5: tlsEnable = false: off",
            "line 6: nonsense = 1: unknown",
            "line 7: flushDiskType = MAYBE: not a value",
            "line 8: fileReservedTime = long: not a value",
            "line 9: brokerRole = SYNC_MASTER: not supported, comes with replication",
        ] {
            assert!(text.contains(said), "{said}\n{text}");
        }
    }

    #[test]
    fn of_a_key_that_occurs_twice_the_last_counts() {
        let text = imported("brokerName=a\nbrokerName=b\nmapedFileSizeCommitLog=1\nmappedFileSizeCommitLog=2\n");
        assert!(text.contains("name = \"b\"  # brokerName, line 2"), "{text}");
        assert!(text.contains("line 1: brokerName = a: replaced"), "{text}");
        assert!(text.contains("commitlog_file_size = 2 "), "{text}");
        assert!(text.contains("set by mapedFileSizeCommitLog, line 3, too"), "{text}");
    }

    #[test]
    fn what_cannot_be_served_is_refused() {
        for (text, said) in [
            ("brokerRole=SLAVE", "replica"),
            ("brokerId=1", "replica"),
            ("enableDLegerCommitLog=true", "DLedger"),
            ("storeType=defaultRocksDB", "RocksDB"),
            ("configManagerVersion=v2", "v1"),
            ("storePathCommitLog=/a,/b", "several"),
            ("storePathRootDir=/data\nstorePathCommitLog=/fast/commitlog", "/data/commitlog"),
            ("readOnlyCommitLogStorePaths=/old", "one folder"),
        ] {
            assert!(refused(text).contains(said), "{text}: {}", refused(text));
        }
        assert!(import("enableDLegerCommitLog=false\nstoreType=default\nconfigManagerVersion=v1").is_ok());
        assert_eq!(refused("brokerId=1\nbrokerRole=SLAVE").lines().count(), 2, "all of it is said");
    }

    #[test]
    fn nothing_in_a_value_breaks_out_of_its_line() {
        let text = imported("nonsense = a\\nname = 1\nbrokerName = x\\ny\"\n");
        assert!(toml::from_str::<toml::Table>(&text).is_ok(), "{text}");
        assert!(!text.contains("\nname = 1"), "{text}");
    }
}
