"""Fixtures for tests of the whole package: a store of their own, small and with short times; commands of the shell."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

import txstore
from tests.frames import Wire
from tests.grpc_wire import GrpcWire
from txstore import EmbeddedBroker, LocalTransactionState, Server, TransactionListener, TransactionMessage

SMALL: dict[str, Any] = {
    "mapped_file_size_commit_log": 1 << 20,
    "max_message_size": 1 << 16,
    "max_hash_slot_num": 1000,
    "max_index_num": 4000,
}


Run = Callable[..., tuple[int, str, str]]
"""A command by its arguments: exit code, what it wrote to stdout, what to stderr."""


class OpenStore(Protocol):
    """Opens the test's store; stores that are still open are closed at the end."""

    def __call__(self, **options: Any) -> EmbeddedBroker: ...


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    from txstore.cli.main import main

    def call(*arguments: object) -> tuple[int, str, str]:
        code = main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return code, out, err

    return call


def facts(run: Run, *arguments: object) -> Any:
    """The output of a command as one JSON value."""
    code, out, err = run(*arguments, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[OpenStore]:
    brokers: list[EmbeddedBroker] = []

    def opened(**options: Any) -> EmbeddedBroker:
        broker: EmbeddedBroker = txstore.open(tmp_path / "store", **(SMALL | options))
        brokers.append(broker)
        return broker

    yield opened
    for broker in reversed(brokers):
        broker.close()


@pytest.fixture
def broker(open_store: OpenStore) -> EmbeddedBroker:
    """A store whose checks run only when a test triggers them."""
    return open_store(transaction_check_interval=3600)


class Scripted(TransactionListener):
    """A listener that returns the given answers and records what it was asked."""

    def __init__(
        self,
        execute: LocalTransactionState = LocalTransactionState.UNKNOWN,
        check: LocalTransactionState = LocalTransactionState.UNKNOWN,
    ) -> None:
        self.execute = execute
        self.check = check
        self.executed: list[tuple[TransactionMessage, Any]] = []
        self.checked: list[str | None] = []

    def execute_local_transaction(self, message: TransactionMessage, arg: Any) -> LocalTransactionState:
        self.executed.append((message, arg))
        return self.execute

    def check_local_transaction(self, message: TransactionMessage) -> LocalTransactionState:
        self.checked.append(message.transaction_id)
        return self.check


@pytest.fixture
def scripted() -> type[Scripted]:
    return Scripted


def bodies(broker: EmbeddedBroker, topic: str) -> list[bytes]:
    """All visible bodies of a topic, queue by queue."""
    found: list[bytes] = []
    for _, queue_id, first, _ in broker.queues(topic):
        offset = first
        while True:
            messages, offset = broker.read(topic, queue_id, offset)
            if not messages:
                break
            found.extend(message.body for message in messages)
    return found


@pytest.fixture
def read_all() -> Callable[[EmbeddedBroker, str], list[bytes]]:
    return bodies


@pytest.fixture
def wire(server: Server) -> Iterator[Wire]:
    """A connection to the module's own `server`."""
    assert server.address is not None
    with Wire(server.address) as wire:
        yield wire


@pytest.fixture(scope="module")
def grpc_wire(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GrpcWire]:
    """A process that sends requests of RocketMQ's gRPC protocol."""
    grpc_wire = GrpcWire(tmp_path_factory.mktemp("grpc_wire"))
    with grpc_wire.program:
        yield grpc_wire
