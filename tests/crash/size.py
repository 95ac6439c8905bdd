"""Sets how much of a fault test runs: a small number on each change, a large one on request.

In:     a name, as in `TXSTORE_KILLS=2000`.
Out:    the steps of the test, with progress messages in a long run and a summary at its end.
Always: a seed is printed, and `TXSTORE_SEED` repeats it.
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
    """The number of steps: the value of `TXSTORE_<name>`, else `quick`."""
    return int(os.environ.get(f"TXSTORE_{name}", quick))


def chance() -> random.Random:
    """Random numbers from a seed that is printed; TXSTORE_SEED repeats it.

    A run with a requested length draws its seed; the small run, which tests a change, is the same each time.
    """
    asked = any(name.startswith("TXSTORE_") for name in os.environ)
    seed = int(os.environ.get("TXSTORE_SEED", random.randrange(1 << 30) if asked else 1))
    print(f"seed {seed}")
    return random.Random(seed)


def steps(label: str, total: int) -> Iterator[int]:
    """Yields 0, 1, … total - 1; reports progress on stderr, and at the end the time it took."""
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
