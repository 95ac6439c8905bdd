"""Reads the files with a server's certificates, keys and accounts.

In:     paths.
Out:    TLS files as bytes; parsed accounts.
Always: an error for a missing, unreadable or invalid file names the file and the remedy, but never shows its content.
"""

import os
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from txstore.errors import InvalidOptionError

__all__ = ["Account", "Secrets", "TlsFiles", "accounts_version", "parse_accounts", "read_accounts"]

_BYTES_MAX = 1 << 20
_MODES = ("enforcing", "permissive")
_KEY_MIN = 7  # RocketMQ's own rule: more than six characters.
_KEY_MAX = 1024
_PERMISSIONS = {"DENY": 0, "PUB": 1, "SUB": 2, "PUB|SUB": 3, "SUB|PUB": 3}
_FIELDS = ("secret_key", "admin", "default_topic_perm", "default_group_perm", "topics", "groups")

Version: TypeAlias = tuple[int, int, int] | None
"""Identifies the state of a file: modification time in ns, size, inode."""
FilePath: TypeAlias = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The TLS files of a server, as PEM."""

    certificate: bytes = field(repr=False)
    key: bytes = field(repr=False)
    client_authority: bytes | None = field(repr=False)
    required: bool
    """Whether plain connections are refused."""
    handshake_seconds: float

    @classmethod
    def read(
        cls,
        certificate: FilePath | None,
        key: FilePath | None,
        authority: FilePath | None,
        mode: str,
        handshake_seconds: float,
    ) -> "TlsFiles | None":
        """Reads the files, or returns None without a certificate: connections are then plain.

        Raises InvalidOptionError, which names the option and the file.
        """
        if mode not in _MODES:
            raise InvalidOptionError(f"tls must be enforcing or permissive, got {mode!r}", option="tls")
        if not 0 < handshake_seconds <= 3600:
            raise InvalidOptionError(
                f"tls_handshake_timeout must be more than 0 and at most 3600 seconds, got {handshake_seconds!r}",
                option="tls_handshake_timeout",
            )
        if certificate is None or key is None:
            if certificate is None and key is None and authority is None:
                return None
            missing = "tls_cert" if certificate is None else "tls_key"
            raise InvalidOptionError(
                f"{missing} is missing\nhint: TLS needs a certificate and its key: tls_cert and tls_key", option=missing
            )
        client_authority = None if authority is None else _read(authority, "tls_ca")[0]
        return cls(
            _read(certificate, "tls_cert")[0],
            _read(key, "tls_key")[0],
            client_authority,
            mode == "enforcing",
            handshake_seconds,
        )


@dataclass(frozen=True, slots=True)
class Account:
    """An account and its permissions, as bits: 1 send, 2 read."""

    access_key: str
    secret_key: str = field(repr=False)
    admin: bool
    default_topic: int
    default_group: int
    topics: dict[str, int]
    groups: dict[str, int]


@dataclass(frozen=True, slots=True)
class Secrets:
    """The TLS files and accounts of a server."""

    tls: TlsFiles | None
    accounts: list[Account] | None
    """None: there are no accounts, and every client may do everything."""
    version: Version
    """The state of the accounts file when it was read."""


def read_accounts(path: FilePath | None) -> tuple[list[Account] | None, Version]:
    """Reads the accounts file and its version; returns (None, None) without a path.

    Raises InvalidOptionError if it cannot be read, others than its owner have access, or its content is invalid.
    """
    if path is None:
        return None, None
    content, facts = _read(path, "accounts")
    if facts.st_mode & 0o077:
        raise _wrong(
            path, f"users other than its owner have access (mode {stat.S_IMODE(facts.st_mode):04o})", "chmod 600"
        )
    try:
        accounts = parse_accounts(content.decode())
    except InvalidOptionError as error:
        # Without the cause, whose text may contain a line of the file.
        raise _wrong(path, *str(error).split("\nhint: ")) from None
    except UnicodeDecodeError:
        raise _wrong(path, "not valid UTF-8", "accounts are TOML, which is UTF-8") from None
    return accounts, _version(facts)


def accounts_version(path: FilePath | None) -> Version:
    """Returns the file's current version; None without a path or file."""
    try:
        return None if path is None else _version(Path(path).stat())
    except OSError:
        return None


def parse_accounts(text: str) -> list[Account]:
    """Parses one account per table of the TOML document. Raises InvalidOptionError, whose text shows no value."""
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        where = str(error).rpartition("(")[2].rstrip(")")
        raise _invalid(f"not valid TOML, {where}", "docs/operate/serve.md shows an example") from None
    return [_account(key, said) for key, said in document.items()]


def _account(key: str, said: object) -> Account:
    if not isinstance(said, dict):
        raise _invalid(f"{key!r} is outside of an account", "each account is a table: [access-key]")
    if unknown := sorted(said.keys() - set(_FIELDS)):
        raise _invalid(f"account {key!r} has the unknown field {unknown[0]!r}", f"the fields are {', '.join(_FIELDS)}")
    secret, admin = said.get("secret_key"), said.get("admin", False)
    if not isinstance(secret, str) or not _KEY_MIN <= len(secret) <= _KEY_MAX or not _KEY_MIN <= len(key) <= _KEY_MAX:
        raise _invalid(
            f"account {key!r}: its name and its secret_key must have {_KEY_MIN} to {_KEY_MAX} characters each",
            "create a secret with: openssl rand -hex 20",
        )
    if not isinstance(admin, bool):
        raise _invalid(f"account {key!r}: admin must be true or false", "admin = true")
    return Account(
        key,
        secret,
        admin,
        _permission(key, "default_topic_perm", said.get("default_topic_perm", "DENY")),
        _permission(key, "default_group_perm", said.get("default_group_perm", "DENY")),
        _table(key, "topics", said.get("topics", {})),
        _table(key, "groups", said.get("groups", {})),
    )


def _table(key: str, name: str, said: object) -> dict[str, int]:
    if not isinstance(said, Mapping):
        raise _invalid(f"account {key!r}: {name} must be a table", f'{name} = {{ orders = "PUB|SUB" }}')
    return {one: _permission(key, f"{name}.{one}", permission) for one, permission in said.items()}


def _permission(key: str, where: str, said: Any) -> int:
    bits = _PERMISSIONS.get(said.replace(" ", "")) if isinstance(said, str) else None
    if bits is None:
        raise _invalid(f"account {key!r}: {where} must be a permission", "DENY, PUB, SUB or PUB|SUB")
    return bits


def _invalid(what: str, hint: str) -> InvalidOptionError:
    return InvalidOptionError(f"{what}\nhint: {hint}", option="accounts")


def _wrong(path: FilePath, what: str, hint: str) -> InvalidOptionError:
    return _invalid(f"accounts {os.fspath(path)!r}: {what}", hint)


def _version(facts: os.stat_result) -> Version:
    return facts.st_mtime_ns, facts.st_size, facts.st_ino


def _read(path: FilePath, option: str) -> tuple[bytes, os.stat_result]:
    """Returns a file's content and status. Raises InvalidOptionError if it cannot be read or has more than 1 MiB."""
    try:
        with Path(path).open("rb") as file:
            content, facts = file.read(_BYTES_MAX + 1), os.fstat(file.fileno())
    except OSError as error:
        why = error.strerror or str(error)
        raise InvalidOptionError(
            f"{option} {os.fspath(path)!r} cannot be read: {why}\n"
            "hint: the user who runs the server must be able to read it",
            option=option,
        ) from error
    if len(content) > _BYTES_MAX:
        raise InvalidOptionError(f"{option} {os.fspath(path)!r} has more than {_BYTES_MAX} bytes", option=option)
    return content, facts
