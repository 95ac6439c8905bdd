"""Guards the console's actions: each has its effect on a live store after a confirmation, only for those who may act,
only by a form of the console itself, and with a line in the log that names who did it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import txstore
from tests.pages import Browser, Shown
from tests.unit.conftest import OpenStore, Scripted, bodies
from tests.unit.test_console import ACCOUNTS
from tests.waiting import eventually
from txstore import EmbeddedBroker, LocalTransactionState, Message, RemoteBroker, Server, ServerConfig
from txstore.broker.operations import Operations
from txstore.transaction_state import TransactionState

ANY = ServerConfig("127.0.0.1:0", name_server=None, console="127.0.0.1:0", console_actions=True)


@pytest.fixture
def served(open_store: OpenStore) -> Iterator[Server]:
    """A server whose checks are due in an hour, with a topic and a group that has read nothing."""
    broker = open_store(transaction_check_interval=3600, transaction_timeout=3600)
    broker.create_topic("orders", 1)
    broker.create_topic("invoices", 1)
    broker.create_group("shipping")
    with Server(broker, ANY) as server:
        yield server


@pytest.fixture
def browser(served: Server) -> Browser:
    assert served.console is not None
    return Browser(served.console)


def begin(broker: EmbeddedBroker, scripted: type[Scripted], key: str = "c-17", body: bytes = b"paid") -> str:
    """Begins a transaction that stays pending. Its producer is gone afterwards."""
    with broker.transaction_producer("payments", scripted()) as producer:
        return str(producer.send_in_transaction(Message("orders", body, keys=[key])).transaction_id)


def committed(broker: EmbeddedBroker, name: str) -> bool:
    return broker.transaction(name).state is TransactionState.COMMITTED


def press(browser: Browser, page: Shown, button: str) -> Shown:
    """Follows a button of a page, and confirms. To cancel would lead back."""
    asked = browser.get(page.link(button))
    assert browser.status == 200, asked.text
    assert asked.heading == f"{button}?"
    assert browser.get(asked.link("Cancel")).heading == page.heading
    return browser.submit(asked, {})


def test_a_customers_transaction_is_found_by_key_and_committed(
    served: Server, browser: Browser, scripted: type[Scripted], caplog: pytest.LogCaptureFixture
) -> None:
    name = begin(served.broker, scripted)
    assert browser.get("/").tiles["Pending transactions"] == "1"
    found = browser.get("/transactions?key=c-17")
    assert [row[:2] for row in found.rows] == [[name, "pending"]]
    page = browser.get(found.link(name))
    assert "first checked 3600 s after" in page.text
    with caplog.at_level(logging.INFO, "txstore.console"):
        page = press(browser, page, "Commit")
    assert f"transaction {name}: committed" in page.text
    assert "Roll back" not in page.links
    assert bodies(served.broker, "orders") == [b"paid"]
    (line,) = [record for record in caplog.records if record.name == "txstore.console"]
    assert line.getMessage() == f"local user: commit id={name}: transaction {name}: committed"
    assert (line.__dict__["account"], line.__dict__["action"]) == ("local user", "commit")
    assert f"transaction {name}" not in browser.get("/").text, "what was done is told once"


def test_roll_back_discard_and_resume(served: Server, browser: Browser, scripted: type[Scripted]) -> None:
    name = begin(served.broker, scripted)
    page = press(browser, browser.get(f"/transaction?id={name}"), "Discard")
    assert served.broker.transaction(name).state is TransactionState.DISCARDED
    assert [row[0] for row in browser.get("/transactions?state=discarded").rows] == [name]
    page = press(browser, page, "Resume")
    assert served.broker.transaction(name).state is TransactionState.PENDING
    press(browser, page, "Roll back")
    assert served.broker.transaction(name).state is TransactionState.ROLLED_BACK
    assert bodies(served.broker, "orders") == []


def test_ask_now_asks_long_before_the_check_is_due(served: Server, browser: Browser, scripted: type[Scripted]) -> None:
    name = begin(served.broker, scripted)
    page = press(browser, browser.get(f"/transaction?id={name}"), "Ask now")
    assert "nobody can be asked" in page.text
    listener = scripted(check=LocalTransactionState.COMMIT)
    with served.broker.transaction_producer("payments", listener):
        page = press(browser, page, "Ask now")
        assert "a producer is asked" in page.text
        eventually(partial(committed, served.broker, name))
    assert listener.checked == [name]
    # The history has it a moment after the log.
    eventually(lambda: "was asked: COMMIT" in browser.get(f"/transaction?id={name}").text)


def test_who_registers_after_nobody_could_be_asked_is_not_asked(served: Server, scripted: type[Scripted]) -> None:
    """A producer that registers at once is there before the thread that checks looks."""
    operations = Operations(served.broker)
    for _ in range(20):
        first, second = begin(served.broker, scripted), begin(served.broker, scripted)
        assert not operations.ask(first)
        listener = scripted(check=LocalTransactionState.COMMIT)
        with served.broker.transaction_producer("payments", listener):
            assert operations.ask(second)
            eventually(partial(committed, served.broker, second))
        assert listener.checked == [second]


def test_end_that_comes_too_late_says_how_it_ended(
    served: Server, browser: Browser, scripted: type[Scripted], caplog: pytest.LogCaptureFixture
) -> None:
    name = begin(served.broker, scripted)
    asked = browser.get(f"/transaction/rollback?id={name}")
    served.broker.end_transaction(name, LocalTransactionState.COMMIT)
    with caplog.at_level(logging.INFO, "txstore.console"):
        page = browser.submit(asked, {})
    assert browser.status == 409
    assert "committed" in page.text
    assert any("was not done" in record.getMessage() for record in caplog.records)


def test_dead_letter_is_sent_again(served: Server, browser: Browser) -> None:
    served.broker.producer("shop").send(Message("orders", b"bad", keys=["o-1"]))
    with served.broker.consumer("shipping", "orders", max_reconsume_times=0) as consumer:
        for message in consumer.poll(timeout=5):
            message.retry()
    eventually(lambda: browser.get("/").tiles["Dead letters"] == "1")  # The sums may be two seconds old.
    page = browser.get(browser.get("/dead-letters").link("shipping"))
    assert [row[1] for row in page.rows] == ["orders"]
    page = press(browser, page, "Resend")
    assert "sent to shipping again" in page.text
    with served.broker.consumer("shipping", "orders") as consumer:
        assert [message.body for message in consumer.poll(timeout=5)] == [b"bad"]


def test_group_is_moved(served: Server, browser: Browser) -> None:
    for number in range(5):
        served.broker.producer("shop").send(Message("orders", b"%d" % number))
    served.broker.set_consumer_offset("orders", "shipping", 0, 1)
    page = browser.get("/group?group=shipping")
    fields = page.form("/group/reset").fields
    asked = browser.get(f"/group/reset?group={fields['group']}&topic=orders&to=last")
    assert "skips the 4 messages" in asked.text
    assert "was moved in 1 queue" in browser.submit(asked, {}).text
    assert served.broker.consumer_offset("orders", "shipping", 0) == 5
    browser.submit(browser.get("/group/reset?group=shipping&topic=orders&to=time&at=2020-01-01T00:00"), {})
    assert served.broker.consumer_offset("orders", "shipping", 0) == 0
    for wrong in ("to=middle", "to=time", "to=time&at=yesterday", ""):
        browser.get(f"/group/reset?group=shipping&topic=orders&{wrong}")
        assert browser.status == 400, wrong


def test_forms_of_other_sites_change_nothing(served: Server, browser: Browser, scripted: type[Scripted]) -> None:
    name = begin(served.broker, scripted)
    form = browser.get(f"/transaction/commit?id={name}").form("/transaction/commit").fields
    stranger = Browser(served.console or "")
    for sender, fields in (
        (browser, {"id": name}),
        (browser, {**form, "token": ""}),
        (browser, {**form, "token": "0" * 64}),
        (stranger, form),
    ):
        page = sender.post("/transaction/commit", fields)
        assert sender.status == 403, page.text
    assert served.broker.transaction(name).state is TransactionState.PENDING
    browser.post("/transaction/commit", form)
    assert served.broker.transaction(name).state is TransactionState.COMMITTED


def test_console_is_read_only_by_default(broker: EmbeddedBroker, scripted: type[Scripted]) -> None:
    broker.create_topic("orders", 1)
    name = begin(broker, scripted)
    with Server(broker, ServerConfig("127.0.0.1:0", name_server=None, console="127.0.0.1:0")) as server:
        browser = Browser(server.console or "")
        page = browser.get(f"/transaction?id={name}")
        assert "read-only" in page.text
        assert "Commit" not in page.links
        assert "read-only" in browser.get(f"/transaction/commit?id={name}").text
        assert browser.status == 403
        browser.post("/transaction/commit", {"id": name, "token": page.source})
        assert browser.status == 403
    assert broker.transaction(name).state is TransactionState.PENDING


def test_only_administrators_act(broker: EmbeddedBroker, scripted: type[Scripted], tmp_path: Path) -> None:
    accounts = tmp_path / "accounts.toml"
    accounts.touch(0o600)
    accounts.write_text(ACCOUNTS)
    broker.create_topic("orders", 1)
    name = begin(broker, scripted)
    config = ServerConfig(
        "127.0.0.1:0", name_server=None, console="127.0.0.1:0", console_actions=True, accounts=accounts
    )
    with Server(broker, config) as server:
        reader = Browser(server.console or "")
        page = reader.get("/topics")
        reader.submit(page, {"account": "reader-app", "secret": "secret-of-reader"})
        own = reader.get("/topics").form("/logout").fields
        for path in ("/transactions", f"/transaction?id={name}", "/settings", "/delayed"):
            reader.get(path)
            assert reader.status == 403, path
        for path in ("/transaction/commit", "/dead-letters/resend", "/group/reset"):
            reader.post(path, {"id": name, "group": "shipping", "topic": "orders", "to": "last", **own})
            assert reader.status == 403, path
        nobody = Browser(server.console or "")
        assert nobody.post("/transaction/commit", {"id": name}).heading == "Log in"
        assert broker.transaction(name).state is TransactionState.PENDING
        operator = Browser(server.console or "")
        operator.submit(operator.get("/"), {"account": "operator", "secret": "secret-of-operator"})
        press(operator, operator.get(f"/transaction?id={name}"), "Commit")
    assert broker.transaction(name).state is TransactionState.COMMITTED


def test_filters_and_pages_of_pending_transactions(served: Server, browser: Browser, scripted: type[Scripted]) -> None:
    first = [begin(served.broker, scripted, f"c-{number}") for number in range(3)]
    with served.broker.transaction_producer("others", scripted()) as producer:
        ids = [producer.send_in_transaction(Message("invoices", b"due")).transaction_id for _ in range(60)]
    assert [row[0] for row in browser.get("/transactions?group=payments").rows] == first
    assert [row[0] for row in browser.get(f"/transactions?prefix={first[1]}").rows] == [first[1]]
    assert browser.get("/transactions?older=1d").rows == []
    page = browser.get("/transactions?topic=invoices")
    assert [row[0] for row in page.rows] == ids[:50]
    assert [row[0] for row in browser.get(page.link("Next")).rows] == ids[50:]
    for wrong in ("state=lost", "older=2w", "after=x"):
        browser.get(f"/transactions?{wrong}")
        assert browser.status == 400, wrong


def test_hostile_messages_are_only_text(served: Server, browser: Browser) -> None:
    hostile = "<script>alert(1)</script><img src=x onerror=alert(2)>\"' {{7*7}} \u202e"
    body = hostile.encode() + b"\x1b[31m\x00"
    served.broker.producer("shop").send(Message("orders", body, keys=["<b>"], tags="<i>", properties={"<u>": hostile}))
    listing = browser.get("/messages?topic=orders")
    assert (listing.rows[0][5], listing.rows[0][6]) == ("<b>", "<i>")
    page = browser.get(listing.link(listing.rows[0][0]))
    assert "<script>alert(1)</script>" in page.text
    assert "\\u202e" in page.text
    assert "\\x1b[31m\\x00" in page.text
    assert not {"script", "img", "b", "i", "u"} & page.tags.keys()
    assert browser.get("/messages?topic=orders&key=%3Cb%3E").rows[0][5] == "<b>"


def test_bodies_are_shown_as_what_they_are(served: Server, browser: Browser) -> None:
    producer = served.broker.producer("shop")
    for key, body in {"json": b'{"a":[1]}', "text": "grüße".encode(), "hex": bytes(range(256))}.items():
        producer.send(Message("orders", body, keys=[key]))
    shown = {}
    for row in browser.get("/messages?topic=orders").rows:
        shown[row[5]] = browser.get(browser.get("/messages?topic=orders").link(row[0])).text
    assert "shown as JSON" in shown["json"]
    assert '{ "a": [ 1 ] }' in shown["json"]
    assert "shown as text" in shown["text"]
    assert "grüße" in shown["text"]
    assert "shown as hex" in shown["hex"]
    assert "000000f0  f0 f1".replace("  ", " ") in shown["hex"]


def test_every_page_works_on_a_server_of_another_process(served: Server) -> None:
    """The pages make the listed calls only, so an operator's own connection can show them, too."""
    from txstore.client.operated import calls_of
    from txstore.console.operator import Operator

    assert served.address is not None
    with txstore.connect(served.address) as remote:
        assert isinstance(remote, RemoteBroker)
        operator = Operator(calls_of(remote))
        assert operator.overview().topics == 2
        assert [row.topic for row in operator.topic_rows(operator.topics())] == ["invoices", "orders"]
        assert [row.group for row in operator.group_rows(operator.groups())] == ["shipping"]
        assert operator.settings()["store"]["flush_disk_type"] == "ASYNC_FLUSH"
        page = operator.pending_page(group=None, topic=None, id_prefix=None, older_than=None, after=-1, limit=5)
        assert (page.rows, page.after) == ((), None)
        assert operator.discarded_page(0, 5) == ([], 0)
        assert operator.dead_letter_page("shipping", 0, 5).letters == ()
        assert operator.transactions_by_key("c-1") == []
        assert (operator.dead_groups(), operator.delayed_levels(5), operator.members("shipping")) == ({}, [], [])
