"""`TxStoreRouter`: subscribers and publishers in a FastAPI application."""

from __future__ import annotations

from typing import Any

from fastapi.datastructures import Default
from faststream._internal.context.repository import ContextRepo
from faststream._internal.fastapi.router import StreamRouter

from txstore.faststream.broker import TxStoreBroker
from txstore.faststream.endpoints import Opener, Publisher
from txstore.message import ReceivedMessage

__all__ = ["TxStoreRouter"]


class TxStoreRouter(StreamRouter[ReceivedMessage]):
    """FastStream's router for FastAPI: `app.include_router(router)`.

    Arguments as for `TxStoreBroker` and FastAPI's `APIRouter`.
    """

    broker_class = TxStoreBroker
    broker: TxStoreBroker

    def __init__(self, opens: Opener, **options: Any) -> None:
        super().__init__(opens, **{"context": ContextRepo(), **options})

    def subscriber(self, topic: str, **options: Any) -> Any:
        """Subscribes a handler; arguments as for `TxStoreBroker.subscriber`."""
        return super().subscriber(
            topic,
            **{
                "dependencies": (),
                "response_model": Default(None),
                "response_model_include": None,
                "response_model_exclude": None,
                "response_model_by_alias": True,
                "response_model_exclude_unset": False,
                "response_model_exclude_defaults": False,
                "response_model_exclude_none": False,
                **options,
            },
        )

    def publisher(self, topic: str, **options: Any) -> Publisher:
        """Creates a publisher; arguments as for `TxStoreBroker.publisher`."""
        return self.broker.publisher(topic, **options)
