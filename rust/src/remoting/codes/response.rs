//! The response codes of RocketMQ 5.4, without those between brokers and controllers.
//!
//! In:     nothing.
//! Out:    numbers and names.
//! Always: the only list of response codes, for the engine and for Python.

/// Defines a constant for each code, and the table of all of them, sorted by number.
macro_rules! response_codes {
    ($($(#[$doc:meta])+ $name:ident = $number:literal;)+) => {
        $($(#[$doc])+ pub const $name: i32 = $number;)+

        /// All response codes with their names, sorted by number.
        pub const ALL: &[(i32, &str)] = &[$(($number, stringify!($name)),)+];
    };
}

response_codes! {
    /// The request was done.
    SUCCESS = 0;
    /// The request failed. The remark says why.
    SYSTEM_ERROR = 1;
    /// Too many requests wait. The client may try again.
    SYSTEM_BUSY = 2;
    /// The server does not serve this request.
    REQUEST_CODE_NOT_SUPPORTED = 3;
    /// The transaction cannot end so.
    TRANSACTION_FAILED = 4;
    /// The message is stored, but was not synced in time.
    FLUSH_DISK_TIMEOUT = 10;
    /// The message is stored, but there is no replica.
    SLAVE_NOT_AVAILABLE = 11;
    /// The message is stored, but was not replicated in time.
    FLUSH_SLAVE_TIMEOUT = 12;
    /// The message cannot be stored as it is. In an answer to a pull: the stored message is damaged.
    MESSAGE_ILLEGAL = 13;
    /// The store takes no messages now.
    SERVICE_NOT_AVAILABLE = 14;
    /// The client's version is not served.
    VERSION_NOT_SUPPORTED = 15;
    /// The client may not do this.
    NO_PERMISSION = 16;
    /// There is no such topic.
    TOPIC_NOT_EXIST = 17;
    /// The topic exists already.
    TOPIC_EXIST_ALREADY = 18;
    /// The queue has no new message.
    PULL_NOT_FOUND = 19;
    /// The subscription selects none of the messages that were read.
    PULL_RETRY_IMMEDIATELY = 20;
    /// The offset is outside the queue.
    PULL_OFFSET_MOVED = 21;
    /// Nothing was found.
    QUERY_NOT_FOUND = 22;
    /// The subscription cannot be read.
    SUBSCRIPTION_PARSE_FAILED = 23;
    /// The group does not subscribe to the topic.
    SUBSCRIPTION_NOT_EXIST = 24;
    /// The group's subscription is older than the request's.
    SUBSCRIPTION_NOT_LATEST = 25;
    /// There is no such consumer group.
    SUBSCRIPTION_GROUP_NOT_EXIST = 26;
    /// The filter is not known.
    FILTER_DATA_NOT_EXIST = 27;
    /// The filter is older than the request's.
    FILTER_DATA_NOT_LATEST = 28;
    /// A field is missing, or its value is not accepted.
    INVALID_PARAMETER = 29;
    /// A check's answer: commit.
    TRANSACTION_SHOULD_COMMIT = 200;
    /// A check's answer: roll back.
    TRANSACTION_SHOULD_ROLLBACK = 201;
    /// A check's answer: not decided.
    TRANSACTION_STATE_UNKNOW = 202;
    /// The transaction is another group's.
    TRANSACTION_STATE_GROUP_WRONG = 203;
    /// The message lacks a buyer's id.
    NO_BUYER_ID = 204;
    /// The message belongs to another unit.
    NOT_IN_CURRENT_UNIT = 205;
    /// No such consumer is connected.
    CONSUMER_NOT_ONLINE = 206;
    /// The consumer did not answer in time.
    CONSUME_MSG_TIMEOUT = 207;
    /// There is no message.
    NO_MESSAGE = 208;
    /// Too many pulls are held.
    POLLING_FULL = 209;
    /// A held pull ended without a message.
    POLLING_TIMEOUT = 210;
    /// There is no such broker.
    BROKER_NOT_EXIST = 211;
    /// The broker has not indexed all messages yet.
    BROKER_DISPATCH_NOT_COMPLETE = 212;
    /// The group's consumers each get all messages.
    BROADCAST_CONSUMPTION = 213;
    /// Too many transactions are pending.
    FLOW_CONTROL = 215;
    /// Another broker leads the queue.
    NOT_LEADER_FOR_QUEUE = 501;
    /// Not now, or not in this way.
    ILLEGAL_OPERATION = 604;
    /// The client is to use another connection.
    GO_AWAY = 1500;
}
