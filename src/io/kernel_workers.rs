//! The kernel's own threads behind io_uring (`iou-wrk-…`): what an operation would wait for is carried out there.
//!
//! Where they run: since Linux 6.2 where the thread that submits has been pinned to, as far as that meets the cores given
//! here; before, on every core of the control group, unless some are given here.

use std::ffi::c_void;
use std::io;

use rustix::io_uring::{IoringRegisterOp, io_uring_params, io_uring_register, io_uring_setup};

/// Entries of a ring that carries nothing.
const RING_LEN: u32 = 2;

/// Keeps the workers that the kernel makes for the calling thread to `cores`. Without this, kernels before 6.2 let them run
/// wherever the control group does, and the affinity that the process was started with does not count.
///
/// Blocks for two short system calls. Holds for every ring of the thread, those that it has and those that it makes.
///
/// # Errors
/// The kernel is older than 5.14, or the control group no longer has one of the cores (`EINVAL`); there is no ring to ask on.
pub fn keep_kernel_workers_to(cores: &[usize]) -> io::Result<()> {
    // Whom a runtime's rings belong to cannot be asked, and need not: the kernel notes this of the thread, not of the ring.
    let mut params = io_uring_params::default();
    // SAFETY: no flag is set, so no descriptor is looked at; nothing is ever submitted, and the ring is closed on return.
    let ring = unsafe { io_uring_setup(RING_LEN, &mut params) }?;
    let mask = mask(cores);
    let len = size_of_val(&*mask) as u32;
    // SAFETY: the kernel copies `len` bytes, which `mask` has, before the call returns.
    unsafe { io_uring_register(&ring, IoringRegisterOp::RegisterIowqAff, mask.as_ptr().cast::<c_void>(), len) }?;
    Ok(())
}

/// A bit a core, in words, as the kernel has them.
fn mask(cores: &[usize]) -> Vec<usize> {
    const BITS: usize = usize::BITS as usize;
    let mut mask = vec![0; cores.iter().max().map_or(0, |last| last / BITS + 1)];
    for core in cores {
        mask[core / BITS] |= 1 << (core % BITS);
    }
    mask
}

#[cfg(test)]
mod tests {
    use std::fs;

    use glommio::io::BufferedFile;

    use super::*;
    use crate::io::test_executor::on_executor;

    fn allowed(task: &str) -> String {
        let status = fs::read_to_string(format!("/proc/self/task/{task}/status")).unwrap();
        status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim().to_owned()
    }

    fn kernel_is_before(major: u32, minor: u32) -> bool {
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        let mut numbers = release.split(['.', '-']).map(|number| number.parse().unwrap_or(0));
        (numbers.next().unwrap(), numbers.next().unwrap_or(0)) < (major, minor)
    }

    /// On a machine of one core it tells nothing.
    #[test]
    fn a_worker_runs_on_no_other_core_though_its_thread_may() {
        let tid = rustix::thread::gettid().to_string();
        let all = allowed(&tid);
        let last = all.rsplit([',', '-']).next().unwrap().to_owned();
        let dir = tempfile::tempdir().unwrap();
        let workers = on_executor(async {
            match keep_kernel_workers_to(&[last.parse().unwrap()]) {
                // What this kernel cannot do is not tested on it.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput && kernel_is_before(5, 14) => return None,
                kept => kept.unwrap(),
            }
            let file = BufferedFile::create(dir.path().join("synced")).await.unwrap();
            file.write_at(vec![1; 4096], 0).await.unwrap();
            file.fdatasync().await.unwrap();
            let tasks = fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().file_name());
            let names = tasks.map(|task| task.into_string().unwrap());
            let of_this = format!("iou-wrk-{tid}\n");
            let is_worker = |task: &String| {
                fs::read_to_string(format!("/proc/self/task/{task}/comm")).is_ok_and(|name| name == of_this)
            };
            Some(names.filter(is_worker).map(|task| allowed(&task)).collect::<Vec<_>>())
        });
        let Some(workers) = workers else { return eprintln!("skipped: Linux before 5.14 keeps no workers to cores") };
        assert!(!workers.is_empty() && workers.iter().all(|cores| *cores == last), "{workers:?} of {all}");
    }

    #[test]
    fn a_core_is_a_bit_of_the_word_that_it_falls_into() {
        assert_eq!(mask(&[0, 2]), [0b101]);
        assert_eq!(mask(&[63, 64, 130]), [1 << 63, 1, 0b100]);
        assert!(mask(&[]).is_empty());
    }
}
