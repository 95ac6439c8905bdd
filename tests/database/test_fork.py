"""Guards forks while threads of txstore use SQLite: a child must be able to use SQLite itself.

SQLite's own lock of its memory would be inherited locked. Without the guard, one of five such children waits for ever.
`TXSTORE_FORKS` is how many there are.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
import time
from pathlib import Path

import pytest

from tests.waiting import eventually
from txstore.database import Database
from txstore.database.fork import inside_database, outside_database

FORKS = int(os.environ.get("TXSTORE_FORKS", "30"))
_CHILD_SECONDS_MAX = 60.0


def _ended(child: int) -> bool:
    """Whether a child ends by itself."""
    until = time.monotonic() + _CHILD_SECONDS_MAX
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return False
        time.sleep(0.001)
    return True


@pytest.mark.kill
def test_a_child_can_use_sqlite_whatever_threads_of_the_parent_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txstore.database.fork._FORK_SECONDS_MAX", 60.0)  # A busy machine stops a thread for long.
    path = tmp_path / "orders.db"
    database = Database(path)
    database.create_table()
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            database.outbox()

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for number in range(FORKS):
            child = os.fork()
            if child == 0:
                sqlite3.connect(path).execute("SELECT 1 FROM txstore_outbox").fetchall()
                os._exit(0)
            assert _ended(child), f"child {number} hangs in SQLite"
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_a_fork_waits_for_a_call_but_not_for_ever() -> None:
    entered, leave = threading.Event(), threading.Event()

    def stay() -> None:
        with inside_database():
            entered.set()
            leave.wait()

    thread = threading.Thread(target=stay)
    thread.start()
    entered.wait()
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        with inside_database():  # The parent's thread, which does not exist here, does not count.
            os._exit(0)
    waited = time.monotonic() - began
    leave.set()
    thread.join()
    assert _ended(child)
    assert waited >= 0.9


def test_a_thread_that_waits_elsewhere_lets_forks_happen() -> None:
    outside, leave, inside = threading.Event(), threading.Event(), threading.Event()

    def wait() -> None:
        with inside_database():
            with outside_database():
                outside.set()
                leave.wait()
            inside.set()

    thread = threading.Thread(target=wait)
    thread.start()
    outside.wait()
    child = os.fork()
    if child == 0:
        os._exit(0)
    was_inside = inside.is_set()
    leave.set()
    eventually(inside.is_set)
    thread.join()
    assert _ended(child)
    assert not was_inside
