"""Guards `txstore console`: it shows a store by its path, with and without a program that has it open, and a server;
actions are made by whichever process writes the store; rows that wait in a database are shown, retried and dropped.
"""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import txstore
from tests.pages import Browser
from tests.unit.conftest import SMALL, Run, Scripted, bodies
from tests.unit.test_cli_serve import serving
from tests.unit.test_console_actions import begin, press
from txstore import Message, ServerConfig
from txstore.cli.console import StoreCalls
from txstore.database import Database
from txstore.transaction_state import TransactionState

_ENTRY = [sys.executable, "-c", "import sys; from txstore.cli.main import main; sys.exit(main())", "console"]


@contextmanager
def shown(*arguments: object) -> Iterator[Browser]:
    """A browser at the console of a process of its own."""
    command = [*_ENTRY, *map(str, arguments), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("console"), process.communicate()
            yield Browser(line.split()[1])
            process.send_signal(signal.SIGTERM)
            _, log = process.communicate(timeout=60)
            assert process.returncode == 0, log
            assert "Traceback" not in log
        finally:
            process.kill()


@pytest.fixture
def path(tmp_path: Path, scripted: type[Scripted]) -> Path:
    """A closed store with a message and a pending transaction."""
    path = tmp_path / "orders.store"
    with txstore.open(path, **SMALL) as broker:
        broker.create_topic("orders", 1)
        broker.create_group("shipping")
        broker.producer("shop").send(Message("orders", b"one", keys=["o-1"]))
        begin(broker, scripted)
    return path


def test_store_without_a_program_is_read_and_opened_for_an_action(path: Path) -> None:
    with shown(path, "--actions") as browser:
        page = browser.get("/transactions")
        (row,) = page.rows
        assert browser.get("/").tiles["Health"] == "reads only"
        assert "the process that writes the store checks it" in browser.get(page.link(row[0])).text
        press(browser, browser.get(page.link(row[0])), "Ask now")
        assert browser.status == 409
        press(browser, browser.get(page.link(row[0])), "Commit")
        assert len(browser.get("/messages?topic=orders").rows) == 2
        with txstore.open(path) as broker:  # Nothing holds the store between actions.
            assert broker.transaction(row[0]).state is TransactionState.COMMITTED


def test_call_does_not_wait_for_a_program_that_is_not_there(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To connect waits for seconds, in case one starts; a page makes several calls."""
    monkeypatch.setattr("txstore.cli.console.connect", lambda address: pytest.fail(f"connects to {address}"))
    with ExitStack() as opened:
        assert StoreCalls(str(path), opened)("overview").pending == 1


def test_program_that_has_the_store_open_answers(path: Path, scripted: type[Scripted]) -> None:
    with shown(path, "--actions") as browser:
        assert len(browser.get("/transactions").rows) == 1
        with txstore.open(path, transaction_timeout=3600, transaction_check_interval=3600) as broker:
            name = begin(broker, scripted, "c-18")
            page = browser.get(browser.get("/transactions?key=c-18").link(name))
            assert "first checked 3600 s after" in page.text, "only the program knows it"
            press(browser, page, "Commit")
            assert b"paid" in bodies(broker, "orders")
            for path_of_page in (
                "/",
                "/topics",
                "/groups",
                "/group?group=shipping",
                "/settings",
                "/delayed",
                "/outbox",
            ):
                browser.get(path_of_page)
                assert browser.status == 200, path_of_page
        assert len(browser.get("/messages?topic=orders").rows) == 2, "and after the program"


def test_server_is_shown_and_read_only_by_default(path: Path) -> None:
    with serving(path) as (_, addresses), shown("--server", addresses["broker"]) as browser:
        assert browser.get("/").tiles["Health"] == "OK"
        page = browser.get("/transactions")
        assert "Commit" not in browser.get(page.link(page.rows[0][0])).links


def test_outbox_of_a_database_is_shown_retried_and_dropped(path: Path, tmp_path: Path) -> None:
    url = str(tmp_path / "shop.db")
    with txstore.open(path) as broker:
        Database(url).create_table()
        producer = broker.producer("shop", database=Database(url))
        with sqlite3.connect(url) as session:
            for body in (b"1", b"2"):
                producer.send(Message("orders", body), session=session)
            session.execute("UPDATE txstore_outbox SET parked = '<b>by this test</b>'")
        session.close()
    with shown(path, "--actions", "--database", url) as browser:
        page = browser.get("/outbox")
        assert page.rows == [[url, "2", page.rows[0][2], "2 cannot be sent"]]
        page = browser.get(page.link(url))
        assert [row[5] for row in page.rows] == ["<b>by this test</b>"] * 2
        page = press(browser, page, "Drop")
        assert len(page.rows) == 1
        page = press(browser, page, "Retry")
        assert [row.parked for row in Database(url).outbox()] == [None]
        browser.get("/outbox?database=other")
        assert browser.status == 400


def test_accounts_of_a_file_may_log_in(path: Path, tmp_path: Path) -> None:
    accounts = tmp_path / "accounts.toml"
    accounts.touch(0o600)
    accounts.write_text('[operator]\nsecret_key = "secret-of-operator"\nadmin = true\n')
    with shown(path, "--accounts", accounts) as browser:
        page = browser.submit(browser.get("/topics"), {"account": "operator", "secret": "secret-of-operator"})
        assert page.heading == "Topics"
        accounts.write_text('[operator]\nsecret_key = "another-secret"\nadmin = true\n')
        assert browser.get("/topics").heading == "Log in"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [(["missing.store"], "does not exist"), (["--server", "127.0.0.1:1"], "127.0.0.1:1")],
)
def test_what_cannot_be_shown_is_an_error(run: Run, arguments: list[str], text: str) -> None:
    code, _, said = run("console", *arguments, "--listen", "127.0.0.1:0")
    assert code == 3
    assert text in said


def test_options_of_the_server_reach_its_console(path: Path) -> None:
    assert ServerConfig().console is None
    options = ["--console", "127.0.0.1:0", "--console-actions", "--log", "json"]
    with serving(path, *options) as (_, addresses):
        page = Browser(addresses["console"]).get("/transactions")
        assert "Commit" in Browser(addresses["console"]).get(page.link(page.rows[0][0])).links


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("foo://x", "a database cannot be opened from a URL with foo://"),
        ("postgresql+asyncpg://me:hidden@host/shop", "from a URL with postgresql+asyncpg://"),
        ("mysql+foo://me:hidden@host/shop", "SQLAlchemy knows no such URL: mysql+foo://"),
        ("mysql+pymysql://me:hidden@host:port/shop", "SQLAlchemy knows no such URL: mysql+pymysql://"),
        (":memory:", "a SQLite database in memory exists for one connection only"),
    ],
)
def test_database_that_can_never_be_opened_is_refused_first(tmp_path: Path, run: Run, url: str, says: str) -> None:
    code, told, error = run("console", tmp_path / "missing.store", "--database", url)
    assert (code, told, says in error, "hint: " in error) == (2, "", True, True), error
    assert "hidden" not in error
