"""Receives the log of a RocketMQ master over the HA protocol of RocketMQ's brokers.

In:     pieces of the log, each after a header of 12 bytes: where it begins, and its length. Length 0: a heartbeat.
Out:    the log's bytes from an offset on, in order; reports of how much has been taken, 8 bytes each.
Always: a report at least every 5 s, because the master closes a silent connection after 20 s. A master that is silent
        for 20 s counts as lost.
Not here: what becomes of the bytes. The protocol has no handshake, names, TLS or accounts.
"""

import contextlib
import socket
import struct
import time
from typing import Self

from txstore.client.dial import host_and_port
from txstore.errors import BrokerUnreachableError

__all__ = ["HAChannel"]

_HEADER = struct.Struct(">qi")
_REPORT = struct.Struct(">q")
_REPORT_SECONDS = 5.0
_SILENT_SECONDS = 20.0
_READ_BYTES = 1 << 20
_PIECE_MAX = 64 << 20  # A master sends 32 KiB, unless haTransferBatchSize says otherwise.


class HAChannel:
    """A slave's end of a connection. Used by one thread."""

    def __init__(self, address: str, physical_offset: int, *, seconds: float) -> None:
        """Connects within some seconds, and asks for the log from an offset above 0 on.

        Raises BrokerUnreachableError, as all calls do when the connection ends.
        """
        self.address = address
        self._next = physical_offset
        self._received = bytearray()
        self._reported = physical_offset
        try:
            self._socket = socket.create_connection(host_and_port(address), seconds)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except (OSError, ValueError) as error:
            text = (
                f"the HA port of the master, {address}, cannot be reached: {error}\n"
                "hint: brokerIP2 and haListenPort in its broker.conf say where it is"
            )
            raise BrokerUnreachableError(text, address=address) from error
        self._heard = time.monotonic()
        self.report(physical_offset)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def interrupt(self) -> None:
        """Ends a call that another thread makes."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def report(self, physical_offset: int) -> None:
        """Tells the master where the copy ends."""
        self._reported, self._reported_at = physical_offset, time.monotonic()
        try:
            self._socket.settimeout(_SILENT_SECONDS)
            self._socket.sendall(_REPORT.pack(physical_offset))
        except OSError as error:
            raise self._lost(str(error)) from error

    def receive(self) -> tuple[int, bytes]:
        """Returns the next bytes of the log, and the physical offset of the first; no bytes for a heartbeat.

        Several pieces that have come are returned as one.
        """
        while True:
            found = self._whole_pieces()
            if found is not None:
                at = self._next
                self._next += len(found)
                return at, found
            data = self._read()
            if not data:
                raise self._lost("the other side closed it")
            self._received += data
            self._heard = time.monotonic()

    def _read(self) -> bytes:
        """Reads what comes next, and reports meanwhile."""
        while True:
            now = time.monotonic()
            if now >= self._heard + _SILENT_SECONDS:
                raise self._lost(f"it was silent for {_SILENT_SECONDS:.0f} s")
            if now >= self._reported_at + _REPORT_SECONDS:
                self.report(self._reported)
                continue
            try:
                self._socket.settimeout(self._reported_at + _REPORT_SECONDS - now)
                return self._socket.recv(_READ_BYTES)
            except TimeoutError:
                continue
            except OSError as error:
                raise self._lost(str(error)) from error

    def _whole_pieces(self) -> bytes | None:
        """Takes the pieces that are complete, without their headers; None if there are none yet."""
        at, parts, following = 0, [], self._next
        while len(self._received) >= at + _HEADER.size:
            begin, size = _HEADER.unpack_from(self._received, at)
            if begin != following or not 0 <= size <= _PIECE_MAX:
                raise self._lost(f"it sent {size} bytes from {begin} on, and {following} is the next byte")
            if len(self._received) < at + _HEADER.size + size:
                break
            at += _HEADER.size
            parts.append(bytes(self._received[at : at + size]))
            at, following = at + size, following + size
        if not parts:
            return None
        del self._received[:at]
        return b"".join(parts)

    def _lost(self, why: str) -> BrokerUnreachableError:
        return BrokerUnreachableError(f"lost the connection to {self.address}: {why}", address=self.address)
