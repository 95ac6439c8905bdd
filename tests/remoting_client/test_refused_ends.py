"""Guards ends that come too late: the caller gets the transaction's outcome, as in the store's own process.

An application that gets "rolled back" after its commit knows at once that a check answered before it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import txstore
from tests.peer.rocketmq import Peer
from tests.remoting_client.conftest import SOON, STORE_SETTINGS
from tests.remoting_client.helpers import COMMIT, ROLLBACK, UNKNOWN, Answers
from tests.waiting import eventually
from txstore import LocalTransactionState, Message, TransactionState


def ended(server: txstore.Server, transaction_id: str | None) -> bool:
    """Waits until a oneway answer has arrived."""
    return all(pending.transaction_id != transaction_id for pending in server.broker.transactions())


@pytest.mark.parametrize(
    ("answered", "outcome"), [(COMMIT, TransactionState.COMMITTED), (ROLLBACK, TransactionState.ROLLED_BACK)]
)
def test_end_after_a_check_gets_the_outcome(
    served: txstore.Server, serve_names: str, topic: str, answered: LocalTransactionState, outcome: TransactionState
) -> None:
    contrary = ROLLBACK if answered is COMMIT else COMMIT
    with txstore.connect(serve_names, **SOON) as broker:
        listener = Answers(UNKNOWN, check=answered)
        producer = broker.transaction_producer(f"g-{topic}", listener)
        sent = producer.send_in_transaction(Message(topic, b"17"))
        eventually(lambda: ended(served, sent.transaction_id), 40)
        for _ in range(2):
            with pytest.raises(txstore.AlreadyEndedError) as raised:
                broker.end_transaction(sent.transaction_id, contrary)
            assert raised.value.outcome is outcome
        again = broker.end_transaction(sent.transaction_id, answered)
        assert (again.outcome is outcome, again.already) == (True, True)


def test_block_whose_transaction_another_process_has_ended_raises(
    served: txstore.Server, serve_names: str, topic: str
) -> None:
    """If the first producer's connection is lost, the check goes to another producer of the group."""
    first = txstore.connect(serve_names, **SOON)
    with first, txstore.connect(serve_names, **SOON) as second:
        producer = first.transaction_producer(f"g-{topic}")
        listener = Answers(UNKNOWN, check=ROLLBACK)
        tx = producer.transaction(Message(topic, b"17"))
        with tx:
            producer.close()
            second.transaction_producer(f"g-{topic}", listener)
            eventually(lambda: ended(served, tx.transaction_id), 40)
            with pytest.raises(txstore.AlreadyEndedError) as raised:
                tx.commit()
            tx.rollback()
        assert raised.value.outcome is TransactionState.ROLLED_BACK
        assert tx.state is ROLLBACK


def test_end_sent_to_another_store_is_unknown_there(topic: str, tmp_path: Path) -> None:
    """Another store is served at the old address now."""
    address = f"127.0.0.1:{Peer.free_port()}"

    def serve(name: str) -> txstore.Server:
        return txstore.serve(tmp_path / name, listen=address, name_server=None, **STORE_SETTINGS)

    with serve("one"):
        broker = txstore.connect(address, **SOON)
        sent = broker.transaction_producer(f"g-{topic}", Answers(UNKNOWN)).send_in_transaction(Message(topic, b"17"))
        connections = broker._client.connections
        old = connections.live(address)
        assert old is not None
    with serve("two"), broker:
        eventually(lambda: connections.live(address) is not old)  # It has seen the end of the first.
        with pytest.raises(txstore.TransactionNotFoundError, match="is not there"):
            broker.end_transaction(sent.transaction_id, COMMIT)
