//! What the broker looks for in a message's properties, found in one walk over them.

use smallvec::SmallVec;

use crate::types::properties as text;
use crate::types::{KeyHash, key_hash};

/// Number of messages in an inner batch; stores without such topics refuse it.
const INNER_NUM: &str = "INNER_NUM";

/// The properties that change what happens to a message; of a name that occurs twice the last counts.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Marks<'a> {
    pub tags: Option<&'a str>,
    pub keys: Option<&'a str>,
    pub unique_key: Option<&'a str>,
    /// Delay level as the client wrote it.
    pub delay: Option<&'a str>,
    pub retry_topic: Option<&'a str>,
    pub origin_message_id: Option<&'a str>,
    /// WAIT=false: the sender does not wait for the flush.
    pub no_wait: bool,
    /// TRAN_MSG=true: first half of a transaction.
    pub half: bool,
    /// One of the timer properties.
    pub timed: bool,
    /// A property that must not be stored ([`Marks::is_stored`]).
    pub unwanted: bool,
    pub inner_batch: bool,
}

impl<'a> Marks<'a> {
    pub fn scan(raw: &'a str) -> Marks<'a> {
        let mut marks = Marks::default();
        for (name, value) in text::iter(raw) {
            match name {
                text::TAGS => marks.tags = Some(value),
                text::KEYS => marks.keys = Some(value),
                text::UNIQ_KEY => marks.unique_key = Some(value),
                text::DELAY => marks.delay = Some(value),
                text::RETRY_TOPIC => marks.retry_topic = Some(value),
                text::ORIGIN_MESSAGE_ID => marks.origin_message_id = Some(value),
                text::WAIT => marks.no_wait = value.eq_ignore_ascii_case("false"),
                text::TRAN_MSG => marks.half = value.eq_ignore_ascii_case("true"),
                text::TIMER_DELIVER_MS | text::TIMER_DELAY_MS | text::TIMER_DELAY_SEC => marks.timed = true,
                INNER_NUM => marks.inner_batch = true,
                name => marks.unwanted |= !Marks::is_stored(name),
            }
        }
        marks
    }

    /// Is a property of this name kept (store.md 2.5, 2.6)? Leftovers of pop, a checksum that only the store may give, and
    /// what was for the way alone are not.
    pub fn is_stored(name: &str) -> bool {
        // Nearly every name is told by its first letter.
        !((name.starts_with('P') && name == text::POP_CK)
            || (name.starts_with('_') && (name == text::RECORD_CRC || name.starts_with(text::TRANSIENT_PREFIX))))
    }

    /// The delay level; 0 if there is none. What is no number comes back as the error.
    pub fn delay_level(&self) -> Result<i32, &'a str> {
        let Some(delay) = self.delay else { return Ok(0) };
        delay.parse().map(|level: i32| level.max(0)).map_err(|_| delay)
    }

    /// Index hashes of a message that is stored in `topic`: of its unique key, then of each word of KEYS.
    pub fn key_hashes(&self, topic: &str) -> SmallVec<[KeyHash; 3]> {
        let words = self.keys.into_iter().flat_map(|keys| keys.split(' ')).filter(|word| !word.is_empty());
        self.unique_key.into_iter().chain(words).map(|key| key_hash(topic, key)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(readable: &str) -> String {
        readable.replace('=', "\u{1}").replace(';', "\u{2}")
    }

    #[test]
    fn marks_are_found_wherever_they_stand() {
        let raw = raw("a=b;TAGS=t;KEYS=k1 k2;UNIQ_KEY=u;WAIT=false;DELAY=3;TRAN_MSG=true;TIMER_DELAY_SEC=1;POP_CK=x");
        let marks = Marks::scan(&raw);
        assert_eq!((marks.tags, marks.keys, marks.unique_key), (Some("t"), Some("k1 k2"), Some("u")));
        assert!(marks.no_wait && marks.half && marks.timed && marks.unwanted && !marks.inner_batch);
        assert_eq!(marks.delay_level(), Ok(3));
        assert_eq!(Marks::scan(""), Marks::default());
    }

    #[test]
    fn a_delay_level_is_a_number_and_never_negative() {
        for (text, level) in [("DELAY=0;", Ok(0)), ("DELAY=-2;", Ok(0)), ("DELAY=99;", Ok(99)), ("DELAY=x;", Err("x"))]
        {
            assert_eq!(Marks::scan(&raw(text)).delay_level(), level);
        }
    }

    #[test]
    fn the_unique_key_and_each_word_of_keys_are_indexed() {
        let raw = raw("KEYS=k1  k2 ;UNIQ_KEY=u;");
        let hashes: Vec<KeyHash> = Marks::scan(&raw).key_hashes("T").to_vec();
        assert_eq!(hashes, [key_hash("T", "u"), key_hash("T", "k1"), key_hash("T", "k2")]);
    }
}
