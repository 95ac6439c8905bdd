"""Runs clients in processes that share a store, and kills the one that writes again and again; returns the history.

In:     a seed, a duration, a number of clients.
Out:    the history, and how long each takeover took.
Always: a killed process is replaced, so that there are as many clients until the end. No message may be stored twice,
        because each is sent once by its client, and what a lost connection left in doubt is looked up.
"""

from __future__ import annotations

import itertools
import os
import random
import statistics
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import txstore
from tests.histories.checker import anomalies, events_of
from tests.histories.clients import NEW, SHARED, TOPIC
from tests.histories.run import CLIENTS_OF_A_PROCESS, QUEUES, Clients, Report, history_of, settle, statistics_of
from txstore.broker.local_socket import Holder, connect, read_holder

_TAKEOVER_SECONDS_MAX = 60.0


def run_shared_history(
    folder: Path, seed: int, seconds: float, clients: int, *, pause: tuple[float, float], log_bytes: int = 0
) -> Report:
    """Runs once in a folder of its own. Kills the writer after a random pause between the two bounds, in seconds.

    `log_bytes`: how much the log holds before.
    """
    folder.mkdir(exist_ok=True)
    chance = random.Random(seed)
    store = folder / "store"
    settings = NEW | ({"mapped_file_size_commit_log": 64 << 20} if log_bytes else {})
    with txstore.open(store, **settings) as broker:
        broker.create_topic(TOPIC, QUEUES)
        _fill(broker, log_bytes)
    firsts = itertools.count(0, CLIENTS_OF_A_PROCESS)
    takeovers: list[float] = []
    killed: list[Clients] = []
    with ExitStack() as stack:

        def start() -> Clients:
            first = next(firsts)
            log = folder / f"clients-{first}.jsonl"
            return stack.enter_context(Clients(f"{SHARED}{store}", log, seed, first, CLIENTS_OF_A_PROCESS, "threads"))

        live = [start() for _ in range(clients // CLIENTS_OF_A_PROCESS)]
        for group in live:
            group.ready()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(chance.uniform(*pause))
            holder = read_holder(str(store))
            if holder is None or not (writer := [group for group in live if group.pid == holder.pid]):
                continue
            live.remove(writer[0])
            writer[0].kill()
            takeovers.append(_takeover(store, holder))
            killed += writer
            live.append(start())
            live[-1].ready()
        for group in live:
            group.tell("stop")
        waited = settle(store, [*live, *killed])
        for group in live:
            group.end()
    logs = [group.log for group in [*live, *killed]]
    begun = Counter(event["name"] for client in events_of(logs) for event in client if event["what"] == "begin")
    history = history_of(store, logs, begun)
    times = sorted(takeovers) or [0.0]
    found = statistics_of(history) | {
        "takeovers": len(takeovers),
        "ms of a takeover, median": round(1000 * statistics.median(times)),
        "ms of a takeover, longest": round(1000 * times[-1]),
        "seconds to settle": round(waited),
    }
    return Report(seed, anomalies(history), found)


def _takeover(store: Path, before: Holder) -> float:
    """Returns the seconds until another process listens."""
    began = time.monotonic()
    while (taken := time.monotonic() - began) < _TAKEOVER_SECONDS_MAX:
        holder = read_holder(str(store))
        if holder is not None and holder.socket != before.socket:
            try:
                connect(str(store)).close()
            except OSError:
                pass
            else:
                return taken
        time.sleep(0.001)
    raise AssertionError(f"no process took over from {before} within {taken:.0f} s")


def _fill(broker: txstore.EmbeddedBroker, log_bytes: int) -> None:
    broker.create_topic("filler", 1)
    while broker.store.appended_end < log_bytes:
        broker.append_many([txstore.Message("filler", os.urandom(1) * 60_000)] * 64, [0] * 64)
