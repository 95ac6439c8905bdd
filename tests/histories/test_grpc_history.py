"""Guards the truth of what clients of the gRPC protocol are told, over a faulty network and kills of the server.

TXSTORE_GRPC_HISTORIES runs of TXSTORE_GRPC_SECONDS each, with TXSTORE_GRPC_CLIENTS. TXSTORE_GRPC_SEED repeats the
first one.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from tests.histories.grpc import Delivery, Told, run_grpc_history, wrong

RUNS = int(os.environ.get("TXSTORE_GRPC_HISTORIES", "1"))
SECONDS = float(os.environ.get("TXSTORE_GRPC_SECONDS", "60"))
CLIENTS = int(os.environ.get("TXSTORE_GRPC_CLIENTS", "24"))
SEED = int(os.environ.get("TXSTORE_GRPC_SEED", random.randrange(1 << 30)))


@pytest.mark.torture
@pytest.mark.kill
@pytest.mark.parametrize("number", range(RUNS))
def test_grpc_clients_are_told_nothing_untrue(number: int, tmp_path: Path) -> None:
    report = run_grpc_history(tmp_path, SEED + number, SECONDS, CLIENTS, kills=max(1, round(SECONDS / 20)))
    print(report)
    assert report.anomalies == []
    for what in ("sends acknowledged", "rolled back", "deliveries", "nacks", "kills", "delays", "cuts"):
        assert report.statistics.get(what, 0) > 0, "otherwise nothing was tried"
    shutil.rmtree(tmp_path)


def kinds(told: Told) -> list[str]:
    return [anomaly.kind for anomaly in wrong(told)]


def told_of(*deliveries: Delivery, kills: tuple[float, ...] = ()) -> Told:
    told = Told(tried={b"a"}, sent={b"a"}, kills=list(kills))
    told.deliveries[b"a"] += deliveries
    return told


def test_false_histories_are_detected() -> None:
    assert kinds(Told(tried={b"a"}, sent={b"a"})) == ["lost"]
    phantom = told_of(Delivery(0, 1))
    phantom.tried.clear()
    assert kinds(phantom) == ["phantom"]
    told = told_of(Delivery(0, 1))
    told.rolled_back.add(b"a")
    assert kinds(told) == ["rolled back but read"]


@pytest.mark.parametrize(
    ("deliveries", "kills", "found"),
    [
        ([Delivery(0, 1), Delivery(11, 12)], (), 0),
        ([Delivery(0, 1), Delivery(2, 3)], (), 1),
        ([Delivery(0, 1), Delivery(2, 3)], (1.5,), 0),
        ([Delivery(0, 1, nacked=1.2), Delivery(1, 3)], (), 0),
        ([Delivery(0, 1, nacked=4.0), Delivery(2, 3)], (), 1),
        ([Delivery(0, 1, acknowledged=(1.1, 1.2)), Delivery(20, 21)], (), 1),
        ([Delivery(0, 1, acknowledged=(1.1, 1.2)), Delivery(20, 21)], (5.0,), 0),
        ([Delivery(0, 1), Delivery(2, 3), Delivery(30, 31)], (25.0,), 1),
        ([Delivery(5, 6), Delivery(7, 8, (0, 9))], (), 1),
        ([Delivery(5, 6), Delivery(7, 8, (0, 9))], (1.0,), 0),
    ],
)
def test_message_that_comes_again_too_soon_is_detected(
    deliveries: list[Delivery], kills: tuple[float, ...], found: int
) -> None:
    assert kinds(told_of(*deliveries, kills=kills)) == ["too soon"] * found
