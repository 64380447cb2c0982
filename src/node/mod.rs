//! Cores: which executor runs which role, how they reach each other, how the node starts and stops.
//!
//! Floor 5, the only room that knows how many cores there are. [`run`] is called by the door and returns when the node
//! has stopped.

mod checks;
mod control_core;
mod error;
mod heartbeat;
mod helper;
mod memory;
mod mesh;
mod notify;
mod page;
mod placement;
mod process;
mod run;
mod shard_core;
mod writer_core;

pub use checks::HostWarnings;
pub use error::NodeError;
pub use memory::memory_len;
pub use placement::Placement;
pub use run::{append_mode, run, store_settings};
