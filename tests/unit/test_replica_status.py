"""Guards what operators see of replication, at the source and at the replica: `txstore replica status` and metrics."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests.unit.conftest import Run
from tests.unit.test_replica import caught_up, replica, serve
from tests.unit.test_server_metrics import Seen, labels
from tests.unit.test_unsecured_half import silent_replica
from tests.waiting import eventually
from txstore import Message, Server

METRICS: dict[str, Any] = {"metrics": "127.0.0.1:0"}


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Server]:
    with serve(tmp_path / "source", replicas_required=2, replica_timeout=20.0, **METRICS) as source:
        yield source


def status(run: Run, address: object, code: int = 0) -> dict[str, Any]:
    found, out, err = run("replica", "status", address, "--json")
    assert (found, err) == (code, "")
    return dict(json.loads(out))


def test_source_without_replicas_accepts_nothing(run: Run, tmp_path: Path, source: Server) -> None:
    found = status(run, source.address, code=1)
    assert found | {"role": "source", "copies_required": 2, "accepts_writes": False, "replicas": []} == found
    assert status(run, tmp_path / "source", code=1) == found, "the store's directory names its server"


def test_both_sides_show_the_lag(run: Run, tmp_path: Path, source: Server) -> None:
    assert source.address is not None
    with txstore.connect(source.address, send_msg_timeout=60) as client, replica(tmp_path / "copy", source) as copy:
        eventually(lambda: source.native.replicas() != [])
        client.producer("shop").send(Message("orders", b"1"))
        caught_up(copy, source)
        eventually(lambda: copy.replica is not None and copy.replica.missing_bytes == 0)
        eventually(lambda: source.nodes.addresses().get("1") == copy.address)
        (row,) = status(run, source.address)["replicas"]
        assert copy.replica is not None
        assert (row["name"], row["address"], row["connected"]) == (copy.replica.name, copy.address, True)
        assert (row["lag_bytes"], row["lag_seconds"]) == (0, 0)
        assert row["copied_end"] == source.broker.store.appended_end
        found = status(run, tmp_path / "copy")
        wanted = {"role": "replica", "source": source.address, "following": True, "lag_bytes": 0, "lag_seconds": 0}
        assert found | wanted == found
        assert found["accepts_writes"] is False
        assert "connected" in run("replica", "status", source.address)[1]
        assert "now" in run("replica", "status", copy.address)[1]


def test_replica_that_is_away_is_shown_with_what_it_lacks(run: Run, tmp_path: Path, source: Server) -> None:
    assert source.address is not None
    with replica(tmp_path / "copy", source):
        eventually(lambda: source.native.replicas() != [])
    with silent_replica(source):
        eventually(lambda: "silent" in {row[0] for row in source.native.replicas()})
        before = source.broker.store.appended_end
        source.broker.create_topic("orders", 1)
        source.broker.producer("shop").send(Message("orders", b"1"))
        rows = {row["name"]: row for row in status(run, source.address)["replicas"]}
        lacks = source.broker.store.appended_end - before
        assert lacks > 0
        (away,) = (row for name, row in rows.items() if name != "silent")
        assert away["lag_bytes"] == rows["silent"]["lag_bytes"] == lacks
        eventually(lambda: status(run, source.address)["replicas"][0]["lag_seconds"] > 0)


def test_metrics_of_both_sides(tmp_path: Path, source: Server) -> None:
    with replica(tmp_path / "copy", source, **METRICS) as copy:
        eventually(lambda: source.native.replicas() != [])
        caught_up(copy, source)
        assert copy.replica is not None
        eventually(lambda: copy.replica is not None and copy.replica.missing_bytes == 0)
        own = labels(replica=copy.replica.name)
        for server, role, required, accepts in ((source, "source", 2, 1), (copy, "replica", 1, 0)):
            seen = Seen(server)
            assert seen.all("txstore_replication_role") == {labels(role=role): 1}
            assert seen.all("txstore_replica_connected") == {own: 1}
            assert seen.all("txstore_replica_lag_bytes") == {}
            assert seen.one("txstore_replica_lag_bytes", replica=copy.replica.name) == 0
            assert seen.one("txstore_replica_lag_seconds", replica=copy.replica.name) == 0
            assert seen.one("txstore_copies_required") == required
            assert seen.one("txstore_writes_accepted") == accepts
    eventually(lambda: source.nodes.replicas()[0].silent.total_seconds() != 0)


def test_store_that_no_server_has_open_is_explained(run: Run, tmp_path: Path) -> None:
    txstore.open(tmp_path / "store").close()
    code, _, err = run("replica", "status", tmp_path / "store")
    assert code == 3
    assert "no server has the store at" in err
    assert "hint: start `txstore serve`" in err
    code, _, err = run("replica", "status", "127.0.0.1:1")
    assert (code, "cannot be reached" in err) == (3, True)
