"""Guards against lost data: a process is killed with SIGKILL at any moment, and its store is compared with what it
acknowledged.

The child reports each answer through a pipe, after it got it: what arrived there was acknowledged. Several threads
send, end (once, twice, against each other), consume and write snapshots, while checks run; kills come at work, during
the recovery from the previous kill, and in a close, again and again in the same store. After each one every promise is
checked, by a reader that changes nothing and by the next writer. The seed is printed; `TXSTORE_KILLS` sets the number
of kills.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests.crash.promises import Told, check, check_offsets, check_rebuilt
from tests.crash.size import chance, count, steps
from tests.crash.workload import BUSY, SIZES
from tests.crash.zygote import Zygote

KILLS = count("KILLS", 24)
KILLS_A_STORE = 12


def live_and_be_killed(zygote: Zygote, path: Path, options: dict[str, Any], luck: random.Random, told: Told) -> None:
    """One life: it works, recovers or closes when it is killed."""
    moment = luck.choice(["work", "work", "work", "recovery", "recovery", "close"])
    arguments: dict[str, Any] = {
        "path": str(path),
        "options": options,
        "seed": luck.randrange(1 << 30),
        "threads": luck.randrange(1, 4),
    }
    if moment == "work":
        life = zygote.run("tests.crash.workload:work", arguments, kill_after=luck.uniform(0.001, 0.1))
    elif moment == "recovery":
        after = luck.uniform(0, 0.03)
        life = zygote.run("tests.crash.workload:work", arguments, kill_after=after, from_ready=False)
    else:
        arguments["seconds"] = luck.uniform(0.01, 0.05)
        after = arguments["seconds"] + luck.uniform(0, 0.04)
        life = zygote.run("tests.crash.workload:work", arguments, kill_after=after)
    told.hear(life.words)
    closed = ["closed"] in life.words
    assert (life.status, life.hung) in ([(-9, False), (0, False)] if closed else [(-9, False)]), f"P2: {moment}: {life}"
    if closed and life.status == 0:
        with txstore.open(path, read_only=True) as broker:
            assert broker.open_report.clean, "a close that returned is not clean"


@pytest.mark.kill
@pytest.mark.parametrize("flush_disk_type", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_L2_T2_T5_kill_loses_nothing_acknowledged(tmp_path: Path, zygote: Zygote, flush_disk_type: str) -> None:
    luck = chance()
    options: dict[str, Any] = {"flush_disk_type": flush_disk_type, **SIZES}
    told, path = Told(), tmp_path / "store"
    sent = ended = got = 0
    for number in steps(f"kills, {flush_disk_type}", KILLS // 2):
        live_and_be_killed(zygote, path, options | BUSY, luck, told)
        if (path / "txstore" / "settings.json").exists() and luck.random() < 0.7:
            check(path, told, read_only=True)
        if luck.random() < 0.4:
            check(path, told, read_only=False, **options)
            with txstore.open(path, read_only=True) as broker:
                check_offsets(broker, told)
        if number % KILLS_A_STORE == KILLS_A_STORE - 1 or number == KILLS // 2 - 1:
            while number == KILLS // 2 - 1 and not (told.sent and told.ended and told.got):  # On a slow disk.
                live_and_be_killed(zygote, path, options | BUSY, luck, told)
            check(path, told, read_only=False, **options)
            check_rebuilt(path, told, **options)
            sent, ended = sent + len(told.sent), ended + len(told.ended)
            got += sum(map(len, told.got.values()))
            shutil.rmtree(path)
            told = Told()
    assert min(sent, ended, got) > 0, (sent, ended, got)
    print(f"{flush_disk_type}: {sent:,} acknowledged messages, {ended:,} acknowledged ends, {got:,} consumed")
