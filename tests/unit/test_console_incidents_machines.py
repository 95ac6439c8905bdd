"""Guards that an operator finds causes by clicking, also for incidents of machines: a disk whose syncs fail or that is
almost full, a replica that lags, a source that was replaced, a row that can never be sent, retries that nobody reads.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests.pages import Browser
from tests.ports import free_port
from tests.process import paused
from tests.unit.conftest import SMALL
from tests.unit.test_cli_serve import serving
from tests.unit.test_console_incidents import Scene
from tests.waiting import eventually
from txstore import Message
from txstore.database import Database
from txstore.errors import TxStoreError

pytest.importorskip("typer")

from txstore.cli.commands import run

# A program that serves its store, as the library does it: unlike `txstore serve`, it does not exit when a sync fails.
_SERVICE = """
import sys, txstore
config = txstore.ServerConfig("127.0.0.1:0", name_server=None, console="127.0.0.1:0")
with txstore.serve(sys.argv[1], config=config, flush_disk_type="SYNC_FLUSH") as server:
    print(server.address, server.console, flush=True)
    sys.stdin.read()
"""


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not here")
def test_disk_whose_syncs_fail_is_red_and_says_what_helps(tmp_path: Path) -> None:
    with txstore.open(tmp_path / "store", **SMALL) as broker:
        broker.create_topic("orders", 1)
    command = ["strace", "-f", "-qq", "-o", os.devnull, "-e", "trace=fdatasync"]
    command += ["-e", "inject=fdatasync:error=EIO:when=10+", sys.executable, "-c", _SERVICE, str(tmp_path / "store")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as service:
        assert service.stdout is not None
        address, console = service.stdout.readline().split()
        browser = Browser(console)
        with txstore.connect(address) as remote:
            producer = remote.producer("shop")
            eventually(lambda: is_refused(producer))
        eventually(lambda: browser.get("/").levels["Health"] == "bad")
        page = browser.get("/")
        assert page.tiles["Health"] == "no messages taken"
        assert "sync" in page.text
        assert browser.get(page.tile_links["Health"]).heading == "Settings"
        service.kill()


def is_refused(producer: txstore.Producer) -> bool:
    try:
        producer.send(Message("orders", b"x"))
    except TxStoreError:
        return True
    return False


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of its own, of 16 MiB."""
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if made.returncode != 0:
        pytest.skip("mounting a file system needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_disk_that_is_almost_full_is_red_before_it_is_full(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk, ExitStack() as opened:
        here = Scene(disk / "store", opened)
        assert here.browser.get("/").levels["Log"] == "ok"
        free = shutil.disk_usage(disk).free
        (disk / "something else").write_bytes(bytes(int(free - 0.05 * (16 << 20))))
        page = here.marked("Log", "bad")
        assert page.heading == "Settings"
        assert "% used" in here.browser.get("/").text


def test_replica_that_lags_is_marked_with_what_it_lacks(tmp_path: Path) -> None:
    config = txstore.ServerConfig("127.0.0.1:0", name_server=None, console="127.0.0.1:0")
    with txstore.serve(tmp_path / "store", config=config, **SMALL) as source:
        browser = Browser(source.console or "")
        with serving(tmp_path / "copy", "--replica-of", str(source.address), "--advertise", "127.0.0.1:1") as (copy, _):
            source.broker.producer("shop").send(Message("orders", b"x"))
            eventually(lambda: browser.get("/").levels.get("Replicas") == "ok")
            with paused(copy.pid):
                source.broker.producer("shop").send_batch([Message("orders", b"x" * 1000)] * 100)
                eventually(lambda: browser.get("/").levels["Replicas"] == "warning")
                page = browser.get("/")
                assert page.tile_links["Replicas"] == "/#replicas"
                (row,) = [row for row in page.rows if row[0] == "127.0.0.1:1"]
                assert "KiB" in row[1]


def test_source_that_was_replaced_says_so(tmp_path: Path) -> None:
    first, second = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    options = ["--console", "127.0.0.1:0", "--log", "json"]
    with (
        serving(tmp_path / "store", "--listen", first, *options) as (_, addresses),
        serving(tmp_path / "copy", "--listen", second, "--replica-of", first),
    ):
        browser = Browser(addresses["console"])
        eventually(lambda: browser.get("/").tiles.get("Replicas") == "1")
        assert run(["replica", "promote", second]) == 0

        def is_marked() -> bool:
            page = browser.get("/")
            if browser.status == 503:
                assert "this node opens its store again, because another node was promoted" in page.text
            return page.levels.get("Health") == "bad" and "another node is the source now" in page.text

        eventually(is_marked)


def test_row_that_can_never_be_sent_is_red_with_its_reason(tmp_path: Path) -> None:
    url = str(tmp_path / "shop.db")
    Database(url).create_table()
    options: Any = SMALL | {"auto_create_topic_enable": False}
    session = sqlite3.connect(url)
    with txstore.open(tmp_path / "store", **options) as broker:
        broker.create_topic("orders", 1)
        broker.producer("shop", database=Database(url)).send(Message("orders", b"x"), session=session)
    with txstore.open(tmp_path / "store", **options) as broker:
        broker.delete_topic("orders")
        session.commit()
        session.close()
        broker.producer("shop", database=Database(url))
        eventually(lambda: any(row.parked for row in Database(url).outbox(10)))
        command = [sys.executable, "-m", "txstore.cli.main", "console", str(tmp_path / "store"), "--database", url]
        with subprocess.Popen([*command, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True) as console:
            try:
                assert console.stdout is not None
                browser = Browser(console.stdout.readline().split()[-1])
                page = browser.get("/")
                assert page.levels["Outbox"] == "bad"
                page = browser.get(page.tile_links["Outbox"])
                page = browser.get(page.link(url))
                assert "topic orders" in page.text
                assert page.rows[0][1] == "orders"
            finally:
                console.terminate()


def test_retries_that_nobody_reads_are_in_the_lag_of_their_group(tmp_path: Path) -> None:
    with ExitStack() as opened:
        here = Scene(tmp_path / "store", opened)
        here.broker.producer("shop").send(Message("orders", b"x", keys=["o-1"]))
        with here.broker.consumer("shipping", "orders") as consumer:
            for message in consumer.poll(timeout=5):
                message.retry(delay_level=1)
        page = here.follow(here.marked("Consumer lag", "warning"))
        assert "Nobody reads for this group now" in page.text

        def waits() -> bool:
            rows = here.browser.get("/group?group=shipping").rows
            return ["1"] in [row[4:5] for row in rows if any("%RETRY%shipping" in cell for cell in row)]

        eventually(waits)  # The message comes there after its delay.
