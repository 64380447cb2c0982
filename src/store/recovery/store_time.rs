//! Which store times are believed: no checksum covers that of a record, and from the newest one on time never goes back
//! (rule R16). One flipped bit must not put all messages to come centuries ahead.

use crate::io::now;
use crate::types::{PhyOffset, Timestamp};

/// A time further ahead of the clock needs a witness.
const AHEAD_MAX_MS: i64 = 24 * 60 * 60 * 1000;

/// Can this be a time at which something was stored, as far as the clock knows?
pub fn is_credible(time: Timestamp) -> bool {
    time <= now().plus_ms(AHEAD_MAX_MS)
}

/// The newest store time of a scan.
#[derive(Debug)]
pub struct NewestTime {
    newest: Timestamp,
    /// Far ahead of the clock and of the record before: true if the next record agrees, as that is stored no earlier.
    in_doubt: Option<(Timestamp, PhyOffset)>,
    limit: Timestamp,
}

impl NewestTime {
    pub fn new(newest: Timestamp) -> NewestTime {
        NewestTime { newest, in_doubt: None, limit: now().plus_ms(AHEAD_MAX_MS) }
    }

    /// The next record of the log.
    pub fn take(&mut self, time: Timestamp, phy: PhyOffset) {
        if let Some((doubtful, at)) = self.in_doubt.take() {
            if time >= doubtful {
                self.newest = self.newest.max(doubtful);
            } else {
                warn_of(doubtful, at);
            }
        }
        if time > self.limit.max(self.newest.plus_ms(AHEAD_MAX_MS)) {
            self.in_doubt = Some((time, phy));
        } else {
            self.newest = self.newest.max(time);
        }
    }

    /// The newest that can be believed.
    pub fn at(&self) -> Timestamp {
        self.newest
    }

    /// The scan is over: nobody bears witness any more.
    pub fn end(&mut self) -> Timestamp {
        if let Some((doubtful, at)) = self.in_doubt.take() {
            warn_of(doubtful, at);
        }
        self.newest
    }
}

fn warn_of(time: Timestamp, phy: PhyOffset) {
    tracing::warn!(phy_offset = %phy, store_time = time.0,
        "the message says that it was stored far in the future; it is served, and time does not go on from there");
}

#[cfg(test)]
mod tests {
    use super::*;

    const FUTURE: i64 = 19_381_184_000_000;

    fn newest(times: &[i64]) -> i64 {
        let mut newest = NewestTime::new(Timestamp(0));
        times.iter().for_each(|time| newest.take(Timestamp(*time), PhyOffset(0)));
        newest.end().0
    }

    #[test]
    fn one_time_far_ahead_is_not_believed_wherever_it_is() {
        let times = [1000, 2000, 3000];
        for at in 0..3 {
            let mut flipped = times;
            flipped[at] = FUTURE;
            let expected = if at == 2 { 2000 } else { 3000 };
            assert_eq!(newest(&flipped), expected, "{at}");
        }
    }

    #[test]
    fn times_far_ahead_that_agree_are_those_of_a_clock_that_was_set_back() {
        assert_eq!(newest(&[1000, FUTURE, FUTURE + 5, FUTURE + 7]), FUTURE + 7);
        assert_eq!(newest(&[FUTURE, FUTURE + 5, 4000]), FUTURE + 5);
    }
}
