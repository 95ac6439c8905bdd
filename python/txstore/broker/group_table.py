"""Group table: the calls of an open store that create consumer groups and list them.

In:     names, settings.
Out:    groups.
Always: a group's settings are stored with it.
Not here: deletion (`deletion`), consumers, how the table is stored (`topics`).
"""

from collections.abc import Callable, Sequence

from txstore._native import validate_group
from txstore.broker.topics import Groups, GroupSettings, Topics
from txstore.message import retry_topic

__all__ = ["GroupTable"]


class GroupTable:
    """The part of an embedded broker that knows its groups. `topics_changed` is told of topics that are new."""

    def __init__(
        self, groups: Groups, topics: Topics, topics_changed: Callable[[Sequence[str]], None], *, reads_only: bool
    ) -> None:
        self._groups = groups
        self._reads_only = reads_only
        self._topics = topics
        self._topics_changed = topics_changed

    def _must_write(self, what: str) -> None:
        raise NotImplementedError

    def has_group(self, group: str) -> bool:
        """Tells whether the consumer group exists."""
        return group in self.groups() if self._reads_only else self._groups.has(group)

    def groups(self) -> list[str]:
        """Returns the consumer groups, sorted."""
        if self._reads_only:
            self._groups.read_again()
        return self._groups.names()

    def create_group(
        self, group: str, *, consume_message_orderly: bool | None = None, retry_max_times: int | None = None
    ) -> None:
        """Creates a consumer group, or changes its settings. Idempotent. None keeps a setting, or means RocketMQ's
        default: no order, 16 retries. They hold for clients of the gRPC protocol; other consumers have their own.

        Raises InvalidNameError, InvalidOptionError, ReadOnlyError.
        """
        self._must_write("creating a group")
        self._groups.create(group, consume_message_orderly, retry_max_times)
        self._topics_changed([retry_topic(group)])

    def group_settings(self, group: str) -> GroupSettings:
        """Returns a consumer group's settings; RocketMQ's defaults for an unknown group."""
        if self._reads_only:
            self._groups.read_again()
        return self._groups.settings(group)

    def create_groups(self, groups: Sequence[str]) -> None:
        """Creates the missing consumer groups, each with its retry topic. Idempotent.

        Each table is written once, however many groups there are. Raises InvalidNameError, ReadOnlyError.
        """
        self._must_write("creating groups")
        for group in groups:
            validate_group(group)
        self._groups.add(*groups)
        if made := self._topics.create_all_with_one_queue(map(retry_topic, groups)):
            self._topics_changed(made)
