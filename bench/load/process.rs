//! What a process has used so far, from /proc.

use std::fs;

use super::clock::SECOND;

/// Nanoseconds of processor time of a process, user and system, in steps of a clock tick (usually 10 ms).
///
/// `None` if there is no such process.
pub fn cpu(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of the program, in parentheses, may hold anything. Source: proc(5): utime and stime are 14 and 15.
    let after_name = stat.rsplit_once(')')?.1;
    let ticks: u64 = after_name.split_whitespace().skip(11).take(2).map(|part| part.parse::<u64>().unwrap_or(0)).sum();
    Some(ticks * (SECOND / rustix::param::clock_ticks_per_second()))
}

/// KiB of a process's own memory: neither page cache nor mapped files.
pub fn rss_anon_kib(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    line.trim().trim_end_matches("kB").trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory_and_uses_time() {
        let pid = std::process::id();
        assert!(rss_anon_kib(pid).unwrap() > 100);
        let before = cpu(pid).unwrap();
        let mut sum = 0_u64;
        while cpu(pid).unwrap() == before {
            sum = (0..100_000).fold(sum, |sum, number| std::hint::black_box(sum ^ number));
        }
        assert!(cpu(pid).unwrap() > before);
        assert_eq!(cpu(u32::MAX), None);
    }
}
