//! What the kernel gives up first when memory gets short: programs' memory or the page cache.

use std::io;

use super::Setting;
use crate::tuning::{Change, Finding, Host, Severity};

pub(super) const SETTING: Setting = Setting {
    name: "swappiness",
    reason: "the log fills the page cache, so the kernel looks for memory all the time; a page of the node that it swapped out \
             stops a core until it is read again",
    look,
};
const PATH: &str = "/proc/sys/vm/swappiness";
const MOST: u64 = 10;

fn look(host: &Host) -> io::Result<Vec<Finding>> {
    let Some(found) = host.number(PATH)? else { return Ok(SETTING.absent("not to be seen here")) };
    // The first line has the names of the columns.
    if host.text("/proc/swaps")?.unwrap_or_default().lines().count() < 2 {
        return Ok(vec![SETTING.fine("", format!("{found}, and no swap"), "any without swap")]);
    }
    let finding = SETTING.fine("", found, format!("at most {MOST} with swap"));
    if found <= MOST {
        return Ok(vec![finding]);
    }
    Ok(vec![finding.with_changes(Severity::Warning, vec![Change::new(PATH, found.to_string(), MOST.to_string())])])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuning::test_tree::Tree;

    #[test]
    fn it_matters_only_with_swap() {
        let tree = Tree::new();
        tree.put(PATH, "60");
        tree.put("/proc/swaps", "Filename Type Size Used Priority\n");
        assert_eq!(SETTING.check(&tree.host())[0].severity, Severity::Fine);
        tree.put("/proc/swaps", "Filename Type Size Used Priority\n/dev/sda2 partition 1000 0 -2\n");
        let finding = SETTING.check(&tree.host()).remove(0);
        assert_eq!((finding.severity, &*finding.fix), (Severity::Warning, "sysctl -w vm.swappiness=10"));
        tree.put(PATH, "10");
        assert_eq!(SETTING.check(&tree.host())[0].severity, Severity::Fine);
    }
}
