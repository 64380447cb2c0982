//! Bodies of client batches.

#![no_main]

use kerolox::wire::batch;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(entries) = batch::entries(bytes) {
        let again = batch::encode(&entries);
        let second = batch::entries(&again).expect("what we encode, we read");
        assert_eq!(second.len(), entries.len());
        for (one, other) in entries.iter().zip(&second) {
            assert_eq!((one.flag, one.body, one.properties), (other.flag, other.body, other.properties));
        }
    }
});
