"""Blocking connections of the threads that send. The client has its main connection to the same broker, too.

In:     requests of the calling threads.
Out:    responses.
Always: one request at a time on each channel. A channel on which a call failed is closed. Channels exist only while the
        main connection does, and are not used in a forked child.
Not here: requests of the broker (checks, rebalance), which come over the main connection.
"""

import contextlib
import itertools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from txstore._native import FrameReader, RemotingCommand, encode_request
from txstore.errors import BrokerTimeoutError, BrokerUnreachableError, ProtocolError

__all__ = ["AheadChannel", "Channel", "Channels", "PendingCall", "lost", "not_answered"]

_OPAQUE_MASK = 0x7FFF_FFFF
_READ_BYTES = 65_536
_CHANNELS_MAX = 64
_IDLE_SECONDS = 50.0  # RocketMQ's broker closes a connection after two minutes without a request.

Sign = Callable[[Mapping[str, str], bytes | None], dict[str, str]]
"""Returns the fields of a request with its signature, if requests are signed."""


class Channel:
    """One connection, for one thread at a time."""

    read_bytes = _READ_BYTES
    """The most bytes that are taken from the socket at a time."""

    def __init__(self, address: str, connected: socket.socket, sign: Sign) -> None:
        self.address = address
        self.used: float = time.monotonic()
        """When the last call ended, on the monotonic clock, in seconds."""
        self._socket = connected
        self._sign = sign
        self._reader = FrameReader()
        self._opaques = itertools.count(1)
        self._heard = False

    @property
    def is_open(self) -> bool:
        return self._socket.fileno() >= 0

    def call(
        self, code: int, ext_fields: Mapping[str, str], body: bytes | None = None, *, timeout: float
    ) -> RemotingCommand:
        """Sends a request and returns the response, whatever its code.

        Raises BrokerTimeoutError after `timeout` seconds, BrokerUnreachableError if the connection ends before. Any
        exception closes the channel, because the response may still come.
        """
        opaque = next(self._opaques) & _OPAQUE_MASK
        frame = encode_request(code, opaque, self._sign(ext_fields, body), body)
        is_sent = False
        try:
            self._socket.settimeout(timeout)
            self._socket.sendall(frame)
            is_sent = True
            answer = self._answer(opaque, timeout)
        except TimeoutError as error:
            self.close()
            raise not_answered(self.address, code, timeout) from error
        except (OSError, ProtocolError) as error:
            self.close()
            raise lost(self.address, error, in_doubt=is_sent) from error
        except BaseException:
            self.close()
            raise
        self.used = time.monotonic()
        return answer

    def close(self) -> None:
        self._socket.close()

    def interrupt(self) -> None:
        """Ends the connection under a call that another thread makes, and that then raises BrokerUnreachableError."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _answer(self, opaque: int, timeout: float) -> RemotingCommand:
        until = 0.0
        while True:
            data = self._socket.recv(self.read_bytes)
            if not data:
                closed = "the other side closed it"
                if not self._heard:
                    closed += " before it sent anything; it may require TLS or a certificate: tls=…, or TXSTORE_TLS"
                raise ConnectionResetError(closed)
            self._heard = True
            for command in self._reader.feed(data):
                if command.is_response and command.opaque == opaque:
                    return command
            # Bytes in small pieces must not extend the time limit.
            now = time.monotonic()
            until = until or now + timeout
            if now >= until:
                raise TimeoutError


class PendingCall(NamedTuple):
    """A request whose response has not been read yet."""

    code: int
    opaque: int


class AheadChannel(Channel):
    """A channel that can send a request before the response is wanted."""

    read_bytes = 1 << 20

    def begin(self, code: int, ext_fields: Mapping[str, str], *, timeout: float) -> PendingCall:
        """Sends a request and does not wait for the response. Raises as `call` does."""
        opaque = next(self._opaques) & _OPAQUE_MASK
        frame = encode_request(code, opaque, self._sign(ext_fields, None), None)
        with self._closes_on_failure(code, timeout, is_sent=False):
            self._socket.settimeout(timeout)
            self._socket.sendall(frame)
        return PendingCall(code, opaque)

    def finish(self, pending: PendingCall, *, timeout: float) -> RemotingCommand:
        """Returns the response to a request of `begin`. Drops responses to earlier requests. Raises as `call` does."""
        with self._closes_on_failure(pending.code, timeout, is_sent=True):
            self._socket.settimeout(timeout)
            answer = self._answer(pending.opaque, timeout)
        self.used = time.monotonic()
        return answer

    @contextlib.contextmanager
    def _closes_on_failure(self, code: int, timeout: float, *, is_sent: bool) -> Iterator[None]:
        try:
            yield
        except TimeoutError as error:
            self.close()
            raise not_answered(self.address, code, timeout) from error
        except (OSError, ProtocolError) as error:
            self.close()
            raise lost(self.address, error, in_doubt=is_sent) from error


class Channels:
    """The channels to one broker. Thread-safe."""

    def __init__(self, address: str, dial: Callable[[], socket.socket], sign: Sign) -> None:
        """`dial` returns a connected socket, or raises OSError."""
        self._address, self._dial, self._sign = address, dial, sign
        self._lock = threading.Lock()
        self._idle: list[Channel] = []
        self._busy: set[Channel] = set()
        self._dialing = 0
        self._closed = False
        self._process = os.getpid()

    @property
    def in_use(self) -> int:
        """How many channels threads use now."""
        return len(self._busy)

    @property
    def open(self) -> int:
        """How many channels there are."""
        return len(self._busy) + len(self._idle)

    def take(self) -> Channel | None:
        """Returns a channel that no other thread uses. None if there are too many, or the broker cannot be reached."""
        if self._process != os.getpid():
            return None
        oldest = time.monotonic() - _IDLE_SECONDS
        with self._lock:
            while self._idle and not self._closed:
                channel = self._idle.pop()
                if channel.used >= oldest:
                    self._busy.add(channel)
                    return channel
                channel.close()
            if self._closed or self._dialing + self.open >= _CHANNELS_MAX:
                return None
            self._dialing += 1
        try:
            channel = Channel(self._address, self._dial(), self._sign)
        except OSError:
            with self._lock:
                self._dialing -= 1
            return None
        return self._admitted(channel)

    def _admitted(self, channel: Channel) -> Channel | None:
        """Returns a new channel, unless all were closed meanwhile."""
        with self._lock:
            self._dialing -= 1
            if not self._closed:
                self._busy.add(channel)
                return channel
        channel.close()
        return None

    def give(self, channel: Channel) -> None:
        """Takes a channel back."""
        with self._lock:
            self._busy.discard(channel)
            if channel.is_open and not self._closed:
                self._idle.append(channel)
                return
        channel.close()

    def close(self) -> None:
        """Closes all channels. A call that waits on one raises BrokerUnreachableError. Idempotent."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            busy = list(self._busy)
        for channel in idle:
            channel.close()
        for channel in busy:
            channel.interrupt()


def not_answered(address: str, code: int, timeout: float) -> BrokerTimeoutError:
    """Returns the error of a request that got no response within `timeout` seconds."""
    text = f"{address} did not answer request {code} within {timeout:g} s"
    hint = "it may have been carried out; check that, or raise the time limit"
    return BrokerTimeoutError(f"{text}\nhint: {hint}", address=address)


def lost(address: str, why: object, *, in_doubt: bool) -> BrokerUnreachableError:
    """Returns the error of a connection that has ended. `in_doubt`: the request had been sent."""
    done = "; the request may have been carried out" if in_doubt else ""
    text = f"the connection to {address} is lost: {why}{done}\nhint: the next request opens it again"
    return BrokerUnreachableError(text, address=address, in_doubt=in_doubt)
