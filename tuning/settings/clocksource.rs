//! What the kernel reads the time from.

use std::io;

use super::Setting;
use crate::tuning::{Change, Finding, Host, Severity};

pub(super) const SETTING: Setting = Setting {
    name: "clocksource",
    reason: "each message is stamped with the time; from these sources a program reads it itself in some 20 ns, from others it \
             has to ask the kernel and a slow device, which takes a microsecond or more",
    look,
};
const DIR: &str = "/sys/devices/system/clocksource/clocksource0";
/// Those that are read without a system call.
const FAST: [&str; 5] = ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter", "riscv_clocksource"];

fn look(host: &Host) -> io::Result<Vec<Finding>> {
    let path = format!("{DIR}/current_clocksource");
    let Some(found) = host.value(&path)? else { return Ok(SETTING.absent("not to be seen here")) };
    let offered = host.text(format!("{DIR}/available_clocksource"))?.unwrap_or_default();
    let offered: Vec<&str> = offered.split_whitespace().collect();
    let finding = SETTING.fine("", &found, FAST.join(", "));
    if FAST.contains(&&*found) {
        return Ok(vec![finding]);
    }
    Ok(vec![match FAST.iter().find(|fast| offered.contains(fast)) {
        Some(fast) => finding.with_changes(Severity::Warning, vec![Change::new(path, found, *fast)]),
        None => finding.by_hand(
            Severity::Warning,
            "none of them is offered; the kernel's log says why (dmesg | grep -i -e clocksource -e tsc)",
        ),
    }])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuning::test_tree::Tree;

    #[test]
    fn a_slow_clock_is_changed_where_a_fast_one_is_offered() {
        let tree = Tree::new();
        for (found, offered, severity, to) in [
            ("tsc", "tsc hpet", Severity::Fine, None),
            ("kvm-clock", "kvm-clock tsc", Severity::Fine, None),
            ("xen", "xen tsc hpet", Severity::Warning, Some("tsc")),
            ("hpet", "hpet acpi_pm", Severity::Warning, None),
        ] {
            tree.put(&format!("{DIR}/current_clocksource"), found);
            tree.put(&format!("{DIR}/available_clocksource"), offered);
            let finding = SETTING.check(&tree.host()).remove(0);
            let changed_to = finding.changes.first().map(|change| &*change.to);
            assert_eq!((finding.severity, changed_to), (severity, to), "{found}");
        }
    }
}
