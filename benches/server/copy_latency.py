"""Measures how long a send waits for its required copy.

In:     `python -m benches.server.copy_latency [--count 3000] [--pause-ms 0]`.
Out:    p50, p90, p99 and the longest of the sends of one thread: without a replica, and with `--replicas-required 2`
        that counts copies in memory and on disk.
Always: client, source and replica are processes on this machine. `--pause-ms` waits up to so long before each send, at
        random, so that timers of the replication would show. `TMPDIR=/dev/shm` leaves the disk out; where the machine
        has other work, `chrt -f 10` before the command leaves that out.
"""

import argparse
import random
import time
from contextlib import ExitStack
from pathlib import Path

import txstore
from benches.python.measure import scratch
from benches.server.replicas import ours
from txstore import Message

_BODY = b"x" * 1024
_WARM_UP = 100
_REQUIRED = ("--replicas-required", "2")


def times_of(names: str, count: int, pause_seconds: float, chance: random.Random) -> list[float]:
    """Milliseconds of each send, sorted."""
    found = []
    with txstore.connect(names) as client:
        producer = client.producer("bench")
        for _ in range(_WARM_UP + count):
            if pause_seconds > 0:
                time.sleep(chance.uniform(0.0, pause_seconds))
            begin = time.perf_counter()
            producer.send(Message("orders", _BODY))
            found.append((time.perf_counter() - begin) * 1_000)
    return sorted(found[_WARM_UP:])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benches.server.copy_latency", description=__doc__)
    parser.add_argument("--count", type=int, default=3_000)
    parser.add_argument("--pause-ms", type=float, default=0.0)
    arguments = parser.parse_args()
    kinds: dict[str, tuple[str, ...] | None] = {
        "no replica": None,
        "a required copy in memory": (*_REQUIRED, "--replica-ack", "memory"),
        "a required copy on disk": _REQUIRED,
    }
    print("| | p50 | p90 | p99 | longest |\n|---|---|---|---|---|", flush=True)
    for kind, options in kinds.items():
        with scratch() as folder, ExitStack() as stack:
            server = stack.enter_context(ours(Path(folder), "store", *(options or ()), copied=options is not None))
            times = times_of(server.names, arguments.count, arguments.pause_ms / 1_000, random.Random(1))
        cells = [times[len(times) * part // 100] for part in (50, 90, 99)]
        print(f"| {kind} | {' | '.join(f'{cell:.2f} ms' for cell in [*cells, times[-1]])} |", flush=True)


if __name__ == "__main__":
    main()
