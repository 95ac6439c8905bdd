"""Guards that an operator finds causes by clicking: in each prepared incident the overview marks a number, and the
pages that it leads to say what is wrong.
"""

from __future__ import annotations

import resource
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests.pages import Browser, Shown
from tests.unit.conftest import SMALL, Scripted
from tests.unit.test_cli_serve import serving
from tests.waiting import eventually
from txstore import EmbeddedBroker, LocalTransactionState, Message, Server, ServerConfig
from txstore.database import Database

SOON = {"transaction_timeout": 0.01, "transaction_check_interval": 0.05, "transaction_check_time_limit": 0.2}


class Scene:
    """A served store in which something goes wrong, and an operator who looks at it."""

    def __init__(self, path: Path, opened: ExitStack, **options: Any) -> None:
        self.opened = opened
        self.broker: EmbeddedBroker = opened.enter_context(txstore.open(path, **(SMALL | SOON | options)))
        self.broker.create_topic("orders", 1)
        config = ServerConfig("127.0.0.1:0", name_server=None, console="127.0.0.1:0")
        self.server = opened.enter_context(Server(self.broker, config))
        self.browser = Browser(self.server.console or "")

    def marked(self, tile: str, *levels: str) -> Shown:
        """The page to which the tile leads, as soon as the overview marks it."""

        def is_marked() -> bool:
            return self.browser.get("/").levels.get(tile) in (levels or ("bad", "warning"))

        eventually(is_marked)
        page = self.browser.get(self.browser.get("/").tile_links[tile])
        assert self.browser.status == 200
        return page

    def follow(self, page: Shown, row: int = 0) -> Shown:
        """The page to which the name of a row leads."""
        return self.browser.get(page.link(page.rows[row][0]))

    def begin(self, producer: Any, text: str = "paid") -> str:
        return str(producer.send_in_transaction(Message("orders", text.encode(), keys=[text])).transaction_id)

    def producer(self, listener: Any) -> Any:
        return self.opened.enter_context(self.broker.transaction_producer("payments", listener))


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Callable[..., Scene]]:
    with ExitStack() as opened:
        yield lambda **options: Scene(tmp_path / "store", opened, **options)


def test_group_without_a_producer(scene: Callable[..., Scene], scripted: type[Scripted]) -> None:
    here = scene(transaction_check_max=1_000)
    with here.broker.transaction_producer("payments", scripted()) as producer:
        name = here.begin(producer)
    page = here.marked("Pending transactions", "bad")
    assert page.rows[0][0] == name
    eventually(lambda: "no live producer of group payments" in here.browser.get(page_of(name)).text)


def page_of(transaction_id: str) -> str:
    return f"/transaction?id={transaction_id}"


def test_listener_that_does_not_answer_in_time(scene: Callable[..., Scene]) -> None:
    here, ended = scene(transaction_check_max=1_000), threading.Event()
    here.opened.callback(ended.set)

    class Slow(Scripted):
        def check_local_transaction(self, message: Any) -> LocalTransactionState:
            ended.wait(60)
            return LocalTransactionState.UNKNOWN

    name = here.begin(here.producer(Slow()))
    page = here.marked("Pending transactions", "bad")
    assert page.rows[0][0] == name
    eventually(lambda: "no answer within" in here.browser.get(page_of(name)).text)


def test_listener_that_raises(scene: Callable[..., Scene]) -> None:
    here = scene(transaction_check_max=1_000)

    class Broken(Scripted):
        def check_local_transaction(self, message: Any) -> LocalTransactionState:
            raise RuntimeError("the payments table is locked")

    name = here.begin(here.producer(Broken()))
    assert here.marked("Pending transactions", "bad").rows[0][0] == name
    eventually(lambda: "the payments table is locked" in here.browser.get(page_of(name)).text)


def test_listener_that_never_knows(scene: Callable[..., Scene], scripted: type[Scripted]) -> None:
    here = scene(transaction_check_max=1_000)
    name = here.begin(here.producer(scripted()))
    assert here.marked("Pending transactions", "bad").rows[0][0] == name
    eventually(lambda: "was asked: UNKNOWN" in here.browser.get(page_of(name)).text)


def test_local_transaction_that_does_not_end(scene: Callable[..., Scene]) -> None:
    here, ended = scene(), threading.Event()

    class Stuck(Scripted):
        def execute_local_transaction(self, message: Any, arg: Any) -> LocalTransactionState:
            ended.wait(60)
            return LocalTransactionState.COMMIT

    thread = threading.Thread(target=here.begin, args=[here.producer(Stuck())])
    here.opened.callback(thread.join)
    here.opened.callback(ended.set)
    thread.start()
    page = here.follow(here.marked("Pending transactions", "bad"))
    assert "its local transaction still runs in TransactionProducer(group='payments'" in page.text


def test_transaction_that_was_discarded(scene: Callable[..., Scene], scripted: type[Scripted]) -> None:
    here = scene(transaction_check_max=2)
    name = here.begin(here.producer(scripted()))
    page = here.marked("Discarded", "warning")
    assert page.rows[0][0] == name
    page = here.follow(page)
    assert "discarded to TRANS_CHECK_MAX_TIME_TOPIC" in page.text
    assert page.text.count("was asked: UNKNOWN") == 2


def test_consumer_that_fails_on_one_message(scene: Callable[..., Scene]) -> None:
    here = scene()
    for text in ("good", "<poison>"):
        here.broker.producer("shop").send(Message("orders", text.encode(), keys=[text]))
    with here.broker.consumer("shipping", "orders", max_reconsume_times=0) as consumer:
        for message in consumer.poll(timeout=5):
            if message.body == b"<poison>":
                message.retry()
    page = here.follow(here.marked("Dead letters", "bad"))
    assert [row[5] for row in page.rows] == ["<poison>"]


def test_group_that_nobody_reads_for(scene: Callable[..., Scene]) -> None:
    here = scene()
    here.broker.create_group("shipping")
    here.broker.producer("shop").send(Message("orders", b"x"))
    here.broker.set_consumer_offset("orders", "shipping", 0, 0)
    page = here.follow(here.marked("Consumer lag", "warning"))
    assert "Nobody reads for this group now" in page.text
    assert page.rows[0][4] == "1"


def test_client_that_reads_but_does_not_acknowledge(scene: Callable[..., Scene]) -> None:
    here = scene()
    here.broker.producer("shop").send(Message("orders", b"x"))
    remote = here.opened.enter_context(txstore.connect(str(here.server.address)))
    consumer = here.opened.enter_context(remote.consumer("shipping", "orders"))
    assert consumer.poll(timeout=30)
    here.broker.set_consumer_offset("orders", "shipping", 0, 0)
    page = here.follow(here.marked("Consumer lag", "warning"))
    eventually(lambda: "127.0.0.1" in here.browser.get("/group?group=shipping").text)
    assert "orders" in page.text


def test_message_that_a_group_has_not_read(scene: Callable[..., Scene], scripted: type[Scripted]) -> None:
    here = scene(transaction_check_interval=60)
    here.broker.create_group("shipping")
    name = here.begin(here.producer(scripted(execute=LocalTransactionState.COMMIT)), "c-17")
    here.broker.set_consumer_offset("orders", "shipping", 0, 0)
    group = here.follow(here.marked("Consumer lag", "warning"))
    assert group.heading == "shipping"
    message = here.follow(here.browser.get(group.link("0")))
    assert "shipping : has not acknowledged it yet" in message.text
    for page in (here.browser.get(message.link(name)), here.follow(here.browser.get("/transactions?key=c-17"))):
        assert page.heading == name
        assert "shipping : has not acknowledged it yet" in page.text
    here.broker.set_consumer_offset("orders", "shipping", 0, 1)
    assert "shipping : has acknowledged it" in here.browser.get(page_of(name)).text


def test_database_whose_rows_do_not_leave(scene: Callable[..., Scene], tmp_path: Path) -> None:
    here, url = scene(), str(tmp_path / "shop.db")
    Database(url).create_table()
    here.broker.producer("shop", database=Database(url))
    with sqlite3.connect(url) as broken:
        broken.execute("ALTER TABLE txstore_outbox RENAME TO gone")
    broken.close()
    page = here.marked("Outbox", "bad")
    assert url in page.text
    assert "create_table" in page.text


def test_delayed_retry_says_when_it_comes(scene: Callable[..., Scene]) -> None:
    here = scene()
    here.broker.producer("shop").send(Message("orders", b"x", keys=["o-1"]))
    with here.broker.consumer("shipping", "orders") as consumer:
        for message in consumer.poll(timeout=5):
            message.retry(delay_level=18)
    page = here.marked("Delayed messages", "warning")
    assert "1 of those due next failed in a consumer" in here.browser.get("/").text
    assert page.rows[0] == ["18", "2h 0m", "1"]
    assert page.rows[1][1:3] == ["%RETRY%shipping", "o-1"]
    assert here.browser.get(page.link("%RETRY%shipping")).heading == "shipping"


def test_message_that_a_user_delayed_is_not_marked(scene: Callable[..., Scene]) -> None:
    here = scene()
    here.broker.producer("shop").send(Message("orders", b"x", delay_level=18))
    eventually(lambda: here.browser.get("/").tiles["Delayed messages"] == "1")
    assert here.browser.get("/").levels["Delayed messages"] == ""


def test_messages_with_a_time_are_shown_in_its_order(scene: Callable[..., Scene]) -> None:
    here, start = scene(), datetime.now(UTC)
    producer = here.broker.producer("shop")
    sent = {
        hours: producer.send(Message("orders", b"x", keys=[f"o-{hours}"], deliver_at=start + timedelta(hours=hours)))
        for hours in (3, 1, 2)
    }
    producer.send(Message("orders", b"x", keys=["level"], delay_level=18))
    page = here.browser.get("/delayed")
    assert page.rows[0] == ["–", "until their own time", "3"]
    keys = [row[2] for row in page.rows[2:]]
    assert (sorted(keys), [key for key in keys if key != "level"]) == (
        ["level", "o-1", "o-2", "o-3"],
        ["o-1", "o-2", "o-3"],
    )
    row = page.rows[2]
    due = (start + timedelta(hours=1)).astimezone(UTC)
    assert (row[0], row[1]) == (sent[1].message_id, "orders")
    assert f"{due:%Y-%m-%d %H:%M}" in row[4] or f"{due + timedelta(milliseconds=1):%Y-%m-%d %H:%M}" in row[4]


def test_committed_transaction_with_a_time_says_when_consumers_see_its_message(scene: Callable[..., Scene]) -> None:
    here = scene()
    here.broker.consumer("shipping", "orders").close()
    producer = here.broker.transaction_producer(
        "payments", check_listener=lambda message: LocalTransactionState.UNKNOWN
    )
    due = datetime.now(UTC) + timedelta(hours=1)
    with producer.transaction(Message("orders", b"x", deliver_at=due)) as transaction:
        pass
    page = here.browser.get(f"/transaction?id={transaction.transaction_id}")
    shown = here.broker.transaction(transaction.transaction_id).deliver_at
    assert shown is not None
    assert f"consumers see the message from {shown.isoformat(timespec='milliseconds')} on" in page.text
    assert "rolled back" not in page.text
    assert "shipping" not in page.text, "nobody has read it, and none of the topic's messages is it"


def test_torn_tail_is_told_after_a_crash(tmp_path: Path) -> None:
    with txstore.open(tmp_path / "store", **SMALL) as broker:
        broker.create_topic("orders", 1)
        broker.producer("shop").send(Message("orders", b"x" * 100))
        end = broker.stat().max_physical_offset
    (tmp_path / "store" / "abort").touch()
    log = sorted((tmp_path / "store" / "commitlog").iterdir())[0]
    with log.open("r+b") as file:
        file.seek(end)
        file.write(b"\x00\x00\x00\x70\xda\xa3\x20\xa7" + b"torn")
    with ExitStack() as opened:
        here = Scene(tmp_path / "store", opened)
        page = here.marked("Opened", "warning")
        assert "opening the store cut off 12 B of a write" in here.browser.get("/").text
        values = {row[0]: row[1] for row in page.rows if len(row) == 2}
        assert (values["clean"], values["truncated_bytes"]) == ("no", "12")
    with ExitStack() as opened:
        assert "Opened" not in Scene(tmp_path / "store", opened).browser.get("/").tiles, "it was closed cleanly"


def test_disk_that_takes_no_more_is_red(tmp_path: Path) -> None:
    options = ["--console", "127.0.0.1:0", "--log", "json", "--set", "flush_disk_type=SYNC_FLUSH"]
    with serving(tmp_path / "store", *options) as (process, addresses):
        browser = Browser(addresses["console"])
        assert browser.get("/").tiles["Health"] == "OK"
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
        with txstore.connect(addresses["broker"]) as remote:
            producer = remote.producer("shop")
            with pytest.raises(txstore.errors.TxStoreError):
                producer.send_batch([Message("orders", b"x" * 1_000) for _ in range(10)])
        eventually(lambda: browser.get("/").levels["Health"] == "bad")
        page = browser.get("/")
        assert page.tiles["Health"] == "no messages taken"
        assert "File too large" in page.text


def test_replica_that_is_missing_or_lags(tmp_path: Path) -> None:
    config = ServerConfig("127.0.0.1:0", name_server=None, console="127.0.0.1:0", replicas_required=2)
    with txstore.serve(tmp_path / "store", config=config, **SMALL) as source:
        browser = Browser(source.console or "")
        page = browser.get("/")
        assert (page.levels["Replicas"], page.tiles["Replicas"]) == ("bad", "0")
        copying: dict[str, Any] = {"listen": "127.0.0.1:0", "name_server": None, "replica_name": "second"}
        with txstore.serve(tmp_path / "copy", replica_of=source.address, **copying):
            eventually(lambda: browser.get("/").tiles["Replicas"] == "1")
            eventually(lambda: any(row[0] == "second" for row in browser.get("/").rows))
