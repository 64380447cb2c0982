//! What a node makes of the limits that somebody else set for it: the memory of its control group, the cores of its
//! affinity and of its group. The groups are real ones; where this host lets nobody make them, the test says so and the
//! rules are left to the tests beside `node/memory.rs`.

mod harness;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command as Program;

use harness::{Node, Request, skipped};
use kerolox::wire::HeaderType;

/// A control group of the test's own, empty and gone when dropped.
struct Group(PathBuf);

impl Group {
    /// One in which `controller` rules, as this file of it shows, of whichever version this host has; or why there is none.
    fn make(controller: &str, files: &[&str], name: &str) -> Result<Group, String> {
        let groups = fs::read_to_string("/proc/self/cgroup").map_err(|error| format!("/proc/self/cgroup: {error}"))?;
        let of = |wanted: &str| {
            groups.lines().find_map(|line| {
                let mut parts = line.splitn(3, ':').skip(1);
                let controllers = parts.next()?;
                (controllers.split(',').any(|found| found == wanted)).then(|| parts.next().map(str::to_owned))?
            })
        };
        let top = Path::new("/sys/fs/cgroup");
        let parent = match of(controller) {
            Some(path) => top.join(controller).join(path.trim_start_matches('/')),
            None => match of("") {
                Some(path) => top.join(path.trim_start_matches('/')),
                None => return Err(format!("/proc/self/cgroup has no group of {controller}")),
            },
        };
        let path = parent.join(format!("kerolox-test-{}-{name}", std::process::id()));
        fs::create_dir(&path).map_err(|error| format!("{} cannot be made: {error}", path.display()))?;
        let group = Group(path);
        match files.iter().any(|file| group.has(file)) {
            true => Ok(group),
            false => Err(format!("{} has none of {files:?}", group.0.display())),
        }
    }

    /// The group; or it is said why the test that asks for it is left out.
    fn or_skipped(made: Result<Group, String>, test: &str) -> Option<Group> {
        made.inspect_err(|why| skipped(test, why)).ok()
    }

    fn has(&self, file: &str) -> bool {
        self.0.join(file).exists()
    }

    fn set(&self, file: &str, value: &str) {
        fs::write(self.0.join(file), value).unwrap_or_else(|error| panic!("{file} of {:?}: {error}", self.0));
    }

    /// Has the program begin in this group.
    fn holds(&self, program: &mut Program) {
        let mut tasks = File::options().write(true).open(self.0.join("cgroup.procs")).unwrap();
        // SAFETY: one write of a file that is open already, as may be made between fork and exec.
        unsafe { program.pre_exec(move || tasks.write_all(b"0")) };
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// A group with this limit of memory, in bytes, if `test` is to run.
fn with_memory(name: &str, len: u64, test: &str) -> Option<(Group, PathBuf)> {
    let made = Group::make("memory", &["memory.max", "memory.limit_in_bytes"], name);
    let group = Group::or_skipped(made, test)?;
    let file = if group.has("memory.max") { "memory.max" } else { "memory.limit_in_bytes" };
    group.set(file, &len.to_string());
    let path = group.0.join(file);
    Some((group, path))
}

/// The node chooses the cores of its executors.
const AUTO: [(&str, &str); 2] = [("cores.writer", "\"auto\""), ("cores.shards", "\"auto\"")];

/// The last of the cores that this process may run on.
fn last_core() -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim();
    allowed.rsplit([',', '-']).next().unwrap().to_owned()
}

/// Cores that each thread of a node with this beginning of a name may run on.
fn cores_of(node: &Node, thread: &str) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{}/task", node.pid())).unwrap();
    let mut cores = Vec::new();
    for task in tasks {
        let status = fs::read_to_string(task.unwrap().path().join("status")).unwrap_or_default();
        let of = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).map(|text| text.trim().to_owned());
        if of("Name:").is_some_and(|name| name.starts_with(thread)) {
            cores.extend(of("Cpus_allowed_list:"));
        }
    }
    cores
}

#[test]
fn buffers_of_default_size_shrink_to_what_the_group_allows_and_that_is_said() {
    let test = "buffers_of_default_size_shrink_to_what_the_group_allows_and_that_is_said";
    let Some((group, file)) = with_memory("shrink", 512 << 20, test) else { return };
    let mut node = Node::prepared(&[], |program| group.holds(program));
    let log = node.log();
    let line = log.lines().find(|line| line.contains("limits.frame_bytes_in_progress = ")).expect("it is said");
    assert!(line.contains("WARN") && line.contains("512 MiB that") && line.contains(file.to_str().unwrap()), "{line}");
    node.client(HeaderType::Json).put(&Request::send("Small"));
    assert_eq!(node.stop().code(), Some(0));
}

#[test]
fn buffers_that_somebody_set_beyond_the_groups_limit_refuse_the_start() {
    let test = "buffers_that_somebody_set_beyond_the_groups_limit_refuse_the_start";
    let Some((group, file)) = with_memory("refuse", 512 << 20, test) else { return };
    let mut node = Node::with(&[("limits.frame_bytes_in_progress", "\"300MiB\"")]);
    assert_eq!(node.stop().code(), Some(0));
    let log_from = node.log().len();
    let mut child = node.spawn_prepared(|program| group.holds(program));
    assert_eq!(child.wait().unwrap().code(), Some(2));
    let log = node.log();
    let line = log[log_from..].lines().find(|line| line.starts_with("kerolox: ")).expect("it says why");
    assert!(line.contains("limits.frame_bytes_in_progress = 314572800") && line.contains("MemoryMax="), "{line}");
    assert!(line.contains(file.to_str().unwrap()), "{line}");
}

#[test]
fn executors_keep_to_the_cores_of_the_group() {
    let made = Group::make("cpuset", &["cpuset.cpus"], "cores");
    let Some(group) = Group::or_skipped(made, "executors_keep_to_the_cores_of_the_group") else { return };
    let core = last_core();
    group.set("cpuset.cpus", &core);
    group.set("cpuset.mems", "0");
    let mut node = Node::prepared(&AUTO, |program| group.holds(program));
    let cores = cores_of(&node, "kerolox-shard");
    assert!(!cores.is_empty() && cores.iter().all(|found| *found == core), "{cores:?}");
    assert_eq!(cores_of(&node, "kerolox-writer"), [""; 0], "one core: the writer shares the shard's");
    node.client(HeaderType::Json).put(&Request::send("Narrow"));
    assert_eq!(node.stop().code(), Some(0));
}

#[test]
fn executors_keep_to_the_affinity_that_the_node_was_started_with() {
    let core = last_core();
    let number: usize = core.parse().unwrap();
    let settings = [&AUTO[..], &[("flush.mode", "\"sync\"")]].concat();
    let mut node = Node::prepared(&settings, |program| {
        // SAFETY: sched_setaffinity is a plain system call, as may be made between fork and exec; the set is on its stack.
        unsafe {
            program.pre_exec(move || {
                let mut set: libc::cpu_set_t = std::mem::zeroed();
                libc::CPU_SET(number, &mut set);
                match libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                }
            })
        };
    });
    assert!(!cores_of(&node, "kerolox-shard").is_empty());
    let mut client = node.client(HeaderType::Json);
    // The kernel makes workers for what it cannot do at once, such as a sync, and keeps them for some seconds.
    let workers = (0..100).find_map(|_| {
        client.put(&Request::send("Narrow"));
        Some(cores_of(&node, "iou-wrk")).filter(|workers| !workers.is_empty())
    });
    let workers = workers.expect("a sync of the log needs a worker of the kernel");
    assert!(workers.iter().all(|found| *found == core), "no worker of the kernel leaves the affinity: {workers:?}");
    let cores = cores_of(&node, "");
    assert!(cores.iter().all(|found| *found == core), "no thread leaves the affinity: {cores:?}");
    assert_eq!(node.stop().code(), Some(0));
}

/// Two executors would pass every message to and fro; with more cores than two the writer has one for itself.
#[test]
fn of_two_cores_one_executor_does_everything() {
    let usable = core_affinity::get_core_ids().unwrap_or_default().len();
    let mut node = Node::with(&AUTO);
    // A set: glommio gives each executor a second thread of the same name.
    let of = |thread| cores_of(&node, thread).into_iter().collect::<BTreeSet<_>>();
    let (shards, writers) = (of("kerolox-shard"), of("kerolox-writer"));
    assert_eq!((shards.len(), writers.len()), if usable <= 2 { (1, 0) } else { ((usable - 1).min(64), 1) });
    if usable == 2 {
        assert_eq!(shards, BTreeSet::from([last_core()]));
        assert!(of("kerolox-helper").is_disjoint(&shards), "what helps keeps off the executor");
    }
    node.client(HeaderType::Json).put(&Request::send("Narrow"));
    assert_eq!(node.stop().code(), Some(0));
}
