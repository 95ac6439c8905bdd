"""Writes the golden stores that txstore itself wrote: `txstore-closed` and `txstore-killed`.

    git worktree add ../old COMMIT                    # the commit whose engine is to write them; build it there
    python -m tests.golden.make_own ../old/python COMMIT OUT

In:  the `python` directory of a built checkout, the commit's name.
Out: two archives in OUT, each a store and its manifest. The manifest holds what the calls answered, never what was read
     back. Both stores have the same content: messages in several files, transactions of every outcome, delayed
     messages, a deleted topic, a group that read a part. One is closed; the process of the other is killed with
     SIGKILL.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import zstandard

import txstore
from txstore import EmbeddedBroker, LocalTransactionState, Message, TransactionMessage

REPOSITORY = Path(__file__).resolve().parents[2]
NAMES = {"closed": "txstore-closed", "killed": "txstore-killed"}
STATES = ("committed", "rolled_back", "committed", "discarded", "committed", "pending")
SIZES: dict[str, Any] = {
    "mapped_file_size_commit_log": 1 << 16,
    "mapped_file_size_consume_queue": 800,
    "max_hash_slot_num": 50,
    "max_index_num": 200,
}


class Listener(txstore.TransactionListener):
    """Answers as the argument says, and UNKNOWN to all checks."""

    def execute_local_transaction(self, message: TransactionMessage, arg: Any) -> LocalTransactionState:
        return LocalTransactionState[arg]

    def check_local_transaction(self, message: TransactionMessage) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN


def text(message: Message) -> str:
    return base64.b64encode(message.body).decode()


def make(topic: str, number: int, **more: Any) -> Message:
    """The message of a number: bodies of different lengths, a property of its own."""
    body = f"{topic} {number}: ".encode() + bytes([number % 251]) * (number * 7 % 500)
    tags, keys = f"t{number % 3}", [f"{topic}-{number}", "all"]
    return Message(topic, body, tags=tags, keys=keys, properties={"number": str(number)}, **more)


def send(broker: EmbeddedBroker) -> list[dict[str, Any]]:
    """Sends messages of two topics; returns what the calls answered."""
    producer, sent = broker.producer("plain"), []
    for number in range(300):
        message = make(("orders", "invoices")[number % 2], number)
        answer = producer.send(message)
        one = {
            "topic": message.topic,
            "queue": answer.queue_id,
            "queue_offset": answer.queue_offset,
            "physical_offset": answer.physical_offset,
            "unique_id": answer.message_id,
            "body": text(message),
            "tags": message.tags,
            "keys": list(message.keys),
            "properties": {"number": message.properties["number"]},
        }
        sent.append(one)
    return sent


def delete(broker: EmbeddedBroker) -> dict[str, Any]:
    """Creates a topic and deletes it with its messages."""
    with broker.producer("short-lived") as producer:
        for number in range(10):
            producer.send(make("gone", number))
    return {"topic": "gone", "messages": broker.delete_topic("gone")}


def read(broker: EmbeddedBroker) -> dict[str, Any]:
    """Lets a group read a part; returns how far it has read each queue."""
    with broker.consumer("readers", "orders") as consumer:
        count = 0
        while count < 60:
            count += len(consumer.poll(20))
            consumer.acknowledge()
    offsets = {str(queue): broker.consumer_offset("orders", "readers", queue) for queue in broker.read_queues("orders")}
    return {"readers": {"orders": offsets}}


def transact(broker: EmbeddedBroker) -> dict[str, Any]:
    """Transactions of every outcome, by their ids."""
    producer, found = broker.transaction_producer("payments", Listener()), {}
    for number, state in enumerate(STATES * 6):
        message = make("payments", number)
        says = {"committed": "COMMIT", "rolled_back": "ROLLBACK"}.get(state, "UNKNOWN")
        answer = producer.send_in_transaction(message, says)
        if state == "discarded":
            broker.discard(answer.transaction_id)
        found[answer.transaction_id] = {"state": state, "body": text(message)}
    return found


def tell(store: Path, end: str, commit: str) -> None:
    """Writes one store and its manifest, in a process of its own."""
    broker = txstore.open(store, default_topic_queue_nums=2, transaction_timeout=3600, **SIZES)
    facts: dict[str, Any] = {"commit": commit, "version": txstore.__version__, "ended": end}
    facts |= {"sent": send(broker), "deleted": delete(broker)}
    waiting = [make("reminders", number, delay_level=18) for number in range(3)]
    for message in waiting:
        broker.producer("reminders").send(message)
    facts |= {"waiting": [text(message) for message in waiting]}
    facts |= {"offsets": read(broker), "transactions": transact(broker), "group": "payments"}
    broker.write_offsets()
    facts |= {"log_end": broker.stat().max_physical_offset}
    (store.parent / "manifest.json").write_text(json.dumps(facts, indent=1) + "\n")
    if end == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    broker.close()


def pack(folder: Path, name: str, out: Path) -> str:
    """Packs a folder; returns its line for SHA256SUMS. The same files give the same bytes."""

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = member.mtime = 0
        member.uname = member.gname = ""
        return member

    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        archive.add(folder, arcname=name, filter=plain)
    packed = zstandard.ZstdCompressor(level=19).compress(raw.getvalue())
    (out / f"{name}.tar.zst").write_bytes(packed)
    return f"{hashlib.sha256(packed).hexdigest()}  {name}.tar.zst"


def main(python: str, commit: str, out: str) -> None:
    """Writes both archives."""
    environment = os.environ | {"PYTHONPATH": f"{Path(python).resolve()}{os.pathsep}{REPOSITORY}"}
    for end, name in NAMES.items():
        with tempfile.TemporaryDirectory() as folder:
            store = Path(folder) / "store"
            told = [sys.executable, "-m", __spec__.name, "--tell", str(store), end, commit]
            code = subprocess.run(told, env=environment, cwd="/", check=False).returncode
            if code != (-signal.SIGKILL if end == "killed" else 0):
                raise SystemExit(f"the process that writes {name} ended with {code}")
            print(pack(Path(folder), name, Path(out)))


if __name__ == "__main__":
    if sys.argv[1] == "--tell":
        tell(Path(sys.argv[2]), sys.argv[3], sys.argv[4])
    else:
        main(*sys.argv[1:])
