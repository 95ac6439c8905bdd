"""For the tests of programs that use txstore: a broker in memory, a manual clock, crashes.

`FakeBroker` is the real engine without files and threads. `ManualClock` is its time. `CrashPoint` names where
`FakeBroker.crash_at` ends the program, by `SimulatedCrash`. The pytest plugin `pytest_txstore` has fixtures of them.
"""

from txstore.testing.broker import FakeBroker
from txstore.testing.clock import ManualClock
from txstore.testing.crash import CrashPoint, SimulatedCrash

__all__ = ["CrashPoint", "FakeBroker", "ManualClock", "SimulatedCrash"]
