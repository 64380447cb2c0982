//! The weekly discard of free space. Only told: a timer belongs to the host's set-up, and is to outlive a restart.

use std::io;

use super::Setting;
use crate::tuning::finding::shell_word;
use crate::tuning::{Finding, Host, Severity};

pub(super) const SETTING: Setting = Setting {
    name: "fstrim",
    reason: "a log is written and deleted for ever; a device that is never told what is free copies it around, and its flushes \
             get slower over weeks",
    look,
};
const WANTED: &str = "fstrim.timer, or a mount that discards";

fn look(host: &Host) -> io::Result<Vec<Finding>> {
    let place = host.place()?;
    let mut may_discard = false;
    if let Some(top) = &place.top {
        may_discard = host.number(format!("/sys/block/{top}/queue/discard_max_bytes"))?.unwrap_or(0) > 0;
    } else {
        for disk in place.disks() {
            may_discard |= host.number(format!("/sys/block/{}/queue/discard_max_bytes", disk.name))?.unwrap_or(0) > 0;
        }
    }
    if !may_discard {
        return Ok(SETTING.absent("no device that discards"));
    }
    if place.mount.options.iter().any(|option| option.starts_with("discard")) {
        return Ok(vec![SETTING.fine("", "the mount discards", WANTED)]);
    }
    let enabled = ["/etc/systemd/system", "/run/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"];
    if enabled.iter().any(|dir| host.exists(format!("{dir}/timers.target.wants/fstrim.timer"))) {
        return Ok(vec![SETTING.fine("", "fstrim.timer is enabled", WANTED)]);
    }
    for jobs in ["daily", "weekly", "monthly"] {
        if host.exists(format!("/etc/cron.{jobs}/fstrim")) {
            return Ok(vec![SETTING.fine("", format!("cron runs it {jobs}"), WANTED)]);
        }
    }
    let fix = if host.exists("/run/systemd/system") {
        "systemctl enable --now fstrim.timer".to_owned()
    } else {
        format!("run fstrim {} once a week", shell_word(&place.mount.point.display().to_string()))
    };
    Ok(vec![SETTING.fine("", "nobody tells the device what is free", WANTED).by_hand(Severity::Hint, fix)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuning::test_tree::{DATA, Tree, number};

    #[test]
    fn a_device_that_discards_wants_to_be_told() {
        let tree = Tree::new();
        let severity = |tree: &Tree| SETTING.check(&tree.host())[0].severity;
        tree.disk("nvme0n1", &[("discard_max_bytes", "0")]);
        tree.mounted("nvme0n1", "xfs", "rw,noatime");
        assert_eq!(severity(&tree), Severity::Fine, "it takes none");
        tree.disk("nvme0n1", &[("discard_max_bytes", "2199023255040")]);
        assert_eq!(severity(&tree), Severity::Hint);
        tree.make_dir("/run/systemd/system");
        assert_eq!(SETTING.check(&tree.host())[0].fix, "systemctl enable --now fstrim.timer");
        tree.mounted("nvme0n1", "xfs", "rw,noatime,discard");
        assert_eq!(severity(&tree), Severity::Fine);
        tree.mounted("nvme0n1", "xfs", "rw,noatime");
        tree.link("/etc/systemd/system/timers.target.wants/fstrim.timer", "/usr/lib/systemd/system/fstrim.timer");
        assert_eq!(severity(&tree), Severity::Fine);
    }

    #[test]
    fn the_command_can_be_pasted_whatever_the_mount_is_called() {
        let tree = Tree::new();
        tree.disk("sda", &[("discard_max_bytes", "1")]);
        tree.make_dir("/mnt/big disk/store");
        std::fs::remove_dir_all(tree.at(DATA)).unwrap();
        tree.link(DATA, "../mnt/big disk/store");
        let mounted = format!(r"22 1 {} / /mnt/big\040disk rw,noatime - ext4 /dev/sda rw", number("sda"));
        tree.put("/proc/self/mountinfo", &mounted);
        assert_eq!(SETTING.check(&tree.host())[0].fix, "run fstrim '/mnt/big disk' once a week");
    }
}
