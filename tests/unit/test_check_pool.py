"""The story: listeners are the user's code; they raise, hang and lie, and every other check goes on undisturbed."""

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.waiting import eventually
from txstore.check import Answer, CheckPool
from txstore.message import LocalTransactionState, utc
from txstore.producer_registry import Producers
from txstore.transaction import CheckHistory, CheckRecord

COMMIT, UNKNOWN = LocalTransactionState.COMMIT, LocalTransactionState.UNKNOWN
SOON = 5.0


class Pool:
    """A pool whose answers are collected."""

    def __init__(self, threads: int = 4, time_limit: float = SOON) -> None:
        self.pool = CheckPool(threads, time_limit, time.monotonic)
        self.answers: dict[int, list[Answer]] = {}
        self.changed = threading.Condition()

    def submit(
        self, producer: int, key: int, ask: Callable[[], object], starting: Callable[[], bool] = lambda: True
    ) -> bool:
        def done(answer: Answer) -> None:
            with self.changed:
                self.answers.setdefault(key, []).append(answer)
                self.changed.notify_all()

        return self.pool.submit(producer, key, ask, starting=starting, done=done)

    def wait_for(self, keys: set[int]) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: keys <= self.answers.keys(), 60), self.answers


@pytest.fixture
def hang() -> Iterator[threading.Event]:
    """What hanging checks wait for; set at the end, so that no thread stays."""
    event = threading.Event()
    yield event
    event.set()


def test_an_answer_comes_back() -> None:
    pool = Pool()
    assert pool.submit(1, 7, lambda: COMMIT)
    pool.wait_for({7})
    assert pool.answers[7] == [Answer(COMMIT)]
    eventually(lambda: not pool.pool.asking(7))
    pool.pool.stop()
    assert not pool.submit(1, 8, lambda: COMMIT)


def test_no_thread_before_the_first_check() -> None:
    assert CheckPool(4, 1.0, time.monotonic).threads == 0


def test_a_check_that_raises_or_returns_no_state_is_unknown_with_the_reason() -> None:
    def raises() -> object:
        raise RuntimeError("no database")

    def leaves() -> object:
        raise SystemExit(3)

    pool = Pool()
    pool.submit(1, 1, raises)
    pool.submit(1, 2, lambda: None)
    pool.submit(1, 3, leaves)
    pool.wait_for({1, 2, 3})
    assert pool.answers[1] == [Answer(UNKNOWN, "the check raised RuntimeError: no database")]
    assert pool.answers[2][0].state is UNKNOWN
    assert "NoneType" in str(pool.answers[2][0].reason)
    assert pool.answers[3] == [Answer(UNKNOWN, "the check raised SystemExit")]
    pool.submit(1, 4, lambda: COMMIT)
    pool.wait_for({4})
    pool.pool.stop()


def test_T11_a_hanging_producer_delays_no_other(hang: threading.Event) -> None:
    pool = Pool(threads=4)
    for key in range(100):
        pool.submit(1, key, lambda: hang.wait(60) and None)
    for key in range(100, 200):
        assert pool.submit(2, key, lambda: COMMIT)
    pool.wait_for(set(range(100, 200)))
    assert not set(range(100)) & pool.answers.keys()
    assert pool.pool.threads <= 4
    pool.pool.stop()


def test_a_hanging_check_is_unknown_after_its_time_and_its_late_answer_is_ignored(hang: threading.Event) -> None:
    pool = Pool(threads=1, time_limit=0.02)

    def late() -> object:
        hang.wait(60)
        return COMMIT

    pool.submit(1, 1, late)
    eventually(lambda: bool(pool.pool.expire() is None and pool.answers))
    assert pool.answers[1][0].state is UNKNOWN
    assert "no answer within" in str(pool.answers[1][0].reason)
    assert pool.pool.hung == 1
    assert not pool.submit(1, 2, lambda: COMMIT), "all that this producer may occupy hangs"
    assert pool.submit(2, 3, lambda: COMMIT), "the hung thread is replaced"
    pool.wait_for({3})
    hang.set()
    eventually(lambda: pool.pool.hung == 0)
    assert len(pool.answers[1]) == 1
    assert pool.submit(1, 4, lambda: COMMIT)
    pool.wait_for({4})
    assert pool.pool.threads <= 1
    pool.pool.stop()


def test_hung_threads_are_bounded(hang: threading.Event) -> None:
    pool = Pool(threads=2, time_limit=0.005)
    before = threading.active_count()
    for producer in range(1, 60):
        pool.submit(producer, producer, lambda: hang.wait(60))
        time.sleep(0.006)
        pool.pool.expire()
    assert threading.active_count() - before <= 2 + 4 * 2 + 1
    pool.pool.stop()


def test_what_is_not_to_start_is_not_asked() -> None:
    pool = Pool()
    asked: list[int] = []
    pool.submit(1, 1, lambda: asked.append(1), starting=lambda: False)
    eventually(lambda: not pool.pool.asking(1))
    assert not asked
    assert not pool.answers
    assert pool.submit(1, 1, lambda: COMMIT), "it may be asked again"
    pool.pool.stop(SOON)


def test_one_transaction_stands_in_line_once(hang: threading.Event) -> None:
    pool = Pool()
    assert pool.submit(1, 1, lambda: hang.wait(60))
    assert not pool.submit(2, 1, lambda: COMMIT)
    hang.set()
    assert pool.pool.stop(SOON)


def test_stop_waits_for_what_runs() -> None:
    pool = Pool()
    started = threading.Event()

    def slow() -> object:
        started.set()
        time.sleep(0.05)
        return COMMIT

    pool.submit(1, 1, slow)
    assert started.wait(SOON)
    assert pool.pool.stop(SOON)
    assert pool.answers[1] == [Answer(COMMIT)]
    eventually(lambda: pool.pool.threads == 0)


def test_history_is_bounded() -> None:
    history = CheckHistory(transactions_max=3, checks_max=2)
    for key in range(5):
        for number in range(4):
            history.add(key, CheckRecord(utc(number), "p", UNKNOWN, None))
    assert history.of([0, 1]) == []
    assert [record.time for record in history.of([4])] == [utc(2), utc(3)]


class Member:
    def __init__(self, group: str) -> None:
        self.group = group
        self.number = 0

    def checker_for(self, topic: str, tag: str | None) -> None:
        return None

    def topics_changed(self) -> None: ...

    def close(self) -> None: ...


def test_home_first() -> None:
    producers = Producers()
    members = [Member("g"), Member("g"), Member("other")]
    for member in members:
        member.number = producers.add(member)
    first, second, _ = members
    assert [member for _, member in producers.of_group("g", second.number)] == [second, first]
    assert producers.add(first) == first.number
    producers.remove(second)
    assert [member for _, member in producers.of_group("g", second.number)] == [first]


def test_a_check_that_found_no_thread_is_asked_later(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    pool = Pool()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        assert pool.submit(1, 1, lambda: COMMIT)
    pool.pool.expire()
    pool.wait_for({1})
    pool.pool.stop()
