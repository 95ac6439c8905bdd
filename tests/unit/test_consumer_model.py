"""Guards consumers in random sequences of joins, leaves, crashes, retries and resets: no message is skipped, each queue
keeps its order, and no two members have the same queue.

A small model says what each poll must return. TXSTORE_EXAMPLES=2000 runs as many examples (quick: 40 and 15).
"""

import gc
import os
import shutil
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import txstore
from txstore import Message
from txstore.testing import FakeBroker

TOPIC, GROUP, QUEUES = "t", "c", 3
SMALL: dict[str, Any] = {
    "mapped_file_size_commit_log": 1 << 18,
    "max_message_size": 1 << 12,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
    "default_topic_queue_nums": QUEUES,
    "flush_consumer_offset_interval": 3600,
}


class Member:
    """A consumer, and its unacknowledged messages."""

    def __init__(self, consumer: Any) -> None:
        self.consumer = consumer
        self.unacknowledged: list[Any] = []
        self.asked: dict[int, int] = {}


class Consumers(RuleBasedStateMachine):
    """The model; `with_store`: the embedded broker, which can crash, else the fake one, whose clock can be set."""

    with_store = False

    @initialize()
    def begin(self) -> None:
        memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
        self.folder = Path(tempfile.mkdtemp(prefix="txstore-model-", dir=memory))
        self.crashes = 0
        self.broker: Any = self.opened()
        self.producer = self.broker.producer("p")
        self.producer.send(Message(TOPIC, b"0-0"), queue_id=0)
        self.sent = [1, 0, 0]
        self.position = [0] * QUEUES
        self.acked = [0] * QUEUES
        self.written = [0] * QUEUES
        self.members: list[Member] = []
        self.owed: Counter[bytes] = Counter()
        self.dead: Counter[bytes] = Counter()

    def opened(self) -> Any:
        if not self.with_store:
            return FakeBroker(default_topic_queue_nums=QUEUES)
        return txstore.open(self.folder / str(self.crashes), **SMALL)

    # Actions

    @rule(queue=st.integers(0, QUEUES - 1), count=st.integers(1, 5))
    def send(self, queue: int, count: int) -> None:
        for _ in range(count):
            self.producer.send(Message(TOPIC, b"%d-%d" % (queue, self.sent[queue])), queue_id=queue)
            self.sent[queue] += 1

    @precondition(lambda self: len(self.members) < 4)
    @rule()
    def join(self) -> None:
        self.members.append(Member(self.broker.consumer(GROUP, TOPIC)))

    @precondition(lambda self: self.members)
    @rule(which=st.integers(0, 3), count=st.integers(1, 40))
    def poll(self, which: int, count: int) -> None:
        member = self.member(which)
        messages = member.consumer.poll(count)
        self.acknowledged(member)
        assert len(messages) <= count
        for message in messages:
            if "RETRY_TOPIC" in message.properties:
                assert self.owed[message.body] > 0, f"{message.body!r} was delivered again without a retry"
                continue
            queue = message.queue_id
            assert message.body == b"%d-%d" % (queue, message.queue_offset)
            assert message.queue_offset == self.position[queue], "skipped, doubled or out of order"
            self.position[queue] += 1
            for other in self.members:
                assert other is member or queue not in own_queues(other.unacknowledged), (
                    "two members have messages of one queue"
                )
        member.unacknowledged = messages

    @precondition(lambda self: self.members)
    @rule(which=st.integers(0, 3))
    def acknowledge(self, which: int) -> None:
        member = self.member(which)
        member.consumer.acknowledge()
        self.acknowledged(member)

    @precondition(lambda self: self.members)
    @rule(which=st.integers(0, 3), position=st.integers(0, 40), level=st.sampled_from([1, 1, -1]))
    def retry(self, which: int, position: int, level: int) -> None:
        member = self.member(which)
        if member.unacknowledged:
            index = position % len(member.unacknowledged)
            if self.with_store:
                level = -1  # No test waits a second here; dead letters are sent again instead.
            member.unacknowledged[index].retry(level)
            member.asked[index] = level

    @precondition(lambda self: self.members)
    @rule(which=st.integers(0, 3), how=st.sampled_from(["close", "leave", "raise", "forget", "break"]))
    def leave(self, which: int, how: str) -> None:
        member = self.member(which)
        consumer = member.consumer
        if how == "break":
            if len(self.members) > 1 or self.position == self.sent:
                return  # Iterating would wait for ever.
            for message in consumer:
                self.acknowledged(member)
                member.unacknowledged = [message]
                break
            self.put_back(member)
            return
        self.members.remove(member)
        if how == "leave":
            with consumer:
                pass
            self.acknowledged(member)
        elif how == "close":
            consumer.close()
        elif how == "raise":
            with pytest.raises(KeyError), consumer:
                raise KeyError
        self.put_back(member)
        member.consumer = consumer = None
        gc.collect(0)

    @rule(queue=st.integers(0, QUEUES - 1), part=st.floats(0, 1))
    def reset(self, queue: int, part: float) -> None:
        if GROUP not in self.groups():
            return
        to = round(part * self.sent[queue])
        self.broker.reset_offsets(GROUP, TOPIC, to, queue_id=queue)
        self.position[queue] = self.acked[queue] = to
        self.written = list(self.acked)
        for member in self.members:
            # Unacknowledged messages of it may still be retried, and move no offset.
            for index, message in enumerate(member.unacknowledged):
                if message.queue_id == queue and "RETRY_TOPIC" not in message.properties:
                    member.unacknowledged[index] = Gone(message)

    @rule()
    def send_the_dead_again(self) -> None:
        if GROUP not in self.groups():
            return
        for letter in self.broker.dead_letters(GROUP)[-2:]:
            self.broker.resend(letter)
            self.owed[letter.body] += 1

    @precondition(lambda self: self.with_store)
    @rule()
    def write_offsets(self) -> None:
        self.broker.write_offsets()
        self.written = list(self.acked)

    @precondition(lambda self: self.with_store)
    @rule()
    def crash(self) -> None:
        """Opens the files as they are now, as after a kill; the old process is gone."""
        before, self.crashes = self.folder / str(self.crashes), self.crashes + 1
        subprocess.run(["cp", "-r", "--sparse=always", before, self.folder / str(self.crashes)], check=True)
        for member in self.members:
            member.consumer = None
        self.members.clear()
        self.broker.close()
        shutil.rmtree(before)
        self.broker = self.opened()
        self.producer = self.broker.producer("p")
        for queue in range(QUEUES):
            offset = self.broker.consumer_offset(TOPIC, GROUP, queue) or 0
            assert self.written[queue] <= offset <= max(self.acked[queue], self.written[queue])
            self.acked[queue] = self.position[queue] = offset
        self.written = list(self.acked)
        # Retries since the last write of offsets may be delivered once more.
        self.owed.update(dict.fromkeys(self.owed, 100))
        self.maybe = True

    # The model

    maybe = False

    def member(self, which: int) -> Member:
        return self.members[which % len(self.members)]

    def groups(self) -> list[str]:
        return self.broker.groups() if self.with_store else [row for row in [GROUP] if self.known()]

    def known(self) -> bool:
        try:
            self.broker.lag(GROUP)
        except txstore.InvalidNameError:
            return False
        return True

    def acknowledged(self, member: Member) -> None:
        for index, message in enumerate(member.unacknowledged):
            body, level = message.body, member.asked.get(index)
            if isinstance(message, Gone):
                pass
            elif "RETRY_TOPIC" in message.properties:
                self.owed[body] -= 1
            else:
                self.acked[message.queue_id] = message.queue_offset + 1
            if level is not None:
                (self.dead if level == -1 else self.owed)[body] += 1
        member.unacknowledged, member.asked = [], {}

    def put_back(self, member: Member) -> None:
        for queue in own_queues(member.unacknowledged):
            self.position[queue] = self.acked[queue]
        member.unacknowledged, member.asked = [], {}

    @invariant()
    def offsets_are_what_was_acknowledged(self) -> None:
        if hasattr(self, "broker"):
            for queue in range(QUEUES):
                assert (self.broker.consumer_offset(TOPIC, GROUP, queue) or 0) == self.acked[queue]

    def teardown(self) -> None:
        if not hasattr(self, "broker"):
            return
        try:
            self.drain()
        finally:
            self.broker.close()
            shutil.rmtree(self.folder)

    def drain(self) -> None:
        """Polls until all that is unacknowledged or retried has been delivered."""
        for member in self.members:
            member.consumer.close()
        left = {b"%d-%d" % (queue, at) for queue in range(QUEUES) for at in range(self.acked[queue], self.sent[queue])}
        owed = Counter() if self.maybe else +self.owed
        came: Counter[bytes] = Counter()
        with self.broker.consumer(GROUP, TOPIC) as consumer:
            while messages := consumer.poll(7, 0.0 if self.with_store else 5.0):
                for message in messages:
                    if "RETRY_TOPIC" in message.properties:
                        came[message.body] += 1
                    else:
                        left.remove(message.body)
        assert not left
        assert not owed - came
        assert not self.dead - Counter(letter.body for letter in self.broker.dead_letters(GROUP))


class Gone:
    """An unacknowledged message whose queue was reset."""

    def __init__(self, message: Any) -> None:
        self.body = message.body
        self.retry = message.retry
        self.properties: dict[str, str] = {}
        self.queue_id = -1


def own_queues(messages: list[Any]) -> set[int]:
    return {m.queue_id for m in messages if not isinstance(m, Gone) and "RETRY_TOPIC" not in m.properties}


class StoredConsumers(Consumers):
    with_store = True


@pytest.mark.parametrize(("machine", "quick"), [(Consumers, 40), (StoredConsumers, 15)])
def test_D1_no_message_is_skipped_whatever_consumers_do(machine: type[Consumers], quick: int) -> None:
    examples = int(os.environ.get("TXSTORE_EXAMPLES", quick))
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples, stateful_step_count=40, deadline=None, print_blob=True, suppress_health_check=checks
        ),
    )
