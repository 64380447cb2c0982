//! Connections that may wait to be accepted.

use std::io;

use super::Setting;
use crate::tuning::{Change, Finding, Host, Severity};

pub(super) const SETTING: Setting = Setting {
    name: "somaxconn",
    reason: "the node asks for so many waiting connections a shard; with fewer, a crowd of clients that comes back after a \
             network outage is dropped and tries again a second later",
    look,
};
const PATH: &str = "/proc/sys/net/core/somaxconn";
/// What the node's listeners ask for.
const LEAST: u64 = 1024;
/// The kernel's own default.
const WANTED: &str = "4096";

fn look(host: &Host) -> io::Result<Vec<Finding>> {
    let Some(found) = host.number(PATH)? else { return Ok(SETTING.absent("not to be seen here")) };
    let finding = SETTING.fine("", found, format!("at least {LEAST}"));
    if found >= LEAST {
        return Ok(vec![finding]);
    }
    Ok(vec![finding.with_changes(Severity::Hint, vec![Change::new(PATH, found.to_string(), WANTED)])])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuning::test_tree::Tree;

    #[test]
    fn what_the_listeners_ask_for_is_wanted() {
        assert_eq!(LEAST, crate::net::BACKLOG_LEN as u64);
        let tree = Tree::new();
        tree.put(PATH, "1024");
        assert_eq!(SETTING.check(&tree.host())[0].severity, Severity::Fine);
        tree.put(PATH, "128");
        assert_eq!(SETTING.check(&tree.host())[0].fix, "sysctl -w net.core.somaxconn=4096");
    }
}
