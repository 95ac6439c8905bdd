"""Guards the types of the API: mypy accepts the good calls of this file and refuses each of the bad ones.

Each snippet is the body of one function, which has a broker, a producer, a consumer and a message.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mypy import api

from txstore import BrokerConfig, BrokerOptions, ConnectConfig, ConnectOptions, ServeOptions, ServerConfig

ROOT = Path(__file__).resolve().parents[2]
HEAD = """
import re
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar, assert_type

import txstore
import txstore.aio
from txstore import *
from txstore.testing import FakeBroker
from txstore.testing.aio import FakeBroker as AioFakeBroker

class Listener(TransactionListener):
    def execute_local_transaction(self, message: TransactionMessage, arg: Any) -> LocalTransactionState:
        return LocalTransactionState.COMMIT
    def check_local_transaction(self, message: TransactionMessage) -> LocalTransactionState:
        return LocalTransactionState.COMMIT

class Duck:
    def execute_local_transaction(self, m: TransactionMessage, a: object) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN

class Async:
    async def check_local_transaction(self, message: TransactionMessage) -> LocalTransactionState:
        return LocalTransactionState.COMMIT

class NoListener:
    def run(self) -> None: ...

def check(message: TransactionMessage) -> LocalTransactionState:
    return LocalTransactionState.COMMIT

async def check_later(message: TransactionMessage) -> LocalTransactionState:
    return LocalTransactionState.COMMIT

def handle(message: ReceivedMessage) -> None: ...

@dataclass
class Order:
    id: int

T = TypeVar("T")

class Text:
    def __init__(self, encoding: str) -> None: ...
    def encode(self, value: object) -> bytes:
        return b""
    def decode(self, body: bytes, kind: type[T]) -> T:
        return kind()

def serve_orders(broker: Broker) -> None:
    with broker, broker.transaction_producer("g", Listener()) as producer, broker.consumer("g", "orders") as consumer:
        assert_type(producer, TransactionProducer)
        assert_type(consumer, Consumer)
"""
FUNCTION = """
async def snippet_{number}(
    broker: EmbeddedBroker, remote: RemoteBroker, loop: txstore.aio.Broker, producer: TransactionProducer,
    consumer: Consumer, message: Message, server: Server,
) -> None:
"""
GOOD = [
    'txstore.open("orders.store", flush_disk_type="SYNC_FLUSH", transaction_timeout=6)',
    'txstore.open(Path("orders.store"), transaction_timeout=timedelta(seconds=6), delete_when=None)',
    'txstore.open("orders.store", read_only=True, config=BrokerConfig(check_threads=8))',
    'options: BrokerOptions = {"check_threads": 8}; txstore.open("orders.store", **options)',
    'assert_type(txstore.open("orders.store"), EmbeddedBroker)',
    'assert_type(txstore.connect("127.0.0.1:9876", send_msg_timeout=1.5, tls=True), RemoteBroker)',
    'txstore.connect("127.0.0.1:9876", tls=ssl.create_default_context(), config=ConnectConfig(check_threads=2))',
    'options: ConnectOptions = {"access_key": "a", "secret_key": "b"}; txstore.connect("127.0.0.1:9876", **options)',
    'txstore.aio.connect("127.0.0.1:9876", pull_batch_size=8)',
    'async with txstore.aio.connect("127.0.0.1:9876") as there: assert_type(there, txstore.aio.RemoteBroker)',
    'async with txstore.aio.open(Path("orders.store"), flush_disk_type="SYNC_FLUSH") as here: '
    "assert_type(here, txstore.aio.EmbeddedBroker); assert_type(here.blocking, EmbeddedBroker)",
    'any_kind: txstore.aio.Broker = txstore.aio.open("orders.store")',
    'any_kind: txstore.aio.Broker = txstore.aio.connect("127.0.0.1:9876")',
    'assert_type((await loop.producer("g").send(message)).message_id, str)',
    'async with loop.transaction_producer("g").transaction(message) as tx: assert_type(tx.transaction_id, str)',
    'async for received in loop.consumer("g", "orders"): assert_type(received, ReceivedMessage)',
    'txstore.serve("orders.store", listen="127.0.0.1:0", name_server=None, flush_disk_type="SYNC_FLUSH")',
    'options: ServeOptions = {"io_threads": 1, "broker_name": "b"}; txstore.serve("orders.store", **options)',
    'broker.transaction_producer("g", Listener())',
    'broker.transaction_producer("g", Duck())',
    'broker.transaction_producer("g", check_listener=check)',
    'remote.transaction_producer("g", check_listener=lambda message: LocalTransactionState.COMMIT)',
    'loop.transaction_producer("g", Async())',
    'loop.transaction_producer("g", check_listener=check_later)',
    'FakeBroker().transaction_producer("g", Listener())',
    "producer.add_checker(check, topic='orders', tags='a || b')",
    "producer.send_in_transaction(message, executer=lambda message, arg: LocalTransactionState.COMMIT)",
    "assert_type(producer.send_in_transaction(message, 17), TransactionSendResult)",
    "with producer.transaction(message) as tx: assert_type(tx, Transaction)",
    "assert_type(producer.send(message).message_id, str)",
    'assert_type(broker.transactions(state="pending"), list[PendingTransaction])',
    "assert_type(broker.transactions(state=TransactionState.COMMITTED), list[TransactionRow])",
    "assert_type(consumer.poll(10, timeout=1.5), list[ReceivedMessage])",
    'assert_type(broker.end_transaction("17", LocalTransactionState.COMMIT).outcome, TransactionState)',
    'assert_type(remote.end_transaction("17", LocalTransactionState.COMMIT).outcome, TransactionState)',
    'assert_type((await loop.end_transaction("17", LocalTransactionState.COMMIT)).outcome, TransactionState)',
    'assert_type(FakeBroker().discard("17").outcome, TransactionState)',
    'FakeBroker(flush_disk_type="SYNC_FLUSH").crash_at("after_half", power_loss=True)',
    "assert_type(FakeBroker().reopen(), FakeBroker)",
    "async with AioFakeBroker() as fake: assert_type(await fake.run_checks(), int)",
    "assert_type(broker.transactions(None)[0].state, TransactionState)",
    'assert_type(AlreadyEndedError("17").outcome, TransactionState)',
    'if AlreadyEndedError("17").outcome == "committed": ...',
    "assert_type(consumer.poll()[0].store_timestamp, datetime)",
    "assert_type(consumer.poll()[0].born_timestamp, datetime)",
    'assert_type(broker.message("17").store_timestamp, datetime)',
    "assert_type(broker.transactions(None)[0].prepared_timestamp, datetime)",
    "assert_type(broker.transactions(None)[0].ended_timestamp, datetime | None)",
    'assert_type(broker.transaction("17").ended_timestamp, datetime | None)',
    "assert_type(broker.open_report.duration, timedelta)",
    'broker.consumer("g", ["orders", "payments"], tags="paid")',
    'remote.consumer("g", {"orders": "paid", "payments": None})',
    'FakeBroker().consumer("g", re.compile("orders-.*"))',
    'assert_type(loop.consumer("g", ("orders", "payments")).topics, tuple[str, ...])',
    "assert_type(consumer.queues, tuple[MessageQueue, ...])",
    "assert_type(consumer.poll()[0].ack(), None)",
    "consumer.poll()[0].nack(delay_level=3)",
    "consumer.run(handle, threads=4)",
    "for received in consumer: assert_type(received.body, bytes)",
    'broker.consumer("g", "orders", start=datetime.now(UTC))',
    "serve_orders(broker); serve_orders(remote); serve_orders(FakeBroker())",
    'assert_type(Message.of("orders", Order(17), tags="paid", serializer=JsonSerializer()), Message)',
    "assert_type(consumer.poll()[0].value(Order), Order)",
    "assert_type(message.value(list[Order]), list[Order])",
    'assert_type(message.value(Order, serializer=Text("utf-8")), Order)',
    'assert_type(broker.message("17").value(Order).id, int)',
    'assert_type(broker.dead_letters("g")[0].value(Order), Order)',
    "any_serializer: Serializer = JsonSerializer()",
    'assert_type(Message("orders", b"x", keys=["k"], properties={"a": "b"}).keys, tuple[str, ...])',
]
BAD = [
    'txstore.open("orders.store", flush_disk_typ="SYNC_FLUSH")',
    'txstore.open("orders.store", flush_disk_type="SYNC")',
    'txstore.open("orders.store", transaction_check_max="many")',
    "txstore.open(17)",
    'BrokerConfig(flush_disk_type="sync")',
    'options: BrokerOptions = {"check_thread": 8}',
    'txstore.connect("127.0.0.1:9876", send_msg_time_out=3)',
    'txstore.connect("127.0.0.1:9876", tls=17)',
    'txstore.aio.connect("127.0.0.1:9876", timeout=3)',
    'txstore.aio.open("orders.store", flush_disk_typ="SYNC_FLUSH")',
    'txstore.aio.open("orders.store", read_only=True)',
    'with txstore.aio.open("orders.store") as here: ...',
    'txstore.aio.open("orders.store").create_topic("orders")',
    'loop.producer("g").send(message).message_id',
    'txstore.serve("orders.store", listn="127.0.0.1:0")',
    'broker.transaction_producer("g", NoListener())',
    'broker.transaction_producer("g", Listener)',
    'broker.transaction_producer("g", Async())',
    'broker.transaction_producer("g", check_listener=lambda message: "yes")',
    'remote.transaction_producer("g", check_listener=check_later)',
    "producer.send_in_transaction(message, executer=42)",
    "producer.send_in_transaction(message, executer=lambda message, arg: None)",
    "producer.add_checker(NoListener())",
    'producer.send("orders")',
    'Message("orders", "a text")',
    'Message("orders", b"x", tag="a")',
    'broker.transactions(state="commited")',
    'if AlreadyEndedError("17").outcome is TransactionState.COMMITED: ...',
    'broker.end_transaction("17", TransactionState.COMMITTED)',
    "consumer.poll()[0].store_timestamp > 1_700_000_000_000",
    "broker.transactions(None)[0].ended_timestamp.isoformat()",
    'broker.consumer("g", "orders", start="first")',
    'broker.consumer("g", [17])',
    'broker.consumer("g", re.compile(b"orders"))',
    'broker.consumer("g", {"orders": 17})',
    "await consumer.poll()[0].ack()",
    "message.ack()",
    'consumer.poll()[0].nack("later")',
    "consumer.poll()[0].value(Order).number",
    "message.value(17)",
    "message.value(Order, serializer=17)",
    "message.value(Order, serializer=NoListener())",
    'Message.of("orders", Order(17), tag="paid")',
    "consumer.poll(max=10)",
    "consumer.run(17)",
    "serve_orders(loop)",
    "serve_orders(producer)",
]


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What mypy reports for each snippet."""
    file = tmp_path_factory.mktemp("typing") / "snippets.py"
    first_lines: list[int] = []
    text = HEAD
    for number, snippet in enumerate([*GOOD, *BAD]):
        text += FUNCTION.format(number=number)
        first_lines.append(text.count("\n") + 1)
        text += f"    {snippet}\n"
    file.write_text(text)
    config = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache")]
    out, err, status = api.run([*config, "--no-error-summary", "--hide-error-context", str(file)])
    assert (err, status) == ("", 1), out
    found: dict[str, list[str]] = {snippet: [] for snippet in (*GOOD, *BAD)}
    # From its cache mypy repeats the errors of an earlier run, with the folder of that run.
    for line, said in re.findall(rf"^.*/{file.name}:(\d+): error: (.*)$", out, flags=re.MULTILINE):
        assert int(line) in first_lines, f"the head of the snippets is wrong: {line}: {said}"
        found[[*GOOD, *BAD][first_lines.index(int(line))]].append(said)
    return found


@pytest.mark.parametrize("snippet", GOOD)
def test_correct_call_is_accepted(snippet: str, refused: dict[str, list[str]]) -> None:
    assert refused[snippet] == []


@pytest.mark.parametrize("snippet", BAD)
def test_wrong_call_is_refused(snippet: str, refused: dict[str, list[str]]) -> None:
    assert refused[snippet] != []


@pytest.mark.parametrize(
    ("options", "configs"),
    [
        (BrokerOptions, [BrokerConfig]),
        (ConnectOptions, [ConnectConfig]),
        (ServeOptions, [ServerConfig, BrokerConfig]),
    ],
)
def test_options_are_the_fields_that_describe_them(options: type, configs: list[type]) -> None:
    described = {name: kind for config in configs for name, kind in config.__annotations__.items()}
    assert options.__annotations__ == described
