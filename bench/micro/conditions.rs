//! The conditions of a run, printed before its figures: a figure without them cannot be compared with anything.

use std::fs;
use std::path::{Path, PathBuf};

/// Prints one line a condition to standard error. `dir`: where the run writes its files, if it writes any.
pub fn print(dir: Option<&Path>) {
    let build = if cfg!(debug_assertions) { "DEBUG, its figures mean nothing" } else { "optimised (profile bench)" };
    eprintln!("conditions");
    eprintln!("  cpu       {}", cpu());
    eprintln!("  kernel    {}", first_line("/proc/sys/kernel/osrelease"));
    eprintln!("  load      {} (1, 5, 15 minutes; other work makes every figure worse)", first_line("/proc/loadavg"));
    if let Some(dir) = dir {
        eprintln!("  files     {} on {}", dir.display(), file_system(dir));
    }
    eprintln!("  build     {build}");
    eprintln!("  revision  {} (of the tree's HEAD; changes that are not committed do not show)", revision());
}

fn cpu() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or(": unknown");
    let count = core_affinity::get_core_ids().map_or(0, |cores| cores.len());
    format!("{}, {count} cores usable", model.trim_start_matches([' ', '\t', ':']))
}

/// The type and device of the mount that holds `dir`. Source: proc(5), mountinfo.
fn file_system(dir: &Path) -> String {
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mount = mounts.lines().filter_map(|line| {
        let (front, back) = line.split_once(" - ")?;
        let point = PathBuf::from(front.split(' ').nth(4)?);
        let (kind, device) = back.split_once(' ')?;
        dir.starts_with(&point).then(|| (point, format!("{kind} ({})", device.split(' ').next().unwrap_or_default())))
    });
    // Of nested mounts the longest holds it; of two on one point the later.
    mount.max_by_key(|(point, _)| point.components().count()).map_or("unknown".into(), |(_, text)| text)
}

/// What HEAD names, read from the repository's files.
fn revision() -> String {
    let git = Path::new(env!("CARGO_MANIFEST_DIR")).join(".git");
    let read = |name: &str| fs::read_to_string(git.join(name)).map(|text| text.trim().to_owned());
    let Ok(head) = read("HEAD") else { return "unknown".into() };
    let Some(branch) = head.strip_prefix("ref: ") else { return head };
    read(branch).unwrap_or_else(|_| {
        let packed = read("packed-refs").unwrap_or_default();
        let line = packed.lines().find_map(|line| line.strip_suffix(branch));
        line.map_or("unknown".into(), |revision| revision.trim().to_owned())
    })
}

fn first_line(path: &str) -> String {
    fs::read_to_string(path).ok().and_then(|text| text.lines().next().map(str::to_owned)).unwrap_or("unknown".into())
}
