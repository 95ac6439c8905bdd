"""What a scenario works with: one client, one server, and topics and groups of its own.

In:     commands of the client's program, and what an operator does at the server.
Out:    facts of messages, waited for.
Always: waits for conditions; the time limit is for what never happens.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.grpc_clients.clients import TLS, Client
from tests.grpc_clients.servers import ACCESS_KEY, SECRET_KEY, GrpcServer, Stored
from tests.programs import CALL_TIMEOUT_S, Program, ProgramError
from tests.waiting import eventually

__all__ = ["NOTHING_FOUND", "Facts", "NotOfferedError", "Scene"]

Facts = dict[str, Any]
NOTHING_FOUND = 40401
"""The code of a receive that found nothing; most clients make an empty list of it."""
AWAIT_S, INVISIBLE_S = 5, 30
LONG_S = 120.0
START_TIMEOUT_S = 60.0
"""Some clients wait for ever for settings that a server does not send."""
TOO_LATE = re.compile("deadline.?exceeded", re.IGNORECASE)
"""How clients say that an answer did not come in time."""
_numbers = itertools.count(1)


class NotOfferedError(Exception):
    """The client has no such call."""


@dataclass
class Scene:
    """One run of a scenario. `another`: starts another process of the same client."""

    client: Client
    program: Program
    server: GrpcServer
    another: Callable[[], Program]
    prefix: str
    options: Facts = field(default_factory=dict)
    """Of each client that is started: TLS, an account."""
    _started: list[int] = field(default_factory=list)

    # What an operator does -------------------------------------------------------------------------------------------

    def topic(self, kind: str = "NORMAL") -> str:
        name = f"{self.prefix}-{kind.lower()}-{next(_numbers)}"
        self.server.create_topic(name, kind)
        return name

    def group(self, *, fifo: bool = False, attempts: int = 17) -> str:
        name = f"{self.prefix}-group-{next(_numbers)}"
        self.server.create_group(name, fifo=fifo, attempts=attempts)
        return name

    def sign(self, secret: str = SECRET_KEY) -> None:
        """All clients that start from now on sign their requests."""
        self.options |= {"access_key": ACCESS_KEY, "secret_key": secret}

    # Clients ---------------------------------------------------------------------------------------------------------

    def call(self, command: str, **facts: Any) -> Any:
        """Raises ProgramError, NotOfferedError, TimeoutError."""
        lacking = self.client.lacks & {command, TLS if facts.get("tls") else command}
        if lacking:
            raise NotOfferedError(*lacking)
        wait_s = START_TIMEOUT_S if command.endswith(".start") else CALL_TIMEOUT_S
        return self.program.begin(command, **facts).result(wait_s)

    def _start(self, command: str, **facts: Any) -> int:
        """Starts again if the client's own limit of three seconds was too short for a server that has just begun."""
        end = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                handle = self.call(command, **self.endpoint(), **facts)
            except ProgramError as problem:
                if not TOO_LATE.search(str(problem)) or time.monotonic() > end:
                    raise
                continue
            assert isinstance(handle, int)
            self._started.append(handle)
            return handle

    def within(self, program: Program) -> Scene:
        """The same scene, whose clients are in another process."""
        return replace(self, program=program, _started=[])

    def endpoint(self) -> Facts:
        return {"endpoints": self.server.endpoints} | self.options

    def producer(self, topic: str, **facts: Any) -> int:
        """`answers`: to checks, by body."""
        return self._start("producer.start", topics=[topic], **facts)

    def simple(self, group: str, topic: str, *, await_s: int = AWAIT_S, **facts: Any) -> int:
        return self._start("simple.start", group=group, topic=topic, await_s=await_s, **facts)

    def push(self, group: str, topic: str, **facts: Any) -> int:
        """`fail`: how often each body fails."""
        return self._start("push.start", group=group, topic=topic, **facts)

    def send(self, producer: int, topic: str, body: str, **facts: Any) -> Facts:
        sent = self.call("producer.send", handle=producer, topic=topic, body=body, **facts)
        assert isinstance(sent, dict)
        return sent

    def transact(self, producer: int, topic: str, body: str, end: str) -> Facts:
        """`end`: COMMIT, ROLLBACK or NONE."""
        sent = self.call("producer.transact", handle=producer, topic=topic, body=body, end=end)
        assert isinstance(sent, dict)
        return sent

    def receive(self, consumer: int, *, most: int = 32, invisible_s: int = INVISIBLE_S) -> list[Facts]:
        """One receive. Clients to whom finding nothing is an error return an empty list, too."""
        try:
            return list(self.call("simple.receive", handle=consumer, max=most, invisible_s=invisible_s))
        except ProgramError as problem:
            if problem.code != NOTHING_FOUND:
                raise
            return []

    def ack(self, consumer: int, message: Facts) -> None:
        self.call("simple.ack", handle=consumer, number=message["number"])

    def take(self, consumer: int, wanted: int, *, ack: bool = True, **facts: Any) -> list[Facts]:
        """Receives and acknowledges until so many were received."""
        found: list[Facts] = []
        end = time.monotonic() + LONG_S
        while len(found) < wanted:
            assert time.monotonic() < end, f"{len(found)} of {wanted} messages came within {LONG_S} s"
            for message in self.receive(consumer, **facts):
                if ack:
                    self.ack(consumer, message)
                found.append(message)
        return found

    def pushed(self, consumer: int, wanted: int) -> list[Facts]:
        """Everything that a push consumer received, when these are so many."""
        received: list[Facts] = []

        def is_all() -> bool:
            received[:] = self.call("push.received", handle=consumer)
            return len(received) >= wanted

        try:
            eventually(is_all, LONG_S)
        except AssertionError as problem:
            bodies = [(message["body"], message["attempt"]) for message in received]
            raise AssertionError(f"{len(received)} of {wanted} messages were pushed: {bodies}") from problem
        return received

    def stored(self, topic: str, wanted: int) -> list[Stored]:
        """The messages of a topic, when these are so many."""
        eventually(lambda: len(self.server.stored(topic)) >= wanted, LONG_S)
        found = self.server.stored(topic)
        assert len(found) == wanted, found
        return found

    def checks(self, producer: int) -> list[str]:
        """The bodies of the transactions that the producer was asked about, in order."""
        return list(self.call("producer.checks", handle=producer))

    def stop(self, handle: int) -> None:
        self._started.remove(handle)
        self.call("stop", handle=handle)

    def close(self) -> None:
        """Stops all clients; those that do not stop end with their process."""
        for handle in self._started:
            try:
                self.program.begin("stop", handle=handle).result(20)
            except (ProgramError, TimeoutError):
                continue


def bodies_of(messages: Sequence[Facts]) -> list[str]:
    return [str(message["body"]) for message in messages]
