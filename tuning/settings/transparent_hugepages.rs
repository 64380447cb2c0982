//! Huge pages that the kernel makes of ordinary memory by itself. Shown, since other programs' guides want them off; nothing is
//! wanted here.
//!
//! The node's allocator asks for them for its one arena, so that "always" and "madvise" are the same to it: 31 MiB of memory
//! under load with either, 26 of them in huge pages.

use std::io;

use super::Setting;
use crate::tuning::{Finding, Host};

pub(super) const SETTING: Setting = Setting {
    name: "transparent_hugepages",
    reason: "the node's heap asks for huge pages itself, so \"always\" and \"madvise\" are the same to it",
    look,
};
const PATH: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

fn look(host: &Host) -> io::Result<Vec<Finding>> {
    let Some(found) = host.value(PATH)? else { return Ok(SETTING.absent("not to be seen here")) };
    Ok(vec![SETTING.fine("", found, "any")])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuning::Severity;
    use crate::tuning::test_tree::Tree;

    #[test]
    fn what_is_set_is_shown_and_left() {
        let tree = Tree::new();
        for found in ["always", "madvise", "never"] {
            let list = "always madvise never".replace(found, &format!("[{found}]"));
            tree.put(PATH, &list);
            let finding = SETTING.check(&tree.host()).remove(0);
            assert_eq!((&*finding.found, finding.severity), (found, Severity::Fine));
        }
    }
}
