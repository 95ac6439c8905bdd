"""Validation: checks the options of a server before anything is opened.

In:     the fields of a `ServerConfig`.
Out:    nothing, or InvalidOptionError with the option, its value, and what is accepted.
Always: nothing is created, and no file but those with secrets is read.
Not here: the settings of the store (`config`), and whether an address is free.
"""

import importlib
import ipaddress
from collections.abc import Mapping

from txstore.console.address import check_address
from txstore.errors import InvalidOptionError

__all__ = ["check_options", "check_packages", "networks"]

_PORT_MAX = 65_535
_COPIES_MAX = 16
_THREADS_MAX = 256
_SECONDS_MAX = 1_000_000_000
_FAST_PORT_BELOW = 2  # RocketMQ's brokers ask each other at the port that is so much below.
_COUNTS = {
    "io_threads": (1, _THREADS_MAX),
    "connections_max": (1, 1 << 20),
    "groups_max": (0, 1 << 31),
    "topics_max": (0, 1 << 31),
    "memory_max": (1 << 20, 1 << 50),
    "replicas_required": (1, _COPIES_MAX),
}
_TIMES = (
    "idle_timeout",
    "first_frame_timeout",
    "frame_timeout",
    "unread_timeout",
    "tls_handshake_timeout",
    "replica_timeout",
    "escape_after",
)


def check_options(options: Mapping[str, object], *, listening: bool = True) -> None:
    """Raises InvalidOptionError for the first option that no server can have.

    `options` are all fields of `ServerConfig` by name. `listening`: the server needs an address of its own.
    """
    listen = options["listen"]
    if listening and not any(options[name] is not None for name in ("listen", "name_server", "unix", "grpc")):
        raise InvalidOptionError("no address to listen at\nhint: pass listen, grpc or unix", option="listen")
    for name in ("listen", "name_server", "grpc", "ha_listen"):
        _check_address(name, options[name], numeric=True)
    _check_address("metrics", options["metrics"], numeric=False)
    for name in ("advertise", "replica_of", "escape_to"):
        _check_address(name, options[name], numeric=False, least=1)
    _check_reachable(options["advertise"])
    if options["escape_to"] is not None and options["replica_of"] is None:
        text = (
            "only from a replica can transactions escape\nhint: pass replica_of='HOST:PORT', the address of its source"
        )
        raise InvalidOptionError(text, option="escape_to")
    _check_ha(options["ha_listen"], options["ha_allow"], listen)
    _check_console(options["console"], options["console_actions"], options["accounts"])
    if options["advertise"] is None and listen is not None and _is_any(listen):
        raise InvalidOptionError(
            f"listen={listen!r} accepts all addresses, so clients need one to connect to\n"
            "hint: pass advertise='HOST:PORT', where they reach this machine",
            option="advertise",
        )
    for name, (least, most) in _COUNTS.items():
        _check_count(name, options[name], least, most)
    for name in _TIMES:
        _check_seconds(name, options[name])
    if options["replica_ack"] not in ("disk", "memory"):
        text = f"replica_ack must be 'disk' or 'memory', got {options['replica_ack']!r}"
        raise InvalidOptionError(text, option="replica_ack")


def _check_address(name: str, address: object, *, numeric: bool, least: int = 0) -> None:
    if address is None:
        return
    host, port = _split(address)
    if not host or not (port.isascii() and port.isdigit() and least <= int(port) <= _PORT_MAX):
        raise InvalidOptionError(
            f"{name} must be HOST:PORT with a port from {least} to {_PORT_MAX}, got {address!r}\nhint: 127.0.0.1:10911",
            option=name,
        )
    if numeric:
        try:
            ipaddress.ip_address(host)
        except ValueError:
            raise InvalidOptionError(
                f"{name} must have a numeric host, got {address!r}\nhint: 127.0.0.1:{port}; 0.0.0.0:{port} accepts all",
                option=name,
            ) from None


def _check_reachable(advertise: object) -> None:
    if advertise is not None and _is_any(advertise):
        raise InvalidOptionError(
            f"advertise must be an address to which clients can connect, got {advertise!r}\n"
            "hint: the name or the address of this machine, as clients know it",
            option="advertise",
        )


def _check_ha(address: object, allow: object, listen: object) -> None:
    if address is None:
        if allow is not None:
            text = "ha_allow needs a port for slaves\nhint: pass ha_listen='HOST:PORT', for example 127.0.0.1:10912"
            raise InvalidOptionError(text, option="ha_allow")
        return
    if listen is None or int(_split(listen)[1]) <= _FAST_PORT_BELOW:
        text = (
            f"ha_listen needs listen with a port above {_FAST_PORT_BELOW}, got {listen!r}: slaves of RocketMQ also ask "
            "at the port two below\nhint: 127.0.0.1:10911"
        )
        raise InvalidOptionError(text, option="listen")
    networks(allow)


def networks(allow: object) -> list[tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int]]:
    """Returns the networks of `ha_allow`: an address and the number of its leading bits. Raises InvalidOptionError."""
    if not isinstance(allow, str | None):
        text = f"ha_allow must be a text, got {allow!r}\nhint: '10.1.2.0/24', separated by commas"
        raise InvalidOptionError(text, option="ha_allow")
    found = []
    for one in [part.strip() for part in (allow or "").split(",") if part.strip()]:
        try:
            network = ipaddress.ip_network(one)
        except ValueError as error:
            text = f"ha_allow must be networks, ADDRESS or ADDRESS/BITS: {error}\nhint: 10.1.2.0/24"
            raise InvalidOptionError(text, option="ha_allow") from None
        found.append((network.network_address, network.prefixlen))
    return found


def _check_console(address: object, actions: object, accounts: object) -> None:
    if isinstance(address, str):
        check_address(address, actions=bool(actions), has_accounts=accounts is not None)
    elif address is not None:
        _check_address("console", address, numeric=False)
    elif actions:
        text = "console_actions needs the console\nhint: pass console='HOST:PORT', for example 127.0.0.1:9180"
        raise InvalidOptionError(text, option="console_actions")


def _split(address: object) -> tuple[str, str]:
    host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    return host.removeprefix("[").removesuffix("]"), port


def _is_any(address: object) -> bool:
    try:
        return ipaddress.ip_address(_split(address)[0]).is_unspecified
    except ValueError:
        return False  # A name.


def _check_count(name: str, value: object, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidOptionError(f"{name} must be a number from {least} to {most}, got {value!r}", option=name)


def _check_seconds(name: str, value: object) -> None:
    # NaN is neither.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _SECONDS_MAX:
        raise InvalidOptionError(f"{name} must be 0 to {_SECONDS_MAX:,} seconds, got {value!r}", option=name)


def check_packages(module: str, what: str, option: str) -> None:
    """Imports a module of an extra that is named as its option. Raises InvalidOptionError if a package is missing."""
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("txstore"):
            raise
        text = f"{what} needs {error.name}, which is not installed\nhint: pip install 'txstore[{option}]'"
        raise InvalidOptionError(text, option=option) from None
