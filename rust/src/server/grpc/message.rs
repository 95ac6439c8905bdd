//! Converts messages between records and RocketMQ's gRPC protocol.
//!
//! In:     a message that a client sends; a record.
//! Out:    properties and a body to store; a message for a client.
//! Always: bodies go out as plain bytes with a digest, because some clients drop or refuse others. The limits are those
//!         of RocketMQ's proxy.
//! Not here: the topic, the queue, storing (`send`).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::Read;

use bytes::Bytes;

use super::status::{self, Refused};
use super::wire::{
    DeadLetterQueue, Digest, Message, Resource, SystemProperties, Timestamp, digest_type, encoding, message_type,
};
use crate::base::units::QueueId;
use crate::record::compression::BODY_MAX;
use crate::record::layout::{SYS_COMPRESSED, SYS_LZ4, SYS_ZLIB, SYS_ZSTD};
use crate::record::properties::{
    self, DELAY, DLQ_ORIGIN_MESSAGE_ID, DLQ_ORIGIN_TOPIC, KEY_SEPARATOR, KEYS, SHARDING_KEY, TAGS, TIMER_DELIVER_MS,
    TRANSACTION_ID, TRANSACTION_PREPARED, TRANSACTION_SET, TRANSACTION_TIMER,
};
use crate::record::{Properties, RecordView, decompress};

/// The most properties of a message.
const PROPERTIES_MAX: usize = 128;
/// The most bytes of their names and values.
const PROPERTIES_BYTES_MAX: usize = 16 << 10;
/// The longest message id, in bytes. Clients' ids have 34, or 32 in the old form.
const MESSAGE_ID_MAX: usize = 255;
/// A message group is shorter than this, in bytes.
const MESSAGE_GROUP_MAX: usize = 64;

/// Checks what a client sets of a message, in the order in which RocketMQ's proxy does.
pub(super) fn check(message: &Message, system: &SystemProperties, body_max: usize) -> Result<(), Refused> {
    let id = &system.message_id;
    if id.trim().is_empty() || id.len() > MESSAGE_ID_MAX || has_control(id) {
        let shown: String = id.chars().take(64).collect();
        let what = format!("a message id has 1 to {MESSAGE_ID_MAX} bytes and no control character, got {shown:?}");
        return Err(Refused::new(status::ILLEGAL_MESSAGE_ID, what));
    }
    check_body(&message.body, body_max)?;
    if let Some(tag) = &system.tag
        && (tag.trim().is_empty() || tag.contains('|') || has_control(tag))
    {
        let what = format!("the tag {tag:?} is empty, or has a | or a control character");
        return Err(Refused::new(status::ILLEGAL_MESSAGE_TAG, what));
    }
    if let Some(key) = system.keys.iter().find(|key| key.trim().is_empty() || has_control(key)) {
        let what = format!("the key {key:?} is empty, or has a control character");
        return Err(Refused::new(status::ILLEGAL_MESSAGE_KEY, what));
    }
    if let Some(group) = &system.message_group {
        check_group(group)?;
    }
    check_properties(&message.user_properties)?;
    if system.lite_topic.is_some() || system.priority.is_some() {
        return Err(Refused::new(status::UNSUPPORTED, "light topics and priorities are not served"));
    }
    Ok(())
}

fn check_group(group: &str) -> Result<(), Refused> {
    let refused = |what: &str| Err(Refused::new(status::ILLEGAL_MESSAGE_GROUP, format!("the message group {what}")));
    if group.trim().is_empty() {
        return refused("is empty");
    }
    if group.len() >= MESSAGE_GROUP_MAX {
        return refused(&format!("has {} bytes, at most {} are allowed", group.len(), MESSAGE_GROUP_MAX - 1));
    }
    if has_control(group) {
        return refused(&format!("{group:?} has a control character"));
    }
    Ok(())
}

fn check_body(body: &[u8], body_max: usize) -> Result<(), Refused> {
    if body.is_empty() {
        return Err(Refused::new(status::MESSAGE_BODY_EMPTY, "the body is empty: at least one byte is expected"));
    }
    if body.len() > body_max {
        let what = format!("the body has {} bytes, at most {body_max} are allowed", body.len());
        return Err(Refused::new(status::MESSAGE_BODY_TOO_LARGE, what));
    }
    Ok(())
}

fn check_properties(named: &BTreeMap<String, String>) -> Result<(), Refused> {
    let bytes: usize = named.iter().map(|(name, value)| name.len() + value.len()).sum();
    if named.len() > PROPERTIES_MAX || bytes > PROPERTIES_BYTES_MAX {
        let what = format!(
            "{} properties with {bytes} bytes: at most {PROPERTIES_MAX} with {PROPERTIES_BYTES_MAX} are allowed",
            named.len()
        );
        return Err(Refused::new(status::MESSAGE_PROPERTIES_TOO_LARGE, what));
    }
    let is_ours = |name: &str| properties::is_reserved(name) || name.trim().is_empty() || has_control(name);
    if let Some(name) = named.keys().find(|name| is_ours(name)) {
        let what = format!("the property name {name:?} is RocketMQ's own, empty, or has a control character");
        return Err(Refused::new(status::ILLEGAL_MESSAGE_PROPERTY_KEY, what));
    }
    if let Some((name, _)) = named.iter().find(|(_, value)| has_control(value)) {
        let what = format!("the value of property {name:?} has a control character");
        return Err(Refused::new(status::BAD_REQUEST, what));
    }
    Ok(())
}

fn has_control(text: &str) -> bool {
    text.chars().any(char::is_control)
}

/// Returns the body to store, and the sysflag that says how it is compressed. Only C++'s client compresses, and its
/// `GZIP` means zlib.
pub(super) fn stored_body(body: &Bytes, body_encoding: i32, body_max: usize) -> Result<(Bytes, i32), Refused> {
    if body_encoding != encoding::GZIP {
        return Ok((body.clone(), 0));
    }
    match **body {
        [0x1f, 0x8b, ..] => Ok((Bytes::from(gunzip(body, body_max)?), 0)),
        [0x04, 0x22, 0x4d, 0x18, ..] => Ok((body.clone(), SYS_COMPRESSED | SYS_LZ4)),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Ok((body.clone(), SYS_COMPRESSED | SYS_ZSTD)),
        [0x78, flags, ..] if (0x7800 + u16::from(flags)).is_multiple_of(31) => {
            Ok((body.clone(), SYS_COMPRESSED | SYS_ZLIB))
        }
        _ => Err(Refused::new(status::MESSAGE_CORRUPTED, "the body is not compressed, although its encoding is GZIP")),
    }
}

/// Decompresses a gzip body, which RocketMQ's other clients cannot.
fn gunzip(body: &[u8], body_max: usize) -> Result<Vec<u8>, Refused> {
    let mut plain = Vec::new();
    let most = u64::try_from(body_max).unwrap_or(u64::MAX).saturating_add(1);
    let read = flate2::read::GzDecoder::new(body).take(most).read_to_end(&mut plain);
    read.map_err(|error| Refused::new(status::MESSAGE_CORRUPTED, format!("the body is not gzip: {error}")))?;
    check_body(&plain, body_max)?;
    Ok(plain)
}

/// Returns the message of a record as clients receive it. `topic` and `queue_id`: those it is for, if the record is in a
/// system topic.
pub(super) fn outgoing(view: &RecordView<'_>, topic: &str, queue_id: QueueId) -> Message {
    let named = view.properties;
    let text = |name: &str| named.get_str(name).map(str::to_owned);
    let (body, body_encoding) = plain(view);
    let system = SystemProperties {
        tag: text(TAGS),
        keys: named.get_str(KEYS).map_or_else(Vec::new, |keys| {
            keys.split(KEY_SEPARATOR).filter(|key| !key.is_empty()).map(str::to_owned).collect()
        }),
        message_id: view.message_id(),
        body_digest: Some(Digest { r#type: digest_type::MD5, checksum: format!("{:X}", md5::compute(&body)) }),
        body_encoding,
        message_type: type_of(named),
        born_timestamp: Some(Timestamp::from_millis(view.born_timestamp.0)),
        born_host: view.born_host.address().to_string(),
        store_timestamp: Some(Timestamp::from_millis(view.store_timestamp.0)),
        store_host: view.store_host.address().to_string(),
        queue_id: queue_id.0,
        queue_offset: i64::try_from(view.queue_offset.0).ok(),
        delivery_attempt: Some(view.reconsume_times.saturating_add(1)),
        delivery_timestamp: named
            .get_str(TIMER_DELIVER_MS)
            .and_then(|time| time.parse().ok())
            .map(Timestamp::from_millis),
        message_group: text(SHARDING_KEY),
        dead_letter_queue: text(DLQ_ORIGIN_TOPIC)
            .map(|topic| DeadLetterQueue { topic, message_id: text(DLQ_ORIGIN_MESSAGE_ID).unwrap_or_default() }),
        ..SystemProperties::default()
    };
    Message {
        topic: Some(Resource { resource_namespace: String::new(), name: topic.to_owned() }),
        user_properties: own(named),
        system_properties: Some(system),
        body,
    }
}

/// Returns the body decompressed. One that cannot be decompressed goes out as it is.
fn plain(view: &RecordView<'_>) -> (Bytes, i32) {
    match decompress(view.sys_flag, view.body, BODY_MAX) {
        Ok(Cow::Borrowed(body)) => (Bytes::copy_from_slice(body), encoding::IDENTITY),
        Ok(Cow::Owned(body)) => (Bytes::from(body), encoding::IDENTITY),
        Err(_) => (Bytes::copy_from_slice(view.body), encoding::GZIP),
    }
}

/// Returns the application's own properties.
fn own(named: Properties<'_>) -> BTreeMap<String, String> {
    let pairs = named.iter().filter_map(|(name, value)| {
        let (name, value) = (std::str::from_utf8(name).ok()?, std::str::from_utf8(value).ok()?);
        let is_ours =
            properties::is_reserved(name) || [TRANSACTION_ID, TRANSACTION_SET, TRANSACTION_TIMER].contains(&name);
        (!is_ours).then(|| (name.to_owned(), value.to_owned()))
    });
    pairs.collect()
}

fn type_of(named: Properties<'_>) -> i32 {
    let has = |name: &str| named.get_str(name).is_some();
    if named.get_str(TRANSACTION_PREPARED).is_some_and(|said| said.eq_ignore_ascii_case("true")) {
        message_type::TRANSACTION
    } else if has(DELAY) || has(TIMER_DELIVER_MS) {
        message_type::DELAY
    } else if has(SHARDING_KEY) {
        message_type::FIFO
    } else {
        message_type::NORMAL
    }
}
