//! Looking at many mappings at once, of which parts may be lost.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::guard::{Armed, Guard, arm};
use super::segment::Segment;
use super::shared_map::SharedMap;

/// Runs `access`, which touches these mappings as it likes: what cannot be brought into memory reads as zeros, and the
/// mapping says that it is broken. For a store that is being opened, which knows damage when it meets zeros in the log,
/// and gives up the other files. Blocking.
pub fn over_faults<R>(segments: &[Arc<Segment>], maps: &[&SharedMap], access: impl FnOnce() -> R) -> R {
    let guards = segments.iter().map(|segment| segment.guard()).chain(maps.iter().map(|map| map.guard()));
    let armed: Vec<Armed> = guards.map(Guard::armed).collect();
    let disarm = arm(&armed);
    let result = access();
    drop(disarm);
    fence(Ordering::Acquire);
    result
}
