//! What was sent to a simulated store, what it answered, and so what must be found in it.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use crate::format::record;
use crate::io::sim::{CrashKind, Dice};
use crate::store::submit::{PutOutcome, PutStatus, TagsRule};
use crate::types::{KeyHash, PhyOffset, QueueKey, QueueOffset, TagsCode, properties};

/// Where a record lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub offset: QueueOffset,
    pub phy: PhyOffset,
    pub len: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It may be there or not.
    Unknown,
    /// It must be there, and there.
    Stored(Place),
    /// It must not be there: the store said so, or it was once found missing.
    Absent,
}

/// One message.
#[derive(Clone, Debug)]
pub struct Sent {
    pub shard: usize,
    pub queue: QueueKey,
    pub body: Vec<u8>,
    pub properties: String,
    pub keys: SmallVec<[KeyHash; 3]>,
    pub tags: TagsRule,
    pub state: State,
    /// On stable storage: no power cut takes it.
    pub safe: bool,
    /// It was not acknowledged, and a sector that was in flight was torn where no checksum tells: in the head of the record
    /// or in its properties.
    pub torn: bool,
    /// Answered that its flush is late: where write and flush are one, the write may be under way still.
    pub late: bool,
}

/// All messages of one simulation; a message's number stands in its body.
#[derive(Default)]
pub struct Ledger {
    pub sent: Vec<Sent>,
    pub acknowledged: u64,
    pub read: u64,
}

const NUMBER_LEN: usize = 8;

impl Ledger {
    /// A message that is about to be put, with `len` bytes of body.
    pub fn send(
        &mut self,
        dice: &Dice,
        shard: usize,
        queue: QueueKey,
        len: usize,
        level: Option<(usize, i64)>,
    ) -> usize {
        let number = self.sent.len();
        let mut body = format!("{number:0NUMBER_LEN$x}").into_bytes();
        let filler = dice.fork();
        body.extend((NUMBER_LEN..len).map(|_| filler.roll() as u8));
        let mut text = String::new();
        let tag = format!("t{}", dice.below(5));
        if dice.chance(60) {
            properties::push(&mut text, properties::KEYS, &format!("k{number} shared{}", dice.below(3)));
        }
        if dice.chance(50) {
            properties::push(&mut text, properties::UNIQ_KEY, &format!("u{number}"));
        }
        let tags = match level {
            Some((level, ms)) => {
                properties::push(&mut text, properties::DELAY, &level.to_string());
                TagsRule::DueAfterMs(ms)
            }
            None if dice.chance(70) => {
                properties::push(&mut text, properties::TAGS, &tag);
                TagsRule::Code(TagsCode::of(Some(&tag)))
            }
            None => TagsRule::Code(TagsCode::of(None)),
        };
        let keys = record::key_hashes(&queue.topic, &text);
        let state = State::Unknown;
        self.sent.push(Sent {
            shard,
            queue,
            body,
            properties: text,
            keys,
            tags,
            state,
            safe: false,
            torn: false,
            late: false,
        });
        number
    }

    /// The message of which this is the body.
    pub fn of_body(&self, body: &[u8]) -> Option<usize> {
        let text = std::str::from_utf8(body.get(..NUMBER_LEN)?).ok()?;
        usize::from_str_radix(text, 16).ok().filter(|number| *number < self.sent.len())
    }

    /// The store refused them before it tried.
    pub fn refused(&mut self, numbers: &[usize]) {
        numbers.iter().for_each(|number| self.sent[*number].state = State::Absent);
    }

    /// The store answered. `sync`: with Ok it promises stable storage.
    pub fn answered(&mut self, numbers: &[usize], outcome: &PutOutcome, sync: bool) {
        let (mut offset, mut phy) = (outcome.queue_offset, outcome.phy);
        for (number, len) in numbers.iter().zip(&outcome.record_lens) {
            match outcome.status {
                PutStatus::Ok | PutStatus::FlushDiskTimeout => {
                    let safe = sync && outcome.status == PutStatus::Ok;
                    self.acknowledged += u64::from(outcome.status == PutStatus::Ok);
                    self.stored(*number, Place { offset, phy, len: *len }, safe);
                    self.sent[*number].late |= outcome.status == PutStatus::FlushDiskTimeout;
                }
                PutStatus::ServiceNotAvailable => {}
                PutStatus::SegmentNotCreated | PutStatus::Busy { .. } | PutStatus::QueueGone => {
                    self.sent[*number].state = State::Absent;
                }
            }
            offset = offset.advance(1);
            phy = phy.advance(u64::from(*len));
        }
    }

    pub fn stored(&mut self, number: usize, place: Place, safe: bool) {
        let sent = &mut self.sent[number];
        sent.state = State::Stored(place);
        sent.safe |= safe;
    }

    /// The process is gone; everything before `flushed` was said to be on stable storage.
    pub fn crashed(&mut self, kind: CrashKind, flushed: PhyOffset) {
        for sent in &mut self.sent {
            let State::Stored(place) = sent.state else { continue };
            sent.safe |= place.phy.advance(u64::from(place.len)) <= flushed;
            if (kind == CrashKind::Power || sent.late) && !sent.safe {
                sent.state = State::Unknown;
            }
        }
    }

    /// The store was opened, and everything in it is at these places; it is on stable storage now. What is not there must
    /// not come back.
    pub fn opened(&mut self, found: &BTreeMap<usize, Place>) {
        for number in 0..self.sent.len() {
            match found.get(&number) {
                Some(place) => self.stored(number, *place, true),
                None => self.sent[number].state = State::Absent,
            }
        }
    }
}
