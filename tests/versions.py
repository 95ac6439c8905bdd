"""Runs the tests with other versions of Python and Spark: the second part of `make matrix`.

In:  a wheel; `--python` for each interpreter (default: those of SUPPORTED that are on the path), `--spark` for each
     version of pyspark.
Out: each of them in an environment of its own below target/matrix, and which failed; the exit code is their number.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements-dev.lock"
SUPPORTED = ("python3.11", "python3.12", "python3.13", "python3.14")
# All that runs in the interpreter itself; servers and clients of other languages are the same with each.
OF_PYTHON = ("tests/unit", "tests/database", "tests/golden", "tests/model", "tests/remoting_client")
# A version of Spark also runs the tests of its tier: a cluster, Spark Connect, packed environments.
OF_SPARK = ("tests/spark", "--tier", "test,matrix")


def interpreters(named: Sequence[str]) -> list[str]:
    """Paths of the interpreters; a missing one is an error if it was requested by name."""
    found = [(name, shutil.which(name)) for name in named or SUPPORTED]
    if missing := [name for name, path in found if path is None and named]:
        raise SystemExit(f"there is no interpreter {missing[0]!r}; name one that is on the path, or its path")
    for name, path in found:
        if path is None:
            print(f"skipped: {name} is not on the path", flush=True)
    return [path for _, path in found if path is not None]


def pinned(**others: str) -> list[str]:
    """The project's own lock, with other versions of some packages."""
    lines = [line for line in LOCK.read_text().splitlines() if line and not line.startswith("#")]
    return [f"{name}=={others[name]}" if name in others else line for line in lines for name in [line.split("==")[0]]]


def of_spark(version: str) -> list[str]:
    """The project's own lock with another Spark, and what a client of Spark Connect needs."""
    return [*pinned(pyspark=version), f"pyspark[connect]=={version}"]


def environment(name: str, python: str, wheel: Path, requirements: Sequence[str]) -> Path:
    """The interpreter of a new environment that has the wheel and these packages."""
    home = ROOT / "target" / "matrix" / name
    shutil.rmtree(home, ignore_errors=True)
    subprocess.run([python, "-m", "venv", str(home)], check=True)
    inside = home / "bin" / "python"
    install = [str(inside), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, *requirements, str(wheel)], check=True)
    return inside


def passes(inside: Path, tests: Sequence[str]) -> bool:
    """Whether these tests pass there: folders, and options of pytest. Without `--tier` those of the tier `test`."""
    command = [str(inside), "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    # Programs that tests start by name come from the same environment.
    path = f"{inside.parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(command, cwd=ROOT, env=os.environ | {"PATH": path}, check=False).returncode == 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.versions", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--python", action="append", default=[], help="an interpreter; may be repeated")
    parser.add_argument("--spark", action="append", default=[], help="a version of pyspark; may be repeated")
    asked = parser.parse_args(arguments)
    wheel = asked.wheel.resolve()
    runs: list[tuple[str, str, list[str], Sequence[str]]]
    runs = [(Path(python).name, python, pinned(), OF_PYTHON) for python in interpreters(asked.python)]
    runs += [(f"spark-{spark}", sys.executable, of_spark(spark), OF_SPARK) for spark in asked.spark]
    failed = []
    for name, python, requirements, tests in runs:
        print(f"── {name}: {' '.join(tests)}", flush=True)
        if not passes(environment(name, python, wheel, requirements), tests):
            failed.append(name)
    print(
        f"{len(runs) - len(failed)} of {len(runs)} versions passed"
        + (f"; failed: {', '.join(failed)}" if failed else "")
    )
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
