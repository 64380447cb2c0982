//! Settings: what the node may be told, with unit, default and range, checked once at the door.
//!
//! [`Config`] holds checked values only and is read by every floor; hot code takes the plain values out of it at start.
//! A flag beats the file, the file beats the default, and [`Config::settings`] tells which of them it was. What the text
//! alone can show is checked here; what needs the machine (cores, memlock, taken ports) is checked by `node`.
//!
//! The same keys, with the reasons for their defaults, are in `docs/kerolox.toml`; a test keeps the two equal.

mod gate;
mod raw;
mod size;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use toml::Value;

use gate::{File, Gate, quoted};
pub use gate::{Setting, Source};
use raw::RawConfig;
pub use size::parse as parse_size;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// The highest core number that Linux's fixed-size CPU sets can name.
const CORE_MAX: usize = 1023;
/// Wait for the writer core and wait for the flush together, ms: less than the 3 s after which clients give up.
pub const ANSWER_MS_MAX: u64 = 2900;
/// The first of them unless somebody sets it.
pub const PUT_WAIT_MS_DEFAULT: u64 = 200;
/// The second.
pub const SYNC_TIMEOUT_MS_DEFAULT: u64 = 2500;
/// Broker and cluster names become parts of topic names, which end at 127 bytes.
const NAME_LEN_MAX: usize = 96;
/// The delays of levels 1 to 18, as RocketMQ has them.
pub const DELAY_LEVELS_DEFAULT: &str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h";
/// As many delay levels as the schedule topic has queues.
const DELAY_LEVELS_MAX: usize = 18;
/// A consume queue file holds whole units.
const UNIT_LEN: u64 = 20;
/// More than any disk: a larger bound of free space is a slip.
const FREE_LEN_MAX: u64 = 1 << 60;
/// An index file of more bytes could not be mapped by the Java broker.
const INDEX_FILE_LEN_MAX: u64 = i32::MAX as u64;

/// All settings of a node, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub broker: BrokerConfig,
    pub net: NetConfig,
    pub nameserver: NameserverConfig,
    pub cores: CoresConfig,
    pub store: StoreConfig,
    pub flush: FlushConfig,
    pub retention: RetentionConfig,
    pub disk: DiskConfig,
    pub recovery: RecoveryConfig,
    pub read: ReadConfig,
    pub limits: LimitsConfig,
    pub metrics: MetricsConfig,
    pub log: LogConfig,
    settings: Vec<Setting>,
}

/// Who this node is to clients and name servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerConfig {
    /// Stands in routes and message queues; consumer offsets belong to it, so it should never change.
    pub name: String,
    pub cluster: String,
    /// 0, the master: other ids are replicas, which come with replication.
    pub id: u64,
    pub profile: Profile,
}

/// Whose habits the node shows where 4.9 and 5.x brokers answer differently. Source: remoting.md 10.1, rule 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    V5,
    V4_9,
}

/// Sockets that clients connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetConfig {
    pub listen: SocketAddr,
    /// The address given to clients; None: see [`NetConfig::advertised`].
    pub advertise: Option<IpAddr>,
    /// Also listen on port − 2, which Java clients with VIP channels use.
    pub vip: bool,
    /// Connections over all shards; more are closed at once.
    pub max_connections: usize,
    /// A connection without traffic in either direction for this long is closed.
    pub idle_timeout_ms: u64,
    /// A frame that has begun and does not go on for this long ends its connection.
    pub frame_stall_ms: u64,
    /// A peer that takes nothing of what waits for it for this long is closed.
    pub write_stall_ms: u64,
}

impl NetConfig {
    /// The address to give to clients, if the text tells it. None: it listens everywhere and nobody said which address
    /// clients know, so `node` takes the first of the host that is not loopback.
    pub fn advertised(&self) -> Option<IpAddr> {
        self.advertise.or_else(|| (!self.listen.ip().is_unspecified()).then(|| self.listen.ip()))
    }

    /// The VIP listener's address, if there is one.
    pub fn vip_listen(&self) -> Option<SocketAddr> {
        self.vip.then(|| SocketAddr::new(self.listen.ip(), self.listen.port() - 2))
    }
}

/// Name servers: our own, and those of others where this node registers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameserverConfig {
    /// Where the built-in name server listens; None: off.
    pub embedded: Option<SocketAddr>,
    /// `host:port` of other name servers to register with.
    pub register: Vec<String>,
}

/// Which cores do what. None: `node` places the roles over the cores it may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoresConfig {
    pub writer: Option<usize>,
    /// One shard a core, in this order; holds the writer's core only if that is its only element.
    pub shards: Option<Vec<usize>>,
    /// How long a core looks for work before it sleeps, µs; 0: it sleeps at once.
    pub spin_us: u32,
}

/// Where and in which files messages lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreConfig {
    pub root: PathBuf,
    pub append: AppendMode,
    /// Length of a commit log segment, bytes; a multiple of 4096.
    pub commitlog_file_size: u64,
    /// Length of a consume queue file, bytes; a multiple of the 20 bytes of a unit.
    pub consumequeue_file_size: u64,
    /// Hash slots of an index file.
    pub index_slots: u32,
    /// Entries of an index file, the unused one at number 0 included.
    pub index_entries: u32,
    pub zero_ahead: ZeroAhead,
    /// Messages can be found by key.
    pub index: bool,
    /// Each record gets a checksum over all of it.
    pub property_crc: bool,
}

/// How records get into the commit log; the bytes are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendMode {
    /// What measured best: `Dma` in sync mode where one executor has all roles, else `Buffered`.
    Auto,
    Buffered,
    Mmap,
    /// Past the page cache.
    Dma,
}

/// Which call brings a batch onto stable storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncCall {
    /// The faster of the two on the store's own file system, found out at the first start.
    Auto,
    /// The write itself, through a handle opened with O_DSYNC.
    ODsync,
    /// A call behind the write.
    Fdatasync,
}

/// Whether the log is filled with zeros ahead of the append position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZeroAhead {
    /// On in sync mode, where unwritten extents make every flush dear; off in async mode.
    Auto,
    On,
    Off,
}

/// When a send is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushMode {
    /// Once the message is in the page cache.
    Async,
    /// Once the message is on stable storage.
    Sync,
}

impl FlushMode {
    /// Does a sender wait for stable storage?
    pub fn is_sync(self) -> bool {
        self == FlushMode::Sync
    }
}

/// When data goes to stable storage. Times in ms, pages of 4 KiB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlushConfig {
    pub mode: FlushMode,
    pub sync_call: SyncCall,
    pub interval_ms: u64,
    pub least_pages: u64,
    pub thorough_interval_ms: u64,
    pub sync_timeout_ms: u64,
    pub consumequeue_interval_ms: u64,
    pub consumequeue_least_pages: u64,
    pub consumequeue_thorough_interval_ms: u64,
}

/// When old messages go. Times in ms unless said otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetentionConfig {
    /// Hours for which messages are kept at least, unless the disk is too full.
    pub hours: u32,
    /// Bit `h`: expired messages go during local hour `h`.
    pub delete_hours: u32,
    pub check_interval_ms: u64,
    /// Most commit log files deleted at a time.
    pub batch_max: u32,
    /// Pause between two of them.
    pub file_pause_ms: u64,
    /// Pause after a queue of which files were deleted.
    pub consumequeue_pause_ms: u64,
    /// A reader that holds a deleted file longer is reported.
    pub held_report_ms: u64,
    /// Pause until a file that could not be deleted is tried again.
    pub retry_ms: u64,
    /// May messages go before their time when the disk is too full?
    pub force_when_full: bool,
}

/// How full the disk may get: whole percent rounded up, free space in bytes (0: no bound).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskConfig {
    pub max_used_percent: u64,
    pub clean_percent: u64,
    pub warning_percent: u64,
    pub min_free_clean: u64,
    pub min_free_warning: u64,
}

/// What a recovery looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveryConfig {
    /// Are bodies held against their checksums?
    pub check_crc: bool,
    /// Are whole records held against the checksum among their properties, which then each must have? Instead of the body's.
    pub verify_property_crc: bool,
}

/// How much one pull or query gives, and what it may cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadConfig {
    /// Bytes and messages of one pull while they count as in memory.
    pub memory_bytes_max: u64,
    pub memory_count_max: u32,
    /// The same while they do not.
    pub disk_bytes_max: u64,
    pub disk_count_max: u32,
    /// Messages count as in memory within this share of the machine's memory from the log's end, %.
    pub memory_percent: u64,
    /// Bytes of consume queue units that one pull looks at.
    pub filter_bytes_max: u64,
    /// Consume queue files that one pull goes through while it finds nothing.
    pub queue_files_max: u32,
    /// Messages of a query by unique key.
    pub query_max: u32,
    /// Reads from the disk that a shard makes for one consumer group at a time.
    pub cold_reads_per_group: u32,
    /// What scans of old messages may take of a shard core's time while others use the core, %; 100: all.
    pub scan_core_percent: u64,
}

/// Bounds on what clients may ask and on what may wait in the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitsConfig {
    /// Bytes of a message's body, or of a whole client batch.
    pub max_message_size: u32,
    pub auto_create_topic: bool,
    pub auto_create_group: bool,
    pub default_topic_queue_nums: u32,
    /// Bytes of messages on their way to the writer core, over all shards.
    pub put_inflight_bytes: u64,
    /// The same in messages.
    pub put_inflight_messages: u32,
    /// A message that waits longer than this for the writer core is refused, ms.
    pub put_wait_ms: u64,
    /// Pulls that one shard keeps waiting for messages.
    pub holds_per_shard: usize,
    /// Bytes of frames that have not arrived whole, over all connections.
    pub frame_bytes_in_progress: u64,
    /// The delays of levels 1, 2, 3 …, ms.
    pub delay_levels_ms: Vec<i64>,
}

/// The page of metrics and the answers about health, by HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricsConfig {
    /// None: off.
    pub listen: Option<SocketAddr>,
    /// Topics with series of their own, and pairs of topic and group; what comes later shares one series.
    pub series_max: u16,
}

/// The log on standard error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// A level, or a list like `info,kerolox::store=debug`.
    pub level: String,
    pub format: LogFormat,
    /// A request that takes at least so long is told, ms; 0: none is.
    pub slow_ms: u32,
}

/// How a log line looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For journald if that reads standard error, else as text.
    Auto,
    /// Time, level, text, fields.
    Text,
    /// One JSON object a line.
    Json,
    /// For journald: a syslog priority such as `<6>` instead of time and level.
    Journal,
}

/// Values from the command line; they beat the file.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    values: BTreeMap<String, (&'static str, Value)>,
}

impl Overrides {
    /// `flag` sets `key`, such as `--listen` sets `net.listen`. The value is checked with the rest.
    pub fn set(&mut self, key: impl Into<String>, flag: &'static str, value: impl Into<Value>) {
        self.values.insert(key.into(), (flag, value.into()));
    }

    /// `--set`: any setting, as `flush.mode=sync`. What is no TOML value is a text. An unknown key is found with the rest.
    ///
    /// # Errors
    /// There is no `=`.
    pub fn set_any(&mut self, flag: &'static str, assignment: &str) -> Result<(), String> {
        let Some((key, value)) = assignment.split_once('=') else {
            return Err(format!("{flag} {} has no value; write KEY=VALUE such as flush.mode=sync", quoted(assignment)));
        };
        let value = value.trim();
        let parsed = toml::from_str::<toml::Table>(&format!("value = {value}")).ok().and_then(|table| {
            // A line break would smuggle in a second line.
            (table.len() == 1).then(|| table.get("value").cloned())?
        });
        self.set(key.trim(), flag, parsed.unwrap_or_else(|| value.into()));
        Ok(())
    }

    /// `--cores`: `auto`, or a list such as `0,2-5`, whose first core gets the writer and whose others get a shard each;
    /// a single core gets everything.
    ///
    /// # Errors
    /// The text is no such list.
    pub fn set_cores(&mut self, flag: &'static str, list: &str) -> Result<(), String> {
        let cores = core_list(list).map_err(|why| format!("{flag}: {} {why}", quoted(list)))?;
        let number = |core: usize| Value::Integer(i64::try_from(core).expect("checked by core_list"));
        let (writer, shards) = match cores.as_slice() {
            [] => (Value::from("auto"), Value::from("auto")),
            [only] => (number(*only), Value::Array(vec![number(*only)])),
            [writer, shards @ ..] => (number(*writer), Value::Array(shards.iter().copied().map(number).collect())),
        };
        self.set("cores.writer", flag, writer);
        self.set("cores.shards", flag, shards);
        Ok(())
    }
}

/// Why there is no usable configuration: one line each, with place, key, value, what is allowed and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors {
    lines: Vec<String>,
}

impl ConfigErrors {
    pub fn one(line: impl Into<String>) -> ConfigErrors {
        ConfigErrors { lines: vec![line.into()] }
    }

    pub fn lines(&self) -> &[String] {
        &self.lines
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines.join("\n"))
    }
}

impl std::error::Error for ConfigErrors {}

impl Config {
    /// Reads the file, if one is given, lays `overrides` over it and checks everything.
    ///
    /// # Errors
    /// Every mistake found, not only the first.
    pub fn load(path: Option<&Path>, overrides: Overrides) -> Result<Config, ConfigErrors> {
        let Some(path) = path else {
            return Config::check(RawConfig::default(), None, overrides);
        };
        let text = std::fs::read_to_string(path).map_err(|error| {
            ConfigErrors::one(format!("{}: cannot be read ({error}); check --config", path.display()))
        })?;
        Config::from_text(path, &text, overrides)
    }

    /// As [`Config::load`], with the file's text at hand; `path` is its name in messages.
    ///
    /// # Errors
    /// Every mistake found; if the text is no TOML or has an unknown key, only the first.
    pub fn from_text(path: &Path, text: &str, overrides: Overrides) -> Result<Config, ConfigErrors> {
        let file = File { path: Arc::from(path), text };
        let raw = toml::from_str::<RawConfig>(text).map_err(|error| unreadable(&file, &error))?;
        Config::check(raw, Some(file), overrides)
    }

    /// What holds when nobody says anything.
    pub fn defaults() -> Config {
        Config::load(None, Overrides::default()).expect("the defaults pass their own checks")
    }

    /// Every setting with its value and source, in the order of the file.
    pub fn settings(&self) -> &[Setting] {
        &self.settings
    }

    fn check(raw: RawConfig, file: Option<File<'_>>, overrides: Overrides) -> Result<Config, ConfigErrors> {
        let mut gate = Gate::new(file, overrides);
        let mut config = Config {
            broker: broker(&mut gate, raw.broker),
            net: net(&mut gate, raw.net),
            nameserver: nameserver(&mut gate, raw.nameserver),
            cores: cores(&mut gate, raw.cores),
            store: store(&mut gate, raw.store),
            flush: flush(&mut gate, raw.flush),
            retention: retention(&mut gate, raw.retention),
            disk: disk(&mut gate, raw.disk),
            recovery: recovery(&mut gate, raw.recovery),
            read: read(&mut gate, raw.read),
            limits: limits(&mut gate, raw.limits),
            metrics: metrics(&mut gate, raw.metrics),
            log: log(&mut gate, raw.log),
            settings: Vec::new(),
        };
        check_together(&mut gate, &config);
        config.settings = gate.finish().map_err(|lines| ConfigErrors { lines })?;
        Ok(config)
    }
}

fn broker(gate: &mut Gate<'_>, raw: raw::RawBroker) -> BrokerConfig {
    BrokerConfig {
        name: gate.text("broker.name", raw.name, "broker-a", check_name),
        cluster: gate.text("broker.cluster", raw.cluster, "DefaultCluster", check_name),
        id: gate.read(
            "broker.id",
            raw.id,
            0,
            |value| match value.as_integer() {
                Some(0) => Ok(0),
                _ => Err("must be 0, the master: other ids are replicas, which this version does not offer".into()),
            },
            u64::to_string,
        ),
        profile: gate.choice(
            "broker.profile",
            raw.profile,
            Profile::V5,
            &[("5", Profile::V5), ("4.9", Profile::V4_9)],
            &[],
        ),
    }
}

fn net(gate: &mut Gate<'_>, raw: raw::RawNet) -> NetConfig {
    NetConfig {
        listen: gate.read("net.listen", raw.listen, ([127, 0, 0, 1], 10911).into(), gate::address, |at| {
            quoted(&at.to_string())
        }),
        advertise: gate.read("net.advertise", raw.advertise, None, auto_or(gate::ip), |ip| {
            ip.map_or_else(|| quoted("auto"), |ip| quoted(&ip.to_string()))
        }),
        vip: gate.switch("net.vip", raw.vip, true),
        max_connections: gate.integer("net.max_connections", raw.max_connections, 50_000, 1..=10_000_000),
        idle_timeout_ms: gate.integer("net.idle_timeout_ms", raw.idle_timeout_ms, 120_000, 1_000..=86_400_000),
        frame_stall_ms: gate.integer("net.frame_stall_ms", raw.frame_stall_ms, 30_000, 1_000..=86_400_000),
        write_stall_ms: gate.integer("net.write_stall_ms", raw.write_stall_ms, 60_000, 1_000..=86_400_000),
    }
}

fn nameserver(gate: &mut Gate<'_>, raw: raw::RawNameserver) -> NameserverConfig {
    NameserverConfig {
        embedded: address_or_off(gate, "nameserver.embedded", raw.embedded, 9876),
        register: gate.read("nameserver.register", raw.register, Vec::new(), check_registers, |list| {
            Value::Array(list.iter().map(|address| Value::from(address.as_str())).collect()).to_string()
        }),
    }
}

/// A port of its own that can be left out; by default this one on loopback.
fn address_or_off(gate: &mut Gate<'_>, key: &'static str, raw: raw::Raw, port: u16) -> Option<SocketAddr> {
    gate.read(
        key,
        raw,
        Some(([127, 0, 0, 1], port).into()),
        |value| match value.as_str() {
            Some("off") => Ok(None),
            _ => gate::address(value).map(Some).map_err(|why| format!("{why}; or \"off\"")),
        },
        |at| at.map_or_else(|| quoted("off"), |at| quoted(&at.to_string())),
    )
}

fn cores(gate: &mut Gate<'_>, raw: raw::RawCores) -> CoresConfig {
    CoresConfig {
        writer: gate.read("cores.writer", raw.writer, None, auto_or(core_number), |core| {
            core.map_or_else(|| quoted("auto"), |core| core.to_string())
        }),
        shards: gate.read("cores.shards", raw.shards, None, auto_or(core_numbers), |cores| {
            cores.as_ref().map_or_else(|| quoted("auto"), |cores| format!("{cores:?}"))
        }),
        spin_us: gate.integer("cores.spin_us", raw.spin_us, 0, 0..=10_000),
    }
}

fn store(gate: &mut Gate<'_>, raw: raw::RawStore) -> StoreConfig {
    StoreConfig {
        root: PathBuf::from(gate.text("store.root", raw.root, "./kerolox-data", |text| match text {
            "" => Err("is empty; write the directory that shall hold the messages".into()),
            text if text.contains('\0') => Err("holds a NUL, which no path has; write the directory without it".into()),
            _ => Ok(()),
        })),
        append: gate.choice(
            "store.append",
            raw.append,
            AppendMode::Auto,
            &[
                ("auto", AppendMode::Auto),
                ("buffered", AppendMode::Buffered),
                ("mmap", AppendMode::Mmap),
                ("dma", AppendMode::Dma),
            ],
            &[],
        ),
        commitlog_file_size: gate.size(
            "store.commitlog_file_size",
            raw.commitlog_file_size,
            GIB,
            4 * KIB..=64 * GIB,
            1,
        ),
        consumequeue_file_size: gate.size(
            "store.consumequeue_file_size",
            raw.consumequeue_file_size,
            6_000_000,
            20..=GIB,
            UNIT_LEN,
        ),
        index_slots: gate.integer("store.index_slots", raw.index_slots, 5_000_000, 1..=500_000_000),
        index_entries: gate.integer("store.index_entries", raw.index_entries, 20_000_000, 2..=100_000_000),
        zero_ahead: gate.choice(
            "store.zero_ahead",
            raw.zero_ahead,
            ZeroAhead::Auto,
            &[("auto", ZeroAhead::Auto), ("on", ZeroAhead::On), ("off", ZeroAhead::Off)],
            &[],
        ),
        index: gate.switch("store.index", raw.index, true),
        property_crc: gate.switch("store.property_crc", raw.property_crc, false),
    }
}

fn flush(gate: &mut Gate<'_>, raw: raw::RawFlush) -> FlushConfig {
    let words = [("async", FlushMode::Async), ("sync", FlushMode::Sync)];
    FlushConfig {
        mode: gate.choice("flush.mode", raw.mode, FlushMode::Async, &words, &[]),
        sync_call: gate.choice(
            "flush.sync_call",
            raw.sync_call,
            SyncCall::Auto,
            &[("auto", SyncCall::Auto), ("o_dsync", SyncCall::ODsync), ("fdatasync", SyncCall::Fdatasync)],
            &[("fsync", "would also write times that nobody reads; write \"fdatasync\"")],
        ),
        interval_ms: gate.integer("flush.interval_ms", raw.interval_ms, 100, 1..=60_000),
        least_pages: gate.integer("flush.least_pages", raw.least_pages, 4, 0..=262_144),
        thorough_interval_ms: gate.integer("flush.thorough_interval_ms", raw.thorough_interval_ms, 10_000, 1..=600_000),
        sync_timeout_ms: gate.integer(
            "flush.sync_timeout_ms",
            raw.sync_timeout_ms,
            SYNC_TIMEOUT_MS_DEFAULT,
            1..=ANSWER_MS_MAX - 1,
        ),
        consumequeue_interval_ms: gate.integer(
            "flush.consumequeue_interval_ms",
            raw.consumequeue_interval_ms,
            1_000,
            1..=60_000,
        ),
        consumequeue_least_pages: gate.integer(
            "flush.consumequeue_least_pages",
            raw.consumequeue_least_pages,
            2,
            0..=262_144,
        ),
        consumequeue_thorough_interval_ms: gate.integer(
            "flush.consumequeue_thorough_interval_ms",
            raw.consumequeue_thorough_interval_ms,
            60_000,
            1..=3_600_000,
        ),
    }
}

fn retention(gate: &mut Gate<'_>, raw: raw::RawRetention) -> RetentionConfig {
    let delete_when = gate.text("retention.delete_when", raw.delete_when, "04", |text| delete_hours(text).map(drop));
    RetentionConfig {
        hours: gate.integer("retention.hours", raw.hours, 72, 1..=876_000),
        delete_hours: delete_hours(&delete_when).expect("only a text that passed the check is returned"),
        check_interval_ms: gate.integer("retention.check_interval_ms", raw.check_interval_ms, 10_000, 100..=3_600_000),
        batch_max: gate.integer("retention.batch_max", raw.batch_max, 10, 1..=1_000_000),
        file_pause_ms: gate.integer("retention.file_pause_ms", raw.file_pause_ms, 100, 0..=60_000),
        consumequeue_pause_ms: gate.integer(
            "retention.consumequeue_pause_ms",
            raw.consumequeue_pause_ms,
            100,
            0..=60_000,
        ),
        held_report_ms: gate.integer("retention.held_report_ms", raw.held_report_ms, 120_000, 100..=86_400_000),
        retry_ms: gate.integer("retention.retry_ms", raw.retry_ms, 120_000, 100..=86_400_000),
        force_when_full: gate.switch("retention.force_when_full", raw.force_when_full, true),
    }
}

fn recovery(gate: &mut Gate<'_>, raw: raw::RawRecovery) -> RecoveryConfig {
    RecoveryConfig {
        check_crc: gate.switch("recovery.check_crc", raw.check_crc, true),
        verify_property_crc: gate.switch("recovery.verify_property_crc", raw.verify_property_crc, false),
    }
}

/// Java silently brings a percent into its range; a node that stops taking messages elsewhere than its settings say would
/// surprise, so such a value is refused.
fn disk(gate: &mut Gate<'_>, raw: raw::RawDisk) -> DiskConfig {
    DiskConfig {
        max_used_percent: gate.integer("disk.max_used_percent", raw.max_used_percent, 75, 10..=95),
        clean_percent: gate.integer("disk.clean_percent", raw.clean_percent, 85, 30..=85),
        warning_percent: gate.integer("disk.warning_percent", raw.warning_percent, 90, 35..=90),
        min_free_clean: gate.size("disk.min_free_clean", raw.min_free_clean, 0, 0..=FREE_LEN_MAX, 1),
        min_free_warning: gate.size("disk.min_free_warning", raw.min_free_warning, 0, 0..=FREE_LEN_MAX, 1),
    }
}

fn read(gate: &mut Gate<'_>, raw: raw::RawRead) -> ReadConfig {
    ReadConfig {
        memory_bytes_max: gate.size("read.memory_bytes_max", raw.memory_bytes_max, 262_144, KIB..=8 * MIB, 1),
        memory_count_max: gate.integer("read.memory_count_max", raw.memory_count_max, 32, 1..=1024),
        disk_bytes_max: gate.size("read.disk_bytes_max", raw.disk_bytes_max, 65_536, KIB..=8 * MIB, 1),
        disk_count_max: gate.integer("read.disk_count_max", raw.disk_count_max, 8, 1..=1024),
        memory_percent: gate.integer("read.memory_percent", raw.memory_percent, 40, 0..=100),
        filter_bytes_max: gate.size("read.filter_bytes_max", raw.filter_bytes_max, 16_000, UNIT_LEN..=MIB, 1),
        queue_files_max: gate.integer("read.queue_files_max", raw.queue_files_max, 1, 1..=64),
        query_max: gate.integer("read.query_max", raw.query_max, 32, 1..=64),
        cold_reads_per_group: gate.integer("read.cold_reads_per_group", raw.cold_reads_per_group, 4, 1..=64),
        scan_core_percent: gate.integer("read.scan_core_percent", raw.scan_core_percent, 25, 1..=100),
    }
}

fn limits(gate: &mut Gate<'_>, raw: raw::RawLimits) -> LimitsConfig {
    let max_message_size = gate.size("limits.max_message_size", raw.max_message_size, 4 * MIB, KIB..=15 * MIB, 1);
    let mut limits = LimitsConfig {
        max_message_size: u32::try_from(max_message_size).expect("the range ends below 4 GiB"),
        auto_create_topic: gate.switch("limits.auto_create_topic", raw.auto_create_topic, true),
        auto_create_group: gate.switch("limits.auto_create_group", raw.auto_create_group, true),
        default_topic_queue_nums: gate.integer(
            "limits.default_topic_queue_nums",
            raw.default_topic_queue_nums,
            8,
            1..=1_024,
        ),
        put_inflight_bytes: gate.size("limits.put_inflight_bytes", raw.put_inflight_bytes, 64 * MIB, MIB..=16 * GIB, 1),
        put_inflight_messages: gate.integer(
            "limits.put_inflight_messages",
            raw.put_inflight_messages,
            65_536,
            64..=16_777_216,
        ),
        put_wait_ms: gate.integer("limits.put_wait_ms", raw.put_wait_ms, PUT_WAIT_MS_DEFAULT, 1..=ANSWER_MS_MAX - 1),
        holds_per_shard: gate.integer("limits.holds_per_shard", raw.holds_per_shard, 100_000, 1..=10_000_000),
        frame_bytes_in_progress: gate.size(
            "limits.frame_bytes_in_progress",
            raw.frame_bytes_in_progress,
            512 * MIB,
            16 * MIB..=64 * GIB,
            1,
        ),
        delay_levels_ms: Vec::new(),
    };
    let levels =
        gate.text("limits.delay_levels", raw.delay_levels, DELAY_LEVELS_DEFAULT, |text| delay_levels(text).map(drop));
    limits.delay_levels_ms = delay_levels(&levels).expect("only a text that passed the check is returned");
    limits
}

fn metrics(gate: &mut Gate<'_>, raw: raw::RawMetrics) -> MetricsConfig {
    MetricsConfig {
        listen: address_or_off(gate, "metrics.listen", raw.listen, 5557),
        series_max: gate.integer("metrics.series_max", raw.series_max, 500, 1..=10_000),
    }
}

fn log(gate: &mut Gate<'_>, raw: raw::RawLog) -> LogConfig {
    let words = [
        ("auto", LogFormat::Auto),
        ("text", LogFormat::Text),
        ("json", LogFormat::Json),
        ("journal", LogFormat::Journal),
    ];
    LogConfig {
        level: gate.text("log.level", raw.level, "info", check_level),
        format: gate.choice("log.format", raw.format, LogFormat::Auto, &words, &[]),
        slow_ms: gate.integer("log.slow_ms", raw.slow_ms, 500, 0..=3_600_000),
    }
}

/// Settings that must fit each other.
fn check_together(gate: &mut Gate<'_>, config: &Config) {
    let Config { net, nameserver, cores, store, flush, disk, limits, metrics, .. } = config;
    if disk.max_used_percent > disk.clean_percent {
        gate.refuse(
            &["disk.max_used_percent", "disk.clean_percent"],
            "take young files before expired ones are looked for; lower the first or raise the second",
        );
    }
    if disk.clean_percent > disk.warning_percent {
        gate.refuse(
            &["disk.clean_percent", "disk.warning_percent"],
            "stop sends before anything is cleaned; lower the first or raise the second",
        );
    }
    if disk.min_free_clean > 0 && disk.min_free_clean < disk.min_free_warning {
        gate.refuse(
            &["disk.min_free_clean", "disk.min_free_warning"],
            "stop sends before anything is cleaned; raise the first, or set it to 0, or lower the second",
        );
    }
    if net.vip && net.listen.port() <= 2 {
        gate.refuse(&["net.listen", "net.vip"], "leaves no port two below for VIP channels; choose a higher port");
        return;
    }
    if let Some(listen) = metrics.listen {
        let mut others = [Some(net.listen), net.vip_listen(), nameserver.embedded].into_iter().flatten();
        if others.any(|other| meets(listen, other)) {
            gate.refuse(
                &["metrics.listen", "net.listen", "net.vip", "nameserver.embedded"],
                "use one port twice; choose another for the metrics, 5557 is usual, or \"off\"",
            );
        }
    }
    let is_named = |other: SocketAddr| nameserver.embedded.is_some_and(|embedded| meets(embedded, other));
    if is_named(net.listen) || net.vip_listen().is_some_and(is_named) {
        gate.refuse(
            &["net.listen", "net.vip", "nameserver.embedded"],
            "use one port twice (VIP channels take the port two below); choose another, 9876 is usual for name servers",
        );
    }
    if let Some(shards) = &cores.shards {
        let mut seen = shards.clone();
        seen.sort_unstable();
        seen.dedup();
        if seen.len() < shards.len() {
            gate.refuse(&["cores.shards"], "names a core twice; write each core once, every shard needs its own");
        }
    }
    if store.append == AppendMode::Mmap && flush.sync_call == SyncCall::ODsync {
        gate.refuse(
            &["store.append", "flush.sync_call"],
            "cannot keep what a sync send is promised: O_DSYNC is about writes, and a mapping has none; write \"fdatasync\" or \"auto\"",
        );
    }
    if !store.commitlog_file_size.is_multiple_of(4 * KIB) {
        gate.refuse(&["store.commitlog_file_size"], "must be a multiple of 4096, the size of a page");
    }
    if u64::from(limits.max_message_size) + KIB > store.commitlog_file_size {
        gate.refuse(
            &["store.commitlog_file_size", "limits.max_message_size"],
            "leave no room for the largest message and its header in one file; raise the first or lower the second",
        );
    }
    let index_file_len = 40 + 4 * u64::from(store.index_slots) + 20 * u64::from(store.index_entries);
    if index_file_len > INDEX_FILE_LEN_MAX {
        gate.refuse(
            &["store.index_slots", "store.index_entries"],
            "make index files above 2 GiB, which RocketMQ cannot map; lower either",
        );
    }
    if flush.sync_timeout_ms + limits.put_wait_ms > ANSWER_MS_MAX {
        gate.refuse(
            &["flush.sync_timeout_ms", "limits.put_wait_ms"],
            &format!(
                "are together {} ms, and clients give up after 3 s and send again; lower either, to {ANSWER_MS_MAX} ms in all",
                flush.sync_timeout_ms + limits.put_wait_ms
            ),
        );
    }
    if limits.put_inflight_bytes < u64::from(limits.max_message_size) {
        gate.refuse(
            &["limits.max_message_size", "limits.put_inflight_bytes"],
            "leave no way for the largest message to the writer core; raise the second or lower the first",
        );
    }
}

/// Can two listeners not both have these?
fn meets(one: SocketAddr, other: SocketAddr) -> bool {
    let same_ip = one.ip() == other.ip() || one.ip().is_unspecified() || other.ip().is_unspecified();
    same_ip && one.port() == other.port()
}

/// What to say when the text is no TOML, or has a key that is not in [`RawConfig`].
fn unreadable(file: &File<'_>, error: &toml::de::Error) -> ConfigErrors {
    let line = file.line_of(error.span().map_or(0, |span| span.start));
    let section =
        file.text.lines().take(line).filter_map(|text| text.trim().strip_prefix('[')?.split(']').next()).last();
    let what = error.message().replace("unknown field", "unknown key").replace('\n', "; ").replace('`', "\"");
    let place = section.map_or_else(String::new, |section| format!(" in section [{section}]"));
    ConfigErrors::one(format!(
        "{}:{line}: {what}{place}; every key is explained in docs/kerolox.toml",
        file.path.display()
    ))
}

fn check_name(text: &str) -> Result<(), String> {
    let fine = |c: char| c.is_ascii_alphanumeric() || "%|-_".contains(c);
    match text {
        "" => Err("is empty; write a name".into()),
        _ if text.len() > NAME_LEN_MAX => Err(format!("is longer than {NAME_LEN_MAX} characters; shorten it")),
        _ if !text.chars().all(fine) => {
            Err("has characters beyond a-z A-Z 0-9 % | - _; topics carry this name too".into())
        }
        _ => Ok(()),
    }
}

fn check_registers(value: &Value) -> Result<Vec<String>, String> {
    let wrong =
        || "must be a list of \"host:port\" texts, such as [\"10.0.0.5:9876\"]; [] registers nowhere".to_owned();
    let list = value.as_array().ok_or_else(wrong)?;
    list.iter()
        .map(|item| {
            let text = item.as_str().ok_or_else(wrong)?;
            let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
            let fine = !host.is_empty()
                && !host.contains(char::is_whitespace)
                && port.parse::<u16>().is_ok_and(|port| port > 0);
            fine.then(|| text.to_owned()).ok_or_else(wrong)
        })
        .collect()
}

fn check_level(text: &str) -> Result<(), String> {
    let level = |word: &str| ["off", "error", "warn", "info", "debug", "trace"].contains(&word);
    let fine = |part: &str| match part.split_once('=') {
        Some((target, word)) => !target.is_empty() && !target.contains(char::is_whitespace) && level(word),
        None => level(part),
    };
    if text.split(',').all(fine) {
        return Ok(());
    }
    Err("must be off, error, warn, info, debug or trace, or a list such as \"info,kerolox::store=debug\"".into())
}

/// Lets `"auto"` stand for "not set".
fn auto_or<T>(check: impl FnOnce(&Value) -> Result<T, String>) -> impl FnOnce(&Value) -> Result<Option<T>, String> {
    |value| if value.as_str() == Some("auto") { Ok(None) } else { check(value).map(Some) }
}

fn core_number(value: &Value) -> Result<usize, String> {
    let number = value.as_integer().and_then(|core| usize::try_from(core).ok());
    number
        .filter(|core| *core <= CORE_MAX)
        .ok_or_else(|| format!("must be a core number from 0 to {CORE_MAX}, or \"auto\""))
}

fn core_numbers(value: &Value) -> Result<Vec<usize>, String> {
    let wrong = || format!("must be a list of core numbers from 0 to {CORE_MAX} such as [1, 2], or \"auto\"");
    let list = value.as_array().filter(|list| !list.is_empty()).ok_or_else(wrong)?;
    list.iter().map(|core| core_number(core).map_err(|_| wrong())).collect()
}

/// `0,2-5` as numbers; `auto` as none.
fn core_list(text: &str) -> Result<Vec<usize>, String> {
    let wrong = || {
        format!("is no core list; write auto, or cores from 0 to {CORE_MAX} such as 0,2-5 (the first gets the writer)")
    };
    if text == "auto" {
        return Ok(Vec::new());
    }
    let core = |text: &str| text.trim().parse::<usize>().ok().filter(|core| *core <= CORE_MAX).ok_or_else(wrong);
    let mut cores = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (core(first)?, core(last)?);
        if first > last {
            return Err(wrong());
        }
        cores.extend(first..=last);
    }
    Ok(cores)
}

/// `04;16` as the bits of those hours.
fn delete_hours(text: &str) -> Result<u32, String> {
    let mut hours = 0;
    for hour in text.split(';') {
        let number = hour.trim().parse::<u32>().ok().filter(|hour| *hour < 24).ok_or(
            "must name local hours from 0 to 23, several parted by semicolons, such as \"04\" or \"2;14\"; leave the line out for the default \"04\"",
        )?;
        hours |= 1 << number;
    }
    Ok(hours)
}

/// `1s 5m 2h` as milliseconds.
///
/// # Errors
/// Which level is none, or that there are too few or too many.
pub fn delay_levels(text: &str) -> Result<Vec<i64>, String> {
    let wrong =
        |level: &str| format!("has the level {level:?}; write whole numbers with s, m, h or d, such as \"1s 10m 2h\"");
    let levels = text
        .split_whitespace()
        .map(|level| {
            let (number, unit) = level.split_at_checked(level.len() - 1).ok_or_else(|| wrong(level))?;
            let seconds = match unit {
                "s" => 1,
                "m" => 60,
                "h" => 3_600,
                "d" => 86_400,
                _ => return Err(wrong(level)),
            };
            let number = number.parse::<u32>().ok().filter(|number| *number > 0).ok_or_else(|| wrong(level))?;
            Ok(i64::from(number) * seconds * 1_000)
        })
        .collect::<Result<Vec<_>, _>>()?;
    match levels.len() {
        1..=DELAY_LEVELS_MAX => Ok(levels),
        count => Err(format!("has {count} levels; write from 1 to {DELAY_LEVELS_MAX}")),
    }
}
