"""Guards SQL92 expressions as a consumer's filter: embedded, connected, on the command line."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest

import txstore
from tests.unit.conftest import Run
from txstore import EmbeddedBroker, InvalidOptionError, Message, Sql

PRICES = ("5", "15", "25", None, "x")


def fill(broker: EmbeddedBroker | txstore.RemoteBroker) -> None:
    producer = broker.producer("p")
    for number, price in enumerate(PRICES):
        properties = {} if price is None else {"price": price}
        producer.send(Message("t", str(number).encode(), tags="paid", properties=properties), queue_id=0)


def bodies(consumer: txstore.Consumer, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        found += [message.body for message in consumer.poll(9, timeout=20)]
    return found


def test_a_consumer_gets_what_fulfils_the_expression_and_the_rest_is_acknowledged(broker: EmbeddedBroker) -> None:
    fill(broker)
    with broker.consumer("c", "t", Sql("price > 10")) as consumer:
        assert consumer.tags == Sql("price > 10")
        assert bodies(consumer, 2) == [b"1", b"2"]
        assert consumer.poll(9) == []
    assert broker.consumer_offset("t", "c", 0) == 5


def test_each_topic_has_its_own_expression(broker: EmbeddedBroker) -> None:
    fill(broker)
    with broker.consumer("c", {"t": Sql("price IS NULL"), "other": "paid"}) as consumer:
        assert bodies(consumer, 1) == [b"3"]


def test_members_must_have_the_same_expression(broker: EmbeddedBroker) -> None:
    broker.create_topic("t")
    with broker.consumer("c", "t", Sql("price > 10")), broker.consumer("c", "t", Sql("price > 10")):
        for other in (Sql("price > 11"), None, "price"):
            with pytest.raises(InvalidOptionError, match="has the tags 'price > 10'"):
                broker.consumer("c", "t", other)


def test_a_wrong_expression_names_the_position() -> None:
    with pytest.raises(InvalidOptionError, match=r"unequal is written <>\) at position 7 of the expression") as raised:
        Sql("price != 10")
    assert raised.value.option == "sql"
    with pytest.raises(TypeError):
        Sql(1)  # type: ignore[arg-type]


def test_an_expression_is_a_value() -> None:
    sql = Sql("a = 'it''s'")
    assert (sql, hash(sql)) == (Sql("a = 'it''s'"), hash(Sql("a = 'it''s'")))
    assert sql != Sql("a = 'its'")
    assert sql != "a = 'it''s'"
    assert repr(sql) == "Sql(\"a = 'it''s'\")"
    assert pickle.loads(pickle.dumps(sql)) == copy.copy(sql) == sql
    assert sql.matches({"a": "it's"})
    assert not sql.matches({})


def test_a_connected_consumer_and_a_read_are_filtered_by_the_server(tmp_path: Path) -> None:
    with (
        txstore.open(tmp_path / "store") as broker,
        txstore.serve(broker, listen="127.0.0.1:0", name_server="127.0.0.1:0") as server,
        txstore.connect(str(server.address)) as remote,
    ):
        fill(remote)
        with remote.consumer("c", "t", Sql("price BETWEEN 10 AND 20")) as consumer:
            assert bodies(consumer, 1) == [b"1"]
        messages, following = remote.read("t", 0, 0, tags=Sql("price = 25"))
        assert ([message.body for message in messages], following) == ([b"2"], 5)


def test_a_large_expression_over_large_messages_gets_to_what_it_selects(tmp_path: Path) -> None:
    """A pull ends after a few such messages, and the consumer continues there."""
    large = {f"k{number}": "value" for number in range(2_000)}
    wanted = Sql(" OR ".join(f"z{number}=1" for number in range(1_000)) + " OR price = 10")
    with (
        txstore.open(tmp_path / "store") as broker,
        txstore.serve(broker, listen="127.0.0.1:0", name_server="127.0.0.1:0") as server,
        txstore.connect(str(server.address)) as remote,
    ):
        producer = broker.producer("p")
        for _ in range(10):
            producer.send(Message("t", b"large", properties=large), queue_id=0)
        producer.send(Message("t", b"wanted", properties={"price": "10"}), queue_id=0)
        with remote.consumer("c", "t", wanted) as consumer:
            assert bodies(consumer, 1) == [b"wanted"]


def test_the_command_line_filters(run: Run, tmp_path: Path) -> None:
    with txstore.open(tmp_path / "store") as broker:
        fill(broker)
    store = tmp_path / "store"
    code, out, err = run("tail", store, "t", "--sql", "price > 10", "--json")
    assert (code, err, len(out.splitlines())) == (0, "", 2)
    code, out, err = run("consume", store, "t", "--group", "c", "--sql", "price = 5", "--json")
    assert (code, len(out.splitlines())) == (0, 1), err
    code, _, err = run("tail", store, "t", "--sql", "price >")
    assert code != 0
    assert "at position 8 of the expression" in err
    code, _, err = run("tail", store, "t", "--sql", "price > 1", "--tags", "paid")
    assert code != 0
    assert "two filters" in err
