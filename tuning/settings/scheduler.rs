//! The I/O scheduler of the disks: what stands between a write and the device's own queue.

use std::io;

use super::Setting;
use crate::tuning::{Change, Finding, Host, Severity};

pub(super) const SETTING: Setting = Setting {
    name: "scheduler",
    reason: "a device with queues of its own orders requests itself; mq-deadline and bfq let reads of old messages go before \
             the log's writes. A disk with moving heads does need mq-deadline",
    look,
};

fn look(host: &Host) -> io::Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for disk in host.place()?.disks() {
        let name = &disk.name;
        let path = format!("/sys/block/{name}/queue/scheduler");
        let (Some(offered), Some(found)) = (host.text(&path)?, host.value(&path)?) else { continue };
        let wanted = if has_heads(host, name)? { "mq-deadline" } else { "none" };
        let finding = SETTING.fine(name, &found, wanted);
        if found == wanted {
            findings.push(finding);
            continue;
        }
        // It holds a core's requests back in the hope of better ones.
        let severity = if found == "bfq" { Severity::Warning } else { Severity::Hint };
        let mut change = Change::new(&path, &found, wanted);
        // The new scheduler comes with its own number of requests, and so does the old one when it comes back.
        let requests = format!("/sys/block/{name}/queue/nr_requests");
        if let Some(count) = host.value(&requests)? {
            change.back.push((requests, count));
        }
        findings.push(if offered.contains(wanted) {
            finding.with_changes(severity, vec![change])
        } else {
            finding.by_hand(severity, format!("modprobe {wanted} && {}", change.command()))
        });
    }
    if findings.is_empty() { Ok(SETTING.absent("no disk with a choice")) } else { Ok(findings) }
}

/// Is it worth sorting requests for this disk? Virtual disks say so without knowing.
fn has_heads(host: &Host, disk: &str) -> io::Result<bool> {
    let virtual_disk = ["vd", "xvd", "nvme", "pmem"].iter().any(|kind| disk.starts_with(kind));
    Ok(!virtual_disk && host.number(format!("/sys/block/{disk}/queue/rotational"))? == Some(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuning::test_tree::Tree;

    fn found(disk: &str, rotational: &str, scheduler: &str) -> Finding {
        let tree = Tree::new();
        tree.disk(disk, &[("scheduler", scheduler), ("rotational", rotational), ("nr_requests", "64")]);
        tree.mounted(disk, "ext4", "rw,relatime");
        let [finding] = &SETTING.check(&tree.host())[..] else { panic!("one disk, one finding") };
        finding.clone()
    }

    #[test]
    fn devices_with_queues_of_their_own_want_none_and_heads_want_mq_deadline() {
        for (disk, rotational, scheduler, wanted) in [
            ("nvme0n1", "0", "[none] mq-deadline", "none"),
            ("vda", "1", "[none] mq-deadline", "none"),
            ("sda", "0", "[none] mq-deadline", "none"),
            ("sdb", "1", "none [mq-deadline] bfq", "mq-deadline"),
        ] {
            let finding = found(disk, rotational, scheduler);
            assert_eq!((finding.severity, &*finding.wanted), (Severity::Fine, wanted), "{disk}");
        }
        let finding = found("vda", "1", "none [mq-deadline]");
        assert_eq!((finding.severity, &*finding.fix), (Severity::Hint, "echo none > /sys/block/vda/queue/scheduler"));
        assert_eq!(found("sda", "0", "none mq-deadline [bfq]").severity, Severity::Warning);
        let finding = found("sdb", "1", "[none] kyber");
        assert!(finding.changes.is_empty() && finding.fix.starts_with("modprobe mq-deadline"), "{}", finding.fix);
    }

    #[test]
    fn the_way_back_brings_back_the_number_of_requests_too() {
        let finding = found("vda", "1", "none [mq-deadline]");
        let text = |path: &str, value: &str| (path.to_owned(), value.to_owned());
        let scheduler = text("/sys/block/vda/queue/scheduler", "mq-deadline");
        assert_eq!(finding.changes[0].back, [scheduler, text("/sys/block/vda/queue/nr_requests", "64")]);
    }
}
