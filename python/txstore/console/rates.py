"""Rates: how a store's numbers have changed while the console runs.

In:     an overview every few seconds.
Out:    messages and bytes per second, and the recent past of each number.
Always: keeps a quarter of an hour, in memory only. The past ends when the console does; for longer, use the metrics.
"""

import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from txstore.broker.operations import Overview

__all__ = ["EVERY_SECONDS", "Past", "Rates"]

EVERY_SECONDS = 5.0
_KEPT = 180
_RATE_SAMPLES = 4
"""A rate is that of the last 15 seconds."""


@dataclass(frozen=True, slots=True)
class _Sample:
    seconds: float
    sent: int
    log_end: int
    pending: int
    lag: int


@dataclass(frozen=True, slots=True)
class Past:
    """What happened lately; oldest value first. Rates are None until there are two samples."""

    messages_per_second: float | None
    bytes_per_second: float | None
    messages: Sequence[float]
    """Messages per second."""
    pending: Sequence[float]
    lag: Sequence[float]
    seconds: float
    """The time from the first value to the last."""


class Rates:
    """The recent past of one store. Thread-safe. `monotonic` returns seconds."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._samples: deque[_Sample] = deque(maxlen=_KEPT)

    def add(self, overview: Overview) -> None:
        """Keeps the numbers of now."""
        one = _Sample(self._monotonic(), overview.sent, overview.log_end, overview.pending, overview.lag)
        with self._lock:
            self._samples.append(one)

    def past(self) -> Past:
        """Returns what is kept."""
        with self._lock:
            kept = list(self._samples)
        recent = kept[-_RATE_SAMPLES:]
        return Past(
            _rate(recent, [one.sent for one in recent]),
            _rate(recent, [one.log_end for one in recent]),
            [_between(a, b) for a, b in itertools.pairwise(kept)],
            [float(one.pending) for one in kept],
            [float(one.lag) for one in kept],
            kept[-1].seconds - kept[0].seconds if kept else 0.0,
        )


def _rate(samples: Sequence[_Sample], values: Sequence[int]) -> float | None:
    if len(samples) < 2 or samples[-1].seconds <= samples[0].seconds:
        return None
    return max(0, values[-1] - values[0]) / (samples[-1].seconds - samples[0].seconds)


def _between(before: _Sample, after: _Sample) -> float:
    return max(0, after.sent - before.sent) / max(0.001, after.seconds - before.seconds)
