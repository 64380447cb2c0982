//! The mount that holds a directory and the block devices below it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{Device, Looker, Storage};

/// How deep devices are stacked (partition on LVM on md on disk is four); a loop in a broken `/sys` ends here.
const STACK_DEPTH_MAX: usize = 8;

/// Looks at the mount of `dir`, or of the nearest directory above it that exists.
pub(super) fn look(looker: &mut Looker, dir: &Path) -> Storage {
    let mut storage = Storage { dir: dir.to_owned(), ..Storage::default() };
    let Some(existing) = dir.ancestors().find_map(|dir| match dir.as_os_str().is_empty() {
        true => Path::new(".").canonicalize().ok(),
        false => dir.canonicalize().ok(),
    }) else {
        looker.missed("storage", format_args!("{} and all above it cannot be opened", dir.display()));
        return storage;
    };
    if !dir.exists() {
        let held = existing.display();
        looker.missed("store's directory", format_args!("{} is not there; looked at {held} instead", dir.display()));
    }
    let mounts = looker.text("mount", "/proc/self/mountinfo").unwrap_or_default();
    let Some(mount) = Mount::holding(&mounts, &existing) else {
        looker.missed("mount", format_args!("/proc/self/mountinfo lists none that holds {}", existing.display()));
        return storage;
    };
    storage.devices = devices(looker, &mount);
    storage.file_system = Some(mount.kind);
    storage.mount_point = Some(mount.point);
    storage.mount_options = Some(mount.options);
    storage.source = Some(mount.source);
    storage
}

#[derive(Debug, PartialEq)]
struct Mount {
    /// `major:minor`.
    number: String,
    point: PathBuf,
    options: String,
    kind: String,
    source: String,
}

impl Mount {
    /// Source: proc(5), mountinfo: `id parent major:minor root point options optional… - kind source super-options`.
    fn parse(line: &str) -> Option<Mount> {
        let (front, back) = line.split_once(" - ")?;
        let mut front = front.split(' ');
        let number = front.nth(2)?.to_owned();
        let point = PathBuf::from(unescaped(front.nth(1)?));
        let own = front.next()?;
        let mut back = back.split(' ');
        let (kind, source) = (back.next()?.to_owned(), unescaped(back.next()?));
        let mut options: Vec<&str> = own.split(',').collect();
        for option in back.next().unwrap_or_default().split(',') {
            if !options.contains(&option) && !option.is_empty() {
                options.push(option);
            }
        }
        Some(Mount { number, point, options: options.join(","), kind, source })
    }

    /// Of nested mounts the longest holds a directory; of two on one point the later.
    fn holding(mounts: &str, dir: &Path) -> Option<Mount> {
        let holders = mounts.lines().filter_map(Mount::parse).filter(|mount| dir.starts_with(&mount.point));
        holders.max_by_key(|mount| mount.point.components().count())
    }
}

/// The kernel writes blank, tab, newline and backslash as `\ooo`.
fn unescaped(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let octal = match rest {
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..] => {
                Some((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'))
            }
            _ => None,
        };
        bytes.push(octal.unwrap_or(*first));
        rest = if octal.is_some() { &rest[4..] } else { tail };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The disk of a mount and, where it is put together from others, those too.
fn devices(looker: &mut Looker, mount: &Mount) -> Vec<Device> {
    let mut number = mount.number.clone();
    if number.starts_with("0:") {
        // btrfs and overlays have numbers of their own; a source that is a device leads on.
        match fs::metadata(looker.at(&mount.source)) {
            Ok(source) if mount.source.starts_with("/dev/") => {
                let device = source.rdev();
                number = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
            }
            _ => {
                looker.missed("block device", format_args!("{} is not on one ({})", mount.kind, mount.source));
                return Vec::new();
            }
        }
    }
    let link = format!("/sys/dev/block/{number}");
    let mut found = Vec::new();
    match looker.at(&link).canonicalize() {
        Ok(place) => stack(looker, place, &mut found, STACK_DEPTH_MAX),
        Err(error) => looker.missed("block device", format_args!("{link}: {error}")),
    }
    found
}

/// Adds the device at `place` in `/sys` and those that it stands on. A partition counts as its disk: the queue is there.
fn stack(looker: &mut Looker, place: PathBuf, found: &mut Vec<Device>, depth: usize) {
    let disk = match (place.join("partition").exists(), place.parent()) {
        (true, Some(disk)) => disk.to_owned(),
        _ => place,
    };
    let name = disk.file_name().unwrap_or_default().to_string_lossy().into_owned();
    if depth == 0 || found.iter().any(|device| device.name == name) {
        return;
    }
    // As the host itself would name it, which is how the looker is asked.
    let root = looker.root.canonicalize().unwrap_or_default();
    let on_host = Path::new("/").join(disk.strip_prefix(&root).unwrap_or(&disk));
    let file = |path: &str| on_host.join(path);
    let scheduler = looker.choice(&format!("{name} scheduler"), file("queue/scheduler"));
    let write_cache = looker.text(&format!("{name} write cache"), file("queue/write_cache"));
    let nr_requests = looker.number(&format!("{name} nr_requests"), file("queue/nr_requests"));
    let rotational = looker.number::<u8>(&format!("{name} rotational"), file("queue/rotational")).map(|it| it == 1);
    // Virtual disks have no model, and that is no gap.
    let model = looker.peek(file("device/model")).or_else(|_| looker.peek(file("dm/name"))).ok();
    let mut below: Vec<PathBuf> = fs::read_dir(disk.join("slaves"))
        .map(|entries| entries.filter_map(|entry| entry.ok()?.path().canonicalize().ok()).collect())
        .unwrap_or_default();
    below.sort_unstable();
    found.push(Device { name, model, scheduler, write_cache, nr_requests, rotational });
    for place in below {
        stack(looker, place, found, depth - 1);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const MOUNTS: &str = "\
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
30 27 0:27 / /tmp rw - tmpfs tmpfs rw,size=1k
31 27 253:1 / /data\\040store rw,noatime - xfs /dev/mapper/vg-data rw,logbufs=8,noatime
32 27 253:1 /sub /data\\040store/sub ro - xfs /dev/mapper/vg-data rw";

    #[test]
    fn the_nearest_mount_holds_a_directory() {
        let of = |dir: &str| Mount::holding(MOUNTS, Path::new(dir)).unwrap();
        assert_eq!(of("/home/x").kind, "ext4");
        assert_eq!(of("/home/x").options, "rw,relatime,discard");
        assert_eq!(of("/tmp/x").kind, "tmpfs");
        assert_eq!(of("/tmpfoo").kind, "ext4");
        let store = of("/data store/commitlog");
        assert_eq!(store.point, Path::new("/data store"));
        assert_eq!((store.number.as_str(), store.options.as_str()), ("253:1", "rw,noatime,logbufs=8"));
        assert_eq!(of("/data store/sub/x").options, "ro,rw");
        assert_eq!(Mount::holding("nonsense\n1 2 3", Path::new("/")), None);
    }

    /// A logical volume over a partition of an NVMe disk and a whole second disk.
    #[test]
    fn a_stacked_device_is_followed_down_to_its_disks() {
        let dir = tempfile::tempdir().unwrap();
        let sys = dir.path().join("sys");
        let block = sys.join("devices");
        let put = |path: &str, text: &str| {
            let path = block.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for disk in ["nvme0n1", "nvme1n1", "dm-1"] {
            put(&format!("{disk}/queue/write_cache"), "write back\n");
            put(&format!("{disk}/queue/nr_requests"), "1023\n");
            put(&format!("{disk}/queue/rotational"), "0\n");
        }
        put("nvme0n1/queue/scheduler", "[none] mq-deadline\n");
        put("nvme1n1/queue/scheduler", "none [mq-deadline]\n");
        put("nvme0n1/device/model", "Fast Disk\n");
        put("nvme0n1/nvme0n1p2/partition", "2\n");
        put("dm-1/dm/name", "vg-data\n");
        fs::create_dir_all(block.join("dm-1/slaves")).unwrap();
        fs::create_dir_all(sys.join("dev/block")).unwrap();
        symlink(block.join("nvme0n1/nvme0n1p2"), block.join("dm-1/slaves/nvme0n1p2")).unwrap();
        symlink(block.join("nvme1n1"), block.join("dm-1/slaves/nvme1n1")).unwrap();
        symlink(block.join("dm-1"), sys.join("dev/block/253:1")).unwrap();

        let mut looker = Looker::new(dir.path());
        let mount = Mount::holding(MOUNTS, Path::new("/data store")).unwrap();
        let found = devices(&mut looker, &mount);
        let told: Vec<_> = found.iter().map(|it| (it.name.as_str(), it.model.as_deref())).collect();
        assert_eq!(told, [("dm-1", Some("vg-data")), ("nvme0n1", Some("Fast Disk")), ("nvme1n1", None)]);
        assert_eq!(found[1].scheduler.as_deref(), Some("none"));
        assert_eq!(found[2].scheduler.as_deref(), Some("mq-deadline"));
        assert_eq!((found[1].nr_requests, found[1].rotational), (Some(1023), Some(false)));
        assert_eq!(looker.not_found.len(), 1, "{:?}", looker.not_found);
        assert!(looker.not_found[0].starts_with("dm-1 scheduler:"), "{:?}", looker.not_found);
    }

    #[test]
    fn a_mount_on_no_device_is_named_as_such() {
        let dir = tempfile::tempdir().unwrap();
        let mut looker = Looker::new(dir.path());
        let mount = Mount::holding(MOUNTS, Path::new("/tmp")).unwrap();
        assert_eq!(devices(&mut looker, &mount), []);
        assert_eq!(looker.not_found, ["block device: tmpfs is not on one (tmpfs)"]);
    }

    #[test]
    fn a_directory_that_is_not_there_yet_stands_on_the_mount_above_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut looker = Looker::new(Path::new("/"));
        let found = look(&mut looker, &dir.path().join("not/yet"));
        assert!(found.file_system.is_some());
        assert!(looker.not_found.iter().any(|line| line.starts_with("store's directory:")), "{:?}", looker.not_found);
    }
}
