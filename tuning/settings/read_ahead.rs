//! Read-ahead of the device that the file system is on: an array or volume has its own, which counts instead of its disks'.

use std::io;

use super::Setting;
use crate::tuning::{Change, Finding, Host, Severity};

pub(super) const SETTING: Setting = Setting {
    name: "read_ahead",
    reason: "a page of a consume queue or index file that is not in memory brings so much with it, and the core waits for it: \
             0.6 ms for 128 KiB and 7 ms for 8 MiB were measured. Who reads the log in order is read ahead of by the node",
    look,
};
/// KiB. Below, the node's own reading ahead, in parts of 128 KiB, may be cut short.
const LEAST: u64 = 128;
const MOST: u64 = 1024;
/// The kernel's own default.
const WANTED: &str = "128";

fn look(host: &Host) -> io::Result<Vec<Finding>> {
    let Some(device) = &host.place()?.top else {
        return Ok(SETTING.absent("the file system has a read-ahead of its own, or no device"));
    };
    let path = format!("/sys/block/{device}/queue/read_ahead_kb");
    let Some(found) = host.number(&path)? else { return Ok(SETTING.absent("this device has none")) };
    let finding = SETTING.fine(device, format!("{found} KiB"), format!("{LEAST} to {MOST} KiB"));
    let severity = match found {
        LEAST..=MOST => return Ok(vec![finding]),
        0..LEAST => Severity::Hint,
        _ => Severity::Warning,
    };
    Ok(vec![finding.with_changes(severity, vec![Change::new(path, found.to_string(), WANTED)])])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuning::test_tree::Tree;

    #[test]
    fn the_read_ahead_of_the_file_systems_device_counts_and_not_its_disks() {
        let tree = Tree::new();
        for (top, disk, severity) in [
            ("128", "8192", Severity::Fine),
            ("1024", "0", Severity::Fine),
            ("8192", "128", Severity::Warning),
            ("16", "128", Severity::Hint),
        ] {
            tree.disk("sda", &[("read_ahead_kb", disk)]);
            tree.above("md0", &["sda"], &[("read_ahead_kb", top)]);
            tree.mounted("md0", "xfs", "rw");
            let [finding] = &SETTING.check(&tree.host())[..] else { panic!("one finding") };
            assert_eq!((finding.severity, &*finding.of), (severity, "md0"), "{top}");
            assert_eq!(finding.changes.is_empty(), severity == Severity::Fine);
        }
    }
}
