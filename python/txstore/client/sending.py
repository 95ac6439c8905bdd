"""Sends messages, half messages and ends of transactions to brokers.

In:     messages and the queues that `producer` chose for them.
Out:    where each was stored, and how a transaction ended.
Always: a half message or an end that may have arrived is not sent again, since the broker would store it twice. A
        repeated end is answered from what this client sent. The holder of a store of this machine stores nothing
        twice, so there everything is sent again that a lost connection left in doubt.
"""

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from txstore._native import (
    TEMPLATE_TOPIC,
    Message,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    SinkBatch,
    allow_end_again,
    batch_body,
    properties_text,
    recall_names,
    unique_id,
)
from txstore.client.caller import Caller
from txstore.client.client import Client
from txstore.client.connection import Connection
from txstore.client.route import Queue, Route
from txstore.errors import (
    AlreadyEndedError,
    BrokerRefusedError,
    BrokerTimeoutError,
    BrokerUnreachableError,
    EmbeddedOnlyError,
    InvalidMessageError,
    InvalidOptionError,
    MessageNotFoundError,
    ProtocolError,
    TransactionNotFoundError,
    TxStoreError,
    WrongGroupError,
)
from txstore.message import (
    Half,
    LocalTransactionState,
    SendStatus,
    SentMessage,
    TransactionState,
    transaction_id_of,
)
from txstore.remoting.refusals import refusal

__all__ = ["ENDS", "EndedHalf", "RemoteEnd", "RemoteSent", "Sending", "end_fields", "is_stored", "send_fields"]

_STATUS = {
    ResponseCode.SUCCESS: SendStatus.SEND_OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: SendStatus.FLUSH_DISK_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: SendStatus.SLAVE_NOT_AVAILABLE,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: SendStatus.FLUSH_SLAVE_TIMEOUT,
}
# RocketMQ's DefaultMQProducer.retryResponseCodes.
_AGAIN = frozenset({1, 2, 14, 16, 17, 204, 205})
_BATCH = RequestCode.SEND_BATCH_MESSAGE
_PREPARED = 4  # The transaction bits of a sysflag.
ENDS = {LocalTransactionState.COMMIT: 8, LocalTransactionState.ROLLBACK: 12, LocalTransactionState.UNKNOWN: 0}
"""The codes of END_TRANSACTION, which are the transaction bits of a sysflag."""
_UNKNOWN = LocalTransactionState.UNKNOWN
_OUTCOMES = {
    LocalTransactionState.COMMIT: TransactionState.COMMITTED,
    LocalTransactionState.ROLLBACK: TransactionState.ROLLED_BACK,
}
_REMEMBERED = 100_000  # The most transactions of this client that are kept, ended or not.
_RECALL_GROUP = "DEFAULT_PRODUCER"  # RocketMQ requires a name, and does not look it up.
_BODY_MAX = 15 << 20  # Bytes of a request's body. A frame, whose header comes before it, has at most 16 MiB.


@dataclass(frozen=True, slots=True)
class RemoteSent:
    """Where a broker stored a message. Corresponds to `SendResult`."""

    message_id: str
    offset_message_id: str
    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    transaction_id: str | None
    send_status: SendStatus
    """How the message is secured. Unless SEND_OK, it may be lost if the broker's machine fails."""
    broker: str
    """The name of the broker, whose commit log `physical_offset` refers to."""
    recall_handle: str | None = None
    """The handle with which the message can be recalled while it waits for its time; None if it does not wait."""


@dataclass(frozen=True, slots=True)
class RemoteEnd:
    """What ending a transaction did. Corresponds to `EndResult`."""

    outcome: TransactionState
    already: bool
    physical_offset: int | None = None
    """The offset of the final message, if this call wrote one by hand. Otherwise a remote broker does not tell it."""
    queue_offset: int | None = None
    """The queue offset of that message."""


class EndedHalf(Protocol):
    """The facts about a half message that END_TRANSACTION contains."""

    @property
    def topic(self) -> str: ...
    @property
    def message_id(self) -> str: ...
    @property
    def transaction_id(self) -> str | None: ...
    @property
    def queue_offset(self) -> int: ...
    @property
    def physical_offset(self) -> int: ...


@dataclass(slots=True)
class _Begun:
    """A transaction that this client began.

    `state` is the end that was sent; UNKNOWN before. `in_doubt` is the error if no response to it arrived.
    """

    sent: RemoteSent
    group: str
    state: LocalTransactionState = LocalTransactionState.UNKNOWN
    in_doubt: BrokerTimeoutError | BrokerUnreachableError | None = None


class Sending:
    """The sends and ends of one client. Thread-safe: they run where their `Caller` does."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._options = client.options
        # Guards the tables below, which the threads of producers read, too.
        self._lock = threading.Lock()
        self._begun: OrderedDict[str, _Begun] = OrderedDict()
        self._running: set[str] = set()
        self._settled: OrderedDict[str, Connection] = OrderedDict()
        client.on_reconnected.append(self._tell_running)

    # Messages

    async def send(self, message: Message, number: int, group: str, caller: Caller) -> RemoteSent:
        """Stores one message. Retries if no response arrives, which may store it twice with the same id."""
        name = unique_id()
        text = properties_text(message, name, [])
        answer, queue = await self._send(
            caller, message.topic, number, group, message.body, properties=text, flag=message.flag, again=True
        )
        return self._sent(answer, message.topic, queue, name)

    async def send_batch(
        self, messages: Sequence[Message], numbers: Sequence[int], group: str, caller: Caller
    ) -> list[RemoteSent]:
        """Stores several messages in one queue, all or none.

        Raises InvalidMessageError for more than one queue or topic, and for delayed messages.
        """
        _must_be_one_batch(messages, numbers)
        names = [unique_id() for _ in messages]
        body = batch_body(list(messages), names)
        topic = messages[0].topic
        answer, queue = await self._send(caller, topic, numbers[0], group, body, code=_BATCH, again=True)
        first = self._sent(answer, topic, queue, names[0])
        ids = first.offset_message_id.split(",")
        return [
            RemoteSent(
                name,
                offset_id,
                first.topic,
                first.queue_id,
                first.queue_offset + index,
                _physical_offset(offset_id),
                None,
                first.send_status,
                queue.broker,
            )
            for index, (name, offset_id) in enumerate(zip(names, ids, strict=True))
        ]

    async def send_encoded(self, batch: SinkBatch, group: str, caller: Caller) -> SendStatus:
        """Stores messages that are encoded in one queue, all or none, and returns how they are secured."""
        answer, _ = await self._send(caller, batch.topic, batch.queue, group, batch.body, code=_BATCH, again=True)
        return _STATUS[ResponseCode(answer.code)]

    async def prepare(self, message: Message, number: int, group: str, caller: Caller) -> RemoteSent:
        """Stores a half message. It is not sent again once it may have arrived.

        Raises BrokerRefusedError also if the status is not SEND_OK (codes 10, 11 and 12), for example because copies
        are missing: the half message is then rolled back, as RocketMQ's client does it.
        """
        name = message.transaction_id or unique_id()
        text = properties_text(message, name, [("TRAN_MSG", "true"), ("PGROUP", group)])
        with self._as_running(name):
            answer, queue = await self._send(
                caller,
                message.topic,
                number,
                group,
                message.body,
                properties=text,
                flag=message.flag,
                sys_flag=_PREPARED,
                again=self._client.is_store,
            )
            sent = self._sent(answer, message.topic, queue, name, transaction_id=name)
        self._remember(sent, group)
        await self._must_be_secured(sent, answer, group, caller)
        return sent

    async def prepare_many(
        self, messages: Sequence[Message], numbers: Sequence[int], group: str, caller: Caller
    ) -> RemoteSent:
        """Stores the half messages of one transaction, all or none, and returns where that of the first is.

        As for one, they are not sent again once they may have arrived, and are rolled back if they are not secured.
        Raises EmbeddedOnlyError if a RocketMQ broker has their topics, InvalidMessageError if they are too large for
        one request.
        """
        topics = dict.fromkeys(message.topic for message in messages)
        routes = {topic: await caller.write_route(topic) for topic in topics}
        asked = list(zip((message.topic for message in messages), numbers, strict=True))
        chosen = {(topic, number): self.queue(routes[topic], number) for topic, number in dict.fromkeys(asked)}
        queues = [chosen[one] for one in asked]
        if len({queue.broker for queue in queues}) > 1:
            raise _several_messages(len(messages))
        names = [unique_id() for _ in messages]
        body = batch_body(list(messages), names, [queue.queue_id for queue in queues])
        return await self.prepare_encoded([*topics], numbers[0], names[0], len(messages), body, group, caller)

    async def prepare_encoded(
        self, topics: Sequence[str], number: int, name: str, count: int, body: bytes, group: str, caller: Caller
    ) -> RemoteSent:
        """Stores the half messages of one transaction, as `prepare_many`, from the body of the request.

        `topics` are those of all its messages, the first one's first; `number` and `name` are the queue and the unique
        id of the first one.
        """
        if len(body) > _BODY_MAX:
            raise InvalidMessageError(
                f"the {count} messages of a transaction have {len(body)} bytes, but a request to a server has at most "
                f"{_BODY_MAX}\nhint: smaller messages, txstore.open, or several transactions"
            )
        routes = {topic: await caller.write_route(topic) for topic in topics}
        with self._as_running(name):
            try:
                answer, queue = await self._send(
                    caller,
                    topics[0],
                    number,
                    group,
                    body,
                    code=RequestCode.TXSTORE_PREPARE,
                    sys_flag=_PREPARED,
                    again=self._client.is_store,
                )
            except BrokerRefusedError as error:
                if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    raise _several_messages(count) from error
                raise
            sent = self._sent(answer, topics[0], queue, name, transaction_id=name)
        for topic, route in routes.items():
            if route.is_template and topic != sent.topic:
                await caller.topic_created(topic)
        self._remember(sent, group)
        await self._must_be_secured(sent, answer, group, caller)
        return sent

    async def _must_be_secured(self, sent: RemoteSent, answer: RemotingCommand, group: str, caller: Caller) -> None:
        """Rolls back a half message that the broker stored without the copy or the sync that it promises.

        Raises BrokerRefusedError then, so that no local transaction runs. If the rollback fails, too, a check of the
        transaction finds no trace of it.
        """
        if sent.send_status is SendStatus.SEND_OK:
            return
        done = "is rolled back"
        try:
            await self.end(sent, LocalTransactionState.ROLLBACK, group, caller)
        except TxStoreError as error:
            done = f"a check rolls it back, because its rollback failed: {str(error).partition(chr(10))[0]}"
        finally:
            # Also if no connection was open for the rollback: otherwise no check would ever be answered.
            self.local_transaction_ended(sent)
        raise BrokerRefusedError(
            f"the half message is stored, but not secured ({sent.send_status.value}), and {done}\n"
            "hint: its local transaction did not run, send it again later",
            code=answer.code,
        )

    @contextmanager
    def _as_running(self, transaction_id: str) -> Iterator[None]:
        """Takes a transaction as running before its half messages are sent, as a check may come with the response."""
        with self._lock:
            is_new = transaction_id not in self._running
            self._running.add(transaction_id)
        try:
            yield
        except BaseException:
            with self._lock:
                if is_new:
                    self._running.discard(transaction_id)
            raise

    async def _send(
        self,
        caller: Caller,
        topic: str,
        number: int,
        group: str,
        body: bytes,
        *,
        again: bool,
        code: RequestCode = RequestCode.SEND_MESSAGE_V2,
        properties: str = "",
        flag: int = 0,
        sys_flag: int = 0,
    ) -> tuple[RemotingCommand, Queue]:
        until = time.monotonic() + self._options.seconds("send_msg_timeout")
        back_off = self._options.seconds("reconnect_back_off")
        tries_left = self._options.retry_times_when_send_failed
        born_ms = str(_now_ms())
        is_batch = "false" if code == RequestCode.SEND_MESSAGE_V2 else "true"
        in_doubt = False
        while True:
            route = await caller.write_route(topic)
            queue = self.queue(route, number)
            fields = send_fields(group, topic, queue, sys_flag, born_ms, flag, properties)
            fields |= {"d": str(self._options.default_topic_queue_nums), "m": is_batch}
            fields |= {"once": "true"} if in_doubt and self._client.is_store else {}
            left = max(0.001, until - time.monotonic())
            failed: TxStoreError
            try:
                connection = await caller.connection(queue.broker)
            except BrokerUnreachableError as error:
                failed, may_try = error, True
            else:
                try:
                    answer = await caller.call(
                        connection, code, fields, body, timeout=left, is_half=sys_flag == _PREPARED
                    )
                except (BrokerUnreachableError, BrokerTimeoutError) as error:
                    failed, may_try = error, again
                    in_doubt |= error.in_doubt
                else:
                    if answer.code in _STATUS:
                        if route.is_template:
                            await caller.topic_created(topic)
                        return answer, queue
                    failed = refusal(answer, f"a message for topic {topic}", f"broker {queue.broker}")
                    may_try = answer.code in _AGAIN
                    self._client.note_refusal(answer.code)
            if not may_try or tries_left <= 0 or time.monotonic() + back_off >= until:
                raise _doubtful(failed, in_doubt)
            tries_left -= 1
            await caller.sleep(back_off)
            back_off *= 2

    def queue(self, route: Route, number: int) -> Queue:
        """Returns the chosen queue, or a queue of another broker if the route no longer has it."""
        queue = self._client.numbers.queue(number)
        if queue in route.write or not route.write:
            return queue
        others = [other for other in route.write if other.broker != queue.broker]
        return others[number % len(others)] if others else queue

    def _sent(
        self, answer: RemotingCommand, topic: str, queue: Queue, name: str, transaction_id: str | None = None
    ) -> RemoteSent:
        facts = answer.ext_fields
        try:
            offset_id = facts["msgId"]
            queue_id, queue_offset = int(facts["queueId"]), int(facts["queueOffset"])
            physical_offset = _physical_offset(offset_id.partition(",")[0])
        except (KeyError, ValueError) as error:
            raise ProtocolError(f"malformed response to a send from broker {queue.broker}: {error!r}") from error
        return RemoteSent(
            message_id=name,
            offset_message_id=offset_id,
            topic=topic,
            queue_id=self._client.numbers.number(Queue(queue.broker, queue_id)),
            queue_offset=queue_offset,
            physical_offset=physical_offset,
            transaction_id=transaction_id,
            send_status=_STATUS[ResponseCode(answer.code)],
            broker=queue.broker,
            recall_handle=facts.get("recallHandle"),
        )

    async def recall(self, handle: str, caller: Caller) -> str:
        """Ends the wait of a message for its time, so that it is never delivered. Returns its unique id.

        Raises InvalidMessageError for text that is not a recall handle, MessageNotFoundError if no such message waits,
        BrokerRefusedError, and BrokerTimeoutError or BrokerUnreachableError if no response arrives.
        """
        topic, broker = recall_names(handle)
        route = await caller.write_route(topic)
        # The message may have been sent within the process that now has a server.
        broker = broker if broker in route.brokers else next(iter(route.brokers), broker)
        connection = await caller.connection(broker)
        # Not sent again: a second one finds no message.
        answer = await caller.call(
            connection,
            RequestCode.RECALL_MESSAGE,
            {"producerGroup": _RECALL_GROUP, "topic": topic, "recallHandle": handle},
            b"",
            timeout=self._options.seconds("send_msg_timeout"),
        )
        if answer.code == ResponseCode.ILLEGAL_OPERATION:
            raise MessageNotFoundError(answer.remark or "no such message waits")
        if answer.code != ResponseCode.SUCCESS:
            raise refusal(answer, f"a recall for topic {topic}", f"broker {broker}")
        return answer.ext_fields.get("msgId", "")

    # Ends

    async def end(
        self, transaction: str | SentMessage, state: LocalTransactionState, group: str | None, caller: Caller
    ) -> RemoteEnd:
        """Commits or rolls back a transaction that this client began. Repeating an end returns `already`.

        Raises TransactionNotFoundError, AlreadyEndedError, WrongGroupError, InvalidOptionError, and BrokerTimeoutError
        or BrokerUnreachableError if no response arrives: the end is then in doubt, is not sent again, and a check
        settles it.
        """
        if state not in _OUTCOMES:
            raise InvalidOptionError(
                f"state must be LocalTransactionState.COMMIT or ROLLBACK, got {state}", option="state"
            )
        begun = self._find(transaction)
        name = begun.sent.message_id
        if group is not None and group != begun.group:
            raise WrongGroupError(f"transaction {name} belongs to producer group {begun.group}, not to {group}")
        if begun.in_doubt is not None:
            raise begun.in_doubt
        earlier = begun.state
        if earlier is _UNKNOWN:
            connection = await caller.connection(begun.sent.broker)
            with self._lock:
                earlier = begun.state
                if earlier is _UNKNOWN:
                    begun.state = state
        if earlier is not _UNKNOWN:
            allow_end_again(name, _OUTCOMES[earlier], _OUTCOMES[state])
            return RemoteEnd(_OUTCOMES[state], already=True)
        fields = end_fields(begun.sent, begun.group, state)
        try:
            answer = await self._send_end(caller, connection, begun.sent.broker, fields)
        except (BrokerTimeoutError, BrokerUnreachableError) as error:
            begun.in_doubt = error
            raise
        except (asyncio.CancelledError, KeyboardInterrupt):
            begun.in_doubt = BrokerTimeoutError(f"the end of transaction {name} was cancelled; a check settles it")
            raise
        finally:
            # Not before, because a check that crosses the end needs no answer.
            self.local_transaction_ended(begun.sent)
        if answer.code != ResponseCode.SUCCESS:
            self._client.note_refusal(answer.code)
            told = _outcome_of(answer)
            # From now on, the same end succeeds and the other one is an error, without a request to the broker.
            begun.state = next((end for end, outcome in _OUTCOMES.items() if outcome is told), _UNKNOWN)
            raise _refused_end(answer, name, begun.sent.broker)
        self.note_settled(name, connection)
        return RemoteEnd(_OUTCOMES[state], already=False)

    async def _send_end(
        self, caller: Caller, connection: Connection, broker: str, fields: dict[str, str]
    ) -> RemotingCommand:
        """Sends an end. The holder of a store answers a repeated end with the outcome, so it is asked again."""
        left = self._options.seconds("end_timeout")
        until = time.monotonic() + left
        while True:
            try:
                return await caller.call(connection, RequestCode.END_TRANSACTION, fields, timeout=left)
            except BrokerUnreachableError:
                left = until - time.monotonic()
                if not self._client.is_store or left <= 0:
                    raise
            connection = await caller.connection(broker)

    async def _tell_running(self, connection: Connection) -> None:
        """Tells a new holder of the store which local transactions still run here, so that their checks come here."""
        with self._lock:
            running = [begun for name in self._running if (begun := self._begun.get(name)) is not None]
        for begun in running:
            if begun.state is _UNKNOWN:
                fields = end_fields(begun.sent, begun.group, _UNKNOWN) | {"running": "true"}
                connection.tell(RequestCode.END_TRANSACTION, fields)

    def note_settled(self, transaction_id: str, connection: Connection) -> None:
        """Records that the broker confirmed the transaction's end over this connection."""
        with self._lock:
            self._settled[transaction_id] = connection
            while len(self._settled) > _REMEMBERED:
                self._settled.popitem(last=False)

    def is_settled(self, transaction_id: str, connection: Connection) -> bool:
        """Returns whether the broker confirmed the end over this same connection: it has lost nothing since then."""
        with self._lock:
            return self._settled.get(transaction_id) is connection

    def is_copy(self, transaction_id: str, half_queue_offset: int) -> bool:
        """Returns whether a half message is a copy that the broker put back, not the one that this client stored."""
        with self._lock:
            begun = self._begun.get(transaction_id)
            return begun is None or begun.sent.queue_offset != half_queue_offset

    def local_transaction_ended(self, half: Half, /) -> None:
        """Lets the producer's checker answer checks of this transaction from now on."""
        with self._lock:
            self._running.discard(transaction_id_of(half))

    def has_begun(self, transaction_id: str) -> bool:
        """Returns whether this client began the transaction, and still knows it."""
        with self._lock:
            return transaction_id in self._begun

    def is_running(self, transaction_id: str | None) -> bool:
        """Returns whether the local transaction still runs in this process."""
        with self._lock:
            return transaction_id in self._running

    def _remember(self, sent: RemoteSent, group: str) -> None:
        name = transaction_id_of(sent)
        with self._lock:
            self._begun[name] = _Begun(sent, group)
            self._begun.move_to_end(name)
            self._running.add(name)
            while len(self._begun) > _REMEMBERED:
                forgotten, _ = self._begun.popitem(last=False)
                self._running.discard(forgotten)

    def _find(self, transaction: str | SentMessage) -> _Begun:
        name = transaction if isinstance(transaction, str) else transaction_id_of(transaction)
        with self._lock:
            begun = self._begun.get(name)
        if begun is None:
            raise _not_begun(name)
        return begun


def end_fields(
    half: EndedHalf, group: str, state: LocalTransactionState, *, from_check: bool = False
) -> dict[str, str]:
    """Returns the fields of END_TRANSACTION."""
    name = half.transaction_id or half.message_id
    return {
        "topic": half.topic,
        "producerGroup": group,
        "tranStateTableOffset": str(half.queue_offset),
        "commitLogOffset": str(half.physical_offset),
        "commitOrRollback": str(ENDS[state]),
        "fromTransactionCheck": "true" if from_check else "false",
        "msgId": name,
        "transactionId": name,
    }


def is_stored(answer: RemotingCommand) -> bool:
    """Returns whether a send was answered with a status that says that the message is stored."""
    return answer.code in _STATUS


def send_fields(
    group: str, topic: str, queue: Queue, sys_flag: int, born_ms: str, flag: int, properties: str
) -> dict[str, str]:
    """Returns the fields of SEND_MESSAGE_V2, whose names RocketMQ shortens to letters."""
    return {
        "a": group,
        "b": topic,
        "c": TEMPLATE_TOPIC,
        "e": str(queue.queue_id),
        "f": str(sys_flag),
        "g": born_ms,
        "h": str(flag),
        "i": properties,
        "j": "0",
        "k": "false",
        "n": queue.broker,
    }


def _must_be_one_batch(messages: Sequence[Message], numbers: Sequence[int]) -> None:
    topics = sorted({message.topic for message in messages})
    if len(topics) > 1 or len(set(numbers)) > 1:
        raise InvalidMessageError(
            f"a batch for a remote broker must go to one queue, but this one goes to {len(set(numbers))} queues of "
            f"{', '.join(topics)}\nhint: send one batch per queue, or pass queue_id="
        )
    if any(message.delay_level or message.deliver_at for message in messages):
        raise InvalidMessageError(
            "a batch for a remote broker cannot contain delayed messages\nhint: send them one by one"
        )


def _several_messages(count: int) -> EmbeddedOnlyError:
    """Returns the error for a transaction of several messages at a broker that takes one."""
    return EmbeddedOnlyError(
        f"a transaction of {count} messages needs txstore.open or `txstore serve`: a RocketMQ broker takes one\n"
        "hint: broker.producer(group, database=database).send_batch(messages, session=session) publishes any number in "
        "one transaction of your database"
    )


def _physical_offset(offset_message_id: str) -> int:
    return int(offset_message_id[-16:], 16)


def _doubtful(failed: TxStoreError, in_doubt: bool) -> TxStoreError:
    """Returns the error of the last attempt. An earlier one may have arrived, even if this one did not."""
    if in_doubt and isinstance(failed, BrokerUnreachableError):
        failed.in_doubt = True
    return failed


def _refused_end(answer: RemotingCommand, name: str, broker: str) -> TxStoreError:
    """Returns the exception for a refused end.

    `txstore serve` reports how the transaction ended, or that it does not exist. RocketMQ's broker reports neither.
    """
    outcome = _outcome_of(answer)
    if answer.code == ResponseCode.TRANSACTION_FAILED and outcome is not None:
        return AlreadyEndedError(f"transaction {name} has already ended: {outcome}", outcome=outcome)
    if answer.code == ResponseCode.QUERY_NOT_FOUND:
        return TransactionNotFoundError(f"broker {broker}: {answer.remark}")
    return refusal(answer, f"the end of transaction {name}", f"broker {broker}")


def _outcome_of(answer: RemotingCommand) -> TransactionState | None:
    """Returns how the transaction ended, if the answer tells it by a name that this release knows."""
    name = answer.ext_fields.get("outcome")
    return next((state for state in TransactionState if state == name), None)


def _not_begun(what: str) -> TransactionNotFoundError:
    return TransactionNotFoundError(
        f"transaction {what} was not begun by this connection\n"
        "hint: a remote broker knows transactions by their offsets only: end it where it was begun, or by a check"
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
