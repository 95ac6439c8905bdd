"""`txstore console`: the web console on a store, or on the server that has it open.

In:     a path, or the address of a server; databases whose outboxes are shown.
Out:    the address of the console; log lines on stderr.
Always: by a path, the program that has the store open answers. Without one, the files are read, and each action opens
        the store for a moment. Actions need `--actions`.
Not here: the pages (`txstore.console`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from txstore.broker import local_socket
from txstore.broker.operations import OutboxFacts
from txstore.cli.arguments import StoreTarget, noun
from txstore.cli.logs import log_to_stderr
from txstore.cli.target import Target, connect
from txstore.client.operated import calls_of as remote_calls
from txstore.config import milliseconds
from txstore.console.address import check_address
from txstore.console.operator import Call, calls_of
from txstore.database import Database
from txstore.errors import BrokerUnreachableError, InvalidOptionError, TxStoreError
from txstore.inspection.opening import demand, reading_broker, writing_broker
from txstore.server.config import ServerConfig
from txstore.server.console import check_console_packages, start_console
from txstore.server.secrets import Account, TlsFiles, accounts_version, read_accounts
from txstore.signals import STOP, handled

__all__ = ["app"]

_log = logging.getLogger("txstore.serve")
_WRITES = frozenset(("end_transaction", "discard", "resume", "reset_offsets", "resend"))
_SHOWN_MAX = 1_000

app: typer.Typer = noun()


@app.command()
def console(
    path: StoreTarget,
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="The console's address; port 0 chooses a free one.")
    ] = "127.0.0.1:9180",
    actions: Annotated[bool, typer.Option("--actions", help="Let the console change the store.")] = False,
    accounts: Annotated[
        str | None, typer.Option("--accounts", metavar="FILE", help="Accounts (TOML) that may log in.")
    ] = None,
    databases: Annotated[
        list[str] | None,
        typer.Option("--database", metavar="DATABASE", help="A database whose outbox is shown; repeat for more."),
    ] = None,
    tls_cert: Annotated[str | None, typer.Option("--tls-cert", metavar="FILE", help="The certificate (PEM).")] = None,
    tls_key: Annotated[str | None, typer.Option("--tls-key", metavar="FILE", help="Its private key (PEM).")] = None,
) -> None:
    """Show a store in a browser. Stop it with Ctrl-C."""
    check_address(listen, actions=actions, has_accounts=accounts is not None, option="listen", actions_option="actions")
    # These raise InvalidOptionError, before anything is opened.
    check_console_packages()
    TlsFiles.read(tls_cert, tls_key, None, "enforcing", 1.0)
    outboxes = {url: Database(url) for url in databases or []}
    known = Accounts(accounts)
    log_to_stderr("text")
    stopped = threading.Event()
    options = ServerConfig(console_actions=actions, tls_cert=tls_cert, tls_key=tls_key)
    with handled(dict.fromkeys(STOP, stopped.set)), ExitStack() as opened:
        call = _with_outboxes(_calls(path, opened), outboxes)
        shown = start_console(listen, options, call, known)
        opened.callback(shown.close)
        typer.echo(f"{'console':<12} {shown.address}")
        stopped.wait()


class Accounts:
    """The accounts of a file, as it is now. Raises InvalidOptionError if it is invalid at first."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._accounts, self._version = read_accounts(path)

    def __call__(self) -> Sequence[Account] | None:
        """Returns the accounts; None without a file. While the file is invalid, those that it had before."""
        version = accounts_version(self._path)
        if version != self._version:
            self._version = version
            try:
                self._accounts, self._version = read_accounts(self._path)
            except TxStoreError as error:
                _log.error("the accounts were not changed: %s", error)
        return self._accounts


def _calls(target: Target, opened: ExitStack) -> Call:
    """Returns the calls on the target: of its server, or of the store at its path."""
    if target.server is not None:
        remote = opened.enter_context(connect(target.server))
        remote.stat()  # Raises BrokerUnreachableError now, not on the first page.
        return remote_calls(remote)
    demand(target.path)
    return StoreCalls(target.path, opened)


class StoreCalls:
    """The calls on a store by its path. Thread-safe.

    A program that has the store open makes them. While there is none, the files are read, and a call that changes the
    store opens it for a moment.
    """

    def __init__(self, path: str, opened: ExitStack) -> None:
        self._path = path
        self._opened = opened
        self._lock = threading.Lock()
        self._remote: Call | None = None
        self._reader: Call | None = None

    def __call__(self, name: str, **arguments: Any) -> Any:
        """Makes a call. Raises what the broker's call raises, and StoreLockedError if a program that has the store open
        does not answer."""
        if (call := self._program()) is not None:
            try:
                return call(name, **arguments)
            except BrokerUnreachableError:
                with self._lock:
                    self._remote = None  # It has ended, or another one has the store open now.
                if (again := self._program()) is not None:
                    return again(name, **arguments)
        if name in _WRITES:
            with writing_broker(self._path) as broker:
                return calls_of(broker)(name, **arguments)
        return self._reading()(name, **arguments)

    def _program(self) -> Call | None:
        """Returns the calls of the program that has the store open; None if there is none."""
        with self._lock:
            if self._remote is None:
                if not _listens(self._path):
                    return None
                try:
                    remote = connect(f"store:{self._path}")
                    remote.stat()
                except BrokerUnreachableError:
                    return None
                self._opened.callback(remote.close)
                self._remote = remote_calls(remote)
            return self._remote

    def _reading(self) -> Call:
        with self._lock:
            if self._reader is None:
                self._reader = calls_of(self._opened.enter_context(reading_broker(self._path)))
            return self._reader


def _listens(path: str) -> bool:
    """Whether a program listens at the store's socket. Never waits; `connect` does, as one may start."""
    try:
        local_socket.connect(path).close()
    except BlockingIOError:
        return True  # So many clients wait there.
    except OSError:
        return False
    return True


def _with_outboxes(call: Call, databases: Mapping[str, Database]) -> Call:
    """Returns the same calls, with those about the outboxes of databases."""
    if not databases:
        return call
    names = {_name(url): database for url, database in databases.items()}

    def database_of(name: str) -> Database:
        if name not in names:
            raise InvalidOptionError(f"unknown database {name}\nhint: {', '.join(names)}", option="database")
        return names[name]

    own: dict[str, Callable[..., Any]] = {
        "outbox_facts": lambda: [_facts(name, database) for name, database in names.items()],
        "outbox_rows": lambda database, limit: database_of(database).outbox(limit),
        "outbox_retry": lambda database, message_id: database_of(database).retry_parked(message_id),
        "outbox_drop": lambda database, message_id: database_of(database).drop_parked(message_id),
    }

    def made(name: str, **arguments: Any) -> Any:
        return own[name](**arguments) if name in own else call(name, **arguments)

    return made


def _name(url: str) -> str:
    """Returns a database's URL without its password."""
    before, at, after = url.rpartition("@")
    scheme, slashes, user = before.rpartition("://")
    return f"{scheme}{slashes}{user.partition(':')[0]}@{after}" if at and slashes else url


def _facts(name: str, database: Database) -> OutboxFacts:
    """Counts the rows of a database, up to 1,000."""
    try:
        rows = database.outbox(_SHOWN_MAX)
    except Exception as error:  # The driver's own, of any class.
        return OutboxFacts(name, None, None, f"{type(error).__name__}: {error}".partition("\n")[0], has_rows=True)
    oldest = min((row.born_timestamp for row in rows if row.born_timestamp is not None), default=None)
    age = None if oldest is None else milliseconds(datetime.now(UTC) - oldest)
    parked = sum(row.parked is not None for row in rows)
    return OutboxFacts(name, len(rows), age, f"{parked} cannot be sent" if parked else None, has_rows=True)
