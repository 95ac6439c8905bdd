"""Guards background jobs: one thread runs many small jobs, and none of them delays the others."""

import logging
import threading

import pytest

from txstore.broker.housekeeping import Housekeeping
from txstore.errors import StoreClosedError
from txstore.testing import ManualClock


def test_jobs_run_at_their_times() -> None:
    clock = ManualClock()
    house = Housekeeping(clock.monotonic)
    ran: list[str] = []
    house.add("each second", lambda: ran.append("1"), 1.0)
    house.add("each five", lambda: ran.append("5"), 5.0)
    assert house.run_due() == 1.0
    for _ in range(5):
        clock.advance(1)
        house.run_due()
    assert ran == ["1", "1", "1", "1", "1", "5"]


def test_job_may_ask_to_run_sooner_but_not_later() -> None:
    clock = ManualClock()
    house = Housekeeping(clock.monotonic)
    wants: list[float | None] = [0.25, 99.0, None]
    house.add("job", lambda: wants.pop(0), 1.0)
    clock.advance(1)
    assert house.run_due() == 0.25
    clock.advance(0.25)
    assert house.run_due() == 1.0
    clock.advance(1)
    assert house.run_due() == 1.0


def test_job_that_raises_is_logged_and_runs_again(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    house = Housekeeping(clock.monotonic)
    ran: list[int] = []

    def fails() -> float | None:
        ran.append(1)
        raise RuntimeError("disk")

    house.add("bad", fails, 1.0)
    house.add("good", lambda: ran.append(2), 1.0)
    with caplog.at_level(logging.ERROR, "txstore.housekeeping"):
        for _ in range(2):
            clock.advance(1)
            house.run_due()
    assert ran == [1, 2, 1, 2]
    assert "bad failed" in caplog.text


def test_T13_the_wall_clock_moves_no_job() -> None:
    clock = ManualClock()
    house = Housekeeping(clock.monotonic)
    ran: list[int] = []
    house.add("job", lambda: ran.append(1), 10.0)
    for hours in (1, -24, 24 * 365 * 20):
        clock.jump(hours * 3600)
        house.run_due()
    assert ran == []


def test_wake_during_its_own_run_is_not_lost() -> None:
    clock = ManualClock()
    house = Housekeeping(clock.monotonic)
    house.add("job", lambda: house.wake("job"), 10.0)
    clock.advance(10)
    assert house.run_due() == 0.0


def test_thread_wakes_and_stops() -> None:
    house = Housekeeping()
    ran = threading.Event()
    house.add("job", lambda: ran.set(), 3600.0)
    house.start()
    house.wake("job")
    assert ran.wait(5)
    assert house.stop(5)
    ran.clear()
    house.wake("job")
    assert not ran.wait(0.02)


def test_stop_from_inside_a_job_does_not_wait_for_itself() -> None:
    house = Housekeeping()
    stopped: list[bool] = []
    house.add("job", lambda: stopped.append(house.stop()), 3600.0)
    house.start()
    house.wake("job")
    assert house._thread is not None
    house._thread.join(5)
    assert stopped == [False]


def test_closed_store_is_not_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    house = Housekeeping(clock.monotonic)

    def closed() -> float | None:
        raise StoreClosedError("the store is closed")

    house.add("job", closed, 1.0)
    clock.advance(1)
    house.run_due()
    assert "Traceback" not in caplog.text
