//! The types that several requests share: names, addresses, messages, times.

use std::collections::BTreeMap;

use bytes::Bytes;

/// The kinds of messages.
pub(crate) mod message_type {
    pub(crate) const NORMAL: i32 = 1;
    pub(crate) const FIFO: i32 = 2;
    pub(crate) const DELAY: i32 = 3;
    pub(crate) const TRANSACTION: i32 = 4;
}

/// The kinds of clients.
pub(crate) mod client_type {
    pub(crate) const PRODUCER: i32 = 1;
    pub(crate) const PUSH_CONSUMER: i32 = 2;
    pub(crate) const SIMPLE_CONSUMER: i32 = 3;
}

/// How a body is encoded.
pub(crate) mod filter_type {
    pub(crate) const UNSPECIFIED: i32 = 0;
    pub(crate) const TAG: i32 = 1;
    pub(crate) const SQL: i32 = 2;
}

pub(crate) mod encoding {
    pub(crate) const IDENTITY: i32 = 1;
    pub(crate) const GZIP: i32 = 2;
}

/// The algorithm of a digest.
pub(crate) mod digest_type {
    pub(crate) const MD5: i32 = 2;
}

/// What a queue may be used for.
pub(crate) mod permission {
    pub(crate) const READ: i32 = 2;
    pub(crate) const WRITE: i32 = 3;
    pub(crate) const READ_WRITE: i32 = 4;
}

/// How to end a transaction.
pub(crate) mod resolution {
    pub(crate) const COMMIT: i32 = 1;
    pub(crate) const ROLLBACK: i32 = 2;
}

/// Why a transaction ends.
pub(crate) mod transaction_source {
    pub(crate) const SERVER_CHECK: i32 = 2;
}

/// The name of a topic or a group.
#[derive(Clone, PartialEq, Eq, ::prost::Message)]
pub(crate) struct Resource {
    #[prost(string, tag = "1")]
    pub(crate) resource_namespace: String,
    #[prost(string, tag = "2")]
    pub(crate) name: String,
}

/// The result of a request, or of a part of it.
#[derive(Clone, PartialEq, Eq, ::prost::Message)]
pub(crate) struct Status {
    #[prost(int32, tag = "1")]
    pub(crate) code: i32,
    #[prost(string, tag = "2")]
    pub(crate) message: String,
}

/// A span of time.
#[derive(Clone, Copy, PartialEq, Eq, ::prost::Message)]
pub(crate) struct Duration {
    #[prost(int64, tag = "1")]
    pub(crate) seconds: i64,
    #[prost(int32, tag = "2")]
    pub(crate) nanos: i32,
}

impl Duration {
    /// Returns the milliseconds, at most `i64::MAX`.
    pub(crate) fn as_millis(&self) -> i64 {
        self.seconds.saturating_mul(1_000).saturating_add((self.nanos / 1_000_000).into())
    }

    pub(crate) const fn from_millis(millis: u32) -> Self {
        // Both casts are of numbers below a billion.
        #[allow(clippy::as_conversions, clippy::cast_possible_wrap)]
        Self { seconds: (millis / 1_000) as i64, nanos: (millis % 1_000 * 1_000_000) as i32 }
    }
}

/// A moment, counted from the epoch.
#[derive(Clone, Copy, PartialEq, Eq, ::prost::Message)]
pub(crate) struct Timestamp {
    #[prost(int64, tag = "1")]
    pub(crate) seconds: i64,
    #[prost(int32, tag = "2")]
    pub(crate) nanos: i32,
}

impl Timestamp {
    /// Returns the milliseconds since the epoch, at most `i64::MAX`.
    pub(crate) fn as_millis(&self) -> i64 {
        self.seconds.saturating_mul(1_000).saturating_add((self.nanos / 1_000_000).into())
    }

    pub(crate) fn from_millis(millis: i64) -> Self {
        let nanos = i32::try_from(millis.rem_euclid(1_000) * 1_000_000).unwrap_or(0);
        Self { seconds: millis.div_euclid(1_000), nanos }
    }
}

/// One address of a server.
#[derive(Clone, PartialEq, Eq, ::prost::Message)]
pub(crate) struct Address {
    #[prost(string, tag = "1")]
    pub(crate) host: String,
    #[prost(int32, tag = "2")]
    pub(crate) port: i32,
}

/// The addresses of a server.
#[derive(Clone, PartialEq, Eq, ::prost::Message)]
pub(crate) struct Endpoints {
    #[prost(int32, tag = "1")]
    pub(crate) scheme: i32,
    #[prost(message, repeated, tag = "2")]
    pub(crate) addresses: Vec<Address>,
}

/// A broker of a route.
#[derive(Clone, PartialEq, Eq, ::prost::Message)]
pub(crate) struct Broker {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(int32, tag = "2")]
    pub(crate) id: i32,
    #[prost(message, optional, tag = "3")]
    pub(crate) endpoints: Option<Endpoints>,
}

/// A queue of a topic.
#[derive(Clone, PartialEq, Eq, ::prost::Message)]
pub(crate) struct MessageQueue {
    #[prost(message, optional, tag = "1")]
    pub(crate) topic: Option<Resource>,
    #[prost(int32, tag = "2")]
    pub(crate) id: i32,
    #[prost(int32, tag = "3")]
    pub(crate) permission: i32,
    #[prost(message, optional, tag = "4")]
    pub(crate) broker: Option<Broker>,
    #[prost(int32, repeated, tag = "5")]
    pub(crate) accept_message_types: Vec<i32>,
}

/// A queue that a member of a group receives from.
#[derive(Clone, PartialEq, Eq, ::prost::Message)]
pub(crate) struct Assignment {
    #[prost(message, optional, tag = "1")]
    pub(crate) message_queue: Option<MessageQueue>,
}

/// Which messages a consumer wants.
#[derive(Clone, PartialEq, Eq, ::prost::Message)]
pub(crate) struct FilterExpression {
    #[prost(int32, tag = "1")]
    pub(crate) r#type: i32,
    #[prost(string, tag = "2")]
    pub(crate) expression: String,
}

/// The digest of a body.
#[derive(Clone, PartialEq, Eq, ::prost::Message)]
pub(crate) struct Digest {
    #[prost(int32, tag = "1")]
    pub(crate) r#type: i32,
    #[prost(string, tag = "2")]
    pub(crate) checksum: String,
}

/// Where a dead letter came from.
#[derive(Clone, PartialEq, Eq, ::prost::Message)]
pub(crate) struct DeadLetterQueue {
    #[prost(string, tag = "1")]
    pub(crate) topic: String,
    #[prost(string, tag = "2")]
    pub(crate) message_id: String,
}

/// A message as clients send and receive it.
#[derive(Clone, PartialEq, Eq, ::prost::Message)]
pub(crate) struct Message {
    #[prost(message, optional, tag = "1")]
    pub(crate) topic: Option<Resource>,
    #[prost(btree_map = "string, string", tag = "2")]
    pub(crate) user_properties: BTreeMap<String, String>,
    #[prost(message, optional, tag = "3")]
    pub(crate) system_properties: Option<SystemProperties>,
    #[prost(bytes = "bytes", tag = "4")]
    pub(crate) body: Bytes,
}

/// What RocketMQ itself knows of a message.
#[derive(Clone, PartialEq, Eq, ::prost::Message)]
pub(crate) struct SystemProperties {
    #[prost(string, optional, tag = "1")]
    pub(crate) tag: Option<String>,
    #[prost(string, repeated, tag = "2")]
    pub(crate) keys: Vec<String>,
    #[prost(string, tag = "3")]
    pub(crate) message_id: String,
    #[prost(message, optional, tag = "4")]
    pub(crate) body_digest: Option<Digest>,
    #[prost(int32, tag = "5")]
    pub(crate) body_encoding: i32,
    #[prost(int32, tag = "6")]
    pub(crate) message_type: i32,
    #[prost(message, optional, tag = "7")]
    pub(crate) born_timestamp: Option<Timestamp>,
    #[prost(string, tag = "8")]
    pub(crate) born_host: String,
    #[prost(message, optional, tag = "9")]
    pub(crate) store_timestamp: Option<Timestamp>,
    #[prost(string, tag = "10")]
    pub(crate) store_host: String,
    #[prost(message, optional, tag = "11")]
    pub(crate) delivery_timestamp: Option<Timestamp>,
    #[prost(string, optional, tag = "12")]
    pub(crate) receipt_handle: Option<String>,
    #[prost(int32, tag = "13")]
    pub(crate) queue_id: i32,
    #[prost(int64, optional, tag = "14")]
    pub(crate) queue_offset: Option<i64>,
    #[prost(message, optional, tag = "15")]
    pub(crate) invisible_duration: Option<Duration>,
    #[prost(int32, optional, tag = "16")]
    pub(crate) delivery_attempt: Option<i32>,
    #[prost(string, optional, tag = "17")]
    pub(crate) message_group: Option<String>,
    #[prost(string, optional, tag = "18")]
    pub(crate) trace_context: Option<String>,
    #[prost(message, optional, tag = "19")]
    pub(crate) orphaned_transaction_recovery_duration: Option<Duration>,
    #[prost(message, optional, tag = "20")]
    pub(crate) dead_letter_queue: Option<DeadLetterQueue>,
    #[prost(string, optional, tag = "21")]
    pub(crate) lite_topic: Option<String>,
    #[prost(int32, optional, tag = "22")]
    pub(crate) priority: Option<i32>,
}
