//! Walking the records of one segment, and telling a clean end from a torn one. Source: store.md 8.3, rules R2 and R5.

use crate::format::record::{self, BadRecord, Header, RecordView, Seal};
use crate::types::PhyOffset;

/// Where a scan of one segment stopped.
#[derive(Debug)]
pub enum ScanEnd {
    /// Nothing was written here. What an earlier use of the file left further on is for the caller to look at: reading
    /// a gibibyte of zeros is not free.
    Clean { at: PhyOffset },
    /// A blank says that the log goes on in the next segment.
    Rolled { next: PhyOffset },
    /// Bytes that are no whole record of this place.
    Torn { at: PhyOffset, why: Torn },
}

/// Why the bytes at a place are no record.
#[derive(Debug)]
pub enum Torn {
    /// They do not have the form of one.
    Form(BadRecord),
    /// The body's CRC does not match.
    BodyCrc,
    /// That of the whole record does not match, or is not there.
    RecordCrc,
    /// A record that no checksum covers as a whole was not all written: its properties end in zeros, or its head says what
    /// cannot be.
    Unfinished,
    /// It says that it belongs elsewhere: bytes left from an earlier use of the file.
    Elsewhere { says: PhyOffset },
    /// A blank that does not reach to the end of its segment.
    Blank { says: u32, left: usize },
}

/// Which checksums of a record a scan looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksums {
    /// None: form and place alone.
    Form,
    /// That of the body.
    Body,
    /// That of the whole record, which is then in its properties (store.md 2.7); not that of the body.
    Record,
}

/// The next thing a scan met.
pub enum Scanned<'a> {
    Record(RecordView<'a>),
    End(ScanEnd),
}

/// A scan over the bytes of one segment.
pub struct SegmentScan<'a> {
    bytes: &'a [u8],
    start: PhyOffset,
    at: usize,
    checksums: Checksums,
}

impl std::fmt::Display for Torn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Torn::Form(why) => why.fmt(f),
            Torn::Unfinished => f.write_str("not all of it was written"),
            Torn::RecordCrc => f.write_str("the record has no CRC of the whole of it that matches"),
            Torn::BodyCrc => f.write_str("the body does not match its CRC"),
            Torn::Elsewhere { says } => write!(f, "the record says that it lies at {says}"),
            Torn::Blank { says, left } => write!(f, "a blank of {says} bytes where {left} are left"),
        }
    }
}

impl<'a> SegmentScan<'a> {
    /// `bytes` is a whole segment whose first byte is at `start`; the scan begins at `from`, which must be the start of
    /// a record or the end of the log.
    pub fn new(bytes: &'a [u8], start: PhyOffset, from: PhyOffset, checksums: Checksums) -> SegmentScan<'a> {
        let at = usize::try_from(from.since(start)).unwrap_or(usize::MAX).min(bytes.len());
        SegmentScan { bytes, start, at, checksums }
    }

    /// Where the next step looks.
    pub fn at(&self) -> PhyOffset {
        self.start.advance(self.at as u64)
    }

    /// Goes on behind a damaged region.
    pub fn skip_to(&mut self, to: PhyOffset) {
        self.at = usize::try_from(to.since(self.start)).unwrap_or(usize::MAX).min(self.bytes.len());
    }

    /// The next record, checked in full (form, CRC, own position), or why there is none.
    pub fn step(&mut self) -> Scanned<'a> {
        let here = self.start.advance(self.at as u64);
        let rest = &self.bytes[self.at..];
        if rest.len() < record::BLANK_LEN {
            return Scanned::End(ScanEnd::Rolled { next: self.start.advance(self.bytes.len() as u64) });
        }
        match record::peek_header(rest) {
            Ok(Header::Zero) => Scanned::End(ScanEnd::Clean { at: here }),
            Ok(Header::Blank { total_len }) if total_len as usize == rest.len() => {
                Scanned::End(ScanEnd::Rolled { next: self.start.advance(self.bytes.len() as u64) })
            }
            Ok(Header::Blank { total_len }) => {
                Scanned::End(ScanEnd::Torn { at: here, why: Torn::Blank { says: total_len, left: rest.len() } })
            }
            Ok(Header::Record { .. }) => match check(rest, here, self.checksums) {
                Ok(view) if is_unfinished(&view, rest) => {
                    Scanned::End(ScanEnd::Torn { at: here, why: Torn::Unfinished })
                }
                Ok(view) => {
                    self.at += view.total_len() as usize;
                    Scanned::Record(view)
                }
                Err(why) => Scanned::End(ScanEnd::Torn { at: here, why }),
            },
            Err(why) => Scanned::End(ScanEnd::Torn { at: here, why: Torn::Form(why) }),
        }
    }
}

/// The record at the start of `bytes`, if it is whole and belongs at `here`.
fn check(bytes: &[u8], here: PhyOffset, checksums: Checksums) -> Result<RecordView<'_>, Torn> {
    let view = RecordView::parse(bytes).map_err(Torn::Form)?;
    if view.phy() != here {
        return Err(Torn::Elsewhere { says: view.phy() });
    }
    match checksums {
        Checksums::Body if !view.check_crc() => Err(Torn::BodyCrc),
        Checksums::Record if view.seal() != Seal::Right => Err(Torn::RecordCrc),
        _ => Ok(view),
    }
}

/// Has the record properties that no client sends, ending in a zero byte? No checksum covers them, and a sector of which
/// only the head came to the disk leaves zeros.
pub fn is_cut_short(view: &RecordView<'_>) -> bool {
    view.raw_properties().last() == Some(&0)
}

/// Is this the log's last record, and cut short?
fn is_unfinished(view: &RecordView<'_>, bytes: &[u8]) -> bool {
    let behind = &bytes[view.total_len() as usize..];
    is_cut_short(view) && behind.iter().take(record::BLANK_LEN).all(|byte| *byte == 0)
}

/// Where the log goes on at or after `from`: the first whole record that belongs where it lies, or the blank that leads to
/// the segment's end.
pub fn find_next(bytes: &[u8], start: PhyOffset, from: PhyOffset) -> Option<PhyOffset> {
    let record = find_record(bytes, start, from);
    let to = record.map_or(bytes.len(), |record| record.since(start) as usize);
    let from = usize::try_from(from.since(start)).ok()?;
    let magic = record::MAGIC_BLANK.to_be_bytes();
    let magics = memchr::memmem::find_iter(bytes.get(from..to)?, &magic).map(|at| from + at);
    let blank = magics
        .filter_map(|magic| magic.checked_sub(4).filter(|at| *at >= from))
        .find(|at| record::peek_header(&bytes[*at..]) == Ok(Header::Blank { total_len: (bytes.len() - at) as u32 }));
    blank.map(|at| start.advance(at as u64)).or(record)
}

/// The first whole record at or after `from` that belongs where it lies. Tells damage in mid-log from a torn tail.
pub fn find_record(bytes: &[u8], start: PhyOffset, from: PhyOffset) -> Option<PhyOffset> {
    find(bytes, start, from, |rest, here| check(rest, here, Checksums::Body).ok()).map(|view| view.phy())
}

/// What can still be read in the damaged region `[from, to)`: records whose form is whole and that say that they lie
/// where they do. Their bodies may be wrong.
pub fn readable_records(
    bytes: &[u8],
    start: PhyOffset,
    from: PhyOffset,
    to: PhyOffset,
) -> impl Iterator<Item = RecordView<'_>> {
    let bytes = &bytes[..bytes.len().min(to.since(start) as usize)];
    let mut at = from;
    std::iter::from_fn(move || {
        let is_readable = |view: &RecordView<'_>, here| view.phy() == here;
        let view =
            find(bytes, start, at, |rest, here| RecordView::parse(rest).ok().filter(|view| is_readable(view, here)))?;
        at = view.phy().advance(u64::from(view.total_len()));
        Some(view)
    })
}

/// How many records `[from, to)` takes if each is as long as it says, and the last ends at `to` exactly: so Java steps
/// over damaged ones.
pub fn records_by_length(bytes: &[u8], start: PhyOffset, from: PhyOffset, to: PhyOffset) -> Option<u64> {
    let (mut at, mut count) = (from, 0);
    while at < to {
        match record::peek_header(bytes.get(at.since(start) as usize..)?) {
            Ok(Header::Record { total_len }) => at = at.advance(u64::from(total_len)),
            _ => return None,
        }
        count += 1;
    }
    (at == to).then_some(count)
}

/// The first place at or after `from` where a record may begin that passes the test, which sees everything from there on.
fn find<'a>(
    bytes: &'a [u8],
    start: PhyOffset,
    from: PhyOffset,
    test: impl Fn(&'a [u8], PhyOffset) -> Option<RecordView<'a>>,
) -> Option<RecordView<'a>> {
    let mut at = usize::try_from(from.since(start)).ok()?;
    let magics = [record::MAGIC_V1.to_be_bytes(), record::MAGIC_V2.to_be_bytes()];
    while let Some(found) = bytes.get(at + 4..).and_then(|rest| memchr::memchr(magics[0][0], rest)) {
        at += found;
        let rest = &bytes[at..];
        if rest.len() >= 8
            && magics.iter().any(|magic| rest[4..8] == *magic)
            && let Some(view) = test(rest, start.advance(at as u64))
        {
            return Some(view);
        }
        at += 1;
    }
    None
}

/// The last record of a segment that the log has left, looked for from the segment's end; `tail` is its last part, which
/// begins at `start`. None if it begins before `tail`, or is damaged.
///
/// A record that a client has put into the body of another is not taken for it: behind the last record there is nothing
/// but a blank.
pub fn last_record(tail: &[u8], start: PhyOffset) -> Option<RecordView<'_>> {
    let magics = [record::MAGIC_V1.to_be_bytes(), record::MAGIC_V2.to_be_bytes()];
    let mut end = tail.len();
    while let Some(magic_at) = memchr::memrchr(magics[0][0], &tail[..end]) {
        end = magic_at;
        let Some(at) = magic_at.checked_sub(4) else { continue };
        let rest = &tail[at..];
        if !rest.get(4..8).is_some_and(|found| magics.iter().any(|magic| found == magic)) {
            continue;
        }
        let Ok(view) = check(rest, start.advance(at as u64), Checksums::Body) else { continue };
        let behind = &rest[view.total_len() as usize..];
        let is_last = behind.len() < record::BLANK_LEN
            || matches!(record::peek_header(behind), Ok(Header::Blank { .. } | Header::Zero));
        if is_last {
            return Some(view);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::record::RecordSpec;
    use crate::types::{QueueOffset, Timestamp};

    fn push_record(segment: &mut Vec<u8>, body: &[u8]) {
        let host = "127.0.0.1:10911".parse().unwrap();
        let spec = RecordSpec {
            topic: "T",
            queue_id: 0,
            flag: 0,
            sys_flag: 0,
            born_timestamp: 1,
            born_host: host,
            store_host: host,
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body,
            // Ends in a byte that is not zero, so that no proper prefix padded with zeros is the whole.
            properties: &[b"A\x01b\x02"],
        };
        let at = segment.len();
        let placed = spec.encode_into(segment).unwrap();
        record::number(
            &mut segment[at..],
            placed.store_timestamp_at,
            QueueOffset(0),
            PhyOffset(at as u64),
            Timestamp(1),
        );
    }

    fn scan(bytes: &[u8]) -> (usize, ScanEnd) {
        let mut scan = SegmentScan::new(bytes, PhyOffset(0), PhyOffset(0), Checksums::Body);
        let mut count = 0;
        loop {
            match scan.step() {
                Scanned::Record(_) => count += 1,
                Scanned::End(end) => return (count, end),
            }
        }
    }

    fn three_records() -> Vec<u8> {
        let mut segment = Vec::new();
        for body in [&b"one"[..], b"two", b"three"] {
            push_record(&mut segment, body);
        }
        segment
    }

    #[test]
    fn the_last_record_is_found_from_the_end_if_the_tail_holds_it() {
        let mut segment = three_records();
        let last_at = segment.len() - last_len(&segment);
        let blank = record::encode_blank(4096 - segment.len() as u32);
        segment.extend(blank);
        segment.resize(4096, 0);
        let found = |from: usize| last_record(&segment[from..], PhyOffset(from as u64)).map(|view| view.phy());
        assert_eq!(found(0), Some(PhyOffset(last_at as u64)));
        assert_eq!(found(last_at), Some(PhyOffset(last_at as u64)));
        assert_eq!(found(last_at + 1), None);
        // Records that fill a segment to its last bytes.
        let full = three_records();
        assert_eq!(last_record(&full, PhyOffset(0)).map(|view| view.body().to_vec()), Some(b"three".to_vec()));
        // They lie elsewhere than they say.
        assert!(last_record(&full, PhyOffset(8)).is_none());
        assert!(last_record(&[0; 4096], PhyOffset(0)).is_none());
    }

    fn last_len(segment: &[u8]) -> usize {
        let mut scan = SegmentScan::new(segment, PhyOffset(0), PhyOffset(0), Checksums::Body);
        let mut len = 0;
        while let Scanned::Record(view) = scan.step() {
            len = view.total_len() as usize;
        }
        len
    }

    #[test]
    fn a_record_inside_the_body_of_the_last_is_not_taken_for_it() {
        let mut segment = three_records();
        let outer_at = segment.len();
        push_record(&mut segment, &[7; 300]);
        let body_at = segment.windows(300).position(|bytes| bytes == [7; 300]).unwrap();
        let mut forged = Vec::new();
        push_record(&mut forged, b"forged");
        record::number(&mut forged, 56, QueueOffset(0), PhyOffset(body_at as u64), Timestamp(0));
        segment.splice(body_at..body_at + forged.len(), forged);
        // Its own checksum is right, as a client can see to.
        let crc = record::body_crc(&segment[body_at..body_at + 300]);
        segment[outer_at + 8..outer_at + 12].copy_from_slice(&crc.to_be_bytes());
        assert_eq!(last_record(&segment, PhyOffset(0)).map(|view| view.phy()), Some(PhyOffset(outer_at as u64)));
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_the_search_for_the_last_record_panic(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..400)) {
            let _ = last_record(&bytes, PhyOffset(0));
        }
    }

    #[test]
    fn records_then_zeros_end_cleanly() {
        let mut segment = three_records();
        let end = segment.len() as u64;
        segment.resize(4096, 0);
        let (count, found) = scan(&segment);
        assert_eq!(count, 3);
        assert!(matches!(found, ScanEnd::Clean { at } if at == PhyOffset(end)), "{found:?}");
    }

    #[test]
    fn a_blank_leads_to_the_next_segment() {
        let mut segment = three_records();
        let left = 4096 - segment.len() as u32;
        segment.extend_from_slice(&record::encode_blank(left));
        segment.resize(4096, 0);
        assert!(matches!(scan(&segment), (3, ScanEnd::Rolled { next: PhyOffset(4096) })));
    }

    #[test]
    fn any_prefix_of_the_last_record_is_torn_at_its_start() {
        let whole = three_records();
        let mut two = Vec::new();
        push_record(&mut two, b"one");
        push_record(&mut two, b"two");
        for kept in two.len() + 1..whole.len() {
            let mut segment = whole[..kept].to_vec();
            segment.resize(4096, 0);
            let (count, end) = scan(&segment);
            assert_eq!(count, 2, "{kept}");
            match end {
                ScanEnd::Torn { at, .. } => assert_eq!(at, PhyOffset(two.len() as u64), "{kept}"),
                // The first bytes of a length are zeros anyway.
                ScanEnd::Clean { at } => assert!(at == PhyOffset(two.len() as u64) && kept < two.len() + 4, "{kept}"),
                ScanEnd::Rolled { .. } => panic!("{kept}"),
            }
            let behind = PhyOffset(two.len() as u64 + 1);
            assert_eq!(find_record(&segment, PhyOffset(0), behind), None, "{kept}");
        }
    }

    #[test]
    fn a_flipped_bit_in_a_body_is_damage_if_a_whole_record_follows() {
        let mut segment = three_records();
        let first = RecordView::parse(&segment).unwrap().total_len() as usize;
        let body_at = segment.windows(3).position(|w| w == b"two").unwrap();
        segment[body_at] ^= 1;
        segment.resize(4096, 0);
        let (count, end) = scan(&segment);
        assert_eq!(count, 1);
        assert!(matches!(end, ScanEnd::Torn { at, why: Torn::BodyCrc } if at == PhyOffset(first as u64)), "{end:?}");
        let next = find_record(&segment, PhyOffset(0), PhyOffset(first as u64));
        assert!(next > Some(PhyOffset(first as u64)), "{next:?}");
    }

    #[test]
    fn behind_damage_the_log_goes_on_at_a_record_or_at_the_blank() {
        let mut segment = three_records();
        let (record, blank) = (RecordView::parse(&segment).unwrap().total_len() as u64, segment.len() as u64);
        segment.extend_from_slice(&record::encode_blank((4096 - blank) as u32));
        segment.resize(4096, 0);
        let next = |segment: &[u8], from: u64| find_next(segment, PhyOffset(0), PhyOffset(from)).map(|phy| phy.0);
        assert_eq!(next(&segment, 0), Some(0));
        assert_eq!(next(&segment, 1), Some(record));
        assert_eq!(next(&segment, blank - 1), Some(blank));
        assert_eq!(next(&segment, blank), Some(blank));
        assert_eq!(next(&segment, blank + 1), None);
        // One that would lead elsewhere is none.
        segment[blank as usize + 3] ^= 1;
        assert_eq!(next(&segment, blank - 1), None);
    }

    #[test]
    fn what_a_damaged_region_still_tells_is_read() {
        let whole = three_records();
        let len = |at: usize| RecordView::parse(&whole[at..]).unwrap().total_len() as usize;
        let (two, three) = (len(0), len(0) + len(len(0)));
        let mut segment = whole.clone();
        for body in [&b"two"[..], b"three"] {
            let at = segment.windows(body.len()).position(|w| w == body).unwrap();
            segment[at] ^= 1;
        }
        let at = |at: usize| PhyOffset(at as u64);
        let read = |segment: &[u8], to: usize| {
            readable_records(segment, PhyOffset(0), at(two), at(to)).map(|view| view.phy()).collect::<Vec<_>>()
        };
        assert_eq!(read(&segment, segment.len()), [at(two), at(three)]);
        assert_eq!(read(&segment, segment.len() - 1), [at(two)], "the last is not in the region");
        let count = |segment: &[u8], to: usize| records_by_length(segment, PhyOffset(0), at(two), at(to));
        assert_eq!(count(&segment, segment.len()), Some(2));
        assert_eq!(count(&segment, segment.len() - 1), None);
        segment[two + 3] ^= 1;
        assert_eq!(read(&segment, segment.len()), [at(three)]);
        assert_eq!(count(&segment, segment.len()), None);
    }

    #[test]
    fn a_blank_that_ends_before_or_behind_its_segment_is_torn() {
        for off in [-1_i32, 1, 100] {
            let mut segment = three_records();
            let end = segment.len();
            segment.extend_from_slice(&record::encode_blank((4096 - end as i32 + off) as u32));
            segment.resize(4096, 0);
            let (_, found) = scan(&segment);
            assert!(matches!(found, ScanEnd::Torn { at, why: Torn::Blank { .. } } if at.0 == end as u64), "{found:?}");
        }
    }

    #[test]
    fn a_record_of_another_place_is_torn() {
        let mut segment = three_records();
        let copy = segment.clone();
        segment.extend_from_slice(&copy);
        segment.resize(4096, 0);
        let (count, end) = scan(&segment);
        assert_eq!(count, 3);
        assert!(matches!(end, ScanEnd::Torn { why: Torn::Elsewhere { says: PhyOffset(0) }, .. }), "{end:?}");
    }
}
