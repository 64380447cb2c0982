//! The machine block of a result: where, on what and by which build a figure came to be.
//!
//! A latency means nothing without the device, the file system, the kernel and the settings behind it. So every result
//! carries this block and a report refuses a result without it. What could not be found out is not left out in silence:
//! [`Machine::not_found`] names each such thing with the place that was looked at and what was found there.
//!
//! Looking changes nothing, needs no root, and reads some twenty small files of `/proc` and `/sys`. It runs once, before
//! the load starts, on the thread that will start it.

mod broker;
mod process;
mod storage;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use broker::answers;
pub use process::{process_at, process_of};

use crate::load::Plan;

/// What is shown in the place of something that is in [`Machine::not_found`].
const NOT_FOUND: &str = "not found";

/// Where and by what a result was measured. In JSON its keys are camelCase.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Machine {
    pub cpu: Cpu,
    /// Name, release and build of the running kernel.
    pub kernel: Option<String>,
    pub memory: Memory,
    /// What the host runs in: "none seen", or how it was noticed.
    pub virtualisation: Option<String>,
    /// Tasks that wanted a core over the last 1, 5 and 15 minutes, before the load began.
    pub load_average: Option<String>,
    /// Where the store lies; `None` if no directory was given, and none found.
    pub storage: Option<Storage>,
    /// The program that made the load and took the times.
    pub generator: Generator,
    /// The broker that was measured; `None` for a run against the built-in sink.
    pub broker: Option<Broker>,
    /// Each thing that could not be found out: what, where it was looked for, and why not.
    pub not_found: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Cpu {
    pub model: Option<String>,
    /// Logical processors that the kernel runs.
    pub online: Option<u32>,
    /// Of those, the ones that this process may use.
    pub usable: Option<u32>,
    /// Frequency governor; several if the processors differ.
    pub governor: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Memory {
    pub total_kib: Option<u64>,
    pub available_kib: Option<u64>,
    pub swap_kib: Option<u64>,
    /// The word in brackets of the kernel's choice.
    pub transparent_huge_pages: Option<String>,
}

/// The mount below a directory, and the devices below the mount.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Storage {
    pub dir: PathBuf,
    pub file_system: Option<String>,
    pub mount_point: Option<PathBuf>,
    /// Options of this mount and of the file system, as the kernel lists them.
    pub mount_options: Option<String>,
    /// What the mount calls its source.
    pub source: Option<String>,
    /// The block device and those that it is made of (LVM, md), the mounted one first.
    pub devices: Vec<Device>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    pub name: String,
    pub model: Option<String>,
    /// The one in use.
    pub scheduler: Option<String>,
    /// "write back": a flush has something to do; "write through": the kernel sends none.
    pub write_cache: Option<String>,
    pub nr_requests: Option<u32>,
    pub rotational: Option<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Generator {
    pub version: String,
    /// "release" or "debug"; the figures of a debug build mean nothing.
    pub build: String,
    /// The git revision of the source, and how it is known.
    pub revision: Option<String>,
}

/// What a broker says of itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Broker {
    pub address: String,
    pub version: Option<String>,
    /// "sync" or "async".
    pub flush: Option<String>,
    /// How it was started, if it runs on this host.
    pub command_line: Option<String>,
    /// Processors that it may use, as the kernel lists them.
    pub cores: Option<String>,
    /// Its settings, and where they come from: its answer to request 26, or the file that its command line names.
    pub settings: BTreeMap<String, String>,
    pub settings_from: Option<String>,
    /// Its state before the load: the answer to request 28.
    pub state: BTreeMap<String, String>,
}

/// What the user knows and the host cannot tell.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct MachineArgs {
    /// Where the broker keeps its store, if that is on this host: its mount and devices go into the result [default: where its process has a commit log open]
    #[arg(long, value_name = "DIR")]
    pub store_dir: Option<PathBuf>,
    /// Git revision of the source that this program was built from [default: KEROLOX_REVISION when it was built, else HEAD of the source tree]
    #[arg(long, value_name = "TEXT")]
    pub revision: Option<String>,
}

impl Broker {
    /// Our own node calls itself by the version whose behaviour it has; its state tells it apart.
    fn is_kerolox(&self) -> bool {
        self.state.keys().any(|key| key.starts_with("kerolox"))
    }
}

impl Machine {
    /// Looks at this host and asks the broker, which may take some seconds if it does not answer. Never fails: what is
    /// not there is named in [`Machine::not_found`].
    pub fn look(args: &MachineArgs, plan: &Plan) -> Machine {
        let mut looker = Looker::new(Path::new("/"));
        let pid = plan.pid.or_else(|| process_of(&plan.target));
        let dir = args.store_dir.clone().or_else(|| process::store_dir(pid?));
        let storage = dir.as_deref().map(|dir| storage::look(&mut looker, dir));
        if storage.is_none() {
            let why =
                "no directory was given (--store-dir), and no broker of this host that may be looked at has a log open";
            looker.missed("storage", why);
        }
        let broker = broker::look(&mut looker, &plan.target, plan.pid);
        let generator = looker.generator(args.revision.as_deref());
        looker.host(storage, generator, broker)
    }

    /// What people are shown of it, in the order of the block: name and text.
    pub fn rows(&self) -> Vec<(String, String)> {
        let shown = |text: &Option<String>| text.clone().unwrap_or_else(|| NOT_FOUND.to_owned());
        let number = |number: Option<u32>| number.map_or_else(|| NOT_FOUND.to_owned(), |number| number.to_string());
        let size = |kib: Option<u64>| {
            kib.map_or_else(|| NOT_FOUND.to_owned(), |kib| format!("{:.1} GiB", kib as f64 / f64::from(1 << 20)))
        };
        let Machine { cpu, memory, generator, .. } = self;
        let mut rows: Vec<(String, String)> = Vec::new();
        let mut put = |name: &str, text: String| rows.push((name.to_owned(), text));
        put("CPU", shown(&cpu.model));
        put("cores", format!("{} online, {} usable", number(cpu.online), number(cpu.usable)));
        put("governor", shown(&cpu.governor));
        put("kernel", shown(&self.kernel));
        let (total, available, swap) = (size(memory.total_kib), size(memory.available_kib), size(memory.swap_kib));
        put("memory", format!("{total}, of it available {available}; swap {swap}"));
        put("huge pages", shown(&memory.transparent_huge_pages));
        put("virtualisation", shown(&self.virtualisation));
        put("load average before", shown(&self.load_average));
        if let Some(storage) = &self.storage {
            put("store", storage.dir.display().to_string());
            let point = storage.mount_point.as_ref().map(|point| point.display().to_string());
            let (kind, source) = (shown(&storage.file_system), shown(&storage.source));
            put("file system", format!("{kind} on {} ({source})", shown(&point)));
            put("mount options", shown(&storage.mount_options));
            for device in &storage.devices {
                let Device { name, model, scheduler, write_cache, nr_requests, rotational } = device;
                let model = model.as_ref().map_or_else(String::new, |model| format!("{model}, "));
                let turns = match rotational {
                    Some(true) => ", rotational",
                    Some(false) => ", not rotational",
                    None => "",
                };
                let (scheduler, cache, requests) = (shown(scheduler), shown(write_cache), number(*nr_requests));
                let text = format!("{model}scheduler {scheduler}, cache {cache}, nr_requests {requests}{turns}");
                put(&format!("device {name}"), text);
            }
        } else {
            put("store", NOT_FOUND.to_owned());
        }
        put("load generator", format!("kerolox-bench {}, {} build", generator.version, generator.build));
        put("revision", shown(&generator.revision));
        if let Some(broker) = &self.broker {
            let name = if broker.is_kerolox() { "Kerolox, which speaks version" } else { "version" };
            put("broker", format!("{}, {name} {}", broker.address, shown(&broker.version)));
            put("command line", shown(&broker.command_line));
            put("broker's cores", shown(&broker.cores));
            put("flush", shown(&broker.flush));
        } else {
            put("broker", "none: the built-in sink".to_owned());
        }
        rows
    }

    /// As a result carries it.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::to_value(self).expect("texts and numbers are JSON")
    }

    /// The block of a result that was read from a file.
    ///
    /// # Errors
    /// Says what is wrong with it, for a message that goes on with what to do.
    pub fn of_result(value: &serde_json::Value) -> Result<Machine, String> {
        match value {
            serde_json::Value::Null => Err("it has no machine block (key \"machine\")".to_owned()),
            value => serde_json::from_value(value.clone())
                .map_err(|error| format!("its machine block is not whole: {error}")),
        }
    }
}

/// Reads small files below a root and keeps the names of those that say nothing.
struct Looker {
    root: PathBuf,
    not_found: Vec<String>,
}

impl Looker {
    fn new(root: &Path) -> Looker {
        Looker { root: root.to_owned(), not_found: Vec::new() }
    }

    fn missed(&mut self, what: &str, why: impl std::fmt::Display) {
        self.not_found.push(format!("{what}: {why}"));
    }

    /// The place below the root of what is `path` on a host.
    fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// A file's text without white space at its ends; empty text counts as nothing.
    fn peek(&self, path: impl AsRef<Path>) -> Result<String, String> {
        let path = path.as_ref();
        let text = fs::read_to_string(self.at(path)).map_err(|error| format!("{}: {error}", path.display()))?;
        match text.trim() {
            "" => Err(format!("{} is empty", path.display())),
            text => Ok(text.to_owned()),
        }
    }

    fn text(&mut self, what: &str, path: impl AsRef<Path>) -> Option<String> {
        self.peek(path).map_err(|why| self.missed(what, why)).ok()
    }

    fn number<T: std::str::FromStr>(&mut self, what: &str, path: impl AsRef<Path>) -> Option<T> {
        let text = self.text(what, &path)?;
        let parsed = text.parse().ok();
        if parsed.is_none() {
            self.missed(what, format_args!("{} holds {text:?}, which is no number", path.as_ref().display()));
        }
        parsed
    }

    /// The choice in brackets of a file like `none [mq-deadline] kyber`; the whole text if none is in brackets.
    fn choice(&mut self, what: &str, path: impl AsRef<Path>) -> Option<String> {
        let text = self.text(what, path)?;
        Some(chosen(&text).unwrap_or(&text).to_owned())
    }

    fn host(mut self, storage: Option<Storage>, generator: Generator, broker: Option<Broker>) -> Machine {
        let cpu = self.cpu();
        let kernel = self.kernel();
        let memory = self.memory();
        let virtualisation = self.virtualisation();
        let load_average = self.load_average();
        let not_found = self.not_found;
        Machine { cpu, kernel, memory, virtualisation, load_average, storage, generator, broker, not_found }
    }

    fn cpu(&mut self) -> Cpu {
        let info = self.text("CPU model", "/proc/cpuinfo").unwrap_or_default();
        // ARM kernels print no model name; the part number is the best that there is.
        let model = ["model name", "Model", "CPU part"].iter().find_map(|key| value_of(&info, key, ':'));
        if model.is_none() && !info.is_empty() {
            self.missed("CPU model", "/proc/cpuinfo has neither \"model name\" nor \"CPU part\"");
        }
        let online_list = self.text("online processors", "/sys/devices/system/cpu/online");
        let online = online_list.as_deref().and_then(listed);
        if let (None, Some(list)) = (online, &online_list) {
            self.missed("online processors", format_args!("/sys/devices/system/cpu/online holds {list:?}"));
        }
        let status = self.text("usable processors", "/proc/self/status").unwrap_or_default();
        let usable = value_of(&status, "Cpus_allowed_list", ':').and_then(listed);
        if usable.is_none() && !status.is_empty() {
            self.missed("usable processors", "/proc/self/status has no Cpus_allowed_list");
        }
        let model = model.map(str::to_owned);
        Cpu { model, online, usable, governor: self.governor() }
    }

    /// The governors of all processors, each once.
    fn governor(&mut self) -> Option<String> {
        let mut governors: Vec<String> = Vec::new();
        let dir = "/sys/devices/system/cpu";
        let names = fs::read_dir(self.at(dir)).map(|entries| {
            let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
            names.filter(|name| name.strip_prefix("cpu").is_some_and(is_digits)).collect::<Vec<_>>()
        });
        for name in names.unwrap_or_default() {
            if let Ok(governor) = self.peek(format!("{dir}/{name}/cpufreq/scaling_governor"))
                && !governors.contains(&governor)
            {
                governors.push(governor);
            }
        }
        governors.sort_unstable();
        if governors.is_empty() {
            self.missed("governor", "no processor has cpufreq/scaling_governor; virtual machines have none as a rule");
            return None;
        }
        Some(governors.join(", "))
    }

    fn kernel(&mut self) -> Option<String> {
        let kind = self.text("kernel name", "/proc/sys/kernel/ostype")?;
        let release = self.text("kernel release", "/proc/sys/kernel/osrelease")?;
        let build = self.text("kernel build", "/proc/sys/kernel/version").unwrap_or_default();
        Some(format!("{kind} {release} {build}").trim_end().to_owned())
    }

    fn memory(&mut self) -> Memory {
        let info = self.text("memory", "/proc/meminfo").unwrap_or_default();
        let mut kib = |key: &str| {
            let found = value_of(&info, key, ':').and_then(|text| text.trim_end_matches(" kB").parse().ok());
            if found.is_none() && !info.is_empty() {
                self.missed(key, "/proc/meminfo does not tell it");
            }
            found
        };
        let (total_kib, available_kib, swap_kib) = (kib("MemTotal"), kib("MemAvailable"), kib("SwapTotal"));
        let path = "/sys/kernel/mm/transparent_hugepage/enabled";
        Memory { total_kib, available_kib, swap_kib, transparent_huge_pages: self.choice("huge pages", path) }
    }

    /// What is seen of a hypervisor or a container. Neither can be ruled out from inside, so "none seen" is all that
    /// this ever claims.
    fn virtualisation(&mut self) -> Option<String> {
        let mut seen = Vec::new();
        let guest = self.peek("/proc/cpuinfo").is_ok_and(|info| {
            let flags = value_of(&info, "flags", ':').unwrap_or_default();
            flags.split_whitespace().any(|flag| flag == "hypervisor")
        });
        let xen = self.peek("/sys/hypervisor/type");
        let maker = ["/sys/class/dmi/id/sys_vendor", "/sys/class/dmi/id/product_name"].map(|path| self.peek(path));
        if guest || xen.is_ok() {
            let told: Vec<String> = xen.into_iter().chain(maker.iter().flatten().cloned()).collect();
            match told.is_empty() {
                false => seen.push(format!("virtual machine ({})", told.join(", "))),
                true => {
                    seen.push("virtual machine".to_owned());
                    let [why, _] = maker;
                    self.missed("hypervisor's name", why.expect_err("nothing was told"));
                }
            }
        }
        match self.peek("/run/systemd/container") {
            Ok(kind) => seen.push(format!("container ({kind})")),
            Err(_) if self.at("/.dockerenv").exists() => seen.push("container (/.dockerenv is there)".to_owned()),
            Err(_) => {}
        }
        Some(if seen.is_empty() { "none seen".to_owned() } else { seen.join(", ") })
    }

    fn load_average(&mut self) -> Option<String> {
        let text = self.text("load average", "/proc/loadavg")?;
        Some(text.split_whitespace().take(3).collect::<Vec<_>>().join(" "))
    }

    fn generator(&mut self, revision: Option<&str>) -> Generator {
        let build = if cfg!(debug_assertions) { "debug" } else { "release" };
        let told = revision.or(option_env!("KEROLOX_REVISION"));
        let revision = told.map(str::to_owned).or_else(|| {
            let head = head_of(Path::new(env!("CARGO_MANIFEST_DIR"))).map_err(|why| self.missed("git revision", why));
            // The tree may have moved on since this was built; whoever needs it exactly says it.
            Some(format!("{} (HEAD of the source tree when it ran)", head.ok()?))
        });
        Generator { version: env!("CARGO_PKG_VERSION").to_owned(), build: build.to_owned(), revision }
    }
}

/// What the HEAD of the repository at `tree` names, read from its files: no git is needed, nor its network.
fn head_of(tree: &Path) -> Result<String, String> {
    let read = |path: &Path| match fs::read_to_string(path) {
        Ok(text) => Ok(text.trim().to_owned()),
        Err(error) => Err(format!("{}: {error}", path.display())),
    };
    let mut git = tree.join(".git");
    if git.is_file() {
        // A linked worktree: the file names the place of its own HEAD.
        let pointer = read(&git)?;
        let place = pointer.strip_prefix("gitdir: ").ok_or_else(|| format!("{} names no gitdir", git.display()))?;
        git = tree.join(place);
    }
    let head = read(&git.join("HEAD"))?;
    let Some(branch) = head.strip_prefix("ref: ") else { return Ok(head) };
    // Branches of a linked worktree lie in the repository that it belongs to.
    let common = read(&git.join("commondir")).map_or_else(|_| git.clone(), |place| git.join(place));
    read(&common.join(branch)).or_else(|why| {
        let packed = read(&common.join("packed-refs")).unwrap_or_default();
        let line = packed.lines().find_map(|line| line.strip_suffix(branch)?.strip_suffix(' '));
        line.map(str::to_owned).ok_or(why)
    })
}

/// The value behind `key` on the first line that starts with it and then has `separator`.
fn value_of<'a>(text: &'a str, key: &str, separator: char) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (found, value) = line.split_once(separator)?;
        (found.trim() == key && !value.trim().is_empty()).then(|| value.trim())
    })
}

fn chosen(text: &str) -> Option<&str> {
    text.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'))
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// How many numbers a list like `0-3,8` holds.
fn listed(list: &str) -> Option<u32> {
    list.split(',').try_fold(0u32, |sum, part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        sum.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::load::Target;
    use crate::load::plan::tests::plan;

    /// A host made of files.
    fn host(files: &[(&str, &str)]) -> (tempfile::TempDir, Looker) {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let looker = Looker::new(dir.path());
        (dir, looker)
    }

    #[test]
    fn a_host_that_tells_everything_is_told_whole() {
        let (_dir, looker) = host(&[
            ("proc/cpuinfo", "processor\t: 0\nmodel name\t: Some CPU 3.0\nflags\t\t: fpu hypervisor sse\n"),
            ("sys/devices/system/cpu/online", "0-3,8\n"),
            ("proc/self/status", "Name:\tx\nCpus_allowed_list:\t0-1\n"),
            ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n"),
            ("sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "powersave\n"),
            ("sys/devices/system/cpu/cpufreq/scaling_governor", "not a processor's\n"),
            ("proc/sys/kernel/ostype", "Linux\n"),
            ("proc/sys/kernel/osrelease", "6.18.1\n"),
            ("proc/sys/kernel/version", "#1 SMP\n"),
            ("proc/meminfo", "MemTotal:  2048 kB\nMemAvailable: 1024 kB\nSwapTotal: 0 kB\n"),
            ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
            ("sys/class/dmi/id/sys_vendor", "Amazon EC2\n"),
            ("sys/class/dmi/id/product_name", "m5.large\n"),
            ("proc/loadavg", "0.10 0.20 0.30 1/99 1234\n"),
        ]);
        let found = looker.host(None, Generator::default(), None);
        assert_eq!(found.not_found, [] as [&str; 0]);
        let governor = Some("performance, powersave".to_owned());
        let cpu = Cpu { model: Some("Some CPU 3.0".into()), online: Some(5), usable: Some(2), governor };
        assert_eq!(found.cpu, cpu);
        assert_eq!(found.kernel.as_deref(), Some("Linux 6.18.1 #1 SMP"));
        let huge = Some("madvise".to_owned());
        let memory = Memory {
            total_kib: Some(2048),
            available_kib: Some(1024),
            swap_kib: Some(0),
            transparent_huge_pages: huge,
        };
        assert_eq!(found.memory, memory);
        assert_eq!(found.virtualisation.as_deref(), Some("virtual machine (Amazon EC2, m5.large)"));
        assert_eq!(found.load_average.as_deref(), Some("0.10 0.20 0.30"));
    }

    #[test]
    fn what_a_host_does_not_tell_is_named() {
        let (_dir, looker) = host(&[("proc/cpuinfo", "processor : 0\n"), ("proc/meminfo", "MemTotal: 1 kB\n")]);
        let found = looker.host(None, Generator::default(), None);
        let named: Vec<&str> = found.not_found.iter().map(|line| line.split(':').next().unwrap()).collect();
        assert_eq!(
            named,
            [
                "CPU model",
                "online processors",
                "usable processors",
                "governor",
                "kernel name",
                "MemAvailable",
                "SwapTotal",
                "huge pages",
                "load average"
            ]
        );
        assert!(found.not_found[1].contains("/sys/devices/system/cpu/online"), "{:?}", found.not_found[1]);
        assert_eq!(found.virtualisation.as_deref(), Some("none seen"));
    }

    #[test]
    fn this_host_can_be_looked_at_and_the_block_comes_back_from_json() {
        let dir = tempfile::tempdir().unwrap();
        let args = MachineArgs { store_dir: Some(dir.path().to_owned()), revision: Some("abc".to_owned()) };
        let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let found = Machine::look(&args, &Plan { target: Target::Broker(gone), ..plan() });
        assert!(found.cpu.usable.is_some_and(|count| count > 0));
        assert!(found.storage.as_ref().is_some_and(|storage| storage.file_system.is_some()));
        assert_eq!(found.generator.revision.as_deref(), Some("abc"));
        assert!(found.not_found.iter().any(|line| line.starts_with("broker's state:")), "{:?}", found.not_found);
        assert_eq!(Machine::of_result(&found.to_json()), Ok(found));
    }

    #[test]
    fn a_result_without_the_block_or_with_half_of_it_says_what_is_wrong() {
        assert!(Machine::of_result(&serde_json::Value::Null).unwrap_err().contains("no machine block"));
        let half = serde_json::json!({"cpu": {}});
        assert!(Machine::of_result(&half).unwrap_err().contains("missing field"));
    }

    #[test]
    fn the_revision_is_read_from_a_clone_a_worktree_and_packed_refs() {
        let (dir, _) = host(&[
            ("detached/.git/HEAD", "1111\n"),
            ("clone/.git/HEAD", "ref: refs/heads/main\n"),
            ("clone/.git/refs/heads/main", "2222\n"),
            ("packed/.git/HEAD", "ref: refs/heads/main\n"),
            ("packed/.git/packed-refs", "# pack-refs\n3333 refs/heads/not-main\n4444 refs/heads/main\n"),
            ("linked/.git", "gitdir: ../clone/.git/worktrees/linked\n"),
            ("clone/.git/worktrees/linked/HEAD", "ref: refs/heads/side\n"),
            ("clone/.git/worktrees/linked/commondir", "../..\n"),
            ("clone/.git/refs/heads/side", "5555\n"),
        ]);
        for (tree, revision) in [("detached", "1111"), ("clone", "2222"), ("packed", "4444"), ("linked", "5555")] {
            assert_eq!(head_of(&dir.path().join(tree)).as_deref(), Ok(revision), "{tree}");
        }
        assert!(head_of(&dir.path().join("none")).unwrap_err().contains("HEAD"));
    }
}
