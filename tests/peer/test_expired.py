"""Guards stores from whose front retention removed files: a real RocketMQ takes them over unchanged.

It finds the same queues from the same first offsets, the same messages, keys and ids, and no other pending
transactions.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import txstore
from tests.copies import killed_copy
from tests.peer import agreement, workload
from tests.peer.rocketmq import Peer

pytestmark = pytest.mark.peer


def test_broker_loads_a_store_whose_first_files_are_removed(rocketmq: Peer, tmp_path: Path) -> None:
    for seed in (3, 4, 5):
        made = workload.options(random.Random(seed)) | {"mapped_file_size_commit_log": 1 << 16}
        path = tmp_path / str(seed)
        # A delayed message would keep its file.
        steps = workload.plan(random.Random(seed), 120)
        workload.write(path, made, [step for step in steps if step.kind not in ("delayed", "retry")])
        with txstore.open(path, clean_resource_interval=86_400, transaction_check_interval=86_400) as broker:
            for waiting in broker.transactions():
                broker.discard(waiting.transaction_id or "")
            producer = broker.producer("last")
            for number in range(150):
                producer.send(txstore.Message("orders", b"x" * 1_000, keys=[f"last-{number}"]), queue_id=0)
            assert not broker.transactions()
            expired = broker.store.remove_log_files(broker.stat().max_physical_offset, keep_unread=False)
            assert expired.log_files > 0
        with txstore.open(path, read_only=True) as broker:
            found = agreement.messages(broker.store)
            keys, ids = agreement.keys_of(found), [message.offset_message_id for message in found]
            assert any(first > 0 for first, _ in agreement.queues(broker.store).values())
            copy = killed_copy(path, tmp_path / f"{seed}-copy")
            dump = rocketmq.dump(copy, config=workload.broker_sizes(made), keys=keys, offset_ids=ids)
            agreement.assert_same_store(dump, broker.store, keys, ids)
