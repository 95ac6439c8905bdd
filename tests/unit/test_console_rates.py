"""Guards the console's rates: what it says of the last seconds and minutes is what happened then."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.pages import Browser
from tests.waiting import eventually
from txstore import EmbeddedBroker, Message, Server, ServerConfig
from txstore.broker.operations import Operations
from txstore.console.rates import Rates
from txstore.console.text import line_of, rate


def test_rates_are_those_of_the_last_samples(broker: EmbeddedBroker) -> None:
    now = [0.0]
    operations, rates = Operations(broker, monotonic=lambda: now[0]), Rates(lambda: now[0])
    assert rates.past().messages_per_second is None
    broker.create_topic("orders", 1)
    producer = broker.producer("shop")
    for number in (0, 50, 0, 0, 0):
        for _ in range(number):
            producer.send(Message("orders", b"x"))
        rates.add(operations.overview())
        now[0] += 5.0
    past = rates.past()
    assert (list(past.messages), past.seconds) == ([10.0, 0.0, 0.0, 0.0], 20.0)
    assert past.messages_per_second == 0.0, "the 50 are longer ago than the last samples"
    assert (list(past.pending), list(past.lag)) == ([0.0] * 5, [0.0] * 5)


@pytest.mark.parametrize(
    ("value", "text"), [(None, "–"), (0.0, "0"), (0.26, "0.3"), (12.6, "13"), (12_345.6, "12,346")]
)
def test_rate_as_text(value: float | None, text: str) -> None:
    assert rate(value) == text


def test_line_keeps_within_its_box() -> None:
    assert line_of([]) == line_of([7.0]) == ""
    assert line_of([0.0, 5.0, 10.0]) == "0.0,23.0 50.0,12.0 100.0,1.0"
    assert line_of([0.0, 0.0]) == "0.0,23.0 100.0,23.0"


@pytest.fixture
def browser(broker: EmbeddedBroker) -> Iterator[Browser]:
    config = ServerConfig("127.0.0.1:0", name_server=None, console="127.0.0.1:0")
    with Server(broker, config) as server:
        yield Browser(server.console or "")


def test_overview_shows_the_rate_after_a_while(broker: EmbeddedBroker, browser: Browser) -> None:
    broker.create_topic("orders", 1)
    producer = broker.producer("shop")

    def is_shown() -> bool:
        producer.send(Message("orders", b"x"))
        page = browser.get("/")
        return page.tiles["Messages per second"] not in ("–", "0") and page.tags["polyline"] > 0

    eventually(is_shown)
