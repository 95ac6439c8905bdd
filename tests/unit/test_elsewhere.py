"""Guards the systems without stores on a disk: types, `connect` and stores in memory work on macOS and Windows.

The module is built on this system with the disk left out (`--cfg txstore_without_disk`), and Python does not have what
Windows lacks: forks and two modules. `make elsewhere` compiles for the other systems themselves.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.unit.test_cli_serve import serving

pytestmark = [pytest.mark.matrix, pytest.mark.skipif(shutil.which("cargo") is None, reason="cargo is not here")]

ROOT = Path(__file__).resolve().parents[2]
WITHOUT = """
import os, sys
for name in ("fcntl", "resource"):
    sys.modules[name] = None
for name in ("fork", "register_at_fork", "sched_getaffinity", "O_PATH"):
    delattr(os, name)
"""
TRANSACTION = """
from txstore import LocalTransactionState, Message, TransactionListener

class Paid(TransactionListener):
    def execute_local_transaction(self, message, argument):
        return LocalTransactionState.UNKNOWN
    def check_local_transaction(self, message):
        return LocalTransactionState.COMMIT
"""


@pytest.fixture(scope="module")
def without_disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a package without stores on a disk."""
    folder = tmp_path_factory.mktemp("without-disk")
    command = ["-m", "maturin", "build", "--locked", "--quiet", "--profile", "dev", "--out", str(folder)]
    target = ["--target-dir", str(ROOT / "target" / "elsewhere")]
    flags = {"RUSTFLAGS": "--cfg txstore_without_disk"}
    subprocess.run([sys.executable, *command, *target], cwd=ROOT, env=os.environ | flags, check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        files.extractall(folder / "package")
    return folder / "package"


def run(package: Path, script: str, *arguments: str) -> str:
    """Runs a script with the package. Returns what it printed."""
    command = [sys.executable, "-c", WITHOUT + script, *arguments]
    environment = os.environ | {"PYTHONPATH": str(package)}
    done = subprocess.run(
        command, cwd=package, env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_store_on_a_disk_is_an_error_that_says_where_it_works(without_disk: Path, tmp_path: Path) -> None:
    script = """
import txstore
for is_read in (True, False):
    try:
        txstore.open(sys.argv[1], read_only=is_read)
    except txstore.StoreIOError as error:
        print(error)
"""
    printed = run(without_disk, script, str(tmp_path / "new.store"))
    assert printed.count("needs Linux") == 2
    assert "txstore.connect" in printed
    assert not (tmp_path / "new.store").exists()


def test_store_in_memory_works(without_disk: Path) -> None:
    script = (
        TRANSACTION
        + """
from txstore.testing import FakeBroker

with FakeBroker() as broker:
    with broker.transaction_producer("payments", Paid()) as producer:
        producer.send_in_transaction(Message("orders", b"paid"))
        assert broker.messages("orders") == []
        broker.clock.advance(6)
        broker.run_checks()
    print([message.body for message in broker.messages("orders")])
"""
    )
    assert run(without_disk, script) == "[b'paid']\n"


def test_store_in_memory_works_on_an_event_loop(without_disk: Path) -> None:
    script = """
import asyncio
from txstore import Message
from txstore.testing.aio import FakeBroker

async def main():
    async with FakeBroker(flush_disk_type="SYNC_FLUSH") as broker:
        producer = broker.producer("shop")
        await asyncio.gather(*[producer.send(Message("orders", b"%d" % order)) for order in range(100)])
        print(len(broker.messages("orders")))

asyncio.run(main())
"""
    assert run(without_disk, script) == "100\n"


def test_client_works(without_disk: Path, tmp_path: Path) -> None:
    script = (
        TRANSACTION
        + """
import txstore
with txstore.connect(sys.argv[1]) as broker:
    broker.producer("shop").send(Message("orders", b"sent"))
    with broker.transaction_producer("payments", Paid()) as producer, producer.transaction(Message("orders", b"paid")):
        pass
    with broker.consumer("shop", "orders") as consumer:
        found = []
        while len(found) < 2:
            found += [message.body for message in consumer.poll()]
    print(sorted(found))
"""
    )
    with serving(tmp_path / "store") as (_, addresses):
        assert run(without_disk, script, addresses["broker"]) == "[b'paid', b'sent']\n"
