"""How fast `txstore serve` is beside a real RocketMQ broker, as one Java client sees both.

In: nothing but Java and Maven's packages. Out: a table: plain sends and transactions by 1, 8 and 32 threads, push
consumption. Always: client and server are processes of their own, both servers flush behind (ASYNC_FLUSH) and live at
the same time; each figure is the best of turns that alternate. Run: `python -m benches.python.serve [--turns N]`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.peer import rocketmq as peer

_MESSAGES = 20_000


@contextmanager
def txstore_server(path: Path) -> Iterator[str]:
    """The name server's address of a served store."""
    entry = [sys.executable, "-c", "import sys; from txstore.cli.main import main; sys.exit(main())"]
    command = [*entry, "serve", str(path), "--listen", "127.0.0.1:0", "--name-server", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().split() for _ in range(2)]
        try:
            yield lines[1][-1]
        finally:
            process.terminate()


def measure(client: peer.Peer, names: str, seconds: int) -> dict[str, dict[str, Any]]:
    """One turn: what was measured, by its name."""
    found: dict[str, dict[str, Any]] = {}
    for kind in ("send", "transaction"):
        for threads in (1, 8, 32):
            found[f"{kind}, {threads} threads"] = client.call(
                "load.produce", names=names, kind=kind, threads=threads, seconds=seconds, topic=f"load-{kind}"
            )
    group = f"load-{os.urandom(4).hex()}"
    found["push consumption"] = client.call(
        "load.consume", names=names, group=group, topic="load-send", count=_MESSAGES
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        place = Path(directory)
        home = peer.Home.build(place)
        broker_process, client = stack.enter_context(home.start()), stack.enter_context(home.start())
        # A broker's own sizes and times; its store on the same disk as ours.
        sizes = {"mappedFileSizeCommitLog": 1 << 30}
        broker = stack.enter_context(broker_process.broker(place / "theirs", config=sizes, settings={}))
        servers = {"RocketMQ": broker.names, "txstore": stack.enter_context(txstore_server(place / "ours"))}
        best: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in servers}
        for turn in range(arguments.turns):
            for name in servers if turn % 2 == 0 else reversed(servers):
                for what, figures in measure(client, servers[name], arguments.seconds).items():
                    before = best[name].get(what)
                    if before is None or figures["per_second"] > before["per_second"]:
                        best[name][what] = figures
                    print(turn, name, what, figures, file=sys.stderr, flush=True)
    print(f"{'':<24} {'RocketMQ/s':>12} {'txstore/s':>12} {'ratio':>6}  median us, theirs and ours")
    for what, theirs in best["RocketMQ"].items():
        ours = best["txstore"][what]
        ratio = ours["per_second"] / theirs["per_second"]
        medians = f"{theirs.get('median_us', '')} {ours.get('median_us', '')}"
        print(f"{what:<24} {theirs['per_second']:>12,.0f} {ours['per_second']:>12,.0f} {ratio:>6.2f}  {medians}")


if __name__ == "__main__":
    main()
