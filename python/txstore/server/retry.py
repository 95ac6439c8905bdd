"""Retries messages that consumers send back, and resumes discarded transactions.

In:     CONSUMER_SEND_MSG_BACK and RESUME_CHECK_HALF_MESSAGE.
Out:    a delayed copy or a dead letter of the message; a pending transaction.
Always: the rules are those of the broker for embedded consumers.
"""

from txstore._native import DISCARD_TOPIC, ResponseCode, validate_group
from txstore.broker import EmbeddedBroker
from txstore.message import dead_letter_topic
from txstore.server.request import OK, Refused, Reply, Request, client_message, number, offset_of, text

__all__ = ["Retries"]

_TIMES_MAX = 16
"""The most retries if the request does not name `maxReconsumeTimes`, or names a negative number."""


class Retries:
    """Answers requests for retries and resumed transactions."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self._broker = broker

    def send_back(self, request: Request) -> Reply:
        fields = request.ext_fields
        group = text(fields, "group")
        validate_group(group)
        if not self._broker.has_group(group):
            raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"there is no consumer group {group}")
        # A half message is not delivered before it is committed, so no consumer may send it back.
        message = client_message(self._broker.store, number(fields, "offset"))
        if message.topic == dead_letter_topic(group):
            return OK  # It is a dead letter already.
        times = number(fields, "maxReconsumeTimes", _TIMES_MAX)
        self._broker.send_back(message, group, number(fields, "delayLevel"), times if times >= 0 else _TIMES_MAX)
        return OK

    def resume(self, request: Request) -> Reply:
        """Makes a discarded transaction pending again, by the offset id of its copy. Checks start again."""
        discarded = self._broker.store.read_at(offset_of(text(request.ext_fields, "msgId")))
        if discarded.topic != DISCARD_TOPIC:
            raise Refused(ResponseCode.QUERY_NOT_FOUND, "there is no discarded transaction at this offset")
        self._broker.resume(discarded.message_id)
        return OK
