"""Producers: choose a queue, store a message, run a local transaction and end it.

In: messages and the user's callbacks. Out: where each message was stored, and what became of its transaction. Always:
a half message is stored before its local transaction runs, and an answer nobody knows is UNKNOWN. Not here: who is
asked later (`check`), what may end how (the engine and `transaction`).
"""

import itertools
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import datetime
from types import TracebackType
from typing import Any, NoReturn, Protocol, Self, TypeAlias, overload

from txstore._native import java_hash_code, validate_group
from txstore.errors import (
    InvalidMessageError,
    InvalidNameError,
    InvalidOptionError,
    StoreClosedError,
    TxStoreError,
)
from txstore.interface import BrokerInterface
from txstore.listener import Checker, Checkers, as_checker, as_executer
from txstore.local_transaction import LocalTransaction, TransactionBlock, error_text, without_delay
from txstore.message import (
    LocalTransactionState,
    Message,
    MessageQueue,
    SentMessage,
    TransactionMessage,
    TransactionSendResult,
)

__all__ = ["LocalDatabase", "Producer", "QueueSelector", "Transaction", "TransactionProducer"]

QueueSelector: TypeAlias = Callable[[Sequence[MessageQueue], Message, Any], MessageQueue | int]
"""Chooses one of a topic's queues for a message; the last argument is `send`'s `arg`. A queue or its id."""


class Session(Protocol):
    """What all connections and sessions of sync drivers have."""

    def commit(self) -> None: ...
    def rollback(self) -> None: ...


class AsyncSession(Protocol):
    """What those of async drivers have."""

    def commit(self) -> Coroutine[Any, Any, None]: ...
    def rollback(self) -> Coroutine[Any, Any, None]: ...


class LocalDatabase(Protocol):
    """Where the local transactions of a producer leave their rows: a `txstore.database.Database`."""

    def check_local_transaction(self, message: TransactionMessage) -> LocalTransactionState: ...
    def clean(self, before: datetime) -> int: ...
    def transaction(
        self,
        producer: "TransactionProducer",
        message: Message,
        session: object,
        *,
        queue_id: int | None,
        selector: QueueSelector | None,
        arg: Any,
    ) -> Any:
        """The block of `producer.transaction(message, session=session)`."""


# Looking a member up in its enum class is slow, and these are asked for at every transaction.
_UNKNOWN, _COMMIT = LocalTransactionState.UNKNOWN, LocalTransactionState.COMMIT
_log = logging.getLogger("txstore.producer")


class Producer:
    """Sends messages. Made by `broker.producer(group)`; safe to use from many threads.

    Raises InvalidNameError for a group name that is not allowed.
    """

    def __init__(self, broker: BrokerInterface, group: str) -> None:
        validate_group(group)
        self._broker = broker
        self._group = group
        self._closed = False
        self._append: Callable[[Message, int], SentMessage] = broker.appender(group)
        self._queues: dict[str, tuple[int, ...]] = {}
        self._topics: set[str] = set()
        # The next queue of each topic: `itertools.cycle` steps in one C call, so threads share it without a lock, and
        # it has no counter that could overflow.
        self._turns: dict[str | None, Callable[[], int]] = {}
        self._number = broker.register_producer(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(group={self._group!r}, number={self.number})"

    @property
    def group(self) -> str:
        return self._group

    @property
    def number(self) -> int:
        return getattr(self, "_number", 0)

    @property
    def closed(self) -> bool:
        return self._closed

    def send(
        self,
        message: Message,
        *,
        queue_id: int | None = None,
        selector: QueueSelector | None = None,
        arg: Any = None,
    ) -> SentMessage:
        """Stores one message; it is visible to consumers when this returns (SYNC_FLUSH: and durable).

        Its queue: `queue_id`, else what `selector` chooses, else its message group's, else the next one in turn.
        Raises InvalidNameError (topic or queue), StoreClosedError, and what storing raises.
        """
        if queue_id is None and selector is None:
            try:
                turn = self._turns.get(message.turn_topic)
            except AttributeError:
                raise _no_message(message) from None
            if turn is not None:
                return self._append(message, turn())
        return self._append(message, self._choose(message, queue_id, selector, arg))

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue_id: int | None = None,
        selector: QueueSelector | None = None,
        arg: Any = None,
    ) -> Sequence[SentMessage]:
        """Stores several messages as one write (and one sync): all or none. Topics may differ.

        Messages of one topic without a group go to one queue, so that they stay in order. Errors as `send`.
        """
        if self._closed:
            self._refuse()
        if queue_id is None and selector is None:
            # What most batches are, in the fewest steps: one topic that was sent to before, no groups.
            topics = {message.turn_topic for message in messages}
            turn = self._turns.get(topics.pop()) if len(topics) == 1 else None
            if turn is not None:
                return self._broker.append_many(messages, [turn()] * len(messages), self._group)
        together: dict[str, int] = {}
        chosen: list[int] = []
        for message in messages:
            if queue_id is not None or selector is not None or message.message_group is not None:
                chosen.append(self._choose(message, queue_id, selector, arg))
                continue
            topic = message.topic
            if topic not in together:
                together[topic] = self._choose(message, None, None, None)
            chosen.append(together[topic])
        return self._broker.append_many(messages, chosen, self._group) if chosen else []

    @property
    def topics(self) -> frozenset[str]:
        """What it has sent to."""
        return frozenset(self._topics)

    def topics_changed(self) -> None:
        """Forgets what is known of topics; the next send asks the broker again."""
        self._queues = {}
        self._turns = {}

    def checker_for(self, topic: str, tag: str | None) -> Checker | None:
        """A plain producer began no transaction and answers for none."""
        return None

    def close(self) -> None:
        """Leaves the group; sending afterwards raises StoreClosedError. Again: nothing."""
        if self._closed:
            return
        self._closed = True
        self._append = self._refuse
        self._broker.unregister_producer(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _refuse(self, *_: object) -> NoReturn:
        raise StoreClosedError(f"the producer of group {self._group} is closed")

    def _queue_ids(self, topic: str) -> tuple[int, ...]:
        """The queues that may be sent to, from the broker the first time."""
        known = self._queues.get(topic)
        if known is None:
            if self._closed:
                self._refuse()
            known = tuple(self._broker.write_queues(topic))
            if not known:
                raise InvalidNameError(f"topic {topic} has no queue that may be sent to")
            self._queues[topic] = known
            self._topics.add(topic)
        return known

    def _first_turn(self, topic: str) -> int:
        turn = itertools.cycle(self._queue_ids(topic)).__next__
        # Of two threads that come first, both go on with the same cycle.
        return self._turns.setdefault(topic, turn)()

    def _check_queue(self, topic: str, queue_id: int) -> None:
        known = self._queue_ids(topic)
        if queue_id not in known or isinstance(queue_id, bool):
            raise InvalidNameError(
                f"topic {topic} has no queue {queue_id} that may be sent to\n"
                f"hint: its queues are {', '.join(map(str, known))}"
            )

    def _choose(self, message: Message, queue_id: int | None, selector: QueueSelector | None, arg: Any) -> int:
        """The queue of one message: given, selected, its group's, or the next in turn."""
        topic = message.topic
        if queue_id is None and selector is not None:
            chosen = selector([MessageQueue(topic, number) for number in self._queue_ids(topic)], message, arg)
            queue_id = chosen.queue_id if isinstance(chosen, MessageQueue) else chosen
            if not isinstance(queue_id, int):
                raise InvalidNameError(f"the selector returned {chosen!r}, neither a MessageQueue nor a queue id")
        if queue_id is not None:
            self._check_queue(topic, queue_id)
            return queue_id
        group = message.message_group
        if group is not None:
            queues = self._queue_ids(topic)
            return queues[java_hash_code(group) % len(queues)]  # Python's % of a negative hash is not negative.
        turn = self._turns.get(topic)
        return turn() if turn is not None else self._first_turn(topic)


class TransactionProducer(Producer):
    """Sends transactional messages, and answers checks about those of its group.

    `listener`: runs local transactions and answers checks (today's shape, or RocketMQ's older ones); `check_listener`:
    answers checks, if `listener` does not or is None; `database`, instead of both: a `txstore.database.Database` that
    answers them by rows. Made by `broker.transaction_producer(group, listener)`; safe to use from many threads. It is
    asked until it is closed, also while nobody calls it.

    Raises InvalidOptionError for a listener that can neither run nor answer, or one beside a database;
    InvalidNameError for the group.
    """

    def __init__(
        self,
        broker: BrokerInterface,
        group: str,
        listener: object = None,
        *,
        check_listener: object = None,
        database: LocalDatabase | None = None,
    ) -> None:
        if database is not None:
            _must_be_alone(database, listener, check_listener)
            check_listener = database
        self._database = database
        self._execute = as_executer(listener)
        default = as_checker(check_listener if check_listener is not None else listener)
        if listener is not None and self._execute is None and default is None:
            raise InvalidOptionError(
                f"{type(listener).__name__} is no transaction listener\nhint: derive from txstore.TransactionListener",
                option="listener",
            )
        self._checkers = Checkers(default)
        if check_listener is not None and default is None:
            self._checkers.add(check_listener)
        # Halves whose local transactions run here, by transaction id. One dict operation is atomic in CPython: no lock.
        self._running: dict[str, SentMessage] = {}
        self._store_half: Callable[[Message, int, str, int], SentMessage] = broker.prepare
        self._end_half = broker.end_half
        super().__init__(broker, group)

    def add_checker(self, checker: object, *, topic: str | None = None, tags: str | None = None) -> None:
        """Binds a checker to a topic, to tags (`"a || b"`), to both, or to all; the most specific one answers.

        `checker`: a callable that takes the message, or a listener. Raises InvalidOptionError, also if the producer
        has a database, which answers all checks.
        """
        if self._database is not None:
            raise InvalidOptionError(
                f"the producer of group {self._group} has a database, which answers its checks\n"
                "hint: a group of its own for transactions that another checker answers",
                option="checker",
            )
        self._checkers.add(checker, topic=topic, tags=tags)
        # Transactions that nobody could answer for may have been waiting for this one.
        self._broker.register_producer(self)

    def checker_for(self, topic: str, tag: str | None) -> Checker | None:
        return None if self._closed else self._checkers.find(topic, tag)

    def send_in_transaction(
        self,
        message: Message,
        arg: Any = None,
        *,
        executer: object = None,
        queue_id: int | None = None,
        selector: QueueSelector | None = None,
    ) -> TransactionSendResult:
        """Stores a half message, runs the local transaction, and commits or rolls back by what it returned.

        `arg` goes to the local transaction (and to `selector`); `executer` runs it instead of the listener: a callable,
        or RocketMQ's LocalTransactionExecuter. What the local transaction raises is logged and kept in the result's
        `error`, and counts as UNKNOWN, as in RocketMQ; so does an end that fails: a check settles both. Storing the
        half message raises as `send` does, and then nothing has run; also raises TooManyPendingError.
        """
        execute = self._execute if executer is None else None
        if execute is None:
            execute = self._executer(executer)
        local = self._begin(message, queue_id, selector, arg)
        try:
            try:
                local.answered(execute(local.message, arg))
            except Exception as raised:
                local.raised(raised)
            self._finish(local)
        except BaseException:
            self._ended(local)
            raise
        return local.result()

    @overload
    def transaction(
        self, message: Message, *, queue_id: int | None = ..., selector: QueueSelector | None = ..., arg: Any = ...
    ) -> "Transaction": ...

    @overload
    def transaction(
        self,
        message: Message,
        *,
        session: Session,
        queue_id: int | None = ...,
        selector: QueueSelector | None = ...,
        arg: Any = ...,
    ) -> "AbstractContextManager[Transaction]": ...

    @overload
    def transaction(
        self,
        message: Message,
        *,
        session: AsyncSession,
        queue_id: int | None = ...,
        selector: QueueSelector | None = ...,
        arg: Any = ...,
    ) -> "AbstractAsyncContextManager[Transaction]": ...

    def transaction(
        self,
        message: Message,
        *,
        session: object = None,
        queue_id: int | None = None,
        selector: QueueSelector | None = None,
        arg: Any = None,
    ) -> Any:
        """A block around the local transaction: entering stores the half message, leaving commits it.

        An exception inside leaves the transaction UNKNOWN, since the database may have committed already: a check
        decides, and the exception goes on. `tx.rollback()` rolls back outright.

        With `session`, a connection or session on the producer's `database`: entering also begins or joins its
        database transaction and writes a row into it; leaving commits it, then the message; an exception, or
        `tx.rollback()`, rolls both back. `async with`, for an async session. Raises InvalidOptionError for a session
        that cannot be used, or one without a database; AlreadyEndedError; what the driver raises.
        """
        if self._database is None and session is None:
            return Transaction(self, message, queue_id, selector, arg)
        if self._database is None:
            raise self._no_database()
        if session is None:
            raise InvalidOptionError(
                f"the producer of group {self._group} answers checks by rows in a database, and was given no session\n"
                "hint: producer.transaction(message, session=session)",
                option="session",
            )
        return self._database.transaction(self, message, session, queue_id=queue_id, selector=selector, arg=arg)

    def clean_database(self, before: datetime) -> LocalTransactionState:
        """Removes old rows from the producer's database, if it has one. Raises what the driver raises.

        Asked like a check, so it answers like one: UNKNOWN ends nothing.
        """
        if self._database is not None:
            self._database.clean(before)
        return _UNKNOWN

    def _no_database(self) -> InvalidOptionError:
        given = "has no checker" if self._checkers.find("", None) is None else "has a listener that answers its checks"
        return InvalidOptionError(
            f"session= is given, but the producer of group {self._group} {given} and no database\n"
            f'hint: broker.transaction_producer("{self._group}", database=txstore.database.Database(engine)), without '
            "a listener",
            option="session",
        )

    def close(self) -> None:
        """Leaves the group; the ages of local transactions that still run here count from now. Again: nothing."""
        super().close()
        self._store_half = self._refuse
        running, self._running = self._running, {}
        for half in running.values():
            try:
                self._broker.local_transaction_ended(half)
            except TxStoreError:
                return  # The store is closed or broken: the next opening takes them for ended.

    def _executer(self, executer: object) -> Callable[[Any, Any], object]:
        if self._database is not None:
            raise InvalidOptionError(
                f"the producer of group {self._group} has a database, so its local transactions need a session\n"
                "hint: with producer.transaction(message, session=session): …",
                option="executer",
            )
        if executer is None:
            if self._execute is None:
                raise InvalidOptionError(
                    f"the producer of group {self._group} has no listener that runs local transactions\n"
                    "hint: give it a TransactionListener, pass executer=, or use `with producer.transaction(message)`",
                    option="listener",
                )
            return self._execute
        found = as_executer(executer)
        if found is not None:
            return found
        if not callable(executer):
            raise InvalidOptionError(f"{type(executer).__name__} can run no local transaction", option="executer")
        return executer

    def _begin(
        self, message: Message, queue_id: int | None, selector: QueueSelector | None, arg: Any
    ) -> LocalTransaction[SentMessage]:
        """Stores the half message."""
        if not isinstance(message, Message):
            raise _no_message(message)
        turn = self._turns.get(message.turn_topic) if queue_id is None and selector is None else None
        if turn is not None:
            chosen = turn()
        else:
            message = without_delay(message, self._group, stacklevel=3)
            chosen = self._choose(message, queue_id, selector, arg)
        half = self._store_half(message, chosen, self._group, self._number)
        local = LocalTransaction(self._group, half, message)
        self._running[local.transaction_id] = half
        return local

    def _finish(self, local: LocalTransaction[SentMessage]) -> None:
        """Ends it as the local transaction answered. What fails is logged, and a check settles it."""
        if local.wanted is not _UNKNOWN:
            try:
                self._end_half(local.half, commit=local.wanted is _COMMIT, producer_group=self._group)
            except TxStoreError as error:
                local.end_failed(error)
            else:
                local.state = local.wanted
                self._running.pop(local.transaction_id, None)
                return
        self._ended(local)

    def _forget(self, local: LocalTransaction[Any]) -> None:
        self._running.pop(local.transaction_id, None)

    def _ended(self, local: LocalTransaction[Any]) -> None:
        """Counts the transaction's age from now on, so that it will be checked."""
        self._forget(local)
        try:
            self._broker.local_transaction_ended(local.half)
        except TxStoreError as error:
            fields = {"group": self._group, "reason": error_text(error)}
            _log.warning("local transaction's end is not noted", extra=fields)


class Transaction(TransactionBlock[SentMessage]):
    """A transaction as a block: `with producer.transaction(message) as tx`.

    Entering stores the half message and raises as `send_in_transaction` does. Leaving commits, unless it was ended
    inside (a `commit()` or `rollback()` that failed there is tried again); an exception leaves it UNKNOWN. `commit()`
    and `rollback()` end it at once and raise what fails. When the end at leaving fails: one that contradicts raises
    (AlreadyEndedError, WrongGroupError, TransactionNotFoundError), anything else is logged and kept in `error`, and a
    check settles it.
    """

    def __init__(
        self,
        producer: TransactionProducer,
        message: Message,
        queue_id: int | None,
        selector: QueueSelector | None,
        arg: Any,
    ) -> None:
        super().__init__(message)
        self._producer = producer
        self._route = (queue_id, selector, arg)

    def commit(self) -> None:
        """Commits now. Idempotent. Raises AlreadyEndedError if it was rolled back or discarded."""
        self._decide(LocalTransactionState.COMMIT)

    def rollback(self) -> None:
        """Rolls back now. Idempotent. Raises AlreadyEndedError if it was committed or discarded."""
        self._decide(LocalTransactionState.ROLLBACK)

    def __enter__(self) -> Self:
        self._must_not_have_begun()
        self._local = self._producer._begin(self._message, *self._route)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        wanted = self._still_to_tell(error)
        if wanted is not _UNKNOWN:
            try:
                self._decide(wanted)
            except self.CONTRADICTIONS:
                raise
            except TxStoreError as failed:
                self._begun.end_failed(failed)
        elif self.state is _UNKNOWN:
            self._producer._ended(self._begun)

    def _decide(self, state: LocalTransactionState) -> None:
        local = self._begun
        local.wanted = state
        try:
            self._producer._broker.end_transaction(local.half, state, producer_group=self._producer.group)
        except BaseException:
            if self._left:
                self._producer._ended(local)
            raise
        local.state = state
        self._producer._forget(local)


def _must_be_alone(database: object, listener: object, check_listener: object) -> None:
    """Raises InvalidOptionError for a database beside a listener, and for what is no database."""
    if listener is not None or check_listener is not None:
        raise InvalidOptionError(
            "a listener and a database are given, and both would answer the checks\n"
            "hint: leave the listener out, and use producer.transaction(message, session=session)",
            option="database",
        )
    if not isinstance(database, type) and hasattr(database, "transaction") and as_checker(database) is not None:
        return
    raise InvalidOptionError(
        f"database= is given {database.__name__ if isinstance(database, type) else type(database).__name__}\n"
        "hint: txstore.database.Database(engine), or of a path or URL",
        option="database",
    )


def _no_message(given: object) -> InvalidMessageError:
    return InvalidMessageError(f"{type(given).__name__} is no message\nhint: send txstore.Message(topic, body)")
