"""Guards long-lived readers: a service reads a store for weeks while its writers are replaced.

Writers open, append, roll files, remove old ones, close, are killed, and a repair comes in between. Readers that were
opened once (a handle of the engine, a program's broker, an Arrow scan), each in its own process, soon reach the end of
every writer's life, or report why they cannot. `TXSTORE_READER_LIVES` sets the number of lives.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.crash.reader_lives import READERS
from tests.crash.size import chance, count, steps
from tests.crash.zygote import Zygote

pytestmark = pytest.mark.kill
LIVES = count("READER_LIVES", 20)
LIVES_OF_A_STORE = 50
MODULE = "tests.crash.reader_lives"
ALL_DAY = 86_400.0


@dataclass
class Orders:
    """A named pipe to a child."""

    path: Path

    def __post_init__(self) -> None:
        os.mkfifo(self.path)
        self._file = os.fdopen(os.open(self.path, os.O_RDWR), "w", buffering=1)

    def give(self, *words: int) -> None:
        print(*words, file=self._file)

    def end(self) -> None:
        """Ends the child's orders. To be called when the child has opened its side."""
        self._file.close()


@contextmanager
def readers(store: Path, folder: Path) -> Iterator[dict[str, tuple[Zygote, Orders]]]:
    """One reader of each kind, opened now and closed at the end; what they saw is checked there."""
    folder.mkdir()
    with ExitStack() as stack:
        found = {}
        for kind in READERS:
            zygote, orders = stack.enter_context(Zygote("txstore", MODULE)), Orders(folder / kind)
            arguments = {"kind": kind, "path": str(store), "orders": str(orders.path)}
            zygote.begin(f"{MODULE}:read", arguments, limit=ALL_DAY)
            found[kind] = (zygote, orders)
        for zygote, _ in found.values():
            assert zygote.hear() == ["ready"]
        try:
            yield found
        finally:
            for _, orders in found.values():
                orders.end()
        for kind, (zygote, _) in found.items():
            life = zygote.finish()
            assert (life.status, life.hung) == (0, False), f"{kind}: {life}"
            assert life.words[-1][0] == "saw"
            assert life.words[-1][1] > 0, kind


def reach(found: dict[str, tuple[Zygote, Orders]], end: tuple[int, int], story: list[str]) -> float:
    """Waits until every reader reaches the end of the log and of the queue. Returns how long the slowest took, in
    seconds.
    """
    for _, orders in found.values():
        orders.give(*end)
    slowest = 0.0
    for kind, (zygote, _) in found.items():
        words = zygote.hear()
        assert words[0] == "at", f"{kind}: {words}, after {story[-5:]}"
        log, queue, seconds = words[1:]
        assert (log >= end[0], queue >= end[1]) == (True, True), (
            f"D1: the {kind} reader is at {log}/{queue} after {seconds:.1f} s, published is {end}, after {story[-5:]}"
        )
        slowest = max(slowest, seconds)
    return slowest


class Lives:
    """The writers of one store, one after another."""

    def __init__(self, zygote: Zygote, store: Path, luck: random.Random) -> None:
        self._zygote, self._store, self._luck = zygote, store, luck
        self._orders = Orders(store.with_suffix(".writer"))
        self.story: list[str] = []

    def end(self) -> None:
        """No further writer is started."""
        self._orders.end()

    def one(self, life: int, found: dict[str, tuple[Zygote, Orders]]) -> float:
        """One life, and what readers reach during and after it."""
        luck = self._luck
        if life and luck.random() < 0.08:
            copies = self._store.with_suffix(".copies")
            copies.mkdir()
            done = self._zygote.run(f"{MODULE}:repair", {"path": str(self._store), "copies": str(copies)})
            assert done.status == 0, done
            shutil.rmtree(copies)
            self.story.append("repair")
        ends_by = luck.choice(["close", "kill", "sudden kill"])
        arguments = {
            "path": str(self._store), "life": life, "seed": luck.randrange(1 << 30), "messages": luck.randrange(80),
            "flush_disk_type": luck.choice(["ASYNC_FLUSH", "SYNC_FLUSH"]), "removes": luck.random() < 0.2,
            "ends_by": ends_by, "orders": str(self._orders.path),
        }  # fmt: skip
        self.story.append(f"{arguments['flush_disk_type']}, {arguments['messages']} messages, {ends_by}")
        sudden = luck.uniform(0, 0.02) if ends_by == "sudden kill" else None
        self._zygote.begin(f"{MODULE}:write", arguments, kill_after=sudden)
        slowest, end = 0.0, (0, 0)
        while (words := self._zygote.hear())[0] != "over":
            assert words[0] != "wrong", f"{words}, after {self.story[-5:]}"
            end = (words[1], words[2])
            if words[0] == "waits" and sudden is None:
                slowest = reach(found, end, self.story)
                self._orders.give()
        assert words[1] == (0 if ends_by == "close" else -9), words
        return max(slowest, reach(found, end, self.story))


def test_D1_readers_reach_the_end_of_every_writers_life(tmp_path: Path) -> None:
    luck, slowest = chance(), 0.0
    numbers = iter(steps("lives of writers with readers", LIVES))
    with Zygote("txstore", MODULE) as zygote:
        for store_number in range(-(-LIVES // LIVES_OF_A_STORE)):
            store = tmp_path / f"store{store_number}"
            lives = Lives(zygote, store, luck)
            first = {"path": str(store), "life": 0, "seed": 1, "messages": luck.randrange(1, 80)}
            first |= {"flush_disk_type": "ASYNC_FLUSH", "removes": False, "orders": str(tmp_path / "nobody")}
            zygote.run(f"{MODULE}:write", first, kill_after=0.05)
            with readers(store, tmp_path / f"readers{store_number}") as found:
                for life in range(1, LIVES_OF_A_STORE + 1):
                    if next(numbers, None) is None:
                        break
                    slowest = max(slowest, lives.one(life, found))
            lives.end()
            shutil.rmtree(store)
    print(f"the slowest reader needed {slowest:.3f} s")
