"""A store that a real broker writes: random work by real clients, until it is stopped or killed.

In:     a `random.Random` (seeded).
Out:    the store directory, and what its clients were told: each send, each local answer, each check with its answer,
        when the broker ended.
Always: transactions with every fate that a broker knows, some after several put-backs, some within their immunity time,
        some discarded and resumed; messages sent, in batches, compressed, delayed, refused by a consumer.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.peer.rocketmq import SHORT_DELAYS, SMALL, EmbeddedBroker, Facts, Home, Peer, PeerError, Producer, message

GROUP, READER = "PG_THEIRS", "CG_THEIRS"
TOPICS = ("Theirs", "theirs-2")
# Checks as fast as a broker can: it sleeps a second in each round by itself.
TIMES: Facts = {
    "transactionTimeOut": 300,
    "transactionCheckInterval": 300,
    "transactionCheckMax": 3,
    "transactionOpBatchInterval": 200,
    "defaultTopicQueueNums": 4,
}
FOR_EVER = ["UNKNOWN"]
PLANS = (
    ["COMMIT"],
    ["COMMIT"],
    ["ROLLBACK"],
    ["ROLLBACK"],
    ["UNKNOWN", "COMMIT"],
    ["UNKNOWN", "ROLLBACK"],
    ["UNKNOWN", "UNKNOWN", "COMMIT"],
    ["UNKNOWN", "UNKNOWN", "ROLLBACK"],
    ["THROW", "COMMIT"],
    FOR_EVER,
    # Discarded after three checks; after a resume it is answered.
    ["UNKNOWN", "UNKNOWN", "UNKNOWN", "UNKNOWN", "COMMIT"],
    ["UNKNOWN", "UNKNOWN", "UNKNOWN", "UNKNOWN", "ROLLBACK"],
)
SETTLED_TIMEOUT_S = 60.0
ROUNDS = 12


@dataclass
class Told:
    """What the clients of one store were told; times in milliseconds."""

    log: list[Facts] = field(default_factory=list)
    received: list[Facts] = field(default_factory=list)
    resumed: list[str] = field(default_factory=list)
    settled: bool = False
    killed: bool = False
    ended_ms: int = 0


@dataclass(frozen=True)
class Work:
    """The writing of one store. `settle`: all checks run to their end; else it ends at a random moment of the work."""

    seed: int
    killed: bool
    settle: bool = False
    ipv6: bool = False
    sizes: Facts = field(default_factory=lambda: dict(SMALL))
    settings: Facts = field(default_factory=dict)


def write(home: Home, clients: Peer, store: Path, work: Work) -> Told:
    """Runs a broker on `store` (created, or continued), in a process of its own, and clients against it."""
    chance = random.Random(work.seed)
    told = Told(killed=work.killed, settled=work.settle)
    settings = TIMES | ({"brokerIP1": "::1"} if work.ipv6 else {}) | work.settings
    with ExitStack() as stack:
        process = stack.enter_context(home.start())
        broker = process.broker(store, config=work.sizes | SHORT_DELAYS, settings=settings)
        producer = clients.producer(broker.names, GROUP, compression=chance.choice(["ZLIB", "LZ4", "ZSTD"]))
        crew = _Crew(clients, broker, producer, work, told)
        with ThreadPoolExecutor(4) as pool:
            steps = (crew.send, crew.transactions, crew.consume, crew.resume)
            jobs = [pool.submit(step, random.Random(chance.randrange(1 << 30))) for step in steps]
            if not work.settle:
                time.sleep(chance.uniform(1.0, 8.0))
                crew.over.set()
                if work.killed:
                    process.kill()
                    told.ended_ms = int(time.time() * 1000)
            for job in jobs:
                job.result()
        if work.settle:
            _await_settled(broker)
        told.log = producer.stop()
        if not work.killed:
            told.ended_ms = int(time.time() * 1000)
            broker.stop()
    return told


def _message(chance: random.Random, name: str) -> Facts:
    """Some bodies are long enough for a client to compress."""
    body = name.encode() + chance.randbytes(chance.choice([0, 10, 300])) * chance.choice([1, 1, 3, 40])
    facts: Facts = {
        "name": name,
        "keys": " ".join([name, *chance.sample(["all", "some", "Schlüssel"], chance.randrange(3))]),
        "properties": {f"p{n}": chance.choice(["v", "Wert ü", "y" * 500]) for n in range(chance.randrange(3))},
        "flag": chance.choice([0, 0, 7, -1]),
    }
    tags = chance.choice([None, "a", "标签", "paid"])
    return message(chance.choice(TOPICS), body, **facts, **({"tags": tags} if tags else {}))


@dataclass
class _Crew:
    """The clients of one broker, working concurrently."""

    clients: Peer
    broker: EmbeddedBroker
    producer: Producer
    work: Work
    told: Told
    over: threading.Event = field(default_factory=threading.Event)

    def _rounds(self, chance: random.Random) -> Iterator[int]:
        """Numbers the pieces of work, with pauses, until it is over."""
        for number in range(ROUNDS):
            if self.over.wait(chance.uniform(0, 0.3 if self.work.settle else 0.9)):
                return
            yield number

    def send(self, chance: random.Random) -> None:
        for number in self._rounds(chance):
            prefix = f"s{self.work.seed}-{number}"
            messages = [_message(chance, f"{prefix}-{i}") for i in range(chance.randrange(1, 12))]
            if number % 4 == 1:
                messages[0]["delay_level"] = chance.randrange(1, 3)
            self.producer.send(messages)
            if number % 4 == 2:
                self.producer.batch([message(TOPICS[0], b"batch", keys=f"{prefix}-b{i}") for i in range(4)])

    def transactions(self, chance: random.Random) -> None:
        for number in self._rounds(chance):
            # The first round has every plan.
            plans = PLANS if number == 0 else [chance.choice(PLANS) for _ in range(chance.randrange(1, 16))]
            transactions = []
            for i, answers in enumerate(plans):
                one = _message(chance, f"t{self.work.seed}-{number}-{i}") | {"answers": answers}
                if chance.random() < 0.2:
                    one["immunity_s"] = str(chance.randrange(1, 4))
                transactions.append(one)
            self.producer.transactions(transactions)

    def consume(self, chance: random.Random) -> None:
        """A consumer that refuses a few, so that retries are written."""
        later = {f"s{self.work.seed}-{number}-0": chance.randrange(1, 3) for number in range(0, ROUNDS, 3)}
        # If all is to settle, it stays until it has received most messages, and the first retries have come.
        most, limit_ms = (30, 40_000) if self.work.settle else (10_000, chance.randrange(3000, 6000))
        # A consumer whose broker is killed has nothing to report.
        with suppress(PeerError):
            self.told.received = self.clients.consume(
                self.broker.names,
                READER,
                dict.fromkeys(TOPICS, "*"),
                later=later,
                at_least=most,
                idle_ms=2500,
                timeout_ms=limit_ms,
            )

    @property
    def _must_resume(self) -> bool:
        return self.work.settle and not self.told.resumed

    def resume(self, chance: random.Random) -> None:
        """An operator: resumes up to three discarded transactions, one if all is to settle."""
        end = time.monotonic() + 10
        while (time.monotonic() < end or self._must_resume) and len(self.told.resumed) < 3 and not self.over.wait(0.5):
            checks = [event for event in self.producer.log() if event["what"] == "check" and event["nth"] >= 3]
            asked = dict.fromkeys(event["transaction_id"] for event in checks)
            waiting = [transaction for transaction in asked if transaction not in self.told.resumed]
            # Not discarded yet, or the broker is gone: later, or never.
            with suppress(PeerError):
                if waiting and self.clients.resume(self.broker.names, one := chance.choice(waiting)):
                    self.told.resumed.append(one)


def _await_settled(broker: EmbeddedBroker) -> None:
    """Waits until the broker has checked everything, and ended or discarded it."""
    end = time.monotonic() + SETTLED_TIMEOUT_S
    quiet, last = 0, -1
    while quiet < 4 and time.monotonic() < end:
        time.sleep(0.6)
        status = broker.status()
        ends = {topic: last for topic, _, _, last in status["queues"]}
        done = {name.split("@")[0]: sum(queues.values()) for name, queues in status["offsets"].items()}
        half, op = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
        at = status["max_physical_offset"]
        still = ends.get(half, 0) == done.get(half, 0) and ends.get(op, 0) == done.get(op, 0) and at == last
        quiet, last = (quiet + 1 if still else 0), at
    if quiet < 4:
        raise TimeoutError(f"the broker still has transactions to check after {SETTLED_TIMEOUT_S} s")
