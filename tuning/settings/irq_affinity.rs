//! Which cores serve the network's interrupts.

use std::io;
use std::path::{Path, PathBuf};

use super::Setting;
use crate::tuning::host::{core_list, cores};
use crate::tuning::{Change, Finding, Host, Severity};

pub(super) const SETTING: Setting = Setting {
    name: "irq_affinity",
    reason: "every message passes the writer's core; network interrupts there take its time. With fewer than four cores none \
             is spared",
    look,
};
const CORES_MIN: usize = 4;

fn look(host: &Host) -> io::Result<Vec<Finding>> {
    let online = host.online_cores()?;
    let writer = host.writer_core();
    if online.len() < CORES_MIN {
        return Ok(SETTING.absent(format!("{} cores", online.len())));
    }
    let others: Vec<usize> = online.into_iter().filter(|core| *core != writer).collect();
    let mut findings = Vec::new();
    for card in host.names("/sys/class/net")? {
        let mut changes = Vec::new();
        let mut numbers = Vec::new();
        for irq in interrupts(host, &card)? {
            let path = format!("/proc/irq/{irq}/smp_affinity_list");
            let Some(allowed) = host.value(&path)? else { continue };
            let serving = host.value(format!("/proc/irq/{irq}/effective_affinity_list"))?;
            let serving = serving.filter(|list| !list.is_empty()).unwrap_or_else(|| allowed.clone());
            // What the kernel manages itself is spread over all cores, and cannot be moved.
            if cores(&serving).contains(&writer) && may_be_written(host, &path)? {
                changes.push(Change::new(path, allowed, core_list(&others)));
                numbers.push(irq);
            }
        }
        if numbers.is_empty() {
            continue;
        }
        let found = format!("interrupts {} on the writer's core {writer}", numbers.join(", "));
        let finding = SETTING.fine(&card, found, format!("cores {}", core_list(&others)));
        let fix = format!(
            "for i in {}; do echo {} > /proc/irq/$i/smp_affinity_list; done",
            numbers.join(" "),
            core_list(&others)
        );
        findings.push(if host.exists("/run/irqbalance") {
            let fix = format!("set IRQBALANCE_BANNED_CPULIST={writer} for irqbalance, which moves interrupts by itself, and restart it");
            finding.by_hand(Severity::Hint, fix)
        } else {
            finding.with_changes(Severity::Hint, changes).told(fix)
        });
    }
    if findings.is_empty() {
        findings.push(SETTING.fine("", format!("no network interrupt on the writer's core {writer}"), "none there"));
    }
    Ok(findings)
}

/// Numbers of a card's interrupts that somebody handles. None for a virtual one.
fn interrupts(host: &Host, card: &str) -> io::Result<Vec<String>> {
    let device = PathBuf::from(format!("/sys/class/net/{card}/device"));
    if !host.exists(&device) {
        return Ok(Vec::new());
    }
    // The card's function on the bus has them; a virtio device lies one below.
    for dir in host.real(&device)?.ancestors().take_while(|dir| dir.starts_with("/sys/devices/")) {
        let numbers = host.names(dir.join("msi_irqs"))?;
        if !numbers.is_empty() {
            let handled = |irq: &String| is_handled(host, irq).unwrap_or(false);
            return Ok(numbers.into_iter().filter(handled).collect());
        }
    }
    Ok(Vec::new())
}

/// The kernel makes a directory there for each handler.
fn is_handled(host: &Host, irq: &str) -> io::Result<bool> {
    let dir = Path::new("/proc/irq").join(irq);
    Ok(host.names(&dir)?.iter().any(|name| host.at(dir.join(name)).is_dir()))
}

/// The kernel says by the file's mode whether it lets anybody move this one.
fn may_be_written(host: &Host, path: &str) -> io::Result<bool> {
    use std::os::unix::fs::PermissionsExt;
    Ok(host.at(path).metadata()?.permissions().mode() & 0o200 != 0)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::tuning::test_tree::Tree;

    fn tree(online: &str) -> Tree {
        let tree = Tree::new();
        tree.put("/sys/devices/system/cpu/online", online);
        tree.link("/sys/class/net/eth0", "../../devices/pci0000:00/0000:00:03.0/virtio2/net/eth0");
        tree.link("/sys/devices/pci0000:00/0000:00:03.0/virtio2/net/eth0/device", "../../../virtio2");
        for (irq, serving) in [("40", "0"), ("41", "0"), ("42", "2"), ("43", "0")] {
            tree.put(&format!("/sys/devices/pci0000:00/0000:00:03.0/msi_irqs/{irq}"), "msix");
            tree.put(&format!("/proc/irq/{irq}/smp_affinity_list"), "0-3");
            tree.put(&format!("/proc/irq/{irq}/effective_affinity_list"), serving);
        }
        for handled in ["40/virtio2-input.0", "42/virtio2-output.0", "43/virtio2-input.1"] {
            tree.make_dir(&format!("/proc/irq/{handled}"));
        }
        let managed = tree.at("/proc/irq/43/smp_affinity_list");
        fs::set_permissions(managed, fs::Permissions::from_mode(0o444)).unwrap();
        tree.mounted("sda", "ext4", "rw");
        tree
    }

    #[test]
    fn network_interrupts_leave_the_writers_core_where_there_are_others() {
        let [finding] = &SETTING.check(&tree("0-3").host())[..] else { panic!("one card") };
        assert_eq!((finding.severity, &*finding.of), (Severity::Hint, "eth0"));
        let [change] = &finding.changes[..] else {
            panic!("of four, one is handled, here and ours to move: {finding}")
        };
        assert_eq!((&*change.path, &*change.to), ("/proc/irq/40/smp_affinity_list", "1-3"));
        assert_eq!(finding.fix, "for i in 40; do echo 1-3 > /proc/irq/$i/smp_affinity_list; done");
        assert_eq!(SETTING.check(&tree("0-1").host())[0].severity, Severity::Fine);
    }

    #[test]
    fn where_irqbalance_runs_it_is_to_be_told() {
        let tree = tree("0-3");
        tree.make_dir("/run/irqbalance");
        let finding = SETTING.check(&tree.host()).remove(0);
        assert!(finding.changes.is_empty() && finding.fix.contains("IRQBALANCE_BANNED_CPULIST=0"), "{finding}");
    }
}
