//! One message as the commit log stores it, and the blank that ends a segment.
//!
//! B, S: 8 bytes of born and store host, 20 if it is IPv6. N, T, P: bytes of body, topic, properties. L: 1 in a V1
//! record, 2 in a V2 record.
//!
//! | at           | size | field                | meaning                                                       |
//! |-------------:|-----:|----------------------|---------------------------------------------------------------|
//! | 0            |    4 | total size           | the whole record, these four bytes too                        |
//! | 4            |    4 | magic                | V1, V2 (topic above 127 bytes) or blank                       |
//! | 8            |    4 | body CRC             | CRC-32 of the body without its top bit                        |
//! | 12           |    4 | queue id             |                                                               |
//! | 16           |    4 | flag                 | the user's, opaque                                            |
//! | 20           |    8 | queue offset         |                                                               |
//! | 28           |    8 | physical offset      | own position in the log                                       |
//! | 36           |    4 | sys flag             | see [`sys_flag`]                                              |
//! | 40           |    8 | born timestamp       | client's clock, ms                                            |
//! | 48           |    B | born host            | address, then the port in four bytes                          |
//! | 48+B         |    8 | store timestamp      | broker's clock, ms                                            |
//! | 56+B         |    S | store host           | as born host                                                  |
//! | 56+B+S       |    4 | reconsume times      |                                                               |
//! | 60+B+S       |    8 | prepared transaction | physical offset of the half message in a commit record, or 0  |
//! | 68+B+S       |    4 | body length          |                                                               |
//! | 72+B+S       |    N | body                 |                                                               |
//! | 72+B+S+N     |    L | topic length         |                                                               |
//! | +L           |    T | topic                |                                                               |
//! | +T           |    2 | properties length    |                                                               |
//! | +2           |    P | properties           | see `types::properties`                                       |
//!
//! Big-endian, no padding. A record never crosses a segment. A blank has only the first two fields; its total size
//! reaches to the end of the segment. Source: store.md 2.
//!
//! Shards encode ([`RecordSpec`]), the writer core fills in what only it knows ([`number`]), everyone reads
//! ([`RecordView`]).

mod message_id;

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::fmt;

use smallvec::SmallVec;

use crate::format::fixed;
use crate::types::properties::{self, PROPERTIES_LEN_MAX};
use crate::types::{KeyHash, PhyOffset, QueueOffset, Timestamp, key_hash};

pub use message_id::{message_id, parse_message_id, write_message_id};

/// A record whose topic length takes one byte.
pub const MAGIC_V1: u32 = 0xdaa3_20a7;
/// A record whose topic length takes two bytes.
pub const MAGIC_V2: u32 = 0xdaa3_20ab;
/// The filler behind the last record of a segment.
pub const MAGIC_BLANK: u32 = 0xcbd4_3194;

/// Bytes of a blank that are written; also what every record must leave free behind it in its segment.
pub const BLANK_LEN: usize = 8;
/// The shortest record: IPv4, no topic, no body, no properties.
pub const RECORD_LEN_MIN: u32 = (FIXED_LEN + 2 * HOST_V4_LEN + 1) as u32;
/// The longest topic that a record takes.
pub const TOPIC_LEN_MAX: usize = 255;
/// The longest topic of a V1 record; Java reads its length as a signed byte.
const TOPIC_LEN_MAX_V1: usize = 127;

const TOTAL_LEN_AT: usize = 0;
const MAGIC_AT: usize = 4;
const BODY_CRC_AT: usize = 8;
const QUEUE_ID_AT: usize = 12;
const FLAG_AT: usize = 16;
const QUEUE_OFFSET_AT: usize = 20;
const PHY_AT: usize = 28;
const SYS_FLAG_AT: usize = 36;
const BORN_TIMESTAMP_AT: usize = 40;
const BORN_HOST_AT: usize = 48;
/// From the store host's end to the body: reconsume times, prepared transaction offset, body length.
const AFTER_HOSTS_LEN: usize = 16;
const HOST_V4_LEN: usize = 8;
const HOST_V6_LEN: usize = 20;
/// Every byte that is neither host, body, topic length, topic nor properties.
const FIXED_LEN: usize = BORN_HOST_AT + size_of::<i64>() + AFTER_HOSTS_LEN + size_of::<i16>();
const HEAD_LEN_MAX: usize = FIXED_LEN - size_of::<i16>() + 2 * HOST_V6_LEN;
const _: () = assert!(FIXED_LEN == 74 && HEAD_LEN_MAX == 112 && RECORD_LEN_MIN == 91);

/// Bits of the sys flag field. Source: store.md 2.3.
pub mod sys_flag {
    /// The body is compressed.
    pub const COMPRESSED: i32 = 0x1;
    /// The message carries several tags.
    pub const MULTI_TAGS: i32 = 0x2;
    /// Where the kind of transaction record stands.
    pub const TRANSACTION_MASK: i32 = 0xc;
    pub const TRANSACTION_PREPARED: i32 = 0x4;
    pub const TRANSACTION_COMMIT: i32 = 0x8;
    pub const TRANSACTION_ROLLBACK: i32 = 0xc;
    /// The born host takes 20 bytes.
    pub const BORN_HOST_V6: i32 = 0x10;
    /// The store host takes 20 bytes.
    pub const STORE_HOST_V6: i32 = 0x20;
    /// The client must unwrap an inner batch.
    pub const NEED_UNWRAP: i32 = 0x40;
    /// The body is an inner batch.
    pub const INNER_BATCH: i32 = 0x80;
    /// How the body is compressed: 0 or 3 zlib, 1 LZ4, 2 Zstandard.
    pub const COMPRESSION_MASK: i32 = 0x700;
}

/// A message to be stored. What the writer gives out (queue offset, physical offset, store time) is not in it.
#[derive(Clone, Copy, Debug)]
pub struct RecordSpec<'a> {
    pub topic: &'a str,
    pub queue_id: i32,
    pub flag: i32,
    /// As the client sent it; the two address bits are set from the hosts.
    pub sys_flag: i32,
    /// Client's clock, ms.
    pub born_timestamp: i64,
    pub born_host: SocketAddr,
    pub store_host: SocketAddr,
    pub reconsume_times: i32,
    pub prepared_transaction_offset: i64,
    pub body: &'a [u8],
    /// Stored one behind the other as they are.
    pub properties: &'a [&'a [u8]],
}

/// Where the writer finds its fields in an encoded record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Bytes of the record.
    pub len: u32,
    /// Byte position of the store timestamp in the record: it depends on the born host's width.
    pub store_timestamp_at: u8,
}

/// Why a message makes no record. Always the sender's fault; nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncodeError {
    /// Above [`TOPIC_LEN_MAX`] bytes.
    TopicTooLong { len: usize },
    /// Above `PROPERTIES_LEN_MAX` bytes.
    PropertiesTooLong { len: usize },
    /// The record would not fit the 32 bits of its size. The limits of store and broker are far below.
    BodyTooLong { len: usize },
}

impl fmt::Display for EncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EncodeError::TopicTooLong { len } => write!(f, "topic of {len} bytes, at most {TOPIC_LEN_MAX} are stored"),
            EncodeError::PropertiesTooLong { len } => {
                write!(f, "properties of {len} bytes, at most {PROPERTIES_LEN_MAX} are stored")
            }
            EncodeError::BodyTooLong { len } => write!(f, "body of {len} bytes does not fit a record"),
        }
    }
}

impl std::error::Error for EncodeError {}

impl RecordSpec<'_> {
    /// Bytes of the record that [`RecordSpec::encode_into`] makes.
    ///
    /// # Errors
    /// If no record can hold the message.
    pub fn encoded_len(&self) -> Result<usize, EncodeError> {
        self.measure().map(|shape| shape.len as usize)
    }

    /// Appends the record to `out`, with zeros where [`number`] patches. On an error `out` is left as it was.
    ///
    /// # Errors
    /// If no record can hold the message.
    #[inline]
    pub fn encode_into(&self, out: &mut Vec<u8>) -> Result<Placed, EncodeError> {
        let shape = self.measure()?;
        let mut sys_flag = self.sys_flag & !(sys_flag::BORN_HOST_V6 | sys_flag::STORE_HOST_V6);
        let mut head = [0; HEAD_LEN_MAX];
        let mut put = |at: usize, field: &[u8]| head[at..at + field.len()].copy_from_slice(field);

        let magic = if shape.is_v2 { MAGIC_V2 } else { MAGIC_V1 };
        put(TOTAL_LEN_AT, &shape.len.to_be_bytes());
        put(MAGIC_AT, &magic.to_be_bytes());
        put(BODY_CRC_AT, &body_crc(self.body).to_be_bytes());
        put(QUEUE_ID_AT, &self.queue_id.to_be_bytes());
        put(FLAG_AT, &self.flag.to_be_bytes());
        put(BORN_TIMESTAMP_AT, &self.born_timestamp.to_be_bytes());
        if put_host(&mut put, BORN_HOST_AT, shape.born_host, self.born_host.port()) == HOST_V6_LEN {
            sys_flag |= sys_flag::BORN_HOST_V6;
        }
        let store_timestamp_at = BORN_HOST_AT + host_len(sys_flag, sys_flag::BORN_HOST_V6);
        let store_host_at = store_timestamp_at + size_of::<i64>();
        if put_host(&mut put, store_host_at, shape.store_host, self.store_host.port()) == HOST_V6_LEN {
            sys_flag |= sys_flag::STORE_HOST_V6;
        }
        put(SYS_FLAG_AT, &sys_flag.to_be_bytes());
        let after_hosts_at = store_host_at + host_len(sys_flag, sys_flag::STORE_HOST_V6);
        put(after_hosts_at, &self.reconsume_times.to_be_bytes());
        put(after_hosts_at + 4, &self.prepared_transaction_offset.to_be_bytes());
        put(after_hosts_at + 12, &(self.body.len() as u32).to_be_bytes());

        out.reserve(shape.len as usize);
        out.extend_from_slice(&head[..after_hosts_at + AFTER_HOSTS_LEN]);
        out.extend_from_slice(self.body);
        if shape.is_v2 {
            out.extend_from_slice(&(self.topic.len() as u16).to_be_bytes());
        } else {
            out.push(self.topic.len() as u8);
        }
        out.extend_from_slice(self.topic.as_bytes());
        out.extend_from_slice(&shape.properties_len.to_be_bytes());
        for property in self.properties {
            out.extend_from_slice(property);
        }
        Ok(Placed { len: shape.len, store_timestamp_at: store_timestamp_at as u8 })
    }

    #[inline]
    fn measure(&self) -> Result<Shape, EncodeError> {
        let topic_len = self.topic.len();
        if topic_len > TOPIC_LEN_MAX {
            return Err(EncodeError::TopicTooLong { len: topic_len });
        }
        let properties_len: usize = self.properties.iter().map(|property| property.len()).sum();
        if properties_len > PROPERTIES_LEN_MAX {
            return Err(EncodeError::PropertiesTooLong { len: properties_len });
        }
        let (born_host, store_host) = (self.born_host.ip().to_canonical(), self.store_host.ip().to_canonical());
        let width = |host: IpAddr| if host.is_ipv6() { HOST_V6_LEN } else { HOST_V4_LEN };
        let is_v2 = topic_len > TOPIC_LEN_MAX_V1;
        let around_body =
            FIXED_LEN + width(born_host) + width(store_host) + if is_v2 { 2 } else { 1 } + topic_len + properties_len;
        match i32::try_from(around_body.saturating_add(self.body.len())) {
            Ok(len) => {
                Ok(Shape { len: len as u32, properties_len: properties_len as u16, is_v2, born_host, store_host })
            }
            Err(_) => Err(EncodeError::BodyTooLong { len: self.body.len() }),
        }
    }
}

/// A message measured: its lengths fit the fields they go to.
struct Shape {
    len: u32,
    properties_len: u16,
    is_v2: bool,
    /// IPv4 also where the socket said IPv4 mapped into IPv6.
    born_host: IpAddr,
    store_host: IpAddr,
}

/// Fills in what the writer gives out. `record` is one encoded record (bytes behind it do not matter) and
/// `store_timestamp_at` what its encoding returned; the writer core calls this for every message, before the append.
#[inline]
pub fn number(
    record: &mut [u8],
    store_timestamp_at: u8,
    queue_offset: QueueOffset,
    phy: PhyOffset,
    stored_at: Timestamp,
) {
    record[QUEUE_OFFSET_AT..QUEUE_OFFSET_AT + 8].copy_from_slice(&queue_offset.0.to_be_bytes());
    record[PHY_AT..PHY_AT + 8].copy_from_slice(&phy.0.to_be_bytes());
    let at = usize::from(store_timestamp_at);
    record[at..at + 8].copy_from_slice(&stored_at.0.to_be_bytes());
}

/// The first bytes of a blank that reaches over `len` bytes, to the end of its segment. The rest keeps what it had.
pub fn encode_blank(len: u32) -> [u8; BLANK_LEN] {
    let mut blank = [0; BLANK_LEN];
    blank[..MAGIC_AT].copy_from_slice(&len.to_be_bytes());
    blank[MAGIC_AT..].copy_from_slice(&MAGIC_BLANK.to_be_bytes());
    blank
}

/// The property that seals a record, before [`seal`] fills it in; it must be the last, and everything before it closed.
/// Source: store.md 2.7.
pub const UNSEALED: &[u8; SEAL_LEN] = b"__CRC32#\x010000000000\x02";
const SEAL_LEN: usize = 20;
const SEAL_NAME: &[u8] = b"__CRC32#\x01";

/// Fills in the checksum of a whole record that ends in [`UNSEALED`], after [`number`]. On the writer core.
pub fn seal(record: &mut [u8]) {
    let (sealed, property) = record.split_at_mut(record.len() - SEAL_LEN);
    property[SEAL_NAME.len()..SEAL_LEN - 1].copy_from_slice(&seal_digits(sealed));
}

/// The checksum of everything before the property, its ten decimal digits from the least significant on.
fn seal_digits(sealed: &[u8]) -> [u8; 10] {
    let mut rest = crc32fast::hash(sealed) & 0x7fff_ffff;
    std::array::from_fn(|_| {
        let digit = b'0' + (rest % 10) as u8;
        rest /= 10;
        digit
    })
}

/// What the checksum over a whole record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seal {
    /// It was written without one.
    Absent,
    Right,
    Wrong,
}

/// The checksum that a record keeps of its body: CRC-32 (IEEE) without the top bit, since Java's field is signed.
pub fn body_crc(body: &[u8]) -> u32 {
    crc32fast::hash(body) & 0x7fff_ffff
}

/// The hashes under which the index finds a message: of `UNIQ_KEY`, then of each word of `KEYS`.
pub fn key_hashes(topic: &str, properties: &str) -> SmallVec<[KeyHash; 3]> {
    let (mut unique, mut keys) = (None, None);
    for (name, value) in properties::iter(properties) {
        match name {
            properties::UNIQ_KEY => unique = Some(value),
            properties::KEYS => keys = Some(value),
            _ => {}
        }
    }
    let words = keys.unwrap_or_default().split(' ').filter(|word| !word.is_empty());
    unique.into_iter().chain(words).map(|key| key_hash(topic, key)).collect()
}

/// What stands at a position of the log, told from its first 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// It has a record's magic and a size that a record can have; the rest is not looked at.
    Record { total_len: u32 },
    /// The segment ends here. `total_len` should reach exactly to its end; Java takes 0 too.
    Blank { total_len: u32 },
    /// Nothing was written here.
    Zero,
}

/// Why bytes are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadRecord {
    /// Fewer bytes than the record (or its first fields) would take.
    Truncated { need: u32, have: usize },
    /// Neither the magic of a record nor, where one may stand, of a blank.
    Magic { found: u32 },
    /// A size that no record has.
    TotalLen { found: i32 },
    /// The lengths of the parts do not add up to the size of the whole.
    Length { declared: u32, computed: u64 },
    /// The topic is not UTF-8.
    Topic,
}

impl fmt::Display for BadRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadRecord::Truncated { need, have } => write!(f, "a record of {need} bytes breaks off after {have}"),
            BadRecord::Magic { found } => write!(f, "unknown magic {found:#010x}"),
            BadRecord::TotalLen { found } => write!(f, "impossible record size {found}"),
            BadRecord::Length { declared, computed } => {
                write!(f, "record size {declared}, but its parts take {computed} bytes")
            }
            BadRecord::Topic => f.write_str("topic is not UTF-8"),
        }
    }
}

impl std::error::Error for BadRecord {}

/// Looks at the first 8 of `bytes` only: whether the whole record is there is for the caller, or
/// [`RecordView::parse`], to say.
///
/// # Errors
/// [`BadRecord`] if neither record, blank nor zeros stand here.
#[inline]
pub fn peek_header(bytes: &[u8]) -> Result<Header, BadRecord> {
    if bytes.len() < BLANK_LEN {
        return Err(BadRecord::Truncated { need: BLANK_LEN as u32, have: bytes.len() });
    }
    let total_len = u32::from_be_bytes(fixed(bytes, TOTAL_LEN_AT));
    let in_range = |least: u32| match total_len {
        len if len >= least && len <= i32::MAX as u32 => Ok(len),
        len => Err(BadRecord::TotalLen { found: len as i32 }),
    };
    match u32::from_be_bytes(fixed(bytes, MAGIC_AT)) {
        MAGIC_V1 | MAGIC_V2 => Ok(Header::Record { total_len: in_range(RECORD_LEN_MIN)? }),
        MAGIC_BLANK => Ok(Header::Blank { total_len: in_range(0)? }),
        0 if total_len == 0 => Ok(Header::Zero),
        found => Err(BadRecord::Magic { found }),
    }
}

/// Where the record at the start of `bytes` says that it stands, before anything else of it is looked at; none if the
/// field is not there.
pub fn peek_phy(bytes: &[u8]) -> Option<PhyOffset> {
    let field = bytes.get(PHY_AT..)?.first_chunk()?;
    Some(PhyOffset(u64::from_be_bytes(*field)))
}

/// Which record stands at a position, told from its first 36 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub total_len: u32,
    pub queue_id: i32,
    pub queue_offset: QueueOffset,
    /// Where the record says that it stands.
    pub phy: PhyOffset,
}

/// Looks at the head of a record only; nothing if it is none.
#[inline]
pub fn peek_place(bytes: &[u8]) -> Option<Place> {
    let Ok(Header::Record { total_len }) = peek_header(bytes) else { return None };
    if bytes.len() < SYS_FLAG_AT {
        return None;
    }
    Some(Place {
        total_len,
        queue_id: i32::from_be_bytes(fixed(bytes, QUEUE_ID_AT)),
        queue_offset: QueueOffset(u64::from_be_bytes(fixed(bytes, QUEUE_OFFSET_AT))),
        phy: PhyOffset(u64::from_be_bytes(fixed(bytes, PHY_AT))),
    })
}

/// Whether a record stands at the start of `bytes` of which the lengths of the parts add up to that of the whole. A few
/// fields are looked at, whatever the length.
#[inline]
pub fn lengths_add_up(bytes: &[u8]) -> bool {
    Parts::of(bytes).is_ok()
}

/// A record taken apart by its lengths; nothing in the parts is looked at.
struct Parts<'a> {
    /// Exactly the record.
    bytes: &'a [u8],
    store_timestamp_at: usize,
    after_hosts_at: usize,
    body_len: usize,
    topic: &'a [u8],
    raw_properties: &'a [u8],
}

impl<'a> Parts<'a> {
    #[inline]
    fn of(bytes: &'a [u8]) -> Result<Parts<'a>, BadRecord> {
        let total_len = match peek_header(bytes)? {
            Header::Record { total_len } => total_len,
            Header::Blank { .. } => return Err(BadRecord::Magic { found: MAGIC_BLANK }),
            Header::Zero => return Err(BadRecord::Magic { found: 0 }),
        };
        let Some(bytes) = bytes.get(..total_len as usize) else {
            return Err(BadRecord::Truncated { need: total_len, have: bytes.len() });
        };
        let short = |computed: usize| BadRecord::Length { declared: total_len, computed: computed as u64 };

        let sys_flag = i32::from_be_bytes(fixed(bytes, SYS_FLAG_AT));
        let store_timestamp_at = BORN_HOST_AT + host_len(sys_flag, sys_flag::BORN_HOST_V6);
        let after_hosts_at = store_timestamp_at + size_of::<i64>() + host_len(sys_flag, sys_flag::STORE_HOST_V6);
        let body_at = after_hosts_at + AFTER_HOSTS_LEN;
        let is_v2 = bytes[MAGIC_AT..MAGIC_AT + 4] == MAGIC_V2.to_be_bytes();
        let topic_len_len = if is_v2 { 2 } else { 1 };
        // The shortest record with hosts of this width: below it even the body length may be missing.
        let least = body_at + topic_len_len + size_of::<i16>();
        if bytes.len() < least {
            return Err(short(least));
        }

        let body_len = u32::from_be_bytes(fixed(bytes, after_hosts_at + 12)) as usize;
        let rest = bytes[body_at..].get(body_len..).ok_or(short(least + body_len))?;
        let (topic_len, rest) = match (is_v2, rest) {
            (false, [len, rest @ ..]) => (usize::from(*len), rest),
            (true, [high, low, rest @ ..]) => (usize::from(u16::from_be_bytes([*high, *low])), rest),
            _ => return Err(short(least + body_len)),
        };
        let Some((topic, [high, low, raw_properties @ ..])) = rest.split_at_checked(topic_len) else {
            return Err(short(least + body_len + topic_len));
        };
        let properties_len = usize::from(u16::from_be_bytes([*high, *low]));
        let topic_fits = is_v2 || topic_len <= TOPIC_LEN_MAX_V1;
        if !topic_fits || properties_len != raw_properties.len() {
            return Err(short(least + body_len + topic_len + properties_len));
        }
        Ok(Parts { bytes, store_timestamp_at, after_hosts_at, body_len, topic, raw_properties })
    }
}

/// A stored record, read in place. That its parts fit together was checked; that its body is what was sent is
/// [`RecordView::check_crc`], that it stands where it says is `phy()` compared by the caller.
#[derive(Clone, Copy, Debug)]
pub struct RecordView<'a> {
    /// Exactly the record.
    bytes: &'a [u8],
    store_timestamp_at: usize,
    after_hosts_at: usize,
    body_len: usize,
    topic: &'a str,
    properties: &'a str,
    raw_properties: &'a [u8],
}

impl<'a> RecordView<'a> {
    /// Reads the record at the start of `bytes`; more may follow it.
    ///
    /// # Errors
    /// [`BadRecord`] if size, magic or the sum of lengths is wrong. The body's checksum is not looked at.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<RecordView<'a>, BadRecord> {
        let Parts { bytes, store_timestamp_at, after_hosts_at, body_len, topic, raw_properties } = Parts::of(bytes)?;
        let topic = std::str::from_utf8(topic).map_err(|_| BadRecord::Topic)?;
        let properties = utf8_start(raw_properties);
        Ok(RecordView { bytes, store_timestamp_at, after_hosts_at, body_len, topic, properties, raw_properties })
    }

    /// Whether the body is the one whose checksum the record keeps.
    pub fn check_crc(&self) -> bool {
        u32::from_be_bytes(fixed(self.bytes, BODY_CRC_AT)) == body_crc(self.body())
    }

    /// Whether the checksum over the whole record, if it was written with one, is right.
    pub fn seal(&self) -> Seal {
        let Some((sealed, property)) = self.bytes.split_last_chunk::<SEAL_LEN>() else { return Seal::Absent };
        if !property.starts_with(SEAL_NAME) || self.raw_properties().len() < SEAL_LEN {
            return Seal::Absent;
        }
        if property[SEAL_NAME.len()..SEAL_LEN - 1] == seal_digits(sealed) { Seal::Right } else { Seal::Wrong }
    }

    /// The record and nothing behind it.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    pub fn total_len(&self) -> u32 {
        self.bytes.len() as u32
    }

    /// Whether the topic length takes two bytes.
    pub fn is_v2(&self) -> bool {
        u32::from_be_bytes(fixed(self.bytes, MAGIC_AT)) == MAGIC_V2
    }

    pub fn queue_id(&self) -> i32 {
        i32::from_be_bytes(fixed(self.bytes, QUEUE_ID_AT))
    }

    /// The user's flag.
    pub fn flag(&self) -> i32 {
        i32::from_be_bytes(fixed(self.bytes, FLAG_AT))
    }

    pub fn queue_offset(&self) -> QueueOffset {
        QueueOffset(u64::from_be_bytes(fixed(self.bytes, QUEUE_OFFSET_AT)))
    }

    /// Where the record says that it stands.
    pub fn phy(&self) -> PhyOffset {
        PhyOffset(u64::from_be_bytes(fixed(self.bytes, PHY_AT)))
    }

    /// See [`sys_flag`].
    pub fn sys_flag(&self) -> i32 {
        i32::from_be_bytes(fixed(self.bytes, SYS_FLAG_AT))
    }

    /// Client's clock, ms.
    pub fn born_timestamp(&self) -> i64 {
        i64::from_be_bytes(fixed(self.bytes, BORN_TIMESTAMP_AT))
    }

    pub fn born_host(&self) -> SocketAddr {
        host_at(&self.bytes[BORN_HOST_AT..self.store_timestamp_at])
    }

    /// Broker's clock.
    pub fn store_timestamp(&self) -> Timestamp {
        Timestamp(i64::from_be_bytes(fixed(self.bytes, self.store_timestamp_at)))
    }

    pub fn store_host(&self) -> SocketAddr {
        host_at(&self.bytes[self.store_timestamp_at + size_of::<i64>()..self.after_hosts_at])
    }

    pub fn reconsume_times(&self) -> i32 {
        i32::from_be_bytes(fixed(self.bytes, self.after_hosts_at))
    }

    /// Physical offset of the half message in a commit record, else 0.
    pub fn prepared_transaction_offset(&self) -> i64 {
        i64::from_be_bytes(fixed(self.bytes, self.after_hosts_at + 4))
    }

    pub fn body(&self) -> &'a [u8] {
        let body_at = self.after_hosts_at + AFTER_HOSTS_LEN;
        &self.bytes[body_at..body_at + self.body_len]
    }

    pub fn topic(&self) -> &'a str {
        self.topic
    }

    /// The properties as text, up to the first bytes that are no UTF-8, if there are any: such a record is not
    /// damaged, a client of Java's broker may have sent it so in a batch. All of them: [`RecordView::raw_properties`].
    pub fn properties(&self) -> &'a str {
        self.properties
    }

    /// The properties as they are stored.
    pub fn raw_properties(&self) -> &'a [u8] {
        self.raw_properties
    }
}

/// Writes address and port at `at`; gives back their length.
#[inline]
fn put_host(put: &mut impl FnMut(usize, &[u8]), at: usize, host: IpAddr, port: u16) -> usize {
    let len = match host {
        IpAddr::V4(v4) => {
            put(at, &v4.octets());
            HOST_V4_LEN
        }
        IpAddr::V6(v6) => {
            put(at, &v6.octets());
            HOST_V6_LEN
        }
    };
    put(at + len - 4, &u32::from(port).to_be_bytes());
    len
}

fn host_len(sys_flag: i32, v6_bit: i32) -> usize {
    if sys_flag & v6_bit == 0 { HOST_V4_LEN } else { HOST_V6_LEN }
}

/// Reads a host field. Of the port the low 16 bits count; more no socket has.
fn host_at(field: &[u8]) -> SocketAddr {
    let ip = if field.len() == HOST_V4_LEN {
        IpAddr::V4(Ipv4Addr::from(fixed::<4>(field, 0)))
    } else {
        IpAddr::V6(Ipv6Addr::from(fixed::<16>(field, 0)))
    };
    SocketAddr::new(ip, u16::from_be_bytes(fixed(field, field.len() - 2)))
}

fn utf8_start(bytes: &[u8]) -> &str {
    match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests;
