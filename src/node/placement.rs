//! Which core runs which role. Source: the design's table (ARCHITECTURE.md, "Roles and cores").

use crate::types::ShardId;

/// Cores by role: with one core all roles share an executor, with two the writer has its own, with more the rest are
/// shards. Control and the index builder run on shard 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    pub writer: usize,
    /// Core of each shard.
    pub shards: Vec<usize>,
}

/// More shards than this make no sense of a bit a shard.
const SHARDS_MAX: usize = 64;

impl Placement {
    /// Places the roles on `usable` cores, or as the settings say.
    ///
    /// # Errors
    /// One line that names the setting and the cores there are.
    pub fn choose(usable: &[usize], writer: Option<usize>, shards: Option<&[usize]>) -> Result<Placement, String> {
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
    fn one_core_runs_everything_two_split_and_more_make_shards() {
        assert_eq!(Placement::choose(&[0], None, None), placed(0, &[0]));
        assert_eq!(Placement::choose(&[0, 1], None, None), placed(0, &[1]));
        assert_eq!(Placement::choose(&[2, 3, 4, 5], None, None), placed(2, &[3, 4, 5]));
    }

    #[test]
    fn the_settings_decide_where_they_say_something() {
        assert_eq!(Placement::choose(&[0, 1, 2], Some(2), None), placed(2, &[0, 1]));
        assert_eq!(Placement::choose(&[0, 1, 2], None, Some(&[0])), placed(1, &[0]));
        assert_eq!(Placement::choose(&[0, 1], Some(1), Some(&[1])), placed(1, &[1]));
    }

    #[test]
    fn a_core_that_the_process_may_not_use_is_named() {
        let error = Placement::choose(&[0, 1], Some(7), None).unwrap_err();
        assert!(error.contains("cores.writer") && error.contains('7') && error.contains("0, 1"), "{error}");
        assert!(Placement::choose(&[0, 1], None, Some(&[9])).unwrap_err().contains("cores.shards"));
    }
}
