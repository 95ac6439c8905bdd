"""Target: the store or the brokers that a write goes to.

In:     rows of a task; the record of a batch.
Out:    transactions that wait for their outcome; outcomes.
Always: a store's transaction has its messages in one request, all or none. Ending it again with the same outcome has no
        effect. RocketMQ's brokers get messages that are visible at once.
Not here: which transactions a batch has (`record.py`), what Spark calls (`writer.py`).
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple, TypeVar

import txstore
from txstore import LocalTransactionState, Message
from txstore._native import (
    RequestCode,
    ResponseCode,
    SinkBatch,
    SinkHalves,
    SinkQueues,
    SinkRows,
    decode_records,
    properties_text,
)
from txstore.broker.batch_records import BATCH_LABEL, RECORDS_TOPIC, SINK_GROUP, record_id
from txstore.client.broker import RemoteBroker, Session
from txstore.client.caller import Caller
from txstore.client.route import Queue
from txstore.client.sending import Sending, end_fields, send_fields
from txstore.errors import (
    BrokerBusyError,
    BrokerTimeoutError,
    BrokerUnreachableError,
    ProtocolError,
)
from txstore.message import SendStatus
from txstore.remoting.refusals import refusal
from txstore.spark.connection import connect_config
from txstore.spark.sink.options import WriteOptions

__all__ = ["Target", "Waiting"]

_AWAY = (BrokerUnreachableError, BrokerTimeoutError, BrokerBusyError)
_PATIENCE_SECONDS = 60.0
_PAUSE_SECONDS = 0.1
_PAUSE_SECONDS_MAX = 2.0
_IMMUNITY = "CHECK_IMMUNITY_TIME_IN_SECONDS"
_TEN_YEARS = str(10 * 365 * 86_400)  # No producer is asked: the record of the batch decides.

T = TypeVar("T")


class Waiting(NamedTuple):
    """A transaction that waits for its outcome."""

    broker: str
    topic: str
    message_id: str
    queue_offset: int
    physical_offset: int

    @property
    def transaction_id(self) -> str:
        """The id of the transaction, which is that of its first message."""
        return self.message_id


class Target:
    """An open store or connection. Used by one thread at a time, except the calls of `storing`.

    Close it, or use it in `with`.
    """

    def __init__(self, options: WriteOptions) -> None:
        """Opens the store, or connects. Raises BrokerUnreachableError, BrokerTimeoutError, and errors of opening."""
        config = connect_config(options.tls, options.access_key, options.secret_key)
        if options.path is not None:
            self._broker: RemoteBroker = txstore.open(options.path, shared=True)
        else:
            try:
                self._broker = RemoteBroker.connect(options.address, config)
            except (BrokerUnreachableError, BrokerTimeoutError) as error:
                text = f"option brokers: {options.address!r}: {error}"
                raise type(error)(text, address=error.address) from error
        self._turns: dict[str, itertools.count[int]] = {}
        self._numbers = self._broker._client.numbers
        self.is_transactional: bool = options.path is not None or self._run(_is_txstore)
        """Whether messages can wait for the outcome of their batch. RocketMQ's brokers have no such transactions."""

    def __enter__(self) -> Target:
        return self

    def __exit__(self, *_: object) -> None:
        self._broker.close()

    # Messages of tasks

    def storing(self, rows: SinkRows, start: int, end: int, label: str) -> Callable[[], Waiting | None]:
        """Encodes rows, and returns the call that stores them. Several threads may make such calls at a time.

        On txstore they are one transaction, whose first message bears the label; otherwise visible at once. Raises
        InvalidMessageError, which shows the row, for one that cannot be sent, and InvalidOptionError for its queue.
        """
        topics = rows.topics(start, end)
        turns = {topic: self._turn(topic) for topic in topics}
        if not self.is_transactional:
            every = {topic: self._queues(topic, turn, None) for topic, turn in turns.items()}
            return functools.partial(self._send, rows.batches(start, end, every))
        first = turns[topics[0]]
        # One broker stores a transaction.
        own = {topic: self._queues(topic, turn, first.broker) for topic, turn in turns.items()}
        labels = [(BATCH_LABEL, label), (_IMMUNITY, _TEN_YEARS)]
        halves = rows.halves(start, end, own, labels)
        return functools.partial(self._prepare, topics, self._numbers.number(first), end - start, halves)

    def _prepare(self, topics: Sequence[str], number: int, count: int, halves: SinkHalves) -> Waiting:
        name, body = halves.message_id, halves.body
        sent = self._broker._run_in_thread(
            lambda sending, caller: sending.prepare_encoded(topics, number, name, count, body, SINK_GROUP, caller)
        )
        return Waiting(sent.broker, sent.topic, sent.message_id, sent.queue_offset, sent.physical_offset)

    def _send(self, batches: Sequence[SinkBatch]) -> None:
        for batch in batches:
            status = self._broker._run_in_thread(functools.partial(_send_batch, batch=batch))
            if status is not SendStatus.SEND_OK:
                raise BrokerBusyError(f"a message is stored, but not secured: {status.value}", code=0)

    def _turn(self, topic: str) -> Queue:
        """Returns the queue of the topic that gets the rows that are stored next, unless they ask for one."""
        queues = self._broker.write_queues(topic)
        turn = next(self._turns.setdefault(topic, itertools.count()))
        return self._numbers.queue(queues[turn % len(queues)])

    def _queues(self, topic: str, turn: Queue, broker: str | None) -> SinkQueues:
        """Returns the topic's queues that accept messages, at one broker or at all."""
        found = [self._numbers.queue(number) for number in self._broker.write_queues(topic)]
        found = [queue for queue in found if broker in (None, queue.broker)]
        numbered = [(self._numbers.number(queue), queue.queue_id) for queue in found]
        return SinkQueues(numbered, found.index(turn) if turn in found else 0)

    # Outcomes

    def end(self, waiting: Sequence[Waiting], state: LocalTransactionState) -> None:
        """Ends transactions. Those that ended so before are left.

        Raises BrokerRefusedError for one that ended otherwise, and once `_PATIENCE_SECONDS` are over the errors of a
        broker that is away.
        """
        for one in waiting:
            fields = end_fields(_Half(*one), SINK_GROUP, state)
            self._patient(functools.partial(_end, one=one, fields=fields, state=state))

    def record(self, app: str, batch: int, body: bytes) -> bytes:
        """Stores the record of a batch, unless there is one, and returns the one that there is. It is durable then."""
        return self._patient(lambda session: _record(session, app, batch, body))

    def _run(self, work: Callable[[Session], Coroutine[Any, Any, T]]) -> T:
        return self._broker._run_with_session(work)

    def _patient(self, work: Callable[[Session], Coroutine[Any, Any, T]]) -> T:
        """Repeats work that may be repeated, while the broker is away or busy."""
        until = time.monotonic() + _PATIENCE_SECONDS
        pause = _PAUSE_SECONDS
        while True:
            try:
                return self._run(work)
            except _AWAY:
                if time.monotonic() + pause > until:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, _PAUSE_SECONDS_MAX)


class _Half(NamedTuple):
    """The half message of a transaction, as an end names it."""

    broker: str
    topic: str
    message_id: str
    queue_offset: int
    physical_offset: int
    transaction_id: str | None = None


async def _is_txstore(session: Session) -> bool:
    client = session.client
    if not client.brokers():
        await client.find_brokers()
    names = client.brokers()
    if not names:
        return False
    answer = await client.ask(names[0], RequestCode.GET_BROKER_CLUSTER_INFO, {})
    return answer.code == ResponseCode.SUCCESS and "storeId" in answer.ext_fields


async def _send_batch(sending: Sending, caller: Caller, batch: SinkBatch) -> SendStatus:
    return await sending.send_encoded(batch, SINK_GROUP, caller)


async def _end(session: Session, one: Waiting, fields: dict[str, str], state: LocalTransactionState) -> None:
    answer = await session.client.ask(one.broker, RequestCode.END_TRANSACTION, fields)
    if answer.code != ResponseCode.SUCCESS:
        raise refusal(answer, f"the {state.name.lower()} of transaction {one.message_id}", f"broker {one.broker}")


async def _record(session: Session, app: str, batch: int, body: bytes) -> bytes:
    client = session.client
    route = await client.write_route(RECORDS_TOPIC)
    if not route.write:
        raise BrokerUnreachableError(
            f"topic {RECORDS_TOPIC} has no queue that accepts messages", address=client.address
        )
    queue = route.write[0]
    name = record_id(app, batch)
    message = Message(RECORDS_TOPIC, body, keys=[app])
    born_ms = str(round(time.time() * 1000))
    fields = send_fields(SINK_GROUP, RECORDS_TOPIC, queue, 0, born_ms, 0, properties_text(message, name, []))
    fields |= {"d": "1", "m": "false", "once": "true", "durable": "true"}
    answer = await client.ask(queue.broker, RequestCode.SEND_MESSAGE_V2, fields, body)
    if answer.code != ResponseCode.SUCCESS:
        raise refusal(answer, f"the record of batch {batch} of {app}", f"broker {queue.broker}")
    if route.is_template:
        await client.topic_created(RECORDS_TOPIC)
    return await _read_back(session, queue.broker, answer.ext_fields, name)


async def _read_back(session: Session, broker: str, stored: dict[str, str], name: str) -> bytes:
    """Returns the body of the record that is stored where an answer says."""
    fields = {
        "consumerGroup": "TOOLS_CONSUMER",
        "topic": RECORDS_TOPIC,
        "queueId": stored["queueId"],
        "queueOffset": stored["queueOffset"],
        "maxMsgNums": "1",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }
    answer = await session.client.ask(broker, RequestCode.PULL_MESSAGE, fields)
    if answer.code != ResponseCode.SUCCESS:
        raise refusal(answer, f"the record {name}", f"broker {broker}")
    found = decode_records(answer.body)
    if len(found) != 1 or found[0].message_id != name:
        raise ProtocolError(f"broker {broker} has no record {name} at queue offset {stored['queueOffset']}")
    return found[0].body
