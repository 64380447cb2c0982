//! What the machine must give before anything starts: cores, free ports, and the host settings that `tuning` looks at.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::error::NodeError;
use super::placement::Placement;
use crate::net::{self, PortClaim};
use crate::tuning::{self, Finding, Host, Severity};

/// Raises the limit of open files as far as it goes, and gives it.
pub fn raise_open_files() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    // What cannot be raised stays; the limit that then holds is told.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Connections get no descriptor at or above this: the rest is for files of the store, which must not fail because of
/// a crowd.
pub fn descriptors_for_connections(open_files_max: u64) -> i32 {
    let kept = (open_files_max / 4).min(1024);
    i32::try_from(open_files_max - kept).unwrap_or(i32::MAX)
}

/// Descriptors that an executor takes: its rings, what wakes it, its ports.
const DESCRIPTORS_OF_EXECUTOR: u64 = 10;
/// Besides what is open: for clients, and for files that are written now and then.
const DESCRIPTORS_LEAST: u64 = 24;

/// Refuses a limit of open files under which no client could be served, with the store open.
pub fn open_files(open_files_max: u64, executors: usize) -> Result<(), NodeError> {
    // What cannot be counted is not refused.
    let open = fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count() as u64);
    judge_open_files(open_files_max, open, executors).map_err(NodeError::Host)
}

fn judge_open_files(limit: u64, open: u64, executors: usize) -> Result<(), String> {
    let needed = open + executors as u64 * DESCRIPTORS_OF_EXECUTOR + DESCRIPTORS_LEAST;
    if descriptors_for_connections(limit) as u64 >= needed {
        return Ok(());
    }
    let least = needed + ((needed - 1) / 3).min(1024);
    Err(format!(
        "open files: {limit} allowed (RLIMIT_NOFILE), at least {least} are needed: {open} are open with the files of this \
         store; raise the hard limit (systemd: LimitNOFILE=, shell: ulimit -Hn)"
    ))
}

/// What a start makes of host settings that cost the node something and do not keep it from running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostWarnings {
    Log,
    /// Log, then do not start.
    Refuse,
}

/// Refuses where the host lacks what the node cannot do without, and logs a line for each setting that is not as wanted.
pub fn host(data: &Path, placement: &Placement, warnings: HostWarnings) -> Result<(), NodeError> {
    let host = Host::look(Path::new("/"), data, placement.executors(), placement.writer);
    let findings = tuning::check(&host);
    if let Some(finding) = findings.iter().find(|finding| finding.severity == Severity::Refusal) {
        return Err(NodeError::Host(finding.to_string()));
    }
    let mut warned = Vec::new();
    for finding in findings.iter().filter(|finding| finding.severity != Severity::Fine) {
        let Finding { found, wanted, fix, .. } = finding;
        let setting = finding.name();
        if finding.severity == Severity::Hint {
            tracing::info!(setting, found, wanted, fix, "host hint");
        } else {
            tracing::warn!(setting, found, wanted, fix, "host warning");
            warned.push(setting);
        }
    }
    if warnings == HostWarnings::Refuse && !warned.is_empty() {
        return Err(NodeError::Host(format!(
            "--strict: the host has {}: {}; kerolox-tune check tells why, kerolox-tune apply sets what can be set",
            if warned.len() == 1 { "a setting that is not as wanted" } else { "settings that are not as wanted" },
            warned.join(", ")
        )));
    }
    Ok(())
}

/// Are all ports free? Each comes with the setting that names it. The claims keep other nodes off until they are dropped.
pub fn ports(addrs: &[(SocketAddr, &'static str)]) -> Result<Vec<PortClaim>, NodeError> {
    let claim =
        |(addr, key): &(SocketAddr, &'static str)| net::claim(*addr).map_err(|taken| NodeError::Port(taken, key));
    addrs.iter().map(claim).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_of_open_files_that_leaves_nothing_for_clients_is_refused_with_what_would_do() {
        for (open, executors) in [(12, 2), (12, 64), (700, 2), (9000, 4)] {
            let why = judge_open_files(20, open, executors).unwrap_err();
            let least = why.split("at least ").nth(1).and_then(|rest| rest.split(' ').next()?.parse::<u64>().ok());
            let least = least.unwrap_or_else(|| panic!("{why}"));
            assert!(why.contains("20 allowed (RLIMIT_NOFILE)"), "{why}");
            judge_open_files(least, open, executors).unwrap();
            judge_open_files(least - 1, open, executors).unwrap_err();
        }
    }
}
