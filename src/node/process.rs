//! What the kernel tells of this process: memory, descriptors, the processor time of each thread. Read for the metrics page,
//! on its thread.

use std::fs;
use std::path::Path;

/// Bytes of resident memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// The node's own.
    pub anon: u64,
    /// Mapped files.
    pub file: u64,
    pub shmem: u64,
}

impl Memory {
    pub fn total(&self) -> u64 {
        self.anon + self.file + self.shmem
    }

    pub fn read() -> Option<Memory> {
        Memory::parse(&fs::read_to_string("/proc/self/status").ok()?)
    }

    fn parse(status: &str) -> Option<Memory> {
        let of = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
            Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
        };
        Some(Memory { anon: of("RssAnon")?, file: of("RssFile")?, shmem: of("RssShmem")? })
    }
}

/// One thread's share of the processors so far, in seconds.
#[derive(Clone, Debug, PartialEq)]
pub struct ThreadTimes {
    pub tid: i32,
    /// Its name, as far as the kernel keeps it.
    pub name: String,
    pub cpu_s: f64,
    /// Ready to run, while the host ran others; none if the kernel does not count it.
    pub wait_s: Option<f64>,
}

/// Those of the threads that are there, but for the kernel's own, which come and go with its work.
pub fn thread_times() -> Vec<ThreadTimes> {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    // What ends while it is looked at is left out.
    tasks.filter_map(|task| times_of(&task.path())).filter(|thread| !thread.name.starts_with("iou-")).collect()
}

fn times_of(task: &Path) -> Option<ThreadTimes> {
    let read = |name: &str| fs::read_to_string(task.join(name)).ok();
    let tid = task.file_name()?.to_str()?.parse().ok()?;
    let name = read("comm")?.trim_end().to_owned();
    let times = read("schedstat").and_then(|text| from_schedstat(&text));
    let (cpu_s, wait_s) = times.or_else(|| Some((from_stat(&read("stat")?)?, None)))?;
    Some(ThreadTimes { tid, name, cpu_s, wait_s })
}

/// `ns running, ns waiting, slices`. All zeros: the kernel does not count.
fn from_schedstat(text: &str) -> Option<(f64, Option<f64>)> {
    let mut numbers = text.split_whitespace().map(|number| number.parse::<u64>().ok());
    let (running, waiting) = (numbers.next()??, numbers.next()??);
    (running > 0).then_some((running as f64 / 1e9, Some(waiting as f64 / 1e9)))
}

/// User and system time, the 14th and 15th field, in ticks. The second field is a name that may hold anything.
fn from_stat(text: &str) -> Option<f64> {
    let mut behind_name = text.rsplit_once(')')?.1.split_whitespace().skip(11).map(|ticks| ticks.parse::<u64>().ok());
    let ticks = behind_name.next()?? + behind_name.next()??;
    Some(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Open file descriptors, and how many there may be.
pub fn descriptors() -> Option<(u64, u64)> {
    let open = fs::read_dir("/proc/self/fd").ok()?.count() as u64;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    Some((open, limit.unwrap_or(u64::MAX)))
}

/// Processor time of the whole process, those threads included that have ended, in seconds.
pub fn cpu_s() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_writes_is_understood() {
        let status =
            "Name:\tkerolox\nVmRSS:\t    3000 kB\nRssAnon:\t    1024 kB\nRssFile:\t 4 kB\nRssShmem:\t       0 kB\n";
        assert_eq!(Memory::parse(status), Some(Memory { anon: 1 << 20, file: 4096, shmem: 0 }));
        assert_eq!(Memory::parse("RssAnon:\t1 kB\n"), None);
        assert_eq!(from_schedstat("1500000000 250000000 7\n"), Some((1.5, Some(0.25))));
        assert_eq!(from_schedstat("0 0 0\n"), None);
        let stat = "7 (a ) name) S 1 7 7 0 -1 4194624 1 0 0 0 150 50 0 0 20 0 1 0";
        let seconds = 200.0 / rustix::param::clock_ticks_per_second() as f64;
        assert_eq!(from_stat(stat), Some(seconds));
    }

    #[test]
    fn this_process_has_threads_memory_and_descriptors() {
        std::thread::Builder::new()
            .name("looked-at".into())
            .spawn(|| {
                let times = thread_times();
                assert!(times.iter().any(|of| of.name == "looked-at"), "{times:?}");
            })
            .unwrap()
            .join()
            .unwrap();
        assert!(Memory::read().unwrap().total() > 0);
        let (open, limit) = descriptors().unwrap();
        assert!(open > 2 && limit > open);
        assert!(cpu_s() > 0.0);
    }
}
