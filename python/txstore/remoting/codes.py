"""Codes of RocketMQ's protocol that client and server speak, and what a refusal means to its caller.

In: a response. Out: nothing if it is well, else an exception that says what, where and what to do. Not here: frames.
"""

import enum

from txstore._native import RemotingCommand
from txstore.errors import (
    BrokerBusyError,
    BrokerRefusedError,
    InvalidMessageError,
    LateEndError,
    RouteNotFoundError,
    TxStoreError,
)

__all__ = ["RequestCode", "ResponseCode", "refusal"]


class RequestCode(enum.IntEnum):
    """What is asked for."""

    PULL_MESSAGE = 11
    QUERY_CONSUMER_OFFSET = 14
    UPDATE_CONSUMER_OFFSET = 15
    SEARCH_OFFSET_BY_TIMESTAMP = 29
    GET_MAX_OFFSET = 30
    GET_MIN_OFFSET = 31
    HEART_BEAT = 34
    UNREGISTER_CLIENT = 35
    CONSUMER_SEND_MSG_BACK = 36
    END_TRANSACTION = 37
    GET_CONSUMER_LIST_BY_GROUP = 38
    CHECK_TRANSACTION_STATE = 39
    NOTIFY_CONSUMER_IDS_CHANGED = 40
    LOCK_BATCH_MQ = 41
    UNLOCK_BATCH_MQ = 42
    GET_ROUTE_INFO_BY_TOPIC = 105
    GET_BROKER_CLUSTER_INFO = 106
    RESET_CONSUMER_CLIENT_OFFSET = 220
    GET_CONSUMER_STATUS_FROM_CLIENT = 221
    GET_CONSUMER_RUNNING_INFO = 307
    CONSUME_MESSAGE_DIRECTLY = 309
    SEND_MESSAGE_V2 = 310
    SEND_BATCH_MESSAGE = 320


class ResponseCode(enum.IntEnum):
    """What came of it."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    TRANSACTION_FAILED = 4
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    INVALID_PARAMETER = 29
    CONSUMER_NOT_ONLINE = 206
    CONSUME_MSG_TIMEOUT = 207
    FLOW_CONTROL = 215
    ILLEGAL_OPERATION = 604


_BUSY = (ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.FLOW_CONTROL)
_NAMES = {int(code): code.name for code in ResponseCode}
_HINTS: dict[int, str] = {
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: "the other side is too old, or no broker",
    ResponseCode.NO_PERMISSION: "ask the broker's operator for an account that may (access_key, secret_key)",
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: "have the broker's operator make the group",
}


def refusal(answer: RemotingCommand, what: str, where: str) -> TxStoreError:
    """The exception for a response that is no success: `what` was asked for, of whom."""
    code = answer.code
    name = _NAMES.get(code, "a code of its own")
    text = f"{what}: {where} refuses with {code} ({name}): {answer.remark or 'it gives no reason'}"
    if code == ResponseCode.MESSAGE_ILLEGAL:
        return InvalidMessageError(text)
    if code == ResponseCode.TOPIC_NOT_EXIST:
        return RouteNotFoundError(f"{text}\nhint: create the topic, or look whether the address is the right cluster's")
    if code == ResponseCode.ILLEGAL_OPERATION:
        return LateEndError(f"{text}\nhint: a check settles it")
    if code in _BUSY:
        return BrokerBusyError(f"{text}\nhint: try again later", code=code)
    hint = _HINTS.get(code)
    return BrokerRefusedError(text if hint is None else f"{text}\nhint: {hint}", code=code)
