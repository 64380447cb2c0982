//! One file as the disk has it: what is on stable storage, and every version of each sector written since.

use std::collections::BTreeMap;

use super::dice::Dice;

/// What a disk writes as a whole, or tears at one place.
pub const SECTOR_LEN: usize = 512;

type Sector = [u8; SECTOR_LEN];

/// How much of what was not synced a power cut leaves.
#[derive(Clone, Copy, Debug)]
pub enum Keep {
    /// Each sector, length and name with this chance.
    Percent(u64),
    /// Everything that was written before this moment, and nothing of what came after it.
    Before(u64),
}

impl Keep {
    pub fn keeps(self, dice: &Dice, stamp: u64) -> bool {
        match self {
            Keep::Percent(percent) => dice.chance(percent),
            Keep::Before(moment) => stamp < moment,
        }
    }
}

/// Stamps are moments: they rise with every change of any file.
#[derive(Clone, Debug, Default)]
pub struct Content {
    /// What the page cache shows.
    shown: Vec<u8>,
    durable: Vec<u8>,
    durable_len: usize,
    unsynced: BTreeMap<usize, Vec<(u64, Sector)>>,
    unsynced_lens: Vec<(u64, usize)>,
    /// Something was stored through a mapping, which only a look at the file tells.
    pub is_mapped: bool,
}

impl Content {
    pub fn durable(bytes: Vec<u8>) -> Content {
        Content { durable: bytes.clone(), durable_len: bytes.len(), shown: bytes, ..Content::default() }
    }

    pub fn shown(&self) -> &[u8] {
        &self.shown
    }

    pub fn resize(&mut self, stamp: u64, len: usize) {
        if len == self.shown.len() {
            return;
        }
        let (short, long) = (len.min(self.shown.len()), len.max(self.shown.len()));
        self.shown.resize(len, 0);
        if short == len {
            // What is cut off reads as zeros if the file grows again.
            for sector in short / SECTOR_LEN..long.div_ceil(SECTOR_LEN) {
                self.note(stamp, sector);
            }
        }
        self.unsynced_lens.push((stamp, len));
    }

    pub fn write(&mut self, stamp: u64, at: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let end = at + bytes.len();
        if end > self.shown.len() {
            self.resize(stamp, end);
        }
        self.shown[at..end].copy_from_slice(bytes);
        for sector in at / SECTOR_LEN..end.div_ceil(SECTOR_LEN) {
            self.note(stamp, sector);
        }
    }

    /// The file was seen to hold this.
    pub fn observe(&mut self, stamp: u64, bytes: &[u8]) {
        self.resize(stamp, bytes.len());
        for (sector, part) in bytes.chunks(SECTOR_LEN).enumerate() {
            let at = sector * SECTOR_LEN;
            if self.shown[at..at + part.len()] != *part {
                self.shown[at..at + part.len()].copy_from_slice(part);
                self.note(stamp, sector);
            }
        }
    }

    fn note(&mut self, stamp: u64, sector: usize) {
        let version = sector_of(&self.shown, sector);
        self.unsynced.entry(sector).or_default().push((stamp, version));
    }

    /// Everything up to that moment is on stable storage.
    pub fn synced(&mut self, stamp: u64) {
        let sectors: Vec<_> = self.unsynced.keys().copied().collect();
        self.settle(stamp, sectors);
        while let Some((_, len)) = self.unsynced_lens.first().copied().filter(|(at, _)| *at <= stamp) {
            self.durable_len = len;
            self.unsynced_lens.remove(0);
        }
    }

    /// What lies in `[at, at + len)` is, and the length that it takes to find it.
    pub fn synced_range(&mut self, stamp: u64, at: usize, len: usize) {
        self.settle(stamp, (at / SECTOR_LEN..(at + len).div_ceil(SECTOR_LEN)).collect());
        if at + len > self.durable_len {
            while let Some((_, len)) = self.unsynced_lens.first().copied().filter(|(moment, _)| *moment <= stamp) {
                self.durable_len = len;
                self.unsynced_lens.remove(0);
            }
        }
    }

    fn settle(&mut self, stamp: u64, sectors: Vec<usize>) {
        for sector in sectors {
            let Some(versions) = self.unsynced.get_mut(&sector) else { continue };
            let done = versions.partition_point(|(at, _)| *at <= stamp);
            if let Some((_, version)) = versions[..done].last() {
                let at = sector * SECTOR_LEN;
                if self.durable.len() < at + SECTOR_LEN {
                    self.durable.resize(at + SECTOR_LEN, 0);
                }
                self.durable[at..at + SECTOR_LEN].copy_from_slice(version);
            }
            versions.drain(..done);
            if versions.is_empty() {
                self.unsynced.remove(&sector);
            }
        }
    }

    /// A sync failed: of what it should have brought to stable storage, the disk has whatever it has; the pages count as
    /// clean, so no later sync writes them.
    pub fn sync_failed(&mut self, dice: &Dice, keep: Keep) {
        let left = self.after_power_cut(dice, keep);
        self.durable_len = left.len();
        self.durable = left;
        self.unsynced.clear();
        self.unsynced_lens.clear();
    }

    /// One of the contents that a power cut can leave: of every unsynced sector one version, now and then torn: the head
    /// of one and the tail of the version before it.
    pub fn after_power_cut(&self, dice: &Dice, keep: Keep) -> Vec<u8> {
        let len = self.unsynced_lens.iter().rfind(|(stamp, _)| keep.keeps(dice, *stamp));
        let len = len.map_or(self.durable_len, |(_, len)| *len);
        let mut left = self.durable.clone();
        left.resize(len.max(self.durable.len()).next_multiple_of(SECTOR_LEN), 0);
        for (sector, versions) in &self.unsynced {
            let kept = match keep {
                Keep::Before(moment) => versions.partition_point(|(stamp, _)| *stamp < moment),
                Keep::Percent(percent) if !dice.chance(percent) => 0,
                Keep::Percent(_) if dice.chance(70) => versions.len(),
                Keep::Percent(_) => 1 + dice.below(versions.len() as u64) as usize,
            };
            let Some(newest) = kept.checked_sub(1) else { continue };
            let at = sector * SECTOR_LEN;
            if left.len() < at + SECTOR_LEN {
                continue; // beyond the length that is left
            }
            let torn_at = if dice.chance(8) { dice.below(SECTOR_LEN as u64) as usize } else { SECTOR_LEN };
            if torn_at < SECTOR_LEN && newest > 0 {
                left[at..at + SECTOR_LEN].copy_from_slice(&versions[newest - 1].1);
            }
            left[at..at + torn_at].copy_from_slice(&versions[newest].1[..torn_at]);
        }
        left.truncate(len);
        left.resize(len, 0);
        left
    }
}

fn sector_of(bytes: &[u8], sector: usize) -> Sector {
    let mut found = [0; SECTOR_LEN];
    let at = (sector * SECTOR_LEN).min(bytes.len());
    let part = &bytes[at..(at + SECTOR_LEN).min(bytes.len())];
    found[..part.len()].copy_from_slice(part);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn synced_bytes_survive_and_others_may_be_in_any_version() {
        let mut content = Content::default();
        content.resize(1, 1024);
        content.write(2, 0, &[1; 1024]);
        content.synced(2);
        content.write(3, 0, &[2; 512]);
        content.write(4, 0, &[3; 512]);
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..500 {
            let left = content.after_power_cut(&Dice::new(seed), Keep::Percent(50));
            assert_eq!(left[512..], [1; 512]);
            let changes = left[..512].windows(2).filter(|pair| pair[0] != pair[1]).count();
            assert!(changes <= 1 && left[0] >= left[511], "a torn sector is a new head with an old tail");
            seen.insert(left[0]);
        }
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [1, 2, 3]);
    }

    #[test]
    fn a_sync_covers_what_was_written_before_it_began_alone() {
        let mut content = Content::durable(vec![0; 512]);
        content.write(5, 0, &[1; 100]);
        content.write(7, 0, &[2; 100]);
        content.synced(6);
        assert_eq!(content.after_power_cut(&Dice::new(0), Keep::Percent(0))[..2], [1, 1]);
    }

    #[test]
    fn a_length_that_was_not_synced_can_be_lost_with_what_lies_behind_it() {
        let mut content = Content::durable(vec![7; 100]);
        content.write(1, 100, &[8; 1000]);
        assert_eq!(content.after_power_cut(&Dice::new(0), Keep::Percent(0)), [7; 100]);
        content.synced(1);
        assert_eq!(content.after_power_cut(&Dice::new(0), Keep::Percent(0)).len(), 1100);
    }
}
