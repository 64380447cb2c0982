//! Locked memory: each executor registers its buffer with the kernel, once for each of its three rings.
//!
//! The kernel counts what is locked by user, over all processes, and counts a huge page whole: a buffer of 1 MiB that lies in
//! two of 2 MiB is 4 MiB, and 12 MiB for three rings. Since Linux 6.14 it counts the rings, too.

use std::io;

use rustix::process::{Resource, getrlimit};

use super::Setting;
use crate::tuning::{Finding, Host, Severity};

pub(super) const SETTING: Setting = Setting {
    name: "memlock",
    reason: "each executor registers its I/O buffer with the kernel, which locks it; without that each direct write locks its own",
    look,
};
/// Memory for an executor's own buffers.
pub const IO_MEMORY_LEN: usize = 1 << 20;
/// Rings of an executor.
const RINGS: u64 = 3;
/// What the kernel counts for the rings of an executor: 48 KiB with glommio's 128 entries, and some room.
const RINGS_LEN: u64 = 64 << 10;
/// glommio makes no executor below this limit, whatever the process may lock beyond its limit.
const LIMIT_MIN: u64 = 512 << 10;

const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
const HUGE_PAGE_LEN: &str = "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size";

/// Is there enough for this process to run the node's executors? It is the limit of who asks: of a shell, another one than
/// that of a service.
fn look(host: &Host) -> io::Result<Vec<Finding>> {
    let may_be_huge = host.value(HUGE_PAGES)?.is_some_and(|text| !text.contains("[never]"));
    let huge_len = host.value(HUGE_PAGE_LEN)?.and_then(|text| text.trim().parse().ok()).filter(|_| may_be_huge);
    Ok(vec![judge(getrlimit(Resource::Memlock).current, may_lock_all(), host.executors(), huge_len)])
}

/// `unbound`: the kernel lets this process lock more than its limit says. `huge_len`: length of a huge page, if there are any.
fn judge(limit: Option<u64>, unbound: bool, executors: usize, huge_len: Option<u64>) -> Finding {
    let executors = executors as u64;
    let needed = if unbound { LIMIT_MIN } else { (executors * RINGS_LEN).max(LIMIT_MIN) };
    let buffer = IO_MEMORY_LEN as u64;
    // It begins anywhere in a huge page.
    let counted = huge_len.map_or(buffer, |huge| (buffer.div_ceil(huge) + 1) * huge);
    let wanted = if unbound { LIMIT_MIN } else { (executors * (RINGS * counted + RINGS_LEN)).max(LIMIT_MIN) };
    let found = limit.map_or("unlimited".to_owned(), |limit| format!("{limit} bytes of locked memory allowed"));
    let finding = SETTING.fine("", found, format!("{wanted} bytes"));
    let raise = |len: u64| format!("raise the limit (systemd: LimitMEMLOCK=, shell: ulimit -l {})", len.div_ceil(1024));
    match limit {
        Some(limit) if limit < needed => {
            let fix = format!("{needed} bytes are needed; {} or use fewer cores", raise(needed));
            finding.by_hand(Severity::Refusal, fix)
        }
        Some(limit) if limit < wanted => finding.by_hand(Severity::Hint, raise(wanted)),
        _ => finding,
    }
}

/// CAP_IPC_LOCK lifts the limit.
fn may_lock_all() -> bool {
    const CAP_IPC_LOCK: u64 = 14;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).is_some_and(|caps| caps >> CAP_IPC_LOCK & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HUGE: Option<u64> = Some(2 << 20);

    #[test]
    fn a_limit_below_what_the_rings_need_is_refused_with_what_to_set() {
        let finding = judge(Some(65_536), false, 2, HUGE);
        assert_eq!(finding.severity, Severity::Refusal);
        assert!(finding.to_string().contains("65536") && finding.to_string().contains("ulimit -l 512)"), "{finding}");
        assert_eq!(judge(Some((1 << 20) - 1), false, 16, HUGE).severity, Severity::Refusal);
        assert_eq!(judge(Some(1 << 20), false, 16, HUGE).severity, Severity::Hint);
        assert_eq!(judge(None, false, 2, HUGE).severity, Severity::Fine);
    }

    /// As the kernel counts: 3128 KiB and 6240 KiB were enough for one and two executors on ordinary pages, 8 MiB was not
    /// for one on huge ones.
    #[test]
    fn a_limit_below_what_the_buffers_lock_costs_a_little() {
        for (executors, huge_len, kib) in [(1, None, 3136), (2, None, 6272), (1, HUGE, 12_352), (2, HUGE, 24_704)] {
            let finding = judge(Some((kib << 10) - 1), false, executors, huge_len);
            assert_eq!(finding.severity, Severity::Hint);
            assert!(finding.to_string().contains(&format!("ulimit -l {kib})")), "{finding}");
            assert_eq!(judge(Some(kib << 10), false, executors, huge_len).severity, Severity::Fine);
        }
    }

    #[test]
    fn who_may_lock_all_needs_the_limit_that_glommio_asks_for() {
        for limit in [0, 65_536, (512 << 10) - 1] {
            let finding = judge(Some(limit), true, 2, HUGE);
            assert_eq!(finding.severity, Severity::Refusal);
            assert!(finding.to_string().contains("ulimit -l 512)"), "{finding}");
        }
        assert_eq!(judge(Some(512 << 10), true, 2, HUGE).severity, Severity::Fine);
    }
}
