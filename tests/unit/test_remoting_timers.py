"""Guards messages with RocketMQ's timer properties, and their recall, over the remoting protocol."""

import base64
import time
from collections.abc import Iterator

import pytest

from tests.frames import Wire
from tests.remoting_requests import SEND_V2, properties, sending
from tests.waiting import eventually
from txstore import EmbeddedBroker, Server, ServerConfig, StoredMessage


@pytest.fixture
def server(broker: EmbeddedBroker) -> Iterator[Server]:
    with Server(broker, ServerConfig(listen="127.0.0.1:0", name_server=None)) as server:
        yield server


def delivered(broker: EmbeddedBroker) -> list[StoredMessage]:
    return broker.read("orders", 0, 0, 1000)[0]


@pytest.mark.parametrize(
    "timer",
    [{"TIMER_DELAY_SEC": "1"}, {"TIMER_DELAY_MS": "700"}, {"TIMER_DELIVER_MS": "in 4 s"}],
    ids=lambda timer: next(iter(timer)),
)
def test_message_is_delivered_at_its_time(wire: Wire, broker: EmbeddedBroker, timer: dict[str, str]) -> None:
    began = time.time()
    timer = {name: str(int(began * 1000) + 4_000) if value.startswith("in") else value for name, value in timer.items()}
    sent = wire.call(SEND_V2, sending(text=properties(UNIQ_KEY="ID1", **timer)), b"late")
    assert (sent.code, bool(sent.fields["recallHandle"])) == (0, True)
    eventually(lambda: [one.body for one in delivered(broker)] == [b"late"])
    (late,) = delivered(broker)
    assert late.store_timestamp.timestamp() >= began + 0.69
    assert late.message_id == "ID1"


def test_recalled_message_is_never_delivered(wire: Wire, broker: EmbeddedBroker) -> None:
    handles = [
        wire.call(SEND_V2, sending(text=properties(UNIQ_KEY=name, TIMER_DELAY_MS="4000")), name.encode()).fields[
            "recallHandle"
        ]
        for name in ("ID1", "ID2")
    ]
    decoded = base64.urlsafe_b64decode(handles[0]).decode().split(" ")
    assert (decoded[:3], decoded[4]) == (["v1", "orders", broker.config.broker_name], "ID1")
    recall = {"producerGroup": "g", "topic": "orders", "recallHandle": handles[0]}
    answer = wire.call(370, recall)
    assert (answer.code, answer.fields["msgId"]) == (0, "ID1")
    again = wire.call(370, recall)
    assert again.code == 604
    assert "does not wait" in (again.remark or "")
    assert wire.call(370, recall | {"topic": "others"}).code == 604, "the topic is not that of the handle"
    eventually(lambda: [one.body for one in delivered(broker)] == [b"ID2"])
