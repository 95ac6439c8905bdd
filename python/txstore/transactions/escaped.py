"""A transaction that a replica has let escape to another broker while its source was away."""

import enum
from dataclasses import dataclass
from datetime import datetime

__all__ = ["EscapeState", "EscapedTransaction"]


class EscapeState(enum.StrEnum):
    """How far the escape of a transaction is."""

    SENDING = "sending"
    """It may be at the other broker: no answer is recorded. A txstore is asked again, so this ends."""
    SENT = "sent"
    """It is at the other broker, which ends it."""
    IN_DOUBT = "in doubt"
    """It may be at a RocketMQ broker, which cannot tell. It is not sent again, and stays pending here."""
    REFUSED = "refused"
    """The other broker did not take it. It stays pending here."""
    ROLLED_BACK = "rolled back"
    """Its producer answered the replica's check with ROLLBACK, so there was nothing to send."""
    TWICE = "ended here, too"
    """The source had committed it when it heard of the escape: its message may be delivered twice."""


@dataclass(frozen=True, slots=True)
class EscapedTransaction:
    """One transaction, as `broker.escaped_transactions()` lists it."""

    transaction_id: str
    producer_group: str
    topic: str
    """The real topic."""
    half_queue_offset: int
    physical_offset: int
    """Of its half message in the log of the source."""
    broker_name: str
    """The broker that it was sent to; empty if it was sent to none."""
    is_txstore: bool
    """Whether that broker is a txstore, which recognizes what it has already."""
    state: EscapeState
    time: datetime
    """When this state was recorded, in UTC."""

    def __str__(self) -> str:
        where = f" to broker {self.broker_name}" if self.broker_name else ""
        return f"{self.state}{where}, {self.time.isoformat(timespec='milliseconds')}"
