"""Packet: refuses a message that MariaDB would not take in one statement.

In:     a row's bytes, and a handle of a user's session.
Out:    an error before anything is written. MariaDB would close the connection, and with it the user's transaction.
"""

from txstore.database.session import Handle
from txstore.database.statements import MARIADB_PACKET
from txstore.errors import InvalidMessageError

__all__ = ["PACKET_BYTES", "must_fit_packet"]

PACKET_BYTES = 1 << 16
"""Smaller rows fit every server that is in use: its setting is 16 MiB by default."""
_STATEMENT_BYTES = 4096  # The statement around the row's bytes, which has a message group at most.


async def must_fit_packet(handle: Handle, data: bytes) -> None:
    """Raises InvalidMessageError if the statement with a row's bytes is larger than MariaDB's `max_allowed_packet`."""
    if await handle.dialect() != "mariadb":
        return
    [(limit,)] = await handle.fetch(MARIADB_PACKET)
    size = 2 * len(data) + _STATEMENT_BYTES  # PyMySQL writes each byte as two digits, others write some as two bytes.
    if size > int(limit):
        raise InvalidMessageError(
            f"the statement with the message may have {size} bytes, max_allowed_packet of MariaDB allows {limit}\n"
            "hint: raise max_allowed_packet, or store the body elsewhere and send a reference to it"
        )
