//! Codes: RocketMQ's numbers of requests and responses, as far as the data path speaks them.
//!
//! In: nothing, or an error of the engine. Out: numbers. Not here: those that only Python speaks.

use crate::error::{Error, ErrorKind};

/// Requests.
pub mod request {
    /// A message, with its fields' long names.
    pub const SEND_MESSAGE: i32 = 10;
    /// Messages of a queue are asked for.
    pub const PULL_MESSAGE: i32 = 11;
    /// A transaction is to end.
    pub const END_TRANSACTION: i32 = 37;
    /// A message, with its fields' short names.
    pub const SEND_MESSAGE_V2: i32 = 310;
    /// Several messages of one queue.
    pub const SEND_BATCH_MESSAGE: i32 = 320;
    /// As `PULL_MESSAGE`.
    pub const LITE_PULL_MESSAGE: i32 = 361;

    /// Decided by Python: messages by a key.
    pub const QUERY_MESSAGE: i32 = 12;
    /// Decided by Python: how far a group is.
    pub const QUERY_CONSUMER_OFFSET: i32 = 14;
    /// Decided by Python: a group has come so far.
    pub const UPDATE_CONSUMER_OFFSET: i32 = 15;
    /// Decided by Python: where a queue was at a time.
    pub const SEARCH_OFFSET_BY_TIMESTAMP: i32 = 29;
    /// Decided by Python: a queue's end.
    pub const GET_MAX_OFFSET: i32 = 30;
    /// Decided by Python: a queue's beginning.
    pub const GET_MIN_OFFSET: i32 = 31;
    /// Decided by Python: how old a queue's first message is.
    pub const GET_EARLIEST_MSG_STORETIME: i32 = 32;
    /// Decided by Python: the message at a place of the log.
    pub const VIEW_MESSAGE_BY_ID: i32 = 33;
    /// Decided by Python: who is here.
    pub const HEART_BEAT: i32 = 34;
    /// Decided by Python: who goes.
    pub const UNREGISTER_CLIENT: i32 = 35;
    /// Decided by Python: a message is handed back.
    pub const CONSUMER_SEND_MSG_BACK: i32 = 36;
    /// Decided by Python: who is in a group.
    pub const GET_CONSUMER_LIST_BY_GROUP: i32 = 38;
    /// Decided by Python: queues for one client alone.
    pub const LOCK_BATCH_MQ: i32 = 41;
    /// Decided by Python: queues for all again.
    pub const UNLOCK_BATCH_MQ: i32 = 42;
    /// Decided by Python: whether a subscription can be served.
    pub const CHECK_CLIENT_CONFIG: i32 = 46;
    /// Decided by Python: a setting that name servers keep.
    pub const GET_KV_CONFIG: i32 = 101;
    /// Decided by Python: where a topic is.
    pub const GET_ROUTEINFO_BY_TOPIC: i32 = 105;
    /// Decided by Python: which brokers there are.
    pub const GET_BROKER_CLUSTER_INFO: i32 = 106;

    /// Asked of Python alone: whether there is this topic, and may be made.
    pub const TOPIC: i32 = -1;
    /// Asked of Python alone: which number a producer group has on this connection.
    pub const PRODUCER: i32 = -2;
    /// Told to Python alone: a connection has ended.
    pub const CLOSED: i32 = -3;
    /// Told to Python alone: a frame was none, for the reason in the remark; the connection ends.
    pub const MALFORMED: i32 = -4;
    /// Told to Python alone: a request was denied, for the reason in the remark; the first of its connection.
    pub const DENIED: i32 = -5;
    /// Told to Python alone: a client's answer to what it was asked; fields `opaque` and `code`.
    pub const ANSWERED: i32 = -6;
}

/// Responses.
pub mod response {
    /// It was done.
    pub const SUCCESS: i32 = 0;
    /// It failed; the remark says why.
    pub const SYSTEM_ERROR: i32 = 1;
    /// Too much is asked for at once.
    pub const SYSTEM_BUSY: i32 = 2;
    /// This is not served.
    pub const REQUEST_CODE_NOT_SUPPORTED: i32 = 3;
    /// A transaction cannot end so.
    pub const TRANSACTION_FAILED: i32 = 4;
    /// A message that cannot be stored as it is.
    pub const MESSAGE_ILLEGAL: i32 = 13;
    /// Nothing can be stored now.
    pub const SERVICE_NOT_AVAILABLE: i32 = 14;
    /// Clients may not do that.
    pub const NO_PERMISSION: i32 = 16;
    /// No such topic.
    pub const TOPIC_NOT_EXIST: i32 = 17;
    /// Nothing there yet.
    pub const PULL_NOT_FOUND: i32 = 19;
    /// Nothing wanted among what is there.
    pub const PULL_RETRY_IMMEDIATELY: i32 = 20;
    /// The offset is outside the queue.
    pub const PULL_OFFSET_MOVED: i32 = 21;
    /// Not found.
    pub const QUERY_NOT_FOUND: i32 = 22;
    /// A subscription that cannot be read.
    pub const SUBSCRIPTION_PARSE_FAILED: i32 = 23;
    /// The group has not said what it wants of the topic.
    pub const SUBSCRIPTION_NOT_EXIST: i32 = 24;
    /// The group has said something else since.
    pub const SUBSCRIPTION_NOT_LATEST: i32 = 25;
    /// A field that cannot be.
    pub const INVALID_PARAMETER: i32 = 29;
    /// Too much pends.
    pub const FLOW_CONTROL: i32 = 215;
    /// Not now, not so.
    pub const ILLEGAL_OPERATION: i32 = 604;
}

/// The response code that tells a client what to do about an error.
pub fn of_error(error: &Error) -> i32 {
    match error {
        Error::InvalidMessage { .. } | Error::InvalidName { .. } => response::MESSAGE_ILLEGAL,
        Error::LateEnd { .. } => response::ILLEGAL_OPERATION,
        Error::AlreadyEnded { .. } => response::TRANSACTION_FAILED,
        Error::TooManyPending { .. } => response::FLOW_CONTROL,
        Error::OffsetTooOld { .. } => response::PULL_OFFSET_MOVED,
        other => match other.kind() {
            ErrorKind::Invalid => response::INVALID_PARAMETER,
            ErrorKind::NotFound => response::QUERY_NOT_FOUND,
            ErrorKind::Unavailable | ErrorKind::Poisoned | ErrorKind::Closed => response::SERVICE_NOT_AVAILABLE,
            ErrorKind::IllegalState | ErrorKind::Corrupted | ErrorKind::System => response::SYSTEM_ERROR,
        },
    }
}
