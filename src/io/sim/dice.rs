//! All chance of a simulation comes from here, and so from its seed.

use std::cell::Cell;

/// SplitMix64.
#[derive(Debug)]
pub struct Dice(Cell<u64>);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(Cell::new(seed))
    }

    pub fn roll(&self) -> u64 {
        let state = self.0.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.0.set(state);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number in `[0, end)`; 0 if there is none.
    pub fn below(&self, end: u64) -> u64 {
        if end == 0 { 0 } else { self.roll() % end }
    }

    /// A number in `[from, to]`.
    pub fn between(&self, from: u64, to: u64) -> u64 {
        from + self.below(to - from + 1)
    }

    pub fn chance(&self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub fn one_of<'a, T>(&self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len() as u64) as usize]
    }

    /// Dice whose rolls do not depend on how often these are rolled from now on.
    pub fn fork(&self) -> Dice {
        Dice::new(self.roll())
    }
}
