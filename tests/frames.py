"""Frames by hand: a connection that sends exactly what a test wants, for a server of RocketMQ's protocol.

In:  codes, fields, bodies, or raw bytes.
Out: responses. The engine's codec is not used, because it is tested by this.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import ssl
import struct
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

__all__ = ["Response", "Wire", "frame", "signed"]

_RESPONSE, _ONE_WAY = 1, 2


@dataclass(frozen=True)
class Response:
    """A response, or a request of the server."""

    code: int
    opaque: int
    flag: int
    remark: str | None
    fields: dict[str, str]
    body: bytes

    @property
    def is_response(self) -> bool:
        return bool(self.flag & _RESPONSE)


def frame(header: bytes, body: bytes = b"", *, kind: int = 0, total: int | None = None) -> bytes:
    """`total`: a length field that is wrong on purpose."""
    length = 4 + len(header) + len(body) if total is None else total
    return struct.pack(">II", length, kind << 24 | len(header)) + header + body


def json_header(code: int, fields: dict[str, Any], opaque: int, flag: int = 0) -> bytes:
    fields = {name: str(value) for name, value in fields.items()}
    said = {"code": code, "language": "PYTHON", "version": 479, "opaque": opaque, "flag": flag, "extFields": fields}
    return json.dumps(said).encode()


def binary_header(code: int, fields: dict[str, Any], opaque: int, flag: int = 0) -> bytes:
    texts = ((name.encode(), str(value).encode()) for name, value in fields.items())
    pairs = b"".join(
        struct.pack(">h", len(name)) + name + struct.pack(">i", len(value)) + value for name, value in texts
    )
    return struct.pack(">hBhiiii", code, 3, 479, opaque, flag, 0, len(pairs)) + pairs


def signed(fields: dict[str, Any], body: bytes, access_key: str, secret_key: str) -> dict[str, Any]:
    """With RocketMQ's ACL signature."""
    fields = {**fields, "AccessKey": access_key}
    content = b"".join(str(value).encode() for _, value in sorted(fields.items())) + body
    digest = hmac.new(secret_key.encode(), content, hashlib.sha1).digest()
    return {**fields, "Signature": base64.b64encode(digest).decode()}


class Wire:
    """One connection. `binary`: headers in RocketMQ's own bytes, not in JSON; `account`: access key and secret."""

    def __init__(
        self,
        address: str,
        *,
        binary: bool = False,
        timeout: float = 10.0,
        tls: ssl.SSLContext | None = None,
        account: tuple[str, str] | None = None,
    ) -> None:
        self._account = account
        if address.startswith("/"):
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(timeout)
            self.socket.connect(address)
        else:
            host, _, port = address.rpartition(":")
            self.socket = socket.create_connection((host, int(port)), timeout)
            if tls is not None:
                self.socket = tls.wrap_socket(self.socket, server_hostname=host)
        self._binary = binary
        self._opaque = 0
        self._pushed: list[Response] = []

    def write(
        self, code: int, fields: dict[str, Any] | None = None, body: bytes = b"", *, one_way: bool = False
    ) -> int:
        """Sends a request; returns its opaque."""
        self._opaque += 1
        if self._account is not None:
            fields = signed(fields or {}, body, *self._account)
        header = (binary_header if self._binary else json_header)(
            code, fields or {}, self._opaque, _ONE_WAY if one_way else 0
        )
        self.socket.sendall(frame(header, body, kind=int(self._binary)))
        return self._opaque

    def call(self, code: int, fields: dict[str, Any] | None = None, body: bytes = b"") -> Response:
        """Sends a request and waits for its response; requests of the server meanwhile are kept for `pushed`."""
        opaque = self.write(code, fields, body)
        while True:
            came = self.read()
            if came.is_response and came.opaque == opaque:
                return came
            self._pushed.append(came)

    def pushed(self, code: int) -> Response:
        """The server's next request of this code; waits for it."""
        while True:
            for came in self._pushed:
                if came.code == code and not came.is_response:
                    self._pushed.remove(came)
                    return came
            self._pushed.append(self.read())

    def kept(self) -> list[Response]:
        """Requests of the server that `pushed` has not returned."""
        return [came for came in self._pushed if not came.is_response]

    def read(self) -> Response:
        total, mark = struct.unpack(">II", self._bytes(8))
        rest = self._bytes(total - 4)
        header, body = rest[: mark & 0xFFFFFF], rest[mark & 0xFFFFFF :]
        return (_binary if mark >> 24 else _json)(header, body)

    def closed(self) -> bool:
        """Whether the server has closed it; waits for that."""
        try:
            return self.socket.recv(1) == b""
        except (ConnectionError, ssl.SSLError):
            return True

    def _bytes(self, wanted: int) -> bytes:
        found = b""
        while len(found) < wanted:
            piece = self.socket.recv(wanted - len(found))
            if not piece:
                raise ConnectionError(f"the server closed the connection after {len(found)} of {wanted} bytes")
            found += piece
        return found

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _json(header: bytes, body: bytes) -> Response:
    said = json.loads(header)
    return Response(said["code"], said["opaque"], said["flag"], said.get("remark"), said.get("extFields") or {}, body)


def _binary(header: bytes, body: bytes) -> Response:
    code, _, _, opaque, flag, remark = struct.unpack_from(">hBhiii", header)
    text = header[17 : 17 + remark].decode() or None
    rest, fields = header[17 + remark + 4 :], {}
    while rest:
        (length,) = struct.unpack_from(">h", rest)
        name, rest = rest[2 : 2 + length].decode(), rest[2 + length :]
        (length,) = struct.unpack_from(">i", rest)
        fields[name], rest = rest[4 : 4 + length].decode(), rest[4 + length :]
    return Response(code, opaque, flag, text, fields, body)
