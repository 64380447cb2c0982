//! Where a probe measured: the file system, the device below it, the machine.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::io::disk_usage;
use crate::tuning::{Host, place};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Site {
    /// The folder that was asked for.
    pub dir: PathBuf,
    /// Such as `ext4`.
    pub file_system: String,
    /// What is mounted, and where.
    pub source: String,
    pub mounted_at: PathBuf,
    pub mount_options: String,
    /// What the kernel says of the disks' own caches: `write back` needs flushes, `write through` has none or hides it.
    pub write_cache: Option<String>,
    /// Bytes of the whole file system, and how many a user may still take.
    pub size: u64,
    pub available: u64,
    /// Does it know access past the page cache?
    pub direct: bool,
    pub kernel: String,
    /// Cores that this process may use.
    pub cores: u32,
    /// How many of them a quota of processor time leaves; 0: an older probe, which did not look.
    #[serde(default)]
    pub quota_cores: u32,
    /// Load of the last minute when the probe began, in hundredths.
    pub load_percent: u32,
}

impl Site {
    /// Looks at `dir`, which is there. `direct` is found out by the probe.
    pub fn look(dir: &Path) -> io::Result<Site> {
        let dir = dir.canonicalize()?;
        let usage = disk_usage(&dir)?;
        let host = Host::look(Path::new("/"), &dir, 0, 0);
        let found = host.place()?;
        let caches = found.disks().filter_map(|disk| {
            let cache = host.value(format!("/sys/block/{}/queue/write_cache", disk.name)).ok()??;
            Some(format!("{}: {cache}", disk.name))
        });
        let caches: Vec<_> = caches.collect();
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load = load.split(' ').next().and_then(|load| load.parse::<f64>().ok()).unwrap_or_default();
        Ok(Site {
            file_system: found.mount.file_system.clone(),
            source: found.mount.source.display().to_string(),
            mounted_at: found.mount.point.clone(),
            mount_options: found.mount.options.join(","),
            write_cache: (!caches.is_empty()).then(|| caches.join(", ")),
            size: usage.used + usage.available,
            available: usage.available,
            direct: false,
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            // As the node counts them, whose executors are pinned: a quota of processor time makes no core fewer.
            cores: core_affinity::get_core_ids().map_or(1, |cores| cores.len() as u32),
            quota_cores: std::thread::available_parallelism().map_or(0, |cores| cores.get() as u32),
            load_percent: (load * 100.0) as u32,
            dir,
        })
    }

    pub fn is_in_memory(&self) -> bool {
        place::is_in_memory(&self.file_system)
    }

    pub fn is_remote(&self) -> bool {
        place::is_remote(&self.file_system)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_tells_where_its_folders_lie() {
        let site = Site::look(Path::new("/dev/shm")).unwrap();
        assert!(site.is_in_memory() && site.mounted_at == Path::new("/dev/shm"), "{site:?}");
        let dir = tempfile::tempdir().unwrap();
        let site = Site::look(dir.path()).unwrap();
        assert!(site.cores > 0 && !site.kernel.is_empty() && site.size >= site.available, "{site:?}");
    }
}
