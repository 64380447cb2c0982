//! What a check says of a setting, and what would put it right.

use std::fmt;

use serde::Serialize;

/// What a setting that is not as wanted costs; the later, the worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// As wanted, or of no matter here.
    Fine,
    /// Costs a little, or only under some loads.
    Hint,
    /// Messages can be lost, something can fail, or a core can stand still for milliseconds. `--strict` refuses it.
    Warning,
    /// The node does not start.
    Refusal,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Severity::Fine => "ok",
            Severity::Hint => "hint",
            Severity::Warning => "WARN",
            Severity::Refusal => "REFUSED",
        })
    }
}

/// One setting of the host as it was found; some settings have one for each device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub setting: &'static str,
    /// The device or mount point; empty where there is one of it.
    pub of: String,
    pub severity: Severity,
    pub found: String,
    pub wanted: String,
    /// Why the node wants it.
    pub reason: &'static str,
    /// Commands or words; empty if nothing is to be done.
    pub fix: String,
    /// What `apply` writes; empty if nothing is to be done, or only by hand.
    pub changes: Vec<Change>,
}

impl Finding {
    /// It is not as wanted, and these changes put it right.
    pub(super) fn with_changes(mut self, severity: Severity, changes: Vec<Change>) -> Finding {
        self.fix = changes.iter().map(Change::command).collect::<Vec<_>>().join(" && ");
        self.severity = severity;
        self.changes = changes;
        self
    }

    /// It is not as wanted, and somebody has to put it right: it is no setting of the running kernel, or not ours to set.
    pub(super) fn by_hand(mut self, severity: Severity, fix: impl Into<String>) -> Finding {
        self.severity = severity;
        self.fix = fix.into();
        self
    }

    /// With a shorter way to say what is to be done.
    pub(super) fn told(mut self, fix: impl Into<String>) -> Finding {
        self.fix = fix.into();
        self
    }

    /// Setting and device.
    pub fn name(&self) -> String {
        if self.of.is_empty() { self.setting.to_owned() } else { format!("{} of {}", self.setting, self.of) }
    }
}

/// What is wrong and what to do, on one line.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.name(), self.found, self.fix)
    }
}

/// One file of `/proc/sys` or `/sys` that gets another value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// As on the machine, whatever tree is looked at.
    pub path: String,
    pub from: String,
    pub to: String,
    /// What `undo` writes, in this order: paths and values. Mostly the old value; but some files do not take it back, and
    /// some writes change other files on the way.
    pub back: Vec<(String, String)>,
}

impl Change {
    pub(super) fn new(path: impl Into<String>, from: impl Into<String>, to: impl Into<String>) -> Change {
        let (path, from, to) = (path.into(), from.into(), to.into());
        Change { back: vec![(path.clone(), from.clone())], path, from, to }
    }

    /// The shell's way to do it.
    pub fn command(&self) -> String {
        match self.path.strip_prefix("/proc/sys/") {
            Some(key) => format!("sysctl -w {}={}", key.replace('/', "."), self.to),
            None if self.to.contains(' ') => format!("echo '{}' > {}", self.to, self.path),
            None => format!("echo {} > {}", self.to, self.path),
        }
    }
}

/// The value that a file of `/proc` or `/sys` tells: where it lists choices, the one in brackets.
pub(super) fn value_of(text: &str) -> &str {
    let chosen = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    chosen.map_or(text.trim(), |(chosen, _)| chosen)
}

/// A word as a shell takes it.
pub(super) fn shell_word(text: &str) -> String {
    let plain = text.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c));
    if plain { text.to_owned() } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_list_of_choices_the_value_is_the_one_in_brackets() {
        assert_eq!(value_of("none [mq-deadline] kyber\n"), "mq-deadline");
        assert_eq!(value_of("[none]\n"), "none");
        assert_eq!(value_of("write back\n"), "write back");
        assert_eq!(value_of("60\n"), "60");
    }

    #[test]
    fn a_change_can_be_made_in_a_shell() {
        let change = |path: &str, to: &str| Change::new(path, "", to).command();
        assert_eq!(change("/proc/sys/vm/swappiness", "10"), "sysctl -w vm.swappiness=10");
        assert_eq!(change("/sys/block/sda/queue/scheduler", "none"), "echo none > /sys/block/sda/queue/scheduler");
        assert_eq!(
            change("/sys/block/sda/queue/write_cache", "write back"),
            "echo 'write back' > /sys/block/sda/queue/write_cache"
        );
    }

    #[test]
    fn odd_names_of_mounts_can_be_pasted() {
        assert_eq!(shell_word("/data"), "/data");
        assert_eq!(shell_word("/a b's"), r"'/a b'\''s'");
    }
}
