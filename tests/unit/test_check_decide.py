"""Guards the decision when a pending transaction is checked, not too early or too often, and when discarded."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txstore.config import BrokerConfig
from txstore.transactions.decision import Action, CheckRules, Decision, decide, decide_alike

RETAINED = 259_200_000
RULES = CheckRules(
    transaction_timeout_ms=6_000,
    transaction_check_interval_ms=30_000,
    transaction_check_max=15,
    transaction_check_back_off=1.0,
    file_reserved_time_ms=RETAINED,
)


def test_rules_are_the_settings_of_the_broker_in_milliseconds() -> None:
    config = BrokerConfig(
        transaction_timeout=1.5,
        transaction_check_interval=timedelta(seconds=2),
        transaction_check_max=3,
        transaction_check_back_off=4.0,
        file_reserved_time=timedelta(hours=5),
    )
    assert CheckRules.of(config) == CheckRules(
        transaction_timeout_ms=1_500,
        transaction_check_interval_ms=2_000,
        transaction_check_max=3,
        transaction_check_back_off=4.0,
        file_reserved_time_ms=18_000_000,
    )


@dataclass(frozen=True)
class Facts:
    running: bool = False
    age_ms: int = 0
    stored_age_ms: int = 0
    immunity_ms: int | None = None
    checks: int = 0
    last_check_age_ms: int | None = None


WAIT, ASK, DISCARD = Action.WAIT, Action.ASK, Action.DISCARD


@pytest.mark.parametrize(
    ("facts", "producers", "action", "look_again_in_ms"),
    [
        pytest.param(Facts(age_ms=0), 1, WAIT, 6_000, id="fresh"),
        pytest.param(Facts(age_ms=5_999), 1, WAIT, 1, id="a millisecond early"),
        pytest.param(Facts(age_ms=6_000), 1, ASK, 30_000, id="due"),
        pytest.param(Facts(age_ms=6_000, last_check_age_ms=0), 1, ASK, 30_000, id="a time of a check, but no check"),
        pytest.param(Facts(age_ms=10**9, running=True), 1, WAIT, 6_000, id="still runs"),
        pytest.param(Facts(running=True, stored_age_ms=10**12), 1, WAIT, 6_000, id="runs beyond the retention"),
        pytest.param(Facts(age_ms=9_000, immunity_ms=60_000), 1, WAIT, 51_000, id="immune longer"),
        pytest.param(Facts(age_ms=1_000, immunity_ms=1_000), 1, ASK, 30_000, id="immune shorter"),
        pytest.param(Facts(age_ms=0, immunity_ms=0), 1, ASK, 30_000, id="not immune"),
        pytest.param(Facts(age_ms=0, immunity_ms=-5), 1, ASK, 30_000, id="a negative immunity time"),
        pytest.param(Facts(age_ms=99_000, checks=1, last_check_age_ms=1_000), 1, WAIT, 29_000, id="checked just now"),
        pytest.param(
            Facts(age_ms=99_000, checks=1, last_check_age_ms=30_000), 1, ASK, 30_000, id="checked an interval ago"
        ),
        pytest.param(
            Facts(age_ms=99_000, immunity_ms=10**6, checks=1, last_check_age_ms=30_000),
            1,
            ASK,
            30_000,
            id="immunity once",
        ),
        pytest.param(Facts(age_ms=9_000, checks=3), 1, ASK, 30_000, id="counted before a restart"),
        pytest.param(
            Facts(age_ms=10**6, checks=15, last_check_age_ms=100), 1, WAIT, 29_900, id="the last check may answer"
        ),
        pytest.param(Facts(age_ms=10**6, checks=15, last_check_age_ms=30_000), 1, DISCARD, 30_000, id="the maximum"),
        pytest.param(Facts(age_ms=10**6, checks=15, last_check_age_ms=30_000), 0, DISCARD, 30_000, id="nobody needed"),
        pytest.param(Facts(age_ms=10**6), 0, WAIT, 30_000, id="no producer"),
        pytest.param(Facts(age_ms=10**9, stored_age_ms=RETAINED + 1), 1, ASK, 30_000, id="too old and never checked"),
        pytest.param(Facts(age_ms=10**9, stored_age_ms=RETAINED + 1), 0, WAIT, 30_000, id="too old, no producer"),
        pytest.param(Facts(age_ms=10**9, stored_age_ms=10**12, checks=3), 1, ASK, 30_000, id="too old at an opening"),
        pytest.param(
            Facts(age_ms=10**9, stored_age_ms=RETAINED + 1, checks=3, last_check_age_ms=30_000),
            1,
            ASK,
            30_000,
            id="checked only while it was young",
        ),
        pytest.param(
            Facts(age_ms=10**9, stored_age_ms=RETAINED + 30_000, checks=3, last_check_age_ms=30_000),
            1,
            ASK,
            30_000,
            id="checked when it was as old as it may be",
        ),
        pytest.param(
            Facts(age_ms=10**9, stored_age_ms=RETAINED + 30_001, checks=3, last_check_age_ms=30_000),
            1,
            DISCARD,
            30_000,
            id="checked when it was too old",
        ),
        pytest.param(
            Facts(age_ms=10**9, stored_age_ms=RETAINED + 30_001, checks=1, last_check_age_ms=30_000),
            0,
            DISCARD,
            30_000,
            id="checked when it was too old, and then its producer left",
        ),
        pytest.param(
            Facts(age_ms=10**9, stored_age_ms=RETAINED + 10, checks=1, last_check_age_ms=9),
            1,
            WAIT,
            29_991,
            id="too old, the answer may still arrive",
        ),
        pytest.param(
            Facts(age_ms=10**9, stored_age_ms=RETAINED + 1, checks=15),
            1,
            DISCARD,
            30_000,
            id="too old, checked often enough",
        ),
        pytest.param(Facts(stored_age_ms=RETAINED - 1), 1, WAIT, 6_000, id="its own time, however old"),
        pytest.param(Facts(stored_age_ms=10**12, immunity_ms=10), 1, WAIT, 10, id="immune, however old"),
    ],
)
def test_decide(facts: Facts, producers: int, action: Action, look_again_in_ms: int) -> None:
    decision = decide(facts, RULES, producers=producers, group="g")
    assert (decision.action, decision.look_again_in_ms) == (action, look_again_in_ms)
    assert decision.no_producer is (action is WAIT and producers == 0)
    assert decision.why


def test_T11_transaction_with_a_check_under_way_is_not_checked_again() -> None:
    facts = Facts(age_ms=10**6, checks=1, last_check_age_ms=40_000)
    decision = decide(facts, RULES, producers=1, asking=True)
    assert (decision.action, decision.why) == (WAIT, "a check is in progress")


def test_T11_waiting_without_a_producer_is_reported() -> None:
    decision = decide(Facts(age_ms=10**6), RULES, producers=0, group="orders")
    assert decision.no_producer
    assert (
        decision.why
        == "no live producer of group orders can answer: it needs a listener or a database; this is not counted"
    )


@pytest.mark.parametrize(
    ("timeout_ms", "interval_ms", "look_again_in_ms"),
    [
        pytest.param(0, 30_000, 100, id="no timeout: not more often than every 100 ms"),
        pytest.param(101, 30_000, 101, id="the timeout"),
        pytest.param(60_000, 30_000, 30_000, id="at most an interval"),
        pytest.param(0, 20, 20, id="an interval shorter than 100 ms"),
        pytest.param(0, 0, 1, id="never at once, which would be a busy loop"),
    ],
)
def test_running_transaction_is_looked_at_again(timeout_ms: int, interval_ms: int, look_again_in_ms: int) -> None:
    rules = replace(RULES, transaction_timeout_ms=timeout_ms, transaction_check_interval_ms=interval_ms)
    decision = decide(Facts(running=True), rules, producers=1)
    assert (decision.action, decision.look_again_in_ms) == (WAIT, look_again_in_ms)


@pytest.mark.parametrize("interval_ms", [1, 1_000, 30_000, 300_000, 600_000, 3_600_000])
@pytest.mark.parametrize("checks", [0, 1, 2, 10_000])
def test_interval_without_back_off_is_exact(interval_ms: int, checks: int) -> None:
    """The general formula uses logarithms, and its rounding would make 1,000 ms 999 ms."""
    assert replace(RULES, transaction_check_interval_ms=interval_ms).interval_after_ms(checks) == interval_ms


@pytest.mark.parametrize("back_off", [1.0, 2.0])
def test_interval_is_never_zero(back_off: float) -> None:
    rules = replace(RULES, transaction_check_interval_ms=0, transaction_check_back_off=back_off)
    assert [rules.interval_after_ms(checks) for checks in (0, 1)] == [1, 1]


def test_back_off_makes_each_interval_longer_up_to_the_retention() -> None:
    rules = replace(RULES, transaction_check_back_off=2.0)
    assert [round(rules.interval_after_ms(checks) / 30_000) for checks in (1, 2, 3, 4)] == [1, 2, 4, 8]
    assert rules.interval_after_ms(100_000) <= RULES.file_reserved_time_ms
    facts = Facts(age_ms=10**6, checks=3, last_check_age_ms=60_000)
    assert decide(facts, rules, producers=1).action is WAIT


def test_back_off_counts_the_check_that_is_sent_now() -> None:
    rules = replace(RULES, transaction_check_back_off=2.0)
    decision = decide(Facts(age_ms=10**6, checks=2, last_check_age_ms=10**6), rules, producers=1)
    assert decision == (ASK, rules.interval_after_ms(3), "due for check 3", False)
    assert rules.interval_after_ms(3) > rules.interval_after_ms(2)


def test_back_off_ends_with_the_retention_time() -> None:
    rules = replace(RULES, transaction_check_back_off=10.0)
    waits = [
        decide(Facts(stored_age_ms=RETAINED + too_old_ms, checks=5, last_check_age_ms=0), rules, producers=1)
        for too_old_ms in (-100_000, 0, 1)
    ]
    assert [(wait.action, wait.look_again_in_ms) for wait in waits] == [(WAIT, 100_001), (WAIT, 30_000), (WAIT, 30_000)]
    no_interval = replace(rules, transaction_check_interval_ms=0)
    facts = Facts(stored_age_ms=RETAINED + 1, checks=5, last_check_age_ms=0)
    assert decide(facts, no_interval, producers=1).look_again_in_ms == 1


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        pytest.param(Facts(running=True), "its local transaction still runs", id="running"),
        pytest.param(Facts(), "first checked 6 s after it was stored", id="fresh"),
        pytest.param(Facts(immunity_ms=70), "the message's own immunity time is 0.07 s", id="immune"),
        pytest.param(
            Facts(immunity_ms=70, checks=2, last_check_age_ms=0),
            "check 2 was sent and did not end it; the next check follows",
            id="checked",
        ),
        pytest.param(
            Facts(age_ms=10**6, checks=15, last_check_age_ms=10**6),
            "15 checks did not end it (transaction_check_max is 15)",
            id="checked often enough",
        ),
        pytest.param(
            Facts(age_ms=10**9, stored_age_ms=10**9, checks=1, last_check_age_ms=10**6),
            "it is older than the retention time (file_reserved_time), and a check since then did not end it",
            id="too old",
        ),
    ],
)
def test_reason_says_what_becomes_of_a_transaction(facts: Facts, why: str) -> None:
    assert decide(facts, RULES, producers=1).why == why


ages = st.integers(0, 10**12)


@pytest.mark.parametrize("back_off", [1.0, 2.0, 10.0])
@pytest.mark.parametrize("asked_for_ms", [0, RETAINED - 10_000, RETAINED + 10**9])
def test_unanswered_transaction_is_checked_when_too_old_and_then_discarded(back_off: float, asked_for_ms: int) -> None:
    """From step to step, as rounds do: checked at least once past the retention time, discarded soon after that."""
    rules = replace(RULES, transaction_check_back_off=back_off, transaction_check_max=10_000)
    age_ms, checks, asked_ms = 0, 0, list[int]()
    while True:
        last = age_ms - asked_ms[-1] if asked_ms else None
        facts = Facts(age_ms=age_ms, stored_age_ms=age_ms, checks=checks, last_check_age_ms=last)
        # Its service is there only at first, and again when the transaction is too old.
        producers = 1 if age_ms <= asked_for_ms or age_ms > RETAINED else 0
        decision = decide(facts, rules, producers=producers)
        if decision.action is DISCARD:
            break
        if decision.action is ASK:
            asked_ms.append(age_ms)
            checks += 1
        age_ms += decision.look_again_in_ms
    assert RETAINED < asked_ms[-1] < RETAINED + 2 * rules.transaction_check_interval_ms
    assert [one for one in asked_ms if one > RETAINED] == asked_ms[-1:]
    assert age_ms == asked_ms[-1] + rules.transaction_check_interval_ms


@given(
    st.builds(
        Facts,
        running=st.booleans(),
        age_ms=ages,
        stored_age_ms=ages,
        immunity_ms=st.none() | st.integers(-(10**6), 10**9),
        checks=st.integers(0, 10**6),
        last_check_age_ms=st.none() | ages,
    ),
    st.integers(0, 3),
    st.booleans(),
    st.sampled_from([1.0, 1.5, 10.0]),
)
def test_decision_follows_its_rules(facts: Facts, producers: int, asking: bool, back_off: float) -> None:
    rules = replace(RULES, transaction_check_back_off=back_off)
    decision = decide(facts, rules, producers=producers, asking=asking)
    assert decision.look_again_in_ms >= 1
    assert decision.look_again_in_ms <= max(rules.file_reserved_time_ms + 1, 10**9)
    if facts.running or asking:
        assert decision.action is WAIT
    if decision.action is ASK:
        assert producers > 0
        assert facts.checks < rules.transaction_check_max
    if decision.action is DISCARD:
        last_check_age_ms = 10**12 if facts.last_check_age_ms is None else facts.last_check_age_ms
        asked_when_too_old = facts.checks > 0 and facts.stored_age_ms - last_check_age_ms > rules.file_reserved_time_ms
        assert facts.checks >= rules.transaction_check_max or asked_when_too_old
    if decision.action is WAIT and not (facts.running or asking or decision.no_producer):
        # A decision that changes while it waits is due at the end of a step, never later.
        assert decision.look_again_in_ms <= max(rules.transaction_timeout_ms, facts.immunity_ms or 0) or facts.checks


def common(alike: list[Facts], rules: CheckRules, producers: int) -> Decision | None:
    """The decision about all of those, which may differ in their ages, from the extremes that the engine reports."""

    def extreme(of: Callable[[Iterable[int]], int]) -> Facts:
        checked = [facts.last_check_age_ms for facts in alike if facts.last_check_age_ms is not None]
        return replace(
            alike[0],
            age_ms=of(facts.age_ms for facts in alike),
            stored_age_ms=of(facts.stored_age_ms for facts in alike),
            last_check_age_ms=of(checked) if checked else None,
        )

    return decide_alike(extreme(min), extreme(max), rules, producers=producers, group="g")


# Around the times at which a decision changes.
near = st.sampled_from([0, 5_999, 6_000, 29_999, 30_000, 30_001, 60_000, 259_199_999, 259_200_000, 259_200_001])


@given(
    st.builds(
        Facts,
        running=st.booleans(),
        immunity_ms=st.none() | near,
        checks=st.sampled_from([0, 1, 14, 15]),
        last_check_age_ms=st.none() | st.just(0),
    ),
    st.lists(st.tuples(near | ages, near | ages, near | ages), min_size=1, max_size=6),
    st.integers(0, 1),
    st.sampled_from([1.0, 2.0]),
)
def test_decision_about_all_is_the_decision_about_each(
    like: Facts, times: list[tuple[int, int, int]], producers: int, back_off: float
) -> None:
    rules = replace(RULES, transaction_check_back_off=back_off)
    alike = [
        replace(
            like,
            age_ms=age,
            stored_age_ms=stored,
            last_check_age_ms=None if like.last_check_age_ms is None else checked,
        )
        for age, stored, checked in times
    ]
    decision = common(alike, rules, producers)
    each = {decide(facts, rules, producers=producers, group="g") for facts in alike}
    assert decision is None or each == {decision}


@pytest.mark.parametrize(
    ("alike", "producers", "action"),
    [
        pytest.param([Facts(age_ms=6_000), Facts(age_ms=90_000)], 1, ASK, id="all are due"),
        pytest.param([Facts(age_ms=6_000), Facts(age_ms=90_000)], 0, WAIT, id="all wait for a producer"),
        pytest.param([Facts(running=True), Facts(running=True, age_ms=10**9)], 1, WAIT, id="all still run"),
        pytest.param([Facts(checks=1, last_check_age_ms=30_000 * n) for n in (1, 2)], 1, ASK, id="all were checked"),
        pytest.param(
            [Facts(stored_age_ms=RETAINED, checks=1, last_check_age_ms=30_000 * n) for n in (1, 2)],
            1,
            ASK,
            id="all were checked and are nearly too old",
        ),
        pytest.param([Facts(age_ms=5_999), Facts(age_ms=6_000)], 1, None, id="one is too young"),
        pytest.param([Facts(), Facts(age_ms=1)], 1, None, id="they wait differently"),
        pytest.param([Facts(age_ms=6_000), Facts(age_ms=6_000, stored_age_ms=10**10)], 1, ASK, id="some are too old"),
        pytest.param(
            [Facts(age_ms=10**10, stored_age_ms=10**10, checks=1, last_check_age_ms=30_000 * n) for n in (1, 2)],
            1,
            None,
            id="all are too old and were checked",
        ),
    ],
)
def test_alike_transactions_are_decided_about_at_once_where_the_rule_allows(
    alike: list[Facts], producers: int, action: Action | None
) -> None:
    decision = common(alike, RULES, producers)
    assert (None if decision is None else decision.action) is action
