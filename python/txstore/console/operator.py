"""The operator: administrative calls by name, with the types of their results.

In:     a function that makes one call: on a broker of this process, or at a server.
Out:    results.
Always: the calls are those that a server lists (`server/administration`), so each page works on any of them.
"""

from collections.abc import Callable, Sequence
from typing import Any

from txstore.broker import EmbeddedBroker
from txstore.broker.operations import GroupRow, Operations, Overview, TopicRow
from txstore.broker.queries import TopicDescription
from txstore.consumer.progress import GroupDescription

__all__ = ["Call", "Operator", "calls_of"]

Call = Callable[..., Any]
"""Makes a call: its name, then its arguments by name."""


def calls_of(broker: EmbeddedBroker) -> Call:
    """Returns the calls on an open store that no server has."""
    operations = Operations(broker)

    def call(name: str, **arguments: Any) -> Any:
        found: Callable[..., Any] = getattr(operations, name, None) or getattr(broker, name)
        return found(**arguments)

    return call


class Operator:
    """Operates one store. Errors are those of the same calls of a broker."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def overview(self) -> Overview:
        """Returns the store at this moment."""
        found: Overview = self._call("overview")
        return found

    def topics(self) -> list[str]:
        """Returns the topics of users, sorted."""
        found: list[str] = self._call("topics")
        return found

    def topic_rows(self, topics: Sequence[str]) -> list[TopicRow]:
        """Returns a row for each topic."""
        found: list[TopicRow] = self._call("topic_rows", topics=list(topics))
        return found

    def topic(self, topic: str) -> TopicDescription:
        """Describes a topic. Raises InvalidNameError."""
        found: TopicDescription = self._call("describe_topic", topic=topic)
        return found

    def groups(self) -> list[str]:
        """Returns the consumer groups, sorted."""
        found: list[str] = self._call("groups")
        return found

    def group_rows(self, groups: Sequence[str]) -> list[GroupRow]:
        """Returns a row for each group."""
        found: list[GroupRow] = self._call("group_rows", groups=list(groups))
        return found

    def group(self, group: str) -> GroupDescription:
        """Describes a consumer group. Raises InvalidNameError."""
        found: GroupDescription = self._call("describe_group", group=group)
        return found
