//! The JSON files of `config/`. The first byte says which; the rest is the file.

#![no_main]

use kerolox::format::config_files::{ConsumerOffsetsFile, DelayOffsetsFile, SubscriptionGroupsFile, TopicsFile};
use kerolox::types::json;
use libfuzzer_sys::fuzz_target;

/// What is written again reads as the same, and is written as the same.
macro_rules! round_trip {
    ($file:ty, $text:expr) => {
        if let Ok(file) = <$file>::decode($text) {
            let written = file.encode();
            let second = <$file>::decode(&written).expect("what we write, we read");
            assert_eq!(second.encode(), written);
        }
    };
}

fuzz_target!(|bytes: &[u8]| {
    let Some((which, text)) = bytes.split_first() else { return };
    match which % 5 {
        0 => round_trip!(TopicsFile, text),
        1 => round_trip!(SubscriptionGroupsFile, text),
        2 => round_trip!(ConsumerOffsetsFile, text),
        3 => round_trip!(DelayOffsetsFile, text),
        _ => {
            let _ = json::parse(text);
        }
    }
});
