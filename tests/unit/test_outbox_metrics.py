"""Guards the metrics of outboxes: what waits in each database, also on the page of the server that has the log."""

from __future__ import annotations

import http.client
import logging
import sqlite3
from pathlib import Path

import pytest

from tests.unit.conftest import SMALL
from tests.waiting import eventually
from txstore import Message, Server, ServerConfig
from txstore import open as open_store
from txstore.database import Database

parser = pytest.importorskip("prometheus_client.parser")


def scraped(server: Server) -> dict[str, dict[str, float]]:
    """The values of the metrics of outboxes, by database."""
    line = http.client.HTTPConnection(str(server.metrics), timeout=20)
    line.request("GET", "/metrics")
    answer = line.getresponse()
    assert answer.status == 200
    found: dict[str, dict[str, float]] = {}
    for family in parser.text_string_to_metric_families(answer.read().decode()):
        for sample in family.samples:
            if sample.name.startswith("txstore_outbox_"):
                assert sample.labels["node_id"] == "txstore"
                found.setdefault(sample.labels["database"], {})[sample.name] = sample.value
    line.close()
    return found


def test_server_tells_what_waits_in_the_databases_of_its_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    paths = [str(tmp_path / name) for name in ("first.db", "second.db")]
    config = ServerConfig("127.0.0.1:0", name_server=None, metrics="127.0.0.1:0")
    with open_store(tmp_path / "store", **SMALL) as broker, Server(broker, config) as server:
        broker.create_topic("orders", 1)
        assert scraped(server) == {}
        producers = []
        for path in paths:
            Database(path).create_table()
            producers.append(broker.producer("order-service", database=Database(path)))
        nothing = {"txstore_outbox_rows": 0.0, "txstore_outbox_oldest_seconds": 0.0}
        assert scraped(server) == dict.fromkeys(paths, nothing)
        session = sqlite3.connect(paths[0])
        producers[0].send(Message("orders", b"1", message_group="g"), session=session)
        session.execute("UPDATE txstore_outbox SET parked = 'by this test'")
        producers[0].send(Message("orders", b"waits for the first", message_group="g"), session=session)
        session.commit()
        session.close()
        eventually(lambda: scraped(server)[paths[0]]["txstore_outbox_rows"] == 1)
        assert scraped(server)[paths[0]]["txstore_outbox_oldest_seconds"] > 0
        assert scraped(server)[paths[1]] == nothing
        with caplog.at_level(logging.WARNING, "txstore.database.outbox"):
            Path(paths[1]).write_bytes(b"not a database" * 1000)
            assert list(scraped(server)) == [paths[0]]
        assert "could not be counted" in caplog.text
