//! Requests that a disk's scheduler holds.

use std::io;

use super::Setting;
use crate::tuning::{Change, Finding, Host, Severity};

pub(super) const SETTING: Setting = Setting {
    name: "nr_requests",
    reason: "a shard has up to 64 cold reads under way; a scheduler without room for them makes the log's writes wait until \
             there is. Without a scheduler the number is the device's own",
    look,
};
const LEAST: u64 = 128;
/// The kernel's own default.
const WANTED: &str = "256";

fn look(host: &Host) -> io::Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for disk in host.place()?.disks() {
        let path = format!("/sys/block/{}/queue/nr_requests", disk.name);
        let Some(found) = host.number(&path)? else { continue };
        let scheduler = host.value(format!("/sys/block/{}/queue/scheduler", disk.name))?;
        if scheduler.is_none_or(|scheduler| scheduler == "none") {
            findings.push(SETTING.fine(&disk.name, format!("{found}, the device's own"), "the device's own"));
            continue;
        }
        let finding = SETTING.fine(&disk.name, found, format!("at least {LEAST}"));
        findings.push(if found >= LEAST {
            finding
        } else {
            finding.with_changes(Severity::Hint, vec![Change::new(path, found.to_string(), WANTED)])
        });
    }
    if findings.is_empty() { Ok(SETTING.absent("no disk with a queue")) } else { Ok(findings) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuning::test_tree::Tree;

    #[test]
    fn few_requests_are_told_where_a_scheduler_holds_them() {
        let tree = Tree::new();
        tree.mounted("sda", "ext4", "rw");
        for (scheduler, count, fix) in [
            ("none [mq-deadline]", "64", "echo 256 > /sys/block/sda/queue/nr_requests"),
            ("none [mq-deadline]", "128", ""),
            ("[none] mq-deadline", "32", ""),
        ] {
            tree.disk("sda", &[("scheduler", scheduler), ("nr_requests", count)]);
            assert_eq!(SETTING.check(&tree.host())[0].fix, fix, "{scheduler} {count}");
        }
    }
}
