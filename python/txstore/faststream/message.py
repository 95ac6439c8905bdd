"""Messages: what FastStream's handlers get, and what its publishers send.

In:     a received message of txstore, or FastStream's command to publish.
Out:    FastStream's message, or a message of txstore.
Always: a header is a property, the content type and the correlation id two more, so another program can read them.
"""

from __future__ import annotations

from typing import Any, Self

from faststream.message import StreamMessage, decode_message
from faststream.response.publish_type import PublishType
from faststream.response.response import PublishCommand, Response

from txstore.message import Message, ReceivedMessage

__all__ = ["TxStoreMessage", "TxStorePublishCommand", "TxStoreResponse", "decode", "encoded", "parse"]

_CONTENT_TYPE, _CORRELATION_ID = "content-type", "correlation-id"
_OPTIONS = ("tags", "keys", "message_group", "delay_level", "deliver_at", "session")


class TxStoreMessage(StreamMessage[ReceivedMessage]):
    """A message in a handler. `raw_message` is txstore's own."""

    async def ack(self) -> None:
        """Acknowledges the message."""
        if self.committed is None:
            self.raw_message.ack()
        await super().ack()

    async def nack(self) -> None:
        """Has the message delivered again later, and after 16 times put to the dead letters."""
        if self.committed is None:
            self.raw_message.nack()
        await super().nack()

    async def reject(self) -> None:
        """Puts the message to the dead letters of its group."""
        if self.committed is None:
            self.raw_message.nack(-1)
        await super().reject()


async def parse(message: ReceivedMessage) -> TxStoreMessage:
    """Returns FastStream's message of one that a consumer got."""
    headers = dict(message.properties)
    return TxStoreMessage(
        raw_message=message,
        body=message.body,
        headers=headers,
        content_type=headers.get(_CONTENT_TYPE),
        correlation_id=headers.get(_CORRELATION_ID),
        message_id=message.message_id,
    )


async def decode(message: StreamMessage[Any]) -> Any:
    """Returns the value of a body, by its content type."""
    return decode_message(message)


class TxStorePublishCommand(PublishCommand):
    """What to publish, and how."""

    def __init__(
        self,
        body: Any,
        *,
        topic: str = "",
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        publish_type: PublishType = PublishType.PUBLISH,
        **options: Any,
    ) -> None:
        super().__init__(
            body=body,
            destination=topic,
            headers=headers,
            correlation_id=correlation_id,
            _publish_type=publish_type,
        )
        self.options = {name: value for name, value in options.items() if value is not None}

    @classmethod
    def of(cls, command: PublishCommand) -> Self:
        """Returns the command itself, or one with the same body and headers of another broker's."""
        if isinstance(command, cls):
            return command
        return cls(
            command.body,
            topic=command.destination,
            headers=command.headers,
            correlation_id=command.correlation_id,
            publish_type=command.publish_type,
        )


class TxStoreResponse(Response):
    """What a handler returns to say how its publishers send it: `tags`, `keys`, `message_group`, `delay_level`,
    `deliver_at`, `session`."""

    def __init__(
        self, body: Any, *, headers: dict[str, str] | None = None, correlation_id: str | None = None, **options: Any
    ) -> None:
        if wrong := sorted(set(options) - set(_OPTIONS)):
            raise TypeError(f"TxStoreResponse has no option {wrong[0]!r}; there are {', '.join(_OPTIONS)}")
        super().__init__(body=body, headers=headers, correlation_id=correlation_id)
        self.options = options

    def as_publish_command(self) -> TxStorePublishCommand:
        """For FastStream."""
        return TxStorePublishCommand(
            self.body, headers=self.headers, correlation_id=self.correlation_id, **self.options
        )


def encoded(command: TxStorePublishCommand, body: bytes, content_type: str | None) -> Message:
    """Returns the message to send. Raises InvalidMessageError, InvalidNameError."""
    properties = {name: str(value) for name, value in (command.headers or {}).items()}
    if content_type:
        properties[_CONTENT_TYPE] = content_type
    if command.correlation_id:
        properties[_CORRELATION_ID] = command.correlation_id
    options = {name: value for name, value in command.options.items() if name != "session"}
    return Message(command.destination, body, properties=properties, **options)
