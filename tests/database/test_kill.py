"""Guards database and message against SIGKILL between the two, again and again, on real databases.

A child runs blocks in several threads and is killed at a random moment; the store is opened again, its checks answer by
themselves, and then every order in the database has exactly one message, and no other has one. `TXSTORE_KILLS` sets how
many kills there are, as in tests/crash/test_kill.py.
"""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests.database.conftest import DJANGO_KINDS, SMALL, new_kind
from tests.database.test_races import compare
from tests.waiting import eventually
from txstore.database import Database

KILLS = int(os.environ.get("TXSTORE_KILLS", "8"))
ROOT = Path(__file__).resolve().parents[2]

CHILD = """
import asyncio, json, random, sys, threading, time, txstore
from pathlib import Path
from tests.database.conftest import Kind, entered
from txstore import Message
from txstore.database import Database
name, address, store, options, seed = sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4]), int(sys.argv[5])

async def pay(kind, producer, number, chance):
    async with kind.session() as session:
        async with entered(producer.transaction(Message("t", str(number).encode()), session=session)) as tx:
            if chance.random() < 0.3:
                time.sleep(chance.random() * 0.005)
            await kind.order(session, number, tx.transaction_id)
            if chance.random() < 0.1:
                raise KeyError(number)

def work(producer, part):
    kind, chance, number = Kind(name, address), random.Random(seed + part), 0
    while True:
        number += 1
        try:
            asyncio.run(pay(kind, producer, (seed * 8 + part) * 1_000_000 + number, chance))
            paid.set()
        except KeyError:
            pass

paid = threading.Event()
with txstore.open(store, **options) as broker:
    producer = broker.transaction_producer("order-service", database=Database(Kind(name, address).source))
    threads = [threading.Thread(target=work, args=(producer, part), daemon=True) for part in range(3)]
    for thread in threads:
        thread.start()
    # A busy machine may need longer than the parent waits before it kills.
    paid.wait()
    print("paid", flush=True)
    for thread in threads:
        thread.join()
"""


@pytest.mark.kill
@pytest.mark.parametrize(
    "name",
    [
        "sqlite3",
        pytest.param("sqlalchemy sqlite", marks=pytest.mark.matrix),
        "psycopg",
        "sqlalchemy postgres async",
        pytest.param("sqlalchemy mariadb", marks=pytest.mark.matrix),
        pytest.param("sqlalchemy mariadb asyncmy", marks=pytest.mark.matrix),
        *DJANGO_KINDS,
    ],
)
def test_killed_process_leaves_row_and_message_consistent(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    seed = random.randrange(1 << 20)
    print(f"seed {seed}")
    chance = random.Random(seed)
    with new_kind(name, tmp_path, request) as kind:
        database = Database(kind.address)
        database.create_table()
        left = 0
        for _ in range(max(1, KILLS // 4)):
            arguments = [name, kind.address, str(tmp_path / "store"), json.dumps(SMALL), str(chance.randrange(1 << 20))]
            with subprocess.Popen(
                [sys.executable, "-c", CHILD, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
            ) as child:
                assert child.stdout is not None
                assert child.stderr is not None
                assert child.stdout.readline() == b"paid\n", child.stderr.read().decode()
                time.sleep(chance.uniform(0, 0.6))
                child.kill()
            times: dict[str, Any] = {"transaction_timeout": 0, "transaction_check_interval": 0.05}
            with txstore.open(tmp_path / "store", **times, **SMALL) as broker:
                pending = broker.store.stat().pending_transactions
                left += pending
                broker.transaction_producer("order-service", database=database)
                eventually(lambda broker=broker: broker.store.stat().pending_transactions == 0, 60)  # type: ignore[misc]
                compare(kind, broker)
        print(f"left open by kills: {left}")
        assert kind.orders()
