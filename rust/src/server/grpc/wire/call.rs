//! The requests, and their answers.

use super::types::{
    Assignment, Duration, Endpoints, FilterExpression, Message, MessageQueue, Resource, Status, Timestamp,
};

/// An answer to a request.
pub(crate) trait Answer: ::prost::Message + 'static {
    /// Creates the answer that only has a status.
    fn with(status: Status) -> Self;
    /// Returns the code of the answer's status.
    fn code(&self) -> i32;
}

macro_rules! answers {
    ($($name:ident),+ $(,)?) => {
        $(impl Answer for $name {
            fn with(status: Status) -> Self {
                let mut answer = Self::default();
                answer.status = Some(status);
                answer
            }

            fn code(&self) -> i32 {
                self.status.as_ref().map_or(0, |status| status.code)
            }
        })+
    };
}

answers! {
    QueryRouteResponse, SendMessageResponse, QueryAssignmentResponse, AckMessageResponse, HeartbeatResponse,
    ForwardMessageToDeadLetterQueueResponse, EndTransactionResponse, NotifyClientTerminationResponse,
    ChangeInvisibleDurationResponse, RecallMessageResponse, UnservedResponse,
}

#[derive(Clone, PartialEq, Eq, ::prost::Message)]
pub(crate) struct QueryRouteRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) topic: Option<Resource>,
    #[prost(message, optional, tag = "2")]
    pub(crate) endpoints: Option<Endpoints>,
}

#[derive(Clone, PartialEq, Eq, ::prost::Message)]
pub(crate) struct QueryRouteResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) status: Option<Status>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) message_queues: Vec<MessageQueue>,
}

#[derive(Clone, PartialEq, Eq, ::prost::Message)]
pub(crate) struct SendMessageRequest {
    #[prost(message, repeated, tag = "1")]
    pub(crate) messages: Vec<Message>,
}

/// The result of one message of a send.
#[derive(Clone, PartialEq, Eq, ::prost::Message)]
pub(crate) struct SendResultEntry {
    #[prost(message, optional, tag = "1")]
    pub(crate) status: Option<Status>,
    #[prost(string, tag = "2")]
    pub(crate) message_id: String,
    #[prost(string, tag = "3")]
    pub(crate) transaction_id: String,
    #[prost(int64, tag = "4")]
    pub(crate) offset: i64,
    #[prost(string, tag = "5")]
    pub(crate) recall_handle: String,
}

#[derive(Clone, PartialEq, Eq, ::prost::Message)]
pub(crate) struct SendMessageResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) status: Option<Status>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) entries: Vec<SendResultEntry>,
}

#[derive(Clone, PartialEq, Eq, ::prost::Message)]
pub(crate) struct QueryAssignmentRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) topic: Option<Resource>,
    #[prost(message, optional, tag = "2")]
    pub(crate) group: Option<Resource>,
    #[prost(message, optional, tag = "3")]
    pub(crate) endpoints: Option<Endpoints>,
}

#[derive(Clone, PartialEq, Eq, ::prost::Message)]
pub(crate) struct QueryAssignmentResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) status: Option<Status>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) assignments: Vec<Assignment>,
}

#[derive(Clone, PartialEq, Eq, ::prost::Message)]
pub(crate) struct ReceiveMessageRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) group: Option<Resource>,
    #[prost(message, optional, tag = "2")]
    pub(crate) message_queue: Option<MessageQueue>,
    #[prost(message, optional, tag = "3")]
    pub(crate) filter_expression: Option<FilterExpression>,
    #[prost(int32, tag = "4")]
    pub(crate) batch_size: i32,
    #[prost(message, optional, tag = "5")]
    pub(crate) invisible_duration: Option<Duration>,
    #[prost(bool, tag = "6")]
    pub(crate) auto_renew: bool,
    #[prost(message, optional, tag = "7")]
    pub(crate) long_polling_timeout: Option<Duration>,
    #[prost(string, optional, tag = "8")]
    pub(crate) attempt_id: Option<String>,
}

/// One frame of the answer to a receive.
#[derive(Clone, PartialEq, Eq, ::prost::Message)]
pub(crate) struct ReceiveMessageResponse {
    #[prost(oneof = "Received", tags = "1, 2, 3")]
    pub(crate) content: Option<Received>,
}

/// What a frame of the answer to a receive contains.
#[derive(Clone, PartialEq, Eq, ::prost::Oneof)]
#[allow(clippy::large_enum_variant)] // Most of them are messages.
pub(crate) enum Received {
    #[prost(message, tag = "1")]
    Status(Status),
    #[prost(message, tag = "2")]
    Message(Message),
    #[prost(message, tag = "3")]
    DeliveryTimestamp(Timestamp),
}

#[derive(Clone, PartialEq, Eq, ::prost::Message)]
pub(crate) struct AckMessageEntry {
    #[prost(string, tag = "1")]
    pub(crate) message_id: String,
    #[prost(string, tag = "2")]
    pub(crate) receipt_handle: String,
    #[prost(string, optional, tag = "3")]
    pub(crate) lite_topic: Option<String>,
}

#[derive(Clone, PartialEq, Eq, ::prost::Message)]
pub(crate) struct AckMessageRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) group: Option<Resource>,
    #[prost(message, optional, tag = "2")]
    pub(crate) topic: Option<Resource>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) entries: Vec<AckMessageEntry>,
}

#[derive(Clone, PartialEq, Eq, ::prost::Message)]
pub(crate) struct AckMessageResultEntry {
    #[prost(string, tag = "1")]
    pub(crate) message_id: String,
    #[prost(string, tag = "2")]
    pub(crate) receipt_handle: String,
    #[prost(message, optional, tag = "3")]
    pub(crate) status: Option<Status>,
}

#[derive(Clone, PartialEq, Eq, ::prost::Message)]
pub(crate) struct AckMessageResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) status: Option<Status>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) entries: Vec<AckMessageResultEntry>,
}

#[derive(Clone, PartialEq, Eq, ::prost::Message)]
pub(crate) struct ForwardMessageToDeadLetterQueueRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) group: Option<Resource>,
    #[prost(message, optional, tag = "2")]
    pub(crate) topic: Option<Resource>,
    #[prost(string, tag = "3")]
    pub(crate) receipt_handle: String,
    #[prost(string, tag = "4")]
    pub(crate) message_id: String,
    #[prost(int32, tag = "5")]
    pub(crate) delivery_attempt: i32,
    #[prost(int32, tag = "6")]
    pub(crate) max_delivery_attempts: i32,
    #[prost(string, optional, tag = "7")]
    pub(crate) lite_topic: Option<String>,
}

#[derive(Clone, PartialEq, Eq, ::prost::Message)]
pub(crate) struct ForwardMessageToDeadLetterQueueResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) status: Option<Status>,
}

#[derive(Clone, PartialEq, Eq, ::prost::Message)]
pub(crate) struct HeartbeatRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) group: Option<Resource>,
    #[prost(int32, tag = "2")]
    pub(crate) client_type: i32,
}

#[derive(Clone, PartialEq, Eq, ::prost::Message)]
pub(crate) struct HeartbeatResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) status: Option<Status>,
}

#[derive(Clone, PartialEq, Eq, ::prost::Message)]
pub(crate) struct EndTransactionRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) topic: Option<Resource>,
    #[prost(string, tag = "2")]
    pub(crate) message_id: String,
    #[prost(string, tag = "3")]
    pub(crate) transaction_id: String,
    #[prost(int32, tag = "4")]
    pub(crate) resolution: i32,
    #[prost(int32, tag = "5")]
    pub(crate) source: i32,
    #[prost(string, tag = "6")]
    pub(crate) trace_context: String,
}

#[derive(Clone, PartialEq, Eq, ::prost::Message)]
pub(crate) struct EndTransactionResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) status: Option<Status>,
}

#[derive(Clone, PartialEq, Eq, ::prost::Message)]
pub(crate) struct RecallMessageRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) topic: Option<Resource>,
    #[prost(string, tag = "2")]
    pub(crate) recall_handle: String,
}

#[derive(Clone, PartialEq, Eq, ::prost::Message)]
pub(crate) struct RecallMessageResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) status: Option<Status>,
    #[prost(string, tag = "2")]
    pub(crate) message_id: String,
}

#[derive(Clone, PartialEq, Eq, ::prost::Message)]
pub(crate) struct NotifyClientTerminationRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) group: Option<Resource>,
}

#[derive(Clone, PartialEq, Eq, ::prost::Message)]
pub(crate) struct NotifyClientTerminationResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) status: Option<Status>,
}

#[derive(Clone, PartialEq, Eq, ::prost::Message)]
pub(crate) struct ChangeInvisibleDurationRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) group: Option<Resource>,
    #[prost(message, optional, tag = "2")]
    pub(crate) topic: Option<Resource>,
    #[prost(string, tag = "3")]
    pub(crate) receipt_handle: String,
    #[prost(message, optional, tag = "4")]
    pub(crate) invisible_duration: Option<Duration>,
    #[prost(string, tag = "5")]
    pub(crate) message_id: String,
    #[prost(string, optional, tag = "6")]
    pub(crate) lite_topic: Option<String>,
    #[prost(bool, optional, tag = "7")]
    pub(crate) suspend: Option<bool>,
}

#[derive(Clone, PartialEq, Eq, ::prost::Message)]
pub(crate) struct ChangeInvisibleDurationResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) status: Option<Status>,
    #[prost(string, tag = "2")]
    pub(crate) receipt_handle: String,
}

/// A request that is not served. Its fields are not read.
#[derive(Clone, Copy, PartialEq, Eq, ::prost::Message)]
pub(crate) struct UnservedRequest {}

/// The answer to a request that is not served. All answers have their status at this tag.
#[derive(Clone, PartialEq, Eq, ::prost::Message)]
pub(crate) struct UnservedResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) status: Option<Status>,
}
