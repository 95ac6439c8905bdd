"""Crash points: where a test lets the process of its program end.

In:     a point, and what survives.
Out:    `SimulatedCrash` in the program when it reaches the point.
Always: one crash for each plan.
Not here: what a crash does (`broker`).
"""

import threading
from dataclasses import dataclass
from enum import StrEnum

from txstore.errors import InvalidOptionError

__all__ = ["CrashPlan", "CrashPlans", "CrashPoint", "SimulatedCrash"]


class SimulatedCrash(BaseException):
    """The process of the program under test ends here. No `except Exception` catches it, as none survives a kill."""


class CrashPoint(StrEnum):
    """A moment in the life of a message. `list(CrashPoint)` are all of them, for `pytest.mark.parametrize`."""

    BEFORE_SEND = "before_send"
    """A message without a transaction is not stored yet."""
    AFTER_SEND = "after_send"
    """It is stored, and `send` has not returned."""
    BEFORE_HALF = "before_half"
    """The half message is not stored yet."""
    AFTER_HALF = "after_half"
    """The half message is stored, and its local transaction has not begun."""
    BEFORE_END = "before_end"
    """The local transaction has committed or rolled back, and its message does not know yet."""
    AFTER_END = "after_end"
    """The message is committed or rolled back, and the call that did it has not returned."""
    BEFORE_ACKNOWLEDGE = "before_acknowledge"
    """A consumer has handled a message, and its offset is unchanged."""
    AFTER_ACKNOWLEDGE = "after_acknowledge"
    """The offset has changed, and the call that did it has not returned. Offsets reach the disk some seconds later."""


@dataclass(slots=True)
class CrashPlan:
    """When the program crashes, and what survives."""

    point: CrashPoint
    left: int
    power_loss: bool
    seed: int | None


class CrashPlans:
    """The crash that is planned, if there is one. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._plan: CrashPlan | None = None

    def set(self, point: CrashPoint | str, nth: int, power_loss: bool, seed: int | None) -> None:
        """Plans a crash at the `nth` time that a point is reached, instead of the last plan."""
        try:
            known = CrashPoint(point)
        except ValueError:
            text = f"unknown crash point {point!r}, expected one of {', '.join(CrashPoint)}"
            raise InvalidOptionError(text, option="point") from None
        if nth < 1:
            raise InvalidOptionError(f"nth must be 1 or more, got {nth!r}", option="nth")
        with self._lock:
            self._plan = CrashPlan(known, nth, power_loss, seed)

    def clear(self) -> None:
        """Plans no crash."""
        with self._lock:
            self._plan = None

    def reached(self, point: CrashPoint) -> CrashPlan | None:
        """Returns the plan if the program crashes now, and forgets it."""
        with self._lock:
            plan = self._plan
            if plan is None or plan.point is not point:
                return None
            plan.left -= 1
            if plan.left:
                return None
            self._plan = None
            return plan
