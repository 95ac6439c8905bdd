"""The address of a console: whether it is one, and who reaches it.

In:     HOST:PORT; whether the console may act, and knows accounts.
Out:    host and port, or an error with the option's name.
Always: without accounts, a console that may act is reached by this machine alone.
"""

import ipaddress

from txstore.errors import InvalidOptionError

__all__ = ["check_address", "host_and_port"]

_PORT_MAX = 65_535


def check_address(
    address: str, *, actions: bool, has_accounts: bool, option: str = "console", actions_option: str = "console_actions"
) -> None:
    """Raises InvalidOptionError for an invalid address, and for `actions` without accounts where other machines reach
    it. `option` and `actions_option` are the names under which the user gave both."""
    host, _ = host_and_port(address, option)
    if actions and not has_accounts and not _is_loopback(host):
        raise InvalidOptionError(
            f"{option}={address!r} is reached by other machines, and without accounts each of them could act\n"
            f"hint: pass accounts, or use 127.0.0.1, or leave out {actions_option}",
            option=actions_option,
        )


def host_and_port(address: str, option: str = "console") -> tuple[str, int]:
    """Returns both parts. Raises InvalidOptionError."""
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > _PORT_MAX:
        raise InvalidOptionError(
            f"{option} must be HOST:PORT with a port from 0 to {_PORT_MAX}, got {address!r}\nhint: 127.0.0.1:9180",
            option=option,
        )
    return host.removeprefix("[").removesuffix("]"), int(port)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
