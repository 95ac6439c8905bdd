"""Operates a broker in another process: transactions, topics, groups, dead letters, queries, statistics.

In:     the calls of an `EmbeddedBroker`, with the same arguments.
Out:    results of the same classes, and the same errors.
Always: `txstore serve` makes the call on its own broker (TXSTORE_ADMIN). With accounts, that needs an administrator. A
        RocketMQ broker does not know this request; then RocketMQ's own requests are used (`rocketmq_admin`), or the
        call raises BrokerRefusedError.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypeAlias, overload

from txstore._native import RequestCode, ResponseCode, StoredMessage, StoreStat, TransactionRow
from txstore.broker.queries import QueueExtent, TopicDescription
from txstore.client.client import Client
from txstore.client.rocketmq_admin import RocketMQAdmin, not_answered
from txstore.client.sending import RemoteEnd, RemoteSent
from txstore.config import Duration, as_timedelta
from txstore.consumer.progress import DeadLetter, GroupDescription, QueueLag
from txstore.errors import BrokerRefusedError, InvalidOptionError
from txstore.message import ConsumeFromWhere, LocalTransactionState, SendStatus, SentMessage, transaction_id_of
from txstore.remoting.administration import decode, decode_error, encode
from txstore.remoting.refusals import refusal
from txstore.selector import Selector, Sql
from txstore.transaction_state import TransactionState
from txstore.transactions.escaped import EscapedTransaction
from txstore.transactions.pending import PendingTransaction
from txstore.transactions.trace import TransactionTrace

__all__ = ["Administration", "FinishedState", "PendingState"]

PendingState: TypeAlias = Literal["pending", TransactionState.PENDING]
FinishedState: TypeAlias = Literal[
    "committed",
    "rolled_back",
    "discarded",
    "finished_unknown",
    TransactionState.COMMITTED,
    TransactionState.ROLLED_BACK,
    TransactionState.DISCARDED,
    TransactionState.FINISHED_UNKNOWN,
]


class Administration:
    """The administrative calls over one connection, as coroutines. Each may raise BrokerRefusedError (no administrator,
    or a RocketMQ broker that cannot answer it), BrokerUnreachableError and BrokerTimeoutError, in addition to the
    errors of the same call of an `EmbeddedBroker`."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._rocketmq = RocketMQAdmin(client)
        self._knows_calls: dict[str, bool] = {}  # By broker: whether it answers TXSTORE_ADMIN.

    # Transactions

    @overload
    async def transactions(
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
    async def transactions(
        self,
        state: FinishedState | None,
        *,
        group: str | None = None,
        topic: str | None = None,
        id_prefix: str | None = None,
        older_than: Duration | None = None,
        limit: int | None = None,
    ) -> list[TransactionRow]: ...

    async def transactions(
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
        wanted: TransactionState | None = None
        if state is not None:
            try:
                wanted = TransactionState(state)
            except ValueError:
                known = ", ".join(TransactionState)
                raise InvalidOptionError(
                    f"unknown state {state!r}\nhint: {known}, or None for all", option="state"
                ) from None
        age = None if older_than is None else as_timedelta(older_than, "older_than")
        found: list[PendingTransaction] | list[TransactionRow] = await self._administer(
            "transactions", state=wanted, older_than=age, group=group, topic=topic, id_prefix=id_prefix, limit=limit
        )
        return found

    async def transaction(self, transaction_id: str) -> TransactionTrace:
        """Returns the history of a transaction. Raises TransactionNotFoundError."""
        found: TransactionTrace = await self._administer("transaction", transaction_id=transaction_id)
        return found

    async def escaped_transactions(self) -> list[EscapedTransaction]:
        """Returns the transactions that a replica has let escape to another broker, oldest first."""
        found: list[EscapedTransaction] = await self._administer("escaped_transactions")
        return found

    async def end_by_hand(self, transaction: str | SentMessage, state: LocalTransactionState) -> RemoteEnd:
        """Commits or rolls back any transaction, also one that this connection did not begin."""
        found: RemoteEnd = await self._administer("end_transaction", transaction=_id_of(transaction), state=state)
        return found

    async def transaction_states(self, transaction_ids: Sequence[str]) -> list[TransactionState | None]:
        """Returns for each id how the log has the newest transaction with it; None if the log has no trace of it."""
        found: list[TransactionState | None] = await self._administer(
            "transaction_states", transaction_ids=list(transaction_ids)
        )
        return found

    async def discard(self, transaction: str | SentMessage) -> RemoteEnd:
        """Moves a pending transaction to TRANS_CHECK_MAX_TIME_TOPIC."""
        found: RemoteEnd = await self._administer("discard", transaction=_id_of(transaction))
        return found

    async def resume(self, transaction_id: str) -> RemoteSent | None:
        """Makes a discarded transaction pending again. A RocketMQ broker does not tell where: None.

        Raises TransactionNotFoundError, AlreadyEndedError.
        """
        found: RemoteSent | None = await self._administer("resume", transaction_id=transaction_id)
        return found

    # Topics

    async def topics(self) -> list[str]:
        """Returns the topics of users, sorted."""
        found: list[str] = await self._administer("topics")
        return found

    async def has_topic(self, topic: str) -> bool:
        """Tells whether the topic exists and is not a system topic."""
        return topic in await self.topics()

    async def create_topic(self, topic: str, queues: int | None = None, *, message_type: str | None = None) -> None:
        """Creates a topic, adds queues to it (default: the broker's), or declares its message type. Idempotent."""
        await self._administer("create_topic", topic=topic, queues=queues, message_type=message_type)
        await self._client.refresh_route(topic)

    async def delete_topic(self, topic: str) -> int:
        """Deletes a topic with its queues and offsets; returns the number of messages. Raises InUseError."""
        messages: int = await self._administer("delete_topic", topic=topic)
        self._client.forget_route(topic)
        return messages

    async def describe_topic(self, topic: str) -> TopicDescription:
        """Returns a topic's queues, their ranges, and the groups that read it."""
        found: TopicDescription = await self._administer("describe_topic", topic=topic)
        return found

    async def queues(self, topic: str | None = None) -> list[QueueExtent]:
        """Returns the queues in the log, or one topic's queues, sorted."""
        found: list[QueueExtent] = await self._administer("queues", topic=topic)
        return found

    # Groups

    async def groups(self) -> list[str]:
        """Returns the consumer groups, sorted."""
        found: list[str] = await self._administer("groups")
        return found

    async def has_group(self, group: str) -> bool:
        """Tells whether the consumer group exists."""
        return group in await self.groups()

    async def create_group(
        self, group: str, *, consume_message_orderly: bool | None = None, retry_max_times: int | None = None
    ) -> None:
        """Creates a consumer group, or changes its settings. Idempotent. None keeps a setting, or means RocketMQ's
        default: no order, 16 retries. They hold for clients of the gRPC protocol; other consumers have their own."""
        if consume_message_orderly is None and retry_max_times is None:
            await self.create_groups([group])
            return
        await self._administer(
            "create_group",
            group=group,
            consume_message_orderly=consume_message_orderly,
            retry_max_times=retry_max_times,
        )

    async def create_groups(self, groups: Sequence[str]) -> None:
        """Creates the missing consumer groups. Idempotent."""
        await self._administer("create_groups", groups=list(groups))

    async def delete_group(self, group: str, *, force: bool = False) -> int:
        """Deletes a consumer group with its offsets, retries and dead letters; returns their number.

        Raises InUseError (a connected consumer, or, without `force`, dead letters).
        """
        letters: int = await self._administer("delete_group", group=group, force=force)
        return letters

    async def describe_group(self, group: str) -> GroupDescription:
        """Describes a consumer group. `members` counts the connected consumers, too."""
        found: GroupDescription = await self._administer("describe_group", group=group)
        return found

    async def lag(self, group: str) -> list[QueueLag]:
        """Returns a consumer group's lag by queue, including its retries."""
        found: list[QueueLag] = await self._administer("lag", group=group)
        return found

    async def lag_by_group(self) -> dict[str, list[QueueLag]]:
        """Returns the lag of every consumer group."""
        found: dict[str, list[QueueLag]] = await self._administer("lag_by_group")
        return found

    async def reset_offsets(
        self, group: str, topic: str, to: ConsumeFromWhere | datetime | int, *, queue_id: int | None = None
    ) -> dict[int, int]:
        """Moves a group in a topic, and tells its connected consumers. Returns queue id → queue offset."""
        found: dict[int, int] = await self._administer(
            "reset_offsets", group=group, topic=topic, to=to, queue_id=queue_id
        )
        return found

    async def dead_letters(self, group: str, *, limit: int | None = None) -> list[DeadLetter]:
        """Returns a consumer group's dead letters, oldest first."""
        found: list[DeadLetter] = await self._administer("dead_letters", group=group, limit=limit)
        return found

    async def resend(self, letter: DeadLetter) -> RemoteSent:
        """Delivers a dead letter to its group again. Raises MessageNotFoundError."""
        # The broker has the body and the properties.
        found: RemoteSent = await self._administer(
            "resend", letter=dataclasses.replace(letter, body=b"", properties={})
        )
        return found

    # Messages

    async def message(self, message_id: str, *, topic: str | None = None) -> StoredMessage:
        """Finds a message by its unique id or its offset id. Raises MessageNotFoundError."""
        found: StoredMessage = await self._administer("message", message_id=message_id, topic=topic)
        return found

    async def has_messages(self, topic: str, message_ids: Sequence[str]) -> list[bool]:
        """Tells for each unique id whether the log has a message of the topic with it. Returns False for an unknown
        topic; from RocketMQ's brokers also for a delayed message that is not due."""
        found: list[bool] = await self._administer("has_messages", topic=topic, message_ids=list(message_ids))
        return found

    async def query(self, topic: str, key: str, max_messages: int = 64) -> list[StoredMessage]:
        """Finds messages of a topic by key or unique id, newest first."""
        found: list[StoredMessage] = await self._administer("query", topic=topic, key=key, max_messages=max_messages)
        return found

    async def query_by_time(
        self, topic: str, begin: datetime, end: datetime | None = None, *, max_messages: int = 64
    ) -> list[StoredMessage]:
        """Finds messages of a topic stored at `begin` or later and before `end`, oldest first."""
        found: list[StoredMessage] = await self._administer(
            "query_by_time", topic=topic, begin=begin, end=end, max_messages=max_messages
        )
        return found

    async def read(
        self, topic: str, queue_id: int, queue_offset: int, max_messages: int = 32, tags: Selector = None
    ) -> tuple[list[StoredMessage], int]:
        """Returns messages of a queue in order, and the queue offset to read next. Acknowledges nothing."""
        # A string is an SQL92 expression, a list has tags.
        wanted = tags.expression if isinstance(tags, Sql) else None if tags is None else list(tags)
        found: tuple[list[StoredMessage], int] = await self._administer(
            "read", topic=topic, queue_id=queue_id, queue_offset=queue_offset, max_messages=max_messages, tags=wanted
        )
        return found

    # The store

    async def stat(self) -> StoreStat:
        """Returns statistics of the broker's store."""
        found: StoreStat = await self._administer("stat")
        return found

    async def oldest_timestamp(self) -> datetime | None:
        """Returns when the first message left in the log was stored; None if the log is empty."""
        found: datetime | None = await self._administer("oldest_timestamp")
        return found

    async def flush(self) -> None:
        """Makes all messages sent so far, and all changes of topics and groups, durable at the broker."""
        await self._administer("flush")

    # Internal

    async def _administer(self, name: str, **arguments: Any) -> Any:
        """Makes a call at the broker, by txstore's own request or by RocketMQ's."""
        brokers = self._client.brokers()
        if len(brokers) == 1 and self._knows_calls.get(brokers[0], True):
            (broker,) = brokers
            said, timeout = {"call": name}, self._client.options.seconds("admin_timeout")
            answer = await self._client.ask(broker, RequestCode.TXSTORE_ADMIN, said, encode(arguments), timeout=timeout)
            if answer.code == ResponseCode.SUCCESS:
                return decode(answer.body, _factories(broker))
            if answer.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                error = decode_error(answer.ext_fields, answer.remark or "")
                raise error if error is not None else refusal(answer, f"{name}()", f"broker {broker}")
            self._knows_calls[broker] = False
        if name not in RocketMQAdmin.CALLS:
            raise _one_broker(name, brokers) if len(brokers) > 1 else not_answered(name, self._client.address)
        return await getattr(self._rocketmq, name)(**arguments)


def _one_broker(name: str, brokers: Sequence[str]) -> BrokerRefusedError:
    return BrokerRefusedError(
        f"{name}() is a call to one broker, and this connection has {len(brokers)}: {', '.join(brokers)}\n"
        "hint: connect to the address of the broker whose store you mean",
        code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
    )


def _factories(broker: str) -> Mapping[str, Any]:
    def sent(**facts: Any) -> RemoteSent:
        return RemoteSent(**facts, send_status=SendStatus.SEND_OK, broker=broker)

    return {"EndResult": RemoteEnd, "SendResult": sent}


def _id_of(transaction: str | SentMessage) -> str:
    return transaction if isinstance(transaction, str) else transaction_id_of(transaction)
