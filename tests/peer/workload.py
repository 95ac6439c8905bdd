"""Random work on a store: a plan of steps, its execution, and what its client was told.

In:     a `random.Random` (seeded, or hypothesis's, which shrinks).
Out:    sizes and settings of a store, steps, and lines of facts: `begin` before a step, its outcome after it.
Always: the same generator makes the same plan; a step is possible when it comes; each message has a name of its own,
        which is its first key.

As a program it works on a store until it is killed: `python -m tests.peer.workload PATH SEED`.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import txstore
from txstore import Message
from txstore._native import SendResult

Facts = dict[str, Any]
Say = Callable[..., None]

TOPICS = ("Orders", "orders-2", "a|b%_-")
GROUPS = ("payments", "shipping", "g%|-_")
READERS = ("reader-1", "reader-2")
RETRY_TOPIC = "%RETRY%" + READERS[1]
# Longer than a V1 record's topic may be; only retry and dead letter topics may have such a name.
LONG_TOPIC = "%RETRY%" + "long-" * 30
# The last one's hash is Integer.MIN_VALUE.
TAGS = (None, "a", "paid", "Überweisung", "\U0001f4a1", "polygenelubricants")
WORDS = ("all", "k-1", "k-2", "Schlüssel", "\U0001f511", "x" * 200)
SEND_KINDS = ("send", "send", "send", "batch", "long", "delayed")
END_KINDS = ("commit", "commit", "roll_back", "roll_back", "discard")
DELAY_LEVELS_S = {1: 1, 2: 5, 3: 10}
# A worker that is to be killed is fast at first; then it leaves time for background jobs.
BURST_STEPS, PAUSE_S = 100, 0.01


@dataclass(frozen=True)
class Sending:
    """A message that is to be sent or prepared."""

    name: str
    topic: str
    queue_id: int
    body: bytes = field(repr=False)
    tags: str | None
    keys: tuple[str, ...]
    properties: dict[str, str]
    flag: int
    delay_level: int = 0

    def message(self) -> Message:
        return Message(
            self.topic,
            self.body,
            tags=self.tags,
            keys=self.keys,
            properties=self.properties,
            flag=self.flag,
            delay_level=self.delay_level,
        )

    def facts(self, group: str | None = None) -> Facts:
        return {
            "topic": self.topic,
            "queue_id": self.queue_id,
            "body_length": len(self.body),
            "body_sha256": hashlib.sha256(self.body).hexdigest(),
            "tags": self.tags,
            "keys": " ".join(self.keys),
            "properties": self.properties,
            "flag": self.flag,
            "delay_level": self.delay_level,
            "group": group,
        }


@dataclass(frozen=True)
class Step:
    """One thing to do; transactions are numbered in the order of their `prepare`."""

    kind: str
    sendings: tuple[Sending, ...] = ()
    transaction: int = -1
    group: str = ""
    count: int = 0


def options(chance: random.Random) -> Facts:
    """Sizes and settings of a store: small, so that files roll."""
    return {
        "mapped_file_size_commit_log": chance.choice([1 << 16, 1 << 17, 1 << 20]),
        "mapped_file_size_consume_queue": 20 * chance.choice([7, 40, 1000]),
        "max_hash_slot_num": chance.choice([11, 50, 500]),
        "max_index_num": chance.choice([31, 200, 2000]),
        "transaction_op_msg_max_size": chance.choice([64, 4096]),
        "enabled_append_prop_crc": chance.choice([True, True, True, False]),
        "flush_disk_type": chance.choice(["ASYNC_FLUSH", "ASYNC_FLUSH", "SYNC_FLUSH"]),
        "broker_host": chance.choice(["127.0.0.1", "127.0.0.1", "::1"]),
    }


def broker_sizes(made: Facts) -> Facts:
    """The same sizes as a broker's configuration names them."""
    return {
        "mappedFileSizeCommitLog": made["mapped_file_size_commit_log"],
        "mappedFileSizeConsumeQueue": made["mapped_file_size_consume_queue"],
        "maxHashSlotNum": made["max_hash_slot_num"],
        "maxIndexNum": made["max_index_num"],
        "timerWheelEnable": False,
    }


class Planner:
    """Makes steps that are possible in the state that those before it leave."""

    def __init__(self, chance: random.Random, prefix: str) -> None:
        self._chance = chance
        self._prefix = prefix
        self._count = 0
        self._states: list[str] = []
        self._sent: list[Sending] = []

    def sending(self, topic: str, delay_level: int = 0) -> Sending:
        chance = self._chance
        name = f"{self._prefix}-{self._count}"
        self._count += 1
        filler = chance.choice([b"", b"\0", "wörter ".encode(), bytes(range(256))])
        properties = {
            f"p{number}": chance.choice(["v", "Wert", "\U0001f4a1", "y" * 3000])
            for number in range(chance.randrange(4))
        }
        return Sending(
            name=name,
            topic=topic,
            queue_id=chance.randrange(3) if topic in TOPICS else 0,
            body=name.encode() + filler * chance.choice([0, 1, 1, 20, 60]),
            tags=chance.choice(TAGS),
            keys=(name, *chance.sample(WORDS, chance.randrange(3))),
            properties=properties,
            flag=chance.choice([0, 0, 1, -1, 2**31 - 1, -(2**31)]),
            delay_level=delay_level,
        )

    def _in_state(self, *states: str) -> list[int]:
        return [number for number, state in enumerate(self._states) if state in states]

    def step(self) -> Step:
        chance = self._chance
        roll = chance.random()
        pending, discarded = self._in_state("pending"), self._in_state("discarded")
        if roll < 0.3:
            return self._send()
        if roll < 0.6 or not pending:
            return self._prepare()
        if roll < 0.82:
            kind = chance.choice(END_KINDS)
            number = chance.choice(pending)
            self._states[number] = {"commit": "committed", "roll_back": "rolled_back", "discard": "discarded"}[kind]
            return Step(kind, transaction=number)
        if roll < 0.86 and discarded:
            number = chance.choice(discarded)
            self._states[number] = "pending"
            return Step("resume", transaction=number)
        if roll < 0.92:
            return Step("asked", transaction=chance.choice(pending), count=chance.randrange(1, 4))
        if roll < 0.94:
            number = chance.choice(self._in_state("committed", "rolled_back") or pending)
            return Step("again" if self._states[number] != "pending" else "resend", transaction=number)
        if roll < 0.95:
            return Step("retry", count=chance.choice(list(DELAY_LEVELS_S)))
        if roll < 0.97:
            return Step("acknowledge", group=chance.choice(READERS), count=chance.randrange(1, 20))
        return Step(chance.choice(["snapshot", "flush", "offsets"]))

    def _send(self) -> Step:
        kind = self._chance.choice(SEND_KINDS)
        if kind == "long":
            return Step("send", (self.sending(LONG_TOPIC),))
        if kind == "delayed":
            level = self._chance.choice(list(DELAY_LEVELS_S))
            return Step("delayed", (self.sending(self._chance.choice(TOPICS), level),))
        count = self._chance.randrange(2, 6) if kind == "batch" else 1
        return Step(kind, tuple(self.sending(self._chance.choice(TOPICS)) for _ in range(count)))

    def _prepare(self) -> Step:
        sending = self.sending(self._chance.choice(TOPICS))
        self._states.append("pending")
        return Step("prepare", (sending,), len(self._states) - 1, self._chance.choice(GROUPS))


def plan(chance: random.Random, count: int, *, wait: bool = False) -> list[Step]:
    """`count` steps; `wait`: and time for the first delayed messages to be delivered, and work after it."""
    planner = Planner(chance, "m")
    steps = [planner.step() for _ in range(count)]
    return [*steps, Step("wait"), *(planner.step() for _ in range(count // 4))] if wait else steps


class Worker:
    """Does steps on an open store; writes down each step before it, and its result."""

    def __init__(self, broker: txstore.EmbeddedBroker, say: Say) -> None:
        self._broker = broker
        self._store = broker.store
        self._say = say
        self._halves: dict[int, tuple[Sending, str, SendResult]] = {}
        for topic in (*TOPICS, LONG_TOPIC):
            broker.create_topic(topic, 3 if topic in TOPICS else 1)

    def do(self, step: Step) -> None:
        getattr(self, "_" + step.kind)(step)

    def _send(self, step: Step) -> None:
        (one,) = step.sendings
        self._say("begin", one.name, one.facts())
        self._say("sent", one.name, _position(self._broker.append(one.message(), one.queue_id)))

    def _delayed(self, step: Step) -> None:
        (one,) = step.sendings
        self._say("begin", one.name, one.facts())
        self._say("delayed", one.name, _position(self._broker.append(one.message(), one.queue_id)))

    def _wait(self, _: Step) -> None:
        """Long enough for the shortest delay."""
        time.sleep(1.7)

    def _batch(self, step: Step) -> None:
        for one in step.sendings:
            self._say("begin", one.name, one.facts())
        results = self._broker.append_many(
            [one.message() for one in step.sendings], [one.queue_id for one in step.sendings]
        )
        for one, result in zip(step.sendings, results, strict=True):
            self._say("sent", one.name, _position(result))

    def _prepare(self, step: Step) -> None:
        (one,) = step.sendings
        self._say("begin", one.name, one.facts(step.group))
        half = self._store.prepare(one.message(), one.queue_id, step.group)
        self._halves[step.transaction] = (one, step.group, half)
        self._say("prepared", one.name, _position(half))

    def _resend(self, step: Step) -> None:
        one, group, half = self._halves[step.transaction]
        message = one.message().with_transaction_id(half.message_id)
        found = self._store.prepare(message, one.queue_id, group)
        assert (found.queue_offset, found.physical_offset) == (half.queue_offset, half.physical_offset)

    def _commit(self, step: Step) -> None:
        self._end(step, commit=True)

    def _roll_back(self, step: Step) -> None:
        self._end(step, commit=False)

    def _end(self, step: Step, *, commit: bool) -> None:
        one, group, half = self._halves[step.transaction]
        self._say("ending", one.name, "committed" if commit else "rolled_back")
        end = self._store.end_transaction(half.queue_offset, half.physical_offset, commit=commit, producer_group=group)
        self._say("ended", one.name, end.outcome)

    def _discard(self, step: Step) -> None:
        one, _, half = self._halves[step.transaction]
        self._say("ending", one.name, "discarded")
        self._store.discard(half.queue_offset, half.physical_offset)
        self._say("ended", one.name, "discarded")

    def _again(self, step: Step) -> None:
        """An end twice changes nothing."""
        _, group, half = self._halves[step.transaction]
        row = self._store.transaction(half.message_id)
        commit = row.state == "committed"
        assert self._store.end_transaction(
            half.queue_offset, half.physical_offset, commit=commit, producer_group=group
        ).already

    def _resume(self, step: Step) -> None:
        one, group, half = self._halves[step.transaction]
        self._say("ending", one.name, "pending")
        again = self._store.resume(half.message_id)
        self._halves[step.transaction] = (one, group, again)
        self._say("ended", one.name, "pending")

    def _asked(self, step: Step) -> None:
        """Records each check that the round really sends."""
        _, _, half = self._halves[step.transaction]
        for _ in range(step.count):
            assert self._store.look_again(half.queue_offset, 60_000, asked=True)

    def _acknowledge(self, step: Step) -> None:
        with self._broker.consumer(step.group, TOPICS[0]) as consumer:
            read = consumer.poll(step.count)
        # Its queues to the offset where it continues; a kill takes at most the last ones back.
        ends = {str(message.queue_id): message.queue_offset + 1 for message in read}
        self._say("acknowledged", step.group, ends)

    def _retry(self, step: Step) -> None:
        """The second reader fails to handle the next message of the second topic."""
        with self._broker.consumer(READERS[1], TOPICS[1]) as consumer:
            for one in consumer.poll(1):
                if one.reconsume_times == 0:
                    self._say("retrying", one.keys[0], step.count)
                    one.retry(delay_level=step.count)
                    self._say("retried", one.keys[0], step.count)

    def _snapshot(self, _: Step) -> None:
        self._store.snapshot()

    def _flush(self, _: Step) -> None:
        self._store.flush()

    def _offsets(self, _: Step) -> None:
        self._store.write_offsets()


def _position(result: SendResult) -> Facts:
    return {
        "message_id": result.message_id,
        "offset_message_id": result.offset_message_id,
        "queue_offset": result.queue_offset,
        "physical_offset": result.physical_offset,
    }


@dataclass
class Told:
    """What the clients of a store were told: names of messages to facts."""

    begun: dict[str, Facts] = field(default_factory=dict)
    """Every message that may be there: what was sent."""
    sent: dict[str, Facts] = field(default_factory=dict)
    """Plain messages that were acknowledged: their queues and offsets."""
    delayed: dict[str, Facts] = field(default_factory=dict)
    """Delayed messages that were acknowledged: where they wait."""
    prepared: dict[str, Facts] = field(default_factory=dict)
    """Acknowledged halves: their queues and offsets."""
    states: dict[str, str] = field(default_factory=dict)
    """Of each acknowledged half the state that it was told last."""
    in_flight: dict[str, str] = field(default_factory=dict)
    """Ends (and resumes) that were not answered: the transaction may have this state."""
    retrying: set[str] = field(default_factory=set)
    """Messages that the second reader sent back."""
    retried: set[str] = field(default_factory=set)
    """Those of them that were acknowledged."""
    acknowledged: dict[str, dict[str, int]] = field(default_factory=dict)
    """Group to queue id of the first topic to the offset where it continues."""

    def hear(self, word: str, name: str, facts: Any) -> None:
        if word == "begin":
            self.begun[name] = facts
        elif word == "sent":
            self.sent[name] = facts
        elif word == "delayed":
            self.delayed[name] = facts
        elif word == "prepared":
            self.prepared[name], self.states[name] = facts, "pending"
        elif word == "retrying":
            self.retrying.add(name)
        elif word == "retried":
            self.retried.add(name)
        elif word == "ending":
            self.in_flight[name] = facts
        elif word == "ended":
            self.states[name] = facts
            self.in_flight.pop(name, None)
        else:
            self.acknowledged.setdefault(name, {}).update(facts)

    def hear_line(self, line: str) -> None:
        self.hear(*json.loads(line))

    @property
    def in_flight_messages(self) -> set[str]:
        """Messages that were begun and not acknowledged: each may exist, once."""
        return set(self.begun) - set(self.sent) - set(self.delayed) - set(self.prepared)


def write(path: Path, made: Facts, steps: list[Step]) -> Told:
    """Does all steps on a new store and closes it."""
    told = Told()
    with txstore.open(path, **made) as broker:
        worker = Worker(broker, told.hear)
        for step in steps:
            worker.do(step)
    return told


def _endless(chance: random.Random, prefix: str) -> Iterator[Step]:
    planner = Planner(chance, prefix)
    while True:
        yield planner.step()


def _work_until_killed(path: str, seed: str) -> None:
    def say(*words: Any) -> None:
        sys.stdout.write(json.dumps(words) + "\n")
        sys.stdout.flush()

    chance = random.Random(seed)
    with txstore.open(path, **options(chance)) as broker:
        worker = Worker(broker, say)
        sys.stdout.write("open\n")
        sys.stdout.flush()
        for number, step in enumerate(_endless(chance, "m")):
            worker.do(step)
            if number > BURST_STEPS:
                time.sleep(PAUSE_S)


if __name__ == "__main__":
    _work_until_killed(*sys.argv[1:])
