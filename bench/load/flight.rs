//! The requests under way on one connection, found again by their opaque number.
//!
//! The number holds the request's slot and a count of how often the slot was used, so an answer that comes after its
//! time-out is told from the answer to the request that has the slot now. It always has ten digits: a frame that was
//! built once keeps its length.

/// The least opaque number; the greatest is below 2^31.
const OPAQUE_MIN: i32 = 1_000_000_000;
const OPAQUE_BITS: u32 = 30;
/// The most requests under way on one connection.
pub const SLOTS_MAX: u32 = 1 << 17;

/// Puts slot and round into an opaque number and takes them out again.
#[derive(Clone, Copy, Debug)]
pub struct Opaques {
    slot_bits: u32,
}

impl Opaques {
    /// For up to `slots` slots.
    ///
    /// # Panics
    /// Above [`SLOTS_MAX`].
    pub fn of(slots: u32) -> Opaques {
        assert!((1..=SLOTS_MAX).contains(&slots), "{slots} slots");
        Opaques { slot_bits: slots.next_power_of_two().trailing_zeros() }
    }

    pub fn join(self, slot: u32, round: u32) -> i32 {
        let number = (round << self.slot_bits | slot) & ((1 << OPAQUE_BITS) - 1);
        OPAQUE_MIN + number as i32
    }

    /// The slot that a number names, if it is one of ours at all.
    pub fn slot(self, opaque: i32) -> Option<usize> {
        let number = opaque.checked_sub(OPAQUE_MIN).filter(|number| (0..1 << OPAQUE_BITS).contains(number))?;
        Some((number & ((1 << self.slot_bits) - 1)) as usize)
    }
}

/// A request under way.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// 0: free.
    opaque: i32,
    round: u32,
    intended: u64,
    sent: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Flight {
    opaques: Opaques,
    slots: Vec<Slot>,
    /// The last freed is used first, so few slots stay in the processor's cache however many there are.
    free: Vec<u32>,
}

impl Flight {
    pub fn new(slots: u32) -> Flight {
        Flight {
            opaques: Opaques::of(slots),
            slots: vec![Slot::default(); slots as usize],
            free: (0..slots).rev().collect(),
        }
    }

    /// Takes up a request; gives its opaque number. `None` if as many as may be are under way.
    #[inline]
    pub fn start(&mut self, intended: u64, sent: u64) -> Option<i32> {
        let index = self.free.pop()?;
        let slot = &mut self.slots[index as usize];
        slot.round = slot.round.wrapping_add(1);
        slot.opaque = self.opaques.join(index, slot.round);
        slot.intended = intended;
        slot.sent = sent;
        Some(slot.opaque)
    }

    /// Ends the request with this number; gives its intended time. `None` for a number that is not under way.
    #[inline]
    pub fn finish(&mut self, opaque: i32) -> Option<u64> {
        let index = self.opaques.slot(opaque)?;
        let slot = self.slots.get_mut(index).filter(|slot| slot.opaque == opaque)?;
        slot.opaque = 0;
        self.free.push(index as u32);
        Some(slot.intended)
    }

    /// Ends all requests that were sent before `time`; gives the intended time of each.
    pub fn expire(&mut self, time: u64) -> Vec<u64> {
        let mut expired = Vec::new();
        if self.under_way() == 0 {
            return expired;
        }
        for (index, slot) in self.slots.iter_mut().enumerate() {
            if slot.opaque != 0 && slot.sent < time {
                slot.opaque = 0;
                self.free.push(index as u32);
                expired.push(slot.intended);
            }
        }
        expired
    }

    pub fn room(&self) -> usize {
        self.free.len()
    }

    pub fn under_way(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_find_their_requests_in_any_order() {
        let mut flight = Flight::new(3);
        let opaques: Vec<i32> = (0..3).map(|number| flight.start(number, 0).unwrap()).collect();
        assert_eq!(flight.start(3, 0), None);
        assert_eq!(flight.finish(opaques[1]), Some(1));
        assert_eq!(flight.finish(opaques[1]), None, "answered twice");
        assert_eq!(flight.finish(opaques[0]), Some(0));
        assert_eq!((flight.under_way(), flight.room()), (1, 2));
    }

    #[test]
    fn a_late_answer_does_not_end_the_request_that_has_the_slot_now() {
        let mut flight = Flight::new(1);
        let late = flight.start(10, 100).unwrap();
        assert!(flight.expire(100).is_empty());
        assert_eq!(flight.expire(101), [10]);
        let next = flight.start(20, 200).unwrap();
        assert_eq!(flight.finish(late), None);
        assert_eq!(flight.finish(next), Some(20));
    }

    #[test]
    fn numbers_have_ten_digits_however_often_a_slot_is_used() {
        let opaques = Opaques::of(1000);
        for round in [0, 1, 1 << 19, 1 << 20, u32::MAX] {
            for slot in [0, 999] {
                let opaque = opaques.join(slot, round);
                assert_eq!(opaque.to_string().len(), 10);
                assert_eq!(opaques.slot(opaque), Some(slot as usize));
            }
        }
    }

    #[test]
    fn numbers_that_we_never_gave_find_nothing() {
        let mut flight = Flight::new(5);
        let real = flight.start(1, 1).unwrap();
        for opaque in [i32::MIN, -1, 0, 1, 999_999_999, real + 1, real + 7, i32::MAX] {
            assert_eq!(flight.finish(opaque), None, "{opaque}");
        }
    }
}
