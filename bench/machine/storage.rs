//! The mount that holds a directory and the block devices below it, found as the tuner finds them.

use std::fmt::Write;
use std::path::Path;

use kerolox::tuning::Host;

use super::{Device, Looker, Storage};

/// Looks at the mount of `dir`, or of the nearest directory above it that exists.
pub(super) fn look(looker: &mut Looker, dir: &Path) -> Storage {
    let mut storage = Storage { dir: dir.to_owned(), ..Storage::default() };
    // Where a node would place its roles is nothing that its disk depends on.
    let host = Host::look(&looker.root, dir, 0, 0);
    if !looker.at(host.data()).exists() {
        let missing = host.data().display();
        looker.missed("store's directory", format_args!("{missing} is not there; what would hold it was looked at"));
    }
    let place = match host.place() {
        Ok(place) => place,
        Err(why) => {
            looker.missed("mount", why);
            return storage;
        }
    };
    let (kind, source) = (&place.mount.file_system, place.mount.source.display());
    if place.devices.is_empty() {
        looker.missed("block device", format_args!("{kind} is on none that /sys tells of ({source})"));
    }
    // What is on top first; the rest comes in whatever order a directory has, and two runs of one host must agree.
    let mut devices: Vec<_> = place.devices.iter().collect();
    devices.sort_by_key(|device| (place.top.as_ref() != Some(&device.name), &device.name));
    storage.devices = devices.into_iter().map(|device| look_at(looker, &device.name, device.below.clone())).collect();
    storage.file_system = Some(kind.clone());
    storage.mount_point = Some(place.mount.point.clone());
    storage.mount_options = Some(place.mount.options.join(","));
    storage.source = Some(source.to_string());
    storage
}

fn look_at(looker: &mut Looker, name: &str, mut below: Vec<String>) -> Device {
    below.sort_unstable();
    let file = |path: &str| format!("/sys/block/{name}/{path}");
    let scheduler = looker.choice(&format!("{name} scheduler"), file("queue/scheduler"));
    let write_cache = looker.text(&format!("{name} write cache"), file("queue/write_cache"));
    let nr_requests = looker.number(&format!("{name} nr_requests"), file("queue/nr_requests"));
    let rotational = looker.number::<u8>(&format!("{name} rotational"), file("queue/rotational")).map(|it| it == 1);
    // Virtual disks have no model, and that is no gap.
    let model = looker.peek(file("device/model")).or_else(|_| looker.peek(file("dm/name"))).ok();
    let mut told = model.unwrap_or_default();
    if !below.is_empty() {
        _ = write!(told, "{}on {}", if told.is_empty() { "" } else { " " }, below.join(" and "));
    }
    let model = Some(told).filter(|told| !told.is_empty());
    Device { name: name.to_owned(), model, scheduler, write_cache, nr_requests, rotational }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// A logical volume over a partition of an NVMe disk and a whole second disk.
    #[test]
    fn a_stacked_device_is_told_down_to_its_disks() {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let link = |to: &str, from: &str| {
            let from = dir.path().join(from);
            fs::create_dir_all(from.parent().unwrap()).unwrap();
            symlink(dir.path().join(to), from).unwrap();
        };
        put(
            "proc/self/mountinfo",
            "1 0 8:1 / / rw - ext4 /dev/sda rw\n2 1 253:1 / /data rw,noatime - xfs /dev/mapper/vg-data rw,logbufs=8\n",
        );
        fs::create_dir_all(dir.path().join("data/store")).unwrap();
        for disk in ["nvme0n1", "nvme1n1", "dm-1"] {
            put(&format!("sys/devices/{disk}/queue/write_cache"), "write back\n");
            put(&format!("sys/devices/{disk}/queue/nr_requests"), "1023\n");
            put(&format!("sys/devices/{disk}/queue/rotational"), "0\n");
            link(&format!("sys/devices/{disk}"), &format!("sys/block/{disk}"));
        }
        put("sys/devices/nvme0n1/queue/scheduler", "[none] mq-deadline\n");
        put("sys/devices/nvme1n1/queue/scheduler", "none [mq-deadline]\n");
        put("sys/devices/nvme0n1/device/model", "Fast Disk\n");
        put("sys/devices/nvme0n1/nvme0n1p2/partition", "2\n");
        put("sys/devices/dm-1/dm/name", "vg-data\n");
        link("sys/devices/nvme0n1/nvme0n1p2", "sys/devices/dm-1/slaves/nvme0n1p2");
        link("sys/devices/nvme1n1", "sys/devices/dm-1/slaves/nvme1n1");
        link("sys/devices/dm-1", "sys/dev/block/253:1");

        let mut looker = Looker::new(dir.path());
        let found = look(&mut looker, Path::new("/data/store"));
        assert_eq!(found.mount_options.as_deref(), Some("rw,noatime,logbufs=8"));
        assert_eq!((found.file_system.as_deref(), found.source.as_deref()), (Some("xfs"), Some("/dev/mapper/vg-data")));
        let told: Vec<_> = found.devices.iter().map(|it| (it.name.as_str(), it.model.as_deref())).collect();
        let volume = ("dm-1", Some("vg-data on nvme0n1 and nvme1n1"));
        assert_eq!(told, [volume, ("nvme0n1", Some("Fast Disk")), ("nvme1n1", None)]);
        assert_eq!(found.devices[1].scheduler.as_deref(), Some("none"));
        assert_eq!(found.devices[2].scheduler.as_deref(), Some("mq-deadline"));
        assert_eq!((found.devices[1].nr_requests, found.devices[1].rotational), (Some(1023), Some(false)));
        assert_eq!(looker.not_found.len(), 1, "{:?}", looker.not_found);
        assert!(looker.not_found[0].starts_with("dm-1 scheduler:"), "{:?}", looker.not_found);
    }

    #[test]
    fn a_mount_on_no_device_is_named_as_such() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("proc/self")).unwrap();
        fs::write(dir.path().join("proc/self/mountinfo"), "1 0 0:27 / / rw - tmpfs tmpfs rw\n").unwrap();
        let mut looker = Looker::new(dir.path());
        assert_eq!(look(&mut looker, Path::new("/")).devices, []);
        assert_eq!(looker.not_found, ["block device: tmpfs is on none that /sys tells of (tmpfs)"]);
    }

    #[test]
    fn a_directory_that_is_not_there_yet_stands_on_the_mount_above_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut looker = Looker::new(Path::new("/"));
        let found = look(&mut looker, &dir.path().join("not/yet"));
        assert!(found.file_system.is_some());
        assert!(looker.not_found.iter().any(|line| line.starts_with("store's directory:")), "{:?}", looker.not_found);
    }

    #[test]
    fn a_host_without_mounts_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let mut looker = Looker::new(dir.path());
        assert_eq!(look(&mut looker, Path::new("/")).file_system, None);
        assert!(looker.not_found.iter().any(|line| line.starts_with("mount:")), "{:?}", looker.not_found);
    }
}
