"""Defines what every broker offers its users: embedded, remote and fake ones.

In:     nothing; types only.
Out:    `Broker`, for the annotations of code that works with any of them.
Not here: the calls between a broker and its producers and consumers (`interface`).
"""

from datetime import datetime
from types import TracebackType
from typing import Protocol, Self

from txstore.consumer import Consumer, Topics
from txstore.interface import EndedTransaction
from txstore.listener import AnyChecker, AnyListener
from txstore.message import ConsumeFromWhere, LocalTransactionState, MessageModel, SentMessage
from txstore.producer import LocalDatabase, Producer, TransactionProducer
from txstore.selector import Sql

__all__ = ["Broker"]


class Broker(Protocol):
    """What an `EmbeddedBroker`, a `RemoteBroker` and a `txstore.testing.FakeBroker` have in common.

    Annotate with it the code that works with any of them, so that a test can pass a FakeBroker.
    """

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""

    def producer(self, group: str) -> Producer:
        """Creates a producer of plain messages. Raises InvalidNameError."""

    def transaction_producer(
        self,
        group: str,
        listener: AnyListener[LocalTransactionState] | None = None,
        *,
        check_listener: AnyChecker[LocalTransactionState] | None = None,
        database: LocalDatabase | None = None,
    ) -> TransactionProducer:
        """Creates a producer of transactional messages. It answers checks until it is closed.

        Raises InvalidNameError, InvalidOptionError.
        """

    def consumer(
        self,
        group: str,
        topic: Topics,
        tags: str | Sql | None = None,
        *,
        start: ConsumeFromWhere | datetime = ConsumeFromWhere.FIRST,
        message_model: MessageModel = MessageModel.CLUSTERING,
        instance_name: str | None = None,
        max_reconsume_times: int | None = None,
    ) -> Consumer:
        """Creates a consumer of `topic`, which shares the queues with the group's other members.

        `topic` is a name, several names, a dict of names and tags, or a compiled pattern.

        Raises InvalidNameError, InvalidOptionError.
        """

    def end_transaction(
        self, transaction: str | SentMessage, state: LocalTransactionState, *, producer_group: str | None = None
    ) -> EndedTransaction:
        """Commits or rolls back a transaction, given by its id or by what storing its half message returned.

        Repeating an end returns `already`. Raises TransactionNotFoundError, AlreadyEndedError, WrongGroupError,
        InvalidOptionError.
        """

    def close(self) -> None:
        """Closes the producers and consumers, then the broker. Idempotent."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
