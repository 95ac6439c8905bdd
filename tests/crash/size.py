"""How much of a fault test runs: a small number on each change, a large one where somebody asks for it.

In: a name, as in `TXSTORE_KILLS=2000`. Out: the steps of the test, with a sign of life in a long run and a summary
at its end. Always: a seed is printed, and `TXSTORE_SEED` gives it back. Not here: what a step is.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Iterator

from txstore.cli.progress import Progress

_SIGN_OF_LIFE_SECONDS = 20.0


def count(name: str, quick: int) -> int:
    """How often: what `TXSTORE_<name>` says, else `quick`."""
    return int(os.environ.get(f"TXSTORE_{name}", quick))


def chance() -> random.Random:
    """Chance with a seed that is printed; the same again with TXSTORE_SEED.

    A run that somebody asked to be long draws its seed; the small one, which judges a change, is the same each time.
    """
    asked = any(name.startswith("TXSTORE_") for name in os.environ)
    seed = int(os.environ.get("TXSTORE_SEED", random.randrange(1 << 30) if asked else 1))
    print(f"seed {seed}")
    return random.Random(seed)


def steps(label: str, total: int) -> Iterator[int]:
    """0, 1, … total - 1; says on stderr how far it is, and at the end how long it took."""
    began = told = time.monotonic()
    with Progress(label, total) as bar:
        for number in range(total):
            bar.to(number)
            now = time.monotonic()
            if now - told > _SIGN_OF_LIFE_SECONDS and not sys.stderr.isatty():
                print(f"{label}: {number:,} of {total:,}", file=sys.stderr, flush=True)
                told = now
            yield number
    print(f"{label}: {total:,} in {time.monotonic() - began:.1f} s, no promise broken", file=sys.stderr, flush=True)
