"""Certificates for tests: an authority of their own, certificates that it signed, and others that it did not.

In:  a directory.
Out: PEM files, and contexts for clients. No real host's name is used.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trustme

__all__ = ["Authority", "Pair"]


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, as files."""

    certificate: Path
    key: Path

    @property
    def options(self) -> dict[str, Any]:
        """The options of a server."""
        return {"tls_cert": self.certificate, "tls_key": self.key}


class Authority:
    """Signs certificates."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._ca = trustme.CA()
        self._count = 0
        self.file = directory / "authority.pem"
        self._ca.cert_pem.write_to_path(self.file)

    def pair(self, *hosts: str) -> Pair:
        """For the loopback, or for these hosts."""
        self._count += 1
        made = self._ca.issue_cert(*(hosts or ("127.0.0.1", "localhost")))
        files = Pair(self._directory / f"{self._count}.pem", self._directory / f"{self._count}.key")
        files.certificate.write_bytes(b"".join(part.bytes() for part in made.cert_chain_pems))
        made.private_key_pem.write_to_path(files.key)
        return files

    def of_rocketmq(self) -> tuple[str, ...]:
        """Options of a Java process in which RocketMQ's servers accept only TLS, and its clients use it."""
        pair = self.pair()
        secures = {
            "tls.enable": "true",
            "tls.test.mode.enable": "false",
            "tls.server.mode": "enforcing",
            "tls.server.certPath": pair.certificate,
            "tls.server.keyPath": pair.key,
            "tls.client.authServer": "true",
            "tls.client.trustCertPath": self.file,
        }
        return tuple(f"-D{name}={value}" for name, value in secures.items())

    def context(self, pair: Pair | None = None) -> ssl.SSLContext:
        """A client's context, which trusts this authority and shows `pair`."""
        context = ssl.create_default_context(cafile=self.file)
        if pair is not None:
            context.load_cert_chain(pair.certificate, pair.key)
        return context
