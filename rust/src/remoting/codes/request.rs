//! The request codes of RocketMQ 5.4 and the two that only txstore has, one row each.
//!
//! In:     a request's code.
//! Out:    its name, the part of the server that answers it, and what an account needs for it.
//! Always: the only list of request codes. The router, the access rules, Python and the manual use this one.

use AccessRule::{
    Admin, EndHalf, Group, HandBack, Heartbeat, Leave, Lock, Read, ReadInGroup, ReadRecord, SendOrRead, SendTo,
    SendToEach, Signature,
};
use Handler::{Client, CopyLog, End, Offset, Pull, Python, Recall, Refused, Send};

/// The part of a server that answers a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handler {
    /// The engine stores messages.
    Send,
    /// The engine sends messages to the client.
    Pull,
    /// The engine ends a transaction.
    End,
    /// The engine recalls a message.
    Recall,
    /// The engine passes its log on to a replica.
    CopyLog,
    /// The engine, if it knows the group and the topic. Otherwise Python.
    Offset,
    /// Python.
    Python,
    /// None: servers send this request to clients. From a client it is refused.
    Client,
    /// None: the request is refused with `REQUEST_CODE_NOT_SUPPORTED`.
    Refused,
}

/// What an account needs for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessRule {
    /// To send to the topic in this field.
    SendTo(&'static str),
    /// To send to the topic of each message in the body.
    SendToEach,
    /// To send to the real topic of the half message, and of the others of its transaction.
    EndHalf,
    /// To read the topic.
    Read,
    /// To read the topic in the group.
    ReadInGroup,
    /// To send to the topic or to read it.
    SendOrRead,
    /// To read the topic of the record.
    ReadRecord,
    /// To read the topic of the record in the group.
    HandBack,
    /// To read what each consumer in the body subscribes to, in its group.
    Heartbeat,
    /// To consume in the group, if the request names one.
    Leave,
    /// To consume in the group.
    Group,
    /// To read the topics in the body in its group.
    Lock,
    /// Only to exist.
    Signature,
    /// To administer the server.
    Admin,
}

/// A request code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestCode {
    /// The number on the wire.
    pub number: i32,
    /// RocketMQ's name, or txstore's own.
    pub name: &'static str,
    /// The part of the server that answers it.
    pub handler: Handler,
    /// The permission that an account needs.
    pub access: AccessRule,
}

impl Handler {
    /// Returns whether the engine writes to the store for such a request.
    pub const fn writes(self) -> bool {
        matches!(self, Self::Send | Self::End | Self::Recall | Self::Offset)
    }

    /// Returns the handler's name for people, or `None` if the request is refused.
    pub const fn name(self) -> Option<&'static str> {
        match self {
            Self::Send | Self::Pull | Self::End | Self::Recall | Self::CopyLog => Some("engine"),
            Self::Offset => Some("engine or Python"),
            Self::Python => Some("Python"),
            Self::Client => Some("client"),
            Self::Refused => None,
        }
    }
}

impl AccessRule {
    /// Returns the needed permission for people.
    pub const fn text(self) -> &'static str {
        match self {
            Self::SendTo(_) => "`PUB` on the topic",
            Self::SendToEach => "`PUB` on the topic of each message",
            Self::EndHalf => "`PUB` on the topic of each half message",
            Self::Read => "`SUB` on the topic",
            Self::ReadInGroup => "`SUB` on the topic and the group",
            Self::SendOrRead => "`PUB` or `SUB` on the topic",
            Self::ReadRecord => "`SUB` on the record's topic",
            Self::HandBack => "`SUB` on the record's topic and the group",
            Self::Heartbeat => "`SUB` on the groups and topics of its consumers",
            Self::Leave => "`SUB` on the consumer group, if it names one",
            Self::Group => "`SUB` on the group",
            Self::Lock => "`SUB` on the group and the topics",
            Self::Signature => "only to be signed",
            Self::Admin => "`admin`",
        }
    }
}

impl RequestCode {
    /// Returns the row of a number, or `None` if there is no such request.
    pub fn of(number: i32) -> Option<&'static Self> {
        let at = ALL.binary_search_by_key(&number, |row| row.number).ok()?;
        ALL.get(at)
    }
}

/// Defines a constant for each code, and the table of all of them, sorted by number.
macro_rules! request_codes {
    ($($name:ident = $number:literal: $handler:ident, $access:expr;)+) => {
        $(
            #[doc = concat!("The number of the request `", stringify!($name), "`.")]
            pub const $name: i32 = $number;
        )+

        /// All request codes, sorted by number.
        pub const ALL: &[RequestCode] = &[$(
            RequestCode { number: $number, name: stringify!($name), handler: $handler, access: $access },
        )+];
    };
}

request_codes! {
    SEND_MESSAGE = 10: Send, SendTo("topic");
    PULL_MESSAGE = 11: Pull, ReadInGroup;
    QUERY_MESSAGE = 12: Python, Read;
    QUERY_BROKER_OFFSET = 13: Refused, Admin;
    QUERY_CONSUMER_OFFSET = 14: Python, ReadInGroup;
    UPDATE_CONSUMER_OFFSET = 15: Offset, ReadInGroup;
    UPDATE_AND_CREATE_TOPIC = 17: Python, Admin;
    UPDATE_AND_CREATE_TOPIC_LIST = 18: Refused, Admin;
    GET_ALL_TOPIC_CONFIG = 21: Python, Admin;
    GET_TOPIC_CONFIG_LIST = 22: Refused, Admin;
    GET_TOPIC_NAME_LIST = 23: Refused, Admin;
    UPDATE_BROKER_CONFIG = 25: Python, Admin;
    GET_BROKER_CONFIG = 26: Python, Admin;
    TRIGGER_DELETE_FILES = 27: Refused, Admin;
    GET_BROKER_RUNTIME_INFO = 28: Python, Admin;
    SEARCH_OFFSET_BY_TIMESTAMP = 29: Python, SendOrRead;
    GET_MAX_OFFSET = 30: Python, SendOrRead;
    GET_MIN_OFFSET = 31: Python, SendOrRead;
    GET_EARLIEST_MSG_STORETIME = 32: Python, SendOrRead;
    VIEW_MESSAGE_BY_ID = 33: Python, ReadRecord;
    HEART_BEAT = 34: Python, Heartbeat;
    UNREGISTER_CLIENT = 35: Python, Leave;
    CONSUMER_SEND_MSG_BACK = 36: Python, HandBack;
    END_TRANSACTION = 37: End, EndHalf;
    GET_CONSUMER_LIST_BY_GROUP = 38: Python, Group;
    CHECK_TRANSACTION_STATE = 39: Client, Admin;
    NOTIFY_CONSUMER_IDS_CHANGED = 40: Client, Admin;
    LOCK_BATCH_MQ = 41: Python, Lock;
    UNLOCK_BATCH_MQ = 42: Python, Lock;
    GET_ALL_CONSUMER_OFFSET = 43: Python, Admin;
    GET_ALL_DELAY_OFFSET = 45: Python, Admin;
    CHECK_CLIENT_CONFIG = 46: Python, Signature;
    GET_CLIENT_CONFIG = 47: Refused, Admin;
    GET_TIMER_CHECK_POINT = 60: Python, Admin;
    GET_TIMER_METRICS = 61: Python, Admin;
    PUT_KV_CONFIG = 100: Refused, Admin;
    GET_KV_CONFIG = 101: Python, Signature;
    DELETE_KV_CONFIG = 102: Refused, Admin;
    REGISTER_BROKER = 103: Python, Admin;
    UNREGISTER_BROKER = 104: Python, Admin;
    GET_ROUTEINFO_BY_TOPIC = 105: Python, Signature;
    GET_BROKER_CLUSTER_INFO = 106: Python, Signature;
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = 200: Python, Admin;
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG = 201: Python, Admin;
    GET_TOPIC_STATS_INFO = 202: Python, Admin;
    GET_CONSUMER_CONNECTION_LIST = 203: Python, Admin;
    GET_PRODUCER_CONNECTION_LIST = 204: Python, Admin;
    WIPE_WRITE_PERM_OF_BROKER = 205: Refused, Admin;
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER = 206: Python, Signature;
    DELETE_SUBSCRIPTIONGROUP = 207: Python, Admin;
    GET_CONSUME_STATS = 208: Python, Admin;
    SUSPEND_CONSUMER = 209: Refused, Admin;
    RESUME_CONSUMER = 210: Refused, Admin;
    RESET_CONSUMER_OFFSET_IN_CONSUMER = 211: Refused, Admin;
    RESET_CONSUMER_OFFSET_IN_BROKER = 212: Refused, Admin;
    ADJUST_CONSUMER_THREAD_POOL = 213: Refused, Admin;
    WHO_CONSUME_THE_MESSAGE = 214: Refused, Admin;
    DELETE_TOPIC_IN_BROKER = 215: Python, Admin;
    DELETE_TOPIC_IN_NAMESRV = 216: Python, Admin;
    REGISTER_TOPIC_IN_NAMESRV = 217: Refused, Admin;
    GET_KVLIST_BY_NAMESPACE = 219: Refused, Admin;
    RESET_CONSUMER_CLIENT_OFFSET = 220: Client, Admin;
    GET_CONSUMER_STATUS_FROM_CLIENT = 221: Client, Admin;
    INVOKE_BROKER_TO_RESET_OFFSET = 222: Python, Admin;
    INVOKE_BROKER_TO_GET_CONSUMER_STATUS = 223: Python, Admin;
    GET_TOPICS_BY_CLUSTER = 224: Python, Admin;
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST = 225: Refused, Admin;
    QUERY_TOPIC_CONSUME_BY_WHO = 300: Python, Admin;
    REGISTER_FILTER_SERVER = 301: Refused, Admin;
    REGISTER_MESSAGE_FILTER_CLASS = 302: Refused, Admin;
    QUERY_CONSUME_TIME_SPAN = 303: Refused, Admin;
    GET_SYSTEM_TOPIC_LIST_FROM_NS = 304: Python, Signature;
    GET_SYSTEM_TOPIC_LIST_FROM_BROKER = 305: Refused, Admin;
    CLEAN_EXPIRED_CONSUMEQUEUE = 306: Refused, Admin;
    GET_CONSUMER_RUNNING_INFO = 307: Python, Admin;
    QUERY_CORRECTION_OFFSET = 308: Refused, Admin;
    CONSUME_MESSAGE_DIRECTLY = 309: Python, Admin;
    SEND_MESSAGE_V2 = 310: Send, SendTo("b");
    GET_UNIT_TOPIC_LIST = 311: Refused, Admin;
    GET_HAS_UNIT_SUB_TOPIC_LIST = 312: Refused, Admin;
    GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST = 313: Refused, Admin;
    CLONE_GROUP_OFFSET = 314: Refused, Admin;
    VIEW_BROKER_STATS_DATA = 315: Refused, Admin;
    CLEAN_UNUSED_TOPIC = 316: Refused, Admin;
    GET_BROKER_CONSUME_STATS = 317: Refused, Admin;
    UPDATE_NAMESRV_CONFIG = 318: Refused, Admin;
    GET_NAMESRV_CONFIG = 319: Refused, Admin;
    SEND_BATCH_MESSAGE = 320: Send, SendTo("b");
    QUERY_CONSUME_QUEUE = 321: Refused, Admin;
    QUERY_DATA_VERSION = 322: Refused, Admin;
    RESUME_CHECK_HALF_MESSAGE = 323: Python, Admin;
    SEND_REPLY_MESSAGE = 324: Refused, Admin;
    SEND_REPLY_MESSAGE_V2 = 325: Refused, Admin;
    PUSH_REPLY_MESSAGE_TO_CLIENT = 326: Refused, Admin;
    ADD_WRITE_PERM_OF_BROKER = 327: Refused, Admin;
    GET_ALL_PRODUCER_INFO = 328: Refused, Admin;
    DELETE_EXPIRED_COMMITLOG = 329: Refused, Admin;
    QUERY_TOPICS_BY_CONSUMER = 343: Python, Admin;
    QUERY_SUBSCRIPTION_BY_CONSUMER = 345: Refused, Admin;
    GET_TOPIC_CONFIG = 351: Python, Admin;
    GET_SUBSCRIPTIONGROUP_CONFIG = 352: Python, Admin;
    UPDATE_AND_GET_GROUP_FORBIDDEN = 353: Refused, Admin;
    CHECK_ROCKSDB_CQ_WRITE_PROGRESS = 354: Refused, Admin;
    EXPORT_ROCKSDB_CONFIG_TO_JSON = 355: Refused, Admin;
    LITE_PULL_MESSAGE = 361: Pull, ReadInGroup;
    RECALL_MESSAGE = 370: Recall, SendTo("topic");
    QUERY_ASSIGNMENT = 400: Refused, Admin;
    SET_MESSAGE_REQUEST_MODE = 401: Refused, Admin;
    GET_ALL_MESSAGE_REQUEST_MODE = 402: Python, Admin;
    UPDATE_AND_CREATE_STATIC_TOPIC = 513: Refused, Admin;
    GET_BROKER_MEMBER_GROUP = 901: Refused, Admin;
    ADD_BROKER = 902: Refused, Admin;
    REMOVE_BROKER = 903: Refused, Admin;
    BROKER_HEARTBEAT = 904: Refused, Admin;
    NOTIFY_MIN_BROKER_ID_CHANGE = 905: Refused, Admin;
    EXCHANGE_BROKER_HA_INFO = 906: Python, Admin;
    GET_BROKER_HA_STATUS = 907: Refused, Admin;
    RESET_MASTER_FLUSH_OFFSET = 908: Refused, Admin;
    CONTROLLER_ALTER_SYNC_STATE_SET = 1001: Refused, Admin;
    CONTROLLER_ELECT_MASTER = 1002: Refused, Admin;
    CONTROLLER_REGISTER_BROKER = 1003: Refused, Admin;
    CONTROLLER_GET_REPLICA_INFO = 1004: Refused, Admin;
    CONTROLLER_GET_METADATA_INFO = 1005: Refused, Admin;
    CONTROLLER_GET_SYNC_STATE_DATA = 1006: Refused, Admin;
    GET_BROKER_EPOCH_CACHE = 1007: Refused, Admin;
    NOTIFY_BROKER_ROLE_CHANGED = 1008: Refused, Admin;
    UPDATE_CONTROLLER_CONFIG = 1009: Refused, Admin;
    GET_CONTROLLER_CONFIG = 1010: Refused, Admin;
    CLEAN_BROKER_DATA = 1011: Refused, Admin;
    CONTROLLER_GET_NEXT_BROKER_ID = 1012: Refused, Admin;
    CONTROLLER_APPLY_BROKER_ID = 1013: Refused, Admin;
    BROKER_CLOSE_CHANNEL_REQUEST = 1014: Refused, Admin;
    CHECK_NOT_ACTIVE_BROKER_REQUEST = 1015: Refused, Admin;
    GET_BROKER_LIVE_INFO_REQUEST = 1016: Refused, Admin;
    GET_SYNC_STATE_DATA_REQUEST = 1017: Refused, Admin;
    RAFT_BROKER_HEART_BEAT_EVENT_REQUEST = 1018: Refused, Admin;
    UPDATE_COLD_DATA_FLOW_CTR_CONFIG = 2001: Refused, Admin;
    REMOVE_COLD_DATA_FLOW_CTR_CONFIG = 2002: Refused, Admin;
    GET_COLD_DATA_FLOW_CTR_INFO = 2003: Refused, Admin;
    SET_COMMITLOG_READ_MODE = 2004: Refused, Admin;
    AUTH_CREATE_USER = 3001: Refused, Admin;
    AUTH_UPDATE_USER = 3002: Refused, Admin;
    AUTH_DELETE_USER = 3003: Refused, Admin;
    AUTH_GET_USER = 3004: Refused, Admin;
    AUTH_LIST_USER = 3005: Refused, Admin;
    AUTH_CREATE_ACL = 3006: Refused, Admin;
    AUTH_UPDATE_ACL = 3007: Refused, Admin;
    AUTH_DELETE_ACL = 3008: Refused, Admin;
    AUTH_GET_ACL = 3009: Refused, Admin;
    AUTH_LIST_ACL = 3010: Refused, Admin;
    SWITCH_TIMER_ENGINE = 5001: Refused, Admin;
    TXSTORE_ADMIN = 31_001: Python, Admin;
    TXSTORE_PREPARE = 31_002: Send, SendToEach;
    TXSTORE_COPY = 31_003: CopyLog, Admin;
    POP_MESSAGE = 200_050: Refused, Admin;
    ACK_MESSAGE = 200_051: Refused, Admin;
    PEEK_MESSAGE = 200_052: Refused, Admin;
    CHANGE_MESSAGE_INVISIBLETIME = 200_053: Refused, Admin;
    NOTIFICATION = 200_054: Refused, Admin;
    POLLING_INFO = 200_055: Refused, Admin;
    POP_ROLLBACK = 200_056: Refused, Admin;
    BATCH_ACK_MESSAGE = 200_151: Refused, Admin;
}
