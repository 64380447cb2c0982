//! What the commands that look at the host must know of the node.

use std::path::PathBuf;

use kerolox::tuning::Host;
use rustix::thread::{CpuSet, sched_getaffinity};

#[derive(clap::Args)]
pub struct NodeArgs {
    /// The node's directory; its file system and disks are looked at. It need not be there yet
    #[arg(long, value_name = "DIR", default_value = "./kerolox-data")]
    data: PathBuf,
    /// Executors of the node, one a core that it uses [default: the cores that this process may use]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    executors: Option<u16>,
    /// Core on which the node appends, as in cores.writer [default: the first that this process may use]
    #[arg(long, value_name = "CORE")]
    writer_core: Option<usize>,
    /// Look for /proc, /sys and the rest below this directory. For tests
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    sysroot: PathBuf,
}

impl NodeArgs {
    pub fn host(&self) -> Host {
        // Where the kernel does not tell, one core is there in any case.
        let usable = sched_getaffinity(None);
        let count = usable.as_ref().map_or(1, |set| set.count() as usize);
        let first = usable.ok().and_then(|set| (0..CpuSet::MAX_CPU).find(|core| set.is_set(*core)));
        let writer_core = self.writer_core.or(first).unwrap_or(0);
        Host::look(&self.sysroot, &self.data, self.executors.map_or(count.max(1), usize::from), writer_core)
    }
}
