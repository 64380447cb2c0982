//! What the service manager is told: that the node is ready, how a recovery gets on, that every executor turns, and what is wrong.
//!
//! The protocol is sd_notify(3)'s: datagrams of `KEY=value` lines to the socket that `NOTIFY_SOCKET` names. Without that
//! variable nothing here runs. A plain thread sends them, so that no executor has to, and that the main thread may wait for
//! the disk. It looks once a second: at a recovery, whose time to start it has extended as long as the recovery gets on; at
//! the heartbeats, feeding the watchdog only while all of them move; and at the store's health, which is the status.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::heartbeat::{Beats, HEARTBEAT, Heartbeats, LATE};
use crate::io::steady_ms;
use crate::store::Opening;

/// How often it looks, or twice in the watchdog's time if that is less.
const LOOK: Duration = Duration::from_secs(1);
/// A manager that reads nothing holds up this thread, and so the node's end, for no longer.
const SEND_MAX: Duration = Duration::from_secs(1);
/// A start, or a stop beyond its time, is given up if one step of it (a file to load, to scan a part of or to sync) takes
/// longer.
const STEP_MAX: Duration = Duration::from_secs(120);
/// The same of one that writes out a whole file system: dirty pages of all programs, and nobody sees how it gets on.
const LONG_STEP_MAX: Duration = Duration::from_secs(30 * 60);

/// The thread that speaks to the service manager, if there is one.
pub struct Notify(Option<(flume::Sender<Event>, JoinHandle<()>)>);

/// What happened to the node.
enum Event {
    Ready(Running),
    Stopping(ClosingSteps),
    Failed(String),
}

/// How many steps the closing of the store has made.
type ClosingSteps = Box<dyn Fn() -> u64 + Send>;

/// What is looked at once the node is ready.
struct Running {
    heartbeats: Arc<Heartbeats>,
    /// How it is, for people.
    status: Box<dyn Fn() -> String + Send>,
}

impl Notify {
    /// Starts the thread if somebody wants to be told. From here on it tells of the opening.
    ///
    /// # Errors
    /// The environment names a socket that is none, or there is no thread to be had. A kind of socket that the node does not
    /// speak to is no error: nobody is told.
    pub fn start(opening: Arc<Opening>) -> Result<Notify, String> {
        let Some(manager) = Manager::of(|name| env::var_os(name), std::process::id())? else { return Ok(Notify(None)) };
        let (events, happened) = flume::unbounded();
        let talk = Talk::new(manager, opening);
        let thread = std::thread::Builder::new().name("kerolox-notify".into()).spawn(move || talk.run(&happened));
        let thread = thread.map_err(|error| format!("kerolox-notify cannot start: {error}"))?;
        Ok(Notify(Some((events, thread))))
    }

    /// The node serves; `status` says how it is, whenever it is asked.
    pub fn ready(&self, heartbeats: &Arc<Heartbeats>, status: impl Fn() -> String + Send + 'static) {
        let heartbeats = Arc::clone(heartbeats);
        self.tell(Event::Ready(Running { heartbeats, status: Box::new(status) }));
    }

    /// It was told to stop. While `closing_steps` grows, that gets on.
    pub fn stopping(&self, closing_steps: impl Fn() -> u64 + Send + 'static) {
        self.tell(Event::Stopping(Box::new(closing_steps)));
    }

    /// It has stopped; `failure` says why, if nobody asked for it. Returns once everything is told.
    pub fn end(self, failure: Option<String>) {
        if let Some(why) = failure {
            self.tell(Event::Failed(why));
        }
        if let Some((events, thread)) = self.0 {
            drop(events);
            // One that panicked has said so; so below.
            let _ = thread.join();
        }
    }

    fn tell(&self, event: Event) {
        if let Some((events, _)) = &self.0 {
            let _ = events.send(event);
        }
    }
}

/// What the thread knows.
struct Talk {
    manager: Manager,
    opening: Arc<Opening>,
    running: Option<Running>,
    stopping: Option<ClosingSteps>,
    /// What the manager has heard: what differs from this is told at each look until it gets through.
    told: Told,
    /// Which executor did not turn when it was last looked at.
    stuck: Option<String>,
    /// Did the last message not get through?
    unheard: bool,
}

/// What a manager may have been told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Told {
    ready: bool,
    stopping: bool,
    /// Steps of the opening for which its time was extended.
    opening_steps: Option<u64>,
    /// Those of the closing.
    closing_steps: u64,
    status: String,
}

impl Talk {
    fn new(manager: Manager, opening: Arc<Opening>) -> Talk {
        Talk { manager, opening, running: None, stopping: None, told: Told::default(), stuck: None, unheard: false }
    }

    fn run(mut self, happened: &flume::Receiver<Event>) {
        loop {
            self.tell(steady_ms());
            match happened.recv_timeout(self.pause()) {
                Ok(Event::Ready(running)) => self.running = Some(running),
                Ok(Event::Stopping(closing_steps)) => self.stopping = Some(closing_steps),
                Ok(Event::Failed(why)) => {
                    self.send(&[format!("STATUS=failed: {}", one_line(&why))]);
                    return;
                }
                Err(flume::RecvTimeoutError::Timeout) => {}
                Err(flume::RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn pause(&self) -> Duration {
        self.manager.watchdog.map_or(LOOK, |watchdog| LOOK.min(watchdog / 2))
    }

    /// An executor that has not beaten for longer is told of: there is then time left until the watchdog bites.
    fn late(&self) -> Duration {
        self.manager.watchdog.map_or(LATE, |watchdog| LATE.min(watchdog / 4)).max(HEARTBEAT * 3)
    }

    /// Tells what there is to tell.
    fn tell(&mut self, now_ms: u64) {
        let (lines, told) = self.look(now_ms);
        if self.send(&lines) {
            self.told = told;
        }
    }

    /// What is to be told now, and what was told once it got through.
    fn look(&mut self, now_ms: u64) -> (Vec<String>, Told) {
        let mut lines = Vec::new();
        let mut told = self.told.clone();
        if self.stopping.is_some() {
            told.stopping = true;
        } else if self.running.is_some() {
            told.ready = true;
        }
        if told.ready && !self.told.ready {
            lines.push("READY=1".to_owned());
        }
        if told.stopping && !self.told.stopping {
            lines.push("STOPPING=1".to_owned());
        }
        let extend = |step_max: Duration| format!("EXTEND_TIMEOUT_USEC={}", step_max.as_micros());
        if let Some(closing_steps) = &self.stopping {
            told.closing_steps = closing_steps();
            if told.closing_steps != self.told.closing_steps {
                lines.push(extend(STEP_MAX));
            }
        }
        let status = match &self.running {
            None => {
                told.opening_steps = Some(self.opening.steps());
                if told.opening_steps != self.told.opening_steps {
                    lines.push(extend(if self.opening.is_in_long_step() { LONG_STEP_MAX } else { STEP_MAX }));
                }
                self.opening.to_string()
            }
            Some(running) => {
                let late_ms = self.late().as_millis() as u64;
                let stuck = stuck(running.heartbeats.all(), now_ms, late_ms);
                if stuck.is_none() && self.manager.watchdog.is_some() {
                    lines.push("WATCHDOG=1".to_owned());
                }
                let role = stuck.map(|(beats, _)| beats.role.clone());
                let status = match stuck {
                    // One that ends has other things to do than to beat.
                    _ if self.stopping.is_some() => "stopping: what is under way is finished and flushed".to_owned(),
                    Some((Beats { role, core, .. }, age_ms)) => {
                        let what = format!("executor \"{role}\" on core {core} does not turn");
                        if self.stuck.is_none() {
                            tracing::error!(ms = age_ms, "{what}; the watchdog is not fed until it does");
                        }
                        what
                    }
                    None => (running.status)(),
                };
                if let Some(role) = self.stuck.as_ref().filter(|_| role.is_none() && self.stopping.is_none()) {
                    let gap_ms_max = running.heartbeats.all().iter().map(Beats::gap_ms_max).max();
                    tracing::info!(role, gap_ms_max, "every executor turns again");
                }
                self.stuck = role;
                status
            }
        };
        told.status = one_line(&status);
        if told.status != self.told.status {
            lines.push(format!("STATUS={}", told.status));
        }
        (lines, told)
    }

    /// Did they get through?
    fn send(&mut self, lines: &[String]) -> bool {
        if lines.is_empty() {
            return true;
        }
        let sent = self.manager.send(&lines.join("\n"));
        if let Err(error) = &sent
            && !self.unheard
        {
            tracing::warn!(%error, "the service manager cannot be told how the node is (NOTIFY_SOCKET)");
        }
        self.unheard = sent.is_err();
        sent.is_ok()
    }
}

/// An executor that has not beaten for more than `late_ms`, and for how long; the watchdog is fed only if there is none.
/// One that has ended is not waited for.
pub fn stuck(all: &[Beats], now_ms: u64, late_ms: u64) -> Option<(&Beats, u64)> {
    let ages = all.iter().filter_map(|beats| Some((beats, beats.age_ms(now_ms)?)));
    ages.filter(|(_, age_ms)| *age_ms > late_ms).max_by_key(|(_, age_ms)| *age_ms)
}

/// A line break would begin the next message.
pub fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

/// The service manager's socket, and what it wants.
struct Manager {
    socket: UnixDatagram,
    address: SocketAddr,
    /// It takes the node for dead after so long without a word from the watchdog.
    watchdog: Option<Duration>,
}

impl Manager {
    /// What the environment says, if it says anything.
    fn of(variable: impl Fn(&str) -> Option<OsString>, pid: u32) -> Result<Option<Manager>, String> {
        let Some(name) = variable("NOTIFY_SOCKET") else { return Ok(None) };
        let address = match name.as_bytes() {
            [] | [b'v', b's', b'o', b'c', b'k', ..] => {
                let name = name.display();
                tracing::warn!("NOTIFY_SOCKET={name}: no socket of this host; the service manager is told nothing");
                return Ok(None);
            }
            [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest),
            [b'/', ..] => SocketAddr::from_pathname(&name),
            _ => Err(io::Error::other("neither a path nor, with @, an abstract name")),
        };
        let address = address.map_err(|error| format!("NOTIFY_SOCKET={}: {error}", name.display()))?;
        let socket =
            UnixDatagram::unbound().and_then(|socket| socket.set_write_timeout(Some(SEND_MAX)).map(|()| socket));
        let socket = socket.map_err(|error| format!("NOTIFY_SOCKET: no socket for it: {error}"))?;
        let number = |name: &str| variable(name).as_deref().and_then(OsStr::to_str).and_then(|text| text.parse().ok());
        // It may be meant for another process.
        let is_ours = number("WATCHDOG_PID").is_none_or(|meant| meant == u64::from(pid));
        let watchdog = number("WATCHDOG_USEC").filter(|usec| is_ours && *usec > 0).map(Duration::from_micros);
        Ok(Some(Manager { socket, address, watchdog }))
    }

    fn send(&self, message: &str) -> io::Result<()> {
        self.socket.send_to_addr(message.as_bytes(), &self.address).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::time::Instant;

    use super::*;
    use crate::node::placement::Placement;

    /// The environment of a service whose manager listens on a socket of this abstract name.
    fn environment(name: &str, watchdog_usec: &str, watchdog_pid: &str) -> impl Fn(&str) -> Option<OsString> {
        let all = [("NOTIFY_SOCKET", name), ("WATCHDOG_USEC", watchdog_usec), ("WATCHDOG_PID", watchdog_pid)];
        let all = all.map(|(key, value)| (key, OsString::from(value)));
        move |key| all.iter().find(|(name, value)| *name == key && !value.is_empty()).map(|(_, value)| value.clone())
    }

    /// What it tells at a look that gets through.
    fn heard(talk: &mut Talk, now_ms: u64) -> Vec<String> {
        let (lines, told) = talk.look(now_ms);
        talk.told = told;
        lines
    }

    fn talk(watchdog_usec: &str) -> Talk {
        let manager = Manager::of(environment("@nobody", watchdog_usec, ""), 7).unwrap().unwrap();
        Talk::new(manager, Arc::new(Opening::new(Arc::new(AtomicBool::new(false)))))
    }

    #[test]
    fn without_a_socket_nobody_is_told_and_one_that_is_none_is_refused() {
        assert!(Manager::of(environment("", "1000", ""), 7).unwrap().is_none());
        // Nor is anybody who can only be reached from another host's side, or has no name.
        assert!(Manager::of(environment("vsock:2:1", "1000", ""), 7).unwrap().is_none());
        assert!(Manager::of(|name| (name == "NOTIFY_SOCKET").then(OsString::new), 7).unwrap().is_none());
        for wrong in ["run/notify", &format!("@{}", "x".repeat(200))] {
            let why = Manager::of(environment(wrong, "", ""), 7).err().expect("refused");
            assert!(why.contains(&format!("NOTIFY_SOCKET={wrong}: ")), "{why}");
        }
    }

    #[test]
    fn the_watchdog_is_that_of_this_process() {
        let watchdog = |usec, pid| Manager::of(environment("/run/x", usec, pid), 7).unwrap().unwrap().watchdog;
        assert_eq!(watchdog("30000000", "7"), Some(Duration::from_secs(30)));
        assert_eq!(watchdog("30000000", ""), Some(Duration::from_secs(30)));
        for (usec, pid) in [("30000000", "8"), ("", "7"), ("0", "7"), ("soon", "7")] {
            assert_eq!(watchdog(usec, pid), None, "{usec} {pid}");
        }
        assert_eq!((talk("30000000").pause(), talk("600000").pause()), (LOOK, Duration::from_millis(300)));
    }

    #[test]
    fn the_watchdog_is_fed_only_while_every_heartbeat_moves() {
        let mut talk = talk("30000000");
        let heartbeats = Heartbeats::new(&Placement { writer: 0, shards: vec![1, 2] });
        let began = steady_ms();
        let beat = |executor: usize, at_ms| heartbeats.all()[executor].beat(began + at_ms);
        let status = Box::new(|| "fine".to_owned());
        talk.running = Some(Running { heartbeats: Arc::clone(&heartbeats), status });
        (0..3).for_each(|executor| beat(executor, 100));
        assert_eq!(heard(&mut talk, began + 150), ["READY=1", "WATCHDOG=1", "STATUS=fine"]);
        // A host that gives no time for a second or two is no reason for a word.
        assert_eq!(heard(&mut talk, began + 2_100), ["WATCHDOG=1"]);
        // One of three stops, and starts again.
        beat(0, 5_000);
        beat(2, 5_000);
        assert_eq!(heard(&mut talk, began + 5_200), [r#"STATUS=executor "shard 0" on core 1 does not turn"#]);
        assert_eq!(heard(&mut talk, began + 5_900), Vec::<String>::new());
        (0..3).for_each(|executor| beat(executor, 6_000));
        assert_eq!(heard(&mut talk, began + 6_010), ["WATCHDOG=1", "STATUS=fine"]);
        // One that has ended is not waited for, the others are.
        drop(heartbeats.heart(1));
        beat(0, 20_000);
        beat(2, 20_000);
        assert_eq!(heard(&mut talk, began + 20_050), ["WATCHDOG=1"]);
        assert_eq!(heard(&mut talk, began + 25_050).len(), 1, "the status alone");
        // Whatever the hearts say, a node that stops is stopping.
        talk.stopping = Some(Box::new(|| 0));
        let lines = heard(&mut talk, began + 26_050);
        assert!(lines[0] == "STOPPING=1" && lines[1].starts_with("STATUS=stopping: ") && lines.len() == 2, "{lines:?}");
    }

    #[test]
    fn the_time_to_start_is_extended_only_while_the_opening_gets_on() {
        let mut talk = talk("");
        let extended = |lines: Vec<String>| lines.iter().any(|line| line == "EXTEND_TIMEOUT_USEC=120000000");
        assert!(extended(heard(&mut talk, 0)));
        assert!(!extended(heard(&mut talk, 1_000)));
        talk.opening.scanned(40, 100, 3).unwrap();
        let lines = heard(&mut talk, 2_000);
        assert!(lines.iter().any(|line| line.starts_with("STATUS=recovering: 40 %")), "{lines:?}");
        assert!(extended(lines));
        assert_eq!(heard(&mut talk, 3_000), Vec::<String>::new());
        talk.opening.long_step().unwrap();
        assert_eq!(heard(&mut talk, 4_000), ["EXTEND_TIMEOUT_USEC=1800000000"]);
    }

    #[test]
    fn the_time_to_stop_is_extended_only_while_the_closing_gets_on() {
        let mut talk = talk("");
        let heartbeats = Heartbeats::new(&Placement { writer: 0, shards: vec![0] });
        talk.running = Some(Running { heartbeats, status: Box::new(|| "fine".to_owned()) });
        let steps = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&steps);
        talk.stopping = Some(Box::new(move || counted.load(Ordering::Relaxed)));
        assert_eq!(heard(&mut talk, 0).first().map(String::as_str), Some("STOPPING=1"));
        assert_eq!(heard(&mut talk, 1_000), Vec::<String>::new());
        steps.store(3, Ordering::Relaxed);
        assert_eq!(heard(&mut talk, 2_000), ["EXTEND_TIMEOUT_USEC=120000000"]);
        assert_eq!(heard(&mut talk, 3_000), Vec::<String>::new());
    }

    #[test]
    fn what_did_not_get_through_is_told_again() {
        let name = format!("@kerolox-notify-late-{}", std::process::id());
        let manager = Manager::of(environment(&name, "", ""), 7).unwrap().unwrap();
        let mut talk = Talk::new(manager, Arc::new(Opening::unstopped()));
        talk.tell(0);
        let heartbeats = Heartbeats::new(&Placement { writer: 0, shards: vec![0] });
        talk.running = Some(Running { heartbeats, status: Box::new(|| "fine".to_owned()) });
        talk.tell(1_000);
        let address = SocketAddr::from_abstract_name(&name.as_bytes()[1..]).unwrap();
        let server = UnixDatagram::bind_addr(&address).unwrap();
        server.set_nonblocking(true).unwrap();
        talk.tell(2_000);
        let mut bytes = [0; 2048];
        let len = server.recv(&mut bytes).unwrap();
        assert_eq!(&bytes[..len], b"READY=1\nSTATUS=fine");
        talk.tell(3_000);
        assert!(server.recv(&mut bytes).is_err(), "it was told once");
    }

    #[test]
    fn messages_arrive_in_order_on_an_abstract_socket() {
        let name = format!("@kerolox-notify-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name.as_bytes()[1..]).unwrap();
        let server = UnixDatagram::bind_addr(&address).unwrap();
        server.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let receive = || {
            let mut bytes = [0; 2048];
            let len = server.recv(&mut bytes).unwrap();
            String::from_utf8(bytes[..len].to_vec()).unwrap()
        };
        let manager = Manager::of(environment(&name, "", ""), 7).unwrap().unwrap();
        let (events, happened) = flume::unbounded();
        let talk = Talk::new(manager, Arc::new(Opening::unstopped()));
        let notify = Notify(Some((events, std::thread::spawn(move || talk.run(&happened)))));
        let opening = receive();
        assert!(opening.contains("STATUS=opening the store") && opening.contains("EXTEND_TIMEOUT_USEC="), "{opening}");
        let heartbeats = Heartbeats::new(&Placement { writer: 0, shards: vec![0] });
        notify.ready(&heartbeats, || "all is\nwell".to_owned());
        assert_eq!(receive(), "READY=1\nSTATUS=all is well");
        notify.stopping(|| 0);
        let stopping = receive();
        assert!(stopping.starts_with("STOPPING=1\nSTATUS=stopping: "), "{stopping}");
        let began = Instant::now();
        notify.end(Some("no more".to_owned()));
        assert!(began.elapsed() < Duration::from_secs(30));
        let last = std::iter::repeat_with(receive).find(|message| message.contains("failed")).unwrap();
        assert_eq!(last, "STATUS=failed: no more");
    }
}
