//! The damaged regions that a recovery meets: bad places with good ones behind them, or below what was flushed (R2, R5).

use super::super::quarantine::region_unit;
use crate::format::unit::Unit;
use crate::types::{PhyOffset, QueueOffset};

/// One region, which lies in one segment.
#[derive(Clone, Debug)]
pub struct Damaged {
    pub start: PhyOffset,
    pub end: PhyOffset,
    pub why: String,
    /// What its records say of themselves, as far as they can be read.
    pub claims: Vec<Claim>,
    /// More messages than so many were not in it.
    pub messages_max: u64,
    /// Would a Java broker step over it, as its records' lengths lead to the next?
    pub java_steps_over: bool,
    /// On the list already: copied and told of by an earlier recovery, or by this one.
    pub is_listed: bool,
}

/// A record in a damaged region that says which message it is.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    /// Place of the queue in the list of queues.
    pub queue: usize,
    pub offset: QueueOffset,
}

impl Damaged {
    pub fn holds(&self, phy: PhyOffset) -> bool {
        (self.start..self.end).contains(&phy)
    }

    /// What the queue slots of its messages hold.
    pub fn unit(&self) -> Unit {
        region_unit(self.start, self.end)
    }
}

/// All of one recovery, in the order of the log; no two overlap.
#[derive(Debug, Default)]
pub struct Damage {
    regions: Vec<Damaged>,
}

impl Damage {
    pub fn clear(&mut self) {
        self.regions.clear();
    }

    /// Adds a region; what it covers of older ones is part of it.
    pub fn add(&mut self, region: Damaged) {
        self.regions.retain(|other| other.end <= region.start || region.end <= other.start);
        let at = self.regions.partition_point(|other| other.start < region.start);
        self.regions.insert(at, region);
    }

    /// Forgets those at `from` and behind it.
    pub fn forget_from(&mut self, from: PhyOffset) {
        self.regions.retain(|region| region.start < from);
    }

    pub fn all(&self) -> &[Damaged] {
        &self.regions
    }

    pub fn all_mut(&mut self) -> &mut [Damaged] {
        &mut self.regions
    }

    /// Those that reach behind `low` and begin before `high`.
    pub fn between(&self, low: PhyOffset, high: PhyOffset) -> &[Damaged] {
        let first = self.regions.partition_point(|region| region.end <= low);
        let end = self.regions.partition_point(|region| region.start < high);
        self.regions.get(first..end).unwrap_or_default()
    }

    /// The region that holds this position.
    pub fn holding(&self, phy: PhyOffset) -> Option<&Damaged> {
        let at = self.regions.partition_point(|region| region.start <= phy).checked_sub(1)?;
        Some(&self.regions[at]).filter(|region| region.holds(phy))
    }
}
