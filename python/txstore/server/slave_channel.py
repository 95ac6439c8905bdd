"""Compares the log of a slave of RocketMQ with this one.

In:     the slave's address; a record of this log.
Out:    where the slave's log ends, or the reason why the slave may not copy this log.
"""

from txstore._native import ResponseCode
from txstore.client.options import ConnectConfig
from txstore.server.request import Refused
from txstore.server.rocketmq_node import RocketMQNode

__all__ = ["KEEP", "SlaveChannel"]

_CALL_SECONDS = 2.0
KEEP = (
    "hint: keep the slave's store if only it has messages that are needed, and start the slave with an empty directory"
)
"""What to do about a slave whose log is not a prefix of this one."""


class SlaveChannel(RocketMQNode):
    """A connection to a slave. Its calls raise BrokerUnreachableError, BrokerTimeoutError, ProtocolError."""

    def __init__(self, address: str) -> None:
        """Connects. Raises BrokerUnreachableError."""
        super().__init__(address, ConnectConfig.from_environment(), seconds=_CALL_SECONDS)

    def end(self) -> int:
        """Returns where the slave's log ends."""
        return self.extent()[1]

    def check_file_size(self, wanted: int) -> None:
        """Raises Refused if the slave's log files have another size: it could not take the end of a file."""
        own = self.properties().get("mappedFileSizeCommitLog", str(wanted))
        if own != str(wanted):
            remark = (
                f"its log files have {own} bytes, and those of this store {wanted}\n"
                f"hint: mappedFileSizeCommitLog={wanted} in its broker.conf, and an empty directory"
            )
            raise Refused(ResponseCode.ILLEGAL_OPERATION, remark)

    def check_record(self, own: tuple[int, bytes] | None) -> None:
        """Raises Refused if the slave does not have this record, the last one that ends below its end."""
        if own is None:
            remark = f"this store has no record left below the slave's end to compare both logs by\n{KEEP}"
            raise Refused(ResponseCode.ILLEGAL_OPERATION, remark)
        physical_offset, record = own
        if self.record(physical_offset) != record:
            remark = (
                f"its log differs from this one: at {physical_offset}, it does not have the same record of "
                f"{len(record)} bytes\n{KEEP}"
            )
            raise Refused(ResponseCode.ILLEGAL_OPERATION, remark)
