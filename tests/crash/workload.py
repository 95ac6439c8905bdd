"""Workload: what a service does with a store, told word by word.

In: options, a seed. Out: a word for each answer, after it was got. Always: what a transaction is to become is a
function of its key (`fate`), whoever ends it: its producer, a check, a late second end. Not here: whether what a
store holds afterwards is right (promises.py).
"""

from __future__ import annotations

import itertools
import random
import threading
import traceback
import zlib
from collections.abc import Callable
from typing import Any

import txstore
from tests.crash.zygote import Voice
from txstore import AlreadyEndedError, Broker, LocalTransactionState, Message, TransactionListener, TransactionMessage

TOPIC = "t"
READERS = "readers"
# Small files, so that faults meet their ends, too.
SIZES: dict[str, Any] = {
    "mapped_file_size_commit_log": 1 << 16,
    "mapped_file_size_consume_queue": 20 * 64,
    "max_hash_slot_num": 50,
    "max_index_num": 400,
    "default_topic_queue_nums": 3,
}
# Checks come at once and again and again; nothing is given up by them.
BUSY: dict[str, Any] = {
    "transaction_time_out": 0.01,
    "transaction_check_interval": 0.02,
    "transaction_check_max": 10_000,
    "flush_consumer_offset_interval": 0.01,
    "snapshot_interval": 0.05,
    "flush_interval_commit_log": 0.01,
}
STATES = {"committed": LocalTransactionState.COMMIT, "rolled_back": LocalTransactionState.ROLLBACK}


def fate(key: str) -> str:
    """What the transaction of this key becomes, if it ends."""
    return ("committed", "committed", "rolled_back", "discarded")[zlib.crc32(key.encode()) % 4]


def body(key: str) -> bytes:
    """The body of this key's message: 10 bytes to some 10 KiB, so that records meet the ends of files in all ways."""
    number = zlib.crc32(b"body" + key.encode())
    return (key.encode() + b".") * (1 + number % 20 + (400 if number % 50 == 0 else 0))


class Fates(TransactionListener):
    """Ends a transaction as its fate says, or leaves it to a check, by chance."""

    def __init__(self, voice: Voice, chance: random.Random) -> None:
        self._voice, self._chance = voice, chance

    def execute_local_transaction(self, message: TransactionMessage, arg: Any) -> LocalTransactionState:
        (key,) = message.keys
        self._voice.say("prepared", key, message.transaction_id)
        return LocalTransactionState.UNKNOWN if self._chance.random() < 0.3 else STATES.get(fate(key), UNKNOWN)

    def check_local_transaction(self, message: TransactionMessage) -> LocalTransactionState:
        (key,) = message.keys
        return STATES.get(fate(key), UNKNOWN)


UNKNOWN = LocalTransactionState.UNKNOWN


class Service:
    """One thread's work."""

    def __init__(self, broker: Broker, voice: Voice, name: str, chance: random.Random) -> None:
        self._broker, self._voice, self._chance = broker, voice, chance
        self._keys = (f"{name}-{number}" for number in itertools.count())
        self._producer = broker.transaction_producer(f"group-{name.split('-')[-1]}", Fates(voice, chance))

    def step(self) -> None:
        steps: list[Callable[[], None]] = [self.send, self.batch, self.listened, self.block, self.by_hand, self.upkeep]
        self._chance.choices(steps, weights=[4, 2, 4, 3, 6, 1])[0]()

    def _message(self) -> tuple[str, Message]:
        key = next(self._keys)
        return key, Message(TOPIC, body(key), keys=[key], tags="tag")

    def send(self) -> None:
        key, message = self._message()
        sent = self._producer.send(message)
        self._voice.say("sent", key, sent.queue_id, sent.queue_offset)

    def batch(self) -> None:
        together = [self._message() for _ in range(self._chance.randrange(2, 6))]
        sent = self._producer.send_batch([message for _, message in together])
        for (key, _), one in zip(together, sent, strict=True):
            self._voice.say("sent", key, one.queue_id, one.queue_offset)

    def listened(self) -> None:
        key, message = self._message()
        result = self._producer.send_in_transaction(message)
        if result.local_transaction_state is not UNKNOWN and result.error is None:
            self._voice.say("ended", key, result.transaction_id, fate(key))

    def block(self) -> None:
        key, message = self._message()
        try:
            with self._producer.transaction(message) as tx:
                self._voice.say("prepared", key, tx.transaction_id)
                if fate(key) == "rolled_back":
                    tx.rollback()
                elif fate(key) == "discarded":
                    raise KeyError(key)
        except KeyError:
            return
        self._voice.say("ended", key, tx.transaction_id, fate(key))

    def by_hand(self) -> None:
        key, message = self._message()
        half = self._broker.prepare(message, self._chance.randrange(3), self._producer.group, 0)
        self._voice.say("prepared", key, half.message_id)
        if self._chance.random() < 0.2:
            return
        outcome = self._end(half, fate(key))
        self._voice.say("ended", key, half.message_id, outcome)
        if self._chance.random() < 0.3:
            again = self._end(half, fate(key))
            assert again == outcome
            self._contradict(half, fate(key))

    def _end(self, half: Any, outcome: str) -> str:
        if outcome == "discarded":
            return self._broker.discard(half).outcome
        return self._broker.end_transaction(half, STATES[outcome]).outcome

    def _contradict(self, half: Any, outcome: str) -> None:
        other = "rolled_back" if outcome == "committed" else "committed"
        try:
            found = self._end(half, other)
        except AlreadyEndedError as refused:
            found = refused.outcome
        assert found == outcome, f"a transaction that was {outcome} is {found} as well"

    def upkeep(self) -> None:
        self._chance.choice([self._broker.store.snapshot, self._broker.flush, self._broker.write_offsets])()


def consume(broker: Broker, voice: Voice, stop: threading.Event) -> None:
    """Reads everything, and tells what it got before the next step acknowledges it."""
    with broker.consumer(READERS, TOPIC) as consumer:
        while not stop.is_set():
            for message in consumer.poll(8, 0.01):
                voice.say("got", message.keys[0], message.queue_id, message.queue_offset)


def work(voice: Voice, arguments: dict[str, Any]) -> None:
    """Opens the store and works with several threads; with `seconds` for that long, then closes it."""
    chance = random.Random(arguments["seed"])
    with txstore.open(arguments["path"], **arguments["options"]) as broker:
        broker.write_queues(TOPIC)  # Makes the topic.
        voice.ready()
        voice.say("open")
        stop = threading.Event()

        def run(task: Callable[[], None]) -> None:
            try:
                while not stop.is_set():
                    task()
            except BaseException:
                voice.say("wrong", traceback.format_exc()[-1500:])
                stop.set()

        tasks: list[Callable[[], None]] = [lambda: consume(broker, voice, stop)]
        for number in range(arguments["threads"]):
            name = f"{arguments['seed']:x}-{number}"
            tasks.append(Service(broker, voice, name, random.Random(chance.random())).step)
        threads = [threading.Thread(target=run, args=(task,), daemon=True) for task in tasks]
        for thread in threads:
            thread.start()
        stop.wait(arguments.get("seconds"))
        stop.set()
        for thread in threads:
            thread.join()
    voice.say("closed")
