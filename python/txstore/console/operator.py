"""The operator: administrative calls by name, with the types of their results.

In:     a function that makes one call: on a broker of this process, or at a server.
Out:    results.
Always: the calls are those that a server lists (`server/administration`), so each page works on any of them.
"""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from txstore._native import StoredMessage, TransactionRow
from txstore.broker import EmbeddedBroker
from txstore.broker.lists import DelayedLevel, DiscardedRow, LetterPage, PendingPage
from txstore.broker.operations import GroupRow, MemberRow, Operations, OutboxFacts, Overview, TopicRow
from txstore.broker.queries import TopicDescription
from txstore.consumer.progress import DeadLetter, GroupDescription, QueueLag
from txstore.errors import InvalidOptionError
from txstore.interface import EndedTransaction
from txstore.message import ConsumeFromWhere, LocalTransactionState, SentMessage
from txstore.transactions.trace import TransactionTrace

__all__ = ["Call", "Operator", "calls_of", "unknown_call"]

Call = Callable[..., Any]
"""Makes a call: its name, then its arguments by name."""


def calls_of(broker: EmbeddedBroker) -> Call:
    """Returns the calls on an open store that no server has."""
    operations = Operations(broker)

    def call(name: str, **arguments: Any) -> Any:
        if name == "group_members":
            return []
        found: Callable[..., Any] | None = getattr(operations, name, None) or getattr(broker, name, None)
        if found is None:
            raise unknown_call(name)
        return found(**arguments)

    return call


def unknown_call(name: str) -> InvalidOptionError:
    """Returns the error for a call that nobody answers here."""
    return InvalidOptionError(f"nobody answers {name} here\nhint: use the same release on both sides", option="call")


class Operator:
    """Operates one store. Errors are those of the same calls of a broker."""

    def __init__(self, call: Call) -> None:
        self._call = call

    # The store

    def overview(self) -> Overview:
        """Returns the store at this moment."""
        found: Overview = self._call("overview")
        return found

    def settings(self) -> dict[str, dict[str, str]]:
        """Returns names and values, by what they are about."""
        found: dict[str, dict[str, str]] = self._call("settings")
        return found

    def delayed_levels(self, limit: int) -> list[DelayedLevel]:
        """Returns the delay levels with messages that wait, each with the next `limit` of them."""
        found: list[DelayedLevel] = self._call("delayed_levels", limit=limit)
        return found

    # Outboxes. Their rows are shown by a console that was given the databases.

    def outbox_facts(self) -> list[OutboxFacts]:
        """Returns the databases with messages that wait for a log."""
        found: list[OutboxFacts] = self._call("outbox_facts")
        return found

    def outbox_rows(self, database: str, limit: int) -> Sequence[Any]:
        """Returns rows that wait in a database, oldest first. Raises InvalidOptionError for an unknown one."""
        found: Sequence[Any] = self._call("outbox_rows", database=database, limit=limit)
        return found

    def outbox_retry(self, database: str, message_id: str) -> None:
        """Lets a parked message be sent again. Raises MessageNotFoundError."""
        self._call("outbox_retry", database=database, message_id=message_id)

    def outbox_drop(self, database: str, message_id: str) -> None:
        """Deletes a parked message. Raises MessageNotFoundError."""
        self._call("outbox_drop", database=database, message_id=message_id)

    # Topics and messages

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

    def message(self, message_id: str, topic: str | None) -> StoredMessage:
        """Finds a message by its unique id or its offset id. Raises MessageNotFoundError."""
        found: StoredMessage = self._call("message", message_id=message_id, topic=topic)
        return found

    def query(self, topic: str, key: str, limit: int) -> list[StoredMessage]:
        """Finds messages of a topic by key, newest first. Raises InvalidNameError."""
        found: list[StoredMessage] = self._call("query", topic=topic, key=key, max_messages=limit)
        return found

    def query_by_time(self, topic: str, begin: datetime, end: datetime | None, limit: int) -> list[StoredMessage]:
        """Finds messages of a topic by when they were stored, oldest first."""
        found: list[StoredMessage] = self._call("query_by_time", topic=topic, begin=begin, end=end, max_messages=limit)
        return found

    def read(self, topic: str, queue_id: int, queue_offset: int, limit: int) -> tuple[list[StoredMessage], int]:
        """Returns messages of a queue, and where to continue."""
        found: tuple[list[StoredMessage], int] = self._call(
            "read", topic=topic, queue_id=queue_id, queue_offset=queue_offset, max_messages=limit, tags=None
        )
        return found

    # Groups

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

    def members(self, group: str) -> list[MemberRow]:
        """Returns the connected consumers of a group."""
        found: list[MemberRow] = self._call("group_members", group=group)
        return found

    def lag(self, group: str) -> list[QueueLag]:
        """Returns a group's lag by queue. Raises InvalidNameError."""
        found: list[QueueLag] = self._call("lag", group=group)
        return found

    def reset_offsets(self, group: str, topic: str, to: ConsumeFromWhere | datetime) -> dict[int, int]:
        """Moves a group in all queues of a topic. Returns queue id → queue offset."""
        found: dict[int, int] = self._call("reset_offsets", group=group, topic=topic, to=to, queue_id=None)
        return found

    def dead_groups(self) -> dict[str, int]:
        """Returns the groups with dead letters, and how many."""
        found: dict[str, int] = self._call("dead_groups")
        return found

    def dead_letter_page(self, group: str, start: int, limit: int) -> LetterPage:
        """Returns dead letters of a group from a queue offset on."""
        found: LetterPage = self._call("dead_letter_page", group=group, start=start, limit=limit)
        return found

    def resend(self, letter: DeadLetter) -> SentMessage:
        """Delivers a dead letter to its group again. Raises MessageNotFoundError."""
        found: SentMessage = self._call("resend", letter=letter)
        return found

    # Transactions

    def pending_page(
        self,
        *,
        group: str | None,
        topic: str | None,
        id_prefix: str | None,
        older_than: timedelta | None,
        after: int,
        limit: int,
    ) -> PendingPage:
        """Returns pending transactions whose half queue offset is above `after` (-1: all), oldest first."""
        found: PendingPage = self._call(
            "pending_page",
            group=group,
            topic=topic,
            id_prefix=id_prefix,
            older_than=older_than,
            after=after,
            limit=limit,
        )
        return found

    def transactions_by_key(self, key: str) -> list[TransactionRow]:
        """Returns the transactions whose half message has this key or id, newest first."""
        found: list[TransactionRow] = self._call("transactions_by_key", key=key)
        return found

    def discarded_page(self, start: int, limit: int) -> tuple[list[DiscardedRow], int]:
        """Returns discarded transactions, newest first, and how many there are."""
        found: tuple[list[DiscardedRow], int] = self._call("discarded_page", start=start, limit=limit)
        return found

    def transaction(self, transaction_id: str) -> TransactionTrace:
        """Returns the history of a transaction. Raises TransactionNotFoundError."""
        found: TransactionTrace = self._call("transaction", transaction_id=transaction_id)
        return found

    def transaction_message(self, transaction_id: str) -> StoredMessage:
        """Returns the half message of a transaction. Raises MessageNotFoundError, OffsetTooOldError."""
        found: StoredMessage = self._call("transaction_message", transaction_id=transaction_id)
        return found

    def end_transaction(self, transaction_id: str, state: LocalTransactionState) -> EndedTransaction:
        """Commits or rolls back a transaction by hand."""
        found: EndedTransaction = self._call("end_transaction", transaction=transaction_id, state=state)
        return found

    def discard(self, transaction_id: str) -> EndedTransaction:
        """Discards a pending transaction."""
        found: EndedTransaction = self._call("discard", transaction=transaction_id)
        return found

    def resume(self, transaction_id: str) -> SentMessage | None:
        """Makes a discarded transaction pending again."""
        found: SentMessage | None = self._call("resume", transaction_id=transaction_id)
        return found

    def ask(self, transaction_id: str) -> bool:
        """Has a pending transaction checked soon. Returns whether its group has a producer."""
        found: bool = self._call("ask", transaction_id=transaction_id)
        return found
