"""`TestTxStoreBroker`: FastStream's test broker, on the engine in memory.

In:     a `TxStoreBroker`.
Out:    what it publishes is stored in memory, read by each subscriber's own consumer, and handled before `publish`
        returns.
Always: opens no store. Topics, tags and acknowledgements follow the engine's rules.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import MagicMock

from faststream._internal.parser import DefaultCodec
from faststream._internal.testing.broker import TestBroker, change_producer

from txstore.faststream.broker import TxStoreBroker
from txstore.faststream.endpoints import Producer, Publisher, Subscriber
from txstore.faststream.message import TxStorePublishCommand
from txstore.testing import FakeBroker

__all__ = ["TestTxStoreBroker"]


class _MemoryProducer(Producer):
    """Stores in memory and has all subscribers handle what they get."""

    def __init__(self, brokers: tuple[TxStoreBroker, ...], broker: TxStoreBroker) -> None:
        super().__init__(broker._parser, broker._decoder)
        self.codec = broker.config.broker_codec or DefaultCodec()
        self.serializer = broker.config.fd_config._serializer
        self._brokers = brokers
        self._memory = FakeBroker()
        self._readers: dict[Any, Any] = {}

    async def publish(self, cmd: TxStorePublishCommand) -> Any:
        """Stores the message. A session is not used."""
        sent = self._memory.producer("test").send(await self.message_of(cmd))
        for subscriber in [one for broker in self._brokers for one in broker.subscribers]:
            if isinstance(subscriber, Subscriber) and subscriber.topic == cmd.destination:
                for message in self._reader_of(subscriber).poll(64):
                    await subscriber.process_message(message)
        return sent

    def _reader_of(self, subscriber: Subscriber) -> Any:
        """Subscribers of one group share what it reads, as consumers do."""
        name = (subscriber.group, subscriber.topic, subscriber.tags)
        if name not in self._readers:
            self._readers[name] = self._memory.consumer(subscriber.group, subscriber.topic, subscriber.tags)
        return self._readers[name]

    def close(self) -> None:
        """Closes the memory."""
        self._memory.close()


class TestTxStoreBroker(TestBroker[TxStoreBroker, Any], broker=TxStoreBroker):  # type: ignore[call-arg]
    """`async with TestTxStoreBroker(broker) as tested:` runs the program's handlers without a store."""

    @contextmanager
    def _patch_producer(self, broker: TxStoreBroker) -> Iterator[None]:
        memory = _MemoryProducer(self.brokers, broker)
        with change_producer(broker.config.broker_config, memory):
            yield
        memory.close()

    def create_publisher_fake_subscriber(self, broker: TxStoreBroker, publisher: Publisher) -> tuple[Subscriber, bool]:
        """For FastStream."""
        for one in (found for any_broker in self.brokers for found in any_broker.subscribers):
            if isinstance(one, Subscriber) and one.topic == publisher.topic:
                return one, True
        made: Subscriber = broker.subscriber(publisher.topic, group="test-publisher", persistent=False)
        return made, False

    async def _fake_connect(self, broker: TxStoreBroker, *arguments: Any, **options: Any) -> Any:
        return MagicMock()
