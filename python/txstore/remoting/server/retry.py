"""Retry: messages that a consumer hands back.

In: request 36. Out: the message again after a delay, or among the group's dead letters. Always: the broker's own rules,
the same that embedded consumers have. Not here: those rules.
"""

from txstore._native import validate_group
from txstore.broker import Broker
from txstore.message import dead_letter_topic
from txstore.remoting.server.request import OK, Reply, Request, number, text

__all__ = ["Retries"]

_TIMES_MAX = 16


class Retries:
    """What comes again."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def send_back(self, request: Request) -> Reply:
        fields = request.fields
        group = text(fields, "group")
        validate_group(group)
        message = self._broker.store.read_at(number(fields, "offset"))
        if message.topic == dead_letter_topic(group):
            return OK  # Given up already.
        times = number(fields, "maxReconsumeTimes", _TIMES_MAX)
        self._broker.send_back(message, group, number(fields, "delayLevel"), times if times >= 0 else _TIMES_MAX)
        return OK
