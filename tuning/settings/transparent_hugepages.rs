//! Huge pages that the kernel makes of ordinary memory by itself.

use std::io;

use super::Setting;
use crate::tuning::{Change, Finding, Host, Severity};

pub(super) const SETTING: Setting = Setting {
    name: "transparent_hugepages",
    reason: "with \"always\" the node's small heaps grow to whole huge pages, and the first touch of one clears 2 MiB on the \
             core that touches it",
    look,
};
const PATH: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

fn look(host: &Host) -> io::Result<Vec<Finding>> {
    let Some(found) = host.value(PATH)? else { return Ok(SETTING.absent("this kernel has none")) };
    let finding = SETTING.fine("", &found, "madvise or never");
    Ok(vec![if found == "always" {
        finding.with_changes(Severity::Hint, vec![Change::new(PATH, found, "madvise")])
    } else {
        finding
    }])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuning::test_tree::Tree;

    #[test]
    fn only_who_asks_for_huge_pages_shall_get_them() {
        let tree = Tree::new();
        assert_eq!(SETTING.check(&tree.host())[0].severity, Severity::Fine);
        for (found, severity) in [
            ("always [madvise] never", Severity::Fine),
            ("always madvise [never]", Severity::Fine),
            ("[always] madvise never", Severity::Hint),
        ] {
            tree.put(PATH, found);
            assert_eq!(SETTING.check(&tree.host())[0].severity, severity, "{found}");
        }
    }
}
