"""Guards a store that several processes use: one writes, any number read, some fork, and none harms another.

A second writer is refused with the first one's process id. Readers in other processes read everything continuously,
while the writer works, is killed, and recovers: what they see never goes back and is never incomplete. A fork of a
process with an open store gets an error, also one that was made in the middle of a send or a flush, and its parent
continues. The lock is the one that RocketMQ takes: the first byte of `lock`, by POSIX rules.
`TXSTORE_PROCESSES_SECONDS` sets the number of writers that readers live through: four for each second.
"""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests.crash.promises import Told, check
from tests.crash.size import chance, count, steps
from tests.crash.workload import BUSY, SIZES
from tests.crash.zygote import Zygote
from txstore import ForeignStoreError, StoreLockedError

pytestmark = pytest.mark.kill
SECONDS = count("PROCESSES_SECONDS", 1)
LIVES_SECONDS = 0.25
# Another process's view of the lock, by the calls that Java's FileChannel makes.
TRY_LOCK = """
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, int(sys.argv[2]))
    except OSError:
        print("held")
    else:
        print("taken", flush=True)
        sys.stdin.read()
"""
CROWDED = """
import os, sys, time, txstore
from txstore import Message
brokers = [txstore.open(f"{sys.argv[1]}/parent{number}") for number in range(12)]
time.sleep(0.05)  # Until their threads wait.
child = os.fork()
if child == 0:
    for _ in range(10):
        own = [txstore.open(f"{sys.argv[1]}/child{number}") for number in range(8)]
        for broker in own:
            broker.producer("p").send(Message("t", b"x"))
        for broker in own:
            broker.close()
    os._exit(0)
_, status = os.waitpid(child, 0)
for broker in brokers:
    broker.close()
print("closed" if status == 0 else f"the child ended with {status}")
"""
FORGETFUL = """
import os, sys, threading, txstore
from txstore import Message
broker = txstore.open(sys.argv[1])
producer = broker.producer("p")
stop = threading.Event()
def send():
    while not stop.is_set():
        producer.send(Message("t", b"x" * 200))
thread = threading.Thread(target=send, daemon=True)
thread.start()
for _ in range(5):
    child = os.fork()
    if child == 0:
        sys.exit(0)  # As a worker that does not know of the store: through all of Python's shutdown.
    _, status = os.waitpid(child, 0)
    assert status == 0, status
stop.set()
thread.join()
producer.send(Message("t", b"last"))
broker.close()
print("closed")
"""

OUTLIVED = """
import multiprocessing, os, sys, time, txstore
from txstore import Message
broker = txstore.open(sys.argv[1])
broker.producer("p").send(Message("t", b"x"))
fork = multiprocessing.get_context("fork")
started, end = fork.Semaphore(0), fork.Event()
def work():
    started.release()
    end.wait()
workers = [fork.Process(target=work) for _ in range(2)]
for worker in workers:
    worker.start()
for worker in workers:
    started.acquire()  # Until then, it may not have run since the fork: its copy of the lock is open.
print(*(worker.pid for worker in workers), flush=True)
time.sleep(600)
"""
RAW_FORK = """
import ctypes, os, sys, time, txstore
broker = txstore.open(sys.argv[1])
child = ctypes.PyDLL(None).fork()  # A fork that runs no hook of Python, as a C library makes it.
if child == 0:
    time.sleep(600)
    os._exit(0)
print(child, flush=True)
time.sleep(600)
"""


def options(flush_disk_type: str) -> dict[str, Any]:
    return {**SIZES, **BUSY, "flush_disk_type": flush_disk_type}


def test_P1_second_writer_in_another_process_is_refused_with_the_first_ones_process_id(
    zygote: Zygote, tmp_path: Path
) -> None:
    path = tmp_path / "store"
    arguments = {"path": str(path), "options": SIZES, "seed": 1, "threads": 1}
    pid = zygote.begin("tests.crash.workload:work", arguments)
    assert zygote.hear() == ["open"]
    with pytest.raises(StoreLockedError) as refused:
        txstore.open(path)
    assert refused.value.pid == pid
    assert f"by process {pid}" in str(refused.value)
    os.kill(pid, signal.SIGKILL)
    life = zygote.finish()
    assert life.status == -9, life
    with txstore.open(path) as broker:
        assert not broker.open_report.clean  # The lock went with the process; the next writer recovers what it left.


def lock_in_another_process(path: Path, byte: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", TRY_LOCK, str(path / "lock"), str(byte)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_P1_lock_is_the_one_that_rocketmq_takes(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with txstore.open(path, **SIZES) as broker:
        for byte in (0, 1):  # The first byte is locked by us: what is published is valid.
            other = lock_in_another_process(path, byte)
            assert other.communicate()[0] == "held\n"
        # Closing another descriptor of the file in this process keeps the lock, unlike with plain POSIX locks.
        with (path / "lock").open("r+b") as file:
            asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
            kind, *_ = struct.unpack("hhqqi4x", fcntl.fcntl(file, fcntl.F_GETLK, asked))
            assert kind == fcntl.F_WRLCK
        assert lock_in_another_process(path, 0).communicate()[0] == "held\n"
        broker.producer("p").send(txstore.Message("t", b"x"))
    # Closed: the lock is free again, and a broker that holds it keeps us out.
    other = lock_in_another_process(path, 0)
    assert other.stdout is not None
    assert other.stdout.readline() == "taken\n"
    with pytest.raises(StoreLockedError):
        txstore.open(path)
    with txstore.open(path, read_only=True) as reader:
        assert reader.stat().max_physical_offset > 0
    other.communicate("")
    txstore.open(path).close()


def test_reader_opened_before_the_log_has_a_file_gets_an_error(tmp_path: Path) -> None:
    """It would have to guess how large the files will be, and not see those of another size."""
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    with pytest.raises(ForeignStoreError, match="no file yet"):
        txstore.open(tmp_path / "store", read_only=True)


@pytest.mark.parametrize("flush_disk_type", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_D1_readers_see_every_moment_of_a_writer_that_is_killed_and_recovers(
    zygote: Zygote, tmp_path: Path, flush_disk_type: str
) -> None:
    luck, path, stop, told = chance(), tmp_path / "store", tmp_path / "stop", Told()
    with Zygote("txstore", "tests.crash.processes") as first, Zygote("txstore", "tests.crash.processes") as second:
        readers = (first, second)
        for reader in readers:
            reader.begin(
                "tests.crash.processes:follow", {"path": str(path), "stop": str(stop)}, limit=10 * SECONDS + 60.0
            )
        for _ in steps(f"writers that are read, {flush_disk_type}", int(SECONDS / LIVES_SECONDS)):
            arguments = {"path": str(path), "options": options(flush_disk_type), "seed": luck.randrange(1 << 30)}
            arguments["threads"] = luck.randrange(1, 3)
            after = luck.uniform(0.05, LIVES_SECONDS)
            life = zygote.run("tests.crash.workload:work", arguments, kill_after=after)
            assert life.status == -9, life
            told.hear(life.words)
        stop.touch()
        for reader in readers:
            life = reader.finish()
            assert (life.status, life.hung) == (0, False), life
            (word, seen, rounds) = life.words[-1]
            assert (word, seen >= len(told.sent), rounds > 0) == ("saw", True, True)
    check(path, told, read_only=False)


def test_P1_fork_during_sends_and_flushes_gets_an_error_and_harms_nothing(zygote: Zygote, tmp_path: Path) -> None:
    forks = count("FORKS", 5)
    for number, flush_disk_type in enumerate(["ASYNC_FLUSH", "SYNC_FLUSH"]):
        path, told = tmp_path / f"store{number}", Told()
        settings = {**SIZES, "flush_disk_type": flush_disk_type, "flush_interval_commit_log": 0.001}
        settings["snapshot_interval"] = 0.002
        arguments = {"path": str(path), "options": settings, "forks": forks, "pause": 0.003}
        life = zygote.run("tests.crash.processes:fork", arguments)
        assert (life.status, life.hung) == (0, False), life
        told.hear(life.words)
        assert told.sent
        check(path, told, read_only=True)
        with txstore.open(path, read_only=True) as broker:
            assert broker.open_report.clean


def test_P1_stores_of_a_forked_child_are_independent_of_its_parents_threads(tmp_path: Path) -> None:
    """With many stores in both: state shared by chance in a few stores is certainly shared in so many."""
    command = [sys.executable, "-W", "ignore", "-X", "faulthandler", "-c", CROWDED, str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, "closed\n", "")


def test_P1_forked_child_that_exits_normally_closes_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORGETFUL, str(tmp_path / "store")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, "closed\n", "")
    with txstore.open(tmp_path / "store") as broker:
        assert broker.open_report.clean


def test_P1_close_releases_the_lock_although_a_forked_child_lives(tmp_path: Path) -> None:
    path = tmp_path / "store"
    broker = txstore.open(path)
    awake, wake = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(wake)
            os.read(awake, 1)  # Until the parent is done, or gone.
        finally:
            os._exit(0)
    try:
        broker.producer("p").send(txstore.Message("t", b"x"))
        with pytest.raises(StoreLockedError):
            txstore.open(path)  # The child has closed its copy of the lock. The parent still holds it.
        broker.close()
        with txstore.open(path) as again:
            assert again.open_report.clean
    finally:
        os.close(wake)
        os.close(awake)
        os.waitpid(child, 0)


def killed_with_children_alive(program: str, path: Path) -> tuple[int, list[int]]:
    """Runs a program that opens a store, forks and waits, and kills it. Returns its process id and those of its
    children.
    """
    command = [sys.executable, "-W", "ignore", "-c", program, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        children = [int(number) for number in parent.stdout.readline().split()]
        parent.kill()
    return parent.pid, children


def test_P1_workers_that_outlive_a_killed_writer_do_not_keep_its_lock(tmp_path: Path) -> None:
    path = tmp_path / "store"
    _, workers = killed_with_children_alive(OUTLIVED, path)
    try:
        assert workers
        with txstore.open(path) as broker:
            assert not broker.open_report.clean
            assert broker.stat().max_physical_offset > 0
        assert all(Path(f"/proc/{worker}").exists() for worker in workers), "the workers must still be alive"
    finally:
        for worker in workers:
            os.kill(worker, signal.SIGKILL)


def test_P1_lock_that_outlived_its_process_is_reported_as_such(tmp_path: Path) -> None:
    path = tmp_path / "store"
    parent, (child,) = killed_with_children_alive(RAW_FORK, path)
    try:
        with pytest.raises(StoreLockedError, match=f"by process {parent}, which has ended.*a process that it forked"):
            txstore.open(path)
    finally:
        os.kill(child, signal.SIGKILL)
