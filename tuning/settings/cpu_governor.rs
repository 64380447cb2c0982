//! How the cores' clocks follow their load.

use std::io;

use super::Setting;
use crate::tuning::{Change, Finding, Host, Severity};

pub(super) const SETTING: Setting = Setting {
    name: "cpu_governor",
    reason: "a node at rest sleeps, so a governor that follows the load finds it at a low clock when a message comes",
    look,
};
const WANTED: &str = "performance";
const DIR: &str = "/sys/devices/system/cpu/cpufreq";

fn look(host: &Host) -> io::Result<Vec<Finding>> {
    let mut found: Vec<String> = Vec::new();
    let mut changes = Vec::new();
    let mut lowest_always = false;
    for policy in host.names(DIR)?.into_iter().filter(|name| name.starts_with("policy")) {
        let path = format!("{DIR}/{policy}/scaling_governor");
        let Some(governor) = host.value(&path)? else { continue };
        if governor != WANTED {
            // These two choose the clock by themselves below that name.
            let driver = host.value(format!("{DIR}/{policy}/scaling_driver"))?.unwrap_or_default();
            lowest_always |= governor == "powersave" && !["intel_pstate", "amd-pstate-epp"].contains(&&*driver);
            changes.push(Change::new(path, &governor, WANTED));
        }
        if !found.contains(&governor) {
            found.push(governor);
        }
    }
    if found.is_empty() {
        return Ok(SETTING.absent("the clocks are not this kernel's to set"));
    }
    let finding = SETTING.fine("", found.join(", "), WANTED);
    if changes.is_empty() {
        return Ok(vec![finding]);
    }
    let severity = if lowest_always { Severity::Warning } else { Severity::Hint };
    let fix = format!("for g in {DIR}/policy*/scaling_governor; do echo {WANTED} > $g; done");
    Ok(vec![finding.with_changes(severity, changes).told(fix)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuning::test_tree::Tree;

    #[test]
    fn every_policy_that_follows_the_load_is_changed_and_a_lowest_clock_warned_of() {
        let tree = Tree::new();
        tree.mounted("sda", "ext4", "rw");
        assert_eq!(SETTING.check(&tree.host())[0].severity, Severity::Fine, "nothing to set");
        tree.put(&format!("{DIR}/policy0/scaling_governor"), WANTED);
        assert_eq!(SETTING.check(&tree.host())[0].severity, Severity::Fine);
        for number in [4, 12] {
            tree.put(&format!("{DIR}/policy{number}/scaling_governor"), "powersave");
            tree.put(&format!("{DIR}/policy{number}/scaling_driver"), "intel_pstate");
        }
        let finding = SETTING.check(&tree.host()).remove(0);
        assert_eq!((finding.severity, finding.changes.len()), (Severity::Hint, 2));
        assert_eq!(finding.changes[1].path, format!("{DIR}/policy12/scaling_governor"));
        tree.put(&format!("{DIR}/policy4/scaling_driver"), "acpi-cpufreq");
        assert_eq!(SETTING.check(&tree.host())[0].severity, Severity::Warning);
    }
}
