//! io_uring: every socket and file of the node goes through it.

use std::fs;
use std::io;

use super::{Finding, Severity};

const SETTING: &str = "io_uring";
const REASON: &str = "every socket and file goes through it; there is no second way";
const SETUP: libc::c_long = 425;
/// Length of the kernel's `struct io_uring_params`.
const PARAMS_LEN: usize = 120;

/// Makes a small ring and lets it go again.
pub fn check() -> Finding {
    let finding = |found: String| Finding::fine(SETTING, found, "usable by this process", REASON);
    let mut params = [0u8; PARAMS_LEN];
    // SAFETY: the kernel reads and writes the bytes of `io_uring_params`; the descriptor is closed right after.
    let fd = unsafe { libc::syscall(SETUP, 4 as libc::c_long, params.as_mut_ptr()) };
    if fd >= 0 {
        // SAFETY: it was just opened and nobody else knows it.
        unsafe { libc::close(fd as libc::c_int) };
        return finding("usable".into());
    }
    let error = io::Error::last_os_error();
    let disabled = fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    let (found, fix) = match (error.raw_os_error(), disabled.trim()) {
        (Some(libc::ENOSYS), _) => ("this kernel has none".to_owned(), "use Linux 5.15 or newer"),
        (_, "2") => ("it is switched off".to_owned(), "set sysctl kernel.io_uring_disabled=0"),
        (_, "1") => ("only privileged processes may use it".to_owned(), "set sysctl kernel.io_uring_disabled=0"),
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
    finding(found).but(Severity::Refusal, fix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_the_tests_run_io_uring_is_usable() {
        assert_eq!(check().severity, Severity::Fine, "{}", check());
    }
}
