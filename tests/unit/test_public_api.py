"""The story: what a user may import is a list, sorted and kept; the rest may change."""

import inspect
import logging

import pytest

import txstore
from txstore import EmbeddedBroker, Message
from txstore.interface import BrokerInterface
from txstore.testing import FakeBroker


def test_the_door_is_sorted_and_whole() -> None:
    assert txstore.__all__ == sorted(txstore.__all__)
    assert len(set(txstore.__all__)) == len(txstore.__all__)
    for name in txstore.__all__:
        assert hasattr(txstore, name)


def test_every_public_class_and_call_says_what_it_is() -> None:
    for name in txstore.__all__:
        value = getattr(txstore, name)
        if inspect.isclass(value) or callable(value):
            assert value.__doc__, name


def test_every_error_is_behind_the_door() -> None:
    from txstore import errors

    assert set(errors.__all__) <= set(txstore.__all__)


def test_brokers_fit_the_interface() -> None:
    def takes(broker: BrokerInterface) -> object:
        return broker

    assert takes(FakeBroker())


def test_bodies_are_never_logged(broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "txstore")
    producer = broker.transaction_producer("g")
    producer.send(Message("t", b"hush-hush"))
    with pytest.raises(KeyError), producer.transaction(Message("t", b"hush-hush")):
        raise KeyError("x")
    with broker.consumer("c", "t") as consumer:
        consumer.poll(1)
    assert "hush" not in "".join(str(record.__dict__) for record in caplog.records)
