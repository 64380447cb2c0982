//! The two hashes of the store: of a tag, and of an index key. Source: store.md 2.9 and 4.2.

/// What a consume queue unit holds beside place and size: hash of the tag, or the delivery time in ms if delayed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TagsCode(pub i64);

impl TagsCode {
    /// Code of a tag; of no tag (or an empty one) 0.
    pub fn of(tag: Option<&str>) -> TagsCode {
        match tag {
            Some(tag) if !tag.is_empty() => TagsCode(i64::from(java_hash(tag))),
            _ => TagsCode(0),
        }
    }
}

/// Java's `String.hashCode`: `h = 31 * h + c` over UTF-16 code units, wrapping in 32 bits.
pub fn java_hash(text: &str) -> i32 {
    hash_on(0, text)
}

fn hash_on(start: i32, text: &str) -> i32 {
    let step = |h: i32, c: u16| h.wrapping_mul(31).wrapping_add(i32::from(c));
    if text.is_ascii() {
        text.bytes().fold(start, |h, b| step(h, u16::from(b)))
    } else {
        text.encode_utf16().fold(start, step)
    }
}

/// Hash of an index key, not negative: |hash of `topic#key`|, and 0 for the one hash that has no absolute value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyHash(pub i32);

/// The index hash of `topic#key`, without building that text.
pub fn key_hash(topic: &str, key: &str) -> KeyHash {
    let hash = hash_on(hash_on(hash_on(0, topic), "#"), key);
    KeyHash(hash.checked_abs().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tag_hashes_are_those_that_java_computes() {
        for (tag, hash) in [
            ("TagA", 2598919),
            ("a", 97),
            ("*", 42),
            ("TagA||TagB", 1789476431),
            ("中文", 646394),
            ("Aa", 2112),
            ("BB", 2112),
            ("polygenelubricants", i64::from(i32::MIN)),
        ] {
            assert_eq!(TagsCode::of(Some(tag)), TagsCode(hash), "{tag}");
        }
        assert_eq!(TagsCode::of(None), TagsCode(0));
        assert_eq!(TagsCode::of(Some("")), TagsCode(0));
    }

    #[test]
    fn key_hashes_are_those_that_java_computes() {
        assert_eq!(key_hash("TopicTest", "k1"), KeyHash(2746024));
        assert_eq!(key_hash("TopicTest", "7F00000100002A9F00000000000000AA"), KeyHash(1471913870));
        assert_eq!(key_hash("TopicTest", "tbaekxa"), KeyHash(0));
        assert_eq!(key_hash("TopicTest", "Aa"), KeyHash(2744770));
        assert_eq!(key_hash("TopicTest", "BB"), KeyHash(2744770));
    }
}
