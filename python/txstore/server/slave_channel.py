"""Asks a slave of RocketMQ what it has, to compare its log with this one.

In:     the slave's address; a record of this log.
Out:    where the slave's log ends, or the reason why the slave may not copy this log.
Always: over RocketMQ's remoting protocol, with the account and the TLS of `TXSTORE_…` variables, as a replica.
"""

import json
from collections.abc import Mapping

from txstore._native import RemotingCommand, RequestCode, ResponseCode
from txstore.client.channel import Channel
from txstore.client.dial import connect
from txstore.client.options import ConnectConfig
from txstore.errors import BrokerUnreachableError, ProtocolError
from txstore.server.request import Refused

__all__ = ["KEEP", "SlaveChannel"]

_CALL_SECONDS = 2.0
KEEP = (
    "hint: keep the slave's store if only it has messages that are needed, and start the slave with an empty directory"
)
"""What to do about a slave whose log is not a prefix of this one."""


class SlaveChannel:
    """A connection to a slave. Its calls raise BrokerUnreachableError, BrokerTimeoutError, ProtocolError."""

    def __init__(self, address: str) -> None:
        """Connects. Raises BrokerUnreachableError."""
        self._address = address
        config = ConnectConfig.from_environment()
        try:
            connected = connect(address, _CALL_SECONDS, config.tls_context)
        except OSError as error:
            raise BrokerUnreachableError(f"{address} cannot be reached: {error}", address=address) from error
        credentials = config.credentials

        def signed(fields: Mapping[str, str], body: bytes | None) -> dict[str, str]:
            return dict(fields) if credentials is None else credentials.signed(fields, body)

        self._channel = Channel(address, connected, signed)

    def __enter__(self) -> "SlaveChannel":
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def end(self) -> int:
        """Returns where the slave's log ends."""
        answer = self._ask(RequestCode.GET_BROKER_RUNTIME_INFO, {})
        try:
            return int(json.loads(answer.body)["table"]["commitLogMaxOffset"])
        except (ValueError, KeyError, TypeError) as error:
            raise ProtocolError(f"{self._address} does not say where its log ends") from error

    def check_file_size(self, wanted: int) -> None:
        """Raises Refused if the slave's log files have another size: it could not take the end of a file."""
        properties = self._ask(RequestCode.GET_BROKER_CONFIG, {}).body.decode(errors="replace")
        for line in properties.splitlines():
            name, _, value = line.partition("=")
            if name.strip() == "mappedFileSizeCommitLog" and value.strip() != str(wanted):
                remark = (
                    f"its log files have {value.strip()} bytes, and those of this store {wanted}\n"
                    f"hint: mappedFileSizeCommitLog={wanted} in its broker.conf, and an empty directory"
                )
                raise Refused(ResponseCode.ILLEGAL_OPERATION, remark)

    def check_record(self, own: tuple[int, bytes] | None) -> None:
        """Raises Refused if the slave does not have this record, the last one that ends below its end."""
        if own is None:
            remark = f"this store has no record left below the slave's end to compare both logs by\n{KEEP}"
            raise Refused(ResponseCode.ILLEGAL_OPERATION, remark)
        physical_offset, record = own
        answer = self._channel.call(
            RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(physical_offset)}, None, timeout=_CALL_SECONDS
        )
        if answer.code != ResponseCode.SUCCESS or bytes(answer.body) != record:
            remark = (
                f"its log differs from this one: at {physical_offset}, it does not have the same record of "
                f"{len(record)} bytes\n{KEEP}"
            )
            raise Refused(ResponseCode.ILLEGAL_OPERATION, remark)

    def _ask(self, code: RequestCode, fields: Mapping[str, str]) -> RemotingCommand:
        answer = self._channel.call(code, fields, None, timeout=_CALL_SECONDS)
        if answer.code != ResponseCode.SUCCESS:
            raise ProtocolError(f"{self._address} answers request {code} with code {answer.code}: {answer.remark}")
        return answer
