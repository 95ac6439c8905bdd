"""`TxStoreBroker`: FastStream's broker on a store in this process, on a shared one, or on a server.

In:     a function that opens a broker of `txstore.aio`, a group, and optionally a database.
Out:    subscribers, publishers, and `publish`, also within a session of the user's database.
Always: it opens the broker when it starts and closes it when it stops.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from fast_depends import dependency_provider
from faststream._internal.broker import BrokerUsecase
from faststream._internal.broker.registrator import Registrator
from faststream._internal.constants import EMPTY
from faststream._internal.context.repository import ContextRepo
from faststream._internal.di import FastDependsConfig
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream._internal.logger import DefaultLoggerStorage, make_logger_state
from faststream._internal.logger.logging import get_broker_logger
from faststream._internal.parser import DefaultCodec
from faststream.exceptions import FeatureNotSupportedException
from faststream.message import gen_cor_id
from faststream.middlewares import AckPolicy
from faststream.specification.schema import BrokerSpec

import txstore.aio
from txstore.database import Database
from txstore.faststream.endpoints import (
    Config,
    Opener,
    Producer,
    Publisher,
    create_publisher,
    create_subscriber,
)
from txstore.faststream.message import TxStorePublishCommand
from txstore.message import ReceivedMessage

__all__ = ["TxStoreBroker", "TxStoreRegistrator"]


class TxStoreRegistrator(Registrator[ReceivedMessage, Config]):
    """What a broker and a router have in common: subscribers and publishers."""

    def subscriber(
        self,
        topic: str,
        *,
        tags: str | None = None,
        group: str | None = None,
        ack_policy: AckPolicy = EMPTY,
        dependencies: Sequence[Any] = (),
        parser: Any = None,
        decoder: Any = None,
        title: str | None = None,
        description: str | None = None,
        include_in_schema: bool = True,
        persistent: bool = True,
        **options: Any,
    ) -> Any:
        """Subscribes a handler to a topic.

        Without `group` it reads for the group of the broker. `options` are those of `txstore.aio.Broker.consumer`, such
        as `start` and `max_reconsume_times`. If the handler raises, the message is delivered again, unless `ack_policy`
        says otherwise.
        """
        subscriber = create_subscriber(
            self.config,
            CallsCollection[Any](),
            topic,
            tags=tags,
            group=group,
            options=options,
            ack_policy=ack_policy,
            title=title,
            description=description,
            include_in_schema=include_in_schema,
        )
        super().subscriber(subscriber, persistent=persistent)
        return subscriber.add_call(
            parser_=parser or self._parser, decoder_=decoder or self._decoder, codec_=None, dependencies_=dependencies
        )

    def publisher(
        self,
        topic: str,
        *,
        tags: str | None = None,
        message_group: str | None = None,
        delay_level: int | None = None,
        title: str | None = None,
        description: str | None = None,
        schema: Any = None,
        include_in_schema: bool = True,
        persistent: bool = True,
    ) -> Publisher:
        """Creates a publisher of a topic; as a decorator it publishes what a handler returns."""
        publisher = create_publisher(
            self.config,
            topic,
            options={"tags": tags, "message_group": message_group, "delay_level": delay_level},
            title=title,
            description=description,
            schema=schema,
            include_in_schema=include_in_schema,
        )
        super().publisher(publisher, persistent=persistent)
        return publisher


class _Loggers(DefaultLoggerStorage):
    """The logger of a broker that was given none."""

    def __init__(self) -> None:
        super().__init__()
        self.logger_log_level = logging.INFO

    def set_level(self, level: int) -> None:
        self.logger_log_level = level

    def register_subscriber(self, params: dict[str, Any]) -> None: ...

    def get_logger(self, *, context: ContextRepo) -> Any:
        if found := self._get_logger_ref():
            return found
        made = get_broker_logger(
            name="txstore",
            default_context={"topic": "", "group": ""},
            message_id_ln=10,
            fmt="%(asctime)s %(levelname)-8s - %(topic)s | %(group)s | %(message_id)-10s - %(message)s",
            context=context,
            log_level=self.logger_log_level,
        )
        self._logger_ref.add(made)
        return made


class TxStoreBroker(TxStoreRegistrator, BrokerUsecase[ReceivedMessage, txstore.aio.Broker, Config]):
    """FastStream's broker on txstore.

    `opens` returns a broker of `txstore.aio` that is not open yet: `lambda: txstore.aio.open("orders.store")`, with
    `shared=True` if several processes use the store, or `txstore.aio.connect(address)`. `group` is the producer group,
    and the consumer group of subscribers that name none. With `database`, a `txstore.database.Database`, `publish`
    takes a `session`.
    """

    def __init__(
        self,
        opens: Opener,
        *,
        group: str,
        database: Database | None = None,
        url: str = "txstore://local",
        parser: Any = None,
        decoder: Any = None,
        codec: Any = None,
        dependencies: Sequence[Any] = (),
        middlewares: Sequence[Any] = (),
        routers: Iterable[TxStoreRegistrator] = (),
        graceful_timeout: float | None = 15.0,
        ack_policy: AckPolicy = EMPTY,
        description: str | None = None,
        tags: Iterable[Any] = (),
        logger: Any = EMPTY,
        log_level: int = logging.INFO,
        apply_types: bool = True,
        serializer: Any = EMPTY,
        provider: Any = None,
        context: ContextRepo | None = None,
    ) -> None:
        self._opens, self._database = opens, database
        config = Config(
            group=group,
            producer=Producer(parser, decoder),
            broker_middlewares=middlewares,
            broker_parser=parser,
            broker_decoder=decoder,
            broker_codec=codec,
            logger=make_logger_state(logger=logger, log_level=log_level, default_storage_cls=_Loggers),
            fd_config=FastDependsConfig(
                use_fastdepends=apply_types,
                serializer=serializer,
                provider=provider or dependency_provider,
                context=context or ContextRepo(),
            ),
            broker_dependencies=dependencies,
            graceful_timeout=graceful_timeout,
            ack_policy=ack_policy,
            id_generator=gen_cor_id,
            extra_context={"broker": self},
        )
        specification = BrokerSpec(
            url=[url], protocol="txstore", protocol_version=None, description=description, tags=tags, security=None
        )
        super().__init__(config=config, specification=specification, routers=routers)

    async def _connect(self) -> txstore.aio.Broker:
        broker = await self._opens().__aenter__()
        outer = self.config.broker_config
        outer.broker, producer = broker, outer.producer
        producer.codec = outer.broker_codec or DefaultCodec()
        producer.serializer = outer.fd_config._serializer
        producer.sender = (
            broker.producer(outer.group)
            if self._database is None
            else broker.producer(outer.group, database=self._database)
        )
        return broker

    async def start(self) -> None:
        """Opens the broker, and starts all subscribers."""
        await self.connect()
        await super().start()

    async def stop(self, exc_type: Any = None, exc_val: Any = None, exc_tb: Any = None) -> None:
        """Stops all subscribers, after the handlers that have begun, and closes the broker."""
        await super().stop(exc_type, exc_val, exc_tb)
        outer = self.config.broker_config
        broker, outer.broker, outer.producer.sender = outer.broker, None, None
        self._connection: txstore.aio.Broker | None = None
        if broker is not None:
            await broker.close()

    async def ping(self, timeout: float | None = None) -> bool:
        """Tells whether the broker is open."""
        broker = self.config.broker_config.broker
        return broker is not None and not broker.closed

    async def publish(
        self,
        message: Any,
        topic: str,
        *,
        tags: str | None = None,
        keys: Any = None,
        message_group: str | None = None,
        delay_level: int | None = None,
        deliver_at: datetime | None = None,
        session: Any = None,
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
    ) -> Any:
        """Publishes one message.

        With `session`, a session of the database, the message is a row of its open transaction: it is published if that
        commits. Raises InvalidMessageError, InvalidNameError, and the errors of `txstore.aio.Producer.send`.
        """
        command = TxStorePublishCommand(
            message,
            topic=topic,
            headers=headers,
            correlation_id=correlation_id or self.config.id_generator(),
            tags=tags,
            keys=keys,
            message_group=message_group,
            delay_level=delay_level,
            deliver_at=deliver_at,
            session=session,
        )
        return await self._basic_publish(command, producer=self.config.producer)

    async def request(self, *arguments: Any, **options: Any) -> Any:
        """Raises FeatureNotSupportedException."""
        raise FeatureNotSupportedException("txstore has no request and reply\nhint: publish to two topics")
