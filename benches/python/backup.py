"""Measures backups of a large store while a process writes it, and proves what they promise.

In:     how many GiB the store has before the first backup; a folder on the disk to measure.
Out:    times and bytes of a first and a second backup, of sends meanwhile, and of a restore; an assertion if an
        acknowledged message is missing, if more than what is new was copied, or if `check --deep` finds anything.
Always: the store is deleted before the restore, as if its disk were lost.

    python -m benches.python.backup --gib 10
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

import txstore
from txstore import Message
from txstore.backup import Backup, take_backup
from txstore.inspection.deep import look

THREADS = 4
BATCH, FILL_BYTES, SEND_BYTES = 64, 4096, 1024
LOAD_SECONDS = 10.0
# The load of a service. At full speed most of the copied bytes would be those that were sent meanwhile.
BURST, PAUSE_SECONDS = 10, 0.01

Counters = list["Synchronized[int]"]


def write(path: str, fill_bytes: int, acknowledged: Counters, filled: Any, stop: Any) -> None:
    """The service: fills the store, then sends from several threads, each to a topic of its own, until it is told to
    stop.
    """
    with txstore.open(path) as broker, broker.producer("service") as producer:
        body = bytes(FILL_BYTES)
        while broker.stat().max_physical_offset < fill_bytes:
            producer.send_batch([Message("filled", body)] * BATCH)
        broker.flush()
        filled.set()

        def send(number: int) -> None:
            topic, counter = f"sent-{number}", acknowledged[number]
            broker.create_topic(topic, 1)
            body = bytes(SEND_BYTES)
            while not stop.wait(PAUSE_SECONDS):
                for _ in range(BURST):
                    producer.send(Message(topic, body))
                    counter.value += 1

        threads = [threading.Thread(target=send, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


@contextmanager
def service(path: Path, fill_bytes: int) -> Iterator[Counters]:
    """Runs the service; yields how many messages of each thread were acknowledged."""
    context = multiprocessing.get_context("spawn")
    acknowledged: Counters = [context.Value("q", 0) for _ in range(THREADS)]
    filled, stop = context.Event(), context.Event()
    process = context.Process(target=write, args=(str(path), fill_bytes, acknowledged, filled, stop))
    began = time.monotonic()
    process.start()
    while not filled.wait(1):
        assert process.is_alive(), "the service ended"
    seconds = time.monotonic() - began
    print(f"filled with {fill_bytes / 2**30:.1f} GiB in {seconds:.1f} s ({fill_bytes / 2**20 / seconds:.0f} MiB/s)")
    try:
        yield acknowledged
    finally:
        stop.set()
        process.join()


def sent(acknowledged: Counters) -> list[int]:
    return [counter.value for counter in acknowledged]


def load(acknowledged: Counters) -> float:
    """Returns the sends in a second while nothing else runs."""
    before, began = sum(sent(acknowledged)), time.monotonic()
    time.sleep(LOAD_SECONDS)
    return (sum(sent(acknowledged)) - before) / (time.monotonic() - began)


def timed(name: str, path: Path, folder: Path, acknowledged: Counters) -> tuple[Backup, list[int]]:
    """Takes a backup; returns it with what was acknowledged before it began."""
    at_start, began = sent(acknowledged), time.monotonic()
    backup = take_backup(path, folder)
    seconds = time.monotonic() - began
    rate = (sum(sent(acknowledged)) - sum(at_start)) / seconds
    print(
        f"{name}: {seconds:.1f} s, copied {backup.copied_bytes / 2**20:,.0f} MiB ("
        f"{backup.copied_bytes / 2**20 / seconds:.0f} MiB/s), linked {backup.linked_bytes / 2**20:,.0f} MiB, "
        f"verified {backup.verified_records:,} records; sends meanwhile: {rate:,.0f}/s"
    )
    return backup, at_start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=10.0, help="size of the store before the first backup")
    parser.add_argument("--folder", type=Path, default=None, help="where to work (default: the temporary folder)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="txstore-backup-") as top:
        run(Path(top), int(arguments.gib * 2**30))


def run(top: Path, fill_bytes: int) -> None:
    path, folder, copy = top / "store", top / "backups", top / "restored"
    with service(path, fill_bytes) as acknowledged:
        print(f"sends of {SEND_BYTES} bytes by {THREADS} threads, before: {load(acknowledged):,.0f}/s")
        first, _ = timed("first backup", path, folder, acknowledged)
        time.sleep(LOAD_SECONDS)
        second, at_start = timed("second backup", path, folder, acknowledged)
    full = first.end // first.file_size * first.file_size
    assert second.linked_bytes == full, "a full file was copied again"
    small = sum(one.bytes for one in second.files if not one.is_log)
    assert second.copied_bytes == second.end - full + small
    print(f"new since the first backup: {(second.end - first.end) / 2**20:,.0f} MiB")
    shutil.rmtree(path)

    began = time.monotonic()
    subprocess.run(["cp", "-r", str(second.path), str(copy)], check=True)
    print(f"copied to restore in {time.monotonic() - began:.1f} s")
    began = time.monotonic()
    with txstore.open(copy) as broker:
        print(f"opened, with queues and index built from the log, in {time.monotonic() - began:.1f} s")
        ends = {topic: end for topic, _, _, end in broker.queues()}
        for number, count in enumerate(at_start):
            assert ends[f"sent-{number}"] >= count, "an acknowledged message is missing"
    began = time.monotonic()
    depth = look(str(copy))
    found = depth.findings
    assert (found.damages, found.differences, depth.plan) == ([], [], []), depth.as_facts()
    print(
        f"check --deep: no problems found in {found.counts['records']:,} records, {time.monotonic() - began:.1f} s; "
        f"all {sum(at_start):,} messages that were acknowledged before the second backup began are there"
    )


if __name__ == "__main__":
    main()
