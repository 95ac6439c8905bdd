"""Guards the web console over HTTP: what its pages show, who may see them, and that data of others is only text there.

A real server answers; the pages are read as a browser reads them. Chromium's own view is in test_console_browser.py.
"""

from __future__ import annotations

import http.client
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.pages import Browser, Shown
from tests.unit.conftest import SMALL
from tests.waiting import eventually
from txstore import EmbeddedBroker, Message, Server, ServerConfig, errors
from txstore.config import BrokerConfig
from txstore.console.text import shown
from txstore.server.opening import Opening

ACCOUNTS = """
[operator]
secret_key = "secret-of-operator"
admin = true

[reader-app]
secret_key = "secret-of-reader"
topics = { orders = "SUB" }
groups = { shipping = "SUB" }
"""
ANY = ServerConfig("127.0.0.1:0", name_server=None, console="127.0.0.1:0")


@pytest.fixture
def filled(broker: EmbeddedBroker) -> EmbeddedBroker:
    """A store with two topics, and a group that has read some of one."""
    broker.create_topic("orders", 2)
    broker.create_topic("invoices", 1)
    producer = broker.producer("shop")
    for number in range(10):
        producer.send(Message("orders", b"order %d" % number, keys=[f"o-{number}"]))
    with broker.consumer("shipping", "orders") as consumer:
        assert len(consumer.poll(timeout=5, max_messages=4)) == 4
    return broker


@pytest.fixture
def browser(filled: EmbeddedBroker) -> Iterator[Browser]:
    """A browser at a console that needs no login and changes nothing."""
    with Server(filled, ANY) as server:
        assert server.console is not None
        yield Browser(server.console)


def status_of(browser: Browser, path: str) -> int:
    browser.get(path)
    return browser.status


def test_overview_leads_to_what_needs_a_look(browser: Browser) -> None:
    page = browser.get("/")
    assert page.tiles["Consumer lag"] == "6"
    assert page.tiles["Topics"] == "2"
    assert page.tiles["Health"] == "OK"
    assert page.tiles["Pending transactions"] == "0"
    assert "shipping" in browser.get(page.link("shipping")).heading


def test_topics_and_groups_lead_to_each_other(browser: Browser) -> None:
    topics = browser.get("/topics")
    assert [row[:3] for row in topics.rows] == [["invoices", "1", "0"], ["orders", "2", "10"]]
    assert [row[0] for row in browser.get("/topics?q=ORD").rows] == ["orders"]
    topic = browser.get(topics.link("orders"))
    assert [row[:4] for row in topic.rows] == [["0", "0", "5", "5"], ["1", "0", "5", "5"]]
    group = browser.get(topic.link("shipping"))
    assert sum(int(row[4]) for row in group.rows) == 6
    assert [row[0] for row in browser.get("/groups").rows] == ["shipping"]


def test_lists_come_in_pages(filled: EmbeddedBroker, browser: Browser) -> None:
    for number in range(120):
        filled.create_topic(f"t{number:03}", 1)
    names, page = [], browser.get("/topics")
    names += [row[0] for row in page.rows]
    while "Next" in page.links:
        page = browser.get(page.link("Next"))
        names += [row[0] for row in page.rows]
    assert names == ["invoices", "orders", *(f"t{number:03}" for number in range(120))]


def test_pages_load_nothing_from_elsewhere_and_are_not_kept(browser: Browser) -> None:
    for path in ("/", "/topics", "/topic?topic=orders", "/topic?topic=none", "/nothing", "/login"):
        browser.get(path)
        headers = browser.headers
        assert "default-src 'none'" in headers["content-security-policy"], path
        assert "script-src" not in headers["content-security-policy"]
        assert (headers["cache-control"], headers["x-frame-options"]) == ("no-store", "DENY")
        assert "HttpOnly" in headers["set-cookie"]
        assert "SameSite=strict" in headers["set-cookie"]


def test_errors_are_pages(browser: Browser) -> None:
    page = browser.get("/topic?topic=%3Cscript%3Ealert(1)%3C/script%3E")
    assert browser.status == 404
    assert "script" not in page.tags
    assert status_of(browser, "/nothing") == 404
    assert status_of(browser, "/topic") == 400
    assert status_of(browser, "/topics?start=-1") == 400
    browser.post("/topics", {})
    assert browser.status == 405


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("orders", "orders"),
        ("a\u202eb\x00c\x1b[31m", "a\\u202eb\\x00c\\x1b[31m"),
        ("zero\u200bwidth \U000e0041\ud800", "zero\\u200bwidth \\U000e0041\\ud800"),
        ("two\nlines\u2028", "two\\nlines\\u2028"),
        ("grüße 訂單", "grüße 訂單"),
        (None, "–"),
    ],
)
def test_text_that_hides_or_reverses_is_shown_as_escapes(text: str | None, seen: str) -> None:
    assert shown(text) == seen


def test_only_names_of_this_machine_are_answered_without_accounts(browser: Browser) -> None:
    for host in ("127.0.0.1", "localhost:80", "[::1]:80", "10.0.0.7:9180"):
        browser.get("/", headers={"Host": host})
        assert browser.status == 200, host
    for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", ""):
        browser.get("/", headers={"Host": host})
        assert browser.status == 421, host


@pytest.fixture
def accounts(tmp_path: Path) -> Path:
    path = tmp_path / "accounts.toml"
    path.touch(0o600)
    path.write_text(ACCOUNTS)
    return path


@pytest.fixture
def guarded(filled: EmbeddedBroker, accounts: Path) -> Iterator[Server]:
    config = ServerConfig("127.0.0.1:0", name_server=None, console="127.0.0.1:0", accounts=accounts)
    with Server(filled, config) as server:
        yield server


def log_in(server: Server, account: str, secret: str) -> tuple[Browser, Shown]:
    assert server.console is not None
    browser = Browser(server.console)
    page = browser.get("/groups")
    assert page.heading == "Log in"
    return browser, browser.submit(page, {"account": account, "secret": secret})


def test_login_shows_what_the_account_may_read(guarded: Server) -> None:
    browser, page = log_in(guarded, "operator", "secret-of-operator")
    assert page.heading == "Consumer groups", "it leads to the page that was asked for"
    assert browser.get("/").tiles["Topics"] == "2"
    reader, page = log_in(guarded, "reader-app", "secret-of-reader")
    assert [row[0] for row in page.rows] == ["shipping"]
    assert [row[0] for row in reader.get("/topics").rows] == ["orders"]
    assert status_of(reader, "/topic?topic=invoices") == 404
    assert reader.get("/").tiles == {}


def test_wrong_secrets_are_refused_and_soon_not_even_tried(guarded: Server) -> None:
    browser, page = log_in(guarded, "operator", "secret-of-reader")
    assert browser.status == 403
    assert "no account" in page.text
    for _ in range(19):
        page = browser.submit(page, {"account": "operator", "secret": "wrong"})
    page = browser.submit(page, {"account": "operator", "secret": "secret-of-operator"})
    assert browser.status == 429
    assert browser.get("/topics").heading == "Log in"


def test_session_ends_with_its_account_and_at_logout(guarded: Server, accounts: Path) -> None:
    browser, _ = log_in(guarded, "operator", "secret-of-operator")
    page = browser.get("/topics")
    browser.submit(page, {})
    assert browser.get("/topics").heading == "Log in"
    browser, _ = log_in(guarded, "reader-app", "secret-of-reader")
    accounts.write_text(ACCOUNTS.replace("secret-of-reader", "secret-that-is-new"))
    guarded.reload()
    assert browser.get("/topics").heading == "Log in"


def test_login_without_the_token_of_the_form_is_refused(guarded: Server) -> None:
    assert guarded.console is not None
    browser = Browser(guarded.console)
    browser.get("/login")
    for token in ({}, {"token": ""}, {"token": "0" * 64}, {"token": "ä"}):
        browser.post("/login", {"account": "operator", "secret": "secret-of-operator", **token})
        assert browser.status == 403
    assert browser.get("/topics").heading == "Log in"


def test_login_leads_to_no_other_site(guarded: Server) -> None:
    assert guarded.console is not None
    for to in ("//evil.example", "/\\evil.example", "https://evil.example", "/\tevil"):
        browser = Browser(guarded.console)
        page = browser.get("/login")
        browser.submit(page, {"account": "operator", "secret": "secret-of-operator", "to": to}, follow=False)
        assert browser.headers["location"] == "/", to


def test_forms_that_are_too_large_are_refused(guarded: Server) -> None:
    assert guarded.console is not None
    browser = Browser(guarded.console)
    browser.post("/login", {"account": "a" * 20_000})
    assert browser.status == 413
    browser.post("/login", {str(number): "" for number in range(60)})
    assert browser.status == 400


@pytest.mark.parametrize(
    ("address", "option"),
    [("nowhere", "console"), ("127.0.0.1:99999", "console"), ("127.0.0.1:a", "console"), (":1", "console")],
)
def test_invalid_address_is_an_error(broker: EmbeddedBroker, address: str, option: str) -> None:
    with pytest.raises(errors.InvalidOptionError, match="HOST:PORT") as refused:
        Server(broker, ServerConfig("127.0.0.1:0", name_server=None, console=address))
    assert refused.value.option == option


def test_address_in_use_is_an_error(broker: EmbeddedBroker, browser: Browser) -> None:
    with pytest.raises(errors.StoreIOError, match="cannot listen"):
        Server(broker, ServerConfig("127.0.0.1:0", name_server=None, console=browser.address))


def test_server_that_cannot_start_leaves_one_thread_that_waits_at_the_socket(broker: EmbeddedBroker) -> None:
    def waiting() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name == "txstore-socket"}

    before = waiting()
    with Server(broker, ANY) as server, pytest.raises(errors.StoreIOError, match="cannot listen"):
        Server(broker, replace(ANY, console=server.console))
    # Closing the broker wakes one thread, and would wait in vain for another one.
    assert len(waiting() - before) <= 1


def test_actions_for_other_machines_need_accounts(broker: EmbeddedBroker) -> None:
    config = ServerConfig("127.0.0.1:0", name_server=None, console="0.0.0.0:0", console_actions=True)
    with pytest.raises(errors.InvalidOptionError, match="without accounts"):
        Server(broker, config)


def test_closed_server_answers_no_more(filled: EmbeddedBroker) -> None:
    with Server(filled, ANY) as server:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", server.console or "")
        address = server.console or ""
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        Browser(address).get("/")


class HeldOpening(Opening):
    """Opens a store. Each time after the first, it waits until `may_open` is set."""

    may_open: threading.Event | None = None
    error: errors.TxStoreError | None = None

    def open(self, *, ask: bool = True) -> tuple[EmbeddedBroker, Any]:
        if self.may_open is None:
            self.may_open = threading.Event()
        else:
            assert self.may_open.wait(120)
            if self.error is not None:
                raise self.error
        return super().open(ask=ask)


@dataclass
class Reopening:
    """A server whose store is closed, and not opened again before `finish`."""

    opening: HeldOpening
    server: Server
    browser: Browser
    asked: Shown
    """The confirmation of an action, loaded before."""

    def finish(self) -> None:
        assert self.opening.may_open is not None
        self.opening.may_open.set()


@pytest.fixture
def reopening(tmp_path: Path) -> Iterator[Reopening]:
    config = replace(ANY, console_actions=True)
    opening = HeldOpening(tmp_path / "store", config, BrokerConfig.from_options(SMALL, None))
    broker, _ = opening.open()
    broker.create_topic("orders", 1)
    broker.create_group("shipping")
    with Server(broker, config, close_broker=True, opening=opening) as server:
        browser = Browser(server.console or "")
        found = Reopening(opening, server, browser, browser.get("/group/reset?group=shipping&topic=orders&to=last"))
        assert browser.status == 200
        server.reopen("another node was promoted")
        try:
            eventually(lambda: status_of(browser, "/settings") == 503)  # The broker closes its store last.
            yield found
        finally:
            found.finish()


def test_page_says_that_the_store_is_opened_again(reopening: Reopening) -> None:
    browser = reopening.browser
    for path in ("/", "/transactions", "/topics", "/settings"):
        page = browser.get(path)
        assert (browser.status, page.heading) == (503, "Not available for a moment"), path
        assert "opens its store again, because another node was promoted" in page.text
        assert "Consumer groups" in page.links  # The navigation stays.
        assert browser.headers["retry-after"] == browser.headers["refresh"] == "3"
    reopening.finish()
    eventually(lambda: browser.get("/").heading == "Overview")
    assert (browser.status, browser.headers.get("refresh")) == (200, None)


def test_action_while_the_store_is_opened_again_is_not_sent_again_by_itself(reopening: Reopening) -> None:
    browser = reopening.browser
    page = browser.submit(reopening.asked, {})
    assert (browser.status, page.heading) == (503, "Not available for a moment")
    assert "try again in a few seconds" in page.text
    assert (browser.headers["retry-after"], browser.headers.get("refresh")) == ("3", None)
    reopening.finish()
    eventually(lambda: browser.get("/").heading == "Overview")
    browser.submit(reopening.asked, {})
    assert browser.status == 200


def test_store_that_cannot_be_opened_again_says_why(reopening: Reopening) -> None:
    reopening.opening.error = errors.StoreLockedError("another process has opened the store")
    reopening.finish()
    eventually(lambda: "another process has opened the store" in reopening.browser.get("/").text)
    assert (reopening.browser.status, reopening.browser.headers.get("refresh")) == (503, None)
