//! The body of a batch send: messages of one topic and queue, back to back.
//!
//! | size | field             | meaning                                     |
//! |-----:|-------------------|---------------------------------------------|
//! |    4 | entry size        | with this field: 22 + body + properties     |
//! |    4 | magic             | 0, not looked at                            |
//! |    4 | body CRC          | 0, not looked at: the broker computes it    |
//! |    4 | flag              | the user's                                  |
//! |    4 | body length       | n                                           |
//! |    n | body              |                                             |
//! |    2 | properties length | m                                           |
//! |    m | properties        | `name 0x01 value 0x02` …                    |
//!
//! Big-endian. Source: remoting.md 3.1.

use std::fmt;

/// Bytes of an entry without body and properties.
const FIXED_LEN: usize = 22;
const FLAG_AT: usize = 12;
const BODY_LEN_AT: usize = 16;
const BODY_AT: usize = 20;
const PROPERTIES_LEN_LEN: usize = 2;
const _: () = assert!(BODY_AT + PROPERTIES_LEN_LEN == FIXED_LEN);

/// One message of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchEntry<'a> {
    pub flag: i32,
    pub body: &'a [u8],
    pub properties: &'a str,
}

/// A body that is no batch; nothing of it is stored. `at` is where the bad entry starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchError {
    /// Not one message.
    Empty,
    /// An entry reaches beyond the body, or beyond itself.
    Cut {
        at: usize,
    },
    /// Body and properties do not add up to the entry's size.
    WrongSize {
        at: usize,
        size: u32,
    },
    PropertiesNotUtf8 {
        at: usize,
    },
}

impl fmt::Display for BatchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            BatchError::Empty => write!(f, "the batch holds no message"),
            BatchError::Cut { at } => write!(f, "the batch entry at byte {at} is cut"),
            BatchError::WrongSize { at, size } => {
                write!(f, "the batch entry at byte {at} says it has {size} bytes, which its parts do not add up to")
            }
            BatchError::PropertiesNotUtf8 { at } => {
                write!(f, "the batch entry at byte {at} has properties that are no UTF-8")
            }
        }
    }
}

impl std::error::Error for BatchError {}

/// The messages of a batch body, all of it checked.
///
/// # Errors
/// [`BatchError`] of the first entry that is not whole.
pub fn entries(body: &[u8]) -> Result<Vec<BatchEntry<'_>>, BatchError> {
    let mut entries = Vec::new();
    let mut at = 0;
    while at < body.len() {
        let (entry, len) = entry(&body[at..], at)?;
        entries.push(entry);
        at += len;
    }
    if entries.is_empty() { Err(BatchError::Empty) } else { Ok(entries) }
}

/// The entry at the start of `rest`, which is byte `at` of the body, and its length.
fn entry(rest: &[u8], at: usize) -> Result<(BatchEntry<'_>, usize), BatchError> {
    let cut = BatchError::Cut { at };
    let int = |field_at: usize| {
        let field = rest.get(field_at..).and_then(|bytes| bytes.first_chunk::<4>());
        field.map(|bytes| u32::from_be_bytes(*bytes)).ok_or(cut)
    };
    let size = int(0)?;
    let len = size as usize;
    if len < FIXED_LEN {
        return Err(BatchError::WrongSize { at, size });
    }
    let entry = rest.get(..len).ok_or(cut)?;
    let flag = int(FLAG_AT)? as i32;
    let body_len = int(BODY_LEN_AT)? as usize;
    let (body, tail) = entry[BODY_AT..].split_at_checked(body_len).ok_or(cut)?;
    let (properties_len, properties) = tail.split_first_chunk::<PROPERTIES_LEN_LEN>().ok_or(cut)?;
    if usize::from(u16::from_be_bytes(*properties_len)) != properties.len() {
        return Err(BatchError::WrongSize { at, size });
    }
    let properties = std::str::from_utf8(properties).map_err(|_| BatchError::PropertiesNotUtf8 { at })?;
    Ok((BatchEntry { flag, body, properties }, len))
}

/// The body of a batch send of `entries`, for our own client.
///
/// # Panics
/// If the properties of an entry are longer than a 16-bit length can say.
pub fn encode(entries: &[BatchEntry<'_>]) -> Vec<u8> {
    let len = |entry: &BatchEntry<'_>| FIXED_LEN + entry.body.len() + entry.properties.len();
    let mut out = Vec::with_capacity(entries.iter().map(len).sum());
    for entry in entries {
        let properties_len = u16::try_from(entry.properties.len()).expect("properties fit their 16-bit length");
        out.extend_from_slice(&(len(entry) as u32).to_be_bytes());
        out.extend_from_slice(&[0; FLAG_AT - 4]);
        out.extend_from_slice(&entry.flag.to_be_bytes());
        out.extend_from_slice(&(entry.body.len() as u32).to_be_bytes());
        out.extend_from_slice(entry.body);
        out.extend_from_slice(&properties_len.to_be_bytes());
        out.extend_from_slice(entry.properties.as_bytes());
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Golden vector of remoting.md 9.5.
    const GOLDEN: &[u8] = b"\x00\x00\x00\x1d\0\0\0\0\0\0\0\0\0\0\0\0\x00\x00\x00\x011\x00\x06TAGS\x01A\
        \x00\x00\x00\x18\0\0\0\0\0\0\0\0\0\0\0\0\x00\x00\x00\x0222\x00\x00";

    fn golden_entries() -> [BatchEntry<'static>; 2] {
        [
            BatchEntry { flag: 0, body: b"1", properties: "TAGS\u{1}A" },
            BatchEntry { flag: 0, body: b"22", properties: "" },
        ]
    }

    #[test]
    fn the_golden_batch_is_read_and_written() {
        assert_eq!(entries(GOLDEN).unwrap(), golden_entries());
        assert_eq!(encode(&golden_entries()), GOLDEN);
    }

    #[test]
    fn a_batch_cut_anywhere_but_between_entries_is_refused() {
        const FIRST_LEN: usize = 0x1d;
        assert_eq!(entries(b""), Err(BatchError::Empty));
        for len in 1..GOLDEN.len() {
            assert_eq!(entries(&GOLDEN[..len]).is_ok(), len == FIRST_LEN, "{len}");
        }
    }

    #[test]
    fn an_entry_whose_lengths_disagree_is_refused() {
        let with = |at: usize, bytes: &[u8]| {
            let mut body = GOLDEN.to_vec();
            body[at..at + bytes.len()].copy_from_slice(bytes);
            entries(&body).map(|_| ())
        };
        for size in [0, 21, 22, 0x1c, 0x1e, 0x7fff_ffff, u32::MAX] {
            assert!(with(0, &size.to_be_bytes()).is_err(), "size {size}");
        }
        for body_len in [0_u32, 2, 7, 8, 0x7fff_ffff, u32::MAX] {
            assert!(with(BODY_LEN_AT, &body_len.to_be_bytes()).is_err(), "body {body_len}");
        }
        for properties_len in [5_u16, 7, u16::MAX] {
            assert!(with(BODY_AT + 1, &properties_len.to_be_bytes()).is_err(), "properties {properties_len}");
        }
        assert_eq!(with(23, b"\xff"), Err(BatchError::PropertiesNotUtf8 { at: 0 }));
        assert!(entries(b"an ordinary message body, no batch at all").is_err());
    }

    proptest! {
        #[test]
        fn any_batch_survives_the_wire(
            parts in prop::collection::vec(
                (any::<i32>(), prop::collection::vec(any::<u8>(), 0..50), "\\PC{0,30}"),
                1..20,
            ),
        ) {
            let batch: Vec<BatchEntry<'_>> = parts
                .iter()
                .map(|(flag, body, properties)| BatchEntry { flag: *flag, body, properties })
                .collect();
            let body = encode(&batch);
            prop_assert_eq!(entries(&body).unwrap(), batch);
        }

        #[test]
        fn arbitrary_bytes_never_panic(body in prop::collection::vec(any::<u8>(), 0..200)) {
            _ = entries(&body);
            _ = entries(&[&[0, 0, 0, body.len() as u8], &body[..]].concat());
        }
    }
}
