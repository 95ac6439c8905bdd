"""Maps the response codes of RocketMQ's protocol to exceptions. The engine has the table of codes.

In:     a response whose code is not SUCCESS.
Out:    an exception that names the request and the broker, with a hint where there is one.
"""

from txstore._native import RemotingCommand, ResponseCode
from txstore.errors import (
    BrokerBusyError,
    BrokerRefusedError,
    InvalidMessageError,
    LateEndError,
    RouteNotFoundError,
    TxStoreError,
)

__all__ = ["refusal"]

_BUSY = (ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.FLOW_CONTROL)
_NAMES = {int(code): code.name for code in ResponseCode}
_HINTS: dict[int, str] = {
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: "the other side is not a broker, or an older version",
    ResponseCode.NO_PERMISSION: "ask the broker's operator for an account with it (access_key, secret_key)",
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: "ask the broker's operator to create the group",
}


def refusal(answer: RemotingCommand, what: str, where: str) -> TxStoreError:
    """Returns the exception for a failed response. `what` names the request and `where` the broker, for its text."""
    code = answer.code
    name = _NAMES.get(code, "unknown code")
    text = f"{what}: {where} refused it with {code} ({name}): {answer.remark or 'no reason given'}"
    if code == ResponseCode.MESSAGE_ILLEGAL:
        return InvalidMessageError(text)
    if code == ResponseCode.TOPIC_NOT_EXIST:
        return RouteNotFoundError(f"{text}\nhint: create the topic, or check that the address is the right cluster's")
    if code == ResponseCode.ILLEGAL_OPERATION:
        return LateEndError(f"{text}\nhint: a check settles it")
    if code in _BUSY:
        return BrokerBusyError(f"{text}\nhint: try again later", code=code)
    hint = _HINTS.get(code)
    return BrokerRefusedError(text if hint is None else f"{text}\nhint: {hint}", code=code)
