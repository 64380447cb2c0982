//! How much written data may wait in memory before the kernel makes writers wait.
//!
//! Only too little is told. Less than the kernel's own share of a large memory is no gain: with 512 MiB and 2 GiB instead of 10
//! and 20 % of 24 GiB, flushes beside somebody who wrote 3 GiB took longer (p99 36 ms, not 21).

use std::io;

use super::Setting;
use crate::tuning::{Change, Finding, Host, Severity};

pub(super) const SETTING: Setting = Setting {
    name: "dirty_bytes",
    reason: "between two flushes of an async node the log waits in memory; with less room than that, the kernel makes the writer \
             wait for the disk",
    look,
};
/// The kernel keeps the limit as bytes or as a share of memory, and the other of the two as 0. What is in force is changed:
/// a 0 is not taken back here, and not always there.
const BYTES: &str = "/proc/sys/vm/dirty_bytes";
const RATIO: &str = "/proc/sys/vm/dirty_ratio";
/// The kernel's own, in percent: enough where memory is small.
const OWN_RATIO: u64 = 20;
/// Half a second of 500 MB/s: the flush of an interval, and of those that wait for a slow one.
const LEAST: u64 = 256 << 20;
const WANTED: u64 = 1 << 30;

fn look(host: &Host) -> io::Result<Vec<Finding>> {
    let counters = host.text("/proc/vmstat")?.unwrap_or_default();
    let memory = host.text("/proc/meminfo")?.unwrap_or_default();
    let pages = |name| number_after(&counters, name).map(|pages| pages * rustix::param::page_size() as u64);
    let (Some(background), Some(limit), Some(memory), Some(bytes), Some(ratio)) = (
        pages("nr_dirty_background_threshold"),
        pages("nr_dirty_threshold"),
        number_after(&memory, "MemTotal:"),
        host.number(BYTES)?,
        host.number(RATIO)?,
    ) else {
        return Ok(SETTING.absent("not to be seen here"));
    };
    let share = memory * 1024 * OWN_RATIO / 100;
    let least = LEAST.min(share);
    let found = format!("written out from {} MiB on, writers wait from {} MiB on", background >> 20, limit >> 20);
    let finding = SETTING.fine("", found, format!("at least {} MiB until writers wait", least >> 20));
    if limit >= least || (bytes == 0 && ratio >= OWN_RATIO) {
        return Ok(vec![finding]);
    }
    let change = if bytes == 0 {
        Change::new(RATIO, ratio.to_string(), OWN_RATIO.to_string())
    } else {
        Change::new(BYTES, bytes.to_string(), WANTED.min(share).to_string())
    };
    Ok(vec![finding.with_changes(Severity::Hint, vec![change])])
}

/// The number behind a name at the beginning of a line.
fn number_after(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().map(str::split_whitespace);
    lines.find_map(|mut words| (words.next() == Some(name)).then(|| words.next()?.parse().ok())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuning::test_tree::Tree;

    /// What is found with so much memory, and such a limit in force, in MiB.
    fn found(memory: u64, limit: u64, bytes: &str, ratio: &str) -> Finding {
        let tree = Tree::new();
        let pages = |mib: u64| (mib << 20) / rustix::param::page_size() as u64;
        tree.put("/proc/meminfo", &format!("MemTotal:  {} kB\nMemFree: 1 kB\n", memory << 10));
        let (limit, background) = (pages(limit), pages(limit / 2));
        tree.put("/proc/vmstat", &format!("nr_dirty_threshold {limit}\nnr_dirty_background_threshold {background}\n"));
        tree.put(BYTES, bytes);
        tree.put(RATIO, ratio);
        SETTING.check(&tree.host()).remove(0)
    }

    #[test]
    fn only_too_little_is_told_and_the_kernels_own_share_never() {
        for (memory, limit, bytes, ratio) in
            [(65_536, 12_000, "0", "20"), (65_536, 256, "268435456", "0"), (900, 120, "0", "20"), (900, 180, "0", "25")]
        {
            assert_eq!(found(memory, limit, bytes, ratio).severity, Severity::Fine, "{memory} {limit}");
        }
    }

    #[test]
    fn bytes_are_changed_where_bytes_are_in_force_and_else_the_share() {
        for (memory, bytes, ratio, fix) in [
            (65_536, "67108864", "0", "sysctl -w vm.dirty_bytes=1073741824"),
            (1_000, "67108864", "0", "sysctl -w vm.dirty_bytes=209715200"),
            (65_536, "0", "0", "sysctl -w vm.dirty_ratio=20"),
        ] {
            let finding = found(memory, 64, bytes, ratio);
            assert_eq!((finding.severity, &*finding.fix), (Severity::Hint, fix));
        }
    }
}
