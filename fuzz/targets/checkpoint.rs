//! The checkpoint page.

#![no_main]

use kerolox::format::checkpoint::Checkpoint;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some(checkpoint) = Checkpoint::decode(bytes) {
        assert!(checkpoint.min_timestamp().0 >= 0);
        let again = Checkpoint::decode(&checkpoint.encode()).expect("what we encode, we read");
        assert_eq!(again.encode(), checkpoint.encode());
    }
});
