//! Message properties: `name 0x01 value 0x02` repeated, the last 0x02 optional. Source: store.md 2.5 and 2.6.

/// Ends a property's name.
pub const NAME_END: u8 = 1;
/// Ends a property's value.
pub const VALUE_END: u8 = 2;
/// The most bytes that a record's properties may take: they are counted by a signed 16-bit field.
pub const PROPERTIES_LEN_MAX: usize = i16::MAX as usize;

pub const TAGS: &str = "TAGS";
pub const KEYS: &str = "KEYS";
pub const UNIQ_KEY: &str = "UNIQ_KEY";
pub const WAIT: &str = "WAIT";
pub const DELAY: &str = "DELAY";
pub const REAL_TOPIC: &str = "REAL_TOPIC";
pub const REAL_QID: &str = "REAL_QID";
pub const RETRY_TOPIC: &str = "RETRY_TOPIC";
pub const ORIGIN_MESSAGE_ID: &str = "ORIGIN_MESSAGE_ID";
pub const CLUSTER: &str = "CLUSTER";
/// Other queues that a record is dispatched to as well.
pub const INNER_MULTI_DISPATCH: &str = "INNER_MULTI_DISPATCH";
pub const TRAN_MSG: &str = "TRAN_MSG";
pub const POP_CK: &str = "POP_CK";
/// Checksum over the whole record; the store's own.
pub const RECORD_CRC: &str = "__CRC32#";
/// Names that begin so are for the way to the broker alone.
pub const TRANSIENT_PREFIX: &str = "__RMQ.TRANSIENT.";
pub const TIMER_DELIVER_MS: &str = "TIMER_DELIVER_MS";
pub const TIMER_DELAY_MS: &str = "TIMER_DELAY_MS";
pub const TIMER_DELAY_SEC: &str = "TIMER_DELAY_SEC";
pub const MSG_REGION: &str = "MSG_REGION";
pub const TRACE_ON: &str = "TRACE_ON";

/// The properties in `raw`, in their order, as Java reads them: segments shorter than three characters, without a
/// separator, or with an empty name or value are left out. A name that occurs twice is given twice (Java keeps the last).
pub fn iter(raw: &str) -> impl Iterator<Item = (&str, &str)> {
    raw.split(char::from(VALUE_END)).filter_map(|segment| {
        let (name, value) = segment.split_once(char::from(NAME_END))?;
        (!name.is_empty() && !value.is_empty()).then_some((name, value))
    })
}

/// The value of `name`; of several the last, as Java's map has it.
pub fn get<'a>(raw: &'a str, name: &str) -> Option<&'a str> {
    iter(raw).filter(|(found, _)| *found == name).last().map(|(_, value)| value)
}

/// Appends one property, closing an unterminated one that is there.
pub fn push(raw: &mut String, name: &str, value: &str) {
    if !raw.is_empty() && !raw.ends_with(char::from(VALUE_END)) {
        raw.push(char::from(VALUE_END));
    }
    raw.push_str(name);
    raw.push(char::from(NAME_END));
    raw.push_str(value);
    raw.push(char::from(VALUE_END));
}

/// A copy of `raw` without the properties named.
pub fn without(raw: &str, names: &[&str]) -> String {
    filtered(raw, |name| !names.contains(&name))
}

/// A copy of `raw` with the properties whose names are wanted.
pub fn filtered(raw: &str, is_wanted: impl Fn(&str) -> bool) -> String {
    let mut kept = String::with_capacity(raw.len());
    for (name, value) in iter(raw).filter(|(name, _)| is_wanted(name)) {
        push(&mut kept, name, value);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<(String, String)> {
        let raw = text.replace('=', "\u{1}").replace(';', "\u{2}");
        iter(&raw).map(|(n, v)| (n.to_owned(), v.replace('\u{1}', "="))).collect()
    }

    #[test]
    fn odd_property_texts_read_as_java_reads_them() {
        let one = |n: &str, v: &str| vec![(n.to_owned(), v.to_owned())];
        assert_eq!(read("A=b;"), one("A", "b"));
        assert_eq!(read("A=b"), one("A", "b"));
        assert_eq!(read("A=;"), []);
        assert_eq!(read("=b;"), []);
        assert_eq!(read("AB;C=d;"), one("C", "d"));
        assert_eq!(read("A=b=c;"), one("A", "b=c"));
        assert_eq!(read(";;A=b;"), one("A", "b"));
        assert_eq!(get("A\u{1}b\u{2}A\u{1}c\u{2}", "A"), Some("c"));
    }

    #[test]
    fn a_pushed_property_never_merges_into_an_unterminated_one() {
        let mut raw = String::from("A\u{1}b");
        push(&mut raw, "C", "d");
        assert_eq!(raw, "A\u{1}b\u{2}C\u{1}d\u{2}");
        assert_eq!(without(&raw, &["A"]), "C\u{1}d\u{2}");
    }
}
