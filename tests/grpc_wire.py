"""Requests of RocketMQ's gRPC protocol from the outside, and the answers that tests compare.

In:  an address; requests and headers as a test wants them.
Out: answers as dictionaries; ProgramError with gRPC's own code.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import importlib.util
import itertools
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.programs import Program

__all__ = ["GrpcClient", "GrpcWire", "TelemetryStream", "code", "codes", "message"]

Facts = dict[str, Any]
_PROGRAM = Path(__file__).with_name("grpc_program.py")
_IDS = itertools.count(1)


class GrpcWire:
    """A process that sends requests."""

    def __init__(self, home: Path) -> None:
        if importlib.util.find_spec("rocketmq") is None:
            pytest.skip("RocketMQ's Python client is not installed: make installs requirements-dev.lock")
        home.mkdir(exist_ok=True)
        self.program = Program([sys.executable, str(_PROGRAM)], home, os.environ | {"HOME": str(home)})

    def client(
        self,
        address: str,
        client_id: str | None = None,
        *,
        account: tuple[str, str] | None = None,
        authority: Path | None = None,
        headers: dict[str, str] | None = None,
        reads_ahead: bool = True,
    ) -> GrpcClient:
        """A client with a connection of its own. `account`: access key and secret key. `reads_ahead`: takes more of an
        answer from the network than it reads."""
        trusted = None if authority is None else authority.read_text()
        connection = self.program.call("connect", address=address, authority=trusted, reads_ahead=reads_ahead)
        name = client_id if client_id is not None else f"client-{next(_IDS)}"
        return GrpcClient(self.program, connection, name, account, headers or {})


class GrpcClient:
    """A client: its id, its account and its connection."""

    def __init__(
        self,
        program: Program,
        connection: int,
        client_id: str,
        account: tuple[str, str] | None,
        headers: dict[str, str],
    ) -> None:
        self._program = program
        self._connection = connection
        self.id = client_id
        self.account = account
        self.other_headers = headers

    def headers(self) -> list[list[str]]:
        headers = {"x-mq-language": "PYTHON", "x-mq-client-id": self.id}
        if self.account is not None:
            headers |= signed(*self.account)
        headers |= self.other_headers
        return [[name, value] for name, value in headers.items() if value]

    def call(self, rpc: str, request: Facts, seconds: float = 60.0) -> Any:
        """Raises ProgramError with gRPC's code, unless that is OK."""
        arguments = {"rpc": rpc, "request": request, "headers": self.headers(), "seconds": seconds}
        return self._program.call("call", connection=self._connection, **arguments)

    def send_bytes(self, path: str, body: bytes) -> bytes:
        arguments = {"path": path, "body": list(body), "headers": self.headers()}
        return bytes(self._program.call("bytes", connection=self._connection, **arguments))

    def send(self, *messages: Facts) -> Facts:
        answer: Facts = self.call("SendMessage", {"messages": list(messages)})
        return answer

    def send_half(self, topic: str, body: bytes = b"x", **system: Any) -> Facts:
        """Returns the entry of the answer."""
        answer = self.send(message(topic, body, message_type="TRANSACTION", **system))
        assert code(answer) == "OK", answer
        entry: Facts = answer["entries"][0]
        return entry

    def end(
        self,
        topic: str,
        entry: Facts,
        resolution: str,
        source: str = "SOURCE_CLIENT",
        changes: Facts | None = None,
    ) -> Facts:
        """`changes`: fields that are not as the producer would set them."""
        said: Facts = {
            "topic": {"name": topic},
            "message_id": entry["message_id"],
            "transaction_id": entry["transaction_id"],
            "resolution": resolution,
            "source": source,
        }
        answer: Facts = self.call("EndTransaction", said | (changes or {}))
        return answer

    def telemetry(self) -> TelemetryStream:
        return TelemetryStream(
            self._program, self._program.call("stream", connection=self._connection, headers=self.headers())
        )

    def receive_unread(self, request: Facts) -> UnreadAnswer:
        """Receives, and reads nothing of the answer."""
        arguments = {"request": request, "headers": self.headers()}
        return UnreadAnswer(
            self._program, self._program.call("receive_unread", connection=self._connection, **arguments)
        )

    def disconnect(self) -> None:
        self._program.call("disconnect", connection=self._connection)


class UnreadAnswer:
    """The answer to a receive, of which the client reads nothing."""

    def __init__(self, program: Program, answer: int) -> None:
        self._program = program
        self._answer = answer

    def cancel(self) -> None:
        self._program.call("cancel_unread", answer=self._answer)


class TelemetryStream:
    """A client's stream of commands."""

    def __init__(self, program: Program, stream: int) -> None:
        self._program = program
        self._stream = stream

    def headers(self) -> Facts:
        headers: Facts = self._program.call("stream_headers", stream=self._stream)
        return headers

    def send(self, command: Facts) -> None:
        self._program.call("stream_send", stream=self._stream, said=command)

    def publish(self, *topics: str) -> Facts:
        """Sends a producer's settings, and returns those of the server."""
        publishing = {"topics": [{"name": topic} for topic in topics]}
        self.send({"settings": {"client_type": "PRODUCER", "publishing": publishing}})
        return self.read()

    def read(self, seconds: float = 60.0) -> Facts:
        """The next command of the server, or {"ended": gRPC's code, "details"}."""
        command: Facts | None = self._program.call("stream_read", stream=self._stream, seconds=seconds)
        assert command is not None, f"the server sent nothing in {seconds} s"
        return command

    def read_if_any(self, seconds: float) -> Facts | None:
        command: Facts | None = self._program.call("stream_read", stream=self._stream, seconds=seconds)
        return command

    def end(self) -> None:
        self._program.call("stream_end", stream=self._stream)

    def cancel(self) -> None:
        self._program.call("stream_cancel", stream=self._stream)


def signed(access_key: str, secret_key: str) -> dict[str, str]:
    date = time.strftime("%Y%m%dT%H%M%SZ")
    signature = hmac.new(secret_key.encode(), date.encode(), hashlib.sha1).hexdigest()
    algorithm = "MQv2-HMAC-SHA1"
    value = f"{algorithm} Credential={access_key}, SignedHeaders=x-mq-date-time, Signature={signature}"
    return {"x-mq-date-time": date, "authorization": value}


def message(topic: str, body: bytes = b"x", properties: dict[str, str] | None = None, **system: Any) -> Facts:
    """A message as clients send it, in protobuf's JSON."""
    usual = {"message_id": f"01{next(_IDS):032X}", "body_encoding": "IDENTITY", "message_type": "NORMAL"}
    said: Facts = {"topic": {"name": topic}, "system_properties": usual | system}
    return said | {"body": base64.b64encode(body).decode(), "user_properties": properties or {}}


def code(answer: Facts) -> str:
    """The code of an answer, or of an entry of one."""
    return str(answer["status"]["code"])


def codes(answer: Facts) -> list[str]:
    """The codes of the entries of an answer."""
    return [code(entry) for entry in answer["entries"]]
