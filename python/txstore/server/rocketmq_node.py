"""Asks a broker of RocketMQ, a master or a slave, what it is and what it has.

In:     its address.
Out:    its configuration, where its log begins and ends, a record, its tables.
Always: over RocketMQ's remoting protocol, with the account and the TLS of `TXSTORE_…` variables.
"""

import json
from collections.abc import Mapping
from typing import Any, Self

from txstore._native import RemotingCommand, RequestCode, ResponseCode, strict_json
from txstore.client.options import ConnectConfig
from txstore.errors import BrokerUnreachableError, InvalidOptionError, ProtocolError
from txstore.server.node_channel import open_channel

__all__ = ["RocketMQNode"]


class RocketMQNode:
    """A connection to a broker. Its calls raise BrokerUnreachableError, BrokerTimeoutError, ProtocolError."""

    def __init__(self, address: str, config: ConnectConfig, *, seconds: float) -> None:
        """Connects; each call also takes `seconds` at most. Raises BrokerUnreachableError."""
        self.address = address
        self._seconds = seconds
        self._channel = open_channel(address, config, seconds=seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def interrupt(self) -> None:
        """Ends a request that another thread makes."""
        self._channel.interrupt()

    def properties(self) -> dict[str, str]:
        """Returns its configuration."""
        text = self._ask(RequestCode.GET_BROKER_CONFIG, {}).body.decode(errors="replace")
        pairs = (line.partition("=") for line in text.splitlines())
        return {name.strip(): value.strip() for name, _, value in pairs}

    def extent(self) -> tuple[int, int]:
        """Returns where its log begins and ends.

        A broker cannot tell in its first second; then it raises BrokerUnreachableError.
        """
        answer = self._call(RequestCode.GET_BROKER_RUNTIME_INFO, {})
        if answer.code != ResponseCode.SUCCESS:
            text = f"{self.address} does not say yet where its log ends: {answer.remark}"
            raise BrokerUnreachableError(text, address=self.address)
        try:
            table = json.loads(answer.body)["table"]
            first, end = int(table.get("commitLogMinOffset", 0)), int(table["commitLogMaxOffset"])
        except (ValueError, KeyError, TypeError) as error:
            raise ProtocolError(f"{self.address} does not say where its log ends") from error
        return max(first, 0), max(end, 0)

    def record(self, physical_offset: int) -> bytes | None:
        """Returns the bytes of the record at a physical offset; None if it has none there."""
        answer = self._call(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(physical_offset)})
        return answer.body if answer.code == ResponseCode.SUCCESS else None

    def table(self, code: RequestCode) -> dict[str, Any]:
        """Returns one of its tables, which `config/` has as a file. Objects with numbers as keys have them as text."""
        answer = self._ask(code, {})
        try:
            found = json.loads(strict_json((answer.body or b"{}").decode()))
        except (ValueError, InvalidOptionError) as error:
            raise ProtocolError(f"{self.address} answers request {code} with damaged JSON") from error
        if not isinstance(found, dict):
            raise ProtocolError(f"{self.address} answers request {code} with JSON other than an object")
        return found

    def _ask(self, code: RequestCode, fields: Mapping[str, str]) -> RemotingCommand:
        answer = self._call(code, fields)
        if answer.code != ResponseCode.SUCCESS:
            raise ProtocolError(f"{self.address} answers request {code} with code {answer.code}: {answer.remark}")
        return answer

    def _call(self, code: RequestCode, fields: Mapping[str, str]) -> RemotingCommand:
        return self._channel.call(code, fields, None, timeout=self._seconds)
