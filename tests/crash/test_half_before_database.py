"""Guards the order of syncs: the half message is on disk before the database syncs anything.

If the power fails between a database's commit and the message, the database has synced what it committed. Without a
durable half message the payment would stay, and no check could ask about it. strace shows in which order the tutorial's
program, with default settings, writes and syncs its files.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.crash.tracer import why_not
from tests.unit.pages import FILE, blocks

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
TUTORIAL = Path(__file__).resolve().parents[2] / "docs" / "publish" / "tutorial.md"
_BEGUN = re.compile(r"(?P<pid>\d+) +(?P<call>pwrite64|fsync|fdatasync)\(\d+<(?P<path>[^>]*)>(?P<rest>.*)")
_RESUMED = re.compile(r"(?P<pid>\d+) +<\.\.\. \w+ resumed>.*= (?P<result>-?\d+)")
_FILES = "trace=pwrite64,fsync,fdatasync"


class Call(NamedTuple):
    """A call that wrote or synced a file, and the lines of the trace between which it ran."""

    name: str
    path: str
    text: str
    begun: int
    done: int

    @property
    def is_sync(self) -> bool:
        return self.name != "pwrite64"


def calls_of(trace: str) -> list[Call]:
    """The calls of all threads, in the order in which they began."""
    found: list[Call] = []
    unfinished: dict[str, int] = {}
    for number, line in enumerate(trace.splitlines()):
        if begun := _BEGUN.match(line):
            if "<unfinished" in begun["rest"]:
                unfinished[begun["pid"]] = len(found)
            else:
                assert not begun["rest"].rpartition("= ")[2].startswith("-"), line
            found.append(Call(begun["call"], begun["path"], begun["rest"], number, number))
        elif (resumed := _RESUMED.match(line)) and resumed["pid"] in unfinished:
            assert not resumed["result"].startswith("-"), line
            at = unfinished.pop(resumed["pid"])
            found[at] = found[at]._replace(done=number)
    assert not unfinished, "the trace ends inside a call"
    return found


def test_half_is_synced_before_the_database_syncs_anything(tmp_path: Path) -> None:
    for _, text in blocks(TUTORIAL):
        if name := FILE.match(text):
            (tmp_path / name[1]).write_text(text)
    # The tables are created before, so that the payment is the first thing that the database syncs.
    subprocess.run([sys.executable, "-c", "import shop; shop.create()"], cwd=tmp_path, check=True, timeout=60)
    trace = tmp_path / "trace"
    program = [sys.executable, "pay_block.py", "19"]
    command = ["strace", "-f", "-y", "-s", "100000", "-e", _FILES, "-o", str(trace), *program]
    shown = subprocess.run(command, cwd=tmp_path, check=True, timeout=60, capture_output=True, text=True).stdout
    assert shown == "done\n"
    calls = calls_of(trace.read_text())
    log = str(tmp_path / "orders.store" / "commitlog")
    half = next(call for call in calls if call.path.startswith(log) and "RMQ_SYS_TRANS_HALF_TOPIC" in call.text)
    assert "order 19 is paid" in half.text
    database = next(call for call in calls if call.is_sync and Path(call.path).name.startswith("shop.db"))
    synced = [
        call
        for call in calls
        if call.is_sync and call.path == half.path and half.done < call.begun and call.done < database.begun
    ]
    assert synced, f"{database.path} was synced before the half message in {half.path}"
