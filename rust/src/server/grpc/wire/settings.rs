//! The settings that clients and servers exchange, and the commands of the telemetry stream.

use std::collections::BTreeMap;

use super::types::{Duration, Endpoints, FilterExpression, Message, Resource, Status};

/// What kind of client it is, and its limits.
#[derive(Clone, PartialEq, ::prost::Message)]
pub(crate) struct Settings {
    #[prost(int32, optional, tag = "1")]
    pub(crate) client_type: Option<i32>,
    #[prost(message, optional, tag = "2")]
    pub(crate) access_point: Option<Endpoints>,
    #[prost(message, optional, tag = "3")]
    pub(crate) backoff_policy: Option<RetryPolicy>,
    #[prost(message, optional, tag = "4")]
    pub(crate) request_timeout: Option<Duration>,
    #[prost(oneof = "PubSub", tags = "5, 6")]
    pub(crate) pub_sub: Option<PubSub>,
    #[prost(message, optional, tag = "7")]
    pub(crate) user_agent: Option<UserAgent>,
    #[prost(message, optional, tag = "8")]
    pub(crate) metric: Option<Metric>,
    #[prost(btree_map = "string, string", tag = "9")]
    pub(crate) client_properties: BTreeMap<String, String>,
}

/// The settings of a producer or of a consumer.
#[derive(Clone, PartialEq, Eq, ::prost::Oneof)]
pub(crate) enum PubSub {
    #[prost(message, tag = "5")]
    Publishing(Publishing),
    #[prost(message, tag = "6")]
    Subscription(Subscription),
}

/// The settings of a producer.
#[derive(Clone, PartialEq, Eq, ::prost::Message)]
pub(crate) struct Publishing {
    #[prost(message, repeated, tag = "1")]
    pub(crate) topics: Vec<Resource>,
    #[prost(int32, tag = "2")]
    pub(crate) max_body_size: i32,
    #[prost(bool, tag = "3")]
    pub(crate) validate_message_type: bool,
}

/// The settings of a consumer.
#[derive(Clone, PartialEq, Eq, ::prost::Message)]
pub(crate) struct Subscription {
    #[prost(message, optional, tag = "1")]
    pub(crate) group: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) subscriptions: Vec<SubscriptionEntry>,
    #[prost(bool, optional, tag = "3")]
    pub(crate) fifo: Option<bool>,
    #[prost(int32, optional, tag = "4")]
    pub(crate) receive_batch_size: Option<i32>,
    #[prost(message, optional, tag = "5")]
    pub(crate) long_polling_timeout: Option<Duration>,
    #[prost(int32, optional, tag = "6")]
    pub(crate) lite_subscription_quota: Option<i32>,
    #[prost(int32, optional, tag = "7")]
    pub(crate) max_lite_topic_size: Option<i32>,
}

/// What a consumer wants of a topic.
#[derive(Clone, PartialEq, Eq, ::prost::Message)]
pub(crate) struct SubscriptionEntry {
    #[prost(message, optional, tag = "1")]
    pub(crate) topic: Option<Resource>,
    #[prost(message, optional, tag = "2")]
    pub(crate) expression: Option<FilterExpression>,
}

/// How often a client tries, and how long it waits in between.
#[derive(Clone, PartialEq, ::prost::Message)]
pub(crate) struct RetryPolicy {
    #[prost(int32, tag = "1")]
    pub(crate) max_attempts: i32,
    #[prost(oneof = "Backoff", tags = "2, 3")]
    pub(crate) strategy: Option<Backoff>,
}

/// How long a client waits before it tries again.
#[derive(Clone, PartialEq, ::prost::Oneof)]
pub(crate) enum Backoff {
    #[prost(message, tag = "2")]
    Exponential(ExponentialBackoff),
    #[prost(message, tag = "3")]
    Customized(CustomizedBackoff),
}

/// A wait that grows by a factor.
#[derive(Clone, PartialEq, ::prost::Message)]
pub(crate) struct ExponentialBackoff {
    #[prost(message, optional, tag = "1")]
    pub(crate) initial: Option<Duration>,
    #[prost(message, optional, tag = "2")]
    pub(crate) max: Option<Duration>,
    #[prost(float, tag = "3")]
    pub(crate) multiplier: f32,
}

/// A list of waits.
#[derive(Clone, PartialEq, Eq, ::prost::Message)]
pub(crate) struct CustomizedBackoff {
    #[prost(message, repeated, tag = "1")]
    pub(crate) next: Vec<Duration>,
}

/// The client's software.
#[derive(Clone, PartialEq, Eq, ::prost::Message)]
pub(crate) struct UserAgent {
    #[prost(int32, tag = "1")]
    pub(crate) language: i32,
    #[prost(string, tag = "2")]
    pub(crate) version: String,
    #[prost(string, tag = "3")]
    pub(crate) platform: String,
    #[prost(string, tag = "4")]
    pub(crate) hostname: String,
}

/// Whether and where the client reports its metrics.
#[derive(Clone, PartialEq, Eq, ::prost::Message)]
pub(crate) struct Metric {
    #[prost(bool, tag = "1")]
    pub(crate) on: bool,
    #[prost(message, optional, tag = "2")]
    pub(crate) endpoints: Option<Endpoints>,
}

/// A frame of the telemetry stream, in either direction.
#[derive(Clone, PartialEq, ::prost::Message)]
pub(crate) struct TelemetryCommand {
    #[prost(message, optional, tag = "1")]
    pub(crate) status: Option<Status>,
    #[prost(oneof = "Command", tags = "2, 5")]
    pub(crate) command: Option<Command>,
}

/// The commands that are used here. Others are skipped when they are read.
#[derive(Clone, PartialEq, ::prost::Oneof)]
pub(crate) enum Command {
    #[prost(message, tag = "2")]
    Settings(Settings),
    #[prost(message, tag = "5")]
    RecoverOrphanedTransaction(RecoverOrphanedTransactionCommand),
}

/// Asks a producer about one of its transactions.
#[derive(Clone, PartialEq, Eq, ::prost::Message)]
pub(crate) struct RecoverOrphanedTransactionCommand {
    #[prost(message, optional, tag = "1")]
    pub(crate) message: Option<Message>,
    #[prost(string, tag = "2")]
    pub(crate) transaction_id: String,
}
