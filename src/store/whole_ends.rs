//! A look at the log after a clean stop, at the price of a few reads: is it there where each segment begins, and where it
//! ends? What lies between was synced, and the disk answers for it.

use std::sync::Arc;

use super::quarantine::Region;
use super::recovery::is_credible;
use crate::format::record::{self, Header, RecordView};
use crate::io::Segment;
use crate::log::last_record;
use crate::types::{PhyOffset, Timestamp};

/// Does every segment before `end` begin with a record that says its own place, and does a whole one end at `end`? Damage
/// that is known counts as whole.
pub fn are_whole(segments: &[Arc<Segment>], end: PhyOffset, known: &[Region]) -> bool {
    let is_known =
        |at: PhyOffset| known.iter().any(|region| region.is_damaged() && (region.start()..region.end()).contains(&at));
    let begins = |segment: &Segment| {
        let is_first = |first: RecordView<'_>| first.phy() == segment.start();
        is_known(segment.start()) || RecordView::parse(segment.bytes()).is_ok_and(is_first)
    };
    let bad = segments.iter().take_while(|segment| segment.start() < end).find(|segment| !begins(segment));
    if let Some(bad) = bad {
        tracing::warn!(path = %bad.path().display(), "does not begin with a record, though the last stop was clean; scanning");
        return false;
    }
    let ends =
        end.0.checked_sub(1).is_none_or(|last| is_known(PhyOffset(last))) || newest_record(segments, end).is_some();
    let is_empty = segments.first().is_none_or(|oldest| oldest.start() >= end);
    if !ends && !is_empty {
        tracing::warn!(%end, "no whole record ends where the log ended at the last stop, which was clean; scanning");
    }
    ends || is_empty
}

/// The store time from which time goes on: what the stop noted, unless that is far in the future and the log does not say so.
pub fn newest_time(segments: &[Arc<Segment>], end: PhyOffset, noted: Timestamp) -> Timestamp {
    if is_credible(noted) {
        return noted;
    }
    let in_log = newest_record(segments, end).map(|newest| newest.store_timestamp()).filter(|time| *time < noted);
    if let Some(in_log) = in_log {
        tracing::warn!(
            noted = noted.0,
            newest = in_log.0,
            "the last stop noted a store time far in the future; time goes on from that of the newest message"
        );
    }
    in_log.unwrap_or(noted)
}

/// The record that ends where the log does, or before the blank that does.
fn newest_record(segments: &[Arc<Segment>], end: PhyOffset) -> Option<RecordView<'_>> {
    let segment = segments.iter().find(|segment| segment.start() < end && end <= segment.end())?;
    let tail = segment.slice(segment.start(), end.since(segment.start()) as usize)?;
    let newest = last_record(tail, segment.start())?;
    let behind = &tail[newest.phy().since(segment.start()) as usize + newest.total_len() as usize..];
    let is_blank =
        || matches!(record::peek_header(behind), Ok(Header::Blank { total_len }) if total_len as usize == behind.len());
    (behind.is_empty() || (end == segment.end() && (behind.len() < record::BLANK_LEN || is_blank()))).then_some(newest)
}
