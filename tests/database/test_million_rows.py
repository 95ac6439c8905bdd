"""Guards the forwarder with a million rows that wait: its memory stays bounded, and its rate does not fall.

A process writes them while the broker is away, and is killed; `txstore forward` sends them to `txstore serve`.
TXSTORE_OUTBOX_ROWS sets their number.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import txstore
from tests.database.conftest import new_kind
from tests.ports import free_port
from tests.process import anonymous_bytes
from txstore import RemoteBroker
from txstore.database import Database

pytestmark = pytest.mark.torture

ROWS = int(os.environ.get("TXSTORE_OUTBOX_ROWS", "1000000"))
_BATCH = 1000
_MEMORY_BYTES_MAX = 64 << 20
_ENTRY = [sys.executable, "-c", "import sys; from txstore.cli.main import main; sys.exit(main())"]
_FILL = """
import sqlite3, sys
import psycopg, txstore
from txstore import Message
from txstore.database import Database
path, to, rows, batch = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
session = psycopg.connect(path) if path.startswith("postgresql") else sqlite3.connect(path)
with txstore.connect(to) as broker:
    producer = broker.producer("order-service", database=Database(path))
    print("open", flush=True)
    sys.stdin.readline()
    for first in range(0, rows, batch):
        messages = [Message("orders", b"%d" % number) for number in range(first, first + batch)]
        producer.send_batch(messages, session=session)
        session.commit()
    print("full", flush=True)
    sys.stdin.readline()
"""


@contextmanager
def running(*command: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def served(store: Path, address: str) -> Iterator[None]:
    with running(*_ENTRY, "serve", str(store), "--listen", address, "--name-server", "none") as server:
        says(server, address)
        yield


def says(process: subprocess.Popen[str], what: str) -> None:
    assert process.stdout is not None
    assert what in process.stdout.readline()


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    print(file=process.stdin, flush=True)


def count(broker: RemoteBroker) -> int:
    return sum(end for _, _, _, end in broker.queues("orders"))


@pytest.mark.kill
@pytest.mark.parametrize("name", ["sqlite3", "psycopg"])
def test_memory_is_bounded_and_the_rate_does_not_fall(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with new_kind(name, tmp_path, request) as kind:
        Database(kind.address).create_table()
        address = f"127.0.0.1:{free_port()}"
        with ExitStack() as opened:
            with served(tmp_path / "store", address):  # First, because the service connects at once.
                fill = [sys.executable, "-c", _FILL, kind.address, address, str(ROWS), str(_BATCH)]
                service = opened.enter_context(running(*fill))
                says(service, "open")
            tell(service)
            says(service, "full")
            service_bytes = anonymous_bytes(service.pid)
        with served(tmp_path / "store", address), txstore.connect(address) as broker:
            broker.create_topic("orders", 4)
            times, memory = [(time.monotonic(), 0)], [0]
            with running(*_ENTRY, "forward", kind.address, "--to", address, "--once") as forwarder:
                while forwarder.poll() is None:
                    times.append((time.monotonic(), count(broker)))
                    memory.append(anonymous_bytes(forwarder.pid))
                    time.sleep(0.1)
                assert forwarder.returncode == 0
            rates = rates_of_tenths(times)
            mebibytes = [
                round(number / (1 << 20)) for number in (service_bytes, memory[len(memory) // 10], max(memory))
            ]
            print(
                f"{name}: {ROWS} rows in {times[-1][0] - times[0][0]:.0f} s, each tenth at {rates} a second; memory of "
                f"the service {mebibytes[0]} MiB, of the forwarder {mebibytes[1]} MiB after a tenth, {mebibytes[2]} "
                "MiB at most"
            )
            assert rates[-1] > 0.5 * rates[0], rates
            assert max(memory) < _MEMORY_BYTES_MAX
            assert kind.rows("SELECT count(*) FROM txstore_outbox") == [(0,)]
            assert sorted(numbers(broker)) == list(range(ROWS))


def rates_of_tenths(times: list[tuple[float, int]]) -> list[int]:
    """How many messages a second arrived, in each tenth of them."""
    reached = [next(at for at, number in times if number >= ROWS * tenth // 10) for tenth in range(11)]
    return [round(ROWS / 10 / max(after - before, 0.001)) for before, after in itertools.pairwise(reached)]


def numbers(broker: RemoteBroker) -> Iterator[int]:
    for _, queue_id, offset, end in broker.queues("orders"):
        while offset < end:
            messages, offset = broker.read("orders", queue_id, offset, 1024)
            yield from (int(message.body) for message in messages)
