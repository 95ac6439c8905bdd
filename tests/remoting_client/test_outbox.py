"""Guards messages within the user's own transaction for a real RocketMQ broker, which is killed and started again.

Each committed row's message arrives, perhaps twice if the answer to its send was lost. No other one does.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import txstore
from tests.database.conftest import new_kind
from tests.database.outbox_worker import connected, work
from tests.database.server import Postgres, postgres_or_skip
from tests.remoting_client.brokers import RocketMQ
from tests.remoting_client.conftest import SOON
from tests.waiting import eventually
from txstore.database import Database

pytestmark = pytest.mark.peer

_TRANSACTIONS = 300


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    with postgres_or_skip() as server:
        yield server


@pytest.mark.kill
@pytest.mark.parametrize("name", ["sqlite3", "psycopg"])
def test_every_committed_message_reaches_a_broker_that_is_killed(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    chance = random.Random(1)
    with new_kind(name, tmp_path, request) as kind:
        Database(kind.address).create_table()
        seen: Counter[int] = Counter()
        options = {**SOON, "send_msg_timeout": 2, "heart_beat_broker_interval": 1}
        with RocketMQ(request) as rocketmq, txstore.connect(rocketmq.names, **options) as broker:
            producer = broker.producer("order-service", database=Database(kind.address))
            session = connected(kind.address)
            for number in range(_TRANSACTIONS):
                if number == _TRANSACTIONS // 3:
                    eventually(lambda: producer.outbox_status().rows < 50)
                    rocketmq.kill()
                if number == 2 * _TRANSACTIONS // 3:
                    assert producer.outbox_status().rows > 50
                    rocketmq.start()
                work(session, producer, number, chance)
            session.close()
            eventually(lambda: producer.outbox_status().rows == 0)
            orders = set(kind.orders())
            with broker.consumer("shipping", "orders") as consumer:

                def all_are_there() -> bool:
                    seen.update(int(message.body) for message in consumer.poll(32, 1))
                    return orders <= seen.keys()

                eventually(all_are_there)
                seen.update(int(message.body) for message in consumer.poll(32, 2))
            assert seen.keys() == orders
        eventually(lambda: kind.rows("SELECT count(*) FROM txstore_outbox") == [(0,)])
        print(f"{name}: {len(orders)} committed, {seen.total() - len(orders)} received twice")
