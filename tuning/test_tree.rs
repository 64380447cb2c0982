//! A tree of files that looks like a host's `/proc` and `/sys`, for tests; removed when dropped.
//!
//! Laid out as Linux does: `/sys/block`, `/sys/class/block` and `/sys/dev/block` are links into `/sys/devices`, partitions
//! are directories in their disk's, `slaves` links to what lies below.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// Where the node's data lies in every tree.
pub const DATA: &str = "/data/kerolox";

pub struct Tree {
    dir: TempDir,
}

impl Tree {
    /// With a directory for the data, and no device.
    pub fn new() -> Tree {
        let tree = Tree { dir: TempDir::new().expect("a directory for the tree") };
        tree.make_dir(DATA);
        tree.put("/proc/self/mountinfo", "20 1 0:20 / / rw - rootfs rootfs rw\n");
        tree
    }

    pub fn root(&self) -> &Path {
        self.dir.path()
    }

    pub fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        self.root().join(path.as_ref().strip_prefix("/").expect("as on the machine"))
    }

    pub fn put(&self, path: &str, text: &str) {
        let at = self.at(path);
        fs::create_dir_all(at.parent().expect("it has a directory")).expect("a directory");
        fs::write(at, text).expect("a file");
    }

    pub fn make_dir(&self, path: &str) {
        fs::create_dir_all(self.at(path)).expect("a directory");
    }

    pub fn link(&self, path: &str, target: &str) {
        let at = self.at(path);
        fs::create_dir_all(at.parent().expect("it has a directory")).expect("a directory");
        // As often as a test likes.
        let _ = fs::remove_file(&at);
        symlink(target, at).expect("a link");
    }

    /// A disk with these files in `queue`, besides what it has already.
    pub fn disk(&self, name: &str, queue: &[(&str, &str)]) {
        let bus = match name.get(..4) {
            Some("nvme") => format!("pci0000:00/0000:0{}:00.0/nvme/nvme0", name.as_bytes()[4] - b'0'),
            _ if name.starts_with("vd") => "pci0000:00/0000:00:02.0/virtio1/block".to_owned(),
            _ => "pci0000:00/0000:00:17.0/ata1/host0/target0:0:0/0:0:0:0/block".to_owned(),
        };
        self.device(name, &bus, queue);
    }

    /// A device above others: a volume or an array. They may be partitions.
    pub fn above(&self, name: &str, below: &[&str], queue: &[(&str, &str)]) {
        self.device(name, "virtual/block", queue);
        for part in below {
            let target =
                fs::canonicalize(self.at(format!("/sys/class/block/{part}"))).expect("what lies below is there");
            let target =
                target.strip_prefix(fs::canonicalize(self.at("/sys")).unwrap()).expect("in the tree").to_owned();
            let up = "../../../../../";
            self.link(&format!("/sys/block/{name}/slaves/{part}"), &format!("{up}{}", target.display()));
        }
    }

    /// A partition of a device that is there.
    pub fn partition(&self, disk: &str, name: &str) {
        let link = fs::read_link(self.at(format!("/sys/block/{disk}"))).expect("its disk is there");
        self.put(&format!("/sys/block/{disk}/{name}/partition"), "1");
        self.link(&format!("/sys/class/block/{name}"), &format!("../{}/{name}", link.display()));
        self.link(&format!("/sys/dev/block/{}", number(name)), &format!("../{}/{name}", link.display()));
    }

    fn device(&self, name: &str, bus: &str, queue: &[(&str, &str)]) {
        self.make_dir(&format!("/sys/devices/{bus}/{name}/slaves"));
        self.make_dir(&format!("/sys/devices/{bus}/{name}/queue"));
        for (file, value) in queue {
            self.put(&format!("/sys/devices/{bus}/{name}/queue/{file}"), &format!("{value}\n"));
        }
        self.link(&format!("/sys/block/{name}"), &format!("../devices/{bus}/{name}"));
        self.link(&format!("/sys/class/block/{name}"), &format!("../../devices/{bus}/{name}"));
        self.link(&format!("/sys/dev/block/{}", number(name)), &format!("../../devices/{bus}/{name}"));
    }

    /// The data lies on a file system on this device, mounted on `/data`.
    pub fn mounted(&self, device: &str, file_system: &str, options: &str) {
        let line = |id: u32, number: &str, point: &str, tail: &str| format!("{id} 1 {number} / {point} {tail}\n");
        let lines = [
            line(20, "0:20", "/", "rw shared:1 - rootfs rootfs rw"),
            line(21, "0:21", "/proc", "rw shared:2 - proc proc rw"),
            line(22, &number(device), "/data", &format!("{options} shared:3 - {file_system} /dev/{device} rw")),
        ];
        self.put("/proc/self/mountinfo", &lines.concat());
    }
}

/// A device number for each name.
pub fn number(name: &str) -> String {
    let sum = name.bytes().fold(7u32, |sum, byte| (sum * 31 + u32::from(byte)) % 1_000_003);
    format!("259:{sum}")
}
