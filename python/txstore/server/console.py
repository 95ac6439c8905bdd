"""Starts the web console of a server.

In:     a server and its options.
Out:    a console that makes its calls on the server's own broker, as administrators' clients do.
Always: loads the console's packages only here, so a server without a console does not need them.
Not here: the pages (`txstore.console`).
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from txstore.server.secrets import Account
from txstore.server.validation import check_packages

if TYPE_CHECKING:
    from os import PathLike

    from txstore.console.listener import Console

__all__ = ["ConsoleOptions", "check_console_packages", "start_console"]


class ConsoleOptions(Protocol):
    """The options of a server that concern its console: fields of `ServerConfig`."""

    @property
    def console_actions(self) -> bool: ...
    @property
    def tls_cert(self) -> "str | PathLike[str] | None": ...
    @property
    def tls_key(self) -> "str | PathLike[str] | None": ...
    @property
    def tls_ca(self) -> "str | PathLike[str] | None": ...


def check_console_packages() -> None:
    """Raises InvalidOptionError if a package of the console is missing."""
    # It imports all of them.
    check_packages("txstore.console.listener", "the console", "console")


def start_console(
    address: str,
    options: ConsoleOptions,
    call: Callable[..., Any],
    accounts: Callable[[], Sequence[Account] | None],
) -> "Console":
    """Starts the console at an address. `call` makes an administrative call; `accounts` returns those of now.

    Raises InvalidOptionError without the console's packages, and as `Console` does; StoreIOError.
    """
    check_console_packages()
    from txstore.console.listener import Certificates, Console

    certificates = None
    if options.tls_cert is not None and options.tls_key is not None:
        certificates = Certificates(options.tls_cert, options.tls_key, options.tls_ca)
    return Console(address, call, accounts=accounts, actions=options.console_actions, certificates=certificates)
