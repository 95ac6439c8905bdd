//! Encodes a message as a record.
//!
//! In:     a draft, its `Position`, whether a record CRC ends it.
//! Out:    the bytes, appended to the caller's buffer.
//! Always: RocketMQ's bytes exactly. An error leaves the buffer unchanged.
//! Not here: the limit on a message's size.

use std::net::SocketAddr;

use super::layout::{
    BLANK_MIN, CRC_DIGITS, CRC_MASK, CRC_PROPERTY_HEAD, CRC_PROPERTY_LEN, HEAD_MAX, MAGIC_BLANK, MAGIC_V1, MAGIC_V2,
    PROPERTIES_MAX, RECORD_MAX, SYS_BORN_HOST_V6, SYS_STORE_HOST_V6, TOPIC_V1_MAX, TOPIC_V2_MAX, VALUE_END, body_at,
};
use super::{Draft, Position, TransactionType, crc32};
use crate::base::error::{Error, Result};

/// Returns how many bytes `encode` will write.
///
/// An error names what is too long: the topic, the properties with their CRC, or the whole record.
pub fn encoded_size(draft: &Draft<'_>, with_crc: bool) -> Result<u32> {
    Ok(measure(draft, with_crc)?.total)
}

/// Appends the record to `out` and returns its size.
pub fn encode(draft: &Draft<'_>, position: Position, with_crc: bool, out: &mut Vec<u8>) -> Result<u32> {
    let measured = measure(draft, with_crc)?;
    put(draft, &measured, position, with_crc, out);
    Ok(measured.total)
}

/// Appends a record that was measured with the same `with_crc`.
pub(crate) fn put(draft: &Draft<'_>, measured: &Measured, position: Position, with_crc: bool, out: &mut Vec<u8>) {
    let start = out.len();
    out.reserve(usize::try_from(measured.total).unwrap_or(usize::MAX));
    put_head(draft, position, measured, out);
    out.extend_from_slice(draft.body);
    match measured.topic_len {
        TopicLength::V1(len) => out.push(len),
        TopicLength::V2(len) => out.extend_from_slice(&len.to_be_bytes()),
    }
    out.extend_from_slice(draft.topic.as_bytes());
    out.extend_from_slice(&measured.properties_len.to_be_bytes());
    out.extend_from_slice(draft.properties);
    if measured.separator {
        out.push(VALUE_END);
    }
    if with_crc {
        let crc = crc32(out.get(start..).unwrap_or_default());
        out.extend_from_slice(&crc_property(crc));
    }
    debug_assert_eq!(u32::try_from(out.len() - start), Ok(measured.total), "a record has the size it states");
}

/// Returns the eight bytes that begin a blank record of `size` bytes.
pub fn blank(size: u32) -> [u8; BLANK_MIN] {
    let [s0, s1, s2, s3] = size.to_be_bytes();
    let [m0, m1, m2, m3] = MAGIC_BLANK.to_be_bytes();
    [s0, s1, s2, s3, m0, m1, m2, m3]
}

/// Returns the property that holds a record's CRC.
pub(super) fn crc_property(crc: u32) -> [u8; CRC_PROPERTY_LEN] {
    let mut property = [0; CRC_PROPERTY_LEN];
    let mut cursor = Cursor { rest: &mut property };
    cursor.put(*CRC_PROPERTY_HEAD);
    cursor.put(crc_digits(crc));
    cursor.put([VALUE_END]);
    property
}

/// Returns the CRC's decimal digits, least significant first.
fn crc_digits(crc: u32) -> [u8; CRC_DIGITS] {
    // The number is split into two halves of five digits. Their divisions run in parallel, whereas ten divisions in
    // sequence would wait for each other.
    let (mut low, mut high) = (crc % 100_000, crc / 100_000);
    let mut digits = [b'0'; CRC_DIGITS];
    let (first, last) = digits.split_at_mut(CRC_DIGITS / 2);
    for (first, last) in first.iter_mut().zip(last) {
        let [.., low_digit] = (low % 10).to_be_bytes();
        let [.., high_digit] = (high % 10).to_be_bytes();
        *first += low_digit;
        *last += high_digit;
        low /= 10;
        high /= 10;
    }
    digits
}

enum TopicLength {
    V1(u8),
    V2(u16),
}

/// The sizes of a record's parts.
pub(crate) struct Measured {
    /// Size of the whole record in bytes.
    pub(crate) total: u32,
    sys_flag: i32,
    body_len: u32,
    topic_len: TopicLength,
    properties_len: u16,
    /// The raw properties lack their last separator, and a CRC follows them.
    separator: bool,
}

/// Measures a draft. Fails as `encoded_size` does.
pub(crate) fn measure(draft: &Draft<'_>, with_crc: bool) -> Result<Measured> {
    let sys_flag = stored_sys_flag(draft);
    let topic_len = topic_length(draft.topic)?;
    let separator = with_crc && draft.properties.last().is_some_and(|last| *last != VALUE_END);
    let properties = draft.properties.len() + usize::from(separator) + if with_crc { CRC_PROPERTY_LEN } else { 0 };
    let properties_len = match u16::try_from(properties) {
        Ok(len) if properties <= PROPERTIES_MAX => len,
        _ => return Err(properties_too_long(properties, with_crc)),
    };
    let topic_bytes = draft.topic.len() + if matches!(topic_len, TopicLength::V1(_)) { 1 } else { 2 };
    let rest = body_at(sys_flag) + topic_bytes + 2 + properties;
    let total = u32::try_from(draft.body.len().saturating_add(rest)).ok().filter(|total| *total <= RECORD_MAX);
    let body_len = u32::try_from(draft.body.len()).ok();
    let (Some(total), Some(body_len)) = (total, body_len) else {
        return Err(body_too_long(draft.body.len(), rest));
    };
    Ok(Measured { total, sys_flag, body_len, topic_len, properties_len, separator })
}

fn stored_sys_flag(draft: &Draft<'_>) -> i32 {
    let born = if draft.born_host.is_ipv6() { SYS_BORN_HOST_V6 } else { 0 };
    let store = if draft.store_host.is_ipv6() { SYS_STORE_HOST_V6 } else { 0 };
    draft.sys_flag & !(SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6) | born | store
}

fn topic_length(topic: &str) -> Result<TopicLength> {
    match (topic.len(), u8::try_from(topic.len()), u16::try_from(topic.len())) {
        (1..=TOPIC_V1_MAX, Ok(len), _) => Ok(TopicLength::V1(len)),
        (1..=TOPIC_V2_MAX, _, Ok(len)) => Ok(TopicLength::V2(len)),
        (0, _, _) => Err(Error::InvalidMessage { what: "the message has no topic".to_owned() }),
        (len, _, _) => Err(Error::InvalidMessage {
            what: format!("the topic has {len} bytes; a record holds at most {TOPIC_V2_MAX}"),
        }),
    }
}

#[cold]
fn properties_too_long(len: usize, with_crc: bool) -> Error {
    let crc = if with_crc { ", the CRC's 20 included" } else { "" };
    Error::InvalidMessage {
        what: format!(
            "the properties have {len} bytes{crc}; a record holds at most {PROPERTIES_MAX}\n\
             hint: move large values into the body"
        ),
    }
}

#[cold]
fn body_too_long(body: usize, rest: usize) -> Error {
    Error::InvalidMessage {
        what: format!(
            "the body has {body} bytes; with the record's other {rest} that passes the format's limit of {RECORD_MAX}"
        ),
    }
}

fn put_head(draft: &Draft<'_>, position: Position, measured: &Measured, out: &mut Vec<u8>) {
    let magic = if matches!(measured.topic_len, TopicLength::V1(_)) { MAGIC_V1 } else { MAGIC_V2 };
    let is_queued = TransactionType::of(measured.sys_flag).is_queued();
    let queue_offset = if is_queued { position.queue_offset.0 } else { 0 };
    let body_crc = draft.body_crc.map_or_else(|| crc32(draft.body), |crc| crc & CRC_MASK);
    let mut head = [0; HEAD_MAX];
    let mut cursor = Cursor { rest: &mut head };
    cursor.put(measured.total.to_be_bytes());
    cursor.put(magic.to_be_bytes());
    cursor.put(body_crc.to_be_bytes());
    cursor.put(draft.queue_id.0.to_be_bytes());
    cursor.put(draft.flag.to_be_bytes());
    cursor.put(queue_offset.to_be_bytes());
    cursor.put(position.physical_offset.0.to_be_bytes());
    cursor.put(measured.sys_flag.to_be_bytes());
    cursor.put(draft.born_timestamp.0.to_be_bytes());
    cursor.put_host(draft.born_host);
    cursor.put(position.store_timestamp.0.to_be_bytes());
    cursor.put_host(draft.store_host);
    cursor.put(draft.reconsume_times.to_be_bytes());
    cursor.put(draft.prepared_transaction_offset.0.to_be_bytes());
    cursor.put(measured.body_len.to_be_bytes());
    out.extend_from_slice(head.get(..body_at(measured.sys_flag)).unwrap_or_default());
}

/// Writes fields one after the other into a buffer that is known to be large enough.
struct Cursor<'a> {
    rest: &'a mut [u8],
}

impl Cursor<'_> {
    #[inline]
    fn put<const N: usize>(&mut self, field: [u8; N]) {
        let rest = std::mem::take(&mut self.rest);
        if let Some((head, tail)) = rest.split_first_chunk_mut::<N>() {
            *head = field;
            self.rest = tail;
        } else {
            debug_assert!(false, "the buffer holds every field");
        }
    }

    #[inline]
    fn put_host(&mut self, host: SocketAddr) {
        match host {
            SocketAddr::V4(host) => self.put(host.ip().octets()),
            SocketAddr::V6(host) => self.put(host.ip().octets()),
        }
        self.put(u32::from(host.port()).to_be_bytes());
    }
}
