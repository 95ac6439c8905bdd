"""Guards checks through a server: only accounts that may publish see half messages; silent producers do not block
checks.

Producers of one group on several connections, by hand: with accounts, silent, gone, and one after another.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.frames import Wire
from tests.remoting_requests import CHECK, COMMIT, END, HEARTBEAT, ROUTE, SEND_V2, UNREGISTER, ending, half, heartbeat
from tests.unit.conftest import OpenStore
from tests.waiting import eventually
from txstore import EmbeddedBroker, Server, ServerConfig

ANY = ServerConfig(listen="127.0.0.1:0", name_server=None)
ACCOUNTS = """
[payroll-app]
secret_key = "secret-of-payroll"
topics = { salaries = "PUB" }

[stranger-app]
secret_key = "secret-of-stranger"
topics = { news = "PUB" }
"""
PAYROLL = ("payroll-app", "secret-of-payroll")
STRANGER = ("stranger-app", "secret-of-stranger")


@pytest.fixture
def broker(open_store: OpenStore) -> EmbeddedBroker:
    """A store whose transactions are checked soon and often, and not discarded before a test ends."""
    return open_store(transaction_timeout=0.05, transaction_check_interval=0.1, transaction_check_max=10_000)


@pytest.fixture
def server(broker: EmbeddedBroker) -> Iterator[Server]:
    with Server(broker, ANY) as server:
        yield server


@pytest.fixture
def guarded(broker: EmbeddedBroker, tmp_path: Path) -> Iterator[Server]:
    """A server with accounts."""
    accounts = tmp_path / "accounts.toml"
    accounts.touch(0o600)
    accounts.write_text(ACCOUNTS)
    with Server(broker, ServerConfig("127.0.0.1:0", name_server=None, accounts=accounts)) as server:
        yield server


def connect(server: Server, account: tuple[str, str] | None = None) -> Wire:
    assert server.address is not None
    return Wire(server.address, account=account)


def asked_or_waiting(broker: EmbeddedBroker) -> bool:
    """Whether the pending transaction was checked, or its next check waits for a producer."""
    (pending,) = broker.transactions()
    return pending.checks > 0 or "no live producer" in pending.why


@pytest.mark.parametrize("way", ["heartbeat", "half of its own"])
def test_account_that_may_not_publish_is_not_asked(guarded: Server, broker: EmbeddedBroker, way: str) -> None:
    """An account without rights on a topic claims to belong to the group that sends there."""
    with connect(guarded, STRANGER) as stranger:
        if way == "heartbeat":
            assert stranger.call(HEARTBEAT, {}, heartbeat("s", producers=("payroll",))).code == 0
        else:
            own = stranger.call(SEND_V2, half("news", group="payroll", unique_id="ID2"), b"n")
            assert stranger.call(END, ending(own, COMMIT, group="payroll")).code == 0
        with connect(guarded, PAYROLL) as owner:
            sent = owner.call(SEND_V2, half("salaries", group="payroll"), b"SECRET")
            assert sent.code == 0
        eventually(lambda: guarded.counters()["producers"] == 1)
        owners_checks = broker.transactions()[0].checks
        eventually(lambda: asked_or_waiting(broker))
        assert stranger.call(ROUTE, {"topic": "salaries"}).code == 0
        assert [pushed.code for pushed in stranger.kept() if b"SECRET" in pushed.body] == []
        checks = broker.transactions()[0].checks
        with connect(guarded, PAYROLL) as owner:
            owner.call(HEARTBEAT, {}, heartbeat("p", producers=("payroll",)))
            assert b"SECRET" in owner.pushed(CHECK).body
            owner.write(END, ending(sent, COMMIT, group="payroll", fromTransactionCheck="true"), one_way=True)
            eventually(lambda: not broker.transactions())
        assert stranger.call(ROUTE, {"topic": "salaries"}).code == 0
        assert [pushed.code for pushed in stranger.kept() if b"SECRET" in pushed.body] == []
        assert checks <= owners_checks + 1, "a check that was under way while the owner's connection ended"


def test_account_that_lost_its_permission_is_not_asked(guarded: Server, broker: EmbeddedBroker, tmp_path: Path) -> None:
    with connect(guarded, PAYROLL) as owner:
        owner.call(SEND_V2, half("salaries", group="payroll"), b"SECRET")
        owner.pushed(CHECK)
        (tmp_path / "accounts.toml").write_text(ACCOUNTS.replace('salaries = "PUB"', 'salaries = "DENY"'))
        guarded.reload()
        eventually(lambda: "no live producer" in broker.transactions()[0].why)


def test_silent_producer_does_not_take_all_checks(server: Server, broker: EmbeddedBroker) -> None:
    """The connection that sent the half message does not answer: the next of its group is asked."""
    with connect(server) as silent, connect(server) as living:
        sent = silent.call(SEND_V2, half(), b"tx")
        living.call(HEARTBEAT, {}, heartbeat("living", producers=("g",)))
        check = living.pushed(CHECK)
        assert check.fields["transactionId"] == "ID1"
        living.write(END, ending(sent, COMMIT, fromTransactionCheck="true"), one_way=True)
        eventually(lambda: not broker.transactions())


def test_all_of_a_group_are_asked_in_turn(server: Server) -> None:
    with connect(server) as one, connect(server) as two, connect(server) as three:
        for number, wire in enumerate((one, two, three)):
            wire.call(HEARTBEAT, {}, heartbeat(f"c{number}", producers=("g",)))
        one.call(SEND_V2, half(), b"tx")
        for wire in (one, two, three, one):
            wire.pushed(CHECK)


def test_checks_keep_no_silent_connection_open(broker: EmbeddedBroker) -> None:
    """Only what a client sends shows that it is alive, not what the server sends to it."""
    config = ServerConfig("127.0.0.1:0", name_server=None, idle_timeout=6)
    with Server(broker, config) as server, connect(server) as silent:
        silent.call(SEND_V2, half(), b"tx")
        silent.pushed(CHECK)
        eventually(lambda: server.counters()["producers"] == 0)
        assert broker.transactions()[0].checks > 1, "the server kept sending"


def test_producer_without_heartbeats_is_not_alive(broker: EmbeddedBroker) -> None:
    """Its connection lives on for other requests: RocketMQ's brokers forget such a producer after two minutes, too."""
    now = [0.0]
    with Server(broker, ANY, monotonic=lambda: now[0]) as server, connect(server) as wire:
        wire.call(HEARTBEAT, {}, heartbeat("c", producers=("g",)))
        now[0] = 119.0
        server.clients.expire()
        assert server.counters()["producers"] == 1
        now[0] = 121.0
        server.clients.expire()
        assert server.counters()["producers"] == 0


@pytest.mark.parametrize("way", ["expired", "unregistered"])
def test_forgotten_producer_returns_with_its_next_half_message(broker: EmbeddedBroker, way: str) -> None:
    now = [0.0]
    with Server(broker, ANY, monotonic=lambda: now[0]) as server, connect(server) as wire:
        assert wire.call(SEND_V2, half(unique_id="ID1"), b"tx").code == 0
        if way == "unregistered":
            assert wire.call(UNREGISTER, {"clientID": "c", "producerGroup": "g"}).code == 0
        else:
            now[0] = 121.0
            server.clients.expire()
        assert server.counters()["producers"] == 0
        assert wire.call(SEND_V2, half(unique_id="ID2"), b"tx").code == 0
        assert server.counters()["producers"] == 1
        wire.pushed(CHECK)
