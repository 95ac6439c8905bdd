"""Measures the memory of `txstore serve --grpc` while very many PushConsumers wait for messages.

In:     `python -m benches.server.grpc_idle [--consumers 1000] [--seconds 60]`.
Out:    the server's memory before, and while all wait; its open files; requests that failed.
Always: each consumer has a connection of its own and does what the official Python client's PushConsumer does, with
        its protocol files: a route, a telemetry stream with its settings, a heartbeat each 10 s, its assignment each
        5 s, and always one long poll of the time that the server told. They share a process, because a thousand Python
        clients do not fit in this machine's memory.
"""

import argparse
import asyncio
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from rocketmq.grpc_protocol import definition_pb2 as kinds
from rocketmq.grpc_protocol import service_pb2 as calls
from rocketmq.grpc_protocol import service_pb2_grpc

from tests.ports import free_port
from tests.process import Watch, anonymous_bytes

TOPIC = "orders"
GROUPS = 10
HEARTBEAT_S, ASSIGNMENT_S, TIMEOUT_S = 10.0, 5.0, 3.0
MIB = 1 << 20


@contextmanager
def serving() -> Iterator[tuple[str, int]]:
    """The address of a server with the topic, and its process."""
    with tempfile.TemporaryDirectory(prefix="txstore-idle-") as folder:
        address = f"127.0.0.1:{free_port()}"
        store = f"{folder}/store"
        entry = [sys.executable, "-m", "txstore.cli.main"]
        subprocess.run([*entry, "store", "create", store], check=True, stdout=subprocess.DEVNULL)
        subprocess.run([*entry, "topic", "create", store, TOPIC], check=True, stdout=subprocess.DEVNULL)
        command = [*entry, "serve", store, "--listen", "127.0.0.1:0", "--name-server", "none", "--grpc", address]
        with Path(folder, "log").open("w") as log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield address, process.pid
        finally:
            process.terminate()
            process.wait(120)


class PushConsumer:
    """One that waits. `failed`: requests without the answer OK, except long polls that find nothing. `late`: requests
    without an answer in time, which on a busy machine the one process of all consumers may cause; they are repeated."""

    def __init__(self, address: str, number: int) -> None:
        # A connection of its own, as each official client has.
        options = [("grpc.use_local_subchannel_pool", 1)]
        self._channel = grpc.aio.insecure_channel(address, options=options)
        self._stub = service_pb2_grpc.MessagingServiceStub(self._channel)
        host, port = address.split(":")
        self._endpoints = kinds.Endpoints(
            scheme=kinds.AddressScheme.IPv4, addresses=[kinds.Address(host=host, port=int(port))]
        )
        self._topic = kinds.Resource(name=TOPIC)
        self._group = kinds.Resource(name=f"group-{number % GROUPS}")
        self._metadata = (("x-mq-client-id", f"idle-{number}"), ("x-mq-language", "PYTHON"))
        self.failed = 0
        self.late = 0
        self.polls = 0

    def _count(self, status: Any) -> None:
        self.failed += status.code not in (kinds.Code.OK, kinds.Code.MESSAGE_NOT_FOUND)

    async def _repeat(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await work()
            except grpc.aio.AioRpcError as error:
                if error.code() != grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise
                self.late += 1
            await asyncio.sleep(seconds)

    async def _heartbeat(self) -> None:
        request = calls.HeartbeatRequest(group=self._group, client_type=kinds.ClientType.PUSH_CONSUMER)
        self._count((await self._stub.Heartbeat(request, metadata=self._metadata, timeout=TIMEOUT_S)).status)

    async def _assignment(self) -> Any:
        request = calls.QueryAssignmentRequest(topic=self._topic, group=self._group, endpoints=self._endpoints)
        answer = await self._stub.QueryAssignment(request, metadata=self._metadata, timeout=TIMEOUT_S)
        self._count(answer.status)
        return answer.assignments

    async def _assign(self) -> None:
        await self._assignment()

    async def _settle(self) -> tuple[Any, Any]:
        """The telemetry stream, and the server's settings."""
        subscription = kinds.Subscription(
            group=self._group,
            subscriptions=[
                kinds.SubscriptionEntry(
                    topic=self._topic, expression=kinds.FilterExpression(type=kinds.FilterType.TAG, expression="*")
                )
            ],
        )
        settings = kinds.Settings(
            client_type=kinds.ClientType.PUSH_CONSUMER, access_point=self._endpoints, subscription=subscription
        )
        stream = self._stub.Telemetry(metadata=self._metadata)
        await stream.write(calls.TelemetryCommand(settings=settings))
        answer = await stream.read()
        return stream, answer.settings.subscription

    async def _poll(self, queue: Any, told: Any) -> None:
        seconds = told.long_polling_timeout.seconds
        request = calls.ReceiveMessageRequest(
            group=self._group,
            message_queue=queue,
            filter_expression=kinds.FilterExpression(type=kinds.FilterType.TAG, expression="*"),
            batch_size=told.receive_batch_size,
            auto_renew=True,
            long_polling_timeout=told.long_polling_timeout,
        )
        async for answer in self._stub.ReceiveMessage(request, metadata=self._metadata, timeout=seconds + TIMEOUT_S):
            if answer.WhichOneof("content") == "status":
                self._count(answer.status)
        self.polls += 1

    async def run(self, ready: asyncio.Semaphore) -> None:
        route = calls.QueryRouteRequest(topic=self._topic, endpoints=self._endpoints)
        answer = await self._stub.QueryRoute(route, metadata=self._metadata, timeout=30)
        self._count(answer.status)
        stream, told = await self._settle()
        queues = [assignment.message_queue for assignment in await self._assignment()]
        ready.release()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._repeat(HEARTBEAT_S, self._heartbeat))
            tasks.create_task(self._repeat(ASSIGNMENT_S, self._assign))
            for queue in queues:
                tasks.create_task(self._repeat(0, lambda queue=queue: self._poll(queue, told)))  # type: ignore[misc]
            tasks.create_task(stream.read())


def resident_bytes(pid: int) -> int:
    """All memory of a process, with the pages of files that it has mapped."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


@dataclass(frozen=True, slots=True)
class Waited:
    """How it went. `resident`: the server's memory while all waited, at the end."""

    started_s: float
    resident: int
    polls: int
    failed: int
    late: int


async def wait_idle(address: str, count: int, seconds: float, pid: int) -> Waited:
    """Starts so many, then lets them wait. `pid`: the server's."""
    consumers = [PushConsumer(address, number) for number in range(count)]
    ready = asyncio.Semaphore(0)
    began = time.monotonic()
    tasks = []
    for consumer in consumers:
        tasks.append(asyncio.create_task(consumer.run(ready)))
        await asyncio.sleep(0.005)
    for _ in consumers:
        await ready.acquire()
    started = time.monotonic() - began
    done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    for task in done:
        task.result()
    resident = resident_bytes(pid)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    polls, failed, late = (sum(getattr(one, name) for one in consumers) for name in ("polls", "failed", "late"))
    return Waited(started, resident, polls, failed, late)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--consumers", type=int, default=1_000, help="how many wait")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long, after all have started")
    arguments = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with serving() as (address, pid):
        before = anonymous_bytes(pid), resident_bytes(pid)
        with Watch(lambda: pid) as memory:
            found = asyncio.run(wait_idle(address, arguments.consumers, arguments.seconds, pid))
        load = f"load {os.getloadavg()[0]:.0f}"
    how_long = f"started in {found.started_s:.1f} s and waited {arguments.seconds:.0f} s"
    print(f"{arguments.consumers:,} PushConsumers {how_long} ({load}):")
    requests = f"{found.failed} requests failed, {found.late} were late"
    print(f"{found.polls:,} long polls ended, {requests}, {memory.peak_files} files and sockets")
    print(f"anonymous memory: {before[0] / MIB:.0f} MiB before, {memory.peak_bytes / MIB:.0f} MiB at most")
    print(f"resident memory: {before[1] / MIB:.0f} MiB before, {found.resident / MIB:.0f} MiB while all wait")


if __name__ == "__main__":
    main()
