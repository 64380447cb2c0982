//! One of the two brokers: its name and address, and how it is started and stopped where that is our business.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::MemfdFlags;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::load::stop;
use crate::machine::answers;

/// How long a broker has to stop by itself. A Java broker with much in its page cache takes its time.
const STOP_MAX: Duration = Duration::from_secs(60);
/// How often to look whether a broker has come or gone.
const POLL: Duration = Duration::from_millis(50);
/// How much of a broker's last words to show.
const WORDS_LEN: usize = 2000;

/// `LABEL=HOST:PORT`, or an address alone, which then is the label too.
#[derive(Clone, Debug, PartialEq)]
pub struct Named {
    pub label: String,
    address: String,
}

impl FromStr for Named {
    type Err = String;

    fn from_str(text: &str) -> Result<Named, String> {
        let (label, address) = text.split_once('=').unwrap_or((text, text));
        let has_port =
            address.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
        if label.is_empty() || !has_port {
            return Err(format!("{text:?} is neither HOST:PORT nor LABEL=HOST:PORT"));
        }
        Ok(Named { label: label.to_owned(), address: address.to_owned() })
    }
}

impl Named {
    /// Two that have one name become "… (a)" and "… (b)".
    pub fn name_apart_from(&mut self, other: &mut Named) {
        if self.label == other.label {
            self.label += " (a)";
            other.label += " (b)";
        }
    }
}

/// A broker and, if it is ours to start, the command that does so.
pub struct Side {
    named: Named,
    command: Option<String>,
    start_max: Duration,
}

impl Side {
    pub fn new(named: Named, command: Option<String>, start_max: Duration) -> Side {
        Side { named, command, start_max }
    }

    pub fn label(&self) -> &str {
        &self.named.label
    }

    pub fn address(&self) -> &str {
        &self.named.address
    }

    /// Runs the command, if there is one, and waits until the broker answers.
    ///
    /// # Errors
    /// Says why there is no broker, with the last words of the command's output.
    pub fn start(&self) -> Result<Option<Started>, String> {
        let Some(command) = &self.command else { return Ok(None) };
        // Else the load would go to whoever that is, and the figures to the wrong name.
        if answers(self.address()) {
            return Err(format!("a broker answers on {} already; stop it, or leave the command out", self.address()));
        }
        let mut started = Started::spawn(command).map_err(|error| format!("{command:?} cannot be run: {error}"))?;
        let deadline = Instant::now() + self.start_max;
        loop {
            if answers(self.address()) {
                return Ok(Some(started));
            }
            let ended =
                started.child.try_wait().map_err(|error| format!("{command:?} cannot be waited for: {error}"))?;
            // A command that has put its broker into the background ends with 0.
            if let Some(status) = ended.filter(|status| !status.success()) {
                return Err(format!("{command:?} ended with {status} before a broker answered{}", started.words()));
            }
            if stop::is_wanted() {
                started.stop()?;
                return Err(stop::INTERRUPTED.to_owned());
            }
            if Instant::now() > deadline {
                let seconds = self.start_max.as_secs();
                let words = started.words();
                return Err(format!("{command:?}: nothing answers on {} after {seconds} s{words}", self.address()));
            }
            thread::sleep(POLL);
        }
    }
}

/// The process group whose broker is running, for the signal handler.
static RUNNING: Mutex<Option<Pid>> = Mutex::new(None);

/// A signal ends the comparison with the rounds that are finished; a second one ends this program, and the broker that
/// runs is told to stop.
///
/// # Errors
/// The kernel refuses to tell of signals.
pub fn stop_on_signals() -> io::Result<()> {
    stop::on_signals_after(|| {
        if let Some(group) = *RUNNING.lock().unwrap_or_else(|broken| broken.into_inner()) {
            let _ = kill_process_group(group, Signal::TERM);
        }
    })
}

/// A command that runs, with everything that it started: they are one process group. Dropping it kills them.
#[derive(Debug)]
pub struct Started {
    child: Child,
    group: Pid,
    /// What they write, in a file without a name that goes with them.
    log: File,
}

impl Started {
    fn spawn(command: &str) -> io::Result<Started> {
        let log = File::from(rustix::fs::memfd_create("broker's output", MemfdFlags::CLOEXEC)?);
        let child = Command::new("sh")
            .args(["-c", command])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log.try_clone()?)
            .process_group(0)
            .spawn()?;
        let group = Pid::from_child(&child);
        *RUNNING.lock().unwrap_or_else(|broken| broken.into_inner()) = Some(group);
        Ok(Started { child, group, log })
    }

    /// SIGTERM to all of them, and SIGKILL to those that are still there after a minute.
    ///
    /// # Errors
    /// They cannot be stopped.
    pub fn stop(mut self) -> Result<(), String> {
        let _ = kill_process_group(self.group, Signal::TERM);
        if !self.wait(STOP_MAX) {
            let seconds = STOP_MAX.as_secs();
            eprintln!("kerolox-bench: the broker has not stopped within {seconds} s of SIGTERM and is killed");
            let _ = kill_process_group(self.group, Signal::KILL);
            if !self.wait(STOP_MAX) {
                return Err(format!("process group {} cannot be stopped", self.group.as_raw_nonzero()));
            }
        }
        Ok(())
    }

    /// Whether all of them are gone in time.
    fn wait(&mut self, most: Duration) -> bool {
        let deadline = Instant::now() + most;
        loop {
            // Reaps the shell; what it left behind is somebody else's to reap, and counts as gone once it is a zombie.
            let gone = self.child.try_wait().is_ok_and(|status| status.is_some());
            if gone && !any_alive(self.group) {
                return true;
            }
            if Instant::now() > deadline {
                return false;
            }
            thread::sleep(POLL);
        }
    }

    /// The end of what it has written, for an error message.
    fn words(&self) -> String {
        let len = self.log.metadata().map_or(0, |found| found.len());
        let mut end = vec![0; WORDS_LEN];
        // The writers share one position in the file, so it must not be moved by reading.
        let read = self.log.read_at(&mut end, len.saturating_sub(WORDS_LEN as u64)).unwrap_or(0);
        match String::from_utf8_lossy(&end[..read]).trim() {
            "" => "; it wrote nothing".to_owned(),
            words => format!("; it wrote:\n{words}"),
        }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // After `stop` nobody is left, and the group's number may soon be another's.
        if any_alive(self.group) {
            let _ = kill_process_group(self.group, Signal::KILL);
        }
        let _ = self.child.wait();
        *RUNNING.lock().unwrap_or_else(|broken| broken.into_inner()) = None;
    }
}

/// Whether a process of the group runs. Source: proc(5), stat: `pid (name) state parent group …`.
fn any_alive(group: Pid) -> bool {
    let number = group.as_raw_nonzero().get().to_string();
    let stats = fs::read_dir("/proc").into_iter().flatten().flatten().filter(|entry| is_number(&entry.path()));
    stats.filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok()).any(|stat| {
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        matches!(fields[..], [state, _, of, ..] if of == number && !["Z", "X"].contains(&state))
    })
}

fn is_number(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    !name.is_empty() && name.iter().all(u8::is_ascii_digit)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn names_are_read_and_told_apart() {
        let mut a: Named = "java=10.0.0.7:10911".parse().unwrap();
        assert_eq!((a.label.as_str(), a.address.as_str()), ("java", "10.0.0.7:10911"));
        let mut b: Named = "10.0.0.7:10911".parse().unwrap();
        assert_eq!(b.label, b.address);
        a.label.clone_from(&b.label);
        a.name_apart_from(&mut b);
        assert_ne!(a.label, b.label);
        for text in ["", "x", "=1.2.3.4:1", "a=b", "a=b:99999", ":1"] {
            assert!(text.parse::<Named>().is_err(), "{text:?}");
        }
    }

    fn free_address() -> String {
        TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
    }

    fn side(command: &str, start_max: Duration) -> Side {
        let named = Named { label: "x".to_owned(), address: free_address() };
        Side::new(named, Some(command.to_owned()), start_max)
    }

    #[test]
    fn a_command_that_fails_or_brings_no_broker_is_told_with_its_words() {
        let why = side("echo no such store >&2; exit 7", Duration::from_secs(60)).start().unwrap_err();
        assert!(why.contains("exit status: 7") && why.contains("no such store"), "{why}");
        let why = side("exec sleep 600", Duration::from_millis(1)).start().unwrap_err();
        assert!(why.contains("nothing answers on") && why.contains("wrote nothing"), "{why}");
    }

    #[test]
    fn everything_that_a_command_started_is_stopped() {
        let started = Started::spawn("sleep 600 & sleep 600").unwrap();
        let group = started.group;
        assert!(any_alive(group));
        assert_eq!(started.stop(), Ok(()));
        assert!(!any_alive(group));
    }

    #[test]
    fn a_dropped_command_is_killed_though_it_ignores_sigterm() {
        let dir = tempfile::tempdir().unwrap();
        let ready = dir.path().join("ready");
        let started = Started::spawn(&format!("trap '' TERM; touch {}; while :; do sleep 1; done", ready.display()));
        let started = started.unwrap();
        let group = started.group;
        while !ready.exists() {
            thread::sleep(Duration::from_millis(5));
        }
        drop(started);
        assert!(!any_alive(group));
    }
}
