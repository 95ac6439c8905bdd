"""Producers: choose a queue, store a message, run a local transaction and end it.

In:     messages and the user's callbacks.
Out:    where each message was stored, and how its transaction ended.
Always: a half message is stored before its local transaction runs. An answer that is not a state counts as UNKNOWN.
Not here: who is checked later (`transactions`), which ends are allowed (the engine and `transactions`).
"""

import itertools
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import datetime
from types import TracebackType
from typing import Any, NoReturn, Protocol, Self, TypeAlias, TypeVar, overload

from txstore._native import java_hash_code, validate_group
from txstore.errors import (
    InvalidNameError,
    InvalidOptionError,
    StoreClosedError,
    TxStoreError,
)
from txstore.interface import BrokerInterface
from txstore.listener import (
    AnyChecker,
    AnyExecuter,
    AnyListener,
    Checker,
    Checkers,
    MaybeAsyncState,
    as_checker,
    as_executer,
)
from txstore.message import (
    Half,
    LocalTransactionState,
    Message,
    MessageQueue,
    SentMessage,
    TransactionMessage,
    TransactionSendResult,
)
from txstore.producer.local_transaction import (
    LocalTransaction,
    TransactionBlock,
    error_text,
    not_a_message,
    without_delay,
)

__all__ = ["LocalDatabase", "Producer", "QueueSelector", "Transaction", "TransactionProducer", "not_a_message"]

H = TypeVar("H", bound=Half)

QueueSelector: TypeAlias = Callable[[Sequence[MessageQueue], Message, Any], MessageQueue | int]
"""Chooses one of a topic's queues for a message, as a MessageQueue or its id. The last argument is `send`'s `arg`."""


class Session(Protocol):
    """The methods that connections and sessions of all blocking drivers have."""

    def commit(self) -> None: ...
    def rollback(self) -> None: ...


class AsyncSession(Protocol):
    """The methods that connections and sessions of all asyncio drivers have."""

    def commit(self) -> Coroutine[Any, Any, None]: ...
    def rollback(self) -> Coroutine[Any, Any, None]: ...


class LocalDatabase(Protocol):
    """The database that holds the rows of local transactions: a `txstore.database.Database`."""

    def check_local_transaction(self, message: TransactionMessage) -> LocalTransactionState: ...
    def clean(self, before: datetime) -> int: ...
    def transaction(
        self,
        producer: "TransactionProducer",
        message: Message | Sequence[Message],
        session: object,
        *,
        queue_id: int | None,
        selector: QueueSelector | None,
        arg: Any,
    ) -> Any:
        """Returns the block of `producer.transaction(message, session=session)`."""


# Looking up a member in its enum class is slow, and every transaction needs this one.
_UNKNOWN = LocalTransactionState.UNKNOWN
_log = logging.getLogger("txstore.producer")


class Producer:
    """Sends messages. Created by `broker.producer(group)`. Thread-safe.

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
        # The next queue of each topic. `itertools.cycle` steps in one C call, so threads share it without a lock, and
        # no counter can overflow.
        self._turns: dict[str | None, Callable[[], int]] = {}
        self._number = broker.register_producer(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(group={self._group!r}, number={self.number})"

    @property
    def group(self) -> str:
        """The name of the producer group."""
        return self._group

    @property
    def number(self) -> int:
        """The id of this producer at its broker; 0 before it is registered."""
        return getattr(self, "_number", 0)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def send(
        self,
        message: Message,
        *,
        queue_id: int | None = None,
        selector: QueueSelector | None = None,
        arg: Any = None,
    ) -> SentMessage:
        """Stores one message. It is visible to consumers, and with SYNC_FLUSH durable, when this returns.

        Its queue is `queue_id`, otherwise the choice of `selector`, otherwise that of its message group, otherwise the
        next queue in turn. Raises InvalidNameError for the topic or queue, StoreClosedError, and the errors of storing.
        """
        if queue_id is None and selector is None:
            try:
                turn = self._turns.get(message.turn_topic)
            except AttributeError:
                raise not_a_message(message) from None
            if turn is not None:
                return self._append(message, turn())
        return self._append(message, self._choose(message, queue_id, selector, arg))

    def recall(self, handle: str) -> str:
        """Recalls a message that waits for its time, so that it is never delivered. Returns its unique id.

        `handle`: the `recall_handle` of the result of `send`. Durable when it returns. Raises MessageNotFoundError if
        the message does not wait any more, InvalidMessageError for text that is not a handle, and errors of storing.
        """
        return self._broker.recall(handle)

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue_id: int | None = None,
        selector: QueueSelector | None = None,
        arg: Any = None,
    ) -> Sequence[SentMessage]:
        """Stores several messages, of one or more topics, in one write and one sync: either all or none.

        Messages of one topic without a message group go to the same queue, so that they stay in order. Raises as
        `send` does.
        """
        if self._closed:
            self._refuse()
        if queue_id is None and selector is None:
            # Fast path for most batches: one topic that this producer has sent to before, and no message groups.
            topics = {message.turn_topic for message in messages}
            turn = self._turns.get(topics.pop()) if len(topics) == 1 else None
            if turn is not None:
                return self._broker.append_many(messages, [turn()] * len(messages), self._group)
        chosen = self._choose_together(messages, queue_id, selector, arg)
        return self._broker.append_many(messages, chosen, self._group) if chosen else []

    @property
    def topics(self) -> frozenset[str]:
        """The topics that this producer has sent to."""
        return frozenset(self._topics)

    def topics_changed(self) -> None:
        """Forgets the queues of all topics, so that the next send asks the broker again."""
        self._queues = {}
        self._turns = {}

    def checker_for(self, topic: str, tag: str | None) -> Checker | None:
        """Returns None: a plain producer starts no transactions and answers no checks."""
        return None

    def close(self) -> None:
        """Leaves the group. Sending afterwards raises StoreClosedError. Idempotent."""
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
        """Returns the ids of the topic's writable queues; asks the broker the first time."""
        known = self._queues.get(topic)
        if known is None:
            if self._closed:
                self._refuse()
            known = tuple(self._broker.write_queues(topic))
            if not known:
                raise InvalidNameError(f"topic {topic} has no queue that accepts messages")
            self._queues[topic] = known
            self._topics.add(topic)
        return known

    def _first_turn(self, topic: str) -> int:
        turn = itertools.cycle(self._queue_ids(topic)).__next__
        # If two threads come here first, both continue with the same cycle.
        return self._turns.setdefault(topic, turn)()

    def _check_queue(self, topic: str, queue_id: int) -> None:
        known = self._queue_ids(topic)
        if queue_id not in known or isinstance(queue_id, bool):
            raise InvalidNameError(
                f"topic {topic} has no queue {queue_id} that accepts messages\n"
                f"hint: its queues are {', '.join(map(str, known))}"
            )

    def _choose(self, message: Message, queue_id: int | None, selector: QueueSelector | None, arg: Any) -> int:
        """Returns the queue of one message: given, selected, its message group's, or the next in turn."""
        topic = message.topic
        if queue_id is None and selector is not None:
            chosen = selector([MessageQueue(topic, number) for number in self._queue_ids(topic)], message, arg)
            queue_id = chosen.queue_id if isinstance(chosen, MessageQueue) else chosen
            if not isinstance(queue_id, int):
                raise InvalidNameError(f"the selector must return a MessageQueue or a queue id, got {chosen!r}")
        if queue_id is not None:
            self._check_queue(topic, queue_id)
            return queue_id
        group = message.message_group
        if group is not None:
            queues = self._queue_ids(topic)
            return queues[java_hash_code(group) % len(queues)]  # In Python, % of a negative hash is not negative.
        turn = self._turns.get(topic)
        return turn() if turn is not None else self._first_turn(topic)

    def _choose_together(
        self, messages: Sequence[Message], queue_id: int | None, selector: QueueSelector | None, arg: Any
    ) -> list[int]:
        """Returns the queues of messages that are stored together. Those of one topic without a message group share
        one."""
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
        return chosen


class TransactionProducer(Producer):
    """Sends transactional messages and answers the checks of its group. Thread-safe.

    Created by `broker.transaction_producer(group, listener)`. It is asked until it is closed, even if nobody uses it.

    `listener` runs local transactions and answers checks. `check_listener` answers checks if `listener` does not, or
    is None. `database`, a `txstore.database.Database`, replaces both and answers checks from its rows.

    Raises InvalidOptionError for a listener that can neither run nor check a local transaction, and for a listener
    together with a database; InvalidNameError for the group name.
    """

    def __init__(
        self,
        broker: BrokerInterface,
        group: str,
        listener: AnyListener[MaybeAsyncState] | None = None,
        *,
        check_listener: AnyChecker[MaybeAsyncState] | None = None,
        database: LocalDatabase | None = None,
    ) -> None:
        if database is not None:
            _must_be_only_database(database, listener, check_listener)
            check_listener = database
        self._database = database
        self._execute = as_executer(listener)
        default = as_checker(check_listener if check_listener is not None else listener)
        if listener is not None and self._execute is None and default is None:
            raise InvalidOptionError(
                f"expected a transaction listener, got {type(listener).__name__}\n"
                "hint: derive it from txstore.TransactionListener",
                option="listener",
            )
        self._checkers = Checkers(default)
        if check_listener is not None and default is None:
            self._checkers.add(check_listener)
        # Halves whose local transactions run here, by transaction id. One dict operation is atomic in CPython.
        self._running: dict[str, Half] = {}
        self._warns_of_checks = default is None and check_listener is None
        self._store_half: Callable[[Message, int, str, int], Half] = broker.prepare
        self._end = broker.end
        super().__init__(broker, group)

    def add_checker(
        self, checker: AnyChecker[LocalTransactionState], *, topic: str | None = None, tags: str | None = None
    ) -> None:
        """Binds a checker to a topic, to tags (`"a || b"`), to both, or to all messages. The most specific one answers.

        `checker` is a callable that takes the message, or a listener. Raises InvalidOptionError if it is neither, or if
        the producer has a database, which answers all checks.
        """
        if self._database is not None:
            raise InvalidOptionError(
                f"the producer of group {self._group} has a database, which answers its checks\n"
                "hint: use another producer group for transactions that another checker answers",
                option="checker",
            )
        self._checkers.add(checker, topic=topic, tags=tags)
        self._warns_of_checks = False
        # Transactions that had no checker until now may be waiting for this one.
        self._broker.register_producer(self)

    def checker_for(self, topic: str, tag: str | None) -> Checker | None:
        """Returns the checker for a message of `topic` with `tag`; None if there is none, or after `close`."""
        return None if self._closed else self._checkers.find(topic, tag)

    def send_in_transaction(
        self,
        message: Message,
        arg: Any = None,
        *,
        executer: AnyExecuter[LocalTransactionState] | None = None,
        queue_id: int | None = None,
        selector: QueueSelector | None = None,
    ) -> TransactionSendResult:
        """Stores a half message, runs the local transaction, and commits or rolls back as it returned.

        `arg` is passed to the local transaction and to `selector`. `executer`, a callable or RocketMQ's
        LocalTransactionExecuter, runs the local transaction instead of the listener. An exception in it is logged, kept
        in the result's `error` and counts as UNKNOWN, as in RocketMQ. If the end itself fails, the error is kept, too.
        A check settles both. If storing the half message fails, nothing has run: it raises as `send` does, and
        TooManyPendingError.
        """
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
        self,
        message: Message | Sequence[Message],
        *,
        queue_id: int | None = ...,
        selector: QueueSelector | None = ...,
        arg: Any = ...,
    ) -> "Transaction": ...

    @overload
    def transaction(
        self,
        message: Message | Sequence[Message],
        *,
        session: Session,
        queue_id: int | None = ...,
        selector: QueueSelector | None = ...,
        arg: Any = ...,
    ) -> "AbstractContextManager[Transaction]": ...

    @overload
    def transaction(
        self,
        message: Message | Sequence[Message],
        *,
        session: AsyncSession,
        queue_id: int | None = ...,
        selector: QueueSelector | None = ...,
        arg: Any = ...,
    ) -> "AbstractAsyncContextManager[Transaction]": ...

    def transaction(
        self,
        message: Message | Sequence[Message],
        *,
        session: object = None,
        queue_id: int | None = None,
        selector: QueueSelector | None = None,
        arg: Any = None,
    ) -> Any:
        """Returns a block around the local transaction: entering stores the half message, leaving commits it.

        An exception inside leaves the transaction UNKNOWN, because the database may have committed already. A check
        decides, and the exception is raised on. `tx.rollback()` rolls back at once.

        A list of 1 to 1,000 messages, of any topics, is one transaction: consumers see all of them or none. Its id and
        its checks are those of the first message. RocketMQ's own brokers take one message: EmbeddedOnlyError.

        `session` is a connection or session on the producer's `database`. Then entering also begins or joins its
        database transaction and inserts a row, and leaving commits the database, then the message. An exception or
        `tx.rollback()` rolls both back. An async session needs `async with`. Raises InvalidOptionError for a session
        that cannot be used, or one without a database; AlreadyEndedError; what the driver raises.
        """
        if self._database is None and session is None:
            return Transaction(self, message, queue_id, selector, arg)
        if self._database is None:
            raise self._no_database()
        if session is None:
            raise InvalidOptionError(
                f"the producer of group {self._group} has a database, so its transactions need a session\n"
                "hint: producer.transaction(message, session=session)",
                option="session",
            )
        return self._database.transaction(self, message, session, queue_id=queue_id, selector=selector, arg=arg)

    def clean_database(self, before: datetime) -> None:
        """Removes old rows from the producer's database, if it has one. Raises what the driver raises."""
        if self._database is not None:
            self._database.clean(before)

    def _no_database(self) -> InvalidOptionError:
        given = "has no checker" if self._checkers.find("", None) is None else "has a listener that answers its checks"
        return InvalidOptionError(
            f"session= is given, but the producer of group {self._group} {given} and no database\n"
            f'hint: broker.transaction_producer("{self._group}", database=txstore.database.Database(engine)), without '
            "a listener",
            option="session",
        )

    def close(self) -> None:
        """Leaves the group. The ages of local transactions that still run here count from now. Idempotent."""
        super().close()
        self._store_half = self._refuse
        running, self._running = self._running, {}
        for half in running.values():
            try:
                self._broker.local_transaction_ended(half)
            except TxStoreError:
                return  # The store is closed or broken. The next opening takes these transactions as no longer running.

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
            raise InvalidOptionError(
                f"executer= must be a callable or a LocalTransactionExecuter, got {type(executer).__name__}",
                option="executer",
            )
        return executer

    def _begin_all(
        self, messages: Sequence[Message], queue_id: int | None, selector: QueueSelector | None, arg: Any
    ) -> LocalTransaction[Half]:
        """Stores the half messages of one transaction and returns its local transaction."""
        if self._closed:
            self._refuse()
        cleared: list[Message] = []
        for message in messages:
            cleared.append(without_delay(message, self._group, stacklevel=3))
        chosen = self._choose_together(cleared, queue_id, selector, arg)
        half = self._broker.prepare_many(cleared, chosen, self._group, self._number)
        return self._began(half, cleared[0])

    def _begin(
        self, message: Message, queue_id: int | None, selector: QueueSelector | None, arg: Any
    ) -> LocalTransaction[Half]:
        """Stores the half message and returns its local transaction."""
        if not isinstance(message, Message):
            raise not_a_message(message)
        turn = self._turns.get(message.turn_topic) if queue_id is None and selector is None else None
        if turn is not None:
            chosen = turn()
        else:
            message = without_delay(message, self._group, stacklevel=3)
            chosen = self._choose(message, queue_id, selector, arg)
        return self._began(self._store_half(message, chosen, self._group, self._number), message)

    def _began(self, half: H, message: Message) -> LocalTransaction[H]:
        """Returns the local transaction of a half message that was stored. It runs here until `_ended`."""
        local = LocalTransaction(self._group, half, message)
        if self._warns_of_checks:
            self._warn_of_checks()
        self._running[local.transaction_id] = half
        return local

    def _warn_of_checks(self) -> None:
        """Logs once that this producer sends transactions, but can answer no check."""
        self._warns_of_checks = False
        _log.warning(
            "a producer of group %s sends transactions and answers no checks: after a crash, they stay pending "
            "until another producer of the group answers\nhint: a listener, check_listener=, database= or add_checker",
            self._group,
            extra={"group": self._group},
        )

    def _finish(self, local: LocalTransaction[Half]) -> None:
        """Ends the transaction as its local transaction answered. A failure is logged, and a check settles it."""
        if local.wanted is not _UNKNOWN:
            try:
                self._end(local.half, local.wanted, self._group)
            except TxStoreError as error:
                local.end_failed(error)
            else:
                self._forget(local)
                return
        self._ended(local)

    def _forget(self, local: LocalTransaction[Any]) -> None:
        self._running.pop(local.transaction_id, None)

    def _ended(self, local: LocalTransaction[Any]) -> None:
        """Starts the transaction's age now, so that it will be checked."""
        self._forget(local)
        try:
            self._broker.local_transaction_ended(local.half)
        except TxStoreError as error:
            fields = {"group": self._group, "reason": error_text(error)}
            _log.warning("the end of a local transaction could not be noted", extra=fields)


class Transaction(TransactionBlock[Half]):
    """A transaction as a block: `with producer.transaction(message) as tx`, or of a list of messages.

    Entering stores the half messages and raises as `send_in_transaction` does. Leaving commits, unless the transaction
    was ended inside; a `commit()` or `rollback()` that failed inside is tried again. An exception inside leaves it
    UNKNOWN. `commit()` and `rollback()` end it at once and raise what fails.

    If the end on leaving fails, an error that contradicts it (AlreadyEndedError, WrongGroupError,
    TransactionNotFoundError) is raised. Any other error is logged and kept in `error`, and a check settles the
    transaction.
    """

    def __init__(
        self,
        producer: TransactionProducer,
        message: Message | Sequence[Message],
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
        if len(self._messages) == 1:
            self._local = self._producer._begin(self._message, *self._route)
        else:
            self._local = self._producer._begin_all(self._messages, *self._route)
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
            self._producer._end(local.half, state, self._producer.group)
        except BaseException:
            if self._left:
                self._producer._ended(local)
            raise
        local.state = state
        self._producer._forget(local)


def _must_be_only_database(database: object, listener: object, check_listener: object) -> None:
    """Raises InvalidOptionError for a database together with a listener, and for a value that is not a database."""
    if listener is not None or check_listener is not None:
        raise InvalidOptionError(
            "listener and database are both given, and both would answer the checks\n"
            "hint: leave the listener out, and use producer.transaction(message, session=session)",
            option="database",
        )
    if not isinstance(database, type) and hasattr(database, "transaction") and as_checker(database) is not None:
        return
    raise InvalidOptionError(
        "expected a txstore.database.Database, got "
        f"{database.__name__ if isinstance(database, type) else type(database).__name__}\n"
        "hint: database=txstore.database.Database(engine), or of a path or URL",
        option="database",
    )
