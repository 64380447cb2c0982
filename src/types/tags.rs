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
    if !text.is_ascii() {
        return text.encode_utf16().fold(start, step);
    }
    // Eight steps at once: one multiplication by 31⁸, and eight by lower powers that do not wait for each other.
    let (chunks, rest) = text.as_bytes().as_chunks::<8>();
    let chunked = chunks.iter().fold(start, |h, chunk| {
        let weighted = chunk.iter().zip(POWERS).map(|(byte, power)| i32::from(*byte).wrapping_mul(power));
        weighted.fold(h.wrapping_mul(POWER_8), i32::wrapping_add)
    });
    rest.iter().fold(chunked, |h, byte| step(h, u16::from(*byte)))
}

/// 31⁷ down to 31⁰, and 31⁸; wrapping in 32 bits.
const POWERS: [i32; 8] = powers();
const POWER_8: i32 = POWERS[0].wrapping_mul(31);

const fn powers() -> [i32; 8] {
    let mut powers = [1_i32; 8];
    let mut index = 7;
    while index > 0 {
        powers[index - 1] = powers[index].wrapping_mul(31);
        index -= 1;
    }
    powers
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
    fn a_text_of_any_length_has_the_hash_of_its_characters_one_by_one() {
        let all: String = (0..200_u32).map(|n| char::from(33 + (n * n % 94) as u8)).collect();
        for len in 0..=all.len() {
            let one_by_one = |h: i32, c: u16| h.wrapping_mul(31).wrapping_add(i32::from(c));
            for start in [0, 1, -7, i32::MAX] {
                let expected = all[..len].encode_utf16().fold(start, one_by_one);
                assert_eq!(hash_on(start, &all[..len]), expected, "{len} from {start}");
            }
        }
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
