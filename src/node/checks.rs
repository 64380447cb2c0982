//! What the machine must give before anything starts: cores, locked memory, io_uring, open files, free ports.

use std::fs;
use std::net::SocketAddr;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::error::NodeError;
use crate::net;

/// glommio registers three times an executor's `io_memory` with the kernel.
const IO_MEMORY_FACTOR: u64 = 3;

/// Cores that this process may run on, ascending.
pub fn usable_cores() -> Vec<usize> {
    let mut cores: Vec<usize> =
        core_affinity::get_core_ids().unwrap_or_default().into_iter().map(|core| core.id).collect();
    cores.sort_unstable();
    cores
}

/// Raises the limit of open files as far as it goes.
pub fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current < limit.maximum || limit.current.is_some() && limit.maximum.is_none() {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    }
}

/// Is there enough locked memory for `executors` with `io_memory` bytes each?
pub fn locked_memory(executors: usize, io_memory: usize) -> Result<(), NodeError> {
    if rustix::process::geteuid().is_root() || may_lock_all() {
        return Ok(());
    }
    let needed = executors as u64 * IO_MEMORY_FACTOR * io_memory as u64;
    match getrlimit(Resource::Memlock).current {
        Some(limit) if limit < needed => Err(NodeError::Host(format!(
            "too little locked memory: {limit} bytes allowed, {needed} needed; raise it (systemd: LimitMEMLOCK=, shell: ulimit -l {}) or use fewer cores",
            needed.div_ceil(1024)
        ))),
        _ => Ok(()),
    }
}

/// CAP_IPC_LOCK lifts the limit.
fn may_lock_all() -> bool {
    const CAP_IPC_LOCK: u64 = 14;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).is_some_and(|caps| caps >> CAP_IPC_LOCK & 1 == 1)
}

/// Does the kernel let this process use io_uring?
pub fn io_uring() -> Result<(), NodeError> {
    const SETUP: libc::c_long = 425;
    let mut params = [0u8; 120];
    // SAFETY: the kernel reads and writes the 120 bytes of `io_uring_params`; the descriptor is closed right after.
    let fd = unsafe { libc::syscall(SETUP, 4 as libc::c_long, params.as_mut_ptr()) };
    if fd >= 0 {
        // SAFETY: it was just opened and nobody else knows it.
        unsafe { libc::close(fd as libc::c_int) };
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    let disabled = fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    let why = match (error.raw_os_error(), disabled.trim()) {
        (Some(libc::ENOSYS), _) => "this kernel has none; use Linux 5.15 or newer".to_owned(),
        (_, "2") => "it is switched off; set sysctl kernel.io_uring_disabled=0".to_owned(),
        (_, "1") => "only privileged processes may use it; set sysctl kernel.io_uring_disabled=0".to_owned(),
        (Some(libc::EPERM | libc::EACCES), _) => {
            "a sandbox forbids it; allow the io_uring system calls (container seccomp profile, systemd SystemCallFilter)".to_owned()
        }
        _ => error.to_string(),
    };
    Err(NodeError::Host(format!("io_uring cannot be used: {why}")))
}

/// Are all ports free? Each with the setting that names it.
pub fn ports(addrs: &[(SocketAddr, &'static str)]) -> Result<(), NodeError> {
    addrs.iter().try_for_each(|(addr, key)| net::probe(*addr).map_err(|taken| NodeError::Port(taken, key)))
}

/// Bytes of memory that count: the machine's, or the control group's if that is less.
pub fn memory_len() -> u64 {
    let info = rustix::system::sysinfo();
    let machine = u64::from(info.totalram) * u64::from(info.mem_unit.max(1));
    let group = fs::read_to_string("/sys/fs/cgroup/memory.max").ok().and_then(|text| text.trim().parse().ok());
    group.map_or(machine, |limit: u64| limit.min(machine))
}
