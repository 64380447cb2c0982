//! How deeply idle cores sleep.

use std::io;

use super::Setting;
use crate::tuning::{Change, Finding, Host, Severity};

pub(super) const SETTING: Setting = Setting {
    name: "cpu_idle",
    reason: "waking from these states takes longer than a flush, and a node with little to do sleeps before each message. \
             Without them an idle host takes more power",
    look,
};
const DIR: &str = "/sys/devices/system/cpu";
/// µs. A flush of a fast device takes 20 to 100.
const WAKE_US_MAX: u64 = 100;

fn look(host: &Host) -> io::Result<Vec<Finding>> {
    let mut states = 0;
    let mut deep: Vec<String> = Vec::new();
    let mut changes = Vec::new();
    for core in host.online_cores()? {
        let dir = format!("{DIR}/cpu{core}/cpuidle");
        for state in host.names(&dir)? {
            let (Some(wake), Some(disabled)) =
                (host.number(format!("{dir}/{state}/latency"))?, host.value(format!("{dir}/{state}/disable"))?)
            else {
                continue;
            };
            states += 1;
            if wake <= WAKE_US_MAX || disabled != "0" {
                continue;
            }
            let name = host.value(format!("{dir}/{state}/name"))?.unwrap_or_default();
            let told = format!("{name} ({wake} µs)");
            if !deep.contains(&told) {
                deep.push(told);
            }
            changes.push(Change::new(format!("{dir}/{state}/disable"), disabled, "1"));
        }
    }
    if states == 0 {
        return Ok(SETTING.absent("how cores sleep is not this kernel's to set"));
    }
    let wanted = format!("none that takes more than {WAKE_US_MAX} µs to wake");
    if changes.is_empty() {
        return Ok(vec![SETTING.fine("", "no deep state in use", wanted)]);
    }
    // It means this latency and those above.
    let fix = format!("cpupower idle-set --disable-by-latency {}", WAKE_US_MAX + 1);
    Ok(vec![SETTING.fine("", deep.join(", "), wanted).with_changes(Severity::Hint, changes).told(fix)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuning::test_tree::Tree;

    #[test]
    fn states_that_take_long_to_wake_from_are_switched_off_on_every_core() {
        let tree = Tree::new();
        tree.mounted("sda", "ext4", "rw");
        assert_eq!(SETTING.check(&tree.host())[0].severity, Severity::Fine, "nothing to set");
        tree.put("/sys/devices/system/cpu/online", "0-1");
        for core in 0..2 {
            for (state, name, wake) in [(0, "POLL", 0), (1, "C1", 2), (2, "C6", 133)] {
                let dir = format!("{DIR}/cpu{core}/cpuidle/state{state}");
                tree.put(&format!("{dir}/name"), name);
                tree.put(&format!("{dir}/latency"), &wake.to_string());
                tree.put(&format!("{dir}/disable"), "0");
            }
        }
        let finding = SETTING.check(&tree.host()).remove(0);
        assert_eq!((finding.severity, &*finding.found), (Severity::Hint, "C6 (133 µs)"));
        let paths: Vec<_> = finding.changes.iter().map(|change| &*change.path).collect();
        assert_eq!(paths, [format!("{DIR}/cpu0/cpuidle/state2/disable"), format!("{DIR}/cpu1/cpuidle/state2/disable")]);
        for path in paths {
            tree.put(path, "1");
        }
        assert_eq!(SETTING.check(&tree.host())[0].severity, Severity::Fine);
    }
}
