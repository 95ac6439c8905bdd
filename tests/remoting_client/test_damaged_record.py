"""Guards consumers against bytes of a real broker that are not a message: they report them and continue.

RocketMQ verifies no record when it answers a pull. After its own recovery a queue may lead to bytes that were
overwritten; here a record is overwritten in the broker's log, which it maps.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests.damage import overwrite_record
from tests.remoting_client.brokers import RocketMQ
from tests.waiting import eventually
from txstore import Message

pytestmark = pytest.mark.peer


def test_consumer_reports_what_it_cannot_decode_and_continues(
    request: pytest.FixtureRequest, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bodies = [b"message %d" % number for number in range(40)]
    damaged = {b"message 7", b"message 8", b"message 39"}
    options: dict[str, Any] = {"reconnect_back_off": 0.01, "reconnect_back_off_max": 0.1, "rebalance_interval": 1}
    with RocketMQ(request) as rocketmq, txstore.connect(rocketmq.names, **options) as broker:
        with broker.producer("p") as producer:
            for body in bodies:
                producer.send(Message("damaged", body), queue_id=0)
        for body in damaged:
            overwrite_record(tmp_path / "store", body)
        seen: list[bytes] = []
        with caplog.at_level(logging.ERROR, "txstore.remoting"), broker.consumer("c", "damaged") as consumer:

            def is_at_the_end() -> bool:
                seen.extend(message.body for message in consumer.poll(32, 1))
                return len(caplog.records) >= len(damaged)

            eventually(is_at_the_end)
    assert seen == [body for body in bodies if body not in damaged]
    passed_over = [record.__dict__["queue_offset"] for record in caplog.records]
    assert sorted(passed_over) == [7, 8, 39]
