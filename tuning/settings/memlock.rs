//! Locked memory: each executor registers buffers with the kernel.

use std::fs;
use std::io;

use rustix::process::{Resource, geteuid, getrlimit};

use super::Setting;
use crate::tuning::{Finding, Host, Severity};

pub(super) const SETTING: Setting = Setting {
    name: "memlock",
    reason: "each executor registers its I/O buffers with the kernel, which locks them",
    look,
};
/// Memory for an executor's own buffers. glommio registers three times this.
pub const IO_MEMORY_LEN: usize = 1 << 20;
const IO_MEMORY_FACTOR: u64 = 3;

/// glommio makes no executor below this limit, whatever the process may lock beyond its limit.
const LIMIT_MIN: u64 = 512 << 10;

/// Is there enough for this process to run the node's executors? It is the limit of who asks: of a shell, another one than
/// that of a service.
fn look(host: &Host) -> io::Result<Vec<Finding>> {
    let unbound = geteuid().is_root() || may_lock_all();
    Ok(vec![judge(getrlimit(Resource::Memlock).current, unbound, host.executors())])
}

/// `unbound`: the kernel lets this process lock more than its limit says.
fn judge(limit: Option<u64>, unbound: bool, executors: usize) -> Finding {
    let locked = executors as u64 * IO_MEMORY_FACTOR * IO_MEMORY_LEN as u64;
    let needed = if unbound { LIMIT_MIN } else { locked.max(LIMIT_MIN) };
    let found = limit.map_or("unlimited".to_owned(), |limit| format!("{limit} bytes of locked memory allowed"));
    let finding = SETTING.fine("", found, format!("{needed} bytes"));
    match limit {
        Some(limit) if limit < needed => finding.by_hand(
            Severity::Refusal,
            format!(
                "{needed} bytes are needed; raise the limit (systemd: LimitMEMLOCK=, shell: ulimit -l {}) or use fewer cores",
                needed.div_ceil(1024)
            ),
        ),
        _ => finding,
    }
}

/// CAP_IPC_LOCK lifts the limit.
fn may_lock_all() -> bool {
    const CAP_IPC_LOCK: u64 = 14;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).is_some_and(|caps| caps >> CAP_IPC_LOCK & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_below_what_the_executors_need_is_refused_with_what_to_set() {
        let finding = judge(Some(65_536), false, 2);
        assert_eq!(finding.severity, Severity::Refusal);
        assert!(finding.to_string().contains("65536") && finding.to_string().contains("ulimit -l 6144"), "{finding}");
        assert_eq!(judge(Some(6 << 20), false, 2).severity, Severity::Fine);
        assert_eq!(judge(None, false, 2).severity, Severity::Fine);
    }

    #[test]
    fn who_may_lock_all_needs_the_limit_that_glommio_asks_for() {
        for limit in [0, 65_536, (512 << 10) - 1] {
            let finding = judge(Some(limit), true, 2);
            assert_eq!(finding.severity, Severity::Refusal);
            assert!(finding.to_string().contains("ulimit -l 512)"), "{finding}");
        }
        assert_eq!(judge(Some(512 << 10), true, 2).severity, Severity::Fine);
    }
}
