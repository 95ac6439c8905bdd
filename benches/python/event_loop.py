"""Compares an embedded store on an event loop with threads, and measures how late a loop is on a slow disk.

In:     `python -m benches.python.event_loop [--quick] [--only rates|ticker]`.
Out:    a table of rates and ratios, measured in the same turns; how late a ticker of 1 ms was.
Always: the slow disk is real syncs that strace delays by 20 ms each; it traces no other call.
"""

import argparse
import asyncio
import gc
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Coroutine, Sequence
from typing import Any

import txstore
import txstore.aio
from benches.python.loads import BODY, GROUP, NOT_SYNCED, TOPIC, Commits, in_threads
from benches.python.measure import Scale, in_turns, per_second, scratch
from benches.python.ratios import DEFAULT, QUICK, against
from txstore import LocalTransactionState, Message
from txstore.config import FlushDisk

_TASKS = 1000
_SYNC_MS = 20
_TRACED = ["strace", "-f", "--seccomp-bpf", "-qq", "-o", os.devnull, "-e", "trace=fdatasync,fsync"]
_SLOWED = [*_TRACED, "-e", f"inject=fdatasync,fsync:delay_enter={_SYNC_MS * 1000}"]
_TICKER_SECONDS = 20.0


def threads_send(count: int, threads: int, flush_disk_type: FlushDisk) -> float:
    """`producer.send` in that many threads."""
    with scratch() as folder, txstore.open(folder / "store", flush_disk_type=flush_disk_type) as broker:
        producer = broker.producer(GROUP)
        producer.send(Message(TOPIC, BODY))

        def work() -> None:
            for _ in range(count // threads):
                producer.send(Message(TOPIC, BODY))

        return per_second(count // threads * threads, lambda: in_threads(threads, work))


async def _timed(count: int, works: Sequence[Coroutine[Any, Any, None]]) -> float:
    start = time.perf_counter()
    await asyncio.gather(*works)
    return count / (time.perf_counter() - start)


def tasks_send(count: int, tasks: int, flush_disk_type: FlushDisk) -> float:
    """`await producer.send` in that many tasks."""

    async def measured() -> float:
        with scratch() as folder:
            async with txstore.aio.open(folder / "store", flush_disk_type=flush_disk_type) as broker:
                producer = broker.producer(GROUP)
                await producer.send(Message(TOPIC, BODY))

                async def work() -> None:
                    for _ in range(count // tasks):
                        await producer.send(Message(TOPIC, BODY))

                return await _timed(count // tasks * tasks, [work() for _ in range(tasks)])

    return asyncio.run(measured())


def threads_transact(count: int, threads: int) -> float:
    """`send_in_transaction` in that many threads; half messages are synced."""
    with scratch() as folder, txstore.open(folder / "store") as broker:
        producer = broker.transaction_producer(GROUP, Commits())
        producer.send(Message(TOPIC, BODY))

        def work() -> None:
            for _ in range(count // threads):
                producer.send_in_transaction(Message(TOPIC, BODY))

        return per_second(count // threads * threads, lambda: in_threads(threads, work))


def tasks_transact(count: int, tasks: int) -> float:
    """`await send_in_transaction` in that many tasks; half messages are synced."""

    async def commits(message: object, arg: object) -> LocalTransactionState:
        return LocalTransactionState.COMMIT

    async def measured() -> float:
        with scratch() as folder:
            async with txstore.aio.open(folder / "store") as broker:
                producer = broker.transaction_producer(GROUP, Commits())
                await producer.send(Message(TOPIC, BODY))

                async def work() -> None:
                    for _ in range(count // tasks):
                        await producer.send_in_transaction(Message(TOPIC, BODY), executer=commits)

                return await _timed(count // tasks * tasks, [work() for _ in range(tasks)])

    return asyncio.run(measured())


def consume(count: int, *, one_by_one: bool) -> float:
    """`async for`, or `await consumer.poll(32)`."""

    async def measured() -> float:
        with scratch() as folder:
            async with txstore.aio.open(folder / "store", **NOT_SYNCED) as broker:
                producer = broker.producer(GROUP)
                for _ in range(count // 100):
                    await producer.send_batch([Message(TOPIC, BODY)] * 100)
                async with broker.consumer(GROUP, TOPIC) as consumer:

                    async def work() -> None:
                        left = count // 100 * 100
                        while not one_by_one and left > 0:
                            left -= len(await consumer.poll(32, None))
                        if one_by_one:
                            async for _ in consumer:
                                left -= 1
                                if left == 0:
                                    break

                    return await _timed(count // 100 * 100, [work()])

    return asyncio.run(measured())


def rates(scale: Scale) -> None:
    many, few = scale.count(100_000, 16_000), scale.count(20_000)
    found = in_turns(
        scale.turns,
        {
            "threads": lambda: threads_send(many, 64, "SYNC_FLUSH"),
            "tasks": lambda: tasks_send(many, _TASKS, "SYNC_FLUSH"),
            "one": lambda: threads_send(few // 10, 1, "SYNC_FLUSH"),
            "one task": lambda: tasks_send(few // 10, 1, "SYNC_FLUSH"),
            "plain": lambda: threads_send(many, 1, "ASYNC_FLUSH"),
            "plain task": lambda: tasks_send(many, 1, "ASYNC_FLUSH"),
            "transactions": lambda: threads_transact(few, 64),
            "transactions of tasks": lambda: tasks_transact(few, _TASKS),
            "poll": lambda: consume(many, one_by_one=False),
            "async for": lambda: consume(few, one_by_one=True),
        },
    )
    print("| What | Ours | Compared with | Theirs | Ratio | Goal |\n|---|---|---|---|---|---|")
    rows = [
        against("send, SYNC_FLUSH, 1,000 tasks", found["tasks"], "64 threads", found["threads"], 0.8),
        against("send, SYNC_FLUSH, 1 task", found["one task"], "1 thread", found["one"]),
        against("send, ASYNC_FLUSH, 1 task", found["plain task"], "1 thread", found["plain"]),
        against(
            "transactions, 1,000 tasks", found["transactions of tasks"], "64 threads, blocking", found["transactions"]
        ),
        against("async for", found["async for"], "await poll(32)", found["poll"]),
    ]
    print("\n".join(row.line() for row in rows), flush=True)


async def _tick(until: float, late: list[float]) -> None:
    while time.perf_counter() < until:
        before = time.perf_counter()
        await asyncio.sleep(0.001)
        late.append(time.perf_counter() - before - 0.001)


async def _ticker(seconds: float, tasks: int) -> None:
    """A ticker of 1 ms while tasks send with SYNC_FLUSH, one after another."""
    with scratch() as folder:
        async with txstore.aio.open(folder / "store", flush_disk_type="SYNC_FLUSH") as broker:
            producer = broker.producer(GROUP)
            await producer.send(Message(TOPIC, BODY))
            gc.collect()
            gc.freeze()  # A collection of all modules would take longer than what is measured.
            until, late, sent = time.perf_counter() + seconds, list[float](), 0

            async def work() -> None:
                nonlocal sent
                while time.perf_counter() < until:
                    await producer.send(Message(TOPIC, BODY))
                    sent += 1

            await asyncio.gather(_tick(until, late), *(work() for _ in range(tasks)))
    late_ms = sorted(1000 * one for one in late)
    points = {name: late_ms[int(len(late_ms) * part)] for name, part in (("p99", 0.99), ("p99.9", 0.999))}
    print(
        f"{tasks:,} tasks: {sent / seconds:,.0f} messages/s; {len(late_ms):,} ticks, late by "
        f"{statistics.median(late_ms):.2f} ms (median), "
        + ", ".join(f"{value:.2f} ms ({name})" for name, value in points.items())
        + f", {late_ms[-1]:.2f} ms (longest)",
        flush=True,
    )


def ticker(scale: Scale) -> None:
    if shutil.which("strace") is None:
        sys.exit("strace is not installed here, which slows the syncs\nhint: apt-get install strace")
    seconds = str(_TICKER_SECONDS if scale is DEFAULT else 3.0)
    for what, command in ((f"each sync takes {_SYNC_MS} ms more", _SLOWED), ("the disk as it is", _TRACED)):
        print(f"\nticker of 1 ms, {what}", flush=True)
        for tasks in ("0", "1", str(_TASKS)):
            here = [sys.executable, "-m", "benches.python.event_loop", "--seconds", seconds, "--tasks", tasks]
            subprocess.run([*command, *here], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benches.python.event_loop", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes; values are rough")
    parser.add_argument("--only", choices=["rates", "ticker"])
    parser.add_argument("--tasks", type=int, help="the ticker alone, in this process, with so many tasks")
    parser.add_argument("--seconds", type=float, default=_TICKER_SECONDS, help="how long it ticks")
    chosen = parser.parse_args()
    if chosen.tasks is not None:
        asyncio.run(_ticker(chosen.seconds, chosen.tasks))
        return
    scale = QUICK if chosen.quick else DEFAULT
    start, load = time.perf_counter(), os.getloadavg()[0]
    print(f"1 KiB bodies, {scale.name} sizes, medians of {scale.turns} turns; load before: {load:.1f}\n")
    if chosen.only != "ticker":
        rates(scale)
    if chosen.only != "rates":
        ticker(scale)
    print(f"\n{time.perf_counter() - start:.0f} s; load after: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
