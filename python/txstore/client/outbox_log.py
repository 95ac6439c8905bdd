"""Outbox log: the log of a remote broker, as the forwarder of an outbox uses it.

In:     rows of an outbox.
Out:    messages in the broker's log.
Always: messages of one message group are sent one after another, others concurrently. A txstore server stores only
        those that its log does not have (the field `once`), and answers when they are synced (`durable`), so two
        processes may send one row. To RocketMQ brokers a message is sent as any other, and their answer is believed.
Not here: which rows are committed (`txstore.database.outbox`).
"""

import asyncio
import hashlib
import zlib
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, TypeVar

from txstore._native import OutboxRow, RequestCode, ResponseCode
from txstore.broker.outbox_log import destination_of
from txstore.client.client import Client
from txstore.client.route import parse_clusters
from txstore.client.sending import Sending, is_stored, send_fields
from txstore.errors import BrokerBusyError, BrokerTimeoutError, BrokerUnreachableError, TxStoreError
from txstore.producer.outbox import Fate, Outcome
from txstore.remoting.refusals import refusal

__all__ = ["RemoteLog"]

_T = TypeVar("_T")
_IN_FLIGHT = 64
_TAKE_OVER_SECONDS = 10.0  # Two processes may send one row, so this only avoids useless requests.
_TAKE_OVER_ROCKETMQ_SECONDS = 60.0  # RocketMQ would store the message twice.
_AWAY = (BrokerUnreachableError, BrokerTimeoutError, BrokerBusyError)


class Session(Protocol):
    """What a client has in one process: `client.broker.Session`."""

    @property
    def client(self) -> Client: ...
    @property
    def sending(self) -> Sending: ...


class Run(Protocol):
    """Runs a coroutine of the current session on its loop, and waits for the result."""

    def __call__(self, work: Callable[[Session], Coroutine[Any, Any, _T]], /) -> _T: ...


@dataclass(frozen=True, slots=True)
class _Other:
    """The other side of a connection."""

    destination: int
    is_txstore: bool


class RemoteLog:
    """The log of a remote broker. See `OutboxLog`."""

    is_remote = True

    def __init__(self, run: Run, address: str, remembered: Callable[[str], str | None]) -> None:
        """Asks which log it is. If it is away, believes what is remembered, until it answers.

        Raises BrokerUnreachableError, BrokerTimeoutError, BrokerRefusedError.
        """
        self._run = run
        self._address = address
        name = _memory_name(address)
        self._is_verified = True
        try:
            other = run(_identify)
        except _AWAY:
            found = remembered(name)
            if found is None:
                raise
            destination, kind = found.split()
            other = _Other(int(destination), is_txstore=kind == "txstore")
            self._is_verified = False
        self._other = other
        kind = "txstore" if other.is_txstore else "rocketmq"
        self.remembered_as: tuple[str, str] | None = name, f"{other.destination} {kind}"
        self.destination = other.destination
        self.appends_once: bool = other.is_txstore
        self.take_over_seconds = _TAKE_OVER_SECONDS if other.is_txstore else _TAKE_OVER_ROCKETMQ_SECONDS

    def append(self, row: OutboxRow, queue_id: int) -> NoReturn:
        raise NotImplementedError("a remote log is not written while the caller commits")

    def append_many(self, rows: Sequence[OutboxRow], queue_ids: Sequence[int], *, once: bool) -> Sequence[Outcome]:
        """Sends the messages. All are sent once to a txstore server, whatever `once` is: the log has other writers."""
        if (wrong := self._what_is_wrong()) is not None:
            return [wrong] * len(rows)
        return self._run(lambda session: _Step(session, is_txstore=self.appends_once).send(rows, queue_ids))

    def _what_is_wrong(self) -> TxStoreError | None:
        """Compares the log with the one that was remembered, once."""
        if self._is_verified:
            return None
        try:
            found = self._run(_identify)
        except TxStoreError as error:
            return error
        if found != self._other:
            return TxStoreError(
                f"the broker at {self._address} has another log than the one for which these messages were written\n"
                "hint: start the earlier broker again, or restart this program, whose next messages are for the new one"
            )
        self._is_verified = True
        return None

    def appended_end(self) -> int:
        return 0  # What is acknowledged is durable.

    def durable_end(self) -> int:
        return 0

    def make_durable(self) -> None:
        pass


class _Step:
    """Sends some rows. Ends early if the broker is away."""

    def __init__(self, session: Session, *, is_txstore: bool) -> None:
        self._client = session.client
        self._sending = session.sending
        self._is_txstore = is_txstore
        self._limit = asyncio.Semaphore(_IN_FLIGHT)
        self._away: TxStoreError | None = None

    async def send(self, rows: Sequence[OutboxRow], queue_ids: Sequence[int]) -> list[Outcome]:
        chains: dict[str | int, list[int]] = {}
        for index, row in enumerate(rows):
            chains.setdefault(index if row.message_group is None else row.message_group, []).append(index)
        done: dict[int, Outcome] = {}

        async def send_chain(indexes: list[int]) -> None:
            held: TxStoreError | None = None
            for index in indexes:
                if held is None:
                    outcome = await self._send(rows[index], queue_ids[index])
                    if outcome != "appended":
                        text = "an earlier message of its message group is not in the log"
                        held = outcome if isinstance(outcome, _AWAY) else TxStoreError(text)
                    done[index] = outcome
                else:
                    done[index] = held

        async with asyncio.TaskGroup() as tasks:
            for indexes in chains.values():
                tasks.create_task(send_chain(indexes))
        return [done[index] for index in range(len(rows))]

    async def _send(self, row: OutboxRow, queue_id: int) -> Outcome:
        async with self._limit:
            if self._away is not None:
                return self._away
            try:
                return await self._sent(row, queue_id)
            except _AWAY as error:
                self._away = error
                return error
            except TxStoreError as error:
                return error

    async def _sent(self, row: OutboxRow, queue_id: int) -> Fate:
        client, options = self._client, self._client.options
        route = await client.write_route(row.topic)
        queue = self._sending.queue(route, queue_id)
        born_ms = str(round(row.born_timestamp.timestamp() * 1000))
        fields = send_fields(row.producer_group, row.topic, queue, 0, born_ms, row.flag, row.properties_text)
        fields |= {"d": str(options.default_topic_queue_nums), "m": "false"}
        fields |= {"once": "true", "durable": "true"} if self._is_txstore else {}
        connection = await client.connection(queue.broker)
        timeout = options.seconds("send_msg_timeout")
        answer = await connection.call(RequestCode.SEND_MESSAGE_V2, fields, row.body, timeout=timeout)
        # Without its copies, a row that is sent must stay. A txstore server stores it once, however often it is sent.
        if answer.code == ResponseCode.SUCCESS or (is_stored(answer) and not self._is_txstore):
            if route.is_template:
                await client.topic_created(row.topic)
            return "appended"
        if self._is_txstore and answer.code == ResponseCode.QUERY_NOT_FOUND:
            return "in_doubt"
        client.refresh_routes_soon()
        raise refusal(answer, f"message {row.message_id} for topic {row.topic}", f"broker {queue.broker}")


async def _identify(session: Session) -> _Other:
    """Asks which log it is: that of one txstore server, or of a cluster."""
    client = session.client
    if not client.brokers():
        await client.find_brokers()
    brokers = client.brokers()
    if len(brokers) == 1:
        answer = await client.ask(brokers[0], RequestCode.GET_BROKER_CLUSTER_INFO, {})
        store_id = answer.ext_fields.get("storeId")
        if answer.code == ResponseCode.SUCCESS and store_id is not None:
            return _Other(destination_of(store_id), is_txstore=True)
    answer = await client.ask_name_servers(RequestCode.GET_BROKER_CLUSTER_INFO, {})
    if answer.code != ResponseCode.SUCCESS:
        raise refusal(answer, "the name of the cluster", client.address)
    names = ",".join(parse_clusters(answer.body))
    return _Other(zlib.crc32(f"cluster {names}".encode()) >> 1, is_txstore=False)


def _memory_name(address: str) -> str:
    """Returns the name under which a database remembers the log at an address. It has 255 characters at most."""
    return f"txstore.log.{address if len(address) <= 200 else hashlib.sha256(address.encode()).hexdigest()}"
