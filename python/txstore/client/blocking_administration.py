"""The administrative calls of the blocking interface to a remote broker.

In:     the calls of an `EmbeddedBroker`, from any thread.
Out:    the results of `Administration`, which runs on the connection's loop.
Always: the two have the same calls.
"""

from collections.abc import Coroutine, Sequence
from datetime import datetime
from typing import Any, TypeVar, overload

from txstore._native import StoredMessage, StoreStat, TransactionRow
from txstore.broker.queries import QueueExtent, TopicDescription
from txstore.client.administration import Administration, FinishedState, PendingState
from txstore.client.sending import RemoteEnd, RemoteSent
from txstore.config import Duration
from txstore.consumer.progress import DeadLetter, GroupDescription, QueueLag
from txstore.message import ConsumeFromWhere, SentMessage
from txstore.selector import Selector
from txstore.transaction_state import TransactionState
from txstore.transactions.escaped import EscapedTransaction
from txstore.transactions.pending import PendingTransaction
from txstore.transactions.trace import TransactionTrace

__all__ = ["BlockingAdministration"]

T = TypeVar("T")


class BlockingAdministration:
    """The administrative calls of `txstore.connect(…)`. Errors are those of `txstore.client.administration`."""

    _administration: Administration

    # Transactions

    @overload
    def transactions(
        self,
        state: PendingState = ...,
        *,
        group: str | None = None,
        topic: str | None = None,
        id_prefix: str | None = None,
        older_than: Duration | None = None,
        limit: int | None = None,
    ) -> list[PendingTransaction]: ...

    @overload
    def transactions(
        self,
        state: FinishedState | None,
        *,
        group: str | None = None,
        topic: str | None = None,
        id_prefix: str | None = None,
        older_than: Duration | None = None,
        limit: int | None = None,
    ) -> list[TransactionRow]: ...

    def transactions(
        self,
        state: PendingState | FinishedState | None = TransactionState.PENDING,
        *,
        group: str | None = None,
        topic: str | None = None,
        id_prefix: str | None = None,
        older_than: Duration | None = None,
        limit: int | None = None,
    ) -> list[PendingTransaction] | list[TransactionRow]:
        """Returns transactions by state, as `EmbeddedBroker.transactions` does."""
        asked: Any = state  # The overloads admit no union.
        found: list[PendingTransaction] | list[TransactionRow] = self._run(
            self._administration.transactions(
                asked, group=group, topic=topic, id_prefix=id_prefix, older_than=older_than, limit=limit
            )
        )
        return found

    def transaction(self, transaction_id: str) -> TransactionTrace:
        """Returns the history of a transaction. Raises TransactionNotFoundError."""
        return self._run(self._administration.transaction(transaction_id))

    def escaped_transactions(self) -> list[EscapedTransaction]:
        """Returns the transactions that a replica has let escape to another broker, oldest first."""
        return self._run(self._administration.escaped_transactions())

    def transaction_states(self, transaction_ids: Sequence[str]) -> list[TransactionState | None]:
        """Returns for each id how the log has the newest transaction with it; None if the log has no trace of it."""
        return self._run(self._administration.transaction_states(transaction_ids))

    def discard(self, transaction: str | SentMessage) -> RemoteEnd:
        """Moves a pending transaction to TRANS_CHECK_MAX_TIME_TOPIC."""
        return self._run(self._administration.discard(transaction))

    def resume(self, transaction_id: str) -> RemoteSent | None:
        """Makes a discarded transaction pending again. A RocketMQ broker does not tell where: None.

        Raises TransactionNotFoundError, AlreadyEndedError.
        """
        return self._run(self._administration.resume(transaction_id))

    # Topics

    def topics(self) -> list[str]:
        """Returns the topics of users, sorted."""
        return self._run(self._administration.topics())

    def has_topic(self, topic: str) -> bool:
        """Tells whether the topic exists and is not a system topic."""
        return self._run(self._administration.has_topic(topic))

    def create_topic(self, topic: str, queues: int | None = None, *, message_type: str | None = None) -> None:
        """Creates a topic, adds queues to it (default: the broker's), or declares its message type. Idempotent."""
        self._run(self._administration.create_topic(topic, queues, message_type=message_type))

    def delete_topic(self, topic: str) -> int:
        """Deletes a topic with its queues and offsets; returns the number of messages. Raises InUseError."""
        return self._run(self._administration.delete_topic(topic))

    def describe_topic(self, topic: str) -> TopicDescription:
        """Returns a topic's queues, their ranges, and the groups that read it."""
        return self._run(self._administration.describe_topic(topic))

    def queues(self, topic: str | None = None) -> list[QueueExtent]:
        """Returns the queues in the log, or one topic's queues, sorted."""
        return self._run(self._administration.queues(topic))

    # Groups

    def groups(self) -> list[str]:
        """Returns the consumer groups, sorted."""
        return self._run(self._administration.groups())

    def has_group(self, group: str) -> bool:
        """Tells whether the consumer group exists."""
        return self._run(self._administration.has_group(group))

    def create_group(
        self, group: str, *, consume_message_orderly: bool | None = None, retry_max_times: int | None = None
    ) -> None:
        """Creates a consumer group, or changes its settings. Idempotent. None keeps a setting, or means RocketMQ's
        default: no order, 16 retries. They hold for clients of the gRPC protocol; other consumers have their own."""
        self._run(
            self._administration.create_group(
                group, consume_message_orderly=consume_message_orderly, retry_max_times=retry_max_times
            )
        )

    def create_groups(self, groups: Sequence[str]) -> None:
        """Creates the missing consumer groups. Idempotent."""
        self._run(self._administration.create_groups(groups))

    def delete_group(self, group: str, *, force: bool = False) -> int:
        """Deletes a consumer group with its offsets, retries and dead letters; returns their number.

        Raises InUseError (a connected consumer, or, without `force`, dead letters).
        """
        return self._run(self._administration.delete_group(group, force=force))

    def describe_group(self, group: str) -> GroupDescription:
        """Describes a consumer group. `members` counts the connected consumers, too."""
        return self._run(self._administration.describe_group(group))

    def lag(self, group: str) -> list[QueueLag]:
        """Returns a consumer group's lag by queue, including its retries."""
        return self._run(self._administration.lag(group))

    def lag_by_group(self) -> dict[str, list[QueueLag]]:
        """Returns the lag of every consumer group."""
        return self._run(self._administration.lag_by_group())

    def reset_offsets(
        self, group: str, topic: str, to: ConsumeFromWhere | datetime | int, *, queue_id: int | None = None
    ) -> dict[int, int]:
        """Moves a group in a topic, and tells its connected consumers. Returns queue id → queue offset."""
        return self._run(self._administration.reset_offsets(group, topic, to, queue_id=queue_id))

    def dead_letters(self, group: str, *, limit: int | None = None) -> list[DeadLetter]:
        """Returns a consumer group's dead letters, oldest first."""
        return self._run(self._administration.dead_letters(group, limit=limit))

    def resend(self, letter: DeadLetter) -> RemoteSent:
        """Delivers a dead letter to its group again. Raises MessageNotFoundError."""
        return self._run(self._administration.resend(letter))

    # Messages

    def message(self, message_id: str, *, topic: str | None = None) -> StoredMessage:
        """Finds a message by its unique id or its offset id. Raises MessageNotFoundError."""
        return self._run(self._administration.message(message_id, topic=topic))

    def has_messages(self, topic: str, message_ids: Sequence[str]) -> list[bool]:
        """Tells for each unique id whether the log has a message of the topic with it. Returns False for an unknown
        topic; from RocketMQ's brokers also for a delayed message that is not due."""
        return self._run(self._administration.has_messages(topic, message_ids))

    def query(self, topic: str, key: str, max_messages: int = 64) -> list[StoredMessage]:
        """Finds messages of a topic by key or unique id, newest first."""
        return self._run(self._administration.query(topic, key, max_messages))

    def query_by_time(
        self, topic: str, begin: datetime, end: datetime | None = None, *, max_messages: int = 64
    ) -> list[StoredMessage]:
        """Finds messages of a topic stored at `begin` or later and before `end`, oldest first."""
        return self._run(self._administration.query_by_time(topic, begin, end, max_messages=max_messages))

    def read(
        self, topic: str, queue_id: int, queue_offset: int, max_messages: int = 32, tags: Selector = None
    ) -> tuple[list[StoredMessage], int]:
        """Returns messages of a queue in order, and the queue offset to read next. Acknowledges nothing."""
        return self._run(self._administration.read(topic, queue_id, queue_offset, max_messages, tags))

    # The store

    def stat(self) -> StoreStat:
        """Returns statistics of the broker's store."""
        return self._run(self._administration.stat())

    def oldest_timestamp(self) -> datetime | None:
        """Returns when the first message left in the log was stored; None if the log is empty."""
        return self._run(self._administration.oldest_timestamp())

    def flush(self) -> None:
        """Makes all messages sent so far, and all changes of topics and groups, durable at the broker."""
        self._run(self._administration.flush())

    # Provided by the broker

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        raise NotImplementedError
