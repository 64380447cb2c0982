//! What the kernel believes of the disks' write caches, and whether a flush gets through to them.

use std::io;

use super::Setting;
use crate::tuning::{Change, Finding, Host, Severity};

pub(super) const SETTING: Setting = Setting {
    name: "write_cache",
    reason: "the kernel sends a flush only to a device whose cache it takes for volatile (\"write back\"). Told otherwise, it \
             sends none, and what was acknowledged as flushed is lost with the power",
    look,
};
const BACK: &str = "write back";

fn look(host: &Host) -> io::Result<Vec<Finding>> {
    let place = host.place()?;
    let mut findings = Vec::new();
    for device in &place.devices {
        let at = path(&device.name);
        let Some(found) = host.value(&at)? else { continue };
        let is_disk = device.below.is_empty();
        // A layer that lets no flush through hides what lies below it.
        let mut volatile = is_disk && said_by_disk(host, &device.name)?;
        for below in place.down_from(device).into_iter().filter(|below| below.below.is_empty()) {
            volatile |= host.value(path(&below.name))?.is_some_and(|found| found == BACK);
        }
        let told = match (found == BACK, is_disk) {
            (true, _) => format!("{found}: flushes are sent"),
            (false, true) => {
                format!("{found}: no flush is sent, right only if the device keeps its cache without power")
            }
            (false, false) => format!("{found}: no flush is passed on"),
        };
        let finding = SETTING.fine(&device.name, told, if volatile { BACK } else { "as the device says" });
        findings.push(if volatile && found != BACK {
            finding.with_changes(Severity::Warning, vec![Change::new(at, found, BACK)])
        } else {
            finding
        });
    }
    if findings.is_empty() { Ok(SETTING.absent("no disk that tells")) } else { Ok(findings) }
}

fn path(device: &str) -> String {
    format!("/sys/block/{device}/queue/write_cache")
}

/// Does a SCSI or SATA disk itself call its cache volatile? Others do not tell apart what they say and what was set.
fn said_by_disk(host: &Host, disk: &str) -> io::Result<bool> {
    let dir = format!("/sys/block/{disk}/device/scsi_disk");
    for address in host.names(&dir)? {
        if host.value(format!("{dir}/{address}/cache_type"))?.is_some_and(|said| said.starts_with(BACK)) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuning::test_tree::Tree;

    fn severities(tree: &Tree) -> Vec<(String, Severity)> {
        SETTING.check(&tree.host()).into_iter().map(|finding| (finding.of, finding.severity)).collect()
    }

    #[test]
    fn a_disk_that_calls_its_cache_volatile_must_get_flushes() {
        let tree = Tree::new();
        tree.mounted("sda", "ext4", "rw");
        for (said, set, severity) in [
            (BACK, BACK, Severity::Fine),
            ("write through", "write through", Severity::Fine),
            (BACK, "write through", Severity::Warning),
        ] {
            tree.disk("sda", &[("write_cache", set)]);
            tree.put("/sys/block/sda/device/scsi_disk/0:0:0:0/cache_type", said);
            assert_eq!(severities(&tree), [("sda".to_owned(), severity)], "{said} {set}");
        }
        let fix = SETTING.check(&tree.host()).remove(0).fix;
        assert_eq!(fix, "echo 'write back' > /sys/block/sda/queue/write_cache");
    }

    #[test]
    fn a_volume_that_passes_no_flush_on_to_a_volatile_cache_is_told() {
        let tree = Tree::new();
        tree.disk("nvme0n1", &[("write_cache", BACK)]);
        tree.above("dm-0", &["nvme0n1"], &[("write_cache", "write through")]);
        tree.mounted("dm-0", "ext4", "rw");
        let told = |device: &str, severity| (device.to_owned(), severity);
        assert_eq!(severities(&tree), [told("dm-0", Severity::Warning), told("nvme0n1", Severity::Fine)]);
        // Beside it an array of disks that keep their caches without power, which needs none.
        tree.disk("nvme1n1", &[("write_cache", "write through")]);
        tree.above("md0", &["nvme1n1"], &[("write_cache", "write through")]);
        tree.above("dm-1", &["md0", "nvme0n1"], &[("write_cache", BACK)]);
        tree.mounted("dm-1", "ext4", "rw");
        assert!(severities(&tree).iter().all(|(_, severity)| *severity == Severity::Fine), "{:?}", severities(&tree));
    }
}
