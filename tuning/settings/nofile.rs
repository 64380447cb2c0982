//! Open files: each connection and each log segment takes one.

use std::io;

use rustix::process::{Resource, getrlimit};

use super::Setting;
use crate::tuning::{Finding, Host, Severity};

pub(super) const SETTING: Setting =
    Setting { name: "nofile", reason: "each connection and log segment takes a descriptor", look };
/// Ten thousand clients and as many files.
const WANTED: u64 = 20_000;

/// The hard limit counts: the node raises the soft one to it at start. It is the limit of who asks: of a shell, another one
/// than that of a service.
fn look(_: &Host) -> io::Result<Vec<Finding>> {
    Ok(vec![judge(getrlimit(Resource::Nofile).maximum)])
}

fn judge(limit: Option<u64>) -> Finding {
    let found = limit.map_or("unlimited".to_owned(), |limit| format!("{limit} open files allowed"));
    let finding = SETTING.fine("", found, format!("at least {WANTED}"));
    match limit {
        Some(limit) if limit < WANTED => finding.by_hand(
            Severity::Warning,
            "raise the hard limit (systemd: LimitNOFILE=, shell: ulimit -Hn, limits.conf: nofile)",
        ),
        _ => finding,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_hard_limit_is_a_warning() {
        assert_eq!(judge(Some(1024)).severity, Severity::Warning);
        assert_eq!(judge(Some(WANTED)).severity, Severity::Fine);
        assert_eq!(judge(None).severity, Severity::Fine);
    }
}
