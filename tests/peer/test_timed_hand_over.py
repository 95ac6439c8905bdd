"""Guards the way of timed messages to a RocketMQ 5 broker that takes a store over, and back.

After `txstore store hand-over`, also if it was killed and repeated, a real consumer gets each message from a real
broker exactly once, and none before its time; a recall at the broker finds its message; what the broker has delivered
does not come again when txstore opens the store. Without the command the broker leaves them in the log, as documented.
"""

from __future__ import annotations

import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import txstore
from tests.peer.rocketmq import SHORT_TIMES, SIZES, SMALL, Facts, Peer, message
from txstore import Message
from txstore.client.options import ConnectConfig
from txstore.config import BrokerConfig
from txstore.errors import ForeignStoreError

pytestmark = pytest.mark.peer

TOPIC = "Reminders"
# The name that is in the recall handles of a store without a server.
SETTINGS: Facts = SHORT_TIMES | {"brokerName": "txstore", "recallMessageEnable": True}
TIMER: Facts = SMALL | {"timerWheelEnable": True}
FAR = timedelta(days=2, hours=20)
"""Further ahead than one round of a broker's timer."""


def send(path: Path, times: Sequence[timedelta], *, first: int = 0) -> dict[str, tuple[float, str]]:
    """Sends a message for each time from now. Returns its key with when it is due (ms) and its recall handle."""
    with txstore.open(path, config=BrokerConfig.from_options(SIZES)) as broker:
        producer, start, sent = broker.producer("reminder-service"), datetime.now(UTC), {}
        for number, ahead in enumerate(times, first):
            # Many are due at a whole second, where a broker's rounding is the least obvious.
            due = start + ahead if number % 3 else (start + ahead).replace(microsecond=0) + timedelta(seconds=1)
            told = producer.send(Message(TOPIC, str(number).encode(), keys=[str(number)], deliver_at=due))
            sent[str(number)] = (due.timestamp() * 1000, str(told.recall_handle))
        return sent


def hand_over(path: Path) -> str:
    """Runs the command, and returns what it printed."""
    return subprocess.run(command(path), check=True, capture_output=True, text=True).stdout


def command(path: Path) -> list[str]:
    return [sys.executable, "-m", "txstore.cli.main", "store", "hand-over", str(path)]


def killed_hand_overs(path: Path, chance: random.Random) -> int:
    """Runs the command, then several times more and kills it at random moments of its second half.

    Returns how often a kill interrupted it.
    """
    began, kills = time.monotonic(), 0
    hand_over(path)
    seconds = time.monotonic() - began
    for _ in range(6):
        with subprocess.Popen(command(path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            time.sleep(seconds * chance.uniform(0.5, 1))
            process.kill()
        kills += process.returncode == -9
    return kills


def received(rocketmq: Peer, names: str, group: str, keys: Iterable[str]) -> dict[str, Facts]:
    """What a new group gets from the first message on: exactly these keys, each once."""
    wanted = sorted(keys)
    found = rocketmq.consume(names, group, {TOPIC: "*"}, at_least=len(wanted), idle_ms=4_000, timeout_ms=110_000)
    counts = Counter(one["keys"] for one in found)
    assert sorted(counts) == wanted
    assert {key: count for key, count in counts.items() if count != 1} == {}
    return {one["keys"]: one for one in found}


def assert_not_early(found: dict[str, Facts], sent: dict[str, tuple[float, str]]) -> None:
    late = {key: one["store_timestamp_ms"] - sent[key][0] for key, one in found.items()}
    print(f"{min(late.values()):.0f} to {max(late.values()):.0f} ms after their time")
    assert {key: ms for key, ms in late.items() if ms < 0} == {}


def test_broker_delivers_what_was_handed_over(rocketmq: Peer, tmp_path: Path) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance, path = random.Random(seed), tmp_path / "store"
    times = [timedelta(seconds=chance.uniform(0.5, 45)) for _ in range(400)] + [FAR] * 3
    sent = send(path, times)
    recalled = set(chance.sample(sorted(sent), 40))
    with txstore.open(path) as broker:
        producer = broker.producer("reminder-service")
        for key in recalled:
            try:
                producer.recall(sent[key][1])
            except txstore.MessageNotFoundError:  # It was due.
                recalled = recalled - {key}
    print(f"{killed_hand_overs(path, chance)} of 6 killed")
    assert re.match(r"\d+ timed messages handed over; \d+ that were due are delivered\n", hand_over(path))
    far = {str(number) for number in range(400, 403)} - recalled
    with rocketmq.broker(path, config=TIMER, settings=SETTINGS) as broker:
        there = recalled_there(broker.names, sent, set(sent) - recalled - far)
        found = received(rocketmq, broker.names, "c", set(sent) - recalled - far - there)
        assert_not_early(found, sent)
    if far:
        with pytest.raises(ForeignStoreError, match=rf"{len(far)} messages wait in the timer"):
            txstore.open(path)


def recalled_there(names: str, sent: dict[str, tuple[float, str]], keys: set[str]) -> set[str]:
    """Recalls some messages at the broker, with the handles of txstore. They are due latest, so none is late."""
    latest = sorted(keys, key=lambda key: sent[key][0])[-5:]
    with txstore.connect(names, config=ConnectConfig()) as remote:
        producer = remote.producer("reminder-service")
        until = time.time() * 1000 + 3_000
        return {key for key in latest if sent[key][0] > until and producer.recall(sent[key][1])}


def test_store_comes_back_and_is_handed_over_again(rocketmq: Peer, tmp_path: Path) -> None:
    path = tmp_path / "store"
    sent = send(path, [timedelta(seconds=1 + number % 20) for number in range(100)])
    hand_over(path)
    with rocketmq.broker(path, config=TIMER, settings=SETTINGS) as broker:
        with rocketmq.producer(broker.names, "theirs") as producer:
            # One of the broker's own, for the same timer.
            (told,) = producer.send([message(TOPIC, b"own", keys="own", delay_ms=3_000)])
            assert told["status"] == "SEND_OK"
        received(rocketmq, broker.names, "first", {*sent, "own"})
        settle(path, max(time.time() * 1000, *(due for due, _ in sent.values())))
    more = send(path, [timedelta(seconds=30 + number % 10) for number in range(50)], first=100)
    assert hand_over(path).startswith("50 timed messages handed over; 0 that were due are delivered")
    with rocketmq.broker(path, config=TIMER, settings=SETTINGS) as broker:
        found = received(rocketmq, broker.names, "second", {*sent, *more, "own"})
        assert_not_early({key: found[key] for key in more}, more)


def settle(path: Path, last_ms: float) -> None:
    """Waits until the broker's timer has noted that it has delivered everything up to this time."""

    def delivered_ms() -> int:
        with (path / "config" / "timercheck").open("rb") as file:
            return int.from_bytes(file.read(8))

    until = time.monotonic() + 60
    while delivered_ms() <= last_ms:
        assert time.monotonic() < until
        time.sleep(0.05)


def test_without_the_command_they_stay_in_the_log(rocketmq: Peer, tmp_path: Path) -> None:
    path = tmp_path / "store"
    sent = send(path, [timedelta(seconds=2 + number % 3) for number in range(30)])
    with rocketmq.broker(path, config=TIMER, settings=SETTINGS) as broker:
        with rocketmq.producer(broker.names, "theirs") as producer:
            producer.send([message(TOPIC, b"at once", keys="now")])
        until = max(due for due, _ in sent.values()) / 1000 + 2
        time.sleep(max(0.0, until - time.time()))
        received(rocketmq, broker.names, "c", {"now"})
    with txstore.open(path) as ours, ours.consumer("ours", TOPIC) as consumer:
        found: list[str] = []
        deadline = time.monotonic() + 60
        while len(found) < 31 and time.monotonic() < deadline:
            found += [one.keys[0] for one in consumer.poll(timeout=1)]
    assert sorted(found) == sorted([*sent, "now"]), "those that are overdue are delivered when txstore opens it"
