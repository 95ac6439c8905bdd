"""Unacknowledged: the messages that a consumer's `poll` handed out, by queue, until they are acknowledged.

In:     messages of `poll`; what their `ack`, `nack` and `retry` asked for.
Out:    offsets to acknowledge, and messages to send back.
Always: an offset does not pass a message before it is acknowledged or sent back.
Not here: threads (the consumer's lock guards all of this), the handler's messages (`pool`).
"""

import logging
from collections import deque
from typing import Protocol

from txstore._native import ACKNOWLEDGED
from txstore.consumer.queue import ReadQueue
from txstore.errors import TxStoreError
from txstore.message import ReceivedMessage

__all__ = ["Unacknowledged"]

_log = logging.getLogger("txstore.consumer")


class Owner(Protocol):
    """The part of the consumer that is used here."""

    @property
    def group(self) -> str: ...
    def send_back(self, message: ReceivedMessage, delay_level: int) -> None: ...
    def note(self, queue: ReadQueue, queue_offset: int) -> None: ...


class Unacknowledged:
    """The messages of one consumer. It must not refer to the consumer, which would then not be freed at once."""

    def __init__(self) -> None:
        self.queues: list[tuple[ReadQueue, list[ReceivedMessage]]] = []
        """The queues of which it has messages. The consumer appends to it what it hands out."""
        self._to_send_back: deque[tuple[ReceivedMessage, int]] = deque()

    def acknowledge(self, owner: Owner) -> None:
        """Acknowledges all. Those that asked for a retry are sent back first.

        Raises the errors of sending a message back. Nothing after it is acknowledged then; call again to continue.
        """
        while self.queues:
            queue, messages = self.queues[0]
            for message in messages:
                delay_level = message.settle()
                if delay_level is not None:
                    self._to_send_back.append((message, delay_level))
            while self._to_send_back:
                owner.send_back(*self._to_send_back[0])
                self._to_send_back.popleft()
            if queue.held is not None:
                owner.note(queue, queue.held)
                queue.held = None
            del self.queues[0]

    def apply_decisions(self, owner: Owner, *, give_back: bool = False) -> None:
        """Acknowledges or sends back the messages for which `ack` or `nack` was called, and no other.

        With `give_back`, the others are returned to their queues, so that `ack` and `nack` fail from then on.
        """
        left_queues = []
        for queue, messages in self.queues:
            left = [message for message in messages if not self._apply(owner, queue, message, give_back)]
            if left:
                left_queues.append((queue, left))
            if queue.held is not None and len(left) < len(messages):
                owner.note(queue, left[0].queue_offset if left else queue.held)
                if not left:
                    queue.held = None
        self.queues = left_queues

    def clear(self) -> list[ReadQueue]:
        """Forgets all messages, and returns their queues."""
        queues = [queue for queue, _ in self.queues]
        self.queues.clear()
        self._to_send_back.clear()
        return queues

    def _apply(self, owner: Owner, queue: ReadQueue, message: ReceivedMessage, give_back: bool) -> bool:
        """Returns whether the message is done."""
        decision = message.decision
        if decision is None and give_back and not message.give_back():
            decision = message.decision  # Another thread has just decided.
        if decision is None:
            return False
        if decision != ACKNOWLEDGED:
            try:
                owner.send_back(message, decision)
            except TxStoreError as error:
                _log.warning(
                    "message %s could not be sent back yet: %s",
                    message.message_id,
                    error,
                    extra={"topic": message.topic, "group": owner.group, "message_id": message.message_id},
                )
                return False
        message.settle()
        queue.decided.add(message.queue_offset)
        return True
