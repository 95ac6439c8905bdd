//! The status codes of RocketMQ's gRPC protocol, and why a request is refused.
//!
//! In:     refusals of the parts that the remoting protocol uses, too.
//! Out:    a code and a text for the client.
//! Always: an application's error is a status in an answer that is OK for gRPC, as RocketMQ's clients expect it.

use super::wire::Status;
use crate::base::error::Error;
use crate::remoting::codes::response;
use crate::server::fields::Refusal;

macro_rules! codes {
    ($($(#[$doc:meta])+ $name:ident = $number:literal;)+) => {
        $($(#[$doc])+ pub(in crate::server) const $name: i32 = $number;)+
    };
}

codes! {
    /// The request was done.
    OK = 20_000;
    /// The parts of the request have different results.
    MULTIPLE_RESULTS = 30_000;
    /// A value is missing or is not accepted.
    BAD_REQUEST = 40_000;
    /// The topic's name is not accepted.
    ILLEGAL_TOPIC = 40_002;
    /// The group's name is not accepted.
    ILLEGAL_CONSUMER_GROUP = 40_003;
    /// The tag is not accepted.
    ILLEGAL_MESSAGE_TAG = 40_004;
    /// A key is not accepted.
    ILLEGAL_MESSAGE_KEY = 40_005;
    /// The message group is not accepted.
    ILLEGAL_MESSAGE_GROUP = 40_006;
    /// The name of a property is not accepted.
    ILLEGAL_MESSAGE_PROPERTY_KEY = 40_007;
    /// There is no such transaction, or it ended differently.
    INVALID_TRANSACTION_ID = 40_008;
    /// The message id is not accepted.
    ILLEGAL_MESSAGE_ID = 40_009;
    /// The filter cannot be parsed, or is of a kind that is not served.
    ILLEGAL_FILTER_EXPRESSION = 40_010;
    /// The invisible duration is not accepted.
    ILLEGAL_INVISIBLE_TIME = 40_011;
    /// The delivery time is too far ahead.
    ILLEGAL_DELIVERY_TIME = 40_012;
    /// The receipt handle is not known, or no longer.
    INVALID_RECEIPT_HANDLE = 40_013;
    /// The topic does not accept messages of this type.
    MESSAGE_PROPERTY_CONFLICT_WITH_TYPE = 40_014;
    /// The kind of client is not known.
    UNRECOGNIZED_CLIENT_TYPE = 40_015;
    /// The body is not what its encoding says, or the messages of a request belong to different topics.
    MESSAGE_CORRUPTED = 40_016;
    /// The request has no `x-mq-client-id`.
    CLIENT_ID_REQUIRED = 40_017;
    /// No known account has signed the request.
    UNAUTHORIZED = 40_100;
    /// The account may not do this, or nobody may.
    FORBIDDEN = 40_300;
    /// Nothing was found.
    MESSAGE_NOT_FOUND = 40_401;
    /// There is no such topic.
    TOPIC_NOT_FOUND = 40_402;
    /// There is no such consumer group.
    CONSUMER_GROUP_NOT_FOUND = 40_403;
    /// The body is too long.
    MESSAGE_BODY_TOO_LARGE = 41_301;
    /// The body is empty.
    MESSAGE_BODY_EMPTY = 41_302;
    /// Too much waits already. The client may try again.
    TOO_MANY_REQUESTS = 42_900;
    /// The properties are too many or too long.
    MESSAGE_PROPERTIES_TOO_LARGE = 43_101;
    /// The server failed, or accepts no messages now.
    INTERNAL_SERVER_ERROR = 50_001;
    /// The required copies cannot be made, because replicas are missing.
    HA_NOT_AVAILABLE = 50_002;
    /// The request is not served yet.
    NOT_IMPLEMENTED = 50_100;
    /// The message is stored, but its copies were not confirmed in time.
    SLAVE_PERSISTENCE_TIMEOUT = 50_402;
    /// The message uses something that is not served.
    UNSUPPORTED = 50_500;
}

/// Why a request, or a part of it, is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::server) struct Refused {
    pub(in crate::server) code: i32,
    pub(in crate::server) message: String,
}

impl Refused {
    pub(in crate::server) fn new(code: i32, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    pub(super) fn status(self) -> Status {
        Status { code: self.code, message: self.message }
    }
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Self::new(of_response(refusal.code), refusal.remark)
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Refusal::from(error).into()
    }
}

/// Returns the status of a request that was done.
pub(super) fn ok() -> Status {
    Status { code: OK, message: "OK".to_owned() }
}

/// Returns the common status of a request's parts: their own if they agree.
pub(super) fn common<'a>(mut parts: impl Iterator<Item = &'a Status>) -> Status {
    let Some(first) = parts.next() else { return ok() };
    if parts.all(|part| part.code == first.code) {
        return first.clone();
    }
    Status { code: MULTIPLE_RESULTS, message: "the entries have different results".to_owned() }
}

/// Returns the status code that tells a client the same as a response code of the remoting protocol.
const fn of_response(code: i32) -> i32 {
    match code {
        response::SUCCESS => OK,
        response::SYSTEM_BUSY | response::FLOW_CONTROL => TOO_MANY_REQUESTS,
        response::TRANSACTION_FAILED | response::ILLEGAL_OPERATION | response::QUERY_NOT_FOUND => {
            INVALID_TRANSACTION_ID
        }
        response::MESSAGE_ILLEGAL | response::INVALID_PARAMETER => BAD_REQUEST,
        response::NO_PERMISSION => FORBIDDEN,
        response::TOPIC_NOT_EXIST => TOPIC_NOT_FOUND,
        response::SUBSCRIPTION_GROUP_NOT_EXIST => CONSUMER_GROUP_NOT_FOUND,
        response::SLAVE_NOT_AVAILABLE => HA_NOT_AVAILABLE,
        response::FLUSH_SLAVE_TIMEOUT => SLAVE_PERSISTENCE_TIMEOUT,
        _ => INTERNAL_SERVER_ERROR,
    }
}
