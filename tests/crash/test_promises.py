"""Guards the checker of promises: it finds each false statement about a good store, and names the broken promise."""

from __future__ import annotations

import copy
import itertools
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.crash.promises import Told, check
from tests.crash.workload import SIZES, fate
from tests.crash.zygote import Zygote


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory, zygote: Zygote) -> tuple[Path, Told]:
    """A store that was worked with and closed, and what was told meanwhile."""
    path = tmp_path_factory.mktemp("promises") / "store"
    told, seeds = Told(), itertools.count(5)
    while not _has_all(told):
        arguments = {"path": str(path), "options": SIZES, "seed": next(seeds), "threads": 2, "seconds": 2}
        life = zygote.run("tests.crash.workload:work", arguments)
        assert life.status == 0, life
        told.hear(life.words)
    check(path, told, read_only=False)
    return path, told


def _has_all(told: Told) -> bool:
    """Whether there is something about which each lie can be told."""
    return bool(
        told.ended
        and told.sent
        and told.prepared.keys() - told.ended
        and max(map(len, told.got.values()), default=0) > 1
    )


def other_outcome(told: Told) -> None:
    name = next(iter(told.ended))
    told.ended[name] = "rolled_back" if told.ended[name] != "rolled_back" else "committed"


def end_of_pending(told: Told) -> None:
    name = next(name for name in told.prepared if name not in told.ended)
    told.ended[name] = fate(told.prepared[name])


def other_offset(told: Told) -> None:
    key = next(iter(told.sent))
    told.sent[key] = (told.sent[key][0], told.sent[key][1] + 1)


def read_elsewhere(told: Told) -> None:
    known = next(known for known in told.got.values() if len(known) > 1)
    known[0], known[1] = known[1], known[0]


LIES: dict[str, tuple[str, Callable[[Told], Any]]] = {
    "a message that is not there": ("L2", lambda told: told.sent.update(nobody=(0, 0))),
    "a half that is not there": ("L2", lambda told: told.prepared.update(nobody="nobody")),
    "another offset": ("L2", other_offset),
    "another outcome": ("T5", other_outcome),
    "an end of a pending transaction": ("T5", end_of_pending),
    "a message that was read and is gone": ("D1", lambda told: told.got[0].update({1_000_000: "nobody"})),
    "a message that was read elsewhere": ("D1", read_elsewhere),
    "a longer log": ("L1", lambda told: told.prefixes.append((1 << 40, 0))),
    "other bytes": ("L3", lambda told: told.prefixes.append((100, zlib.crc32(b"others")))),
}


@pytest.mark.kill
@pytest.mark.parametrize("lie", LIES)
def test_checker_finds_the_false_statement(good: tuple[Path, Told], lie: str) -> None:
    path, truth = good
    promise, tell = LIES[lie]
    told = copy.deepcopy(truth)
    tell(told)
    with pytest.raises(AssertionError, match=f"^{promise}"):
        check(path, told, read_only=True)


@pytest.mark.kill
@pytest.mark.parametrize(
    ("words", "promise"),
    [
        ([["got", "a", 0, 0], ["got", "b", 0, 2]], "a gap or a repetition"),
        ([["got", "a", 0, 7]], "begins after what was read"),
    ],
)
def test_checker_notices_what_a_consumer_skips(words: list[list[Any]], promise: str) -> None:
    with pytest.raises(AssertionError, match=r"^D1"):
        Told().hear(words)
