//! Results on standard output, for people or as JSON.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::process::ExitCode;

use kerolox::tuning::{Finding, Severity};
use serde::Serialize;

use super::EXIT_FAILURE;

/// Writes it all at once; whoever reads no further has seen enough.
///
/// # Errors
/// It cannot be written: the exit code, once why is told.
pub fn print(text: &str) -> Result<(), ExitCode> {
    let mut out = io::stdout().lock();
    if let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.flush())
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        eprintln!("kerolox-tune: standard output cannot be written: {error}");
        return Err(ExitCode::from(EXIT_FAILURE));
    }
    Ok(())
}

pub fn json(value: &impl Serialize) -> String {
    serde_json::to_string_pretty(value).expect("texts, numbers and lists are JSON") + "\n"
}

/// A line for what is as wanted; why and what to do besides for what is not.
pub fn describe(text: &mut String, mark: &str, finding: &Finding) {
    let Finding { found, wanted, reason, .. } = finding;
    if finding.severity == Severity::Fine {
        let _ = writeln!(text, "{mark:<8} {}: {found}", finding.name());
        return;
    }
    let _ =
        writeln!(text, "{mark:<8} {}\n  found:   {found}\n  wanted:  {wanted}\n  why:     {reason}", finding.name());
}
