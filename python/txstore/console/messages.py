"""The pages of messages: found by key, id, or time, or queue by queue; one message with its body."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from txstore._native import StoredMessage
from txstore.console.page import ROWS, Asked, Page
from txstore.console.topics import must_read_topic
from txstore.errors import InvalidOptionError, MessageNotFoundError, OffsetTooOldError

__all__ = ["LIST", "PAGE", "Reader", "body_form", "moment", "readers_of"]

_READERS_MAX = 20
_FORMS = ("text", "hex")


@dataclass(frozen=True, slots=True)
class Reader:
    """A consumer group, and whether it has acknowledged a message."""

    group: str
    has_read: bool


def body_form(asked: Asked) -> str | None:
    """Returns the form in which the body is asked for; None: the form that fits."""
    form = asked.get("body")
    return form if form in _FORMS else None


def moment(asked: Asked, name: str) -> datetime | None:
    """Returns a time of a form, which is UTC unless it names a zone. Raises InvalidOptionError."""
    said = asked.get(name)
    if said is None:
        return None
    try:
        found = datetime.fromisoformat(said)
    except ValueError:
        text = f"{name} {said[:40]!r} is not a time\nhint: 2026-01-31T12:00, or 2026-01-31T12:00+02:00"
        raise InvalidOptionError(text, option=name) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def readers_of(asked: Asked, topic: str, queue_id: int, queue_offset: int) -> list[Reader]:
    """Returns which groups of a topic have acknowledged a message; of many groups, the first ones."""
    found = []
    for group in asked.operator.topic(topic).groups[:_READERS_MAX]:
        if asked.viewer.may_read_group(group):
            rows = [row for row in asked.operator.lag(group) if (row.topic, row.queue_id) == (topic, queue_id)]
            found.append(Reader(group, any((row.consumer_offset or 0) > queue_offset for row in rows)))
    return found


def _list(asked: Asked) -> Mapping[str, Any]:
    topic, key, since = asked.get("topic"), asked.get("key"), moment(asked, "from")
    context: dict[str, Any] = {"topic": topic, "messages": None, "next": None, "queue": asked.get("queue")}
    if key is not None:
        return context | {"messages": _by_key(asked, topic, key)}
    if topic is None:
        return context
    must_read_topic(asked, topic)
    if since is not None:
        return context | {"messages": asked.operator.query_by_time(topic, since, moment(asked, "until"), ROWS)}
    if asked.get("queue") is None:
        asked.operator.topic(topic)  # Raises InvalidNameError for an unknown one.
        return context | {"messages": _newest(asked, topic)}
    queue_id, start = asked.number("queue", 0, 2**31 - 1), asked.number("start", 0)
    try:
        messages, following = asked.operator.read(topic, queue_id, start, ROWS)
    except OffsetTooOldError:
        first = next((one.first for one in asked.operator.topic(topic).queues if one.queue_id == queue_id), start)
        messages, following = asked.operator.read(topic, queue_id, first, ROWS)
    return context | {"messages": messages, "next": following if len(messages) == ROWS else None}


def _by_key(asked: Asked, topic: str | None, key: str) -> list[StoredMessage]:
    """Finds messages by key in a topic, or by id anywhere."""
    if topic is not None:
        must_read_topic(asked, topic)
        if found := asked.operator.query(topic, key, ROWS):
            return found
    try:
        message = asked.operator.message(key, topic)
    except MessageNotFoundError:
        return []
    return [message] if asked.viewer.may_read_topic(message.topic) else []


def _newest(asked: Asked, topic: str) -> list[StoredMessage]:
    """Returns the newest messages of all queues, newest first."""
    queues = asked.operator.topic(topic).queues
    share = max(1, ROWS // max(1, len(queues)))
    found: list[StoredMessage] = []
    for queue in queues[:ROWS]:
        if queue.end > queue.first:
            found += asked.operator.read(topic, queue.queue_id, max(queue.first, queue.end - share), share)[0]
    return sorted(found, key=lambda one: one.physical_offset, reverse=True)


def _show(asked: Asked) -> Mapping[str, Any]:
    message_id = asked.need("id")
    message = asked.operator.message(message_id, asked.get("topic"))
    if not asked.viewer.may_read_topic(message.topic):
        raise MessageNotFoundError(f"there is no message {message_id} in any topic that you may read")
    readers = readers_of(asked, message.topic, message.queue_id, message.queue_offset)
    return {"message": message, "form": body_form(asked), "readers": readers}


LIST: Page = Page("/messages", "Messages", "messages.html", _list)
PAGE: Page = Page("/message", "Message", "message.html", _show)
