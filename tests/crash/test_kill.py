"""A process is killed with SIGKILL at a random moment; the store is opened again and compared with what was told.

The child tells each answer through a pipe, after it got it: what arrived there was acknowledged. After each kill every
acknowledged message is there once, every acknowledged end has its outcome, and what pends is at most what was begun and
not acknowledged as ended. The seed is printed; `TXSTORE_KILLS` sets how many kills there are.
"""

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import txstore

KILLS = int(os.environ.get("TXSTORE_KILLS", "8"))
# Small files, so that kills meet their ends, too.
SIZES = {
    "mapped_file_size_commit_log": 1 << 20,
    "mapped_file_size_consume_queue": 20 * 512,
    "max_hash_slot_num": 500,
    "max_index_num": 2000,
}

CHILD = """
import json, random, sys, threading, txstore
from txstore import LocalTransactionState, Message
path, options, seed = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
said = threading.Lock()

def say(*words):
    with said:
        sys.stdout.write(json.dumps(words) + "\\n")
        sys.stdout.flush()

def work(broker, number):
    chance = random.Random(seed * 10 + number)
    producer = broker.transaction_producer(f"group-{number}")
    say("open")
    while True:
        name = f"{seed}-{number}-{chance.getrandbits(64):x}"
        message = Message("t", name.encode() * chance.randrange(1, 40), keys=[name])
        kind = chance.choice(["send", "commit", "rollback", "leave", "snapshot"])
        if kind == "send":
            producer.send(message)
            say("sent", name)
        elif kind == "snapshot":
            if chance.random() < 0.05:
                broker.store.snapshot()
        else:
            half = broker.prepare(message, 0, producer.group, 0)
            say("prepared", name, half.message_id)
            if kind != "leave" or chance.random() < 0.5:
                state = LocalTransactionState.COMMIT if kind == "commit" else LocalTransactionState.ROLLBACK
                say("ending", name, half.message_id, state.name)
                broker.end_transaction(half, state)
                say("ended", name, half.message_id, state.name)

with txstore.open(path, **options) as broker:
    threads = [threading.Thread(target=work, args=(broker, number), daemon=True) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


class Told:
    """What children were told, over all kills."""

    def __init__(self) -> None:
        self.sent: set[str] = set()
        self.prepared: dict[str, str] = {}
        self.ending: dict[str, str] = {}
        self.ended: dict[str, str] = {}

    def hear(self, line: str) -> None:
        word, *facts = json.loads(line)
        if word == "sent":
            self.sent.add(facts[0])
        elif word == "prepared":
            self.prepared[facts[1]] = facts[0]
        elif word == "ending":
            self.ending[facts[1]] = facts[2]
        elif word == "ended":
            self.ended[facts[1]] = facts[2]


def run_and_kill(path: Path, options: dict[str, Any], seed: int, seconds: float, told: Told) -> None:
    """Starts a child, kills it some time after it opened the store, and hears what it had said until then."""
    arguments = [sys.executable, "-c", CHILD, str(path), json.dumps(options), str(seed)]
    child = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    first = child.stdout.readline()
    assert first, "the child could not open the store"
    time.sleep(seconds)
    child.kill()
    # A last line without its end was cut off by the kill: nobody was told.
    for line in child.stdout.read().splitlines(keepends=True):
        if line.endswith("\n"):
            told.hear(line)
    child.stdout.close()
    assert child.wait() == -9


def compare(path: Path, options: dict[str, Any], told: Told) -> None:
    """Opens the store, and compares all that is in it with what was told."""
    with txstore.open(path, **options) as broker:
        bodies: Counter[str] = Counter()
        for topic, queue_id, first, end in broker.store.queues():
            if topic != "t":
                continue
            at = first
            while at < end:
                messages, at = broker.store.read("t", queue_id, at, 256)
                bodies.update(message.keys[0] for message in messages)
        assert max(bodies.values(), default=1) == 1, "a message is there twice"
        assert told.sent <= set(bodies), "an acknowledged message is lost"
        pending = {one.transaction_id for one in broker.transactions()}
        states = {row.transaction_id: row.state for row in broker.store.transactions()}
        for transaction_id, name in told.prepared.items():
            state = states.get(transaction_id)
            assert state is not None, f"the acknowledged half {transaction_id} is lost"
            assert (state == "committed") == (name in bodies)
            assert (state == "pending") == (transaction_id in pending)
            ended = told.ended.get(transaction_id)
            if ended is not None:
                assert state == {"COMMIT": "committed", "ROLLBACK": "rolled_back"}[ended]
            elif transaction_id not in told.ending:
                assert state == "pending"


@pytest.mark.kill
@pytest.mark.parametrize("flush_disk_type", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_L2_T2_T5_nothing_acknowledged_is_lost_by_a_kill(tmp_path: Path, flush_disk_type: str) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    options: dict[str, Any] = {"flush_disk_type": flush_disk_type, **SIZES}
    told = Told()
    path = tmp_path / "store"
    for _ in range(KILLS):
        run_and_kill(path, options, chance.randrange(1 << 30), chance.uniform(0.005, 0.25), told)
        compare(path, options, told)
    assert told.sent
    assert told.ended
