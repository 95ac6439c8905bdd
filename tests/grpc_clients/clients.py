"""RocketMQ's official clients for gRPC, and how each is installed and started here.

In:     the registries of their languages: pip, Maven, Go, npm, cargo.
Out:    for each a command line that speaks JSON lines (tests/programs.py): the same commands in each language.
Always: built once for these very sources, below `target`. NoClientError if the language's tools are not available.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.peer import rocketmq as peer
from tests.programs import Program
from tests.remoting.go_client import NoGoError
from tests.remoting.go_client import build as build_go

__all__ = ["CLIENTS", "TLS", "Client", "NoClientError"]

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
BUILD_TIMEOUT_S = 1800
TLS = "tls"
"""Among what a client lacks: encrypted connections."""


class NoClientError(Exception):
    """A client cannot be installed or built here."""


@dataclass(frozen=True)
class Client:
    """An official client. `lacks`: the commands that it does not offer, and TLS."""

    name: str
    language: str
    package: str
    version: str
    build: Callable[[], list[str]]
    lacks: frozenset[str] = frozenset()
    environment: Mapping[str, str] = field(default_factory=dict)

    def start(self, home: Path, trusted: Path | None = None) -> Program:
        """A process of it, whose home directory is `home`. `trusted`: a PEM file of authorities. Raises
        NoClientError."""
        command = [word.replace("{home}", str(home)) for word in self.build()]
        settings = os.environ | {"HOME": str(home)} | dict(self.environment)
        if trusted is not None:
            # gRPC's core reads it, as it has no option for it.
            settings |= {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(trusted)}
        return Program(command, home, settings)


def _python() -> list[str]:
    if importlib.util.find_spec("rocketmq") is None:
        raise NoClientError("the Python client's tests need its package (requirements-dev.lock)")
    return [sys.executable, str(FOLDER / "python" / "program.py")]


def _java() -> list[str]:
    try:
        java, classpath = peer.java_program(FOLDER / "java")
    except peer.NoPeerError as problem:
        raise NoClientError(str(problem)) from problem
    machine = [*peer.QUICK_MACHINE, "-Duser.home={home}", "-Drocketmq.log.root={home}"]
    return [java, *machine, "-classpath", classpath, "org.txstore.grpc.Program"]


def _go() -> list[str]:
    try:
        return [str(build_go(FOLDER / "go", (1, 25)))]
    except NoGoError as problem:
        raise NoClientError(str(problem)) from problem


def _node() -> list[str]:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise NoClientError("the Node.js client's tests need Node.js 18 or newer (node, npm)")
    sources = [FOLDER / "node" / name for name in ("package.json", "package-lock.json", "program.js")]

    def install(target: Path) -> None:
        target.mkdir()
        for source in sources:
            shutil.copy(source, target)
        _run([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(target)], "npm ci")

    return [node, str(peer.made("node", sources, install) / "program.js")]


def _rust() -> list[str]:
    cargo = shutil.which("cargo")
    if cargo is None:
        raise NoClientError("the Rust client's tests need cargo")
    target = ROOT / "target" / "grpc-rust"
    manifest = FOLDER / "rust" / "Cargo.toml"
    command = [cargo, "build", "--locked", "--quiet", "--manifest-path", str(manifest), "--target-dir", str(target)]
    _run(command, "cargo build")
    return [str(target / "debug" / "grpc-client")]


def _run(command: list[str], what: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S)
    except subprocess.CalledProcessError as problem:
        raise NoClientError(f"{what} failed: {problem.stderr[-2_000:]}") from problem
    except subprocess.TimeoutExpired as problem:
        raise NoClientError(f"{what} took longer than {BUILD_TIMEOUT_S} s") from problem


CLIENTS = {
    client.name: client
    for client in (
        Client("python", "Python", "rocketmq-python-client", "5.1.2", _python),
        Client("java", "Java", "rocketmq-client-java", "5.2.0", _java),
        Client(
            "go",
            "Go",
            "github.com/apache/rocketmq-clients/golang/v5",
            "5.1.3",
            _go,
            lacks=frozenset({"producer.recall"}),
        ),
        Client("node", "Node.js", "rocketmq-client-nodejs", "1.0.8", _node),
        Client(
            "rust",
            "Rust",
            "rocketmq",
            "5.0.0",
            _rust,
            lacks=frozenset({"push.start", "simple.change", "producer.recall", TLS}),
        ),
    )
}
