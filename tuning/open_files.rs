//! Open files: each connection and each log segment takes one.

use rustix::process::{Resource, getrlimit};

use super::{Finding, Severity};

const SETTING: &str = "open files";
const REASON: &str = "each connection and log segment takes one";
/// Ten thousand clients and as many files.
const WANTED: u64 = 20_000;

/// The hard limit counts: the node raises the soft one to it at start.
pub fn check() -> Finding {
    judge(getrlimit(Resource::Nofile).maximum)
}

fn judge(limit: Option<u64>) -> Finding {
    let found = limit.map_or("unlimited".to_owned(), |limit| format!("{limit} allowed"));
    let finding = Finding::fine(SETTING, found, format!("{WANTED}"), REASON);
    match limit {
        Some(limit) if limit < WANTED => finding.but(
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
