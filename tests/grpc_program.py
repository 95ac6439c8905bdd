"""A process that sends any request of RocketMQ's gRPC protocol, driven by JSON lines (tests/programs.py).

In:     {"id", "command", and its arguments}: requests as protobuf's JSON, headers as pairs.
Out:    {"id", "result"}: answers as protobuf's JSON; or {"id", "error", "code"}, with gRPC's own code.
Always: messages and stubs are those of RocketMQ's Python client, so that the bytes are not ours. A process of its own,
        because gRPC's threads do not survive the forks of other tests. Commands run concurrently.
"""

from __future__ import annotations

import itertools
import json
import queue
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from google.protobuf import json_format
from rocketmq.grpc_protocol import admin_pb2, definition_pb2, service_pb2
from rocketmq.grpc_protocol.service_pb2_grpc import MessagingServiceStub

Facts = dict[str, Any]
DEADLINE_S = 60.0
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
_KNOWN_TYPES = (admin_pb2, definition_pb2)


class CallError(Exception):
    """The call failed; `code`: gRPC's own."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def json_of(message: Any) -> Facts:
    facts: Facts = json_format.MessageToDict(message, preserving_proto_field_name=True)
    return facts


def failure(error: grpc.RpcError) -> CallError:
    return CallError(str(error.details()), error.code().value[0])


class Stream:
    """A telemetry stream."""

    def __init__(self, stub: Any, headers: list[tuple[str, str]]) -> None:
        self._sent: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._received: queue.SimpleQueue[Facts] = queue.SimpleQueue()
        self._call = stub.Telemetry(iter(self._sent.get, None), metadata=headers)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            for command in self._call:
                self._received.put(json_of(command))
            self._received.put({"ended": "OK", "details": ""})
        except grpc.RpcError as error:
            self._received.put({"ended": error.code().name, "details": error.details()})

    def headers(self) -> dict[str, str]:
        """Waits for the answer's headers."""
        return {name: str(value) for name, value in self._call.initial_metadata()}

    def send(self, command: Facts) -> None:
        self._sent.put(json_format.ParseDict(command, service_pb2.TelemetryCommand()))

    def read(self, seconds: float) -> Facts | None:
        try:
            return self._received.get(timeout=seconds)
        except queue.Empty:
            return None

    def end(self) -> None:
        self._sent.put(None)

    def cancel(self) -> None:
        self._call.cancel()


class Program:
    """The connections and streams of this process, by handle."""

    def __init__(self) -> None:
        self._handles = itertools.count(1)
        self._stubs: dict[int, tuple[grpc.Channel, Any]] = {}
        self._streams: dict[int, Stream] = {}
        self._unread: dict[int, Any] = {}

    def connect(self, address: str, authority: str | None = None, reads_ahead: bool = True) -> int:
        """`authority`: PEM of the certificate authority, for TLS."""
        # Each is a connection of its own.
        options = [*UNLIMITED, ("grpc.use_local_subchannel_pool", 1)]
        if not reads_ahead:
            options += [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1_024)]
        if authority is None:
            channel = grpc.insecure_channel(address, options=options)
        else:
            credentials = grpc.ssl_channel_credentials(authority.encode())
            channel = grpc.secure_channel(address, credentials, options=options)
        handle = next(self._handles)
        self._stubs[handle] = channel, MessagingServiceStub(channel)
        return handle

    def disconnect(self, connection: int) -> None:
        self._stubs.pop(connection)[0].close()

    def call(
        self, connection: int, rpc: str, request: Facts, headers: list[list[str]], seconds: float = DEADLINE_S
    ) -> Any:
        """One answer, or the list of answers of a stream."""
        said = json_format.ParseDict(request, getattr(service_pb2, f"{rpc}Request")())
        method = getattr(self._stubs[connection][1], rpc)
        metadata = [(name, value) for name, value in headers]
        try:
            answer = method(said, metadata=metadata, timeout=seconds)
            return [json_of(part) for part in answer] if rpc == "ReceiveMessage" else json_of(answer)
        except grpc.RpcError as error:
            raise failure(error) from error

    def bytes(self, connection: int, path: str, body: list[int], headers: list[list[str]]) -> list[int]:
        """Sends any bytes as the request of any method, and returns the answer's bytes."""
        method = self._stubs[connection][0].unary_unary(path)
        try:
            return list(method(bytes(body), metadata=[(name, value) for name, value in headers], timeout=DEADLINE_S))
        except grpc.RpcError as error:
            raise failure(error) from error

    def receive_unread(self, connection: int, request: Facts, headers: list[list[str]]) -> int:
        """Receives, and reads nothing of the answer."""
        said = json_format.ParseDict(request, service_pb2.ReceiveMessageRequest())
        handle = next(self._handles)
        metadata = [(name, value) for name, value in headers]
        self._unread[handle] = self._stubs[connection][1].ReceiveMessage(said, metadata=metadata, timeout=DEADLINE_S)
        return handle

    def cancel_unread(self, answer: int) -> None:
        self._unread.pop(answer).cancel()

    def stream(self, connection: int, headers: list[list[str]]) -> int:
        handle = next(self._handles)
        metadata = [(name, value) for name, value in headers]
        self._streams[handle] = Stream(self._stubs[connection][1], metadata)
        return handle

    def stream_headers(self, stream: int) -> dict[str, str]:
        return self._streams[stream].headers()

    def stream_send(self, stream: int, said: Facts) -> None:
        self._streams[stream].send(said)

    def stream_read(self, stream: int, seconds: float = DEADLINE_S) -> Facts | None:
        """The next command; {"ended", "details"} at the end; None after `seconds`."""
        return self._streams[stream].read(seconds)

    def stream_end(self, stream: int) -> None:
        self._streams[stream].end()

    def stream_cancel(self, stream: int) -> None:
        self._streams[stream].cancel()


def main() -> None:
    program, lock = Program(), threading.Lock()

    def run(number: int, command: str, arguments: Facts) -> None:
        try:
            reply: Facts = {"result": getattr(program, command)(**arguments)}
        except CallError as failed:
            reply = {"error": str(failed), "code": failed.code}
        except Exception as error:
            reply = {"error": repr(error)}
        with lock:
            print(json.dumps({"id": number} | reply), flush=True)

    with ThreadPoolExecutor(64) as pool:
        for line in sys.stdin:
            said = json.loads(line)
            pool.submit(run, said.pop("id"), said.pop("command"), said)


if __name__ == "__main__":
    main()
