"""Guards where people run Spark: on a cluster, on Spark Connect, in a notebook, with a packed environment.

Each driver is a program of its own, with the store's path as the examples have it, relative, where Spark allows it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port
from tests.spark.conftest import missing
from tests.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.matrix]
ROOT = Path(__file__).resolve().parents[2]
MESSAGES = 1_034
LOCAL_CLUSTER = "local-cluster[2,1,1024]"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Spark's home with a work directory of its own, where executors of a local cluster leave their files."""
    why = missing()
    if why is not None:
        pytest.skip(why)
    import pyspark

    folder = tmp_path_factory.mktemp("spark-home")
    for entry in Path(pyspark.__file__).parent.iterdir():
        if entry.name != "work":
            (folder / entry.name).symlink_to(entry)
    return folder


def environment(home: Path, **others: str) -> dict[str, str]:
    """The environment of a driver; `others` replaces variables."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK"))}
    needed = {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(ROOT)}
    return kept | needed | {"PYSPARK_PYTHON": sys.executable} | others


def deployed(
    home: Path, store: Path, work: Path, *options: str, python: str = sys.executable, **others: str
) -> subprocess.CompletedProcess[str]:
    """Runs the driver in the store's folder, with a relative path; for Spark Connect with an absolute one."""
    # Each session of Spark Connect has a directory of its own on the server, where its Python processes run.
    path = str(store) if "--connect" in options else store.name
    command = [python, "-m", "tests.spark.deployed", path, str(work), *options]
    return subprocess.run(
        command,
        cwd=store.parent, env=environment(home, **others), capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip


def answer(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """What the driver printed. Every reader must have found every message."""
    assert done.returncode == 0, done.stderr[-6_000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert [found[name] for name in ("batch", "view", "stream")] == [MESSAGES] * 3
    return found


@contextmanager
def daemon(home: Path, log: Path, name: str, *arguments: str, ready: str) -> Iterator[None]:
    """A master or worker, until the end of the block."""
    command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
    with (
        log.open("w") as out,
        subprocess.Popen(command, env=environment(home), stdout=out, stderr=subprocess.STDOUT) as child,
    ):
        try:
            eventually(lambda: ready in log.read_text() or child.poll() is not None, 120)
            assert child.poll() is None, log.read_text()
            yield
        finally:
            child.terminate()
            child.wait(60)


@pytest.fixture(scope="module")
def standalone(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a master with a worker of two cores, which works in a directory of its own."""
    folder = tmp_path_factory.mktemp("standalone")
    ports = [str(free_port()) for _ in range(3)]
    master = ["--host", "127.0.0.1", "--port", ports[0], "--webui-port", ports[1]]
    worker = ["--host", "127.0.0.1", "--webui-port", ports[2], "--cores", "2", "--memory", "2g"]
    url = f"spark://127.0.0.1:{ports[0]}"
    with (
        daemon(home, folder / "master.log", "master.Master", *master, ready="New state: ALIVE"),
        daemon(
            home, folder / "worker.log", "worker.Worker", *worker, "--work-dir", str(folder / "work"), url,
            ready="Successfully registered with master",
        ),
    ):  # fmt: skip
        yield url


@pytest.mark.parametrize("kind", ["local-cluster", "standalone"])
def test_cluster_reads_a_relative_path(
    kind: str, home: Path, orders: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    master = LOCAL_CLUSTER if kind == "local-cluster" else request.getfixturevalue("standalone")
    done = deployed(home, orders, tmp_path, "--master", master)
    found = answer(done)
    # Of its three queries one names no columns; it has many tasks.
    assert done.stderr.count("this query reads all") == 1
    # The tasks ran in other directories than the driver, so a relative path names nothing there.
    assert {python for python, _ in found["executors"]} == {sys.executable}
    assert str(orders.parent) not in {folder for _, folder in found["executors"]}


def test_spark_connect_reads_as_a_classic_session_does(home: Path, orders: Path, tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="grpcio is not installed: pip install pyspark[connect]")
    answer(deployed(home, orders, tmp_path, "--connect"))


def test_notebook_registers_the_source(home: Path, orders: Path, tmp_path: Path) -> None:
    """A notebook's program is not an interpreter, so Spark cannot ask it for sources."""
    notebook = tmp_path / "jupyter"
    notebook.write_text("#!/bin/sh\necho 'jupyter: unrecognized arguments:' \"$@\" >&2\nexit 2\n")
    notebook.chmod(0o755)
    found = deployed(home, orders, tmp_path / "found", PYSPARK_DRIVER_PYTHON=str(notebook))
    assert found.returncode != 0
    assert "DATA_SOURCE_NOT_FOUND" in found.stderr
    answer(deployed(home, orders, tmp_path / "registered", "--register", PYSPARK_DRIVER_PYTHON=str(notebook)))


def test_packed_environment_is_the_executors(home: Path, standalone: str, orders: Path, tmp_path: Path) -> None:
    """The executors unpack `--archives` in their directories; a link gives the driver the same relative path."""
    packed = tmp_path / "environment.tar.gz"
    folder = tmp_path / "driver"
    folder.mkdir()
    shutil.copytree(orders, folder / orders.name)
    pack(tmp_path / "packed", packed)
    (folder / "environment").symlink_to(tmp_path / "packed")
    done = deployed(
        home, folder / orders.name, tmp_path / "work", "--master", standalone,
        "--conf", f"spark.archives={packed}#environment",
        PYSPARK_PYTHON="./environment/bin/python",
    )  # fmt: skip
    for python, directory in answer(done)["executors"]:
        assert Path(python).parent == Path(directory) / "environment" / "bin"
        assert Path(directory) != folder


def pack(folder: Path, archive: Path) -> None:
    """An environment as venv-pack packs one: `bin/python` in the archive's top folder finds the packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    installed = sysconfig.get_path("purelib")
    (packages / "installed.pth").write_text(f"import site; site.addsitedir({installed!r})\n")
    with tarfile.open(archive, "w:gz") as file:
        for entry in folder.iterdir():
            file.add(entry, entry.name)


def test_executors_run_a_found_source_with_the_drivers_python(home: Path, orders: Path, tmp_path: Path) -> None:
    """So PYSPARK_DRIVER_PYTHON must exist there, too, or not be set."""
    started = tmp_path / "started"
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "$@" >> {started}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    found = deployed(home, orders, tmp_path / "work", "--master", LOCAL_CLUSTER, PYSPARK_DRIVER_PYTHON=str(python))
    answer(found)
    assert "-m pyspark.daemon" in started.read_text()
