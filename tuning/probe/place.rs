//! Where a probe measured: the file system, the device below it, the machine.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::io::disk_usage;

/// Files of these are in memory and never on stable storage.
const IN_MEMORY: [&str; 4] = ["tmpfs", "ramfs", "devtmpfs", "hugetlbfs"];
/// Files of these are on another machine, or wherever a program puts them.
const REMOTE: [&str; 8] = ["nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "virtiofs", "fuse"];

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The folder that was asked for.
    pub dir: PathBuf,
    /// Such as `ext4`.
    pub file_system: String,
    /// What is mounted, and where.
    pub source: String,
    pub mounted_at: PathBuf,
    pub mount_options: String,
    /// What the kernel says of the device's own cache: `write back` needs flushes, `write through` has none or hides it.
    pub write_cache: Option<String>,
    /// Bytes of the whole file system, and how many a user may still take.
    pub size: u64,
    pub available: u64,
    /// Does it know access past the page cache?
    pub direct: bool,
    pub kernel: String,
    /// Cores that this process may use.
    pub cores: u32,
    /// Load of the last minute when the probe began, in hundredths.
    pub load_percent: u32,
}

impl Place {
    /// Looks at `dir`, which is there. `direct` is found out by the probe.
    pub fn look(dir: &Path) -> io::Result<Place> {
        let dir = dir.canonicalize()?;
        let usage = disk_usage(&dir)?;
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let mount = mount_of(&mounts, &dir).unwrap_or_default();
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load = load.split(' ').next().and_then(|load| load.parse::<f64>().ok()).unwrap_or_default();
        Ok(Place {
            file_system: mount.file_system,
            source: mount.source,
            mounted_at: mount.at,
            mount_options: mount.options,
            write_cache: write_cache(&mount.device),
            size: usage.used + usage.available,
            available: usage.available,
            direct: false,
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            cores: std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32),
            load_percent: (load * 100.0) as u32,
            dir,
        })
    }

    pub fn is_in_memory(&self) -> bool {
        IN_MEMORY.contains(&self.file_system.as_str())
    }

    pub fn is_remote(&self) -> bool {
        REMOTE.iter().any(|name| self.file_system == *name || self.file_system.starts_with("fuse."))
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Mount {
    /// `major:minor`.
    device: String,
    at: PathBuf,
    options: String,
    file_system: String,
    source: String,
}

/// The mount that holds `dir`: of those above it the longest, of several at one place the last. Source: proc(5).
fn mount_of(mountinfo: &str, dir: &Path) -> Option<Mount> {
    let mounts = mountinfo.lines().filter_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let before: Vec<_> = before.split(' ').collect();
        let after: Vec<_> = after.split(' ').collect();
        let at = PathBuf::from(unescaped(before.get(4)?));
        Some(Mount {
            device: (*before.get(2)?).to_owned(),
            at,
            options: format!("{},{}", before.get(5)?, after.get(2).unwrap_or(&"")),
            file_system: (*after.first()?).to_owned(),
            source: unescaped(after.get(1)?),
        })
    });
    mounts.filter(|mount| dir.starts_with(&mount.at)).max_by_key(|mount| mount.at.as_os_str().len())
}

/// Spaces and the like stand there as three octal digits.
fn unescaped(text: &str) -> String {
    ["\\040", "\\011", "\\012"]
        .iter()
        .zip([" ", "\t", "\n"])
        .fold(text.to_owned(), |text, (code, c)| text.replace(code, c))
        .replace("\\134", "\\")
}

/// Of the whole device that a partition lies on.
fn write_cache(device: &str) -> Option<String> {
    let device = fs::canonicalize(Path::new("/sys/dev/block").join(device)).ok()?;
    let places = [device.join("queue/write_cache"), device.parent()?.join("queue/write_cache")];
    places.iter().find_map(|path| fs::read_to_string(path).ok()).map(|text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
23 22 0:20 / /dev/shm rw - tmpfs tmpfs rw,size=24683652k
31 22 259:1 /sub /data\\040one rw,noatime - xfs /dev/nvme0n1p1 rw
32 31 259:2 / /data\\040one rw,noatime - ext4 /dev/nvme1n1 rw
";

    #[test]
    fn the_nearest_mount_above_a_folder_holds_it() {
        let of = |dir: &str| mount_of(MOUNTS, Path::new(dir)).unwrap();
        assert_eq!((of("/var/lib").file_system.as_str(), of("/var/lib").device.as_str()), ("ext4", "254:0"));
        assert_eq!(of("/dev/shm/x").file_system, "tmpfs");
        assert_eq!(of("/dev/shmother").file_system, "ext4");
        let last = of("/data one/store");
        assert_eq!((last.source.as_str(), last.options.as_str()), ("/dev/nvme1n1", "rw,noatime,rw"));
        assert_eq!(last.at, Path::new("/data one"));
        assert!(mount_of("", Path::new("/")).is_none() && mount_of("nonsense\n1 2 - x", Path::new("/")).is_none());
    }

    #[test]
    fn this_machine_tells_where_its_folders_lie() {
        let place = Place::look(Path::new("/dev/shm")).unwrap();
        assert!(place.is_in_memory(), "{place:?}");
        let dir = tempfile::tempdir().unwrap();
        let place = Place::look(dir.path()).unwrap();
        assert!(place.cores > 0 && !place.kernel.is_empty() && place.size >= place.available, "{place:?}");
    }
}
