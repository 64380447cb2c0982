//! What the commands that look at the host must know of the node.

use std::path::PathBuf;

use kerolox::node::Placement;
use kerolox::tuning::Host;
use rustix::thread::{CpuSet, sched_getaffinity};

#[derive(clap::Args)]
pub struct NodeArgs {
    /// The node's directory; its file system and disks are looked at. It need not be there yet
    #[arg(long, value_name = "DIR", default_value = "./kerolox-data")]
    data: PathBuf,
    /// Executors of the node, one a core that it uses [default: as many as a node has on the cores that this process may use]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    executors: Option<u16>,
    /// Core on which the node appends, as in cores.writer [default: the one that a node takes by itself]
    #[arg(long, value_name = "CORE")]
    writer_core: Option<usize>,
    /// Look for /proc, /sys and the rest below this directory. For tests
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    sysroot: PathBuf,
}

impl NodeArgs {
    pub fn host(&self) -> Host {
        let set = sched_getaffinity(None);
        let usable = set.map_or(Vec::new(), |set| (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect());
        // Where the kernel does not tell, one core is there in any case.
        let (executors, writer) = Placement::choose(&usable, None, None)
            .map_or((1, 0), |placement| (placement.executors(), placement.writer));
        let executors = self.executors.map_or(executors, usize::from);
        Host::look(&self.sysroot, &self.data, executors, self.writer_core.unwrap_or(writer))
    }
}
