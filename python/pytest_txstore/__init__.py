"""The fixtures of txstore for pytest, which finds this module by its entry point.

pytest imports the modules of all plugins at its start. So this imports nothing of txstore before a fixture is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from txstore.testing import FakeBroker, ManualClock

__all__ = ["txstore_broker", "txstore_clock"]


@pytest.fixture
def txstore_clock() -> ManualClock:
    """A clock that moves only when the test advances it."""
    from txstore.testing import ManualClock

    return ManualClock()


@pytest.fixture
def txstore_broker(txstore_clock: ManualClock) -> Iterator[FakeBroker]:
    """A broker in memory on `txstore_clock`. It is closed after the test, and so are those that `reopen` returned."""
    from txstore.testing import FakeBroker

    broker = FakeBroker(clock=txstore_clock)
    try:
        yield broker
    finally:
        broker.close_all()
