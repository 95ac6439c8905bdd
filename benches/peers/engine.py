"""Engine: what txstore does from Python, against what RocketMQ's own store does within its Java process, in turns.

In: `python -m benches.peers.engine [--quick]`. Out: a table in Markdown. Always: RocketMQ runs as a broker does, with
its store, its transaction service and its threads, but is called without a network; its process is warmed up first;
every turn of both writes a new store of its own to the same file system. Not here: clients and servers (`wire`).
"""

import argparse
from collections.abc import Callable
from typing import Any

import txstore
from benches.python.loads import Commits, in_threads
from benches.python.measure import Figure, in_turns, per_second, scratch
from tests.peer import rocketmq
from txstore import Message

TOPIC, GROUP = "bench", "bench-group"


class Theirs:
    """RocketMQ in a warm process."""

    def __init__(self, peer: rocketmq.Peer) -> None:
        self._peer = peer

    def run(self, work: str, count: int, **facts: Any) -> float:
        """How many a second, on a new store. `fill`: messages that are there before."""
        settings = {"defaultTopicQueueNums": 1}
        flush = "SYNC_FLUSH" if facts.pop("sync", False) else "ASYNC_FLUSH"
        fill = facts.pop("fill", 0)
        config = {"timerWheelEnable": False, "flushDiskType": flush}
        with scratch() as folder, self._peer.broker(folder / "store", config=config, settings=settings) as broker:
            facts |= {"handle": broker.facts["handle"], "topic": TOPIC}
            if fill:
                self._peer.call("engine.append", **facts, count=fill)
                while broker.status()["dispatch_behind_bytes"]:
                    pass
            result = self._peer.call(f"engine.{work}", **facts, count=count)
        assert not result.get("failed"), result
        return float(result["rate"])


def send(count: int, size: int, threads: int, flush_disk_type: str) -> float:
    """`producer.send(Message(...))`, one call each."""
    body = bytes(size)
    with scratch() as folder, txstore.open(folder / "store", flush_disk_type=flush_disk_type) as broker:
        producer = broker.producer(GROUP)
        producer.send(Message(TOPIC, body))

        def work() -> None:
            for _ in range(count // threads):
                producer.send(Message(TOPIC, body))

        return per_second(count // threads * threads, lambda: in_threads(threads, work))


def transact(count: int, size: int) -> float:
    """`producer.send_in_transaction` with a listener that commits at once."""
    body = bytes(size)
    with scratch() as folder, txstore.open(folder / "store") as broker:
        producer = broker.transaction_producer(GROUP, Commits())

        def work() -> None:
            for _ in range(count):
                producer.send_in_transaction(Message(TOPIC, body))

        return per_second(count, work)


def read(count: int, size: int) -> float:
    """A queue in order by 32, the body of each."""
    with scratch() as folder, txstore.open(folder / "store") as broker:
        broker.create_topic(TOPIC, 1)
        batch = [Message(TOPIC, bytes(size))] * 100
        for _ in range(count // 100 + 1):
            broker.append_many(batch, [0] * 100)

        def work() -> None:
            offset = seen = 0
            while seen < count:
                messages, offset = broker.read(TOPIC, 0, offset, 32)
                seen += sum(len(message.body) == size for message in messages)

        return per_second(count, work)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benches.peers.engine", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a twentieth of the work, one turn: figures are rough")
    arguments = parser.parse_args()
    part, turns = (0.05, 1) if arguments.quick else (1.0, 3)
    with scratch() as folder, rocketmq.Home.build(folder).start(rocketmq.FAST_MACHINE) as peer:
        theirs = Theirs(peer)
        print("| work | txstore, from Python | RocketMQ, within Java | ratio |\n|---|---|---|---|", flush=True)

        def compare(what: str, count: int, ours: Callable[[int], float], work: str, **facts: Any) -> None:
            count = max(640, int(count * part))
            of_both = {"ours": lambda: ours(count), "theirs": lambda: theirs.run(work, count, **facts)}
            print(_row(what, in_turns(turns, of_both)), flush=True)

        for _ in range(1 if arguments.quick else 3):
            theirs.run("transact", 100_000, body_bytes=1024)  # The compiler sees all of it before anything counts.
        for size in (128, 1024, 4096):
            compare(f"append {size} B, threads: 1, ASYNC_FLUSH", 400_000,
                    lambda count, size=size: send(count, size, 1, "ASYNC_FLUSH"), "append", body_bytes=size)  # type: ignore[misc]  # fmt: skip
        for threads, count in ((1, 10_000), (64, 100_000)):
            compare(f"append 1024 B, threads: {threads}, SYNC_FLUSH", count,
                    lambda count, threads=threads: send(count, 1024, threads, "SYNC_FLUSH"), "append",  # type: ignore[misc]
                    body_bytes=1024, threads=threads, sync=True)  # fmt: skip
        compare("whole transaction 1024 B, 1 thread", 200_000, lambda count: transact(count, 1024), "transact",
                body_bytes=1024)  # fmt: skip
        compare("read in queue order by 32, decoded, 1024 B", 400_000, lambda count: read(count, 1024), "read",
                body_bytes=1024, fill=int(400_000 * part) + 64)  # fmt: skip


def _row(what: str, found: dict[str, Figure]) -> str:
    ratio = found["ours"].over(found["theirs"])
    spread = f"{ratio.median:.2f} ({min(ratio.values):.2f}..{max(ratio.values):.2f})"
    return f"| {what} | {found['ours'].median:,.0f}/s | {found['theirs'].median:,.0f}/s | {spread} |"


if __name__ == "__main__":
    main()
