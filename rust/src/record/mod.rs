//! Defines a record: a message as bytes of the commit log.
//!
//! In:     a `Draft` and its `Position`, or bytes.
//! Out:    exactly RocketMQ's bytes, or a `RecordView` that borrows from them.
//! Always: the only module that knows a record's bytes.
//! Not here: which physical offset a record gets, and its role in a transaction.

pub mod compression;
pub mod decode;
pub mod encode;
pub mod layout;
pub mod message;
pub mod message_id;
pub mod outbox;
pub mod properties;
#[cfg(any(feature = "python", feature = "server"))]
pub mod recall_handle;
#[cfg(test)]
mod tests;
pub mod timer;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

pub use compression::decompress;
pub use decode::{DecodeError, RecordCrc, Scanned, Verify, decode};
pub use encode::{blank, encode, encoded_size};
pub use message_id::{UniqueId, UniqueIds, offset_message_id, parse_offset_message_id};
pub use properties::Properties;

use crate::base::units::{PhysicalOffset, QueueId, QueueOffset, TimestampMs};

/// How a record writes its topic's length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// In one byte.
    V1,
    /// In two bytes, for topics of more than 127 bytes.
    V2,
}

/// The transaction type that the sysflag states. The half messages of RocketMQ 4.3 and later say `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionType {
    /// An ordinary message.
    None,
    /// Prepared: in no queue.
    Prepared,
    /// The message of a committed transaction.
    Commit,
    /// Rolled back: in no queue.
    Rollback,
}

impl TransactionType {
    /// Returns the type that the sysflag's transaction bits state.
    pub const fn of(sys_flag: i32) -> Self {
        match sys_flag & layout::SYS_TRANSACTION_MASK {
            layout::SYS_PREPARED => Self::Prepared,
            layout::SYS_COMMIT => Self::Commit,
            layout::SYS_ROLLBACK => Self::Rollback,
            _ => Self::None,
        }
    }

    /// Returns whether records of this type get an entry in their queue.
    pub const fn is_queued(self) -> bool {
        matches!(self, Self::None | Self::Commit)
    }
}

/// An address as stored in a record: the network address, then the port in four bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host<'a>(&'a [u8]);

impl<'a> Host<'a> {
    /// Returns the bytes, which are equal only for equal addresses.
    pub const fn bytes(self) -> &'a [u8] {
        self.0
    }

    /// Returns the address.
    pub fn address(self) -> SocketAddr {
        let port = self.0.last_chunk().map_or(0, |[_, _, high, low]| u16::from_be_bytes([*high, *low]));
        let v4 = self.0.first_chunk::<4>().map_or(Ipv4Addr::UNSPECIFIED, |ip| Ipv4Addr::from(*ip));
        let v6 = (self.0.len() == layout::HOST_V6_LEN).then(|| self.0.first_chunk::<16>()).flatten();
        SocketAddr::new(v6.map_or(IpAddr::V4(v4), |ip| IpAddr::V6(Ipv6Addr::from(*ip))), port)
    }
}

impl<'a> From<&'a [u8; layout::HOST_V4_LEN]> for Host<'a> {
    fn from(bytes: &'a [u8; layout::HOST_V4_LEN]) -> Self {
        Self(bytes)
    }
}

/// A record, borrowed from its bytes.
#[derive(Clone, Copy, Debug)]
pub struct RecordView<'a> {
    /// Bytes of the whole record.
    pub size: u32,
    /// How the topic's length is written.
    pub version: Version,
    /// CRC of the body as stored, top bit cleared.
    pub body_crc: u32,
    /// The queue within the topic.
    pub queue_id: QueueId,
    /// The application's own flag.
    pub flag: i32,
    /// The queue offset of the record's entry; 0 for prepared and rollback.
    pub queue_offset: QueueOffset,
    /// The record's own physical offset.
    pub physical_offset: PhysicalOffset,
    /// The bits of `layout::SYS_…`.
    pub sys_flag: i32,
    /// When the producer created the message.
    pub born_timestamp: TimestampMs,
    /// The producer's address.
    pub born_host: Host<'a>,
    /// When the message was stored.
    pub store_timestamp: TimestampMs,
    /// The store's address.
    pub store_host: Host<'a>,
    /// How often a consumer asked for it again.
    pub reconsume_times: i32,
    /// In a committed message: the physical offset of its half message.
    pub prepared_transaction_offset: PhysicalOffset,
    /// The body as stored, perhaps compressed.
    pub body: &'a [u8],
    /// The topic.
    pub topic: &'a str,
    /// The properties as stored.
    pub properties: Properties<'a>,
}

impl<'a> RecordView<'a> {
    /// Returns the transaction type that the sysflag states.
    pub const fn transaction_type(&self) -> TransactionType {
        TransactionType::of(self.sys_flag)
    }

    /// Returns the id that names the store's address and the record's physical offset.
    pub fn offset_message_id(&self) -> String {
        offset_message_id(self.store_host.address(), self.physical_offset)
    }

    /// Returns the id that the producer gave it.
    pub fn unique_id(&self) -> Option<&'a str> {
        self.properties.get_str(properties::UNIQUE_KEY)
    }

    /// Returns the unique id, else the offset id.
    pub fn message_id(&self) -> String {
        self.unique_id().map_or_else(|| self.offset_message_id(), str::to_owned)
    }
}

/// A message before it is encoded as a record.
#[derive(Clone, Copy, Debug)]
pub struct Draft<'a> {
    /// The topic.
    pub topic: &'a str,
    /// The queue within the topic.
    pub queue_id: QueueId,
    /// The application's own flag.
    pub flag: i32,
    /// The bits of `layout::SYS_…`. The address family bits are set from the hosts.
    pub sys_flag: i32,
    /// When the producer created the message.
    pub born_timestamp: TimestampMs,
    /// The producer's address.
    pub born_host: SocketAddr,
    /// The store's address.
    pub store_host: SocketAddr,
    /// How often a consumer asked for it again.
    pub reconsume_times: i32,
    /// In a committed message: the physical offset of its half message.
    pub prepared_transaction_offset: PhysicalOffset,
    /// The body as stored, perhaps compressed.
    pub body: &'a [u8],
    /// The body's CRC if it is known already; else it is computed.
    pub body_crc: Option<u32>,
    /// The raw properties, without the record CRC.
    pub properties: &'a [u8],
}

/// The values that an append assigns to a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The record's physical offset.
    pub physical_offset: PhysicalOffset,
    /// Its queue offset; written as 0 for prepared and rollback.
    pub queue_offset: QueueOffset,
    /// When the record is stored.
    pub store_timestamp: TimestampMs,
}

/// Returns the CRC-32 of RocketMQ: ISO-HDLC without its top bit.
pub fn crc32(bytes: &[u8]) -> u32 {
    crc32fast::hash(bytes) & layout::CRC_MASK
}
