//! Carrying out a load: watched on the terminal, and with the machine in its result.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Serialize;

use crate::cli;
use crate::live::Live;
use crate::load::{self, Event, Failure, Plan};
use crate::machine::{Machine, MachineArgs};
use crate::result::RunResult;

/// Carries out `plan`; the terminal shows how it goes, and `observer` is told as well.
///
/// # Errors
/// As [`load::run`].
pub fn load_watched(plan: &Plan, observer: &mut dyn FnMut(Event<'_>)) -> Result<RunResult, Failure> {
    let mut live = Live::new();
    let result = load::run(plan, &mut |event| {
        live.hear(&event);
        observer(event);
    });
    live.finish();
    result
}

/// As [`load_watched`], with the machine in the result as it was before the load.
///
/// # Errors
/// As [`load::run`].
pub fn measure(plan: &Plan, machine: &MachineArgs, observer: &mut dyn FnMut(Event<'_>)) -> Result<RunResult, Failure> {
    let machine = Machine::look(machine, plan);
    let mut result = load_watched(plan, observer)?;
    result.machine = machine.to_json();
    Ok(result)
}

/// The result of a load that went on to its end.
///
/// # Errors
/// Why it did not.
pub fn to_its_end(result: RunResult) -> Result<RunResult, Stop> {
    match &result.ended_early {
        Some(why) => Err(Stop::from(why.clone())),
        None => Ok(result),
    }
}

/// Whether every message was sent and answered with success.
pub fn is_clean(result: &RunResult) -> bool {
    result.errors.is_empty() && result.never_sent == 0
}

/// Whether the files of an answer can be written, asked before the load: what took hours is not to end in a wrong path.
/// Leaves no file behind that was not there.
///
/// # Errors
/// Names the first that cannot be written.
pub fn check_files(files: &[&Option<PathBuf>]) -> Result<(), Stop> {
    for path in files.iter().filter_map(|path| path.as_deref()) {
        let found = fs::metadata(path);
        // A pipe may have a reader who takes an end for the end.
        if found.as_ref().is_ok_and(|found| !found.is_file() && !found.is_dir()) {
            continue;
        }
        let opened = OpenOptions::new().append(true).create(true).open(path);
        opened.map_err(|error| format!("{} cannot be written: {error}", path.display()))?;
        if found.is_err() {
            _ = fs::remove_file(path);
        }
    }
    Ok(())
}

/// Writes to standard output. Whoever reads no further has seen enough.
///
/// # Errors
/// Says why it cannot be written.
pub fn say(text: &str) -> Result<(), String> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(format!("standard output cannot be written: {error}"))
        }
        _ => Ok(()),
    }
}

/// Writes a finished page.
///
/// # Errors
/// Says which file could not be written, and why.
pub fn write(path: &Path, text: &str) -> Result<(), String> {
    let written = fs::File::create(path).and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| format!("{}: {error}", path.display()))
}

/// Writes an answer as JSON.
///
/// # Errors
/// Names the file that cannot be written.
pub fn write_json(path: &Path, answer: &impl Serialize) -> Result<(), Stop> {
    let text = serde_json::to_string_pretty(answer).expect("all keys are texts");
    Ok(write(path, &(text + "\n"))?)
}

/// Why a subcommand has no answer, and the exit code that says so.
#[derive(Debug)]
pub struct Stop {
    code: u8,
    why: String,
}

impl Stop {
    /// Puts what was being done before the reason.
    pub fn during(mut self, what: impl fmt::Display) -> Stop {
        self.why = format!("{what}: {}", self.why);
        self
    }

    /// Says it, and gives the exit code.
    pub fn tell(&self) -> ExitCode {
        eprintln!("kerolox-bench: {}", self.why);
        ExitCode::from(self.code)
    }
}

/// Something went wrong while running.
impl From<String> for Stop {
    fn from(why: String) -> Stop {
        Stop { code: cli::EXIT_FAILURE, why }
    }
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Stop {
        let code = match failure {
            Failure::Plan(_) => cli::EXIT_USAGE,
            Failure::Peer(_) | Failure::Host(_) => cli::EXIT_FAILURE,
        };
        Stop { code, why: failure.to_string() }
    }
}
