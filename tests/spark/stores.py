"""Stores for the Arrow and Spark tests: what is written is known, so what is read can be compared.

In:     an open broker.
Out:    its messages and transactions.
Always: the same for the same numbers.
"""

from __future__ import annotations

import txstore
from txstore import LocalTransactionState, Message

__all__ = ["GROUP", "fill", "message"]

GROUP = "order-service"
_ENDS = (LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK, LocalTransactionState.UNKNOWN)


def message(number: int) -> Message:
    """The message of a number: two topics in turn, bodies of different lengths, a property of its own."""
    topic = ("orders", "payments")[number % 2]
    body = f"{number}:".encode() + bytes([number % 251]) * (number % 700)
    return Message(topic, body, tags=f"t{number % 3}", keys=[f"o-{number}", "all"], properties={"number": str(number)})


class Listener(txstore.TransactionListener):
    """Commits, rolls back and answers UNKNOWN, in turn."""

    def execute_local_transaction(self, message: txstore.TransactionMessage, arg: object) -> LocalTransactionState:
        assert isinstance(arg, int)
        return _ENDS[arg % 3]

    def check_local_transaction(self, message: txstore.TransactionMessage) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN


def fill(broker: txstore.EmbeddedBroker, messages: int) -> None:
    """That many messages, and a tenth as many transactions: one in three committed, one rolled back, one pending."""
    producer = broker.producer("producers")
    for number in range(messages):
        producer.send(message(number))
    transactions = broker.transaction_producer(GROUP, Listener())
    for number in range(messages // 10):
        transactions.send_in_transaction(message(number), number)
