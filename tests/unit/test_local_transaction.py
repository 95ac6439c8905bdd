"""Guards that the blocking and the asyncio producer treat a local transaction alike: what they send, log and return."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pytest

import txstore
import txstore.aio
from tests.unit.conftest import OpenStore
from tests.waiting import eventually
from txstore import LocalTransactionState, Message, TransactionSendResult
from txstore.message import TransactionMessage

COMMIT, UNKNOWN = LocalTransactionState.COMMIT, LocalTransactionState.UNKNOWN

Work: TypeAlias = Callable[[Any, Any], LocalTransactionState]
Send: TypeAlias = Callable[[str, Message, Work], TransactionSendResult]
"""Sends a message in a transaction over a connection of its own."""


@pytest.fixture
def served(open_store: OpenStore) -> Iterator[str]:
    broker = open_store(transaction_timeout=0.05, transaction_check_interval=0.1, transaction_check_max=10_000)
    with txstore.serve(broker, listen="127.0.0.1:0", name_server="127.0.0.1:0") as server:
        assert server.name_server is not None
        yield server.name_server


def blocking(address: str, message: Message, work: Work) -> TransactionSendResult:
    with txstore.connect(address) as broker, broker.transaction_producer("g", check_listener=unknown) as producer:
        return producer.send_in_transaction(message, executer=work)


def on_a_loop(address: str, message: Message, work: Work) -> TransactionSendResult:
    async def send() -> TransactionSendResult:
        async with (
            txstore.aio.connect(address) as broker,
            broker.transaction_producer("g", check_listener=unknown) as producer,
        ):
            return await producer.send_in_transaction(message, executer=work)

    return asyncio.run(send())


def unknown(message: object) -> LocalTransactionState:
    return UNKNOWN


both = pytest.mark.parametrize("send", [blocking, on_a_loop])


@both
def test_delay_level_is_cleared_with_a_warning(send: Send, served: str) -> None:
    with pytest.warns(UserWarning, match="delay level is cleared"):
        result = send(served, Message("t", b"x", delay_level=3), lambda message, arg: COMMIT)
    assert (result.local_transaction_state, result.message.delay_level) == (COMMIT, 0)


@both
def test_exception_of_a_local_transaction_is_logged_with_its_traceback(
    send: Send, served: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(message: object, arg: object) -> LocalTransactionState:
        raise RuntimeError("no database")

    with caplog.at_level(logging.WARNING, "txstore.producer"):
        result = send(served, Message("t", b"x"), fails)
    assert (result.local_transaction_state, result.error) == (UNKNOWN, "RuntimeError: no database")
    (record,) = [record for record in caplog.records if record.name == "txstore.producer"]
    assert record.exc_info is not None
    assert record.exc_info[1] is result.exception


@both
def test_answer_that_is_not_a_state_is_an_error(send: Send, served: str, caplog: pytest.LogCaptureFixture) -> None:
    result = send(served, Message("t", b"x"), lambda message, arg: True)  # type: ignore[arg-type, return-value]
    assert result.local_transaction_state is UNKNOWN
    assert result.error is not None
    assert "returned bool" in result.error
    assert result.error in caplog.text


class Asked:
    """Collects the ids of the transactions that are checked."""

    def __init__(self) -> None:
        self.ids: set[str | None] = set()

    def __call__(self, message: TransactionMessage) -> LocalTransactionState:
        self.ids.add(message.transaction_id)
        return UNKNOWN


def close_blocking(address: str, asked: Asked) -> None:
    with txstore.connect(address) as broker:
        broker.transaction_producer("g", check_listener=asked)
        producer = broker.transaction_producer("g", check_listener=unknown)
        with producer.transaction(Message("t", b"x")) as tx:
            producer.close()
            eventually(lambda: tx.transaction_id in asked.ids)


def close_on_a_loop(address: str, asked: Asked) -> None:
    async def story() -> None:
        async with txstore.aio.connect(address) as broker:
            broker.transaction_producer("g", check_listener=asked)
            producer = broker.transaction_producer("g", check_listener=unknown)
            async with producer.transaction(Message("t", b"x")) as tx:
                await producer.close()
                await asyncio.to_thread(eventually, lambda: tx.transaction_id in asked.ids)

    asyncio.run(story())


@pytest.mark.parametrize("close", [close_blocking, close_on_a_loop])
def test_another_producer_is_asked_after_one_closed(close: Callable[[str, Asked], None], served: str) -> None:
    close(served, Asked())
