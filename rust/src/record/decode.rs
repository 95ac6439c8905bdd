//! Decodes bytes as a record, or says exactly why they are not one.
//!
//! In:     bytes that begin where a record should, and their physical offset.
//! Out:    a view that borrows, a blank, or an error.
//! Always: never panics, whatever the bytes are. The lengths add up exactly to the total size.
//! Not here: whether an error is a torn tail or damage, and whether a blank fills its file.

use super::encode::crc_property;
use super::layout::{
    BLANK_MIN, CRC_DIGITS, CRC_PROPERTY_HEAD, CRC_PROPERTY_LEN, MAGIC_BLANK, MAGIC_V1, MAGIC_V2, PROPERTIES_MAX,
    RECORD_MAX, RECORD_MIN, SYS_BORN_HOST_V6, SYS_FLAG_AT, SYS_STORE_HOST_V6, TOPIC_V1_MAX, TOPIC_V2_MAX, VALUE_END,
    body_len_at, host_len,
};
use super::{Host, Properties, RecordView, Version, crc32};
use crate::base::units::{PhysicalOffset, QueueId, QueueOffset, TimestampMs};

/// Whether the whole-record CRC, the last 20 bytes of the properties, is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordCrc {
    /// It is not checked.
    Ignore,
    /// It is checked if it is present.
    IfPresent,
    /// It must be present and correct.
    Required,
}

/// What is checked in addition to the structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verify {
    /// The body's CRC.
    pub body_crc: bool,
    /// The whole record's CRC.
    pub record_crc: RecordCrc,
}

impl Verify {
    /// For records that were verified before, or that another caller verifies.
    pub const NOTHING: Self = Self { body_crc: false, record_crc: RecordCrc::Ignore };
    /// Checks the CRC that every record has, whichever process wrote it.
    pub const BODY: Self = Self { body_crc: true, record_crc: RecordCrc::Ignore };
}

/// What was found.
#[derive(Clone, Copy, Debug)]
pub enum Scanned<'a> {
    /// A message.
    Record(RecordView<'a>),
    /// The rest of the file is unused.
    Blank {
        /// Bytes that remain of the file, if a crash of a broker left this field whole (`commit_log::step`).
        size: u32,
    },
}

/// Why bytes are not a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Size and magic are 0.
    #[error("nothing was written here: size and magic are 0")]
    Empty,
    /// The bytes end before the record does.
    #[error("the bytes end inside the record: it needs {needed}")]
    Truncated {
        /// Bytes that the record needs, from its beginning.
        needed: u32,
    },
    /// The magic is not one of RocketMQ's.
    #[error("the magic is {found:#010x}, no record's")]
    BadMagic {
        /// The magic as stored.
        found: u32,
    },
    /// The size is not possible for a record.
    #[error("the total size is {found}, which no record can have")]
    BadSize {
        /// The size as stored.
        found: u32,
    },
    /// The record states another physical offset.
    #[error("the record says that its physical offset is {says}, which is not this one")]
    WrongOffset {
        /// The offset that it states.
        says: PhysicalOffset,
    },
    /// A length does not fit the total size.
    #[error("the {field} does not fit the total size")]
    BadLength {
        /// The name of the length.
        field: &'static str,
    },
    /// A port above 65,535.
    #[error("the {field} has port {found}; ports end at 65535")]
    BadPort {
        /// The name of the host field.
        field: &'static str,
        /// The port as stored.
        found: u32,
    },
    /// Queues are numbered from 0.
    #[error("the queue id is {found}; queues are numbered from 0")]
    NegativeQueue {
        /// The number as stored.
        found: i32,
    },
    /// The topic is not UTF-8.
    #[error("the topic is not UTF-8")]
    NotUtf8Topic,
    /// The body's CRC is wrong.
    #[error("the body's CRC is {stored:#010x}, but its bytes have {computed:#010x}")]
    BodyCrc {
        /// The CRC as stored.
        stored: u32,
        /// The CRC computed from the bytes.
        computed: u32,
    },
    /// The whole record's CRC is wrong.
    #[error("the record's CRC is {}, but its bytes have {computed}",
        stored.map_or_else(|| "no number".to_owned(), |stored| stored.to_string()))]
    RecordCrc {
        /// The CRC as stored; `None` if it is not a 32-bit number.
        stored: Option<u32>,
        /// The CRC computed from the bytes.
        computed: u32,
    },
    /// The required whole-record CRC is missing.
    #[error("the record has no CRC: the last 20 bytes of its properties are not __CRC32#")]
    RecordCrcMissing,
    /// The topic is empty.
    #[error("the record has an empty topic")]
    IllegalTopic,
}

type Decoded<T> = std::result::Result<T, DecodeError>;

/// Reads the record at the beginning of `bytes`, whose physical offset is `at`.
#[inline]
pub fn decode(bytes: &[u8], at: PhysicalOffset, verify: Verify) -> Decoded<Scanned<'_>> {
    let (size, magic) = start(bytes)?;
    let version = match magic {
        MAGIC_V1 => Version::V1,
        MAGIC_V2 => Version::V2,
        MAGIC_BLANK => return Ok(Scanned::Blank { size }),
        found => return Err(DecodeError::BadMagic { found }),
    };
    if to_usize(size) < RECORD_MIN || size > RECORD_MAX {
        return Err(DecodeError::BadSize { found: size });
    }
    let Some(record) = bytes.get(..to_usize(size)) else {
        return Err(DecodeError::Truncated { needed: size });
    };
    read(record, size, version, at, verify).map(Scanned::Record)
}

/// Returns the sysflag and the body of a record that was decoded before, without checking the rest of it.
pub fn body_of(record: &[u8]) -> Option<(i32, &[u8])> {
    let sys_flag = i32::from_be_bytes(*record.get(SYS_FLAG_AT..)?.first_chunk()?);
    let (len, after) = record.get(body_len_at(sys_flag)..)?.split_first_chunk()?;
    Some((sys_flag, after.get(..to_usize(u32::from_be_bytes(*len)))?))
}

fn start(bytes: &[u8]) -> Decoded<(u32, u32)> {
    let mut reader = Reader { rest: bytes };
    let needed = DecodeError::Truncated { needed: 8 };
    let size = reader.take().map(u32::from_be_bytes).ok_or(needed)?;
    let magic = reader.take().map(u32::from_be_bytes).ok_or(needed)?;
    if size == 0 && magic == 0 { Err(DecodeError::Empty) } else { Ok((size, magic)) }
}

/// Reads every field of one record, whose size and magic are known to be good.
#[inline]
fn read(record: &[u8], size: u32, version: Version, at: PhysicalOffset, verify: Verify) -> Decoded<RecordView<'_>> {
    let mut reader = Reader { rest: record };
    reader.field::<BLANK_MIN>("total size")?;
    let body_crc = u32::from_be_bytes(reader.field("total size")?);
    let queue_id = QueueId(i32::from_be_bytes(reader.field("total size")?));
    let flag = i32::from_be_bytes(reader.field("total size")?);
    let queue_offset = QueueOffset(u64::from_be_bytes(reader.field("total size")?));
    let physical_offset = PhysicalOffset(u64::from_be_bytes(reader.field("total size")?));
    if physical_offset != at {
        return Err(DecodeError::WrongOffset { says: physical_offset });
    }
    let sys_flag = i32::from_be_bytes(reader.field("total size")?);
    let born_timestamp = TimestampMs(i64::from_be_bytes(reader.field("total size")?));
    let born_host = reader.host("born host", sys_flag & SYS_BORN_HOST_V6 != 0)?;
    let store_timestamp = TimestampMs(i64::from_be_bytes(reader.field("total size")?));
    let store_host = reader.host("store host", sys_flag & SYS_STORE_HOST_V6 != 0)?;
    let reconsume_times = i32::from_be_bytes(reader.field("total size")?);
    let prepared_transaction_offset = PhysicalOffset(u64::from_be_bytes(reader.field("total size")?));
    let (body, topic, properties) = reader.texts(version)?;
    check_body_crc(body, body_crc, verify)?;
    check_record_crc(record, properties, verify)?;
    if queue_id.0 < 0 {
        return Err(DecodeError::NegativeQueue { found: queue_id.0 });
    }
    let topic = std::str::from_utf8(topic).map_err(|_| DecodeError::NotUtf8Topic)?;
    Ok(RecordView {
        size,
        version,
        body_crc,
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        sys_flag,
        born_timestamp,
        born_host,
        store_timestamp,
        store_host,
        reconsume_times,
        prepared_transaction_offset,
        body,
        topic,
        properties: Properties(properties),
    })
}

fn check_body_crc(body: &[u8], stored: u32, verify: Verify) -> Decoded<()> {
    if !verify.body_crc {
        return Ok(());
    }
    let computed = crc32(body);
    if computed == stored { Ok(()) } else { Err(DecodeError::BodyCrc { stored, computed }) }
}

fn check_record_crc(record: &[u8], properties: &[u8], verify: Verify) -> Decoded<()> {
    if verify.record_crc == RecordCrc::Ignore {
        return Ok(());
    }
    let property = properties.last_chunk::<CRC_PROPERTY_LEN>().filter(|property| is_crc_property(property));
    let Some(property) = property else {
        let must = verify.record_crc == RecordCrc::Required;
        return if must { Err(DecodeError::RecordCrcMissing) } else { Ok(()) };
    };
    let covered = record.len().checked_sub(CRC_PROPERTY_LEN).and_then(|len| record.get(..len)).unwrap_or_default();
    let computed = crc32(covered);
    if *property == crc_property(computed) {
        Ok(())
    } else {
        Err(DecodeError::RecordCrc { stored: stored_crc(property), computed })
    }
}

fn is_crc_property(property: &[u8; CRC_PROPERTY_LEN]) -> bool {
    property.starts_with(CRC_PROPERTY_HEAD) && property.ends_with(&[VALUE_END])
}

#[cold]
fn stored_crc(property: &[u8; CRC_PROPERTY_LEN]) -> Option<u32> {
    let digits = property.get(CRC_PROPERTY_HEAD.len()..)?.first_chunk::<CRC_DIGITS>()?;
    digits.iter().rev().try_fold(0_u32, |number, digit| {
        let digit = digit.is_ascii_digit().then(|| u32::from(*digit - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}

/// Takes fields one after the other.
struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    #[inline]
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*head)
    }

    #[inline]
    fn field<const N: usize>(&mut self, field: &'static str) -> Decoded<[u8; N]> {
        self.take().ok_or(DecodeError::BadLength { field })
    }

    #[inline]
    fn host(&mut self, field: &'static str, v6: bool) -> Decoded<Host<'a>> {
        let len = host_len(v6);
        let (host, rest) = self.rest.split_at_checked(len).ok_or(DecodeError::BadLength { field })?;
        self.rest = rest;
        let found = host.last_chunk().map_or(u32::MAX, |port| u32::from_be_bytes(*port));
        if found > u16::MAX.into() { Err(DecodeError::BadPort { field, found }) } else { Ok(Host(host)) }
    }

    /// Takes the body, topic and properties, which must end the record.
    fn texts(&mut self, version: Version) -> Decoded<(&'a [u8], &'a [u8], &'a [u8])> {
        let body_len = u32::from_be_bytes(self.field("body length")?);
        let body = self.text("body length", to_usize(body_len), to_usize(RECORD_MAX))?;
        let topic = match version {
            Version::V1 => {
                let len = u8::from_be_bytes(self.field("topic length")?);
                self.text("topic length", usize::from(len), TOPIC_V1_MAX)?
            }
            Version::V2 => {
                let len = u16::from_be_bytes(self.field("topic length")?);
                self.text("topic length", usize::from(len), TOPIC_V2_MAX)?
            }
        };
        let properties_len = u16::from_be_bytes(self.field("properties length")?);
        let properties = self.text("properties length", usize::from(properties_len), PROPERTIES_MAX)?;
        match (self.rest.is_empty(), topic.is_empty()) {
            (false, _) => Err(DecodeError::BadLength { field: "sum of all lengths" }),
            (true, true) => Err(DecodeError::IllegalTopic),
            (true, false) => Ok((body, topic, properties)),
        }
    }

    #[inline]
    fn text(&mut self, field: &'static str, len: usize, len_max: usize) -> Decoded<&'a [u8]> {
        match self.rest.split_at_checked(len) {
            Some((text, rest)) if len <= len_max => {
                self.rest = rest;
                Ok(text)
            }
            _ => Err(DecodeError::BadLength { field }),
        }
    }
}

/// Converts a length. It never saturates: this crate builds for Linux, where addresses have at least 32 bits.
fn to_usize(len: u32) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}
