//! `kerolox serve`: settings, log, then the node until it is told to stop.

use std::env;
use std::ffi::OsStr;
use std::fmt;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::{Format, Full, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

use super::EXIT_USAGE;
use crate::config::{Config, ConfigErrors, LogConfig, LogFormat, Overrides, Source};
use crate::node::HostWarnings;

/// Start a node
///
/// Runs until SIGTERM or SIGINT (Ctrl-C), which end it cleanly: what is acknowledged is flushed, exit code 0. While it still
/// recovers after a kill they end it at once, exit code 0 as well: the next start goes on from there. Without
/// arguments it keeps its data in ./kerolox-data, serves clients on 127.0.0.1:10911 (and 10909) and is its own name
/// server on 127.0.0.1:9876. Flags win over the file.
#[derive(Debug, clap::Args)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  kerolox serve
  kerolox serve --config /etc/kerolox/kerolox.toml --set flush.mode=sync
  kerolox serve --data /var/lib/kerolox --listen 0.0.0.0:10911 --advertise 10.0.0.7 --namesrv 0.0.0.0:9876

Exit codes:
  0  stopped as asked
  1  failed while running or starting (I/O error); a restart may help
  2  wrong usage, settings, host or store; a restart without a change cannot help

A bug or the watchdog of systemd ends it by a signal; a restart recovers. systemd/kerolox.service restarts it after
everything but 0 and 2. Under systemd (NOTIFY_SOCKET) it tells how a recovery gets on, when it is ready, and how it is."
)]
pub(super) struct Args {
    /// Settings in TOML; every key is explained in docs/kerolox.toml [default: none]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Directory of all data; made if missing [default: ./kerolox-data]
    #[arg(long, value_name = "DIR")]
    data: Option<String>,
    /// IP:PORT for clients [default: 127.0.0.1:10911]
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// IP given to clients [default: that of --listen; for 0.0.0.0 the host's first that is not loopback]
    #[arg(long, value_name = "IP")]
    advertise: Option<String>,
    /// IP:PORT of the built-in name server, or off [default: 127.0.0.1:9876]
    #[arg(long, value_name = "ADDR|off")]
    namesrv: Option<String>,
    /// Any setting, such as flush.mode=sync; may be given often [default: none]
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Cores such as 0,2-5: the first appends, each other gets a shard; one core does everything [default: auto, all cores; of
    /// just two the second does everything]
    #[arg(long, value_name = "LIST")]
    cores: Option<String>,
    /// Do not start (exit code 2) if a setting of this host is worth a warning; see kerolox-tune check
    #[arg(long)]
    strict: bool,
}

pub(super) fn run(args: Args) -> ExitCode {
    let warnings = if args.strict { HostWarnings::Refuse } else { HostWarnings::Log };
    let config = match settings(args) {
        Ok(config) => config,
        Err(errors) => {
            errors.lines().iter().for_each(complain);
            return ExitCode::from(EXIT_USAGE);
        }
    };
    start_log(&config.log);
    for setting in config.settings().iter().filter(|setting| setting.source != Source::Default) {
        tracing::info!(key = setting.key, value = setting.value, source = %setting.source, "setting");
    }
    match crate::node::run(config, warnings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error);
            let code = u8::try_from(error.exit_code()).ok().filter(|code| *code != 0);
            ExitCode::from(code.unwrap_or(super::EXIT_FAILURE))
        }
    }
}

fn settings(args: Args) -> Result<Config, ConfigErrors> {
    let mut overrides = Overrides::default();
    for assignment in &args.set {
        overrides.set_any("--set", assignment).map_err(ConfigErrors::one)?;
    }
    for (key, flag, value) in [
        ("store.root", "--data", args.data),
        ("net.listen", "--listen", args.listen),
        ("net.advertise", "--advertise", args.advertise),
        ("nameserver.embedded", "--namesrv", args.namesrv),
    ] {
        if let Some(value) = value {
            overrides.set(key, flag, value);
        }
    }
    if let Some(list) = args.cores {
        overrides.set_cores("--cores", &list).map_err(ConfigErrors::one)?;
    }
    Config::load(args.config.as_deref(), overrides)
}

/// Says on standard error why there is no node.
fn complain(why: impl fmt::Display) {
    let priority = if is_journal(io::stderr(), env::var_os("JOURNAL_STREAM").as_deref()) { "<3>" } else { "" };
    eprintln!("{priority}kerolox: {why}");
}

/// Does journald read what is written to `out`? `stream` is what the service manager says that it has connected to it:
/// device and inode, which differ once somebody has redirected it. Source: systemd.exec(5), `JOURNAL_STREAM`.
fn is_journal(out: impl AsFd, stream: Option<&OsStr>) -> bool {
    let stream = stream.and_then(OsStr::to_str).and_then(|text| text.split_once(':'));
    let Some((Ok(device), Ok(inode))) = stream.map(|(device, inode)| (device.parse::<u64>(), inode.parse::<u64>()))
    else {
        return false;
    };
    rustix::fs::fstat(out).is_ok_and(|stat| (stat.st_dev, stat.st_ino) == (device, inode))
}

/// From here on `tracing` writes to standard error, as `[log]` says.
pub(super) fn start_log(log: &LogConfig) {
    let levels: Targets = log.level.parse().expect("config accepts only what is a list of levels");
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr);
    let format = match log.format {
        LogFormat::Auto if is_journal(io::stderr(), env::var_os("JOURNAL_STREAM").as_deref()) => LogFormat::Journal,
        LogFormat::Auto => LogFormat::Text,
        set => set,
    };
    let lines = match format {
        LogFormat::Auto | LogFormat::Text => lines.with_ansi(io::stderr().is_terminal()).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
        LogFormat::Journal => {
            let line = tracing_subscriber::fmt::format().without_time().with_level(false);
            lines.with_ansi(false).event_format(Journal { line }).boxed()
        }
    };
    tracing_subscriber::registry().with(lines.with_filter(levels)).init();
}

/// A line that begins with its syslog priority, which journald takes off and keeps. Source: sd-daemon(3).
struct Journal {
    line: Format<Full, ()>,
}

impl<S, N> FormatEvent<S, N> for Journal
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let priority = match *event.metadata().level() {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 6,
            Level::DEBUG | Level::TRACE => 7,
        };
        write!(out, "<{priority}>")?;
        self.line.format_event(context, out, event)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn read(line: &[&str]) -> Result<Config, ConfigErrors> {
        settings(Line::parse_from([&["serve"], line].concat()).args)
    }

    #[test]
    fn flags_win_over_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("k.toml");
        std::fs::write(&file, "[store]\nroot = \"/from/file\"\n[net]\nlisten = \"127.0.0.1:20911\"\n").unwrap();
        let file = file.to_str().unwrap();
        let config = read(&["--config", file, "--data", "/from/flag", "--namesrv", "off", "--cores", "1"]).unwrap();
        assert_eq!(config.store.root.to_str(), Some("/from/flag"));
        assert_eq!(config.net.listen.port(), 20911);
        assert_eq!(config.nameserver.embedded, None);
        assert_eq!((config.cores.writer, config.cores.shards), (Some(1), Some(vec![1])));
    }

    #[test]
    fn any_setting_can_be_set_and_a_wrong_one_is_named() {
        let line =
            ["--set", "flush.mode=sync", "--set", "cores.shards = [1, 2]", "--set", "store.commitlog_file_size=64MiB"];
        let config = read(&[&line[..], &["--set", "net.vip=false", "--set", "net.vip=true"]].concat()).unwrap();
        assert!(config.flush.mode.is_sync() && config.net.vip);
        assert_eq!((config.cores.shards.as_deref(), config.store.commitlog_file_size), (Some(&[1, 2][..]), 64 << 20));
        // The flag of its own wins: it is the more deliberate one.
        let both = read(&["--set", "store.root=/a", "--data", "/b"]).unwrap();
        assert_eq!(both.store.root.to_str(), Some("/b"));
        for (wrong, named) in [
            ("flush.mood=sync", "--set: unknown key \"flush.mood\""),
            ("flush.mode=often", "--set: flush.mode = \"often\""),
            ("flush.mode", "--set \"flush.mode\" has no value"),
            ("flush.mode=1\nx=2", "--set: flush.mode = "),
        ] {
            let errors = read(&["--set", wrong]).unwrap_err();
            assert!(errors.lines()[0].starts_with(named), "{errors}");
        }
    }

    #[test]
    fn a_bad_flag_is_one_line_that_names_it() {
        let errors = read(&["--advertise", "here"]).unwrap_err();
        assert_eq!(errors.lines().len(), 1);
        assert!(errors.lines()[0].starts_with("--advertise: net.advertise = \"here\""), "{errors}");
        assert!(read(&["--cores", "x"]).unwrap_err().lines()[0].starts_with("--cores: "));
    }

    #[test]
    fn the_journal_is_known_by_device_and_inode_of_what_is_written_to() {
        let file = tempfile::tempfile().unwrap();
        let stat = rustix::fs::fstat(&file).unwrap();
        let (ours, other) =
            (format!("{}:{}", stat.st_dev, stat.st_ino), format!("{}:{}", stat.st_dev, stat.st_ino + 1));
        assert!(is_journal(&file, Some(OsStr::new(&ours))));
        for no in [None, Some(""), Some("8"), Some("a:b"), Some(other.as_str())] {
            assert!(!is_journal(&file, no.map(OsStr::new)), "{no:?}");
        }
    }

    #[test]
    fn every_level_that_config_accepts_is_one_for_the_log() {
        for level in ["off", "error", "warn", "info", "debug", "trace", "info,kerolox::store=debug", "warn,glommio=off"]
        {
            let text = format!("[log]\nlevel = \"{level}\"\n");
            let config = Config::from_text("k.toml".as_ref(), &text, Overrides::default()).unwrap();
            assert!(config.log.level.parse::<Targets>().is_ok(), "{level}");
        }
    }
}
