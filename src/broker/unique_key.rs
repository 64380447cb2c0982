//! Unique keys for messages whose clients sent none: 32 hex digits, as Java clients make them on IPv4 hosts.
//!
//! | digits | bytes | meaning                                         |
//! |-------:|------:|-------------------------------------------------|
//! |    0–7 |     4 | the node's address (of IPv6 the last four)       |
//! |   8–15 |     4 | this run of the node                             |
//! |  16–19 |     2 | the shard                                        |
//! |  20–27 |     4 | ms, low 32 bits                                  |
//! |  28–31 |     2 | counter                                          |
//!
//! A shard cannot make 65,536 keys in a millisecond, so no two are equal while the clock does not go back 49 days.

use std::cell::Cell;
use std::net::IpAddr;

use crate::types::{ShardId, Timestamp};

/// Characters of a key.
pub(super) const UNIQUE_KEY_LEN: usize = 32;
const HEX: &[u8; 16] = b"0123456789ABCDEF";

/// Makes the keys of one shard.
pub(super) struct UniqueKeys {
    start: [u8; 10],
    counter: Cell<u16>,
}

impl UniqueKeys {
    pub fn new(host: IpAddr, run: u32, shard: ShardId) -> UniqueKeys {
        let address = match host {
            IpAddr::V4(v4) => v4.octets(),
            IpAddr::V6(v6) => *v6.octets().last_chunk().expect("16 bytes end in 4"),
        };
        let mut start = [0; 10];
        start[..4].copy_from_slice(&address);
        start[4..8].copy_from_slice(&run.to_be_bytes());
        start[8..].copy_from_slice(&shard.0.to_be_bytes());
        UniqueKeys { start, counter: Cell::new(0) }
    }

    pub fn next(&self, now: Timestamp) -> [u8; UNIQUE_KEY_LEN] {
        let counter = self.counter.get();
        self.counter.set(counter.wrapping_add(1));
        let mut bytes = [0; UNIQUE_KEY_LEN / 2];
        bytes[..10].copy_from_slice(&self.start);
        bytes[10..14].copy_from_slice(&(now.0 as u32).to_be_bytes());
        bytes[14..].copy_from_slice(&counter.to_be_bytes());
        let mut key = [0; UNIQUE_KEY_LEN];
        for (pair, byte) in key.chunks_exact_mut(2).zip(bytes) {
            pair[0] = HEX[usize::from(byte >> 4)];
            pair[1] = HEX[usize::from(byte & 15)];
        }
        key
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_hex_and_differ_within_a_millisecond_between_shards_and_runs() {
        let host = IpAddr::from([127, 0, 0, 1]);
        let keys = UniqueKeys::new(host, 0xABCD, ShardId(1));
        let first = keys.next(Timestamp(0x1_0000_0002));
        assert_eq!(&first, b"7F0000010000ABCD0001000000020000");
        assert_ne!(first, keys.next(Timestamp(0x1_0000_0002)));
        assert_ne!(first, UniqueKeys::new(host, 0xABCD, ShardId(2)).next(Timestamp(0x1_0000_0002)));
        assert_ne!(first, UniqueKeys::new(host, 0xABCE, ShardId(1)).next(Timestamp(0x1_0000_0002)));
    }
}
