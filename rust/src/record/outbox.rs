//! The form of a message in a row of the database table `txstore_outbox`.
//!
//! In:     a message with the unique id that it will have in the log.
//! Out:    bytes, and the message again.
//! Always: the first byte is the version. A row of another version is refused, never guessed.
//! Not here: the table and its other columns (Python), the log's records (`encode`).
//!
//! All numbers are big-endian.
//!
//! | bytes      | meaning                                                              |
//! |------------|----------------------------------------------------------------------|
//! | 1          | version: 1                                                           |
//! | 8          | when the message was created, in milliseconds since the epoch        |
//! | 4          | the application's own flag                                           |
//! | 4          | queue id; -1: chosen when the message is forwarded                   |
//! | 1, then n  | topic                                                                |
//! | 1, then n  | producer group                                                       |
//! | 2, then n  | properties, as in a record, with the unique id                       |
//! | the rest   | body                                                                 |

use std::net::SocketAddr;

use crate::base::error::{Error, Result};
use crate::base::units::TimestampMs;
use crate::record::message::{Envelope, Origin, Topic};
use crate::record::properties::{self, UNIQUE_KEY};

/// The version of the form that this module writes.
pub const VERSION: u8 = 1;
/// The queue id of a message whose queue is chosen when it is forwarded.
pub const ANY_QUEUE: i32 = -1;

/// A message in an outbox.
#[derive(Clone, Debug)]
pub struct OutboxRow<'a> {
    /// Everything except the body. It has an origin with the unique id.
    pub envelope: Envelope,
    /// The name of the producer group that sent it.
    pub producer_group: &'a str,
    /// The queue of its topic, or `ANY_QUEUE`.
    pub queue_id: i32,
    /// The body.
    pub body: &'a [u8],
}

/// Encodes a message with the unique id that it gets.
pub fn encode(
    envelope: &Envelope,
    body: &[u8],
    producer_group: &str,
    queue_id: i32,
    unique_id: &str,
    born: TimestampMs,
) -> Result<Vec<u8>> {
    let mut text = envelope.properties.clone();
    properties::push(&mut text, UNIQUE_KEY, unique_id);
    let mut row = Vec::with_capacity(32 + envelope.topic.len() + producer_group.len() + text.len() + body.len());
    row.push(VERSION);
    row.extend(born.0.to_be_bytes());
    row.extend(envelope.flag.to_be_bytes());
    row.extend(queue_id.to_be_bytes());
    for name in [&*envelope.topic, producer_group] {
        row.push(u8::try_from(name.len()).map_err(|_| too_long("a name", name.len()))?);
        row.extend(name.as_bytes());
    }
    row.extend(u16::try_from(text.len()).map_err(|_| too_long("the properties", text.len()))?.to_be_bytes());
    row.extend(text);
    row.extend(body);
    Ok(row)
}

/// Decodes a row. Fails with `InvalidMessage` for one that this version cannot have written.
pub fn decode(row: &[u8], born_host: SocketAddr) -> Result<OutboxRow<'_>> {
    let mut rest = Rest(row);
    let version = rest.take(1)?.first().copied().unwrap_or_default();
    if version != VERSION {
        return Err(invalid(format!(
            "a row of the outbox has version {version}, this txstore knows version {VERSION}\nhint: use the newer txstore that wrote it"
        )));
    }
    let born = i64::from_be_bytes(rest.array()?);
    let flag = i32::from_be_bytes(rest.array()?);
    let queue_id = i32::from_be_bytes(rest.array()?);
    let topic = rest.short_text()?;
    let producer_group = rest.short_text()?;
    let length = u16::from_be_bytes(rest.array()?);
    let text = text_of(rest.take(length.into())?)?;
    let origin =
        Origin { unique_id: None, sys_flag: 0, born_timestamp: TimestampMs(born), born_host, reconsume_times: 0 };
    let envelope = Envelope::received(Topic::new(topic)?, text, flag, origin)?;
    if envelope.unique_id().is_none() || queue_id < ANY_QUEUE {
        return Err(invalid("a row of the outbox has no message id, or an impossible queue".into()));
    }
    Ok(OutboxRow { envelope, producer_group, queue_id, body: rest.0 })
}

/// The bytes of a row that are not decoded yet.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8]> {
        let ends_early = || invalid("a row of the outbox ends early".into());
        let (taken, rest) = self.0.split_at_checked(length).ok_or_else(ends_early)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.take(N)?);
        Ok(bytes)
    }

    fn short_text(&mut self) -> Result<&'a str> {
        let [length] = self.array()?;
        text_of(self.take(usize::from(length))?)
    }
}

fn text_of(bytes: &[u8]) -> Result<&str> {
    std::str::from_utf8(bytes).map_err(|_| invalid("a row of the outbox contains text that is not UTF-8".into()))
}

fn too_long(what: &str, length: usize) -> Error {
    invalid(format!("{what} of {length} bytes is too long for a row of the outbox"))
}

fn invalid(what: String) -> Error {
    Error::InvalidMessage { what }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::message::Parts;

    const HOST: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

    fn row() -> Vec<u8> {
        let parts = Parts {
            topic: "orders",
            tags: Some("paid"),
            keys: "o-1 o-2",
            properties: &[("region", "süd")],
            flag: 7,
            delay_level: 3,
            deliver_ms: None,
            message_group: Some("customer-1"),
        };
        let envelope = Envelope::new(&parts).unwrap();
        encode(&envelope, b"\0body", "services", 2, "id-1", TimestampMs(1_700_000_000_123)).unwrap()
    }

    #[test]
    fn a_row_keeps_the_whole_message() {
        let row = row();
        let found = decode(&row, HOST).unwrap();
        let OutboxRow { envelope, producer_group, queue_id, body } = &found;
        assert_eq!((*producer_group, *queue_id, *body), ("services", 2, &b"\0body"[..]));
        assert_eq!((&*envelope.topic, envelope.flag, envelope.delay_level), ("orders", 7, 3));
        assert_eq!((envelope.unique_id(), envelope.keys()), (Some("id-1"), Some("o-1 o-2")));
        assert_eq!(envelope.origin.as_ref().unwrap().born_timestamp, TimestampMs(1_700_000_000_123));
        let properties = crate::record::properties::Properties(&envelope.properties);
        assert_eq!(properties.get_str("region"), Some("süd"));
        assert_eq!(properties.get_str("__SHARDINGKEY"), Some("customer-1"));
    }

    #[test]
    fn every_shortened_row_is_refused_or_has_a_shorter_body() {
        let row = row();
        for length in 0..row.len() {
            match decode(&row[..length], HOST) {
                Ok(found) => assert!(found.body.len() < 5, "{length}"),
                Err(error) => assert!(matches!(error, Error::InvalidMessage { .. }), "{error}"),
            }
        }
    }

    #[test]
    fn another_version_is_refused_by_name() {
        let mut row = row();
        row[0] = 2;
        let refused = decode(&row, HOST).unwrap_err().to_string();
        assert!(refused.contains("version 2") && refused.contains("version 1"), "{refused}");
    }
}
