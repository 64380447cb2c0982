//! Where a directory lies: its mount, and the block devices below that, down to the disks.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::Host;

/// Mount and devices of a directory.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Place {
    pub mount: Mount,
    /// The device that the file system is on; none for one that spans devices, or is on none.
    pub top: Option<String>,
    /// Devices from what the file system is on down to the disks, each once.
    pub devices: Vec<Device>,
}

/// A line of `mountinfo`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Mount {
    pub point: PathBuf,
    pub file_system: String,
    /// Of the mount and of the file system, as the kernel tells them.
    pub options: Vec<String>,
    pub source: PathBuf,
    #[serde(skip)]
    number: String,
}

/// A whole block device, by its name in `/sys/block`: a disk, a logical volume, an array. Partitions stand for theirs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Device {
    pub name: String,
    /// What it is made of, one layer down; nothing for a disk.
    pub below: Vec<String>,
}

impl Place {
    /// Finds where the node's data lies, or would lie if its directory were there.
    ///
    /// # Errors
    /// The kernel's lists cannot be read; the error names the file.
    pub(super) fn find(host: &Host) -> io::Result<Place> {
        let dir = existing(host)?;
        let list = host.text("/proc/self/mountinfo")?.unwrap_or_default();
        // Of several on one directory the last is on top.
        let above = list.lines().filter_map(Mount::parse).filter(|mount| dir.starts_with(&mount.point));
        let mount = above
            .max_by_key(|mount| mount.point.as_os_str().len())
            .ok_or_else(|| io::Error::other(format!("/proc/self/mountinfo: no mount holds {}", dir.display())))?;
        let mut devices = Vec::new();
        let by_number = PathBuf::from(format!("/sys/dev/block/{}", mount.number));
        if host.exists(&by_number) {
            collect(host, &by_number, &mut devices)?;
        }
        let top = devices.first().map(|device| device.name.clone());
        if top.is_none() {
            for entry in mount.spanned(host)? {
                collect(host, &entry, &mut devices)?;
            }
        }
        Ok(Place { mount, top, devices })
    }

    pub fn disks(&self) -> impl Iterator<Item = &Device> {
        self.devices.iter().filter(|device| device.below.is_empty())
    }

    /// Everything that a device is made of, and itself.
    pub fn down_from<'a>(&'a self, device: &'a Device) -> Vec<&'a Device> {
        let mut found = vec![device];
        let mut next = 0;
        while let Some(device) = found.get(next) {
            let below: Vec<&Device> = self.devices.iter().filter(|other| device.below.contains(&other.name)).collect();
            for other in below {
                if !found.iter().any(|known| known.name == other.name) {
                    found.push(other);
                }
            }
            next += 1;
        }
        found
    }
}

impl Mount {
    fn parse(line: &str) -> Option<Mount> {
        let (head, tail) = line.split_once(" - ")?;
        let head: Vec<&str> = head.split(' ').collect();
        let tail: Vec<&str> = tail.split(' ').collect();
        let [_, _, number, _, point, options, ..] = head[..] else { return None };
        let [file_system, source, of_file_system, ..] = tail[..] else { return None };
        let mut all: Vec<String> = options.split(',').map(str::to_owned).collect();
        for option in of_file_system.split(',') {
            if !all.iter().any(|known| known == option) {
                all.push(option.to_owned());
            }
        }
        Some(Mount {
            point: unescaped(point),
            file_system: file_system.to_owned(),
            options: all,
            source: unescaped(source),
            number: number.to_owned(),
        })
    }

    pub fn has(&self, option: &str) -> bool {
        self.options.iter().any(|known| known == option)
    }

    /// Directories of `/sys` of the devices of a file system that spans devices: it has a number of its own, and names one
    /// of them.
    fn spanned(&self, host: &Host) -> io::Result<Vec<PathBuf>> {
        let real = host.real(&self.source).unwrap_or_else(|_| self.source.clone());
        let Some(name) = real.file_name().map(|name| name.to_string_lossy().into_owned()) else {
            return Ok(Vec::new());
        };
        for file_system in host.names("/sys/fs/btrfs")? {
            let devices = format!("/sys/fs/btrfs/{file_system}/devices");
            let names = host.names(&devices)?;
            if names.contains(&name) {
                return Ok(names.iter().map(|name| Path::new(&devices).join(name)).collect());
            }
        }
        let by_name = Path::new("/sys/class/block").join(name);
        Ok(if self.source.is_absolute() && host.exists(&by_name) { vec![by_name] } else { Vec::new() })
    }
}

/// Files of these are in memory and never on stable storage.
pub fn is_in_memory(file_system: &str) -> bool {
    ["tmpfs", "ramfs", "devtmpfs", "hugetlbfs"].contains(&file_system)
}

/// Files of these are on another machine, or wherever a program puts them.
pub fn is_remote(file_system: &str) -> bool {
    let names = ["nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "virtiofs", "fuse"];
    names.contains(&file_system) || file_system.starts_with("fuse.")
}

/// The data directory with all links followed; of one that is not there yet, the directory that it would be made in.
fn existing(host: &Host) -> io::Result<PathBuf> {
    let mut dir = host.data();
    loop {
        match host.real(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => match dir.parent() {
                Some(parent) => dir = parent,
                None => return Err(error),
            },
            Err(error) => return Err(io::Error::other(format!("{}: {error}", dir.display()))),
            found => return found,
        }
    }
}

/// Adds the device of this directory of `/sys` and everything below it, and gives its name.
fn collect(host: &Host, entry: &Path, devices: &mut Vec<Device>) -> io::Result<Option<String>> {
    let mut dir = fs::canonicalize(host.at(entry))?;
    if dir.join("partition").exists() {
        dir.pop();
    }
    let Some(name) = dir.file_name().map(|name| name.to_string_lossy().into_owned()) else { return Ok(None) };
    if devices.iter().any(|device| device.name == name) {
        return Ok(Some(name));
    }
    let at = devices.len();
    devices.push(Device { name: name.clone(), below: Vec::new() });
    let slaves = Path::new("/sys/block").join(&name).join("slaves");
    let mut below = Vec::new();
    for slave in host.names(&slaves)? {
        below.extend(collect(host, &slaves.join(slave), devices)?);
    }
    devices[at].below = below;
    Ok(Some(name))
}

/// A name of `mountinfo`, where blanks and the like stand as `\040`.
fn unescaped(field: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let octal = (*first == b'\\').then(|| tail.get(..3)).flatten();
        let code = octal.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(code.unwrap_or(*first));
        rest = if code.is_some() { &tail[3..] } else { tail };
    }
    PathBuf::from(std::ffi::OsStr::from_bytes(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blanks_in_the_names_of_mounts_are_read() {
        assert_eq!(unescaped(r"/mnt/a\040b\134c"), Path::new(r"/mnt/a b\c"));
        assert_eq!(unescaped(r"/mnt/odd\04"), Path::new(r"/mnt/odd\04"));
    }
    use crate::tuning::test_tree::{DATA, Tree};

    /// Names of all devices, and of the disks among them.
    fn found(tree: &Tree) -> (Vec<String>, Vec<String>) {
        let host = tree.host();
        let place = host.place().expect("it is found");
        let names = |devices: Vec<&Device>| devices.into_iter().map(|device| device.name.clone()).collect();
        assert_eq!(place.top.as_ref(), place.devices.first().map(|device| &device.name));
        (names(place.devices.iter().collect()), names(place.disks().collect()))
    }

    fn names(devices: &[&str], disks: &[&str]) -> (Vec<String>, Vec<String>) {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        (owned(devices), owned(disks))
    }

    #[test]
    fn partitions_stand_for_their_disks() {
        let tree = Tree::new();
        for (disk, partition) in [("nvme0n1", "nvme0n1p2"), ("sda", "sda3")] {
            tree.disk(disk, &[]);
            tree.partition(disk, partition);
            tree.mounted(partition, "ext4", "rw");
            assert_eq!(found(&tree), names(&[disk], &[disk]));
        }
        tree.disk("vda", &[]);
        tree.mounted("vda", "ext4", "rw");
        assert_eq!(found(&tree), names(&["vda"], &["vda"]));
    }

    #[test]
    fn volumes_and_arrays_are_followed_down_to_the_disks() {
        let tree = Tree::new();
        for disk in ["sda", "sdb", "nvme0n1", "nvme1n1"] {
            tree.disk(disk, &[]);
        }
        tree.partition("sdb", "sdb1");
        tree.above("dm-0", &["sda", "sdb1"], &[]);
        tree.mounted("dm-0", "xfs", "rw");
        assert_eq!(found(&tree), names(&["dm-0", "sda", "sdb"], &["sda", "sdb"]));

        tree.partition("nvme0n1", "nvme0n1p1");
        tree.partition("nvme1n1", "nvme1n1p1");
        tree.above("md0", &["nvme0n1p1", "nvme1n1p1"], &[]);
        tree.mounted("md0", "ext4", "rw");
        assert_eq!(found(&tree), names(&["md0", "nvme0n1", "nvme1n1"], &["nvme0n1", "nvme1n1"]));

        tree.above("dm-1", &["md0"], &[]);
        tree.above("dm-2", &["dm-1", "sdb1"], &[]);
        tree.mounted("dm-2", "ext4", "rw");
        let (devices, disks) = found(&tree);
        assert_eq!(devices, ["dm-2", "dm-1", "md0", "nvme0n1", "nvme1n1", "sdb"]);
        assert_eq!(disks, ["nvme0n1", "nvme1n1", "sdb"]);
        let host = tree.host();
        let place = host.place().unwrap();
        let below_md0: Vec<&str> = place.down_from(&place.devices[2]).iter().map(|device| &*device.name).collect();
        assert_eq!(below_md0, ["md0", "nvme0n1", "nvme1n1"]);
        assert_eq!(place.down_from(&place.devices[0]).len(), 6);
    }

    #[test]
    fn a_file_system_over_several_devices_has_them_all_and_none_on_top() {
        let tree = Tree::new();
        tree.disk("sda", &[]);
        tree.disk("nvme0n1", &[]);
        tree.partition("sda", "sda3");
        for device in ["sda/sda3", "nvme0n1"] {
            let name = device.rsplit('/').next().unwrap();
            tree.link(&format!("/sys/fs/btrfs/1f2e/devices/{name}"), &format!("../../../../block/{device}"));
        }
        let mounted = |source: &str| format!("30 1 0:45 /sub /data rw,noatime - btrfs {source} rw,discard=async\n");
        tree.put("/proc/self/mountinfo", &mounted("/dev/sda3"));
        let host = tree.host();
        let place = host.place().unwrap();
        assert_eq!((&place.top, place.devices.len(), place.disks().count()), (&None, 2, 2));
        assert!(place.mount.has("noatime") && place.mount.has("discard=async"));
        // A name that leads to a device by a link, as those of volumes do.
        tree.put("/dev/dm-7", "");
        tree.link("/dev/mapper/vg-data", "../dm-7");
        tree.above("dm-7", &["sda3"], &[]);
        tree.put("/proc/self/mountinfo", &mounted("/dev/mapper/vg-data"));
        let names: Vec<_> = tree.host().place().unwrap().devices.iter().map(|device| device.name.clone()).collect();
        assert_eq!(names, ["dm-7", "sda"]);
    }

    #[test]
    fn the_innermost_mount_counts_and_links_are_followed() {
        let tree = Tree::new();
        tree.disk("sda", &[]);
        tree.disk("sdb", &[]);
        tree.make_dir("/data/kerolox/commitlog");
        let line = |id: u32, disk: &str, point: &str| {
            format!("{id} 1 {} / {point} rw - ext4 /dev/{disk} rw\n", crate::tuning::test_tree::number(disk))
        };
        let list = [
            line(1, "sda", "/"),
            line(2, "sda", r"/mnt/big\040disk"),
            line(3, "sda", "/data/kerolox2"),
            // On top of the other one there.
            line(4, "sdb", r"/mnt/big\040disk"),
        ];
        tree.put("/proc/self/mountinfo", &list.concat());
        assert_eq!(found(&tree), names(&["sda"], &["sda"]));
        tree.make_dir("/mnt/big disk/store");
        std::fs::remove_dir_all(tree.at(DATA)).unwrap();
        tree.link(DATA, "../mnt/big disk/store");
        assert_eq!(found(&tree), names(&["sdb"], &["sdb"]));
        // Not there yet: where it would be made.
        std::fs::remove_dir_all(tree.at("/data")).unwrap();
        assert_eq!(found(&tree), names(&["sda"], &["sda"]));
    }

    #[test]
    fn what_is_on_no_device_has_none_and_lists_that_make_no_sense_are_told() {
        let tree = Tree::new();
        tree.put("/proc/self/mountinfo", "30 1 0:45 / / rw,relatime - tmpfs tmpfs rw\n");
        assert_eq!(found(&tree), names(&[], &[]));
        for odd in ["", "30 1 0:45", "30 1 0:45 / /elsewhere rw - ext4 /dev/sda rw", "- - - -\n\u{fffd}"] {
            tree.put("/proc/self/mountinfo", odd);
            let error = tree.host().place().unwrap_err().to_string();
            assert!(error.contains("no mount holds /data/kerolox"), "{error}");
        }
    }
}
