//! io_uring: every socket and file of the node goes through it.

use std::io;

use super::Setting;
use crate::tuning::{Change, Finding, Host, Severity};

pub(super) const SETTING: Setting =
    Setting { name: "io_uring", reason: "every socket and file goes through it; there is no second way", look };
const DISABLED: &str = "/proc/sys/kernel/io_uring_disabled";
const SETUP: libc::c_long = 425;
/// Length of the kernel's `struct io_uring_params`.
const PARAMS_LEN: usize = 120;

fn look(host: &Host) -> io::Result<Vec<Finding>> {
    // Kernels before 6.6 cannot switch it off.
    Ok(vec![judge(usable(), host.value(DISABLED)?.as_deref().unwrap_or("0"))])
}

/// Makes a small ring and lets it go again.
fn usable() -> io::Result<()> {
    let mut params = [0u8; PARAMS_LEN];
    // SAFETY: the kernel reads and writes the bytes of `io_uring_params`; the descriptor is closed right after.
    let fd = unsafe { libc::syscall(SETUP, 4 as libc::c_long, params.as_mut_ptr()) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it was just opened and nobody else knows it.
    unsafe { libc::close(fd as libc::c_int) };
    Ok(())
}

fn judge(usable: io::Result<()>, disabled: &str) -> Finding {
    let finding = |found: &str| SETTING.fine("", found, "usable by the node");
    let switch_on = || vec![Change::new(DISABLED, disabled, "0")];
    let error = match usable {
        Ok(()) if disabled == "1" => {
            // Not for the node, if that is what runs this.
            let why = "usable by this process, but not by users without privileges";
            return finding(why).with_changes(Severity::Hint, switch_on());
        }
        Ok(()) => return finding("usable"),
        Err(error) => error,
    };
    let (found, fix) = match (error.raw_os_error(), disabled) {
        (Some(libc::ENOSYS), _) => ("this kernel has none".to_owned(), "use Linux 5.15 or newer"),
        (_, "2") => return finding("it is switched off").with_changes(Severity::Refusal, switch_on()),
        (_, "1") => {
            return finding("only privileged processes may use it").with_changes(Severity::Refusal, switch_on());
        }
        (Some(libc::EPERM | libc::EACCES), _) => (
            "a sandbox forbids it".to_owned(),
            "allow the io_uring system calls (seccomp profile of the container, SystemCallFilter of systemd)",
        ),
        (Some(libc::ENOMEM), _) => (
            "its rings may not be locked in memory".to_owned(),
            "raise the limit of locked memory (systemd: LimitMEMLOCK=, shell: ulimit -l), or end other programs of this user",
        ),
        (Some(libc::EMFILE | libc::ENFILE), _) => (
            "no file descriptor is left for it".to_owned(),
            "raise the limit of open files (systemd: LimitNOFILE=, shell: ulimit -Hn)",
        ),
        _ => (format!("it cannot be used: {error}"), "look at the kernel's log"),
    };
    finding(&found).by_hand(Severity::Refusal, fix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_the_tests_run_io_uring_is_usable() {
        let finding = judge(usable(), "0");
        assert_eq!(finding.severity, Severity::Fine, "{finding}");
    }

    #[test]
    fn what_the_kernel_switched_off_can_be_switched_on_and_a_sandbox_cannot() {
        let refused = |code| Err(io::Error::from_raw_os_error(code));
        let finding = judge(refused(libc::EPERM), "2");
        assert_eq!((finding.severity, &*finding.fix), (Severity::Refusal, "sysctl -w kernel.io_uring_disabled=0"));
        let finding = judge(refused(libc::EPERM), "0");
        assert!(finding.severity == Severity::Refusal && finding.changes.is_empty(), "{finding}");
        assert!(finding.fix.contains("seccomp"), "{finding}");
        let finding = judge(Ok(()), "1");
        assert_eq!((finding.severity, finding.changes[0].from.as_str()), (Severity::Hint, "1"));
    }
}
