"""Guards the pool that calls user code: a call that raises, hangs or returns nonsense does not disturb the others."""

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.waiting import eventually
from txstore.message import LocalTransactionState, utc
from txstore.producer.registry import Producers
from txstore.transactions.answer import Answer, answer_of
from txstore.transactions.history import CheckHistory, CheckRecord
from txstore.transactions.pool import Pool, Result, TimeLimitError

COMMIT, UNKNOWN = LocalTransactionState.COMMIT, LocalTransactionState.UNKNOWN
SOON = 5.0


class Collecting:
    """A pool whose results are collected."""

    def __init__(self, threads: int = 4, time_limit: float = SOON) -> None:
        self.pool = Pool(threads, time_limit, time.monotonic)
        self.results: dict[int, list[Result]] = {}
        self.changed = threading.Condition()

    def submit(
        self, owner: int, key: int, work: Callable[[], object], starting: Callable[[], bool] | None = None
    ) -> bool:
        def done(result: Result) -> None:
            with self.changed:
                self.results.setdefault(key, []).append(result)
                self.changed.notify_all()

        return self.pool.submit(owner, key, work, starting=starting, done=done)

    def wait_for(self, keys: set[int]) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: keys <= self.results.keys(), 60), self.results


@pytest.fixture
def hang() -> Iterator[threading.Event]:
    """What hanging checks wait for; set at the end, so that no thread remains."""
    event = threading.Event()
    yield event
    event.set()


def test_answer_is_returned() -> None:
    pool = Collecting()
    assert pool.submit(1, 7, lambda: COMMIT)
    pool.wait_for({7})
    assert pool.results[7] == [Result(COMMIT)]
    eventually(lambda: not pool.pool.has(7))
    pool.pool.stop()
    assert not pool.submit(1, 8, lambda: COMMIT)


def test_no_thread_before_the_first_check() -> None:
    assert Pool(4, 1.0, time.monotonic).threads == 0


def test_call_that_raises_ends_no_thread() -> None:
    def raises() -> object:
        raise RuntimeError("no database")

    def leaves() -> object:
        raise SystemExit(3)

    pool = Collecting(threads=1)
    pool.submit(1, 1, raises)
    pool.submit(1, 2, leaves)
    pool.submit(1, 3, lambda: COMMIT)
    pool.wait_for({1, 2, 3})
    assert isinstance(pool.results[1][0].error, RuntimeError)
    assert isinstance(pool.results[2][0].error, SystemExit)
    assert pool.results[3] == [Result(COMMIT)]
    pool.pool.stop()


@pytest.mark.parametrize(
    ("result", "answer"),
    [
        (Result(COMMIT), Answer(COMMIT)),
        (Result(UNKNOWN), Answer(UNKNOWN)),
        (Result(Answer(UNKNOWN, sent=True)), Answer(UNKNOWN, sent=True)),
        (Result(), Answer(UNKNOWN, "the check returned NoneType, not a LocalTransactionState")),
        (Result(error=RuntimeError("no database")), Answer(UNKNOWN, "the check raised RuntimeError: no database")),
        (Result(error=SystemExit(3)), Answer(UNKNOWN, "the check raised SystemExit")),
        (Result(error=TimeoutError("slow")), Answer(UNKNOWN, "the check raised TimeoutError: slow")),
        (Result(error=TimeLimitError("no answer within 5 s")), Answer(UNKNOWN, "no answer within 5 s")),
    ],
)
def test_check_without_a_state_is_unknown_with_the_reason(result: Result, answer: Answer) -> None:
    assert answer_of(result) == answer


def test_T11_hanging_producer_delays_no_other(hang: threading.Event) -> None:
    pool = Collecting(threads=4)
    for key in range(100):
        pool.submit(1, key, lambda: hang.wait(60) and None)
    for key in range(100, 200):
        assert pool.submit(2, key, lambda: COMMIT)
    pool.wait_for(set(range(100, 200)))
    assert not set(range(100)) & pool.results.keys()
    assert pool.pool.threads <= 4
    pool.pool.stop()


def test_hanging_check_is_unknown_after_its_time_and_its_late_answer_is_ignored(hang: threading.Event) -> None:
    pool = Collecting(threads=1, time_limit=0.02)

    def late() -> object:
        hang.wait(60)
        return COMMIT

    pool.submit(1, 1, late)
    eventually(lambda: bool(pool.pool.expire() is None and pool.results))
    assert isinstance(pool.results[1][0].error, TimeLimitError)
    assert pool.pool.hung == 1
    assert not pool.submit(1, 2, lambda: COMMIT), "all threads that this producer may occupy hang"
    assert pool.submit(2, 3, lambda: COMMIT), "the hung thread is replaced"
    pool.wait_for({3})
    hang.set()
    eventually(lambda: pool.pool.hung == 0)
    assert len(pool.results[1]) == 1
    assert pool.submit(1, 4, lambda: COMMIT)
    pool.wait_for({4})
    assert pool.pool.threads <= 1
    pool.pool.stop()


def test_hung_threads_are_bounded(hang: threading.Event) -> None:
    pool = Collecting(threads=2, time_limit=0.005)
    before = threading.active_count()
    for producer in range(1, 60):
        pool.submit(producer, producer, lambda: hang.wait(60))
        time.sleep(0.006)
        pool.pool.expire()
    assert threading.active_count() - before <= 2 + 4 * 2 + 1
    pool.pool.stop()


def test_check_that_may_not_start_is_not_asked() -> None:
    pool = Collecting()
    asked: list[int] = []
    pool.submit(1, 1, lambda: asked.append(1), starting=lambda: False)
    eventually(lambda: not pool.pool.has(1))
    assert not asked
    assert not pool.results
    assert pool.submit(1, 1, lambda: COMMIT), "it may be asked again"
    pool.pool.stop(SOON)


def test_key_is_queued_once(hang: threading.Event) -> None:
    pool = Collecting()
    assert pool.submit(1, 1, lambda: hang.wait(60))
    assert not pool.submit(2, 1, lambda: COMMIT)
    hang.set()
    assert pool.pool.stop(SOON)


def test_stop_waits_for_running_checks() -> None:
    pool = Collecting()
    started = threading.Event()

    def slow() -> object:
        started.set()
        time.sleep(0.05)
        return COMMIT

    pool.submit(1, 1, slow)
    assert started.wait(SOON)
    assert pool.pool.stop(SOON)
    assert pool.results[1] == [Result(COMMIT)]
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


def test_owner_is_asked_first() -> None:
    producers = Producers()
    members = [Member("g"), Member("g"), Member("other")]
    for member in members:
        member.number = producers.add(member)
    first, second, _ = members
    assert [member for _, member in producers.of_group("g", second.number)] == [second, first]
    assert producers.add(first) == first.number
    producers.remove(second)
    assert [member for _, member in producers.of_group("g", second.number)] == [first]


def test_check_without_a_free_thread_is_asked_later(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    pool = Collecting()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        assert pool.submit(1, 1, lambda: COMMIT)
    pool.pool.expire()
    pool.wait_for({1})
    pool.pool.stop()
