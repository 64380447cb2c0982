//! How much memory there is for this process, and whether the node's buffers fit into it.
//!
//! A container or a service (`MemoryMax=`) may have far less than the machine: the limits of its control group count, and of
//! every group around it. The kernel kills what grows beyond them. So the settings that bound the node's buffers are held
//! against the least of these limits before anything is made: at most half of it may go into buffers, since the same limit
//! covers the program, its tables, and the page cache, out of which consumers are served. Sizes that nobody set are made
//! smaller, and that is said; sizes that somebody set are refused.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use crate::config::{Config, Source};
use crate::io;
use crate::tuning::settings::memlock;

/// The least that is worth having for frames on their way: one of the greatest size.
const FRAMES_LEN_MIN: u64 = 16 << 20;

const PUTS_KEY: &str = "limits.put_inflight_bytes";
const FRAMES_KEY: &str = "limits.frame_bytes_in_progress";

/// The least limit that holds for this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// Bytes.
    pub len: u64,
    /// The file that says so; none: the machine has no more.
    pub file: Option<PathBuf>,
}

impl MemoryLimit {
    /// Asks the kernel.
    pub fn of_this_process() -> MemoryLimit {
        let info = rustix::system::sysinfo();
        MemoryLimit::below(info.totalram * u64::from(info.mem_unit.max(1)), Path::new("/"))
    }

    /// That of a machine with so much memory and this root directory.
    fn below(machine: u64, root: &Path) -> MemoryLimit {
        let mut limit = MemoryLimit { len: machine, file: None };
        for (group, top) in own_groups(root) {
            // From the own group up: each limits what is below it.
            for dir in group.ancestors().take_while(|dir| dir.starts_with(&top)) {
                // Above "high" a process is held up until it gives memory back, which buffers never do.
                for file in ["memory.max", "memory.high", "memory.limit_in_bytes"].map(|name| dir.join(name)) {
                    // No file: not set for this group; a word instead of a number: no limit.
                    let len = fs::read_to_string(&file).ok().and_then(|text| text.trim().parse().ok());
                    if let Some(len) = len.filter(|len| *len < limit.len) {
                        limit = MemoryLimit { len, file: Some(file) };
                    }
                }
            }
        }
        limit
    }
}

impl fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = self.len >> 20;
        match &self.file {
            Some(file) => write!(f, "{mib} MiB that {} allows", file.display()),
            None => write!(f, "{mib} MiB of this machine"),
        }
    }
}

/// Bytes of memory that count: the machine's, or what a control group allows if that is less.
pub fn memory_len() -> u64 {
    MemoryLimit::of_this_process().len
}

/// The groups of this process that may limit memory, of either version, each with the top of what is seen of its hierarchy.
/// Source: cgroups(7), proc(5).
fn own_groups(root: &Path) -> Vec<(PathBuf, PathBuf)> {
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    let (groups, mounts) = (read("proc/self/cgroup"), read("proc/self/mountinfo"));
    let mut found = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else { continue };
        let is_second = controllers.is_empty();
        if !is_second && !controllers.split(',').any(|controller| controller == "memory") {
            continue;
        }
        let of_this = |mount: &Mount| match is_second {
            true => mount.kind == "cgroup2",
            false => mount.kind == "cgroup" && mount.options.split(',').any(|option| option == "memory"),
        };
        let Some(mount) = mounts.lines().filter_map(Mount::parse).find(of_this) else { continue };
        let top = root.join(mount.point.trim_start_matches('/'));
        // In a container the mount may show a part of the hierarchy: the rest of the path is not there to be seen.
        let below = Path::new(path).strip_prefix(&mount.root).unwrap_or(Path::new(""));
        let is_seen = below.components().all(|part| matches!(part, std::path::Component::Normal(_)));
        found.push((if is_seen { top.join(below) } else { top.clone() }, top));
    }
    found
}

/// A line of `/proc/self/mountinfo`.
struct Mount {
    /// What of the file system is mounted.
    root: String,
    point: String,
    kind: String,
    /// Those of the file system.
    options: String,
}

impl Mount {
    fn parse(line: &str) -> Option<Mount> {
        let (mount, file_system) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let mut file_system = file_system.split(' ');
        Some(Mount {
            root: unescaped(mount.next()?),
            point: unescaped(mount.next()?),
            kind: file_system.next()?.to_owned(),
            options: file_system.nth(1)?.to_owned(),
        })
    }
}

/// Blanks in paths are written as `\040` there.
fn unescaped(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
}

/// Settings whose buffers fit into `limit` with this mode of appending, and what was made smaller for that, one line each.
///
/// # Errors
/// They do not fit as somebody set them: the line says the keys, the limit, and what to do.
pub fn fit(
    mut config: Config,
    append: io::AppendMode,
    limit: &MemoryLimit,
    executors: usize,
) -> Result<(Config, Vec<String>), String> {
    let fixed = executors as u64 * memlock::IO_MEMORY_LEN as u64
        + if append == io::AppendMode::Dma { io::LOG_TAIL_LEN } else { 0 };
    let (puts, frames) = (config.limits.put_inflight_bytes, config.limits.frame_bytes_in_progress);
    let share = limit.len / 2;
    if fixed + puts + frames <= share {
        return Ok((config, Vec::new()));
    }
    let is_default = |key: &str| config.settings().iter().any(|set| set.key == key && set.source == Source::Default);
    let left = share.saturating_sub(fixed);
    let puts_min = u64::from(config.limits.max_message_size);
    let fewer_puts = if is_default(PUTS_KEY) { puts.min((left / 4).max(puts_min)) } else { puts };
    let fewer_frames = match is_default(FRAMES_KEY) {
        true => frames.min(left.saturating_sub(fewer_puts).max(FRAMES_LEN_MIN)),
        false => frames,
    };
    if fixed + fewer_puts + fewer_frames > share {
        return Err(format!(
            "{PUTS_KEY} = {fewer_puts}, {FRAMES_KEY} = {fewer_frames} and {} MiB of other buffers are more than half of the \
             {limit}; lower them, use fewer cores, or raise the limit (systemd: MemoryMax=)",
            fixed >> 20
        ));
    }
    let changes = [(PUTS_KEY, puts, fewer_puts), (FRAMES_KEY, frames, fewer_frames)];
    let smaller = changes.iter().filter(|(_, before, after)| after < before);
    let notices = smaller.map(|(key, before, after)| {
        format!("{key} = {after} instead of {before}, the default: buffers may take half of the {limit}")
    });
    let notices = notices.collect();
    (config.limits.put_inflight_bytes, config.limits.frame_bytes_in_progress) = (fewer_puts, fewer_frames);
    Ok((config, notices))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Overrides;

    const GIB: u64 = 1 << 30;
    const MIB: u64 = 1 << 20;

    /// A root directory with these files.
    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    /// The limit of a machine with 8 GiB, and the file that sets it.
    fn limit(files: &[(&str, &str)]) -> (u64, Option<String>) {
        let root = tree(files);
        let MemoryLimit { len, file } = MemoryLimit::below(8 * GIB, root.path());
        (len, file.map(|file| file.strip_prefix(root.path()).unwrap().to_str().unwrap().to_owned()))
    }

    const SECOND: (&str, &str) =
        ("proc/self/mountinfo", "26 23 0:24 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n");

    #[test]
    fn the_least_limit_of_the_own_group_and_those_around_it_counts() {
        let own = ("proc/self/cgroup", "0::/system.slice/kerolox.service\n");
        let at = |path: &str| format!("sys/fs/cgroup/system.slice/{path}");
        let (service, slice) = (at("kerolox.service/memory.max"), at("memory.max"));
        let high = at("kerolox.service/memory.high");
        assert_eq!(limit(&[own, SECOND, (&service, "max\n")]), (8 * GIB, None));
        assert_eq!(limit(&[own, SECOND, (&service, "1073741824\n")]), (GIB, Some(service.clone())));
        assert_eq!(
            limit(&[own, SECOND, (&service, "max\n"), (&slice, "2147483648\n")]),
            (2 * GIB, Some(slice.clone()))
        );
        let both = [own, SECOND, (&service, "1073741824\n"), (&slice, "536870912\n")];
        assert_eq!(limit(&both), (GIB / 2, Some(slice)));
        let both = [own, SECOND, (&service, "1073741824\n"), (&high, "805306368\n")];
        assert_eq!(limit(&both), (768 * MIB, Some(high)));
        // Of another service.
        assert_eq!(limit(&[own, SECOND, (&at("other.service/memory.max"), "4096\n")]), (8 * GIB, None));
    }

    #[test]
    fn groups_of_the_first_version_count_and_their_word_for_no_limit() {
        let groups = ("proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/jobs/7\n3:cpuset:/\n0::/\n");
        let mounts = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
                      34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset\n\
                      35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,cpu,memory\n\
                      41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
        let mounts = ("proc/self/mountinfo", mounts);
        let job = "sys/fs/cgroup/memory/jobs/7/memory.limit_in_bytes";
        let top = ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(limit(&[groups, mounts, top, (job, "268435456\n")]), (256 * MIB, Some(job.to_owned())));
        assert_eq!(limit(&[groups, mounts, top, (job, "9223372036854771712\n")]), (8 * GIB, None));
    }

    #[test]
    fn in_a_container_the_mounted_part_of_the_hierarchy_counts() {
        let mounts = "26 23 0:24 /docker/ab\\040c /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
        let own = [("proc/self/cgroup", "0::/docker/ab c\n"), ("proc/self/mountinfo", mounts)];
        let file = "sys/fs/cgroup/memory.max";
        assert_eq!(limit(&[own[0], own[1], (file, "1073741824\n")]), (GIB, Some(file.to_owned())));
        // Beside the root of its namespace, or elsewhere than what is mounted.
        for path in ["0::/../outside\n", "0::/elsewhere\n"] {
            let groups = ("proc/self/cgroup", path);
            assert_eq!(limit(&[groups, SECOND, (file, "1073741824\n")]).0, GIB, "{path}");
            assert_eq!(limit(&[groups, own[1], (file, "1073741824\n")]).0, GIB, "{path}");
        }
    }

    #[test]
    fn without_groups_or_with_nonsense_the_machine_counts() {
        assert_eq!(limit(&[]), (8 * GIB, None));
        assert_eq!(
            limit(&[("proc/self/cgroup", "what\n0::\n"), ("proc/self/mountinfo", "1 2 - \n- -\n")]),
            (8 * GIB, None)
        );
        let found = MemoryLimit::of_this_process();
        assert!(found.len > 16 * MIB, "{found}");
    }

    fn config(text: &str) -> Config {
        Config::from_text("k.toml".as_ref(), text, Overrides::default()).unwrap()
    }

    fn fitted(text: &str, len: u64) -> Result<(u64, u64, usize), String> {
        fitted_for(io::AppendMode::Buffered, text, len)
    }

    fn fitted_for(append: io::AppendMode, text: &str, len: u64) -> Result<(u64, u64, usize), String> {
        let limit = MemoryLimit { len, file: Some("/sys/fs/cgroup/x/memory.max".into()) };
        let (config, notices) = fit(config(text), append, &limit, 2)?;
        Ok((config.limits.put_inflight_bytes, config.limits.frame_bytes_in_progress, notices.len()))
    }

    #[test]
    fn defaults_shrink_with_a_notice_until_nothing_useful_is_left() {
        assert_eq!(fitted("", 8 * GIB), Ok((64 * MIB, 512 * MIB, 0)));
        assert_eq!(fitted("", GIB), Ok((64 * MIB, 446 * MIB, 1)));
        assert_eq!(fitted("", 128 * MIB), Ok((31 * MIB / 2, 93 * MIB / 2, 2)));
        let why = fitted("", 40 * MIB).unwrap_err();
        assert!(why.contains("half of the 40 MiB that /sys/fs/cgroup/x/memory.max allows"), "{why}");
        // The newest part of the log is kept in memory then.
        assert_eq!(fitted_for(io::AppendMode::Dma, "", GIB), Ok((64 * MIB, 382 * MIB, 1)));
    }

    #[test]
    fn what_somebody_set_is_kept_or_refused() {
        let set = "limits.frame_bytes_in_progress = \"300MiB\"\n";
        assert_eq!(fitted(set, GIB), Ok((64 * MIB, 300 * MIB, 0)));
        let why = fitted(set, 512 * MIB).unwrap_err();
        assert!(why.contains("limits.frame_bytes_in_progress = 314572800") && why.contains("MemoryMax="), "{why}");
        let puts = "limits.put_inflight_bytes = \"256MiB\"\n";
        assert!(fitted(puts, 512 * MIB).is_err());
        assert_eq!(fitted(puts, GIB), Ok((256 * MIB, 254 * MIB, 1)));
    }
}
