"""RocketMQ's Go clients: programs in Go that are driven by JSON lines.

In:     a folder of sources.
Out:    a program, built once for these very sources, offline if the modules are there.
Always: raises NoGoError if Go or the modules are not available.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from hashlib import sha256
from pathlib import Path

from tests.programs import Program

ROOT = Path(__file__).resolve().parents[2]
SOURCES = Path(__file__).with_name("go")
BUILT = ROOT / "target" / "go"
VERSION = (1, 21)
BUILD_TIMEOUT_S = 900


class NoGoError(Exception):
    """Go is not installed, is too old, or cannot get the client's modules."""


def build(sources: Path = SOURCES, version: tuple[int, int] = VERSION) -> Path:
    """The program. `version`: the oldest Go that its client accepts. Raises NoGoError."""
    needed = f"the Go client's tests need Go {version[0]}.{version[1]} or newer"
    go = shutil.which("go")
    if go is None:
        raise NoGoError(f"{needed} (go)")
    told = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=True, cwd=sources).stdout
    found = re.match(r"go(\d+)\.(\d+)", told)
    if found is None or (int(found[1]), int(found[2])) < version:
        raise NoGoError(f"{needed}, this is {told.strip()}")
    digest = sha256(told.encode() + b"".join(path.read_bytes() for path in sorted(sources.iterdir()))).hexdigest()[:16]
    program = BUILT / f"client-{digest}"
    if not program.exists():
        BUILT.mkdir(parents=True, exist_ok=True)
        # Built under another name and renamed, so that it is complete or absent.
        unfinished = program.with_suffix(f".{os.getpid()}")
        command = [go, "build", "-mod=readonly", "-trimpath", "-o", str(unfinished), "."]
        try:
            subprocess.run(command, cwd=sources, check=True, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S)
        except subprocess.CalledProcessError as problem:
            raise NoGoError(f"go build failed: {problem.stderr[-2_000:]}") from problem
        except subprocess.TimeoutExpired as problem:
            raise NoGoError(f"go build took longer than {BUILD_TIMEOUT_S} s") from problem
        unfinished.rename(program)
    return program


class GoClient(Program):
    """One process of the remoting client."""

    def __init__(self, program: Path, home: Path) -> None:
        """`home`: the directory in which a broadcasting consumer keeps its offsets."""
        super().__init__([str(program)], home, os.environ | {"HOME": str(home)})
