//! Which core runs which role. Source: the design's table (ARCHITECTURE.md, "Roles and cores").

use crate::config::CoresConfig;
use crate::types::ShardId;

/// Cores by role: with one core all roles share an executor, with two as well and the other core is left to the kernel's
/// part (network, writing back) and the helper threads; with more the writer has one and the rest are shards. Control
/// and the index builder run on shard 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    pub writer: usize,
    /// Core of each shard.
    pub shards: Vec<usize>,
}

/// More shards than this make no sense of a bit a shard.
const SHARDS_MAX: usize = 64;

impl Placement {
    /// The placement on the cores that this process may use.
    ///
    /// # Errors
    /// As [`Placement::choose`].
    pub fn here(cores: &CoresConfig) -> Result<Placement, String> {
        Placement::choose(&usable_cores(), cores.writer, cores.shards.as_deref())
    }

    /// Places the roles on `usable` cores, or as the settings say.
    ///
    /// # Errors
    /// One line that names the setting and the cores there are.
    pub fn choose(usable: &[usize], writer: Option<usize>, shards: Option<&[usize]>) -> Result<Placement, String> {
        // Two executors pass every message to and fro; with two cores that costs more than the second one brings.
        if let (&[_, second], None, None) = (usable, writer, shards) {
            return Ok(Placement { writer: second, shards: vec![second] });
        }
        let known = |core: usize, key: &str| {
            if usable.contains(&core) {
                return Ok(core);
            }
            Err(format!("{key}: this process may not use core {core}; it may use {}", list(usable)))
        };
        let Some(first) = usable.first() else { return Err("this process may use no core at all".into()) };
        let writer = match writer {
            Some(core) => known(core, "cores.writer")?,
            None => {
                let taken = |core: &&usize| shards.is_some_and(|shards| shards.contains(core));
                *usable.iter().find(|core| !taken(core)).unwrap_or(first)
            }
        };
        let mut placed = match shards {
            Some(shards) => shards.iter().map(|core| known(*core, "cores.shards")).collect::<Result<Vec<_>, _>>()?,
            None => usable.iter().copied().filter(|core| *core != writer).collect(),
        };
        if placed.is_empty() {
            placed.push(writer);
        }
        placed.truncate(SHARDS_MAX);
        Ok(Placement { writer, shards: placed })
    }

    /// The core of the node's plain threads: of `usable` one that no executor has, else that of the last shard.
    pub fn quiet_core(&self, usable: &[usize]) -> usize {
        let free = usable.iter().find(|core| **core != self.writer && !self.shards.contains(core));
        *free.or(self.shards.last()).unwrap_or(&self.writer)
    }

    /// How many executors there are.
    pub fn executors(&self) -> usize {
        self.shards.len() + usize::from(self.writer_has_its_own())
    }

    /// Name and core of each executor, in the order in which they start.
    pub fn roles(&self) -> Vec<(String, usize)> {
        let writer = self.writer_has_its_own().then(|| ("writer".to_owned(), self.writer));
        let shards = self.shards.iter().enumerate().map(|(shard, core)| (format!("shard {shard}"), *core));
        writer.into_iter().chain(shards).collect()
    }

    /// Has the writer an executor for itself?
    pub fn writer_has_its_own(&self) -> bool {
        !self.shards.contains(&self.writer)
    }

    /// Do the writer and a shard share a core, and so an executor?
    pub fn shares_writer_core(&self, shard: ShardId) -> bool {
        self.shards[shard.index()] == self.writer
    }
}

/// Cores that this process may run on, ascending.
pub(super) fn usable_cores() -> Vec<usize> {
    let mut cores: Vec<usize> =
        core_affinity::get_core_ids().unwrap_or_default().into_iter().map(|core| core.id).collect();
    cores.sort_unstable();
    cores
}

fn list(cores: &[usize]) -> String {
    cores.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(writer: usize, shards: &[usize]) -> Result<Placement, String> {
        Ok(Placement { writer, shards: shards.to_vec() })
    }

    #[test]
    fn one_core_runs_everything_of_two_as_well_and_more_make_shards() {
        assert_eq!(Placement::choose(&[0], None, None), placed(0, &[0]));
        assert_eq!(Placement::choose(&[0, 3], None, None), placed(3, &[3]));
        assert_eq!(Placement::choose(&[2, 3, 4, 5], None, None), placed(2, &[3, 4, 5]));
    }

    #[test]
    fn the_settings_decide_where_they_say_something() {
        assert_eq!(Placement::choose(&[0, 1, 2], Some(2), None), placed(2, &[0, 1]));
        assert_eq!(Placement::choose(&[0, 1, 2], None, Some(&[0])), placed(1, &[0]));
        assert_eq!(Placement::choose(&[0, 1], Some(1), Some(&[1])), placed(1, &[1]));
        assert_eq!(Placement::choose(&[0, 1], Some(0), None), placed(0, &[1]));
        assert_eq!(Placement::choose(&[0, 1], None, Some(&[0])), placed(1, &[0]));
    }

    #[test]
    fn plain_threads_keep_off_the_executors_where_a_core_is_left() {
        let quiet = |usable: &[usize], shards: Option<&[usize]>| {
            Placement::choose(usable, None, shards).map(|placement| placement.quiet_core(usable))
        };
        assert_eq!(quiet(&[0], None), Ok(0));
        assert_eq!(quiet(&[0, 1], None), Ok(0), "the executor has core 1");
        assert_eq!(quiet(&[0, 1, 2], None), Ok(2), "the writer has core 0, and core 1 is busier");
        assert_eq!(quiet(&[0, 1, 2, 3], Some(&[1, 2])), Ok(3), "the writer has core 0");
    }

    #[test]
    fn a_core_that_the_process_may_not_use_is_named() {
        let error = Placement::choose(&[0, 1], Some(7), None).unwrap_err();
        assert!(error.contains("cores.writer") && error.contains('7') && error.contains("0, 1"), "{error}");
        assert!(Placement::choose(&[0, 1], None, Some(&[9])).unwrap_err().contains("cores.shards"));
    }
}
