"""Runs the tests in random order while random threads get no processor, so that a test that depends on luck fails.

In:     a seed, and arguments for pytest: `python -m tests.luck 7 tests/unit`. Only root may let a thread run again.
Out:    what pytest says, and its exit code.
Always: no thread waits longer than `LONGEST_SECONDS` in one piece, so a test that waits for conditions passes.

A thread of the policy SCHED_IDLE runs when nobody else wants to (sched(7)); a busy loop for each core always does.
"""

from __future__ import annotations

import heapq
import os
import random
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import pytest

LONGEST_SECONDS = 0.6
_PAUSE_SECONDS = 0.03
_LOOK_SECONDS = 0.5
_SEED = "TXSTORE_LUCK"
# What a starved thread starts does not inherit it.
_STARVED = os.SCHED_IDLE | os.SCHED_RESET_ON_FORK
_NO_PRIORITY = os.sched_param(0)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Shuffles the files, and the tests of each file. Tests of one file stay together, as their fixtures do."""
    luck, files = random.Random(int(os.environ[_SEED])), defaultdict[str, list[pytest.Item]](list)
    for item in items:
        files[item.nodeid.partition("::")[0]].append(item)
    names = sorted(files)
    luck.shuffle(names)
    for some in files.values():
        luck.shuffle(some)
    items[:] = [item for name in names for item in files[name]]


def below(pid: int) -> list[int]:
    """The processes that this one started, and those that they started."""
    children = defaultdict[int, list[int]](list)
    for process in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((process / "stat").read_text().rpartition(") ")[2].split()[1])
        except OSError:
            continue  # It has ended.
        children[parent].append(int(process.name))
    found = [pid]
    for one in found:
        found += children[one]
    return found[1:]


def change(thread: int, policy: int) -> None:
    """Sets how a thread gets a processor."""
    with suppress(ProcessLookupError):  # It has ended.
        os.sched_setscheduler(thread, policy, _NO_PRIORITY)


def starve(tests: subprocess.Popen[bytes], luck: random.Random) -> None:
    """Starves some threads after others until the tests have ended."""
    starved: list[tuple[float, int]] = []
    processes, looked_at = list[int](), float("-inf")
    while tests.poll() is None:
        now = time.monotonic()
        if now > looked_at + _LOOK_SECONDS:
            processes, looked_at = below(tests.pid), now
        while starved and starved[0][0] < now:
            change(heapq.heappop(starved)[1], os.SCHED_OTHER)
        with suppress(FileNotFoundError, IndexError):  # The process has ended, or there is none yet.
            threads = [int(entry.name) for entry in Path(f"/proc/{luck.choice(processes)}/task").iterdir()]
            for thread in luck.sample(threads, luck.randint(1, (len(threads) + 1) // 2)):
                change(thread, _STARVED)
                heapq.heappush(starved, (now + luck.uniform(0, LONGEST_SECONDS), thread))
        time.sleep(_PAUSE_SECONDS)


def main(arguments: list[str]) -> int:
    """Runs the tests. Returns pytest's exit code."""
    if not arguments or not arguments[0].isdigit() or os.geteuid() != 0:
        print("usage, as root: python -m tests.luck SEED [PYTEST ARGUMENTS]", file=sys.stderr)
        return 2
    seed, *others = arguments
    command = [sys.executable, "-m", "pytest", "-n", "4", "--no-loadscope-reorder", "-p", "tests.luck"]
    environment = {"TXSTORE_EXAMPLES": "60", **os.environ, _SEED: seed}
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        tests = subprocess.Popen([*command, f"--hypothesis-seed={seed}", *others], env=environment)
        starve(tests, random.Random(int(seed)))
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    return tests.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
