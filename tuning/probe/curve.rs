//! Batches of one length after the other, each brought onto stable storage and timed: the flush curve and the group
//! commits.
//!
//! All kinds are measured in rounds, a part of each in every round, so that a neighbour who makes noise for a second
//! spoils a part of all of them and not all of one.

use std::fs;
use std::io;
use std::time::{Duration, Instant};

use super::ProbeError;
use super::run::{Run, doing, timed};
use crate::io::{AppendMode, ProbeFile, SyncCall};

const ROUNDS: u64 = 3;
const PAGE_LEN: u64 = 4096;

/// One kind of batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    pub append: AppendMode,
    pub call: SyncCall,
    pub zeroed: bool,
    pub len: u64,
    /// How many, at most.
    pub count: u64,
}

impl Kind {
    fn per_round(&self) -> u64 {
        self.count.div_ceil(ROUNDS)
    }

    /// Bytes of the file that a round takes.
    fn round_len(&self) -> u64 {
        (self.per_round() * self.len).next_multiple_of(PAGE_LEN)
    }

    /// Bytes that it writes in all, zeros included.
    pub(super) fn written(&self) -> u64 {
        ROUNDS * self.round_len() * if self.zeroed { 2 } else { 1 }
    }
}

/// Every way to bring a batch onto stable storage.
pub(super) fn ways(direct: bool) -> Vec<(AppendMode, SyncCall)> {
    let both = [SyncCall::Fdatasync, SyncCall::ODsync];
    let mut ways: Vec<_> = both.map(|call| (AppendMode::Buffered, call)).into();
    if direct {
        ways.extend(both.map(|call| (AppendMode::Dma, call)));
    }
    // O_DSYNC is about writes, and a mapping has none.
    ways.push((AppendMode::Mmap, SyncCall::Fdatasync));
    ways
}

/// Counts so that all kinds together write at most `allowance` bytes, but one of each and round in any case.
pub(super) fn within(kinds: &mut [Kind], allowance: u64) {
    let wanted: u64 = kinds.iter().map(Kind::written).sum();
    if wanted > allowance {
        for kind in kinds {
            kind.count =
                (kind.count as u128 * u128::from(allowance) / u128::from(wanted)).max(u128::from(ROUNDS)) as u64;
        }
    }
}

/// Times of each kind, in the order asked for; of a kind that the time did not suffice for, none.
pub(super) fn time_all(
    run: &mut Run<'_>,
    what: &str,
    kinds: &[Kind],
    until: Instant,
) -> Result<Vec<Vec<Duration>>, ProbeError> {
    let mut files = Files::default();
    let mut times = vec![Vec::new(); kinds.len()];
    let steps = ROUNDS as usize * kinds.len();
    for step in 0..steps {
        let index = step % kinds.len();
        let kind = kinds[index];
        run.tell(what, step, steps);
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            continue;
        }
        let share = Instant::now() + left / (steps - step) as u32;
        let (file, at) = files.place(run, &kind, kinds).map_err(doing("making a file"))?;
        if kind.zeroed {
            file.write_zeros(at, at + kind.round_len()).map_err(doing("writing zeros"))?;
            run.wrote(kind.round_len());
        }
        for batch in 0..kind.per_round() {
            run.go_on()?;
            let at = at + batch * kind.len;
            let ((), time) =
                timed(|| file.commit(at, kind.len as usize, kind.call)).map_err(doing("writing a batch"))?;
            times[index].push(time);
            run.wrote(kind.len);
            if Instant::now() > share {
                break;
            }
        }
    }
    files.remove(run).map_err(doing("removing a file"))?;
    Ok(times)
}

/// One file for each append mode and kind of block, which grows as a log does.
#[derive(Default)]
struct Files {
    open: Vec<(AppendMode, bool, ProbeFile, u64)>,
}

impl Files {
    /// Where the next round of this kind goes.
    fn place(&mut self, run: &Run<'_>, kind: &Kind, all: &[Kind]) -> io::Result<(&mut ProbeFile, u64)> {
        let known = self.open.iter().position(|(append, zeroed, ..)| (*append, *zeroed) == (kind.append, kind.zeroed));
        let index = match known {
            Some(index) => index,
            None => {
                let same = all.iter().filter(|other| (other.append, other.zeroed) == (kind.append, kind.zeroed));
                let (len, longest) =
                    same.fold((0, 0), |(len, longest), kind| (len + ROUNDS * kind.round_len(), kind.len.max(longest)));
                let path = run.scratch.file(&format!("batches-{:?}-{}", kind.append, kind.zeroed));
                let file = ProbeFile::create(&path, len, kind.append, longest as usize)?;
                self.open.push((kind.append, kind.zeroed, file, 0));
                self.open.len() - 1
            }
        };
        let (_, _, file, next) = &mut self.open[index];
        let at = *next;
        *next += kind.round_len();
        Ok((file, at))
    }

    fn remove(self, run: &Run<'_>) -> io::Result<()> {
        self.open.iter().try_for_each(|(append, zeroed, ..)| {
            fs::remove_file(run.scratch.file(&format!("batches-{append:?}-{zeroed}")))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allowance_bounds_what_all_kinds_write_together() {
        let kind = |len, count| Kind { append: AppendMode::Buffered, call: SyncCall::ODsync, zeroed: true, len, count };
        let mut kinds = [kind(4096, 600), kind(1 << 20, 24)];
        within(&mut kinds, 1 << 30);
        assert_eq!(kinds.map(|kind| kind.count), [600, 24], "there is enough");
        within(&mut kinds, 26 << 20);
        assert!(kinds.iter().map(Kind::written).sum::<u64>() <= 32 << 20, "{kinds:?}");
        within(&mut kinds, 0);
        assert_eq!(kinds.map(|kind| kind.count), [3, 3]);
    }

    #[test]
    fn a_round_of_odd_batches_ends_on_a_page() {
        let kind = Kind { append: AppendMode::Dma, call: SyncCall::ODsync, zeroed: false, len: 1024, count: 7 };
        assert_eq!((kind.per_round(), kind.round_len(), kind.written()), (3, 4096, 12288));
    }
}
