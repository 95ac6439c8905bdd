"""Secrets of a server: the files that say by what it is trusted, and whom it trusts.

In: paths. Out: what they hold, read whole. Always: a file that is missing, not readable or too long is an error that
names it and says what to do; what stands in it is never part of a text. Not here: what it means to the engine.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path

from txstore.errors import InvalidOptionError

__all__ = ["TlsFiles", "read_file"]

_BYTES_MAX = 1 << 20
_MODES = ("enforcing", "permissive")


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """What the engine secures connections by."""

    certificate: bytes = field(repr=False)
    key: bytes = field(repr=False)
    client_authority: bytes | None = field(repr=False)
    required: bool
    """Whether plain connections are refused."""
    handshake_seconds: float

    @classmethod
    def read(
        cls,
        certificate: str | os.PathLike[str] | None,
        key: str | os.PathLike[str] | None,
        authority: str | os.PathLike[str] | None,
        mode: str,
        handshake_seconds: float,
    ) -> "TlsFiles | None":
        """None: no certificate is given, so all is plain. Raises InvalidOptionError, which names option and file."""
        if mode not in _MODES:
            raise InvalidOptionError(f"tls {mode!r} is neither enforcing nor permissive", option="tls")
        if not 0 < handshake_seconds <= 3600:
            raise InvalidOptionError(
                f"tls_handshake_time_out {handshake_seconds!r} is out of range\nhint: up to an hour, in seconds",
                option="tls_handshake_time_out",
            )
        if certificate is None or key is None:
            if certificate is None and key is None and authority is None:
                return None
            missing = "tls_cert" if certificate is None else "tls_key"
            raise InvalidOptionError(
                f"{missing} is missing\nhint: TLS takes a certificate and its key: tls_cert and tls_key", option=missing
            )
        client_authority = None if authority is None else read_file(authority, "tls_ca")
        return cls(
            read_file(certificate, "tls_cert"),
            read_file(key, "tls_key"),
            client_authority,
            mode == "enforcing",
            handshake_seconds,
        )


def read_file(path: str | os.PathLike[str], option: str) -> bytes:
    """A small file. Raises InvalidOptionError."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(_BYTES_MAX + 1)
    except OSError as error:
        why = error.strerror or str(error)
        raise InvalidOptionError(
            f"{option} {os.fspath(path)!r} cannot be read: {why}\n"
            "hint: the user who runs the server must be able to read it",
            option=option,
        ) from error
    if len(content) > _BYTES_MAX:
        raise InvalidOptionError(f"{option} {os.fspath(path)!r} has more than {_BYTES_MAX} bytes", option=option)
    return content
