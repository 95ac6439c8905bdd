"""Subscribers and publishers, as FastStream's broker creates them, and the producer that sends for both.

In:     what `broker.subscriber` and `broker.publisher` were given, and an opened broker of `txstore.aio`.
Out:    a task for each subscriber that reads and calls its handlers; messages; parts of the AsyncAPI document.
Always: one message at a time in each subscriber, in the order of its queues. A task that is cancelled leaves its
        message to be delivered again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

from faststream._internal.configs import (
    BrokerConfig,
    PublisherSpecificationConfig,
    PublisherUsecaseConfig,
    SubscriberSpecificationConfig,
    SubscriberUsecaseConfig,
)
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream._internal.endpoint.subscriber import SubscriberSpecification, SubscriberUsecase
from faststream._internal.endpoint.subscriber.mixins import TasksMixin
from faststream._internal.endpoint.utils import ParserComposition, process_msg
from faststream._internal.parser import DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream.exceptions import FeatureNotSupportedException, IncorrectState
from faststream.middlewares import AckPolicy
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message as MessageSpec
from faststream.specification.schema import Operation, PublisherSpec, SubscriberSpec

import txstore.aio
from txstore.faststream.message import TxStoreMessage, TxStorePublishCommand, decode, encoded, parse
from txstore.message import Message, ReceivedMessage

__all__ = ["Config", "Producer", "Publisher", "Subscriber"]

_POLL_SECONDS = 1.0
_NO_REQUESTS = "txstore has no request and reply\nhint: publish to a topic, and subscribe to another for the answer"


class Producer(ProducerProto[TxStorePublishCommand]):
    """Sends what publishers and handlers publish, also within a session of the user's database."""

    def __init__(self, parser: Any = None, decoder: Any = None) -> None:
        self._parser = ParserComposition(parser, parse)
        self._decoder = ParserComposition(decoder, decode)
        self.codec: Any = DefaultCodec()
        self.serializer: Any = None
        self.sender: Any = None
        """A producer of `txstore.aio`, while the broker is connected."""

    async def message_of(self, command: TxStorePublishCommand) -> Message:
        """Returns the message of a command, its body encoded."""
        body, content_type = await self.codec.encode(command.body, self.serializer)
        return encoded(command, body, content_type)

    async def publish(self, cmd: TxStorePublishCommand) -> Any:
        """Sends one message. With a session it is a row of the session's transaction."""
        if self.sender is None:
            raise IncorrectState("the broker is not connected\nhint: await broker.start()")
        message, session = await self.message_of(cmd), cmd.options.get("session")
        if session is None:
            return await self.sender.send(message)
        return await self.sender.send(message, session=session)

    async def request(self, cmd: TxStorePublishCommand) -> Any:
        """Raises FeatureNotSupportedException."""
        raise FeatureNotSupportedException(_NO_REQUESTS)

    async def publish_batch(self, cmd: TxStorePublishCommand) -> Any:
        """Raises FeatureNotSupportedException."""
        raise FeatureNotSupportedException("publish the messages one by one; within a session they are sent together")


@dataclass(kw_only=True)
class Config(BrokerConfig):
    """What a broker and its routers share."""

    producer: Producer = field(default_factory=Producer)
    group: str = ""
    broker: txstore.aio.Broker | None = None

    @property
    def opened(self) -> txstore.aio.Broker:
        """The broker, while it is connected."""
        if self.broker is None:
            raise IncorrectState("the broker is not connected\nhint: await broker.start()")
        return self.broker


@dataclass(kw_only=True)
class _SubscriberConfig(SubscriberUsecaseConfig):
    _outer_config: Config = field(default_factory=Config)
    topic: str
    tags: str | None
    group: str | None
    options: dict[str, Any]

    @property
    def ack_policy(self) -> AckPolicy:
        """A message whose handler raises is delivered again, unless the program chooses otherwise."""
        chosen = self._outer_config.ack_policy if self._ack_policy is EMPTY else self._ack_policy
        return AckPolicy.NACK_ON_ERROR if chosen is EMPTY else chosen


@dataclass(kw_only=True)
class _SubscriberSpecificationConfig(SubscriberSpecificationConfig):
    topic: str


@dataclass(kw_only=True)
class _PublisherConfig(PublisherUsecaseConfig):
    _outer_config: Config = field(default_factory=Config)
    topic: str
    options: dict[str, Any]


@dataclass(kw_only=True)
class _PublisherSpecificationConfig(PublisherSpecificationConfig):
    topic: str


class _SubscriberSpecification(SubscriberSpecification[Config, _SubscriberSpecificationConfig]):
    """The subscriber in the AsyncAPI document."""

    @property
    def channel_labels(self) -> list[str]:
        """The topic, with the prefix of its router."""
        return [f"{self._outer_config.prefix}{self.config.topic}"]

    def get_schema(self) -> dict[str, SubscriberSpec]:
        """For FastStream."""
        message = MessageSpec(title=f"{self.name}:Message", payload=resolve_payloads(self.get_payloads()))
        operation = Operation(message=message, bindings=None)
        (address,) = self.channel_labels
        return {
            self.name: SubscriberSpec(address=address, description=self.description, operation=operation, bindings=None)
        }


class _PublisherSpecification(PublisherSpecification[Config, _PublisherSpecificationConfig]):
    """The publisher in the AsyncAPI document."""

    @property
    def topic(self) -> str:
        """The topic, with the prefix of its router."""
        return f"{self._outer_config.prefix}{self.config.topic}"

    @property
    def name(self) -> str:
        """Its title, or one made of the topic."""
        return self.config.title_ or f"{self.topic}:Publisher"

    def get_schema(self) -> dict[str, PublisherSpec]:
        """For FastStream."""
        payload = resolve_payloads(self.get_payloads(), "Publisher")
        operation = Operation(message=MessageSpec(title=f"{self.name}:Message", payload=payload), bindings=None)
        return {
            self.name: PublisherSpec(
                address=self.topic, description=self.config.description_, operation=operation, bindings=None
            )
        }


class Subscriber(TasksMixin, SubscriberUsecase[ReceivedMessage]):
    """Reads a topic for a group, and calls the handlers."""

    _outer_config: Config

    def __init__(self, config: _SubscriberConfig, specification: Any, calls: Any) -> None:
        config.parser, config.decoder = parse, decode
        super().__init__(config, specification, calls)
        self._topic, self._group = config.topic, config.group
        self.tags, self.options = config.tags, config.options

    @property
    def topic(self) -> str:
        """The topic, with the prefix of its router."""
        return f"{self._outer_config.prefix}{self._topic}"

    @property
    def group(self) -> str:
        """Its own consumer group, or the broker's."""
        return self._group or self._outer_config.group

    def consumer(self) -> AbstractAsyncContextManager[txstore.aio.Consumer]:
        """Creates the consumer that it reads with."""
        return self._outer_config.opened.consumer(self.group, self.topic, self.tags, **self.options)

    async def start(self) -> None:
        """Begins to read, if there are handlers."""
        await super().start()
        if self.calls:
            self.add_task(self._consume)
        self._post_start()

    async def stop(self) -> None:
        """Stops reading. A handler that has begun ends first, or is cancelled after `graceful_timeout`."""
        tasks = [task for task in self.tasks if task is not asyncio.current_task()]
        await super().stop()
        # Their consumers must be closed before the broker is.
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _consume(self) -> None:
        async with self.consumer() as consumer:
            while self.running:
                for message in await consumer.poll(1, _POLL_SECONDS):
                    await self.consume(message)

    async def get_one(self, *, timeout: float = 5.0) -> TxStoreMessage | None:
        """Returns the next message, or None after `timeout` seconds. It is acknowledged unless `nack` was called."""
        if self.calls:
            raise IncorrectState("get_one is for a subscriber without handlers")
        async with self.consumer() as consumer:
            for message in await consumer.poll(1, timeout):
                return await self._processed(message)
        return None

    async def __aiter__(self) -> AsyncIterator[TxStoreMessage]:
        """Yields messages; asking for the next acknowledges the last."""
        async with self.consumer() as consumer:
            async for message in consumer:
                yield await self._processed(message)

    async def _processed(self, message: ReceivedMessage) -> TxStoreMessage:
        parser, decoder = self._get_parser_and_decoder()
        context = self._outer_config.context
        middlewares = (one(message, context=context) for one in self._broker_middlewares)
        found: TxStoreMessage = await process_msg(msg=message, middlewares=middlewares, parser=parser, decoder=decoder)
        return found

    def _make_response_publisher(self, message: Any) -> Sequence[Any]:
        return ()

    def get_log_context(self, message: Any) -> dict[str, str]:
        """What each line of the log says about a message."""
        return {"topic": self.topic, "group": self.group, "message_id": getattr(message, "message_id", "")}


class Publisher(PublisherUsecase):
    """Publishes to one topic: what it is given, or what the handlers that it decorates return."""

    _outer_config: Config

    def __init__(self, config: _PublisherConfig, specification: Any) -> None:
        super().__init__(config, specification)
        self._topic = config.topic
        self.options = {name: value for name, value in config.options.items() if value is not None}

    @property
    def topic(self) -> str:
        """The topic, with the prefix of its router."""
        return f"{self._outer_config.prefix}{self._topic}"

    async def publish(
        self,
        message: Any,
        topic: str = "",
        *,
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        **options: Any,
    ) -> Any:
        """Publishes one message; options as for `TxStoreBroker.publish`."""
        command = TxStorePublishCommand(
            message,
            topic=topic or self.topic,
            headers=headers,
            correlation_id=correlation_id or self._outer_config.id_generator(),
            **{**self.options, **options},
        )
        return await self._basic_publish(command, producer=self._outer_config.producer, _extra_middlewares=())

    async def _publish(self, cmd: Any, *, _extra_middlewares: Iterable[Any]) -> None:
        command = TxStorePublishCommand.of(cmd)
        command.destination = command.destination or self.topic
        command.options = {**self.options, **command.options}
        await self._basic_publish(command, producer=self._outer_config.producer, _extra_middlewares=_extra_middlewares)

    async def request(self, message: Any, *arguments: Any, **options: Any) -> Any:
        """Raises FeatureNotSupportedException."""
        raise FeatureNotSupportedException(_NO_REQUESTS)


def create_subscriber(
    config: Config,
    calls: Any,
    topic: str,
    *,
    tags: str | None,
    group: str | None,
    options: dict[str, Any],
    ack_policy: AckPolicy,
    title: str | None,
    description: str | None,
    include_in_schema: bool,
) -> Subscriber:
    """Creates a subscriber for a registrator."""
    specification = _SubscriberSpecification(
        config,
        _SubscriberSpecificationConfig(
            topic=topic, title_=title, description_=description, include_in_schema=include_in_schema
        ),
        calls,
    )
    inner = _SubscriberConfig(
        topic=topic,
        tags=tags,
        group=group,
        options=options,
        no_reply=True,
        _outer_config=config,
        _ack_policy=ack_policy,
    )
    return Subscriber(inner, specification, calls)


def create_publisher(
    config: Config,
    topic: str,
    *,
    options: dict[str, Any],
    title: str | None,
    description: str | None,
    schema: Any,
    include_in_schema: bool,
) -> Publisher:
    """Creates a publisher for a registrator."""
    specification = _PublisherSpecification(
        _outer_config=config,
        specification_config=_PublisherSpecificationConfig(
            topic=topic,
            schema_=schema,
            title_=title,
            description_=description,
            include_in_schema=include_in_schema,
        ),
    )
    return Publisher(_PublisherConfig(topic=topic, options=options, _outer_config=config), specification)


Opener = Callable[[], AbstractAsyncContextManager[txstore.aio.Broker]]
