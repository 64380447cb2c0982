//! The node's life on the main thread: check the host, open the store, start the executors, wait for a signal, stop in
//! order, close the store.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use glommio::{ExecutorJoinHandle, LocalExecutorBuilder};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::checks::{self, HostWarnings};
use super::control_core::{CONTROL_SHARD, Created, KV_CONFIG, Registry};
use super::error::NodeError;
use super::heartbeat::{Heart, Heartbeats};
use super::helper::{Helper, Nice, settle};
use super::memory::{self, MemoryLimit};
use super::mesh;
use super::notify::Notify;
use super::page::{PROBES, Pages, Running};
use super::placement::{Placement, usable_cores};
use super::shard_core::{self, ControlParts, ShardParts};
use super::writer_core::{self, WriterParts};
use crate::broker::control::{ControlSettings, KvConfig, LoadedTables};
use crate::broker::delay::DelayLevels;
use crate::broker::shard::ShardSettings;
use crate::broker::{Directory, SharedDirectory};
use crate::config::{self, AppendMode, Config, ReadConfig, RecoveryConfig, SyncCall};
use crate::dispatch::ring;
use crate::io::{self, SharedMap};
use crate::log::Checksums;
use crate::log::{DiskRule, RetentionRule};
use crate::net::{HttpLimits, HttpServer, NetLimits, PortTaken, StallTimes};
use crate::store::{
    self, Closing, DiskWatch, ExpirySettings, FlushMode, Health, OpenError, OpenedStore, Opening, ReadSettings,
    StorePlace, StoreSettings, WriterRings,
};
use crate::tuning::settings::memlock;
use crate::types::ShardId;

/// Batches on their way between a shard and the writer; messages are bounded by `limits.put_inflight_*`.
const SUBMIT_RING_LEN: usize = 1024;
/// Batches of units (or keys) on their way to a builder; a full ring makes the writer wait.
const DISPATCH_RING_LEN: usize = 64;
/// A stop that takes longer is given up; the next start then recovers.
const STOP_LIMIT: Duration = Duration::from_secs(9);

/// Runs the node until SIGTERM or SIGINT. `warnings`: what to make of those about the host.
///
/// # Errors
/// See [`NodeError`].
pub fn run(config: Config, warnings: HostWarnings) -> Result<(), NodeError> {
    ignore_file_size_signal();
    let no_signals = |error: std::io::Error| NodeError::Host(format!("signals cannot be caught: {error}"));
    let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(no_signals)?;
    // Until the store is open nobody asks for signals; a recovery looks at this.
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).map_err(no_signals)?;
    }
    let opening = Arc::new(Opening::new(stop));
    let notify = Notify::start(Arc::clone(&opening)).map_err(NodeError::Host)?;
    let pages = Pages::new(&config, Arc::clone(&opening));
    let outcome = match live(config, warnings, &mut signals, &opening, &notify, &pages) {
        Err(NodeError::Store(stopped @ OpenError::Stopped)) => {
            eprintln!("kerolox: {stopped}");
            Ok(())
        }
        outcome => outcome,
    };
    notify.end(outcome.as_ref().err().map(NodeError::to_string));
    outcome
}

/// The life of a node whose signals are caught.
fn live(
    config: Config,
    warnings: HostWarnings,
    signals: &mut Signals,
    opening: &Opening,
    notify: &Notify,
    pages: &Arc<Pages>,
) -> Result<(), NodeError> {
    let started = Instant::now();
    let placement = Placement::here(&config.cores).map_err(NodeError::Host)?;
    let shard_count = placement.shards.len();
    let limit = MemoryLimit::of_this_process();
    let (config, append, notices) = fitted(config, &placement, &limit).map_err(NodeError::Host)?;
    notices.iter().for_each(|notice| tracing::warn!("{notice}"));
    checks::host(&config.store.root, &placement, warnings)?;
    let open_files_max = checks::raise_open_files();
    let listen = listen_addrs(&config);
    let http = config.metrics.listen.map(|addr| (addr, "metrics.listen; \"off\" does without"));
    let _ports = checks::ports(&[&listen[..], http.as_slice()].concat())?;
    // Before the store is opened, which may take long: those who ask get an answer meanwhile.
    // Who names cores gets the node on these and no others.
    let is_free = config.cores.writer.is_none() && config.cores.shards.is_none();
    let quiet_core = placement.quiet_core(&if is_free { usable_cores() } else { Vec::new() });
    let http = http.map(|(addr, key)| serve_pages(addr, key, quiet_core, Arc::clone(pages))).transpose()?;
    let advertised = advertised(&config)?;

    let opened = store::open(store_settings(&config, append, advertised), limit.len, opening)?;
    checks::open_files(open_files_max, placement.executors())?;
    let start_helper = |name, nice| {
        Helper::start(name, quiet_core, nice).map_err(|error| NodeError::Host(format!("{name} cannot start: {error}")))
    };
    let helper = start_helper("kerolox-helper", Nice::No)?;
    // What appends wait for must not wait for the syncs and saves of the other.
    let appends = start_helper("kerolox-room", Nice::No)?;
    let blocking = helper.blocking.beside(&appends.blocking);
    // Of its own: what it tells the page cache may wait for the disk, and nobody else shall wait for that.
    let cache = start_helper("kerolox-cache", Nice::Yes)?;
    let OpenedStore { lock, layout, shared, queues, index_files, writer_start, tables, births, checkpoint } = opened;

    // Before anything is taken: a disk that is full already takes nothing more.
    let place = StorePlace::new(&layout);
    let mut disks = DiskWatch::new(&layout, disk_rule(&config));
    disks.look();
    disks.tell();
    disks.publish(&shared);
    let directory: SharedDirectory = Arc::new(ArcSwap::from_pointee(Directory::default()));
    let limits = NetLimits::new(
        config.limits.frame_bytes_in_progress,
        config.net.max_connections,
        checks::descriptors_for_connections(open_files_max),
        StallTimes {
            idle: config.net.idle_timeout_ms,
            frame: config.net.frame_stall_ms,
            write: config.net.write_stall_ms,
        },
    );
    let queue_list = queues.list();
    let durable_up_to: Vec<_> = (0..shard_count).map(|_| Arc::new(AtomicI64::new(i64::MAX))).collect();
    let kv_config = load_kv_config(&layout)?;
    let (keys_tx, keys_rx) = ring(DISPATCH_RING_LEN);
    shared.series.set_max(config.metrics.series_max);
    // One at a time: a page that finds another one waiting does without.
    let (census, census_asked) = flume::bounded(1);
    let created = Arc::new(Created::default());
    let mut depths = vec![("keys", CONTROL_SHARD.index(), keys_tx.watch())];
    let mut control = Some(ControlParts {
        settings: control_settings(&config, advertised),
        tables: LoadedTables {
            topics: tables.topics,
            groups: tables.groups,
            consumer_offsets: tables.consumer_offsets,
            kv_config,
            births,
        },
        delay_offsets: tables.delay_offsets,
        registry: Registry { queues, shared: Arc::clone(&shared) },
        keys: keys_rx,
        index_files,
        index_full_up_to: Arc::new(AtomicI64::new(checkpoint.index.0)),
        name_servers: config.nameserver.register.clone(),
        durable_up_to: durable_up_to.clone(),
        index_durable_up_to: Arc::new(AtomicI64::new(i64::MAX)),
        checkpoint,
        expiry: expiry_settings(&config),
        disks,
        place,
        census: census_asked,
        created: Arc::clone(&created),
        names_max: usize::from(config.metrics.series_max),
    });
    let mut rings = WriterRings { from_shards: vec![], replies: vec![], dispatch: vec![], keys: keys_tx };
    let mut shards = Vec::new();
    let mut stops = Vec::new();
    let run_number = std::process::id() ^ (io::now().0 as u32);
    for (index, mail) in mesh::rings(shard_count).into_iter().enumerate() {
        let shard = ShardId(index as u16);
        let (to_writer, from_shard) = ring(SUBMIT_RING_LEN);
        let (reply_tx, replies) = ring(SUBMIT_RING_LEN);
        let (dispatch_tx, dispatch) = ring(DISPATCH_RING_LEN);
        depths.extend([
            ("submit", index, to_writer.watch()),
            ("reply", index, reply_tx.watch()),
            ("dispatch", index, dispatch_tx.watch()),
        ]);
        rings.from_shards.push(from_shard);
        rings.replies.push(reply_tx);
        rings.dispatch.push(dispatch_tx);
        let (stop_tx, stop) = flume::bounded(1);
        stops.push(stop_tx);
        shards.push(ShardParts {
            shard,
            shard_count,
            shared: Arc::clone(&shared),
            layout: layout.clone(),
            blocking: blocking.clone(),
            cache_thread: cache.blocking.clone(),
            directory: Arc::clone(&directory),
            queues: Arc::clone(&queue_list),
            settings: shard_settings(&config, shard, run_number),
            listen: listen.iter().map(|(addr, _)| *addr).collect(),
            limits: Arc::clone(&limits),
            consumequeue_least_pages: config.flush.consumequeue_least_pages,
            trim_pause: Duration::from_millis(config.retention.consumequeue_pause_ms),
            to_writer,
            replies,
            dispatch,
            mail,
            durable_up_to: Arc::clone(&durable_up_to[index]),
            control: control.take(),
            stop,
        });
    }
    let writer = WriterParts {
        shared: Arc::clone(&shared),
        layout: layout.clone(),
        blocking: appends.blocking.clone(),
        rings,
        start: writer_start,
    };

    let spin = Duration::from_micros(u64::from(config.cores.spin_us));
    let heartbeats = Heartbeats::new(&placement);
    pages.running(Running {
        shared: Arc::clone(&shared),
        layout: layout.clone(),
        directory,
        limits,
        heartbeats: Arc::clone(&heartbeats),
        rings: depths,
        ring_capacities: vec![
            ("submit", SUBMIT_RING_LEN),
            ("reply", SUBMIT_RING_LEN),
            ("dispatch", DISPATCH_RING_LEN),
            ("keys", DISPATCH_RING_LEN),
        ],
        census,
        created,
    });
    let turning = Turning { usable: usable_cores(), spin };
    let executors = start(&placement, writer, shards, &turning, &heartbeats)?;
    let policy = shared.settings.flush_policy();
    tracing::info!(
        listen = %config.net.listen, ms = started.elapsed().as_millis() as u64,
        writer_core = placement.writer, shard_cores = ?placement.shards,
        flush = policy.mode, append = policy.append, sync_call = policy.sync_call, "ready"
    );
    eprintln!("kerolox: ready on {}, data in {}", config.net.listen, layout.root().display());

    let (ready, health) =
        (format!("ready on {}, data in {}", config.net.listen, layout.root().display()), Arc::clone(&shared));
    pages.ready();
    notify.ready(&heartbeats, move || match health.health() {
        Health::Ok => ready.clone(),
        other => other.to_string(),
    });

    wait_for_signal(signals, &executors);
    let closing = Arc::clone(&shared);
    notify.stopping(move || closing.closing_steps());
    pages.stopping();
    let stop_began = Instant::now();
    eprintln!("kerolox: stopping");
    shared.stop_puts();
    for stop in &stops {
        let _ = stop.send(());
    }
    let index_files = join(executors, stop_began)?;
    helper.stop();
    appends.stop();
    cache.stop();
    let there = queue_list.iter().filter(|(_, queue)| !queue.is_gone());
    let all_queues: Vec<_> = there.map(|(_, queue)| Arc::clone(queue)).collect();
    let closing = Closing { layout, shared, queues: &all_queues, index_files, checkpoint };
    store::close(&closing)?;
    drop(lock);
    if let Some(http) = http {
        http.stop();
    }
    tracing::info!(ms = stop_began.elapsed().as_millis() as u64, "stopped");
    Ok(())
}

/// A thread with an executor, and how it ended.
struct Executor {
    role: String,
    handle: ExecutorJoinHandle<Result<Vec<Arc<SharedMap>>, String>>,
    /// Disconnected once the executor has ended.
    alive: flume::Receiver<()>,
}

/// What is the same for all executors.
struct Turning {
    /// Cores that the process may run on.
    usable: Vec<usize>,
    /// Time for which one looks for work before it parks.
    spin: Duration,
}

/// Starts an executor a core and waits until each is ready: the writer first, sockets last.
fn start(
    placement: &Placement,
    writer: WriterParts,
    shards: Vec<ShardParts>,
    turning: &Turning,
    heartbeats: &Arc<Heartbeats>,
) -> Result<Vec<Executor>, NodeError> {
    let mut executors = Vec::new();
    let mut writer = Some(writer);
    if placement.writer_has_its_own() {
        let parts = writer.take().expect("not used yet");
        executors.push(spawn(heartbeats.heart(0), turning, move |ready| async move {
            writer_core::run(parts, ready).await.map(|()| Vec::new())
        })?);
    }
    for parts in shards {
        let writer = if placement.shares_writer_core(parts.shard) { writer.take() } else { None };
        executors.push(spawn(heartbeats.heart(executors.len()), turning, move |ready| async move {
            let Some(writer) = writer else { return shard_core::run(parts, ready).await };
            // One executor for both: the rings work within a core, too.
            let (opened, is_open) = flume::bounded(1);
            let writer = glommio::spawn_local(async move { writer_core::run(writer, move || told(&opened)).await });
            if is_open.recv_async().await.is_err() {
                return writer.await.map(|()| Vec::new());
            }
            let index_files = shard_core::run(parts, ready).await?;
            writer.await.map(|()| index_files)
        })?);
    }
    Ok(executors)
}

fn spawn<F>(
    heart: Heart,
    turning: &Turning,
    body: impl FnOnce(Box<dyn FnOnce()>) -> F + Send + 'static,
) -> Result<Executor, NodeError>
where
    F: Future<Output = Result<Vec<Arc<SharedMap>>, String>> + 'static,
{
    let (role, core) = heart.of();
    let failed = |why: String| NodeError::Executor { role: role.clone(), why };
    let (ready_tx, ready) = flume::bounded::<()>(1);
    let (alive_tx, alive) = flume::bounded::<()>(0);
    let builder = LocalExecutorBuilder::new(glommio::Placement::Fixed(core))
        .name(&format!("kerolox-{}", role.replace(' ', "-")))
        .io_memory(memlock::IO_MEMORY_LEN)
        .spin_before_park(turning.spin);
    let usable = turning.usable.clone();
    let handle = builder
        .spawn(move || async move {
            let _alive = alive_tx;
            // Those that the process was started with: a thread that is pinned may still have workers elsewhere.
            if let Err(error) = io::keep_kernel_workers_to(&usable) {
                tracing::info!(%error, "io_uring's workers cannot be kept to this process's cores, as Linux 5.14 and later can");
            }
            // The first timer of a process is slow; better now than in a message's way.
            io::sleep(Duration::from_millis(1)).await;
            let beats = glommio::spawn_local(heart.run());
            let outcome = body(Box::new(move || told(&ready_tx))).await;
            // A task that outlives its executor is not dropped with it, and an end that nobody notes looks like a halt.
            beats.cancel().await;
            outcome
        })
        .map_err(|error| failed(error.to_string()))?;
    if ready.recv().is_err() {
        return Err(failed(match handle.join() {
            Ok(Err(why)) => why,
            Ok(Ok(_)) => "ended before it was ready".into(),
            Err(error) => error.to_string(),
        }));
    }
    Ok(Executor { role, handle, alive })
}

/// Makes a write beyond a limit of file sizes fail with an error code, as a full disk does, and not end the process.
fn ignore_file_size_signal() {
    // SAFETY: ignoring a signal installs no handler; the call is made before any other thread starts.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Says that something is ready; if nobody listens any more, the start was given up already.
fn told(ready: &flume::Sender<()>) {
    let _ = ready.send(());
}

/// Returns on a signal, or when an executor has ended by itself.
fn wait_for_signal(signals: &mut Signals, executors: &[Executor]) {
    let handle = signals.handle();
    // Disconnected once nothing is to be watched any more.
    let (watching, over) = flume::bounded::<()>(0);
    std::thread::scope(|scope| {
        for executor in executors {
            let (handle, over) = (handle.clone(), over.clone());
            scope.spawn(move || {
                // An executor that ends (or panics) drops its end of `alive`.
                flume::Selector::new().recv(&executor.alive, |_| ()).recv(&over, |_| ()).wait();
                handle.close();
            });
        }
        if let Some(signal) = signals.forever().next() {
            tracing::info!(signal, "stopping");
        }
        drop(watching);
    });
}

/// Waits for every executor, within the limit of a stop.
fn join(executors: Vec<Executor>, began: Instant) -> Result<Vec<Arc<SharedMap>>, NodeError> {
    let mut index_files = Vec::new();
    for Executor { role, handle, alive } in executors {
        let left = STOP_LIMIT.saturating_sub(began.elapsed());
        if let Err(flume::RecvTimeoutError::Timeout) = alive.recv_timeout(left) {
            return Err(NodeError::Executor {
                role,
                why: format!("did not stop within {} s; the next start will recover", STOP_LIMIT.as_secs()),
            });
        }
        match handle.join() {
            Ok(Ok(files)) => index_files.extend(files),
            Ok(Err(why)) => return Err(NodeError::Executor { role, why }),
            Err(error) => return Err(NodeError::Executor { role, why: error.to_string() }),
        }
    }
    Ok(index_files)
}

/// Starts the threads that serve metrics and probes, on `core` and behind an executor that has it too.
fn serve_pages(addr: SocketAddr, key: &'static str, core: usize, pages: Arc<Pages>) -> Result<HttpServer, NodeError> {
    let prepare = move || settle(core, Nice::Yes);
    let listener = TcpListener::bind(addr).map_err(|source| NodeError::Port(PortTaken { addr, source }, key))?;
    let started =
        HttpServer::start("kerolox-http", listener, HttpLimits::default(), &PROBES, prepare, move |path: &str| {
            pages.answer(path)
        });
    started.map_err(|error| NodeError::Host(format!("kerolox-http cannot start: {error}")))
}

fn listen_addrs(config: &Config) -> Vec<(SocketAddr, &'static str)> {
    let mut addrs = vec![(config.net.listen, "net.listen, --listen")];
    addrs.extend(config.net.vip_listen().map(|addr| (addr, "net.vip = false does without port - 2")));
    addrs.extend(config.nameserver.embedded.map(|addr| (addr, "nameserver.embedded, --namesrv")));
    addrs
}

/// The address that clients dial.
fn advertised(config: &Config) -> Result<SocketAddr, NodeError> {
    let ip = config.net.advertised().or_else(first_outside_address).ok_or_else(|| {
        NodeError::Host("no address to tell clients: set net.advertise (or --advertise) to one of this host".into())
    })?;
    Ok(SocketAddr::new(ip, config.net.listen.port()))
}

/// The address from which this host would reach others. Nothing is sent.
fn first_outside_address() -> Option<IpAddr> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    let ip = socket.local_addr().ok()?.ip();
    (!ip.is_unspecified()).then_some(ip)
}

/// The settings made to fit into the memory that there is, how records get into the log with them, and what to tell of both.
///
/// # Errors
/// As [`memory::fit`].
fn fitted(
    config: Config,
    placement: &Placement,
    limit: &MemoryLimit,
) -> Result<(Config, io::AppendMode, Vec<String>), String> {
    let (append, executors) = (append_mode(&config, placement.writer_has_its_own()), placement.executors());
    let may_give_way = config.store.append == AppendMode::Auto && append == io::AppendMode::Dma;
    match memory::fit(config.clone(), append, limit, executors) {
        Ok((config, notices)) => Ok((config, append, notices)),
        // What nobody asked for must not be what does not fit.
        Err(_) if may_give_way => {
            let (config, mut notices) = memory::fit(config, io::AppendMode::Buffered, limit, executors)?;
            notices
                .push("appends go through the page cache: the newest 64 MiB of the log do not fit into memory".into());
            Ok((config, io::AppendMode::Buffered, notices))
        }
        Err(why) => Err(why),
    }
}

/// How records get into the log with these settings. `is_apart`: the writer has an executor of its own.
pub fn append_mode(config: &Config, is_apart: bool) -> io::AppendMode {
    match config.store.append {
        AppendMode::Buffered => io::AppendMode::Buffered,
        AppendMode::Mmap => io::AppendMode::Mmap,
        AppendMode::Dma => io::AppendMode::Dma,
        // A write into the page cache is handed to a worker of the kernel; where the writer shares its core with a shard that
        // costs more than it does beside a writer with a core of its own (measured: docs/PERFORMANCE.md).
        AppendMode::Auto if config.flush.mode.is_sync() && !is_apart => io::AppendMode::Dma,
        AppendMode::Auto => io::AppendMode::Buffered,
    }
}

/// What the store is told of the settings; `append`: see [`append_mode`].
pub fn store_settings(config: &Config, append: io::AppendMode, store_host: SocketAddr) -> StoreSettings {
    let flush = if config.flush.mode.is_sync() { FlushMode::Sync } else { FlushMode::Async };
    StoreSettings {
        root: config.store.root.clone(),
        store_host,
        append,
        sync_call: match config.flush.sync_call {
            SyncCall::Auto => None,
            SyncCall::ODsync => Some(io::SyncCall::ODsync),
            SyncCall::Fdatasync => Some(io::SyncCall::Fdatasync),
        },
        segment_len: config.store.commitlog_file_size,
        consumequeue_len: config.store.consumequeue_file_size,
        index_slots: config.store.index_slots,
        index_entries: config.store.index_entries,
        flush,
        flush_interval_ms: config.flush.interval_ms,
        flush_least_pages: config.flush.least_pages,
        flush_thorough_interval_ms: config.flush.thorough_interval_ms,
        sync_timeout_ms: config.flush.sync_timeout_ms,
        consumequeue_flush_interval_ms: config.flush.consumequeue_interval_ms,
        consumequeue_thorough_interval_ms: config.flush.consumequeue_thorough_interval_ms,
        zero_ahead: config.store.zero_ahead,
        index: config.store.index,
        property_crc: config.store.property_crc,
        delays_ms: config.limits.delay_levels_ms.clone(),
        inflight_len_max: config.limits.put_inflight_bytes,
        inflight_count_max: u64::from(config.limits.put_inflight_messages),
        put_wait_ms_max: config.limits.put_wait_ms,
        read: read_settings(&config.read),
        checksums: match config.recovery {
            RecoveryConfig { verify_property_crc: true, .. } => Checksums::Record,
            RecoveryConfig { check_crc: true, .. } => Checksums::Body,
            _ => Checksums::Form,
        },
    }
}

fn read_settings(read: &ReadConfig) -> ReadSettings {
    ReadSettings {
        memory_len_max: read.memory_bytes_max as usize,
        memory_count_max: read.memory_count_max as usize,
        disk_len_max: read.disk_bytes_max as usize,
        disk_count_max: read.disk_count_max as usize,
        memory_percent: read.memory_percent,
        filter_len_max: read.filter_bytes_max as usize,
        queue_files_max: read.queue_files_max as usize,
        query_count_max: read.query_max as usize,
        cold_reads_per_group: read.cold_reads_per_group as usize,
        scan_core_percent: read.scan_core_percent,
    }
}

fn disk_rule(config: &Config) -> DiskRule {
    let config::DiskConfig { max_used_percent, clean_percent, warning_percent, min_free_clean, min_free_warning } =
        config.disk;
    DiskRule { max_used_percent, clean_percent, warning_percent, min_free_clean, min_free_warning }
}

fn expiry_settings(config: &Config) -> ExpirySettings {
    let retention = &config.retention;
    ExpirySettings {
        rule: RetentionRule {
            reserved_ms: i64::from(retention.hours) * 3_600_000,
            delete_hours: retention.delete_hours,
            batch_max: retention.batch_max,
            force_when_full: retention.force_when_full,
        },
        check_interval_ms: retention.check_interval_ms,
        file_pause_ms: retention.file_pause_ms,
        held_report_ms: retention.held_report_ms,
        retry_ms: retention.retry_ms,
    }
}

fn shard_settings(config: &Config, shard: ShardId, run: u32) -> ShardSettings {
    ShardSettings {
        profile: config.broker.profile,
        cluster: config.broker.cluster.clone(),
        region: "DefaultRegion".into(),
        trace_on: true,
        body_len_max: config.limits.max_message_size as usize,
        delay_levels: DelayLevels::from_ms(config.limits.delay_levels_ms.clone()),
        hold_count_max: config.limits.holds_per_shard,
        clock: io::steady_us,
        slow_us: u64::from(config.log.slow_ms) * 1000,
        shard,
        run,
    }
}

fn control_settings(config: &Config, advertised: SocketAddr) -> ControlSettings {
    ControlSettings {
        profile: config.broker.profile,
        broker_name: config.broker.name.clone(),
        cluster: config.broker.cluster.clone(),
        broker_address: advertised.to_string(),
        ha_address: SocketAddr::new(advertised.ip(), advertised.port().wrapping_add(1)).to_string(),
        default_topic_queue_nums: config.limits.default_topic_queue_nums as i32,
        auto_create_topic: config.limits.auto_create_topic,
        auto_create_group: config.limits.auto_create_group,
        trace_topic: true,
    }
}

fn load_kv_config(layout: &store::Layout) -> Result<KvConfig, NodeError> {
    let loaded = store::load_table(&layout.own().join(KV_CONFIG), KvConfig::decode);
    loaded.map_err(|error| NodeError::Host(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(text: &str, shards: &[usize], len: u64) -> Result<(io::AppendMode, usize), String> {
        let config = Config::from_text("k.toml".as_ref(), text, Default::default()).unwrap();
        let placement = Placement { writer: 0, shards: shards.to_vec() };
        let limit = MemoryLimit { len, file: None };
        fitted(config, &placement, &limit).map(|(_, append, notices)| (append, notices.len()))
    }

    #[test]
    fn auto_appends_past_the_page_cache_where_a_sync_writer_shares_its_executor() {
        let mode = |text, shards: &[usize]| mode(text, shards, 8 << 30).unwrap().0;
        assert_eq!(mode("flush.mode = \"sync\"\n", &[0]), io::AppendMode::Dma);
        assert_eq!(mode("flush.mode = \"sync\"\n", &[0, 1]), io::AppendMode::Dma);
        assert_eq!(mode("flush.mode = \"sync\"\n", &[1, 2]), io::AppendMode::Buffered);
        assert_eq!(mode("", &[0]), io::AppendMode::Buffered);
        assert_eq!(mode("flush.mode = \"sync\"\nstore.append = \"mmap\"\n", &[0]), io::AppendMode::Mmap);
    }

    #[test]
    fn auto_gives_way_where_the_tail_in_memory_does_not_fit_and_a_set_mode_is_refused() {
        let (auto, set) = ("flush.mode = \"sync\"\n", "flush.mode = \"sync\"\nstore.append = \"dma\"\n");
        let narrow = 128 << 20;
        let (append, notices) = mode(auto, &[0], narrow).unwrap();
        assert!(append == io::AppendMode::Buffered && notices > 0, "{append:?} {notices}");
        assert!(mode(set, &[0], narrow).is_err());
        assert_eq!(mode(set, &[0], 8 << 30), Ok((io::AppendMode::Dma, 0)));
    }

    #[test]
    fn an_executor_that_has_come_to_its_end_is_not_waited_for() {
        let core = usable_cores()[0];
        let heartbeats = Heartbeats::new(&Placement { writer: core, shards: vec![core] });
        let turning = Turning { usable: vec![core], spin: Duration::ZERO };
        let executor = spawn(heartbeats.heart(0), &turning, |ready| async move {
            ready();
            Ok(Vec::new())
        });
        let files = join(vec![executor.unwrap()], Instant::now()).unwrap();
        assert!(files.is_empty());
        assert_eq!(heartbeats.all()[0].age_ms(io::steady_ms()), None);
    }
}
