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

use super::heartbeat::{Beats, HEARTBEAT, Heartbeats};
use crate::io::steady_ms;
use crate::store::Opening;

/// How often it looks, or twice in the watchdog's time if that is less.
const LOOK: Duration = Duration::from_secs(1);
/// A manager that reads nothing holds up this thread, and so the node's end, for no longer.
const SEND_MAX: Duration = Duration::from_secs(1);
/// A start is given up if one step of it (a file to load, to scan a part of or to sync) takes longer.
const STEP_MAX: Duration = Duration::from_secs(120);

/// The thread that speaks to the service manager, if there is one.
pub struct Notify(Option<(flume::Sender<Event>, JoinHandle<()>)>);

/// What happened to the node.
enum Event {
    Ready(Running),
    Stopping,
    Failed(String),
}

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
    /// The environment names a socket that is none, or there is no thread to be had.
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

    /// It was told to stop.
    pub fn stopping(&self) {
        self.tell(Event::Stopping);
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
    /// Steps of the opening when it was last looked at.
    steps: Option<u64>,
    running: Option<Running>,
    stopping: bool,
    /// As it was last told.
    status: String,
    /// Which executor did not turn when it was last looked at.
    stuck: Option<String>,
    /// Did the last message not get through?
    unheard: bool,
}

impl Talk {
    fn new(manager: Manager, opening: Arc<Opening>) -> Talk {
        let (steps, running, stuck) = (None, None, None);
        Talk { manager, opening, steps, running, stopping: false, status: String::new(), stuck, unheard: false }
    }

    fn run(mut self, happened: &flume::Receiver<Event>) {
        loop {
            let lines = self.look(steady_ms());
            self.send(&lines);
            match happened.recv_timeout(self.pause()) {
                Ok(Event::Ready(running)) => {
                    self.running = Some(running);
                    self.send(&["READY=1".to_owned()]);
                }
                Ok(Event::Stopping) => {
                    self.stopping = true;
                    self.send(&["STOPPING=1".to_owned()]);
                }
                Ok(Event::Failed(why)) => return self.send(&[format!("STATUS=failed: {}", one_line(&why))]),
                Err(flume::RecvTimeoutError::Timeout) => {}
                Err(flume::RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn pause(&self) -> Duration {
        self.manager.watchdog.map_or(LOOK, |watchdog| LOOK.min(watchdog / 2))
    }

    /// What is to be told now.
    fn look(&mut self, now_ms: u64) -> Vec<String> {
        let mut lines = Vec::new();
        let status = match &self.running {
            None => {
                let steps = Some(self.opening.steps());
                if steps != self.steps {
                    lines.push(format!("EXTEND_TIMEOUT_USEC={}", STEP_MAX.as_micros()));
                    self.steps = steps;
                }
                self.opening.to_string()
            }
            Some(running) => {
                // A beat or two may be late on a busy host.
                let late_ms = self.pause().max(HEARTBEAT * 3).as_millis() as u64;
                let stuck = stuck(running.heartbeats.all(), now_ms, late_ms);
                if stuck.is_none() && self.manager.watchdog.is_some() {
                    lines.push("WATCHDOG=1".to_owned());
                }
                let role = stuck.map(|(beats, _)| beats.role.clone());
                let status = match stuck {
                    Some((Beats { role, core, .. }, age_ms)) => {
                        let what = format!("executor \"{role}\" on core {core} does not turn");
                        if self.stuck.is_none() {
                            tracing::error!(ms = age_ms, "{what}; the watchdog is not fed until it does");
                        }
                        what
                    }
                    None if self.stopping => "stopping: what is under way is finished and flushed".to_owned(),
                    None => (running.status)(),
                };
                if let Some(role) = self.stuck.as_ref().filter(|_| role.is_none()) {
                    let gap_ms_max = running.heartbeats.all().iter().map(Beats::gap_ms_max).max();
                    tracing::info!(role, gap_ms_max, "every executor turns again");
                }
                self.stuck = role;
                status
            }
        };
        let status = one_line(&status);
        if status != self.status {
            lines.push(format!("STATUS={status}"));
            self.status = status;
        }
        lines
    }

    fn send(&mut self, lines: &[String]) {
        if lines.is_empty() {
            return;
        }
        let sent = self.manager.send(&lines.join("\n"));
        if let Err(error) = &sent
            && !self.unheard
        {
            tracing::warn!(%error, "the service manager cannot be told how the node is (NOTIFY_SOCKET)");
        }
        self.unheard = sent.is_err();
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
    use std::sync::atomic::AtomicBool;
    use std::time::Instant;

    use super::*;
    use crate::node::placement::Placement;

    /// The environment of a service whose manager listens on a socket of this abstract name.
    fn environment(name: &str, watchdog_usec: &str, watchdog_pid: &str) -> impl Fn(&str) -> Option<OsString> {
        let all = [("NOTIFY_SOCKET", name), ("WATCHDOG_USEC", watchdog_usec), ("WATCHDOG_PID", watchdog_pid)];
        let all = all.map(|(key, value)| (key, OsString::from(value)));
        move |key| all.iter().find(|(name, value)| *name == key && !value.is_empty()).map(|(_, value)| value.clone())
    }

    fn talk(watchdog_usec: &str) -> Talk {
        let manager = Manager::of(environment("@nobody", watchdog_usec, ""), 7).unwrap().unwrap();
        Talk::new(manager, Arc::new(Opening::new(Arc::new(AtomicBool::new(false)))))
    }

    #[test]
    fn without_a_socket_nobody_is_told_and_one_that_is_none_is_refused() {
        assert!(Manager::of(environment("", "1000", ""), 7).unwrap().is_none());
        for wrong in ["run/notify", "vsock:2:1", &format!("@{}", "x".repeat(200))] {
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
        assert_eq!(talk.look(began + 150), ["WATCHDOG=1", "STATUS=fine"]);
        assert_eq!(talk.look(began + 1_100), ["WATCHDOG=1"]);
        // One of three stops, and starts again.
        beat(0, 5_000);
        beat(2, 5_000);
        assert_eq!(talk.look(began + 5_010), [r#"STATUS=executor "shard 0" on core 1 does not turn"#]);
        assert_eq!(talk.look(began + 5_900), Vec::<String>::new());
        (0..3).for_each(|executor| beat(executor, 6_000));
        assert_eq!(talk.look(began + 6_010), ["WATCHDOG=1", "STATUS=fine"]);
        // One that has ended is not waited for, the others are.
        drop(heartbeats.heart(1));
        beat(0, 20_000);
        beat(2, 20_000);
        assert_eq!(talk.look(began + 20_050), ["WATCHDOG=1"]);
        assert_eq!(talk.look(began + 21_050).len(), 1, "the status alone");
    }

    #[test]
    fn the_time_to_start_is_extended_only_while_the_opening_gets_on() {
        let mut talk = talk("");
        let extended = |lines: Vec<String>| lines.iter().any(|line| line == "EXTEND_TIMEOUT_USEC=120000000");
        assert!(extended(talk.look(0)));
        assert!(!extended(talk.look(1_000)));
        talk.opening.scanned(40, 100, 3).unwrap();
        let lines = talk.look(2_000);
        assert!(lines.iter().any(|line| line.starts_with("STATUS=recovering: 40 %")), "{lines:?}");
        assert!(extended(lines));
        assert_eq!(talk.look(3_000), Vec::<String>::new());
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
        assert_eq!((receive(), receive()), ("READY=1".to_owned(), "STATUS=all is well".to_owned()));
        notify.stopping();
        assert_eq!(receive(), "STOPPING=1");
        let began = Instant::now();
        notify.end(Some("no more".to_owned()));
        assert!(began.elapsed() < Duration::from_secs(30));
        let last = std::iter::repeat_with(receive).find(|message| message.contains("failed")).unwrap();
        assert_eq!(last, "STATUS=failed: no more");
    }
}
