//! How the data's file system is mounted. Only told: a mount belongs to /etc/fstab.

use std::io;

use super::Setting;
use crate::tuning::finding::shell_word;
use crate::tuning::place::{Mount, is_in_memory, is_remote};
use crate::tuning::{Finding, Host, Severity};

pub(super) const SETTING: Setting = Setting {
    name: "mount_options",
    reason: "what the node has flushed must be on the disk, and nothing else shall write there for each message",
    look,
};

fn look(host: &Host) -> io::Result<Vec<Finding>> {
    let mount = &host.place()?.mount;
    let mut faults = Vec::new();
    faults.extend(no_lasting_place(mount));
    faults.extend(no_barriers(mount));
    faults.extend(whole_journal(mount));
    faults.extend(discard(mount));
    faults.extend(access_times(mount));
    let of = mount.point.display().to_string();
    let found = |what: &str| format!("{}, {what}", mount.file_system);
    if faults.is_empty() {
        return Ok(vec![SETTING.fine(
            &of,
            found(&mount.options.join(",")),
            "flushes sent, no discard, no strictatime",
        )]);
    }
    let told = |fault: Fault| {
        let point = shell_word(&of);
        let fix = match fault.remount {
            Some(option) => format!("mount -o remount,{option} {point}, and the same in /etc/fstab"),
            None => fault.advice.to_owned(),
        };
        let finding = SETTING.fine(&of, found(fault.found), fault.wanted).by_hand(fault.severity, fix);
        Finding { reason: fault.reason, ..finding }
    };
    Ok(faults.into_iter().map(told).collect())
}

struct Fault {
    found: &'static str,
    wanted: &'static str,
    reason: &'static str,
    severity: Severity,
    /// The option that puts it right at run time.
    remount: Option<&'static str>,
    /// What to do where there is none.
    advice: &'static str,
}

fn no_lasting_place(mount: &Mount) -> Option<Fault> {
    let (found, reason) = if is_in_memory(&mount.file_system) {
        ("in memory only", "whatever the node flushes is gone with the next restart")
    } else if is_remote(&mount.file_system) {
        ("on another machine", "how long a flush takes, and what is then safe, is up to that machine and the network")
    } else if mount.file_system == "overlay" {
        ("the layer of a container", "the messages go with the container")
    } else {
        return None;
    };
    Some(Fault {
        found,
        wanted: "a file system of a disk of this host",
        reason,
        severity: Severity::Warning,
        remount: None,
        advice: "put the data directory (store.root, --data) on a file system of a disk, in a container on a volume",
    })
}

fn no_barriers(mount: &Mount) -> Option<Fault> {
    let off = mount.has("nobarrier") || mount.has("barrier=0");
    off.then_some(Fault {
        found: "without barriers: no flush is sent",
        wanted: "barriers",
        reason: "what was acknowledged as flushed is lost with the power",
        severity: Severity::Warning,
        remount: Some("barrier"),
        advice: "",
    })
}

fn whole_journal(mount: &Mount) -> Option<Fault> {
    mount.has("data=journal").then_some(Fault {
        found: "data=journal: every byte is written twice",
        wanted: "data=ordered",
        reason: "the device has half its bandwidth for the log, and every commit carries the messages again",
        severity: Severity::Warning,
        remount: None,
        advice: "take data=journal out of /etc/fstab, and of the default options (tune2fs -l), and mount it again",
    })
}

/// XFS and F2FS discard in the background; the others while a commit waits.
fn discard(mount: &Mount) -> Option<Fault> {
    let waits = match &*mount.file_system {
        "ext4" => mount.has("discard"),
        "btrfs" => mount.has("discard") || mount.has("discard=sync"),
        _ => false,
    };
    waits.then_some(Fault {
        found: "discard with every commit",
        wanted: "nodiscard, and fstrim.timer",
        reason: "flushes wait while the blocks of a deleted segment are given back",
        severity: Severity::Hint,
        remount: Some("nodiscard"),
        advice: "",
    })
}

fn access_times(mount: &Mount) -> Option<Fault> {
    let every_read = !["noatime", "relatime"].iter().any(|option| mount.has(option)) && !mount.has("ro");
    every_read.then_some(Fault {
        found: "strictatime: every read writes the time of the access",
        wanted: "noatime or relatime",
        reason: "each read of old messages becomes a write, too",
        severity: Severity::Hint,
        remount: Some("noatime"),
        advice: "",
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuning::test_tree::Tree;

    fn told(file_system: &str, options: &str) -> Vec<(Severity, String)> {
        let tree = Tree::new();
        tree.disk("sda", &[]);
        tree.mounted("sda", file_system, options);
        let findings = SETTING.check(&tree.host());
        findings.into_iter().map(|finding| (finding.severity, finding.fix)).collect()
    }

    #[test]
    fn what_is_harmless_is_fine() {
        for (file_system, options) in [
            ("ext4", "rw,noatime"),
            ("ext4", "rw,relatime"),
            ("xfs", "rw,noatime,discard"),
            ("btrfs", "rw,noatime,discard=async"),
        ] {
            assert_eq!(told(file_system, options), [(Severity::Fine, String::new())], "{file_system} {options}");
        }
    }

    #[test]
    fn each_fault_is_told_with_the_command_and_none_is_changed() {
        let remount = |option: &str| format!("mount -o remount,{option} /data, and the same in /etc/fstab");
        assert_eq!(
            told("ext4", "rw,nobarrier,discard"),
            [
                (Severity::Warning, remount("barrier")),
                (Severity::Hint, remount("nodiscard")),
                (Severity::Hint, remount("noatime"))
            ]
        );
        for (file_system, options, words) in [
            ("tmpfs", "rw,relatime", "of a disk"),
            ("overlay", "rw,relatime", "on a volume"),
            ("nfs4", "rw,relatime", "of a disk"),
            ("ext4", "rw,relatime,data=journal", "data=journal out of"),
        ] {
            let [(severity, fix)] = &told(file_system, options)[..] else { panic!("one fault: {file_system}") };
            assert!(*severity == Severity::Warning && fix.contains(words), "{fix}");
        }
    }
}
